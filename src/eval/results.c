/* results.json and timings.json: see results.h. */
#include "eval/results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

const char *const iwp_eval_timing_names[5] = {"encode", "select", "prefill", "ttft", "decode"};

void iwp_eval_keep_text(const struct iwp_eval_config *c, char out[32]) {
    if (c->n_keep > 0)
        snprintf(out, 32, "%d tokens", c->n_keep);
    else if (c->keep > 0)
        snprintf(out, 32, "%.4g%%", 100 * c->keep);
    else
        snprintf(out, 32, "100%%");
}

void iwp_eval_method_text(const struct iwp_eval_config *c, char out[600]) {
    snprintf(out, 600, "%s%s%s", c->prune, c->options[0] ? " " : "", c->options);
}

void iwp_eval_n_text(const struct iwp_eval_book *b, int32_t task, char out[48]) {
    const int32_t all = b->run.task[task].n;
    int32_t low = INT32_MAX, high = 0;
    for (int32_t i = 0; i < b->n_row; i++) {
        if (b->row[i].task != task) continue;
        if (b->row[i].s.n < low) low = b->row[i].s.n;
        if (b->row[i].s.n > high) high = b->row[i].s.n;
    }
    if (low < high)
        snprintf(out, 48, "%d-%d of %d", low, high, all);
    else if (high != all)
        snprintf(out, 48, "%d of %d", high, all);
    else
        snprintf(out, 48, "%d", all);
}

void iwp_eval_book_free(struct iwp_eval_book *b) {
    for (int32_t i = 0; b->records && i < b->run.n_config * b->run.n_task; i++)
        iwp_eval_records_free(&b->records[i]);
    free(b->records);
    for (int32_t t = 0; b->gallery && t < b->run.n_task; t++) iwp_gallery_free(&b->gallery[t]);
    free(b->gallery);
    for (int32_t i = 0; i < b->n_row; i++) iwp_eval_summary_free(&b->row[i].s);
    free(b->row);
    free(b->average);
    free(b->analysis);
    iwp_eval_run_free(&b->run);
    memset(b, 0, sizeof *b);
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static bool is_none(const struct iwp_eval_config *c) { return !strcmp(c->prune, "none"); }

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct times {
    double *v[5]; /* [cap] */
    double kv, flops, full, average;
    int32_t n, cap;
    double stage[IWP_STAGE_MAX]; /* sums of shares, and of how many, by layer */
    int32_t n_stage[IWP_STAGE_MAX];
};

static void read_stages(struct times *t, const cJSON *line) {
    const double visual = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(line, "visual"));
    const cJSON *s;
    cJSON_ArrayForEach(s, cJSON_GetObjectItemCaseSensitive(line, "stages")) {
        const double layer = cJSON_GetNumberValue(cJSON_GetArrayItem(s, 0)),
                     kept = cJSON_GetNumberValue(cJSON_GetArrayItem(s, 1));
        if (!(layer >= 0 && layer < IWP_STAGE_MAX && kept >= 0 && visual > 0)) continue;
        t->stage[(int)layer] += kept / visual;
        t->n_stage[(int)layer]++;
    }
}

static int read_times(struct times *t, const char *path, iwp_err *err) {
    if (access(path, F_OK) != 0) return 0;
    uint8_t *data;
    size_t size;
    IWP_TRY(iwp_file_read(path, (size_t)1 << 31, &data, &size, err));
    int rc = 0;
    for (char *p = (char *)data, *e; (e = strchr(p, '\n')) != NULL && rc >= 0; p = e + 1) {
        cJSON *o = NULL;
        if (iwp_json_parse(p, (size_t)(e - p), (struct iwp_json_limits){0}, &o, NULL) < 0) continue;
        if (t->n == t->cap) {
            t->cap = t->cap ? 2 * t->cap : 64;
            for (int i = 0; i < 5; i++) {
                double *v = realloc(t->v[i], (size_t)t->cap * sizeof *v);
                if (!v) {
                    rc = iwp_err_set(err, IWP_ENOMEM, "out of memory");
                    break;
                }
                t->v[i] = v;
            }
        }
        for (int i = 0; i < 5 && rc >= 0; i++)
            t->v[i][t->n] =
                cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, iwp_eval_timing_names[i]));
        t->kv += cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, "kv_bytes"));
        t->flops += cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, "flops"));
        t->full += cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, "flops_full"));
        t->average += cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, "layer_average"));
        read_stages(t, o);
        if (rc >= 0) t->n++;
        cJSON_Delete(o);
    }
    free(data);
    return rc;
}

static void finish_times(struct times *t, struct iwp_eval_timing *out) {
    memset(out, 0, sizeof *out);
    out->n = t->n;
    for (int i = 0; i < 5; i++) {
        if (t->n) qsort(t->v[i], (size_t)t->n, sizeof *t->v[i], by_value);
        out->median[i] = iwp_stats_quantile(t->v[i], t->n, 0.5);
        out->p95[i] = iwp_stats_quantile(t->v[i], t->n, 0.95);
        free(t->v[i]);
    }
    out->kv_bytes = t->n ? t->kv / t->n : NAN;
    out->flops = t->n ? t->flops / t->n : NAN;
    out->flops_full = t->n ? t->full / t->n : NAN;
    out->layer_average = t->n ? t->average / t->n : NAN;
    for (int i = 0; i < IWP_STAGE_MAX; i++)
        out->stage[i] = t->n_stage[i] ? t->stage[i] / t->n_stage[i] : NAN;
}

static bool first_of_row(const struct iwp_eval_run *r, int32_t k) {
    for (int32_t i = 0; i < k; i++)
        if (iwp_eval_config_same_row(&r->config[i], &r->config[k])) return false;
    return true;
}

static const struct iwp_eval_row *base_row(const struct iwp_eval_book *b, int32_t task) {
    for (int32_t i = 0; i < b->n_row; i++)
        if (b->row[i].task == task && is_none(b->row[i].config)) return &b->row[i];
    return NULL;
}

static int make_row(struct iwp_eval_book *b, int32_t task, int32_t k, const char *const *dirs,
                    int32_t n_dir, iwp_err *err) {
    const struct iwp_eval_run *run = &b->run;
    const struct iwp_eval_records *runs[256], *base = NULL;
    int32_t n_run = 0, total = 0, missing = 0;
    struct times t;
    memset(&t, 0, sizeof t);
    char path[4096];
    int rc = 0;
    for (int32_t i = 0; i < run->n_config; i++) {
        const struct iwp_eval_records *r = &b->records[i * run->n_task + task];
        if (is_none(&run->config[i])) base = r;
        if (!iwp_eval_config_same_row(&run->config[i], &run->config[k]) || n_run == 256) continue;
        if (r->n) runs[n_run++] = r;
        total += r->n;
        missing += run->task[task].n - r->n;
        for (int32_t d = 0; d < n_dir && rc >= 0; d++) {
            rc = iwp_eval_lines_path(path, sizeof path, dirs[d], run->config[i].dir, "timings",
                                     run->task[task].task->name, err);
            if (rc >= 0) rc = read_times(&t, path, err);
        }
    }
    struct iwp_eval_row *row = &b->row[b->n_row];
    memset(row, 0, sizeof *row);
    row->task = task;
    row->config = &run->config[k];
    finish_times(&t, &row->t);
    if (rc < 0 || total == 0) return rc; /* refused, or not begun */
    b->missing += missing;
    if (is_none(row->config)) base = NULL;
    IWP_TRY(iwp_stats_summary(run->task[task].task, runs, n_run, base && base->n ? base : NULL,
                              &row->s, err));
    b->n_row++;
    return 0;
}

static void make_averages(struct iwp_eval_book *b) {
    const struct iwp_eval_run *run = &b->run;
    for (int32_t k = 0; k < run->n_config; k++) {
        if (!first_of_row(run, k)) continue;
        double sum = 0;
        int32_t n = 0;
        for (int32_t i = 0; i < b->n_row; i++) {
            const struct iwp_eval_row *r = &b->row[i], *base = base_row(b, r->task);
            if (r->config != &run->config[k] || !base || !(base->s.e.value > 0)) continue;
            if (run->task[r->task].task->aggregate == IWP_AGGREGATE_NLL) continue;
            if (iwp_eval_summary_failed(&r->s)) continue; /* it never ran */
            sum += 100 * r->s.e.value / base->s.e.value;
            n++;
        }
        if (n) b->average[b->n_average++] = (struct iwp_eval_average){&run->config[k], sum / n, n};
    }
}

int iwp_eval_book_read(struct iwp_eval_book *b, const char *const *dirs, int32_t n, iwp_err *err) {
    memset(b, 0, sizeof *b);
    char path[4096];
    int rc = 0;
    for (int32_t d = 0; d < n; d++) {
        struct iwp_eval_run r;
        rc = iwp_eval_run_read(&r, dirs[d], err);
        if (rc == 0)
            rc = iwp_err_set(err, IWP_EIO, "%.300s: no run.json there, not a folder of iwp eval",
                             dirs[d]);
        if (rc < 0) goto fail;
        if (d == 0) {
            b->run = r;
            continue;
        }
        rc = iwp_eval_run_match(&b->run, &r, dirs[d], err);
        if (rc >= 0) rc = iwp_eval_run_merge(&b->run, &r, err);
        iwp_eval_run_free(&r);
        if (rc < 0) goto fail;
    }
    const struct iwp_eval_run *run = &b->run;
    const size_t cells = (size_t)run->n_config * (size_t)run->n_task;
    b->records = calloc(cells + 1, sizeof *b->records);
    b->row = calloc(cells + 1, sizeof *b->row);
    b->average = calloc((size_t)run->n_config + 1, sizeof *b->average);
    b->gallery = calloc((size_t)run->n_task + 1, sizeof *b->gallery);
    if (!b->records || !b->row || !b->average || !b->gallery)
        IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    for (int32_t t = 0; t < run->n_task; t++)
        for (int32_t d = 0; d < n; d++) {
            IWP_TRY_GOTO(
                iwp_gallery_path(path, sizeof path, dirs[d], run->task[t].task->name, err));
            IWP_TRY_GOTO(iwp_gallery_read(&b->gallery[t], path, err));
        }
    for (int32_t k = 0; k < run->n_config; k++)
        for (int32_t t = 0; t < run->n_task; t++)
            for (int32_t d = 0; d < n; d++) {
                IWP_TRY_GOTO(iwp_eval_lines_path(path, sizeof path, dirs[d], run->config[k].dir,
                                                 "samples", run->task[t].task->name, err));
                IWP_TRY_GOTO(iwp_eval_records_read(&b->records[k * run->n_task + t], path,
                                                   &b->gallery[t], err));
            }
    for (int32_t t = 0; t < run->n_task; t++)
        for (int32_t k = 0; k < run->n_config; k++)
            if (first_of_row(run, k)) IWP_TRY_GOTO(make_row(b, t, k, dirs, n, err));
    make_averages(b);
    for (int32_t d = 0; d < n && !b->analysis; d++) {
        const int len = snprintf(path, sizeof path, "%s/analysis", dirs[d]);
        if (len > 0 && (size_t)len < sizeof path && access(path, R_OK) == 0)
            b->analysis = strdup(path);
    }
    return 0;
fail:
    iwp_eval_book_free(b);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

static void put_options(struct iwp_json_out *w, const char *options) {
    iwp_json_open_object(w, "options");
    char text[512], *save = NULL;
    snprintf(text, sizeof text, "%s", options);
    for (char *p = strtok_r(text, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(p, '='), *end;
        if (!eq) continue;
        *eq = 0;
        const double v = strtod(eq + 1, &end);
        if (eq[1] && !*end && isfinite(v))
            iwp_json_put_f64(w, p, v);
        else
            iwp_json_put_string(w, p, eq + 1);
    }
    iwp_json_close_object(w);
}

static void put_config(struct iwp_json_out *w, const struct iwp_eval_config *c) {
    iwp_json_put_string(w, "prune", c->prune);
    if (c->keep > 0)
        iwp_json_put_f64(w, "keep", c->keep);
    else
        iwp_json_put_null(w, "keep");
    if (c->n_keep > 0) iwp_json_put_int(w, "keep_tokens", c->n_keep);
    put_options(w, c->options);
}

static void put_diff(struct iwp_json_out *w, const struct iwp_estimate *e) {
    double interval[2];
    iwp_stats_interval(e, interval);
    iwp_json_put_f64(w, "diff", e->value);
    iwp_json_put_f64(w, "diff_stderr", e->stderr_);
    iwp_json_open_array(w, "diff_interval");
    for (int i = 0; i < 2; i++) iwp_json_put_f64(w, NULL, interval[i]);
    iwp_json_close_array(w);
}

static void put_row(struct iwp_json_out *w, const struct iwp_eval_book *b,
                    const struct iwp_eval_row *r) {
    const struct iwp_eval_summary *s = &r->s;
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "task", b->run.task[r->task].task->name);
    put_config(w, r->config);
    iwp_json_put_int(w, "n", s->n);
    iwp_json_put_int(w, "errors", s->errors);
    iwp_json_put_int(w, "unparsed", s->unparsed);
    iwp_json_put_f64(w, "score", s->e.value);
    iwp_json_put_f64(w, "stderr", s->e.stderr_);
    iwp_json_put_int(w, "df", s->e.df);
    const struct iwp_estimate none = {NAN, NAN, 0, 0}, zero = {0, 0, s->n, 0};
    put_diff(w, is_none(r->config) && !isnan(s->e.value) ? &zero : s->has_diff ? &s->diff : &none);
    iwp_json_put_f64(w, "expected_score", s->expected);
    iwp_json_put_f64(w, "visual_kept", s->kept);
    iwp_json_open_object(w, "categories");
    for (int32_t i = 0; i < s->n_category; i++)
        iwp_json_put_f64(w, s->category[i].name, s->category[i].e.value);
    iwp_json_close_object(w);
    if (s->n_category) {
        iwp_json_open_object(w, "categories_stderr");
        for (int32_t i = 0; i < s->n_category; i++)
            iwp_json_put_f64(w, s->category[i].name, s->category[i].e.stderr_);
        iwp_json_close_object(w);
    }
    if (s->n_metric) {
        iwp_json_open_object(w, "metrics");
        for (int32_t i = 0; i < s->n_metric; i++)
            iwp_json_put_f64(w, s->metric[i].name, s->metric[i].value);
        iwp_json_close_object(w);
    }
    if (s->n_seed) {
        iwp_json_open_array(w, "seed_scores");
        for (int32_t i = 0; i < s->n_seed; i++) iwp_json_put_f64(w, NULL, s->seed_score[i]);
        iwp_json_close_array(w);
    }
    iwp_json_close_object(w);
}

static int by_doc(const void *a, const void *b) {
    const struct iwp_eval_record *x = *(const struct iwp_eval_record *const *)a;
    const struct iwp_eval_record *y = *(const struct iwp_eval_record *const *)b;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

int iwp_eval_data_hash(const struct iwp_eval_book *b, int32_t task, char hex[65], iwp_err *err) {
    const struct iwp_eval_run *run = &b->run;
    size_t total = 0, n = 0;
    for (int32_t k = 0; k < run->n_config; k++)
        total += (size_t)b->records[k * run->n_task + task].n;
    const struct iwp_eval_record **at = malloc((total + 1) * sizeof *at);
    IWP_REQUIRE(at, err, IWP_ENOMEM, "out of memory");
    for (int32_t k = 0; k < run->n_config; k++) {
        const struct iwp_eval_records *r = &b->records[k * run->n_task + task];
        for (int32_t i = 0; i < r->n; i++)
            if (r->at[i].media) at[n++] = &r->at[i];
    }
    qsort((void *)at, n, sizeof *at, by_doc);
    struct iwp_sha256 h;
    uint8_t digest[32];
    iwp_sha256_init(&h);
    iwp_sha256_add(&h, run->task[task].hash, strlen(run->task[task].hash));
    for (size_t i = 0; i < n; i++)
        if (i == 0 || at[i]->doc != at[i - 1]->doc)
            iwp_sha256_add(&h, at[i]->media, strlen(at[i]->media) + 1);
    iwp_sha256_end(&h, digest);
    iwp_sha256_hex(digest, hex);
    free((void *)at);
    return 0;
}

static int put_hashes(struct iwp_json_out *w, const struct iwp_eval_book *b, iwp_err *err) {
    const struct iwp_eval_run *run = &b->run;
    struct iwp_sha256 h;
    uint8_t digest[32];
    char hex[65];
    iwp_json_open_object(w, "hashes");
    iwp_json_put_string(w, "model", run->model_hash);
    iwp_json_put_string(w, "mmproj", run->mmproj_hash[0] ? run->mmproj_hash : NULL);
    iwp_json_put_string(w, "binary", run->binary_hash);
    iwp_json_open_object(w, "data");
    for (int32_t i = 0; i < run->n_task; i++) {
        IWP_TRY(iwp_eval_data_hash(b, i, hex, err));
        iwp_json_put_string(w, run->task[i].task->name, hex);
    }
    iwp_json_close_object(w);
    iwp_sha256_init(&h);
    iwp_sha256_add(&h, run->options, strlen(run->options));
    for (int32_t i = 0; i < run->n_config; i++)
        iwp_sha256_add(&h, run->config[i].dir, strlen(run->config[i].dir) + 1);
    iwp_sha256_end(&h, digest);
    iwp_sha256_hex(digest, hex);
    iwp_json_put_string(w, "options", hex);
    iwp_sha256_init(&h);
    iwp_sha256_add(&h, run->profile, strlen(run->profile));
    for (int32_t i = 0; i < run->n_task; i++)
        iwp_sha256_add(&h, run->task[i].task->json, strlen(run->task[i].task->json));
    iwp_sha256_end(&h, digest);
    iwp_sha256_hex(digest, hex);
    iwp_json_put_string(w, "profile", hex);
    iwp_json_close_object(w);
    return 0;
}

static int put_results(struct iwp_json_out *w, const struct iwp_eval_book *b, iwp_err *err) {
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "model", b->run.model);
    iwp_json_put_string(w, "profile", b->run.profile);
    IWP_TRY(put_hashes(w, b, err));
    iwp_json_put_int(w, "limit", b->run.limit);
    iwp_json_put_int(w, "missing", b->missing);
    iwp_json_open_array(w, "runs");
    for (int32_t i = 0; i < b->n_row; i++) put_row(w, b, &b->row[i]);
    iwp_json_close_array(w);
    iwp_json_open_array(w, "average_percent");
    for (int32_t i = 0; i < b->n_average; i++) {
        iwp_json_open_object(w, NULL);
        put_config(w, b->average[i].config);
        iwp_json_put_f64(w, "value", b->average[i].value);
        iwp_json_put_int(w, "tasks", b->average[i].n_task);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    iwp_json_close_object(w);
    return 0;
}

static void put_timings(struct iwp_json_out *w, const struct iwp_eval_book *b) {
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "model", b->run.model);
    iwp_json_open_array(w, "runs");
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "task", b->run.task[r->task].task->name);
        put_config(w, r->config);
        iwp_json_put_int(w, "n", r->t.n);
        for (int k = 0; k < 5; k++) {
            iwp_json_open_object(w, iwp_eval_timing_names[k]);
            iwp_json_put_f64(w, "median_ms", r->t.median[k]);
            iwp_json_put_f64(w, "p95_ms", r->t.p95[k]);
            iwp_json_close_object(w);
        }
        iwp_json_put_f64(w, "kv_bytes", r->t.kv_bytes);
        iwp_json_put_f64(w, "prefill_flops", r->t.flops);
        iwp_json_put_f64(w, "prefill_flops_full", r->t.flops_full);
        iwp_json_put_f64(w, "layer_average", r->t.layer_average);
        iwp_json_open_array(w, "stages");
        for (int k = 0; k < IWP_STAGE_MAX; k++) {
            if (isnan(r->t.stage[k])) continue;
            iwp_json_open_object(w, NULL);
            iwp_json_put_int(w, "layer", k);
            iwp_json_put_f64(w, "kept", r->t.stage[k]);
            iwp_json_close_object(w);
        }
        iwp_json_close_array(w);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    iwp_json_close_object(w);
}

static int write_file(const struct iwp_eval_book *b, const char *dir, const char *name, bool paper,
                      iwp_err *err) {
    char path[4096];
    struct iwp_output o;
    struct iwp_json_out w;
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    IWP_REQUIRE(n > 0 && (size_t)n < sizeof path, err, IWP_EINVAL, "%.100s…: path too long", dir);
    IWP_TRY(iwp_output_open(&o, path, err));
    int rc = 0;
    iwp_json_init(&w, true);
    if (strstr(name, ".json")) {
        if (strcmp(name, "results.json"))
            put_timings(&w, b);
        else
            rc = put_results(&w, b, err);
        if (rc >= 0) rc = iwp_json_write(&w, o.file, err);
    } else if (strstr(name, ".html")) {
        rc = iwp_eval_report_html(b, paper, o.file);
    } else {
        rc = strstr(name, ".md") ? iwp_eval_report_md(b, o.file) : iwp_eval_report_csv(b, o.file);
    }
    if (rc >= 0) rc = iwp_output_commit(&o, err);
    iwp_output_abort(&o);
    iwp_json_free(&w);
    return rc;
}

int iwp_eval_book_write(const struct iwp_eval_book *b, const char *dir, bool paper, iwp_err *err) {
    static const char *const names[] = {"timings.json", "report.md", "report.csv", "report.html",
                                        "results.json"};
    IWP_TRY(iwp_eval_lmms_write(b, dir, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        IWP_TRY(write_file(b, dir, names[i], paper, err));
    return 0;
}
