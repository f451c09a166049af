/* Jobs: what the HTTP thread and the worker hand to each other.  See state.h. */
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "server/state.h"

/* A reader that leaves this much unread has stopped reading. */
enum { MAX_UNREAD = 8 << 20 };

bool iwp_job_random_id(char *out, size_t n) {
    uint8_t r[32];
    out[0] = 0;
    if (n > sizeof r || getrandom(r, n, 0) != (ssize_t)n) return false;
    for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", r[i]);
    return true;
}

struct iwp_job *iwp_job_new(struct iwp_server *s, enum iwp_job_kind kind) {
    struct iwp_job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    if (!iwp_job_random_id(j->id, 10)) snprintf(j->id, sizeof j->id, "%p", (void *)j);
    j->server = s;
    j->kind = kind;
    j->refs = 1;
    j->fd = -1;
    j->created = time(NULL);
    j->t_arrive = iwp_clock_ms();
    return j;
}

void iwp_job_unref(struct iwp_job *j) {
    if (!j) return;
    struct iwp_server *s = j->server;
    pthread_mutex_lock(&s->lock);
    const bool last = --j->refs == 0;
    if (last) s->body_bytes -= j->n_body;
    pthread_mutex_unlock(&s->lock);
    if (!last) return;
    iwp_engine_pictures_free(j->pictures);
    iwp_request_free(&j->req);
    iwp_sampler_free(j->sampler);
    iwp_writer_free(&j->writer);
    iwp_json_free(&j->logprobs);
    free(j->body);
    free(j->picture);
    free(j->out);
    free(j);
}

/* Ends the server's lock and resumes the job's connection when it waits.  In this order: the thread that
 * wakes would else take this one's core and wait for the lock, and with it every other connection, until
 * this one, which others may be ahead of, runs again.  A suspended connection stays until it is resumed. */
static void unlock_and_wake(struct iwp_job *j) {
    struct MHD_Connection *waiting = j->suspended ? j->conn : NULL;
    j->suspended = false;
    pthread_mutex_unlock(&j->server->lock);
    if (waiting) MHD_resume_connection(waiting);
}

/* While a connection is suspended nobody reads it, so a client that left is found by looking.  One
 * that only closed its sending side counts as gone too, as with other servers. */
bool iwp_job_peer_closed(const struct iwp_job *j) {
    if (!j->conn || !j->suspended || j->fd < 0) return false;
    char c;
    const ssize_t n = recv(j->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool iwp_job_check_gone(struct iwp_job *j) {
    pthread_mutex_lock(&j->server->lock);
    if (!j->gone && (!j->conn || iwp_job_peer_closed(j))) j->gone = true;
    const bool gone = j->gone;
    pthread_mutex_unlock(&j->server->lock);
    return gone;
}

bool iwp_job_append(struct iwp_job *j, const char *text, size_t n) {
    if (j->sent > 0 && j->sent == j->n_out) j->sent = j->n_out = 0;
    if (j->n_out - j->sent + n > MAX_UNREAD && j->stream) {
        j->gone = true;
        return false;
    }
    if (j->n_out + n > j->cap_out) {
        const size_t cap = 2 * j->cap_out + n + 1024;
        char *p = realloc(j->out, cap);
        if (!p) return false;
        j->out = p;
        j->cap_out = cap;
    }
    memcpy(j->out + j->n_out, text, n);
    j->n_out += n;
    return true;
}

void iwp_job_answer(struct iwp_job *j, int status, struct iwp_json_out *w) {
    pthread_mutex_lock(&j->server->lock);
    j->status = status;
    if (w->failed || !w->text) {
        j->status = 500; /* without memory even for the message */
    } else {
        free(j->out);
        j->out = w->text;
        j->n_out = j->cap_out = w->len;
        w->text = NULL;
    }
    j->ready = j->done = true;
    unlock_and_wake(j);
    iwp_json_free(w);
}

void iwp_job_fail(struct iwp_job *j, int status, const char *message) {
    struct iwp_json_out w;
    char text[800];
    if (status == 400) message = iwp_request_fields(message, j->req.prune.asked, text, sizeof text);
    iwp_json_init(&w, false);
    iwp_reply_error(&w, status, message);
    if (!j->stream) {
        iwp_job_answer(j, status, &w);
        return;
    }
    /* The head is out already: the error is an event, and there is no [DONE] after it. */
    if (!w.failed) {
        iwp_job_send(j, "data: ", 6);
        iwp_job_send(j, w.text, w.len);
        iwp_job_send(j, "\n\n", 2);
    }
    iwp_json_free(&w);
    iwp_job_end(j);
}

bool iwp_job_start_stream(struct iwp_job *j) {
    pthread_mutex_lock(&j->server->lock);
    j->stream = j->ready = true;
    j->status = 200;
    unlock_and_wake(j);
    j->t_write = iwp_clock_ms();
    return true;
}

bool iwp_job_send(struct iwp_job *j, const char *text, size_t n) {
    pthread_mutex_lock(&j->server->lock);
    const bool ok = !j->gone && iwp_job_append(j, text, n);
    unlock_and_wake(j);
    j->t_write = iwp_clock_ms();
    return ok;
}

void iwp_job_end(struct iwp_job *j) {
    pthread_mutex_lock(&j->server->lock);
    j->ready = j->done = true;
    unlock_and_wake(j);
}
