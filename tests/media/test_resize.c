/* Resampling: byte-equal to Pillow 12.3 for 15 sizes, three filters, two pictures. */
#include "media/resize.h"
#include "media_test.h"

static int filter_of(const char *s) {
    return !strcmp(s, "bicubic")    ? IWP_FILTER_BICUBIC
           : !strcmp(s, "bilinear") ? IWP_FILTER_BILINEAR
                                    : IWP_FILTER_LANCZOS;
}

static void test_pillow(void) {
    FILE *f = fopen(DATA "resize.txt", "r");
    CHECK(f != NULL);
    if (!f) return;
    char name[64], filter[16], want[65], got[65];
    int w, h, n = 0;
    while (fscanf(f, "%63s %15s %d %d %64s", name, filter, &w, &h, want) == 5) {
        struct iwp_image in, out;
        iwp_err err;
        if (test_picture(name, &in) < 0) continue;
        CHECK(iwp_image_resize(&in, w, h, (enum iwp_filter)filter_of(filter), &out, &err) == 0);
        test_sha(out.rgb, (size_t)w * (size_t)h * 3, got);
        CHECK_MSG(strcmp(got, want) == 0, "%s %s to %d x %d differs from Pillow's", name, filter, w,
                  h);
        iwp_image_free(&in);
        iwp_image_free(&out);
        n++;
    }
    fclose(f);
    CHECK_INT(n, 90);
}

static void test_bad_sizes(void) {
    uint8_t px[3] = {1, 2, 3};
    struct iwp_image in = {1, 1, px}, out;
    iwp_err err;
    CHECK_INT(iwp_image_resize(&in, 0, 5, IWP_FILTER_BICUBIC, &out, &err), IWP_EINVAL);
    CHECK_INT(iwp_image_resize(&in, 5, -1, IWP_FILTER_BICUBIC, &out, &err), IWP_EINVAL);
    CHECK(out.rgb == NULL);
    CHECK_INT(iwp_image_resize(&in, 4, 3, IWP_FILTER_LANCZOS, &out, &err), 0);
    for (int i = 0; i < 12; i++) CHECK(memcmp(out.rgb + 3 * i, px, 3) == 0);
    iwp_image_free(&out);
}

int main(void) {
    test_pillow();
    test_bad_sizes();
    return test_done();
}
