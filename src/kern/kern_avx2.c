/* AVX2 + FMA: see kern.h for the order of operations every variant keeps.  16 partial results are
 * two vectors of 8. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "kern/kern.h"

static inline __m256 exp8(__m256 x) {
    const __m256 magic = _mm256_set1_ps(IWP_EXP_MAGIC), one = _mm256_set1_ps(1.0f);
    x = _mm256_max_ps(x, _mm256_set1_ps(IWP_EXP_LOW)); /* NaN becomes the low end */
    __m256 n = _mm256_sub_ps(_mm256_fmadd_ps(x, _mm256_set1_ps(IWP_EXP_LOG2E), magic), magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-IWP_EXP_LN2HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-IWP_EXP_LN2LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(IWP_EXP_C6), r, _mm256_set1_ps(IWP_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(IWP_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(IWP_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(IWP_EXP_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

static inline __m256i tail(int32_t n) { /* the first n of 8 lanes */
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* lo: partial results 0-7, hi: 8-15. */
static inline float tree(__m256 lo, __m256 hi) {
    __m256 a = _mm256_add_ps(lo, hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_movehdup_ps(b));
    return _mm_cvtss_f32(b);
}

static float dot(const float *x, const float *y, int32_t d) {
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    int32_t t = 0;
    for (; t + 16 <= d; t += 16) {
        lo = _mm256_fmadd_ps(_mm256_loadu_ps(x + t), _mm256_loadu_ps(y + t), lo);
        hi = _mm256_fmadd_ps(_mm256_loadu_ps(x + t + 8), _mm256_loadu_ps(y + t + 8), hi);
    }
    /* fma(0, 0, s) = s except for the sign of zero, which no sum shows (the other lanes start at +0) */
    if (t < d) {
        __m256i m = tail(d - t);
        lo = _mm256_fmadd_ps(_mm256_maskload_ps(x + t, m), _mm256_maskload_ps(y + t, m), lo);
        if (d - t > 8) {
            m = tail(d - t - 8);
            hi = _mm256_fmadd_ps(_mm256_maskload_ps(x + t + 8, m), _mm256_maskload_ps(y + t + 8, m),
                                 hi);
        }
    }
    return tree(lo, hi);
}

static void dots(float *out, const float *x, const float *q, int64_t stride, int32_t n_q,
                 int32_t d) {
    for (int32_t j = 0; j < n_q; j++) out[j] = dot(x, q + j * stride, d);
}

static float norm2(const float *x, int32_t d) { return dot(x, x, d); }

/* 2 vectors of lanes × R ≤ 6 rows; a block row is `stride` floats apart in t. */
#define TILE(R)                                                                                    \
    static void tile##R(float *out, const float *panel, const float *block, int32_t stride,        \
                        int32_t d) {                                                               \
        __m256 s[R][2];                                                                            \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) s[r][0] = s[r][1] =                    \
            _mm256_setzero_ps();                                                                   \
        for (int32_t t = 0; t < d; t++) {                                                          \
            __m256 a = _mm256_loadu_ps(panel), b = _mm256_loadu_ps(panel + 8);                     \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                  \
                __m256 w = _mm256_broadcast_ss(block + r);                                         \
                s[r][0] = _mm256_fmadd_ps(a, w, s[r][0]);                                          \
                s[r][1] = _mm256_fmadd_ps(b, w, s[r][1]);                                          \
            }                                                                                      \
            panel += IWP_PANEL;                                                                    \
            block += stride;                                                                       \
        }                                                                                          \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                      \
            _mm256_storeu_ps(out + r * IWP_PANEL, s[r][0]);                                        \
            _mm256_storeu_ps(out + r * IWP_PANEL + 8, s[r][1]);                                    \
        }                                                                                          \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

static void panel_dots(float *out, const float *panel, const float *block, int32_t n_row,
                       int32_t d) {
    static void (*const tiles[])(float *, const float *, const float *, int32_t,
                                 int32_t) = {tile1, tile2, tile3, tile4, tile5, tile6};
    for (int32_t r = 0; r < n_row; r += 6)
        for (int half = 0; half < 2; half++) {
            int32_t rows = n_row - r < 6 ? n_row - r : 6;
            tiles[rows - 1](out + r * IWP_PANEL + 16 * half, panel + 16 * half, block + r, n_row,
                            d);
        }
}

static float exp_shift_sum(float *x, float shift, int32_t n) {
    __m256 lo = _mm256_setzero_ps(), hi = lo, m = _mm256_set1_ps(shift);
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), m));
        __m256 b = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), m));
        _mm256_storeu_ps(x + i, a);
        _mm256_storeu_ps(x + i + 8, b);
        lo = _mm256_add_ps(lo, a);
        hi = _mm256_add_ps(hi, b);
    }
    for (int half = 0; half < 2 && i < n; half++, i += 8) {
        __m256i k = tail(n - i);
        __m256 e = exp8(_mm256_sub_ps(_mm256_maskload_ps(x + i, k), m));
        _mm256_maskstore_ps(x + i, k, e);
        e = _mm256_and_ps(e, _mm256_castsi256_ps(k)); /* +0 added to a sum of positive numbers */
        if (half)
            hi = _mm256_add_ps(hi, e);
        else
            lo = _mm256_add_ps(lo, e);
    }
    return tree(lo, hi);
}

static inline __m256 rbf8(const float *kk, const float *a, __m256 b, __m256 scale) {
    __m256 e = _mm256_fmsub_ps(_mm256_set1_ps(2.0f), _mm256_loadu_ps(kk),
                               _mm256_add_ps(_mm256_loadu_ps(a), b));
    e = _mm256_mul_ps(e, scale);
    return exp8(_mm256_min_ps(_mm256_setzero_ps(), e)); /* NaN: the second operand */
}

static void rbf_row(float *x, const float *kk, const float *a, float b, float scale) {
    __m256 vb = _mm256_set1_ps(b), vs = _mm256_set1_ps(scale);
    for (int i = 0; i < IWP_PANEL; i += 8) _mm256_storeu_ps(x + i, rbf8(kk + i, a + i, vb, vs));
}

static void dw_row(float *acc, const float *kk, const float *cv, const float *a, float b,
                   float scale) {
    __m256 vb = _mm256_set1_ps(b), vs = _mm256_set1_ps(scale);
    for (int i = 0; i < IWP_PANEL; i += 8) {
        __m256 s = _mm256_mul_ps(_mm256_loadu_ps(cv + i), rbf8(kk + i, a + i, vb, vs));
        _mm256_storeu_ps(acc + i, _mm256_fmadd_ps(s, s, _mm256_loadu_ps(acc + i)));
    }
}

static void max_row(float *m, const float *x, int32_t n) {
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(m + i, _mm256_max_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(m + i)));
    for (; i < n; i++) m[i] = x[i] > m[i] ? x[i] : m[i];
}

static void f16_to_f32(const uint16_t *src, float *dst, int32_t n) {
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(
            dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    for (; i < n; i++) dst[i] = _cvtsh_ss(src[i]);
}

#include "kern/kern_rows.h"

void iwp_kern_init_avx2(struct iwp_kern *k) {
    init_rows(k);
    k->dots = dots;
    k->norm2 = norm2;
    k->panel_dots = panel_dots;
    k->exp_shift_sum = exp_shift_sum;
    k->dw_row = dw_row;
    k->rbf_row = rbf_row;
    k->max_row = max_row;
    k->f16_to_f32 = f16_to_f32;
}
#else
typedef int iwp_kern_avx2_empty;
#endif
