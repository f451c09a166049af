/* Ways to prune side by side: each sample is run once whole, then from the kept state of the layer that a way
 * cuts or reads first, from the highest layer down, and last from the start.  See analyse.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"
#include "eval/answer.h"
#include "eval/stats.h"

struct runs {
    struct iwp_trial *t;
    int32_t n, base, sample;
    bool *nll;               /* [samples] */
    int32_t *media;          /* [samples] cluster */
    float *full, *room;      /* [n_vocab] logits of the unpruned run; scratch */
    int32_t **keep, *n_keep; /* [n] sets of the current sample */
    int32_t n_max;
};

/* The layer whose input a trial reads or cuts first; n_layer without a cut in the decoder. */
static int32_t low_layer(const struct iwp_analyse *a, const struct iwp_params *p,
                         int32_t n_visual) {
    if (!p->method || iwp_method_info(p->method)->site == IWP_SITE_MEDIA) return a->info.n_layer;
    struct iwp_stage stage[IWP_STAGE_MAX];
    struct iwp_plan_shape shape = {.n_layer = a->info.n_layer, .n_visual = n_visual};
    if (iwp_plan(p, &shape, stage, IWP_STAGE_MAX, NULL) < 1 || stage[0].site != IWP_SITE_LAYER)
        return 0;
    struct iwp_need need[IWP_TENSOR_COUNT];
    const int n = iwp_params_needs(p, 0, need, IWP_TENSOR_COUNT);
    for (int i = 0; i < n; i++)
        if (need[i].tensor == IWP_TENSOR_H_PREV || need[i].tensor == IWP_TENSOR_Q_ROPE_PREV ||
            need[i].tensor == IWP_TENSOR_K_ROPE_PREV)
            return stage[0].at > 0 ? stage[0].at - 1 : 0;
    return stage[0].at;
}

/* Does the method need another prompt than the plain one: rows of the tower, a smaller picture? */
static bool own_prompt(const struct iwp_params *p, const struct iwp_prompt_request *plain,
                       struct iwp_prompt_request *r) {
    *r = *plain;
    if (!p->method) return false;
    iwp_prompt_request_for(r, p);
    return r->tap_features || r->tap_qk || r->resize_keep > 0 || r->resize_tokens > 0 ||
           (iwp_method_info(p->method)->flags & IWP_METHOD_CHANGES_ENCODER);
}

int iwp_trial_begin(struct iwp_analyse *a, const struct iwp_eval_sample *s, const iwp_prompt *p,
                    const struct iwp_params *prune, iwp_prompt **own, iwp_err *err) {
    struct iwp_prompt_request request;
    *own = NULL;
    if (prune && own_prompt(prune, &a->job->media, &request)) {
        IWP_TRY(iwp_ask_prompt(&a->ask, &request, s, own, err));
        p = *own;
    }
    return iwp_session_begin(a->s, p, prune, err);
}

/* After the prefill of one trial on one sample. */
static int measure(struct runs *r, struct iwp_analyse *a, struct iwp_trial *t,
                   const struct iwp_eval_sample *s, iwp_err *err) {
    const struct iwp_session_stats st = iwp_session_stats(a->s);
    const float *logits = iwp_session_logits(a->s);
    const int32_t nv = a->info.n_vocab;
    const int32_t which = (int32_t)(t - r->t);
    if (which == 0) memcpy(r->full, logits, (size_t)nv * sizeof *r->full);
    free(r->keep[which]);
    r->keep[which] = malloc(((size_t)st.n_kept + 1) * sizeof **r->keep);
    IWP_REQUIRE(r->keep[which], err, IWP_ENOMEM, "out of memory");
    memcpy(r->keep[which], st.keep, (size_t)st.n_kept * sizeof **r->keep);
    r->n_keep[which] = st.n_kept;
    const double kl = iwp_logit_kl(r->full, logits, nv);
    const bool same = iwp_logit_top(r->full, nv) == iwp_logit_top(logits, nv);
    const double kept = st.n_visual ? (double)st.n_kept / st.n_visual : NAN;
    const double select_ms = st.ms_select;
    double score = NAN;
    if (!a->job->no_answers) {
        struct iwp_eval_answer answer = {0};
        const int rc = iwp_eval_answer_make(a->s, s, a->ask.profile, r->room, &answer, err);
        score = answer.score.score;
        iwp_eval_answer_free(&answer);
        IWP_TRY(rc);
    }
    t->kl += kl;
    t->top1 += same;
    t->kept += kept;
    t->select_ms += select_ms;
    t->value[r->sample] = score;
    t->n++;
    return 0;
}

static bool fatal(int rc) { return rc == IWP_ENOMEM || rc == IWP_ECANCELLED; }

/* One trial on one sample; a trial that cannot run says why and is not tried again. */
static int run_trial(struct runs *r, struct iwp_analyse *a, struct iwp_trial *t,
                     const struct iwp_eval_sample *s, const iwp_prompt *p, int32_t from,
                     iwp_err *err) {
    const struct iwp_params *prune = t->p.method ? &t->p : NULL;
    iwp_prompt *own = NULL;
    iwp_err why = {0};
    int rc = from >= 0 ? iwp_session_rewind(a->s, from, prune, &why) : IWP_EINVAL;
    /* A trial that failed took the kept states with it; this one brings them back. */
    if (rc < 0 && !fatal(rc)) rc = iwp_trial_begin(a, s, p, prune, &own, &why);
    if (rc >= 0) rc = iwp_ask_prefill(a->s, &why);
    if (rc >= 0) rc = measure(r, a, t, s, &why);
    iwp_engine_prompt_free(own);
    iwp_analyse_tick(a);
    if (rc >= 0) return 0;
    if (fatal(rc) || t == r->t || t == r->t + r->base) {
        if (err) *err = why;
        return rc;
    }
    snprintf(t->error, sizeof t->error, "%.190s", why.msg);
    return 0;
}

/* The layer a trial can start from, 0: only from the start. */
static int32_t start_layer(const struct iwp_analyse *a, const struct iwp_trial *t,
                           int32_t n_visual) {
    struct iwp_prompt_request ignored;
    if (own_prompt(&t->p, &a->job->media, &ignored)) return 0;
    const int32_t low = low_layer(a, &t->p, n_visual);
    return low < a->info.n_layer ? low : 0;
}

static int keep_marks(const struct runs *r, struct iwp_analyse *a, const int32_t *from,
                      iwp_err *err) {
    int32_t layer[IWP_MARK_MAX], n = 0;
    for (int32_t l = 1; l < a->info.n_layer && n < IWP_MARK_MAX; l++)
        for (int32_t i = 1; i < r->n; i++)
            if (from[i] == l) {
                layer[n++] = l;
                break;
            }
    return iwp_session_keep_marks(a->s, layer, n, err);
}

static int run_all(struct runs *r, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                   const iwp_prompt *p, const int32_t *from, iwp_err *err) {
    IWP_TRY(keep_marks(r, a, from, err));
    IWP_TRY(run_trial(r, a, &r->t[0], s, p, -1, err));
    for (int32_t l = a->info.n_layer - 1; l >= 0; l--)
        for (int32_t i = 1; i < r->n; i++)
            if (from[i] == l && !r->t[i].error[0])
                IWP_TRY(run_trial(r, a, &r->t[i], s, p, l > 0 ? l : -1, err));
    for (int32_t i = 0; i < r->n; i++)
        if (r->keep[i] && r->keep[r->base])
            r->t[i].iou +=
                iwp_analysis_iou(r->keep[i], r->n_keep[i], r->keep[r->base], r->n_keep[r->base]);
    return 0;
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                      const iwp_prompt *p, iwp_err *err) {
    struct runs *r = ctx;
    int32_t *from = malloc((size_t)r->n * sizeof *from);
    IWP_REQUIRE(from, err, IWP_ENOMEM, "out of memory");
    r->nll[r->sample] = s->nll;
    r->media[r->sample] = s->cluster;
    for (int32_t i = 0; i < r->n; i++) {
        from[i] = i ? start_layer(a, &r->t[i], iwp_prompt_info(p).n_visual) : -1;
        r->t[i].value[r->sample] = NAN;
        free(r->keep[i]);
        r->keep[i] = NULL;
    }
    const int rc = run_all(r, a, s, p, from, err);
    free(from);
    if (rc >= 0) r->sample++;
    return rc;
}

/* Mean and its error, clustered by picture, of the samples of one kind. */
static int32_t estimate(const struct runs *r, const struct iwp_trial *t,
                        const struct iwp_trial *base, bool nll, double *mean, double *se) {
    struct iwp_eval_unit *u = calloc((size_t)r->n_max + 1, sizeof *u);
    int32_t n = 0;
    *mean = *se = NAN;
    for (int32_t i = 0; u && i < r->sample; i++) {
        const double v = t->value[i] - (base ? base->value[i] : 0);
        if (r->nll[i] != nll || isnan(v)) continue;
        u[n] = (struct iwp_eval_unit){
            .key = n, .cluster = (uint64_t)r->media[i], .value = nll ? v : 100 * v};
        n++;
    }
    if (n > 0) {
        const struct iwp_estimate e = iwp_stats_estimate(u, n, 1, 1);
        *mean = e.value;
        *se = e.stderr_;
    }
    free(u);
    return n;
}

int iwp_trials_run(struct iwp_analyse *a, struct iwp_finding *f, struct iwp_trial *trial, int32_t n,
                   int32_t base, iwp_err *err) {
    struct runs r = {.t = trial, .n = n, .base = base};
    int rc = 0;
    for (int32_t t = 0; t < a->job->data->n; t++) r.n_max += a->job->data->set[t].n;
    r.nll = calloc((size_t)r.n_max + 1, sizeof *r.nll);
    r.media = calloc((size_t)r.n_max + 1, sizeof *r.media);
    r.full = malloc((size_t)a->info.n_vocab * sizeof *r.full);
    r.room = malloc((size_t)a->info.n_vocab * sizeof *r.room);
    r.keep = calloc((size_t)n, sizeof *r.keep);
    r.n_keep = calloc((size_t)n, sizeof *r.n_keep);
    if (!r.nll || !r.media || !r.full || !r.room || !r.keep || !r.n_keep)
        IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < n; i++) {
        trial[i].value = calloc((size_t)r.n_max + 1, sizeof *trial[i].value);
        if (!trial[i].value) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    }
    IWP_TRY_GOTO(iwp_analyse_each(a, f, n, one_sample, &r, err));
    IWP_TRY_GOTO(iwp_session_keep_marks(a->s, NULL, 0, err));
    for (int32_t i = 0; i < n; i++) {
        struct iwp_trial *t = &trial[i];
        const double m = t->n;
        t->kl /= m, t->top1 /= m, t->kept /= m, t->iou /= m, t->select_ms /= m; /* NaN: never ran */
        t->n_score = estimate(&r, t, NULL, false, &t->score, &t->score_se);
        t->n_nll = estimate(&r, t, NULL, true, &t->nll, &t->nll_se);
        estimate(&r, t, trial, t->n_score == 0, &t->diff, &t->diff_se);
    }
fail:
    free(r.nll);
    free(r.media);
    free(r.full);
    free(r.room);
    for (int32_t i = 0; r.keep && i < n; i++) free(r.keep[i]);
    free(r.keep);
    free(r.n_keep);
    return rc < 0 ? rc : 0;
}

void iwp_trials_free(struct iwp_trial *trial, int32_t n) {
    for (int32_t i = 0; trial && i < n; i++) free(trial[i].value);
}

void iwp_trials_json(struct iwp_json_out *w, const char *key, const struct iwp_trial *trial,
                     int32_t n) {
    iwp_json_open_array(w, key);
    for (int32_t i = 0; i < n; i++) {
        const struct iwp_trial *t = &trial[i];
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "group", t->group);
        iwp_json_put_string(w, "name", t->name);
        iwp_json_put_string(w, "prune", t->p.method ? iwp_method_info(t->p.method)->name : "none");
        if (t->p.method) {
            iwp_json_put_f64(w, "keep", t->p.budget.n_keep ? NAN : t->p.budget.keep);
            if (t->p.layer >= 0) iwp_json_put_int(w, "layer", t->p.layer);
        }
        if (t->error[0]) {
            iwp_json_put_string(w, "error", t->error);
        } else {
            iwp_json_put_f64(w, "kl", t->kl);
            iwp_json_put_f64(w, "top1", t->top1);
            iwp_json_put_f64(w, "iou", t->iou);
            iwp_json_put_f64(w, "kept", t->kept);
            iwp_json_put_f64(w, "score", t->score);
            iwp_json_put_f64(w, "stderr", t->score_se);
            iwp_json_put_f64(w, "nll", t->nll);
            iwp_json_put_f64(w, "nll_stderr", t->nll_se);
            iwp_json_put_f64(w, "diff", t->diff);
            iwp_json_put_f64(w, "diff_stderr", t->diff_se);
            iwp_json_put_ms(w, "select_ms", t->select_ms);
        }
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
}

void iwp_trial_note(const struct iwp_trial *t, char *out, size_t cap) {
    int n = snprintf(out, cap, t->kl < 1e-4 && t->kl > 0 ? "KL %.1e" : "KL %.4f", t->kl);
    if (t->n_score && n > 0 && (size_t)n < cap)
        n += snprintf(out + n, cap - (size_t)n, ", score %.1f", t->score);
    if (t->n_nll && n > 0 && (size_t)n < cap)
        snprintf(out + n, cap - (size_t)n, ", nll %.3f", t->nll);
}

int iwp_trial_set(struct iwp_trial *t, const struct iwp_analyse *a, double keep, const char *group,
                  const char *name, const char *option, iwp_err *err) {
    memset(t, 0, sizeof *t);
    snprintf(t->group, sizeof t->group, "%s", group);
    snprintf(t->name, sizeof t->name, "%s", name);
    if (keep <= 0) return 0; /* unpruned */
    t->p = a->job->prune;
    t->p.layer = a->layer;
    t->p.budget.keep = keep;
    t->p.budget.n_keep = 0;
    return option ? iwp_params_parse(&t->p, option, err) : 0;
}
