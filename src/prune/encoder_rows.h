/* Encoder rows and visual tokens (methods-pins 1, "Encoder rows"): which rows of vit_* belong to a
 * token, and the attention those rows receive.
 *
 * cls=1: row 0 is the class token, never a visual token.  merge=4: four consecutive rows form one
 * token.  input.window gives the raster index of each group; without it groups are in raster order.
 * Rows of different units never attend to each other; the class row attends to all. */
#ifndef IWP_PRUNE_ENCODER_ROWS_H
#define IWP_PRUNE_ENCODER_ROWS_H

#include <stddef.h>

#include "prune/cosine.h"
#include "prune/method.h"

/* Option merge=1|4: its choices, and the number a choice stands for. */
extern const char *const iwp_encoder_merges[];
static inline int32_t iwp_encoder_merge(int32_t choice) { return choice ? 4 : 1; }

/* Options of methods that score by attention and compare features: first in their option struct. */
struct iwp_encoder_options {
    int32_t cls, merge, features;
};
enum { IWP_FEATURES_AUTO, IWP_FEATURES_VIT, IWP_FEATURES_EMBEDS };
extern const char *const iwp_encoder_features[];
#define IWP_ENCODER_OPTIONS(score)                                                                 \
    {.name = "cls",                                                                                \
     .type = IWP_OPTION_BOOL,                                                                      \
     .offset = offsetof(struct iwp_encoder_options, cls),                                          \
     .max = 1,                                                                                     \
     .text = "encoder row 0 is a class token and its attention is the " score},                    \
        {.name = "merge",                                                                          \
         .type = IWP_OPTION_ENUM,                                                                  \
         .offset = offsetof(struct iwp_encoder_options, merge),                                    \
         .choices = iwp_encoder_merges,                                                            \
         .text = "consecutive encoder rows that form one token (4: Qwen's merger)"},               \
        {.name = "features",                                                                       \
         .type = IWP_OPTION_ENUM,                                                                  \
         .offset = offsetof(struct iwp_encoder_options, features),                                 \
         .choices = iwp_encoder_features,                                                          \
         .def_text = "vit (merge=4: embeds)",                                                      \
         .text = "rows that are compared; auto: vit_features, embeds when rows are merged"}
/* The tensor that is compared, what such a method needs, and the check of both. */
enum iwp_tensor iwp_encoder_compares(const struct iwp_encoder_options *o);
int iwp_encoder_needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap);
int iwp_encoder_check_options(const struct iwp_view *v, iwp_err *err);

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
/* Rows that are compared, as `row` [n_pool] says where they begin. */
struct iwp_source iwp_encoder_source(const struct iwp_encoder *e,
                                     const struct iwp_encoder_options *o, int32_t *row);
/* First row of each pool token in an array that may lack the class row (vit_features). */
void iwp_encoder_skip_cls(const struct iwp_encoder *e, const struct iwp_array *a, int32_t *row);

#endif
