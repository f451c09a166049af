/* Maps, whole reads and outputs that appear only when complete. */
#include "base/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

static char dir[] = "/tmp/iwp-test-XXXXXX", path[64];

static int exists(const char *p) {
    struct stat st;
    return stat(p, &st) == 0;
}

TEST(output) {
    iwp_err e;
    struct iwp_output o;
    CHECK_INT(iwp_output_open(&o, path, &e), 0);
    CHECK(!exists(path));
    fputs("hello", o.file);
    CHECK_INT(iwp_output_commit(&o, &e), 0);
    CHECK(exists(path));
    iwp_output_abort(&o); /* after a commit: nothing happens */
    CHECK(exists(path));

    CHECK_INT(iwp_output_open(&o, path, &e), 0);
    fputs("other", o.file);
    char temp[96];
    snprintf(temp, sizeof temp, "%s", o.temp);
    CHECK(exists(temp));
    iwp_output_abort(&o);
    CHECK(!exists(temp));

    CHECK_INT(iwp_output_open(&o, path, &e), 0);
    snprintf(temp, sizeof temp, "%s", o.temp);
    iwp_output_abort_all();
    CHECK(!exists(temp));
    iwp_output_abort(&o);
    CHECK(iwp_output_open(&o, "/nonexistent-folder/x", &e) == IWP_EIO);
    CHECK(strstr(e.msg, "/nonexistent-folder/x") != NULL);
}

TEST(read_back) {
    iwp_err e;
    uint8_t *d;
    size_t n;
    CHECK_INT(iwp_file_read(path, 100, &d, &n, &e), 0);
    CHECK_INT(n, 5);
    CHECK_STR((char *)d, "hello");
    free(d);
    CHECK_INT(iwp_file_read(path, 4, &d, &n, &e), IWP_EINVAL);
    CHECK_INT(iwp_file_read(dir, 100, &d, &n, &e), IWP_EIO);
    CHECK_INT(iwp_file_read("/nonexistent", 100, &d, &n, &e), IWP_EIO);
    struct iwp_map m;
    CHECK_INT(iwp_map_open(&m, path, &e), 0);
    CHECK(m.size == 5 && memcmp(m.data, "hello", 5) == 0);
    iwp_map_close(&m);
    iwp_map_close(&m);
    CHECK_INT(iwp_map_open(&m, dir, &e), IWP_EIO);
}

int main(void) {
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/f", dir);
    test_output();
    test_read_back();
    unlink(path);
    rmdir(dir);
    return test_done();
}
