/* `iwp bench products`: one product with a decoder's weights, x [k, n] · w, through whatever a model would take for
 * that type and number of rows, beside ggml's on the same weights in the same layout, in turns.
 *
 * Matrices lie side by side, --megabytes in all, so that no CPU cache holds them, as those of a model do, and take
 * turns with the same rows, packed anew for each, and the same memory for results.  From 16 rows on reading weights is
 * not what takes the time: so many matrices as make the work of 16 rows with all of them, but at least 64 MB of what
 * there is, or they would come from the cache.  More than MAX_COPY are not made; a warning says so.
 * Refuses what --megabytes has no room for: one matrix of a type, or rows with their products. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "cli/bench_kernel.h"
#include "cli/bench_rows.h"
#include "kern/gemm.h"
#include "model/bulk.h"

enum { MAX_RUNS = 1000, MAX_THREAD = 256, MAX_COPY = 512, MAX_ROWS = 1 << 14, MAX_SIDE = 1 << 17 };

struct args {
    struct iwp_strings type, rows;
    const char *shape;
    int32_t threads, megabytes, repeats, output;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt bench_opts[] = {
    {"--type", "TYPE,…", IWP_OPT_COMMAS, AT(type), 0, 0, NULL,
     "types of weights (default f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k to q6_k)"},
    {"--rows", "N,…", IWP_OPT_COMMAS, AT(rows), 0, 0, NULL,
     "rows at a time (default 1,4,16,32,64,128,512)"},
    {"--shape", "KxM", IWP_OPT_TEXT, AT(shape), 0, 0, NULL,
     "numbers of a row before and after (default 3584x3584, a 7B model's)"},
    {"--megabytes", "N", IWP_OPT_INT, AT(megabytes), 1, 1 << 16, NULL,
     "matrices of a type in all, and the most that rows with their products may take (default "
     "256)"},
    {"-t, --threads", "N", IWP_OPT_INT, AT(threads), 1, MAX_THREAD, NULL,
     "threads (default: all CPUs)"},
    {"-r, --repeats", "N", IWP_OPT_INT, AT(repeats), 1, MAX_RUNS, NULL,
     "runs per case (default 5)"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(output), 0, 0, "md|json", "md (default) or json"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp bench products", "every type, few and many rows",
    "iwp bench products --type q4_k --rows 8,512 --shape 896x4864 -t 1",
    "a 0.5B model's, one thread", NULL};

static const struct iwp_command command = {
    .name = "bench products",
    .usage = "[options]",
    .about = "Times products with a decoder's weights beside ggml's on the same weights, in turns. "
             "`by` says whose a model takes: our own for many or few rows, or ggml's. No model.",
    .examples = examples,
};

static const enum ggml_type known[] = {
    GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
    GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};
enum { N_TYPE = sizeof known / sizeof known[0], MOST = 64 };

struct bench {
    const struct args *a;
    enum ggml_type type[MOST];
    int32_t rows[MOST], n_type, n_rows, most; /* most: rows */
    int32_t k, m;
    struct iwp_backend *b;
    struct iwp_bulk *bulk; /* NULL: all products are ggml's */
    struct iwp_sched *sched;
    float *x;                /* [most][k] */
    ggml_backend_buffer_t y; /* [most][m] */
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *w[MAX_COPY];
    int32_t n_copy;
    struct iwp_json_out json;
};

/* ---- weights --------------------------------------------------------------------------------------- */

static uint64_t room(const struct args *a) { return (uint64_t)a->megabytes << 20; }

static int in_mb(uint64_t bytes) { return (int)((bytes + (1 << 20) - 1) >> 20); }

static uint64_t matrix_size(const struct bench *b, enum ggml_type type) {
    return (uint64_t)ggml_row_size(type, b->k) * (uint64_t)b->m;
}

/* Some columns, again and again: converting all of them would take longer than the products. */
static int fill(const struct bench *b, iwp_err *err) {
    enum { COLS = 64 };
    struct ggml_tensor *t = b->w[0];
    const size_t col = ggml_row_size(t->type, b->k);
    const int32_t cols = b->m < COLS ? b->m : COLS;
    const int64_t n = (int64_t)b->k * cols;
    float *x = malloc((size_t)n * sizeof *x);
    uint8_t *data = malloc((size_t)b->m * col);
    uint64_t seed = 7;
    int rc = 0;
    if (!x || !data)
        IWP_FAIL(err, IWP_ENOMEM, "a matrix of %d x %d %s: out of memory", b->k, b->m,
                 ggml_type_name(t->type));
    for (int64_t i = 0; i < n; i++) x[i] = iwp_bench_noise(&seed) * 0.05f;
    ggml_quantize_chunk(t->type, x, data, 0, cols, b->k, NULL);
    for (int32_t i = COLS; i < b->m; i += COLS)
        memcpy(data + (size_t)i * col, data, (size_t)(b->m - i < COLS ? b->m - i : COLS) * col);
    for (int32_t i = 0; i < b->n_copy; i++)
        ggml_backend_tensor_set(b->w[i], data, 0, (size_t)b->m * col);
fail:
    free(x);
    free(data);
    return rc;
}

static void drop(struct bench *b) {
    if (b->buffer) ggml_backend_buffer_free(b->buffer);
    ggml_free(b->ctx);
    b->buffer = NULL;
    b->ctx = NULL;
}

static int make(struct bench *b, enum ggml_type type, iwp_err *err) {
    const int64_t ne[2] = {b->k, b->m};
    const uint64_t many = room(b->a) / matrix_size(b, type);
    b->n_copy = many < MAX_COPY ? (int32_t)many : MAX_COPY;
    if (many > MAX_COPY)
        iwp_log(IWP_LOG_WARN,
                "bench products: %d matrices of %d x %d %s, more are not made, take %.1f MB of "
                "--megabytes %d: a CPU cache may hold them",
                MAX_COPY, b->k, b->m, ggml_type_name(type),
                (double)(MAX_COPY * matrix_size(b, type)) * 0x1p-20, b->a->megabytes);
    b->ctx = ggml_init(
        (struct ggml_init_params){ggml_tensor_overhead() * (size_t)(b->n_copy + 1), NULL, true});
    IWP_REQUIRE(b->ctx, err, IWP_ENOMEM, "%d matrices: out of memory", b->n_copy);
    for (int32_t i = 0; i < b->n_copy; i++) b->w[i] = ggml_new_tensor_2d(b->ctx, type, b->k, b->m);
    b->buffer = ggml_backend_alloc_ctx_tensors_from_buft(
        b->ctx, iwp_backend_matmul_buft(b->b, iwp_backend_cpu(b->b), type, 2, ne));
    IWP_REQUIRE(b->buffer, err, IWP_ENOMEM,
                "%d matrices of %d x %d %s: out of memory, give fewer --megabytes", b->n_copy, b->k,
                b->m, ggml_type_name(type));
    return fill(b, err);
}

/* ---- one case -------------------------------------------------------------------------------------- */

static int32_t copies_for(const struct bench *b, int32_t n) {
    enum { ENOUGH = 16, LEAST = 64 << 20 }; /* rows, bytes: see above */
    const int32_t some = (b->n_copy * ENOUGH + n - 1) / n,
                  least = (int32_t)(LEAST / matrix_size(b, b->w[0]->type)) + 1,
                  copies = some > least ? some : least;
    return copies < b->n_copy ? copies : b->n_copy;
}

/* The first `copies` weights once each; ms. */
static int run_once(struct bench *b, bool own, int32_t n, int32_t copies, double *ms,
                    iwp_err *err) {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    IWP_TRY(iwp_sched_begin(b->sched, &ctx, &graph, err));
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, b->k, n);
    ggml_set_input(x);
    for (int32_t i = 0; i < copies; i++) {
        struct ggml_tensor *y = iwp_bulk_or_ggml(own ? b->bulk : NULL, ctx, x, b->w[i], NULL);
        ggml_backend_tensor_alloc(b->y, y, ggml_backend_buffer_get_base(b->y));
        ggml_build_forward_expand(graph, y);
    }
    iwp_sched_pin_custom(b->sched);
    IWP_TRY(iwp_sched_alloc(b->sched, err));
    ggml_backend_tensor_set(x, b->x, 0, ggml_nbytes(x));
    iwp_backend_size_threads(b->b, INFINITY);
    const double t0 = iwp_clock_ms();
    IWP_TRY(iwp_sched_compute(b->sched, err));
    *ms = iwp_clock_ms() - t0;
    return 0;
}

static void print_row(struct bench *b, int32_t n, enum iwp_bulk_by taken, double own, double ggml) {
    static const char *const names[] = {
        [IWP_BULK_GGML] = "ggml", [IWP_BULK_FEW] = "few", [IWP_BULK_MANY] = "many"};
    const char *type = ggml_type_name(b->w[0]->type), *by = names[taken];
    if (b->a->output == 1) {
        iwp_json_open_object(&b->json, NULL);
        iwp_json_put_string(&b->json, "type", type);
        iwp_json_put_int(&b->json, "rows", n);
        iwp_json_put_string(&b->json, "by", by);
        iwp_json_put_string(&b->json, "unit", "GFLOP/s");
        iwp_json_put_f64(&b->json, "own", own);
        iwp_json_put_f64(&b->json, "ggml", ggml);
        iwp_json_close_object(&b->json);
        iwp_bench_json_keep(&b->json);
        return;
    }
    printf("| %-4s | %5d | %-4s | %9.1f | %9.1f | %5.2f |\n", type, n, by, own, ggml, own / ggml);
    fflush(stdout);
}

static int one_case(struct bench *b, int32_t n, iwp_err *err) {
    double own[MAX_RUNS], ggml[MAX_RUNS];
    const int32_t copies = copies_for(b, n);
    const enum iwp_bulk_by by = iwp_bulk_choose(b->bulk, b->w[0], n);
    for (int32_t r = -1; r < b->a->repeats; r++) { /* once to warm up */
        const int32_t at = r < 0 ? 0 : r;
        IWP_TRY(run_once(b, false, n, copies, &ggml[at], err));
        if (by != IWP_BULK_GGML) IWP_TRY(run_once(b, true, n, copies, &own[at], err));
    }
    const double work = 2.0 * b->k * b->m * n * copies * 1e-6,
                 t_ggml = iwp_bench_median(ggml, b->a->repeats),
                 t_own = by == IWP_BULK_GGML ? t_ggml : iwp_bench_median(own, b->a->repeats);
    print_row(b, n, by, work / t_own, work / t_ggml);
    return 0;
}

/* ---- arguments ------------------------------------------------------------------------------------- */

static int check_room(const struct bench *b, iwp_err *err) {
    const uint64_t rows = (uint64_t)b->most * (uint64_t)(b->k + b->m) * sizeof(float);
    for (int32_t i = 0; i < b->n_type; i++) {
        const uint64_t bytes = matrix_size(b, b->type[i]);
        IWP_REQUIRE(
            bytes <= room(b->a), err, IWP_EINVAL,
            "--megabytes %d: a matrix of %d x %d %s takes %d MB, give so many or a smaller --shape",
            b->a->megabytes, b->k, b->m, ggml_type_name(b->type[i]), in_mb(bytes));
    }
    IWP_REQUIRE(rows <= room(b->a), err, IWP_EINVAL,
                "--megabytes %d: %d rows of %d numbers and their products of %d take %d MB, give "
                "so many or fewer --rows",
                b->a->megabytes, b->most, b->k, b->m, in_mb(rows));
    return 0;
}

static int check(struct bench *b, iwp_err *err) {
    static const int32_t usual[] = {1, 4, 16, 32, 64, 128, 512};
    const struct args *a = b->a;
    const char *shape = a->shape ? a->shape : "3584x3584", *x = strchr(shape, 'x');
    IWP_REQUIRE(x, err, IWP_EINVAL, "--shape: '%.20s' is not two numbers like 896x4864", shape);
    IWP_TRY(iwp_bench_number("--shape", shape, 'x', MAX_SIDE, &b->k, err));
    IWP_TRY(iwp_bench_number("--shape", x + 1, '\0', MAX_SIDE, &b->m, err));
    IWP_REQUIRE(a->type.n <= MOST && a->rows.n <= MOST, err, IWP_EINVAL,
                "more than %d types or numbers of rows", MOST);
    for (int32_t i = 0; i < a->type.n; i++)
        IWP_TRY(iwp_bench_type("weights are", known, N_TYPE, a->type.at[i], &b->type[i], err));
    for (int32_t i = 0; i < a->rows.n; i++)
        IWP_TRY(iwp_bench_number("--rows", a->rows.at[i], '\0', MAX_ROWS, &b->rows[i], err));
    b->n_type = a->type.n ? a->type.n : N_TYPE;
    b->n_rows = a->rows.n ? a->rows.n : (int32_t)(sizeof usual / sizeof usual[0]);
    if (!a->type.n) memcpy(b->type, known, sizeof known);
    if (!a->rows.n) memcpy(b->rows, usual, sizeof usual);
    for (int32_t i = 0; i < b->n_type; i++)
        IWP_REQUIRE(b->k % ggml_blck_size(b->type[i]) == 0, err, IWP_EINVAL,
                    "--shape: %d is no multiple of the %d numbers of a block of %s", b->k,
                    (int)ggml_blck_size(b->type[i]), ggml_type_name(b->type[i]));
    for (int32_t i = 0; i < b->n_rows; i++) b->most = b->rows[i] > b->most ? b->rows[i] : b->most;
    return check_room(b, err);
}

static int run(struct bench *b, iwp_err *err) {
    const struct args *a = b->a;
    const struct iwp_backend_params p = {.n_thread = a->threads};
    uint64_t seed = 3;
    iwp_cli_warn_threads(a->threads);
    IWP_TRY(iwp_backend_new(&b->b, &p, err));
    IWP_TRY(iwp_bulk_new(&b->bulk, b->b, err));
    IWP_TRY(iwp_sched_new(&b->sched, b->b, 4 * MAX_COPY, err));
    const size_t n = (size_t)b->most * (size_t)b->k;
    b->x = malloc(n * sizeof *b->x);
    b->y = ggml_backend_buft_alloc_buffer(b->b->buft[iwp_backend_cpu(b->b)],
                                          (size_t)b->most * (size_t)b->m * sizeof(float));
    IWP_REQUIRE(b->x && b->y, err, IWP_ENOMEM,
                "%d rows of %d numbers and their products of %d: out of memory", b->most, b->k,
                b->m);
    for (size_t i = 0; i < n; i++) b->x[i] = iwp_bench_noise(&seed);
    const char *path = b->bulk ? iwp_gemm_get()->name : "ggml";
    if (a->output == 1) {
        iwp_json_open_object(&b->json, NULL);
        iwp_json_put_string(&b->json, "path", path);
        iwp_json_put_int(&b->json, "threads", b->b->n_thread);
        iwp_json_put_int(&b->json, "k", b->k);
        iwp_json_put_int(&b->json, "m", b->m);
        iwp_json_open_array(&b->json, "rows");
        iwp_bench_json_keep(&b->json);
    } else {
        printf("%s, %d threads, %d x %d, GFLOP/s\n\n", path, b->b->n_thread, b->k, b->m);
        puts("| type |  rows | by   |       iwp |      ggml | ratio |");
        puts("|------|------:|------|----------:|----------:|------:|");
    }
    for (int32_t t = 0; t < b->n_type; t++) {
        IWP_TRY(make(b, b->type[t], err));
        for (int32_t i = 0; i < b->n_rows; i++) {
            const int rc = one_case(b, b->rows[i], err);
            if (rc < 0)
                return iwp_err_prefix(err, rc, "%d rows, %d x %d %s", b->rows[i], b->k, b->m,
                                      ggml_type_name(b->type[t]));
        }
        drop(b);
    }
    return a->output == 1 ? iwp_bench_json_end(&b->json, err) : 0;
}

int iwp_bench_products(int argc, char **argv) {
    struct args a = {.megabytes = 256, .repeats = 5};
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_opt_group groups[] = {
        {"what", bench_opts, &a}, {"logging", iwp_log_opts, &log}, {NULL, NULL, NULL}};
    struct iwp_strings rest = {0};
    struct bench b = {.a = &a};
    iwp_err err;
    iwp_json_init(&b.json, true);
    int rc = iwp_opts_parse(&command, groups, argc, argv, &rest, &err);
    if (rc > 0) {
        rc = 0; /* --help */
    } else if (rc < 0 || iwp_log_args_apply(&log, &err) < 0 || check(&b, &err) < 0) {
        rc = iwp_cli_usage(command.name, &err);
    } else if ((rc = run(&b, &err)) < 0) {
        rc = iwp_cli_fail(command.name, &err);
    }
    drop(&b);
    if (b.y) ggml_backend_buffer_free(b.y);
    iwp_sched_free(b.sched);
    iwp_bulk_free(b.bulk);
    iwp_backend_free(b.b);
    free(b.x);
    iwp_json_free(&b.json);
    iwp_strings_free(&a.type);
    iwp_strings_free(&a.rows);
    iwp_strings_free(&rest);
    return rc;
}
