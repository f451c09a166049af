/* `iwp bench eval`: what a grid costs beside what it must cost.
 *
 * Three sums over the same questions and configurations, loading the model left out of all:
 *   grid         iwp eval as it is, one run;
 *   alone        a run of its own for every configuration;
 *   unavoidable  put together from the parts of the runs alone: every picture encoded once, the layers
 *                below the highest cut run once for each question, and each configuration's own rest
 *                (selection, layers above its cut, answer).
 * Pictures of another size (resize) are other pictures.  Rows × layers are counted beside the times:
 * they do not depend on the machine. */
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/eval_args.h"
#include "kern/cpu.h"

struct bench_args {
    int32_t format;
};

#define AT(field) offsetof(struct bench_args, field)
static const struct iwp_opt bench_opts[] = {
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(format), 0, 0, "md|json|csv", "output format"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp bench eval --tasks t.jsonl --prune none,iwp,fastv,dart --keep 35.3%,11.1%",
    "the grid, what it must cost, and every configuration alone", NULL};
static const struct iwp_command command = {
    .name = "bench eval",
    .summary = "a grid of iwp eval beside its unavoidable work",
    .usage = "--tasks FILE.jsonl --prune A,B --keep R,... [options]",
    .about = "Runs a grid as iwp eval does, then each of its configurations alone, and prints what "
             "the grid cost, what could not be avoided, and what the runs alone cost.",
    .examples = examples,
    .max_args = 0,
    .args_name = "",
};

struct sum {
    double encode, prefix, rest, ms;
    int64_t encodes, row_layers;
};

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

/* One run in a folder that goes afterwards. */
static int run_grid(struct iwp_eval_job *job, struct iwp_eval_run *run, iwp_err *err) {
    const char *tmp = getenv("TMPDIR");
    char dir[4096];
    int n = snprintf(dir, sizeof dir, "%s/iwp-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    IWP_REQUIRE(n > 0 && (size_t)n < sizeof dir && mkdtemp(dir), err, IWP_EIO,
                "%.300s: cannot make a folder: %s", dir, strerror(errno));
    job->dir = dir;
    job->run = run;
    int rc = iwp_eval_run_grid(job, err);
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return rc < 0 ? rc : 0;
}

/* The family of configurations that share a prompt is told by what changes the picture or the tower. */
static bool same_pictures(const struct iwp_eval_config *a, const struct iwp_eval_config *b) {
    struct iwp_prompt_request x = {0}, y = {0};
    iwp_prompt_request_for(&x, a->params.method ? &a->params : NULL);
    iwp_prompt_request_for(&y, b->params.method ? &b->params : NULL);
    return !x.in_tower && !y.in_tower && x.resize_keep == y.resize_keep &&
           x.resize_tokens == y.resize_tokens;
}

/* alone: [n_config] what each cost.  Of those that share pictures, the one that runs most layers
 * before its cut pays encoding and these layers for all. */
static void add_up(const struct iwp_eval_run *run, const struct iwp_eval_work *alone,
                   struct sum *must, struct sum *all) {
    for (int32_t i = 0; i < run->n_config; i++) {
        const struct iwp_eval_work *w = &alone[i];
        *all = (struct sum){.encode = all->encode + w->encode_ms,
                            .prefix = all->prefix + w->prefix_ms,
                            .rest = all->rest + w->rest_ms,
                            .ms = all->ms + w->ms,
                            .encodes = all->encodes + w->n_encode,
                            .row_layers = all->row_layers + w->row_layers};
        bool pays = true;
        for (int32_t k = 0; k < run->n_config && pays; k++)
            if (k != i && same_pictures(&run->config[i], &run->config[k]))
                pays = w->shared_row_layers > alone[k].shared_row_layers ||
                       (w->shared_row_layers == alone[k].shared_row_layers && i < k);
        must->rest += w->rest_ms;
        must->row_layers += w->row_layers - (pays ? 0 : w->shared_row_layers);
        if (!pays) continue;
        must->encode += w->encode_ms;
        must->encodes += w->n_encode;
        must->prefix += w->prefix_ms;
    }
    must->ms = must->encode + must->prefix + must->rest;
}

static const char *const row_names[3] = {"grid", "unavoidable", "alone"};

static int print_json(const struct iwp_eval_job *j, const struct sum row[3], int64_t questions,
                      iwp_err *err) {
    struct iwp_json_out w;
    iwp_json_init(&w, true);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_string(&w, "cpu", iwp_cli_cpu(iwp_cpu_features()));
    iwp_json_put_int(&w, "configurations", j->run->n_config);
    iwp_json_put_int(&w, "questions", questions);
    for (int i = 0; i < 3; i++) {
        iwp_json_open_object(&w, row_names[i]);
        iwp_json_put_int(&w, "encodes", row[i].encodes);
        iwp_json_put_ms(&w, "encode_ms", row[i].encode);
        iwp_json_put_ms(&w, "shared_ms", row[i].prefix);
        iwp_json_put_ms(&w, "rest_ms", row[i].rest);
        iwp_json_put_ms(&w, "total_ms", row[i].ms);
        iwp_json_put_int(&w, "row_layers", row[i].row_layers);
        iwp_json_close_object(&w);
    }
    iwp_json_put_f64(&w, "grid_to_unavoidable", row[0].ms / row[1].ms);
    iwp_json_put_f64(&w, "grid_to_unavoidable_row_layers",
                     (double)row[0].row_layers / (double)row[1].row_layers);
    iwp_json_put_f64(&w, "alone_to_grid", row[2].ms / row[0].ms);
    iwp_json_close_object(&w);
    int rc = iwp_json_write(&w, stdout, err);
    iwp_json_free(&w);
    return rc;
}

static void print_table(const struct iwp_eval_job *j, const struct sum row[3], int64_t questions,
                        bool csv) {
    puts(csv ? "what,encodes,encode_ms,shared_ms,rest_ms,total_ms,row_layers"
             : "| | pictures encoded | encode ms | shared layers ms | rest ms | total ms | rows x "
               "layers |\n|---|--:|--:|--:|--:|--:|--:|");
    for (int i = 0; i < 3; i++)
        printf(csv ? "%s,%lld,%.3f,%.3f,%.3f,%.3f,%lld\n"
                   : "| %s | %lld | %.0f | %.0f | %.0f | %.0f | %lld |\n",
               row_names[i], (long long)row[i].encodes, row[i].encode, row[i].prefix, row[i].rest,
               row[i].ms, (long long)row[i].row_layers);
    if (csv) return;
    printf("\n%d configurations, %lld questions: grid = %.3f x unavoidable (rows x layers: %.3f), "
           "alone = %.2f x grid\n",
           j->run->n_config, (long long)questions, row[0].ms / row[1].ms,
           (double)row[0].row_layers / (double)row[1].row_layers, row[2].ms / row[0].ms);
}

static int work(const struct bench_args *a, const struct iwp_eval_args *grid,
                struct iwp_model_args *model, iwp_err *err) {
    struct iwp_eval_run run;
    struct iwp_eval_data data = {0};
    struct iwp_eval_job job;
    struct iwp_eval_work *alone = NULL;
    struct sum row[3];
    memset(&run, 0, sizeof run);
    memset(&job, 0, sizeof job);
    memset(row, 0, sizeof row);
    int64_t questions = 0;
    int rc = iwp_eval_args_job(grid, model, &run, &data, &job, err);
    if (rc < 0) goto fail;
    for (int32_t i = 0; i < data.n; i++) questions += data.set[i].n;
    alone = calloc((size_t)run.n_config + 1, sizeof *alone);
    if (!alone) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(run_grid(&job, &run, err));
    const struct iwp_eval_work w = job.work;
    row[0] = (struct sum){w.encode_ms, w.prefix_ms, w.rest_ms, w.ms, w.n_encode, w.row_layers};
    for (int32_t i = 0; i < run.n_config; i++) {
        struct iwp_eval_run one = run;
        one.config = &run.config[i];
        one.n_config = 1;
        IWP_TRY_GOTO(run_grid(&job, &one, err));
        alone[i] = job.work;
    }
    job.run = &run;
    add_up(&run, alone, &row[1], &row[2]);
    if (a->format == 1)
        IWP_TRY_GOTO(print_json(&job, row, questions, err));
    else
        print_table(&job, row, questions, a->format == 2);
fail:
    free(alone);
    iwp_eval_data_free(&data);
    iwp_eval_run_free(&run);
    return rc;
}

int iwp_bench_eval(int argc, char **argv) {
    static struct iwp_eval_args grid = IWP_EVAL_ARGS_DEFAULT; /* its lists live on */
    struct bench_args a = {0};
    struct iwp_model_args model = IWP_MODEL_ARGS_DEFAULT;
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings none = {0};
    const struct iwp_opt_group groups[] = {{"questions", iwp_question_opts, &grid},
                                           {"grid", iwp_grid_opts, &grid},
                                           {"output", bench_opts, &a},
                                           {"model", iwp_model_opts, &model},
                                           {"messages", iwp_log_opts, &log},
                                           {NULL, NULL, NULL}};
    iwp_err err = {0};
    int code = 0;
    int rc = iwp_opts_parse(&command, groups, argc, argv, &none, &err);
    if (rc > 0) return 0;
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc >= 0) rc = iwp_eval_args_check(&grid, &err);
    if (rc < 0) return iwp_cli_usage("bench eval", &err);
    rc = work(&a, &grid, &model, &err);
    if (rc < 0) code = iwp_cli_fail("bench eval", &err);
    iwp_model_args_free(&model);
    return code;
}
