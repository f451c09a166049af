/* Information duplication D_ij (spec/iwp.md 4), block by block: never an N×N array.
 *
 * cos(ΔW_i, ΔW_j) = cos(v_i, v_j) · exp(-|k_i - k_j|² / 2√d), so a block of D is two small matrix
 * products with an epilogue.  Two choices keep float32 honest: keys are centred first (distances do
 * not change, cancellation shrinks), and values are scaled to unit length first.
 *
 * `joint`, the cosine of the whole multi-head update, is Σ_g a_ig a_jg S_g with
 * a_ig = ‖ΔW_i‖_g / ‖ΔW_i‖: the same S_g, weighted, so it needs no kernel of its own. */
#include <math.h>
#include <string.h>

#include "kern/kern.h"
#include "prune/iwp_parts.h"

enum { WIDE = 16384 }; /* widest row */

int iwp_dup_needs(const struct iwp_iwp_options *o, struct iwp_need *out, int n, int cap) {
    if (o->selector == SEL_TOPK) return n;
    enum iwp_tensor k = o->duplication_rope ? IWP_TENSOR_K_ROPE : IWP_TENSOR_K;
    int d = o->duplication;
    if (d == DUP_DW || d == DUP_RBF || d == DUP_COS_K)
        n = iwp_need_add(out, n, cap, k, IWP_ROWS_VISUAL, 0);
    if (d == DUP_DW || d == DUP_COS_V)
        n = iwp_need_add(out, n, cap, IWP_TENSOR_V, IWP_ROWS_VISUAL, 0);
    if (d == DUP_COS_H) n = iwp_need_add(out, n, cap, IWP_TENSOR_H, IWP_ROWS_VISUAL, 0);
    return n;
}

int iwp_dup_layout(struct iwp_dup *d, const struct iwp_view *v, int32_t n_max, int32_t cap_row,
                   struct iwp_arena *a, iwp_err *err) {
    const struct iwp_iwp_options *o = IWP_OPTIONS(iwp_iwp_options, v->params);
    const struct iwp_array *arr = v->in->arr,
                           *key = &arr[o->duplication_rope ? IWP_TENSOR_K_ROPE : IWP_TENSOR_K];
    memset(d, 0, sizeof *d);
    d->v = v;
    d->o = o;
    d->metric = o->duplication;
    d->heads = o->duplication_heads;
    d->norm = o->duplication_norm;
    d->square = o->square < 0 ? d->metric == DUP_DW : o->square;
    d->joint = d->metric == DUP_DW && d->heads == DUP_JOINT;
    d->key = d->metric == DUP_DW || d->metric == DUP_RBF ? key : NULL;
    d->unit =
        d->metric == DUP_RBF ? NULL : &arr[d->metric == DUP_COS_H ? IWP_TENSOR_H : IWP_TENSOR_V];
    if (d->metric == DUP_COS_K) d->unit = key;
    const struct iwp_array *any = d->key ? d->key : d->unit;
    int concat = d->heads == DUP_CONCAT;
    d->n_head = concat ? 1 : any->n_head;
    int32_t width = any->n_dim * (concat ? any->n_head : 1);
    IWP_REQUIRE(width <= WIDE && d->n_head <= 64, err, IWP_ENOTSUP,
                "tensor %s: rows wider than %d or more than 64 heads",
                d->metric == DUP_COS_H ? "h" : "k", WIDE);
    d->d1 = d->key ? width : 0;
    d->d2 = d->unit ? width : 0;
    d->scale = d->key ? 1.0f / (2.0f * sqrtf((float)d->key->n_dim)) : 0;
    if (cap_row < IWP_BLOCK) cap_row = IWP_BLOCK; /* find_range asks for whole blocks */
    size_t panels = ((size_t)n_max + IWP_PANEL - 1) / IWP_PANEL, lanes = panels * IWP_PANEL,
           per = (size_t)d->n_head * (size_t)(d->d1 + d->d2);
    d->panel = IWP_TAKE(a, float, lanes *per);
    d->norm2 = IWP_TAKE(a, float, lanes *(size_t)d->n_head);
    d->share = IWP_TAKE(a, float, d->joint ? lanes *(size_t)d->n_head : 0);
    d->token = IWP_TAKE(a, int32_t, lanes);
    d->lane = IWP_TAKE(a, int32_t, v->n_pool);
    d->mean = IWP_TAKE(a, float, (size_t)d->n_head *(size_t)d->d1);
    d->factor = IWP_TAKE(a, float, lanes *(size_t)d->n_head);
    d->block = IWP_TAKE(a, float, (size_t)cap_row *per);
    d->block_norm2 = IWP_TAKE(a, float, (size_t)cap_row *(size_t)d->n_head);
    d->block_share = IWP_TAKE(a, float, (size_t)cap_row *(size_t)d->n_head);
    return 0;
}

static float *lane_at(const struct iwp_dup *d, int32_t at, int32_t g, int part) {
    size_t per = (size_t)(d->d1 + d->d2) * IWP_PANEL;
    return d->panel + ((size_t)(at / IWP_PANEL) * (size_t)d->n_head + (size_t)g) * per +
           (part ? (size_t)d->d1 * IWP_PANEL : 0) + at % IWP_PANEL;
}

static size_t scalar_at(const struct iwp_dup *d, int32_t at, int32_t g) {
    return ((size_t)(at / IWP_PANEL) * (size_t)d->n_head + (size_t)g) * IWP_PANEL +
           (size_t)(at % IWP_PANEL);
}

/* Row of a token in one (possibly concatenated) head. */
static const float *row_of(const struct iwp_dup *d, const struct iwp_array *a, int32_t pool,
                           int32_t g, float *tmp) {
    int32_t r = d->v->pool[pool];
    if (d->heads != DUP_CONCAT) return iwp_array_row(a, r, g, tmp);
    for (int32_t h = 0; h < a->n_head; h++) {
        const float *x = iwp_array_row(a, r, h, tmp + (size_t)h * (size_t)a->n_dim);
        if (x != tmp + (size_t)h * (size_t)a->n_dim)
            memcpy(tmp + (size_t)h * (size_t)a->n_dim, x, sizeof(float) * (size_t)a->n_dim);
    }
    return tmp;
}

/* The centre of the keys: the mean of some of them does, distances do not depend on it. */
static void mean_keys(void *arg, int32_t g) {
    struct iwp_dup *d = arg;
    float *mean = d->mean + (size_t)g * (size_t)d->d1, tmp[WIDE];
    int32_t n = d->n < 64 ? d->n : 64;
    memset(mean, 0, sizeof(float) * (size_t)d->d1);
    for (int32_t i = 0; i < n; i++) {
        const float *row = row_of(d, d->key, d->token[(int64_t)i * d->n / n], g, tmp);
        for (int32_t t = 0; t < d->d1; t++) mean[t] = mean[t] + row[t] * (1.0f / 64);
    }
    for (int32_t t = 0; t < d->d1; t++) mean[t] = mean[t] * (64.0f / (float)n);
}

/* Numbers [t0, t0+n) of a token's packed vector: centred key, or unit vector. */
static void vector_of(const struct iwp_dup *d, const float *x, int32_t at, int32_t g, int part,
                      int32_t t0, int32_t n, float *y) {
    x += t0;
    if (part) {
        float f = d->factor[scalar_at(d, at, g)];
        for (int32_t t = 0; t < n; t++) y[t] = x[t] * f;
    } else {
        const float *mean = d->mean + (size_t)g * (size_t)d->d1 + t0;
        for (int32_t t = 0; t < n; t++) y[t] = x[t] - mean[t];
    }
}

/* 1 / |x|, 0 for a zero vector; squares that float cannot hold are taken in double. */
static float inverse_norm(const struct iwp_kern *kern, const float *x, int32_t n,
                          _Atomic int *bad) {
    float n2 = kern->norm2(x, n);
    if (n2 <= 1e37f && n2 >= 1e-30f) return 1.0f / sqrtf(n2);
    double s = 0;
    for (int32_t t = 0; t < n; t++) s += (double)x[t] * (double)x[t];
    if (!(s <= 1e300)) *bad = 1;
    if (!(s > 0)) return 0;
    s = 1 / sqrt(s);
    return (float)(s < 3e38 ? s : 3e38);
}

enum { STRIP = 128 }; /* numbers of each row that are turned into lanes at a time */

/* One part (keys or unit vectors) of one head of a panel. */
static void pack_part(struct iwp_dup *d, int32_t p, int32_t g, int part) {
    const struct iwp_kern *kern = iwp_kern_get();
    const struct iwp_array *a = part ? d->unit : d->key;
    int32_t width = part ? d->d2 : d->d1,
            n = d->n - p * IWP_PANEL < IWP_PANEL ? d->n - p * IWP_PANEL : IWP_PANEL;
    float row[WIDE], tmp[WIDE], strip[IWP_PANEL * STRIP],
        *panel = lane_at(d, p * IWP_PANEL, g, part);
    if (n < IWP_PANEL) memset(strip, 0, sizeof strip);
    for (int32_t i = n; i < IWP_PANEL && !part; i++)
        d->norm2[scalar_at(d, p * IWP_PANEL + i, g)] = 0;
    for (int32_t t0 = 0; t0 < width; t0 += STRIP) {
        int32_t nt = width - t0 < STRIP ? width - t0 : STRIP;
        for (int32_t i = 0; i < n; i++) {
            int32_t at = p * IWP_PANEL + i;
            const float *x = row_of(d, a, d->token[at], g, tmp);
            float *y = strip + (size_t)i * STRIP;
            if (part && t0 == 0)
                d->factor[scalar_at(d, at, g)] = inverse_norm(kern, x, width, &d->bad);
            vector_of(d, x, at, g, part, t0, nt, y);
            if (!part && t0 == 0) {
                const float *whole = y;
                if (width > STRIP) {
                    vector_of(d, x, at, g, 0, 0, width, row);
                    whole = row;
                }
                float n2 = kern->norm2(whole, width);
                if (!(n2 <= 1e37f)) d->bad = 1;
                d->norm2[scalar_at(d, at, g)] = n2;
            }
        }
        kern->to_lanes(panel + (size_t)t0 * IWP_PANEL, strip, STRIP, nt);
    }
}

void iwp_dup_pack_panel(struct iwp_dup *d, int32_t p) {
    float tmp[1024];
    for (int32_t g = 0; g < d->n_head; g++) {
        if (d->d1) pack_part(d, p, g, 0);
        if (d->d2) pack_part(d, p, g, 1);
    }
    /* joint: how much of the token's whole update each head carries */
    for (int32_t i = 0; d->joint && i < IWP_PANEL; i++) {
        int32_t at = p * IWP_PANEL + i;
        double log_norm[64], top = -INFINITY, sum = 0;
        for (int32_t g = 0; g < d->n_head; g++) {
            log_norm[g] = -INFINITY;
            if (at >= d->n) continue;
            const float *k = iwp_array_row(d->key, d->v->pool[d->token[at]], g, tmp), *x;
            double kk = 0, vv = 0;
            for (int32_t t = 0; t < d->d1; t++) kk += (double)k[t] * (double)k[t];
            x = iwp_array_row(d->unit, d->v->pool[d->token[at]], g, tmp);
            for (int32_t t = 0; t < d->d2; t++) vv += (double)x[t] * (double)x[t];
            if (vv > 0) log_norm[g] = kk * (double)d->scale + 0.5 * iwp_math_log(vv);
            if (log_norm[g] > top) top = log_norm[g];
        }
        for (int32_t g = 0; g < d->n_head; g++)
            sum += top > -INFINITY ? iwp_math_exp(2 * (log_norm[g] - top)) : 0;
        for (int32_t g = 0; g < d->n_head; g++)
            d->share[scalar_at(d, at, g)] =
                sum > 0 ? (float)(iwp_math_exp(log_norm[g] - top) / sqrt(sum)) : 0;
    }
}

static void pack_panel(void *arg, int32_t p) { iwp_dup_pack_panel(arg, p); }

/* ---- rows -------------------------------------------------------------------------------------------- */

struct gather_job {
    const struct iwp_dup *d;
    const struct iwp_dup_rows *r;
    const int32_t *token;
};

/* Blocks of at most IWP_BLOCK rows: for each head [d1][rows], then [d2][rows].  The vectors are made
 * again from their sources, which is cheaper than to pick them out of the lanes. */
static void gather_block(void *arg, int32_t b) {
    struct gather_job *j = arg;
    const struct iwp_dup *d = j->d;
    int32_t r0 = b * IWP_BLOCK, n = j->r->n - r0 < IWP_BLOCK ? j->r->n - r0 : IWP_BLOCK;
    float *out = j->r->block + (size_t)r0 * (size_t)d->n_head * (size_t)(d->d1 + d->d2);
    float tmp[WIDE], y[STRIP];
    for (int32_t g = 0; g < d->n_head; g++)
        for (int part = 0; part < 2; part++) {
            int32_t width = part ? d->d2 : d->d1;
            for (int32_t r = 0; r < n && width; r++) {
                int32_t token = j->token[r0 + r], at = d->lane[token];
                const float *x = row_of(d, part ? d->unit : d->key, token, g, tmp);
                for (int32_t t0 = 0; t0 < width; t0 += STRIP) {
                    int32_t nt = width - t0 < STRIP ? width - t0 : STRIP;
                    float *to = out + (size_t)t0 * (size_t)n + (size_t)r;
                    vector_of(d, x, at, g, part, t0, nt, y);
                    for (int32_t t = 0; t < nt; t++) to[(size_t)t * (size_t)n] = y[t];
                }
            }
            out += (size_t)width * (size_t)n;
        }
    for (int32_t g = 0; g < d->n_head; g++)
        for (int32_t r = 0; r < n; r++) {
            size_t at = scalar_at(d, d->lane[j->token[r0 + r]], g),
                   to = (size_t)(r0 + r) * (size_t)d->n_head + (size_t)g;
            j->r->norm2[to] = d->d1 ? d->norm2[at] : 0;
            j->r->share[to] = d->joint ? d->share[at] : 1;
        }
}

struct iwp_dup_rows iwp_dup_rows(const struct iwp_dup *d, const struct iwp_exec *exec, int32_t at,
                                 const int32_t *token, int32_t n) {
    size_t per = (size_t)d->n_head * (size_t)(d->d1 + d->d2);
    struct iwp_dup_rows r = {d->block + (size_t)at * per,
                             d->block_norm2 + (size_t)at * (size_t)d->n_head,
                             d->block_share + (size_t)at * (size_t)d->n_head, n};
    struct gather_job j = {d, &r, token};
    iwp_parallel((size_t)n * per > 65536 ? exec : NULL, gather_block, &j,
                 (n + IWP_BLOCK - 1) / IWP_BLOCK);
    return r;
}

/* ---- D ------------------------------------------------------------------------------------------------- */

/* From a raw similarity to the value that is squared or averaged. */
static float shape_value(const struct iwp_dup *d, float x, int32_t g) {
    if (d->norm == DUP_NORM_AFFINE)
        x = (1 + x) * 0.5f;
    else if (d->norm == DUP_NORM_MINMAX) {
        float r = d->hi[g] - d->lo[g];
        x = r > 1e-30f ? (x - d->lo[g]) / r : 0;
    } else if (!d->square && !(x > 0))
        x = 0;
    return d->square ? x * x : x;
}

static int squares_per_head(const struct iwp_dup *d) {
    return d->square && d->heads != DUP_SQ_MEAN && !d->joint;
}

/* Plain per-head similarity of one row against 32 lanes. */
static void similarity_row(const struct iwp_kern *kern, const struct iwp_dup *d, float *x,
                           const float *kk, const float *cv, const float *norm2, float row_norm2) {
    if (d->d1)
        kern->rbf_row(x, kk, norm2, row_norm2, d->scale);
    else
        for (int i = 0; i < IWP_PANEL; i++) x[i] = cv[i];
    if (d->d1 && d->d2)
        for (int i = 0; i < IWP_PANEL; i++) x[i] = x[i] * cv[i];
}

void iwp_dup_panel(const struct iwp_dup *d, const struct iwp_dup_rows *from, int32_t p, int32_t r0,
                   int32_t n, float *out) {
    const struct iwp_kern *kern = iwp_kern_get();
    float kk[IWP_BLOCK * IWP_PANEL], cv[IWP_BLOCK * IWP_PANEL], x[IWP_PANEL];
    int fast = d->metric == DUP_DW && squares_per_head(d) && d->norm <= DUP_NORM_CLIP,
        per_head = squares_per_head(d);
    float inv = 1.0f / (float)d->n_head;
    memset(out, 0, sizeof(float) * (size_t)n * IWP_PANEL);
    for (int32_t g = 0; g < d->n_head; g++) {
        const float *lanes = lane_at(d, p * IWP_PANEL, g, 0),
                    *norm2 = d->norm2 + scalar_at(d, p * IWP_PANEL, g);
        for (int32_t b = r0; b < r0 + n; b += IWP_BLOCK) {
            int32_t rows = from->n - b < IWP_BLOCK ? from->n - b : IWP_BLOCK;
            int32_t use = r0 + n - b < rows ? r0 + n - b : rows;
            const float *blk = from->block +
                               (size_t)b * (size_t)d->n_head * (size_t)(d->d1 + d->d2) +
                               (size_t)g * (size_t)(d->d1 + d->d2) * (size_t)rows;
            if (d->d1) kern->panel_dots(kk, lanes, blk, rows, d->d1);
            if (d->d2)
                kern->panel_dots(cv, lanes + (size_t)d->d1 * IWP_PANEL,
                                 blk + (size_t)d->d1 * (size_t)rows, rows, d->d2);
            for (int32_t r = 0; r < use; r++) {
                float *acc = out + (size_t)(b - r0 + r) * IWP_PANEL, *k1 = kk + r * IWP_PANEL,
                      *c1 = cv + r * IWP_PANEL;
                float rn = from->norm2[(size_t)(b + r) * (size_t)d->n_head + (size_t)g];
                if (fast) {
                    kern->dw_row(acc, k1, c1, norm2, rn, d->scale);
                    continue;
                }
                similarity_row(kern, d, x, k1, c1, norm2, rn);
                if (per_head)
                    for (int i = 0; i < IWP_PANEL; i++) acc[i] = acc[i] + shape_value(d, x[i], g);
                else if (d->joint) {
                    float rs = from->share[(size_t)(b + r) * (size_t)d->n_head + (size_t)g];
                    const float *s = d->share + scalar_at(d, p * IWP_PANEL, g);
                    for (int i = 0; i < IWP_PANEL; i++) acc[i] = acc[i] + x[i] * (s[i] * rs);
                } else
                    for (int i = 0; i < IWP_PANEL; i++) acc[i] = acc[i] + x[i];
            }
        }
    }
    for (int32_t i = 0; i < n * IWP_PANEL; i++) {
        float y = d->joint ? out[i] : out[i] * inv;
        out[i] = per_head || d->range_only ? y : shape_value(d, y, 0);
    }
}

void iwp_dup_panel_max(const struct iwp_dup *d, const struct iwp_dup_rows *from, int32_t p,
                       float *best) {
    const struct iwp_kern *kern = iwp_kern_get();
    float out[DUP_ROWS * IWP_PANEL];
    for (int i = 0; i < IWP_PANEL; i++) best[i] = 0;
    for (int32_t r = 0; r < from->n; r += DUP_ROWS) {
        int32_t n = from->n - r < DUP_ROWS ? from->n - r : DUP_ROWS;
        iwp_dup_panel(d, from, p, r, n, out);
        for (int32_t i = 0; i < n; i++) kern->max_row(best, out + i * IWP_PANEL, IWP_PANEL);
    }
}

/* duplication-norm=minmax: the range of every head's matrix (or of the combined one), diagonal
 * included.  All pairs, so O(N²) time; the memory stays O(N). */
static void find_range(struct iwp_dup *d) {
    const struct iwp_kern *kern = iwp_kern_get();
    float out[IWP_BLOCK * IWP_PANEL], kk[IWP_BLOCK * IWP_PANEL], cv[IWP_BLOCK * IWP_PANEL],
        x[IWP_PANEL];
    for (int g = 0; g < 64; g++) d->lo[g] = INFINITY, d->hi[g] = -INFINITY;
    int per_head = squares_per_head(d);
    for (int32_t i0 = 0; i0 < d->n; i0 += IWP_BLOCK) {
        int32_t n = d->n - i0 < IWP_BLOCK ? d->n - i0 : IWP_BLOCK;
        struct iwp_dup_rows from = iwp_dup_rows(d, NULL, 0, d->token + i0, n);
        for (int32_t p = 0; p < d->n_panel; p++) {
            d->range_only = 1;
            if (!per_head) iwp_dup_panel(d, &from, p, 0, n, out);
            d->range_only = 0;
            for (int32_t g = 0; g < (per_head ? d->n_head : 1); g++) {
                const float *lanes = lane_at(d, p * IWP_PANEL, g, 0),
                            *norm2 = d->norm2 + scalar_at(d, p * IWP_PANEL, g);
                const float *blk = from.block + (size_t)g * (size_t)(d->d1 + d->d2) * (size_t)n;
                if (per_head && d->d1) kern->panel_dots(kk, lanes, blk, n, d->d1);
                if (per_head && d->d2)
                    kern->panel_dots(cv, lanes + (size_t)d->d1 * IWP_PANEL,
                                     blk + (size_t)d->d1 * (size_t)n, n, d->d2);
                for (int32_t r = 0; r < n; r++) {
                    if (per_head)
                        similarity_row(kern, d, x, kk + r * IWP_PANEL, cv + r * IWP_PANEL, norm2,
                                       from.norm2[(size_t)r * (size_t)d->n_head + (size_t)g]);
                    else
                        memcpy(x, out + r * IWP_PANEL, sizeof x);
                    for (int i = 0; i < IWP_PANEL && p * IWP_PANEL + i < d->n; i++) {
                        if (x[i] < d->lo[g]) d->lo[g] = x[i];
                        if (x[i] > d->hi[g]) d->hi[g] = x[i];
                    }
                }
            }
        }
    }
}

int iwp_dup_pack(struct iwp_dup *d, const int32_t *token, int32_t n, iwp_err *err) {
    d->n = n;
    d->n_panel = (n + IWP_PANEL - 1) / IWP_PANEL;
    d->bad = 0;
    for (int32_t i = 0; i < d->n_panel * IWP_PANEL; i++) d->token[i] = i < n ? token[i] : -1;
    for (int32_t i = 0; i < n; i++) d->lane[token[i]] = i;
    if (d->d1) iwp_parallel(d->v->exec, mean_keys, d, d->n_head);
    iwp_parallel(d->v->exec, pack_panel, d, d->n_panel);
    if (d->bad) {
        struct iwp_need need[4];
        int k = iwp_dup_needs(d->o, need, 0, 4);
        for (int i = 0; i < k; i++)
            IWP_TRY(iwp_array_check_finite(d->v->in, need[i].tensor, need[i].rows,
                                           d->v->first_visual, err));
    }
    if (d->norm == DUP_NORM_MINMAX) find_range(d);
    return 0;
}
