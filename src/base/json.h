/* JSON glue.
 *
 * Reading: cJSON, behind our own checks.  cJSON recurses per nesting level, takes control bytes
 * and unpaired surrogates lightly and keeps the first of two equal keys; a hostile document must not
 * get that far, so iwp_json_parse() first runs a strict, non-recursive scan (grammar, UTF-8, depth,
 * number of values) and afterwards refuses objects with a key twice.
 *
 * Writing: a small emitter into a growing buffer.  Numbers are printed so that they read back
 * equal; a number that is not finite becomes null.  An error (no memory) sticks until _take(). */
#ifndef IWP_BASE_JSON_H
#define IWP_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "iwp/error.h"

struct iwp_json_limits {
    int32_t depth;  /* nesting of arrays and objects; 0 = 64 */
    int64_t values; /* scalars, arrays and objects together; 0 = 4 million */
};

/* True when s[0..n) is well-formed UTF-8 (no overlong forms, no surrogates). */
bool iwp_utf8_valid(const char *s, size_t n);

/* The scan alone.  On failure err->pos is the byte. */
int iwp_json_check(const char *s, size_t n, struct iwp_json_limits lim, iwp_err *err);

/* Checked parse; caller frees *out with cJSON_Delete(). */
int iwp_json_parse(const char *s, size_t n, struct iwp_json_limits lim, cJSON **out, iwp_err *err);

/* A whole number in [lo, hi] (magnitudes up to 2^53), else false. */
bool iwp_json_get_int(const cJSON *v, int64_t lo, int64_t hi, int64_t *out);

struct iwp_json_out {
    char *text; /* [len], zero-terminated once anything was written */
    size_t len, cap;
    int depth;
    bool failed, need_comma, pretty;
    uint8_t in_row; /* pretty: arrays of numbers stay on one line */
};

void iwp_json_init(struct iwp_json_out *w, bool pretty);
void iwp_json_free(struct iwp_json_out *w);

/* key is NULL inside arrays and for the top value. */
void iwp_json_open_object(struct iwp_json_out *w, const char *key);
void iwp_json_close_object(struct iwp_json_out *w);
void iwp_json_open_array(struct iwp_json_out *w, const char *key);
void iwp_json_close_array(struct iwp_json_out *w);
void iwp_json_put_string(struct iwp_json_out *w, const char *key, const char *s); /* NULL = null */
void iwp_json_put_bytes(struct iwp_json_out *w, const char *key, const char *s, size_t n);
void iwp_json_put_int(struct iwp_json_out *w, const char *key, int64_t v);
void iwp_json_put_f64(struct iwp_json_out *w, const char *key, double v);
void iwp_json_put_f32(struct iwp_json_out *w, const char *key, float v);
void iwp_json_put_ms(struct iwp_json_out *w, const char *key, double ms); /* three decimals */
void iwp_json_put_bool(struct iwp_json_out *w, const char *key, bool v);
void iwp_json_put_null(struct iwp_json_out *w, const char *key);
/* Text that is JSON already. */
void iwp_json_put_raw(struct iwp_json_out *w, const char *key, const char *json);

/* Writes the document and a newline; IWP_ENOMEM when the emitter had failed, IWP_EIO on a full disk
 * or closed pipe. */
int iwp_json_write(const struct iwp_json_out *w, FILE *f, iwp_err *err);

/* Shortest text that reads back equal; out holds at least 32 bytes.  Not finite: "null". */
void iwp_json_format_f64(char out[32], double v);
void iwp_json_format_f32(char out[32], float v);

#endif
