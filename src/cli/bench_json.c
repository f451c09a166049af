/* See bench_json.h.  A selection or a prefill cannot be stopped in its middle, so the signal's handler
 * prints: a text that is finished already, because a handler may do no more than write. */
#include "cli/bench_json.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/signals.h"
#include "cli/opts.h"

/* Whoever takes it out owns it. */
static _Atomic(char *) so_far;

static void on_end(int sig) {
    (void)sig;
    const char *p = atomic_exchange(&so_far, NULL);
    for (size_t n = p ? strlen(p) : 0; n > 0;) {
        const ssize_t k = write(STDOUT_FILENO, p, n);
        if (k <= 0) break;
        p += k;
        n -= (size_t)k;
    }
    _exit(IWP_CLI_INTERRUPTED);
}

static void close_rows(struct iwp_json_out *w) {
    iwp_json_close_array(w);
    iwp_json_close_object(w);
}

void iwp_bench_json_keep(const struct iwp_json_out *w) {
    struct iwp_json_out copy = *w;
    if (w->failed || !(copy.text = malloc(w->cap))) return; /* the end will tell */
    memcpy(copy.text, w->text, w->len + 1);
    close_rows(&copy);
    char *text = copy.failed ? NULL : realloc(copy.text, copy.len + 2);
    if (!text) {
        iwp_json_free(&copy);
        return;
    }
    strcpy(text + copy.len, "\n");
    free(atomic_exchange(&so_far, text));
    iwp_on_end(on_end);
}

int iwp_bench_json_end(struct iwp_json_out *w, iwp_err *err) {
    free(atomic_exchange(&so_far, NULL));
    close_rows(w);
    return iwp_json_write(w, stdout, err);
}
