/* Keys and values: see kv.h. */
#include "model/kv.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { ROUND = 64 }; /* rows; keeps growth from happening at every token */

int iwp_kv_init(struct iwp_kv *kv, struct iwp_backend *b, int32_t n_layer, int32_t width,
                enum ggml_type type_k, enum ggml_type type_v, iwp_err *err) {
    memset(kv, 0, sizeof *kv);
    kv->b = b;
    kv->n_layer = n_layer;
    kv->width = width;
    kv->type_k = type_k;
    kv->type_v = type_v;
    kv->layer = calloc((size_t)n_layer, sizeof *kv->layer);
    IWP_REQUIRE(kv->layer, err, IWP_ENOMEM, "out of memory");
    for (int32_t l = 0; l < n_layer; l++)
        kv->layer[l].device = iwp_backend_layer_device(b, l, n_layer);
    return 0;
}

static void release(struct iwp_kv_layer *y) {
    if (y->buffer) ggml_backend_buffer_free(y->buffer);
    if (y->ctx) ggml_free(y->ctx);
    y->buffer = NULL;
    y->ctx = NULL;
    y->k = y->v = NULL;
}

void iwp_kv_free(struct iwp_kv *kv) {
    for (int32_t l = 0; kv->layer && l < kv->n_layer; l++) {
        release(&kv->layer[l]);
        free(kv->layer[l].log_size);
    }
    free(kv->layer);
    memset(kv, 0, sizeof *kv);
}

/* The first n rows of a tensor into one with another capacity, through the host (any device). */
static int move_rows(struct ggml_tensor *from, struct ggml_tensor *to, int32_t n, iwp_err *err) {
    size_t bytes = (size_t)n * from->nb[1];
    if (bytes == 0) return 0;
    void *tmp = malloc(bytes);
    IWP_REQUIRE(tmp, err, IWP_ENOMEM, "out of memory for the cache");
    ggml_backend_tensor_get(from, tmp, 0, bytes);
    ggml_backend_tensor_set(to, tmp, 0, bytes);
    free(tmp);
    return 0;
}

int iwp_kv_reserve(struct iwp_kv *kv, int32_t layer, int32_t n, iwp_err *err) {
    struct iwp_kv_layer *y = &kv->layer[layer];
    const int32_t cap = (n + ROUND - 1) / ROUND * ROUND;
    const bool shrink = y->n == 0 && y->cap > cap + cap / 2 + 256;
    if (n <= y->cap && !shrink) return 0;
    struct iwp_kv_layer fresh = {.n = y->n, .cap = cap, .device = y->device};
    int rc = 0;
    if (shrink) release(y);
    fresh.ctx = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * 4, NULL, true});
    if (!fresh.ctx) IWP_FAIL(err, IWP_ENOMEM, "out of memory for the cache");
    fresh.k = ggml_new_tensor_2d(fresh.ctx, kv->type_k, kv->width, cap);
    fresh.v = ggml_new_tensor_2d(fresh.ctx, kv->type_v, kv->width, cap);
    ggml_format_name(fresh.k, "cache_k.%d", layer);
    ggml_format_name(fresh.v, "cache_v.%d", layer);
    fresh.buffer = ggml_backend_alloc_ctx_tensors_from_buft(fresh.ctx, kv->b->buft[y->device]);
    if (!fresh.buffer)
        IWP_FAIL(err, IWP_ENOMEM, "out of memory for a cache of %d rows, see -c and -ctk", cap);
    if (y->n > 0) {
        IWP_TRY_GOTO(move_rows(y->k, fresh.k, y->n, err));
        IWP_TRY_GOTO(move_rows(y->v, fresh.v, y->n, err));
    }
    if (y->log_size) {
        fresh.log_size = calloc((size_t)cap, sizeof *fresh.log_size);
        if (!fresh.log_size) IWP_FAIL(err, IWP_ENOMEM, "out of memory for the cache");
        memcpy(fresh.log_size, y->log_size, (size_t)y->n * sizeof *y->log_size);
    }
    release(y);
    free(y->log_size);
    *y = fresh;
    return 0;
fail:
    release(&fresh);
    if (!y->buffer) y->n = y->cap = 0;
    return rc;
}

void iwp_kv_truncate(struct iwp_kv *kv, int32_t layer, int32_t n) {
    struct iwp_kv_layer *y = &kv->layer[layer];
    if (n < y->n) y->n = n;
    if (n == 0) {
        free(y->log_size);
        y->log_size = NULL;
    } else if (y->log_size) {
        memset(y->log_size + y->n, 0, (size_t)(y->cap - y->n) * sizeof *y->log_size);
    }
}

int iwp_kv_set_log_size(struct iwp_kv *kv, int32_t layer, int32_t first, int32_t n,
                        const float *log_size, iwp_err *err) {
    struct iwp_kv_layer *y = &kv->layer[layer];
    if (!log_size) return 0;
    if (!y->log_size) {
        y->log_size = calloc((size_t)y->cap, sizeof *y->log_size);
        IWP_REQUIRE(y->log_size, err, IWP_ENOMEM, "out of memory");
    }
    memcpy(y->log_size + first, log_size, (size_t)n * sizeof *log_size);
    return 0;
}

size_t iwp_kv_row_bytes(const struct iwp_kv *kv) {
    return ggml_row_size(kv->type_k, kv->width) + ggml_row_size(kv->type_v, kv->width);
}

size_t iwp_kv_used_bytes(const struct iwp_kv *kv) {
    size_t rows = 0;
    for (int32_t l = 0; l < kv->n_layer; l++) rows += (size_t)kv->layer[l].n;
    return rows * iwp_kv_row_bytes(kv);
}

size_t iwp_kv_alloc_bytes(const struct iwp_kv *kv) {
    size_t n = 0;
    for (int32_t l = 0; l < kv->n_layer; l++)
        if (kv->layer[l].buffer) n += ggml_backend_buffer_get_size(kv->layer[l].buffer);
    return n;
}
