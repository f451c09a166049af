/* `iwp analyse`: what pruning does inside a model, on the samples of a manifest (spec/iwp.md 7).
 *
 * One analysis = one file = one row of the table below.  It walks over the samples, gathers numbers and
 * leaves three things: fields of a JSON document, a chart and a short text that says what was found.
 * The driver writes NAME.json, NAME.svg and NAME.txt into a folder; `iwp report` shows them.
 *
 * A sample that fails (unreadable picture, prompt too long) is counted with its error and left out. */
#ifndef IWP_EVAL_ANALYSE_H
#define IWP_EVAL_ANALYSE_H

#include "base/json.h"
#include "base/log.h"
#include "eval/ask.h"
#include "iwp/analysis.h"
#include "model/probe.h"
#include "view/chart.h"

enum { IWP_ANALYSE_MAX_KEEP = 8, IWP_ANALYSE_MAX_METHOD = 64 };

struct iwp_analyse_job {
    const char *dir;
    struct iwp_engine_params engine;
    struct iwp_session_params session;
    struct iwp_prompt_request media;
    struct iwp_ask ask; /* its engine is opened by the run */
    struct iwp_eval_data *data;
    struct iwp_params prune; /* iwp with the user's options; its layer, -1: the default */
    double keep[IWP_ANALYSE_MAX_KEEP];
    int32_t n_keep;
    const struct iwp_method *method[IWP_ANALYSE_MAX_METHOD]; /* of propagate, implicit-weight */
    int32_t n_method;                                        /* 0: the analysis' own choice */
    int32_t tokens;                                          /* similarity: rows of its maps */
    bool no_answers;                                         /* do not generate: no scores */
    const char *model_hash;
};

/* What an analysis leaves. */
struct iwp_finding {
    struct iwp_json_out json; /* inside an open object */
    struct iwp_chart chart;
    FILE *text;
    char *text_at;
    size_t n_text;
    int32_t n_sample, n_error; /* used; failed */
    char error[400];           /* the last failure, with the sample's id */
};

struct iwp_analyse {
    const struct iwp_analyse_job *job;
    struct iwp_ask ask;
    iwp_session *s;
    struct iwp_engine_info info;
    int32_t layer;      /* of job->prune, resolved */
    char what[240];     /* "5 samples of x, layer 4, keep 35.3%" for charts and texts */
    const char *name;   /* of the analysis that runs */
    int64_t done, base; /* of the meter */
    struct iwp_progress progress;
};

struct iwp_analysis {
    const char *name, *title, *about;
    int (*run)(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);
};
extern const struct iwp_analysis iwp_analyses[]; /* ends with name NULL */

int iwp_analyse_metrics(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);
int iwp_analyse_ablate(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);
int iwp_analyse_deletion(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);
int iwp_analyse_similarity(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);
int iwp_analyse_layers(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);
int iwp_analyse_identities(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);
int iwp_analyse_propagate(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);
int iwp_analyse_implicit_weight(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err);

/* Runs the analyses of these table rows in order and writes their files.  Texts go to `out`, or with
 * `json` one document of all of them. */
int iwp_analyse_run(const struct iwp_analyse_job *j, const struct iwp_analysis *const *which,
                    int32_t n, FILE *out, bool json, iwp_err *err);

/* The methods the user named, or those of a list of names (NULL: all but `none`). */
int32_t iwp_analyse_methods(const struct iwp_analyse *a, const char *const *names, int32_t n,
                            const struct iwp_method **out);

/* ---- tools of the analyses ------------------------------------------------------------------------- */

/* Calls one() for every sample with its prompt; `ticks` is how often it will call _tick. */
typedef int iwp_analyse_one(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                            const iwp_prompt *p, iwp_err *err);
int iwp_analyse_each(struct iwp_analyse *a, struct iwp_finding *f, int32_t ticks,
                     iwp_analyse_one *one, void *ctx, iwp_err *err);
void iwp_analyse_tick(struct iwp_analyse *a);

/* The arrays of one layer in an unpruned run. */
struct iwp_acts {
    const struct iwp_prompt *p;
    int32_t layer, n, n_visual, H, G, d, D;
    float *q, *q_rope;     /* [n][H][d] */
    float *k, *k_rope, *v; /* [n][G][d] */
    float *heads;          /* [n][H][d] attention output; NULL unless asked for */
    const float *h;        /* [n][D] */
    int32_t *visual;       /* [n_visual] rows */
    struct iwp_array k_arr, k_rope_arr, v_arr;
    struct iwp_input in; /* for iwp_select */
};
typedef int iwp_acts_fn(void *ctx, struct iwp_analyse *a, const struct iwp_acts *x, iwp_err *err);
/* Runs a prompt without pruning; fn sees every layer in [l0, l1).  heads: of each of them, which must not
 * be the last layer. */
int iwp_acts_walk(struct iwp_analyse *a, const iwp_prompt *p, int32_t l0, int32_t l1, bool heads,
                  iwp_acts_fn *fn, void *ctx, iwp_err *err);
/* A selection from them; keep and scores [n_visual], scores may be NULL.  Returns the number kept. */
int iwp_acts_select(const struct iwp_acts *x, const struct iwp_params *p, int32_t *keep,
                    float *scores, iwp_err *err);
/* Text rows after the first visual one (all text rows when there are none); returns their number. */
int32_t iwp_acts_text(const struct iwp_acts *x, int32_t *row);
/* Their mean query [H][d]. */
int iwp_acts_query(const struct iwp_acts *x, bool rope, float *out, iwp_err *err);

/* ‖p‖q divergence in nats of the softmax of two logit rows. */
double iwp_logit_kl(const float *p, const float *q, int32_t n);
int32_t iwp_logit_top(const float *x, int32_t n);

/* One way to prune, and what it did over the samples. */
struct iwp_trial {
    char group[40], name[72];
    struct iwp_params p; /* method NULL: unpruned */
    int32_t n, n_score, n_nll;
    double kl, top1, iou, kept, select_ms; /* means; iou with the trial `base` */
    double score, score_se, nll, nll_se;   /* percent; nats; NaN: no such samples */
    double diff, diff_se;                  /* of the score (or nll) to the unpruned run, paired */
    double *value;                         /* [samples] scores, freed by _free */
    char error[200];                       /* why it cannot run on this model, "" */
};
/* trial[0] must be the unpruned run.  A trial that cannot run keeps its reason and has no numbers. */
int iwp_trials_run(struct iwp_analyse *a, struct iwp_finding *f, struct iwp_trial *trial, int32_t n,
                   int32_t base, iwp_err *err);
/* Begins one sample under a method (NULL: unpruned), with a prompt of its own when the method reads the
 * tower; the caller frees *own after the run. */
int iwp_trial_begin(struct iwp_analyse *a, const struct iwp_eval_sample *s, const iwp_prompt *p,
                    const struct iwp_params *prune, iwp_prompt **own, iwp_err *err);
void iwp_trials_free(struct iwp_trial *trial, int32_t n);
void iwp_trials_json(struct iwp_json_out *w, const char *key, const struct iwp_trial *t, int32_t n);
/* "KL 0.123, score 81.0 ± 2.1" */
void iwp_trial_note(const struct iwp_trial *t, char *out, size_t cap);
/* iwp with the user's options and one budget, and one more option ("lambda=1"). */
int iwp_trial_set(struct iwp_trial *t, const struct iwp_analyse *a, double keep, const char *group,
                  const char *name, const char *option, iwp_err *err);

/* Mean and range of numbers that come one by one. */
struct iwp_tally {
    double sum, lo, hi;
    int64_t n;
};
void iwp_tally_add(struct iwp_tally *t, double x); /* NaN is left out */
double iwp_tally_mean(const struct iwp_tally *t);  /* NaN: nothing */
void iwp_tally_json(struct iwp_json_out *w, const char *key, const struct iwp_tally *t);

#endif
