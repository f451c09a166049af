/* See rank.h. */
#include "prune/rank.h"

#include <math.h>

void iwp_rank_publish(struct iwp_view *v, const double *score) {
    for (int32_t i = 0; i < v->n_pool; i++) {
        double s = score[i];
        v->scores[i] = (float)(s > 3e38 ? 3e38 : s < -3e38 ? -3e38 : s);
    }
    v->has_scores = 1;
}

void iwp_rank_keep_best(struct iwp_view *v, const double *score, int32_t *idx) {
    iwp_rank_publish(v, score);
    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first;
        for (int32_t i = 0; i < n; i++) idx[i] = first + i;
        iwp_top_k(score, idx, n, v->unit_keep[u]);
        for (int32_t i = 0; i < v->unit_keep[u]; i++) v->chosen[idx[i]] = 1;
    }
}

void iwp_rank_truncate_counts(struct iwp_view *v) {
    const struct iwp_budget *b = &v->params->budget;
    if (!v->as_published || b->n_keep) return;
    v->n_keep = 0;
    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t n = v->unit_first[u + 1] - v->unit_first[u], m = (int32_t)(b->keep * n);
        v->n_keep += v->unit_keep[u] = m < 1 ? 1 : m;
    }
}

double iwp_rank_cosine(double dot, double norm2_a, double norm2_b) {
    if (!(norm2_a > 0 && norm2_b > 0)) return 0;
    double c = dot / (sqrt(norm2_a) * sqrt(norm2_b));
    return c > 1 - 1e-6 ? 1 : c < -1 ? -1 : c;
}

double iwp_rank_distance2(const float *x, const float *y, int32_t n) {
    double s[8] = {0};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) {
            double e = (double)x[i + l] - (double)y[i + l];
            s[l] += e * e;
        }
    for (int l = 0; i < n; i++, l++) {
        double e = (double)x[i] - (double)y[i];
        s[l] += e * e;
    }
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

double iwp_rank_norm1(const float *x, int32_t n) {
    double s[8] = {0};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) s[l] += fabs((double)x[i + l]);
    for (int l = 0; i < n; i++, l++) s[l] += fabs((double)x[i]);
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

int iwp_rank_check_heads(const struct iwp_input *in, enum iwp_tensor t, iwp_err *err) {
    IWP_REQUIRE(in->arr[t].n_dim <= IWP_HEAD_WIDTH_MAX, err, IWP_ENOTSUP,
                "tensor %s: heads of %d numbers, at most %d are supported", iwp_tensor_name(t),
                in->arr[t].n_dim, IWP_HEAD_WIDTH_MAX);
    return 0;
}
