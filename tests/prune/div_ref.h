/* What the diversity and encoder methods should do, as straight loops in double over small arrays.
 * Each function follows its section of the method pages, not the library's way of computing it. */
#ifndef IWP_TEST_DIV_REF_H
#define IWP_TEST_DIV_REF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { MAXN = 160, MAXP = 4 * MAXN + 1 };

struct ref {
    uint8_t kept[MAXN];
    double score[MAXN];
    double merge[MAXN][MAXN]; /* [to][from] weights; 0 = not listed */
    int size[MAXN];
};

static void ref_clear(struct ref *r) {
    memset(r, 0, sizeof *r);
    for (int i = 0; i < MAXN; i++) r->size[i] = 1;
}

static double ref_cos(const float *a, const float *b, int d) {
    double ab = 0, aa = 0, bb = 0;
    for (int t = 0; t < d; t++) {
        ab += (double)a[t] * (double)b[t];
        aa += (double)a[t] * (double)a[t];
        bb += (double)b[t] * (double)b[t];
    }
    if (aa == 0 || bb == 0) return 0;
    double c = ab / sqrt(aa * bb);
    return c > 1 - 1e-6 ? 1 : c;
}

/* Best free index: larger, then lower.  Differences of rounding size are ties. */
static int ref_best(const double *s, const uint8_t *taken, int n) {
    int b = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (b < 0 || s[i] > s[b] + 1e-12 * fabs(s[b]))) b = i;
    return b;
}

static void ref_divprune(struct ref *r, const float *x, int n, int d, int m) {
    ref_clear(r);
    for (int step = 0; step < m; step++) {
        double s[MAXN];
        for (int j = 0; j < n; j++) {
            s[j] = INFINITY;
            for (int i = 0; i < n; i++) {
                if (step ? !r->kept[i] : i == j) continue;
                double dist = 1 - ref_cos(x + i * d, x + j * d, d);
                s[j] = dist < s[j] ? dist : s[j];
            }
            if (n == 1) s[j] = 0;
            if (step == 0) r->score[j] = s[j];
        }
        r->kept[ref_best(s, r->kept, n)] = 1;
    }
}

static void ref_relevance(double *u, int n, int minus) {
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (minus) u[i] = -u[i];
        lo = fmin(lo, u[i]);
        hi = fmax(hi, u[i]);
    }
    for (int i = 0; i < n; i++) u[i] = hi - lo < 1e-6 ? 1 : (u[i] - lo + 1e-6) / (hi - lo);
}

/* Greedy on the determinant itself: K_S grows by the Schur complement of each candidate, found by
 * Gaussian elimination from scratch. */
static void ref_cdpruner(struct ref *r, const float *x, const double *rel, int n, int d, int m) {
    static double k[MAXN][MAXN], a[MAXN][MAXN + 1];
    int order[MAXN], count = 0;
    ref_clear(r);
    for (int i = 0; i < n; i++) {
        r->score[i] = rel[i];
        for (int j = 0; j < n; j++) k[i][j] = rel[i] * ref_cos(x + i * d, x + j * d, d) * rel[j];
    }
    while (count < m) {
        double s[MAXN];
        uint8_t out[MAXN];
        for (int c = 0; c < n; c++) {
            out[c] = r->kept[c];
            /* solve K_S z = K_Sc, s = K_cc - K_cS z */
            for (int i = 0; i < count; i++) {
                for (int j = 0; j < count; j++) a[i][j] = k[order[i]][order[j]];
                a[i][count] = k[order[i]][c];
            }
            for (int p = 0; p < count; p++)
                for (int i = p + 1; i < count; i++) {
                    double f = a[i][p] / a[p][p];
                    for (int j = p; j <= count; j++) a[i][j] -= f * a[p][j];
                }
            s[c] = k[c][c];
            double z[MAXN];
            for (int i = count - 1; i >= 0; i--) {
                z[i] = a[i][count];
                for (int j = i + 1; j < count; j++) z[i] -= a[i][j] * z[j];
                z[i] /= a[i][i];
                s[c] -= k[c][order[i]] * z[i];
            }
            if (s[c] <= 1e-5 * k[c][c]) out[c] = 1;
        }
        int b = ref_best(s, out, n);
        if (b < 0) break;
        r->kept[order[count++] = b] = 1;
    }
    for (; count < m; count++) r->kept[ref_best(rel, r->kept, n)] = 1;
}

static void ref_scope(struct ref *r, const float *x, const double *weight, int n, int d, int m,
                      int add) {
    double cover[MAXN] = {0};
    ref_clear(r);
    for (int step = 0; step < m; step++) {
        double s[MAXN];
        for (int j = 0; j < n; j++) {
            double g = 0;
            for (int i = 0; i < n; i++) {
                double c = ref_cos(x + i * d, x + j * d, d) - cover[i];
                g += c > 0 ? c : 0;
            }
            s[j] = add ? g + weight[j] : g * weight[j];
            if (step == 0) r->score[j] = s[j];
        }
        int b = ref_best(s, r->kept, n);
        r->kept[b] = 1;
        for (int i = 0; i < n; i++) {
            double c = ref_cos(x + i * d, x + b * d, d);
            cover[i] = c > cover[i] ? c : cover[i];
        }
    }
}

/* Mean over heads of the attention that row j gets: from row 0 (cls), or from all rows. */
static void ref_attention(double *out, const float *q, const float *k, int rows, int heads, int d,
                          int cls, const int *unit) {
    for (int j = 0; j < rows; j++) out[j] = 0;
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < (cls ? 1 : rows); i++) {
            double e[MAXP], sum = 0;
            for (int j = 0; j < rows; j++) {
                double x = 0;
                for (int t = 0; t < d; t++)
                    x += (double)q[(i * heads + h) * d + t] * (double)k[(j * heads + h) * d + t];
                e[j] = !cls && unit && unit[i] != unit[j] ? 0 : exp(x / sqrt(d));
                sum += e[j];
            }
            for (int j = 0; j < rows; j++) out[j] += e[j] / sum / heads / (cls ? 1 : rows);
        }
}

static void ref_visionzip(struct ref *r, const double *s, const float *key, int n, int d, int m,
                          int contextual) {
    int target[MAXN], n_target = 0, rest = 0, n_rest = n - (m - contextual), count[MAXN] = {0},
                      goes[MAXN];
    ref_clear(r);
    memcpy(r->score, s, sizeof(double) * (size_t)n);
    for (int i = 0; i < m - contextual; i++) r->kept[ref_best(s, r->kept, n)] = 1;
    int stride = contextual && n_rest / contextual > 1 ? n_rest / contextual : 1;
    for (int i = 0; i < n; i++) {
        if (r->kept[i]) continue;
        if (rest++ % stride == 0 && n_target < contextual) target[n_target++] = i;
    }
    uint8_t is_target[MAXN] = {0};
    for (int k = 0; k < n_target; k++) is_target[target[k]] = 1;
    for (int i = 0; i < n; i++) {
        goes[i] = -1;
        if (r->kept[i] || is_target[i] || !n_target) continue;
        double best = -3;
        for (int k = 0; k < n_target; k++) {
            double c = ref_cos(key + i * d, key + target[k] * d, d);
            if (c > best + 1e-12) best = c, goes[i] = k;
        }
        count[goes[i]]++;
    }
    for (int k = 0; k < n_target; k++) {
        r->kept[target[k]] = 1;
        if (count[k]) r->merge[target[k]][target[k]] = 1;
    }
    for (int i = 0; i < n; i++)
        if (goes[i] >= 0) r->merge[target[goes[i]]][i] = 1.0 / count[goes[i]];
}

static void ref_vispruner(struct ref *r, const double *a, const float *f, int n, int d, int m,
                          double rho, int step) {
    int important = (int)(m * rho), diverse = m - important, list[MAXN], len = 0;
    uint8_t used[MAXN] = {0};
    ref_clear(r);
    memcpy(r->score, a, sizeof(double) * (size_t)n);
    for (int i = 0; i < n; i++) {
        int b = ref_best(a, used, n);
        used[b] = 1;
        if (i < important)
            r->kept[b] = 1;
        else
            list[len++] = b;
    }
    while (diverse && len > diverse) {
        int next[MAXN], n_next = 0, gone = len - diverse < step ? len - diverse : step;
        double best[MAXN];
        uint8_t done[MAXN];
        memset(done, 1, sizeof done);
        if (gone > (len + 1) / 2) gone = (len + 1) / 2;
        for (int p = 0; p < len; p += 2) {
            best[list[p]] = -3;
            done[list[p]] = 0;
            for (int q = 1; q < len; q += 2)
                best[list[p]] = fmax(best[list[p]], ref_cos(f + list[p] * d, f + list[q] * d, d));
        }
        for (int p = 0; p < (len + 1) / 2; p++) {
            int b = ref_best(best, done, n);
            done[b] = 1;
            if (p >= gone) next[n_next++] = b;
        }
        for (int q = 1; q < len; q += 2) next[n_next++] = list[q];
        memcpy(list, next, sizeof(int) * (size_t)n_next);
        len = n_next;
    }
    for (int i = 0; diverse && i < len; i++) r->kept[list[i]] = 1;
}

static void ref_tome(struct ref *r, const float *key, int n, int d, int gone, int cls) {
    int partner[MAXN];
    uint8_t taken[MAXN];
    ref_clear(r);
    memset(taken, 1, sizeof taken);
    for (int i = 0; i < n; i++) {
        r->kept[i] = 1;
        r->score[i] = -1;
        if ((i + cls) % 2 || n + cls < 2) continue;
        double best = -3;
        for (int j = 0; j < n; j++) {
            if ((j + cls) % 2 == 0) continue;
            double c = ref_cos(key + i * d, key + j * d, d);
            if (c > best + 1e-12) best = c, partner[i] = j;
        }
        if (best < -2) continue;
        r->score[i] = best;
        taken[i] = 0;
    }
    int to[MAXN], who[MAXN];
    for (int k = 0; k < gone; k++) {
        who[k] = ref_best(r->score, taken, n);
        taken[who[k]] = 1;
        r->kept[who[k]] = 0;
        r->size[to[k] = partner[who[k]]]++;
    }
    for (int k = 0; k < gone; k++)
        r->merge[to[k]][who[k]] = r->merge[to[k]][to[k]] = 1.0 / r->size[to[k]];
}

/* Centres among `in`, by the rounds of the page's text: visit by descending density. */
static int ref_dbdpc(const float *key, const uint8_t *in, int n, int d, double dc,
                     uint8_t *centre) {
    double rho[MAXN];
    uint8_t seen[MAXN];
    int count = 0;
    for (int i = 0; i < n; i++) {
        rho[i] = 0;
        seen[i] = !in[i];
        centre[i] = 0;
        for (int j = 0; j < n; j++) {
            double dist = i == j ? 0 : 1 - ref_cos(key + i * d, key + j * d, d);
            if (in[i] && in[j]) rho[i] += exp(-dist * dist / 4);
        }
    }
    for (int i; (i = ref_best(rho, seen, n)) >= 0;) {
        int far = 1;
        seen[i] = 1;
        for (int c = 0; c < n; c++)
            if (centre[c] && 1 - ref_cos(key + i * d, key + c * d, d) <= dc) far = 0;
        centre[i] = (uint8_t)far;
        count += far;
    }
    return count;
}

static void ref_pact(struct ref *r, const double *score, const float *key, int n, int d, int m,
                     double lambda, double dc, double alpha) {
    uint8_t in[MAXN] = {0}, centre[MAXN];
    int n1 = (int)(n * lambda), goes[MAXN];
    ref_clear(r);
    memcpy(r->score, score, sizeof(double) * (size_t)n);
    if (n1 < 1) n1 = 1;
    if (dc < 0 && n1 < m) n1 = m;
    for (int i = 0; i < n1; i++) in[ref_best(score, in, n)] = 1;
    if (dc < 0) {
        double lo = 0;
        dc = 2;
        for (int i = 0; i < 30; i++) {
            double mid = (lo + dc) / 2;
            if (ref_dbdpc(key, in, n, d, mid, centre) > m)
                lo = mid;
            else
                dc = mid;
        }
    }
    ref_dbdpc(key, in, n, d, dc, centre);
    for (int i = 0; i < n; i++) {
        double near = INFINITY;
        goes[i] = -1;
        for (int c = 0; c < n; c++) {
            double dist = i == c ? 0 : 1 - ref_cos(key + i * d, key + c * d, d);
            if (centre[c] && (dist < near - 1e-12 || i == c)) near = dist, goes[i] = c;
        }
        if (near > alpha * dc) goes[i] = -1;
        r->size[i] = 0;
    }
    for (int i = 0; i < n; i++)
        if (goes[i] >= 0) r->size[goes[i]]++;
    for (int i = 0; i < n; i++) {
        r->kept[i] = centre[i];
        if (goes[i] >= 0 && r->size[goes[i]] > 1) r->merge[goes[i]][i] = 1.0 / r->size[goes[i]];
    }
}

/* Importance of the pool at positions first … first+n-1; everything before takes part. */
static void ref_euti(double *score, const float *q, const float *k, const float *h, int first,
                     int n, int heads, int kv, int d, int width) {
    int end = first + n;
    for (int i = 0; i < n; i++) score[i] = 0;
    for (int a = 0; a < heads; a++) {
        double mean[64] = {0}, e[MAXN + 64], sum = 0;
        for (int i = 0; i < end; i++)
            for (int t = 0; t < d; t++) mean[t] += (double)q[(i * heads + a) * d + t] / end;
        for (int i = 0; i < end; i++) {
            double x = 0;
            for (int t = 0; t < d; t++) x += mean[t] * (double)k[(i * kv + a * kv / heads) * d + t];
            sum += e[i] = exp(x / sqrt(d));
        }
        for (int i = 0; i < n; i++) score[i] += e[first + i] / sum / heads;
    }
    for (int i = 0; i < n; i++) {
        double s = 0;
        for (int t = 0; t < width; t++)
            s += (double)h[(first + i) * width + t] * (double)h[(first + i) * width + t];
        score[i] *= sqrt(s);
    }
}

#endif
