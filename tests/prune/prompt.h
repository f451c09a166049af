/* Random prompts with every array the library knows, and one call that runs a selection on them. */
#ifndef IWP_TEST_PROMPT_H
#define IWP_TEST_PROMPT_H

#include "iwp/prune.h"
#include "test.h"

enum { PROMPT_MAX = 1400 };

struct prompt {
    struct iwp_input in;
    uint8_t code[PROMPT_MAX];
    int32_t unit[PROMPT_MAX];
    int32_t n_visual, n_image; /* codes 1 and 2; code 1 */
    int32_t at[PROMPT_MAX];    /* prompt position of each visual token */
    float *data[IWP_TENSOR_COUNT];
};

struct prompt_shape {
    int32_t before, visual, after, heads, groups, dim, width;
    int32_t separators; /* every so many visual tokens ends a row; 0: none */
    int32_t clusters;   /* rows of visual tokens lie round so many centres; 0: no */
};

static inline size_t array_size(const struct iwp_array *a) {
    return (size_t)a->n_row * (size_t)a->n_head * (size_t)a->n_dim;
}

static inline void prompt_free(struct prompt *p) {
    for (int t = 0; t < IWP_TENSOR_COUNT; t++) free(p->data[t]);
    memset(p, 0, sizeof *p);
}

static inline void prompt_count(struct prompt *p) {
    p->n_visual = p->n_image = 0;
    for (int32_t i = 0; i < p->in.n; i++) {
        if (p->code[i] == IWP_CODE_VISUAL || p->code[i] == IWP_CODE_SEPARATOR)
            p->at[p->n_visual++] = i;
        p->n_image += p->code[i] == IWP_CODE_VISUAL;
    }
}

/* An array of zeros; prompt rows for n_row 0. */
static inline float *prompt_add(struct prompt *p, enum iwp_tensor t, int32_t n_row, int32_t n_head,
                                int32_t n_dim) {
    if (!n_row) n_row = p->in.n;
    free(p->data[t]);
    p->data[t] = calloc((size_t)n_row * (size_t)n_head * (size_t)n_dim, sizeof(float));
    p->in.arr[t] = iwp_array_f32(p->data[t], n_row, n_head, n_dim);
    return p->data[t];
}

/* Codes only: `before` texts, `visual` visual tokens, `after` texts (the second half the user's). */
static inline void prompt_codes(struct prompt *p, int32_t before, int32_t visual, int32_t after,
                                int32_t separators) {
    memset(p, 0, sizeof *p);
    p->in.n = before + visual + after;
    for (int32_t i = 0; i < visual; i++)
        p->code[before + i] =
            separators && i % separators == separators - 1 ? IWP_CODE_SEPARATOR : IWP_CODE_VISUAL;
    for (int32_t i = p->in.n - after / 2; i < p->in.n; i++) p->code[i] = IWP_CODE_USER;
    p->in.code = p->code;
    prompt_count(p);
}

static inline void prompt_make(struct prompt *p, const struct prompt_shape *s, uint64_t seed) {
    uint64_t r = seed * 0x9e3779b97f4a7c15ULL + 1;
    prompt_codes(p, s->before, s->visual, s->after, s->separators);
    static const struct {
        uint8_t t;
        char kind; /* q k h: prompt rows; e f: encoder rows; t, w */
    } all[] = {{IWP_TENSOR_Q, 'q'},
               {IWP_TENSOR_Q_ROPE, 'q'},
               {IWP_TENSOR_Q_ROPE_PREV, 'q'},
               {IWP_TENSOR_K, 'k'},
               {IWP_TENSOR_K_ROPE, 'k'},
               {IWP_TENSOR_K_ROPE_PREV, 'k'},
               {IWP_TENSOR_V, 'k'},
               {IWP_TENSOR_H, 'h'},
               {IWP_TENSOR_H_PREV, 'h'},
               {IWP_TENSOR_EMBEDS, 'h'},
               {IWP_TENSOR_VIT_Q, 'e'},
               {IWP_TENSOR_VIT_K, 'e'},
               {IWP_TENSOR_VIT_FEATURES, 'f'},
               {IWP_TENSOR_TEXT_EMBEDS, 't'},
               {IWP_TENSOR_FINAL_NORM, 'w'}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        enum iwp_tensor t = (enum iwp_tensor)all[i].t;
        int32_t rows = p->in.n, heads = 1, dim = s->width;
        switch (all[i].kind) {
        case 'q': heads = s->heads, dim = s->dim; break;
        case 'k': heads = s->groups, dim = s->dim; break;
        case 'e': rows = p->n_image, heads = 2, dim = 8; break;
        case 'f': rows = p->n_image, dim = 24; break;
        case 't': rows = 2, dim = 24; break;
        case 'w': rows = 1; break;
        default: break;
        }
        float *x = prompt_add(p, t, rows, heads, dim);
        int32_t per = heads * dim, n_centre = s->clusters ? s->clusters : 1;
        float *centre = calloc((size_t)n_centre * (size_t)per, sizeof *centre);
        for (int32_t k = 0; s->clusters && k < n_centre * per; k++) centre[k] = test_normal(&r);
        for (int32_t j = 0; j < rows; j++)
            for (int32_t k = 0; k < per; k++)
                x[j * per + k] = centre[(j * 7 % n_centre) * per + k] + 0.6f * test_normal(&r);
        free(centre);
    }
}

/* Rows of visual token a copied over those of b, in every array. */
static inline void prompt_copy_token(struct prompt *p, int32_t a, int32_t b) {
    for (int t = 0; t < IWP_TENSOR_COUNT; t++) {
        const struct iwp_array *x = &p->in.arr[t];
        size_t per = (size_t)x->n_head * (size_t)x->n_dim;
        if (p->data[t] && x->n_row == p->in.n)
            memcpy(p->data[t] + (size_t)p->at[b] * per, p->data[t] + (size_t)p->at[a] * per,
                   per * sizeof(float));
    }
}

struct result {
    struct iwp_selection sel;
    int rc;
    iwp_err err;
    int32_t keep[PROMPT_MAX], sizes[PROMPT_MAX];
    float scores[PROMPT_MAX];
    struct iwp_merge merge[2 * PROMPT_MAX];
};

static inline int prompt_select(const struct iwp_params *p, const struct iwp_input *in, void *state,
                                const struct iwp_exec *exec, struct result *r) {
    memset(r, 0, sizeof *r);
    r->sel.keep = r->keep;
    r->sel.scores = r->scores;
    r->sel.merge = r->merge;
    r->sel.sizes = r->sizes;
    int64_t n = iwp_select_workspace(p, in, exec, &r->err);
    if (n < 0) return r->rc = (int)n;
    unsigned char *ws = malloc((size_t)n);
    memset(ws, 0xff, (size_t)n); /* NaNs: nothing may count on zeroed memory */
    r->rc = iwp_select(p, in, state, ws, (size_t)n, exec, &r->sel, &r->err);
    free(ws);
    return r->rc;
}

static inline struct iwp_params params_of(const char *method, const char *options, int32_t n_keep) {
    struct iwp_params p;
    iwp_err err = {0};
    iwp_params_default(&p, iwp_method_find(method));
    CHECK_MSG(p.method != NULL, "no method %s", method);
    if (options && *options)
        CHECK_MSG(iwp_params_parse(&p, options, &err) == 0, "%s: %s", method, err.msg);
    p.budget.n_keep = n_keep;
    return p;
}

static inline int same_result(const struct result *a, const struct result *b) {
    if (a->rc != b->rc || a->sel.n_keep != b->sel.n_keep || a->sel.n_merge != b->sel.n_merge)
        return 0;
    return !memcmp(a->keep, b->keep, sizeof a->keep) &&
           !memcmp(a->scores, b->scores, sizeof a->scores) &&
           !memcmp(a->merge, b->merge, sizeof a->merge) &&
           !memcmp(a->sizes, b->sizes, sizeof a->sizes);
}

static inline void check_list(const struct result *r, int32_t n, const int32_t *want,
                              const char *what) {
    CHECK_MSG(r->rc == 0, "%s: %s", what, r->err.msg);
    CHECK_MSG(r->sel.n_keep == n, "%s: keeps %d, want %d", what, r->sel.n_keep, n);
    for (int32_t i = 0; i < n && i < r->sel.n_keep; i++)
        CHECK_MSG(r->keep[i] == want[i], "%s: keep[%d] = %d, want %d", what, i, r->keep[i],
                  want[i]);
}

#define CHECK_KEEP(r, what, ...)                                                                   \
    check_list((r), (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)),                 \
               (const int32_t[]){__VA_ARGS__}, what)

#endif
