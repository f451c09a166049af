/* See schedule.h. */
#include "prune/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double half_even(double x) {
    double f = floor(x), r = x - f;
    return r > 0.5 || (r == 0.5 && fmod(f, 2) != 0) ? f + 1 : f;
}

void iwp_schedule_layers(struct iwp_schedule *s, const struct iwp_params *p, int32_t n_layer,
                         const int32_t *layer, int n) {
    s->n = 0;
    if (p->layer >= 0) {
        s->at[s->n++] = p->layer;
        return;
    }
    int32_t last = 0;
    for (int i = 0; i < n; i++)
        if (layer[i] > last && layer[i] < n_layer) last = s->at[s->n++] = layer[i];
    if (s->n == 0) s->at[s->n++] = n_layer > 1 ? 1 : 0; /* a decoder of one or two layers */
}

enum iwp_budget_rule iwp_schedule_rule(const struct iwp_params *p) {
    if (p->budget.rule != IWP_RULE_DEFAULT) return p->budget.rule;
    return p->layer >= 0 ? IWP_RULE_CUT : IWP_RULE_LAYER_AVERAGE;
}

double iwp_schedule_target(const struct iwp_params *p, enum iwp_budget_rule rule, int32_t n_layer,
                           int32_t n_token) {
    double keep = p->budget.n_keep ? (double)p->budget.n_keep / n_token : p->budget.keep;
    if (rule != IWP_RULE_MATCHED) return keep;
    double first = n_layer < 4 ? n_layer : 4;
    return (first + keep * (n_layer - first)) / n_layer;
}

void iwp_schedule_geometric(const struct iwp_schedule *s, double u, double n_token, double *count) {
    double c = n_token;
    for (int32_t k = 0; k < s->n; k++) count[k] = c = fmax(1, c * u);
}

/* Mean over layers of the tokens a layer processes. */
static double average(const struct iwp_schedule *s, const double *count, int32_t n_layer,
                      double n_token) {
    double sum = n_token * s->at[0];
    for (int32_t k = 0; k < s->n; k++)
        sum += count[k] * ((k + 1 < s->n ? s->at[k + 1] : n_layer) - s->at[k]);
    return sum / n_layer;
}

int iwp_schedule_write(const struct iwp_schedule *s, const int32_t *count, struct iwp_stage *out,
                       int cap, iwp_err *err) {
    IWP_REQUIRE(s->n <= cap, err, IWP_EINVAL, "iwp_plan: %d stages, room for %d", s->n, cap);
    for (int32_t k = 0; k < s->n; k++)
        out[k] = (struct iwp_stage){.site = IWP_SITE_LAYER, .at = s->at[k], .n_keep = count[k]};
    return s->n;
}

static int unreachable(const struct iwp_schedule *s, const struct iwp_params *p,
                       enum iwp_budget_rule rule, double least, int32_t n_layer, int32_t n_token,
                       iwp_err *err) {
    char layers[80];
    int at = 0;
    for (int32_t k = 0; k < s->n && at < 60; k++)
        at += snprintf(layers + at, sizeof layers - (size_t)at, "%s%d", k ? ", " : "", s->at[k]);
    if (rule == IWP_RULE_MATCHED) { /* the range in the user's own unit */
        double first = n_layer < 4 ? n_layer : 4;
        least = n_layer > 4 ? (least * n_layer - first) / (n_layer - first) : 1;
    }
    if (p->budget.n_keep)
        return iwp_err_set(err, IWP_EINVAL,
                           "--keep-tokens %d: averaged over layers, %s with cuts before layer %s "
                           "of %d reaches %.0f to %d",
                           p->budget.n_keep, p->method->info.name, layers, n_layer,
                           ceil(least * n_token), n_token);
    return iwp_err_set(err, IWP_EINVAL,
                       "--keep %g: averaged over layers, %s with cuts before layer %s of %d "
                       "reaches %.4g to 1",
                       p->budget.keep, p->method->info.name, layers, n_layer, least);
}

int iwp_schedule_solve(const struct iwp_schedule *s, const struct iwp_params *p,
                       const struct iwp_plan_shape *shape, struct iwp_stage *out, int cap,
                       iwp_err *err) {
    int32_t n = iwp_plan_pool(p, shape), count[IWP_STAGE_MAX];
    double c[IWP_STAGE_MAX], lo = 0, hi = 1;
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "there is no visual token to prune");
    IWP_TRY(iwp_budget_check(&p->budget, n, err));
    enum iwp_budget_rule rule = iwp_schedule_rule(p);
    if (rule == IWP_RULE_CUT) { /* equal relative cuts down to M */
        int32_t m = p->budget.n_keep ? p->budget.n_keep : iwp_keep_count(p->budget.keep, n);
        double u = iwp_math_exp(iwp_math_log((double)m / n) / s->n);
        iwp_schedule_geometric(s, u, n, c);
        c[s->n - 1] = m;
    } else {
        double want = iwp_schedule_target(p, rule, shape->n_layer, n) * n;
        s->family(s, 0, n, c);
        double least = average(s, c, shape->n_layer, n);
        if (want < least - 1e-9 * n)
            return unreachable(s, p, rule, least / n, shape->n_layer, n, err);
        for (int i = 0; i < 100; i++) {
            double u = (lo + hi) / 2;
            s->family(s, u, n, c);
            *(average(s, c, shape->n_layer, n) < want ? &lo : &hi) = u;
        }
        s->family(s, want >= n ? 1 : hi, n, c);
    }
    for (int32_t k = 0; k < s->n; k++) {
        double x = half_even(c[k]);
        int32_t most = k ? count[k - 1] : n;
        count[k] = x < 1 ? 1 : x > most ? most : (int32_t)x;
    }
    return iwp_schedule_write(s, count, out, cap, err);
}

int32_t iwp_schedule_truncate(const struct iwp_budget *b, int32_t n) {
    if (b->n_keep) return b->n_keep;
    int32_t m = (int32_t)(b->keep * n);
    return m < 1 ? 1 : m;
}

int iwp_schedule_one(const struct iwp_params *p, const struct iwp_plan_shape *shape, int32_t layer,
                     struct iwp_stage *out, iwp_err *err) {
    const struct iwp_method_info *m = &p->method->info;
    struct iwp_params q = *p;
    struct iwp_schedule s = {.n = 1, .family = iwp_schedule_geometric};
    int in_decoder = m->site == IWP_SITE_LAYER;
    if (q.budget.rule == IWP_RULE_DEFAULT || q.budget.rule == IWP_RULE_AS_PUBLISHED)
        q.budget.rule = IWP_RULE_CUT;
    IWP_REQUIRE(in_decoder || q.budget.rule == IWP_RULE_CUT, err, IWP_EINVAL,
                "--budget-rule: method %s does not cut inside the decoder", m->name);
    s.at[0] = layer < shape->n_layer ? layer : shape->n_layer - 1;
    IWP_TRY(iwp_schedule_solve(&s, &q, shape, out, 1, err));
    out[0].site = m->site;
    if (!in_decoder) out[0].at = -1;
    return 1;
}
