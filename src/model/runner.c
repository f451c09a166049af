/* Rows through layers: see runner.h. */
#include "model/runner.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int32_t iwp_runner_max_nodes(const struct iwp_decoder *d, int32_t n_lane) {
    return d->n_layer * (64 + 24 * n_lane) + 64;
}

/* Inputs are filled after the graph has memory: remembered until then.
 *
 * All of them come first in the graph.  ggml keeps its plan of memory for the next graph when that has as many
 * nodes and leaves and the nodes' sizes fit, and does not look at leaves: input must stand where input stood,
 * though sessions are cut at different layers. */
struct input {
    struct ggml_tensor *t;
    int32_t n_past; /* masks */
    const float *log_size;
    const int32_t *pos; /* positions: [n_pos][stride]; stride 0: the same in all rows of ids */
    int32_t stride;
};
struct inputs {
    struct ggml_cgraph *graph;
    int32_t n, cap;
    struct input at[];
};

/* Memory that lives as long as the graph, zeroed. */
static void *graph_memory(struct ggml_context *ctx, size_t n, size_t size) {
    return memset(ggml_new_buffer(ctx, n * size), 0, n * size);
}

static struct inputs *inputs_new(struct ggml_context *ctx, struct ggml_cgraph *graph, int32_t cap) {
    struct inputs *in = graph_memory(ctx, 1, sizeof *in + (size_t)cap * sizeof in->at[0]);
    in->graph = graph;
    in->cap = cap;
    return in;
}

static struct ggml_tensor *add_input(struct inputs *in, struct input i) {
    assert(in->n < in->cap);
    ggml_set_input(i.t);
    ggml_build_forward_expand(in->graph, i.t);
    in->at[in->n++] = i;
    return i.t;
}

/* What each layer reads beside the rows. */
struct reads {
    struct ggml_tensor *pos;
    enum iwp_attention how;
    struct ggml_tensor *mask; /* or NULL */
};

static struct ggml_tensor *pos_input(const struct iwp_decoder *d, struct ggml_context *ctx,
                                     struct inputs *in, const int32_t *pos, int32_t stride,
                                     int32_t n) {
    struct ggml_tensor *t =
        ggml_new_tensor_1d(ctx, GGML_TYPE_I32, (int64_t)n * (d->n_pos == 3 ? 4 : 1));
    return add_input(in, (struct input){.t = t, .pos = pos, .stride = stride});
}

static struct ggml_tensor *mask_input(struct ggml_context *ctx, struct inputs *in,
                                      enum iwp_attention how, int32_t n_past, int32_t n,
                                      const float *log_size) {
    const enum ggml_type type = how == IWP_ATTENTION_GGML ? GGML_TYPE_F16 : GGML_TYPE_F32;
    struct ggml_tensor *t = ggml_new_tensor_2d(ctx, type, n_past + n, n);
    return add_input(in, (struct input){.t = t, .n_past = n_past, .log_size = log_size});
}

/* M-RoPE has a fourth row of ids, of which no section of a head makes use. */
static void fill_pos(const struct iwp_decoder *d, const struct input *in) {
    const int32_t rows = d->n_pos == 3 ? 4 : 1;
    const size_t bytes = ggml_nbytes(in->t) / (size_t)rows;
    for (int32_t r = 0; r < rows; r++)
        ggml_backend_tensor_set(in->t, in->pos + (size_t)(r % d->n_pos) * (size_t)in->stride,
                                (size_t)r * bytes, bytes);
}

static int fill_mask(const struct input *in, iwp_err *err) {
    const int64_t n_kv = in->t->ne[0], n = in->t->ne[1];
    const size_t count = (size_t)n_kv * (size_t)n;
    float *m = malloc(count * sizeof *m);
    IWP_REQUIRE(m, err, IWP_ENOMEM, "out of memory");
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n_kv; j++)
            m[i * n_kv + j] =
                j > in->n_past + i ? -INFINITY : (in->log_size ? in->log_size[j] : 0.0f);
    if (in->t->type == GGML_TYPE_F32) {
        ggml_backend_tensor_set(in->t, m, 0, count * sizeof *m);
    } else {
        ggml_fp16_t *h = malloc(count * sizeof *h);
        if (!h) {
            free(m);
            return iwp_err_set(err, IWP_ENOMEM, "out of memory");
        }
        ggml_fp32_to_fp16_row(m, h, (int64_t)count);
        ggml_backend_tensor_set(in->t, h, 0, count * sizeof *h);
        free(h);
    }
    free(m);
    return 0;
}

static int fill(const struct iwp_decoder *d, const struct inputs *in, iwp_err *err) {
    for (int32_t i = 0; i < in->n; i++) {
        if (in->at[i].pos)
            fill_pos(d, &in->at[i]);
        else
            IWP_TRY(fill_mask(&in->at[i], err));
    }
    return 0;
}

/* Kept after the graph ran; a view keeps what it looks at. */
static void set_output(struct ggml_tensor *t) {
    ggml_set_output(t);
    if (t->view_src) ggml_set_output(t->view_src);
}

/* Memory for a graph; custom nodes stay on the CPU. */
static int place(const struct iwp_decoder *d, struct iwp_sched *sched, iwp_err *err) {
    if (d->attend) IWP_TRY(iwp_attend_check(d->attend, err));
    iwp_sched_pin_custom(sched);
    return iwp_sched_alloc(sched, err);
}

/* Positions and masks of the layers of a run, where they differ from those of the layer below; none that no
 * node reads, for nobody would look at its size. */
static void layer_inputs(const struct iwp_runner *r, const struct iwp_run *run,
                         struct ggml_context *ctx, struct inputs *in, struct reads *of) {
    int32_t seen_past = -1;
    const float *seen_size = NULL;
    struct ggml_tensor *mask = NULL;
    for (int32_t i = 0; i < run->n_span; i++) {
        const struct iwp_span *s = &run->span[i];
        if (s->l0 == s->l1) continue;
        struct ggml_tensor *pos = pos_input(r->d, ctx, in, s->pos, s->stride, run->n);
        for (int32_t l = s->l0; l < s->l1; l++) {
            const struct iwp_kv_layer *kv = &r->kv->layer[l];
            of[l] = (struct reads){pos, iwp_decoder_attention(r->d, l, r->attention), NULL};
            const bool only_cached = l == r->d->n_layer - 1 && !run->logits;
            if (of[l].how == IWP_ATTENTION_OWN || only_cached) continue;
            if (kv->n != seen_past || kv->log_size != seen_size) {
                seen_past = kv->n;
                seen_size = kv->log_size;
                mask = run->n == 1 && !kv->log_size
                           ? NULL
                           : mask_input(ctx, in, of[l].how, kv->n, run->n, kv->log_size);
            }
            of[l].mask = mask;
        }
    }
}

static bool are_numbers(const float *x, int32_t n) {
    bool all = true;
    for (int32_t i = 0; i < n; i++) all &= x[i] == x[i];
    return all;
}

int iwp_runner_layers(const struct iwp_runner *r, const struct iwp_run *run, iwp_err *err) {
    const struct iwp_decoder *d = r->d;
    const size_t bytes = (size_t)run->n * (size_t)d->d_model * sizeof(float);
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    IWP_TRY(iwp_sched_begin(r->sched, &ctx, &graph, err));
    struct inputs *in = inputs_new(ctx, graph, run->n_span + d->n_layer);
    struct reads *of = graph_memory(ctx, (size_t)d->n_layer, sizeof *of);
    struct ggml_tensor *x0 = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, d->d_model, run->n), *x = x0;
    struct ggml_tensor *logits = NULL;
    ggml_set_input(x0);
    struct ggml_tensor *heads = NULL;
    layer_inputs(r, run, ctx, in, of);
    for (int32_t i = 0; i < run->n_span; i++)
        for (int32_t l = run->span[i].l0; l < run->span[i].l1; l++) {
            const struct iwp_kv_layer *kv = &r->kv->layer[l];
            const struct iwp_decoder_attn attn = {of[l].how, of[l].mask,
                                                  run->heads ? &heads : NULL};
            const bool top = l == d->n_layer - 1;
            x = iwp_decoder_build_layer(d, ctx, graph, l, x, of[l].pos, kv, kv->n, &attn,
                                        !top          ? 0
                                        : run->logits ? 1
                                                      : -1);
        }
    if (heads) set_output(heads);
    if (run->logits) {
        logits = iwp_decoder_build_logits(d, ctx, x);
        ggml_set_output(logits);
        ggml_build_forward_expand(graph, logits);
    } else if (x) {
        set_output(x);
        ggml_build_forward_expand(graph, x);
    }
    int32_t layers = 0;
    for (int32_t i = 0; i < run->n_span; i++) layers += run->span[i].l1 - run->span[i].l0;
    iwp_backend_size_threads(d->b, (double)iwp_decoder_layer_weights(d) * layers * run->n);
    IWP_TRY(place(d, r->sched, err));
    ggml_backend_tensor_set(x0, run->rows, 0, bytes);
    IWP_TRY(fill(d, in, err));
    IWP_TRY(iwp_sched_compute(r->sched, err));
    if (heads) /* the last layer has only the last rows */
        ggml_backend_tensor_get(heads, run->heads + (run->n - heads->ne[1]) * heads->ne[0], 0,
                                ggml_nbytes(heads));
    if (logits)
        ggml_backend_tensor_get(logits, run->logits, 0, (size_t)d->n_vocab * sizeof(float));
    else if (x)
        ggml_backend_tensor_get(x, run->rows, 0, bytes);
    for (int32_t i = 0; i < run->n_span; i++)
        for (int32_t l = run->span[i].l0; l < run->span[i].l1; l++) r->kv->layer[l].n += run->n;
    IWP_REQUIRE(!logits || are_numbers(run->logits, d->n_vocab), err, IWP_EFORMAT,
                "what the model computes is not a number; is its file damaged?");
    return 0;
}

/* ---- a row of each of several timelines ---------------------------------------------------------- */

/* A graph of n lanes and what hangs on which lanes they are and how far they have come; in the graph's own
 * memory.  Where attention is all our own, binding it to the next rows is enough to run it again. */
struct step {
    int32_t n;
    struct inputs *in;
    struct ggml_tensor *x, *logits;
    int32_t *at;                   /* [L][n] positions; `in` reads them */
    struct ggml_tensor **pos;      /* [L] the same tensor where layers have the same positions */
    struct iwp_decoder_lane *lane; /* [L][n] */
    struct iwp_attend_node **node; /* [L] */
};

static void set_lanes(const struct iwp_decoder *d, struct step *g, const struct iwp_lane *lane) {
    for (int32_t l = 0; l < d->n_layer; l++)
        for (int32_t i = 0; i < g->n; i++) {
            const size_t k = (size_t)l * (size_t)g->n + (size_t)i;
            g->at[k] = lane[i].pos[l];
            g->lane[k].kv = &lane[i].r->kv->layer[l];
        }
}

/* The positions of a layer, where they differ from those of the layer below. */
static struct ggml_tensor *lane_positions(const struct iwp_decoder *d, struct ggml_context *ctx,
                                          struct step *g, int32_t l) {
    const size_t n = (size_t)g->n;
    const int32_t *at = g->at + (size_t)l * n;
    if (l > 0 && memcmp(at, at - n, n * sizeof *at) == 0) return g->pos[l - 1];
    return pos_input(d, ctx, g->in, at, 0, g->n);
}

static int build_step(struct step **out, struct iwp_sched *sched, const struct iwp_lane *lane,
                      int32_t n, iwp_err *err) {
    const struct iwp_decoder *d = lane[0].r->d;
    const int32_t L = d->n_layer;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    IWP_TRY(iwp_sched_begin(sched, &ctx, &graph, err));
    struct step *g = *out = graph_memory(ctx, 1, sizeof *g);
    g->n = n;
    g->in = inputs_new(ctx, graph, L * (n + 1));
    g->at = graph_memory(ctx, (size_t)L * (size_t)n, sizeof *g->at);
    g->pos = graph_memory(ctx, (size_t)L, sizeof *g->pos);
    g->lane = graph_memory(ctx, (size_t)L * (size_t)n, sizeof *g->lane);
    g->node = graph_memory(ctx, (size_t)L, sizeof *g->node);
    set_lanes(d, g, lane);
    struct ggml_tensor *x = g->x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, d->d_model, n);
    ggml_set_input(x);
    for (int32_t l = 0; l < L; l++) {
        g->pos[l] = lane_positions(d, ctx, g, l);
        for (int32_t i = 0; i < n; i++) {
            struct iwp_decoder_lane *to = &g->lane[(size_t)l * (size_t)n + (size_t)i];
            to->attn.how = iwp_decoder_attention(d, l, lane[i].r->attention);
            if (to->kv->log_size && to->attn.how != IWP_ATTENTION_OWN)
                to->attn.mask =
                    mask_input(ctx, g->in, to->attn.how, to->kv->n, 1, to->kv->log_size);
        }
    }
    bool own = d->b->n_device == 1;
    for (int32_t l = 0; l < L; l++) {
        x = iwp_decoder_build_lanes(d, ctx, graph, l, x, g->pos[l], g->lane + (size_t)l * (size_t)n,
                                    &g->node[l]);
        own = own && g->node[l];
    }
    g->logits = iwp_decoder_build_logits(d, ctx, x);
    ggml_set_output(g->logits);
    ggml_build_forward_expand(graph, g->logits);
    IWP_TRY(place(d, sched, err));
    if (own) iwp_sched_keep(sched, g);
    return 0;
}

static bool fits(const struct iwp_decoder *d, const struct step *g, const struct iwp_lane *lane,
                 int32_t n) {
    if (!g || g->n != n) return false;
    for (int32_t i = 0; i < n; i++) {
        const struct iwp_runner *r = lane[i].r;
        const struct iwp_decoder_stored *to = &g->lane[i].stored;
        if (r->attention != IWP_ATTENTION_OWN || r->kv->type_k != to->k[0]->type ||
            r->kv->type_v != to->v[0]->type)
            return false;
        for (int32_t l = 1; l < d->n_layer; l++)
            if (g->pos[l] == g->pos[l - 1] && lane[i].pos[l] != lane[i].pos[l - 1]) return false;
    }
    return true;
}

static int bind_step(const struct iwp_decoder *d, struct step *g, const struct iwp_lane *lane,
                     iwp_err *err) {
    set_lanes(d, g, lane);
    for (int32_t l = 0; l < d->n_layer; l++)
        iwp_decoder_bind_lanes(g->node[l], g->lane + (size_t)l * (size_t)g->n, g->n);
    return iwp_attend_check(d->attend, err);
}

int iwp_runner_lanes(struct iwp_sched *sched, const struct iwp_lane *lane, int32_t n,
                     const float *rows, iwp_err *err) {
    const struct iwp_decoder *d = lane[0].r->d;
    struct step *g = iwp_sched_kept(sched);
    if (fits(d, g, lane, n))
        IWP_TRY(bind_step(d, g, lane, err));
    else
        IWP_TRY(build_step(&g, sched, lane, n, err));
    iwp_backend_size_threads(d->b, (double)iwp_decoder_layer_weights(d) * d->n_layer * n);
    ggml_backend_tensor_set(g->x, rows, 0, (size_t)n * (size_t)d->d_model * sizeof *rows);
    IWP_TRY(fill(d, g->in, err));
    IWP_TRY(iwp_sched_compute(sched, err));
    const size_t row = (size_t)d->n_vocab * sizeof(float);
    for (int32_t i = 0; i < n; i++) {
        ggml_backend_tensor_get(g->logits, lane[i].logits, (size_t)i * row, row);
        for (int32_t l = 0; l < d->n_layer; l++) lane[i].r->kv->layer[l].n++;
    }
    return 0;
}

/* ---- q, k, v of a layer -------------------------------------------------------------------------- */

static void want(struct ggml_cgraph *graph, struct ggml_tensor *t, const float *to) {
    if (!to) return;
    set_output(t);
    ggml_build_forward_expand(graph, t);
}

static void take(struct ggml_tensor *t, float *to) {
    if (to) ggml_backend_tensor_get(t, to, 0, ggml_nbytes(t));
}

int iwp_runner_qkv(const struct iwp_runner *r, int32_t l, int32_t n, const float *rows,
                   const struct iwp_span *span, const struct iwp_taps *out, iwp_err *err) {
    const struct iwp_decoder *d = r->d;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    IWP_TRY(iwp_sched_begin(r->sched, &ctx, &graph, err));
    struct inputs *in = inputs_new(ctx, graph, 1);
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, d->d_model, n);
    ggml_set_input(x);
    struct ggml_tensor *pos = pos_input(d, ctx, in, span->pos, span->stride, n);
    struct iwp_decoder_qkv o =
        iwp_decoder_build_qkv(d, ctx, l, x, pos, out->q != NULL || out->q_rope != NULL);
    want(graph, o.q, out->q);
    want(graph, o.q_rope, out->q_rope);
    want(graph, o.k, out->k);
    want(graph, o.k_rope, out->k_rope);
    want(graph, o.v, out->v);
    if (ggml_graph_n_nodes(graph) == 0) return 0;
    iwp_backend_size_threads(d->b, (double)iwp_decoder_qkv_weights(d) * n);
    IWP_TRY(iwp_sched_alloc(r->sched, err));
    ggml_backend_tensor_set(x, rows, 0, (size_t)n * (size_t)d->d_model * sizeof(float));
    IWP_TRY(fill(d, in, err));
    IWP_TRY(iwp_sched_compute(r->sched, err));
    take(o.q, out->q);
    take(o.q_rope, out->q_rope);
    take(o.k, out->k);
    take(o.k_rope, out->k_rope);
    take(o.v, out->v);
    return 0;
}
