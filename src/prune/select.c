/* The driver around every method: checks the input, makes the pool, counts the budget, calls the
 * method, and turns its marks into the caller's ascending list.  Implements CONTRACT "Counts" and
 * methods-pins section 1.  It knows no method by name. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "kern/kern.h"
#include "prune/methods.h"
#include "prune/schedule.h"

#define X(id, name, text) name,
static const char *const tensor_names[] = {IWP_TENSOR_MAP(X)};
#undef X
#define X(id, name, text) text,
static const char *const tensor_texts[] = {IWP_TENSOR_MAP(X)};
#undef X

const char *iwp_tensor_name(enum iwp_tensor t) {
    return (unsigned)t < IWP_TENSOR_COUNT ? tensor_names[t] : "?";
}

const char *iwp_tensor_text(enum iwp_tensor t) {
    return (unsigned)t < IWP_TENSOR_COUNT ? tensor_texts[t] : "?";
}

static int is_visual(uint8_t c) { return c == IWP_CODE_VISUAL || c == IWP_CODE_SEPARATOR; }
static int is_text(uint8_t c) { return c == IWP_CODE_TEXT || c == IWP_CODE_USER; }

uint64_t iwp_keep_hash(const int32_t *keep, int32_t n_keep) {
    uint64_t h = IWP_FNV64_INIT;
    for (int32_t i = 0; i < n_keep; i++) {
        uint32_t u = (uint32_t)keep[i];
        uint8_t b[4] = {(uint8_t)u, (uint8_t)(u >> 8), (uint8_t)(u >> 16), (uint8_t)(u >> 24)};
        h = iwp_fnv64(h, b, 4);
    }
    return h;
}

const char *iwp_cpu_name(void) { return iwp_kern_get()->name; }
int iwp_cpu_check(iwp_err *err) { return iwp_kern_check(err); }

/* ---- shapes ------------------------------------------------------------------------------------ */

static int check_dims(const struct iwp_array *a, enum iwp_tensor t, iwp_err *err) {
    const char *name = iwp_tensor_name(t);
    IWP_REQUIRE(a->n_row > 0 && a->n_head > 0 && a->n_dim > 0, err, IWP_EINVAL,
                "tensor %s is empty", name);
    IWP_REQUIRE((unsigned)a->dtype <= IWP_DTYPE_BF16, err, IWP_EINVAL,
                "tensor %s has an unknown type", name);
    return 0;
}

/* Every given array must agree with the shapes its text states. */
static int check_shapes(const struct iwp_input *in, const struct iwp_need *need, int n_need,
                        iwp_err *err) {
    for (int i = 0; i < n_need; i++) {
        enum iwp_tensor t = need[i].tensor;
        const struct iwp_array *a = &in->arr[t];
        if (!a->data) {
            IWP_REQUIRE(need[i].optional, err, IWP_EMISSING, "tensor %s is missing: %s",
                        iwp_tensor_name(t), iwp_tensor_text(t));
            continue;
        }
        IWP_TRY(check_dims(a, t, err));
    }
    static const uint8_t prompt_rows[] = {
        IWP_TENSOR_Q,           IWP_TENSOR_K,     IWP_TENSOR_V,      IWP_TENSOR_Q_ROPE,
        IWP_TENSOR_K_ROPE,      IWP_TENSOR_H,     IWP_TENSOR_H_PREV, IWP_TENSOR_Q_ROPE_PREV,
        IWP_TENSOR_K_ROPE_PREV, IWP_TENSOR_EMBEDS};
    static const struct {
        uint8_t a, b;
        int heads, dims, multiple;
    } pairs[] = {
        /* a and b: same head count, same width, or a's heads a multiple of b's */
        {IWP_TENSOR_K, IWP_TENSOR_V, 1, 1, 0},
        {IWP_TENSOR_K_ROPE, IWP_TENSOR_V, 1, 1, 0},
        {IWP_TENSOR_K, IWP_TENSOR_K_ROPE, 1, 1, 0},
        {IWP_TENSOR_Q, IWP_TENSOR_K, 0, 1, 1},
        {IWP_TENSOR_Q, IWP_TENSOR_V, 0, 1, 1},
        {IWP_TENSOR_Q_ROPE, IWP_TENSOR_K_ROPE, 0, 1, 1},
        {IWP_TENSOR_Q_ROPE, IWP_TENSOR_V, 0, 1, 1},
        {IWP_TENSOR_Q_ROPE_PREV, IWP_TENSOR_K_ROPE_PREV, 0, 1, 1},
        {IWP_TENSOR_H, IWP_TENSOR_H_PREV, 1, 1, 0},
        {IWP_TENSOR_VIT_Q, IWP_TENSOR_VIT_K, 1, 1, 0},
        {IWP_TENSOR_VIT_FEATURES, IWP_TENSOR_TEXT_EMBEDS, 1, 1, 0},
        {IWP_TENSOR_H, IWP_TENSOR_FINAL_NORM, 0, 1, 0},
    };
    int used[IWP_TENSOR_COUNT] = {0};
    for (int i = 0; i < n_need; i++) used[need[i].tensor] = in->arr[need[i].tensor].data != NULL;
    for (size_t i = 0; i < sizeof prompt_rows; i++) {
        enum iwp_tensor t = (enum iwp_tensor)prompt_rows[i];
        if (used[t])
            IWP_REQUIRE(in->arr[t].n_row == in->n, err, IWP_EINVAL,
                        "tensor %s has %d rows, the prompt has %d tokens", iwp_tensor_name(t),
                        in->arr[t].n_row, in->n);
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        enum iwp_tensor ta = (enum iwp_tensor)pairs[i].a, tb = (enum iwp_tensor)pairs[i].b;
        if (!used[ta] || !used[tb]) continue;
        const struct iwp_array *a = &in->arr[ta], *b = &in->arr[tb];
        if (pairs[i].heads)
            IWP_REQUIRE(a->n_head == b->n_head, err, IWP_EINVAL,
                        "tensors %s and %s have %d and %d heads", iwp_tensor_name(ta),
                        iwp_tensor_name(tb), a->n_head, b->n_head);
        if (pairs[i].multiple)
            IWP_REQUIRE(a->n_head % b->n_head == 0, err, IWP_EINVAL,
                        "tensor %s has %d heads, not a multiple of the %d of %s",
                        iwp_tensor_name(ta), a->n_head, b->n_head, iwp_tensor_name(tb));
        if (pairs[i].dims)
            IWP_REQUIRE(a->n_dim == b->n_dim, err, IWP_EINVAL,
                        "tensors %s and %s are %d and %d wide", iwp_tensor_name(ta),
                        iwp_tensor_name(tb), a->n_dim, b->n_dim);
    }
    return 0;
}

static int row_is_read(const struct iwp_input *in, enum iwp_rows rows, int32_t r, int32_t first) {
    switch (rows) {
    case IWP_ROWS_ALL: return 1;
    case IWP_ROWS_VISUAL: return is_visual(in->code[r]);
    case IWP_ROWS_TEXT: return is_text(in->code[r]);
    case IWP_ROWS_TEXT_AFTER: return is_text(in->code[r]) && r > first;
    case IWP_ROWS_LAST: return r == in->n - 1;
    }
    return 1;
}

int iwp_array_check_finite(const struct iwp_input *in, enum iwp_tensor t, enum iwp_rows rows,
                           int32_t first_visual, iwp_err *err) {
    const struct iwp_array *a = &in->arr[t];
    for (int32_t r = 0; r < a->n_row; r++) {
        if (a->n_row == in->n && !row_is_read(in, rows, r, first_visual)) continue;
        for (int32_t g = 0; g < a->n_head; g++) {
            int64_t at = (int64_t)r * a->row_stride + (int64_t)g * a->head_stride;
            uint32_t bad = 0; /* all exponent bits set = Inf or NaN, in any of the three types */
            if (a->dtype == IWP_DTYPE_F32) {
                const uint32_t *p = (const uint32_t *)a->data + at;
                for (int32_t i = 0; i < a->n_dim; i++) bad |= (p[i] & 0x7f800000u) == 0x7f800000u;
            } else {
                const uint16_t *p = (const uint16_t *)a->data + at;
                uint32_t m = a->dtype == IWP_DTYPE_F16 ? 0x7c00 : 0x7f80;
                for (int32_t i = 0; i < a->n_dim; i++) bad |= (p[i] & m) == m;
            }
            if (bad)
                return iwp_err_set_at(err, IWP_EINVAL, r, "tensor %s has a NaN or Inf in row %d",
                                      iwp_tensor_name(t), r);
        }
    }
    return 0;
}

/* ---- the pool ------------------------------------------------------------------------------------ */

/* Whether this method reads encoder rows with these options: separators have none. */
static int reads_encoder(const struct iwp_params *p) {
    struct iwp_need need[IWP_TENSOR_COUNT];
    if (!(p->method->info.flags & IWP_METHOD_READS_ENCODER)) return 0;
    int n = iwp_params_needs(p, 0, need, IWP_TENSOR_COUNT);
    for (int i = 0; i < n; i++)
        if (need[i].tensor == IWP_TENSOR_VIT_FEATURES || need[i].tensor == IWP_TENSOR_VIT_Q ||
            need[i].tensor == IWP_TENSOR_VIT_K)
            return 1;
    return 0;
}

static int separators_exempt(const struct iwp_params *p) {
    const struct iwp_method *m = p->method;
    if (reads_encoder(p)) return 1;
    if (p->budget.keep_separators >= 0) return p->budget.keep_separators != 0;
    return m->separators_of ? m->separators_of(p) : m->separators;
}

/* Rounds half to even, like Python and IEEE. */
static double half_even(double x) {
    double f = floor(x), r = x - f;
    if (r > 0.5 || (r == 0.5 && fmod(f, 2) != 0)) f += 1;
    return f;
}

int32_t iwp_keep_count(double keep, int32_t n) {
    double m = half_even(keep * n);
    if (m < 1) m = 1;
    return m > n ? n : (int32_t)m;
}

static int64_t sum_counts(double keep, const int32_t *n, int32_t k) {
    int64_t sum = 0;
    for (int32_t i = 0; i < k; i++) sum += iwp_keep_count(keep, n[i]);
    return sum;
}

void iwp_keep_share(int32_t m, const int32_t *n, int32_t k, int32_t *keep) {
    double lo = 0, hi = 1;
    for (int i = 0; i < 64; i++) { /* until lo and hi are neighbours */
        const double r = (lo + hi) / 2;
        *(sum_counts(r, n, k) < m ? &lo : &hi) = r;
    }
    int64_t left = m - sum_counts(lo, n, k);
    for (int32_t i = 0; i < k; i++) {
        keep[i] = iwp_keep_count(lo, n[i]);
        const int more = left > 0 && iwp_keep_count(hi, n[i]) > keep[i];
        keep[i] += more;
        left -= more;
    }
}

int iwp_budget_check(const struct iwp_budget *b, int32_t n, iwp_err *err) {
    if (b->n_keep != 0)
        IWP_REQUIRE(b->n_keep >= 1 && b->n_keep <= n, err, IWP_EINVAL,
                    "--keep-tokens %d: there are %d visual tokens to choose from, give 1 to %d",
                    b->n_keep, n, n);
    else
        IWP_REQUIRE(b->keep > 0 && b->keep <= 1, err, IWP_EINVAL,
                    "--keep %g: the fraction kept must be above 0 and at most 1", b->keep);
    return 0;
}

/* Fills the view.  While counting, only the numbers; else the arrays too. */
static int make_view(struct iwp_view *v, const struct iwp_params *p, const struct iwp_input *in,
                     const struct iwp_exec *exec, struct iwp_arena *a, iwp_err *err) {
    memset(v, 0, sizeof *v);
    IWP_REQUIRE(p->method && in->n > 0 && in->code, err, IWP_EINVAL,
                "no method, or an empty prompt");
    v->params = p;
    v->in = in;
    v->exec = exec;
    v->n_thread = exec && exec->run && exec->n_thread > 1 ? exec->n_thread : 1;
    v->n = in->n;
    v->first_visual = v->last_visual = -1;
    int exempt = separators_exempt(p);
    for (int32_t i = 0; i < in->n; i++) {
        uint8_t c = in->code[i];
        if (c > IWP_CODE_USER)
            return iwp_err_set_at(err, IWP_EINVAL, i,
                                  "tensor visual has code %d at token %d, known are 0 to 3", c, i);
        if (!is_visual(c)) continue;
        if (v->first_visual < 0) v->first_visual = i;
        v->last_visual = i;
        v->n_visual++;
        v->n_pool += c == IWP_CODE_VISUAL || !exempt;
    }
    IWP_REQUIRE(v->n_visual > 0, err, IWP_EINVAL, "tensor visual marks no visual token");
    IWP_REQUIRE(v->n_pool > 0, err, IWP_EINVAL, "there is no visual token beside the separators");
    int scoped = p->budget.scope != IWP_SCOPE_GLOBAL && in->unit;
    int32_t n_id = 1;
    if (in->unit)
        for (int32_t i = 0; i < v->n_visual; i++) {
            if (in->unit[i] < 0 || in->unit[i] >= v->n_visual)
                return iwp_err_set_at(err, IWP_EINVAL, i,
                                      "tensor unit has %d at visual token %d, allowed 0 to %d",
                                      in->unit[i], i, v->n_visual - 1);
            if (scoped && in->unit[i] >= n_id) n_id = in->unit[i] + 1;
        }
    v->as_published = p->budget.rule == IWP_RULE_AS_PUBLISHED;
    IWP_TRY(iwp_budget_check(&p->budget, v->n_pool, err));

    v->visual = IWP_TAKE(a, int32_t, v->n_visual);
    v->pool = IWP_TAKE(a, int32_t, v->n_pool);
    v->rel = IWP_TAKE(a, int32_t, v->n_pool);
    v->unit_first = IWP_TAKE(a, int32_t, n_id + 1);
    v->unit_keep = IWP_TAKE(a, int32_t, n_id);
    int32_t *count = IWP_TAKE(a, int32_t, n_id + 1);
    v->chosen = IWP_TAKE(a, uint8_t, v->n_pool);
    v->scores = IWP_TAKE(a, float, v->n_pool);
    v->merge = IWP_TAKE(a, struct iwp_merge, 2 * (size_t)v->n_pool);
    v->sizes = IWP_TAKE(a, int32_t, v->n_pool);
    v->n_unit = 1;
    v->n_keep = p->budget.n_keep ? p->budget.n_keep : iwp_keep_count(p->budget.keep, v->n_pool);
    if (iwp_arena_counting(a)) {
        /* Per-unit counts may add up to more than the global one, by rounding up to at least 1 each. */
        if (scoped) v->n_unit = n_id, v->n_keep = v->n_pool;
        return 0;
    }

    memset(count, 0, sizeof(int32_t) * ((size_t)n_id + 1));
    int32_t nv = 0;
    for (int32_t i = 0; i < in->n; i++) {
        if (!is_visual(in->code[i])) continue;
        v->visual[nv] = i;
        if (in->code[i] == IWP_CODE_VISUAL || !exempt) count[(scoped ? in->unit[nv] : 0) + 1]++;
        nv++;
    }
    for (int32_t u = 0; u < n_id; u++) count[u + 1] += count[u];
    v->n_unit = 0;
    for (int32_t u = 0; u < n_id; u++)
        if (count[u + 1] > count[u]) v->unit_first[v->n_unit++] = count[u];
    v->unit_first[v->n_unit] = v->n_pool;
    for (int32_t i = 0; i < v->n_visual; i++) {
        if (in->code[v->visual[i]] != IWP_CODE_VISUAL && exempt) continue;
        int32_t at = count[scoped ? in->unit[i] : 0]++;
        v->pool[at] = v->visual[i];
        v->rel[at] = i;
    }
    v->unit_keep[0] = v->n_keep;
    if (scoped) {
        int32_t *size = count; /* done with */
        for (int32_t u = 0; u < v->n_unit; u++) size[u] = v->unit_first[u + 1] - v->unit_first[u];
        if (p->budget.n_keep) {
            IWP_REQUIRE(p->budget.n_keep >= v->n_unit, err, IWP_EINVAL,
                        "--keep-tokens %d: each of the %d units of --budget-scope keeps at least 1",
                        p->budget.n_keep, v->n_unit);
            iwp_keep_share(p->budget.n_keep, size, v->n_unit, v->unit_keep);
        } else {
            v->n_keep = 0;
            for (int32_t u = 0; u < v->n_unit; u++)
                v->n_keep += v->unit_keep[u] = iwp_keep_count(p->budget.keep, size[u]);
        }
    }
    memset(v->chosen, 0, (size_t)v->n_pool);
    for (int32_t i = 0; i < v->n_pool; i++) v->sizes[i] = 1;
    return 0;
}

static int run(const struct iwp_params *p, const struct iwp_input *in, void *state,
               const struct iwp_exec *exec, struct iwp_view *v, struct iwp_arena *a, iwp_err *err) {
    struct iwp_need need[IWP_TENSOR_COUNT];
    IWP_TRY(make_view(v, p, in, exec, a, err));
    if ((p->method->info.flags & IWP_METHOD_ENGINE_ONLY) && !in->project)
        return iwp_err_set(
            err, IWP_EMISSING, "method %s is engine-only: %s missing, arrays are not enough",
            p->method->info.name,
            p->method->info.site == IWP_SITE_MEDIA ? "the picture, which it makes smaller, is"
                                                   : "the projector of a loaded model is");
    int n = iwp_params_needs(p, in->stage, need, IWP_TENSOR_COUNT);
    IWP_TRY(check_shapes(in, need, n, err));
    if (p->method->check) IWP_TRY(p->method->check(v, err));
    if (!iwp_arena_counting(a) && !p->method->checks_finite)
        for (int i = 0; i < n; i++)
            if (in->arr[need[i].tensor].data)
                IWP_TRY(
                    iwp_array_check_finite(in, need[i].tensor, need[i].rows, v->first_visual, err));
    return p->method->select(v, a, state, err);
}

int64_t iwp_select_workspace(const struct iwp_params *p, const struct iwp_input *in,
                             const struct iwp_exec *exec, iwp_err *err) {
    struct iwp_view v;
    struct iwp_arena a = {NULL, 0, 0};
    IWP_TRY(run(p, in, NULL, exec, &v, &a, err));
    IWP_REQUIRE(a.used < SIZE_MAX / 8, err, IWP_ENOMEM, "the selection would need too much memory");
    return (int64_t)a.used + 64;
}

int64_t iwp_select_state(const struct iwp_params *p, const struct iwp_input *in) {
    return p->method->state ? p->method->state(p, in) : 0;
}

int iwp_select(const struct iwp_params *p, const struct iwp_input *in, void *state, void *workspace,
               size_t workspace_bytes, const struct iwp_exec *exec, struct iwp_selection *out,
               iwp_err *err) {
    IWP_REQUIRE(workspace && out && out->keep, err, IWP_EINVAL,
                "iwp_select: no workspace or no keep array");
    size_t skip = (64 - (uintptr_t)workspace % 64) % 64;
    IWP_REQUIRE(workspace_bytes > skip, err, IWP_EINVAL, "iwp_select: workspace of %zu bytes",
                workspace_bytes);
    struct iwp_arena count = {NULL, 0, 0},
                     a = {(char *)workspace + skip, 0, workspace_bytes - skip};
    struct iwp_view v;
    IWP_TRY(run(p, in, NULL, exec, &v, &count, err));
    IWP_REQUIRE(count.used <= a.cap, err, IWP_EINVAL,
                "iwp_select: workspace of %zu bytes, %zu are needed", workspace_bytes,
                count.used + 64);
    IWP_TRY(run(p, in, state, exec, &v, &a, err));

    /* Pool marks and exempt separators become one ascending list: walk the visual tokens in order. */
    int32_t *at = v.visual; /* reused: pool index of each visual token, -1 = exempt */
    for (int32_t i = 0; i < v.n_visual; i++) at[i] = -1;
    for (int32_t i = 0; i < v.n_pool; i++) at[v.rel[i]] = i;
    int zero = (p->method->info.flags & IWP_METHOD_MAY_KEEP_ZERO) != 0;
    out->n_keep = 0;
    for (int32_t i = 0; i < v.n_visual; i++) {
        int32_t j = at[i];
        if (j < 0 ? zero : !v.chosen[j])
            continue; /* a method that withdraws all takes separators too */
        if (out->sizes) out->sizes[out->n_keep] = j < 0 ? 1 : v.sizes[j];
        out->keep[out->n_keep++] = i;
    }
    out->has_scores = v.has_scores;
    if (out->scores)
        for (int32_t i = 0; i < v.n_visual; i++)
            out->scores[i] = v.has_scores && at[i] >= 0 ? v.scores[at[i]] : 0;
    out->has_sizes = v.has_sizes;
    out->n_merge = out->merge ? v.n_merge : 0;
    for (int32_t i = 0; i < out->n_merge; i++) {
        out->merge[i].from = v.rel[v.merge[i].from];
        out->merge[i].to = v.rel[v.merge[i].to];
        out->merge[i].weight = v.merge[i].weight;
    }
    return 0;
}

/* ---- plans -------------------------------------------------------------------------------------- */

int iwp_plan(const struct iwp_params *p, const struct iwp_plan_shape *s, struct iwp_stage *out,
             int cap, iwp_err *err) {
    IWP_REQUIRE(p->method && cap > 0, err, IWP_EINVAL, "iwp_plan: no method or no room");
    const struct iwp_method_info *m = &p->method->info;
    if (m->site == IWP_SITE_LAYER && p->layer >= 0)
        IWP_REQUIRE(p->layer < s->n_layer, err, IWP_EINVAL,
                    "--prune-layer %d: the decoder has layers 0 to %d", p->layer, s->n_layer - 1);
    if (p->method->plan) return p->method->plan(p, s, out, cap, err);
    return iwp_schedule_one(p, s, p->layer >= 0 ? p->layer : m->layer, out, err);
}

int32_t iwp_plan_pool(const struct iwp_params *p, const struct iwp_plan_shape *s) {
    return s->n_visual - (separators_exempt(p) ? s->n_separator : 0);
}
