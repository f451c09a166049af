/* Encoder rows and visual tokens (methods-pins 1, "Encoder rows"): which rows of vit_* belong to a
 * token, and the attention those rows receive.
 *
 * cls=1: row 0 is the class token, never a visual token.  merge=4: four consecutive rows form one
 * token.  input.window gives the raster index of each group; without it groups are in raster order.
 * Rows of different units never attend to each other; the class row attends to all. */
#ifndef IWP_PRUNE_ENCODER_ROWS_H
#define IWP_PRUNE_ENCODER_ROWS_H

#include "prune/method.h"

/* Option merge=1|4: its choices, and the number a choice stands for. */
extern const char *const iwp_encoder_merges[];
static inline int32_t iwp_encoder_merge(int32_t choice) { return choice ? 4 : 1; }

struct iwp_encoder {
    const struct iwp_view *v;
    const struct iwp_array *q, *k;
    int32_t cls, merge;
    int32_t n_row;  /* P = pool tokens * merge + cls */
    int32_t *row;   /* [n_pool] first encoder row of a pool token */
    double *score;  /* [n_pool] mean over heads of the attention from CLS, or received (mean row) */
    int32_t *cell;  /* [n_pool] raster index -> group */
    int32_t *token; /* [n_visual] scratch */
    int32_t *order; /* [n_row] rows of unit 0, then of unit 1, …; groups stay together */
    int32_t *group_at; /* [n_pool] place of a group in order */
    int32_t *first;    /* [n_visual + 1] where a unit starts in order */
    int32_t n_unit;
    float *panel; /* [n_head][row panels][d][32] keys */
    float *strip; /* [n_head][12][rows] logits of a block of queries */
    double *col;  /* [n_head][n_row] from CLS by row, or received by place in order */
};

/* Row counts of vit_q, vit_k and (features) vit_features against the tokens. */
int iwp_encoder_check(const struct iwp_view *v, int32_t cls, int32_t merge, int features,
                      iwp_err *err);
/* attention = 0: only the map. */
void iwp_encoder_layout(struct iwp_encoder *e, const struct iwp_view *v, int32_t cls, int32_t merge,
                        int attention, struct iwp_arena *a);
/* Fills `row`; an error when input.window is no permutation. */
int iwp_encoder_map(struct iwp_encoder *e, iwp_err *err);
/* Fills `score`: O(heads * P^2 * d) without CLS, no P x P array. */
void iwp_encoder_attention(struct iwp_encoder *e);
/* First row of each pool token in an array that may lack the class row (vit_features). */
void iwp_encoder_skip_cls(const struct iwp_encoder *e, const struct iwp_array *a, int32_t *row);

#endif
