/* VTW: before layer K every visual token is withdrawn (methods-in-llm 6).  There is nothing to score;
 * the whole method is the choice of K. */
#include <math.h>

#include "prune/methods.h"
#include "prune/schedule.h"
#include "prune/vtw.h"

double iwp_vtw_divergence(const double *withdrawn, const double *full, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        if (withdrawn[i] > 0) sum += withdrawn[i] * iwp_math_log(withdrawn[i] / full[i]);
    return sum;
}

int32_t iwp_vtw_layer(const double *divergence, int32_t first, int32_t n, double eta) {
    for (int32_t i = 0; i < n; i++)
        if (divergence[i] <= eta) return first + i; /* first crossing, not the smallest */
    return -1;
}

/* Budget p becomes a layer: matched (and the default once a budget is given) is PACT's rule
 * K = round(4 + p (L-4)), layer-average K = round(p L), otherwise the authors' 15 of 32 layers. */
static int plan(const struct iwp_params *p, const struct iwp_plan_shape *s, struct iwp_stage *out,
                int cap, iwp_err *err) {
    int32_t n = iwp_plan_pool(p, s), l = s->n_layer;
    IWP_REQUIRE(cap > 0 && n > 0, err, IWP_EINVAL, "there is no visual token to prune");
    IWP_TRY(iwp_budget_check(&p->budget, n, err));
    enum iwp_budget_rule rule = p->budget.rule;
    int given = p->budget.n_keep != 0 || p->budget.keep < 1;
    if (rule == IWP_RULE_DEFAULT) rule = given ? IWP_RULE_MATCHED : IWP_RULE_AS_PUBLISHED;
    double k;
    if (p->layer >= 0)
        k = p->layer;
    else if (rule == IWP_RULE_MATCHED || rule == IWP_RULE_LAYER_AVERAGE) {
        k = floor(iwp_schedule_target(p, rule, l, n) * l + 0.5);
        IWP_REQUIRE(k >= 1, err, IWP_EINVAL,
                    "%s: averaged over layers, vtw in %d layers reaches a share of %.4g to 1",
                    iwp_budget_flag(&p->budget), l, 0.5 / l);
    } else
        k = floor(15.0 / 32.0 * l + 0.5);
    out[0] = (struct iwp_stage){.site = IWP_SITE_LAYER, .at = k < l ? (int32_t)k : l - 1};
    return 1;
}

static int select_vtw(struct iwp_view *v, struct iwp_arena *m, void *state, iwp_err *err) {
    (void)v;
    (void)m;
    (void)state;
    (void)err;
    return 0; /* nothing is marked, so nothing is kept */
}

const struct iwp_method iwp_method_vtw = {
    .info = {.name = "vtw",
             .title = "withdraws all visual tokens at one layer",
             .ref = "VTW: visual tokens withdrawal (lzhxmu/VTW)",
             .site = IWP_SITE_LAYER,
             .flags = IWP_METHOD_MAY_KEEP_ZERO,
             .positions = "original",
             .rounding = "the budget becomes a layer: round(4 + keep (L-4))",
             .layer = 15},
    .plan = plan,
    .select = select_vtw,
};
