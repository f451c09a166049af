/* CDPruner: greedy maximum of det(K_S), K_ij = r_i cos(x_i, x_j) r_j, r the relevance of a token to
 * the text (methods-diversity 4), by incremental Cholesky.
 *
 * Memory: 4 N² bytes of cosines and 4 N M of Cholesky rows, as in the definition.  The rows live in
 * panels of 32 tokens, so one step is one pass of the panel kernel. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/cosine.h"
#include "prune/encoder_rows.h"
#include "prune/methods.h"

enum { STRETCH = 256 };
enum { BY_EMBEDS, BY_JOINT };

struct cdpruner_options {
    int32_t relevance, text, sign;
};

static const char *const relevances[] = {"embeds", "joint", NULL};
static const char *const texts[] = {"user", "all", NULL};
static const char *const signs[] = {"plus", "minus", NULL};

static const struct iwp_option options[] = {
    {.name = "relevance",
     .type = IWP_OPTION_ENUM,
     .offset = offsetof(struct cdpruner_options, relevance),
     .choices = relevances,
     .text =
         "text vector: mean decoder input row of the text, or text_embeds in the encoder's space"},
    {.name = "text",
     .type = IWP_OPTION_ENUM,
     .offset = offsetof(struct cdpruner_options, text),
     .choices = texts,
     .text = "relevance=embeds: the user's words (code 3), or all text (codes 0 and 3)"},
    {.name = "sign",
     .type = IWP_OPTION_ENUM,
     .offset = offsetof(struct cdpruner_options, sign),
     .choices = signs,
     .text = "minus: the authors' rule for CLIP, less aligned tokens are worth more"},
    {.name = NULL},
};

static int needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)stage;
    const struct cdpruner_options *o = IWP_OPTIONS(cdpruner_options, p);
    int joint = o->relevance == BY_JOINT,
        n = iwp_need_add(out, 0, cap, IWP_TENSOR_EMBEDS, joint ? IWP_ROWS_VISUAL : IWP_ROWS_ALL, 0);
    if (!joint) return n;
    n = iwp_need_add(out, n, cap, IWP_TENSOR_VIT_FEATURES, IWP_ROWS_ALL, 0);
    return iwp_need_add(out, n, cap, IWP_TENSOR_TEXT_EMBEDS, IWP_ROWS_ALL, 0);
}

static int is_text(const struct iwp_view *v, const struct cdpruner_options *o, int32_t i) {
    uint8_t c = v->in->code[i];
    return c == IWP_CODE_USER || (o->text && c == IWP_CODE_TEXT);
}

static int check(const struct iwp_view *v, iwp_err *err) {
    const struct cdpruner_options *o = IWP_OPTIONS(cdpruner_options, v->params);
    struct iwp_source s = {.array = &v->in->arr[IWP_TENSOR_EMBEDS]};
    IWP_TRY(iwp_source_check(&s, IWP_TENSOR_EMBEDS, err));
    if (o->relevance == BY_JOINT) {
        s.array = &v->in->arr[IWP_TENSOR_VIT_FEATURES];
        IWP_TRY(iwp_source_check(&s, IWP_TENSOR_VIT_FEATURES, err));
        return iwp_encoder_check(v, 0, 1, 1, err);
    }
    for (int32_t i = 0; i < v->n; i++)
        if (is_text(v, o, i)) return 0;
    return iwp_err_set(
        err, IWP_EINVAL, "text=%s: the prompt has no such token, tensor visual holds no code 3%s",
        o->text ? "all" : "user", o->text ? " or 0" : " (text=all takes code 0 too)");
}

/* ---- relevance ---------------------------------------------------------------------------------- */

struct relevance_job {
    const struct iwp_view *v;
    struct iwp_source s, text; /* rows of the tokens; text vectors */
    int32_t n_text;
    const float *mean; /* the one text vector, else NULL */
    double *u;
};

static double cosine(const float *x, const float *y, double yy, int32_t d) {
    double xx = iwp_row_norm2(x, d);
    if (!(xx > 0 && yy > 0)) return 0;
    double c = iwp_row_dot(x, y, d) / (sqrt(xx) * sqrt(yy));
    return c > 1 - 1e-6 ? 1 : c < -1 ? -1 : c;
}

static void relevance_rows(void *arg, int32_t task) {
    struct relevance_job *j = arg;
    int32_t d = iwp_source_width(&j->s), n = j->v->n_pool,
            i1 = (task + 1) * 64 < n ? (task + 1) * 64 : n;
    float tmp[IWP_ROW_WIDE], ttmp[IWP_ROW_WIDE];
    for (int32_t i = task * 64; i < i1; i++) {
        const float *x = iwp_source_row(&j->s, i, tmp);
        double sum = 0;
        for (int32_t t = 0; t < j->n_text; t++) {
            const float *y = j->mean ? j->mean : iwp_source_row(&j->text, t, ttmp);
            sum += cosine(x, y, iwp_row_norm2(y, d), d);
        }
        j->u[i] = sum / j->n_text;
    }
}

static void mean_text(const struct iwp_view *v, const struct cdpruner_options *o, double *sum,
                      float *mean) {
    const struct iwp_array *e = &v->in->arr[IWP_TENSOR_EMBEDS];
    float tmp[IWP_ROW_WIDE];
    int32_t count = 0;
    memset(sum, 0, sizeof(double) * (size_t)e->n_dim);
    for (int32_t i = 0; i < v->n; i++) {
        if (!is_text(v, o, i)) continue;
        const float *x = iwp_array_row(e, i, 0, tmp);
        for (int32_t t = 0; t < e->n_dim; t++) sum[t] += (double)x[t];
        count++;
    }
    for (int32_t t = 0; t < e->n_dim; t++) mean[t] = (float)(sum[t] / count);
}

/* u becomes r in place: (u - min + 1e-6) / (max - min), 1 when all are alike. */
static void rescale(double *u, int32_t n, int minus) {
    double lo = INFINITY, hi = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (minus) u[i] = -u[i];
        lo = u[i] < lo ? u[i] : lo;
        hi = u[i] > hi ? u[i] : hi;
    }
    for (int32_t i = 0; i < n; i++) u[i] = hi - lo >= 1e-6 ? (u[i] - lo + 1e-6) / (hi - lo) : 1;
}

/* ---- greedy Cholesky ---------------------------------------------------------------------------- */

struct step_job {
    const float *gram; /* row of the pick */
    const double *r;
    float *rows;         /* [panel][cap][32] */
    const float *column; /* [done] the pick's own entries */
    double *left;        /* what is left of K_ii */
    double rj, inv;      /* the pick's r, 1 / sqrt(its left) */
    int32_t n, done, cap;
};

static void step_panel(void *arg, int32_t p) {
    struct step_job *j = arg;
    const struct iwp_kern *kern = iwp_kern_get();
    float *rows = j->rows + (size_t)p * (size_t)j->cap * IWP_PANEL, tile[IWP_PANEL];
    double sum[IWP_PANEL] = {0};
    for (int32_t t = 0; t < j->done; t += STRETCH) {
        kern->panel_dots(tile, rows + (size_t)t * IWP_PANEL, j->column + t, 1,
                         j->done - t < STRETCH ? j->done - t : STRETCH);
        for (int i = 0; i < IWP_PANEL; i++) sum[i] += (double)tile[i];
    }
    float *e = rows + (size_t)j->done * IWP_PANEL;
    for (int32_t i = 0; i < IWP_PANEL; i++) {
        int32_t k = p * IWP_PANEL + i;
        e[i] = 0;
        if (k >= j->n) continue;
        e[i] = (float)((j->rj * (double)j->gram[k] * j->r[k] - sum[i]) * j->inv);
        j->left[k] -= (double)e[i] * (double)e[i];
    }
}

static int select_cdpruner(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    const struct cdpruner_options *o = IWP_OPTIONS(cdpruner_options, v->params);
    int joint = o->relevance == BY_JOINT;
    struct iwp_source s = {.array = &v->in->arr[IWP_TENSOR_EMBEDS], .row = v->pool};
    struct iwp_encoder enc;
    struct iwp_units x;
    int32_t n_max = v->n_pool, m_max = v->n_keep, d = iwp_source_width(&s);
    if (joint) iwp_encoder_layout(&enc, v, 0, 1, 0, a);
    double *r = IWP_TAKE(a, double, n_max), *left = IWP_TAKE(a, double, n_max),
           *least = IWP_TAKE(a, double, n_max), *sum = IWP_TAKE(a, double, d);
    float *mean = IWP_TAKE(a, float, d), *column = IWP_TAKE(a, float, m_max);
    int32_t *idx = IWP_TAKE(a, int32_t, n_max);
    iwp_units_layout(&x, n_max, d, a);
    float *gram = iwp_gram_take(a, n_max),
          *rows = IWP_TAKE(a, float, iwp_gram_stride(n_max) * (size_t)m_max);
    if (iwp_arena_counting(a)) return 0;

    struct relevance_job rel = {.v = v, .s = s, .n_text = 1, .mean = mean, .u = r};
    if (joint) {
        IWP_TRY(iwp_encoder_map(&enc, err));
        rel.s.array = &v->in->arr[IWP_TENSOR_VIT_FEATURES];
        rel.s.row = enc.row;
        rel.text.array = &v->in->arr[IWP_TENSOR_TEXT_EMBEDS];
        rel.n_text = rel.text.array->n_row;
        rel.mean = NULL;
    } else {
        mean_text(v, o, sum, mean);
    }
    iwp_parallel(v->exec, relevance_rows, &rel, (v->n_pool + 63) / 64);
    rescale(r, v->n_pool, o->sign);
    for (int32_t i = 0; i < v->n_pool; i++) v->scores[i] = (float)r[i];
    v->has_scores = 1;

    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first, m = v->unit_keep[u];
        size_t ld = iwp_gram_stride(n);
        const double *ru = r + first;
        uint8_t *chosen = v->chosen + first;
        iwp_units_pack(&x, v->exec, &s, NULL, first, n);
        iwp_units_gram(&x, v->exec, gram);
        for (int32_t i = 0; i < n; i++) {
            left[i] = ru[i] * (double)gram[(size_t)i * ld + (size_t)i] * ru[i];
            least[i] = 1e-5 * left[i]; /* at or below: exhausted */
        }
        struct step_job j = {
            .r = ru, .rows = rows, .column = column, .left = left, .n = n, .cap = m};
        for (j.done = 0; j.done < m; j.done++) {
            int32_t pick = -1;
            for (int32_t i = 0; i < n; i++)
                if (!chosen[i] && left[i] > least[i] && (pick < 0 || left[i] > left[pick]))
                    pick = i;
            if (pick < 0) break;
            chosen[pick] = 1;
            j.gram = gram + (size_t)pick * ld;
            j.rj = ru[pick];
            j.inv = 1 / sqrt(left[pick]);
            const float *own =
                rows + (size_t)(pick / IWP_PANEL) * (size_t)m * IWP_PANEL + pick % IWP_PANEL;
            for (int32_t t = 0; t < j.done; t++) column[t] = own[(size_t)t * IWP_PANEL];
            int32_t n_panel = (n + IWP_PANEL - 1) / IWP_PANEL;
            iwp_parallel((int64_t)n * j.done > 65536 ? v->exec : NULL, step_panel, &j, n_panel);
        }
        if (j.done == m) continue;
        /* Everything left lies in the span of the chosen: fill up by relevance. */
        int32_t free = 0;
        for (int32_t i = 0; i < n; i++)
            if (!chosen[i]) idx[free++] = i;
        iwp_top_k(ru, idx, free, m - j.done);
        for (int32_t i = 0; i < m - j.done; i++) chosen[idx[i]] = 1;
    }
    return 0;
}

const struct iwp_method iwp_method_cdpruner = {
    .info = {.name = "cdpruner",
             .title = "determinantal diversity, conditioned on the question",
             .ref = "CDPruner (Zhang et al. 2025), code Theia-4869/CDPruner",
             .site = IWP_SITE_EMBEDDINGS,
             .flags = IWP_METHOD_READS_ENCODER | IWP_METHOD_RENUMBERS,
             .options = options,
             .positions = "compact on LLaVA, original on M-RoPE models",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = -1,
             .models = "relevance=joint needs text_embeds of a paired text tower, which no "
                       "supported model file has"},
    .needs = needs,
    .check = check,
    .select = select_cdpruner,
};
