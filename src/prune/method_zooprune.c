/* ZOO-Prune: how much the projector's output moves when its input does, times the distance to what
 * is kept (methods-encoder 3).  It calls the projector through input.project, so only an engine can
 * run it.  Full projector, never the low-rank one (ZO-1); fp32; directions from an explicit seed. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "prune/cosine.h"
#include "prune/encoder_rows.h"
#include "prune/methods.h"
#include "prune/zooprune_parts.h"

enum { DIRECTIONS = 64 };

struct zooprune_options {
    double step;
    int32_t seed;
};

static const struct iwp_option options[] = {
    {.name = "step",
     .type = IWP_OPTION_REAL,
     .offset = offsetof(struct zooprune_options, step),
     .def = 0.01,
     .min = 0,
     .min_open = 1,
     .max = 1e6,
     .text = "length of the steps in the projector's input"},
    {.name = "seed",
     .type = IWP_OPTION_INT,
     .offset = offsetof(struct zooprune_options, seed),
     .def = 0,
     .min = 0,
     .max = 2147483647,
     .text = "seed of the 64 directions"},
    {.name = NULL},
};

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)p;
    (void)stage;
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_VIT_FEATURES, IWP_ROWS_ALL, 0);
    return iwp_need_add(out, n, cap, IWP_TENSOR_EMBEDS, IWP_ROWS_VISUAL, 0);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    static const enum iwp_tensor t[] = {IWP_TENSOR_VIT_FEATURES, IWP_TENSOR_EMBEDS};
    for (int i = 0; i < 2; i++) {
        struct iwp_source s = {.array = &v->in->arr[t[i]]};
        IWP_TRY(iwp_source_check(&s, t[i], err));
    }
    return iwp_encoder_check(v, 0, 1, 1, err);
}

/* ---- parts ------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t *state) { /* SplitMix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

/* A normal number by the polar method, which needs no sine. */
static double normal(uint64_t *state) {
    for (;;) {
        double a = (double)(mix(state) >> 11) / 4503599627370496.0 - 1,
               b = (double)(mix(state) >> 11) / 4503599627370496.0 - 1, s = a * a + b * b;
        if (s > 0 && s < 1) return a * sqrt(-2 * iwp_math_log(s) / s);
    }
}

void iwp_zoo_directions(float *u, int32_t n_dir, int32_t d, uint64_t seed) {
    for (int32_t t = 0; t < n_dir; t++) {
        float *x = u + (size_t)t * (size_t)d;
        for (int32_t i = 0; i < d; i++) x[i] = (float)normal(&seed);
        double inv = 1 / (sqrt(iwp_row_norm2(x, d)) + 1e-12);
        for (int32_t i = 0; i < d; i++) x[i] = (float)((double)x[i] * inv);
    }
}

int iwp_zoo_sensitivity(const struct iwp_input *input, const struct iwp_array *array,
                        const int32_t *row, int32_t n, const float *u, int32_t n_dir, double h,
                        int32_t n_out, float *in, float *out, double *sens, iwp_err *err) {
    int32_t d = array->n_dim, half = IWP_ZOO_ROWS / 2;
    int64_t total = (int64_t)n * n_dir; /* direction by direction, all tokens of each */
    float tmp[IWP_ROW_WIDE];
    for (int32_t i = 0; i < n; i++) sens[i] = 0;
    for (int64_t p0 = 0; p0 < total; p0 += half) {
        int32_t c = total - p0 < half ? (int32_t)(total - p0) : half;
        for (int32_t p = 0; p < c; p++) {
            const float *dir = u + (size_t)((p0 + p) / n) * (size_t)d;
            const float *x = iwp_array_row(array, row[(p0 + p) % n], 0, tmp);
            float *plus = in + (size_t)(2 * p) * (size_t)d, *minus = plus + d;
            for (int32_t k = 0; k < d; k++) {
                plus[k] = (float)((double)x[k] + h * (double)dir[k]);
                minus[k] = (float)((double)x[k] - h * (double)dir[k]);
            }
        }
        int rc = input->project(input->project_ctx, in, 2 * c, out);
        IWP_REQUIRE(rc >= 0, err, rc, "method zooprune: the projector failed");
        for (int32_t p = 0; p < c; p++) {
            const float *y = out + (size_t)(2 * p) * (size_t)n_out, *z = y + n_out;
            double s = 0;
            for (int32_t k = 0; k < n_out; k++)
                s += ((double)y[k] - (double)z[k]) * ((double)y[k] - (double)z[k]);
            IWP_REQUIRE(s <= 1e300, err, IWP_EINVAL,
                        "method zooprune: the projector gave a NaN or Inf for token %d",
                        (int32_t)((p0 + p) % n));
            sens[(p0 + p) % n] += sqrt(s) / (2 * h);
        }
    }
    for (int32_t i = 0; i < n; i++) sens[i] /= n_dir;
    return 0;
}

void iwp_zoo_pick(const double *sens, const float *gram, int32_t n, int32_t m, double *w,
                  double *near, uint8_t *chosen) {
    double lo = INFINITY, hi = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        lo = sens[i] < lo ? sens[i] : lo;
        hi = sens[i] > hi ? sens[i] : hi;
    }
    for (int32_t i = 0; i < n; i++) {
        /* A linear projector moves all tokens alike: then diversity alone decides (ZO-3). */
        w[i] = hi - lo > 1e-6 * fabs(hi) ? (sens[i] - lo) / (hi - lo + 1e-8) : 1;
        near[i] = INFINITY;
    }
    for (int32_t step = 0; step < m; step++) {
        int32_t pick = -1;
        double best = 0;
        for (int32_t i = 0; i < n; i++) {
            double s = step ? near[i] * w[i] : w[i];
            if (chosen[i] || (pick >= 0 && !(s > best))) continue;
            pick = i;
            best = s;
        }
        chosen[pick] = 1;
        const float *row = gram + (size_t)pick * iwp_gram_stride(n);
        for (int32_t i = 0; i < n; i++) {
            double d = 1.0 - (double)row[i];
            near[i] = d < near[i] ? d : near[i];
        }
    }
}

static int select_zooprune(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    const struct zooprune_options *o = IWP_OPTIONS(zooprune_options, v->params);
    const struct iwp_array *feat = &v->in->arr[IWP_TENSOR_VIT_FEATURES];
    struct iwp_source s = {.array = &v->in->arr[IWP_TENSOR_EMBEDS], .row = v->pool};
    struct iwp_encoder enc;
    struct iwp_units x;
    int32_t n = v->n_pool, d = feat->n_dim, n_out = iwp_source_width(&s);
    size_t rows =
        (size_t)n < IWP_ZOO_ROWS / (2 * DIRECTIONS) ? 2 * DIRECTIONS * (size_t)n : IWP_ZOO_ROWS;
    iwp_encoder_layout(&enc, v, 0, 1, 0, a);
    iwp_units_layout(&x, n, n_out, a);
    float *gram = iwp_gram_take(a, n), *u = IWP_TAKE(a, float, (size_t)DIRECTIONS *(size_t)d),
          *in = IWP_TAKE(a, float, rows *(size_t)d), *out = IWP_TAKE(a, float, rows *(size_t)n_out);
    double *sens = IWP_TAKE(a, double, n), *w = IWP_TAKE(a, double, n),
           *near = IWP_TAKE(a, double, n);
    if (iwp_arena_counting(a)) return 0;

    IWP_TRY(iwp_encoder_map(&enc, err));
    iwp_zoo_directions(u, DIRECTIONS, d, (uint64_t)o->seed);
    IWP_TRY(iwp_zoo_sensitivity(v->in, feat, enc.row, n, u, DIRECTIONS, o->step, n_out, in, out,
                                sens, err));
    for (int32_t i = 0; i < n; i++) v->scores[i] = (float)sens[i];
    v->has_scores = 1;
    for (int32_t k = 0; k < v->n_unit; k++) {
        int32_t first = v->unit_first[k], m = v->unit_first[k + 1] - first;
        iwp_units_pack(&x, v->exec, &s, NULL, first, m);
        iwp_units_gram(&x, v->exec, gram);
        iwp_zoo_pick(sens + first, gram, m, v->unit_keep[k], w, near, v->chosen + first);
    }
    return 0;
}

const struct iwp_method iwp_method_zooprune = {
    .info = {.name = "zooprune",
             .title = "sensitivity of the projector times diversity",
             .ref = "ZOO-Prune (2025), code AIM-SKKU/ZOO-Prune",
             .site = IWP_SITE_EMBEDDINGS,
             .flags = IWP_METHOD_SEEDED | IWP_METHOD_ENGINE_ONLY | IWP_METHOD_READS_ENCODER |
                      IWP_METHOD_RENUMBERS,
             .options = options,
             .positions = "compact on LLaVA, original on M-RoPE models",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = -1,
             .models = "the projector is called as it is: an MLP, or the merger of Qwen2.5-VL on "
                       "four joined rows"},
    .needs = needs,
    .check = check,
    .select = select_zooprune,
};
