/* Runs the grid: see runner.h. */
#include "eval/runner.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "model/prompter.h"
#include "model/session.h"

/* Configurations that start from the same encoded prompt. */
struct family {
    struct iwp_prompt_request request; /* resize_*, tap_* */
    int32_t *config;                   /* [n] */
    int32_t n;
};

struct grid {
    struct iwp_eval_job *j;
    iwp_engine *e;
    iwp_session *s;
    struct family *family;
    int32_t n_family;
    int32_t *of;      /* [n_config] its family */
    uint8_t *done;    /* [n_config][samples of the set] */
    float *logits;    /* [n_vocab] copy for nll */
    double *media_ms; /* [clusters of the set] first measured */
    struct iwp_progress progress;
    int64_t work, total, computed;
};

static bool same_prompt(const struct iwp_prompt_request *a, const struct iwp_prompt_request *b) {
    return a->resize_keep == b->resize_keep && a->resize_tokens == b->resize_tokens &&
           (!a->tap_qk || !b->tap_qk || a->tap_block == b->tap_block);
}

static int make_families(struct grid *g, iwp_err *err) {
    const struct iwp_eval_run *r = g->j->run;
    g->family = calloc((size_t)r->n_config + 1, sizeof *g->family);
    g->of = calloc((size_t)r->n_config + 1, sizeof *g->of);
    IWP_REQUIRE(g->family && g->of, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < r->n_config; i++) {
        const struct iwp_eval_config *c = &r->config[i];
        struct iwp_prompt_request q = g->j->media;
        const bool prune = c->params.method != NULL;
        iwp_prompt_request_for(&q, prune ? &c->params : NULL);
        const bool alone =
            prune && (iwp_method_info(c->params.method)->flags & IWP_METHOD_CHANGES_ENCODER);
        int32_t f = 0;
        while (f < g->n_family && (alone || !same_prompt(&g->family[f].request, &q))) f++;
        struct family *fam = &g->family[f];
        if (f == g->n_family) {
            g->n_family++;
            fam->request = q;
            fam->config = calloc((size_t)r->n_config, sizeof *fam->config);
            IWP_REQUIRE(fam->config, err, IWP_ENOMEM, "out of memory");
        }
        fam->request.tap_features |= q.tap_features;
        if (q.tap_qk) fam->request.tap_block = q.tap_block;
        fam->request.tap_qk |= q.tap_qk;
        fam->config[fam->n++] = i;
        g->of[i] = f;
    }
    return 0;
}

/* The lowest layer whose input a configuration reads or cuts. */
static int32_t low_layer(const struct grid *g, const struct iwp_eval_config *c, int32_t n_visual) {
    const struct iwp_engine_info in = iwp_engine_info(g->e);
    if (!c->params.method) return in.n_layer;
    struct iwp_stage stage[IWP_STAGE_MAX];
    struct iwp_plan_shape shape = {.n_layer = in.n_layer, .n_visual = n_visual};
    if (iwp_method_info(c->params.method)->site == IWP_SITE_MEDIA) return in.n_layer;
    if (iwp_plan(&c->params, &shape, stage, IWP_STAGE_MAX, NULL) < 1) return 0;
    if (stage[0].site != IWP_SITE_LAYER) return 0;
    int32_t l = stage[0].at;
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n = iwp_params_needs(&c->params, 0, need, IWP_TENSOR_COUNT);
    for (int i = 0; i < n; i++)
        if (l > 0 &&
            (need[i].tensor == IWP_TENSOR_H_PREV || need[i].tensor == IWP_TENSOR_Q_ROPE_PREV ||
             need[i].tensor == IWP_TENSOR_K_ROPE_PREV))
            return l - 1;
    return l;
}

/* ---- one answer --------------------------------------------------------------------------------------- */

struct times {
    double media, prefix, prefill, select, first, decode;
};

struct result {
    struct iwp_answer answer;
    struct iwp_score score;
    struct iwp_session_stats st;
    uint64_t keep_hash;
    struct times t;
    int32_t visual;
};

static double log_prob(const float *logits, int32_t n, int32_t id) {
    double max = logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > max) max = logits[i];
    for (int32_t i = 0; i < n; i++) sum += exp(logits[i] - max);
    return logits[id] - max - log(sum);
}

/* Mean over the references of the mean negative log-likelihood of their tokens. */
static int run_nll(struct grid *g, const struct iwp_eval_sample *s, struct result *out,
                   iwp_err *err) {
    const int32_t nv = iwp_engine_info(g->e).n_vocab;
    const iwp_vocab *v = g->e->prompter->vocab;
    double total = 0;
    memcpy(g->logits, iwp_session_logits(g->s), (size_t)nv * sizeof *g->logits);
    for (int32_t i = 0; i < s->n_answer; i++) {
        struct iwp_ids ids = {0};
        char *text = NULL;
        size_t n;
        double sum = 0;
        int rc = iwp_vocab_normalise(v, s->answers[i], strlen(s->answers[i]), &text, &n, err);
        if (rc >= 0) rc = iwp_vocab_tokenise(v, text, n, false, false, &ids, err);
        if (rc >= 0 && ids.n == 0)
            rc = iwp_err_set(err, IWP_EINVAL, "reference %d has no tokens", i + 1);
        if (rc >= 0) sum = -log_prob(g->logits, nv, ids.id[0]);
        for (int32_t k = 1; k < ids.n && rc >= 0; k++) {
            rc = iwp_session_feed(g->s, ids.id[k - 1], err);
            if (rc >= 0) sum -= log_prob(iwp_session_logits(g->s), nv, ids.id[k]);
        }
        if (rc >= 0 && ids.n > 1) rc = iwp_session_forget(g->s, 0, err);
        if (rc >= 0) total += sum / ids.n;
        iwp_ids_free(&ids);
        free(text);
        IWP_TRY(rc);
    }
    out->score.score = total / s->n_answer;
    return 0;
}

/* From a session that has been stepped to its logits. */
static int answer(struct grid *g, const struct iwp_eval_sample *s, struct result *out,
                  iwp_err *err) {
    out->st = iwp_session_stats(g->s);
    out->keep_hash = iwp_keep_hash(out->st.keep, out->st.n_kept);
    out->t.select = out->st.ms_select;
    if (s->nll) return run_nll(g, s, out, err);
    const struct iwp_generate_params p = {.n_predict = s->max_new_tokens};
    IWP_TRY(iwp_session_generate(g->s, &p, &out->answer, err));
    out->t.first = out->answer.ms_first;
    out->t.decode = out->answer.ms_decode;
    const struct iwp_score_input in = {out->answer.text, s->answers,  s->n_answer,
                                       s->choices,       s->n_choice, g->j->profile};
    return iwp_scorer_run(s->scorer, &in, &out->score, err);
}

static void text_hash(const char *s, char out[17]) {
    snprintf(out, 17, "%016llx", (unsigned long long)iwp_fnv64(IWP_FNV64_INIT, s, strlen(s)));
}

static int write_lines(struct grid *g, const struct iwp_eval_set *set,
                       const struct iwp_eval_sample *s, const struct iwp_eval_config *c,
                       const struct result *r, const iwp_err *failed, iwp_err *err) {
    char path[4096], hash[17];
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_int(&w, "doc_id", s->doc);
    iwp_json_put_string(&w, "id", s->id);
    iwp_json_open_object(&w, "doc");
    iwp_json_put_string(&w, "question",
                        cJSON_GetObjectItemCaseSensitive(s->row, "question")->valuestring);
    iwp_json_put_string(&w, s->video ? "video" : "image", s->media[0]);
    iwp_json_close_object(&w);
    if (s->category) iwp_json_put_string(&w, "category", s->category);
    if (s->group) iwp_json_put_string(&w, "group", s->group);
    iwp_json_put_string(&w, "medium", s->media[0]);
    iwp_json_put_string(&w, "target", s->answers[0]);
    iwp_json_open_array(&w, "arguments");
    iwp_json_open_array(&w, NULL);
    iwp_json_put_string(&w, NULL, s->prompt);
    iwp_json_close_array(&w);
    iwp_json_close_array(&w);
    const char *text = r->answer.text ? r->answer.text : "";
    iwp_json_open_array(&w, "resps");
    iwp_json_open_array(&w, NULL);
    iwp_json_put_string(&w, NULL, text);
    iwp_json_close_array(&w);
    iwp_json_close_array(&w);
    iwp_json_open_array(&w, "filtered_resps");
    iwp_json_put_string(&w, NULL, text);
    iwp_json_close_array(&w);
    text_hash(s->id, hash);
    iwp_json_put_string(&w, "doc_hash", hash);
    text_hash(s->prompt, hash);
    iwp_json_put_string(&w, "prompt_hash", hash);
    text_hash(s->answers[0], hash);
    iwp_json_put_string(&w, "target_hash", hash);
    iwp_json_put_string(&w, "answer", text);
    iwp_json_put_f64(&w, "score", failed ? 0 : r->score.score);
    if (r->score.label[0]) iwp_json_put_string(&w, "label", r->score.label);
    if (r->score.unparsed && !failed) {
        iwp_json_put_bool(&w, "unparsed", true);
        iwp_json_put_f64(&w, "chance", r->score.chance);
    }
    if (failed) {
        iwp_json_put_string(&w, "error", failed->msg);
    } else {
        iwp_json_put_int(&w, "tokens", r->answer.n_token);
        iwp_json_put_int(&w, "visual", r->visual);
        iwp_json_put_int(&w, "kept", r->st.n_kept);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->keep_hash);
        iwp_json_put_string(&w, "keep_hash", hash);
    }
    iwp_json_close_object(&w);
    int rc = w.failed ? iwp_err_set(err, IWP_ENOMEM, "out of memory") : 0;
    if (rc >= 0) {
        while (w.len && w.text[w.len - 1] != '}') w.len--; /* ends with its brace, then a newline */
        w.text[w.len] = '\n';
        rc = iwp_eval_lines_path(path, sizeof path, g->j->dir, c->dir, "samples", set->task->name,
                                 err);
        if (rc >= 0) rc = iwp_eval_lines_append(path, w.text, w.len + 1, err);
    }
    iwp_json_free(&w);
    if (rc < 0 || failed) return rc;
    char line[512];
    int n = snprintf(line, sizeof line,
                     "{\"doc_id\":%d,\"encode\":%.3f,\"select\":%.3f,\"prefill\":%.3f,"
                     "\"ttft\":%.3f,\"decode\":%.3f,\"tokens\":%d,\"kv_bytes\":%zu,"
                     "\"kv_bytes_full\":%zu,\"flops\":%.6g,\"flops_full\":%.6g,"
                     "\"layer_average\":%.6g}\n",
                     s->doc, r->t.media, r->t.select, r->t.prefix + r->t.prefill,
                     r->t.media + r->t.prefix + r->t.prefill + r->t.first, r->t.decode,
                     r->answer.n_token, r->st.kv_bytes, r->st.kv_bytes_full, r->st.flops,
                     r->st.flops_full, r->st.layer_average);
    IWP_TRY(
        iwp_eval_lines_path(path, sizeof path, g->j->dir, c->dir, "timings", set->task->name, err));
    return iwp_eval_lines_append(path, line, (size_t)n, err);
}

/* ---- one sample under one family ------------------------------------------------------------------------ */

static int make_prompt(struct grid *g, const struct family *f, const struct iwp_eval_sample *s,
                       iwp_prompt **out, iwp_err *err) {
    struct iwp_part part[IWP_MANIFEST_MAX_MEDIA + 1];
    struct iwp_part sys = {.kind = IWP_PART_TEXT, .text = g->j->system};
    struct iwp_message msg[2];
    int32_t n = 0, m = 0;
    for (; n < s->n_media; n++)
        part[n] = (struct iwp_part){.kind = s->video ? IWP_PART_VIDEO : IWP_PART_IMAGE,
                                    .file = s->path[n]};
    struct iwp_prompt_request r = f->request;
    if (g->j->raw) {
        r.raw = s->prompt;
        r.media = part;
        r.n_media = n;
    } else {
        part[n++] = (struct iwp_part){.kind = IWP_PART_TEXT, .text = s->prompt};
        if (g->j->system) msg[m++] = (struct iwp_message){"system", &sys, 1};
        msg[m++] = (struct iwp_message){"user", part, n};
        r.message = msg;
        r.n_message = m;
    }
    return iwp_engine_prompt(g->e, &r, out, err);
}

static int step_all(struct grid *g, int32_t prefix_steps, double *prefix, iwp_err *err) {
    const double t0 = iwp_clock_ms();
    int rc, k = 0;
    while ((rc = iwp_session_step(g->s, err)) > 0)
        if (++k == prefix_steps && prefix) *prefix = iwp_clock_ms() - t0;
    return rc;
}

static bool fatal(int rc) { return rc == IWP_ENOMEM || rc == IWP_ECANCELLED; }

static int run_family(struct grid *g, const struct family *f, struct iwp_eval_set *set, int32_t at,
                      iwp_err *err) {
    const struct iwp_eval_sample *s = &set->at[at];
    struct iwp_eval_run *run = g->j->run;
    iwp_prompt *p = NULL;
    iwp_err why;
    int rc = make_prompt(g, f, s, &p, &why);
    const int bad_prompt = rc < 0 ? rc : 0;
    struct iwp_prompt_info info = {0};
    double media = 0, prefix = 0;
    int32_t mark = 0; /* state of this layer is kept; 0: only the start */
    bool begun = false;
    if (fatal(bad_prompt)) {
        if (err) *err = why;
        return rc;
    }
    if (!bad_prompt) {
        info = iwp_prompt_info(p);
        media = info.ms_decode_image + info.ms_preprocess + info.ms_encode;
        double *first = &g->media_ms[s->cluster];
        if (f == g->family && info.ms_encode > 0) *first = media;
        if (f == g->family && *first > media) media = *first;
        /* The mark is the lowest cut inside the decoder among all configurations, done or not, so
         * that a continued run computes in the same way. */
        mark = INT32_MAX;
        for (int32_t i = 0; i < f->n; i++) {
            const int32_t l = low_layer(g, &run->config[f->config[i]], info.n_visual);
            if (l > 0 && l < mark) mark = l;
        }
        if (mark >= iwp_engine_info(g->e).n_layer || g->j->exact_times) mark = 0;
        iwp_session_keep_mark(g->s, mark > 0 ? mark : -1);
    }
    /* Those that cut at the mark or later first, one after another from the kept state. */
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < f->n; i++) {
            const int32_t k = f->config[i];
            const struct iwp_eval_config *c = &run->config[k];
            if (g->done[(size_t)k * (size_t)set->n + (size_t)at]) continue;
            const int32_t low = bad_prompt ? 0 : low_layer(g, c, info.n_visual);
            const bool from_mark = mark > 0 && low >= mark;
            if (pass != (from_mark ? 0 : 1)) continue;
            const struct iwp_params *prune = c->params.method ? &c->params : NULL;
            struct result r;
            memset(&r, 0, sizeof r);
            rc = bad_prompt;
            if (!bad_prompt) {
                const double t0 = iwp_clock_ms();
                double own = 0;
                r.visual = info.n_visual;
                r.t.media = media;
                if (from_mark && begun) {
                    rc = iwp_session_rewind(g->s, mark, prune, &why);
                    if (rc >= 0) rc = step_all(g, 0, NULL, &why);
                    r.t.prefix = prefix;
                } else {
                    rc = iwp_session_begin(g->s, p, prune, &why);
                    const int32_t left =
                        info.n_token - (rc < 0 ? 0 : iwp_session_stats(g->s).n_reused);
                    const int32_t steps =
                        (left + g->j->session.n_chunk - 1) / g->j->session.n_chunk;
                    if (rc >= 0) rc = step_all(g, steps, &own, &why);
                    if (from_mark && rc >= 0) {
                        begun = true;
                        prefix = own;
                    }
                }
                r.t.prefill = iwp_clock_ms() - t0;
                if (rc >= 0) rc = answer(g, s, &r, &why);
            }
            if (fatal(rc)) {
                if (err) *err = why;
                iwp_answer_free(&r.answer);
                iwp_engine_prompt_free(p);
                return rc;
            }
            int written = write_lines(g, set, s, c, &r, rc < 0 ? &why : NULL, err);
            iwp_answer_free(&r.answer);
            if (written < 0) {
                iwp_engine_prompt_free(p);
                return written;
            }
            g->computed++;
            iwp_progress_set(&g->progress, ++g->work);
        }
    iwp_engine_prompt_free(p);
    return 0;
}

/* ---- the grid --------------------------------------------------------------------------------------- */

static int make_dir(const char *path, iwp_err *err) {
    IWP_REQUIRE(mkdir(path, 0777) == 0 || errno == EEXIST, err, IWP_EIO,
                "%.300s: cannot make it: %s", path, strerror(errno));
    return 0;
}

/* What is there already. */
static int read_done(struct grid *g, const struct iwp_eval_set *set, iwp_err *err) {
    const struct iwp_eval_run *run = g->j->run;
    char path[4096];
    free(g->done);
    g->done = calloc((size_t)run->n_config * (size_t)set->n + 1, 1);
    IWP_REQUIRE(g->done, err, IWP_ENOMEM, "out of memory");
    for (int32_t k = 0; k < run->n_config; k++) {
        IWP_TRY(iwp_eval_lines_path(path, sizeof path, g->j->dir, run->config[k].dir, "timings",
                                    set->task->name, err));
        IWP_TRY(iwp_eval_lines_repair(path, err));
        IWP_TRY(iwp_eval_lines_path(path, sizeof path, g->j->dir, run->config[k].dir, "samples",
                                    set->task->name, err));
        IWP_TRY(iwp_eval_lines_repair(path, err));
        struct iwp_eval_records r = {0};
        int rc = iwp_eval_records_read(&r, path, err);
        for (int32_t i = 0, at = 0; i < r.n && rc >= 0; i++) {
            while (at < set->n && set->at[at].doc < r.at[i].doc) at++;
            if (at == set->n || set->at[at].doc != r.at[i].doc || !r.at[i].id ||
                strcmp(set->at[at].id, r.at[i].id))
                rc = iwp_err_set(err, IWP_EINVAL,
                                 "%s: sample %d is not of this run; give another --out", path,
                                 r.at[i].doc);
            else
                g->done[(size_t)k * (size_t)set->n + (size_t)at] = 1;
        }
        iwp_eval_records_free(&r);
        IWP_TRY(rc);
    }
    return 0;
}

static int open_engine(struct grid *g, iwp_err *err) {
    if (g->e) return 0;
    IWP_TRY(iwp_engine_open(&g->e, &g->j->engine, err));
    IWP_REQUIRE(iwp_engine_info(g->e).has_vision, err, IWP_EINVAL,
                "the model has no vision tower: give its mmproj file with -mm");
    IWP_TRY(iwp_session_new(&g->s, g->e, &g->j->session, err));
    g->logits = malloc((size_t)iwp_engine_info(g->e).n_vocab * sizeof *g->logits);
    IWP_REQUIRE(g->logits, err, IWP_ENOMEM, "out of memory");
    return 0;
}

static int run_set(struct grid *g, struct iwp_eval_set *set, iwp_err *err) {
    const struct iwp_eval_run *run = g->j->run;
    IWP_TRY(read_done(g, set, err));
    free(g->media_ms);
    int32_t clusters = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (set->at[i].cluster >= clusters) clusters = set->at[i].cluster + 1;
    g->media_ms = calloc((size_t)clusters + 1, sizeof *g->media_ms);
    IWP_REQUIRE(g->media_ms, err, IWP_ENOMEM, "out of memory");
    for (int32_t at = 0; at < set->n; at++)
        for (int32_t f = 0; f < g->n_family; f++) {
            bool pending = false;
            for (int32_t i = 0; i < g->family[f].n; i++) {
                const bool done =
                    g->done[(size_t)g->family[f].config[i] * (size_t)set->n + (size_t)at];
                pending = pending || !done;
                g->work += done;
            }
            if (!pending) continue;
            IWP_TRY(open_engine(g, err));
            IWP_TRY(run_family(g, &g->family[f], set, at, err));
        }
    (void)run;
    return 0;
}

int iwp_eval_run_grid(struct iwp_eval_job *j, iwp_err *err) {
    struct grid g;
    memset(&g, 0, sizeof g);
    g.j = j;
    char path[4096];
    int rc = make_families(&g, err);
    for (int32_t i = 0; i < j->run->n_config && rc >= 0; i++) {
        snprintf(path, sizeof path, "%s/%s", j->dir, j->run->config[i].dir);
        rc = make_dir(path, err);
    }
    for (int32_t i = 0; i < j->data->n; i++)
        g.total += (int64_t)j->data->set[i].n * j->run->n_config;
    iwp_progress_start(&g.progress, "eval", "answers", g.total);
    for (int32_t i = 0; i < j->data->n && rc >= 0; i++) rc = run_set(&g, &j->data->set[i], err);
    iwp_progress_end(&g.progress);
    for (int32_t i = 0; i < g.n_family; i++) free(g.family[i].config);
    free(g.family);
    free(g.of);
    free(g.done);
    free(g.logits);
    free(g.media_ms);
    iwp_session_free(g.s);
    iwp_engine_close(g.e);
    return rc < 0 ? rc : g.computed > INT32_MAX ? INT32_MAX : (int)g.computed;
}
