/* Runs analyses and writes what they found: see analyse.h. */
#include "eval/analyse.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/file.h"

const struct iwp_analysis iwp_analyses[] = {
    {"metrics", "Magnitudes, queries and duplications",
     "every magnitude under every query with topk, every duplication with pc-mmr, and which of "
     "the factors cosine, key norm and value norm a magnitude follows",
     iwp_analyse_metrics},
    {"ablate", "One factor at a time",
     "RoPE, layer, lambda, growth, first chunk, selector and penalty around the default",
     iwp_analyse_ablate},
    {"deletion", "Exact effect of deleting a token",
     "attention weights, the factor 1/(1-w), and how well the scores rank the exact effect",
     iwp_analyse_deletion},
    {"similarity", "Similarity of tokens",
     "maps of the last tokens: keys, values, both; block means of visual and text",
     iwp_analyse_similarity},
    {"layers", "Kept tokens across layers",
     "overlap of the sets selected at every pair of layers of an unpruned run", iwp_analyse_layers},
    {"identities", "Identities of the dual form", "the table of identities on real activations",
     iwp_analyse_identities},
    {"propagate", "How the deletion grows through later layers",
     "change of the residual per layer and of the logits, per method and budget",
     iwp_analyse_propagate},
    {"implicit-weight", "How much of the implicit weight is left",
     "norm of what is removed from W and cosine of W with the rest, every method at equal count",
     iwp_analyse_implicit_weight},
    {NULL, NULL, NULL, NULL},
};

/* ---- numbers ------------------------------------------------------------------------------------------ */

void iwp_tally_add(struct iwp_tally *t, double x) {
    if (isnan(x)) return;
    if (t->n == 0 || x < t->lo) t->lo = x;
    if (t->n == 0 || x > t->hi) t->hi = x;
    t->sum += x;
    t->n++;
}

double iwp_tally_mean(const struct iwp_tally *t) { return t->n ? t->sum / (double)t->n : NAN; }

void iwp_tally_json(struct iwp_json_out *w, const char *key, const struct iwp_tally *t) {
    iwp_json_open_object(w, key);
    iwp_json_put_f64(w, "mean", iwp_tally_mean(t));
    iwp_json_put_f64(w, "min", t->n ? t->lo : NAN);
    iwp_json_put_f64(w, "max", t->n ? t->hi : NAN);
    iwp_json_close_object(w);
}

double iwp_logit_kl(const float *p, const float *q, int32_t n) {
    double p_top = p[0], q_top = q[0], p_sum = 0, q_sum = 0, kl = 0;
    for (int32_t i = 1; i < n; i++) {
        if (p[i] > p_top) p_top = p[i];
        if (q[i] > q_top) q_top = q[i];
    }
    for (int32_t i = 0; i < n; i++) {
        p_sum += exp(p[i] - p_top);
        q_sum += exp(q[i] - q_top);
    }
    const double p_z = p_top + log(p_sum), q_z = q_top + log(q_sum);
    for (int32_t i = 0; i < n; i++) kl += exp(p[i] - p_z) * ((p[i] - p_z) - (q[i] - q_z));
    return kl < 0 ? 0 : kl; /* rounding */
}

int32_t iwp_logit_top(const float *x, int32_t n) {
    int32_t top = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[top]) top = i;
    return top;
}

int32_t iwp_analyse_methods(const struct iwp_analyse *a, const char *const *names, int32_t n,
                            const struct iwp_method **out) {
    const struct iwp_analyse_job *j = a->job;
    int32_t at = 0;
    if (j->n_method) {
        memcpy(out, j->method, (size_t)j->n_method * sizeof *out);
        return j->n_method;
    }
    for (int32_t i = 0; i < (names ? n : iwp_method_count()) && at < IWP_ANALYSE_MAX_METHOD; i++) {
        const struct iwp_method *m = names ? iwp_method_find(names[i]) : iwp_method_at(i);
        if (m && strcmp(iwp_method_info(m)->name, "none")) out[at++] = m;
    }
    return at;
}

/* ---- samples ------------------------------------------------------------------------------------------- */

static bool fatal(int rc) { return rc == IWP_ENOMEM || rc == IWP_ECANCELLED; }

void iwp_analyse_tick(struct iwp_analyse *a) { iwp_progress_set(&a->progress, ++a->done); }

int iwp_analyse_each(struct iwp_analyse *a, struct iwp_finding *f, int32_t ticks,
                     iwp_analyse_one *one, void *ctx, iwp_err *err) {
    int64_t total = 0;
    int rc = 0;
    const int32_t before = f->n_sample;
    for (int32_t t = 0; t < a->job->data->n; t++) total += a->job->data->set[t].n;
    iwp_progress_start(&a->progress, a->name, "steps", total * ticks);
    a->done = 0;
    f->n_error = 0;
    for (int32_t t = 0, k = 0; t < a->job->data->n && !fatal(rc); t++)
        for (int32_t i = 0; i < a->job->data->set[t].n && !fatal(rc); i++) {
            const struct iwp_eval_sample *s = &a->job->data->set[t].at[i];
            iwp_prompt *p = NULL;
            iwp_err why = {0};
            rc = iwp_ask_prompt(&a->ask, &a->job->media, s, &p, &why);
            if (rc >= 0 && iwp_prompt_info(p).n_visual == 0)
                rc = iwp_err_set(&why, IWP_EINVAL, "the prompt has no visual tokens");
            if (rc >= 0) rc = one(ctx, a, s, p, &why);
            iwp_engine_prompt_free(p);
            if (rc >= 0)
                f->n_sample++;
            else {
                f->n_error++;
                snprintf(f->error, sizeof f->error, "%.80s: %.300s", s->id, why.msg);
                if (fatal(rc) && err) *err = why;
                if (!fatal(rc)) iwp_log(IWP_LOG_WARN, "%s: %s", a->name, f->error);
            }
            a->done = (int64_t)++k * ticks;
            iwp_progress_set(&a->progress, a->done);
        }
    iwp_progress_end(&a->progress);
    if (fatal(rc)) return rc;
    IWP_REQUIRE(f->n_sample > before, err, IWP_EINVAL, "%s: no sample could be used; the last: %s",
                a->name, f->error[0] ? f->error : "the manifest is empty");
    return 0;
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void finding_init(struct iwp_finding *f, const char *title) {
    memset(f, 0, sizeof *f);
    iwp_json_init(&f->json, true);
    iwp_chart_init(&f->chart, title);
    f->text = open_memstream(&f->text_at, &f->n_text);
}

static void finding_free(struct iwp_finding *f) {
    iwp_json_free(&f->json);
    iwp_chart_free(&f->chart);
    if (f->text) fclose(f->text);
    free(f->text_at);
}

static int file_path(const struct iwp_analyse_job *j, const char *name, const char *ext,
                     char out[4096], iwp_err *err) {
    const int n = snprintf(out, 4096, "%s/%s.%s", j->dir, name, ext);
    IWP_REQUIRE(n > 0 && n < 4096, err, IWP_EINVAL, "--out: path too long");
    return 0;
}

/* The text, the picture and last the document, which is what a reader of the folder looks for. */
static int write_files(const struct iwp_analyse_job *j, const char *name, struct iwp_finding *f,
                       iwp_err *err) {
    char path[4096];
    struct iwp_output o;
    IWP_TRY(file_path(j, name, "txt", path, err));
    IWP_TRY(iwp_output_open(&o, path, err));
    fwrite(f->text_at, 1, f->n_text, o.file);
    IWP_TRY(iwp_output_commit(&o, err));
    IWP_TRY(file_path(j, name, "svg", path, err));
    IWP_TRY(iwp_chart_write(&f->chart, path, err));
    IWP_TRY(file_path(j, name, "json", path, err));
    IWP_TRY(iwp_output_open(&o, path, err));
    int rc = iwp_json_write(&f->json, o.file, err);
    if (rc < 0) {
        iwp_output_abort(&o);
        return rc;
    }
    return iwp_output_commit(&o, err);
}

static void describe(struct iwp_analyse *a) {
    const struct iwp_analyse_job *j = a->job;
    int32_t total = 0;
    for (int32_t t = 0; t < j->data->n; t++) total += j->data->set[t].n;
    snprintf(a->what, sizeof a->what, "%.80s, %d sample%s, layer %d of %d", a->info.name, total,
             total == 1 ? "" : "s", a->layer, a->info.n_layer);
}

static void head(struct iwp_analyse *a, const struct iwp_analysis *w, struct iwp_finding *f) {
    const struct iwp_analyse_job *j = a->job;
    iwp_json_open_object(&f->json, NULL);
    iwp_json_put_string(&f->json, "analysis", w->name);
    iwp_json_put_string(&f->json, "title", w->title);
    iwp_json_put_string(&f->json, "model", a->info.name);
    iwp_json_put_string(&f->json, "model_hash", j->model_hash);
    iwp_json_put_int(&f->json, "layer", a->layer);
    iwp_json_put_int(&f->json, "n_layer", a->info.n_layer);
    iwp_json_open_array(&f->json, "keep");
    for (int32_t i = 0; i < j->n_keep; i++) iwp_json_put_f64(&f->json, NULL, j->keep[i]);
    iwp_json_close_array(&f->json);
    iwp_json_open_object(&f->json, "data");
    for (int32_t t = 0; t < j->data->n; t++)
        iwp_json_put_string(&f->json, j->data->set[t].task->name, j->data->set[t].hash);
    iwp_json_close_object(&f->json);
    iwp_chart_note(&f->chart, IWP_CHART_LEFT, 48, a->what);
}

static int run_one(struct iwp_analyse *a, const struct iwp_analysis *w, FILE *out,
                   struct iwp_json_out *all, iwp_err *err) {
    struct iwp_finding f;
    int rc = 0;
    finding_init(&f, w->title);
    if (!f.text) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    a->name = w->name;
    head(a, w, &f);
    IWP_TRY_GOTO(w->run(a, &f, err));
    iwp_json_put_int(&f.json, "samples", f.n_sample);
    iwp_json_put_int(&f.json, "errors", f.n_error);
    if (f.n_error) {
        iwp_json_put_string(&f.json, "last_error", f.error);
        fprintf(f.text, "%d sample%s failed; the last: %s\n", f.n_error, f.n_error == 1 ? "" : "s",
                f.error);
    }
    fflush(f.text);
    iwp_json_put_string(&f.json, "text", f.text_at);
    iwp_json_close_object(&f.json);
    IWP_TRY_GOTO(write_files(a->job, w->name, &f, err));
    if (all)
        iwp_json_put_raw(all, w->name, f.json.text);
    else
        fprintf(out, "%s (%s)\n%s\n", w->title, a->what, f.text_at);
fail:
    finding_free(&f);
    return rc < 0 ? rc : 0;
}

static int open_model(struct iwp_analyse *a, iwp_err *err) {
    const struct iwp_analyse_job *j = a->job;
    a->ask = j->ask;
    IWP_TRY(iwp_engine_open(&a->ask.e, &j->engine, err));
    a->info = iwp_engine_info(a->ask.e);
    IWP_REQUIRE(a->info.has_vision, err, IWP_EINVAL,
                "the model has no vision tower: give its mmproj file with -mm");
    a->layer = j->prune.layer >= 0 ? j->prune.layer : iwp_method_info(j->prune.method)->layer;
    IWP_REQUIRE(a->layer < a->info.n_layer, err, IWP_EINVAL,
                "--prune-layer %d: the decoder has layers 0 to %d", a->layer, a->info.n_layer - 1);
    return iwp_session_new(&a->s, a->ask.e, &j->session, err);
}

int iwp_analyse_run(const struct iwp_analyse_job *j, const struct iwp_analysis *const *which,
                    int32_t n, FILE *out, bool json, iwp_err *err) {
    struct iwp_analyse a;
    struct iwp_json_out all;
    memset(&a, 0, sizeof a);
    a.job = j;
    iwp_json_init(&all, true);
    iwp_json_open_object(&all, NULL);
    int rc = open_model(&a, err);
    if (rc >= 0) describe(&a);
    for (int32_t i = 0; i < n && rc >= 0; i++)
        rc = run_one(&a, which[i], out, json ? &all : NULL, err);
    iwp_json_close_object(&all);
    if (rc >= 0 && json) rc = iwp_json_write(&all, out, err);
    iwp_json_free(&all);
    iwp_session_free(a.s);
    iwp_engine_close(a.ask.e);
    return rc;
}
