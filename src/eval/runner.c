/* Runs the grid: see runner.h.
 *
 * A question under the configurations of one family is one descent: they are ordered by the layer
 * where they first touch the rows, highest first.  The first of them runs the layers below for all and
 * keeps the state before each layer another one starts from; each of the others goes on from its own.
 * Those that cut before layer 0 have nothing to share and a session of their own, so that the lower
 * layers of a picture's first question are still there for its second. */
#include "eval/runner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "eval/answer.h"
#include "eval/ask.h"
#include "eval/digest.h"
#include "eval/gallery.h"
#include "model/session.h"

/* Configurations that start from the same encoded prompt. */
struct family {
    struct iwp_prompt_request request; /* resize_*, tap_*, the tower's method */
    int32_t *config;                   /* [n] */
    int32_t n;
    double *media_ms; /* [clusters of the set] measured when encoded */
    double row_ms;    /* of one row up to the lowest mark, when none was reused */
};

struct grid {
    struct iwp_eval_job *j;
    iwp_engine *e;
    iwp_session *s;     /* cuts inside the decoder, and no cut */
    iwp_session *early; /* cuts before it */
    struct family *family;
    int32_t n_family;
    uint8_t **done; /* [sets of the data][n_config][samples of the set] */
    struct iwp_digests media;
    float *logits; /* [n_vocab] */
    struct iwp_progress progress;
    int64_t at, total, computed;
    uint8_t *picture; /* [samples of the set] the report wants to show it */
    bool first;       /* at the first question of the run */
    iwp_err *refuse;  /* [n_config] why it cannot do that one; code 0: it can */
};

/* One question under one family. */
struct descent {
    const struct family *f;
    const struct iwp_eval_set *set;
    const uint8_t *done; /* [n_config][samples of the set] */
    int32_t at;
    iwp_prompt *p;
    struct iwp_prompt_info info;
    double media;
    int32_t *low;                 /* [f->n] */
    int32_t mark[IWP_MARK_MAX];   /* [n_mark] ascending */
    double mark_ms[IWP_MARK_MAX]; /* to come there */
    int32_t n_mark;
    bool begun; /* marks are there */
};

/* ---- families ------------------------------------------------------------------------------------------ */

static bool same_prompt(const struct iwp_prompt_request *a, const struct iwp_prompt_request *b) {
    return !a->in_tower && !b->in_tower && a->resize_keep == b->resize_keep &&
           a->resize_tokens == b->resize_tokens &&
           (!a->tap_qk || !b->tap_qk || a->tap_block == b->tap_block);
}

static int make_families(struct grid *g, iwp_err *err) {
    const struct iwp_eval_run *r = g->j->run;
    g->family = calloc((size_t)r->n_config + 1, sizeof *g->family);
    IWP_REQUIRE(g->family, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < r->n_config; i++) {
        const struct iwp_eval_config *c = &r->config[i];
        struct iwp_prompt_request q = g->j->media;
        iwp_prompt_request_for(&q, c->params.method ? &c->params : NULL);
        int32_t f = 0;
        while (f < g->n_family && !same_prompt(&g->family[f].request, &q)) f++;
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

/* ---- one descent --------------------------------------------------------------------------------------- */

static int make_prompt(struct grid *g, const struct family *f, const struct iwp_eval_sample *s,
                       bool pixels, iwp_prompt **out, iwp_err *err) {
    const struct iwp_ask ask = {
        .e = g->e, .profile = g->j->profile, .raw = g->j->raw, .system = g->j->system};
    struct iwp_prompt_request r = f->request;
    r.keep_pixels = pixels;
    return iwp_ask_prompt(&ask, &r, s, out, err);
}

/* The states that configurations of the family start from, done or not, so that a continued run
 * computes in the same way. */
static int plan_marks(struct grid *g, struct descent *d, iwp_err *err) {
    const int32_t L = iwp_engine_info(g->e).n_layer;
    d->low = calloc((size_t)d->f->n + 1, sizeof *d->low);
    IWP_REQUIRE(d->low, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < d->f->n; i++)
        d->low[i] = low_layer(g, &g->j->run->config[d->f->config[i]], d->info.n_visual);
    for (int32_t l = 1; l < L && d->n_mark < IWP_MARK_MAX; l++)
        for (int32_t i = 0; i < d->f->n; i++)
            if (d->low[i] == l) {
                d->mark[d->n_mark++] = l;
                break;
            }
    return iwp_session_keep_marks(g->s, d->mark, d->n_mark, err);
}

/* Steps to the logits and notes when each mark was reached. */
static int step_all(iwp_session *s, struct descent *d, iwp_err *err) {
    const double t0 = iwp_clock_ms();
    int32_t k = 0;
    int rc;
    while ((rc = iwp_session_step(s, err)) > 0)
        while (k < d->n_mark && iwp_session_stats(s).marked >= d->mark[k])
            d->mark_ms[k++] = iwp_clock_ms() - t0;
    return rc;
}

/* A fresh run through all layers.  *prefix: time up to the configuration's first cut. */
static int run_whole(struct grid *g, struct family *f, struct descent *d, iwp_session *s,
                     int32_t low, const struct iwp_params *prune, double *prefix, double *added,
                     iwp_err *err) {
    const double t0 = iwp_clock_ms();
    IWP_TRY(iwp_session_begin(s, d->p, prune, err));
    const int32_t reused = iwp_session_stats(s).n_reused;
    IWP_TRY(step_all(s, d, err));
    if (low <= 0) return 0;
    int32_t k = d->n_mark - 1;
    while (k >= 0 && d->mark[k] > low) k--;
    *prefix = low < iwp_engine_info(g->e).n_layer && k >= 0 ? d->mark_ms[k] : iwp_clock_ms() - t0;
    if (d->n_mark == 0) return 0;
    if (reused == 0) {
        f->row_ms = d->mark_ms[0] / d->info.n_token;
    } else { /* rows of an earlier question about the same picture: their time counts all the same */
        *added = reused * f->row_ms;
        for (int32_t i = 0; i < d->n_mark; i++) d->mark_ms[i] += *added;
    }
    return 0;
}

static int run_one(struct grid *g, struct family *f, struct descent *d, int32_t i,
                   struct iwp_eval_answer *a, iwp_err *err) {
    const struct iwp_eval_config *c = &g->j->run->config[f->config[i]];
    const struct iwp_params *prune = c->params.method ? &c->params : NULL;
    struct iwp_eval_work *w = &g->j->work;
    const int32_t low = d->low[i];
    iwp_session **s = low > 0 ? &g->s : &g->early;
    int32_t k = d->n_mark - 1;
    double prefix = 0, before = 0;
    while (k >= 0 && d->mark[k] > low) k--;
    if (!*s || g->j->exact_times) {
        iwp_session_free(*s);
        *s = NULL;
        IWP_TRY(iwp_session_new(s, g->e, &g->j->session, err));
        if (low > 0) IWP_TRY(iwp_session_keep_marks(*s, d->mark, d->n_mark, err));
    }
    (*s)->sp.positions = c->positions;
    const double t0 = iwp_clock_ms();
    /* A run that failed has taken the kept states with it. */
    if (low > 0 && d->begun && k >= 0 && iwp_session_mark(*s, d->mark[k]) && !g->j->exact_times) {
        before = d->mark_ms[k];
        IWP_TRY(iwp_session_rewind(*s, d->mark[k], prune, err));
        IWP_TRY(iwp_ask_prefill(*s, err));
    } else {
        IWP_TRY(run_whole(g, f, d, *s, low, prune, &prefix, &before, err));
        d->begun = d->begun || low > 0;
    }
    const double own = iwp_clock_ms() - t0;
    a->prefill = before + own;
    w->row_layers += iwp_session_stats(*s).row_layers;
    int rc = iwp_eval_answer_make(*s, &d->set->at[d->at], g->j->profile, g->logits, a, err);
    w->prefix_ms += prefix;
    w->rest_ms += iwp_clock_ms() - t0 - prefix;
    if (low > 0) w->shared_row_layers += (int64_t)d->info.n_token * low;
    return rc;
}

static bool fatal(int rc) { return rc == IWP_ENOMEM || rc == IWP_ECANCELLED; }

/* The pending configuration that starts highest; -1: none is left. */
static int32_t next_config(const struct descent *d) {
    int32_t best = -1;
    for (int32_t i = 0; i < d->f->n; i++)
        if (!d->done[(size_t)d->f->config[i] * (size_t)d->set->n + (size_t)d->at] &&
            (best < 0 || d->low[i] > d->low[best]))
            best = i;
    return best;
}

static int prepare(struct grid *g, struct family *f, struct descent *d, iwp_err *err) {
    const struct iwp_eval_sample *q = &d->set->at[d->at];
    const bool picture =
        g->picture[d->at] && f->request.resize_keep == 0 && f->request.resize_tokens == 0;
    IWP_TRY(make_prompt(g, f, q, picture, &d->p, err));
    if (picture) {
        IWP_TRY(iwp_eval_picture_write(d->p, q, g->j->dir, d->set->task->name, err));
        g->picture[d->at] = 0;
    }
    d->info = iwp_prompt_info(d->p);
    d->media = d->info.ms_decode_image + d->info.ms_preprocess + d->info.ms_encode;
    double *first = &f->media_ms[q->cluster];
    if (d->info.ms_encode > 0) {
        *first = d->media;
        g->j->work.encode_ms += d->media;
        g->j->work.n_encode++;
    } else if (*first > d->media) {
        d->media = *first;
    }
    return plan_marks(g, d, err);
}

/* A method the model cannot run, or a budget out of reach, shows at the first question: there a
 * failure waits for the others (see end_first). */
static bool waits(struct grid *g, int32_t config, const iwp_err *why) {
    if (!g->first) return false;
    g->refuse[config] = *why;
    return true;
}

static int run_family(struct grid *g, struct family *f, struct iwp_eval_set *set, uint8_t *done,
                      int32_t at, iwp_err *err) {
    struct descent d = {.f = f, .set = set, .done = done, .at = at};
    iwp_err why;
    int bad = prepare(g, f, &d, &why), rc = 0;
    if (!d.low && !fatal(bad)) { /* no prompt: each configuration records why */
        d.low = calloc((size_t)f->n + 1, sizeof *d.low);
        if (!d.low) bad = iwp_err_set(&why, IWP_ENOMEM, "out of memory");
    }
    if (fatal(bad)) {
        if (err) *err = why;
        rc = bad;
    }
    for (int32_t i; rc >= 0 && (i = next_config(&d)) >= 0;) {
        const int32_t k = f->config[i];
        struct iwp_eval_answer a = {.visual = d.info.n_visual, .media = d.media};
        int failed = bad < 0 ? bad : run_one(g, f, &d, i, &a, &why);
        if (fatal(failed)) {
            if (err) *err = why;
            rc = failed;
        } else if (failed >= 0 || !waits(g, k, &why)) {
            rc = iwp_eval_answer_write(&a, &set->at[at], g->j->dir, g->j->run->config[k].dir,
                                       set->task->name, failed < 0 ? &why : NULL, err);
        }
        iwp_eval_answer_free(&a);
        done[(size_t)k * (size_t)set->n + (size_t)at] = 1;
        g->computed++;
        iwp_progress_set(&g->progress, ++g->at);
    }
    free(d.low);
    iwp_engine_prompt_free(d.p);
    return rc;
}

/* ---- the grid --------------------------------------------------------------------------------------- */

static int make_dir(const char *path, iwp_err *err) {
    IWP_REQUIRE(mkdir(path, 0777) == 0 || errno == EEXIST, err, IWP_EIO,
                "%.300s: cannot make it: %s", path, strerror(errno));
    return 0;
}

/* What is there already, answers to these questions about these pictures. */
static int read_done(struct grid *g, struct iwp_eval_set *set, uint8_t **out, iwp_err *err) {
    const struct iwp_eval_run *run = g->j->run;
    char path[4096];
    uint8_t *done = calloc((size_t)run->n_config * (size_t)set->n + 1, 1);
    IWP_REQUIRE(done, err, IWP_ENOMEM, "out of memory");
    *out = done;
    for (int32_t k = 0; k < run->n_config; k++) {
        IWP_TRY(iwp_eval_lines_path(path, sizeof path, g->j->dir, run->config[k].dir, "timings",
                                    set->task->name, err));
        IWP_TRY(iwp_eval_lines_repair(path, err));
        IWP_TRY(iwp_eval_lines_path(path, sizeof path, g->j->dir, run->config[k].dir, "samples",
                                    set->task->name, err));
        IWP_TRY(iwp_eval_lines_repair(path, err));
        struct iwp_eval_records r = {0};
        int rc = iwp_eval_records_read(&r, path, NULL, err);
        for (int32_t i = 0, at = 0; i < r.n && rc >= 0; i++) {
            while (at < set->n && set->at[at].doc < r.at[i].doc) at++;
            if (at == set->n || set->at[at].doc != r.at[i].doc || !r.at[i].id ||
                strcmp(set->at[at].id, r.at[i].id))
                rc = iwp_err_set(err, IWP_EINVAL,
                                 "%s: sample %d is not of this run; give another --out", path,
                                 r.at[i].doc);
            else
                rc = iwp_digests_check(&g->media, &set->at[at], &r.at[i], path, err);
            if (rc >= 0) done[(size_t)k * (size_t)set->n + (size_t)at] = 1;
        }
        iwp_eval_records_free(&r);
        IWP_TRY(rc);
    }
    return 0;
}

static int open_engine(struct grid *g, iwp_err *err) {
    if (g->e) return 0;
    const double t0 = iwp_clock_ms();
    IWP_TRY(iwp_engine_open(&g->e, &g->j->engine, err));
    IWP_REQUIRE(iwp_engine_info(g->e).has_vision, err, IWP_EINVAL,
                "the model has no vision tower: give its mmproj file with -mm");
    IWP_TRY(iwp_session_new(&g->s, g->e, &g->j->session, err));
    g->logits = malloc((size_t)iwp_engine_info(g->e).n_vocab * sizeof *g->logits);
    IWP_REQUIRE(g->logits, err, IWP_ENOMEM, "out of memory");
    g->j->work.load_ms += iwp_clock_ms() - t0;
    return 0;
}

/* What was refused and never measured is no part of the folder's run. */
static void unlist_refused(struct grid *g) {
    struct iwp_eval_run *list = g->j->list;
    if (!list) return;
    for (int32_t k = 0; k < list->n_config; k++)
        for (int32_t i = 0; i < g->j->run->n_config; i++)
            if (g->refuse[i].code && !strcmp(list->config[k].dir, g->j->run->config[i].dir))
                list->config[k].refused = !list->config[k].stored;
    for (int32_t i = 0; i < g->j->run->n_config; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", g->j->dir, g->j->run->config[i].dir);
        if (g->refuse[i].code) rmdir(path); /* one with answers stays */
    }
    iwp_eval_run_write(list, g->j->dir, NULL); /* what is told is the refusal */
}

/* After the first question: when some configurations answered it, those that could not are refused
 * before more work is done; when none did, the question itself is bad and that is recorded. */
static int end_first(struct grid *g, const struct iwp_eval_set *set, int32_t at, iwp_err *err) {
    const struct iwp_eval_run *run = g->j->run;
    int32_t bad = -1, good = 0;
    for (int32_t i = 0; i < run->n_config; i++)
        if (g->refuse[i].code == 0)
            good++;
        else if (bad < 0)
            bad = i;
    g->first = false;
    if (bad >= 0 && good > 0 && !g->j->allow_failures) {
        unlist_refused(g);
        return iwp_err_set(err, IWP_EINVAL,
                           "%s cannot answer the first question: %.300s; leave it out or give "
                           "--allow-failures",
                           run->config[bad].dir, g->refuse[bad].msg);
    }
    for (int32_t i = 0; i < run->n_config; i++) {
        const struct iwp_eval_answer none = {0};
        if (g->refuse[i].code)
            IWP_TRY(iwp_eval_answer_write(&none, &set->at[at], g->j->dir, run->config[i].dir,
                                          set->task->name, &g->refuse[i], err));
    }
    return 0;
}

static int32_t count_clusters(const struct iwp_eval_set *set) {
    int32_t n = 0;
    for (int32_t i = 0; i < set->n; i++)
        if (set->at[i].cluster >= n) n = set->at[i].cluster + 1;
    return n;
}

/* Questions about the same picture one after another. */
static int32_t *make_order(const struct iwp_eval_set *set) {
    const int32_t clusters = count_clusters(set), most = clusters > set->n ? clusters : set->n;
    int32_t *order = malloc(((size_t)set->n + 1) * sizeof *order), n = 0;
    int32_t *next = malloc(((size_t)set->n + 1) * sizeof *next);
    int32_t *last = malloc(((size_t)most + 1) * sizeof *last);
    if (order && next && last) {
        for (int32_t i = 0; i < most; i++) last[i] = -1;
        for (int32_t i = 0; i < set->n; i++) next[i] = -1;
        for (int32_t i = 0; i < set->n; i++) { /* chains of samples with the same cluster */
            const int32_t c = set->at[i].cluster;
            if (last[c] >= 0) next[last[c]] = i;
            last[c] = i;
        }
        for (int32_t i = 0; i < set->n; i++) last[i] = 0; /* taken? */
        for (int32_t i = 0; i < set->n; i++)
            for (int32_t k = i; k >= 0 && !last[k]; k = next[k]) {
                last[k] = 1;
                order[n++] = k;
            }
    } else {
        free(order);
        order = NULL;
    }
    free(next);
    free(last);
    return order;
}

/* The first questions of the first pictures are shown in the report. */
static int choose_pictures(struct grid *g, const struct iwp_eval_set *set, iwp_err *err) {
    char path[4096];
    struct iwp_gallery there = {0};
    free(g->picture);
    g->picture = calloc((size_t)set->n + 1, 1);
    IWP_REQUIRE(g->picture, err, IWP_ENOMEM, "out of memory");
    IWP_TRY(iwp_gallery_path(path, sizeof path, g->j->dir, set->task->name, err));
    IWP_TRY(iwp_eval_lines_repair(path, err));
    int rc = iwp_gallery_read(&there, path, err);
    int32_t shown[IWP_GALLERY_MAX], n = 0;
    for (int32_t i = 0; i < set->n && n < IWP_GALLERY_MAX && rc >= 0; i++) {
        int32_t k = 0;
        while (k < n && shown[k] != set->at[i].cluster) k++;
        if (k < n) continue;
        shown[n++] = set->at[i].cluster;
        g->picture[i] = !iwp_gallery_find(&there, set->at[i].doc);
    }
    iwp_gallery_free(&there);
    return rc;
}

static int run_set(struct grid *g, struct iwp_eval_set *set, uint8_t *all, iwp_err *err) {
    IWP_TRY(choose_pictures(g, set, err));
    for (int32_t f = 0; f < g->n_family; f++) {
        free(g->family[f].media_ms);
        g->family[f].media_ms =
            calloc((size_t)count_clusters(set) + 1, sizeof *g->family[f].media_ms);
        IWP_REQUIRE(g->family[f].media_ms, err, IWP_ENOMEM, "out of memory");
    }
    int32_t *order = make_order(set);
    IWP_REQUIRE(order, err, IWP_ENOMEM, "out of memory");
    int rc = 0;
    for (int32_t i = 0; i < set->n && rc >= 0; i++) {
        for (int32_t f = 0; f < g->n_family && rc >= 0; f++) {
            bool pending = false;
            for (int32_t k = 0; k < g->family[f].n; k++) {
                const bool done =
                    all[(size_t)g->family[f].config[k] * (size_t)set->n + (size_t)order[i]];
                pending = pending || !done;
                g->at += done;
            }
            if (!pending) continue;
            rc = open_engine(g, err);
            if (rc >= 0) rc = iwp_digests_sample(&g->media, &set->at[order[i]], err);
            if (rc >= 0) rc = run_family(g, &g->family[f], set, all, order[i], err);
        }
        if (rc >= 0 && g->first) rc = end_first(g, set, order[i], err);
    }
    free(order);
    return rc;
}

int iwp_eval_run_grid(struct iwp_eval_job *j, iwp_err *err) {
    struct grid g;
    memset(&g, 0, sizeof g);
    g.j = j;
    char path[4096];
    memset(&j->work, 0, sizeof j->work);
    const double t0 = iwp_clock_ms();
    int rc = make_families(&g, err);
    g.first = true;
    g.refuse = calloc((size_t)j->run->n_config + 1, sizeof *g.refuse);
    g.done = calloc((size_t)j->data->n + 1, sizeof *g.done);
    if (rc >= 0 && !(g.refuse && g.done)) rc = iwp_err_set(err, IWP_ENOMEM, "out of memory");
    const struct iwp_sampling sampling = {.frames = j->media.frames, .fps = j->media.fps};
    if (rc >= 0) rc = iwp_digests_open(&g.media, j->dir, sampling, err);
    /* All of it before the first answer: a folder that does not fit is refused and stays as it is. */
    for (int32_t i = 0; i < j->data->n && rc >= 0; i++) {
        rc = read_done(&g, &j->data->set[i], &g.done[i], err);
        g.total += (int64_t)j->data->set[i].n * j->run->n_config;
    }
    if (rc >= 0 && j->list) rc = iwp_eval_run_write(j->list, j->dir, err);
    for (int32_t i = 0; i < j->run->n_config && rc >= 0; i++) {
        snprintf(path, sizeof path, "%s/%s", j->dir, j->run->config[i].dir);
        rc = make_dir(path, err);
    }
    iwp_progress_start(&g.progress, "eval", "answers", g.total);
    for (int32_t i = 0; i < j->data->n && rc >= 0; i++)
        rc = run_set(&g, &j->data->set[i], g.done[i], err);
    iwp_progress_end(&g.progress);
    j->work.ms = iwp_clock_ms() - t0 - j->work.load_ms;
    j->work.n_answer = g.computed;
    for (int32_t i = 0; i < g.n_family; i++) {
        free(g.family[i].config);
        free(g.family[i].media_ms);
    }
    free(g.family);
    free(g.refuse);
    free(g.picture);
    for (int32_t i = 0; g.done && i < j->data->n; i++) free(g.done[i]);
    free(g.done);
    iwp_digests_free(&g.media);
    free(g.logits);
    iwp_session_free(g.early);
    iwp_session_free(g.s);
    iwp_engine_close(g.e);
    return rc < 0 ? rc : g.computed > INT32_MAX ? INT32_MAX : (int)g.computed;
}
