/* Everything of gemm.h but the 32 × 32 product itself, written on 16-lane vectors; each gemm_<path>.c
 * says what numbers are packed into (gemm_bf16.h, gemm_int16.h), includes this and defines tile(), for its
 * instruction set.  Nothing here decides a keep-list, so multiply-adds may be contracted
 * (cmake/kern.cmake). */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kern/gemm.h"
#include "kern/gemm_sizes.h"
#include "kern/vec16.h"

enum { SUMS = 32 * 32 }; /* of a product */
static_assert(32 * RUN <= IWP_GEMM_RUN, "a run is larger than gemm.h says");

/* Blocks of n neighbours of k, a run at most; where a run is a block the compiler is to know. */
static inline int32_t blocks_of(int32_t n) { return RUN == 1 ? 1 : (n + 31) / 32; }

static void tile(float *c, const uint16_t *rows, const uint16_t *cols, int32_t n_k32, bool add,
                 const void *next);
#if PAIRS
static void tiles(float *const c[2], const uint16_t *rows, const uint16_t *const cols[2],
                  int32_t n_k32, bool add, const char *const next[2]);
#endif
#if SHORT
/* The first n_row rows of a product over n_k of k, which are one run; sums that are there already are added,
 * times factors [32] of their columns, if these are given. */
static void tiles_short(int32_t panels, float *const c[2], const uint16_t *rows,
                        const uint16_t *const cols[2], int32_t n_row, int32_t n_k,
                        const float *const factor[2]);
#endif

/* Values of n packed rows (or columns) of k. */
static inline size_t size_of(size_t n, size_t k) {
    return iwp_gemm_up(n) / 32 * (iwp_gemm_up(k) / 32) * BLOCK;
}

/* Scales of the 32 rows or columns of a block, where packed numbers have them. */
static inline float *scales(uint16_t *block) { return (float *)(void *)(block + 32 * 32); }

static inline vf sigmoid_times(vf x, vf z) {
    return x * inverse(all(1.0f) + power2(z * all(-1.44269504f)));
}

/* erf by Abramowitz and Stegun 7.1.26, within 2e-6 here. */
static inline vf gelu_erf(vf x) {
    vf z = x * all(0.70710678f);
    vf a = (vf)((vi)z & 0x7fffffff);
    vf t = inverse(all(1.0f) + all(0.3275911f) * a);
    vf p = t * all(1.061405429f) + all(-1.453152027f);
    p = p * t + all(1.421413741f);
    p = p * t + all(-0.284496736f);
    p = p * t + all(0.254829592f);
    vf e = all(1.0f) - p * t * power2(a * a * all(-1.44269504f));
    e = (vf)((vi)e | ((vi)z & (int32_t)0x80000000));
    return all(0.5f) * x * (all(1.0f) + e);
}

static inline vf activate(vf x, enum iwp_gemm_act act) {
    switch (act) {
    case IWP_GEMM_GELU_TANH:
        return sigmoid_times(x, all(1.5957691216f) * (x + all(0.044715f) * x * x * x));
    case IWP_GEMM_GELU_QUICK: return sigmoid_times(x, all(1.702f) * x);
    case IWP_GEMM_GELU_ERF: return gelu_erf(x);
    case IWP_GEMM_SILU: return sigmoid_times(x, x);
    case IWP_GEMM_NONE: break;
    }
    return x;
}

/* Of a split product: how far behind rows and columns lies what rounding took from them; 0: nothing is there. */
struct rests {
    size_t rows, cols;
};
static inline struct rests rests_of(bool split, size_t rows, size_t cols) {
    return split ? (struct rests){rows, cols} : (struct rests){0, 0};
}
#if SPLITS
static void tile_split(float *c, const uint16_t *rows, const uint16_t *cols, struct rests lo,
                       int32_t n_k32, bool add, const char *next);
#endif

/* c = (or +=, when add) rows block · columns block. */
static inline void product(float *c, const uint16_t *rows, const uint16_t *cols, struct rests lo,
                           int32_t kt, bool add, const char *next) {
#if SPLITS
    if (lo.rows) {
        tile_split(c, rows, cols, lo, kt, add, next);
        return;
    }
#endif
    (void)lo;
    tile(c, rows, cols, kt, add, next);
}

/* The same with one panel of columns or, where PAIRS says so, two, which are not split. */
static inline void products(int32_t panels, float *const c[2], const uint16_t *rows,
                            const uint16_t *const cols[2], struct rests lo, int32_t kt, bool add,
                            const char *const next[2]) {
#if PAIRS
    if (panels == 2) {
        tiles(c, rows, cols, kt, add, next);
        return;
    }
#endif
    (void)panels; /* 1 */
    product(c[0], rows, cols[0], lo, kt, add, next[0]);
}

/* ---- packing --------------------------------------------------------------------------------- */

/* `size` values, n of them given. */
static inline void load_tail(float *out, const float *p, int32_t n, int32_t size) {
    memset(out, 0, (size_t)size * sizeof *out);
    memcpy(out, p, (size_t)n * sizeof *out);
}

struct row_scale {
    float mean, factor;
};

/* Sum of x - mean, or of their squares: four at a time, since each addition waits for the one before. */
static inline float sum_of(const float *x, int32_t k, float mean, bool squares) {
    vf s[4] = {all(0), all(0), all(0), all(0)};
    float tail[64];
    for (int32_t i = 0; i < k; i += 64) {
        const float *p = x + i;
        if (k - i < 64) {
            for (int32_t j = 0; j < 64; j++) tail[j] = j < k - i ? p[j] : mean;
            p = tail;
        }
        for (int j = 0; j < 4; j++) {
            const vf v = load(p + 16 * j) - all(mean);
            s[j] += squares ? v * v : v;
        }
    }
    return sum((s[0] + s[1]) + (s[2] + s[3]));
}

static struct row_scale measure(const float *x, int32_t k, const struct iwp_gemm_norm *norm) {
    const float mean = norm->rms ? 0 : sum_of(x, k, 0, false) / (float)k;
    return (struct row_scale){mean, 1.0f / sqrtf(sum_of(x, k, mean, true) / (float)k + norm->eps)};
}

/* 32 neighbours of k of one row, of run i of f; lo > 0: and the rest of the rounding lo values further. */
static inline void put_row(uint16_t *block, size_t lo, int32_t row, const vf v[2],
                           const struct fits *f, int i) {
    put_run(block + row * 32, scales(block) + row, v, f, i);
    if (!lo) return;
    const vf low[2] = {rest(v[0]), rest(v[1])};
    put_run(block + lo + row * 32, scales(block + lo) + row, low, f, i);
}

/* A run of a row, n values of it given, normed when there are weights. */
static inline void values_of(vf v[2 * RUN], const float *x, const float *w, const float *b,
                             struct row_scale r, int32_t n) {
    enum { LEN = 32 * RUN };
    float tx[LEN], tw[LEN], tb[LEN];
    if (n < LEN) {
        load_tail(tx, x, n, LEN), x = tx;
        if (w) load_tail(tw, w, n, LEN), w = tw;
        if (b) load_tail(tb, b, n, LEN), b = tb;
    }
    for (int32_t h = 0; h < 2 * RUN; h++) {
        v[h] = load(x + 16 * h);
        if (w) v[h] = (v[h] - all(r.mean)) * all(r.factor) * load(w + 16 * h);
        if (b) v[h] += load(b + 16 * h);
    }
}

/* Rows [0, n) at x into blocks, normed on the way when norm has weights, zeros up to a multiple of 32. */
static void pack_rows(uint16_t *to, size_t lo, const float *x, int64_t stride, int32_t n, int32_t k,
                      const struct iwp_gemm_norm *norm) {
    enum { LEN = 32 * RUN };
    const size_t kt = iwp_gemm_up((size_t)k) / 32;
    const float *w = norm ? norm->w : NULL, *b = w ? norm->b : NULL;
    struct row_scale r = {0, 1};
    struct fits f = {0};
    vf v[FITS][2 * RUN]; /* runs that wait, and where they belong */
    struct {
        int32_t row, k;
    } at[FITS];
    int32_t have = 0;
    for (int32_t row = 0; row < n; row++) {
        const float *from = x + row * stride;
        if (w) r = measure(from, k, norm);
        for (int32_t i = 0; i < k; i += LEN) {
            values_of(v[have], from + i, w ? w + i : NULL, b ? b + i : NULL, r,
                      k - i < LEN ? k - i : LEN);
            at[have].row = row, at[have++].k = i;
            if (have < FITS && (row + 1 < n || i + LEN < k)) continue;
            fits_of(&f, v[0], have, NORM);
            for (int32_t j = 0; j < have; j++) {
                uint16_t *block =
                    to + ((size_t)(at[j].row / 32) * kt + (size_t)at[j].k / 32) * BLOCK;
                const int32_t left = k - at[j].k, blocks = blocks_of(left < LEN ? left : LEN);
                for (int32_t t = 0; t < blocks; t++, block += BLOCK)
                    put_row(block, lo, at[j].row % 32, v[j] + 2 * t, &f, j);
            }
            have = 0;
        }
    }
    const vf zero[2] = {all(0), all(0)};
    const struct fits none = {0};
    for (int32_t row = n; row < (int32_t)iwp_gemm_up((size_t)n); row++)
        for (size_t t = 0; t < kt; t++)
            put_row(to + ((size_t)(row / 32) * kt + t) * BLOCK, lo, row % 32, zero, &none, 0);
}

static void pack_rows_at(uint16_t *rows, size_t lo, const float *x, int64_t stride, int32_t first,
                         int32_t n, int32_t k, const struct iwp_gemm_norm *norm) {
    pack_rows(rows + size_of((size_t)first, (size_t)k), lo, x + first * stride, stride, n, k, norm);
}

static void pack_cols(uint16_t *panel, const float *w, int64_t stride, int32_t n, int32_t k) {
    enum { LEN = 32 * RUN };
    for (int32_t i = 0; i < k; i += LEN, panel += RUN * BLOCK) {
        const int32_t len = k - i < LEN ? k - i : LEN, blocks = blocks_of(len);
        for (int32_t h = 0; h < 32; h += 16) {
            vf v[16][2 * RUN];
            struct fits f;
            for (int32_t j = 0; j < 16; j++) {
                float t[LEN] = {0};
                const float *p = h + j < n ? w + (h + j) * stride + i : t;
                if (h + j < n && len < LEN) load_tail(t, p, len, LEN), p = t;
                for (int32_t b = 0; b < 2 * RUN; b++) v[j][b] = load(p + 16 * b);
            }
            fits_of(&f, v[0], 16, NORM);
            for (int32_t b = 0; b < blocks; b++) {
                uint16_t *to = panel + b * BLOCK;
                vf pairs[16]; /* two neighbours of k in one number, which is only moved */
                for (int32_t j = 0; j < 16; j++)
                    put_run((uint16_t *)&pairs[j], scales(to) + h + j, v[j] + 2 * b, &f, j);
                transpose16(pairs);
                memcpy(to + h * 32, pairs, sizeof pairs);
            }
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

static inline void bias_of(float out[32], const struct iwp_gemm_mat *m, int32_t col) {
    const int32_t n = m->m - col < 32 ? m->m - col : 32;
    if (m->bias)
        load_tail(out, m->bias + col, n, 32);
    else
        memset(out, 0, 32 * sizeof *out);
}

/* Results are read again only after all rows are done: with AVX-512, whose vectors are whole lines, they go past
 * the caches, which saves fetching the lines first. */
static inline void save_far(float *p, vf v) {
#if defined(__AVX512F__)
    if (((uintptr_t)p & 63) == 0)
        _mm512_stream_ps(p, (__m512)v);
    else
#endif
        save(p, v);
}

/* Other threads see such stores in no order of their own. */
static inline void settle(void) {
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

/* Where something is added to results, both have to come: with AMX the products are over before they would. */
#if defined(__AVX512F__) && !defined(__AMX_TILE__)
enum { EXPECT = 1 };
#else
enum { EXPECT = 0 };
#endif
static inline void expect(const float *y, const float *res, int64_t stride, int32_t n_row,
                          int32_t n_col) {
    for (int32_t r = 0; r < n_row; r++)
        for (int32_t i = 0; i < n_col; i += 16) {
            __builtin_prefetch(y + r * stride + i, 1, 2);
            __builtin_prefetch(res + r * stride + i, 0, 2);
        }
}

/* A finished 32 × 32 product to y, n_row and n_col of it. */
static void store(float *y, int64_t stride, const float *c, int32_t n_row, int32_t n_col,
                  const float *bias, const float *res, enum iwp_gemm_act act) {
    for (int32_t r = 0; r < n_row; r++) {
        for (int32_t h = 0; h < 32 && h < n_col; h += 16) {
            vf v = activate(load(c + r * 32 + h) + load(bias + h), act);
            float *to = y + r * stride + h;
            if (n_col - h >= 16) {
                if (res) v += load(res + r * stride + h);
                if (res && EXPECT)
                    save(to, v);
                else
                    save_far(to, v);
                continue;
            }
            float t[16];
            save(t, v);
            for (int32_t i = 0; i < n_col - h; i++)
                to[i] = t[i] + (res ? res[r * stride + h + i] : 0);
        }
    }
}

/* Blocks [k0, k0 + steps) of panel p of the columns: where they lie, or made in `room`. */
static const uint16_t *columns(const struct iwp_gemm_mat *m, int32_t p, int32_t k0, int32_t steps,
                               uint16_t *room) {
    const size_t kt = iwp_gemm_up((size_t)m->k) / 32;
    return ready(m->w + ((size_t)p * kt + (size_t)k0) * BLOCK, steps, m->split, room);
}

/* The part of the same blocks of panel p that products with rows from r on may fetch. */
static const char *part_of(const struct iwp_gemm_mat *m, int32_t p, int32_t k0, int32_t steps,
                           int32_t r) {
    const size_t kt = iwp_gemm_up((size_t)m->k) / 32,
                 at = (size_t)(r / 32) * (size_t)steps * (m->split ? 256 : 128);
    if (p * 32 >= m->m || at >= (size_t)steps * BLOCK) return NULL;
    return (const char *)(m->w + ((size_t)p * kt + (size_t)k0) * BLOCK + at);
}

/* y = act(a · m + bias) + res.  Rows stay in L2 while the weights pass by; when they are too wide for that, k
 * is taken in parts, and the sums of a group of panels wait in `work` for the next part. */
static void multiply(const struct iwp_gemm_mat *m, const uint16_t *a, int32_t n, void *work,
                     float *y, int64_t stride, const float *res, enum iwp_gemm_act act) {
    const int32_t kt = (int32_t)(iwp_gemm_up((size_t)m->k) / 32), all = (m->m + 31) / 32;
    const struct iwp_gemm_parts cut = iwp_gemm_parts(m->k, m->split);
    const size_t lo = size_of((size_t)n, (size_t)m->k), waits = iwp_gemm_up((size_t)n) / 32 * SUMS;
    float *sums = work;
    uint16_t *room = (uint16_t *)(void *)(sums + (size_t)cut.group * waits);
    _Alignas(64) float now[2][SUMS], bias[2][32];
    for (int32_t p0 = 0, group = cut.group > 1 ? cut.group : 1 + PAIRS; p0 < all; p0 += group)
        for (int32_t k0 = 0; k0 < kt; k0 += cut.step)
            for (int32_t p = p0, panels; p < p0 + group && p < all; p += panels) {
                const int32_t steps = kt - k0 < cut.step ? kt - k0 : cut.step;
                const uint16_t *w[2] = {0};
                panels = PAIRS && p + 1 < p0 + group && p + 1 < all ? 2 : 1;
                for (int32_t i = 0; i < panels; i++) {
                    w[i] = columns(m, p + i, k0, steps, room);
                    bias_of(bias[i], m, (p + i) * 32);
                }
                const bool done = k0 + steps == kt, more = done || p + panels < p0 + group;
                for (int32_t r = 0; r < n; r += 32) {
                    float *c[2] = {now[0], now[1]};
                    const char *next[2] = {0};
                    for (int32_t i = 0; i < panels && more; i++)
                        next[i] = part_of(m, p + panels + i, k0, steps, r);
                    for (int32_t i = 0; i < panels && cut.group > 1; i++)
                        c[i] = sums + (size_t)(p + i - p0) * waits + (size_t)(r / 32) * SUMS;
                    if (EXPECT && done && res)
                        expect(y + r * stride + p * 32, res + r * stride + p * 32, stride,
                               n - r < 32 ? n - r : 32,
                               m->m - p * 32 < 32 * panels ? m->m - p * 32 : 32 * panels);
                    products(panels, c, a + ((size_t)(r / 32) * (size_t)kt + (size_t)k0) * BLOCK, w,
                             rests_of(m->split, lo, (size_t)steps * BLOCK), steps, k0 > 0, next);
                    for (int32_t i = 0; i < panels && done; i++) {
                        const int32_t col = (p + i) * 32;
                        store(y + r * stride + col, stride, c[i], n - r < 32 ? n - r : 32,
                              m->m - col < 32 ? m->m - col : 32, bias[i],
                              res ? res + r * stride + col : NULL, act);
                    }
                }
            }
}

static void linear_tiles(const struct iwp_gemm_linear *op, int32_t first, int32_t n,
                         void *scratch) {
    uint16_t *a = scratch;
    const struct iwp_gemm_mat *m = &op->mat[0];
    const size_t lo = size_of((size_t)n, (size_t)m->k);
    pack_rows(a, m->split ? lo : 0, op->x + first * op->x_stride, op->x_stride, n, m->k, &op->norm);
    int64_t at = first * op->y_stride;
    for (int32_t i = 0; i < op->n_mat; i++) {
        multiply(&op->mat[i], a, n, a + (lo << m->split), op->y + at, op->y_stride,
                 op->res ? op->res + at : NULL, op->act);
        at += op->mat[i].m;
    }
    settle();
}

/* Row r of act(gate) * up, or act(up); columns beyond m come out as zero (no bias there). */
static inline void hidden_row(vf v[2], int32_t r, const float *up, const float *gate,
                              const float *bias_up, const float *bias_gate, enum iwp_gemm_act act) {
    for (int h = 0; h < 2; h++) {
        const int32_t i = r * 32 + 16 * h;
        const vf u = load(up + i) + load(bias_up + 16 * h);
        if (gate)
            v[h] = activate(load(gate + i) + load(bias_gate + 16 * h), act) * u;
        else
            v[h] = activate(u, act);
    }
}

/* The same as the next product's rows, of numbers that have no runs. */
static void store_rows(uint16_t *to, size_t lo, const float *up, const float *gate,
                       const float *bias_up, const float *bias_gate, enum iwp_gemm_act act) {
    const struct fits none = {0};
    for (int32_t r = 0; r < 32; r++) {
        vf v[2];
        hidden_row(v, r, up, gate, bias_up, bias_gate, act);
        put_row(to, lo, r, v, &none, 0);
    }
}

/* The same as floats, until the run is complete. */
static void keep_rows(float *to, const float *up, const float *gate, const float *bias_up,
                      const float *bias_gate, enum iwp_gemm_act act) {
    for (int32_t r = 0; r < 32; r++, to += 32) {
        vf v[2];
        hidden_row(v, r, up, gate, bias_up, bias_gate, act);
        save(to, v[0]);
        save(to + 16, v[1]);
    }
}

/* n kept blocks, a run, as rows. */
static void store_run(uint16_t *to, const float *kept, int32_t n) {
    for (int32_t r0 = 0; r0 < 32; r0 += FITS) {
        vf v[FITS][2 * RUN];
        struct fits f;
        for (int32_t r = 0; r < FITS; r++)
            for (int32_t i = 0; i < 2 * RUN; i++)
                v[r][i] = i < 2 * n
                              ? load(kept + (size_t)(i / 2) * SUMS + (r0 + r) * 32 + i % 2 * 16)
                              : all(0);
        fits_of(&f, v[0], FITS, NORM);
        for (int32_t r = 0; r < FITS; r++)
            for (int32_t b = 0; b < n; b++)
                put_row(to + (size_t)b * BLOCK, 0, r0 + r, v[r] + 2 * b, &f, r);
    }
}

static void mlp_tiles(const struct iwp_gemm_mlp *op, int32_t first, int32_t n, void *scratch) {
    const struct iwp_gemm_mat *up = &op->up, *gate = op->gate.w ? &op->gate : NULL;
    const int32_t kt = (int32_t)(iwp_gemm_up((size_t)up->k) / 32);
    const int32_t ht = (int32_t)(iwp_gemm_up((size_t)up->m) / 32);
    const size_t lo = size_of((size_t)n, (size_t)up->k), hidden = size_of((size_t)n, (size_t)up->m),
                 lo_h = up->split ? hidden : 0, panel = up->split ? 2 * (size_t)kt * BLOCK : 0;
    uint16_t *a = scratch, *h = a + (lo << up->split), *room = h + (hidden << up->split);
    float *kept = (float *)(void *)(room + panel * (gate ? 2 : 1)); /* [n/32][RUN] blocks */
    float *work = kept + (RUN > 1 ? iwp_gemm_up((size_t)n) * 32 * RUN : 0);
    _Alignas(64) float sums[2][SUMS], bias[2][32];
    const float *x = op->x + first * op->stride;
    pack_rows(a, up->split ? lo : 0, x, op->stride, n, up->k, &op->norm);
    for (int32_t p = 0, wide; p < ht; p += wide) {
        wide = PAIRS && !gate && p + 1 < ht ? 2 : 1; /* panels of up */
        const int32_t panels = PAIRS && gate ? 2 : wide;
        const struct iwp_gemm_mat *second = gate ? gate : up;
        const uint16_t *w[2] = {columns(up, p, 0, kt, room)};
        bias_of(bias[0], up, p * 32);
        if (gate || wide == 2) {
            w[1] = columns(second, p + wide - 1, 0, kt, room + panel);
            bias_of(bias[1], second, (p + wide - 1) * 32);
        }
        for (int32_t r = 0; r < n; r += 32) {
            const uint16_t *rows = a + (size_t)(r / 32) * (size_t)kt * BLOCK;
            uint16_t *to = h + ((size_t)(r / 32) * (size_t)ht + (size_t)(p - p % RUN)) * BLOCK;
            const char *const next[2] = {part_of(up, p + wide, 0, kt, r),
                                         part_of(second, p + 2 * wide - 1, 0, kt, r)};
            const struct rests rest_of = rests_of(up->split, lo, (size_t)kt * BLOCK);
            products(panels, (float *const[]){sums[0], sums[1]}, rows, w, rest_of, kt, false, next);
            if (gate && panels == 1) product(sums[1], rows, w[1], rest_of, kt, false, next[1]);
            if (RUN == 1) {
                store_rows(to, lo_h, sums[0], gate ? sums[1] : NULL, bias[0], bias[1], op->act);
                continue;
            }
            float *run = kept + (size_t)(r / 32) * RUN * SUMS, *keep = run + p % RUN * SUMS;
            keep_rows(keep, sums[0], gate ? sums[1] : NULL, bias[0], bias[1], op->act);
            if (wide == 2) keep_rows(keep + SUMS, sums[1], NULL, bias[1], NULL, op->act);
            if ((p + wide) % RUN == 0 || p + wide == ht) store_run(to, run, p % RUN + wide);
        }
    }
    multiply(&op->down, h, n, work, op->y + first * op->stride, op->stride, x, IWP_GEMM_NONE);
    settle();
}

/* ---- attention ------------------------------------------------------------------------------- */
/* Scores are computed transposed, keys by queries: k is then a rows operand as it lies, the softmax runs
 * along lanes without any sum across them, and two rows of weights, interleaved, are a columns operand. */

/* Rotates the pairs (i, i + d/2) of a row. */
static void rotate(float *y, const float *x, const float *rope, int32_t half) {
    const float *s = rope + half;
    int32_t i = 0;
    for (; half >= 16 && i < half; i += 16) {
        const int32_t t = i < half - 16 ? i : half - 16; /* some twice */
        const vf a = load(x + t), b = load(x + half + t), c = load(rope + t), e = load(s + t);
        save(y + t, a * c - b * e);
        save(y + half + t, a * e + b * c);
    }
    for (; i < half; i++) {
        y[i] = x[i] * rope[i] - x[i + half] * s[i];
        y[i + half] = x[i] * s[i] + x[i + half] * rope[i];
    }
}

/* Rows of one head lie too far apart for a CPU to fetch the next ones by itself.  A load of what is not there would
 * do nothing. */
enum { SOON = 16 };
static inline void come(const float *x, int32_t d) {
    for (int32_t i = 0; i < d; i += 16) __builtin_prefetch(x + i, 0, 3);
}

/* n ≤ 32 rows of q or k to out [32][wide], rotated when there are angles, zeros around them. */
static void whole_rows(float *out, int32_t wide, const float *x, int64_t stride, const float *rope,
                       int64_t rope_stride, int32_t n, int32_t d) {
    for (int32_t r = 0; r < n; r++, out += wide, x += stride) {
        come(x + SOON * stride, d);
        for (int32_t i = d & ~15; i < wide; i += 16) save(out + i, all(0));
        if (rope)
            rotate(out, x, rope + r * rope_stride, d / 2);
        else
            memcpy(out, x, (size_t)d * sizeof *x);
    }
    memset(out, 0, (size_t)((32 - n) * wide) * sizeof *out);
}

/* 32 values of each of n ≤ 32 rows, `len` of them given: 16 from c on of all rows as vectors along them, the
 * first and the second 16 rows. */
static inline void turn_rows(vf v[16][2 * RUN], int at, const float *x, int64_t stride, int32_t n,
                             int32_t len, int c, bool low) {
    float t[32][32];
    if (c >= len) {
        for (int k = 0; k < 16; k++) v[k][at] = v[k][at + 1] = all(0);
        return;
    }
    if (n < 32 || len - c < 16) {
        memset(t, 0, sizeof t);
        for (int32_t j = 0; j < n; j++) memcpy(t[j], x + j * stride, (size_t)len * sizeof *x);
        x = t[0];
        stride = 32;
    }
    for (int h = 0; h < 2; h++) {
        vf r[16];
        for (int k = 0; k < 16; k++) {
            r[k] = load(x + (16 * h + k) * stride + c);
            if (low) r[k] = rest(r[k]);
        }
        transpose16(r);
        for (int k = 0; k < 16; k++) v[k][at + h] = r[k];
    }
}

/* n rows of v, a run of keys at most, into their blocks of its transpose. */
static void pack_turned(uint16_t *to, size_t block_stride, const float *v, int64_t stride,
                        int32_t n, int32_t d, bool low) {
    const int32_t blocks = blocks_of(n);
    for (int32_t i = 0; i < d; i += 32, to += block_stride)
        for (int c = 0; c < 32; c += 16) {
            vf turned[16][2 * RUN];
            struct fits f;
            for (int32_t b = 0; b < RUN; b++)
                turn_rows(turned, 2 * b, v + b * 32 * stride + i, stride,
                          n - 32 * b < 32 ? n - 32 * b : 32,
                          b >= blocks  ? 0
                          : d - i < 32 ? d - i
                                       : 32,
                          c, low);
            fits_of(&f, turned[0], 16, VALUES);
            for (int k = 0; k < 16; k++)
                for (int32_t b = 0; b < blocks; b++)
                    put_row(to + (size_t)b * BLOCK, 0, c + k, turned[k] + 2 * b, &f, k);
        }
}

struct step {
    float *s;    /* scores [keys][32] */
    uint16_t *p; /* weights, columns operand; split: the rest behind those of IWP_GEMM_KEYS keys */
    bool split;
    float *max, *total; /* [32] so far */
    float *factor;      /* [32] for what was summed before */
};

/* Largest of n scores, for 16 queries: four at a time, since each comparison waits for the one before. */
static inline vf top_of(const float *s, int32_t n) {
    vf m[4] = {load(s), load(s), load(s), load(s)};
    int32_t i = 1;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) m[j] = larger(load(s + (i + j) * 32), m[j]);
    for (; i < n; i++) m[0] = larger(load(s + i * 32), m[0]);
    return larger(larger(m[0], m[1]), larger(m[2], m[3]));
}

/* 2^x for x <= 0. */
static inline vf weight(vf x) { return power2_within(larger(x, all(-126.0f))); }

/* Where numbers have scales they have that of scores, too. */
static inline vf logit(vf score, float scale2) { return SCALED ? score : score * all(scale2); }

/* Keys of a step of the running softmax: with scales a run, whose weights have their own. */
enum { STEP = SCALED ? 32 * RUN : IWP_GEMM_KEYS };

/* Weights of the run of keys from i on, of n (padded to n32), into columns blocks; returns their sum. */
static inline vf put_weights(const struct step *t, int h, int32_t i, int32_t n, int32_t n32,
                             vf base, float scale2) {
    const float *s = t->s + i * 32 + 16 * h;
    const int32_t len = 32 * blocks_of(n32 - i < 32 * RUN ? n32 - i : 32 * RUN),
                  given = n - i < len ? n - i : len;
    vf total = all(0);
    for (int32_t k = 0; k < len; k += 2, s += 64) {
        vf a = all(0), b = all(0); /* keys that are not there weigh nothing */
        if (k < given) a = weight(logit(load(s) - base, scale2));
        if (k + 1 < given) b = weight(logit(load(s + 32) - base, scale2));
        total += a + b;
        uint16_t *to = t->p + (size_t)((i + k) / 32) * BLOCK + h * 512 + k % 32 * 16;
        put_parts(to, a, b);
        if (t->split) put_parts(to + size_of(IWP_GEMM_KEYS, 32), rest(a), rest(b));
    }
    return total;
}

/* One step of the running softmax over n keys (padded to n32), for 32 queries. */
static void soften(const struct step *t, int32_t n, int32_t n32, float scale2) {
    for (int h = 0; h < 2; h++) {
        const vf old = load(t->max + 16 * h), top = top_of(t->s + 16 * h, n), m = larger(top, old),
                 base = SCALED ? top : m, factor = weight(logit(old - m, scale2)),
                 f = SCALED ? weight(base - m) : all(1);
        vf l = load(t->total + 16 * h) * factor;
        for (int32_t i = 0; i < n32; i += 32 * RUN)
            l += put_weights(t, h, i, n, n32, base, scale2) * f;
        for (int32_t i = 0; SCALED && i < n32; i += 32)
            save(scales(t->p + (size_t)(i / 32) * BLOCK) + 16 * h,
                 pick(f > all(NOTHING), f * all(PART), all(0)));
        save(t->max + 16 * h, m);
        save(t->factor + 16 * h, factor);
        save(t->total + 16 * h, l);
    }
}

struct packed {
    uint16_t *k, *v, *q, *p;
    float *o, *s, *max, *total, *factor, *turned;
    int32_t d, d_v, kt, vt; /* and blocks of them */
    size_t nt;              /* blocks of keys */
    size_t lo_k, lo_v;
    bool split;
};

static struct packed divide(const struct iwp_gemm_attend *op, void *scratch) {
    const size_t wide = iwp_gemm_up((size_t)op->d), wide_v = iwp_gemm_up((size_t)op->d_v);
    const size_t keys = iwp_gemm_up((size_t)op->n_k);
    struct packed w = {.d = op->d,
                       .d_v = op->d_v,
                       .kt = (int32_t)(wide / 32),
                       .vt = (int32_t)(wide_v / 32),
                       .nt = keys / 32,
                       .lo_k = size_of(keys, wide),
                       .lo_v = size_of(keys, wide_v),
                       .split = op->split};
    w.k = scratch;
    w.v = w.k + (w.lo_k << w.split);
    w.q = w.v + (w.lo_v << w.split);
    w.p = w.q + (size_of(IWP_GEMM_QUERIES, wide) << w.split);
    w.o = (float *)(void *)(w.p + 2 * size_of(IWP_GEMM_KEYS, 32)); /* two blocks, or split */
    w.s = w.o + IWP_GEMM_QUERIES * wide_v;
    w.max = w.s + 2 * IWP_GEMM_KEYS * 32;
    w.total = w.max + IWP_GEMM_QUERIES;
    w.factor = w.total + IWP_GEMM_QUERIES;
    w.turned = w.factor + IWP_GEMM_QUERIES;
    return w;
}

static inline float row_size(int32_t d) { return d <= LONG ? NORM : NORM / 2; }

/* Up to 32 rows of k, whole, as rows: each is one run, so that scores are scaled once. */
static void pack_key_rows(uint16_t *to, const struct packed *w) {
    const int32_t wide = 32 * w->kt;
    for (int32_t r0 = 0; r0 < 32; r0 += FITS) {
        struct fits f;
        fits_rows(&f, w->turned + r0 * wide, wide, FITS, 2 * w->kt, row_size(w->d));
        for (int32_t r = r0; r < r0 + FITS; r++)
            for (int32_t t = 0; t < w->kt; t++) {
                const float *x = w->turned + r * wide + 32 * t;
                const vf v[2] = {load(x), load(x + 16)};
                put_row(to + (size_t)t * BLOCK, w->split ? w->lo_k : 0, r, v, &f, r - r0);
            }
    }
}

/* Up to 32 rows of q, whole, as columns.  Their scales take in that of the scores. */
static void pack_query_rows(uint16_t *to, const struct packed *w, float scale2, bool low) {
    const int32_t wide = 32 * w->kt;
    for (int32_t h = 0; h < 32; h += 16) {
        struct fits f;
        fits_rows(&f, w->turned + h * wide, wide, 16, 2 * w->kt, row_size(w->d));
        for (int32_t t = 0; t < w->kt; t++) {
            uint16_t *block = to + (size_t)t * BLOCK;
            vf pairs[16]; /* two neighbours of k in one number, which is only moved */
            for (int32_t j = 0; j < 16; j++) {
                const float *x = w->turned + (h + j) * wide + 32 * t;
                const vf v[2] = {low ? rest(load(x)) : load(x),
                                 low ? rest(load(x + 16)) : load(x + 16)};
                put_run((uint16_t *)&pairs[j], scales(block) + h + j, v, &f, j);
            }
            transpose16(pairs);
            memcpy(block + h * 32, pairs, sizeof pairs);
            if (SCALED) save(scales(block) + h, load(scales(block) + h) * all(scale2));
        }
    }
}

static void pack_keys(const struct iwp_gemm_attend *op, const struct packed *w) {
    for (int32_t i = 0; i < op->n_k; i += 32) {
        whole_rows(w->turned, 32 * w->kt, op->k + i * op->k_stride, op->k_stride,
                   op->rope_k ? op->rope_k + i * op->rope_stride : NULL, op->rope_stride,
                   op->n_k - i < 32 ? op->n_k - i : 32, op->d);
        pack_key_rows(w->k + (size_t)(i / 32) * (size_t)w->kt * BLOCK, w);
    }
    for (int32_t i = 0; i < op->n_k; i += 32 * RUN) {
        for (int32_t r = 0; r < 32 * RUN; r++)
            come(op->v + (i + 32 * RUN + r) * op->v_stride, op->d_v);
        for (int low = 0; low <= w->split; low++)
            pack_turned(w->v + (low ? w->lo_v : 0) + (size_t)(i / 32) * BLOCK, w->nt * BLOCK,
                        op->v + i * op->v_stride, op->v_stride,
                        op->n_k - i < 32 * RUN ? op->n_k - i : 32 * RUN, op->d_v, low);
    }
}

static void pack_queries(const struct iwp_gemm_attend *op, const struct packed *w, int32_t first,
                         int32_t n, float scale2) {
    const size_t panel = size_of(32, (size_t)op->d);
    for (int32_t i = 0; i < n; i += 32) {
        whole_rows(w->turned, 32 * w->kt, op->q + (first + i) * op->q_stride, op->q_stride,
                   op->rope_q ? op->rope_q + (first + i) * op->rope_stride : NULL, op->rope_stride,
                   n - i < 32 ? n - i : 32, op->d);
        for (int low = 0; low <= w->split; low++)
            pack_query_rows(w->q + ((size_t)(i / 32) * panel << w->split) + (low ? panel : 0), w,
                            scale2, low);
    }
}

/* The first n_row rows of a product over n_k of k; factor: of the sums that are there, else there are none. */
static inline void attend_product(int32_t panels, float *const c[2], const uint16_t *rows,
                                  const uint16_t *const cols[2], struct rests lo, int32_t n_row,
                                  int32_t n_k, const float *const factor[2]) {
#if SHORT
    (void)lo;
    tiles_short(panels, c, rows, cols, n_row, n_k, factor);
#else
    static const char *const none[2];
    (void)n_row;
    for (int32_t b = 0; b < panels && factor; b++)
        for (int32_t i = 0; i < SUMS; i += 16)
            save(c[b] + i, load(c[b] + i) * load(factor[b] + i % 32));
    products(panels, c, rows, cols, lo, (n_k + 31) / 32, factor != NULL, none);
#endif
}

/* One or two blocks of 32 queries against the keys [key, key + n). */
static void attend_step(const struct packed *w, int32_t query, int32_t blocks, int32_t key,
                        int32_t n, float scale2) {
    const int32_t n32 = (int32_t)iwp_gemm_up((size_t)n), kt = w->kt, vt = w->vt;
    const size_t weights = size_of(IWP_GEMM_KEYS, 32);
    const uint16_t *q = w->q + ((size_t)(query / 32) * (size_t)kt * BLOCK << w->split);
    const uint16_t *const qs[2] = {q, q + (size_t)kt * BLOCK}, *const ps[2] = {w->p,
                                                                               w->p + weights};
    float *const s[2] = {w->s, w->s + IWP_GEMM_KEYS * 32};
    const float *const factor[2] = {w->factor + query, w->factor + query + 32};
    for (int32_t i = 0; i < n32; i += 32)
        attend_product(blocks, (float *const[]){s[0] + i * 32, s[1] + i * 32},
                       w->k + (size_t)((key + i) / 32) * (size_t)kt * BLOCK, qs,
                       rests_of(w->split, w->lo_k, (size_t)kt * BLOCK), n - i < 32 ? n - i : 32,
                       w->d, NULL);
    for (int32_t b = 0; b < blocks; b++) {
        const int32_t at = query + 32 * b;
        const struct step t = {
            s[b], w->p + (size_t)b * weights, w->split, w->max + at, w->total + at, w->factor + at};
        soften(&t, n, n32, scale2);
    }
    for (int32_t d = 0; d < vt; d++) {
        float *o = w->o + ((size_t)(query / 32) * (size_t)vt + (size_t)d) * SUMS;
        attend_product(blocks, (float *const[]){o, o + (size_t)vt * SUMS},
                       w->v + ((size_t)d * w->nt + (size_t)(key / 32)) * BLOCK, ps,
                       rests_of(w->split, w->lo_v, weights),
                       w->d_v - 32 * d < 32 ? w->d_v - 32 * d : 32, n, key > 0 ? factor : NULL);
    }
}

/* Sums of queries [first, first + n), divided by their weights, to rows. */
static void put_results(const struct iwp_gemm_attend *op, const struct packed *w, int32_t first,
                        int32_t n) {
    for (int32_t i = 0; i < n; i += 16) {
        const float *o = w->o + (size_t)(i / 32) * (size_t)w->vt * SUMS + i % 32;
        const vf part = all(1.0f) / load(w->total + i);
        for (int32_t d = 0; d < op->d_v; d += 16) {
            const int32_t len = op->d_v - d < 16 ? op->d_v - d : 16;
            vf r[16];
            for (int k = 0; k < 16; k++) r[k] = k < len ? load(o + (d + k) * 32) * part : all(0);
            transpose16(r);
            for (int32_t k = 0; k < 16 && i + k < n; k++) {
                float *to = op->out + (first + i + k) * op->out_stride + d;
                if (len == 16)
                    save(to, r[k]);
                else
                    memcpy(to, &r[k], (size_t)len * sizeof *to);
            }
        }
    }
}

static void attend_tiles(const struct iwp_gemm_attend *op, void *scratch) {
    const struct packed w = divide(op, scratch);
    const float scale2 = op->scale * 1.44269504f;
    pack_keys(op, &w);
    for (int32_t first = 0; first < op->n_q; first += IWP_GEMM_QUERIES) {
        const int32_t n =
            op->n_q - first < IWP_GEMM_QUERIES ? op->n_q - first : (int32_t)IWP_GEMM_QUERIES;
        pack_queries(op, &w, first, n, scale2);
        for (int32_t i = 0; i < IWP_GEMM_QUERIES; i++) w.max[i] = -1e30f, w.total[i] = 0;
        for (int32_t key = 0; key < op->n_k; key += STEP)
            for (int32_t i = 0, blocks; i < n; i += 32 * blocks) {
                blocks = PAIRS && i + 32 < n ? 2 : 1;
                attend_step(&w, i, blocks, key,
                            op->n_k - key < STEP ? op->n_k - key : (int32_t)STEP, scale2);
            }
        put_results(op, &w, first, n);
    }
}
