/* SCOPE: saliency times the coverage a token adds (methods-diversity 5).
 *
 * score_j = g_j A_j^alpha, g_j = sum over i of max(0, S_ij - c_i), c_i the best cosine of i to the
 * set so far.  A pick raises c only where it is a new best, so each step subtracts just those rows:
 * about N² ln M in all instead of M N².  Cosines are held as whole multiples of 2^-30, which makes
 * every g exact: no drift, 0 when nothing is left to cover, and any order of threads gives the same.
 * Memory: 4 N² bytes, the matrix S of the definition. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "prune/cosine.h"
#include "prune/encoder_rows.h"
#include "prune/methods.h"

enum { SPAN = 256 };
static const double unit_step = 1.0 / 1073741824.0; /* 2^-30 */

struct scope_options {
    struct iwp_encoder_options enc;
    double alpha;
    int32_t mode;
};

static const char *const modes[] = {"multi", "add", NULL};

#define AT(f) offsetof(struct scope_options, f)
static const struct iwp_option options[] = {
    IWP_ENCODER_OPTIONS("saliency"),
    {.name = "alpha",
     .type = IWP_OPTION_REAL,
     .offset = AT(alpha),
     .def = 1,
     .min = 0,
     .max = 100,
     .text = "power of the saliency"},
    {.name = "mode",
     .type = IWP_OPTION_ENUM,
     .offset = AT(mode),
     .choices = modes,
     .text = "coverage times saliency, or plus"},
    {.name = NULL},
};

struct cover_job {
    const float *gram;
    int32_t *fixed;                 /* [n][stride] cosines in steps, at least 0 */
    int64_t *gain;                  /* [n] */
    const int32_t *row, *was, *now; /* rows whose cover rose, from and to */
    int32_t n, n_row;
};

/* Cosines to whole steps, 64 rows per task (the same memory, read before it is written). */
static void fix_rows(void *arg, int32_t task) {
    struct cover_job *j = arg;
    int32_t i1 = (task + 1) * 64 < j->n ? (task + 1) * 64 : j->n;
    for (int32_t i = task * 64; i < i1; i++) {
        const float *from = j->gram + (size_t)i * iwp_gram_stride(j->n);
        int32_t *to = j->fixed + (size_t)i * iwp_gram_stride(j->n);
        int64_t sum = 0;
        for (int32_t k = 0; k < j->n; k++) {
            float x = from[k];
            to[k] = x > 0 ? (int32_t)(x * 1073741824.0f) : 0;
            sum += to[k];
        }
        j->gain[i] = sum;
    }
}

/* What the raised rows no longer give, for SPAN tokens. */
static void lose_gain(void *arg, int32_t task) {
    struct cover_job *j = arg;
    int32_t k0 = task * SPAN, n = j->n - k0 < SPAN ? j->n - k0 : SPAN;
    for (int32_t e = 0; e < j->n_row; e++) {
        const int32_t *x = j->fixed + (size_t)j->row[e] * iwp_gram_stride(j->n) + k0;
        int32_t lo = j->was[e], hi = j->now[e];
        int64_t *g = j->gain + k0;
        for (int32_t k = 0; k < n; k++) {
            int32_t y = x[k] < hi ? x[k] : hi;
            g[k] -= y > lo ? y - lo : 0;
        }
    }
}

static int select_scope(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    const struct scope_options *o = IWP_OPTIONS(scope_options, v->params);
    struct iwp_encoder enc;
    struct iwp_units x;
    int32_t n_max = v->n_pool;
    iwp_encoder_layout(&enc, v, o->enc.cls, iwp_encoder_merge(o->enc.merge), 1, a);
    int32_t *feature_row = IWP_TAKE(a, int32_t, n_max);
    struct iwp_source s = iwp_encoder_source(&enc, &o->enc, feature_row);
    iwp_units_layout(&x, n_max, iwp_source_width(&s), a);
    float *gram = iwp_gram_take(a, n_max);
    double *weight = IWP_TAKE(a, double, n_max);
    int64_t *gain = IWP_TAKE(a, int64_t, n_max);
    int32_t *cover = IWP_TAKE(a, int32_t, n_max), *row = IWP_TAKE(a, int32_t, n_max),
            *was = IWP_TAKE(a, int32_t, n_max), *now = IWP_TAKE(a, int32_t, n_max);
    if (iwp_arena_counting(a)) return 0;

    IWP_TRY(iwp_encoder_map(&enc, err));
    iwp_encoder_attention(&enc);
    iwp_encoder_skip_cls(&enc, s.array, feature_row);
    for (int32_t i = 0; i < v->n_pool; i++) {
        double w = enc.score[i] * (o->enc.cls ? enc.k->n_head : 1); /* CLS: the sum over heads */
        weight[i] = o->alpha == 1 ? w : o->alpha > 0 ? iwp_math_exp(o->alpha * iwp_math_log(w)) : 1;
    }
    int32_t *fixed = (int32_t *)(void *)gram;
    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first;
        struct cover_job j = {gram, fixed, gain, row, was, now, n, 0};
        iwp_units_pack(&x, v->exec, &s, NULL, first, n);
        iwp_units_gram(&x, v->exec, gram);
        iwp_parallel(v->exec, fix_rows, &j, (n + 63) / 64);
        memset(cover, 0, sizeof(int32_t) * (size_t)n);
        for (int32_t step = 0; step < v->unit_keep[u]; step++) {
            int32_t pick = -1;
            double best = 0;
            for (int32_t i = 0; i < n; i++) {
                double g = (double)gain[i] * unit_step,
                       q = o->mode == 0 ? g * weight[first + i] : g + weight[first + i];
                if (step == 0) v->scores[first + i] = (float)q;
                if (v->chosen[first + i] || (pick >= 0 && !(q > best))) continue;
                pick = i;
                best = q;
            }
            v->chosen[first + pick] = 1;
            const int32_t *c = fixed + (size_t)pick * iwp_gram_stride(n);
            j.n_row = 0;
            for (int32_t i = 0; i < n; i++) {
                if (c[i] <= cover[i]) continue;
                row[j.n_row] = i;
                was[j.n_row] = cover[i];
                now[j.n_row++] = cover[i] = c[i];
            }
            iwp_parallel((int64_t)n * j.n_row > 65536 ? v->exec : NULL, lose_gain, &j,
                         (n + SPAN - 1) / SPAN);
        }
    }
    v->has_scores = 1;
    return 0;
}

const struct iwp_method iwp_method_scope = {
    .info = {.name = "scope",
             .title = "saliency times coverage, at the encoder's output",
             .ref = "SCOPE (2025), code kinredon/SCOPE",
             .site = IWP_SITE_TOWER,
             .flags = IWP_METHOD_READS_ENCODER | IWP_METHOD_RENUMBERS,
             .options = options,
             .positions = "compact on LLaVA, original on M-RoPE models",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = -1},
    .needs = iwp_encoder_needs,
    .check = iwp_encoder_check_options,
    .select = select_scope,
};
