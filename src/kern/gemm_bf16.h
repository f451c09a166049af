/* Packed numbers are bf16: for gemm_body.h. */
#include <stdbool.h>

#include "kern/vec16.h"

enum { BLOCK = 32 * 32, SCALED = 0, RUN = 1 };
#define FORM    "bf16"
#define HALVES  pack_halves
#define PAIRS   0
#define SPLITS  1
#define SHORT   0
#define PART    1.0f
#define NOTHING 0.0f
#define NORM    0.0f
#define VALUES  0.0f
#define LONG    0

/* Numbers of their own need no scale. */
enum { FITS = 1 };
struct fits {
    char none;
};
static inline void fits_of(struct fits *f, const vf *v, int n, float size) {
    (void)f, (void)v, (void)n, (void)size;
}
static inline void fits_rows(struct fits *f, const float *x, int64_t stride, int n, int vecs,
                             float size) {
    (void)f, (void)x, (void)stride, (void)n, (void)vecs, (void)size;
}

/* 32 neighbours of k. */
static inline void put_run(uint16_t *to, float *scale, const vf v[2], const struct fits *f, int i) {
    (void)scale, (void)f, (void)i;
    save_bf16(to, v[0]);
    save_bf16(to + 16, v[1]);
}

/* Weights of two neighbouring keys, for 16 queries. */
static inline void put_parts(uint16_t *to, vf a, vf b) {
    const vu w = pair_bf16(a, b);
    memcpy(to, &w, sizeof w);
}

static void pack_halves(uint16_t *panel, const uint16_t *w, int64_t stride, int32_t n, int32_t k) {
    for (int32_t i = 0; i < k; i += 32) {
        const int32_t len = k - i < 32 ? k - i : 32;
        for (int32_t h = 0; h < 32; h += 16) {
            vf r[16]; /* two neighbours of k in one number, which is only moved */
            memset(r, 0, sizeof r);
            for (int32_t j = 0; j < 16 && h + j < n; j++) {
                const uint16_t *p = w + (h + j) * stride + i;
                if (len == 32)
                    memcpy(&r[j], p, sizeof r[j]);
                else
                    memcpy(&r[j], p, (size_t)len * sizeof *p);
            }
            transpose16(r);
            for (int t = 0; t < 16; t++, panel += 32) {
                const vh even = __builtin_convertvector((vu)r[t] & 0xffff, vh),
                         odd = __builtin_convertvector((vu)r[t] >> 16, vh);
                memcpy(panel, &even, sizeof even);
                memcpy(panel + 16, &odd, sizeof odd);
            }
        }
    }
}

/* Blocks of columns as tile() reads them.  f16 ones become bf16 numbers in `room` and, n blocks further, what
 * rounding takes from them. */
static const uint16_t *ready(const uint16_t *w, int32_t n, bool split, uint16_t *room) {
    const size_t lo = (size_t)n * BLOCK;
    for (size_t i = 0; split && i < lo; i += 32) {
        const vf even = halves(w + i), odd = halves(w + i + 16);
        const vu hi = pair_bf16(even, odd),
                 low = pair_bf16(even - (vf)(hi << 16), odd - (vf)(hi & 0xffff0000u));
        memcpy(room + i, &hi, sizeof hi);
        memcpy(room + lo + i, &low, sizeof low);
    }
    return split ? room : w;
}
