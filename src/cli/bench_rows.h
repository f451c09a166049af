/* What `iwp bench prefill` and `iwp bench e2e` share: the grid of methods and budgets, rows of results,
 * their tables (CONTRACT section 5). */
#ifndef IWP_CLI_BENCH_ROWS_H
#define IWP_CLI_BENCH_ROWS_H

#include "cli/bench_json.h"
#include "cli/engine_args.h"

/* Medians over repeats.  NAN: not measured. */
struct iwp_bench_row {
    const char *prune;
    double keep; /* 0: none */
    int32_t prompt, visual, kept;
    double encode, select, prefill, spread, ttft; /* ms */
    double decode, together;                      /* tokens per second: one session, all of them */
    double flops, flops_full;
    int64_t kv_bytes, peak_rss;
};
struct iwp_bench_row iwp_bench_row(void); /* nothing measured */

struct iwp_bench_rows {
    struct iwp_bench_row *at;
    int32_t n, cap;
    struct iwp_engine_info e;
    int32_t format; /* 0 Markdown, 1 JSON, 2 CSV */
    struct iwp_json_out json;
};
/* The head of the table; its rows follow as they are measured.  Shares are against the last `none` row above. */
void iwp_bench_rows_begin(struct iwp_bench_rows *r, const struct iwp_engine_info *e,
                          int32_t format);
/* The JSON document, which is printed whole. */
int iwp_bench_rows_end(struct iwp_bench_rows *r, iwp_err *err);
void iwp_bench_rows_free(struct iwp_bench_rows *r);

/* Calls measure for every method and budget (`none` once) and appends what it fills. */
struct iwp_bench_grid {
    struct iwp_strings prune, keep; /* empty: none,iwp and 22.2% */
    int32_t layer;                  /* -1: the method's */
    int (*measure)(void *ctx, const struct iwp_params *prune, struct iwp_bench_row *row,
                   iwp_err *err);
    void *ctx;
};
int iwp_bench_grid_run(const struct iwp_bench_grid *g, struct iwp_bench_rows *rows, iwp_err *err);
/* Names and budgets, before a model is loaded.  With picture false also that no method needs one. */
int iwp_bench_grid_check(const struct iwp_strings *prune, const struct iwp_strings *keep,
                         bool picture, iwp_err *err);

/* That so deep a layer is there, before the first row is measured; -1: the method's. */
int iwp_bench_grid_layer(int32_t layer, const struct iwp_engine_info *e, iwp_err *err);

double iwp_bench_median(double *v, int32_t n); /* sorts */
int64_t iwp_bench_peak_rss(void);

#endif
