/* What a method file sees: one row of the table, the view of a prompt, and small shared tools.
 * A method never sees the budget's text, separators or units as flags: the driver (select.c) turns
 * them into a pool of prunable tokens and a count per unit, and turns the marks a method leaves
 * into the caller's ascending list. */
#ifndef IWP_PRUNE_METHOD_H
#define IWP_PRUNE_METHOD_H

#include "base/err.h"
#include "iwp/prune.h"

/* Scratch memory.  With base NULL it only counts, which is how iwp_select_workspace learns the size:
 * a method takes all it needs first and returns when iwp_arena_counting() is true. */
struct iwp_arena {
    char *base;
    size_t used, cap;
};
void *iwp_arena_take(struct iwp_arena *a, size_t n, size_t size); /* 64-byte aligned, not zeroed */
static inline int iwp_arena_counting(const struct iwp_arena *a) { return a->base == NULL; }
#define IWP_TAKE(arena, type, n) ((type *)iwp_arena_take((arena), (size_t)(n), sizeof(type)))

/* A prompt as a method sees it.  Pool tokens are sorted by unit, inside a unit by prompt order. */
struct iwp_view {
    const struct iwp_params *params;
    const struct iwp_input *in;
    const struct iwp_exec *exec;       /* may be NULL */
    int32_t n_thread;                  /* ≥ 1 */
    int32_t n, n_visual;               /* prompt tokens; codes 1 and 2 */
    int32_t first_visual, last_visual; /* prompt positions */
    int32_t n_pool, n_keep;            /* prunable tokens, how many of them stay */
    int32_t n_unit;
    int as_published;    /* budget rule as-published: the authors' own counts */
    int32_t *visual;     /* [n_visual] prompt position */
    int32_t *pool;       /* [n_pool] prompt position */
    int32_t *rel;        /* [n_pool] index among the visual tokens */
    int32_t *unit_first; /* [n_unit+1] range of each unit in the pool */
    int32_t *unit_keep;  /* [n_unit] */
    /* results, by pool index */
    uint8_t *chosen;         /* [n_pool] 0 on entry, 1 = kept */
    float *scores;           /* [n_pool] */
    int has_scores;          /* set when scores were written */
    struct iwp_merge *merge; /* [2 n_pool] from, to are pool indices */
    int32_t n_merge;
    int32_t *sizes; /* [n_pool] 1 on entry */
    int has_sizes;
};

struct iwp_method {
    struct iwp_method_info info;
    int separators; /* exempt by default */
    int (*separators_of)(
        const struct iwp_params *); /* the same where it depends on options; NULL: as above */
    int (*renumbers_of)(const struct iwp_params *); /* NULL: flag IWP_METHOD_RENUMBERS */
    int checks_finite; /* looks for NaN and Inf itself; else the driver reads every needed row once */
    /* NULL: one stage at info.site */
    int (*plan)(const struct iwp_params *, const struct iwp_plan_shape *, struct iwp_stage *,
                int cap, iwp_err *);
    int (*needs)(const struct iwp_params *, int32_t stage, struct iwp_need *, int cap);
    int64_t (*state)(const struct iwp_params *, const struct iwp_input *); /* NULL: none */
    /* Beyond the shapes the driver checks; NULL: nothing. */
    int (*check)(const struct iwp_view *, iwp_err *);
    int (*select)(struct iwp_view *, struct iwp_arena *, void *state, iwp_err *);
};

/* The options of p as the method's own struct. */
#define IWP_OPTIONS(type, p) ((const struct type *)(const void *)(p)->opt.bytes)

/* ---- shared tools (tools.c) --------------------------------------------------------------------- */

/* fn(arg, i) for i in 0 … n-1 through the caller's threads. */
void iwp_parallel(const struct iwp_exec *exec, void (*fn)(void *arg, int32_t i), void *arg,
                  int32_t n);

/* One row of one head as floats: a pointer into the array, or into tmp [n_dim] after conversion. */
const float *iwp_array_row(const struct iwp_array *a, int32_t row, int32_t head, float *tmp);

/* The k best of n scores inside idx [n] (indices into score): larger score first, then lower index.
 * Reorders idx so that the first k are the best, in that order.  O(n log n). */
void iwp_top_k(const double *score, int32_t *idx, int32_t n, int32_t k);

/* Appends a need (once per tensor); returns the new number. */
int iwp_need_add(struct iwp_need *out, int n, int cap, enum iwp_tensor t, enum iwp_rows rows,
                 int optional);

/* An error that names the tensor and the row when a row that is read holds a NaN or Inf. */
int iwp_array_check_finite(const struct iwp_input *in, enum iwp_tensor t, enum iwp_rows rows,
                           int32_t first_visual, iwp_err *err);

/* Budget in range for n prunable tokens; prunable tokens of a plan. */
int iwp_budget_check(const struct iwp_budget *b, int32_t n, iwp_err *err);
/* How the user gave it.  An engine may have made a count of a ratio, which is left beside it then. */
static inline const char *iwp_budget_flag(const struct iwp_budget *b) {
    return b->n_keep && b->keep >= 1 ? "--keep-tokens" : "--keep";
}
int32_t iwp_plan_pool(const struct iwp_params *p, const struct iwp_plan_shape *s);

/* KV head that query head h reads. */
static inline int32_t iwp_kv_head(int32_t h, int32_t n_head, int32_t n_head_kv) {
    return (int32_t)((int64_t)h * n_head_kv / n_head);
}

/* exp and log by fixed sequences of IEEE operations: the same bits on every machine. */
double iwp_math_exp(double x);
double iwp_math_log(double x); /* x ≤ 0 → -inf */

#endif
