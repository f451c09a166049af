/* One question: see ask.h. */
#include "eval/ask.h"

int iwp_ask_prompt(const struct iwp_ask *a, const struct iwp_prompt_request *like,
                   const struct iwp_eval_sample *s, iwp_prompt **out, iwp_err *err) {
    struct iwp_part part[IWP_MANIFEST_MAX_MEDIA + 1];
    struct iwp_part sys = {.kind = IWP_PART_TEXT, .text = a->system};
    struct iwp_message msg[2];
    int32_t n = 0, m = 0;
    if (s->video && s->n_media > 1) /* a list of pictures: the frames of one video */
        part[n++] = (struct iwp_part){.kind = IWP_PART_VIDEO,
                                      .file = s->path[0],
                                      .frame = (const char *const *)s->path,
                                      .n_frame = s->n_media};
    else
        for (; n < s->n_media; n++)
            part[n] = (struct iwp_part){.kind = s->video ? IWP_PART_VIDEO : IWP_PART_IMAGE,
                                        .file = s->path[n]};
    struct iwp_prompt_request r = *like;
    if (a->raw) {
        r.raw = s->prompt;
        r.media = part;
        r.n_media = n;
    } else {
        part[n++] = (struct iwp_part){.kind = IWP_PART_TEXT, .text = s->prompt};
        if (a->system) msg[m++] = (struct iwp_message){"system", &sys, 1};
        msg[m++] = (struct iwp_message){"user", part, n};
        r.message = msg;
        r.n_message = m;
    }
    return iwp_engine_prompt(a->e, &r, out, err);
}

int iwp_ask_prefill(iwp_session *s, iwp_err *err) {
    int rc;
    while ((rc = iwp_session_step(s, err)) > 0) {
    }
    return rc;
}
