/* Preprocessing: settings, the dispatch to the families, and what they share.  See preprocess.h. */
#include "media/preprocess.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "media/preprocess_impl.h"

static const struct family {
    int (*plan)(const struct iwp_pre_params *, struct iwp_pre_plan *, iwp_err *);
    int (*pixels)(const struct iwp_pre_params *, const struct iwp_pre_plan *,
                  const struct iwp_image *, float *, iwp_err *);
    void (*rows)(const struct iwp_pre_plan *, struct iwp_pre_row *);
} families[] = {
    [IWP_PRE_LLAVA_OV] = {iwp_pre_llava_plan, iwp_pre_llava_pixels, iwp_pre_llava_rows},
    [IWP_PRE_QWEN2_5_VL] = {iwp_pre_qwen_plan, iwp_pre_qwen_pixels, iwp_pre_qwen_rows},
    [IWP_PRE_CLIP] = {iwp_pre_clip_plan, iwp_pre_clip_pixels, iwp_pre_clip_rows},
};

/* ---- settings ---------------------------------------------------------------------------- */

static const double clip_mean[3] = {0.48145466, 0.4578275, 0.40821073};
static const double clip_std[3] = {0.26862954, 0.26130258, 0.27577711};

struct iwp_pre_params iwp_pre_default_llava_ov(void) {
    struct iwp_pre_params p = {.kind = IWP_PRE_LLAVA_OV,
                               .patch = 14,
                               .rescale = 1.0 / 255,
                               .mean = {0.5, 0.5, 0.5},
                               .std = {0.5, 0.5, 0.5},
                               .filter = IWP_FILTER_BICUBIC,
                               .tile = 384,
                               .anyres_max = 9};
    for (int32_t r = 1; r <= 6; r++)
        for (int32_t c = 1; c <= 6; c++) {
            p.pinpoint[p.n_pinpoint][0] = r * 384;
            p.pinpoint[p.n_pinpoint++][1] = c * 384;
        }
    return p;
}

struct iwp_pre_params iwp_pre_default_qwen2_5_vl(void) {
    struct iwp_pre_params p = {.kind = IWP_PRE_QWEN2_5_VL,
                               .patch = 14,
                               .rescale = 1.0 / 255,
                               .filter = IWP_FILTER_BICUBIC,
                               .min_pixels = 3136,
                               .max_pixels = 12845056,
                               .merge = 2,
                               .temporal = 2,
                               .window = 112,
                               .tokens_per_second = 2};
    memcpy(p.mean, clip_mean, sizeof p.mean);
    memcpy(p.std, clip_std, sizeof p.std);
    return p;
}

struct iwp_pre_params iwp_pre_default_clip(void) {
    struct iwp_pre_params p = {.kind = IWP_PRE_CLIP,
                               .patch = 14,
                               .rescale = 1.0 / 255,
                               .filter = IWP_FILTER_BICUBIC,
                               .tile = 336,
                               .aspect = IWP_PRE_CROP};
    memcpy(p.mean, clip_mean, sizeof p.mean);
    memcpy(p.std, clip_std, sizeof p.std);
    return p;
}

static int check_tiles(const struct iwp_pre_params *p, iwp_err *err) {
    IWP_REQUIRE(p->tile >= p->patch && p->tile <= 2048, err, IWP_EINVAL,
                "vision tile of %d pixels with patches of %d", p->tile, p->patch);
    if (p->kind != IWP_PRE_LLAVA_OV) {
        IWP_REQUIRE(p->tiles >= 0 && p->tiles <= IWP_PRE_MAX_TILES, err, IWP_EINVAL,
                    "%d tiles a side, at most %d are possible", p->tiles, IWP_PRE_MAX_TILES);
        return 0;
    }
    IWP_REQUIRE(p->n_pinpoint > 0 && p->n_pinpoint <= IWP_PRE_MAX_PINPOINT, err, IWP_EINVAL,
                "%d entries in image_grid_pinpoints, 1 to %d are possible", p->n_pinpoint,
                IWP_PRE_MAX_PINPOINT);
    for (int32_t i = 0; i < p->n_pinpoint; i++)
        for (int j = 0; j < 2; j++) {
            int32_t s = p->pinpoint[i][j];
            IWP_REQUIRE(s > 0 && s <= 32768 && s % p->tile == 0, err, IWP_EINVAL,
                        "image_grid_pinpoints has %d, no multiple of the tile %d", s, p->tile);
        }
    for (int32_t i = 0; i < p->n_pinpoint; i++)
        IWP_REQUIRE((int64_t)p->pinpoint[i][0] * p->pinpoint[i][1] <= 1 << 26, err, IWP_EINVAL,
                    "image_grid_pinpoints has %d x %d, too many pixels", p->pinpoint[i][0],
                    p->pinpoint[i][1]);
    IWP_REQUIRE(p->anyres_max >= 0 && p->anyres_max <= 1024, err, IWP_EINVAL, "anyres_max_%d",
                p->anyres_max);
    return 0;
}

static int check_qwen(const struct iwp_pre_params *p, iwp_err *err) {
    IWP_REQUIRE(p->merge > 0 && p->merge <= 16 && p->temporal > 0 && p->temporal <= 16, err,
                IWP_EINVAL, "merge size %d, temporal patch %d", p->merge, p->temporal);
    IWP_REQUIRE(p->window / p->merge / p->patch > 0 && p->window <= 65536, err, IWP_EINVAL,
                "attention window of %d pixels with patches of %d x %d", p->window, p->patch,
                p->merge);
    int64_t lo[2] = {p->min_pixels, p->video_min_pixels ? p->video_min_pixels : p->min_pixels};
    int64_t hi[2] = {p->max_pixels, p->video_max_pixels ? p->video_max_pixels : p->max_pixels};
    for (int i = 0; i < 2; i++)
        IWP_REQUIRE(lo[i] > 0 && hi[i] >= lo[i] && hi[i] <= (int64_t)1 << 28, err, IWP_EINVAL,
                    "pixel bounds %lld to %lld", (long long)lo[i], (long long)hi[i]);
    IWP_REQUIRE(p->tokens_per_second >= 0 && p->tokens_per_second <= 1000, err, IWP_EINVAL,
                "tokens_per_second is %g", p->tokens_per_second);
    return 0;
}

int iwp_pre_params_check(const struct iwp_pre_params *p, iwp_err *err) {
    IWP_REQUIRE(p->patch > 0 && p->patch <= 256, err, IWP_EINVAL, "vision patch of %d pixels",
                p->patch);
    IWP_REQUIRE(isfinite(p->rescale), err, IWP_EINVAL, "rescale factor is not finite");
    for (int c = 0; c < 3; c++)
        IWP_REQUIRE(p->mean[c] >= 0 && p->mean[c] <= 1 && isfinite(p->std[c]) && p->std[c] > 0, err,
                    IWP_EINVAL, "image mean %g and std %g of channel %d", p->mean[c], p->std[c], c);
    return p->kind == IWP_PRE_QWEN2_5_VL ? check_qwen(p, err) : check_tiles(p, err);
}

int iwp_pre_params_limit_tokens(struct iwp_pre_params *p, int32_t min_tokens, int32_t max_tokens,
                                iwp_err *err) {
    IWP_REQUIRE(min_tokens >= 0, err, IWP_EINVAL, "--image-min-tokens %d: must not be negative",
                min_tokens);
    IWP_REQUIRE(max_tokens >= 0, err, IWP_EINVAL, "--image-max-tokens %d: must not be negative",
                max_tokens);
    IWP_REQUIRE(!min_tokens || !max_tokens || min_tokens <= max_tokens, err, IWP_EINVAL,
                "--image-min-tokens %d is above --image-max-tokens %d", min_tokens, max_tokens);
    if (p->kind != IWP_PRE_QWEN2_5_VL) {
        IWP_REQUIRE(!min_tokens, err, IWP_EINVAL,
                    "--image-min-tokens %d: this model chooses from fixed picture sizes, more "
                    "tokens cannot be asked for",
                    min_tokens);
        if (max_tokens) p->max_tokens = max_tokens;
        return 0;
    }
    int64_t unit = (int64_t)p->patch * p->merge * p->patch * p->merge;
    struct iwp_pre_params q = *p;
    if (min_tokens) {
        q.min_pixels = min_tokens * unit;
        q.video_min_pixels = 0;
        if (q.max_pixels < q.min_pixels) q.max_pixels = q.min_pixels;
    }
    if (max_tokens) {
        q.max_pixels = max_tokens * unit;
        q.video_max_pixels = 0;
        if (q.min_pixels > q.max_pixels) q.min_pixels = q.max_pixels;
    }
    /* The side that was not given follows, so that --image-max-tokens 3 works alone. */
    if (q.video_min_pixels > (q.video_max_pixels ? q.video_max_pixels : q.max_pixels))
        q.video_min_pixels = 0;
    if (q.video_max_pixels && q.video_max_pixels < q.min_pixels) q.video_max_pixels = 0;
    int rc = iwp_pre_params_check(&q, err);
    if (rc < 0)
        return iwp_err_prefix(err, rc, "--image-min-tokens %d, --image-max-tokens %d", min_tokens,
                              max_tokens);
    *p = q;
    return 0;
}

int iwp_pre_params_tiles(struct iwp_pre_params *p, int32_t tiles, iwp_err *err) {
    IWP_REQUIRE(tiles >= 0 && tiles <= IWP_PRE_MAX_TILES, err, IWP_EINVAL,
                "--image-tiles %d: 0 to %d are possible", tiles, IWP_PRE_MAX_TILES);
    IWP_REQUIRE(tiles < 2 || p->kind == IWP_PRE_CLIP, err, IWP_EINVAL,
                "--image-tiles %d: only for CLIP towers; this model divides pictures its own way",
                tiles);
    if (tiles) p->tiles = tiles;
    return 0;
}

void iwp_pre_params_limit_film(struct iwp_pre_params *p, int32_t n_frame, bool user_min,
                               bool user_max) {
    if (p->kind != IWP_PRE_QWEN2_5_VL) return;
    const int64_t unit = (int64_t)p->patch * p->merge * p->patch * p->merge;
    const int64_t lo = user_min ? p->min_pixels : 128 * unit;
    const double total = 128000.0 * (double)unit * 0.9 / n_frame * p->temporal;
    int64_t hi = total < (double)(768 * unit) ? (int64_t)total : 768 * unit;
    const int64_t least = (int64_t)((double)lo * 1.05);
    if (hi < least) hi = least;
    if (user_max && p->max_pixels < hi) hi = p->max_pixels;
    p->video_min_pixels = lo < hi ? lo : hi;
    p->video_max_pixels = hi;
}

/* ---- plan, pixels, rows ------------------------------------------------------------------ */

int iwp_pre_plan_make(const struct iwp_pre_params *p, int32_t w, int32_t h, int32_t n_frame,
                      enum iwp_pre_mode mode, struct iwp_pre_plan *plan, iwp_err *err) {
    IWP_REQUIRE(w > 0 && h > 0 && w <= 1 << 20 && h <= 1 << 20, err, IWP_EINVAL,
                "picture of %d x %d pixels", w, h);
    IWP_REQUIRE(n_frame > 0 && n_frame <= IWP_PRE_MAX_FRAME, err, IWP_EINVAL,
                "%d frames, 1 to %d are possible", n_frame, IWP_PRE_MAX_FRAME);
    IWP_REQUIRE(mode == IWP_PRE_VIDEO || n_frame == 1, err, IWP_EINVAL,
                "%d frames in a still picture", n_frame);
    *plan = (struct iwp_pre_plan){
        .kind = p->kind, .mode = mode, .w = w, .h = h, .n_frame = n_frame, .patch = p->patch};
    IWP_TRY(families[p->kind].plan(p, plan, err));
    plan->n_pixel = 1;
    for (int32_t i = 0; i < plan->n_dim; i++) plan->n_pixel *= (size_t)plan->shape[i];
    return 0;
}

int iwp_pre_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *plan,
                   const struct iwp_image *frames, float *pixels, iwp_err *err) {
    for (int32_t i = 0; i < plan->n_frame; i++)
        IWP_REQUIRE(frames[i].w == plan->w && frames[i].h == plan->h, err, IWP_EINVAL,
                    "frame %d is %d x %d pixels, not %d x %d as the first", i, frames[i].w,
                    frames[i].h, plan->w, plan->h);
    return families[p->kind].pixels(p, plan, frames, pixels, err);
}

void iwp_pre_rows(const struct iwp_pre_plan *plan, struct iwp_pre_row *rows) {
    families[plan->kind].rows(plan, rows);
}

int32_t iwp_pre_grid_count(const struct iwp_pre_plan *plan) {
    if (plan->kind == IWP_PRE_QWEN2_5_VL) return plan->grid_t;
    if (plan->mode == IWP_PRE_VIDEO) return plan->n_frame;
    return plan->rows ? 2 : 1;
}

void iwp_pre_grid(const struct iwp_pre_plan *plan, int32_t grid, int32_t *rows, int32_t *cols) {
    if (plan->kind == IWP_PRE_QWEN2_5_VL) {
        *rows = plan->grid_h / plan->merge;
        *cols = plan->grid_w / plan->merge;
    } else if (plan->mode == IWP_PRE_VIDEO || grid == 1) {
        *rows = plan->out_h;
        *cols = plan->out_w;
    } else {
        *rows = *cols = plan->side;
    }
}

/* A box in features of a w x h canvas whose picture lies at left, top with size pw x ph (all in
 * canvas pixels, `unit` pixels a feature), brought to pixels of the original. */
static void place(const struct iwp_pre_plan *plan, const double f[4], const double unit[2],
                  double left, double top, double pw, double ph, float box[4]) {
    for (int i = 0; i < 4; i++) {
        int axis = i & 1;
        double size = axis ? plan->h : plan->w;
        box[i] = (float)((f[i] * unit[axis] - (axis ? top : left)) * size / (axis ? ph : pw));
    }
}

/* Cells f[0], f[1] up to f[2], f[3] of a grid in pixels of the original, not clipped. */
static void cells_box(const struct iwp_pre_plan *plan, int32_t grid, const double f[4],
                      float box[4]) {
    int32_t gr, gc;
    iwp_pre_grid(plan, grid, &gr, &gc);
    if (plan->rows && grid == 1) {
        /* Features cover the part of a tile that whole patches fill; treat a tile as side features
         * across its full width, which is what the neighbouring tile's first feature assumes. */
        double tile_w = (double)plan->canvas_w / (plan->cols * plan->side);
        double tile_h = (double)plan->canvas_h / (plan->rows * plan->side);
        double unit[2] = {tile_w, tile_h};
        double sx = (double)plan->map_w / gc, sy = (double)plan->map_h / gr;
        double g[4] = {plan->map_x + f[0] * sx, plan->map_y + f[1] * sy, plan->map_x + f[2] * sx,
                       plan->map_y + f[3] * sy};
        place(plan, g, unit, plan->pad_left, plan->pad_top, plan->resized_w, plan->resized_h, box);
        return;
    }
    /* One square or grid over a canvas in units of the original: squashed, padded or cropped. */
    double cw = plan->canvas_w, ch = plan->canvas_h;
    double unit[2] = {cw / gc, ch / gr};
    const bool squashed = plan->rows && plan->kind == IWP_PRE_LLAVA_OV;
    place(plan, f, unit, squashed ? 0 : plan->pad_left, squashed ? 0 : plan->pad_top,
          squashed ? cw : plan->resized_w, squashed ? ch : plan->resized_h, box);
}

void iwp_pre_row_box(const struct iwp_pre_plan *plan, const struct iwp_pre_row *row, float box[4]) {
    memset(box, 0, 4 * sizeof *box);
    if (row->n == 0) return;
    const double f[4] = {row->x, row->y, row->x + 1, row->y + 1};
    cells_box(plan, row->grid, f, box);
    for (int i = 0; i < 4; i++) {
        const float size = (float)(i & 1 ? plan->h : plan->w);
        box[i] = box[i] < 0 ? 0 : box[i] > size ? size : box[i];
    }
}

void iwp_pre_grid_box(const struct iwp_pre_plan *plan, int32_t grid, float box[4]) {
    int32_t rows, cols;
    iwp_pre_grid(plan, grid, &rows, &cols);
    const double f[4] = {0, 0, cols, rows};
    cells_box(plan, grid, f, box);
}

/* ---- shared steps ------------------------------------------------------------------------ */

void iwp_pre_table_init(struct iwp_pre_table *t, const struct iwp_pre_params *p) {
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 256; v++)
            t->value[c][v] = ((float)(v * p->rescale) - (float)p->mean[c]) / (float)p->std[c];
}

void iwp_pre_table_apply(const struct iwp_pre_table *t, const struct iwp_image *im, int32_t x,
                         int32_t y, int32_t n, float *dst) {
    for (int32_t r = 0; r < n; r++) {
        const uint8_t *src = im->rgb + ((size_t)(y + r) * (size_t)im->w + (size_t)x) * 3;
        for (int32_t i = 0; i < n; i++)
            for (int32_t c = 0; c < 3; c++)
                dst[((size_t)c * (size_t)n + (size_t)r) * (size_t)n + (size_t)i] =
                    t->value[c][src[3 * i + c]];
    }
}

void iwp_pre_paste(struct iwp_image *out, const struct iwp_image *in, int32_t x, int32_t y) {
    for (int32_t r = 0; r < in->h; r++)
        memcpy(out->rgb + ((size_t)(y + r) * (size_t)out->w + (size_t)x) * 3,
               in->rgb + (size_t)r * (size_t)in->w * 3, (size_t)in->w * 3);
}

void iwp_pre_bilinear(int32_t in_h, int32_t in_w, int32_t out_h, int32_t out_w, int32_t y,
                      int32_t x, int32_t at[4][2], float weight[4]) {
    float fy = ((float)y + 0.5f) * ((float)in_h / (float)out_h) - 0.5f;
    float fx = ((float)x + 0.5f) * ((float)in_w / (float)out_w) - 0.5f;
    if (fy < 0) fy = 0;
    if (fx < 0) fx = 0;
    int32_t y0 = (int32_t)fy, x0 = (int32_t)fx;
    if (y0 > in_h - 1) y0 = in_h - 1;
    if (x0 > in_w - 1) x0 = in_w - 1;
    int32_t y1 = y0 < in_h - 1 ? y0 + 1 : y0, x1 = x0 < in_w - 1 ? x0 + 1 : x0;
    float wy = fy - (float)y0, wx = fx - (float)x0;
    const int32_t p[4][2] = {{y0, x0}, {y0, x1}, {y1, x0}, {y1, x1}};
    memcpy(at, p, sizeof p);
    weight[0] = (1 - wy) * (1 - wx);
    weight[1] = (1 - wy) * wx;
    weight[2] = wy * (1 - wx);
    weight[3] = wy * wx;
}

/* ---- the resize control ------------------------------------------------------------------ */

int iwp_pre_fit_tokens(const struct iwp_pre_params *p, int32_t w, int32_t h, int32_t n_frame,
                       enum iwp_pre_mode mode, int32_t target, struct iwp_pre_fit *fit,
                       iwp_err *err) {
    IWP_REQUIRE(target > 0, err, IWP_EINVAL, "resize to %d visual tokens", target);
    struct iwp_pre_plan plan;
    IWP_TRY(iwp_pre_plan_make(p, w, h, n_frame, mode, &plan, err));
    struct iwp_pre_fit best = {0}, least = {w, h, mode, plan.n_token};
    if (plan.n_token <= target) best = least;
    /* Counts do not fall evenly with the size (rounding of either side, the choice of tilings), so
     * every size is tried: a few thousand plans of plain arithmetic. */
    int32_t longer = w > h ? w : h;
    for (int32_t n = longer - 1; n >= 1 && best.n_token < target; n--) {
        int32_t cw = (int32_t)(((int64_t)w * n + longer / 2) / longer);
        int32_t ch = (int32_t)(((int64_t)h * n + longer / 2) / longer);
        if (cw < 1) cw = 1;
        if (ch < 1) ch = 1;
        /* Rounding may push a very long picture over the allowed aspect: not a candidate. */
        if (iwp_pre_plan_make(p, cw, ch, n_frame, mode, &plan, NULL) < 0) continue;
        struct iwp_pre_fit f = {cw, ch, mode, plan.n_token};
        if (f.n_token < least.n_token) least = f;
        if (f.n_token <= target && f.n_token > best.n_token) best = f;
    }
    if (p->kind != IWP_PRE_QWEN2_5_VL && mode == IWP_PRE_SINGLE) {
        IWP_TRY(iwp_pre_plan_make(p, w, h, 1, IWP_PRE_BASE, &plan, err));
        struct iwp_pre_fit f = {w, h, IWP_PRE_BASE, plan.n_token};
        if (f.n_token < least.n_token) least = f;
        if (f.n_token <= target && f.n_token > best.n_token) best = f;
    }
    *fit = best.n_token ? best : least;
    return 0;
}
