/* The body of a chat request (interfaces 2.2) as the engine takes it.
 *
 * Owns: which fields count, their ranges and their error texts, content parts in all their spellings,
 * where a picture may come from, and the `prune` object, checked against the method table.  Unknown
 * fields are ignored, for SDKs add some; unknown ones inside `prune` are refused, because a misspelt
 * budget would silently be none.  Knows nothing of HTTP, queues or sessions.
 * Refuses: remote URLs unless there is a fetch; local files unless a folder is given, and outside of it. */
#ifndef IWP_SERVER_REQUEST_H
#define IWP_SERVER_REQUEST_H

#include <cjson/cJSON.h>

#include "iwp/engine.h"
#include "server/fetch.h"

enum iwp_report { IWP_REPORT_NONE, IWP_REPORT_SUMMARY, IWP_REPORT_TOKENS };

/* What a request says about pruning, or the server's default. */
struct iwp_request_prune {
    bool on, asked; /* asked: the request has the object */
    struct iwp_params params;
    enum iwp_positions positions;
    enum iwp_report report;
};

/* What a request does not say. */
struct iwp_request_defaults {
    struct iwp_request_prune prune;
    struct iwp_sampler_params sampler;
    int32_t n_predict;             /* -1: until the context is full */
    const char *media_path;        /* resolved folder for file:// URLs, or NULL */
    const struct iwp_fetch *fetch; /* for http(s):// URLs, or NULL */
    int32_t n_layer;               /* of the model; 0: not known, layers are not checked */
};

struct iwp_request {
    cJSON *doc; /* owns all texts */
    struct iwp_message *message;
    int32_t n_message;
    struct iwp_part *part; /* of all messages */
    int32_t n_part;
    uint8_t **media; /* [n_media] bytes of pictures, pointed to by parts */
    int32_t n_media;
    uint64_t media_hash; /* of all pictures: the same ones were perhaps seen by a session */
    uint64_t text_hash;  /* of the texts up to the first of the user's: the same conversation? */
    bool said;           /* such a text was seen */
    size_t media_bytes;
    const char *raw; /* a completion's prompt, instead of messages */
    struct iwp_sampler_params sampler;
    int32_t n_predict, min_tokens, max_tokens;
    int32_t frames;    /* of a video; 0: the server's default */
    double fps;        /* likewise */
    const char **stop; /* NULL-terminated */
    bool ignore_eos, stream, include_usage;
    int32_t top_logprobs; /* -1: none asked for */
    const char *model;    /* as the client named it, or NULL */
    struct iwp_request_prune prune;
};

/* Every failure is IWP_EINVAL or IWP_EFORMAT (the client's fault) or IWP_ENOMEM; free in all cases. */
int iwp_request_parse(struct iwp_request *r, const char *body, size_t n,
                      const struct iwp_request_defaults *def, iwp_err *err);
/* The same fields with `prompt`, a string, instead of `messages`. */
int iwp_request_parse_completion(struct iwp_request *r, const char *body, size_t n,
                                 const struct iwp_request_defaults *def, iwp_err *err);
/* `messages` alone, for a template. */
int iwp_request_parse_template(struct iwp_request *r, const char *body, size_t n,
                               const struct iwp_request_defaults *def, iwp_err *err);
void iwp_request_free(struct iwp_request *r); /* a zeroed one is fine */

/* The `prune` object alone; v NULL or JSON null: the default. */
int iwp_request_parse_prune(struct iwp_request_prune *p, const cJSON *v,
                            const struct iwp_request_defaults *def, iwp_err *err);

/* A message of the engine, in `out`: fields of a request instead of flags.  Those of pruning stay flags unless
 * the request asked, for they are the server's own. */
const char *iwp_request_fields(const char *message, bool asked, char *out, size_t cap);

/* The file behind a file:// URL, for what should not be read whole; *path NULL: another kind of URL.  The
 * caller frees it. */
int iwp_request_find_media(const char *url, const struct iwp_request_defaults *def, char **path,
                           iwp_err *err);
/* Bytes behind a URL or raw base64; caller frees *data. */
int iwp_request_load_media(const char *url, const struct iwp_request_defaults *def, uint8_t **data,
                           size_t *size, iwp_err *err);

#endif
