/* What is in a GGUF file, a safetensors file or a Hugging Face folder, and whether iwp runs it.
 * Anything that can be read at all is described; what keeps it from running is said in one line. */
#ifndef IWP_CONVERT_INSPECT_H
#define IWP_CONVERT_INSPECT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/json.h"
#include "iwp/error.h"
#include "media/preprocess.h"

enum { IWP_INSPECT_MAX_TYPE = 64, IWP_INSPECT_MAX_LAYER = 1024 };

struct iwp_inspect_type {
    char name[16];
    int32_t n_tensor;
    int64_t n_param;
    uint64_t bytes;
};

struct iwp_inspect_fallback {
    char name[64], type[16];
    int64_t row;
};

struct iwp_inspect {
    const char *kind; /* "gguf" | "safetensors" | "huggingface" */
    char path[4096], arch[80], name[128], role[16];
    int32_t version, n_part; /* GGUF; files of a split model or shards */
    int32_t n_tensor, n_type;
    int64_t n_param;
    uint64_t bytes;
    struct iwp_inspect_type type[IWP_INSPECT_MAX_TYPE];
    char main_type[16];
    int32_t n_fallback;
    struct iwp_inspect_fallback *fallback;
    struct {
        bool there, tied;
        int32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_ctx, n_vocab, sections[4];
        float rope_theta, rms_eps;
        char tokenizer[40];
    } decoder;
    struct {
        bool there;
        char tower[32], projector[40];
        int32_t n_layer, n_embd, n_head, n_ff, patch, image_size, out, n_full, full[64];
    } vision;
    int32_t n_decoder_layer, n_tower_layer;
    uint64_t decoder_layer[IWP_INSPECT_MAX_LAYER], tower_layer[IWP_INSPECT_MAX_LAYER],
        other;           /* bytes */
    char *chat_template; /* NULL = none */
    char template_sha[65];
    const char *template_name; /* of the engine's table; NULL = not one of them */
    bool has_pre;              /* settings for the estimate of visual tokens */
    struct iwp_pre_params pre;
    bool has_plan;
    struct iwp_pre_plan plan;
    bool runs;
    char why[400];
};

/* image_w, image_h 0: no estimate.  Fails only when nothing can be read. */
int iwp_inspect(struct iwp_inspect **out, const char *path, int32_t image_w, int32_t image_h,
                iwp_err *err);
void iwp_inspect_free(struct iwp_inspect *r); /* NULL is fine */

void iwp_inspect_json(const struct iwp_inspect *r, struct iwp_json_out *w);
void iwp_inspect_print(const struct iwp_inspect *r, FILE *f);

#endif
