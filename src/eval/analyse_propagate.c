/* How a deletion grows through later layers (spec/iwp.md 7.10): the residual rows of a pruned run against those
 * of the unpruned run before every layer, relative to their norm, mean over text rows and over kept
 * visual rows; and the Kullback-Leibler divergence of the first token's logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"
#include "model/session.h"

enum { MAX_VISUAL = 256 }; /* visual rows that are watched, spread evenly */

struct config {
    struct iwp_params p;
    char name[72], error[200];
    double *text, *visual; /* [L] sums of the samples' means */
    int32_t *n_text, *n_visual;
    double kl, top1, kept;
    int32_t n;
};

struct spread {
    struct config *c;
    int32_t n_config, L, D;
    const iwp_prompt *p;
    int32_t *watch, n_watch; /* rows of the prompt */
    int32_t *slot;           /* [n] of the prompt: number among the watched, -1 */
    float *full;             /* [L][n_watch][D] */
    float *logits;           /* unpruned */
    struct config *now;      /* NULL: the unpruned run */
    struct iwp_tally *row;   /* [2][L] of the current run: text, visual */
};

static bool is_visual(const struct spread *s, int32_t row) {
    return s->p->code[row] == IWP_CODE_VISUAL || s->p->code[row] == IWP_CODE_SEPARATOR;
}

static int watch_rows(struct spread *s, iwp_err *err) {
    const struct iwp_prompt *p = s->p;
    const int32_t step = p->n_visual > MAX_VISUAL ? (p->n_visual + MAX_VISUAL - 1) / MAX_VISUAL : 1;
    int32_t visual = 0;
    free(s->watch), free(s->slot), free(s->full);
    s->full = NULL;
    s->watch = malloc((size_t)p->n * sizeof *s->watch);
    s->slot = malloc((size_t)p->n * sizeof *s->slot);
    IWP_REQUIRE(s->watch && s->slot, err, IWP_ENOMEM, "out of memory");
    s->n_watch = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const bool wanted = is_visual(s, i) ? visual++ % step == 0 : visual > 0;
        s->slot[i] = wanted ? s->n_watch : -1;
        if (wanted) s->watch[s->n_watch++] = i;
    }
    s->full = malloc((size_t)s->L * (size_t)s->n_watch * (size_t)s->D * sizeof *s->full);
    IWP_REQUIRE(s->full, err, IWP_ENOMEM, "out of memory");
    return 0;
}

static int on_layer(void *ctx, iwp_session *session, int32_t layer, const struct iwp_stream *rows,
                    iwp_err *err) {
    struct spread *s = ctx;
    (void)session, (void)err;
    const size_t D = (size_t)s->D;
    for (int32_t i = 0; i < rows->n; i++) {
        const int32_t slot = s->slot[rows->src[i]];
        if (slot < 0) continue;
        const float *h = rows->h + (size_t)i * D;
        float *full = s->full + ((size_t)layer * (size_t)s->n_watch + (size_t)slot) * D;
        if (!s->now) {
            memcpy(full, h, D * sizeof *h);
            continue;
        }
        double far = 0, size = 0;
        for (size_t t = 0; t < D; t++) {
            const double x = (double)h[t] - (double)full[t];
            far += x * x;
            size += (double)full[t] * (double)full[t];
        }
        iwp_tally_add(&s->row[(is_visual(s, rows->src[i]) ? s->L : 0) + layer],
                      size > 0 ? sqrt(far / size) : NAN);
    }
    return 0;
}

static bool fatal(int rc) { return rc == IWP_ENOMEM || rc == IWP_ECANCELLED; }

/* One run under the probe; now NULL: unpruned. */
static int run(struct spread *s, struct iwp_analyse *a, const struct iwp_eval_sample *q,
               struct config *now, iwp_err *err) {
    struct iwp_probe probe = {.layer = on_layer, .ctx = s, .heads_layer = -1};
    iwp_prompt *own = NULL;
    s->now = now;
    memset(s->row, 0, 2 * (size_t)s->L * sizeof *s->row);
    if (now && iwp_method_info(now->p.method)->site == IWP_SITE_MEDIA)
        return iwp_err_set(err, IWP_ENOTSUP, "it changes the picture: rows cannot be compared");
    iwp_session_set_probe(a->s, &probe);
    int rc = iwp_trial_begin(a, q, s->p, now ? &now->p : NULL, &own, err);
    if (rc >= 0 && own && own->n != s->p->n)
        rc = iwp_err_set(err, IWP_ENOTSUP, "its prompt has other rows");
    if (rc >= 0) rc = iwp_ask_prefill(a->s, err);
    iwp_session_set_probe(a->s, NULL);
    iwp_engine_prompt_free(own);
    return rc;
}

static void add_run(struct spread *s, const struct iwp_analyse *a, struct config *c) {
    const float *logits = iwp_session_logits(a->s);
    const struct iwp_session_stats st = iwp_session_stats(a->s);
    const int32_t nv = a->info.n_vocab;
    c->kl += iwp_logit_kl(s->logits, logits, nv);
    c->top1 += iwp_logit_top(s->logits, nv) == iwp_logit_top(logits, nv);
    c->kept += st.n_visual ? (double)st.n_kept / st.n_visual : 0;
    c->n++;
    for (int32_t l = 0; l < s->L; l++) {
        const struct iwp_tally *t = &s->row[l], *v = &s->row[s->L + l];
        if (t->n) c->text[l] += iwp_tally_mean(t), c->n_text[l]++;
        if (v->n) c->visual[l] += iwp_tally_mean(v), c->n_visual[l]++;
    }
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *q,
                      const iwp_prompt *p, iwp_err *err) {
    struct spread *s = ctx;
    s->p = p;
    IWP_TRY(watch_rows(s, err));
    IWP_TRY(run(s, a, q, NULL, err));
    memcpy(s->logits, iwp_session_logits(a->s), (size_t)a->info.n_vocab * sizeof *s->logits);
    iwp_analyse_tick(a);
    for (int32_t i = 0; i < s->n_config; i++) {
        struct config *c = &s->c[i];
        iwp_err why = {0};
        if (c->error[0]) continue;
        const int rc = run(s, a, q, c, &why);
        iwp_analyse_tick(a);
        if (fatal(rc)) {
            if (err) *err = why;
            return rc;
        }
        if (rc < 0)
            snprintf(c->error, sizeof c->error, "%.190s", why.msg);
        else
            add_run(s, a, c);
    }
    return 0;
}

static int make_configs(struct spread *s, const struct iwp_analyse *a, iwp_err *err) {
    const struct iwp_analyse_job *j = a->job;
    static const char *const names[] = {"iwp", "fastv", "random"};
    const struct iwp_method *method[IWP_ANALYSE_MAX_METHOD];
    const int32_t n_method = iwp_analyse_methods(a, names, 3, method);
    s->c = calloc((size_t)(n_method * j->n_keep) + 1, sizeof *s->c);
    IWP_REQUIRE(s->c, err, IWP_ENOMEM, "out of memory");
    for (int32_t m = 0; m < n_method; m++)
        for (int32_t k = 0; k < j->n_keep; k++) {
            struct config *c = &s->c[s->n_config++];
            const char *name = iwp_method_info(method[m])->name;
            const bool own = method[m] == j->prune.method;
            if (own)
                c->p = j->prune;
            else
                iwp_params_default(&c->p, method[m]);
            c->p.budget.keep = j->keep[k];
            c->p.budget.n_keep = 0;
            if (own) c->p.layer = a->layer;
            snprintf(c->name, sizeof c->name, "%s %.1f%%", name, 100 * j->keep[k]);
            c->text = calloc((size_t)s->L, sizeof *c->text);
            c->visual = calloc((size_t)s->L, sizeof *c->visual);
            c->n_text = calloc((size_t)s->L, sizeof *c->n_text);
            c->n_visual = calloc((size_t)s->L, sizeof *c->n_visual);
            IWP_REQUIRE(c->text && c->visual && c->n_text && c->n_visual, err, IWP_ENOMEM,
                        "out of memory");
        }
    return 0;
}

static void finish(struct spread *s) {
    for (int32_t i = 0; i < s->n_config; i++) {
        struct config *c = &s->c[i];
        c->kl /= c->n, c->top1 /= c->n, c->kept /= c->n;
        for (int32_t l = 0; l < s->L; l++) {
            c->text[l] /= c->n_text[l]; /* NaN: no such row */
            c->visual[l] /= c->n_visual[l];
        }
    }
}

static void put_row(struct iwp_json_out *w, const char *key, const double *x, int32_t n) {
    iwp_json_open_array(w, key);
    for (int32_t i = 0; i < n; i++) iwp_json_put_f64(w, NULL, x[i]);
    iwp_json_close_array(w);
}

static void put_json(const struct spread *s, struct iwp_json_out *w) {
    iwp_json_open_array(w, "runs");
    for (int32_t i = 0; i < s->n_config; i++) {
        const struct config *c = &s->c[i];
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "prune", iwp_method_info(c->p.method)->name);
        iwp_json_put_f64(w, "keep", c->p.budget.keep);
        if (c->error[0]) {
            iwp_json_put_string(w, "error", c->error);
        } else {
            iwp_json_put_f64(w, "kept", c->kept);
            iwp_json_put_f64(w, "kl", c->kl);
            iwp_json_put_f64(w, "top1", c->top1);
            put_row(w, "text", c->text, s->L);
            put_row(w, "visual", c->visual, s->L);
        }
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
}

static int draw(const struct spread *s, struct iwp_finding *f, iwp_err *err) {
    struct iwp_chart_series *line = calloc((size_t)s->n_config + 1, sizeof *line);
    struct iwp_chart_bar *bar = calloc((size_t)s->n_config + 1, sizeof *bar);
    char(*note)[80] = calloc((size_t)s->n_config + 1, sizeof *note);
    double *x = malloc((size_t)s->L * sizeof *x);
    int rc = 0;
    if (!line || !bar || !note || !x) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    for (int32_t l = 0; l < s->L; l++) x[l] = l;
    double y = IWP_CHART_TOP;
    for (int kind = 0; kind < 2; kind++) {
        int32_t n = 0;
        for (int32_t i = 0; i < s->n_config; i++) {
            if (s->c[i].error[0]) continue;
            line[n] = (struct iwp_chart_series){.name = s->c[i].name,
                                                .x = x,
                                                .y = kind ? s->c[i].visual : s->c[i].text,
                                                .n = s->L,
                                                .dots = s->L <= 40,
                                                .dashed = i / 10 % 2 == 1,
                                                .colour = i};
            n++;
        }
        const struct iwp_chart_lines l = {
            .title = kind ? "Kept visual rows: change of the residual before each layer"
                          : "Text rows after the picture: change of the residual before each layer",
            .x_axis = "layer",
            .y_axis = "|h - h unpruned| / |h unpruned|",
            .series = line,
            .n = n,
            .x_lo = 0,
            .x_hi = s->L - 1,
            .y_lo = 0,
            .y_hi = NAN};
        y += iwp_chart_lines(&f->chart, IWP_CHART_LEFT, y, &l).h + IWP_CHART_GAP;
    }
    for (int32_t i = 0; i < s->n_config; i++) {
        const struct config *c = &s->c[i];
        snprintf(note[i], sizeof note[i], "%.4f nats, same first token %.0f%%", c->kl,
                 100 * c->top1);
        bar[i] = (struct iwp_chart_bar){.name = c->name,
                                        .note = c->error[0] ? "could not run" : note[i],
                                        .value = c->error[0] ? NAN : c->kl,
                                        .mark = NAN,
                                        .colour = i};
    }
    const struct iwp_chart_bars b = {.title = "Logits of the first token: KL to the unpruned run",
                                     .axis = "nats",
                                     .bar = bar,
                                     .n = s->n_config,
                                     .lo = 0,
                                     .hi = NAN,
                                     .width = 300};
    iwp_chart_bars(&f->chart, IWP_CHART_LEFT, y, &b);
fail:
    free(line), free(bar), free(note), free(x);
    return rc;
}

static void tell(const struct spread *s, struct iwp_finding *f) {
    for (int32_t i = 0; i < s->n_config; i++) {
        const struct config *c = &s->c[i];
        if (c->error[0]) {
            fprintf(f->text, "  %-18s could not run: %s\n", c->name, c->error);
            continue;
        }
        int32_t first = 0;
        while (first < s->L && !(c->text[first] > 0)) first++;
        fprintf(f->text, "  %-18s KL %.4f, same first token %.0f%%", c->name, c->kl, 100 * c->top1);
        if (first < s->L)
            fprintf(f->text, "; text rows change by %.3f before layer %d and %.3f before layer %d",
                    c->text[first], first, c->text[s->L - 1], s->L - 1);
        else
            fprintf(f->text, "; no text row changes before the last layer");
        fputs(".\n", f->text);
    }
}

int iwp_analyse_propagate(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err) {
    struct spread s = {.L = a->info.n_layer, .D = a->info.d_model};
    int rc = 0;
    s.row = calloc(2 * (size_t)s.L, sizeof *s.row);
    s.logits = malloc((size_t)a->info.n_vocab * sizeof *s.logits);
    if (!s.row || !s.logits) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(make_configs(&s, a, err));
    IWP_TRY_GOTO(iwp_analyse_each(a, f, 1 + s.n_config, one_sample, &s, err));
    finish(&s);
    put_json(&s, &f->json);
    fputs("What is cut changes later layers (residual relative to its norm) and the logits:\n",
          f->text);
    tell(&s, f);
    rc = draw(&s, f, err);
fail:
    for (int32_t i = 0; i < s.n_config; i++) {
        free(s.c[i].text), free(s.c[i].visual), free(s.c[i].n_text), free(s.c[i].n_visual);
    }
    free(s.c), free(s.watch), free(s.slot), free(s.full), free(s.logits), free(s.row);
    return rc < 0 ? rc : 0;
}
