/* The worker: the only thread that touches the engine.
 *
 * Every round it takes waiting requests into free sessions, does one step of one prompt (the encoding of
 * pictures that were decoded elsewhere, a prefill chunk or a selection) and one token of every running answer, all in one batch.  An
 * encoding is interrupted every few milliseconds for such rounds, so that answers go on meanwhile, for
 * as much time as the picture gets.  A free session that saw the same pictures is preferred, because it
 * may know the first layers already. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "model/prompter.h"
#include "model/session.h"
#include "server/state.h"

static const double keep_alive_ms = 5000, look_ms = 100;
enum phase { FREE, ENCODE, PREFILL, DECODE };

struct slot {
    iwp_session *session;
    iwp_prompt *prompt; /* of the last begin; the session may look at it until the next */
    struct iwp_job *job;
    enum phase phase;
    uint64_t media_hash, text_hash;
    double used;
    int32_t token; /* picked, not yet fed */
};

struct worker {
    struct iwp_server *s;
    struct slot slot[IWP_SERVER_MAX_SLOT];
    int32_t n_slot, turn;
    int32_t mark; /* layer of the last cut: unpruned prompts keep their state there */
    double looked;
    struct iwp_job *encoding; /* its pictures are in the tower now; NULL: none */
    double paused_ms, round_ms,
        resumed; /* of that: time for others in all, of the last round, when */
};

static void show(struct worker *k, struct slot *t) {
    static const char *const name[] = {"idle", "encode", "prefill", "decode"};
    struct iwp_slot_view *v = &k->s->slot[t - k->slot];
    pthread_mutex_lock(&k->s->lock);
    v->phase = name[t->phase];
    memcpy(v->job, t->job ? t->job->id : "", t->job ? sizeof v->job : 1);
    v->n_prompt = t->job ? t->job->info.n_token : 0;
    v->n_decoded = t->job ? t->job->n_generated : 0;
    pthread_mutex_unlock(&k->s->lock);
}

static void set_phase(struct worker *k, struct slot *t, enum phase phase) {
    t->phase = phase;
    show(k, t);
}

/* ---- the end of a job --------------------------------------------------------------------------- */

static void release(struct worker *k, struct slot *t) {
    struct iwp_job *j = t->job;
    t->job = NULL;
    set_phase(k, t, FREE);
    t->used = iwp_clock_ms();
    pthread_mutex_lock(&k->s->lock);
    k->s->n_running--;
    pthread_mutex_unlock(&k->s->lock);
    iwp_job_unref(j);
}

static void count_failure(struct iwp_server *s, bool cancelled) {
    pthread_mutex_lock(&s->lock);
    if (cancelled)
        s->metrics.cancelled++;
    else
        s->metrics.failed++;
    pthread_mutex_unlock(&s->lock);
}

/* Nobody waits for it, or it went wrong. */
static void fail(struct worker *k, struct slot *t, const iwp_err *err) {
    struct iwp_job *j = t->job;
    const bool gone = iwp_job_check_gone(j);
    count_failure(k->s, gone);
    const bool stopping = err->code == IWP_ECANCELLED && !gone;
    iwp_job_fail(j, gone ? 499 : iwp_reply_status(err->code),
                 gone       ? "the client closed the connection"
                 : stopping ? "the server is shutting down"
                            : err->msg);
    release(k, t);
}

static void note_metrics(struct iwp_server *s, const struct iwp_job *j, const struct slot *t) {
    const struct iwp_session_stats st = iwp_session_stats(t->session);
    const double encode = j->info.ms_decode_image + j->info.ms_preprocess + j->info.ms_encode;
    const double end = iwp_clock_ms();
    pthread_mutex_lock(&s->lock);
    struct iwp_metrics *m = &s->metrics;
    m->requests++;
    m->prompt_tokens += (uint64_t)j->info.n_token;
    m->prompt_seconds += (encode + st.ms_prefill) / 1e3;
    m->predicted_tokens += (uint64_t)j->n_generated;
    m->images += (uint64_t)j->info.n_image;
    m->visual_in += (uint64_t)st.n_visual;
    m->visual_kept += (uint64_t)st.n_kept;
    if (st.kv_bytes_full > st.kv_bytes)
        m->kv_bytes_saved += (double)(st.kv_bytes_full - st.kv_bytes);
    if (j->info.n_token + j->n_generated > m->n_tokens_max)
        m->n_tokens_max = j->info.n_token + j->n_generated;
    if (j->info.ms_encode > 0) {
        m->encoded++;
        iwp_metrics_observe(m, IWP_HIST_ENCODE, encode / 1e3);
    }
    m->prompt_cached += (uint64_t)st.n_reused;
    for (int32_t i = 0; j->req.prune.on && i < IWP_METHOD_SERIES && i < iwp_method_count(); i++) {
        if (iwp_method_at(i) != j->req.prune.params.method) continue;
        m->select[i].count++;
        m->select[i].sum += st.ms_select / 1e3;
    }
    if (j->t_first > 0) {
        m->predicted_seconds += (j->t_last - j->t_first) / 1e3;
        iwp_metrics_observe(m, IWP_HIST_TTFT, (j->t_first - j->t_arrive) / 1e3);
        iwp_metrics_observe(m, IWP_HIST_DECODE, (j->t_last - j->t_first) / 1e3);
    }
    iwp_metrics_observe(m, IWP_HIST_QUEUE, (j->t_start - j->t_arrive) / 1e3);
    iwp_metrics_observe(m, IWP_HIST_PREFILL, st.ms_prefill / 1e3);
    iwp_metrics_observe(m, IWP_HIST_E2E, (end - j->t_arrive) / 1e3);
    pthread_mutex_unlock(&s->lock);
}

static void send_event(struct iwp_job *j, struct iwp_json_out *w) {
    if (!w->failed) {
        iwp_job_send(j, "data: ", 6);
        iwp_job_send(j, w->text, w->len);
        iwp_job_send(j, "\n\n", 2);
    }
    iwp_json_free(w);
}

/* Hands out what is certain of the text. */
static void send_text(struct iwp_job *j) {
    struct iwp_writer *t = &j->writer;
    if (!j->req.stream || t->certain <= t->given) return;
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_reply_delta(&w, j, t->text + t->given, t->certain - t->given, false);
    t->given = t->certain;
    send_event(j, &w);
}

/* For GET /inspect/ID. */
static void keep_report(struct iwp_server *s, const struct iwp_reply *r) {
    if (!r->job->inspect[0]) return;
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_reply_inspect(&w, r);
    if (!w.failed) {
        pthread_mutex_lock(&s->lock);
        iwp_stored_add(s, r->job->inspect, w.text, w.len);
        pthread_mutex_unlock(&s->lock);
        w.text = NULL;
    }
    iwp_json_free(&w);
}

static void finish(struct worker *k, struct slot *t, enum iwp_finish how) {
    struct iwp_job *j = t->job;
    iwp_err err = {0};
    if (iwp_writer_finish(&j->writer, &err) < 0) {
        fail(k, t, &err);
        return;
    }
    note_metrics(k->s, j, t);
    const struct iwp_reply r = {j, t->prompt, t->session, how};
    struct iwp_json_out w;
    keep_report(k->s, &r);
    iwp_json_init(&w, false);
    if (!j->req.stream) {
        iwp_reply_completion(&w, &r);
        iwp_job_answer(j, 200, &w);
    } else {
        send_text(j);
        iwp_reply_last(&w, &r);
        send_event(j, &w);
        if (j->req.include_usage) {
            iwp_json_init(&w, false);
            iwp_reply_usage(&w, &r);
            send_event(j, &w);
        }
        iwp_job_send(j, "data: [DONE]\n\n", 14);
        iwp_job_end(j);
    }
    release(k, t);
}

/* ---- tokens ------------------------------------------------------------------------------------- */

/* Logits are there: picks the next token, or ends the answer. */
static void pick(struct worker *k, struct slot *t) {
    struct iwp_job *j = t->job;
    iwp_engine *e = k->s->e;
    if (j->req.n_predict == 0) {
        finish(k, t, IWP_FINISH_LENGTH);
        return;
    }
    const float *logits = iwp_session_logits(t->session);
    const int32_t id = iwp_sampler_pick(j->sampler, logits, k->s->info.n_vocab);
    const double now = iwp_clock_ms();
    if (j->t_first > 0) {
        pthread_mutex_lock(&k->s->lock);
        iwp_metrics_observe(&k->s->metrics, IWP_HIST_TOKEN, (now - j->t_last) / 1e3);
        pthread_mutex_unlock(&k->s->lock);
    } else {
        j->t_first = now;
    }
    j->t_last = now;
    if (!j->req.ignore_eos && iwp_engine_token_is_end(e, id)) {
        finish(k, t, IWP_FINISH_STOP);
        return;
    }
    j->n_generated++;
    char piece[512];
    iwp_err err = {0};
    int n = iwp_engine_token_text(e, id, piece, sizeof piece);
    if (n < 0) n = 0;
    iwp_reply_logprob(j, e, logits, k->s->info.n_vocab, id);
    if (iwp_writer_add(&j->writer, piece, (size_t)n, &err) < 0) {
        fail(k, t, &err);
        return;
    }
    send_text(j);
    const int32_t room = t->session->sp.n_ctx - j->info.n_token;
    if (j->writer.stopped)
        finish(k, t, IWP_FINISH_STOP);
    else if (j->n_generated == j->req.n_predict || j->n_generated > room)
        finish(k, t, IWP_FINISH_LENGTH);
    else
        t->token = id;
    if (t->phase == DECODE) show(k, t);
}

static void decode_round(struct worker *k) {
    iwp_session *session[IWP_SERVER_MAX_SLOT];
    struct slot *of[IWP_SERVER_MAX_SLOT];
    int32_t token[IWP_SERVER_MAX_SLOT], n = 0;
    for (int32_t i = 0; i < k->n_slot; i++) {
        struct slot *t = &k->slot[i];
        if (t->phase != DECODE) continue;
        session[n] = t->session;
        token[n] = t->token;
        of[n++] = t;
    }
    if (n == 0) return;
    iwp_err err = {0};
    int rc = iwp_session_feed_batch(session, token, n, &err);
    pthread_mutex_lock(&k->s->lock);
    k->s->metrics.n_decode++;
    k->s->metrics.busy_slots += (uint64_t)n;
    pthread_mutex_unlock(&k->s->lock);
    for (int32_t i = 0; i < n; i++) {
        if (rc < 0)
            fail(k, of[i], &err);
        else
            pick(k, of[i]);
    }
}

/* ---- prompts ------------------------------------------------------------------------------------ */

/* One step of a prompt that is past its encoding, in turn.  False: there is none. */
static bool prefill_step(struct worker *k) {
    struct slot *t = NULL;
    for (int32_t i = 0; i < k->n_slot && !t; i++) {
        struct slot *x = &k->slot[(k->turn + i) % k->n_slot];
        if (x->phase == PREFILL) t = x;
    }
    if (!t) return false;
    k->turn = (int32_t)(t - k->slot) + 1;
    iwp_err err = {0};
    int rc = iwp_session_step(t->session, &err);
    if (rc < 0) {
        fail(k, t, &err);
    } else if (rc == 0) {
        set_phase(k, t, DECODE);
        pick(k, t);
    } else if (t->job->req.stream && iwp_clock_ms() - t->job->t_write > keep_alive_ms) {
        iwp_job_send(t->job, ":\n\n", 3);
    }
    return true;
}

static void look_for_leavers(struct worker *k);
static void begin_texts(struct worker *k, bool take_more);

/* Asked by the tower in the middle of a picture. */
static bool while_encoding(void *ctx) {
    struct worker *k = ctx;
    struct iwp_job *j = k->encoding;
    const double t0 = iwp_clock_ms();
    if (t0 - k->resumed >= k->round_ms) {
        look_for_leavers(k);
        begin_texts(k, true);
        prefill_step(k);
        decode_round(k);
        k->resumed = iwp_clock_ms();
        k->round_ms = k->resumed - t0;
        k->paused_ms += k->round_ms;
    }
    return atomic_load(&k->s->abort) || j->gone;
}

static int build_prompt(struct worker *k, struct iwp_job *j, iwp_prompt **out, iwp_err *err) {
    struct iwp_server *s = k->s;
    struct iwp_prompt_request r;
    const bool text = iwp_job_is_text(j); /* perhaps in the middle of another's picture */
    iwp_prepare_request(j, &r);
    if (!text) {
        r.cancel = while_encoding;
        r.cancel_ctx = k;
        k->encoding = j;
        k->paused_ms = 0;
        k->resumed = iwp_clock_ms();
    }
    const int rc = iwp_engine_prompt(s->e, &r, out, err);
    if (!text) k->encoding = NULL;
    iwp_engine_pictures_free(j->pictures);
    j->pictures = NULL;
    IWP_TRY(rc);
    j->info = iwp_prompt_info(*out);
    if (!text && j->info.ms_encode > k->paused_ms) j->info.ms_encode -= k->paused_ms;
    if (s->e->prompter->encoder) {
        const struct iwp_encoder_stats c = iwp_encoder_stats(s->e->prompter->encoder);
        pthread_mutex_lock(&s->lock);
        s->metrics.cache = (struct iwp_metrics_cache){c.n, c.bytes, c.hits, c.misses};
        pthread_mutex_unlock(&s->lock);
    }
    return 0;
}

/* The pictures themselves are not needed any more; the first stays for the page. */
static void drop_pictures(struct iwp_job *j) {
    enum { MAX_SHOWN = 4 << 20 };
    struct iwp_request *q = &j->req;
    for (int32_t i = 0; i < q->n_part && !j->picture; i++) {
        const struct iwp_part *p = &q->part[i];
        if (!j->inspect[0] || p->kind != IWP_PART_IMAGE || p->data != q->media[0]) continue;
        if (p->size > MAX_SHOWN) break;
        j->n_picture = p->size;
        j->picture = q->media[0];
        q->media[0] = NULL;
    }
    for (int32_t i = 0; i < q->n_part; i++) /* films' bytes and paths lie there too */
        if (q->part[i].kind == IWP_PART_VIDEO) q->part[i].file = NULL;
    for (int32_t i = 0; i < q->n_media; i++) free(q->media[i]);
    q->n_media = 0;
    pthread_mutex_lock(&j->server->lock);
    j->server->body_bytes -= j->n_body;
    j->n_body = 0;
    pthread_mutex_unlock(&j->server->lock);
}

/* Where an unpruned run keeps its state, so that a budget asked for next need not start over. */
static int set_marks(struct worker *k, struct slot *t, iwp_err *err) {
    const bool want = !t->job->req.prune.on && t->job->info.n_visual > 0 && k->mark > 0;
    return iwp_session_keep_marks(t->session, &k->mark, want, err);
}

static int begin(struct worker *k, struct slot *t, iwp_err *err) {
    struct iwp_job *j = t->job;
    const struct iwp_request *q = &j->req;
    iwp_prompt *p = NULL;
    IWP_TRY(build_prompt(k, j, &p, err));
    if (k->s->p.inspect_s > 0 && (q->prune.on || q->prune.report == IWP_REPORT_TOKENS))
        iwp_job_random_id(j->inspect, 16);
    drop_pictures(j);
    t->session->sp.positions = q->prune.positions;
    int rc = set_marks(k, t, err);
    if (rc >= 0) rc = iwp_session_begin(t->session, p, q->prune.on ? &q->prune.params : NULL, err);
    iwp_engine_prompt_free(t->prompt);
    t->prompt = NULL;
    if (rc < 0) {
        iwp_engine_prompt_free(p);
        return rc;
    }
    t->prompt = p;
    t->media_hash = q->media_hash;
    t->text_hash = q->text_hash;
    const int32_t low = iwp_session_low(t->session);
    if (low > 0 && low < k->s->info.n_layer) k->mark = low;
    j->t_begin = iwp_clock_ms();
    IWP_TRY(iwp_sampler_new(&j->sampler, &q->sampler, err));
    j->writer.stop = q->stop;
    if (q->stream) {
        struct iwp_json_out w;
        iwp_job_start_stream(j);
        iwp_json_init(&w, false);
        iwp_reply_delta(&w, j, "", 0, true);
        send_event(j, &w);
    }
    set_phase(k, t, PREFILL);
    return 0;
}

static void begin_or_fail(struct worker *k, struct slot *t) {
    iwp_err err = {0};
    if (begin(k, t, &err) < 0) fail(k, t, &err);
}

/* One step of one prompt: a step of the layers, or a whole encoding, during which the others go on.  A short prompt
 * does not wait for a long one. */
static void prompt_step(struct worker *k) {
    struct slot *t = NULL;
    begin_texts(k, false);
    for (int32_t i = 0; i < k->n_slot; i++) {
        struct slot *x = &k->slot[i];
        if (x->phase == ENCODE && (!t || x->job->t_start < t->job->t_start)) t = x;
    }
    if (t)
        begin_or_fail(k, t);
    else
        prefill_step(k);
}

/* ---- taking requests ---------------------------------------------------------------------------- */

static int count_tokens(struct worker *k, struct iwp_job *j, struct iwp_json_out *w, iwp_err *err) {
    iwp_prompt *p = NULL;
    IWP_TRY(build_prompt(k, j, &p, err));
    iwp_engine_prompt_free(p);
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "object", "response.input_tokens");
    iwp_json_put_int(w, "input_tokens", j->info.n_token);
    iwp_json_put_int(w, "visual_tokens", j->info.n_visual);
    iwp_json_close_object(w);
    return 0;
}

/* The same conversation about the same pictures, or the same pictures, or the one idle longest. */
static struct slot *free_slot(struct worker *k, const struct iwp_request *q) {
    struct slot *best = NULL;
    int best_rank = -1;
    for (int32_t i = 0; i < k->n_slot; i++) {
        struct slot *t = &k->slot[i];
        if (t->phase != FREE) continue;
        const bool media = t->prompt && t->media_hash == q->media_hash;
        const bool text = media && t->text_hash == q->text_hash;
        const int rank = text ? 2 : media && q->media_bytes > 0 ? 1 : 0;
        if (rank < best_rank || (rank == best_rank && t->used >= best->used)) continue;
        best = t;
        best_rank = rank;
    }
    return best;
}

/* Gives a request a session, or answers it. */
static void take(struct worker *k, struct iwp_job *j) {
    struct iwp_server *s = k->s;
    iwp_err err = {0};
    int rc = 0;
    j->t_start = iwp_clock_ms();
    const bool gone = iwp_job_check_gone(j);
    if (gone || atomic_load(&s->abort))
        rc = iwp_err_set(&err, IWP_ECANCELLED, "the server is shutting down");
    if (rc >= 0 && j->kind != IWP_JOB_COUNT) {
        struct slot *t = free_slot(k, &j->req);
        t->job = j;
        set_phase(k, t, ENCODE);
        return;
    }
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    if (rc >= 0) rc = count_tokens(k, j, &w, &err);
    if (rc >= 0) {
        iwp_job_answer(j, 200, &w);
    } else {
        iwp_json_free(&w);
        count_failure(s, gone);
        iwp_job_fail(j, gone ? 499 : iwp_reply_status(err.code), err.msg);
    }
    pthread_mutex_lock(&s->lock);
    s->n_running--;
    pthread_mutex_unlock(&s->lock);
    iwp_job_unref(j);
}

/* The next request for a free session; waits when there is nothing at all to do.  NULL: none now.  `text`: one that has
 * no pictures, without waiting. */
static struct iwp_job *next_job(struct worker *k, bool text, bool *end) {
    struct iwp_server *s = k->s;
    const char *busy[IWP_SERVER_MAX_SLOT];
    int32_t n = 0;
    for (int32_t i = 0; i < k->n_slot; i++)
        if (k->slot[i].phase != FREE) busy[n++] = k->slot[i].job->client;
    if (n == k->n_slot) return NULL;
    pthread_mutex_lock(&s->lock);
    while (!text && !s->ready.head && n == 0 && !(s->stop && s->n_waiting == 0))
        pthread_cond_wait(&s->wake, &s->lock);
    struct iwp_job *j = iwp_queue_take_fair(s, busy, n, text);
    if (j) {
        s->n_waiting--;
        s->n_running++;
    }
    *end = !j && n == 0;
    pthread_mutex_unlock(&s->lock);
    return j;
}

/* Prompts without pictures need no encoding: that of another's can be in the middle. */
static void begin_texts(struct worker *k, bool take_more) {
    struct iwp_job *j;
    bool end;
    while (take_more && (j = next_job(k, true, &end))) take(k, j);
    for (int32_t i = 0; i < k->n_slot; i++) {
        struct slot *t = &k->slot[i];
        if (t->phase == ENCODE && iwp_job_is_text(t->job)) begin_or_fail(k, t);
    }
}

/* Takes out of the queue those whose client left: they would only make others wait. */
static void look_at_queue(struct iwp_server *s) {
    pthread_mutex_lock(&s->lock);
    struct iwp_job *left = iwp_queue_take_gone(&s->ready);
    for (const struct iwp_job *j = left; j; j = j->next) {
        s->n_waiting--;
        s->metrics.cancelled++;
    }
    pthread_mutex_unlock(&s->lock);
    while (left) {
        struct iwp_job *j = left;
        left = j->next;
        iwp_job_fail(j, 499, "the client closed the connection");
        iwp_job_unref(j);
    }
}

static void look_for_leavers(struct worker *k) {
    const double now = iwp_clock_ms();
    if (now - k->looked < look_ms) return;
    k->looked = now;
    if (k->encoding) iwp_job_check_gone(k->encoding); /* while_encoding ends it */
    iwp_err err = {.code = IWP_ECANCELLED, .msg = "the server is shutting down"};
    for (int32_t i = 0; i < k->n_slot; i++) {
        struct slot *t = &k->slot[i];
        if (t->phase == FREE || t->job == k->encoding) continue;
        if (iwp_job_check_gone(t->job) || atomic_load(&k->s->abort)) fail(k, t, &err);
    }
    look_at_queue(k->s);
}

void *iwp_worker_main(void *server) {
    struct worker *k = calloc(1, sizeof *k);
    struct iwp_server *s = server;
    if (!k) return NULL;
    k->s = s;
    k->n_slot = s->p.n_parallel;
    const struct iwp_request_prune *d = &s->p.def.prune;
    const struct iwp_method *m = d->on ? d->params.method : iwp_method_find("iwp");
    k->mark = d->on && d->params.layer >= 0 ? d->params.layer : m ? iwp_method_info(m)->layer : -1;
    if (k->mark >= s->info.n_layer) k->mark = -1;
    for (int32_t i = 0; i < k->n_slot; i++) k->slot[i].session = s->session[i];
    for (bool end = false; !end;) {
        struct iwp_job *j;
        while (!end && (j = next_job(k, false, &end))) take(k, j);
        look_for_leavers(k);
        prompt_step(k);
        decode_round(k);
    }
    for (int32_t i = 0; i < k->n_slot; i++) iwp_engine_prompt_free(k->slot[i].prompt);
    free(k);
    return NULL;
}
