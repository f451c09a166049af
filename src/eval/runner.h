/* The grid: every sample under every configuration, each picture encoded once, decoder layers below a
 * cut run once for all that cut there or later, and all of it resumable (store.h). */
#ifndef IWP_EVAL_RUNNER_H
#define IWP_EVAL_RUNNER_H

#include "eval/manifest.h"
#include "eval/store.h"
#include "iwp/engine.h"

/* What a run did; `iwp bench eval` holds it against what cannot be avoided. */
struct iwp_eval_work {
    double ms, load_ms;        /* all but loading the model; loading it */
    double encode_ms;          /* pictures through the tower */
    double prefix_ms, rest_ms; /* layers below the first cut; selections, layers above, answers */
    int64_t row_layers;        /* prompt rows × layers that were run */
    int64_t shared_row_layers; /* of those, below the first cut, had each run them itself */
    int64_t n_encode, n_answer;
};

struct iwp_eval_job {
    const char *dir;
    struct iwp_eval_run *run;
    struct iwp_eval_run *list; /* for run.json, with what the folder had; NULL: none is written */
    struct iwp_eval_data *data;
    enum iwp_profile profile;
    struct iwp_engine_params engine;
    struct iwp_session_params session;
    struct iwp_prompt_request media; /* frames, fps, token limits */
    bool raw;                        /* --chat-template none */
    bool exact_times;                /* no shared prefixes: each prefill is measured whole */
    bool allow_failures;             /* a configuration that fails at once does not end the run */
    const char *system;              /* or NULL */
    struct iwp_eval_work work;       /* filled by the run */
};

/* Returns the number of samples × configurations that were computed now. */
int iwp_eval_run_grid(struct iwp_eval_job *j, iwp_err *err);

#endif
