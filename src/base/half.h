/* 16-bit floats to and from binary32, in plain C: exact one way, round-half-even the other.
 * For files and tests; hot paths have their own kernels in src/kern. */
#ifndef IWP_BASE_HALF_H
#define IWP_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float iwp_bits_to_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t iwp_f32_to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float iwp_bf16_to_f32(uint16_t h) { return iwp_bits_to_f32((uint32_t)h << 16); }

static inline float iwp_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu;
    if (exp == 31) return iwp_bits_to_f32(sign | 0x7f800000u | man << 13);
    if (exp) return iwp_bits_to_f32(sign | (exp + 112) << 23 | man << 13);
    float tiny = (float)man * 0x1p-24f; /* subnormal or zero, exact in binary32 */
    return sign ? -tiny : tiny;
}

static inline uint16_t iwp_f32_to_bf16(float f) {
    uint32_t u = iwp_f32_to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline uint16_t iwp_f32_to_f16(float f) {
    uint32_t u = iwp_f32_to_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or above */
    if (a >= 0x38800000u) {                                  /* normal */
        a -= 0x38000000u;
        return (uint16_t)(sign | (a + 0xfffu + (a >> 13 & 1)) >> 13);
    }
    if (a < 0x33000000u) return (uint16_t)sign; /* below half of the smallest subnormal */
    uint32_t shift = 126 - (a >> 23), man = (a & 0x7fffffu) | 0x800000u;
    uint32_t half = 1u << (shift - 1), low = man & ((half << 1) - 1), r = man >> shift;
    r += low > half || (low == half && (r & 1));
    return (uint16_t)(sign | r);
}

#endif
