/* VisionZip: dominant tokens by attention, the others folded into a few contextual ones
 * (methods-encoder 1).  A contextual token is its target plus the mean of the tokens that joined it,
 * as in the authors' code, not the mean of the cluster (VZ-2). */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "prune/cosine.h"
#include "prune/encoder_rows.h"
#include "prune/methods.h"

struct visionzip_options {
    int32_t cls, merge, split, contextual;
};

static const char *const splits[] = {"a", "b", NULL};

#define AT(f) offsetof(struct visionzip_options, f)
static const struct iwp_option options[] = {
    {.name = "cls",
     .type = IWP_OPTION_BOOL,
     .offset = AT(cls),
     .max = 1,
     .text = "encoder row 0 is a class token and its attention is the score"},
    {.name = "merge",
     .type = IWP_OPTION_ENUM,
     .offset = AT(merge),
     .choices = iwp_encoder_merges,
     .text = "consecutive encoder rows that form one token (4: Qwen's merger)"},
    {.name = "split",
     .type = IWP_OPTION_ENUM,
     .offset = AT(split),
     .choices = splits,
     .text = "contextual tokens: a = 10/64 of the kept ones (LLaVA), b = 5 % of all (Qwen)"},
    {.name = "contextual",
     .type = IWP_OPTION_INT,
     .offset = AT(contextual),
     .def = -1,
     .min = -1,
     .max = 1e6,
     .def_text = "from split",
     .text = "contextual tokens among the kept ones; -1: from split"},
    {.name = NULL},
};

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)p;
    (void)stage;
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_VIT_Q, IWP_ROWS_ALL, 0);
    return iwp_need_add(out, n, cap, IWP_TENSOR_VIT_K, IWP_ROWS_ALL, 0);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    const struct visionzip_options *o = IWP_OPTIONS(visionzip_options, v->params);
    return iwp_encoder_check(v, o->cls, iwp_encoder_merge(o->merge), 0, err);
}

static double half_even(double x) {
    double f = floor(x), r = x - f;
    return r > 0.5 || (r == 0.5 && fmod(f, 2) != 0) ? f + 1 : f;
}

/* Dominant and contextual counts of a unit of n tokens that keeps m (E 1.5). */
static void split_budget(const struct iwp_view *v, const struct visionzip_options *o, int32_t n,
                         int32_t m, int32_t *dominant, int32_t *contextual) {
    if (v->as_published && o->contextual < 0) {
        /* The authors truncate both parts, which loses up to two tokens. */
        const struct iwp_budget *b = &v->params->budget;
        double bn = (b->n_keep ? (double)b->n_keep / v->n_pool : b->keep) * n,
               d = o->split ? bn - 0.05 * n : bn * 5.4 / 6.4, c = o->split ? 0.05 * n : bn / 6.4;
        *dominant = d >= 1 ? (int32_t)d : 1;
        *contextual = c >= 1 ? (int32_t)c : 1;
        if (*dominant > n) *dominant = n;
        if (*contextual > n - *dominant) *contextual = n - *dominant;
        return;
    }
    int32_t c = o->contextual;
    if (c < 0) {
        c = o->split ? (int32_t)(0.05 * n) : (int32_t)half_even(m * 10 / 64.0);
        if (c < 1) c = 1;
    }
    *contextual = c < m - 1 ? c : m - 1;
    *dominant = m - *contextual;
}

static int select_visionzip(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    const struct visionzip_options *o = IWP_OPTIONS(visionzip_options, v->params);
    struct iwp_encoder enc;
    struct iwp_units x, y;
    int32_t n_max = v->n_pool;
    struct iwp_source s = {.array = &v->in->arr[IWP_TENSOR_VIT_K],
                           .group = iwp_encoder_merge(o->merge),
                           .mean_heads = 1};
    iwp_encoder_layout(&enc, v, o->cls, iwp_encoder_merge(o->merge), 1, a);
    int32_t *order = IWP_TAKE(a, int32_t, n_max), *target = IWP_TAKE(a, int32_t, n_max),
            *other = IWP_TAKE(a, int32_t, n_max), *goes = IWP_TAKE(a, int32_t, n_max),
            *count = IWP_TAKE(a, int32_t, n_max);
    float *cos = IWP_TAKE(a, float, n_max);
    iwp_units_layout(&x, n_max, s.array->n_dim, a);
    iwp_units_layout(&y, n_max, s.array->n_dim, a);
    if (iwp_arena_counting(a)) return 0;

    IWP_TRY(iwp_encoder_map(&enc, err));
    iwp_encoder_attention(&enc);
    s.row = enc.row;
    for (int32_t i = 0; i < v->n_pool; i++) v->scores[i] = (float)enc.score[i];
    v->has_scores = 1;
    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first, dominant, contextual;
        split_budget(v, o, n, v->unit_keep[u], &dominant, &contextual);
        for (int32_t i = 0; i < n; i++) order[i] = first + i;
        iwp_top_k(enc.score, order, n, dominant);
        for (int32_t i = 0; i < dominant; i++) v->chosen[order[i]] = 1;
        if (!contextual) continue;
        /* Targets: a fixed stride over the rest in raster order. */
        int32_t rest = n - dominant, stride = rest / contextual > 1 ? rest / contextual : 1,
                n_target = 0, n_other = 0, seen = 0;
        for (int32_t i = first; i < first + n; i++) {
            if (v->chosen[i]) continue;
            if (seen % stride == 0 && n_target < contextual)
                target[n_target++] = i;
            else
                other[n_other++] = i;
            seen++;
        }
        for (int32_t k = 0; k < n_target; k++) v->chosen[target[k]] = 1, count[k] = 0;
        if (!n_other) continue;
        iwp_units_pack(&x, v->exec, &s, other, 0, n_other);
        iwp_units_pack(&y, v->exec, &s, target, 0, n_target);
        iwp_units_nearest(&x, &y, v->exec, cos, goes);
        for (int32_t i = 0; i < n_other; i++) count[goes[i]]++;
        for (int32_t k = 0; k < n_target; k++)
            if (count[k]) v->merge[v->n_merge++] = (struct iwp_merge){target[k], target[k], 1.0f};
        for (int32_t i = 0; i < n_other; i++)
            v->merge[v->n_merge++] =
                (struct iwp_merge){other[i], target[goes[i]], 1.0f / (float)count[goes[i]]};
    }
    return 0;
}

const struct iwp_method iwp_method_visionzip = {
    .info = {.name = "visionzip",
             .title = "dominant tokens by attention, the rest folded into contextual ones",
             .ref = "VisionZip (Yang et al. 2024), code dvlab-research/VisionZip",
             .site = IWP_SITE_TOWER,
             .flags = IWP_METHOD_READS_ENCODER | IWP_METHOD_MERGES | IWP_METHOD_RENUMBERS,
             .options = options,
             .positions = "compact on LLaVA, original on M-RoPE models",
             .rounding =
                 "round-half-even(keep N), split exactly; as-published truncates both parts",
             .layer = -1,
             .models = "Qwen2.5-VL: contextual tokens are sums of merger outputs, elsewhere of "
                       "projector inputs"},
    .needs = needs,
    .check = check,
    .select = select_visionzip,
};
