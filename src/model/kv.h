/* The cache of keys and values.  Every layer has its own length: after a cut the layers above it hold
 * fewer rows, and that is data, not a special case.  Memory of a layer is taken when it is first used and
 * grows by copying. */
#ifndef IWP_MODEL_KV_H
#define IWP_MODEL_KV_H

#include "model/backend.h"

struct iwp_kv_layer {
    struct ggml_tensor *k, *v; /* [G d, cap] */
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    int32_t n, cap, device;
    float *
        log_size; /* [cap] added to the attention logits of a row that stands for several, or NULL */
};

struct iwp_kv {
    struct iwp_backend *b;
    int32_t n_layer, width; /* G d */
    enum ggml_type type_k, type_v;
    struct iwp_kv_layer *layer; /* [n_layer] */
};

int iwp_kv_init(struct iwp_kv *kv, struct iwp_backend *b, int32_t n_layer, int32_t width,
                enum ggml_type type_k, enum ggml_type type_v, iwp_err *err);
void iwp_kv_free(struct iwp_kv *kv); /* frees the parts; a zeroed one is fine */

/* Room for n rows in a layer, its first rows kept.  An empty layer that has much more is shrunk. */
int iwp_kv_reserve(struct iwp_kv *kv, int32_t layer, int32_t n, iwp_err *err);
void iwp_kv_truncate(struct iwp_kv *kv, int32_t layer, int32_t n);
/* Sizes of the rows [first, first + n) of a layer as logarithms; NULL log: all one. */
int iwp_kv_set_log_size(struct iwp_kv *kv, int32_t layer, int32_t first, int32_t n,
                        const float *log_size, iwp_err *err);

size_t iwp_kv_row_bytes(const struct iwp_kv *kv);  /* k and v of one row of one layer */
size_t iwp_kv_used_bytes(const struct iwp_kv *kv); /* rows in use */
size_t iwp_kv_alloc_bytes(const struct iwp_kv *kv);

#endif
