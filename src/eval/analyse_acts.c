/* Activations of an unpruned run, layer by layer: see analyse.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"
#include "model/session.h"

struct walk {
    struct iwp_analyse *a;
    struct iwp_probe probe;
    struct iwp_acts x;
    int32_t l0, l1;
    bool heads;
    iwp_acts_fn *fn;
    void *ctx;
};

static void acts_free(struct iwp_acts *x) {
    free(x->q), free(x->q_rope), free(x->k), free(x->k_rope), free(x->v), free(x->heads);
    free(x->visual);
}

static int acts_init(struct iwp_acts *x, const struct iwp_analyse *a, const iwp_prompt *p,
                     bool heads, iwp_err *err) {
    memset(x, 0, sizeof *x);
    x->p = p;
    x->n = p->n;
    x->n_visual = p->n_visual;
    x->H = a->info.n_head;
    x->G = a->info.n_head_kv;
    x->d = a->info.d_head;
    x->D = a->info.d_model;
    const size_t wide = (size_t)x->n * (size_t)x->H * (size_t)x->d * sizeof(float);
    const size_t narrow = (size_t)x->n * (size_t)x->G * (size_t)x->d * sizeof(float);
    x->q = malloc(wide), x->q_rope = malloc(wide);
    x->k = malloc(narrow), x->k_rope = malloc(narrow), x->v = malloc(narrow);
    if (heads) x->heads = malloc(wide);
    x->visual = malloc((size_t)x->n_visual * sizeof *x->visual);
    IWP_REQUIRE(x->q && x->q_rope && x->k && x->k_rope && x->v && x->visual && (x->heads || !heads),
                err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0, at = 0; i < p->n; i++)
        if (p->code[i] == IWP_CODE_VISUAL || p->code[i] == IWP_CODE_SEPARATOR) x->visual[at++] = i;
    x->k_arr = iwp_array_f32(x->k, x->n, x->G, x->d);
    x->k_rope_arr = iwp_array_f32(x->k_rope, x->n, x->G, x->d);
    x->v_arr = iwp_array_f32(x->v, x->n, x->G, x->d);
    x->in.n = x->n;
    x->in.code = p->code;
    x->in.pos = p->pos;
    x->in.n_pos = p->n_pos;
    x->in.arr[IWP_TENSOR_Q] = iwp_array_f32(x->q, x->n, x->H, x->d);
    x->in.arr[IWP_TENSOR_Q_ROPE] = iwp_array_f32(x->q_rope, x->n, x->H, x->d);
    x->in.arr[IWP_TENSOR_K] = x->k_arr;
    x->in.arr[IWP_TENSOR_K_ROPE] = x->k_rope_arr;
    x->in.arr[IWP_TENSOR_V] = x->v_arr;
    return 0;
}

static int show(struct walk *w, iwp_err *err) { return w->fn(w->ctx, w->a, &w->x, err); }

static int on_layer(void *ctx, iwp_session *s, int32_t layer, const struct iwp_stream *rows,
                    iwp_err *err) {
    struct walk *w = ctx;
    /* Attention's output is there once its layer has run: that layer is shown one later. */
    if (w->heads && layer - 1 >= w->l0 && layer - 1 < w->l1) IWP_TRY(show(w, err));
    if (layer < w->l0 || layer >= w->l1) return 0;
    const struct iwp_taps taps = {w->x.q, w->x.q_rope, w->x.k, w->x.k_rope, w->x.v};
    IWP_TRY(iwp_probe_qkv(s, layer, &taps, err));
    w->x.layer = layer;
    w->x.h = rows->h; /* its own only while the layer has not run */
    w->x.in.arr[IWP_TENSOR_H] = iwp_array_f32(rows->h, rows->n, 1, rows->d);
    w->probe.heads = w->x.heads;
    w->probe.heads_layer = layer;
    return w->heads ? 0 : show(w, err);
}

int iwp_acts_walk(struct iwp_analyse *a, const iwp_prompt *p, int32_t l0, int32_t l1, bool heads,
                  iwp_acts_fn *fn, void *ctx, iwp_err *err) {
    struct walk w = {.a = a, .l0 = l0, .l1 = l1, .heads = heads, .fn = fn, .ctx = ctx};
    IWP_REQUIRE(!heads || l1 < a->info.n_layer, err, IWP_EINVAL,
                "--prune-layer %d: the last layer computes attention for the last row only; give 0 "
                "to %d",
                l1 - 1, a->info.n_layer - 2);
    w.probe = (struct iwp_probe){.layer = on_layer, .ctx = &w, .heads_layer = -1};
    int rc = acts_init(&w.x, a, p, heads, err);
    iwp_session_set_probe(a->s, &w.probe);
    if (rc >= 0) rc = iwp_session_begin(a->s, p, NULL, err);
    if (rc >= 0) rc = iwp_ask_prefill(a->s, err);
    iwp_session_set_probe(a->s, NULL);
    acts_free(&w.x);
    return rc;
}

int iwp_acts_select(const struct iwp_acts *x, const struct iwp_params *p, int32_t *keep,
                    float *scores, iwp_err *err) {
    const int64_t bytes = iwp_select_workspace(p, &x->in, NULL, err);
    if (bytes < 0) return (int)bytes;
    void *ws = malloc((size_t)bytes + 1);
    IWP_REQUIRE(ws, err, IWP_ENOMEM, "out of memory");
    struct iwp_selection sel = {.keep = keep, .scores = scores};
    int rc = iwp_select(p, &x->in, NULL, ws, (size_t)bytes, NULL, &sel, err);
    free(ws);
    return rc < 0 ? rc : sel.n_keep;
}

int32_t iwp_acts_text(const struct iwp_acts *x, int32_t *row) {
    int32_t n = 0;
    for (int pass = 0; pass < 2 && n == 0; pass++)
        for (int32_t i = pass == 0 ? x->visual[0] : 0; i < x->n; i++)
            if (x->p->code[i] != IWP_CODE_VISUAL && x->p->code[i] != IWP_CODE_SEPARATOR)
                row[n++] = i;
    return n;
}

int iwp_acts_query(const struct iwp_acts *x, bool rope, float *out, iwp_err *err) {
    int32_t *row = malloc((size_t)x->n * sizeof *row);
    const size_t width = (size_t)x->H * (size_t)x->d;
    IWP_REQUIRE(row, err, IWP_ENOMEM, "out of memory");
    const int32_t n = iwp_acts_text(x, row);
    const float *q = rope ? x->q_rope : x->q;
    for (size_t t = 0; t < width; t++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++) sum += q[(size_t)row[i] * width + t];
        out[t] = (float)(n ? sum / n : 0);
    }
    free(row);
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "the prompt has no text tokens");
    return 0;
}
