/* A single row on f32 numbers (attn_body.h comes before): pieces of CHUNK keys, first all logits, then their
 * softmax, then the weighted values.
 *
 * Memory should be the limit: few rows at a time and of these all KV heads of the call, so that a cache is read from
 * its beginning to its end, and as many further ones are fetched meanwhile.  Where registers hold the sums of all
 * heads of a group (DIRECT) numbers are taken from the cache as they are multiplied, else rows are unpacked first. */
#if defined(__AVX512F__)
#define DIRECT true
#else
#define DIRECT false
#endif
enum {
    ONE_STEP = 8,
    AHEAD = 16
}; /* rows at a time, and how far behind them those that are fetched lie */

/* Rows of numbers that are multiplied: f16 as they lie, or f32. */
struct numbers {
    const uint8_t *p;
    size_t row;
    int32_t n; /* rows; further ones count as the last */
    bool half;
};

ALWAYS vf number(const uint8_t *p, int32_t j, const bool half) {
    if (half) return halves(p + 2 * (size_t)j);
    vf v;
    memcpy(&v, p + 4 * (size_t)j, sizeof v);
    return v;
}

/* Rows [first, first + n) of a head, unpacked into x where that is needed. */
static inline struct numbers open_rows(float *x, const struct iwp_attn_rows *r, int32_t head,
                                       int32_t first, int32_t n, int32_t d, int32_t wide) {
    if (!DIRECT || r->type == IWP_ATTN_Q8_0) {
        unpack(x, n, r, head, first, n, d, wide);
        return (struct numbers){(const uint8_t *)x, (size_t)wide * sizeof *x, n, false};
    }
    const uint8_t *p = (const uint8_t *)r->data + (size_t)first * r->row + (size_t)head * r->head;
    return (struct numbers){p, r->row, n, r->type == IWP_ATTN_F16};
}

/* Logits of the rows of x to s [heads][CHUNK], `keys` at a time: 16 sums of 16 lanes at most. */
ALWAYS void dots(float *s, const float *q, const struct numbers *x, int32_t d, int32_t wide,
                 const int heads, const int keys, const bool half) {
    for (int32_t k = 0; k < x->n; k += keys) {
        const uint8_t *p[8];
        UNROLL for (int i = 0; i < keys; i++) p[i] =
            x->p + (size_t)(k + i < x->n ? k + i : x->n - 1) * x->row;
        vf c[16] = {0};
        for (int32_t j = 0; j < d; j += 16) {
            vf b[8];
            UNROLL for (int i = 0; i < keys; i++) b[i] = number(p[i], j, half);
            UNROLL for (int h = 0; h < heads; h++) {
                const vf a = load(q + h * wide + j);
                UNROLL for (int i = 0; i < keys; i++) c[h * keys + i] += a * b[i];
            }
        }
        float t[16];
        save(t, sums16(c));
        UNROLL for (int h = 0; h < heads; h++)
            memcpy(s + h * CHUNK + k, t + h * keys, (size_t)keys * sizeof *s);
    }
}

/* y [heads][stride] += p [heads][CHUNK] · x, `vecs` vectors of columns from j on. */
ALWAYS void blend(float *y, size_t stride, const float *p, const struct numbers *x, int32_t j,
                  const int heads, const int vecs, const bool half) {
    vf c[8][4];
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int v = 0; v < vecs; v++) c[h][v] =
        load(y + (size_t)h * stride + j + 16 * v);
    const uint8_t *row = x->p;
    for (int32_t i = 0; i < x->n; i++, row += x->row) {
        vf b[4];
        UNROLL for (int v = 0; v < vecs; v++) b[v] = number(row, j + 16 * v, half);
        UNROLL for (int h = 0; h < heads; h++) {
            const vf a = all(p[h * CHUNK + i]);
            UNROLL for (int v = 0; v < vecs; v++) c[h][v] += a * b[v];
        }
    }
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int v = 0; v < vecs; v++)
        save(y + (size_t)h * stride + j + 16 * v, c[h][v]);
}

ALWAYS void blend_all(float *y, size_t stride, const float *p, const struct numbers *x, int32_t d,
                      const int heads, const int vecs, const bool half) {
    int32_t j = 0;
    for (; j + 16 * vecs <= d; j += 16 * vecs) blend(y, stride, p, x, j, heads, vecs, half);
    for (; j < d; j += 16) blend(y, stride, p, x, j, heads, 1, half);
}

/* A group of heads; how many is known to the compiler, and with it how much stays in registers. */
#define GROUP_DOTS(N, KEYS)                                                                        \
    case N:                                                                                        \
        if (x->half)                                                                               \
            dots(s, q, x, d, wide, N, KEYS, DIRECT);                                               \
        else                                                                                       \
            dots(s, q, x, d, wide, N, KEYS, false);                                                \
        break
#define GROUP_BLEND(N, VECS)                                                                       \
    case N:                                                                                        \
        if (x->half)                                                                               \
            blend_all(y, stride, s, x, d, N, VECS, DIRECT);                                        \
        else                                                                                       \
            blend_all(y, stride, s, x, d, N, VECS, false);                                         \
        break
#if defined(__AVX512F__)
enum { ONE_HEADS = 8 };
#define EACH_DOTS                                                                                  \
    GROUP_DOTS(1, 8);                                                                              \
    GROUP_DOTS(2, 8);                                                                              \
    GROUP_DOTS(3, 4);                                                                              \
    GROUP_DOTS(4, 4);                                                                              \
    GROUP_DOTS(5, 2);                                                                              \
    GROUP_DOTS(6, 2);                                                                              \
    GROUP_DOTS(7, 2);                                                                              \
    GROUP_DOTS(8, 2)
#define EACH_BLEND                                                                                 \
    GROUP_BLEND(1, 4);                                                                             \
    GROUP_BLEND(2, 4);                                                                             \
    GROUP_BLEND(3, 4);                                                                             \
    GROUP_BLEND(4, 4);                                                                             \
    GROUP_BLEND(5, 2);                                                                             \
    GROUP_BLEND(6, 2);                                                                             \
    GROUP_BLEND(7, 2);                                                                             \
    GROUP_BLEND(8, 2)
#else
enum { ONE_HEADS = 2 };
#define EACH_DOTS                                                                                  \
    GROUP_DOTS(1, 2);                                                                              \
    GROUP_DOTS(2, 2)
#define EACH_BLEND                                                                                 \
    GROUP_BLEND(1, 2);                                                                             \
    GROUP_BLEND(2, 2)
#endif

static void group_dots(float *s, const float *q, const struct numbers *x, int32_t d, int32_t wide,
                       int32_t heads) {
    switch (heads) { EACH_DOTS; }
}

static void group_blend(float *y, size_t stride, const float *s, const struct numbers *x, int32_t d,
                        int32_t heads) {
    switch (heads) { EACH_BLEND; }
}

/* The softmax of a head's n logits; largest and sum behind the d sums of y. */
static void soften_one(float *s, const float *bias, int32_t n, float *y, int32_t d) {
    const int32_t end = (n + 15) & ~15;
    vf m = all(-1e30f), l = all(0);
    for (int32_t i = 0; bias && i < n; i++) s[i] += bias[i] * LOG2E;
    for (int32_t i = n; i < end; i++) s[i] = -1e30f;
    for (int32_t i = 0; i < end; i += 16) m = larger(load(s + i), m);
    float top[16];
    save(top, m);
    for (int i = 1; i < 16; i++) top[0] = top[i] > top[0] ? top[i] : top[0];
    for (int32_t i = 0; i < end; i += 16) {
        const vf p = weight(load(s + i) - all(top[0]));
        save(s + i, p);
        l += p;
    }
    y[d] = top[0];
    y[d + 1] = sum(l);
}

/* What a call reads of rows [first, last), in L1.  A load of what is not there would do nothing. */
static inline void expect(const struct iwp_attn_rows *r, int32_t kv_head, int32_t n_kv_head,
                          int32_t first, int32_t last) {
    const char *p = (const char *)r->data + (size_t)first * r->row + (size_t)kv_head * r->head;
    for (; first < last; first++, p += r->row)
        for (size_t at = 0; at < (size_t)n_kv_head * r->head; at += 64) __builtin_prefetch(p + at);
}

/* Beside rows [i, i + ONE_STEP) of n of KV head g: its share of those that come AHEAD of them, of `next` behind the
 * last one. */
static inline void expect_share(const struct iwp_attn_rows *r, const struct iwp_attn_rows *next,
                                int32_t next_first, int32_t kv_head, int32_t n_kv_head, int32_t g,
                                int32_t first, int32_t i, int32_t n) {
    const int32_t from = i + AHEAD + ONE_STEP * g / n_kv_head,
                  to = i + AHEAD + ONE_STEP * (g + 1) / n_kv_head;
    if (i + AHEAD < n)
        expect(r, kv_head, n_kv_head, first + from, first + to);
    else
        expect(next, kv_head, n_kv_head, next_first + from - n, next_first + to - n);
}

static void one_piece(const struct iwp_attn *op, int32_t kv_head, int32_t n_kv_head, int32_t chunk,
                      float *part, size_t stride, void *scratch) {
    const int32_t heads = op->n_head / op->n_head_kv, d = op->d, all_heads = heads * n_kv_head;
    const int32_t groups = (heads + ONE_HEADS - 1) / ONE_HEADS,
                  most = (heads + groups - 1) / groups;
    const int32_t wide = (int32_t)iwp_attn_up((size_t)d), first = chunk * CHUNK;
    const int32_t n = op->n_kv - first < CHUNK ? op->n_kv - first : CHUNK;
    const size_t y_stride = iwp_attn_part_stride(d);
    float *q = scratch, *s = q + all_heads * wide, *x = s + all_heads * CHUNK;
    for (int32_t i = 0; i < all_heads; i++)
        scaled(q + i * wide, query_at(op, kv_head + i / heads, i % heads), d, wide,
               op->scale * LOG2E);
    for (int32_t g = 0; g < n_kv_head; g++)
        memset(part + (size_t)g * stride, 0, (size_t)heads * y_stride * sizeof *part);
    for (int32_t i = 0; i < n; i += ONE_STEP) {
        const int32_t len = n - i < ONE_STEP ? n - i : ONE_STEP;
        for (int32_t g = 0; g < n_kv_head; g++) {
            const struct numbers rows = open_rows(x, &op->k, kv_head + g, first + i, len, d, wide);
            expect_share(&op->k, &op->v, first, kv_head, n_kv_head, g, first, i, n);
            for (int32_t h = g * heads; h < (g + 1) * heads; h += most)
                group_dots(s + h * CHUNK + i, q + h * wide, &rows, d, wide,
                           (g + 1) * heads - h < most ? (g + 1) * heads - h : most);
        }
    }
    for (int32_t i = 0; i < all_heads; i++)
        soften_one(s + i * CHUNK, op->bias ? op->bias + first : NULL, n,
                   part + (size_t)(i / heads) * stride + (size_t)(i % heads) * y_stride, d);
    for (int32_t i = 0; i < n; i += ONE_STEP) {
        const int32_t len = n - i < ONE_STEP ? n - i : ONE_STEP;
        for (int32_t g = 0; g < n_kv_head; g++) {
            const struct numbers rows = open_rows(x, &op->v, kv_head + g, first + i, len, d, wide);
            expect_share(&op->v, &op->k, first + n, kv_head, n_kv_head, g, first, i, n);
            for (int32_t h = 0; h < heads; h += most)
                group_blend(part + (size_t)g * stride + (size_t)h * y_stride, y_stride,
                            s + (g * heads + h) * CHUNK + i, &rows, d,
                            heads - h < most ? heads - h : most);
        }
    }
}
