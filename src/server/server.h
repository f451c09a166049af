/* `iwp serve`: a model behind the OpenAI API with a visual budget per request, and the inspector page.
 *
 * Threads: libmicrohttpd's own (epoll) moves bytes and answers what needs no model; others parse bodies
 * and fetch pictures; one worker owns the engine and its sessions; the caller's thread waits for signals.  A connection whose
 * answer is not there yet is suspended, so neither health checks nor slow clients wait for the model. */
#ifndef IWP_SERVER_SERVER_H
#define IWP_SERVER_SERVER_H

#include "iwp/engine.h"
#include "server/request.h"

enum { IWP_SERVER_MAX_SLOT = 64 };

struct iwp_server_params {
    const char *host;                /* address or "localhost" */
    int32_t port;                    /* 0: any free one; the line "listening on" tells it */
    const char *alias;               /* name of the model, NULL: its file's */
    const char *build;               /* name and version of the program */
    const char *api_key;             /* NULL: none asked for */
    const char *media_path;          /* folder for file:// pictures, NULL: none */
    const char *const *allowed_host; /* [n_allowed_host] names taken in Host besides our address */
    int32_t n_allowed_host;
    int32_t n_parallel;           /* sessions */
    int32_t n_queue;              /* requests that may wait */
    int32_t timeout_s;            /* idle connections, slow senders and readers */
    int32_t shutdown_s;           /* running requests after SIGTERM */
    int32_t body_mib;             /* largest body */
    int32_t inspect_s;            /* how long a report stays for GET /inspect/ID; 0: none is kept */
    int64_t max_pixels;           /* of a picture; 0: the decoder's own limit */
    bool metrics, slots, page;    /* GET /metrics, /slots, / */
    bool remote_images;           /* http(s) pictures are fetched … */
    int32_t remote_mib, remote_s; /* … up to this size, within this time, */
    const char *const *media_domain; /* [n_media_domain] … from these hosts; none: any public one */
    int32_t n_media_domain;
    struct iwp_engine_params engine;
    struct iwp_session_params session;
    struct iwp_request_defaults def; /* media_path and n_layer are filled in here */
    int32_t min_tokens, max_tokens;  /* of a picture */
    int32_t tiles;                   /* --image-tiles */
};

/* Serves until SIGINT or SIGTERM.  0, or a negative status when it could not start. */
int iwp_server_run(const struct iwp_server_params *p, iwp_err *err);

#endif
