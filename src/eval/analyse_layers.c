/* Kept sets across layers: in an unpruned run the tokens are selected at the input of every layer; the
 * intersection over union of each pair of layers, mean over the samples (spec/iwp.md 7.6). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"

struct sets {
    struct iwp_params p;
    int32_t L;
    int32_t **set, *n; /* [L] of the current sample */
    double *sum;       /* [L][L] */
    struct iwp_tally mean, chance;
};

static int select_here(void *ctx, struct iwp_analyse *a, const struct iwp_acts *x, iwp_err *err) {
    struct sets *c = ctx;
    int32_t *keep = realloc(c->set[x->layer], (size_t)x->n_visual * sizeof *keep);
    IWP_REQUIRE(keep, err, IWP_ENOMEM, "out of memory");
    c->set[x->layer] = keep;
    int rc = iwp_acts_select(x, &c->p, keep, NULL, err);
    IWP_TRY(rc);
    c->n[x->layer] = rc;
    iwp_analyse_tick(a);
    return 0;
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                      const iwp_prompt *p, iwp_err *err) {
    struct sets *c = ctx;
    (void)s;
    IWP_TRY(iwp_acts_walk(a, p, 0, c->L, false, select_here, c, err));
    double *pairs = malloc((size_t)c->L * (size_t)c->L * sizeof *pairs);
    IWP_REQUIRE(pairs, err, IWP_ENOMEM, "out of memory");
    iwp_tally_add(&c->mean, iwp_analysis_miou((const int32_t *const *)c->set, c->n, c->L, pairs));
    /* Two sets of M of N drawn at random share M/N of their tokens. */
    const double r = (double)c->n[0] / iwp_prompt_info(p).n_visual;
    iwp_tally_add(&c->chance, r / (2 - r));
    for (int32_t i = 0; i < c->L * c->L; i++) c->sum[i] += pairs[i];
    free(pairs);
    return 0;
}

static void tell(const struct sets *c, const struct iwp_analyse *a, struct iwp_finding *f,
                 double keep) {
    const int32_t L = c->L;
    double next = 0, row_sum = -1;
    int32_t best = 0;
    for (int32_t i = 0; i + 1 < L; i++) next += c->sum[i * L + i + 1];
    for (int32_t i = 0; i < L; i++) {
        double sum = 0;
        for (int32_t j = 0; j < L; j++) sum += c->sum[i * L + j];
        if (sum > row_sum) row_sum = sum, best = i;
    }
    double here = 0;
    for (int32_t j = 0; j < L; j++) here += c->sum[a->layer * L + j];
    next /= fmax(L - 1, 1);
    fprintf(f->text,
            "At keep %.1f%% the sets of two layers overlap by %.3f (mean IoU over all pairs; %.3f "
            "by chance), those of neighbouring layers by %.3f. Layer %d agrees most with all "
            "others (%.3f), layer %d, where iwp cuts, by %.3f.\n",
            100 * keep, iwp_tally_mean(&c->mean), iwp_tally_mean(&c->chance), next, best,
            L > 1 ? (row_sum - 1) / (L - 1) : 1, a->layer, L > 1 ? (here - 1) / (L - 1) : 1);
    iwp_json_put_f64(&f->json, "mean_iou", iwp_tally_mean(&c->mean));
    iwp_json_put_f64(&f->json, "chance_iou", iwp_tally_mean(&c->chance));
    iwp_json_put_f64(&f->json, "neighbour_iou", next);
    iwp_json_put_int(&f->json, "most_typical_layer", best);
}

int iwp_analyse_layers(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err) {
    struct sets c = {.p = a->job->prune, .L = a->info.n_layer};
    const int32_t L = c.L;
    int rc = 0;
    c.p.budget.keep = a->job->keep[0];
    c.set = calloc((size_t)L, sizeof *c.set);
    c.n = calloc((size_t)L, sizeof *c.n);
    c.sum = calloc((size_t)L * (size_t)L, sizeof *c.sum);
    if (!c.set || !c.n || !c.sum) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(iwp_analyse_each(a, f, L, one_sample, &c, err));
    for (int32_t i = 0; i < L * L; i++) c.sum[i] /= f->n_sample;
    tell(&c, a, f, a->job->keep[0]);
    iwp_json_open_array(&f->json, "iou");
    for (int32_t i = 0; i < L; i++) {
        iwp_json_open_array(&f->json, NULL);
        for (int32_t j = 0; j < L; j++) iwp_json_put_f64(&f->json, NULL, c.sum[i * L + j]);
        iwp_json_close_array(&f->json);
    }
    iwp_json_close_array(&f->json);
    char title[80];
    snprintf(title, sizeof title, "IoU of the kept sets, keep %.1f%%", 100 * a->job->keep[0]);
    const double cell = L <= 12 ? 40 : fmax(14, 480.0 / L);
    const struct iwp_chart_heat h = {.title = title,
                                     .row_axis = "layer",
                                     .col_axis = "layer",
                                     .rows = L,
                                     .cols = L,
                                     .value = c.sum,
                                     .lo = 0,
                                     .hi = 1,
                                     .format = L <= 16 ? "%.2f" : NULL,
                                     .cell_w = cell,
                                     .cell_h = L <= 12 ? 30 : cell};
    iwp_chart_heat(&f->chart, IWP_CHART_LEFT, IWP_CHART_TOP, &h);
fail:
    for (int32_t i = 0; c.set && i < L; i++) free(c.set[i]);
    free(c.set);
    free(c.n);
    free(c.sum);
    return rc < 0 ? rc : 0;
}
