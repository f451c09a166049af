/* LLaVA-OneVision: AnyRes tiles, several pictures, video frames; spec/eval 2.11 and the library's
 * Pillow processor.  Three roundings differ on purpose, as there: the resized picture is rounded up,
 * the unpadded map down, and the capped map by Python's floor division of floats.
 * Refuses nothing but what iwp_pre_plan_make refuses. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "media/preprocess_impl.h"

/* int(round(x, 7)) of Python for x >= 0: x is cut unless it lies within half of 1e-7 below the next
 * integer. */
static int32_t cut_rounded7(double x) {
    double f = floor(x);
    return (int32_t)(f + 1 - x <= 5e-8 ? f + 1 : f);
}

/* int(a // b) of Python floats, a >= 0, b > 0. */
static int32_t floor_div(double a, double b) {
    double q = (a - fmod(a, b)) / b, f = floor(q);
    return (int32_t)(q - f > 0.5 ? f + 1 : f);
}

/* The canvas that keeps most of the picture's pixels, then wastes least, then comes first; only those
 * of fewer than `below` tiles. Returns its index or -1. */
static int32_t best_pinpoint(const struct iwp_pre_params *p, int32_t w, int32_t h, int32_t below) {
    int64_t most = 0, least_waste = 0;
    int32_t best = -1;
    for (int32_t i = 0; i < p->n_pinpoint; i++) {
        int64_t ch = p->pinpoint[i][0], cw = p->pinpoint[i][1];
        if (ch / p->tile * (cw / p->tile) >= below) continue;
        double sx = (double)cw / w, sy = (double)ch / h, s = sx < sy ? sx : sy;
        int64_t kept = (int64_t)(w * s) * (int64_t)(h * s), all = (int64_t)w * h;
        if (kept > all) kept = all;
        int64_t waste = cw * ch - kept;
        if (best < 0 || kept > most || (kept == most && waste < least_waste)) {
            most = kept;
            least_waste = waste;
            best = i;
        }
    }
    return best;
}

static int32_t ceil_to(double x, int32_t limit) {
    double c = ceil(x);
    return c > limit ? limit : (int32_t)c;
}

/* One canvas: size of the resized picture, the unpadded map, the capped map, the token count. */
static void plan_canvas(const struct iwp_pre_params *p, struct iwp_pre_plan *q, int32_t pin) {
    int32_t w = q->w, h = q->h, ch = p->pinpoint[pin][0], cw = p->pinpoint[pin][1];
    q->canvas_h = ch;
    q->canvas_w = cw;
    q->rows = ch / p->tile;
    q->cols = cw / p->tile;
    q->n_tile = 1 + q->rows * q->cols;

    double sx = (double)cw / w, sy = (double)ch / h;
    q->resized_w = sx < sy ? cw : ceil_to(w * sy, cw);
    q->resized_h = sx < sy ? ceil_to(h * sx, ch) : ch;
    q->pad_left = (cw - q->resized_w) / 2;
    q->pad_top = (ch - q->resized_h) / 2;

    int32_t fh = q->rows * q->side, fw = q->cols * q->side;
    q->map_x = q->map_y = 0;
    if ((double)w / h > (double)fw / fh)
        q->map_y = (fh - cut_rounded7(h * ((double)fw / w))) / 2;
    else
        q->map_x = (fw - cut_rounded7(w * ((double)fh / h))) / 2;
    q->map_w = q->out_w = fw - 2 * q->map_x;
    q->map_h = q->out_h = fh - 2 * q->map_y;
    if (p->anyres_max > 0) {
        double cap = (double)p->anyres_max * q->side * q->side;
        double ratio = sqrt((double)q->map_h * q->map_w / cap);
        if (ratio > 1.1) {
            q->out_h = floor_div(q->map_h, ratio);
            q->out_w = floor_div(q->map_w, ratio);
        }
    }
    q->n_token = q->side * q->side + q->out_h * (q->out_w + 1);
}

static void plan_one_tile(struct iwp_pre_plan *q) {
    int32_t n = q->w > q->h ? q->w : q->h;
    bool pad = q->mode == IWP_PRE_SEVERAL;
    q->rows = q->cols = 0;
    q->map_x = q->map_y = q->map_w = q->map_h = 0;
    q->canvas_w = pad ? n : q->w;
    q->canvas_h = pad ? n : q->h;
    q->resized_w = q->w;
    q->resized_h = q->h;
    q->pad_left = pad ? (n - q->w) / 2 : 0;
    q->pad_top = pad ? (n - q->h) / 2 : 0;
    q->out_w = q->out_h = q->mode == IWP_PRE_VIDEO ? (q->side + 1) / 2 : q->side;
    q->n_tile = q->n_frame;
    q->n_token = q->n_tile * q->out_w * q->out_h + 1;
}

int iwp_pre_llava_plan(const struct iwp_pre_params *p, struct iwp_pre_plan *q, iwp_err *err) {
    q->side = p->tile / p->patch;
    if (q->mode == IWP_PRE_SINGLE) {
        int32_t below = INT32_MAX, pin = best_pinpoint(p, q->w, q->h, below);
        while (pin >= 0) {
            plan_canvas(p, q, pin);
            if (!p->max_tokens || q->n_token <= p->max_tokens) break;
            below = q->rows * q->cols;
            pin = best_pinpoint(p, q->w, q->h, below);
        }
        if (pin < 0) {
            q->mode = IWP_PRE_BASE;
            plan_one_tile(q);
        }
    } else {
        plan_one_tile(q);
    }
    IWP_REQUIRE(q->n_token > 0, err, IWP_EINTERNAL, "no visual tokens");
    q->n_dim = 4;
    q->shape[0] = q->n_tile;
    q->shape[1] = 3;
    q->shape[2] = q->shape[3] = p->tile;
    return 0;
}

static int anyres_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *q,
                         const struct iwp_image *im, const struct iwp_pre_table *t, float *pixels,
                         iwp_err *err) {
    int rc = 0;
    size_t n = (size_t)3 * (size_t)p->tile * (size_t)p->tile;
    struct iwp_image base = {0}, fitted = {0}, canvas = {0};
    const uint8_t black[3] = {0, 0, 0};
    IWP_TRY_GOTO(iwp_image_resize(im, p->tile, p->tile, p->filter, &base, err));
    iwp_pre_table_apply(t, &base, 0, 0, p->tile, pixels);
    IWP_TRY_GOTO(iwp_image_resize(im, q->resized_w, q->resized_h, p->filter, &fitted, err));
    IWP_TRY_GOTO(iwp_image_new(&canvas, q->canvas_w, q->canvas_h, black, err));
    iwp_pre_paste(&canvas, &fitted, q->pad_left, q->pad_top);
    for (int32_t r = 0; r < q->rows; r++)
        for (int32_t c = 0; c < q->cols; c++)
            iwp_pre_table_apply(t, &canvas, c * p->tile, r * p->tile, p->tile,
                                pixels + (size_t)(1 + r * q->cols + c) * n);
fail:
    iwp_image_free(&base);
    iwp_image_free(&fitted);
    iwp_image_free(&canvas);
    return rc;
}

int iwp_pre_llava_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *q,
                         const struct iwp_image *frames, float *pixels, iwp_err *err) {
    struct iwp_pre_table t;
    iwp_pre_table_init(&t, p);
    if (q->rows) return anyres_pixels(p, q, frames, &t, pixels, err);
    size_t n = (size_t)3 * (size_t)p->tile * (size_t)p->tile;
    for (int32_t i = 0; i < q->n_frame; i++) {
        struct iwp_image tile;
        IWP_TRY(iwp_pre_one_tile(
            p, &frames[i], q->mode == IWP_PRE_SEVERAL ? IWP_PRE_PAD : IWP_PRE_SQUASH, &tile, err));
        iwp_pre_table_apply(&t, &tile, 0, 0, p->tile, pixels + (size_t)i * n);
        iwp_image_free(&tile);
    }
    return 0;
}

/* Projector row of feature y, x of the canvas. */
static int32_t canvas_row(const struct iwp_pre_plan *q, int32_t y, int32_t x) {
    int32_t tile = 1 + y / q->side * q->cols + x / q->side;
    return (tile * q->side + y % q->side) * q->side + x % q->side;
}

static void put_map(const struct iwp_pre_plan *q, struct iwp_pre_row *r) {
    bool same = q->out_w == q->map_w && q->out_h == q->map_h;
    for (int32_t y = 0; y < q->out_h; y++) {
        int32_t unit = 0;
        for (int32_t x = 0; x < q->out_w; x++, r++) {
            *r = (struct iwp_pre_row){.n = 1, .weight = {1}, .grid = 1, .y = y, .x = x};
            /* The tile under the centre of the token; without the cap, the token's own. */
            int32_t cy = (int32_t)(((int64_t)2 * y + 1) * q->map_h / (2 * q->out_h));
            int32_t cx = (int32_t)(((int64_t)2 * x + 1) * q->map_w / (2 * q->out_w));
            unit = canvas_row(q, q->map_y + cy, q->map_x + cx) / (q->side * q->side);
            r->unit = unit;
            if (same) {
                r->row[0] = canvas_row(q, q->map_y + y, q->map_x + x);
                continue;
            }
            int32_t at[4][2];
            r->n = 4;
            iwp_pre_bilinear(q->map_h, q->map_w, q->out_h, q->out_w, y, x, at, r->weight);
            for (int i = 0; i < 4; i++)
                r->row[i] = canvas_row(q, q->map_y + at[i][0], q->map_x + at[i][1]);
        }
        *r++ = (struct iwp_pre_row){.grid = 1, .unit = unit, .y = y, .x = q->out_w};
    }
}

void iwp_pre_llava_rows(const struct iwp_pre_plan *q, struct iwp_pre_row *r) {
    int32_t area = q->side * q->side;
    if (q->mode == IWP_PRE_VIDEO) {
        for (int32_t f = 0; f < q->n_frame; f++)
            for (int32_t y = 0; y < q->out_h; y++)
                for (int32_t x = 0; x < q->out_w; x++, r++) {
                    int32_t at[4][2];
                    *r = (struct iwp_pre_row){.n = 4, .grid = f, .unit = f, .y = y, .x = x};
                    iwp_pre_bilinear(q->side, q->side, q->out_h, q->out_w, y, x, at, r->weight);
                    for (int i = 0; i < 4; i++)
                        r->row[i] = f * area + at[i][0] * q->side + at[i][1];
                }
        *r = (struct iwp_pre_row){
            .grid = q->n_frame - 1, .unit = q->n_frame - 1, .y = q->out_h - 1, .x = q->out_w};
        return;
    }
    for (int32_t i = 0; i < area; i++)
        *r++ = (struct iwp_pre_row){
            .n = 1, .row = {i}, .weight = {1}, .y = i / q->side, .x = i % q->side};
    if (q->rows)
        put_map(q, r);
    else
        *r = (struct iwp_pre_row){.y = q->side - 1, .x = q->side};
}
