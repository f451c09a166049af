/* `iwp eval`: the benchmark grid (CONTRACT 6).  Owns the flags, the list of configurations and the check
 * against a folder that is there already; the work is in eval/. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "cli/engine_args.h"
#include "eval/results.h"
#include "eval/runner.h"

struct args {
    struct iwp_strings tasks, prune, keep, keep_tokens, sweep, opt;
    const char *out, *data, *task_dir, *system, *shard;
    int32_t limit, profile, seeds, layer, rule, scope, keep_separators, frames;
    double fps;
    bool exact_times, paper;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt eval_opts[] = {
    {"--tasks", "A,B|FILE.jsonl", IWP_OPT_COMMAS, AT(tasks), 0, 0, NULL,
     "manifests (JSONL), NAME=FILE.jsonl to set their task, or task names found in --data"},
    {"--out", "DIR", IWP_OPT_TEXT, AT(out), 0, 0, NULL, "results folder; continued when it exists"},
    {"--prune, --methods", "A,B", IWP_OPT_COMMAS, AT(prune), 0, 0, NULL,
     "pruning methods; none is the unpruned run (default none)"},
    {"--keep", "R,...", IWP_OPT_COMMAS, AT(keep), 0, 0, NULL,
     "budgets: fractions kept, 0.222 or 22.2%"},
    {"--keep-tokens", "N,...", IWP_OPT_COMMAS, AT(keep_tokens), 0, 0, NULL, "budgets as counts"},
    {"--prune-opt, --opt", "K=V,...", IWP_OPT_COMMAS, AT(opt), 0, 0, NULL,
     "options, for the methods that have them"},
    {"--sweep", "K=A,B,...", IWP_OPT_LIST, AT(sweep), 0, 0, NULL,
     "values of an option to try; repeatable: all combinations"},
    {"--prune-layer", "L", IWP_OPT_INT, AT(layer), 0, 1000, NULL,
     "decoder layer whose input is cut (default: the method's)"},
    {"--budget-rule", "RULE", IWP_OPT_CHOICE, AT(rule), 0, 0,
     "default|cut|layer-average|matched|as-published", "what --keep counts"},
    {"--budget-scope", "SCOPE", IWP_OPT_CHOICE, AT(scope), 0, 0, "global|image|tile|frame",
     "one budget for all, or one in each image, tile or frame"},
    {"--keep-separators", "[=0|1]", IWP_OPT_TRI, AT(keep_separators), 0, 0, NULL,
     "row separators are kept on top of the budget"},
    {"--seeds", "N", IWP_OPT_INT, AT(seeds), 1, 64, NULL,
     "runs of methods that draw at random (default 5)"},
    {"--limit", "N", IWP_OPT_INT, AT(limit), 1, INT32_MAX, NULL,
     "about N samples per task: whole groups, all categories alike"},
    {"--shard", "I/N", IWP_OPT_TEXT, AT(shard), 0, 0, NULL,
     "part I (from 0) of N; `iwp report` merges the folders"},
    {"--profile", "NAME", IWP_OPT_CHOICE, AT(profile), 0, 0, "lmms-0.3|lmms-0.7.2",
     "whose prompts and scorers (default lmms-0.3)"},
    {"--data", "DIR", IWP_OPT_TEXT, AT(data), 0, 0, NULL,
     "where NAME.jsonl or NAME/manifest.jsonl of task names are (default: IWP_DATA, out/data)"},
    {"--task-dir", "DIR", IWP_OPT_TEXT, AT(task_dir), 0, 0, NULL, "more task files, NAME.json"},
    {"-sys, --system-prompt", "TEXT", IWP_OPT_TEXT, AT(system), 0, 0, NULL, "system message"},
    {"--frames", "N", IWP_OPT_INT, AT(frames), 1, 4096, NULL, "frames of a video at most"},
    {"--fps", "F", IWP_OPT_REAL, AT(fps), 0.001, 1000, NULL, "frames per second of a video"},
    {"--exact-times", NULL, IWP_OPT_FLAG, AT(exact_times), 0, 0, NULL,
     "run every prefill whole, so that its time is measured and not put together"},
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

/* ---- configurations ------------------------------------------------------------------------------------ */

static bool has_option(const struct iwp_method *m, const char *key, size_t n) {
    for (const struct iwp_option *o = iwp_method_info(m)->options; o && o->name; o++)
        if (strlen(o->name) == n && !strncmp(o->name, key, n)) return true;
    return false;
}

static int add_option(struct iwp_eval_config *c, const char *pair, size_t n, iwp_err *err) {
    const size_t at = strlen(c->options);
    IWP_REQUIRE(at + n + 2 < sizeof c->options, err, IWP_EINVAL, "--opt: too long");
    if (at) strcat(c->options, ",");
    strncat(c->options, pair, n);
    return 0;
}

static int push(struct iwp_eval_run *r, struct iwp_eval_config *c, const struct args *a,
                iwp_err *err) {
    char number[24] = "";
    if (c->n_keep)
        snprintf(number, sizeof number, "-%d", c->n_keep);
    else if (c->keep > 0)
        snprintf(number, sizeof number, "-%.6g", c->keep);
    int n = snprintf(c->dir, sizeof c->dir, "%s%s%s%s", c->prune, number, c->options[0] ? "-" : "",
                     c->options);
    IWP_REQUIRE(n > 0 && (size_t)n < sizeof c->dir - 16, err, IWP_EINVAL, "--opt: too long");
    for (char *p = c->dir; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=,", *p))
            *p = '_';
    const bool seeded = c->params.method &&
                        (iwp_method_info(c->params.method)->flags & IWP_METHOD_SEEDED) &&
                        has_option(c->params.method, "seed", 4) && !strstr(c->options, "seed=");
    for (int32_t s = 0; s < (seeded ? a->seeds : 1); s++) {
        struct iwp_eval_config one = *c;
        one.seed = -1;
        if (seeded) {
            one.seed = s + 1;
            snprintf(number, sizeof number, "%d", s + 1);
            IWP_TRY(iwp_params_set(&one.params, "seed", number, err));
            snprintf(one.dir + strlen(one.dir), 16, "-seed%d", s + 1);
        }
        for (int32_t i = 0; i < r->n_config; i++)
            if (!strcmp(r->config[i].dir, one.dir)) return 0;
        struct iwp_eval_config *at = realloc(r->config, (size_t)(r->n_config + 1) * sizeof *at);
        IWP_REQUIRE(at, err, IWP_ENOMEM, "out of memory");
        r->config = at;
        r->config[r->n_config++] = one;
    }
    return 0;
}

/* All combinations of the sweeps from number `k` on. */
static int push_sweeps(struct iwp_eval_run *r, const struct iwp_eval_config *c,
                       const struct args *a, int32_t k, iwp_err *err) {
    while (k < a->sweep.n &&
           !has_option(c->params.method, a->sweep.at[k], strcspn(a->sweep.at[k], "=")))
        k++;
    if (k == a->sweep.n) {
        struct iwp_eval_config done = *c;
        return push(r, &done, a, err);
    }
    const char *s = a->sweep.at[k];
    const size_t n = strcspn(s, "=");
    for (const char *v = s + n + 1;;) {
        const size_t m = strcspn(v, ",");
        struct iwp_eval_config one = *c;
        char pair[200], value[100];
        IWP_REQUIRE(n + m + 2 < sizeof pair && m < sizeof value && m > 0, err, IWP_EINVAL,
                    "--sweep: '%.60s' has an empty or too long value", s);
        snprintf(pair, sizeof pair, "%.*s=%.*s", (int)n, s, (int)m, v);
        IWP_TRY(add_option(&one, pair, strlen(pair), err));
        int rc = iwp_params_parse(&one.params, pair, err);
        if (rc < 0) return iwp_err_prefix(err, rc, "--sweep");
        IWP_TRY(push_sweeps(r, &one, a, k + 1, err));
        if (!v[m]) return 0;
        v += m + 1;
    }
}

static int make_config(struct iwp_eval_run *r, const struct args *a, const char *name, double keep,
                       int32_t n_keep, iwp_err *err) {
    struct iwp_eval_config c;
    memset(&c, 0, sizeof c);
    snprintf(c.prune, sizeof c.prune, "%s", name);
    c.keep = keep;
    c.n_keep = n_keep;
    c.seed = -1;
    if (!strcmp(name, "none")) {
        c.keep = 0;
        c.n_keep = 0;
        return push(r, &c, a, err);
    }
    const struct iwp_prune_args p = {.method = name,
                                     .keep = keep,
                                     .keep_tokens = n_keep,
                                     .layer = a->layer,
                                     .rule = a->rule,
                                     .scope = a->scope,
                                     .keep_separators = a->keep_separators};
    IWP_TRY(iwp_prune_args_params(&p, NULL, &c.params, err));
    for (int32_t i = 0; i < a->opt.n; i++) {
        const char *o = a->opt.at[i];
        if (!has_option(c.params.method, o, strcspn(o, "="))) continue;
        IWP_TRY(add_option(&c, o, strlen(o), err));
        int rc = iwp_params_parse(&c.params, o, err);
        if (rc < 0) return iwp_err_prefix(err, rc, "--opt");
    }
    return push_sweeps(r, &c, a, 0, err);
}

/* An option that no method of the grid has is a mistake. */
static int check_option(const struct args *a, const char *o, const char *flag, iwp_err *err) {
    const size_t n = strcspn(o, "=");
    IWP_REQUIRE(o[n] == '=', err, IWP_EINVAL, "%s: '%.60s' is not NAME=VALUE", flag, o);
    for (int32_t i = 0; i < a->prune.n; i++) {
        const struct iwp_method *m = iwp_method_find(a->prune.at[i]);
        if (m && has_option(m, o, n)) return 0;
    }
    return iwp_err_set(err, IWP_EINVAL, "%s: no method of --prune has an option '%.*s'", flag,
                       (int)(n < 60 ? n : 60), o);
}

static int make_configs(struct iwp_eval_run *r, const struct args *a, iwp_err *err) {
    bool pruned = false;
    for (int32_t i = 0; i < a->prune.n; i++) {
        const struct iwp_method *m;
        if (!strcmp(a->prune.at[i], "none")) continue;
        IWP_TRY(iwp_cli_find_method(a->prune.at[i], &m, err));
        pruned = true;
    }
    for (int32_t i = 0; i < a->opt.n; i++) IWP_TRY(check_option(a, a->opt.at[i], "--opt", err));
    for (int32_t i = 0; i < a->sweep.n; i++)
        IWP_TRY(check_option(a, a->sweep.at[i], "--sweep", err));
    IWP_REQUIRE(!pruned || a->keep.n || a->keep_tokens.n, err, IWP_EINVAL,
                "--keep is needed: the budgets to try, like --keep 35.3%%,22.2%%");
    if (a->prune.n == 0) return make_config(r, a, "none", 0, 0, err);
    for (int32_t i = 0; i < a->prune.n; i++) {
        if (!strcmp(a->prune.at[i], "none")) {
            IWP_TRY(make_config(r, a, "none", 0, 0, err));
            continue;
        }
        for (int32_t k = 0; k < a->keep.n; k++) {
            double keep;
            int rc = iwp_keep_parse(a->keep.at[k], &keep, err);
            if (rc < 0) return iwp_err_prefix(err, rc, "--keep");
            IWP_TRY(make_config(r, a, a->prune.at[i], keep, 0, err));
        }
        for (int32_t k = 0; k < a->keep_tokens.n; k++) {
            int64_t n;
            IWP_REQUIRE(iwp_parse_int(a->keep_tokens.at[k], 1, 1 << 30, &n), err, IWP_EINVAL,
                        "--keep-tokens: '%.30s' is not a count", a->keep_tokens.at[k]);
            IWP_TRY(make_config(r, a, a->prune.at[i], 0, (int32_t)n, err));
        }
    }
    return 0;
}

/* ---- data ------------------------------------------------------------------------------------------ */

static int add_tasks(struct iwp_eval_data *d, const struct args *a, enum iwp_profile profile,
                     iwp_err *err) {
    const char *data = a->data ? a->data : getenv("IWP_DATA") ? getenv("IWP_DATA") : "out/data";
    for (int32_t i = 0; i < a->tasks.n; i++) {
        const char *t = a->tasks.at[i], *eq = strchr(t, '=');
        char name[80], path[4096];
        struct iwp_eval_task *task = NULL;
        if (eq && eq - t < 65 && !memchr(t, '/', (size_t)(eq - t))) {
            snprintf(name, sizeof name, "%.*s", (int)(eq - t), t);
            int rc = iwp_eval_task_find(name, a->task_dir, profile, &task, err);
            iwp_eval_task_free(task);
            IWP_TRY(rc);
            IWP_REQUIRE(rc, err, IWP_EINVAL, "--tasks: no task is called '%s'", name);
            IWP_TRY(iwp_eval_data_add(d, eq + 1, name, a->task_dir, profile, err));
            continue;
        }
        const size_t n = strlen(t);
        if (strchr(t, '/') || (n > 6 && !strcmp(t + n - 6, ".jsonl"))) {
            IWP_TRY(iwp_eval_data_add(d, t, NULL, a->task_dir, profile, err));
            continue;
        }
        int rc = iwp_eval_task_find(t, a->task_dir, profile, &task, err);
        iwp_eval_task_free(task);
        IWP_TRY(rc);
        if (rc == 0) {
            const char *names[128], *near;
            int32_t k = 0;
            for (; iwp_builtin_tasks[k].name && k < 128; k++) names[k] = iwp_builtin_tasks[k].name;
            near = iwp_nearest_name(t, names, k);
            return iwp_err_set(err, IWP_EINVAL, "--tasks: no task is called '%.60s'%s%s%s", t,
                               near ? ", did you mean " : "; a manifest ends in .jsonl",
                               near ? near : "", near ? "?" : "");
        }
        snprintf(path, sizeof path, "%s/%s.jsonl", data, t);
        if (access(path, R_OK) != 0) snprintf(path, sizeof path, "%s/%s/manifest.jsonl", data, t);
        IWP_REQUIRE(access(path, R_OK) == 0, err, IWP_EIO,
                    "task %s: no %.200s/%s.jsonl there; give NAME=FILE.jsonl or --data", t, data,
                    t);
        IWP_TRY(iwp_eval_data_add(d, path, t, a->task_dir, profile, err));
    }
    return 0;
}

static int describe(struct iwp_eval_run *r, const struct iwp_eval_data *d, iwp_err *err) {
    r->task = calloc((size_t)d->n + 1, sizeof *r->task);
    IWP_REQUIRE(r->task, err, IWP_ENOMEM, "out of memory");
    for (; r->n_task < d->n; r->n_task++) {
        const struct iwp_eval_set *s = &d->set[r->n_task];
        struct iwp_eval_run_task *t = &r->task[r->n_task];
        IWP_TRY(iwp_eval_task_parse(s->task->json, strlen(s->task->json), s->task->name,
                                    IWP_PROFILE_LMMS_0_3, &t->task, err));
        memcpy(t->hash, s->hash, sizeof t->hash);
        t->n = s->n;
    }
    return 0;
}

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

/* ---- the command ------------------------------------------------------------------------------------- */

static int hash_files(struct iwp_eval_run *r, const struct iwp_engine_params *p, iwp_err *err) {
    IWP_TRY(iwp_sha256_file(p->model, r->model_hash, err));
    if (p->mmproj) IWP_TRY(iwp_sha256_file(p->mmproj, r->mmproj_hash, err));
    if (iwp_sha256_file("/proc/self/exe", r->binary_hash, NULL) < 0)
        snprintf(r->binary_hash, sizeof r->binary_hash, "unknown");
    const char *slash = strrchr(p->model, '/');
    r->model = strdup(slash ? slash + 1 : p->model);
    IWP_REQUIRE(r->model, err, IWP_ENOMEM, "out of memory");
    char *dot = strrchr(r->model, '.');
    if (dot && !strcmp(dot, ".gguf")) *dot = 0;
    return 0;
}

static int make_folders(const char *path, iwp_err *err) {
    char p[4096];
    IWP_REQUIRE(strlen(path) < sizeof p, err, IWP_EINVAL, "--out: path too long");
    strcpy(p, path);
    for (char *s = p + 1;; s++) {
        if (*s && *s != '/') continue;
        const char c = *s;
        *s = 0;
        IWP_REQUIRE(mkdir(p, 0777) == 0 || errno == EEXIST, err, IWP_EIO,
                    "%.300s: cannot make it: %s", p, strerror(errno));
        *s = c;
        if (!c) return 0;
    }
}

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

static int join_folder(struct iwp_eval_run *r, const char *dir, iwp_err *err) {
    struct iwp_eval_run old;
    int rc = iwp_eval_run_read(&old, dir, err);
    IWP_TRY(rc);
    if (rc == 0) return iwp_eval_run_write(r, dir, err);
    rc = iwp_eval_run_match(&old, r, dir, err);
    if (rc >= 0 && (old.shard != r->shard || old.n_shard != r->n_shard))
        rc = iwp_err_set(err, IWP_EINVAL,
                         "%.200s: holds results of another --shard; give another --out", dir);
    if (rc >= 0 && strcmp(old.binary_hash, r->binary_hash)) {
        iwp_log(IWP_LOG_WARN, "eval: %s was begun by another build of iwp", dir);
        memcpy(r->binary_hash, old.binary_hash, sizeof r->binary_hash);
    }
    /* What was measured before stays in the folder's list, so that its report has it. */
    if (rc >= 0) rc = iwp_eval_run_merge(&old, r, err);
    if (rc >= 0) rc = iwp_eval_run_write(&old, dir, err);
    iwp_eval_run_free(&old);
    return rc;
}

static int work(struct args *a, struct iwp_model_args *model, iwp_err *err) {
    struct iwp_eval_run run;
    struct iwp_eval_data data = {0};
    struct iwp_eval_book book;
    struct iwp_eval_job job;
    memset(&run, 0, sizeof run);
    memset(&job, 0, sizeof job);
    memset(&book, 0, sizeof book);
    job.profile = (enum iwp_profile)a->profile;
    int rc = parse_shard(a->shard, &run.shard, &run.n_shard, err);
    if (rc >= 0) rc = make_configs(&run, a, err);
    if (rc >= 0) rc = add_tasks(&data, a, job.profile, err);
    if (rc >= 0) rc = iwp_model_args_engine(model, &job.engine, err);
    if (rc < 0) goto fail;
    IWP_TRY_GOTO(hash_files(&run, &job.engine, err));
    run.profile = strdup(iwp_profile_name(job.profile));
    if (!run.profile) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    snprintf(run.options, sizeof run.options,
             "ctx %d chunk %d cache %d/%d flash %d tokens %d-%d frames %d fps %g template %.60s "
             "layer %d rule %d scope %d separators %d system %.16s",
             model->ctx, model->chunk, model->type_k, model->type_v, model->flash,
             model->min_tokens, model->max_tokens, a->frames, a->fps,
             model->chat_template ? model->chat_template : "-", a->layer, a->rule, a->scope,
             a->keep_separators, a->system ? a->system : "-");
    run.limit = a->limit;
    if (a->limit) IWP_TRY_GOTO(iwp_eval_data_limit(&data, a->limit, err));
    IWP_TRY_GOTO(describe(&run, &data, err));
    if (run.n_shard > 1) IWP_TRY_GOTO(iwp_eval_data_shard(&data, run.shard, run.n_shard, err));
    IWP_TRY_GOTO(make_folders(a->out, err));
    IWP_TRY_GOTO(lock_folder(a->out, err));
    IWP_TRY_GOTO(join_folder(&run, a->out, err));
    job.dir = a->out;
    job.run = &run;
    job.data = &data;
    job.session = iwp_model_args_session(model);
    job.media.frames = a->frames;
    job.media.fps = a->fps;
    job.media.image_min_tokens = model->min_tokens;
    job.media.image_max_tokens = model->max_tokens;
    job.raw = iwp_model_args_raw(model);
    job.exact_times = a->exact_times;
    job.system = a->system;
    IWP_TRY_GOTO(iwp_eval_run_grid(&job, err));
    const int computed = rc;
    IWP_TRY_GOTO(iwp_eval_book_read(&book, &a->out, 1, err));
    if (run.n_shard > 1) book.missing = 0;
    IWP_TRY_GOTO(iwp_eval_book_write(&book, a->out, a->paper, err));
    iwp_eval_report_md(&book, stdout);
    int32_t errors = 0;
    for (int32_t i = 0; i < book.n_row; i++) errors += book.row[i].s.errors;
    if (errors)
        iwp_log(IWP_LOG_WARN, "eval: %d answers failed, see \"error\" in the samples", errors);
    iwp_log(IWP_LOG_INFO, "eval: %d answers computed now; %s/report.html", computed, a->out);
fail:
    iwp_eval_book_free(&book);
    iwp_eval_data_free(&data);
    iwp_eval_run_free(&run);
    return rc;
}

int iwp_cmd_eval(int argc, char **argv) {
    /* Static: texts cut out of comma lists live as long as the process. */
    static struct args a = {.layer = -1, .keep_separators = -1, .seeds = 5};
    struct iwp_model_args model = IWP_MODEL_ARGS_DEFAULT;
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings none = {0};
    const struct iwp_opt_group groups[] = {{"evaluation", eval_opts, &a},
                                           {"model", iwp_model_opts, &model},
                                           {"logging", iwp_log_opts, &log},
                                           {NULL, NULL, NULL}};
    iwp_err err = {0};
    int code = 0;
    int rc = iwp_opts_parse(&command, groups, argc, argv, &none, &err);
    if (rc == 1) goto done;
    if (rc >= 0 && a.tasks.n == 0)
        rc = iwp_err_set(&err, IWP_EINVAL, "--tasks is needed: task names or manifests");
    if (rc >= 0 && !a.out) rc = iwp_err_set(&err, IWP_EINVAL, "--out DIR is needed");
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc >= 0) rc = iwp_cpu_check(&err);
    if (rc < 0) {
        code = iwp_cli_usage("eval", &err);
        goto done;
    }
    rc = work(&a, &model, &err);
    if (rc < 0)
        code = err.code == IWP_EINVAL && strncmp(err.msg, "--", 2) == 0
                   ? iwp_cli_usage("eval", &err)
                   : iwp_cli_fail("eval", &err);
done:
    iwp_model_args_free(&model);
    iwp_strings_free(&none);
    return code;
}
