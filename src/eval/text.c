/* Strings of code points: see text.h. */
#include "eval/text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct iwp_text_chunk {
    struct iwp_text_chunk *next;
};

void iwp_text_pool_free(struct iwp_text_pool *p) {
    while (p->chunk) {
        struct iwp_text_chunk *c = p->chunk;
        p->chunk = c->next;
        free(c);
    }
    p->failed = false;
}

static void *take(struct iwp_text_pool *p, size_t bytes) {
    struct iwp_text_chunk *c = malloc(sizeof *c + 8 + bytes);
    if (!c) {
        p->failed = true;
        return NULL;
    }
    c->next = p->chunk;
    p->chunk = c;
    return c + 1;
}

int32_t *iwp_text_alloc(struct iwp_text_pool *p, int32_t n) {
    return take(p, sizeof(int32_t) * (size_t)(n > 0 ? n : 1));
}

static const struct iwp_text empty = {NULL, 0};

struct iwp_text iwp_text_decode(struct iwp_text_pool *p, const char *utf8) {
    size_t len = strlen(utf8), at = 0;
    if (len > INT32_MAX / 8) return empty;
    int32_t *cp = iwp_text_alloc(p, (int32_t)len), n = 0;
    if (!cp) return empty;
    while (at < len) {
        utf8proc_int32_t c;
        utf8proc_ssize_t r =
            utf8proc_iterate((const utf8proc_uint8_t *)utf8 + at, (utf8proc_ssize_t)(len - at), &c);
        if (r <= 0) {
            c = 0xfffd;
            r = 1;
        }
        cp[n++] = c;
        at += (size_t)r;
    }
    return (struct iwp_text){cp, n};
}

char *iwp_text_encode(struct iwp_text t) {
    char *s = malloc(4 * (size_t)t.n + 1);
    size_t at = 0;
    if (!s) return NULL;
    for (int32_t i = 0; i < t.n; i++)
        at += (size_t)utf8proc_encode_char(t.cp[i], (utf8proc_uint8_t *)s + at);
    s[at] = 0;
    return s;
}

bool iwp_text_is_space(int32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

struct iwp_text iwp_text_slice(struct iwp_text t, int32_t from, int32_t to) {
    if (to > t.n) to = t.n;
    if (from > to) from = to;
    return (struct iwp_text){t.cp + from, to - from};
}

struct iwp_text iwp_text_strip(struct iwp_text t) {
    while (t.n && iwp_text_is_space(t.cp[t.n - 1])) t.n--;
    while (t.n && iwp_text_is_space(t.cp[0])) t.cp++, t.n--;
    return t;
}

static bool in_set(int32_t c, const char *set) {
    return c > 0 && c < 128 && strchr(set, (int)c) != NULL;
}

struct iwp_text iwp_text_strip_set(struct iwp_text t, const char *set) {
    while (t.n && in_set(t.cp[t.n - 1], set)) t.n--;
    while (t.n && in_set(t.cp[0], set)) t.cp++, t.n--;
    return t;
}

struct iwp_text iwp_text_lower(struct iwp_text_pool *p, struct iwp_text t) {
    int32_t *cp = iwp_text_alloc(p, 2 * t.n), n = 0;
    if (!cp) return empty;
    for (int32_t i = 0; i < t.n; i++) {
        if (t.cp[i] == 0x130) { /* the one letter whose lower case is two code points */
            cp[n++] = 'i';
            cp[n++] = 0x307;
        } else
            cp[n++] = utf8proc_tolower(t.cp[i]);
    }
    return (struct iwp_text){cp, n};
}

struct iwp_text iwp_text_capitalize(struct iwp_text_pool *p, struct iwp_text t) {
    struct iwp_text l = iwp_text_lower(p, t);
    if (!l.n) return l;
    int32_t *cp = iwp_text_alloc(p, l.n);
    if (!cp) return empty;
    memcpy(cp, l.cp, sizeof(int32_t) * (size_t)l.n);
    cp[0] = utf8proc_totitle(t.cp[0]);
    return (struct iwp_text){cp, l.n};
}

/* How many code points the upper case of c has (Unicode SpecialCasing, unconditional mappings). */
static int32_t upper_length(int32_t c) {
    if (c < 0xdf) return 1;
    switch (c) {
    case 0xdf:
    case 0x149:
    case 0x1f0:
    case 0x587:
    case 0x1e96:
    case 0x1e97:
    case 0x1e98:
    case 0x1e99:
    case 0x1e9a:
    case 0x1f50:
    case 0x1fb6:
    case 0x1fbc:
    case 0x1fc6:
    case 0x1fcc:
    case 0x1fd6:
    case 0x1fe4:
    case 0x1fe6:
    case 0x1ff6:
    case 0x1ffc: return 2;
    case 0x390:
    case 0x3b0:
    case 0x1f52:
    case 0x1f54:
    case 0x1f56:
    case 0x1fb7:
    case 0x1fc7:
    case 0x1fd2:
    case 0x1fd3:
    case 0x1fd7:
    case 0x1fe2:
    case 0x1fe3:
    case 0x1fe7:
    case 0x1ff7:
    case 0xfb03:
    case 0xfb04: return 3;
    default: break;
    }
    if (c >= 0x1f80 && c <= 0x1faf) return 2;
    if (c == 0x1fb2 || c == 0x1fb3 || c == 0x1fb4 || c == 0x1fc2 || c == 0x1fc3 || c == 0x1fc4 ||
        c == 0x1ff2 || c == 0x1ff3 || c == 0x1ff4)
        return 2;
    if ((c >= 0xfb00 && c <= 0xfb06) || (c >= 0xfb13 && c <= 0xfb17)) return 2;
    return 1;
}

int32_t iwp_text_upper_length(struct iwp_text t) {
    int32_t n = 0;
    for (int32_t i = 0; i < t.n; i++) n += upper_length(t.cp[i]);
    return n;
}

struct iwp_text iwp_text_join(struct iwp_text_pool *p, const struct iwp_text *t, int32_t n,
                              const char *between) {
    int32_t gap = (int32_t)strlen(between), total = 0;
    for (int32_t i = 0; i < n; i++) total += t[i].n + gap;
    int32_t *cp = iwp_text_alloc(p, total), at = 0;
    if (!cp) return empty;
    for (int32_t i = 0; i < n; i++) {
        for (int32_t g = 0; i && g < gap; g++) cp[at++] = between[g];
        if (t[i].n) memcpy(cp + at, t[i].cp, sizeof(int32_t) * (size_t)t[i].n);
        at += t[i].n;
    }
    return (struct iwp_text){cp, at};
}

static bool match_at(struct iwp_text t, int32_t i, const char *ascii) {
    for (; *ascii; ascii++, i++)
        if (i >= t.n || t.cp[i] != *ascii) return false;
    return true;
}

struct iwp_text iwp_text_replace(struct iwp_text_pool *p, struct iwp_text t, const char *from,
                                 const char *to) {
    int32_t nf = (int32_t)strlen(from), nt = (int32_t)strlen(to), n = 0;
    int32_t *cp = iwp_text_alloc(p, t.n * (nt > 1 ? nt : 1) + nt);
    if (!cp) return empty;
    for (int32_t i = 0; i < t.n;) {
        if (match_at(t, i, from)) {
            for (int32_t k = 0; k < nt; k++) cp[n++] = to[k];
            i += nf;
        } else
            cp[n++] = t.cp[i++];
    }
    return (struct iwp_text){cp, n};
}

struct iwp_text iwp_text_delete(struct iwp_text_pool *p, struct iwp_text t, const char *set) {
    int32_t *cp = iwp_text_alloc(p, t.n), n = 0;
    if (!cp) return empty;
    for (int32_t i = 0; i < t.n; i++)
        if (!in_set(t.cp[i], set)) cp[n++] = t.cp[i];
    return (struct iwp_text){cp, n};
}

int32_t iwp_text_split(struct iwp_text_pool *p, struct iwp_text t, struct iwp_text **words) {
    struct iwp_text *w = take(p, sizeof *w * ((size_t)t.n / 2 + 1));
    int32_t n = 0;
    *words = w;
    if (!w) return 0;
    for (int32_t i = 0; i < t.n;) {
        while (i < t.n && iwp_text_is_space(t.cp[i])) i++;
        int32_t a = i;
        while (i < t.n && !iwp_text_is_space(t.cp[i])) i++;
        if (i > a) w[n++] = iwp_text_slice(t, a, i);
    }
    return n;
}

bool iwp_text_equal(struct iwp_text a, struct iwp_text b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.cp, b.cp, sizeof(int32_t) * (size_t)a.n) == 0);
}

bool iwp_text_is(struct iwp_text a, const char *ascii) {
    return (int32_t)strlen(ascii) == a.n && match_at(a, 0, ascii);
}
bool iwp_text_starts(struct iwp_text a, const char *ascii) { return match_at(a, 0, ascii); }

int32_t iwp_text_find(struct iwp_text a, struct iwp_text what, int32_t from) {
    for (int32_t i = from; i + what.n <= a.n; i++)
        if (what.n == 0 || memcmp(a.cp + i, what.cp, sizeof(int32_t) * (size_t)what.n) == 0)
            return i;
    return -1;
}

int32_t iwp_text_rfind(struct iwp_text a, struct iwp_text what) {
    for (int32_t i = a.n - what.n; i >= 0; i--)
        if (what.n == 0 || memcmp(a.cp + i, what.cp, sizeof(int32_t) * (size_t)what.n) == 0)
            return i;
    return -1;
}

int32_t iwp_text_distance(struct iwp_text_pool *p, struct iwp_text a, struct iwp_text b) {
    int32_t *row = iwp_text_alloc(p, b.n + 1);
    if (!row) return 0;
    for (int32_t j = 0; j <= b.n; j++) row[j] = j;
    for (int32_t i = 1; i <= a.n; i++) {
        int32_t diagonal = row[0];
        row[0] = i;
        for (int32_t j = 1; j <= b.n; j++) {
            int32_t change = diagonal + (a.cp[i - 1] != b.cp[j - 1]),
                    best = row[j] < row[j - 1] ? row[j] : row[j - 1];
            diagonal = row[j];
            row[j] = change < best + 1 ? change : best + 1;
        }
    }
    return row[b.n];
}
