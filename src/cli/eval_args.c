/* From flags to a grid: see eval_args.h. */
#include "cli/eval_args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/hash.h"

#define AT(field) offsetof(struct iwp_eval_args, field)
const struct iwp_opt iwp_question_opts[] = {
    {"--tasks", "A,B|FILE.jsonl", IWP_OPT_FILES, AT(tasks), 0, 0, NULL,
     "manifests (JSONL), NAME=FILE.jsonl to set their task, or task names found in --data"},
    {"--limit", "N", IWP_OPT_INT, AT(limit), 1, INT32_MAX, NULL,
     "about N samples per task: whole groups, all categories alike (default: all)"},
    {"--profile", "NAME", IWP_OPT_CHOICE, AT(profile), 0, 0, "lmms-0.3|lmms-0.7.2",
     "whose prompts and scorers (default lmms-0.3)"},
    {"--data", "DIR", IWP_OPT_TEXT, AT(data), 0, 0, NULL,
     "where NAME.jsonl or NAME/manifest.jsonl of task names are (default: IWP_DATA, out/data)"},
    {"--task-dir", "DIR", IWP_OPT_TEXT, AT(task_dir), 0, 0, NULL, "more task files, NAME.json"},
    {"-sys, --system-prompt", "TEXT", IWP_OPT_TEXT, AT(system), 0, 0, NULL, "system message"},
    {"--frames", "N", IWP_OPT_INT, AT(frames), 1, 4096, NULL, "frames of a video at most"},
    {"--fps", "F", IWP_OPT_REAL, AT(fps), 0.001, 1000, NULL, "frames per second of a video"},
    IWP_OPT_END};
const struct iwp_opt iwp_grid_opts[] = {
    {"--prune, --methods", "A,B", IWP_OPT_COMMAS, AT(prune), 0, 0, NULL,
     "pruning methods; none is the unpruned run (default none)"},
    {"--keep", "R,...", IWP_OPT_COMMAS, AT(keep), 0, 0, NULL,
     "budgets: fractions kept, 0.222 or 22.2%"},
    {"--keep-tokens", "N,...", IWP_OPT_COMMAS, AT(keep_tokens), 0, 0, NULL, "budgets as counts"},
    {"--prune-opt, --opt", "K=V,...", IWP_OPT_COMMAS, AT(opt), 0, 0, NULL,
     "options, for the methods that have them; METHOD.K=V for one; positions=original|compact"},
    {"--sweep", "K=A,B,...", IWP_OPT_LIST, AT(sweep), 0, 0, NULL,
     "values of an option to try; repeatable: all combinations"},
    {"--prune-layer", "L", IWP_OPT_INT, AT(layer), 0, 1000, NULL,
     "decoder layer whose input is cut (default: the method's)"},
    {"--budget-rule", "RULE", IWP_OPT_CHOICE, AT(rule), 0, 0,
     "default|cut|layer-average|matched|as-published", "what --keep counts, see `iwp run --help`"},
    {"--budget-scope", "SCOPE", IWP_OPT_CHOICE, AT(scope), 0, 0, "global|image|tile|frame",
     "one budget for all, or one in each image, tile or frame"},
    {"--keep-separators", "[=0|1]", IWP_OPT_TRI, AT(keep_separators), 0, 0, NULL,
     "row separators are kept on top of the budget"},
    {"--seeds", "N", IWP_OPT_INT, AT(seeds), 1, 64, NULL,
     "runs of methods that draw at random (default 5)"},
    IWP_OPT_END};
#undef AT

/* ---- configurations ------------------------------------------------------------------------------------ */

static bool named(const char *name, const char *key, size_t n) {
    return strlen(name) == n && !strncmp(name, key, n);
}

static bool own_option(const struct iwp_method *m, const char *key, size_t n) {
    for (const struct iwp_option *o = iwp_method_info(m)->options; o && o->name; o++)
        if (named(o->name, key, n)) return true;
    return false;
}

/* "K=V" or "METHOD.K=V": where K starts, or NULL when the method does not have it.  `layer` and
 * `positions` are the engine's, for every method that cuts where they matter. */
static const char *option_of(const struct iwp_method *m, const char *pair) {
    const struct iwp_method_info *in = iwp_method_info(m);
    const char *key = pair, *dot = strchr(pair, '.'), *eq = strchr(pair, '=');
    if (dot && eq && dot < eq) {
        if (!named(in->name, pair, (size_t)(dot - pair))) return NULL;
        key = dot + 1;
    }
    const size_t n = strcspn(key, "=");
    if (own_option(m, key, n)) return key;
    if (named("layer", key, n)) return in->site == IWP_SITE_LAYER ? key : NULL;
    if (named("positions", key, n)) return in->site == IWP_SITE_MEDIA ? NULL : key;
    return NULL;
}

/* Sets one "K=V". */
static int set_option(struct iwp_eval_config *c, const char *pair, const char *flag, iwp_err *err) {
    const size_t at = strlen(c->options), n = strcspn(pair, "=");
    IWP_REQUIRE(at + strlen(pair) + 2 < sizeof c->options, err, IWP_EINVAL, "%s: too long", flag);
    if (at) strcat(c->options, ",");
    strcat(c->options, pair);
    const char *value = pair + n + 1;
    if (own_option(c->params.method, pair, n)) {
        int rc = iwp_params_parse(&c->params, pair, err);
        return rc < 0 ? iwp_err_prefix(err, rc, "%s", flag) : 0;
    }
    if (named("layer", pair, n)) {
        int64_t l;
        IWP_REQUIRE(iwp_parse_int(value, 0, 1000, &l), err, IWP_EINVAL,
                    "%s: layer is a number from 0 on, not '%.30s'", flag, value);
        c->params.layer = (int32_t)l;
        return 0;
    }
    const bool compact = !strcmp(value, "compact");
    IWP_REQUIRE(compact || !strcmp(value, "original"), err, IWP_EINVAL,
                "%s: positions is original or compact, not '%.30s'", flag, value);
    c->positions = compact ? IWP_POSITIONS_COMPACT : IWP_POSITIONS_ORIGINAL;
    return 0;
}

static int push(struct iwp_eval_run *r, struct iwp_eval_config *c, const struct iwp_eval_args *a,
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
                        own_option(c->params.method, "seed", 4) && !strstr(c->options, "seed=");
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
                       const struct iwp_eval_args *a, int32_t k, iwp_err *err) {
    const char *s = NULL;
    while (k < a->sweep.n && !(s = option_of(c->params.method, a->sweep.at[k]))) k++;
    if (k == a->sweep.n) {
        struct iwp_eval_config done = *c;
        return push(r, &done, a, err);
    }
    const size_t n = strcspn(s, "=");
    for (const char *v = s + n + 1;;) {
        const size_t m = strcspn(v, ",");
        struct iwp_eval_config one = *c;
        char pair[200];
        IWP_REQUIRE(n + m + 2 < sizeof pair && m > 0, err, IWP_EINVAL,
                    "--sweep: '%.60s' has an empty or too long value", s);
        snprintf(pair, sizeof pair, "%.*s=%.*s", (int)n, s, (int)m, v);
        IWP_TRY(set_option(&one, pair, "--sweep", err));
        IWP_TRY(push_sweeps(r, &one, a, k + 1, err));
        if (!v[m]) return 0;
        v += m + 1;
    }
}

static int make_config(struct iwp_eval_run *r, const struct iwp_eval_args *a, const char *name,
                       double keep, int32_t n_keep, iwp_err *err) {
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
        const char *o = option_of(c.params.method, a->opt.at[i]);
        if (o) IWP_TRY(set_option(&c, o, "--opt", err));
    }
    return push_sweeps(r, &c, a, 0, err);
}

/* An option that no method of the grid has is a mistake. */
static int check_option(const struct iwp_eval_args *a, const char *o, const char *flag,
                        iwp_err *err) {
    const size_t n = strcspn(o, "=");
    IWP_REQUIRE(o[n] == '=', err, IWP_EINVAL, "%s: '%.60s' is not NAME=VALUE", flag, o);
    for (int32_t i = 0; i < a->prune.n; i++) {
        const struct iwp_method *m = iwp_method_find(a->prune.at[i]);
        if (m && option_of(m, o)) return 0;
    }
    return iwp_err_set(err, IWP_EINVAL, "%s: no method of --prune has an option '%.*s'", flag,
                       (int)(n < 60 ? n : 60), o);
}

/* Budgets are read whatever the methods are: a wrong one is a mistake beside `none` too. */
static int read_budgets(const struct iwp_eval_args *a, double *keep, int32_t *count, iwp_err *err) {
    for (int32_t k = 0; k < a->keep.n; k++) IWP_TRY(iwp_cli_keep(a->keep.at[k], &keep[k], err));
    for (int32_t k = 0; k < a->keep_tokens.n; k++) {
        int64_t n;
        IWP_REQUIRE(iwp_parse_int(a->keep_tokens.at[k], 1, 1 << 30, &n), err, IWP_EINVAL,
                    "--keep-tokens: '%.30s' is not a count", a->keep_tokens.at[k]);
        count[k] = (int32_t)n;
    }
    return 0;
}

static int push_methods(struct iwp_eval_run *r, const struct iwp_eval_args *a, const double *keep,
                        const int32_t *count, iwp_err *err) {
    if (a->prune.n == 0) return make_config(r, a, "none", 0, 0, err);
    for (int32_t i = 0; i < a->prune.n; i++) {
        if (!strcmp(a->prune.at[i], "none")) {
            IWP_TRY(make_config(r, a, "none", 0, 0, err));
            continue;
        }
        for (int32_t k = 0; k < a->keep.n; k++)
            IWP_TRY(make_config(r, a, a->prune.at[i], keep[k], 0, err));
        for (int32_t k = 0; k < a->keep_tokens.n; k++)
            IWP_TRY(make_config(r, a, a->prune.at[i], 0, count[k], err));
    }
    return 0;
}

static int make_configs(struct iwp_eval_run *r, const struct iwp_eval_args *a, iwp_err *err) {
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
    double *keep = calloc((size_t)a->keep.n + 1, sizeof *keep);
    int32_t *count = calloc((size_t)a->keep_tokens.n + 1, sizeof *count);
    int rc = keep && count ? read_budgets(a, keep, count, err)
                           : iwp_err_set(err, IWP_ENOMEM, "out of memory");
    if (rc >= 0 && a->prune.n == 0 && (a->keep.n || a->keep_tokens.n))
        rc = iwp_err_set(err, IWP_EINVAL,
                         "%s without --prune: name the methods to try, like --prune none,iwp",
                         a->keep.n ? "--keep" : "--keep-tokens");
    if (rc >= 0) rc = push_methods(r, a, keep, count, err);
    free(keep);
    free(count);
    return rc;
}

/* ---- data ------------------------------------------------------------------------------------------ */

static int add_tasks(struct iwp_eval_data *d, const struct iwp_eval_args *a,
                     enum iwp_profile profile, iwp_err *err) {
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

int iwp_eval_args_check(const struct iwp_eval_args *a, iwp_err *err) {
    IWP_REQUIRE(a->tasks.n > 0, err, IWP_EINVAL, "--tasks is needed: task names or manifests");
    return 0;
}

int iwp_eval_make_folders(const char *path, iwp_err *err) {
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

int iwp_eval_args_job(const struct iwp_eval_args *a, struct iwp_model_args *model,
                      struct iwp_eval_run *run, struct iwp_eval_data *data,
                      struct iwp_eval_job *job, iwp_err *err) {
    job->profile = (enum iwp_profile)a->profile;
    IWP_TRY(make_configs(run, a, err));
    IWP_TRY(add_tasks(data, a, job->profile, err));
    IWP_TRY(iwp_model_args_engine(model, &job->engine, err));
    IWP_TRY(hash_files(run, &job->engine, err));
    run->profile = strdup(iwp_profile_name(job->profile));
    IWP_REQUIRE(run->profile, err, IWP_ENOMEM, "out of memory");
    const char *system = a->system ? a->system : "";
    snprintf(run->options, sizeof run->options,
             "ctx %d chunk %d cache %d/%d flash %d tokens %d-%d tiles %d frames %d fps %g "
             "template %.60s layer %d rule %d scope %d separators %d system %016llx",
             model->ctx, model->chunk, model->type_k, model->type_v, model->flash,
             model->min_tokens, model->max_tokens, model->tiles, a->frames, a->fps,
             model->chat_template ? model->chat_template : "-", a->layer, a->rule, a->scope,
             a->keep_separators,
             (unsigned long long)iwp_fnv64(IWP_FNV64_INIT, system, strlen(system)));
    run->limit = a->limit;
    if (a->limit) IWP_TRY(iwp_eval_data_limit(data, a->limit, err));
    IWP_TRY(describe(run, data, err));
    job->run = run;
    job->data = data;
    job->session = iwp_model_args_session(model);
    job->media.frames = a->frames;
    job->media.fps = a->fps;
    job->media.image_min_tokens = model->min_tokens;
    job->media.image_max_tokens = model->max_tokens;
    job->media.image_tiles = model->tiles;
    job->media.n_ctx = model->ctx;
    job->raw = iwp_model_args_raw(model);
    job->system = a->system;
    return 0;
}
