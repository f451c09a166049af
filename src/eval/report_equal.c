/* Tables that compare like with like: at equal tokens, and at equal time to first token.  `resize`, the
 * plain way to spend fewer tokens, is the control where the grid has it. */
#include <math.h>
#include <string.h>

#include "eval/html.h"

static bool is_control(const struct iwp_eval_config *c) { return !strcmp(c->prune, "resize"); }

static void head(const struct iwp_eval_book *b, const char *first, FILE *f) {
    fprintf(f,
            "<div class=\"scroll\"><table><thead><tr><th>%s</th><th>kept %%</th><th>TTFT ms</th>",
            first);
    for (int32_t t = 0; t < b->run.n_task; t++) {
        fputs("<th>", f);
        iwp_html_text(f, b->run.task[t].task->title);
        fputs("</th>", f);
    }
    fputs("<th>Avg. %</th></tr></thead><tbody>\n", f);
}

static void block(const struct iwp_eval_book *b, const char *text, FILE *f) {
    fprintf(f, "<tr class=\"block\"><td colspan=\"%d\">%s</td></tr>\n", b->run.n_task + 4, text);
}

/* Scores beside the control's: how much above it. */
static void row(const struct iwp_eval_book *b, const struct iwp_eval_config *c,
                const struct iwp_eval_config *control, bool budget, FILE *f) {
    char keep[32];
    fprintf(f, "<tr%s><td>", is_control(c) ? " class=\"control\"" : "");
    iwp_html_method(f, c);
    if (budget && !iwp_book_is_none(c)) {
        iwp_eval_keep_text(c, keep);
        fprintf(f, " <small>keep %s</small>", keep);
    }
    fputs("</td>", f);
    iwp_html_number(f, 100 * iwp_book_kept(b, c), 1);
    iwp_html_number(f, iwp_book_ttft(b, c), 0);
    for (int32_t t = 0; t < b->run.n_task; t++) {
        const struct iwp_eval_row *r = iwp_book_row(b, c, t);
        const struct iwp_eval_row *k = control ? iwp_book_row(b, control, t) : NULL;
        const int d = iwp_book_is_nll(b, t) ? 3 : 1;
        if (!r || isnan(r->s.e.value) || iwp_eval_summary_failed(&r->s)) {
            fputs("<td>–</td>", f);
            continue;
        }
        fprintf(f, "<td>%.*f", d, r->s.e.value);
        if (k && k != r && !isnan(k->s.e.value) && !iwp_eval_summary_failed(&k->s))
            fprintf(f, " <small>%+.*f</small>", d, r->s.e.value - k->s.e.value);
        fputs("</td>", f);
    }
    const struct iwp_eval_average *a = iwp_book_average(b, c);
    iwp_html_number(f, a ? a->value : NAN, 1);
    fputs("</tr>\n", f);
}

void iwp_html_equal_tokens(const struct iwp_eval_book *b, FILE *f) {
    const struct iwp_eval_run *run = &b->run;
    fputs("<h2 id=\"equal-tokens\">At equal tokens</h2>\n", f);
    head(b, "method", f);
    for (int32_t k = 0; k < run->n_config; k++) {
        const struct iwp_eval_config *c = &run->config[k], *control = NULL;
        bool first = !iwp_book_is_none(c);
        for (int32_t i = 0; i < k && first; i++)
            first = iwp_book_is_none(&run->config[i]) || !iwp_book_same_budget(&run->config[i], c);
        if (!first) continue;
        for (int32_t i = 0; i < run->n_config; i++)
            if (is_control(&run->config[i]) && iwp_book_same_budget(&run->config[i], c) &&
                iwp_book_has(b, &run->config[i]))
                control = &run->config[i];
        char keep[32], text[64];
        iwp_eval_keep_text(c, keep);
        snprintf(text, sizeof text, "keep %s", keep);
        block(b, text, f);
        for (int32_t i = k; i < run->n_config; i++)
            if (!iwp_book_is_none(&run->config[i]) && iwp_book_same_budget(&run->config[i], c) &&
                iwp_book_has(b, &run->config[i]))
                row(b, &run->config[i], control, false, f);
    }
    fputs("</tbody></table></div>\n<p class=\"sub\">Kept: mean share of the visual tokens that "
          "reached the end. Small figures: above or below <b>resize</b>, the picture shrunk to the "
          "same number of tokens.</p>\n",
          f);
}

/* The configuration of a method that keeps most within the time; NULL: none is that quick. */
static const struct iwp_eval_config *within(const struct iwp_eval_book *b,
                                            const struct iwp_html_curve *cv, double ms) {
    const struct iwp_eval_config *best = NULL;
    for (int32_t i = 0; i < b->run.n_config; i++) {
        const struct iwp_eval_config *c = &b->run.config[i];
        if (!iwp_book_has(b, c) || strcmp(c->prune, cv->c->prune) ||
            strcmp(c->options, cv->c->options) || !(iwp_book_ttft(b, c) <= ms))
            continue;
        if (!best || iwp_book_kept(b, c) > iwp_book_kept(b, best)) best = c;
    }
    return best;
}

void iwp_html_equal_time(const struct iwp_eval_book *b, FILE *f) {
    struct iwp_html_curve cv[64];
    const int32_t n = iwp_html_curves(b, cv, 64);
    /* Times to compare at: the control's, else those of the first method that prunes. */
    const struct iwp_html_curve *clock = NULL;
    for (int32_t k = 0; k < n; k++)
        if (!iwp_book_is_none(cv[k].c) && (!clock || is_control(cv[k].c))) clock = &cv[k];
    if (!clock) return;
    fputs("<h2 id=\"equal-time\">At equal time to first token</h2>\n", f);
    head(b, "method", f);
    for (int32_t i = 0; i < b->run.n_config; i++) {
        const struct iwp_eval_config *c = &b->run.config[i];
        const double ms = iwp_book_has(b, c) ? iwp_book_ttft(b, c) * 1.02 : NAN;
        if (strcmp(c->prune, clock->c->prune) || strcmp(c->options, clock->c->options) || isnan(ms))
            continue;
        char keep[32], text[160];
        iwp_eval_keep_text(c, keep);
        snprintf(text, sizeof text, "within %.0f ms (%s at %s)", ms, c->prune, keep);
        block(b, text, f);
        for (int32_t k = 0; k < n; k++) {
            const struct iwp_eval_config *w = within(b, &cv[k], ms);
            if (w) row(b, w, is_control(c) ? c : NULL, true, f);
        }
    }
    fputs("</tbody></table></div>\n<p class=\"sub\">For each method the largest budget of the grid "
          "whose median time to first token (2 % allowed) fits; a method that is missing is never "
          "that quick.</p>\n",
          f);
}
