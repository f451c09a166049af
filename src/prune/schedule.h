/* Budgets as schedules: where a method cuts and how many tokens live on after each cut.
 *
 * The rules (methods-in-llm 1.3): `cut`: after the last cut round-half-even(p N) tokens remain.
 * `layer-average`: the mean over layers of the tokens a layer processes is p N.  `matched`: that mean
 * is what one cut before layer 4 with keep p has, (4 + p (L-4)) / L.  `as-published`: the authors'
 * own counts, written by the method. */
#ifndef IWP_PRUNE_SCHEDULE_H
#define IWP_PRUNE_SCHEDULE_H

#include "prune/method.h"

struct iwp_schedule {
    int32_t n, at[IWP_STAGE_MAX]; /* cuts, ascending decoder layers */
    /* Tokens after each cut for a strength u in [0,1]: 0 keeps the fewest, 1 keeps all, monotone. */
    void (*family)(const struct iwp_schedule *s, double u, double n_token, double *count);
    double shape[IWP_STAGE_MAX]; /* the family's own numbers */
};

/* Cuts at the given layers, made to fit: ascending, inside 1 … n_layer-1.  With p->layer given:
 * one cut, there. */
void iwp_schedule_layers(struct iwp_schedule *s, const struct iwp_params *p, int32_t n_layer,
                         const int32_t *layer, int n);

/* The rule of a multi-stage method: layer-average by default, cut when the user asked for one
 * layer. */
enum iwp_budget_rule iwp_schedule_rule(const struct iwp_params *p);

/* Stages under cut, layer-average and matched.  Averages are met to half a token; one that no
 * strength reaches is an error with the reachable range. */
int iwp_schedule_solve(const struct iwp_schedule *s, const struct iwp_params *p,
                       const struct iwp_plan_shape *shape, struct iwp_stage *out, int cap,
                       iwp_err *err);

/* Stages with counts the method knows. */
int iwp_schedule_write(const struct iwp_schedule *s, const int32_t *count, struct iwp_stage *out,
                       int cap, iwp_err *err);

/* One cut at `layer` under any rule: what methods without a plan of their own do. */
int iwp_schedule_one(const struct iwp_params *p, const struct iwp_plan_shape *shape, int32_t layer,
                     struct iwp_stage *out, iwp_err *err);

/* The count one cut has under as-published for the methods that truncate: max(1, trunc(keep n)). */
int32_t iwp_schedule_truncate(const struct iwp_budget *b, int32_t n);

/* Fraction of N that an average over layers is to have under this rule. */
double iwp_schedule_target(const struct iwp_params *p, enum iwp_budget_rule rule, int32_t n_layer,
                           int32_t n_token);

/* A family for one cut, or for equal relative cuts: count_k = N u^k. */
void iwp_schedule_geometric(const struct iwp_schedule *s, double u, double n_token, double *count);

#endif
