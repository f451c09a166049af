/* The reference: every kernel in plain C, operation by operation what the vector versions do.
 * Slow where the compiler has to call fmaf(), and kept forever. */
#include <math.h>
#include <string.h>

#include "kern/kern.h"

float iwp_kern_expf(float x) {
    x = x > IWP_EXP_LOW ? x : IWP_EXP_LOW; /* NaN becomes the low end too */
    float n = fmaf(x, IWP_EXP_LOG2E, IWP_EXP_MAGIC) - IWP_EXP_MAGIC;
    float r = fmaf(n, -IWP_EXP_LN2HI, x);
    r = fmaf(n, -IWP_EXP_LN2LO, r);
    float p = fmaf(IWP_EXP_C6, r, IWP_EXP_C5);
    p = fmaf(p, r, IWP_EXP_C4);
    p = fmaf(p, r, IWP_EXP_C3);
    p = fmaf(p, r, IWP_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int32_t bits;
    memcpy(&bits, &p, 4);
    bits += (int32_t)n * (1 << 23);
    memcpy(&p, &bits, 4);
    return p;
}

/* The fixed tree over 16 partial results. */
static float tree(const float *s) {
    float a[16];
    memcpy(a, s, sizeof a);
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++) a[i] = a[i] + a[i + w];
    return a[0];
}

static float dot(const float *x, const float *y, int32_t d) {
    float s[16] = {0};
    for (int32_t t = 0; t < d; t++) s[t % 16] = fmaf(x[t], y[t], s[t % 16]);
    return tree(s);
}

static void dots(float *out, const float *x, const float *q, int64_t stride, int32_t n_q,
                 int32_t d) {
    for (int32_t j = 0; j < n_q; j++) out[j] = dot(x, q + j * stride, d);
}

static float norm2(const float *x, int32_t d) { return dot(x, x, d); }

static void panel_dots(float *out, const float *panel, const float *block, int32_t n_row,
                       int32_t d) {
    for (int32_t r = 0; r < n_row; r++)
        for (int32_t i = 0; i < IWP_PANEL; i++) {
            float s = 0;
            for (int32_t t = 0; t < d; t++)
                s = fmaf(panel[(int64_t)t * IWP_PANEL + i], block[(int64_t)t * n_row + r], s);
            out[(int64_t)r * IWP_PANEL + i] = s;
        }
}

static float exp_shift_sum(float *x, float shift, int32_t n) {
    float s[16] = {0};
    for (int32_t i = 0; i < n; i++) {
        x[i] = iwp_kern_expf(x[i] - shift);
        s[i % 16] = s[i % 16] + x[i];
    }
    return tree(s);
}

static void rbf_row(float *x, const float *kk, const float *a, float b, float scale) {
    for (int i = 0; i < IWP_PANEL; i++) {
        float e = fmaf(2.0f, kk[i], -(a[i] + b)) * scale;
        x[i] = iwp_kern_expf(e >= 0 ? 0 : e);
    }
}

static void dw_row(float *acc, const float *kk, const float *cv, const float *a, float b,
                   float scale) {
    for (int i = 0; i < IWP_PANEL; i++) {
        float e = fmaf(2.0f, kk[i], -(a[i] + b)) * scale;
        float s = cv[i] * iwp_kern_expf(e >= 0 ? 0 : e);
        acc[i] = fmaf(s, s, acc[i]);
    }
}

static void max_row(float *m, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++) m[i] = x[i] > m[i] ? x[i] : m[i];
}

static void f16_to_f32(const uint16_t *src, float *dst, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint32_t h = src[i], sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff, u;
        if (e == 31)
            u = sign | 0x7f800000 | m << 13;
        else if (e)
            u = sign | (e + 112) << 23 | m << 13;
        else { /* subnormal: m 2^-24 is exact in float */
            float f = (float)m * 5.9604644775390625e-8f;
            memcpy(&u, &f, 4);
            u |= sign;
        }
        memcpy(&dst[i], &u, 4);
    }
}

static void to_lanes(float *panel, const float *rows, int64_t stride, int32_t n) {
    for (int32_t t = 0; t < n; t++)
        for (int i = 0; i < IWP_PANEL; i++)
            panel[(int64_t)t * IWP_PANEL + i] = rows[i * stride + t];
}

#include "kern/kern_rows.h"

void iwp_kern_init_c(struct iwp_kern *k) {
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
