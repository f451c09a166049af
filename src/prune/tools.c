/* Small tools shared by the method files: scratch memory, parallel loops, row access, ordering,
 * exp and log.  Everything here is plain C compiled once, so that it cannot differ between CPUs. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/method.h"

void *iwp_arena_take(struct iwp_arena *a, size_t n, size_t size) {
    const size_t align = 64;
    size_t at = (a->used + align - 1) & ~(align - 1);
    size_t bytes = n * size;
    if (n && bytes / n != size)
        bytes = SIZE_MAX / 4; /* cannot fit: the workspace check refuses it */
    if (bytes > SIZE_MAX / 4 || at > SIZE_MAX / 4) {
        a->used = SIZE_MAX / 4;
        return NULL;
    }
    a->used = at + bytes;
    return a->base && a->used <= a->cap ? a->base + at : NULL;
}

void iwp_parallel(const struct iwp_exec *exec, void (*fn)(void *arg, int32_t i), void *arg,
                  int32_t n) {
    if (exec && exec->run && exec->n_thread > 1 && n > 1) {
        exec->run(exec->ctx, fn, arg, n);
        return;
    }
    for (int32_t i = 0; i < n; i++) fn(arg, i);
}

const float *iwp_array_row(const struct iwp_array *a, int32_t row, int32_t head, float *tmp) {
    int64_t at = (int64_t)row * a->row_stride + (int64_t)head * a->head_stride;
    if (a->dtype == IWP_DTYPE_F32) return (const float *)a->data + at;
    const uint16_t *src = (const uint16_t *)a->data + at;
    if (a->dtype == IWP_DTYPE_F16)
        iwp_kern_get()->f16_to_f32(src, tmp, a->n_dim);
    else
        for (int32_t t = 0; t < a->n_dim; t++) {
            uint32_t u = (uint32_t)src[t] << 16;
            memcpy(&tmp[t], &u, 4);
        }
    return tmp;
}

/* Better: larger score, then lower index.  NaN never gets here. */
static inline int better(const double *s, int32_t a, int32_t b) {
    return s[a] > s[b] || (s[a] == s[b] && a < b);
}

/* A heap whose root is the worst of the best k so far. */
static void sift(const double *s, int32_t *h, int32_t n, int32_t i) {
    for (;;) {
        int32_t c = 2 * i + 1;
        if (c >= n) return;
        if (c + 1 < n && better(s, h[c], h[c + 1])) c++;
        if (better(s, h[c], h[i])) return;
        int32_t t = h[i];
        h[i] = h[c];
        h[c] = t;
        i = c;
    }
}

void iwp_top_k(const double *score, int32_t *idx, int32_t n, int32_t k) {
    if (k > n) k = n;
    if (k <= 0) return;
    for (int32_t i = k / 2 - 1; i >= 0; i--) sift(score, idx, k, i);
    for (int32_t i = k; i < n; i++) {
        if (!better(score, idx[i], idx[0])) continue;
        int32_t t = idx[0];
        idx[0] = idx[i];
        idx[i] = t;
        sift(score, idx, k, 0);
    }
    for (int32_t m = k - 1; m > 0; m--) { /* worst to the back */
        int32_t t = idx[0];
        idx[0] = idx[m];
        idx[m] = t;
        sift(score, idx, m, 0);
    }
}

/* exp(x) = 2^n exp(r), |r| ≤ ln2/2, Taylor to r^13 (error below 1 ulp or so; ample for scores). */
double iwp_math_exp(double x) {
    if (!(x > -745.2)) return x == x ? 0.0 : x;
    if (x > 709.7) return INFINITY;
    double n = floor(x * 1.4426950408889634074 + 0.5);
    double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    static const double inv[] = {1.0 / 479001600.0,
                                 1.0 / 39916800.0,
                                 1.0 / 3628800.0,
                                 1.0 / 362880.0,
                                 1.0 / 40320.0,
                                 1.0 / 5040.0,
                                 1.0 / 720.0,
                                 1.0 / 120.0,
                                 1.0 / 24.0,
                                 1.0 / 6.0,
                                 0.5,
                                 1.0,
                                 1.0};
    for (int i = 0; i < 13; i++) p = p * r + inv[i];
    return ldexp(p, (int)n);
}

/* log(x) = e ln2 + 2 atanh((m-1)/(m+1)), m in [sqrt(1/2), sqrt(2)).  Runs once per token and
 * penalty, hence the bits by hand instead of frexp(). */
double iwp_math_log(double x) {
    static const double c[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                               1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    if (!(x > 0)) return x == x ? -INFINITY : x;
    if (x > DBL_MAX) return INFINITY;
    int64_t bits, e = 0;
    if (x < DBL_MIN) { /* subnormal */
        x *= 18014398509481984.0;
        e = -54;
    }
    memcpy(&bits, &x, 8);
    e += (bits >> 52) - 1022;
    bits = (bits & 0xfffffffffffffLL) | 0x3fe0000000000000LL; /* m in [0.5, 1) */
    double m;
    memcpy(&m, &bits, 8);
    if (m < 0.70710678118654752440) {
        m *= 2;
        e--;
    }
    double z = (m - 1) / (m + 1), z2 = z * z, p = c[0];
    for (int i = 1; i < 12; i++) p = p * z2 + c[i];
    return (double)e * 0.69314718055994530942 + 2 * z * p;
}
