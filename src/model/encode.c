/* Items of a prompt: see encode.h. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "media/film.h"
#include "model/encode.h"

enum { MAX_ENTRY = 1024 };
enum { BATCH_BYTES = 64 << 20, THUMB = 384 };

struct entry {
    uint8_t key[32], sha[32];
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
    pthread_mutex_t lock; /* over changes of entry and n: others look whether a picture is there */
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
    pthread_mutex_init(&e->lock, NULL);
    e->tower = t;
    e->cap = cache_bytes ? cache_bytes : (size_t)512 << 20;
    *out = e;
    return 0;
}

void iwp_encoder_free(struct iwp_encoder *e) {
    if (!e) return;
    for (int32_t i = 0; i < e->n; i++) iwp_tower_out_free(&e->entry[i].out);
    pthread_mutex_destroy(&e->lock);
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

static void store_locked(struct iwp_encoder *e, const uint8_t key[32], struct iwp_item *it,
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
    memcpy(c->sha, it->sha, 32);
    e->bytes += bytes;
    it->own = (struct iwp_tower_out){0};
    it->out = &c->out;
}

/* Takes it->own over when it fits at all; otherwise it stays with the item. */
static void store(struct iwp_encoder *e, const uint8_t key[32], struct iwp_item *it,
                  int32_t block) {
    pthread_mutex_lock(&e->lock);
    store_locked(e, key, it, block);
    pthread_mutex_unlock(&e->lock);
}

/* Was this picture encoded, in whatever way? */
static bool seen(struct iwp_encoder *e, const uint8_t sha[32]) {
    bool yes = false;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->n && !yes; i++) yes = memcmp(e->entry[i].sha, sha, 32) == 0;
    pthread_mutex_unlock(&e->lock);
    return yes;
}

/* ---- Reading ------------------------------------------------------------------------------- */

void iwp_item_free(struct iwp_item *it) {
    for (int32_t i = 0; i < it->n_frame && it->frame; i++) iwp_image_free(&it->frame[i]);
    free(it->frame);
    iwp_image_free(&it->picture);
    free(it->bytes);
    iwp_clip_close(it->clip);
    free(it->ready);
    free(it->pixel_values);
    free(it->keep);
    iwp_tower_out_free(&it->own);
    *it = (struct iwp_item){0};
}

static int read_video(struct iwp_encoder *e, struct iwp_item *it,
                      const struct iwp_prompt_request *r, iwp_err *err) {
    const struct iwp_pre_params *pre = &iwp_tower_info(e->tower)->pre;
    const struct iwp_part *p = it->part;
    const struct iwp_clip_params cp = {
        .sampling = {.frames = r->frames,
                     .fps = r->fps,
                     .factor = pre->kind == IWP_PRE_QWEN2_5_VL ? pre->temporal : 1},
        .cancel = r->cancel,
        .cancel_ctx = r->cancel_ctx};
    const double start = iwp_clock_ms();
    if (p->frame)
        IWP_TRY(iwp_clip_open_files(&it->clip, p->frame, p->n_frame, &cp, err));
    else if (p->data)
        IWP_TRY(iwp_clip_open_bytes(&it->clip, p->data, p->size, &cp, err));
    else
        IWP_TRY(iwp_clip_open(&it->clip, p->file, &cp, err));
    it->n_frame = iwp_clip_info(it->clip).n_frame;
    IWP_TRY(iwp_clip_hash(it->clip, it->sha, err));
    it->ms_decode += iwp_clock_ms() - start;
    return 0;
}

static int read_picture(struct iwp_item *it, iwp_err *err) {
    const struct iwp_part *p = it->part;
    const struct iwp_image_limits lim = iwp_image_default_limits();
    struct stat st;
    if (p->data) {
        IWP_REQUIRE(p->size <= (size_t)lim.max_bytes, err, IWP_EINVAL,
                    "%s: %zu bytes are too many for a picture", it->label, p->size);
        it->bytes = malloc(p->size + 1);
        IWP_REQUIRE(it->bytes, err, IWP_ENOMEM, "out of memory for a picture of %zu bytes",
                    p->size);
        memcpy(it->bytes, p->data, p->size);
        it->size = p->size;
        return 0;
    }
    IWP_REQUIRE(stat(p->file, &st) == 0, err, IWP_EIO, "%s: %s", p->file, strerror(errno));
    IWP_REQUIRE(!S_ISDIR(st.st_mode), err, IWP_EINVAL,
                "%s: is a folder; frames of a video go to --video", p->file);
    return iwp_file_read(p->file, (size_t)lim.max_bytes, &it->bytes, &it->size, err);
}

static bool take_prepared(struct iwp_pictures *p, const struct iwp_part *part,
                          enum iwp_pre_mode mode, struct iwp_item *out) {
    for (int32_t i = 0; p && i < p->n; i++) {
        struct iwp_item *it = &p->item[i];
        if (it->part != part || it->mode != mode) continue;
        *out = *it;
        *it = (struct iwp_item){0};
        return true;
    }
    return false;
}

int iwp_item_read(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_part *part,
                  enum iwp_pre_mode mode, const struct iwp_prompt_request *r, iwp_err *err) {
    if (take_prepared(r->pictures, part, mode, it)) return 0;
    *it = (struct iwp_item){.part = part, .mode = mode, .n_frame = 1, .max_pixels = r->max_pixels};
    const bool video = part->kind == IWP_PART_VIDEO;
    snprintf(it->label, sizeof it->label, "%s",
             part->file && *part->file ? part->file
             : video                   ? "video of the request"
                                       : "picture of the request");
    IWP_REQUIRE(part->data || part->frame || (part->file && *part->file), err, IWP_EINVAL,
                "a %s without a file name", video ? "video" : "picture");
    if (video) return read_video(e, it, r, err);
    IWP_TRY(read_picture(it, err));
    struct iwp_sha256 s;
    const uint64_t n = it->size;
    iwp_sha256_init(&s);
    iwp_sha256_add(&s, &n, sizeof n);
    iwp_sha256_add(&s, it->bytes, it->size);
    iwp_sha256_end(&s, it->sha);
    return 0;
}

/* ---- Planning and encoding ------------------------------------------------------------------ */

/* The picture, or the size of the video's frames. */
static int decode(struct iwp_item *it, iwp_err *err) {
    if (it->width > 0) return 0;
    struct iwp_image_limits lim = iwp_image_default_limits();
    if (it->max_pixels > 0 && it->max_pixels < lim.max_pixels) lim.max_pixels = it->max_pixels;
    const double start = iwp_clock_ms();
    if (it->clip) {
        IWP_TRY(iwp_clip_size(it->clip, &it->width, &it->height, err));
        IWP_REQUIRE(it->max_pixels <= 0 || (int64_t)it->width * it->height <= it->max_pixels, err,
                    IWP_EINVAL, "%s: frames of %d x %d pixels, the limit is %lld in all", it->label,
                    it->width, it->height, (long long)it->max_pixels);
    } else {
        int rc = iwp_image_decode(it->bytes, it->size, &lim, &it->picture, err);
        IWP_REQUIRE(rc != IWP_ENOTSUP || !iwp_film_likely(it->bytes, it->size), err, IWP_ENOTSUP,
                    "%s: is a film, not a picture; films go to --video", it->label);
        if (rc < 0) return iwp_err_prefix(err, rc, "%s", it->label);
        it->width = it->picture.w;
        it->height = it->picture.h;
    }
    it->ms_decode += iwp_clock_ms() - start;
    return 0;
}

static int limits(const struct iwp_encoder *e, const struct iwp_item *it,
                  const struct iwp_prompt_request *r, struct iwp_pre_params *p, iwp_err *err) {
    *p = iwp_tower_info(e->tower)->pre;
    IWP_TRY(iwp_pre_params_tiles(p, r->image_tiles, err));
    IWP_TRY(iwp_pre_params_limit_tokens(p, r->image_min_tokens, r->image_max_tokens, err));
    if (it->clip && iwp_clip_info(it->clip).film)
        iwp_pre_params_limit_film(p, it->n_frame, r->image_min_tokens > 0, r->image_max_tokens > 0);
    return 0;
}

int iwp_item_plan(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_prompt_request *r,
                  iwp_err *err) {
    struct iwp_pre_params p;
    IWP_TRY(limits(e, it, r, &p, err));
    IWP_TRY(decode(it, err));
    int rc = iwp_pre_plan_make(&p, it->width, it->height, it->n_frame, it->mode, &it->plan, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "%s", it->label);
    /* Tiles cannot be smaller than a tile; with a target (resize) the picture is still to be shrunk. */
    IWP_REQUIRE(it->n_frame > 1 || it->target > 0 || !p.max_tokens ||
                    it->plan.n_token <= p.max_tokens,
                err, IWP_EINVAL,
                "--image-max-tokens %d: this model makes at least %d visual tokens of a picture",
                p.max_tokens, it->plan.n_token);
    return 0;
}

/* The resize control: the same picture, smaller. */
static int shrink(const struct iwp_pre_params *p, struct iwp_item *it, iwp_err *err) {
    struct iwp_pre_fit fit;
    IWP_TRY(
        iwp_pre_fit_tokens(p, it->width, it->height, it->n_frame, it->mode, it->target, &fit, err));
    IWP_REQUIRE(fit.n_token <= it->target, err, IWP_EINVAL,
                "%s: method resize reaches %d to %d visual tokens of %s with this model, not %d",
                it->counted ? "--keep-tokens" : "--keep", fit.n_token, it->plan.n_token, it->label,
                it->target);
    it->small_w = fit.w;
    it->small_h = fit.h;
    it->mode = fit.mode;
    return iwp_pre_plan_make(p, fit.w, fit.h, it->n_frame, fit.mode, &it->plan, err);
}

int iwp_encoder_try(struct iwp_encoder *e, const struct iwp_prompt_request *r, int32_t side,
                    struct iwp_item *it, iwp_err *err) {
    *it = (struct iwp_item){
        .mode = IWP_PRE_SINGLE, .label = "a picture", .width = side, .height = side, .n_frame = 1};
    struct iwp_pre_params p;
    IWP_TRY(iwp_item_plan(e, it, r, err));
    const int32_t n = it->plan.n_token;
    it->target = r->resize_tokens > 0 ? r->resize_tokens
                 : r->resize_keep > 0 ? iwp_keep_count(r->resize_keep, n)
                                      : 0;
    it->counted = r->resize_tokens > 0;
    if (it->target == 0 || it->target >= n) return n;
    IWP_TRY(limits(e, it, r, &p, err));
    IWP_TRY(shrink(&p, it, err));
    return n;
}

/* A small copy of frame i, for drawings. */
static int keep_thumb(struct iwp_item *it, int32_t i, const struct iwp_image *im, iwp_err *err) {
    if (!it->frame) it->frame = calloc((size_t)it->n_frame, sizeof *it->frame);
    IWP_REQUIRE(it->frame, err, IWP_ENOMEM, "out of memory for %d frames", it->n_frame);
    const int32_t side = im->w > im->h ? im->w : im->h, cap = side < THUMB ? side : THUMB;
    int32_t w = (int32_t)((int64_t)im->w * cap / side), h = (int32_t)((int64_t)im->h * cap / side);
    return iwp_image_resize(im, w > 0 ? w : 1, h > 0 ? h : 1, IWP_FILTER_BILINEAR, &it->frame[i],
                            err);
}

/* The next frame as it enters the preprocessor. */
static int next_frame(struct iwp_item *it, const struct iwp_prompt_request *r, int32_t i,
                      const struct iwp_pre_params *p, struct iwp_image *out, iwp_err *err) {
    if (it->clip) {
        int rc = iwp_clip_next(it->clip, out, err);
        IWP_TRY(rc);
        IWP_REQUIRE(rc > 0, err, IWP_EINTERNAL, "%s: frame %d is missing", it->label, i);
        if (r->keep_pixels) rc = keep_thumb(it, i, out, err);
        if (rc < 0) return rc;
    } else if (r->keep_pixels) {
        *out = (struct iwp_image){it->picture.w, it->picture.h, NULL};
        const size_t n = (size_t)out->w * (size_t)out->h * 3;
        out->rgb = malloc(n);
        IWP_REQUIRE(out->rgb, err, IWP_ENOMEM, "%s: out of memory", it->label);
        memcpy(out->rgb, it->picture.rgb, n);
    } else {
        *out = it->picture;
        it->picture = (struct iwp_image){0};
    }
    if (!it->small_w) return 0;
    struct iwp_image small;
    IWP_TRY(iwp_image_resize(out, it->small_w, it->small_h, p->filter, &small, err));
    iwp_image_free(out);
    *out = small;
    return 0;
}

static void make_key(const struct iwp_item *it, const struct iwp_prompt_request *r,
                     uint8_t key[32]) {
    const int32_t what[7] = {(int32_t)it->mode,
                             r->image_min_tokens,
                             r->image_max_tokens,
                             r->image_tiles,
                             it->target,
                             it->n_frame,
                             it->clip && iwp_clip_info(it->clip).film};
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

/* How many frames are prepared and encoded together: whole temporal patches. */
static int32_t batch_size(const struct iwp_item *it) {
    const struct iwp_pre_plan *q = &it->plan;
    const int32_t unit = q->temporal > 1 ? q->temporal : 1;
    const int64_t rgb = (int64_t)it->width * it->height * 3;
    const int64_t one = rgb + (int64_t)(q->n_pixel / (size_t)it->n_frame * sizeof(float));
    int64_t n = BATCH_BYTES / (one > 0 ? one : 1) / unit * unit;
    if (n < unit) n = unit;
    return n < it->n_frame ? (int32_t)n : it->n_frame;
}

static int append(float **to, size_t have, float **from, size_t n, iwp_err *err) {
    if (!*from || !n) return 0;
    if (!have) { /* the first part is taken as it is */
        free(*to);
        *to = *from;
        *from = NULL;
        return 0;
    }
    float *p = realloc(*to, (have + n) * sizeof *p);
    IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory for %zu visual values", have + n);
    memcpy(p + have, *from, n * sizeof *p);
    *to = p;
    return 0;
}

/* Rows of further frames behind those that are there; frees `part`. */
static int append_out(const struct iwp_tower_info *v, struct iwp_tower_out *o,
                      struct iwp_tower_out *part, iwp_err *err) {
    const size_t d = (size_t)v->d_vision, m = (size_t)v->merge;
    const size_t have = (size_t)o->n_row, n = (size_t)part->n_row;
    int rc = 0;
    IWP_TRY_GOTO(
        append(&o->row, have * (size_t)v->d_model, &part->row, n * (size_t)v->d_model, err));
    IWP_TRY_GOTO(append(&o->vision, (size_t)o->n_vision * d, &part->vision,
                        (size_t)part->n_vision * d, err));
    IWP_TRY_GOTO(append(&o->feature, have * m * d, &part->feature, n * m * d, err));
    IWP_TRY_GOTO(append(&o->q, have * m * d, &part->q, n * m * d, err));
    IWP_TRY_GOTO(append(&o->k, have * m * d, &part->k, n * m * d, err));
    if (part->lead) {
        int32_t *lead = realloc(o->lead, (have + n) * sizeof *lead);
        if (!lead) IWP_FAIL(err, IWP_ENOMEM, "out of memory for %zu visual rows", have + n);
        o->lead = lead;
        for (size_t i = 0; i < n; i++) lead[have + i] = part->lead[i] + (int32_t)have;
    }
    const size_t cls = (size_t)o->n_cls * d, more = (size_t)part->n_cls * d;
    IWP_TRY_GOTO(append(&o->cls_f, cls, &part->cls_f, more, err));
    IWP_TRY_GOTO(append(&o->cls_q, cls, &part->cls_q, more, err));
    IWP_TRY_GOTO(append(&o->cls_k, cls, &part->cls_k, more, err));
    o->n_row += part->n_row;
    o->n_vision += part->n_vision;
    o->n_cls += part->n_cls;
fail:
    iwp_tower_out_free(part);
    return rc;
}

/* Frames [first, first + n) to pixels; `sub` is the plan of that many. */
static int prepare(struct iwp_item *it, const struct iwp_prompt_request *r,
                   const struct iwp_pre_params *p, const struct iwp_pre_plan *sub, int32_t first,
                   struct iwp_image *im, float *pixels, iwp_err *err) {
    double start = iwp_clock_ms();
    int rc = 0;
    int32_t n = 0;
    while (n < sub->n_frame && rc >= 0) {
        rc = next_frame(it, r, first + n, p, &im[n], err);
        n++;
    }
    it->ms_decode += iwp_clock_ms() - start;
    start = iwp_clock_ms();
    if (rc >= 0) rc = iwp_pre_pixels(p, sub, im, pixels, err);
    it->ms_preprocess += iwp_clock_ms() - start;
    while (n > 0) iwp_image_free(&im[--n]);
    return rc;
}

static int encode(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_prompt_request *r,
                  const struct iwp_pre_params *p, iwp_err *err) {
    const int32_t batch = batch_size(it);
    struct iwp_tower_want want = {.vision = r->dump,
                                  .features = r->tap_features,
                                  .qk = r->tap_qk,
                                  .block = r->tap_block,
                                  .merge = it->keep ? &r->tower : NULL,
                                  .keep = it->keep,
                                  .meter = r->meter,
                                  .cancel = r->cancel,
                                  .cancel_ctx = r->cancel_ctx};
    struct iwp_image *im = calloc((size_t)batch, sizeof *im);
    struct iwp_pre_plan sub = it->plan;
    float *pixels = NULL;
    size_t done = 0;
    int rc = 0;
    if (batch < it->n_frame)
        IWP_TRY_GOTO(iwp_pre_plan_make(p, sub.w, sub.h, batch, it->mode, &sub, err));
    const size_t all = r->dump ? it->plan.n_pixel : sub.n_pixel;
    const bool ready = it->ready != NULL;
    pixels = ready ? it->ready : malloc(all * sizeof *pixels);
    it->ready = NULL;
    if (!im || !pixels)
        IWP_FAIL(err, IWP_ENOMEM, "%s: out of memory for %zu pixel values", it->label, all);
    for (int32_t first = 0; first < it->n_frame; first += batch) {
        struct iwp_tower_out part = {0};
        if (it->n_frame - first < batch)
            IWP_TRY_GOTO(
                iwp_pre_plan_make(p, sub.w, sub.h, it->n_frame - first, it->mode, &sub, err));
        float *at = pixels + (r->dump ? done : 0);
        if (!ready) IWP_TRY_GOTO(prepare(it, r, p, &sub, first, im, at, err));
        const double start = iwp_clock_ms();
        if (it->keep) want.keep = it->keep + first / (sub.temporal > 1 ? sub.temporal : 1);
        IWP_TRY_GOTO(iwp_tower_encode(e->tower, &sub, at, &want, &part, err));
        IWP_TRY_GOTO(append_out(iwp_tower_info(e->tower), &it->own, &part, err));
        it->ms_encode += iwp_clock_ms() - start;
        done += sub.n_pixel;
    }
    it->out = &it->own;
    if (r->dump) {
        it->pixel_values = pixels;
        pixels = NULL;
    }
fail:
    free(pixels);
    free(im);
    /* Messages of the film reader name the file already. */
    if (rc < 0 && rc != IWP_ECANCELLED && !it->clip)
        return iwp_err_prefix(err, rc, "%s", it->label);
    return rc;
}

/* ---- Ahead of time -------------------------------------------------------------------------- */

void iwp_pictures_free(struct iwp_pictures *p) {
    if (!p) return;
    for (int32_t i = 0; i < p->n; i++) iwp_item_free(&p->item[i]);
    free(p);
}

/* A picture that is not in the cache: its pixels, or where the size is still to be found (resize) the
 * picture. */
static int make_ready(struct iwp_encoder *e, struct iwp_item *it,
                      const struct iwp_prompt_request *r, iwp_err *err) {
    struct iwp_pre_params p;
    if (seen(e, it->sha)) return 0;
    IWP_TRY(limits(e, it, r, &p, err));
    IWP_TRY(iwp_item_plan(e, it, r, err));
    if (r->resize_keep <= 0 && r->resize_tokens <= 0) {
        struct iwp_image im = {0};
        float *pixels = malloc(it->plan.n_pixel * sizeof *pixels);
        IWP_REQUIRE(pixels, err, IWP_ENOMEM, "%s: out of memory for %zu pixel values", it->label,
                    it->plan.n_pixel);
        int rc = prepare(it, r, &p, &it->plan, 0, &im, pixels, err);
        if (rc < 0) {
            free(pixels);
            return iwp_err_prefix(err, rc, "%s", it->label);
        }
        it->ready = pixels;
    }
    free(it->bytes);
    it->bytes = NULL;
    it->size = 0;
    return 0;
}

/* The k-th picture of a request; *n counts them. */
static const struct iwp_part *picture_part(const struct iwp_prompt_request *r, int32_t k,
                                           int32_t *n) {
    const struct iwp_part *found = NULL;
    *n = 0;
    for (int32_t i = -1; i < r->n_message; i++) {
        const struct iwp_part *part = i < 0 ? r->media : r->message[i].part;
        const int32_t count = i < 0 ? r->n_media : r->message[i].n_part;
        for (int32_t j = 0; j < count; j++)
            if (part[j].kind == IWP_PART_IMAGE && (*n)++ == k) found = &part[j];
    }
    return found;
}

int iwp_encoder_prepare(struct iwp_encoder *e, const struct iwp_prompt_request *r,
                        struct iwp_pictures **out, iwp_err *err) {
    int32_t n;
    *out = NULL;
    picture_part(r, -1, &n);
    if (n == 0 || n > 4096) return 0; /* the latter is refused when the prompt is built */
    struct iwp_pictures *p = calloc(1, sizeof *p + (size_t)n * sizeof p->item[0]);
    IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory for %d pictures", n);
    struct iwp_prompt_request inner = *r;
    inner.pictures = NULL;
    inner.dump = inner.keep_pixels = false;
    int rc = 0;
    for (p->n = 0; p->n < n && rc >= 0;) {
        struct iwp_item *it = &p->item[p->n];
        const struct iwp_part *part = picture_part(r, p->n++, &n);
        rc = iwp_item_read(e, it, part, n > 1 ? IWP_PRE_SEVERAL : IWP_PRE_SINGLE, &inner, err);
        if (rc >= 0) rc = make_ready(e, it, &inner, err);
    }
    if (rc < 0) {
        iwp_pictures_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

/* The rows were known, only pictures of the frames are wanted. */
static int keep_thumbs(struct iwp_item *it, iwp_err *err) {
    for (int32_t i = 0; it->clip && i < it->n_frame; i++) {
        struct iwp_image im;
        int rc = iwp_clip_next(it->clip, &im, err);
        if (rc > 0) rc = keep_thumb(it, i, &im, err);
        iwp_image_free(&im);
        IWP_TRY(rc);
    }
    return 0;
}

int iwp_item_encode(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_prompt_request *r,
                    int32_t n_visual, iwp_err *err) {
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
    IWP_TRY(limits(e, it, r, &p, err));
    IWP_TRY(iwp_item_plan(e, it, r, err));
    if (it->target > 0) IWP_TRY(shrink(&p, it, err));
    /* The pixels are wanted, the rows may be known already. */
    c = r->dump ? NULL : find(e, key);
    if (c && holds(c, r)) {
        c->used = ++e->clock;
        e->hits++;
        it->out = &c->out;
        return r->keep_pixels ? keep_thumbs(it, err) : 0;
    }
    const int64_t n = (int64_t)n_visual + it->plan.n_token;
    IWP_REQUIRE(
        r->n_ctx <= 0 || r->in_tower || n < r->n_ctx, err, IWP_EINVAL,
        "the prompt has at least %lld visual tokens, the context holds %d: raise -c or give "
        "less (%s)",
        (long long)n, r->n_ctx, it->clip ? "--frames" : "pictures: --image-max-tokens");
    e->misses++;
    IWP_TRY(encode(e, it, r, &p, err));
    if (!r->dump) store(e, key, it, r->tap_block);
    return 0;
}
