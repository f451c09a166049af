/* Tasks: what to ask and how to score it (CONTRACT 6, spec/eval.md 2.7).  A task is one JSON file:
 *
 *     {"name": "pope", "title": "POPE", "prompt": "{question|strip}\nAnswer …", "scorer": "pope",
 *      "max_new_tokens": 128, "aggregate": "mean", "profiles": {"lmms-0.7.2": {…overrides…}}}
 *
 * Template: {field} is a field of the manifest line, {choices} the options as "A. text" lines;
 * modifiers strip, capitalize, unasked (without " Please answer yes or no."), plain (options as they
 * are); a part in [brackets] is left out when a field in it is absent, empty or "nan".
 * The files of tasks/ are built into the program; --task-dir adds more.  Refused: unknown keys, unknown
 * scorers, names that cannot be file names. */
#ifndef IWP_EVAL_TASK_H
#define IWP_EVAL_TASK_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "eval/scorers.h"
#include "iwp/error.h"

enum iwp_aggregate {
    IWP_AGGREGATE_MEAN,     /* mean over samples */
    IWP_AGGREGATE_CATEGORY, /* mean of the category means */
    IWP_AGGREGATE_CIRCULAR, /* a group counts when all its samples are right */
    IWP_AGGREGATE_PAIRS,    /* MME: accuracy + accuracy of whole pairs, summed over categories */
    IWP_AGGREGATE_NLL,      /* mean of nats; lower is better */
};

struct iwp_eval_task {
    char *name, *title, *paper; /* paper: the column of the paper's tables, or NULL */
    char *prompt, *open_prompt; /* open_*: for lines without choices, or NULL */
    const struct iwp_scorer *scorer, *open_scorer; /* NULL: each line names its own */
    bool nll, skip_nan;
    enum iwp_aggregate aggregate;
    char **category; /* [n_category] the whole list, or NULL: those that occur */
    int32_t n_category;
    int32_t max_new_tokens; /* 0: the engine's default */
    cJSON *subtasks;        /* {"circles": "number"}: other names of lines, with their scorer */
    char *json;             /* the definition, one line, for the run manifest */
};

enum { IWP_EVAL_DEFAULT_TOKENS = 1024 };

bool iwp_eval_name_ok(const char *name);
const char *iwp_profile_name(enum iwp_profile p);

/* Reads one definition; `where` is named in errors. */
int iwp_eval_task_parse(const char *json, size_t n, const char *where, enum iwp_profile profile,
                        struct iwp_eval_task **out, iwp_err *err);
void iwp_eval_task_free(struct iwp_eval_task *t); /* NULL is fine */
/* The task of a name, or the one that has it as a subtask; 0: there is none. */
int iwp_eval_task_find(const char *name, const char *dir, enum iwp_profile profile,
                       struct iwp_eval_task **out, iwp_err *err);
/* A task for lines that bring question and scorer themselves. */
int iwp_eval_task_plain(const char *name, bool nll, struct iwp_eval_task **out, iwp_err *err);

/* The user's text for one line; caller frees *out. */
int iwp_eval_task_prompt(const struct iwp_eval_task *t, const cJSON *line, char **out,
                         iwp_err *err);

struct iwp_builtin_task {
    const char *name, *json;
};
extern const struct iwp_builtin_task iwp_builtin_tasks[]; /* generated; ends with name NULL */
extern const struct iwp_builtin_task iwp_builtin_paper[]; /* the same: the paper's figures */

#endif
