/* SparseVLM: text tokens that the picture agrees with ("raters") rate the visual tokens by attention;
 * a part of the dropped ones is recycled into cluster means (methods-in-llm 4, pins L 4.2-4.6).
 * Version 1.5 is the default, rank=1 is version 1.0's count, version=2 is "SparseVLM+".  Raters are
 * chosen once, at stage 0, and kept in the state for the later stages. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/attention.h"
#include "prune/methods.h"
#include "prune/rank.h"
#include "prune/schedule.h"
#include "prune/sparsevlm_parts.h"

enum { VERSION_1_5, VERSION_2 };

struct sparsevlm_options {
    int32_t version, recycle, cluster_size, rank, heads;
    double recycle_ratio, rank_scale, rank_bias, rope_base;
};

#define AT(field) offsetof(struct sparsevlm_options, field)
static const struct iwp_option options[] = {
    {.name = "version",
     .type = IWP_OPTION_ENUM,
     .offset = AT(version),
     .choices = (const char *const[]){"1.5", "2", NULL},
     .text = "1.5, or 2: attention freed of the position bias, best heads only, no recycling"},
    {.name = "recycle",
     .type = IWP_OPTION_INT,
     .offset = AT(recycle),
     .def = -1,
     .min = -1,
     .max = 1,
     .def_text = "1 (version 2: 0)",
     .text = "merge a part of the dropped tokens into cluster means; -1: 1, for version 2 0"},
    {.name = "recycle-ratio",
     .type = IWP_OPTION_REAL,
     .offset = AT(recycle_ratio),
     .def = 0.3,
     .min = 0,
     .max = 1,
     .text = "share of the dropped tokens that is recycled"},
    {.name = "cluster-size",
     .type = IWP_OPTION_INT,
     .offset = AT(cluster_size),
     .def = 10,
     .min = 1,
     .max = 1e6,
     .text = "recycled tokens per cluster"},
    {.name = "rank",
     .type = IWP_OPTION_BOOL,
     .offset = AT(rank),
     .max = 1,
     .text =
         "version 1.0: the count follows from the rank of the raters' attention, not the budget"},
    {.name = "rank-scale",
     .type = IWP_OPTION_REAL,
     .offset = AT(rank_scale),
     .def = 13.5,
     .min = 0,
     .max = 1e6,
     .text = "rank=1: tokens kept per unit of rank"},
    {.name = "rank-bias",
     .type = IWP_OPTION_REAL,
     .offset = AT(rank_bias),
     .min = -1e6,
     .max = 1e6,
     .text = "rank=1: tokens kept on top"},
    {.name = "heads",
     .type = IWP_OPTION_INT,
     .offset = AT(heads),
     .def = 14,
     .min = 1,
     .max = 1e6,
     .text = "version 2: heads that count, at most"},
    {.name = "rope-base",
     .type = IWP_OPTION_REAL,
     .offset = AT(rope_base),
     .def = 1e6,
     .min = 1,
     .max = 1e12,
     .text = "version 2: base of the model's rotary embedding"},
    {.name = NULL},
};
#undef AT

static const struct sparsevlm_options *options_of(const struct iwp_params *p) {
    return IWP_OPTIONS(sparsevlm_options, p);
}

static int recycles(const struct sparsevlm_options *o) {
    return o->recycle < 0 ? o->version != VERSION_2 : o->recycle;
}

/* ---- interface ------------------------------------------------------------------------------------ */

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_Q_ROPE_PREV, IWP_ROWS_TEXT_AFTER, 0);
    n = iwp_need_add(out, n, cap, IWP_TENSOR_K_ROPE_PREV, IWP_ROWS_ALL, 0);
    if (stage == 0) {
        n = iwp_need_add(out, n, cap, IWP_TENSOR_EMBEDS, IWP_ROWS_VISUAL, 0);
        n = iwp_need_add(out, n, cap, IWP_TENSOR_EMBEDS, IWP_ROWS_TEXT_AFTER, 0);
    }
    if (recycles(options_of(p))) n = iwp_need_add(out, n, cap, IWP_TENSOR_H, IWP_ROWS_VISUAL, 0);
    return n;
}

/* What later stages know of stage 0: the text after the picture is the tail of every prompt. */
struct raters {
    int32_t n_text;
    uint8_t is_rater[];
};

static int64_t state_bytes(const struct iwp_params *p, const struct iwp_input *in) {
    (void)p;
    return (int64_t)sizeof(struct raters) + in->n;
}

static int check(const struct iwp_view *v, iwp_err *err) {
    const struct sparsevlm_options *o = options_of(v->params);
    IWP_TRY(iwp_rank_check_heads(v->in, IWP_TENSOR_K_ROPE_PREV, err));
    IWP_REQUIRE(
        !(o->rank && o->version == VERSION_2), err, IWP_EINVAL,
        "option rank=1 of method sparsevlm is version 1.0's, it does not go with version=2");
    IWP_REQUIRE(v->last_visual < v->n - 1, err, IWP_EINVAL,
                "sparsevlm: the prompt has no text after its last visual token");
    return 0;
}

/* Published lists for 576 tokens at an average of 192, 128, 96, 64: kept after layers 2, 6, 15. */
static const double nominal[] = {192, 128, 96, 64};
static const int32_t lists[2][4][3] = {
    {{300, 200, 110}, {303, 110, 36}, {238, 48, 26}, {66, 30, 17}},
    {{300, 200, 118}, {238, 108, 60}, {246, 54, 28}, {66, 34, 20}},
};

/* Shape times a strength, at least one token, at most all. */
static void family(const struct iwp_schedule *s, double u, double n_token, double *count) {
    double f = u < 1 ? u / (1 - u) : 1e300, c = n_token;
    for (int32_t k = 0; k < s->n; k++) {
        double x = f >= 1e300 ? n_token : f * s->shape[k] * n_token;
        count[k] = c = fmax(1, fmin(c, x));
    }
}

/* Layers 2, 6, 15 (version 1.0 also 19) prune their output, so the cuts lie one further; shallower
 * decoders than 28 layers get them in proportion.  Between the published lists shapes are linear. */
static int plan(const struct iwp_params *p, const struct iwp_plan_shape *s, struct iwp_stage *out,
                int cap, iwp_err *err) {
    const struct sparsevlm_options *o = options_of(p);
    struct iwp_schedule t = {.family = family};
    int32_t layer[] = {3, 7, 16, 20}, n = iwp_plan_pool(p, s), count[IWP_STAGE_MAX];
    for (int k = 0; k < 4; k++)
        if (s->n_layer < 28) layer[k] = (int32_t)(layer[k] * s->n_layer / 28.0 + 0.5);
    if (layer[0] < 1) layer[0] = 1;
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "there is no visual token to prune");
    IWP_TRY(iwp_budget_check(&p->budget, n, err));
    iwp_schedule_layers(&t, p, s->n_layer, layer, o->rank ? 4 : 3);
    if (o->rank) { /* at most; the data decide */
        for (int32_t k = 0; k < t.n; k++) count[k] = n;
        return iwp_schedule_write(&t, count, out, cap, err);
    }
    enum iwp_budget_rule rule = iwp_schedule_rule(p);
    double keep = p->budget.n_keep ? (double)p->budget.n_keep / n : p->budget.keep;
    const int32_t(*list)[3] = lists[o->version == VERSION_2];
    if (rule == IWP_RULE_AS_PUBLISHED) {
        int best = 0;
        for (int i = 1; i < 4; i++)
            if (fabs(nominal[i] / 576 - keep) < fabs(nominal[best] / 576 - keep)) best = i;
        for (int32_t k = 0; k < t.n; k++) {
            int32_t x = (int32_t)(list[best][k] * (n / 576.0));
            count[k] = p->layer >= 0 ? iwp_schedule_truncate(&p->budget, n) : x < 1 ? 1 : x;
        }
        return iwp_schedule_write(&t, count, out, cap, err);
    }
    double target = iwp_schedule_target(p, rule, s->n_layer, n) * 576;
    int i = 0;
    while (i < 2 && target < nominal[i + 1]) i++;
    double w = (target - nominal[i + 1]) / (nominal[i] - nominal[i + 1]);
    w = w < 0 ? 0 : w > 1 ? 1 : w;
    for (int32_t k = 0; k < t.n; k++)
        t.shape[k] = (w * list[i][k] + (1 - w) * list[i + 1][k]) / 576;
    return iwp_schedule_solve(&t, p, s, out, cap, err);
}

/* ---- raters ---------------------------------------------------------------------------------------- */

enum { TOKENS = 10 * IWP_BLOCK, SLICE = 256 }; /* tokens per task; dims per float chain */

/* Text tokens are packed into panels of 32 lanes, visual ones come in blocks of twelve. */
struct rater_job {
    const struct iwp_view *v;
    int32_t first, n_text, d, n_task, width; /* width: n_text in whole panels */
    float *panel, *text_row;                 /* [panels][d][32], per panel [d] */
    float *block;                            /* per task [d][12] and two rows [d] */
    double *logit, *part;                    /* per task [12][width], [n_text] */
    double *weight;                          /* [n_text] out: mean of the softmax */
};

static void pack_text(void *arg, int32_t p) {
    struct rater_job *j = arg;
    const struct iwp_array *e = &j->v->in->arr[IWP_TENSOR_EMBEDS];
    float *to = j->panel + (size_t)p * IWP_PANEL * (size_t)j->d,
          *tmp = j->text_row + (size_t)p * (size_t)j->d;
    for (int32_t l = 0; l < IWP_PANEL; l++) {
        int32_t k = p * IWP_PANEL + l;
        const float *x = k < j->n_text ? iwp_array_row(e, j->first + k, 0, tmp) : NULL;
        for (int32_t t = 0; t < j->d; t++) to[(size_t)t * IWP_PANEL + (size_t)l] = x ? x[t] : 0;
    }
}

/* A float chain that overflowed: the whole product in double. */
static double full_dot(const struct rater_job *j, int32_t token, int32_t text, float *tmp) {
    const struct iwp_array *e = &j->v->in->arr[IWP_TENSOR_EMBEDS];
    const float *x = iwp_array_row(e, token, 0, tmp),
                *y = iwp_array_row(e, j->first + text, 0, tmp + j->d);
    double s = 0;
    for (int32_t t = 0; t < j->d; t++) s += (double)x[t] * (double)y[t];
    return s;
}

/* logit [n][width]: dots of n ≤ 12 visual tokens with all text tokens. */
static void text_dots(const struct rater_job *j, int32_t i0, int32_t n, float *block,
                      double *logit) {
    const struct iwp_kern *kern = iwp_kern_get();
    const struct iwp_array *e = &j->v->in->arr[IWP_TENSOR_EMBEDS];
    float out[IWP_BLOCK * IWP_PANEL], *tmp = block + IWP_BLOCK * (size_t)j->d;
    size_t w = (size_t)j->width;
    for (int32_t r = 0; r < n; r++) {
        const float *x = iwp_array_row(e, j->v->pool[i0 + r], 0, tmp);
        for (int32_t t = 0; t < j->d; t++) block[(size_t)t * (size_t)n + (size_t)r] = x[t];
    }
    memset(logit, 0, sizeof(double) * (size_t)n * w);
    for (int32_t t = 0; t < j->d; t += SLICE)
        for (int32_t p = 0; p < j->width / IWP_PANEL; p++) {
            const float *panel = j->panel + ((size_t)p * (size_t)j->d + (size_t)t) * IWP_PANEL;
            kern->panel_dots(out, panel, block + (size_t)t * (size_t)n, n,
                             j->d - t < SLICE ? j->d - t : SLICE);
            for (int32_t r = 0; r < n; r++)
                for (int32_t l = 0; l < IWP_PANEL; l++)
                    logit[(size_t)r * w + (size_t)(p * IWP_PANEL + l)] +=
                        (double)out[r * IWP_PANEL + l];
        }
    for (int32_t r = 0; r < n; r++)
        for (int32_t k = 0; k < j->n_text; k++)
            if (!(fabs(logit[(size_t)r * w + (size_t)k]) <= 1e37))
                logit[(size_t)r * w + (size_t)k] = full_dot(j, j->v->pool[i0 + r], k, tmp);
}

static void rate_tokens(void *arg, int32_t task) {
    struct rater_job *j = arg;
    size_t nt = (size_t)j->n_text, w = (size_t)j->width;
    float *block = j->block + (size_t)task * (IWP_BLOCK + 2) * (size_t)j->d;
    double *part = j->part + (size_t)task * nt, *logit = j->logit + (size_t)task * IWP_BLOCK * w;
    int32_t end = (task + 1) * TOKENS < j->v->n_pool ? (task + 1) * TOKENS : j->v->n_pool;
    memset(part, 0, sizeof(double) * nt);
    for (int32_t i = task * TOKENS; i < end; i += IWP_BLOCK) {
        int32_t n = end - i < IWP_BLOCK ? end - i : IWP_BLOCK;
        text_dots(j, i, n, block, logit);
        for (int32_t r = 0; r < n; r++) {
            double *l = logit + (size_t)r * w, top = l[0], sum = 0;
            for (int32_t k = 1; k < j->n_text; k++) top = l[k] > top ? l[k] : top;
            for (int32_t k = 0; k < j->n_text; k++) sum += l[k] = iwp_math_exp(l[k] - top);
            for (int32_t k = 0; k < j->n_text; k++) part[k] += l[k] / sum;
        }
    }
}

static void rater_layout(struct rater_job *j, const struct iwp_view *v, struct iwp_arena *m) {
    memset(j, 0, sizeof *j);
    j->v = v;
    j->first = v->last_visual + 1;
    j->n_text = v->n - j->first;
    j->width = (j->n_text + IWP_PANEL - 1) / IWP_PANEL * IWP_PANEL;
    j->d = v->in->arr[IWP_TENSOR_EMBEDS].n_dim;
    j->n_task = (v->n_pool + TOKENS - 1) / TOKENS;
    size_t w = (size_t)j->width, tasks = (size_t)j->n_task, d = (size_t)j->d;
    j->panel = IWP_TAKE(m, float, w *d);
    j->text_row = IWP_TAKE(m, float, w / IWP_PANEL * d);
    j->block = IWP_TAKE(m, float, tasks *(IWP_BLOCK + 2) * d);
    j->logit = IWP_TAKE(m, double, tasks *IWP_BLOCK *w);
    j->part = IWP_TAKE(m, double, tasks *(size_t)j->n_text);
    j->weight = IWP_TAKE(m, double, j->n_text);
}

/* A rater's mean share of the softmax is above average; when none is, all text tokens rate. */
static void choose_raters(struct rater_job *j, struct raters *r) {
    int32_t n = 0;
    iwp_parallel(j->v->exec, pack_text, j, j->width / IWP_PANEL);
    iwp_parallel(j->v->exec, rate_tokens, j, j->n_task);
    r->n_text = j->n_text;
    for (int32_t k = 0; k < j->n_text; k++) {
        double w = 0;
        for (int32_t t = 0; t < j->n_task; t++)
            w += j->part[(size_t)t * (size_t)j->n_text + (size_t)k];
        j->weight[k] = w / j->v->n_pool;
        r->is_rater[k] = j->n_text * j->weight[k] > 1 + 1e-6;
        n += r->is_rater[k];
    }
    if (n == 0) memset(r->is_rater, 1, (size_t)j->n_text);
}

/* ---- scores ----------------------------------------------------------------------------------------- */

/* Version 2: what each probability is divided by.  Distances repeat, so a table of their remainders
 * saves most of the cosines. */
static void fill_divisor(const struct iwp_view *v, const struct iwp_attention *a, float *divisor,
                         double *seen, double *value) {
    double base = options_of(v->params)->rope_base;
    const int64_t *pos = v->in->pos;
    for (int32_t i = 0; i < v->n; i++) seen[i] = -1;
    for (int32_t r = 0; r < a->n_row; r++) {
        float *out = divisor + (size_t)r * (size_t)a->n_key;
        for (int32_t i = 0; i < a->n_key; i++) out[i] = 1;
        for (int32_t i = 0; i < v->n_pool; i++) {
            int32_t q = a->row[r], k = v->pool[i];
            double x = fabs((pos ? (double)pos[q] : q) - (pos ? (double)pos[k] : k));
            int32_t slot = (int32_t)fmod(x, v->n);
            if (seen[slot] != x) {
                seen[slot] = x;
                value[slot] = iwp_sparse_position_factor(x, a->d, base);
            }
            out[k] = (float)value[slot];
        }
    }
}

struct work {
    struct iwp_attention a;
    struct rater_job rate;
    struct iwp_peaks peaks;
    struct raters *raters; /* own copy when the caller keeps none */
    int32_t *row, *idx, *pick;
    double *score, *head, *seen, *value, *matrix, *gram, *gram_work;
    float *divisor;
};

/* Mean over raters and heads; version 2 over its best heads only. */
static void score_tokens(struct iwp_view *v, struct work *w) {
    const struct sparsevlm_options *o = options_of(v->params);
    struct iwp_attention *a = &w->a;
    if (o->version == VERSION_2) {
        fill_divisor(v, a, w->divisor, w->seen, w->value);
        a->divisor = w->divisor;
    }
    iwp_attention_run(a);
    if (o->version != VERSION_2) {
        iwp_attention_head_sum(a, v->pool, v->n_pool, 1.0 / ((double)a->n_head * a->n_row),
                               w->score);
        return;
    }
    for (int32_t h = 0; h < a->n_head; h++) {
        w->head[h] = 0;
        w->idx[h] = h;
        for (int32_t i = 0; i < v->n_pool; i++)
            w->head[h] += a->sum[(size_t)h * (size_t)a->width + (size_t)v->pool[i]];
    }
    int32_t n = o->heads < a->n_head ? o->heads : a->n_head;
    iwp_top_k(w->head, w->idx, a->n_head, n);
    for (int32_t i = 0; i < v->n_pool; i++) {
        double s = 0;
        for (int32_t k = 0; k < n; k++)
            s += a->sum[(size_t)w->idx[k] * (size_t)a->width + (size_t)v->pool[i]];
        w->score[i] = s / ((double)n * a->n_row);
    }
}

/* Version 1.0: rank of the raters' head-mean attention on the tokens of one unit. */
static int32_t unit_rank(const struct iwp_view *v, struct work *w, int32_t first, int32_t n) {
    const struct iwp_attention *a = &w->a;
    int32_t r = a->n_row, small = r < n ? r : n;
    for (int32_t t = 0; t < r; t++)
        for (int32_t i = 0; i < n; i++) {
            double s = 0;
            for (int32_t g = 0; g < a->n_group; g++)
                s += (double)
                         a->rows[((size_t)g * (size_t)a->cap_row + (size_t)t) * (size_t)a->width +
                                 (size_t)v->pool[first + i]];
            w->matrix[(size_t)t * (size_t)n + (size_t)i] = s / a->n_head;
        }
    for (int32_t i = 0; i < small; i++)
        for (int32_t j = i; j < small; j++) {
            double s = 0;
            if (r <= n)
                for (int32_t k = 0; k < n; k++)
                    s += w->matrix[(size_t)i * (size_t)n + (size_t)k] *
                         w->matrix[(size_t)j * (size_t)n + (size_t)k];
            else
                for (int32_t k = 0; k < r; k++)
                    s += w->matrix[(size_t)k * (size_t)n + (size_t)i] *
                         w->matrix[(size_t)k * (size_t)n + (size_t)j];
            w->gram[(size_t)i * (size_t)small + (size_t)j] = s;
            w->gram[(size_t)j * (size_t)small + (size_t)i] = s;
        }
    return iwp_sparse_rank(w->gram, small, r > n ? r : n, w->gram_work);
}

/* ---- selection -------------------------------------------------------------------------------------- */

static void recycle_counts(const struct sparsevlm_options *o, int32_t n, int32_t kept, int32_t *m,
                           int32_t *c) {
    *m = (int32_t)(o->recycle_ratio * (n - kept)) + 1;
    if (*m > n - kept) *m = n - kept;
    *c = *m / o->cluster_size + 1;
    if (*c > *m) *c = *m;
}

static void select_unit(struct iwp_view *v, struct work *w, int32_t u) {
    const struct sparsevlm_options *o = options_of(v->params);
    int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first, keep = v->unit_keep[u];
    int32_t m = 0, c = 0;
    int on_top = v->as_published || o->rank;
    if (o->rank) {
        int32_t rank = unit_rank(v, w, first, n);
        double x = rank * o->rank_scale + o->rank_bias;
        keep = rank == n ? n : x < 1 ? 1 : x > n ? n : (int32_t)x;
        on_top = rank < n;
    }
    if (on_top) keep = keep > n - 1 ? n - 1 : keep;
    if (keep < 1) keep = 1;
    if (recycles(o) && keep < n) {
        if (on_top)
            recycle_counts(o, n, keep, &m, &c);
        else { /* merged tokens count: the largest k with k + c(k) = M */
            int32_t k = keep - 1;
            for (; k > 0; k--) {
                recycle_counts(o, n, k, &m, &c);
                if (k + c == keep) break;
            }
            if (k > 0)
                keep = k;
            else
                m = c = 0;
        }
    }
    for (int32_t i = 0; i < n; i++) w->idx[i] = first + i;
    iwp_top_k(w->score, w->idx, n, keep + m); /* kept, then recycled: both by falling score */
    for (int32_t i = 0; i < keep; i++) v->chosen[w->idx[i]] = 1;
    if (!c) return;
    const int32_t *from = w->idx + keep;
    for (int32_t i = 0; i < m; i++) w->pick[i] = v->pool[from[i]];
    iwp_peaks_run(&w->peaks, w->pick, m, c);
    for (int32_t k = 0; k < c; k++) w->row[k] = 0; /* the query rows are done with: cluster sizes */
    for (int32_t i = 0; i < m; i++) w->row[w->peaks.near[i]]++;
    for (int32_t k = 0; k < c; k++) {
        int32_t to = from[w->peaks.centre[k]];
        v->chosen[to] = 1;
        for (int32_t i = 0; i < m; i++)
            if (w->peaks.near[i] == k)
                v->merge[v->n_merge++] =
                    (struct iwp_merge){from[i], to, (float)(1 / (w->row[k] + 1e-6))};
    }
}

static int select_sparsevlm(struct iwp_view *v, struct iwp_arena *m, void *state, iwp_err *err) {
    const struct sparsevlm_options *o = options_of(v->params);
    const struct iwp_array *arr = v->in->arr;
    int first_stage = v->in->stage == 0, v2 = o->version == VERSION_2;
    int32_t texts = first_stage ? v->n - 1 - v->last_visual : v->n - v->n_visual;
    size_t n = (size_t)v->n_pool, nt = (size_t)texts;
    struct work w;
    memset(&w, 0, sizeof w);
    w.a = (struct iwp_attention){.q = &arr[IWP_TENSOR_Q_ROPE_PREV],
                                 .k = &arr[IWP_TENSOR_K_ROPE_PREV],
                                 .n_row = texts,
                                 .n_key = v->n,
                                 .wants_rows = o->rank};
    iwp_attention_layout(&w.a, v, m);
    if (first_stage) rater_layout(&w.rate, v, m);
    if (recycles(o)) {
        double most = o->recycle_ratio * v->n_pool + 1;
        iwp_peaks_layout(&w.peaks, v, &arr[IWP_TENSOR_H],
                         most < v->n_pool ? (int32_t)most : v->n_pool, m);
    }
    size_t small = nt < n ? nt : n;
    w.raters = (void *)IWP_TAKE(m, char, sizeof(struct raters) + (size_t)v->n);
    w.row = IWP_TAKE(m, int32_t, nt > n ? nt : n);
    w.idx = IWP_TAKE(m, int32_t, n > (size_t)w.a.n_head ? n : (size_t)w.a.n_head);
    w.pick = IWP_TAKE(m, int32_t, n);
    w.score = IWP_TAKE(m, double, n);
    w.head = IWP_TAKE(m, double, w.a.n_head);
    w.divisor = IWP_TAKE(m, float, v2 ? nt *(size_t)v->n : 0);
    w.seen = IWP_TAKE(m, double, v2 ? v->n : 0);
    w.value = IWP_TAKE(m, double, v2 ? v->n : 0);
    w.matrix = IWP_TAKE(m, double, o->rank ? nt *n : 0);
    w.gram = IWP_TAKE(m, double, o->rank ? small *small : 0);
    w.gram_work = IWP_TAKE(m, double, o->rank ? 2 * small : 0);
    if (iwp_arena_counting(m)) return 0;

    if (state) w.raters = state;
    if (first_stage)
        choose_raters(&w.rate, w.raters);
    else
        IWP_REQUIRE(state && w.raters->n_text > 0 && w.raters->n_text <= texts, err, IWP_EINVAL,
                    "sparsevlm: stage %d needs the state that stage 0 left", v->in->stage);
    w.a.n_row = 0;
    w.a.row = w.row;
    for (int32_t k = 0; k < w.raters->n_text; k++)
        if (w.raters->is_rater[k]) w.row[w.a.n_row++] = v->n - w.raters->n_text + k;
    score_tokens(v, &w);
    iwp_rank_publish(v, w.score);
    for (int32_t u = 0; u < v->n_unit; u++) select_unit(v, &w, u);
    return 0;
}

static int renumbers(const struct iwp_params *p) {
    return IWP_OPTIONS(sparsevlm_options, p)->version != VERSION_2;
}

const struct iwp_method iwp_method_sparsevlm = {
    .info = {.name = "sparsevlm",
             .title = "attention of text raters, dropped tokens recycled",
             .ref = "SparseVLM (Gumpest/SparseVLMs), versions 1.5, 1.0 and 2.0",
             .site = IWP_SITE_LAYER,
             .flags = IWP_METHOD_MULTI_STAGE | IWP_METHOD_MERGES | IWP_METHOD_RENUMBERS,
             .options = options,
             .positions = "compact on LLaVA; original on M-RoPE models and in version 2",
             .rounding = "kept and merged together round-half-even(keep n); as-published: at most "
                         "n-1, merged on top; rank=1: trunc(rank scale + bias)",
             .layer = 3},
    .renumbers_of = renumbers,
    .plan = plan,
    .needs = needs,
    .state = state_bytes,
    .check = check,
    .select = select_sparsevlm,
};
