/* Method iwp against the straight reference in iwp_ref.h: every option, shapes from one token on,
 * three number types, strides, units, separators, hostile values; and what must hold exactly. */
#include "prune_case.h"

#include <float.h>

static struct iwp_params params_of(const char *text, double keep) {
    struct iwp_params p;
    iwp_err err = {0};
    iwp_params_default(&p, iwp_method_find("iwp"));
    CHECK_MSG(iwp_params_parse(&p, text, &err) == 0, "%s: %s", text, err.msg);
    p.budget.keep = keep;
    return p;
}

/* Pool of one unit (-1: all): prompt rows and indices among the visual tokens. */
static int pool_of(const struct prompt *p, int exempt, int unit, int *row, int *rel) {
    int n = 0, nv = 0;
    for (int i = 0; i < p->d.n; i++) {
        if (!ref_visual(p->d.code[i])) continue;
        if ((p->d.code[i] == 1 || !exempt) && (unit < 0 || p->unit[nv] == unit)) {
            row[n] = i;
            rel[n++] = nv;
        }
        nv++;
    }
    return n;
}

struct tally {
    int cases, near;
};

/* One random case: scores within the bound of float arithmetic, the kept set equal unless the
 * reference itself came near a tie. */
static void compare(struct prompt *p, const struct ref_options *o, const char *text, double keep,
                    int exempt, int scoped, struct tally *tally) {
    struct iwp_params params = params_of(text, keep);
    params.budget.keep_separators = exempt;
    params.budget.scope = scoped ? IWP_SCOPE_IMAGE : IWP_SCOPE_GLOBAL;
    p->in.unit = scoped ? p->unit : NULL;
    prompt_fill(p, &params);
    size_t nv = (size_t)p->n_visual;
    int *row = malloc(sizeof(int) * nv), *rel = malloc(sizeof(int) * nv),
        *urow = malloc(sizeof(int) * nv), *urel = malloc(sizeof(int) * nv);
    double *log_p = malloc(sizeof(double) * nv), *up = malloc(sizeof(double) * nv),
           *D = malloc(sizeof(double) * nv * nv), size;
    unsigned char *want = calloc(nv, 1), *got = calloc(nv, 1), *mark = calloc(nv, 1);
    int n = pool_of(p, exempt, -1, row, rel);
    int n_query = ref_magnitude(&p->d, o, row, n, log_p, &size);
    struct chosen c = choose(&params, &p->in, NULL);
    tally->cases++;
    if (n_query == 0) {
        CHECK_MSG(c.rc == IWP_EINVAL && strstr(c.err.msg, o->query), "no query token: %d %s", c.rc,
                  c.err.msg);
        goto done;
    }
    CHECK_MSG(c.rc == 0, "%s [%s]", c.err.msg, text);
    if (c.rc) goto done;

    double raw_top = -INFINITY, raw_low = INFINITY;
    for (int i = 0; i < n; i++)
        raw_top = fmax(raw_top, log_p[i]), raw_low = fmin(raw_low, log_p[i]);
    ref_scale(o, log_p, n);
    double tol = 3e-5 + 6e-7 * size, range = 1 - exp(raw_low - raw_top);
    int minmax = ref_is(o->scale, "minmax"),
        raw = ref_is(o->head_norm, "raw") && ref_is(o->scale, "none");
    double shift = 0;
    if (raw) { /* known up to a constant factor */
        float top = 0;
        for (int i = 0; i < n; i++) top = c.s.scores[rel[i]] > top ? c.s.scores[rel[i]] : top;
        shift = top > 0 ? log((double)top) - raw_top : 0;
    }
    for (int i = 0; i < n; i++) {
        double x = exp(log_p[i] + shift), s = (double)c.s.scores[rel[i]],
               bound = minmax ? tol / (range > 1e-9 ? range : 1e-9) : x * tol;
        if (x > 3e38 || tol > 0.5 || (minmax && range < 1e-6)) continue;
        CHECK_MSG(fabs(s - x) <= bound + 1e-37, "score %d: %g, want %g (n %d) [%s]", i, s, x, n,
                  text);
    }

    double gap = INFINITY;
    for (int u = 0; u < (scoped ? p->n_unit : 1); u++) {
        int m = pool_of(p, exempt, scoped ? u : -1, urow, urel);
        if (m == 0) continue;
        for (int i = 0, j = 0; i < n; i++)
            if (j < m && rel[i] == urel[j]) up[j++] = log_p[i];
        if (ref_is(o->selector, "mmr-add") && scoped) { /* P / max P of the whole pool */
            double top = -INFINITY;
            for (int i = 0; i < n; i++) top = fmax(top, log_p[i]);
            for (int j = 0; j < m; j++) up[j] = up[j] - top;
        }
        ref_duplication(&p->d, o, urow, m, D);
        gap = fmin(gap, ref_select(o, up, D, m, iwp_keep_count(keep, m), mark));
        for (int j = 0; j < m; j++) want[urel[j]] = mark[j];
    }
    for (int i = 0; i < p->n_visual; i++)
        if (n < p->n_visual) { /* separators are kept on top */
            int in_pool = 0;
            for (int j = 0; j < n; j++) in_pool |= rel[j] == i;
            if (!in_pool) want[i] = 1;
        }
    int n_want = 0, differ = 0;
    for (int i = 0; i < p->n_visual; i++) n_want += want[i];
    for (int i = 0; i < c.s.n_keep; i++) {
        CHECK(c.s.keep[i] >= 0 && c.s.keep[i] < p->n_visual &&
              (i == 0 || c.s.keep[i] > c.s.keep[i - 1]));
        got[c.s.keep[i]] = 1;
    }
    for (int i = 0; i < p->n_visual; i++) differ += want[i] != got[i];
    CHECK_MSG(c.s.n_keep == n_want, "%d kept, want %d [%s]", c.s.n_keep, n_want, text);
    if (differ) {
        tally->near++;
        double near = 1e-3 + 20 * tol + (minmax ? 1 : 0) * 1e-2;
        CHECK_MSG(gap < near || tol > 0.5,
                  "%d of %d tokens differ, smallest gap %g, N %d d %d [%s]", differ, n_want, gap, n,
                  p->d.d, text);
    }
done:
    chosen_free(&c);
    free(row), free(rel), free(urow), free(urel), free(log_p), free(up), free(D), free(want),
        free(got), free(mark);
}

static void random_cases(int n, uint64_t seed, double amp, int n_max) {
    struct tally tally = {0, 0};
    for (int i = 0; i < n; i++) {
        struct prompt_shape s = random_shape(&seed, n_max);
        if (amp > 0) s.amp = amp, s.d = ONE_OF(&seed, 16, 32);
        int scoped = rand_below(&seed, 5) == 0 && s.n_visual > 4;
        s.n_unit = scoped ? 3 : 1;
        struct ref_options o;
        char text[600];
        random_options(&seed, &o, text, sizeof text);
        /* Scoped mmr-add is measured against the pool's maximum, the reference's against the unit's. */
        if (scoped && ref_is(o.selector, "mmr-add")) continue;
        struct prompt p;
        enum iwp_dtype t = (enum iwp_dtype)ONE_OF(&seed, 0, 0, 0, 1, 2);
        prompt_make(&p, &s, t, &seed);
        p.pad = ONE_OF(&seed, 0, 0, 3, 16);
        double keep = ONE_OF(&seed, 1, 11, 22, 35, 50, 90, 100) / 100.0;
        compare(&p, &o, text, keep, rand_below(&seed, 2), scoped, &tally);
        prompt_free(&p);
    }
    fprintf(stderr, "%d cases, %d with a near tie\n", tally.cases, tally.near);
    CHECK_MSG(tally.near <= tally.cases / 25, "%d of %d sets differ", tally.near, tally.cases);
}

TEST(options) { random_cases(2500, 11, 0, 100); }

/* Logits beyond ±1e4 and back. */
TEST(large_logits) { random_cases(200, 12, 150, 40); }

/* One factor at a time on one clustered prompt, so that no option hides behind another. */
TEST(each_option_alone) {
    static const char *const one[] = {"magnitude=kv",
                                      "magnitude=k",
                                      "magnitude=vnorm",
                                      "magnitude=knorm",
                                      "magnitude=phik",
                                      "magnitude=dw",
                                      "magnitude=centered",
                                      "magnitude=deletion",
                                      "magnitude=kv_deletion",
                                      "query=text-all",
                                      "query=text-user",
                                      "query=image",
                                      "query=last",
                                      "magnitude-rope=1",
                                      "head-norm=softmax",
                                      "head-norm=max",
                                      "head-norm=raw",
                                      "scale=minmax",
                                      "scale=none",
                                      "duplication=rbf",
                                      "duplication=cos_k",
                                      "duplication=cos_v",
                                      "duplication=cos_h",
                                      "duplication-rope=0",
                                      "duplication-heads=sq-mean",
                                      "duplication-heads=concat",
                                      "duplication-heads=joint",
                                      "duplication-norm=clip",
                                      "duplication-norm=affine",
                                      "duplication-norm=minmax",
                                      "square=0",
                                      "selector=topk",
                                      "selector=mmr-mult",
                                      "selector=mmr-add",
                                      "penalty=all",
                                      "penalty=all-fresh",
                                      "chunk=1",
                                      "growth=1.5",
                                      "lambda=1",
                                      "floor=0.1"};
    uint64_t seed = 5;
    struct prompt_shape s = {.n_visual = 120,
                             .before = 4,
                             .after = 9,
                             .H = 6,
                             .G = 2,
                             .d = 16,
                             .Dh = 24,
                             .amp = 1,
                             .clusters = 9,
                             .n_unit = 1};
    struct prompt p;
    prompt_make(&p, &s, IWP_DTYPE_F32, &seed);
    uint64_t hash[sizeof one / sizeof one[0]];
    int distinct = 0;
    struct tally tally = {0, 0};
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
        struct ref_options o = {"kv",
                                "text-after",
                                "softmax-all",
                                "max",
                                "dw",
                                "mean-sq",
                                "none",
                                "pc-mmr",
                                "new",
                                0,
                                1,
                                -1,
                                2,
                                2,
                                5,
                                0.01,
                                0.5};
        char name[32], *value;
        snprintf(name, sizeof name, "%s", one[i]);
        value = strchr(name, '=');
        *value++ = 0;
        const char *v = strchr(one[i], '=') + 1;
        if (ref_is(name, "magnitude")) o.magnitude = v;
        if (ref_is(name, "query")) o.query = v;
        if (ref_is(name, "head-norm")) o.head_norm = v;
        if (ref_is(name, "scale")) o.scale = v;
        if (ref_is(name, "duplication")) o.duplication = v;
        if (ref_is(name, "duplication-heads")) o.heads = v;
        if (ref_is(name, "duplication-norm")) o.norm = v;
        if (ref_is(name, "selector")) o.selector = v;
        if (ref_is(name, "penalty")) o.penalty = v;
        if (ref_is(name, "magnitude-rope")) o.magnitude_rope = 1;
        if (ref_is(name, "duplication-rope")) o.duplication_rope = 0;
        if (ref_is(name, "square")) o.square = 0;
        if (ref_is(name, "chunk")) o.chunk = 1;
        if (ref_is(name, "growth")) o.growth = 1.5;
        if (ref_is(name, "lambda")) o.lambda = 1;
        if (ref_is(name, "floor")) o.floor = 0.1;
        compare(&p, &o, one[i], 0.3, 0, 0, &tally);
        struct iwp_params params = params_of(one[i], 0.3);
        struct chosen c = choose(&params, &p.in, NULL);
        hash[i] = iwp_keep_hash(c.s.keep, c.s.n_keep);
        int fresh = 1;
        for (size_t j = 0; j < i; j++) fresh &= hash[j] != hash[i];
        distinct += fresh;
        chosen_free(&c);
    }
    CHECK_MSG(tally.near <= 2, "%d near ties", tally.near);
    CHECK_MSG(distinct >= 25, "options give only %d different sets", distinct);
    prompt_free(&p);
}

/* ---- what holds exactly --------------------------------------------------------------------------- */

static uint64_t hash_of(struct prompt *p, const char *text, double keep, int32_t *n_keep) {
    struct iwp_params params = params_of(text, keep);
    struct chosen c = choose(&params, &p->in, NULL);
    CHECK_MSG(c.rc == 0, "%s", c.err.msg);
    uint64_t h = c.rc ? 0 : iwp_keep_hash(c.s.keep, c.s.n_keep);
    if (n_keep) *n_keep = c.s.n_keep;
    chosen_free(&c);
    return h;
}

/* Lazy exact greedy = pc-mmr whose chunks stay at one token, with every penalty rule and metric. */
TEST(lazy_greedy_is_exact) {
    uint64_t seed = 21;
    static const char *const extra[] = {"",
                                        ",penalty=all",
                                        ",penalty=all-fresh",
                                        ",lambda=1,floor=0.5",
                                        ",duplication=cos_v",
                                        ",duplication=rbf,duplication-norm=minmax",
                                        ",duplication-heads=joint",
                                        ",duplication-heads=concat",
                                        ",duplication=cos_h",
                                        ",scale=minmax"};
    for (int i = 0; i < 300; i++) {
        struct prompt_shape s = random_shape(&seed, 100);
        if (i % 10 == 0) s.n_visual = 400, s.d = 16;
        struct prompt p;
        prompt_make(&p, &s, IWP_DTYPE_F32, &seed);
        prompt_fill(&p, NULL);
        char a[200], b[200];
        const char *x = extra[i % (int)(sizeof extra / sizeof extra[0])];
        snprintf(a, sizeof a, "selector=mmr-mult%s", x);
        snprintf(b, sizeof b, "selector=pc-mmr,chunk=1,growth=1%s", x);
        double keep = ONE_OF(&seed, 10, 35, 70, 95) / 100.0;
        CHECK_MSG(hash_of(&p, a, keep, NULL) == hash_of(&p, b, keep, NULL), "N %d %s", s.n_visual,
                  a);
        prompt_free(&p);
    }
}

/* Equal tokens: the later copy is never kept without the earlier one. */
TEST(ties_go_to_the_lower_index) {
    uint64_t seed = 31;
    static const char *const sel[] = {"selector=topk", "selector=pc-mmr", "selector=mmr-mult",
                                      "selector=mmr-add", "selector=pc-mmr,penalty=all-fresh"};
    for (int i = 0; i < 200; i++) {
        struct prompt_shape s = random_shape(&seed, 100);
        s.copies = s.zeros = s.gap = 0;
        s.n_visual = 2 * ONE_OF(&seed, 1, 5, 16, 40);
        struct prompt p;
        prompt_make(&p, &s, IWP_DTYPE_F32, &seed);
        size_t row = (size_t)(s.G * s.d), half = (size_t)s.n_visual / 2;
        float *all[] = {p.d.k, p.d.k_rope, p.d.v};
        for (int a = 0; a < 3; a++)
            memcpy(all[a] + ((size_t)s.before + half) * row, all[a] + (size_t)s.before * row,
                   4 * row * half);
        prompt_fill(&p, NULL);
        struct iwp_params params = params_of(sel[i % 5], ONE_OF(&seed, 20, 40, 60) / 100.0);
        struct chosen c = choose(&params, &p.in, NULL);
        CHECK_MSG(c.rc == 0, "%s", c.err.msg);
        unsigned char *kept = calloc((size_t)s.n_visual, 1);
        for (int j = 0; j < c.s.n_keep; j++) kept[c.s.keep[j]] = 1;
        for (size_t j = 0; j < half; j++)
            CHECK_MSG(!kept[half + j] || kept[j], "copy %d kept, %s", (int)j, sel[i % 5]);
        free(kept);
        chosen_free(&c);
        prompt_free(&p);
    }
    /* All equal: the first M. */
    struct prompt_shape s = {.n_visual = 50,
                             .after = 2,
                             .H = 2,
                             .G = 1,
                             .d = 8,
                             .Dh = 4,
                             .clusters = 1,
                             .amp = 1,
                             .n_unit = 1};
    struct prompt p;
    prompt_make(&p, &s, IWP_DTYPE_F32, &seed);
    for (int j = 1; j < 50; j++) {
        memcpy(p.d.k + j * 8, p.d.k, 32);
        memcpy(p.d.k_rope + j * 8, p.d.k_rope, 32);
        memcpy(p.d.v + j * 8, p.d.v, 32);
    }
    prompt_fill(&p, NULL);
    for (int i = 0; i < 5; i++) {
        struct iwp_params params = params_of(sel[i], 0.2);
        struct chosen c = choose(&params, &p.in, NULL);
        CHECK_INT(c.s.n_keep, 10);
        for (int j = 0; j < c.s.n_keep; j++) CHECK_INT(c.s.keep[j], j);
        chosen_free(&c);
    }
    prompt_free(&p);
}

/* A unit selects as if it were alone: the other units' tokens turned into text of no question. */
TEST(units_are_independent) {
    uint64_t seed = 41;
    static const char *const sel[] = {"selector=topk", "selector=pc-mmr", "selector=mmr-mult",
                                      "selector=pc-mmr,duplication-norm=minmax"};
    for (int i = 0; i < 80; i++) {
        struct prompt_shape s = random_shape(&seed, 100);
        s.n_visual = ONE_OF(&seed, 12, 50, 100);
        s.n_unit = ONE_OF(&seed, 2, 3, 5);
        s.copies = s.zeros = 0;
        struct prompt p;
        prompt_make(&p, &s, IWP_DTYPE_F32, &seed);
        prompt_fill(&p, NULL);
        p.in.unit = p.unit;
        char text[100];
        snprintf(text, sizeof text, "query=text-user,%s", sel[i % 4]);
        double keep = ONE_OF(&seed, 5, 22, 50) / 100.0;
        struct iwp_params params = params_of(text, keep);
        params.budget.scope = IWP_SCOPE_FRAME;
        struct chosen all = choose(&params, &p.in, NULL);
        CHECK_MSG(all.rc == 0, "%s", all.err.msg);
        unsigned char *code = malloc((size_t)p.d.n), *kept = calloc((size_t)p.n_visual, 1);
        for (int j = 0; j < all.s.n_keep; j++) kept[all.s.keep[j]] = 1;
        int total = 0;
        for (int u = 0; u < s.n_unit; u++) {
            int nv = 0, first = -1, differ = 0;
            for (int j = 0; j < p.d.n; j++) {
                code[j] = p.d.code[j];
                if (!ref_visual(code[j])) continue;
                if (p.unit[nv] != u) code[j] = 0;
                if (p.unit[nv] == u && first < 0) first = nv;
                nv++;
            }
            struct iwp_input in = p.in;
            in.code = code;
            in.unit = NULL;
            struct iwp_params alone = params_of(text, keep);
            struct chosen c = choose(&alone, &in, NULL);
            CHECK_MSG(c.rc == 0, "%s", c.err.msg);
            total += c.s.n_keep;
            for (int j = 0; j < c.s.n_keep; j++) differ += !kept[first + c.s.keep[j]];
            CHECK_MSG(differ == 0, "unit %d of %d: %d differ [%s]", u, s.n_unit, differ, text);
            chosen_free(&c);
        }
        CHECK_INT(total, all.s.n_keep);
        free(code), free(kept);
        chosen_free(&all);
        prompt_free(&p);
    }
}

/* Finite but huge numbers: a full, ordered set and finite scores, whatever is asked. */
TEST(huge_values) {
    uint64_t seed = 51;
    for (int i = 0; i < 600; i++) {
        struct prompt_shape s = random_shape(&seed, 64);
        struct ref_options o;
        char text[600];
        random_options(&seed, &o, text, sizeof text);
        struct prompt p;
        prompt_make(&p, &s, IWP_DTYPE_F32, &seed);
        float *all[] = {p.d.q, p.d.q_rope, p.d.k, p.d.k_rope, p.d.v};
        int heads[] = {s.H, s.H, s.G, s.G, s.G};
        for (int a = 0; a < 5; a++)
            for (int j = 0; j < p.d.n * heads[a] * s.d; j++)
                if (i % 3 == 0 || rand_below(&seed, 6) == 0)
                    all[a][j] =
                        all[a][j] > 0 ? 1e30f * (float)(1 + j % 7) : -3e38f / (float)(1 + j % 5);
        prompt_fill(&p, NULL);
        struct iwp_params params = params_of(text, 0.4);
        struct chosen c = choose(&params, &p.in, NULL);
        if (c.rc) {
            CHECK_MSG(strstr(c.err.msg, "query="), "%s [%s]", c.err.msg, text);
        } else {
            CHECK_INT(c.s.n_keep, iwp_keep_count(0.4, s.n_visual));
            for (int j = 0; j < s.n_visual; j++)
                CHECK_MSG(c.s.scores[j] >= 0 && c.s.scores[j] <= FLT_MAX, "score %g [%s]",
                          (double)c.s.scores[j], text);
        }
        chosen_free(&c);
        prompt_free(&p);
    }
}

/* NaN or Inf in a row that is read is an error naming the tensor; in any other row nobody notices
 * (the random cases fill those with NaN). */
TEST(non_finite_input) {
    uint64_t seed = 61;
    struct prompt_shape s = {.n_visual = 40,
                             .before = 2,
                             .after = 5,
                             .H = 4,
                             .G = 2,
                             .d = 16,
                             .Dh = 8,
                             .amp = 1,
                             .clusters = 5,
                             .n_unit = 1};
    struct prompt p;
    prompt_make(&p, &s, IWP_DTYPE_F32, &seed);
    const struct {
        float *x;
        int row, heads;
        const char *name;
    } at[] = {{p.d.q, 44, 4, "q"},
              {p.d.k, 0, 2, "k"},
              {p.d.k, 30, 2, "k"},
              {p.d.v, 20, 2, "v"},
              {p.d.k_rope, 41, 2, "k_rope"}};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int dtype = 0; dtype < 3; dtype++)
        for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
            for (int b = 0; b < 3; b++) {
                float *x = at[i].x + (at[i].row * at[i].heads + 1) * s.d + 3, old = *x;
                *x = bad[b];
                p.dtype = (enum iwp_dtype)dtype;
                prompt_fill(&p, NULL);
                struct iwp_params params = params_of("lambda=5", 0.3);
                struct chosen c = choose(&params, &p.in, NULL);
                CHECK_MSG(
                    c.rc == IWP_EINVAL && strstr(c.err.msg, at[i].name) && strstr(c.err.msg, "NaN"),
                    "%s row %d type %d: rc %d '%s'", at[i].name, at[i].row, dtype, c.rc, c.err.msg);
                chosen_free(&c);
                *x = old;
            }
    prompt_free(&p);
}

int main(void) {
    test_options();
    test_large_logits();
    test_each_option_alone();
    test_lazy_greedy_is_exact();
    test_ties_go_to_the_lower_index();
    test_units_are_independent();
    test_huge_values();
    test_non_finite_input();
    return test_done();
}
