/* Writes small Hugging Face folders of both model classes with known random weights, in the old and the
 * new spelling of names and configuration, whole or in shards, and with chosen faults. */
#ifndef IWP_CHECKPOINT_H
#define IWP_CHECKPOINT_H

#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/safetensors.h"
#include "test.h"

struct ck {
    char dir[128];
    int qwen, fresh /* names and config of newer library versions */, shards, tied;
    enum iwp_st_dtype dtype;
    const char *skip, *misshape,
        *poison; /* tensors by their ending: left out, one row more, a NaN */
};

enum {
    CK_LAYER = 2,
    CK_VOCAB = 40,
    CK_EMBD = 256,
    CK_FF = 96,
    CK_HEAD = 4,
    CK_KV = 2,
    CK_PATCH = 2,
    CK_SIDE = 3,
    CK_VEMBD = 40,
    CK_VFF = 72,
    CK_VLAYER = 4,
    CK_VHEAD = 4
};

static inline void ck_text(const char *dir, const char *name, const char *fmt, ...) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    if (!f) return;
    va_list ap;
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
}

struct ck_list {
    struct {
        char name[128];
        int rank;
        int64_t shape[5];
    } t[256];
    int n;
};

static inline void ck_add(struct ck_list *l, const char *name, int rank, const int64_t *shape) {
    snprintf(l->t[l->n].name, 128, "%s", name);
    l->t[l->n].rank = rank;
    memcpy(l->t[l->n].shape, shape, (size_t)rank * sizeof *shape);
    l->n++;
}

static inline void ck_linear(struct ck_list *l, const char *base, int64_t rows, int64_t cols,
                             int bias) {
    char name[128];
    snprintf(name, sizeof name, "%s.weight", base);
    if (rows)
        ck_add(l, name, 2, (int64_t[]){rows, cols});
    else
        ck_add(l, name, 1, (int64_t[]){cols});
    snprintf(name, sizeof name, "%s.bias", base);
    if (bias) ck_add(l, name, 1, (int64_t[]){rows ? rows : cols});
}

#define CK_NAME(...) (snprintf(name, sizeof name, __VA_ARGS__), name)

static inline void ck_tensors(const struct ck *c, struct ck_list *l) {
    char name[120];
    const char *text = c->fresh  ? "model.language_model."
                       : c->qwen ? "model."
                                 : "language_model.model.";
    const int64_t d = CK_EMBD, kv = CK_EMBD / CK_HEAD * CK_KV, v = CK_VEMBD;
    l->n = 0;
    ck_linear(l, CK_NAME("%sembed_tokens", text), CK_VOCAB, d, 0);
    if (!c->tied)
        ck_linear(l, c->qwen || c->fresh ? "lm_head" : "language_model.lm_head", CK_VOCAB, d, 0);
    ck_linear(l, CK_NAME("%snorm", text), 0, d, 0);
    for (int i = 0; i < CK_LAYER; i++) {
        ck_linear(l, CK_NAME("%slayers.%d.input_layernorm", text, i), 0, d, 0);
        ck_linear(l, CK_NAME("%slayers.%d.post_attention_layernorm", text, i), 0, d, 0);
        ck_linear(l, CK_NAME("%slayers.%d.self_attn.q_proj", text, i), d, d, 1);
        ck_linear(l, CK_NAME("%slayers.%d.self_attn.k_proj", text, i), kv, d, 1);
        ck_linear(l, CK_NAME("%slayers.%d.self_attn.v_proj", text, i), kv, d, 1);
        ck_linear(l, CK_NAME("%slayers.%d.self_attn.o_proj", text, i), d, d, 0);
        ck_linear(l, CK_NAME("%slayers.%d.mlp.gate_proj", text, i), CK_FF, d, 0);
        ck_linear(l, CK_NAME("%slayers.%d.mlp.up_proj", text, i), CK_FF, d, 0);
        ck_linear(l, CK_NAME("%slayers.%d.mlp.down_proj", text, i), d, CK_FF, 0);
    }
    const char *m = c->fresh ? "model." : "";
    for (int i = 0; i < CK_VLAYER && c->qwen; i++) {
        ck_linear(l, CK_NAME("%svisual.blocks.%d.norm1", m, i), 0, v, 0);
        ck_linear(l, CK_NAME("%svisual.blocks.%d.norm2", m, i), 0, v, 0);
        ck_linear(l, CK_NAME("%svisual.blocks.%d.attn.qkv", m, i), 3 * v, v, 1);
        ck_linear(l, CK_NAME("%svisual.blocks.%d.attn.proj", m, i), v, v, 1);
        ck_linear(l, CK_NAME("%svisual.blocks.%d.mlp.gate_proj", m, i), CK_VFF, v, 1);
        ck_linear(l, CK_NAME("%svisual.blocks.%d.mlp.up_proj", m, i), CK_VFF, v, 1);
        ck_linear(l, CK_NAME("%svisual.blocks.%d.mlp.down_proj", m, i), v, CK_VFF, 1);
    }
    if (c->qwen) {
        ck_add(l, CK_NAME("%svisual.patch_embed.proj.weight", m), 5,
               (int64_t[]){v, 3, 2, CK_PATCH, CK_PATCH});
        ck_linear(l, CK_NAME("%svisual.merger.ln_q", m), 0, v, 0);
        ck_linear(l, CK_NAME("%svisual.merger.mlp.0", m), 4 * v, 4 * v, 1);
        ck_linear(l, CK_NAME("%svisual.merger.mlp.2", m), d, 4 * v, 1);
        return;
    }
    for (int i = 0; i < CK_VLAYER; i++) {
        const char *p = "vision_tower.vision_model.encoder.layers";
        ck_linear(l, CK_NAME("%s%s.%d.layer_norm1", m, p, i), 0, v, 1);
        ck_linear(l, CK_NAME("%s%s.%d.layer_norm2", m, p, i), 0, v, 1);
        ck_linear(l, CK_NAME("%s%s.%d.self_attn.q_proj", m, p, i), v, v, 1);
        ck_linear(l, CK_NAME("%s%s.%d.self_attn.k_proj", m, p, i), v, v, 1);
        ck_linear(l, CK_NAME("%s%s.%d.self_attn.v_proj", m, p, i), v, v, 1);
        ck_linear(l, CK_NAME("%s%s.%d.self_attn.out_proj", m, p, i), v, v, 1);
        ck_linear(l, CK_NAME("%s%s.%d.mlp.fc1", m, p, i), CK_VFF, v, 1);
        ck_linear(l, CK_NAME("%s%s.%d.mlp.fc2", m, p, i), v, CK_VFF, 1);
    }
    const char *e = "vision_tower.vision_model.embeddings";
    ck_add(l, CK_NAME("%s%s.patch_embedding.weight", m, e), 4,
           (int64_t[]){v, 3, CK_PATCH, CK_PATCH});
    ck_add(l, CK_NAME("%s%s.patch_embedding.bias", m, e), 1, (int64_t[]){v});
    ck_linear(l, CK_NAME("%s%s.position_embedding", m, e), CK_SIDE * CK_SIDE, v, 0);
    ck_linear(l, CK_NAME("%svision_tower.vision_model.post_layernorm", m), 0, v, 1);
    ck_linear(l, CK_NAME("%smulti_modal_projector.linear_1", m), d, v, 1);
    ck_linear(l, CK_NAME("%smulti_modal_projector.linear_2", m), d, d, 1);
    ck_add(l, CK_NAME("%simage_newline", m), 1, (int64_t[]){d});
}

static inline int ck_ends(const char *s, const char *tail) {
    return tail && strlen(s) >= strlen(tail) && strcmp(s + strlen(s) - strlen(tail), tail) == 0;
}

static inline int ck_shard(const struct ck *c, const struct ck_list *l, const char *file, int first,
                           int last) {
    char path[256];
    iwp_err err = {0};
    struct iwp_st_writer w;
    snprintf(path, sizeof path, "%s/%s", c->dir, file);
    int rc = iwp_st_writer_open(&w, path, &err);
    for (int i = first; i < last && rc >= 0; i++) {
        int64_t shape[5];
        memcpy(shape, l->t[i].shape, sizeof shape);
        shape[0] += ck_ends(l->t[i].name, c->misshape);
        rc = iwp_st_writer_add(&w, l->t[i].name, c->dtype, l->t[i].rank, shape, &err);
    }
    if (rc >= 0) rc = iwp_st_writer_begin(&w, &err);
    uint64_t seed = 99 + (uint64_t)first;
    for (int i = first; i < last && rc >= 0; i++) {
        int64_t n = 1;
        for (int k = 0; k < l->t[i].rank; k++)
            n *= l->t[i].shape[k] + (k == 0 && ck_ends(l->t[i].name, c->misshape));
        uint8_t *data = malloc((size_t)n * 4);
        const size_t one = iwp_st_dtype_size(c->dtype);
        for (int64_t k = 0; k < n; k++) {
            float f = test_normal(&seed);
            uint32_t u;
            if (k == 3 && ck_ends(l->t[i].name, c->poison)) f = (float)NAN;
            memcpy(&u, &f, 4);
            uint16_t h = (uint16_t)(u >> 16); /* bf16, cut */
            if (one == 4)
                memcpy(data + 4 * k, &f, 4);
            else
                memcpy(data + 2 * k, &h, 2);
        }
        rc = iwp_st_writer_write(&w, data, (size_t)n * one, &err);
        free(data);
    }
    if (rc >= 0) rc = iwp_st_writer_commit(&w, &err);
    CHECK_MSG(rc >= 0, "%s", err.msg);
    iwp_st_writer_abort(&w);
    return rc;
}

static inline void ck_weights(const struct ck *c) {
    struct ck_list all, l;
    ck_tensors(c, &all);
    l.n = 0;
    for (int i = 0; i < all.n; i++)
        if (!ck_ends(all.t[i].name, c->skip)) l.t[l.n++] = all.t[i];
    if (c->shards < 2) {
        ck_shard(c, &l, "model.safetensors", 0, l.n);
        return;
    }
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", c->dir);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    if (!f) return;
    fprintf(f, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int s = 0; s < c->shards; s++) {
        char file[64];
        int a = l.n * s / c->shards, b = l.n * (s + 1) / c->shards;
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", s + 1, c->shards);
        ck_shard(c, &l, file, a, b);
        for (int i = a; i < b; i++)
            fprintf(f, "%s\"%s\": \"%s\"", i ? ", " : "", l.t[i].name, file);
    }
    fprintf(f, "}}");
    fclose(f);
}

static inline void ck_configs(const struct ck *c) {
    const char *tie = c->tied ? "true" : "false";
    char text[1024];
    snprintf(text, sizeof text,
             "\"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, "
             "\"num_attention_heads\": %d, "
             "\"num_key_value_heads\": %d, \"vocab_size\": %d, \"rms_norm_eps\": 1e-05, "
             "\"max_position_embeddings\": 4096, "
             "\"hidden_act\": \"silu\", \"bos_token_id\": 30, \"eos_token_id\": 31, "
             "\"tie_word_embeddings\": %s, "
             "\"sliding_window\": 32768, \"use_sliding_window\": false",
             CK_EMBD, CK_FF, CK_LAYER, CK_HEAD, CK_KV, CK_VOCAB, tie);
    if (c->qwen) {
        char vision[512];
        snprintf(
            vision, sizeof vision,
            "\"vision_config\": {\"depth\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, "
            "\"num_heads\": %d, "
            "\"patch_size\": %d, \"spatial_merge_size\": 2, \"temporal_patch_size\": 2, "
            "\"window_size\": 8, "
            "\"tokens_per_second\": 2, \"out_hidden_size\": %d, \"hidden_act\": \"silu\", "
            "\"fullatt_block_indexes\": [1, 3]}, \"image_token_id\": 33, \"video_token_id\": 34, "
            "\"vision_start_token_id\": 35, \"vision_end_token_id\": 36",
            CK_VLAYER, CK_VEMBD, CK_VFF, CK_VHEAD, CK_PATCH, CK_EMBD);
        const char *arch = "\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], "
                           "\"model_type\": \"qwen2_5_vl\"";
        if (c->fresh)
            ck_text(c->dir, "config.json",
                    "{%s, \"text_config\": {%s, \"rope_parameters\": {\"mrope_section\": [8, 12, "
                    "12], \"rope_theta\": 5e5, "
                    "\"rope_type\": \"default\"}}, %s}",
                    arch, text, vision);
        else
            ck_text(c->dir, "config.json",
                    "{%s, %s, \"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"mrope\", "
                    "\"mrope_section\": [8, 12, 12]}, "
                    "%s}",
                    arch, text, vision);
    } else {
        ck_text(c->dir, "config.json",
                "{\"architectures\": [\"LlavaOnevisionForConditionalGeneration\"], \"model_type\": "
                "\"llava_onevision\", "
                "\"text_config\": {\"model_type\": \"qwen2\", %s, %s}, \"vision_config\": "
                "{\"model_type\": "
                "\"siglip_vision_model\", \"hidden_size\": %d, \"intermediate_size\": %d, "
                "\"num_hidden_layers\": %d, "
                "\"num_attention_heads\": %d, \"patch_size\": %d, \"image_size\": %d}, "
                "\"image_grid_pinpoints\": [[6, 6], "
                "[6, 12], [12, 6]], \"%s\": 33, \"video_token_index\": 34, "
                "\"vision_feature_layer\": -2, "
                "\"vision_aspect_ratio\": \"anyres_max_9\", \"vision_feature_select_strategy\": "
                "\"full\", "
                "\"projector_hidden_act\": \"gelu\"}",
                text,
                c->fresh ? "\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}"
                         : "\"rope_theta\": 5e5",
                CK_VEMBD, CK_VFF, CK_VLAYER, CK_VHEAD, CK_PATCH, CK_PATCH * CK_SIDE,
                c->fresh ? "image_token_id" : "image_token_index");
    }
    const char *pre =
        "\"image_mean\": [0.5, 0.25, 0.125], \"image_std\": [0.5, 0.5, 0.75], \"resample\": 3";
    const char *pixels = !c->qwen   ? ""
                         : c->fresh ? ", \"size\": {\"shortest_edge\": 16, \"longest_edge\": 4096}"
                                    : ", \"min_pixels\": 16, \"max_pixels\": 4096";
    if (c->fresh)
        ck_text(c->dir, "processor_config.json", "{\"image_processor\": {%s%s}}", pre, pixels);
    else
        ck_text(c->dir, "preprocessor_config.json", "{%s%s}", pre, pixels);
    const char *merges = c->fresh ? "[[\"a\", \"b\"], [\"ab\", \"c d\"]]" : "[\"a b\", \"ab c\"]";
    ck_text(c->dir, "tokenizer.json",
            "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, "
            "\"\\u010a\": 3, \"c\": 4}, "
            "\"merges\": %s}, \"added_tokens\": [{\"id\": 30, \"content\": \"<|endoftext|>\", "
            "\"special\": true}, {\"id\": 31, "
            "\"content\": \"<|im_end|>\", \"special\": true}, {\"id\": 32, \"content\": "
            "\"<tool_call>\", \"special\": false}, "
            "{\"id\": 33, \"content\": \"<image>\", \"special\": true}, {\"id\": 34, \"content\": "
            "\"<|fim_pad|>\", "
            "\"special\": false}], \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": "
            "[{\"type\": \"Split\", "
            "\"pattern\": {\"Regex\": \"x|\\\\p{N}|y\"}}]}}",
            merges);
    ck_text(c->dir, "tokenizer_config.json",
            "{\"eos_token\": \"<|im_end|>\", \"pad_token\": {\"content\": \"<|endoftext|>\"}, "
            "\"bos_token\": null%s}",
            c->fresh ? "" : ", \"chat_template\": \"T{{ x }}\"");
    if (c->fresh) ck_text(c->dir, "chat_template.jinja", "%s", "T{{ x }}");
}

/* Makes the folder; the caller fills c->dir. */
static inline void ck_make(const struct ck *c) {
    mkdir(c->dir, 0755);
    ck_configs(c);
    ck_weights(c);
}

#endif
