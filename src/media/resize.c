/* Pillow-exact resampling; see resize.h.  Refuses nothing but sizes below 1 and lack of memory.
 *
 * The order of the floating point operations below is part of the result: a weight that moves by
 * one unit in 2^22 flips a rounding somewhere in a large picture. */
#include "media/resize.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { FRACTION_BITS = 22 }; /* 32 - 8 bits of pixel - 2 bits of overshoot */

static double bilinear(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= 3.14159265358979323846;
    return sin(x) / x;
}

static double lanczos(double x) { return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

static const struct kernel {
    double (*weight)(double);
    double support;
} kernels[] = {
    [IWP_FILTER_BILINEAR] = {bilinear, 1.0},
    [IWP_FILTER_BICUBIC] = {bicubic, 2.0},
    [IWP_FILTER_LANCZOS] = {lanczos, 3.0},
};

/* What one output coordinate reads: `n` input coordinates from `first` on. */
struct taps {
    int32_t first, n;
};

struct pass {
    int32_t width;     /* weights per output coordinate, some unused at the edges */
    struct taps *taps; /* [out] */
    int32_t *weight;   /* [out][width] fixed point */
};

static void pass_free(struct pass *p) {
    free(p->taps);
    free(p->weight);
    *p = (struct pass){0};
}

static int32_t to_fixed(double w) {
    double x = w * (1 << FRACTION_BITS);
    return (int32_t)(x < 0 ? x - 0.5 : x + 0.5);
}

static int pass_init(struct pass *p, int32_t n_in, int32_t n_out, enum iwp_filter filter,
                     iwp_err *err) {
    const struct kernel *k = &kernels[filter];
    double scale = (double)n_in / n_out, stretch = scale < 1.0 ? 1.0 : scale;
    double support = k->support * stretch, shrink = 1.0 / stretch;
    p->width = (int32_t)ceil(support) * 2 + 1;
    p->taps = calloc((size_t)n_out, sizeof *p->taps);
    p->weight = calloc((size_t)n_out * (size_t)p->width, sizeof *p->weight);
    double *w = calloc((size_t)p->width, sizeof *w);
    if (!p->taps || !p->weight || !w) {
        pass_free(p);
        free(w);
        return iwp_err_set(err, IWP_ENOMEM, "no memory to resize %d to %d", n_in, n_out);
    }
    for (int32_t o = 0; o < n_out; o++) {
        double centre = (o + 0.5) * scale, sum = 0;
        int32_t first = (int32_t)(centre - support + 0.5);
        int32_t end = (int32_t)(centre + support + 0.5);
        if (first < 0) first = 0;
        if (end > n_in) end = n_in;
        int32_t n = end - first;
        for (int32_t i = 0; i < n; i++) {
            w[i] = k->weight((i + first - centre + 0.5) * shrink);
            sum += w[i];
        }
        int32_t *row = p->weight + (size_t)o * (size_t)p->width;
        for (int32_t i = 0; i < n; i++) row[i] = to_fixed(sum != 0.0 ? w[i] / sum : w[i]);
        p->taps[o] = (struct taps){first, n};
    }
    free(w);
    return 0;
}

static uint8_t to_byte(int32_t x) {
    x >>= FRACTION_BITS;
    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

/* out [h][w_out][3] from in [h][w_in][3] */
static void run_horizontal(const struct pass *p, const uint8_t *in, int32_t w_in, uint8_t *out,
                           int32_t w_out, int32_t h) {
    for (int32_t y = 0; y < h; y++) {
        const uint8_t *src = in + (size_t)y * (size_t)w_in * 3;
        uint8_t *dst = out + (size_t)y * (size_t)w_out * 3;
        for (int32_t x = 0; x < w_out; x++) {
            const int32_t *w = p->weight + (size_t)x * (size_t)p->width;
            const uint8_t *s = src + (size_t)p->taps[x].first * 3;
            int32_t r = 1 << (FRACTION_BITS - 1), g = r, b = r;
            for (int32_t i = 0; i < p->taps[x].n; i++, s += 3) {
                r += s[0] * w[i];
                g += s[1] * w[i];
                b += s[2] * w[i];
            }
            dst[3 * x] = to_byte(r);
            dst[3 * x + 1] = to_byte(g);
            dst[3 * x + 2] = to_byte(b);
        }
    }
}

/* out [h_out][n] from in [h_in][n]; a row of sums at a time, so that memory is read in order */
static void run_vertical(const struct pass *p, const uint8_t *in, size_t n, uint8_t *out,
                         int32_t h_out, int32_t *sums) {
    for (int32_t y = 0; y < h_out; y++) {
        const int32_t *w = p->weight + (size_t)y * (size_t)p->width;
        for (size_t x = 0; x < n; x++) sums[x] = 1 << (FRACTION_BITS - 1);
        for (int32_t i = 0; i < p->taps[y].n; i++) {
            const uint8_t *src = in + (size_t)(p->taps[y].first + i) * n;
            int32_t wi = w[i];
            for (size_t x = 0; x < n; x++) sums[x] += src[x] * wi;
        }
        uint8_t *dst = out + (size_t)y * n;
        for (size_t x = 0; x < n; x++) dst[x] = to_byte(sums[x]);
    }
}

int iwp_image_resize(const struct iwp_image *in, int32_t w, int32_t h, enum iwp_filter filter,
                     struct iwp_image *out, iwp_err *err) {
    *out = (struct iwp_image){0};
    IWP_REQUIRE(w > 0 && h > 0 && in->w > 0 && in->h > 0, err, IWP_EINVAL,
                "cannot resize %d x %d to %d x %d", in->w, in->h, w, h);
    int rc = 0;
    struct pass across = {0}, down = {0};
    uint8_t *half = NULL, *full = NULL;
    int32_t *sums = NULL;
    size_t row = (size_t)w * 3;
    bool wide = w != in->w, high = h != in->h;
    const uint8_t *src = in->rgb;
    if (wide) {
        IWP_TRY_GOTO(pass_init(&across, in->w, w, filter, err));
        half = malloc((size_t)in->h * row);
        if (!half) IWP_FAIL(err, IWP_ENOMEM, "no memory to resize a picture to %d x %d", w, h);
        run_horizontal(&across, in->rgb, in->w, half, w, in->h);
        src = half;
    }
    if (high || !wide) {
        full = malloc((size_t)h * row);
        sums = malloc(row * sizeof *sums);
        if (!full || !sums)
            IWP_FAIL(err, IWP_ENOMEM, "no memory to resize a picture to %d x %d", w, h);
        if (high) {
            IWP_TRY_GOTO(pass_init(&down, in->h, h, filter, err));
            run_vertical(&down, src, row, full, h, sums);
        } else {
            memcpy(full, src, (size_t)h * row);
        }
    } else {
        full = half;
        half = NULL;
    }
    *out = (struct iwp_image){w, h, full};
    full = NULL;
fail:
    free(full);
    free(half);
    free(sums);
    pass_free(&across);
    pass_free(&down);
    return rc;
}
