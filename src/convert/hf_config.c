/* config.json, processor_config.json and preprocessor_config.json of the two model classes: see hf.h.
 * Values that decide shapes have no default; values that older files leave out have the default of the
 * class that wrote them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "convert/hf.h"

int iwp_hf_read_text(const char *dir, const char *name, char **out, size_t *n, iwp_err *err) {
    *out = NULL;
    char path[4096];
    int len = snprintf(path, sizeof path, "%s/%s", dir, name);
    IWP_REQUIRE(len > 0 && (size_t)len < sizeof path, err, IWP_EINVAL, "%.60s…: path too long",
                dir);
    IWP_REQUIRE(access(path, F_OK) == 0, err, IWP_EMISSING, "%s: %s", path, strerror(errno));
    uint8_t *data;
    IWP_TRY(iwp_file_read(path, 64 << 20, &data, n, err));
    *out = (char *)data;
    return 0;
}

int iwp_hf_read_json(const char *dir, const char *name, cJSON **out, iwp_err *err) {
    *out = NULL;
    char *text;
    size_t n;
    IWP_TRY(iwp_hf_read_text(dir, name, &text, &n, err));
    int rc = iwp_json_parse(text, n, (struct iwp_json_limits){0, 0}, out, err);
    free(text);
    if (rc < 0) return iwp_err_prefix(err, rc, "%s/%s", dir, name);
    return 0;
}

/* The files, and where an error came from. */
struct source {
    const char *dir;
    const cJSON *top, *text, *vision, *pre; /* pre may be NULL */
    iwp_err *err;
};

static const cJSON *item(const cJSON *o, const char *key) {
    return o ? cJSON_GetObjectItemCaseSensitive(o, key) : NULL;
}

/* An integer of [lo, hi] in the first object that has the key; `fallback` when none has and it is ≥ lo. */
static int get_int(const struct source *s, const cJSON *a, const cJSON *b, const char *key,
                   int64_t lo, int64_t hi, int64_t fallback, int32_t *out) {
    const cJSON *v = item(a, key);
    if (!v || cJSON_IsNull(v)) v = item(b, key);
    if (!v || cJSON_IsNull(v)) {
        IWP_REQUIRE(fallback >= lo, s->err, IWP_EMISSING, "%s: config: %s is missing", s->dir, key);
        *out = (int32_t)fallback;
        return 0;
    }
    int64_t i;
    IWP_REQUIRE(iwp_json_get_int(v, lo, hi, &i), s->err, IWP_EFORMAT,
                "%s: config: %s is not an integer of %lld…%lld", s->dir, key, (long long)lo,
                (long long)hi);
    *out = (int32_t)i;
    return 0;
}

/* A token id that may be absent or null (-1); of a list the first. */
static int get_id(const struct source *s, const cJSON *a, const cJSON *b, const char *key,
                  int32_t *out) {
    const cJSON *v = item(a, key);
    if (!v || cJSON_IsNull(v)) v = item(b, key);
    if (cJSON_IsArray(v)) v = cJSON_GetArrayItem(v, 0);
    *out = -1;
    if (!v || cJSON_IsNull(v)) return 0;
    int64_t i;
    IWP_REQUIRE(iwp_json_get_int(v, 0, 1 << 24, &i), s->err, IWP_EFORMAT,
                "%s: config: %s is not a token id", s->dir, key);
    *out = (int32_t)i;
    return 0;
}

static int get_float(const struct source *s, const cJSON *a, const cJSON *b, const char *key,
                     double fallback, float *out) {
    const cJSON *v = item(a, key);
    if (!v || cJSON_IsNull(v)) v = item(b, key);
    if (!v || cJSON_IsNull(v)) {
        IWP_REQUIRE(fallback > 0, s->err, IWP_EMISSING, "%s: config: %s is missing", s->dir, key);
        *out = (float)fallback;
        return 0;
    }
    IWP_REQUIRE(cJSON_IsNumber(v) && v->valuedouble > 0 && v->valuedouble < 1e12, s->err,
                IWP_EFORMAT, "%s: config: %s is not a positive number", s->dir, key);
    *out = (float)v->valuedouble;
    return 0;
}

static int get_text(const struct source *s, const cJSON *a, const char *key, const char *fallback,
                    char *out, size_t cap) {
    const cJSON *v = item(a, key);
    const char *t = v && !cJSON_IsNull(v) ? cJSON_GetStringValue(v) : fallback;
    IWP_REQUIRE(t && strlen(t) < cap, s->err, IWP_EFORMAT, "%s: config: %s is not a short text",
                s->dir, key);
    memcpy(out, t, strlen(t) + 1);
    return 0;
}

static int get_floats3(const struct source *s, const char *key, float out[3]) {
    const cJSON *v = item(s->pre, key);
    IWP_REQUIRE(
        cJSON_GetArraySize(v) == 3 && cJSON_IsArray(v), s->err, IWP_EMISSING,
        "%s: %s of three numbers is missing (processor_config.json or preprocessor_config.json)",
        s->dir, key);
    for (int i = 0; i < 3; i++) {
        const cJSON *x = cJSON_GetArrayItem(v, i);
        IWP_REQUIRE(cJSON_IsNumber(x) && fabs(x->valuedouble) < 1e6, s->err, IWP_EFORMAT,
                    "%s: %s[%d] is not a number", s->dir, key, i);
        out[i] = (float)x->valuedouble;
    }
    return 0;
}

static int read_text_part(struct iwp_hf_config *c, const struct source *s) {
    const cJSON *t = s->text, *top = s->top;
    IWP_TRY(get_int(s, t, NULL, "num_hidden_layers", 1, 1024, -1, &c->text.n_layer));
    IWP_TRY(get_int(s, t, NULL, "hidden_size", 1, 1 << 20, -1, &c->text.n_embd));
    IWP_TRY(get_int(s, t, NULL, "intermediate_size", 1, 1 << 20, -1, &c->text.n_ff));
    IWP_TRY(get_int(s, t, NULL, "num_attention_heads", 1, 4096, -1, &c->text.n_head));
    IWP_TRY(
        get_int(s, t, NULL, "num_key_value_heads", 1, 4096, c->text.n_head, &c->text.n_head_kv));
    IWP_TRY(get_int(s, t, NULL, "max_position_embeddings", 1, 1 << 30, 32768, &c->text.n_ctx));
    IWP_TRY(get_int(s, t, NULL, "vocab_size", 1, 1 << 24, -1, &c->text.n_vocab));
    IWP_REQUIRE(c->text.n_embd % c->text.n_head == 0 && c->text.n_head % c->text.n_head_kv == 0,
                s->err, IWP_EFORMAT,
                "%s: config: hidden_size %d, %d heads, %d key/value heads do not divide", s->dir,
                c->text.n_embd, c->text.n_head, c->text.n_head_kv);
    IWP_TRY(get_int(s, t, NULL, "head_dim", 1, 4096, c->text.n_embd / c->text.n_head,
                    &c->text.head_dim));
    IWP_TRY(get_float(s, t, NULL, "rms_norm_eps", 1e-6, &c->text.rms_eps));
    const cJSON *rope = item(t, "rope_parameters"), *scaling = item(t, "rope_scaling");
    if (!rope || cJSON_IsNull(rope)) rope = scaling;
    IWP_TRY(get_float(s, item(rope, "rope_theta") ? rope : t, NULL, "rope_theta", 1e4,
                      &c->text.rope_theta));
    const cJSON *kind = item(rope, "rope_type");
    if (!kind) kind = item(rope, "type");
    const char *k = cJSON_GetStringValue(kind);
    IWP_REQUIRE(!k || strcmp(k, "default") == 0 || strcmp(k, "mrope") == 0, s->err, IWP_ENOTSUP,
                "%s: config: RoPE scaling '%.40s' is not supported", s->dir, k);
    const cJSON *sections = item(rope, "mrope_section");
    if (c->arch == IWP_HF_QWEN2_5_VL) {
        IWP_REQUIRE(cJSON_IsArray(sections) && cJSON_GetArraySize(sections) == 3, s->err,
                    IWP_EMISSING, "%s: config: mrope_section of three numbers is missing", s->dir);
        int64_t sum = 0, v;
        for (int i = 0; i < 3; i++) {
            IWP_REQUIRE(iwp_json_get_int(cJSON_GetArrayItem(sections, i), 1, 4096, &v), s->err,
                        IWP_EFORMAT, "%s: config: mrope_section[%d]", s->dir, i);
            c->text.mrope[i] = (int32_t)v;
            sum += v;
        }
        IWP_REQUIRE(2 * sum == c->text.head_dim, s->err, IWP_EFORMAT,
                    "%s: config: mrope_section sums to %lld, half of the head size is %d", s->dir,
                    (long long)sum, c->text.head_dim / 2);
    }
    IWP_TRY(get_id(s, t, top, "bos_token_id", &c->text.bos));
    IWP_TRY(get_id(s, t, top, "eos_token_id", &c->text.eos));
    IWP_TRY(get_id(s, t, top, "pad_token_id", &c->text.pad));
    const cJSON *tie = item(t, "tie_word_embeddings");
    if (!cJSON_IsBool(tie)) tie = item(top, "tie_word_embeddings");
    c->text.tied = cJSON_IsBool(tie) ? cJSON_IsTrue(tie) : -1;
    const cJSON *window = item(t, "use_sliding_window");
    IWP_REQUIRE(!cJSON_IsTrue(window), s->err, IWP_ENOTSUP,
                "%s: config: use_sliding_window is not supported", s->dir);
    const char *act = cJSON_GetStringValue(item(t, "hidden_act"));
    IWP_REQUIRE(!act || strcmp(act, "silu") == 0, s->err, IWP_ENOTSUP,
                "%s: config: hidden_act '%.40s' is not supported", s->dir, act);
    return 0;
}

/* Names of activations as the engine knows them. */
static int read_act(const struct source *s, const cJSON *o, const char *key, const char *fallback,
                    char *out, size_t cap) {
    static const char *const known[][2] = {
        {"gelu_pytorch_tanh", "gelu_tanh"}, {"gelu_new", "gelu_tanh"}, {"gelu", "gelu_erf"},
        {"quick_gelu", "gelu_quick"},       {"silu", "silu"},
    };
    char name[40];
    IWP_TRY(get_text(s, o, key, fallback, name, sizeof name));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i][0]) == 0) {
            snprintf(out, cap, "%s", known[i][1]);
            return 0;
        }
    return iwp_err_set(s->err, IWP_ENOTSUP, "%s: config: %s '%s' is not supported", s->dir, key,
                       name);
}

static int read_pinpoints(struct iwp_hf_config *c, const struct source *s) {
    const cJSON *list = item(s->top, "image_grid_pinpoints");
    if (!cJSON_IsArray(list)) list = item(s->pre, "image_grid_pinpoints");
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    IWP_REQUIRE(n >= 1 && n <= IWP_HF_MAX_PINPOINT, s->err, IWP_EMISSING,
                "%s: config: image_grid_pinpoints is missing or has more than %d entries", s->dir,
                IWP_HF_MAX_PINPOINT);
    int i = 0;
    for (const cJSON *e = list->child; e; e = e->next, i++) {
        int64_t h, w;
        IWP_REQUIRE(cJSON_IsArray(e) && cJSON_GetArraySize(e) == 2 &&
                        iwp_json_get_int(cJSON_GetArrayItem(e, 0), 1, 1 << 16, &h) &&
                        iwp_json_get_int(cJSON_GetArrayItem(e, 1), 1, 1 << 16, &w),
                    s->err, IWP_EFORMAT,
                    "%s: config: image_grid_pinpoints[%d] is not (height, width)", s->dir, i);
        c->vision.pinpoint[i][0] = (int32_t)h;
        c->vision.pinpoint[i][1] = (int32_t)w;
        IWP_REQUIRE(h % c->vision.image_size == 0 && w % c->vision.image_size == 0, s->err,
                    IWP_EFORMAT,
                    "%s: config: image_grid_pinpoints[%d] is not a multiple of the tile of %d",
                    s->dir, i, c->vision.image_size);
    }
    c->vision.n_pinpoint = n;
    return 0;
}

static int read_llava(struct iwp_hf_config *c, const struct source *s) {
    const cJSON *v = s->vision;
    const char *kind = cJSON_GetStringValue(item(v, "model_type"));
    IWP_REQUIRE(kind && strcmp(kind, "siglip_vision_model") == 0, s->err, IWP_ENOTSUP,
                "%s: config: vision tower '%.40s' is not supported (siglip_vision_model)", s->dir,
                kind ? kind : "");
    const char *text = cJSON_GetStringValue(item(s->text, "model_type"));
    IWP_REQUIRE(text && strcmp(text, "qwen2") == 0, s->err, IWP_ENOTSUP,
                "%s: config: language model '%.40s' is not supported (qwen2)", s->dir,
                text ? text : "");
    IWP_TRY(get_int(s, v, NULL, "num_hidden_layers", 1, 1024, -1, &c->vision.n_layer));
    IWP_TRY(get_int(s, v, NULL, "hidden_size", 1, 1 << 20, -1, &c->vision.n_embd));
    IWP_TRY(get_int(s, v, NULL, "intermediate_size", 1, 1 << 20, -1, &c->vision.n_ff));
    IWP_TRY(get_int(s, v, NULL, "num_attention_heads", 1, 4096, -1, &c->vision.n_head));
    IWP_TRY(get_int(s, v, NULL, "patch_size", 1, 1024, -1, &c->vision.patch));
    IWP_TRY(get_int(s, v, NULL, "image_size", 1, 1 << 14, -1, &c->vision.image_size));
    IWP_TRY(get_float(s, v, NULL, "layer_norm_eps", 1e-6, &c->vision.eps));
    IWP_TRY(read_act(s, v, "hidden_act", "gelu_pytorch_tanh", c->vision.act, sizeof c->vision.act));
    IWP_TRY(read_act(s, s->top, "projector_hidden_act", "gelu", c->vision.projector_act,
                     sizeof c->vision.projector_act));
    IWP_TRY(get_int(s, s->top, NULL, "vision_feature_layer", -1024, 1024, -1,
                    &c->vision.feature_layer));
    IWP_REQUIRE(c->vision.feature_layer >= -c->vision.n_layer - 1 &&
                    c->vision.feature_layer <= c->vision.n_layer,
                s->err, IWP_EFORMAT, "%s: config: vision_feature_layer %d of %d layers", s->dir,
                c->vision.feature_layer, c->vision.n_layer);
    IWP_TRY(get_text(s, s->top, "vision_feature_select_strategy", "full", c->vision.select,
                     sizeof c->vision.select));
    IWP_REQUIRE(strcmp(c->vision.select, "full") == 0 || strcmp(c->vision.select, "default") == 0,
                s->err, IWP_ENOTSUP, "%s: config: vision_feature_select_strategy '%s'", s->dir,
                c->vision.select);
    IWP_TRY(get_text(s, s->top, "vision_aspect_ratio", "anyres_max_9", c->vision.aspect,
                     sizeof c->vision.aspect));
    int used = 0;
    IWP_REQUIRE(sscanf(c->vision.aspect, "anyres_max_%d%n", &c->vision.anyres_max, &used) == 1 &&
                    !c->vision.aspect[used] && c->vision.anyres_max > 0,
                s->err, IWP_ENOTSUP, "%s: config: vision_aspect_ratio '%s' is not anyres_max_N",
                s->dir, c->vision.aspect);
    c->vision.out_embd = c->text.n_embd;
    IWP_TRY(get_id(s, s->top, NULL, "image_token_index", &c->image_token));
    if (c->image_token < 0) IWP_TRY(get_id(s, s->top, NULL, "image_token_id", &c->image_token));
    IWP_TRY(get_id(s, s->top, NULL, "video_token_index", &c->video_token));
    if (c->video_token < 0) IWP_TRY(get_id(s, s->top, NULL, "video_token_id", &c->video_token));
    return read_pinpoints(c, s);
}

static int read_qwen(struct iwp_hf_config *c, const struct source *s) {
    const cJSON *v = s->vision;
    IWP_TRY(get_int(s, v, NULL, "depth", 1, 1024, -1, &c->vision.n_layer));
    IWP_TRY(get_int(s, v, NULL, "hidden_size", 1, 1 << 20, -1, &c->vision.n_embd));
    IWP_TRY(get_int(s, v, NULL, "intermediate_size", 1, 1 << 20, -1, &c->vision.n_ff));
    IWP_TRY(get_int(s, v, NULL, "num_heads", 1, 4096, -1, &c->vision.n_head));
    IWP_TRY(get_int(s, v, NULL, "patch_size", 1, 1024, 14, &c->vision.patch));
    IWP_TRY(get_int(s, v, NULL, "spatial_merge_size", 1, 64, 2, &c->vision.merge));
    IWP_TRY(get_int(s, v, NULL, "temporal_patch_size", 2, 2, 2, &c->vision.temporal_patch));
    IWP_TRY(get_int(s, v, NULL, "window_size", 1, 1 << 14, 112, &c->vision.window));
    IWP_TRY(get_int(s, v, NULL, "tokens_per_second", 1, 1000, 4, &c->vision.tokens_per_second));
    IWP_TRY(
        get_int(s, v, NULL, "out_hidden_size", 1, 1 << 20, c->text.n_embd, &c->vision.out_embd));
    IWP_REQUIRE(c->vision.out_embd == c->text.n_embd, s->err, IWP_EFORMAT,
                "%s: config: out_hidden_size %d is not the decoder's width %d", s->dir,
                c->vision.out_embd, c->text.n_embd);
    IWP_REQUIRE(c->vision.window % (c->vision.patch * c->vision.merge) == 0, s->err, IWP_EFORMAT,
                "%s: config: window_size %d is not a multiple of %d", s->dir, c->vision.window,
                c->vision.patch * c->vision.merge);
    IWP_TRY(read_act(s, v, "hidden_act", "silu", c->vision.act, sizeof c->vision.act));
    IWP_REQUIRE(strcmp(c->vision.act, "silu") == 0, s->err, IWP_ENOTSUP,
                "%s: config: vision hidden_act is not silu", s->dir);
    snprintf(c->vision.projector_act, sizeof c->vision.projector_act, "gelu_erf");
    c->vision.eps = 1e-6f;      /* fixed in the model class */
    c->vision.image_size = 560; /* what llama.cpp writes; the tower takes any size */
    const cJSON *full = item(v, "fullatt_block_indexes");
    int n = cJSON_IsArray(full) ? cJSON_GetArraySize(full) : 0;
    IWP_REQUIRE(n >= 1 && n <= IWP_HF_MAX_FULLATT, s->err, IWP_EMISSING,
                "%s: config: fullatt_block_indexes is missing or too long", s->dir);
    for (int i = 0; i < n; i++) {
        int64_t b;
        IWP_REQUIRE(iwp_json_get_int(cJSON_GetArrayItem(full, i),
                                     i ? c->vision.fullatt[i - 1] + 1 : 0, c->vision.n_layer - 1,
                                     &b),
                    s->err, IWP_EFORMAT, "%s: config: fullatt_block_indexes[%d]", s->dir, i);
        c->vision.fullatt[i] = (int32_t)b;
    }
    c->vision.n_fullatt = n;
    IWP_TRY(get_id(s, s->top, NULL, "image_token_id", &c->image_token));
    IWP_TRY(get_id(s, s->top, NULL, "video_token_id", &c->video_token));
    IWP_TRY(get_id(s, s->top, NULL, "vision_start_token_id", &c->vision_start));
    IWP_TRY(get_id(s, s->top, NULL, "vision_end_token_id", &c->vision_end));
    const cJSON *size = item(s->pre, "size");
    const bool edge = !item(s->pre, "min_pixels") && item(size, "shortest_edge");
    IWP_TRY(get_int(s, edge ? size : s->pre, NULL, edge ? "shortest_edge" : "min_pixels", 1,
                    1 << 30, 56 * 56, &c->pre.min_pixels));
    const bool far = !item(s->pre, "max_pixels") && item(size, "longest_edge");
    IWP_TRY(get_int(s, far ? size : s->pre, NULL, far ? "longest_edge" : "max_pixels", 1, 1 << 30,
                    28 * 28 * 1280, &c->pre.max_pixels));
    return 0;
}

static int read_all(struct iwp_hf_config *c, const struct source *s) {
    IWP_REQUIRE(cJSON_IsObject(s->vision), s->err, IWP_EMISSING,
                "%s: config: vision_config is missing", s->dir);
    IWP_TRY(read_text_part(c, s));
    if (c->arch == IWP_HF_LLAVA_ONEVISION)
        IWP_TRY(read_llava(c, s));
    else
        IWP_TRY(read_qwen(c, s));
    IWP_REQUIRE(c->vision.n_embd % c->vision.n_head == 0, s->err, IWP_EFORMAT,
                "%s: config: vision width %d and %d heads do not divide", s->dir, c->vision.n_embd,
                c->vision.n_head);
    IWP_REQUIRE(c->image_token >= 0, s->err, IWP_EMISSING,
                "%s: config: the image token's id is missing", s->dir);
    IWP_TRY(get_floats3(s, "image_mean", c->pre.mean));
    IWP_TRY(get_floats3(s, "image_std", c->pre.std));
    for (int i = 0; i < 3; i++)
        IWP_REQUIRE(c->pre.std[i] > 0, s->err, IWP_EFORMAT, "%s: image_std[%d] is not positive",
                    s->dir, i);
    return get_int(s, s->pre, NULL, "resample", 0, 5, 3, &c->pre.resample);
}

int iwp_hf_read_config(struct iwp_hf_config *c, const char *dir, iwp_err *err) {
    static const struct {
        const char *name;
        enum iwp_hf_arch arch;
    } classes[] = {
        {"LlavaOnevisionForConditionalGeneration", IWP_HF_LLAVA_ONEVISION},
        {"Qwen2_5_VLForConditionalGeneration", IWP_HF_QWEN2_5_VL},
    };
    memset(c, 0, sizeof *c);
    c->image_token = c->video_token = c->vision_start = c->vision_end = -1;
    cJSON *top = NULL, *proc = NULL, *pre = NULL;
    int rc = iwp_hf_read_json(dir, "config.json", &top, err);
    if (rc < 0) return rc;
    const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(item(top, "architectures"), 0));
    for (size_t i = 0; name && i < sizeof classes / sizeof classes[0]; i++)
        if (strcmp(name, classes[i].name) == 0) {
            c->class_name = classes[i].name;
            c->arch = classes[i].arch;
        }
    if (!c->class_name)
        IWP_FAIL(err, IWP_ENOTSUP, "%s: architecture '%.80s' is not supported (%s, %s)", dir,
                 name ? name : "none", classes[0].name, classes[1].name);
    rc = iwp_hf_read_json(dir, "processor_config.json", &proc, err);
    if (rc < 0 && rc != IWP_EMISSING) goto fail;
    const cJSON *used = item(proc, "image_processor");
    if (!used) {
        rc = iwp_hf_read_json(dir, "preprocessor_config.json", &pre, err);
        if (rc < 0 && rc != IWP_EMISSING) goto fail;
        used = pre;
    }
    const cJSON *text = item(top, "text_config");
    /* the released Qwen form has the decoder's values at the top, beside a text_config or without */
    if (!cJSON_IsObject(text) || !item(text, "hidden_size")) text = top;
    struct source s = {dir, top, text, item(top, "vision_config"), used, err};
    rc = read_all(c, &s);
fail:
    cJSON_Delete(top);
    cJSON_Delete(proc);
    cJSON_Delete(pre);
    return rc;
}
