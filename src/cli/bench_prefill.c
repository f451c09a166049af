/* `iwp bench prefill`: a prompt of visual rows through a model, without and with pruning; random rows,
 * no picture and no tower.  One warm-up, then medians over repeats (CONTRACT section 5). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/engine_args.h"
#include "model/prompt.h"

struct bench_args {
    struct iwp_strings prune, keep, prompt;
    int32_t repeats, decode, format, layer;
};

#define AT(field) offsetof(struct bench_args, field)
static const struct iwp_opt bench_opts[] = {
    {"-p, --n-prompt", "N,...", IWP_OPT_COMMAS, AT(prompt), 0, 0, NULL,
     "rows of the prompt, 32 of them text, the others visual (default 512)"},
    {"--prune", "METHOD,...", IWP_OPT_COMMAS, AT(prune), 0, 0, NULL,
     "pruning methods (default none,iwp)"},
    {"--keep", "R,...", IWP_OPT_COMMAS, AT(keep), 0, 0, NULL, "fractions kept (default 22.2%)"},
    {"--prune-layer", "L", IWP_OPT_INT, AT(layer), 0, 1000, NULL,
     "decoder layer whose input is cut (default: the method's)"},
    {"-n, --n-gen", "N", IWP_OPT_INT, AT(decode), 0, 4096, NULL,
     "tokens to generate after the prompt (default 0)"},
    {"-r, --repetitions", "N", IWP_OPT_INT, AT(repeats), 1, 1000, NULL, "repeats (default 3)"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(format), 0, 0, "md|json|csv",
     "form of the table"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp bench prefill -m model.gguf -p 512,2048 --prune none,iwp --keep 22.2%",
    "how much a cut at layer 4 saves", NULL};
static const struct iwp_command command = {
    .name = "bench prefill",
    .summary = "prompt processing with and without pruning",
    .usage = "[-m FILE] [-p N,...] [--prune A,B] [--keep X,Y] [options]",
    .about = "Times prompt processing on random visual rows; the tower is not run.  The unpruned "
             "rows per "
             "second compare with llama-bench's pp.",
    .examples = examples,
    .max_args = 0,
    .args_name = "",
};

struct row {
    const char *prune;
    double keep; /* 0: none */
    int32_t prompt, visual, kept;
    double select, prefill, spread, decode, gflops;
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

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int32_t n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int measure(iwp_engine *e, const struct bench_args *a, struct iwp_session_params sp,
                   const struct iwp_prompt *p, const struct iwp_params *pp, struct row *out,
                   iwp_err *err) {
    const int32_t n = a->repeats;
    double *pre = calloc((size_t)n * 3, sizeof *pre), *sel = pre + n, *dec = pre + 2 * n;
    IWP_REQUIRE(pre, err, IWP_ENOMEM, "out of memory");
    int rc = 0;
    iwp_session *s = NULL;
    sp.reserve = a->decode + 16;
    for (int32_t i = -1; i < n; i++) { /* a fresh session each time: nothing is reused */
        iwp_session_free(s);
        IWP_TRY_GOTO(iwp_session_new(&s, e, &sp, err));
        IWP_TRY_GOTO(iwp_session_begin(s, p, pp, err));
        while ((rc = iwp_session_step(s, err)) > 0) {
        }
        if (rc < 0) goto fail;
        for (int32_t k = 0; k < a->decode; k++) IWP_TRY_GOTO(iwp_session_feed(s, k % 100, err));
        const struct iwp_session_stats st = iwp_session_stats(s);
        out->visual = st.n_visual;
        out->kept = st.n_kept;
        out->gflops = st.flops;
        if (i < 0) continue;
        pre[i] = st.ms_prefill;
        sel[i] = st.ms_select;
        dec[i] = st.ms_decode;
    }
    out->prompt = p->n;
    out->select = median(sel, n);
    out->prefill = median(pre, n);
    out->spread = pre[n - 1] - pre[0];
    out->decode = a->decode ? a->decode * 1e3 / median(dec, n) : 0;
    out->gflops /= out->prefill * 1e6;
fail:
    iwp_session_free(s);
    free(pre);
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
        iwp_json_put_null(&w, "encode_ms");
        iwp_json_put_ms(&w, "select_ms", r[i].select);
        iwp_json_put_ms(&w, "prefill_ms", r[i].prefill);
        iwp_json_put_null(&w, "ttft_ms");
        iwp_json_put_f64(&w, "prefill_tokens_per_s", r[i].prompt * 1e3 / r[i].prefill);
        put_num(&w, "decode_tokens_per_s", r[i].decode, r[i].decode > 0);
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
    puts(
        csv ? "model,prune,keep,prompt,visual,visual_kept,select_ms,prefill_ms,spread_ms,"
              "prefill_tokens_per_s,decode_tokens_per_s,gflops,peak_rss_bytes"
            : "| model | prune | keep | prompt | visual | kept | select ms | prefill ms | spread | "
              "prefill t/s | decode t/s | GFLOP/s | peak MB |\n"
              "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (int32_t i = 0; i < n; i++)
        printf(csv ? "%s,%s,%g,%d,%d,%d,%.3f,%.3f,%.3f,%.2f,%.2f,%.2f,%.0f\n"
                   : "| %s | %s | %.3f | %d | %d | %d | %.2f | %.1f | %.1f | %.1f | %.1f | %.1f | "
                     "%.0f |\n",
               e->name, r[i].prune, r[i].keep > 0 ? r[i].keep : 1, r[i].prompt, r[i].visual,
               r[i].kept, r[i].select, r[i].prefill, r[i].spread, r[i].prompt * 1e3 / r[i].prefill,
               r[i].decode, r[i].gflops, csv ? (double)peak() : (double)peak() / 1e6);
}

enum { MAX_ROW = 1024 };

static int run_grid(iwp_engine *e, const struct bench_args *a, struct iwp_session_params sp,
                    struct row *rows, int32_t *n_row, iwp_err *err) {
    const struct iwp_engine_info info = iwp_engine_info(e);
    const int32_t n_pos = strcmp(info.arch, "qwen2vl") == 0 ? 3 : 1;
    static const char *def_p = "512", *def_m[] = {"none", "iwp"}, *def_k = "22.2%";
    const struct iwp_strings ps = a->prompt.n ? a->prompt : (struct iwp_strings){&def_p, 1},
                             ms = a->prune.n ? a->prune : (struct iwp_strings){def_m, 2},
                             ks = a->keep.n ? a->keep : (struct iwp_strings){&def_k, 1};
    for (int32_t i = 0; i < ps.n; i++) {
        int64_t n;
        IWP_REQUIRE(iwp_parse_int(ps.at[i], 4, 1 << 20, &n), err, IWP_EINVAL,
                    "-p: '%.40s' is not a number of rows from 4 to 1048576", ps.at[i]);
        if (sp.n_ctx <= n + a->decode) sp.n_ctx = (int32_t)n + a->decode + 1;
        struct iwp_prompt p;
        fake_prompt(&p, (int32_t)n, &info, n_pos);
        int rc =
            p.id && p.code && p.pos && p.visual ? 0 : iwp_err_set(err, IWP_ENOMEM, "out of memory");
        for (int32_t m = 0; m < ms.n && rc >= 0; m++) {
            const bool none = strcmp(ms.at[m], "none") == 0;
            for (int32_t k = 0; k < (none ? 1 : ks.n) && rc >= 0 && *n_row < MAX_ROW; k++) {
                struct iwp_params pp;
                struct row *r = &rows[*n_row];
                memset(r, 0, sizeof *r);
                r->prune = ms.at[m];
                if (!none) {
                    const struct iwp_method *method;
                    rc = iwp_cli_find_method(ms.at[m], &method, err);
                    if (rc >= 0) rc = iwp_keep_parse(ks.at[k], &r->keep, err);
                    if (rc < 0) break;
                    iwp_params_default(&pp, method);
                    pp.budget.keep = r->keep;
                    pp.layer = a->layer;
                }
                rc = measure(e, a, sp, &p, none ? NULL : &pp, r, err);
                if (rc >= 0) ++*n_row;
            }
        }
        iwp_prompt_free(&p);
        IWP_TRY(rc);
    }
    return 0;
}

int iwp_bench_prefill(int argc, char **argv) {
    static struct bench_args a; /* its lists live as long as the process */
    a = (struct bench_args){.repeats = 3, .layer = -1};
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
    if (rc >= 0) rc = iwp_cpu_check(&err);
    if (rc < 0) return iwp_cli_usage("bench prefill", &err);
    rc = iwp_model_args_engine(&m, &ep, &err);
    ep.mmproj = NULL;
    ep.no_text = true;
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
        code = rc == IWP_EINVAL ? iwp_cli_usage("bench prefill", &err)
                                : iwp_cli_fail("bench prefill", &err);
    iwp_engine_close(e);
    iwp_model_args_free(&m);
    return code;
}
