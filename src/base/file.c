/* Files: see file.h.  Outputs register their temporary names in a small table so that an
 * interrupt can remove them. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"

static int open_regular(const char *path, struct stat *st, iwp_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    IWP_REQUIRE(fd >= 0, err, IWP_EIO, "%s: %s", path, strerror(errno));
    if (fstat(fd, st) != 0) {
        int e = errno;
        close(fd);
        return iwp_err_set(err, IWP_EIO, "%s: %s", path, strerror(e));
    }
    if (!S_ISREG(st->st_mode)) {
        close(fd);
        return iwp_err_set(err, IWP_EIO, "%s: not a regular file", path);
    }
    return fd;
}

int iwp_map_open(struct iwp_map *m, const char *path, iwp_err *err) {
    m->data = NULL;
    m->size = 0;
    struct stat st;
    int fd = open_regular(path, &st, err);
    if (fd < 0) return fd;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            int e = errno;
            close(fd);
            return iwp_err_set(err, IWP_EIO, "%s: cannot map: %s", path, strerror(e));
        }
        m->data = p;
        m->size = (size_t)st.st_size;
    }
    close(fd);
    return 0;
}

void iwp_map_close(struct iwp_map *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    m->data = NULL;
    m->size = 0;
}

int iwp_file_read(const char *path, size_t max, uint8_t **data, size_t *size, iwp_err *err) {
    *data = NULL;
    *size = 0;
    struct stat st;
    int rc = 0, fd = open_regular(path, &st, err);
    if (fd < 0) return fd;
    uint8_t *buf = NULL;
    size_t n = 0, want = (size_t)st.st_size;
    if ((uint64_t)st.st_size > max)
        IWP_FAIL(err, IWP_EINVAL, "%s: %lld bytes, the limit is %zu", path, (long long)st.st_size,
                 max);
    buf = malloc(want + 1);
    if (!buf) IWP_FAIL(err, IWP_ENOMEM, "%s: no memory for %zu bytes", path, want);
    while (n < want) {
        ssize_t r = read(fd, buf + n, want - n);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) IWP_FAIL(err, IWP_EIO, "%s: %s", path, strerror(errno));
        if (r == 0) break; /* shrank while we read */
        n += (size_t)r;
    }
    buf[n] = 0;
    *data = buf;
    *size = n;
    buf = NULL;
fail:
    free(buf);
    close(fd);
    return rc;
}

/* The file a path means, in `out`: links are followed, the last one may point at nothing yet, which is
 * why realpath() does not do.  Returns false with errno set. */
static bool follow_links(const char *path, char out[PATH_MAX]) {
    enum { MAX_LINKS = 40 };
    size_t n = strlen(path);
    errno = ENAMETOOLONG;
    if (n >= PATH_MAX) return false;
    memcpy(out, path, n + 1);
    for (int i = 0; i < MAX_LINKS; i++) {
        char link[PATH_MAX];
        ssize_t len = readlink(out, link, sizeof link);
        if (len < 0) return true; /* no link, or not there: opening it will tell */
        const char *slash = strrchr(out, '/');
        const size_t folder = link[0] == '/' || !slash ? 0 : (size_t)(slash + 1 - out);
        errno = ENAMETOOLONG;
        if (folder + (size_t)len >= PATH_MAX) return false;
        memcpy(out + folder, link, (size_t)len);
        out[folder + (size_t)len] = 0;
    }
    errno = ELOOP;
    return false;
}

static bool same_inode(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Cuts a path into its folder (in place) and its name. */
static const char *split_name(char path[PATH_MAX], char name[PATH_MAX]) {
    char *slash = strrchr(path, '/');
    snprintf(name, PATH_MAX, "%s", slash ? slash + 1 : path);
    if (!slash) return ".";
    slash[slash == path] = 0; /* "/name" lies in "/" */
    return path;
}

bool iwp_file_same(const char *a, const char *b) {
    char x[PATH_MAX], y[PATH_MAX], name_x[PATH_MAX], name_y[PATH_MAX];
    if (same_inode(a, b)) return true;
    if (!follow_links(a, x) || !follow_links(b, y)) return false;
    const char *folder_x = split_name(x, name_x), *folder_y = split_name(y, name_y);
    return strcmp(name_x, name_y) == 0 && same_inode(folder_x, folder_y);
}

enum { N_SLOT = 16 };
static _Atomic(char *) pending[N_SLOT];

int iwp_output_open(struct iwp_output *o, const char *path, iwp_err *err) {
    memset(o, 0, sizeof *o);
    o->slot = -1;
    struct stat st;
    char target[PATH_MAX];
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return iwp_err_set(err, IWP_EIO, "%s: cannot write: %s", path,
                           S_ISDIR(st.st_mode) ? strerror(EISDIR)
                                               : "it exists and is not a regular file");
    IWP_REQUIRE(follow_links(path, target), err, IWP_EIO, "%s: cannot write: %s", path,
                strerror(errno));
    size_t n = strlen(target);
    o->path = malloc(n + 1);
    o->temp = malloc(n + 32);
    if (!o->path || !o->temp) {
        iwp_output_abort(o);
        return iwp_err_set(err, IWP_ENOMEM, "%s: out of memory", path);
    }
    memcpy(o->path, target, n + 1);
    snprintf(o->temp, n + 32, "%s.%ld.part", target, (long)getpid());
    int fd = open(o->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        int e = errno;
        free(o->temp); /* nothing was made: nothing to remove */
        o->temp = NULL;
        iwp_output_abort(o);
        return iwp_err_set(err, IWP_EIO, "%s: cannot write: %s", path, strerror(e));
    }
    o->file = fdopen(fd, "wb");
    if (!o->file) {
        close(fd);
        iwp_output_abort(o);
        return iwp_err_set(err, IWP_ENOMEM, "%s: out of memory", path);
    }
    for (int i = 0; i < N_SLOT && o->slot < 0; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&pending[i], &none, o->temp)) o->slot = i;
    }
    return 0;
}

static void forget(struct iwp_output *o) {
    if (o->slot >= 0) atomic_store(&pending[o->slot], NULL);
    free(o->path);
    free(o->temp);
    memset(o, 0, sizeof *o);
    o->slot = -1;
}

int iwp_output_check(const char *path, iwp_err *err) {
    struct iwp_output o;
    IWP_TRY(iwp_output_open(&o, path, err));
    iwp_output_abort(&o);
    return 0;
}

int iwp_output_commit(struct iwp_output *o, iwp_err *err) {
    FILE *f = o->file;
    o->file = NULL;
    int bad = ferror(f) || fflush(f) != 0 || fsync(fileno(f)) != 0;
    int e = errno;
    if (fclose(f) != 0 && !bad) {
        bad = 1;
        e = errno;
    }
    if (!bad && rename(o->temp, o->path) != 0) {
        bad = 1;
        e = errno;
    }
    if (bad) {
        int rc = iwp_err_set(err, IWP_EIO, "%s: cannot write: %s", o->path, strerror(e ? e : EIO));
        iwp_output_abort(o);
        return rc;
    }
    forget(o);
    return 0;
}

void iwp_output_abort(struct iwp_output *o) {
    if (o->file) fclose(o->file);
    if (o->temp) unlink(o->temp);
    forget(o);
}

void iwp_output_abort_all(void) {
    for (int i = 0; i < N_SLOT; i++) {
        char *p = atomic_load(&pending[i]);
        if (p) unlink(p);
    }
}
