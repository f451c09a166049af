/* Cosines between token rows, by the packed kernels (methods-pins 1, "Cosines").
 *
 * Rows are scaled to unit length once and packed into panels of 32 tokens; every cosine is then one
 * chain of fused multiply-adds per stretch of 256 columns, so equal rows give equal bits wherever
 * they stand, on every CPU path.  A row of zeros has cosine 0 to everything; above 1 - 1e-6 a cosine
 * counts as 1, else copies (newlines, padding) would be ordered by rounding noise. */
#ifndef IWP_PRUNE_COSINE_H
#define IWP_PRUNE_COSINE_H

#include "prune/method.h"

enum { IWP_ROW_WIDE = 16384 }; /* widest row */

/* Where rows come from: row i starts at array row `row[i]` (NULL: i) and is the mean of `group`
 * consecutive array rows; several heads are joined end to end, or averaged. */
struct iwp_source {
    const struct iwp_array *array;
    const int32_t *row;
    int32_t group; /* 0 counts as 1 */
    int mean_heads;
};
int32_t iwp_source_width(const struct iwp_source *s);
/* ENOTSUP, naming the tensor, when a row would be wider than IWP_ROW_WIDE. */
int iwp_source_check(const struct iwp_source *s, enum iwp_tensor t, iwp_err *err);
/* Row i: a pointer into the array, or tmp [width] filled. */
const float *iwp_source_row(const struct iwp_source *s, int32_t i, float *tmp);
/* Sum of squares in double, in one fixed order. */
double iwp_row_norm2(const float *x, int32_t d);
double iwp_row_dot(const float *x, const float *y, int32_t d);

/* n unit rows in panels [n/32][d][32], lanes past n are 0. */
struct iwp_units {
    int32_t n, d;
    float *panel;
    double *norm2; /* [n] squared lengths before scaling */
};
void iwp_units_layout(struct iwp_units *u, int32_t n_max, int32_t d, struct iwp_arena *a);
/* Packs rows pick[0 … n-1] of the source (pick NULL: rows first … first+n-1). */
void iwp_units_pack(struct iwp_units *u, const struct iwp_exec *exec, const struct iwp_source *s,
                    const int32_t *pick, int32_t first, int32_t n);

/* 0 when a packed row held a NaN or Inf: squares of finite floats cannot overflow a double. */
int iwp_units_finite(const struct iwp_units *u);

/* All pairs, for the methods whose definition reads them again and again: gram [n][stride]. */
static inline size_t iwp_gram_stride(int32_t n) { return ((size_t)n + 31) & ~(size_t)31; }
float *iwp_gram_take(struct iwp_arena *a, int32_t n_max);
void iwp_units_gram(const struct iwp_units *u, const struct iwp_exec *exec, float *gram);

/* For every row of x its most similar row of y (ties: the lower one): cosine and index.  Nothing of
 * the block is stored.  y must not be empty. */
void iwp_units_nearest(const struct iwp_units *x, const struct iwp_units *y,
                       const struct iwp_exec *exec, float *best, int32_t *arg);

/* The pins' rule for one cosine. */
static inline float iwp_cosine_settle(float c) {
    return c > 1.0f - 1e-6f ? 1.0f : c < -1.0f ? -1.0f : c;
}

#endif
