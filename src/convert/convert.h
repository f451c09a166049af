/* Conversion of models into GGUF.
 *
 * Hugging Face folders of LlavaOnevisionForConditionalGeneration and Qwen2_5_VLForConditionalGeneration
 * become a model and an mmproj file with the names llama.cpp uses; a GGUF becomes the same GGUF in
 * another type.  What the engine needs and llama.cpp has no key for goes under `iwp.`:
 *
 *   in the model file
 *     iwp.model_type                      "llava_onevision" | "qwen2_5_vl"
 *     iwp.image_token_id, .video_token_id u32, placeholders in a rendered prompt
 *     iwp.vision_start_token_id, .vision_end_token_id  u32 (qwen2_5_vl)
 *   in the mmproj file
 *     iwp.model_type                      as above
 *     iwp.image_token_id, .video_token_id as above
 *     iwp.vision_act, iwp.projector_act   "gelu_tanh" | "gelu_erf" | "silu" ...
 *     iwp.resample                        u32, Pillow's number (3 = bicubic)
 *     llava_onevision:
 *       iwp.vision_feature_layer          i32 as in config.json (-1 = output of the last block)
 *       iwp.vision_feature_select_strategy "full" | "default"
 *       iwp.vision_aspect_ratio           "anyres_max_9"
 *       iwp.anyres_max                    u32, the number in it (9)
 *       iwp.image_grid_pinpoints          i32 pairs (height, width), order of config.json
 *     qwen2_5_vl:
 *       iwp.min_pixels, iwp.max_pixels    u32
 *       iwp.temporal_patch_size, iwp.tokens_per_second  u32
 *       iwp.fullatt_block_indexes         i32 array
 *       clip.vision.window_size           u32, pixels
 *
 * The tower's post layer norm of LLaVA-OneVision is in the checkpoint but not applied and left out.
 * Weights go in row chunks from the mapped input to the output: memory stays small, and the outputs
 * appear under their names only when both are complete. */
#ifndef IWP_CONVERT_CONVERT_H
#define IWP_CONVERT_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "iwp/error.h"

struct iwp_convert_params {
    const char *in;               /* a Hugging Face folder or a GGUF file */
    const char *out;              /* model GGUF */
    const char *mmproj;           /* vision GGUF; NULL for GGUF input */
    const char *type;             /* f32 f16 bf16 q8_0 q4_0 q4_k; NULL = f16 */
    const char *mmproj_type;      /* NULL = type, but q8_0 for the 4-bit types */
    int32_t n_thread;             /* 0 = all CPUs */
    bool (*cancelled)(void *ctx); /* asked between chunks; NULL = never */
    void *cancel_ctx;
};

struct iwp_convert_report {
    int32_t n_tensor, n_fallback; /* tensors written; those whose rows the type could not hold */
    int64_t n_param;
    uint64_t bytes;
};

int iwp_convert(const struct iwp_convert_params *p, struct iwp_convert_report *report,
                iwp_err *err);

/* The type's number for a name of `type` above; negative when unknown. */
int iwp_convert_type(const char *name, iwp_err *err);

#endif
