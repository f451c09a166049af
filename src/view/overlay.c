/* Overlays: see overlay.h. */
#include "view/overlay.h"

#include <errno.h>
#include <math.h>
#include <png.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"

enum { MAX_SIDE = 8192, TARGET = 768, PADDING = 120 };

static const uint8_t edge_color[3] = {255, 214, 64};

static int32_t cell_size(const struct iwp_overlay *o) {
    if (o->cell > 0) return o->cell;
    int32_t side = o->rows > o->cols ? o->rows : o->cols, c = (TARGET + side / 2) / side;
    return c < 4 ? 4 : c > 64 ? 64 : c;
}

int iwp_overlay_size(const struct iwp_overlay *o, int32_t *width, int32_t *height, iwp_err *err) {
    IWP_REQUIRE(o->rows > 0 && o->cols > 0 && o->rows <= MAX_SIDE && o->cols <= MAX_SIDE, err,
                IWP_EINVAL, "overlay: a grid of %d x %d", o->rows, o->cols);
    IWP_REQUIRE(!o->rgb || (o->width > 0 && o->height > 0), err, IWP_EINVAL,
                "overlay: a picture of %d x %d pixels", o->width, o->height);
    int64_t c = cell_size(o);
    IWP_REQUIRE(c * o->rows <= MAX_SIDE && c * o->cols <= MAX_SIDE, err, IWP_EINVAL,
                "overlay: %d x %d cells of %d pixels are more than %d pixels wide or high", o->rows,
                o->cols, (int)c, MAX_SIDE);
    *width = (int32_t)(c * o->cols);
    *height = (int32_t)(c * o->rows);
    return 0;
}

/* First and last picture pixel (exclusive) under drawn pixel `at` of `n`; false in the padding. */
static bool span(double from, double to, int32_t at, int32_t n, int32_t size, int32_t *a,
                 int32_t *b) {
    const double step = (to - from) / n;
    const double lo = floor(from + at * step + 1e-6), hi = floor(from + (at + 1) * step + 1e-6);
    if (lo < 0 || lo >= size) return false;
    *a = (int32_t)lo;
    *b = hi <= lo ? *a + 1 : hi > size ? size : (int32_t)hi;
    return true;
}

/* Mean of the picture under one output pixel (area average down, nearest up). */
static void sample(const struct iwp_overlay *o, int32_t x, int32_t y, int32_t w, int32_t h,
                   uint8_t px[3]) {
    const float *v = o->view;
    const bool part = v[2] > v[0] && v[3] > v[1];
    int32_t x0, x1, y0, y1;
    if (!span(part ? (double)v[0] : 0, part ? (double)v[2] : o->width, x, w, o->width, &x0, &x1) ||
        !span(part ? (double)v[1] : 0, part ? (double)v[3] : o->height, y, h, o->height, &y0,
              &y1)) {
        memset(px, PADDING, 3);
        return;
    }
    uint64_t sum[3] = {0, 0, 0}, n = (uint64_t)(x1 - x0) * (uint64_t)(y1 - y0);
    for (int32_t j = y0; j < y1; j++)
        for (int32_t i = x0; i < x1; i++)
            for (int c = 0; c < 3; c++)
                sum[c] += o->rgb[((size_t)j * (size_t)o->width + (size_t)i) * 3 + (size_t)c];
    for (int c = 0; c < 3; c++) px[c] = (uint8_t)((sum[c] + n / 2) / n);
}

/* Without a picture: a cell's colour from its score, dark blue to light. */
static void shade(double t, uint8_t px[3]) {
    static const double stop[3][3] = {{38, 70, 120}, {60, 150, 170}, {250, 245, 200}};
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    int i = t < 0.5 ? 0 : 1;
    double f = (t - 0.5 * i) * 2;
    for (int c = 0; c < 3; c++)
        px[c] = (uint8_t)(stop[i][c] + f * (stop[i + 1][c] - stop[i][c]) + 0.5);
}

static void dim(uint8_t px[3]) {
    double grey = 0.299 * px[0] + 0.587 * px[1] + 0.114 * px[2];
    for (int c = 0; c < 3; c++) px[c] = (uint8_t)(18 + 0.30 * grey + 0.07 * px[c]);
}

int iwp_overlay_draw(const struct iwp_overlay *o, uint8_t *out, iwp_err *err) {
    int32_t w, h;
    IWP_TRY(iwp_overlay_size(o, &w, &h, err));
    int32_t cell = cell_size(o), edge = cell >= 16 ? 2 : 1;
    float top = 0;
    for (int64_t i = 0; o->scores && i < (int64_t)o->rows * o->cols; i++)
        if (isfinite(o->scores[i])) top = fmaxf(top, o->scores[i]);
    for (int32_t y = 0; y < h; y++)
        for (int32_t x = 0; x < w; x++) {
            int32_t cy = y / cell, cx = x / cell, iy = y % cell, ix = x % cell;
            size_t at = (size_t)cy * (size_t)o->cols + (size_t)cx;
            uint8_t *px = out + ((size_t)y * (size_t)w + (size_t)x) * 3;
            if (o->rgb)
                sample(o, x, y, w, h, px);
            else
                shade(o->scores && top > 0 ? sqrt(fmax(0, (double)o->scores[at] / (double)top))
                                           : 0.6,
                      px);
            int32_t m = ix < iy ? ix : iy, far = cell - 1 - (ix > iy ? ix : iy);
            if (far < m) m = far; /* distance to the cell's border */
            if (!o->kept[at]) {
                dim(px);
                if (m == 0 && cell >= 8)
                    for (int c = 0; c < 3; c++) px[c] = (uint8_t)(px[c] * 3 / 4);
            } else if (m < edge && cell >= 6) {
                for (int c = 0; c < 3; c++) px[c] = (uint8_t)((px[c] + 3 * edge_color[c]) / 4);
            }
        }
    return 0;
}

int iwp_png_write(const char *path, const uint8_t *rgb, int32_t width, int32_t height,
                  iwp_err *err) {
    png_image img;
    memset(&img, 0, sizeof img);
    img.version = PNG_IMAGE_VERSION;
    img.width = (png_uint_32)width;
    img.height = (png_uint_32)height;
    img.format = PNG_FORMAT_RGB;
    struct iwp_output out;
    IWP_TRY(iwp_output_open(&out, path, err));
    errno = 0;
    if (!png_image_write_to_stdio(&img, out.file, 0, rgb, 0, NULL)) {
        const char *why =
            errno ? strerror(errno) : img.message; /* libpng only says that it failed */
        iwp_output_abort(&out);
        return iwp_err_set(err, IWP_EIO, "%s: cannot write: %s", path, why);
    }
    return iwp_output_commit(&out, err);
}

int iwp_overlay_write_png(const struct iwp_overlay *o, const char *path, iwp_err *err) {
    int32_t w, h;
    IWP_TRY(iwp_overlay_size(o, &w, &h, err));
    uint8_t *buf = malloc((size_t)w * (size_t)h * 3);
    IWP_REQUIRE(buf, err, IWP_ENOMEM, "%s: no memory for %d x %d pixels", path, w, h);
    int rc = iwp_overlay_draw(o, buf, err);
    if (rc >= 0) rc = iwp_png_write(path, buf, w, h, err);
    free(buf);
    return rc;
}
