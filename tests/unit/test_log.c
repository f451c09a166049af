/* The log: levels, one line per message, a file that sees everything. */
#include "base/log.h"

#include <unistd.h>

#include "base/file.h"
#include "test.h"

TEST(file) {
    char path[] = "/tmp/iwp-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
    iwp_err e;
    CHECK_INT(iwp_log_open_file("/nonexistent/log", &e), IWP_EIO);
    CHECK_INT(iwp_log_open_file(path, &e), 0);
    iwp_log_set_level(1);
    iwp_log(IWP_LOG_INFO, "a %d", 1);
    iwp_log(IWP_LOG_DEBUG, "b\nc");
    struct iwp_progress p;
    iwp_progress_start(&p, "x", "y", 10); /* silent at this level */
    iwp_progress_set(&p, 5);
    iwp_progress_end(&p);
    CHECK_INT(iwp_log_open_file(NULL, &e), 0);
    CHECK_INT(iwp_log_get_level(), 1);
    uint8_t *d = NULL;
    size_t n = 0;
    CHECK_INT(iwp_file_read(path, 100, &d, &n, &e), 0);
    CHECK_STR((char *)d, "a 1\nb?c\n");
    free(d);
    unlink(path);
}

int main(void) {
    test_file();
    return test_done();
}
