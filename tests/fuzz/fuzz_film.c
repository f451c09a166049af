/* The film reader on arbitrary bytes: opening, the index, hashing, first, middle and last frame.  One
 * thread, so that a run is the same every time. */
#include <stdlib.h>

#include "media/film.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool too_long(void *left) { return --*(int *)left < 0; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int left = 2000; /* packets and frames: small files can claim to be long */
    const struct iwp_film_params p = {.n_thread = 1, .cancel = too_long, .cancel_ctx = &left};
    struct iwp_film *f;
    struct iwp_image im;
    uint8_t sha[32];
    iwp_err err = {0};
    int rc = iwp_film_open_bytes(&f, data, size, &p, &err);
    if (rc < 0) {
        if (f || !err.msg[0]) abort(); /* an error is one line and nothing else */
        return 0;
    }
    const struct iwp_film_info in = iwp_film_info(f);
    if (in.n_frame < 1 || in.w < 1 || in.h < 1 || !(in.fps > 0)) abort();
    const int32_t index[4] = {0, in.n_frame / 2, in.n_frame / 2, in.n_frame - 1};
    rc = iwp_film_choose(f, index, 4, &err);
    if (rc >= 0) rc = iwp_film_hash(f, sha, &err);
    while (rc >= 0 && (rc = iwp_film_next(f, &im, &err)) > 0) {
        if (im.w != in.w || im.h != in.h) abort();
        iwp_image_free(&im);
    }
    if (rc < 0 && !err.msg[0]) abort();
    iwp_film_close(f);
    return 0;
}
