/* The worker: the only thread that touches the engine.
 *
 * Every round it takes waiting requests into free sessions, does one step of one prompt (a picture's
 * encoding, a prefill chunk or a selection) and one token of every running answer, so that answers go
 * on while another prompt is read.  First come, first served; a free session that saw the same pictures
 * is preferred, because it may know the first layers already. */
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
    uint64_t media_hash;
    double used;
    int32_t token; /* picked, not yet fed */
};

struct worker {
    struct iwp_server *s;
    struct slot slot[IWP_SERVER_MAX_SLOT];
    int32_t n_slot, turn;
    double looked;
};

/* ---- the end of a job --------------------------------------------------------------------------- */

static void release(struct worker *k, struct slot *t) {
    struct iwp_job *j = t->job;
    t->job = NULL;
    t->phase = FREE;
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
    if (j->req.prune.on) iwp_metrics_observe(m, IWP_HIST_SELECT, st.ms_select / 1e3);
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

static bool cancel_encode(void *ctx) {
    struct iwp_job *j = ctx;
    return atomic_load(&j->server->abort) || iwp_job_check_gone(j);
}

static int build_prompt(struct iwp_server *s, struct iwp_job *j, iwp_prompt **out, iwp_err *err) {
    const struct iwp_request *q = &j->req;
    struct iwp_prompt_request r;
    memset(&r, 0, sizeof r);
    r.message = q->message;
    r.n_message = q->n_message;
    iwp_prompt_request_for(&r, q->prune.on ? &q->prune.params : NULL);
    r.image_min_tokens = q->min_tokens > 0 ? q->min_tokens : s->p.min_tokens;
    r.image_max_tokens = q->max_tokens > 0 ? q->max_tokens : s->p.max_tokens;
    r.image_tiles = s->p.tiles;
    r.cancel = cancel_encode;
    r.cancel_ctx = j;
    IWP_TRY(iwp_engine_prompt(s->e, &r, out, err));
    j->info = iwp_prompt_info(*out);
    for (int32_t i = 0; i < j->req.n_media; i++) free(j->req.media[i]);
    j->req.n_media = 0; /* the pictures themselves are not needed any more */
    return 0;
}

static int begin(struct worker *k, struct slot *t, iwp_err *err) {
    struct iwp_job *j = t->job;
    const struct iwp_request *q = &j->req;
    iwp_prompt *p = NULL;
    IWP_TRY(build_prompt(k->s, j, &p, err));
    t->session->sp.positions = q->prune.positions;
    int rc = iwp_session_begin(t->session, p, q->prune.on ? &q->prune.params : NULL, err);
    iwp_engine_prompt_free(t->prompt);
    t->prompt = NULL;
    if (rc < 0) {
        iwp_engine_prompt_free(p);
        return rc;
    }
    t->prompt = p;
    t->media_hash = q->media_hash;
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
    t->phase = PREFILL;
    return 0;
}

/* One step of the prompt whose turn it is. */
static void prompt_step(struct worker *k) {
    struct slot *t = NULL;
    for (int32_t i = 0; i < k->n_slot && !t; i++) {
        struct slot *x = &k->slot[(k->turn + i) % k->n_slot];
        if (x->phase == ENCODE || x->phase == PREFILL) t = x;
    }
    if (!t) return;
    k->turn = (int32_t)(t - k->slot) + 1;
    iwp_err err = {0};
    if (t->phase == ENCODE) {
        if (begin(k, t, &err) < 0) fail(k, t, &err);
        return;
    }
    int rc = iwp_session_step(t->session, &err);
    if (rc < 0) {
        fail(k, t, &err);
    } else if (rc == 0) {
        t->phase = DECODE;
        pick(k, t);
    } else if (t->job->req.stream && iwp_clock_ms() - t->job->t_write > keep_alive_ms) {
        iwp_job_send(t->job, ":\n\n", 3);
    }
}

/* ---- requests that need no session -------------------------------------------------------------- */

static int tokenize(struct iwp_server *s, const char *body, size_t n, struct iwp_json_out *w,
                    iwp_err *err) {
    cJSON *doc = NULL;
    struct iwp_ids ids = {0};
    char *text = NULL;
    size_t n_text = 0;
    int rc = iwp_json_parse(body, n, (struct iwp_json_limits){0}, &doc, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "the body is no JSON");
    const cJSON *c = cJSON_GetObjectItemCaseSensitive(doc, "content");
    const bool begin_token = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(doc, "add_special"));
    const bool special = !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(doc, "parse_special"));
    const bool pieces = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(doc, "with_pieces"));
    const iwp_vocab *v = s->e->prompter->vocab;
    if (!cJSON_IsString(c)) IWP_FAIL(err, IWP_EINVAL, "'content' must be a string");
    IWP_TRY_GOTO(
        iwp_vocab_normalise(v, c->valuestring, strlen(c->valuestring), &text, &n_text, err));
    if (begin_token && iwp_vocab_begin(v) >= 0)
        IWP_TRY_GOTO(iwp_ids_add(&ids, iwp_vocab_begin(v), err));
    IWP_TRY_GOTO(iwp_vocab_tokenise(v, text, n_text, special, true, &ids, err));
    iwp_json_open_object(w, NULL);
    iwp_json_open_array(w, "tokens");
    for (int32_t i = 0; i < ids.n; i++) {
        if (!pieces) {
            iwp_json_put_int(w, NULL, ids.id[i]);
            continue;
        }
        char piece[512];
        int m = iwp_vocab_piece(v, ids.id[i], true, piece, sizeof piece);
        if (m < 0) m = 0;
        iwp_json_open_object(w, NULL);
        iwp_json_put_int(w, "id", ids.id[i]);
        if (iwp_utf8_valid(piece, (size_t)m)) {
            iwp_json_put_bytes(w, "piece", piece, (size_t)m);
        } else {
            iwp_json_open_array(w, "piece");
            for (int b = 0; b < m; b++) iwp_json_put_int(w, NULL, (unsigned char)piece[b]);
            iwp_json_close_array(w);
        }
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    iwp_json_close_object(w);
fail:
    free(text);
    iwp_ids_free(&ids);
    cJSON_Delete(doc);
    return rc < 0 ? rc : 0;
}

static int count_tokens(struct iwp_server *s, struct iwp_job *j, struct iwp_json_out *w,
                        iwp_err *err) {
    iwp_prompt *p = NULL;
    IWP_TRY(build_prompt(s, j, &p, err));
    iwp_engine_prompt_free(p);
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "object", "response.input_tokens");
    iwp_json_put_int(w, "input_tokens", j->info.n_token);
    iwp_json_put_int(w, "visual_tokens", j->info.n_visual);
    iwp_json_close_object(w);
    return 0;
}

/* ---- taking requests ---------------------------------------------------------------------------- */

static struct slot *free_slot(struct worker *k, uint64_t media_hash) {
    struct slot *best = NULL;
    for (int32_t i = 0; i < k->n_slot; i++) {
        struct slot *t = &k->slot[i];
        if (t->phase != FREE) continue;
        if (t->prompt && t->media_hash == media_hash) return t;
        if (!best || t->used < best->used) best = t;
    }
    return best;
}

static void drop_body(struct iwp_job *j) {
    free(j->body);
    j->body = NULL;
    pthread_mutex_lock(&j->server->lock);
    j->server->body_bytes -= j->n_body;
    j->n_body = 0;
    pthread_mutex_unlock(&j->server->lock);
}

/* Parses a request and gives it a session, or answers it. */
static void take(struct worker *k, struct iwp_job *j) {
    struct iwp_server *s = k->s;
    iwp_err err = {0};
    int rc = 0;
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    j->t_start = iwp_clock_ms();
    const bool gone = iwp_job_check_gone(j);
    if (gone || atomic_load(&s->abort))
        rc = iwp_err_set(&err, IWP_ECANCELLED, "the server is shutting down");
    else if (j->kind == IWP_JOB_TOKENIZE)
        rc = tokenize(s, j->body, j->n_body, &w, &err);
    else
        rc = iwp_request_parse(&j->req, j->body, j->n_body, &s->p.def, &err);
    drop_body(j);
    if (rc >= 0 && j->kind == IWP_JOB_COUNT) rc = count_tokens(s, j, &w, &err);
    if (rc >= 0 && j->kind == IWP_JOB_CHAT) {
        iwp_json_free(&w);
        struct slot *t = free_slot(k, j->req.media_hash);
        t->job = j;
        t->phase = ENCODE;
        return;
    }
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

/* The next request for a free session; waits when there is nothing at all to do.  NULL: none now. */
static struct iwp_job *next_job(struct worker *k, bool *end) {
    struct iwp_server *s = k->s;
    int32_t busy = 0;
    for (int32_t i = 0; i < k->n_slot; i++) busy += k->slot[i].phase != FREE;
    if (busy == k->n_slot) return NULL;
    pthread_mutex_lock(&s->lock);
    while (!s->head && busy == 0 && !s->stop) pthread_cond_wait(&s->wake, &s->lock);
    struct iwp_job *j = s->head;
    if (j) {
        s->head = j->next;
        if (!s->head) s->tail = NULL;
        s->n_waiting--;
        s->n_running++;
    }
    *end = !j && busy == 0 && s->stop;
    pthread_mutex_unlock(&s->lock);
    return j;
}

/* Takes out of the queue those whose client left: they would only make others wait. */
static void look_at_queue(struct iwp_server *s) {
    struct iwp_job *left = NULL;
    pthread_mutex_lock(&s->lock);
    struct iwp_job **at = &s->head, *last = NULL;
    while (*at) {
        struct iwp_job *j = *at;
        if (!j->gone && (!j->conn || iwp_job_peer_closed(j))) j->gone = true;
        if (!j->gone) {
            last = j;
            at = &j->next;
            continue;
        }
        *at = j->next;
        j->next = left;
        left = j;
        s->n_waiting--;
        s->metrics.cancelled++;
    }
    s->tail = last;
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
    iwp_err err = {.code = IWP_ECANCELLED, .msg = "the server is shutting down"};
    for (int32_t i = 0; i < k->n_slot; i++) {
        struct slot *t = &k->slot[i];
        if (t->phase != FREE && (iwp_job_check_gone(t->job) || atomic_load(&k->s->abort)))
            fail(k, t, &err);
    }
    look_at_queue(k->s);
}

void *iwp_worker_main(void *server) {
    struct worker *k = calloc(1, sizeof *k);
    struct iwp_server *s = server;
    if (!k) return NULL;
    k->s = s;
    k->n_slot = s->p.n_parallel;
    for (int32_t i = 0; i < k->n_slot; i++) k->slot[i].session = s->session[i];
    for (bool end = false; !end;) {
        struct iwp_job *j;
        while (!end && (j = next_job(k, &end))) take(k, j);
        look_for_leavers(k);
        prompt_step(k);
        decode_round(k);
    }
    for (int32_t i = 0; i < k->n_slot; i++) iwp_engine_prompt_free(k->slot[i].prompt);
    free(k);
    return NULL;
}
