/* Selectors (spec/iwp.md 5): topk, Progressive Chunked MMR and the exact greedy ones.
 *
 * Penalty factors are multiplied with their exponent kept apart; a plain product of many floors
 * would underflow and let the lowest index win.
 *
 * The greedy selectors are lazy: a score can only fall, so a token whose stale score is below the
 * best fresh one need not be looked at.  Every 32 selections all tokens are brought up to date in
 * one blocked pass.  Each token's penalties are applied one by one in the order of selection either
 * way, hence the result is that of the plain loop, bit for bit. */
#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/iwp_parts.h"

static int is_greedy(const struct iwp_iwp_options *o) {
    return o->selector == SEL_MMR_MULT || o->selector == SEL_MMR_ADD;
}

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
    s->product = IWP_TAKE(a, double, v->n_pool);
    s->power = IWP_TAKE(a, int32_t, v->n_pool);
    s->s_max = IWP_TAKE(a, float, v->n_pool);
    s->holes = IWP_TAKE(a, int32_t, 4 * (size_t)v->n_pool);
    if (!is_greedy(o)) return;
    size_t per = (size_t)dup->n_head * (size_t)(dup->d1 + dup->d2);
    dup->row = IWP_TAKE(a, float, (size_t)n_max *per);
    s->seen = IWP_TAKE(a, int32_t, v->n_pool);
    s->store = *dup;
    s->store.panel = IWP_TAKE(a, float, IWP_PANEL *per);
    s->store.norm2 = IWP_TAKE(a, float, IWP_PANEL *(size_t)dup->n_head);
    s->store.share = IWP_TAKE(a, float, dup->joint ? IWP_PANEL *(size_t)dup->n_head : 0);
    s->store.block_norm2 = IWP_TAKE(a, float, dup->n_head);
    s->store.block_share = IWP_TAKE(a, float, dup->n_head);
}

/* What a token's score is multiplied with when its duplication is s. */
static double factor(const struct iwp_iwp_options *o, float s) {
    double f = 1 - o->lambda * (double)s;
    return f > o->floor ? f : o->floor;
}

/* One more selected token (or, in pc-mmr, chunk) with duplication s seen by token i.  The score
 * itself is settled once by settle(). */
static inline void apply(struct iwp_selector_plan *p, int32_t i, float s) {
    if (s > p->s_max[i]) p->s_max[i] = s;
    if (p->o->selector == SEL_MMR_ADD || p->o->penalty == PENALTY_ALL_FRESH) return;
    p->product[i] *= factor(p->o, p->o->penalty == PENALTY_NEW ? s : p->s_max[i]);
    if (p->product[i] < 0x1p-500) {
        p->product[i] *= 0x1p500;
        p->power[i] -= 500;
    }
}

static void settle(struct iwp_selector_plan *p, int32_t i) {
    if (p->o->selector == SEL_MMR_ADD)
        p->value[i] = p->log_p[i] - p->o->gamma * (double)p->s_max[i];
    else if (p->o->penalty == PENALTY_ALL_FRESH)
        p->value[i] = p->log_p[i] + iwp_math_log(factor(p->o, p->s_max[i]));
    else
        p->value[i] =
            p->log_p[i] + (iwp_math_log(p->product[i]) + p->power[i] * 0.69314718055994530942);
}

static void topk(struct iwp_selector_plan *p, int32_t first, int32_t n, int32_t m) {
    for (int32_t i = 0; i < n; i++) p->order[i] = first + i;
    iwp_top_k(p->log_p, p->order, n, m);
    for (int32_t i = 0; i < m; i++) p->v->chosen[p->order[i]] = 1;
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
static void close_holes(struct iwp_selector_plan *p) {
    struct iwp_dup *d = p->dup;
    int32_t *from = p->holes, *to = p->holes + p->v->n_pool;
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

/* ---- pc-mmr ---------------------------------------------------------------------------------- */

static void penalise_panel(void *arg, int32_t panel) {
    struct iwp_selector_plan *p = arg;
    float best[IWP_PANEL];
    iwp_dup_panel_max(p->dup, panel, best);
    for (int i = 0; i < IWP_PANEL; i++) {
        int32_t t = p->dup->token[panel * IWP_PANEL + i];
        if (t < 0) continue;
        apply(p, t, best[i]);
        settle(p, t);
    }
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
        if (k >= IWP_BLOCK) close_holes(p);
        iwp_parallel(d->v->exec, penalise_panel, p, d->n_panel);
    }
}

/* ---- exact greedy ---------------------------------------------------------------------------- */

static void sync_panel(void *arg, int32_t panel) {
    struct iwp_selector_plan *p = arg;
    float out[IWP_PANEL * IWP_PANEL];
    iwp_dup_panel(p->dup, panel, 0, p->window, out);
    for (int i = 0; i < IWP_PANEL; i++) {
        int32_t t = p->dup->token[panel * IWP_PANEL + i];
        if (t < 0) continue;
        for (int32_t j = p->seen[t]; j < p->window; j++) apply(p, t, out[j * IWP_PANEL + i]);
        p->seen[t] = 0;
        settle(p, t);
    }
}

/* Every live token learns of the whole window; a new one begins. */
static void sync_all(struct iwp_selector_plan *p) {
    struct iwp_dup *d = p->dup;
    iwp_dup_rows(d, p->window_token, p->window);
    for (int32_t i = 0; i < p->window; i++) d->token[d->lane[p->window_token[i]]] = -1;
    close_holes(p);
    iwp_parallel(d->v->exec, sync_panel, p, d->n_panel);
    p->window = 0;
}

/* One candidate learns of the window. */
static void refresh(struct iwp_selector_plan *p, int32_t t) {
    float out[IWP_PANEL];
    iwp_dup_one(p->dup, t, &p->store);
    iwp_dup_panel(&p->store, 0, 0, 1, out);
    for (int32_t j = p->seen[t]; j < p->window; j++) apply(p, t, out[j]);
    p->seen[t] = p->window;
    settle(p, t);
}

/* A tournament over the live tokens: node k holds the better of its two children, the leaves are
 * tokens.  A changed score costs log n comparisons. */
static int32_t better(const struct iwp_selector_plan *p, int32_t a, int32_t b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    return p->value[a] > p->value[b] || (p->value[a] == p->value[b] && a < b) ? a : b;
}

static void tree_build(struct iwp_selector_plan *p, int32_t *tree, int32_t first, int32_t n) {
    for (int32_t i = 0; i < n; i++) tree[n + i] = p->v->chosen[first + i] ? -1 : first + i;
    for (int32_t k = n - 1; k > 0; k--) tree[k] = better(p, tree[2 * k], tree[2 * k + 1]);
}

static void tree_update(struct iwp_selector_plan *p, int32_t *tree, int32_t n, int32_t leaf,
                        int32_t token) {
    int32_t k = n + leaf;
    tree[k] = token;
    for (k /= 2; k > 0; k /= 2) tree[k] = better(p, tree[2 * k], tree[2 * k + 1]);
}

static void mmr(struct iwp_selector_plan *p, int32_t first, int32_t n, int32_t m) {
    int32_t *tree = p->holes + 2 * (size_t)p->v->n_pool; /* [2 n] */
    memcpy(p->store.lo, p->dup->lo, sizeof p->dup->lo);
    memcpy(p->store.hi, p->dup->hi, sizeof p->dup->hi);
    for (int32_t i = 0; i < n; i++) p->seen[first + i] = 0;
    p->window = 0;
    tree_build(p, tree, first, n);
    for (int32_t done = 0; done < m;) {
        int32_t i = tree[1];
        if (p->seen[i] < p->window) {
            refresh(p, i);
            tree_update(p, tree, n, i - first, i);
            continue;
        }
        p->v->chosen[i] = 1;
        iwp_dup_copy_lane(p->dup, p->dup->lane[i], &p->store, p->window);
        p->window_token[p->window++] = i;
        tree_update(p, tree, n, i - first, -1);
        if (++done < m && p->window == IWP_PANEL) {
            sync_all(p);
            tree_build(p, tree, first, n);
        }
    }
}

int iwp_selector_run(struct iwp_selector_plan *p, int32_t unit, iwp_err *err) {
    int32_t first = p->v->unit_first[unit], n = p->v->unit_first[unit + 1] - first;
    int32_t m = p->v->unit_keep[unit];
    if (p->o->selector == SEL_TOPK || m == n) {
        topk(p, first, n, m);
        return 0;
    }
    IWP_TRY(iwp_dup_pack(p->dup, first, n, err));
    for (int32_t i = first; i < first + n; i++) {
        p->value[i] = p->log_p[i];
        p->product[i] = 1;
        p->power[i] = 0;
        p->s_max[i] = 0;
    }
    if (p->o->selector == SEL_PC_MMR)
        pc_mmr(p, first, n, m);
    else
        mmr(p, first, n, m);
    return 0;
}
