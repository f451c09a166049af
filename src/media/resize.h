/* Resampling of 8-bit RGB, byte for byte as Pillow up to 12.x does it: filter support widened when
 * shrinking, weights in fixed point with 22 fraction bits, the horizontal pass first and its result
 * rounded to 8 bits before the vertical one. */
#ifndef IWP_MEDIA_RESIZE_H
#define IWP_MEDIA_RESIZE_H

#include "media/image.h"

enum iwp_filter { IWP_FILTER_BILINEAR, IWP_FILTER_BICUBIC, IWP_FILTER_LANCZOS };

/* `out` is a new picture of w x h; caller frees.  A pass whose size does not change is left out. */
int iwp_image_resize(const struct iwp_image *in, int32_t w, int32_t h, enum iwp_filter filter,
                     struct iwp_image *out, iwp_err *err);

#endif
