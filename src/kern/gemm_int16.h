/* Packed numbers are integers up to LEVELS with one scale for 32 neighbours of k, behind the block; for
 * gemm_body.h.  As many products as a block has k fit into 32 bits: sums over a block are exact. */
#include <assert.h>
#include <stdbool.h>

#include "kern/vec16.h"

enum { BLOCK = 32 * 32 + 64, SCALED = 1 };
#define FORM   "int16"
#define HALVES NULL
#if defined(__AVX512BW__)
#define PAIRS 1 /* two panels of columns at a time are faster than one and one */
#else
#define PAIRS 0
#endif
#define LEVELS  8191.0f
#define NOTHING 1e-16f /* smaller scales count as 0: products with subnormal ones would crawl */
#define PART    (1.0f / LEVELS) /* of a weight of attention */
static_assert(32 * (int64_t)LEVELS * (int64_t)LEVELS <= INT32_MAX, "32 products may not wrap");

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

/* 32 neighbours of k. */
static inline void put_run(uint16_t *to, float *scale, vf a, vf b) {
    const float most = largest(larger(magnitude(a), magnitude(b)));
    const vf f = all(LEVELS / (most > NOTHING ? most : NOTHING));
    const vh h[2] = {__builtin_convertvector(integers(a * f), vh),
                     __builtin_convertvector(integers(b * f), vh)};
    memcpy(to, h, sizeof h);
    *scale = most > NOTHING ? most * PART : 0;
}

/* The same of 16 rows. */
static inline void put_runs(uint16_t to[16][32], float *scale, const vf a[16], const vf b[16]) {
    vf most[16];
    float f[16];
    for (int i = 0; i < 16; i++) most[i] = larger(magnitude(a[i]), magnitude(b[i]));
    const vf m = largest16(most);
    save(f, all(LEVELS) / larger(m, all(NOTHING)));
    save(scale, pick(m > all(NOTHING), m * all(PART), all(0)));
    for (int i = 0; i < 16; i++) {
        const vh h[2] = {__builtin_convertvector(integers(a[i] * all(f[i])), vh),
                         __builtin_convertvector(integers(b[i] * all(f[i])), vh)};
        memcpy(to[i], h, sizeof h);
    }
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
