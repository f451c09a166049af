/* See sparsevlm_parts.h. */
#include "prune/sparsevlm_parts.h"

#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/rank.h"

/* ---- density peaks -------------------------------------------------------------------------------- */

/* Dims per float chain; parallel parts of row loops; rows of scratch per block. */
enum { SLICE = 128, PART = 16, ROOM = IWP_BLOCK + 2 };

void iwp_peaks_layout(struct iwp_peaks *p, const struct iwp_view *v, const struct iwp_array *x,
                      int32_t m_max, struct iwp_arena *a) {
    memset(p, 0, sizeof *p);
    p->exec = v->exec;
    p->x = x;
    p->d = x->n_dim;
    p->cap = m_max;
    size_t m = (size_t)m_max, d = (size_t)p->d, panels = (m + IWP_PANEL - 1) / IWP_PANEL;
    size_t blocks = (m + IWP_BLOCK - 1) / IWP_BLOCK;
    p->panel = IWP_TAKE(a, float, panels *IWP_PANEL *d);
    p->tmp = IWP_TAKE(a, float, blocks *ROOM *d);
    p->dist2 = IWP_TAKE(a, float, m *m);
    p->mean = IWP_TAKE(a, double, d);
    p->diag = IWP_TAKE(a, double, panels *IWP_PANEL);
    p->density = IWP_TAKE(a, double, m);
    p->gap = IWP_TAKE(a, double, m);
    p->score = IWP_TAKE(a, double, m *PART);
    p->idx = IWP_TAKE(a, int32_t, m *PART);
    p->centre = IWP_TAKE(a, int32_t, m);
    p->near = IWP_TAKE(a, int32_t, m);
}

static const float *row_of(const struct iwp_peaks *p, int32_t i, float *tmp) {
    return iwp_array_row(p->x, p->row[i], 0, tmp);
}

/* Rows less their mean: distances stay, the cancellation of |x|² + |y|² - 2xy shrinks. */
static void pack(void *arg, int32_t n) {
    struct iwp_peaks *p = arg;
    float *to = p->panel + (size_t)n * IWP_PANEL * (size_t)p->d,
          *tmp = p->tmp + (size_t)n * (size_t)p->d;
    for (int32_t l = 0; l < IWP_PANEL; l++) {
        int32_t i = n * IWP_PANEL + l;
        const float *x = i < p->m ? row_of(p, i, tmp) : NULL;
        for (int32_t t = 0; t < p->d; t++)
            to[(size_t)t * IWP_PANEL + (size_t)l] = x ? (float)((double)x[t] - p->mean[t]) : 0;
    }
}

/* Dots of n_row lanes starting at row r0 with all lanes of a panel, slices added in double: the same
 * bits for the same two rows, in whichever place they stand. */
static void dots(const struct iwp_peaks *p, int32_t panel, const float *block, int32_t n_row,
                 double *out) {
    const struct iwp_kern *kern = iwp_kern_get();
    float o[IWP_BLOCK * IWP_PANEL];
    for (int32_t i = 0; i < n_row * IWP_PANEL; i++) out[i] = 0;
    for (int32_t t = 0; t < p->d; t += SLICE) {
        int32_t n = p->d - t < SLICE ? p->d - t : SLICE;
        kern->panel_dots(o, p->panel + ((size_t)panel * (size_t)p->d + (size_t)t) * IWP_PANEL,
                         block + (size_t)t * (size_t)n_row, n_row, n);
        for (int32_t i = 0; i < n_row * IWP_PANEL; i++) out[i] += (double)o[i];
    }
}

static int32_t gather(const struct iwp_peaks *p, int32_t r0, int32_t end, float *block) {
    int32_t n = end - r0 < IWP_BLOCK ? end - r0 : IWP_BLOCK;
    for (int32_t r = 0; r < n; r++) {
        const float *lane = p->panel + (size_t)((r0 + r) / IWP_PANEL) * IWP_PANEL * (size_t)p->d +
                            (r0 + r) % IWP_PANEL;
        for (int32_t t = 0; t < p->d; t++)
            block[(size_t)t * (size_t)n + (size_t)r] = lane[(size_t)t * IWP_PANEL];
    }
    return n;
}

static void squares(void *arg, int32_t b) {
    struct iwp_peaks *p = arg;
    float *block = p->tmp + (size_t)b * ROOM * (size_t)p->d;
    double out[IWP_BLOCK * IWP_PANEL];
    int32_t r0 = b * IWP_BLOCK, n = gather(p, r0, p->m, block), last = (r0 + n - 1) / IWP_PANEL;
    for (int32_t q = r0 / IWP_PANEL; q <= last; q++) {
        dots(p, q, block, n, out);
        for (int32_t r = 0; r < n; r++)
            if ((r0 + r) / IWP_PANEL == q)
                p->diag[r0 + r] = out[r * IWP_PANEL + (r0 + r) % IWP_PANEL];
    }
}

/* Distances of twelve rows to the rows after them, mirrored.  Close pairs lose digits in the formula
 * above and are taken from the rows themselves. */
static void distances(void *arg, int32_t b) {
    struct iwp_peaks *p = arg;
    float *block = p->tmp + (size_t)b * ROOM * (size_t)p->d;
    double out[IWP_BLOCK * IWP_PANEL];
    int32_t r0 = b * IWP_BLOCK, n = gather(p, r0, p->m, block);
    for (int32_t q = r0 / IWP_PANEL; q * IWP_PANEL < p->m; q++) {
        dots(p, q, block, n, out);
        for (int32_t r = 0; r < n; r++)
            for (int32_t l = 0; l < IWP_PANEL; l++) {
                int32_t i = r0 + r, j = q * IWP_PANEL + l;
                if (j <= i || j >= p->m) continue;
                double both = p->diag[i] + p->diag[j], s = both - 2 * out[r * IWP_PANEL + l];
                if (!(s >= 0.05 * both && s <= 1e37)) {
                    float *ta = block + IWP_BLOCK * (size_t)p->d, *tb = ta + p->d;
                    s = iwp_rank_distance2(row_of(p, i, ta), row_of(p, j, tb), p->d);
                }
                s /= p->d;
                float f = (float)(s > 1e38 ? 1e38 : s);
                p->dist2[(size_t)i * (size_t)p->m + (size_t)j] = f;
                p->dist2[(size_t)j * (size_t)p->m + (size_t)i] = f;
            }
    }
    for (int32_t r = 0; r < n; r++) p->dist2[(size_t)(r0 + r) * (size_t)(p->m + 1)] = 0;
}

/* rho = exp(-mean of the c smallest squared distances), its own 0 among them. */
static void densities(void *arg, int32_t part) {
    struct iwp_peaks *p = arg;
    double *s = p->score + (size_t)part * (size_t)p->cap;
    int32_t *idx = p->idx + (size_t)part * (size_t)p->cap;
    for (int32_t i = part; i < p->m; i += PART) {
        const float *row = p->dist2 + (size_t)i * (size_t)p->m;
        for (int32_t j = 0; j < p->m; j++) s[j] = -(double)row[j], idx[j] = j;
        iwp_top_k(s, idx, p->m, p->c);
        double sum = 0;
        for (int32_t j = 0; j < p->c; j++) sum += s[idx[j]];
        p->density[i] = iwp_math_exp(sum / p->c);
    }
}

/* delta: distance to the nearest denser row (equal density: the earlier one is denser); -1 for the
 * densest of all. */
static void gaps(void *arg, int32_t part) {
    struct iwp_peaks *p = arg;
    for (int32_t i = part; i < p->m; i += PART) {
        const float *row = p->dist2 + (size_t)i * (size_t)p->m;
        float best = -1;
        for (int32_t j = 0; j < p->m; j++) {
            int denser = p->density[j] > p->density[i] || (p->density[j] == p->density[i] && j < i);
            if (denser && (best < 0 || row[j] < best)) best = row[j];
        }
        p->gap[i] = best < 0 ? -1 : sqrt((double)best);
    }
}

void iwp_peaks_run(struct iwp_peaks *p, const int32_t *row, int32_t m, int32_t c) {
    p->row = row;
    p->m = m;
    p->c = c;
    memset(p->mean, 0, sizeof(double) * (size_t)p->d);
    for (int32_t i = 0; i < m; i++) {
        const float *x = row_of(p, i, p->tmp);
        for (int32_t t = 0; t < p->d; t++) p->mean[t] += (double)x[t];
    }
    for (int32_t t = 0; t < p->d; t++) p->mean[t] /= m;
    int32_t blocks = (m + IWP_BLOCK - 1) / IWP_BLOCK;
    iwp_parallel(p->exec, pack, p, (m + IWP_PANEL - 1) / IWP_PANEL);
    iwp_parallel(p->exec, squares, p, blocks);
    iwp_parallel(p->exec, distances, p, blocks);
    iwp_parallel(p->exec, densities, p, PART);
    iwp_parallel(p->exec, gaps, p, PART);

    float top = 0;
    for (size_t i = 0; i < (size_t)m * (size_t)m; i++) top = p->dist2[i] > top ? p->dist2[i] : top;
    for (int32_t i = 0; i < m; i++) {
        if (p->gap[i] < 0) p->gap[i] = sqrt((double)top);
        p->score[i] = p->density[i] * p->gap[i];
        p->idx[i] = i;
    }
    iwp_top_k(p->score, p->idx, m, c);
    memcpy(p->centre, p->idx, sizeof(int32_t) * (size_t)c);
    for (int32_t i = 0; i < m; i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < c; k++)
            if (p->dist2[(size_t)i * (size_t)m + (size_t)p->centre[k]] <
                p->dist2[(size_t)i * (size_t)m + (size_t)p->centre[best]])
                best = k;
        p->near[i] = best;
    }
    for (int32_t k = 0; k < c; k++) p->near[p->centre[k]] = k;
}

/* ---- numerical rank ------------------------------------------------------------------------------- */

/* Householder reflections turn the symmetric a into a tridiagonal matrix: diagonal, off-diagonal. */
static void tridiagonal(double *a, int32_t n, double *diag, double *off) {
    for (int32_t k = 0; k + 2 < n; k++) {
        double norm2 = 0, *col = a + (size_t)k * (size_t)n; /* row k = column k */
        for (int32_t i = k + 1; i < n; i++) norm2 += col[i] * col[i];
        double alpha = col[k + 1] > 0 ? -sqrt(norm2) : sqrt(norm2);
        double vv = 2 * (norm2 - alpha * col[k + 1]); /* |v|² of v = x - alpha e1 */
        off[k] = alpha;
        if (!(vv > 0)) {
            off[k] = col[k + 1];
            continue;
        }
        col[k + 1] -= alpha; /* col now holds v; diag[] is free to hold p = 2 A v / |v|² */
        double *p = diag, dot = 0;
        for (int32_t i = k + 1; i < n; i++) {
            double s = 0;
            for (int32_t j = k + 1; j < n; j++) s += a[(size_t)i * (size_t)n + (size_t)j] * col[j];
            p[i] = 2 * s / vv;
            dot += p[i] * col[i];
        }
        for (int32_t i = k + 1; i < n; i++) p[i] -= dot / vv * col[i];
        for (int32_t i = k + 1; i < n; i++)
            for (int32_t j = k + 1; j < n; j++)
                a[(size_t)i * (size_t)n + (size_t)j] -= col[i] * p[j] + p[i] * col[j];
    }
    if (n > 1) off[n - 2] = a[(size_t)(n - 2) * (size_t)n + (size_t)(n - 1)];
    for (int32_t i = 0; i < n; i++) diag[i] = a[(size_t)i * (size_t)(n + 1)];
}

/* Eigenvalues above x: signs of the pivots of T - x (Sturm). */
static int32_t count_above(const double *diag, const double *off, int32_t n, double x) {
    int32_t count = 0;
    double q = 1;
    for (int32_t i = 0; i < n; i++) {
        double e = i ? off[i - 1] : 0;
        q = diag[i] - x - (i ? e * e / q : 0);
        if (fabs(q) < 1e-300) q = -1e-300;
        count += q > 0;
    }
    return count;
}

int32_t iwp_sparse_rank(double *gram, int32_t n, int32_t larger_side, double *work) {
    double *diag = work, *off = work + n, hi = 0, lo = 0;
    for (int32_t i = 0; i < n; i++)
        hi += gram[(size_t)i * (size_t)(n + 1)]; /* the trace bounds it */
    if (!(hi > 0)) return 0;
    tridiagonal(gram, n, diag, off);
    hi *= 1 + 1e-12;
    for (int i = 0; i < 100; i++) {
        double mid = (lo + hi) / 2;
        *(count_above(diag, off, n, mid) > 0 ? &lo : &hi) = mid;
    }
    double tol = larger_side * 1.1920928955078125e-7;
    return count_above(diag, off, n, tol * tol * lo);
}

/* ---- the position factor --------------------------------------------------------------------------- */

/* cos by fixed IEEE operations (libm's differ between systems). */
static double cosine(double x) {
    x = fabs(x);
    if (x > 1e6) x = fmod(x, 6.283185307179586476925); /* exact; x itself is rounded more */
    double n = floor(x * 0.63661977236758134308 + 0.5);
    double r = (x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11, z = r * r;
    int quadrant = (int)fmod(n, 4);
    double s = 1, t = 1;
    if (quadrant == 0 || quadrant == 2) { /* ± cos r */
        for (int k = 18; k > 0; k -= 2) s = 1 - z / (k * (k - 1)) * s;
        return quadrant == 0 ? s : -s;
    }
    for (int k = 19; k > 1; k -= 2) t = 1 - z / (k * (k - 1)) * t; /* ∓ sin r */
    return quadrant == 1 ? -r * t : r * t;
}

double iwp_sparse_position_factor(double distance, int32_t d, double base) {
    double sum = 0, log_base = iwp_math_log(base);
    for (int32_t m = 0; m < d / 2; m++)
        sum += cosine(distance * iwp_math_exp(-2.0 * m / d * log_base));
    double g = 2 / sqrt((double)d) * sum, least = 0.01 * sqrt((double)d);
    return g > least ? g : least;
}
