/* Scorers of the benchmarks, on code points (spec/eval.md 2.8: S1 to S14, profile differences in 2.9),
 * and the plain ones a manifest line may name.  One answer in, one score out; what spans several
 * samples (MME pairs, MMBench circles, category means) is in aggregate.c. */
#ifndef IWP_EVAL_SCORERS_H
#define IWP_EVAL_SCORERS_H

#include <stdbool.h>
#include <stdint.h>

#include "iwp/error.h"

enum iwp_profile { IWP_PROFILE_LMMS_0_3, IWP_PROFILE_LMMS_0_7_2 };

struct iwp_score_input {
    const char *response;       /* UTF-8, as generated */
    const char *const *answers; /* references; letters for choice tasks */
    int32_t n_answer;
    const char *const *choices; /* option texts, may be empty */
    int32_t n_choice;
    enum iwp_profile profile;
};

struct iwp_score {
    double score;  /* 0 to 1 */
    bool unparsed; /* nothing could be read from the answer (the reference would draw at random) */
    double chance; /* unparsed: expected score of that draw */
    char label[8]; /* what was read: a letter, "yes", …; "" when the scorer reads no label */
};

struct iwp_scorer {
    const char *name, *text;
    int (*run)(const struct iwp_score_input *in, struct iwp_score *out, iwp_err *err);
    bool wants_choices;
};

/* "ai2d", "anls", "mmbench", "mme", "mmmu-choice", "mmmu-open", "scienceqa", "vqa", "mmstar",
 * "pope", "egoschema", "videomme", "mlvu", and "exact", "yesno", "number", "choice". */
const struct iwp_scorer *iwp_scorer_find(const char *name); /* NULL: no such scorer */
const struct iwp_scorer *iwp_scorer_at(int32_t i);          /* NULL past the end */

/* Scores one answer; out is cleared first. */
int iwp_scorer_run(const struct iwp_scorer *s, const struct iwp_score_input *in,
                   struct iwp_score *out, iwp_err *err);

#endif
