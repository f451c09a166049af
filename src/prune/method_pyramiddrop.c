/* PyramidDrop: at a few layers, the last prompt token's attention ranks the visual tokens and a fixed
 * share of the original number stays (methods-in-llm 3).  Here: one stage, and the schedule. */
#include "prune/attention.h"
#include "prune/methods.h"
#include "prune/rank.h"
#include "prune/schedule.h"

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)p;
    (void)stage;
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_Q_ROPE, IWP_ROWS_LAST, 0);
    return iwp_need_add(out, n, cap, IWP_TENSOR_K_ROPE, IWP_ROWS_ALL, 0);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    return iwp_rank_check_heads(v->in, IWP_TENSOR_K_ROPE, err);
}

/* As published: cuts at the quarters, half the tokens each time, trunc(N ratio) of the original N.
 * Averages below a quarter cannot be reached that way; for tight budgets the authors advise an early
 * first cut (2, 8, 16 of 32 layers) with ratios x, x², x³, which is what the other rules solve. */
static int plan(const struct iwp_params *p, const struct iwp_plan_shape *s, struct iwp_stage *out,
                int cap, iwp_err *err) {
    struct iwp_schedule t = {.family = iwp_schedule_geometric};
    int32_t l = s->n_layer, quarters[] = {l / 4, l / 2, 3 * l / 4}, early[] = {2, l / 4, l / 2};
    if (l < 12) early[0] = 1;
    int published = iwp_schedule_rule(p) == IWP_RULE_AS_PUBLISHED;
    iwp_schedule_layers(&t, p, l, published ? quarters : early, 3);
    if (!published) return iwp_schedule_solve(&t, p, s, out, cap, err);
    int32_t n = iwp_plan_pool(p, s), count[IWP_STAGE_MAX];
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "there is no visual token to prune");
    for (int32_t k = 0; k < t.n; k++) count[k] = n >> (k + 1) > 0 ? n >> (k + 1) : 1;
    if (p->layer >= 0) count[0] = iwp_schedule_truncate(&p->budget, n);
    return iwp_schedule_write(&t, count, out, cap, err);
}

static int select_pyramiddrop(struct iwp_view *v, struct iwp_arena *m, void *state, iwp_err *err) {
    (void)state;
    (void)err;
    int32_t last = v->n - 1;
    struct iwp_attention a = {.q = &v->in->arr[IWP_TENSOR_Q_ROPE],
                              .k = &v->in->arr[IWP_TENSOR_K_ROPE],
                              .n_row = 1,
                              .n_key = v->n};
    iwp_attention_layout(&a, v, m);
    double *score = IWP_TAKE(m, double, v->n_pool);
    int32_t *idx = IWP_TAKE(m, int32_t, v->n_pool);
    if (iwp_arena_counting(m)) return 0;

    a.row = &last;
    iwp_attention_run(&a);
    iwp_attention_head_sum(&a, v->pool, v->n_pool, 1.0 / a.n_head, score);
    iwp_rank_truncate_counts(v);
    iwp_rank_keep_best(v, score, idx);
    return 0;
}

const struct iwp_method iwp_method_pyramiddrop = {
    .info = {.name = "pyramiddrop",
             .title = "attention of the last token, in a pyramid of layers",
             .ref = "PyramidDrop (Cooperx521/PyramidDrop)",
             .site = IWP_SITE_LAYER,
             .flags = IWP_METHOD_MULTI_STAGE | IWP_METHOD_RENUMBERS,
             .positions = "compact on LLaVA, original on M-RoPE models",
             .rounding = "round-half-even of the solved share of N; as-published: trunc(N / 2^k)",
             .layer = 2},
    .plan = plan,
    .needs = needs,
    .check = check,
    .select = select_pyramiddrop,
};
