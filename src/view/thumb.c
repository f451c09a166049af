/* Small pictures: see thumb.h. */
#include "view/thumb.h"

#include <stdlib.h>
#include <string.h>
#include <webp/encode.h>

#include "base/err.h"
#include "media/resize.h"

int iwp_thumb_webp(const struct iwp_image *in, int32_t side, uint8_t **data, size_t *n, int32_t *w,
                   int32_t *h, iwp_err *err) {
    *data = NULL;
    const int32_t longest = in->w > in->h ? in->w : in->h;
    const double scale = longest > side ? (double)side / longest : 1;
    *w = (int32_t)(in->w * scale + 0.5);
    *h = (int32_t)(in->h * scale + 0.5);
    if (*w < 1) *w = 1;
    if (*h < 1) *h = 1;
    struct iwp_image small = {0};
    IWP_TRY(iwp_image_resize(in, *w, *h, IWP_FILTER_LANCZOS, &small, err));
    uint8_t *webp = NULL;
    *n = WebPEncodeRGB(small.rgb, *w, *h, *w * 3, 80, &webp);
    iwp_image_free(&small);
    *data = *n ? malloc(*n) : NULL;
    if (*data) memcpy(*data, webp, *n);
    WebPFree(webp);
    IWP_REQUIRE(*data, err, IWP_ENOMEM, "a picture of %d x %d cannot be encoded", *w, *h);
    return 0;
}
