/* What the families of preprocess.h share: Python's arithmetic and the last step to floats. */
#ifndef IWP_MEDIA_PREPROCESS_IMPL_H
#define IWP_MEDIA_PREPROCESS_IMPL_H

#include "media/preprocess.h"

/* Normalised value of every byte: ((float)(v * rescale) - mean) / std in float32, the product in
 * double, as the library does it. */
struct iwp_pre_table {
    float value[3][256];
};
void iwp_pre_table_init(struct iwp_pre_table *t, const struct iwp_pre_params *p);

/* dst [3][n][n] from the n x n pixels of `im` at x, y. */
void iwp_pre_table_apply(const struct iwp_pre_table *t, const struct iwp_image *im, int32_t x,
                         int32_t y, int32_t n, float *dst);

/* Squashed, padded or cropped to one tile. */
int iwp_pre_one_tile(const struct iwp_pre_params *p, const struct iwp_image *in,
                     enum iwp_pre_aspect aspect, struct iwp_image *out, iwp_err *err);

/* Puts `in` into `out` at x, y; it must fit. */
void iwp_pre_paste(struct iwp_image *out, const struct iwp_image *in, int32_t x, int32_t y);

/* Four taps of a torch-style bilinear resize (align_corners off) from in_h x in_w to out_h x out_w,
 * as y * in_w + x. */
void iwp_pre_bilinear(int32_t in_h, int32_t in_w, int32_t out_h, int32_t out_w, int32_t y,
                      int32_t x, int32_t at[4][2], float weight[4]);

int iwp_pre_llava_plan(const struct iwp_pre_params *p, struct iwp_pre_plan *plan, iwp_err *err);
int iwp_pre_llava_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *plan,
                         const struct iwp_image *frames, float *pixels, iwp_err *err);
void iwp_pre_llava_rows(const struct iwp_pre_plan *plan, struct iwp_pre_row *rows);

int iwp_pre_qwen_plan(const struct iwp_pre_params *p, struct iwp_pre_plan *plan, iwp_err *err);
int iwp_pre_qwen_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *plan,
                        const struct iwp_image *frames, float *pixels, iwp_err *err);
void iwp_pre_qwen_rows(const struct iwp_pre_plan *plan, struct iwp_pre_row *rows);

int iwp_pre_clip_plan(const struct iwp_pre_params *p, struct iwp_pre_plan *plan, iwp_err *err);
int iwp_pre_clip_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *plan,
                        const struct iwp_image *frames, float *pixels, iwp_err *err);
void iwp_pre_clip_rows(const struct iwp_pre_plan *plan, struct iwp_pre_row *rows);

#endif
