/* Videos of any origin: see clip.h. */
#include "media/clip.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "media/film.h"

enum { MAX_FILE = 1 << 20, MAX_TAKEN = 4096, MAX_LIST = 64 << 20 };

struct iwp_clip {
    char label[300];
    struct iwp_clip_params p;
    struct iwp_film *film; /* or … */
    char **file;           /* [n_file] pictures */
    int32_t n_file, cap_file;
    int32_t total, n, at;
    int32_t *index; /* [n] */
    double *time;   /* [n] of a film */
    double fps;
    struct iwp_image first; /* read ahead by iwp_clip_size */
    int32_t w, h;           /* 0: not known yet */
};

void iwp_clip_close(struct iwp_clip *c) {
    if (!c) return;
    for (int32_t i = 0; i < c->n_file; i++) free(c->file[i]);
    free(c->file);
    free(c->index);
    free(c->time);
    iwp_image_free(&c->first);
    iwp_film_close(c->film);
    free(c);
}

/* ---- lists of pictures --------------------------------------------------------------------------- */

/* Takes `path` over. */
static int add_file(struct iwp_clip *c, char *path, iwp_err *err) {
    if (path && c->n_file == c->cap_file && c->n_file < MAX_FILE) {
        const int32_t cap = c->cap_file ? 2 * c->cap_file : 64;
        char **p = realloc(c->file, (size_t)cap * sizeof *p);
        if (p) {
            c->file = p;
            c->cap_file = cap;
        }
    }
    if (!path || c->n_file == c->cap_file) {
        free(path);
        IWP_REQUIRE(c->n_file < MAX_FILE, err, IWP_EINVAL, "%s: more than %d pictures", c->label,
                    MAX_FILE);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    c->file[c->n_file++] = path;
    return 0;
}

static char *join(const char *dir, size_t n_dir, const char *name) {
    const size_t n = strlen(name);
    const bool slash = n_dir > 0 && name[0] != '/';
    char *p = malloc(n_dir + n + 2);
    if (!p) return NULL;
    if (slash) {
        memcpy(p, dir, n_dir);
        p[n_dir] = '/';
    }
    memcpy(p + (slash ? n_dir + 1 : 0), name, n + 1);
    return p;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_picture(const char *path) {
    uint8_t head[16] = {0};
    struct stat st;
    FILE *f = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    const size_t got = f ? fread(head, 1, sizeof head, f) : 0;
    if (f) fclose(f);
    return iwp_image_format(head, got) != NULL;
}

/* Pictures are told by their first bytes. */
static int list_folder(struct iwp_clip *c, const char *dir, iwp_err *err) {
    int rc = 0;
    DIR *d = opendir(dir);
    IWP_REQUIRE(d, err, IWP_EIO, "%s: %s", dir, strerror(errno));
    for (struct dirent *e; rc >= 0 && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        char *path = join(dir, strlen(dir), e->d_name);
        if (path && !is_picture(path))
            free(path);
        else
            rc = add_file(c, path, err);
    }
    closedir(d);
    IWP_TRY(rc);
    IWP_REQUIRE(c->n_file > 0, err, IWP_EINVAL, "%s: this folder has no pictures", dir);
    qsort(c->file, (size_t)c->n_file, sizeof *c->file, by_name);
    return 0;
}

static int list_lines(struct iwp_clip *c, const char *path, iwp_err *err) {
    uint8_t *data;
    size_t n;
    IWP_TRY(iwp_file_read(path, MAX_LIST, &data, &n, err));
    const char *slash = strrchr(path, '/');
    const size_t n_dir = slash ? (size_t)(slash - path) : 0;
    int rc =
        memchr(data, 0, n) ? iwp_err_set(err, IWP_EFORMAT, "%s: is no list of pictures", path) : 0;
    char *next = (char *)data;
    while (rc >= 0 && *next) {
        char *line = next, *end = line + strcspn(line, "\n");
        next = *end ? end + 1 : end;
        *end = 0;
        if (end > line && end[-1] == '\r') end[-1] = 0;
        if (*line) rc = add_file(c, join(path, n_dir, line), err);
    }
    free(data);
    IWP_TRY(rc);
    IWP_REQUIRE(c->n_file > 0, err, IWP_EINVAL, "%s: this list names no pictures", path);
    return 0;
}

/* ---- opening -------------------------------------------------------------------------------------- */

static int reserve(struct iwp_clip *c, int32_t n, iwp_err *err) {
    IWP_REQUIRE(n <= MAX_TAKEN, err, IWP_EINVAL, "%s: %d frames, at most %d can be used (--frames)",
                c->label, n, MAX_TAKEN);
    c->index = malloc((size_t)n * sizeof *c->index);
    c->time = c->film ? malloc((size_t)n * sizeof *c->time) : NULL;
    IWP_REQUIRE(c->index && (c->time || !c->film), err, IWP_ENOMEM, "out of memory for %d frames",
                n);
    c->n = n;
    return 0;
}

static int choose_pictures(struct iwp_clip *c, iwp_err *err) {
    const struct iwp_sampling *s = &c->p.sampling;
    c->total = c->n_file;
    IWP_TRY(reserve(c, s->frames > 0 && s->frames < c->total ? s->frames : c->total, err));
    iwp_sampling_floor(c->total, c->n, c->index);
    c->fps = s->fps * c->n / c->total;
    return 0;
}

static int choose_frames(struct iwp_clip *c, iwp_err *err) {
    const struct iwp_film_info in = iwp_film_info(c->film);
    const struct iwp_sampling *s = &c->p.sampling;
    c->total = in.n_frame;
    c->w = in.w;
    c->h = in.h;
    IWP_TRY(reserve(c, iwp_sampling_count(s, c->total, in.fps), err));
    iwp_sampling_choose(s, c->total, c->n, c->index);
    for (int32_t i = 0; i < c->n; i++) c->time[i] = iwp_film_time(c->film, c->index[i]);
    c->fps = (double)c->n / c->total * in.fps;
    return iwp_film_choose(c->film, c->index, c->n, err);
}

static int new_clip(struct iwp_clip **out, const char *label, const struct iwp_clip_params *p,
                    iwp_err *err) {
    *out = calloc(1, sizeof **out);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    snprintf((*out)->label, sizeof(*out)->label, "%s", label);
    (*out)->p = *p;
    return 0;
}

static int give(struct iwp_clip **out, int rc) {
    if (rc >= 0) return 0;
    iwp_clip_close(*out);
    *out = NULL;
    return rc;
}

static bool is_list(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ".txt") == 0;
}

static int open_path(struct iwp_clip *c, const char *path, iwp_err *err) {
    struct stat st;
    IWP_REQUIRE(stat(path, &st) == 0, err, IWP_EIO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode) || is_list(path)) {
        IWP_TRY(S_ISDIR(st.st_mode) ? list_folder(c, path, err) : list_lines(c, path, err));
        return choose_pictures(c, err);
    }
    const struct iwp_film_params fp = {.cancel = c->p.cancel, .cancel_ctx = c->p.cancel_ctx};
    IWP_TRY(iwp_film_open(&c->film, path, &fp, err));
    return choose_frames(c, err);
}

int iwp_clip_open(struct iwp_clip **out, const char *path, const struct iwp_clip_params *p,
                  iwp_err *err) {
    IWP_TRY(new_clip(out, path, p, err));
    return give(out, open_path(*out, path, err));
}

int iwp_clip_open_files(struct iwp_clip **out, const char *const *path, int32_t n,
                        const struct iwp_clip_params *p, iwp_err *err) {
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "a video without frames");
    IWP_TRY(new_clip(out, path[0], p, err));
    int rc = 0;
    for (int32_t i = 0; i < n && rc >= 0; i++) rc = add_file(*out, join("", 0, path[i]), err);
    if (rc >= 0) rc = choose_pictures(*out, err);
    return give(out, rc);
}

int iwp_clip_open_bytes(struct iwp_clip **out, const uint8_t *data, size_t n,
                        const struct iwp_clip_params *p, iwp_err *err) {
    IWP_TRY(new_clip(out, "the film", p, err));
    const struct iwp_film_params fp = {.cancel = p->cancel, .cancel_ctx = p->cancel_ctx};
    int rc = iwp_film_open_bytes(&(*out)->film, data, n, &fp, err);
    if (rc >= 0) rc = choose_frames(*out, err);
    return give(out, rc);
}

struct iwp_clip_info iwp_clip_info(const struct iwp_clip *c) {
    return (struct iwp_clip_info){.n_frame = c->n,
                                  .total = c->total,
                                  .index = c->index,
                                  .time = c->time,
                                  .fps = c->fps,
                                  .film = c->film != NULL};
}

/* ---- frames ----------------------------------------------------------------------------------------- */

static int read_picture(struct iwp_clip *c, struct iwp_image *out, iwp_err *err) {
    const char *path = c->file[c->index[c->at]];
    IWP_REQUIRE(!c->p.cancel || !c->p.cancel(c->p.cancel_ctx), err, IWP_ECANCELLED, "interrupted");
    IWP_TRY(iwp_image_load(path, NULL, out, err));
    if (!c->w) {
        c->w = out->w;
        c->h = out->h;
    }
    if (out->w != c->w || out->h != c->h) {
        int rc = iwp_err_set(err, IWP_EINVAL, "%s: frame %d is %d x %d, the first one %d x %d",
                             c->label, c->index[c->at], out->w, out->h, c->w, c->h);
        iwp_image_free(out);
        return rc;
    }
    return 0;
}

int iwp_clip_next(struct iwp_clip *c, struct iwp_image *out, iwp_err *err) {
    *out = (struct iwp_image){0};
    if (c->at >= c->n) return 0;
    if (c->first.rgb) {
        *out = c->first;
        c->first = (struct iwp_image){0};
    } else if (c->film) {
        IWP_TRY(iwp_film_next(c->film, out, err));
    } else {
        IWP_TRY(read_picture(c, out, err));
    }
    c->at++;
    return 1;
}

int iwp_clip_size(struct iwp_clip *c, int32_t *w, int32_t *h, iwp_err *err) {
    if (!c->w) IWP_TRY(read_picture(c, &c->first, err));
    *w = c->w;
    *h = c->h;
    return 0;
}

int iwp_clip_restart(struct iwp_clip *c, iwp_err *err) {
    if (c->at == 0) return 0;
    c->at = 0;
    iwp_image_free(&c->first);
    return c->film ? iwp_film_choose(c->film, c->index, c->n, err) : 0;
}

int iwp_clip_hash(struct iwp_clip *c, uint8_t sha[32], iwp_err *err) {
    if (c->film) return iwp_film_hash(c->film, sha, err);
    const struct iwp_image_limits lim = iwp_image_default_limits();
    struct iwp_sha256 s;
    iwp_sha256_init(&s);
    for (int32_t i = 0; i < c->n; i++) {
        uint8_t *data;
        size_t n;
        IWP_TRY(iwp_file_read(c->file[c->index[i]], (size_t)lim.max_bytes, &data, &n, err));
        const uint64_t size = n;
        iwp_sha256_add(&s, &size, sizeof size);
        iwp_sha256_add(&s, data, n);
        free(data);
    }
    iwp_sha256_end(&s, sha);
    return 0;
}
