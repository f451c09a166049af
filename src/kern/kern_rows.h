/* Kernels over many rows, in terms of the including file's own dots(), norm2() and exp_shift_sum():
 * each kern_*.c includes this after them, and the compiler uses that file's instructions.
 * IWP_KERN_OWN_ROWS: the file has its own dots_rows() and norms2(). */
#include "kern/kern.h"

#ifndef IWP_KERN_OWN_ROWS
static void dots_rows(float *out, int64_t out_stride, const float *x, int64_t x_stride, int32_t n_x,
                      const float *q, int64_t q_stride, int32_t n_q, int32_t d) {
    float s[16];
    for (int32_t i = 0; i < n_x; i++)
        for (int32_t j0 = 0; j0 < n_q; j0 += 16) {
            int32_t n = n_q - j0 < 16 ? n_q - j0 : 16;
            dots(s, x + i * x_stride, q + j0 * q_stride, q_stride, n, d);
            for (int32_t j = 0; j < n; j++) out[(j0 + j) * out_stride + i] = s[j];
        }
}

static void norms2(float *out, const float *x, int64_t stride, int32_t n, int32_t d) {
    for (int32_t i = 0; i < n; i++) out[i] = norm2(x + i * stride, d);
}
#endif

static float max_of(const float *x, int32_t n) {
    float m[16], top = -INFINITY;
    int32_t i = 0;
    for (int l = 0; l < 16; l++) m[l] = -INFINITY;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) m[l] = x[i + l] > m[l] ? x[i + l] : m[l];
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int l = 0; l < 16; l++) top = m[l] > top ? m[l] : top;
    return top;
}

static void head_top(float *top, const float *logit, double offset, const float *weight,
                     int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float e = (float)((double)logit[i] - offset);
        e = !weight || weight[i] > 0 ? e : -INFINITY;
        top[i] = e > top[i] ? e : top[i];
    }
}

static void head_sum(float *sum, const float *top, const float *logit, double offset,
                     const float *weight, int32_t n) {
    float e[64];
    for (int32_t i0 = 0; i0 < n; i0 += 64) {
        int32_t c = n - i0 < 64 ? n - i0 : 64;
        for (int32_t i = 0; i < c; i++) {
            float x = (float)((double)logit[i0 + i] - offset) - top[i0 + i];
            e[i] = x < 0 ? x : 0; /* NaN (no head counts) becomes 0, and is not used */
        }
        exp_shift_sum(e, 0, c);
        if (weight)
            for (int32_t i = 0; i < c; i++) sum[i0 + i] = sum[i0 + i] + e[i] * weight[i0 + i];
        else
            for (int32_t i = 0; i < c; i++) sum[i0 + i] = sum[i0 + i] + e[i];
    }
}

static void init_rows(struct iwp_kern *k) {
    k->dots_rows = dots_rows;
    k->norms2 = norms2;
    k->max_of = max_of;
    k->head_top = head_top;
    k->head_sum = head_sum;
}
