/* Gallery of report.html: a few pictures with the tokens that each method and budget kept, and what was
 * answered then.  A picture is in the page once; what was dropped is a dark shape over it. */
#include <stdlib.h>
#include <string.h>

#include "eval/base64.h"
#include "eval/gallery.h"
#include "eval/html.h"

enum { SHOWN = 3 }; /* of a task */

static const struct iwp_eval_record *record(const struct iwp_eval_book *b, int32_t config,
                                            int32_t task, int32_t doc) {
    const struct iwp_eval_records *r = &b->records[config * b->run.n_task + task];
    for (int32_t i = 0; i < r->n; i++)
        if (r->at[i].doc == doc) return &r->at[i];
    return NULL;
}

/* How many configurations answer otherwise than the unpruned run. */
static int32_t flips(const struct iwp_eval_book *b, int32_t task, int32_t doc) {
    const struct iwp_eval_record *base = NULL;
    int32_t n = 0;
    for (int32_t k = 0; k < b->run.n_config && !base; k++)
        if (iwp_book_is_none(&b->run.config[k])) base = record(b, k, task, doc);
    for (int32_t k = 0; base && k < b->run.n_config; k++) {
        const struct iwp_eval_record *r = record(b, k, task, doc);
        n += r && r->score != base->score;
    }
    return n;
}

/* Cells of dropped tokens, neighbours in a row as one. */
static void dropped(const struct iwp_gallery_item *it, const uint8_t *kept, FILE *f) {
    fputs("<path class=\"dropped\" d=\"", f);
    for (int32_t i = 0; i < it->n_cell;) {
        const struct iwp_gallery_cell *c = &it->cell[i];
        int32_t x1 = c->x1, k = i + 1;
        if (!kept[c->token])
            for (; k < it->n_cell && it->cell[k].y0 == c->y0 && it->cell[k].y1 == c->y1 &&
                   it->cell[k].x0 <= x1 + 1 && it->cell[k].x0 >= c->x0 && !kept[it->cell[k].token];
                 k++)
                x1 = it->cell[k].x1;
        if (!kept[c->token] && x1 > c->x0)
            fprintf(f, "M%d %dh%dv%dh%dz", c->x0, c->y0, x1 - c->x0, c->y1 - c->y0, c->x0 - x1);
        i = k;
    }
    fputs("\"/>", f);
}

static void answer(const struct iwp_eval_book *b, int32_t task, const struct iwp_eval_record *r,
                   FILE *f) {
    if (r->error) {
        fputs("<span class=\"warn\" title=\"", f);
        iwp_html_text(f, r->error);
        fputs("\">failed</span>", f);
    } else if (iwp_book_is_nll(b, task)) {
        fprintf(f, "%.3f nats", r->score);
    } else {
        fprintf(f, "<span class=\"%s\">", r->score > 0 ? "right" : "warn");
        iwp_html_text(f, r->answer && *r->answer ? r->answer : "(nothing)");
        fputs("</span>", f);
    }
}

static void one(const struct iwp_eval_book *b, int32_t task, const struct iwp_gallery_item *it,
                int32_t config, int32_t number, FILE *f) {
    const struct iwp_eval_config *c = &b->run.config[config];
    const struct iwp_eval_record *r = record(b, config, task, it->doc);
    char keep[32];
    if (!r) return;
    uint8_t *kept = r->bits && r->visual == it->n_visual
                        ? iwp_eval_base64_bits(r->bits, (size_t)it->n_visual)
                        : NULL;
    iwp_eval_keep_text(c, keep);
    fputs("<figure>", f);
    if (kept) {
        fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><use href=\"#picture-%d\"/>", it->width,
                it->height, number);
        dropped(it, kept, f);
        fputs("</svg>", f);
    } else {
        fprintf(f, "<div class=\"none\">%s%d tokens</div>", r->error ? "of " : "",
                r->error ? it->n_visual : r->kept);
    }
    fprintf(f, "<figcaption><small>%s</small> ", keep);
    answer(b, task, r, f);
    fputs("</figcaption></figure>\n", f);
    free(kept);
}

static void item(const struct iwp_eval_book *b, int32_t task, const struct iwp_gallery_item *it,
                 int32_t number, FILE *f) {
    const struct iwp_eval_run *run = &b->run;
    struct iwp_html_curve cv[64];
    const int32_t n = iwp_html_curves(b, cv, 64);
    const struct iwp_eval_record *any = NULL;
    for (int32_t k = 0; k < run->n_config && !any; k++) any = record(b, k, task, it->doc);
    if (!any) return;
    fprintf(f,
            "<article class=\"shown\"><svg class=\"store\" width=\"0\" height=\"0\"><defs><image "
            "id=\"picture-%d\" width=\"%d\" height=\"%d\" href=\"data:image/webp;base64,%s\"/>"
            "</defs></svg>\n<h3>",
            number, it->width, it->height, it->image);
    iwp_html_text(f, it->question);
    fputs("</h3><p class=\"sub\">", f);
    iwp_html_text(f, run->task[task].task->title);
    fputs(" · right: ", f);
    iwp_html_text(f, any->target ? any->target : "");
    fputs("</p>\n", f);
    for (int32_t k = 0; k < n; k++) {
        fputs("<div class=\"strip\"><b>", f);
        iwp_html_method(f, cv[k].c);
        fputs("</b><div>\n", f);
        for (int32_t i = 0; i < run->n_config; i++)
            if (iwp_book_has(b, &run->config[i]) && !strcmp(run->config[i].prune, cv[k].c->prune) &&
                !strcmp(run->config[i].options, cv[k].c->options))
                one(b, task, it, i, number, f);
        fputs("</div></div>\n", f);
    }
    fputs("</article>\n", f);
}

void iwp_html_gallery(const struct iwp_eval_book *b, FILE *f) {
    int32_t number = 0;
    for (int32_t t = 0; t < b->run.n_task; t++) {
        const struct iwp_gallery *g = &b->gallery[t];
        bool used[IWP_GALLERY_MAX * 16] = {false};
        const int32_t n = g->n < IWP_GALLERY_MAX * 16 ? g->n : IWP_GALLERY_MAX * 16;
        for (int32_t shown = 0; shown < SHOWN; shown++) { /* those that change most first */
            int32_t best = -1, most = -1;
            for (int32_t i = 0; i < n; i++) {
                const int32_t k = used[i] ? -1 : flips(b, t, g->at[i].doc);
                if (k > most) best = i, most = k;
            }
            if (best < 0) break;
            used[best] = true;
            if (number == 0) fputs("<h2 id=\"gallery\">What was kept</h2>\n", f);
            item(b, t, &g->at[best], ++number, f);
        }
    }
    if (number)
        fputs(
            "<p class=\"sub\">Dark: dropped. Of methods that draw, the first seed. Pictures whose "
            "answers change most come first.</p>\n",
            f);
}
