/* Decoders: every committed picture has the pixels Pillow reads from it; every bad one is one error. */
#include <stdbool.h>

#include "base/file.h"
#include "count_alloc.h"
#include "media_test.h"

#include <zlib.h>

static void test_all_formats(void) {
    FILE *f = fopen(DATA "decode.txt", "r");
    CHECK(f != NULL);
    if (!f) return;
    char name[64], want[65], got[65];
    int w, h, n = 0;
    while (fscanf(f, "%63s %d %d %64s", name, &w, &h, want) == 4) {
        struct iwp_image im;
        if (test_picture(name, &im) < 0) continue;
        CHECK_MSG(im.w == w && im.h == h, "%s: %d x %d", name, im.w, im.h);
        test_sha(im.rgb, (size_t)im.w * (size_t)im.h * 3, got);
        CHECK_MSG(strcmp(got, want) == 0, "%s: pixels differ from Pillow's", name);
        iwp_image_free(&im);
        n++;
    }
    fclose(f);
    CHECK(n >= 30);
}

static int decode(const void *data, size_t n, const struct iwp_image_limits *lim, iwp_err *err) {
    struct iwp_image im;
    /* An exact copy on the heap, so that the sanitizer sees a read past the end. */
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, data, n);
    int rc = iwp_image_decode(copy, n, lim, &im, err);
    CHECK((rc == 0) == (im.rgb != NULL));
    iwp_image_free(&im);
    free(copy);
    return rc;
}

/* Cut and flipped copies of every kind must give a picture or one error line, never more. */
static void test_damaged(void) {
    static const char *const names[] = {
        "rgb.png",       "interlaced.png", "jpeg-420.jpg", "jpeg-progressive.jpg",
        "jpeg-cmyk.jpg", "lossy.webp",     "alpha.webp",   "lossless.webp",
        "animated.webp", "plain.gif",      "animated.gif"};
    uint64_t seed = 7;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char path[512];
        uint8_t *data;
        size_t n;
        iwp_err err;
        snprintf(path, sizeof path, DATA "decode/%s", names[k]);
        CHECK(iwp_file_read(path, 1 << 20, &data, &n, &err) == 0);
        for (size_t cut = 0; cut < n; cut += n / 37 + 1) {
            int rc = decode(data, cut, NULL, &err);
            CHECK_MSG(rc < 0 || cut > n / 2, "%s cut to %zu bytes was read", names[k], cut);
            if (rc < 0) CHECK(err.msg[0] && !strchr(err.msg, '\n'));
        }
        CHECK_MSG(decode(data, n * 3 / 4, NULL, &err) < 0 || !strncmp(names[k], "animated", 8),
                  "%s: a quarter is missing", names[k]);
        for (int i = 0; i < 60; i++) {
            size_t at = test_rand(&seed) % n;
            uint8_t old = data[at];
            data[at] ^= (uint8_t)(1 + test_rand(&seed) % 255);
            int rc = decode(data, n, NULL, &err);
            if (rc < 0) CHECK(err.msg[0]);
            data[at] = old;
        }
        free(data);
    }
}

static void put32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static uint32_t crc32_of(const uint8_t *p, size_t n) {
    uint32_t c = ~0u;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int b = 0; b < 8; b++) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
    }
    return ~c;
}

/* A PNG header that claims w x h; valid checksum, hardly any data behind it. */
static size_t png_header(uint8_t *out, uint32_t w, uint32_t h) {
    static const uint8_t head[] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    memcpy(out, head, 16);
    put32(out + 16, w);
    put32(out + 20, h);
    memcpy(out + 24, "\x08\x02\0\0\0", 5);
    put32(out + 29, crc32_of(out + 12, 17));
    memcpy(out + 33, "\0\0\0\0IDAT\x35\xaf\x06\x1e", 12);
    return 45;
}

/* A chunk that claims to be larger than the file is not waited for. */
static void test_png_chunk(void) {
    uint8_t b[64];
    iwp_err err;
    const size_t n = png_header(b, 5, 5) - 12;
    put32(b + n, 0x7e000000);
    memcpy(b + n + 4, "zTXttext", 8);
    check_counter();
    most_alloc = 0;
    counting = 1;
    CHECK_INT(decode(b, n + 12, NULL, &err), IWP_EFORMAT);
    counting = 0;
    CHECK(strstr(err.msg, "truncated"));
    CHECK_MSG(most_alloc < 32 << 20, "%zu bytes at once for a PNG of %zu", most_alloc, n + 12);
}

/* Texts that unpack to much more than they are, many of them, cost nothing. */
static void test_png_texts(void) {
    enum { TEXT = 4 << 20, MANY = 40 };
    uint8_t *text = calloc(1, TEXT), *b = malloc(MANY * 8192), head[64];
    uLongf packed = 8000;
    size_t n = png_header(head, 5, 5) - 12;
    iwp_err err;
    memcpy(b, head, n);
    for (int i = 0; i < MANY; i++) {
        uint8_t *at = b + n;
        memcpy(at + 4, "zTXtnote\0", 10); /* and how it is packed */
        packed = 8000;
        CHECK(compress2(at + 14, &packed, text, TEXT, 9) == Z_OK);
        put32(at, (uint32_t)packed + 6);
        put32(at + 14 + packed, (uint32_t)crc32(0, at + 4, (uInt)packed + 10));
        n += packed + 18;
    }
    all_alloc = 0;
    counting = 1;
    CHECK_INT(decode(b, n, NULL, &err), IWP_EFORMAT); /* no pixels */
    counting = 0;
    CHECK_MSG(all_alloc < 16 << 20, "%zu bytes for texts of a PNG of %zu", all_alloc, n);
    free(text);
    free(b);
}

static void test_limits(void) {
    uint8_t b[64];
    iwp_err err;
    struct iwp_image_limits lim = iwp_image_default_limits();
    CHECK_INT(decode(b, 0, NULL, &err), IWP_EFORMAT);
    CHECK_INT(decode("plain text, no picture", 22, NULL, &err), IWP_ENOTSUP);
    CHECK_STR(err.msg, "not a JPEG, PNG, WebP or GIF picture");
    CHECK_INT(decode(b, png_header(b, 0, 5), NULL, &err), IWP_EFORMAT);
    CHECK_INT(decode(b, png_header(b, 100000, 5), NULL, &err), IWP_EINVAL);
    CHECK_STR(err.msg, "PNG picture of 100000 x 5 pixels, the limit is 65535 a side");
    CHECK_INT(decode(b, png_header(b, 60000, 60000), NULL, &err), IWP_EINVAL);
    CHECK_STR(err.msg, "PNG picture of 60000 x 60000 pixels, the limit is 100000000 in all");
    CHECK_INT(decode(b, png_header(b, 0x7fffffff, 0x7fffffff), NULL, &err), IWP_EINVAL);
    lim.max_bytes = 10;
    CHECK_INT(decode(b, png_header(b, 5, 5), &lim, &err), IWP_EINVAL);
    CHECK_STR(err.msg, "picture of 45 bytes, the limit is 10");
    lim = iwp_image_default_limits();
    lim.max_pixels = 36 * 29;
    struct iwp_image im;
    static const char *const names[] = {"rgb.png", "jpeg-420.jpg", "lossy.webp", "plain.gif"};
    for (int i = 0; i < 4; i++) {
        char path[512];
        snprintf(path, sizeof path, DATA "decode/%s", names[i]);
        CHECK_INT(iwp_image_load(path, &lim, &im, &err), IWP_EINVAL);
        CHECK(strstr(err.msg, names[i]) && strstr(err.msg, "37 x 29 pixels, the limit is 1044"));
    }
    CHECK_INT(iwp_image_load(DATA "absent.png", NULL, &im, &err), IWP_EIO);
    CHECK(strstr(err.msg, "absent.png"));
}

static size_t find_marker(const uint8_t *p, size_t n, size_t from, bool any, uint8_t kind) {
    for (size_t i = from; i + 1 < n; i++)
        if (p[i] == 0xff && (any ? p[i + 1] != 0 : p[i + 1] == kind)) return i;
    return n;
}

/* The first scan of a progressive file again and again: cheap to send, each a pass over the picture. */
static void test_scans(void) {
    uint8_t *data;
    size_t n;
    iwp_err err;
    CHECK(iwp_file_read(DATA "decode/jpeg-progressive.jpg", 1 << 20, &data, &n, &err) == 0);
    size_t at = find_marker(data, n, 0, false, 0xda), end = find_marker(data, n, at + 2, true, 0);
    CHECK(at < end && end < n);
    size_t scan = end - at;
    uint8_t *many = malloc(n + 150 * scan);
    for (int copies = 50; copies <= 150; copies += 100) {
        memcpy(many, data, end);
        for (int i = 0; i < copies; i++) memcpy(many + end + (size_t)i * scan, data + at, scan);
        memcpy(many + end + (size_t)copies * scan, data + end, n - end);
        int rc = decode(many, n + (size_t)copies * scan, NULL, &err);
        CHECK_INT(rc, copies == 50 ? 0 : IWP_EFORMAT);
    }
    CHECK_STR(err.msg, "broken JPEG: more than 100 scans");
    free(many);
    free(data);
}

int main(void) {
    test_all_formats();
    test_damaged();
    test_limits();
    test_png_chunk();
    test_png_texts();
    test_scans();
    return test_done();
}
