/* `iwp bench select`: the time of a selection on clustered random tokens, no model needed.
 *
 * Beside each time stand peers measured in the same run, alternating with ours: OpenBLAS sgemm doing the
 * products of the method's own Gram or attention block (for iwp: of the pairs the selector looks at), for
 * the greedy methods a plain version of the whole on BLAS, and for selectors that only score a plain read
 * of k and v.  Times are medians. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpus.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "cli/bench_json.h"
#include "cli/bench_peers.h"
#include "cli/cmd.h"

enum { N_TEXT = 64, MAX_RUNS = 1000, PEER_RUNS = 3 };

#define PEER_MS 5e3 /* a slow peer is repeated this long, and PEER_RUNS times at least */

struct args {
    struct iwp_strings method, tokens, keep, selector, threads, opt;
    int32_t heads, kv_heads, dim, width, repeats, output;
    double seconds;
    bool cpu_time;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt bench_opts[] = {
    {"--method, --prune", "NAME,…", IWP_OPT_COMMAS, AT(method), 0, 0, NULL,
     "methods (default: iwp; all = every one that runs on arrays)"},
    {"--tokens", "N,…", IWP_OPT_COMMAS, AT(tokens), 0, 0, NULL,
     "visual tokens (default: 320,2048,8192,16384,65536)"},
    {"--keep", "R,…", IWP_OPT_COMMAS, AT(keep), 0, 0, NULL,
     "fractions kept (default: 0.353,0.222,0.111)"},
    {"--selector", "NAME,…", IWP_OPT_COMMAS, AT(selector), 0, 0, NULL,
     "iwp's selectors (default: all)"},
    {"-t, --threads", "N,…", IWP_OPT_COMMAS, AT(threads), 0, 0, NULL,
     "thread counts (default: 1,2)"},
    {"--opt, --prune-opt", "K=V,…", IWP_OPT_LIST, AT(opt), 0, 0, NULL, "options of the method"},
    {"--heads", "N", IWP_OPT_INT, AT(heads), 1, 1024, NULL, "query heads (default 28)"},
    {"--kv-heads", "N", IWP_OPT_INT, AT(kv_heads), 1, 64, NULL, "KV heads (default 4)"},
    {"--dim", "N", IWP_OPT_INT, AT(dim), 1, 1024, NULL, "head size (default 128)"},
    {"--width", "N", IWP_OPT_INT, AT(width), 1, 16384, NULL,
     "model width, for methods that read rows (default 3584)"},
    {"-r, --repeats", "N", IWP_OPT_INT, AT(repeats), 1, MAX_RUNS, NULL,
     "runs per case (default 20)"},
    {"--max-seconds", "S", IWP_OPT_REAL, AT(seconds), 0.1, 3600, NULL,
     "stop repeating a case after this long, but never before 3 runs (default: no limit)"},
    {"--cpu-time", NULL, IWP_OPT_FLAG, AT(cpu_time), 0, 0, NULL,
     "measure CPU time of the process instead of wall time: for one thread on a busy machine"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(output), 0, 0, "md|json|csv",
     "md (default, fits a terminal), json or csv (all columns)"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {"iwp bench select --tokens 2048 --keep 0.353 -t 2",
                                       "one case", "iwp bench select -o json",
                                       "the whole grid as JSON", NULL};

static const struct iwp_command command = {
    .name = "bench select",
    .usage = "[options]",
    .about = "Times selections on clustered random tokens. gemm: OpenBLAS sgemm doing the products "
             "of the method's own Gram or attention block, in the same run (iwp: of the pairs its "
             "selector compares); ws: scratch memory. json and csv also have bound: 1.3 gemm + 20 "
             "ms; blas: a plain version of a greedy method on BLAS; read: a plain read of k and v.",
    .examples = examples,
};

static clockid_t clock_id = CLOCK_MONOTONIC;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- data ------------------------------------------------------------------------------------------- */

struct data {
    struct iwp_input in;
    uint8_t *code;
    float *mem[IWP_TENSOR_COUNT];
};

static uint64_t next(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static float gauss(uint64_t *s) { /* sum of four uniforms: fast and close enough */
    float x = 0;
    for (int i = 0; i < 4; i++) x += (float)(next(s) >> 40) * (1.0f / 16777216.0f);
    return (x - 2.0f) * 1.7320508f;
}

static void data_free(struct data *d) {
    for (int t = 0; t < IWP_TENSOR_COUNT; t++) free(d->mem[t]);
    free(d->code);
    memset(d, 0, sizeof *d);
}

/* Rows around one of 64 centres per head: duplication matters, as it does in pictures. */
static int fill(struct data *d, enum iwp_tensor t, int32_t rows, int32_t heads, int32_t dim) {
    uint64_t s = 88172645463325252ULL + (uint64_t)t, c = s;
    size_t n = (size_t)heads * (size_t)dim;
    float *x = malloc(sizeof(float) * (size_t)rows * n), *centre = malloc(sizeof(float) * 64 * n);
    if (!x || !centre) {
        free(x);
        free(centre);
        return -1;
    }
    for (size_t i = 0; i < 64 * n; i++) centre[i] = gauss(&c);
    for (int32_t r = 0; r < rows; r++) {
        const float *m = centre + (size_t)(next(&s) % 64) * n;
        for (size_t i = 0; i < n; i++) x[(size_t)r * n + i] = m[i] + 0.3f * gauss(&s);
    }
    free(centre);
    d->mem[t] = x;
    d->in.arr[t] = iwp_array_f32(x, rows, heads, dim);
    return 0;
}

static int data_make(struct data *d, const struct args *a, const struct iwp_params *p, int32_t n,
                     iwp_err *err) {
    struct iwp_need need[IWP_TENSOR_COUNT];
    int k = iwp_params_needs(p, 0, need, IWP_TENSOR_COUNT), bad = 0;
    int32_t rows = n + N_TEXT;
    memset(d, 0, sizeof *d);
    d->code = malloc((size_t)rows);
    if (d->code) {
        for (int32_t i = 0; i < rows; i++)
            d->code[i] = i < N_TEXT / 2 ? 0 : i < N_TEXT / 2 + n ? 1 : 3;
        for (int i = 0; i < k && !bad; i++) {
            enum iwp_tensor t = need[i].tensor;
            switch (t) {
            case IWP_TENSOR_Q:
            case IWP_TENSOR_Q_ROPE:
            case IWP_TENSOR_Q_ROPE_PREV: bad = fill(d, t, rows, a->heads, a->dim); break;
            case IWP_TENSOR_K:
            case IWP_TENSOR_K_ROPE:
            case IWP_TENSOR_K_ROPE_PREV:
            case IWP_TENSOR_V: bad = fill(d, t, rows, a->kv_heads, a->dim); break;
            case IWP_TENSOR_VIT_Q:
            case IWP_TENSOR_VIT_K: bad = fill(d, t, n, 16, 72); break; /* SigLIP-so400m */
            case IWP_TENSOR_VIT_FEATURES: bad = fill(d, t, n, 1, 1152); break;
            case IWP_TENSOR_TEXT_EMBEDS: bad = fill(d, t, 1, 1, 1152); break;
            case IWP_TENSOR_FINAL_NORM: bad = fill(d, t, 1, 1, a->width); break;
            default: bad = fill(d, t, rows, 1, a->width); break;
            }
        }
    }
    d->in.n = rows;
    d->in.code = d->code;
    if (d->code && !bad) return 0;
    data_free(d);
    return iwp_err_set(err, IWP_ENOMEM, "no memory for %d tokens", n);
}

/* ---- the peers ----------------------------------------------------------------------------------------- */

/* Pairs (unselected, new) that pc-mmr looks at; the greedy selectors are measured by all of theirs. */
static double count_pairs(const char *selector, int64_t n, int64_t m) {
    double pairs = 0, b = strcmp(selector, "pc-mmr") == 0 ? 2 : 1, g = b;
    for (int64_t done = 0; done < m;) {
        int64_t k = b >= (double)(m - done) ? m - done : (int64_t)b;
        done += k;
        if (done < m) pairs += (double)k * (double)(n - done);
        b *= g;
    }
    return pairs;
}

/* iwp's pairs as one product of 256 columns per head, k and v; larger ones are the same product again. */
static struct iwp_product pair_product(double pairs, int32_t dim, int32_t times) {
    const double m = ceil(pairs / 256);
    const int32_t parts = (int32_t)ceil(m / 65536);
    return (struct iwp_product){(int32_t)ceil(m / parts), 256, dim, times * parts};
}

struct reader {
    const float *x[2];
    size_t n;
    float sum[IWP_POOL_MAX * 16];
    int32_t parts;
};

static void read_part(void *arg, int32_t i) {
    struct reader *r = arg;
    size_t a = r->n * (size_t)i / (size_t)r->parts, b = r->n * (size_t)(i + 1) / (size_t)r->parts;
    float s[64] = {0};
    for (int w = 0; w < 2; w++)
        for (size_t j = a; j + 64 <= b; j += 64)
            for (int l = 0; l < 64; l++) s[l] += r->x[w][j + (size_t)l];
    for (int l = 1; l < 64; l++) s[0] += s[l];
    r->sum[i * 16] = s[0];
}

/* ---- one case -------------------------------------------------------------------------------------------- */

struct row {
    const char *method, *selector;
    int32_t tokens, n_keep, threads, runs;
    double keep, median, p95, gemm, read, pairs;
    double blas;             /* the whole method plainly; 0: not such a method */
    int32_t n_product, same; /* same: tokens that we and the plain version both keep */
    struct iwp_product product[IWP_PRODUCT_MAX];
    int64_t bytes;
};

/* Most ms for a method that is not greedy: 1.3 times its own products and 20; 0: nothing to compare with. */
static double bound(const struct row *r) {
    return r->blas > 0 || (r->n_product > 0 && r->gemm <= 0) ? 0 : 1.3 * r->gemm + 20;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* Everything one case is measured with. */
struct rig {
    iwp_pool *pool;
    struct iwp_exec exec;
    struct iwp_selection sel;
    struct iwp_product_run products;
    struct reader *reader;
    double *ours, *gemm, *blas, *reads; /* [MAX_RUNS] */
    int32_t *plain;                     /* [tokens] what the plain version keeps */
    void *ws;
};

static void rig_free(struct rig *g) {
    iwp_product_run_free(&g->products);
    free(g->reader);
    free(g->ours);
    free(g->plain);
    free(g->ws);
    free(g->sel.keep);
    free(g->sel.merge);
    iwp_pool_free(g->pool);
}

static int rig_make(struct rig *g, const struct iwp_params *p, const struct data *d,
                    int32_t threads, struct row *row, iwp_err *err) {
    g->reader = calloc(1, sizeof *g->reader);
    g->ours = calloc(4 * MAX_RUNS, sizeof *g->ours);
    IWP_REQUIRE(g->reader && g->ours, err, IWP_ENOMEM, "out of memory");
    g->gemm = g->ours + MAX_RUNS;
    g->blas = g->ours + 2 * MAX_RUNS;
    g->reads = g->ours + 3 * MAX_RUNS;
    IWP_TRY(iwp_cli_exec(&g->pool, threads, &g->exec, err));
    row->bytes = iwp_select_workspace(p, &d->in, &g->exec, err);
    if (row->bytes < 0) return (int)row->bytes;
    g->ws = malloc((size_t)row->bytes);
    g->plain = malloc(sizeof(int32_t) * (size_t)row->tokens);
    g->sel.keep = malloc(sizeof(int32_t) * (size_t)d->in.n);
    g->sel.merge = malloc(sizeof(struct iwp_merge) * 2 * (size_t)d->in.n);
    IWP_REQUIRE(g->ws && g->plain && g->sel.keep && g->sel.merge, err, IWP_ENOMEM,
                "no memory for a workspace of %lld bytes", (long long)row->bytes);
    return 0;
}

/* The products of the case, and memory for them when there is BLAS. */
static int rig_products(struct rig *g, const struct args *a, const struct iwp_params *p,
                        const struct data *d, const struct iwp_blas *blas, struct row *row,
                        iwp_err *err) {
    const int32_t m = iwp_keep_count(p->budget.keep, row->tokens);
    if (strcmp(row->method, "iwp") == 0) {
        row->pairs =
            strcmp(row->selector, "topk") != 0 ? count_pairs(row->selector, row->tokens, m) : 0;
        row->n_product = row->pairs > 0;
        if (row->n_product) row->product[0] = pair_product(row->pairs, a->dim, 2 * a->kv_heads);
    } else if (a->opt.n == 0) {
        row->n_product = iwp_peer_products(row->method, &d->in, row->tokens, m, row->product);
    }
    if (!blas->sgemm || row->n_product == 0) return 0;
    IWP_REQUIRE(iwp_product_run_init(&g->products, row->product, row->n_product) == 0, err,
                IWP_ENOMEM, "no memory for the products of %s", row->method);
    return 0;
}

static int32_t count_same(const struct iwp_selection *sel, const int32_t *plain, int32_t n) {
    int32_t same = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < sel->n_keep; k++) same += sel->keep[k] == plain[i];
    return same;
}

static int measure(const struct args *a, const struct iwp_params *p, const struct data *d,
                   const struct iwp_blas *blas, int32_t threads, struct row *row, iwp_err *err) {
    struct rig g = {0};
    int rc = 0, n = 0, n_gemm = 0, with_blas = 0;
    double gemm_ms = 0;
    IWP_TRY_GOTO(rig_make(&g, p, d, threads, row, err));
    IWP_TRY_GOTO(rig_products(&g, a, p, d, blas, row, err));
    const struct iwp_array *k = &d->in.arr[IWP_TENSOR_K], *v = &d->in.arr[IWP_TENSOR_V];
    const int with_read = strcmp(row->method, "iwp") == 0 && k->data && v->data;
    g.reader->x[0] = k->data;
    g.reader->x[1] = v->data;
    g.reader->n = (size_t)d->in.n * (size_t)(a->kv_heads * a->dim);
    g.reader->parts = threads;
    if (blas->threads) blas->threads(threads);
    double start = iwp_clock_ms();
    for (int i = -1; i < a->repeats; i++) { /* the first is a warm-up */
        if (i >= 3 && iwp_clock_ms() - start > a->seconds * 1e3) break;
        double t = now_ms();
        IWP_TRY_GOTO(iwp_select(p, &d->in, NULL, g.ws, (size_t)row->bytes, &g.exec, &g.sel, err));
        double t1 = now_ms();
        const bool with_gemm = g.products.a && (n_gemm < PEER_RUNS || gemm_ms < PEER_MS);
        if (with_gemm) iwp_product_run_once(&g.products, blas, row->product, row->n_product);
        double t2 = now_ms();
        if (a->opt.n == 0)
            with_blas =
                iwp_peer_select(blas, row->method, &d->in, row->tokens, g.sel.n_keep, g.plain);
        if (with_blas < 0) IWP_FAIL(err, IWP_ENOMEM, "no memory for the plain %s", row->method);
        double t3 = now_ms();
        if (with_read) iwp_pool_run(g.pool, read_part, g.reader, threads);
        if (i < 0) continue;
        g.ours[n] = t1 - t;
        if (with_gemm) gemm_ms += g.gemm[n_gemm++] = t2 - t1;
        g.blas[n] = t3 - t2;
        g.reads[n++] = now_ms() - t3;
    }
    row->runs = n;
    row->n_keep = g.sel.n_keep;
    row->threads = threads;
    row->median = median(g.ours, n);
    row->p95 = g.ours[(int)(0.95 * (n - 1) + 0.5)];
    row->gemm = n_gemm ? median(g.gemm, n_gemm) : 0;
    row->blas = with_blas ? median(g.blas, n) : 0;
    if (with_blas) row->same = count_same(&g.sel, g.plain, g.sel.n_keep);
    row->read = with_read ? median(g.reads, n) : 0;
fail:
    rig_free(&g);
    return rc;
}

/* ---- output ------------------------------------------------------------------------------------------------ */

/* "2048x2048x3584 + 16 of 2048x2048x72" */
static void put_products(const struct row *r, char *to, size_t cap) {
    size_t at = 0;
    snprintf(to, cap, "-");
    for (int32_t i = 0; i < r->n_product && at < cap; i++) {
        const struct iwp_product *p = &r->product[i];
        if (i) at += (size_t)snprintf(to + at, cap - at, " + ");
        if (p->times > 1 && at < cap) at += (size_t)snprintf(to + at, cap - at, "%d of ", p->times);
        if (at < cap) at += (size_t)snprintf(to + at, cap - at, "%dx%dx%d", p->m, p->n, p->k);
    }
}

static double or_nan(double x) { return x > 0 ? x : NAN; }

static void print_json(struct iwp_json_out *j, const struct row *r, const char *products) {
    iwp_json_open_object(j, NULL);
    iwp_json_put_string(j, "method", r->method);
    iwp_json_put_string(j, "selector", r->selector);
    iwp_json_put_int(j, "tokens", r->tokens);
    iwp_json_put_f64(j, "keep", r->keep);
    iwp_json_put_int(j, "n_keep", r->n_keep);
    iwp_json_put_int(j, "threads", r->threads);
    iwp_json_put_int(j, "runs", r->runs);
    iwp_json_put_f64(j, "median_ms", r->median);
    iwp_json_put_f64(j, "p95_ms", r->p95);
    iwp_json_put_f64(j, "gemm_ms", or_nan(r->gemm));
    iwp_json_put_f64(j, "gemm_ratio", r->gemm > 0 ? r->median / r->gemm : NAN);
    iwp_json_put_f64(j, "pairs", or_nan(r->pairs));
    iwp_json_put_f64(j, "ns_per_pair", r->pairs > 0 ? r->median * 1e6 / r->pairs : NAN);
    iwp_json_put_f64(j, "read_share", r->read > 0 ? r->read / r->median : NAN);
    iwp_json_put_string(j, "products", products);
    iwp_json_put_f64(j, "multiply_adds", iwp_product_count(r->product, r->n_product));
    iwp_json_put_f64(j, "bound_ms", or_nan(bound(r)));
    iwp_json_put_f64(j, "blas_ms", or_nan(r->blas));
    iwp_json_put_f64(j, "blas_ratio", r->blas > 0 ? r->median / r->blas : NAN);
    iwp_json_put_f64(j, "blas_same", r->blas > 0 ? (double)r->same : NAN);
    iwp_json_put_int(j, "workspace_bytes", r->bytes);
    iwp_json_close_object(j);
}

/* A number, or a dash when it was not measured. */
static const char *cell(char buf[24], const char *format, double x) {
    if (x > 0)
        snprintf(buf, 24, format, x);
    else
        snprintf(buf, 24, "-");
    return buf;
}

static void print_row(const struct args *a, struct iwp_json_out *j, const struct row *r) {
    char products[160], c[8][24], name[32];
    put_products(r, products, sizeof products);
    if (a->output == 1) {
        print_json(j, r, products);
        iwp_bench_json_keep(j);
        return;
    }
    const double all = iwp_product_count(r->product, r->n_product),
                 mib = (double)r->bytes / 1048576;
    cell(c[0], "%.3f", r->gemm);
    const double ratio = r->gemm > 0 ? r->median / r->gemm : 0;
    cell(c[1], ratio < 100 ? "%.2f" : "%.0f", ratio);
    if (a->output == 2)
        printf("%s,%s,%d,%.3f,%d,%d,%d,%.3f,%.3f,%s,%s,%s,%s,%.1f,%s,%s,%s,%s\n", r->method,
               r->selector, r->tokens, r->keep, r->n_keep, r->threads, r->runs, r->median, r->p95,
               c[0], c[1], cell(c[2], "%.2f", r->pairs > 0 ? r->median * 1e6 / r->pairs : 0),
               cell(c[3], "%.2f", r->read / r->median), mib, cell(c[4], "%.1f", bound(r)),
               cell(c[5], "%.1f", r->blas), cell(c[6], "%.2f", all / 1e9), products);
    else {
        snprintf(name, sizeof name, "%s%s%s", r->method, *r->selector == '-' ? "" : " ",
                 *r->selector == '-' ? "" : r->selector);
        printf("| %-12s | %6d | %.3f | %5d | %2d | %9.3f | %9.3f | %9s | %5s | %6.1f |\n", name,
               r->tokens, r->keep, r->n_keep, r->threads, r->median, r->p95, c[0], c[1], mib);
    }
    fflush(stdout);
}

static void defaults(struct iwp_strings *s, const char *const *at, int32_t n) {
    if (s->n) return;
    s->at = malloc(sizeof *s->at * (size_t)n);
    if (!s->at) return;
    memcpy(s->at, at, sizeof *s->at * (size_t)n);
    s->n = n;
}

static int whole(const char *text, int32_t lo, int32_t hi, const char *flag, int32_t *out,
                 iwp_err *err) {
    char *end;
    long x = strtol(text, &end, 10);
    IWP_REQUIRE(*text && !*end && x >= lo && x <= hi, err, IWP_EINVAL,
                "%s %s: give whole numbers from %d to %d", flag, text, lo, hi);
    *out = (int32_t)x;
    return 0;
}

static int run_method(const struct args *a, const struct iwp_method *m, const char *selector,
                      bool all, const struct iwp_blas *blas, struct iwp_json_out *j, iwp_err *err) {
    int rc = 0;
    struct iwp_params p;
    struct data d = {0};
    iwp_params_default(&p, m);
    for (int32_t i = 0; i < a->opt.n; i++) IWP_TRY(iwp_params_parse(&p, a->opt.at[i], err));
    if (selector) IWP_TRY(iwp_params_set(&p, "selector", selector, err));
    for (int32_t it = 0; it < a->tokens.n; it++) {
        int32_t n, threads;
        IWP_TRY_GOTO(whole(a->tokens.at[it], 1, 1 << 22, "--tokens", &n, err));
        IWP_TRY_GOTO(data_make(&d, a, &p, n, err));
        for (int32_t ik = 0; ik < a->keep.n; ik++)
            for (int32_t ih = 0; ih < a->threads.n; ih++) {
                struct row row = {.method = iwp_method_info(m)->name,
                                  .selector = selector ? selector : "-",
                                  .tokens = n};
                IWP_TRY_GOTO(whole(a->threads.at[ih], 1, IWP_POOL_MAX, "--threads", &threads, err));
                IWP_TRY_GOTO(iwp_cli_keep(a->keep.at[ik], &p.budget.keep, err));
                row.keep = p.budget.keep;
                if (all && strcmp(row.method, "tome") == 0 && row.keep < 0.5) {
                    /* One step on arrays merges at most half; in a tower every block is a step. */
                    p.budget.keep = row.keep = 0.5;
                }
                IWP_TRY_GOTO(measure(a, &p, &d, blas, threads, &row, err));
                print_row(a, j, &row);
            }
        data_free(&d);
    }
fail:
    data_free(&d);
    return rc;
}

/* Every list before the first row is printed: a wrong value is a usage error, not half a table. */
static int check_lists(const struct args *a, const struct iwp_strings *selector, iwp_err *err) {
    const bool all = a->method.n == 1 && strcmp(a->method.at[0], "all") == 0;
    int32_t x;
    double keep;
    for (int32_t i = 0; i < a->tokens.n; i++)
        IWP_TRY(whole(a->tokens.at[i], 1, 1 << 22, "--tokens", &x, err));
    for (int32_t i = 0; i < a->threads.n; i++)
        IWP_TRY(whole(a->threads.at[i], 1, IWP_POOL_MAX, "--threads", &x, err));
    for (int32_t i = 0; i < a->keep.n; i++) IWP_TRY(iwp_cli_keep(a->keep.at[i], &keep, err));
    IWP_REQUIRE(!all || a->opt.n == 0, err, IWP_EINVAL,
                "--opt: options belong to a method, name it instead of --method all");
    for (int32_t i = 0; i < a->method.n; i++) {
        const struct iwp_method *m = NULL;
        struct iwp_params p;
        IWP_TRY(iwp_cli_find_method(all ? "iwp" : a->method.at[i], &m, err)); /* it has selectors */
        iwp_params_default(&p, m);
        for (int32_t k = 0; k < a->opt.n; k++) IWP_TRY(iwp_params_parse(&p, a->opt.at[k], err));
        if (strcmp(iwp_method_info(m)->name, "iwp") != 0) continue;
        for (int32_t s = 0; s < selector->n; s++)
            IWP_TRY(iwp_params_set(&p, "selector", selector->at[s], err));
    }
    return 0;
}

int iwp_bench_select(int argc, char **argv) {
    static struct args a; /* its lists live as long as the process, like argv */
    a = (struct args){
        .heads = 28, .kv_heads = 4, .dim = 128, .width = 3584, .repeats = 20, .seconds = 1e9};
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_opt_group groups[] = {
        {"what", bench_opts, &a}, {"logging", iwp_log_opts, &log}, {NULL, NULL, NULL}};
    struct iwp_strings rest = {0}, all_selectors = {0};
    const struct iwp_strings *selector = &a.selector;
    struct iwp_blas blas = {0};
    struct iwp_json_out json;
    iwp_err err;
    iwp_json_init(&json, true);
    int rc = iwp_opts_parse(&command, groups, argc, argv, &rest, &err);
    if (rc > 0) { /* --help */
        rc = 0;
        goto done;
    }
    if (rc < 0) {
        rc = iwp_cli_usage(command.name, &err);
        goto done;
    }
    if ((rc = iwp_log_args_apply(&log, &err)) < 0) {
        rc = iwp_cli_usage(command.name, &err);
        goto done;
    }
    if (a.heads % a.kv_heads) {
        iwp_err_set(&err, IWP_EINVAL, "--heads %d: not a multiple of --kv-heads %d", a.heads,
                    a.kv_heads);
        rc = iwp_cli_usage(command.name, &err);
        goto done;
    }
    defaults(&a.method, (const char *const[]){"iwp"}, 1);
    defaults(&a.tokens, (const char *const[]){"320", "2048", "8192", "16384", "65536"}, 5);
    defaults(&a.keep, (const char *const[]){"0.353", "0.222", "0.111"}, 3);
    defaults(&a.threads, (const char *const[]){"1", "2"}, 2);
    static const char *const every[] = {"pc-mmr", "topk", "mmr-mult", "mmr-add"};
    if (!a.selector.n || (a.selector.n == 1 && strcmp(a.selector.at[0], "all") == 0)) {
        defaults(&all_selectors, every, 4);
        selector = &all_selectors;
    }
    if (check_lists(&a, selector, &err) < 0) {
        rc = iwp_cli_usage(command.name, &err);
        goto done;
    }
    if (a.cpu_time) clock_id = CLOCK_PROCESS_CPUTIME_ID;
    iwp_blas_open(&blas);
    if (!blas.sgemm)
        iwp_log(IWP_LOG_INFO, "no OpenBLAS (libopenblas.so.0) here: the gemm columns stay empty");
    if (a.output == 1) {
        iwp_json_open_object(&json, NULL);
        iwp_json_put_string(&json, "cpu", iwp_cpu_name());
        iwp_json_put_int(&json, "cpus", iwp_cpu_count()); /* each row has its threads */
        iwp_json_open_array(&json, "rows");
        iwp_bench_json_keep(&json);
    } else if (a.output == 2) {
        puts("method,selector,tokens,keep,n_keep,threads,runs,median_ms,p95_ms,gemm_ms,gemm_ratio,"
             "ns_per_pair,read_share,workspace_mib,bound_ms,blas_ms,g_multiply_adds,products");
    } else {
        printf("cpu path %s, %d query heads, %d KV heads, head size %d\n\n", iwp_cpu_name(),
               a.heads, a.kv_heads, a.dim);
        puts("| method       | tokens | keep  |  kept |  t | median ms |    p95 ms |   gemm ms | "
             "ratio "
             "| ws MiB |");
        puts("|--------------|-------:|------:|------:|---:|----------:|----------:|----------:|---"
             "---:"
             "|-------:|");
    }
    const bool all = a.method.n == 1 && strcmp(a.method.at[0], "all") == 0;
    for (int32_t i = 0; i < (all ? iwp_method_count() : a.method.n) && rc >= 0; i++) {
        const struct iwp_method *m = all ? iwp_method_at(i) : NULL;
        if (!m) rc = iwp_cli_find_method(a.method.at[i], &m, &err);
        if (rc < 0) break;
        if (all && (iwp_method_info(m)->flags & IWP_METHOD_ENGINE_ONLY)) continue;
        if (strcmp(iwp_method_info(m)->name, "iwp") != 0) {
            rc = run_method(&a, m, NULL, all, &blas, &json, &err);
            if (rc < 0 && all) { /* a budget it cannot reach: the others still count */
                iwp_log(IWP_LOG_WARN, "%s", err.msg);
                rc = 0;
            }
            continue;
        }
        for (int32_t s = 0; s < selector->n && rc >= 0; s++)
            rc = run_method(&a, m, selector->at[s], all, &blas, &json, &err);
    }
    if (rc < 0) {
        rc = iwp_cli_fail(command.name, &err);
        goto done;
    }
    if (a.output == 1 && (rc = iwp_bench_json_end(&json, &err)) < 0)
        rc = iwp_cli_fail(command.name, &err);
done:
    iwp_json_free(&json);
    iwp_strings_free(&all_selectors);
    iwp_strings_free(&rest);
    return rc;
}
