/* Identity 9 for every method at equal count (spec/iwp.md 7.10): how much of the implicit weight
 * W = sum of phi(k)^T v a kept set C leaves, |W - W_C| / |W| and cos(W, W_C), mean over the KV heads of one
 * layer; over the visual tokens alone, and over the whole prompt, whose text is never removed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"
#include "model/session.h"

struct method {
    struct iwp_params p;
    const char *name;
    char error[200];
    struct iwp_tally removed[2], cosine[2]; /* visual rows; all rows */
    struct iwp_tally kl, top1, kept;
    uint8_t *mask; /* [n_visual] of the current sample */
};

struct weights {
    struct method *m;
    int32_t n;
    float *logits;
};

static int measure(struct weights *w, const struct iwp_acts *x, bool all, iwp_err *err) {
    const int32_t n = all ? x->n : x->n_visual;
    int32_t *row = malloc((size_t)n * sizeof *row), n_set = 0;
    uint8_t *mask = malloc((size_t)n * (size_t)w->n);
    const uint8_t **set = malloc((size_t)w->n * sizeof *set);
    int32_t *of = malloc((size_t)w->n * sizeof *of);
    struct iwp_analysis_weight *out = malloc((size_t)w->n * sizeof *out);
    int rc = 0;
    if (!row || !mask || !set || !of || !out) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < n; i++) row[i] = all ? i : x->visual[i];
    for (int32_t k = 0; k < w->n; k++) {
        if (w->m[k].error[0]) continue;
        uint8_t *to = mask + (size_t)n_set * (size_t)n;
        memset(to, 1, (size_t)n);
        for (int32_t i = 0; i < x->n_visual; i++) to[all ? x->visual[i] : i] = w->m[k].mask[i];
        of[n_set] = k;
        set[n_set++] = to;
    }
    for (int32_t g = 0; g < x->G && n_set > 0; g++) {
        IWP_TRY_GOTO(iwp_analysis_implicit_weights(&x->k_rope_arr, &x->v_arr, g, row, n, set, n_set,
                                                   out, err));
        for (int32_t i = 0; i < n_set; i++) {
            struct method *m = &w->m[of[i]];
            iwp_tally_add(&m->removed[all],
                          exp(0.5 * (out[i].log_norm2_removed - out[i].log_norm2)));
            iwp_tally_add(&m->cosine[all], out[i].cosine);
        }
    }
fail:
    free(row), free(mask), free(set), free(of), free(out);
    return rc < 0 ? rc : 0;
}

static int at_layer(void *ctx, struct iwp_analyse *a, const struct iwp_acts *x, iwp_err *err) {
    (void)a;
    IWP_TRY(measure(ctx, x, false, err));
    return measure(ctx, x, true, err);
}

static bool fatal(int rc) { return rc == IWP_ENOMEM || rc == IWP_ECANCELLED; }

/* Runs one method so that it keeps M tokens in all.  Some keep more than they are asked for (row separators
 * come on top, the steps of a merge are coarse): they are asked for so many less. */
static int run_to(struct iwp_analyse *a, const struct iwp_eval_sample *q, const iwp_prompt *p,
                  struct method *m, int32_t M, iwp_prompt **own, iwp_err *err) {
    int32_t over = 0, kept = M + 1;
    for (int attempt = 0; attempt < 4 && kept > M; attempt++) {
        m->p.budget.n_keep = M - over;
        IWP_REQUIRE(M > over, err, IWP_ENOTSUP, "what it never removes is more than %d tokens", M);
        iwp_engine_prompt_free(*own);
        IWP_TRY(iwp_trial_begin(a, q, p, &m->p, own, err));
        IWP_TRY(iwp_ask_prefill(a->s, err));
        kept = iwp_session_stats(a->s).n_kept;
        over += kept - M;
    }
    return 0;
}

/* Runs one method and keeps its set. */
static int run(struct weights *w, struct iwp_analyse *a, const struct iwp_eval_sample *q,
               const iwp_prompt *p, struct method *m, int32_t M, iwp_err *err) {
    iwp_prompt *own = NULL;
    int rc = run_to(a, q, p, m, M, &own, err);
    const struct iwp_session_stats st = iwp_session_stats(a->s);
    if (rc >= 0 && st.n_visual != p->n_visual)
        rc = iwp_err_set(err, IWP_ENOTSUP, "its prompt has other visual tokens");
    const bool fewer = iwp_method_info(m->p.method)->flags & IWP_METHOD_MERGES;
    if (rc >= 0 && (fewer ? st.n_kept > M : st.n_kept != M))
        rc = iwp_err_set(err, IWP_ENOTSUP, "keeps %d of %d tokens at the end, not %d", st.n_kept,
                         st.n_visual, M);
    if (rc >= 0) {
        const float *logits = iwp_session_logits(a->s);
        const int32_t nv = a->info.n_vocab;
        memset(m->mask, 0, (size_t)p->n_visual);
        for (int32_t i = 0; i < st.n_kept; i++) m->mask[st.keep[i]] = 1;
        iwp_tally_add(&m->kl, iwp_logit_kl(w->logits, logits, nv));
        iwp_tally_add(&m->top1, iwp_logit_top(w->logits, nv) == iwp_logit_top(logits, nv));
        iwp_tally_add(&m->kept, (double)st.n_kept / st.n_visual);
    }
    iwp_engine_prompt_free(own);
    return rc;
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *q,
                      const iwp_prompt *p, iwp_err *err) {
    struct weights *w = ctx;
    const int32_t M = iwp_keep_count(a->job->keep[0], p->n_visual);
    IWP_TRY(iwp_session_begin(a->s, p, NULL, err));
    IWP_TRY(iwp_ask_prefill(a->s, err));
    memcpy(w->logits, iwp_session_logits(a->s), (size_t)a->info.n_vocab * sizeof *w->logits);
    for (int32_t i = 0; i < w->n; i++) {
        struct method *m = &w->m[i];
        iwp_err why = {0};
        free(m->mask);
        m->mask = malloc((size_t)p->n_visual);
        IWP_REQUIRE(m->mask, err, IWP_ENOMEM, "out of memory");
        iwp_analyse_tick(a);
        if (m->error[0]) continue;
        const int rc = run(w, a, q, p, m, M, &why);
        if (fatal(rc)) {
            if (err) *err = why;
            return rc;
        }
        if (rc < 0) snprintf(m->error, sizeof m->error, "%.190s", why.msg);
    }
    return iwp_acts_walk(a, p, a->layer, a->layer + 1, false, at_layer, w, err);
}

static int make_methods(struct weights *w, const struct iwp_analyse *a, iwp_err *err) {
    const struct iwp_analyse_job *j = a->job;
    const struct iwp_method *method[IWP_ANALYSE_MAX_METHOD];
    const int32_t n_method = iwp_analyse_methods(a, NULL, 0, method);
    w->m = calloc((size_t)n_method + 1, sizeof *w->m);
    IWP_REQUIRE(w->m, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < n_method; i++) {
        const struct iwp_method_info *info = iwp_method_info(method[i]);
        /* No set of M of the same tokens to speak of. */
        if (info->site == IWP_SITE_MEDIA || (info->flags & IWP_METHOD_MAY_KEEP_ZERO)) continue;
        struct method *m = &w->m[w->n++];
        m->name = info->name;
        if (method[i] == j->prune.method) {
            m->p = j->prune;
            m->p.layer = a->layer;
        } else {
            iwp_params_default(&m->p, method[i]);
        }
        m->p.budget.rule = IWP_RULE_CUT;
    }
    return 0;
}

static int by_removed(const void *a, const void *b) {
    const double x = iwp_tally_mean(&((const struct method *)a)->removed[0]),
                 y = iwp_tally_mean(&((const struct method *)b)->removed[0]);
    if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
    return x < y ? -1 : x > y;
}

static void put_json(const struct weights *w, struct iwp_json_out *out) {
    iwp_json_open_array(out, "methods");
    for (int32_t i = 0; i < w->n; i++) {
        const struct method *m = &w->m[i];
        iwp_json_open_object(out, NULL);
        iwp_json_put_string(out, "prune", m->name);
        if (m->error[0]) {
            iwp_json_put_string(out, "error", m->error);
        } else {
            iwp_json_put_f64(out, "kept", iwp_tally_mean(&m->kept));
            iwp_tally_json(out, "removed", &m->removed[0]);
            iwp_tally_json(out, "cosine", &m->cosine[0]);
            iwp_tally_json(out, "removed_all", &m->removed[1]);
            iwp_tally_json(out, "cosine_all", &m->cosine[1]);
            iwp_json_put_f64(out, "kl", iwp_tally_mean(&m->kl));
            iwp_json_put_f64(out, "top1", iwp_tally_mean(&m->top1));
        }
        iwp_json_close_object(out);
    }
    iwp_json_close_array(out);
}

static int draw(const struct weights *w, double keep, struct iwp_finding *f, iwp_err *err) {
    struct iwp_chart_bar *bar = calloc((size_t)w->n + 1, sizeof *bar);
    char(*note)[100] = calloc((size_t)w->n + 1, sizeof *note);
    int rc = 0;
    if (!bar || !note) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    static const char *const axis[3] = {"|W - W_C| / |W|", "cos(W, W_C)", "nats"};
    char title[3][120];
    snprintf(title[0], sizeof title[0], "Removed from the visual implicit weight, keep %.1f%%",
             100 * keep);
    snprintf(title[1], sizeof title[1], "Direction of what is left");
    snprintf(title[2], sizeof title[2], "Logits of the first token: KL to the unpruned run");
    double y = IWP_CHART_TOP;
    for (int k = 0; k < 3; k++) {
        for (int32_t i = 0; i < w->n; i++) {
            const struct method *m = &w->m[i];
            const double v = k == 0   ? iwp_tally_mean(&m->removed[0])
                             : k == 1 ? iwp_tally_mean(&m->cosine[0])
                                      : iwp_tally_mean(&m->kl);
            if (m->error[0])
                snprintf(note[i], sizeof note[i], "could not run");
            else if (k < 2)
                snprintf(note[i], sizeof note[i], "%.3f (with text %.3f)", v,
                         k == 0 ? iwp_tally_mean(&m->removed[1]) : iwp_tally_mean(&m->cosine[1]));
            else
                snprintf(note[i], sizeof note[i], "%.4f", v);
            bar[i] = (struct iwp_chart_bar){.name = m->name,
                                            .note = note[i],
                                            .value = m->error[0] ? NAN : v,
                                            .mark = NAN,
                                            .colour = strcmp(m->name, "iwp") ? 0 : 3};
        }
        const struct iwp_chart_bars b = {.title = title[k],
                                         .axis = axis[k],
                                         .bar = bar,
                                         .n = w->n,
                                         .lo = k == 1 ? NAN : 0,
                                         .hi = NAN,
                                         .width = 300};
        y += iwp_chart_bars(&f->chart, IWP_CHART_LEFT, y, &b).h + IWP_CHART_GAP;
    }
fail:
    free(bar), free(note);
    return rc;
}

static int tell(const struct weights *w, double keep, struct iwp_finding *f, iwp_err *err) {
    double *x = malloc(((size_t)w->n + 1) * sizeof *x), *y = malloc(((size_t)w->n + 1) * sizeof *y);
    double rho = NAN;
    int32_t n = 0;
    int rc = 0;
    if (!x || !y) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    fprintf(f->text, "At keep %.1f%% of the visual tokens, sorted by what is removed of W:\n",
            100 * keep);
    for (int32_t i = 0; i < w->n; i++) {
        const struct method *m = &w->m[i];
        if (m->error[0]) {
            fprintf(f->text, "  %-12s could not run: %s\n", m->name, m->error);
            continue;
        }
        const bool merges = iwp_method_info(m->p.method)->flags & IWP_METHOD_MERGES;
        fprintf(f->text, "  %-12s removed %.3f, cosine %.3f, KL %.4f%s\n", m->name,
                iwp_tally_mean(&m->removed[0]), iwp_tally_mean(&m->cosine[0]),
                iwp_tally_mean(&m->kl), merges ? " (what it merged is not counted as kept)" : "");
        x[n] = iwp_tally_mean(&m->removed[0]);
        y[n++] = iwp_tally_mean(&m->kl);
    }
    for (int32_t i = 0; i < n; i++)
        if (isnan(x[i]) || isnan(y[i])) n = 0;
    if (n > 2) IWP_TRY_GOTO(iwp_analysis_spearman(x, y, n, &rho, err));
    if (!isnan(rho))
        fprintf(f->text,
                "Over the methods the removed norm and the KL have rank correlation "
                "%.2f.\n",
                rho);
    iwp_json_put_f64(&f->json, "rank_correlation_removed_kl", rho);
fail:
    free(x), free(y);
    return rc < 0 ? rc : 0;
}

int iwp_analyse_implicit_weight(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err) {
    struct weights w = {0};
    int rc = 0;
    w.logits = malloc((size_t)a->info.n_vocab * sizeof *w.logits);
    if (!w.logits) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(make_methods(&w, a, err));
    IWP_TRY_GOTO(iwp_analyse_each(a, f, 1 + w.n, one_sample, &w, err));
    qsort(w.m, (size_t)w.n, sizeof *w.m, by_removed);
    put_json(&w, &f->json);
    IWP_TRY_GOTO(tell(&w, a->job->keep[0], f, err));
    rc = draw(&w, a->job->keep[0], f, err);
fail:
    for (int32_t i = 0; i < w.n; i++) free(w.m[i].mask);
    free(w.m), free(w.logits);
    return rc < 0 ? rc : 0;
}
