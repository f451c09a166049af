/* Parts of `iwp run`: cmd_run.c (flags, one answer), run_chat.c (turns), run_report.c (JSON, summary,
 * overlay). */
#ifndef IWP_CLI_RUN_H
#define IWP_CLI_RUN_H

#include <signal.h>

#include "cli/engine_args.h"

struct iwp_run_args {
    struct iwp_strings image, video;
    const char *prompt, *system, *output, *overlay, *dump, *prune_dump;
    int32_t frames;
    double fps;
    bool json;
};

struct iwp_run_job {
    struct iwp_run_args args;
    struct iwp_model_args model;
    struct iwp_sampling_args sampling;
    struct iwp_prune_args prune_args;
    struct iwp_params prune;
    bool use_prune;
    enum iwp_positions positions;
    iwp_engine *e;
    iwp_session *s;
    iwp_sampler *sampler;
    double ms_load;
};

/* One question from request to answer. */
struct iwp_run_result {
    iwp_prompt *prompt;
    struct iwp_answer answer;
    double ms_ttft, ms_total;
};
int iwp_run_answer(struct iwp_run_job *j, struct iwp_prompt_request *r, bool stream,
                   struct iwp_run_result *out, iwp_err *err);
void iwp_run_result_free(struct iwp_run_result *r);

int iwp_run_chat(struct iwp_run_job *j); /* returns an exit code */

int iwp_run_json(const struct iwp_run_job *j, const struct iwp_run_result *r, iwp_err *err);
void iwp_run_summary(const struct iwp_run_job *j, const struct iwp_run_result *r);
/* --overlay, --prune-dump */
int iwp_run_draw(const struct iwp_run_job *j, const struct iwp_run_result *r, iwp_err *err);

/* Ctrl-C: counted; the first stops a generation, the second ends the program. */
extern volatile sig_atomic_t iwp_run_interrupts;

#endif
