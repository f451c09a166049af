/* iwp convert: see convert.h.  Each model class is a list of (GGUF name, shape, source): the list is
 * made from the configuration alone, so that a missing or misshapen weight is found before any byte is
 * written. */
#include "convert/convert.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "convert/hf.h"
#include "convert/quant.h"

struct plan {
    struct iwp_plan_tensor *t;
    int32_t n, cap;
    uint32_t type;
    bool tied;
    int32_t *used; /* per weight, for the note about unused ones */
    const struct iwp_hf_weights *weights;
    const char *dir;
};

static struct iwp_plan_tensor *push(struct plan *p, iwp_err *err) {
    if (p->n == p->cap) {
        int32_t cap = p->cap ? 2 * p->cap : 512;
        struct iwp_plan_tensor *t = realloc(p->t, (size_t)cap * sizeof *t);
        if (!t) {
            iwp_err_set(err, IWP_ENOMEM, "%s: out of memory", p->dir);
            return NULL;
        }
        p->t = t;
        p->cap = cap;
    }
    struct iwp_plan_tensor *t = &p->t[p->n++];
    memset(t, 0, sizeof *t);
    return t;
}

/* Checks rank and shape of a source, slowest dimension first. */
static int need(struct plan *p, const char *from, int rank, const int64_t *shape,
                const struct iwp_st_tensor **out, iwp_err *err) {
    const struct iwp_st_tensor *s = iwp_hf_find_weight(p->weights, from);
    IWP_REQUIRE(s, err, IWP_EMISSING, "%s: weight %s is missing", p->dir, from);
    bool ok = s->rank == rank;
    for (int i = 0; ok && i < rank; i++) ok = s->shape[i] == shape[i];
    char have[128], want[128];
    int at = 0;
    want[0] = 0;
    for (int i = 0; i < rank; i++)
        at += snprintf(want + at, sizeof want - (size_t)at, "%s%" PRId64, i ? ", " : "", shape[i]);
    iwp_st_describe(s, have, sizeof have);
    IWP_REQUIRE(ok, err, IWP_EFORMAT, "%s: tensor %.120s is %s, expected [%s]", p->dir, s->name,
                have, want);
    IWP_REQUIRE(s->dtype == IWP_ST_F32 || s->dtype == IWP_ST_F16 || s->dtype == IWP_ST_BF16 ||
                    s->dtype == IWP_ST_F64,
                err, IWP_ENOTSUP,
                "%s: tensor %.120s is %s; only float checkpoints can be converted", p->dir, s->name,
                have);
    *out = s;
    return 0;
}

/* A part of a weight: rows of `from` as a tensor of shape [.., ne1, ne0]. */
static int add_rows(struct plan *p, const char *name, const struct iwp_st_tensor *s, int64_t first,
                    int n_dims, const int64_t *ne, iwp_err *err) {
    struct iwp_plan_tensor *t = push(p, err);
    if (!t) return IWP_ENOMEM;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = n_dims;
    int64_t n = 1;
    for (int i = 0; i < 4; i++) {
        t->ne[i] = i < n_dims ? ne[i] : 1;
        n *= t->ne[i];
    }
    t->src = (struct iwp_source){s, first, n, n, NULL, NULL};
    t->type = iwp_plan_type(p->type, t->name, n_dims, t->ne[0], p->tied, &t->fallback);
    return 0;
}

/* rows × cols matrix or, with rows 0, a vector of cols. */
static int add(struct plan *p, const char *name, const char *from, int64_t rows, int64_t cols,
               iwp_err *err) {
    const int64_t shape[2] = {rows ? rows : cols, cols}, ne[2] = {cols, rows};
    const struct iwp_st_tensor *s;
    IWP_TRY(need(p, from, rows ? 2 : 1, shape, &s, err));
    return add_rows(p, name, s, 0, rows ? 2 : 1, ne, err);
}

/* weight and bias of a linear layer or a layer norm (rows 0). */
static int add_linear(struct plan *p, const char *name, const char *from, int64_t rows,
                      int64_t cols, bool bias, iwp_err *err) {
    char a[96], b[160];
    snprintf(a, sizeof a, "%s.weight", name);
    snprintf(b, sizeof b, "%s.weight", from);
    IWP_TRY(add(p, a, b, rows, cols, err));
    if (!bias) return 0;
    snprintf(a, sizeof a, "%s.bias", name);
    snprintf(b, sizeof b, "%s.bias", from);
    return add(p, a, b, 0, rows ? rows : cols, err);
}

static int plan_decoder(struct plan *p, const struct iwp_hf_config *c, iwp_err *err) {
    const int64_t d = c->text.n_embd, ff = c->text.n_ff,
                  q = (int64_t)c->text.n_head * c->text.head_dim,
                  kv = (int64_t)c->text.n_head_kv * c->text.head_dim;
    const struct {
        const char *name, *from;
        int64_t rows, cols;
        bool bias;
    } parts[] = {
        {"attn_norm", "input_layernorm", 0, d, false},
        {"attn_q", "self_attn.q_proj", q, d, true},
        {"attn_k", "self_attn.k_proj", kv, d, true},
        {"attn_v", "self_attn.v_proj", kv, d, true},
        {"attn_output", "self_attn.o_proj", d, q, false},
        {"ffn_norm", "post_attention_layernorm", 0, d, false},
        {"ffn_gate", "mlp.gate_proj", ff, d, false},
        {"ffn_up", "mlp.up_proj", ff, d, false},
        {"ffn_down", "mlp.down_proj", d, ff, false},
    };
    const bool head = iwp_hf_find_weight(p->weights, "lm_head.weight") != NULL;
    IWP_REQUIRE(head || c->text.tied != 0, err, IWP_EMISSING,
                "%s: weight lm_head.weight is missing and tie_word_embeddings is false", p->dir);
    p->tied = c->text.tied == 1 || !head;
    IWP_TRY(add_linear(p, "token_embd", "text.embed_tokens", c->text.n_vocab, d, false, err));
    for (int l = 0; l < c->text.n_layer; l++)
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            char name[64], from[96];
            snprintf(name, sizeof name, "blk.%d.%s", l, parts[i].name);
            snprintf(from, sizeof from, "text.layers.%d.%s", l, parts[i].from);
            IWP_TRY(add_linear(p, name, from, parts[i].rows, parts[i].cols, parts[i].bias, err));
        }
    IWP_TRY(add_linear(p, "output_norm", "text.norm", 0, d, false, err));
    if (!p->tied) IWP_TRY(add_linear(p, "output", "lm_head", c->text.n_vocab, d, false, err));
    return 0;
}

static int plan_llava_tower(struct plan *p, const struct iwp_hf_config *c, iwp_err *err) {
    const int64_t d = c->vision.n_embd, ff = c->vision.n_ff, e = c->text.n_embd,
                  ps = c->vision.patch, side = c->vision.image_size / ps;
    const struct {
        const char *name, *from;
        int64_t rows, cols;
    } parts[] = {
        {"ln1", "layer_norm1", 0, d},
        {"attn_q", "self_attn.q_proj", d, d},
        {"attn_k", "self_attn.k_proj", d, d},
        {"attn_v", "self_attn.v_proj", d, d},
        {"attn_out", "self_attn.out_proj", d, d},
        {"ln2", "layer_norm2", 0, d},
        {"ffn_up", "mlp.fc1", ff, d},
        {"ffn_down", "mlp.fc2", d, ff},
    };
    const struct iwp_st_tensor *s;
    IWP_TRY(
        need(p, "vision.embeddings.patch_embedding.weight", 4, (int64_t[]){d, 3, ps, ps}, &s, err));
    IWP_TRY(add_rows(p, "v.patch_embd.weight", s, 0, 4, (int64_t[]){ps, ps, 3, d}, err));
    IWP_TRY(add(p, "v.patch_embd.bias", "vision.embeddings.patch_embedding.bias", 0, d, err));
    IWP_TRY(add_linear(p, "v.position_embd", "vision.embeddings.position_embedding", side * side, d,
                       false, err));
    for (int l = 0; l < c->vision.n_layer; l++)
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            char name[64], from[96];
            snprintf(name, sizeof name, "v.blk.%d.%s", l, parts[i].name);
            snprintf(from, sizeof from, "vision.encoder.layers.%d.%s", l, parts[i].from);
            IWP_TRY(add_linear(p, name, from, parts[i].rows, parts[i].cols, true, err));
        }
    IWP_TRY(add_linear(p, "mm.0", "projector.linear_1", e, d, true, err));
    IWP_TRY(add_linear(p, "mm.2", "projector.linear_2", e, e, true, err));
    return add(p, "v.image_newline", "image_newline", 0, e, err);
}

static int plan_qwen_tower(struct plan *p, const struct iwp_hf_config *c, iwp_err *err) {
    const int64_t d = c->vision.n_embd, ff = c->vision.n_ff, e = c->text.n_embd,
                  ps = c->vision.patch, m = (int64_t)c->vision.merge * c->vision.merge * d;
    const struct iwp_st_tensor *s;
    IWP_TRY(need(p, "vision.patch_embed.proj.weight", 5, (int64_t[]){d, 3, 2, ps, ps}, &s, err));
    for (int t = 0; t < 2; t++) { /* [d, 3, time, y, x]: one tensor per time step */
        IWP_TRY(add_rows(p, t ? "v.patch_embd.weight.1" : "v.patch_embd.weight", s, t * ps * ps, 4,
                         (int64_t[]){ps, ps, 3, d}, err));
        p->t[p->n - 1].src.block = ps * ps;
        p->t[p->n - 1].src.stride = 2 * ps * ps;
    }
    for (int l = 0; l < c->vision.n_layer; l++) {
        const struct {
            const char *name, *from;
            int64_t rows, cols;
            bool bias;
        } parts[] = {
            {"ln1", "norm1", 0, d, false},          {"attn_out", "attn.proj", d, d, true},
            {"ln2", "norm2", 0, d, false},          {"ffn_gate", "mlp.gate_proj", ff, d, true},
            {"ffn_up", "mlp.up_proj", ff, d, true}, {"ffn_down", "mlp.down_proj", d, ff, true},
        };
        char name[64], from[96];
        for (int k = 0; k < 3; k++) { /* q, k, v are one matrix in the checkpoint */
            snprintf(from, sizeof from, "vision.blocks.%d.attn.qkv.weight", l);
            IWP_TRY(need(p, from, 2, (int64_t[]){3 * d, d}, &s, err));
            snprintf(name, sizeof name, "v.blk.%d.attn_%c.weight", l, "qkv"[k]);
            IWP_TRY(add_rows(p, name, s, k * d * d, 2, (int64_t[]){d, d}, err));
            snprintf(from, sizeof from, "vision.blocks.%d.attn.qkv.bias", l);
            IWP_TRY(need(p, from, 1, (int64_t[]){3 * d}, &s, err));
            snprintf(name, sizeof name, "v.blk.%d.attn_%c.bias", l, "qkv"[k]);
            IWP_TRY(add_rows(p, name, s, k * d, 1, (int64_t[]){d}, err));
        }
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            snprintf(name, sizeof name, "v.blk.%d.%s", l, parts[i].name);
            snprintf(from, sizeof from, "vision.blocks.%d.%s", l, parts[i].from);
            IWP_TRY(add_linear(p, name, from, parts[i].rows, parts[i].cols, parts[i].bias, err));
        }
    }
    IWP_TRY(add_linear(p, "v.post_ln", "vision.merger.ln_q", 0, d, false, err));
    IWP_TRY(add_linear(p, "mm.0", "vision.merger.mlp.0", m, m, true, err));
    return add_linear(p, "mm.2", "vision.merger.mlp.2", e, m, true, err);
}

__attribute__((format(printf, 2, 3))) static const char *key(const char *arch, const char *fmt,
                                                             ...) {
    static _Thread_local char buf[96];
    va_list ap;
    int n = snprintf(buf, sizeof buf, "%s.", arch);
    va_start(ap, fmt);
    vsnprintf(buf + n, sizeof buf - (size_t)n, fmt, ap);
    va_end(ap);
    return buf;
}

static const char *model_type(const struct iwp_hf_config *c) {
    return c->arch == IWP_HF_QWEN2_5_VL ? "qwen2_5_vl" : "llava_onevision";
}

static void add_general(struct iwp_gguf_writer *w, const char *arch, const char *kind,
                        const char *dir, uint32_t type) {
    char name[128];
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t start = n;
    while (start > 0 && dir[start - 1] != '/') start--;
    snprintf(name, sizeof name, "%.*s", (int)(n - start), dir + start);
    iwp_gguf_add_str(w, "general.architecture", arch);
    iwp_gguf_add_str(w, "general.type", kind);
    iwp_gguf_add_str(w, "general.name", name);
    iwp_gguf_add_u32(w, "general.file_type", iwp_plan_file_type(type));
    iwp_gguf_add_u32(w, "general.quantization_version", 2);
}

static void add_ids(struct iwp_gguf_writer *w, const struct iwp_hf_config *c) {
    iwp_gguf_add_str(w, "iwp.model_type", model_type(c));
    iwp_gguf_add_u32(w, "iwp.image_token_id", (uint32_t)c->image_token);
    if (c->video_token >= 0) iwp_gguf_add_u32(w, "iwp.video_token_id", (uint32_t)c->video_token);
}

static int add_model_keys(struct iwp_gguf_writer *w, const struct iwp_hf_config *c, const char *dir,
                          uint32_t type, iwp_err *err) {
    const char *a = c->arch == IWP_HF_QWEN2_5_VL ? "qwen2vl" : "qwen2";
    add_general(w, a, "model", dir, type);
    iwp_gguf_add_u32(w, key(a, "block_count"), (uint32_t)c->text.n_layer);
    iwp_gguf_add_u32(w, key(a, "context_length"), (uint32_t)c->text.n_ctx);
    iwp_gguf_add_u32(w, key(a, "embedding_length"), (uint32_t)c->text.n_embd);
    iwp_gguf_add_u32(w, key(a, "feed_forward_length"), (uint32_t)c->text.n_ff);
    iwp_gguf_add_u32(w, key(a, "attention.head_count"), (uint32_t)c->text.n_head);
    iwp_gguf_add_u32(w, key(a, "attention.head_count_kv"), (uint32_t)c->text.n_head_kv);
    iwp_gguf_add_f32(w, key(a, "attention.layer_norm_rms_epsilon"), c->text.rms_eps);
    iwp_gguf_add_f32(w, key(a, "rope.freq_base"), c->text.rope_theta);
    if (c->text.head_dim * c->text.n_head != c->text.n_embd) {
        iwp_gguf_add_u32(w, key(a, "attention.key_length"), (uint32_t)c->text.head_dim);
        iwp_gguf_add_u32(w, key(a, "attention.value_length"), (uint32_t)c->text.head_dim);
    }
    if (c->arch == IWP_HF_QWEN2_5_VL) {
        int32_t s[4] = {c->text.mrope[0], c->text.mrope[1], c->text.mrope[2], 0};
        iwp_gguf_add_array(w, key(a, "rope.dimension_sections"), IWP_GGUF_I32, s, 4);
    }
    add_ids(w, c);
    if (c->vision_start >= 0)
        iwp_gguf_add_u32(w, "iwp.vision_start_token_id", (uint32_t)c->vision_start);
    if (c->vision_end >= 0) iwp_gguf_add_u32(w, "iwp.vision_end_token_id", (uint32_t)c->vision_end);
    return iwp_hf_add_tokenizer(w, c, dir, err);
}

static void add_mmproj_keys(struct iwp_gguf_writer *w, const struct iwp_hf_config *c,
                            const char *dir, uint32_t type) {
    const char *v = "clip.vision";
    const bool qwen = c->arch == IWP_HF_QWEN2_5_VL;
    add_general(w, "clip", "mmproj", dir, type);
    iwp_gguf_add_bool(w, "clip.has_vision_encoder", true);
    iwp_gguf_add_str(w, "clip.projector_type", qwen ? "qwen2.5vl_merger" : "mlp");
    /* gelu stands for the tanh form in llama.cpp's towers */
    iwp_gguf_add_bool(w, qwen ? "clip.use_silu" : "clip.use_gelu", true);
    iwp_gguf_add_u32(w, key(v, "image_size"), (uint32_t)c->vision.image_size);
    iwp_gguf_add_u32(w, key(v, "patch_size"), (uint32_t)c->vision.patch);
    iwp_gguf_add_u32(w, key(v, "embedding_length"), (uint32_t)c->vision.n_embd);
    iwp_gguf_add_u32(w, key(v, "feed_forward_length"), (uint32_t)c->vision.n_ff);
    iwp_gguf_add_u32(w, key(v, "block_count"), (uint32_t)c->vision.n_layer);
    iwp_gguf_add_u32(w, key(v, "projection_dim"), (uint32_t)c->text.n_embd);
    iwp_gguf_add_u32(w, key(v, "attention.head_count"), (uint32_t)c->vision.n_head);
    iwp_gguf_add_f32(w, key(v, "attention.layer_norm_epsilon"), c->vision.eps);
    iwp_gguf_add_array(w, key(v, "image_mean"), IWP_GGUF_F32, c->pre.mean, 3);
    iwp_gguf_add_array(w, key(v, "image_std"), IWP_GGUF_F32, c->pre.std, 3);
    add_ids(w, c);
    iwp_gguf_add_str(w, "iwp.vision_act", c->vision.act);
    iwp_gguf_add_str(w, "iwp.projector_act", c->vision.projector_act);
    iwp_gguf_add_u32(w, "iwp.resample", (uint32_t)c->pre.resample);
    if (qwen) {
        iwp_gguf_add_u32(w, key(v, "spatial_merge_size"), (uint32_t)c->vision.merge);
        iwp_gguf_add_u32(w, key(v, "window_size"), (uint32_t)c->vision.window);
        iwp_gguf_add_u32(w, key(v, "n_wa_pattern"), (uint32_t)c->vision.fullatt[0] + 1);
        iwp_gguf_add_u32(w, key(v, "image_min_pixels"), (uint32_t)c->pre.min_pixels);
        iwp_gguf_add_u32(w, key(v, "image_max_pixels"), (uint32_t)c->pre.max_pixels);
        iwp_gguf_add_u32(w, "iwp.min_pixels", (uint32_t)c->pre.min_pixels);
        iwp_gguf_add_u32(w, "iwp.max_pixels", (uint32_t)c->pre.max_pixels);
        iwp_gguf_add_u32(w, "iwp.temporal_patch_size", (uint32_t)c->vision.temporal_patch);
        iwp_gguf_add_u32(w, "iwp.tokens_per_second", (uint32_t)c->vision.tokens_per_second);
        iwp_gguf_add_array(w, "iwp.fullatt_block_indexes", IWP_GGUF_I32, c->vision.fullatt,
                           (uint64_t)c->vision.n_fullatt);
    } else {
        /* llama.cpp counts hidden states from the embedding on and keeps pairs as (width, height) */
        int32_t layer = c->vision.feature_layer, pairs[2 * IWP_HF_MAX_PINPOINT];
        if (layer < 0) layer += c->vision.n_layer + 1;
        iwp_gguf_add_array(w, key(v, "feature_layer"), IWP_GGUF_I32, &layer, 1);
        for (int i = 0; i < c->vision.n_pinpoint; i++) {
            pairs[2 * i] = c->vision.pinpoint[i][1];
            pairs[2 * i + 1] = c->vision.pinpoint[i][0];
        }
        iwp_gguf_add_array(w, key(v, "image_grid_pinpoints"), IWP_GGUF_I32, pairs,
                           2 * (uint64_t)c->vision.n_pinpoint);
        iwp_gguf_add_str(w, key(v, "mm_patch_merge_type"), "spatial_unpad");
        iwp_gguf_add_array(w, "iwp.image_grid_pinpoints", IWP_GGUF_I32, c->vision.pinpoint,
                           2 * (uint64_t)c->vision.n_pinpoint);
        iwp_gguf_add_i32(w, "iwp.vision_feature_layer", c->vision.feature_layer);
        iwp_gguf_add_str(w, "iwp.vision_feature_select_strategy", c->vision.select);
        iwp_gguf_add_str(w, "iwp.vision_aspect_ratio", c->vision.aspect);
        iwp_gguf_add_u32(w, "iwp.anyres_max", (uint32_t)c->vision.anyres_max);
    }
}

static void declare(struct iwp_gguf_writer *w, const struct plan *p, struct iwp_convert_report *r,
                    int64_t *work) {
    for (int32_t i = 0; i < p->n; i++) {
        const struct iwp_plan_tensor *t = &p->t[i];
        int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        iwp_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
        r->n_tensor++;
        r->n_param += n;
        r->n_fallback += t->fallback;
        r->bytes += iwp_type_bytes(t->type, (uint64_t)n);
        *work += n;
    }
}

/* Finished files appear one after the other; should the second rename fail, the first goes again. */
static int commit_both(struct iwp_gguf_writer *a, const char *path_a, struct iwp_gguf_writer *b,
                       iwp_err *err) {
    IWP_TRY(iwp_gguf_writer_finish(a, err));
    if (b) IWP_TRY(iwp_gguf_writer_finish(b, err));
    IWP_TRY(iwp_gguf_writer_commit(a, err));
    int rc = b ? iwp_gguf_writer_commit(b, err) : 0;
    if (rc < 0) unlink(path_a);
    return rc;
}

static int convert_hf(const struct iwp_convert_params *p, uint32_t type, uint32_t vision_type,
                      struct iwp_convert_report *r, iwp_err *err) {
    struct iwp_hf_config c;
    struct iwp_hf_weights weights = {0};
    struct plan text = {.type = type, .dir = p->in}, vision = {.type = vision_type, .dir = p->in};
    struct iwp_gguf_writer *w = NULL, *v = NULL;
    struct iwp_copier copier = {0};
    int64_t work = 0;
    int rc = 0;
    IWP_REQUIRE(p->mmproj, err, IWP_EINVAL,
                "--mmproj FILE is needed: the vision part goes into a file of its own");
    IWP_REQUIRE(!iwp_file_same(p->out, p->mmproj), err, IWP_EINVAL,
                "--mmproj and -o name the same file");
    IWP_TRY_GOTO(iwp_hf_read_config(&c, p->in, err));
    IWP_TRY_GOTO(iwp_hf_open_weights(&weights, p->in, err));
    text.weights = vision.weights = &weights;
    IWP_TRY_GOTO(plan_decoder(&text, &c, err));
    IWP_TRY_GOTO(c.arch == IWP_HF_QWEN2_5_VL ? plan_qwen_tower(&vision, &c, err)
                                             : plan_llava_tower(&vision, &c, err));
    IWP_TRY_GOTO(iwp_gguf_writer_new(&w, err));
    IWP_TRY_GOTO(iwp_gguf_writer_new(&v, err));
    IWP_TRY_GOTO(add_model_keys(w, &c, p->in, type, err));
    add_mmproj_keys(v, &c, p->in, vision_type);
    declare(w, &text, r, &work);
    declare(v, &vision, r, &work);
    IWP_TRY_GOTO(iwp_copier_open(&copier, p, err));
    IWP_TRY_GOTO(iwp_gguf_writer_begin(w, p->out, err));
    IWP_TRY_GOTO(iwp_gguf_writer_begin(v, p->mmproj, err));
    iwp_progress_start(&copier.progress, "convert", "values", work);
    rc = iwp_copier_run(&copier, w, text.t, text.n, err);
    if (rc >= 0) rc = iwp_copier_run(&copier, v, vision.t, vision.n, err);
    iwp_progress_end(&copier.progress);
    if (rc >= 0) rc = commit_both(w, p->out, v, err);
fail:
    iwp_gguf_writer_free(w);
    iwp_gguf_writer_free(v);
    iwp_copier_close(&copier);
    iwp_hf_close_weights(&weights);
    free(text.t);
    free(vision.t);
    return rc;
}

/* Any GGUF: the same pairs, every matrix in the new type. */
static int convert_gguf(const struct iwp_convert_params *p, uint32_t type,
                        struct iwp_convert_report *r, iwp_err *err) {
    struct iwp_gguf *g = NULL;
    struct iwp_gguf_writer *w = NULL;
    struct plan plan = {.type = type, .dir = p->in};
    struct iwp_copier copier = {0};
    int64_t work = 0;
    int rc = 0;
    bool lossy = false;
    IWP_REQUIRE(!p->mmproj, err, IWP_EINVAL,
                "--mmproj: %s is a GGUF file; convert each file on its own", p->in);
    struct stat a, b;
    IWP_REQUIRE(!(stat(p->in, &a) == 0 && stat(p->out, &b) == 0 && a.st_dev == b.st_dev &&
                  a.st_ino == b.st_ino),
                err, IWP_EINVAL, "-o %s is the input itself", p->out);
    IWP_TRY(iwp_gguf_open(&g, p->in, err));
    const char *arch;
    IWP_TRY_GOTO(iwp_gguf_get_str(g, "general.architecture", &arch, err));
    plan.tied = !iwp_gguf_find_tensor(g, "output.weight");
    IWP_TRY_GOTO(iwp_gguf_writer_new(&w, err));
    for (int32_t i = 0; i < g->n_kv; i++) {
        const char *k = g->kv[i].key;
        if (strncmp(k, "split.", 6) == 0 || strcmp(k, "general.file_type") == 0 ||
            strcmp(k, "general.alignment") == 0)
            continue;
        iwp_gguf_add_kv(w, &g->kv[i]);
    }
    iwp_gguf_add_u32(w, "general.file_type", iwp_plan_file_type(type));
    for (int32_t i = 0; i < g->n_tensor; i++) {
        const struct iwp_gguf_tensor *gt = &g->tensor[i];
        struct iwp_plan_tensor *t = push(&plan, err);
        if (!t) IWP_FAIL(err, IWP_ENOMEM, "%s: out of memory", p->in);
        snprintf(t->name, sizeof t->name, "%s", gt->name);
        t->n_dims = gt->n_dims;
        memcpy(t->ne, gt->ne, sizeof t->ne);
        t->src = (struct iwp_source){.gguf = g, .gt = gt};
        t->type = iwp_plan_type(type, gt->name, gt->n_dims, gt->ne[0], plan.tied, &t->fallback);
        const uint32_t have = gt->type;
        const bool number =
            have != 24 && have != 25 && have != 26 && have != 27 && have != 28; /* i8 … f64 stay */
        if (!number) t->type = have, t->fallback = false;
        lossy = lossy || (t->type != have && iwp_type_info(have)->block > 1);
    }
    if (lossy)
        iwp_log(IWP_LOG_WARN, "%s is quantised already: converting it again adds to its error",
                p->in);
    declare(w, &plan, r, &work);
    IWP_TRY_GOTO(iwp_copier_open(&copier, p, err));
    IWP_TRY_GOTO(iwp_gguf_writer_begin(w, p->out, err));
    iwp_progress_start(&copier.progress, "convert", "values", work);
    rc = iwp_copier_run(&copier, w, plan.t, plan.n, err);
    iwp_progress_end(&copier.progress);
    if (rc >= 0) rc = commit_both(w, p->out, NULL, err);
fail:
    iwp_gguf_writer_free(w);
    iwp_copier_close(&copier);
    iwp_gguf_free(g);
    free(plan.t);
    return rc;
}

int iwp_convert(const struct iwp_convert_params *p, struct iwp_convert_report *report,
                iwp_err *err) {
    struct iwp_convert_report none;
    struct iwp_convert_report *r = report ? report : &none;
    memset(r, 0, sizeof *r);
    int type = iwp_convert_type(p->type ? p->type : "f16", err);
    if (type < 0) return type;
    int vision = type == IWP_TYPE_Q4_0 || type == IWP_TYPE_Q4_K ? IWP_TYPE_Q8_0 : type;
    if (p->mmproj_type) vision = iwp_convert_type(p->mmproj_type, err);
    if (vision < 0) return vision;
    IWP_REQUIRE(p->in && p->out, err, IWP_EINVAL, "an input and -o FILE are needed");
    struct stat st;
    IWP_REQUIRE(stat(p->in, &st) == 0, err, IWP_EIO, "%s: no such file or folder", p->in);
    if (S_ISDIR(st.st_mode)) return convert_hf(p, (uint32_t)type, (uint32_t)vision, r, err);
    struct iwp_gguf *g;
    IWP_TRY(iwp_gguf_open(&g, p->in, err));
    const char *arch = "";
    iwp_gguf_opt_str(g, "general.architecture", "", &arch, NULL);
    const bool clip = strcmp(arch ? arch : "", "clip") == 0;
    iwp_gguf_free(g);
    return convert_gguf(p, (uint32_t)(clip ? vision : type), r, err);
}
