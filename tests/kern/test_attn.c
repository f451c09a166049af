/* Attention on every path of this CPU against double arithmetic: lengths around the blocks of 32 queries,
 * 32 and 128 keys and the pieces of 256, groups of 1 to 17 heads, up to 40 KV heads, all cache types, biases.
 *
 * Bounds.  An output is a mean of values v with weights w; rounding changes it by at most
 * e (4 + 2 L) sum(w |v|), where L is the largest sum of |q k| scale over a key and e is what a path loses per
 * factor: f32 sums and the exponential 4e-6, AMX's pairs of bf16 numbers and the integers of a q8_0 cache 2e-5.
 * Rows of a cache beyond the last one are NaN here and everything is cut in several ways: results must be
 * the same bits.  `--bench [PATH]` prints GFLOP/s and GB/s of one thread instead. */
#include "test.h"

#include <time.h>

#include "base/half.h"
#include "kern/attn.h"
#include "kern/peak.h"

static const char *const paths[] = {"c", "avx2", "avx512", "vnni", "amx"};
static const char *const types[] = {"f32", "f16", "q8_0"};
static uint64_t seed = 0x41;

static void *room(size_t n) {
    void *p = NULL;
    if (posix_memalign(&p, 64, n + 64) != 0) abort();
    memset(p, 0xff, n + 64); /* NaN in all types */
    return p;
}

/* ---- a cache ------------------------------------------------------------------------------------ */

static size_t row_bytes(enum iwp_attn_type t, int32_t n) {
    return t == IWP_ATTN_F32   ? 4 * (size_t)n
           : t == IWP_ATTN_F16 ? 2 * (size_t)n
                               : 34 * (size_t)(n / 32);
}

/* n rows of `width` random numbers, and as many rows of NaN behind; `plain` gets what they stand for.  `uneven`: some
 * blocks of q8_0 are up to a thousand times as large as others, as those of a first token may be. */
static struct iwp_attn_rows cache(enum iwp_attn_type t, int32_t n, int32_t heads, int32_t d,
                                  float size, bool uneven, float **plain) {
    const int32_t width = heads * d;
    const size_t row = row_bytes(t, width);
    uint8_t *data = room(2 * (size_t)n * row);
    *plain = room((size_t)n * (size_t)width * 4);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < width; j++) {
            float x = size * test_normal(&seed),
                  *to = &(*plain)[(size_t)i * (size_t)width + (size_t)j];
            uint8_t *p = data + (size_t)i * row;
            *to = x;
            if (t == IWP_ATTN_F32) memcpy(p + 4 * j, &x, 4);
            if (t == IWP_ATTN_F16) {
                const uint16_t h = iwp_f32_to_f16(x);
                memcpy(p + 2 * j, &h, 2);
                *to = iwp_f16_to_f32(h);
            }
            if (t == IWP_ATTN_Q8_0) {
                const uint32_t block = ((uint32_t)i * 977 + (uint32_t)(j / 32) * 40503) % 11;
                const uint16_t h = iwp_f32_to_f16(size / 32 / (float)(1 << (uneven ? block : 0)));
                const float q = roundf(x / iwp_f16_to_f32(h));
                const int8_t b = (int8_t)(q < -127 ? -127 : q > 127 ? 127 : q);
                memcpy(p + 34 * (j / 32), &h, 2);
                memcpy(p + 34 * (j / 32) + 2 + j % 32, &b, 1);
                *to = (float)b * iwp_f16_to_f32(h);
            }
        }
    return (struct iwp_attn_rows){data, row, row_bytes(t, d), t};
}

/* ---- one case ------------------------------------------------------------------------------------ */

struct shape {
    int32_t n, n_kv, heads, kv_heads, d;
    enum iwp_attn_type type_k, type_v;
    float size; /* of queries and keys */
    bool bias;
};

struct scene {
    struct shape s;
    struct iwp_attn op;
    float *q, *k, *v, *bias;
};

static void set_up(struct scene *c, const struct shape *s) {
    const int64_t row = (int64_t)s->heads * s->d;
    memset(c, 0, sizeof *c);
    c->s = *s;
    c->q = room((size_t)(s->n * row) * 4);
    for (int64_t i = 0; i < s->n * row; i++) c->q[i] = s->size * test_normal(&seed);
    c->bias = room((size_t)s->n_kv * 4);
    for (int32_t i = 0; i < s->n_kv; i++)
        c->bias[i] = i % 3 ? 0 : logf(1 + (float)(test_rand(&seed) % 50));
    c->op =
        (struct iwp_attn){.q = c->q,
                          .q_row = row,
                          .q_head = s->d,
                          .k = cache(s->type_k, s->n_kv, s->kv_heads, s->d, s->size, false, &c->k),
                          .v = cache(s->type_v, s->n_kv, s->kv_heads, s->d, 1, true, &c->v),
                          .bias = s->bias ? c->bias : NULL,
                          .n = s->n,
                          .n_kv = s->n_kv,
                          .n_head = s->heads,
                          .n_head_kv = s->kv_heads,
                          .d = s->d,
                          .scale = 1 / sqrtf((float)s->d),
                          .out_row = row};
}

static void clean_up(struct scene *c) {
    free((void *)(uintptr_t)c->op.k.data), free((void *)(uintptr_t)c->op.v.data);
    free(c->q), free(c->k), free(c->v), free(c->bias);
}

/* All of it, `step` queries at a time; in pieces `step` KV heads. */
static float *run(const struct iwp_attn_path *p, struct iwp_attn op, int32_t step, bool pieces) {
    const int32_t queries = op.n * (op.n_head / op.n_head_kv), chunks = iwp_attn_chunks(op.n_kv);
    const size_t size = iwp_attn_part_size(&op), stride = (size_t)chunks * size;
    float *y = room((size_t)(op.n * op.out_row) * 4);
    void *scratch = room(iwp_attn_scratch(&op, pieces ? 0 : step));
    op.out = y;
    float *part = room((size_t)op.n_head_kv * stride * 4);
    for (int32_t g = 0; !pieces && g < op.n_head_kv; g++)
        for (int32_t i = 0; i < queries; i += step)
            p->many(&op, g, i, queries - i < step ? queries - i : step, scratch);
    for (int32_t g = 0; pieces && g < op.n_head_kv; g += step)
        for (int32_t c = chunks - 1; c >= 0; c--)
            p->one(&op, g, op.n_head_kv - g < step ? op.n_head_kv - g : step, c,
                   part + (size_t)g * stride + (size_t)c * size, stride, scratch);
    for (int32_t g = 0; pieces && g < op.n_head_kv; g++)
        iwp_attn_join(&op, g, part + (size_t)g * stride);
    free(scratch), free(part);
    return y;
}

/* The largest of the n numbers around x[at]. */
static double largest_of(const float *x, int32_t at, int32_t n) {
    float most = 0;
    for (int32_t t = at / n * n; t < at / n * n + n; t++) most = fmaxf(most, fabsf(x[t]));
    return (double)most;
}

/* The largest error of row i, head h as a multiple of (4 + 2 L) sum(w |v|); with integers |q| is the largest of the
 * head and |v| the largest of 32, as a q8_0 cache rounds, too. */
static double error_of(const struct scene *c, const float *y, int32_t i, int32_t h, bool integers,
                       double *w) {
    const struct shape *s = &c->s;
    const int32_t d = s->d, seen = s->n_kv - s->n + i + 1, g = h / (s->heads / s->kv_heads);
    const size_t width = (size_t)(s->kv_heads * d), at = (size_t)(i * s->heads + h) * (size_t)d;
    double top = -1e300, total = 0, longest = 0, worst = 0;
    for (int32_t j = 0; j < seen; j++) {
        const float *k = c->k + (size_t)j * width + (size_t)(g * d);
        double dot = 0, size = 0;
        for (int32_t t = 0; t < d; t++) {
            const double p = (double)c->q[at + (size_t)t] * (double)k[t];
            dot += p;
            size += integers ? largest_of(c->q + at, t, d) * fabs((double)k[t]) : fabs(p);
        }
        w[j] = dot * (double)c->op.scale + (s->bias ? (double)c->bias[j] : 0);
        top = fmax(top, w[j]);
        longest = fmax(longest, size * (double)c->op.scale);
    }
    for (int32_t j = 0; j < seen; j++) total += w[j] = exp(w[j] - top);
    for (int32_t t = 0; t < d; t++) {
        double want = 0, size = 0;
        for (int32_t j = 0; j < seen; j++) {
            const float *v = c->v + (size_t)j * width + (size_t)(g * d);
            const double p = w[j] / total * (double)v[t];
            want += p;
            size += integers ? w[j] / total * largest_of(v, t, 32) : fabs(p);
        }
        const double e =
            fabs((double)y[at + (size_t)t] - want) / ((4 + 2 * longest) * size + 1e-30);
        if (!(e <= worst)) worst = e;
    }
    return worst;
}

static void check(const struct iwp_attn_path *p, const struct shape *s) {
    struct scene c;
    set_up(&c, s);
    const int32_t queries = s->n * (s->heads / s->kv_heads);
    const bool amx = strcmp(p->name, "amx") == 0, vnni = amx || strcmp(p->name, "vnni") == 0;
    const bool integers = vnni && s->type_k == IWP_ATTN_Q8_0 && s->type_v == IWP_ATTN_Q8_0;
    double *w = room((size_t)s->n_kv * 8), worst = 0;
    float *y = run(p, c.op, queries, false), *z = run(p, c.op, 32, false);
    const size_t bytes = (size_t)(s->n * c.op.out_row) * 4;
    CHECK_MSG(memcmp(y, z, bytes) == 0, "%s: 32 queries at a time differ", p->name);
    free(z);
    for (int32_t i = 0; i < s->n; i += s->n > 40 ? 7 : 1)
        for (int32_t h = 0; h < s->heads; h++) worst = fmax(worst, error_of(&c, y, i, h, false, w));
    CHECK_MSG(worst <= (amx ? 2e-5 : 4e-6), "%s: n %d of %d, heads %d/%d of %d, %s %s, bias %d: %g",
              p->name, s->n, s->n_kv, s->heads, s->kv_heads, s->d, types[s->type_k],
              types[s->type_v], s->bias, worst);
    /* The last rows alone give what they gave among all. */
    struct iwp_attn tail = c.op;
    tail.n = s->n / 2 > 0 ? s->n / 2 : 1;
    tail.q += (s->n - tail.n) * tail.q_row;
    z = run(p, tail, 64, false);
    CHECK_MSG(memcmp(y + (s->n - tail.n) * c.op.out_row, z, (size_t)(tail.n * c.op.out_row) * 4) ==
                  0,
              "%s: the last %d of %d rows differ", p->name, tail.n, s->n);
    free(z);
    /* One row: the last. */
    tail.n = 1;
    tail.q = c.op.q + (s->n - 1) * c.op.q_row;
    z = run(p, tail, s->kv_heads, true);
    float *each = run(p, tail, 1, true);
    CHECK_MSG(memcmp(each, z, (size_t)c.op.out_row * 4) == 0, "%s: KV heads one by one differ",
              p->name);
    free(each);
    memcpy(y + (s->n - 1) * c.op.out_row, z, (size_t)c.op.out_row * 4);
    worst = 0;
    for (int32_t h = 0; h < s->heads; h++)
        worst = fmax(worst, error_of(&c, y, s->n - 1, h, integers, w));
    CHECK_MSG(worst <= (integers ? 2e-5 : 4e-6),
              "%s: one row on %d, heads %d/%d of %d, %s %s, bias %d: %g", p->name, s->n_kv,
              s->heads, s->kv_heads, s->d, types[s->type_k], types[s->type_v], s->bias, worst);
    free(y), free(z), free(w);
    clean_up(&c);
}

static void check_path(const struct iwp_attn_path *p) {
    static const int32_t past[] = {0, 1, 31, 96, 127, 128, 300, 513},
                         rows[] = {1, 2, 5, 31, 33, 64, 70}, sizes[] = {64, 80, 96, 128, 16, 48};
    int kind = 0;
    for (size_t a = 0; a < sizeof past / sizeof *past; a++)
        for (size_t b = 0; b < sizeof rows / sizeof *rows; b++, kind++) {
            const int32_t group = kind % 8 + 1, kv_heads = 1 + kind % 3, d = sizes[kind % 6];
            struct shape s = {.n = rows[b],
                              .n_kv = past[a] + rows[b],
                              .heads = group * kv_heads,
                              .kv_heads = kv_heads,
                              .d = d,
                              .type_k = (enum iwp_attn_type)(kind % 3),
                              .type_v = (enum iwp_attn_type)(kind / 2 % 3),
                              .size = kind % 5 == 0 ? 3 : 1,
                              .bias = kind % 4 == 1};
            if (d % 32 != 0 && s.type_k == IWP_ATTN_Q8_0) s.type_k = IWP_ATTN_F16;
            if (d % 32 != 0 && s.type_v == IWP_ATTN_Q8_0) s.type_v = IWP_ATTN_F16;
            check(p, &s);
        }
}

/* A key with nearly all of the weight and hardly any value, as a first token has them, does not cost the others'
 * accuracy. */
static void check_first(const struct iwp_attn_path *p) {
    for (int32_t n = 20; n < 300; n += 93) {
        struct scene c;
        set_up(&c, &(struct shape){.n = 1,
                                   .n_kv = n,
                                   .heads = 14,
                                   .kv_heads = 2,
                                   .d = 64,
                                   .type_k = IWP_ATTN_Q8_0,
                                   .type_v = IWP_ATTN_Q8_0,
                                   .size = 1,
                                   .bias = true});
        for (int32_t i = 0; i < n; i++) c.bias[i] = i ? 0 : 11;
        uint8_t *v = (uint8_t *)(uintptr_t)c.op.v.data;
        for (int32_t i = 0; i < n; i++)
            for (int32_t j = 0; j < 2 * 64; j += 32) {
                const uint16_t h = iwp_f32_to_f16(i ? 1 / 32.0f : 1 / 32.0f / 65536);
                memcpy(v + (size_t)i * c.op.v.row + 34 * (size_t)(j / 32), &h, sizeof h);
                for (int t = 0; t < 32; t++) {
                    const int8_t *b =
                        (const int8_t *)(v + (size_t)i * c.op.v.row + 34 * (size_t)(j / 32) + 2);
                    c.v[i * 2 * 64 + j + t] = (float)b[t] * iwp_f16_to_f32(h);
                }
            }
        float *y = run(p, c.op, 1, true);
        double *w = room((size_t)n * 8), worst = 0;
        for (int32_t h = 0; h < 14; h++) worst = fmax(worst, error_of(&c, y, 0, h, true, w));
        CHECK_MSG(worst <= 2e-5, "%s: behind a first token, %d keys: %g", p->name, n, worst);
        free(y), free(w);
        clean_up(&c);
    }
}

/* A value that is no number makes the result none, on whichever side of a step or piece it lies. */
static void check_none(const struct iwp_attn_path *p) {
    static const int32_t rows[] = {0, 15, 16, 33, 255, 256, 269};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int t = 0; t < 3; t++) {
            struct scene c;
            set_up(&c, &(struct shape){.n = 1,
                                       .n_kv = 270,
                                       .heads = 6,
                                       .kv_heads = 2,
                                       .d = 64,
                                       .type_k = (enum iwp_attn_type)t,
                                       .type_v = (enum iwp_attn_type)t,
                                       .size = 1});
            uint8_t *row = (uint8_t *)(uintptr_t)c.op.v.data + (size_t)rows[r] * c.op.v.row;
            memset(row + c.op.v.head, 0xff, t == IWP_ATTN_Q8_0 ? 2 : 4); /* the second KV head */
            float *y = run(p, c.op, 1, true);
            CHECK_MSG(isfinite(y[2 * 64]) && isnan(y[3 * 64]) && isnan(y[5 * 64]),
                      "%s: %s, row %d: %g %g %g", p->name, types[t], rows[r], (double)y[2 * 64],
                      (double)y[3 * 64], (double)y[5 * 64]);
            free(y);
            /* nor does a query that is none reach the other heads */
            c.q[64] = r % 2 ? NAN : INFINITY;
            y = run(p, c.op, 1, true);
            CHECK_MSG(isfinite(y[0]) && isfinite(y[2 * 64]), "%s: %s, no query: %g %g", p->name,
                      types[t], (double)y[0], (double)y[2 * 64]);
            free(y);
            clean_up(&c);
        }
}

/* More heads than a group has, and rows so wide that few are taken at a time. */
static void check_wide(const struct iwp_attn_path *p) {
    static const int32_t heads[][2] = {{1, 40}, {2, 24}, {3, 20}, {9, 2}, {12, 1}, {17, 3}};
    static const int32_t keys[] = {1, 3, 6, 255, 261};
    int kind = 0;
    for (size_t a = 0; a < sizeof heads / sizeof *heads; a++)
        for (size_t b = 0; b < sizeof keys / sizeof *keys; b++, kind++)
            check(p, &(struct shape){.n = 1,
                                     .n_kv = keys[b],
                                     .heads = heads[a][0] * heads[a][1],
                                     .kv_heads = heads[a][1],
                                     .d = kind % 7 == 0   ? 512
                                          : kind % 5 == 0 ? 32
                                          : kind % 2      ? 96
                                                          : 128,
                                     .type_k = (enum iwp_attn_type)(kind % 3),
                                     .type_v = (enum iwp_attn_type)((kind + kind / 3) % 3),
                                     .size = 1,
                                     .bias = kind % 4 == 1});
}

/* ---- timings ------------------------------------------------------------------------------------ */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double fma_peak(void) {
    double best = 0;
    for (int i = 0; i < 5; i++) {
        const double t0 = now(), done = iwp_peak_run(IWP_PEAK_FMA, 2000000), t1 = now();
        best = fmax(best, done / (t1 - t0) * 1e-9);
    }
    return best;
}

static void bench(const struct iwp_attn_path *p, double peak) {
    static const int32_t shapes[][3] = {{512, 512, 128}, {512, 2048, 128}, {512, 4096, 128},
                                        {512, 2048, 64}, {32, 2048, 128},  {8, 2048, 128}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 1; t < 3; t++) {
            struct shape s = {.n = shapes[i][0],
                              .n_kv = shapes[i][1],
                              .heads = 7,
                              .kv_heads = 1,
                              .d = shapes[i][2],
                              .type_k = (enum iwp_attn_type)t,
                              .type_v = (enum iwp_attn_type)t,
                              .size = 1};
            struct scene c;
            set_up(&c, &s);
            const int32_t step = 896;
            const double pairs = 7.0 * (s.n * (double)(s.n_kv - s.n) + s.n * (s.n + 1) / 2.0);
            double best = 1e9;
            for (int r = 0; r < 4; r++) {
                const double t0 = now();
                free(run(p, c.op, step, false));
                best = fmin(best, now() - t0);
            }
            const double rate = 4 * pairs * s.d / best * 1e-9;
            printf("%-7s %4s %4d rows on %4d, 7 heads of %3d: %7.1f GFLOP/s, %3.0f %% of the f32 "
                   "limit\n",
                   p->name, types[t], s.n, s.n_kv, s.d, rate, 100 * rate / peak);
            clean_up(&c);
        }
    for (int heads = 1; heads <= 7; heads += 6)
        for (int t = 1; t < 3; t++) {
            struct shape s = {.n = 1,
                              .n_kv = 16384,
                              .heads = heads * 4,
                              .kv_heads = 4,
                              .d = 128,
                              .type_k = (enum iwp_attn_type)t,
                              .type_v = (enum iwp_attn_type)t,
                              .size = 1};
            struct scene c;
            set_up(&c, &s);
            const size_t bytes = 2 * (size_t)s.n_kv * c.op.k.row;
            double best = 1e9, plain = 1e9;
            volatile uint64_t seen = 0;
            for (int r = 0; r < 6; r++) {
                const double t0 = now();
                free(run(p, c.op, s.kv_heads, true));
                const double t1 = now();
                seen += iwp_peak_read(c.op.k.data, (bytes / 2) & ~(size_t)63);
                seen += iwp_peak_read(c.op.v.data, (bytes / 2) & ~(size_t)63);
                const double t2 = now();
                best = fmin(best, t1 - t0);
                plain = fmin(plain, t2 - t1);
            }
            printf("%-7s %4s one row on %d, %2d/4 heads: %5.1f GB/s, a plain read %5.1f\n", p->name,
                   types[t], s.n_kv, s.heads, (double)bytes / best * 1e-9,
                   (double)bytes / plain * 1e-9);
            clean_up(&c);
        }
}

int main(int argc, char **argv) {
    const bool timing = argc > 1 && strcmp(argv[1], "--bench") == 0;
    const double peak = timing ? fma_peak() : 0;
    if (timing) printf("f32 limit: %.1f GFLOP/s\n", peak);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const struct iwp_attn_path *p = iwp_attn_path(paths[i]);
        if (argc > 2 && strcmp(argv[2], paths[i]) != 0) continue;
        fprintf(stderr, "%s: %s\n", paths[i], p ? "here" : "this CPU lacks it");
        if (p && timing) bench(p, peak);
        if (p && !timing) check_path(p), check_wide(p), check_first(p), check_none(p);
    }
    return timing ? 0 : test_done();
}
