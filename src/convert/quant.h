/* Which type a tensor gets, and the way from a source's rows to the writer in chunks. */
#ifndef IWP_CONVERT_QUANT_H
#define IWP_CONVERT_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/pool.h"
#include "convert/convert.h"
#include "io/gguf.h"
#include "io/safetensors.h"

/* Where a tensor's values come from: a safetensors tensor, of which `n_block` blocks of `block` elements
 * are taken, `stride` apart (contiguous: one block); or a tensor of a GGUF. */
struct iwp_source {
    const struct iwp_st_tensor *st;
    int64_t first, block, stride;
    const struct iwp_gguf *gguf;
    const struct iwp_gguf_tensor *gt;
};

struct iwp_plan_tensor {
    char name[64];
    uint32_t type;
    int32_t n_dims;
    int64_t ne[4];
    bool fallback; /* the rows do not fit the wanted type */
    struct iwp_source src;
};

/* Target for a tensor of this name and shape.  Norms, biases, position and patch embeddings stay f32;
 * for the 4-bit types the output matrix takes q6_K and the vision tower q8_0. */
uint32_t iwp_plan_type(uint32_t want, const char *name, int n_dims, int64_t row, bool tied,
                       bool *fallback);

/* LLAMA_FTYPE of a file that is mostly of this type. */
uint32_t iwp_plan_file_type(uint32_t type);

struct iwp_copier {
    iwp_pool *pool;
    float *f32;   /* one chunk, converted */
    uint8_t *out; /* one chunk, encoded */
    struct iwp_progress progress;
    int64_t done;
    const struct iwp_convert_params *params;
};
int iwp_copier_open(struct iwp_copier *c, const struct iwp_convert_params *p, iwp_err *err);
void iwp_copier_close(struct iwp_copier *c);
/* All tensors of a plan, in order. */
int iwp_copier_run(struct iwp_copier *c, struct iwp_gguf_writer *w, const struct iwp_plan_tensor *t,
                   int n, iwp_err *err);

#endif
