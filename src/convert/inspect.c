/* Collects what iwp inspect shows: see inspect.h. */
#include "convert/inspect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/hash.h"
#include "convert/hf.h"
#include "convert/quant.h"
#include "io/gguf.h"
#ifdef IWP_HAVE_GGML
#include "model/chat.h"
#endif

static void why(struct iwp_inspect *r, const char *text) {
    if (!r->why[0]) snprintf(r->why, sizeof r->why, "%s", text);
}

/* The block a name speaks of, -1 for none; *tower when it is the vision tower's. */
static int layer_of(const char *name, bool *tower) {
    static const struct {
        const char *mark;
        int tower; /* 2: ask the name */
    } marks[] = {
        {"v.blk.", 1}, {"blk.", 0}, {".encoder.layers.", 1}, {".blocks.", 1}, {".layers.", 2}};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        const char *p = strstr(name, marks[i].mark);
        char *end;
        if (!p) continue;
        p += strlen(marks[i].mark);
        long n = strtol(p, &end, 10);
        if (end == p || n < 0 || n >= IWP_INSPECT_MAX_LAYER) continue;
        *tower = marks[i].tower == 1 || (marks[i].tower == 2 && strstr(name, "vision") != NULL);
        return (int)n;
    }
    return -1;
}

static void count(struct iwp_inspect *r, const char *name, const char *type, int64_t n,
                  uint64_t bytes) {
    int i = 0;
    while (i < r->n_type && strcmp(r->type[i].name, type) != 0) i++;
    if (i == r->n_type && r->n_type < IWP_INSPECT_MAX_TYPE) {
        memset(&r->type[i], 0, sizeof r->type[i]);
        snprintf(r->type[i].name, sizeof r->type[i].name, "%s", type);
        r->n_type++;
    }
    if (i < r->n_type) {
        r->type[i].n_tensor++;
        r->type[i].n_param += n;
        r->type[i].bytes += bytes;
    }
    r->n_tensor++;
    r->n_param += n;
    r->bytes += bytes;
    bool tower = false;
    int l = layer_of(name, &tower);
    if (l < 0) {
        r->other += bytes;
        return;
    }
    uint64_t *list = tower ? r->tower_layer : r->decoder_layer;
    int32_t *top = tower ? &r->n_tower_layer : &r->n_decoder_layer;
    list[l] += bytes;
    if (l + 1 > *top) *top = l + 1;
}

static void set_template(struct iwp_inspect *r, const char *text) {
    if (!text || !text[0]) return;
    const size_t n = strlen(text);
    struct iwp_sha256 s;
    uint8_t digest[32];
    r->chat_template = malloc(n + 1);
    if (!r->chat_template) return;
    memcpy(r->chat_template, text, n + 1);
    iwp_sha256_init(&s);
    iwp_sha256_add(&s, text, n);
    iwp_sha256_end(&s, digest);
    iwp_sha256_hex(digest, r->template_sha);
#ifdef IWP_HAVE_GGML
    const struct iwp_chat_template *t = iwp_chat_detect(text);
    r->template_name = t ? iwp_chat_name(t) : NULL;
#endif
}

/* The type a file is mostly of, and tensors that would be of it if their rows allowed. */
static int find_fallbacks(struct iwp_inspect *r, const struct iwp_gguf *g, iwp_err *err) {
    static const uint32_t known[] = {IWP_TYPE_F32,  IWP_TYPE_F16,  IWP_TYPE_BF16,
                                     IWP_TYPE_Q8_0, IWP_TYPE_Q4_0, IWP_TYPE_Q4_K};
    uint32_t file = 1024, want = 1024;
    iwp_gguf_opt_u32(g, "general.file_type", 1024, &file, NULL);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (file == iwp_plan_file_type(known[i]) || (file == 15 && known[i] == IWP_TYPE_Q4_K))
            want = known[i];
    if (want == 1024) {
        /* not one of ours: the type that holds most values */
        int best = 0;
        for (int i = 1; i < r->n_type; i++)
            if (r->type[i].n_param > r->type[best].n_param) best = i;
        if (r->n_type) snprintf(r->main_type, sizeof r->main_type, "%s", r->type[best].name);
        return 0;
    }
    snprintf(r->main_type, sizeof r->main_type, "%s", iwp_type_info(want)->name);
    const bool tied = !iwp_gguf_find_tensor(g, "output.weight");
    for (int32_t i = 0; i < g->n_tensor; i++) {
        const struct iwp_gguf_tensor *t = &g->tensor[i];
        bool fallback;
        const uint32_t type = iwp_plan_type(want, t->name, t->n_dims, t->ne[0], tied, &fallback);
        if (!fallback || type != t->type) continue;
        if ((r->n_fallback & (r->n_fallback - 1)) == 0) {
            size_t cap = r->n_fallback ? 2 * (size_t)r->n_fallback : 1;
            struct iwp_inspect_fallback *f = realloc(r->fallback, cap * sizeof *f);
            IWP_REQUIRE(f, err, IWP_ENOMEM, "%s: out of memory", r->path);
            r->fallback = f;
        }
        struct iwp_inspect_fallback *f = &r->fallback[r->n_fallback++];
        snprintf(f->name, sizeof f->name, "%s", t->name);
        snprintf(f->type, sizeof f->type, "%s", iwp_type_info(t->type)->name);
        f->row = t->ne[0];
    }
    return 0;
}

/* ---- decoder GGUF -------------------------------------------------------------------------- */

static int get(const struct iwp_gguf *g, const char *arch, const char *key, bool must,
               int32_t fallback, int32_t *out, iwp_err *err) {
    char name[128];
    uint32_t v;
    snprintf(name, sizeof name, "%s.%s", arch, key);
    *out = fallback;
    IWP_TRY(must ? iwp_gguf_get_u32(g, name, &v, err)
                 : iwp_gguf_opt_u32(g, name, (uint32_t)fallback, &v, err));
    IWP_REQUIRE(v <= 1 << 30, err, IWP_EFORMAT, "%s: key %s is %u", g->part[0].path, name, v);
    *out = (int32_t)v;
    return 0;
}

static int read_decoder(struct iwp_inspect *r, const struct iwp_gguf *g, iwp_err *err) {
    const char *a = r->arch, *text;
    char key[128];
    IWP_TRY(get(g, a, "block_count", true, 0, &r->decoder.n_layer, err));
    IWP_TRY(get(g, a, "embedding_length", true, 0, &r->decoder.n_embd, err));
    IWP_TRY(get(g, a, "feed_forward_length", true, 0, &r->decoder.n_ff, err));
    IWP_TRY(get(g, a, "attention.head_count", true, 0, &r->decoder.n_head, err));
    r->decoder.there = true;
    IWP_REQUIRE(r->decoder.n_head > 0, err, IWP_EFORMAT, "%s: no attention heads", r->path);
    IWP_TRY(
        get(g, a, "attention.head_count_kv", false, r->decoder.n_head, &r->decoder.n_head_kv, err));
    IWP_TRY(get(g, a, "attention.key_length", false, r->decoder.n_embd / r->decoder.n_head,
                &r->decoder.head_dim, err));
    IWP_TRY(get(g, a, "context_length", false, 0, &r->decoder.n_ctx, err));
    snprintf(key, sizeof key, "%s.rope.freq_base", a);
    IWP_TRY(iwp_gguf_opt_f32(g, key, 10000, &r->decoder.rope_theta, err));
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", a);
    IWP_TRY(iwp_gguf_opt_f32(g, key, 0, &r->decoder.rms_eps, err));
    snprintf(key, sizeof key, "%s.rope.dimension_sections", a);
    IWP_TRY(iwp_gguf_array_i32(g, key, r->decoder.sections, 4, err));
    IWP_TRY(iwp_gguf_opt_str(g, "tokenizer.ggml.pre", "", &text, err));
    snprintf(r->decoder.tokenizer, sizeof r->decoder.tokenizer, "%s", text);
    const struct iwp_gguf_kv *tokens = iwp_gguf_find(g, "tokenizer.ggml.tokens");
    r->decoder.n_vocab = tokens && tokens->n < INT32_MAX ? (int32_t)tokens->n : 0;
    r->decoder.tied = !iwp_gguf_find_tensor(g, "output.weight");
    return 0;
}

static int check_decoder(const struct iwp_inspect *r, const struct iwp_gguf *g, iwp_err *err) {
    const bool qwen = strcmp(r->arch, "qwen2") == 0 || strcmp(r->arch, "qwen2vl") == 0;
    IWP_REQUIRE(qwen || strcmp(r->arch, "llama") == 0, err, IWP_ENOTSUP,
                "architecture '%.60s' is not supported (qwen2, qwen2vl, llama)", r->arch);
    IWP_REQUIRE(r->decoder.n_layer >= 1 && r->decoder.n_layer <= IWP_INSPECT_MAX_LAYER &&
                    r->decoder.n_head_kv >= 1 && r->decoder.n_head % r->decoder.n_head_kv == 0 &&
                    r->decoder.head_dim >= 1,
                err, IWP_EFORMAT,
                "%s: %d layers, %d heads, %d key/value heads do not make a decoder", r->path,
                r->decoder.n_layer, r->decoder.n_head, r->decoder.n_head_kv);
    IWP_REQUIRE(
        strcmp(r->arch, "qwen2vl") != 0 ||
            2 * (r->decoder.sections[0] + r->decoder.sections[1] + r->decoder.sections[2]) ==
                r->decoder.head_dim,
        err, IWP_EFORMAT,
        "%s: qwen2vl.rope.dimension_sections is missing or not half of the head size", r->path);
    IWP_TRY(iwp_gguf_check_vocab(g, err));
    const int64_t d = r->decoder.n_embd, ff = r->decoder.n_ff,
                  q = (int64_t)r->decoder.n_head * r->decoder.head_dim,
                  kv = (int64_t)r->decoder.n_head_kv * r->decoder.head_dim;
    const struct {
        const char *name;
        int64_t cols, rows;
        bool bias;
    } parts[] = {
        {"attn_norm", d, 0, false}, {"attn_q", d, q, qwen},       {"attn_k", d, kv, qwen},
        {"attn_v", d, kv, qwen},    {"attn_output", q, d, false}, {"ffn_norm", d, 0, false},
        {"ffn_gate", d, ff, false}, {"ffn_up", d, ff, false},     {"ffn_down", ff, d, false}};
    const struct iwp_gguf_tensor *t;
    IWP_TRY(iwp_gguf_need_tensor(g, "token_embd.weight", 2, (int64_t[]){d, r->decoder.n_vocab}, &t,
                                 err));
    IWP_TRY(iwp_gguf_need_tensor(g, "output_norm.weight", 1, &d, &t, err));
    if (!r->decoder.tied)
        IWP_TRY(iwp_gguf_need_tensor(g, "output.weight", 2, (int64_t[]){d, r->decoder.n_vocab}, &t,
                                     err));
    for (int l = 0; l < r->decoder.n_layer; l++)
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            char name[64];
            const int64_t shape[2] = {parts[i].cols, parts[i].rows};
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, parts[i].name);
            IWP_TRY(iwp_gguf_need_tensor(g, name, parts[i].rows ? 2 : 1, shape, &t, err));
            snprintf(name, sizeof name, "blk.%d.%s.bias", l, parts[i].name);
            if (parts[i].bias) IWP_TRY(iwp_gguf_need_tensor(g, name, 1, &parts[i].rows, &t, err));
        }
    return 0;
}

/* ---- mmproj GGUF --------------------------------------------------------------------------- */

static int read_vision(struct iwp_inspect *r, const struct iwp_gguf *g, iwp_err *err) {
    const char *v = "clip.vision", *text;
    IWP_TRY(get(g, v, "block_count", true, 0, &r->vision.n_layer, err));
    IWP_TRY(get(g, v, "embedding_length", true, 0, &r->vision.n_embd, err));
    r->vision.there = true;
    IWP_TRY(get(g, v, "feed_forward_length", false, 0, &r->vision.n_ff, err));
    IWP_TRY(get(g, v, "attention.head_count", false, 0, &r->vision.n_head, err));
    IWP_TRY(get(g, v, "patch_size", false, 0, &r->vision.patch, err));
    IWP_TRY(get(g, v, "image_size", false, 0, &r->vision.image_size, err));
    IWP_TRY(get(g, v, "projection_dim", false, 0, &r->vision.out, err));
    IWP_TRY(iwp_gguf_opt_str(g, "clip.projector_type", "", &text, err));
    if (!*text) IWP_TRY(iwp_gguf_opt_str(g, "clip.vision.projector_type", "mlp", &text, err));
    snprintf(r->vision.projector, sizeof r->vision.projector, "%s", text);
    const bool qwen = strcmp(text, "qwen2.5vl_merger") == 0;
    snprintf(r->vision.tower, sizeof r->vision.tower, "%s",
             qwen                                      ? "qwen2.5-vl"
             : iwp_gguf_find_tensor(g, "v.class_embd") ? "clip"
                                                       : "siglip");
    int n = iwp_gguf_array_i32(g, "iwp.fullatt_block_indexes", r->vision.full, 64, err);
    if (n < 0) return n;
    if (qwen && n == 0) { /* files of llama.cpp's converter: every n-th block */
        int32_t every;
        IWP_TRY(get(g, v, "n_wa_pattern", true, 0, &every, err));
        for (int i = every - 1; every > 0 && i < r->vision.n_layer && n < 64; i += every)
            r->vision.full[n++] = i;
    }
    r->vision.n_full = n;
    return 0;
}

static bool anyres(const struct iwp_gguf *g) {
    const char *type;
    return iwp_gguf_opt_str(g, "iwp.model_type", "", &type, NULL) >= 0 &&
           strcmp(type, "llava_onevision") == 0;
}

static int read_anyres(struct iwp_inspect *r, const struct iwp_gguf *g, iwp_err *err) {
    struct iwp_pre_params *p = &r->pre;
    int32_t pairs[2 * IWP_PRE_MAX_PINPOINT];
    *p = iwp_pre_default_llava_ov();
    int n = iwp_gguf_array_i32(g, "iwp.image_grid_pinpoints", pairs, 2 * IWP_PRE_MAX_PINPOINT, err);
    if (n < 0) return n;
    IWP_REQUIRE(n > 0 && n % 2 == 0, err, IWP_EMISSING,
                "%s: iwp.image_grid_pinpoints is missing: convert the model with iwp convert",
                r->path);
    p->n_pinpoint = n / 2;
    for (int i = 0; i < n; i++) p->pinpoint[i / 2][i % 2] = pairs[i];
    return get(g, "iwp", "anyres_max", false, 9, &p->anyres_max, err);
}

static int read_qwen(struct iwp_inspect *r, const struct iwp_gguf *g, iwp_err *err) {
    struct iwp_pre_params *p = &r->pre;
    *p = iwp_pre_default_qwen2_5_vl();
    IWP_TRY(get(g, "clip.vision", "spatial_merge_size", false, 2, &p->merge, err));
    IWP_TRY(get(g, "clip.vision", "window_size", false, 112, &p->window, err));
    IWP_TRY(iwp_gguf_opt_i64(g, "iwp.min_pixels", p->min_pixels, &p->min_pixels, err));
    return iwp_gguf_opt_i64(g, "iwp.max_pixels", p->max_pixels, &p->max_pixels, err);
}

/* The same settings as the engine takes, for the estimate of visual tokens. */
static int read_pre(struct iwp_inspect *r, const struct iwp_gguf *g, iwp_err *err) {
    struct iwp_pre_params *p = &r->pre;
    float v[3];
    if (strcmp(r->vision.tower, "qwen2.5-vl") == 0) {
        IWP_TRY(read_qwen(r, g, err));
    } else {
        if (anyres(g))
            IWP_TRY(read_anyres(r, g, err));
        else
            *p = iwp_pre_default_clip();
        p->tile = r->vision.image_size;
    }
    p->patch = r->vision.patch;
    if (iwp_gguf_array_f32(g, "clip.vision.image_mean", v, 3, err) == 3)
        for (int i = 0; i < 3; i++) p->mean[i] = (double)v[i];
    if (iwp_gguf_array_f32(g, "clip.vision.image_std", v, 3, err) == 3)
        for (int i = 0; i < 3; i++) p->std[i] = (double)v[i];
    IWP_TRY(iwp_pre_params_check(p, err));
    r->has_pre = true;
    return 0;
}

static int check_block(const struct iwp_inspect *r, const struct iwp_gguf *g, int l, iwp_err *err) {
    const int64_t d = r->vision.n_embd, ff = r->vision.n_ff;
    const struct {
        const char *name;
        int64_t cols, rows;
    } parts[] = {{"ln1", d, 0},     {"attn_q", d, d},    {"attn_k", d, d},
                 {"attn_v", d, d},  {"attn_out", d, d},  {"ln2", d, 0},
                 {"ffn_up", d, ff}, {"ffn_down", ff, d}, {"ffn_gate", d, ff}};
    const struct iwp_gguf_tensor *t;
    char name[64];
    snprintf(name, sizeof name, "v.blk.%d.attn_qkv.weight", l);
    const bool joint = iwp_gguf_find_tensor(g, name) != NULL;
    if (joint) IWP_TRY(iwp_gguf_need_tensor(g, name, 2, (int64_t[]){d, 3 * d}, &t, err));
    for (size_t i = 0; i < (strcmp(r->vision.tower, "qwen2.5-vl") == 0 ? 9 : 8); i++) {
        if (joint && i >= 1 && i <= 3) continue;
        const int64_t shape[2] = {parts[i].cols, parts[i].rows},
                      n = parts[i].rows ? parts[i].rows : parts[i].cols;
        snprintf(name, sizeof name, "v.blk.%d.%s.weight", l, parts[i].name);
        IWP_TRY(iwp_gguf_need_tensor(g, name, parts[i].rows ? 2 : 1, shape, &t, err));
        snprintf(name, sizeof name, "v.blk.%d.%s.bias", l, parts[i].name);
        if (iwp_gguf_find_tensor(g, name)) IWP_TRY(iwp_gguf_need_tensor(g, name, 1, &n, &t, err));
    }
    return 0;
}

static int check_vision(struct iwp_inspect *r, const struct iwp_gguf *g, iwp_err *err) {
    const bool qwen = strcmp(r->vision.tower, "qwen2.5-vl") == 0;
    IWP_REQUIRE(qwen || strcmp(r->vision.projector, "mlp") == 0, err, IWP_ENOTSUP,
                "projector '%.40s' is not supported (mlp, qwen2.5vl_merger)", r->vision.projector);
    IWP_REQUIRE(r->vision.n_layer >= 1 && r->vision.n_layer <= IWP_INSPECT_MAX_LAYER &&
                    r->vision.n_head >= 1 && r->vision.n_embd % r->vision.n_head == 0 &&
                    r->vision.patch >= 1,
                err, IWP_EFORMAT, "%s: %d layers, %d heads, patches of %d do not make a tower",
                r->path, r->vision.n_layer, r->vision.n_head, r->vision.patch);
    const int64_t d = r->vision.n_embd, p = r->vision.patch, any = -1;
    const struct iwp_gguf_tensor *t, *m;
    int32_t last = r->vision.n_layer, list[8];
    if (!qwen && iwp_gguf_array_i32(g, "clip.vision.feature_layer", list, 8, err) == 1 &&
        list[0] >= 0 && list[0] < last)
        last = list[0]; /* blocks above the feature layer may be left out */
    else if (!qwen && !iwp_gguf_find(g, "clip.vision.feature_layer"))
        last--;
    for (int l = 0; l < last; l++) IWP_TRY(check_block(r, g, l, err));
    IWP_TRY(iwp_gguf_need_tensor(g, "v.patch_embd.weight", 4, (int64_t[]){p, p, 3, d}, &t, err));
    IWP_TRY(iwp_gguf_need_tensor(g, "mm.0.weight", 2, (int64_t[]){qwen ? 4 * d : d, any}, &m, err));
    if (iwp_gguf_find_tensor(g, "mm.2.weight"))
        IWP_TRY(iwp_gguf_need_tensor(g, "mm.2.weight", 2, (int64_t[]){m->ne[1], any}, &m, err));
    r->vision.out = m->ne[1] < INT32_MAX ? (int32_t)m->ne[1] : 0;
    if (qwen) {
        IWP_TRY(
            iwp_gguf_need_tensor(g, "v.patch_embd.weight.1", 4, (int64_t[]){p, p, 3, d}, &t, err));
        return iwp_gguf_need_tensor(g, "v.post_ln.weight", 1, &d, &t, err);
    }
    const int64_t side = r->vision.image_size / p,
                  rows = side * side + (iwp_gguf_find_tensor(g, "v.class_embd") ? 1 : 0);
    IWP_TRY(iwp_gguf_need_tensor(g, "v.position_embd.weight", 2, (int64_t[]){d, rows}, &t, err));
    if (!anyres(g)) return 0;
    const char *newline =
        iwp_gguf_find_tensor(g, "model.image_newline") ? "model.image_newline" : "v.image_newline";
    return iwp_gguf_need_tensor(g, newline, 1, &m->ne[1], &t, err);
}

static int inspect_gguf(struct iwp_inspect *r, iwp_err *err) {
    struct iwp_gguf *g;
    IWP_TRY(iwp_gguf_open(&g, r->path, err));
    r->kind = "gguf";
    r->version = (int32_t)g->version;
    r->n_part = g->n_part;
    const char *arch = "", *name = "", *template = "";
    iwp_err e = {0};
    int rc = 0;
    iwp_gguf_opt_str(g, "general.architecture", "", &arch, NULL);
    iwp_gguf_opt_str(g, "general.name", "", &name, NULL);
    iwp_gguf_opt_str(g, "tokenizer.chat_template", "", &template, NULL);
    snprintf(r->arch, sizeof r->arch, "%s", arch);
    snprintf(r->name, sizeof r->name, "%s", name);
    set_template(r, template);
    for (int32_t i = 0; i < g->n_tensor; i++)
        count(r, g->tensor[i].name, iwp_type_info(g->tensor[i].type)->name,
              iwp_gguf_tensor_elements(&g->tensor[i]), g->tensor[i].size);
    IWP_TRY_GOTO(find_fallbacks(r, g, err));
    const bool clip = strcmp(r->arch, "clip") == 0;
    snprintf(r->role, sizeof r->role, "%s", clip ? "mmproj" : g->n_tensor ? "model" : "vocabulary");
    int bad = clip ? read_vision(r, g, &e) : read_decoder(r, g, &e);
    if (bad >= 0 && !clip && !g->n_tensor)
        bad = iwp_err_set(&e, IWP_EMISSING, "a vocabulary without weights");
    if (bad >= 0) bad = clip ? check_vision(r, g, &e) : check_decoder(r, g, &e);
    if (bad >= 0 && clip) bad = read_pre(r, g, &e);
    if (bad < 0) why(r, e.msg);
    r->runs = bad >= 0;
    if (r->runs)
        why(r, clip               ? "as --mmproj beside its model"
               : r->template_name ? "as --model; pictures need the mmproj file as well"
                                  : "as --model with --chat-template NAME (its template is not one "
                                    "of the known ones); "
                                    "pictures need the mmproj file as well");
fail:
    iwp_gguf_free(g);
    return rc;
}

/* ---- Hugging Face -------------------------------------------------------------------------- */

static void from_config(struct iwp_inspect *r, const struct iwp_hf_config *c) {
    const bool qwen = c->arch == IWP_HF_QWEN2_5_VL;
    r->decoder.there = r->vision.there = true;
    r->decoder.n_layer = c->text.n_layer;
    r->decoder.n_embd = c->text.n_embd;
    r->decoder.n_head = c->text.n_head;
    r->decoder.n_head_kv = c->text.n_head_kv;
    r->decoder.head_dim = c->text.head_dim;
    r->decoder.n_ff = c->text.n_ff;
    r->decoder.n_ctx = c->text.n_ctx;
    r->decoder.n_vocab = c->text.n_vocab;
    r->decoder.rope_theta = c->text.rope_theta;
    r->decoder.rms_eps = c->text.rms_eps;
    memcpy(r->decoder.sections, c->text.mrope, sizeof c->text.mrope);
    snprintf(r->vision.tower, sizeof r->vision.tower, "%s", qwen ? "qwen2.5-vl" : "siglip");
    snprintf(r->vision.projector, sizeof r->vision.projector, "%s",
             qwen ? "qwen2.5vl_merger" : "mlp");
    r->vision.n_layer = c->vision.n_layer;
    r->vision.n_embd = c->vision.n_embd;
    r->vision.n_head = c->vision.n_head;
    r->vision.n_ff = c->vision.n_ff;
    r->vision.patch = c->vision.patch;
    r->vision.image_size = c->vision.image_size;
    r->vision.out = c->text.n_embd;
    r->vision.n_full = c->vision.n_fullatt;
    memcpy(r->vision.full, c->vision.fullatt, sizeof c->vision.fullatt);
    struct iwp_pre_params *p = &r->pre;
    *p = qwen ? iwp_pre_default_qwen2_5_vl() : iwp_pre_default_llava_ov();
    p->patch = c->vision.patch;
    for (int i = 0; i < 3; i++) {
        p->mean[i] = (double)c->pre.mean[i];
        p->std[i] = (double)c->pre.std[i];
    }
    if (qwen) {
        p->merge = c->vision.merge;
        p->window = c->vision.window;
        p->min_pixels = c->pre.min_pixels;
        p->max_pixels = c->pre.max_pixels;
    } else {
        p->tile = c->vision.image_size;
        p->n_pinpoint = c->vision.n_pinpoint;
        memcpy(p->pinpoint, c->vision.pinpoint, sizeof p->pinpoint);
        p->anyres_max = c->vision.anyres_max;
    }
}

static void hf_template(struct iwp_inspect *r) {
    char *text;
    size_t n;
    if (iwp_hf_read_text(r->path, "chat_template.jinja", &text, &n, NULL) >= 0) {
        set_template(r, text);
        free(text);
        return;
    }
    static const char *const files[] = {"chat_template.json", "tokenizer_config.json"};
    for (int i = 0; i < 2 && !r->chat_template; i++) {
        cJSON *j;
        if (iwp_hf_read_json(r->path, files[i], &j, NULL) < 0) continue;
        set_template(r, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(j, "chat_template")));
        cJSON_Delete(j);
    }
}

static int inspect_folder(struct iwp_inspect *r, iwp_err *err) {
    struct iwp_hf_config c;
    struct iwp_hf_weights w;
    iwp_err e = {0};
    cJSON *config;
    r->kind = "huggingface";
    snprintf(r->role, sizeof r->role, "checkpoint");
    IWP_TRY(iwp_hf_read_json(r->path, "config.json", &config, err));
    const char *name = cJSON_GetStringValue(
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0));
    snprintf(r->arch, sizeof r->arch, "%s", name ? name : "");
    cJSON_Delete(config);
    hf_template(r);
    int bad = iwp_hf_read_config(&c, r->path, &e);
    if (bad >= 0) {
        from_config(r, &c);
        bad = iwp_pre_params_check(&r->pre, &e);
        r->has_pre = bad >= 0;
    }
    if (bad < 0) why(r, e.msg);
    int found = iwp_hf_open_weights(&w, r->path, &e);
    if (found >= 0) {
        r->n_part = w.n_shard;
        for (int32_t i = 0; i < w.n; i++)
            count(r, w.w[i].name, iwp_st_dtype_name(w.w[i].t->dtype), w.w[i].t->n, w.w[i].t->bytes);
        r->decoder.tied = !iwp_hf_find_weight(&w, "lm_head.weight");
        iwp_hf_close_weights(&w);
    } else {
        why(r, e.msg);
    }
    r->runs = bad >= 0 && found >= 0;
    if (r->runs) why(r, "after `iwp convert`");
    return 0;
}

static int inspect_safetensors(struct iwp_inspect *r, iwp_err *err) {
    iwp_st *st;
    IWP_TRY(iwp_st_open(&st, r->path, err));
    r->kind = "safetensors";
    r->n_part = 1;
    snprintf(r->role, sizeof r->role, "tensors");
    for (int32_t i = 0; i < iwp_st_count(st); i++) {
        const struct iwp_st_tensor *t = iwp_st_at(st, i);
        count(r, t->name, iwp_st_dtype_name(t->dtype), t->n, t->bytes);
    }
    iwp_st_close(st);
    why(r, "tensors without a configuration: give the folder they lie in, or `iwp select` for its "
           "own inputs");
    return 0;
}

int iwp_inspect(struct iwp_inspect **out, const char *path, int32_t image_w, int32_t image_h,
                iwp_err *err) {
    *out = NULL;
    struct stat st;
    IWP_REQUIRE(stat(path, &st) == 0, err, IWP_EIO, "%s: no such file or folder", path);
    struct iwp_inspect *r = calloc(1, sizeof *r);
    IWP_REQUIRE(r, err, IWP_ENOMEM, "%s: out of memory", path);
    int rc = 0;
    if (strlen(path) >= sizeof r->path) IWP_FAIL(err, IWP_EINVAL, "%.60s…: path too long", path);
    snprintf(r->path, sizeof r->path, "%s", path);
    if (S_ISDIR(st.st_mode)) {
        IWP_TRY_GOTO(inspect_folder(r, err));
    } else {
        /* A pipe would keep fopen waiting for its writer. */
        if (!S_ISREG(st.st_mode)) IWP_FAIL(err, IWP_EIO, "%s: not a regular file", path);
        char magic[4] = "";
        FILE *f = fopen(path, "rb");
        if (!f) IWP_FAIL(err, IWP_EIO, "%s: cannot be read", path);
        size_t n = fread(magic, 1, 4, f);
        fclose(f);
        if (n == 4 && memcmp(magic, "GGUF", 4) == 0)
            IWP_TRY_GOTO(inspect_gguf(r, err));
        else if (strlen(path) > 12 && strcmp(path + strlen(path) - 12, ".safetensors") == 0)
            IWP_TRY_GOTO(inspect_safetensors(r, err));
        else
            IWP_FAIL(err, IWP_EFORMAT, "%s: neither a GGUF nor a safetensors file", path);
    }
    if (image_w > 0) {
        if (!r->has_pre)
            IWP_FAIL(err, IWP_EINVAL,
                     "--image-size: %s has no vision part that iwp knows (give the mmproj file or "
                     "the folder)",
                     path);
        IWP_TRY_GOTO(
            iwp_pre_plan_make(&r->pre, image_w, image_h, 1, IWP_PRE_SINGLE, &r->plan, err));
        r->has_plan = true;
    }
    *out = r;
    return 0;
fail:
    iwp_inspect_free(r);
    return rc;
}

void iwp_inspect_free(struct iwp_inspect *r) {
    if (!r) return;
    free(r->fallback);
    free(r->chat_template);
    free(r);
}
