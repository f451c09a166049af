/* Scorers: see scorers.h.  Each is named after the rule of spec/eval.md it follows; odd corners are
 * the reference's own and kept on purpose. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "eval/scorers.h"

#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/err.h"
#include "eval/text.h"

typedef struct iwp_text text;
typedef struct iwp_text_pool pool;

/* The response, stripped; every scorer starts with it. */
static text response(pool *p, const struct iwp_score_input *in) {
    return iwp_text_strip(iwp_text_decode(p, in->response ? in->response : ""));
}

static text answer(pool *p, const struct iwp_score_input *in, int32_t i) {
    return iwp_text_decode(p, i < in->n_answer && in->answers[i] ? in->answers[i] : "");
}

static bool contains(pool *p, text t, const char *ascii) {
    return iwp_text_find(t, iwp_text_decode(p, ascii), 0) >= 0;
}

static void set_label(struct iwp_score *out, int32_t letter) {
    out->label[0] = (char)letter;
    out->label[1] = 0;
}

static int done(pool *p, iwp_err *err) {
    int rc = p->failed ? iwp_err_set(err, IWP_ENOMEM, "scorer: out of memory") : 0;
    iwp_text_pool_free(p);
    return rc;
}

/* First letter of the reference: "B", "(B)", "b". */
static int32_t target_letter(text a) {
    for (int32_t i = 0; i < a.n; i++) {
        int32_t c = a.cp[i] >= 'a' && a.cp[i] <= 'z' ? a.cp[i] - 32 : a.cp[i];
        if (c >= 'A' && c <= 'Z') return c;
    }
    return 0;
}

static void score_letter(struct iwp_score *out, int32_t got, text want) {
    if (got) set_label(out, got);
    out->score = got && got == target_letter(want);
}

static void give_up(struct iwp_score *out, int32_t n_choice) {
    out->unparsed = true;
    out->chance = n_choice > 0 ? 1.0 / n_choice : 0;
}

/* ---- S1 AI2D ----------------------------------------------------------------------------------- */

static const char punctuation[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

static int ai2d(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    text r = response(&p, in), a = iwp_text_strip(answer(&p, in, 0));
    if (r.n >= 2 && r.cp[0] >= 'A' && r.cp[0] <= 'Z' && r.cp[1] == '.') r = iwp_text_slice(r, 0, 1);
    r = iwp_text_delete(&p, iwp_text_lower(&p, r), punctuation);
    a = iwp_text_delete(&p, iwp_text_lower(&p, a), punctuation);
    out->score = iwp_text_equal(r, a);
    if (r.n == 1 && r.cp[0] < 128) set_label(out, r.cp[0] >= 'a' ? r.cp[0] - 32 : r.cp[0]);
    return done(&p, err);
}

/* ---- S2 ANLS ------------------------------------------------------------------------------------- */

static text anls_norm(pool *p, text t) {
    text *w;
    int32_t n = iwp_text_split(p, iwp_text_lower(p, iwp_text_strip(t)), &w);
    return iwp_text_join(p, w, n, " ");
}

static int anls(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    text r = response(&p, in), rn = anls_norm(&p, r);
    double best = in->n_answer ? INFINITY : 1;
    for (int32_t i = 0; i < in->n_answer; i++) {
        text g = answer(&p, in, i);
        int32_t d = iwp_text_distance(&p, anls_norm(&p, g), rn);
        int32_t ng = iwp_text_upper_length(g), nr = iwp_text_upper_length(r), n = ng > nr ? ng : nr;
        double v = n ? (double)d / n : 0;
        if (v < best) best = v;
    }
    out->score = 1 - best;
    if (out->score < 0.5) out->score = 0;
    return done(&p, err);
}

/* ---- S11 extract_mcq_answer ------------------------------------------------------------------------ */

struct pick {
    int32_t letter, pos, rank;
};

static void offer(struct pick *best, int32_t letter, int32_t pos, int32_t rank) {
    if (pos < 0) return;
    if (best->letter && (rank < best->rank || (rank == best->rank && pos <= best->pos))) return;
    best->letter = letter;
    best->pos = pos;
    best->rank = rank;
}

static bool is_letter(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static const char *const answer_phrases[] = {"the answer is",
                                             "answer is",
                                             "the correct answer is",
                                             "correct answer is",
                                             "the best answer is",
                                             "best answer is",
                                             "the correct option is",
                                             "correct option is",
                                             "the best option is",
                                             "best option is",
                                             "the correct choice is",
                                             "correct choice is",
                                             "the choice is",
                                             "choice is",
                                             "i choose",
                                             "i select",
                                             "i pick",
                                             "my answer is",
                                             "my choice is",
                                             "정답은",
                                             "답은",
                                             "答案是",
                                             "正确答案是",
                                             "答えは",
                                             "正解は",
                                             NULL};

static int32_t s11(pool *p, text r, int32_t n_choice) {
    struct pick best = {0, 0, 0};
    r = iwp_text_strip(r);
    for (const char *c = ",.!?;:'\""; *c; c++) {
        char set[2] = {*c, 0};
        r = iwp_text_strip_set(r, set);
    }
    if (!r.n) return 0;
    text parts[3] = {iwp_text_decode(p, " "), r, iwp_text_decode(p, " ")},
         t = iwp_text_join(p, parts, 3, "");
    static const struct {
        const char *before, *after;
        int rank;
    } forms[] = {{"(", ")", 6}, {"", ".", 5}, {"", ":", 4}, {"", ")", 3}, {"", " ", 2}};
    text low = iwp_text_lower(p, t);
    for (int32_t k = 0; k < n_choice; k++) {
        int32_t letter = 'A' + k;
        char form[8];
        for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
            snprintf(form, sizeof form, "%s%c%s", forms[f].before, (char)letter, forms[f].after);
            offer(&best, letter, iwp_text_rfind(t, iwp_text_decode(p, form)), forms[f].rank);
        }
    }
    for (int i = 0; answer_phrases[i]; i++) {
        text phrase = iwp_text_decode(p, answer_phrases[i]);
        int32_t at = iwp_text_find(low, phrase, 0);
        if (at < 0) continue;
        for (int32_t k = 0; k < n_choice; k++) {
            int32_t letter = 'A' + k;
            offer(&best, letter, iwp_text_find(t, (text){&letter, 1}, at + phrase.n), 7);
        }
    }
    for (int32_t k = 0; k < n_choice; k++) {
        int32_t letter = 'A' + k;
        if (r.cp[0] == letter && (r.n == 1 || !is_letter(r.cp[1]))) offer(&best, letter, 0, 10);
        if (r.cp[r.n - 1] == letter && (r.n == 1 || !is_letter(r.cp[r.n - 2])))
            offer(&best, letter, r.n - 1, 9);
    }
    for (int32_t k = 0; k < n_choice && !best.letter; k++) {
        int32_t letter = 'A' + k;
        offer(&best, letter, iwp_text_rfind(t, (text){&letter, 1}), 0);
    }
    return best.letter;
}

static int mcq(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    int32_t n = in->n_choice > 0 && in->n_choice <= 26 ? in->n_choice : 4;
    int32_t got = s11(&p, iwp_text_decode(&p, in->response ? in->response : ""), n);
    score_letter(out, got, answer(&p, in, 0));
    if (!got) out->unparsed = true;
    return done(&p, err);
}

/* ---- S3 MMBench -------------------------------------------------------------------------------------- */

static int32_t count_words(const text *w, int32_t n, const char *prefix, const char *suffix,
                           int32_t *letter) {
    int32_t found = 0;
    for (int32_t k = 'E'; k >= 'A'; k--) {
        char form[8];
        snprintf(form, sizeof form, "%s%c%s", prefix, (char)k, suffix);
        for (int32_t i = 0; i < n; i++)
            if (iwp_text_is(w[i], form)) {
                found++;
                *letter = k;
                break;
            }
    }
    return found;
}

static int32_t s3(pool *p, const struct iwp_score_input *in, text r) {
    static const char *const affixes[][2] = {{"", "."},  {"", ","},  {"", ":"},   {"", ")"},
                                             {"", ")."}, {"(", ")"}, {"(", ")."}, {":", ""},
                                             {":", ","}, {":", "."}, {":", ")"},  {":", ")."}};
    text *w;
    int32_t letter = 0, n = iwp_text_split(p, r, &w);
    if (contains(p, r, "Failed to obtain answer via API")) return 0;
    if (count_words(w, n, "", "", &letter) == 1 && !(letter == 'A' && n > 3)) return letter;
    for (size_t i = 0; i < sizeof affixes / sizeof affixes[0]; i++)
        if (count_words(w, n, affixes[i][0], affixes[i][1], &letter) == 1) return letter;
    int32_t found = 0;
    text low = iwp_text_lower(p, r);
    for (int32_t k = 0; k < 4; k++) {
        const char *option =
            k < in->n_choice && in->choices[k] && *in->choices[k] ? in->choices[k] : "nan";
        if (iwp_text_find(low, iwp_text_lower(p, iwp_text_decode(p, option)), 0) < 0) continue;
        found++;
        letter = 'A' + k;
    }
    return found == 1 ? letter : 0;
}

static int mmbench(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    text r = response(&p, in);
    int32_t got = s3(&p, in, r);
    if (!got) got = s11(&p, r, in->n_choice > 0 && in->n_choice <= 26 ? in->n_choice : 4);
    score_letter(out, got, answer(&p, in, 0));
    out->unparsed = !got;
    return done(&p, err);
}

/* ---- S4 MME, POPE, yes/no ------------------------------------------------------------------------------- */

static const char *s4(pool *p, text r) {
    r = iwp_text_delete(p, iwp_text_strip(iwp_text_lower(p, r)), ".");
    if (iwp_text_is(r, "yes")) return "yes";
    if (iwp_text_is(r, "no")) return "no";
    if (r.n == 1) return r.cp[0] == 'y' ? "yes" : r.cp[0] == 'n' ? "no" : "other";
    text head = iwp_text_slice(r, 0, 4);
    if (contains(p, head, "yes")) return "yes";
    return contains(p, head, "no") ? "no" : "other";
}

static int yes_no(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    const char *got = s4(&p, response(&p, in)), *want = s4(&p, answer(&p, in, 0));
    snprintf(out->label, sizeof out->label, "%s", got);
    out->score = strcmp(got, "other") != 0 && strcmp(got, want) == 0;
    out->unparsed = strcmp(got, "other") == 0;
    return done(&p, err);
}

static int pope(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    text r = iwp_text_lower(&p, response(&p, in)),
         a = iwp_text_lower(&p, iwp_text_strip(answer(&p, in, 0)));
    out->unparsed = !iwp_text_is(r, "yes") && !iwp_text_is(r, "no");
    snprintf(out->label, sizeof out->label, "%s",
             out->unparsed ? "other"
             : r.n == 3    ? "yes"
                           : "no");
    out->score = iwp_text_equal(r, a);
    return done(&p, err);
}

/* ---- S6 MMMU choice, S12 EgoSchema ----------------------------------------------------------------------- */

static text pad(pool *p, text r) {
    for (const char *c = ",.!?;:'"; *c; c++) {
        char set[2] = {*c, 0};
        r = iwp_text_strip_set(r, set);
    }
    text parts[3] = {iwp_text_decode(p, " "), r, iwp_text_decode(p, " ")};
    return iwp_text_join(p, parts, 3, "");
}

static text form(pool *p, const char *before, int32_t letter, const char *after) {
    char s[8];
    snprintf(s, sizeof s, "%s%c%s", before, (char)letter, after);
    return iwp_text_decode(p, s);
}

static int32_t s6(pool *p, const struct iwp_score_input *in, text r) {
    static const char *const forms[3][2] = {{"(", ")"}, {"", " "}, {"", "."}};
    text t = pad(p, r), low = iwp_text_lower(p, t), *w;
    int32_t n = in->n_choice > 0 && in->n_choice <= 26 ? in->n_choice : 4, found = 0, best = 0,
            best_pos = 0;
    for (int f = 0; f < 3 && !found; f++)
        for (int32_t k = 0; k < n; k++) {
            if (iwp_text_find(t, form(p, forms[f][0], 'A' + k, forms[f][1]), 0) < 0) continue;
            int32_t pos = f == 0 ? iwp_text_rfind(t, form(p, "(", 'A' + k, ")"))
                                 : iwp_text_rfind(t, form(p, " ", 'A' + k, " "));
            if (!found++ || pos > best_pos) best = 'A' + k, best_pos = pos;
        }
    if (!found && iwp_text_split(p, t, &w) > 5)
        for (int32_t k = 0; k < in->n_choice; k++) {
            int32_t pos =
                iwp_text_rfind(low, iwp_text_lower(p, iwp_text_decode(p, in->choices[k])));
            if (pos < 0) continue;
            if (!found++ || pos > best_pos) best = 'A' + k, best_pos = pos;
        }
    return best;
}

static int mmmu_choice(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    int32_t got = s6(&p, in, response(&p, in));
    score_letter(out, got, answer(&p, in, 0));
    if (!got) give_up(out, in->n_choice);
    return done(&p, err);
}

static int egoschema(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    static const char *const forms[3][2] = {{"(", ")"}, {"", " "}, {"", "."}};
    pool p = {0};
    text t = pad(&p, response(&p, in)), low = iwp_text_lower(&p, t), *w;
    int32_t best = 0, best_pos = 0, found = 0;
    for (int f = 0; f < 3; f++)
        for (int32_t k = 0; k < 5; k++) {
            int32_t pos = iwp_text_rfind(t, form(&p, forms[f][0], 'A' + k, forms[f][1]));
            if (pos < 0) continue;
            if (!found++ || pos < best_pos) best = 'A' + k, best_pos = pos;
        }
    if (!found && iwp_text_split(&p, t, &w) > 5)
        for (int32_t k = 0; k < in->n_choice && k < 5; k++) {
            int32_t pos =
                iwp_text_rfind(low, iwp_text_lower(&p, iwp_text_decode(&p, in->choices[k])));
            if (pos < 0) continue;
            if (!found++ || pos < best_pos) best = 'A' + k, best_pos = pos;
        }
    text a = iwp_text_strip(answer(&p, in, 0));
    int32_t want =
        a.n == 1 && a.cp[0] >= '0' && a.cp[0] <= '9' ? 'A' + a.cp[0] - '0' : target_letter(a);
    if (best) set_label(out, best);
    out->score = best && best == want;
    if (!best) give_up(out, 5);
    return done(&p, err);
}

/* ---- S7 MMMU open ------------------------------------------------------------------------------------------ */

struct value {
    bool is_number;
    double number;
    text string;
};

enum { MAX_VALUES = 256 };

struct values {
    struct value at[MAX_VALUES];
    int32_t n;
};

/* Python's float() on a string without commas: digits with single underscores between them, inf, nan. */
static bool python_float(text t, double *x) {
    char buf[64];
    int n = 0;
    t = iwp_text_strip(t);
    if (!t.n || t.n > 60) return false;
    for (int32_t i = 0; i < t.n; i++) {
        int32_t c = t.cp[i];
        if (c == '_') {
            if (i == 0 || i + 1 == t.n || t.cp[i - 1] < '0' || t.cp[i - 1] > '9' ||
                t.cp[i + 1] < '0' || t.cp[i + 1] > '9')
                return false;
            continue;
        }
        if (c <= 0 || c >= 128 || c == 'x' || c == 'X' || c == '(')
            return false; /* C knows hex floats and nan(…) */
        buf[n++] = (char)c;
    }
    buf[n] = 0;
    char *end;
    *x = strtod(buf, &end);
    return *end == 0 && end != buf;
}

static void add_value(pool *p, struct values *v, text t) {
    double x;
    if (v->n + 2 > MAX_VALUES) return;
    t = iwp_text_strip(t);
    if (python_float(iwp_text_delete(p, t, ","), &x)) {
        v->at[v->n++] = (struct value){true, round(x * 100) / 100, t};
        return;
    }
    t = iwp_text_lower(p, t);
    if (t.n != 1) {
        v->at[v->n++] = (struct value){false, 0, t};
        return;
    }
    text space = iwp_text_decode(p, " "), a[2] = {space, t}, b[2] = {t, space};
    v->at[v->n++] = (struct value){false, 0, iwp_text_join(p, a, 2, "")};
    v->at[v->n++] = (struct value){false, 0, iwp_text_join(p, b, 2, "")};
}

static void add_numbers(pool *p, struct values *v, text t, iwp_err *err, int *rc) {
    static const char *const patterns[] = {
        "-?\\b\\d{1,3}(?:,\\d{3})+\\b",
        "-?\\d+(?:\\.\\d+)?[eE][+-]?\\d+",
        "-?(?:\\d+\\.\\d+|\\.\\d+|\\d+\\b)(?![eE][+-]?\\d+)(?![,\\d])",
    };
    char *s = iwp_text_encode(t);
    if (!s) {
        p->failed = true;
        return;
    }
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        int code;
        PCRE2_SIZE at, from = 0;
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)patterns[i], PCRE2_ZERO_TERMINATED,
                                       PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        pcre2_match_data *m = re ? pcre2_match_data_create_from_pattern(re, NULL) : NULL;
        if (!m) *rc = iwp_err_set(err, IWP_EINTERNAL, "scorer: pattern %zu does not compile", i);
        while (m && pcre2_match(re, (PCRE2_SPTR)s, strlen(s), from, 0, m, NULL) > 0) {
            PCRE2_SIZE *o = pcre2_get_ovector_pointer(m);
            char save = s[o[1]];
            s[o[1]] = 0;
            add_value(p, v, iwp_text_decode(p, s + o[0]));
            s[o[1]] = save;
            from = o[1] > o[0] ? o[1] : o[1] + 1;
            if (from > strlen(s)) break;
        }
        pcre2_match_data_free(m);
        pcre2_code_free(re);
    }
    free(s);
}

static int mmmu_open(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    static const char *const marks[] = {"could be ", "so ",     "is ",     "thus ", "therefore ",
                                        "final ",    "answer ", "result ", "="};
    if (in->profile == IWP_PROFILE_LMMS_0_7_2)
        return 0; /* the reference scores every open answer 0 since 0.3.5 */
    pool p = {0};
    int rc = 0;
    text r = iwp_text_lower(&p, iwp_text_strip_set(response(&p, in), "."));
    static const int32_t newline = '\n';
    struct values *got = (struct values *)(void *)iwp_text_alloc(
        &p, (int32_t)(2 * sizeof(struct values) / sizeof(int32_t)));
    if (!got) return done(&p, err);
    struct values *want = got + 1;
    got->n = want->n = 0;
    text pieces[64];
    int32_t n_piece = 0;
    for (int32_t from = 0; n_piece < 64;) {
        int32_t at = iwp_text_find(r, (text){&newline, 1}, from);
        pieces[n_piece++] = iwp_text_slice(r, from, at < 0 ? r.n : at);
        if (at < 0) break;
        from = at + 1;
    }
    text tails[64];
    int32_t n_tail = 0;
    for (int32_t i = 0; i < n_piece; i++) {
        text best = {NULL, 0};
        bool found = false;
        size_t n_mark = sizeof marks / sizeof marks[0] - (i + 1 < n_piece ? 1 : 0);
        for (size_t k = 0; k < n_mark; k++) {
            text mark = iwp_text_decode(&p, marks[k]);
            int32_t at = iwp_text_rfind(pieces[i], mark);
            if (at < 0) continue;
            text tail = iwp_text_strip(iwp_text_slice(pieces[i], at + mark.n, pieces[i].n));
            if (!found || tail.n < best.n) best = tail;
            found = true;
        }
        if (found && !(best.n == 1 && best.cp[0] < 128 && strchr(":,.!?;'", (int)best.cp[0])))
            tails[n_tail++] = best;
    }
    if (!n_tail) tails[n_tail++] = r;
    for (int32_t i = 0; i < n_tail; i++) {
        add_value(&p, got, tails[i]);
        add_numbers(&p, got, tails[i], err, &rc);
    }
    for (int32_t i = 0; i < in->n_answer; i++) add_value(&p, want, answer(&p, in, i));
    for (int32_t i = 0; i < got->n && !(out->score > 0); i++)
        for (int32_t j = 0; j < want->n; j++) {
            const struct value *g = &got->at[i], *w = &want->at[j];
            bool hit = g->is_number ? w->is_number && g->number == w->number
                                    : !w->is_number && iwp_text_find(g->string, w->string, 0) >= 0;
            if (hit) out->score = 1;
        }
    int rc2 = done(&p, err);
    return rc < 0 ? rc : rc2;
}

/* ---- S8 ScienceQA --------------------------------------------------------------------------------------------- */

static int scienceqa(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    text r = response(&p, in);
    int32_t want = target_letter(answer(&p, in, 0)), got = 0;
    if (r.n == 1)
        got = target_letter(r);
    else if (r.n >= 2 && utf8proc_category(r.cp[0]) == UTF8PROC_CATEGORY_LU && r.cp[1] == '.')
        got = target_letter(iwp_text_slice(r, 0, 1));
    if (got) set_label(out, got);
    out->score = got && got == want;
    out->unparsed = !got;
    return done(&p, err);
}

/* ---- S9 VQA ------------------------------------------------------------------------------------------------------- */

/* The contractions of the VQA evaluation: the form without its apostrophe, and with it. */
static const char *const contractions[][2] = {{"aint", "ain't"},
                                              {"arent", "aren't"},
                                              {"cant", "can't"},
                                              {"couldve", "could've"},
                                              {"couldnt", "couldn't"},
                                              {"couldn'tve", "couldn't've"},
                                              {"couldnt've", "couldn't've"},
                                              {"didnt", "didn't"},
                                              {"doesnt", "doesn't"},
                                              {"dont", "don't"},
                                              {"hadnt", "hadn't"},
                                              {"hadnt've", "hadn't've"},
                                              {"hadn'tve", "hadn't've"},
                                              {"hasnt", "hasn't"},
                                              {"havent", "haven't"},
                                              {"hed", "he'd"},
                                              {"hed've", "he'd've"},
                                              {"he'dve", "he'd've"},
                                              {"hes", "he's"},
                                              {"howd", "how'd"},
                                              {"howll", "how'll"},
                                              {"hows", "how's"},
                                              {"Id've", "I'd've"},
                                              {"I'dve", "I'd've"},
                                              {"Im", "I'm"},
                                              {"Ive", "I've"},
                                              {"isnt", "isn't"},
                                              {"itd", "it'd"},
                                              {"itd've", "it'd've"},
                                              {"it'dve", "it'd've"},
                                              {"itll", "it'll"},
                                              {"let's", "let's"},
                                              {"maam", "ma'am"},
                                              {"mightnt", "mightn't"},
                                              {"mightnt've", "mightn't've"},
                                              {"mightn'tve", "mightn't've"},
                                              {"mightve", "might've"},
                                              {"mustnt", "mustn't"},
                                              {"mustve", "must've"},
                                              {"neednt", "needn't"},
                                              {"notve", "not've"},
                                              {"oclock", "o'clock"},
                                              {"oughtnt", "oughtn't"},
                                              {"ow's'at", "'ow's'at"},
                                              {"'ows'at", "'ow's'at"},
                                              {"'ow'sat", "'ow's'at"},
                                              {"shant", "shan't"},
                                              {"shed've", "she'd've"},
                                              {"she'dve", "she'd've"},
                                              {"she's", "she's"},
                                              {"shouldve", "should've"},
                                              {"shouldnt", "shouldn't"},
                                              {"shouldnt've", "shouldn't've"},
                                              {"shouldn'tve", "shouldn't've"},
                                              {"somebody'd", "somebodyd"},
                                              {"somebodyd've", "somebody'd've"},
                                              {"somebody'dve", "somebody'd've"},
                                              {"somebodyll", "somebody'll"},
                                              {"somebodys", "somebody's"},
                                              {"someoned", "someone'd"},
                                              {"someoned've", "someone'd've"},
                                              {"someone'dve", "someone'd've"},
                                              {"someonell", "someone'll"},
                                              {"someones", "someone's"},
                                              {"somethingd", "something'd"},
                                              {"somethingd've", "something'd've"},
                                              {"something'dve", "something'd've"},
                                              {"somethingll", "something'll"},
                                              {"thats", "that's"},
                                              {"thered", "there'd"},
                                              {"thered've", "there'd've"},
                                              {"there'dve", "there'd've"},
                                              {"therere", "there're"},
                                              {"theres", "there's"},
                                              {"theyd", "they'd"},
                                              {"theyd've", "they'd've"},
                                              {"they'dve", "they'd've"},
                                              {"theyll", "they'll"},
                                              {"theyre", "they're"},
                                              {"theyve", "they've"},
                                              {"twas", "'twas"},
                                              {"wasnt", "wasn't"},
                                              {"wed've", "we'd've"},
                                              {"we'dve", "we'd've"},
                                              {"weve", "we've"},
                                              {"werent", "weren't"},
                                              {"whatll", "what'll"},
                                              {"whatre", "what're"},
                                              {"whats", "what's"},
                                              {"whatve", "what've"},
                                              {"whens", "when's"},
                                              {"whered", "where'd"},
                                              {"wheres", "where's"},
                                              {"whereve", "where've"},
                                              {"whod", "who'd"},
                                              {"whod've", "who'd've"},
                                              {"who'dve", "who'd've"},
                                              {"wholl", "who'll"},
                                              {"whos", "who's"},
                                              {"whove", "who've"},
                                              {"whyll", "why'll"},
                                              {"whyre", "why're"},
                                              {"whys", "why's"},
                                              {"wont", "won't"},
                                              {"wouldve", "would've"},
                                              {"wouldnt", "wouldn't"},
                                              {"wouldnt've", "wouldn't've"},
                                              {"wouldn'tve", "wouldn't've"},
                                              {"yall", "y'all"},
                                              {"yall'll", "y'all'll"},
                                              {"y'allll", "y'all'll"},
                                              {"yall'd've", "y'all'd've"},
                                              {"y'alld've", "y'all'd've"},
                                              {"y'all'dve", "y'all'd've"},
                                              {"youd", "you'd"},
                                              {"youd've", "you'd've"},
                                              {"you'dve", "you'd've"},
                                              {"youll", "you'll"},
                                              {"youre", "you're"},
                                              {"youve", "you've"}};

static const char *const numbers[] = {"zero", "one",   "two",   "three", "four", "five",
                                      "six",  "seven", "eight", "nine",  "ten"};

static text vqa_norm(pool *p, text t) {
    t = iwp_text_delete(p, iwp_text_lower(p, t), ",?");
    t = iwp_text_strip(iwp_text_replace(p, t, "'s", " 's"));
    t = iwp_text_strip(iwp_text_replace(p, iwp_text_replace(p, t, "\n", " "), "\t", " "));
    text before = t;
    for (const char *c = ";/[]\"{}()=+\\_-><@`,?!"; *c; c++) {
        char mark[2] = {*c, 0}, left[3] = {*c, ' ', 0}, right[3] = {' ', *c, 0};
        bool beside = contains(p, before, left) || contains(p, before, right);
        t = iwp_text_replace(p, t, mark, beside ? "" : " ");
    }
    int32_t *cp = iwp_text_alloc(p, t.n), n = 0, dropped = 0;
    if (!cp) return t;
    for (int32_t i = 0; i < t.n; i++) { /* a period not followed by a digit, at most 32 of them */
        bool digit = i + 1 < t.n && utf8proc_category(t.cp[i + 1]) == UTF8PROC_CATEGORY_ND;
        if (t.cp[i] == '.' && !digit && dropped < 32)
            dropped++;
        else
            cp[n++] = t.cp[i];
    }
    text *w;
    int32_t n_word = iwp_text_split(p, (text){cp, n}, &w), kept = 0;
    for (int32_t i = 0; i < n_word; i++) {
        text x = w[i];
        if (iwp_text_is(x, "none")) x = iwp_text_decode(p, "0");
        for (int k = 0; k <= 10; k++)
            if (iwp_text_is(x, numbers[k])) {
                char digits[4];
                snprintf(digits, sizeof digits, "%d", k);
                x = iwp_text_decode(p, digits);
                break;
            }
        if (iwp_text_is(x, "a") || iwp_text_is(x, "an") || iwp_text_is(x, "the")) continue;
        for (size_t k = 0; k < sizeof contractions / sizeof contractions[0]; k++)
            if (iwp_text_is(x, contractions[k][0])) {
                x = iwp_text_decode(p, contractions[k][1]);
                break;
            }
        w[kept++] = x;
    }
    return iwp_text_join(p, w, kept, " ");
}

static int vqa(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    text r = vqa_norm(&p, response(&p, in));
    int32_t n = in->n_answer, equal = 0;
    for (int32_t i = 0; i < n; i++) equal += iwp_text_equal(vqa_norm(&p, answer(&p, in, i)), r);
    double sum = 0; /* references that agree see one match fewer: themselves */
    for (int32_t i = 0; i < n; i++) {
        int32_t others = equal - (i < equal);
        sum += others >= 3 ? 1 : others / 3.0;
    }
    out->score = n ? sum / n : 0;
    if (n == 1) out->score = equal; /* one reference: plain equality */
    return done(&p, err);
}

/* ---- S10, S13, S14: the older letter readers --------------------------------------------------------------------- */

static int mmstar(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    if (in->profile == IWP_PROFILE_LMMS_0_7_2) return mcq(in, out, err);
    pool p = {0};
    text r = iwp_text_strip(iwp_text_replace(&p, iwp_text_lower(&p, response(&p, in)), "\n", " "));
    int32_t want = target_letter(answer(&p, in, 0)) + 32, at = 0;
    if (iwp_text_starts(r, "(")) at = 1;
    if (iwp_text_starts(r, "option ")) at = 7;
    if (iwp_text_starts(r, "the answer is ")) at = 14;
    out->score = (r.n > 0 && r.cp[0] == want) || (at < r.n && r.cp[at] == want);
    if (at < r.n && r.cp[at] >= 'a' && r.cp[at] <= 'z') set_label(out, r.cp[at] - 32);
    return done(&p, err);
}

static int videomme(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    static const char *const prefixes[] = {"The best answer is", "The correct answer is",
                                           "The answer is", "The answer"};
    if (in->profile == IWP_PROFILE_LMMS_0_7_2) return mcq(in, out, err);
    pool p = {0};
    text r = response(&p, in);
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        r = iwp_text_replace(&p, r, prefixes[i], "");
    int32_t got = 0;
    for (int32_t i = 0; i < r.n && !got; i++)
        if (r.cp[i] >= 'A' && r.cp[i] <= 'D') got = r.cp[i];
    score_letter(out, got, answer(&p, in, 0));
    out->unparsed = !got;
    return done(&p, err);
}

static int mlvu(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    if (in->profile == IWP_PROFILE_LMMS_0_7_2) return mcq(in, out, err);
    pool p = {0};
    text r = response(&p, in), a = iwp_text_strip(answer(&p, in, 0));
    static const int32_t close = ')';
    int32_t at = iwp_text_find(r, (text){&close, 1}, 0);
    if (at > 0) r = iwp_text_slice(r, at - 1, at);
    out->score = iwp_text_equal(r, a);
    if (r.n == 1 && r.cp[0] < 128) set_label(out, r.cp[0]);
    return done(&p, err);
}

/* ---- plain ones ---------------------------------------------------------------------------------------------------- */

static int exact(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    text r = iwp_text_lower(&p, iwp_text_strip_set(response(&p, in), ".!"));
    for (int32_t i = 0; i < in->n_answer; i++) {
        text a = iwp_text_lower(&p, iwp_text_strip_set(iwp_text_strip(answer(&p, in, i)), ".!"));
        if (iwp_text_equal(iwp_text_strip(r), iwp_text_strip(a))) out->score = 1;
    }
    return done(&p, err);
}

/* The first number of a text, digits or a word up to ten. */
static bool first_number(pool *p, text t, double *x) {
    text *w;
    int32_t n = iwp_text_split(p, iwp_text_lower(p, t), &w);
    for (int32_t i = 0; i < n; i++) {
        text word = iwp_text_delete(p, iwp_text_strip_set(w[i], ".,;:!?'\"()[]{}$%"), ",");
        if (python_float(word, x) && isfinite(*x)) return true;
        for (int k = 0; k <= 10; k++)
            if (iwp_text_is(word, numbers[k])) {
                *x = k;
                return true;
            }
    }
    return false;
}

static int number(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    pool p = {0};
    double got, want;
    if (!first_number(&p, response(&p, in), &got))
        out->unparsed = true;
    else
        for (int32_t i = 0; i < in->n_answer; i++)
            if (first_number(&p, answer(&p, in, i), &want) &&
                fabs(got - want) <= 1e-9 * fmax(1, fabs(want)))
                out->score = 1;
    return done(&p, err);
}

/* The whole numbers of a text, in order; at most `cap`. */
static int32_t all_numbers(const char *s, long *out, int32_t cap) {
    int32_t n = 0;
    while (*s && n < cap) {
        if (*s < '0' || *s > '9') {
            s++;
            continue;
        }
        long v = 0;
        for (; *s >= '0' && *s <= '9'; s++)
            if (v < 100000000) v = 10 * v + (*s - '0');
        out[n++] = v;
    }
    return n;
}

static int number_list(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err) {
    enum { CAP = 16 };
    long got[CAP], want[CAP];
    (void)err;
    const int32_t n = all_numbers(in->response, got, CAP);
    if (n == 0) out->unparsed = true;
    for (int32_t i = 0; i < in->n_answer && n; i++)
        if (all_numbers(in->answers[i], want, CAP) == n &&
            memcmp(got, want, (size_t)n * sizeof *got) == 0)
            out->score = 1;
    return 0;
}

static const struct iwp_scorer table[] = {
    {"exact", "equal after lower-casing, without surrounding white space and full stop", exact,
     false},
    {"yesno", "yes or no at the start of the answer (S4)", yes_no, false},
    {"number", "the first number equals the reference", number, false},
    {"numbers", "all whole numbers of the answer equal those of the reference, in order",
     number_list, false},
    {"anls", "average normalised Levenshtein similarity (S2)", anls, false},
    {"vqa", "VQA accuracy over ten references (S9)", vqa, false},
    {"choice", "letter of a multiple-choice answer (S11)", mcq, true},
    {"ai2d", "S1", ai2d, true},
    {"mmbench", "S3", mmbench, true},
    {"mme", "S4", yes_no, false},
    {"mmmu-choice", "S6", mmmu_choice, true},
    {"mmmu-open", "S7", mmmu_open, false},
    {"scienceqa", "S8", scienceqa, true},
    {"mmstar", "S10, or S11 in profile lmms-0.7.2", mmstar, true},
    {"pope", "exactly yes or no", pope, false},
    {"egoschema", "S12", egoschema, true},
    {"videomme", "S13, or S11 in profile lmms-0.7.2", videomme, true},
    {"mlvu", "S14, or S11 in profile lmms-0.7.2", mlvu, true},
};

const struct iwp_scorer *iwp_scorer_at(int32_t i) {
    return i >= 0 && i < (int32_t)(sizeof table / sizeof table[0]) ? &table[i] : NULL;
}

const struct iwp_scorer *iwp_scorer_find(const char *name) {
    for (int32_t i = 0; iwp_scorer_at(i); i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

int iwp_scorer_run(const struct iwp_scorer *s, const struct iwp_score_input *in,
                   struct iwp_score *out, iwp_err *err) {
    memset(out, 0, sizeof *out);
    return s->run(in, out, err);
}
