/* WebP through libwebp: lossy, lossless, and the first frame of an animation composed on its canvas.
 * Alpha is dropped, not blended. */
#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "base/err.h"
#include "media/decode.h"

/* The canvas starts transparent black, as Pillow's decoder has it. */
static int first_frame(const uint8_t *data, size_t n, struct iwp_image *out, iwp_err *err) {
    WebPAnimDecoderOptions opt;
    if (!WebPAnimDecoderOptionsInit(&opt))
        return iwp_err_set(err, IWP_EINTERNAL, "libwebp of another version");
    opt.color_mode = MODE_RGBA;
    opt.use_threads = 0;
    WebPData bytes = {data, n};
    WebPAnimDecoder *dec = WebPAnimDecoderNew(&bytes, &opt);
    uint8_t *rgba = NULL;
    WebPAnimInfo info = {0};
    int time, rc = 0;
    if (dec) WebPAnimDecoderGetInfo(dec, &info);
    if (!dec || info.canvas_width != (uint32_t)out->w || info.canvas_height != (uint32_t)out->h ||
        !WebPAnimDecoderGetNext(dec, &rgba, &time) || !rgba)
        rc = iwp_err_set(err, IWP_EFORMAT, "broken WebP: first frame cannot be read");
    else
        for (size_t i = 0; i < (size_t)out->w * (size_t)out->h; i++)
            memcpy(out->rgb + 3 * i, rgba + 4 * i, 3);
    WebPAnimDecoderDelete(dec);
    return rc;
}

static const char *reason(VP8StatusCode code) {
    switch (code) {
    case VP8_STATUS_NOT_ENOUGH_DATA: return "file is truncated";
    case VP8_STATUS_OUT_OF_MEMORY: return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "unsupported feature";
    default: return "bad data";
    }
}

int iwp_decode_webp(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                    struct iwp_image *out, iwp_err *err) {
    WebPDecoderConfig c;
    IWP_REQUIRE(WebPInitDecoderConfig(&c), err, IWP_EINTERNAL, "libwebp of another version");
    VP8StatusCode code = WebPGetFeatures(data, n, &c.input);
    IWP_REQUIRE(code == VP8_STATUS_OK, err, IWP_EFORMAT, "broken WebP: %s", reason(code));
    IWP_TRY(iwp_decode_start("WebP", c.input.width, c.input.height, lim, out, err));
    if (c.input.has_animation) return first_frame(data, n, out, err);
    c.output.colorspace = MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.rgba = out->rgb;
    c.output.u.RGBA.stride = out->w * 3;
    c.output.u.RGBA.size = (size_t)out->w * (size_t)out->h * 3;
    code = WebPDecode(data, n, &c);
    WebPFreeDecBuffer(&c.output);
    IWP_REQUIRE(code == VP8_STATUS_OK, err, IWP_EFORMAT, "broken WebP: %s", reason(code));
    return 0;
}
