/* What `iwp eval`, `iwp bench eval` and `iwp analyse` share: the flags of questions and of a grid, and from
 * them its configurations and questions. */
#ifndef IWP_CLI_EVAL_ARGS_H
#define IWP_CLI_EVAL_ARGS_H

#include "cli/engine_args.h"
#include "eval/runner.h"

struct iwp_eval_args {
    struct iwp_strings tasks, prune, keep, keep_tokens, sweep, opt;
    const char *data, *task_dir, *system;
    int32_t limit, profile, seeds, layer, rule, scope, keep_separators, frames;
    double fps;
};
extern const struct iwp_opt iwp_question_opts[]; /* --tasks to --fps */
extern const struct iwp_opt iwp_grid_opts[];     /* --prune to --seeds */
#define IWP_EVAL_ARGS_DEFAULT {.layer = -1, .keep_separators = -1, .seeds = 5}

/* Configurations, questions (limited) and the description of the run; what is wrong with the flags or
 * the manifests is said here, before a model is loaded.  The engine parameters are those of -m. */
int iwp_eval_args_job(const struct iwp_eval_args *a, struct iwp_model_args *model,
                      struct iwp_eval_run *run, struct iwp_eval_data *data,
                      struct iwp_eval_job *job, iwp_err *err);

/* A command without questions is not one. */
int iwp_eval_args_check(const struct iwp_eval_args *a, iwp_err *err);
/* The folder of --out with those above it; one that is there is fine. */
int iwp_eval_make_folders(const char *path, iwp_err *err);

#endif
