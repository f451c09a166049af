/* The text of an answer: see writer.h. */
#include "server/writer.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void iwp_writer_free(struct iwp_writer *w) {
    free(w->text);
    memset(w, 0, sizeof *w);
}

static int append(struct iwp_writer *w, const char *text, size_t n, iwp_err *err) {
    if (w->n + n + 1 > w->cap) {
        const size_t cap = 2 * w->cap + n + 256;
        char *p = realloc(w->text, cap);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
        w->text = p;
        w->cap = cap;
    }
    memcpy(w->text + w->n, text, n);
    w->n += n;
    w->text[w->n] = 0;
    return 0;
}

/* `fresh`: where the text looked at for the first time begins. */
static void judge(struct iwp_writer *w, size_t fresh, bool end) {
    size_t hold = 0;
    for (const char *const *s = w->stop; s && *s; s++) {
        const size_t n = strlen(*s);
        const size_t from = fresh > n - 1 ? fresh - (n - 1) : 0;
        const char *at = strstr(w->text + from, *s);
        if (at && (size_t)(at - w->text) < w->n) {
            w->n = (size_t)(at - w->text);
            w->text[w->n] = 0;
            w->stopped = true;
        }
        for (size_t k = n - 1 < w->n ? n - 1 : w->n; k > hold; k--)
            if (memcmp(w->text + w->n - k, *s, k) == 0) {
                hold = k;
                break;
            }
    }
    w->certain = w->n - (end || w->stopped ? 0 : hold);
}

int iwp_writer_add(struct iwp_writer *w, const char *piece, size_t n, iwp_err *err) {
    char text[3 * (512 + 4)];
    const size_t fresh = w->n;
    while (n > 0) {
        const size_t k = n < 512 ? n : 512;
        IWP_TRY(append(w, text, iwp_utf8_feed(&w->utf8, piece, k, text), err));
        piece += k;
        n -= k;
    }
    if (w->text) judge(w, fresh, false);
    return 0;
}

int iwp_writer_finish(struct iwp_writer *w, iwp_err *err) {
    char tail[16];
    const size_t fresh = w->n;
    const size_t n = w->stopped ? 0 : iwp_utf8_finish(&w->utf8, tail);
    IWP_TRY(append(w, tail, n, err));
    judge(w, fresh, true);
    return 0;
}
