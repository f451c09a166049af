/* PNG through libpng, converted as Pillow does: alpha and tRNS dropped, sixteen bits of colour or
 * grey-alpha cut to the high byte, but sixteen-bit plain grey clipped at 255 (Pillow keeps it as wide
 * integers and clips on conversion), gamma and colour profiles ignored. */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#include "base/err.h"
#include "media/decode.h"

enum { MAX_CHUNK = 16 << 20 };

struct reader {
    const uint8_t *data;
    size_t n, at;
    char text[160];
};

/* libpng gets memory for a whole chunk before it reads any of it, however long it claims to be. */
static void *get(png_structp png, png_alloc_size_t n) {
    const struct reader *r = png_get_mem_ptr(png);
    return n <= MAX_CHUNK || n <= r->n ? malloc(n) : NULL;
}

static void put_back(png_structp png, void *p) {
    (void)png;
    free(p);
}

static void stop(png_structp png, png_const_charp text) {
    struct reader *r = png_get_error_ptr(png);
    snprintf(r->text, sizeof r->text, "%s", text);
    png_longjmp(png, 1);
}

static void ignore(png_structp png, png_const_charp text) {
    (void)png;
    (void)text;
}

static void feed(png_structp png, png_bytep dst, size_t n) {
    struct reader *r = png_get_io_ptr(png);
    if (n > r->n - r->at) png_error(png, "file is truncated");
    memcpy(dst, r->data + r->at, n);
    r->at += n;
}

enum layout { RGB8, GREY8, GREY16, INDEX8 };

/* Transforms for the file's colour type; what a row looks like afterwards. */
static enum layout set_transforms(png_structp png, int type, int bits) {
    if (type == PNG_COLOR_TYPE_PALETTE) {
        png_set_packing(png);
        return INDEX8;
    }
    if (type == PNG_COLOR_TYPE_GRAY && bits == 16) return GREY16;
    if (type == PNG_COLOR_TYPE_GRAY && bits < 8) png_set_expand_gray_1_2_4_to_8(png);
    if (bits == 16) png_set_strip_16(png);
    if (type & PNG_COLOR_MASK_ALPHA) png_set_strip_alpha(png);
    return type & PNG_COLOR_MASK_COLOR ? RGB8 : GREY8;
}

/* Entries beyond the file's palette are black, as in Pillow. */
static void read_palette(png_structp png, png_infop info, uint8_t table[256][3]) {
    png_colorp pal = NULL;
    int n = 0;
    memset(table, 0, 256 * 3);
    if (!png_get_PLTE(png, info, &pal, &n)) return;
    for (int i = 0; i < n && i < 256; i++) {
        table[i][0] = pal[i].red;
        table[i][1] = pal[i].green;
        table[i][2] = pal[i].blue;
    }
}

static void expand(enum layout layout, const uint8_t *src, uint8_t table[256][3], size_t n,
                   uint8_t *rgb) {
    for (size_t i = 0; i < n; i++, rgb += 3) {
        if (layout == INDEX8) {
            memcpy(rgb, table[src[i]], 3);
        } else {
            uint8_t v = layout == GREY8 ? src[i] : src[2 * i] ? 255 : src[2 * i + 1];
            memset(rgb, v, 3);
        }
    }
}

int iwp_decode_png(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                   struct iwp_image *out, iwp_err *err) {
    struct reader r = {.data = data, .n = n};
    png_infop info = NULL;
    uint8_t *volatile raw = NULL; /* volatile: read after longjmp */
    int volatile rc = 0;
    png_structp png =
        png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, stop, ignore, &r, get, put_back);
    IWP_REQUIRE(png, err, IWP_ENOMEM, "no memory to read a PNG");
    if (setjmp(png_jmpbuf(png))) {
        rc = iwp_err_set(err, IWP_EFORMAT, "broken PNG: %s", r.text);
        goto done;
    }
    info = png_create_info_struct(png);
    if (!info) png_error(png, "out of memory");
    png_set_read_fn(png, &r, feed);
    /* Our own check below names the limit; libpng's would speak of IHDR data. */
    png_set_user_limits(png, 0x7fffffff, 0x7fffffff);
    png_set_chunk_malloc_max(png, MAX_CHUNK);
    /* Texts and unknown chunks, each of which may unpack to MAX_CHUNK, are passed over. */
    png_set_chunk_cache_max(png, 1);
    png_read_info(png, info);
    rc = iwp_decode_start("PNG", png_get_image_width(png, info), png_get_image_height(png, info),
                          lim, out, err);
    if (rc < 0) goto done;
    enum layout layout =
        set_transforms(png, png_get_color_type(png, info), png_get_bit_depth(png, info));
    int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    size_t width = (size_t)out->w * (layout == RGB8 ? 3 : layout == GREY16 ? 2 : 1);
    if (png_get_rowbytes(png, info) != width) png_error(png, "unexpected row size");
    uint8_t *base = out->rgb;
    if (layout != RGB8) {
        raw = calloc((size_t)out->h, width);
        if (!raw) {
            rc = iwp_err_set(err, IWP_ENOMEM, "no memory for a picture of %d x %d pixels", out->w,
                             out->h);
            goto done;
        }
        base = raw;
    }
    for (int pass = 0; pass < passes; pass++)
        for (int32_t y = 0; y < out->h; y++) png_read_row(png, base + (size_t)y * width, NULL);
    /* What follows the pixels (IEND, texts) is not read: Pillow accepts a file that ends here. */
    if (layout != RGB8) {
        uint8_t table[256][3];
        read_palette(png, info, table);
        expand(layout, raw, table, (size_t)out->w * (size_t)out->h, out->rgb);
    }
done:
    free(raw);
    png_destroy_read_struct(&png, &info, NULL);
    return rc;
}
