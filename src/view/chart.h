/* Charts as SVG: heat maps, horizontal bars, lines.  A chart is a list of panels; each is drawn where the
 * caller says and returns the room it took, and the picture becomes as large as its panels.  Black ink on
 * white paper, fonts of the system, no scripts, no links. */
#ifndef IWP_VIEW_CHART_H
#define IWP_VIEW_CHART_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "iwp/error.h"

struct iwp_chart {
    FILE *body; /* NULL: out of memory, everything is a no-op */
    char *text;
    size_t n;
    double width, height; /* room taken so far */
    char title[160];
};

/* What a panel covers. */
struct iwp_chart_box {
    double x, y, w, h;
};

void iwp_chart_init(struct iwp_chart *c, const char *title);
void iwp_chart_free(struct iwp_chart *c);
/* A line of small text under the title or beside a panel. */
void iwp_chart_note(struct iwp_chart *c, double x, double y, const char *text);
/* Where the first panel goes. */
#define IWP_CHART_LEFT 16.0
#define IWP_CHART_TOP  66.0
#define IWP_CHART_GAP  28.0 /* between panels */

/* A matrix; NaN cells are left grey. */
struct iwp_chart_heat {
    const char *title, *row_axis, *col_axis;
    int32_t rows, cols;
    const double *value;                           /* [rows][cols] */
    const char *const *row_name, *const *col_name; /* or NULL: numbers, some of them */
    double lo, hi;                                 /* NaN: from the values */
    bool diverging;                                /* two colours around 0, lo = -hi */
    const char *format;    /* of the numbers in the cells, "%.2f"; NULL: none */
    double cell_w, cell_h; /* 0: chosen */
    int32_t split;         /* line before this row and column; 0: none */
};
struct iwp_chart_box iwp_chart_heat(struct iwp_chart *c, double x, double y,
                                    const struct iwp_chart_heat *h);

/* Horizontal bars; a bar whose value is NaN and note NULL is a heading. */
struct iwp_chart_bar {
    const char *name, *note; /* note: right of the bar */
    double value, error;     /* error: half a whisker, 0 or NaN: none */
    double mark;             /* a stroke across the bar (a bound), NaN: none */
    int32_t colour;
};
struct iwp_chart_bars {
    const char *title, *axis;
    const struct iwp_chart_bar *bar;
    int32_t n;
    double lo, hi; /* NaN: from the values; logarithmic: powers of ten around them */
    bool logarithmic;
    double width; /* of the plotting area; 0: 320 */
};
struct iwp_chart_box iwp_chart_bars(struct iwp_chart *c, double x, double y,
                                    const struct iwp_chart_bars *b);

/* Lines over a shared x; NaN points interrupt a line. */
struct iwp_chart_series {
    const char *name;
    const double *x, *y; /* [n] */
    int32_t n;
    bool dashed, dots;
    int32_t colour;
};
struct iwp_chart_lines {
    const char *title, *x_axis, *y_axis;
    const struct iwp_chart_series *series;
    int32_t n;
    double x_lo, x_hi, y_lo, y_hi; /* NaN: from the values */
    bool log_x;
};
struct iwp_chart_box iwp_chart_lines(struct iwp_chart *c, double x, double y,
                                     const struct iwp_chart_lines *l);

/* Writes the picture under a temporary name, then renames. */
int iwp_chart_write(struct iwp_chart *c, const char *path, iwp_err *err);

#endif
