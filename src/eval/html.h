/* What the parts of report.html share. */
#ifndef IWP_EVAL_HTML_H
#define IWP_EVAL_HTML_H

#include <stdbool.h>
#include <stdio.h>

#include "eval/results.h"

/* Text with its marks escaped. */
void iwp_html_text(FILE *f, const char *s);
/* A table cell, a dash for NaN. */
void iwp_html_number(FILE *f, double v, int digits);
/* "unpruned" or the method with its options. */
void iwp_html_method(FILE *f, const struct iwp_eval_config *c);

bool iwp_book_is_none(const struct iwp_eval_config *c);
bool iwp_book_is_nll(const struct iwp_eval_book *b, int32_t task);
/* The row of a configuration in a task, or NULL. */
const struct iwp_eval_row *iwp_book_row(const struct iwp_eval_book *b,
                                        const struct iwp_eval_config *c, int32_t task);
/* Has it a row in any task (it is the first of its seeds, and answered)? */
bool iwp_book_has(const struct iwp_eval_book *b, const struct iwp_eval_config *c);
const struct iwp_eval_average *iwp_book_average(const struct iwp_eval_book *b,
                                                const struct iwp_eval_config *c);
bool iwp_book_same_budget(const struct iwp_eval_config *a, const struct iwp_eval_config *c);
/* Median time to first token, mean over tasks; NaN: not measured. */
double iwp_book_ttft(const struct iwp_eval_book *b, const struct iwp_eval_config *c);
/* Mean share of visual tokens kept, over tasks. */
double iwp_book_kept(const struct iwp_eval_book *b, const struct iwp_eval_config *c);

/* Methods with their options, in order of appearance, each with a colour. */
struct iwp_html_curve {
    const struct iwp_eval_config *c; /* its first configuration */
    const char *colour;
};
int32_t iwp_html_curves(const struct iwp_eval_book *b, struct iwp_html_curve *out, int32_t cap);
void iwp_html_key(const struct iwp_html_curve *cv, int32_t n, FILE *f);

/* Sections. */
void iwp_html_plots(const struct iwp_eval_book *b, FILE *f);        /* report_plots.c */
void iwp_html_equal_tokens(const struct iwp_eval_book *b, FILE *f); /* report_equal.c */
void iwp_html_equal_time(const struct iwp_eval_book *b, FILE *f);
void iwp_html_gallery(const struct iwp_eval_book *b, FILE *f); /* report_gallery.c */

#endif
