/* Which frames of a film are taken, by the rules of the models' own code.
 *
 * A number of frames: floor(numpy.linspace(0, total - 1, n)), as LLaVA-OneVision does it; a film with
 * fewer frames gives some of them twice.  A rate: Qwen2.5-VL's utilities, total / rate * fps frames
 * within 4 and 768 (or the number given with it), at round(torch.linspace(0, total - 1, n)).
 * `factor` frames make one temporal patch (Qwen2.5-VL: 2), so counts are multiples of it. */
#ifndef IWP_MEDIA_SAMPLING_H
#define IWP_MEDIA_SAMPLING_H

#include <stdint.h>

#include "iwp/error.h"

enum { IWP_SAMPLE_FRAMES = 32, IWP_SAMPLE_MIN = 4, IWP_SAMPLE_MAX = 768 };

struct iwp_sampling {
    int32_t frames; /* 0: 32, or with a rate 768 at most */
    double fps;     /* 0: by count */
    int32_t factor; /* 0: 1 */
};

/* How many frames of `total`, which come at `rate` per second, the rule takes. */
int32_t iwp_sampling_count(const struct iwp_sampling *s, int32_t total, double rate);
/* Which ones: index[n], ascending. */
void iwp_sampling_choose(const struct iwp_sampling *s, int32_t total, int32_t n, int32_t *index);

/* Both linspaces, for n >= 1. */
void iwp_sampling_floor(int32_t total, int32_t n, int32_t *index); /* NumPy, float64 */
void iwp_sampling_round(int32_t total, int32_t n, int32_t *index); /* torch, float32 */

#endif
