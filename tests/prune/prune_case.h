/* Random prompts for the tests of the selection library, and a selection with its own memory. */
#ifndef IWP_TEST_PRUNE_CASE_H
#define IWP_TEST_PRUNE_CASE_H

#include "test.h"

#include "base/half.h"
#include "iwp/prune.h"
#include "prune/iwp_ref.h"

struct prompt {
    struct ref_data d; /* clean numbers, already rounded to the dtype */
    int n_visual, n_unit;
    int32_t *unit; /* [n_visual] */
    enum iwp_dtype dtype;
    int pad; /* extra elements after every row and head */
    void *mem[IWP_TENSOR_COUNT];
    struct iwp_input in;
};

struct prompt_shape {
    int n_visual, before, after, H, G, d, Dh;
    double amp;     /* size of q and k */
    int clusters;   /* keys gather around so many centres */
    int separators; /* every 7th visual token */
    int gap;        /* a text token inside the visual ones */
    int zeros;      /* some zero vectors */
    int copies;     /* some tokens repeat others exactly */
    int n_unit;
};

static inline int rand_below(uint64_t *s, int n) { return (int)(test_rand(s) % (uint64_t)n); }
static inline int one_of(uint64_t *s, const int *x, int n) { return x[rand_below(s, n)]; }
#define ONE_OF(s, ...)                                                                             \
    one_of((s), (const int[]){__VA_ARGS__}, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

static inline float rounded(float x, enum iwp_dtype t) {
    if (t == IWP_DTYPE_F16)
        return iwp_f16_to_f32(iwp_f32_to_f16(x > 6e4f ? 6e4f : x < -6e4f ? -6e4f : x));
    return t == IWP_DTYPE_BF16 ? iwp_bf16_to_f32(iwp_f32_to_bf16(x)) : x;
}

/* Copies clean numbers into an array of the prompt's dtype and strides; rows marked unread and the
 * padding become NaN, which nobody may notice. */
static inline struct iwp_array prompt_array(struct prompt *p, enum iwp_tensor t, const float *clean,
                                            int heads, int dim, const unsigned char *read) {
    struct iwp_array a = iwp_array_f32(NULL, p->d.n, heads, dim);
    a.dtype = p->dtype;
    a.head_stride = dim + p->pad;
    a.row_stride = heads * a.head_stride + p->pad;
    size_t n = (size_t)a.row_stride * (size_t)p->d.n, size = p->dtype == IWP_DTYPE_F32 ? 4 : 2;
    free(p->mem[t]);
    p->mem[t] = malloc(n * size);
    memset(p->mem[t], 0xff, n * size); /* NaN in all three types */
    for (int i = 0; i < p->d.n; i++)
        for (int g = 0; (!read || read[i]) && g < heads; g++)
            for (int j = 0; j < dim; j++) {
                size_t at = (size_t)(i * a.row_stride + g * a.head_stride + j);
                float x = clean[(i * heads + g) * dim + j];
                if (p->dtype == IWP_DTYPE_F32)
                    ((float *)p->mem[t])[at] = x;
                else
                    ((uint16_t *)p->mem[t])[at] =
                        p->dtype == IWP_DTYPE_F16 ? iwp_f32_to_f16(x) : iwp_f32_to_bf16(x);
            }
    a.data = p->mem[t];
    return a;
}

static inline void prompt_make(struct prompt *p, const struct prompt_shape *s, enum iwp_dtype dtype,
                               uint64_t *seed) {
    memset(p, 0, sizeof *p);
    struct ref_data *d = &p->d;
    int gap = s->gap && s->n_visual > 2;
    d->n = s->before + s->n_visual + s->after + gap;
    d->H = s->H, d->G = s->G, d->d = s->d, d->Dh = s->Dh;
    p->dtype = dtype;
    p->n_visual = s->n_visual;
    p->n_unit = s->n_unit > 0 ? s->n_unit : 1;
    d->code = calloc((size_t)d->n, 1);
    for (int i = 0; i < s->n_visual; i++) {
        int at = s->before + i + (gap && i > s->n_visual / 2);
        d->code[at] = s->separators && i % 7 == 6 ? 2 : 1;
    }
    for (int i = d->n - (s->after + 1) / 2; i < d->n; i++) d->code[i] = 3;
    p->unit = malloc(sizeof *p->unit * (size_t)s->n_visual);
    for (int i = 0; i < s->n_visual; i++) p->unit[i] = i * p->n_unit / s->n_visual;
    size_t row = (size_t)(s->G * s->d), n = (size_t)d->n;
    d->q = malloc(4 * n * (size_t)(s->H * s->d));
    d->q_rope = malloc(4 * n * (size_t)(s->H * s->d));
    d->k = malloc(4 * n * row);
    d->k_rope = malloc(4 * n * row);
    d->v = malloc(4 * n * row);
    d->h = malloc(4 * n * (size_t)s->Dh);
    float *centre = malloc(4 * row * (size_t)s->clusters);
    for (size_t i = 0; i < row * (size_t)s->clusters; i++) centre[i] = test_normal(seed);
    for (size_t i = 0; i < n; i++) {
        const float *c = centre + row * (size_t)rand_below(seed, s->clusters);
        float size = (float)exp((double)test_normal(seed));
        for (size_t t = 0; t < row; t++) {
            float k = (c[t] + 0.2f * test_normal(seed)) * (float)s->amp,
                  v = test_normal(seed) + c[t] * 0.7f;
            d->k[i * row + t] = rounded(k, dtype);
            d->k_rope[i * row + t] = rounded(k + 0.1f * test_normal(seed), dtype);
            d->v[i * row + t] = rounded(v * size, dtype);
        }
        for (int t = 0; t < s->H * s->d; t++) {
            float q = test_normal(seed) * (float)s->amp;
            d->q[i * (size_t)(s->H * s->d) + (size_t)t] = rounded(q, dtype);
            d->q_rope[i * (size_t)(s->H * s->d) + (size_t)t] = rounded(q + 0.1f, dtype);
        }
        for (int t = 0; t < s->Dh; t++)
            d->h[i * (size_t)s->Dh + (size_t)t] = rounded(test_normal(seed), dtype);
        if (s->zeros && rand_below(seed, 8) == 0) memset(d->v + i * row, 0, 4 * row);
        if (s->zeros && rand_below(seed, 8) == 0)
            memset(d->k + i * row, 0, 4 * row), memset(d->k_rope + i * row, 0, 4 * row);
        if (s->zeros && rand_below(seed, 8) == 0)
            memset(d->h + i * (size_t)s->Dh, 0, 4 * (size_t)s->Dh);
        if (s->copies && i > 0 && rand_below(seed, 3) == 0) {
            size_t j = (size_t)rand_below(seed, (int)i), H = (size_t)(s->H * s->d),
                   w = (size_t)s->Dh;
            memcpy(d->k + i * row, d->k + j * row, 4 * row);
            memcpy(d->k_rope + i * row, d->k_rope + j * row, 4 * row);
            memcpy(d->v + i * row, d->v + j * row, 4 * row);
            memcpy(d->q + i * H, d->q + j * H, 4 * H);
            memcpy(d->h + i * w, d->h + j * w, 4 * w);
        }
    }
    free(centre);
    p->in.n = d->n;
    p->in.code = d->code;
}

/* Gives the library all arrays (params NULL), or only the rows that params read: the rest is NaN. */
static inline void prompt_fill(struct prompt *p, const struct iwp_params *params) {
    struct ref_data *d = &p->d;
    const struct {
        enum iwp_tensor t;
        const float *x;
        int heads, dim;
    } all[] = {
        {IWP_TENSOR_Q, d->q, d->H, d->d},           {IWP_TENSOR_K, d->k, d->G, d->d},
        {IWP_TENSOR_V, d->v, d->G, d->d},           {IWP_TENSOR_Q_ROPE, d->q_rope, d->H, d->d},
        {IWP_TENSOR_K_ROPE, d->k_rope, d->G, d->d}, {IWP_TENSOR_H, d->h, 1, d->Dh}};
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n_need = params ? iwp_params_needs(params, 0, need, IWP_TENSOR_COUNT) : 0, first = 0;
    while (!ref_visual(d->code[first])) first++;
    unsigned char *read = malloc((size_t)d->n);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        memset(read, params == NULL, (size_t)d->n);
        for (int j = 0; j < n_need; j++)
            for (int r = 0; need[j].tensor == all[i].t && r < d->n; r++) {
                int visual = ref_visual(d->code[r]);
                enum iwp_rows w = need[j].rows;
                read[r] |= w == IWP_ROWS_ALL || (w == IWP_ROWS_VISUAL && visual) ||
                           (w == IWP_ROWS_TEXT && !visual) ||
                           (w == IWP_ROWS_TEXT_AFTER && !visual && r > first) ||
                           (w == IWP_ROWS_LAST && r == d->n - 1);
            }
        p->in.arr[all[i].t] = prompt_array(p, all[i].t, all[i].x, all[i].heads, all[i].dim, read);
    }
    free(read);
}

static inline void prompt_free(struct prompt *p) {
    for (int t = 0; t < IWP_TENSOR_COUNT; t++) free(p->mem[t]);
    free(p->d.code), free(p->unit), free(p->d.q), free(p->d.k), free(p->d.v), free(p->d.q_rope),
        free(p->d.k_rope), free(p->d.h);
    memset(p, 0, sizeof *p);
}

/* A selection with its arrays; free with chosen_free. */
struct chosen {
    int rc;
    iwp_err err;
    struct iwp_selection s;
};

static inline struct chosen choose(const struct iwp_params *p, const struct iwp_input *in,
                                   const struct iwp_exec *exec) {
    struct chosen c;
    memset(&c, 0, sizeof c);
    size_t n = 0;
    for (int i = 0; i < in->n; i++) n += ref_visual(in->code[i]);
    c.s.keep = malloc(4 * (n + 1));
    c.s.scores = malloc(4 * (n + 1));
    c.s.merge = malloc(sizeof *c.s.merge * (2 * n + 1));
    c.s.sizes = malloc(4 * (n + 1));
    int64_t bytes = iwp_select_workspace(p, in, exec, &c.err);
    if (bytes < 0) {
        c.rc = (int)bytes;
        return c;
    }
    void *ws = malloc((size_t)bytes);
    memset(ws, 0xff, (size_t)bytes); /* nothing may rely on zeroed memory */
    int64_t state_bytes = iwp_select_state(p, in);
    void *state = state_bytes > 0 ? calloc(1, (size_t)state_bytes) : NULL;
    c.rc = iwp_select(p, in, state, ws, (size_t)bytes, exec, &c.s, &c.err);
    free(state);
    free(ws);
    return c;
}

static inline void chosen_free(struct chosen *c) {
    free(c->s.keep), free(c->s.scores), free(c->s.merge), free(c->s.sizes);
}

/* Random options of method iwp, as text for iwp_params_parse and as the reference's struct. */
static inline void random_options(uint64_t *seed, struct ref_options *o, char *text, size_t cap) {
    static const char *const mag[] = {"kv",   "kv", "k",        "vnorm",    "knorm",
                                      "phik", "dw", "centered", "deletion", "kv_deletion"};
    static const char *const query[] = {"text-after", "text-all", "text-user", "image", "last"};
    static const char *const norm[] = {"softmax-all", "softmax", "max", "raw"};
    static const char *const scale[] = {"max", "max", "minmax", "none"};
    static const char *const dup[] = {"dw", "dw", "dw", "rbf", "cos_k", "cos_v", "cos_h"};
    static const char *const heads[] = {"mean-sq", "mean-sq", "sq-mean", "concat", "joint"};
    static const char *const dnorm[] = {"none", "none", "clip", "affine", "minmax"};
    static const char *const sel[] = {"pc-mmr", "pc-mmr", "topk", "mmr-mult", "mmr-add"};
    static const char *const pen[] = {"new", "new", "all", "all-fresh"};
    o->magnitude = mag[rand_below(seed, 10)];
    o->query = query[rand_below(seed, 5)];
    o->head_norm = norm[rand_below(seed, 4)];
    o->scale = scale[rand_below(seed, 4)];
    o->duplication = dup[rand_below(seed, 7)];
    o->heads = heads[rand_below(seed, 5)];
    if (ref_is(o->heads, "joint") && !ref_is(o->duplication, "dw")) o->heads = "mean-sq";
    o->norm = dnorm[rand_below(seed, 5)];
    o->selector = sel[rand_below(seed, 5)];
    o->penalty = pen[rand_below(seed, 4)];
    o->magnitude_rope = rand_below(seed, 4) == 0;
    o->duplication_rope = rand_below(seed, 4) != 0;
    o->square = ONE_OF(seed, -1, -1, 0, 1);
    o->chunk = ONE_OF(seed, 1, 2, 2, 5, 64);
    o->growth = ONE_OF(seed, 2, 3, 4, 8) / 2.0;
    o->lambda = ONE_OF(seed, 0, 1, 5, 5, 10);
    o->floor = ONE_OF(seed, 1, 1, 10, 100) / 100.0;
    o->gamma = ONE_OF(seed, 0, 1, 1, 4) / 2.0;
    snprintf(text, cap,
             "magnitude=%s,query=%s,head-norm=%s,scale=%s,duplication=%s,duplication-heads=%s,"
             "duplication-norm=%s,"
             "selector=%s,penalty=%s,magnitude-rope=%d,duplication-rope=%d,square=%d,chunk=%d,"
             "growth=%g,lambda=%g,"
             "floor=%g,gamma=%g",
             o->magnitude, o->query, o->head_norm, o->scale, o->duplication, o->heads, o->norm,
             o->selector, o->penalty, o->magnitude_rope, o->duplication_rope, o->square, o->chunk,
             o->growth, o->lambda, o->floor, o->gamma);
}

static inline struct prompt_shape random_shape(uint64_t *seed, int n_max) {
    struct prompt_shape s = {0};
    s.n_visual = ONE_OF(seed, 1, 2, 3, 17, 31, 32, 33, 64, 70, 100);
    if (s.n_visual > n_max) s.n_visual = n_max;
    s.before = rand_below(seed, 6);
    s.after = 1 + rand_below(seed, 12);
    s.G = ONE_OF(seed, 1, 2, 2, 4);
    s.H = s.G * ONE_OF(seed, 1, 2, 3, 7);
    s.d = ONE_OF(seed, 1, 4, 16, 20, 33);
    s.Dh = ONE_OF(seed, 5, 24, 40);
    s.amp = ONE_OF(seed, 3, 10, 10, 20, 80) / 10.0;
    s.clusters = 1 + rand_below(seed, 12);
    s.separators = rand_below(seed, 3) == 0;
    s.gap = rand_below(seed, 4) == 0;
    s.zeros = rand_below(seed, 5) == 0;
    s.copies = rand_below(seed, 5) == 0;
    s.n_unit = 1;
    return s;
}

#endif
