/* PACT, DivPrune, CDPruner, SCOPE, ZOO-Prune, VisionZip, VisPruner, ToMe: the worked examples of the
 * method pages, random cases against div_ref.h, and what must hold for all of them. */
#include "test.h"

#include "base/pool.h"
#include "iwp/prune.h"
#include "prune/cosine.h"
#include "div_ref.h"
#include "prune/zooprune_parts.h"

struct result {
    int rc;
    iwp_err err;
    struct iwp_selection s;
    int32_t keep[MAXN + 64], sizes[MAXN + 64];
    float scores[MAXN + 64];
    struct iwp_merge merge[2 * MAXN + 64];
};

/* Runs a method with exactly the workspace it asked for. */
static void run_params(struct result *r, const struct iwp_params *p, const struct iwp_input *in,
                       const struct iwp_exec *exec) {
    memset(r, 0, sizeof *r);
    int64_t bytes = iwp_select_workspace(p, in, exec, &r->err);
    r->rc = bytes < 0 ? (int)bytes : 0;
    if (bytes < 0) return;
    void *ws = malloc((size_t)bytes);
    memset(ws, 0xa5, (size_t)bytes);
    r->s = (struct iwp_selection){
        .keep = r->keep, .scores = r->scores, .merge = r->merge, .sizes = r->sizes};
    r->rc = iwp_select(p, in, NULL, ws, (size_t)bytes, exec, &r->s, &r->err);
    free(ws);
}

static void run(struct result *r, const char *method, const char *opts, const struct iwp_input *in,
                int m) {
    struct iwp_params p;
    iwp_params_default(&p, iwp_method_find(method));
    memset(r, 0, sizeof *r);
    r->rc = iwp_params_parse(&p, opts, &r->err);
    p.budget.n_keep = m;
    if (r->rc == 0) run_params(r, &p, in, NULL);
}

static int kept_are(const struct result *r, int n, const int *want) {
    int ok = r->rc == 0 && r->s.n_keep == n;
    for (int i = 0; ok && i < n; i++) ok = r->keep[i] == want[i];
    if (!ok) {
        fprintf(stderr, "rc %d %s kept:", r->rc, r->rc ? r->err.msg : "");
        for (int i = 0; i < r->s.n_keep; i++) fprintf(stderr, " %d", r->keep[i]);
        fputc('\n', stderr);
    }
    return ok;
}
#define CHECK_KEPT(r, ...)                                                                         \
    CHECK(kept_are(r, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__}))

/* Row `to` after merging, from value rows. */
static void merged(const struct result *r, int to, const float *x, int d, double *out) {
    int listed = 0;
    for (int t = 0; t < d; t++) out[t] = 0;
    for (int i = 0; i < r->s.n_merge; i++) {
        if (r->merge[i].to != to) continue;
        listed = 1;
        for (int t = 0; t < d; t++)
            out[t] += (double)r->merge[i].weight * (double)x[r->merge[i].from * d + t];
    }
    for (int t = 0; !listed && t < d; t++) out[t] = (double)x[to * d + t];
}

/* Same set, scores, merges and sizes as the reference. */
static int same(const struct result *r, const struct ref *want, int n, int m) {
    int ok = r->rc == 0, at = 0;
    double top = 0;
    for (int i = 0; i < n; i++) top = fmax(top, fabs(want->score[i]));
    for (int i = 0; i < n && ok; i++) {
        if (r->s.has_scores) ok = fabs((double)r->scores[i] - want->score[i]) <= 2e-5 * top;
        if (!want->kept[i]) continue;
        ok = ok && at < r->s.n_keep && r->keep[at] == i;
        if (r->s.has_sizes) ok = ok && r->sizes[at] == want->size[i];
        at++;
    }
    ok = ok && at == r->s.n_keep;
    int listed = 0;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) listed += want->merge[a][b] > 0;
    ok = ok && listed == r->s.n_merge;
    for (int i = 0; i < r->s.n_merge && ok; i++)
        ok =
            fabs(want->merge[r->merge[i].to][r->merge[i].from] - (double)r->merge[i].weight) < 1e-6;
    if (!ok)
        fprintf(stderr, "n %d m %d rc %d %s kept %d (reference %d) merges %d (%d)\n", n, m, r->rc,
                r->rc ? r->err.msg : "", r->s.n_keep, at, r->s.n_merge, listed);
    return ok;
}

/* ---- the worked examples ---------------------------------------------------------------------- */

static uint8_t all_visual[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

TEST(pact_example) {
    static const float q[] = {1, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1, 1, 0, 0,
                              0, 2, 0, 0, 1, 0, 1, 0, 0, 0, 0, 2, 1, 0, 1, 0};
    static const float k[] = {0, 0, 0, 0, 1, 0,    0, 0, 3,  0, 0, 0, 2.8f, .2f, 0, 0,
                              0, 3, 0, 0, 0, 2.5f, 0, 0, -2, 0, 0, 0, 2,    2,   0, 0};
    static const float kr[] = {0, 0, 0, 0, 0,   0,    0, 0, 3,   0, 0, 0, 2.8f, .6f, 0, 0,
                               0, 3, 0, 0, .2f, 2.5f, 0, 0, .5f, 0, 2, 0, 2,    2,   0, 0};
    static const float h[] = {0, 0, 0, 0, 2, 0, 1.8f, .4f, 0, 3, .5f, 2, 1, 1, 2, 2};
    static const double score[] = {.3736, .3360, .3852, .2336, .0405, .5988};
    static const uint8_t code[] = {0, 0, 1, 1, 1, 1, 1, 1};
    struct iwp_input in = {.n = 8, .code = code};
    in.arr[IWP_TENSOR_Q] = iwp_array_f32(q, 8, 1, 4);
    in.arr[IWP_TENSOR_K] = iwp_array_f32(k, 8, 1, 4);
    in.arr[IWP_TENSOR_K_ROPE] = iwp_array_f32(kr, 8, 1, 4);
    in.arr[IWP_TENSOR_H] = iwp_array_f32(h, 8, 1, 2);
    struct result r;
    run(&r, "pact", "lambda=0.7,dc=0.21,alpha=1.5", &in, 3);
    CHECK_KEPT(&r, 0, 2, 5);
    for (int i = 0; i < 6; i++) CHECK_NEAR(r.scores[i], score[i], 1e-4);
    CHECK(r.s.has_sizes && r.sizes[0] == 2 && r.sizes[1] == 2 && r.sizes[2] == 1);
    double x[2];
    merged(&r, 0, h + 4, 2, x);
    CHECK_NEAR(x[0], 1.9, 1e-6);
    CHECK_NEAR(x[1], .2, 1e-6);
    merged(&r, 2, h + 4, 2, x);
    CHECK_NEAR(x[0], .25, 1e-6);
    CHECK_NEAR(x[1], 2.5, 1e-6);
    CHECK_INT(r.s.n_merge, 4);
    /* without dc the cutoff is tuned: never more than asked for */
    for (int m = 1; m <= 6; m++) {
        run(&r, "pact", "lambda=0.7", &in, m);
        CHECK(r.rc == 0 && r.s.n_keep >= 1 && r.s.n_keep <= m);
    }
    CHECK_INT(r.s.n_keep, 6);
}

TEST(divprune_example) {
    static const float x[] = {1, 0, .98f, .2f, 0, 1, -1, .1f, .7f, .7f, .3f, -1};
    static const double score[] = {.0202, .0202, .2929, .9005, .1658, .7127};
    struct iwp_input in = {.n = 6, .code = all_visual};
    in.arr[IWP_TENSOR_EMBEDS] = iwp_array_f32(x, 6, 1, 2);
    struct result r;
    run(&r, "divprune", "", &in, 3);
    CHECK_KEPT(&r, 0, 2, 3);
    for (int i = 0; i < 6; i++) CHECK_NEAR(r.scores[i], score[i], 1e-4);
    run(&r, "divprune", "", &in, 1);
    CHECK_KEPT(&r, 3);
    run(&r, "divprune", "", &in, 2);
    CHECK_KEPT(&r, 0, 3);
}

/* The raw cosines of 4.9 become the first column of vit_features, the text vector is (1, 0). */
TEST(cdpruner_example) {
    static const float x[] = {1, 0, 0, .9f, .1f, 0, 0, 1, 0, 0, .8f, .6f, 0, 0, 1, .6f, .6f, .6f};
    static const double c[] = {.30, .10, .20, .25, .28, .05};
    static const float text[] = {1, 0};
    float f[12];
    for (int i = 0; i < 6; i++) f[2 * i] = (float)c[i], f[2 * i + 1] = (float)sqrt(1 - c[i] * c[i]);
    struct iwp_input in = {.n = 6, .code = all_visual};
    in.arr[IWP_TENSOR_EMBEDS] = iwp_array_f32(x, 6, 1, 3);
    in.arr[IWP_TENSOR_VIT_FEATURES] = iwp_array_f32(f, 6, 1, 2);
    in.arr[IWP_TENSOR_TEXT_EMBEDS] = iwp_array_f32(text, 1, 1, 2);
    struct result r;
    run(&r, "cdpruner", "relevance=joint,sign=minus", &in, 3);
    CHECK_KEPT(&r, 1, 2, 5);
    static const double rel[] = {.000004, .800004, .400004, .200004, .080004, 1.000004};
    for (int i = 0; i < 6; i++) CHECK_NEAR(r.scores[i], rel[i], 2e-6);
    run(&r, "cdpruner", "relevance=joint,sign=minus", &in, 2);
    CHECK_KEPT(&r, 1, 5);
    run(&r, "cdpruner", "relevance=joint,sign=plus", &in, 3);
    CHECK_KEPT(&r, 0, 3, 4);
    run(&r, "cdpruner", "relevance=joint,sign=plus", &in, 1);
    CHECK_KEPT(&r, 0);
}

/* Encoder rows whose attention is what the example says: logits are logarithms.  Heads that see
 * nothing (q = 0) attend evenly; they take the logarithms out of the mean key again and put the
 * example's own keys in.  prob [head][query][row], key [row][2] or NULL. */
struct tower {
    int rows, heads, d;
    float *q, *k;
};

static struct tower make_tower(const double *prob, int rows, int heads, int queries,
                               const float *key) {
    struct tower t = {rows, heads * 2 + 1, queries + 2, NULL, NULL};
    size_t n = (size_t)(t.rows * t.heads * t.d);
    t.q = calloc(n, sizeof(float));
    t.k = calloc(n, sizeof(float));
    for (int h = 0; h < heads; h++)
        for (int j = 0; j < rows; j++) {
            for (int i = 0; i < queries; i++) {
                float l = (float)(log(prob[(h * queries + i) * rows + j]) * sqrt(t.d));
                t.k[(j * t.heads + h) * t.d + i] = l;
                t.k[(j * t.heads + heads + h) * t.d + i] = -l;
            }
            /* one query row for all, or one each */
            t.q[(j * t.heads + h) * t.d + (queries == 1 ? 0 : j)] = 1;
        }
    for (int j = 0; key && j < rows; j++)
        for (int c = 0; c < 2; c++)
            t.k[(j * t.heads + 2 * heads) * t.d + queries + c] = key[2 * j + c];
    return t;
}

static void use_tower(struct iwp_input *in, const struct tower *t) {
    in->arr[IWP_TENSOR_VIT_Q] = iwp_array_f32(t->q, t->rows, t->heads, t->d);
    in->arr[IWP_TENSOR_VIT_K] = iwp_array_f32(t->k, t->rows, t->heads, t->d);
}

static void free_tower(struct tower *t) {
    free(t->q);
    free(t->k);
}

TEST(scope_example) {
    static const float f[] = {1, 0, .95f, .3f, 0, 1, .2f, .98f, -1, .2f, .7f, .7f};
    static const double a[] = {.10, .30, .12, .20, .08, .20},
                        first[] = {.28606, 1.08830, .38210, .69994, .09569, .82713};
    /* one plain head: received attention is a itself */
    float q[12] = {0}, k[12] = {0};
    for (int i = 0; i < 6; i++) q[2 * i] = 1, k[2 * i] = (float)(log(a[i]) * sqrt(2));
    struct iwp_input in = {.n = 6, .code = all_visual};
    in.arr[IWP_TENSOR_VIT_Q] = iwp_array_f32(q, 6, 1, 2);
    in.arr[IWP_TENSOR_VIT_K] = iwp_array_f32(k, 6, 1, 2);
    in.arr[IWP_TENSOR_VIT_FEATURES] = iwp_array_f32(f, 6, 1, 2);
    struct result r;
    run(&r, "scope", "", &in, 3);
    CHECK_KEPT(&r, 1, 3, 4);
    for (int i = 0; i < 6; i++) CHECK_NEAR(r.scores[i], first[i], 1e-5);
    run(&r, "scope", "", &in, 1);
    CHECK_KEPT(&r, 1);
    run(&r, "scope", "", &in, 2);
    CHECK_KEPT(&r, 1, 3);
    run(&r, "scope", "alpha=0", &in, 1);
    CHECK_KEPT(&r, 5);
    run(&r, "scope", "alpha=0", &in, 2);
    CHECK_KEPT(&r, 4, 5);
    run(&r, "scope", "alpha=0", &in, 3); /* 2 and 3 add the same: the lower one */
    CHECK_KEPT(&r, 2, 4, 5);
}

TEST(visionzip_cls_example) {
    /* row 0 = CLS keeps what the patches do not get */
    static const double rows[] = {.1, .10, .30, .05, .20, .15, .10,
                                  .1, .05, .25, .10, .30, .05, .15};
    static const double score[] = {.15, .55, .15, .50, .20, .25};
    static const float x[] = {1, 0, 0, 1, 2, 0, 0, 3, 1, 1, 4, 2};
    float key[] = {9, 9, 1, 0, 0, 0, .8f, .6f, 0, 0, 0, 1, .6f, .8f};
    for (int variant = 0; variant < 2; variant++) {
        if (variant) key[12] = .9f, key[13] = .1f;
        struct tower t = make_tower(rows, 7, 2, 1, key);
        struct iwp_input in = {.n = 6, .code = all_visual};
        use_tower(&in, &t);
        struct result r;
        run(&r, "visionzip", "cls=1,contextual=2", &in, 4); /* D = 2, C = 2 */
        CHECK_KEPT(&r, 0, 1, 3, 4);
        for (int i = 0; i < 6; i++) /* five heads, three of them even over 7 rows */
            CHECK_NEAR(r.scores[i] * 5 - 3.0f / 7, score[i], 2e-6);
        double a[2], b[2];
        merged(&r, 0, x, 2, a);
        merged(&r, 4, x, 2, b);
        CHECK_NEAR(a[0], variant ? 4 : 3, 1e-6);
        CHECK_NEAR(a[1], variant ? 1 : 0, 1e-6);
        CHECK_NEAR(b[0], variant ? 1 : 5, 1e-6);
        CHECK_NEAR(b[1], variant ? 1 : 3, 1e-6);
        free_tower(&t);
    }
}

/* The authors' counts, both parts truncated (methods-encoder 1.5): rule a, rule b. */
TEST(visionzip_counts) {
    static const int size[] = {576, 729, 1000},
                     want[3][2][3] = {{{202, 126, 62}, {202, 127, 63}},
                                      {{257, 161, 80}, {256, 161, 80}},
                                      {{352, 221, 110}, {353, 222, 111}}};
    static const double keep[] = {.353, .222, .111};
    static uint8_t code[1000];
    static float x[1000];
    static int32_t kept[1000];
    memset(code, IWP_CODE_VISUAL, sizeof code);
    for (int i = 0; i < 1000; i++) x[i] = (float)(i * 37 % 101) / 50;
    for (int s = 0; s < 3; s++)
        for (int c = 0; c < 6; c++) {
            struct iwp_input in = {.n = size[s], .code = code};
            struct iwp_params p;
            struct iwp_selection sel = {.keep = kept};
            iwp_err err;
            in.arr[IWP_TENSOR_VIT_Q] = in.arr[IWP_TENSOR_VIT_K] = iwp_array_f32(x, size[s], 1, 1);
            iwp_params_default(&p, iwp_method_find("visionzip"));
            CHECK_INT(iwp_params_set(&p, "split", c / 3 ? "b" : "a", &err), 0);
            p.budget.keep = keep[c % 3];
            p.budget.rule = IWP_RULE_AS_PUBLISHED;
            int64_t bytes = iwp_select_workspace(&p, &in, NULL, &err);
            CHECK_MSG(bytes >= 0, "%s", err.msg);
            void *ws = malloc((size_t)bytes);
            CHECK_INT(iwp_select(&p, &in, NULL, ws, (size_t)bytes, NULL, &sel, &err), 0);
            CHECK_INT(sel.n_keep, want[s][c / 3][c % 3]);
            free(ws);
        }
}

TEST(visionzip_received_example) {
    static const double p[] = {.4, .3, .2, .1, .1,   .6, .2, .1, .2, .5, .2, .1, .25, .25, .25, .25,
                               .1, .2, .3, .4, 1e-9, .5, .3, .2, .1, .1, .7, .1, .3,  .3,  .3,  .1};
    static const double score[] = {.18125, .34375, .30625, .16875};
    struct tower t = make_tower(p, 4, 2, 4, NULL);
    struct iwp_input in = {.n = 4, .code = all_visual};
    use_tower(&in, &t);
    struct result r;
    run(&r, "visionzip", "contextual=0", &in, 2);
    CHECK_KEPT(&r, 1, 2);
    for (int i = 0; i < 4; i++) CHECK_NEAR(r.scores[i] * 5 - .75f, score[i] * 2, 4e-6);
    CHECK_INT(r.s.n_merge, 0);
    free_tower(&t);
}

TEST(visionzip_merge_example) {
    static const double c[] = {1,  1.2, .8, 1,  .2, .4,  .6,  .4,  2,   1.6, 1.4, 1,
                               .5, .7,  .9, .7, .9, 1.1, 1.3, 1.1, 1.2, 1.4, 1,   1.2};
    static const double s[] = {1.0, .4, 1.1, 1.5, .7, 1.2};
    static const int64_t window[] = {0, 1, 3, 4, 2, 5};
    static const float cell_key[] = {1,   0,   .6f, .8f, 0, 0,
                                     .8f, .6f, 0,   0,   0, 0}; /* encoder order */
    static const float x[] = {1, 0, 0, 2, 3, 0, 0, 4, 5, 5, 6, 0};
    double p[24];
    float key[48];
    for (int i = 0; i < 24; i++) {
        p[i] = c[i] / 23.6;
        key[2 * i] = cell_key[2 * (i / 4)];
        key[2 * i + 1] = cell_key[2 * (i / 4) + 1];
    }
    struct tower t = make_tower(p, 24, 1, 1, key);
    struct iwp_input in = {.n = 6, .code = all_visual, .window = window};
    use_tower(&in, &t);
    struct result r;
    run(&r, "visionzip", "merge=4,split=b", &in, 4); /* C = max(trunc(.3), 1) = 1, D = 3 */
    CHECK_KEPT(&r, 0, 2, 3, 5);
    for (int i = 0; i < 6; i++) CHECK_NEAR(r.scores[i] * 3 - 2.0f / 24, s[i] / 23.6, 2e-6);
    double out[2];
    merged(&r, 0, x, 2, out);
    CHECK_NEAR(out[0], 3.5, 1e-6);
    CHECK_NEAR(out[1], 3.5, 1e-6);
    CHECK_INT(r.s.n_merge, 3);
    static const int64_t twice[] = {0, 1, 3, 4, 2, 2};
    in.window = twice;
    run(&r, "visionzip", "merge=4", &in, 4);
    CHECK_INT(r.rc, IWP_EINVAL);
    CHECK(strstr(r.err.msg, "window_index") != NULL);
    free_tower(&t);
}

TEST(vispruner_example) {
    static const double a[] = {.10, .30, .05, .22, .15, .18};
    static const float f[] = {0, 1, 1, 2, .28f, .96f, 2, 1, .6f, .8f, 1, 0};
    struct tower t = make_tower(a, 6, 1, 1, NULL);
    struct iwp_input in = {.n = 6, .code = all_visual};
    use_tower(&in, &t);
    in.arr[IWP_TENSOR_VIT_FEATURES] = iwp_array_f32(f, 6, 1, 2);
    struct result r;
    run(&r, "vispruner", "", &in, 5);
    CHECK_KEPT(&r, 1, 2, 3, 4, 5);
    run(&r, "vispruner", "step=8", &in, 4);
    CHECK_KEPT(&r, 1, 2, 3, 4);
    run(&r, "vispruner", "step=1", &in, 4);
    CHECK_KEPT(&r, 1, 3, 4, 5);
    free_tower(&t);
}

TEST(tome_example) {
    static const float key[] = {1, 0, .9f, .1f, 0, 1, .2f, .8f, .7f, .7f, .3f, .7f};
    static const float x[] = {2, 0, 4, 0, 0, 6, 0, 2, 1, 1, 3, 3};
    struct iwp_input in = {.n = 6, .code = all_visual};
    in.arr[IWP_TENSOR_VIT_K] = iwp_array_f32(key, 6, 1, 2);
    in.arr[IWP_TENSOR_K_ROPE] = iwp_array_f32(key, 6, 1, 2);
    struct result r;
    double y[2];
    for (int layer = 0; layer < 2; layer++) {
        run(&r, "tome", layer ? "keys=layer" : "", &in, 4);
        CHECK_KEPT(&r, 1, 3, 4, 5);
        CHECK(r.sizes[0] == 2 && r.sizes[1] == 2 && r.sizes[2] == 1 && r.sizes[3] == 1);
        CHECK_NEAR(r.scores[0], .9939, 1e-4);
        CHECK_NEAR(r.scores[1], -1, 0);
        CHECK_NEAR(r.scores[2], .9701, 1e-4);
        CHECK_NEAR(r.scores[4], .9285, 1e-4);
        merged(&r, 1, x, 2, y);
        CHECK(fabs(y[0] - 3) < 1e-6 && fabs(y[1]) < 1e-6);
        merged(&r, 3, x, 2, y);
        CHECK(fabs(y[0]) < 1e-6 && fabs(y[1] - 4) < 1e-6);
    }
    /* the class token is row 0: five visual tokens, rows 2 and 4 are merged */
    in.n = 5;
    run(&r, "tome", "cls=1", &in, 3);
    CHECK_KEPT(&r, 0, 2, 4);
    CHECK(r.sizes[0] == 1 && r.sizes[1] == 2 && r.sizes[2] == 2);
    merged(&r, 4, x + 2, 2, y);
    CHECK(fabs(y[0] - 2) < 1e-6 && fabs(y[1] - 2) < 1e-6);
    /* the second block of the example, as a step of its own */
    static const float key2[] = {1, 0, .95f, .1f, 0, 1, .1f, .9f};
    in.n = 4;
    in.arr[IWP_TENSOR_VIT_K] = iwp_array_f32(key2, 4, 1, 2);
    run(&r, "tome", "r=1", &in, 4);
    CHECK_KEPT(&r, 1, 2, 3);
    run(&r, "tome", "", &in, 1);
    CHECK_INT(r.rc, IWP_EINVAL);
    CHECK(strstr(r.err.msg, "2 to 4 of 4") != NULL);
}

static double gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }

static int toy_projector(void *ctx, const float *x, int32_t n, float *y) {
    int linear = *(int *)ctx;
    for (int32_t i = 0; i < n; i++) {
        double a = (double)x[2 * i], b = (double)x[2 * i + 1];
        double g0 = gelu(a), g1 = gelu(b), g2 = gelu(a - b);
        y[2 * i] = (float)(linear ? a + 2 * b : g0 + .5 * g2 + .1);
        y[2 * i + 1] = (float)(linear ? b : g1 - .5 * g2);
    }
    return 0;
}

TEST(zooprune_example) {
    static const float x[] = {2, 0, -1, 2, 0, -3, 1, 1, 3, 2}, u[] = {1, 0, .6f, .8f};
    static const double sens[] = {1.229780, .478920, .672480, 1.226043, 1.370932};
    int linear = 0;
    struct iwp_input in = {.n = 5, .code = all_visual, .project = toy_projector};
    in.project_ctx = &linear;
    in.arr[IWP_TENSOR_VIT_FEATURES] = iwp_array_f32(x, 5, 1, 2);
    float y[10], a[64], b[64];
    static const int32_t row[] = {0, 1, 2, 3, 4};
    double s[5], w[5], near[5];
    uint8_t chosen[5] = {0};
    iwp_err err;
    toy_projector(&linear, x, 5, y);
    CHECK_INT(iwp_zoo_sensitivity(&in, &in.arr[IWP_TENSOR_VIT_FEATURES], row, 5, u, 2, .01, 2, a, b,
                                  s, &err),
              0);
    for (int i = 0; i < 5; i++)
        CHECK_NEAR(s[i], sens[i], 2e-4); /* differences of floats at h=.01 */
    float gram[5 * 32];
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) gram[i * 32 + j] = (float)ref_cos(y + 2 * i, y + 2 * j, 2);
    iwp_zoo_pick(sens, gram, 5, 3, w, near, chosen);
    CHECK(chosen[0] && !chosen[1] && !chosen[2] && chosen[3] && chosen[4]);
    CHECK_NEAR(w[0], .841761, 1e-5);
    /* the whole method, with its own directions */
    in.arr[IWP_TENSOR_EMBEDS] = iwp_array_f32(y, 5, 1, 2);
    struct result r, again;
    run(&r, "zooprune", "seed=3", &in, 3);
    CHECK(r.rc == 0 && r.s.n_keep == 3);
    run(&again, "zooprune", "seed=3", &in, 3);
    CHECK(memcmp(r.scores, again.scores, sizeof r.scores) == 0);
    run(&again, "zooprune", "seed=4", &in, 3);
    CHECK(memcmp(r.scores, again.scores, sizeof r.scores) != 0);
    /* a linear projector: equal sensitivities, max-min diversity from token 0 */
    linear = 1;
    CHECK_INT(iwp_zoo_sensitivity(&in, &in.arr[IWP_TENSOR_VIT_FEATURES], row, 5, u, 2, .01, 2, a, b,
                                  s, &err),
              0);
    for (int i = 0; i < 5; i++) CHECK_NEAR(s[i], 1.670469991, 5e-4);
    for (int i = 0; i < 5; i++) s[i] = 1.67 + 1e-9 * i;
    memset(chosen, 0, sizeof chosen);
    iwp_zoo_pick(s, gram, 5, 1, w, near, chosen);
    CHECK(chosen[0]);
    in.project = NULL;
    run(&r, "zooprune", "", &in, 3);
    CHECK_INT(r.rc, IWP_EMISSING);
    CHECK(strstr(r.err.msg, "projector") != NULL);
}

/* ---- random cases ------------------------------------------------------------------------------ */

/* A prompt of `pre` text, n visual and `post` user tokens with every array there is. */
struct prompt {
    struct iwp_input in;
    uint8_t code[MAXN + 16];
    int pre, n, s, cls, merge, rows, heads, kv, d, width, vheads, vd, vwidth;
    float *q, *k, *kr, *h, *embeds, *vq, *vk, *vf, *text;
    int64_t window[MAXN];
    int32_t unit[MAXN];
};

static float *clusters(uint64_t *seed, int rows, int width, int repeat) {
    float *x = malloc(sizeof(float) * (size_t)(rows * width)),
          *c = malloc(sizeof(float) * (size_t)(6 * width));
    for (int i = 0; i < 6 * width; i++) c[i] = test_normal(seed);
    for (int i = 0; i < rows; i++) {
        int who = (int)(test_rand(seed) % 6);
        for (int t = 0; t < width; t++)
            x[i * width + t] = c[(i % repeat ? who : who) * width + t] + .6f * test_normal(seed);
    }
    free(c);
    return x;
}

static void make_prompt(struct prompt *p, uint64_t seed, int n, int cls, int merge) {
    memset(p, 0, sizeof *p);
    p->pre = 3, p->n = n, p->s = n + 8;
    p->cls = cls, p->merge = merge, p->rows = n * merge + cls;
    p->heads = 4, p->kv = 2, p->d = 8, p->width = 20, p->vheads = 2, p->vd = 8, p->vwidth = 12;
    memset(p->code + 3, IWP_CODE_VISUAL, (size_t)n);
    memset(p->code + 3 + n, IWP_CODE_USER, 5);
    for (int i = 0; i < n; i++) p->window[i] = i;
    for (int i = n - 1; merge > 1 && i > 0; i--) {
        int j = (int)(test_rand(&seed) % (uint64_t)(i + 1));
        int64_t t = p->window[i];
        p->window[i] = p->window[j];
        p->window[j] = t;
    }
    p->q = clusters(&seed, p->s, p->heads * p->d, 1);
    p->k = clusters(&seed, p->s, p->kv * p->d, 1);
    p->kr = clusters(&seed, p->s, p->kv * p->d, 1);
    p->h = clusters(&seed, p->s, p->width, 1);
    p->embeds = clusters(&seed, p->s, p->width, 1);
    p->vq = clusters(&seed, p->rows, p->vheads * p->vd, 1);
    p->vk = clusters(&seed, p->rows, p->vheads * p->vd, 1);
    p->vf = clusters(&seed, p->rows, p->vwidth, 1);
    p->text = clusters(&seed, 2, p->vwidth, 1);
    p->in.n = p->s;
    p->in.code = p->code;
    p->in.window = p->window;
    p->in.arr[IWP_TENSOR_Q] = iwp_array_f32(p->q, p->s, p->heads, p->d);
    p->in.arr[IWP_TENSOR_K] = iwp_array_f32(p->k, p->s, p->kv, p->d);
    p->in.arr[IWP_TENSOR_K_ROPE] = iwp_array_f32(p->kr, p->s, p->kv, p->d);
    p->in.arr[IWP_TENSOR_H] = iwp_array_f32(p->h, p->s, 1, p->width);
    p->in.arr[IWP_TENSOR_EMBEDS] = iwp_array_f32(p->embeds, p->s, 1, p->width);
    p->in.arr[IWP_TENSOR_VIT_Q] = iwp_array_f32(p->vq, p->rows, p->vheads, p->vd);
    p->in.arr[IWP_TENSOR_VIT_K] = iwp_array_f32(p->vk, p->rows, p->vheads, p->vd);
    p->in.arr[IWP_TENSOR_VIT_FEATURES] = iwp_array_f32(p->vf, p->rows, 1, p->vwidth);
    p->in.arr[IWP_TENSOR_TEXT_EMBEDS] = iwp_array_f32(p->text, 2, 1, p->vwidth);
}

static void free_prompt(struct prompt *p) {
    free(p->q), free(p->k), free(p->kr), free(p->h), free(p->embeds);
    free(p->vq), free(p->vk), free(p->vf), free(p->text);
}

/* Attention, mean keys and mean features of the tokens, in raster order. */
static void tower_ref(const struct prompt *p, double *s, float *key, float *feature) {
    double a[MAXP];
    int unit[MAXP];
    for (int m = 0; m < p->n; m++)
        for (int g = 0; g < p->merge; g++)
            unit[p->cls + m * p->merge + g] = p->in.unit ? p->unit[p->window[m]] : 0;
    ref_attention(a, p->vq, p->vk, p->rows, p->vheads, p->vd, p->cls, p->in.unit ? unit : NULL);
    for (int m = 0; m < p->n; m++) {
        int to = (int)p->window[m];
        s[to] = 0;
        for (int t = 0; t < p->vd; t++) key[to * p->vd + t] = 0;
        for (int t = 0; t < p->vwidth; t++) feature[to * p->vwidth + t] = 0;
        for (int g = 0; g < p->merge; g++) {
            int row = p->cls + m * p->merge + g;
            s[to] += a[row] / p->merge;
            for (int h = 0; h < p->vheads; h++)
                for (int t = 0; t < p->vd; t++)
                    key[to * p->vd + t] += p->vk[(row * p->vheads + h) * p->vd + t];
            for (int t = 0; t < p->vwidth; t++)
                feature[to * p->vwidth + t] += p->vf[row * p->vwidth + t];
        }
    }
}

static const int sizes[] = {1, 2, 3, 7, 33, 70};
#define N_SIZE ((int)(sizeof sizes / sizeof sizes[0]))

static int next_m(int m, int n) { return m < 4 || n < 10 ? m + 1 : m + n / 6; }

TEST(random_diversity) {
    struct prompt p;
    struct result r;
    static struct ref want;
    for (int c = 0; c < 2 * N_SIZE; c++) {
        int n = sizes[c / 2];
        make_prompt(&p, 100 + (uint64_t)c, n, 0, 1);
        const float *x = p.embeds + p.pre * p.width, *kr = p.kr + p.pre * p.kv * p.d;
        double u[MAXN], score[MAXN];
        ref_euti(score, p.q, p.k, p.h, p.pre, n, p.heads, p.kv, p.d, p.width);
        for (int m = 1; m <= n; m = next_m(m, n)) {
            run(&r, "divprune", "", &p.in, m);
            ref_divprune(&want, x, n, p.width, m);
            CHECK(same(&r, &want, n, m));

            float mean[32] = {0};
            for (int i = 0; i < 5; i++)
                for (int t = 0; t < p.width; t++)
                    mean[t] += p.embeds[(p.pre + n + i) * p.width + t] / 5;
            for (int i = 0; i < n; i++) u[i] = ref_cos(x + i * p.width, mean, p.width);
            ref_relevance(u, n, c % 2);
            run(&r, "cdpruner", c % 2 ? "sign=minus" : "", &p.in, m);
            ref_cdpruner(&want, x, u, n, p.width, m);
            CHECK(same(&r, &want, n, m));

            for (int i = 0; i < n; i++)
                u[i] = (ref_cos(p.vf + i * p.vwidth, p.text, p.vwidth) +
                        ref_cos(p.vf + i * p.vwidth, p.text + p.vwidth, p.vwidth)) /
                       2;
            ref_relevance(u, n, 0);
            run(&r, "cdpruner", "relevance=joint", &p.in, m);
            ref_cdpruner(&want, x, u, n, p.width, m);
            CHECK(same(&r, &want, n, m));

            run(&r, "pact", c % 2 ? "lambda=0.8" : "", &p.in, m);
            ref_pact(&want, score, kr, n, p.kv * p.d, m, c % 2 ? .8 : .55, -1, 1.5);
            CHECK(same(&r, &want, n, m));
            CHECK(r.s.n_keep <= m);
            run(&r, "pact", "dc=0.3,alpha=1,lambda=0.6", &p.in, m);
            ref_pact(&want, score, kr, n, p.kv * p.d, m, .6, .3, 1);
            CHECK(same(&r, &want, n, m));

            if (m < n - n / 2) continue;
            run(&r, "tome", "keys=layer", &p.in, m);
            ref_tome(&want, kr, n, p.kv * p.d, n - m, 0);
            CHECK(same(&r, &want, n, m));
        }
        free_prompt(&p);
    }
}

/* A projector of two layers for rows of any width, plainly. */
static int bent_projector(void *ctx, const float *x, int32_t n, float *y) {
    const struct prompt *p = ctx;
    for (int32_t i = 0; i < n; i++)
        for (int o = 0; o < p->width; o++) {
            double s = 0;
            for (int k = 0; k < p->vwidth; k++)
                s += sin(1 + o * 3 + k * 7) * tanh((double)x[i * p->vwidth + k] * (1 + k % 3));
            y[i * p->width + o] = (float)s;
        }
    return 0;
}

/* Sensitivities and picks by straight loops; the directions are the method's own. */
TEST(random_zooprune) {
    struct prompt p;
    struct result r;
    for (int c = 0; c < N_SIZE; c++) {
        int n = sizes[c];
        make_prompt(&p, 500 + (uint64_t)c, n, 0, 1);
        p.in.project = bent_projector;
        p.in.project_ctx = &p;
        static float u[64 * 32], a[2 * 32], b[2 * 64];
        double sens[MAXN], w[MAXN], lo = INFINITY, hi = -INFINITY;
        iwp_zoo_directions(u, 64, p.vwidth, 9);
        for (int i = 0; i < n; i++) {
            sens[i] = 0;
            for (int t = 0; t < 64; t++) {
                double s = 0;
                for (int k = 0; k < p.vwidth; k++) {
                    double x = (double)p.vf[i * p.vwidth + k],
                           e = .05 * (double)u[t * p.vwidth + k];
                    a[k] = (float)(x + e);
                    a[p.vwidth + k] = (float)(x - e);
                }
                bent_projector(&p, a, 2, b);
                for (int k = 0; k < p.width; k++)
                    s += pow((double)b[k] - (double)b[p.width + k], 2);
                sens[i] += sqrt(s) / .1 / 64;
            }
            lo = fmin(lo, sens[i]);
            hi = fmax(hi, sens[i]);
        }
        const float *x = p.embeds + p.pre * p.width;
        for (int m = 1; m <= n; m = next_m(m, n)) {
            double near[MAXN];
            int chosen[MAXN] = {0}, wrong = 0;
            for (int i = 0; i < n; i++) {
                w[i] = hi - lo > 1e-6 * hi ? (sens[i] - lo) / (hi - lo + 1e-8) : 1;
                near[i] = 1;
            }
            for (int step = 0; step < m; step++) {
                int pick = -1;
                for (int i = 0; i < n; i++)
                    if (!chosen[i] && (pick < 0 || near[i] * w[i] > near[pick] * w[pick])) pick = i;
                chosen[pick] = 1;
                for (int i = 0; i < n; i++) {
                    double d = 1 - ref_cos(x + i * p.width, x + pick * p.width, p.width);
                    near[i] = step == 0 || d < near[i] ? d : near[i];
                }
            }
            run(&r, "zooprune", "seed=9,step=0.05", &p.in, m);
            CHECK_MSG(r.rc == 0 && r.s.n_keep == m, "zooprune %d of %d: %s", m, n, r.err.msg);
            for (int i = 0; i < r.s.n_keep; i++) wrong += !chosen[r.keep[i]];
            CHECK_MSG(wrong == 0, "zooprune %d of %d: %d differ", m, n, wrong);
            for (int i = 0; i < n; i++) CHECK_NEAR(r.scores[i], sens[i], 1e-4 * hi);
        }
        free_prompt(&p);
    }
}

TEST(random_encoder) {
    struct prompt p;
    struct result r;
    static struct ref want;
    for (int c = 0; c < 4 * N_SIZE; c++) {
        int n = sizes[c / 4], cls = c % 4 == 1, merge = c % 4 == 2 ? 4 : 1;
        make_prompt(&p, 300 + (uint64_t)c, n, cls, merge);
        if (c % 4 == 3) { /* two units: attention is masked between them, the budget is global */
            for (int i = 0; i < n; i++) p.unit[i] = i > n / 3;
            p.in.unit = p.unit;
        }
        double s[MAXN], w[MAXN];
        static float key[MAXN * 8], feature[MAXN * 12];
        tower_ref(&p, s, key, feature);
        for (int i = 0; i < n; i++) w[i] = sqrt(s[i] * (cls ? p.vheads : 1));
        char opt[80], *end = opt + sprintf(opt, "cls=%d,merge=%d", cls, merge);
        const float *f = merge > 1 ? p.embeds + p.pre * p.width : feature;
        int d = merge > 1 ? p.width : p.vwidth;
        for (int m = 1; m <= n; m = next_m(m, n)) {
            sprintf(end, ",alpha=0.5,mode=%s", c % 2 ? "add" : "multi");
            run(&r, "scope", opt, &p.in, m);
            ref_scope(&want, f, w, n, d, m, c % 2);
            CHECK(same(&r, &want, n, m));

            sprintf(end, ",rho=0.25,step=%d", c % 2 ? 1 : 8);
            run(&r, "vispruner", opt, &p.in, m);
            ref_vispruner(&want, s, f, n, d, m, .25, c % 2 ? 1 : 8);
            CHECK(same(&r, &want, n, m));
            sprintf(end, ",features=vit");
            run(&r, "vispruner", opt, &p.in, m);
            ref_vispruner(&want, s, feature, n, p.vwidth, m, .5, 8);
            CHECK(same(&r, &want, n, m));

            sprintf(end, ",split=%s", c % 2 ? "b" : "a");
            int contextual = c % 2 ? (int)(.05 * n) : (int)nearbyint(m * 10 / 64.0);
            contextual = contextual < 1 ? 1 : contextual;
            contextual = contextual < m - 1 ? contextual : m - 1;
            run(&r, "visionzip", opt, &p.in, m);
            ref_visionzip(&want, s, key, n, p.vd, m, contextual);
            CHECK(same(&r, &want, n, m));

            if (m < n - n / 2 || merge > 1) continue;
            run(&r, "tome", cls ? "cls=1" : "", &p.in, m);
            ref_tome(&want, key, n, p.vd, n - m, cls);
            CHECK(same(&r, &want, n, m));
        }
        free_prompt(&p);
    }
}

/* ---- what holds for all ------------------------------------------------------------------------- */

static const struct {
    const char *method, *opt;
} cases[] = {
    {"pact", ""},
    {"pact", "dc=0.2"},
    {"divprune", ""},
    {"cdpruner", ""},
    {"cdpruner", "text=all"},
    {"cdpruner", "relevance=joint"},
    {"scope", ""},
    {"scope", "features=embeds"},
    {"visionzip", ""},
    {"visionzip", "split=b"},
    {"vispruner", ""},
    {"tome", ""},
    {"tome", "keys=layer"},
};
#define N_CASE ((int)(sizeof cases / sizeof cases[0]))

static int equal(const struct result *a, const struct result *b) {
    return a->rc == 0 && b->rc == 0 && a->s.n_keep == b->s.n_keep && a->s.n_merge == b->s.n_merge &&
           memcmp(a->keep, b->keep, sizeof a->keep) == 0 &&
           memcmp(a->scores, b->scores, sizeof a->scores) == 0 &&
           memcmp(a->merge, b->merge, sizeof a->merge) == 0 &&
           memcmp(a->sizes, b->sizes, sizeof a->sizes) == 0;
}

static void params_of(struct iwp_params *p, int c, double keep) {
    iwp_err err;
    iwp_params_default(p, iwp_method_find(cases[c].method));
    CHECK_INT(iwp_params_parse(p, cases[c].opt, &err), 0);
    p->budget.keep = keep;
}

TEST(threads_and_scopes) {
    struct prompt p;
    struct iwp_params q;
    struct result a, b;
    iwp_pool *pool;
    iwp_err err;
    CHECK_INT(iwp_pool_new(&pool, 3, &err), 0);
    struct iwp_exec exec = {iwp_pool_run, pool, 3};
    make_prompt(&p, 7, 150, 0, 1);
    for (int i = 0; i < p.n; i++) p.unit[i] = i % 7 == 0 ? 4 : i / 60;
    p.in.unit = p.unit;
    for (int c = 0; c < N_CASE; c++)
        for (int scoped = 0; scoped < 2; scoped++) {
            params_of(&q, c, .6);
            q.budget.scope = scoped ? IWP_SCOPE_IMAGE : IWP_SCOPE_GLOBAL;
            run_params(&a, &q, &p.in, NULL);
            run_params(&b, &q, &p.in, &exec);
            CHECK_MSG(equal(&a, &b), "%s %s: %s", cases[c].method, cases[c].opt, a.err.msg);
            if (!scoped) continue;
            /* each unit has its own count, and nothing is merged across units */
            int n_unit[5] = {0}, n_kept[5] = {0}, exact = strcmp(cases[c].method, "pact") != 0;
            for (int i = 0; i < p.n; i++) n_unit[p.unit[i]]++;
            for (int i = 0; i < a.s.n_keep; i++) n_kept[p.unit[a.keep[i]]]++;
            for (int u = 0; u < 5 && exact; u++)
                CHECK_INT(n_kept[u], n_unit[u] ? iwp_keep_count(.6, n_unit[u]) : 0);
            for (int i = 0; i < a.s.n_merge; i++)
                CHECK(p.unit[a.merge[i].from] == p.unit[a.merge[i].to]);
        }
    iwp_pool_free(pool);
    free_prompt(&p);
}

/* The same tokens in another order: the same tokens are kept. */
TEST(permutation) {
    static const char *const methods[] = {"divprune", "cdpruner"};
    struct prompt p;
    struct result a, b;
    make_prompt(&p, 21, 60, 0, 1);
    for (int c = 0; c < 2; c++) {
        run(&a, methods[c], "", &p.in, 20);
        struct prompt r = p;
        r.embeds = malloc(sizeof(float) * (size_t)(p.s * p.width));
        memcpy(r.embeds, p.embeds, sizeof(float) * (size_t)(p.s * p.width));
        for (int i = 0; i < p.n; i++)
            memcpy(r.embeds + (p.pre + i) * p.width, p.embeds + (p.pre + i * 17 % p.n) * p.width,
                   sizeof(float) * (size_t)p.width);
        r.in.arr[IWP_TENSOR_EMBEDS].data = r.embeds;
        run(&b, methods[c], "", &r.in, 20);
        uint8_t kept[MAXN] = {0};
        for (int i = 0; i < a.s.n_keep; i++) kept[a.keep[i]] = 1;
        CHECK_INT(b.s.n_keep, 20);
        for (int i = 0; i < b.s.n_keep; i++) CHECK(kept[b.keep[i] * 17 % p.n]);
        for (int i = 0; i < p.n; i++) CHECK(a.scores[i * 17 % p.n] == b.scores[i]);
        free(r.embeds);
    }
    free_prompt(&p);
}

/* Copies score the same to the bit, wherever they stand. */
TEST(copies) {
    struct prompt p;
    struct result r;
    struct iwp_params q;
    make_prompt(&p, 33, 131, 0, 1);
    for (int i = 1; i < p.n; i += 3) {
        int to = p.pre + i, from = p.pre + (i * 5 + 2) % p.n / 3 * 3;
        memcpy(p.q + to * 32, p.q + from * 32, 32 * sizeof(float));
        memcpy(p.k + to * 16, p.k + from * 16, 16 * sizeof(float));
        memcpy(p.kr + to * 16, p.kr + from * 16, 16 * sizeof(float));
        memcpy(p.h + to * 20, p.h + from * 20, 20 * sizeof(float));
        memcpy(p.embeds + to * 20, p.embeds + from * 20, 20 * sizeof(float));
        memcpy(p.vq + i * 16, p.vq + (from - p.pre) * 16, 16 * sizeof(float));
        memcpy(p.vk + i * 16, p.vk + (from - p.pre) * 16, 16 * sizeof(float));
        memcpy(p.vf + i * 12, p.vf + (from - p.pre) * 12, 12 * sizeof(float));
    }
    for (int c = 0; c < N_CASE; c++) {
        if (strcmp(cases[c].method, "tome") == 0) continue; /* scores depend on the side */
        params_of(&q, c, .5);
        run_params(&r, &q, &p.in, NULL);
        CHECK_INT(r.rc, 0);
        for (int i = 1; i < p.n; i += 3)
            CHECK_MSG(r.scores[i] == r.scores[(i * 5 + 2) % p.n / 3 * 3], "%s %s token %d",
                      cases[c].method, cases[c].opt, i);
    }
    free_prompt(&p);
}

/* What a method does not declare may hold anything. */
TEST(undeclared_rows) {
    struct prompt p;
    struct iwp_params q;
    struct result a, b;
    make_prompt(&p, 5, 40, 0, 1);
    for (int c = 0; c < N_CASE; c++) {
        struct iwp_need need[IWP_TENSOR_COUNT];
        params_of(&q, c, .6);
        run_params(&a, &q, &p.in, NULL);
        int n = iwp_params_needs(&q, 0, need, IWP_TENSOR_COUNT);
        struct iwp_input in = p.in;
        float *spoilt[IWP_TENSOR_COUNT] = {0};
        for (int t = 0; t < IWP_TENSOR_COUNT; t++) {
            struct iwp_array *x = &in.arr[t];
            int rows = -1, wide = x->n_head * x->n_dim;
            for (int i = 0; i < n; i++)
                if (need[i].tensor == (enum iwp_tensor)t) rows = (int)need[i].rows;
            if (!x->data || rows == IWP_ROWS_ALL) continue;
            spoilt[t] = malloc(sizeof(float) * (size_t)(x->n_row * wide));
            memcpy(spoilt[t], x->data, sizeof(float) * (size_t)(x->n_row * wide));
            for (int i = 0; i < x->n_row; i++)
                for (int k = 0; k < wide; k++)
                    if (rows != IWP_ROWS_VISUAL || p.code[i] != IWP_CODE_VISUAL)
                        spoilt[t][i * wide + k] = NAN;
            x->data = spoilt[t];
        }
        run_params(&b, &q, &in, NULL);
        CHECK_MSG(equal(&a, &b), "%s %s", cases[c].method, cases[c].opt);
        /* and what it declares must be finite */
        for (int i = 0; i < n; i++) {
            float *x = (float *)(uintptr_t)p.in.arr[need[i].tensor].data, old;
            int at = (need[i].tensor < IWP_TENSOR_VIT_FEATURES ? p.pre + 2 : 1) *
                     p.in.arr[need[i].tensor].n_dim * p.in.arr[need[i].tensor].n_head;
            old = x[at];
            x[at] = i % 2 ? INFINITY : NAN;
            run_params(&b, &q, &p.in, NULL);
            CHECK_MSG(b.rc == IWP_EINVAL && strstr(b.err.msg, iwp_tensor_name(need[i].tensor)),
                      "%s %s %s: %d %s", cases[c].method, cases[c].opt,
                      iwp_tensor_name(need[i].tensor), b.rc, b.err.msg);
            x[at] = old;
        }
        for (int t = 0; t < IWP_TENSOR_COUNT; t++) free(spoilt[t]);
    }
    free_prompt(&p);
}

TEST(refusals) {
    struct prompt p;
    struct result r;
    make_prompt(&p, 9, 12, 0, 1);
    run(&r, "scope", "cls=1", &p.in, 4);
    CHECK(r.rc == IWP_EINVAL && strstr(r.err.msg, "vit_q has 12 rows"));
    run(&r, "visionzip", "merge=4", &p.in, 4);
    CHECK(r.rc == IWP_EINVAL && strstr(r.err.msg, "make 48"));
    run(&r, "tome", "", &p.in, 5);
    CHECK(r.rc == IWP_EINVAL && strstr(r.err.msg, "6 to 12 of 12"));
    run(&r, "pact", "alpha=0.5", &p.in, 5);
    CHECK(r.rc == IWP_EINVAL && strstr(r.err.msg, "alpha"));
    p.in.arr[IWP_TENSOR_VIT_K].data = NULL;
    run(&r, "vispruner", "", &p.in, 5);
    CHECK(r.rc == IWP_EMISSING && strstr(r.err.msg, "vit_k"));
    memset(p.code + p.pre + p.n, IWP_CODE_TEXT, 5);
    run(&r, "cdpruner", "", &p.in, 4);
    CHECK(r.rc == IWP_EINVAL && strstr(r.err.msg, "text=user"));
    run(&r, "cdpruner", "text=all", &p.in, 4);
    CHECK_INT(r.rc, 0);
    free_prompt(&p);
}

/* Separators have no encoder row: exempt exactly when the options make the method read one. */
TEST(separators) {
    static const struct {
        const char *method, *opt;
        int n_keep;
    } want[] = {{"tome", "", 7 + 2},
                {"tome", "keys=layer", 7},
                {"cdpruner", "", 7},
                {"divprune", "", 7},
                {"cdpruner", "relevance=joint", 7 + 2},
                {"visionzip", "", 7 + 2}};
    struct prompt p;
    struct result r;
    make_prompt(&p, 4, 10, 0, 1);
    p.code[p.pre + 4] = p.code[p.pre + 9] = IWP_CODE_SEPARATOR;
    for (int t = IWP_TENSOR_VIT_FEATURES; t <= IWP_TENSOR_VIT_K; t++) p.in.arr[t].n_row = 8;
    p.in.window = NULL;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        run(&r, want[i].method, want[i].opt, &p.in, 7);
        CHECK_INT(r.rc, 0);
        CHECK_MSG(r.s.n_keep == want[i].n_keep, "%s %s: %d", want[i].method, want[i].opt,
                  r.s.n_keep);
    }
    free_prompt(&p);
}

TEST(tome_plan) {
    struct iwp_params p;
    struct iwp_stage st[IWP_STAGE_MAX];
    struct iwp_plan_shape s = {.n_layer = 28, .n_visual = 729, .n_block = 26};
    iwp_err err;
    iwp_params_default(&p, iwp_method_find("tome"));
    for (int m = 1; m <= 729; m += 52) {
        p.budget.n_keep = m;
        int n = iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), left = 729;
        CHECK(n >= 1 && n <= 26);
        for (int i = 0; i < n; i++) {
            CHECK(st[i].site == IWP_SITE_TOWER && st[i].at >= i && st[i].at < 26);
            CHECK(left - st[i].n_keep <= left / 2);
            left = st[i].n_keep;
        }
        CHECK_INT(left, m);
    }
    /* the authors' constant r (4.4): 12 blocks of 8 */
    CHECK_INT(iwp_params_set(&p, "r", "8", &err), 0);
    s.n_block = 12;
    p.budget.n_keep = 1;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), 12);
    CHECK_INT(st[11].n_keep, 729 - 96);
    /* falling (4.4): the last block merges nothing, so there are 11 stages */
    static const int falling[] = {16, 14, 13, 11, 10, 8, 7, 5, 4, 2, 1};
    int left = 729;
    CHECK_INT(iwp_params_set(&p, "inflection", "-1", &err), 0);
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), 11);
    for (int i = 0; i < 11; i++) {
        CHECK_INT(st[i].at, i);
        CHECK_INT(left - st[i].n_keep, falling[i]);
        left = st[i].n_keep;
    }
    CHECK_INT(left, 729 - 91);
    CHECK_INT(iwp_params_set(&p, "inflection", "1", &err), 0); /* rising: 0 1 2 4 … 16 */
    int n_rising = iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err);
    CHECK_INT(st[n_rising - 1].at, 11);
    CHECK_INT(st[n_rising - 2].n_keep - st[n_rising - 1].n_keep, 16);
    s.n_block = 1; /* one block has no slope */
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), 1);
    CHECK_INT(st[0].n_keep, 729 - 8);
    CHECK_INT(iwp_params_set(&p, "r", "-1", &err), 0);
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), IWP_EINVAL);
    CHECK(strstr(err.msg, "inflection") != NULL);
    CHECK_INT(iwp_params_set(&p, "inflection", "0", &err), 0);
    CHECK_INT(iwp_params_set(&p, "r", "-1", &err), 0);
    s.n_block = 0; /* one step after the tower */
    p.budget.n_keep = 364;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), IWP_EINVAL);
    CHECK(strstr(err.msg, "365 to 729") != NULL);
    p.budget.n_keep = 365;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), 1);
    CHECK_INT(st[0].n_keep, 365);
    /* averaged over the layers: the numbers of methods-encoder 4.5 */
    CHECK_INT(iwp_params_set(&p, "keys", "layer", &err), 0);
    s.n_visual = 2000;
    p.budget.n_keep = 0;
    p.budget.keep = 1 - (1 - .353) * 24 / 28;
    p.budget.rule = IWP_RULE_LAYER_AVERAGE;
    int n = iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err);
    CHECK_INT(n, 28);
    CHECK_INT(st[0].n_keep, 2000 - 113);
    CHECK_INT(st[26].n_keep - st[27].n_keep, 5);
    CHECK_INT(st[27].n_keep, 348);
    double sum = 0;
    for (int l = 0; l < n; l++) sum += st[l].n_keep;
    CHECK_NEAR(sum / 28 / 2000, .44175, 1e-5);
    p.budget.keep = .2;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), IWP_EINVAL);
}

/* One number for all CPU paths: this program also runs with IWP_CPU set to each of them. */
TEST(golden_hash) {
    static const uint64_t want[] = {
        0xf576b9dfe4ec35eeULL, 0xf9966f39e583a911ULL, 0xc22a2fa31112003eULL, 0x7cc9307b00f459c3ULL,
        0x982b31a9d8ff7aadULL, 0xc59c8a90a1006161ULL, 0x87004f132a8df26eULL, 0xfa4215fcf6f63062ULL,
        0xf1ae34c006c4c296ULL, 0xb590e29a6da50f4dULL, 0xad263d2a2db7c6c8ULL, 0x6aada62e5ffa2301ULL,
        0x8f60a037bb1d7770ULL};
    struct prompt p;
    struct iwp_params q;
    struct result r;
    make_prompt(&p, 77, 150, 0, 1);
    for (int c = 0; c < N_CASE; c++) {
        params_of(&q, c, .55);
        run_params(&r, &q, &p.in, NULL);
        uint64_t got = iwp_keep_hash(r.keep, r.s.n_keep);
        for (int i = 0; i < p.n; i++)
            got = (got ^ (uint64_t)(int64_t)(r.scores[i] * 1e3f)) * 0x100000001b3ULL;
        CHECK_MSG(c < (int)(sizeof want / sizeof want[0]) && got == want[c], "%s %s: 0x%016llx",
                  cases[c].method, cases[c].opt, (unsigned long long)got);
    }
    free_prompt(&p);
}

int main(void) {
    iwp_err err;
    if (iwp_cpu_check(&err) < 0) {
        fprintf(stderr, "skipped: %s\n", err.msg);
        return 77;
    }
    test_pact_example();
    test_divprune_example();
    test_cdpruner_example();
    test_scope_example();
    test_visionzip_cls_example();
    test_visionzip_counts();
    test_visionzip_received_example();
    test_visionzip_merge_example();
    test_vispruner_example();
    test_tome_example();
    test_zooprune_example();
    test_random_diversity();
    test_random_zooprune();
    test_random_encoder();
    test_threads_and_scopes();
    test_permutation();
    test_copies();
    test_undeclared_rows();
    test_refusals();
    test_separators();
    test_tome_plan();
    test_golden_hash();
    return test_done();
}
