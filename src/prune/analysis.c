/* Analyses of a selection from arrays alone: see iwp/analysis.h; spec/iwp.md 2 and 7. */
#include "iwp/analysis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "prune/method.h"

enum { WIDE = 1024 };

static int check_pair(const struct iwp_array *k, const struct iwp_array *v, const int32_t *row,
                      int32_t n_row, iwp_err *err) {
    IWP_REQUIRE(k && v && k->data && v->data && k->n_row > 0 && n_row >= 0, err, IWP_EINVAL,
                "analysis: no keys, values or rows");
    IWP_REQUIRE(k->n_row == v->n_row && k->n_head == v->n_head && k->n_head > 0, err, IWP_EINVAL,
                "analysis: tensors k and v differ in shape");
    IWP_REQUIRE(k->n_dim > 0 && k->n_dim <= WIDE && v->n_dim > 0 && v->n_dim <= WIDE, err,
                IWP_ENOTSUP, "analysis: heads must be 1 to %d wide", WIDE);
    for (int32_t i = 0; i < n_row; i++)
        IWP_REQUIRE(row[i] >= 0 && row[i] < k->n_row, err, IWP_EINVAL,
                    "analysis: row %d, the arrays have %d", row[i], k->n_row);
    return 0;
}

/* ---- deletion ---------------------------------------------------------------------------------- */

/* Softmax output over all rows but `skip`; returns the log of the sum of exponentials. */
static double attend(const double *l, const struct iwp_array *v, int32_t g, int32_t skip,
                     double *o) {
    float tmp[WIDE];
    double top = -INFINITY, total = 0;
    memset(o, 0, sizeof *o * (size_t)v->n_dim);
    for (int32_t s = 0; s < v->n_row; s++)
        if (s != skip && l[s] > top) top = l[s];
    for (int32_t s = 0; s < v->n_row; s++) {
        if (s == skip) continue;
        const float *x = iwp_array_row(v, s, g, tmp);
        double w = exp(l[s] - top);
        total += w;
        for (int32_t t = 0; t < v->n_dim; t++) o[t] += w * (double)x[t];
    }
    for (int32_t t = 0; t < v->n_dim && total > 0; t++) o[t] /= total;
    return total > 0 ? top + log(total) : -INFINITY;
}

int iwp_analysis_deletion(const float *q, int32_t n_head, const struct iwp_array *k,
                          const struct iwp_array *v, const int32_t *row, int32_t n_row,
                          double *effect, double *weight, iwp_err *err) {
    IWP_TRY(check_pair(k, v, row, n_row, err));
    IWP_REQUIRE(q && n_head > 0 && n_head % k->n_head == 0, err, IWP_EINVAL,
                "analysis: %d query heads for %d KV heads", n_head, k->n_head);
    double *l = malloc(sizeof *l * (size_t)k->n_row), o[WIDE], rest[WIDE];
    float tmp[WIDE];
    IWP_REQUIRE(l, err, IWP_ENOMEM, "analysis: out of memory");
    for (int32_t h = 0; h < n_head; h++) {
        int32_t g = iwp_kv_head(h, n_head, k->n_head);
        for (int32_t s = 0; s < k->n_row; s++) {
            const float *x = iwp_array_row(k, s, g, tmp), *y = q + (size_t)h * (size_t)k->n_dim;
            l[s] = 0;
            for (int32_t t = 0; t < k->n_dim; t++) l[s] += (double)x[t] * (double)y[t];
            l[s] /= sqrt(k->n_dim);
        }
        double z = attend(l, v, g, -1, o);
        for (int32_t i = 0; i < n_row; i++) {
            double w = exp(l[row[i]] - z), d2 = 0;
            /* v - o = (1 - w)(v - o without it): fine unless w is large, and then leave it out */
            int direct = w > 0.5;
            if (direct) attend(l, v, g, row[i], rest);
            const float *x = iwp_array_row(v, row[i], g, tmp);
            for (int32_t t = 0; t < v->n_dim; t++) {
                double y = (double)x[t] - (direct ? rest[t] : o[t]);
                d2 += y * y;
            }
            size_t at = (size_t)h * (size_t)n_row + (size_t)i;
            if (effect) effect[at] = w * sqrt(d2) / (direct ? 1 : 1 - w);
            if (weight) weight[at] = w;
        }
    }
    free(l);
    return 0;
}

/* ---- implicit weights -------------------------------------------------------------------------- */

/* A sum of signed exponentials, relative to the largest exponent so far. */
struct log_sum {
    double top, sum;
};

static void add(struct log_sum *s, double log_size, double sign) {
    if (sign == 0) return;
    if (log_size > s->top) {
        s->sum = s->sum * exp(s->top - log_size);
        s->top = log_size;
    }
    s->sum += sign * exp(log_size - s->top);
}

static double log_of(const struct log_sum *s) {
    return s->sum > 0 ? s->top + log(s->sum) : -INFINITY;
}

int iwp_analysis_implicit_weight(const struct iwp_array *k, const struct iwp_array *v, int32_t head,
                                 const int32_t *row, int32_t n_row, const uint8_t *kept,
                                 struct iwp_analysis_weight *out, iwp_err *err) {
    IWP_TRY(check_pair(k, v, row, n_row, err));
    IWP_REQUIRE(head >= 0 && head < k->n_head && kept && out, err, IWP_EINVAL,
                "analysis: KV head %d of %d", head, k->n_head);
    struct log_sum all = {-INFINITY, 0}, c = all, removed = all, cross = all;
    float a[WIDE], b[WIDE], tmp[WIDE];
    for (int32_t i = 0; i < n_row; i++)
        for (int32_t j = 0; j < n_row; j++) { /* G_ij = exp(k_i k_j / sqrt d) (v_i v_j) */
            const float *x = iwp_array_row(k, row[i], head, a),
                        *y = iwp_array_row(k, row[j], head, b);
            double kk = 0, vv = 0;
            for (int32_t t = 0; t < k->n_dim; t++) kk += (double)x[t] * (double)y[t];
            x = iwp_array_row(v, row[i], head, a);
            y = iwp_array_row(v, row[j], head, tmp);
            for (int32_t t = 0; t < v->n_dim; t++) vv += (double)x[t] * (double)y[t];
            double e = kk / sqrt(k->n_dim) + (vv != 0 ? log(fabs(vv)) : 0);
            double sign = vv > 0 ? 1 : vv < 0 ? -1 : 0;
            add(&all, e, sign);
            if (kept[i] && kept[j]) add(&c, e, sign);
            if (!kept[i] && !kept[j]) add(&removed, e, sign);
            if (kept[j]) add(&cross, e, sign);
        }
    out->log_norm2 = log_of(&all);
    out->log_norm2_kept = log_of(&c);
    out->log_norm2_removed = log_of(&removed);
    out->cosine = 0;
    if (all.sum > 0 && c.sum > 0 && cross.sum != 0) {
        double x =
            exp(cross.top + log(fabs(cross.sum)) - 0.5 * (out->log_norm2 + out->log_norm2_kept));
        out->cosine = x > 1 ? 1 : x;
        if (cross.sum < 0) out->cosine = -out->cosine;
    }
    return 0;
}

static double dot_rows(const struct iwp_array *a, int32_t i, int32_t j, int32_t head) {
    float x[WIDE], y[WIDE];
    const float *p = iwp_array_row(a, i, head, x), *q = iwp_array_row(a, j, head, y);
    double sum = 0;
    for (int32_t t = 0; t < a->n_dim; t++) sum += (double)p[t] * (double)q[t];
    return sum;
}

/* Sums of G over all pairs, over pairs of kept rows, of removed rows, and of a row with a kept one. */
struct gram_sums {
    double kept, removed, cross;
};

static double log_or_zero(double x, double shift) { return x > 0 ? shift + log(x) : -INFINITY; }

int iwp_analysis_implicit_weights(const struct iwp_array *k, const struct iwp_array *v,
                                  int32_t head, const int32_t *row, int32_t n_row,
                                  const uint8_t *const *kept, int32_t n_set,
                                  struct iwp_analysis_weight *out, iwp_err *err) {
    IWP_TRY(check_pair(k, v, row, n_row, err));
    IWP_REQUIRE(head >= 0 && head < k->n_head && kept && out && n_set > 0, err, IWP_EINVAL,
                "analysis: KV head %d of %d", head, k->n_head);
    struct gram_sums *s = calloc((size_t)n_set, sizeof *s);
    IWP_REQUIRE(s, err, IWP_ENOMEM, "analysis: out of memory");
    const double scale = 1 / sqrt((double)k->n_dim);
    double shift = -INFINITY, all = 0; /* |G_ij| is never above the largest G_ii */
    for (int32_t i = 0; i < n_row; i++) {
        const double vv = dot_rows(v, row[i], row[i], head);
        const double e = dot_rows(k, row[i], row[i], head) * scale + (vv > 0 ? log(vv) : -INFINITY);
        if (e > shift) shift = e;
    }
    for (int32_t i = 0; i < n_row && shift > -INFINITY; i++)
        for (int32_t j = 0; j <= i; j++) {
            const double vv = dot_rows(v, row[i], row[j], head);
            if (vv == 0) continue;
            const double e = dot_rows(k, row[i], row[j], head) * scale + log(fabs(vv)) - shift;
            const double g = (vv < 0 ? -1 : 1) * exp(e) * (i == j ? 1 : 2);
            all += g;
            for (int32_t m = 0; m < n_set; m++) {
                const int a = kept[m][i] != 0, b = kept[m][j] != 0;
                if (a && b) s[m].kept += g;
                if (!a && !b) s[m].removed += g;
                s[m].cross += 0.5 * g * (a + b);
            }
        }
    for (int32_t m = 0; m < n_set; m++) {
        out[m].log_norm2 = log_or_zero(all, shift);
        out[m].log_norm2_kept = log_or_zero(s[m].kept, shift);
        out[m].log_norm2_removed = log_or_zero(s[m].removed, shift);
        const double size = all > 0 && s[m].kept > 0 ? sqrt(all) * sqrt(s[m].kept) : 0;
        const double c = size > 0 ? s[m].cross / size : 0;
        out[m].cosine = c > 1 ? 1 : c < -1 ? -1 : c;
    }
    free(s);
    return 0;
}

/* ---- statistics -------------------------------------------------------------------------------- */

struct ranked {
    double value;
    int32_t index;
};

/* Larger value first, then lower index. */
static int order(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static struct ranked *sorted(const double *x, int32_t n) {
    struct ranked *r = malloc(sizeof *r * (size_t)(n > 0 ? n : 1));
    for (int32_t i = 0; r && i < n; i++) r[i].value = x[i], r[i].index = i;
    if (r) qsort(r, (size_t)n, sizeof *r, order);
    return r;
}

static int all_numbers(const double *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (x[i] != x[i]) return 0;
    return 1;
}

int iwp_analysis_spearman(const double *a, const double *b, int32_t n, double *rho, iwp_err *err) {
    IWP_REQUIRE(a && b && rho && n >= 0 && all_numbers(a, n) && all_numbers(b, n), err, IWP_EINVAL,
                "rank correlation: no numbers, or a NaN among them");
    *rho = NAN;
    if (n < 2) return 0;
    const double *x[2] = {a, b};
    double *rank[2] = {malloc(sizeof(double) * (size_t)n), malloc(sizeof(double) * (size_t)n)};
    int rc = rank[0] && rank[1] ? 0 : IWP_ENOMEM;
    for (int s = 0; s < 2 && rc == 0; s++) {
        struct ranked *r = sorted(x[s], n);
        if (!r) rc = IWP_ENOMEM;
        for (int32_t i = 0, j; r && i < n; i = j) {
            for (j = i; j < n && r[j].value == r[i].value;) j++;
            for (int32_t t = i; t < j; t++) rank[s][r[t].index] = 0.5 * (i + j - 1);
        }
        free(r);
    }
    double mean = 0.5 * (n - 1), ab = 0, aa = 0, bb = 0;
    for (int32_t i = 0; i < n && rc == 0; i++) {
        double y = rank[0][i] - mean, z = rank[1][i] - mean;
        ab += y * z;
        aa += y * y;
        bb += z * z;
    }
    free(rank[0]), free(rank[1]);
    IWP_REQUIRE(rc == 0, err, rc, "rank correlation: out of memory");
    if (aa > 0 && bb > 0) *rho = ab / sqrt(aa * bb);
    return 0;
}

int iwp_analysis_overlap(const double *a, const double *b, int32_t n, int32_t m, double *part,
                         iwp_err *err) {
    IWP_REQUIRE(a && b && part && m >= 1 && m <= n && all_numbers(a, n) && all_numbers(b, n), err,
                IWP_EINVAL, "overlap: %d of %d numbers, or a NaN among them", m, n);
    struct ranked *x = sorted(a, n), *y = sorted(b, n);
    uint8_t *in = calloc((size_t)n, 1);
    int ok = x && y && in;
    int32_t both = 0;
    for (int32_t i = 0; ok && i < m; i++) in[x[i].index] = 1;
    for (int32_t i = 0; ok && i < m; i++) both += in[y[i].index];
    free(x), free(y), free(in);
    IWP_REQUIRE(ok, err, IWP_ENOMEM, "overlap: out of memory");
    *part = (double)both / m;
    return 0;
}

double iwp_analysis_iou(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b) {
    int32_t i = 0, j = 0, both = 0;
    while (i < n_a && j < n_b) {
        int32_t x = a[i], y = b[j];
        both += x == y;
        i += x <= y;
        j += y <= x;
    }
    int32_t any = n_a + n_b - both;
    return any > 0 ? (double)both / any : 1;
}

double iwp_analysis_miou(const int32_t *const *set, const int32_t *n, int32_t n_set,
                         double *pairs) {
    double sum = 0;
    for (int32_t i = 0; i < n_set; i++)
        for (int32_t j = 0; j < n_set; j++) {
            double x = iwp_analysis_iou(set[i], n[i], set[j], n[j]);
            if (pairs) pairs[(size_t)i * (size_t)n_set + (size_t)j] = x;
            if (i < j) sum += x;
        }
    return n_set > 1 ? sum / (0.5 * n_set * (n_set - 1)) : 1;
}

/* ---- similarity maps --------------------------------------------------------------------------- */

/* |x-y|^2, or the cosine (0 when a norm is 0), of two rows of one head. */
static void compare(const float *x, const float *y, int32_t d, double *dist2, double *cosine) {
    double xx = 0, yy = 0, xy = 0, dd = 0;
    for (int32_t t = 0; t < d; t++) {
        double a = (double)x[t], b = (double)y[t];
        xx += a * a;
        yy += b * b;
        xy += a * b;
        dd += (a - b) * (a - b);
    }
    *dist2 = dd;
    *cosine = xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

int iwp_analysis_similarity(const struct iwp_array *k, const struct iwp_array *v,
                            const int32_t *row, int32_t n_row, double *rbf, double *cos_v,
                            double *dup, iwp_err *err) {
    IWP_TRY(check_pair(k, v, row, n_row, err));
    float a[WIDE], b[WIDE];
    for (int32_t i = 0; i < n_row; i++)
        for (int32_t j = 0; j < n_row; j++) {
            double r = 0, c = 0, s = 0, dist2, cosine, ignored;
            for (int32_t g = 0; g < k->n_head; g++) {
                compare(iwp_array_row(k, row[i], g, a), iwp_array_row(k, row[j], g, b), k->n_dim,
                        &dist2, &ignored);
                compare(iwp_array_row(v, row[i], g, a), iwp_array_row(v, row[j], g, b), v->n_dim,
                        &ignored, &cosine);
                double e = iwp_math_exp(-dist2 / (2 * sqrt((double)k->n_dim)));
                r += e;
                c += cosine;
                s += cosine * e * cosine * e;
            }
            size_t at = (size_t)i * (size_t)n_row + (size_t)j;
            if (rbf) rbf[at] = r / k->n_head;
            if (cos_v) cos_v[at] = c / k->n_head;
            if (dup) dup[at] = s / k->n_head;
        }
    return 0;
}

int iwp_analysis_percentile(const double *x, int32_t n, double p, double *value, iwp_err *err) {
    IWP_REQUIRE(x && value && n >= 0 && p >= 0 && p <= 100 && all_numbers(x, n), err, IWP_EINVAL,
                "percentile %g: must be 0 to 100, and no NaN", p);
    *value = NAN;
    if (n == 0) return 0;
    struct ranked *r = sorted(x, n);
    IWP_REQUIRE(r, err, IWP_ENOMEM, "percentile: out of memory");
    double at = p / 100 * (n - 1);
    int32_t i = (int32_t)at, j = i + 1 < n ? i + 1 : i;
    *value = r[n - 1 - i].value + (at - i) * (r[n - 1 - j].value - r[n - 1 - i].value);
    free(r);
    return 0;
}
