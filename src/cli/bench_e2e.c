/* `iwp bench e2e`: a question about a picture from its file to the first token, without and with pruning.
 * The cache of encoded pictures is off: every repeat decodes and encodes.  One warm-up, then medians
 * over repeats (CONTRACT section 5). */
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "cli/bench_rows.h"

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

struct bench {
    iwp_engine *e;
    const struct bench_args *a;
    struct iwp_session_params sp;
};

static int measure(void *ctx, const struct iwp_params *pp, struct iwp_bench_row *out,
                   iwp_err *err) {
    const struct bench *b = ctx;
    const struct bench_args *a = b->a;
    const int32_t n = a->repeats;
    double *t = calloc((size_t)n * N_TIME, sizeof *t);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    const struct iwp_part part[] = {
        {.kind = IWP_PART_IMAGE, .file = a->image},
        {.kind = IWP_PART_TEXT, .text = a->prompt ? a->prompt : "What is in the picture?"}};
    const struct iwp_message msg = {"user", part, 2};
    struct iwp_prompt_request r = {.message = &msg, .n_message = 1};
    const struct iwp_generate_params g = {.n_predict = a->decode, .ignore_eos = true};
    int32_t tokens = 0;
    int rc = 0;
    iwp_session *s = NULL;
    iwp_prompt *p = NULL;
    iwp_prompt_request_for(&r, pp);
    for (int32_t i = -1; i < n; i++) {
        struct iwp_answer answer = {0};
        iwp_session_free(s); /* a fresh one each time: nothing is reused */
        iwp_engine_prompt_free(p);
        s = NULL, p = NULL;
        IWP_TRY_GOTO(iwp_session_new(&s, b->e, &b->sp, err));
        const double t0 = iwp_clock_ms();
        IWP_TRY_GOTO(iwp_engine_prompt(b->e, &r, &p, err));
        IWP_TRY_GOTO(iwp_session_begin(s, p, pp, err));
        IWP_TRY_GOTO(iwp_engine_prefill(s, err));
        const double t1 = iwp_clock_ms();
        IWP_TRY_GOTO(iwp_session_generate(s, &g, &answer, err));
        const struct iwp_session_stats st = iwp_session_stats(s);
        const double ms[N_TIME] = {iwp_prompt_info(p).ms_encode, st.ms_select, st.ms_prefill,
                                   t1 - t0 + answer.ms_first, answer.ms_decode};
        for (int k = 0; k < N_TIME && i >= 0; k++) t[k * n + i] = ms[k];
        out->prompt = st.n_prompt;
        out->visual = st.n_visual;
        out->kept = st.n_kept;
        out->flops = st.flops;
        out->flops_full = st.flops_full;
        out->kv_bytes = (int64_t)st.kv_bytes;
        tokens = answer.n_token - 1;
        iwp_answer_free(&answer);
    }
    out->encode = iwp_bench_median(t + ENCODE * n, n);
    out->select = iwp_bench_median(t + SELECT * n, n);
    out->prefill = iwp_bench_median(t + PREFILL * n, n);
    out->spread = t[PREFILL * n + n - 1] - t[PREFILL * n];
    out->ttft = iwp_bench_median(t + TTFT * n, n);
    if (tokens > 0) out->decode = tokens * 1e3 / iwp_bench_median(t + DECODE * n, n);
fail:
    iwp_session_free(s);
    iwp_engine_prompt_free(p);
    free(t);
    return rc < 0 ? rc : 0;
}

static int run_grid(iwp_engine *e, const struct bench_args *a, struct iwp_session_params sp,
                    struct iwp_bench_rows *rows, iwp_err *err) {
    struct bench b = {e, a, sp};
    const struct iwp_bench_grid grid = {a->prune, a->keep, a->layer, measure, &b};
    const struct iwp_engine_info info = iwp_engine_info(e);
    IWP_TRY(iwp_bench_grid_layer(a->layer, &info, err));
    iwp_bench_rows_begin(rows, &info, a->format);
    IWP_TRY(iwp_bench_grid_run(&grid, rows, err));
    return iwp_bench_rows_end(rows, err);
}

int iwp_bench_e2e(int argc, char **argv) {
    static struct bench_args a; /* its lists live as long as the process */
    a = (struct bench_args){.repeats = 3, .decode = 16, .layer = -1};
    struct iwp_model_args m = IWP_MODEL_ARGS_DEFAULT;
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings none = {0};
    struct iwp_bench_rows rows = {0};
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
    if (rc >= 0) rc = iwp_bench_grid_check(&a.prune, &a.keep, true, &err);
    if (rc < 0) return iwp_cli_usage("bench e2e", &err);
    rc = iwp_model_args_engine(&m, &ep, &err);
    ep.cache_bytes = 1; /* no picture fits: each is encoded again */
    if (rc >= 0) rc = iwp_engine_open(&e, &ep, &err);
    if (rc >= 0) rc = run_grid(e, &a, iwp_model_args_session(&m), &rows, &err);
    if (rc < 0)
        code =
            rc == IWP_EINVAL ? iwp_cli_usage("bench e2e", &err) : iwp_cli_fail("bench e2e", &err);
    iwp_engine_close(e);
    iwp_bench_rows_free(&rows);
    iwp_model_args_free(&m);
    return code;
}
