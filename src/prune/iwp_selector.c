/* Selectors (spec/iwp.md 5): topk, Progressive Chunked MMR and the exact greedy ones.
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
    size_t panels = ((size_t)n_max + IWP_PANEL - 1) / IWP_PANEL;
    s->chunk = IWP_TAKE(a, struct iwp_dup_rows, v->n_pool);
    s->applied = IWP_TAKE(a, int32_t, panels);
    s->stale = IWP_TAKE(a, int32_t, panels);
    if (!is_greedy(o)) return;
    size_t per = (size_t)dup->n_head * (size_t)(dup->d1 + dup->d2);
    dup->row = IWP_TAKE(a, float, (size_t)n_max *per);
    s->seen = IWP_TAKE(a, int32_t, v->n_pool);
    s->store = *dup;
    s->store.panel = IWP_TAKE(a, float, IWP_PANEL *per);
    s->store.norm2 = IWP_TAKE(a, float, IWP_PANEL *(size_t)dup->n_head);
    s->store.share = IWP_TAKE(a, float, dup->joint ? IWP_PANEL *(size_t)dup->n_head : 0);
    s->tree = IWP_TAKE(a, int32_t, 2 * (size_t)v->n_pool);
    s->scalars = IWP_TAKE(a, float, 2 * (size_t)dup->n_head);
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

/* ---- pc-mmr ---------------------------------------------------------------------------------- */

/* Applies the chunks a panel has not seen yet, in their order. */
static void refresh_panel(void *arg, int32_t i) {
    struct iwp_selector_plan *p = arg;
    int32_t panel = p->stale[i], *token = p->dup->token + panel * IWP_PANEL;
    float best[IWP_PANEL];
    for (int32_t c = p->applied[panel]; c < p->n_chunk; c++) {
        iwp_dup_panel_max(p->dup, &p->chunk[c], panel, best);
        for (int k = 0; k < IWP_PANEL; k++)
            if (token[k] >= 0) apply(p, token[k], best[k]);
    }
    p->applied[panel] = p->n_chunk;
    for (int k = 0; k < IWP_PANEL; k++)
        if (token[k] >= 0) settle(p, token[k]);
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
            p->chunk[p->n_chunk++] = iwp_dup_rows(d, done, fresh, k);
        done += k;
        b *= p->o->growth;
    }
}

/* ---- exact greedy ---------------------------------------------------------------------------- */

/* Every 32 selections the window becomes a chunk.  A panel learns of the chunks it has not seen when
 * one of its tokens comes to the top. */
static void catch_up_panel(void *arg, int32_t i) {
    struct iwp_selector_plan *p = arg;
    int32_t panel = p->stale[i], *token = p->dup->token + panel * IWP_PANEL;
    float out[IWP_PANEL * IWP_PANEL];
    for (int32_t c = p->applied[panel]; c < p->n_chunk; c++) {
        iwp_dup_panel(p->dup, &p->chunk[c], panel, 0, IWP_PANEL, out);
        for (int k = 0; k < IWP_PANEL; k++) {
            if (token[k] < 0) continue;
            int32_t seen = p->seen[token[k]] - c * IWP_PANEL;
            for (int32_t j = seen > 0 ? seen : 0; j < IWP_PANEL; j++)
                apply(p, token[k], out[j * IWP_PANEL + k]);
        }
    }
    p->applied[panel] = p->n_chunk;
    for (int k = 0; k < IWP_PANEL; k++) {
        if (token[k] < 0) continue;
        if (p->seen[token[k]] < p->n_chunk * IWP_PANEL) p->seen[token[k]] = p->n_chunk * IWP_PANEL;
        settle(p, token[k]);
    }
}

/* One candidate learns of the window. */
static void refresh(struct iwp_selector_plan *p, int32_t t) {
    float out[IWP_PANEL];
    struct iwp_dup_rows one = iwp_dup_one(p->dup, t, p->scalars);
    iwp_dup_panel(&p->store, &one, 0, 0, 1, out);
    for (int32_t j = p->seen[t] - p->n_chunk * IWP_PANEL; j < p->window; j++) apply(p, t, out[j]);
    p->seen[t] = p->n_chunk * IWP_PANEL + p->window;
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

/* The panel of a token catches up, and with several threads the next stale ones too. */
static void catch_up(struct iwp_selector_plan *p, int32_t t, int32_t first, int32_t n) {
    int32_t n_stale = 0;
    for (int32_t panel = p->dup->lane[t] / IWP_PANEL;
         panel < p->dup->n_panel && n_stale < p->v->n_thread; panel++)
        if (p->applied[panel] < p->n_chunk) p->stale[n_stale++] = panel;
    iwp_parallel(p->v->exec, catch_up_panel, p, n_stale);
    for (int32_t i = 0; i < n_stale; i++)
        for (int k = 0; k < IWP_PANEL; k++) {
            int32_t token = p->dup->token[p->stale[i] * IWP_PANEL + k];
            if (token >= 0) tree_update(p, p->tree, n, token - first, token);
        }
}

static void mmr(struct iwp_selector_plan *p, int32_t first, int32_t n, int32_t m) {
    struct iwp_dup *d = p->dup;
    memcpy(p->store.lo, d->lo, sizeof d->lo);
    memcpy(p->store.hi, d->hi, sizeof d->hi);
    for (int32_t i = 0; i < n; i++) p->seen[first + i] = 0;
    memset(p->applied, 0, sizeof(int32_t) * (size_t)d->n_panel);
    p->window = p->n_chunk = 0;
    tree_build(p, p->tree, first, n);
    for (int32_t done = 0; done < m;) {
        int32_t i = p->tree[1];
        if (p->seen[i] < p->n_chunk * IWP_PANEL) {
            catch_up(p, i, first, n);
            continue;
        }
        if (p->seen[i] < done) {
            refresh(p, i);
            tree_update(p, p->tree, n, i - first, i);
            continue;
        }
        p->v->chosen[i] = 1;
        iwp_dup_store(d, i, &p->store, p->window);
        d->token[d->lane[i]] = -1;
        p->window_token[p->window++] = i;
        tree_update(p, p->tree, n, i - first, -1);
        if (++done < m && p->window == IWP_PANEL) {
            p->chunk[p->n_chunk] =
                iwp_dup_rows(d, p->n_chunk * IWP_PANEL, p->window_token, IWP_PANEL);
            p->n_chunk++;
            p->window = 0;
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
    /* Best first: the tokens that compete lie in the same panels, and so do those that are taken. */
    for (int32_t i = 0; i < n; i++) p->order[i] = first + i;
    iwp_top_k(p->log_p, p->order, n, n);
    IWP_TRY(iwp_dup_pack(p->dup, p->order, n, err));
    for (int32_t i = first; i < first + n; i++) {
        p->value[i] = p->log_p[i];
        p->product[i] = 1;
        p->power[i] = 0;
        p->s_max[i] = 0;
    }
    if (p->o->selector == SEL_PC_MMR)
        pc_mmr(p, n, m);
    else
        mmr(p, first, n, m);
    return 0;
}
