/* Items of a prompt: see encode.h. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "model/encode.h"

enum { MAX_ENTRY = 1024 };
static const int64_t max_decoded = 4ll << 30; /* bytes of RGB of one item */

struct entry {
    uint8_t key[32];
    int32_t width, height;
    struct iwp_pre_plan plan;
    struct iwp_tower_out out;
    int32_t block; /* of out.q and out.k */
    size_t bytes;
    uint64_t used;
};

struct iwp_encoder {
    struct iwp_tower *tower;
    size_t cap, bytes;
    struct entry *entry; /* [n] */
    int32_t n;
    uint64_t clock;
    int64_t hits, misses;
};

int iwp_encoder_new(struct iwp_encoder **out, struct iwp_tower *t, size_t cache_bytes,
                    iwp_err *err) {
    *out = NULL;
    struct iwp_encoder *e = calloc(1, sizeof *e);
    IWP_REQUIRE(e, err, IWP_ENOMEM, "out of memory");
    e->entry = calloc(MAX_ENTRY, sizeof *e->entry);
    if (!e->entry) {
        free(e);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    e->tower = t;
    e->cap = cache_bytes ? cache_bytes : (size_t)512 << 20;
    *out = e;
    return 0;
}

void iwp_encoder_free(struct iwp_encoder *e) {
    if (!e) return;
    for (int32_t i = 0; i < e->n; i++) iwp_tower_out_free(&e->entry[i].out);
    free(e->entry);
    free(e);
}

struct iwp_encoder_stats iwp_encoder_stats(const struct iwp_encoder *e) {
    return (struct iwp_encoder_stats){e->n, e->bytes, e->hits, e->misses};
}

/* ---- The cache ----------------------------------------------------------------------------- */

static void drop(struct iwp_encoder *e, int32_t i) {
    e->bytes -= e->entry[i].bytes;
    iwp_tower_out_free(&e->entry[i].out);
    e->entry[i] = e->entry[--e->n];
}

static struct entry *find(struct iwp_encoder *e, const uint8_t key[32]) {
    for (int32_t i = 0; i < e->n; i++)
        if (memcmp(e->entry[i].key, key, 32) == 0) return &e->entry[i];
    return NULL;
}

static bool holds(const struct entry *c, const struct iwp_prompt_request *r) {
    if (r->tap_features && !c->out.feature) return false;
    return !r->tap_qk || (c->out.q && c->block == r->tap_block);
}

/* Takes it->own over when it fits at all; otherwise it stays with the item. */
static void store(struct iwp_encoder *e, const uint8_t key[32], struct iwp_item *it,
                  int32_t block) {
    const size_t bytes = iwp_tower_out_bytes(e->tower, &it->own);
    struct entry *old = find(e, key);
    if (old) drop(e, (int32_t)(old - e->entry));
    if (bytes > e->cap) return;
    while (e->n && (e->bytes + bytes > e->cap || e->n == MAX_ENTRY)) {
        int32_t oldest = 0;
        for (int32_t i = 1; i < e->n; i++)
            if (e->entry[i].used < e->entry[oldest].used) oldest = i;
        drop(e, oldest);
    }
    struct entry *c = &e->entry[e->n++];
    *c = (struct entry){.width = it->width,
                        .height = it->height,
                        .plan = it->plan,
                        .out = it->own,
                        .block = block,
                        .bytes = bytes,
                        .used = ++e->clock};
    memcpy(c->key, key, 32);
    e->bytes += bytes;
    it->own = (struct iwp_tower_out){0};
    it->out = &c->out;
}

/* ---- Reading ------------------------------------------------------------------------------- */

void iwp_item_free(struct iwp_item *it) {
    for (int32_t i = 0; i < it->n_frame; i++) {
        if (it->bytes) free(it->bytes[i]);
        if (it->frame) iwp_image_free(&it->frame[i]);
    }
    free(it->bytes);
    free(it->size);
    free(it->frame);
    free(it->pixel_values);
    free(it->keep);
    iwp_tower_out_free(&it->own);
    *it = (struct iwp_item){0};
}

static int reserve_frames(struct iwp_item *it, int32_t n, iwp_err *err) {
    it->bytes = calloc((size_t)n, sizeof *it->bytes);
    it->size = calloc((size_t)n, sizeof *it->size);
    IWP_REQUIRE(it->bytes && it->size, err, IWP_ENOMEM, "out of memory for %d frames", n);
    it->n_frame = n;
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the pictures in a folder, sorted; told by their first bytes. */
static int list_folder(const char *dir, char ***names, int32_t *count, iwp_err *err) {
    char **list = NULL;
    int32_t n = 0, cap = 0;
    int rc = 0;
    DIR *d = opendir(dir);
    IWP_REQUIRE(d, err, IWP_EIO, "%s: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        size_t len = strlen(dir) + strlen(e->d_name) + 2;
        char *path = malloc(len);
        if (!path) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
        snprintf(path, len, "%s/%s", dir, e->d_name);
        uint8_t head[16] = {0};
        struct stat st;
        FILE *f = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
        size_t got = f ? fread(head, 1, sizeof head, f) : 0;
        if (f) fclose(f);
        if (!iwp_image_format(head, got)) {
            free(path);
            continue;
        }
        if (n == cap) {
            cap = cap ? 2 * cap : 64;
            char **p = realloc(list, (size_t)cap * sizeof *p);
            if (!p) {
                free(path);
                IWP_FAIL(err, IWP_ENOMEM, "out of memory");
            }
            list = p;
        }
        list[n++] = path;
    }
    if (!n) IWP_FAIL(err, IWP_EINVAL, "%s: this folder has no pictures", dir);
    qsort(list, (size_t)n, sizeof *list, by_name);
fail:
    closedir(d);
    *names = list;
    *count = n;
    return rc;
}

static int read_folder(struct iwp_item *it, const char *dir, int32_t want, iwp_err *err) {
    char **name = NULL;
    int32_t n = 0;
    const struct iwp_image_limits lim = iwp_image_default_limits();
    int rc = list_folder(dir, &name, &n, err);
    if (rc >= 0) {
        int32_t m = want > 0 && want < n ? want : n;
        if (m > IWP_PRE_MAX_FRAME)
            IWP_FAIL(err, IWP_EINVAL, "%s: %d frames, at most %d can be used (--frames)", dir, m,
                     IWP_PRE_MAX_FRAME);
        IWP_TRY_GOTO(reserve_frames(it, m, err));
        for (int32_t i = 0; i < m; i++) { /* spread evenly, first and last included */
            int32_t at = m > 1 ? (int32_t)((int64_t)i * (n - 1) / (m - 1)) : 0;
            IWP_TRY_GOTO(
                iwp_file_read(name[at], (size_t)lim.max_bytes, &it->bytes[i], &it->size[i], err));
        }
    }
fail:
    for (int32_t i = 0; i < n; i++) free(name[i]);
    free(name);
    return rc;
}

static int read_part(struct iwp_item *it, const struct iwp_prompt_request *r, iwp_err *err) {
    const struct iwp_part *p = it->part;
    const struct iwp_image_limits lim = iwp_image_default_limits();
    struct stat st;
    if (p->data) {
        IWP_REQUIRE(p->kind == IWP_PART_IMAGE, err, IWP_ENOTSUP,
                    "%s: films cannot be read, only folders of frames", it->label);
        IWP_REQUIRE(p->size <= (size_t)lim.max_bytes, err, IWP_EINVAL,
                    "%s: %zu bytes are too many for a picture", it->label, p->size);
        IWP_TRY(reserve_frames(it, 1, err));
        it->bytes[0] = malloc(p->size + 1);
        IWP_REQUIRE(it->bytes[0], err, IWP_ENOMEM, "out of memory for a picture of %zu bytes",
                    p->size);
        memcpy(it->bytes[0], p->data, p->size);
        it->size[0] = p->size;
        return 0;
    }
    IWP_REQUIRE(p->file && *p->file, err, IWP_EINVAL, "a picture without a file name");
    IWP_REQUIRE(stat(p->file, &st) == 0, err, IWP_EIO, "%s: %s", p->file, strerror(errno));
    if (p->kind == IWP_PART_VIDEO) {
        IWP_REQUIRE(S_ISDIR(st.st_mode), err, IWP_ENOTSUP,
                    "%s: films cannot be read; give a folder of frame pictures", p->file);
        return read_folder(it, p->file, r->frames, err);
    }
    IWP_REQUIRE(!S_ISDIR(st.st_mode), err, IWP_EINVAL,
                "%s: is a folder; frames of a video go to --video", p->file);
    IWP_TRY(reserve_frames(it, 1, err));
    return iwp_file_read(p->file, (size_t)lim.max_bytes, &it->bytes[0], &it->size[0], err);
}

int iwp_item_read(struct iwp_item *it, const struct iwp_part *part,
                  const struct iwp_prompt_request *r, iwp_err *err) {
    *it = (struct iwp_item){.part = part};
    snprintf(it->label, sizeof it->label, "%s",
             part->file && *part->file ? part->file : "picture of the request");
    IWP_TRY(read_part(it, r, err));
    struct iwp_sha256 s;
    iwp_sha256_init(&s);
    for (int32_t i = 0; i < it->n_frame; i++) {
        uint64_t n = it->size[i];
        iwp_sha256_add(&s, &n, sizeof n);
        iwp_sha256_add(&s, it->bytes[i], it->size[i]);
    }
    iwp_sha256_end(&s, it->sha);
    return 0;
}

/* ---- Planning and encoding ------------------------------------------------------------------ */

static int decode(struct iwp_item *it, iwp_err *err) {
    if (it->frame) return 0;
    const double start = iwp_clock_ms();
    int64_t total = 0;
    it->frame = calloc((size_t)it->n_frame, sizeof *it->frame);
    IWP_REQUIRE(it->frame, err, IWP_ENOMEM, "out of memory for %d frames", it->n_frame);
    for (int32_t i = 0; i < it->n_frame; i++) {
        struct iwp_image *f = &it->frame[i];
        int rc = iwp_image_decode(it->bytes[i], it->size[i], NULL, f, err);
        if (rc < 0) {
            if (it->n_frame == 1) return iwp_err_prefix(err, rc, "%s", it->label);
            return iwp_err_prefix(err, rc, "%s: frame %d", it->label, i);
        }
        IWP_REQUIRE(f->w == it->frame[0].w && f->h == it->frame[0].h, err, IWP_EINVAL,
                    "%s: frame %d is %d x %d, the first one %d x %d", it->label, i, f->w, f->h,
                    it->frame[0].w, it->frame[0].h);
        total += (int64_t)f->w * f->h * 3;
        IWP_REQUIRE(total <= max_decoded, err, IWP_EINVAL,
                    "%s: the frames need more than 4 GB; choose fewer with --frames", it->label);
    }
    it->width = it->frame[0].w;
    it->height = it->frame[0].h;
    it->ms_decode += iwp_clock_ms() - start;
    return 0;
}

static int limits(const struct iwp_encoder *e, const struct iwp_prompt_request *r,
                  struct iwp_pre_params *p, iwp_err *err) {
    *p = iwp_tower_info(e->tower)->pre;
    IWP_TRY(iwp_pre_params_tiles(p, r->image_tiles, err));
    return iwp_pre_params_limit_tokens(p, r->image_min_tokens, r->image_max_tokens, err);
}

int iwp_item_plan(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_prompt_request *r,
                  iwp_err *err) {
    struct iwp_pre_params p;
    IWP_TRY(limits(e, r, &p, err));
    IWP_TRY(decode(it, err));
    int rc = iwp_pre_plan_make(&p, it->width, it->height, it->n_frame, it->mode, &it->plan, err);
    return rc < 0 ? iwp_err_prefix(err, rc, "%s", it->label) : 0;
}

/* The resize control: the same picture, smaller. */
static int shrink(const struct iwp_pre_params *p, struct iwp_item *it, iwp_err *err) {
    struct iwp_pre_fit fit;
    IWP_TRY(
        iwp_pre_fit_tokens(p, it->width, it->height, it->n_frame, it->mode, it->target, &fit, err));
    IWP_REQUIRE(fit.n_token <= it->target, err, IWP_EINVAL,
                "method resize reaches %d to %d visual tokens with this model, not %d", fit.n_token,
                it->plan.n_token, it->target);
    for (int32_t i = 0; i < it->n_frame; i++) {
        struct iwp_image small;
        IWP_TRY(iwp_image_resize(&it->frame[i], fit.w, fit.h, p->filter, &small, err));
        iwp_image_free(&it->frame[i]);
        it->frame[i] = small;
    }
    it->mode = fit.mode;
    return iwp_pre_plan_make(p, fit.w, fit.h, it->n_frame, fit.mode, &it->plan, err);
}

static void make_key(const struct iwp_item *it, const struct iwp_prompt_request *r,
                     uint8_t key[32]) {
    const int32_t what[6] = {(int32_t)it->mode, r->image_min_tokens, r->image_max_tokens,
                             r->image_tiles,    it->target,          it->n_frame};
    struct iwp_sha256 s;
    iwp_sha256_init(&s);
    iwp_sha256_add(&s, it->sha, sizeof it->sha);
    iwp_sha256_add(&s, what, sizeof what);
    if (it->keep) {
        iwp_sha256_add(&s, it->keep, (size_t)it->n_keep * sizeof *it->keep);
        iwp_sha256_add(&s, r->tower.opt.bytes, sizeof r->tower.opt.bytes);
    }
    iwp_sha256_end(&s, key);
}

static int encode(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_prompt_request *r,
                  const struct iwp_pre_params *p, iwp_err *err) {
    double start = iwp_clock_ms();
    float *pixels = malloc(it->plan.n_pixel * sizeof *pixels);
    IWP_REQUIRE(pixels, err, IWP_ENOMEM, "%s: out of memory for %zu pixel values", it->label,
                it->plan.n_pixel);
    int rc = iwp_pre_pixels(p, &it->plan, it->frame, pixels, err);
    it->ms_preprocess += iwp_clock_ms() - start;
    start = iwp_clock_ms();
    const struct iwp_tower_want want = {.vision = r->dump,
                                        .features = r->tap_features,
                                        .qk = r->tap_qk,
                                        .block = r->tap_block,
                                        .merge = it->keep ? &r->tower : NULL,
                                        .keep = it->keep,
                                        .cancel = r->cancel,
                                        .cancel_ctx = r->cancel_ctx};
    if (rc >= 0) rc = iwp_tower_encode(e->tower, &it->plan, pixels, &want, &it->own, err);
    it->ms_encode += iwp_clock_ms() - start;
    it->out = &it->own;
    if (rc >= 0 && r->dump)
        it->pixel_values = pixels;
    else
        free(pixels);
    return rc < 0 ? iwp_err_prefix(err, rc, "%s", it->label) : 0;
}

int iwp_item_encode(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_prompt_request *r,
                    iwp_err *err) {
    uint8_t key[32];
    make_key(it, r, key);
    struct entry *c = r->dump || r->keep_pixels ? NULL : find(e, key);
    if (c && holds(c, r)) {
        c->used = ++e->clock;
        e->hits++;
        it->width = c->width;
        it->height = c->height;
        it->plan = c->plan;
        it->out = &c->out;
        return 0;
    }
    struct iwp_pre_params p;
    IWP_TRY(limits(e, r, &p, err));
    IWP_TRY(iwp_item_plan(e, it, r, err));
    if (it->target > 0) {
        int rc = shrink(&p, it, err);
        if (rc < 0) return iwp_err_prefix(err, rc, "%s", it->label);
    }
    /* The pixels are wanted, the rows may be known already. */
    c = r->dump ? NULL : find(e, key);
    if (c && holds(c, r)) {
        c->used = ++e->clock;
        e->hits++;
        it->out = &c->out;
        return 0;
    }
    e->misses++;
    IWP_TRY(encode(e, it, r, &p, err));
    if (!r->dump) store(e, key, it, r->tap_block);
    return 0;
}
