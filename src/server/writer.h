/* The text of an answer as it grows token by token: whole characters only, and nothing that may turn
 * out to be the start of a stop text. */
#ifndef IWP_SERVER_WRITER_H
#define IWP_SERVER_WRITER_H

#include <stdbool.h>
#include <stddef.h>

#include "iwp/engine.h"
#include "model/vocab.h"

struct iwp_writer {
    const char *const *stop; /* NULL-terminated, or NULL */
    struct iwp_utf8 utf8;
    char *text; /* [n] zero-terminated once something was added */
    size_t n, cap, given;
    size_t certain; /* text[given … certain) may be handed out */
    bool stopped;   /* a stop text was met and cut off */
};
int iwp_writer_add(struct iwp_writer *w, const char *piece, size_t n, iwp_err *err);
int iwp_writer_finish(struct iwp_writer *w, iwp_err *err); /* all is certain */
void iwp_writer_free(struct iwp_writer *w);

#endif
