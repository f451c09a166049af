/* A prompt as the decoder takes it: token ids, what each token is, positions, and the rows that the
 * vision tower made for the visual ones.
 *
 *     messages or raw text + media ──iwp_prompt_build──▶ struct iwp_prompt ──▶ iwp_session_begin
 *
 * Owns: tokenising (NFC, special ids only where the template or a raw prompt puts them), expansion of
 * placeholders, positions (M-RoPE included), encoding of pictures through the tower and the cache of
 * encoded pictures.  Knows nothing of layers, caches or pruning; what a method wants to read from the
 * tower is asked for in the request. */
#ifndef IWP_MODEL_PROMPT_H
#define IWP_MODEL_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iwp/engine.h" /* parts, messages, struct iwp_prompt_request */
#include "media/image.h"
#include "media/preprocess.h"

/* One picture or video of a prompt. */
struct iwp_prompt_image {
    char *file;               /* as the user named it; "" for bytes of a request */
    int32_t width, height;    /* pixels of the file, or of the first frame */
    int32_t n_frame;          /* 1 for a picture */
    int32_t first_visual;     /* index of its first row among the visual tokens */
    int32_t n_visual;         /* rows, separators included */
    struct iwp_pre_plan plan; /* grids: iwp_pre_grid_count, iwp_pre_grid */
    struct iwp_pre_row *row;  /* [n_visual] cell of each token, for overlays and units */
    struct iwp_image picture; /* RGB of a picture; empty unless the request says keep_pixels */
    struct iwp_image *frame;  /* [n_frame] small ones of a video, likewise, or NULL */
    int32_t *frame_index;     /* [n_frame] of a video: their numbers in it */
    double *frame_time;       /* [n_frame] of a film: seconds since its first frame, or NULL */
    double fps;               /* at which a video's frames come, 0: not known */
    float *pixel_values;      /* [plan.n_pixel], only when the request says dump */
    float *vision_features; /* [n_vision][d_vision] tower output, only when the request says dump */
    int32_t n_vision, d_vision;
};

struct iwp_prompt {
    int32_t n;        /* S, tokens */
    int32_t *id;      /* [n] placeholders carry the model's image token */
    uint8_t *code;    /* [n] enum iwp_code: 0 template, 1 visual, 2 separator, 3 the user's words */
    int32_t n_pos;    /* 1, or 3 for M-RoPE: time, height, width */
    int64_t *pos;     /* [n_pos][n] */
    int64_t next_pos; /* position of the first generated token */

    int32_t n_visual; /* N, tokens of code 1 and 2 */
    int32_t d_model;  /* D */
    float *visual;    /* [n_visual][d_model] what enters the decoder, in its order */
    int32_t *unit_image, *unit_tile, *unit_frame; /* [n_visual] numbers for budget scopes */

    int32_t n_image;
    struct iwp_prompt_image *image; /* [n_image] in prompt order, videos included */

    /* What the request asked to tap; NULL otherwise.  Rows are those of the visual tokens of code 1, in
     * decoder order, `vit_merge` consecutive rows for each (tokens that are interpolated between
     * features get the same weighted sum); vit_cls rows (0 or 1) come first. */
    int32_t n_vit, d_vit, n_vit_head, d_vit_head, vit_cls, vit_merge;
    float *vit_features;  /* [n_vit][d_vit] */
    float *vit_q, *vit_k; /* [n_vit][n_vit_head][d_vit_head], after the tower's rotary embedding */
    int64_t *window;      /* [tokens of code 1] or NULL: identity */
    float *text_embeds;   /* [n_text_embed][d_vit] of a text tower, NULL when the model has none */
    int32_t n_text_embed;

    /* A method merged rows inside the tower: the visual tokens that stand for the groups, ascending, and
     * rows of all tiles before the first and after each block.  NULL: none did. */
    const struct iwp_method *tower_method;
    int32_t *tower_keep, n_tower_keep;
    int32_t *tower_after, n_tower_block, n_tower_row;

    double ms_decode_image, ms_preprocess, ms_encode; /* 0 when it came from the cache */
};

void iwp_prompt_free(struct iwp_prompt *p); /* frees the parts, not p; a zeroed one is fine */

/* Vocabulary, template, tower, projector and cache of one model. */
typedef struct iwp_prompter iwp_prompter;
struct iwp_backend;
struct iwp_gguf;
struct llama_vocab;

struct iwp_prompter_params {
    struct iwp_backend *backend;   /* where the tower runs; outlives the prompter */
    const struct iwp_gguf *model;  /* open files; need not outlive the call */
    const struct iwp_gguf *mmproj; /* NULL: text only, or a combined file */
    const char *chat_template;     /* name; NULL: the one that fits the file */
    size_t cache_bytes;            /* of encoded pictures; 0: 512 MB */
};
int iwp_prompter_new(iwp_prompter **out, const struct iwp_prompter_params *p, iwp_err *err);
void iwp_prompter_free(iwp_prompter *m); /* NULL is fine */

const struct llama_vocab *iwp_prompter_vocab(const iwp_prompter *m);
bool iwp_prompter_is_end(const iwp_prompter *m, int32_t id); /* ends an answer */
/* Bytes of a token (may be part of a UTF-8 character), special ones as nothing; returns the count. */
int iwp_prompter_piece(const iwp_prompter *m, int32_t id, char *buf, int cap);
size_t iwp_prompter_weight_bytes(const iwp_prompter *m); /* tower and projector */
/* Encoder rows x [n_row][d_vit] through the projector to y [n_row / vit_merge][d_model]. */
int iwp_prompter_project(iwp_prompter *m, const float *x, int32_t n_row, float *y, iwp_err *err);

/* Builds a prompt.  The caller frees it with iwp_prompt_free, also after a failure.  Thread-safe calls
 * need a lock of the caller's. */
int iwp_prompt_build(iwp_prompter *m, const struct iwp_prompt_request *r, struct iwp_prompt *out,
                     iwp_err *err);
/* Visual tokens and tiles that a picture of side x side pixels would have; an error when the request's
 * limits, its `resize` or its method inside the tower cannot be had from it. */
int iwp_prompt_try(iwp_prompter *m, const struct iwp_prompt_request *r, int32_t side,
                   int32_t *n_tile, iwp_err *err);

#endif
