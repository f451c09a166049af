/* VATP as a visual-token method: attention times the L1 norm of the value, head by head, then the
 * mean over heads (methods-in-llm 7.8; an adapter, the authors prune the cache per head). */
#include <stddef.h>

#include "prune/attention.h"
#include "prune/methods.h"
#include "prune/rank.h"
#include "prune/vatp.h"

enum { QUERY_LAST, QUERY_TEXT };

struct vatp_options {
    int32_t query;
};

static const struct iwp_option options[] = {
    {.name = "query",
     .type = IWP_OPTION_ENUM,
     .offset = offsetof(struct vatp_options, query),
     .choices = (const char *const[]){"last", "text", NULL},
     .text = "whose attention counts: the last token's, or every text token's"},
    {.name = NULL},
};

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)stage;
    int last = IWP_OPTIONS(vatp_options, p)->query == QUERY_LAST;
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_Q_ROPE, last ? IWP_ROWS_LAST : IWP_ROWS_TEXT, 0);
    n = iwp_need_add(out, n, cap, IWP_TENSOR_K_ROPE, IWP_ROWS_ALL, 0);
    return iwp_need_add(out, n, cap, IWP_TENSOR_V, IWP_ROWS_VISUAL, 0);
}

static int is_text(const struct iwp_view *v, int32_t i) {
    return v->in->code[i] == IWP_CODE_TEXT || v->in->code[i] == IWP_CODE_USER;
}

static int32_t count_text(const struct iwp_view *v) {
    int32_t n = 0;
    for (int32_t i = 0; i < v->n; i++) n += is_text(v, i);
    return n;
}

static int check(const struct iwp_view *v, iwp_err *err) {
    IWP_TRY(iwp_rank_check_heads(v->in, IWP_TENSOR_K_ROPE, err));
    if (IWP_OPTIONS(vatp_options, v->params)->query == QUERY_TEXT)
        IWP_REQUIRE(count_text(v) > 0, err, IWP_EINVAL, "query=text: the prompt has no text token");
    return 0;
}

struct job {
    const struct iwp_view *v;
    const struct iwp_attention *a;
    double *score;
};

enum { CHUNK = 64 };

static void weigh(void *arg, int32_t c) {
    struct job *j = arg;
    const struct iwp_array *val = &j->v->in->arr[IWP_TENSOR_V];
    float tmp[IWP_HEAD_WIDTH_MAX];
    int32_t end = (c + 1) * CHUNK < j->v->n_pool ? (c + 1) * CHUNK : j->v->n_pool;
    for (int32_t i = c * CHUNK; i < end; i++) {
        int32_t r = j->v->pool[i];
        double s = 0;
        for (int32_t g = 0; g < val->n_head; g++) {
            double norm = iwp_rank_norm1(iwp_array_row(val, r, g, tmp), val->n_dim);
            for (int32_t h = g * j->a->heads; h < (g + 1) * j->a->heads; h++)
                s += j->a->sum[(size_t)h * (size_t)j->a->width + (size_t)r] * norm;
        }
        j->score[i] = s / j->a->n_head;
    }
}

static int select_vatp(struct iwp_view *v, struct iwp_arena *m, void *state, iwp_err *err) {
    (void)state;
    (void)err;
    int last = IWP_OPTIONS(vatp_options, v->params)->query == QUERY_LAST;
    struct iwp_attention a = {.q = &v->in->arr[IWP_TENSOR_Q_ROPE],
                              .k = &v->in->arr[IWP_TENSOR_K_ROPE],
                              .n_row = last ? 1 : count_text(v),
                              .n_key = v->n};
    iwp_attention_layout(&a, v, m);
    struct job j = {.v = v, .a = &a, .score = IWP_TAKE(m, double, v->n_pool)};
    int32_t *row = IWP_TAKE(m, int32_t, a.n_row), *idx = IWP_TAKE(m, int32_t, v->n_pool);
    if (iwp_arena_counting(m)) return 0;

    int32_t n = 0;
    for (int32_t i = 0; i < v->n; i++)
        if (last ? i == v->n - 1 : is_text(v, i)) row[n++] = i;
    a.row = row;
    iwp_attention_run(&a);
    iwp_parallel(v->exec, weigh, &j, (v->n_pool + CHUNK - 1) / CHUNK);
    iwp_rank_keep_best(v, j.score, idx);
    return 0;
}

int32_t iwp_vatp_visible(const double *column, const double *norm, int32_t n, int32_t sink,
                         int32_t heavy, int32_t recent, uint8_t *visible) {
    if (n <= heavy + recent) {
        for (int32_t i = 0; i < n; i++) visible[i] = 1;
        return n;
    }
    for (int32_t i = 0; i < n; i++) visible[i] = i >= n - recent;
    for (int32_t k = 0; k < heavy; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n - recent; i++) {
            if (visible[i]) continue;
            /* sinks stand above every score */
            if (best < 0 ||
                (best >= sink && (i < sink || column[i] * norm[i] > column[best] * norm[best])))
                best = i;
        }
        visible[best] = 1;
    }
    return heavy + recent;
}

const struct iwp_method iwp_method_vatp = {
    .info = {.name = "vatp",
             .title = "attention times the L1 norm of the value",
             .ref = "VATP: attention score is not all you need (guozhiyu/vatp); adapter of ours",
             .site = IWP_SITE_LAYER,
             .options = options,
             .positions = "original",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = 2},
    .needs = needs,
    .check = check,
    .select = select_vatp,
};
