/* IWP: token pruning as implicit weight pruning.  Attention's dual form makes every visual token a
 * rank-1 update of an implicit weight; a token is worth its information magnitude less what the kept
 * ones already carry of it.  Options and defaults: spec/iwp.md 3-5. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "prune/iwp_parts.h"
#include "prune/methods.h"

#define AT(field) offsetof(struct iwp_iwp_options, field)
#define CHOICE(n, field, text_, ...)                                                               \
    {                                                                                              \
        .name = n, .type = IWP_OPTION_ENUM, .offset = AT(field), .text = text_,                    \
        .choices = (const char *const[]) {                                                         \
            __VA_ARGS__, NULL                                                                      \
        }                                                                                          \
    }

static const struct iwp_option options[] = {
    CHOICE("magnitude", magnitude, "information magnitude of a token", "kv", "k", "vnorm", "knorm",
           "phik", "dw", "centered", "deletion", "kv_deletion"),
    CHOICE("query", query, "tokens whose mean query asks", "text-after", "text-all", "text-user",
           "image", "last"),
    {.name = "magnitude-rope",
     .type = IWP_OPTION_BOOL,
     .offset = AT(magnitude_rope),
     .max = 1,
     .text = "magnitude from q and k after RoPE"},
    CHOICE("head-norm", head_norm, "what each head's exponentials are divided by", "softmax-all",
           "softmax", "max", "raw"),
    CHOICE("scale", scale, "scaling of the magnitudes", "max", "minmax", "none"),
    CHOICE("duplication", duplication, "similarity of two tokens", "dw", "rbf", "cos_k", "cos_v",
           "cos_h"),
    {.name = "duplication-rope",
     .type = IWP_OPTION_BOOL,
     .offset = AT(duplication_rope),
     .def = 1,
     .max = 1,
     .text = "duplication from k after RoPE"},
    CHOICE("duplication-heads", duplication_heads, "how heads are joined", "mean-sq", "sq-mean",
           "concat", "joint"),
    CHOICE("duplication-norm", duplication_norm, "how similarities are brought to [0,1]", "none",
           "clip", "affine", "minmax"),
    {.name = "square",
     .type = IWP_OPTION_INT,
     .offset = AT(square),
     .def = -1,
     .min = -1,
     .max = 1,
     .def_text = "1 for dw, else 0",
     .text = "square the similarity; -1: 1 for dw, else 0"},
    CHOICE("selector", selector, "how the set is picked", "pc-mmr", "topk", "mmr-mult", "mmr-add"),
    {.name = "chunk",
     .type = IWP_OPTION_INT,
     .offset = AT(chunk),
     .def = 2,
     .min = 1,
     .max = 1e6,
     .text = "pc-mmr: tokens in the first chunk"},
    {.name = "growth",
     .type = IWP_OPTION_REAL,
     .offset = AT(growth),
     .def = 2,
     .min = 1,
     .max = 1e6,
     .text = "pc-mmr: growth of the chunks"},
    {.name = "lambda",
     .type = IWP_OPTION_REAL,
     .offset = AT(lambda),
     .def = 5,
     .min = 0,
     .max = 1e6,
     .text = "strength of the penalty"},
    {.name = "floor",
     .type = IWP_OPTION_REAL,
     .offset = AT(floor),
     .def = 0.01,
     .min = 0,
     .min_open = 1,
     .max = 1,
     .text = "smallest factor of a penalty"},
    CHOICE("penalty", penalty, "which selected tokens count each round", "new", "all", "all-fresh"),
    {.name = "gamma",
     .type = IWP_OPTION_REAL,
     .offset = AT(gamma),
     .def = 0.5,
     .min = 0,
     .max = 1e6,
     .text = "mmr-add: weight of the duplication"},
    {.name = NULL},
};

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)stage;
    const struct iwp_iwp_options *o = IWP_OPTIONS(iwp_iwp_options, p);
    return iwp_dup_needs(o, out, iwp_magnitude_needs(o, out, 0, cap), cap);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    const struct iwp_iwp_options *o = IWP_OPTIONS(iwp_iwp_options, v->params);
    IWP_REQUIRE(o->duplication_heads != DUP_JOINT || o->duplication == DUP_DW, err, IWP_EINVAL,
                "option duplication-heads=joint of method iwp goes with duplication=dw only");
    for (int t = IWP_TENSOR_Q; t <= IWP_TENSOR_K_ROPE; t++)
        IWP_REQUIRE(!v->in->arr[t].data || v->in->arr[t].n_dim <= 1024, err, IWP_ENOTSUP,
                    "tensor %s: heads wider than 1024", iwp_tensor_name((enum iwp_tensor)t));
    return 0;
}

/* Magnitudes of the visual tokens become scores of the pool: what is printed, and what selects. */
static void scale_scores(struct iwp_view *v, const struct iwp_iwp_options *o, const double *log_all,
                         double *log_p) {
    double top = -INFINITY, low = INFINITY;
    for (int32_t i = 0; i < v->n_pool; i++) {
        log_p[i] = log_all[v->rel[i]];
        if (log_p[i] > top) top = log_p[i];
        if (log_p[i] < low) low = log_p[i];
    }
    double shift = o->scale == SCALE_NONE || top == -INFINITY ? 0 : top,
           least = iwp_math_exp(low - shift), range = 1 - least;
    for (int32_t i = 0; i < v->n_pool; i++) {
        double x = iwp_math_exp(log_p[i] - shift);
        if (o->scale == SCALE_MINMAX) {
            x = range > 0 && top > -INFINITY ? (x - least) / range : 0;
            log_p[i] = iwp_math_log(x);
        } else {
            log_p[i] = log_p[i] - shift;
        }
        v->scores[i] = (float)(x > 3e38 ? 3e38 : x);
        if (o->selector == SEL_MMR_ADD) /* canonical MMR adds, so it wants P / max P itself */
            log_p[i] =
                o->scale == SCALE_NONE ? (top > -INFINITY ? iwp_math_exp(log_p[i] - top) : 0) : x;
    }
    v->has_scores = 1;
}

static int select_iwp(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    const struct iwp_iwp_options *o = IWP_OPTIONS(iwp_iwp_options, v->params);
    struct iwp_magnitude_plan mag;
    struct iwp_dup dup;
    struct iwp_selector_plan sel;
    int32_t n_max = v->n_pool, m_max = v->n_keep;
    if (!iwp_arena_counting(a))
        for (int32_t u = (n_max = m_max = 0); u < v->n_unit; u++) {
            int32_t n = v->unit_first[u + 1] - v->unit_first[u];
            if (n > n_max) n_max = n;
            if (v->unit_keep[u] > m_max) m_max = v->unit_keep[u];
        }
    iwp_magnitude_layout(&mag, v, a);
    double *log_p = IWP_TAKE(a, double, v->n_pool);
    memset(&dup, 0, sizeof dup);
    if (o->selector != SEL_TOPK) IWP_TRY(iwp_dup_layout(&dup, v, n_max, m_max, a, err));
    iwp_selector_layout(&sel, v, o, &dup, n_max, a);
    if (iwp_arena_counting(a)) return 0;

    IWP_TRY(iwp_magnitude_run(&mag, err));
    scale_scores(v, o, mag.log_p, log_p);
    sel.log_p = log_p;
    for (int32_t u = 0; u < v->n_unit; u++) IWP_TRY(iwp_selector_run(&sel, u, err));
    return 0;
}

const struct iwp_method iwp_method_iwp = {
    .info = {.name = "iwp",
             .title = "implicit weight pruning: magnitude minus duplication",
             .ref = "IWP: Token Pruning as Implicit Weight Pruning in Large Vision Language Models",
             .site = IWP_SITE_LAYER,
             .options = options,
             .positions = "original",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = 4},
    .checks_finite = 1,
    .needs = needs,
    .check = check,
    .select = select_iwp,
};
