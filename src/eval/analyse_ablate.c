/* One factor at a time around the default (spec/iwp.md 7.2, 7.3): RoPE, layer, lambda, growth, first chunk,
 * selector, penalty; magnitude alone against magnitude and duplication at every budget; and, on a few
 * visual tokens of each prompt, the distance of every selector from the best set there is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"
#include "prune/method.h"

enum { N_SMALL = 12, N_SELECTOR = 4, MAX_TRIAL = 64 };
static const char *const selectors[N_SELECTOR] = {"topk", "pc-mmr", "mmr-mult", "mmr-add"};

/* ---- brute force ---------------------------------------------------------------------------------------- */

struct brute {
    struct iwp_tally ratio[N_SELECTOR], random; /* change of the attention output, best = 1 */
};

/* The prompt with N_SMALL of its visual tokens. */
struct small {
    int32_t n, n_visual, row[N_SMALL];
    uint8_t *code;
    float *mem[6];
    struct iwp_input in;
};

static void small_free(struct small *s) {
    free(s->code);
    for (int i = 0; i < 6; i++) free(s->mem[i]);
}

static int small_make(struct small *s, const struct iwp_acts *x, iwp_err *err) {
    static const enum iwp_tensor tensor[6] = {IWP_TENSOR_Q,      IWP_TENSOR_K,      IWP_TENSOR_V,
                                              IWP_TENSOR_Q_ROPE, IWP_TENSOR_K_ROPE, IWP_TENSOR_H};
    memset(s, 0, sizeof *s);
    s->n_visual = x->n_visual < N_SMALL ? x->n_visual : N_SMALL;
    for (int32_t i = 0; i < s->n_visual; i++)
        s->row[i] = x->visual[(int64_t)i * x->n_visual / s->n_visual];
    int32_t *from = malloc((size_t)x->n * sizeof *from), next = 0;
    s->code = malloc((size_t)x->n);
    int rc = 0;
    if (!from || !s->code) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < x->n; i++) {
        const bool visual = x->p->code[i] == IWP_CODE_VISUAL || x->p->code[i] == IWP_CODE_SEPARATOR;
        if (visual && (next == s->n_visual || s->row[next] != i)) continue;
        next += visual;
        s->code[s->n] = visual ? IWP_CODE_VISUAL : x->p->code[i];
        from[s->n++] = i;
    }
    s->in.n = s->n;
    s->in.code = s->code;
    for (int t = 0; t < 6; t++) {
        const struct iwp_array *a = &x->in.arr[tensor[t]];
        const size_t width = (size_t)a->n_head * (size_t)a->n_dim;
        s->mem[t] = malloc((size_t)s->n * width * sizeof(float));
        if (!s->mem[t]) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
        for (int32_t i = 0; i < s->n; i++)
            memcpy(s->mem[t] + (size_t)i * width, (const float *)a->data + (size_t)from[i] * width,
                   width * sizeof(float));
        s->in.arr[tensor[t]] = iwp_array_f32(s->mem[t], s->n, a->n_head, a->n_dim);
    }
fail:
    free(from);
    return rc < 0 ? rc : 0;
}

/* Mean over the heads of |o - o_C| for the mean query, C given as bits of the visual tokens. */
struct effect {
    int32_t H, d, n;
    double *a; /* [H][1 + n] exponentials: all text together, then each visual token */
    double *v; /* [H][1 + n][d] weighted values */
};

static int effect_make(struct effect *e, const struct iwp_acts *x, const struct small *s,
                       const float *query, iwp_err *err) {
    *e = (struct effect){.H = x->H, .d = x->d, .n = s->n_visual};
    const size_t slots = (size_t)e->H * (size_t)(1 + e->n);
    e->a = calloc(slots, sizeof *e->a);
    e->v = calloc(slots * (size_t)e->d, sizeof *e->v);
    double *logit = malloc((size_t)s->n * sizeof *logit);
    if (!e->a || !e->v || !logit) {
        free(logit);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    const float *k = s->in.arr[IWP_TENSOR_K].data, *v = s->in.arr[IWP_TENSOR_V].data;
    for (int32_t h = 0; h < e->H; h++) {
        const int32_t g = iwp_kv_head(h, x->H, x->G);
        double top = -INFINITY;
        for (int32_t j = 0; j < s->n; j++) {
            const float *kj = k + ((size_t)j * (size_t)x->G + (size_t)g) * (size_t)x->d;
            logit[j] = 0;
            for (int32_t t = 0; t < x->d; t++)
                logit[j] += (double)query[h * x->d + t] * (double)kj[t] / sqrt(x->d);
            top = fmax(top, logit[j]);
        }
        for (int32_t j = 0, visual = 0; j < s->n; j++) {
            const int32_t slot = s->code[j] == IWP_CODE_VISUAL ? 1 + visual++ : 0;
            const size_t at = (size_t)h * (size_t)(1 + e->n) + (size_t)slot;
            const double w = exp(logit[j] - top);
            const float *vj = v + ((size_t)j * (size_t)x->G + (size_t)g) * (size_t)x->d;
            e->a[at] += w;
            for (int32_t t = 0; t < x->d; t++)
                e->v[at * (size_t)e->d + (size_t)t] += w * (double)vj[t];
        }
    }
    free(logit);
    return 0;
}

static double effect_of(const struct effect *e, uint32_t set) {
    double sum = 0;
    for (int32_t h = 0; h < e->H; h++) {
        const double *a = e->a + (size_t)h * (size_t)(1 + e->n);
        const double *v = e->v + (size_t)h * (size_t)(1 + e->n) * (size_t)e->d;
        double z = 0, z_c = 0, far = 0;
        for (int32_t i = 0; i <= e->n; i++) {
            z += a[i];
            if (i == 0 || set >> (i - 1) & 1) z_c += a[i];
        }
        for (int32_t t = 0; t < e->d; t++) {
            double o = 0, o_c = 0;
            for (int32_t i = 0; i <= e->n; i++) {
                o += v[(size_t)i * (size_t)e->d + (size_t)t];
                if (i == 0 || set >> (i - 1) & 1) o_c += v[(size_t)i * (size_t)e->d + (size_t)t];
            }
            const double x = o / z - (z_c > 0 ? o_c / z_c : 0);
            far += x * x;
        }
        sum += sqrt(far);
    }
    return sum / e->H;
}

static int32_t bits(uint32_t x) {
    int32_t n = 0;
    for (; x; x &= x - 1) n++;
    return n;
}

static int compare_all(struct brute *b, const struct iwp_analyse *a, const struct small *s,
                       const struct effect *e, iwp_err *err) {
    const int32_t M = iwp_keep_count(a->job->keep[0], s->n_visual);
    double best = INFINITY, sum = 0;
    int32_t n = 0;
    for (uint32_t set = 0; set < 1u << s->n_visual; set++) {
        if (bits(set) != M) continue;
        const double x = effect_of(e, set);
        best = fmin(best, x);
        sum += x;
        n++;
    }
    if (!(best > 0)) return 0; /* everything is kept */
    iwp_tally_add(&b->random, sum / n / best);
    for (int k = 0; k < N_SELECTOR; k++) {
        struct iwp_params p = a->job->prune;
        struct iwp_acts view;
        int32_t keep[N_SMALL];
        uint32_t set = 0;
        memset(&view, 0, sizeof view);
        view.in = s->in;
        p.budget.n_keep = M;
        IWP_TRY(iwp_params_set(&p, "selector", selectors[k], err));
        const int rc = iwp_acts_select(&view, &p, keep, NULL, err);
        IWP_TRY(rc);
        for (int32_t i = 0; i < rc; i++) set |= 1u << keep[i];
        iwp_tally_add(&b->ratio[k], effect_of(e, set) / best);
    }
    return 0;
}

static int at_layer(void *ctx, struct iwp_analyse *a, const struct iwp_acts *x, iwp_err *err) {
    struct small s;
    struct effect e = {0};
    float *query = malloc((size_t)x->H * (size_t)x->d * sizeof *query);
    int rc = small_make(&s, x, err);
    if (rc >= 0 && !query) rc = iwp_err_set(err, IWP_ENOMEM, "out of memory");
    if (rc >= 0) rc = iwp_acts_query(x, false, query, err);
    if (rc >= 0) rc = effect_make(&e, x, &s, query, err);
    if (rc >= 0) rc = compare_all(ctx, a, &s, &e, err);
    free(query);
    free(e.a);
    free(e.v);
    small_free(&s);
    return rc;
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                      const iwp_prompt *p, iwp_err *err) {
    (void)s;
    return iwp_acts_walk(a, p, a->layer, a->layer + 1, false, at_layer, ctx, err);
}

/* ---- runs ----------------------------------------------------------------------------------------------- */

static int add(struct iwp_trial *t, int32_t *n, const struct iwp_analyse *a, double keep,
               const char *group, const char *name, const char *option, iwp_err *err) {
    return iwp_trial_set(&t[(*n)++], a, keep, group, name, option, err);
}

/* "key=value" for each word of a list. */
static int add_list(struct iwp_trial *t, int32_t *n, const struct iwp_analyse *a, const char *group,
                    const char *key, const char *values, iwp_err *err) {
    char name[72], option[100];
    for (const char *v = values; *v;) {
        const int len = (int)strcspn(v, " ");
        snprintf(name, sizeof name, "%.*s", len, v);
        snprintf(option, sizeof option, "%s=%s", key, name);
        IWP_TRY(add(t, n, a, a->job->keep[0], group, name, option, err));
        v += len;
        v += *v == ' ';
    }
    return 0;
}

static int make_trials(struct iwp_trial *t, int32_t *n, const struct iwp_analyse *a, iwp_err *err) {
    const double keep = a->job->keep[0];
    char name[72], option[100], group[40];
    IWP_TRY(add(t, n, a, 0, "unpruned", "unpruned", NULL, err));
    IWP_TRY(add(t, n, a, keep, "default", "default", NULL, err));
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "magnitude %s, duplication %s", i / 2 ? "after" : "before",
                 i % 2 ? "after" : "before");
        snprintf(option, sizeof option, "magnitude-rope=%d,duplication-rope=%d", i / 2, i % 2);
        IWP_TRY(add(t, n, a, keep, "RoPE", name, option, err));
    }
    for (int32_t l = 0; l <= 10 && l < a->info.n_layer; l += 2) {
        snprintf(name, sizeof name, "%d", l);
        IWP_TRY(add(t, n, a, keep, "layer", name, NULL, err));
        t[*n - 1].p.layer = l;
    }
    IWP_TRY(add_list(t, n, a, "lambda", "lambda", "1 5 10", err));
    IWP_TRY(add_list(t, n, a, "growth", "growth", "1 2 4 8", err));
    IWP_TRY(add_list(t, n, a, "first chunk", "chunk", "1 2 8 64", err));
    IWP_TRY(add_list(t, n, a, "selector", "selector", "topk pc-mmr mmr-mult mmr-add", err));
    IWP_TRY(add_list(t, n, a, "penalty", "penalty", "new all all-fresh", err));
    for (int32_t k = 0; k < a->job->n_keep; k++) {
        snprintf(group, sizeof group, "keep %.1f%%", 100 * a->job->keep[k]);
        IWP_TRY(add(t, n, a, a->job->keep[k], group, "magnitude only", "selector=topk", err));
        IWP_TRY(add(t, n, a, a->job->keep[k], group, "magnitude and duplication", "selector=pc-mmr",
                    err));
    }
    return 0;
}

static void draw(const struct brute *b, const struct iwp_trial *t, int32_t n,
                 struct iwp_finding *f) {
    struct iwp_chart_bar bar[2 * MAX_TRIAL];
    char note[MAX_TRIAL][100];
    int32_t m = 0;
    for (int32_t i = 1; i < n; i++) {
        if (i > 1 && strcmp(t[i].group, t[i - 1].group))
            bar[m++] = (struct iwp_chart_bar){.name = t[i].group, .value = NAN, .mark = NAN};
        iwp_trial_note(&t[i], note[i], sizeof note[i]);
        if (i > 1) {
            const size_t at = strlen(note[i]);
            snprintf(note[i] + at, sizeof note[i] - at, ", IoU %.2f", t[i].iou);
        }
        bar[m++] = (struct iwp_chart_bar){.name = t[i].name,
                                          .note = t[i].error[0] ? "could not run" : note[i],
                                          .value = t[i].kl,
                                          .mark = t[1].kl,
                                          .colour = i == 1 ? 3 : 0};
    }
    const struct iwp_chart_bars runs = {
        .title = "KL to the unpruned run; stroke: the default; IoU with the default's set",
        .axis = "nats",
        .bar = bar,
        .n = m,
        .lo = 0,
        .hi = NAN,
        .width = 260};
    const struct iwp_chart_box box =
        iwp_chart_bars(&f->chart, IWP_CHART_LEFT, IWP_CHART_TOP, &runs);
    char text[N_SELECTOR + 1][80];
    for (int k = 0; k <= N_SELECTOR; k++) {
        const struct iwp_tally *r = k < N_SELECTOR ? &b->ratio[k] : &b->random;
        snprintf(text[k], sizeof text[k], "%.2f times the best", iwp_tally_mean(r));
        bar[k] = (struct iwp_chart_bar){.name = k < N_SELECTOR ? selectors[k] : "random sets",
                                        .note = text[k],
                                        .value = iwp_tally_mean(r),
                                        .mark = 1,
                                        .colour = k < N_SELECTOR ? 2 : 6};
    }
    const struct iwp_chart_bars gap = {
        .title = "Change of the attention output on 12 visual tokens, best set = 1",
        .axis = "|o - o_C| relative to the best of all sets",
        .bar = bar,
        .n = N_SELECTOR + 1,
        .lo = 0,
        .hi = NAN,
        .width = 260};
    if (b->random.n) iwp_chart_bars(&f->chart, IWP_CHART_LEFT, box.y + box.h + IWP_CHART_GAP, &gap);
}

static void tell(const struct brute *b, const struct iwp_trial *t, int32_t n,
                 struct iwp_finding *f) {
    char note[100];
    iwp_trial_note(&t[1], note, sizeof note);
    fprintf(f->text, "The default: %s.\n", note);
    for (int32_t i = 2; i < n;) {
        int32_t end = i, best = i, worst = i;
        for (; end < n && !strcmp(t[end].group, t[i].group); end++) {
            if (t[end].n && !(t[end].kl >= t[best].kl)) best = end;
            if (t[end].n && !(t[end].kl <= t[worst].kl)) worst = end;
        }
        if (t[best].n)
            fprintf(f->text, "  %-12s closest: %s (KL %.4f), farthest: %s (KL %.4f)\n", t[i].group,
                    t[best].name, t[best].kl, t[worst].name, t[worst].kl);
        for (; i < end; i++)
            if (t[i].error[0])
                fprintf(f->text, "  %s %s could not run: %s\n", t[i].group, t[i].name, t[i].error);
    }
    if (!b->random.n) return;
    fprintf(f->text,
            "On %d visual tokens, change of the attention output relative to the best of "
            "all sets:",
            N_SMALL);
    for (int k = 0; k < N_SELECTOR; k++)
        fprintf(f->text, " %s %.2f,", selectors[k], iwp_tally_mean(&b->ratio[k]));
    fprintf(f->text, " a random set %.2f.\n", iwp_tally_mean(&b->random));
}

int iwp_analyse_ablate(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err) {
    struct brute b;
    memset(&b, 0, sizeof b);
    struct iwp_trial *t = calloc(MAX_TRIAL, sizeof *t);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    int32_t n = 0;
    int rc = 0;
    IWP_TRY_GOTO(make_trials(t, &n, a, err));
    IWP_TRY_GOTO(iwp_analyse_each(a, f, 1, one_sample, &b, err));
    f->n_sample = 0;
    IWP_TRY_GOTO(iwp_trials_run(a, f, t, n, 1, err));
    iwp_trials_json(&f->json, "runs", t, n);
    iwp_json_open_object(&f->json, "brute_force");
    iwp_json_put_int(&f->json, "visual_tokens", N_SMALL);
    for (int k = 0; k < N_SELECTOR; k++) iwp_tally_json(&f->json, selectors[k], &b.ratio[k]);
    iwp_tally_json(&f->json, "random", &b.random);
    iwp_json_close_object(&f->json);
    tell(&b, t, n, f);
    draw(&b, t, n, f);
fail:
    iwp_trials_free(t, n);
    free(t);
    return rc < 0 ? rc : 0;
}
