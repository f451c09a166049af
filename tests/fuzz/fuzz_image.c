/* Picture decoders on arbitrary bytes, then the smallest preprocessing of what was read.  Limits are
 * small so that a run spends its time in parsers, not in memset. */
#include <stdlib.h>

#include "media/image.h"
#include "media/preprocess.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct iwp_image_limits lim = {1 << 20, 1 << 18, 2048};
    struct iwp_image im;
    iwp_err err;
    int rc = iwp_image_decode(data, size, &lim, &im, &err);
    if (rc < 0) {
        if (im.rgb || !err.msg[0]) abort(); /* an error is one line and nothing else */
        return 0;
    }
    struct iwp_pre_params p = iwp_pre_default_clip();
    struct iwp_pre_plan plan;
    p.tile = 28;
    p.aspect = IWP_PRE_LETTERBOX;
    float pixels[3 * 28 * 28];
    if (iwp_pre_plan_make(&p, im.w, im.h, 1, IWP_PRE_SINGLE, &plan, &err) == 0 &&
        plan.n_pixel == sizeof pixels / sizeof *pixels)
        iwp_pre_pixels(&p, &plan, &im, pixels, &err);
    iwp_image_free(&im);
    return 0;
}
