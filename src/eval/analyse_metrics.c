/* The paper's tables of metrics (spec/iwp.md 7.1): every magnitude under every query with topk, every
 * duplication with pc-mmr and the default magnitude, and which of the factors of identity 6 (cosine of
 * the angle, norm of the key's features, norm of the value) each magnitude follows, as rank correlation
 * over the visual tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"

enum { N_MAGNITUDE = 9, N_QUERY = 5, N_DUPLICATION = 5, N_FACTOR = 3 };
static const char *const magnitude[N_MAGNITUDE] = {
    "kv", "k", "vnorm", "knorm", "phik", "dw", "centered", "deletion", "kv_deletion"};
static const char *const query[N_QUERY] = {"text-after", "text-all", "text-user", "image", "last"};
static const char *const duplication[N_DUPLICATION] = {"dw", "rbf", "cos_k", "cos_v", "cos_h"};
static const char *const factor[N_FACTOR] = {"cosθ", "‖φ(k)‖", "‖v‖"};
/* vnorm, knorm, phik and dw have no query: one run each. */
enum { N_ASKING = 5, N_TRIAL = 2 + N_ASKING * N_QUERY + (N_MAGNITUDE - N_ASKING) + N_DUPLICATION };
static bool asks(int m) { return m < 2 || m > 5; }
/* Number of the run of a magnitude under a query. */
static int trial_of(int m, int q) {
    int at = 2;
    for (int i = 0; i < m; i++) at += asks(i) ? N_QUERY : 1;
    return asks(m) ? at + q : q == 0 ? at : -1;
}

struct factors {
    struct iwp_tally rho[N_MAGNITUDE][N_FACTOR];
};

/* Head means of the logarithms of the three factors of identity 6. */
static void factor_values(const struct iwp_acts *x, const float *q, double *out) {
    const int32_t N = x->n_visual, d = x->d;
    const double root = 2 * sqrt(d);
    memset(out, 0, (size_t)(N_FACTOR * N) * sizeof *out);
    for (int32_t h = 0; h < x->H; h++) {
        const int32_t g = h * x->G / x->H;
        for (int32_t i = 0; i < N; i++) {
            const size_t at = ((size_t)x->visual[i] * (size_t)x->G + (size_t)g) * (size_t)d;
            const float *k = x->k + at, *v = x->v + at, *qh = q + (size_t)h * (size_t)d;
            double apart = 0, kk = 0, vv = 0;
            for (int32_t t = 0; t < d; t++) {
                apart += ((double)qh[t] - (double)k[t]) * ((double)qh[t] - (double)k[t]);
                kk += (double)k[t] * (double)k[t];
                vv += (double)v[t] * (double)v[t];
            }
            out[i] -= apart / root / x->H;
            out[N + i] += kk / root / x->H;
            out[2 * N + i] += sqrt(vv) / x->H;
        }
    }
}

static int at_layer(void *ctx, struct iwp_analyse *a, const struct iwp_acts *x, iwp_err *err) {
    struct factors *c = ctx;
    const size_t N = (size_t)x->n_visual;
    float *q = malloc((size_t)x->H * (size_t)x->d * sizeof *q), *s = malloc(N * sizeof *s);
    double *value = malloc(N_FACTOR * N * sizeof *value), *score = malloc(N * sizeof *score);
    int32_t *keep = malloc(N * sizeof *keep);
    int rc = 0;
    if (!q || !s || !value || !score || !keep) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(iwp_acts_query(x, false, q, err));
    factor_values(x, q, value);
    for (int m = 0; m < N_MAGNITUDE; m++) {
        struct iwp_params p = a->job->prune;
        p.budget.keep = a->job->keep[0];
        p.budget.n_keep = 0;
        IWP_TRY_GOTO(iwp_params_parse(&p, "selector=topk,query=text-after,magnitude-rope=0", err));
        IWP_TRY_GOTO(iwp_params_set(&p, "magnitude", magnitude[m], err));
        IWP_TRY_GOTO(iwp_acts_select(x, &p, keep, s, err));
        for (size_t i = 0; i < N; i++) score[i] = s[i];
        for (int k = 0; k < N_FACTOR; k++) {
            double rho;
            IWP_TRY_GOTO(
                iwp_analysis_spearman(score, value + (size_t)k * N, (int32_t)N, &rho, err));
            iwp_tally_add(&c->rho[m][k], rho);
        }
    }
fail:
    free(q), free(s), free(value), free(score), free(keep);
    return rc < 0 ? rc : 0;
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                      const iwp_prompt *p, iwp_err *err) {
    (void)s;
    return iwp_acts_walk(a, p, a->layer, a->layer + 1, false, at_layer, ctx, err);
}

static int make_trials(struct iwp_trial *t, const struct iwp_analyse *a, iwp_err *err) {
    const double keep = a->job->keep[0];
    char option[120], name[72];
    IWP_TRY(iwp_trial_set(t++, a, 0, "unpruned", "unpruned", NULL, err));
    IWP_TRY(iwp_trial_set(t++, a, keep, "default", "default", NULL, err));
    for (int m = 0; m < N_MAGNITUDE; m++)
        for (int q = 0; q < (asks(m) ? N_QUERY : 1); q++) {
            snprintf(option, sizeof option, "selector=topk,magnitude=%s,query=%s", magnitude[m],
                     query[q]);
            snprintf(name, sizeof name, asks(m) ? "%s, %s" : "%s", magnitude[m], query[q]);
            IWP_TRY(iwp_trial_set(t++, a, keep, "magnitude", name, option, err));
        }
    for (int d = 0; d < N_DUPLICATION; d++) {
        snprintf(option, sizeof option, "selector=pc-mmr,magnitude=kv,duplication=%s",
                 duplication[d]);
        IWP_TRY(iwp_trial_set(t++, a, keep, "duplication", duplication[d], option, err));
    }
    return 0;
}

static void draw(const struct factors *c, const struct iwp_trial *t, struct iwp_finding *f) {
    double kl[N_MAGNITUDE * N_QUERY], score[N_MAGNITUDE * N_QUERY], rho[N_MAGNITUDE * N_FACTOR];
    bool scored = false, nats = false;
    for (int i = 0; i < N_MAGNITUDE * N_QUERY; i++) {
        const int at = trial_of(i / N_QUERY, i % N_QUERY);
        const struct iwp_trial *one = at >= 0 ? &t[at] : NULL;
        kl[i] = one && one->n ? one->kl : NAN;
        nats = nats || (one && one->n_nll && !one->n_score);
        score[i] = !one ? NAN : one->n_score ? one->score : one->nll;
        scored = scored || isfinite(score[i]);
    }
    for (int m = 0; m < N_MAGNITUDE; m++)
        for (int k = 0; k < N_FACTOR; k++) rho[m * N_FACTOR + k] = iwp_tally_mean(&c->rho[m][k]);
    struct iwp_chart_heat h = {.title = "topk: KL to the unpruned run, nats",
                               .rows = N_MAGNITUDE,
                               .cols = N_QUERY,
                               .value = kl,
                               .row_name = magnitude,
                               .col_name = query,
                               .lo = 0,
                               .hi = NAN,
                               .format = "%.3g",
                               .cell_w = 72};
    const struct iwp_chart_box b = iwp_chart_heat(&f->chart, IWP_CHART_LEFT, IWP_CHART_TOP, &h);
    struct iwp_chart_heat r = {.title = "What a magnitude follows: rank correlation",
                               .rows = N_MAGNITUDE,
                               .cols = N_FACTOR,
                               .value = rho,
                               .row_name = magnitude,
                               .col_name = factor,
                               .lo = -1,
                               .hi = 1,
                               .diverging = true,
                               .format = "%.2f",
                               .cell_w = 72};
    iwp_chart_heat(&f->chart, b.x + b.w + IWP_CHART_GAP, IWP_CHART_TOP, &r);
    double y = b.y + b.h + IWP_CHART_GAP;
    struct iwp_chart_bar bar[N_DUPLICATION];
    char note[N_DUPLICATION][80];
    for (int d = 0; d < N_DUPLICATION; d++) {
        const struct iwp_trial *one = &t[N_TRIAL - N_DUPLICATION + d];
        iwp_trial_note(one, note[d], sizeof note[d]);
        bar[d] = (struct iwp_chart_bar){
            duplication[d], one->error[0] ? one->error : note[d], one->kl, 0, NAN, 2};
    }
    const struct iwp_chart_bars d = {.title = "pc-mmr with each duplication",
                                     .axis = "KL to the unpruned run, nats",
                                     .bar = bar,
                                     .n = N_DUPLICATION,
                                     .lo = 0,
                                     .hi = NAN,
                                     .width = 240};
    if (scored) {
        h.title = nats ? "topk: nats per token of the references" : "topk: score, %";
        h.value = score;
        h.lo = NAN;
        h.format = nats ? "%.3f" : "%.1f";
        const struct iwp_chart_box s = iwp_chart_heat(&f->chart, IWP_CHART_LEFT, y, &h);
        iwp_chart_bars(&f->chart, s.x + s.w + IWP_CHART_GAP, y, &d);
    } else {
        iwp_chart_bars(&f->chart, IWP_CHART_LEFT, y, &d);
    }
}

static void tell(const struct factors *c, const struct iwp_trial *t, struct iwp_finding *f) {
    const struct iwp_trial *best = NULL, *dup = NULL;
    for (int i = 2; i < N_TRIAL; i++) {
        const struct iwp_trial **b = i < N_TRIAL - N_DUPLICATION ? &best : &dup;
        if (t[i].n && (!*b || t[i].kl < (*b)->kl)) *b = &t[i];
    }
    char note[80];
    iwp_trial_note(&t[1], note, sizeof note);
    fprintf(f->text, "iwp as it is: %s.\n", note);
    if (best) {
        iwp_trial_note(best, note, sizeof note);
        fprintf(f->text,
                "Closest to the unpruned run with topk: magnitude %s (%s); kv, text-after: "
                "KL %.4f.\n",
                best->name, note, t[2].kl);
    }
    if (dup) {
        iwp_trial_note(dup, note, sizeof note);
        fprintf(f->text, "Closest with pc-mmr: duplication %s (%s).\n", dup->name, note);
    }
    fprintf(f->text, "Rank correlation of magnitudes with cos θ, |φ(k)|, |v|:\n");
    for (int m = 0; m < N_MAGNITUDE; m++)
        fprintf(f->text, "  %-12s %6.2f %6.2f %6.2f%s\n", magnitude[m],
                iwp_tally_mean(&c->rho[m][0]), iwp_tally_mean(&c->rho[m][1]),
                iwp_tally_mean(&c->rho[m][2]), asks(m) ? "" : "  (has no query)");
    for (int i = 1; i < N_TRIAL; i++)
        if (t[i].error[0]) {
            fprintf(f->text, "%s could not run: %s\n", t[i].name, t[i].error);
            break;
        }
}

int iwp_analyse_metrics(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err) {
    struct factors c;
    memset(&c, 0, sizeof c);
    struct iwp_trial *t = calloc(N_TRIAL, sizeof *t);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    int rc = 0;
    IWP_TRY_GOTO(make_trials(t, a, err));
    IWP_TRY_GOTO(iwp_analyse_each(a, f, 1, one_sample, &c, err));
    f->n_sample = 0;
    IWP_TRY_GOTO(iwp_trials_run(a, f, t, N_TRIAL, 1, err));
    iwp_json_open_object(&f->json, "rank_correlation");
    for (int m = 0; m < N_MAGNITUDE; m++) {
        iwp_json_open_object(&f->json, magnitude[m]);
        iwp_json_put_f64(&f->json, "cosine", iwp_tally_mean(&c.rho[m][0]));
        iwp_json_put_f64(&f->json, "key_feature_norm", iwp_tally_mean(&c.rho[m][1]));
        iwp_json_put_f64(&f->json, "value_norm", iwp_tally_mean(&c.rho[m][2]));
        iwp_json_close_object(&f->json);
    }
    iwp_json_close_object(&f->json);
    iwp_trials_json(&f->json, "runs", t, N_TRIAL);
    tell(&c, t, f);
    draw(&c, t, f);
fail:
    iwp_trials_free(t, N_TRIAL);
    free(t);
    return rc < 0 ? rc : 0;
}
