/* NEON (aarch64): see kern.h for the order of operations every variant keeps.  16 partial results
 * are four vectors of 4; tails are finished on the stored partial results, one number at a time. */
#if defined(__aarch64__)
#include <arm_neon.h>
#include <math.h>

#include "kern/kern.h"

/* max and min of NEON return NaN; the reference returns the other operand. */
static inline float32x4_t exp4(float32x4_t x) {
    const float32x4_t magic = vdupq_n_f32(IWP_EXP_MAGIC), low = vdupq_n_f32(IWP_EXP_LOW),
                      one = vdupq_n_f32(1.0f);
    x = vbslq_f32(vcgtq_f32(x, low), x, low);
    float32x4_t n = vsubq_f32(vfmaq_f32(magic, x, vdupq_n_f32(IWP_EXP_LOG2E)), magic);
    float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-IWP_EXP_LN2HI));
    r = vfmaq_f32(r, n, vdupq_n_f32(-IWP_EXP_LN2LO));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(IWP_EXP_C5), vdupq_n_f32(IWP_EXP_C6), r);
    p = vfmaq_f32(vdupq_n_f32(IWP_EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(IWP_EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(IWP_EXP_C2), p, r);
    p = vfmaq_f32(one, p, r);
    p = vfmaq_f32(one, p, r);
    int32x4_t e = vshlq_n_s32(vcvtq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), e));
}

/* s[0]: partial results 0-3, s[1]: 4-7, s[2]: 8-11, s[3]: 12-15. */
static inline float tree(const float32x4_t *s) {
    float32x4_t a = vaddq_f32(vaddq_f32(s[0], s[2]), vaddq_f32(s[1], s[3]));
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}

static float dot(const float *x, const float *y, int32_t d) {
    float32x4_t s[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    int32_t t = 0;
    for (; t + 16 <= d; t += 16)
        for (int i = 0; i < 4; i++)
            s[i] = vfmaq_f32(s[i], vld1q_f32(x + t + 4 * i), vld1q_f32(y + t + 4 * i));
    if (t < d) {
        float part[16];
        for (int i = 0; i < 4; i++) vst1q_f32(part + 4 * i, s[i]);
        for (int i = 0; t < d; t++, i++) part[i] = fmaf(x[t], y[t], part[i]);
        for (int i = 0; i < 4; i++) s[i] = vld1q_f32(part + 4 * i);
    }
    return tree(s);
}

static void dots(float *out, const float *x, const float *q, int64_t stride, int32_t n_q,
                 int32_t d) {
    for (int32_t j = 0; j < n_q; j++) out[j] = dot(x, q + j * stride, d);
}

static float norm2(const float *x, int32_t d) { return dot(x, x, d); }

/* 4 vectors of lanes × R ≤ 4 rows: 16 accumulators of the 32 registers. */
#define TILE(R)                                                                                    \
    static void tile##R(float *out, const float *panel, const float *block, int32_t stride,        \
                        int32_t d) {                                                               \
        float32x4_t s[R][4];                                                                       \
        for (int r = 0; r < R; r++)                                                                \
            for (int i = 0; i < 4; i++) s[r][i] = vdupq_n_f32(0);                                  \
        for (int32_t t = 0; t < d; t++) {                                                          \
            float32x4_t a[4];                                                                      \
            for (int i = 0; i < 4; i++) a[i] = vld1q_f32(panel + 4 * i);                           \
            for (int r = 0; r < R; r++) {                                                          \
                float32x4_t w = vdupq_n_f32(block[r]);                                             \
                for (int i = 0; i < 4; i++) s[r][i] = vfmaq_f32(s[r][i], a[i], w);                 \
            }                                                                                      \
            panel += IWP_PANEL;                                                                    \
            block += stride;                                                                       \
        }                                                                                          \
        for (int r = 0; r < R; r++)                                                                \
            for (int i = 0; i < 4; i++) vst1q_f32(out + r * IWP_PANEL + 4 * i, s[r][i]);           \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)

static void panel_dots(float *out, const float *panel, const float *block, int32_t n_row,
                       int32_t d) {
    static void (*const tiles[])(float *, const float *, const float *, int32_t,
                                 int32_t) = {tile1, tile2, tile3, tile4};
    for (int32_t r = 0; r < n_row; r += 4)
        for (int half = 0; half < 2; half++) {
            int32_t rows = n_row - r < 4 ? n_row - r : 4;
            tiles[rows - 1](out + r * IWP_PANEL + 16 * half, panel + 16 * half, block + r, n_row,
                            d);
        }
}

static float exp_shift_sum(float *x, float shift, int32_t n) {
    float32x4_t s[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)},
                m = vdupq_n_f32(shift);
    int32_t t = 0;
    for (; t + 16 <= n; t += 16)
        for (int i = 0; i < 4; i++) {
            float32x4_t e = exp4(vsubq_f32(vld1q_f32(x + t + 4 * i), m));
            vst1q_f32(x + t + 4 * i, e);
            s[i] = vaddq_f32(s[i], e);
        }
    if (t < n) {
        float part[16];
        for (int i = 0; i < 4; i++) vst1q_f32(part + 4 * i, s[i]);
        for (int i = 0; t < n; t++, i++) {
            x[t] = iwp_kern_expf(x[t] - shift);
            part[i] = part[i] + x[t];
        }
        for (int i = 0; i < 4; i++) s[i] = vld1q_f32(part + 4 * i);
    }
    return tree(s);
}

static inline float32x4_t rbf4(const float *kk, const float *a, float32x4_t b, float32x4_t scale) {
    const float32x4_t zero = vdupq_n_f32(0);
    float32x4_t e =
        vfmaq_f32(vnegq_f32(vaddq_f32(vld1q_f32(a), b)), vdupq_n_f32(2.0f), vld1q_f32(kk));
    e = vmulq_f32(e, scale);
    return exp4(vbslq_f32(vcgeq_f32(e, zero), zero, e)); /* NaN goes on to the low end */
}

static void rbf_row(float *x, const float *kk, const float *a, float b, float scale) {
    float32x4_t vb = vdupq_n_f32(b), vs = vdupq_n_f32(scale);
    for (int i = 0; i < IWP_PANEL; i += 4) vst1q_f32(x + i, rbf4(kk + i, a + i, vb, vs));
}

static void dw_row(float *acc, const float *kk, const float *cv, const float *a, float b,
                   float scale) {
    float32x4_t vb = vdupq_n_f32(b), vs = vdupq_n_f32(scale);
    for (int i = 0; i < IWP_PANEL; i += 4) {
        float32x4_t s = vmulq_f32(vld1q_f32(cv + i), rbf4(kk + i, a + i, vb, vs));
        vst1q_f32(acc + i, vfmaq_f32(vld1q_f32(acc + i), s, s));
    }
}

static void max_row(float *m, const float *x, int32_t n) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t a = vld1q_f32(m + i), b = vld1q_f32(x + i);
        vst1q_f32(m + i, vbslq_f32(vcgtq_f32(b, a), b, a));
    }
    for (; i < n; i++) m[i] = x[i] > m[i] ? x[i] : m[i];
}

static void f16_to_f32(const uint16_t *src, float *dst, int32_t n) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(dst + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src + i))));
    for (; i < n; i++)
        dst[i] = vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(src[i]))), 0);
}

#include "kern/kern_rows.h"

void iwp_kern_init_neon(struct iwp_kern *k) {
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
typedef int iwp_kern_neon_empty;
#endif
