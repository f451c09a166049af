/* Manifests: JSONL, one question a line (CONTRACT 6).  Every mistake is `file:line: what`, found before
 * any model is loaded: bad JSON, missing or ill-typed fields, ids that come twice, media that is not
 * there, lines without a scorer. */
#ifndef IWP_EVAL_MANIFEST_H
#define IWP_EVAL_MANIFEST_H

#include "eval/task.h"

enum {
    IWP_MANIFEST_MAX_LINE = 1 << 20,
    IWP_MANIFEST_MAX_CHOICES = 26,
    IWP_MANIFEST_MAX_ANSWERS = 64,
    IWP_MANIFEST_MAX_MEDIA = 64,
};

struct iwp_eval_sample {
    int32_t doc;  /* number in the task, from 0, whatever --limit and --shard take */
    int32_t line; /* in the file, from 1 */
    cJSON *row;   /* the line; the pointers below are in it or in `own` */
    const char *id, *category, *group; /* category, group may be NULL */
    const char **media;                /* [n_media] paths as written */
    char **path;                       /* [n_media] as opened */
    int32_t n_media;
    char (*sha)[65]; /* [n_sha] of the media, empty: unreadable; NULL until asked for (digest.h) */
    int32_t n_sha;   /* frames given one by one are one medium */
    bool video, nll;
    const char **answers; /* [n_answer]; letters for choice tasks */
    int32_t n_answer;
    const char **choices; /* [n_choice] */
    int32_t n_choice;
    const struct iwp_scorer *scorer; /* NULL: nll */
    int32_t max_new_tokens;
    char *prompt;
    char letter[2];
    int32_t cluster; /* samples with the same media have the same number */
};

/* The lines of one task. */
struct iwp_eval_set {
    struct iwp_eval_task *task;
    struct iwp_eval_sample *at; /* [n] */
    int32_t n, cap, n_before;   /* n_before: of earlier manifests */
    char hash[65];              /* SHA-256 of its lines */
};

struct iwp_eval_data {
    struct iwp_eval_set *set; /* [n] in order of appearance */
    int32_t n;
};

/* Adds a manifest.  `task` (nullable) is used for all its lines. */
int iwp_eval_data_add(struct iwp_eval_data *d, const char *path, const char *task,
                      const char *task_dir, enum iwp_profile profile, iwp_err *err);
void iwp_eval_data_free(struct iwp_eval_data *d);
/* Keeps about n samples of every task: whole groups, all categories alike, in a fixed order. */
int iwp_eval_data_limit(struct iwp_eval_data *d, int32_t n, iwp_err *err);
/* Keeps the groups of shard i of n (0-based). */
int iwp_eval_data_shard(struct iwp_eval_data *d, int32_t i, int32_t n, iwp_err *err);

#endif
