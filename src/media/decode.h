/* Between image.c and the decoders: one function per format.  Each reads its header, calls
 * iwp_decode_start (limits, then memory), fills out->rgb and leaves freeing on failure to image.c. */
#ifndef IWP_MEDIA_DECODE_H
#define IWP_MEDIA_DECODE_H

#include "media/image.h"

int iwp_decode_jpeg(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                    struct iwp_image *out, iwp_err *err);
int iwp_decode_png(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                   struct iwp_image *out, iwp_err *err);
int iwp_decode_webp(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                    struct iwp_image *out, iwp_err *err);
int iwp_decode_gif(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                   struct iwp_image *out, iwp_err *err);

/* Refuses a size beyond the limits. */
int iwp_decode_check(const char *format, int64_t w, int64_t h, const struct iwp_image_limits *lim,
                     iwp_err *err);
/* The same, then allocates out->rgb (zeroed). */
int iwp_decode_start(const char *format, int64_t w, int64_t h, const struct iwp_image_limits *lim,
                     struct iwp_image *out, iwp_err *err);

#endif
