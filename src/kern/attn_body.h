/* Everything of attn.h but the products of `many`, written on 16-lane vectors; each attn_<path>.c defines
 * those and compiles this for its instruction set.  Nothing here decides a keep-list, so multiply-adds may
 * be contracted (cmake/kern.cmake).
 *
 * Scores are computed transposed, keys by queries: rows of keys are read as they lie, the softmax runs along
 * lanes without any sum across them, and a lane's result does not depend on its neighbours. */
#include <string.h>

#include "kern/attn.h"
#include "kern/attn_sizes.h"
#include "kern/vec16.h"

enum { TILE = IWP_ATTN_TILE, KEYS = IWP_ATTN_KEYS, STEP = IWP_ATTN_STEP, CHUNK = IWP_ATTN_CHUNK };
#define LOG2E  1.44269504f
#define UNROLL _Pragma("GCC unroll 16")

/* The parts of scratch memory.  Arrays that belong to a block of 32 queries lie one block after the other. */
struct work {
    float *q;           /* [wide][32], as the path likes it */
    float *o;           /* [wide][32] sums of weighted values */
    float *max, *total; /* [32] */
    int32_t *limit;     /* [32] the last key each query sees, ascending */
    float *k, *v;       /* [KEYS][wide], as the path likes them */
    float *s, *p;       /* [KEYS][32] scores; weights as the path likes them */
    float *x;           /* [STEP][wide] unpacked rows */
    int32_t wide;       /* d, up to a multiple of 32 */
};

/* ---- what a path defines ------------------------------------------------------------------------ */

/* 32 queries in x [32][wide] to q. */
static void put_queries(float *q, const float *x, int32_t wide);
/* Where 32 keys or values that are to become numbers [at, at + 32) of their block should be unpacked to, and
 * what is left to do afterwards. */
static float *key_room(const struct work *w, int32_t at);
static float *value_room(const struct work *w, int32_t at);
static void put_keys(const struct work *w, int32_t at);
static void put_values(const struct work *w, int32_t at);
/* s = keys · q for the first n keys of the block, and for more up to a multiple of 32. */
static void score(const struct work *w, const float *q, int32_t n);
/* Weights of keys i and i + 1 (i is even), half h of the queries. */
static inline void put_weights(const struct work *w, int32_t i, int h, vf a, vf b);
/* o = o * factor + values · weights over n keys; o is not read when it is the first time. */
static void weigh(const struct work *w, float *o, const float factor[32], int32_t n, bool first);

/* ---- reading the cache -------------------------------------------------------------------------- */

static inline vf from_i8(const uint8_t *p) {
    typedef int8_t vb __attribute__((vector_size(16)));
    vb b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, vf);
}

static inline float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

/* Rows [first, first + n) of a head to x [room][wide]; zeros where there is nothing. */
static void unpack(float *x, int32_t room, const struct iwp_attn_rows *r, int32_t head,
                   int32_t first, int32_t n, int32_t d, int32_t wide) {
    const uint8_t *p = (const uint8_t *)r->data + (size_t)first * r->row + (size_t)head * r->head;
    const size_t ahead = STEP * r->row; /* a load of what is not there would do nothing */
    for (int32_t i = 0; i < n; i++, p += r->row, x += wide) {
        switch (r->type) {
        case IWP_ATTN_F32:
            for (int32_t j = 0; j < d; j += 16) {
                __builtin_prefetch(p + ahead + 4 * (size_t)j);
                vf v;
                memcpy(&v, p + 4 * (size_t)j, sizeof v);
                save(x + j, v);
            }
            break;
        case IWP_ATTN_F16:
            for (int32_t j = 0; j < d; j += 16) {
                if (j % 32 == 0) __builtin_prefetch(p + ahead + 2 * (size_t)j);
                save(x + j, halves(p + 2 * (size_t)j));
            }
            break;
        case IWP_ATTN_Q8_0:
            for (int32_t j = 0; j < d; j += 32) {
                const uint8_t *b = p + 34 * (size_t)(j / 32);
                __builtin_prefetch(b + ahead);
                const vf scale = all(half_at(b));
                save(x + j, from_i8(b + 2) * scale);
                save(x + j + 16, from_i8(b + 18) * scale);
            }
            break;
        }
        if (d < wide) memset(x + d, 0, (size_t)(wide - d) * sizeof *x);
    }
    if (n < room) memset(x, 0, (size_t)(room - n) * (size_t)wide * sizeof *x);
}

/* x [d] = query i of a KV head times factor, to base 2. */
static inline const float *query_at(const struct iwp_attn *op, int32_t kv_head, int32_t i) {
    const int32_t heads = op->n_head / op->n_head_kv;
    return op->q + i / heads * op->q_row + (kv_head * heads + i % heads) * op->q_head;
}

static void scaled(float *x, const float *q, int32_t d, int32_t wide, float factor) {
    for (int32_t j = 0; j < d; j += 16) save(x + j, load(q + j) * all(factor));
    if (d < wide) memset(x + d, 0, (size_t)(wide - d) * sizeof *x);
}

/* 2^x to 4e-6, for x ≤ 0; below -80 that of -80, which is nothing beside the largest weight, 1. */
static inline vf weight(vf x) { return power2_within(larger(x, all(-80.0f))); }

/* ---- many queries ------------------------------------------------------------------------------- */

static struct work divide(const struct iwp_attn *op, int32_t n, void *scratch) {
    const size_t wide = iwp_attn_up((size_t)op->d), m = iwp_attn_up((size_t)n);
    struct work w = {.wide = (int32_t)wide};
    w.q = scratch;
    w.o = w.q + m * wide;
    w.k = w.o + m * wide;
    w.v = w.k + KEYS * wide;
    w.s = w.v + KEYS * wide;
    w.p = w.s + KEYS * TILE;
    w.x = w.p + KEYS * TILE;
    w.max = w.x + STEP * wide;
    w.total = w.max + m;
    w.limit = (int32_t *)(void *)(w.total + m);
    return w;
}

/* Queries [first, first + n) into their block; those beyond n are zeros and see what the last one sees. */
static void load_queries(const struct iwp_attn *op, const struct work *w, int32_t kv_head,
                         int32_t first, int32_t n, int32_t block) {
    const int32_t heads = op->n_head / op->n_head_kv, wide = w->wide;
    for (int32_t i = 0; i < TILE; i++) {
        const int32_t at = block * TILE + i, row = (first + (i < n ? i : n - 1)) / heads;
        w->max[at] = -1e30f;
        w->total[at] = 0;
        w->limit[at] = op->n_kv - op->n + row;
        if (i < n)
            scaled(w->x + i * wide, query_at(op, kv_head, first + i), op->d, wide,
                   op->scale * LOG2E);
        else
            memset(w->x + i * wide, 0, (size_t)wide * sizeof *w->x);
    }
    put_queries(w->q + (size_t)block * TILE * (size_t)wide, w->x, wide);
}

static void load_keys(const struct iwp_attn *op, const struct work *w, int32_t kv_head, int32_t key,
                      int32_t n) {
    for (int32_t i = 0; i < n; i += STEP) {
        const int32_t len = n - i < STEP ? n - i : STEP;
        unpack(key_room(w, i), STEP, &op->k, kv_head, key + i, len, op->d, w->wide);
        put_keys(w, i);
        unpack(value_room(w, i), STEP, &op->v, kv_head, key + i, len, op->d, w->wide);
        put_values(w, i);
    }
}

/* One step of the running softmax of a block over n scores of keys from `key` on; factor: for what was
 * summed before. */
static void soften(const struct work *w, int32_t query, int32_t key, int32_t n, const float *bias,
                   float factor[32]) {
    float *s = w->s, *max = w->max + query, *total = w->total + query;
    const int32_t *limit = w->limit + query;
    int32_t sure = limit[0] + 1 - key; /* keys that all queries see */
    sure = sure < 0 ? 0 : sure > n ? n : sure;
    vi last[2];
    memcpy(last, limit, sizeof last);
    vf m[2] = {load(max), load(max + 16)}, l[2];
    for (int32_t i = 0; bias && i < n * TILE; i += 16)
        save(s + i, load(s + i) + all(bias[key + i / TILE] * LOG2E));
    for (int32_t i = sure; i < n; i++)
        for (int h = 0; h < 2; h++) {
            float *at = s + i * TILE + 16 * h;
            save(at, pick(last[h] >= key + i, load(at), all(-1e30f)));
        }
    for (int32_t i = 0; i < n; i++)
        for (int h = 0; h < 2; h++) m[h] = larger(load(s + i * TILE + 16 * h), m[h]);
    for (int h = 0; h < 2; h++) {
        const vf f = weight(load(max + 16 * h) - m[h]);
        save(max + 16 * h, m[h]);
        save(factor + 16 * h, f);
        l[h] = load(total + 16 * h) * f;
    }
    for (int32_t i = 0; i < n; i += 2)
        for (int h = 0; h < 2; h++) {
            vf a = weight(load(s + i * TILE + 16 * h) - m[h]);
            vf b = weight(load(s + (i + 1) * TILE + 16 * h) - m[h]);
            if (i + 2 > sure) { /* keys that are not seen weigh nothing */
                a = pick(last[h] >= key + i, a, all(0));
                b = pick(last[h] >= key + i + 1, b, all(0));
            }
            l[h] += a + b;
            put_weights(w, i, h, a, b);
        }
    for (int32_t i = (n + 1) & ~1; i < (int32_t)iwp_attn_up((size_t)n); i += 2)
        for (int h = 0; h < 2; h++) put_weights(w, i, h, all(0), all(0));
    save(total, l[0]);
    save(total + 16, l[1]);
}

/* A block's results, n of them, to their rows. */
static void finish(const struct iwp_attn *op, const struct work *w, int32_t kv_head, int32_t first,
                   int32_t n, int32_t block) {
    const int32_t heads = op->n_head / op->n_head_kv;
    const float *o = w->o + (size_t)block * TILE * (size_t)w->wide;
    for (int32_t h = 0; h < n; h += 16) {
        const vf part = all(1.0f) / load(w->total + block * TILE + h);
        for (int32_t d = 0; d < op->d; d += 16) {
            vf r[16];
            for (int i = 0; i < 16; i++) r[i] = load(o + (d + i) * TILE + h) * part;
            transpose16(r);
            for (int32_t i = 0; i < 16 && h + i < n; i++) {
                const int32_t at = first + h + i;
                save(op->out + at / heads * op->out_row +
                         (int64_t)(kv_head * heads + at % heads) * op->d + d,
                     r[i]);
            }
        }
    }
}

static void many_tiles(const struct iwp_attn *op, int32_t kv_head, int32_t first, int32_t n,
                       void *scratch) {
    const struct work w = divide(op, n, scratch);
    const int32_t blocks = (n + TILE - 1) / TILE;
    const size_t size = (size_t)TILE * (size_t)w.wide;
    for (int32_t b = 0; b < blocks; b++)
        load_queries(op, &w, kv_head, first + b * TILE, n - b * TILE < TILE ? n - b * TILE : TILE,
                     b);
    const int32_t end = w.limit[blocks * TILE - 1] + 1;
    _Alignas(64) float factor[TILE];
    for (int32_t key = 0; key < end; key += KEYS) {
        load_keys(op, &w, kv_head, key, end - key < KEYS ? end - key : KEYS);
        for (int32_t b = 0; b < blocks; b++) {
            int32_t seen = w.limit[b * TILE + TILE - 1] + 1 - key;
            if (seen <= 0) continue;
            if (seen > KEYS) seen = KEYS;
            score(&w, w.q + (size_t)b * size, seen);
            soften(&w, b * TILE, key, seen, op->bias, factor);
            weigh(&w, w.o + (size_t)b * size, factor, seen, key == 0);
        }
    }
    for (int32_t b = 0; b < blocks; b++)
        finish(op, &w, kv_head, first + b * TILE, n - b * TILE < TILE ? n - b * TILE : TILE, b);
}
