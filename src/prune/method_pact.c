/* PACT: importance without attention (EUTI), density-peak clustering with a distance bound (DBDPC),
 * clusters merged into their centres, sizes for proportional attention (methods-diversity 2).
 *
 * `dc` absent: it is tuned so that at most M centres remain (30 halvings of [0,2]).  Memory: 4 n1²
 * bytes, n1 the tokens that pass the importance stage; the clustering's definition reads all pairs. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/cosine.h"
#include "prune/methods.h"

enum { HEAD_WIDE = 1024, ROWS = 64, STEP = 256, DOTS = 64 };

struct pact_options {
    double lambda, dc, alpha;
};

#define AT(f) offsetof(struct pact_options, f)
static const struct iwp_option options[] = {
    {.name = "lambda",
     .type = IWP_OPTION_REAL,
     .offset = AT(lambda),
     .def = 0.55,
     .min = 0,
     .min_open = 1,
     .max = 1,
     .text = "share of the tokens that passes the importance stage"},
    {.name = "dc",
     .type = IWP_OPTION_REAL,
     .offset = AT(dc),
     .def = -1,
     .min = -1,
     .max = 2,
     .def_text = "tuned to the budget (as-published 0.21)",
     .text = "cosine distance that makes a cluster; given, the count follows from the data"},
    {.name = "alpha",
     .type = IWP_OPTION_REAL,
     .offset = AT(alpha),
     .def = 1.5,
     .min = 1,
     .max = 1e6,
     .text = "a token joins a centre within alpha dc, else it is dropped"},
    {.name = NULL},
};

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)p;
    (void)stage;
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_Q, IWP_ROWS_ALL, 0);
    n = iwp_need_add(out, n, cap, IWP_TENSOR_K, IWP_ROWS_ALL, 0);
    n = iwp_need_add(out, n, cap, IWP_TENSOR_K_ROPE, IWP_ROWS_VISUAL, 0);
    return iwp_need_add(out, n, cap, IWP_TENSOR_H, IWP_ROWS_VISUAL, 0);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    const struct iwp_array *arr = v->in->arr;
    struct iwp_source s = {.array = &arr[IWP_TENSOR_K_ROPE]}, h = {.array = &arr[IWP_TENSOR_H]};
    IWP_TRY(iwp_source_check(&s, IWP_TENSOR_K_ROPE, err));
    IWP_TRY(iwp_source_check(&h, IWP_TENSOR_H, err));
    IWP_REQUIRE(arr[IWP_TENSOR_Q].n_dim <= HEAD_WIDE, err, IWP_ENOTSUP,
                "tensor q: heads wider than %d", HEAD_WIDE);
    return 0;
}

/* ---- importance ----------------------------------------------------------------------------------- */

struct euti_job {
    const struct iwp_view *v;
    const struct iwp_array *q, *k, *h;
    int32_t end;   /* rows 0 … end-1 ask and answer */
    float *query;  /* [n_head][d] mean queries, scaled */
    double *logit; /* [n_head][end], then probabilities */
    double *score; /* [n_pool] */
};

static void mean_query(void *arg, int32_t h) {
    struct euti_job *j = arg;
    int32_t d = j->q->n_dim;
    float tmp[HEAD_WIDE], part[HEAD_WIDE];
    double sum[HEAD_WIDE], scale = 1 / (sqrt((double)d) * j->end);
    memset(sum, 0, sizeof(double) * (size_t)d);
    for (int32_t i0 = 0; i0 < j->end; i0 += 16) { /* short sums in float, long ones in double */
        memset(part, 0, sizeof(float) * (size_t)d);
        for (int32_t i = i0; i < j->end && i < i0 + 16; i++) {
            const float *x = iwp_array_row(j->q, i, h, tmp);
            for (int32_t t = 0; t < d; t++) part[t] = part[t] + x[t];
        }
        for (int32_t t = 0; t < d; t++) sum[t] += (double)part[t];
    }
    for (int32_t t = 0; t < d; t++)
        j->query[(size_t)h * (size_t)d + (size_t)t] = (float)(sum[t] * scale);
}

static void key_rows(void *arg, int32_t task) {
    struct euti_job *j = arg;
    int32_t i1 = (task + 1) * ROWS < j->end ? (task + 1) * ROWS : j->end, heads = j->q->n_head,
            group = heads / j->k->n_head, d = j->k->n_dim;
    const struct iwp_kern *kern = iwp_kern_get();
    float tmp[HEAD_WIDE], out[DOTS];
    for (int32_t i = task * ROWS; i < i1; i++)
        for (int32_t g = 0; g < j->k->n_head; g++) {
            const float *k = iwp_array_row(j->k, i, g, tmp);
            for (int32_t h = g * group; h < (g + 1) * group; h += DOTS) {
                int32_t n = (g + 1) * group - h < DOTS ? (g + 1) * group - h : DOTS;
                kern->dots(out, k, j->query + (size_t)h * (size_t)d, d, n, d);
                for (int32_t c = 0; c < n; c++)
                    j->logit[(size_t)(h + c) * (size_t)j->end + (size_t)i] = (double)out[c];
            }
        }
}

static void softmax_head(void *arg, int32_t h) {
    struct euti_job *j = arg;
    double *x = j->logit + (size_t)h * (size_t)j->end, top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < j->end; i++) {
        top = x[i] > top ? x[i] : top;
        if (!(fabs(x[i]) <= 1e300)) sum = NAN; /* -Inf too must not pass as a weight of 0 */
    }
    for (int32_t i = 0; i < j->end; i++) sum += x[i] = iwp_math_exp(x[i] - top);
    for (int32_t i = 0; i < j->end; i++) x[i] /= sum;
}

static void score_rows(void *arg, int32_t task) {
    struct euti_job *j = arg;
    const struct iwp_view *v = j->v;
    int32_t i1 = (task + 1) * ROWS < v->n_pool ? (task + 1) * ROWS : v->n_pool,
            heads = j->q->n_head;
    const struct iwp_kern *kern = iwp_kern_get();
    float tmp[IWP_ROW_WIDE];
    for (int32_t i = task * ROWS; i < i1; i++) {
        double s = 0;
        for (int32_t h = 0; h < heads; h++)
            s += j->logit[(size_t)h * (size_t)j->end + (size_t)v->pool[i]];
        const float *x = iwp_array_row(j->h, v->pool[i], 0, tmp);
        float n2 = kern->norm2(x, j->h->n_dim);
        double norm2 = n2 > 1e-30f && n2 < 1e37f ? (double)n2 : iwp_row_norm2(x, j->h->n_dim);
        j->score[i] = s / heads * sqrt(norm2);
    }
}

/* ---- clustering ------------------------------------------------------------------------------------ */

struct cluster_job {
    float *close; /* [n][stride] minus the distances, at most 0 */
    double *rho;
    int32_t n;
};

/* Cosines become distances with a minus sign; density of each row. */
static void density_rows(void *arg, int32_t task) {
    struct cluster_job *j = arg;
    const struct iwp_kern *kern = iwp_kern_get();
    int32_t i1 = (task + 1) * ROWS < j->n ? (task + 1) * ROWS : j->n;
    float e[STEP];
    for (int32_t i = task * ROWS; i < i1; i++) {
        float *row = j->close + (size_t)i * iwp_gram_stride(j->n);
        double sum = 0;
        for (int32_t k = 0; k < j->n; k++) row[k] = row[k] - 1.0f;
        row[i] = 0; /* also for a row of zeros */
        for (int32_t k = 0; k < j->n; k += STEP) {
            int32_t n = j->n - k < STEP ? j->n - k : STEP;
            for (int32_t t = 0; t < n; t++) {
                float x = row[k + t] * 0.5f;
                e[t] = -(x * x);
            }
            sum += (double)kern->exp_shift_sum(e, 0, n);
        }
        j->rho[i] = sum;
    }
}

/* Visits from dense to sparse; a point farther than dc from every centre becomes one.  Stops after
 * `limit` centres and returns their number.  best [n]: minus the distance to the nearest centre. */
static int32_t find_centres(const struct cluster_job *j, const int32_t *visit, double dc,
                            int32_t limit, float *best, int32_t *centre) {
    const struct iwp_kern *kern = iwp_kern_get();
    int32_t count = 0;
    for (int32_t i = 0; i < j->n; i++) best[i] = -INFINITY;
    for (int32_t i = 0; i < j->n && count < limit; i++) {
        if (-(double)best[visit[i]] <= dc) continue;
        centre[count++] = visit[i];
        kern->max_row(best, j->close + (size_t)visit[i] * iwp_gram_stride(j->n), j->n);
    }
    return count;
}

static void sort_ascending(int32_t *x, int32_t n, uint8_t *mark, int32_t range) {
    memset(mark, 0, (size_t)range);
    for (int32_t i = 0; i < n; i++) mark[x[i]] = 1;
    for (int32_t i = 0, k = 0; i < range; i++)
        if (mark[i]) x[k++] = i;
}

/* Something came out as NaN or Inf: name the tensor and row that held one. */
static int refuse(const struct iwp_view *v, iwp_err *err) {
    struct iwp_need need[4];
    int n = needs(v->params, 0, need, 4);
    for (int i = 0; i < n; i++)
        IWP_TRY(iwp_array_check_finite(v->in, need[i].tensor, need[i].rows, v->first_visual, err));
    return iwp_err_set(err, IWP_EINVAL, "tensors q, k and h hold numbers too large to multiply");
}

struct pact_work {
    struct iwp_units x, y, z;
    float *gram, *best;
    double *rho, *score;
    int32_t *order, *visit, *centre, *other, *goes, *near, *count;
    uint8_t *mark;
};

/* One unit: the n1 best, their clusters, and everybody's centre. */
static int cluster_unit(struct iwp_view *v, const struct iwp_source *s, struct pact_work *w,
                        int32_t first, int32_t n, int32_t m, iwp_err *err) {
    const struct pact_options *o = IWP_OPTIONS(pact_options, v->params);
    double dc = o->dc >= 0 ? o->dc : v->as_published ? 0.21 : -1;
    int32_t n1 = (int32_t)(n * o->lambda);
    if (n1 < 1) n1 = 1;
    if (dc < 0 && n1 < m) n1 = m;
    for (int32_t i = 0; i < n; i++) w->order[i] = i;
    iwp_top_k(w->score + first, w->order, n, n1);
    sort_ascending(w->order, n1, w->mark, n);
    int32_t n_other = 0;
    for (int32_t i = 0; i < n; i++)
        if (!w->mark[i]) w->other[n_other++] = first + i;
    for (int32_t i = 0; i < n1; i++) w->order[i] += first;

    struct cluster_job j = {w->gram, w->rho, n1};
    iwp_units_pack(&w->x, v->exec, s, w->order, 0, n1);
    if (!iwp_units_finite(&w->x)) return refuse(v, err);
    iwp_units_gram(&w->x, v->exec, w->gram);
    iwp_parallel(v->exec, density_rows, &j, (n1 + ROWS - 1) / ROWS);
    for (int32_t i = 0; i < n1; i++) w->visit[i] = i;
    iwp_top_k(w->rho, w->visit, n1, n1);
    if (dc < 0) {
        double lo = 0;
        dc = 2;
        for (int i = 0; i < 30; i++) {
            double mid = (lo + dc) / 2;
            if (find_centres(&j, w->visit, mid, m + 1, w->best, w->centre) > m)
                lo = mid;
            else
                dc = mid;
        }
    }
    int32_t n_centre = find_centres(&j, w->visit, dc, n1, w->best, w->centre);
    sort_ascending(w->centre, n_centre, w->mark, n1);

    /* goes[token of the unit] = centre number, -1 dropped */
    for (int32_t i = 0; i < n; i++) w->goes[i] = -1;
    for (int32_t i = 0; i < n1; i++) {
        float near = -INFINITY;
        int32_t to = 0;
        const float *row = w->gram + (size_t)i * iwp_gram_stride(n1);
        for (int32_t c = 0; c < n_centre; c++)
            if (row[w->centre[c]] > near) near = row[w->centre[c]], to = c;
        if (-(double)near <= o->alpha * dc) w->goes[w->order[i] - first] = to;
    }
    for (int32_t c = 0; c < n_centre; c++) {
        w->goes[w->order[w->centre[c]] - first] = c;
        w->centre[c] = w->order[w->centre[c]]; /* pool index from here on */
        w->count[c] = 0;
    }
    if (n_other) {
        iwp_units_pack(&w->y, v->exec, s, w->other, 0, n_other);
        if (!iwp_units_finite(&w->y)) return refuse(v, err);
        iwp_units_pack(&w->z, v->exec, s, w->centre, 0, n_centre);
        iwp_units_nearest(&w->y, &w->z, v->exec, w->best, w->near);
        for (int32_t i = 0; i < n_other; i++)
            if ((double)(1.0f - w->best[i]) <= o->alpha * dc)
                w->goes[w->other[i] - first] = w->near[i];
    }
    for (int32_t i = 0; i < n; i++)
        if (w->goes[i] >= 0) w->count[w->goes[i]]++;
    for (int32_t c = 0; c < n_centre; c++) {
        v->chosen[w->centre[c]] = 1;
        v->sizes[w->centre[c]] = w->count[c];
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t c = w->goes[i];
        if (c >= 0 && w->count[c] > 1)
            v->merge[v->n_merge++] =
                (struct iwp_merge){first + i, w->centre[c], 1.0f / (float)w->count[c]};
    }
    return 0;
}

static int select_pact(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    const struct pact_options *o = IWP_OPTIONS(pact_options, v->params);
    const struct iwp_array *arr = v->in->arr;
    int32_t n = v->n_pool, n1 = (int32_t)(n * o->lambda) + 1;
    if (n1 < v->n_keep) n1 = v->n_keep;
    if (n1 > n) n1 = n;
    struct iwp_source s = {.array = &arr[IWP_TENSOR_K_ROPE], .row = v->pool};
    struct pact_work w;
    struct euti_job e = {
        .v = v, .q = &arr[IWP_TENSOR_Q], .k = &arr[IWP_TENSOR_K], .h = &arr[IWP_TENSOR_H]};
    int32_t d = iwp_source_width(&s);
    e.query = IWP_TAKE(a, float, (size_t)e.q->n_head *(size_t)e.q->n_dim);
    e.logit = IWP_TAKE(a, double, (size_t)e.q->n_head *(size_t)v->n);
    e.score = w.score = IWP_TAKE(a, double, n);
    iwp_units_layout(&w.x, n1, d, a);
    iwp_units_layout(&w.y, n, d, a);
    iwp_units_layout(&w.z, n1, d, a);
    w.gram = iwp_gram_take(a, n1);
    w.best = IWP_TAKE(a, float, n);
    w.rho = IWP_TAKE(a, double, n1);
    w.order = IWP_TAKE(a, int32_t, n);
    w.visit = IWP_TAKE(a, int32_t, n1);
    w.centre = IWP_TAKE(a, int32_t, n1);
    w.other = IWP_TAKE(a, int32_t, n);
    w.goes = IWP_TAKE(a, int32_t, n);
    w.near = IWP_TAKE(a, int32_t, n);
    w.count = IWP_TAKE(a, int32_t, n1);
    w.mark = IWP_TAKE(a, uint8_t, n);
    if (iwp_arena_counting(a)) return 0;

    for (int32_t i = 0; i < n; i++) e.end = v->pool[i] >= e.end ? v->pool[i] + 1 : e.end;
    iwp_parallel(v->exec, mean_query, &e, e.q->n_head);
    iwp_parallel(v->exec, key_rows, &e, (e.end + ROWS - 1) / ROWS);
    iwp_parallel(v->exec, softmax_head, &e, e.q->n_head);
    iwp_parallel(v->exec, score_rows, &e, (n + ROWS - 1) / ROWS);
    for (int32_t i = 0; i < n; i++) {
        if (!(w.score[i] <= 1e300)) return refuse(v, err);
        v->scores[i] = (float)w.score[i];
    }
    v->has_scores = v->has_sizes = 1;
    for (int32_t u = 0; u < v->n_unit; u++)
        IWP_TRY(cluster_unit(v, &s, &w, v->unit_first[u], v->unit_first[u + 1] - v->unit_first[u],
                             v->unit_keep[u], err));
    return 0;
}

const struct iwp_method iwp_method_pact = {
    .info = {.name = "pact",
             .title = "importance, then bounded density-peak clustering with merging",
             .ref = "PACT (Dhouib et al. 2025), code orailix/PACT",
             .site = IWP_SITE_LAYER,
             .flags = IWP_METHOD_MERGES,
             .options = options,
             .positions = "original; a cluster takes its centre's",
             .rounding = "nearest count not above round-half-even(keep N); with dc the data decide",
             .layer = 4},
    .separators = 1,
    .checks_finite = 1,
    .needs = needs,
    .check = check,
    .select = select_pact,
};
