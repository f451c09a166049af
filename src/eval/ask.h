/* One question to one session: its prompt and its prefill. */
#ifndef IWP_EVAL_ASK_H
#define IWP_EVAL_ASK_H

#include "eval/manifest.h"
#include "iwp/engine.h"

struct iwp_ask {
    iwp_engine *e;
    enum iwp_profile profile;
    bool raw;           /* --chat-template none */
    const char *system; /* or NULL */
};

/* `like` brings frames, fps, token limits and what is tapped.  Caller frees with iwp_engine_prompt_free. */
int iwp_ask_prompt(const struct iwp_ask *a, const struct iwp_prompt_request *like,
                   const struct iwp_eval_sample *s, iwp_prompt **out, iwp_err *err);
/* Steps until the logits are there. */
int iwp_ask_prefill(iwp_session *s, iwp_err *err);

#endif
