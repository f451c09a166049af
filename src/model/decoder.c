/* Shape, weights and graphs of the language model: see decoder.h. */
#include "model/decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"

/* ---- loading ------------------------------------------------------------------------------------ */

static const struct arch {
    const char *name;
    int32_t rope_mode;
} archs[] = {
    {"qwen2", GGML_ROPE_TYPE_NEOX},
    {"qwen2vl", GGML_ROPE_TYPE_MROPE},
    {"llama", GGML_ROPE_TYPE_NORMAL},
};

static int key_i32(const struct iwp_gguf *g, const char *arch, const char *key, int32_t lo,
                   int32_t hi, int32_t fallback, int32_t *out, iwp_err *err) {
    char name[96];
    uint32_t v;
    snprintf(name, sizeof name, "%s.%s", arch, key);
    if (fallback < 0)
        IWP_TRY(iwp_gguf_get_u32(g, name, &v, err));
    else
        IWP_TRY(iwp_gguf_opt_u32(g, name, (uint32_t)fallback, &v, err));
    IWP_REQUIRE(v >= (uint32_t)lo && v <= (uint32_t)hi, err, IWP_EFORMAT,
                "key %s is %u, outside %d to %d", name, v, lo, hi);
    *out = (int32_t)v;
    return 0;
}

static int read_rope(struct iwp_decoder *d, const struct iwp_gguf *g, iwp_err *err) {
    char name[96];
    snprintf(name, sizeof name, "%s.rope.freq_base", d->arch);
    IWP_TRY(iwp_gguf_opt_f32(g, name, 10000.0f, &d->rope_base, err));
    IWP_REQUIRE(isfinite(d->rope_base) && d->rope_base > 1, err, IWP_EFORMAT, "key %s is %g", name,
                (double)d->rope_base);
    int32_t n_rot;
    IWP_TRY(key_i32(g, d->arch, "rope.dimension_count", 2, 4096, d->d_head, &n_rot, err));
    IWP_REQUIRE(n_rot == d->d_head, err, IWP_ENOTSUP,
                "rotary embedding of %d of %d components is not supported", n_rot, d->d_head);
    const char *type;
    snprintf(name, sizeof name, "%s.rope.scaling.type", d->arch);
    IWP_TRY(iwp_gguf_opt_str(g, name, "none", &type, err));
    d->rope_scale = 1;
    if (strcmp(type, "linear") == 0) {
        float factor;
        snprintf(name, sizeof name, "%s.rope.scaling.factor", d->arch);
        IWP_TRY(iwp_gguf_get_f32(g, name, &factor, err));
        IWP_REQUIRE(isfinite(factor) && factor > 0, err, IWP_EFORMAT, "key %s is %g", name,
                    (double)factor);
        d->rope_scale = 1 / factor;
    } else {
        IWP_REQUIRE(strcmp(type, "none") == 0 || strcmp(type, "mrope") == 0, err, IWP_ENOTSUP,
                    "RoPE scaling '%.30s' is not supported", type);
    }
    d->n_pos = 1;
    if (d->rope_mode != GGML_ROPE_TYPE_MROPE) return 0;
    d->n_pos = 3;
    snprintf(name, sizeof name, "%s.rope.dimension_sections", d->arch);
    int n = iwp_gguf_array_i32(g, name, d->sections, 4, err);
    IWP_TRY(n);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++) {
        IWP_REQUIRE(d->sections[i] >= 0 && d->sections[i] <= d->d_head, err, IWP_EFORMAT,
                    "key %s has a bad section", name);
        sum += d->sections[i];
    }
    IWP_REQUIRE(n >= 3 && sum * 2 == d->d_head && d->sections[3] == 0, err, IWP_EFORMAT,
                "key %s does not add up to half the head size %d", name, d->d_head);
    return 0;
}

static int read_shape(struct iwp_decoder *d, const struct iwp_gguf *g, iwp_err *err) {
    const char *arch, *name;
    IWP_TRY(iwp_gguf_get_str(g, "general.architecture", &arch, err));
    d->rope_mode = -1;
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strcmp(arch, archs[i].name) == 0) d->rope_mode = archs[i].rope_mode;
    IWP_REQUIRE(d->rope_mode >= 0, err, IWP_ENOTSUP,
                "architecture '%.40s' is not supported (qwen2, qwen2vl, llama are)", arch);
    snprintf(d->arch, sizeof d->arch, "%s", arch);
    IWP_TRY(iwp_gguf_opt_str(g, "general.name", arch, &name, err));
    snprintf(d->name, sizeof d->name, "%s", name);
    int32_t n_expert;
    IWP_TRY(key_i32(g, arch, "block_count", 1, 1000, -1, &d->n_layer, err));
    IWP_TRY(key_i32(g, arch, "embedding_length", 8, 1 << 17, -1, &d->d_model, err));
    IWP_TRY(key_i32(g, arch, "feed_forward_length", 8, 1 << 20, -1, &d->n_ff, err));
    IWP_TRY(key_i32(g, arch, "attention.head_count", 1, 4096, -1, &d->n_head, err));
    IWP_TRY(key_i32(g, arch, "attention.head_count_kv", 1, 4096, d->n_head, &d->n_head_kv, err));
    IWP_TRY(
        key_i32(g, arch, "attention.key_length", 2, 4096, d->d_model / d->n_head, &d->d_head, err));
    IWP_TRY(key_i32(g, arch, "context_length", 1, 1 << 28, 32768, &d->n_ctx_train, err));
    IWP_TRY(key_i32(g, arch, "expert_count", 0, 1 << 16, 0, &n_expert, err));
    IWP_REQUIRE(n_expert == 0, err, IWP_ENOTSUP, "models with experts are not supported");
    IWP_REQUIRE(d->n_head % d->n_head_kv == 0, err, IWP_EFORMAT,
                "%d query heads are no multiple of %d KV heads", d->n_head, d->n_head_kv);
    IWP_REQUIRE(d->d_head % 2 == 0, err, IWP_EFORMAT, "head size %d is odd", d->d_head);
    char key[96];
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    IWP_TRY(iwp_gguf_get_f32(g, key, &d->eps, err));
    IWP_REQUIRE(isfinite(d->eps) && d->eps >= 0 && d->eps < 1, err, IWP_EFORMAT, "key %s is %g",
                key, (double)d->eps);
    return read_rope(d, g, err);
}

struct want {
    const char *name;
    size_t offset;
    int64_t ne0, ne1; /* ne1 0: a vector */
    int use;
};

static int load_layer(struct iwp_decoder *d, int32_t l, iwp_err *err) {
#define AT(f) offsetof(struct iwp_decoder_layer, f)
    enum { M = IWP_WEIGHT_MATMUL, O = IWP_WEIGHT_OPTIONAL, F = IWP_WEIGHT_F32 };
    const int64_t D = d->d_model, Q = (int64_t)d->n_head * d->d_head,
                  K = (int64_t)d->n_head_kv * d->d_head, N = d->n_ff;
    const struct want wants[] = {
        {"attn_norm.weight", AT(attn_norm), D, 0, F}, {"ffn_norm.weight", AT(ffn_norm), D, 0, F},
        {"attn_q.weight", AT(wq), D, Q, M},           {"attn_k.weight", AT(wk), D, K, M},
        {"attn_v.weight", AT(wv), D, K, M},           {"attn_output.weight", AT(wo), Q, D, M},
        {"attn_q.bias", AT(bq), Q, 0, F | O},         {"attn_k.bias", AT(bk), K, 0, F | O},
        {"attn_v.bias", AT(bv), K, 0, F | O},         {"attn_output.bias", AT(bo), D, 0, F | O},
        {"ffn_gate.weight", AT(gate), D, N, M},       {"ffn_up.weight", AT(up), D, N, M},
        {"ffn_down.weight", AT(down), N, D, M},       {"ffn_gate.bias", AT(gate_b), N, 0, F | O},
        {"ffn_up.bias", AT(up_b), N, 0, F | O},       {"ffn_down.bias", AT(down_b), D, 0, F | O},
    };
#undef AT
    struct iwp_decoder_layer *y = &d->layer[l];
    y->device = iwp_backend_layer_device(d->b, l, d->n_layer);
    for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++) {
        const struct want *w = &wants[i];
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", l, w->name);
        const int64_t ne[2] = {w->ne0, w->ne1};
        struct ggml_tensor *t;
        IWP_TRY(iwp_weights_get(d->weights, name, w->ne1 ? 2 : 1, ne, w->use, y->device, &t, err));
        memcpy((char *)y + w->offset, &t, sizeof t);
    }
    const int64_t half = d->d_head / 2;
    return iwp_weights_get(d->weights, "rope_freqs.weight", 1, &half, F | O, y->device, &y->factor,
                           err);
}

static int load_ends(struct iwp_decoder *d, const struct iwp_gguf *g, iwp_err *err) {
    const int64_t any[2] = {d->d_model, -1};
    const struct iwp_gguf_tensor *e;
    IWP_TRY(iwp_gguf_need_tensor(g, "token_embd.weight", 2, any, &e, err));
    IWP_REQUIRE(e->ne[1] >= 1 && e->ne[1] < (1 << 24), err, IWP_EFORMAT,
                "tensor token_embd.weight has %lld rows", (long long)e->ne[1]);
    d->n_vocab = (int32_t)e->ne[1];
    const enum ggml_type type = (enum ggml_type)e->type;
    IWP_REQUIRE(type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float, err, IWP_ENOTSUP,
                "tensor token_embd.weight: type %s cannot be read row by row",
                ggml_type_name(type));
    const int32_t cpu = iwp_backend_cpu(d->b);
    const int32_t dev = iwp_backend_layer_device(d->b, d->n_layer, d->n_layer);
    const int64_t ne[2] = {d->d_model, d->n_vocab}, width = d->d_model, vocab = d->n_vocab;
    struct iwp_weights *w = d->weights;
    const bool tied = !iwp_gguf_find_tensor(g, "output.weight");
    /* A second copy only where the product wants another place or layout. */
    const bool shared =
        tied && dev == cpu && iwp_backend_matmul_buft(d->b, dev, type, 2, ne) == d->b->buft[cpu];
    IWP_TRY(iwp_weights_get(w, "token_embd.weight", 2, ne,
                            shared ? IWP_WEIGHT_PLAIN : IWP_WEIGHT_ROWS, cpu, &d->embed, err));
    IWP_TRY(iwp_weights_get(w, "output_norm.weight", 1, &width, IWP_WEIGHT_F32, dev, &d->out_norm,
                            err));
    IWP_TRY(iwp_weights_get(w, "output.bias", 1, &vocab, IWP_WEIGHT_F32 | IWP_WEIGHT_OPTIONAL, dev,
                            &d->out_b, err));
    if (shared) {
        d->out = d->embed;
        return 0;
    }
    const char *head = tied ? "token_embd.weight" : "output.weight";
    return iwp_weights_get(w, head, 2, ne, IWP_WEIGHT_MATMUL, dev, &d->out, err);
}

/* The type most of the weights have. */
static void name_type(struct iwp_decoder *d, const struct iwp_gguf *g) {
    uint64_t bytes[256] = {0};
    int best = 0;
    for (int32_t i = 0; i < g->n_tensor; i++) {
        const struct iwp_gguf_tensor *t = &g->tensor[i];
        d->n_params += iwp_gguf_tensor_elements(t);
        if (t->n_dims < 2 || t->type > 255) continue;
        bytes[t->type] += t->size;
        if (bytes[t->type] > bytes[best]) best = (int)t->type;
    }
    const struct iwp_type_info *info = iwp_type_info((uint32_t)best);
    snprintf(d->file_type, sizeof d->file_type, "%s", info ? info->name : "?");
}

/* Asks about every weight: types are tried when they are first asked about, which is to be now. */
static void choose_products(const struct iwp_decoder *d, struct iwp_decoder_layer *y) {
    const struct ggml_tensor *w[] = {y->wq, y->wk, y->wv, y->wo, y->gate, y->up, y->down};
    bool all = d->bulk != NULL;
    y->bulk_rows = 0;
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++) {
        const int32_t from = iwp_bulk_from(d->bulk, w[i]);
        all = all && from;
        if (from > y->bulk_rows) y->bulk_rows = from;
    }
    /* One product takes gate and up. */
    if (!all || (iwp_bulk_kind(d->bulk, y->gate) == IWP_GEMM_BYTES) !=
                    (iwp_bulk_kind(d->bulk, y->up) == IWP_GEMM_BYTES))
        y->bulk_rows = 0;
}

int iwp_decoder_load(struct iwp_decoder *d, struct iwp_backend *b, const struct iwp_gguf *g,
                     iwp_err *err) {
    memset(d, 0, sizeof *d);
    d->b = b;
    int rc = 0;
    IWP_TRY_GOTO(read_shape(d, g, err));
    d->layer = calloc((size_t)d->n_layer, sizeof *d->layer);
    d->final_norm = malloc((size_t)d->d_model * sizeof *d->final_norm);
    if (!d->layer || !d->final_norm) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(iwp_weights_new(&d->weights, b, g, err));
    for (int32_t l = 0; l < d->n_layer; l++) IWP_TRY_GOTO(load_layer(d, l, err));
    IWP_TRY_GOTO(load_ends(d, g, err));
    IWP_TRY_GOTO(iwp_attend_new(&d->attend, d->n_head, d->n_head_kv, d->d_head, b->n_thread, err));
    iwp_log(IWP_LOG_DEBUG, "attention: %s", d->attend ? iwp_attend_name(d->attend) : "ggml");
    name_type(d, g);
    IWP_TRY_GOTO(iwp_weights_load(d->weights, "load", err));
    IWP_TRY_GOTO(iwp_bulk_new(&d->bulk, b, err));
    for (int32_t l = 0; l < d->n_layer; l++) choose_products(d, &d->layer[l]);
    iwp_bulk_from(d->bulk, d->out);
    ggml_backend_tensor_get(d->out_norm, d->final_norm, 0,
                            (size_t)d->d_model * sizeof *d->final_norm);
    return 0;
fail:
    iwp_decoder_free(d);
    return rc;
}

void iwp_decoder_free(struct iwp_decoder *d) {
    iwp_weights_free(d->weights);
    iwp_attend_free(d->attend);
    iwp_bulk_free(d->bulk);
    free(d->layer);
    free(d->final_norm);
    memset(d, 0, sizeof *d);
}

int64_t iwp_decoder_qkv_weights(const struct iwp_decoder *d) {
    return (int64_t)d->d_model * d->d_head * (d->n_head + 2 * d->n_head_kv);
}

int64_t iwp_decoder_layer_weights(const struct iwp_decoder *d) {
    return iwp_decoder_qkv_weights(d) + (int64_t)d->n_head * d->d_head * d->d_model +
           3 * (int64_t)d->d_model * d->n_ff;
}

/* ---- graphs ------------------------------------------------------------------------------------- */

static struct ggml_tensor *norm(const struct iwp_decoder *d, struct ggml_context *ctx,
                                struct ggml_tensor *x, struct ggml_tensor *w) {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, d->eps), w);
}

static bool in_bulk(const struct iwp_decoder_layer *y, const struct ggml_tensor *x) {
    return y->bulk_rows && x->ne[1] >= y->bulk_rows;
}

/* Where a layer is not in bulk as a whole each product is for itself, so that it rounds alike however the rows are cut. */
static struct ggml_tensor *linear(const struct iwp_decoder *d, struct ggml_context *ctx,
                                  struct ggml_tensor *w, struct ggml_tensor *b,
                                  struct ggml_tensor *x) {
    return iwp_bulk_or_ggml(d->bulk, ctx, x, w, b);
}

static struct ggml_tensor *rope(const struct iwp_decoder *d, struct ggml_context *ctx,
                                struct ggml_tensor *x, struct ggml_tensor *pos,
                                struct ggml_tensor *factor) {
    if (d->rope_mode == GGML_ROPE_TYPE_MROPE) {
        int sections[4] = {d->sections[0], d->sections[1], d->sections[2], d->sections[3]};
        return ggml_rope_multi(ctx, x, pos, factor, d->d_head, sections, d->rope_mode,
                               d->n_ctx_train, d->rope_base, d->rope_scale, 0, 1, 32, 1);
    }
    return ggml_rope_ext(ctx, x, pos, factor, d->d_head, d->rope_mode, d->n_ctx_train, d->rope_base,
                         d->rope_scale, 0, 1, 32, 1);
}

struct iwp_decoder_qkv iwp_decoder_build_qkv(const struct iwp_decoder *d, struct ggml_context *ctx,
                                             int32_t l, struct ggml_tensor *x,
                                             struct ggml_tensor *pos, bool want_q) {
    const struct iwp_decoder_layer *y = &d->layer[l];
    const int64_t n = x->ne[1];
    struct ggml_tensor *const w[3] = {y->wq, y->wk, y->wv}, *const b[3] = {y->bq, y->bk, y->bv};
    struct ggml_tensor *p[3] = {0}, *h = NULL;
    struct iwp_bulk_rows rows[3] = {{0}}; /* of each kind */
    struct iwp_decoder_qkv o = {0};
    if (!in_bulk(y, x)) h = norm(d, ctx, x, y->attn_norm);
    for (int i = want_q ? 0 : 1; i < 3; i++) {
        if (h) {
            p[i] = linear(d, ctx, w[i], b[i], h);
            continue;
        }
        const enum iwp_gemm_kind kind = iwp_bulk_kind(d->bulk, w[i]);
        if (!rows[kind].t) rows[kind] = iwp_bulk_rows(d->bulk, ctx, x, y->attn_norm, d->eps, kind);
        p[i] = iwp_bulk_linear(d->bulk, ctx, rows[kind], w[i], b[i], NULL);
    }
    if (want_q) {
        o.q = ggml_reshape_3d(ctx, p[0], d->d_head, d->n_head, n);
        o.q_rope = rope(d, ctx, o.q, pos, y->factor);
    }
    o.k = ggml_reshape_3d(ctx, p[1], d->d_head, d->n_head_kv, n);
    o.v = ggml_reshape_3d(ctx, p[2], d->d_head, d->n_head_kv, n);
    o.k_rope = rope(d, ctx, o.k, pos, y->factor);
    return o;
}

/* Rows [0, n) of a cache tensor as [d, n, G]. */
static struct ggml_tensor *cached(const struct iwp_decoder *d, struct ggml_context *ctx,
                                  struct ggml_tensor *c, int64_t n) {
    return ggml_view_3d(ctx, c, d->d_head, n, d->n_head_kv, c->nb[1],
                        ggml_row_size(c->type, d->d_head), 0);
}

enum iwp_attention iwp_decoder_attention(const struct iwp_decoder *d, int32_t l,
                                         enum iwp_attention wanted) {
    const bool can = d->attend && d->layer[l].device == iwp_backend_cpu(d->b);
    return wanted == IWP_ATTENTION_OWN && !can ? IWP_ATTENTION_GGML : wanted;
}

/* q [d, H, n] against the first n_kv rows; returns [H d, n]. */
static struct ggml_tensor *attend(const struct iwp_decoder *d, struct ggml_context *ctx,
                                  struct ggml_tensor *q, const struct iwp_kv_layer *kv,
                                  int64_t n_kv, const struct iwp_decoder_attn *a) {
    if (a->how == IWP_ATTENTION_OWN) return iwp_attend_build(d->attend, ctx, q, kv, (int32_t)n_kv);
    const float scale = 1.0f / sqrtf((float)d->d_head);
    const int64_t n = q->ne[2];
    q = ggml_permute(ctx, q, 0, 2, 1, 3); /* [d, n, H] */
    struct ggml_tensor *k = cached(d, ctx, kv->k, n_kv), *v = cached(d, ctx, kv->v, n_kv), *o;
    if (a->how == IWP_ATTENTION_GGML) {
        o = ggml_flash_attn_ext(ctx, q, k, v, a->mask, scale, 0, 0);
        return ggml_reshape_2d(ctx, o, (int64_t)d->n_head * d->d_head, n);
    }
    struct ggml_tensor *s = ggml_mul_mat(ctx, k, q); /* [n_kv, n, H] */
    s = ggml_soft_max_ext(ctx, s, a->mask, scale, 0);
    if (v->type != GGML_TYPE_F32 && v->type != GGML_TYPE_F16) v = ggml_cast(ctx, v, GGML_TYPE_F32);
    v = ggml_cont(ctx, ggml_transpose(ctx, v)); /* [n_kv, d, G] */
    o = ggml_mul_mat(ctx, v, s);                /* [d, n, H] */
    return ggml_cont_2d(ctx, ggml_permute(ctx, o, 0, 2, 1, 3), (int64_t)d->n_head * d->d_head, n);
}

static struct ggml_tensor *last_rows(struct ggml_context *ctx, struct ggml_tensor *x, int64_t n) {
    return ggml_view_2d(ctx, x, x->ne[0], n, x->nb[1], (size_t)(x->ne[1] - n) * x->nb[1]);
}

/* k and v of n rows go behind the first n_past rows of a cache.  These nodes come before those that read
 * it because they are put into the graph first. */
static void store(struct ggml_context *ctx, struct ggml_cgraph *graph,
                  const struct iwp_kv_layer *kv, int32_t n_past, struct ggml_tensor *k,
                  struct ggml_tensor *v, struct iwp_decoder_stored *out) {
    const int64_t width = kv->k->ne[0], n = k->ne[2];
    struct ggml_tensor *to_k =
        ggml_view_2d(ctx, kv->k, width, n, kv->k->nb[1], (size_t)n_past * kv->k->nb[1]);
    struct ggml_tensor *to_v =
        ggml_view_2d(ctx, kv->v, width, n, kv->v->nb[1], (size_t)n_past * kv->v->nb[1]);
    struct ggml_tensor *cpy_k = ggml_cpy(ctx, ggml_reshape_2d(ctx, k, width, n), to_k);
    struct ggml_tensor *cpy_v = ggml_cpy(ctx, ggml_reshape_2d(ctx, v, width, n), to_v);
    ggml_build_forward_expand(graph, cpy_k);
    ggml_build_forward_expand(graph, cpy_v);
    if (out) *out = (struct iwp_decoder_stored){{to_k, cpy_k}, {to_v, cpy_v}};
}

static struct ggml_tensor *after_attention_bulk(const struct iwp_decoder *d,
                                                struct ggml_context *ctx,
                                                const struct iwp_decoder_layer *y,
                                                struct ggml_tensor *h, struct ggml_tensor *x) {
    struct ggml_tensor *const gate[2] = {y->gate, y->gate_b}, *const up[2] = {y->up, y->up_b};
    const enum iwp_gemm_kind of_gate = iwp_bulk_kind(d->bulk, y->gate),
                             of_up = iwp_bulk_kind(d->bulk, y->up);
    struct iwp_bulk_rows rows =
        iwp_bulk_rows(d->bulk, ctx, h, NULL, 0, iwp_bulk_kind(d->bulk, y->wo));
    x = iwp_bulk_linear(d->bulk, ctx, rows, y->wo, y->bo, x);
    rows = iwp_bulk_rows(d->bulk, ctx, x, y->ffn_norm, d->eps, of_gate > of_up ? of_gate : of_up);
    rows = iwp_bulk_gated(d->bulk, ctx, rows, gate, up, iwp_bulk_kind(d->bulk, y->down));
    return iwp_bulk_linear(d->bulk, ctx, rows, y->down, y->down_b, x);
}

/* The rest of a layer: h [H d, n] is what attention gave, x the residual. */
static struct ggml_tensor *after_attention(const struct iwp_decoder *d, struct ggml_context *ctx,
                                           int32_t l, struct ggml_tensor *h,
                                           struct ggml_tensor *x) {
    const struct iwp_decoder_layer *y = &d->layer[l];
    if (in_bulk(y, x)) return after_attention_bulk(d, ctx, y, h, x);
    x = ggml_add(ctx, linear(d, ctx, y->wo, y->bo, h), x);
    h = norm(d, ctx, x, y->ffn_norm);
    struct ggml_tensor *gate = linear(d, ctx, y->gate, y->gate_b, h);
    struct ggml_tensor *up = linear(d, ctx, y->up, y->up_b, h);
    h = linear(d, ctx, y->down, y->down_b, ggml_swiglu_split(ctx, gate, up));
    return ggml_add(ctx, h, x);
}

struct ggml_tensor *iwp_decoder_build_layer(const struct iwp_decoder *d, struct ggml_context *ctx,
                                            struct ggml_cgraph *graph, int32_t l,
                                            struct ggml_tensor *x, struct ggml_tensor *pos,
                                            const struct iwp_kv_layer *kv, int32_t n_past,
                                            const struct iwp_decoder_attn *attn, int32_t last) {
    const int64_t n = x->ne[1];
    struct iwp_decoder_qkv o = iwp_decoder_build_qkv(d, ctx, l, x, pos, last >= 0);
    if (last >= 0) ggml_build_forward_expand(graph, o.q_rope);
    store(ctx, graph, kv, n_past, o.k_rope, o.v, NULL);
    if (last < 0) return NULL;

    struct ggml_tensor *q = o.q_rope; /* [d, H, n] */
    struct iwp_decoder_attn a = *attn;
    if (last > 0 && last < n) {
        q = ggml_view_3d(ctx, q, q->ne[0], q->ne[1], last, q->nb[1], q->nb[2],
                         (size_t)(n - last) * q->nb[2]);
        x = last_rows(ctx, x, last);
        if (a.mask) a.mask = last_rows(ctx, a.mask, last);
    }
    struct ggml_tensor *h = attend(d, ctx, q, kv, n_past + n, &a);
    if (attn->heads) *attn->heads = h;
    return after_attention(d, ctx, l, h, x);
}

/* Row i of [d, heads, n] as [d, heads, 1]. */
static struct ggml_tensor *one_row(struct ggml_context *ctx, struct ggml_tensor *t, int32_t i) {
    return ggml_view_3d(ctx, t, t->ne[0], t->ne[1], 1, t->nb[1], t->nb[2], (size_t)i * t->nb[2]);
}

/* The caches of lanes, and how many rows of each are seen. */
struct seen {
    const struct iwp_kv_layer *kv[IWP_LANE_MAX];
    int32_t n[IWP_LANE_MAX];
};

static struct seen seen_by(const struct iwp_decoder_lane *lane, int32_t n) {
    struct seen s;
    for (int32_t i = 0; i < n; i++) {
        s.kv[i] = lane[i].kv;
        s.n[i] = lane[i].kv->n + 1;
    }
    return s;
}

/* Attention of all lanes in one node. */
static struct ggml_tensor *attend_lanes(const struct iwp_decoder *d, struct ggml_context *ctx,
                                        struct ggml_cgraph *graph, struct iwp_decoder_qkv *o,
                                        struct iwp_decoder_lane *lane,
                                        struct iwp_attend_node **node) {
    const int32_t n = (int32_t)o->q_rope->ne[2];
    for (int32_t i = 0; i < n; i++)
        store(ctx, graph, lane[i].kv, lane[i].kv->n, one_row(ctx, o->k_rope, i),
              one_row(ctx, o->v, i), &lane[i].stored);
    const struct seen s = seen_by(lane, n);
    return iwp_attend_build_lanes(d->attend, ctx, o->q_rope, s.kv, s.n, node);
}

/* What ggml noted when it made the view, for another row or another cache of the same type. */
static void look_at(struct ggml_tensor *view, struct ggml_tensor *cache, int32_t row) {
    view->view_src = cache;
    view->view_offs = (size_t)row * cache->nb[1];
    view->data = (char *)cache->data + view->view_offs;
    view->buffer = cache->buffer;
    if (view->op == GGML_OP_VIEW) view->src[0] = cache;
}

void iwp_decoder_bind_lanes(struct iwp_attend_node *node, const struct iwp_decoder_lane *lane,
                            int32_t n) {
    for (int32_t i = 0; i < n; i++)
        for (int j = 0; j < 2; j++) {
            look_at(lane[i].stored.k[j], lane[i].kv->k, lane[i].kv->n);
            look_at(lane[i].stored.v[j], lane[i].kv->v, lane[i].kv->n);
        }
    const struct seen s = seen_by(lane, n);
    iwp_attend_bind(node, s.kv, s.n);
}

struct ggml_tensor *iwp_decoder_build_lanes(const struct iwp_decoder *d, struct ggml_context *ctx,
                                            struct ggml_cgraph *graph, int32_t l,
                                            struct ggml_tensor *x, struct ggml_tensor *pos,
                                            struct iwp_decoder_lane *lane,
                                            struct iwp_attend_node **node) {
    const int32_t n = (int32_t)x->ne[1];
    *node = NULL;
    bool own = true;
    for (int32_t i = 0; i < n; i++) own = own && lane[i].attn.how == IWP_ATTENTION_OWN;
    if (n == 1 && !own)
        return iwp_decoder_build_layer(d, ctx, graph, l, x, pos, lane->kv, lane->kv->n, &lane->attn,
                                       0);
    struct iwp_decoder_qkv o = iwp_decoder_build_qkv(d, ctx, l, x, pos, true);
    if (own) return after_attention(d, ctx, l, attend_lanes(d, ctx, graph, &o, lane, node), x);
    /* What attention gives for a row takes the place of the row's query: no one else reads it. */
    struct ggml_tensor *h =
        ggml_reshape_2d(ctx, o.q_rope, (int64_t)d->n_head * d->d_head, o.q_rope->ne[2]);
    ggml_build_forward_expand(graph, h);
    for (int32_t i = 0; i < n; i++) {
        const struct iwp_kv_layer *kv = lane[i].kv;
        store(ctx, graph, kv, kv->n, one_row(ctx, o.k_rope, i), one_row(ctx, o.v, i), NULL);
        struct ggml_tensor *q = one_row(ctx, o.q_rope, i);
        struct ggml_tensor *to = ggml_view_2d(ctx, h, h->ne[0], 1, h->nb[1], (size_t)i * h->nb[1]);
        struct ggml_tensor *a = attend(d, ctx, q, kv, kv->n + 1, &lane[i].attn);
        ggml_build_forward_expand(graph, ggml_cpy(ctx, a, to));
    }
    return after_attention(d, ctx, l, h, x);
}

struct ggml_tensor *iwp_decoder_build_logits(const struct iwp_decoder *d, struct ggml_context *ctx,
                                             struct ggml_tensor *x) {
    return linear(d, ctx, d->out, d->out_b, norm(d, ctx, x, d->out_norm));
}
