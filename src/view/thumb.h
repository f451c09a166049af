/* Small pictures for pages: a WebP of at most `side` pixels. */
#ifndef IWP_VIEW_THUMB_H
#define IWP_VIEW_THUMB_H

#include "media/image.h"

/* Caller frees *data. */
int iwp_thumb_webp(const struct iwp_image *in, int32_t side, uint8_t **data, size_t *n, int32_t *w,
                   int32_t *h, iwp_err *err);

#endif
