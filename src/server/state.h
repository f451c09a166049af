/* What the files of the server share: one lock over the queue and over the part of a job that both
 * threads touch.  Everything else of a job is the HTTP thread's until it is queued, then the worker's. */
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

enum iwp_job_kind { IWP_JOB_CHAT, IWP_JOB_COUNT, IWP_JOB_TOKENIZE };

struct iwp_job {
    enum iwp_job_kind kind;
    struct iwp_server *server;
    struct iwp_job *next; /* in the queue */
    char id[24];          /* hex; of the request */
    time_t created;
    char *body; /* [n_body] the worker frees it once parsed */
    size_t n_body;
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
    iwp_sampler *sampler;
    struct iwp_writer writer;
    struct iwp_prompt_info info;
    struct iwp_json_out logprobs; /* entries for tokens not yet sent, comma-separated */
    int32_t n_generated;
    double t_write;
};

enum { IWP_SERVER_LOADING, IWP_SERVER_READY, IWP_SERVER_DRAINING };

struct iwp_server {
    struct iwp_server_params p;
    struct MHD_Daemon *daemon;
    bool loopback; /* bound to this machine alone */
    char *name;    /* of the model */
    time_t started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int state;
    bool stop; /* the worker ends when nothing is left */
    atomic_bool abort;
    struct iwp_job *head, *tail;
    int32_t n_waiting, n_running, n_exchange;
    size_t body_bytes; /* of all bodies in memory */
    struct iwp_metrics metrics;
    char *models_json, *props_json; /* made once when the model is there */

    iwp_engine *e;
    iwp_session *session[IWP_SERVER_MAX_SLOT]; /* [p.n_parallel] the worker's */
    struct iwp_engine_info info;
    pthread_t worker;
};

static inline void iwp_server_sleep(int ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* http.c */
int iwp_http_start(struct iwp_server *s, iwp_err *err);
void iwp_http_stop(struct iwp_server *s);

/* job.c; those marked * take the lock themselves, the others want it held */
struct iwp_job *iwp_job_new(struct iwp_server *s, enum iwp_job_kind kind);
void iwp_job_unref(struct iwp_job *j); /* * */
void iwp_job_wake(struct iwp_job *j);  /* resumes its connection when it waits */
bool iwp_job_peer_closed(const struct iwp_job *j);
bool iwp_job_append(struct iwp_job *j, const char *text, size_t n); /* false: no memory */
void iwp_job_answer(struct iwp_job *j, int status,
                    struct iwp_json_out *w);                           /* * whole answer; frees w */
void iwp_job_fail(struct iwp_job *j, int status, const char *message); /* * */
bool iwp_job_start_stream(struct iwp_job *j);                          /* * */
bool iwp_job_send(struct iwp_job *j, const char *text, size_t n);      /* * */
void iwp_job_end(struct iwp_job *j);                                   /* * */
bool iwp_job_check_gone(struct iwp_job *j);                            /* * */

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
void iwp_reply_logprob(struct iwp_job *j, const iwp_engine *e, const float *logits, int32_t n_vocab,
                       int32_t id);

/* report.c */
void iwp_report_prune(struct iwp_json_out *w, const struct iwp_reply *r);

#endif
