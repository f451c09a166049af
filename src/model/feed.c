/* Tokens after the prompt: one into one session, or one into each of several sessions at once. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "model/session.h"

static int check(const struct iwp_session *s, int32_t token, iwp_err *err) {
    IWP_REQUIRE(s->p && !s->running && s->n_segment > 0, err, IWP_EINVAL,
                "feed: the prompt has not been run");
    IWP_REQUIRE(token >= 0 && token < s->e->d.n_vocab, err, IWP_EINVAL, "feed: no token has id %d",
                token);
    IWP_REQUIRE(s->p->n + s->n_fed < s->sp.n_ctx, err, IWP_EINVAL,
                "the context of %d tokens is full", s->sp.n_ctx);
    return 0;
}

/* Room for one more token in the list and in every layer. */
static int make_room(struct iwp_session *s, iwp_err *err) {
    if (s->n_fed == s->cap_fed) {
        int32_t cap = s->cap_fed ? 2 * s->cap_fed : 64;
        int32_t *p = realloc(s->fed, (size_t)cap * sizeof *p);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
        s->fed = p;
        s->cap_fed = cap;
    }
    for (int32_t l = 0; l < s->e->d.n_layer; l++)
        if (s->kv.layer[l].n + 1 > s->kv.layer[l].cap)
            IWP_TRY(iwp_kv_reserve(&s->kv, l, s->kv.layer[l].n + s->sp.reserve, err));
    return 0;
}

/* A scheduler and buffers for steps of n lanes: made for few first, because their memory grows with the
 * nodes.  Prompts have their own, so that the graph of a step outlives the chunks between two tokens. */
static int reserve_lanes(iwp_engine *e, int32_t n, iwp_err *err) {
    struct iwp_lanes *to = &e->lanes;
    if (to->n >= n) return 0;
    int32_t room = 1;
    while (room < n) room *= room < 4 ? 4 : 2;
    iwp_engine_free_lanes(e);
    IWP_TRY(iwp_sched_new(&to->sched, e->b, iwp_runner_max_nodes(&e->d, room), err));
    to->pos = malloc((size_t)room * (size_t)e->d.n_layer * sizeof *to->pos);
    to->rows = malloc((size_t)room * (size_t)e->d.d_model * sizeof *to->rows);
    IWP_REQUIRE(to->pos && to->rows, err, IWP_ENOMEM, "out of memory");
    to->n = room;
    return 0;
}

void iwp_engine_free_lanes(iwp_engine *e) {
    iwp_sched_free(e->lanes.sched);
    free(e->lanes.pos);
    free(e->lanes.rows);
    e->lanes = (struct iwp_lanes){0};
}

/* n <= IWP_LANE_MAX sessions in one graph. */
static int feed(struct iwp_session *const *s, const int32_t *token, int32_t n, iwp_err *err) {
    iwp_engine *e = s[0]->e;
    struct iwp_lane lane[IWP_LANE_MAX];
    IWP_TRY(reserve_lanes(e, n, err));
    for (int32_t i = 0; i < n; i++) {
        int32_t *at = e->lanes.pos + (size_t)i * (size_t)e->d.n_layer;
        IWP_TRY(make_room(s[i], err));
        IWP_TRY(iwp_weights_row(e->d.weights, e->d.embed, token[i],
                                e->lanes.rows + (size_t)i * (size_t)e->d.d_model, err));
        for (int32_t g = 0; g < s[i]->n_segment; g++)
            for (int32_t l = s[i]->segment[g].l0; l < s[i]->segment[g].l1; l++)
                at[l] = s[i]->segment[g].next_pos + s[i]->n_fed;
        lane[i] = (struct iwp_lane){&s[i]->runner, at, s[i]->logits};
    }
    IWP_TRY(iwp_runner_lanes(e->lanes.sched, lane, n, e->lanes.rows, err));
    for (int32_t i = 0; i < n; i++) {
        s[i]->fed[s[i]->n_fed++] = token[i];
        s[i]->has_logits = true;
    }
    return 0;
}

int iwp_session_feed(iwp_session *s, int32_t token, iwp_err *err) {
    return iwp_session_feed_batch(&s, &token, 1, err);
}

int iwp_session_feed_batch(iwp_session *const *s, const int32_t *token, int32_t n, iwp_err *err) {
    for (int32_t i = 0; i < n; i++) {
        IWP_TRY(check(s[i], token[i], err));
        IWP_REQUIRE(s[i]->e == s[0]->e, err, IWP_EINVAL, "feed: sessions of different models");
        for (int32_t k = 0; k < i; k++)
            IWP_REQUIRE(s[k] != s[i], err, IWP_EINVAL, "feed: one session twice in a batch");
    }
    for (int32_t i = 0; i < n; i += IWP_LANE_MAX) {
        const int32_t m = n - i < IWP_LANE_MAX ? n - i : IWP_LANE_MAX;
        const double t0 = iwp_clock_ms();
        pthread_mutex_lock(&s[i]->e->lock);
        int rc = feed(s + i, token + i, m, err);
        pthread_mutex_unlock(&s[i]->e->lock);
        for (int32_t k = i; k < i + m; k++) s[k]->st.ms_decode += iwp_clock_ms() - t0;
        IWP_TRY(rc);
    }
    return 0;
}

/* ---- taking back -------------------------------------------------------------------------------- */

int iwp_session_forget(iwp_session *s, int32_t n, iwp_err *err) {
    IWP_REQUIRE(n >= 0 && n <= s->n_fed, err, IWP_EINVAL, "forget: %d of %d tokens", n, s->n_fed);
    if (n == s->n_fed) return 0;
    for (int32_t g = 0; g < s->n_segment; g++)
        for (int32_t l = s->segment[g].l0; l < s->segment[g].l1; l++)
            iwp_kv_truncate(&s->kv, l, s->segment[g].n_rows + n);
    s->n_fed = n;
    s->has_logits = false;
    return 0;
}
