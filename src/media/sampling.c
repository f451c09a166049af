/* Choosing frames: see sampling.h.  The floating point steps are those of the libraries, because a
 * last bit decides which of two frames is taken. */
#include "media/sampling.h"

#include <math.h>

void iwp_sampling_floor(int32_t total, int32_t n, int32_t *index) {
    const double stop = total - 1, step = n > 1 ? stop / (n - 1) : 0;
    for (int32_t i = 0; i < n; i++) index[i] = (int32_t)floor(i * step);
    if (n > 1) index[n - 1] = total - 1;
}

void iwp_sampling_round(int32_t total, int32_t n, int32_t *index) {
    const float stop = (float)(total - 1), step = n > 1 ? stop / (float)(n - 1) : 0;
    for (int32_t i = 0; i < n; i++) {
        /* torch counts the second half from the end */
        const float x = i < n / 2 || n == 1 ? step * (float)i : stop - step * (float)(n - i - 1);
        index[i] = (int32_t)rintf(x);
        if (index[i] > total - 1) index[i] = total - 1;
    }
}

static int32_t up(int32_t n, int32_t f) { return (n + f - 1) / f * f; }
static int32_t down(int32_t n, int32_t f) { return n / f * f; }

int32_t iwp_sampling_count(const struct iwp_sampling *s, int32_t total, double rate) {
    const int32_t f = s->factor > 0 ? s->factor : 1;
    if (!(s->fps > 0)) {
        const int32_t n = s->frames > 0 ? s->frames : IWP_SAMPLE_FRAMES;
        const int32_t m = (int32_t)rint((double)n / f) * f;
        return m < f ? f : m;
    }
    int32_t max = s->frames > 0 ? s->frames : total < IWP_SAMPLE_MAX ? total : IWP_SAMPLE_MAX;
    double n = total / rate * s->fps;
    const int32_t min = up(IWP_SAMPLE_MIN, f);
    max = down(max, f);
    if (n < min) n = min;
    if (n > max) n = max;
    if (n > total) n = total;
    const int32_t m = down((int32_t)n, f);
    return m >= f ? m : total < f ? total : f;
}

void iwp_sampling_choose(const struct iwp_sampling *s, int32_t total, int32_t n, int32_t *index) {
    if (s->fps > 0)
        iwp_sampling_round(total, n, index);
    else
        iwp_sampling_floor(total, n, index);
}
