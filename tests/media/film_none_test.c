/* A build without the FFmpeg libraries: every way to a film says what to install, in one line. */
#include "media/film.h"
#include "test.h"

TEST(missing) {
    struct iwp_film *f = (struct iwp_film *)&f;
    iwp_err err = {0};
    CHECK_INT(iwp_film_open(&f, "a.mp4", NULL, &err), IWP_ENOTSUP);
    CHECK(f == NULL && strncmp(err.msg, "a.mp4: ", 7) == 0 && !strchr(err.msg, '\n'));
    CHECK(strstr(err.msg, "libavformat-dev") && strstr(err.msg, "folders of frames"));
    f = (struct iwp_film *)&f;
    CHECK_INT(iwp_film_open_bytes(&f, (const uint8_t *)"x", 1, NULL, &err), IWP_ENOTSUP);
    CHECK(f == NULL && strstr(err.msg, "libavcodec-dev"));
}

int main(void) {
    test_missing();
    return test_done();
}
