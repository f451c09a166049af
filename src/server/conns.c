/* Connections whose request heads are still to come: see state.h.
 *
 * libmicrohttpd closes a connection that is silent, but not one that sends a byte now and then and never ends
 * its head.  So each has a time by which its head must be there, and one address may have only so many
 * unfinished first heads; a thread looks a few times a second and shuts the sockets down, which the
 * library then sees as the client's leaving. */
#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "server/state.h"

enum { LOOK_MS = 250, HEAD_S = 20, PER_ADDRESS = 256 };

struct iwp_conn {
    struct iwp_conn *prev, *next;
    int fd;
    uint8_t address[16];
    bool head, fresh; /* a head is awaited; the first one */
    double since;
};

static void set_address(struct iwp_conn *c, const struct sockaddr *a) {
    if (a && a->sa_family == AF_INET6)
        memcpy(c->address, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 16);
    else if (a && a->sa_family == AF_INET)
        memcpy(c->address, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
}

void iwp_conn_say_late(int fd) {
#define BODY                                                                                       \
    "{\"error\":{\"code\":408,\"message\":\"the request did not come in time\","                   \
    "\"type\":\"timeout_error\"}}"
    static_assert(sizeof BODY - 1 == 90, "Content-Length below");
    static const char text[] =
        "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
        "Content-Length: 90\r\n\r\n" BODY;
#undef BODY
    if (fd >= 0 && send(fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return; /* nobody reads: it is closed all the same */
}

/* The library finds the end of the stream and closes; until then the number stays ours. */
static void hang_up(struct iwp_conn *c) {
    if (c->fresh) iwp_conn_say_late(c->fd); /* later ones may have an answer on its way */
    shutdown(c->fd, SHUT_RDWR);
    c->head = false;
}

bool iwp_conns_fresh(struct iwp_server *s) {
    bool yes = false;
    pthread_mutex_lock(&s->lock_conns);
    for (const struct iwp_conn *c = s->conns; c && !yes; c = c->next) yes = c->head && c->fresh;
    pthread_mutex_unlock(&s->lock_conns);
    return yes;
}

/* One more first head from this address: its oldest goes when there are too many. */
static void limit_address(struct iwp_server *s, const struct iwp_conn *fresh) {
    struct iwp_conn *oldest = NULL;
    int32_t n = 0;
    for (struct iwp_conn *c = s->conns; c; c = c->next) {
        if (!c->head || !c->fresh || memcmp(c->address, fresh->address, sizeof c->address) != 0)
            continue;
        n++;
        oldest = c; /* the list begins with the newest */
    }
    if (n > PER_ADDRESS && oldest) hang_up(oldest);
}

struct iwp_conn *iwp_conn_add(struct iwp_server *s, int fd, const struct sockaddr *address) {
    struct iwp_conn *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->fd = fd;
    c->head = c->fresh = true;
    c->since = iwp_clock_ms();
    set_address(c, address);
    pthread_mutex_lock(&s->lock_conns);
    c->next = s->conns;
    if (c->next) c->next->prev = c;
    s->conns = c;
    limit_address(s, c);
    pthread_mutex_unlock(&s->lock_conns);
    return c;
}

void iwp_conn_remove(struct iwp_server *s, struct iwp_conn *c) {
    if (!c) return;
    pthread_mutex_lock(&s->lock_conns);
    if (c->next) c->next->prev = c->prev;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    pthread_mutex_unlock(&s->lock_conns);
    free(c);
}

void iwp_conn_await_head(struct iwp_server *s, struct iwp_conn *c, bool await) {
    if (!c) return;
    pthread_mutex_lock(&s->lock_conns);
    c->head = await;
    c->fresh = false;
    c->since = iwp_clock_ms();
    pthread_mutex_unlock(&s->lock_conns);
}

static void *sweep(void *server) {
    struct iwp_server *s = server;
    /* Between requests a connection may be silent for the whole of the library's own time-out. */
    const double head = 1e3 * (s->p.timeout_s < HEAD_S ? s->p.timeout_s : HEAD_S);
    const double idle = 1e3 * s->p.timeout_s;
    while (!atomic_load(&s->stop_conns)) {
        int32_t n = 0;
        const double now = iwp_clock_ms();
        pthread_mutex_lock(&s->lock_conns);
        for (struct iwp_conn *c = s->conns; c; c = c->next) {
            if (!c->head || now - c->since < head + (c->fresh ? 0 : idle)) continue;
            hang_up(c);
            n++;
        }
        pthread_mutex_unlock(&s->lock_conns);
        if (n > 0)
            iwp_log(IWP_LOG_INFO, "closed %d connection%s that did not send a request in time", n,
                    n > 1 ? "s" : "");
        iwp_server_sleep(LOOK_MS);
    }
    return NULL;
}

int iwp_conns_start(struct iwp_server *s, iwp_err *err) {
    pthread_mutex_init(&s->lock_conns, NULL);
    s->has_conns = pthread_create(&s->sweeper, NULL, sweep, s) == 0;
    IWP_REQUIRE(s->has_conns, err, IWP_EIO, "cannot start a thread");
    return 0;
}

void iwp_conns_stop(struct iwp_server *s) {
    if (!s->has_conns) return;
    atomic_store(&s->stop_conns, true);
    pthread_join(s->sweeper, NULL);
    s->has_conns = false;
    pthread_mutex_destroy(&s->lock_conns);
}
