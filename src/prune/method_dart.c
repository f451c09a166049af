/* DART: a few pivots with long keys; every pivot takes the tokens least like it (methods-diversity 6,
 * pins D 6).  Pivots come from the keys of the layer before the cut, likeness from the stream at the
 * cut under the decoder's final norm, whose division by the RMS cancels in a cosine. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/methods.h"
#include "prune/rank.h"

enum { PIVOT_MAX = 64, CHUNK = 64, ORDER_NORM = 0, ORDER_CPYTHON = 1 };

struct dart_options {
    int32_t pivots_image, pivots_text, pivot_order;
};

static const struct iwp_option options[] = {
    {.name = "pivots-image",
     .type = IWP_OPTION_INT,
     .offset = offsetof(struct dart_options, pivots_image),
     .def = 4,
     .min = 1,
     .max = PIVOT_MAX,
     .text = "visual tokens that serve as pivots; they are kept"},
    {.name = "pivots-text",
     .type = IWP_OPTION_INT,
     .offset = offsetof(struct dart_options, pivots_text),
     .def = 4,
     .min = 0,
     .max = PIVOT_MAX,
     .text = "text tokens that serve as pivots; they only steer"},
    {.name = "pivot-order",
     .type = IWP_OPTION_ENUM,
     .offset = offsetof(struct dart_options, pivot_order),
     .choices = (const char *const[]){"norm", "cpython", NULL},
     .text = "who takes first: longest key first, or the order of the authors' Python set"},
    {.name = NULL},
};

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)stage;
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_K_ROPE_PREV, IWP_ROWS_VISUAL, 0);
    n = iwp_need_add(out, n, cap, IWP_TENSOR_H, IWP_ROWS_VISUAL, 0);
    if (IWP_OPTIONS(dart_options, p)->pivots_text) {
        n = iwp_need_add(out, n, cap, IWP_TENSOR_K_ROPE_PREV, IWP_ROWS_TEXT_AFTER, 0);
        n = iwp_need_add(out, n, cap, IWP_TENSOR_H, IWP_ROWS_TEXT_AFTER, 0);
    }
    return iwp_need_add(out, n, cap, IWP_TENSOR_FINAL_NORM, IWP_ROWS_ALL, 1);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    const struct iwp_array *w = &v->in->arr[IWP_TENSOR_FINAL_NORM];
    IWP_TRY(iwp_rank_check_heads(v->in, IWP_TENSOR_K_ROPE_PREV, err));
    IWP_REQUIRE(!w->data || (w->n_row == 1 && w->n_head == 1), err, IWP_EINVAL,
                "tensor final_norm has %d rows, it must be one", w->n_row);
    if (IWP_OPTIONS(dart_options, v->params)->pivots_text)
        IWP_REQUIRE(v->last_visual < v->n - 1, err, IWP_EINVAL,
                    "dart: the prompt has no text after its last visual token");
    return 0;
}

/* The order in which CPython walks a set of small integers inserted one by one (its table grows with
 * the set; collisions probe nine neighbours, then jump).  The authors loop over such a set. */
static void set_insert(int32_t *table, int32_t size, int32_t value) {
    uint32_t mask = (uint32_t)size - 1, i = (uint32_t)value & mask, perturb = (uint32_t)value;
    for (;;) {
        uint32_t end = i + 9 <= mask ? i + 9 : i;
        for (uint32_t j = i; j <= end; j++)
            if (table[j] < 0) {
                table[j] = value;
                return;
            }
        perturb >>= 5;
        i = (5 * i + 1 + perturb) & mask;
    }
}

static void set_order(int32_t *value, int32_t n) {
    int32_t table[1024], old[1024], size = 8; /* 4 n < 1024 for n ≤ 2 PIVOT_MAX */
    for (int32_t i = 0; i < size; i++) table[i] = -1;
    for (int32_t k = 0; k < n; k++) {
        set_insert(table, size, value[k]);
        int32_t used = k + 1, before = size;
        if (5 * used < 3 * (size - 1)) continue;
        memcpy(old, table, sizeof(int32_t) * (size_t)before);
        for (size = 8; size <= 4 * used;) size *= 2;
        for (int32_t i = 0; i < size; i++) table[i] = -1;
        for (int32_t i = 0; i < before; i++)
            if (old[i] >= 0) set_insert(table, size, old[i]);
    }
    for (int32_t i = 0, k = 0; i < size; i++)
        if (table[i] >= 0) value[k++] = table[i];
}

struct job {
    const struct iwp_view *v;
    const float *weight; /* [D] or NULL */
    float *pivot;        /* [n_pivot][D] */
    double *pivot_norm;  /* [n_pivot] squared */
    int32_t n_pivot, first, n, d;
    float *tmp;   /* two rows per chunk */
    double *dist; /* [n_pivot][n_pool] minus the cosine: larger is taken first */
    double *l1;   /* [n] by prompt position */
    int texts;
};

static void key_norms(void *arg, int32_t c) {
    struct job *j = arg;
    const struct iwp_array *k = &j->v->in->arr[IWP_TENSOR_K_ROPE_PREV];
    float tmp[IWP_HEAD_WIDTH_MAX];
    int32_t end = (c + 1) * CHUNK < j->v->n ? (c + 1) * CHUNK : j->v->n;
    for (int32_t i = c * CHUNK; i < end; i++) {
        int visual =
            j->v->in->code[i] == IWP_CODE_VISUAL || j->v->in->code[i] == IWP_CODE_SEPARATOR;
        j->l1[i] = 0;
        if (!visual && !(j->texts && i > j->v->last_visual)) continue;
        for (int32_t g = 0; g < k->n_head; g++)
            j->l1[i] += iwp_rank_norm1(iwp_array_row(k, i, g, tmp), k->n_dim);
    }
}

/* Row r of the stream times the norm's weight; returns its squared length.  Numbers beyond float's
 * comfort are scaled first, which a cosine does not see. */
static double stream_row(const struct job *j, int32_t r, float *y, float *tmp) {
    const struct iwp_kern *kern = iwp_kern_get();
    const float *x = iwp_array_row(&j->v->in->arr[IWP_TENSOR_H], r, 0, tmp);
    for (int32_t t = 0; t < j->d; t++) y[t] = j->weight ? x[t] * j->weight[t] : x[t];
    float n2 = kern->norm2(y, j->d);
    if (n2 >= 1e-30f && n2 <= 1e30f) return (double)n2;
    double top = 0;
    for (int32_t t = 0; t < j->d; t++)
        top = fmax(top, fabs((double)x[t] * (j->weight ? (double)j->weight[t] : 1)));
    if (top == 0) return 0;
    for (int32_t t = 0; t < j->d; t++)
        y[t] = (float)((double)x[t] * (j->weight ? (double)j->weight[t] : 1) / top);
    return (double)kern->norm2(y, j->d);
}

static void cosines(void *arg, int32_t c) {
    struct job *j = arg;
    float dot[2 * PIVOT_MAX], *y = j->tmp + (size_t)c * 2 * (size_t)j->d;
    int32_t end = (c + 1) * CHUNK < j->n ? (c + 1) * CHUNK : j->n;
    for (int32_t i = c * CHUNK; i < end; i++) {
        double n2 = stream_row(j, j->v->pool[j->first + i], y, y + j->d);
        iwp_kern_get()->dots(dot, y, j->pivot, j->d, j->n_pivot, j->d);
        for (int32_t p = 0; p < j->n_pivot; p++)
            j->dist[(size_t)p * (size_t)j->v->n_pool + (size_t)(j->first + i)] =
                -iwp_rank_cosine((double)dot[p], n2, j->pivot_norm[p]);
    }
}

struct scratch {
    int32_t *idx, *text;
    double *score;
};

/* Pivots of one unit, then every pivot takes its share of what is left. */
static void select_unit(struct job *j, struct iwp_view *v, int32_t u, int32_t n_text,
                        const struct dart_options *o, const struct scratch *s) {
    int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first, m = v->unit_keep[u];
    int32_t n_image = o->pivots_image < m ? o->pivots_image : m, pivot[2 * PIVOT_MAX];
    for (int32_t i = 0; i < n; i++) s->idx[i] = first + i;
    iwp_top_k(s->score, s->idx, n, n_image);
    for (int32_t i = 0; i < n_image; i++) {
        pivot[i] = v->pool[s->idx[i]];
        v->chosen[s->idx[i]] = 1;
    }
    j->n_pivot = n_image + n_text;
    memcpy(pivot + n_image, s->text, sizeof(int32_t) * (size_t)n_text);
    if (o->pivot_order == ORDER_CPYTHON) set_order(pivot, j->n_pivot);
    for (int32_t p = 0; p < j->n_pivot; p++)
        j->pivot_norm[p] = stream_row(j, pivot[p], j->pivot + (size_t)p * (size_t)j->d, j->tmp);
    j->first = first;
    j->n = n;
    iwp_parallel(v->exec, cosines, j, (n + CHUNK - 1) / CHUNK);

    /* The authors truncate keep·N by the number of pivots; a count is taken as it is. */
    const struct iwp_budget *b = &v->params->budget;
    int32_t share = b->n_keep ? m / j->n_pivot : (int32_t)(b->keep * n / j->n_pivot);
    for (int32_t p = 0; p < j->n_pivot; p++) {
        int32_t left = m - n_image, free = 0;
        int32_t quota = v->as_published ? share : left / j->n_pivot + (p < left % j->n_pivot);
        for (int32_t i = first; i < first + n; i++)
            if (!v->chosen[i]) s->idx[free++] = i;
        if (quota > free) quota = free;
        iwp_top_k(j->dist + (size_t)p * (size_t)v->n_pool, s->idx, free, quota);
        for (int32_t i = 0; i < quota; i++) v->chosen[s->idx[i]] = 1;
    }
}

static int select_dart(struct iwp_view *v, struct iwp_arena *m, void *state, iwp_err *err) {
    (void)state;
    (void)err;
    const struct dart_options *o = IWP_OPTIONS(dart_options, v->params);
    const struct iwp_array *w = &v->in->arr[IWP_TENSOR_FINAL_NORM];
    int32_t n_text = v->n - 1 - v->last_visual, pivots, chunks = (v->n_pool + CHUNK - 1) / CHUNK;
    if (o->pivots_text < n_text) n_text = o->pivots_text;
    pivots = o->pivots_image + n_text;
    struct job j = {.v = v, .d = v->in->arr[IWP_TENSOR_H].n_dim, .texts = n_text > 0};
    size_t d = (size_t)j.d;
    float *weight = IWP_TAKE(m, float, d);
    j.pivot = IWP_TAKE(m, float, (size_t)pivots *d);
    j.pivot_norm = IWP_TAKE(m, double, pivots);
    j.tmp = IWP_TAKE(m, float, (size_t)chunks * 2 * d);
    j.dist = IWP_TAKE(m, double, (size_t)pivots *(size_t)v->n_pool);
    j.l1 = IWP_TAKE(m, double, v->n);
    struct scratch s = {.idx = IWP_TAKE(m, int32_t, v->n), .score = IWP_TAKE(m, double, v->n_pool)};
    if (iwp_arena_counting(m)) return 0;

    int32_t text[PIVOT_MAX];
    if (w->data) {
        const float *x = iwp_array_row(w, 0, 0, weight);
        if (x != weight) memcpy(weight, x, sizeof(float) * d);
        j.weight = weight;
    }
    iwp_parallel(v->exec, key_norms, &j, (v->n + CHUNK - 1) / CHUNK);
    for (int32_t i = 0; i < v->n_pool; i++) s.score[i] = j.l1[v->pool[i]];
    int32_t after = v->n - 1 - v->last_visual;
    for (int32_t i = 0; i < after; i++) s.idx[i] = v->last_visual + 1 + i;
    iwp_top_k(j.l1, s.idx, after, n_text);
    memcpy(text, s.idx, sizeof(int32_t) * (size_t)n_text);
    s.text = text;
    iwp_rank_publish(v, s.score);
    for (int32_t u = 0; u < v->n_unit; u++) select_unit(&j, v, u, n_text, o, &s);
    return 0;
}

const struct iwp_method iwp_method_dart = {
    .info = {.name = "dart",
             .title = "tokens least like a few pivots",
             .ref = "DART: Stop Looking for Important Tokens, Duplication Matters More",
             .site = IWP_SITE_LAYER,
             .options = options,
             .positions = "original",
             .rounding = "round-half-even(keep N); as-published: pivots + P floor(M / P)",
             .layer = 2},
    .needs = needs,
    .check = check,
    .select = select_dart,
};
