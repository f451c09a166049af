/* A single row on f32 numbers (attn_body.h comes before): pieces of CHUNK keys, first all logits, then their
 * softmax, then the weighted values.
 *
 * Memory should be the limit: a few rows at a time and of these all KV heads of the call, so that a cache is read from
 * its beginning to its end.  What comes AHEAD bytes later is fetched, a little beside each multiplication: a burst of
 * it would hold up the loads.  Where registers hold the sums of all heads of a group (DIRECT) numbers are taken from
 * the cache as they are multiplied, else rows are unpacked first.
 *
 * A vector of logits, and of weights, has those of a group's heads for as many keys as there is room (LANES):
 * key i of head h is element h * LANES + i % LANES of vector i / LANES. */
#if defined(__AVX512F__)
#define DIRECT true
enum { ONE_HEADS = 8 };
#else
#define DIRECT false
enum { ONE_HEADS = 2 };
#endif
#define LANES(heads) ((heads) > 4 ? 2 : (heads) > 2 ? 4 : (heads) > 1 ? 8 : 16)
enum { AHEAD = 10000 };

/* Rows that are multiplied, as they lie or unpacked, and those that are fetched meanwhile. */
struct numbers {
    const uint8_t *p;
    size_t row;
    int32_t at, n; /* rows [at, at + n) of a piece */
    enum iwp_attn_type type;
    const uint8_t *ahead;       /* NULL: none */
    size_t ahead_row, ahead_32; /* bytes of a row, and of 32 numbers */
};

/* What numbers [j, j + 32) of a row are multiplied with. */
ALWAYS vf scale_at(const uint8_t *p, int32_t j, const enum iwp_attn_type type) {
    if (type != IWP_ATTN_Q8_0) return all(1);
    uint16_t h;
    memcpy(&h, p + 34 * (size_t)(j / 32), sizeof h);
    const vh s = {h, h, h, h, h, h, h, h, h, h, h, h, h, h, h, h};
    return halves(&s);
}

/* Numbers [j, j + 16) of a row. */
ALWAYS vf number(const uint8_t *p, int32_t j, vf scale, const enum iwp_attn_type type) {
    if (type == IWP_ATTN_F16) return halves(p + 2 * (size_t)j);
    if (type == IWP_ATTN_Q8_0) return from_i8(p + 34 * (size_t)(j / 32) + 2 + j % 32) * scale;
    vf v;
    memcpy(&v, p + 4 * (size_t)j, sizeof v);
    return v;
}

/* ---- a group of heads --------------------------------------------------------------------------- */

/* Logits of the rows of x to s, for q [d/16][heads][16]; the sums of `once` keys are kept at a time. */
ALWAYS void dots(float *s, const float *q, const struct numbers *x, int32_t d, const int heads,
                 const int once, const enum iwp_attn_type type) {
    const int lanes = LANES(heads);
    for (int32_t k = 0; k < x->n; k += once) {
        const uint8_t *p[4], *ahead = x->ahead ? x->ahead + (size_t)k * x->ahead_row : NULL;
        UNROLL for (int i = 0; i < once; i++) p[i] =
            x->p + (size_t)(k + i < x->n ? k + i : x->n - 1) * x->row;
        const float *at = q;
        vf c[16] = {0};
        for (int32_t j = 0; j < d;) {
            const int32_t end = j + 32 < d ? j + 32 : d;
            vf scale[4];
            UNROLL for (int i = 0; i < once; i++) scale[i] = scale_at(p[i], j, type);
            if (ahead) {
                UNROLL for (int i = 0; i < once; i++)
                    __builtin_prefetch(ahead + (size_t)i * x->ahead_row);
                ahead += x->ahead_32;
            }
            for (; j < end; j += 16, at += 16 * heads) {
                vf b[4];
                UNROLL for (int i = 0; i < once; i++) b[i] = number(p[i], j, scale[i], type);
                UNROLL for (int h = 0; h < heads; h++) {
                    const vf a = load(at + 16 * h);
                    UNROLL for (int i = 0; i < once; i++) c[h * once + i] += a * b[i];
                }
            }
        }
        float *to = s + (x->at + k) / lanes * 16 + (x->at + k) % lanes, part[16];
        if (once == lanes) {
            save(to, sums16(c));
            continue;
        }
        save(part, sums16(c));
        UNROLL for (int h = 0; h < heads; h++)
            memcpy(to + h * lanes, part + h * once, (size_t)once * sizeof *to);
    }
}

/* y [heads][stride] += p · x, `vecs` vectors of columns from j on. */
ALWAYS void blend(float *y, size_t stride, const float *p, const struct numbers *x, int32_t j,
                  const int heads, const int vecs, const enum iwp_attn_type type) {
    const int lanes = LANES(heads);
    const uint8_t *row = x->p, *ahead = x->ahead ? x->ahead + (size_t)(j / 32) * x->ahead_32 : NULL;
    vf c[8][4];
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int v = 0; v < vecs; v++) c[h][v] =
        load(y + (size_t)h * stride + j + 16 * v);
    const int32_t n = x->at + x->n;
    for (int32_t i = x->at, end; i < n;) {
        const float *w = p + i / lanes * 16;
        for (end = i / lanes * lanes + lanes < n ? i / lanes * lanes + lanes : n; i < end;
             i++, row += x->row) {
            vf b[4], scale = all(1);
            if (ahead) {
                UNROLL for (int v = 0; v < vecs; v += 2)
                    __builtin_prefetch(ahead + (size_t)(v / 2) * x->ahead_32);
                ahead += x->ahead_row;
            }
            UNROLL for (int v = 0; v < vecs; v++) {
                if (v % 2 == 0) scale = scale_at(row, j + 16 * v, type);
                b[v] = number(row, j + 16 * v, scale, type);
            }
            UNROLL for (int h = 0; h < heads; h++) {
                const vf a = all(w[h * lanes + i % lanes]);
                UNROLL for (int v = 0; v < vecs; v++) c[h][v] += a * b[v];
            }
        }
    }
    UNROLL for (int h = 0; h < heads; h++) UNROLL for (int v = 0; v < vecs; v++)
        save(y + (size_t)h * stride + j + 16 * v, c[h][v]);
}

ALWAYS void blend_all(float *y, size_t stride, const float *p, const struct numbers *x, int32_t d,
                      const int heads, const int vecs, const enum iwp_attn_type type) {
    int32_t j = 0;
    for (; j + 16 * vecs <= d; j += 16 * vecs) blend(y, stride, p, x, j, heads, vecs, type);
    for (; j + 32 <= d; j += 32) blend(y, stride, p, x, j, heads, 2, type);
    if (j < d) blend(y, stride, p, x, j, heads, 1, type);
}

/* How many heads there are is known to the compiler, and with it how much stays in registers. */
#define GROUP(N, ONCE, VECS)                                                                       \
    static void dots_##N(float *s, const float *q, const struct numbers *x, int32_t d) {           \
        switch (DIRECT ? x->type : IWP_ATTN_F32) {                                                 \
        case IWP_ATTN_F16: dots(s, q, x, d, N, ONCE, IWP_ATTN_F16); break;                         \
        case IWP_ATTN_Q8_0: dots(s, q, x, d, N, ONCE, IWP_ATTN_Q8_0); break;                       \
        case IWP_ATTN_F32: dots(s, q, x, d, N, ONCE, IWP_ATTN_F32); break;                         \
        }                                                                                          \
    }                                                                                              \
    static void blend_##N(float *y, size_t stride, const float *p, const struct numbers *x,        \
                          int32_t d) {                                                             \
        switch (DIRECT ? x->type : IWP_ATTN_F32) {                                                 \
        case IWP_ATTN_F16: blend_all(y, stride, p, x, d, N, VECS, IWP_ATTN_F16); break;            \
        case IWP_ATTN_Q8_0: blend_all(y, stride, p, x, d, N, VECS, IWP_ATTN_Q8_0); break;          \
        case IWP_ATTN_F32: blend_all(y, stride, p, x, d, N, VECS, IWP_ATTN_F32); break;            \
        }                                                                                          \
    }
struct group {
    void (*dots)(float *s, const float *q, const struct numbers *x, int32_t d);
    void (*blend)(float *y, size_t stride, const float *p, const struct numbers *x, int32_t d);
};
#if defined(__AVX512F__)
GROUP(1, 4, 4)
GROUP(2, 4, 4)
GROUP(3, 4, 4)
GROUP(4, 4, 4)
GROUP(5, 2, 2)
GROUP(6, 2, 2)
GROUP(7, 2, 2)
GROUP(8, 2, 2)
static const struct group groups[ONE_HEADS] = {
    {dots_1, blend_1}, {dots_2, blend_2}, {dots_3, blend_3}, {dots_4, blend_4},
    {dots_5, blend_5}, {dots_6, blend_6}, {dots_7, blend_7}, {dots_8, blend_8}};
#else
GROUP(1, 4, 2)
GROUP(2, 2, 2)
static const struct group groups[ONE_HEADS] = {{dots_1, blend_1}, {dots_2, blend_2}};
#endif

/* The softmax of the n logits of each head; its largest and its sum behind the d sums in y [heads][stride]. */
static void soften_one(float *s, const float *bias, int32_t n, int32_t heads, float *y,
                       size_t stride, int32_t d) {
    const int32_t lanes = LANES(heads), end = (n + lanes - 1) / lanes * 16;
    for (int32_t h = 0; h < heads; h++) {
        float *at = s + h * lanes;
        for (int32_t i = 0; bias && i < n; i++) at[i / lanes * 16 + i % lanes] += bias[i] * LOG2E;
        for (int32_t i = n; i % lanes; i++) at[i / lanes * 16 + i % lanes] = -1e30f;
    }
    vf m = all(-1e30f), l = all(0);
    for (int32_t i = 0; i < end; i += 16) m = larger(load(s + i), m);
    float top[16], total[16];
    save(top, m);
    for (int32_t h = 0; h < heads; h++) {
        float *t = top + h * lanes, *most = &y[(size_t)h * stride + (size_t)d];
        *most = t[0];
        for (int32_t i = 1; i < lanes; i++) *most = t[i] > *most ? t[i] : *most;
        for (int32_t i = 0; i < lanes; i++) t[i] = *most;
    }
    m = load(top);
    for (int32_t i = 0; i < end; i += 16) {
        const vf p = weight(load(s + i) - m);
        save(s + i, p);
        l += p;
    }
    save(total, l);
    for (int32_t h = 0; h < heads; h++) {
        float sum = 0;
        for (int32_t i = 0; i < lanes; i++) sum += total[h * lanes + i];
        y[(size_t)h * stride + (size_t)d + 1] = sum;
    }
}

/* ---- a piece ------------------------------------------------------------------------------------ */

/* The way through the rows [first, first + n) of some KV heads: `step` rows of one head after the other, then the
 * next rows.  `next` is what is read afterwards. */
struct walk {
    const struct iwp_attn_rows *rows, *next;
    int32_t first, n, next_first, head, n_head, step;
};

/* So few rows that L1 has room for all heads of what is read and of what is fetched, or L2 without much of a detour. */
static struct walk walk_of(const struct iwp_attn_rows *rows, const struct iwp_attn_rows *next,
                           int32_t first, int32_t n, int32_t next_first, int32_t head,
                           int32_t n_head) {
    struct walk w = {rows, next, first, n, next_first, head, n_head, 16};
    while (w.step > 4 && (size_t)(w.step * n_head) * rows->head > 40000) w.step /= 2;
    return w;
}

static inline const uint8_t *row_at(const struct iwp_attn_rows *r, int32_t head, int32_t i) {
    return (const uint8_t *)r->data + (size_t)i * r->row + (size_t)head * r->head;
}

/* The rows from `at` on of KV head g of those, unpacked into x where that is needed, and what follows later. */
static struct numbers rows_of(const struct walk *w, int32_t at, int32_t g, float *x, int32_t d,
                              int32_t wide) {
    const struct iwp_attn_rows *r = w->rows;
    const int32_t unit = at / w->step * w->n_head + g,
                  later = unit + 1 + (int32_t)(AHEAD / ((size_t)w->step * r->head)),
                  later_at = later / w->n_head * w->step, later_head = w->head + later % w->n_head;
    const struct iwp_attn_rows *a = later_at < w->n ? r : w->next;
    struct numbers y = {
        .p = row_at(r, w->head + g, w->first + at),
        .row = r->row,
        .at = at,
        .n = w->n - at < w->step ? w->n - at : w->step,
        .type = r->type,
        .ahead = row_at(a, later_head,
                        later_at < w->n ? w->first + later_at : w->next_first + later_at - w->n),
        .ahead_row = a->row,
        .ahead_32 = a->type == IWP_ATTN_F32   ? 128
                    : a->type == IWP_ATTN_F16 ? 64
                                              : 34};
    if (DIRECT) return y;
    unpack(x, y.n, r, w->head + g, w->first + at, y.n, d, wide);
    y.p = (const uint8_t *)x;
    y.row = (size_t)wide * sizeof *x;
    y.type = IWP_ATTN_F32;
    return y;
}

/* Heads of group b. */
static inline int32_t heads_of(int32_t heads, int32_t most, int32_t b) {
    return heads - b * most < most ? heads - b * most : most;
}

static void one_piece(const struct iwp_attn *op, int32_t kv_head, int32_t n_kv_head, int32_t chunk,
                      float *part, size_t stride, void *scratch) {
    const int32_t heads = op->n_head / op->n_head_kv, d = op->d;
    const int32_t n_group = (heads + ONE_HEADS - 1) / ONE_HEADS,
                  most = (heads + n_group - 1) / n_group;
    const int32_t wide = (int32_t)iwp_attn_up((size_t)d), first = chunk * CHUNK;
    const int32_t n = op->n_kv - first < CHUNK ? op->n_kv - first : CHUNK;
    const int32_t size = CHUNK / LANES(most) * 16; /* logits of a group */
    const size_t y_stride = iwp_attn_part_stride(d), y_group = (size_t)most * y_stride;
    const struct walk k = walk_of(&op->k, &op->v, first, n, first, kv_head, n_kv_head),
                      v = walk_of(&op->v, &op->k, first, n, first + n, kv_head, n_kv_head);
    float *q = scratch, *s = q + heads * n_kv_head * wide, *x = s + n_kv_head * n_group * size;
    for (int32_t g = 0; g < n_kv_head; g++) {
        memset(part + (size_t)g * stride, 0, (size_t)heads * y_stride * sizeof *part);
        for (int32_t h = 0; h < heads; h++) {
            const int32_t b = h / most, in = heads_of(heads, most, b);
            const float *from = query_at(op, kv_head + g, h);
            float *to = q + (g * heads + b * most) * wide + h % most * 16;
            for (int32_t j = 0; j < d; j += 16)
                save(to + j * in, load(from + j) * all(op->scale * LOG2E));
        }
    }
    for (int32_t i = 0; i < n; i += k.step)
        for (int32_t g = 0; g < n_kv_head; g++) {
            struct numbers rows = rows_of(&k, i, g, x, d, wide);
            for (int32_t b = 0; b < n_group; b++, rows.ahead = NULL)
                groups[heads_of(heads, most, b) - 1].dots(
                    s + (g * n_group + b) * size, q + (g * heads + b * most) * wide, &rows, d);
        }
    for (int32_t g = 0; g < n_kv_head; g++)
        for (int32_t b = 0; b < n_group; b++)
            soften_one(s + (g * n_group + b) * size, op->bias ? op->bias + first : NULL, n,
                       heads_of(heads, most, b), part + (size_t)g * stride + (size_t)b * y_group,
                       y_stride, d);
    for (int32_t i = 0; i < n; i += v.step)
        for (int32_t g = 0; g < n_kv_head; g++) {
            struct numbers rows = rows_of(&v, i, g, x, d, wide);
            for (int32_t b = 0; b < n_group; b++, rows.ahead = NULL)
                groups[heads_of(heads, most, b) - 1].blend(
                    part + (size_t)g * stride + (size_t)b * y_group, y_stride,
                    s + (g * n_group + b) * size, &rows, d);
        }
}
