/* Charts: see chart.h.  Widths of texts are estimated from their length, generously, because nothing here
 * knows the fonts. */
#include "view/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "view/axis.h"

static const char ink[] = "#1c2430", soft[] = "#5b6675", grid[] = "#e4e8ee",
                  none_fill[] = "#f0f2f5";
static const char *const colours[] = {"#1f6fb4", "#d1495b", "#2a9d57", "#e08e0b", "#8e5bb5",
                                      "#0f9ba8", "#7a5c43", "#c2529b", "#6b7f1e", "#4457c9"};
enum { N_COLOUR = sizeof colours / sizeof *colours };
static const double letter = 6.7; /* of an 11 px letter, on the wide side */

static const char *colour(int32_t i) { return colours[(i < 0 ? 0 : i) % N_COLOUR]; }

/* Code points, the unit of text width. */
static double text_width(const char *s) {
    int32_t n = 0;
    for (; s && *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n * letter;
}

static void escape(FILE *f, const char *s) {
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '>')
            fputs("&gt;", f);
        else if (*s == '&')
            fputs("&amp;", f);
        else if (*s == '"')
            fputs("&quot;", f);
        else
            fputc((unsigned char)*s < 32 ? ' ' : *s, f);
    }
}

static void cover(struct iwp_chart *c, double x, double y) {
    if (x > c->width) c->width = x;
    if (y > c->height) c->height = y;
}

struct style {
    const char *anchor, *fill;
    int size;
    bool bold;
    double turn; /* degrees */
};

static void put_text(struct iwp_chart *c, double x, double y, struct style s, const char *text) {
    if (!c->body || !text) return;
    fprintf(c->body, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" fill=\"%s\"", x, y,
            s.size ? s.size : 11, s.fill ? s.fill : soft);
    if (s.anchor) fprintf(c->body, " text-anchor=\"%s\"", s.anchor);
    if (s.bold) fputs(" font-weight=\"600\"", c->body);
    if (s.turn != 0) fprintf(c->body, " transform=\"rotate(%.0f %.1f %.1f)\"", s.turn, x, y);
    fputc('>', c->body);
    escape(c->body, text);
    fputs("</text>\n", c->body);
}

static void put_line(struct iwp_chart *c, double x1, double y1, double x2, double y2,
                     const char *stroke, double width) {
    if (c->body)
        fprintf(c->body,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                "stroke-width=\"%.1f\"/>\n",
                x1, y1, x2, y2, stroke, width);
}

static void put_rect(struct iwp_chart *c, double x, double y, double w, double h,
                     const char *fill) {
    if (c->body)
        fprintf(c->body,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y,
                w, h, fill);
}

void iwp_chart_init(struct iwp_chart *c, const char *title) {
    memset(c, 0, sizeof *c);
    c->body = open_memstream(&c->text, &c->n);
    snprintf(c->title, sizeof c->title, "%s", title);
    put_text(c, IWP_CHART_LEFT, 30, (struct style){.fill = ink, .size = 17, .bold = true}, title);
    cover(c, IWP_CHART_LEFT + text_width(title) * 17 / 11, 40);
}

void iwp_chart_free(struct iwp_chart *c) {
    if (c->body) fclose(c->body);
    free(c->text);
    memset(c, 0, sizeof *c);
}

void iwp_chart_note(struct iwp_chart *c, double x, double y, const char *text) {
    put_text(c, x, y, (struct style){.size = 12}, text);
    cover(c, x + text_width(text) * 12 / 11, y + 6);
}

int iwp_chart_write(struct iwp_chart *c, const char *path, iwp_err *err) {
    IWP_REQUIRE(c->body && fflush(c->body) == 0, err, IWP_ENOMEM, "%s: out of memory", path);
    struct iwp_output out;
    IWP_TRY(iwp_output_open(&out, path, err));
    const double w = ceil(c->width) + 16, h = ceil(c->height) + 14;
    fprintf(out.file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" role=\"img\" font-family=\"system-ui, 'DejaVu Sans', Arial, "
            "sans-serif\">\n<title>",
            w, h, w, h);
    escape(out.file, c->title);
    fprintf(out.file, "</title>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#ffffff\"/>\n", w, h);
    fwrite(c->text, 1, c->n, out.file);
    fputs("</svg>\n", out.file);
    return iwp_output_commit(&out, err);
}

/* ---- axes -------------------------------------------------------------------------------------------- */

/* Whole powers of ten; at most about six labels. */
static struct iwp_axis powers(double lo, double hi) {
    struct iwp_axis a = {floor(log10(lo) + 1e-9), ceil(log10(hi) - 1e-9), 1, true};
    if (!(a.hi > a.lo)) a.hi = a.lo + 1;
    a.step = ceil((a.hi - a.lo) / 6);
    return a;
}

static double along(struct iwp_axis a, double v) { /* 0 to 1 */
    const double x = a.logarithmic ? (v > 0 ? log10(v) : a.lo) : v;
    const double t = (x - a.lo) / (a.hi - a.lo);
    return t < 0 ? 0 : t > 1 ? 1 : t;
}

static void tick_text(struct iwp_axis a, double v, char out[32]) {
    if (a.logarithmic && (v < -3 || v > 4))
        snprintf(out, 32, "1e%.0f", v);
    else
        snprintf(out, 32, "%.4g", a.logarithmic ? pow(10, v) : fabs(v) < a.step / 1e6 ? 0 : v);
}

static void widen(double *lo, double *hi, double v) {
    if (!isfinite(v)) return;
    if (isnan(*lo) || v < *lo) *lo = v;
    if (isnan(*hi) || v > *hi) *hi = v;
}

/* ---- heat maps --------------------------------------------------------------------------------------- */

struct rgb {
    double c[3];
};

static struct rgb blend(struct rgb a, struct rgb b, double t) {
    for (int i = 0; i < 3; i++) a.c[i] += t * (b.c[i] - a.c[i]);
    return a;
}

/* Light to dark blue; or red, white, blue. */
static struct rgb shade(double t, bool diverging) {
    static const struct rgb white = {{250, 251, 253}}, mid = {{116, 169, 213}},
                            dark = {{13, 57, 105}}, red = {{178, 42, 58}}, blue = {{27, 94, 158}};
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    if (diverging) return t < 0.5 ? blend(red, white, 2 * t) : blend(white, blue, 2 * t - 1);
    return t < 0.5 ? blend(white, mid, 2 * t) : blend(mid, dark, 2 * t - 1);
}

static bool is_dark(struct rgb p) { return 0.299 * p.c[0] + 0.587 * p.c[1] + 0.114 * p.c[2] < 140; }

static double longest(const char *const *name, int32_t n) {
    double w = 0;
    for (int32_t i = 0; i < n; i++) {
        const double x = name ? text_width(name[i]) : 3 * letter;
        if (x > w) w = x;
    }
    return w;
}

/* Labels of an axis without names: every k-th number, at most about 12. */
static int32_t number_step(int32_t n) {
    static const int32_t steps[] = {1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (n <= 12 * steps[i]) return steps[i];
    return n;
}

static const char *label(const char *const *name, int32_t i, char buf[16]) {
    if (name) return name[i];
    snprintf(buf, 16, "%d", i);
    return buf;
}

static void scale_bar(struct iwp_chart *c, double x, double y, double h, double lo, double hi,
                      bool diverging) {
    char text[32];
    for (int i = 0; i < 32; i++) {
        const struct rgb p = shade(1 - (i + 0.5) / 32, diverging);
        char fill[32];
        snprintf(fill, sizeof fill, "rgb(%.0f,%.0f,%.0f)", p.c[0], p.c[1], p.c[2]);
        put_rect(c, x, y + h * i / 32, 10, h / 32 + 0.5, fill);
    }
    snprintf(text, sizeof text, "%.3g", hi);
    put_text(c, x + 15, y + 9, (struct style){0}, text);
    snprintf(text, sizeof text, "%.3g", lo);
    put_text(c, x + 15, y + h, (struct style){0}, text);
    cover(c, x + 15 + 7 * letter, y + h);
}

/* Where the cells are, and the range of their colours. */
struct field {
    double left, top, cw, ch, lo, hi;
};

static double cell_value(const struct iwp_chart_heat *h, int32_t i, int32_t j) {
    return h->value[(size_t)i * (size_t)h->cols + (size_t)j];
}

static void fill_text(struct rgb p, char out[32]) {
    snprintf(out, 32, "rgb(%.0f,%.0f,%.0f)", p.c[0], p.c[1], p.c[2]);
}

/* Cells with their numbers. */
static void draw_numbers(struct iwp_chart *c, const struct iwp_chart_heat *h,
                         const struct field *f) {
    char fill[32], number[32];
    for (int32_t i = 0; i < h->rows; i++)
        for (int32_t j = 0; j < h->cols; j++) {
            const double v = cell_value(h, i, j), x = f->left + f->cw * j, y = f->top + f->ch * i;
            const struct rgb p = shade((v - f->lo) / (f->hi - f->lo), h->diverging);
            fill_text(p, fill);
            put_rect(c, x, y, f->cw - 1, f->ch - 1, isfinite(v) ? fill : none_fill);
            if (!isfinite(v)) continue;
            snprintf(number, sizeof number, h->format, v);
            put_text(c, x + f->cw / 2, y + f->ch / 2 + 4,
                     (struct style){.anchor = "middle", .fill = is_dark(p) ? "#ffffff" : ink},
                     number);
        }
}

static const int n_shade = 64;

/* Which of n_shade shades a cell has; -1: none. */
static int shade_of(const struct iwp_chart_heat *h, const struct field *f, int32_t i, int32_t j) {
    const double v = cell_value(h, i, j), t = (v - f->lo) / (f->hi - f->lo);
    if (!isfinite(v)) return -1;
    return t <= 0 ? 0 : t >= 1 ? n_shade - 1 : (int)(t * n_shade);
}

/* Many cells: one path for each shade, in units of a cell, neighbours joined.  A tenth of the size of as many
 * rectangles. */
static void draw_field(struct iwp_chart *c, const struct iwp_chart_heat *h, const struct field *f) {
    if (!c->body) return;
    fprintf(c->body,
            "<g transform=\"translate(%.1f %.1f) scale(%.3f %.3f)\" "
            "shape-rendering=\"crispEdges\">\n",
            f->left, f->top, f->cw, f->ch);
    for (int s = -1; s < n_shade; s++) {
        char fill[32];
        bool open = false;
        fill_text(shade((s + 0.5) / n_shade, h->diverging), fill);
        for (int32_t i = 0; i < h->rows; i++)
            for (int32_t j = 0, end; j < h->cols; j = end) {
                end = j + 1;
                if (shade_of(h, f, i, j) != s) continue;
                while (end < h->cols && shade_of(h, f, i, end) == s) end++;
                if (!open) fprintf(c->body, "<path fill=\"%s\" d=\"", s < 0 ? none_fill : fill);
                open = true;
                fprintf(c->body, "M%d %dh%dv1h-%dz", j, i, end - j, end - j);
            }
        if (open) fputs("\"/>\n", c->body);
    }
    fputs("</g>\n", c->body);
}

struct iwp_chart_box iwp_chart_heat(struct iwp_chart *c, double x, double y,
                                    const struct iwp_chart_heat *h) {
    double lo = h->lo, hi = h->hi, least = NAN, most = NAN;
    for (int64_t i = 0; i < (int64_t)h->rows * h->cols; i++) widen(&least, &most, h->value[i]);
    if (isnan(lo)) lo = isnan(least) ? 0 : least;
    if (isnan(hi)) hi = isnan(most) ? 1 : most;
    if (h->diverging) {
        hi = fmax(fabs(lo), fabs(hi));
        lo = -hi;
    }
    if (!(hi > lo)) hi = lo + 1;
    const double cw = h->cell_w > 0 ? h->cell_w : h->format ? 46 : fmax(3, 300.0 / h->cols);
    const double ch = h->cell_h > 0 ? h->cell_h : h->format ? 24 : fmax(3, 300.0 / h->rows);
    const double names = longest(h->row_name, h->rows), across = longest(h->col_name, h->cols);
    const bool turned = h->col_name && across > cw - 4;
    const double left = x + (h->row_axis ? 18 : 0) + names + 8;
    const double top = y + 22 + (turned ? across * 0.72 + 10 : 18) + (h->col_axis ? 16 : 0);
    const double right = left + cw * h->cols, bottom = top + ch * h->rows;
    char buf[16];
    put_text(c, x, y + 12, (struct style){.fill = ink, .size = 13, .bold = true}, h->title);
    cover(c, x + text_width(h->title) * 13 / 11, bottom);
    if (h->col_axis)
        put_text(c, (left + right) / 2, y + 33, (struct style){.anchor = "middle"}, h->col_axis);
    if (h->row_axis)
        put_text(c, x + 11, (top + bottom) / 2, (struct style){.anchor = "middle", .turn = -90},
                 h->row_axis);
    for (int32_t i = 0; i < h->rows; i++)
        if (h->row_name || i % number_step(h->rows) == 0)
            put_text(c, left - 6, top + ch * (i + 0.5) + 4, (struct style){.anchor = "end"},
                     label(h->row_name, i, buf));
    for (int32_t j = 0; j < h->cols; j++) {
        if (!h->col_name && j % number_step(h->cols) != 0) continue;
        const double at = left + cw * (j + 0.5);
        if (turned)
            put_text(c, at + 4, top - 6, (struct style){.turn = -45}, label(h->col_name, j, buf));
        else
            put_text(c, at, top - 6, (struct style){.anchor = "middle"},
                     label(h->col_name, j, buf));
    }
    const struct field field = {left, top, cw, ch, lo, hi};
    (h->format ? draw_numbers : draw_field)(c, h, &field);
    if (h->split > 0 && h->split < h->rows && h->split < h->cols) {
        put_line(c, left + cw * h->split, top, left + cw * h->split, bottom, colours[1], 1.5);
        put_line(c, left, top + ch * h->split, right, top + ch * h->split, colours[1], 1.5);
    }
    scale_bar(c, right + 12, top, fmin(bottom - top, 160), lo, hi, h->diverging);
    const double end = fmax(right + 12 + 15 + 7 * letter, x + text_width(h->title) * 13 / 11);
    if (turned) cover(c, right + across * 0.72, top);
    return (struct iwp_chart_box){x, y, end - x, bottom - y};
}

/* ---- bars -------------------------------------------------------------------------------------------- */

static struct iwp_axis bar_axis(const struct iwp_chart_bars *b) {
    double lo = NAN, hi = NAN;
    for (int32_t i = 0; i < b->n; i++) {
        const struct iwp_chart_bar *r = &b->bar[i];
        if (b->logarithmic && !(r->value > 0)) {
            widen(&lo, &hi, r->mark);
            continue;
        }
        widen(&lo, &hi, r->value);
        widen(&lo, &hi, r->mark);
        if (isfinite(r->error)) widen(&lo, &hi, r->value + r->error);
    }
    if (!isnan(b->lo)) lo = b->lo;
    if (!isnan(b->hi)) hi = b->hi;
    if (isnan(lo)) lo = b->logarithmic ? 0.1 : 0, hi = 1;
    if (b->logarithmic) return powers(lo, hi);
    if (isnan(b->lo) && lo > 0) lo = 0;
    if (isnan(b->hi) && hi < 0) hi = 0;
    return iwp_axis_nice(lo, hi);
}

struct iwp_chart_box iwp_chart_bars(struct iwp_chart *c, double x, double y,
                                    const struct iwp_chart_bars *b) {
    const double ROW = 20;
    const double plot = b->width > 0 ? b->width : 320;
    double names = 0, notes = 0;
    for (int32_t i = 0; i < b->n; i++) {
        const double bold = b->bar[i].note || isfinite(b->bar[i].value) ? 1 : 1.1;
        names = fmax(names, text_width(b->bar[i].name) * bold);
        notes = fmax(notes, text_width(b->bar[i].note));
    }
    const struct iwp_axis a = bar_axis(b);
    const double left = x + names + 10, top = y + 24, bottom = top + ROW * b->n;
    const double base = left + plot * along(a, a.logarithmic ? 0 : fmax(0, a.lo));
    put_text(c, x, y + 12, (struct style){.fill = ink, .size = 13, .bold = true}, b->title);
    for (int k = 0; a.lo + k * a.step <= a.hi + a.step / 2; k++) {
        const double v = a.lo + k * a.step, at = left + plot * (v - a.lo) / (a.hi - a.lo);
        char text[32];
        tick_text(a, v, text);
        put_line(c, at, top, at, bottom, grid, 1);
        put_text(c, at, bottom + 14, (struct style){.anchor = "middle"}, text);
    }
    for (int32_t i = 0; i < b->n; i++) {
        const struct iwp_chart_bar *r = &b->bar[i];
        const double at = top + ROW * i, mid = at + ROW / 2;
        if (!isfinite(r->value) && !r->note) {
            put_text(c, x, mid + 4, (struct style){.fill = ink, .bold = true}, r->name);
            continue;
        }
        put_text(c, left - 6, mid + 4, (struct style){.anchor = "end"}, r->name);
        if (isfinite(r->value)) {
            const double to = left + plot * along(a, r->value);
            put_rect(c, fmin(base, to), at + 3, fmax(fabs(to - base), 1), ROW - 6,
                     colour(r->colour));
            if (isfinite(r->error) && r->error > 0)
                put_line(c, left + plot * along(a, r->value - r->error), mid,
                         left + plot * along(a, r->value + r->error), mid, ink, 1.2);
        }
        if (isfinite(r->mark)) {
            const double m = left + plot * along(a, r->mark);
            put_line(c, m, at + 1, m, at + ROW - 1, ink, 2);
        }
        put_text(c, left + plot + 10, mid + 4, (struct style){0}, r->note);
    }
    if (b->axis)
        put_text(c, left + plot / 2, bottom + 30, (struct style){.anchor = "middle"}, b->axis);
    const double right = fmax(left + plot + 10 + notes, x + text_width(b->title) * 13 / 11),
                 low = bottom + 34;
    cover(c, right, low);
    return (struct iwp_chart_box){x, y, right - x, low - y};
}

/* ---- lines ------------------------------------------------------------------------------------------- */

struct iwp_chart_box iwp_chart_lines(struct iwp_chart *c, double x, double y,
                                     const struct iwp_chart_lines *l) {
    const double W = 440, H = 250;
    double x0 = NAN, x1 = NAN, y0 = NAN, y1 = NAN, keys = 0;
    for (int32_t k = 0; k < l->n; k++) {
        const struct iwp_chart_series *s = &l->series[k];
        keys = fmax(keys, text_width(s->name));
        for (int32_t i = 0; i < s->n; i++) {
            if (!isfinite(s->y[i]) || (l->log_x && !(s->x[i] > 0))) continue;
            widen(&x0, &x1, s->x[i]);
            widen(&y0, &y1, s->y[i]);
        }
    }
    if (!isnan(l->x_lo)) x0 = l->x_lo;
    if (!isnan(l->x_hi)) x1 = l->x_hi;
    if (!isnan(l->y_lo)) y0 = l->y_lo;
    if (!isnan(l->y_hi)) y1 = l->y_hi;
    if (isnan(x0) || isnan(x1)) x0 = l->log_x ? 0.1 : 0, x1 = 1;
    if (isnan(y0) || isnan(y1)) y0 = 0, y1 = 1;
    const struct iwp_axis ax = l->log_x ? powers(x0, x1) : iwp_axis_nice(x0, x1),
                          ay = iwp_axis_nice(y0, y1);
    const double left = x + 62, top = y + 26, right = left + W, bottom = top + H;
    char text[32];
    put_text(c, x, y + 12, (struct style){.fill = ink, .size = 13, .bold = true}, l->title);
    for (int k = 0; ay.lo + k * ay.step <= ay.hi + ay.step / 2; k++) {
        const double v = ay.lo + k * ay.step, at = bottom - H * (v - ay.lo) / (ay.hi - ay.lo);
        tick_text(ay, v, text);
        put_line(c, left, at, right, at, grid, 1);
        put_text(c, left - 6, at + 4, (struct style){.anchor = "end"}, text);
    }
    for (int k = 0; ax.lo + k * ax.step <= ax.hi + ax.step / 2; k++) {
        const double v = ax.lo + k * ax.step, at = left + W * (v - ax.lo) / (ax.hi - ax.lo);
        tick_text(ax, v, text);
        put_line(c, at, bottom, at, bottom + 4, "#b8c0cc", 1);
        put_text(c, at, bottom + 17, (struct style){.anchor = "middle"}, text);
    }
    put_text(c, (left + right) / 2, bottom + 34, (struct style){.anchor = "middle"}, l->x_axis);
    put_text(c, x + 11, (top + bottom) / 2, (struct style){.anchor = "middle", .turn = -90},
             l->y_axis);
    for (int32_t k = 0; k < l->n && c->body; k++) {
        const struct iwp_chart_series *s = &l->series[k];
        bool pen = false;
        fprintf(c->body, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\"%s d=\"",
                colour(s->colour), s->dashed ? " stroke-dasharray=\"5 4\"" : "");
        for (int32_t i = 0; i < s->n; i++) {
            const bool ok = isfinite(s->y[i]) && isfinite(s->x[i]);
            if (ok)
                fprintf(c->body, "%s%.1f %.1f ", pen ? "L" : "M", left + W * along(ax, s->x[i]),
                        bottom - H * along(ay, s->y[i]));
            pen = ok;
        }
        fputs("\"/>\n", c->body);
        for (int32_t i = 0; i < s->n && s->dots; i++)
            if (isfinite(s->y[i]) && isfinite(s->x[i]))
                fprintf(c->body, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                        left + W * along(ax, s->x[i]), bottom - H * along(ay, s->y[i]),
                        colour(s->colour));
        const double key = top + 8 + 18 * k;
        fprintf(c->body,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                "stroke-width=\"2.5\"%s/>\n",
                right + 14, key, right + 34, key, colour(s->colour),
                s->dashed ? " stroke-dasharray=\"5 4\"" : "");
        put_text(c, right + 40, key + 4, (struct style){0}, s->name);
    }
    const double end = right + (l->n ? 40 + keys : 0), low = fmax(bottom + 38, top + 18.0 * l->n);
    cover(c, end, low);
    return (struct iwp_chart_box){x, y, end - x, low - y};
}
