/* Every kernel of struct iwp_kern, on every path this CPU has: the same bits as the C reference, for
 * sizes around every vector width, unaligned data and hostile values; and the reference itself
 * against double arithmetic.  `--bench` prints timings instead. */
#include "test.h"

#include <float.h>
#include <time.h>

#include "base/half.h"
#include "kern/kern.h"

enum { BIG = 4096, SLACK = 16 };
static const char *const paths[] = {"avx2", "avx512", "neon"};
static uint64_t seed = 0x1234567;

/* Random values; kind 0 ordinary, 1 with zeros and subnormals, 2 with huge ones. */
static float value(int kind) {
    float x = test_normal(&seed);
    uint64_t r = test_rand(&seed) % 16;
    if (kind == 1)
        return r < 3 ? 0.0f : r == 3 ? -0.0f : r < 7 ? x * 1e-39f : r < 9 ? x * FLT_MIN : x;
    if (kind == 2)
        return r < 2 ? x * 1e30f : r < 4 ? x * 1e19f : r == 4 ? FLT_MAX : r == 5 ? -FLT_MAX : x;
    return x;
}

static void fill(float *x, int64_t n, int kind) {
    for (int64_t i = 0; i < n; i++) x[i] = value(kind);
}

/* Equal bits, or both NaN (whose payload no caller sees). */
static int same(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) != 0 && !(a[i] != a[i] && b[i] != b[i])) return 0;
    return 1;
}

static const int32_t sizes[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,  11,  12,  15,  16,  17,
                                23, 24, 25, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 1000};
enum { N_SIZE = (int)(sizeof sizes / sizeof sizes[0]) };

/* ---- bit for bit --------------------------------------------------------------------------------- */

static void compare_dots(const struct iwp_kern *c, const struct iwp_kern *k) {
    static float x[BIG], q[24 * BIG], a[32], b[32];
    for (int s = 0; s < N_SIZE; s++)
        for (int kind = 0; kind < 3; kind++)
            for (int off = 0; off < 4; off++)
                for (int32_t n_q = 0; n_q <= 18; n_q += off + 1) {
                    int32_t d = sizes[s];
                    int64_t stride = d + (off == 3 ? 5 : 0);
                    fill(x, d + SLACK, kind);
                    fill(q, (n_q + 1) * stride + SLACK, kind);
                    a[n_q] = b[n_q] = 77;
                    c->dots(a, x + off, q + off, stride, n_q, d);
                    k->dots(b, x + off, q + off, stride, n_q, d);
                    CHECK_MSG(same(a, b, n_q + 1), "%s dots d %d, %d rows, kind %d", k->name, d,
                              n_q, kind);
                    a[0] = c->norm2(x + off, d);
                    b[0] = k->norm2(x + off, d);
                    CHECK_MSG(same(a, b, 1), "%s norm2 d %d kind %d", k->name, d, kind);
                }
}

static void compare_many_dots(const struct iwp_kern *c, const struct iwp_kern *k) {
    static float x[40 * 1024], q[24 * 1024], a[24 * 40], b[24 * 40];
    for (int s = 0; s < N_SIZE; s++)
        for (int kind = 0; kind < 3; kind++)
            for (int32_t n_x = 0; n_x <= 35; n_x = n_x < 5 ? n_x + 1 : 2 * n_x - 1)
                for (int32_t n_q = 0; n_q <= 18; n_q++) {
                    int32_t d = sizes[s], off = (n_x + n_q) % 4, pad = n_q % 2 ? 3 : 0;
                    fill(x, (int64_t)n_x * (d + pad) + SLACK, kind);
                    fill(q, (int64_t)n_q * (d + pad) + SLACK, kind);
                    for (int i = 0; i < 24 * 40; i++) a[i] = b[i] = 77;
                    c->dots_rows(a, 40, x + off, d + pad, n_x, q + off, d + pad, n_q, d);
                    k->dots_rows(b, 40, x + off, d + pad, n_x, q + off, d + pad, n_q, d);
                    CHECK_MSG(same(a, b, 24 * 40), "%s dots_rows d %d, %d x %d, kind %d", k->name,
                              d, n_x, n_q, kind);
                    for (int32_t i = 0; i < n_x; i++) { /* and the same as row by row */
                        c->dots(b, x + off + i * (d + pad), q + off, d + pad, n_q, d);
                        for (int32_t j = 0; j < n_q; j++)
                            CHECK_MSG(same(a + j * 40 + i, b + j, 1), "dots_rows is not dots");
                    }
                    a[n_x] = b[n_x] = 77;
                    c->norms2(a, x + off, d + pad, n_x, d);
                    k->norms2(b, x + off, d + pad, n_x, d);
                    CHECK_MSG(same(a, b, n_x + 1), "%s norms2 d %d, %d rows, kind %d", k->name, d,
                              n_x, kind);
                }
}

static void compare_heads(const struct iwp_kern *c, const struct iwp_kern *k) {
    static float l[1024], w[1024], top[2][1024], sum[2][1024];
    for (int s = 0; s < N_SIZE; s++)
        for (int kind = 0; kind < 3; kind++)
            for (int weighted = 0; weighted < 2; weighted++) {
                int32_t n = sizes[s];
                double offset = kind ? 1e19 : 0.1234567890123;
                fill(l, n, kind);
                fill(w, n, kind);
                for (int i = 0; i < 1024; i++)
                    top[0][i] = top[1][i] = i % 3 ? -INFINITY : value(0),
                    sum[0][i] = sum[1][i] = 0.5f;
                c->head_top(top[0], l, offset, weighted ? w : NULL, n);
                k->head_top(top[1], l, offset, weighted ? w : NULL, n);
                CHECK_MSG(same(top[0], top[1], 1024), "%s head_top n %d kind %d", k->name, n, kind);
                c->head_sum(sum[0], top[0], l, offset, weighted ? w : NULL, n);
                k->head_sum(sum[1], top[0], l, offset, weighted ? w : NULL, n);
                CHECK_MSG(same(sum[0], sum[1], 1024), "%s head_sum n %d kind %d", k->name, n, kind);
                float a = c->max_of(l, n), b = k->max_of(l, n), m = -INFINITY;
                for (int32_t i = 0; i < n; i++) m = l[i] > m ? l[i] : m;
                CHECK_MSG(a == b && a == m, "%s max_of n %d kind %d", k->name, n, kind);
            }
}

static void compare_panels(const struct iwp_kern *c, const struct iwp_kern *k) {
    static float panel[IWP_PANEL * 1024 + SLACK], block[IWP_BLOCK * 1024 + SLACK];
    float a[IWP_BLOCK * IWP_PANEL + 1], b[IWP_BLOCK * IWP_PANEL + 1];
    for (int s = 0; s < N_SIZE; s++)
        for (int kind = 0; kind < 3; kind++)
            for (int32_t rows = 0; rows <= IWP_BLOCK; rows++) {
                int32_t d = sizes[s], off = (s + rows) % 4;
                fill(panel, (int64_t)d * IWP_PANEL + SLACK, kind);
                fill(block, (int64_t)d * rows + SLACK, kind);
                for (int i = 0; i <= IWP_BLOCK * IWP_PANEL; i++) a[i] = b[i] = 77;
                c->panel_dots(a, panel + off, block + off, rows, d);
                k->panel_dots(b, panel + off, block + off, rows, d);
                CHECK_MSG(same(a, b, IWP_BLOCK * IWP_PANEL + 1), "%s panel_dots d %d, %d rows",
                          k->name, d, rows);
            }
}

static void compare_exp(const struct iwp_kern *c, const struct iwp_kern *k) {
    static float a[BIG + SLACK], b[BIG + SLACK];
    static const float hard[] = {0,        -0.0f,     -1e-45f, -1e-39f, -86.999f,
                                 -87,      -87.1f,    -103.9f, -1e4f,   -1e30f,
                                 -FLT_MAX, -INFINITY, NAN,     -0.5f,   -0.3465736f};
    for (int s = 0; s < N_SIZE; s++)
        for (int kind = 0; kind < 3; kind++)
            for (int off = 0; off < 4; off++) {
                int32_t n = sizes[s];
                float shift = kind == 2 ? 1e4f : 3;
                for (int32_t i = 0; i < n + SLACK; i++) {
                    float x = -fabsf(test_normal(&seed)) * (kind == 1 ? 40.0f : 3.0f);
                    if (kind == 2 && i % 2) x = hard[(size_t)i / 2 % (sizeof hard / 4)];
                    a[i] = b[i] = x + shift;
                }
                float sa = c->exp_shift_sum(a + off, shift, n),
                      sb = k->exp_shift_sum(b + off, shift, n);
                CHECK_MSG(same(&sa, &sb, 1), "%s exp_shift_sum n %d: %a %a", k->name, n, (double)sa,
                          (double)sb);
                CHECK_MSG(same(a, b, n + SLACK), "%s exp_shift_sum n %d", k->name, n);
            }
}

static void compare_rows(const struct iwp_kern *c, const struct iwp_kern *k) {
    float kk[IWP_PANEL + 4], cv[IWP_PANEL + 4], n2[IWP_PANEL + 4], a[IWP_PANEL + 4],
        b[IWP_PANEL + 4];
    static const float scales[] = {0.0441941738f, 0.125f, 1e-20f, 1e20f, 0};
    for (int round = 0; round < 3000; round++) {
        int kind = round % 3, off = round % 4;
        fill(kk, IWP_PANEL + 4, kind);
        fill(cv, IWP_PANEL + 4, kind);
        fill(n2, IWP_PANEL + 4, kind);
        for (int i = 0; i < IWP_PANEL + 4; i++) n2[i] = fabsf(n2[i]);
        fill(a, IWP_PANEL + 4, kind == 2 ? 0 : kind);
        memcpy(b, a, sizeof a);
        float rn = fabsf(value(kind)), sc = scales[test_rand(&seed) % 5];
        if (round % 50 == 7) rn = INFINITY; /* a norm that overflowed: no NaN may come out */
        c->dw_row(a + off, kk + off, cv + off, n2 + off, rn, sc);
        k->dw_row(b + off, kk + off, cv + off, n2 + off, rn, sc);
        CHECK_MSG(same(a, b, IWP_PANEL + 4), "%s dw_row round %d", k->name, round);
        c->rbf_row(a + off, kk + off, n2 + off, rn, sc);
        k->rbf_row(b + off, kk + off, n2 + off, rn, sc);
        CHECK_MSG(same(a, b, IWP_PANEL + 4), "%s rbf_row round %d", k->name, round);
        for (int i = off; i < off + IWP_PANEL; i++)
            CHECK_MSG(a[i] >= 0 && a[i] <= 1, "rbf is %g", (double)a[i]);
        fill(a, IWP_PANEL + 4, kind);
        memcpy(b, a, sizeof a);
        int32_t n = round % (IWP_PANEL + 1);
        c->max_row(a + off, kk + off, n);
        k->max_row(b + off, kk + off, n);
        CHECK_MSG(same(a, b, IWP_PANEL + 4), "%s max_row n %d", k->name, n);
    }
}

static void compare_moves(const struct iwp_kern *c, const struct iwp_kern *k) {
    static uint16_t h[65536 + SLACK];
    static float a[65536 + SLACK], b[65536 + SLACK];
    for (int i = 0; i < 65536 + SLACK; i++) h[i] = (uint16_t)i;
    c->f16_to_f32(h, a, 65536);
    k->f16_to_f32(h, b, 65536);
    CHECK_MSG(same(a, b, 65536), "%s f16_to_f32", k->name);
    for (int s = 0; s < N_SIZE; s++) {
        for (int i = 0; i < 1024; i++) a[i] = b[i] = 77;
        c->f16_to_f32(h + 15361, a + 1, sizes[s]);
        k->f16_to_f32(h + 15361, b + 1, sizes[s]);
        CHECK_MSG(same(a, b, 1024), "%s f16_to_f32 n %d", k->name, sizes[s]);
    }
    static float rows[IWP_PANEL * 300];
    for (int s = 0; s < N_SIZE; s++) {
        int32_t n = sizes[s] > 255 ? 255 : sizes[s], stride = n + s % 3, off = s % 4;
        fill(rows, (int64_t)stride * IWP_PANEL + SLACK, 0);
        for (int i = 0; i < (n + 1) * IWP_PANEL; i++) a[i] = b[i] = 77;
        c->to_lanes(a, rows + off, stride, n);
        k->to_lanes(b, rows + off, stride, n);
        CHECK_MSG(same(a, b, (n + 1) * IWP_PANEL), "%s to_lanes n %d", k->name, n);
    }
}

TEST(paths_equal_reference) {
    const struct iwp_kern *c = iwp_kern_path("c");
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        const struct iwp_kern *k = iwp_kern_path(paths[i]);
        fprintf(stderr, "path %s: %s\n", paths[i], k ? "compared" : "not on this CPU");
        if (!k) continue;
        CHECK_STR(k->name, paths[i]);
        compare_dots(c, k);
        compare_panels(c, k);
        compare_many_dots(c, k);
        compare_heads(c, k);
        compare_exp(c, k);
        compare_rows(c, k);
        compare_moves(c, k);
    }
}

/* ---- the reference is right ---------------------------------------------------------------------- */

TEST(reference_products) {
    const struct iwp_kern *c = iwp_kern_path("c");
    float x[300], q[300], panel[300 * IWP_PANEL], block[300 * 3], out[3 * IWP_PANEL];
    for (int s = 0; s < N_SIZE && sizes[s] <= 255; s++) {
        int32_t d = sizes[s];
        fill(x, d, 0);
        fill(q, d, 0);
        double want = 0, size = 0, n2 = 0;
        for (int t = 0; t < d; t++) {
            want += (double)x[t] * (double)q[t];
            size += fabs((double)x[t] * (double)q[t]);
            n2 += (double)x[t] * (double)x[t];
        }
        c->dots(out, x, q, d, 1, d);
        CHECK_NEAR(out[0], want, size * d * 6e-8);
        CHECK_NEAR(c->norm2(x, d), n2, n2 * d * 6e-8);
        fill(panel, d * IWP_PANEL, 0);
        fill(block, d * 3, 0);
        c->panel_dots(out, panel, block, 3, d);
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < IWP_PANEL; i++) {
                want = size = 0;
                for (int t = 0; t < d; t++) {
                    double y = (double)panel[t * IWP_PANEL + i] * (double)block[t * 3 + r];
                    want += y;
                    size += fabs(y);
                }
                CHECK_NEAR(out[r * IWP_PANEL + i], want, size * d * 6e-8);
            }
    }
}

/* Stated in kern.h: relative error below 2.5e-7 (two units in the last place) between IWP_EXP_LOW and
 * 88; flat below. */
TEST(exp_error) {
    double worst = 0, at = 0;
    for (int i = 0; i <= 1000000; i++) {
        float x = -87.0f + (float)i * (175.0f / 1000000);
        if (x > 88) x = 88;
        double want = exp((double)x), rel = fabs((double)iwp_kern_expf(x) - want) / want;
        if (rel > worst) worst = rel, at = (double)x;
    }
    fprintf(stderr, "exp: largest relative error %.3g at %g\n", worst, at);
    CHECK_MSG(worst < 2.5e-7, "%g at %g", worst, at);
    CHECK(iwp_kern_expf(0) == 1 && iwp_kern_expf(-0.0f) == 1);
    CHECK(iwp_kern_expf(-1e30f) == iwp_kern_expf(IWP_EXP_LOW));
    CHECK(iwp_kern_expf(-INFINITY) == iwp_kern_expf(IWP_EXP_LOW));
    CHECK(iwp_kern_expf(IWP_EXP_LOW) > 0 && iwp_kern_expf(IWP_EXP_LOW) < 2e-38f);
    for (float x = -87; x < 0; x = nextafterf(x, 0) + 1e-3f) /* larger x, never a smaller value */
        CHECK(iwp_kern_expf(x) <= iwp_kern_expf(x + 1e-3f));
}

TEST(reference_rows) {
    const struct iwp_kern *c = iwp_kern_path("c");
    float k[2][IWP_PANEL], cv[IWP_PANEL], kk[IWP_PANEL], n2[IWP_PANEL], x[IWP_PANEL],
        acc[IWP_PANEL];
    const float scale = 0.125f;
    fill(k[0], IWP_PANEL, 0);
    fill(cv, IWP_PANEL, 0);
    float other = 0.75f;
    for (int i = 0; i < IWP_PANEL; i++) {
        kk[i] = k[0][i] * other;
        n2[i] = k[0][i] * k[0][i];
        acc[i] = 1;
    }
    c->rbf_row(x, kk, n2, other * other, scale);
    c->dw_row(acc, kk, cv, n2, other * other, scale);
    for (int i = 0; i < IWP_PANEL; i++) {
        double gap = (double)k[0][i] - (double)other, want = exp(-gap * gap * (double)scale);
        CHECK_NEAR(x[i], want, 1e-6);
        CHECK_NEAR(acc[i], 1 + pow((double)cv[i] * want, 2), 1e-5);
    }
    /* distances that overflow mean "unlike", never "equal" */
    n2[0] = INFINITY;
    kk[0] = INFINITY;
    c->rbf_row(x, kk, n2, 1, scale);
    CHECK_MSG(x[0] < 1e-30f, "%g", (double)x[0]);
}

TEST(reference_moves) {
    const struct iwp_kern *c = iwp_kern_path("c");
    uint16_t h[64];
    float f[64], m[3] = {1, 2, -3}, x[3] = {2, 1, -4}, rows[IWP_PANEL * 3], lanes[IWP_PANEL * 2];
    for (int base = 0; base < 65536; base += 64) {
        for (int i = 0; i < 64; i++) h[i] = (uint16_t)(base + i);
        c->f16_to_f32(h, f, 64);
        for (int i = 0; i < 64; i++) {
            float want = iwp_f16_to_f32(h[i]);
            CHECK(same(&f[i], &want, 1));
        }
    }
    c->max_row(m, x, 3);
    CHECK(m[0] == 2 && m[1] == 2 && m[2] == -3);
    for (int i = 0; i < IWP_PANEL * 3; i++) rows[i] = (float)i;
    c->to_lanes(lanes, rows, 3, 2);
    CHECK(lanes[0] == 0 && lanes[1] == 3 && lanes[31] == 93 && lanes[32] == 1 && lanes[63] == 94);
}

/* ---- timings ------------------------------------------------------------------------------------ */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void bench(const struct iwp_kern *k) {
    static float panel[IWP_PANEL * 128], block[IWP_BLOCK * 128], out[IWP_BLOCK * IWP_PANEL], x[BIG],
        q[28 * 128], n2[IWP_PANEL], rows[IWP_PANEL * 128];
    fill(panel, IWP_PANEL * 128, 0);
    fill(block, IWP_BLOCK * 128, 0);
    fill(q, 28 * 128, 0);
    fill(rows, IWP_PANEL * 128, 0);
    enum { ROUNDS = 2000 };
    double t0 = now();
    for (int i = 0; i < ROUNDS; i++) k->panel_dots(out, panel, block, IWP_BLOCK, 128);
    double t1 = now();
    for (int i = 0; i < ROUNDS; i++) k->dots(out, panel + i % 512, q, 128, 28, 128);
    double t2 = now();
    for (int i = 0; i < ROUNDS / 10; i++) {
        for (int j = 0; j < BIG; j++) x[j] = -(float)j * 0.01f;
        k->exp_shift_sum(x, 0, BIG);
    }
    double t3 = now();
    for (int i = 0; i < ROUNDS; i++)
        for (int r = 0; r < IWP_BLOCK; r++) k->dw_row(out, panel + r, panel + 64 + r, n2, 1, 0.04f);
    double t4 = now();
    for (int i = 0; i < ROUNDS; i++) k->to_lanes(panel, rows, 128, 128);
    double t5 = now();
    double n = ROUNDS, pairs = n * (IWP_BLOCK * IWP_PANEL);
    printf("%-7s panel_dots %6.1f GFLOP/s  dots %6.1f GFLOP/s  exp %6.2f G/s  dw_row %6.2f G/s  "
           "to_lanes %6.2f GB/s\n",
           k->name, 2 * pairs * 128 / (t1 - t0) * 1e-9, 2 * n * 28 * 128 / (t2 - t1) * 1e-9,
           n / 10 * (double)BIG / (t3 - t2) * 1e-9, pairs / (t4 - t3) * 1e-9,
           4 * n * (IWP_PANEL * 128) / (t5 - t4) * 1e-9);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench(iwp_kern_path("c"));
        for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
            if (iwp_kern_path(paths[i])) bench(iwp_kern_path(paths[i]));
        return 0;
    }
    test_paths_equal_reference();
    test_reference_products();
    test_exp_error();
    test_reference_rows();
    test_reference_moves();
    return test_done();
}
