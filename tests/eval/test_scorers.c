/* Every test vector of the scorers' specification (eval.md 2.10), and the corners it names. */
#include "eval/scorers.h"
#include "eval/text.h"
#include "test.h"

static struct iwp_score run(const char *scorer, const char *response, const char *const *answers,
                            int n_answer, const char *const *choices, int n_choice,
                            enum iwp_profile profile) {
    struct iwp_score_input in = {response, answers, n_answer, choices, n_choice, profile};
    struct iwp_score out;
    iwp_err err;
    const struct iwp_scorer *s = iwp_scorer_find(scorer);
    CHECK_MSG(s != NULL, "%s", scorer);
    if (!s || iwp_scorer_run(s, &in, &out, &err) < 0) memset(&out, 0, sizeof out), test_failed++;
    return out;
}

static double one(const char *scorer, const char *response, const char *answer) {
    return run(scorer, response, &answer, 1, NULL, 0, IWP_PROFILE_LMMS_0_3).score;
}

TEST(anls) {
    CHECK_NEAR(one("anls", "1000", "1,000"), 0.8, 1e-9);
    CHECK_NEAR(one("anls", "paris ", "Paris"), 1, 1e-9);
    const char *two[] = {"Paris", "City of Paris"};
    CHECK_NEAR(run("anls", "Pariss", two, 2, NULL, 0, 0).score, 0.833333, 1e-6);
    CHECK_NEAR(one("anls", "abczzz", "abcdef"), 0.5, 1e-9);
    CHECK_NEAR(one("anls", "new york", "New  York"), 1, 1e-9);
    CHECK_NEAR(one("anls", "strasse", "Straße"), 0.714286, 1e-6);
    CHECK_NEAR(one("anls", "", "a"), 0, 1e-9);
}

TEST(vqa) {
    static const char *const pairs[][2] = {{"The Two Dogs.", "2 dogs"},
                                           {"Coca-Cola", "coca cola"},
                                           {"$3.50", "$3.50"},
                                           {"3.", "3"},
                                           {"yes, it is", "yes it is"},
                                           {"U.S.A.", "usa"},
                                           {"it's", "it 's"},
                                           {"dont", "don't"},
                                           {"None", "0"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        CHECK_MSG(one("vqa", pairs[i][0], pairs[i][1]) == 1, "%s", pairs[i][0]);
        CHECK_MSG(one("vqa", pairs[i][0], "something else") == 0, "%s", pairs[i][0]);
    }
    CHECK(one("vqa", "a", "the") == 1); /* both become empty */
    static const double want[] = {0, 0.3, 0.6, 0.9, 1, 1, 1, 1, 1, 1, 1};
    for (int k = 0; k <= 10; k++) {
        const char *refs[10];
        for (int i = 0; i < 10; i++) refs[i] = i < k ? "red" : "blue";
        CHECK_NEAR(run("vqa", "Red.", refs, 10, NULL, 0, 0).score, want[k], 1e-9);
    }
}

TEST(letters) {
    static const struct {
        const char *response, *s11, *s10, *s13, *s14;
    } rows[] = {
        {"B", "B", "B", "B", "B"},
        {"B.", "B", "B", "B", NULL},
        {"(B)", "B", "B", "B", "B"},
        {"B) red", "B", "B", "B", "B"},
        {"The answer is B", "B", "B", "B", NULL},
        {"The answer is B because A is wrong", "A", "B", "B", NULL},
        {"I think it is C.", "C", NULL, "C", NULL},
        {"Because of that, D", "D", "B", "B", NULL},
        {" b", NULL, "B", NULL, NULL},
        {"A man is running. Answer: C", "A", "A", "A", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (const char *letter = "ABCD"; *letter; letter++) {
            const char want[2] = {*letter, 0}, *answers[] = {want};
            const char *cells[] = {rows[i].s11, rows[i].s10, rows[i].s13, rows[i].s14};
            const char *names[] = {"choice", "mmstar", "videomme", "mlvu"};
            for (int c = 0; c < 4; c++) {
                double got =
                    run(names[c], rows[i].response, answers, 1, NULL, 4, IWP_PROFILE_LMMS_0_3)
                        .score;
                CHECK_MSG((got > 0) == (cells[c] && cells[c][0] == *letter), "%s '%s' for %s",
                          names[c], rows[i].response, want);
            }
            for (int c = 1; c < 4; c++) { /* the newer profile reads all three with S11 */
                double got =
                    run(names[c], rows[i].response, answers, 1, NULL, 4, IWP_PROFILE_LMMS_0_7_2)
                        .score;
                CHECK_MSG((got > 0) == (rows[i].s11 && rows[i].s11[0] == *letter), "%s '%s'",
                          names[c], rows[i].response);
            }
        }
    const char *b[] = {"b"};
    CHECK(run("mlvu", " b", b, 1, NULL, 4, IWP_PROFILE_LMMS_0_3).score ==
          1); /* S14 keeps the case */
}

TEST(mmmu_choice) {
    static const char *const options[] = {"a blue car", "the red bicycle", "dog", "cat"};
    static const char *const rows[][2] = {{"B", "B"},
                                          {"(A) or (C)", "C"},
                                          {"A. x B. y", "A"},
                                          {"The answer is C", "C"},
                                          {"A B", "B"},
                                          {"It must be the red bicycle over there", "B"},
                                          {"I do not know the answer to this", ""}};
    const char *a[] = {"A"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct iwp_score s = run("mmmu-choice", rows[i][0], a, 1, options, 4, 0);
        CHECK_STR(s.label, rows[i][1]);
        CHECK_INT(s.unparsed, rows[i][1][0] == 0);
        if (s.unparsed) CHECK_NEAR(s.chance, 0.25, 0);
    }
}

TEST(mmmu_open) {
    CHECK(one("mmmu-open", "42", "42") == 1);
    CHECK(one("mmmu-open", "The answer is 1,234.", "1234") == 1);
    CHECK(one("mmmu-open", "so the result is 3.14159", "3.14") == 1);
    CHECK(one("mmmu-open", "it is about 1.5e3 metres", "1500") == 1);
    CHECK(one("mmmu-open", "therefore a hydrogen atom", "hydrogen") == 1);
    CHECK(one("mmmu-open", "helium", "hydrogen") == 0);
    CHECK(one("mmmu-open", "x = 7", "7") == 1);
    CHECK(one("mmmu-open", "", "7") == 0);
    const char *a[] = {"42"};
    CHECK(run("mmmu-open", "42", a, 1, NULL, 0, IWP_PROFILE_LMMS_0_7_2).score == 0);
}

TEST(yes_no) {
    static const char *const rows[][2] = {{"Yes.", "yes"},          {"not sure", "no"},
                                          {"nope", "no"},           {"It is yes", "other"},
                                          {"There is no", "other"}, {"y", "yes"}};
    const char *a[] = {"Yes"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CHECK_STR(run("mme", rows[i][0], a, 1, NULL, 0, 0).label, rows[i][1]);
    CHECK(one("pope", "yes", "yes") == 1);
    CHECK(one("pope", "Yes", "yes") == 1);
    CHECK(one("pope", "Yes.", "yes") == 0);
}

TEST(others) {
    static const struct {
        const char *scorer, *response;
        double want;
    } rows[] = {{"scienceqa", "b", 1},
                {"scienceqa", "B. foo", 1},
                {"scienceqa", "B) foo", 0},
                {"scienceqa", "The answer is B", 0},
                {"ai2d", "(B)", 1},
                {"ai2d", "B) foo", 0},
                {"ai2d", "b", 1},
                {"ai2d", "B. car", 1},
                {"ai2d", "The answer is B", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CHECK_MSG(one(rows[i].scorer, rows[i].response, "B") == rows[i].want, "%s '%s'",
                  rows[i].scorer, rows[i].response);
    static const char *const options[] = {"dog", "cat", "mouse", "bird"};
    const char *d[] = {"D"}, *a[] = {"A"}, *c[] = {"C"};
    CHECK_STR(run("mmbench", "answer: D", d, 1, options, 4, 0).label, "D");
    CHECK_STR(run("mmbench", "A. dog", a, 1, options, 4, 0).label, "A");
    CHECK_STR(run("mmbench", "it shows a mouse", c, 1, options, 4, 0).label, "C");
    CHECK_STR(run("egoschema", "(C)", c, 1, NULL, 5, 0).label, "C");
    const char *two[] = {"2"};
    CHECK(run("egoschema", "C", two, 1, NULL, 5, 0).score == 1);
    CHECK(one("number", "There are five of them.", "5") == 1);
    CHECK(one("number", "about 1,200", "1200") == 1);
    CHECK(one("number", "many", "3") == 0);
    CHECK(one("exact", " Red. ", "red") == 1);
    CHECK(one("exact", "dark red", "red") == 0);
    CHECK(iwp_scorer_find("nope") == NULL);
}

/* Grids of BlindTest: "rows, columns" in any words, as many numbers as the reference has, in its order. */
TEST(numbers) {
    static const struct {
        const char *response, *answer;
        double score;
        bool unparsed;
    } rows[] = {
        {"4, 5", "4,5", 1, false},
        {"There are 4 rows and 5 columns.", "4,5", 1, false},
        {"(4,5)", "4,5", 1, false},
        {"04 x 005", "4,5", 1, false},
        {"5, 4", "4,5", 0, false},
        {"4", "4,5", 0, false},
        {"4, 5, 6", "4,5", 0, false},
        {"45", "4,5", 0, false},
        {"four, five", "4,5", 0, true},
        {"", "4,5", 0, true},
        {"99999999999999999999", "1", 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct iwp_score s =
            run("numbers", rows[i].response, &rows[i].answer, 1, NULL, 0, IWP_PROFILE_LMMS_0_3);
        CHECK_MSG(s.score == rows[i].score && s.unparsed == rows[i].unparsed, "%s: %g",
                  rows[i].response, s.score);
    }
    const char *either[] = {"4,5", "5,4"};
    CHECK(run("numbers", "5 by 4", either, 2, NULL, 0, IWP_PROFILE_LMMS_0_3).score == 1);
}

TEST(text) {
    struct iwp_text_pool p = {0};
    CHECK_INT(iwp_text_upper_length(iwp_text_decode(&p, "Stra\xc3\x9f"
                                                        "e")),
              7);
    CHECK_INT(iwp_text_decode(&p, "a\xff\xe2\x82").n, 4); /* bad bytes become one mark each */
    CHECK_INT(iwp_text_distance(&p, iwp_text_decode(&p, "kitten"), iwp_text_decode(&p, "sitting")),
              3);
    CHECK(iwp_text_is(iwp_text_capitalize(&p, iwp_text_decode(&p, "wHAT Is NASA?")),
                      "What is nasa?"));
    iwp_text_pool_free(&p);
}

int main(void) {
    test_anls();
    test_vqa();
    test_letters();
    test_mmmu_choice();
    test_mmmu_open();
    test_yes_no();
    test_others();
    test_numbers();
    test_text();
    return test_done();
}
