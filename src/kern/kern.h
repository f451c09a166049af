/* The inner loops that decide the speed of a selection, as a table filled once: reference C first,
 * then overwritten by what the CPU has (IWP_CPU=c|avx2|avx512|neon masks).
 *
 * Every variant gives the same bits.  What makes that possible, and what a new one must keep:
 *   - a block product keeps ONE chain of fused multiply-adds over d per output (lanes are outputs);
 *   - a plain dot or sum uses 16 partial results (lane = index mod 16) and the fixed tree
 *     (i, i+8), (i, i+4), (i, i+2), (i, i+1);
 *   - expf is iwp_kern_expf below, operation by operation;
 *   - no contraction by the compiler (-ffp-contract=off), FMA only by intrinsic or fmaf().
 */
#ifndef IWP_KERN_H
#define IWP_KERN_H

#include <stdint.h>

#include "iwp/error.h"

enum {
    IWP_PANEL = 32, /* tokens side by side in a packed panel: [d][32] */
    IWP_BLOCK = 12, /* rows of a packed block: [d][rows], rows ≤ 12 */
};

struct iwp_kern {
    const char *name;
    /* out[j] = x · q_j for n_q rows of length d at q + j*stride. */
    void (*dots)(float *out, const float *x, const float *q, int64_t stride, int32_t n_q,
                 int32_t d);
    /* Sum of squares. */
    float (*norm2)(const float *x, int32_t d);
    /* Many rows at once, each number as dots and norm2 give it: out[j*out_stride + i] = x_i · q_j. */
    void (*dots_rows)(float *out, int64_t out_stride, const float *x, int64_t x_stride, int32_t n_x,
                      const float *q, int64_t q_stride, int32_t n_q, int32_t d);
    void (*norms2)(float *out, const float *x, int64_t stride, int32_t n, int32_t d);
    /* The largest of x, -INFINITY for none. */
    float (*max_of)(const float *x, int32_t n);
    /* One head of a mean of exponentials, e[i] = logit[i] - offset: top[i] = max(top[i], e[i]), and
     * sum[i] += exp(e[i] - top[i]) * weight[i].  weight may be NULL (ones); tokens whose weight is not
     * above zero leave top alone. */
    void (*head_top)(float *top, const float *logit, double offset, const float *weight, int32_t n);
    void (*head_sum)(float *sum, const float *top, const float *logit, double offset,
                     const float *weight, int32_t n);
    /* out[r][32] = panel lanes · block row r; panel [d][32], block [d][n_row], n_row ≤ 12. */
    void (*panel_dots)(float *out, const float *panel, const float *block, int32_t n_row,
                       int32_t d);
    /* x[i] = exp(x[i] - shift), at most 0 allowed in the exponent; returns the sum. */
    float (*exp_shift_sum)(float *x, float shift, int32_t n);
    /* acc[i] += (cv[i] * exp(min(0, (2 kk[i] - (a[i] + b)) * scale)))^2: one row of 32 lanes of the
     * squared cosine of two rank-1 updates, from dots of centred keys (kk) and unit values (cv). */
    void (*dw_row)(float *acc, const float *kk, const float *cv, const float *a, float b,
                   float scale);
    /* x[i] = exp(min(0, (2 kk[i] - (a[i] + b)) * scale)) for 32 lanes.  Where the distance overflowed
     * (inf - inf) it is the smallest value: unlike, not equal. */
    void (*rbf_row)(float *x, const float *kk, const float *a, float b, float scale);
    /* m[i] = max(m[i], x[i]) */
    void (*max_row)(float *m, const float *x, int32_t n);
    void (*f16_to_f32)(const uint16_t *src, float *dst, int32_t n);
    /* panel[t][i] = rows[i*stride + t] for 32 rows and t < n: moves numbers, computes nothing. */
    void (*to_lanes)(float *panel, const float *rows, int64_t stride, int32_t n);
};

/* The table in use.  The first call detects the CPU; later ones cost a load. */
const struct iwp_kern *iwp_kern_get(void);
/* A given path, or NULL when this CPU (or build) lacks it; for tests and benchmarks. */
const struct iwp_kern *iwp_kern_path(const char *name);
/* IWP_EINVAL / IWP_ENOTSUP when IWP_CPU names a path that does not exist or the CPU lacks. */
int iwp_kern_check(iwp_err *err);

void iwp_kern_init_c(struct iwp_kern *k);
void iwp_kern_init_avx2(struct iwp_kern *k);
void iwp_kern_init_avx512(struct iwp_kern *k);
void iwp_kern_init_neon(struct iwp_kern *k);

/* Constants of expf, shared by all variants: x = n ln2 + r, polynomial of degree 6 on |r| ≤ ln2/2.
 * Relative error below 2.5e-7; below IWP_EXP_LOW the result is that of IWP_EXP_LOW (≈ 1e-38). */
#define IWP_EXP_LOW   (-87.0f)
#define IWP_EXP_LOG2E 1.44269504f
#define IWP_EXP_LN2HI 0.693359375f
#define IWP_EXP_LN2LO (-2.12194440e-4f)
#define IWP_EXP_C6    1.38888889e-3f
#define IWP_EXP_C5    8.33333333e-3f
#define IWP_EXP_C4    4.16666667e-2f
#define IWP_EXP_C3    1.66666667e-1f
#define IWP_EXP_C2    0.5f
#define IWP_EXP_MAGIC 12582912.0f /* 1.5·2^23: adding and subtracting it rounds to an integer */

float iwp_kern_expf(float x); /* the reference, x ≤ 88 */

#endif
