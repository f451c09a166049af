/* Error values: text table and formatting.  Bytes of a user's file may end up in a message, so
 * control characters are replaced before anything reaches a terminal. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *iwp_status_text(int code) {
    switch (code) {
#define X(name, value, text)                                                                       \
    case value: return text;
        IWP_STATUS_MAP(X)
#undef X
    }
    return "unknown error";
}

static void one_line(char *s) {
    for (unsigned char *p = (unsigned char *)s; *p; p++)
        if (*p < 0x20 || *p == 0x7f) *p = '?';
}

static int set(iwp_err *err, int code, int64_t pos, const char *fmt, va_list ap) {
    if (err) {
        err->code = code;
        err->pos = pos;
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        one_line(err->msg);
    }
    return code;
}

int iwp_err_set(iwp_err *err, int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set(err, code, -1, fmt, ap);
    va_end(ap);
    return code;
}

int iwp_err_set_at(iwp_err *err, int code, int64_t pos, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set(err, code, pos, fmt, ap);
    va_end(ap);
    return code;
}

int iwp_err_prefix(iwp_err *err, int code, const char *fmt, ...) {
    if (!err) return code;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->msg)
        snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", old);
    one_line(err->msg);
    return code;
}
