/* Looking into a session: see probe.h. */
#include "model/probe.h"

#include "base/err.h"
#include "model/session.h"

void iwp_session_set_probe(iwp_session *s, struct iwp_probe *p) { s->probe = p; }

static float *at(float *to, int32_t row, int32_t heads, int32_t d) {
    return to ? to + (size_t)row * (size_t)heads * (size_t)d : NULL;
}

int iwp_probe_qkv(iwp_session *s, int32_t layer, const struct iwp_taps *out, iwp_err *err) {
    const struct iwp_decoder *m = &s->e->d;
    const int32_t H = m->n_head, G = m->n_head_kv, d = m->d_head;
    for (int32_t i = 0; i < s->rows.n; i += s->sp.n_chunk) {
        const int32_t n = s->rows.n - i < s->sp.n_chunk ? s->rows.n - i : s->sp.n_chunk;
        const struct iwp_taps part = {.q = at(out->q, i, H, d),
                                      .q_rope = at(out->q_rope, i, H, d),
                                      .k = at(out->k, i, G, d),
                                      .k_rope = at(out->k_rope, i, G, d),
                                      .v = at(out->v, i, G, d)};
        const struct iwp_span span = {layer, layer, s->rows.pos + i, s->rows.n};
        IWP_TRY(iwp_runner_qkv(&s->runner, layer, n, s->rows.h + (size_t)i * (size_t)s->rows.d,
                               &span, &part, err));
    }
    return 0;
}
