/* Errors as values.
 *
 * Every function of iwp that can fail returns an int: 0 or a count on success,
 * a negative enum iwp_status on failure.  It takes a nullable `iwp_err *` last
 * and fills it with one line of text that names the file, tensor or flag.
 * Nothing is allocated, nothing has to be freed.
 */
#ifndef IWP_ERROR_H
#define IWP_ERROR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define IWP_API
#else
#define IWP_API __attribute__((visibility("default")))
#endif

/* One table gives the enum, its names and its texts. */
#define IWP_STATUS_MAP(X)                                                                          \
    X(OK, 0, "ok")                                                                                 \
    X(EINVAL, -1, "invalid argument")                                                              \
    X(ENOMEM, -2, "out of memory")                                                                 \
    X(EFORMAT, -3, "malformed file")                                                               \
    X(ENOTSUP, -4, "not supported")                                                                \
    X(EIO, -5, "input/output error")                                                               \
    X(EMISSING, -6, "a tensor or part that is needed is missing")                                  \
    X(ECANCELLED, -7, "interrupted")                                                               \
    X(EINTERNAL, -8, "internal error")

enum iwp_status {
#define X(name, value, text) IWP_##name = (value),
    IWP_STATUS_MAP(X)
#undef X
};

typedef struct iwp_err {
    int code;      /* enum iwp_status */
    int64_t pos;   /* byte offset, line or index the message speaks of; -1 when there is none */
    char msg[400]; /* one line, no newline, always terminated */
} iwp_err;

/* The constant text of a status. */
IWP_API const char *iwp_status_text(int code);

/* Fills err (when not NULL) and returns code, so that `return iwp_err_set(...)` reads well. */
IWP_API int iwp_err_set(iwp_err *err, int code, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* The same with a position. */
IWP_API int iwp_err_set_at(iwp_err *err, int code, int64_t pos, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;

#ifdef __cplusplus
}
#endif
#endif
