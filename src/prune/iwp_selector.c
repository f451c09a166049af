/* Selectors (spec/iwp.md 5): topk and Progressive Chunked MMR; the exact greedy ones are in iwp_greedy.c.
 *
 * Penalty factors are multiplied with their exponent kept apart; a plain product of many floors
 * would underflow and let the lowest index win.
 *
 * All but topk are lazy: a score can only fall, so tokens whose stale score is below the best fresh
 * ones need not be looked at.  Whole panels of tokens are brought up to date when one of theirs may
 * be taken.  Each token's penalties are applied one by one in the order of selection, hence the
 * result is that of the plain loop, bit for bit. */
#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/iwp_parts.h"

void iwp_selector_layout(struct iwp_selector_plan *s, struct iwp_view *v,
                         const struct iwp_iwp_options *o, struct iwp_dup *dup, int32_t n_max,
                         struct iwp_arena *a) {
    memset(s, 0, sizeof *s);
    s->v = v;
    s->o = o;
    s->dup = dup;
    s->order = IWP_TAKE(a, int32_t, v->n_pool);
    if (o->selector == SEL_TOPK) return;
    s->value = IWP_TAKE(a, double, v->n_pool);
    s->toll = IWP_TAKE(a, struct iwp_toll, v->n_pool);
    size_t panels = ((size_t)n_max + IWP_PANEL - 1) / IWP_PANEL;
    s->chunk = IWP_TAKE(a, struct iwp_dup_rows, v->n_pool);
    s->applied = IWP_TAKE(a, int32_t, panels);
    s->stale = IWP_TAKE(a, int32_t, panels);
    if (o->selector != SEL_PC_MMR) iwp_greedy_layout(s, n_max, a);
}

/* What a token's score is multiplied with when its duplication is s. */
static double factor(const struct iwp_iwp_options *o, float s) {
    double f = 1 - o->lambda * (double)s;
    return f > o->floor ? f : o->floor;
}

int iwp_toll_is_max(const struct iwp_iwp_options *o) {
    return o->selector == SEL_MMR_ADD || o->penalty == PENALTY_ALL_FRESH;
}

void iwp_toll_add(const struct iwp_iwp_options *o, struct iwp_toll *t, float s) {
    if (s > t->s_max) t->s_max = s;
    if (iwp_toll_is_max(o)) return;
    t->product *= factor(o, o->penalty == PENALTY_NEW ? s : t->s_max);
    if (t->product < IWP_TOLL_LOW) {
        t->product *= IWP_TOLL_UP;
        t->power -= IWP_TOLL_STEP;
    }
}

double iwp_toll_value(const struct iwp_iwp_options *o, double log_p, const struct iwp_toll *t) {
    if (o->selector == SEL_MMR_ADD) return log_p - o->gamma * (double)t->s_max;
    if (o->penalty == PENALTY_ALL_FRESH) return log_p + iwp_math_log(factor(o, t->s_max));
    return log_p + (iwp_math_log(t->product) + t->power * 0.69314718055994530942);
}

static void topk(struct iwp_selector_plan *p, int32_t first, int32_t n, int32_t m) {
    for (int32_t i = 0; i < n; i++) p->order[i] = first + i;
    iwp_top_k(p->log_p, p->order, n, m);
    for (int32_t i = 0; i < m; i++) p->v->chosen[p->order[i]] = 1;
}

/* ---- pc-mmr ---------------------------------------------------------------------------------- */

/* Applies the chunks a panel has not seen yet, in their order. */
static void refresh_panel(void *arg, int32_t i) {
    struct iwp_selector_plan *p = arg;
    int32_t panel = p->stale[i], *token = p->dup->token + panel * IWP_PANEL;
    float best[IWP_PANEL];
    for (int32_t c = p->applied[panel]; c < p->n_chunk; c++) {
        iwp_dup_panel_max(p->dup, &p->chunk[c], panel, best);
        for (int k = 0; k < IWP_PANEL; k++)
            if (token[k] >= 0) iwp_toll_add(p->o, &p->toll[token[k]], best[k]);
    }
    p->applied[panel] = p->n_chunk;
    for (int k = 0; k < IWP_PANEL; k++)
        if (token[k] >= 0)
            p->value[token[k]] = iwp_toll_value(p->o, p->log_p[token[k]], &p->toll[token[k]]);
}

/* Moves the k best of the live tokens to the front.  A score can only fall, so stale ones are upper
 * bounds: when the k best by bound all lie in fresh panels they are the k best. */
static void take_best(struct iwp_selector_plan *p, int32_t *live, int32_t n, int32_t k) {
    for (;;) {
        int32_t n_stale = 0;
        iwp_top_k(p->value, live, n, k);
        for (int32_t i = 0; i < k; i++) {
            int32_t panel = p->dup->lane[live[i]] / IWP_PANEL;
            if (p->applied[panel] == p->n_chunk) continue;
            int32_t at = 0;
            while (at < n_stale && p->stale[at] != panel) at++;
            if (at == n_stale) p->stale[n_stale++] = panel;
        }
        if (!n_stale) return;
        iwp_parallel(p->v->exec, refresh_panel, p, n_stale);
    }
}

static void pc_mmr(struct iwp_selector_plan *p, int32_t n, int32_t m) {
    struct iwp_dup *d = p->dup;
    int32_t *order = p->order, done = 0;
    double b = p->o->chunk;
    p->n_chunk = 0;
    memset(p->applied, 0, sizeof(int32_t) * (size_t)d->n_panel);
    while (done < m) {
        int32_t k = b >= m - done ? m - done : (int32_t)b;
        int32_t *fresh = order + done;
        take_best(p, fresh, n - done, k);
        for (int32_t i = 0; i < k; i++) {
            p->v->chosen[fresh[i]] = 1;
            d->token[d->lane[fresh[i]]] = -1;
        }
        if (done + k < m) /* the last chunk needs no update */
            p->chunk[p->n_chunk++] = iwp_dup_rows(d, p->v->exec, done, fresh, k);
        done += k;
        b *= p->o->growth;
    }
}

int iwp_selector_run(struct iwp_selector_plan *p, int32_t unit, iwp_err *err) {
    int32_t first = p->v->unit_first[unit], n = p->v->unit_first[unit + 1] - first;
    int32_t m = p->v->unit_keep[unit];
    if (p->o->selector == SEL_TOPK || m == n) {
        topk(p, first, n, m);
        return 0;
    }
    /* Best first: the tokens that compete lie in the same panels, and so do those that are taken. */
    for (int32_t i = 0; i < n; i++) p->order[i] = first + i;
    iwp_top_k(p->log_p, p->order, n, n);
    IWP_TRY(iwp_dup_pack(p->dup, p->order, n, err));
    for (int32_t i = first; i < first + n; i++) {
        p->value[i] = p->log_p[i];
        p->toll[i] = (struct iwp_toll){1, 0, 0};
    }
    if (p->o->selector == SEL_PC_MMR)
        pc_mmr(p, n, m);
    else
        iwp_greedy_run(p, first, n, m);
    return 0;
}
