/* IWP as the specification writes it, in double and with straight loops: the whole N×N matrix D, every
 * deletion by leaving the token out.  Slow and short; tests compare the library with it. */
#ifndef IWP_TEST_IWP_REF_H
#define IWP_TEST_IWP_REF_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct ref_options {
    const char *magnitude, *query, *head_norm, *scale, *duplication, *heads, *norm, *selector,
        *penalty;
    int magnitude_rope, duplication_rope, square; /* square -1: by metric */
    int chunk;
    double growth, lambda, floor, gamma;
};

struct ref_data {
    int n, H, G, d, Dh; /* prompt tokens, query heads, KV heads, head size, width of h */
    unsigned char *code;
    float *q, *k, *v, *q_rope, *k_rope, *h; /* [n][heads][d] */
};

static inline int ref_is(const char *a, const char *b) { return strcmp(a, b) == 0; }
static inline int ref_visual(int code) { return code == 1 || code == 2; }

static inline double ref_dot(const float *a, const float *b, int n) {
    double s = 0;
    for (int i = 0; i < n; i++) s += (double)a[i] * (double)b[i];
    return s;
}

static inline double ref_log_sum(const double *x, const unsigned char *use, int n) {
    double top = -INFINITY, s = 0;
    for (int i = 0; i < n; i++)
        if (use[i] && x[i] > top) top = x[i];
    for (int i = 0; i < n; i++)
        if (use[i]) s += exp(x[i] - top);
    return s > 0 ? top + log(s) : -INFINITY;
}

/* log P of the prompt rows `row` [n_row] (unscaled); *size: largest Σ|q k|/√d, for error bounds.
 * Returns the number of tokens behind the query (0: none, nothing computed). */
static inline int ref_magnitude(const struct ref_data *c, const struct ref_options *o,
                                const int *row, int n_row, double *log_p, double *size) {
    const float *q = o->magnitude_rope ? c->q_rope : c->q,
                *k = o->magnitude_rope ? c->k_rope : c->k;
    const char *m = o->magnitude;
    int norms = ref_is(m, "vnorm") || ref_is(m, "knorm"),
        gauss = ref_is(m, "phik") || ref_is(m, "dw");
    int H = gauss || norms ? c->G : c->H, G = c->G, d = c->d, n = c->n, n_query = 0, first = 0;
    while (first < n && !ref_visual(c->code[first])) first++;
    double *mean = calloc((size_t)(c->H * d), sizeof *mean),
           *l = calloc((size_t)(H * n), sizeof *l),
           *head = calloc((size_t)(H * n_row), sizeof *head),
           *offset = calloc((size_t)H, sizeof *offset), *out = calloc((size_t)d, sizeof *out);
    unsigned char *use = malloc((size_t)n);
    *size = 0;
    for (int i = 0; i < n && !gauss && !norms; i++) {
        int text = !ref_visual(c->code[i]);
        int in = ref_is(o->query, "text-after")  ? text && i > first
                 : ref_is(o->query, "text-all")  ? text
                 : ref_is(o->query, "text-user") ? c->code[i] == 3
                 : ref_is(o->query, "image")     ? !text
                                                 : i == n - 1;
        if (!in) continue;
        n_query++;
        for (int t = 0; t < c->H * d; t++) mean[t] += (double)q[i * c->H * d + t];
    }
    for (int t = 0; t < c->H * d && n_query; t++) mean[t] /= n_query;
    if (gauss || norms) n_query = 1;

    for (int h = 0; h < H; h++)
        for (int s = 0; s < n; s++) {
            int g = h * G / H;
            const float *key = k + (s * G + g) * d;
            double x = 0, a = 0;
            for (int t = 0; t < d; t++) {
                double y = gauss ? 0.5 * (double)key[t] * (double)key[t]
                                 : mean[h * d + t] * (double)key[t];
                x += y;
                a += fabs(y);
            }
            l[h * n + s] = x / sqrt(d);
            if (a / sqrt(d) > *size) *size = a / sqrt(d);
        }
    double common = -INFINITY, cancel = 1; /* how much v - o loses by cancellation */
    for (int h = 0; h < H; h++) {
        int all = ref_is(o->head_norm, "softmax-all");
        for (int s = 0; s < n; s++) use[s] = (unsigned char)(all || ref_visual(c->code[s]));
        offset[h] = ref_log_sum(l + h * n, use, n);
        if (ref_is(o->head_norm, "max") || ref_is(o->head_norm, "raw")) {
            offset[h] = -INFINITY;
            for (int s = 0; s < n; s++)
                if (use[s] && l[h * n + s] > offset[h]) offset[h] = l[h * n + s];
            if (offset[h] > common) common = offset[h];
        }
    }
    for (int h = 0; h < H && ref_is(o->head_norm, "raw"); h++) offset[h] = common;

    for (int i = 0; i < n_row; i++)
        for (int h = 0; h < H; h++) {
            int g = h * G / H, s = row[i];
            const float *val = c->v + (s * G + g) * d, *key = k + (s * G + g) * d;
            double w = 1, e = l[h * n + s] - offset[h];
            if (ref_is(m, "kv") || ref_is(m, "dw") || ref_is(m, "vnorm"))
                w = sqrt(ref_dot(val, val, d));
            if (ref_is(m, "knorm")) w = sqrt(ref_dot(key, key, d));
            if (norms) e = 0;
            double log_w = log(w);
            if (ref_is(m, "centered") || ref_is(m, "deletion") || ref_is(m, "kv_deletion")) {
                memset(use, 1, (size_t)n);
                double z = ref_log_sum(l + h * n, use, n), out2 = 0;
                use[s] = 0;
                double rest = ref_log_sum(l + h * n, use, n); /* everything but token s */
                memset(out, 0, sizeof *out * (size_t)d);
                for (int j = 0; j < n; j++)
                    for (int t = 0; use[j] && t < d; t++)
                        out[t] += exp(l[h * n + j] - rest) * (double)c->v[(j * G + g) * d + t];
                w = 0;
                for (int t = 0; t < d; t++) {
                    w += ((double)val[t] - out[t]) * ((double)val[t] - out[t]);
                    out2 += out[t] * out[t];
                }
                log_w = 0.5 * log(w); /* |v - o without s|; |v - o| is that times 1 - w */
                if (ref_is(m, "centered")) log_w += rest - z;
                if (ref_is(m, "kv_deletion")) log_w = 0.5 * log(ref_dot(val, val, d)) - (rest - z);
                double lost = w > 0 ? fmin(sqrt(out2 / w), 1e12) : out2 > 0 ? 1e12 : 1;
                if (!ref_is(m, "kv_deletion") && lost > cancel) cancel = lost;
            }
            head[h * n_row + i] = e + log_w;
        }
    for (int i = 0; i < n_row; i++) {
        double top = -INFINITY, s = 0;
        for (int h = 0; h < H; h++)
            if (head[h * n_row + i] > top) top = head[h * n_row + i];
        for (int h = 0; h < H; h++) s += top > -INFINITY ? exp(head[h * n_row + i] - top) : 0;
        log_p[i] = s > 0 ? top + log(s / H) : -INFINITY;
    }
    *size *= cancel;
    free(mean), free(l), free(head), free(offset), free(out), free(use);
    return n_query;
}

/* scale=: changes log_p in place, as the selectors see it. */
static inline void ref_scale(const struct ref_options *o, double *log_p, int n) {
    double top = -INFINITY, low = INFINITY;
    for (int i = 0; i < n; i++) {
        if (log_p[i] > top) top = log_p[i];
        if (log_p[i] < low) low = log_p[i];
    }
    if (ref_is(o->scale, "none") || top == -INFINITY) return;
    for (int i = 0; i < n; i++) {
        log_p[i] -= top;
        if (ref_is(o->scale, "minmax")) {
            double least = exp(low - top);
            log_p[i] = least < 1 ? log((exp(log_p[i]) - least) / (1 - least)) : -INFINITY;
        }
    }
}

static inline double ref_cos(const float *a, const float *b, int n) {
    double x = ref_dot(a, a, n), y = ref_dot(b, b, n);
    return x > 0 && y > 0 ? ref_dot(a, b, n) / (sqrt(x) * sqrt(y)) : 0;
}

static inline double ref_gap2(const float *a, const float *b, int n) {
    double s = 0;
    for (int t = 0; t < n; t++) s += ((double)a[t] - (double)b[t]) * ((double)a[t] - (double)b[t]);
    return s;
}

static inline double ref_shape(const struct ref_options *o, int square, double x, double lo,
                               double hi) {
    if (ref_is(o->norm, "affine"))
        x = (1 + x) / 2;
    else if (ref_is(o->norm, "minmax"))
        x = hi - lo > 1e-30 ? (x - lo) / (hi - lo) : 0;
    else if (!square && x < 0)
        x = 0;
    return square ? x * x : x;
}

/* D [n_row][n_row] between prompt rows. */
static inline void ref_duplication(const struct ref_data *c, const struct ref_options *o,
                                   const int *row, int n_row, double *D) {
    const float *k = o->duplication_rope ? c->k_rope : c->k;
    const char *m = o->duplication;
    int by_h = ref_is(m, "cos_h"), concat = ref_is(o->heads, "concat"),
        joint = ref_is(o->heads, "joint");
    int square = o->square < 0 ? ref_is(m, "dw") : o->square;
    int heads = by_h || concat ? 1 : c->G, w = by_h ? c->Dh : concat ? c->G * c->d : c->d;
    int first_square = square && !ref_is(o->heads, "sq-mean") && !joint;
    double *x = calloc((size_t)(heads * n_row * n_row), sizeof *x), scale = 1 / (2 * sqrt(c->d));
    for (int g = 0; g < heads; g++)
        for (int i = 0; i < n_row; i++)
            for (int j = 0; j < n_row; j++) {
                size_t a = (size_t)(row[i] * heads + g) * (size_t)w,
                       b = (size_t)(row[j] * heads + g) * (size_t)w;
                double y = 1;
                if (ref_is(m, "dw") || ref_is(m, "rbf"))
                    y *= exp(-ref_gap2(k + a, k + b, w) * scale);
                if (ref_is(m, "dw") || ref_is(m, "cos_v")) y *= ref_cos(c->v + a, c->v + b, w);
                if (ref_is(m, "cos_k")) y *= ref_cos(k + a, k + b, w);
                if (by_h) y *= ref_cos(c->h + a, c->h + b, w);
                x[(g * n_row + i) * n_row + j] = y;
            }
    if (joint) { /* heads weighted by their part of each token's whole update */
        double *part = calloc((size_t)(heads * n_row), sizeof *part);
        for (int i = 0; i < n_row; i++) {
            double top = -INFINITY, s = 0;
            for (int g = 0; g < heads; g++) {
                size_t a = (size_t)(row[i] * heads + g) * (size_t)w;
                part[g * n_row + i] =
                    ref_dot(k + a, k + a, w) * scale + 0.5 * log(ref_dot(c->v + a, c->v + a, w));
                if (part[g * n_row + i] > top) top = part[g * n_row + i];
            }
            for (int g = 0; g < heads; g++)
                s += top > -INFINITY ? exp(2 * (part[g * n_row + i] - top)) : 0;
            for (int g = 0; g < heads; g++)
                part[g * n_row + i] = s > 0 ? exp(part[g * n_row + i] - top) / sqrt(s) : 0;
        }
        for (int g = 0; g < heads; g++)
            for (int i = 0; i < n_row; i++)
                for (int j = 0; j < n_row; j++)
                    x[(g * n_row + i) * n_row + j] *=
                        part[g * n_row + i] * part[g * n_row + j] * heads;
        free(part);
    }
    memset(D, 0, sizeof *D * (size_t)(n_row * n_row));
    for (int g = 0; g < heads; g++) {
        double lo = INFINITY, hi = -INFINITY, *y = x + g * n_row * n_row;
        for (int i = 0; i < n_row * n_row; i++) lo = fmin(lo, y[i]), hi = fmax(hi, y[i]);
        for (int i = 0; i < n_row * n_row; i++)
            D[i] += (first_square ? ref_shape(o, 1, y[i], lo, hi) : y[i]) / heads;
    }
    if (!first_square) {
        double lo = INFINITY, hi = -INFINITY;
        for (int i = 0; i < n_row * n_row; i++) lo = fmin(lo, D[i]), hi = fmax(hi, D[i]);
        for (int i = 0; i < n_row * n_row; i++) D[i] = ref_shape(o, square, D[i], lo, hi);
    }
    free(x);
}

/* Marks M of n tokens in kept [n]; returns the smallest gap between a token taken and one left at the
 * same moment (logarithm of the ratio, or difference for mmr-add): how near a tie came. */
static inline double ref_select(const struct ref_options *o, const double *log_p, const double *D,
                                int n, int M, unsigned char *kept) {
    int add = ref_is(o->selector, "mmr-add"), done = 0;
    double *value = malloc(sizeof *value * (size_t)n), *s = calloc((size_t)n, sizeof *s);
    double b = ref_is(o->selector, "pc-mmr") ? o->chunk
               : ref_is(o->selector, "topk") ? M
                                             : 1,
           gap = INFINITY, top = -INFINITY;
    int *taken = malloc(sizeof *taken * (size_t)M);
    for (int i = 0; i < n; i++)
        if (log_p[i] > top) top = log_p[i];
    for (int i = 0; i < n; i++)
        value[i] = !add ? log_p[i] : top > -INFINITY ? exp(log_p[i] - top) : 0;
    memset(kept, 0, (size_t)n);
    while (done < M) {
        int k = b >= M - done ? M - done : (int)b, from = done;
        double worst = 0, left = -INFINITY;
        for (; done < from + k; done++) {
            int best = -1;
            for (int i = 0; i < n; i++)
                if (!kept[i] && (best < 0 || value[i] > value[best])) best = i;
            kept[best] = 1;
            taken[done] = best;
            worst = value[best];
        }
        for (int i = 0; i < n; i++)
            if (!kept[i] && value[i] > left) left = value[i];
        if (left > -INFINITY && worst - left < gap) gap = worst - left;
        if (ref_is(o->selector, "pc-mmr")) b *= o->growth;
        for (int i = 0; i < n && done < M; i++) {
            double now = 0;
            if (kept[i]) continue;
            for (int j = from; j < done; j++) now = fmax(now, D[taken[j] * n + i]);
            s[i] = fmax(s[i], now);
            double f = fmax(o->floor, 1 - o->lambda * (ref_is(o->penalty, "new") ? now : s[i]));
            if (add)
                value[i] = exp(log_p[i] - top) - o->gamma * s[i];
            else if (ref_is(o->penalty, "all-fresh"))
                value[i] = log_p[i] + log(f);
            else
                value[i] += log(f);
            if (add && top == -INFINITY) value[i] = -o->gamma * s[i];
        }
    }
    free(value), free(s), free(taken);
    return gap;
}

#endif
