/* Block sizes of the attention kernel, and how its scratch memory is divided. */
#ifndef IWP_KERN_ATTN_SIZES_H
#define IWP_KERN_ATTN_SIZES_H

#include <stddef.h>

enum {
    IWP_ATTN_KEYS = 128, /* a step of the running softmax: scores of 32 queries stay in L1 */
    IWP_ATTN_STEP = 32,  /* keys unpacked at a time */
};

static inline size_t iwp_attn_up(size_t n) { return (n + 31) & ~(size_t)31; }

#endif
