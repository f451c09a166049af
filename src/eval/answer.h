/* One answer: a question under one configuration, from logits to a line of the samples file. */
#ifndef IWP_EVAL_ANSWER_H
#define IWP_EVAL_ANSWER_H

#include "eval/manifest.h"
#include "eval/store.h"
#include "iwp/engine.h"

struct iwp_eval_answer {
    struct iwp_answer text;
    struct iwp_score score;
    struct iwp_session_stats st;
    uint64_t keep_hash;
    char *keep_bits;                      /* base64, one bit for each visual token */
    double media, prefill, first, decode; /* ms */
    int32_t visual;
};
void iwp_eval_answer_free(struct iwp_eval_answer *a);

/* From a session that has been stepped to its logits; `logits` has room for the vocabulary. */
int iwp_eval_answer_make(iwp_session *s, const struct iwp_eval_sample *q, enum iwp_profile profile,
                         float *logits, struct iwp_eval_answer *out, iwp_err *err);

/* Appends it to the samples and timings files of a configuration; `failed` (nullable) is why there is
 * no answer. */
int iwp_eval_answer_write(const struct iwp_eval_answer *a, const struct iwp_eval_sample *q,
                          const char *dir, const char *config, const char *task,
                          const iwp_err *failed, iwp_err *err);

/* The picture of a sample for reports (gallery.h); the prompt was made with keep_pixels. */
int iwp_eval_picture_write(const iwp_prompt *p, const struct iwp_eval_sample *q, const char *dir,
                           const char *task, iwp_err *err);

#endif
