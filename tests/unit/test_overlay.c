/* Overlays: kept cells keep the picture's colour, dropped ones do not; sizes; a readable PNG. */
#include "view/sheet.h"

#include <unistd.h>

#include "media/image.h"
#include "test.h"

TEST(draw) {
    static uint8_t rgb[4 * 6 * 3], kept[2 * 3] = {1, 0, 0, 0, 0, 1}, out[40 * 60 * 3];
    for (size_t i = 0; i < sizeof rgb; i += 3) rgb[i] = 250, rgb[i + 1] = 30, rgb[i + 2] = 30;
    struct iwp_overlay o = {
        .rows = 2, .cols = 3, .kept = kept, .rgb = rgb, .width = 6, .height = 4, .cell = 20};
    int32_t w, h;
    iwp_err e;
    CHECK_INT(iwp_overlay_size(&o, &w, &h, &e), 0);
    CHECK(w == 60 && h == 40);
    CHECK_INT(iwp_overlay_draw(&o, out, &e), 0);
    const uint8_t *in = out + (10 * 60 + 10) * 3, *off = out + (10 * 60 + 30) * 3;
    CHECK(in[0] == 250 && in[1] == 30);         /* middle of a kept cell: the picture */
    CHECK(off[0] < 80 && off[0] - off[1] < 40); /* dropped: dark and grey */
    CHECK(out[1] > 100);                        /* edge of a kept cell: bright yellow */
    o.rows = 0;
    CHECK_INT(iwp_overlay_size(&o, &w, &h, &e), IWP_EINVAL);
    o.rows = 2;
    o.cell = 5000;
    CHECK_INT(iwp_overlay_size(&o, &w, &h, &e), IWP_EINVAL);
}

/* A wide picture on a square canvas: bars of padding above and below it, and the picture not stretched. */
TEST(view) {
    static uint8_t rgb[20 * 40 * 3], kept[4 * 4], out[40 * 40 * 3];
    memset(kept, 1, sizeof kept);
    for (size_t i = 0; i < sizeof rgb / 3; i++)
        rgb[3 * i] = i % 40 < 20 ? 10 : 200, rgb[3 * i + 1] = i / 40 < 10 ? 10 : 200;
    struct iwp_overlay o = {.rows = 4,
                            .cols = 4,
                            .kept = kept,
                            .rgb = rgb,
                            .width = 40,
                            .height = 20,
                            .view = {0, -10, 40, 30},
                            .cell = 10};
    iwp_err e;
    CHECK_INT(iwp_overlay_draw(&o, out, &e), 0);
    const uint8_t *bar = out + (5 * 40 + 5) * 3, *upper = out + (15 * 40 + 5) * 3,
                  *lower = out + (25 * 40 + 35) * 3, *below = out + (35 * 40 + 35) * 3;
    CHECK(bar[0] == 120 && bar[1] == 120 && bar[2] == 120 && below[0] == 120);
    CHECK(upper[0] == 10 && upper[1] == 10 && lower[0] == 200 && lower[1] == 200);
    /* Cropped: only the lower right quarter is seen. */
    memcpy(o.view, (float[4]){20, 10, 40, 20}, sizeof o.view);
    CHECK_INT(iwp_overlay_draw(&o, out, &e), 0);
    CHECK(bar[0] == 200 && bar[1] == 200 && below[0] == 200 && below[1] == 200);
}

TEST(png) {
    char path[] = "/tmp/iwp-test-XXXXXX";
    close(mkstemp(path));
    uint8_t kept[16 * 24];
    float scores[16 * 24];
    for (int i = 0; i < 16 * 24; i++) kept[i] = i % 3 == 0, scores[i] = (float)i;
    struct iwp_overlay o = {.rows = 16, .cols = 24, .kept = kept, .scores = scores};
    iwp_err e;
    CHECK_INT(iwp_overlay_write_png(&o, path, &e), 0);
    struct iwp_image im;
    CHECK_INT(iwp_image_load(path, NULL, &im, &e), 0);
    int32_t w, h;
    iwp_overlay_size(&o, &w, &h, &e);
    CHECK(im.w == w && im.h == h && w == 768 && h == 512);
    uint8_t *again = malloc((size_t)w * (size_t)h * 3);
    iwp_overlay_draw(&o, again, &e);
    CHECK(memcmp(again, im.rgb, (size_t)w * (size_t)h * 3) == 0);
    free(again);
    iwp_image_free(&im);
    unlink(path);
    CHECK_INT(iwp_overlay_write_png(&o, "/nonexistent/x.png", &e), IWP_EIO);
}

TEST(sheet) {
    char path[] = "/tmp/iwp-test-XXXXXX";
    close(mkstemp(path));
    enum { N = 10, ROWS = 4, COLS = 5 };
    static uint8_t kept[N * ROWS * COLS], rgb[N][3 * 8 * 8];
    struct iwp_image frame[N];
    for (int i = 0; i < N; i++) {
        memset(rgb[i], 20 * (i + 1), sizeof rgb[i]); /* every frame another grey */
        frame[i] = (struct iwp_image){8, 8, rgb[i]};
        kept[i * ROWS * COLS + i] = 1; /* and another token kept */
    }
    const struct iwp_sheet s = {
        .n = N, .rows = ROWS, .cols = COLS, .kept = kept, .frame = frame, .stride = 1};
    struct iwp_sheet_layout l;
    iwp_err e;
    struct iwp_image im;
    CHECK_INT(iwp_sheet_layout(&s, &l, &e), 0);
    CHECK(l.across * l.down >= N && l.across >= 3 && l.cell >= 6);
    CHECK_INT(iwp_sheet_write_png(&s, path, &e), 0);
    CHECK_INT(iwp_image_load(path, NULL, &im, &e), 0);
    CHECK(im.w == l.width && im.h == l.height);
    for (int32_t i = 0; i < N; i++)
        for (int32_t t = 0; t < ROWS * COLS; t++) {
            int32_t x, y;
            iwp_sheet_place(&s, &l, i, &x, &y);
            x += t % COLS * l.cell + l.cell / 2;
            y += t / COLS * l.cell + l.cell / 2;
            const int v = im.rgb[((size_t)y * (size_t)im.w + (size_t)x) * 3];
            CHECK_MSG(t == i ? v == 20 * (i + 1) : v < 18 + 20 * (i + 1) / 2,
                      "frame %d token %d: %d", i, t, v);
        }
    iwp_image_free(&im);
    unlink(path);
    const struct iwp_sheet bad = {.n = 0, .rows = 1, .cols = 1};
    CHECK_INT(iwp_sheet_layout(&bad, &l, &e), IWP_EINVAL);
}

int main(void) {
    test_sheet();
    test_draw();
    test_view();
    test_png();
    return test_done();
}
