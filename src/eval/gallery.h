/* Pictures of a few samples, kept in the results folder so that a report can show which of their tokens
 * stayed: gallery_<task>.jsonl, one line per sample with a small WebP and the rectangle of each token. */
#ifndef IWP_EVAL_GALLERY_H
#define IWP_EVAL_GALLERY_H

#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"

enum { IWP_GALLERY_MAX = 8 }; /* pictures of a task */

struct iwp_gallery_cell {
    int32_t token, x0, y0, x1, y1; /* in pixels of the small picture */
};

struct iwp_gallery_item {
    int32_t doc, width, height, n_visual, n_cell;
    char *question, *image; /* image: base64 of the WebP */
    struct iwp_gallery_cell *cell;
};

struct iwp_gallery {
    struct iwp_gallery_item *at; /* [n] */
    int32_t n;
};

/* Adds the lines of a file (none when it is not there). */
int iwp_gallery_read(struct iwp_gallery *g, const char *path, iwp_err *err);
void iwp_gallery_free(struct iwp_gallery *g);
const struct iwp_gallery_item *iwp_gallery_find(const struct iwp_gallery *g, int32_t doc);

/* "dir/gallery_task.jsonl" */
int iwp_gallery_path(char *out, size_t cap, const char *dir, const char *task, iwp_err *err);

#endif
