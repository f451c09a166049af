/* What pictures and films hold, as SHA-256, so that results belong to bytes and not to names.
 *
 * A picture is hashed whole; of a film or a row of frames, what the frames that are taken are made from.
 * Hashing happens when a medium is first asked about.  `media.jsonl` in the results folder remembers
 * hashes with size and time of the file, so that a continued run reads only files that were touched; it
 * may be deleted at any time. */
#ifndef IWP_EVAL_DIGEST_H
#define IWP_EVAL_DIGEST_H

#include "eval/manifest.h"
#include "eval/stats.h"
#include "media/sampling.h"

struct iwp_digest; /* one file */

struct iwp_digests {
    char path[4096]; /* of media.jsonl */
    struct iwp_sampling sampling;
    struct iwp_digest *at; /* [cap], open addressing */
    int32_t n, cap;
};

int iwp_digests_open(struct iwp_digests *d, const char *dir, struct iwp_sampling sampling,
                     iwp_err *err);
void iwp_digests_free(struct iwp_digests *d);
/* Fills s->sha, unless it is there.  A medium that cannot be read has no hash but is no error: what is
 * wrong with it is told when the question is asked. */
int iwp_digests_sample(struct iwp_digests *d, struct iwp_eval_sample *s, iwp_err *err);
/* Fails when the media of an answer were others than those of its question now.  `path`: where the answer is. */
int iwp_digests_check(struct iwp_digests *d, struct iwp_eval_sample *s,
                      const struct iwp_eval_record *answer, const char *path, iwp_err *err);

#endif
