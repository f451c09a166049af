/* Bulk products as custom nodes: see bulk.h. */
#include "model/bulk.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "kern/gemm.h"
#include "model/deal.h"

static const struct {
    enum ggml_type type;
    enum iwp_gemm_form form;
} forms[] = {
    {GGML_TYPE_Q4_0, IWP_GEMM_Q4_0},    {GGML_TYPE_Q4_1, IWP_GEMM_Q4_1},
    {GGML_TYPE_Q8_0, IWP_GEMM_Q8_0},    {GGML_TYPE_Q4_K, IWP_GEMM_Q4_K},
    {GGML_TYPE_Q5_K, IWP_GEMM_Q5_K},    {GGML_TYPE_Q6_K, IWP_GEMM_Q6_K},
    {GGML_TYPE_F16, IWP_GEMM_FILE_F16},
};
enum { N_FORM = sizeof forms / sizeof forms[0], ALIGN = 64 };

struct iwp_bulk {
    const struct iwp_gemm *g;
    ggml_backend_buffer_type_t buft;  /* of the layout that g reads; NULL: ggml has it not */
    ggml_backend_buffer_type_t plain; /* of weights as in the file */
    int32_t n_thread;
    bool ggml_bf16; /* ggml multiplies bf16 with instructions for that, twice as fast as others */
    bool tried[N_FORM], known[N_FORM];
    void **scratch; /* [n_thread] */
};

static int form_of(enum ggml_type type) {
    for (int i = 0; i < N_FORM; i++)
        if (forms[i].type == type) return i;
    return -1;
}

/* ---- does the layout mean what gemm.h says? ----------------------------------------------------- */

enum { TRY_COLS = 64, TRY_K = 512 };

/* Random numbers through ggml's conversion and our reader, beside the plain ones. */
static bool same_numbers(const struct iwp_gemm *g, const struct ggml_tensor *t,
                         const uint8_t *plain, enum iwp_gemm_form form) {
    float *want = malloc(TRY_COLS * TRY_K * sizeof *want);
    void *got = aligned_alloc(ALIGN, iwp_gemm_bulk_scratch(g)); /* has room for panels */
    const struct iwp_gemm_quant w = {
        .w = t->data, .form = form, .k = TRY_K, .m = TRY_COLS, .row = t->nb[1]};
    bool same = want && got;
    if (same) {
        ggml_get_type_traits(t->type)->to_float(plain, want, TRY_COLS * TRY_K);
        g->read(got, &w, 0, TRY_COLS, 0, TRY_K);
    }
    for (int32_t j = 0; same && j < TRY_COLS; j++)
        for (int32_t i = 0; same && i < TRY_K; i++) {
            const float a = want[j * TRY_K + i], b = iwp_gemm_weight(g, form, got, TRY_K, j, i);
            same = fabsf(a - b) <= 0x1p-8f * fabsf(a) + 0x1p-11f;
        }
    free(want);
    free(got);
    return same;
}

static bool try_form(const struct iwp_bulk *u, int i) {
    struct ggml_context *ctx =
        ggml_init((struct ggml_init_params){ggml_tensor_overhead() * 2, NULL, true});
    if (!ctx) return false;
    struct ggml_tensor *t = ggml_new_tensor_2d(ctx, forms[i].type, TRY_K, TRY_COLS);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, u->buft);
    float *x = malloc(TRY_COLS * TRY_K * sizeof *x);
    uint8_t *plain = malloc(ggml_nbytes(t));
    bool same = buffer && x && plain;
    uint32_t seed = 1;
    for (int j = 0; same && j < TRY_COLS * TRY_K; j++) {
        seed = seed * 1664525 + 1013904223;
        x[j] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    if (same) {
        ggml_quantize_chunk(t->type, x, plain, 0, TRY_COLS, TRY_K, NULL);
        ggml_backend_tensor_set(t, plain, 0, ggml_nbytes(t));
        same = same_numbers(u->g, t, plain, forms[i].form);
    }
    free(x);
    free(plain);
    if (buffer) ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    iwp_log(IWP_LOG_DEBUG, "%s weights: many rows at once %s", ggml_type_name(forms[i].type),
            same ? "by our own products" : "by ggml, whose layout is not the one we know");
    return same;
}

/* ---- life ---------------------------------------------------------------------------------------- */

static ggml_backend_buffer_type_t layout(const struct iwp_backend *b, const char *name) {
    for (int32_t i = 0; i < b->n_extra; i++)
        if (strcmp(ggml_backend_buft_name(b->extra[i]), name) == 0) return b->extra[i];
    return NULL;
}

int iwp_bulk_new(struct iwp_bulk **out, const struct iwp_backend *b, iwp_err *err) {
    *out = NULL;
    const struct iwp_gemm *g = iwp_gemm_get();
    if (!g || b->n_device > 1) return 0;
    ggml_backend_buffer_type_t buft = layout(b, g->layout);
    if (!buft && !(g->forms & 1u << IWP_GEMM_FILE)) return 0;
    struct iwp_bulk *u = calloc(1, sizeof *u);
    IWP_REQUIRE(u, err, IWP_ENOMEM, "out of memory");
    u->g = g;
    u->buft = buft;
    u->plain = b->buft[iwp_backend_cpu(b)];
    u->n_thread = b->n_thread;
    u->ggml_bf16 = iwp_backend_cpu_has(b, "AVX512_BF16");
    u->scratch = calloc((size_t)u->n_thread, sizeof *u->scratch);
    bool enough = u->scratch != NULL;
    for (int32_t i = 0; enough && i < u->n_thread; i++)
        enough = (u->scratch[i] = aligned_alloc(ALIGN, iwp_gemm_bulk_scratch(g))) != NULL;
    if (!enough) {
        iwp_bulk_free(u);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    *out = u;
    return 0;
}

void iwp_bulk_free(struct iwp_bulk *u) {
    if (!u) return;
    for (int32_t i = 0; u->scratch && i < u->n_thread; i++) free(u->scratch[i]);
    free(u->scratch);
    free(u);
}

static enum iwp_gemm_form form_of_file(enum ggml_type type) {
    switch (type) {
    case GGML_TYPE_Q8_0: return IWP_GEMM_FILE_Q8_0;
    case GGML_TYPE_F16: return IWP_GEMM_FILE_F16;
    case GGML_TYPE_BF16: return IWP_GEMM_FILE_BF16;
    case GGML_TYPE_Q3_K: return IWP_GEMM_FILE_Q3_K;
    case GGML_TYPE_Q5_K: return IWP_GEMM_FILE_Q5_K;
    case GGML_TYPE_Q6_K: return IWP_GEMM_FILE_Q6_K;
    default: return IWP_GEMM_FILE;
    }
}

/* How w lies: false when it is not read here. */
static bool find_form(struct iwp_bulk *u, const struct ggml_tensor *w, enum iwp_gemm_form *form) {
    const ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(w->buffer);
    const int i = form_of(w->type);
    if (w->ne[0] % IWP_GEMM_SIDE) return false;
    if (buft == u->plain) {
        *form = form_of_file(w->type);
        if (!(u->g->forms & 1u << *form)) *form = IWP_GEMM_FILE;
        /* f32 ones stay with ggml, which multiplies them without rounding. */
        return (u->g->forms & 1u << *form) && w->type != GGML_TYPE_F32 &&
               ggml_get_type_traits(w->type)->to_float;
    }
    if (!u->buft || buft != u->buft || i < 0) return false;
    *form = forms[i].form;
    if (!(u->g->forms & 1u << *form)) return false;
    if (!u->tried[i]) u->known[i] = try_form(u, i);
    u->tried[i] = true;
    return u->known[i];
}

int32_t iwp_bulk_from(struct iwp_bulk *u, const struct ggml_tensor *w) {
    enum iwp_gemm_form form;
    if (!u || !w || !w->buffer || w->ne[1] % IWP_GEMM_SIDE || !find_form(u, w, &form)) return 0;
    const bool amx = !u->g->fine;
    switch (form) { /* where they overtake ggml's (docs/SPEED.md) */
    case IWP_GEMM_Q4_0: return amx ? 48 : 16;
    case IWP_GEMM_Q8_0:
    case IWP_GEMM_FILE_Q8_0: return 32;
    case IWP_GEMM_FILE_F16: return amx ? 24 : 64;
    case IWP_GEMM_FILE_BF16: return amx ? 24 : u->ggml_bf16 ? 192 : 64;
    case IWP_GEMM_FILE_Q3_K:
    case IWP_GEMM_FILE_Q5_K:
    case IWP_GEMM_FILE_Q6_K: return 16;
    case IWP_GEMM_FILE: return amx ? 64 : w->type == GGML_TYPE_Q2_K ? 96 : 48;
    default: return amx ? 48 : 32;
    }
}

enum iwp_gemm_kind iwp_bulk_kind(struct iwp_bulk *u, const struct ggml_tensor *w) {
    enum iwp_gemm_form form;
    if (!u->g->fine && w->type == GGML_TYPE_F16) return IWP_GEMM_SPLIT;
    return find_form(u, w, &form) && u->g->bytes & 1u << form ? IWP_GEMM_BYTES : IWP_GEMM_PLAIN;
}

bool iwp_bulk_few(struct iwp_bulk *u, const struct ggml_tensor *w, int64_t n) {
    /* ggml's AMX tiles overtake soon.  Elsewhere no rows are left to ggml, which would make an answer depend on
     * how its prompt is cut. */
    enum { AMX = 8 };
    enum iwp_gemm_form form;
    return u && w->buffer && n <= (u->g->fine ? IWP_GEMM_FEW_ROWS : AMX) &&
           w->ne[0] <= IWP_GEMM_FEW_K && w->ne[1] % IWP_GEMM_SIDE == 0 && find_form(u, w, &form) &&
           (form == IWP_GEMM_Q8_0 || form == IWP_GEMM_FILE_Q8_0);
}

enum iwp_bulk_by iwp_bulk_choose(struct iwp_bulk *u, const struct ggml_tensor *w, int64_t n) {
    const int32_t from = iwp_bulk_from(u, w);
    if (from && n >= from) return IWP_BULK_MANY;
    return iwp_bulk_few(u, w, n) ? IWP_BULK_FEW : IWP_BULK_GGML;
}

/* ---- nodes --------------------------------------------------------------------------------------- */

struct node {
    struct iwp_bulk *bulk;
    struct iwp_deal deal;
    int32_t n, k;                      /* of the rows that are read */
    enum iwp_gemm_kind kind, out_kind; /* of them and of those that are made */
    struct iwp_gemm_norm norm;         /* making rows */
    int32_t cols;                      /* of a unit of a product */
    struct iwp_gemm_quant mat, gate;
};

static struct node *node_new(struct iwp_bulk *u, struct ggml_context *ctx, int32_t n, int32_t k,
                             enum iwp_gemm_kind kind) {
    struct node *t = ggml_new_buffer(ctx, sizeof *t);
    memset(t, 0, sizeof *t);
    t->bulk = u;
    t->n = n;
    t->k = k;
    t->kind = kind;
    return t;
}

static void *packed(const struct ggml_tensor *t) {
    return (void *)(((uintptr_t)t->data + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
}

static struct iwp_bulk_rows rows_node(struct ggml_context *ctx, struct ggml_tensor *src, int32_t n,
                                      int32_t k, ggml_custom_op_t run, struct node *node) {
    const size_t size = iwp_gemm_rows_size(node->bulk->g, node->out_kind, n, k) + ALIGN;
    return (struct iwp_bulk_rows){ggml_custom_4d(ctx, GGML_TYPE_I8, (int64_t)size, 1, 1, 1, &src, 1,
                                                 run, GGML_N_TASKS_MAX, node),
                                  k, n, node->out_kind};
}

static void run_rows(struct ggml_tensor *y, int ith, int nth, void *user) {
    (void)ith;
    struct node *t = user;
    const struct ggml_tensor *x = y->src[0];
    const int64_t stride = (int64_t)(x->nb[1] / sizeof(float));
    const struct iwp_gemm *g = t->bulk->g;
    const size_t lo =
        t->out_kind == IWP_GEMM_SPLIT ? iwp_gemm_size(g, (size_t)t->n, (size_t)t->k) : 0;
    for (int32_t u; (u = iwp_deal_take(&t->deal, nth)) >= 0;) {
        const int32_t n = t->n - u * 32 < 32 ? t->n - u * 32 : 32;
        if (t->out_kind == IWP_GEMM_BYTES)
            g->pack_rows8(packed(y), x->data, stride, u * 32, n, t->k, &t->norm);
        else
            g->pack_rows(packed(y), lo, x->data, stride, u * 32, n, t->k, &t->norm);
    }
}

struct iwp_bulk_rows iwp_bulk_rows(struct iwp_bulk *u, struct ggml_context *ctx,
                                   struct ggml_tensor *x, struct ggml_tensor *w, float eps,
                                   enum iwp_gemm_kind kind) {
    const int32_t n = (int32_t)x->ne[1], k = (int32_t)x->ne[0];
    struct node *t = node_new(u, ctx, n, k, IWP_GEMM_PLAIN);
    t->out_kind = kind;
    if (w) t->norm = (struct iwp_gemm_norm){w->data, NULL, eps, true};
    t->deal.n_unit = (n + 31) / 32;
    return rows_node(ctx, x, n, k, run_rows, t);
}

static struct iwp_gemm_quant quant(struct iwp_bulk *u, const struct ggml_tensor *w,
                                   const struct ggml_tensor *b) {
    struct iwp_gemm_quant q = {.w = w->data,
                               .bias = b ? b->data : NULL,
                               .k = (int32_t)w->ne[0],
                               .m = (int32_t)w->ne[1],
                               .row = w->nb[1],
                               .floats = ggml_get_type_traits(w->type)->to_float};
    const bool found = find_form(u, w, &q.form);
    assert(found);
    (void)found;
    return q;
}

/* Units of columns, multiples of `least`: as wide as the kernel likes, but two for every thread, and so that
 * the threads end together (18 panels for two of them: six units of three, not five of four).  Every unit
 * reads all rows, which is taken to cost as much as a panel. */
static void deal(struct node *t, int32_t least, int32_t most) {
    const int32_t m = t->mat.m, n = t->bulk->n_thread, share = m / (2 * n) / least * least;
    const int32_t widest = share < least ? least : share < most ? share : most;
    int32_t shortest = INT32_MAX;
    for (int32_t cols = widest; cols > 0; cols -= least) {
        const int32_t units = (m + cols - 1) / cols, longest = (units + n - 1) / n * (cols + 32);
        if (longest >= shortest) continue;
        shortest = longest;
        t->cols = cols;
        t->deal.n_unit = units;
    }
}

static void run_product(struct node *t, const struct iwp_gemm_bulk *op, int ith, int nth) {
    for (int32_t u; (u = iwp_deal_take(&t->deal, nth)) >= 0;) {
        const int32_t left = t->mat.m - u * t->cols;
        t->bulk->g->bulk(op, u * t->cols, left < t->cols ? left : t->cols, t->bulk->scratch[ith]);
    }
}

static void run_linear(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct node *t = user;
    const struct iwp_gemm_bulk op = {.rows = packed(y->src[0]),
                                     .n = t->n,
                                     .kind = t->kind,
                                     .mat = t->mat,
                                     .act = IWP_GEMM_NONE,
                                     .y = y->data,
                                     .res = y->src[1] ? y->src[1]->data : NULL,
                                     .stride = (int64_t)(y->nb[1] / sizeof(float))};
    run_product(t, &op, ith, nth);
}

struct ggml_tensor *iwp_bulk_linear(struct iwp_bulk *u, struct ggml_context *ctx,
                                    struct iwp_bulk_rows rows, struct ggml_tensor *w,
                                    struct ggml_tensor *b, struct ggml_tensor *res) {
    struct node *t = node_new(u, ctx, rows.n, rows.k, rows.kind);
    t->mat = quant(u, w, b);
    deal(t, IWP_GEMM_SIDE, IWP_GEMM_COLS);
    assert(!res || ggml_is_contiguous(res));
    struct ggml_tensor *args[2] = {rows.t, res};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, w->ne[1], rows.n, 1, 1, args, res ? 2 : 1, run_linear,
                          GGML_N_TASKS_MAX, t);
}

static void run_gated(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct node *t = user;
    const struct iwp_gemm_bulk op = {.rows = packed(y->src[0]),
                                     .n = t->n,
                                     .kind = t->kind,
                                     .out_kind = t->out_kind,
                                     .mat = t->mat,
                                     .gate = t->gate,
                                     .act = IWP_GEMM_SILU,
                                     .out = packed(y)};
    run_product(t, &op, ith, nth);
}

struct iwp_bulk_rows iwp_bulk_gated(struct iwp_bulk *u, struct ggml_context *ctx,
                                    struct iwp_bulk_rows rows, struct ggml_tensor *const gate[2],
                                    struct ggml_tensor *const up[2], enum iwp_gemm_kind kind) {
    struct node *t = node_new(u, ctx, rows.n, rows.k, rows.kind);
    t->out_kind = kind;
    t->mat = quant(u, up[0], up[1]);
    t->gate = quant(u, gate[0], gate[1]);
    deal(t, IWP_GEMM_SIDE * u->g->run, IWP_GEMM_COLS / 2);
    return rows_node(ctx, rows.t, rows.n, t->mat.m, run_gated, t);
}

/* Every thread packs the rows for itself: there is no barrier within a node. */
static void run_few(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct node *t = user;
    const struct ggml_tensor *x = y->src[0];
    void *rows = t->bulk->scratch[ith];
    const struct iwp_gemm_few op = {.rows = rows,
                                    .y = y->data,
                                    .stride = (int64_t)(y->nb[1] / sizeof(float)),
                                    .n = t->n,
                                    .mat = t->mat};
    t->bulk->g->few_rows(rows, x->data, (int64_t)(x->nb[1] / sizeof(float)), t->n, t->k);
    for (int32_t u; (u = iwp_deal_take(&t->deal, nth)) >= 0;) {
        const int32_t left = t->mat.m - u * t->cols;
        t->bulk->g->few(&op, u * t->cols, left < t->cols ? left : t->cols);
    }
}

/* Units small enough that threads end together, large enough for long reads.  Rows as in files are fetched 8
 * KB and 16 rows ahead (gemm_few_file.h), which is lost where another thread goes on. */
static void deal_few(struct node *t) {
    enum { SIDE = IWP_GEMM_SIDE, LONG = 8 * SIDE };
    const int32_t m = t->mat.m, n = t->bulk->n_thread;
    if (t->mat.form == IWP_GEMM_FILE_Q8_0) {
        const int32_t share = (m + n - 1) / n, most = share / LONG,
                      units = most < 1   ? 1
                              : most > 4 ? 4
                                         : most;
        t->cols = ((share + units - 1) / units + SIDE - 1) / SIDE * SIDE;
    } else {
        t->cols = m / (4 * n) / SIDE * SIDE;
        if (t->cols < SIDE) t->cols = SIDE;
        if (t->cols > LONG) t->cols = LONG;
    }
    t->deal.n_unit = (m + t->cols - 1) / t->cols;
}

struct ggml_tensor *iwp_bulk_few_linear(struct iwp_bulk *u, struct ggml_context *ctx,
                                        struct ggml_tensor *x, struct ggml_tensor *w) {
    struct node *t = node_new(u, ctx, (int32_t)x->ne[1], (int32_t)x->ne[0], IWP_GEMM_PLAIN);
    t->mat = quant(u, w, NULL);
    deal_few(t);
    return ggml_custom_4d(ctx, GGML_TYPE_F32, w->ne[1], x->ne[1], 1, 1, &x, 1, run_few,
                          GGML_N_TASKS_MAX, t);
}

struct ggml_tensor *iwp_bulk_or_ggml(struct iwp_bulk *u, struct ggml_context *ctx,
                                     struct ggml_tensor *x, struct ggml_tensor *w,
                                     struct ggml_tensor *b) {
    const enum iwp_bulk_by by = iwp_bulk_choose(u, w, x->ne[1]);
    if (by == IWP_BULK_MANY)
        return iwp_bulk_linear(u, ctx, iwp_bulk_rows(u, ctx, x, NULL, 0, iwp_bulk_kind(u, w)), w, b,
                               NULL);
    struct ggml_tensor *y =
        by == IWP_BULK_FEW ? iwp_bulk_few_linear(u, ctx, x, w) : ggml_mul_mat(ctx, w, x);
    return b ? ggml_add(ctx, y, b) : y;
}
