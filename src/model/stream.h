/* The rows of a prompt as they travel through the decoder: residuals, positions, what each one is.
 * iwp_stream_apply is the only place where a selection changes them. */
#ifndef IWP_MODEL_STREAM_H
#define IWP_MODEL_STREAM_H

#include "model/decoder.h"
#include "model/prompt.h"

struct iwp_stream {
    int32_t n, d; /* rows, width */
    int32_t n_pos;
    float *h;         /* [n][d] residual */
    int32_t *pos;     /* [n_pos][n] */
    int32_t next_pos; /* of the first token after them */
    bool renumbered;  /* positions were counted anew after a cut */
    int32_t *src;     /* [n] row of the prompt */
    int32_t *visual;  /* [n] number among the prompt's visual tokens, -1 for text */
    uint8_t *code;    /* [n] */
    float *log_size;  /* [n] logarithm of the tokens a row stands for; NULL: all one */
};

/* All rows of a prompt, h = token embeddings with the visual rows in their places. */
int iwp_stream_init(struct iwp_stream *r, const struct iwp_decoder *d, const struct iwp_prompt *p,
                    iwp_err *err);
void iwp_stream_free(struct iwp_stream *r); /* frees the parts; a zeroed one is fine */

/* Row `row` of the prompt as it enters the decoder. */
int iwp_stream_embed(const struct iwp_decoder *d, const struct iwp_prompt *p, int32_t row,
                     int32_t visual, float *out, iwp_err *err);

/* Merges rows, drops what is not kept, keeps order; sizes become biases; with `compact` the positions
 * are counted anew from 0.  sel numbers the visual rows present in r.  merged: [to][D] by first mention
 * in sel->merge, when the sums were made elsewhere; NULL: sums of these rows. */
int iwp_stream_apply(struct iwp_stream *r, const struct iwp_selection *sel, const float *merged,
                     bool compact, iwp_err *err);

#endif
