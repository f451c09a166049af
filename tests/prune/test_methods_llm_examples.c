/* The worked examples of methods-in-llm and of DART: numbers in, numbers out. */
#include "prompt.h"
#include "prune/sparsevlm_parts.h"
#include "prune/vatp.h"
#include "prune/vtw.h"

static struct result res;

/* One number per head as q and k: logits are k itself, so k = ln p gives the probabilities p. */
static void probabilities(struct prompt *p, enum iwp_tensor q, enum iwp_tensor k, int32_t heads,
                          const double *prob, int32_t n) {
    float *x = prompt_add(p, q, 0, heads, 1), *y = prompt_add(p, k, 0, heads, 1);
    for (int32_t i = 0; i < p->in.n * heads; i++) x[i] = 1;
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = 0; i < n; i++) y[i * heads + h] = (float)log(prob[h * n + i]);
}

static const double fastv_rows[] = {.30, .05, .20, .02, .10, .03, .20, .10,
                                    .40, .15, .02, .08, .05, .10, .10, .10};

TEST(fastv_example) {
    struct prompt p;
    prompt_codes(&p, 1, 5, 2, 0);
    probabilities(&p, IWP_TENSOR_Q_ROPE_PREV, IWP_TENSOR_K_ROPE_PREV, 2, fastv_rows, 8);
    struct iwp_params q = params_of("fastv", "", 0);
    q.budget.keep = 0.5; /* round-half-even(2.5) */
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "fastv R=.5", 0, 1);
    const double want[] = {.10, .11, .05, .075, .065};
    for (int i = 0; i < 5; i++) CHECK_NEAR(res.scores[i], want[i], 1e-6);
    q.budget.keep = 0.75;
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "fastv half-even 3.75", 0, 1, 3, 4);
    q.budget.n_keep = 3;
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "fastv trunc 3", 0, 1, 3);
    prompt_free(&p);
}

TEST(fastv_pact_example) {
    struct prompt p;
    prompt_codes(&p, 1, 4, 3, 0);
    prompt_add(&p, IWP_TENSOR_Q_ROPE, 0, 2, 4);
    prompt_add(&p, IWP_TENSOR_K_ROPE, 0, 1, 4);
    struct iwp_params q = params_of("fastv", "query=mean-prefix", 0);
    q.budget.keep = 0.5;
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "fastv mean-prefix", 0, 1);
    const double want[] = {.256667, .156667, .09, .04};
    for (int i = 0; i < 4; i++) CHECK_NEAR(res.scores[i], want[i], 1e-6);
    q.budget.keep = 0.7; /* 2.8 of 4: as published truncates */
    q.budget.rule = IWP_RULE_AS_PUBLISHED;
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_INT(res.sel.n_keep, 2);
    prompt_free(&p);
}

TEST(pyramiddrop_example) {
    struct prompt p;
    prompt_codes(&p, 1, 4, 1, 0);
    static const double query[2][2] = {{1, .5}, {.2, -1}},
                        key[2][6][2] = {{{.5, 0}, {1, 0}, {0, 1}, {-1, .5}, {.3, .3}, {.8, -.2}},
                                        {{0, .5}, {.4, .1}, {1, 1}, {0, -1}, {-.5, .2}, {.1, .1}}};
    float *q = prompt_add(&p, IWP_TENSOR_Q_ROPE, 0, 2, 2),
          *k = prompt_add(&p, IWP_TENSOR_K_ROPE, 0, 2, 2);
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 6; i++) {
            double c = cos(i), s = sin(i), x = key[h][i][0], y = key[h][i][1];
            k[(i * 2 + h) * 2] = (float)(x * c - y * s);
            k[(i * 2 + h) * 2 + 1] = (float)(y * c + x * s);
            if (i != 5) continue;
            x = query[h][0], y = query[h][1];
            q[(i * 2 + h) * 2] = (float)(x * c - y * s);
            q[(i * 2 + h) * 2 + 1] = (float)(y * c + x * s);
        }
    struct iwp_params o = params_of("pyramiddrop", "", 0);
    o.budget.keep = 0.5;
    prompt_select(&o, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "pyramiddrop", 1, 2);
    const double want[] = {.118335, .214497, .199727, .136403};
    for (int i = 0; i < 4; i++) CHECK_NEAR(res.scores[i], want[i], 1e-6);
    prompt_free(&p);
}

TEST(sparsevlm_example) {
    struct prompt p;
    prompt_codes(&p, 0, 6, 3, 0);
    const double row[] = {.10, .02, .20, .05, .08, .01, .54, 1, 1};
    probabilities(&p, IWP_TENSOR_Q_ROPE_PREV, IWP_TENSOR_K_ROPE_PREV, 1, row, 9);
    static const float x[9][2] = {{1, 0}, {0, 1}, {1, 1},   {2, 0},    {.5f, .5f},
                                  {0, 0}, {1, 0}, {0, .5f}, {.2f, .2f}};
    memcpy(prompt_add(&p, IWP_TENSOR_EMBEDS, 0, 1, 2), x, sizeof x);
    memcpy(prompt_add(&p, IWP_TENSOR_H, 0, 1, 2), x, sizeof x);
    struct iwp_params q = params_of("sparsevlm", "", 2);
    q.budget.rule = IWP_RULE_AS_PUBLISHED;
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "sparsevlm", 0, 2, 4); /* the merged token sits at its centre, token 4 */
    for (int i = 0; i < 6; i++) CHECK_NEAR(res.scores[i], row[i], 1e-6); /* text 0 rates alone */
    CHECK_INT(res.sel.n_merge, 2);
    CHECK_INT(res.merge[0].from, 4);
    CHECK_INT(res.merge[1].from, 3);
    double merged[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(res.merge[i].to, 4);
        for (int t = 0; t < 2; t++)
            merged[t] += (double)res.merge[i].weight * (double)x[res.merge[i].from][t];
    }
    CHECK_NEAR(merged[0], 1.249999, 1e-6);
    CHECK_NEAR(merged[1], .25, 1e-6);
    prompt_free(&p);
}

TEST(sparsevlm_clusters) {
    static const float x[] = {0, 0, .2f, 0, .1f, .3f, 4, 4, 4, 4.5f, 9, 0};
    static const int32_t row[] = {0, 1, 2, 3, 4, 5}, near[] = {0, 0, 0, 1, 1, 1};
    static const double rho[] = {.990050, .990050, .975310, .939413, .939413, .000035},
                        delta[] = {6.363961, .141421, .223607, 3.801316, .353553, 4.527693};
    struct iwp_array a = iwp_array_f32(x, 6, 1, 2);
    struct iwp_view v = {.n_pool = 6};
    struct iwp_arena m = {NULL, 0, 0};
    struct iwp_peaks p;
    iwp_peaks_layout(&p, &v, &a, 6, &m);
    m = (struct iwp_arena){aligned_alloc(64, m.used + 128 - m.used % 64), 0, m.used + 64};
    void *block = m.base;
    iwp_peaks_layout(&p, &v, &a, 6, &m);
    iwp_peaks_run(&p, row, 6, 2);
    CHECK_INT(p.centre[0], 0);
    CHECK_INT(p.centre[1], 3);
    for (int i = 0; i < 6; i++) {
        CHECK_NEAR(p.density[i], rho[i], 1e-6);
        CHECK_NEAR(p.gap[i], delta[i], 1e-5);
        CHECK_INT(p.near[i], near[i]);
    }
    free(block);
}

/* Lists of the authors and what is left with the merged tokens on top. */
TEST(sparsevlm_counts) {
    static const int32_t list[3][3] = {{300, 200, 110}, {303, 110, 36}, {66, 30, 17}},
                         want[3][3] = {{309, 204, 113}, {312, 117, 39}, {82, 32, 18}};
    static const double average[] = {192.03125, 128.625, 64.8125};
    for (int l = 0; l < 3; l++) {
        int32_t n = 576;
        for (int s = 0; s < 3; s++) {
            struct prompt_shape shape = {.before = 2,
                                         .visual = n,
                                         .after = 5,
                                         .heads = 2,
                                         .groups = 1,
                                         .dim = 8,
                                         .width = 12};
            struct prompt p;
            prompt_make(&p, &shape, (uint64_t)(3 * l + s));
            struct iwp_params q = params_of("sparsevlm", "", list[l][s]);
            q.budget.rule = IWP_RULE_AS_PUBLISHED;
            prompt_select(&q, &p.in, NULL, NULL, &res);
            CHECK_INT(res.sel.n_keep, want[l][s]);
            n = res.sel.n_keep;
            prompt_free(&p);
        }
        CHECK_NEAR((2 * 576 + 4 * want[l][0] + 9 * want[l][1] + 17 * want[l][2]) / 32.0, average[l],
                   1e-9);
    }
}

TEST(sparsevlm_position_factor) {
    CHECK_NEAR(iwp_sparse_position_factor(0, 4, 1e4), 2.0, 1e-6);
    CHECK_NEAR(iwp_sparse_position_factor(1, 4, 1e4), 1.540252, 1e-6);
    CHECK_NEAR(iwp_sparse_position_factor(2, 4, 1e4), .583653, 1e-6);
    CHECK_NEAR(iwp_sparse_position_factor(600, 128, 1e4), 2.349313, 1e-6);
    CHECK_NEAR(iwp_sparse_position_factor(100, 128, 1e4), 5.3994, 1e-4);
    CHECK_NEAR(iwp_sparse_position_factor(10, 128, 1e4), 7.5696, 1e-4);
    for (int i = 0; i < 2000; i++) { /* against libm, and never below the floor */
        double x = i * 37.0 + (i > 1000) * 1e7, sum = 0;
        for (int m = 0; m < 32; m++) sum += cos(x * pow(1e6, -m / 32.0));
        double want = fmax(2 / 8.0 * sum, .08);
        CHECK_NEAR(iwp_sparse_position_factor(x, 64, 1e6), want, 1e-7);
    }
}

TEST(sparsevlm_rank) {
    /* A = U V with r inner columns has rank r; its Gram matrix from either side. */
    uint64_t s = 5;
    for (int r = 0; r <= 6; r++)
        for (int n = 6; n <= 40; n += 17) {
            double u[6][8] = {{0}}, v[8][40], a[6][40], g[36], work[12];
            for (int i = 0; i < 6; i++)
                for (int k = 0; k < r; k++) u[i][k] = test_normal(&s);
            for (int k = 0; k < r; k++)
                for (int j = 0; j < n; j++) v[k][j] = test_normal(&s);
            for (int i = 0; i < 6; i++)
                for (int j = 0; j < n; j++) {
                    a[i][j] = 0;
                    for (int k = 0; k < r; k++) a[i][j] += u[i][k] * v[k][j];
                }
            for (int i = 0; i < 6; i++)
                for (int k = 0; k < 6; k++) {
                    g[i * 6 + k] = 0;
                    for (int j = 0; j < n; j++) g[i * 6 + k] += a[i][j] * a[k][j];
                }
            CHECK_INT(iwp_sparse_rank(g, 6, n, work), r);
        }
    double one[] = {4}, work[2];
    CHECK_INT(iwp_sparse_rank(one, 1, 9, work), 1);
    double two[] = {1, 0, 0, 1e-6}; /* singular values 1 and 1e-3: above 100 · 2^-23 */
    double w4[4];
    CHECK_INT(iwp_sparse_rank(two, 2, 100, w4), 2);
    double far[] = {1, 0, 0, 1e-12}; /* 1e-6: below */
    CHECK_INT(iwp_sparse_rank(far, 2, 100, w4), 1);
}

TEST(v2drop_example) {
    struct prompt p;
    prompt_codes(&p, 1, 4, 1, 0);
    static const float before[6][2] = {{0, 0}, {0, 0}, {1, 1}, {2, 0}, {0, 3}, {0, 0}},
                       after[6][2] = {{9, 9}, {1, 0}, {1, 1.5f}, {2, 2}, {.3f, 3}, {9, 9}};
    memcpy(prompt_add(&p, IWP_TENSOR_H_PREV, 0, 1, 2), before, sizeof before);
    memcpy(prompt_add(&p, IWP_TENSOR_H, 0, 1, 2), after, sizeof after);
    struct iwp_params q = params_of("v2drop", "", 0);
    q.budget.keep = .5;
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "v2drop .5", 0, 2);
    const double want[] = {1, .5, 2, .3};
    for (int i = 0; i < 4; i++) CHECK_NEAR(res.scores[i], want[i], 1e-6);
    q.budget.n_keep = 1;
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "v2drop 0", 2);
    q.budget =
        (struct iwp_budget){.keep = .7, .rule = IWP_RULE_AS_PUBLISHED, .keep_separators = -1};
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_INT(res.sel.n_keep, 2); /* trunc(2.8) */
    prompt_free(&p);
}

TEST(vtw_example) {
    struct prompt p;
    prompt_codes(&p, 1, 4, 2, 2);
    struct iwp_params q = params_of("vtw", "", 3);
    CHECK_INT(prompt_select(&q, &p.in, NULL, NULL, &res), 0);
    CHECK_INT(res.sel.n_keep, 0);
    CHECK_INT(res.sel.has_scores, 0);
    static const double kl[] = {.020, .008, .0029, .0040, .0010}, w[] = {.5, .5}, f[] = {.6, .4};
    CHECK_INT(iwp_vtw_layer(kl, 5, 5, .003), 7);
    CHECK_INT(iwp_vtw_layer(kl, 5, 5, .0001), -1);
    CHECK_NEAR(iwp_vtw_divergence(w, f, 2), .020411, 1e-6);
    CHECK_NEAR(iwp_vtw_divergence(f, w, 2), .020136, 1e-6);
    prompt_free(&p);
}

TEST(vatp_example) {
    struct prompt p;
    prompt_codes(&p, 1, 5, 2, 0);
    probabilities(&p, IWP_TENSOR_Q_ROPE, IWP_TENSOR_K_ROPE, 2, fastv_rows, 8);
    float *v = prompt_add(&p, IWP_TENSOR_V, 0, 2, 1);
    for (int i = 0; i < 16; i++) v[i] = i / 2 == 3 ? -4 : 1;
    struct iwp_params q = params_of("vatp", "", 2);
    prompt_select(&q, &p.in, NULL, NULL, &res);
    CHECK_KEEP(&res, "vatp", 1, 2);
    const double want[] = {.10, .11, .20, .075, .065};
    for (int i = 0; i < 5; i++) CHECK_NEAR(res.scores[i], want[i], 1e-6);
    prompt_free(&p);
}

/* The authors' own rule, per head (7.9); the last entry is the token to come. */
TEST(vatp_visible) {
    static const double column[2][6] = {{2.6, .5, .9, .7, .6, .7}, {3.0, .4, .4, 1.2, .6, .4}},
                        norm[2][6] = {{.1, 3, 1, 2, 1.5, 1}, {.2, 1, 4, .5, 1, 2}},
                        ones[6] = {1, 1, 1, 1, 1, 1};
    static const uint8_t want[4][6] = {
        {1, 1, 0, 0, 1, 1}, {1, 0, 1, 0, 1, 1}, {1, 0, 1, 0, 1, 1}, {1, 0, 0, 1, 1, 1}};
    for (int c = 0; c < 4; c++) { /* with value norms, then attention alone */
        uint8_t got[6];
        CHECK_INT(iwp_vatp_visible(column[c % 2], c < 2 ? norm[c % 2] : ones, 6, c < 2, 2, 2, got),
                  4);
        CHECK(memcmp(got, want[c], 6) == 0);
        CHECK_INT(iwp_vatp_visible(column[c % 2], norm[c % 2], 6, 1, 3, 3, got), 6);
    }
}

/* Counts under as-published: 4 + 8 trunc(b N / 8) (methods-diversity 0.4). */
TEST(dart_counts) {
    static const int32_t size[] = {576, 729, 1296},
                         want[][3] = {{204, 124, 60}, {260, 164, 84}, {460, 284, 140}};
    static const double keep[] = {.353, .222, .111};
    for (int s = 0; s < 3; s++)
        for (int k = 0; k < 3; k++) {
            struct prompt p;
            prompt_codes(&p, 1, size[s], 8, 0);
            float *h = prompt_add(&p, IWP_TENSOR_H, 0, 1, 2),
                  *key = prompt_add(&p, IWP_TENSOR_K_ROPE_PREV, 0, 1, 2);
            for (int32_t i = 0; i < 2 * p.in.n; i++) {
                h[i] = (float)(i * 37 % 101) - 50;
                key[i] = (float)(i * 53 % 97) - 48;
            }
            struct iwp_params q = params_of("dart", "", 0);
            q.budget.keep = keep[k];
            q.budget.rule = IWP_RULE_AS_PUBLISHED;
            CHECK_INT(prompt_select(&q, &p.in, NULL, NULL, &res), 0);
            CHECK_INT(res.sel.n_keep, want[s][k]);
            prompt_free(&p);
        }
}

TEST(dart_example) {
    static const float y[9][3] = {{0, 0, 0},         {1, 0, 0},        {.9f, .3f, 0},
                                  {.8f, -.5f, -.6f}, {-.8f, .6f, .1f}, {.6f, .8f, 0},
                                  {-1, -.5f, -1.2f}, {.2f, .5f, 1},    {.5f, .5f, 0}},
                       k[9][2] = {{0, 0},    {.5f, .5f}, {2, -1}, {1, 1},    {.2f, .1f},
                                  {-1, .5f}, {.3f, .3f}, {1, -2}, {.4f, .4f}};
    const double l1[] = {1.0, 3.0, 2.0, .3, 1.5, .6};
    struct prompt p;
    prompt_codes(&p, 1, 6, 2, 0);
    memcpy(prompt_add(&p, IWP_TENSOR_K_ROPE_PREV, 0, 1, 2), k, sizeof k);
    memcpy(prompt_add(&p, IWP_TENSOR_H, 0, 1, 3), y, sizeof y);
    const char *order[] = {"pivots-image=1,pivots-text=1",
                           "pivots-image=1,pivots-text=1,pivot-order=cpython"};
    for (int i = 0; i < 4; i++) { /* ratio .6 of 6: t = 1; the same through the cut rule's 3 */
        struct iwp_params q = params_of("dart", order[i % 2], i < 2 ? 2 : 3);
        q.budget.rule = i < 2 ? IWP_RULE_AS_PUBLISHED : IWP_RULE_CUT;
        prompt_select(&q, &p.in, NULL, NULL, &res);
        CHECK_KEEP(&res, "dart", 1, 2, 5);
        for (int t = 0; t < 6; t++) CHECK_NEAR(res.scores[t], l1[t], 1e-6);
    }
    prompt_free(&p);
}

int main(void) {
    test_fastv_example();
    test_fastv_pact_example();
    test_pyramiddrop_example();
    test_sparsevlm_example();
    test_sparsevlm_clusters();
    test_sparsevlm_counts();
    test_sparsevlm_position_factor();
    test_sparsevlm_rank();
    test_v2drop_example();
    test_vtw_example();
    test_vatp_example();
    test_vatp_visible();
    test_dart_counts();
    test_dart_example();
    return test_done();
}
