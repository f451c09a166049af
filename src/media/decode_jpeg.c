/* JPEG through libjpeg-turbo with its defaults (accurate integer DCT, fancy upsampling): the pixels
 * Pillow gives.  Four-component files are taken as inverted CMYK, Adobe's convention, as Pillow does.
 *
 * libjpeg only warns where data ends early or a code is impossible and fills the rest with grey; those
 * warnings are errors here (Pillow refuses the first kind only).  Harmless ones (stray bytes between markers, odd APP14) are passed over. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <jerror.h>

#include "base/err.h"
#include "media/decode.h"

/* Encoders write about ten; a hostile file could ask for a pass over the picture every few bytes. */
enum { MAX_SCANS = 100 };

struct reader {
    struct jpeg_error_mgr mgr;
    jmp_buf out;
    char text[JMSG_LENGTH_MAX];
};

static void stop(j_common_ptr c) {
    struct reader *r = (struct reader *)c->err;
    c->err->format_message(c, r->text);
    longjmp(r->out, 1);
}

static void message(j_common_ptr c, int level) {
    if (level >= 0) return; /* trace */
    switch (c->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC: stop(c);
    }
}

static void quiet(j_common_ptr c) { (void)c; }

static unsigned char times255(unsigned a, unsigned b) {
    unsigned t = a * b + 128;
    return (unsigned char)(((t >> 8) + t) >> 8);
}

/* Inverted CMYK bytes to RGB: ink absorbs what black left. */
static void from_cmyk(const uint8_t *in, uint8_t *out, int32_t n) {
    for (int32_t i = 0; i < n; i++, in += 4, out += 3) {
        unsigned light = in[3];
        for (int c = 0; c < 3; c++) out[c] = (uint8_t)(light - times255(255u - in[c], light));
    }
}

static void from_grey(const uint8_t *in, uint8_t *out, int32_t n) {
    for (int32_t i = 0; i < n; i++, out += 3) out[0] = out[1] = out[2] = in[i];
}

int iwp_decode_jpeg(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                    struct iwp_image *out, iwp_err *err) {
    struct jpeg_decompress_struct c = {0};
    struct reader r;
    uint8_t *volatile line = NULL; /* volatile: read after longjmp */
    int volatile rc = 0;
    c.err = jpeg_std_error(&r.mgr);
    r.mgr.error_exit = stop;
    r.mgr.emit_message = message;
    r.mgr.output_message = quiet;
    if (setjmp(r.out)) {
        rc = iwp_err_set(err, IWP_EFORMAT, "broken JPEG: %s", r.text);
        goto done;
    }
    jpeg_create_decompress(&c);
    jpeg_mem_src(&c, data, (unsigned long)n);
    jpeg_read_header(&c, TRUE);
    rc = iwp_decode_start("JPEG", c.image_width, c.image_height, lim, out, err);
    if (rc < 0) goto done;
    if (c.num_components == 1) {
        c.out_color_space = JCS_GRAYSCALE;
    } else if (c.num_components == 3) {
        c.out_color_space = JCS_RGB;
    } else if (c.num_components == 4) {
        c.out_color_space = JCS_CMYK;
    } else {
        rc = iwp_err_set(err, IWP_ENOTSUP, "JPEG with %d components", c.num_components);
        goto done;
    }
    if (jpeg_has_multiple_scans(&c)) {
        c.buffered_image = TRUE;
        jpeg_start_decompress(&c);
        int code;
        do {
            code = jpeg_consume_input(&c);
            if (c.input_scan_number > MAX_SCANS) {
                rc = iwp_err_set(err, IWP_EFORMAT, "broken JPEG: more than %d scans", MAX_SCANS);
                goto done;
            }
        } while (code != JPEG_REACHED_EOI && code != JPEG_SUSPENDED);
        jpeg_start_output(&c, c.input_scan_number);
    } else {
        jpeg_start_decompress(&c);
    }
    size_t width = (size_t)out->w * 3;
    if (c.out_color_components != 3) {
        line = malloc((size_t)out->w * (size_t)c.out_color_components);
        if (!line) {
            rc = iwp_err_set(err, IWP_ENOMEM, "no memory for a line of the picture");
            goto done;
        }
    }
    for (int32_t y = 0; y < out->h; y++) {
        uint8_t *dst = out->rgb + (size_t)y * width;
        JSAMPROW rows[1] = {line ? line : dst};
        if (jpeg_read_scanlines(&c, rows, 1) != 1) {
            rc =
                iwp_err_set(err, IWP_EFORMAT, "broken JPEG: data ends at line %d of %d", y, out->h);
            goto done;
        }
        if (c.out_color_components == 1) from_grey(line, dst, out->w);
        if (c.out_color_components == 4) from_cmyk(line, dst, out->w);
    }
done:
    free(line);
    jpeg_destroy_decompress(&c);
    return rc;
}
