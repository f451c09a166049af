/* JSON: see json.h.  The scanner is RFC 8259 without extensions. */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Length of the UTF-8 sequence at s (n bytes left), 0 when it is not one. */
static size_t utf8_len(const unsigned char *s, size_t n) {
    unsigned c = s[0];
    if (c < 0x80) return 1;
    size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || n < len) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (c == 0xe0 && s[1] < 0xa0) return 0;
    if (c == 0xed && s[1] > 0x9f) return 0; /* surrogates */
    if (c == 0xf0 && s[1] < 0x90) return 0;
    if (c == 0xf4 && s[1] > 0x8f) return 0;
    return len;
}

bool iwp_utf8_valid(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t k = utf8_len((const unsigned char *)s + i, n - i);
        if (!k) return false;
        i += k;
    }
    return true;
}

struct scan {
    const unsigned char *s;
    size_t n, i;
    iwp_err *err;
};

static int bad(struct scan *p, const char *what) {
    return iwp_err_set_at(p->err, IWP_EFORMAT, (int64_t)p->i, "JSON: %s at byte %zu", what, p->i);
}

static void skip_space(struct scan *p) {
    while (p->i < p->n &&
           (p->s[p->i] == ' ' || p->s[p->i] == '\n' || p->s[p->i] == '\t' || p->s[p->i] == '\r'))
        p->i++;
}

static int hex4(struct scan *p, unsigned *out) {
    if (p->n - p->i < 4) return bad(p, "unfinished escape");
    unsigned v = 0;
    for (int k = 0; k < 4; k++, p->i++) {
        unsigned c = p->s[p->i], d = c - '0';
        if (d > 9) {
            d = (c | 32u) - 'a';
            if (d > 5) return bad(p, "bad escape");
            d += 10;
        }
        v = v << 4 | d;
    }
    *out = v;
    return 0;
}

static int scan_escape(struct scan *p) {
    if (p->i >= p->n) return bad(p, "unfinished escape");
    unsigned char c = p->s[p->i++];
    if (c != 'u') return strchr("\"\\/bfnrt", c) && c ? 0 : bad(p, "bad escape");
    unsigned u = 0, low = 0;
    IWP_TRY(hex4(p, &u));
    /* A zero inside a C string would cut a name in two. */
    if (u == 0) return bad(p, "\\u0000 in a string");
    if (u >= 0xdc00 && u < 0xe000) return bad(p, "unpaired surrogate");
    if (u >= 0xd800 && u < 0xdc00) {
        if (p->n - p->i < 6 || p->s[p->i] != '\\' || p->s[p->i + 1] != 'u')
            return bad(p, "unpaired surrogate");
        p->i += 2;
        IWP_TRY(hex4(p, &low));
        if (low < 0xdc00 || low >= 0xe000) return bad(p, "unpaired surrogate");
    }
    return 0;
}

static int scan_string(struct scan *p) {
    p->i++; /* the quote */
    while (p->i < p->n) {
        unsigned char c = p->s[p->i];
        if (c == '"') {
            p->i++;
            return 0;
        }
        if (c < 0x20) return bad(p, "control byte in a string");
        if (c == '\\') {
            p->i++;
            IWP_TRY(scan_escape(p));
            continue;
        }
        size_t k = utf8_len(p->s + p->i, p->n - p->i);
        if (!k) return bad(p, "not UTF-8");
        p->i += k;
    }
    return bad(p, "unfinished string");
}

static bool digit(const struct scan *p) {
    return p->i < p->n && p->s[p->i] >= '0' && p->s[p->i] <= '9';
}

static int scan_number(struct scan *p) {
    size_t from = p->i;
    if (p->s[p->i] == '-') p->i++;
    if (!digit(p)) return bad(p, "bad number");
    if (p->s[p->i] == '0')
        p->i++;
    else
        while (digit(p)) p->i++;
    if (p->i < p->n && p->s[p->i] == '.') {
        p->i++;
        if (!digit(p)) return bad(p, "bad number");
        while (digit(p)) p->i++;
    }
    if (p->i < p->n && (p->s[p->i] | 32) == 'e') {
        p->i++;
        if (p->i < p->n && (p->s[p->i] == '+' || p->s[p->i] == '-')) p->i++;
        if (!digit(p)) return bad(p, "bad number");
        while (digit(p)) p->i++;
    }
    /* cJSON copies at most 63 characters of a number. */
    return p->i - from <= 60 ? 0 : bad(p, "number too long");
}

static int scan_scalar(struct scan *p) {
    static const char *const word[] = {"true", "false", "null"};
    unsigned char c = p->s[p->i];
    if (c == '"') return scan_string(p);
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(p);
    for (int k = 0; k < 3; k++) {
        size_t len = strlen(word[k]);
        if (p->n - p->i >= len && memcmp(p->s + p->i, word[k], len) == 0) {
            p->i += len;
            return 0;
        }
    }
    return bad(p, "unexpected character");
}

/* The key and colon before a member's value. */
static int scan_key(struct scan *p) {
    skip_space(p);
    if (p->i >= p->n || p->s[p->i] != '"') return bad(p, "expected a key");
    IWP_TRY(scan_string(p));
    skip_space(p);
    if (p->i >= p->n || p->s[p->i] != ':') return bad(p, "expected ':'");
    p->i++;
    return 0;
}

enum { DEPTH_MAX = 256 };

int iwp_json_check(const char *s, size_t n, struct iwp_json_limits lim, iwp_err *err) {
    struct scan p = {(const unsigned char *)s, n, 0, err};
    int32_t max_depth = lim.depth > 0 ? lim.depth : 64, depth = 0;
    if (max_depth > DEPTH_MAX) max_depth = DEPTH_MAX;
    int64_t max_values = lim.values > 0 ? lim.values : 4000000, values = 0;
    char closer[DEPTH_MAX]; /* what ends each open container */

    for (;;) { /* one value per turn */
        skip_space(&p);
        if (p.i >= n) return bad(&p, "unexpected end");
        if (++values > max_values) return bad(&p, "too many values");
        char c = s[p.i];
        if (c == '{' || c == '[') {
            if (depth >= max_depth) return bad(&p, "nested too deeply");
            closer[depth++] = c == '{' ? '}' : ']';
            p.i++;
            skip_space(&p);
            if (p.i >= n || s[p.i] != closer[depth - 1]) {
                if (c == '{') IWP_TRY(scan_key(&p));
                continue;
            }
        } else {
            IWP_TRY(scan_scalar(&p));
        }
        /* A value just ended (or an empty container is about to): close what closes here. */
        for (;;) {
            skip_space(&p);
            if (depth == 0) return p.i == n ? 0 : bad(&p, "text after the document");
            if (p.i >= n) return bad(&p, "unexpected end");
            if (s[p.i] == closer[depth - 1]) {
                p.i++;
                depth--;
                continue;
            }
            if (s[p.i] != ',') return bad(&p, "expected ',' or the end of a container");
            p.i++;
            if (closer[depth - 1] == '}') IWP_TRY(scan_key(&p));
            break;
        }
    }
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int refuse_twins(const cJSON *v, iwp_err *err) {
    if (cJSON_IsObject(v)) {
        size_t n = 0, k = 0;
        for (const cJSON *c = v->child; c; c = c->next) n++;
        const char **name = n > 1 ? malloc(n * sizeof *name) : NULL;
        if (n > 1) {
            IWP_REQUIRE(name, err, IWP_ENOMEM, "JSON: out of memory");
            for (const cJSON *c = v->child; c; c = c->next) name[k++] = c->string;
            qsort(name, n, sizeof *name, by_text);
            for (k = 1; k < n; k++)
                if (strcmp(name[k - 1], name[k]) == 0) {
                    iwp_err_set(err, IWP_EFORMAT, "JSON: key '%.100s' appears twice", name[k]);
                    free(name);
                    return IWP_EFORMAT;
                }
            free(name);
        }
    }
    if (cJSON_IsObject(v) || cJSON_IsArray(v)) /* depth is bounded by the scan */
        for (const cJSON *c = v->child; c; c = c->next) IWP_TRY(refuse_twins(c, err));
    return 0;
}

int iwp_json_parse(const char *s, size_t n, struct iwp_json_limits lim, cJSON **out, iwp_err *err) {
    *out = NULL;
    IWP_TRY(iwp_json_check(s, n, lim, err));
    cJSON *v = cJSON_ParseWithLength(s, n);
    IWP_REQUIRE(v, err, IWP_ENOMEM, "JSON: out of memory");
    int rc = refuse_twins(v, err);
    if (rc < 0) {
        cJSON_Delete(v);
        return rc;
    }
    *out = v;
    return 0;
}

bool iwp_json_get_int(const cJSON *v, int64_t lo, int64_t hi, int64_t *out) {
    if (!cJSON_IsNumber(v)) return false;
    double x = v->valuedouble;
    if (!(fabs(x) <= 9007199254740992.0) || x != floor(x)) return false;
    int64_t i = (int64_t)x;
    if (i < lo || i > hi) return false;
    *out = i;
    return true;
}

/* ---- writing ---- */

void iwp_json_format_f64(char out[32], double v) {
    if (!isfinite(v)) {
        snprintf(out, 32, "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, v);
        if (strtod(out, NULL) == v) return;
    }
}

void iwp_json_format_f32(char out[32], float v) {
    if (!isfinite(v)) {
        snprintf(out, 32, "null");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(out, 32, "%.*g", digits, (double)v);
        if (strtof(out, NULL) == v) return;
    }
}

void iwp_json_init(struct iwp_json_out *w, bool pretty) {
    memset(w, 0, sizeof *w);
    w->pretty = pretty;
}

void iwp_json_free(struct iwp_json_out *w) {
    free(w->text);
    memset(w, 0, sizeof *w);
}

static void add(struct iwp_json_out *w, const char *s, size_t n) {
    if (w->failed) return;
    if (w->cap - w->len <= n) {
        size_t cap = w->cap ? w->cap : 256;
        while (cap - w->len <= n) {
            if (cap > SIZE_MAX / 2) {
                w->failed = true;
                return;
            }
            cap *= 2;
        }
        char *t = realloc(w->text, cap);
        if (!t) {
            w->failed = true;
            return;
        }
        w->text = t;
        w->cap = cap;
    }
    memcpy(w->text + w->len, s, n);
    w->len += n;
    w->text[w->len] = 0;
}

static void add_text(struct iwp_json_out *w, const char *s) { add(w, s, strlen(s)); }

static void add_quoted(struct iwp_json_out *w, const char *s, size_t n) {
    add(w, "\"", 1);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        char esc[8];
        size_t k = utf8_len((const unsigned char *)s + i, n - i);
        if (!k) { /* a byte that is no text: the replacement character */
            add(w, "\xef\xbf\xbd", 3);
            i++;
        } else if (c == '"' || c == '\\') {
            esc[0] = '\\';
            esc[1] = (char)c;
            add(w, esc, 2);
            i++;
        } else if (c == '\n') {
            add(w, "\\n", 2);
            i++;
        } else if (c < 0x20 || c == 0x7f) {
            snprintf(esc, sizeof esc, "\\u%04x", c);
            add(w, esc, 6);
            i++;
        } else {
            add(w, s + i, k);
            i += k;
        }
    }
    add(w, "\"", 1);
}

static void new_line(struct iwp_json_out *w) {
    if (!w->pretty) return;
    add(w, "\n", 1);
    for (int i = 0; i < w->depth; i++) add(w, "  ", 2);
}

/* Comma, line break and key before a value. */
static void lead(struct iwp_json_out *w, const char *key, bool scalar) {
    if (w->need_comma) add(w, ",", 1);
    if (w->depth > 0) {
        bool same_row = !key && scalar; /* long arrays of numbers: one row */
        if (same_row) {
            if (w->need_comma && w->pretty) add(w, " ", 1);
        } else {
            new_line(w);
        }
        w->in_row = same_row;
    }
    if (key) {
        add_quoted(w, key, strlen(key));
        add_text(w, w->pretty ? ": " : ":");
    }
    w->need_comma = true;
}

static void open_as(struct iwp_json_out *w, const char *key, const char *c) {
    lead(w, key, false);
    add(w, c, 1);
    w->depth++;
    w->need_comma = false;
    w->in_row = 1; /* an empty container stays on its line */
}

static void close_as(struct iwp_json_out *w, const char *c) {
    w->depth--;
    if (!w->in_row) new_line(w);
    add(w, c, 1);
    w->need_comma = true;
    w->in_row = 0;
}

void iwp_json_open_object(struct iwp_json_out *w, const char *key) { open_as(w, key, "{"); }
void iwp_json_close_object(struct iwp_json_out *w) { close_as(w, "}"); }
void iwp_json_open_array(struct iwp_json_out *w, const char *key) { open_as(w, key, "["); }
void iwp_json_close_array(struct iwp_json_out *w) { close_as(w, "]"); }

void iwp_json_put_bytes(struct iwp_json_out *w, const char *key, const char *s, size_t n) {
    lead(w, key, true);
    add_quoted(w, s, n);
}

void iwp_json_put_string(struct iwp_json_out *w, const char *key, const char *s) {
    if (s)
        iwp_json_put_bytes(w, key, s, strlen(s));
    else
        iwp_json_put_null(w, key);
}

void iwp_json_put_raw(struct iwp_json_out *w, const char *key, const char *json) {
    lead(w, key, true);
    add_text(w, json);
}

void iwp_json_put_int(struct iwp_json_out *w, const char *key, int64_t v) {
    char t[32];
    snprintf(t, sizeof t, "%lld", (long long)v);
    iwp_json_put_raw(w, key, t);
}

void iwp_json_put_f64(struct iwp_json_out *w, const char *key, double v) {
    char t[32];
    iwp_json_format_f64(t, v);
    iwp_json_put_raw(w, key, t);
}

void iwp_json_put_f32(struct iwp_json_out *w, const char *key, float v) {
    char t[32];
    iwp_json_format_f32(t, v);
    iwp_json_put_raw(w, key, t);
}

void iwp_json_put_ms(struct iwp_json_out *w, const char *key, double ms) {
    char t[64];
    if (isfinite(ms) && fabs(ms) < 1e15)
        snprintf(t, sizeof t, "%.3f", ms);
    else
        snprintf(t, sizeof t, "null");
    iwp_json_put_raw(w, key, t);
}

void iwp_json_put_bool(struct iwp_json_out *w, const char *key, bool v) {
    iwp_json_put_raw(w, key, v ? "true" : "false");
}

void iwp_json_put_null(struct iwp_json_out *w, const char *key) {
    iwp_json_put_raw(w, key, "null");
}

int iwp_json_write(const struct iwp_json_out *w, FILE *f, iwp_err *err) {
    IWP_REQUIRE(!w->failed, err, IWP_ENOMEM, "out of memory");
    if (fwrite(w->text ? w->text : "", 1, w->len, f) != w->len || fputc('\n', f) == EOF ||
        fflush(f) != 0)
        return iwp_err_set(err, IWP_EIO, "cannot write the output");
    return 0;
}
