/* From a decoded frame to RGB: see film_impl.h.
 *
 * ffmpeg turns a picture while it is still in its own pixel format and converts it then, with swscale's
 * bicubic settings, the frame's own colour matrix and range, and MPEG-2 chroma places for 4:2:0.  The
 * same steps here give the same bytes.  Turned are pictures whose planes have chroma halved in both
 * directions or in none; others are turned as RGB. */
#include "base/err.h"
#include "media/film_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What has to be done to a picture: first rows become columns, then mirrored. */
struct turn {
    bool transpose, flip_x, flip_y;
    int32_t degrees;
};

static struct turn find_turn(const int32_t m[9]) {
    struct turn t = {0};
    if (!m[0] && !m[1] && !m[3] && !m[4]) return t;
    double angle = -round(iwp_av.av_display_rotation_get(m));
    if (!isfinite(angle)) return t; /* no turning at all: the picture would be a line */
    angle -= 360 * floor(angle / 360 + 0.9 / 360);
    t.degrees = (int32_t)angle;
    if (fabs(angle - 90) < 1) {
        t.transpose = true;
        t.flip_x = m[3] <= 0; /* a mirrored picture is only transposed */
    } else if (fabs(angle - 180) < 1) {
        t.flip_x = m[0] < 0;
        t.flip_y = m[4] < 0;
    } else if (fabs(angle - 270) < 1) {
        t.transpose = true;
        t.flip_y = true;
        t.flip_x = m[3] < 0;
    } else if (fabs(angle) < 1) {
        t.flip_y = m[4] < 0;
    } else {
        t = (struct turn){0}; /* at a slant: left as it is */
    }
    return t;
}

void iwp_film_picture_init(struct iwp_film *f) {
    const AVStream *st = f->fmt->streams[f->stream];
    size_t n = 0;
    const uint8_t *m = iwp_av.av_stream_get_side_data(st, AV_PKT_DATA_DISPLAYMATRIX, &n);
    memset(f->matrix, 0, sizeof f->matrix);
    if (m && n >= sizeof f->matrix) memcpy(f->matrix, m, sizeof f->matrix);
    const struct turn t = find_turn(f->matrix);
    f->w = t.transpose ? st->codecpar->height : st->codecpar->width;
    f->h = t.transpose ? st->codecpar->width : st->codecpar->height;
}

int32_t iwp_film_turn(const struct iwp_film *f) { return find_turn(f->matrix).degrees; }

/* One plane of w x h elements of `size` bytes, as it was, to the turned one. */
static void turn_plane(const struct turn *t, const uint8_t *from, ptrdiff_t from_line, int32_t w,
                       int32_t h, size_t size, uint8_t *to, ptrdiff_t to_line) {
    const int32_t tw = t->transpose ? h : w, th = t->transpose ? w : h;
    for (int32_t y = 0; y < th; y++)
        for (int32_t x = 0; x < tw; x++) {
            const int32_t fx = t->flip_x ? tw - 1 - x : x, fy = t->flip_y ? th - 1 - y : y;
            const int32_t sx = t->transpose ? fy : fx, sy = t->transpose ? fx : fy;
            memcpy(to + y * to_line + (ptrdiff_t)((size_t)x * size),
                   from + sy * from_line + (ptrdiff_t)((size_t)sx * size), size);
        }
}

static bool planes_turn(const AVPixFmtDescriptor *d, const struct turn *t) {
    const uint64_t not = AV_PIX_FMT_FLAG_PAL | AV_PIX_FMT_FLAG_BITSTREAM | AV_PIX_FMT_FLAG_HWACCEL;
    return !(d->flags & not) && (!t->transpose || d->log2_chroma_w == d->log2_chroma_h);
}

static int turn_frame(struct iwp_film *f, const struct turn *t, const AVPixFmtDescriptor *d,
                      const AVFrame *in, iwp_err *err) {
    if (!f->turned) f->turned = iwp_av.av_frame_alloc();
    IWP_REQUIRE(f->turned, err, IWP_ENOMEM, "%s: out of memory", f->label);
    AVFrame *o = f->turned;
    iwp_av.av_frame_unref(o);
    o->format = in->format;
    o->width = t->transpose ? in->height : in->width;
    o->height = t->transpose ? in->width : in->height;
    int rc = iwp_av.av_frame_get_buffer(o, 0);
    if (rc >= 0) rc = iwp_av.av_frame_copy_props(o, in);
    if (rc < 0) return iwp_film_error(f, rc, "cannot be turned", err);
    const int planes = iwp_av.av_pix_fmt_count_planes(in->format);
    for (int p = 0; p < planes; p++) {
        int step = 0, chroma = 0;
        for (int c = 0; c < d->nb_components; c++)
            if (d->comp[c].plane == p) {
                step = d->comp[c].step;
                chroma = (c == 1 || c == 2) && planes > 1;
            }
        const int sw = chroma ? d->log2_chroma_w : 0, sh = chroma ? d->log2_chroma_h : 0;
        turn_plane(t, in->data[p], in->linesize[p], AV_CEIL_RSHIFT(in->width, sw),
                   AV_CEIL_RSHIFT(in->height, sh), (size_t)step, o->data[p], o->linesize[p]);
    }
    return 0;
}

static int set_converter(struct iwp_film *f, const AVFrame *in, iwp_err *err) {
    if (!f->sws || f->sws_format != in->format || f->sws_w != in->width || f->sws_h != in->height) {
        iwp_av.sws_freeContext(f->sws);
        f->sws = iwp_av.sws_alloc_context();
        IWP_REQUIRE(f->sws, err, IWP_ENOMEM, "%s: out of memory", f->label);
        iwp_av.av_opt_set_int(f->sws, "srcw", in->width, 0);
        iwp_av.av_opt_set_int(f->sws, "srch", in->height, 0);
        iwp_av.av_opt_set_int(f->sws, "src_format", in->format, 0);
        iwp_av.av_opt_set_int(f->sws, "dstw", in->width, 0);
        iwp_av.av_opt_set_int(f->sws, "dsth", in->height, 0);
        iwp_av.av_opt_set_int(f->sws, "dst_format", AV_PIX_FMT_RGB24, 0);
        iwp_av.av_opt_set_int(f->sws, "sws_flags", SWS_BICUBIC, 0);
        if (in->format == AV_PIX_FMT_YUV420P)
            iwp_av.av_opt_set_int(f->sws, "src_v_chr_pos", 128, 0);
        int rc = iwp_av.sws_init_context(f->sws, NULL, NULL);
        if (rc < 0) return iwp_film_error(f, rc, "its pixels cannot be converted", err);
        f->sws_format = in->format;
        f->sws_w = in->width;
        f->sws_h = in->height;
    }
    int *inverse, *table, full, out_full, brightness, contrast, saturation;
    if (iwp_av.sws_getColorspaceDetails(f->sws, &inverse, &full, &table, &out_full, &brightness,
                                        &contrast, &saturation) < 0)
        return 0; /* RGB already */
    const int *matrix = iwp_av.sws_getCoefficients((int)in->colorspace);
    if (in->color_range != AVCOL_RANGE_UNSPECIFIED) full = in->color_range == AVCOL_RANGE_JPEG;
    iwp_av.sws_setColorspaceDetails(f->sws, matrix, full, matrix, out_full, brightness, contrast,
                                    saturation);
    return 0;
}

static int to_rgb(struct iwp_film *f, const AVFrame *in, struct iwp_image *out, iwp_err *err) {
    /* swscale writes whole vectors: lines of its own, then ours without padding. */
    const int line = (in->width * 3 + 63) / 64 * 64;
    uint8_t *wide = iwp_av.av_malloc((size_t)line * (size_t)in->height + 64);
    out->rgb = malloc((size_t)in->width * (size_t)in->height * 3);
    int rc = 0;
    if (!wide || !out->rgb) IWP_FAIL(err, IWP_ENOMEM, "%s: out of memory", f->label);
    IWP_TRY_GOTO(set_converter(f, in, err));
    uint8_t *const to[4] = {wide};
    const int to_line[4] = {line};
    int n = iwp_av.sws_scale(f->sws, (const uint8_t *const *)in->data, in->linesize, 0, in->height,
                             to, to_line);
    if (n != in->height) IWP_FAIL(err, IWP_EFORMAT, "%s: its pixels cannot be converted", f->label);
    out->w = in->width;
    out->h = in->height;
    for (int y = 0; y < in->height; y++)
        memcpy(out->rgb + (size_t)y * (size_t)in->width * 3, wide + (size_t)y * (size_t)line,
               (size_t)in->width * 3);
fail:
    iwp_av.av_free(wide);
    if (rc < 0) iwp_image_free(out);
    return rc;
}

int iwp_film_picture(struct iwp_film *f, const AVFrame *in, struct iwp_image *out, iwp_err *err) {
    *out = (struct iwp_image){0};
    const AVPixFmtDescriptor *d = iwp_av.av_pix_fmt_desc_get(in->format);
    int32_t m[9];
    memcpy(m, f->matrix, sizeof m);
    const AVFrameSideData *side = iwp_av.av_frame_get_side_data(in, AV_FRAME_DATA_DISPLAYMATRIX);
    if (side && (size_t)side->size >= sizeof m) memcpy(m, side->data, sizeof m);
    const struct turn t = find_turn(m);
    IWP_REQUIRE(d && in->width > 0 && in->height > 0, err, IWP_EFORMAT,
                "%s: a frame without pixels", f->label);
    const bool any = t.transpose || t.flip_x || t.flip_y;
    if (any && planes_turn(d, &t)) {
        IWP_TRY(turn_frame(f, &t, d, in, err));
        IWP_TRY(to_rgb(f, f->turned, out, err));
    } else {
        IWP_TRY(to_rgb(f, in, out, err));
        if (any) {
            struct iwp_image o = {t.transpose ? out->h : out->w, t.transpose ? out->w : out->h,
                                  malloc((size_t)out->w * (size_t)out->h * 3)};
            if (o.rgb)
                turn_plane(&t, out->rgb, (ptrdiff_t)out->w * 3, out->w, out->h, 3, o.rgb,
                           (ptrdiff_t)o.w * 3);
            iwp_image_free(out);
            IWP_REQUIRE(o.rgb, err, IWP_ENOMEM, "%s: out of memory", f->label);
            *out = o;
        }
    }
    if (out->w != f->w || out->h != f->h) {
        int rc =
            iwp_err_set(err, IWP_ENOTSUP, "%s: its frames change from %d x %d to %d x %d pixels",
                        f->label, f->w, f->h, out->w, out->h);
        iwp_image_free(out);
        return rc;
    }
    return 0;
}
