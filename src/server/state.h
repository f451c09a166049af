/* What the files of the server share: one lock over the queues and over the part of a job that several
 * threads touch.  Everything else of a job is the HTTP thread's until it is queued, then a preparing
 * thread's, then the worker's. */
#ifndef IWP_SERVER_STATE_H
#define IWP_SERVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/json.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/writer.h"

struct MHD_Connection;
struct MHD_Daemon;
struct sockaddr;
struct iwp_conn;

enum iwp_job_kind {
    IWP_JOB_CHAT,
    IWP_JOB_COMPLETION,
    IWP_JOB_COUNT,
    IWP_JOB_TOKENIZE,
    IWP_JOB_TEMPLATE
};

struct iwp_job {
    enum iwp_job_kind kind;
    struct iwp_server *server;
    struct iwp_job *next; /* in a queue */
    char id[24];          /* hex; of the request */
    char client[64];      /* who asked: an address */
    time_t created;
    char *body;    /* freed once parsed */
    size_t n_body; /* what the job counts for in body_bytes: its body, then its pictures */
    double t_arrive, t_start, t_begin, t_first, t_last;

    /* under server->lock */
    int refs;
    struct MHD_Connection *conn; /* NULL: the exchange is over */
    int fd;
    bool suspended;
    bool ready; /* the answer can begin */
    bool done;  /* nothing will be added to `out` */
    bool gone;  /* nobody reads the answer */
    int status;
    bool stream;
    char *out; /* [n_out] of which `sent` were read */
    size_t n_out, cap_out, sent;

    /* the worker's */
    struct iwp_request req;
    iwp_pictures *pictures; /* decoded ahead, until the prompt is built */
    iwp_sampler *sampler;
    struct iwp_writer writer;
    struct iwp_prompt_info info;
    struct iwp_json_out logprobs; /* entries for tokens not yet sent, comma-separated */
    int32_t n_generated;
    double t_write;
    char inspect[40]; /* id under which the report will be found; "": none */
    uint8_t *picture; /* the first one, for that page */
    size_t n_picture;
};

enum { IWP_SERVER_LOADING, IWP_SERVER_READY, IWP_SERVER_DRAINING };

struct iwp_queue {
    struct iwp_job *head, *tail;
};

/* What GET /slots tells of a session. */
struct iwp_slot_view {
    const char *phase; /* "idle", "encode", "prefill", "decode" */
    char job[24];
    int32_t n_prompt, n_decoded;
};

/* A report for GET /inspect/ID. */
struct iwp_stored {
    char id[40];
    char *json; /* [n] */
    size_t n;
    double until; /* ms */
};
enum { IWP_STORED_MAX = 64, IWP_CLIENT_MAX = 64, IWP_PREPARE_MAX = 8, IWP_PREPARE_MIN = 3 };

struct iwp_server {
    struct iwp_server_params p;
    struct MHD_Daemon *daemon;
    bool loopback; /* bound to this machine alone */
    char *name;    /* of the model */
    time_t started;
    pthread_mutex_t lock;
    pthread_cond_t wake, wake_prepare;
    int state;
    bool stop; /* the worker ends when nothing is left */
    atomic_bool abort;
    pthread_mutex_t lock_conns; /* over the list, and over each socket until its entry is gone */
    struct iwp_conn *conns;     /* the newest first */
    pthread_t sweeper;
    atomic_bool stop_conns;
    bool has_conns;
    struct iwp_queue incoming, ready; /* bodies; parsed requests that wait for a session */
    int32_t n_waiting;                /* in either queue, or between them */
    int32_t n_running, n_exchange;
    struct {
        char name[64];
        uint64_t served; /* when it last got a session, by `clock` */
    } client[IWP_CLIENT_MAX];
    uint64_t clock;
    struct iwp_slot_view slot[IWP_SERVER_MAX_SLOT];
    struct iwp_stored inspect[IWP_STORED_MAX];
    size_t inspect_bytes;
    size_t body_bytes; /* of all bodies in memory */
    struct iwp_metrics metrics;
    char *models_json, *props_json; /* made once when the model is there */

    iwp_engine *e;
    iwp_session *session[IWP_SERVER_MAX_SLOT]; /* [p.n_parallel] the worker's */
    struct iwp_engine_info info;
    struct iwp_fetch fetch;
    pthread_t worker, prepare[IWP_PREPARE_MAX];
    int32_t n_prepare;
};

static inline void iwp_server_sleep(int ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* http.c */
int iwp_http_start(struct iwp_server *s, iwp_err *err);
void iwp_http_stop(struct iwp_server *s);

/* conns.c: how long a request's head may take */
int iwp_conns_start(struct iwp_server *s, iwp_err *err);
void iwp_conns_stop(struct iwp_server *s); /* when no connection is left */
struct iwp_conn *iwp_conn_add(struct iwp_server *s, int fd, const struct sockaddr *address);
void iwp_conn_remove(struct iwp_server *s, struct iwp_conn *c); /* before the socket is closed */
bool iwp_conns_fresh(struct iwp_server *s); /* one has not asked for anything yet */
/* A request's head is there (false), or another may follow (true).  NULL is fine in both. */
void iwp_conn_await_head(struct iwp_server *s, struct iwp_conn *c, bool await);
/* Status 408 past the library, which can answer whole requests only; the connection ends then. */
void iwp_conn_say_late(int fd);

/* job.c; those marked * take the lock themselves, the others want it held */
struct iwp_job *iwp_job_new(struct iwp_server *s, enum iwp_job_kind kind);
bool iwp_job_random_id(char *out, size_t n); /* 2n hex digits; false: no randomness, and "" */
void iwp_job_unref(struct iwp_job *j);       /* * */
bool iwp_job_peer_closed(const struct iwp_job *j);
bool iwp_job_append(struct iwp_job *j, const char *text, size_t n); /* false: no memory */
void iwp_job_answer(struct iwp_job *j, int status,
                    struct iwp_json_out *w);                           /* * whole answer; frees w */
void iwp_job_fail(struct iwp_job *j, int status, const char *message); /* * */
bool iwp_job_start_stream(struct iwp_job *j);                          /* * */
bool iwp_job_send(struct iwp_job *j, const char *text, size_t n);      /* * */
void iwp_job_end(struct iwp_job *j);                                   /* * */
bool iwp_job_check_gone(struct iwp_job *j);                            /* * */

/* queue.c: all want the lock held */
void iwp_queue_add(struct iwp_queue *q, struct iwp_job *j);
struct iwp_job *iwp_queue_take(struct iwp_queue *q); /* the first; NULL: empty */
/* The first request of the client that has the fewest sessions, and waited longest for one; `text`: of those that
 * are. */
struct iwp_job *iwp_queue_take_fair(struct iwp_server *s, const char *const *busy, int32_t n_busy,
                                    bool text);
/* Asks for an answer to a prompt without pictures. */
bool iwp_job_is_text(const struct iwp_job *j);
/* Takes out those whose client left, as a list. */
struct iwp_job *iwp_queue_take_gone(struct iwp_queue *q);

/* prepare.c: parses bodies, fetches and decodes pictures, answers what needs no session */
void *iwp_prepare_main(void *server);
/* What the engine is asked for; without `cancel`. */
void iwp_prepare_request(const struct iwp_job *j, struct iwp_prompt_request *r);

/* stored.c: want the lock held */
void iwp_stored_add(struct iwp_server *s, const char *id, char *json, size_t n); /* owns json */
const struct iwp_stored *iwp_stored_find(struct iwp_server *s, const char *id);
void iwp_stored_free(struct iwp_server *s);

/* worker.c */
void *iwp_worker_main(void *server);

/* reply.c */
void iwp_reply_error(struct iwp_json_out *w, int status, const char *message);
int iwp_reply_status(int code); /* HTTP status of an iwp_status */
void iwp_reply_models(struct iwp_json_out *w, const struct iwp_server *s);
void iwp_reply_props(struct iwp_json_out *w, const struct iwp_server *s);
struct iwp_reply {
    const struct iwp_job *job;
    const iwp_prompt *prompt;
    const iwp_session *session;
    enum iwp_finish finish;
};
void iwp_reply_completion(struct iwp_json_out *w, const struct iwp_reply *r);
/* One SSE event.  text NULL with role: the opening one. */
void iwp_reply_delta(struct iwp_json_out *w, struct iwp_job *j, const char *text, size_t n,
                     bool role);
void iwp_reply_last(struct iwp_json_out *w, const struct iwp_reply *r);
void iwp_reply_usage(struct iwp_json_out *w, const struct iwp_reply *r);
/* What the page shows of this answer later. */
void iwp_reply_inspect(struct iwp_json_out *w, const struct iwp_reply *r);
void iwp_reply_slots(struct iwp_json_out *w, const struct iwp_server *s); /* lock held */
void iwp_reply_logprob(struct iwp_job *j, const iwp_engine *e, const float *logits, int32_t n_vocab,
                       int32_t id);

/* report.c */
void iwp_report_prune(struct iwp_json_out *w, const struct iwp_reply *r, enum iwp_report level);

#endif
