/* Vectors of 16 floats for files that are compiled once per instruction set: one register with AVX-512,
 * two with AVX2, whatever the compiler makes of them in plain C. */
#ifndef IWP_KERN_VEC16_H
#define IWP_KERN_VEC16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#define ALWAYS static inline __attribute__((always_inline)) /* what is passed is to be known */

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
typedef uint16_t vhh __attribute__((vector_size(64)));

static inline vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void save(float *p, vf v) { memcpy(p, &v, sizeof v); }
static inline vf all(float x) { return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
static inline vi ints(int32_t x) { return (vi){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
static inline vf pick(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
/* b where one is no number. */
static inline vf larger(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return pick(a > b, a, b);
#endif
}
static inline vf smaller(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return pick(a < b, a, b);
#endif
}

static inline float sum(vf v) {
    float s[16];
    memcpy(s, &v, sizeof s);
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++) s[i] += s[i + w];
    return s[0];
}

/* 16 numbers of binary16. */
static inline vf halves(const void *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__)
    const __m128i *h = (const __m128i *)p;
    const __m256 f[2] = {_mm256_cvtph_ps(_mm_loadu_si128(h)),
                         _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
    vf v;
    memcpy(&v, f, sizeof v);
    return v;
#else
    vf v;
    for (int i = 0; i < 16; i++) {
        uint16_t h;
        memcpy(&h, (const char *)p + 2 * i, sizeof h);
        const int e = h >> 10 & 31, m = h & 1023;
        const float x = e ? ldexpf((float)(m | 1024), e - 25) : ldexpf((float)m, -24);
        v[i] = h & 0x8000 ? -x : x;
    }
    return v;
#endif
}

static inline vf roots(vf v) {
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)v);
#elif defined(__F16C__)
    __m256 h[2];
    memcpy(h, &v, sizeof h);
    for (int i = 0; i < 2; i++) h[i] = _mm256_sqrt_ps(h[i]);
    memcpy(&v, h, sizeof v);
    return v;
#else
    for (int i = 0; i < 16; i++) v[i] = sqrtf(v[i]);
    return v;
#endif
}

/* c + the sums of two neighbouring products of 16-bit numbers. */
static inline vi dot(vi c, vi a, vi b) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpwssd_epi32((__m512i)c, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return c + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    __m256i s[2], x[2], y[2];
    memcpy(s, &c, sizeof s);
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 2; i++)
#if defined(__AVXVNNI__)
        s[i] = _mm256_dpwssd_avx_epi32(s[i], x[i], y[i]);
#else
        s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(x[i], y[i]));
#endif
    memcpy(&c, s, sizeof c);
    return c;
#else
    const vi x = (vi)((vu)a << 16) >> 16, y = (vi)((vu)b << 16) >> 16;
    return c + x * y + (a >> 16) * (b >> 16);
#endif
}

/* To nearest, ties to even; in the upper halves. */
static inline vu round_bf16(vf v) {
    vu u = (vu)v;
    return u + 0x7fff + ((u >> 16) & 1);
}
static inline void save_bf16(uint16_t *p, vf v) {
    vh h = __builtin_convertvector(round_bf16(v) >> 16, vh);
    memcpy(p, &h, sizeof h);
}

/* Two of them in one number, the first in the lower half. */
static inline vu pair_bf16(vf even, vf odd) {
#if defined(__AVX512BF16__)
    static const uint16_t turn[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (vu)_mm512_permutexvar_epi16(_mm512_loadu_si512(turn), both);
#else
    return (round_bf16(odd) & 0xffff0000u) | (round_bf16(even) >> 16);
#endif
}

/* What rounding takes away. */
static inline vf rest(vf v) { return v - (vf)(round_bf16(v) & 0xffff0000u); }

/* 1 / x to about 2^-22, x > 0. */
static inline vf inverse(vf x) {
#if defined(__AVX512F__)
    vf r = (vf)_mm512_rcp14_ps((__m512)x);
    return r * (all(2.0f) - x * r);
#else
    vf r = (vf)(0x7ef311c7 - (vi)x);
    r = r * (all(2.0f) - x * r);
    r = r * (all(2.0f) - x * r);
    return r * (all(2.0f) - x * r);
#endif
}

/* 2^x to 4e-6, for x in [-126, 126] and no other. */
static inline vf power2_within(vf x) {
    const vf magic = all(12582912.0f);
    vf t = x + magic;
    vf f = x - (t - magic);
    vf p = f * all(0.00961813f) + all(0.0555041f);
    p = p * f + all(0.24022651f);
    p = p * f + all(0.69314718f);
    p = p * f + all(1.0f);
    return (vf)((vi)p + ((vi)t << 23));
}

/* The same for any x: beyond, that of the end. */
static inline vf power2(vf x) {
    return power2_within(smaller(larger(x, all(-126.0f)), all(126.0f)));
}

/* The first halves of a and b, element by element in turn; and the second halves. */
static inline vf zip_lower(vf a, vf b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static inline vf zip_upper(vf a, vf b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                   31);
}

/* Rows become columns. */
static inline void transpose16(vf r[16]) {
    for (int round = 0; round < 4; round++) {
        vf t[16];
        for (int i = 0; i < 8; i++) {
            t[2 * i] = zip_lower(r[i], r[i + 8]);
            t[2 * i + 1] = zip_upper(r[i], r[i + 8]);
        }
        memcpy(r, t, sizeof t);
    }
}

static inline vf evens(vf a, vf b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
static inline vf odds(vf a, vf b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

/* Half of the numbers of a and b each, in the order that four rounds of FOLD16 put right: words, pairs and twice
 * quarters of a register, so that no round needs more than one instruction for each. */
static inline vf fold_lower(vf a, vf b, const int round) {
    if (round == 0)
        return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13,
                                       29);
    if (round == 1)
        return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28,
                                       29);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
static inline vf fold_upper(vf a, vf b, const int round) {
    if (round == 0)
        return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15,
                                       31);
    if (round == 1)
        return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                                       31);
    return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30,
                                   31);
}
#define FOLD16(T, R, OP)                                                                           \
    T t[16];                                                                                       \
    memcpy(t, R, sizeof t);                                                                        \
    for (int round = 0; round < 4; round++)                                                        \
        for (int i = 0; i < 8 >> round; i++) {                                                     \
            const vf a = (vf)t[2 * i], b = (vf)t[2 * i + 1]; /* only moved */                      \
            t[i] = OP((T)fold_lower(a, b, round), (T)fold_upper(a, b, round));                     \
        }                                                                                          \
    return t[0]

/* Element i is the sum of r[i]. */
static inline vf plus(vf a, vf b) { return a + b; }
static inline vf sums16(const vf r[16]) { FOLD16(vf, r, plus); }

/* Element i is the largest of r[i]. */
static inline vf tops16(const vf r[16]) { FOLD16(vf, r, larger); }

/* The same of integers. */
static inline vi greater(vi a, vi b) { return (vi)pick(a > b, (vf)a, (vf)b); }
static inline vi greatest16(const vi r[16]) { FOLD16(vi, r, greater); }

/* The lower 16 bits of a, then those of b. */
static inline vhh lower_halves(vu a, vu b) {
    return __builtin_shufflevector((vhh)a, (vhh)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24,
                                   26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56,
                                   58, 60, 62);
}

#endif
