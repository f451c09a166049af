/* Hashes of media: see digest.h. */
#include "eval/digest.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "eval/store.h"
#include "media/clip.h"

struct iwp_digest {
    char *file; /* absolute; NULL: free */
    bool video;
    int64_t bytes;
    char time[40]; /* last change, seconds and nanoseconds */
    char sha[65];
};

void iwp_digests_free(struct iwp_digests *d) {
    for (int32_t i = 0; i < d->cap; i++) free(d->at[i].file);
    free(d->at);
    memset(d, 0, sizeof *d);
}

/* Where a file is, or would be. */
static struct iwp_digest *slot(const struct iwp_digests *d, const char *file, bool video) {
    const uint32_t mask = (uint32_t)d->cap - 1;
    uint32_t i = (uint32_t)iwp_fnv64(IWP_FNV64_INIT, file, strlen(file)) & mask;
    while (d->at[i].file && (d->at[i].video != video || strcmp(d->at[i].file, file)))
        i = (i + 1) & mask;
    return &d->at[i];
}

static int grow(struct iwp_digests *d, iwp_err *err) {
    struct iwp_digests old = *d;
    d->cap = old.cap ? 2 * old.cap : 256;
    d->at = calloc((size_t)d->cap, sizeof *d->at);
    if (!d->at) {
        *d = old;
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    for (int32_t i = 0; i < old.cap; i++)
        if (old.at[i].file) *slot(d, old.at[i].file, old.at[i].video) = old.at[i];
    free(old.at);
    return 0;
}

static int put(struct iwp_digests *d, const struct iwp_digest *e, iwp_err *err) {
    if (2 * d->n >= d->cap) IWP_TRY(grow(d, err));
    struct iwp_digest *at = slot(d, e->file, e->video);
    char *file = at->file ? at->file : strdup(e->file);
    IWP_REQUIRE(file, err, IWP_ENOMEM, "out of memory");
    if (!at->file) d->n++;
    *at = *e;
    at->file = file;
    return 0;
}

/* ---- media.jsonl ------------------------------------------------------------------------------------ */

static int read_line(struct iwp_digests *d, const char *line, size_t n, iwp_err *err) {
    cJSON *o = NULL;
    struct iwp_digest e;
    memset(&e, 0, sizeof e);
    if (iwp_json_parse(line, n, (struct iwp_json_limits){0}, &o, NULL) < 0) return 0;
    const cJSON *file = cJSON_GetObjectItemCaseSensitive(o, "file");
    const cJSON *time = cJSON_GetObjectItemCaseSensitive(o, "time");
    const cJSON *sha = cJSON_GetObjectItemCaseSensitive(o, "sha256");
    int rc = 0;
    if (cJSON_IsString(file) && cJSON_IsString(time) && cJSON_IsString(sha) &&
        strlen(sha->valuestring) == 64 &&
        iwp_json_get_int(cJSON_GetObjectItemCaseSensitive(o, "bytes"), 0, INT64_C(1) << 53,
                         &e.bytes)) {
        e.file = file->valuestring;
        e.video = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "video"));
        snprintf(e.time, sizeof e.time, "%s", time->valuestring);
        memcpy(e.sha, sha->valuestring, sizeof e.sha);
        rc = put(d, &e, err);
    }
    cJSON_Delete(o);
    return rc;
}

int iwp_digests_open(struct iwp_digests *d, const char *dir, struct iwp_sampling sampling,
                     iwp_err *err) {
    memset(d, 0, sizeof *d);
    d->sampling = sampling;
    const int n = snprintf(d->path, sizeof d->path, "%s/media.jsonl", dir);
    IWP_REQUIRE(n > 0 && (size_t)n < sizeof d->path, err, IWP_EINVAL, "%.100s…: path too long",
                dir);
    IWP_TRY(grow(d, err));
    if (access(d->path, F_OK) != 0) return 0;
    IWP_TRY(iwp_eval_lines_repair(d->path, err));
    uint8_t *data;
    size_t size;
    IWP_TRY(iwp_file_read(d->path, (size_t)1 << 30, &data, &size, err));
    int rc = 0;
    for (char *p = (char *)data, *e; rc >= 0 && (e = strchr(p, '\n')) != NULL; p = e + 1)
        rc = read_line(d, p, (size_t)(e - p), err);
    free(data);
    return rc;
}

static int remember(struct iwp_digests *d, const struct iwp_digest *e, iwp_err *err) {
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_string(&w, "file", e->file);
    if (e->video) iwp_json_put_bool(&w, "video", true);
    iwp_json_put_int(&w, "bytes", e->bytes);
    iwp_json_put_string(&w, "time", e->time);
    iwp_json_put_string(&w, "sha256", e->sha);
    iwp_json_close_object(&w);
    int rc = iwp_eval_lines_append_json(d->path, &w, err);
    return rc < 0 ? rc : put(d, e, err);
}

/* ---- media ------------------------------------------------------------------------------------------ */

/* Frames that are taken; *sha stays empty when they cannot be read. */
static void hash_clip(const struct iwp_digests *d, char *const *path, int32_t n, char sha[65]) {
    const struct iwp_clip_params p = {.sampling = d->sampling};
    struct iwp_clip *c = NULL;
    uint8_t digest[32];
    int rc = n > 1 ? iwp_clip_open_files(&c, (const char *const *)path, n, &p, NULL)
                   : iwp_clip_open(&c, path[0], &p, NULL);
    if (rc >= 0 && iwp_clip_hash(c, digest, NULL) >= 0) iwp_sha256_hex(digest, sha);
    iwp_clip_close(c);
}

/* One file, by what is remembered of it or by its bytes. */
static int hash_file(struct iwp_digests *d, char *const *path, bool video, char sha[65],
                     iwp_err *err) {
    struct stat st;
    char file[PATH_MAX];
    sha[0] = 0;
    if (stat(path[0], &st) != 0 || !realpath(path[0], file)) return 0;
    if (!S_ISREG(st.st_mode)) {
        if (video) hash_clip(d, path, 1, sha);
        return 0;
    }
    struct iwp_digest e = {.file = file, .video = video, .bytes = st.st_size};
    snprintf(e.time, sizeof e.time, "%lld.%09ld", (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    const struct iwp_digest *known = slot(d, file, video);
    /* A list of frames does not change when its frames do. */
    const char *dot = strrchr(file, '.');
    const bool list = video && dot && !strcmp(dot, ".txt");
    if (!list && known->file && known->bytes == e.bytes && !strcmp(known->time, e.time)) {
        memcpy(sha, known->sha, sizeof known->sha);
        return 0;
    }
    if (video) hash_clip(d, path, 1, e.sha);
    if (!e.sha[0] && iwp_sha256_file(file, e.sha, NULL) < 0) return 0;
    memcpy(sha, e.sha, sizeof e.sha);
    return list ? 0 : remember(d, &e, err);
}

int iwp_digests_sample(struct iwp_digests *d, struct iwp_eval_sample *s, iwp_err *err) {
    if (s->sha) return 0;
    const bool frames = s->video && s->n_media > 1;
    const int32_t n = frames ? 1 : s->n_media;
    s->sha = calloc((size_t)n, sizeof *s->sha);
    IWP_REQUIRE(s->sha, err, IWP_ENOMEM, "out of memory");
    s->n_sha = n;
    if (frames) {
        hash_clip(d, s->path, s->n_media, s->sha[0]);
        return 0;
    }
    for (int32_t i = 0; i < n; i++) IWP_TRY(hash_file(d, &s->path[i], s->video, s->sha[i], err));
    return 0;
}

int iwp_digests_check(struct iwp_digests *d, struct iwp_eval_sample *s,
                      const struct iwp_eval_record *answer, const char *path, iwp_err *err) {
    if (!answer->media) return 0; /* written before hashes were */
    IWP_TRY(iwp_digests_sample(d, s, err));
    const char *p = answer->media;
    for (int32_t i = 0; i < s->n_sha; i++) {
        const size_t n = strcspn(p, " ");
        IWP_REQUIRE(n == strlen(s->sha[i]) && !strncmp(p, s->sha[i], n), err, IWP_EINVAL,
                    "%.200s: is not what it was when %.200s was written; give another --out",
                    s->path[i], path);
        p += n + (p[n] != 0);
    }
    return 0;
}
