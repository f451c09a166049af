/* The methods that act inside the language model on random prompts, against straight loops in double.
 * Their worked examples and common rules are in test_methods_llm_examples.c and _rules.c. */
#include "llm_shapes.h"

static struct result res, res2;

static double at(const struct iwp_array *a, int32_t row, int32_t head, int32_t i) {
    return (double)((const float *)a->data)[row * a->row_stride + head * a->head_stride + i];
}

/* Probability of every key for one query row of one head. */
static void attend(const struct iwp_array *q, const struct iwp_array *k, int32_t row, int32_t h,
                   double *prob) {
    double top = -1e300, sum = 0;
    for (int32_t j = 0; j <= row; j++) {
        prob[j] = 0;
        for (int32_t i = 0; i < q->n_dim; i++)
            prob[j] += at(q, row, h, i) * at(k, j, h * k->n_head / q->n_head, i);
        prob[j] /= sqrt(q->n_dim);
        top = fmax(top, prob[j]);
    }
    for (int32_t j = 0; j <= row; j++) sum += prob[j] = exp(prob[j] - top);
    for (int32_t j = 0; j <= row; j++) prob[j] /= sum;
}

static int is_text(const struct prompt *p, int32_t i) {
    return p->code[i] == IWP_CODE_TEXT || p->code[i] == IWP_CODE_USER;
}

static void ref_fastv(const struct prompt *p, const char *mode, double *s) {
    int prefix = !strcmp(mode, "mean-prefix");
    const struct iwp_array *q = &p->in.arr[prefix ? IWP_TENSOR_Q_ROPE : IWP_TENSOR_Q_ROPE_PREV],
                           *k = &p->in.arr[prefix ? IWP_TENSOR_K_ROPE : IWP_TENSOR_K_ROPE_PREV];
    int32_t first = strcmp(mode, "last") ? 0 : p->in.n - 1, end = p->in.n;
    double prob[PROMPT_MAX];
    if (prefix) /* up to the last token that may be pruned */
        for (end = p->in.n; p->code[end - 1] != IWP_CODE_VISUAL;) end--;
    for (int32_t i = 0; i < p->n_visual; i++) s[i] = 0;
    for (int32_t r = first; r < end; r++)
        for (int32_t h = 0; h < q->n_head; h++) {
            attend(q, k, r, h, prob);
            for (int32_t i = 0; i < p->n_visual; i++)
                if (p->at[i] <= r) s[i] += prob[p->at[i]] / q->n_head / (end - first);
        }
}

static void ref_pyramiddrop(const struct prompt *p, const char *mode, double *s) {
    const struct iwp_array *q = &p->in.arr[IWP_TENSOR_Q_ROPE], *k = &p->in.arr[IWP_TENSOR_K_ROPE];
    double prob[PROMPT_MAX];
    (void)mode;
    for (int32_t i = 0; i < p->n_visual; i++) s[i] = 0;
    for (int32_t h = 0; h < q->n_head; h++) {
        attend(q, k, p->in.n - 1, h, prob);
        for (int32_t i = 0; i < p->n_visual; i++) s[i] += prob[p->at[i]] / q->n_head;
    }
}

static void ref_vatp(const struct prompt *p, const char *mode, double *s) {
    const struct iwp_array *q = &p->in.arr[IWP_TENSOR_Q_ROPE], *k = &p->in.arr[IWP_TENSOR_K_ROPE],
                           *v = &p->in.arr[IWP_TENSOR_V];
    double prob[PROMPT_MAX];
    for (int32_t i = 0; i < p->n_visual; i++) s[i] = 0;
    for (int32_t r = 0; r < p->in.n; r++) {
        if (strcmp(mode, "text") ? r != p->in.n - 1 : !is_text(p, r)) continue;
        for (int32_t h = 0; h < q->n_head; h++) {
            attend(q, k, r, h, prob);
            for (int32_t i = 0; i < p->n_visual; i++) {
                double norm = 0;
                for (int32_t t = 0; t < v->n_dim; t++)
                    norm += fabs(at(v, p->at[i], h * v->n_head / q->n_head, t));
                if (p->at[i] <= r) s[i] += prob[p->at[i]] * norm / q->n_head;
            }
        }
    }
}

static void ref_v2drop(const struct prompt *p, const char *mode, double *s) {
    const struct iwp_array *x = &p->in.arr[IWP_TENSOR_H], *y = &p->in.arr[IWP_TENSOR_H_PREV];
    (void)mode;
    for (int32_t i = 0; i < p->n_visual; i++) {
        double sum = 0;
        for (int32_t t = 0; t < x->n_dim; t++)
            sum += pow(at(x, p->at[i], 0, t) - at(y, p->at[i], 0, t), 2);
        s[i] = sqrt(sum);
    }
}

static int32_t ref_raters(const struct prompt *p, int32_t *rater) {
    const struct iwp_array *e = &p->in.arr[IWP_TENSOR_EMBEDS];
    int32_t first = p->at[p->n_visual - 1] + 1, nt = p->in.n - first, n = 0;
    double w[PROMPT_MAX] = {0}, l[PROMPT_MAX];
    for (int32_t i = 0; i < p->n_visual; i++) {
        double top = -1e300, sum = 0;
        for (int32_t k = 0; k < nt; k++) {
            l[k] = 0;
            for (int32_t t = 0; t < e->n_dim; t++)
                l[k] += at(e, p->at[i], 0, t) * at(e, first + k, 0, t);
            top = fmax(top, l[k]);
        }
        for (int32_t k = 0; k < nt; k++) sum += l[k] = exp(l[k] - top);
        for (int32_t k = 0; k < nt; k++) w[k] += l[k] / sum / p->n_visual;
    }
    for (int32_t k = 0; k < nt; k++)
        if (nt * w[k] > 1 + 1e-6) rater[n++] = first + k;
    for (int32_t k = 0; k < nt && n == 0; k++) rater[k] = first + k;
    return n ? n : nt;
}

static void ref_sparsevlm(const struct prompt *p, const char *mode, double *s) {
    const struct iwp_array *q = &p->in.arr[IWP_TENSOR_Q_ROPE_PREV],
                           *k = &p->in.arr[IWP_TENSOR_K_ROPE_PREV];
    double prob[PROMPT_MAX];
    int32_t rater[PROMPT_MAX], n = ref_raters(p, rater);
    (void)mode;
    for (int32_t i = 0; i < p->n_visual; i++) s[i] = 0;
    for (int32_t r = 0; r < n; r++)
        for (int32_t h = 0; h < q->n_head; h++) {
            attend(q, k, rater[r], h, prob);
            for (int32_t i = 0; i < p->n_visual; i++) s[i] += prob[p->at[i]] / q->n_head / n;
        }
}

/* The best m of those with free[i], larger score first, then lower index, into pick. */
static void ref_top(const double *s, uint8_t *free, int32_t n, int32_t m, int32_t *pick) {
    for (int32_t k = 0; k < m; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (free[i] && (best < 0 || s[i] > s[best])) best = i;
        free[best] = 0;
        if (pick) pick[k] = best;
    }
}

static const struct scored {
    const char *method, *options, *mode;
    void (*score)(const struct prompt *, const char *, double *);
    int separators; /* exempt */
} scored[] = {
    {"fastv", "", "last", ref_fastv, 0},
    {"fastv", "query=mean-all", "mean-all", ref_fastv, 0},
    {"fastv", "query=mean-prefix", "mean-prefix", ref_fastv, 1},
    {"pyramiddrop", "", "", ref_pyramiddrop, 0},
    {"v2drop", "", "", ref_v2drop, 0},
    {"vatp", "", "last", ref_vatp, 0},
    {"vatp", "query=text", "text", ref_vatp, 0},
    {"sparsevlm", "recycle=0", "", ref_sparsevlm, 0},
};
enum { N_SCORED = sizeof scored / sizeof scored[0] };

/* Every count from 1 to N against the sorted reference scores. */
TEST(scores_and_counts) {
    for (int f = 0; f < N_SHAPES; f++) {
        struct prompt p;
        prompt_make(&p, &shapes[f], (uint64_t)f + 100);
        for (int c = 0; c < N_SCORED; c++) {
            const struct scored *m = &scored[c];
            double s[PROMPT_MAX], most = 0;
            m->score(&p, m->mode, s);
            int32_t pool = m->separators ? p.n_image : p.n_visual;
            for (int32_t n = 1; n <= pool; n++) {
                uint8_t free[PROMPT_MAX], kept[PROMPT_MAX];
                struct iwp_params q = params_of(m->method, m->options, n);
                prompt_select(&q, &p.in, NULL, NULL, &res);
                for (int32_t i = 0; i < p.n_visual; i++)
                    free[i] = !(m->separators && p.code[p.at[i]] == IWP_CODE_SEPARATOR);
                ref_top(s, free, p.n_visual, n, NULL);
                memset(kept, 0, sizeof kept);
                for (int32_t i = 0; i < res.sel.n_keep; i++) kept[res.keep[i]] = 1;
                int wrong = 0;
                for (int32_t i = 0; i < p.n_visual; i++) wrong += kept[i] == free[i];
                /* exempt separators were not free, and stay */
                CHECK_MSG(res.rc == 0 && wrong == 0, "%s %s shape %d keep %d: %d differ %s",
                          m->method, m->options, f, n, wrong, res.err.msg);
                CHECK_INT(res.sel.n_keep, n + (m->separators ? p.n_visual - p.n_image : 0));
            }
            for (int32_t i = 0; i < p.n_visual; i++) most = fmax(most, fabs(s[i]));
            for (int32_t i = 0; i < p.n_visual; i++) {
                double want = m->separators && p.code[p.at[i]] == IWP_CODE_SEPARATOR ? 0 : s[i];
                CHECK_NEAR(res.scores[i], want, 3e-6 * most);
            }
        }
        prompt_free(&p);
    }
}

/* Density peaks in straight loops: cluster of each of m rows, centres. */
static void ref_peaks(const struct iwp_array *x, const int32_t *row, int32_t m, int32_t c,
                      int32_t *centre, int32_t *near) {
    static double d2[400][400], rho[400], score[400];
    double dmax = 0;
    for (int32_t i = 0; i < m; i++)
        for (int32_t j = 0; j < m; j++) {
            d2[i][j] = 0;
            int32_t a = i < j ? i : j, b = i < j ? j : i;
            for (int32_t t = 0; t < x->n_dim; t++)
                d2[i][j] += pow(at(x, row[a], 0, t) - at(x, row[b], 0, t), 2) / x->n_dim;
            dmax = fmax(dmax, sqrt(d2[i][j]));
        }
    for (int32_t i = 0; i < m; i++) {
        uint8_t free[400];
        double neg[400], sum = 0;
        int32_t pick[400];
        for (int32_t j = 0; j < m; j++) free[j] = 1, neg[j] = -d2[i][j];
        ref_top(neg, free, m, c, pick);
        for (int32_t j = 0; j < c; j++) sum += d2[i][pick[j]];
        rho[i] = exp(-sum / c);
    }
    for (int32_t i = 0; i < m; i++) {
        double delta = -1;
        for (int32_t j = 0; j < m; j++)
            if ((rho[j] > rho[i] || (rho[j] == rho[i] && j < i)) &&
                (delta < 0 || sqrt(d2[i][j]) < delta))
                delta = sqrt(d2[i][j]);
        score[i] = rho[i] * (delta < 0 ? dmax : delta);
    }
    uint8_t free[400];
    memset(free, 1, sizeof free);
    ref_top(score, free, m, c, centre);
    for (int32_t i = 0; i < m; i++) {
        near[i] = 0;
        for (int32_t k = 1; k < c; k++)
            if (d2[i][centre[k]] < d2[i][centre[near[i]]]) near[i] = k;
    }
    for (int32_t k = 0; k < c; k++) near[centre[k]] = k;
}

TEST(sparsevlm_recycling) {
    for (int f = 0; f < N_SHAPES; f++)
        for (int published = 0; published < 2; published++) {
            struct prompt p;
            prompt_make(&p, &shapes[f], (uint64_t)f + 500);
            double s[PROMPT_MAX];
            ref_sparsevlm(&p, "", s);
            int32_t n = p.n_visual;
            for (int32_t keep = 1; keep <= n; keep++) {
                int32_t k = keep, m = 0, c = 0;
                if (published) k = keep < n - 1 ? keep : n - 1 > 0 ? n - 1 : 1;
                if (published && k < n) m = (int32_t)(.3 * (n - k)) + 1, c = m / 10 + 1;
                if (!published && k < n) {
                    for (k = keep - 1; k > 0; k--) {
                        m = (int32_t)(.3 * (n - k)) + 1, c = m / 10 + 1;
                        if (k + c == keep) break;
                    }
                    if (!k) k = keep, m = c = 0;
                }
                uint8_t free[PROMPT_MAX], kept[PROMPT_MAX] = {0};
                int32_t pick[PROMPT_MAX], row[400], centre[400], near[400];
                float weight[PROMPT_MAX] = {0};
                int32_t to[PROMPT_MAX];
                memset(free, 1, sizeof free);
                ref_top(s, free, n, k, pick);
                for (int32_t i = 0; i < k; i++) kept[pick[i]] = 1;
                ref_top(s, free, n, m, pick);
                for (int32_t i = 0; i < m; i++) row[i] = p.at[pick[i]];
                if (c) ref_peaks(&p.in.arr[IWP_TENSOR_H], row, m, c, centre, near);
                for (int32_t i = 0; i < m; i++) {
                    int32_t size = 0;
                    for (int32_t j = 0; j < m; j++) size += near[j] == near[i];
                    to[pick[i]] = pick[centre[near[i]]];
                    kept[to[pick[i]]] = 1;
                    weight[pick[i]] = (float)(1 / (size + 1e-6));
                }
                struct iwp_params q = params_of("sparsevlm", "", keep);
                if (published) q.budget.rule = IWP_RULE_AS_PUBLISHED;
                prompt_select(&q, &p.in, NULL, NULL, &res);
                CHECK_INT(res.sel.n_keep, k + c);
                CHECK_INT(res.sel.n_merge, m);
                for (int32_t i = 0; i < res.sel.n_keep; i++)
                    CHECK_MSG(kept[res.keep[i]], "shape %d keep %d: %d", f, keep, res.keep[i]);
                for (int32_t i = 0; i < res.sel.n_merge; i++) {
                    CHECK_INT(res.merge[i].to, to[res.merge[i].from]);
                    CHECK_NEAR(res.merge[i].weight, weight[res.merge[i].from], 1e-7);
                }
            }
            prompt_free(&p);
        }
}

/* Version 2: probabilities freed of the position factor, the best heads only. */
TEST(sparsevlm_version_2) {
    for (int f = 0; f < N_SHAPES; f++) {
        struct prompt p;
        prompt_make(&p, &shapes[f], (uint64_t)f + 900);
        const struct iwp_array *q = &p.in.arr[IWP_TENSOR_Q_ROPE_PREV],
                               *k = &p.in.arr[IWP_TENSOR_K_ROPE_PREV];
        static int64_t pos[PROMPT_MAX];
        for (int32_t i = 0; i < p.in.n; i++) pos[i] = i * 3 + i % 2;
        p.in.pos = pos;
        p.in.n_pos = 1;
        int32_t rater[PROMPT_MAX], n = ref_raters(&p, rater), heads = q->n_head < 5 ? q->n_head : 5;
        static double col[32][PROMPT_MAX];
        double prob[PROMPT_MAX], total[32] = {0}, s[PROMPT_MAX] = {0}, most = 0;
        for (int32_t h = 0; h < q->n_head; h++) {
            for (int32_t i = 0; i < p.n_visual; i++) col[h][i] = 0;
            for (int32_t r = 0; r < n; r++) {
                attend(q, k, rater[r], h, prob);
                for (int32_t i = 0; i < p.n_visual; i++) {
                    double x = (double)(pos[rater[r]] - pos[p.at[i]]), g = 0;
                    for (int32_t m = 0; m < q->n_dim / 2; m++)
                        g += cos(x * pow(1e4, -2.0 * m / q->n_dim));
                    g = fmax(g * 2 / sqrt(q->n_dim), .01 * sqrt(q->n_dim));
                    col[h][i] += prob[p.at[i]] / g;
                    total[h] += prob[p.at[i]] / g;
                }
            }
        }
        uint8_t free[32];
        int32_t best[32];
        memset(free, 1, sizeof free);
        ref_top(total, free, q->n_head, heads, best);
        for (int32_t i = 0; i < p.n_visual; i++)
            for (int32_t h = 0; h < heads; h++) s[i] += col[best[h]][i] / heads / n;
        struct iwp_params o = params_of("sparsevlm", "version=2,heads=5,rope-base=10000", 1);
        CHECK_INT(prompt_select(&o, &p.in, NULL, NULL, &res), 0);
        CHECK_INT(res.sel.n_merge, 0);
        for (int32_t i = 0; i < p.n_visual; i++) most = fmax(most, s[i]);
        for (int32_t i = 0; i < p.n_visual; i++) CHECK_NEAR(res.scores[i], s[i], 3e-6 * most);
        prompt_free(&p);
    }
}

/* Version 1.0: few raters over many tokens have the rank of their number. */
TEST(sparsevlm_rank_count) {
    struct prompt p;
    prompt_make(&p, &shapes[4], 77);
    int32_t rater[PROMPT_MAX], n = ref_raters(&p, rater);
    struct iwp_params o = params_of("sparsevlm", "rank=1,rank-scale=1.5,rank-bias=2", 1);
    CHECK_INT(prompt_select(&o, &p.in, NULL, NULL, &res), 0);
    int32_t keep = (int32_t)(n * 1.5 + 2), m = (int32_t)(.3 * (p.n_visual - keep)) + 1;
    CHECK_INT(res.sel.n_keep, keep + m / 10 + 1);
    o = params_of("sparsevlm", "rank=1,version=2", 1);
    CHECK(prompt_select(&o, &p.in, NULL, NULL, &res) < 0 && strstr(res.err.msg, "rank=1"));
    prompt_free(&p);
}

static double ref_cosine(const struct prompt *p, int32_t a, int32_t b) {
    const struct iwp_array *h = &p->in.arr[IWP_TENSOR_H], *w = &p->in.arr[IWP_TENSOR_FINAL_NORM];
    double xy = 0, xx = 0, yy = 0;
    for (int32_t t = 0; t < h->n_dim; t++) {
        double f = w->data ? at(w, 0, 0, t) : 1, x = at(h, a, 0, t) * f, y = at(h, b, 0, t) * f;
        xy += x * y, xx += x * x, yy += y * y;
    }
    double c = xx > 0 && yy > 0 ? xy / sqrt(xx) / sqrt(yy) : 0;
    return c > 1 - 1e-6 ? 1 : c;
}

TEST(dart_loops) {
    for (int f = 0; f < N_SHAPES; f++)
        for (int variant = 0; variant < 4; variant++) {
            struct prompt p;
            prompt_make(&p, &shapes[f], (uint64_t)f + 300);
            if (variant & 1) p.in.arr[IWP_TENSOR_FINAL_NORM].data = NULL;
            const struct iwp_array *k = &p.in.arr[IWP_TENSOR_K_ROPE_PREV];
            int32_t n = p.n_visual, first = p.at[n - 1] + 1, nt = p.in.n - first;
            double l1[PROMPT_MAX] = {0}, text[PROMPT_MAX];
            for (int32_t i = 0; i < p.in.n; i++)
                for (int32_t g = 0; g < k->n_head; g++)
                    for (int32_t t = 0; t < k->n_dim; t++) l1[i] += fabs(at(k, i, g, t));
            for (int32_t keep = 1; keep <= n; keep++) {
                uint8_t free[PROMPT_MAX], ft[PROMPT_MAX];
                double s[PROMPT_MAX];
                int32_t pivot[8], pick[8], pi = keep < 3 ? keep : 3, pt = nt < 4 ? nt : 4;
                memset(free, 1, sizeof free);
                memset(ft, 1, sizeof ft);
                for (int32_t i = 0; i < n; i++) s[i] = l1[p.at[i]];
                for (int32_t i = 0; i < nt; i++) text[i] = l1[first + i];
                ref_top(s, free, n, pi, pick);
                for (int32_t i = 0; i < pi; i++) pivot[i] = p.at[pick[i]];
                ref_top(text, ft, nt, pt, pick);
                for (int32_t i = 0; i < pt; i++) pivot[pi + i] = first + pick[i];
                int32_t left = keep - pi, np = pi + pt, total = pi;
                for (int32_t j = 0; j < np; j++) {
                    int32_t t = variant & 2 ? keep / np : left / np + (j < left % np);
                    if (t > n - total) t = n - total;
                    for (int32_t i = 0; i < n; i++) s[i] = -ref_cosine(&p, pivot[j], p.at[i]);
                    ref_top(s, free, n, t, NULL);
                    total += t;
                }
                struct iwp_params q = params_of("dart", "pivots-image=3", keep);
                if (variant & 2) q.budget.rule = IWP_RULE_AS_PUBLISHED;
                prompt_select(&q, &p.in, NULL, NULL, &res);
                CHECK_INT(res.sel.n_keep, total);
                for (int32_t i = 0; i < res.sel.n_keep; i++)
                    CHECK_MSG(!free[res.keep[i]], "dart shape %d keep %d: %d", f, keep,
                              res.keep[i]);
            }
            prompt_free(&p);
        }
}

/* Stage 1 sees the survivors only: its raters are those of stage 0, without embeddings. */
TEST(sparsevlm_state) {
    struct prompt p, rest;
    prompt_make(&p, &shapes[0], 21);
    struct iwp_params q = params_of("sparsevlm", "recycle=0", 15);
    int64_t bytes = iwp_select_state(&q, &p.in);
    CHECK(bytes > 0);
    void *state = calloc(1, (size_t)bytes);
    CHECK_INT(prompt_select(&q, &p.in, state, NULL, &res), 0);
    prompt_codes(&rest, 3, 15, 6, 0);
    for (int t = IWP_TENSOR_Q_ROPE_PREV; t <= IWP_TENSOR_K_ROPE_PREV; t++) {
        const struct iwp_array *x = &p.in.arr[t];
        float *to = prompt_add(&rest, (enum iwp_tensor)t, 0, x->n_head, x->n_dim);
        size_t per = (size_t)x->n_head * (size_t)x->n_dim;
        for (int32_t i = 0; i < rest.in.n; i++) {
            int32_t from = i < 3 ? i : i < 18 ? p.at[res.keep[i - 3]] : i + 15;
            memcpy(to + (size_t)i * per, p.data[t] + (size_t)from * per, per * sizeof(float));
        }
    }
    rest.in.stage = 1;
    q.budget.n_keep = 6;
    CHECK_INT(prompt_select(&q, &rest.in, state, NULL, &res2), 0);
    int32_t rater[PROMPT_MAX], n = ref_raters(&p, rater);
    double prob[PROMPT_MAX], s[15] = {0};
    for (int32_t r = 0; r < n; r++)
        for (int32_t h = 0; h < 4; h++) {
            attend(&rest.in.arr[IWP_TENSOR_Q_ROPE_PREV], &rest.in.arr[IWP_TENSOR_K_ROPE_PREV],
                   rater[r] - 15, h, prob);
            for (int i = 0; i < 15; i++) s[i] += prob[3 + i] / 4 / n;
        }
    for (int i = 0; i < 15; i++) CHECK_NEAR(res2.scores[i], s[i], 1e-6);
    CHECK(prompt_select(&q, &rest.in, NULL, NULL, &res2) < 0);
    CHECK(strstr(res2.err.msg, "stage 0") != NULL);
    free(state);
    prompt_free(&p);
    prompt_free(&rest);
}

int main(void) {
    test_scores_and_counts();
    test_sparsevlm_recycling();
    test_sparsevlm_version_2();
    test_sparsevlm_rank_count();
    test_dart_loops();
    test_sparsevlm_state();
    return test_done();
}
