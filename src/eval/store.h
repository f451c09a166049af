/* A results folder (CONTRACT 6):
 *
 *     run.json                          what is measured: model, data, profile, hashes, configurations
 *     <configuration>/samples_<task>.jsonl   one line per sample, appended, in lmms-eval's field names
 *     <configuration>/timings_<task>.jsonl   the same for times, which are never part of results.json
 *     media.jsonl                       hashes of pictures and films that were asked about (digest.h)
 *     <configuration>/iwp_results.json, iwp_samples_<task>.jsonl   the same for lmms-eval's viewer
 *     results.json, timings.json, report.html, report.md, report.csv   made from the above
 *
 * Lines are appended with one write each; a last line without its end (the program was killed) is cut
 * off before the next.  So the folder is a prefix of the finished work at every moment. */
#ifndef IWP_EVAL_STORE_H
#define IWP_EVAL_STORE_H

#include "base/json.h"
#include "eval/gallery.h"
#include "eval/stats.h"
#include "iwp/engine.h"

struct iwp_eval_config {
    char dir[200];
    char prune[48];
    double keep;              /* 0: by n_keep, or none */
    int32_t n_keep;           /* 0: by keep */
    char options[512];        /* "lambda=5,chunk=2": what was asked for, the seed not among it */
    int32_t seed;             /* -1: not a seeded method */
    struct iwp_params params; /* not stored */
    enum iwp_positions positions; /* not stored; in options */
    bool stored;                  /* was read from run.json */
    bool refused;                 /* is left out when run.json is written */
};

struct iwp_eval_run_task {
    struct iwp_eval_task *task;
    char hash[65];
    int32_t n; /* samples, in all shards */
};

struct iwp_eval_run {
    char *model, *profile;
    char model_hash[65], mmproj_hash[65], binary_hash[65];
    char options[256]; /* of session and pictures, that answers depend on */
    int32_t limit, shard, n_shard;
    struct iwp_eval_run_task *task; /* [n_task] */
    int32_t n_task;
    struct iwp_eval_config *config; /* [n_config] */
    int32_t n_config;
};

void iwp_eval_run_free(struct iwp_eval_run *r);
/* 1: read, 0: the folder has no run.json. */
int iwp_eval_run_read(struct iwp_eval_run *r, const char *dir, iwp_err *err);
int iwp_eval_run_write(const struct iwp_eval_run *r, const char *dir, iwp_err *err);
/* Fails with what differs when two runs do not measure the same thing; grids may differ. */
int iwp_eval_run_match(const struct iwp_eval_run *a, const struct iwp_eval_run *b, const char *dir,
                       iwp_err *err);
/* Adds b's configurations and tasks to a; in b's order where b has all configurations of a in theirs. */
int iwp_eval_run_merge(struct iwp_eval_run *a, const struct iwp_eval_run *b, iwp_err *err);

bool iwp_eval_config_same_row(const struct iwp_eval_config *a, const struct iwp_eval_config *b);

/* "dir/config/kind_task.jsonl" */
int iwp_eval_lines_path(char *out, size_t cap, const char *dir, const char *config,
                        const char *kind, const char *task, iwp_err *err);
/* Reads the whole lines of a samples file (none when it is not there); `shown` (nullable): samples
 * whose kept tokens are wanted too. */
int iwp_eval_records_read(struct iwp_eval_records *r, const char *path,
                          const struct iwp_gallery *shown, iwp_err *err);
void iwp_eval_records_sort(struct iwp_eval_records *r);
/* Cuts off a last line without its end. */
int iwp_eval_lines_repair(const char *path, iwp_err *err);
int iwp_eval_lines_append(const char *path, const char *line, size_t n, iwp_err *err);
/* A document as one line; frees it. */
int iwp_eval_lines_append_json(const char *path, struct iwp_json_out *w, iwp_err *err);

#endif
