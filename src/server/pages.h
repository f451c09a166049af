/* The files of web/, built into the program (cmake/embed.cmake writes pages.c). */
#ifndef IWP_SERVER_PAGES_H
#define IWP_SERVER_PAGES_H

#include <stddef.h>

struct iwp_page {
    const char *path, *type; /* "/app.js", "text/javascript; charset=utf-8" */
    const unsigned char *data;
    size_t size;
};
extern const struct iwp_page iwp_pages[]; /* ends with path NULL */

#endif
