/* Custom nodes over packed weights: see pack.h. */
#include "model/pack.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kern/kern.h"
#include "model/deal.h"

static_assert((int)IWP_GEMM_GELU_TANH == (int)IWP_ACT_GELU_TANH &&
                  (int)IWP_GEMM_GELU_QUICK == (int)IWP_ACT_GELU_QUICK &&
                  (int)IWP_GEMM_GELU_ERF == (int)IWP_ACT_GELU_ERF &&
                  (int)IWP_GEMM_SILU == (int)IWP_ACT_SILU,
              "both lists of activations have one order");

enum {
    MAX_ROWS = 256,      /* of a block: rows and one panel of weights stay in L2 */
    MAX_F32_K = 1 << 16, /* numbers of rows that do */
};

struct iwp_pack {
    const struct iwp_gemm *g;
    int32_t n_thread;
    bool split, failed;
    size_t size;   /* of each thread's scratch */
    void **memory; /* [n_thread] */
};

/* What a node knows. */
struct node {
    struct iwp_pack *pack;
    struct iwp_deal deal;
    int32_t block; /* rows per unit */
    union {
        struct iwp_gemm_linear linear;
        struct iwp_gemm_mlp mlp;
        struct {
            float scale;
            int32_t n_run, n_head, parts; /* parts: of the queries of a window */
            struct iwp_vit_run *run;      /* behind the node */
        } attend;
    } op;
};

int iwp_pack_new(struct iwp_pack **out, const struct iwp_gemm *g, bool split, int32_t n_thread,
                 iwp_err *err) {
    *out = calloc(1, sizeof **out);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    (*out)->g = g;
    (*out)->split = split;
    (*out)->n_thread = n_thread;
    (*out)->memory = calloc((size_t)n_thread, sizeof *(*out)->memory);
    if ((*out)->memory) return 0;
    free(*out);
    *out = NULL;
    return iwp_err_set(err, IWP_ENOMEM, "out of memory");
}

void iwp_pack_free(struct iwp_pack *p) {
    if (!p) return;
    for (int32_t i = 0; i < p->n_thread; i++) free(p->memory[i]);
    free(p->memory);
    free(p);
}

const struct iwp_gemm *iwp_pack_gemm(const struct iwp_pack *p) { return p->g; }
bool iwp_pack_split(const struct iwp_pack *p) { return p->split; }

int iwp_pack_check(struct iwp_pack *p, iwp_err *err) {
    IWP_REQUIRE(!p->failed, err, IWP_ENOMEM, "out of memory for the tower's %d threads",
                p->n_thread);
    return 0;
}

/* Scratch of at least n bytes for every thread. */
static void reserve(struct iwp_pack *p, size_t n) {
    if (n <= p->size || p->failed) return;
    n = (n + 4095) & ~(size_t)4095;
    for (int32_t i = 0; i < p->n_thread; i++) {
        free(p->memory[i]);
        p->memory[i] = aligned_alloc(64, n);
        if (!p->memory[i]) p->failed = true;
    }
    p->size = n;
}

static struct node *node_new(struct iwp_pack *p, struct ggml_context *ctx, size_t more) {
    struct node *n = ggml_new_buffer(ctx, sizeof *n + more);
    memset(n, 0, sizeof *n + more);
    n->pack = p;
    return n;
}

/* Blocks of rows: large ones, and as many for every thread. */
static void deal(struct node *n, int64_t rows) {
    const int64_t wave = (int64_t)n->pack->n_thread * MAX_ROWS;
    const int64_t units = (rows + wave - 1) / wave * n->pack->n_thread;
    n->block = (int32_t)iwp_gemm_up((size_t)((rows + units - 1) / units));
    n->deal.n_unit = (int32_t)((rows + n->block - 1) / n->block);
}

static int32_t take(struct node *n, int nth) {
    return n->pack->failed ? -1 : iwp_deal_take(&n->deal, nth);
}

static struct iwp_gemm_mat mat(const struct ggml_tensor *w, const struct ggml_tensor *b) {
    const struct iwp_packed *p = iwp_packed_of(w);
    if (!p) return (struct iwp_gemm_mat){0};
    return (struct iwp_gemm_mat){p->data, b ? b->data : NULL, p->k, p->m, p->pack->split};
}

static struct iwp_gemm_norm norm_of(const struct iwp_pack_norm *n) {
    if (!n || !n->w) return (struct iwp_gemm_norm){0};
    return (struct iwp_gemm_norm){n->w->data, n->b ? n->b->data : NULL, n->eps, n->rms};
}

static int64_t row_stride(const struct ggml_tensor *t) {
    return (int64_t)(t->nb[1] / sizeof(float));
}

static int32_t rows_of(const struct node *n, int32_t unit, const struct ggml_tensor *y) {
    const int64_t left = y->ne[1] - (int64_t)unit * n->block;
    return left < n->block ? (int32_t)left : n->block;
}

/* ---- linear ------------------------------------------------------------------------------------ */

static void run_linear(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct node *n = user;
    struct iwp_gemm_linear op = n->op.linear;
    op.x = y->src[0]->data;
    op.res = y->src[1] ? y->src[1]->data : NULL;
    op.x_stride = row_stride(y->src[0]);
    op.y_stride = row_stride(y);
    op.y = y->data;
    for (int32_t u; (u = take(n, nth)) >= 0;)
        n->pack->g->linear(&op, u * n->block, rows_of(n, u, y), n->pack->memory[ith]);
}

struct ggml_tensor *iwp_pack_linear(struct ggml_context *ctx, struct ggml_tensor *x,
                                    const struct iwp_pack_norm *norm, struct ggml_tensor *const *w,
                                    struct ggml_tensor *const *b, int32_t n,
                                    struct ggml_tensor *res) {
    struct node *node = node_new(iwp_packed_of(w[0])->pack, ctx, 0);
    struct iwp_gemm_linear *op = &node->op.linear;
    int64_t out = 0;
    op->norm = norm_of(norm);
    op->n_mat = n;
    op->act = IWP_GEMM_NONE;
    for (int32_t i = 0; i < n; i++) {
        op->mat[i] = mat(w[i], b[i]);
        out += op->mat[i].m;
    }
    deal(node, x->ne[1]);
    reserve(node->pack, iwp_gemm_linear_scratch(node->pack->g, op, node->block));
    struct ggml_tensor *args[2] = {x, res};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, out, x->ne[1], 1, 1, args, res ? 2 : 1, run_linear,
                          GGML_N_TASKS_MAX, node);
}

/* ---- linear, in f32 ------------------------------------------------------------------------------ */

/* Every unit turns its rows once and, for them, all of w: there is no copy of it. */
static void run_f32(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct node *n = user;
    const struct iwp_kern *kern = iwp_kern_get();
    const struct ggml_tensor *x = y->src[0], *w = y->src[1], *res = y->src[2];
    const int64_t k = x->ne[0], m = y->ne[0];
    float *panel = n->pack->memory[ith], *rows = panel + k * IWP_PANEL;
    for (int32_t u; (u = take(n, nth)) >= 0;) {
        const int64_t first = (int64_t)u * n->block, count = rows_of(n, u, y);
        for (int64_t i = 0; i < count; i++) { /* [k][IWP_BLOCK] */
            const float *from = (const float *)x->data + (first + i) * k;
            float *to = rows + i / IWP_BLOCK * IWP_BLOCK * k + i % IWP_BLOCK;
            for (int64_t j = 0; j < k; j++) to[j * IWP_BLOCK] = from[j];
        }
        for (int64_t next = 0; next < m; next += IWP_PANEL) {
            const int64_t col = next + IWP_PANEL < m ? next : m - IWP_PANEL; /* some twice */
            kern->to_lanes(panel, (const float *)w->data + col * k, k, (int32_t)k);
            for (int64_t i = 0; i < count; i += IWP_BLOCK) {
                float sums[IWP_BLOCK * IWP_PANEL];
                kern->panel_dots(sums, panel, rows + i * k, IWP_BLOCK, (int32_t)k);
                for (int64_t r = 0; r < IWP_BLOCK && i + r < count; r++) {
                    const int64_t at = (first + i + r) * m + col;
                    for (int64_t j = 0; j < IWP_PANEL; j++)
                        ((float *)y->data)[at + j] =
                            sums[r * IWP_PANEL + j] + (res ? ((float *)res->data)[at + j] : 0);
                }
            }
        }
    }
}

struct ggml_tensor *iwp_pack_f32(struct iwp_pack *p, struct ggml_context *ctx,
                                 struct ggml_tensor *x, struct ggml_tensor *w,
                                 struct ggml_tensor *res) {
    const int64_t k = x->ne[0], m = w->ne[1], n = x->ne[1];
    if (!p || w->type != GGML_TYPE_F32 || m < IWP_PANEL || k > MAX_F32_K) {
        struct ggml_tensor *y = ggml_mul_mat(ctx, w, x);
        return res ? ggml_add(ctx, y, res) : y;
    }
    struct node *node = node_new(p, ctx, 0);
    const int64_t most = MAX_F32_K / k, share = (n + 2 * p->n_thread - 1) / (2 * p->n_thread),
                  rows = share < most ? share : most;
    node->block = (int32_t)((rows + IWP_BLOCK - 1) / IWP_BLOCK * IWP_BLOCK);
    node->deal.n_unit = (int32_t)((n + node->block - 1) / node->block);
    reserve(p, sizeof(float) * (size_t)(k * (IWP_PANEL + node->block)));
    struct ggml_tensor *args[3] = {x, w, res};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, m, n, 1, 1, args, res ? 3 : 2, run_f32,
                          GGML_N_TASKS_MAX, node);
}

/* ---- MLP --------------------------------------------------------------------------------------- */

static void run_mlp(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct node *n = user;
    struct iwp_gemm_mlp op = n->op.mlp;
    op.x = y->src[0]->data;
    op.stride = row_stride(y->src[0]);
    op.y = y->data;
    for (int32_t u; (u = take(n, nth)) >= 0;)
        n->pack->g->mlp(&op, u * n->block, rows_of(n, u, y), n->pack->memory[ith]);
}

struct ggml_tensor *iwp_pack_mlp(struct ggml_context *ctx, struct ggml_tensor *x,
                                 const struct iwp_pack_norm *norm, struct ggml_tensor *const w[3],
                                 struct ggml_tensor *const b[3], enum iwp_act act) {
    struct node *node = node_new(iwp_packed_of(w[1])->pack, ctx, 0);
    struct iwp_gemm_mlp *op = &node->op.mlp;
    op->norm = norm_of(norm);
    op->gate = mat(w[0], b[0]);
    op->up = mat(w[1], b[1]);
    op->down = mat(w[2], b[2]);
    op->act = (enum iwp_gemm_act)act;
    deal(node, x->ne[1]);
    reserve(node->pack, iwp_gemm_mlp_scratch(node->pack->g, op, node->block));
    return ggml_custom_4d(ctx, GGML_TYPE_F32, x->ne[0], x->ne[1], 1, 1, &x, 1, run_mlp,
                          GGML_N_TASKS_MAX, node);
}

/* ---- attention ----------------------------------------------------------------------------------- */

static const float *at(const struct ggml_tensor *t, int64_t head, int64_t row) {
    return (const float *)(const void *)((const char *)t->data + (size_t)head * t->nb[1] +
                                         (size_t)row * t->nb[2]);
}

static int64_t stride_of(const struct ggml_tensor *t) {
    return (int64_t)(t->nb[2] / sizeof(float));
}

/* Units are (run, window, part of its queries, head), head fastest: neighbours read the same rows. */
static void run_attend(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct node *n = user;
    const struct ggml_tensor *q = y->src[0], *k = y->src[1], *v = y->src[2], *angles = y->src[3];
    const int32_t heads = n->op.attend.n_head, parts = n->op.attend.parts;
    const int64_t out = row_stride(y);
    for (int32_t u; (u = take(n, nth)) >= 0;) {
        const int32_t head = u % heads, part = u / heads % parts;
        int32_t window = u / heads / parts;
        const struct iwp_vit_run *r = n->op.attend.run;
        while (window >= r->count) window -= r++->count;
        const int64_t first = r->first + (int64_t)window * r->len;
        const int32_t from = (int32_t)((int64_t)r->len * part / parts),
                      to = (int32_t)((int64_t)r->len * (part + 1) / parts);
        struct iwp_gemm_attend op = {.q = at(q, head, first + from),
                                     .k = at(k, head, first),
                                     .v = at(v, head, first),
                                     .q_stride = stride_of(q),
                                     .k_stride = stride_of(k),
                                     .v_stride = stride_of(v),
                                     .out_stride = out,
                                     .n_q = to - from,
                                     .n_k = r->len,
                                     .d = (int32_t)q->ne[0],
                                     .d_v = (int32_t)v->ne[0],
                                     .split = n->pack->split,
                                     .scale = n->op.attend.scale,
                                     .out =
                                         (float *)y->data + (first + from) * out + head * v->ne[0]};
        if (angles) {
            op.rope_stride = row_stride(angles);
            op.rope_k = (const float *)angles->data + first * op.rope_stride;
            op.rope_q = op.rope_k + from * op.rope_stride;
        }
        if (op.n_q > 0) n->pack->g->attend(&op, n->pack->memory[ith]);
    }
}

struct ggml_tensor *iwp_pack_attend(struct iwp_pack *p, struct ggml_context *ctx,
                                    struct ggml_tensor *const qkv[3], struct ggml_tensor *angles,
                                    const struct iwp_vit_run *run, int32_t n_run, float scale) {
    struct node *node = node_new(p, ctx, (size_t)n_run * sizeof *run);
    const int32_t heads = (int32_t)qkv[0]->ne[1];
    int32_t windows = 0, longest = 0;
    for (int32_t i = 0; i < n_run; i++) {
        windows += run[i].count;
        if (run[i].len > longest) longest = run[i].len;
    }
    node->op.attend.scale = scale;
    node->op.attend.n_run = n_run;
    node->op.attend.n_head = heads;
    /* Every part packs its keys anew: only as many as the threads need. */
    node->op.attend.parts = 1;
    while (windows * heads * node->op.attend.parts < 4 * p->n_thread &&
           longest / node->op.attend.parts > 64)
        node->op.attend.parts++;
    node->op.attend.run = (struct iwp_vit_run *)(node + 1);
    memcpy(node->op.attend.run, run, (size_t)n_run * sizeof *run);
    node->deal.n_unit = windows * heads * node->op.attend.parts;
    reserve(p, iwp_gemm_attend_scratch(p->g, longest, (int32_t)qkv[0]->ne[0],
                                       (int32_t)qkv[2]->ne[0], p->split));
    struct ggml_tensor *args[4] = {qkv[0], qkv[1], qkv[2], angles};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, qkv[2]->ne[0] * heads, qkv[2]->ne[2], 1, 1, args,
                          angles ? 4 : 3, run_attend, GGML_N_TASKS_MAX, node);
}

/* Angles by row for the first half of the pairs, by column for the second. */
static void run_angles(struct ggml_tensor *y, int ith, int nth, void *user) {
    (void)user;
    const int32_t d = (int32_t)y->ne[0], half = d / 2, quarter = d / 4;
    const int32_t *pos = y->src[0]->data;
    for (int64_t i = ith; i < y->ne[1]; i += nth) {
        float *c = (float *)y->data + i * d, *s = c + half;
        for (int32_t j = 0; j < half; j++) {
            const double at_pos = pos[j < quarter ? i : i + y->ne[1]];
            const double a = at_pos * pow(10000.0, -4.0 * (j % quarter) / d);
            c[j] = (float)cos(a);
            s[j] = (float)sin(a);
        }
    }
}

struct ggml_tensor *iwp_pack_angles(struct ggml_context *ctx, struct ggml_tensor *pos, int32_t d) {
    static const char name[] = "rope angles";
    struct ggml_tensor *y = ggml_get_tensor(ctx, name);
    if (y) return y;
    y = ggml_custom_4d(ctx, GGML_TYPE_F32, d, pos->ne[0] / 4, 1, 1, &pos, 1, run_angles,
                       GGML_N_TASKS_MAX, NULL);
    return ggml_set_name(y, name);
}
