/* The three pieces of SparseVLM that are methods of their own: density-peak clustering of recycled
 * tokens, the numerical rank of the raters' attention, the position factor of version 2. */
#ifndef IWP_PRUNE_SPARSEVLM_PARTS_H
#define IWP_PRUNE_SPARSEVLM_PARTS_H

#include "prune/method.h"

/* Clusters m rows of an array round c centres (methods-in-llm 4.5.4, pins L 4.5.4). */
struct iwp_peaks {
    /* results */
    int32_t *centre; /* [c] places in the list, best first */
    int32_t *near;   /* [m] cluster of each row */
    double *density; /* [m] rho */
    double *gap;     /* [m] delta */
    /* private */
    const struct iwp_exec *exec;
    const struct iwp_array *x;
    const int32_t *row;
    int32_t m, c, cap, d;
    float *panel, *dist2, *tmp; /* [panels][d][32], [m][m] squared distance / d */
    double *mean, *diag, *score;
    int32_t *idx;
};

void iwp_peaks_layout(struct iwp_peaks *p, const struct iwp_view *v, const struct iwp_array *x,
                      int32_t m_max, struct iwp_arena *a);
/* Rows row[0 … m-1] of x, 1 ≤ c ≤ m ≤ m_max. */
void iwp_peaks_run(struct iwp_peaks *p, const int32_t *row, int32_t m, int32_t c);

/* Numerical rank of a matrix whose Gram matrix (smaller side, n × n, overwritten) is given; a singular
 * value counts when above `larger side` · 2^-23 · the largest.  work [2 n]. */
int32_t iwp_sparse_rank(double *gram, int32_t n, int32_t larger_side, double *work);

/* What RoPE alone gives all-ones q and k at a distance, at least 0.01 √d so that no sign flips:
 * (2/√d) Σ_m cos(distance · base^(-2m/d)). */
double iwp_sparse_position_factor(double distance, int32_t d, double base);

#endif
