/* Bulk products of quantised weights beside ggml's own on the same weights in the same layout, both against
 * double arithmetic on the numbers the weights stand for: factors must not be further off than ggml's
 * 8-bit activations (which rows of q4_0 and q3_K to q6_K are here too, but not with AMX), than bf16 ones for bf16
 * weights, and 1e-5 for f16 ones.  Results may not depend on the number of threads nor on which rows go together. */
#include "model/bulk.h"
#include "kern/cpu.h"
#include "kern/gemm.h"

#include <stdlib.h>

#include "test.h"

enum { K = 512, M = 192, N = 100, FF = 256 };

struct weight {
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *t;
    float *exact; /* [m][k] */
};

static uint64_t seed = 3;

static struct weight weight_new(const struct iwp_backend *b, enum ggml_type type, int64_t k,
                                int64_t m) {
    const int64_t ne[2] = {k, m};
    struct weight w = {
        .ctx = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * 2, NULL, true})};
    w.t = ggml_new_tensor_2d(w.ctx, type, k, m);
    w.buffer = ggml_backend_alloc_ctx_tensors_from_buft(
        w.ctx, iwp_backend_matmul_buft(b, iwp_backend_cpu(b), type, 2, ne));
    w.exact = malloc((size_t)(k * m) * sizeof *w.exact);
    void *q = malloc(ggml_nbytes(w.t));
    for (int64_t i = 0; i < k * m; i++) w.exact[i] = test_normal(&seed) * 0.05f;
    ggml_quantize_chunk(type, w.exact, q, 0, m, k, NULL);
    if (type != GGML_TYPE_F32) ggml_get_type_traits(type)->to_float(q, w.exact, k * m);
    ggml_backend_tensor_set(w.t, q, 0, ggml_nbytes(w.t));
    free(q);
    return w;
}

static void weight_free(struct weight *w) {
    ggml_backend_buffer_free(w->buffer);
    ggml_free(w->ctx);
    free(w->exact);
}

/* What is computed of n rows x: a product, or gate, up and down with the residual. */
struct job {
    struct iwp_bulk *bulk; /* NULL: by ggml */
    const struct weight *w, *gate, *up, *down;
};

static struct ggml_tensor *build(const struct job *j, struct ggml_context *ctx,
                                 struct ggml_tensor *x) {
    struct iwp_bulk_rows rows = {0};
    if (j->bulk && j->w && iwp_bulk_few(j->bulk, j->w->t, x->ne[1]))
        return iwp_bulk_few_linear(j->bulk, ctx, x, j->w->t);
    if (j->bulk)
        rows = iwp_bulk_rows(j->bulk, ctx, x, NULL, 0,
                             iwp_bulk_kind(j->bulk, j->w ? j->w->t : j->up->t));
    if (j->w)
        return j->bulk ? iwp_bulk_linear(j->bulk, ctx, rows, j->w->t, NULL, NULL)
                       : ggml_mul_mat(ctx, j->w->t, x);
    if (!j->bulk) {
        struct ggml_tensor *h = ggml_swiglu_split(ctx, ggml_mul_mat(ctx, j->gate->t, x),
                                                  ggml_mul_mat(ctx, j->up->t, x));
        return ggml_add(ctx, ggml_mul_mat(ctx, j->down->t, h), x);
    }
    struct ggml_tensor *const gate[2] = {j->gate->t, NULL}, *const up[2] = {j->up->t, NULL};
    const struct iwp_bulk_rows h =
        iwp_bulk_gated(j->bulk, ctx, rows, gate, up, iwp_bulk_kind(j->bulk, j->down->t));
    return iwp_bulk_linear(j->bulk, ctx, h, j->down->t, NULL, x);
}

static void run(struct iwp_backend *b, const struct job *j, const float *in, int n, float *out) {
    struct iwp_sched *s;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    iwp_err err = {0};
    CHECK_INT(iwp_sched_new(&s, b, 32, &err), 0);
    CHECK_INT(iwp_sched_begin(s, &ctx, &graph, &err), 0);
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, K, n);
    ggml_set_input(x);
    struct ggml_tensor *y = build(j, ctx, x);
    ggml_set_output(y);
    ggml_build_forward_expand(graph, y);
    CHECK_MSG(iwp_sched_alloc(s, &err) == 0, "%s", err.msg);
    ggml_backend_tensor_set(x, in, 0, ggml_nbytes(x));
    CHECK_MSG(iwp_sched_compute(s, &err) == 0, "%s", err.msg);
    ggml_backend_tensor_get(y, out, 0, ggml_nbytes(y));
    iwp_sched_free(s);
}

static double dot(const float *w, const double *x, int k) {
    double s = 0;
    for (int i = 0; i < k; i++) s += (double)w[i] * x[i];
    return s;
}

static void exactly(const struct job *j, const float *in, double *out) {
    static double x[K], h[FF];
    for (int r = 0; r < N; r++) {
        for (int i = 0; i < K; i++) x[i] = in[r * K + i];
        for (int c = 0; j->w && c < M; c++) out[r * M + c] = dot(j->w->exact + c * K, x, K);
        for (int c = 0; !j->w && c < FF; c++) {
            const double g = dot(j->gate->exact + c * K, x, K);
            h[c] = g / (1 + exp(-g)) * dot(j->up->exact + c * K, x, K);
        }
        for (int c = 0; !j->w && c < K; c++)
            out[r * K + c] = dot(j->down->exact + c * FF, h, FF) + x[c];
    }
}

static double off(const float *got, const double *want, int n) {
    double e = 0, s = 0;
    for (int i = 0; i < n; i++) {
        e += (got[i] - want[i]) * (got[i] - want[i]);
        s += want[i] * want[i];
    }
    return sqrt(e / s);
}

/* Few rows of q8_0 weights: 16 bits of each, where ggml takes 8. */
static void check_few(struct iwp_backend *b, struct iwp_bulk *u) {
    static float in[N * K], own[N * M], part[N * M], ggml[N * M];
    static double want[N * M];
    struct weight w = weight_new(b, GGML_TYPE_Q8_0, K, M),
                  other = weight_new(b, GGML_TYPE_Q4_0, K, M);
    for (int i = 0; i < N * K; i++) in[i] = test_normal(&seed);
    CHECK(!iwp_bulk_few(u, other.t, 1) && !iwp_bulk_few(NULL, w.t, 1));
    struct weight wide = weight_new(b, GGML_TYPE_Q8_0, 18944, IWP_GEMM_SIDE); /* a 7B model's */
    struct job j = {.w = &w, .bulk = u};
    exactly(&j, in, want);
    /* Without AMX no number of rows is left to ggml: a prompt's answer would depend on how it is cut. */
    const int most = iwp_gemm_get()->fine ? iwp_bulk_from(u, w.t) - 1 : 8;
    CHECK(most < N && !iwp_bulk_few(u, w.t, most + 1));
    for (int n = 1; n <= most; n++)
        CHECK_MSG(iwp_bulk_few(u, w.t, n) && iwp_bulk_few(u, wide.t, n), "%d rows are not taken",
                  n);
    for (int n = 1; n <= most; n += n == 1 ? 4 : 3) {
        run(b, &j, in, n, own);
        iwp_backend_size_threads(b, 0); /* one thread */
        run(b, &j, in, n, part);
        iwp_backend_size_threads(b, 1e12);
        CHECK_MSG(memcmp(part, own, (size_t)(n * M) * sizeof *own) == 0, "%d rows: threads", n);
        run(b, &(struct job){.w = &w}, in, n, ggml);
        const double a = off(own, want, n * M), o = off(ggml, want, n * M);
        CHECK_MSG(a < 5e-5 && a < o / 50, "%d rows: %g off, ggml's %g", n, a, o);
        printf("q8_0, %d rows: relative L2 %.6f, ggml's %.5f\n", n, a, o);
    }
    weight_free(&w), weight_free(&other), weight_free(&wide);
}

/* From how many rows on bf16 weights are ours depends on the instructions of ggml's build, which IWP_CPU does not
 * hide. */
static void check_bf16(struct iwp_backend *b, struct iwp_bulk *u) {
    struct weight w = weight_new(b, GGML_TYPE_BF16, K, M);
    const bool system = strcmp(IWP_GGML_CPU, "system") == 0, /* built elsewhere */
        has = strcmp(IWP_GGML_CPU, "avx2") != 0 && iwp_cpu_features_all() & IWP_CPU_BF16;
    if (!system) CHECK_INT(iwp_backend_cpu_has(b, "AVX512_BF16"), has);
    if (!system && iwp_gemm_get()->fine) CHECK_INT(iwp_bulk_from(u, w.t), has ? 192 : 64);
    weight_free(&w);
}

/* Gate, up and down of three types: rows before down are what it needs. */
static void check(struct iwp_backend *b, struct iwp_bulk *u, enum ggml_type type_gate,
                  enum ggml_type type, enum ggml_type type_down) {
    static float in[N * K], own[N * K], ggml[N * K], part[N * K];
    static double want[N * K];
    struct weight w = weight_new(b, type, K, M), gate = weight_new(b, type_gate, K, FF),
                  up = weight_new(b, type, K, FF), down = weight_new(b, type_down, FF, K);
    for (int i = 0; i < N * K; i++) in[i] = test_normal(&seed);
    CHECK_MSG(iwp_bulk_from(u, w.t) > 0, "%s is not taken", ggml_type_name(type));
    for (int mlp = 0; mlp < 2; mlp++) {
        struct job j =
            mlp ? (struct job){u, NULL, &gate, &up, &down} : (struct job){.bulk = u, .w = &w};
        const int m = mlp ? K : M;
        run(b, &j, in, N, own);
        /* The same rows in other company. */
        run(b, &j, in + 3 * K, 65, part);
        CHECK_MSG(memcmp(part, own + 3 * m, 65 * (size_t)m * sizeof *own) == 0,
                  "%s mlp %d: a row depends on its neighbours", ggml_type_name(type), mlp);
        iwp_backend_size_threads(b, 0); /* one thread */
        run(b, &j, in, N, part);
        iwp_backend_size_threads(b, 1e12);
        CHECK_MSG(memcmp(part, own, N * (size_t)m * sizeof *own) == 0,
                  "%s mlp %d: depends on threads", ggml_type_name(type), mlp);
        j.bulk = NULL;
        run(b, &j, in, N, ggml);
        exactly(&j, in, want);
        const double a = off(own, want, N * m), o = off(ggml, want, N * m);
        CHECK_MSG(a < 7e-3 && (a < 1.01 * o || a < 1e-5), "%s mlp %d: %g off, ggml's %g",
                  ggml_type_name(type), mlp, a, o);
        if (mlp)
            printf("gate %s, up %s, down %s", ggml_type_name(type_gate), ggml_type_name(type),
                   ggml_type_name(type_down));
        else
            printf("%s", ggml_type_name(type));
        printf(": relative L2 %.5f, ggml's %.5f\n", a, o);
    }
    weight_free(&w), weight_free(&gate), weight_free(&up), weight_free(&down);
}

int main(void) {
    static const enum ggml_type types[] = {
        GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
        GGML_TYPE_Q6_K, GGML_TYPE_Q5_0, GGML_TYPE_Q3_K, GGML_TYPE_BF16, GGML_TYPE_F16};
    enum { ALL = sizeof types / sizeof types[0] };
    struct iwp_backend *b;
    struct iwp_bulk *u;
    iwp_err err = {0};
    CHECK_INT(iwp_backend_new(&b, &(struct iwp_backend_params){.n_thread = 2}, &err), 0);
    CHECK_INT(iwp_bulk_new(&u, b, &err), 0);
    if (!u) puts("products of many rows stay with ggml here");
    for (size_t i = 0; u && i < ALL; i++) check(b, u, types[i], types[i], types[i]);
    if (u) {
        check(b, u, GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K);
        check(b, u, GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0);
        check(b, u, GGML_TYPE_F16, GGML_TYPE_F16, GGML_TYPE_Q4_0);
        check(b, u, GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, GGML_TYPE_F16);
        check(b, u, GGML_TYPE_Q4_K, GGML_TYPE_Q4_0, GGML_TYPE_Q4_0);
        check(b, u, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q4_0);
        check(b, u, GGML_TYPE_Q6_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K);
        check(b, u, GGML_TYPE_Q5_K, GGML_TYPE_Q3_K, GGML_TYPE_Q6_K);
    }
    if (u) check_few(b, u);
    if (u) check_bf16(b, u);
    struct weight exact = weight_new(b, GGML_TYPE_F32, K, M);
    CHECK(iwp_bulk_from(u, exact.t) == 0); /* ggml rounds nothing there */
    weight_free(&exact);
    struct iwp_backend two = *b; /* another device could be handed a custom op */
    struct iwp_bulk *none;
    two.n_device = 2;
    CHECK_INT(iwp_bulk_new(&none, &two, &err), 0);
    CHECK(none == NULL);
    iwp_bulk_free(u);
    iwp_backend_free(b);
    return test_done();
}
