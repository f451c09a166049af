/* Which steps a run takes, and what it costs by the formulas of CONTRACT section 3. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "model/session.h"

static bool is_prev(enum iwp_tensor t) {
    return t == IWP_TENSOR_H_PREV || t == IWP_TENSOR_Q_ROPE_PREV || t == IWP_TENSOR_K_ROPE_PREV;
}

static bool is_qkv(enum iwp_tensor t) {
    return t == IWP_TENSOR_Q || t == IWP_TENSOR_K || t == IWP_TENSOR_V || t == IWP_TENSOR_Q_ROPE ||
           t == IWP_TENSOR_K_ROPE;
}

static bool needs_any(const struct iwp_session *s, int32_t stage, bool (*is)(enum iwp_tensor)) {
    for (int t = 0; t < IWP_TENSOR_COUNT; t++) {
        enum iwp_rows rows;
        if (is((enum iwp_tensor)t) && iwp_session_needs(s, stage, (enum iwp_tensor)t, &rows))
            return true;
    }
    return false;
}

static bool in_decoder(const struct iwp_stage *g) { return g->site == IWP_SITE_LAYER; }

int32_t iwp_session_low(const struct iwp_session *s) {
    if (s->n_stage == 0) return s->e->d.n_layer;
    if (!in_decoder(&s->stage[0])) return 0;
    const int32_t l = s->stage[0].at;
    return l > 0 && needs_any(s, 0, is_prev) ? l - 1 : l;
}

static struct iwp_step *add(struct iwp_session *s, enum iwp_step_kind kind, int32_t l0, int32_t l1,
                            int32_t stage) {
    struct iwp_step *t = &s->step[s->n_step++];
    *t = (struct iwp_step){.kind = kind, .l0 = l0, .l1 = l1, .stage = stage};
    return t;
}

/* Under a probe every layer is a step of its own. */
static int split_runs(struct iwp_session *s, iwp_err *err) {
    struct iwp_step *whole = malloc((size_t)s->n_step * sizeof *whole);
    const int32_t n = s->n_step;
    IWP_REQUIRE(whole, err, IWP_ENOMEM, "out of memory");
    memcpy(whole, s->step, (size_t)n * sizeof *whole);
    s->n_step = 0;
    int rc = 0;
    for (int32_t i = 0; i < n && rc == 0; i++) {
        const bool run = whole[i].kind == IWP_STEP_RUN;
        const int32_t parts = run ? whole[i].l1 - whole[i].l0 : 1;
        if (s->n_step + parts > IWP_STEP_MAX)
            rc = iwp_err_set(err, IWP_ENOTSUP, "a probe of %d layers", s->e->d.n_layer);
        for (int32_t k = 0; k < parts && rc == 0; k++) {
            struct iwp_step *t = &s->step[s->n_step++];
            *t = whole[i];
            if (run) t->l0 += k, t->l1 = t->l0 + 1;
        }
    }
    free(whole);
    return rc;
}

/* Layers before which all rows are kept, ascending: those asked for up to the first cut, else the cut. */
static int32_t marks(const struct iwp_session *s, int32_t out[IWP_MARK_MAX]) {
    const int32_t low = iwp_session_low(s), L = s->e->d.n_layer;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_want; i++)
        if (s->want[i] <= low && s->want[i] < L) out[n++] = s->want[i];
    if (n == 0 && low > 0 && low < L) out[n++] = low;
    return n;
}

/* Steps from layer `from` (its rows are in s->rows) to the logits.  low, high: rows that the layers below
 * and above the first mark have seen already; the latter only without a cut. */
int iwp_session_plan(struct iwp_session *s, int32_t from, int32_t low, int32_t high, iwp_err *err) {
    const int32_t L = s->e->d.n_layer;
    int32_t at = from, mark[IWP_MARK_MAX];
    const int32_t n_mark = marks(s, mark);
    s->n_step = s->at_step = s->at_row = 0;
    for (int32_t i = 0; i < n_mark; i++) {
        if (mark[i] <= from || iwp_session_mark(s, mark[i])) continue;
        struct iwp_step *t = add(s, IWP_STEP_RUN, at, mark[i], -1);
        if (at == 0) t->first = low;
        add(s, IWP_STEP_MARK, mark[i], mark[i], -1);
        at = mark[i];
    }
    for (int32_t i = 0; i < s->n_stage; i++) {
        const struct iwp_stage *g = &s->stage[i];
        const int32_t l = in_decoder(g) ? g->at : 0;
        const bool prev = needs_any(s, i, is_prev);
        IWP_REQUIRE(l < L, err, IWP_EINVAL, "--prune-layer %d: the decoder has layers 0 to %d", l,
                    L - 1);
        IWP_REQUIRE(!prev || l > 0, err, IWP_EINVAL,
                    "method %s reads the layer before the cut: --prune-layer must be 1 or more",
                    iwp_method_info(s->prune.method)->name);
        IWP_REQUIRE(l - prev >= at, err, IWP_EINVAL,
                    "a cut at layer %d needs the state before layer %d, kept is layer %d", l,
                    l - prev, at);
        if (prev) {
            if (l - 1 > at) add(s, IWP_STEP_RUN, at, l - 1, -1);
            add(s, IWP_STEP_PREV, l - 1, l - 1, i);
            at = l - 1;
        }
        if (l > at) add(s, IWP_STEP_RUN, at, l, -1);
        /* --dump-tensors shows them whether the method reads them or not. */
        if (needs_any(s, i, is_qkv) || (s->sp.keep_tensors && i == 0 && in_decoder(g)))
            add(s, IWP_STEP_QKV, l, l, i);
        add(s, IWP_STEP_CUT, l, l, i);
        at = l;
    }
    struct iwp_step *t = add(s, IWP_STEP_RUN, at, L, -1);
    t->first = high;
    return s->probe ? split_runs(s, err) : 0;
}

int32_t iwp_session_mark_at(const struct iwp_session *s) {
    int32_t mark[IWP_MARK_MAX];
    return marks(s, mark) > 0 ? mark[0] : -1;
}

const struct iwp_kept *iwp_session_mark(const struct iwp_session *s, int32_t layer) {
    for (int32_t i = 0; i < s->n_mark; i++)
        if (s->mark[i].layer == layer && s->mark[i].n == s->p->n) return &s->mark[i];
    return NULL;
}

static double pairs(double n) { return n * (n + 1) / 2; }

void iwp_session_count_flops(struct iwp_session *s) {
    const struct iwp_decoder *d = &s->e->d;
    const double w = (double)iwp_decoder_layer_weights(d), qkv = (double)iwp_decoder_qkv_weights(d);
    const double head = 2.0 * d->n_vocab * d->d_model, hd = (double)d->n_head * d->d_head;
    const double n = s->p->n;
    s->st.flops_full = d->n_layer * (2 * w * n + 4 * hd * pairs(n)) + head;
    double flops = head, visual = 0;
    int32_t before = s->p->n; /* rows that reach the layer */
    const int32_t text = s->p->n - s->p->n_visual;
    for (int32_t i = 0; i < s->n_segment; i++) {
        const struct iwp_segment *g = &s->segment[i];
        const double rows = g->n_rows, layers = g->l1 - g->l0;
        flops += layers * (2 * w * rows + 4 * hd * pairs(rows));
        const bool cut_here = g->l0 > 0 || (s->n_stage > 0 && in_decoder(&s->stage[0]));
        if (cut_here && g->n_rows < before) flops += 2 * qkv * (before - rows);
        visual += layers * (rows - text);
        before = g->n_rows;
    }
    s->st.flops = flops;
    s->st.layer_average = s->p->n_visual > 0 ? visual / d->n_layer / s->p->n_visual : 1;
}

int64_t iwp_session_left(const struct iwp_session *s) {
    if (!s->running) return 0;
    int64_t left = 0, rows = s->rows.n, visual = 0;
    for (int32_t i = 0; i < s->rows.n; i++) visual += s->rows.visual[i] >= 0;
    for (int32_t i = s->at_step; i < s->n_step; i++) {
        const struct iwp_step *t = &s->step[i];
        if (t->kind == IWP_STEP_RUN) {
            const int64_t done = i == s->at_step && s->at_row > t->first ? s->at_row : t->first;
            left += (rows - done) * (t->l0 < 0 ? s->e->d.n_layer : t->l1 - t->l0);
        } else if (t->kind == IWP_STEP_CUT) {
            const int64_t keep = s->stage[t->stage].n_keep, cut = keep < visual ? visual - keep : 0;
            rows -= cut;
            visual -= cut;
        }
    }
    return left;
}
