/* Flags of commands that run a model: which one, on what, and how tokens are picked (CONTRACT 2). */
#ifndef IWP_CLI_ENGINE_ARGS_H
#define IWP_CLI_ENGINE_ARGS_H

#include "cli/cmd.h"
#include "iwp/engine.h"

struct iwp_model_args {
    const char *model, *mmproj, *chat_template, *rpc;
    int32_t threads, threads_batch, n_gpu, ctx, batch, chunk, flash, type_k, type_v, reselect;
    int32_t min_tokens, max_tokens, tiles;
    bool jinja, no_offload;
    char *found_model, *found_mmproj; /* the shipped model; freed by _free */
};
extern const struct iwp_opt iwp_model_opts[];
#define IWP_MODEL_ARGS_DEFAULT {.n_gpu = -1, .chunk = 512, .batch = 2048, .reselect = 0}
void iwp_model_args_free(struct iwp_model_args *a);

/* Parameters of the engine; without -m the shipped model, or an error that says how to get it. */
int iwp_model_args_engine(struct iwp_model_args *a, struct iwp_engine_params *p, iwp_err *err);
struct iwp_session_params iwp_model_args_session(const struct iwp_model_args *a);
/* --chat-template none: prompts are taken verbatim. */
bool iwp_model_args_raw(const struct iwp_model_args *a);

struct iwp_sampling_args {
    double temp, top_p, min_p;
    int32_t top_k, seed, n_predict;
    bool ignore_eos;
};
extern const struct iwp_opt iwp_sampling_opts[];
#define IWP_SAMPLING_ARGS_DEFAULT                                                                  \
    {.top_k = 40, .top_p = 0.95, .min_p = 0.05, .seed = -1, .n_predict = -1}
struct iwp_sampler_params iwp_sampling_args_params(const struct iwp_sampling_args *a);

/* Pruning flags with the engine's own option: positions=original|compact among --prune-opt is taken out
 * of the list and stored.  *use is false for `none` or no method. */
int iwp_engine_prune(const struct iwp_prune_args *a, struct iwp_params *p, bool *use,
                     enum iwp_positions *positions, iwp_err *err);
/* A method without a budget keeps everything, flags of pruning without a method have no effect: says so. */
void iwp_engine_prune_note(const struct iwp_prune_args *a);

/* All steps of a session that has begun, with a meter. */
int iwp_engine_prefill(iwp_session *s, iwp_err *err);

#endif
