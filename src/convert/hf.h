/* A Hugging Face model folder: configuration in both forms that exist (everything at the top as
 * released, or text_config/rope_parameters as newer versions save it), tokenizer and weights in one or
 * several safetensors files. */
#ifndef IWP_CONVERT_HF_H
#define IWP_CONVERT_HF_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "io/gguf.h"
#include "io/safetensors.h"
#include "iwp/error.h"

enum iwp_hf_arch { IWP_HF_LLAVA_ONEVISION, IWP_HF_QWEN2_5_VL };

enum { IWP_HF_MAX_PINPOINT = 128, IWP_HF_MAX_FULLATT = 64 };

struct iwp_hf_config {
    enum iwp_hf_arch arch;
    const char *class_name; /* of architectures[0], static */
    struct {
        int32_t n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_ctx, n_vocab;
        float rms_eps, rope_theta;
        int32_t mrope[3];      /* zeros without M-RoPE */
        int32_t bos, eos, pad; /* -1 = none */
        int tied;              /* 1, 0, or -1 when the file does not say */
    } text;
    struct {
        int32_t n_layer, n_embd, n_ff, n_head, patch, image_size;
        float eps;
        char act[24];
        /* qwen2_5_vl */
        int32_t merge, temporal_patch, window, tokens_per_second, out_embd;
        int32_t n_fullatt, fullatt[IWP_HF_MAX_FULLATT];
        /* llava_onevision */
        int32_t feature_layer, anyres_max;
        char select[16], aspect[24], projector_act[24];
        int32_t n_pinpoint, pinpoint[IWP_HF_MAX_PINPOINT][2]; /* height, width */
    } vision;
    struct {
        float mean[3], std[3];
        int32_t resample, min_pixels, max_pixels;
    } pre;
    int32_t image_token, video_token, vision_start, vision_end; /* -1 = none */
};

int iwp_hf_read_config(struct iwp_hf_config *c, const char *dir, iwp_err *err);

/* Adds all tokenizer.* pairs, the chat template included. */
int iwp_hf_add_tokenizer(struct iwp_gguf_writer *w, const struct iwp_hf_config *c, const char *dir,
                         iwp_err *err);

/* Reads and parses dir/name.  IWP_EMISSING when there is no such file. */
int iwp_hf_read_json(const char *dir, const char *name, cJSON **out, iwp_err *err);
/* Reads a whole text file of at most 64 MB; caller frees.  IWP_EMISSING as above. */
int iwp_hf_read_text(const char *dir, const char *name, char **out, size_t *n, iwp_err *err);

/* The weights of all shards under names that no longer depend on how the folder was saved:
 * text.*, lm_head.weight, vision.*, projector.*, image_newline. */
struct iwp_hf_weight {
    char *name;
    const struct iwp_st_tensor *t;
};
struct iwp_hf_weights {
    iwp_st **shard;
    int32_t n_shard, n;
    struct iwp_hf_weight *w; /* sorted by name */
};
int iwp_hf_open_weights(struct iwp_hf_weights *w, const char *dir, iwp_err *err);
void iwp_hf_close_weights(struct iwp_hf_weights *w);
const struct iwp_st_tensor *iwp_hf_find_weight(const struct iwp_hf_weights *w, const char *name);

#endif
