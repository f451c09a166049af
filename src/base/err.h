/* Check-and-forward macros around iwp/error.h. */
#ifndef IWP_BASE_ERR_H
#define IWP_BASE_ERR_H

#include "iwp/error.h"

#define IWP_TRY(e)                                                                                 \
    do {                                                                                           \
        int rc_ = (e);                                                                             \
        if (rc_ < 0) return rc_;                                                                   \
    } while (0)

#define IWP_REQUIRE(cond, err, code, ...)                                                          \
    do {                                                                                           \
        if (!(cond)) return iwp_err_set((err), (code), __VA_ARGS__);                               \
    } while (0)

/* In functions with one exit: sets rc and jumps to `fail`. */
#define IWP_TRY_GOTO(e)                                                                            \
    do {                                                                                           \
        rc = (e);                                                                                  \
        if (rc < 0) goto fail;                                                                     \
    } while (0)

#define IWP_FAIL(err, code, ...)                                                                   \
    do {                                                                                           \
        rc = iwp_err_set((err), (code), __VA_ARGS__);                                              \
        goto fail;                                                                                 \
    } while (0)

/* Puts `prefix: ` before a message, for callers that know the file a callee did not.  Returns the code. */
int iwp_err_prefix(iwp_err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
