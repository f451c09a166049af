/* `iwp bench e2e`: a question about a picture from its file to the first token, without and with pruning.
 * The cache of encoded pictures is off: every repeat decodes and encodes.  One warm-up, then medians
 * over repeats (CONTRACT section 5). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/engine_args.h"

struct bench_args {
    const char *image, *prompt;
    struct iwp_strings prune, keep;
    int32_t repeats, decode, format, layer;
};

#define AT(field) offsetof(struct bench_args, field)
static const struct iwp_opt bench_opts[] = {
    {"--image", "FILE", IWP_OPT_TEXT, AT(image), 0, 0, NULL, "the picture"},
    {"-p, --prompt", "TEXT", IWP_OPT_TEXT, AT(prompt), 0, 0, NULL,
     "the question (default \"What is in the picture?\")"},
    {"--prune", "METHOD,...", IWP_OPT_COMMAS, AT(prune), 0, 0, NULL,
     "pruning methods (default none,iwp)"},
    {"--keep", "R,...", IWP_OPT_COMMAS, AT(keep), 0, 0, NULL, "fractions kept (default 22.2%)"},
    {"--prune-layer", "L", IWP_OPT_INT, AT(layer), 0, 1000, NULL,
     "decoder layer whose input is cut (default: the method's)"},
    {"-n, --n-gen", "N", IWP_OPT_INT, AT(decode), 1, 4096, NULL,
     "tokens of the answer (default 16)"},
    {"-r, --repetitions", "N", IWP_OPT_INT, AT(repeats), 1, 1000, NULL, "repeats (default 3)"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(format), 0, 0, "md|json|csv",
     "form of the table"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp bench e2e --image photo.jpg --prune none,iwp --keep 22.2%",
    "time to the first token of a question about a photograph", NULL};
static const struct iwp_command command = {
    .name = "bench e2e",
    .summary = "from a picture's file to the first token",
    .usage = "[-m FILE -mm FILE] --image FILE [--prune A,B] [--keep X,Y] [options]",
    .about = "Times whole questions: decoding and encoding the picture, the prompt, the answer.",
    .examples = examples,
    .max_args = 0,
    .args_name = "",
};

enum { ENCODE, SELECT, PREFILL, TTFT, DECODE, N_TIME };
struct row {
    const char *prune;
    double keep; /* 0: none */
    int32_t prompt, visual, kept;
    double ms[N_TIME], rate, gflops;
};

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int32_t n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int measure(iwp_engine *e, const struct bench_args *a, struct iwp_session_params sp,
                   const struct iwp_params *pp, struct row *out, iwp_err *err) {
    const int32_t n = a->repeats;
    double *t = calloc((size_t)n * N_TIME, sizeof *t);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    const struct iwp_part part[] = {
        {.kind = IWP_PART_IMAGE, .file = a->image},
        {.kind = IWP_PART_TEXT, .text = a->prompt ? a->prompt : "What is in the picture?"}};
    const struct iwp_message msg = {"user", part, 2};
    struct iwp_prompt_request r = {.message = &msg, .n_message = 1};
    const struct iwp_generate_params g = {.n_predict = a->decode, .ignore_eos = true};
    int rc = 0;
    iwp_session *s = NULL;
    iwp_prompt *p = NULL;
    iwp_prompt_request_for(&r, pp);
    for (int32_t i = -1; i < n; i++) {
        struct iwp_answer answer = {0};
        iwp_session_free(s); /* a fresh one each time: nothing is reused */
        iwp_engine_prompt_free(p);
        s = NULL, p = NULL;
        IWP_TRY_GOTO(iwp_session_new(&s, e, &sp, err));
        const double t0 = iwp_clock_ms();
        IWP_TRY_GOTO(iwp_engine_prompt(e, &r, &p, err));
        IWP_TRY_GOTO(iwp_session_begin(s, p, pp, err));
        while ((rc = iwp_session_step(s, err)) > 0) {
        }
        if (rc < 0) goto fail;
        const double t1 = iwp_clock_ms();
        IWP_TRY_GOTO(iwp_session_generate(s, &g, &answer, err));
        const struct iwp_session_stats st = iwp_session_stats(s);
        const double ms[N_TIME] = {iwp_prompt_info(p).ms_encode, st.ms_select, st.ms_prefill,
                                   t1 - t0 + answer.ms_first, answer.ms_decode};
        for (int k = 0; k < N_TIME && i >= 0; k++) t[k * n + i] = ms[k];
        out->prompt = st.n_prompt;
        out->visual = st.n_visual;
        out->kept = st.n_kept;
        out->gflops = st.flops;
        out->rate = answer.n_token - 1;
        iwp_answer_free(&answer);
    }
    for (int k = 0; k < N_TIME; k++) out->ms[k] = median(t + k * n, n);
    out->rate = out->rate > 0 && out->ms[DECODE] > 0 ? out->rate * 1e3 / out->ms[DECODE] : 0;
    out->gflops /= out->ms[PREFILL] * 1e6;
fail:
    iwp_session_free(s);
    iwp_engine_prompt_free(p);
    free(t);
    return rc < 0 ? rc : 0;
}

static void put_num(struct iwp_json_out *w, const char *key, double v, bool there) {
    if (there)
        iwp_json_put_f64(w, key, v);
    else
        iwp_json_put_null(w, key);
}

static int64_t peak(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0;
}

static int print_json(const struct iwp_engine_info *e, const struct row *r, int32_t n,
                      iwp_err *err) {
    struct iwp_json_out w;
    iwp_json_init(&w, true);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_string(&w, "cpu", iwp_cpu_name());
    iwp_json_put_int(&w, "threads", e->n_thread);
    iwp_json_open_array(&w, "rows");
    for (int32_t i = 0; i < n; i++) {
        iwp_json_open_object(&w, NULL);
        iwp_json_put_string(&w, "model", e->name);
        iwp_json_put_string(&w, "prune", r[i].prune);
        put_num(&w, "keep", r[i].keep, r[i].keep > 0);
        iwp_json_put_int(&w, "visual", r[i].visual);
        iwp_json_put_int(&w, "visual_kept", r[i].kept);
        iwp_json_put_int(&w, "prompt", r[i].prompt);
        iwp_json_put_ms(&w, "encode_ms", r[i].ms[ENCODE]);
        iwp_json_put_ms(&w, "select_ms", r[i].ms[SELECT]);
        iwp_json_put_ms(&w, "prefill_ms", r[i].ms[PREFILL]);
        iwp_json_put_ms(&w, "ttft_ms", r[i].ms[TTFT]);
        iwp_json_put_f64(&w, "prefill_tokens_per_s", r[i].prompt * 1e3 / r[i].ms[PREFILL]);
        put_num(&w, "decode_tokens_per_s", r[i].rate, r[i].rate > 0);
        iwp_json_put_f64(&w, "gflops", r[i].gflops);
        iwp_json_put_int(&w, "peak_rss_bytes", peak());
        iwp_json_close_object(&w);
    }
    iwp_json_close_array(&w);
    iwp_json_close_object(&w);
    int rc = iwp_json_write(&w, stdout, err);
    iwp_json_free(&w);
    return rc;
}

static void print_table(const struct iwp_engine_info *e, const struct row *r, int32_t n, bool csv) {
    puts(csv ? "model,prune,keep,visual,visual_kept,prompt,encode_ms,select_ms,prefill_ms,ttft_ms,"
               "prefill_tokens_per_s,decode_tokens_per_s,gflops,peak_rss_bytes"
             : "| model | prune | keep | visual | kept | prompt | encode ms | select ms | "
               "prefill ms | ttft ms | prefill t/s | decode t/s | GFLOP/s | peak MB |\n"
               "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (int32_t i = 0; i < n; i++)
        printf(csv ? "%s,%s,%g,%d,%d,%d,%.3f,%.3f,%.3f,%.3f,%.2f,%.2f,%.2f,%.0f\n"
                   : "| %s | %s | %.3f | %d | %d | %d | %.1f | %.2f | %.1f | %.1f | %.1f | %.1f | "
                     "%.1f | %.0f |\n",
               e->name, r[i].prune, r[i].keep > 0 ? r[i].keep : 1, r[i].visual, r[i].kept,
               r[i].prompt, r[i].ms[ENCODE], r[i].ms[SELECT], r[i].ms[PREFILL], r[i].ms[TTFT],
               r[i].prompt * 1e3 / r[i].ms[PREFILL], r[i].rate, r[i].gflops,
               csv ? (double)peak() : (double)peak() / 1e6);
}

enum { MAX_ROW = 1024 };

static int run_grid(iwp_engine *e, const struct bench_args *a, struct iwp_session_params sp,
                    struct row *rows, int32_t *n_row, iwp_err *err) {
    static const char *def_m[] = {"none", "iwp"}, *def_k = "22.2%";
    const struct iwp_strings ms = a->prune.n ? a->prune : (struct iwp_strings){def_m, 2},
                             ks = a->keep.n ? a->keep : (struct iwp_strings){&def_k, 1};
    for (int32_t m = 0; m < ms.n; m++) {
        const bool none = strcmp(ms.at[m], "none") == 0;
        for (int32_t k = 0; k < (none ? 1 : ks.n) && *n_row < MAX_ROW; k++) {
            struct iwp_params pp;
            struct row *r = &rows[*n_row];
            memset(r, 0, sizeof *r);
            r->prune = ms.at[m];
            if (!none) {
                const struct iwp_method *method;
                IWP_TRY(iwp_cli_find_method(ms.at[m], &method, err));
                IWP_TRY(iwp_keep_parse(ks.at[k], &r->keep, err));
                iwp_params_default(&pp, method);
                pp.budget.keep = r->keep;
                pp.layer = a->layer;
            }
            IWP_TRY(measure(e, a, sp, none ? NULL : &pp, r, err));
            ++*n_row;
        }
    }
    return 0;
}

int iwp_bench_e2e(int argc, char **argv) {
    static struct bench_args a; /* its lists live as long as the process */
    a = (struct bench_args){.repeats = 3, .decode = 16, .layer = -1};
    struct iwp_model_args m = IWP_MODEL_ARGS_DEFAULT;
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings none = {0};
    static struct row rows[MAX_ROW];
    int32_t n = 0;
    const struct iwp_opt_group groups[] = {{"what to time", bench_opts, &a},
                                           {"model", iwp_model_opts, &m},
                                           {"messages", iwp_log_opts, &log},
                                           {NULL, NULL, NULL}};
    iwp_err err = {0};
    int code = 0;
    iwp_engine *e = NULL;
    struct iwp_engine_params ep;
    int rc = iwp_opts_parse(&command, groups, argc, argv, &none, &err);
    if (rc > 0) return 0;
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc >= 0 && !a.image)
        rc = iwp_err_set(&err, IWP_EINVAL, "which picture? give its file with --image");
    if (rc < 0) return iwp_cli_usage("bench e2e", &err);
    rc = iwp_model_args_engine(&m, &ep, &err);
    ep.cache_bytes = 1; /* no picture fits: each is encoded again */
    if (rc >= 0) rc = iwp_engine_open(&e, &ep, &err);
    if (rc >= 0) rc = run_grid(e, &a, iwp_model_args_session(&m), rows, &n, &err);
    if (rc >= 0) {
        const struct iwp_engine_info info = iwp_engine_info(e);
        if (a.format == 1)
            rc = print_json(&info, rows, n, &err);
        else
            print_table(&info, rows, n, a.format == 2);
    }
    if (rc < 0)
        code =
            rc == IWP_EINVAL ? iwp_cli_usage("bench e2e", &err) : iwp_cli_fail("bench e2e", &err);
    iwp_engine_close(e);
    iwp_model_args_free(&m);
    return code;
}
