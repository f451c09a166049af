/* Contact sheets: the frames of a video side by side, each with its kept and dropped tokens, in reading
 * order.  A frame is one overlay; a dark gap lies between them. */
#ifndef IWP_VIEW_SHEET_H
#define IWP_VIEW_SHEET_H

#include "media/image.h"
#include "view/overlay.h"

struct iwp_sheet {
    int32_t n;                     /* frames, or pairs of them */
    int32_t rows, cols;            /* tokens of one */
    const uint8_t *kept;           /* [n][rows * cols] nonzero = kept */
    const float *scores;           /* [n][rows * cols] or NULL: shades when there are no pictures */
    const struct iwp_image *frame; /* [n * stride] or NULL: no pictures */
    int32_t stride;                /* pictures for each; the first is drawn */
    float view[4];                 /* of each, as in struct iwp_overlay */
};

/* Frames beside each other, and pixels of a token's cell. */
struct iwp_sheet_layout {
    int32_t across, down, cell, width, height;
};
int iwp_sheet_layout(const struct iwp_sheet *s, struct iwp_sheet_layout *out, iwp_err *err);
/* Upper left corner of frame i. */
void iwp_sheet_place(const struct iwp_sheet *s, const struct iwp_sheet_layout *l, int32_t i,
                     int32_t *x, int32_t *y);
int iwp_sheet_write_png(const struct iwp_sheet *s, const char *path, iwp_err *err);

#endif
