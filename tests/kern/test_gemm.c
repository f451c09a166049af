/* Every operation of struct iwp_gemm on every path of this CPU against double arithmetic, for sizes around
 * the block of 32 and the towers' real widths.
 *
 * Bounds.  tile: the operands are packed already, so only f32 sums differ: 1e-5 of the sum of |products|.
 * Everything else rounds factors.  To bf16 (at most 2^-9 each): the error of a result is below 2^-7 of the
 * sum of |products|, and over a whole array relative L2 below 0.5 % (0.7 % in attention with heads of 8, a
 * small sample); split ones 2^-15 and 0.005 %.  To integers (at most 2^-12 of the largest of 128): 2^-11 and
 * 0.03 %, in attention, which rounds its weights too, 0.04 %.  To bytes, the rows of q4_0 and q3_K to q6_K
 * weights alone: to the nearest of 127 parts of the largest of 32; with rows so rounded only f32 sums differ.
 * `--bench` prints GFLOP/s of each path instead. */
#include "test.h"

#include <time.h>

#include "kern/gemm.h"

static const char *const paths[] = {"c", "c16", "avx2", "avxvnni", "avx512", "vnni", "amx"};
static uint64_t seed = 0x77;

static void *room(size_t n) {
    void *p = NULL;
    if (posix_memalign(&p, 64, n + 64) != 0) abort();
    memset(p, 0xa5, n + 64);
    return p;
}

static float *normals(size_t n, float scale) {
    float *x = room(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = scale * test_normal(&seed);
    return x;
}

static double relative(const float *got, const double *want, size_t n) {
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        e += (got[i] - want[i]) * (got[i] - want[i]);
        s += want[i] * want[i];
    }
    return sqrt(e / (s > 0 ? s : 1));
}

/* ---- the 32 × 32 product --------------------------------------------------------------------- */

/* n blocks of random numbers, scales too, the same for a run; some of the integers, or all, are the largest
 * there can be so many of. */
static void random_blocks(const struct iwp_gemm *g, uint16_t *to, int32_t n, bool large) {
    const int most = 4092; /* 46300 / sqrt(128) */
    for (int32_t b = 0; b < n; b++, to += g->block) {
        for (int i = 0; i < 1024; i++) {
            const float x = test_normal(&seed);
            if (g->fine)
                to[i] = (uint16_t)(large || i % 7 == 0
                                       ? most
                                       : (int)(test_rand(&seed) % (2 * (unsigned)most)) - most);
            else
                memcpy(&to[i], (const char *)&x + 2, 2);
        }
        for (int i = 0; i < 32 && g->fine; i++) {
            const float x = 0.5f + (float)(test_rand(&seed) % 100);
            if (b % g->run)
                memcpy(to + 1024 + 2 * i, to - g->block + 1024 + 2 * i, sizeof x);
            else
                memcpy(to + 1024 + 2 * i, &x, sizeof x);
        }
    }
}

/* Number i of a block, which belongs to row or column r. */
static double number(const struct iwp_gemm *g, const uint16_t *block, int i, int r) {
    return (double)iwp_gemm_number(g, block, i, r);
}

static void check_tile(const struct iwp_gemm *g) {
    static const int32_t steps[] = {1, 2, 3, 36, 107};
    for (size_t t = 0; t < sizeof steps / sizeof *steps; t++)
        for (int add = 0; add < 2; add++) {
            const size_t n = (size_t)(steps[t] * g->block);
            uint16_t *a = room(2 * n), *b = room(2 * n);
            float *c = normals(1024, 1), before[1024];
            memcpy(before, c, sizeof before);
            random_blocks(g, a, steps[t], steps[t] == 36);
            random_blocks(g, b, steps[t], steps[t] == 36);
            g->tile(c, a, b, steps[t], add, NULL);
            int bad = 0;
            for (int r = 0; r < 32; r++)
                for (int j = 0; j < 32; j++) {
                    double s = add ? (double)before[r * 32 + j] : 0, m = fabs(s);
                    for (int32_t k = 0; k < steps[t] * 32; k++) {
                        const size_t block = (size_t)(k / 32 * g->block);
                        const int i = k % 32;
                        const double p =
                            number(g, a + block, r * 32 + i, r) *
                            number(g, b + block, j / 16 * 512 + i / 2 * 32 + j % 16 * 2 + i % 2, j);
                        s += p;
                        m += fabs(p);
                    }
                    bad += !(fabs(c[r * 32 + j] - s) <= 1e-5 * m);
                }
            CHECK_MSG(bad == 0, "%s tile of %d steps, add %d: %d of 1024 off", g->name, steps[t],
                      add, bad);
            free(a);
            free(b);
            free(c);
        }
}

/* ---- linear and MLP --------------------------------------------------------------------------- */

static bool split; /* how the next checks pack */

/* Of bf16's bound of relative L2. */
static double share(const struct iwp_gemm *g) { return g->fine ? 0.06 : split ? 0.01 : 1; }

static uint16_t half_of(double x) { /* to nearest; |x| below 65504 */
    int e;
    frexp(x, &e);
    if (e < -13) e = -13;
    const int m = (int)lrint(ldexp(fabs(x), 11 - e)); /* 1024 and more where the number is normal */
    return (uint16_t)((x < 0 ? 0x8000 : 0) + (m < 1024 ? m : ((e + 13) << 10) + m));
}

static double of_half(uint16_t h) {
    const int e = h >> 10 & 31, m = h & 1023;
    return (h & 0x8000 ? -1 : 1) * (e ? ldexp(m + 1024, e - 25) : ldexp(m, -24));
}

/* For split products w is rounded to f16 first: that is what they take. */
static uint16_t *pack(const struct iwp_gemm *g, float *w, int32_t m, int32_t k) {
    const size_t n = (size_t)m * (size_t)k;
    uint16_t *p = room(iwp_gemm_size(g, (size_t)m, (size_t)k) * 2), *h = room(n * 2);
    for (size_t i = 0; split && i < n; i++) {
        h[i] = half_of((double)w[i]);
        w[i] = (float)of_half(h[i]);
    }
    for (int32_t i = 0; i < m; i += 32) {
        const int32_t cols = m - i < 32 ? m - i : 32;
        uint16_t *to = p + iwp_gemm_size(g, (size_t)i, (size_t)k);
        if (split)
            g->pack_halves(to, h + (size_t)i * (size_t)k, k, cols, k);
        else
            g->pack_cols(to, w + (size_t)i * (size_t)k, k, cols, k);
    }
    free(h);
    return p;
}

static double act(double x, enum iwp_gemm_act a) {
    switch (a) {
    case IWP_GEMM_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case IWP_GEMM_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    case IWP_GEMM_GELU_ERF: return 0.5 * x * (1 + erf(x * 0.7071067811865476));
    case IWP_GEMM_SILU: return x / (1 + exp(-x));
    case IWP_GEMM_NONE: break;
    }
    return x;
}

static void norm_row(double *y, const float *x, int32_t k, const struct iwp_gemm_norm *n) {
    double mean = 0, var = 0;
    for (int32_t i = 0; i < k; i++) mean += n->rms ? 0 : x[i];
    mean /= k;
    for (int32_t i = 0; i < k; i++) var += (x[i] - mean) * (x[i] - mean);
    const double f = 1 / sqrt(var / k + (double)n->eps);
    for (int32_t i = 0; i < k; i++)
        y[i] = n->w ? (x[i] - mean) * f * (double)n->w[i] + (n->b ? (double)n->b[i] : 0) : x[i];
}

/* y [m] = x [k] · w + bias; *size = sum of |products| of the worst column. */
static void multiply(double *y, double *size, const double *x, const float *w, const float *bias,
                     int32_t k, int32_t m) {
    *size = 0;
    for (int32_t j = 0; j < m; j++) {
        double s = bias ? (double)bias[j] : 0, t = fabs(s);
        for (int32_t i = 0; i < k; i++) {
            double p = x[i] * (double)w[(size_t)j * (size_t)k + (size_t)i];
            s += p;
            t += fabs(p);
        }
        y[j] = s;
        if (t > *size) *size = t;
    }
}

static void check_linear(const struct iwp_gemm *g, int32_t n, int32_t k, int32_t m, int kind) {
    const bool normed = kind % 3 != 0, two = kind % 2 != 0;
    float *x = normals((size_t)n * (size_t)k, 1), *w = normals((size_t)m * (size_t)k, 0.1f);
    float *nw = normals((size_t)k, 1), *nb = normals((size_t)k, 1), *bias = normals((size_t)m, 1);
    uint16_t *p = pack(g, w, m, k);
    const int64_t out = two ? 2 * m : m;
    float *res = normals((size_t)n * (size_t)out, 1), *y = room((size_t)n * (size_t)out * 4);
    struct iwp_gemm_linear op = {.x = x,
                                 .res = kind % 4 == 1 ? res : NULL,
                                 .x_stride = k,
                                 .y_stride = out,
                                 .n_mat = two ? 2 : 1,
                                 .act = (enum iwp_gemm_act)(kind % 5),
                                 .y = y};
    if (normed)
        op.norm = (struct iwp_gemm_norm){nw, kind % 3 == 1 ? nb : NULL, 1e-6f, kind % 3 == 2};
    op.mat[0] = (struct iwp_gemm_mat){p, bias, k, m, split};
    op.mat[1] = (struct iwp_gemm_mat){p, NULL, k, m, split};
    void *scratch = room(iwp_gemm_linear_scratch(g, &op, n));
    const int32_t cut = n > 40 ? 32 : n; /* a range of rows at a time */
    g->linear(&op, 0, cut, scratch);
    if (cut < n) g->linear(&op, cut, n - cut, scratch);
    double *xr = room((size_t)k * 8), *want = room((size_t)out * 8);
    int bad = 0;
    for (int32_t r = 0; r < n; r++) {
        double size, other = 0;
        norm_row(xr, x + (size_t)r * (size_t)k, k, &op.norm);
        multiply(want, &size, xr, w, bias, k, m);
        if (two) multiply(want + m, &other, xr, w, NULL, k, m);
        for (int64_t j = 0; j < out; j++) {
            const size_t at = (size_t)r * (size_t)out + (size_t)j;
            double s = act(want[j], op.act) + (op.res ? (double)res[at] : 0);
            const double bound = g->fine ? 0x1p-11 : split ? 0x1p-15 : 0x1p-7;
            bad += !(fabs(y[at] - s) <= 1.2 * bound * fmax(size, other) + 1e-5);
        }
    }
    CHECK_MSG(bad == 0, "%s linear %d x %d x %d kind %d: %d off", g->name, n, k, m, kind, bad);
    free(x), free(w), free(nw), free(nb), free(bias), free(p), free(res), free(y);
    free(scratch), free(xr), free(want);
}

static void check_mlp(const struct iwp_gemm *g, int32_t n, int32_t d, int32_t f, int gated) {
    const float si = 1 / sqrtf((float)d), so = 1 / sqrtf((float)f);
    float *x = normals((size_t)n * (size_t)d, 1), *nw = normals((size_t)d, 1);
    float *up = normals((size_t)f * (size_t)d, si), *gate = normals((size_t)f * (size_t)d, si);
    float *down = normals((size_t)f * (size_t)d, so), *bias = normals((size_t)f, 0.1f);
    uint16_t *pu = pack(g, up, f, d), *pg = pack(g, gate, f, d), *pd = pack(g, down, d, f);
    float *y = room((size_t)n * (size_t)d * 4);
    struct iwp_gemm_mlp op = {.x = x,
                              .stride = d,
                              .norm = {nw, NULL, 1e-6f, gated != 0},
                              .up = {pu, bias, d, f, split},
                              .down = {pd, NULL, f, d, split},
                              .act = gated ? IWP_GEMM_SILU : IWP_GEMM_GELU_TANH,
                              .y = y};
    if (gated) op.gate = (struct iwp_gemm_mat){pg, bias, d, f, split};
    void *scratch = room(iwp_gemm_mlp_scratch(g, &op, n));
    g->mlp(&op, 0, n, scratch);
    double *xr = room((size_t)d * 8), *u = room((size_t)f * 8), *v = room((size_t)f * 8);
    double *want = room((size_t)n * (size_t)d * 8), size;
    for (int32_t r = 0; r < n; r++) {
        double *to = want + (size_t)r * (size_t)d;
        norm_row(xr, x + (size_t)r * (size_t)d, d, &op.norm);
        multiply(u, &size, xr, up, bias, d, f);
        multiply(v, &size, xr, gate, bias, d, f);
        for (int32_t j = 0; j < f; j++) u[j] = gated ? act(v[j], op.act) * u[j] : act(u[j], op.act);
        multiply(to, &size, u, down, NULL, f, d);
        for (int32_t j = 0; j < d; j++) to[j] += (double)x[(size_t)r * (size_t)d + (size_t)j];
    }
    const double e = relative(y, want, (size_t)n * (size_t)d);
    CHECK_MSG(e < 5e-3 * share(g), "%s mlp %d x %d x %d gate %d: relative L2 %g", g->name, n, d, f,
              gated, e);
    free(x), free(nw), free(up), free(gate), free(down), free(bias), free(pu), free(pg), free(pd);
    free(y), free(scratch), free(xr), free(u), free(v), free(want);
}

/* ---- attention --------------------------------------------------------------------------------- */

static void turn(double *y, const float *x, const float *rope, int32_t d) {
    for (int32_t i = 0; i < d / 2; i++) {
        const double c = rope ? (double)rope[i] : 1, s = rope ? (double)rope[d / 2 + i] : 0;
        y[i] = x[i] * c - x[i + d / 2] * s;
        y[i + d / 2] = x[i] * s + x[i + d / 2] * c;
    }
}

static void check_attend(const struct iwp_gemm *g, int32_t nq, int32_t nk, int32_t d, int32_t dv,
                         int rope, float size) {
    const int64_t stride = 3 * d + 4;
    const int32_t rows = nq > nk ? nq : nk;
    float *x = normals((size_t)rows * (size_t)stride, size), *angles = room((size_t)(rows * d) * 4);
    for (int32_t i = 0; i < rows; i++)
        for (int32_t j = 0; j < d / 2; j++) {
            const double a = i * pow(100, -j * 2.0 / d);
            angles[i * d + j] = (float)cos(a);
            angles[i * d + d / 2 + j] = (float)sin(a);
        }
    float *y = room((size_t)nq * (size_t)dv * 4);
    const struct iwp_gemm_attend op = {.q = x,
                                       .k = x + d,
                                       .v = x + 2 * d,
                                       .q_stride = stride,
                                       .k_stride = stride,
                                       .v_stride = stride,
                                       .out_stride = dv,
                                       .rope_q = rope ? angles : NULL,
                                       .rope_k = rope ? angles : NULL,
                                       .rope_stride = d,
                                       .n_q = nq,
                                       .n_k = nk,
                                       .d = d,
                                       .d_v = dv,
                                       .split = split,
                                       .scale = 1 / sqrtf((float)d),
                                       .out = y};
    void *scratch = room(iwp_gemm_attend_scratch(g, nk, d, dv, split));
    g->attend(&op, scratch);
    double *want = room((size_t)nq * (size_t)dv * 8), *s = room((size_t)nk * 8),
           *q = room((size_t)d * 8), *k = room((size_t)d * 8);
    for (int32_t i = 0; i < nq; i++) {
        double top = -1e300, sum = 0;
        turn(q, op.q + i * stride, rope ? angles + i * d : NULL, d);
        for (int32_t j = 0; j < nk; j++) {
            turn(k, op.k + j * stride, rope ? angles + j * d : NULL, d);
            s[j] = 0;
            for (int32_t t = 0; t < d; t++) s[j] += q[t] * k[t] * (double)op.scale;
            top = fmax(top, s[j]);
        }
        double *to = want + (size_t)i * (size_t)dv;
        memset(to, 0, (size_t)dv * 8);
        for (int32_t j = 0; j < nk; j++) sum += s[j] = exp(s[j] - top);
        for (int32_t j = 0; j < nk; j++)
            for (int32_t t = 0; t < dv; t++) to[t] += s[j] / sum * (double)op.v[j * stride + t];
    }
    const double e = relative(y, want, (size_t)nq * (size_t)dv);
    /* Large scores carry their rounding into the exponent, and a mean over many keys of one query is small
     * beside its terms: wider bounds there.  So are heads of 8 bf16 numbers, a small sample: of 800 draws of 40 queries
     * plain C had a median of 0.35 %, 11 above 0.5 %, none above 0.61 %. */
    const double bound = (size > 1 || nq == 1             ? 2e-2
                          : g->fine || (d <= 8 && !split) ? 7e-3
                                                          : 5e-3) *
                         share(g);
    CHECK_MSG(e < bound, "%s attend %d on %d, d %d, rope %d: relative L2 %g", g->name, nq, nk, d,
              rope, e);
    free(x), free(angles), free(y), free(scratch), free(want), free(s), free(q), free(k);
}

/* ---- quantised weights ------------------------------------------------------------------------- */

/* Columns whose numbers are all the largest there are: with rows like that sums are, too. */
static bool full(int32_t j) { return j % 8 == 3; }

/* q4_0 in the layout of CPU_REPACK. */
static uint8_t *repacked(int32_t m, int32_t k, double *w) {
    uint8_t *blocks = room((size_t)(m / 8 * (k / 32)) * 144);
    for (int32_t j = 0; j < m; j++)
        for (int32_t b = 0; b < k / 32; b++) {
            uint8_t *t = blocks + (size_t)(j / 8 * (k / 32) + b) * 144;
            const double d =
                (1 + (double)(test_rand(&seed) % 1000)) / 16384 * (test_rand(&seed) % 4 ? 1 : -1);
            const uint16_t hd = half_of(d);
            memcpy(t + 2 * (j % 8), &hd, 2);
            for (int i = 0; i < 32; i++) {
                const int q = full(j) ? 7 : (int)(test_rand(&seed) % 16) - 8;
                uint8_t *at = t + 16 + i % 16 / 8 * 64 + j % 8 * 8 + i % 8;
                *at = (uint8_t)(i < 16 ? q & 15 : *at | (q & 15) << 4);
                w[(size_t)j * (size_t)k + (size_t)(b * 32 + i)] = q * d;
            }
        }
    return blocks;
}

/* q4_K there. */
static uint8_t *repacked_k(int32_t m, int32_t k, double *w) {
    enum { BYTES = 32 + 96 + 1024 };
    const size_t size = (size_t)(m / 8 * (k / 256)) * BYTES;
    uint8_t *blocks = room(size);
    memset(blocks, 0, size);
    int scale = 0, offset = 0; /* of 32 k */
    double d = 0, min = 0;     /* of 256 */
    for (int32_t j = 0; j < m; j++)
        for (int32_t i = 0; i < k; i++) {
            uint8_t *t = blocks + (size_t)(j / 8 * (k / 256) + i / 256) * BYTES;
            const int c = j % 8, g = i % 256 / 32, q = full(j) ? 15 : (int)(test_rand(&seed) % 16);
            if (i % 256 == 0) {
                d = (1 + (double)(test_rand(&seed) % 1000)) / 16384;
                min = (double)(test_rand(&seed) % 1000) / 16384;
                const uint16_t hd = half_of(d), hm = half_of(min);
                memcpy(t + 2 * c, &hd, 2);
                memcpy(t + 16 + 2 * c, &hm, 2);
            }
            if (i % 32 == 0) {
                scale = (int)(test_rand(&seed) % 64), offset = (int)(test_rand(&seed) % 64);
                uint8_t *s = t + 32 + 12 * g;
                if (c < 4) {
                    s[c] |= (uint8_t)scale;
                    s[4 + c] |= (uint8_t)offset;
                } else {
                    s[c - 4] |= (uint8_t)(scale >> 4 << 6);
                    s[c] |= (uint8_t)(offset >> 4 << 6);
                    s[c + 4] = (uint8_t)((scale & 15) | (offset & 15) << 4);
                }
            }
            t[128 + 256 * (g / 2) + i % 32 / 8 * 64 + c * 8 + i % 8] |= (uint8_t)(q << 4 * (g % 2));
            w[(size_t)j * (size_t)k + (size_t)i] = q * d * scale - min * offset;
        }
    return blocks;
}

/* q8_0 as in files. */
static uint8_t *file_q8_0(int32_t m, int32_t k, double *w) {
    uint8_t *blocks = room((size_t)(m * (k / 32)) * 34);
    for (int32_t i = 0; i < m * (k / 32); i++) {
        const double d =
            (1 + (double)(test_rand(&seed) % 1000)) / 16384 * (test_rand(&seed) % 4 ? 1 : -1);
        const uint16_t hd = half_of(d);
        memcpy(blocks + (size_t)i * 34, &hd, 2);
        for (int t = 0; t < 32; t++) {
            const int q = (int)(test_rand(&seed) % 256) - 128;
            blocks[(size_t)i * 34 + 2 + (size_t)t] = (uint8_t)(int8_t)q;
            w[(size_t)i * 32 + (size_t)t] = q * d;
        }
    }
    return blocks;
}

/* f16 as in files. */
static void of_halves(const void *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = (float)of_half(((const uint16_t *)from)[i]);
}

static uint8_t *file_f16(int32_t m, int32_t k, double *w) {
    uint16_t *h = room((size_t)(m * k) * 2);
    for (int32_t i = 0; i < m * k; i++) {
        h[i] = half_of((double)test_normal(&seed));
        w[i] = of_half(h[i]);
    }
    return (uint8_t *)h;
}

/* bf16 as in files. */
static void of_bf16(const void *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t wide = (uint32_t)((const uint16_t *)from)[i] << 16;
        memcpy(&to[i], &wide, sizeof wide);
    }
}

static uint8_t *file_bf16(int32_t m, int32_t k, double *w) {
    uint16_t *h = room((size_t)(m * k) * 2);
    for (int32_t i = 0; i < m * k; i++) {
        const float x = test_normal(&seed);
        uint32_t bits;
        float short_of_it;
        memcpy(&bits, &x, sizeof bits);
        h[i] = (uint16_t)(bits >> 16);
        of_bf16(&h[i], &short_of_it, 1);
        w[i] = (double)short_of_it;
    }
    return (uint8_t *)h;
}

/* q3_K, q5_K, q6_K as in files: bytes of a block, numbers that share a scale, the largest number, the least
 * scale and how many there are. */
static const struct {
    size_t bytes;
    int len, most, low, span;
} file_types[IWP_GEMM_FILE + 1] = {[IWP_GEMM_FILE_Q3_K] = {110, 16, 7, -32, 64},
                                   [IWP_GEMM_FILE_Q5_K] = {176, 32, 31, 0, 64},
                                   [IWP_GEMM_FILE_Q6_K] = {210, 16, 63, -128, 256}};
static size_t block_of(enum iwp_gemm_form form) { return file_types[form].bytes; }

static void put_bits(uint8_t *p, int at, int bits) { *p |= (uint8_t)(bits << at); }

/* The 6 bits of scale g, and for q5_K those of a minimum. */
static void put_scale_k(uint8_t *p, enum iwp_gemm_form form, int g, int scale, int offset) {
    if (form == IWP_GEMM_FILE_Q6_K) {
        p[192 + g] = (uint8_t)(int8_t)scale;
    } else if (form == IWP_GEMM_FILE_Q3_K) { /* 32 more than they are */
        put_bits(p + 96 + g % 8, g / 8 * 4, (scale + 32) & 15);
        put_bits(p + 104 + g % 4, g / 4 * 2, (scale + 32) >> 4);
    } else if (g < 4) {
        put_bits(p + 4 + g, 0, scale);
        put_bits(p + 8 + g, 0, offset);
    } else {
        put_bits(p + 4 + g - 4, 6, scale >> 4);
        put_bits(p + 8 + g - 4, 6, offset >> 4);
        put_bits(p + 12 + g - 4, 0, scale & 15);
        put_bits(p + 12 + g - 4, 4, offset & 15);
    }
}

/* Number i of a block. */
static void put_number_k(uint8_t *p, enum iwp_gemm_form form, int i, int q) {
    if (form == IWP_GEMM_FILE_Q5_K) {
        put_bits(p + 48 + i / 64 * 32 + i % 32, i % 64 / 32 * 4, q & 15);
        put_bits(p + 16 + i % 32, i / 32, q >> 4);
    } else if (form == IWP_GEMM_FILE_Q6_K) {
        put_bits(p + i / 128 * 64 + i % 64, i % 128 / 64 * 4, q & 15);
        put_bits(p + 128 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, q >> 4);
    } else {
        put_bits(p + 32 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, q & 3);
        put_bits(p + i % 32, i / 32, q >> 2);
    }
}

static uint8_t *file_k(enum iwp_gemm_form form, int32_t m, int32_t k, double *w) {
    const size_t bytes = block_of(form), size = (size_t)(m * (k / 256)) * bytes;
    const bool five = form == IWP_GEMM_FILE_Q5_K;
    const int len = file_types[form].len, most = file_types[form].most, low = file_types[form].low;
    const unsigned span = (unsigned)file_types[form].span;
    uint8_t *blocks = room(size), *p = blocks;
    memset(blocks, 0, size);
    for (int32_t b = 0; b < m * (k / 256); b++, p += bytes) {
        const double d = (1 + (double)(test_rand(&seed) % 1000)) / 16384 *
                         (five || test_rand(&seed) % 4 ? 1 : -1),
                     min = (double)(test_rand(&seed) % 1000) / 16384;
        const uint16_t hd = half_of(d), hm = half_of(min);
        memcpy(p + (five ? 0 : bytes - 2), &hd, 2);
        if (five) memcpy(p + 2, &hm, 2);
        for (int g = 0; g < 256 / len; g++) {
            const int scale = low + (int)(test_rand(&seed) % span),
                      offset = five ? (int)(test_rand(&seed) % 64) : 0;
            put_scale_k(p, form, g, scale, offset);
            for (int i = g * len; i < (g + 1) * len; i++) {
                const int q =
                    full(b / (k / 256)) ? most : (int)(test_rand(&seed) % (unsigned)(most + 1));
                put_number_k(p, form, i, q);
                w[(size_t)b * 256 + (size_t)i] =
                    five ? q * d * scale - min * offset : (q - (most + 1) / 2) * d * scale;
            }
        }
    }
    return blocks;
}

static struct iwp_gemm_quant quant_of(const uint8_t *w, const float *bias, enum iwp_gemm_form form,
                                      int32_t k, int32_t m) {
    const size_t row = block_of(form) ? (size_t)(k / 256) * block_of(form) : (size_t)k * 2;
    return (struct iwp_gemm_quant){
        w, bias, form, k, m, row, form == IWP_GEMM_FILE_BF16 ? of_bf16 : of_halves};
}

/* Random weights as gemm.h describes them, and what they stand for. */
static uint8_t *quantised(const struct iwp_gemm *path, enum iwp_gemm_form form, int32_t m,
                          int32_t k, double *w) {
    if (form == IWP_GEMM_FILE_Q8_0) return file_q8_0(m, k, w);
    if (form == IWP_GEMM_FILE_F16 || form == IWP_GEMM_FILE) return file_f16(m, k, w);
    if (form == IWP_GEMM_FILE_BF16) return file_bf16(m, k, w);
    if (block_of(form)) return file_k(form, m, k, w);
    if (strcmp(path->layout, "CPU_REPACK") == 0)
        return form == IWP_GEMM_Q4_K ? repacked_k(m, k, w) : repacked(m, k, w);
    static const int bits[] = {4, 4, 8, 4, 5, 6};
    const struct iwp_gemm_tile_size z = iwp_gemm_tile_size(form);
    uint8_t *tiles = room((size_t)(m / 16 * (k / z.k)) * z.bytes);
    const bool super = z.k == 256;
    memset(tiles, 0, (size_t)(m / 16 * (k / z.k)) * z.bytes);
    for (int32_t j = 0; j < m; j++)
        for (int32_t b = 0; b < k / z.k; b++) {
            uint8_t *t = tiles + (size_t)(j / 16 * (k / z.k) + b) * z.bytes;
            const int col = j % 16, low = z.k * 16 / (bits[form] == 8 ? 1 : 2),
                      high = form == IWP_GEMM_Q5_K   ? 512
                             : form == IWP_GEMM_Q6_K ? 1024
                                                     : 0;
            uint8_t *scale = t + low + high;
            const double d = (1 + (double)(test_rand(&seed) % 1000)) / 16384 *
                             (test_rand(&seed) % 4 ? 1 : -1),
                         min = (double)(test_rand(&seed) % 1000) / 16384;
            const int groups = form == IWP_GEMM_Q6_K ? 256 : super ? 256 : 0;
            const uint16_t hd = half_of(d), hm = half_of(min);
            memcpy(scale + groups + 2 * col, &hd, 2);
            if (form == IWP_GEMM_Q4_1 || form == IWP_GEMM_Q4_K || form == IWP_GEMM_Q5_K)
                memcpy(scale + groups + 32 + 2 * col, &hm, 2);
            const int len = form == IWP_GEMM_Q6_K ? 16 : 32; /* of a group */
            for (int g = 0; g < z.k / len; g++) {
                int s = 1, o = 0;
                if (form == IWP_GEMM_Q6_K) {
                    s = (int)(test_rand(&seed) % 256) - 128;
                    scale[16 * g + col] = (uint8_t)(int8_t)s;
                } else if (super) {
                    s = (int)(test_rand(&seed) % 64), o = (int)(test_rand(&seed) % 64);
                    scale[16 * g + col] = (uint8_t)s;
                    scale[128 + g / 2 * 32 + 2 * col + g % 2] = (uint8_t)o;
                }
                for (int i = g * len; i < (g + 1) * len; i++) {
                    const int q = (int)(test_rand(&seed) % (1u << bits[form])), four = i / 4,
                              at = 4 * col + i % 4;
                    double x = q;
                    if (form == IWP_GEMM_Q8_0) {
                        t[64 * four + at] = (uint8_t)(q - 128);
                        x = (q - 128) * d;
                    } else {
                        t[64 * (four / 2) + at] |= (uint8_t)((q & 15) << 4 * (four % 2));
                        if (form == IWP_GEMM_Q5_K)
                            t[low + 64 * (i / 32) + at] |= (uint8_t)((q >> 4) << four % 8);
                        if (form == IWP_GEMM_Q6_K)
                            t[low + 64 * (i / 16) + at] |= (uint8_t)((q >> 4) << 2 * (four % 4));
                        if (form == IWP_GEMM_Q4_0) x = (q - 8) * d;
                        if (form == IWP_GEMM_Q4_1) x = q * d + min;
                        if (form == IWP_GEMM_Q6_K) x = (q - 32) * d * s;
                        if (form == IWP_GEMM_Q4_K || form == IWP_GEMM_Q5_K) x = q * d * s - min * o;
                    }
                    w[(size_t)j * (size_t)k + (size_t)(b * z.k + i)] = x;
                }
            }
        }
    return tiles;
}

static void check_read(const struct iwp_gemm *g, enum iwp_gemm_form form) {
    const int32_t m = 96, k = 768, col = 32, cols = 64, k0 = 256, len = 512;
    double *w = room((size_t)(m * k) * 8);
    uint8_t *tiles = quantised(g, form, m, k, w);
    const struct iwp_gemm_quant q = quant_of(tiles, NULL, form, k, m);
    void *panels = room(iwp_gemm_bulk_scratch(g));
    g->read(panels, &q, col, cols, k0, len);
    int bad = 0;
    for (int32_t j = 0; j < cols; j++)
        for (int32_t i = 0; i < len; i++) {
            const int32_t len_run = 32 * g->run;
            const double *run = w + (col + j) * k + k0 + i / len_run * len_run,
                         want = run[i % len_run];
            const double got = (double)iwp_gemm_weight(g, form, panels, len, j, i);
            /* bf16: a minimum is taken from a product of up to 128 scales.  Integers are parts of the
             * largest of a run or, of q8_0, of what that could be; bytes stay what they are. */
            double bound = 0x1p-8 * fabs(want) + 0x1p-18, most = 0;
            for (int t = 0; t < len_run; t++) most = fmax(most, fabs(run[t]));
            if (g->fine) bound = (form == IWP_GEMM_FILE_Q8_0 ? 0x1p-11 : 0x1.7p-14) * most;
            if (g->bytes & 1u << form) bound = 0x1p-20 * most + 1e-6;
            bad += !(fabs(got - want) <= bound);
        }
    CHECK_MSG(bad == 0, "%s form %d: %d of %d numbers off", g->name, (int)form, bad, cols * len);
    free(w), free(tiles), free(panels);
}

/* Rows [first, first + part) of n. */
static void pack_part(const struct iwp_gemm *g, enum iwp_gemm_kind kind, void *rows, const float *x,
                      int32_t first, int32_t part, int32_t n, int32_t k,
                      const struct iwp_gemm_norm *norm) {
    const size_t lo = kind == IWP_GEMM_SPLIT ? iwp_gemm_size(g, (size_t)n, (size_t)k) : 0;
    if (kind == IWP_GEMM_BYTES)
        g->pack_rows8(rows, x, k, first, part, k, norm);
    else
        g->pack_rows(rows, lo, x, k, first, part, k, norm);
}

/* Largest of the 32 neighbours of number i. */
static double most_of(const double *x, int32_t i) {
    double most = 0;
    for (int32_t t = i / 32 * 32; t < i / 32 * 32 + 32; t++) most = fmax(most, fabs(x[t]));
    return most;
}

/* Row r as its bytes have it; how many of these are not the nearest to what the row was. */
static int take_bytes(double *x, const struct iwp_gemm_rows8 *rows, int32_t r, int32_t k) {
    int bad = 0;
    for (int32_t i = 0; i < k; i++) {
        const struct iwp_gemm_rows8 *b = rows + (size_t)(r / 32) * (size_t)(k / 32) + i / 32;
        const double scale = (double)b->scale[r % 32], got = b->q[r % 32][i % 32] * scale;
        bad += !(fabs(got - x[i]) <= 0.501 * scale && b->q[r % 32][i % 32] != -128);
        bad += i % 32 == 0 && !(fabs(127 * scale - most_of(x, i)) <= 1e-6 * most_of(x, i));
        x[i] = got;
    }
    return bad;
}

/* Number j of row r of what a gate made; *off is how far rounding may have moved it. */
static double made(const struct iwp_gemm *g, const struct iwp_gemm_bulk *op, int32_t r, int32_t j,
                   double *off) {
    const int32_t at = r / 32 * (op->mat.m / 32) + j / 32;
    if (op->out_kind == IWP_GEMM_BYTES) {
        const struct iwp_gemm_rows8 *b = (const struct iwp_gemm_rows8 *)op->out + at;
        int sum = 0, half = 0;
        for (int i = 0; i < 32; i++) sum += b->q[r % 32][i], half += i < 16 ? b->q[r % 32][i] : 0;
        CHECK(b->half[0][r % 32] == half && b->half[1][r % 32] == sum - half);
        CHECK(b->start[r % 32] == -8 * sum);
        CHECK(fabs((double)b->sum[r % 32] - sum * (double)b->scale[r % 32]) <
              1e-3 * (double)b->scale[r % 32] + 1e-30);
        *off = 0.51 * (double)b->scale[r % 32];
        return b->q[r % 32][j % 32] * (double)b->scale[r % 32];
    }
    const uint16_t *block = (const uint16_t *)op->out + at * g->block;
    double x = number(g, block, r % 32 * 32 + j % 32, r % 32);
    if (op->out_kind == IWP_GEMM_SPLIT)
        x += number(g, block + iwp_gemm_size(g, (size_t)op->n, (size_t)op->mat.m),
                    r % 32 * 32 + j % 32, r % 32);
    *off = 0;
    return x;
}

/* Part of the sum of |products| that rounding may take: of both factors, of none, or of the weights alone.  Bytes are
 * multiplied as they are, so only f32 sums differ. */
static bool whole(enum iwp_gemm_form form) {
    return form == IWP_GEMM_FILE_F16 || form == IWP_GEMM_FILE_BF16;
}
static double lost(const struct iwp_gemm *g, enum iwp_gemm_form form) {
    if (g->bytes >> form & 1) return 1e-5;
    return g->fine ? 1.2 * 0x1p-11 : !split ? 0x1p-7 : whole(form) ? 0x1p-15 : 0x1.1p-8;
}

/* All columns in two calls, with a gate of any form or with NO_GATE; two rows whose bytes are as large as they can
 * be. */
enum { NO_GATE = -1 };
static void check_bulk(const struct iwp_gemm *g, enum iwp_gemm_form form, int gate, int32_t n,
                       int32_t k, int32_t m) {
    const bool gated = gate != NO_GATE;
    const enum iwp_gemm_form form_g = gated ? (enum iwp_gemm_form)gate : form;
    double *w = room((size_t)(m * k) * 8), *wg = room((size_t)(m * k) * 8);
    uint8_t *tiles = quantised(g, form, m, k, w), *tiles_g = quantised(g, form_g, m, k, wg);
    const float size = 0.05f / sqrtf((float)k);
    float *x = normals((size_t)n * (size_t)k, size), *nw = normals((size_t)k, size);
    float *bias = normals((size_t)m, 0.01f), *res = normals((size_t)(n * m), 0.01f);
    float *y = room((size_t)(n * m) * 4);
    for (int32_t i = 0; i < k && n > 4;
         i++) { /* normed, all numbers of these rows are of one size */
        const float one = size * size / nw[i];
        x[3 * k + i] = one;
        x[(n - 1) * k + i] = -one;
    }
    const bool bytes = g->bytes >> form & 1;
    const enum iwp_gemm_kind plain = split ? IWP_GEMM_SPLIT : IWP_GEMM_PLAIN,
                             kind = bytes ? IWP_GEMM_BYTES : plain,
                             out_kind = g->bytes && n % 2 ? IWP_GEMM_BYTES : plain;
    void *rows = room(iwp_gemm_rows_size(g, kind, n, k)),
         *out = room(iwp_gemm_rows_size(g, out_kind, n, m));
    const struct iwp_gemm_norm norm = {nw, NULL, 1e-6f, true};
    struct iwp_gemm_bulk op = {.rows = rows,
                               .n = n,
                               .kind = kind,
                               .out_kind = out_kind,
                               .mat = quant_of(tiles, bias, form, k, m),
                               .act = gated ? IWP_GEMM_SILU : IWP_GEMM_NONE,
                               .y = y,
                               .res = n % 2 ? res : NULL,
                               .stride = m,
                               .out = out};
    if (gated) op.gate = quant_of(tiles_g, NULL, form_g, k, m);
    void *scratch = room(iwp_gemm_bulk_scratch(g));
    const int32_t cut = n > 32 ? 32 : n, cols = gated ? IWP_GEMM_RUN : 32;
    pack_part(g, kind, rows, x, 0, cut, n, k, &norm);
    if (cut < n) pack_part(g, kind, rows, x, cut, n - cut, n, k, &norm);
    for (int32_t i = 0; i < k && bytes && n > 4; i++) {
        const struct iwp_gemm_rows8 *b = (const struct iwp_gemm_rows8 *)rows + i / 32;
        CHECK(b->q[3][i % 32] == 127 && b[(n - 1) / 32 * (k / 32)].q[(n - 1) % 32][i % 32] == -127);
    }
    g->bulk(&op, 0, m < cols ? m : cols, scratch);
    if (cols < m) g->bulk(&op, cols, m - cols, scratch);
    double *xr = room((size_t)k * 8), *want = room((size_t)(n * m) * 8),
           *bound = room((size_t)(n * m) * 8);
    float *got = room((size_t)(n * m) * 4);
    const double e = lost(g, form), eg = lost(g, form_g);
    double made_off = 0;
    int bad = 0, bad_bytes = 0;
    for (int32_t r = 0; r < n; r++) {
        norm_row(xr, x + (size_t)r * (size_t)k, k, &norm);
        if (bytes) bad_bytes += take_bytes(xr, rows, r, k);
        for (int32_t j = 0; j < m; j++) {
            double s[2] = {(double)bias[j], 0}, t[2] = {1e-8, 1e-8};
            for (int32_t i = 0; i < k; i++) {
                const double p = xr[i] * w[j * k + i], pg = xr[i] * wg[j * k + i];
                s[0] += p, s[1] += pg;
                /* of bytes a product is taken from a larger one: minima */
                t[0] += bytes ? most_of(w + j * k, i) * fabs(xr[i]) : fabs(p);
                t[1] += bytes ? most_of(wg + j * k, i) * fabs(xr[i]) : fabs(pg);
            }
            const size_t at = (size_t)r * (size_t)m + (size_t)j;
            if (gated) {
                double off;
                const double a = act(s[1], IWP_GEMM_SILU);
                got[at] = (float)made(g, &op, r, j, &off);
                want[at] = a * s[0];
                bound[at] = (split ? 0x1p-14 : 0x1p-8) * fabs(want[at]) +
                            1.2 * eg * t[1] * (fabs(s[0]) + e * t[0]) + e * fabs(a) * t[0] + off;
                made_off += off * off;
            } else { /* the products alone: what is added to them is larger than what rounding takes */
                const double more = (double)bias[j] + (op.res ? (double)res[at] : 0);
                got[at] = (float)((double)y[at] - more);
                want[at] = s[0] - (double)bias[j];
                bound[at] = e * t[0] + 1e-7 * fabs(more);
            }
        }
    }
    double norm_want = 0;
    for (int32_t r = 0; r < n; r++)
        for (int32_t j = 0; j < m; j++) {
            const size_t at = (size_t)r * (size_t)m + (size_t)j;
            norm_want += want[at] * want[at];
            double most = 0; /* of the run that a made number shares its scale with */
            for (int32_t i = j / IWP_GEMM_RUN * IWP_GEMM_RUN;
                 g->fine && gated && i < m && i < (j / IWP_GEMM_RUN + 1) * IWP_GEMM_RUN; i++)
                most = fmax(most, fabs(want[(size_t)r * (size_t)m + (size_t)i]));
            bad += !(fabs((double)got[at] - want[at]) <= bound[at] + 0x1p-12 * most);
        }
    /* As one array: random errors, of each factor and of what a gate made. */
    const bool exact = bytes && (!gated || out_kind != IWP_GEMM_PLAIN);
    const double all = relative(got, want, (size_t)n * (size_t)m),
                 most = sqrt(made_off / norm_want) + (exact                          ? 2e-5
                                                      : g->fine                      ? 4e-4
                                                      : !split                       ? 6e-3
                                                      : whole(form) && whole(form_g) ? 1e-4
                                                                                     : 4e-3);
    CHECK_MSG(bad_bytes == 0, "%s bulk form %d, %d x %d x %d: %d bytes are not the nearest",
              g->name, (int)form, n, k, m, bad_bytes);
    CHECK_MSG(all < most, "%s bulk form %d, %d x %d x %d, gate %d: relative L2 %g", g->name,
              (int)form, n, k, m, gate, all);
    CHECK_MSG(bad == 0, "%s bulk form %d, %d x %d x %d, gate %d: %d off", g->name, (int)form, n, k,
              m, gate, bad);
    free(w), free(wg), free(tiles), free(tiles_g), free(x), free(nw), free(bias), free(res),
        free(y);
    free(rows), free(out), free(scratch), free(xr), free(want), free(bound), free(got);
}

/* Rows of bytes with a number that is none: so is all that is made of them, and other rows do not see it. */
static void check_none(const struct iwp_gemm *g, enum iwp_gemm_form form) {
    enum { N = 35, K = 512, M = 64 };
    static const struct {
        int32_t row, k;
        float x;
    } none[] = {{5, 0, NAN}, {6, 77, INFINITY}, {6, 78, -INFINITY}, {N - 1, K - 1, -INFINITY}};
    double *w = room(M * K * 8);
    uint8_t *tiles = quantised(g, form, M, K, w);
    float *x = normals(N * K, 1), *y[2] = {room(N * M * 4), room(N * M * 4)};
    const size_t size = iwp_gemm_rows_size(g, IWP_GEMM_BYTES, N, M);
    struct iwp_gemm_rows8 *rows = room(iwp_gemm_rows_size(g, IWP_GEMM_BYTES, N, K)),
                          *out[2] = {room(size), room(size)};
    void *scratch = room(iwp_gemm_bulk_scratch(g));
    for (int i = 0; i < 2; i++) {
        for (size_t t = 0; i == 1 && t < sizeof none / sizeof *none; t++)
            x[none[t].row * K + none[t].k] = none[t].x;
        g->pack_rows8(rows, x, K, 0, N, K, NULL);
        struct iwp_gemm_bulk op = {.rows = rows,
                                   .n = N,
                                   .kind = IWP_GEMM_BYTES,
                                   .out_kind = IWP_GEMM_BYTES,
                                   .mat = quant_of(tiles, NULL, form, K, M),
                                   .act = IWP_GEMM_NONE,
                                   .y = y[i],
                                   .stride = M,
                                   .out = out[i]};
        g->bulk(&op, 0, M, scratch);
        op.gate = op.mat;
        op.act = IWP_GEMM_SILU;
        g->bulk(&op, 0, M, scratch);
    }
    int bad = 0;
    for (int32_t r = 0; r < N; r++) {
        const bool lost = r == 5 || r == 6 || r == N - 1;
        for (int32_t j = 0; j < M; j++)
            bad += lost ? !isnan(y[1][r * M + j]) : y[1][r * M + j] != y[0][r * M + j];
        for (int32_t b = 0; b < M / 32; b++) {
            const struct iwp_gemm_rows8 *t[2];
            for (int i = 0; i < 2; i++) t[i] = out[i] + r / 32 * (M / 32) + b;
            const int at = r % 32;
            bad += lost ? !isnan(t[1]->scale[at])
                        : t[1]->scale[at] != t[0]->scale[at] ||
                              memcmp(t[1]->q[at], t[0]->q[at], sizeof t[0]->q[at]) != 0;
        }
    }
    CHECK_MSG(bad == 0, "%s form %d, rows without numbers: %d off", g->name, (int)form, bad);
    free(w), free(tiles), free(x), free(rows), free(scratch);
    for (int i = 0; i < 2; i++) free(y[i]), free(out[i]);
}

/* Few rows, rounded to 16 bits: 2^-16 of the largest of 32 numbers each, every row as it would be alone. */
static void check_few(const struct iwp_gemm *g, int32_t n, int32_t k, int32_t m) {
    double *w = room((size_t)(m * k) * 8);
    const enum iwp_gemm_form form = g->fine ? IWP_GEMM_FILE_Q8_0 : IWP_GEMM_Q8_0;
    uint8_t *tiles = quantised(g, form, m, k, w);
    float *x = normals((size_t)n * (size_t)k, 1), *y = room((size_t)(n * m) * 4),
          *alone = room((size_t)m * 4);
    for (int32_t i = 0; i < 32; i++) x[i] = 0; /* a block of nothing */
    x[40] = 1e4f;                              /* one far above its neighbours */
    void *rows = room((size_t)(n * (k / 32)) * IWP_GEMM_FEW_BLOCK);
    struct iwp_gemm_few op = {
        .rows = rows, .y = y, .stride = m, .n = n, .mat = quant_of(tiles, NULL, form, k, m)};
    g->few_rows(rows, x, k, n, k);
    g->few(&op, 0, 32);
    if (m > 32) g->few(&op, 32, m - 32);
    int bad = 0;
    for (int32_t r = 0; r < n; r++)
        for (int32_t j = 0; j < m; j++) {
            double s = 0, bound = 1e-5;
            for (int32_t i = 0; i < k; i++) {
                double most = 0;
                for (int32_t t = i / 32 * 32; t < i / 32 * 32 + 32; t++)
                    most = fmax(most, fabs((double)x[r * k + t]));
                s += (double)x[r * k + i] * w[j * k + i];
                bound += (0x1p-16 * 1.01 * most + 1e-6 * fabs((double)x[r * k + i])) *
                         fabs(w[j * k + i]);
            }
            bad += !(fabs(y[r * m + j] - s) <= bound);
        }
    CHECK_MSG(bad == 0, "%s few, %d x %d x %d: %d off", g->name, n, k, m, bad);
    op.n = 1;
    op.y = alone;
    for (int32_t r = 0; r < n; r++) {
        g->few_rows(rows, x + r * k, k, 1, k);
        g->few(&op, 0, m);
        CHECK_MSG(memcmp(alone, y + r * m, (size_t)m * 4) == 0, "%s few: row %d of %d", g->name, r,
                  n);
    }
    x[(n - 1) * k + k / 2] = NAN; /* what is not a number stays none, in its row alone */
    op.n = n;
    op.y = y;
    g->few_rows(rows, x, k, n, k);
    g->few(&op, 0, m);
    CHECK(isnan(y[(n - 1) * m]) && (n == 1 || !isnan(y[0])));
    free(w), free(tiles), free(x), free(y), free(alone), free(rows);
}

static void check_quantised(const struct iwp_gemm *g) {
    for (int32_t n = 1; n <= 30; n += n < 9 ? 1 : 7)
        check_few(g, n, n % 2 ? 64 : 544, n % 3 ? 96 : 32);

    for (int form = IWP_GEMM_Q4_0; form <= IWP_GEMM_FILE; form++) {
        if (!(g->forms & 1u << form)) continue;
        check_read(g, form);
        if (g->bytes >> form & 1) check_none(g, form);
        check_bulk(g, form, NO_GATE, 33, 256, 96);
        check_bulk(g, form, form, 32, 512, 64);
    }
    for (int form = IWP_GEMM_FILE_Q8_0; form <= IWP_GEMM_FILE; form++)
        if (g->forms & 1u << form) /* pieces of k, the last one short */
            check_bulk(g, form, form == IWP_GEMM_FILE_F16 ? NO_GATE : form, 40,
                       block_of(form) ? 1792 : 1376, 96);
    if (!g->fine) check_bulk(g, IWP_GEMM_FILE_F16, IWP_GEMM_FILE_F16, 70, 1376, 160);
    check_bulk(g, IWP_GEMM_Q4_0, NO_GATE, 1, 32, 64);
    check_bulk(g, IWP_GEMM_Q4_0, NO_GATE, 70, 2592, 64); /* more pieces */
    /* More rows than share a block; runs of columns, the last one short. */
    check_bulk(g, IWP_GEMM_Q4_0, IWP_GEMM_Q4_0, 515, 64, 64);
    check_bulk(g, IWP_GEMM_Q4_0, IWP_GEMM_Q4_0, 33, 160, 160);
    /* Gates of another form, behind an odd number of panels: the one between is half of both. */
    static const enum iwp_gemm_form mixed[][2] = {
        {IWP_GEMM_Q4_0, IWP_GEMM_FILE_Q6_K},      {IWP_GEMM_Q4_K, IWP_GEMM_FILE_Q5_K},
        {IWP_GEMM_FILE_Q5_K, IWP_GEMM_Q4_0},      {IWP_GEMM_FILE_Q3_K, IWP_GEMM_FILE_Q6_K},
        {IWP_GEMM_FILE_Q8_0, IWP_GEMM_FILE_BF16}, {IWP_GEMM_Q4_0, IWP_GEMM_Q6_K},
    };
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++)
        if (g->forms >> mixed[i][0] & g->forms >> mixed[i][1] & 1)
            check_bulk(g, mixed[i][0], (int)mixed[i][1], 33, 256, 96);
}

static void check_path(const struct iwp_gemm *g) {
    static const int32_t n[] = {1, 5, 31, 32, 33, 70}, k[] = {2, 31, 32, 40, 129},
                         m[] = {1, 15, 16, 31, 33, 80};
    int kind = 0;
    check_tile(g);
    for (size_t a = 0; a < 6; a++)
        for (size_t b = 0; b < 5; b++)
            for (size_t c = 0; c < 6; c++) check_linear(g, n[a], k[b], m[c], kind++);
    check_linear(g, 40, 1152, 96, 5);
    check_linear(g, 33, 1290, 545, 5); /* k in parts, for two groups of panels */
    check_linear(g, 5, 2700, 33, 0);
    for (int gated = 0; gated < 2; gated++) {
        check_mlp(g, 3, 24, 40, gated);
        check_mlp(g, 33, 48, 171, gated);
        check_mlp(g, 64, 160, 428, gated);
        check_mlp(g, 33, 48, 1300, gated);
    }
    check_quantised(g);
    static const int32_t keys[] = {1, 2, 31, 64, 255, 256, 257, 600};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        check_attend(g, 1, keys[i], 8, 8, 0, 1);
        check_attend(g, 33, keys[i], 80, 80, 1, 1);
        check_attend(g, keys[i] > 300 ? 290 : keys[i], keys[i], 72, 72, 0, 1);
        check_attend(g, 33, keys[i], 66, 64, 0, 1);
    }
    /* Last blocks of any length, of keys as well; more than one run. */
    static const int32_t sizes[][2] = {{12, 13}, {8, 8},     {16, 17},  {34, 36},
                                       {64, 64}, {66, 66},   {72, 72},  {80, 72},
                                       {96, 96}, {128, 128}, {200, 136}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int rope = 0; rope < 2; rope++) {
            check_attend(g, 40, 73, sizes[i][0], sizes[i][1], rope, 1);
            check_attend(g, 65, 201, sizes[i][0], sizes[i][1], rope, 1);
        }
    check_attend(g, 64, 64, 64, 64, 1, 2);
    check_attend(g, 64, 600, 80, 80, 1, 2); /* maxima that grow */
}

/* ---- timings ------------------------------------------------------------------------------------ */

/* Of this thread: others may be busy. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Rows of a 7B decoder: GFLOP/s of a product, a gated pair, and of reading the weights (numbers/s). */
static void bench_bulk(const struct iwp_gemm *g, enum iwp_gemm_form form, int32_t n, int32_t k,
                       int32_t m, bool twice) {
    if (!(g->forms & 1u << form) || (twice && g->fine)) return;
    struct iwp_gemm_tile_size z = {32, 16 * 34};
    if (form > IWP_GEMM_FILE_Q8_0) z.bytes = 16 * 64;
    if (form < IWP_GEMM_FILE_Q8_0) z = iwp_gemm_tile_size(form);
    if (block_of(form)) z.k = 256, z.bytes = 16 * block_of(form);
    const size_t bytes = (size_t)(m / 16 * (k / z.k)) * z.bytes; /* as many in any layout */
    uint8_t *w = room(bytes);
    for (size_t i = 0; i < bytes; i++) w[i] = (uint8_t)(test_rand(&seed) % 60);
    float *x = normals((size_t)n * (size_t)k, 1), *y = room((size_t)n * (size_t)m * 4);
    const enum iwp_gemm_kind kind = twice                  ? IWP_GEMM_SPLIT
                                    : g->bytes >> form & 1 ? IWP_GEMM_BYTES
                                                           : IWP_GEMM_PLAIN;
    void *rows = room(iwp_gemm_rows_size(g, kind, n, k)),
         *out = room(iwp_gemm_rows_size(g, kind, n, m));
    struct iwp_gemm_bulk op = {.rows = rows,
                               .n = n,
                               .kind = kind,
                               .out_kind = kind,
                               .mat = quant_of(w, NULL, form, k, m),
                               .act = IWP_GEMM_NONE,
                               .y = y,
                               .stride = m,
                               .out = out};
    struct iwp_gemm_bulk gated = op;
    gated.gate = gated.mat;
    gated.act = IWP_GEMM_SILU;
    void *s = room(iwp_gemm_bulk_scratch(g));
    double best[4] = {1e9, 1e9, 1e9, 1e9};
    for (int r = 0; r < 3; r++) {
        double t0 = now();
        pack_part(g, kind, rows, x, 0, n, n, k, NULL);
        double t1 = now();
        for (int32_t i = 0; i < m; i += IWP_GEMM_COLS)
            g->bulk(&op, i, m - i < IWP_GEMM_COLS ? m - i : IWP_GEMM_COLS, s);
        double t2 = now();
        for (int32_t i = 0; i < m; i += IWP_GEMM_COLS / 2) g->bulk(&gated, i, IWP_GEMM_COLS / 2, s);
        double t3 = now();
        for (int32_t i = 0; i < m; i += IWP_GEMM_COLS)
            for (int32_t j = 0; j < k; j += 1024)
                g->read(s, &op.mat, i, IWP_GEMM_COLS, j, k - j < 1024 ? k - j : 1024);
        double t4 = now();
        best[0] = fmin(best[0], t1 - t0), best[1] = fmin(best[1], t2 - t1);
        best[2] = fmin(best[2], t3 - t2), best[3] = fmin(best[3], t4 - t3);
    }
    const double flop = 2e-9 * n * k * m;
    printf("%-7s form %d, %d x %d x %d: %.1f, gated %.1f GFLOP/s; reading is %.1f %%, packing %.1f "
           "%% of the product\n",
           g->name, (int)form, n, k, m, flop / best[1], 2 * flop / best[2], 100 * best[3] / best[1],
           100 * best[0] / best[1]);
    free(w), free(x), free(y), free(rows), free(out), free(s);
}

/* The towers' products, 256 rows at a time as model/pack.c deals them: the best round. */
static const struct product {
    const char *name;
    int32_t k, m, hidden; /* hidden > 0: an MLP */
    bool gated, res;
} products[] = {
    {"Qwen2.5-VL q, k, v", 1280, 3840, 0, false, false},
    {"Qwen2.5-VL output", 1280, 1280, 0, false, true},
    {"Qwen2.5-VL MLP", 1280, 1280, 3420, true, true},
    {"merger, first", 5120, 5120, 0, false, false},
    {"merger, second", 5120, 3584, 0, false, false},
    {"SigLIP q, k, v", 1152, 3456, 0, false, false},
    {"SigLIP output", 1152, 1152, 0, false, true},
    {"SigLIP MLP", 1152, 1152, 4304, false, true},
};

static void bench_product(const struct iwp_gemm *g, const struct product *t) {
    const int32_t N = 2048, CHUNK = 256;
    const int32_t wide = t->hidden ? t->hidden : t->m;
    float *x = normals((size_t)(N * t->k), 1), *y = room((size_t)(N * t->m) * 4),
          *w = normals((size_t)(wide * t->k), 0.02f);
    uint16_t *in = pack(g, w, wide, t->k), *out = pack(g, w, t->m, wide);
    const struct iwp_gemm_mlp mlp = {.x = x,
                                     .stride = t->k,
                                     .norm = {w, NULL, 1e-6f, true},
                                     .gate = {t->gated ? in : NULL, NULL, t->k, wide, false},
                                     .up = {in, NULL, t->k, wide, false},
                                     .down = {out, NULL, wide, t->m, false},
                                     .act = t->gated ? IWP_GEMM_SILU : IWP_GEMM_GELU_TANH,
                                     .y = y};
    const struct iwp_gemm_linear linear = {.x = x,
                                           .res = t->res ? x : NULL,
                                           .x_stride = t->k,
                                           .y_stride = t->m,
                                           .norm = mlp.norm,
                                           .mat = {{in, NULL, t->k, t->m, false}},
                                           .n_mat = 1,
                                           .act = IWP_GEMM_NONE,
                                           .y = y};
    void *s = room(t->hidden ? iwp_gemm_mlp_scratch(g, &mlp, CHUNK)
                             : iwp_gemm_linear_scratch(g, &linear, CHUNK));
    const double flop = 2e-9 * N * t->k * wide * (t->hidden ? t->gated ? 3 : 2 : 1);
    double best = 1e9;
    for (int r = 0; r < 9; r++) {
        const double t0 = now();
        for (int32_t i = 0; i < N; i += CHUNK)
            if (t->hidden)
                g->mlp(&mlp, i, CHUNK, s);
            else
                g->linear(&linear, i, CHUNK, s);
        best = fmin(best, now() - t0);
        if (now() - t0 > 1) break;
    }
    printf("%-7s %s: %.1f GFLOP/s\n", g->name, t->name, flop / best);
    free(x), free(y), free(w), free(in), free(out), free(s);
}

static void bench(const struct iwp_gemm *g) {
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) bench_product(g, &products[i]);
    for (int32_t n = 32; n <= 512; n *= 4) {
        bench_bulk(g, IWP_GEMM_Q4_0, n, 3584, 3584, false);
        bench_bulk(g, IWP_GEMM_Q8_0, n, 3584, 3584, false);
        bench_bulk(g, IWP_GEMM_FILE_Q8_0, n, 3584, 3584, false);
    }
    bench_bulk(g, IWP_GEMM_Q8_0, 512, 3584, 3584, true);
    bench_bulk(g, IWP_GEMM_Q4_K, 512, 3584, 3584, false);
    bench_bulk(g, IWP_GEMM_FILE_F16, 512, 3584, 3584, !g->fine);
    bench_bulk(g, IWP_GEMM_FILE_BF16, 512, 3584, 3584, false);
    bench_bulk(g, IWP_GEMM_Q6_K, 512, 3584, 3584, false);
    for (int form = IWP_GEMM_FILE_Q3_K; form < IWP_GEMM_FILE; form++)
        bench_bulk(g, form, 512, 3584, 3584, false);
    bench_bulk(g, IWP_GEMM_Q4_0, 512, 3584, 18944, false);
    bench_bulk(g, IWP_GEMM_Q4_0, 512, 18944, 3584, false);
    const int32_t D = 1280, F = 3420, N = 2048;
    float *x = normals((size_t)(N * D), 1), *y = room((size_t)(N * 3 * D) * 4),
          *w = normals((size_t)(F * D), 0.02f);
    uint16_t *p = pack(g, w, F, D), *pd = pack(g, w, D, F);
    for (int32_t chunk = 64; chunk <= 1024; chunk *= 2) {
        struct iwp_gemm_mlp op = {.x = x,
                                  .stride = D,
                                  .norm = {w, NULL, 1e-6f, true},
                                  .gate = {p, NULL, D, F, false},
                                  .up = {p, NULL, D, F, false},
                                  .down = {pd, NULL, F, D, false},
                                  .act = IWP_GEMM_SILU,
                                  .y = y};
        struct iwp_gemm_linear lin = {.x = x,
                                      .x_stride = D,
                                      .y_stride = 3 * D,
                                      .norm = op.norm,
                                      .n_mat = 3,
                                      .act = IWP_GEMM_NONE,
                                      .y = y};
        for (int i = 0; i < 3; i++) lin.mat[i] = (struct iwp_gemm_mat){p, NULL, D, D, false};
        void *s = room(iwp_gemm_mlp_scratch(g, &op, chunk));
        double best[2] = {1e9, 1e9};
        for (int r = 0; r < 3; r++) {
            double t0 = now();
            for (int32_t i = 0; i < N; i += chunk) g->mlp(&op, i, chunk, s);
            double t1 = now();
            for (int32_t i = 0; i < N; i += chunk) g->linear(&lin, i, chunk, s);
            double t2 = now();
            best[0] = fmin(best[0], t1 - t0);
            best[1] = fmin(best[1], t2 - t1);
            if (t2 - t0 > 2) break;
        }
        printf("%-7s %4d rows at a time: mlp %7.1f, qkv %7.1f GFLOP/s\n", g->name, chunk,
               6.0 * N * D * F / best[0] * 1e-9, 6.0 * N * D * D / best[1] * 1e-9);
        free(s);
    }
    static const int32_t keys[] = {64, 729, 2025, 8100};
    for (int i = 0; i < 4; i++) {
        const int32_t nk = keys[i], nq = nk > 1024 ? 1024 : nk, d = 80;
        float *z = normals((size_t)nk * 3 * (size_t)d, 1),
              *rope = normals((size_t)nk * (size_t)d, 1);
        struct iwp_gemm_attend op = {.q = z,
                                     .k = z + d,
                                     .v = z + 2 * d,
                                     .q_stride = 3 * d,
                                     .k_stride = 3 * d,
                                     .v_stride = 3 * d,
                                     .out_stride = d,
                                     .rope_q = rope,
                                     .rope_k = rope,
                                     .rope_stride = d,
                                     .n_q = nq,
                                     .n_k = nk,
                                     .d = d,
                                     .d_v = d,
                                     .scale = 0.1f,
                                     .out = y};
        void *s = room(iwp_gemm_attend_scratch(g, nk, d, d, false));
        const int rounds = 1 + (1 << 20) / (nq * nk / 8 + 1);
        double t0 = now();
        for (int r = 0; r < rounds; r++) g->attend(&op, s);
        double t1 = now();
        printf("%-7s attend %d on %d: %.1f GFLOP/s\n", g->name, nq, nk,
               4.0 * nq * nk * d * rounds / (t1 - t0) * 1e-9);
        free(z), free(rope), free(s);
    }
    free(x), free(y), free(w), free(p), free(pd);
}

int main(int argc, char **argv) {
    const bool timing = argc > 1 && strcmp(argv[1], "--bench") == 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const struct iwp_gemm *g = iwp_gemm_path(paths[i]);
        if (argc > 2 && strcmp(argv[2], paths[i]) != 0) continue;
        fprintf(stderr, "%s: %s\n", paths[i], g ? "here" : "this CPU lacks it");
        if (g && timing) bench(g);
        for (int twice = 0; g && !timing && twice < (g->fine ? 1 : 2); twice++) {
            split = twice;
            check_path(g);
        }
    }
    return timing ? 0 : test_done();
}
