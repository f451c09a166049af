/* DivPrune: the set whose closest pair is farthest apart, greedily (methods-diversity 3).
 *
 * First the token whose nearest other token is farthest, then always the one farthest from the set.
 * The definition reads every pair, and the row of every pick again, so all cosines are kept:
 * 4 N² bytes.  Chosen tokens are masked, unlike in the authors' loop (3.7.1). */
#include <stddef.h>

#include "kern/kern.h"
#include "prune/cosine.h"
#include "prune/methods.h"

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)p;
    (void)stage;
    return iwp_need_add(out, 0, cap, IWP_TENSOR_EMBEDS, IWP_ROWS_VISUAL, 0);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    struct iwp_source s = {.array = &v->in->arr[IWP_TENSOR_EMBEDS]};
    return iwp_source_check(&s, IWP_TENSOR_EMBEDS, err);
}

struct first_job {
    float *gram, *near;
    int32_t n;
};

/* Largest cosine to another token, 64 rows per task. */
static void first_rows(void *arg, int32_t task) {
    struct first_job *j = arg;
    const struct iwp_kern *kern = iwp_kern_get();
    int32_t i1 = (task + 1) * 64 < j->n ? (task + 1) * 64 : j->n;
    for (int32_t i = task * 64; i < i1; i++) {
        float *row = j->gram + (size_t)i * iwp_gram_stride(j->n), top[64];
        row[i] = -2; /* never read again: a chosen token stays masked */
        for (int k = 0; k < 64; k++) top[k] = -2;
        for (int32_t c = 0; c < j->n; c += 64)
            kern->max_row(top, row + c, j->n - c < 64 ? j->n - c : 64);
        float m = -2;
        for (int k = 0; k < 64; k++) m = top[k] > m ? top[k] : m;
        j->near[i] = m;
    }
}

static int select_divprune(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    struct iwp_source s = {.array = &v->in->arr[IWP_TENSOR_EMBEDS], .row = v->pool};
    struct iwp_units x;
    iwp_units_layout(&x, v->n_pool, iwp_source_width(&s), a);
    float *gram = iwp_gram_take(a, v->n_pool), *near = IWP_TAKE(a, float, v->n_pool);
    if (iwp_arena_counting(a)) return 0;

    const struct iwp_kern *kern = iwp_kern_get();
    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first;
        struct first_job j = {gram, near, n};
        iwp_units_pack(&x, v->exec, &s, NULL, first, n);
        if (!iwp_units_finite(&x))
            return iwp_array_check_finite(v->in, IWP_TENSOR_EMBEDS, IWP_ROWS_VISUAL,
                                          v->first_visual, err);
        iwp_units_gram(&x, v->exec, gram);
        iwp_parallel(v->exec, first_rows, &j, (n + 63) / 64);
        for (int32_t i = 0; i < n; i++) v->scores[first + i] = n > 1 ? 1.0f - near[i] : 0;
        for (int32_t step = 0; step < v->unit_keep[u]; step++) {
            int32_t pick = -1;
            for (int32_t i = 0; i < n; i++)
                if (!v->chosen[first + i] && (pick < 0 || near[i] < near[pick])) pick = i;
            v->chosen[first + pick] = 1;
            const float *row = gram + (size_t)pick * iwp_gram_stride(n);
            if (step == 0)
                for (int32_t i = 0; i < n; i++) near[i] = row[i];
            else
                kern->max_row(near, row, n);
        }
    }
    v->has_scores = 1;
    return 0;
}

const struct iwp_method iwp_method_divprune = {
    .info = {.name = "divprune",
             .title = "max-min diversity of the decoder's input rows",
             .ref = "DivPrune (Alvar et al. 2025), code vbdi/divprune",
             .site = IWP_SITE_EMBEDDINGS,
             .flags = IWP_METHOD_RENUMBERS,
             .positions = "compact on LLaVA, original on M-RoPE models",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = -1},
    .checks_finite = 1,
    .needs = needs,
    .check = check,
    .select = select_divprune,
};
