/* Weights to panels of integers, for gemm_bulk.h: from ggml's CPU_REPACK buffers and from rows as files have
 * them (gemm.h).  q4_0 and q8_0 numbers are integers with a scale for 32 neighbours already and are brought
 * to the scale of their run; all others become floats first, a piece at a time. */
enum {
    FORMS = 1 << IWP_GEMM_Q4_0 | 1 << IWP_GEMM_Q4_K | 1 << IWP_GEMM_FILE_Q8_0 |
            1 << IWP_GEMM_FILE_F16 | 1 << IWP_GEMM_FILE_BF16 | 1 << IWP_GEMM_FILE,
    Q4_0_BYTES = 16 + 128,           /* of 8 columns × 32 k */
    Q4_K_BYTES = 2 * 16 + 96 + 1024, /* of 8 columns × 256 k */
    Q8_0_BYTES = 2 + 32
};
#define LAYOUT "CPU_REPACK"

#include "kern/gemm_read_file.h"

typedef uint64_t columns8 __attribute__((vector_size(64)));
typedef uint16_t bytes8x2 __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef int8_t chars16 __attribute__((vector_size(16)));
typedef int16_t shorts16 __attribute__((vector_size(32)));

/* a m / 2^15, to nearest. */
static inline shorts16 times(shorts16 a, shorts16 m) {
#if defined(__AVX2__)
    return (shorts16)_mm256_mulhrs_epi16((__m256i)a, (__m256i)m);
#else
    const vi p = __builtin_convertvector(a, vi) * __builtin_convertvector(m, vi);
    return __builtin_convertvector((p + (1 << 14)) >> 15, shorts16);
#endif
}

/* For 16 columns with the scales d[b] in n blocks, and integers up to `most` in each: what these have to be
 * multiplied with, as parts of `one`, and the scale of the run then. */
static inline vf join(vf to[RUN], const vf d[RUN], int32_t n, float most, float one) {
    vf s = all(0);
    for (int32_t b = 0; b < n; b++) s += d[b] * d[b];
    const vf scale = roots(s * all(32 * most * most)) * all(1 / NORM);
    const vf f = pick(scale == all(0), all(0), all(one) / scale);
    for (int32_t b = 0; b < n; b++) to[b] = d[b] * f;
    return scale;
}

/* Two neighbours of k of 8 columns, in the lower halves of the bytes; m: what they are multiplied with, in
 * parts of 16. */
static inline void save_nibbles(uint16_t *to, bytes8x2 v, shorts16 m) {
    const vh wide = __builtin_convertvector((bytes16)(v & 0x0f0f), vh);
    const shorts16 line = times((shorts16)((wide << 11 ^ 0x4000) - 0x4000), m);
    memcpy(to, &line, sizeof line);
}

/* Eight bytes of each column are its k from 8 h on, and 16 further in the upper halves. */
static inline void read_nibbles(uint16_t *to, const uint8_t *p, shorts16 m) {
    for (int h = 0; h < 2; h++) {
        columns8 v;
        memcpy(&v, p + 64 * h, sizeof v);
        for (int i = 0; i < 4; i++) {
            const bytes8x2 pair = __builtin_convertvector(v >> (16 * i), bytes8x2);
            save_nibbles(to + (4 * h + i) * 32, pair, m);
            save_nibbles(to + (8 + 4 * h + i) * 32, pair >> 4, m);
        }
    }
}

/* Each reader makes the panel of 32 columns from `col` on. */
static void read_q4_0(uint16_t *block, const struct iwp_gemm_quant *w, int32_t col, int32_t k0,
                      int32_t k) {
    const size_t row = (size_t)(w->k / 32) * Q4_0_BYTES;
    for (int32_t j = 0; j < 32; j += 8) {
        const uint8_t *p = w->w + (size_t)((col + j) / 8) * row + (size_t)(k0 / 32) * Q4_0_BYTES;
        uint16_t *to = block;
        for (int32_t i = 0, n; i < k / 32; i += n) {
            vf d[RUN], m[RUN];
            n = k / 32 - i < RUN ? k / 32 - i : RUN;
            for (int32_t b = 0; b < n; b++) d[b] = halves(p + b * Q4_0_BYTES); /* 8 of them */
            const vf scale = join(m, d, n, 8, 16);
            for (int32_t b = 0; b < n; b++, p += Q4_0_BYTES, to += BLOCK) {
                memcpy(scales(to) + j, &scale, 8 * sizeof(float));
                read_nibbles(
                    to + j / 16 * 512 + j % 16 * 2, p + 16,
                    (shorts16) __builtin_convertvector(integers(zip_lower(m[b], m[b])), vh));
            }
        }
    }
}

/* PIECE k of a column, one of 8 repacked ones.  Of the 6-bit scales and minima of 32 k 12 bytes hold those of
 * all columns; numbers come in runs of 8 for each column, 32 bytes of a column for 64 k. */
static void floats_q4_k(float *to, const struct iwp_gemm_quant *w, int32_t col, int32_t k0,
                        int32_t n) {
    (void)n; /* PIECE: k is a multiple of it */
    const int32_t c = col % 8;
    const uint8_t *p =
        w->w + ((size_t)(col / 8) * (size_t)(w->k / PIECE) + (size_t)(k0 / PIECE)) * Q4_K_BYTES;
    uint16_t half[2][16] = {{0}};
    memcpy(&half[0][0], p + 2 * c, 2);
    memcpy(&half[1][0], p + 16 + 2 * c, 2);
    const float d = halves(half[0])[0], min = halves(half[1])[0];
    for (int g = 0; g < 8; g++) {
        const uint8_t *s = p + 32 + 12 * g, *q = p + 128 + 256 * (g / 2) + 8 * c;
        const int low = s[c % 4], mid = s[4 + c % 4], rest = s[8 + c % 4];
        const int scale = c < 4 ? low & 63 : (rest & 15) | (low >> 6) << 4,
                  offset = c < 4 ? mid & 63 : rest >> 4 | (mid >> 6) << 4;
        const float f = d * (float)scale, o = min * (float)offset;
        for (int i = 0; i < 32; i += 16) {
            bytes16 v;
            memcpy(&v, q + 8 * i, 8);
            memcpy((char *)&v + 8, q + 8 * i + 64, 8);
            const bytes16 n4 = g % 2 ? v >> 4 : v & 15;
            save(to + 32 * g + i, __builtin_convertvector(n4, vf) * all(f) - all(o));
        }
    }
}

/* 32 signed bytes as 16-bit numbers, multiplied with m in parts of 256. */
static inline vf widened(const uint8_t *p, float m) {
    const shorts16 by = (shorts16) __builtin_convertvector(integers(all(m)), vh);
    shorts16 h[2];
    vf r;
    for (int i = 0; i < 2; i++) {
        chars16 v;
        memcpy(&v, p + 16 * i, sizeof v);
        h[i] = times(__builtin_convertvector(v, shorts16) * 128, by);
    }
    memcpy(&r, h, sizeof r);
    return r;
}

static void read_q8_0(uint16_t *block, const struct iwp_gemm_quant *w, int32_t col, int32_t k0,
                      int32_t k) {
    const size_t row = (size_t)(w->k / 32) * Q8_0_BYTES;
    for (int32_t h = 0; h < 32; h += 16) {
        const uint8_t *p = w->w + (size_t)(col + h) * row + (size_t)(k0 / 32) * Q8_0_BYTES;
        uint16_t *to = block;
        for (int32_t i = 0, n; i < k / 32; i += n) {
            vf d[RUN], m[RUN];
            n = k / 32 - i < RUN ? k / 32 - i : RUN;
            for (int32_t b = 0; b < n; b++) {
                uint16_t half[16];
                for (int j = 0; j < 16; j++)
                    memcpy(&half[j], p + (size_t)j * row + b * Q8_0_BYTES, sizeof half[j]);
                d[b] = halves(half);
            }
            const vf scale = join(m, d, n, 128, 256);
            for (int32_t b = 0; b < n; b++, p += Q8_0_BYTES, to += BLOCK) {
                vf pairs[16]; /* two neighbours of k in one number; only moved */
                for (int j = 0; j < 16; j++) pairs[j] = widened(p + (size_t)j * row + 2, m[b][j]);
                transpose16(pairs);
                memcpy(to + h * 32, pairs, sizeof pairs);
                save(scales(to) + h, scale);
            }
        }
    }
}

static void read_tiles(uint16_t *to, const struct iwp_gemm_quant *w, int32_t col, int32_t n_cols,
                       int32_t k0, int32_t k) {
    for (int32_t j = 0; j < n_cols; j += 32, to += size_of(32, (size_t)k)) {
        switch (w->form) {
        case IWP_GEMM_Q4_0: read_q4_0(to, w, col + j, k0, k); break;
        case IWP_GEMM_FILE_Q8_0: read_q8_0(to, w, col + j, k0, k); break;
        case IWP_GEMM_Q4_K: read_floats(to, w, col + j, k0, k, floats_q4_k); break;
        default: read_floats(to, w, col + j, k0, k, floats_of); break;
        }
    }
}
