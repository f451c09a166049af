/* Rows of one tile or frame while a method merges them inside the tower; see vit_merge.c. */
#ifndef IWP_MODEL_VIT_MERGE_H
#define IWP_MODEL_VIT_MERGE_H

#include "model/vit.h"

struct iwp_vit_merge {
    int32_t n, n_first; /* cells now, and at first */
    int32_t m;          /* rows of a cell */
    int32_t cls;        /* cell that is never merged (class token); -1: none */
    float *x;           /* [n * m][Dv] ascending by home */
    float *size;        /* [n] cells each stands for */
    int32_t *home;      /* [n] first number of each cell that is left */
    int32_t *owner;     /* [n_first] where a first cell is now */

    const int32_t
        *window; /* [n_first] window of a cell, for blocks that are not full; NULL: none */
    int32_t n_window;
    const int32_t *where; /* [n_first * m][2] row and column for the rotary embedding; NULL: none */

    float *key, *tmp, *bias; /* scratch */
    int32_t *order, *place, *pos;
};
int iwp_vit_merge_init(struct iwp_vit_merge *s, const struct iwp_tower *t, int32_t n, int32_t m,
                       iwp_err *err);
void iwp_vit_merge_free(struct iwp_vit_merge *s); /* a zeroed one is fine */

/* All blocks over s->x, down to `keep` cells (the class token not counted). */
int iwp_vit_merge_blocks(struct iwp_tower *t, struct iwp_vit_merge *s,
                         const struct iwp_params *method, int32_t keep, iwp_err *err);
/* *rows [s->n][d_model], the caller frees it also after a failure. */
int iwp_vit_merge_project(struct iwp_tower *t, struct iwp_vit_merge *s, float **rows, iwp_err *err);
/* Gives n tokens from `first` on the row of their cell's group, and the token that leads it.  Token i is
 * cell i + skip. */
void iwp_vit_merge_spread(const struct iwp_tower *t, const struct iwp_vit_merge *s,
                          const float *rows, int32_t skip, int32_t n, struct iwp_tower_out *out,
                          int32_t first);

#endif
