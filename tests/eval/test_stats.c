/* Aggregation with hand-computed values, templates and the manifest reader. */
#include <unistd.h>

#include "eval/manifest.h"
#include "eval/stats.h"
#include "test.h"

static struct iwp_eval_task *parse(const char *json) {
    struct iwp_eval_task *t = NULL;
    iwp_err err = {0};
    CHECK_MSG(iwp_eval_task_parse(json, strlen(json), "test", IWP_PROFILE_LMMS_0_3, &t, &err) == 1,
              "%s", err.msg);
    return t;
}

TEST(estimate) {
    /* 1 0 1 0, no clusters: mean 0.5, variance 1/3, se sqrt(1/12) */
    const struct iwp_eval_unit a[] = {{0, 0, 1, 1}, {1, 0, 2, 0}, {2, 0, 3, 1}, {3, 0, 4, 0}};
    struct iwp_estimate e = iwp_stats_estimate(a, 4, 1, 1);
    CHECK_NEAR(e.value, 0.5, 1e-12);
    CHECK_NEAR(e.stderr_, sqrt(1.0 / 12), 1e-12);
    /* 1 1 | 0 0 in two clusters: residual sums +1 and -1: se² = 2/1 · 2/16 = 1/4 */
    const struct iwp_eval_unit b[] = {{0, 0, 1, 1}, {1, 0, 1, 1}, {2, 0, 2, 0}, {3, 0, 2, 0}};
    CHECK_NEAR(iwp_stats_estimate(b, 4, 1, 1).stderr_, 0.5, 1e-12);
    /* two strata of weight 1/2: means 1/2 and 1, se² = (1/4)(1/4) + 0 */
    const struct iwp_eval_unit c[] = {{0, 0, 1, 1}, {1, 0, 2, 0}, {2, 1, 3, 1}, {3, 1, 4, 1}};
    e = iwp_stats_estimate(c, 4, 2, 0.5);
    CHECK_NEAR(e.value, 0.75, 1e-12);
    CHECK_NEAR(e.stderr_, 0.25, 1e-12);
    CHECK(isnan(iwp_stats_estimate(a, 1, 1, 1).stderr_));
    CHECK(isnan(iwp_stats_estimate(a, 0, 1, 1).value));
    const double v[] = {1, 2, 3, 4};
    CHECK_NEAR(iwp_stats_quantile(v, 4, 0.5), 2, 0);
    CHECK_NEAR(iwp_stats_quantile(v, 4, 0.95), 4, 0);
}

static struct iwp_eval_record rec(int32_t doc, const char *cat, const char *group, double score) {
    struct iwp_eval_record r = {.doc = doc, .medium = (uint64_t)doc + 1, .score = score};
    r.category = (char *)(uintptr_t)cat;
    r.group = (char *)(uintptr_t)group;
    return r;
}

TEST(aggregates) {
    iwp_err err = {0};
    struct iwp_eval_summary s;
    struct iwp_eval_task *t = parse("{\"name\":\"x\",\"scorer\":\"mme\",\"aggregate\":\"pairs\","
                                    "\"categories\":[\"existence\",\"code_reasoning\"]}");
    /* existence: pair g1 both right (200), g2 one of two (50): 125; code: 0 */
    struct iwp_eval_record m[] = {
        rec(0, "existence", "g1", 1),      rec(1, "existence", "g1", 1),
        rec(2, "existence", "g2", 1),      rec(3, "existence", "g2", 0),
        rec(4, "code_reasoning", "g1", 0), rec(5, "code_reasoning", "g1", 0)};
    struct iwp_eval_records r = {m, 6, 6}, base;
    const struct iwp_eval_records *runs[] = {&r, &r};
    CHECK_INT(iwp_stats_summary(t, runs, 1, NULL, &s, &err), 0);
    CHECK_NEAR(s.e.value, 125, 1e-9);
    CHECK_NEAR(s.category[0].e.value, 125, 1e-9);
    CHECK_STR(s.metric[0].name, "perception");
    CHECK_NEAR(s.metric[0].value, 125, 1e-9);
    CHECK_NEAR(s.metric[1].value, 0, 1e-9);
    iwp_eval_summary_free(&s);
    iwp_eval_task_free(t);

    t = parse("{\"name\":\"x\",\"scorer\":\"mmbench\",\"aggregate\":\"circular\"}");
    struct iwp_eval_record c[] = {rec(0, NULL, "a", 1), rec(1, NULL, "a", 1), rec(2, NULL, "b", 1),
                                  rec(3, NULL, "b", 0)};
    r = (struct iwp_eval_records){c, 4, 4};
    CHECK_INT(iwp_stats_summary(t, runs, 1, NULL, &s, &err), 0);
    CHECK_NEAR(s.e.value, 50, 1e-9);
    CHECK_INT(s.n, 4);
    iwp_eval_summary_free(&s);
    iwp_eval_task_free(t);

    t = parse("{\"name\":\"x\",\"scorer\":\"mlvu\",\"aggregate\":\"category\","
              "\"categories\":[\"count\",\"ego\",\"order\"]}");
    struct iwp_eval_record k[] = {rec(0, "count", NULL, 1), rec(1, "count", NULL, 0),
                                  rec(2, "ego", NULL, 1)};
    r = (struct iwp_eval_records){k, 3, 3}; /* 50, 100 and an empty type: (50 + 100 + 0) / 3 */
    CHECK_INT(iwp_stats_summary(t, runs, 1, NULL, &s, &err), 0);
    CHECK_NEAR(s.e.value, 50, 1e-9);
    iwp_eval_summary_free(&s);
    iwp_eval_task_free(t);

    /* paired: base 1 1 0 0, run 1 0 0 0: differences 0 -1 0 0 → -25, se sqrt(var/4) = 25 */
    t = parse("{\"name\":\"x\",\"scorer\":\"pope\"}");
    struct iwp_eval_record p[] = {rec(0, NULL, NULL, 1), rec(1, NULL, NULL, 0),
                                  rec(2, NULL, NULL, 0), rec(3, NULL, NULL, 0)};
    struct iwp_eval_record q[] = {rec(0, NULL, NULL, 1), rec(1, NULL, NULL, 1),
                                  rec(2, NULL, NULL, 0), rec(3, NULL, NULL, 0)};
    char yes[] = "yes", no[] = "no", big[] = "Yes";
    p[0].label = yes, p[0].target = big; /* hit */
    p[1].label = yes, p[1].target = no;  /* false alarm */
    p[2].label = no, p[2].target = big;  /* miss */
    p[3].unparsed = true, p[3].chance = 0.5;
    r = (struct iwp_eval_records){p, 4, 4};
    base = (struct iwp_eval_records){q, 4, 4};
    CHECK_INT(iwp_stats_summary(t, runs, 1, &base, &s, &err), 0);
    CHECK_NEAR(s.e.value, 25, 1e-9);
    CHECK(s.has_diff);
    CHECK_NEAR(s.diff.value, -25, 1e-9);
    CHECK_NEAR(s.diff.stderr_, 25, 1e-9);
    CHECK_INT(s.unparsed, 1);
    CHECK_NEAR(s.expected, 37.5, 1e-9);
    CHECK_STR(s.metric[3].name, "f1");
    CHECK_NEAR(s.metric[3].value, 50, 1e-9);
    iwp_eval_summary_free(&s);
    /* two seeds: units are averaged, each seed has its score */
    struct iwp_eval_records r2 = {q, 4, 4};
    runs[1] = &r2;
    CHECK_INT(iwp_stats_summary(t, runs, 2, NULL, &s, &err), 0);
    CHECK_NEAR(s.e.value, 37.5, 1e-9);
    CHECK_INT(s.n_seed, 2);
    CHECK_NEAR(s.seed_score[1], 50, 1e-9);
    CHECK_INT(s.n, 4);
    iwp_eval_summary_free(&s);
    iwp_eval_task_free(t);
}

static char folder[] = "/tmp/iwp-manifest-XXXXXX";

static int add(struct iwp_eval_data *d, const char *text, iwp_err *err) {
    char path[64];
    snprintf(path, sizeof path, "%s/m.jsonl", folder);
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    return iwp_eval_data_add(d, path, NULL, NULL, IWP_PROFILE_LMMS_0_3, err);
}

static void refused(const char *text, const char *want) {
    struct iwp_eval_data d = {0};
    iwp_err err = {0};
    CHECK(add(&d, text, &err) < 0);
    CHECK_MSG(strstr(err.msg, want), "'%s' lacks '%s'", err.msg, want);
    iwp_eval_data_free(&d);
}

#define LINE(id, task, rest)                                                                       \
    "{\"id\":\"" id "\",\"task\":\"" task "\",\"image\":\"a.png\",\"question\":\"Q?\"," rest "}\n"

TEST(manifest) {
    char path[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/a.png", folder);
    fclose(fopen(path, "w"));
    refused("{\n", "m.jsonl:1:");
    refused(LINE("a", "pope", "\"answer\":\"yes\"") "[]\n", "m.jsonl:2: not a JSON object");
    refused(LINE("a", "pope", "\"answer\":\"yes\"") LINE("a", "pope", "\"answer\":\"no\""),
            "m.jsonl:2: id 'a' was on line 1");
    refused(
        "{\"id\":\"a\",\"task\":\"pope\",\"image\":\"b.png\",\"question\":\"Q\",\"answer\":\"a\"}",
        "m.jsonl:1: image 'b.png' is not there");
    refused(LINE("a", "nothing", "\"answer\":\"x\""), "no 'scorer'");
    refused(LINE("a", "nothing", "\"scorer\":\"nope\",\"answer\":\"x\""), "called 'nope'");
    refused(LINE("a", "pope", "\"x\":1"), "none of 'answer'");
    refused(LINE("a", "pope", "\"answer\":{}"), "'answer' is not text");
    refused(LINE("a", "ai2d", "\"choices\":[\"x\",\"y\"],\"answer\":\"C\""), "of the 2 'choices'");
    refused(LINE("a", "ai2d", "\"answer\":\"B\""), "needs 'choices'");
    refused(LINE("a", "mme", "\"answer\":\"Yes\",\"category\":\"count\""), "needs 'group'");
    refused("", "no questions");

    struct iwp_eval_data d = {0};
    iwp_err err = {0};
    CHECK_MSG(add(&d,
                  LINE("a", "ai2d", "\"choices\":[\"x\",\"y\"],\"answer\":1") "\n" LINE(
                      "b", "scienceqa", "\"hint\":\"H\",\"choices\":[\"x\"],\"answer\":\"x\"")
                      LINE("c", "scienceqa", "\"hint\":\"\",\"choices\":[\"x\"],\"answer\":\"A\"")
                          LINE("d", "circles", "\"answer\":\"3\"")
                              LINE("e", "mmmu", "\"answer\":\"42\""),
                  &err) >= 0,
              "%s", err.msg);
    CHECK_INT(d.n, 4);
    CHECK_STR(d.set[0].at[0].prompt, "Q?\nA. x\nB. y\nAnswer with the option's letter from the "
                                     "given choices directly.");
    CHECK_STR(d.set[0].at[0].answers[0], "B");
    CHECK(strncmp(d.set[1].at[0].prompt, "Context: H\nQ?\nA. x\n", 18) == 0);
    CHECK(strncmp(d.set[1].at[1].prompt, "Q?\nA. x\n", 8) == 0);
    CHECK_STR(d.set[2].task->name, "blindtest");
    CHECK_STR(d.set[2].at[0].category, "circles");
    CHECK_STR(d.set[2].at[0].scorer->name, "number");
    CHECK_STR(d.set[3].at[0].scorer->name, "mmmu-open");
    CHECK_STR(d.set[3].at[0].prompt, "Q?\n\nAnswer the question using a single word or phrase.");
    iwp_eval_data_free(&d);
    /* limits and shards take whole groups */
    char text[4096] = "";
    for (int i = 0; i < 12; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 LINE("%d", "mme", "\"answer\":\"Yes\",\"category\":\"count\",\"group\":\"g%d\""),
                 i, i / 2);
    memset(&d, 0, sizeof d);
    CHECK(add(&d, text, &err) >= 0);
    CHECK(iwp_eval_data_limit(&d, 5, &err) >= 0);
    CHECK_INT(d.set[0].n, 6);
    for (int i = 0; i < 6; i += 2) CHECK_STR(d.set[0].at[i].group, d.set[0].at[i + 1].group);
    CHECK(iwp_eval_data_shard(&d, 1, 2, &err) >= 0);
    CHECK_INT(d.set[0].n, 2);
    iwp_eval_data_free(&d);
    unlink(path);
    snprintf(path, sizeof path, "%s/m.jsonl", folder);
    unlink(path);
    rmdir(folder);
}

TEST(builtin) {
    int n = 0;
    for (const struct iwp_builtin_task *b = iwp_builtin_tasks; b->name; b++, n++)
        for (int p = 0; p < 2; p++) {
            struct iwp_eval_task *t = NULL;
            iwp_err err = {0};
            CHECK_MSG(iwp_eval_task_find(b->name, NULL, (enum iwp_profile)p, &t, &err) == 1, "%s",
                      err.msg);
            if (t) CHECK_STR(t->name, b->name);
            if (t && !strcmp(b->name, "mmmu")) CHECK_INT(t->max_new_tokens, p ? 128 : 16);
            iwp_eval_task_free(t);
        }
    CHECK(n >= 18);
}

/* scipy.stats.t.ppf(0.975, df) */
TEST(interval) {
    static const struct {
        int32_t df;
        double t;
    } want[] = {{1, 12.706204736174694},   {2, 4.302652729749462},   {3, 3.182446305283708},
                {4, 2.7764451051977934},   {5, 2.5705818356363146},  {10, 2.2281388519862744},
                {29, 2.045229642132703},   {30, 2.0422724563012373}, {99, 1.9842169515864165},
                {1000, 1.9623390808264083}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK_NEAR(iwp_stats_t(0.95, want[i].df), want[i].t, 1e-9);
    CHECK_NEAR(iwp_stats_t(0.99, 5), 4.032142983555228, 1e-9); /* t.ppf(0.995, 5) */
    CHECK_NEAR(iwp_stats_t(0.95, INT32_MAX), 1.96, 1e-4);
    CHECK(isnan(iwp_stats_t(0.95, 0)));
    double at[2];
    iwp_stats_interval(&(struct iwp_estimate){10, 2, 8, 3}, at);
    CHECK_NEAR(at[0], 10 - 2 * want[2].t, 1e-8);
    CHECK_NEAR(at[1], 10 + 2 * want[2].t, 1e-8);
    iwp_stats_interval(&(struct iwp_estimate){10, 0, 8, 3}, at);
    CHECK(at[0] == 10 && at[1] == 10);
    iwp_stats_interval(&(struct iwp_estimate){10, NAN, 8, 0}, at);
    CHECK(isnan(at[0]) && isnan(at[1]));
}

int main(void) {
    test_estimate();
    test_interval();
    test_aggregates();
    test_manifest();
    test_builtin();
    return test_done();
}
