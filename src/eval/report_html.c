/* report.html: one file without links to the outside, readable on a screen, a phone and paper.  Main table
 * in the paper's layout (budgets as blocks, methods as rows, tasks as columns, Avg. % last), accuracy over
 * budget and over time to first token with error bars, costs, categories, failures. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "eval/results.h"

static const char style[] =
    ":root{--ink:#1c2430;--soft:#667085;--line:#d9dee7;--paper:#fff;--wash:#f5f7fa;--best:#0b6b3a;"
    "--bad:#b42318}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:1.5rem 1rem 4rem;"
    "background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',"
    "Roboto,sans-serif}"
    "h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}"
    "p.sub{color:var(--soft);margin:.2rem 0 1rem}"
    ".scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.87rem}"
    "th,td{padding:.38rem .65rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--line)}"
    "th:first-child,td:first-child{text-align:left}"
    "thead th{background:var(--wash);font-weight:600;vertical-align:bottom}"
    "tr:last-child td{border-bottom:0}"
    "tr.block td{background:var(--wash);font-weight:600;text-align:left;color:var(--soft)}"
    "td small{color:var(--soft);font-size:.85em}td.best{font-weight:700;color:var(--best)}"
    "td.paper{color:var(--soft);font-style:italic}"
    ".warn{color:var(--bad)}.plots{display:grid;gap:1rem;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}"
    "figure{margin:0;border:1px solid var(--line);border-radius:8px;padding:.6rem;"
    "break-inside:avoid}figcaption{font-weight:600;font-size:.9rem;padding:.1rem .3rem .3rem}"
    "svg{display:block;width:100%;height:auto}svg text{font:11px system-ui,sans-serif;"
    "fill:var(--soft)}"
    ".key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.4rem 0 .8rem;font-size:.85rem}"
    ".key i{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.35em}"
    "details{margin:.6rem 0}summary{cursor:pointer;color:var(--soft)}"
    "code{font-size:.85em;overflow-wrap:anywhere}dl{display:grid;grid-template-columns:auto 1fr;"
    "gap:.2rem 1rem;font-size:.85rem}dt{color:var(--soft)}dd{margin:0;min-width:0}"
    "@media print{body{max-width:none;padding:0;font-size:11px}.scroll{overflow:visible}"
    "h2{break-after:avoid}table{font-size:9.5px}th,td{padding:.2rem .35rem}}";

static const char *const colours[] = {"#1c2430", "#d1495b", "#1f77b4", "#2a9d57",
                                      "#8e5bb5", "#e08e0b", "#0f9ba8", "#7a5c43",
                                      "#c2529b", "#6b7f1e", "#4457c9", "#999999"};
enum { N_COLOUR = sizeof colours / sizeof *colours };

static void esc(FILE *f, const char *s) {
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '&')
            fputs("&amp;", f);
        else if (*s == '"')
            fputs("&quot;", f);
        else if ((unsigned char)*s >= 32 || *s == '\n')
            fputc(*s, f);
    }
}

static bool is_none(const struct iwp_eval_config *c) { return !strcmp(c->prune, "none"); }

static bool nll(const struct iwp_eval_book *b, int32_t t) {
    return b->run.task[t].task->aggregate == IWP_AGGREGATE_NLL;
}

static const struct iwp_eval_row *find(const struct iwp_eval_book *b,
                                       const struct iwp_eval_config *c, int32_t task) {
    for (int32_t i = 0; i < b->n_row; i++)
        if (b->row[i].config == c && b->row[i].task == task) return &b->row[i];
    return NULL;
}

static bool is_row(const struct iwp_eval_book *b, const struct iwp_eval_config *c) {
    for (int32_t i = 0; i < b->n_row; i++)
        if (b->row[i].config == c) return true;
    return false;
}

static const struct iwp_eval_average *average(const struct iwp_eval_book *b,
                                              const struct iwp_eval_config *c) {
    for (int32_t i = 0; i < b->n_average; i++)
        if (b->average[i].config == c) return &b->average[i];
    return NULL;
}

static bool same_budget(const struct iwp_eval_config *a, const struct iwp_eval_config *c) {
    return a->keep == c->keep && a->n_keep == c->n_keep;
}

/* ---- main table ------------------------------------------------------------------------------------------ */

/* The best value of a task among the rows of one budget. */
static double best(const struct iwp_eval_book *b, const struct iwp_eval_config *like, int32_t t) {
    double v = NAN;
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        if (r->task != t || is_none(r->config) || !same_budget(r->config, like)) continue;
        if (isnan(v) || (nll(b, t) ? r->s.e.value < v : r->s.e.value > v)) v = r->s.e.value;
    }
    return v;
}

static void main_row(const struct iwp_eval_book *b, const struct iwp_eval_config *c, FILE *f) {
    char method[600];
    iwp_eval_method_text(c, method);
    fputs("<tr><td>", f);
    esc(f, is_none(c) ? "unpruned" : method);
    fputs("</td>", f);
    for (int32_t t = 0; t < b->run.n_task; t++) {
        const struct iwp_eval_row *r = find(b, c, t);
        if (!r) {
            fputs("<td>–</td>", f);
            continue;
        }
        const int d = nll(b, t) ? 3 : 1;
        const bool top = !is_none(c) && r->s.e.value == best(b, c, t);
        fprintf(f, "<td%s", top ? " class=\"best\"" : "");
        if (r->s.has_diff)
            fprintf(
                f, " title=\"difference to unpruned %+.*f ± %.*f (95 %% interval %+.*f to %+.*f)\"",
                d, r->s.diff.value, d, r->s.diff.stderr_, d,
                r->s.diff.value - 1.96 * r->s.diff.stderr_, d,
                r->s.diff.value + 1.96 * r->s.diff.stderr_);
        fprintf(f, ">%.*f", d, r->s.e.value);
        if (!isnan(r->s.e.stderr_)) fprintf(f, " <small>±%.*f</small>", d, r->s.e.stderr_);
        fputs("</td>", f);
    }
    const struct iwp_eval_average *a = average(b, c);
    if (a)
        fprintf(f, "<td>%.1f</td></tr>\n", a->value);
    else
        fputs("<td>–</td></tr>\n", f);
}

/* The paper's rows at this budget, in the columns we have. */
static void paper_rows(const struct iwp_eval_book *b, const cJSON *table, double keep, FILE *f) {
    const cJSON *row;
    cJSON_ArrayForEach(row, table) {
        const cJSON *m = cJSON_GetObjectItemCaseSensitive(row, "method");
        const cJSON *k = cJSON_GetObjectItemCaseSensitive(row, "keep_percent");
        const cJSON *s = cJSON_GetObjectItemCaseSensitive(row, "scores");
        if (!cJSON_IsString(m) || !cJSON_IsNumber(k) || !s) continue;
        if (fabs(k->valuedouble - 100 * (keep > 0 ? keep : 1)) > 0.051) continue;
        fputs("<tr><td class=\"paper\">paper: ", f);
        esc(f, m->valuestring);
        fputs("</td>", f);
        for (int32_t t = 0; t <= b->run.n_task; t++) {
            const char *name = t == b->run.n_task ? "Avg%" : b->run.task[t].task->paper;
            const cJSON *v = name ? cJSON_GetObjectItemCaseSensitive(s, name) : NULL;
            if (cJSON_IsNumber(v))
                fprintf(f, "<td class=\"paper\">%.1f</td>", v->valuedouble);
            else
                fputs("<td class=\"paper\">–</td>", f);
        }
        fputs("</tr>\n", f);
    }
}

static const cJSON *paper_table(const struct iwp_eval_book *b, const cJSON *paper) {
    char name[200] = "";
    size_t n = 0;
    for (const char *p = b->run.model; *p && n + 1 < sizeof name; p++)
        if ((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z'))
            name[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p + 32 : *p);
    bool video = false;
    for (int32_t t = 0; t < b->run.n_task; t++) {
        const char *c = b->run.task[t].task->paper;
        video = video || (c && (!strcmp(c, "EgoSchema") || !strcmp(c, "MLVU") ||
                                !strcmp(c, "Video-MME") || !strcmp(c, "NExT-QA")));
    }
    const char *key = strstr(name, "onevision") && strstr(name, "7b")
                          ? video ? "video_llava_onevision_7b" : "llava_onevision_7b"
                      : strstr(name, "qwen25vl7b")  ? "qwen2_5_vl_7b"
                      : strstr(name, "qwen25vl32b") ? "qwen2_5_vl_32b"
                                                    : NULL;
    return key ? cJSON_GetObjectItemCaseSensitive(paper, key) : NULL;
}

static void main_table(const struct iwp_eval_book *b, const cJSON *paper, FILE *f) {
    const struct iwp_eval_run *run = &b->run;
    const cJSON *table = paper ? paper_table(b, paper) : NULL;
    fputs("<h2>Scores</h2>\n<div class=\"scroll\"><table><thead><tr><th>method</th>", f);
    for (int32_t t = 0; t < run->n_task; t++) {
        fputs("<th>", f);
        esc(f, run->task[t].task->title);
        fprintf(f, "<br><small>%s, n=%d</small></th>",
                nll(b, t)                                             ? "nats ↓"
                : run->task[t].task->aggregate == IWP_AGGREGATE_PAIRS ? "points"
                                                                      : "%",
                run->task[t].n);
    }
    fputs("<th>Avg. %</th></tr></thead><tbody>\n", f);
    for (int32_t k = 0; k < run->n_config; k++)
        if (is_none(&run->config[k])) {
            main_row(b, &run->config[k], f);
            paper_rows(b, table, 0, f);
        }
    for (int32_t k = 0; k < run->n_config; k++) {
        const struct iwp_eval_config *c = &run->config[k];
        bool first = !is_none(c);
        for (int32_t i = 0; i < k && first; i++)
            if (!is_none(&run->config[i]) && same_budget(&run->config[i], c)) first = false;
        if (!first) continue;
        char keep[32];
        iwp_eval_keep_text(c, keep);
        fprintf(f, "<tr class=\"block\"><td colspan=\"%d\">keep %s</td></tr>\n", run->n_task + 2,
                keep);
        for (int32_t i = k; i < run->n_config; i++)
            if (!is_none(&run->config[i]) && same_budget(&run->config[i], c) &&
                is_row(b, &run->config[i]))
                main_row(b, &run->config[i], f);
        paper_rows(b, table, c->keep, f);
    }
    fputs("</tbody></table></div>\n<p class=\"sub\">± one standard error, clustered by picture. "
          "Bold: best at "
          "this budget. Avg. %: mean over tasks of score ÷ unpruned score. Hover a cell for its "
          "paired "
          "difference.</p>\n",
          f);
}

/* ---- plots ---------------------------------------------------------------------------------------------- */

struct curve {
    const struct iwp_eval_config *c; /* its first configuration */
    int32_t colour;
};

static int32_t curves(const struct iwp_eval_book *b, struct curve *out, int32_t cap) {
    int32_t n = 0;
    for (int32_t k = 0; k < b->run.n_config && n < cap; k++) {
        const struct iwp_eval_config *c = &b->run.config[k];
        int32_t i = 0;
        if (!is_row(b, c)) continue;
        while (i < n &&
               (strcmp(out[i].c->prune, c->prune) || strcmp(out[i].c->options, c->options)))
            i++;
        if (i == n) {
            out[n] = (struct curve){c, n % N_COLOUR};
            n++;
        }
    }
    return n;
}

struct axis {
    double lo, hi, step;
};

static struct axis nice(double lo, double hi) {
    if (!(hi > lo)) {
        lo -= fabs(lo) * 0.05 + 0.5;
        hi += fabs(hi) * 0.05 + 0.5;
    }
    const double raw = (hi - lo) / 4, p = pow(10, floor(log10(raw))), m = raw / p;
    const double step = p * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 2.5 ? 2.5 : m <= 5 ? 5 : 10);
    return (struct axis){floor(lo / step) * step, ceil(hi / step) * step, step};
}

enum { W = 460, H = 270, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 38 };

static double at_x(struct axis a, double v) {
    return (double)LEFT + (v - a.lo) / (a.hi - a.lo) * (W - LEFT - RIGHT);
}
static double at_y(struct axis a, double v) {
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

static void draw_axes(FILE *f, struct axis x, struct axis y, const char *label) {
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

static void plot(const struct iwp_eval_book *b, int32_t task, bool time, const struct curve *cv,
                 int32_t n_cv, FILE *f) {
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        const double x = x_of(r, time), e = isnan(r->s.e.stderr_) ? 0 : r->s.e.stderr_;
        if (r->task != task || isnan(x) || isnan(r->s.e.value)) continue;
        x0 = fmin(x0, x), x1 = fmax(x1, x);
        y0 = fmin(y0, r->s.e.value - e), y1 = fmax(y1, r->s.e.value + e);
    }
    if (!(x1 >= x0)) return;
    const struct axis ax = nice(time ? x0 : 0, time ? x1 : 100), ay = nice(y0, y1);
    fputs("<figure><figcaption>", f);
    esc(f, b->run.task[task].task->title);
    fprintf(f, "%s</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\">\n",
            nll(b, task) ? " (nats, lower is better)" : "", W, H);
    draw_axes(f, ax, ay, time ? "median time to first token, ms" : "visual tokens kept, %");
    for (int32_t k = 0; k < n_cv; k++) {
        struct point p[256];
        int32_t n = 0;
        const char *col = colours[cv[k].colour];
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
        if (is_none(cv[k].c) && n)
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

static void plots(const struct iwp_eval_book *b, FILE *f) {
    struct curve cv[64];
    const int32_t n = curves(b, cv, 64);
    char method[600];
    for (int time = 0; time < 2; time++) {
        fprintf(f, "<h2>%s</h2>\n<div class=\"key\">",
                time ? "Score over time to first token" : "Score over budget");
        for (int32_t k = 0; k < n; k++) {
            iwp_eval_method_text(cv[k].c, method);
            fprintf(f, "<span><i style=\"background:%s\"></i>", colours[cv[k].colour]);
            esc(f, is_none(cv[k].c) ? "unpruned" : method);
            fputs("</span>", f);
        }
        fputs("</div><div class=\"plots\">\n", f);
        for (int32_t t = 0; t < b->run.n_task; t++) plot(b, t, time, cv, n, f);
        fputs("</div>\n", f);
    }
}

/* ---- costs, categories, failures, provenance ----------------------------------------------------------------- */

static void cell(FILE *f, double v, int d) {
    if (isnan(v))
        fputs("<td>–</td>", f);
    else
        fprintf(f, "<td>%.*f</td>", d, v);
}

static void cost_table(const struct iwp_eval_book *b, FILE *f) {
    char method[600], keep[32];
    fputs("<h2>Cost</h2>\n<div "
          "class=\"scroll\"><table><thead><tr><th>method</th><th>keep</th><th>task</th>"
          "<th>kept %</th><th>encode</th><th>select</th><th>prefill</th><th>TTFT</th><th>TTFT "
          "p95</th>"
          "<th>decode</th><th>KV MB</th><th>GFLOP</th></tr></thead><tbody>\n",
          f);
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        iwp_eval_method_text(r->config, method);
        iwp_eval_keep_text(r->config, keep);
        fputs("<tr><td>", f);
        esc(f, is_none(r->config) ? "unpruned" : method);
        fprintf(f, "</td><td>%s</td><td>", keep);
        esc(f, b->run.task[r->task].task->title);
        fputs("</td>", f);
        cell(f, 100 * r->s.kept, 1);
        for (int k = 0; k < 4; k++) cell(f, r->t.median[k], 1);
        cell(f, r->t.p95[3], 1);
        cell(f, r->t.median[4], 1);
        cell(f, r->t.kv_bytes / 1e6, 2);
        cell(f, r->t.flops / 1e9, 1);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div><p class=\"sub\">Milliseconds, medians inside the run. Layers "
          "that several "
          "configurations share were run once and are counted in each.</p>\n",
          f);
}

static void category_tables(const struct iwp_eval_book *b, FILE *f) {
    char method[600], keep[32];
    bool head = false;
    for (int32_t t = 0; t < b->run.n_task; t++) {
        const struct iwp_eval_row *any = NULL;
        for (int32_t i = 0; i < b->n_row && !any; i++)
            if (b->row[i].task == t && b->row[i].s.n_category > 1) any = &b->row[i];
        if (!any) continue;
        if (!head) fputs("<h2>Categories</h2>\n", f);
        head = true;
        fputs("<details><summary>", f);
        esc(f, b->run.task[t].task->title);
        fputs("</summary><div class=\"scroll\"><table><thead><tr><th>method</th><th>keep</th>", f);
        for (int32_t k = 0; k < any->s.n_category; k++) {
            fputs("<th>", f);
            esc(f, any->s.category[k].name);
            fputs("</th>", f);
        }
        fputs("</tr></thead><tbody>\n", f);
        for (int32_t i = 0; i < b->n_row; i++) {
            const struct iwp_eval_row *r = &b->row[i];
            if (r->task != t) continue;
            iwp_eval_method_text(r->config, method);
            iwp_eval_keep_text(r->config, keep);
            fputs("<tr><td>", f);
            esc(f, is_none(r->config) ? "unpruned" : method);
            fprintf(f, "</td><td>%s</td>", keep);
            for (int32_t k = 0; k < r->s.n_category; k++) cell(f, r->s.category[k].e.value, 1);
            fputs("</tr>\n", f);
        }
        fputs("</tbody></table></div></details>\n", f);
    }
}

static void failures(const struct iwp_eval_book *b, FILE *f) {
    int32_t errors = 0, unparsed = 0, shown = 0;
    for (int32_t i = 0; i < b->n_row; i++)
        errors += b->row[i].s.errors, unparsed += b->row[i].s.unparsed;
    fprintf(f, "<h2>Failures</h2>\n<p>%d answers failed, %d could not be read by their scorer",
            errors, unparsed);
    if (b->missing) fprintf(f, ", <span class=\"warn\">%d are missing</span>", b->missing);
    fputs(".</p>\n", f);
    if (!errors) return;
    fputs("<details><summary>failed samples</summary><ul>\n", f);
    for (int32_t k = 0; k < b->run.n_config; k++)
        for (int32_t t = 0; t < b->run.n_task; t++) {
            const struct iwp_eval_records *r = &b->records[k * b->run.n_task + t];
            for (int32_t i = 0; i < r->n && shown < 200; i++) {
                if (!r->at[i].error) continue;
                shown++;
                fprintf(f, "<li><a href=\"%s/samples_%s.jsonl\">%s</a> ", b->run.config[k].dir,
                        b->run.task[t].task->name, b->run.config[k].dir);
                esc(f, r->at[i].id ? r->at[i].id : "");
                fputs(": ", f);
                esc(f, r->at[i].error);
                fputs("</li>\n", f);
            }
        }
    fputs("</ul></details>\n", f);
}

int iwp_eval_report_html(const struct iwp_eval_book *b, bool with_paper, FILE *f) {
    const struct iwp_eval_run *run = &b->run;
    cJSON *paper = NULL;
    const char *text = iwp_builtin_paper[0].json;
    if (with_paper && text)
        iwp_json_parse(text, strlen(text), (struct iwp_json_limits){0}, &paper, NULL);
    fputs(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width,initial-scale=1\"><title>iwp eval: ",
        f);
    esc(f, run->model);
    fprintf(f, "</title><style>%s</style></head><body>\n<h1>", style);
    esc(f, run->model);
    fprintf(f, "</h1><p class=\"sub\">profile %s, %d task%s, %d configurations</p>\n", run->profile,
            run->n_task, run->n_task == 1 ? "" : "s", run->n_config);
    main_table(b, paper, f);
    plots(b, f);
    cost_table(b, f);
    category_tables(b, f);
    iwp_eval_report_analyses(b->analysis, f);
    failures(b, f);
    fputs("<h2>What was measured</h2>\n<dl><dt>model</dt><dd><code>", f);
    fprintf(f,
            "%s</code></dd><dt>mmproj</dt><dd><code>%s</code></dd><dt>program</dt><dd><code>%s</"
            "code></dd>",
            run->model_hash, run->mmproj_hash, run->binary_hash);
    for (int32_t t = 0; t < run->n_task; t++)
        fprintf(f, "<dt>%s</dt><dd><code>%s</code></dd>", run->task[t].task->name,
                run->task[t].hash);
    fputs("<dt>flags</dt><dd><code>", f);
    esc(f, run->options);
    fputs("</code></dd></dl>\n</body></html>\n", f);
    cJSON_Delete(paper);
    return ferror(f) ? IWP_EIO : 0;
}
