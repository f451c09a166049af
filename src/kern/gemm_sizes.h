/* Block sizes of attention and of bulk products. */
#ifndef IWP_KERN_GEMM_SIZES_H
#define IWP_KERN_GEMM_SIZES_H

enum {
    IWP_GEMM_KEYS = 256,    /* a step of the running softmax: scores of 32 queries stay in L1 */
    IWP_GEMM_QUERIES = 256, /* that share one walk over the keys: fewer reads of k and v */
    IWP_GEMM_KC = 1280,     /* k of a block of weights: with IWP_GEMM_COLS columns a third of L2 */
    IWP_GEMM_ROWS = 512,    /* that share a block of weights: their sums are kept meanwhile */
};

#endif
