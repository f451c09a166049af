/* Films in a build without the FFmpeg libraries: every call says what is missing. */
#include "base/err.h"
#include "media/film.h"

static int missing(const char *path, iwp_err *err) {
    return iwp_err_set(
        err, IWP_ENOTSUP,
        "%s: this iwp was built without FFmpeg and reads no films, only folders of "
        "frames; install libavformat-dev libavcodec-dev libswscale-dev and build again",
        path);
}

int iwp_film_open(struct iwp_film **out, const char *path, const struct iwp_film_params *p,
                  iwp_err *err) {
    (void)p;
    *out = NULL;
    return missing(path, err);
}

int iwp_film_open_bytes(struct iwp_film **out, const uint8_t *data, size_t n,
                        const struct iwp_film_params *p, iwp_err *err) {
    (void)data;
    (void)n;
    (void)p;
    *out = NULL;
    return missing("the film", err);
}

/* No film can be open: these are never reached. */
void iwp_film_close(struct iwp_film *f) { (void)f; }

struct iwp_film_info iwp_film_info(const struct iwp_film *f) {
    (void)f;
    return (struct iwp_film_info){.format = "", .codec = ""};
}

double iwp_film_time(const struct iwp_film *f, int32_t index) {
    (void)f;
    (void)index;
    return 0;
}

int iwp_film_choose(struct iwp_film *f, const int32_t *index, int32_t n, iwp_err *err) {
    (void)f;
    (void)index;
    (void)n;
    return missing("the film", err);
}

int iwp_film_next(struct iwp_film *f, struct iwp_image *out, iwp_err *err) {
    (void)f;
    *out = (struct iwp_image){0};
    return missing("the film", err);
}

int iwp_film_hash(struct iwp_film *f, uint8_t sha[32], iwp_err *err) {
    (void)f;
    (void)sha;
    return missing("the film", err);
}
