/* AVX-512: see kern.h for the order of operations every variant keeps. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "kern/kern.h"

/* NaN becomes the low end (max returns its second operand), as in the reference. */
static inline __m512 exp16(__m512 x) {
    const __m512 magic = _mm512_set1_ps(IWP_EXP_MAGIC), one = _mm512_set1_ps(1.0f);
    x = _mm512_max_ps(x, _mm512_set1_ps(IWP_EXP_LOW));
    __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(IWP_EXP_LOG2E), magic), magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-IWP_EXP_LN2HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-IWP_EXP_LN2LO), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(IWP_EXP_C6), r, _mm512_set1_ps(IWP_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(IWP_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(IWP_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(IWP_EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    __m512i e = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), e));
}

static inline __mmask16 tail(int32_t n) { return (__mmask16)((1u << n) - 1); }

/* (i, i+8), (i, i+4), (i, i+2), (i, i+1) */
static inline float tree(__m512 s) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_movehdup_ps(b));
    return _mm_cvtss_f32(b);
}

/* The trees of two sums at once: the first steps share one vector. */
static inline void tree2(float *out, __m512 s, __m512 u) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(u), _mm512_extractf32x8_ps(u, 1));
    __m256 c =
        _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    c = _mm256_add_ps(c, _mm256_permute_ps(c, 0x4e));
    c = _mm256_add_ps(c, _mm256_movehdup_ps(c));
    out[0] = _mm256_cvtss_f32(c);
    out[1] = _mm_cvtss_f32(_mm256_extractf128_ps(c, 1));
}

/* R rows against one: R accumulators, each lane a partial sum. */
#define DOTS(R)                                                                                    \
    static inline void dots##R(float *out, const float *x, const float *q, int64_t stride,         \
                               int32_t d) {                                                        \
        __m512 s[8];                                                                               \
        int32_t t = 0;                                                                             \
        _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++) s[r] = _mm512_setzero_ps();            \
        for (; t + 16 <= d; t += 16) {                                                             \
            __m512 v = _mm512_loadu_ps(x + t);                                                     \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) s[r] =                             \
                _mm512_fmadd_ps(v, _mm512_loadu_ps(q + r * stride + t), s[r]);                     \
        }                                                                                          \
        if (t < d) {                                                                               \
            __mmask16 m = tail(d - t);                                                             \
            __m512 v = _mm512_maskz_loadu_ps(m, x + t);                                            \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) s[r] =                             \
                _mm512_mask3_fmadd_ps(v, _mm512_maskz_loadu_ps(m, q + r * stride + t), s[r], m);   \
        }                                                                                          \
        _Pragma("GCC unroll 8") for (int r = 0; r + 1 < R; r += 2) tree2(out + r, s[r], s[r + 1]); \
        if (R % 2) out[R - 1] = tree(s[R - 1]);                                                    \
    }
DOTS(1)
DOTS(2)
DOTS(3)
DOTS(4)
DOTS(5)
DOTS(6)
DOTS(7)
DOTS(8)

static void dots(float *out, const float *x, const float *q, int64_t stride, int32_t n_q,
                 int32_t d) {
    for (; n_q >= 8; n_q -= 8, q += 8 * stride, out += 8) dots8(out, x, q, stride, d);
    switch (n_q) {
    case 7: dots7(out, x, q, stride, d); break;
    case 6: dots6(out, x, q, stride, d); break;
    case 5: dots5(out, x, q, stride, d); break;
    case 4: dots4(out, x, q, stride, d); break;
    case 3: dots3(out, x, q, stride, d); break;
    case 2: dots2(out, x, q, stride, d); break;
    case 1: dots1(out, x, q, stride, d); break;
    default: break;
    }
}

static float norm2(const float *x, int32_t d) {
    __m512 s = _mm512_setzero_ps();
    int32_t t = 0;
    for (; t + 16 <= d; t += 16) {
        __m512 v = _mm512_loadu_ps(x + t);
        s = _mm512_fmadd_ps(v, v, s);
    }
    if (t < d) {
        __mmask16 m = tail(d - t);
        __m512 v = _mm512_maskz_loadu_ps(m, x + t);
        s = _mm512_mask3_fmadd_ps(v, v, s, m);
    }
    return tree(s);
}

/* The trees of 16 sums at once: out[4b + k] is that of s[4k + b].  Two vectors go into each step, so that
 * no lane is idle. */
static inline __m512 tree16(const __m512 *s) {
    __m512 c[8], e[4], f[2];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) c[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0x44),
                      _mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0xee));
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) e[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0x88),
                      _mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0xdd));
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) f[i] =
        _mm512_add_ps(_mm512_shuffle_ps(e[2 * i], e[2 * i + 1], 0x44),
                      _mm512_shuffle_ps(e[2 * i], e[2 * i + 1], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(f[0], f[1], 0x88), _mm512_shuffle_ps(f[0], f[1], 0xdd));
}

/* A few rows ahead, maybe past the end: an address, never a read. */
static inline void ahead(const float *x, int64_t n) {
    _mm_prefetch((const char *)((uintptr_t)x + (uintptr_t)n * sizeof *x), _MM_HINT_T0);
}

/* Two rows against R: every row of q is loaded once for both. */
#define PAIR(R)                                                                                    \
    static inline void pair##R(float *out, int64_t out_stride, const float *x, int64_t x_stride,   \
                               const float *q, int64_t stride, int32_t d) {                        \
        __m512 s[16];                                                                              \
        float o[16];                                                                               \
        int32_t t = 0;                                                                             \
        _Pragma("GCC unroll 16") for (int r = 0; r < 16; r++) s[r] = _mm512_setzero_ps();          \
        for (; t + 16 <= d; t += 16) {                                                             \
            __m512 v = _mm512_loadu_ps(x + t), w = _mm512_loadu_ps(x + x_stride + t);              \
            ahead(x, 4 * x_stride + t);                                                            \
            ahead(x, 5 * x_stride + t);                                                            \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                  \
                __m512 y = _mm512_loadu_ps(q + r * stride + t);                                    \
                s[r] = _mm512_fmadd_ps(v, y, s[r]);                                                \
                s[8 + r] = _mm512_fmadd_ps(w, y, s[8 + r]);                                        \
            }                                                                                      \
        }                                                                                          \
        if (t < d) {                                                                               \
            __mmask16 m = tail(d - t);                                                             \
            __m512 v = _mm512_maskz_loadu_ps(m, x + t),                                            \
                   w = _mm512_maskz_loadu_ps(m, x + x_stride + t);                                 \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                  \
                __m512 y = _mm512_maskz_loadu_ps(m, q + r * stride + t);                           \
                s[r] = _mm512_mask3_fmadd_ps(v, y, s[r], m);                                       \
                s[8 + r] = _mm512_mask3_fmadd_ps(w, y, s[8 + r], m);                               \
            }                                                                                      \
        }                                                                                          \
        _mm512_storeu_ps(o, tree16(s));                                                            \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                      \
            out[r * out_stride] = o[4 * (r % 4) + r / 4];                                          \
            out[r * out_stride + 1] = o[4 * (r % 4) + 2 + r / 4];                                  \
        }                                                                                          \
    }
PAIR(1)
PAIR(2)
PAIR(3)
PAIR(4)
PAIR(5)
PAIR(6)
PAIR(7)
PAIR(8)

static void dots_rows(float *out, int64_t out_stride, const float *x, int64_t x_stride, int32_t n_x,
                      const float *q, int64_t q_stride, int32_t n_q, int32_t d) {
    static void (*const pairs[])(float *, int64_t, const float *, int64_t, const float *, int64_t,
                                 int32_t) = {pair1, pair2, pair3, pair4,
                                             pair5, pair6, pair7, pair8};
    for (int32_t j = 0; j < n_q; j += 8) {
        int32_t n = n_q - j < 8 ? n_q - j : 8, i = 0;
        float *o = out + j * out_stride, last[8];
        for (; i + 2 <= n_x; i += 2)
            pairs[n - 1](o + i, out_stride, x + i * x_stride, x_stride, q + j * q_stride, q_stride,
                         d);
        if (i == n_x) continue;
        dots(last, x + i * x_stride, q + j * q_stride, q_stride, n, d);
        for (int32_t r = 0; r < n; r++) o[r * out_stride + i] = last[r];
    }
}

static void norms2(float *out, const float *x, int64_t stride, int32_t n, int32_t d) {
    int32_t i = 0;
    for (; i + 16 <= n; i += 16, x += 16 * stride) {
        __m512 s[16];
        _Pragma("GCC unroll 16") for (int r = 0; r < 16; r++) { /* out lane 4b + k is s[4k + b] */
            const float *row = x + (4 * (r % 4) + r / 4) * stride;
            int32_t t = 0;
            s[r] = _mm512_setzero_ps();
            for (; t + 16 <= d; t += 16) {
                __m512 v = _mm512_loadu_ps(row + t);
                ahead(row, 16 * stride + t);
                s[r] = _mm512_fmadd_ps(v, v, s[r]);
            }
            if (t < d) {
                __mmask16 m = tail(d - t);
                __m512 v = _mm512_maskz_loadu_ps(m, row + t);
                s[r] = _mm512_mask3_fmadd_ps(v, v, s[r], m);
            }
        }
        _mm512_storeu_ps(out + i, tree16(s));
    }
    for (; i < n; i++, x += stride) out[i] = norm2(x, d);
}

/* 2 vectors of lanes × R rows of accumulators in registers: 24 for R = 12. */
#define TILE(R)                                                                                    \
    static void tile##R(float *out, const float *panel, const float *block, int32_t d) {           \
        __m512 s[R][2];                                                                            \
        _Pragma("GCC unroll 16") for (int r = 0; r < R; r++) s[r][0] = s[r][1] =                   \
            _mm512_setzero_ps();                                                                   \
        for (int32_t t = 0; t < d; t++) {                                                          \
            __m512 a = _mm512_loadu_ps(panel), b = _mm512_loadu_ps(panel + 16);                    \
            _Pragma("GCC unroll 16") for (int r = 0; r < R; r++) {                                 \
                __m512 w = _mm512_set1_ps(block[r]);                                               \
                s[r][0] = _mm512_fmadd_ps(a, w, s[r][0]);                                          \
                s[r][1] = _mm512_fmadd_ps(b, w, s[r][1]);                                          \
            }                                                                                      \
            panel += IWP_PANEL;                                                                    \
            block += R;                                                                            \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int r = 0; r < R; r++) {                                     \
            _mm512_storeu_ps(out + r * IWP_PANEL, s[r][0]);                                        \
            _mm512_storeu_ps(out + r * IWP_PANEL + 16, s[r][1]);                                   \
        }                                                                                          \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)

static void panel_dots(float *out, const float *panel, const float *block, int32_t n_row,
                       int32_t d) {
    static void (*const tiles[])(float *, const float *, const float *, int32_t) = {
        tile1, tile2, tile3, tile4, tile5, tile6, tile7, tile8, tile9, tile10, tile11, tile12};
    if (n_row > 0) tiles[n_row - 1](out, panel, block, d);
}

static float exp_shift_sum(float *x, float shift, int32_t n) {
    __m512 s = _mm512_setzero_ps(), m = _mm512_set1_ps(shift);
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 e = exp16(_mm512_sub_ps(_mm512_loadu_ps(x + i), m));
        _mm512_storeu_ps(x + i, e);
        s = _mm512_add_ps(s, e);
    }
    if (i < n) {
        __mmask16 k = tail(n - i);
        __m512 e = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), m));
        _mm512_mask_storeu_ps(x + i, k, e);
        s = _mm512_mask_add_ps(s, k, s, e);
    }
    return tree(s);
}

static inline __m512 rbf16(const float *kk, const float *a, __m512 b, __m512 scale) {
    __m512 e = _mm512_fmsub_ps(_mm512_set1_ps(2.0f), _mm512_loadu_ps(kk),
                               _mm512_add_ps(_mm512_loadu_ps(a), b));
    e = _mm512_mul_ps(e, scale);
    return exp16(_mm512_min_ps(_mm512_setzero_ps(), e)); /* NaN: the second operand */
}

static void rbf_row(float *x, const float *kk, const float *a, float b, float scale) {
    __m512 vb = _mm512_set1_ps(b), vs = _mm512_set1_ps(scale);
    for (int i = 0; i < IWP_PANEL; i += 16) _mm512_storeu_ps(x + i, rbf16(kk + i, a + i, vb, vs));
}

static void dw_row(float *acc, const float *kk, const float *cv, const float *a, float b,
                   float scale) {
    __m512 vb = _mm512_set1_ps(b), vs = _mm512_set1_ps(scale);
    for (int i = 0; i < IWP_PANEL; i += 16) {
        __m512 s = _mm512_mul_ps(_mm512_loadu_ps(cv + i), rbf16(kk + i, a + i, vb, vs));
        _mm512_storeu_ps(acc + i, _mm512_fmadd_ps(s, s, _mm512_loadu_ps(acc + i)));
    }
}

static void max_row(float *m, const float *x, int32_t n) {
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(m + i, _mm512_max_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(m + i)));
    for (; i < n; i++) m[i] = x[i] > m[i] ? x[i] : m[i];
}

static void f16_to_f32(const uint16_t *src, float *dst, int32_t n) {
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(
            dst + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(src + i))));
    for (; i < n; i++) dst[i] = _cvtsh_ss(src[i]);
}

/* 16 rows of 16 numbers become 16 columns: pairs of 1, 2, 4 and 8 numbers trade places. */
static void to_lanes(float *panel, const float *rows, int64_t stride, int32_t n) {
    int32_t t0 = 0;
    for (; t0 + 16 <= n; t0 += 16)
        for (int half = 0; half < IWP_PANEL; half += 16) {
            __m512 r[16], u[16];
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) r[i] =
                _mm512_loadu_ps(rows + (half + i) * stride + t0);
            _Pragma("GCC unroll 8") for (int i = 0; i < 16; i += 2) {
                u[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
                u[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
            }
            _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4) {
                r[i] = _mm512_shuffle_ps(u[i], u[i + 2], 0x44);
                r[i + 1] = _mm512_shuffle_ps(u[i], u[i + 2], 0xee);
                r[i + 2] = _mm512_shuffle_ps(u[i + 1], u[i + 3], 0x44);
                r[i + 3] = _mm512_shuffle_ps(u[i + 1], u[i + 3], 0xee);
            }
            _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
                __m512 a = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88),
                       b = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
                __m512 c = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd),
                       e = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
                float *p = panel + (int64_t)(t0 + i) * IWP_PANEL + half;
                _mm512_storeu_ps(p, _mm512_shuffle_f32x4(a, b, 0x88));
                _mm512_storeu_ps(p + 4 * IWP_PANEL, _mm512_shuffle_f32x4(c, e, 0x88));
                _mm512_storeu_ps(p + 8 * IWP_PANEL, _mm512_shuffle_f32x4(a, b, 0xdd));
                _mm512_storeu_ps(p + 12 * IWP_PANEL, _mm512_shuffle_f32x4(c, e, 0xdd));
            }
        }
    for (int32_t t = t0; t < n; t++)
        for (int i = 0; i < IWP_PANEL; i++)
            panel[(int64_t)t * IWP_PANEL + i] = rows[i * stride + t];
}

#define IWP_KERN_OWN_ROWS
#include "kern/kern_rows.h"

void iwp_kern_init_avx512(struct iwp_kern *k) {
    init_rows(k);
    k->dots = dots;
    k->norm2 = norm2;
    k->panel_dots = panel_dots;
    k->exp_shift_sum = exp_shift_sum;
    k->dw_row = dw_row;
    k->rbf_row = rbf_row;
    k->max_row = max_row;
    k->f16_to_f32 = f16_to_f32;
    k->to_lanes = to_lanes;
}
#else
typedef int iwp_kern_avx512_empty;
#endif
