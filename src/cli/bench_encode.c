/* `iwp bench encode`: pictures of noise through a vision tower and its projector, by size.  Needs the
 * mmproj file only.  Preprocessing is timed apart; a case is warmed up once, then repeated, and medians
 * are printed. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "cli/bench_rows.h"
#include "kern/cpu.h"
#include "model/tower.h"

enum { MAX_RUNS = 1000 };

struct args {
    struct iwp_strings size;
    int32_t frames, repeats, output;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt bench_opts[] = {
    {"--image-size", "WxH,…", IWP_OPT_COMMAS, AT(size), 0, 0, NULL,
     "sizes of the picture in pixels (default: 224x224,640x480)"},
    {"--frames", "N", IWP_OPT_INT, AT(frames), 1, 512, NULL,
     "a video of this many frames instead of a picture"},
    {"-r, --repeats", "N", IWP_OPT_INT, AT(repeats), 1, MAX_RUNS, NULL,
     "runs per case (default 5)"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(output), 0, 0, "md|json|csv",
     "md (default), json or csv"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {"iwp bench encode -mm mmproj.gguf --image-size 1008x756",
                                       "one size",
                                       "iwp bench encode --frames 32 --image-size 640x360",
                                       "a video of 32 frames, in frames per second",
                                       "iwp bench encode -o json",
                                       "the shipped model's tower, as JSON",
                                       NULL};

static const struct iwp_command command = {
    .name = "bench encode",
    .usage = "[-mm FILE] [options]",
    .about = "Times preprocessing and encoding of pictures of noise. GFLOP/s counts the "
             "multiplications and additions of the tower's and the projector's matrices and of "
             "its attention.",
    .examples = examples,
};

struct row {
    const char *model;
    int32_t w, h, n_visual;
    double preprocess_ms, encode_ms, p95_ms, gflops;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(double *t, int32_t n, double q) {
    qsort(t, (size_t)n, sizeof *t, by_value);
    return t[(int32_t)(q * (n - 1) + 0.5)];
}

static int parse_size(const char *text, int32_t *w, int32_t *h, iwp_err *err) {
    char *end;
    long x = strtol(text, &end, 10), y = *end == 'x' ? strtol(end + 1, &end, 10) : 0;
    IWP_REQUIRE(!*end && x >= 1 && x <= 65535 && y >= 1 && y <= 65535, err, IWP_EINVAL,
                "--image-size %.40s: give WIDTHxHEIGHT in pixels, 65535 at most", text);
    *w = (int32_t)x;
    *h = (int32_t)y;
    return 0;
}

/* n pictures of noise. */
static int noise(struct iwp_image *im, int32_t n, int32_t w, int32_t h, iwp_err *err) {
    static const uint8_t grey[3] = {128, 128, 128};
    uint64_t s = 88172645463325252u;
    for (int32_t i = 0; i < n; i++) {
        IWP_TRY(iwp_image_new(&im[i], w, h, grey, err));
        for (size_t k = 0; k < (size_t)w * (size_t)h * 3; k++) {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            im[i].rgb[k] = (uint8_t)(s >> 32);
        }
    }
    return 0;
}

/* --image-tiles, --image-min-tokens and --image-max-tokens, as for a picture of a prompt. */
static int plan_make(const struct args *a, const struct iwp_pre_params *pre, int32_t w, int32_t h,
                     struct iwp_pre_plan *plan, iwp_err *err) {
    IWP_TRY(iwp_pre_plan_make(pre, w, h, a->frames ? a->frames : 1,
                              a->frames ? IWP_PRE_VIDEO : IWP_PRE_SINGLE, plan, err));
    IWP_REQUIRE(a->frames || !pre->max_tokens || plan->n_token <= pre->max_tokens, err, IWP_EINVAL,
                "--image-max-tokens %d: this model makes at least %d visual tokens of a picture",
                pre->max_tokens, plan->n_token);
    return 0;
}

static int measure(const struct args *a, struct iwp_tower *t, const struct iwp_pre_params *p,
                   struct row *r, iwp_err *err) {
    const struct iwp_tower_want want = {0};
    const int32_t n = a->frames ? a->frames : 1;
    static double pre[MAX_RUNS], enc[MAX_RUNS];
    struct iwp_image *im = calloc((size_t)n, sizeof *im);
    float *pixels = NULL;
    struct iwp_pre_plan plan;
    int rc = 0;
    if (!im) IWP_FAIL(err, IWP_ENOMEM, "out of memory for %d frames", n);
    IWP_TRY_GOTO(plan_make(a, p, r->w, r->h, &plan, err));
    IWP_TRY_GOTO(noise(im, n, r->w, r->h, err));
    pixels = malloc(plan.n_pixel * sizeof *pixels);
    if (!pixels) IWP_FAIL(err, IWP_ENOMEM, "out of memory for %zu pixel values", plan.n_pixel);
    for (int32_t i = -1; i < a->repeats; i++) { /* the first one warms up */
        struct iwp_tower_out out;
        double t0 = iwp_clock_ms();
        IWP_TRY_GOTO(iwp_pre_pixels(p, &plan, im, pixels, err));
        double t1 = iwp_clock_ms();
        IWP_TRY_GOTO(iwp_tower_encode(t, &plan, pixels, &want, &out, err));
        double t2 = iwp_clock_ms();
        iwp_tower_out_free(&out);
        if (i < 0) continue;
        pre[i] = t1 - t0;
        enc[i] = t2 - t1;
    }
    r->n_visual = plan.n_token;
    r->preprocess_ms = at(pre, a->repeats, 0.5);
    r->p95_ms = at(enc, a->repeats, 0.95);
    r->encode_ms = at(enc, a->repeats, 0.5);
    r->gflops = r->encode_ms > 0 ? iwp_tower_flops(t, &plan) / (r->encode_ms * 1e6) : 0;
fail:
    for (int32_t i = 0; i < n && im; i++) iwp_image_free(&im[i]);
    free(im);
    free(pixels);
    return rc;
}

static void print_head(const struct args *a, struct iwp_json_out *j, int32_t threads) {
    if (a->output == 1) {
        iwp_json_open_object(j, NULL);
        iwp_json_put_string(j, "cpu", iwp_cli_cpu(iwp_cpu_features()));
        iwp_json_put_int(j, "threads", threads);
        iwp_json_open_array(j, "rows");
        iwp_bench_json_keep(j);
    } else if (a->output == 2) {
        puts("model,width,height,frames,visual,preprocess_ms,encode_ms,encode_p95_ms,"
             "frames_per_s,gflops,peak_rss_bytes");
    } else {
        puts("| model                    | picture   | frames | visual | preproc ms |  encode ms | "
             "   p95 ms | frames/s | GFLOP/s | peak MB |");
        puts("|--------------------------|-----------|-------:|-------:|-----------:|-----------:|-"
             "---------:|---------:|--------:|--------:|");
    }
}

static void print_row(const struct args *a, struct iwp_json_out *j, const struct row *r) {
    static const char *const absent[] = {"keep",
                                         "prompt",
                                         "select_ms",
                                         "prefill_ms",
                                         "ttft_ms",
                                         "prefill_tokens_per_s",
                                         "decode_tokens_per_s"};
    const int32_t frames = a->frames ? a->frames : 1;
    const double rate = r->encode_ms > 0 ? frames * 1e3 / r->encode_ms : 0;
    if (a->output == 1) {
        iwp_json_open_object(j, NULL);
        iwp_json_put_string(j, "model", r->model);
        iwp_json_put_string(j, "prune", "none");
        iwp_json_put_int(j, "width", r->w);
        iwp_json_put_int(j, "height", r->h);
        iwp_json_put_int(j, "frames", frames);
        iwp_json_put_int(j, "visual", r->n_visual);
        iwp_json_put_int(j, "visual_kept", r->n_visual);
        iwp_json_put_ms(j, "preprocess_ms", r->preprocess_ms);
        iwp_json_put_ms(j, "encode_ms", r->encode_ms);
        iwp_json_put_ms(j, "encode_p95_ms", r->p95_ms);
        iwp_json_put_f64(j, "frames_per_s", rate);
        for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
            iwp_json_put_null(j, absent[i]);
        iwp_json_put_f64(j, "gflops", r->gflops);
        iwp_json_put_int(j, "peak_rss_bytes", iwp_bench_peak_rss());
        iwp_json_close_object(j);
        iwp_bench_json_keep(j);
    } else if (a->output == 2) {
        printf("%s,%d,%d,%d,%d,%.3f,%.3f,%.3f,%.3f,%.2f,%lld\n", r->model, r->w, r->h, frames,
               r->n_visual, r->preprocess_ms, r->encode_ms, r->p95_ms, rate, r->gflops,
               (long long)iwp_bench_peak_rss());
    } else {
        char size[24];
        snprintf(size, sizeof size, "%dx%d", r->w, r->h);
        printf(
            "| %-24.24s | %-9s | %6d | %6d | %10.2f | %10.2f | %9.2f | %8.2f | %7.1f | %7.0f |\n",
            r->model, size, frames, r->n_visual, r->preprocess_ms, r->encode_ms, r->p95_ms, rate,
            r->gflops, (double)iwp_bench_peak_rss() / 1e6);
    }
    fflush(stdout);
}

static int run(const struct args *a, struct iwp_model_args *m, struct iwp_json_out *j,
               iwp_err *err) {
    static const char *const usual[] = {"224x224", "640x480"};
    struct iwp_engine_params ep = iwp_engine_default_params();
    struct iwp_backend *b = NULL;
    struct iwp_gguf *g = NULL;
    struct iwp_tower *t = NULL;
    int rc = 0;
    const char *path = m->mmproj;
    if (!path) { /* the shipped model's */
        IWP_TRY(iwp_model_args_engine(m, &ep, err));
        path = ep.mmproj;
        IWP_REQUIRE(path, err, IWP_EINVAL, "which tower? give its file with -mm/--mmproj");
    }
    const int32_t n = a->size.n ? a->size.n : 2;
    struct iwp_backend_params bp = {.n_thread = m->threads > 0 ? m->threads : 0};
    IWP_TRY_GOTO(iwp_backend_new(&b, &bp, err));
    IWP_TRY_GOTO(iwp_gguf_open(&g, path, err));
    IWP_TRY_GOTO(iwp_tower_new(&t, b, g, err));
    const char *slash = strrchr(path, '/');
    struct iwp_pre_params pre = iwp_tower_info(t)->pre;
    IWP_TRY_GOTO(iwp_pre_params_tiles(&pre, m->tiles, err));
    IWP_TRY_GOTO(iwp_pre_params_limit_tokens(&pre, m->min_tokens, m->max_tokens, err));
    for (int32_t i = 0; i < n; i++) { /* before the head of the table */
        struct iwp_pre_plan plan;
        int32_t w, h;
        IWP_TRY_GOTO(parse_size(a->size.n ? a->size.at[i] : usual[i], &w, &h, err));
        IWP_TRY_GOTO(plan_make(a, &pre, w, h, &plan, err));
    }
    print_head(a, j, b->n_thread);
    for (int32_t i = 0; i < n; i++) {
        struct row r = {.model = slash ? slash + 1 : path};
        IWP_TRY_GOTO(parse_size(a->size.n ? a->size.at[i] : usual[i], &r.w, &r.h, err));
        IWP_TRY_GOTO(measure(a, t, &pre, &r, err));
        print_row(a, j, &r);
    }
    if (a->output == 1) rc = iwp_bench_json_end(j, err);
fail:
    iwp_tower_free(t);
    iwp_gguf_free(g);
    iwp_backend_free(b);
    return rc;
}

int iwp_bench_encode(int argc, char **argv) {
    struct args a = {.repeats = 5};
    struct iwp_model_args m = IWP_MODEL_ARGS_DEFAULT;
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_opt_group groups[] = {{"what", bench_opts, &a},
                                     {"model", iwp_model_opts, &m},
                                     {"logging", iwp_log_opts, &log},
                                     {NULL, NULL, NULL}};
    struct iwp_strings rest = {0};
    struct iwp_json_out json;
    iwp_err err;
    iwp_json_init(&json, true);
    int rc = iwp_opts_parse(&command, groups, argc, argv, &rest, &err);
    if (rc > 0) {
        rc = 0; /* --help */
    } else if (rc < 0 || iwp_log_args_apply(&log, &err) < 0) {
        rc = iwp_cli_usage(command.name, &err);
    } else {
        int32_t w, h;
        for (int32_t i = 0; i < a.size.n && rc >= 0; i++)
            rc = parse_size(a.size.at[i], &w, &h, &err);
        if (rc < 0)
            rc = iwp_cli_usage(command.name, &err);
        else if ((rc = run(&a, &m, &json, &err)) < 0)
            rc = iwp_cli_fail(command.name, &err);
    }
    iwp_json_free(&json);
    iwp_strings_free(&a.size);
    iwp_strings_free(&rest);
    iwp_model_args_free(&m);
    return rc;
}
