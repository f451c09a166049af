/* Runs a fuzz target over files and folders given as arguments: the corpus as an ordinary test.
 * Every file is also tried cut at a few places and with single bytes flipped, so that the test sees
 * more than what once was fine. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_file;

/* An exact allocation, so that a read past the end is seen. */
static void feed(const uint8_t *data, size_t size) {
    uint8_t *p = malloc(size ? size : 1);
    if (!p) return;
    memcpy(p, data, size);
    LLVMFuzzerTestOneInput(p, size);
    free(p);
}

static int one_file(const char *path) {
    iwp_err err;
    uint8_t *data;
    size_t n;
    if (iwp_file_read(path, 1 << 24, &data, &n, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    n_file++;
    feed(data, n);
    for (size_t cut = 1; cut < n; cut = cut * 2 + 1) feed(data, n - cut);
    size_t step = n / 64 + 1;
    for (size_t i = 0; i < n; i += step) {
        data[i] ^= 0x5a;
        feed(data, n);
        data[i] ^= 0x5a;
    }
    free(data);
    return 0;
}

static int walk(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "%s: not found\n", path);
        return 1;
    }
    if (!S_ISDIR(st.st_mode)) return one_file(path);
    DIR *d = opendir(path);
    if (!d) return 1;
    int bad = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (e->d_name[0] == '.') continue;
        char sub[4096];
        snprintf(sub, sizeof sub, "%s/%s", path, e->d_name);
        bad |= walk(sub);
    }
    closedir(d);
    return bad;
}

int main(int argc, char **argv) {
    int bad = 0;
    for (int i = 1; i < argc; i++) bad |= walk(argv[i]);
    fprintf(stderr, "%d files replayed\n", n_file);
    return bad || n_file == 0;
}
