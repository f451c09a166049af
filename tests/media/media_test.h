/* Shared by the picture tests: committed data, the optional golden folder, hashes. */
#ifndef IWP_MEDIA_TEST_H
#define IWP_MEDIA_TEST_H

#include "base/hash.h"
#include "media/image.h"
#include "test.h"

#define DATA IWP_TEST_DATA "/media/"

static inline void test_sha(const void *data, size_t n, char out[65]) {
    struct iwp_sha256 s;
    uint8_t digest[32];
    iwp_sha256_init(&s);
    iwp_sha256_add(&s, data, n);
    iwp_sha256_end(&s, digest);
    iwp_sha256_hex(digest, out);
}

/* A committed picture by name: those with a model's name or source.png lie in media, others in decode. */
static inline int test_picture(const char *name, struct iwp_image *im) {
    char path[512];
    iwp_err err;
    snprintf(path, sizeof path, "%s%s", DATA, name);
    FILE *f = fopen(path, "rb");
    if (f)
        fclose(f);
    else
        snprintf(path, sizeof path, "%sdecode/%s", DATA, name);
    int rc = iwp_image_load(path, NULL, im, &err);
    CHECK_MSG(rc == 0, "%s", err.msg);
    return rc;
}

/* Path of a file of the golden folder; false when the folder is not there. */
static inline int test_golden(char *path, size_t cap, const char *rest) {
    const char *shared = getenv("IWP_SHARED");
    snprintf(path, cap, "%s/golden/vectors/%s", shared ? shared : IWP_TEST_DATA "/../../../shared",
             rest);
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

#endif
