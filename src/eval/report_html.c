/* The page: for now the Markdown table, verbatim. */
#include "eval/results.h"

int iwp_eval_report_html(const struct iwp_eval_book *b, const char *paper, FILE *f) {
    (void)paper;
    fputs("<!doctype html><meta charset=\"utf-8\"><title>iwp eval</title><pre>\n", f);
    iwp_eval_report_md(b, f);
    fputs("</pre>\n", f);
    return 0;
}
