/* Information magnitude: one number per visual token (spec/iwp.md 3).
 *
 * One pass over k and v gives the logits of every head and the value norms; everything after that
 * works on [heads][tokens] floats.  The result stays a logarithm: logits may differ by hundreds and
 * their exponentials must still be ordered. */
#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/iwp_parts.h"

enum { CHUNK = 256, BLOCK = 4, MAX_DIM = 1024, MAX_HEADS = 64 };

struct metric {
    uint8_t reads_query, reads_key, reads_value, is_exp, per_query_head;
};
static const struct metric metrics[] = {
    [MAG_KV] = {1, 1, 1, 1, 0},          [MAG_K] = {1, 1, 0, 1, 0},
    [MAG_VNORM] = {0, 0, 1, 0, 0},       [MAG_KNORM] = {0, 1, 0, 0, 0},
    [MAG_PHIK] = {0, 1, 0, 1, 0},        [MAG_DW] = {0, 1, 1, 1, 0},
    [MAG_CENTERED] = {1, 1, 1, 1, 1},    [MAG_DELETION] = {1, 1, 1, 1, 1},
    [MAG_KV_DELETION] = {1, 1, 1, 1, 1},
};

int iwp_magnitude_needs(const struct iwp_iwp_options *o, struct iwp_need *out, int n, int cap) {
    const struct metric *m = &metrics[o->magnitude];
    static const enum iwp_rows rows[] = {IWP_ROWS_TEXT_AFTER, IWP_ROWS_TEXT, IWP_ROWS_TEXT,
                                         IWP_ROWS_VISUAL, IWP_ROWS_LAST};
    /* Without a softmax over all keys only visual rows are read. */
    enum iwp_rows keys = m->is_exp && (o->head_norm == HEAD_SOFTMAX_ALL || m->per_query_head)
                             ? IWP_ROWS_ALL
                             : IWP_ROWS_VISUAL;
    if (m->reads_query)
        n = iwp_need_add(out, n, cap, o->magnitude_rope ? IWP_TENSOR_Q_ROPE : IWP_TENSOR_Q,
                         rows[o->query], 0);
    if (m->reads_key)
        n = iwp_need_add(out, n, cap, o->magnitude_rope ? IWP_TENSOR_K_ROPE : IWP_TENSOR_K, keys,
                         0);
    if (m->reads_value)
        n = iwp_need_add(out, n, cap, IWP_TENSOR_V,
                         m->per_query_head ? IWP_ROWS_ALL : IWP_ROWS_VISUAL, 0);
    return n;
}

void iwp_magnitude_layout(struct iwp_magnitude_plan *m, const struct iwp_view *v,
                          struct iwp_arena *a) {
    const struct iwp_iwp_options *o = IWP_OPTIONS(iwp_iwp_options, v->params);
    const struct metric *t = &metrics[o->magnitude];
    const struct iwp_array *arr = v->in->arr;
    memset(m, 0, sizeof *m);
    m->v = v;
    m->o = o;
    m->q = t->reads_query ? &arr[o->magnitude_rope ? IWP_TENSOR_Q_ROPE : IWP_TENSOR_Q] : NULL;
    m->k = t->reads_key ? &arr[o->magnitude_rope ? IWP_TENSOR_K_ROPE : IWP_TENSOR_K] : NULL;
    m->val = t->reads_value ? &arr[IWP_TENSOR_V] : NULL;
    const struct iwp_array *kv = m->k ? m->k : m->val;
    m->n_head_kv = kv->n_head;
    m->n_head =
        m->q ? m->q->n_head : kv->n_head; /* without a query all heads of a group are equal */
    m->d = kv->n_dim;
    size_t nh = (size_t)m->n_head, nk = (size_t)m->n_head_kv;
    m->query_row = IWP_TAKE(a, int32_t, v->n);
    m->query = IWP_TAKE(a, float, nh *(size_t)m->d);
    m->logit = IWP_TAKE(a, float, t->is_exp ? nh *(size_t)v->n : 1);
    m->vnorm = IWP_TAKE(a, float, nk *(size_t)v->n_visual);
    m->weight = t->per_query_head ? IWP_TAKE(a, float, nh *(size_t)v->n_visual) : m->vnorm;
    m->offset = IWP_TAKE(a, double, nh);
    m->lse = IWP_TAKE(a, double, nh);
    m->log_p = IWP_TAKE(a, double, v->n_visual);
}

/* ---- the representative query ---------------------------------------------------------------------- */

static int in_query(const struct iwp_view *v, int32_t mode, int32_t i) {
    uint8_t c = v->in->code[i];
    int text = c == IWP_CODE_TEXT || c == IWP_CODE_USER;
    switch (mode) {
    case QUERY_TEXT_AFTER: return text && i > v->first_visual;
    case QUERY_TEXT_ALL: return text;
    case QUERY_TEXT_USER: return c == IWP_CODE_USER;
    case QUERY_IMAGE: return !text;
    default: return i == v->n - 1;
    }
}

static void mean_query(void *arg, int32_t h) {
    struct iwp_magnitude_plan *m = arg;
    float *out = m->query + (size_t)h * (size_t)m->d, tmp[1024];
    double sum[1024];
    memset(sum, 0, sizeof(double) * (size_t)m->d);
    for (int32_t i = 0; i < m->n_query; i++) {
        const float *row = iwp_array_row(m->q, m->query_row[i], h, tmp);
        for (int32_t t = 0; t < m->d; t++) sum[t] += (double)row[t];
    }
    for (int32_t t = 0; t < m->d; t++) {
        out[t] = (float)(sum[t] / m->n_query);
        if (!(fabsf(out[t]) <= 3e38f)) m->bad = 1;
    }
}

/* ---- logits and norms: the one pass over k and v ------------------------------------------------ */

/* For numbers whose float form overflowed: the same in double, clamped. */
static float safe_dot(const float *x, const float *y, int32_t d, double factor) {
    double s = 0;
    for (int32_t t = 0; t < d; t++) s += (double)x[t] * (double)y[t];
    s *= factor;
    return (float)(s > 1e38 ? 1e38 : s < -1e38 ? -1e38 : s);
}

static float safe_norm(float n2, const float *x, int32_t d) {
    if (n2 <= 1e37f && n2 >= 1e-30f) return sqrtf(n2);
    double s = 0;
    for (int32_t t = 0; t < d; t++) s += (double)x[t] * (double)x[t];
    s = sqrt(s);
    return (float)(s > 1e38 ? 1e38 : s);
}

/* Row r of head g and the n - 1 rows after it, in float: in place, or converted into tmp. */
static const float *rows_at(const struct iwp_array *a, int32_t r, int32_t n, int32_t g, float *tmp,
                            int64_t *stride) {
    *stride = a->row_stride;
    if (a->dtype == IWP_DTYPE_F32) return iwp_array_row(a, r, g, tmp);
    *stride = a->n_dim;
    for (int32_t i = 0; i < n; i++) iwp_array_row(a, r + i, g, tmp + (size_t)i * (size_t)a->n_dim);
    return tmp;
}

/* Logits of n ≤ BLOCK rows from r on.  A few rows at a time, head after head: k is read in order. */
static void key_block(struct iwp_magnitude_plan *m, const struct iwp_kern *kern, int32_t r,
                      int32_t n, float *tmp) {
    int32_t group = m->n_head / m->n_head_kv, d = m->d;
    int64_t n_row = m->v->n, stride;
    float factor = 1.0f / sqrtf((float)d);
    for (int32_t g = 0; g < m->n_head_kv; g++) {
        const float *k = rows_at(m->k, r, n, g, tmp, &stride);
        float *l = m->logit + (int64_t)g * group * n_row + r;
        if (!m->q) {
            kern->norms2(l, k, stride, n, d);
            for (int32_t i = 0; i < n; i++) {
                float x = 0.5f * factor * l[i];
                if (!(x <= 1e37f)) {
                    x = safe_dot(k + i * stride, k + i * stride, d, 0.5 * (double)factor);
                    m->bad = 1;
                }
                l[i] = x;
            }
            continue;
        }
        const float *q = m->query + (int64_t)g * group * d;
        kern->dots_rows(l, n_row, k, stride, n, q, d, group, d);
        for (int32_t j = 0; j < group; j++, l += n_row, q += d)
            for (int32_t i = 0; i < n; i++) {
                l[i] = l[i] * factor;
                if (fabsf(l[i]) <= 1e37f) continue;
                l[i] = safe_dot(k + i * stride, q, d, (double)factor);
                m->bad = 1;
            }
    }
}

static void key_rows(void *arg, int32_t chunk) {
    struct iwp_magnitude_plan *m = arg;
    const struct iwp_kern *kern = iwp_kern_get();
    const uint8_t *code = m->v->in->code;
    int32_t r1 = (chunk + 1) * CHUNK < m->v->n ? (chunk + 1) * CHUNK : m->v->n;
    float tmp[BLOCK * MAX_DIM];
    int visual_only =
        m->o->head_norm != HEAD_SOFTMAX_ALL && !metrics[m->o->magnitude].per_query_head;
    for (int32_t r = chunk * CHUNK, n; r < r1; r += n) {
        int text = code[r] == IWP_CODE_TEXT || code[r] == IWP_CODE_USER;
        for (n = 1; n < BLOCK && r + n < r1; n++)
            if ((code[r + n] == IWP_CODE_TEXT || code[r + n] == IWP_CODE_USER) != text) break;
        if (!(visual_only && text)) key_block(m, kern, r, n, tmp);
    }
}

static void norm_rows(void *arg, int32_t chunk) {
    struct iwp_magnitude_plan *m = arg;
    const struct iwp_kern *kern = iwp_kern_get();
    const struct iwp_view *v = m->v;
    const struct iwp_array *a = m->val ? m->val : m->k;
    int32_t i1 = (chunk + 1) * CHUNK < v->n_visual ? (chunk + 1) * CHUNK : v->n_visual,
            heads = m->n_head_kv;
    float tmp[MAX_DIM], n2[BLOCK * MAX_HEADS];
    /* Heads side by side and rows behind each other are one long list of vectors. */
    int packed =
        a->dtype == IWP_DTYPE_F32 && heads <= MAX_HEADS && a->row_stride == heads * a->head_stride;
    for (int32_t i = chunk * CHUNK, n; i < i1; i += n) {
        n = 1;
        if (packed) {
            while (n < BLOCK && i + n < i1 && v->visual[i + n] == v->visual[i] + n) n++;
            kern->norms2(n2, iwp_array_row(a, v->visual[i], 0, tmp), a->head_stride, n * heads,
                         m->d);
        }
        for (int32_t k = 0; k < n * heads; k++) {
            int32_t g = k % heads, t = i + k / heads;
            const float *row = iwp_array_row(a, v->visual[t], g, tmp);
            float x = safe_norm(packed ? n2[k] : kern->norm2(row, m->d), row, m->d);
            if (!(x < 1e38f)) m->bad = 1;
            m->vnorm[(size_t)g * (size_t)v->n_visual + (size_t)t] = x;
        }
    }
}

/* ---- head normalisation ---------------------------------------------------------------------------- */

/* l[at[i]] for i < n: a place in l when they are neighbours, else gathered into buf. */
static const float *gather(const float *l, const int32_t *at, int32_t n, float *buf) {
    if (at[n - 1] - at[0] == n - 1) return l + at[0];
    for (int32_t i = 0; i < n; i++) buf[i] = l[at[i]];
    return buf;
}

/* log of the sum of exponentials over all keys, or over the visual ones. */
static double log_sum(const struct iwp_magnitude_plan *m, const float *l, int visual, float *max) {
    const struct iwp_kern *kern = iwp_kern_get();
    const struct iwp_view *v = m->v;
    int32_t n = visual ? v->n_visual : v->n;
    float buf[CHUNK], top = -INFINITY;
    double sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i0 = 0; i0 < n; i0 += CHUNK) {
            int32_t c = n - i0 < CHUNK ? n - i0 : CHUNK;
            const float *x = visual ? gather(l, v->visual + i0, c, buf) : l + i0;
            if (pass == 0) {
                float y = kern->max_of(x, c);
                top = y > top ? y : top;
                continue;
            }
            if (x != buf) memcpy(buf, x, sizeof(float) * (size_t)c);
            sum += (double)kern->exp_shift_sum(buf, top, c);
        }
    *max = top;
    return (double)top + iwp_math_log(sum);
}

static void head_offset(void *arg, int32_t h) {
    struct iwp_magnitude_plan *m = arg;
    const float *l = m->logit + (size_t)h * (size_t)m->v->n;
    float max_all, max_visual;
    int per_head = metrics[m->o->magnitude].per_query_head;
    if (m->o->head_norm == HEAD_SOFTMAX_ALL || per_head) m->lse[h] = log_sum(m, l, 0, &max_all);
    if (m->o->head_norm == HEAD_SOFTMAX_ALL) {
        m->offset[h] = m->lse[h];
        return;
    }
    double lse = log_sum(m, l, 1, &max_visual);
    m->offset[h] = m->o->head_norm == HEAD_SOFTMAX ? lse : (double)max_visual;
}

/* ---- weights that depend on the attention output ------------------------------------------------- */

/* o (or, with skip ≥ 0, the output without that token) of head h; returns the logarithm of the
 * attended keys' share of the softmax. */
static double attend(const struct iwp_magnitude_plan *m, int32_t h, int32_t skip, double *o,
                     float *tmp) {
    int32_t g = iwp_kv_head(h, m->n_head, m->n_head_kv);
    const float *l = m->logit + (size_t)h * (size_t)m->v->n;
    double total = 0, top = -INFINITY;
    memset(o, 0, sizeof(double) * (size_t)m->d);
    for (int32_t s = 0; s < m->v->n; s++)
        if (s != skip && (double)l[s] > top) top = (double)l[s];
    for (int32_t s = 0; s < m->v->n; s++) {
        if (s == skip) continue;
        double w = iwp_math_exp((double)l[s] - top);
        const float *row = iwp_array_row(m->val, s, g, tmp);
        for (int32_t t = 0; t < m->d; t++) o[t] += w * (double)row[t];
        total += w;
    }
    if (total > 0)
        for (int32_t t = 0; t < m->d; t++) o[t] /= total;
    double share = total > 0 ? top - m->lse[h] + iwp_math_log(total) : -INFINITY;
    return share > -1e30 ? share
                         : -1e30; /* no other key at all: as small as sums of logits allow */
}

static double distance(const float *row, const double *o, int32_t d) {
    double s = 0;
    for (int32_t t = 0; t < d; t++) s += ((double)row[t] - o[t]) * ((double)row[t] - o[t]);
    return sqrt(s);
}

/* Logarithms again: once a head is saturated, 1 - w and v - o of its one big token are far below what
 * a float holds, and still decide the order. */
static void weigh_head(void *arg, int32_t h) {
    struct iwp_magnitude_plan *m = arg;
    const struct iwp_view *v = m->v;
    int32_t g = iwp_kv_head(h, m->n_head, m->n_head_kv);
    double o[1024], rest[1024];
    float tmp[1024];
    attend(m, h, -1, o, tmp);
    const float *l = m->logit + (size_t)h * (size_t)v->n;
    for (int32_t i = 0; i < v->n_visual; i++) {
        int32_t s = v->visual[i];
        double w = iwp_math_exp((double)l[s] - m->lse[h]), x, others;
        /* One token per head at most has w above a half: leave it out by name there. */
        int direct = w > 0.5;
        others = direct ? attend(m, h, s, rest, tmp) : iwp_math_log(1 - w);
        const float *row = iwp_array_row(m->val, s, g, tmp);
        if (m->o->magnitude == MAG_KV_DELETION)
            x = iwp_math_log((double)m->vnorm[(size_t)g * (size_t)v->n_visual + (size_t)i]) -
                others;
        else if (m->o->magnitude == MAG_CENTERED) /* v - o = (1 - w) (v - o without it) */
            x = direct ? iwp_math_log(distance(row, rest, m->d)) + others
                       : iwp_math_log(distance(row, o, m->d));
        else
            x = direct ? iwp_math_log(distance(row, rest, m->d))
                       : iwp_math_log(distance(row, o, m->d)) - others;
        m->weight[(size_t)h * (size_t)v->n_visual + (size_t)i] = (float)x;
    }
}

/* ---- mean over heads, as a logarithm --------------------------------------------------------------- */

static void combine(void *arg, int32_t chunk) {
    struct iwp_magnitude_plan *m = arg;
    const struct iwp_kern *kern = iwp_kern_get();
    const struct iwp_view *v = m->v;
    int per_head = metrics[m->o->magnitude].per_query_head,
        weighted = metrics[m->o->magnitude].reads_value && !per_head;
    int32_t i0 = chunk * CHUNK, n = v->n_visual - i0 < CHUNK ? v->n_visual - i0 : CHUNK;
    float top[CHUNK], sum[CHUNK], e[CHUNK];
    for (int32_t i = 0; i < n; i++) top[i] = -INFINITY, sum[i] = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t h = 0; h < m->n_head; h++) {
            const float *l = m->logit + (size_t)h * (size_t)v->n;
            int32_t row = per_head ? h : iwp_kv_head(h, m->n_head, m->n_head_kv);
            const float *w = m->weight + (size_t)row * (size_t)v->n_visual + i0;
            double offset = m->offset[h];
            const float *x = gather(l, v->visual + i0, n, e);
            if (per_head) {
                for (int32_t i = 0; i < n; i++) e[i] = (float)((double)x[i] - offset) + w[i];
                offset = 0;
                x = e;
            }
            if (pass == 0) /* the largest exponent among the heads that count */
                kern->head_top(top, x, offset, weighted ? w : NULL, n);
            else
                kern->head_sum(sum, top, x, offset, weighted ? w : NULL, n);
        }
    for (int32_t i = 0; i < n; i++) {
        double x = (double)sum[i];
        if (x > 3e38 && weighted) { /* norms near the end of float's range */
            x = 0;
            for (int32_t h = 0; h < m->n_head; h++) {
                const float *l = m->logit + (size_t)h * (size_t)v->n,
                            *w = m->weight + (size_t)iwp_kv_head(h, m->n_head, m->n_head_kv) *
                                                 (size_t)v->n_visual;
                float y = (float)((double)l[v->visual[i0 + i]] - m->offset[h]) - top[i];
                x += w[i0 + i] > 0 ? iwp_math_exp((double)y) * (double)w[i0 + i] : 0;
            }
        }
        m->log_p[i0 + i] =
            x > 0 && top[i] > -INFINITY ? (double)top[i] + iwp_math_log(x / m->n_head) : -INFINITY;
    }
}

static void combine_norms(struct iwp_magnitude_plan *m) {
    const struct iwp_view *v = m->v;
    for (int32_t i = 0; i < v->n_visual; i++) {
        double s = 0;
        for (int32_t g = 0; g < m->n_head_kv; g++)
            s += (double)m->vnorm[(size_t)g * (size_t)v->n_visual + (size_t)i];
        m->log_p[i] = iwp_math_log(s / m->n_head_kv);
    }
}

static int check_finite(const struct iwp_magnitude_plan *m, iwp_err *err) {
    struct iwp_need need[4];
    int n = iwp_magnitude_needs(m->o, need, 0, 4);
    for (int i = 0; i < n; i++)
        IWP_TRY(iwp_array_check_finite(m->v->in, need[i].tensor, need[i].rows, m->v->first_visual,
                                       err));
    return 0;
}

int iwp_magnitude_run(struct iwp_magnitude_plan *m, iwp_err *err) {
    const struct iwp_view *v = m->v;
    const struct metric *t = &metrics[m->o->magnitude];
    if (m->q) {
        for (int32_t i = 0; i < v->n; i++)
            if (in_query(v, m->o->query, i)) m->query_row[m->n_query++] = i;
        static const char *const names[] = {"text-after", "text-all", "text-user", "image", "last"};
        IWP_REQUIRE(m->n_query > 0, err, IWP_EINVAL, "query=%s: the prompt has no such token",
                    names[m->o->query]);
        iwp_parallel(v->exec, mean_query, m, m->n_head);
    }
    if (t->reads_value || !t->is_exp)
        iwp_parallel(v->exec, norm_rows, m, (v->n_visual + CHUNK - 1) / CHUNK);
    if (t->is_exp) iwp_parallel(v->exec, key_rows, m, (v->n + CHUNK - 1) / CHUNK);
    if (m->bad) IWP_TRY(check_finite(m, err));
    if (!t->is_exp) {
        combine_norms(m);
        return 0;
    }
    iwp_parallel(v->exec, head_offset, m, m->n_head);
    if (m->o->head_norm == HEAD_RAW) { /* one common shift */
        double top = m->offset[0];
        for (int32_t h = 1; h < m->n_head; h++) top = m->offset[h] > top ? m->offset[h] : top;
        for (int32_t h = 0; h < m->n_head; h++) m->offset[h] = top;
    }
    if (t->per_query_head) iwp_parallel(v->exec, weigh_head, m, m->n_head);
    iwp_parallel(v->exec, combine, m, (v->n_visual + CHUNK - 1) / CHUNK);
    return 0;
}
