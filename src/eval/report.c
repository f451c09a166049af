/* Reports as text: Markdown tables, CSV, the list of flipped answers.  See results.h. */
#include <math.h>
#include <string.h>

#include "eval/results.h"

static const struct iwp_eval_row *find_row(const struct iwp_eval_book *b,
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

static int digits(const struct iwp_eval_book *b, int32_t task) {
    return b->run.task[task].task->aggregate == IWP_AGGREGATE_NLL ? 3 : 1;
}

int iwp_eval_report_md(const struct iwp_eval_book *b, FILE *f) {
    const struct iwp_eval_run *run = &b->run;
    char method[600], keep[32], count[48];
    fprintf(f, "| method | keep |");
    for (int32_t t = 0; t < run->n_task; t++) fprintf(f, " %s |", run->task[t].task->title);
    fprintf(f, " Avg. %% | TTFT ms |\n|---|---|");
    for (int32_t t = 0; t < run->n_task + 2; t++) fprintf(f, "---|");
    fputc('\n', f);
    for (int32_t k = 0; k < run->n_config; k++) {
        const struct iwp_eval_config *c = &run->config[k];
        if (!is_row(b, c)) continue;
        iwp_eval_method_text(c, method);
        iwp_eval_keep_text(c, keep);
        fprintf(f, "| %s | %s |", method, keep);
        double ttft = 0;
        int32_t n = 0;
        for (int32_t t = 0; t < run->n_task; t++) {
            const struct iwp_eval_row *r = find_row(b, c, t);
            if (!r) {
                fprintf(f, " – |");
                continue;
            }
            if (iwp_eval_summary_failed(&r->s) || isnan(r->s.e.value)) {
                fprintf(f, " failed |");
                continue;
            }
            fprintf(f, " %.*f", digits(b, t), r->s.e.value);
            if (!isnan(r->s.e.stderr_)) fprintf(f, " ± %.*f", digits(b, t), r->s.e.stderr_);
            fprintf(f, " |");
            if (r->t.n) {
                ttft += r->t.median[3];
                n++;
            }
        }
        const struct iwp_eval_average *a = NULL;
        for (int32_t i = 0; i < b->n_average; i++)
            if (b->average[i].config == c) a = &b->average[i];
        if (a)
            fprintf(f, " %.1f |", a->value);
        else
            fprintf(f, " – |");
        if (n)
            fprintf(f, " %.0f |\n", ttft / n);
        else
            fprintf(f, " – |\n");
    }
    fprintf(f, "\nModel %s, profile %s; n =", run->model, run->profile);
    for (int32_t t = 0; t < run->n_task; t++) {
        iwp_eval_n_text(b, t, count);
        fprintf(f, " %s %s%s", run->task[t].task->title, count, t + 1 < run->n_task ? "," : "");
    }
    if (b->missing) fprintf(f, "; %d answers are missing", b->missing);
    fprintf(f, "; ± one standard error. TTFT: median, mean over tasks.\n");
    return 0;
}

static void csv_text(FILE *f, const char *s) {
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"') fputc('"', f);
        fputc(*s, f);
    }
    fputc('"', f);
}

static void csv_real(FILE *f, double v) {
    if (isnan(v))
        fputc(',', f);
    else
        fprintf(f, ",%.6g", v);
}

void iwp_eval_stages_text(const struct iwp_eval_timing *t, char *to, size_t cap) {
    size_t at = 0;
    to[0] = 0;
    for (int i = 0; i < IWP_STAGE_MAX && at < cap; i++)
        if (!isnan(t->stage[i]))
            at += (size_t)snprintf(to + at, cap - at, "%sL%d %.1f%%", at ? " " : "", i,
                                   100 * t->stage[i]);
}

int iwp_eval_report_csv(const struct iwp_eval_book *b, FILE *f) {
    char stages[IWP_EVAL_STAGES_TEXT];
    fputs("task,prune,keep,keep_tokens,options,n,errors,unparsed,score,stderr,diff,diff_stderr,"
          "visual_kept,encode_ms,select_ms,prefill_ms,ttft_ms,decode_ms,kv_bytes,flops,flops_full,"
          "layer_average,stages\n",
          f);
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct iwp_eval_row *r = &b->row[i];
        const struct iwp_eval_summary *s = &r->s;
        csv_text(f, b->run.task[r->task].task->name);
        fputc(',', f);
        csv_text(f, r->config->prune);
        csv_real(f, r->config->keep > 0 ? r->config->keep : NAN);
        csv_real(f, r->config->n_keep > 0 ? r->config->n_keep : NAN);
        fputc(',', f);
        csv_text(f, r->config->options);
        fprintf(f, ",%d,%d,%d", s->n, s->errors, s->unparsed);
        csv_real(f, s->e.value);
        csv_real(f, s->e.stderr_);
        csv_real(f, s->has_diff ? s->diff.value : NAN);
        csv_real(f, s->has_diff ? s->diff.stderr_ : NAN);
        csv_real(f, s->kept);
        for (int k = 0; k < 5; k++) csv_real(f, r->t.median[k]);
        csv_real(f, r->t.kv_bytes);
        csv_real(f, r->t.flops);
        csv_real(f, r->t.flops_full);
        csv_real(f, r->t.layer_average);
        iwp_eval_stages_text(&r->t, stages, sizeof stages);
        fprintf(f, ",%s\n", stages);
    }
    return 0;
}

int32_t iwp_eval_book_config(const struct iwp_eval_book *b, const char *dir) {
    for (int32_t k = 0; k < b->run.n_config; k++)
        if (!strcmp(b->run.config[k].dir, dir)) return k;
    return -1;
}

static int32_t find_task(const struct iwp_eval_book *b, const char *name) {
    for (int32_t t = 0; t < b->run.n_task; t++)
        if (!strcmp(b->run.task[t].task->name, name)) return t;
    return -1;
}

void iwp_eval_report_diff(const struct iwp_eval_book *a, int32_t ka, const struct iwp_eval_book *b,
                          int32_t kb, FILE *f) {
    int32_t better = 0, worse = 0, changed = 0;
    for (int32_t t = 0; t < a->run.n_task; t++) {
        const struct iwp_eval_task *task = a->run.task[t].task;
        const int32_t tb = find_task(b, task->name);
        if (tb < 0) continue;
        const struct iwp_eval_records *x = &a->records[ka * a->run.n_task + t];
        const struct iwp_eval_records *y = &b->records[kb * b->run.n_task + tb];
        for (int32_t i = 0, j = 0; i < x->n && j < y->n;) {
            const struct iwp_eval_record *p = &x->at[i], *q = &y->at[j];
            if (p->doc != q->doc) {
                *(p->doc < q->doc ? &i : &j) += 1;
                continue;
            }
            i++, j++;
            const char *u = p->answer ? p->answer : "", *v = q->answer ? q->answer : "";
            if (p->score == q->score && !strcmp(u, v)) continue;
            changed++;
            if (p->score == q->score) continue;
            const bool nll = task->aggregate == IWP_AGGREGATE_NLL;
            const bool up = nll ? q->score < p->score : q->score > p->score;
            better += up;
            worse += !up;
            fprintf(f, "%s %s/%s: ", up ? "+" : "-", task->name, p->id ? p->id : "");
            if (nll)
                fprintf(f, "%.3f -> %.3f\n", p->score, q->score);
            else
                fprintf(f, "'%s' -> '%s' (right: '%s')\n", u, v, p->target ? p->target : "");
        }
    }
    fprintf(f, "%s -> %s: %d better, %d worse, %d answers changed\n", a->run.config[ka].dir,
            b->run.config[kb].dir, better, worse, changed);
}
