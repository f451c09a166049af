/* Contact sheets: see sheet.h. */
#include "view/sheet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { GAP = 4, WIDE = 1920, MAX_SIDE = 16384 };

int iwp_sheet_layout(const struct iwp_sheet *s, struct iwp_sheet_layout *l, iwp_err *err) {
    IWP_REQUIRE(s->n > 0 && s->rows > 0 && s->cols > 0, err, IWP_EINVAL,
                "contact sheet: %d frames of %d x %d tokens", s->n, s->rows, s->cols);
    *l = (struct iwp_sheet_layout){0};
    /* As wide as high or a little wider. */
    l->across = (int32_t)ceil(sqrt((double)s->n * s->rows / s->cols * 1.5));
    if (l->across < 1) l->across = 1;
    if (l->across > s->n) l->across = s->n;
    l->down = (s->n + l->across - 1) / l->across;
    l->cell = (WIDE / l->across - GAP) / s->cols;
    if (l->cell < 2) l->cell = 2;
    if (l->cell > 24) l->cell = 24;
    const int64_t w = (int64_t)l->across * ((int64_t)s->cols * l->cell + GAP) + GAP;
    const int64_t h = (int64_t)l->down * ((int64_t)s->rows * l->cell + GAP) + GAP;
    IWP_REQUIRE(w <= MAX_SIDE && h <= MAX_SIDE, err, IWP_EINVAL,
                "contact sheet: %d frames of %d x %d tokens are too many to draw", s->n, s->rows,
                s->cols);
    l->width = (int32_t)w;
    l->height = (int32_t)h;
    return 0;
}

void iwp_sheet_place(const struct iwp_sheet *s, const struct iwp_sheet_layout *l, int32_t i,
                     int32_t *x, int32_t *y) {
    *x = GAP + i % l->across * (s->cols * l->cell + GAP);
    *y = GAP + i / l->across * (s->rows * l->cell + GAP);
}

static int draw(const struct iwp_sheet *s, const struct iwp_sheet_layout *l, uint8_t *out,
                uint8_t *one, iwp_err *err) {
    const size_t area = (size_t)s->rows * (size_t)s->cols;
    memset(out, 12, (size_t)l->width * (size_t)l->height * 3);
    for (int32_t i = 0; i < s->n; i++) {
        const struct iwp_image *im = s->frame ? &s->frame[(size_t)i * (size_t)s->stride] : NULL;
        struct iwp_overlay o = {.rows = s->rows,
                                .cols = s->cols,
                                .kept = s->kept + (size_t)i * area,
                                .scores = s->scores ? s->scores + (size_t)i * area : NULL,
                                .rgb = im ? im->rgb : NULL,
                                .width = im ? im->w : 0,
                                .height = im ? im->h : 0,
                                .cell = l->cell};
        memcpy(o.view, s->view, sizeof o.view);
        int32_t x, y;
        IWP_TRY(iwp_overlay_draw(&o, one, err));
        iwp_sheet_place(s, l, i, &x, &y);
        const size_t line = (size_t)s->cols * (size_t)l->cell * 3;
        for (int32_t r = 0; r < s->rows * l->cell; r++)
            memcpy(out + ((size_t)(y + r) * (size_t)l->width + (size_t)x) * 3,
                   one + (size_t)r * line, line);
    }
    return 0;
}

int iwp_sheet_write_png(const struct iwp_sheet *s, const char *path, iwp_err *err) {
    struct iwp_sheet_layout l;
    IWP_TRY(iwp_sheet_layout(s, &l, err));
    uint8_t *out = malloc((size_t)l.width * (size_t)l.height * 3);
    uint8_t *one = malloc((size_t)s->rows * (size_t)s->cols * (size_t)l.cell * (size_t)l.cell * 3);
    int rc = out && one ? draw(s, &l, out, one, err)
                        : iwp_err_set(err, IWP_ENOMEM, "%s: no memory for %d x %d pixels", path,
                                      l.width, l.height);
    if (rc >= 0) rc = iwp_png_write(path, out, l.width, l.height, err);
    free(out);
    free(one);
    return rc;
}
