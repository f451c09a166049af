/* CLIP-style towers (LLaVA-1.5 and kin): one square tile a picture, no separators; on request a
 * thumbnail and n x n tiles of a larger square, tile after tile.  Cropped as the library's CLIP processor does, padded with the mean colour before or after resizing, or squashed; and
 * the one-tile step the LLaVA-OneVision code shares.  Cropping refuses pictures more than 200 times
 * longer than wide, whose resized form would be huge for a few pixels of content. */
#include <math.h>

#include "base/err.h"
#include "media/preprocess_impl.h"

/* The shorter side becomes the tile, the longer is cut to an integer. */
static void short_side_size(int32_t w, int32_t h, int32_t tile, int32_t *rw, int32_t *rh) {
    int32_t a = w < h ? w : h, b = w < h ? h : w;
    int32_t longer = (int32_t)((int64_t)tile * b / a);
    *rw = w <= h ? tile : longer;
    *rh = w <= h ? longer : tile;
}

/* The longer side becomes the tile, the shorter is rounded up; in float32 as llama.cpp has it. */
static void long_side_size(int32_t w, int32_t h, int32_t tile, int32_t *rw, int32_t *rh) {
    float sx = (float)tile / (float)w, sy = (float)tile / (float)h, s = sx < sy ? sx : sy;
    float x = ceilf((float)w * s), y = ceilf((float)h * s);
    *rw = x < (float)tile ? (int32_t)x : tile;
    *rh = y < (float)tile ? (int32_t)y : tile;
}

/* A picture of the mean colour. */
static int mean_image(const struct iwp_pre_params *p, int32_t w, int32_t h, struct iwp_image *out,
                      iwp_err *err) {
    uint8_t colour[3];
    for (int c = 0; c < 3; c++) colour[c] = (uint8_t)(p->mean[c] * 255);
    return iwp_image_new(out, w, h, colour, err);
}

/* Padded to a square, then resized.  A long picture would make a huge square, so the two passes of the
 * resize run apart: bands of padded rows horizontally, then the stacked result vertically.  A row of
 * one colour stays that colour, so rows that are all padding need no pass. */
static int pad_and_resize(const struct iwp_pre_params *p, const struct iwp_image *in,
                          struct iwp_image *out, iwp_err *err) {
    enum { BAND = 64 };
    int32_t n = in->w > in->h ? in->w : in->h, left = (n - in->w) / 2, top = (n - in->h) / 2;
    struct iwp_image stack = {0}, band = {0}, part = {0};
    int rc;
    IWP_TRY_GOTO(mean_image(p, p->tile, n, &stack, err));
    for (int32_t y = 0; y < in->h; y += BAND) {
        int32_t rows = in->h - y < BAND ? in->h - y : BAND;
        struct iwp_image src = {in->w, rows, in->rgb + (size_t)y * (size_t)in->w * 3};
        IWP_TRY_GOTO(mean_image(p, n, rows, &band, err));
        iwp_pre_paste(&band, &src, left, 0);
        IWP_TRY_GOTO(iwp_image_resize(&band, p->tile, rows, p->filter, &part, err));
        iwp_pre_paste(&stack, &part, 0, top + y);
        iwp_image_free(&band);
        iwp_image_free(&part);
    }
    IWP_TRY_GOTO(iwp_image_resize(&stack, p->tile, p->tile, p->filter, out, err));
fail:
    iwp_image_free(&stack);
    iwp_image_free(&band);
    iwp_image_free(&part);
    return rc;
}

/* The tile in the middle of a larger picture. */
static int cut_middle(const struct iwp_image *in, int32_t n, struct iwp_image *out, iwp_err *err) {
    const uint8_t black[3] = {0, 0, 0};
    IWP_TRY(iwp_image_new(out, n, n, black, err));
    size_t x = (size_t)((in->w - n) / 2), y = (size_t)((in->h - n) / 2), width = (size_t)in->w;
    for (int32_t r = 0; r < n; r++) {
        struct iwp_image line = {n, 1, in->rgb + ((y + (size_t)r) * width + x) * 3};
        iwp_pre_paste(out, &line, 0, r);
    }
    return 0;
}

int iwp_pre_one_tile(const struct iwp_pre_params *p, const struct iwp_image *in,
                     enum iwp_pre_aspect aspect, struct iwp_image *out, iwp_err *err) {
    struct iwp_image mid = {0};
    int32_t n = p->tile, rw, rh;
    int rc;
    *out = (struct iwp_image){0};
    switch (aspect) {
    case IWP_PRE_PAD:
        if (in->w != in->h) return pad_and_resize(p, in, out, err);
        rc = iwp_image_resize(in, n, n, p->filter, out, err);
        break;
    case IWP_PRE_LETTERBOX:
        long_side_size(in->w, in->h, n, &rw, &rh);
        IWP_TRY(iwp_image_resize(in, rw, rh, p->filter, &mid, err));
        rc = mean_image(p, n, n, out, err);
        if (rc >= 0) iwp_pre_paste(out, &mid, (n - rw) / 2, (n - rh) / 2);
        break;
    case IWP_PRE_CROP:
        short_side_size(in->w, in->h, n, &rw, &rh);
        IWP_TRY(iwp_image_resize(in, rw, rh, p->filter, &mid, err));
        rc = cut_middle(&mid, n, out, err);
        break;
    default: rc = iwp_image_resize(in, n, n, p->filter, out, err);
    }
    iwp_image_free(&mid);
    return rc;
}

/* Tiles a side of a single picture: what was asked for, less until the tokens fit. */
static int32_t tiles_of(const struct iwp_pre_params *p, const struct iwp_pre_plan *q) {
    int32_t n = q->mode == IWP_PRE_SINGLE && p->tiles > 1 ? p->tiles : 1;
    while (n > 1 && p->max_tokens && (1 + n * n) * q->side * q->side > p->max_tokens) n--;
    return n;
}

int iwp_pre_clip_plan(const struct iwp_pre_params *p, struct iwp_pre_plan *q, iwp_err *err) {
    q->side = p->tile / p->patch;
    const int32_t tiles = tiles_of(p, q), square = tiles * p->tile;
    q->map_w = q->map_h = q->out_w = q->out_h = tiles * q->side;
    q->rows = q->cols = tiles > 1 ? tiles : 0;
    q->n_tile = q->n_frame + q->rows * q->cols;
    q->n_token = q->n_tile * q->side * q->side;
    q->canvas_w = q->resized_w = q->w;
    q->canvas_h = q->resized_h = q->h;
    if (p->aspect == IWP_PRE_PAD) {
        q->canvas_w = q->canvas_h = q->w > q->h ? q->w : q->h;
    } else if (p->aspect == IWP_PRE_LETTERBOX) {
        long_side_size(q->w, q->h, square, &q->resized_w, &q->resized_h);
        q->canvas_w = q->canvas_h = square;
    } else if (p->aspect == IWP_PRE_CROP) {
        IWP_REQUIRE(q->w / q->h <= 200 && q->h / q->w <= 200, err, IWP_EINVAL,
                    "picture of %d x %d pixels: one side is more than 200 times the other", q->w,
                    q->h);
        short_side_size(q->w, q->h, square, &q->resized_w, &q->resized_h);
        q->canvas_w = q->canvas_h = square;
    }
    /* Of a difference d the library takes d // 2 from the left when cropping: the same cut here. */
    q->pad_left = (q->canvas_w - q->resized_w) / 2;
    q->pad_top = (q->canvas_h - q->resized_h) / 2;
    q->n_dim = 4;
    q->shape[0] = q->n_tile;
    q->shape[1] = 3;
    q->shape[2] = q->shape[3] = p->tile;
    return 0;
}

int iwp_pre_clip_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *q,
                        const struct iwp_image *frames, float *pixels, iwp_err *err) {
    struct iwp_pre_table t;
    iwp_pre_table_init(&t, p);
    size_t n = (size_t)3 * (size_t)p->tile * (size_t)p->tile;
    for (int32_t i = 0; i < q->n_frame; i++) {
        struct iwp_image tile;
        IWP_TRY(iwp_pre_one_tile(p, &frames[i], p->aspect, &tile, err));
        iwp_pre_table_apply(&t, &tile, 0, 0, p->tile, pixels + (size_t)i * n);
        iwp_image_free(&tile);
    }
    if (!q->rows) return 0;
    struct iwp_pre_params large = *p;
    struct iwp_image canvas;
    large.tile = q->rows * p->tile;
    IWP_TRY(iwp_pre_one_tile(&large, frames, p->aspect, &canvas, err));
    for (int32_t i = 0; i < q->rows * q->cols; i++)
        iwp_pre_table_apply(&t, &canvas, i % q->cols * p->tile, i / q->cols * p->tile, p->tile,
                            pixels + (size_t)(1 + i) * n);
    iwp_image_free(&canvas);
    return 0;
}

void iwp_pre_clip_rows(const struct iwp_pre_plan *q, struct iwp_pre_row *r) {
    int32_t area = q->side * q->side;
    for (int32_t i = 0; i < q->n_token; i++) {
        const int32_t unit = i / area, part = q->rows ? unit - 1 : -1;
        r[i] = (struct iwp_pre_row){.n = 1,
                                    .row = {i},
                                    .weight = {1},
                                    .grid = q->rows && unit ? 1 : unit,
                                    .unit = unit,
                                    .y = i % area / q->side,
                                    .x = i % q->side};
        if (part < 0) continue;
        r[i].y += part / q->cols * q->side;
        r[i].x += part % q->cols * q->side;
    }
}
