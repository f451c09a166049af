/* Pictures: bytes of a file to 8-bit RGB, the same pixels as Pillow's Image.open(f).convert("RGB"):
 * alpha dropped (not blended), palette expanded, grey replicated, EXIF rotation ignored, the first
 * frame of an animation.  JPEG, PNG, WebP and GIF, told apart by their bytes, never by a name.
 *
 * Sizes are checked against the limits after the header and before any pixel memory is taken, so a
 * decompression bomb costs nothing.  A truncated or corrupt file is an error, not a grey picture. */
#ifndef IWP_MEDIA_IMAGE_H
#define IWP_MEDIA_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"

struct iwp_image {
    int32_t w, h;
    uint8_t *rgb; /* [h][w][3] */
};

struct iwp_image_limits {
    int64_t max_bytes;  /* of the file */
    int64_t max_pixels; /* w * h */
    int32_t max_side;
};

/* 256 MiB, 100 million pixels, 65,535 pixels a side. */
struct iwp_image_limits iwp_image_default_limits(void);

/* Decodes `n` bytes; `lim` may be NULL for the defaults.  Caller frees `out` with iwp_image_free. */
int iwp_image_decode(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                     struct iwp_image *out, iwp_err *err);

/* Reads and decodes a file; errors begin with its path. */
int iwp_image_load(const char *path, const struct iwp_image_limits *lim, struct iwp_image *out,
                   iwp_err *err);

/* A picture of one colour. */
int iwp_image_new(struct iwp_image *out, int32_t w, int32_t h, const uint8_t colour[3],
                  iwp_err *err);
void iwp_image_free(struct iwp_image *im); /* a zeroed one is fine */

/* "JPEG", "PNG", "WebP", "GIF", or NULL when the first bytes are none of these. */
const char *iwp_image_format(const uint8_t *data, size_t n);

#endif
