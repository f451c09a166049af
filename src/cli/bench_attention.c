/* `iwp bench attention`: the decoder's attention alone, through the same custom node as in a model, beside
 * ggml's flash attention on the same cache and beside the machine's limits, all in one run.
 *
 * Prefill is compute: 512 rows (or -ub) behind what is cached, GFLOP/s of the pairs that are seen, beside f32
 * multiply-adds.  Decode should be memory: one row on each of so many caches that no CPU cache holds them, GB/s beside
 * a plain read of the same bytes by the same threads, or beside what multiply-adds (f32, of a q8_0 cache 16-bit VNNI)
 * allow where that is less: query heads that share a key ask for as many multiplications of what is read once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "cli/bench_kernel.h"
#include "cli/bench_rows.h"
#include "kern/cpu.h"
#include "kern/peak.h"
#include "model/attend.h"

enum { MAX_RUNS = 1000, MAX_THREAD = 256, MAX_LAYER = 512 };

struct args {
    struct iwp_strings keys, type;
    int32_t threads, rows, heads, kv_heads, d, megabytes, repeats, output;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt bench_opts[] = {
    {"--keys", "N,…", IWP_OPT_COMMAS, AT(keys), 0, 0, NULL,
     "rows in the cache, those of the chunk counted (default 512,2048,4096)"},
    {"--type", "TYPE,…", IWP_OPT_COMMAS, AT(type), 0, 0, NULL,
     "types of the cache: f16, q8_0, f32 (default f16,q8_0)"},
    {"-ub, --ubatch-size", "N", IWP_OPT_INT, AT(rows), 2, 1 << 14, NULL,
     "rows of a prefill chunk (default 512)"},
    {"--heads", "N", IWP_OPT_INT, AT(heads), 1, 1024, NULL, "query heads (default 28)"},
    {"--kv-heads", "N", IWP_OPT_INT, AT(kv_heads), 1, 1024, NULL, "KV heads (default 4)"},
    {"--head-size", "N", IWP_OPT_INT, AT(d), 32, 512, NULL, "size of a head (default 128)"},
    {"--megabytes", "N", IWP_OPT_INT, AT(megabytes), 1, 1 << 16, NULL,
     "caches of decode, in all; more than the CPU's hold (default 512)"},
    {"-t, --threads", "N", IWP_OPT_INT, AT(threads), 1, MAX_THREAD, NULL,
     "threads (default: all CPUs)"},
    {"-r, --repeats", "N", IWP_OPT_INT, AT(repeats), 1, MAX_RUNS, NULL,
     "runs per case (default 5)"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(output), 0, 0, "md|json", "md (default) or json"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp bench attention", "Qwen2-7B's heads, both cache types",
    "iwp bench attention --heads 14 --kv-heads 2 --head-size 64 -t 1", "Qwen2-0.5B's, one thread",
    NULL};

static const struct iwp_command command = {
    .name = "bench attention",
    .usage = "[options]",
    .about = "Times the decoder's attention beside ggml's flash attention on the same cache, in "
             "turns. No model.",
    .examples = examples,
};

/* What was asked for, or the default. */
struct list {
    const char *const *at;
    int32_t n;
};

struct bench {
    const struct args *a;
    struct list keys, type;
    struct iwp_backend *b;
    struct iwp_attend *attend;
    struct iwp_sched *sched;
    struct iwp_kv kv;
    int32_t n_layer;
    float *q;          /* [rows][heads][d] */
    ggml_fp16_t *mask; /* [rows][keys] */
    struct iwp_json_out json;
};

/* ---- limits ---------------------------------------------------------------------------------------- */
/* Custom nodes too: measured by the threads that do the work. */

struct limit {
    const struct bench *b;
    enum iwp_peak peak;
    double done[MAX_THREAD];
    volatile uint64_t seen[MAX_THREAD];
};

static void run_peak(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct limit *l = user;
    (void)y, (void)nth;
    l->done[ith] = iwp_peak_run(l->peak, 4000000);
}

/* Each thread its share of every layer's rows. */
static void run_read(struct ggml_tensor *y, int ith, int nth, void *user) {
    struct limit *l = user;
    (void)y;
    for (int32_t i = 0; i < l->b->n_layer; i++) {
        const struct iwp_kv_layer *kv = &l->b->kv.layer[i];
        const size_t bytes = ((size_t)kv->n * kv->k->nb[1] / (size_t)nth) & ~(size_t)63,
                     from = (size_t)ith * bytes;
        l->seen[ith] += iwp_peak_read((const char *)kv->k->data + from, bytes);
        l->seen[ith] += iwp_peak_read((const char *)kv->v->data + from, bytes);
    }
}

static int run_limit(struct bench *b, ggml_custom_op_t fun, struct limit *l, double *ms,
                     iwp_err *err) {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    IWP_TRY(iwp_sched_begin(b->sched, &ctx, &graph, err));
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    ggml_set_input(x);
    ggml_build_forward_expand(
        graph, ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, &x, 1, fun, GGML_N_TASKS_MAX, l));
    iwp_sched_pin_custom(b->sched);
    IWP_TRY(iwp_sched_alloc(b->sched, err));
    iwp_backend_size_threads(b->b, INFINITY);
    const double t0 = iwp_clock_ms();
    IWP_TRY(iwp_sched_compute(b->sched, err));
    *ms = iwp_clock_ms() - t0;
    return 0;
}

/* GFLOP/s of multiply-adds, the best of three.  Bytes of a cache are multiplied with integers of 16 bits, which takes
 * twice as long as with other bytes. */
static int compute_limit(struct bench *b, bool integers, double *best, iwp_err *err) {
    const unsigned f = iwp_cpu_features();
    const bool narrow = f & IWP_CPU_AVX2 && !(f & IWP_CPU_AVX512);
    struct limit l = {.b = b,
                      .peak = integers ? IWP_PEAK_VNNI
                              : narrow ? IWP_PEAK_FMA_AVX2
                                       : IWP_PEAK_FMA};
    *best = 0;
    for (int r = 0; r < 3; r++) {
        double ms, done = 0;
        IWP_TRY(run_limit(b, run_peak, &l, &ms, err));
        for (int32_t i = 0; i < b->b->n_thread; i++) done += l.done[i];
        *best = fmax(*best, done / ms * (integers ? 0.5e-6 : 1e-6));
    }
    return 0;
}

/* ---- caches ---------------------------------------------------------------------------------------- */

static int fill(const struct bench *b, struct ggml_tensor *t, int32_t n, iwp_err *err) {
    const int64_t width = t->ne[0];
    float *x = malloc((size_t)width * (size_t)n * sizeof *x);
    void *data = malloc((size_t)n * t->nb[1]);
    uint64_t seed = 7;
    int rc = 0;
    if (!x || !data) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    for (int64_t i = 0; i < width * n; i++) x[i] = iwp_bench_noise(&seed);
    if (t->type == GGML_TYPE_F32)
        memcpy(data, x, (size_t)n * t->nb[1]);
    else
        ggml_quantize_chunk(t->type, x, data, 0, n, width, NULL);
    for (int32_t l = 0; l < b->n_layer; l++) {
        struct ggml_tensor *to = t == b->kv.layer[0].k ? b->kv.layer[l].k : b->kv.layer[l].v;
        ggml_backend_tensor_set(to, data, 0, (size_t)n * t->nb[1]);
    }
fail:
    free(x);
    free(data);
    return rc;
}

static int fill_caches(struct bench *b, enum ggml_type type, int32_t keys, int32_t n_layer,
                       iwp_err *err) {
    const int32_t width = b->a->kv_heads * b->a->d;
    b->n_layer = n_layer;
    IWP_TRY(iwp_kv_init(&b->kv, b->b, n_layer, width, type, type, err));
    for (int32_t l = 0; l < n_layer; l++) {
        IWP_TRY(iwp_kv_reserve(&b->kv, l, keys, err));
        b->kv.layer[l].n = keys;
    }
    IWP_TRY(fill(b, b->kv.layer[0].k, keys, err));
    return fill(b, b->kv.layer[0].v, keys, err);
}

/* ---- one case ------------------------------------------------------------------------------------- */

static struct ggml_tensor *view(struct ggml_context *ctx, const struct args *a,
                                struct ggml_tensor *t, int64_t n) {
    return ggml_view_3d(ctx, t, a->d, n, a->kv_heads, t->nb[1], ggml_row_size(t->type, a->d), 0);
}

/* All layers once; ms. */
static int run_once(struct bench *b, bool own, int32_t n, int32_t keys, double *ms, iwp_err *err) {
    const struct args *a = b->a;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    IWP_TRY(iwp_sched_begin(b->sched, &ctx, &graph, err));
    struct ggml_tensor *q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, a->d, a->heads, n), *mask = NULL;
    ggml_set_input(q);
    if (!own && n > 1) {
        mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, keys, n);
        ggml_set_input(mask);
    }
    for (int32_t l = 0; l < b->n_layer; l++) {
        const struct iwp_kv_layer *kv = &b->kv.layer[l];
        struct ggml_tensor *y =
            own ? iwp_attend_build(b->attend, ctx, q, kv, keys)
                : ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3),
                                      view(ctx, a, kv->k, keys), view(ctx, a, kv->v, keys), mask,
                                      1.0f / sqrtf((float)a->d), 0, 0);
        ggml_build_forward_expand(graph, y);
    }
    IWP_TRY(iwp_attend_check(b->attend, err));
    iwp_sched_pin_custom(b->sched);
    IWP_TRY(iwp_sched_alloc(b->sched, err));
    ggml_backend_tensor_set(q, b->q, 0, ggml_nbytes(q));
    if (mask) ggml_backend_tensor_set(mask, b->mask, 0, ggml_nbytes(mask));
    iwp_backend_size_threads(b->b, INFINITY);
    const double t0 = iwp_clock_ms();
    IWP_TRY(iwp_sched_compute(b->sched, err));
    *ms = iwp_clock_ms() - t0;
    return 0;
}

static void print_row(struct bench *b, const char *type, int32_t n, int32_t keys, double own,
                      double ggml, double limit, const char *bound) {
    if (b->a->output == 1) {
        iwp_json_open_object(&b->json, NULL);
        iwp_json_put_string(&b->json, "type", type);
        iwp_json_put_int(&b->json, "rows", n);
        iwp_json_put_int(&b->json, "keys", keys);
        iwp_json_put_string(&b->json, "unit", n > 1 ? "GFLOP/s" : "GB/s");
        iwp_json_put_f64(&b->json, "own", own);
        iwp_json_put_f64(&b->json, "ggml", ggml);
        iwp_json_put_f64(&b->json, "limit", limit);
        iwp_json_put_string(&b->json, "bound", bound);
        iwp_json_close_object(&b->json);
        iwp_bench_json_keep(&b->json);
        return;
    }
    printf("| %-4s | %4d | %6d | %-7s | %7.1f | %7.1f | %5.2f | %7.1f | %-5s | %3.0f %% |\n", type,
           n, keys, n > 1 ? "GFLOP/s" : "GB/s", own, ggml, own / ggml, limit, bound,
           100 * own / limit);
    fflush(stdout);
}

static int one_case(struct bench *b, enum ggml_type type, int32_t n, int32_t keys, iwp_err *err) {
    const struct args *a = b->a;
    double own[MAX_RUNS], ggml[MAX_RUNS], read[MAX_RUNS];
    const size_t bytes = 2 * (size_t)keys * ggml_row_size(type, (int64_t)a->kv_heads * a->d);
    const size_t many = ((size_t)a->megabytes << 20) / bytes;
    const int32_t n_layer = n > 1 || many < 1 ? 1 : many < MAX_LAYER ? (int32_t)many : MAX_LAYER;
    int rc = 0;
    IWP_TRY_GOTO(fill_caches(b, type, keys, n_layer, err));
    for (int32_t i = 0; i < n; i++) /* causal, as ggml wants to be told */
        for (int32_t j = 0; j < keys; j++)
            b->mask[(size_t)i * (size_t)keys + (size_t)j] =
                ggml_fp32_to_fp16(j > keys - n + i ? -INFINITY : 0.0f);
    for (int32_t r = -1; r < a->repeats; r++) { /* once to warm up */
        const int32_t at = r < 0 ? 0 : r;
        IWP_TRY_GOTO(run_once(b, true, n, keys, &own[at], err));
        IWP_TRY_GOTO(run_once(b, false, n, keys, &ggml[at], err));
        struct limit l = {.b = b};
        read[at] = 0;
        if (n == 1) IWP_TRY_GOTO(run_limit(b, run_read, &l, &read[at], err));
    }
    const double t_own = iwp_bench_median(own, a->repeats),
                 t_ggml = iwp_bench_median(ggml, a->repeats),
                 t_read = iwp_bench_median(read, a->repeats);
    const double flops = 4.0 * a->d * a->heads * n * (keys - n + (n + 1) / 2.0) * n_layer,
                 work = n > 1 ? flops : (double)bytes * n_layer;
    const bool integers = n == 1 && type == GGML_TYPE_Q8_0 && iwp_cpu_features() & IWP_CPU_VNNI;
    double peak;
    IWP_TRY_GOTO(compute_limit(b, integers, &peak, err));
    const double compute = peak * work / flops, memory = n > 1 ? INFINITY : work / t_read * 1e-6;
    print_row(b, ggml_type_name(type), n, keys, work / t_own * 1e-6, work / t_ggml * 1e-6,
              fmin(compute, memory),
              memory < compute ? "read"
              : integers       ? "int16"
                               : "f32");
fail:
    iwp_kv_free(&b->kv);
    return rc;
}

static int type_of(const char *name, enum ggml_type *out, iwp_err *err) {
    static const enum ggml_type known[] = {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_F32};
    return iwp_bench_type("cache is", known, sizeof known / sizeof *known, name, out, err);
}

static int keys_of(const char *text, int32_t rows, int32_t *out, iwp_err *err) {
    IWP_TRY(iwp_bench_number("--keys", text, '\0', 1 << 20, out, err));
    IWP_REQUIRE(*out >= rows, err, IWP_EINVAL, "--keys %d: fewer than a chunk has (-ub %d)", *out,
                rows);
    return 0;
}

static struct list list_of(const struct iwp_strings *s, const char *const *usual, int32_t n) {
    return s->n > 0 ? (struct list){(const char *const *)s->at, s->n} : (struct list){usual, n};
}

static int check(struct bench *b, int32_t *most, iwp_err *err) {
    static const char *const keys_usual[] = {"512", "2048", "4096"}, *const types[] = {"f16",
                                                                                       "q8_0"};
    const struct args *a = b->a;
    b->keys = list_of(&a->keys, keys_usual, 3);
    b->type = list_of(&a->type, types, 2);
    IWP_REQUIRE(a->heads % a->kv_heads == 0, err, IWP_EINVAL,
                "--heads %d is no multiple of --kv-heads %d", a->heads, a->kv_heads);
    IWP_REQUIRE(a->d % 32 == 0, err, IWP_EINVAL, "--head-size %d is no multiple of 32", a->d);
    *most = 0;
    for (int32_t i = 0; i < b->keys.n; i++) {
        int32_t keys;
        IWP_TRY(keys_of(b->keys.at[i], a->rows, &keys, err));
        if (keys > *most) *most = keys;
    }
    for (int32_t i = 0; i < b->type.n; i++) {
        enum ggml_type type;
        IWP_TRY(type_of(b->type.at[i], &type, err));
    }
    return 0;
}

static int run(struct bench *b, int32_t most, iwp_err *err) {
    const struct args *a = b->a;
    const size_t n = (size_t)a->rows * (size_t)a->heads * (size_t)a->d;
    const struct iwp_backend_params p = {.n_thread = a->threads};
    uint64_t seed = 3;
    iwp_cli_warn_threads(a->threads);
    IWP_TRY(iwp_backend_new(&b->b, &p, err));
    IWP_TRY(iwp_attend_new(&b->attend, a->heads, a->kv_heads, a->d, b->b->n_thread, err));
    const char *path = getenv("IWP_CPU");
    IWP_REQUIRE(b->attend, err, IWP_ENOTSUP, "%s%s has no attention of our own, only ggml's",
                path ? "IWP_CPU=" : "this CPU", path ? path : "");
    IWP_TRY(iwp_sched_new(&b->sched, b->b, 8 * MAX_LAYER, err));
    b->q = malloc(n * sizeof *b->q);
    b->mask = malloc((size_t)a->rows * (size_t)most * sizeof *b->mask);
    IWP_REQUIRE(b->q && b->mask, err, IWP_ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) b->q[i] = iwp_bench_noise(&seed);
    if (a->output == 1) {
        iwp_json_open_object(&b->json, NULL);
        iwp_json_put_string(&b->json, "path", iwp_attend_name(b->attend));
        iwp_json_put_int(&b->json, "threads", b->b->n_thread);
        iwp_json_open_array(&b->json, "rows");
        iwp_bench_json_keep(&b->json);
    } else {
        printf("%s, %d threads, %d query heads, %d KV heads of %d\n\n", iwp_attend_name(b->attend),
               b->b->n_thread, a->heads, a->kv_heads, a->d);
        puts("| type | rows |   keys | unit    |     iwp |    ggml | ratio |   limit | by    | "
             "share |");
        puts("|------|-----:|-------:|---------|--------:|--------:|------:|--------:|-------|-----"
             "-:|");
    }
    for (int32_t t = 0; t < b->type.n; t++)
        for (int32_t one = 0; one < 2; one++)
            for (int32_t i = 0; i < b->keys.n; i++) {
                enum ggml_type type;
                int32_t keys;
                IWP_TRY(type_of(b->type.at[t], &type, err));
                IWP_TRY(keys_of(b->keys.at[i], a->rows, &keys, err));
                IWP_TRY(one_case(b, type, one ? 1 : a->rows, keys, err));
            }
    return a->output == 1 ? iwp_bench_json_end(&b->json, err) : 0;
}

static void free_bench(struct bench *b) {
    iwp_sched_free(b->sched);
    iwp_attend_free(b->attend);
    iwp_backend_free(b->b);
    free(b->q);
    free(b->mask);
    iwp_json_free(&b->json);
}

int iwp_bench_attention(int argc, char **argv) {
    struct args a = {
        .rows = 512, .heads = 28, .kv_heads = 4, .d = 128, .megabytes = 512, .repeats = 5};
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_opt_group groups[] = {
        {"what", bench_opts, &a}, {"logging", iwp_log_opts, &log}, {NULL, NULL, NULL}};
    struct iwp_strings rest = {0};
    struct bench b = {.a = &a};
    int32_t most = 0;
    iwp_err err;
    iwp_json_init(&b.json, true);
    int rc = iwp_opts_parse(&command, groups, argc, argv, &rest, &err);
    if (rc > 0) {
        rc = 0; /* --help */
    } else if (rc < 0 || iwp_log_args_apply(&log, &err) < 0 || check(&b, &most, &err) < 0) {
        rc = iwp_cli_usage(command.name, &err);
    } else if ((rc = run(&b, most, &err)) < 0) {
        rc = iwp_cli_fail(command.name, &err);
    }
    free_bench(&b);
    iwp_strings_free(&a.keys);
    iwp_strings_free(&a.type);
    iwp_strings_free(&rest);
    return rc;
}
