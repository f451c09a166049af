/* Exact deletion (identity 7) on real activations: how large the weights of visual tokens are, how much the
 * factor 1/(1-w) can matter, how well the scores rank the exact effect, and what it means for answers
 * (spec/iwp.md 7.4). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"

struct grown {
    double *at;
    int64_t n, cap;
};

static int grow(struct grown *g, double x, iwp_err *err) {
    if (g->n == g->cap) {
        const int64_t cap = g->cap ? 2 * g->cap : 1024;
        double *at = realloc(g->at, (size_t)cap * sizeof *at);
        IWP_REQUIRE(at && cap < INT32_MAX, err, IWP_ENOMEM, "out of memory");
        g->at = at;
        g->cap = cap;
    }
    g->at[g->n++] = x;
    return 0;
}

struct deletions {
    struct grown weight, top; /* softmax weights of visual tokens; the largest of each head */
    struct iwp_tally centered_overlap, centered_rank, plain_overlap, plain_rank, effect_rank;
};

static int scores_of(const struct iwp_analyse *a, const struct iwp_acts *x, const char *option,
                     int32_t *keep, double *out, iwp_err *err) {
    struct iwp_params p = a->job->prune;
    p.budget.keep = a->job->keep[0];
    p.budget.n_keep = 0;
    float *s = malloc((size_t)x->n_visual * sizeof *s);
    IWP_REQUIRE(s, err, IWP_ENOMEM, "out of memory");
    int rc = iwp_params_parse(&p, option, err);
    if (rc >= 0) rc = iwp_acts_select(x, &p, keep, s, err);
    for (int32_t i = 0; i < x->n_visual && rc >= 0; i++) out[i] = s[i];
    free(s);
    return rc;
}

static int add_weights(struct deletions *c, const double *w, int32_t H, int32_t N, iwp_err *err) {
    for (int32_t h = 0; h < H; h++) {
        double top = 0;
        for (int32_t i = 0; i < N; i++) {
            const double x = w[(size_t)h * (size_t)N + (size_t)i];
            if (x > top) top = x;
            IWP_TRY(grow(&c->weight, x, err));
        }
        IWP_TRY(grow(&c->top, top, err));
    }
    return 0;
}

static int at_layer(void *ctx, struct iwp_analyse *a, const struct iwp_acts *x, iwp_err *err) {
    struct deletions *c = ctx;
    const int32_t N = x->n_visual, H = x->H;
    const size_t all = (size_t)H * (size_t)N;
    float *q = malloc((size_t)H * (size_t)x->d * sizeof *q);
    double *effect = malloc(all * sizeof *effect), *w = malloc(all * sizeof *w);
    double *mean = calloc((size_t)N, sizeof *mean), *plain = malloc((size_t)N * sizeof *plain),
           *centered = malloc((size_t)N * sizeof *centered),
           *exact = malloc((size_t)N * sizeof *exact);
    int32_t *keep = malloc((size_t)N * sizeof *keep);
    int rc = 0;
    if (!q || !effect || !w || !mean || !plain || !centered || !exact || !keep)
        IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(iwp_acts_query(x, false, q, err));
    IWP_TRY_GOTO(iwp_analysis_deletion(q, H, &x->k_arr, &x->v_arr, x->visual, N, effect, w, err));
    for (size_t i = 0; i < all; i++) mean[i % (size_t)N] += effect[i] / H;
    IWP_TRY_GOTO(scores_of(a, x, "magnitude=kv,selector=topk,query=text-after", keep, plain, err));
    const int32_t M = rc;
    IWP_TRY_GOTO(
        scores_of(a, x, "magnitude=centered,selector=topk,query=text-after", keep, centered, err));
    IWP_TRY_GOTO(
        scores_of(a, x, "magnitude=deletion,selector=topk,query=text-after", keep, exact, err));
    double co, cr, po, pr, er;
    IWP_TRY_GOTO(iwp_analysis_overlap(centered, plain, N, M, &co, err));
    IWP_TRY_GOTO(iwp_analysis_spearman(centered, exact, N, &cr, err));
    IWP_TRY_GOTO(iwp_analysis_overlap(plain, exact, N, M, &po, err));
    IWP_TRY_GOTO(iwp_analysis_spearman(plain, exact, N, &pr, err));
    IWP_TRY_GOTO(iwp_analysis_spearman(exact, mean, N, &er, err));
    IWP_TRY_GOTO(add_weights(c, w, H, N, err));
    iwp_tally_add(&c->centered_overlap, co);
    iwp_tally_add(&c->centered_rank, cr);
    iwp_tally_add(&c->plain_overlap, po);
    iwp_tally_add(&c->plain_rank, pr);
    iwp_tally_add(&c->effect_rank, er);
fail:
    free(q), free(effect), free(w), free(mean), free(plain), free(centered), free(exact);
    free(keep);
    return rc < 0 ? rc : 0;
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                      const iwp_prompt *p, iwp_err *err) {
    (void)s;
    return iwp_acts_walk(a, p, a->layer, a->layer + 1, false, at_layer, ctx, err);
}

static double percentile(const struct grown *g, double p) {
    double v = NAN;
    iwp_analysis_percentile(g->at, (int32_t)g->n, p, &v, NULL);
    return v;
}

static void put_percentiles(struct iwp_json_out *w, const char *key, const struct grown *g) {
    static const double ps[] = {50, 90, 95, 99, 100};
    char name[16];
    iwp_json_open_object(w, key);
    for (size_t i = 0; i < sizeof ps / sizeof *ps; i++) {
        snprintf(name, sizeof name, "p%g", ps[i]);
        iwp_json_put_f64(w, name, percentile(g, ps[i]));
    }
    iwp_json_close_object(w);
}

static void draw(const struct deletions *c, const struct iwp_trial *t, int32_t n_trial,
                 struct iwp_finding *f) {
    enum { POINTS = 101 };
    double x[POINTS], y[POINTS];
    for (int i = 0; i < POINTS; i++) {
        y[i] = i;
        x[i] = percentile(&c->top, i);
    }
    const double px[2] = {0.18, 0.18}, pm[2] = {0.35, 0.35}, py[2] = {0, 100};
    const struct iwp_chart_series s[] = {
        {.name = "this model", .x = x, .y = y, .n = POINTS},
        {.name = "paper: 95th percentile", .x = px, .y = py, .n = 2, .dashed = true, .colour = 1},
        {.name = "paper: worst head", .x = pm, .y = py, .n = 2, .dashed = true, .colour = 3}};
    const struct iwp_chart_lines l = {.title = "Largest weight of a visual token in each head",
                                      .x_axis = "softmax weight w",
                                      .y_axis = "share of heads below it, %",
                                      .series = s,
                                      .n = 3,
                                      .x_lo = 0,
                                      .x_hi = fmax(0.4, percentile(&c->top, 100)),
                                      .y_lo = 0,
                                      .y_hi = 100};
    const struct iwp_chart_box b = iwp_chart_lines(&f->chart, IWP_CHART_LEFT, IWP_CHART_TOP, &l);
    const struct {
        const char *name;
        const struct iwp_tally *t;
    } rows[] = {{"centered and plain score: same top tokens", &c->centered_overlap},
                {"plain score and exact effect: same top tokens", &c->plain_overlap},
                {"centered score and exact effect: rank correlation", &c->centered_rank},
                {"plain score and exact effect: rank correlation", &c->plain_rank}};
    struct iwp_chart_bar bar[4];
    char note[8][80];
    for (int i = 0; i < 4; i++) {
        snprintf(note[i], sizeof note[i], "%.4f (least %.4f)", iwp_tally_mean(rows[i].t),
                 rows[i].t->lo);
        bar[i] =
            (struct iwp_chart_bar){rows[i].name, note[i], iwp_tally_mean(rows[i].t), 0, NAN, 0};
    }
    const struct iwp_chart_bars agreement = {
        .title = "Agreement of the scores", .bar = bar, .n = 4, .lo = 0, .hi = 1, .width = 260};
    const double y2 = b.y + b.h + IWP_CHART_GAP;
    const struct iwp_chart_box b2 = iwp_chart_bars(&f->chart, IWP_CHART_LEFT, y2, &agreement);
    struct iwp_chart_bar run[8];
    for (int32_t i = 1; i < n_trial && i < 8; i++) {
        iwp_trial_note(&t[i], note[i], sizeof note[i]);
        run[i - 1] = (struct iwp_chart_bar){t[i].name, note[i], t[i].kl, 0, NAN, 2};
    }
    const struct iwp_chart_bars effect = {
        .title = "Change of the first token's logits under topk with each score",
        .axis = "KL to the unpruned run, nats",
        .bar = run,
        .n = n_trial - 1,
        .lo = 0,
        .hi = NAN,
        .width = 260};
    iwp_chart_bars(&f->chart, IWP_CHART_LEFT, b2.y + b2.h + IWP_CHART_GAP - 10, &effect);
}

static void tell(const struct deletions *c, const struct iwp_trial *t, int32_t n,
                 struct iwp_finding *f) {
    fprintf(f->text,
            "The largest weight of a visual token in a head is %.3f in the median, %.3f at the "
            "95th percentile, %.3f at worst (paper: 0.18 and 0.35), so 1/(1-w) is at most %.3f. "
            "Ranking by the centered score instead of the plain one keeps %.1f%% of the top tokens "
            "(paper: at least 94.7%%); rank correlation with the exact effect is %.4f for the "
            "centered score (paper: 0.997) and %.4f for the plain one.\n",
            percentile(&c->top, 50), percentile(&c->top, 95), percentile(&c->top, 100),
            1 / (1 - percentile(&c->top, 100)), 100 * iwp_tally_mean(&c->centered_overlap),
            iwp_tally_mean(&c->centered_rank), iwp_tally_mean(&c->plain_rank));
    for (int32_t i = 1; i < n; i++) {
        char note[80];
        iwp_trial_note(&t[i], note, sizeof note);
        fprintf(f->text, "  topk by %-9s %s\n", t[i].name, note);
    }
}

int iwp_analyse_deletion(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err) {
    enum { N = 4 };
    static const char *const name[N] = {"none", "plain", "centered", "exact"};
    static const char *const option[N] = {NULL, "selector=topk,magnitude=kv",
                                          "selector=topk,magnitude=centered",
                                          "selector=topk,magnitude=deletion"};
    struct deletions c;
    struct iwp_trial t[N];
    memset(&c, 0, sizeof c);
    memset(t, 0, sizeof t);
    int rc = 0;
    IWP_TRY_GOTO(iwp_analyse_each(a, f, 1, one_sample, &c, err));
    for (int i = 0; i < N; i++)
        IWP_TRY_GOTO(
            iwp_trial_set(&t[i], a, i ? a->job->keep[0] : 0, "score", name[i], option[i], err));
    f->n_sample = 0;
    IWP_TRY_GOTO(iwp_trials_run(a, f, t, N, 1, err));
    put_percentiles(&f->json, "largest_weight_per_head", &c.top);
    put_percentiles(&f->json, "weight", &c.weight);
    iwp_json_put_f64(&f->json, "largest_factor", 1 / (1 - percentile(&c.top, 100)));
    iwp_tally_json(&f->json, "centered_overlap", &c.centered_overlap);
    iwp_tally_json(&f->json, "centered_rank", &c.centered_rank);
    iwp_tally_json(&f->json, "plain_overlap", &c.plain_overlap);
    iwp_tally_json(&f->json, "plain_rank", &c.plain_rank);
    iwp_tally_json(&f->json, "effect_rank", &c.effect_rank);
    iwp_trials_json(&f->json, "runs", t, N);
    tell(&c, t, N, f);
    draw(&c, t, N, f);
fail:
    free(c.weight.at);
    free(c.top.at);
    iwp_trials_free(t, N);
    return rc < 0 ? rc : 0;
}
