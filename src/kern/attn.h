/* Attention of the decoder over its cache: causal, grouped heads, keys and values as f32, f16 or q8_0.
 *
 * Row i of n looks at the keys [0, n_kv - n + i]; which keys those are is all there is to a mask, so none is
 * read, and keys that nobody sees are not touched.  `bias` is added to the logits of a key (rows that stand
 * for several).  Query heads that share a KV head are taken together: each key is read and unpacked
 * once for all of them.
 *
 * Two ways, whose results do not depend on how the work is cut into calls:
 *     many   blocks of 32 queries against blocks of keys, the running softmax between two products;
 *     one    a single row (n = 1): pieces of IWP_ATTN_CHUNK keys, put together by iwp_attn_join.
 *
 * Accuracy.  Vector paths compute in f32.  AMX takes every factor as a sum of two bf16 numbers and adds
 * three products, good to 2^-16 of each factor (f16 keys and values are exact).  With VNNI a single row on a
 * q8_0 cache is integers, good to 2^-16 of the largest number of a query and of the largest factor of 32 keys
 * (attn_bytes.h).  Exponentials are good to 4e-6.  Results differ between paths by that and the order of
 * summation. */
#ifndef IWP_KERN_ATTN_H
#define IWP_KERN_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    IWP_ATTN_TILE = 32,   /* queries of a block */
    IWP_ATTN_CHUNK = 256, /* keys of a piece */
};
enum iwp_attn_type { IWP_ATTN_F32, IWP_ATTN_F16, IWP_ATTN_Q8_0 };

/* Rows of a cache; strides in bytes. */
struct iwp_attn_rows {
    const void *data;
    size_t row, head;
    enum iwp_attn_type type;
};

struct iwp_attn {
    const float *q; /* strides in values */
    int64_t q_row, q_head;
    struct iwp_attn_rows k, v;
    const float *bias; /* [n_kv] or NULL */
    int32_t n, n_kv;
    int32_t n_head, n_head_kv, d;
    float scale;
    float *out; /* heads side by side */
    int64_t out_row;
};

struct iwp_attn_path {
    const char *name;
    /* Queries [first, first + n) of a KV head, first a multiple of 32: query i is the head
     * i % (n_head / n_head_kv) of row i / (n_head / n_head_kv). */
    void (*many)(const struct iwp_attn *op, int32_t kv_head, int32_t first, int32_t n,
                 void *scratch);
    /* All queries of n KV heads of the only row against piece `chunk` of the keys; the results of a KV head lie
     * `stride` floats behind those of the one before. */
    void (*one)(const struct iwp_attn *op, int32_t kv_head, int32_t n, int32_t chunk, float *part,
                size_t stride, void *scratch);
};

/* The best path of this CPU (IWP_CPU masks), NULL when it has none but plain C. */
const struct iwp_attn_path *iwp_attn_get(void);
/* "c", "avx2", "avx512", "vnni" or "amx"; NULL when this CPU or build lacks it. */
const struct iwp_attn_path *iwp_attn_path(const char *name);
/* Head sizes the paths know. */
static inline bool iwp_attn_fits(int32_t d) { return d >= 16 && d <= 512 && d % 16 == 0; }

/* Bytes for n queries at once, 64-byte aligned; n = 0: for `one`, of any number of KV heads. */
size_t iwp_attn_scratch(const struct iwp_attn *op, int32_t n);

/* A piece's result: for each query head d sums, the largest logit (base 2) and the sum of weights. */
static inline size_t iwp_attn_part_stride(int32_t d) { return (size_t)d + 16; }
static inline size_t iwp_attn_part_size(const struct iwp_attn *op) { /* floats */
    return (size_t)(op->n_head / op->n_head_kv) * iwp_attn_part_stride(op->d);
}
static inline int32_t iwp_attn_chunks(int32_t n_kv) {
    return (n_kv + IWP_ATTN_CHUNK - 1) / IWP_ATTN_CHUNK;
}
/* Puts the pieces of one KV head together, in order. */
void iwp_attn_join(const struct iwp_attn *op, int32_t kv_head, const float *part);

void iwp_attn_init_c(struct iwp_attn_path *p);
void iwp_attn_init_avx2(struct iwp_attn_path *p);
void iwp_attn_init_avx512(struct iwp_attn_path *p);
void iwp_attn_init_vnni(struct iwp_attn_path *p);
void iwp_attn_init_amx(struct iwp_attn_path *p);

#endif
