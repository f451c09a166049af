/* VisPruner: half of the budget by attention, half by thinning out duplicates (methods-encoder 2).
 *
 * Each round looks, for every second token of the list, for its best partner among the others.  The
 * cosines of the residual list are computed once (4 R² bytes); each token then remembers its 16
 * nearest, and nearly always one of them is on the other side, so a round costs a few look-ups per
 * token instead of R²/4. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "prune/cosine.h"
#include "prune/encoder_rows.h"
#include "prune/methods.h"

enum { NEAR = 16 };

struct vispruner_options {
    struct iwp_encoder_options enc;
    double rho;
    int32_t step;
};

#define AT(f) offsetof(struct vispruner_options, f)
static const struct iwp_option options[] = {
    IWP_ENCODER_OPTIONS("importance"),
    {.name = "rho",
     .type = IWP_OPTION_REAL,
     .offset = AT(rho),
     .def = 0.5,
     .min = 0,
     .max = 1,
     .text = "share of the budget that goes to the most attended tokens"},
    {.name = "step",
     .type = IWP_OPTION_INT,
     .offset = AT(step),
     .def = 8,
     .min = 1,
     .max = 1e6,
     .text = "tokens removed per round"},
    {.name = NULL},
};

struct thin_job {
    const float *gram;
    int32_t n;
    int32_t *near;         /* [n][NEAR] nearest tokens, most similar first */
    float *near_cos;       /* [n][NEAR] */
    uint8_t *alive, *on_q; /* [n] */
};

/* The NEAR most similar living tokens of token i. */
static void find_near(const struct thin_job *j, int32_t i) {
    const float *row = j->gram + (size_t)i * iwp_gram_stride(j->n);
    int32_t *near = j->near + (size_t)i * NEAR, n = 0;
    float *cos = j->near_cos + (size_t)i * NEAR;
    for (int32_t k = 0; k < j->n; k++) {
        if ((n == NEAR && row[k] <= cos[NEAR - 1]) || !j->alive[k] || k == i) continue;
        int32_t at = n < NEAR ? n++ : NEAR - 1;
        for (; at > 0 && cos[at - 1] < row[k]; at--) cos[at] = cos[at - 1], near[at] = near[at - 1];
        cos[at] = row[k];
        near[at] = k;
    }
    for (; n < NEAR; n++) near[n] = -1;
}

static void near_rows(void *arg, int32_t task) {
    struct thin_job *j = arg;
    int32_t i1 = (task + 1) * 64 < j->n ? (task + 1) * 64 : j->n;
    for (int32_t i = task * 64; i < i1; i++) find_near(j, i);
}

/* Largest cosine of token i to a token on side Q. */
static double best_partner(const struct thin_job *j, int32_t i) {
    const int32_t *near = j->near + (size_t)i * NEAR;
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < NEAR && near[k] >= 0; k++)
            if (j->on_q[near[k]]) return (double)j->near_cos[(size_t)i * NEAR + (size_t)k];
        if (pass == 0) find_near(j, i); /* the remembered ones are gone: look again */
    }
    const float *row = j->gram + (size_t)i * iwp_gram_stride(j->n);
    float m = -2;
    for (int32_t k = 0; k < j->n; k++)
        if (j->on_q[k] && row[k] > m) m = row[k];
    return (double)m;
}

static int select_vispruner(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    const struct vispruner_options *o = IWP_OPTIONS(vispruner_options, v->params);
    struct iwp_encoder enc;
    struct iwp_units x;
    int32_t n_max = v->n_pool;
    struct thin_job j = {0};
    iwp_encoder_layout(&enc, v, o->enc.cls, iwp_encoder_merge(o->enc.merge), 1, a);
    int32_t *feature_row = IWP_TAKE(a, int32_t, n_max), *order = IWP_TAKE(a, int32_t, n_max),
            *list = IWP_TAKE(a, int32_t, n_max), *next = IWP_TAKE(a, int32_t, n_max),
            *pick = IWP_TAKE(a, int32_t, n_max);
    struct iwp_source s = iwp_encoder_source(&enc, &o->enc, feature_row);
    double *partner = IWP_TAKE(a, double, n_max);
    iwp_units_layout(&x, n_max, iwp_source_width(&s), a);
    float *gram = iwp_gram_take(a, n_max);
    j.gram = gram;
    j.near = IWP_TAKE(a, int32_t, (size_t)n_max *NEAR);
    j.near_cos = IWP_TAKE(a, float, (size_t)n_max *NEAR);
    j.alive = IWP_TAKE(a, uint8_t, n_max);
    j.on_q = IWP_TAKE(a, uint8_t, n_max);
    if (iwp_arena_counting(a)) return 0;

    IWP_TRY(iwp_encoder_map(&enc, err));
    iwp_encoder_attention(&enc);
    iwp_encoder_skip_cls(&enc, s.array, feature_row);
    for (int32_t i = 0; i < v->n_pool; i++) v->scores[i] = (float)enc.score[i];
    v->has_scores = 1;

    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first, m = v->unit_keep[u];
        int32_t important = (int32_t)(m * o->rho), diverse = m - important, rest = n - important;
        for (int32_t i = 0; i < n; i++) order[i] = first + i;
        iwp_top_k(enc.score, order, n, n);
        for (int32_t i = 0; i < important; i++) v->chosen[order[i]] = 1;
        if (!diverse) continue;
        /* Residual tokens are numbered by token index, so that "lower index" is the same for both. */
        for (int32_t i = 0; i < n; i++) next[i] = -1;
        for (int32_t i = important; i < n; i++) next[order[i] - first] = 0;
        j.n = 0;
        for (int32_t i = 0; i < n; i++)
            if (next[i] == 0) pick[j.n] = first + i, next[i] = j.n++;
        for (int32_t i = 0; i < rest; i++) list[i] = next[order[important + i] - first];
        if (rest > diverse) {
            iwp_units_pack(&x, v->exec, &s, pick, 0, j.n);
            iwp_units_gram(&x, v->exec, gram);
            memset(j.alive, 1, (size_t)j.n);
            iwp_parallel(v->exec, near_rows, &j, (j.n + 63) / 64);
        }
        while (rest > diverse) {
            int32_t n_p = (rest + 1) / 2, n_q = rest / 2, gone = rest - diverse;
            if (gone > o->step) gone = o->step;
            if (gone > n_p) gone = n_p;
            memset(j.on_q, 0, (size_t)j.n);
            for (int32_t i = 0; i < n_q; i++) j.on_q[list[2 * i + 1]] = 1;
            for (int32_t i = 0; i < n_p; i++) {
                next[i] = list[2 * i];
                partner[next[i]] = best_partner(&j, next[i]);
            }
            iwp_top_k(partner, next, n_p, n_p);
            for (int32_t i = 0; i < gone; i++) j.alive[next[i]] = 0;
            /* survivors of P in that order, then Q in its own */
            for (int32_t i = 0; i < n_q; i++) next[n_p + i] = list[2 * i + 1];
            rest -= gone;
            memcpy(list, next + gone, sizeof(int32_t) * (size_t)rest);
        }
        for (int32_t i = 0; i < rest; i++) v->chosen[pick[list[i]]] = 1;
    }
    return 0;
}

const struct iwp_method iwp_method_vispruner = {
    .info = {.name = "vispruner",
             .title = "most attended tokens plus a thinned-out rest, at the encoder's output",
             .ref = "VisPruner (Zhang et al. 2025), code Theia-4869/VisPruner",
             .site = IWP_SITE_TOWER,
             .flags = IWP_METHOD_READS_ENCODER | IWP_METHOD_RENUMBERS,
             .options = options,
             .positions = "compact on LLaVA, original on M-RoPE models",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = -1},
    .needs = iwp_encoder_needs,
    .check = iwp_encoder_check_options,
    .select = select_vispruner,
};
