/* Selectors (spec/iwp.md 5): topk, Progressive Chunked MMR and the exact greedy ones.
 *
 * Penalties are kept as logarithms; a product of many floors would underflow and let the lowest
 * index win.  The greedy selectors are lazy: a score can only fall, so a token whose stale score is
 * already below the best fresh one need not be looked at; every token's penalties are still applied
 * one by one in the order of selection, hence the result is that of the plain loop, bit for bit. */
#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/iwp_parts.h"

enum { BATCH = 2 * IWP_BLOCK }; /* candidates refreshed together */

static int greedy(const struct iwp_iwp_options *o) {
    return o->selector == SEL_MMR_MULT || o->selector == SEL_MMR_ADD;
}

void iwp_selector_layout(struct iwp_selector_plan *s, struct iwp_view *v,
                         const struct iwp_iwp_options *o, struct iwp_dup *dup, int32_t m_max,
                         struct iwp_arena *a) {
    memset(s, 0, sizeof *s);
    s->v = v;
    s->o = o;
    s->dup = dup;
    s->value = IWP_TAKE(a, double, v->n_pool);
    s->s_max = IWP_TAKE(a, float, v->n_pool);
    s->order = IWP_TAKE(a, int32_t, v->n_pool);
    s->holes = IWP_TAKE(a, int32_t, 2 * (size_t)v->n_pool);
    if (o->selector == SEL_TOPK || !greedy(o)) return;
    size_t panels = ((size_t)m_max + IWP_PANEL - 1) / IWP_PANEL, lanes = panels * IWP_PANEL;
    s->seen = IWP_TAKE(a, int32_t, v->n_pool);
    s->pair = IWP_TAKE(a, float, lanes *BATCH);
    s->store = *dup;
    s->store.panel = IWP_TAKE(a, float, lanes *(size_t)dup->n_head *(size_t)(dup->d1 + dup->d2));
    s->store.norm2 = IWP_TAKE(a, float, lanes *(size_t)dup->n_head);
    s->store.share = IWP_TAKE(a, float, dup->joint ? lanes *(size_t)dup->n_head : 0);
}

/* log of the factor a token's score is multiplied with when its duplication is s */
static double log_factor(const struct iwp_iwp_options *o, float s) {
    double f = 1 - o->lambda * (double)s;
    if (f >= 1) return 0;
    return iwp_math_log(f > o->floor ? f : o->floor);
}

/* One more (maximum) duplication s seen by token i. */
static void apply(struct iwp_selector_plan *p, int32_t i, float s) {
    const struct iwp_iwp_options *o = p->o;
    if (s > p->s_max[i]) p->s_max[i] = s;
    if (o->selector == SEL_MMR_ADD)
        p->value[i] = p->log_p[i] - o->gamma * (double)p->s_max[i]; /* here log_p holds P / max P */
    else if (o->penalty == PENALTY_NEW)
        p->value[i] += log_factor(o, s);
    else if (o->penalty == PENALTY_ALL)
        p->value[i] += log_factor(o, p->s_max[i]);
    else
        p->value[i] = p->log_p[i] + log_factor(o, p->s_max[i]);
}

static void topk(struct iwp_selector_plan *p, int32_t first, int32_t n, int32_t m) {
    for (int32_t i = 0; i < n; i++) p->order[i] = first + i;
    iwp_top_k(p->log_p, p->order, n, m);
    for (int32_t i = 0; i < m; i++) p->v->chosen[p->order[i]] = 1;
}

/* ---- pc-mmr ------------------------------------------------------------------------------------------ */

static void penalise_panel(void *arg, int32_t panel) {
    struct iwp_selector_plan *p = arg;
    float best[IWP_PANEL];
    iwp_dup_panel_max(p->dup, panel, best);
    for (int i = 0; i < IWP_PANEL; i++) {
        int32_t t = p->dup->token[panel * IWP_PANEL + i];
        if (t >= 0) apply(p, t, best[i]);
    }
}

struct move {
    struct iwp_dup *d;
    const int32_t *from, *to;
};

static void move_lane(void *arg, int32_t i) {
    struct move *m = arg;
    iwp_dup_copy_lane(m->d, m->from[i], m->d, m->to[i]);
}

/* Fills the holes that selected tokens left with lanes from the end, so that no panel works for
 * tokens that are gone.  Order inside the panels changes, results do not. */
static void close_holes(struct iwp_selector_plan *p, int32_t *from, int32_t *to) {
    struct iwp_dup *d = p->dup;
    int32_t n = 0, lo = 0, hi = d->n_panel * IWP_PANEL - 1;
    for (;;) {
        while (lo < hi && d->token[lo] >= 0) lo++;
        while (hi > lo && d->token[hi] < 0) hi--;
        if (lo >= hi) break;
        from[n] = hi;
        to[n++] = lo;
        d->token[lo] = d->token[hi];
        d->lane[d->token[lo]] = lo;
        d->token[hi] = -1;
    }
    struct move m = {d, from, to};
    iwp_parallel(n > 16 ? d->v->exec : NULL, move_lane, &m, n);
    while (d->n_panel > 0 && d->token[(d->n_panel - 1) * IWP_PANEL] < 0) d->n_panel--;
}

static void pc_mmr(struct iwp_selector_plan *p, int32_t first, int32_t n, int32_t m) {
    struct iwp_dup *d = p->dup;
    int32_t *order = p->order, done = 0;
    double b = p->o->chunk;
    for (int32_t i = 0; i < n; i++) order[i] = first + i;
    while (done < m) {
        int32_t k = b >= m - done ? m - done : (int32_t)b;
        int32_t *fresh = order + done;
        iwp_top_k(p->value, fresh, n - done, k);
        for (int32_t i = 0; i < k; i++) p->v->chosen[fresh[i]] = 1;
        done += k;
        b *= p->o->growth;
        if (done == m) break; /* the last chunk needs no update */
        iwp_dup_rows(d, fresh, k);
        for (int32_t i = 0; i < k; i++) d->token[d->lane[fresh[i]]] = -1;
        if (k >= IWP_BLOCK) close_holes(p, p->holes, p->holes + p->v->n_pool);
        iwp_parallel(d->v->exec, penalise_panel, p, d->n_panel);
    }
}

/* ---- exact greedy ------------------------------------------------------------------------------------ */

struct refresh {
    struct iwp_selector_plan *p;
    int32_t panel0;
};

static void pair_panel(void *arg, int32_t i) {
    struct refresh *r = arg;
    int32_t panel = r->panel0 + i;
    iwp_dup_panel(&r->p->store, panel, 0, r->p->store.n_row,
                  r->p->pair + (size_t)panel * BATCH * IWP_PANEL);
}

/* Brings a batch of candidates up to date with the `done` tokens selected so far. */
static void refresh(struct iwp_selector_plan *p, const int32_t *token, int32_t n, int32_t done) {
    int32_t oldest = done;
    for (int32_t i = 0; i < n; i++)
        if (p->seen[token[i]] < oldest) oldest = p->seen[token[i]];
    if (oldest == done) return;
    iwp_dup_rows(p->dup, token, n);
    p->store.n_row = n; /* the rows live in buffers both stores share */
    struct refresh r = {p, oldest / IWP_PANEL};
    int32_t panels = (done - 1) / IWP_PANEL + 1 - r.panel0;
    iwp_parallel(panels * n > 64 ? p->v->exec : NULL, pair_panel, &r, panels);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = p->seen[token[i]]; j < done; j++) {
            apply(p, token[i],
                  p->pair[((size_t)(j / IWP_PANEL) * BATCH + (size_t)i) * IWP_PANEL +
                          (size_t)(j % IWP_PANEL)]);
            p->seen[token[i]] = j + 1;
        }
}

static int32_t arg_best(const double *value, const int32_t *live, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (value[live[i]] > value[live[best]] ||
            (value[live[i]] == value[live[best]] && live[i] < live[best]))
            best = i;
    return best;
}

static void mmr(struct iwp_selector_plan *p, int32_t first, int32_t n, int32_t m) {
    int32_t *live = p->order;
    memcpy(p->store.lo, p->dup->lo, sizeof p->dup->lo);
    memcpy(p->store.hi, p->dup->hi, sizeof p->dup->hi);
    for (int32_t i = 0; i < n; i++) live[i] = first + i, p->seen[first + i] = 0;
    for (int32_t done = 0; done < m;) {
        int32_t at = arg_best(p->value, live, n), i = live[at];
        if (p->seen[i] < done) {
            int32_t batch = n < BATCH ? n : BATCH;
            iwp_top_k(p->value, live, n, batch);
            refresh(p, live, batch, done);
            continue;
        }
        p->v->chosen[i] = 1;
        iwp_dup_copy_lane(p->dup, p->dup->lane[i], &p->store, done);
        live[at] = live[--n];
        done++;
    }
}

int iwp_selector_run(struct iwp_selector_plan *p, int32_t unit, iwp_err *err) {
    int32_t first = p->v->unit_first[unit], n = p->v->unit_first[unit + 1] - first,
            m = p->v->unit_keep[unit];
    if (p->o->selector == SEL_TOPK || m == n) {
        topk(p, first, n, m);
        return 0;
    }
    IWP_TRY(iwp_dup_pack(p->dup, first, n, err));
    for (int32_t i = first; i < first + n; i++) p->value[i] = p->log_p[i], p->s_max[i] = 0;
    if (p->o->selector == SEL_PC_MMR)
        pc_mmr(p, first, n, m);
    else
        mmr(p, first, n, m);
    return 0;
}
