/* Weights to panels of integers, for gemm_bulk.h: from ggml's CPU_REPACK buffers (gemm_bytes.h) and from rows as
 * files have them (gemm.h).  q4_0 and q3_K to q6_K stay bytes; q8_0 numbers are integers with a scale for 32
 * neighbours already and are brought to the scale of their run; all others, q4_1, q5_0 and q5_1 too, become floats
 * first, a piece at a time. */
enum {
    FORMS = 1 << IWP_GEMM_Q4_0 | 1 << IWP_GEMM_Q4_K | 1 << IWP_GEMM_FILE_Q8_0 |
            1 << IWP_GEMM_FILE_F16 | 1 << IWP_GEMM_FILE_BF16 | 1 << IWP_GEMM_FILE_Q3_K |
            1 << IWP_GEMM_FILE_Q5_K | 1 << IWP_GEMM_FILE_Q6_K | 1 << IWP_GEMM_FILE,
    Q4_0_BYTES = 16 + 128,           /* of 8 columns × 32 k */
    Q4_K_BYTES = 2 * 16 + 96 + 1024, /* of 8 columns × 256 k */
    Q8_0_BYTES = 2 + 32
};
#define BYTES                                                                                      \
    (1 << IWP_GEMM_Q4_0 | 1 << IWP_GEMM_Q4_K | 1 << IWP_GEMM_FILE_Q3_K | 1 << IWP_GEMM_FILE_Q5_K | \
     1 << IWP_GEMM_FILE_Q6_K)
#define ROWS8  pack_rows8
#define LAYOUT "CPU_REPACK"

#include "kern/gemm_bytes.h"
#include "kern/gemm_read_file.h"
#include "kern/gemm_read_k.h"

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

/* For 16 columns with the scales d[b] in n blocks of signed bytes: what these have to be multiplied with, in parts
 * of 256, and the scale of the run then. */
static inline vf join(vf to[RUN], const vf d[RUN], int32_t n) {
    vf s = all(0);
    for (int32_t b = 0; b < n; b++) s += d[b] * d[b];
    const vf scale = roots(s * all(32 * 128 * 128)) * all(1 / NORM);
    const vf f = pick(scale == all(0), all(0), all(256) / scale);
    for (int32_t b = 0; b < n; b++) to[b] = d[b] * f;
    return scale;
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
            const vf scale = join(m, d, n);
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

static void read_tiles(void *to, const struct iwp_gemm_quant *w, int32_t col, int32_t n_cols,
                       int32_t k0, int32_t k) {
    struct iwp_gemm_cols8 *bytes = to;
    uint16_t *panel = to;
    for (int32_t j = 0; j < n_cols; j += 32, panel += size_of(32, (size_t)k), bytes += k / 32) {
        switch (w->form) {
        case IWP_GEMM_Q4_0: read_q4_0(bytes, w, col + j, k0, k); break;
        case IWP_GEMM_Q4_K: read_q4_k(bytes, w, col + j, k0, k); break;
        case IWP_GEMM_FILE_Q3_K: read_q3_k(bytes, w, col + j, k0, k); break;
        case IWP_GEMM_FILE_Q5_K: read_q5_k(bytes, w, col + j, k0, k); break;
        case IWP_GEMM_FILE_Q6_K: read_q6_k(bytes, w, col + j, k0, k); break;
        case IWP_GEMM_FILE_Q8_0: read_q8_0(panel, w, col + j, k0, k); break;
        default: read_floats(panel, w, col + j, k0, k); break;
        }
    }
}
