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

TEST(output_special) {
    iwp_err e;
    struct iwp_output o;
    struct stat st;
    char fifo[64], link[64], target[64], loop[64];
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(target, sizeof target, "%s/target", dir);
    snprintf(loop, sizeof loop, "%s/loop", dir);
    CHECK_INT(mkfifo(fifo, 0600), 0);
    const char *const refused[] = {fifo, "/dev/null", dir};
    for (int i = 0; i < 3; i++) {
        CHECK_INT(iwp_output_open(&o, refused[i], &e), IWP_EIO);
        CHECK(strstr(e.msg, refused[i]) != NULL);
        CHECK_INT(iwp_output_check(refused[i], &e), IWP_EIO);
    }
    CHECK(lstat(fifo, &st) == 0 && S_ISFIFO(st.st_mode));
    CHECK_INT(symlink("loop", loop), 0);
    CHECK_INT(iwp_output_open(&o, loop, &e), IWP_EIO);

    CHECK_INT(symlink("target", link), 0);
    for (int i = 0; i < 2; i++) { /* to nothing yet, then to a file */
        CHECK(iwp_file_same(link, target) && !iwp_file_same(link, path));
        CHECK_INT(iwp_output_open(&o, link, &e), 0);
        fprintf(o.file, "%.*s", i + 1, "ab");
        CHECK_INT(iwp_output_commit(&o, &e), 0);
        CHECK(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
        CHECK(lstat(target, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == i + 1);
    }
    unlink(fifo);
    unlink(link);
    unlink(target);
    unlink(loop);
}

TEST(same) {
    char dotted[80], absent[80], absent2[80];
    snprintf(dotted, sizeof dotted, "%s/./f", dir);
    snprintf(absent, sizeof absent, "%s/x", dir);
    snprintf(absent2, sizeof absent2, "%s/.//x", dir);
    CHECK(iwp_file_same(path, dotted) && iwp_file_same(absent, absent2));
    CHECK(!iwp_file_same(path, absent) && !iwp_file_same(absent, "x"));
    CHECK(iwp_file_same("/iwp-absent", "/./iwp-absent") && iwp_file_same("x", "./x"));
    CHECK(!iwp_file_same("/nonexistent-folder/x", "/nonexistent-other/x"));
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
    test_output_special();
    test_same();
    test_read_back();
    unlink(path);
    rmdir(dir);
    return test_done();
}
