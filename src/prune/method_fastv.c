/* FastV: attention received by each visual token, averaged over heads (methods-in-llm 2).
 * query=last is the authors' code (layer before the cut, last prompt token), mean-all the paper's
 * wording (all rows of that layer), mean-prefix the variant of PACT's comparison (rows up to the last
 * prunable token, layer at the cut, separators exempt, counts truncated under as-published). */
#include <stddef.h>

#include "prune/attention.h"
#include "prune/methods.h"
#include "prune/rank.h"
#include "prune/schedule.h"

enum { QUERY_LAST, QUERY_MEAN_ALL, QUERY_MEAN_PREFIX };

struct fastv_options {
    int32_t query;
};

static const struct iwp_option options[] = {
    {.name = "query",
     .type = IWP_OPTION_ENUM,
     .offset = offsetof(struct fastv_options, query),
     .choices = (const char *const[]){"last", "mean-all", "mean-prefix", NULL},
     .text = "whose attention counts: the last token's, every token's, or (PACT's variant) every "
             "token's up to the last visual one"},
    {.name = NULL},
};

static int32_t query_of(const struct iwp_params *p) { return IWP_OPTIONS(fastv_options, p)->query; }

static int separators_of(const struct iwp_params *p) { return query_of(p) == QUERY_MEAN_PREFIX; }

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)stage;
    int prefix = query_of(p) == QUERY_MEAN_PREFIX;
    enum iwp_rows rows = query_of(p) == QUERY_LAST ? IWP_ROWS_LAST : IWP_ROWS_ALL;
    int n = iwp_need_add(out, 0, cap, prefix ? IWP_TENSOR_Q_ROPE : IWP_TENSOR_Q_ROPE_PREV, rows, 0);
    return iwp_need_add(out, n, cap, prefix ? IWP_TENSOR_K_ROPE : IWP_TENSOR_K_ROPE_PREV,
                        IWP_ROWS_ALL, 0);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    return iwp_rank_check_heads(
        v->in,
        query_of(v->params) == QUERY_MEAN_PREFIX ? IWP_TENSOR_K_ROPE : IWP_TENSOR_K_ROPE_PREV, err);
}

static int plan(const struct iwp_params *p, const struct iwp_plan_shape *s, struct iwp_stage *out,
                int cap, iwp_err *err) {
    (void)cap;
    int prefix = query_of(p) == QUERY_MEAN_PREFIX;
    int n = iwp_schedule_one(p, s, p->layer >= 0 ? p->layer : prefix ? 4 : 2, out, err);
    if (n > 0 && prefix && p->budget.rule == IWP_RULE_AS_PUBLISHED)
        out[0].n_keep = iwp_schedule_truncate(&p->budget, iwp_plan_pool(p, s));
    return n;
}

static int select_fastv(struct iwp_view *v, struct iwp_arena *m, void *state, iwp_err *err) {
    (void)state;
    (void)err;
    int32_t query = query_of(v->params), last = v->n - 1;
    int prefix = query == QUERY_MEAN_PREFIX;
    struct iwp_attention a = {
        .q = &v->in->arr[prefix ? IWP_TENSOR_Q_ROPE : IWP_TENSOR_Q_ROPE_PREV],
        .k = &v->in->arr[prefix ? IWP_TENSOR_K_ROPE : IWP_TENSOR_K_ROPE_PREV],
        .n_row = query == QUERY_LAST ? 1 : v->n,
        .n_key = v->n,
    };
    iwp_attention_layout(&a, v, m);
    double *score = IWP_TAKE(m, double, v->n_pool);
    int32_t *idx = IWP_TAKE(m, int32_t, v->n_pool);
    if (iwp_arena_counting(m)) return 0;

    if (query == QUERY_LAST) a.row = &last;
    if (prefix) { /* everything up to the last prunable token; units may have reordered the pool */
        a.n_row = 0;
        for (int32_t i = 0; i < v->n_pool; i++)
            if (v->pool[i] >= a.n_row) a.n_row = v->pool[i] + 1;
        iwp_rank_truncate_counts(v);
    }
    iwp_attention_run(&a);
    iwp_attention_head_sum(&a, v->pool, v->n_pool, 1.0 / ((double)a.n_head * a.n_row), score);
    iwp_rank_keep_best(v, score, idx);
    return 0;
}

const struct iwp_method iwp_method_fastv = {
    .info = {.name = "fastv",
             .title = "attention of the last token, averaged over heads",
             .ref = "FastV: An Image is Worth 1/2 Tokens After Layer 2 (pkunlp-icler/FastV); "
                    "mean-prefix: orailix/PACT",
             .site = IWP_SITE_LAYER,
             .options = options,
             .positions = "original",
             .rounding =
                 "round-half-even(keep N), at least 1; as-published with mean-prefix: trunc",
             .layer = 2},
    .separators_of = separators_of,
    .plan = plan,
    .needs = needs,
    .check = check,
    .select = select_fastv,
};
