/* HTTP on libmicrohttpd: routes, guards, bodies, answers.  Runs on the library's one thread; nothing
 * here waits or computes.
 *
 * A POST body is gathered in one buffer, then queued as a job and the connection suspended.  A refused
 * body is read to its end and thrown away, because a client that still sends would not see the answer. */
#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "server/guard.h"
#include "server/pages.h"
#include "server/state.h"

enum route {
    ROUTE_NONE,
    ROUTE_CHAT, /* those with a body first */
    ROUTE_COMPLETION,
    ROUTE_COUNT,
    ROUTE_TOKENIZE,
    ROUTE_TEMPLATE,
    ROUTE_HEALTH,
    ROUTE_MODELS,
    ROUTE_METRICS,
    ROUTE_PROPS,
    ROUTE_SLOTS,
    ROUTE_INSPECT,
    ROUTE_PAGE
};

/* One request on a connection, from its head to its last byte. */
struct exchange {
    struct iwp_server *s;
    struct iwp_job *job; /* POST: holds the body, later the answer */
    enum route route;
    const struct iwp_page *page;
    char method[8], path[64], peer[64];
    char *body;
    size_t n_body, cap_body, seen;
    int refuse; /* status of an answer that waits for the end of the body */
    const char *why;
    int status;
    double start;
};

static const struct {
    const char *path, *method;
    enum route route;
} routes[] = {
    {"/v1/chat/completions", "POST", ROUTE_CHAT},
    {"/chat/completions", "POST", ROUTE_CHAT},
    {"/v1/chat/completions/input_tokens", "POST", ROUTE_COUNT},
    {"/v1/completions", "POST", ROUTE_COMPLETION},
    {"/completions", "POST", ROUTE_COMPLETION},
    {"/tokenize", "POST", ROUTE_TOKENIZE},
    {"/apply-template", "POST", ROUTE_TEMPLATE},
    {"/slots", "GET", ROUTE_SLOTS},
    {"/health", "GET", ROUTE_HEALTH},
    {"/v1/health", "GET", ROUTE_HEALTH},
    {"/v1/models", "GET", ROUTE_MODELS},
    {"/models", "GET", ROUTE_MODELS},
    {"/metrics", "GET", ROUTE_METRICS},
    {"/props", "GET", ROUTE_PROPS},
};

static bool has_body(enum route r) { return r >= ROUTE_CHAT && r <= ROUTE_TEMPLATE; }

/* Reports are below it: /inspect/0123…; the access log leaves the id out. */
static const char inspect_path[] = "/inspect/";

static const char *header(struct MHD_Connection *c, const char *name) {
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static int socket_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return i ? i->connect_fd : -1;
}

static struct iwp_conn *conn_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

/* ---- answers ------------------------------------------------------------------------------------ */

static enum MHD_Result queue(struct exchange *x, struct MHD_Connection *c, int status,
                             struct MHD_Response *r, const char *type) {
    if (!r) return MHD_NO;
    char id[40];
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (x->job) {
        snprintf(id, sizeof id, "req-%s", x->job->id);
        MHD_add_response_header(r, "X-Request-Id", id);
    }
    if (status == 429 || status == 503) MHD_add_response_header(r, "Retry-After", "2");
    if (status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    x->status = status;
    /* 499 is for the log: nobody is there to read it. */
    const enum MHD_Result ok = MHD_queue_response(c, status == 499 ? 400u : (unsigned)status, r);
    MHD_destroy_response(r);
    return ok;
}

static const char json_type[] = "application/json; charset=utf-8";

static enum MHD_Result answer_json(struct exchange *x, struct MHD_Connection *c, int status,
                                   struct iwp_json_out *w) {
    if (w->failed || !w->text) {
        iwp_json_free(w);
        return MHD_NO;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(w->len, w->text, MHD_RESPMEM_MUST_FREE);
    if (r) w->text = NULL;
    iwp_json_free(w);
    return queue(x, c, status, r, json_type);
}

static enum MHD_Result answer_error(struct exchange *x, struct MHD_Connection *c, int status,
                                    const char *message) {
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_reply_error(&w, status, message);
    return answer_json(x, c, status, &w);
}

static enum MHD_Result answer_page(struct exchange *x, struct MHD_Connection *c) {
    struct MHD_Response *r = MHD_create_response_from_buffer(
        x->page->size, (void *)(uintptr_t)x->page->data, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    MHD_add_response_header(
        r, "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' data: blob:; media-src blob:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    return queue(x, c, 200, r, x->page->type);
}

/* The stored report, or for a browser the page that shows it. */
static enum MHD_Result answer_inspect(struct exchange *x, struct MHD_Connection *c) {
    struct iwp_server *s = x->s;
    const char *id = x->path + strlen(inspect_path), *accept = header(c, "Accept");
    char *copy = NULL;
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    const struct iwp_stored *e = iwp_stored_find(s, id);
    if (e && (copy = malloc(e->n))) {
        n = e->n;
        memcpy(copy, e->json, n);
    }
    pthread_mutex_unlock(&s->lock);
    if (!copy)
        return answer_error(x, c, 404,
                            "there is no such report: they are kept for a short time only");
    if (s->p.page && accept && strstr(accept, "text/html")) {
        char where[80];
        free(copy);
        struct MHD_Response *r = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
        if (!r) return MHD_NO;
        snprintf(where, sizeof where, "../?inspect=%s", id);
        MHD_add_response_header(r, "Location", where);
        return queue(x, c, 303, r, "text/plain");
    }
    struct MHD_Response *r = MHD_create_response_from_buffer(n, copy, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(copy);
        return MHD_NO;
    }
    MHD_add_response_header(r, "Cache-Control", "no-store");
    return queue(x, c, 200, r, json_type);
}

static enum MHD_Result answer_get(struct exchange *x, struct MHD_Connection *c) {
    struct iwp_server *s = x->s;
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    pthread_mutex_lock(&s->lock);
    const int state = s->state;
    if (x->route == ROUTE_METRICS) iwp_metrics_print(&w, &s->metrics, s->n_running, s->n_waiting);
    if (x->route == ROUTE_SLOTS && state != IWP_SERVER_LOADING) iwp_reply_slots(&w, s);
    pthread_mutex_unlock(&s->lock);
    if (x->route == ROUTE_PAGE) return answer_page(x, c);
    if (x->route == ROUTE_METRICS) {
        if (!w.text || w.failed) return MHD_NO;
        struct MHD_Response *r =
            MHD_create_response_from_buffer(w.len, w.text, MHD_RESPMEM_MUST_FREE);
        return queue(x, c, 200, r, "text/plain; version=0.0.4; charset=utf-8");
    }
    if (state == IWP_SERVER_LOADING) return answer_error(x, c, 503, "the model is being loaded");
    if (x->route == ROUTE_INSPECT) return answer_inspect(x, c);
    if (x->route == ROUTE_SLOTS) return answer_json(x, c, 200, &w);
    if (x->route == ROUTE_HEALTH) {
        if (state == IWP_SERVER_DRAINING)
            return answer_error(x, c, 503, "the server is shutting down");
        iwp_json_open_object(&w, NULL);
        iwp_json_put_string(&w, "status", "ok");
        iwp_json_close_object(&w);
    } else {
        iwp_json_put_raw(&w, NULL, x->route == ROUTE_MODELS ? s->models_json : s->props_json);
    }
    return answer_json(x, c, 200, &w);
}

/* The stream's bytes as they come; nothing there: the connection sleeps until the worker wakes it. */
static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    struct iwp_job *j = cls;
    ssize_t n = 0;
    pthread_mutex_lock(&j->server->lock);
    const size_t have = j->n_out - j->sent;
    if (have > 0) {
        n = (ssize_t)(have < max ? have : max);
        memcpy(buf, j->out + j->sent, (size_t)n);
        j->sent += (size_t)n;
    } else if (j->done || j->gone) {
        n = j->gone ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else if (!j->suspended && j->conn) {
        j->suspended = true;
        MHD_suspend_connection(j->conn);
    }
    pthread_mutex_unlock(&j->server->lock);
    return n;
}

static void free_stream(void *cls) { iwp_job_unref(cls); }

/* The job has an answer, or the beginning of one. */
static enum MHD_Result answer_job(struct exchange *x, struct MHD_Connection *c) {
    struct iwp_job *j = x->job;
    struct MHD_Response *r;
    pthread_mutex_lock(&x->s->lock);
    if (!j->ready) { /* woken for nothing, or not yet */
        if (!j->suspended) {
            j->suspended = true;
            MHD_suspend_connection(c);
        }
        pthread_mutex_unlock(&x->s->lock);
        return MHD_YES;
    }
    const int status = j->status;
    if (j->stream) {
        j->refs++;
        pthread_mutex_unlock(&x->s->lock);
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, j, free_stream);
        if (!r) {
            iwp_job_unref(j);
            return MHD_NO;
        }
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
        return queue(x, c, 200, r, "text/event-stream; charset=utf-8");
    }
    char *text = j->out;
    const size_t n = j->n_out;
    j->out = NULL;
    j->n_out = j->cap_out = 0;
    pthread_mutex_unlock(&x->s->lock);
    if (!text) return answer_error(x, c, 500, "out of memory");
    r = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
    if (!r) free(text);
    return queue(x, c, status, r, json_type);
}

/* ---- bodies ------------------------------------------------------------------------------------- */

static void refuse(struct exchange *x, int status, const char *why) {
    if (x->refuse) return;
    x->refuse = status;
    x->why = why;
    free(x->body);
    x->body = NULL;
    pthread_mutex_lock(&x->s->lock);
    x->s->body_bytes -= x->cap_body;
    if (status == 429) x->s->metrics.refused++;
    pthread_mutex_unlock(&x->s->lock);
    x->n_body = x->cap_body = 0;
}

static void add_body(struct exchange *x, const char *data, size_t n) {
    const size_t limit = (size_t)x->s->p.body_mib << 20;
    x->seen += n;
    if (x->refuse) return;
    if (x->n_body + n > limit) {
        refuse(x, 413, "the body is larger than this server takes (--body-limit)");
        return;
    }
    if (x->n_body + n + 1 > x->cap_body) {
        size_t cap = 2 * x->cap_body + n + 4096;
        if (cap > limit + 1) cap = limit + 1;
        pthread_mutex_lock(&x->s->lock);
        /* Many large bodies at once must not take all memory. */
        const bool room = x->s->body_bytes - x->cap_body + cap <= 4 * limit;
        if (room) x->s->body_bytes += cap - x->cap_body;
        pthread_mutex_unlock(&x->s->lock);
        if (!room) {
            refuse(x, 429, "too many large requests at once");
            return;
        }
        char *p = realloc(x->body, cap);
        x->cap_body = cap;
        if (!p) {
            refuse(x, 503, "out of memory");
            return;
        }
        x->body = p;
    }
    memcpy(x->body + x->n_body, data, n);
    x->n_body += n;
    x->body[x->n_body] = 0;
}

static enum MHD_Result submit(struct exchange *x, struct MHD_Connection *c) {
    struct iwp_server *s = x->s;
    struct iwp_job *j = x->job;
    pthread_mutex_lock(&s->lock);
    if (s->state != IWP_SERVER_READY || s->n_waiting >= s->p.n_queue) {
        const bool full = s->state == IWP_SERVER_READY;
        if (full) s->metrics.refused++;
        const bool loading = s->state == IWP_SERVER_LOADING;
        pthread_mutex_unlock(&s->lock);
        return full ? answer_error(x, c, 429, "the queue is full, try again later")
                    : answer_error(x, c, 503,
                                   loading ? "the model is being loaded"
                                           : "the server is shutting down");
    }
    j->conn = c;
    j->fd = socket_of(c);
    j->body = x->body;
    j->n_body = x->cap_body; /* what it counts for; the text ends earlier */
    s->body_bytes -= x->cap_body - x->n_body;
    j->n_body = x->n_body;
    x->body = NULL;
    x->n_body = x->cap_body = 0;
    j->refs++;
    iwp_queue_add(&s->incoming, j);
    s->n_waiting++;
    j->suspended = true;
    MHD_suspend_connection(c);
    pthread_cond_signal(&s->wake_prepare);
    pthread_mutex_unlock(&s->lock);
    return MHD_YES;
}

/* ---- requests ----------------------------------------------------------------------------------- */

static void find_route(struct exchange *x, const char *path, const char *method) {
    const bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    bool known = false;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(path, routes[i].path) != 0) continue;
        if (routes[i].route == ROUTE_METRICS && !x->s->p.metrics) continue;
        if (routes[i].route == ROUTE_SLOTS && !x->s->p.slots) continue;
        known = true;
        if (strcmp(method, routes[i].method) == 0 || (get && routes[i].method[0] == 'G'))
            x->route = routes[i].route;
    }
    if (x->s->p.inspect_s > 0 && strncmp(path, inspect_path, strlen(inspect_path)) == 0) {
        known = true;
        if (get) x->route = ROUTE_INSPECT;
    }
    for (const struct iwp_page *p = iwp_pages; p->path && x->s->p.page; p++) {
        if (strcmp(path, p->path) != 0) continue;
        known = true;
        if (!get) break;
        x->route = ROUTE_PAGE;
        x->page = p;
    }
    if (x->route == ROUTE_NONE)
        refuse(x, known ? 405 : 404,
               known ? "this path does not know that method" : "there is nothing at this path");
}

static void check_head(struct exchange *x, struct MHD_Connection *c) {
    struct iwp_server *s = x->s;
    const char *host = header(c, "Host"), *type = header(c, "Content-Type");
    const bool post = has_body(x->route);
    if (!iwp_guard_host(host, s->loopback, s->p.allowed_host, s->p.n_allowed_host))
        refuse(x, 403, "this Host is not served (--allowed-host)");
    if (!iwp_guard_origin(header(c, "Origin"), host))
        refuse(x, 403, "pages of other origins may not use this server");
    if (x->route != ROUTE_HEALTH && x->route != ROUTE_PAGE &&
        !iwp_guard_key(header(c, "Authorization"), header(c, "X-Api-Key"), s->p.api_key))
        refuse(x, 401, "a valid API key is needed: Authorization: Bearer …");
    if (post && type && strncasecmp(type, "application/json", 16) != 0)
        refuse(x, 415, "the body must be application/json");
    if (!post) return;
    pthread_mutex_lock(&s->lock);
    const bool full = s->state == IWP_SERVER_READY && s->n_waiting >= s->p.n_queue;
    pthread_mutex_unlock(&s->lock);
    if (full) refuse(x, 429, "the queue is full, try again later");
}

/* Who waits in the queue: the peer's address; behind a proxy on this machine, whom that names last. */
static void name_client(struct exchange *x, struct MHD_Connection *c) {
    const char *forwarded = header(c, "X-Forwarded-For"), *peer = x->peer;
    const bool local = strncmp(peer, "127.", 4) == 0 || strcmp(peer, "::1") == 0 || !peer[0];
    if (local && forwarded && forwarded[0]) {
        const char *comma = strrchr(forwarded, ',');
        peer = comma ? comma + 1 : forwarded;
        while (*peer == ' ') peer++;
    }
    snprintf(x->job->client, sizeof x->job->client, "%s", peer);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **slot,
                          enum MHD_ConnectionNotificationCode code) {
    struct iwp_server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *i =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
        *slot = iwp_conn_add(s, socket_of(c), i ? i->client_addr : NULL);
    } else {
        iwp_conn_remove(s, *slot);
        *slot = NULL;
    }
}

static enum MHD_Result open_exchange(struct iwp_server *s, struct MHD_Connection *c,
                                     const char *url, const char *method, void **slot) {
    struct exchange *x = calloc(1, sizeof *x);
    if (!x) return MHD_NO;
    *slot = x;
    x->s = s;
    x->start = iwp_clock_ms();
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", url);
    const union MHD_ConnectionInfo *ci =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (ci && ci->client_addr)
        getnameinfo(ci->client_addr,
                    ci->client_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                           : sizeof(struct sockaddr_in),
                    x->peer, sizeof x->peer, NULL, 0, NI_NUMERICHOST);
    pthread_mutex_lock(&s->lock);
    s->n_exchange++;
    pthread_mutex_unlock(&s->lock);
    find_route(x, url, method);
    check_head(x, c);
    x->job = iwp_job_new(s, x->route == ROUTE_COUNT        ? IWP_JOB_COUNT
                            : x->route == ROUTE_COMPLETION ? IWP_JOB_COMPLETION
                            : x->route == ROUTE_TOKENIZE   ? IWP_JOB_TOKENIZE
                            : x->route == ROUTE_TEMPLATE   ? IWP_JOB_TEMPLATE
                                                           : IWP_JOB_CHAT);
    if (!x->job) return MHD_NO;
    name_client(x, c);
    const char *length = header(c, "Content-Length"), *expect = header(c, "Expect");
    const unsigned long long n = length ? strtoull(length, NULL, 10) : 0;
    const unsigned long long limit = (unsigned long long)s->p.body_mib << 20;
    if (n > limit) refuse(x, 413, "the body is larger than this server takes (--body-limit)");
    /* One who asks first, or means to send without end, is told at once. */
    if (x->refuse && (expect || n > 4 * limit)) return answer_error(x, c, x->refuse, x->why);
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **slot) {
    (void)version;
    struct iwp_server *s = cls;
    struct exchange *x = *slot;
    if (!x) {
        iwp_conn_await_head(s, conn_of(c), false);
        return open_exchange(s, c, url, method, slot);
    }
    if (*n > 0) {
        add_body(x, data, *n);
        *n = 0;
        const double seconds = (iwp_clock_ms() - x->start) / 1e3;
        /* Bytes that trickle: a body has time in proportion to its size. */
        if (seconds > s->p.timeout_s + (double)x->seen / 65536) {
            x->status = 408;
            iwp_conn_say_late(socket_of(c));
            return MHD_NO;
        }
        if (x->refuse && x->seen > ((size_t)s->p.body_mib << 22)) return MHD_NO;
        return MHD_YES;
    }
    if (x->refuse) return answer_error(x, c, x->refuse, x->why);
    if (!has_body(x->route)) return answer_get(x, c);
    if (x->job->conn) return answer_job(x, c);
    return submit(x, c);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **slot,
                         enum MHD_RequestTerminationCode code) {
    struct iwp_server *s = cls;
    struct exchange *x = *slot;
    iwp_conn_await_head(s, conn_of(c), true);
    if (!x) return;
    *slot = NULL;
    const bool cut = code != MHD_REQUEST_TERMINATED_COMPLETED_OK;
    pthread_mutex_lock(&s->lock);
    if (x->job) {
        x->job->conn = NULL;
        x->job->suspended = false;
        if (!x->job->done) x->job->gone = true;
    }
    s->body_bytes -= x->cap_body;
    s->n_exchange--;
    pthread_mutex_unlock(&s->lock);
    iwp_log(x->route == ROUTE_HEALTH || x->route == ROUTE_METRICS ? IWP_LOG_DEBUG : IWP_LOG_INFO,
            "%s %s %.*s %d %.0f ms req-%s%s", x->peer[0] ? x->peer : "-", x->method,
            x->route == ROUTE_INSPECT ? (int)strlen(inspect_path) : (int)sizeof x->path, x->path,
            x->status, iwp_clock_ms() - x->start, x->job ? x->job->id : "-",
            cut ? " (cut off)" : "");
    iwp_job_unref(x->job);
    free(x->body);
    free(x);
}

/* ---- start and stop ----------------------------------------------------------------------------- */

static void log_mhd(void *cls, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void log_mhd(void *cls, const char *fmt, va_list ap) {
    (void)cls;
    char text[400];
    vsnprintf(text, sizeof text, fmt, ap);
    iwp_log(IWP_LOG_DEBUG, "http: %s", text);
}

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6);
}

static unsigned connection_limit(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return 512;
    if (r.rlim_cur < r.rlim_max && r.rlim_cur < 8192) { /* room for many waiting clients */
        r.rlim_cur = r.rlim_max < 8192 ? r.rlim_max : 8192;
        setrlimit(RLIMIT_NOFILE, &r);
        getrlimit(RLIMIT_NOFILE, &r);
    }
    const rlim_t n = r.rlim_cur > 192 ? r.rlim_cur - 64 : 128;
    return n > 4096 ? 4096 : (unsigned)n;
}

int iwp_http_start(struct iwp_server *s, iwp_err *err) {
    char port[16];
    snprintf(port, sizeof port, "%d", s->p.port);
    const struct addrinfo want = {.ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *ai = NULL;
    int rc = getaddrinfo(s->p.host, port, &want, &ai);
    IWP_REQUIRE(rc == 0, err, IWP_EINVAL, "--host %.100s: %s", s->p.host, gai_strerror(rc));
    s->loopback = is_loopback(ai->ai_addr);
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (ai->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
    rc = iwp_conns_start(s, err);
    if (rc >= 0)
        s->daemon = MHD_start_daemon(
            flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL,
            MHD_OPTION_SOCK_ADDR, ai->ai_addr, MHD_OPTION_CONNECTION_LIMIT, connection_limit(),
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->p.timeout_s,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536, MHD_OPTION_LISTEN_BACKLOG_SIZE,
            1024u, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION,
            on_connection, s, MHD_OPTION_END);
    freeaddrinfo(ai);
    IWP_TRY(rc);
    IWP_REQUIRE(s->daemon, err, IWP_EIO, "cannot listen on %.100s port %d: is it in use?",
                s->p.host, s->p.port);
    const union MHD_DaemonInfo *di = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    const int bound = di ? di->port : s->p.port;
    const bool v6 = strchr(s->p.host, ':') != NULL;
    iwp_log(IWP_LOG_INFO, "listening on http://%s%s%s:%d", v6 ? "[" : "", s->p.host, v6 ? "]" : "",
            bound);
    if (!s->loopback && !s->p.api_key)
        iwp_log(IWP_LOG_WARN, "--host %s: other machines may ask without a key, see --api-key",
                s->p.host);
    return 0;
}

/* Until answers are out (3 s at most) and connections that were taken have asked (1 s). */
static void settle(struct iwp_server *s) {
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&s->lock);
        const int32_t n = s->n_exchange;
        pthread_mutex_unlock(&s->lock);
        if (n == 0 && (i >= 100 || !iwp_conns_fresh(s))) break;
        iwp_server_sleep(10);
    }
}

/* All jobs are done; what is left is bytes on their way. */
void iwp_http_stop(struct iwp_server *s) {
    if (s->daemon) {
        settle(s);
        const MHD_socket fd =
            MHD_quiesce_daemon(s->daemon); /* later ones are refused, not hung up on */
        if (fd != MHD_INVALID_SOCKET) close(fd);
        settle(s);
        MHD_stop_daemon(s->daemon);
    }
    s->daemon = NULL;
    iwp_conns_stop(s);
}
