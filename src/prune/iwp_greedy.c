/* The exact greedy selectors, mmr-mult and mmr-add (spec/iwp.md 5), one token at a time and yet in
 * blocks.
 *
 * A score can only fall, so an old one is an upper bound.  Three kinds of tokens:
 *   outside   their scores know the chunks their panel has seen; a panel catches up, with a few
 *             others, when one of its tokens comes to the top;
 *   active    up to GREEDY_PANELS * 32 tokens with the largest bounds, and D between all of them:
 *             the next picks are found among these without another product;
 *   selected  in this round (active places), or before it (chunks, one per round).
 * A round ends when it has picked GREEDY_ROUND tokens, or when a token outside may be better and the
 * active set is full.  Each token's penalties are applied one by one in the order of selection, hence
 * the result is that of the plain loop, bit for bit. */
#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/iwp_parts.h"

void iwp_greedy_layout(struct iwp_selector_plan *s, int32_t n_max, struct iwp_arena *a) {
    struct iwp_greedy *g = &s->greedy;
    const struct iwp_dup *d = s->dup;
    size_t heads = (size_t)d->n_head, per = heads * (size_t)(d->d1 + d->d2),
           panels = ((size_t)n_max + IWP_PANEL - 1) / IWP_PANEL;
    g->lanes = g->rows = *d;
    g->lanes.panel = IWP_TAKE(a, float, GREEDY_ACTIVE *per);
    g->lanes.norm2 = IWP_TAKE(a, float, GREEDY_ACTIVE *heads);
    g->lanes.share = IWP_TAKE(a, float, d->joint ? GREEDY_ACTIVE *heads : 0);
    g->lanes.factor = IWP_TAKE(a, float, GREEDY_ACTIVE *heads);
    g->lanes.token = IWP_TAKE(a, int32_t, GREEDY_ACTIVE);
    g->rows.block = IWP_TAKE(a, float, GREEDY_ACTIVE *per);
    g->rows.block_norm2 = IWP_TAKE(a, float, GREEDY_ACTIVE *heads);
    g->rows.block_share = IWP_TAKE(a, float, GREEDY_ACTIVE *heads);
    g->gram = IWP_TAKE(a, float, GREEDY_BLOCKS *IWP_PANEL *IWP_PANEL);
    g->is_active = IWP_TAKE(a, uint8_t, s->v->n_pool);
    g->tree = IWP_TAKE(a, int32_t, 2 * panels);
    g->bound = IWP_TAKE(a, double, panels);
    g->order = IWP_TAKE(a, int32_t, panels);
}

/* ---- outside ------------------------------------------------------------------------------------ */

static int32_t better(const struct iwp_selector_plan *p, int32_t a, int32_t b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    return p->value[a] > p->value[b] || (p->value[a] == p->value[b] && a < b) ? a : b;
}

/* A tournament over the panels: node k holds the better token of its two children, a leaf the best
 * of the panel's tokens outside. */
static int32_t best_of_panel(const struct iwp_selector_plan *p, int32_t panel) {
    const int32_t *token = p->dup->token + panel * IWP_PANEL;
    int32_t best = -1;
    for (int k = 0; k < IWP_PANEL; k++)
        if (token[k] >= 0 && !p->greedy.is_active[token[k]]) best = better(p, best, token[k]);
    return best;
}

static void tree_build(struct iwp_selector_plan *p) {
    int32_t n = p->dup->n_panel, *tree = p->greedy.tree;
    for (int32_t i = 0; i < n; i++) tree[n + i] = best_of_panel(p, i);
    for (int32_t k = n - 1; k > 0; k--) tree[k] = better(p, tree[2 * k], tree[2 * k + 1]);
}

static void tree_update(struct iwp_selector_plan *p, int32_t panel) {
    int32_t k = p->dup->n_panel + panel, *tree = p->greedy.tree;
    tree[k] = best_of_panel(p, panel);
    for (k /= 2; k > 0; k /= 2) tree[k] = better(p, tree[2 * k], tree[2 * k + 1]);
}

/* The same as iwp_toll_add for every row and lane, lanes side by side. */
static void add_tolls(struct iwp_selector_plan *p, const int32_t *token, const float *dup,
                      int32_t rows) {
    const double lambda = p->o->lambda, floor = p->o->floor;
    const int only_max = iwp_toll_is_max(p->o), is_new = p->o->penalty == PENALTY_NEW;
    double product[IWP_PANEL], power[IWP_PANEL];
    float s_max[IWP_PANEL];
    for (int k = 0; k < IWP_PANEL; k++) {
        struct iwp_toll t = {1, 0, 0};
        if (token[k] >= 0) t = p->toll[token[k]];
        product[k] = t.product;
        power[k] = t.power;
        s_max[k] = t.s_max;
    }
    for (int32_t j = 0; j < rows; j++) {
        const float *s = dup + (size_t)j * IWP_PANEL, *by = is_new ? s : s_max;
        for (int k = 0; k < IWP_PANEL; k++) s_max[k] = s[k] > s_max[k] ? s[k] : s_max[k];
        for (int k = 0; k < IWP_PANEL && !only_max; k++) {
            double f = 1 - lambda * (double)by[k];
            double x = product[k] * (f > floor ? f : floor);
            power[k] -= x < IWP_TOLL_LOW ? IWP_TOLL_STEP : 0.0;
            product[k] = x < IWP_TOLL_LOW ? x * IWP_TOLL_UP : x;
        }
    }
    for (int k = 0; k < IWP_PANEL; k++)
        if (token[k] >= 0)
            p->toll[token[k]] = (struct iwp_toll){product[k], (int32_t)power[k], s_max[k]};
}

/* Some of the stale panels learn of the chunks they have not seen, chunk by chunk: a chunk that came
 * from memory serves them all. */
static void catch_up_panels(void *arg, int32_t task) {
    struct iwp_selector_plan *p = arg;
    const struct iwp_greedy *g = &p->greedy;
    float out[GREEDY_ROUND * IWP_PANEL];
    for (int32_t c = p->applied[p->stale[task]]; c < p->n_chunk; c++)
        for (int32_t i = task; i < g->n_stale; i += g->n_task) {
            int32_t panel = p->stale[i];
            if (p->applied[panel] > c) continue;
            iwp_dup_panel(p->dup, &p->chunk[c], panel, 0, p->chunk[c].n, out);
            add_tolls(p, p->dup->token + panel * IWP_PANEL, out, p->chunk[c].n);
        }
    for (int32_t i = task; i < g->n_stale; i += g->n_task) {
        const int32_t *token = p->dup->token + p->stale[i] * IWP_PANEL;
        for (int k = 0; k < IWP_PANEL; k++)
            if (token[k] >= 0)
                p->value[token[k]] = iwp_toll_value(p->o, p->log_p[token[k]], &p->toll[token[k]]);
    }
}

/* The stale panels with the largest bounds catch up, those with the most to learn first. */
static void catch_up(struct iwp_selector_plan *p) {
    struct iwp_greedy *g = &p->greedy;
    int32_t n = 0, most = GREEDY_AHEAD * p->v->n_thread;
    for (int32_t i = 0; i < p->dup->n_panel; i++) {
        int32_t top = g->tree[p->dup->n_panel + i];
        if (top < 0 || p->applied[i] == p->n_chunk) continue;
        g->bound[i] = p->value[top];
        g->order[n++] = i;
    }
    iwp_top_k(g->bound, g->order, n, most);
    g->n_stale = n < most ? n : most;
    g->n_task = g->n_stale < p->v->n_thread ? g->n_stale : p->v->n_thread;
    for (int32_t i = 0; i < g->n_stale; i++) {
        int32_t panel = g->order[i], at = i;
        for (; at > 0 && p->applied[p->stale[at - 1]] > p->applied[panel]; at--)
            p->stale[at] = p->stale[at - 1];
        p->stale[at] = panel;
    }
    iwp_parallel(p->v->exec, catch_up_panels, p, g->n_task);
    for (int32_t i = 0; i < g->n_stale; i++) {
        p->applied[p->stale[i]] = p->n_chunk;
        tree_update(p, p->stale[i]);
    }
}

/* ---- active ------------------------------------------------------------------------------------- */

/* D of two places: block (a, b), a ≤ b, holds rows of panel a against lanes of panel b. */
static float *gram_block(const struct iwp_greedy *g, int32_t a, int32_t b) {
    return g->gram + (size_t)(b * (b + 1) / 2 + a) * IWP_PANEL * IWP_PANEL;
}

static float gram_at(const struct iwp_greedy *g, int32_t i, int32_t j) {
    if (i / IWP_PANEL > j / IWP_PANEL) {
        int32_t t = i;
        i = j;
        j = t;
    }
    return gram_block(g, i / IWP_PANEL, j / IWP_PANEL)[i % IWP_PANEL * IWP_PANEL + j % IWP_PANEL];
}

static void pack_active(void *arg, int32_t i) {
    struct iwp_greedy *g = &((struct iwp_selector_plan *)arg)->greedy;
    int32_t panel = g->first_new + i / 2, at = panel * IWP_PANEL;
    if (i % 2 == 0)
        iwp_dup_pack_panel(&g->lanes, panel);
    else
        g->row[panel] = iwp_dup_rows(&g->rows, NULL, at, g->lanes.token + at,
                                     g->n - at < IWP_PANEL ? g->n - at : IWP_PANEL);
}

static void fill_gram(void *arg, int32_t i) {
    struct iwp_greedy *g = &((struct iwp_selector_plan *)arg)->greedy;
    int32_t b = g->first_new;
    for (; i > b; b++) i -= b + 1;
    iwp_dup_panel(&g->lanes, &g->row[i], b, 0, g->row[i].n, gram_block(g, i, b));
}

/* An active token learns of the picks of this round it has not seen. */
static void learn(struct iwp_selector_plan *p, int32_t i) {
    struct iwp_greedy *g = &p->greedy;
    for (; g->known[i] < g->n_pick; g->known[i]++)
        iwp_toll_add(p->o, &g->toll[i], gram_at(g, g->pick[g->known[i]], i));
    g->value[i] = iwp_toll_value(p->o, p->log_p[g->lanes.token[i]], &g->toll[i]);
}

/* Moves the best tokens outside into the active set. */
static void extend(struct iwp_selector_plan *p) {
    struct iwp_greedy *g = &p->greedy;
    int32_t first = g->n, end = first + (first ? 1 : GREEDY_START) * IWP_PANEL;
    while (g->n < end && g->tree[1] >= 0) {
        int32_t token = g->tree[1], panel = p->dup->lane[token] / IWP_PANEL;
        if (p->applied[panel] < p->n_chunk) {
            catch_up(p);
            continue;
        }
        g->is_active[token] = 1;
        tree_update(p, panel);
        int32_t i = g->n++;
        g->lanes.token[i] = token;
        g->taken[i] = 0;
        g->toll[i] = p->toll[token];
        g->value[i] = p->value[token];
        g->known[i] = 0;
    }
    int32_t n_panel = (g->n + IWP_PANEL - 1) / IWP_PANEL;
    g->lanes.n = g->n;
    g->first_new = first / IWP_PANEL;
    iwp_parallel(p->v->exec, pack_active, p, 2 * (n_panel - g->first_new));
    iwp_parallel(p->v->exec, fill_gram, p,
                 n_panel * (n_panel + 1) / 2 - g->first_new * (g->first_new + 1) / 2);
    for (int32_t i = first; i < g->n; i++) learn(p, i);
}

/* Rounding may lift a score that should stay or fall; what is nearer than this is looked at. */
static double nearly(double x) { return x - 1e-12 * (1 + fabs(x)); }

/* The best active place, up to date; -1 when none is left. */
static int32_t best_active(struct iwp_selector_plan *p) {
    struct iwp_greedy *g = &p->greedy;
    for (;;) {
        int32_t best = -1, late = 0;
        for (int32_t i = 0; i < g->n; i++) {
            if (g->taken[i]) continue;
            if (best < 0 || g->value[i] > g->value[best] ||
                (g->value[i] == g->value[best] && g->lanes.token[i] < g->lanes.token[best]))
                best = i;
        }
        if (best < 0) return -1;
        double low = nearly(g->value[best]);
        for (int32_t i = 0; i < g->n; i++)
            if (!g->taken[i] && g->known[i] < g->n_pick && !(g->value[i] < low)) {
                learn(p, i);
                late = 1;
            }
        if (!late) return best;
    }
}

/* The round's picks become a chunk; the others go back outside with what is known of them. */
static void close_round(struct iwp_selector_plan *p, int32_t done) {
    struct iwp_greedy *g = &p->greedy;
    int32_t token[GREEDY_ROUND];
    for (int32_t i = 0; i < g->n_pick; i++) token[i] = g->lanes.token[g->pick[i]];
    for (int32_t i = 0; i < g->n; i++) {
        g->is_active[g->lanes.token[i]] = 0;
        p->value[g->lanes.token[i]] = g->value[i];
    }
    for (int32_t i = 0; i < g->n; i++) tree_update(p, p->dup->lane[g->lanes.token[i]] / IWP_PANEL);
    p->chunk[p->n_chunk++] = iwp_dup_rows(p->dup, p->v->exec, done - g->n_pick, token, g->n_pick);
    g->n = g->n_pick = 0;
}

void iwp_greedy_run(struct iwp_selector_plan *p, int32_t first, int32_t n, int32_t m) {
    struct iwp_greedy *g = &p->greedy;
    struct iwp_dup *d = p->dup;
    memcpy(g->lanes.lo, d->lo, sizeof d->lo); /* known since the tokens were packed */
    memcpy(g->lanes.hi, d->hi, sizeof d->hi);
    memset(g->is_active + first, 0, (size_t)n);
    memset(p->applied, 0, sizeof(int32_t) * (size_t)d->n_panel);
    p->n_chunk = g->n = g->n_pick = 0;
    tree_build(p);
    for (int32_t done = 0; done < m;) {
        int32_t best = best_active(p), outside = g->tree[1];
        int full = g->n == GREEDY_ACTIVE;
        if (outside >= 0 && (best < 0 || !(p->value[outside] < nearly(g->value[best])))) {
            if (!full) {
                extend(p);
                continue;
            }
            if (g->n_pick) {
                close_round(p, done);
                continue;
            }
        }
        int32_t token = g->lanes.token[best];
        p->v->chosen[token] = 1;
        d->token[d->lane[token]] = -1;
        g->taken[best] = 1;
        g->pick[g->n_pick++] = best;
        if (++done < m && g->n_pick == GREEDY_ROUND) close_round(p, done);
    }
}
