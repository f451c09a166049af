/* The log: levels, one line per message, a file that sees everything; the meter off a terminal. */
#include "base/log.h"

#include <fcntl.h>
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

/* Time is not waited for: the meter's own clock is set back. */
TEST(meter) {
    char path[] = "/tmp/iwp-test-XXXXXX";
    int fd = mkstemp(path), old = dup(2);
    CHECK(fd >= 0 && old >= 0);
    iwp_log_set_level(IWP_LOG_INFO);
    dup2(fd, 2);
    struct iwp_progress p;
    iwp_progress_start(&p, "short", "y", 10);
    p.printed += 3.6e6; /* however slow this machine is */
    for (int i = 1; i <= 10; i++) iwp_progress_set(&p, i);
    iwp_progress_end(&p);
    iwp_progress_start(&p, "long", "y", 100);
    for (int i = 1; i <= 34; i++) {
        p.printed -= 3.6e6; /* an hour between two steps */
        iwp_progress_set(&p, i);
    }
    iwp_progress_end(&p);
    dup2(old, 2);
    close(old);
    close(fd);
    iwp_err e;
    uint8_t *d = NULL;
    size_t n = 0;
    CHECK_INT(iwp_file_read(path, 1000, &d, &n, &e), 0);
    const char *at = (char *)d;
    for (int i = 10; i <= 30; i += 10) {
        char want[32];
        snprintf(want, sizeof want, "long %d/100 y, ", i);
        CHECK(strncmp(at, want, strlen(want)) == 0);
        at += strcspn(at, "\n") + 1;
    }
    CHECK(at == (char *)d + n);
    free(d);
    unlink(path);
}

int main(void) {
    test_file();
    test_meter();
    return test_done();
}
