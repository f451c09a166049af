/* From a body to a request that can have a session: JSON, base64, files, the web, pictures as pixels.  On
 * threads of its own, because a large body or picture, a slow web server or a long text must not hold up
 * running answers.  Requests
 * that need the vocabulary alone are answered here. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "model/prompter.h"
#include "model/session.h"
#include "server/state.h"

/* ---- requests that need no session -------------------------------------------------------------- */

static void put_piece(struct iwp_json_out *w, const iwp_vocab *v, int32_t id) {
    char piece[512];
    int m = iwp_vocab_piece(v, id, true, piece, sizeof piece);
    if (m < 0) m = 0;
    iwp_json_open_object(w, NULL);
    iwp_json_put_int(w, "id", id);
    if (iwp_utf8_valid(piece, (size_t)m)) {
        iwp_json_put_bytes(w, "piece", piece, (size_t)m);
    } else {
        iwp_json_open_array(w, "piece");
        for (int b = 0; b < m; b++) iwp_json_put_int(w, NULL, (unsigned char)piece[b]);
        iwp_json_close_array(w);
    }
    iwp_json_close_object(w);
}

static int tokenize(struct iwp_server *s, const char *body, size_t n, struct iwp_json_out *w,
                    iwp_err *err) {
    cJSON *doc = NULL;
    struct iwp_ids ids = {0};
    char *text = NULL;
    size_t n_text = 0;
    int rc = iwp_json_parse(body, n, (struct iwp_json_limits){0}, &doc, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "the body");
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
        if (pieces)
            put_piece(w, v, ids.id[i]);
        else
            iwp_json_put_int(w, NULL, ids.id[i]);
    }
    iwp_json_close_array(w);
    iwp_json_close_object(w);
fail:
    free(text);
    iwp_ids_free(&ids);
    cJSON_Delete(doc);
    return rc < 0 ? rc : 0;
}

/* The prompt as text; pictures as <image>. */
static int apply_template(struct iwp_server *s, const struct iwp_job *j, struct iwp_json_out *w,
                          iwp_err *err) {
    const iwp_prompter *m = s->e->prompter;
    struct iwp_pieces l = {0};
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    IWP_REQUIRE(m->chat, err, IWP_ENOTSUP, "the chat template of this model is not known");
    IWP_TRY_GOTO(iwp_chat_render(m->chat, j->req.message, j->req.n_message, true, &l, err));
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (int32_t i = 0; i < l.n; i++) {
            const struct iwp_piece *p = &l.piece[i];
            const bool media = p->kind == IWP_PIECE_MEDIA;
            const char *from = media ? "<image>" : p->text;
            const size_t len = media ? 7 : p->n;
            if (pass) memcpy(text + at, from, len);
            at += len;
        }
        n = at;
        if (pass == 0 && !(text = malloc(n + 1))) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    }
    iwp_json_open_object(w, NULL);
    iwp_json_put_bytes(w, "prompt", text, n);
    iwp_json_close_object(w);
fail:
    free(text);
    iwp_pieces_free(&l);
    return rc;
}

/* ---- preparing ---------------------------------------------------------------------------------- */

static bool fetch_cancelled(void *ctx) {
    struct iwp_job *j = ctx;
    return atomic_load(&j->server->abort) || iwp_job_check_gone(j);
}

static int parse(struct iwp_job *j, struct iwp_json_out *w, iwp_err *err) {
    struct iwp_server *s = j->server;
    struct iwp_request_defaults def = s->p.def;
    struct iwp_fetch fetch = s->fetch;
    fetch.cancel = fetch_cancelled;
    fetch.cancel_ctx = j;
    if (def.fetch) def.fetch = &fetch;
    switch (j->kind) {
    case IWP_JOB_CHAT:
    case IWP_JOB_COUNT: return iwp_request_parse(&j->req, j->body, j->n_body, &def, err);
    case IWP_JOB_COMPLETION:
        return iwp_request_parse_completion(&j->req, j->body, j->n_body, &def, err);
    case IWP_JOB_TOKENIZE: return tokenize(s, j->body, j->n_body, w, err);
    case IWP_JOB_TEMPLATE:
        IWP_TRY(iwp_request_parse_template(&j->req, j->body, j->n_body, &def, err));
        return apply_template(s, j, w, err);
    }
    return 0;
}

/* The body is done with; the pictures count instead. */
static void swap_body(struct iwp_job *j) {
    free(j->body);
    j->body = NULL;
    pthread_mutex_lock(&j->server->lock);
    j->server->body_bytes += j->req.media_bytes - j->n_body;
    j->n_body = j->req.media_bytes;
    pthread_mutex_unlock(&j->server->lock);
}

void iwp_prepare_request(const struct iwp_job *j, struct iwp_prompt_request *r) {
    const struct iwp_server_params *p = &j->server->p;
    const struct iwp_request *q = &j->req;
    memset(r, 0, sizeof *r);
    r->message = q->message;
    r->n_message = q->n_message;
    r->raw = q->raw;
    iwp_prompt_request_for(r, q->prune.on ? &q->prune.params : NULL);
    r->image_min_tokens = q->min_tokens > 0 ? q->min_tokens : p->min_tokens;
    r->image_max_tokens = q->max_tokens > 0 ? q->max_tokens : p->max_tokens;
    r->frames = q->frames;
    r->fps = q->fps;
    r->image_tiles = p->tiles;
    r->max_pixels = p->max_pixels;
    r->n_ctx = p->session.n_ctx > 0 ? p->session.n_ctx : j->server->info.n_ctx_train;
    r->pictures = j->pictures;
}

/* With much waiting already the worker does it in its turn, and memory stays bounded. */
static int decode_pictures(struct iwp_job *j, iwp_err *err) {
    struct iwp_server *s = j->server;
    pthread_mutex_lock(&s->lock);
    const bool room = s->body_bytes < (size_t)s->p.body_mib << 21;
    pthread_mutex_unlock(&s->lock);
    if (!room) return 0;
    struct iwp_prompt_request r;
    iwp_prepare_request(j, &r);
    IWP_TRY(iwp_engine_prepare(s->e, &r, &j->pictures, err));
    const size_t n = iwp_engine_pictures_bytes(j->pictures);
    pthread_mutex_lock(&s->lock);
    s->body_bytes += n;
    j->n_body += n;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static void prepare(struct iwp_server *s, struct iwp_job *j) {
    iwp_err err = {0};
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    int rc;
    if (atomic_load(&s->abort))
        rc = iwp_err_set(&err, IWP_ECANCELLED, "the server is shutting down");
    else
        rc = parse(j, &w, &err);
    swap_body(j);
    const bool whole = j->kind == IWP_JOB_TOKENIZE || j->kind == IWP_JOB_TEMPLATE;
    if (rc >= 0 && !whole) rc = decode_pictures(j, &err);
    const bool gone = rc < 0 && iwp_job_check_gone(j), over = rc < 0 || whole;
    /* Its place in the queue is free before its client can know: the next request may come at once. */
    pthread_mutex_lock(&s->lock);
    if (over) {
        s->n_waiting--;
        s->metrics.failed += rc < 0 && !gone;
        s->metrics.cancelled += gone;
    } else {
        iwp_queue_add(&s->ready, j);
    }
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (rc >= 0 && whole)
        iwp_job_answer(j, 200, &w);
    else
        iwp_json_free(&w);
    if (rc < 0) iwp_job_fail(j, gone ? 499 : iwp_reply_status(err.code), err.msg);
    if (over) iwp_job_unref(j); /* else it is the queue's */
}

void *iwp_prepare_main(void *server) {
    struct iwp_server *s = server;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->incoming.head && !s->stop) pthread_cond_wait(&s->wake_prepare, &s->lock);
        struct iwp_job *j = iwp_queue_take(&s->incoming);
        pthread_mutex_unlock(&s->lock);
        if (!j) return NULL;
        prepare(s, j);
    }
}
