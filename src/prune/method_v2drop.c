/* V2Drop: tokens whose residual row the last layer changed least are dropped (methods-in-llm 5).
 * No attention, no text: the cheapest score of all.  One stage, and the schedule. */
#include <math.h>

#include "prune/methods.h"
#include "prune/rank.h"
#include "prune/schedule.h"

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)p;
    (void)stage;
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_H, IWP_ROWS_VISUAL, 0);
    return iwp_need_add(out, n, cap, IWP_TENSOR_H_PREV, IWP_ROWS_VISUAL, 0);
}

/* Relative keeps: first r1 from 0 to 1 with r2 = 0.05 and r3 = 0 (one token stays), as in the
 * authors' Qwen2-VL setting; budgets above what that reaches open r2, then r3. */
static void family(const struct iwp_schedule *s, double u, double n_token, double *count) {
    double c = n_token;
    for (int32_t k = 0; k < s->n; k++) {
        double low = k == 1 && s->n > 2 ? 0.05 : 0, x = u * s->n - k;
        double r = low + (1 - low) * (x < 0 ? 0 : x > 1 ? 1 : x);
        count[k] = c = fmax(1, c * r);
    }
}

static int plan(const struct iwp_params *p, const struct iwp_plan_shape *s, struct iwp_stage *out,
                int cap, iwp_err *err) {
    struct iwp_schedule t = {.family = family};
    /* Published: 3, 16, 22 of 28 layers (Qwen2-VL), 3, 17, 22 of 32 (LLaVA-1.5). */
    int qwen = s->n_layer <= 30;
    double f = s->n_layer / (qwen ? 28.0 : 32.0);
    int32_t layer[] = {s->n_layer < 12 ? 1 : 3, (int32_t)((qwen ? 16 : 17) * f + 0.5),
                       (int32_t)(22 * f + 0.5)};
    iwp_schedule_layers(&t, p, s->n_layer, layer, 3);
    if (iwp_schedule_rule(p) != IWP_RULE_AS_PUBLISHED)
        return iwp_schedule_solve(&t, p, s, out, cap, err);
    int32_t n = iwp_plan_pool(p, s), count[IWP_STAGE_MAX];
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "there is no visual token to prune");
    const double ratio[] = {qwen ? 0.25 : 0.5, qwen ? 0.05 : 0.5, 0};
    int32_t c = n;
    for (int32_t k = 0; k < t.n; k++) {
        c = (int32_t)(c * ratio[k]);
        count[k] = c = c < 1 ? 1 : c;
    }
    if (p->layer >= 0) count[0] = iwp_schedule_truncate(&p->budget, n);
    return iwp_schedule_write(&t, count, out, cap, err);
}

struct job {
    const struct iwp_view *v;
    double *score;
    float *tmp; /* two rows per chunk */
};

enum { CHUNK = 64 };

static void change(void *arg, int32_t c) {
    struct job *j = arg;
    const struct iwp_array *h = &j->v->in->arr[IWP_TENSOR_H],
                           *prev = &j->v->in->arr[IWP_TENSOR_H_PREV];
    float *a = j->tmp + (size_t)c * 2 * (size_t)h->n_dim, *b = a + h->n_dim;
    int32_t end = (c + 1) * CHUNK < j->v->n_pool ? (c + 1) * CHUNK : j->v->n_pool;
    for (int32_t i = c * CHUNK; i < end; i++) {
        int32_t r = j->v->pool[i];
        j->score[i] = sqrt(
            iwp_rank_distance2(iwp_array_row(h, r, 0, a), iwp_array_row(prev, r, 0, b), h->n_dim));
    }
}

static int select_v2drop(struct iwp_view *v, struct iwp_arena *m, void *state, iwp_err *err) {
    (void)state;
    (void)err;
    int32_t chunks = (v->n_pool + CHUNK - 1) / CHUNK;
    struct job j = {.v = v};
    j.score = IWP_TAKE(m, double, v->n_pool);
    j.tmp = IWP_TAKE(m, float, (size_t)chunks * 2 * (size_t)v->in->arr[IWP_TENSOR_H].n_dim);
    int32_t *idx = IWP_TAKE(m, int32_t, v->n_pool);
    if (iwp_arena_counting(m)) return 0;

    iwp_parallel(v->exec, change, &j, chunks);
    iwp_rank_truncate_counts(v);
    iwp_rank_keep_best(v, j.score, idx);
    return 0;
}

const struct iwp_method iwp_method_v2drop = {
    .info = {.name = "v2drop",
             .title = "change of the residual row in the last layer",
             .ref = "V2Drop (xuyang-liu16/V2Drop)",
             .site = IWP_SITE_LAYER,
             .flags = IWP_METHOD_MULTI_STAGE,
             .positions = "original",
             .rounding =
                 "round-half-even of the solved share; as-published: max(1, trunc(n ratio))",
             .layer = 3},
    .plan = plan,
    .needs = needs,
    .select = select_v2drop,
};
