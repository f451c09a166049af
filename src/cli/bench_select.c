/* `iwp bench select`: the time of a selection on clustered random tokens, no model needed.
 *
 * Beside each time stands a peer measured in the same run, alternating with ours: OpenBLAS sgemm
 * doing the multiply-adds of the pairs the selector looks at (loaded at run time when it is there,
 * never linked), and a plain read of k and v for selectors that only score.  Times are medians. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
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
     "md (default), json or csv"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {"iwp bench select --tokens 2048 --keep 0.353 -t 2",
                                       "one case", "iwp bench select -o json",
                                       "the whole grid as JSON", NULL};

static const struct iwp_command command = {
    .name = "bench select",
    .usage = "[options]",
    .about = "Times selections on clustered random tokens. gemm: OpenBLAS sgemm doing the same "
             "multiply-adds as the "
             "pairs the selector compares, in the same run; read: a plain read of k and v.",
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

typedef void sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void threads_fn(int);

struct blas {
    void *lib;
    sgemm_fn *sgemm;
    threads_fn *threads;
};

static void blas_open(struct blas *b) {
    memset(b, 0, sizeof *b);
    /* Under some hypervisors OpenBLAS takes a current CPU for a very old one; a slow peer would flatter us. */
    const char *path = iwp_cpu_name();
    if (strcmp(path, "avx512") == 0) setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    if (strcmp(path, "avx2") == 0) setenv("OPENBLAS_CORETYPE", "Haswell", 0);
    setenv("OPENBLAS_THREAD_TIMEOUT", "4",
           0); /* else its idle threads spin on our cores for tens of ms */
    b->lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!b->lib) return;
    void *f = dlsym(b->lib, "cblas_sgemm"), *t = dlsym(b->lib, "openblas_set_num_threads");
    memcpy(&b->sgemm, &f, sizeof f); /* the portable way from a data to a function pointer */
    memcpy(&b->threads, &t, sizeof t);
}

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

struct gemm {
    float *a, *b, *c;
    int m, k, times;
};

static int gemm_make(struct gemm *g, double pairs, int k, int times) {
    /* The whole product must fit memory; larger ones are the same product repeated. */
    double m = ceil(pairs / 256);
    int parts = (int)ceil(m / 65536);
    g->m = (int)ceil(m / parts);
    g->k = k;
    g->times = times * parts;
    g->a = calloc((size_t)g->m * (size_t)k, sizeof(float));
    g->b = calloc((size_t)k * 256, sizeof(float));
    g->c = calloc((size_t)g->m * 256, sizeof(float));
    if (!g->a || !g->b || !g->c) return -1;
    for (size_t i = 0; i < (size_t)g->m * (size_t)k; i++) g->a[i] = (float)(i % 7) * 0.1f;
    for (size_t i = 0; i < (size_t)k * 256; i++) g->b[i] = (float)(i % 5) * 0.1f;
    return 0;
}

static void gemm_free(struct gemm *g) {
    free(g->a);
    free(g->b);
    free(g->c);
    memset(g, 0, sizeof *g);
}

static double gemm_run(const struct blas *blas, const struct gemm *g, int threads) {
    if (blas->threads) blas->threads(threads);
    double t = now_ms();
    for (int i = 0; i < g->times; i++)
        blas->sgemm(101, 111, 111, g->m, 256, g->k, 1, g->a, g->k, g->b, 256, 0, g->c, 256);
    return now_ms() - t;
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
    int64_t bytes;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static int measure(const struct args *a, const struct iwp_params *p, const struct data *d,
                   const struct blas *blas, int32_t threads, struct row *row, iwp_err *err) {
    int rc = 0, n = 0, n_gemm = 0;
    double gemm_ms = 0;
    iwp_pool *pool = NULL;
    struct iwp_exec exec;
    struct iwp_selection sel = {0};
    struct gemm gemm = {0};
    struct reader *reader = calloc(1, sizeof *reader);
    double *ours = calloc(3 * MAX_RUNS, sizeof *ours), *theirs = ours + MAX_RUNS,
           *reads = ours + 2 * MAX_RUNS;
    void *ws = NULL;
    if (!ours || !reader) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(iwp_cli_exec(&pool, threads, &exec, err));
    int64_t bytes = iwp_select_workspace(p, &d->in, &exec, err);
    if (bytes < 0) {
        rc = (int)bytes;
        goto fail;
    }
    ws = malloc((size_t)bytes);
    sel.keep = malloc(sizeof(int32_t) * (size_t)d->in.n);
    sel.merge = malloc(sizeof(struct iwp_merge) * 2 * (size_t)d->in.n);
    if (!ws || !sel.keep || !sel.merge)
        IWP_FAIL(err, IWP_ENOMEM, "no memory for a workspace of %lld bytes", (long long)bytes);
    int32_t m = iwp_keep_count(p->budget.keep, row->tokens);
    int is_iwp = strcmp(row->method, "iwp") == 0,
        pairs = is_iwp && strcmp(row->selector, "topk") != 0;
    row->pairs = pairs ? count_pairs(row->selector, row->tokens, m) : 0;
    int with_gemm =
        blas->sgemm && row->pairs > 0 && gemm_make(&gemm, row->pairs, a->dim, 2 * a->kv_heads) == 0;
    const struct iwp_array *k = &d->in.arr[IWP_TENSOR_K], *v = &d->in.arr[IWP_TENSOR_V];
    int with_read = is_iwp && k->data && v->data;
    reader->x[0] = k->data;
    reader->x[1] = v->data;
    reader->n = (size_t)d->in.n * (size_t)(a->kv_heads * a->dim);
    reader->parts = threads;
    double start = iwp_clock_ms();
    for (int i = -1; i < a->repeats; i++) { /* the first is a warm-up */
        if (i >= 3 && iwp_clock_ms() - start > a->seconds * 1e3) break;
        double t = now_ms();
        IWP_TRY_GOTO(iwp_select(p, &d->in, NULL, ws, (size_t)bytes, &exec, &sel, err));
        double t1 = now_ms();
        if (with_gemm && (n_gemm < PEER_RUNS || gemm_ms < PEER_MS)) {
            double g = gemm_run(blas, &gemm, threads);
            gemm_ms += g;
            if (i >= 0) theirs[n_gemm++] = g;
        }
        double t2 = now_ms();
        if (with_read) iwp_pool_run(pool, read_part, reader, threads);
        if (i < 0) continue;
        ours[n] = t1 - t;
        reads[n++] = now_ms() - t2;
    }
    row->runs = n;
    row->n_keep = sel.n_keep;
    row->bytes = bytes;
    row->threads = threads;
    row->median = median(ours, n);
    row->p95 = ours[(int)(0.95 * (n - 1) + 0.5)];
    row->gemm = with_gemm ? median(theirs, n_gemm) : 0;
    row->read = with_read ? median(reads, n) : 0;
fail:
    gemm_free(&gemm);
    free(reader);
    free(ours);
    free(ws);
    free(sel.keep);
    free(sel.merge);
    iwp_pool_free(pool);
    return rc;
}

/* ---- output ------------------------------------------------------------------------------------------------ */

static void print_row(const struct args *a, struct iwp_json_out *j, const struct row *r) {
    double ratio = r->gemm > 0 ? r->median / r->gemm : 0,
           read = r->read > 0 ? r->read / r->median : 0;
    if (a->output == 1) {
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
        iwp_json_put_f64(j, "gemm_ms", r->gemm > 0 ? r->gemm : NAN);
        iwp_json_put_f64(j, "gemm_ratio", ratio > 0 ? ratio : NAN);
        iwp_json_put_f64(j, "pairs", r->pairs > 0 ? r->pairs : NAN);
        iwp_json_put_f64(j, "ns_per_pair", r->pairs > 0 ? r->median * 1e6 / r->pairs : NAN);
        iwp_json_put_f64(j, "read_share", read > 0 ? read : NAN);
        iwp_json_put_int(j, "workspace_bytes", r->bytes);
        iwp_json_close_object(j);
        return;
    }
    char gemm[32] = "-", rat[32] = "-", pair[32] = "-", rd[32] = "-";
    if (r->gemm > 0)
        snprintf(gemm, sizeof gemm, "%.3f", r->gemm), snprintf(rat, sizeof rat, "%.2f", ratio);
    if (r->pairs > 0) snprintf(pair, sizeof pair, "%.2f", r->median * 1e6 / r->pairs);
    if (read > 0) snprintf(rd, sizeof rd, "%.0f%%", 100 * read);
    const char *fmt = a->output == 2 ? "%s,%s,%d,%.3f,%d,%d,%d,%.3f,%.3f,%s,%s,%s,%s,%.1f\n"
                                     : "| %-10s | %-8s | %6d | %.3f | %5d | %d | %3d | %9.3f | "
                                       "%9.3f | %9s | %5s | %5s | %5s | %7.1f |\n";
    printf(fmt, r->method, r->selector, r->tokens, r->keep, r->n_keep, r->threads, r->runs,
           r->median, r->p95, gemm, rat, pair, rd, (double)r->bytes / 1048576);
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
                      const struct blas *blas, struct iwp_json_out *j, iwp_err *err) {
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
                IWP_TRY_GOTO(iwp_keep_parse(a->keep.at[ik], &p.budget.keep, err));
                row.keep = p.budget.keep;
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
    for (int32_t i = 0; i < a->keep.n; i++) IWP_TRY(iwp_keep_parse(a->keep.at[i], &keep, err));
    for (int32_t i = 0; i < a->method.n && !all; i++) {
        const struct iwp_method *m = NULL;
        struct iwp_params p;
        IWP_TRY(iwp_cli_find_method(a->method.at[i], &m, err));
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
    struct blas blas = {0};
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
    if ((rc = iwp_log_args_apply(&log, &err)) < 0 || (rc = iwp_cpu_check(&err)) < 0) {
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
    blas_open(&blas);
    if (!blas.sgemm)
        iwp_log(IWP_LOG_INFO, "no OpenBLAS (libopenblas.so.0) here: the gemm columns stay empty");
    if (a.output == 1) {
        iwp_json_open_object(&json, NULL);
        iwp_json_put_string(&json, "cpu", iwp_cpu_name());
        iwp_json_put_int(&json, "threads", iwp_cpu_count());
        iwp_json_open_array(&json, "rows");
    } else if (a.output == 2) {
        puts("method,selector,tokens,keep,n_keep,threads,runs,median_ms,p95_ms,gemm_ms,gemm_ratio,"
             "ns_per_pair,read_share,workspace_mib");
    } else {
        printf("cpu path %s, %d query heads, %d KV heads, head size %d\n\n", iwp_cpu_name(),
               a.heads, a.kv_heads, a.dim);
        puts("| method     | selector | tokens | keep  |  kept | t | run | median ms |    p95 ms | "
             "  gemm ms | ratio | ns/pr |  read |  ws MiB |");
        puts("|------------|----------|-------:|------:|------:|--:|----:|----------:|----------:|-"
             "---------:|------:|------:|------:|--------:|");
    }
    int all = a.method.n == 1 && strcmp(a.method.at[0], "all") == 0;
    for (int32_t i = 0; i < (all ? iwp_method_count() : a.method.n) && rc >= 0; i++) {
        const struct iwp_method *m = all ? iwp_method_at(i) : NULL;
        if (!m) rc = iwp_cli_find_method(a.method.at[i], &m, &err);
        if (rc < 0) break;
        if (all && (iwp_method_info(m)->flags & IWP_METHOD_ENGINE_ONLY)) continue;
        if (strcmp(iwp_method_info(m)->name, "iwp") != 0) {
            rc = run_method(&a, m, NULL, &blas, &json, &err);
            if (rc < 0 && all) { /* a budget it cannot reach: the others still count */
                iwp_log(IWP_LOG_WARN, "%s", err.msg);
                rc = 0;
            }
            continue;
        }
        for (int32_t s = 0; s < selector->n && rc >= 0; s++)
            rc = run_method(&a, m, selector->at[s], &blas, &json, &err);
    }
    if (rc < 0) {
        rc = iwp_cli_fail(command.name, &err);
        goto done;
    }
    if (a.output == 1) {
        iwp_json_close_array(&json);
        iwp_json_close_object(&json);
        if ((rc = iwp_json_write(&json, stdout, &err)) < 0) rc = iwp_cli_fail(command.name, &err);
    }
done:
    iwp_json_free(&json);
    iwp_strings_free(&all_selectors);
    iwp_strings_free(&rest);
    return rc;
}
