/* Weights of one GGUF file as ggml tensors in backend buffers.
 *
 * Declare every tensor the model needs (each is checked for presence and shape, errors name it), then
 * load: memory is taken per device and layout, bytes come by pread, not through a map, because the
 * repacked layouts convert whole tensors.  The tensors live until iwp_weights_free; the GGUF reader is
 * needed until iwp_weights_load returns. */
#ifndef IWP_MODEL_WEIGHTS_H
#define IWP_MODEL_WEIGHTS_H

#include "io/gguf.h"
#include "model/backend.h"
#include "model/pack.h"

enum iwp_weight_use {
    IWP_WEIGHT_PLAIN = 0,    /* norms, biases, embeddings, anything read element by element */
    IWP_WEIGHT_MATMUL = 1,   /* only ever the left side of ggml_mul_mat: may be repacked */
    IWP_WEIGHT_OPTIONAL = 2, /* absent: *out is NULL and no error */
    IWP_WEIGHT_F32 = 4,    /* converted to f32 while loading (small f16/bf16 tensors); plain only */
    IWP_WEIGHT_PACKED = 8, /* a matrix for iwp_pack_linear and its kin, see iwp_weights_set_pack */
    /* Only ever read by iwp_weights_row: no graph may have it.  Its rows stay in the file if the backend's
     * rows_in_file says so; else they are copied, and the file may change. */
    IWP_WEIGHT_ROWS = 16,
};

struct iwp_weights;
int iwp_weights_new(struct iwp_weights **out, struct iwp_backend *b, const struct iwp_gguf *g,
                    iwp_err *err);
void iwp_weights_free(struct iwp_weights *w); /* NULL is fine */

/* Who computes with packed matrices; before the first of them is declared. */
void iwp_weights_set_pack(struct iwp_weights *w, struct iwp_pack *pack);
/* ne[i] < 0 accepts any length.  `use` is a sum of enum iwp_weight_use. */
int iwp_weights_get(struct iwp_weights *w, const char *name, int n_dims, const int64_t *ne, int use,
                    int32_t device, struct ggml_tensor **out, iwp_err *err);
/* Reads everything declared.  `what` names the progress meter ("load"). */
int iwp_weights_load(struct iwp_weights *w, const char *what, iwp_err *err);
size_t iwp_weights_bytes(const struct iwp_weights *w);

/* The first n bytes of a tensor in the file. */
int iwp_weights_read(const struct iwp_gguf *g, const struct iwp_gguf_tensor *t, void *out, size_t n,
                     iwp_err *err);
/* Row `row` of a plain CPU tensor, or of one that stays in its file, as floats, whatever its type: out [t->ne[0]]. */
int iwp_weights_row(struct iwp_weights *w, const struct ggml_tensor *t, int64_t row, float *out,
                    iwp_err *err);

#endif
