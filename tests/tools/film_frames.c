/* film_frames [--count] [--memory] [--threads N] FILE all|none|I,J,...: what the film says of itself, then
 * SHA-256, time and number of each frame; the tests compare with the ffmpeg program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "media/film.h"

static int fail(const iwp_err *err) {
    fprintf(stderr, "film_frames: %s\n", err->msg);
    return 1;
}

static int32_t parse_list(const char *text, int32_t n_frame, int32_t **out) {
    int32_t n = 0;
    *out = malloc(((size_t)n_frame + strlen(text) + 1) * sizeof **out);
    if (!*out) return 0;
    if (strcmp(text, "all") == 0)
        for (; n < n_frame; n++) (*out)[n] = n;
    else
        for (const char *p = text; *p >= '0' && *p <= '9'; p += *p == ',') {
            char *end;
            (*out)[n++] = (int32_t)strtol(p, &end, 10);
            p = end;
        }
    return n;
}

int main(int argc, char **argv) {
    struct iwp_film_params p = {0};
    bool memory = false;
    int a = 1;
    for (; a < argc && argv[a][0] == '-'; a++) {
        if (!strcmp(argv[a], "--count")) p.count = true;
        if (!strcmp(argv[a], "--memory")) memory = true;
        if (!strcmp(argv[a], "--threads") && a + 1 < argc) p.n_thread = atoi(argv[++a]);
    }
    if (a + 2 != argc) return 2;
    struct iwp_film *f;
    struct iwp_image im;
    iwp_err err;
    uint8_t *data = NULL, sha[32];
    size_t size = 0;
    char hex[65];
    if (memory && iwp_file_read(argv[a], (size_t)1 << 30, &data, &size, &err) < 0)
        return fail(&err);
    int rc = memory ? iwp_film_open_bytes(&f, data, size, &p, &err)
                    : iwp_film_open(&f, argv[a], &p, &err);
    if (rc < 0) {
        free(data);
        return fail(&err);
    }
    const struct iwp_film_info in = iwp_film_info(f);
    printf("frames %d size %dx%d fps %.6f seconds %.6f turn %d counted %d format %s codec %s\n",
           in.n_frame, in.w, in.h, in.fps, in.seconds, in.turn, in.counted, in.format, in.codec);
    int32_t *index, n = parse_list(argv[a + 1], in.n_frame, &index);
    if (n > 0) rc = iwp_film_choose(f, index, n, &err);
    if (n > 0 && rc >= 0) rc = iwp_film_hash(f, sha, &err);
    if (n > 0 && rc >= 0) {
        iwp_sha256_hex(sha, hex);
        printf("hash %s\n", hex);
        for (int32_t i = 0; (rc = iwp_film_next(f, &im, &err)) > 0; i++) {
            struct iwp_sha256 s;
            iwp_sha256_init(&s);
            iwp_sha256_add(&s, im.rgb, (size_t)im.w * (size_t)im.h * 3);
            iwp_sha256_end(&s, sha);
            iwp_sha256_hex(sha, hex);
            printf("%d %.6f %s\n", index[i], iwp_film_time(f, index[i]), hex);
            iwp_image_free(&im);
        }
    }
    iwp_film_close(f);
    free(index);
    free(data);
    return rc < 0 ? fail(&err) : 0;
}
