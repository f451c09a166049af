/* Attention as a custom node: see attend.h. */
#include "model/attend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "model/deal.h"

/* Queries that share one walk over the keys: their numbers fill half of the second-level cache. */
enum { MAX_QUERIES = 896 };

struct iwp_attend {
    const struct iwp_attn_path *path;
    struct iwp_attn shape; /* heads, d, scale */
    int32_t n_thread;
    bool failed;
    size_t size;   /* of each thread's scratch */
    void **memory; /* [n_thread] */
    size_t n_part; /* floats of all pieces of a node of single rows */
    float *part;
};

struct lane {
    struct iwp_attn op;
    int32_t first, chunks; /* piece; chunk after chunk, in each all KV heads */
};

/* What a node knows.  `left` counts the pieces of each lane and KV head that are not done: who does the last
 * one joins them. */
struct iwp_attend_node {
    struct iwp_attend *a;
    struct iwp_deal deal;
    int32_t queries; /* per unit; 0: single rows */
    int32_t pieces;  /* per unit of single rows: KV heads of a chunk, a divisor of all */
    int32_t n_lane;
    atomic_int *left;   /* [n_lane][G] */
    struct lane lane[]; /* [n_lane] */
};

int iwp_attend_new(struct iwp_attend **out, int32_t n_head, int32_t n_head_kv, int32_t d,
                   int32_t n_thread, iwp_err *err) {
    const struct iwp_attn_path *path = iwp_attn_get();
    *out = NULL;
    if (!path || !iwp_attn_fits(d)) return 0;
    struct iwp_attend *a = calloc(1, sizeof *a);
    IWP_REQUIRE(a, err, IWP_ENOMEM, "out of memory");
    a->path = path;
    a->shape = (struct iwp_attn){
        .n_head = n_head, .n_head_kv = n_head_kv, .d = d, .scale = 1.0f / sqrtf((float)d)};
    a->n_thread = n_thread;
    a->memory = calloc((size_t)n_thread, sizeof *a->memory);
    if (!a->memory) {
        free(a);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    *out = a;
    return 0;
}

void iwp_attend_free(struct iwp_attend *a) {
    if (!a) return;
    for (int32_t i = 0; i < a->n_thread; i++) free(a->memory[i]);
    free(a->memory);
    free(a->part);
    free(a);
}

const char *iwp_attend_name(const struct iwp_attend *a) { return a->path->name; }

int iwp_attend_check(const struct iwp_attend *a, iwp_err *err) {
    IWP_REQUIRE(!a->failed, err, IWP_ENOMEM, "out of memory for attention on %d threads",
                a->n_thread);
    return 0;
}

static void reserve(struct iwp_attend *a, size_t bytes, size_t n_part) {
    if (a->failed) return;
    if (bytes > a->size) {
        a->size = (bytes + 4095) & ~(size_t)4095;
        for (int32_t i = 0; i < a->n_thread; i++) {
            free(a->memory[i]);
            a->memory[i] = aligned_alloc(64, a->size);
            if (!a->memory[i]) a->failed = true;
        }
    }
    if (n_part > a->n_part) {
        a->n_part = (n_part + 1023) & ~(size_t)1023;
        free(a->part);
        a->part = aligned_alloc(64, a->n_part * sizeof *a->part);
        if (!a->part) a->failed = true;
    }
}

static struct iwp_attn_rows rows_of(const struct ggml_tensor *t, int32_t d) {
    return (struct iwp_attn_rows){t->data, t->nb[1], ggml_row_size(t->type, d),
                                  t->type == GGML_TYPE_F32   ? IWP_ATTN_F32
                                  : t->type == GGML_TYPE_F16 ? IWP_ATTN_F16
                                                             : IWP_ATTN_Q8_0};
}

static struct iwp_attn op_of(const struct iwp_attend *a, const struct iwp_kv_layer *kv, int32_t n,
                             int32_t n_kv) {
    struct iwp_attn op = a->shape;
    op.k = rows_of(kv->k, op.d);
    op.v = rows_of(kv->v, op.d);
    op.bias = kv->log_size;
    op.n = n;
    op.n_kv = n_kv;
    op.out_row = (int64_t)op.n_head * op.d;
    return op;
}

/* The op with its rows of q and y from row i on. */
static struct iwp_attn op_at(const struct iwp_attn *op, const struct ggml_tensor *q,
                             struct ggml_tensor *y, int64_t i) {
    struct iwp_attn o = *op;
    o.q_head = (int64_t)(q->nb[1] / sizeof(float));
    o.q_row = (int64_t)(q->nb[2] / sizeof(float));
    o.q = (const float *)q->data + i * o.q_row;
    o.out = (float *)y->data + i * o.out_row;
    return o;
}

/* ---- many rows ---------------------------------------------------------------------------------- */

static void run_many(struct iwp_attend_node *n, struct ggml_tensor *y, int ith, int nth) {
    const struct iwp_attn op = op_at(&n->lane[0].op, y->src[0], y, 0);
    const int32_t total = op.n * (op.n_head / op.n_head_kv);
    for (int32_t u; (u = iwp_deal_take(&n->deal, nth)) >= 0;) {
        /* The last queries see most keys: they come first, so that no thread is left with a long unit. */
        const int32_t part = (n->deal.n_unit - 1 - u) / op.n_head_kv, first = part * n->queries;
        n->a->path->many(&op, u % op.n_head_kv, first,
                         total - first < n->queries ? total - first : n->queries,
                         n->a->memory[ith]);
    }
}

/* ---- single rows -------------------------------------------------------------------------------- */

static void run_single(struct iwp_attend_node *n, struct ggml_tensor *y, int ith, int nth) {
    const int32_t G = n->a->shape.n_head_kv;
    const size_t size = iwp_attn_part_size(&n->a->shape);
    for (int32_t u; (u = iwp_deal_take(&n->deal, nth)) >= 0;) {
        const int32_t piece = u * n->pieces;
        int32_t i = n->n_lane - 1;
        while (piece < n->lane[i].first) i--;
        const struct lane *lane = &n->lane[i];
        const int32_t first = (piece - lane->first) % G, chunk = (piece - lane->first) / G;
        const struct iwp_attn op = op_at(&lane->op, y->src[0], y, i);
        float *part = n->a->part + (size_t)(lane->first + first * lane->chunks) * size;
        n->a->path->one(&op, first, n->pieces, chunk, part + (size_t)chunk * size,
                        (size_t)lane->chunks * size, n->a->memory[ith]);
        for (int32_t g = first; g < first + n->pieces; g++, part += (size_t)lane->chunks * size) {
            atomic_int *left = &n->left[i * G + g];
            if (atomic_fetch_sub(left, 1) > 1) continue;
            iwp_attn_join(&op, g, part);
            atomic_store(left, lane->chunks);
        }
    }
}

static void run(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct iwp_attend_node *n = user;
    if (n->a->failed) return;
    if (n->queries)
        run_many(n, y, ith, nth);
    else
        run_single(n, y, ith, nth);
}

/* ---- building ----------------------------------------------------------------------------------- */

static struct iwp_attend_node *node_new(struct iwp_attend *a, struct ggml_context *ctx,
                                        int32_t n_lane) {
    const size_t lanes = sizeof(struct iwp_attend_node) + (size_t)n_lane * sizeof(struct lane),
                 bytes = lanes + (size_t)n_lane * (size_t)a->shape.n_head_kv * sizeof(atomic_int);
    struct iwp_attend_node *n = ggml_new_buffer(ctx, bytes);
    memset(n, 0, bytes);
    n->a = a;
    n->n_lane = n_lane;
    n->left = (atomic_int *)(void *)((char *)n + lanes);
    return n;
}

static struct ggml_tensor *finish(struct iwp_attend_node *n, struct ggml_context *ctx,
                                  struct ggml_tensor *q) {
    return ggml_custom_4d(ctx, GGML_TYPE_F32, n->lane[0].op.out_row, q->ne[2], 1, 1, &q, 1, run,
                          GGML_N_TASKS_MAX, n);
}

void iwp_attend_bind(struct iwp_attend_node *n, const struct iwp_kv_layer *const *kv,
                     const int32_t *n_kv) {
    struct iwp_attend *a = n->a;
    const int32_t G = a->shape.n_head_kv;
    int32_t pieces = 0;
    for (int32_t i = 0; i < n->n_lane; i++) {
        const int32_t chunks = iwp_attn_chunks(n_kv[i]);
        n->lane[i] = (struct lane){op_of(a, kv[i], 1, n_kv[i]), pieces, chunks};
        pieces += G * chunks;
        for (int32_t g = 0; g < G; g++) atomic_store(&n->left[i * G + g], chunks);
    }
    /* Heads share rows of the cache, which are read most evenly by one thread for all of them: as many as leave
     * no thread waiting for more than an eighth of the time. */
    n->pieces = G;
    for (int32_t parts = 1; parts <= G; parts++) {
        const int32_t units = pieces / G * parts, longest = (units + a->n_thread - 1) / a->n_thread;
        if (G % parts) continue;
        n->pieces = G / parts;
        if (longest * a->n_thread * 8 <= units * 9) break;
    }
    n->deal.n_unit = pieces / n->pieces;
    reserve(a, iwp_attn_scratch(&a->shape, 0), (size_t)pieces * iwp_attn_part_size(&a->shape));
}

struct ggml_tensor *iwp_attend_build_lanes(struct iwp_attend *a, struct ggml_context *ctx,
                                           struct ggml_tensor *q,
                                           const struct iwp_kv_layer *const *kv,
                                           const int32_t *n_kv, struct iwp_attend_node **out) {
    struct iwp_attend_node *n = node_new(a, ctx, (int32_t)q->ne[2]);
    iwp_attend_bind(n, kv, n_kv);
    if (out) *out = n;
    return finish(n, ctx, q);
}

struct ggml_tensor *iwp_attend_build(struct iwp_attend *a, struct ggml_context *ctx,
                                     struct ggml_tensor *q, const struct iwp_kv_layer *kv,
                                     int32_t n_kv) {
    if (q->ne[2] == 1) return iwp_attend_build_lanes(a, ctx, q, &kv, &n_kv, NULL);
    struct iwp_attend_node *n = node_new(a, ctx, 1);
    const int32_t G = a->shape.n_head_kv, total = (int32_t)q->ne[2] * (a->shape.n_head / G);
    /* Every unit unpacks the keys anew: large ones, and some for every thread. */
    int32_t per = (int32_t)((int64_t)total * G / (3 * a->n_thread)) / IWP_ATTN_TILE * IWP_ATTN_TILE;
    if (per > MAX_QUERIES) per = MAX_QUERIES;
    if (per < IWP_ATTN_TILE) per = IWP_ATTN_TILE;
    n->queries = per;
    n->deal.n_unit = G * ((total + per - 1) / per);
    n->lane[0].op = op_of(a, kv, (int32_t)q->ne[2], n_kv);
    reserve(a, iwp_attn_scratch(&a->shape, per), 0);
    return finish(n, ctx, q);
}
