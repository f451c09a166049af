/* Large GGUF files of real shapes with random weights, for timings and memory measurements:
 *
 *   random_gguf VOCAB.gguf SHAPE TYPE OUT.gguf [LAYERS]
 *   random_gguf --check SHAPE TYPE [LAYERS]
 *
 * SHAPE is a decoder (qwen2-0.5b qwen2-3b qwen2-7b, qwen2vl-0.5b qwen2vl-3b qwen2vl-7b) or the vision part
 * that belongs to one (siglip-0.5b siglip-7b, qwenvit-3b qwenvit-7b).  TYPE as for iwp convert; blocks
 * are drawn directly, not quantised, so that a 7B file takes seconds.  The scale keeps activations finite.
 * The vocabulary is copied from a GGUF of the Qwen family; marks for media get their ids.  Exit code 2: what was asked
 * for is not known, which is all that --check tells. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/half.h"
#include "convert/convert.h"
#include "convert/quant.h"
#include "io/gguf.h"

static const struct decoder {
    const char *name, *arch;
    int d, layers, heads, kv, ff, vocab, tied;
} decoders[] = {
    {"qwen2-0.5b", "qwen2", 896, 24, 14, 2, 4864, 151936, 1},
    {"qwen2-3b", "qwen2", 2048, 36, 16, 2, 11008, 151936, 1},
    {"qwen2-7b", "qwen2", 3584, 28, 28, 4, 18944, 152064, 0},
    {"qwen2vl-0.5b", "qwen2vl", 896, 24, 14, 2, 4864, 151936, 1},
    {"qwen2vl-3b", "qwen2vl", 2048, 36, 16, 2, 11008, 151936, 1},
    {"qwen2vl-7b", "qwen2vl", 3584, 28, 28, 4, 18944, 152064, 0},
};
static const struct tower {
    const char *name;
    int qwen, d, layers, heads, ff, out;
} towers[] = {
    {"siglip-0.5b", 0, 1152, 26, 16, 4304, 896},
    {"siglip-7b", 0, 1152, 26, 16, 4304, 3584},
    {"qwenvit-3b", 1, 1280, 32, 16, 3420, 2048},
    {"qwenvit-7b", 1, 1280, 32, 16, 3420, 3584},
};

struct list {
    struct {
        char name[64];
        uint32_t type;
        int n_dims;
        int64_t ne[4];
    } t[2048];
    int n;
    uint32_t want;
    bool tied;
};

static void add(struct list *l, const char *name, int n_dims, int64_t a, int64_t b, int64_t c,
                int64_t d) {
    bool fallback;
    snprintf(l->t[l->n].name, 64, "%s", name);
    l->t[l->n].n_dims = n_dims;
    const int64_t ne[4] = {a, b, c, d};
    memcpy(l->t[l->n].ne, ne, sizeof ne);
    l->t[l->n].type = iwp_plan_type(l->want, name, n_dims, a, l->tied, &fallback);
    l->n++;
}

static void linear(struct list *l, const char *base, int64_t rows, int64_t cols, int bias) {
    char name[80];
    snprintf(name, sizeof name, "%s.weight", base);
    add(l, name, rows ? 2 : 1, cols, rows ? rows : 1, 1, 1);
    snprintf(name, sizeof name, "%s.bias", base);
    if (bias) add(l, name, 1, rows ? rows : cols, 1, 1, 1);
}

static void block(struct list *l, const char *prefix, int i, const char *part, int64_t rows,
                  int64_t cols, int bias) {
    char name[64];
    snprintf(name, sizeof name, "%sblk.%d.%s", prefix, i, part);
    linear(l, name, rows, cols, bias);
}

static void u32(struct iwp_gguf_writer *w, const char *arch, const char *key, int v) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    iwp_gguf_add_u32(w, name, (uint32_t)v);
}

static int add_vocab(struct iwp_gguf_writer *w, const struct decoder *s, const char *path,
                     iwp_err *err) {
    struct iwp_gguf *g;
    IWP_TRY(iwp_gguf_open(&g, path, err));
    const struct {
        int id;
        const char *text;
    } qwen[] = {{151652, "<|vision_start|>"},
                {151653, "<|vision_end|>"},
                {151655, "<|image_pad|>"},
                {151656, "<|video_pad|>"}},
      llava[] = {{151646, "<image>"}, {151647, "<video>"}, {-1, ""}, {-1, ""}};
    const bool vl = strcmp(s->arch, "qwen2vl") == 0;
    struct iwp_gguf_str *tok = calloc((size_t)s->vocab, sizeof *tok), t;
    int32_t *type = calloc((size_t)s->vocab, sizeof *type);
    char(*pad)[16] = calloc((size_t)s->vocab, sizeof *pad);
    int rc = iwp_gguf_check_vocab(g, err);
    if (rc < 0 || !tok || !type || !pad) goto fail;
    struct iwp_gguf_iter it = iwp_gguf_iterate(iwp_gguf_find(g, "tokenizer.ggml.tokens"));
    const struct iwp_gguf_kv *types = iwp_gguf_find(g, "tokenizer.ggml.token_type");
    for (int i = 0; i < s->vocab; i++) {
        if (iwp_gguf_next(&it, &t)) {
            tok[i] = t;
            type[i] = types ? (int32_t)iwp_gguf_value_i64(types, (uint64_t)i) : 1;
        } else {
            tok[i] = (struct iwp_gguf_str){pad[i], (size_t)snprintf(pad[i], 16, "[PAD%d]", i)};
            type[i] = 5;
        }
        for (int k = 0; k < 4; k++)
            if ((vl ? qwen[k].id : llava[k].id) == i) {
                const char *text = vl ? qwen[k].text : llava[k].text;
                tok[i] = (struct iwp_gguf_str){text, strlen(text)};
                type[i] = 3;
            }
    }
    iwp_gguf_add_strs(w, "tokenizer.ggml.tokens", tok, (uint64_t)s->vocab);
    iwp_gguf_add_array(w, "tokenizer.ggml.token_type", IWP_GGUF_I32, type, (uint64_t)s->vocab);
    static const char *const copied[] = {"tokenizer.ggml.model", "tokenizer.ggml.pre",
                                         "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id",
                                         "tokenizer.chat_template"};
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++)
        if (iwp_gguf_find(g, copied[i])) iwp_gguf_add_kv(w, iwp_gguf_find(g, copied[i]));
    iwp_gguf_add_u32(w, "tokenizer.ggml.eos_token_id", 151645);
    iwp_gguf_add_bool(w, "tokenizer.ggml.add_bos_token", false);
    iwp_gguf_add_str(w, "iwp.model_type", vl ? "qwen2_5_vl" : "llava_onevision");
    iwp_gguf_add_u32(w, "iwp.image_token_id", vl ? 151655 : 151646);
    iwp_gguf_add_u32(w, "iwp.video_token_id", vl ? 151656 : 151647);
    if (vl) {
        iwp_gguf_add_u32(w, "iwp.vision_start_token_id", 151652);
        iwp_gguf_add_u32(w, "iwp.vision_end_token_id", 151653);
    }
fail:
    free(tok);
    free(type);
    free(pad);
    iwp_gguf_free(g);
    return rc < 0 ? rc : 0;
}

static int plan_decoder(struct iwp_gguf_writer *w, struct list *l, const struct decoder *s,
                        int layers, const char *vocab, iwp_err *err) {
    const int64_t d = s->d, kv = d / s->heads * s->kv;
    char key[64];
    iwp_gguf_add_str(w, "general.architecture", s->arch);
    iwp_gguf_add_str(w, "general.name", s->name);
    iwp_gguf_add_u32(w, "general.file_type", iwp_plan_file_type(l->want));
    u32(w, s->arch, "block_count", layers);
    u32(w, s->arch, "context_length", 32768);
    u32(w, s->arch, "embedding_length", s->d);
    u32(w, s->arch, "feed_forward_length", s->ff);
    u32(w, s->arch, "attention.head_count", s->heads);
    u32(w, s->arch, "attention.head_count_kv", s->kv);
    snprintf(key, sizeof key, "%s.rope.freq_base", s->arch);
    iwp_gguf_add_f32(w, key, 1e6f);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch);
    iwp_gguf_add_f32(w, key, 1e-6f);
    const int q = s->d / s->heads / 8; /* 2:3:3 of half the head */
    const int32_t sections[4] = {q, q * 3 / 2, q * 3 / 2, 0};
    if (strcmp(s->arch, "qwen2vl") == 0)
        iwp_gguf_add_array(w, "qwen2vl.rope.dimension_sections", IWP_GGUF_I32, sections, 4);
    IWP_TRY(add_vocab(w, s, vocab, err));
    linear(l, "token_embd", s->vocab, d, 0);
    for (int i = 0; i < layers; i++) {
        block(l, "", i, "attn_norm", 0, d, 0);
        block(l, "", i, "attn_q", d, d, 1);
        block(l, "", i, "attn_k", kv, d, 1);
        block(l, "", i, "attn_v", kv, d, 1);
        block(l, "", i, "attn_output", d, d, 0);
        block(l, "", i, "ffn_norm", 0, d, 0);
        block(l, "", i, "ffn_gate", s->ff, d, 0);
        block(l, "", i, "ffn_up", s->ff, d, 0);
        block(l, "", i, "ffn_down", d, s->ff, 0);
    }
    linear(l, "output_norm", 0, d, 0);
    if (!s->tied) linear(l, "output", s->vocab, d, 0);
    return 0;
}

static void tower_keys(struct iwp_gguf_writer *w, const struct tower *s, int layers,
                       uint32_t type) {
    static const float half[3] = {0.5f, 0.5f, 0.5f},
                       mean[3] = {0.48145466f, 0.4578275f, 0.40821073f},
                       std[3] = {0.26862954f, 0.26130258f, 0.27577711f};
    const char *v = "clip.vision";
    iwp_gguf_add_str(w, "general.architecture", "clip");
    iwp_gguf_add_str(w, "general.type", "mmproj");
    iwp_gguf_add_str(w, "general.name", s->name);
    iwp_gguf_add_u32(w, "general.file_type", iwp_plan_file_type(type));
    iwp_gguf_add_bool(w, "clip.has_vision_encoder", true);
    iwp_gguf_add_str(w, "clip.projector_type", s->qwen ? "qwen2.5vl_merger" : "mlp");
    iwp_gguf_add_bool(w, s->qwen ? "clip.use_silu" : "clip.use_gelu", true);
    u32(w, v, "image_size", s->qwen ? 560 : 384);
    u32(w, v, "patch_size", 14);
    u32(w, v, "embedding_length", s->d);
    u32(w, v, "feed_forward_length", s->ff);
    u32(w, v, "block_count", layers);
    u32(w, v, "projection_dim", s->out);
    u32(w, v, "attention.head_count", s->heads);
    iwp_gguf_add_f32(w, "clip.vision.attention.layer_norm_epsilon", 1e-6f);
    iwp_gguf_add_array(w, "clip.vision.image_mean", IWP_GGUF_F32, s->qwen ? mean : half, 3);
    iwp_gguf_add_array(w, "clip.vision.image_std", IWP_GGUF_F32, s->qwen ? std : half, 3);
    iwp_gguf_add_str(w, "iwp.model_type", s->qwen ? "qwen2_5_vl" : "llava_onevision");
    iwp_gguf_add_u32(w, "iwp.image_token_id", s->qwen ? 151655 : 151646);
    iwp_gguf_add_u32(w, "iwp.video_token_id", s->qwen ? 151656 : 151647);
    iwp_gguf_add_str(w, "iwp.vision_act", s->qwen ? "silu" : "gelu_tanh");
    iwp_gguf_add_str(w, "iwp.projector_act", "gelu_erf");
    iwp_gguf_add_u32(w, "iwp.resample", 3);
    if (s->qwen) {
        int32_t full[16], n = 0;
        for (int i = 7; i < layers && n < 16; i += 8) full[n++] = i;
        if (n == 0) full[n++] = layers - 1;
        u32(w, v, "spatial_merge_size", 2);
        u32(w, v, "window_size", 112);
        u32(w, v, "n_wa_pattern", full[0] + 1);
        u32(w, v, "image_min_pixels", 3136);
        u32(w, v, "image_max_pixels", 12845056);
        u32(w, "iwp", "min_pixels", 3136);
        u32(w, "iwp", "max_pixels", 12845056);
        u32(w, "iwp", "temporal_patch_size", 2);
        u32(w, "iwp", "tokens_per_second", 2);
        iwp_gguf_add_array(w, "iwp.fullatt_block_indexes", IWP_GGUF_I32, full, (uint64_t)n);
        return;
    }
    int32_t grid[72], at = 0;
    for (int h = 1; h <= 6; h++)
        for (int x = 1; x <= 6; x++) grid[at++] = 384 * h, grid[at++] = 384 * x;
    iwp_gguf_add_array(w, "clip.vision.feature_layer", IWP_GGUF_I32, &(int32_t){layers}, 1);
    iwp_gguf_add_array(w, "clip.vision.image_grid_pinpoints", IWP_GGUF_I32, grid, 72);
    iwp_gguf_add_str(w, "clip.vision.mm_patch_merge_type", "spatial_unpad");
    iwp_gguf_add_array(w, "iwp.image_grid_pinpoints", IWP_GGUF_I32, grid, 72);
    iwp_gguf_add_i32(w, "iwp.vision_feature_layer", -1);
    iwp_gguf_add_str(w, "iwp.vision_feature_select_strategy", "full");
    iwp_gguf_add_str(w, "iwp.vision_aspect_ratio", "anyres_max_9");
    iwp_gguf_add_u32(w, "iwp.anyres_max", 9);
}

static void plan_tower(struct iwp_gguf_writer *w, struct list *l, const struct tower *s,
                       int layers) {
    const int64_t d = s->d;
    tower_keys(w, s, layers, l->want);
    add(l, "v.patch_embd.weight", 4, 14, 14, 3, d);
    if (s->qwen) add(l, "v.patch_embd.weight.1", 4, 14, 14, 3, d);
    if (!s->qwen) {
        add(l, "v.patch_embd.bias", 1, d, 1, 1, 1);
        linear(l, "v.position_embd", 27 * 27, d, 0);
    }
    for (int i = 0; i < layers; i++) {
        block(l, "v.", i, "ln1", 0, d, !s->qwen);
        block(l, "v.", i, "attn_q", d, d, 1);
        block(l, "v.", i, "attn_k", d, d, 1);
        block(l, "v.", i, "attn_v", d, d, 1);
        block(l, "v.", i, "attn_out", d, d, 1);
        block(l, "v.", i, "ln2", 0, d, !s->qwen);
        if (s->qwen) block(l, "v.", i, "ffn_gate", s->ff, d, 1);
        block(l, "v.", i, "ffn_up", s->ff, d, 1);
        block(l, "v.", i, "ffn_down", d, s->ff, 1);
    }
    if (s->qwen) linear(l, "v.post_ln", 0, d, 0);
    linear(l, "mm.0", s->qwen ? 4 * d : s->out, s->qwen ? 4 * d : d, 1);
    linear(l, "mm.2", s->out, s->qwen ? 4 * d : s->out, 1);
    if (!s->qwen) add(l, "v.image_newline", 1, s->out, 1, 1, 1);
}

static uint64_t state = 0x9e3779b97f4a7c15u;
static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Random blocks of a type; `scale` is the largest value. */
static void fill(uint32_t type, uint8_t *p, size_t bytes, float scale, int norm) {
    const struct iwp_type_info *t = iwp_type_info(type);
    uint64_t r;
    if (type == IWP_TYPE_F32) {
        for (size_t i = 0; i < bytes / 4; i++) {
            float f = norm ? 1 + 0.1f * ((float)(next() >> 40) * 0x1p-23f - 1)
                           : scale * ((float)(next() >> 40) * 0x1p-23f - 1);
            memcpy(p + 4 * i, &f, 4);
        }
        return;
    }
    if (type == IWP_TYPE_F16 ||
        type == IWP_TYPE_BF16) { /* sign, mantissa and two bits of exponent are random; f16 files of
                                    the models meant here come from bf16 and have its 7 bits */
        uint16_t top = type == IWP_TYPE_F16 ? iwp_f32_to_f16(scale) : iwp_f32_to_bf16(scale);
        const int man = type == IWP_TYPE_F16 ? 10 : 7;
        const uint16_t e = (uint16_t)((top >> man) - 1);
        for (size_t i = 0; i < bytes / 8; i++) {
            r = next();
            for (int k = 0; k < 4; k++) {
                uint16_t b = (uint16_t)(r >> 16 * k);
                uint16_t h = (uint16_t)((b & 0x8000) | (uint16_t)((e - ((b >> man) & 3)) << man) |
                                        (b & ((1 << man) - 1) & ~((1 << (man - 7)) - 1)));
                memcpy(p + 8 * i + 2 * (size_t)k, &h, 2);
            }
        }
        return;
    }
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        r = next();
        memcpy(p + i, &r, 8);
    }
    /* the scales lie at fixed places of a block */
    for (size_t i = 0; i + t->size <= bytes; i += t->size) {
        uint16_t d = iwp_f32_to_f16(type == IWP_TYPE_Q8_0   ? scale / 127
                                    : type == IWP_TYPE_Q5_0 ? scale / 16
                                                            : scale / 8);
        /* Values -8…7 have a mean: without the sign it would add up over the rows, layer by layer, to
         * attention logits so far apart that most weights are denormal, which no real model has. */
        if (type == IWP_TYPE_Q4_0 || type == IWP_TYPE_Q5_0) d |= (uint16_t)(next() >> 48 & 0x8000);
        if (type == IWP_TYPE_Q6_K) {
            d = iwp_f32_to_f16(scale / (32 * 128));
            memcpy(p + i + 208, &d, 2);
        } else {
            if (type == IWP_TYPE_Q4_K) { /* 6-bit scales and minima on top, as large on average */
                d = iwp_f32_to_f16(scale / (15 * 63));
                uint16_t m = iwp_f32_to_f16(scale / (2 * 63));
                memcpy(p + i + 2, &m, 2);
            }
            memcpy(p + i, &d, 2);
        }
    }
}

static int write_data(struct iwp_gguf_writer *w, const struct list *l, iwp_err *err) {
    /* one random megabyte per (type, width), written again and again from a random start */
    enum { ROWS = 1 << 20 };
    for (int i = 0; i < l->n; i++) {
        const int64_t row = l->t[i].ne[0];
        int64_t rows = l->t[i].ne[1] * l->t[i].ne[2] * l->t[i].ne[3];
        const size_t one = (size_t)iwp_type_bytes(l->t[i].type, (uint64_t)row);
        int64_t fan = l->t[i].n_dims == 4 ? row * l->t[i].ne[1] * l->t[i].ne[2] : row;
        const int64_t batch = one > ROWS                     ? 1
                              : rows < (int64_t)(ROWS / one) ? rows
                                                             : (int64_t)(ROWS / one);
        uint8_t *buf = malloc((size_t)batch * one + 8);
        IWP_REQUIRE(buf, err, IWP_ENOMEM, "out of memory");
        const int norm = l->t[i].n_dims == 1 && strstr(l->t[i].name, "weight") != NULL;
        float scale = l->t[i].n_dims == 1 ? 0.02f : 1.7f / (float)fan;
        if (l->t[i].n_dims > 1) { /* 1.7 / sqrt(fan) by Newton's rule: keeps the residual's size */
            float x = 1;
            for (int k = 0; k < 60; k++) x = 0.5f * (x + (float)fan / x);
            scale = 1.7f / x;
        }
        int rc = 0;
        for (int64_t r = 0; r < rows && rc >= 0; r += batch) {
            const int64_t n = rows - r < batch ? rows - r : batch;
            if (r % (8 * batch) == 0) fill(l->t[i].type, buf, (size_t)n * one, scale, norm);
            rc = iwp_gguf_writer_data(w, buf, (size_t)n * one, err);
        }
        free(buf);
        IWP_TRY(rc);
    }
    return 0;
}

/* What is written: one of d and t is not NULL. */
struct plan {
    const struct decoder *d;
    const struct tower *t;
    uint32_t type;
    int layers;
};

static int plan_of(struct plan *p, const char *shape, const char *name, const char *layers,
                   iwp_err *err) {
    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < sizeof decoders / sizeof decoders[0]; i++)
        if (strcmp(shape, decoders[i].name) == 0) p->d = &decoders[i];
    for (size_t i = 0; i < sizeof towers / sizeof towers[0]; i++)
        if (strcmp(shape, towers[i].name) == 0) p->t = &towers[i];
    IWP_REQUIRE(p->d || p->t, err, IWP_EINVAL, "unknown shape %s", shape);
    const int all = p->d ? p->d->layers : p->t->layers;
    p->layers = layers ? atoi(layers) : all;
    IWP_REQUIRE(p->layers > 0 && p->layers <= all, err, IWP_EINVAL, "%s has %d layers, not %.20s",
                shape, all, layers ? layers : "");
    const int type = iwp_convert_type(name, err);
    if (type >= 0) p->type = (uint32_t)type;
    return type < 0 ? type : 0;
}

static int run(const struct plan *p, const char *vocab, const char *path, iwp_err *err) {
    static struct list l;
    const struct decoder *d = p->d;
    const struct tower *t = p->t;
    l.want = p->type;
    l.tied = d && d->tied;
    struct iwp_gguf_writer *w;
    IWP_TRY(iwp_gguf_writer_new(&w, err));
    int rc = 0;
    if (d)
        rc = plan_decoder(w, &l, d, p->layers, vocab, err);
    else
        plan_tower(w, &l, t, p->layers);
    for (int i = 0; i < l.n; i++)
        iwp_gguf_add_tensor(w, l.t[i].name, l.t[i].type, l.t[i].n_dims, l.t[i].ne);
    if (rc >= 0) rc = iwp_gguf_writer_begin(w, path, err);
    if (rc >= 0) rc = write_data(w, &l, err);
    if (rc >= 0) rc = iwp_gguf_writer_finish(w, err);
    if (rc >= 0) rc = iwp_gguf_writer_commit(w, err);
    if (rc >= 0) fprintf(stderr, "%s: %.1f MB\n", path, (double)iwp_gguf_writer_total(w) / 1e6);
    iwp_gguf_writer_free(w);
    return rc;
}

/* Gigabytes under a temporary name must not stay behind. */
static void on_signal(int sig) {
    (void)sig;
    iwp_output_abort_all();
    _exit(130);
}

int main(int argc, char **argv) {
    iwp_err err = {0};
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    const bool check = argc > 1 && strcmp(argv[1], "--check") == 0;
    const int last = check ? 4 : 5; /* where layers may stand */
    if (argc < last || argc > last + 1) {
        fprintf(stderr, "usage: random_gguf VOCAB.gguf SHAPE TYPE OUT.gguf [LAYERS], or --check "
                        "SHAPE TYPE [LAYERS]\n");
        return 2;
    }
    struct plan p;
    int code = plan_of(&p, argv[2], argv[3], argc > last ? argv[last] : NULL, &err) < 0 ? 2 : 0;
    if (code == 0 && !check && run(&p, argv[1], argv[4], &err) < 0) code = 1;
    if (code) fprintf(stderr, "random_gguf: %s\n", err.msg);
    return code;
}
