/* From result folders to results.json and timings.json (CONTRACT 6), and to the reports.  Everything is
 * computed from the files of store.h, so that a finished folder gives the same bytes every time, whatever
 * was killed on the way and however it was cut into shards. */
#ifndef IWP_EVAL_RESULTS_H
#define IWP_EVAL_RESULTS_H

#include <stdio.h>

#include "eval/store.h"
#include "iwp/prune.h"

struct iwp_eval_timing {
    int32_t n;
    double median[5], p95[5]; /* encode, select, prefill, ttft, decode; ms */
    double kv_bytes, flops, flops_full, layer_average; /* means */
    /* Mean share of the visual tokens that is left after the cut before a layer; NAN: no cut there. */
    double stage[IWP_STAGE_MAX];
};
extern const char *const iwp_eval_timing_names[5];

/* One line of the table: a task under a method, budget and options (all seeds). */
struct iwp_eval_row {
    int32_t task;                         /* in run.task */
    const struct iwp_eval_config *config; /* the first of its seeds */
    struct iwp_eval_summary s;
    struct iwp_eval_timing t;
};

struct iwp_eval_average {
    const struct iwp_eval_config *config;
    double value; /* percent of the unpruned score, mean over tasks */
    int32_t n_task;
};

struct iwp_eval_book {
    struct iwp_eval_run run;          /* of all folders */
    struct iwp_eval_records *records; /* [n_config][n_task] */
    struct iwp_gallery *gallery;      /* [n_task] */
    struct iwp_eval_row *row;         /* [n_row] tasks outside, configurations inside */
    int32_t n_row;
    struct iwp_eval_average *average; /* [n_average] */
    int32_t n_average;
    char *analysis;  /* folder of `iwp analyse` in the first folder that has one, or NULL */
    int32_t missing; /* samples not answered yet, over all configurations */
};

int iwp_eval_book_read(struct iwp_eval_book *b, const char *const *dirs, int32_t n, iwp_err *err);
void iwp_eval_book_free(struct iwp_eval_book *b);

/* SHA-256 of a task's lines and of the media of those that were answered, whichever configurations did:
 * parts of a run give another hash than the whole. */
int iwp_eval_data_hash(const struct iwp_eval_book *b, int32_t task, char hex[65], iwp_err *err);

/* results.json, timings.json, report.html, report.md, report.csv */
int iwp_eval_book_write(const struct iwp_eval_book *b, const char *dir, bool paper, iwp_err *err);

/* For lmms-eval's viewer: CONFIG/iwp_results.json and links to the samples, where DIR has CONFIG. */
int iwp_eval_lmms_write(const struct iwp_eval_book *b, const char *dir, iwp_err *err);

/* "22.2%", "64 tokens", "100%" */
void iwp_eval_keep_text(const struct iwp_eval_config *c, char out[32]);
/* Samples of a task in the table: "40"; not all answered, or not by all: "20 of 40", "12-20 of 40". */
void iwp_eval_n_text(const struct iwp_eval_book *b, int32_t task, char out[48]);
/* Method with its options: "iwp lambda=5". */
void iwp_eval_method_text(const struct iwp_eval_config *c, char out[600]);

int iwp_eval_report_md(const struct iwp_eval_book *b, FILE *f);
int iwp_eval_report_csv(const struct iwp_eval_book *b, FILE *f);
/* "L8 50.0% L16 25.0%": what is left after each cut in the decoder. */
enum { IWP_EVAL_STAGES_TEXT = 16 * IWP_STAGE_MAX };
void iwp_eval_stages_text(const struct iwp_eval_timing *t, char *to, size_t cap);
/* paper: with the paper's figures where model and tasks match. */
int iwp_eval_report_html(const struct iwp_eval_book *b, bool paper, FILE *f);
/* What `iwp analyse` left in a folder, as a part of the page; nothing when dir is NULL. */
void iwp_eval_report_analyses(const char *dir, FILE *f);
/* Answers that differ between a configuration of one book and a configuration of another (or the same). */
void iwp_eval_report_diff(const struct iwp_eval_book *a, int32_t ka, const struct iwp_eval_book *b,
                          int32_t kb, FILE *f);
int32_t iwp_eval_book_config(const struct iwp_eval_book *b, const char *dir); /* -1: none */

#endif
