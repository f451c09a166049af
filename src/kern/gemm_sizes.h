/* Block sizes of products and of attention. */
#ifndef IWP_KERN_GEMM_SIZES_H
#define IWP_KERN_GEMM_SIZES_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kern/gemm.h"

enum {
    IWP_GEMM_KEYS =
        256, /* a step of the running softmax at most: scores of 32 queries stay in L1 */
    IWP_GEMM_QUERIES = 256, /* that share one walk over the keys: fewer reads of k and v */
    IWP_GEMM_KC = 1280,  /* k of a block that stays in L2: with 256 rows or columns a third of it */
    IWP_GEMM_GROUP = 16, /* panels whose sums wait for the next part of k */
    IWP_GEMM_ROWS = 512, /* that share a block of weights: their sums are kept meanwhile */
};

static_assert(IWP_GEMM_KEYS % IWP_GEMM_RUN == 0 && IWP_GEMM_KC / 2 % IWP_GEMM_RUN == 0,
              "runs are not cut");

/* How k is cut, not within runs: blocks of 32 at a time, and panels whose sums wait meanwhile. */
struct iwp_gemm_parts {
    int32_t step, group;
};
static inline struct iwp_gemm_parts iwp_gemm_parts(int32_t k, bool split) {
    const int32_t kt = (k + 31) / 32, most = (IWP_GEMM_KC / 32) >> split,
                  n = (kt + most - 1) / most;
    const int32_t run = IWP_GEMM_RUN / 32, step = ((kt + n - 1) / n + run - 1) / run * run;
    return (struct iwp_gemm_parts){step, n > 1 ? IWP_GEMM_GROUP : 1};
}

#endif
