/* From RGB pictures to the input of a vision tower, and from the tower's output to visual tokens:
 * everything Hugging Face's Pillow processors compute for LLaVA-OneVision, Qwen2.5-VL and CLIP
 * towers, with the same numbers.
 *
 *     struct iwp_pre_plan plan;
 *     iwp_pre_plan_make(&params, w, h, 1, IWP_PRE_SINGLE, &plan, err);   // arithmetic only
 *     float *pixels = malloc(plan.n_pixel * sizeof *pixels);
 *     iwp_pre_pixels(&params, &plan, &image, pixels, err);               // [tiles,3,side,side] | [P,1176]
 *     ...tower and projector...
 *     iwp_pre_rows(&plan, rows);                                        // visual token i = sum of projector rows
 *
 * A plan is made of sizes alone: `inspect --image-size` and the `resize` control need no picture. */
#ifndef IWP_MEDIA_PREPROCESS_H
#define IWP_MEDIA_PREPROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/image.h"
#include "media/resize.h"

enum iwp_pre_kind { IWP_PRE_LLAVA_OV, IWP_PRE_QWEN2_5_VL, IWP_PRE_CLIP };

/* How a CLIP picture becomes a square. */
enum iwp_pre_aspect {
    IWP_PRE_CROP, /* shorter side resized to the tile, the middle cut out: LLaVA-1.5's processor */
    IWP_PRE_PAD,  /* padded to a square of the mean colour, then resized: its training code */
    IWP_PRE_LETTERBOX, /* longer side resized to the tile, then padded: llama.cpp, our shipped model */
    IWP_PRE_SQUASH
};

/* What an item of the prompt is.  LLaVA-OneVision treats the picture of a prompt with several
 * pictures differently (padded to a square, one tile); to the other families it is the same. */
enum iwp_pre_mode {
    IWP_PRE_SINGLE,  /* the only picture */
    IWP_PRE_SEVERAL, /* one of several pictures */
    IWP_PRE_VIDEO,   /* frames of equal size */
    IWP_PRE_BASE /* LLaVA-OneVision: the squashed global view alone (cheapest, not in the library) */
};

enum { IWP_PRE_MAX_PINPOINT = 128, IWP_PRE_MAX_FRAME = 4096 };

struct iwp_pre_params {
    enum iwp_pre_kind kind;
    int32_t patch;  /* pixels */
    double rescale; /* 1/255 */
    double mean[3], std[3];
    enum iwp_filter filter;

    /* LLaVA-OneVision and CLIP */
    int32_t tile; /* pixels a side; tile/patch (floor) features a side */

    /* LLaVA-OneVision */
    int32_t n_pinpoint;
    int32_t pinpoint[IWP_PRE_MAX_PINPOINT][2]; /* height, width in pixels, in the config's order */
    int32_t anyres_max;                        /* the number after anyres_max_; 0: no cap */
    int32_t max_tokens; /* --image-max-tokens: fewer tiles until the count fits; 0: off */

    /* CLIP */
    enum iwp_pre_aspect aspect;
    int32_t tiles; /* a single picture: the thumbnail, then tiles x tiles parts; 0 or 1: no parts */

    /* Qwen2.5-VL */
    int64_t min_pixels, max_pixels;
    int64_t video_min_pixels, video_max_pixels; /* 0: as for pictures */
    int32_t merge;                              /* patches a side that become one token */
    int32_t temporal;                           /* frames per patch */
    int32_t window;                             /* pixels a side of an attention window */
    double tokens_per_second;
};

/* The released settings; a model's config overwrites what it has. */
struct iwp_pre_params
iwp_pre_default_llava_ov(void); /* 384, patch 14, 36 pinpoints, anyres_max_9 */
struct iwp_pre_params iwp_pre_default_qwen2_5_vl(void); /* 3,136 to 12,845,056 pixels */
struct iwp_pre_params iwp_pre_default_clip(void);       /* 336, patch 14, crop */

/* Refuses settings that no plan can be made from; call once after filling them from a file. */
int iwp_pre_params_check(const struct iwp_pre_params *p, iwp_err *err);

/* --image-min-tokens and --image-max-tokens; 0 leaves a bound as it is.
 * Qwen2.5-VL: min/max pixels = tokens x (patch*merge)^2, for pictures and videos.
 * LLaVA-OneVision: the maximum drops tilings of a picture until its count fits, down to the base
 * view alone (side^2 + 1 tokens); the minimum has no meaning and is ignored.  CLIP: the maximum
 * drops parts, the minimum is ignored. */
int iwp_pre_params_limit_tokens(struct iwp_pre_params *p, int32_t min_tokens, int32_t max_tokens,
                                iwp_err *err);

/* --image-tiles: 0 leaves it as it is; more than 1 is refused where the tower is not CLIP. */
enum { IWP_PRE_MAX_TILES = 6 };
int iwp_pre_params_tiles(struct iwp_pre_params *p, int32_t tiles, iwp_err *err);

/* What Qwen2.5-VL's utilities add for a film of n_frame frames: a frame has at least 128 tokens, at most
 * 768, and all of them together at most 115,200 pairs; bounds the user gave stay.  Others: nothing. */
void iwp_pre_params_limit_film(struct iwp_pre_params *p, int32_t n_frame, bool user_min,
                               bool user_max);

struct iwp_pre_plan {
    enum iwp_pre_kind kind;
    enum iwp_pre_mode mode;
    int32_t w, h, n_frame; /* of the item */
    int32_t n_token;       /* visual tokens, separators included */
    int32_t shape[4]; /* of the pixel tensor: tiles, 3, side, side | patches, 3*temporal*patch^2 */
    int32_t n_dim;
    size_t n_pixel; /* floats in it */
    int32_t resized_w, resized_h;

    /* LLaVA-OneVision, CLIP */
    int32_t n_tile, side;       /* features a side of a tile */
    int32_t rows, cols;         /* tiles of the canvas; 0 without AnyRes.  Tile 0 is the base view.
                             LLaVA-OneVision squashes it, CLIP makes it as it makes the canvas */
    int32_t canvas_w, canvas_h; /* pixels; AnyRes: cut into tiles, else squashed into one */
    int32_t pad_left, pad_top;  /* of the resized picture on the canvas; negative when cropped */
    int32_t map_x, map_y;       /* first feature of the canvas that survives unpadding */
    int32_t map_w, map_h;       /* the unpadded map */
    int32_t out_w, out_h; /* the same after the cap (bilinear when different); video: a frame */

    /* Qwen2.5-VL */
    int32_t grid_t, grid_h, grid_w; /* in patches */
    int32_t patch, merge, temporal, window;
};

/* Everything that follows from the size of a picture (n_frame 1) or video. */
int iwp_pre_plan_make(const struct iwp_pre_params *p, int32_t w, int32_t h, int32_t n_frame,
                      enum iwp_pre_mode mode, struct iwp_pre_plan *plan, iwp_err *err);

/* Fills pixels[plan->n_pixel] from plan->n_frame pictures of the planned size. */
int iwp_pre_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *plan,
                   const struct iwp_image *frames, float *pixels, iwp_err *err);

/* One visual token as a weighted sum of projector rows.  n = 0: the newline vector; n = 1: a copy of
 * row[0]; n = 4: bilinear between four rows (half-pixel centres, no antialiasing).
 * A projector row is tile * side^2 + y * side + x, or for Qwen2.5-VL the merged patch in picture
 * order (after the window permutation is undone). */
struct iwp_pre_row {
    int32_t n;
    int32_t row[4];
    float weight[4];
    int32_t grid; /* 0 base view or first frame; 1 AnyRes map; video: the frame (pair) */
    int32_t unit; /* tile or frame the token came from, for budgets per tile or frame */
    int32_t y, x; /* inside the grid; a newline has x = out_w of its row */
};
void iwp_pre_rows(const struct iwp_pre_plan *plan, struct iwp_pre_row *rows /* [n_token] */);

/* Grids of the item, as `iwp run --json` prints them: rows, cols without separators. */
int32_t iwp_pre_grid_count(const struct iwp_pre_plan *plan);
void iwp_pre_grid(const struct iwp_pre_plan *plan, int32_t grid, int32_t *rows, int32_t *cols);

/* The rectangle of the original picture a token looks at, as x0, y0, x1, y1 in pixels, clipped to
 * the picture; all 0 for a newline. */
void iwp_pre_row_box(const struct iwp_pre_plan *plan, const struct iwp_pre_row *row, float box[4]);
/* The same of a whole grid, not clipped: it ends beyond the picture where the model pads, and before
 * its edge where it crops. */
void iwp_pre_grid_box(const struct iwp_pre_plan *plan, int32_t grid, float box[4]);

/* ---- Qwen2.5-VL tower -------------------------------------------------------------------- */

/* index[grid_t*grid_h*grid_w/merge^2]: which merged group stands at place i in window order.
 * starts[]: cumulative window lengths in patches, first 0; returns the number of windows (starts
 * has one entry more).  Pass NULL to get the count.  `index` and `starts` are of this item alone: for
 * several items add the groups and patches before them. */
int32_t iwp_pre_windows(const struct iwp_pre_plan *plan, int32_t *index, int32_t *starts);

/* Row and column of every patch, in the order of the pixel tensor: pos[P][2], for the 2-D RoPE. */
void iwp_pre_patch_positions(const struct iwp_pre_plan *plan, int32_t *pos);

/* M-RoPE positions, built left to right over a prompt: `next` is the position of the next text
 * token.  pos_* point at the first token to fill. */
struct iwp_mrope {
    int32_t next;
};
void iwp_mrope_text(struct iwp_mrope *m, int32_t n, int32_t *pos_t, int32_t *pos_h, int32_t *pos_w);
/* seconds_per_grid: temporal / frames per second for a video, ignored for a picture.  Time
 * positions are floor(index * seconds_per_grid * tokens_per_second) in float32, as the library
 * computes them.  Text goes on at the largest position of any row + 1. */
void iwp_mrope_item(struct iwp_mrope *m, const struct iwp_pre_plan *plan, double seconds_per_grid,
                    double tokens_per_second, int32_t *pos_t, int32_t *pos_h, int32_t *pos_w);

/* ---- The `resize` control ---------------------------------------------------------------- */

/* The item (picture or video of n_frame frames) shrunk, aspect kept, until it costs at most `target`
 * visual tokens: the size whose count is the largest <= target, the larger picture when several have
 * it.  A single picture of LLaVA-OneVision may end as its base view alone (fit->mode).  When even the
 * smallest costs more than the target, that one is returned: compare fit->n_token. */
struct iwp_pre_fit {
    int32_t w, h;
    enum iwp_pre_mode mode;
    int32_t n_token;
};
int iwp_pre_fit_tokens(const struct iwp_pre_params *p, int32_t w, int32_t h, int32_t n_frame,
                       enum iwp_pre_mode mode, int32_t target, struct iwp_pre_fit *fit,
                       iwp_err *err);

#endif
