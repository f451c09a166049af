/* Opening a tower: keys, shapes, weights; see tower.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "model/vit.h"

enum { MAX_WIDTH = 1 << 16 };

/* A key in [lo, hi]. */
static int need(const struct iwp_gguf *g, const char *key, int32_t lo, int32_t hi, int32_t *out,
                iwp_err *err) {
    uint32_t v;
    IWP_TRY(iwp_gguf_get_u32(g, key, &v, err));
    IWP_REQUIRE(v >= (uint32_t)lo && v <= (uint32_t)hi, err, IWP_EFORMAT,
                "%s is %u, expected %d to %d", key, v, lo, hi);
    *out = (int32_t)v;
    return 0;
}

static int maybe(const struct iwp_gguf *g, const char *key, int32_t lo, int32_t hi,
                 int32_t fallback, int32_t *out, iwp_err *err) {
    *out = fallback;
    return iwp_gguf_find(g, key) ? need(g, key, lo, hi, out, err) : 0;
}

static int find_act(const struct iwp_gguf *g, const char *key, enum iwp_act fallback,
                    enum iwp_act *out, iwp_err *err) {
    const char *name;
    IWP_TRY(iwp_gguf_opt_str(g, key, "", &name, err));
    *out = fallback;
    if (!*name) return 0;
    int a = iwp_act_find(name, err);
    if (a < 0) return iwp_err_prefix(err, a, "%s", key);
    *out = (enum iwp_act)a;
    return 0;
}

static int read_pixels(const struct iwp_gguf *g, struct iwp_pre_params *pre, iwp_err *err) {
    float v[3];
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "clip.vision.image_std" : "clip.vision.image_mean";
        int n = iwp_gguf_array_f32(g, key, v, 3, err);
        IWP_TRY(n);
        IWP_REQUIRE(n == 3 || n == 0, err, IWP_EFORMAT, "%s has %d numbers, expected 3", key, n);
        for (int c = 0; c < n; c++) {
            IWP_REQUIRE(isfinite(v[c]) && (!i || v[c] > 0), err, IWP_EFORMAT,
                        "%s[%d] is not a usable number", key, c);
            if (i)
                pre->std[c] = (double)v[c];
            else
                pre->mean[c] = (double)v[c];
        }
    }
    int32_t filter; /* Pillow's number */
    IWP_TRY(maybe(g, "iwp.resample", 1, 3, 3, &filter, err));
    pre->filter = filter == 1   ? IWP_FILTER_LANCZOS
                  : filter == 2 ? IWP_FILTER_BILINEAR
                                : IWP_FILTER_BICUBIC;
    return need(g, "clip.vision.patch_size", 1, 256, &pre->patch, err);
}

static int read_qwen(struct iwp_tower *t, const struct iwp_gguf *g, iwp_err *err) {
    struct iwp_pre_params *p = &t->info.pre;
    *p = iwp_pre_default_qwen2_5_vl();
    IWP_TRY(read_pixels(g, p, err));
    int32_t rate = (int32_t)p->tokens_per_second;
    int64_t lo = p->min_pixels, hi = p->max_pixels;
    IWP_TRY(maybe(g, "clip.vision.spatial_merge_size", 1, 8, p->merge, &p->merge, err));
    IWP_TRY(maybe(g, "clip.vision.window_size", 1, 1 << 14, p->window, &p->window, err));
    IWP_TRY(maybe(g, "iwp.temporal_patch_size", 2, 2, 2, &p->temporal, err));
    IWP_TRY(maybe(g, "iwp.tokens_per_second", 1, 1000, rate, &rate, err));
    IWP_TRY(iwp_gguf_opt_i64(g, "iwp.min_pixels", lo, &lo, err));
    IWP_TRY(iwp_gguf_opt_i64(g, "iwp.max_pixels", hi, &hi, err));
    p->min_pixels = lo;
    p->max_pixels = hi;
    p->tokens_per_second = rate;
    t->info.merge = p->merge * p->merge;
    t->rms = true;
    t->eps = 1e-6f;
    IWP_REQUIRE(t->info.d_head % 4 == 0, err, IWP_ENOTSUP,
                "a head size of %d is not a multiple of 4", t->info.d_head);
    return 0;
}

/* Which blocks attend over the whole frame: listed by index, or every n-th. */
static int read_full_blocks(struct iwp_tower *t, const struct iwp_gguf *g, iwp_err *err) {
    int32_t list[IWP_VIT_MAX_BLOCK], every;
    int n = iwp_gguf_array_i32(g, "iwp.fullatt_block_indexes", list, IWP_VIT_MAX_BLOCK, err);
    IWP_TRY(n);
    for (int i = 0; i < n; i++) {
        IWP_REQUIRE(list[i] >= 0 && list[i] < t->n_layer, err, IWP_EFORMAT,
                    "iwp.fullatt_block_indexes names block %d of %d", list[i], t->n_layer);
        t->block[list[i]].full = true;
    }
    if (n) return 0;
    IWP_TRY(maybe(g, "clip.vision.n_wa_pattern", 0, IWP_VIT_MAX_BLOCK, 0, &every, err));
    for (int32_t i = 0; i < t->n_layer; i++) t->block[i].full = !every || (i + 1) % every == 0;
    return 0;
}

static int read_anyres(struct iwp_tower *t, const struct iwp_gguf *g, iwp_err *err) {
    struct iwp_pre_params *p = &t->info.pre;
    int32_t pair[2 * IWP_PRE_MAX_PINPOINT];
    *p = iwp_pre_default_llava_ov();
    int n = iwp_gguf_array_i32(g, "iwp.image_grid_pinpoints", pair, 2 * IWP_PRE_MAX_PINPOINT, err);
    IWP_TRY(n);
    IWP_REQUIRE(n > 0 && n % 2 == 0, err, IWP_EFORMAT,
                "iwp.image_grid_pinpoints must be pairs of height and width");
    p->n_pinpoint = n / 2;
    for (int i = 0; i < n; i++) p->pinpoint[i / 2][i % 2] = pair[i];
    return maybe(g, "iwp.anyres_max", 0, 1000, p->anyres_max, &p->anyres_max, err);
}

static int read_tiles(struct iwp_tower *t, const struct iwp_gguf *g, bool anyres, iwp_err *err) {
    struct iwp_pre_params *p = &t->info.pre;
    t->info.merge = 1;
    if (anyres) {
        IWP_TRY(read_anyres(t, g, err));
    } else {
        static const char *const aspects[] = {"crop", "pad", "letterbox", "squash"};
        const char *name;
        *p = iwp_pre_default_clip();
        p->aspect = IWP_PRE_LETTERBOX; /* as llama.cpp prepares pictures for these files */
        IWP_TRY(iwp_gguf_opt_str(g, "iwp.image_aspect", "letterbox", &name, err));
        int k = 0;
        while (k < 4 && strcmp(aspects[k], name) != 0) k++;
        IWP_REQUIRE(k < 4, err, IWP_ENOTSUP, "iwp.image_aspect '%.40s' is not supported", name);
        p->aspect = (enum iwp_pre_aspect)k;
    }
    IWP_TRY(read_pixels(g, p, err));
    IWP_TRY(need(g, "clip.vision.image_size", 1, 4096, &p->tile, err));
    IWP_REQUIRE(p->tile >= p->patch, err, IWP_EFORMAT,
                "clip.vision.image_size %d is below the patch size %d", p->tile, p->patch);
    const int32_t side = p->tile / p->patch;
    t->n_patch = side * side;
    IWP_TRY(iwp_gguf_opt_f32(g, "clip.vision.attention.layer_norm_epsilon", 1e-5f, &t->eps, err));
    IWP_REQUIRE(t->eps > 0 && t->eps < 1, err, IWP_EFORMAT,
                "clip.vision.attention.layer_norm_epsilon is %g", (double)t->eps);
    /* Hidden state k is the output of the k-th block; llama.cpp's LLaVA files mean the last but one. */
    int32_t layer = t->n_layer - 1, list[8];
    int n = iwp_gguf_array_i32(g, "clip.vision.feature_layer", list, 8, err);
    IWP_TRY(n);
    IWP_REQUIRE(n <= 1, err, IWP_ENOTSUP, "clip.vision.feature_layer lists %d layers", n);
    if (n == 1) layer = list[0];
    if (iwp_gguf_find(g, "iwp.vision_feature_layer")) {
        int64_t v;
        IWP_TRY(iwp_gguf_get_i64(g, "iwp.vision_feature_layer", &v, err));
        layer = v >= -1024 && v <= 1024 ? (int32_t)(v < 0 ? v + t->n_layer + 1 : v) : -1;
    }
    IWP_REQUIRE(layer >= 0 && layer <= t->n_layer, err, IWP_EFORMAT,
                "the feature layer is not one of the %d blocks", t->n_layer);
    t->info.n_block = layer;
    return 0;
}

static int read_keys(struct iwp_tower *t, const struct iwp_gguf *g, iwp_err *err) {
    const char *arch, *proj, *type;
    bool silu, gelu;
    IWP_TRY(iwp_gguf_get_str(g, "general.architecture", &arch, err));
    IWP_REQUIRE(strcmp(arch, "clip") == 0, err, IWP_ENOTSUP,
                "this is a model of architecture '%.40s', not an mmproj file", arch);
    IWP_TRY(iwp_gguf_opt_str(g, "clip.projector_type", "", &proj, err));
    if (!*proj) IWP_TRY(iwp_gguf_opt_str(g, "clip.vision.projector_type", "mlp", &proj, err));
    t->qwen = strcmp(proj, "qwen2.5vl_merger") == 0;
    IWP_REQUIRE(t->qwen || strcmp(proj, "mlp") == 0, err, IWP_ENOTSUP,
                "projector '%.40s' is not supported (mlp, qwen2.5vl_merger)", proj);
    IWP_TRY(iwp_gguf_opt_str(g, "iwp.model_type", "", &type, err));
    t->projector = malloc(strlen(proj) + 1);
    IWP_REQUIRE(t->projector, err, IWP_ENOMEM, "out of memory");
    strcpy(t->projector, proj);
    t->info.projector = t->projector;

    IWP_TRY(need(g, "clip.vision.block_count", 1, IWP_VIT_MAX_BLOCK, &t->n_layer, err));
    IWP_TRY(need(g, "clip.vision.embedding_length", 1, MAX_WIDTH, &t->info.d_vision, err));
    IWP_TRY(need(g, "clip.vision.feed_forward_length", 1, MAX_WIDTH, &t->n_ff, err));
    IWP_TRY(need(g, "clip.vision.attention.head_count", 1, 1024, &t->info.n_head, err));
    IWP_REQUIRE(t->info.d_vision % t->info.n_head == 0, err, IWP_EFORMAT,
                "clip.vision.embedding_length %d is not a multiple of %d heads", t->info.d_vision,
                t->info.n_head);
    t->info.d_head = t->info.d_vision / t->info.n_head;
    t->info.n_block = t->n_layer;
    IWP_TRY(iwp_gguf_opt_bool(g, "clip.use_silu", false, &silu, err));
    IWP_TRY(iwp_gguf_opt_bool(g, "clip.use_gelu", false, &gelu, err));
    const enum iwp_act usual = t->qwen || silu ? IWP_ACT_SILU
                               : gelu          ? IWP_ACT_GELU_TANH
                                               : IWP_ACT_GELU_QUICK;
    IWP_TRY(find_act(g, "iwp.vision_act", usual, &t->act, err));
    /* llama.cpp's LLaVA projector has the tanh form, whatever the original model had */
    IWP_TRY(find_act(g, "iwp.projector_act", t->qwen ? IWP_ACT_GELU_ERF : IWP_ACT_GELU_TANH,
                     &t->proj_act, err));
    IWP_TRY(maybe(g, "iwp.image_token_id", 0, 1 << 24, -1, &t->info.image_token, err));
    IWP_TRY(maybe(g, "iwp.video_token_id", 0, 1 << 24, -1, &t->info.video_token, err));
    if (t->qwen)
        IWP_TRY(read_qwen(t, g, err));
    else
        IWP_TRY(read_tiles(t, g, strcmp(type, "llava_onevision") == 0, err));
    return iwp_pre_params_check(&t->info.pre, err);
}

/* ---- Weights ------------------------------------------------------------------------------- */

struct loader {
    struct iwp_tower *t;
    int32_t cpu, block; /* block: -1 outside */
    iwp_err *err;
    int rc;
};

/* Declares NAME.weight [in, out] and NAME.bias [out]; in = 0: a vector.  The first error stays. */
static void declare(struct loader *l, const char *name, int64_t in, int64_t out, int use,
                    struct ggml_tensor **w, struct ggml_tensor **b) {
    char full[96];
    for (int i = 0; i < 2 && l->rc >= 0; i++) {
        struct ggml_tensor **to = i ? b : w;
        if (!to) continue;
        if (l->block >= 0)
            snprintf(full, sizeof full, "v.blk.%d.%s.%s", l->block, name, i ? "bias" : "weight");
        else
            snprintf(full, sizeof full, "%s.%s", name, i ? "bias" : "weight");
        const int64_t ne[2] = {in && !i ? in : out, out};
        /* Matrices keep their type or are packed; everything else is read element by element, as f32. */
        const int matrix = l->t->pack ? IWP_WEIGHT_PACKED : IWP_WEIGHT_MATMUL;
        const int kind = in && !i ? matrix : IWP_WEIGHT_F32;
        l->rc = iwp_weights_get(l->t->w, full, in && !i ? 2 : 1, ne,
                                kind | (use & IWP_WEIGHT_OPTIONAL) | (i ? IWP_WEIGHT_OPTIONAL : 0),
                                l->cpu, to, l->err);
    }
}

static void declare_block(struct loader *l, struct iwp_vit_block *b) {
    const int64_t d = l->t->info.d_vision, f = l->t->n_ff;
    char name[64];
    declare(l, "ln1", 0, d, 0, &b->ln1_w, &b->ln1_b);
    declare(l, "ln2", 0, d, 0, &b->ln2_w, &b->ln2_b);
    snprintf(name, sizeof name, "attn_qkv");
    declare(l, name, d, 3 * d, IWP_WEIGHT_OPTIONAL, &b->qkv_w, &b->qkv_b);
    if (!b->qkv_w) {
        declare(l, "attn_q", d, d, 0, &b->q_w, &b->q_b);
        declare(l, "attn_k", d, d, 0, &b->k_w, &b->k_b);
        declare(l, "attn_v", d, d, 0, &b->v_w, &b->v_b);
    }
    declare(l, "attn_out", d, d, 0, &b->o_w, &b->o_b);
    if (l->t->qwen) declare(l, "ffn_gate", d, f, 0, &b->gate_w, &b->gate_b);
    declare(l, "ffn_up", d, f, 0, &b->up_w, &b->up_b);
    declare(l, "ffn_down", f, d, 0, &b->down_w, &b->down_b);
}

static int declare_embedding(struct loader *l, const struct iwp_gguf *g) {
    struct iwp_tower *t = l->t;
    const int64_t d = t->info.d_vision, p = t->info.pre.patch, ne[4] = {p, p, 3, d};
    IWP_TRY(iwp_weights_get(t->w, "v.patch_embd.weight", 4, ne, IWP_WEIGHT_F32, l->cpu, &t->patch_w,
                            l->err));
    IWP_TRY(iwp_weights_get(t->w, "v.patch_embd.bias", 1, &d, IWP_WEIGHT_F32 | IWP_WEIGHT_OPTIONAL,
                            l->cpu, &t->patch_b, l->err));
    if (t->qwen)
        return iwp_weights_get(t->w, "v.patch_embd.weight.1", 4, ne, IWP_WEIGHT_F32, l->cpu,
                               &t->patch_w1, l->err);
    const char *where;
    IWP_TRY(iwp_weights_get(t->w, "v.class_embd", 1, &d, IWP_WEIGHT_F32 | IWP_WEIGHT_OPTIONAL,
                            l->cpu, &t->cls, l->err));
    t->info.has_class = t->cls != NULL;
    /* llama.cpp puts the class token behind the patches and passes rows 1 … n on. */
    IWP_TRY(iwp_gguf_opt_str(g, "iwp.class_token", "last", &where, l->err));
    IWP_REQUIRE(strcmp(where, "last") == 0 || strcmp(where, "first") == 0, l->err, IWP_ENOTSUP,
                "iwp.class_token '%.40s' is neither first nor last", where);
    t->info.class_last = t->cls && strcmp(where, "last") == 0;
    const int64_t pos[2] = {d, t->n_patch + (t->cls ? 1 : 0)};
    return iwp_weights_get(t->w, "v.position_embd.weight", 2, pos, IWP_WEIGHT_F32, l->cpu, &t->pos,
                           l->err);
}

static int declare_all(struct iwp_tower *t, const struct iwp_gguf *g, iwp_err *err) {
    struct loader l = {t, iwp_backend_cpu(t->b), -1, err, 0};
    const int64_t d = t->info.d_vision;
    IWP_TRY(declare_embedding(&l, g));
    if (t->qwen) {
        declare(&l, "v.post_ln", 0, d, 0, &t->post_w, &t->post_b);
    } else {
        declare(&l, "v.pre_ln", 0, d, IWP_WEIGHT_OPTIONAL, &t->pre_w, &t->pre_b);
        declare(&l, "v.post_ln", 0, d, IWP_WEIGHT_OPTIONAL, &t->post_w, &t->post_b);
    }
    for (l.block = 0; l.block < t->info.n_block && l.rc >= 0; l.block++)
        declare_block(&l, &t->block[l.block]);
    l.block = -1;
    IWP_TRY(l.rc);

    /* The projector's widths are what its tensors say; D is the last one. */
    const struct iwp_gguf_tensor *m0, *m2 = iwp_gguf_find_tensor(g, "mm.2.weight");
    const int64_t in[2] = {d * t->info.merge, -1};
    IWP_TRY(iwp_gguf_need_tensor(g, "mm.0.weight", 2, in, &m0, err));
    IWP_REQUIRE(m0->ne[1] <= MAX_WIDTH && (!m2 || m2->ne[1] <= MAX_WIDTH), err, IWP_EFORMAT,
                "mm.0.weight: a width of %lld is not plausible", (long long)m0->ne[1]);
    declare(&l, "mm.0", m0->ne[0], m0->ne[1], 0, &t->mm0_w, &t->mm0_b);
    t->info.d_model = (int32_t)m0->ne[1];
    t->n_projector = (double)m0->ne[0] * (double)m0->ne[1];
    if (m2) {
        declare(&l, "mm.2", m0->ne[1], m2->ne[1], 0, &t->mm2_w, &t->mm2_b);
        t->info.d_model = (int32_t)m2->ne[1];
        t->n_projector += (double)m2->ne[0] * (double)m2->ne[1];
    }
    return l.rc;
}

static int load_newline(struct iwp_tower *t, const struct iwp_gguf *g, struct ggml_tensor **raw,
                        iwp_err *err) {
    *raw = NULL;
    if (t->qwen || t->info.pre.kind != IWP_PRE_LLAVA_OV) return 0;
    const int64_t d = t->info.d_model;
    const char *name =
        iwp_gguf_find_tensor(g, "v.image_newline") ? "v.image_newline" : "model.image_newline";
    return iwp_weights_get(t->w, name, 1, &d, IWP_WEIGHT_F32, iwp_backend_cpu(t->b), raw, err);
}

/* Do the numbers of an f16 tensor carry more than bf16's 8 bits?  Checkpoints in bf16, as the large models
 * are published, keep theirs in an f16 file; a few hundred numbers tell. */
static int is_finer(const struct iwp_gguf *g, const struct iwp_gguf_tensor *w, bool *out,
                    iwp_err *err) {
    enum { SAMPLE = 4096 };
    uint16_t h[SAMPLE];
    const size_t n = w->size < sizeof h ? (size_t)w->size : sizeof h;
    int64_t finer = 0;
    *out = false;
    if (w->type != GGML_TYPE_F16) return 0; /* bf16, or quantised to 8 bits and fewer */
    IWP_TRY(iwp_weights_read(g, w, h, n, err));
    for (size_t i = 0; i < n / sizeof *h; i++) finer += (h[i] & 7) != 0;
    *out = finer * 10 > (int64_t)(n / sizeof *h);
    return 0;
}

/* Files with f32 matrices are run exactly, by ggml: comparisons with other implementations rest on that.
 * All others are packed; bf16 ones split where the file's own numbers are finer. */
static int choose_kernel(struct iwp_tower *t, const struct iwp_gguf *g, iwp_err *err) {
    const struct iwp_gguf_tensor *w = iwp_gguf_find_tensor(g, "v.blk.0.attn_out.weight");
    const struct iwp_gemm *best = iwp_gemm_get();
    t->info.kernel = "ggml";
    if (!best || t->b->plain_weights || !w || w->type == GGML_TYPE_F32) return 0;
    if (!best->fine) IWP_TRY(is_finer(g, w, &t->info.split, err));
    t->info.kernel = best->name;
    return iwp_pack_new(&t->pack, best, t->info.split, t->b->n_thread, err);
}

static int open_tower(struct iwp_tower *t, const struct iwp_gguf *g, iwp_err *err) {
    struct ggml_tensor *newline;
    IWP_TRY(read_keys(t, g, err));
    t->block = calloc((size_t)t->n_layer, sizeof *t->block);
    IWP_REQUIRE(t->block, err, IWP_ENOMEM, "out of memory");
    if (t->qwen) IWP_TRY(read_full_blocks(t, g, err));
    IWP_TRY(choose_kernel(t, g, err));
    IWP_TRY(iwp_weights_new(&t->w, t->b, g, err));
    iwp_weights_set_pack(t->w, t->pack);
    IWP_TRY(declare_all(t, g, err));
    IWP_TRY(load_newline(t, g, &newline, err));
    IWP_TRY(iwp_weights_load(t->w, "load vision tower", err));
    iwp_log(IWP_LOG_DEBUG, "vision tower: %s%s%s%s", t->info.kernel, t->pack ? ", packed " : "",
            t->pack ? iwp_pack_gemm(t->pack)->form : "",
            t->info.split ? ", split from f16 (the file's numbers are finer)" : "");
    if (newline) {
        t->newline = malloc((size_t)t->info.d_model * sizeof *t->newline);
        IWP_REQUIRE(t->newline, err, IWP_ENOMEM, "out of memory");
        ggml_backend_tensor_get(newline, t->newline, 0, (size_t)t->info.d_model * 4);
    }
    /* A block is 40 nodes and 9 for every run of windows or part of a long one. */
    int32_t nodes = 1024, extra = IWP_VIT_MAX_RUN;
    for (int32_t i = 0; i < t->info.n_block; i++) {
        if (t->qwen && t->block[i].full) extra = IWP_VIT_MAX_CHUNK;
        nodes += 64 + 12 * (t->qwen ? extra : 8 + IWP_VIT_MAX_CHUNK);
        extra = IWP_VIT_MAX_RUN;
    }
    IWP_TRY(iwp_sched_new(&t->project_sched, t->b, 64, err));
    return iwp_sched_new(&t->sched, t->b, nodes, err);
}

int iwp_tower_new(struct iwp_tower **out, struct iwp_backend *b, const struct iwp_gguf *mmproj,
                  iwp_err *err) {
    *out = NULL;
    struct iwp_tower *t = calloc(1, sizeof *t);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    t->b = b;
    t->tapped = -1;
    int rc = open_tower(t, mmproj, err);
    if (rc < 0) {
        iwp_tower_free(t);
        const char *path = mmproj->n_part ? mmproj->part[0].path : NULL;
        return iwp_err_prefix(err, rc, "%s", path ? path : "mmproj");
    }
    *out = t;
    return 0;
}

void iwp_tower_free(struct iwp_tower *t) {
    if (!t) return;
    iwp_sched_free(t->sched);
    iwp_sched_free(t->project_sched);
    iwp_weights_free(t->w);
    iwp_pack_free(t->pack);
    free(t->block);
    free(t->newline);
    free(t->projector);
    free(t);
}

const struct iwp_tower_info *iwp_tower_info(const struct iwp_tower *t) { return &t->info; }
int iwp_tower_check_options(const struct iwp_tower *t, const struct iwp_params *p, iwp_err *err) {
    struct iwp_params usual;
    iwp_params_default(&usual, p->method);
    const struct iwp_option *o = iwp_method_info(p->method)->options;
    for (; o && o->name; o++) {
        const bool cls = strcmp(o->name, "cls") == 0;
        char have[32], def[32], want[16];
        if (!cls && strcmp(o->name, "merge") != 0) continue;
        snprintf(want, sizeof want, "%d", cls ? t->info.has_class : t->info.merge);
        iwp_params_print(p, o, have, sizeof have);
        iwp_params_print(&usual, o, def, sizeof def);
        IWP_REQUIRE(!strcmp(have, def) || !strcmp(have, want), err, IWP_EINVAL,
                    "--prune-opt %s=%s: with this vision tower it is %s (%s)", o->name, have, want,
                    cls ? "no class token" : "rows of a token");
    }
    return 0;
}

size_t iwp_tower_bytes(const struct iwp_tower *t) { return iwp_weights_bytes(t->w); }
const float *iwp_tower_newline(const struct iwp_tower *t) { return t->newline; }

void iwp_tower_out_free(struct iwp_tower_out *o) {
    free(o->row);
    free(o->vision);
    free(o->feature);
    free(o->q);
    free(o->k);
    free(o->cls_f);
    free(o->cls_q);
    free(o->cls_k);
    free(o->lead);
    *o = (struct iwp_tower_out){0};
}

size_t iwp_tower_out_bytes(const struct iwp_tower *t, const struct iwp_tower_out *o) {
    const size_t d = (size_t)t->info.d_vision, rows = (size_t)o->n_row;
    size_t n = rows * ((size_t)t->info.d_model + (o->lead != NULL));
    n += o->vision ? (size_t)o->n_vision * d : 0;
    n += (size_t)((o->feature != NULL) + (o->q != NULL) + (o->k != NULL)) * rows *
         (size_t)t->info.merge * d;
    return n * sizeof(float);
}

/* Memory for everything that is wanted. */
static int reserve(const struct iwp_tower *t, const struct iwp_tower_want *want, size_t n_cls,
                   struct iwp_tower_out *o, iwp_err *err) {
    const size_t d = (size_t)t->info.d_vision * sizeof(float);
    const size_t rows = (size_t)o->n_row * (size_t)t->info.merge * d;
    bool ok = true;
    ok &= (o->row = malloc((size_t)o->n_row * (size_t)t->info.d_model * sizeof(float))) != NULL;
    if (want->vision) ok &= (o->vision = malloc((size_t)o->n_vision * d)) != NULL;
    if (want->features) ok &= (o->feature = malloc(rows)) != NULL;
    if (want->qk) ok &= (o->q = malloc(rows)) != NULL && (o->k = malloc(rows)) != NULL;
    if (want->merge) ok &= (o->lead = malloc((size_t)o->n_row * sizeof *o->lead)) != NULL;
    if (n_cls && want->features) ok &= (o->cls_f = malloc(n_cls * d)) != NULL;
    if (n_cls && want->qk)
        ok &= (o->cls_q = malloc(n_cls * d)) != NULL && (o->cls_k = malloc(n_cls * d)) != NULL;
    o->n_cls = (int32_t)n_cls;
    IWP_REQUIRE(ok, err, IWP_ENOMEM, "out of memory for %d visual rows", o->n_row);
    return 0;
}

int iwp_tower_encode(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                     const struct iwp_tower_want *want, struct iwp_tower_out *out, iwp_err *err) {
    *out = (struct iwp_tower_out){0};
    struct iwp_tower_want w = *want;
    if (w.qk) {
        if (w.block < 0) w.block += t->info.n_block;
        IWP_REQUIRE(w.block >= 0 && w.block < t->info.n_block, err, IWP_EINVAL,
                    "the tower has %d blocks, block %d was asked for", t->info.n_block,
                    want->block);
    }
    IWP_REQUIRE(!w.merge || (!w.vision && !w.features && !w.qk), err, IWP_ENOTSUP,
                "method %s changes the tower's rows: they cannot be dumped or read by others",
                iwp_method_info(w.merge->method)->name);
    size_t n_cls = 0;
    if (t->qwen) {
        out->n_vision = plan->grid_t * plan->grid_h * plan->grid_w;
        out->n_row = out->n_vision / t->info.merge;
    } else {
        IWP_REQUIRE(plan->side * plan->side == t->n_patch, err, IWP_EINTERNAL,
                    "a plan of %d features a side for a tower of %d patches", plan->side,
                    t->n_patch);
        out->n_row = plan->n_tile * t->n_patch;
        out->n_vision = plan->n_tile * (t->n_patch + (t->cls ? 1 : 0));
        n_cls = t->cls ? (size_t)plan->n_tile : 0;
    }
    int rc = reserve(t, &w, n_cls, out, err);
    const int32_t tap = w.qk ? w.block : -1;
    t->replan = tap != t->tapped;
    t->tapped = tap;
    iwp_backend_size_threads(t->b, iwp_tower_flops(t, plan) / 2);
    iwp_sched_set_pauses(t->sched, w.cancel, w.cancel_ctx);
    struct iwp_progress meter;
    const int32_t batch = t->qwen ? 1 : iwp_vit_tile_batch(t, plan);
    iwp_progress_start(&meter, "encode", "steps", 0);
    if (w.meter)
        iwp_sched_set_meter(t->sched, &meter,
                            t->qwen ? plan->grid_t : (plan->n_tile + batch - 1) / batch);
    if (rc >= 0 && w.merge)
        rc = t->qwen ? iwp_vit_merge_qwen(t, plan, pixels, &w, out, err)
                     : iwp_vit_merge_tiles(t, plan, pixels, &w, out, err);
    else if (rc >= 0)
        rc = t->qwen ? iwp_vit_encode_qwen(t, plan, pixels, &w, out, err)
                     : iwp_vit_encode_tiles(t, plan, pixels, &w, out, err);
    iwp_sched_set_meter(t->sched, NULL, 0);
    if (w.meter) iwp_progress_end(&meter);
    if (rc < 0) iwp_tower_out_free(out);
    return rc;
}

static int place_graph(struct iwp_tower *t, struct iwp_sched *s, struct ggml_cgraph *g,
                       iwp_err *err) {
    if (t->pack) IWP_TRY(iwp_pack_check(t->pack, err));
    if (t->b->n_device > 1) /* custom ops and the weights are the CPU's: so is all of it */
        for (int i = 0; i < ggml_graph_n_nodes(g); i++)
            iwp_sched_pin(s, ggml_graph_node(g, i), iwp_backend_cpu(t->b));
    return iwp_sched_alloc(s, err);
}

void iwp_vit_outputs(struct ggml_cgraph *g, struct ggml_tensor **out, int n) {
    for (int i = 0; i < n; i++) {
        if (!out[i]) continue;
        ggml_set_output(out[i]);
        ggml_build_forward_expand(g, out[i]);
    }
}

int iwp_vit_place_graph(struct iwp_tower *t, struct ggml_cgraph *g, iwp_err *err) {
    if (t->replan) IWP_TRY(iwp_sched_replan(t->sched, err));
    t->replan = false;
    return place_graph(t, t->sched, g, err);
}

int iwp_tower_project(struct iwp_tower *t, const float *x, int32_t n, float *y, iwp_err *err) {
    struct ggml_context *ctx;
    struct ggml_cgraph *g;
    if (n <= 0) return 0;
    IWP_REQUIRE(n % t->info.merge == 0, err, IWP_EINVAL,
                "%d encoder rows are no multiple of %d for the projector", n, t->info.merge);
    IWP_TRY(iwp_sched_begin(t->project_sched, &ctx, &g, err));
    struct ggml_tensor *in = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, t->info.d_vision, n);
    ggml_set_input(in);
    struct ggml_tensor *out = iwp_vit_projector(t, ctx, in);
    ggml_set_output(out);
    ggml_build_forward_expand(g, out);
    IWP_TRY(place_graph(t, t->project_sched, g, err));
    ggml_backend_tensor_set(in, x, 0, ggml_nbytes(in));
    IWP_TRY(iwp_sched_compute(t->project_sched, err));
    ggml_backend_tensor_get(out, y, 0, ggml_nbytes(out));
    return 0;
}

double iwp_tower_flops(const struct iwp_tower *t, const struct iwp_pre_plan *plan) {
    const double d = t->info.d_vision, pp = (double)t->info.pre.patch * t->info.pre.patch;
    const double seq =
        t->qwen ? (double)plan->grid_h * plan->grid_w : t->n_patch + (t->cls != NULL);
    const double n_seq = t->qwen ? plan->grid_t : plan->n_tile, rows = seq * n_seq;
    double pairs = seq * seq * n_seq, window = 0; /* query-key pairs of a full and a window block */
    if (t->qwen) {
        const int32_t side = plan->window / plan->patch;
        for (int32_t y = 0; y < plan->grid_h; y += side)
            for (int32_t x = 0; x < plan->grid_w; x += side) {
                const double h = plan->grid_h - y < side ? plan->grid_h - y : side;
                const double w = plan->grid_w - x < side ? plan->grid_w - x : side;
                window += h * w * h * w;
            }
        window *= n_seq;
    }
    double sum = rows * 3 * pp * d * (t->qwen ? 2 : 1);
    for (int32_t i = 0; i < t->info.n_block; i++) {
        sum += rows * (4 * d * d + (t->qwen ? 3 : 2) * d * t->n_ff);
        sum += 2 * d * (t->qwen && !t->block[i].full ? window : pairs);
    }
    sum += rows / t->info.merge * t->n_projector;
    return 2 * sum;
}
