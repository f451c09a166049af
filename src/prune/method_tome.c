/* ToMe: bipartite soft matching (methods-encoder 4).  Tokens at even places look for their most
 * similar token at an odd place; the r best pairs are averaged, weights = sizes.
 *
 * A selection is one step and can drop at most half of the tokens.  The plan spreads a smaller budget
 * over encoder blocks (keys=vit) or decoder layers (keys=layer).  Survivors stay in prompt order and a
 * group sits at its odd member, unlike the authors' output order (TM-1). */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "prune/cosine.h"
#include "prune/encoder_rows.h"
#include "prune/methods.h"

enum { BY_VIT, BY_LAYER };

struct tome_options {
    int32_t cls, keys, r;
    double inflection;
};

static const char *const keys[] = {"vit", "layer", NULL};

#define AT(f) offsetof(struct tome_options, f)
static const struct iwp_option options[] = {
    {.name = "cls",
     .type = IWP_OPTION_BOOL,
     .offset = AT(cls),
     .max = 1,
     .text = "encoder row 0 is a class token; it takes an even place and is never merged"},
    {.name = "keys",
     .type = IWP_OPTION_ENUM,
     .offset = AT(keys),
     .choices = keys,
     .text = "vit: encoder keys, mean over heads; layer: the decoder's keys after RoPE, all heads"},
    {.name = "r",
     .type = IWP_OPTION_INT,
     .offset = AT(r),
     .def = -1,
     .min = -1,
     .max = 1e6,
     .def_text = "N - M",
     .text = "tokens merged away in each unit; -1: what the budget asks for"},
    {.name = "inflection",
     .type = IWP_OPTION_REAL,
     .offset = AT(inflection),
     .min = -1,
     .max = 1,
     .text = "with r, over blocks: from r (1 - inflection) in the first to r (1 + inflection) in "
             "the last; 0: r in each"},
    {.name = NULL},
};

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)stage;
    return IWP_OPTIONS(tome_options, p)->keys == BY_LAYER
               ? iwp_need_add(out, 0, cap, IWP_TENSOR_K_ROPE, IWP_ROWS_VISUAL, 0)
               : iwp_need_add(out, 0, cap, IWP_TENSOR_VIT_K, IWP_ROWS_ALL, 0);
}

/* A selection takes r tokens away; where r is only the mean of a schedule, what the budget asks. */
static int has_own_step(const struct tome_options *o) { return o->r >= 0 && o->inflection == 0; }

static int check_inflection(const struct tome_options *o, iwp_err *err) {
    IWP_REQUIRE(o->inflection == 0 || o->r >= 0, err, IWP_EINVAL,
                "option inflection of method tome needs r, the mean of the steps");
    return 0;
}

static int check(const struct iwp_view *v, iwp_err *err) {
    const struct tome_options *o = IWP_OPTIONS(tome_options, v->params);
    IWP_TRY(check_inflection(o, err));
    enum iwp_tensor t = o->keys == BY_LAYER ? IWP_TENSOR_K_ROPE : IWP_TENSOR_VIT_K;
    struct iwp_source s = {.array = &v->in->arr[t], .mean_heads = o->keys == BY_VIT};
    IWP_TRY(iwp_source_check(&s, t, err));
    if (o->keys == BY_VIT) IWP_TRY(iwp_encoder_check(v, o->cls, 1, 0, err));
    int32_t least = v->n_pool - v->n_pool / 2;
    IWP_REQUIRE(has_own_step(o) || v->n_keep >= least, err, IWP_EINVAL,
                "%s: one step of method tome keeps %d to %d of %d tokens, not %d",
                iwp_budget_flag(&v->params->budget), least, v->n_pool, v->n_pool, v->n_keep);
    return 0;
}

static int select_tome(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    const struct tome_options *o = IWP_OPTIONS(tome_options, v->params);
    int layer = o->keys == BY_LAYER;
    int32_t n_max = v->n_pool, half = n_max / 2 + 1, cls = layer ? 0 : o->cls;
    struct iwp_encoder enc;
    struct iwp_units x, y;
    struct iwp_source s = {.array = &v->in->arr[layer ? IWP_TENSOR_K_ROPE : IWP_TENSOR_VIT_K],
                           .mean_heads = !layer};
    if (!layer) iwp_encoder_layout(&enc, v, cls, 1, 0, a);
    int32_t *even = IWP_TAKE(a, int32_t, half), *odd = IWP_TAKE(a, int32_t, half),
            *goes = IWP_TAKE(a, int32_t, half), *order = IWP_TAKE(a, int32_t, half);
    float *cos = IWP_TAKE(a, float, half);
    double *value = IWP_TAKE(a, double, half);
    iwp_units_layout(&x, half, iwp_source_width(&s), a);
    iwp_units_layout(&y, half, iwp_source_width(&s), a);
    if (iwp_arena_counting(a)) return 0;

    if (!layer) IWP_TRY(iwp_encoder_map(&enc, err));
    s.row = layer ? v->pool : enc.row;
    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first, n_even = 0, n_odd = 0;
        int32_t r = has_own_step(o) ? o->r : n - v->unit_keep[u];
        IWP_REQUIRE(r <= n / 2, err, IWP_EINVAL,
                    "%s: one step of method tome keeps %d to %d of %d tokens, not %d",
                    has_own_step(o) ? "--opt r" : iwp_budget_flag(&v->params->budget), n - n / 2, n,
                    n, n - r > 0 ? n - r : 0);
        for (int32_t i = 0; i < n; i++) { /* with a class row every token is one place further */
            v->chosen[first + i] = 1;
            v->scores[first + i] = -1;
            if ((i + cls) % 2)
                odd[n_odd++] = first + i;
            else
                even[n_even++] = first + i;
        }
        if (!n_even || !n_odd) continue;
        iwp_units_pack(&x, v->exec, &s, even, 0, n_even);
        iwp_units_pack(&y, v->exec, &s, odd, 0, n_odd);
        iwp_units_nearest(&x, &y, v->exec, cos, goes);
        for (int32_t i = 0; i < n_even; i++) {
            v->scores[even[i]] = cos[i];
            value[i] = (double)cos[i];
            order[i] = i;
        }
        iwp_top_k(value, order, n_even, r);
        for (int32_t i = 0; i < r; i++) v->sizes[odd[goes[order[i]]]]++;
        for (int32_t i = 0; i < n_odd; i++)
            if (v->sizes[odd[i]] > 1)
                v->merge[v->n_merge++] =
                    (struct iwp_merge){odd[i], odd[i], 1.0f / (float)v->sizes[odd[i]]};
        for (int32_t i = 0; i < r; i++) {
            int32_t to = odd[goes[order[i]]];
            v->chosen[even[order[i]]] = 0;
            v->merge[v->n_merge++] =
                (struct iwp_merge){even[order[i]], to, 1.0f / (float)v->sizes[to]};
        }
    }
    v->has_scores = 1;
    v->has_sizes = 1;
    return 0;
}

/* Tokens merged away in step b of n when r is given (methods-encoder 4.4). */
static int32_t step_of(const struct tome_options *o, int32_t b, int32_t n) {
    int32_t first = (int32_t)(o->r * (1 - o->inflection)), last = 2 * o->r - first;
    return n > 1 ? (int32_t)(first + (double)(last - first) / (n - 1) * b) : o->r;
}

/* Counts after each of n_step steps from n to keep: even shares, at most half of the tokens in each
 * step, and more than a share where later halvings could not make up for it.  With o: its own steps,
 * whatever they leave.  Returns the last. */
static int32_t spread(const struct tome_options *o, int32_t n, int32_t keep, int32_t n_step,
                      int32_t *after) {
    for (int32_t b = 0; b < n_step; b++) {
        int32_t todo = n_step - b, reach = keep,
                gone = o ? step_of(o, b, n_step) : (n - keep + todo - 1) / todo;
        for (int32_t k = 1; k < todo && reach < n; k++) reach *= 2;
        if (!o && n - gone > reach) gone = n - reach;
        if (gone > n / 2) gone = n / 2;
        if (gone < 0) gone = 0;
        after[b] = n -= gone;
    }
    return n;
}

/* Steps that change the count; from -1: the one step has no block. */
static int write_stages(struct iwp_stage *out, const int32_t *after, int32_t n_step, int layer,
                        int32_t from) {
    int count = 0;
    for (int32_t b = 0; b < n_step; b++) {
        if (count && after[b] == out[count - 1].n_keep) continue;
        out[count].site = layer ? IWP_SITE_LAYER : IWP_SITE_TOWER;
        out[count].at = from < 0 ? -1 : from + b;
        out[count++].n_keep = after[b];
    }
    return count;
}

static int plan(const struct iwp_params *p, const struct iwp_plan_shape *s, struct iwp_stage *out,
                int cap, iwp_err *err) {
    const struct tome_options *o = IWP_OPTIONS(tome_options, p);
    int layer = o->keys == BY_LAYER;
    int32_t n = iwp_plan_pool(p, s), from = layer && p->layer >= 0 ? p->layer : 0,
            steps = layer ? s->n_layer - from : s->n_block, after[IWP_STAGE_MAX];
    IWP_TRY(iwp_budget_check(&p->budget, n, err));
    IWP_TRY(check_inflection(o, err));
    int known = steps > 0; /* else: one step at the tower's output */
    if (!known) steps = 1;
    if (steps > cap) steps = cap;
    if (steps > IWP_STAGE_MAX) steps = IWP_STAGE_MAX;
    int32_t keep = p->budget.n_keep ? p->budget.n_keep : iwp_keep_count(p->budget.keep, n);
    int average = p->budget.rule == IWP_RULE_LAYER_AVERAGE || p->budget.rule == IWP_RULE_MATCHED;
    IWP_REQUIRE(!average || layer, err, IWP_EINVAL,
                "--budget-rule: method tome with keys=vit does not cut inside the decoder");
    int32_t least = spread(NULL, n, 1, steps, after);
    if (average && !p->budget.n_keep) {
        /* PACT's comparison: shares that fall linearly to the last layer, their mean the budget
         * (methods-encoder 4.5); one more per layer than the formula, as there. */
        double l = steps, lowest = 1 - (2 * l + 1) / (3 * l),
               f = (p->budget.keep * s->n_layer - from) / l,
               r0 = 6 * l * (1 - f) / ((l + 1) * (2 * l + 1)) * n;
        IWP_REQUIRE(f >= lowest, err, IWP_EINVAL,
                    "--keep %g: averaged over layers, tome from layer %d on reaches %.4g to 1",
                    p->budget.keep, from, (from + l * lowest) / s->n_layer);
        int32_t left = n;
        for (int32_t b = 0; b < steps; b++) {
            int32_t r = f < 1 ? (int32_t)(r0 * (steps - b) / l) + 1 : 0;
            after[b] = left -= r < left / 2 ? r : left / 2;
        }
        return write_stages(out, after, steps, layer, from);
    }
    IWP_REQUIRE(o->r >= 0 || keep >= least, err, IWP_EINVAL,
                "%s: method tome reaches %d to %d of %d tokens in %d step%s, not %d",
                iwp_budget_flag(&p->budget), least, n, n, steps, steps == 1 ? "" : "s", keep);
    spread(o->r >= 0 ? o : NULL, n, keep, steps, after);
    return write_stages(out, after, steps, layer, known ? from : -1);
}

const struct iwp_method iwp_method_tome = {
    .info = {.name = "tome",
             .title = "bipartite token merging",
             .ref = "Token Merging (Bolya et al. 2023), code facebookresearch/ToMe",
             .site = IWP_SITE_TOWER,
             .flags = IWP_METHOD_READS_ENCODER | IWP_METHOD_MERGES | IWP_METHOD_CHANGES_ENCODER,
             .options = options,
             .positions = "a group takes the position of its odd member",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = -1,
             .models = "Qwen2.5-VL: the four rows of a merger cell are merged as one; "
                       "LLaVA-OneVision: groups whose place is padding sit at their first token"},
    .plan = plan,
    .needs = needs,
    .check = check,
    .select = select_tome,
};
