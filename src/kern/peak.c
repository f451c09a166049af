/* Loops of independent chains, long enough to hide each instruction's latency; see peak.h. */
#include "kern/peak.h"

#include <math.h>

#include "kern/cpu.h"

static volatile float sink;

const char *iwp_peak_name(enum iwp_peak what) {
    static const char *const name[IWP_PEAK_COUNT] = {"f32 fma",     "f32 fma avx2", "int8 vnni",
                                                     "bf16 avx512", "int8 amx",     "bf16 amx"};
    return name[what];
}

#if defined(__x86_64__)
#include <immintrin.h>

/* The barrier keeps the compiler from folding a round into the next one. */
#define CHAINS(N, TYPE, ZERO, STEP)                                                                \
    TYPE s[N];                                                                                     \
    for (int i = 0; i < N; i++) s[i] = ZERO;                                                       \
    for (int64_t r = 0; r < n; r++) {                                                              \
        _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) {                                     \
            s[i] = STEP;                                                                           \
            __asm__ volatile("" : "+v"(s[i]));                                                     \
        }                                                                                          \
    }

__attribute__((target("avx2,fma"))) static double fma_avx2(int64_t n) {
    const __m256 x = _mm256_set1_ps(1e-3f), y = _mm256_set1_ps(1e-3f);
    CHAINS(12, __m256, _mm256_setzero_ps(), _mm256_fmadd_ps(x, y, s[i]))
    for (int i = 0; i < 12; i++) sink = _mm256_cvtss_f32(s[i]);
    return (double)n * 12 * 8 * 2;
}

__attribute__((target("avx512f"))) static double fma_avx512(int64_t n) {
    const __m512 x = _mm512_set1_ps(1e-3f), y = _mm512_set1_ps(1e-3f);
    CHAINS(16, __m512, _mm512_setzero_ps(), _mm512_fmadd_ps(x, y, s[i]))
    for (int i = 0; i < 16; i++) sink = _mm512_cvtss_f32(s[i]);
    return (double)n * 16 * 16 * 2;
}

__attribute__((target("avx512f,avx512vnni"))) static double vnni(int64_t n) {
    const __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-2);
    CHAINS(16, __m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(s[i], x, y))
    for (int i = 0; i < 16; i++) sink = (float)_mm512_cvtsi512_si32(s[i]);
    return (double)n * 16 * 64 * 2;
}

__attribute__((target("avx512f,avx512bf16"))) static double bf16(int64_t n) {
    const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3f), _mm512_set1_ps(1e-3f));
    CHAINS(16, __m512, _mm512_setzero_ps(), _mm512_dpbf16_ps(s[i], x, x))
    for (int i = 0; i < 16; i++) sink = _mm512_cvtss_f32(s[i]);
    return (double)n * 16 * 32 * 2;
}

struct tiles {
    uint8_t palette, start, zero[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

#define TILE_LOOP(OP)                                                                              \
    const struct tiles all = {.palette = 1,                                                        \
                              .colsb = {64, 64, 64, 64, 64, 64, 64, 64},                           \
                              .rows = {16, 16, 16, 16, 16, 16, 16, 16}};                           \
    struct tiles before;                                                                           \
    _tile_storeconfig(&before);                                                                    \
    _tile_loadconfig(&all);                                                                        \
    _tile_zero(0);                                                                                 \
    _tile_zero(1);                                                                                 \
    _tile_zero(2);                                                                                 \
    _tile_zero(3);                                                                                 \
    _tile_zero(4);                                                                                 \
    _tile_zero(5);                                                                                 \
    _tile_zero(6);                                                                                 \
    _tile_zero(7);                                                                                 \
    for (int64_t r = 0; r < n; r++) {                                                              \
        OP(0, 4, 6);                                                                               \
        OP(1, 4, 7);                                                                               \
        OP(2, 5, 6);                                                                               \
        OP(3, 5, 7);                                                                               \
    }                                                                                              \
    _tile_loadconfig(&before)

__attribute__((target("amx-tile,amx-int8"))) static double amx_int8(int64_t n) {
    TILE_LOOP(_tile_dpbssd);
    return (double)n * 4 * 16 * 16 * 64 * 2;
}

__attribute__((target("amx-tile,amx-bf16"))) static double amx_bf16(int64_t n) {
    TILE_LOOP(_tile_dpbf16ps);
    return (double)n * 4 * 16 * 16 * 32 * 2;
}

double iwp_peak_run(enum iwp_peak what, int64_t n) {
    const unsigned f = iwp_cpu_features_all();
#if defined(IWP_EMULATE_TILES)
    if (what == IWP_PEAK_AMX_BF16) return 0; /* there are no tiles */
#endif
    switch (what) {
    case IWP_PEAK_FMA:
        if (f & IWP_CPU_AVX512) return fma_avx512(n);
        if (f & IWP_CPU_AVX2) return fma_avx2(n);
        break;
    case IWP_PEAK_FMA_AVX2: return f & IWP_CPU_AVX2 ? fma_avx2(n) : 0;
    case IWP_PEAK_VNNI: return f & IWP_CPU_VNNI ? vnni(n) : 0;
    case IWP_PEAK_BF16: return f & IWP_CPU_BF16 ? bf16(n) : 0;
    case IWP_PEAK_AMX_INT8: return f & IWP_CPU_AMX_INT8 ? amx_int8(n) : 0;
    case IWP_PEAK_AMX_BF16: return f & IWP_CPU_AMX_BF16 ? amx_bf16(n) : 0;
    default: break;
    }
    if (what != IWP_PEAK_FMA) return 0;
#else
double iwp_peak_run(enum iwp_peak what, int64_t n) {
    if (what != IWP_PEAK_FMA) return 0;
#endif
    float s[64];
    for (int i = 0; i < 64; i++) s[i] = (float)i;
    const float x = 1e-3f * (float)(n & 1), y = 1e-3f;
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < 64; i++) s[i] = s[i] * x + y;
    for (int i = 0; i < 64; i++) sink = s[i];
    return (double)n * 64 * 2;
}

uint64_t iwp_peak_read(const void *p, size_t n) {
    const uint64_t *v = p;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= n / 8; i += 8)
        for (int k = 0; k < 8; k++) s[k] ^= v[i + (size_t)k];
    return s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}
