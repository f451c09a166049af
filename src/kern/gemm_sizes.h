/* Block sizes of the attention kernel. */
#ifndef IWP_KERN_GEMM_SIZES_H
#define IWP_KERN_GEMM_SIZES_H

enum {
    IWP_GEMM_KEYS = 256,    /* a step of the running softmax: scores of 32 queries stay in L1 */
    IWP_GEMM_QUERIES = 256, /* that share one walk over the keys: fewer reads of k and v */
};

#endif
