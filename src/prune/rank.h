/* What scoring methods share after the score: top-M inside each unit, counts, cosines. */
#ifndef IWP_PRUNE_RANK_H
#define IWP_PRUNE_RANK_H

#include "prune/method.h"

/* Publishes score [n_pool] and marks the unit_keep best of each unit (larger score, then lower
 * index).  idx [n_pool] is scratch. */
void iwp_rank_keep_best(struct iwp_view *v, const double *score, int32_t *idx);

/* Publishes score [n_pool] as the first-stage scores. */
void iwp_rank_publish(struct iwp_view *v, const double *score);

/* As-published counts of the methods that truncate: unit_keep = max(1, trunc(n · keep)).  Does
 * nothing under other rules, or when the count itself was given. */
void iwp_rank_truncate_counts(struct iwp_view *v);

/* Cosine from a dot product and two squared norms: 0 if a norm is 0, 1 above 1 - 1e-6 so that copies
 * are not ordered by rounding noise, never below -1. */
double iwp_rank_cosine(double dot, double norm2_a, double norm2_b);

/* Σ (x - y)² with eight running sums: a fixed order at the speed of the memory. */
double iwp_rank_distance2(const float *x, const float *y, int32_t n);
double iwp_rank_norm1(const float *x, int32_t n);

/* Widest row of one head or of the residual stream that the methods accept. */
enum { IWP_HEAD_WIDTH_MAX = 512, IWP_ROW_WIDTH_MAX = 65536 };
/* An error that names the tensor when its heads are wider than IWP_HEAD_WIDTH_MAX. */
int iwp_rank_check_heads(const struct iwp_input *in, enum iwp_tensor t, iwp_err *err);

#endif
