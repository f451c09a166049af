/* Attention probabilities of chosen query rows, summed over those rows per head, computed beside the
 * model's fused attention.  No S×S matrix: rows are made twelve at a time and folded into the sums.
 *
 * Order of additions is fixed by shapes alone, so the sums have the same bits for every thread count
 * and CPU path, and two keys that are copies of each other get the same bits wherever the same rows
 * see them. */
#ifndef IWP_PRUNE_ATTENTION_H
#define IWP_PRUNE_ATTENTION_H

#include "prune/method.h"

struct iwp_attention {
    /* Set before iwp_attention_layout; n_row may shrink between layout and run. */
    const struct iwp_array *q, *k; /* [.][H][d], [.][G][d] */
    int32_t n_row;                 /* query rows, at most */
    int32_t n_key;                 /* keys are rows 0 … n_key-1 of k */
    int32_t wants_rows;            /* also fill `rows` */
    /* Set before iwp_attention_run. */
    const int32_t *row;      /* [n_row] rows of q; NULL: 0 … n_row-1 */
    const int32_t *key_from; /* [n_row] first key each row sees; NULL: 0 */
    const int32_t *key_to;   /* [n_row] one past the last; NULL: causal, row + 1 */
    const float *divisor;    /* [n_row][n_key] each probability is divided by; NULL: 1 */
    /* Results. */
    double *sum;   /* [H][width] over rows of the probability of each key */
    float *rows;   /* [G][n_row][width] sum over the heads of a group; only with wants_rows */
    int32_t width; /* n_key rounded up to whole panels */
    /* private */
    const struct iwp_exec *exec;
    int32_t n_head, n_group, heads, d, n_chunk, cap_row, wide;
    float *panel, *buf, *key_max;
    double *part;
};

/* Takes the scratch memory; call before iwp_arena_counting() returns. */
void iwp_attention_layout(struct iwp_attention *a, const struct iwp_view *v, struct iwp_arena *m);
void iwp_attention_run(struct iwp_attention *a);
/* out[i] = factor · Σ_h sum[h][key[i]] */
void iwp_attention_head_sum(const struct iwp_attention *a, const int32_t *key, int32_t n,
                            double factor, double *out);

#endif
