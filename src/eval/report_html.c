/* report.html: one file without links to the outside, readable on a screen, a phone and paper.  Main table
 * in the paper's layout (budgets as blocks, methods as rows, tasks as columns, Avg. % last), accuracy over
 * budget and over time to first token with error bars, costs, categories, failures. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "eval/html.h"

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
    "a{color:#1f5fa8}.right{color:var(--best)}tr.control td{background:#fbf7ec}"
    "h3{font-size:1rem;margin:1.4rem 0 0}.shown{border-top:1px solid var(--line)}"
    ".store{position:absolute}.dropped{fill:#11151c;fill-opacity:.78}"
    ".strip{display:grid;grid-template-columns:8.5rem 1fr;gap:.6rem;margin:.5rem 0;"
    "break-inside:avoid}.strip>b{font-size:.85rem;overflow-wrap:anywhere}"
    ".strip>div{display:grid;gap:.5rem;grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}"
    ".strip figure{padding:0;overflow:hidden;border-radius:6px;max-width:190px}"
    ".strip figcaption{font-weight:400;font-size:.8rem;padding:.2rem .4rem;overflow-wrap:anywhere}"
    ".strip figcaption small{color:var(--soft)}.none{padding:1.6rem .4rem;text-align:center;"
    "color:var(--soft);background:var(--wash);font-size:.8rem}"
    "li{overflow-wrap:anywhere;margin:.15rem 0}nav{font-size:.85rem;margin:0 0 1rem}"
    "nav a{margin-right:.9rem}"
    "@media(max-width:600px){body{padding:1rem .7rem "
    "3rem}.strip{grid-template-columns:1fr;gap:.2rem}"
    ".strip>div{grid-template-columns:repeat(auto-fill,minmax(100px,1fr))}"
    "th:first-child,td:first-child{position:sticky;left:0;background:var(--paper)}"
    "thead th:first-child,tr.block td{background:var(--wash)}}"
    "@media print{@page{margin:14mm}body{max-width:none;padding:0;font-size:11px}"
    "*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.scroll{overflow:visible;border:0}"
    "nav{display:none}h2,h3,.key{break-after:avoid}tr{break-inside:avoid}thead{display:"
    "table-header-group}table{font-size:9.5px}th,td{padding:.2rem .35rem;white-space:normal}"
    ".plots{grid-template-columns:1fr 1fr}.strip figure{max-width:120px}}";

/* ---- main table ------------------------------------------------------------------------------------------ */

/* The best value of a task among the rows of one budget. */
static double best(const struct iwp_eval_book *b, const struct iwp_eval_config *like, int32_t t) {
    double v = NAN;
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        if (r->task != t || iwp_book_is_none(r->config) || !iwp_book_same_budget(r->config, like))
            continue;
        if (isnan(v) || (iwp_book_is_nll(b, t) ? r->s.e.value < v : r->s.e.value > v))
            v = r->s.e.value;
    }
    return v;
}

static void main_row(const struct iwp_eval_book *b, const struct iwp_eval_config *c, FILE *f) {
    char method[600];
    iwp_eval_method_text(c, method);
    fputs("<tr><td>", f);
    iwp_html_text(f, iwp_book_is_none(c) ? "unpruned" : method);
    fputs("</td>", f);
    for (int32_t t = 0; t < b->run.n_task; t++) {
        const struct iwp_eval_row *r = iwp_book_row(b, c, t);
        if (!r) {
            fputs("<td>–</td>", f);
            continue;
        }
        const int d = iwp_book_is_nll(b, t) ? 3 : 1;
        if (iwp_eval_summary_failed(&r->s) || isnan(r->s.e.value)) {
            fprintf(f, "<td><a class=\"warn\" href=\"#failed-%d\">failed</a></td>",
                    (int)(c - b->run.config));
            continue;
        }
        const bool top = !iwp_book_is_none(c) && r->s.e.value == best(b, c, t);
        fprintf(f, "<td%s", top ? " class=\"best\"" : "");
        if (r->s.has_diff) {
            double interval[2];
            iwp_stats_interval(&r->s.diff, interval);
            fprintf(
                f, " title=\"difference to unpruned %+.*f ± %.*f (95 %% interval %+.*f to %+.*f)\"",
                d, r->s.diff.value, d, r->s.diff.stderr_, d, interval[0], d, interval[1]);
        }
        fprintf(f, ">%.*f", d, r->s.e.value);
        if (!isnan(r->s.e.stderr_)) fprintf(f, " <small>±%.*f</small>", d, r->s.e.stderr_);
        fputs("</td>", f);
    }
    const struct iwp_eval_average *a = iwp_book_average(b, c);
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
        iwp_html_text(f, m->valuestring);
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
    char count[48];
    fputs("<h2 id=\"scores\">Scores</h2>\n<div class=\"scroll\"><table><thead><tr><th>method</th>",
          f);
    for (int32_t t = 0; t < run->n_task; t++) {
        fputs("<th>", f);
        iwp_html_text(f, run->task[t].task->title);
        iwp_eval_n_text(b, t, count);
        fprintf(f, "<br><small>%s, n=%s</small></th>",
                iwp_book_is_nll(b, t)                                 ? "nats ↓"
                : run->task[t].task->aggregate == IWP_AGGREGATE_PAIRS ? "points"
                                                                      : "%",
                count);
    }
    fputs("<th>Avg. %</th></tr></thead><tbody>\n", f);
    for (int32_t k = 0; k < run->n_config; k++)
        if (iwp_book_is_none(&run->config[k])) {
            main_row(b, &run->config[k], f);
            paper_rows(b, table, 0, f);
        }
    for (int32_t k = 0; k < run->n_config; k++) {
        const struct iwp_eval_config *c = &run->config[k];
        bool first = !iwp_book_is_none(c);
        for (int32_t i = 0; i < k && first; i++)
            if (!iwp_book_is_none(&run->config[i]) && iwp_book_same_budget(&run->config[i], c))
                first = false;
        if (!first) continue;
        char keep[32];
        iwp_eval_keep_text(c, keep);
        fprintf(f, "<tr class=\"block\"><td colspan=\"%d\">keep %s</td></tr>\n", run->n_task + 2,
                keep);
        for (int32_t i = k; i < run->n_config; i++)
            if (!iwp_book_is_none(&run->config[i]) && iwp_book_same_budget(&run->config[i], c) &&
                iwp_book_has(b, &run->config[i]))
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

/* ---- costs, categories, failures, provenance ----------------------------------------------------------------- */

static void cost_table(const struct iwp_eval_book *b, FILE *f) {
    char method[600], keep[32], stages[IWP_EVAL_STAGES_TEXT];
    fputs("<h2 id=\"cost\">Cost</h2>\n<div "
          "class=\"scroll\"><table><thead><tr><th>method</th><th>keep</th><th>task</th>"
          "<th>kept %</th><th>per stage</th><th>layer average "
          "%</th><th>encode</th><th>select</th><th>prefill</th><th>TTFT</th><th>TTFT "
          "p95</th>"
          "<th>decode</th><th>KV MB</th><th>GFLOP</th></tr></thead><tbody>\n",
          f);
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        iwp_eval_method_text(r->config, method);
        iwp_eval_keep_text(r->config, keep);
        fputs("<tr><td>", f);
        iwp_html_text(f, iwp_book_is_none(r->config) ? "unpruned" : method);
        fprintf(f, "</td><td>%s</td><td>", keep);
        iwp_html_text(f, b->run.task[r->task].task->title);
        fputs("</td>", f);
        iwp_html_number(f, 100 * r->s.kept, 1);
        iwp_eval_stages_text(&r->t, stages, sizeof stages);
        fprintf(f, "<td>%s</td>", stages);
        iwp_html_number(f, 100 * r->t.layer_average, 1);
        for (int k = 0; k < 4; k++) iwp_html_number(f, r->t.median[k], 1);
        iwp_html_number(f, r->t.p95[3], 1);
        iwp_html_number(f, r->t.median[4], 1);
        iwp_html_number(f, r->t.kv_bytes / 1e6, 2);
        iwp_html_number(f, r->t.flops / 1e9, 1);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div><p class=\"sub\">Per stage: share of the visual tokens left after "
          "the cut before a layer; layer average: the mean over layers. GFLOP: prefill. "
          "Milliseconds, medians inside the run. Layers "
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
        iwp_html_text(f, b->run.task[t].task->title);
        fputs("</summary><div class=\"scroll\"><table><thead><tr><th>method</th><th>keep</th>", f);
        for (int32_t k = 0; k < any->s.n_category; k++) {
            fputs("<th>", f);
            iwp_html_text(f, any->s.category[k].name);
            fputs("</th>", f);
        }
        fputs("</tr></thead><tbody>\n", f);
        for (int32_t i = 0; i < b->n_row; i++) {
            const struct iwp_eval_row *r = &b->row[i];
            if (r->task != t) continue;
            iwp_eval_method_text(r->config, method);
            iwp_eval_keep_text(r->config, keep);
            fputs("<tr><td>", f);
            iwp_html_text(f, iwp_book_is_none(r->config) ? "unpruned" : method);
            fprintf(f, "</td><td>%s</td>", keep);
            for (int32_t k = 0; k < r->s.n_category; k++)
                iwp_html_number(f, r->s.category[k].e.value, 1);
            fputs("</tr>\n", f);
        }
        fputs("</tbody></table></div></details>\n", f);
    }
}

static void sample_item(const struct iwp_eval_book *b, int32_t k, int32_t t,
                        const struct iwp_eval_record *x, FILE *f) {
    fputs("<li>", f);
    iwp_html_text(f, b->run.task[t].task->name);
    fputs("/", f);
    iwp_html_text(f, x->id ? x->id : "");
    fputs(": ", f);
    if (x->error) {
        fputs("<span class=\"warn\">", f);
        iwp_html_text(f, x->error);
        fputs("</span>", f);
    } else {
        fputs("“", f);
        iwp_html_text(f, x->answer ? x->answer : "");
        fputs("”, right: “", f);
        iwp_html_text(f, x->target ? x->target : "");
        fputs("”", f);
    }
    fprintf(f, " <a href=\"%s/samples_%s.jsonl\">line of doc_id %d</a></li>\n",
            b->run.config[k].dir, b->run.task[t].task->name, x->doc);
}

/* Failed and wrong samples of a configuration, failed ones first, some of them. */
static void failing(const struct iwp_eval_book *b, int32_t k, FILE *f) {
    enum { SHOWN = 30 };
    int32_t failed = 0, wrong = 0, shown = 0;
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 1) {
            if (failed + wrong == 0) return;
            fprintf(f, "<details id=\"failed-%d\"><summary>", k);
            iwp_html_text(f, b->run.config[k].dir);
            fprintf(f, ": %d failed, %d wrong</summary><ul>\n", failed, wrong);
        }
        for (int32_t t = 0; t < b->run.n_task; t++) {
            const struct iwp_eval_records *r = &b->records[k * b->run.n_task + t];
            for (int32_t i = 0; i < r->n; i++) {
                const struct iwp_eval_record *x = &r->at[i];
                const bool bad = !x->error && !iwp_book_is_nll(b, t) && !(x->score > 0);
                if (pass == 0) failed += x->error != NULL, wrong += bad;
                if ((pass == 1 && x->error) || (pass == 2 && bad))
                    if (shown++ < SHOWN) sample_item(b, k, t, x, f);
            }
        }
    }
    if (shown > SHOWN) fprintf(f, "<li>… and %d more</li>\n", shown - SHOWN);
    fputs("</ul></details>\n", f);
}

static void failures(const struct iwp_eval_book *b, FILE *f) {
    int32_t errors = 0, unparsed = 0;
    for (int32_t i = 0; i < b->n_row; i++)
        errors += b->row[i].s.errors, unparsed += b->row[i].s.unparsed;
    fprintf(f,
            "<h2 id=\"failures\">Failing samples</h2>\n<p>%d answers failed, %d could not be read "
            "by their scorer",
            errors, unparsed);
    if (b->missing) fprintf(f, ", <span class=\"warn\">%d are missing</span>", b->missing);
    fputs(".</p>\n", f);
    for (int32_t k = 0; k < b->run.n_config; k++) failing(b, k, f);
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
    iwp_html_text(f, run->model);
    fprintf(f, "</title><style>%s</style></head><body>\n<h1>", style);
    iwp_html_text(f, run->model);
    fprintf(f, "</h1><p class=\"sub\">profile %s, %d task%s, %d configurations</p>\n", run->profile,
            run->n_task, run->n_task == 1 ? "" : "s", run->n_config);
    fputs("<nav><a href=\"#scores\">Scores</a><a href=\"#equal-tokens\">Equal tokens</a>"
          "<a href=\"#equal-time\">Equal time</a><a href=\"#cost\">Cost</a>"
          "<a href=\"#gallery\">Kept tokens</a><a href=\"#failures\">Failing samples</a></nav>\n",
          f);
    main_table(b, paper, f);
    iwp_html_plots(b, f);
    iwp_html_equal_tokens(b, f);
    iwp_html_equal_time(b, f);
    cost_table(b, f);
    category_tables(b, f);
    iwp_html_gallery(b, f);
    iwp_eval_report_analyses(b->analysis, f);
    failures(b, f);
    fputs("<h2>What was measured</h2>\n<dl><dt>model</dt><dd><code>", f);
    fprintf(f,
            "%s</code></dd><dt>mmproj</dt><dd><code>%s</code></dd><dt>program</dt><dd><code>%s</"
            "code></dd>",
            run->model_hash, run->mmproj_hash, run->binary_hash);
    for (int32_t t = 0; t < run->n_task; t++) {
        char hash[65] = "";
        iwp_eval_data_hash(b, t, hash, NULL);
        fprintf(f, "<dt>%s</dt><dd><code>%s</code></dd>", run->task[t].task->name, hash);
    }
    fputs("<dt>flags</dt><dd><code>", f);
    iwp_html_text(f, run->options);
    fputs("</code></dd></dl>\n</body></html>\n", f);
    cJSON_Delete(paper);
    return ferror(f) ? IWP_EIO : 0;
}
