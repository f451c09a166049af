/* Pictures: format by first bytes, limits, memory.  See image.h. */
#include "media/image.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "media/decode.h"

typedef int decode_fn(const uint8_t *, size_t, const struct iwp_image_limits *, struct iwp_image *,
                      iwp_err *);

static const struct format {
    const char *name;
    decode_fn *decode;
    size_t at, n; /* where the second mark stands; 0: there is none */
    const char *mark, *mark2;
} formats[] = {
    {"JPEG", iwp_decode_jpeg, 0, 3, "\xff\xd8\xff", NULL},
    {"PNG", iwp_decode_png, 0, 8, "\x89PNG\r\n\x1a\n", NULL},
    {"WebP", iwp_decode_webp, 8, 4, "RIFF", "WEBP"},
    {"GIF", iwp_decode_gif, 0, 6, "GIF87a", NULL},
    {"GIF", iwp_decode_gif, 0, 6, "GIF89a", NULL},
};

static const struct format *sniff(const uint8_t *data, size_t n) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct format *f = &formats[i];
        if (n < f->at + f->n || memcmp(data, f->mark, f->n) != 0) continue;
        if (f->mark2 && memcmp(data + f->at, f->mark2, f->n) != 0) continue;
        return f;
    }
    return NULL;
}

const char *iwp_image_format(const uint8_t *data, size_t n) {
    const struct format *f = data ? sniff(data, n) : NULL;
    return f ? f->name : NULL;
}

struct iwp_image_limits iwp_image_default_limits(void) {
    return (struct iwp_image_limits){
        .max_bytes = 256 << 20, .max_pixels = 100000000, .max_side = 65535};
}

int iwp_decode_check(const char *format, int64_t w, int64_t h, const struct iwp_image_limits *lim,
                     iwp_err *err) {
    IWP_REQUIRE(w > 0 && h > 0, err, IWP_EFORMAT, "%s picture of %lld x %lld pixels", format,
                (long long)w, (long long)h);
    IWP_REQUIRE(w <= lim->max_side && h <= lim->max_side, err, IWP_EINVAL,
                "%s picture of %lld x %lld pixels, the limit is %d a side", format, (long long)w,
                (long long)h, lim->max_side);
    IWP_REQUIRE(w * h <= lim->max_pixels, err, IWP_EINVAL,
                "%s picture of %lld x %lld pixels, the limit is %lld in all", format, (long long)w,
                (long long)h, (long long)lim->max_pixels);
    return 0;
}

int iwp_decode_start(const char *format, int64_t w, int64_t h, const struct iwp_image_limits *lim,
                     struct iwp_image *out, iwp_err *err) {
    IWP_TRY(iwp_decode_check(format, w, h, lim, err));
    out->rgb = calloc((size_t)(w * h), 3);
    IWP_REQUIRE(out->rgb, err, IWP_ENOMEM, "no memory for a picture of %lld x %lld pixels",
                (long long)w, (long long)h);
    out->w = (int32_t)w;
    out->h = (int32_t)h;
    return 0;
}

int iwp_image_decode(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                     struct iwp_image *out, iwp_err *err) {
    *out = (struct iwp_image){0};
    struct iwp_image_limits def = iwp_image_default_limits();
    if (!lim) lim = &def;
    IWP_REQUIRE(data && n > 0, err, IWP_EFORMAT, "picture is empty");
    IWP_REQUIRE((uint64_t)n <= (uint64_t)lim->max_bytes, err, IWP_EINVAL,
                "picture of %zu bytes, the limit is %lld", n, (long long)lim->max_bytes);
    const struct format *f = sniff(data, n);
    IWP_REQUIRE(f, err, IWP_ENOTSUP, "not a JPEG, PNG, WebP or GIF picture");
    int rc = f->decode(data, n, lim, out, err);
    if (rc < 0) iwp_image_free(out);
    return rc;
}

int iwp_image_load(const char *path, const struct iwp_image_limits *lim, struct iwp_image *out,
                   iwp_err *err) {
    *out = (struct iwp_image){0};
    struct iwp_image_limits def = iwp_image_default_limits();
    if (!lim) lim = &def;
    uint8_t *data = NULL;
    size_t n = 0;
    IWP_TRY(iwp_file_read(path, (size_t)lim->max_bytes, &data, &n, err));
    int rc = iwp_image_decode(data, n, lim, out, err);
    if (rc < 0) iwp_err_prefix(err, rc, "%s", path);
    free(data);
    return rc;
}

int iwp_image_new(struct iwp_image *out, int32_t w, int32_t h, const uint8_t colour[3],
                  iwp_err *err) {
    *out = (struct iwp_image){0};
    IWP_REQUIRE(w > 0 && h > 0, err, IWP_EINVAL, "picture of %d x %d pixels", w, h);
    size_t n = (size_t)w * (size_t)h;
    out->rgb = n <= SIZE_MAX / 3 ? malloc(n * 3) : NULL;
    IWP_REQUIRE(out->rgb, err, IWP_ENOMEM, "no memory for a picture of %d x %d pixels", w, h);
    out->w = w;
    out->h = h;
    for (size_t i = 0; i < n; i++) memcpy(out->rgb + 3 * i, colour, 3);
    return 0;
}

void iwp_image_free(struct iwp_image *im) {
    free(im->rgb);
    *im = (struct iwp_image){0};
}
