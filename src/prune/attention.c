/* See attention.h.  Keys are packed once into panels of 32 lanes; a block is up to twelve (row, head)
 * pairs that share a KV head, so one pass over a panel serves a whole GQA group. */
#include "prune/attention.h"

#include <math.h>
#include <string.h>

#include "kern/kern.h"

enum { CHUNKS = 8 }; /* partial sums per KV head: enough for threads, cheap to add up */

static size_t at(int64_t x) { return (size_t)x; }

static int32_t chunk_count(int32_t n_row) {
    int32_t n = (n_row + IWP_BLOCK - 1) / IWP_BLOCK;
    return n < 1 ? 1 : n > CHUNKS ? CHUNKS : n;
}

void iwp_attention_layout(struct iwp_attention *a, const struct iwp_view *v, struct iwp_arena *m) {
    a->exec = v->exec;
    a->n_head = a->q->n_head;
    a->n_group = a->k->n_head;
    a->heads = a->n_head / a->n_group;
    a->d = a->k->n_dim;
    a->width = (a->n_key + IWP_PANEL - 1) / IWP_PANEL * IWP_PANEL;
    a->cap_row = a->n_row;
    int32_t c = chunk_count(a->n_row);
    size_t w = at(a->width), g = at(a->n_group), d = at(a->d);
    a->panel = IWP_TAKE(m, float, w *g *d);
    a->key_max = IWP_TAKE(m, float, w / IWP_PANEL + at(a->n_row));
    a->buf = IWP_TAKE(m, float, g *at(c) * (IWP_BLOCK * (w + d + IWP_PANEL) + d));
    a->part = IWP_TAKE(m, double, at(c) * at(a->n_head) * w);
    a->rows = a->wants_rows ? IWP_TAKE(m, float, g *at(a->n_row) * w) : NULL;
    a->sum = a->part; /* chunk 0 collects the others */
}

/* Panel p of every KV head, and the longest key in it. */
static void pack_keys(void *arg, int32_t p) {
    struct iwp_attention *a = arg;
    const struct iwp_kern *kern = iwp_kern_get();
    float tmp[512], top = 0;
    for (int32_t g = 0; g < a->n_group; g++) {
        float *to = a->panel + (at(g) * at(a->width) + at(p) * IWP_PANEL) * at(a->d);
        int32_t n = a->n_key - p * IWP_PANEL;
        for (int32_t i = 0; i < IWP_PANEL; i++) {
            if (i >= n) {
                for (int32_t t = 0; t < a->d; t++) to[at(t) * IWP_PANEL + at(i)] = 0;
                continue;
            }
            const float *x = iwp_array_row(a->k, p * IWP_PANEL + i, g, tmp);
            float n2 = kern->norm2(x, a->d);
            top = n2 <= top ? top : n2; /* Inf stays */
            for (int32_t t = 0; t < a->d; t++) to[at(t) * IWP_PANEL + at(i)] = x[t];
        }
    }
    a->key_max[p] = top;
}

static int32_t row_at(const struct iwp_attention *a, int32_t i) { return a->row ? a->row[i] : i; }

static int32_t key_end(const struct iwp_attention *a, int32_t i) {
    int32_t e = a->key_to ? a->key_to[i] : row_at(a, i) + 1;
    return e < a->n_key ? e : a->n_key;
}

static void row_norm(void *arg, int32_t block) {
    struct iwp_attention *a = arg;
    const struct iwp_kern *kern = iwp_kern_get();
    float tmp[512], *out = a->key_max + a->width / IWP_PANEL;
    int32_t end = (block + 1) * 64 < a->n_row ? (block + 1) * 64 : a->n_row;
    for (int32_t i = block * 64; i < end; i++) {
        out[i] = 0;
        for (int32_t h = 0; h < a->n_head; h++) {
            float n2 = kern->norm2(iwp_array_row(a->q, row_at(a, i), h, tmp), a->d);
            out[i] = n2 <= out[i] ? out[i] : n2;
        }
    }
}

/* Products that could overflow a float: |q||k| bounds every partial sum. */
static int is_wide(const struct iwp_attention *a) {
    double k = 0, q = 0;
    int32_t np = a->width / IWP_PANEL;
    for (int32_t p = 0; p < np; p++) k = fmax(k, (double)a->key_max[p]);
    for (int32_t i = 0; i < a->n_row; i++) q = fmax(q, (double)a->key_max[np + i]);
    return !(sqrt(q) * sqrt(k) <= 1e36);
}

static float wide_logit(const struct iwp_attention *a, int32_t row, int32_t h, int32_t key) {
    float tq[512], tk[512];
    const float *x = iwp_array_row(a->q, row, h, tq),
                *y = iwp_array_row(a->k, key, h / a->heads, tk);
    double s = 0;
    for (int32_t t = 0; t < a->d; t++) s += (double)x[t] * (double)y[t];
    s /= sqrt((double)a->d);
    return (float)(s > 1e38 ? 1e38 : s < -1e38 ? -1e38 : s);
}

/* One (row, head): logits in x [width] become probabilities, added to the sums. */
static void fold(const struct iwp_attention *a, int32_t i, int32_t h, float *x, float top,
                 int32_t from, int32_t to, double *sum) {
    float total = iwp_kern_get()->exp_shift_sum(x + from, top, to - from);
    double inv = 1.0 / (double)total;
    const float *div = a->divisor ? a->divisor + at(i) * at(a->n_key) : NULL;
    if (div)
        for (int32_t j = from; j < to; j++) sum[j] += (double)x[j] * inv / (double)div[j];
    else
        for (int32_t j = from; j < to; j++) sum[j] += (double)x[j] * inv;
    if (!a->rows) return;
    float *r = a->rows + (at(h / a->heads) * at(a->cap_row) + at(i)) * at(a->width);
    for (int32_t j = from; j < to; j++) {
        double p = (double)x[j] * inv;
        r[j] += (float)(div ? p / (double)div[j] : p);
    }
}

/* n pairs from pair `f0` on (row f / heads, head f % heads of group g). */
static void run_block(const struct iwp_attention *a, int32_t g, int32_t f0, int32_t n, float *buf,
                      double *part) {
    const struct iwp_kern *kern = iwp_kern_get();
    size_t w = at(a->width), d = at(a->d);
    float *x = buf, *block = x + IWP_BLOCK * w, *out = block + IWP_BLOCK * d,
          *tmp = out + IWP_BLOCK * IWP_PANEL, top[IWP_BLOCK][IWP_PANEL],
          scale = 1.0f / sqrtf((float)a->d);
    int32_t from[IWP_BLOCK], to[IWP_BLOCK], first = a->n_key, last = 0;
    for (int32_t r = 0; r < n; r++) {
        int32_t i = (f0 + r) / a->heads, h = g * a->heads + (f0 + r) % a->heads;
        const float *q = iwp_array_row(a->q, row_at(a, i), h, tmp);
        for (int32_t t = 0; t < a->d; t++) block[at(t) * at(n) + at(r)] = q[t] * scale;
        from[r] = a->key_from ? a->key_from[i] : 0;
        to[r] = key_end(a, i);
        if (from[r] < first) first = from[r];
        if (to[r] > last) last = to[r];
        for (int l = 0; l < IWP_PANEL; l++) top[r][l] = -INFINITY;
    }
    for (int32_t p = first / IWP_PANEL; p * IWP_PANEL < last; p++) {
        kern->panel_dots(out, a->panel + (at(g) * w + at(p) * IWP_PANEL) * d, block, n, a->d);
        int32_t j0 = p * IWP_PANEL;
        for (int32_t r = 0; r < n; r++) {
            if (to[r] <= j0 || from[r] >= j0 + IWP_PANEL) continue;
            float *o = out + at(r) * IWP_PANEL;
            int whole = from[r] <= j0 && to[r] >= j0 + IWP_PANEL;
            if (a->wide || !whole)
                for (int32_t l = 0; l < IWP_PANEL; l++) {
                    int seen = j0 + l >= from[r] && j0 + l < to[r];
                    if (!seen)
                        o[l] = -INFINITY;
                    else if (a->wide)
                        o[l] = wide_logit(a, row_at(a, (f0 + r) / a->heads),
                                          g * a->heads + (f0 + r) % a->heads, j0 + l);
                }
            kern->max_row(top[r], o, IWP_PANEL);
            memcpy(x + at(r) * w + at(j0), o, IWP_PANEL * sizeof(float));
        }
    }
    for (int32_t r = 0; r < n; r++) {
        if (to[r] <= from[r]) continue; /* sees nothing: adds nothing */
        float m = top[r][0];
        for (int l = 1; l < IWP_PANEL; l++) m = top[r][l] > m ? top[r][l] : m;
        int32_t h = g * a->heads + (f0 + r) % a->heads;
        fold(a, (f0 + r) / a->heads, h, x + at(r) * w, m, from[r], to[r], part + at(h) * w);
    }
}

/* Twelve rows of queries are `heads` whole blocks; such groups go round the chunks, so that chunks
 * stay even under a causal mask and no row is shared between two. */
static void run_chunk(void *arg, int32_t task) {
    struct iwp_attention *a = arg;
    int32_t g = task / a->n_chunk, c = task % a->n_chunk;
    size_t w = at(a->width), d = at(a->d);
    float *buf = a->buf + at(task) * (IWP_BLOCK * (w + d + IWP_PANEL) + d);
    double *part = a->part + at(c) * at(a->n_head) * w;
    memset(part + at(g) * at(a->heads) * w, 0, sizeof(double) * at(a->heads) * w);
    for (int32_t i0 = c * IWP_BLOCK; i0 < a->n_row; i0 += a->n_chunk * IWP_BLOCK) {
        int32_t n = a->n_row - i0 < IWP_BLOCK ? a->n_row - i0 : IWP_BLOCK, pairs = n * a->heads;
        if (a->rows)
            memset(a->rows + (at(g) * at(a->cap_row) + at(i0)) * w, 0, sizeof(float) * at(n) * w);
        for (int32_t f = 0; f < pairs; f += IWP_BLOCK)
            run_block(a, g, i0 * a->heads + f, pairs - f < IWP_BLOCK ? pairs - f : IWP_BLOCK, buf,
                      part);
    }
}

static void add_chunks(void *arg, int32_t h) {
    struct iwp_attention *a = arg;
    size_t w = at(a->width);
    double *sum = a->sum + at(h) * w;
    for (int32_t c = 1; c < a->n_chunk; c++) {
        const double *x = a->part + (at(c) * at(a->n_head) + at(h)) * w;
        for (size_t j = 0; j < w; j++) sum[j] += x[j];
    }
}

void iwp_attention_run(struct iwp_attention *a) {
    a->n_chunk = chunk_count(a->n_row);
    iwp_parallel(a->exec, pack_keys, a, a->width / IWP_PANEL);
    iwp_parallel(a->exec, row_norm, a, (a->n_row + 63) / 64);
    a->wide = is_wide(a);
    iwp_parallel(a->exec, run_chunk, a, a->n_group * a->n_chunk);
    iwp_parallel(a->exec, add_chunks, a, a->n_head);
}

void iwp_attention_head_sum(const struct iwp_attention *a, const int32_t *key, int32_t n,
                            double factor, double *out) {
    for (int32_t i = 0; i < n; i++) out[i] = 0;
    for (int32_t h = 0; h < a->n_head; h++)
        for (int32_t i = 0; i < n; i++) out[i] += a->sum[at(h) * at(a->width) + at(key[i])];
    for (int32_t i = 0; i < n; i++) out[i] *= factor;
}
