/* Numbers over many samples (spec/eval.md 2.7, 2.8 S3 and S5, 2.9).
 *
 * Records become units (a sample, a circular group, a pair of questions) in strata (categories where
 * they are averaged or summed apart).  Score = Σ w_s · mean_s; its standard error comes from the
 * spread inside each stratum, clustered by medium: se² = C/(C-1) · Σ_c (Σ_{i in c} (x_i - mean))² / n².
 * Differences are paired: the same formula on x_i - base_i. */
#ifndef IWP_EVAL_STATS_H
#define IWP_EVAL_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "eval/task.h"

/* One answered sample, as the samples file has it. */
struct iwp_eval_record {
    int32_t doc;
    char *id, *category, *group, *label, *target, *answer, *error; /* may be NULL */
    char *media;     /* hashes of its media, a blank between them; NULL: not known */
    uint64_t medium; /* the first of them as a number, or its name: the cluster */
    double score, chance;
    bool unparsed;
    int32_t visual, kept;
    char *bits; /* base64 of the kept tokens, where the report shows them; else NULL */
};

struct iwp_eval_records {
    struct iwp_eval_record *at; /* [n] ascending by doc */
    int32_t n, cap;
};
void iwp_eval_records_free(struct iwp_eval_records *r);

struct iwp_eval_unit {
    int32_t key, stratum; /* key: doc of its first sample */
    uint64_t cluster;
    double value;
};

struct iwp_estimate {
    double value, stderr_; /* stderr_ NaN with fewer than two clusters */
    int32_t n;
    int32_t df; /* of stderr_: clusters less one in each stratum, added up */
};

/* Score of units in n_stratum strata, each with the given weight; strata without units count 0. */
struct iwp_estimate iwp_stats_estimate(const struct iwp_eval_unit *u, int32_t n, int32_t n_stratum,
                                       double weight);

struct iwp_eval_category {
    char name[128];
    struct iwp_estimate e;
};

struct iwp_eval_metric {
    const char *name;
    double value;
};

/* What is known of one task under one configuration (all its seeds). */
struct iwp_eval_summary {
    struct iwp_estimate e; /* percent; nats for nll; points for pairs */
    int32_t n, errors, unparsed;
    double expected; /* score when unparsed answers had been drawn */
    bool has_diff;
    struct iwp_estimate diff;
    struct iwp_eval_category *category; /* [n_category] */
    int32_t n_category;
    struct iwp_eval_metric metric[8];
    int32_t n_metric;
    double kept; /* mean share of the visual tokens that was kept; NaN: none seen */
    double seed_score[64];
    int32_t n_seed;
};

/* runs: [n_run] the seeds of one configuration; base: records of the unpruned run or NULL. */
int iwp_stats_summary(const struct iwp_eval_task *t, const struct iwp_eval_records *const *runs,
                      int32_t n_run, const struct iwp_eval_records *base,
                      struct iwp_eval_summary *out, iwp_err *err);
void iwp_eval_summary_free(struct iwp_eval_summary *s);
/* Nothing could be answered. */
bool iwp_eval_summary_failed(const struct iwp_eval_summary *s);

/* 95 % interval of an estimate by Student's t: {low, high}, NaN without a standard error. */
void iwp_stats_interval(const struct iwp_estimate *e, double out[2]);
/* The value that a t variable with df degrees of freedom exceeds with probability (1 - q) / 2 either side:
 * q = 0.95, df = 3 gives 3.18.  NaN for df < 1. */
double iwp_stats_t(double q, int32_t df);

/* The value at rank q of n sorted numbers (nearest rank), NaN for none. */
double iwp_stats_quantile(const double *sorted, int32_t n, double q);

#endif
