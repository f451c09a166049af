/* `iwp eval`: the benchmark grid (CONTRACT 6).  Owns the folder, the shard and the check against a folder
 * that is there already; flags of the grid are in eval_args.c, the work is in eval/. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "cli/eval_args.h"
#include "eval/results.h"

struct args {
    const char *out, *shard;
    bool exact_times, allow_failures, paper;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt run_opts[] = {
    {"--out", "DIR", IWP_OPT_TEXT, AT(out), 0, 0, NULL, "results folder; continued when it exists"},
    {"--shard", "I/N", IWP_OPT_TEXT, AT(shard), 0, 0, NULL,
     "part I (from 0) of N; `iwp report` merges the folders"},
    {"--exact-times", NULL, IWP_OPT_FLAG, AT(exact_times), 0, 0, NULL,
     "run every prefill whole, so that its time is measured and not put together"},
    {"--allow-failures", NULL, IWP_OPT_FLAG, AT(allow_failures), 0, 0, NULL,
     "go on when a method or budget cannot do the first question, its failures are recorded; "
     "exit 0 even when nothing was answered"},
    {"--paper", NULL, IWP_OPT_FLAG, AT(paper), 0, 0, NULL,
     "show the paper's figures beside ours where model and task match"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp eval --tasks photos.jsonl --prune none,iwp,fastv,random --keep 35.3%,22.2%,11.1% --out r",
    "the grid on a manifest, with the shipped model; table on stdout, r/report.html",
    "iwp eval --tasks pope=pope/manifest.jsonl --prune none,iwp --keep 22.2% --sweep lambda=1,5 "
    "--out r",
    "a benchmark's prompts and scorer, two values of an option", NULL};

static const struct iwp_command command = {
    .name = "eval",
    .summary = "benchmark grid: tasks x methods x budgets, resumable, with a report",
    .usage = "--tasks A,B|FILE.jsonl --prune A,B --keep R,... --out DIR [options]",
    .about =
        "Asks every question of the manifests under every pruning method and budget and writes "
        "samples, results.json, timings.json and report.html. Killed at any moment and started "
        "again with the same command it continues and ends with the same results. The table of "
        "methods and budgets goes to stdout as Markdown.",
    .examples = examples,
    .min_args = 0,
    .max_args = 0,
    .args_name = "",
};

static int parse_shard(const char *s, int32_t *i, int32_t *n, iwp_err *err) {
    char a[16], b[16];
    int64_t x, y;
    *i = 0;
    *n = 1;
    if (!s) return 0;
    const char *slash = strchr(s, '/');
    IWP_REQUIRE(slash && slash - s < 12 && strlen(slash + 1) < 12, err, IWP_EINVAL,
                "--shard: '%.30s' is not I/N", s);
    snprintf(a, sizeof a, "%.*s", (int)(slash - s), s);
    snprintf(b, sizeof b, "%s", slash + 1);
    IWP_REQUIRE(iwp_parse_int(b, 1, 1 << 20, &y) && iwp_parse_int(a, 0, y - 1, &x), err, IWP_EINVAL,
                "--shard: '%.30s' is not I/N with I from 0 to N-1", s);
    *i = (int32_t)x;
    *n = (int32_t)y;
    return 0;
}

/* ---- the folder --------------------------------------------------------------------------------------- */

/* One program at a time in a folder; the lock goes with the process. */
static int lock_folder(const char *dir, iwp_err *err) {
    char path[4096];
    snprintf(path, sizeof path, "%s/.lock", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    IWP_REQUIRE(fd >= 0, err, IWP_EIO, "%.300s: cannot write: %s", path, strerror(errno));
    IWP_REQUIRE(lockf(fd, F_TLOCK, 0) == 0, err, IWP_EIO,
                "%.300s: another iwp eval is working in it", dir);
    return 0;
}

/* old: what the folder holds, with this run's tasks and configurations added; the caller frees it.
 * Returns 0 when it is a new folder. */
static int join_folder(struct iwp_eval_run *r, const char *dir, struct iwp_eval_run *old,
                       iwp_err *err) {
    int rc = iwp_eval_run_read(old, dir, err);
    if (rc <= 0) return rc;
    rc = iwp_eval_run_match(old, r, dir, err);
    if (rc >= 0 && (old->shard != r->shard || old->n_shard != r->n_shard))
        rc = iwp_err_set(err, IWP_EINVAL,
                         "%.200s: holds results of another --shard; give another --out", dir);
    if (rc >= 0 && strcmp(old->binary_hash, r->binary_hash)) {
        iwp_log(IWP_LOG_WARN, "eval: %s was begun by another build of iwp", dir);
        memcpy(r->binary_hash, old->binary_hash, sizeof r->binary_hash);
    }
    /* What was measured before stays in the folder's list, so that its report has it. */
    if (rc >= 0) rc = iwp_eval_run_merge(old, r, err);
    return rc < 0 ? rc : 1;
}

/* Whether the row is one that this command asked for. */
static bool asked(const struct iwp_eval_run *run, const struct iwp_eval_book *b,
                  const struct iwp_eval_row *row) {
    bool task = false, config = false;
    for (int32_t i = 0; i < run->n_task; i++)
        task = task || !strcmp(run->task[i].task->name, b->run.task[row->task].task->name);
    for (int32_t i = 0; i < run->n_config; i++)
        config = config || iwp_eval_config_same_row(&run->config[i], row->config);
    return task && config;
}

/* A run without a single answer measured nothing: its records stay, but it is no success. */
static int check_answers(const struct iwp_eval_run *run, const struct iwp_eval_book *b,
                         iwp_err *err) {
    const struct iwp_eval_record *first = NULL;
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *row = &b->row[i];
        if (!asked(run, b, row)) continue;
        if (!iwp_eval_summary_failed(&row->s)) return 0;
        n += row->s.errors;
        const struct iwp_eval_records *r =
            &b->records[(row->config - b->run.config) * b->run.n_task + row->task];
        if (!first && r->n) first = &r->at[0];
    }
    IWP_REQUIRE(n == 0, err, IWP_EINVAL,
                "all %d answers failed, the first with: %.300s; give --allow-failures to take that",
                n, first && first->error ? first->error : "no message");
    return 0;
}

/* ---- the command ------------------------------------------------------------------------------------- */

static int work(const struct args *a, const struct iwp_eval_args *grid,
                struct iwp_model_args *model, iwp_err *err) {
    struct iwp_eval_run run, old;
    struct iwp_eval_data data = {0};
    struct iwp_eval_book book;
    struct iwp_eval_job job;
    memset(&run, 0, sizeof run);
    memset(&old, 0, sizeof old);
    memset(&job, 0, sizeof job);
    memset(&book, 0, sizeof book);
    int rc = parse_shard(a->shard, &run.shard, &run.n_shard, err);
    if (rc >= 0) rc = iwp_eval_args_job(grid, model, &run, &data, &job, err);
    if (rc < 0) goto fail;
    if (run.n_shard > 1) IWP_TRY_GOTO(iwp_eval_data_shard(&data, run.shard, run.n_shard, err));
    IWP_TRY_GOTO(iwp_eval_make_folders(a->out, err));
    IWP_TRY_GOTO(lock_folder(a->out, err));
    IWP_TRY_GOTO(join_folder(&run, a->out, &old, err));
    job.list = rc ? &old : &run;
    job.dir = a->out;
    job.exact_times = a->exact_times;
    job.allow_failures = a->allow_failures;
    IWP_TRY_GOTO(iwp_eval_run_grid(&job, err));
    const int computed = rc;
    IWP_TRY_GOTO(iwp_eval_book_read(&book, &a->out, 1, err));
    if (run.n_shard > 1) book.missing = 0;
    IWP_TRY_GOTO(iwp_eval_book_write(&book, a->out, a->paper, err));
    iwp_eval_report_md(&book, stdout);
    if (!a->allow_failures) IWP_TRY_GOTO(check_answers(&run, &book, err));
    int32_t errors = 0;
    for (int32_t i = 0; i < book.n_row; i++) errors += book.row[i].s.errors;
    if (errors)
        iwp_log(IWP_LOG_WARN, "eval: %d answers failed, see \"error\" in the samples", errors);
    iwp_log(IWP_LOG_INFO, "eval: %d answers computed now; %s/report.html", computed, a->out);
fail:
    iwp_eval_book_free(&book);
    iwp_eval_data_free(&data);
    iwp_eval_run_free(&old);
    iwp_eval_run_free(&run);
    return rc;
}

int iwp_cmd_eval(int argc, char **argv) {
    /* Static: texts cut out of comma lists live as long as the process. */
    static struct args a;
    static struct iwp_eval_args grid = IWP_EVAL_ARGS_DEFAULT;
    struct iwp_model_args model = IWP_MODEL_ARGS_DEFAULT;
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings none = {0};
    const struct iwp_opt_group groups[] = {{"questions", iwp_question_opts, &grid},
                                           {"grid", iwp_grid_opts, &grid},
                                           {"results", run_opts, &a},
                                           {"model", iwp_model_opts, &model},
                                           {"logging", iwp_log_opts, &log},
                                           {NULL, NULL, NULL}};
    iwp_err err = {0};
    int code = 0;
    int rc = iwp_opts_parse(&command, groups, argc, argv, &none, &err);
    if (rc == 1) goto done;
    if (rc >= 0) rc = iwp_eval_args_check(&grid, &err);
    if (rc >= 0 && !a.out) rc = iwp_err_set(&err, IWP_EINVAL, "--out DIR is needed");
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc < 0) {
        code = iwp_cli_usage("eval", &err);
        goto done;
    }
    rc = work(&a, &grid, &model, &err);
    if (rc < 0) code = iwp_cli_fail("eval", &err);
done:
    iwp_model_args_free(&model);
    iwp_strings_free(&none);
    return code;
}
