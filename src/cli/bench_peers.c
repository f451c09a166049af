/* See bench_peers.h. */
#include "cli/bench_peers.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, PLAIN = 111, TURNED = 112 };

void iwp_blas_open(struct iwp_blas *b) {
    memset(b, 0, sizeof *b);
    /* Under some hypervisors OpenBLAS takes a current CPU for a very old one; a slow peer would flatter us. */
    const char *path = iwp_cpu_name();
    if (strcmp(path, "avx512") == 0) setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    if (strcmp(path, "avx2") == 0) setenv("OPENBLAS_CORETYPE", "Haswell", 0);
    /* else its idle threads spin on our cores for tens of ms */
    setenv("OPENBLAS_THREAD_TIMEOUT", "4", 0);
    b->lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!b->lib) return;
    void *m = dlsym(b->lib, "cblas_sgemm"), *v = dlsym(b->lib, "cblas_sgemv"),
         *t = dlsym(b->lib, "openblas_set_num_threads");
    memcpy(&b->sgemm, &m, sizeof m); /* the portable way from a data to a function pointer */
    memcpy(&b->sgemv, &v, sizeof v);
    memcpy(&b->threads, &t, sizeof t);
}

/* ---- the products of the definitions -------------------------------------------------------------- */

static const struct iwp_array *tensor(const struct iwp_input *in, enum iwp_tensor t) {
    return &in->arr[t];
}

static int32_t first_visual(const struct iwp_input *in) {
    int32_t i = 0;
    while (i < in->n && in->code[i] != IWP_CODE_VISUAL) i++;
    return i;
}

/* SparseVLM's raters: text tokens that a softmax over the text gives more than its share. */
static int32_t count_raters(const struct iwp_input *in, int32_t first, int32_t n) {
    const struct iwp_array *e = tensor(in, IWP_TENSOR_EMBEDS);
    const float *x = e->data;
    const int32_t text = first + n, n_text = in->n - text, d = e->n_dim;
    double *w = calloc(2 * (size_t)n_text + 1, sizeof *w), *dot = w ? w + n_text : NULL;
    int32_t raters = 0;
    for (int32_t i = 0; w && i < n; i++) {
        double most = -INFINITY, sum = 0;
        for (int32_t t = 0; t < n_text; t++) {
            const float *a = x + (size_t)(first + i) * (size_t)d,
                        *b = x + (size_t)(text + t) * (size_t)d;
            float s = 0;
            for (int32_t k = 0; k < d; k++) s += a[k] * b[k];
            dot[t] = (double)s;
            most = fmax(most, dot[t]);
        }
        for (int32_t t = 0; t < n_text; t++) sum += exp(dot[t] - most);
        for (int32_t t = 0; t < n_text; t++) w[t] += exp(dot[t] - most) / sum / n;
    }
    for (int32_t t = 0; w && t < n_text; t++) raters += n_text * w[t] > 1 + 1e-6;
    free(w);
    return raters ? raters : n_text;
}

static int sparsevlm(const struct iwp_input *in, int32_t n, int32_t keep, struct iwp_product *p) {
    const struct iwp_array *q = tensor(in, IWP_TENSOR_Q_ROPE_PREV),
                           *k = tensor(in, IWP_TENSOR_K_ROPE_PREV);
    const int32_t first = first_visual(in), d = tensor(in, IWP_TENSOR_H)->n_dim;
    int32_t kept = keep, again = 0;
    for (int32_t c = 0; c < keep && !again; c++) { /* kept and merged make the budget */
        const int32_t m = (int32_t)(0.3 * (n - (keep - c))) + 1;
        if (m / 10 + 1 == c) kept = keep - c, again = m;
    }
    (void)kept;
    p[0] = (struct iwp_product){n, in->n - first - n, d, 1};
    p[1] = (struct iwp_product){count_raters(in, first, n) * (q->n_head / k->n_head), in->n,
                                k->n_dim, k->n_head};
    p[2] = (struct iwp_product){again, again, d, 1};
    return again ? 3 : 2;
}

static int pact(const struct iwp_input *in, int32_t n, int32_t keep, struct iwp_product *p) {
    const struct iwp_array *q = tensor(in, IWP_TENSOR_Q), *k = tensor(in, IWP_TENSOR_K);
    int32_t retained = (int32_t)(0.55 * n), wide = k->n_head * k->n_dim;
    if (retained < keep) retained = keep;
    p[0] = (struct iwp_product){q->n_head / k->n_head, first_visual(in) + n, k->n_dim, k->n_head};
    p[1] = (struct iwp_product){retained, retained, wide, 1};
    p[2] = (struct iwp_product){n - retained, keep, wide, 1};
    return n > retained ? 3 : 2;
}

static int encoder(const char *method, const struct iwp_input *in, int32_t n, int32_t keep,
                   struct iwp_product *p) {
    const struct iwp_array *k = tensor(in, IWP_TENSOR_VIT_K),
                           *f = tensor(in, IWP_TENSOR_VIT_FEATURES);
    if (strcmp(method, "tome") == 0) {
        p[0] = (struct iwp_product){n - n / 2, n / 2, k->n_dim, 1};
        return n > 1;
    }
    const int32_t some = keep * 10 / 64 > 1 ? keep * 10 / 64 : 1, rest = n - keep / 2;
    p[0] = (struct iwp_product){n, n, k->n_dim, k->n_head};
    if (strcmp(method, "visionzip") == 0) p[1] = (struct iwp_product){n - keep, some, k->n_dim, 1};
    if (strcmp(method, "vispruner") == 0) p[1] = (struct iwp_product){rest, rest, f->n_dim, 1};
    if (strcmp(method, "scope") == 0) p[1] = (struct iwp_product){n, n, f->n_dim, 1};
    return p[1].m > 0 ? 2 : 1;
}

/* One query row of every head, against all keys. */
static int one_row(const struct iwp_array *q, const struct iwp_array *k, struct iwp_product *p) {
    p[0] = (struct iwp_product){q->n_head / k->n_head, k->n_row, k->n_dim, k->n_head};
    return 1;
}

int iwp_peer_products(const char *method, const struct iwp_input *in, int32_t n, int32_t n_keep,
                      struct iwp_product out[IWP_PRODUCT_MAX]) {
    memset(out, 0, IWP_PRODUCT_MAX * sizeof *out);
    if (strcmp(method, "fastv") == 0)
        return one_row(tensor(in, IWP_TENSOR_Q_ROPE_PREV), tensor(in, IWP_TENSOR_K_ROPE_PREV), out);
    if (strcmp(method, "pyramiddrop") == 0 || strcmp(method, "vatp") == 0)
        return one_row(tensor(in, IWP_TENSOR_Q_ROPE), tensor(in, IWP_TENSOR_K_ROPE), out);
    if (strcmp(method, "sparsevlm") == 0) return sparsevlm(in, n, n_keep, out);
    if (strcmp(method, "pact") == 0) return pact(in, n, n_keep, out);
    if (strcmp(method, "dart") == 0) {
        out[0] = (struct iwp_product){8, n, tensor(in, IWP_TENSOR_H)->n_dim, 1};
        return 1;
    }
    if (strcmp(method, "divprune") == 0 || strcmp(method, "cdpruner") == 0) {
        out[0] = (struct iwp_product){n, n, tensor(in, IWP_TENSOR_EMBEDS)->n_dim, 1};
        return 1;
    }
    if (tensor(in, IWP_TENSOR_VIT_K)->data) return encoder(method, in, n, n_keep, out);
    return 0;
}

double iwp_product_count(const struct iwp_product *p, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)p[i].m * p[i].n * p[i].k * p[i].times;
    return sum;
}

static float *ramp(size_t n, int period) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    for (size_t i = 0; x && i < n; i++) x[i] = (float)(i % (size_t)period) * 0.1f;
    return x;
}

int iwp_product_run_init(struct iwp_product_run *r, const struct iwp_product *p, int n) {
    size_t a = 0, b = 0, c = 0;
    for (int i = 0; i < n; i++) {
        const size_t m = (size_t)p[i].m, w = (size_t)p[i].n, k = (size_t)p[i].k;
        a = m * k > a ? m * k : a;
        b = w * k > b ? w * k : b;
        c = m * w > c ? m * w : c;
    }
    *r = (struct iwp_product_run){ramp(a, 7), ramp(b, 5), ramp(c, 3)};
    if (r->a && r->b && r->c) return 0;
    iwp_product_run_free(r);
    return -1;
}

void iwp_product_run_free(struct iwp_product_run *r) {
    free(r->a);
    free(r->b);
    free(r->c);
    memset(r, 0, sizeof *r);
}

void iwp_product_run_once(const struct iwp_product_run *r, const struct iwp_blas *blas,
                          const struct iwp_product *p, int n) {
    for (int i = 0; i < n; i++)
        for (int32_t t = 0; t < p[i].times; t++)
            blas->sgemm(ROW_MAJOR, PLAIN, TURNED, p[i].m, p[i].n, p[i].k, 1, r->a, p[i].k, r->b,
                        p[i].k, 0, r->c, p[i].n);
}

/* ---- the greedy methods, plainly ------------------------------------------------------------------ */

/* Rows first … first+n-1 of an array scaled to length 1, and all their cosines. */
static int cosines(const struct iwp_blas *blas, const struct iwp_array *a, int32_t first, int32_t n,
                   float **unit, float **gram) {
    const size_t d = (size_t)a->n_dim, N = (size_t)n;
    *unit = malloc(N * d * sizeof **unit);
    *gram = malloc(N * N * sizeof **gram);
    if (!*unit || !*gram) return -1;
    for (size_t i = 0; i < N; i++) {
        const float *x = (const float *)a->data + ((size_t)first + i) * d;
        float s = 0;
        for (size_t k = 0; k < d; k++) s += x[k] * x[k];
        s = s > 0 ? 1 / sqrtf(s) : 0;
        for (size_t k = 0; k < d; k++) (*unit)[i * d + k] = x[k] * s;
    }
    blas->sgemm(ROW_MAJOR, PLAIN, TURNED, n, n, (int)d, 1, *unit, (int)d, *unit, (int)d, 0, *gram,
                n);
    return 0;
}

static int32_t best_of(const float *x, int32_t n) {
    int32_t at = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[at]) at = i;
    return at;
}

static void divprune(const float *gram, int32_t n, int32_t m, float *near, int32_t *keep) {
    const size_t N = (size_t)n;
    for (size_t j = 0; j < N; j++) {
        near[j] = 2;
        for (size_t i = 0; i < N; i++)
            if (i != j && 1 - gram[j * N + i] < near[j]) near[j] = 1 - gram[j * N + i];
    }
    for (int32_t t = 0; t < m; t++) {
        const int32_t pick = keep[t] = best_of(near, n);
        const float *row = gram + (size_t)pick * N;
        for (size_t i = 0; i < N; i++)
            near[i] = t == 0 || 1 - row[i] < near[i] ? 1 - row[i] : near[i];
        for (int32_t s = 0; s <= t; s++) near[keep[s]] = -1;
    }
}

/* Relevance r from the mean of the user's words, then greedy determinants by Cholesky rows. */
static int cdpruner(const struct iwp_blas *blas, const struct iwp_input *in, const float *unit,
                    float *gram, int32_t n, int32_t m, int32_t *keep) {
    const struct iwp_array *e = tensor(in, IWP_TENSOR_EMBEDS);
    const size_t d = (size_t)e->n_dim, N = (size_t)n;
    float *mean = calloc(d, sizeof *mean), *r = malloc(3 * N * sizeof *r);
    float *v = r ? r + n : NULL, *row = r ? r + 2 * N : NULL;
    float *done = malloc((size_t)m * N * sizeof *done), *at = malloc((size_t)m * sizeof *at);
    if (!mean || !r || !done || !at) {
        free(mean);
        free(r);
        free(done);
        free(at);
        return -1;
    }
    double norm = 0;
    for (int32_t i = 0; i < in->n; i++)
        for (size_t k = 0; in->code[i] == IWP_CODE_USER && k < d; k++)
            mean[k] += ((const float *)e->data)[(size_t)i * d + k];
    for (size_t k = 0; k < d; k++) norm += (double)mean[k] * (double)mean[k];
    for (size_t k = 0; k < d; k++) mean[k] /= (float)sqrt(norm);
    blas->sgemv(ROW_MAJOR, PLAIN, n, (int)d, 1, unit, (int)d, mean, 1, 0, r, 1);
    float lo = r[0], hi = r[0];
    for (size_t i = 0; i < N; i++) lo = fminf(lo, r[i]), hi = fmaxf(hi, r[i]);
    for (size_t i = 0; i < N; i++) r[i] = (r[i] - lo + 1e-6f) / (hi - lo);
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < N; j++) gram[i * N + j] *= r[i] * r[j];
    for (size_t i = 0; i < N; i++) v[i] = gram[i * N + i];
    for (int32_t t = 0; t < m; t++) {
        const int32_t pick = keep[t] = best_of(v, n);
        const float root = sqrtf(fmaxf(v[pick], 1e-12f));
        memcpy(row, gram + (size_t)pick * N, N * sizeof *row);
        for (int32_t s = 0; s < t; s++) at[s] = done[(size_t)s * N + (size_t)pick];
        if (t > 0) blas->sgemv(ROW_MAJOR, TURNED, t, n, -1, done, n, at, 1, 1, row, 1);
        for (size_t i = 0; i < N; i++) {
            done[(size_t)t * N + i] = row[i] / root;
            v[i] -= done[(size_t)t * N + i] * done[(size_t)t * N + i];
        }
        v[pick] = -INFINITY;
    }
    free(mean);
    free(r);
    free(done);
    free(at);
    return 0;
}

/* Mean attention every encoder row receives: one product and one softmax per head. */
static void received(const struct iwp_blas *blas, const struct iwp_input *in, int32_t n,
                     float *logit, float *score) {
    const struct iwp_array *q = tensor(in, IWP_TENSOR_VIT_Q), *k = tensor(in, IWP_TENSOR_VIT_K);
    const size_t N = (size_t)n, wide = (size_t)q->n_head * (size_t)q->n_dim;
    memset(score, 0, N * sizeof *score);
    for (int32_t h = 0; h < q->n_head; h++) {
        const size_t skip = (size_t)h * (size_t)q->n_dim;
        blas->sgemm(ROW_MAJOR, PLAIN, TURNED, n, n, q->n_dim, 1 / sqrtf((float)q->n_dim),
                    (const float *)q->data + skip, (int)wide, (const float *)k->data + skip,
                    (int)wide, 0, logit, n);
        for (size_t i = 0; i < N; i++) {
            float *x = logit + i * N, most = x[best_of(x, n)], sum = 0;
            for (size_t j = 0; j < N; j++) sum += x[j] = expf(x[j] - most);
            for (size_t j = 0; j < N; j++) score[j] += x[j] / (sum * (float)N * (float)q->n_head);
        }
    }
}

static void scope(const float *gram, const float *score, int32_t n, int32_t m, float *cover,
                  float *gain, int32_t *keep) {
    const size_t N = (size_t)n;
    memset(cover, 0, N * sizeof *cover);
    for (int32_t t = 0; t < m; t++) {
        for (size_t j = 0; j < N; j++) {
            const float *s = gram + j * N;
            float g = 0;
            for (size_t i = 0; i < N; i++) g += fmaxf(0, s[i] - cover[i]);
            gain[j] = g * score[j];
        }
        for (int32_t s = 0; s < t; s++) gain[keep[s]] = -1;
        const float *row = gram + (size_t)(keep[t] = best_of(gain, n)) * N;
        for (size_t i = 0; i < N; i++) cover[i] = fmaxf(cover[i], row[i]);
    }
}

int iwp_peer_select(const struct iwp_blas *blas, const char *method, const struct iwp_input *in,
                    int32_t n, int32_t n_keep, int32_t *keep) {
    const int is_scope = strcmp(method, "scope") == 0, is_div = strcmp(method, "divprune") == 0,
              is_cd = strcmp(method, "cdpruner") == 0;
    if ((!is_scope && !is_div && !is_cd) || !blas->sgemm || !blas->sgemv) return 0;
    float *unit = NULL, *gram = NULL, *tmp = malloc(3 * (size_t)n * sizeof *tmp), *logit = NULL;
    int rc = tmp ? cosines(blas, tensor(in, is_scope ? IWP_TENSOR_VIT_FEATURES : IWP_TENSOR_EMBEDS),
                           is_scope ? 0 : first_visual(in), n, &unit, &gram)
                 : -1;
    if (rc == 0 && is_div) divprune(gram, n, n_keep, tmp, keep);
    if (rc == 0 && is_cd) rc = cdpruner(blas, in, unit, gram, n, n_keep, keep);
    if (rc == 0 && is_scope) {
        logit = malloc((size_t)n * (size_t)n * sizeof *logit);
        if (logit) {
            received(blas, in, n, logit, tmp);
            scope(gram, tmp, n, n_keep, tmp + n, tmp + 2 * (size_t)n, keep);
        } else {
            rc = -1;
        }
    }
    free(unit);
    free(gram);
    free(tmp);
    free(logit);
    return rc < 0 ? -1 : 1;
}
