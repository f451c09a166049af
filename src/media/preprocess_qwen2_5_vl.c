/* Qwen2.5-VL: target size, patches in merge order, attention windows, M-RoPE positions.
 * Rounding of the target size is half to even, as Python's round().  A still picture stands for
 * `temporal` equal frames; an odd video repeats its last frame.
 * Refuses pictures with one side more than 200 times the other, as the library does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "media/preprocess_impl.h"

/* Half to even without the floating point environment. */
static int64_t round_even(double x) {
    double f = floor(x), d = x - f;
    if (d > 0.5 || (d == 0.5 && fmod(f, 2) != 0)) f += 1;
    return (int64_t)f;
}

static void target_size(int32_t w, int32_t h, int32_t factor, int64_t lo, int64_t hi, int64_t *tw,
                        int64_t *th) {
    double fw = w, fh = h, f = factor;
    *tw = round_even(fw / f) * factor;
    *th = round_even(fh / f) * factor;
    if (*tw * *th > hi) {
        double beta = sqrt(fh * fw / (double)hi);
        *tw = (int64_t)floor(fw / beta / f) * factor;
        *th = (int64_t)floor(fh / beta / f) * factor;
        if (*tw < factor) *tw = factor;
        if (*th < factor) *th = factor;
    } else if (*tw * *th < lo) {
        double beta = sqrt((double)lo / (fh * fw));
        *tw = (int64_t)ceil(fw * beta / f) * factor;
        *th = (int64_t)ceil(fh * beta / f) * factor;
    }
}

int iwp_pre_qwen_plan(const struct iwp_pre_params *p, struct iwp_pre_plan *q, iwp_err *err) {
    int32_t a = q->w < q->h ? q->w : q->h, b = q->w < q->h ? q->h : q->w;
    IWP_REQUIRE((double)b / a <= 200, err, IWP_EINVAL,
                "picture of %d x %d pixels: one side is more than 200 times the other", q->w, q->h);
    int64_t lo = p->min_pixels, hi = p->max_pixels, tw, th;
    if (q->mode == IWP_PRE_VIDEO) {
        if (p->video_min_pixels) lo = p->video_min_pixels;
        if (p->video_max_pixels) hi = p->video_max_pixels;
    }
    target_size(q->w, q->h, p->patch * p->merge, lo, hi, &tw, &th);
    q->merge = p->merge;
    q->temporal = p->temporal;
    q->window = p->window;
    q->grid_t = (q->n_frame + p->temporal - 1) / p->temporal;
    int64_t n = tw / p->patch * (th / p->patch) * q->grid_t;
    IWP_REQUIRE(n > 0 && n <= 1 << 24, err, IWP_EINVAL,
                "%d frame(s) of %d x %d pixels make %lld patches", q->n_frame, q->w, q->h,
                (long long)n);
    q->resized_w = q->canvas_w = (int32_t)tw;
    q->resized_h = q->canvas_h = (int32_t)th;
    q->grid_w = q->resized_w / p->patch;
    q->grid_h = q->resized_h / p->patch;
    q->out_w = q->grid_w / p->merge;
    q->out_h = q->grid_h / p->merge;
    q->n_token = q->grid_t * q->out_h * q->out_w;
    q->n_dim = 2;
    q->shape[0] = (int32_t)n;
    q->shape[1] = 3 * p->temporal * p->patch * p->patch;
    return 0;
}

/* One frame into its time slot of every patch of temporal patch t. */
static void put_frame(const struct iwp_pre_plan *q, const struct iwp_pre_table *table,
                      const struct iwp_image *im, int32_t t, int32_t slot, float *pixels) {
    size_t pp = (size_t)q->patch, area = pp * pp, width = (size_t)q->shape[1];
    float *dst = pixels + (size_t)t * (size_t)q->grid_h * (size_t)q->grid_w * width;
    for (int32_t by = 0; by < q->out_h; by++)
        for (int32_t bx = 0; bx < q->out_w; bx++)
            for (int32_t y = 0; y < q->merge; y++)
                for (int32_t x = 0; x < q->merge; x++, dst += width) {
                    size_t py = (size_t)(by * q->merge + y) * pp;
                    size_t px = (size_t)(bx * q->merge + x) * pp;
                    for (size_t r = 0; r < pp; r++) {
                        const uint8_t *s = im->rgb + ((py + r) * (size_t)im->w + px) * 3;
                        for (size_t c = 0; c < 3; c++) {
                            float *d =
                                dst + (c * (size_t)q->temporal + (size_t)slot) * area + r * pp;
                            for (size_t i = 0; i < pp; i++) d[i] = table->value[c][s[3 * i + c]];
                        }
                    }
                }
}

int iwp_pre_qwen_pixels(const struct iwp_pre_params *p, const struct iwp_pre_plan *q,
                        const struct iwp_image *frames, float *pixels, iwp_err *err) {
    struct iwp_pre_table table;
    iwp_pre_table_init(&table, p);
    for (int32_t i = 0; i < q->n_frame; i++) {
        struct iwp_image im;
        IWP_TRY(iwp_image_resize(&frames[i], q->resized_w, q->resized_h, p->filter, &im, err));
        /* The last frame fills what is left of its temporal patch. */
        int32_t end = i + 1 == q->n_frame ? q->grid_t * q->temporal : i + 1;
        for (int32_t k = i; k < end; k++)
            put_frame(q, &table, &im, k / q->temporal, k % q->temporal, pixels);
        iwp_image_free(&im);
    }
    return 0;
}

void iwp_pre_qwen_rows(const struct iwp_pre_plan *q, struct iwp_pre_row *r) {
    int32_t i = 0;
    for (int32_t t = 0; t < q->grid_t; t++)
        for (int32_t y = 0; y < q->out_h; y++)
            for (int32_t x = 0; x < q->out_w; x++, i++)
                r[i] = (struct iwp_pre_row){
                    .n = 1, .row = {i}, .weight = {1}, .grid = t, .unit = t, .y = y, .x = x};
}

int32_t iwp_pre_windows(const struct iwp_pre_plan *q, int32_t *index, int32_t *starts) {
    int32_t n = q->window / q->merge / q->patch; /* groups a side */
    int32_t count = 0, at = 0, unit = q->merge * q->merge;
    if (starts) starts[0] = 0;
    for (int32_t t = 0; t < q->grid_t; t++)
        for (int32_t wy = 0; wy < q->out_h; wy += n)
            for (int32_t wx = 0; wx < q->out_w; wx += n) {
                for (int32_t y = wy; y < wy + n && y < q->out_h; y++)
                    for (int32_t x = wx; x < wx + n && x < q->out_w; x++, at++)
                        if (index) index[at] = (t * q->out_h + y) * q->out_w + x;
                count++;
                if (starts) starts[count] = at * unit;
            }
    return count;
}

void iwp_pre_patch_positions(const struct iwp_pre_plan *q, int32_t *pos) {
    for (int32_t t = 0; t < q->grid_t; t++)
        for (int32_t by = 0; by < q->out_h; by++)
            for (int32_t bx = 0; bx < q->out_w; bx++)
                for (int32_t y = 0; y < q->merge; y++)
                    for (int32_t x = 0; x < q->merge; x++) {
                        *pos++ = by * q->merge + y;
                        *pos++ = bx * q->merge + x;
                    }
}

void iwp_mrope_text(struct iwp_mrope *m, int32_t n, int32_t *pos_t, int32_t *pos_h,
                    int32_t *pos_w) {
    for (int32_t i = 0; i < n; i++) pos_t[i] = pos_h[i] = pos_w[i] = m->next + i;
    m->next += n;
}

void iwp_mrope_item(struct iwp_mrope *m, const struct iwp_pre_plan *q, double seconds_per_grid,
                    double tokens_per_second, int32_t *pos_t, int32_t *pos_h, int32_t *pos_w) {
    int32_t first = m->next, last = first, i = 0;
    for (int32_t t = 0; t < q->grid_t; t++) {
        int32_t step = 0;
        if (q->mode == IWP_PRE_VIDEO) {
            float f = floorf((float)t * (float)seconds_per_grid * (float)tokens_per_second);
            step = f > 0 ? f < 1e6f ? (int32_t)f : 1000000 : 0;
        }
        for (int32_t y = 0; y < q->out_h; y++)
            for (int32_t x = 0; x < q->out_w; x++, i++) {
                pos_t[i] = first + step;
                pos_h[i] = first + y;
                pos_w[i] = first + x;
            }
        if (first + step > last) last = first + step;
    }
    if (first + q->out_h - 1 > last) last = first + q->out_h - 1;
    if (first + q->out_w - 1 > last) last = first + q->out_w - 1;
    m->next = last + 1;
}
