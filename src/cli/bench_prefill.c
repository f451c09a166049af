/* `iwp bench prefill`: a prompt of visual rows through a model, without and with pruning; random rows,
 * no picture and no tower.  One warm-up, then medians over repeats (CONTRACT section 5). */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "cli/bench_rows.h"
#include "model/prompt.h"

enum { MAX_PARALLEL = 64 };

struct bench_args {
    struct iwp_strings prune, keep, prompt;
    int32_t repeats, decode, parallel, format, layer;
};

#define AT(field) offsetof(struct bench_args, field)
static const struct iwp_opt bench_opts[] = {
    {"-p, --n-prompt", "N,...", IWP_OPT_COMMAS, AT(prompt), 0, 0, NULL,
     "rows of the prompt, 32 of them text (half of a short one), the others visual (default 512)"},
    {"--prune", "METHOD,...", IWP_OPT_COMMAS, AT(prune), 0, 0, NULL,
     "pruning methods (default none,iwp)"},
    {"--keep", "R,...", IWP_OPT_COMMAS, AT(keep), 0, 0, NULL, "fractions kept (default 22.2%)"},
    {"--prune-layer", "L", IWP_OPT_INT, AT(layer), 0, 1000, NULL,
     "decoder layer whose input is cut (default: the method's)"},
    {"-n, --n-gen", "N", IWP_OPT_INT, AT(decode), 0, 4096, NULL,
     "tokens to generate after the prompt (default 0)"},
    {"-np, --parallel", "N", IWP_OPT_INT, AT(parallel), 1, MAX_PARALLEL, NULL,
     "also generate in N sessions at once, one token of each per step (default 1)"},
    {"-r, --repetitions", "N", IWP_OPT_INT, AT(repeats), 1, 1000, NULL, "repeats (default 3)"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(format), 0, 0, "md|json|csv",
     "form of the table"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp bench prefill -m model.gguf -p 512,2048 --prune none,iwp --keep 22.2%",
    "how much a cut at layer 4 saves",
    "iwp bench prefill -m model.gguf -p 64 --prune none -n 32 -np 4",
    "tokens per second of one session and of four together", NULL};
static const struct iwp_command command = {
    .name = "bench prefill",
    .summary = "prompt processing with and without pruning",
    .usage = "[-m FILE] [-p N,...] [--prune A,B] [--keep X,Y] [options]",
    .about = "Times prompt processing on random visual rows; the tower is not run.  The unpruned "
             "rows per second compare with llama-bench's pp.  FLOP share and time share are those "
             "of the unpruned prompt above; time/FLOP is one divided by the other, 1 when nothing "
             "but arithmetic costs time.",
    .examples = examples,
    .max_args = 0,
    .args_name = "",
};

static void fake_prompt(struct iwp_prompt *p, int32_t n, const struct iwp_engine_info *e,
                        int32_t n_pos) {
    const int32_t text = n >= 64 ? 32 : n / 2;
    uint64_t s = 7;
    memset(p, 0, sizeof *p);
    p->n = n;
    p->n_pos = n_pos;
    p->n_visual = n - text;
    p->d_model = e->d_model;
    p->next_pos = n;
    p->id = calloc((size_t)n, sizeof *p->id);
    p->code = calloc((size_t)n, 1);
    p->pos = calloc((size_t)n * (size_t)n_pos, sizeof *p->pos);
    p->visual = calloc((size_t)p->n_visual * (size_t)e->d_model + 1, sizeof *p->visual);
    if (!p->id || !p->code || !p->pos || !p->visual) return;
    for (int32_t i = 0; i < n; i++) {
        p->code[i] = i < text / 2                 ? IWP_CODE_TEXT
                     : i < text / 2 + p->n_visual ? IWP_CODE_VISUAL
                                                  : IWP_CODE_USER;
        p->id[i] = i % (e->n_vocab < 1000 ? e->n_vocab : 1000);
        for (int32_t r = 0; r < n_pos; r++) p->pos[(size_t)r * (size_t)n + (size_t)i] = i;
    }
    for (size_t i = 0; i < (size_t)p->n_visual * (size_t)e->d_model; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        p->visual[i] = (float)((double)(s >> 40) / (1 << 24) - 0.5) * 0.1f;
    }
}

/* Everything a case is measured with. */
struct bench {
    iwp_engine *e;
    const struct bench_args *a;
    struct iwp_session_params sp;
    const struct iwp_prompt *p;
};

static int start(const struct bench *b, const struct iwp_params *pp, iwp_session **s,
                 iwp_err *err) {
    IWP_TRY(iwp_session_new(s, b->e, &b->sp, err));
    IWP_TRY(iwp_session_begin(*s, b->p, pp, err));
    return iwp_engine_prefill(*s, err);
}

/* Tokens per second of all sessions together. */
static int decode_together(const struct bench *b, const struct iwp_params *pp, double *rate,
                           iwp_err *err) {
    const int32_t n = b->a->parallel, steps = b->a->decode;
    iwp_session *s[MAX_PARALLEL] = {NULL};
    int32_t token[MAX_PARALLEL];
    double t0 = 0;
    int rc = 0;
    for (int32_t i = 0; i < n; i++) IWP_TRY_GOTO(start(b, pp, &s[i], err));
    for (int32_t k = -1; k < steps; k++) { /* the first one takes memory */
        if (k == 0) t0 = iwp_clock_ms();
        for (int32_t i = 0; i < n; i++) token[i] = (k + 1 + i) % 100;
        IWP_TRY_GOTO(iwp_session_feed_batch(s, token, n, err));
    }
    *rate = steps * n * 1e3 / (iwp_clock_ms() - t0);
fail:
    for (int32_t i = 0; i < n; i++) iwp_session_free(s[i]);
    return rc < 0 ? rc : 0;
}

static int measure(void *ctx, const struct iwp_params *pp, struct iwp_bench_row *out,
                   iwp_err *err) {
    const struct bench *b = ctx;
    const int32_t n = b->a->repeats, decode = b->a->decode;
    double *pre = calloc((size_t)n * 4, sizeof *pre), *sel = pre + n, *dec = pre + 2 * n,
           *all = pre + 3 * n;
    IWP_REQUIRE(pre, err, IWP_ENOMEM, "out of memory");
    int rc = 0;
    iwp_session *s = NULL;
    for (int32_t i = -1; i < n; i++) { /* a fresh session each time: nothing is reused */
        iwp_session_free(s);
        s = NULL;
        IWP_TRY_GOTO(start(b, pp, &s, err));
        for (int32_t k = 0; k < decode; k++) IWP_TRY_GOTO(iwp_session_feed(s, k % 100, err));
        const struct iwp_session_stats st = iwp_session_stats(s);
        out->prompt = st.n_prompt;
        out->visual = st.n_visual;
        out->kept = st.n_kept;
        out->flops = st.flops;
        out->flops_full = st.flops_full;
        out->kv_bytes = (int64_t)st.kv_bytes;
        if (i < 0) continue;
        pre[i] = st.ms_prefill;
        sel[i] = st.ms_select;
        dec[i] = st.ms_decode;
        if (decode > 0 && b->a->parallel > 1) IWP_TRY_GOTO(decode_together(b, pp, &all[i], err));
    }
    out->select = iwp_bench_median(sel, n);
    out->prefill = iwp_bench_median(pre, n);
    out->spread = pre[n - 1] - pre[0];
    if (decode > 0) out->decode = decode * 1e3 / iwp_bench_median(dec, n);
    if (decode > 0 && b->a->parallel > 1) out->together = iwp_bench_median(all, n);
fail:
    iwp_session_free(s);
    free(pre);
    return rc < 0 ? rc : 0;
}

static int rows_of(const char *text, int64_t *n, iwp_err *err) {
    IWP_REQUIRE(iwp_parse_int(text, 4, 1 << 20, n), err, IWP_EINVAL,
                "-p: '%.40s' is not a number of rows from 4 to 1048576", text);
    return 0;
}

static struct iwp_strings prompts(const struct bench_args *a) {
    static const char *usual = "512";
    return a->prompt.n ? a->prompt : (struct iwp_strings){&usual, 1};
}

static int check(const struct bench_args *a, int32_t ctx, iwp_err *err) {
    const struct iwp_strings ps = prompts(a);
    int64_t n;
    for (int32_t i = 0; i < ps.n; i++) {
        IWP_TRY(rows_of(ps.at[i], &n, err));
        IWP_REQUIRE(ctx == 0 || ctx >= n + a->decode + 2, err, IWP_EINVAL,
                    "-c %d is too short for -p %lld; it takes %lld, or leave -c out", ctx,
                    (long long)n, (long long)n + a->decode + 2);
    }
    return iwp_bench_grid_check(&a->prune, &a->keep, false, err);
}

static int run_grid(iwp_engine *e, const struct bench_args *a, struct iwp_session_params sp,
                    struct iwp_bench_rows *rows, iwp_err *err) {
    const struct iwp_engine_info info = iwp_engine_info(e);
    const int32_t n_pos = strcmp(info.arch, "qwen2vl") == 0 ? 3 : 1;
    const struct iwp_strings ps = prompts(a);
    sp.reserve = a->decode + 16;
    IWP_TRY(iwp_bench_grid_layer(a->layer, &info, err));
    iwp_bench_rows_begin(rows, &info, a->format);
    for (int32_t i = 0; i < ps.n; i++) {
        int64_t n;
        IWP_TRY(rows_of(ps.at[i], &n, err));
        if (sp.n_ctx <= n + a->decode + 1) sp.n_ctx = (int32_t)n + a->decode + 2;
        struct iwp_prompt p;
        fake_prompt(&p, (int32_t)n, &info, n_pos);
        struct bench b = {e, a, sp, &p};
        const struct iwp_bench_grid grid = {a->prune, a->keep, a->layer, measure, &b};
        int rc = p.id && p.code && p.pos && p.visual
                     ? iwp_bench_grid_run(&grid, rows, err)
                     : iwp_err_set(err, IWP_ENOMEM, "out of memory");
        iwp_prompt_free(&p);
        IWP_TRY(rc);
    }
    return iwp_bench_rows_end(rows, err);
}

int iwp_bench_prefill(int argc, char **argv) {
    static struct bench_args a; /* its lists live as long as the process */
    a = (struct bench_args){.repeats = 3, .parallel = 1, .layer = -1};
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
    if (rc >= 0) rc = check(&a, m.ctx, &err);
    if (rc < 0) return iwp_cli_usage("bench prefill", &err);
    rc = iwp_model_args_engine(&m, &ep, &err);
    ep.mmproj = NULL;
    ep.no_text = true;
    if (rc >= 0) rc = iwp_engine_open(&e, &ep, &err);
    if (rc >= 0) rc = run_grid(e, &a, iwp_model_args_session(&m), &rows, &err);
    if (rc < 0)
        code = rc == IWP_EINVAL ? iwp_cli_usage("bench prefill", &err)
                                : iwp_cli_fail("bench prefill", &err);
    iwp_engine_close(e);
    iwp_bench_rows_free(&rows);
    iwp_model_args_free(&m);
    return code;
}
