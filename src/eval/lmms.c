/* What lmms-eval's own viewer of logs (`lmms-eval ui`) and its --baseline want beside our samples files: in
 * every configuration's folder a PREFIX_results.json, and the samples under the same prefix. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "eval/results.h"

static const char prefix[] = "iwp";

static void put_metric(struct iwp_json_out *w, const char *name, double value, double se) {
    char key[64];
    snprintf(key, sizeof key, "%s,none", name); /* "none" is the filter */
    iwp_json_put_f64(w, key, value);
    snprintf(key, sizeof key, "%s_stderr,none", name);
    if (isnan(se))
        iwp_json_put_string(w, key, "N/A");
    else
        iwp_json_put_f64(w, key, se);
}

static int put_task(struct iwp_json_out *w, const struct iwp_eval_book *b, int32_t k, int32_t task,
                    iwp_err *err) {
    const struct iwp_eval_task *t = b->run.task[task].task;
    const struct iwp_eval_records *run = &b->records[k * b->run.n_task + task];
    struct iwp_eval_summary s;
    if (!run->n) return 0;
    IWP_TRY(iwp_stats_summary(t, &run, 1, NULL, &s, err));
    iwp_json_open_object(w, t->name);
    iwp_json_put_string(w, "alias", t->title);
    put_metric(w, t->aggregate == IWP_AGGREGATE_NLL ? "nll" : "score", s.e.value, s.e.stderr_);
    for (int32_t i = 0; i < s.n_metric; i++)
        put_metric(w, s.metric[i].name, s.metric[i].value, NAN);
    iwp_json_close_object(w);
    iwp_eval_summary_free(&s);
    return 0;
}

static int put_run(struct iwp_json_out *w, const struct iwp_eval_book *b, int32_t k, iwp_err *err) {
    const struct iwp_eval_run *run = &b->run;
    char name[400];
    iwp_json_open_object(w, NULL);
    iwp_json_open_object(w, "results");
    for (int32_t t = 0; t < run->n_task; t++) IWP_TRY(put_task(w, b, k, t, err));
    iwp_json_close_object(w);
    iwp_json_open_object(w, "n-samples");
    for (int32_t t = 0; t < run->n_task; t++) {
        const struct iwp_eval_records *r = &b->records[k * run->n_task + t];
        if (!r->n) continue;
        iwp_json_open_object(w, run->task[t].task->name);
        iwp_json_put_int(w, "original", run->task[t].n);
        iwp_json_put_int(w, "effective", r->n);
        iwp_json_close_object(w);
    }
    iwp_json_close_object(w);
    iwp_json_open_object(w, "config");
    iwp_json_put_string(w, "model", "iwp eval");
    iwp_json_put_string(w, "model_args", run->config[k].dir);
    if (run->limit)
        iwp_json_put_int(w, "limit", run->limit);
    else
        iwp_json_put_null(w, "limit");
    iwp_json_close_object(w);
    snprintf(name, sizeof name, "%.180s %s", run->model, run->config[k].dir);
    iwp_json_put_string(w, "model_name", name);
    iwp_json_put_string(w, "date", run->config[k].dir); /* the viewer's name of a run */
    iwp_json_close_object(w);
    return 0;
}

static int write_run(const struct iwp_eval_book *b, const char *folder, int32_t k, iwp_err *err) {
    char path[4096];
    struct iwp_output o;
    struct iwp_json_out w;
    snprintf(path, sizeof path, "%s/%s_results.json", folder, prefix);
    IWP_TRY(iwp_output_open(&o, path, err));
    iwp_json_init(&w, true);
    int rc = put_run(&w, b, k, err);
    if (rc >= 0) rc = iwp_json_write(&w, o.file, err);
    if (rc >= 0) rc = iwp_output_commit(&o, err);
    iwp_output_abort(&o);
    iwp_json_free(&w);
    return rc;
}

/* Another name of a samples file.  Where links cannot be made the viewer shows scores alone. */
static void link_samples(const char *folder, const char *task) {
    char from[300], path[4096];
    snprintf(from, sizeof from, "samples_%.200s.jsonl", task);
    const int n = snprintf(path, sizeof path, "%s/%s_%s", folder, prefix, from);
    if (n > 0 && (size_t)n < sizeof path && symlink(from, path) != 0 && errno != EEXIST)
        iwp_log(IWP_LOG_DEBUG, "eval: %s: cannot link: %s", path, strerror(errno));
}

int iwp_eval_lmms_write(const struct iwp_eval_book *b, const char *dir, iwp_err *err) {
    for (int32_t k = 0; k < b->run.n_config; k++) {
        char folder[4000];
        const int n = snprintf(folder, sizeof folder, "%s/%s", dir, b->run.config[k].dir);
        IWP_REQUIRE(n > 0 && (size_t)n < sizeof folder, err, IWP_EINVAL, "%.100s…: path too long",
                    dir);
        if (access(folder, F_OK) != 0) continue; /* merged shards: the samples are elsewhere */
        bool any = false;
        for (int32_t t = 0; t < b->run.n_task; t++) {
            if (!b->records[k * b->run.n_task + t].n) continue;
            link_samples(folder, b->run.task[t].task->name);
            any = true;
        }
        if (any) IWP_TRY(write_run(b, folder, k, err));
    }
    return 0;
}
