/* Packed numbers are integers with one scale for the 32 × RUN neighbours of k of a run, behind each of its
 * blocks; for gemm_body.h.  The sum of a run's squares is bounded, and so is any sum of products of two
 * runs, or of parts of them, by the root of both (Cauchy and Schwarz): below 2^31, sums over a run are exact. */
#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "kern/vec16.h"

enum { BLOCK = 32 * 32 + 64, SCALED = 1, RUN = 4 };
#define FORM   "int16"
#define HALVES NULL
#define SPLITS 0
#if defined(__AVX512BW__)
#define PAIRS 1       /* two panels of columns at a time are faster than one and one */
#elif !defined(PAIRS) /* tests/kern/test_pairs */
#define PAIRS 0
#endif
#if defined(__AVX2__)
#define SHORT 1 /* gemm_dot.h leaves out the zeros of a last block */
#else
#define SHORT 0
#endif
#define MOST    32767.0f
#define NORM    46300.0f /* root of the squares of a run at most */
#define VALUES  23100.0f /* the same of attention's values, whose weights have up to LEVELS */
#define LEVELS  8191.0f
#define PART    (1.0f / LEVELS)
#define NOTHING 1e-16f /* runs of smaller numbers count as 0: subnormal scales would crawl */
/* Rounding moves an integer by 0.75 at most (gemm_read_int16.h rounds a factor too), the root of 128
 * squares by 9; a row of q or k is one run, of up to LONG numbers or else of half the size. */
#define SQUARE(x, more) (((int64_t)(x) + (more)) * ((int64_t)(x) + (more)))
#define LONG            4096 /* the root of so many squares by 32, when only integers are rounded */
static_assert(32 * RUN <= 128 && SQUARE(NORM, 32) <= INT32_MAX &&
                  128 * SQUARE(LEVELS, 0) * SQUARE(VALUES, 9) <= SQUARE(INT32_MAX, 0),
              "sums over a run may not wrap");

/* Nearest integers in the lower halves, for |v| < 2^15: there the mantissa of 2^23 + 2^22 + v has them. */
static inline vu integers(vf v) { return (vu)(v + all(12582912.0f)); }

static inline vf magnitude(vf v) { return (vf)((vu)v & 0x7fffffffu); }

static inline float largest(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float s[16];
    save(s, v);
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++) s[i] = s[i] > s[i + w] ? s[i] : s[i + w];
    return s[0];
#endif
}

/* How up to FITS runs become integers, and what one of them stands for. */
enum { FITS = 16 };
struct fits {
    float factor[FITS], scale[FITS];
};

/* Of numbers whose squares f32 does not hold.  What is not a number makes the scale none. */
static inline void fit_far(struct fits *f, int at, const float *x, int vecs, float size) {
    vf m = all(0), s = all(0);
    for (int i = 0; i < vecs; i++) m = larger(m, magnitude(load(x + 16 * i)));
    const float most = largest(m);
    for (int i = 0; i < vecs; i++) {
        const vf v = load(x + 16 * i) * all(1 / most);
        s += v * v;
    }
    const float norm = sqrtf(sum(s));
    f->factor[at] = (norm * MOST < size ? MOST : size / norm) / most;
    f->scale[at] = 1 / f->factor[at];
}

/* For n rows of `vecs` vectors each, which are a run whatever their length. */
static inline void fits_rows(struct fits *f, const float *x, int64_t stride, int n, int vecs,
                             float size) {
    vf m[FITS], s[FITS];
    for (int r = 0; r < n; r++) {
        m[r] = magnitude(load(x + r * stride));
        s[r] = all(1e-30f); /* subnormal squares would crawl */
        for (int i = 0; i < vecs; i++) {
            const vf v = load(x + r * stride + 16 * i);
            if (i > 0) m[r] = larger(magnitude(v), m[r]);
            s[r] += v * v;
        }
    }
    for (int r = n; r < FITS; r++) m[r] = s[r] = all(0);
    const vf most = tops16(m), squares = sums16(s),
             scale = larger(most * all(1 / MOST), roots(squares) * all(1 / size));
    save(f->scale, pick(most > all(NOTHING), scale, all(0)));
    save(f->factor, pick(most > all(NOTHING), all(1) / scale, all(0)));
    if (sum(squares) < 1e37f) return;
    for (int r = 0; r < n; r++)
        if (!(squares[r] < 1e36f)) fit_far(f, r, x + r * stride, vecs, size);
}

/* For n runs of 2 RUN vectors each. */
static inline void fits_of(struct fits *f, const vf *v, int n, float size) {
    fits_rows(f, (const float *)v, 32 * RUN, n, 2 * RUN, size);
}

/* 32 neighbours of k, of run i of those that were fit. */
static inline void put_run(uint16_t *to, float *scale, const vf v[2], const struct fits *f, int i) {
    const vf by = all(f->factor[i]);
    const vu h[2] = {integers(v[0] * by), integers(v[1] * by)};
    const vhh both = lower_halves(h[0], h[1]);
    memcpy(to, &both, sizeof both);
    *scale = f->scale[i];
}

/* Weights of two neighbouring keys, for 16 queries, from 0 to 1. */
static inline void put_parts(uint16_t *to, vf a, vf b) {
    const vu w = integers(b * all(LEVELS)) << 16 | (integers(a * all(LEVELS)) & 0xffffu);
    memcpy(to, &w, sizeof w);
}

/* Blocks of columns as tile() reads them: there is no split. */
static inline const uint16_t *ready(const uint16_t *w, int32_t n, bool split, uint16_t *room) {
    (void)n, (void)split, (void)room;
    return w;
}
