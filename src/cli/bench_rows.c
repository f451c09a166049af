/* Grid, rows and tables of the benches of a model: see bench_rows.h. */
#include "cli/bench_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/err.h"
#include "kern/cpu.h"

struct iwp_bench_row iwp_bench_row(void) {
    return (struct iwp_bench_row){.encode = NAN,
                                  .select = NAN,
                                  .prefill = NAN,
                                  .spread = NAN,
                                  .ttft = NAN,
                                  .decode = NAN,
                                  .together = NAN};
}

void iwp_bench_rows_free(struct iwp_bench_rows *r) {
    free(r->at);
    iwp_json_free(&r->json);
    memset(r, 0, sizeof *r);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double iwp_bench_median(double *v, int32_t n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int64_t iwp_bench_peak_rss(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0;
}

/* ---- tables ------------------------------------------------------------------------------------- */

/* How far a pruned prefill is from costing what its arithmetic says. */
struct shares {
    double flops, time, ratio, select; /* of the unpruned prefill; time / flops; of this prefill */
};

static struct shares shares_of(const struct iwp_bench_rows *rows, int32_t i) {
    const struct iwp_bench_row *r = &rows->at[i], *full = NULL;
    for (int32_t k = 0; k <= i; k++)
        if (rows->at[k].keep == 0 && rows->at[k].prompt == r->prompt) full = &rows->at[k];
    struct shares s = {.flops = r->flops / r->flops_full,
                       .time = full ? r->prefill / full->prefill : (double)NAN,
                       .select = r->select / r->prefill};
    s.ratio = s.time / s.flops;
    return s;
}

static void put_f64(struct iwp_json_out *w, const char *key, double v) {
    if (isnan(v))
        iwp_json_put_null(w, key);
    else
        iwp_json_put_f64(w, key, v);
}

static void put_ms(struct iwp_json_out *w, const char *key, double v) {
    if (isnan(v))
        iwp_json_put_null(w, key);
    else
        iwp_json_put_ms(w, key, v);
}

static void put_row(struct iwp_json_out *w, const char *model, const struct iwp_bench_row *r,
                    const struct shares *s) {
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "model", model);
    iwp_json_put_string(w, "prune", r->prune);
    put_f64(w, "keep", r->keep > 0 ? r->keep : (double)NAN);
    iwp_json_put_int(w, "visual", r->visual);
    iwp_json_put_int(w, "visual_kept", r->kept);
    iwp_json_put_int(w, "prompt", r->prompt);
    put_ms(w, "encode_ms", r->encode);
    put_ms(w, "select_ms", r->select);
    put_ms(w, "prefill_ms", r->prefill);
    put_ms(w, "prefill_spread_ms", r->spread);
    put_ms(w, "ttft_ms", r->ttft);
    put_f64(w, "prefill_tokens_per_s", r->prompt * 1e3 / r->prefill);
    put_f64(w, "decode_tokens_per_s", r->decode);
    put_f64(w, "parallel_tokens_per_s", r->together);
    put_f64(w, "gflops", r->flops / (r->prefill * 1e6));
    put_f64(w, "flop_share", s->flops);
    put_f64(w, "time_share", s->time);
    put_f64(w, "time_per_flop", s->ratio);
    put_f64(w, "select_share", s->select);
    iwp_json_put_int(w, "kv_bytes", r->kv_bytes);
    iwp_json_put_int(w, "peak_rss_bytes", r->peak_rss);
    iwp_json_close_object(w);
}

int iwp_bench_rows_end(struct iwp_bench_rows *rows, iwp_err *err) {
    return rows->format == 1 ? iwp_bench_json_end(&rows->json, err) : 0;
}

/* One column that may be empty. */
static void column(bool csv, int digits, double v) {
    if (isnan(v))
        fputs(csv ? "," : " - |", stdout);
    else
        printf(csv ? ",%.*f" : " %.*f |", digits, v);
}

void iwp_bench_rows_begin(struct iwp_bench_rows *rows, const struct iwp_engine_info *e,
                          int32_t format) {
    rows->e = *e;
    rows->format = format;
    if (format == 1) {
        iwp_json_init(&rows->json, true);
        iwp_json_open_object(&rows->json, NULL);
        iwp_json_put_string(&rows->json, "cpu", iwp_cli_cpu(iwp_cpu_features()));
        iwp_json_put_int(&rows->json, "threads", e->n_thread);
        iwp_json_open_array(&rows->json, "rows");
        iwp_bench_json_keep(&rows->json);
    }
}

/* With the first row: what cannot be measured at all leaves nothing on stdout. */
static void print_head(bool csv) {
    puts(csv ? "model,prune,keep,visual,visual_kept,prompt,encode_ms,select_ms,prefill_ms,"
               "prefill_spread_ms,ttft_ms,prefill_tokens_per_s,decode_tokens_per_s,"
               "parallel_tokens_per_s,gflops,flop_share,time_share,time_per_flop,select_share,"
               "kv_bytes,peak_rss_bytes"
             : "| model | prune | keep | visual | kept | prompt | encode ms | select ms | "
               "prefill ms | spread | ttft ms | prefill t/s | decode t/s | all sessions t/s | "
               "GFLOP/s | FLOP share | time share | time/FLOP | select share | KV MB | peak MB |\n"
               "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
               "--:|");
}

static void print_row(struct iwp_bench_rows *rows, int32_t i) {
    const bool csv = rows->format == 2;
    const struct iwp_bench_row *r = &rows->at[i];
    const struct shares s = shares_of(rows, i);
    if (rows->format == 1) {
        put_row(&rows->json, rows->e.name, r, &s);
        iwp_bench_json_keep(&rows->json);
        return;
    }
    if (i == 0) print_head(csv);
    const double scale = csv ? 1 : 1e-6;
    printf(csv ? "%s,%s,%g,%d,%d,%d" : "| %s | %s | %.3g | %d | %d | %d |", rows->e.name, r->prune,
           r->keep > 0 ? r->keep : 1, r->visual, r->kept, r->prompt);
    column(csv, csv ? 3 : 1, r->encode);
    column(csv, csv ? 3 : 2, r->select);
    column(csv, csv ? 3 : 1, r->prefill);
    column(csv, csv ? 3 : 1, r->spread);
    column(csv, csv ? 3 : 1, r->ttft);
    column(csv, 1, r->prompt * 1e3 / r->prefill);
    column(csv, 1, r->decode);
    column(csv, 1, r->together);
    column(csv, 1, r->flops / (r->prefill * 1e6));
    column(csv, 4, s.flops);
    column(csv, 4, s.time);
    column(csv, 3, s.ratio);
    column(csv, 5, s.select);
    column(csv, csv ? 0 : 1, (double)r->kv_bytes * scale);
    column(csv, 0, (double)r->peak_rss * scale);
    putchar('\n');
    fflush(stdout);
}

/* ---- the grid ----------------------------------------------------------------------------------- */

static bool needs_picture(const struct iwp_method *m) {
    struct iwp_params p;
    struct iwp_need need[IWP_TENSOR_COUNT];
    iwp_params_default(&p, m);
    bool yes = iwp_method_info(m)->site == IWP_SITE_MEDIA;
    const int n = iwp_params_needs(&p, 0, need, IWP_TENSOR_COUNT);
    for (int i = 0; i < n; i++)
        yes |= !need[i].optional && need[i].tensor >= IWP_TENSOR_VIT_FEATURES &&
               need[i].tensor <= IWP_TENSOR_TEXT_EMBEDS;
    return yes;
}

int iwp_bench_grid_check(const struct iwp_strings *prune, const struct iwp_strings *keep,
                         bool picture, iwp_err *err) {
    double ratio;
    for (int32_t i = 0; i < keep->n; i++) IWP_TRY(iwp_cli_keep(keep->at[i], &ratio, err));
    for (int32_t i = 0; i < prune->n; i++) {
        const struct iwp_method *m;
        int rc = iwp_cli_find_method(prune->at[i], &m, err);
        if (rc < 0) return iwp_err_prefix(err, rc, "--prune");
        IWP_REQUIRE(picture || !needs_picture(m), err, IWP_EINVAL,
                    "--prune: method %s needs a picture, there is none here; `iwp bench e2e` takes "
                    "it",
                    prune->at[i]);
    }
    return 0;
}

int iwp_bench_grid_layer(int32_t layer, const struct iwp_engine_info *e, iwp_err *err) {
    IWP_REQUIRE(layer < e->n_layer, err, IWP_EINVAL,
                "--prune-layer %d: the decoder has layers 0 to %d", layer, e->n_layer - 1);
    return 0;
}

static int add_case(const struct iwp_bench_grid *g, const char *name, const char *keep,
                    struct iwp_bench_rows *rows, iwp_err *err) {
    struct iwp_bench_row row = iwp_bench_row();
    struct iwp_params pp;
    row.prune = name;
    if (keep) {
        const struct iwp_method *method;
        IWP_TRY(iwp_cli_find_method(name, &method, err));
        IWP_TRY(iwp_cli_keep(keep, &row.keep, err));
        iwp_params_default(&pp, method);
        pp.budget.keep = row.keep;
        pp.layer = g->layer;
    }
    IWP_TRY(g->measure(g->ctx, keep ? &pp : NULL, &row, err));
    row.peak_rss = iwp_bench_peak_rss();
    if (rows->n == rows->cap) {
        const int32_t cap = rows->cap ? 2 * rows->cap : 16;
        struct iwp_bench_row *p = realloc(rows->at, (size_t)cap * sizeof *p);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
        rows->at = p;
        rows->cap = cap;
    }
    rows->at[rows->n++] = row;
    print_row(rows, rows->n - 1);
    return 0;
}

int iwp_bench_grid_run(const struct iwp_bench_grid *g, struct iwp_bench_rows *rows, iwp_err *err) {
    static const char *usual[] = {"none", "iwp"}, *budget = "22.2%";
    const struct iwp_strings ms = g->prune.n ? g->prune : (struct iwp_strings){usual, 2},
                             ks = g->keep.n ? g->keep : (struct iwp_strings){&budget, 1};
    for (int32_t m = 0; m < ms.n; m++) {
        const bool none = strcmp(ms.at[m], "none") == 0;
        for (int32_t k = 0; k < (none ? 1 : ks.n); k++)
            IWP_TRY(add_case(g, ms.at[m], none ? NULL : ks.at[k], rows, err));
    }
    return 0;
}
