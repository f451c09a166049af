/* iwp/analysis.h: what pruning does to attention, from plain arrays (spec: identities 7 and 9, and the
 * statistics the paper reports).  These calls are for studies, not for the hot path: they work in
 * double, may allocate, and return 0 or a negative status (numbers are returned through pointers). */
#ifndef IWP_ANALYSIS_H
#define IWP_ANALYSIS_H

#include "iwp/prune.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Deleting one token: for each of n_head queries q [n_head][d] and each of n_row rows (prompt
 * positions), effect[h*n_row+i] = |o - o without it| = w |v - o without it|, and its softmax weight w
 * over all rows of k.  Either output may be NULL.  Never goes through 1/(1-w). */
IWP_API int iwp_analysis_deletion(const float *q, int32_t n_head, const struct iwp_array *k,
                                  const struct iwp_array *v, const int32_t *row, int32_t n_row,
                                  double *effect, double *weight, iwp_err *err);

/* Implicit weight W = sum of the updates phi(k)^T v over n_row rows of one KV head, and W_C of those with
 * kept[i] set.  Logarithms of squared norms (-inf for zero), and the cosine of W and W_C (0 when one of
 * them is zero). */
struct iwp_analysis_weight {
    double log_norm2;         /* log |W|^2 */
    double log_norm2_kept;    /* log |W_C|^2 */
    double log_norm2_removed; /* log |W - W_C|^2 */
    double cosine;
};
IWP_API int iwp_analysis_implicit_weight(const struct iwp_array *k, const struct iwp_array *v,
                                         int32_t head, const int32_t *row, int32_t n_row,
                                         const uint8_t *kept, struct iwp_analysis_weight *out,
                                         iwp_err *err);

/* The same for n_set ways to keep at once, out [n_set]: the kernel is evaluated once for each pair of rows.
 * Numbers below e^-700 of the largest update count as zero. */
IWP_API int iwp_analysis_implicit_weights(const struct iwp_array *k, const struct iwp_array *v,
                                          int32_t head, const int32_t *row, int32_t n_row,
                                          const uint8_t *const *kept, int32_t n_set,
                                          struct iwp_analysis_weight *out, iwp_err *err);

/* Similarity maps of n_row rows (prompt positions, visual or text), means over the KV heads: rbf =
 * exp(-|k_i-k_j|^2 / 2 sqrt(d)), cos_v, and dup = the squared cosine of two updates, (cos_v rbf)^2, which
 * is iwp's default duplication.  Each [n_row][n_row] or NULL. */
IWP_API int iwp_analysis_similarity(const struct iwp_array *k, const struct iwp_array *v,
                                    const int32_t *row, int32_t n_row, double *rbf, double *cos_v,
                                    double *dup, iwp_err *err);

/* Rank correlation; equal values share their mean rank.  NaN when one side is constant or n < 2. */
IWP_API int iwp_analysis_spearman(const double *a, const double *b, int32_t n, double *rho,
                                  iwp_err *err);
/* Part of the m largest of a (ties: lower index) that are among the m largest of b. */
IWP_API int iwp_analysis_overlap(const double *a, const double *b, int32_t n, int32_t m,
                                 double *part, iwp_err *err);
/* Intersection over union of two ascending lists; two empty lists are equal (1). */
IWP_API double iwp_analysis_iou(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b);
/* Mean of it over all pairs of n_set lists; pairs [n_set][n_set] may be NULL. */
IWP_API double iwp_analysis_miou(const int32_t *const *set, const int32_t *n, int32_t n_set,
                                 double *pairs);
/* Percentile p (0 to 100) of x, linear between neighbours; NaN for n = 0. */
IWP_API int iwp_analysis_percentile(const double *x, int32_t n, double p, double *value,
                                    iwp_err *err);

#ifdef __cplusplus
}
#endif
#endif
