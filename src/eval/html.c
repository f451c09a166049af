/* Shared parts of the page: see html.h. */
#include "eval/html.h"

#include <math.h>
#include <string.h>

static const char *const colours[] = {"#1c2430", "#d1495b", "#1f77b4", "#2a9d57",
                                      "#8e5bb5", "#e08e0b", "#0f9ba8", "#7a5c43",
                                      "#c2529b", "#6b7f1e", "#4457c9", "#999999"};
enum { N_COLOUR = sizeof colours / sizeof *colours };

void iwp_html_text(FILE *f, const char *s) {
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

void iwp_html_number(FILE *f, double v, int digits) {
    if (isnan(v))
        fputs("<td>–</td>", f);
    else
        fprintf(f, "<td>%.*f</td>", digits, v);
}

void iwp_html_method(FILE *f, const struct iwp_eval_config *c) {
    char method[600];
    iwp_eval_method_text(c, method);
    iwp_html_text(f, iwp_book_is_none(c) ? "unpruned" : method);
}

bool iwp_book_is_none(const struct iwp_eval_config *c) { return !strcmp(c->prune, "none"); }

bool iwp_book_is_nll(const struct iwp_eval_book *b, int32_t task) {
    return b->run.task[task].task->aggregate == IWP_AGGREGATE_NLL;
}

const struct iwp_eval_row *iwp_book_row(const struct iwp_eval_book *b,
                                        const struct iwp_eval_config *c, int32_t task) {
    for (int32_t i = 0; i < b->n_row; i++)
        if (b->row[i].config == c && b->row[i].task == task) return &b->row[i];
    return NULL;
}

bool iwp_book_has(const struct iwp_eval_book *b, const struct iwp_eval_config *c) {
    for (int32_t i = 0; i < b->n_row; i++)
        if (b->row[i].config == c) return true;
    return false;
}

const struct iwp_eval_average *iwp_book_average(const struct iwp_eval_book *b,
                                                const struct iwp_eval_config *c) {
    for (int32_t i = 0; i < b->n_average; i++)
        if (b->average[i].config == c) return &b->average[i];
    return NULL;
}

bool iwp_book_same_budget(const struct iwp_eval_config *a, const struct iwp_eval_config *c) {
    return a->keep == c->keep && a->n_keep == c->n_keep;
}

double iwp_book_ttft(const struct iwp_eval_book *b, const struct iwp_eval_config *c) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_row; i++)
        if (b->row[i].config == c && b->row[i].t.n) sum += b->row[i].t.median[3], n++;
    return n ? sum / n : NAN;
}

double iwp_book_kept(const struct iwp_eval_book *b, const struct iwp_eval_config *c) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_row; i++)
        if (b->row[i].config == c && !isnan(b->row[i].s.kept)) sum += b->row[i].s.kept, n++;
    return n ? sum / n : NAN;
}

int32_t iwp_html_curves(const struct iwp_eval_book *b, struct iwp_html_curve *out, int32_t cap) {
    int32_t n = 0;
    for (int32_t k = 0; k < b->run.n_config && n < cap; k++) {
        const struct iwp_eval_config *c = &b->run.config[k];
        int32_t i = 0;
        if (!iwp_book_has(b, c)) continue;
        while (i < n &&
               (strcmp(out[i].c->prune, c->prune) || strcmp(out[i].c->options, c->options)))
            i++;
        if (i == n) {
            out[n] = (struct iwp_html_curve){c, colours[n % N_COLOUR]};
            n++;
        }
    }
    return n;
}

void iwp_html_key(const struct iwp_html_curve *cv, int32_t n, FILE *f) {
    fputs("<div class=\"key\">", f);
    for (int32_t k = 0; k < n; k++) {
        fprintf(f, "<span><i style=\"background:%s\"></i>", cv[k].colour);
        iwp_html_method(f, cv[k].c);
        fputs("</span>", f);
    }
    fputs("</div>\n", f);
}
