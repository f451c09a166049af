/* Encoder rows and their attention; see encoder_rows.h. */
#include "prune/encoder_rows.h"

#include <math.h>
#include <string.h>

#include "kern/kern.h"

const char *const iwp_encoder_merges[] = {"1", "4", NULL};
const char *const iwp_encoder_features[] = {"auto", "vit", "embeds", NULL};

enum iwp_tensor iwp_encoder_compares(const struct iwp_encoder_options *o) {
    int vit = o->features == IWP_FEATURES_VIT || (o->features == IWP_FEATURES_AUTO && !o->merge);
    return vit ? IWP_TENSOR_VIT_FEATURES : IWP_TENSOR_EMBEDS;
}

int iwp_encoder_needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    (void)stage;
    enum iwp_tensor t = iwp_encoder_compares(IWP_OPTIONS(iwp_encoder_options, p));
    int n = iwp_need_add(out, 0, cap, IWP_TENSOR_VIT_Q, IWP_ROWS_ALL, 0);
    n = iwp_need_add(out, n, cap, IWP_TENSOR_VIT_K, IWP_ROWS_ALL, 0);
    return iwp_need_add(out, n, cap, t, t == IWP_TENSOR_EMBEDS ? IWP_ROWS_VISUAL : IWP_ROWS_ALL, 0);
}

int iwp_encoder_check_options(const struct iwp_view *v, iwp_err *err) {
    const struct iwp_encoder_options *o = IWP_OPTIONS(iwp_encoder_options, v->params);
    enum iwp_tensor t = iwp_encoder_compares(o);
    struct iwp_source s = {.array = &v->in->arr[t]};
    IWP_TRY(iwp_source_check(&s, t, err));
    return iwp_encoder_check(v, o->cls, iwp_encoder_merge(o->merge), t == IWP_TENSOR_VIT_FEATURES,
                             err);
}

struct iwp_source iwp_encoder_source(const struct iwp_encoder *e,
                                     const struct iwp_encoder_options *o, int32_t *row) {
    enum iwp_tensor t = iwp_encoder_compares(o);
    int vit = t == IWP_TENSOR_VIT_FEATURES;
    return (struct iwp_source){.array = &e->v->in->arr[t],
                               .row = vit ? row : e->v->pool,
                               .group = vit ? iwp_encoder_merge(o->merge) : 1};
}

enum { HEAD_WIDE = 1024, STEP = 512 };

int iwp_encoder_check(const struct iwp_view *v, int32_t cls, int32_t merge, int features,
                      iwp_err *err) {
    static const enum iwp_tensor rows[] = {IWP_TENSOR_VIT_Q, IWP_TENSOR_VIT_K};
    int64_t want = (int64_t)v->n_pool * merge + cls;
    IWP_REQUIRE(want <= INT32_MAX / 64, err, IWP_ENOTSUP, "too many encoder rows: %lld",
                (long long)want);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct iwp_array *a = &v->in->arr[rows[i]];
        if (!a->data) continue;
        IWP_REQUIRE(a->n_row == want, err, IWP_EINVAL,
                    "tensor %s has %d rows, %d visual tokens with merge=%d and cls=%d make %lld",
                    iwp_tensor_name(rows[i]), a->n_row, v->n_pool, merge, cls, (long long)want);
        IWP_REQUIRE(a->n_dim <= HEAD_WIDE && a->n_head <= 1024, err, IWP_ENOTSUP,
                    "tensor %s: heads wider than %d, or more than 1024 heads",
                    iwp_tensor_name(rows[i]), HEAD_WIDE);
    }
    const struct iwp_array *f = &v->in->arr[IWP_TENSOR_VIT_FEATURES];
    if (features && f->data)
        IWP_REQUIRE(f->n_row == want || f->n_row == want - cls, err, IWP_EINVAL,
                    "tensor vit_features has %d rows, %d visual tokens with merge=%d and cls=%d "
                    "make %lld",
                    f->n_row, v->n_pool, merge, cls, (long long)want);
    return 0;
}

static size_t padded(int32_t n) { return ((size_t)n + 31) & ~(size_t)31; }

void iwp_encoder_layout(struct iwp_encoder *e, const struct iwp_view *v, int32_t cls, int32_t merge,
                        int attention, struct iwp_arena *a) {
    memset(e, 0, sizeof *e);
    e->v = v;
    e->q = &v->in->arr[IWP_TENSOR_VIT_Q];
    e->k = &v->in->arr[IWP_TENSOR_VIT_K];
    e->cls = cls;
    e->merge = merge;
    e->n_row = v->n_pool * merge + cls;
    e->row = IWP_TAKE(a, int32_t, v->n_pool);
    e->cell = IWP_TAKE(a, int32_t, v->n_pool);
    e->token = IWP_TAKE(a, int32_t, v->n_visual);
    if (!attention) return;
    e->score = IWP_TAKE(a, double, v->n_pool);
    e->order = IWP_TAKE(a, int32_t, e->n_row);
    e->group_at = IWP_TAKE(a, int32_t, v->n_pool);
    e->first = IWP_TAKE(a, int32_t, v->n_visual + 1);
    size_t heads = (size_t)e->k->n_head, rows = padded(e->n_row);
    e->panel = IWP_TAKE(a, float, cls ? 0 : heads *rows *(size_t)e->k->n_dim);
    e->strip = IWP_TAKE(a, float, cls ? 0 : heads *rows *IWP_BLOCK);
    e->col = IWP_TAKE(a, double, heads *(size_t)e->n_row);
}

int iwp_encoder_map(struct iwp_encoder *e, iwp_err *err) {
    const struct iwp_view *v = e->v;
    const int64_t *window = v->in->window;
    int32_t n = v->n_pool;
    for (int32_t i = 0; i < n; i++) e->cell[i] = window ? -1 : i;
    for (int32_t m = 0; window && m < n; m++) {
        if (window[m] < 0 || window[m] >= n || e->cell[window[m]] >= 0)
            return iwp_err_set_at(err, IWP_EINVAL, m,
                                  "tensor window_index has %lld at %d: it must hold 0 to %d once",
                                  (long long)window[m], m, n - 1);
        e->cell[window[m]] = m;
    }
    /* The i-th token of code 1 is raster index i; the pool may be sorted by unit. */
    int32_t raster = 0;
    for (int32_t i = 0; i < v->n_visual; i++)
        e->token[i] = v->in->code[v->visual[i]] == IWP_CODE_VISUAL ? raster++ : -1;
    for (int32_t i = 0; i < n; i++) e->row[i] = e->cls + e->cell[e->token[v->rel[i]]] * e->merge;
    if (!e->order) return 0;

    /* Groups by unit, stable: token becomes raster index -> unit, then each group finds its place. */
    const int32_t *unit = v->in->unit;
    int32_t n_id = unit ? v->n_visual : 1;
    memset(e->first, 0, sizeof(int32_t) * ((size_t)n_id + 1));
    raster = 0;
    for (int32_t i = 0; i < v->n_visual; i++) {
        if (e->token[i] < 0) continue;
        e->token[raster] = unit ? unit[i] : 0;
        e->first[e->token[raster++] + 1] += e->merge;
    }
    for (int32_t u = 0; u < n_id; u++) e->first[u + 1] += e->first[u];
    for (int32_t m = 0; m < n; m++) {
        int32_t at = e->first[e->token[window ? window[m] : m]];
        e->first[e->token[window ? window[m] : m]] += e->merge;
        e->group_at[m] = at;
        for (int32_t g = 0; g < e->merge; g++) e->order[at + g] = e->cls + m * e->merge + g;
    }
    for (int32_t u = n_id; u > 0; u--) e->first[u] = e->first[u - 1]; /* cursors back to starts */
    e->first[0] = 0;
    e->n_unit = n_id;
    return 0;
}

void iwp_encoder_skip_cls(const struct iwp_encoder *e, const struct iwp_array *a, int32_t *row) {
    int32_t off = e->cls && a->n_row < e->n_row ? 1 : 0;
    for (int32_t i = 0; i < e->v->n_pool; i++) row[i] = e->row[i] - off;
}

/* ---- attention from the class row ------------------------------------------------------------------ */

static void class_head(void *arg, int32_t h) {
    struct iwp_encoder *e = arg;
    float qt[HEAD_WIDE], kt[HEAD_WIDE];
    double *p = e->col + (size_t)h * (size_t)e->n_row, top = -INFINITY, sum = 0;
    const float *q = iwp_array_row(e->q, 0, h, qt);
    double scale = 1 / sqrt((double)e->q->n_dim);
    for (int32_t j = 0; j < e->n_row; j++) {
        const float *k = iwp_array_row(e->k, j, h, kt);
        double x = 0;
        for (int32_t t = 0; t < e->k->n_dim; t++) x += (double)q[t] * (double)k[t];
        p[j] = x * scale;
        if (p[j] > top) top = p[j];
    }
    for (int32_t j = 0; j < e->n_row; j++) sum += p[j] = iwp_math_exp(p[j] - top);
    for (int32_t j = 0; j < e->n_row; j++) p[j] /= sum;
}

/* ---- attention received ------------------------------------------------------------------------------ */

/* col[i] += sum over rows of strip[row][i] * inv[row], rows in order. */
static void add_columns(const float *strip, size_t ld, const float *inv, int32_t n_row,
                        int32_t n_key, double *col) {
    if (n_row == IWP_BLOCK) { /* all rows at once: partial sums stay in registers */
        const float *x = strip;
        for (int32_t i = 0; i < n_key; i++) {
            float s = x[i] * inv[0];
            s = s + x[i + ld] * inv[1];
            s = s + x[i + 2 * ld] * inv[2];
            s = s + x[i + 3 * ld] * inv[3];
            s = s + x[i + 4 * ld] * inv[4];
            s = s + x[i + 5 * ld] * inv[5];
            s = s + x[i + 6 * ld] * inv[6];
            s = s + x[i + 7 * ld] * inv[7];
            s = s + x[i + 8 * ld] * inv[8];
            s = s + x[i + 9 * ld] * inv[9];
            s = s + x[i + 10 * ld] * inv[10];
            s = s + x[i + 11 * ld] * inv[11];
            col[i] += (double)s;
        }
        return;
    }
    for (int32_t i = 0; i < n_key; i++) {
        float s = 0;
        for (int32_t r = 0; r < n_row; r++) s = s + strip[(size_t)r * ld + (size_t)i] * inv[r];
        col[i] += (double)s;
    }
}

/* One block of queries against the keys of its unit: logits, softmax, and its share of the columns. */
static void query_block(struct iwp_encoder *e, int32_t h, int32_t n_key, const int32_t *query,
                        int32_t n_query, const float *panel, float *strip, double *col) {
    const struct iwp_kern *kern = iwp_kern_get();
    int32_t d = e->k->n_dim;
    float block[IWP_BLOCK * HEAD_WIDE], tmp[HEAD_WIDE], tile[IWP_BLOCK * IWP_PANEL], inv[IWP_BLOCK];
    float scale = (float)(1 / sqrt((double)d));
    size_t ld = padded(n_key);
    for (int32_t r = 0; r < n_query; r++) {
        const float *q = iwp_array_row(e->q, query[r], h, tmp);
        for (int32_t t = 0; t < d; t++)
            block[(size_t)t * (size_t)n_query + (size_t)r] = q[t] * scale;
    }
    for (int32_t p = 0; p * IWP_PANEL < n_key; p++) {
        kern->panel_dots(tile, panel + (size_t)p * (size_t)d * IWP_PANEL, block, n_query, d);
        for (int32_t r = 0; r < n_query; r++)
            memcpy(strip + (size_t)r * ld + (size_t)p * IWP_PANEL, tile + r * IWP_PANEL,
                   sizeof(float) * IWP_PANEL);
    }
    for (int32_t r = 0; r < n_query; r++) {
        float *x = strip + (size_t)r * ld, top[STEP], m;
        int32_t w = n_key < STEP ? n_key : STEP;
        memcpy(top, x, sizeof(float) * (size_t)w);
        for (int32_t i = w; i < n_key; i += STEP)
            kern->max_row(top, x + i, n_key - i < STEP ? n_key - i : STEP);
        for (; w > 16; w -= w / 2) kern->max_row(top, top + (w - w / 2), w / 2);
        m = top[0];
        for (int32_t i = 1; i < w; i++) m = top[i] > m ? top[i] : m;
        double sum = 0;
        for (int32_t i = 0; i < n_key; i += STEP)
            sum += (double)kern->exp_shift_sum(x + i, m, n_key - i < STEP ? n_key - i : STEP);
        inv[r] = (float)(1 / sum);
    }
    add_columns(strip, ld, inv, n_query, n_key, col);
}

/* Keys of up to 32 rows as lanes, the missing ones 0. */
static void pack_keys(const struct iwp_encoder *e, int32_t h, const int32_t *rows, int32_t n,
                      float *lanes) {
    int32_t d = e->k->n_dim;
    float tmp[HEAD_WIDE];
    if (n >= IWP_PANEL && e->k->dtype == IWP_DTYPE_F32 &&
        rows[IWP_PANEL - 1] - rows[0] == IWP_PANEL - 1) { /* order ascends inside a unit */
        iwp_kern_get()->to_lanes(lanes, iwp_array_row(e->k, rows[0], h, tmp), e->k->row_stride, d);
        return;
    }
    for (int32_t i = 0; i < IWP_PANEL; i++) {
        const float *k = i < n ? iwp_array_row(e->k, rows[i], h, tmp) : NULL;
        for (int32_t t = 0; t < d; t++) lanes[(size_t)t * IWP_PANEL + (size_t)i] = k ? k[t] : 0;
    }
}

static void received_head(void *arg, int32_t h) {
    struct iwp_encoder *e = arg;
    int32_t d = e->k->n_dim;
    float *panel = e->panel + (size_t)h * padded(e->n_row) * (size_t)d,
          *strip = e->strip + (size_t)h * padded(e->n_row) * IWP_BLOCK;
    double *col = e->col + (size_t)h * (size_t)e->n_row;
    memset(col, 0, sizeof(double) * (size_t)e->n_row);
    for (int32_t u = 0; u < e->n_unit; u++) {
        int32_t i0 = e->first[u], n = e->first[u + 1] - i0;
        const int32_t *rows = e->order + i0;
        if (n == 0) continue;
        for (int32_t p = 0; p * IWP_PANEL < n; p++)
            pack_keys(e, h, rows + p * IWP_PANEL, n - p * IWP_PANEL,
                      panel + (size_t)p * (size_t)d * IWP_PANEL);
        for (int32_t r = 0; r < n; r += IWP_BLOCK)
            query_block(e, h, n, rows + r, n - r < IWP_BLOCK ? n - r : IWP_BLOCK, panel, strip,
                        col + i0);
    }
}

void iwp_encoder_attention(struct iwp_encoder *e) {
    const struct iwp_view *v = e->v;
    int32_t heads = e->k->n_head;
    iwp_parallel(v->exec, e->cls ? class_head : received_head, e, heads);
    double div = (double)heads * (e->cls ? 1 : e->n_row);
    for (int32_t i = 0; i < v->n_pool; i++) {
        int32_t at = e->cls ? e->row[i] : e->group_at[(e->row[i] - e->cls) / e->merge];
        double s = 0;
        for (int32_t g = 0; g < e->merge; g++)
            for (int32_t h = 0; h < heads; h++)
                s += e->col[(size_t)h * (size_t)e->n_row + (size_t)(at + g)];
        e->score[i] = s / div / e->merge;
    }
}
