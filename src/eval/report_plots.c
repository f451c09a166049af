/* Plots of report.html: score over budget, score over time, bars by task. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/html.h"
#include "view/axis.h"

enum { W = 460, H = 270, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 38 };

static double at_x(struct iwp_axis a, double v) {
    return (double)LEFT + (v - a.lo) / (a.hi - a.lo) * (W - LEFT - RIGHT);
}
static double at_y(struct iwp_axis a, double v) {
    return H - BOTTOM - (v - a.lo) / (a.hi - a.lo) * (H - TOP - BOTTOM);
}

static double x_of(const struct iwp_eval_row *r, bool time) {
    if (time) return r->t.n ? r->t.median[3] : NAN;
    return isnan(r->s.kept) ? NAN : 100 * r->s.kept;
}

struct point {
    double x, y, e;
};

static int by_x(const void *a, const void *b) {
    const struct point *p = a, *q = b;
    return p->x < q->x ? -1 : p->x > q->x;
}

static void draw_axes(FILE *f, struct iwp_axis x, struct iwp_axis y, const char *label) {
    for (double v = y.lo; v <= y.hi + y.step / 2; v += y.step)
        fprintf(
            f,
            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e8ee\"/><text x=\"%d\" "
            "y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
            LEFT, W - RIGHT, at_y(y, v), at_y(y, v), LEFT - 6, at_y(y, v) + 4,
            fabs(v) < 1e-9 ? 0 : v);
    for (double v = x.lo; v <= x.hi + x.step / 2; v += x.step)
        fprintf(f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#b8c0cc\"/><text "
                "x=\"%.1f\" "
                "y=\"%d\" text-anchor=\"middle\">%.4g</text>\n",
                at_x(x, v), at_x(x, v), H - BOTTOM, H - BOTTOM + 4, at_x(x, v), H - BOTTOM + 16,
                fabs(v) < 1e-9 ? 0 : v);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (LEFT + W - RIGHT) / 2,
            H - 5, label);
}

static void plot(const struct iwp_eval_book *b, int32_t task, bool time,
                 const struct iwp_html_curve *cv, int32_t n_cv, FILE *f) {
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        const double x = x_of(r, time), e = isnan(r->s.e.stderr_) ? 0 : r->s.e.stderr_;
        if (r->task != task || isnan(x) || isnan(r->s.e.value)) continue;
        x0 = fmin(x0, x), x1 = fmax(x1, x);
        y0 = fmin(y0, r->s.e.value - e), y1 = fmax(y1, r->s.e.value + e);
    }
    if (!(x1 >= x0)) return;
    const struct iwp_axis ax = iwp_axis_nice(time ? x0 : 0, time ? x1 : 100),
                          ay = iwp_axis_nice(y0, y1);
    fputs("<figure><figcaption>", f);
    iwp_html_text(f, b->run.task[task].task->title);
    fprintf(f, "%s</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\">\n",
            iwp_book_is_nll(b, task) ? " (nats, lower is better)" : "", W, H);
    draw_axes(f, ax, ay, time ? "median time to first token, ms" : "visual tokens kept, %");
    for (int32_t k = 0; k < n_cv; k++) {
        struct point p[256];
        int32_t n = 0;
        const char *col = cv[k].colour;
        for (int32_t i = 0; i < b->n_row && n < 256; i++) {
            const struct iwp_eval_row *r = &b->row[i];
            if (r->task != task || strcmp(r->config->prune, cv[k].c->prune) ||
                strcmp(r->config->options, cv[k].c->options) || isnan(x_of(r, time)) ||
                isnan(r->s.e.value))
                continue;
            p[n++] = (struct point){x_of(r, time), r->s.e.value,
                                    isnan(r->s.e.stderr_) ? 0 : r->s.e.stderr_};
        }
        qsort(p, (size_t)n, sizeof *p, by_x);
        if (n > 1) {
            fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" points=\"", col);
            for (int32_t i = 0; i < n; i++)
                fprintf(f, "%.1f,%.1f ", at_x(ax, p[i].x), at_y(ay, p[i].y));
            fputs("\"/>\n", f);
        }
        if (iwp_book_is_none(cv[k].c) && n)
            fprintf(f,
                    "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                    "stroke-dasharray=\"4 "
                    "4\" opacity=\".6\"/>\n",
                    LEFT, W - RIGHT, at_y(ay, p[0].y), at_y(ay, p[0].y), col);
        for (int32_t i = 0; i < n; i++)
            fprintf(f,
                    "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                    "opacity=\".55\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.4\" fill=\"%s\"/>\n",
                    at_x(ax, p[i].x), at_x(ax, p[i].x), at_y(ay, p[i].y - p[i].e),
                    at_y(ay, p[i].y + p[i].e), col, at_x(ax, p[i].x), at_y(ay, p[i].y), col);
    }
    fputs("</svg></figure>\n", f);
}

/* ---- bars -------------------------------------------------------------------------------------------- */

/* One group of bars for each budget, one bar for each method; the unpruned score is a line. */
static void bars(const struct iwp_eval_book *b, int32_t task, const struct iwp_html_curve *cv,
                 int32_t n_cv, FILE *f) {
    const struct iwp_eval_run *run = &b->run;
    const struct iwp_eval_config *budget[32];
    int32_t n = 0;
    double hi = 0, lo = 0, base = NAN;
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        if (r->task != task || isnan(r->s.e.value)) continue;
        const double e = isnan(r->s.e.stderr_) ? 0 : r->s.e.stderr_;
        hi = fmax(hi, r->s.e.value + e);
        lo = fmin(lo, r->s.e.value - e);
        if (iwp_book_is_none(r->config)) {
            base = r->s.e.value;
            continue;
        }
        int32_t k = 0;
        while (k < n && !iwp_book_same_budget(budget[k], r->config)) k++;
        if (k == n && n < 32) budget[n++] = r->config;
    }
    int32_t n_bar = 0;
    for (int32_t k = 0; k < n_cv; k++) n_bar += !iwp_book_is_none(cv[k].c);
    if (!n || !n_bar) return;
    const struct iwp_axis ay = iwp_axis_nice(lo, hi);
    const double group = (double)(W - LEFT - RIGHT) / n, bar = fmin(group * 0.84 / n_bar, 34);
    fputs("<figure class=\"bars\"><figcaption>", f);
    iwp_html_text(f, run->task[task].task->title);
    fprintf(f, "%s</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\">\n",
            iwp_book_is_nll(b, task) ? " (nats, lower is better)" : "", W, H);
    for (double v = ay.lo; v <= ay.hi + ay.step / 2; v += ay.step)
        fprintf(f,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e8ee\"/><text "
                "x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
                LEFT, W - RIGHT, at_y(ay, v), at_y(ay, v), LEFT - 6, at_y(ay, v) + 4,
                fabs(v) < 1e-9 ? 0 : v);
    for (int32_t g = 0; g < n; g++) {
        char keep[32];
        iwp_eval_keep_text(budget[g], keep);
        const double mid = (double)LEFT + (g + 0.5) * group;
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">keep %s</text>\n", mid,
                H - BOTTOM + 16, keep);
        double x = mid - bar * n_bar / 2;
        for (int32_t k = 0; k < n_cv; k++) {
            if (iwp_book_is_none(cv[k].c)) continue;
            for (int32_t i = 0; i < b->n_row; i++) {
                const struct iwp_eval_row *r = &b->row[i];
                if (r->task != task || strcmp(r->config->prune, cv[k].c->prune) ||
                    strcmp(r->config->options, cv[k].c->options) ||
                    !iwp_book_same_budget(r->config, budget[g]) || isnan(r->s.e.value))
                    continue;
                const double y = at_y(ay, r->s.e.value), y0 = at_y(ay, fmax(ay.lo, 0));
                fprintf(f,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                        "fill=\"%s\"><title>",
                        x + 1, fmin(y, y0), fmax(bar - 2, 1), fabs(y0 - y), cv[k].colour);
                iwp_html_method(f, r->config);
                fprintf(f, " %.4g</title></rect>\n", r->s.e.value);
                if (!isnan(r->s.e.stderr_) && r->s.e.stderr_ > 0)
                    fprintf(f,
                            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" "
                            "stroke=\"#1c2430\"/>\n",
                            x + bar / 2, x + bar / 2, at_y(ay, r->s.e.value - r->s.e.stderr_),
                            at_y(ay, r->s.e.value + r->s.e.stderr_));
            }
            x += bar;
        }
    }
    if (!isnan(base))
        fprintf(f,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#1c2430\" "
                "stroke-dasharray=\"4 4\"/>\n",
                LEFT, W - RIGHT, at_y(ay, base), at_y(ay, base));
    fputs("</svg></figure>\n", f);
}

void iwp_html_plots(const struct iwp_eval_book *b, FILE *f) {
    static const char *const title[3] = {"Score over budget", "Score over time to first token",
                                         "Scores by task"};
    struct iwp_html_curve cv[64];
    const int32_t n = iwp_html_curves(b, cv, 64);
    for (int kind = 0; kind < 3; kind++) {
        fprintf(f, "<h2>%s</h2>\n", title[kind]);
        iwp_html_key(cv, n, f);
        fputs("<div class=\"plots\">\n", f);
        for (int32_t t = 0; t < b->run.n_task; t++)
            if (kind == 2)
                bars(b, t, cv, n, f);
            else
                plot(b, t, kind == 1, cv, n, f);
        fputs("</div>\n<p class=\"sub\">Error bars: one standard error. Dashed: unpruned.</p>\n",
              f);
    }
}
