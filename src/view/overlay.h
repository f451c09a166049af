/* Pictures of what was kept: a grid of tokens over the image they came from.
 * Kept cells show the picture with a bright edge, dropped ones are dark and grey. */
#ifndef IWP_VIEW_OVERLAY_H
#define IWP_VIEW_OVERLAY_H

#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"

struct iwp_overlay {
    int32_t rows, cols;
    const uint8_t *kept;   /* [rows * cols] nonzero = kept */
    const float *scores;   /* [rows * cols] or NULL: shades kept cells when there is no picture */
    const uint8_t *rgb;    /* [height][width][3] or NULL: no picture */
    int32_t width, height; /* of rgb */
    float view
        [4]; /* x0, y0, x1, y1: what the grid covers, in pixels of rgb; beyond it lies padding, which
                      is drawn grey.  All 0: the whole picture */
    int32_t cell; /* pixels per cell; 0 = chosen so that the long side is about 768 */
};

/* Size of the drawing in pixels. */
int iwp_overlay_size(const struct iwp_overlay *o, int32_t *width, int32_t *height, iwp_err *err);
/* Draws into out [height][width][3]. */
int iwp_overlay_draw(const struct iwp_overlay *o, uint8_t *out, iwp_err *err);
/* Draws into a PNG file that appears only when complete. */
int iwp_overlay_write_png(const struct iwp_overlay *o, const char *path, iwp_err *err);

/* Any RGB picture as PNG. */
int iwp_png_write(const char *path, const uint8_t *rgb, int32_t width, int32_t height,
                  iwp_err *err);

#endif
