/* Unit rows, Gram matrices and nearest partners; see cosine.h. */
#include "prune/cosine.h"

#include <math.h>
#include <string.h>

#include "kern/kern.h"

enum {
    STRETCH = 256, /* columns of a row per chain: a panel's stretch stays in the L1 cache */
    GROUP = 4,     /* panels per task */
    TILE = 16,     /* side of a tile when a matrix is mirrored */
    LANES = GROUP * IWP_PANEL /* tokens per task */
};

/* ---- rows ------------------------------------------------------------------------------------- */

int32_t iwp_source_width(const struct iwp_source *s) {
    return s->mean_heads ? s->array->n_dim : s->array->n_dim * s->array->n_head;
}

int iwp_source_check(const struct iwp_source *s, enum iwp_tensor t, iwp_err *err) {
    IWP_REQUIRE(s->array->n_dim <= IWP_ROW_WIDE &&
                    (int64_t)s->array->n_dim * s->array->n_head <= (int64_t)IWP_ROW_WIDE * 16 &&
                    iwp_source_width(s) <= IWP_ROW_WIDE,
                err, IWP_ENOTSUP, "tensor %s: rows wider than %d", iwp_tensor_name(t),
                IWP_ROW_WIDE);
    return 0;
}

const float *iwp_source_row(const struct iwp_source *s, int32_t i, float *tmp) {
    const struct iwp_array *a = s->array;
    int32_t r = s->row ? s->row[i] : i, group = s->group > 1 ? s->group : 1, d = a->n_dim;
    int joined = !s->mean_heads || a->n_head == 1;
    if (group == 1 &&
        (a->n_head == 1 || (joined && a->dtype == IWP_DTYPE_F32 && a->head_stride == d)))
        return iwp_array_row(a, r, 0, tmp);
    float part[IWP_ROW_WIDE];
    int32_t width = iwp_source_width(s);
    memset(tmp, 0, sizeof(float) * (size_t)width);
    for (int32_t g = 0; g < group; g++)
        for (int32_t h = 0; h < a->n_head; h++) {
            const float *x = iwp_array_row(a, r + g, h, part);
            float *to = tmp + (joined ? (size_t)h * (size_t)d : 0);
            for (int32_t t = 0; t < d; t++) to[t] = to[t] + x[t];
        }
    float inv = 1.0f / (float)(group * (joined ? 1 : a->n_head));
    for (int32_t t = 0; t < width; t++) tmp[t] = tmp[t] * inv;
    return tmp;
}

double iwp_row_dot(const float *x, const float *y, int32_t d) {
    double s[8] = {0};
    int32_t t = 0;
    for (; t + 8 <= d; t += 8)
        for (int i = 0; i < 8; i++) s[i] += (double)x[t + i] * (double)y[t + i];
    for (int i = 0; t < d; t++, i++) s[i] += (double)x[t] * (double)y[t];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

double iwp_row_norm2(const float *x, int32_t d) { return iwp_row_dot(x, x, d); }

/* ---- packing ------------------------------------------------------------------------------------ */

void iwp_units_layout(struct iwp_units *u, int32_t n_max, int32_t d, struct iwp_arena *a) {
    u->n = 0;
    u->d = d;
    u->panel = IWP_TAKE(a, float, iwp_gram_stride(n_max) * (size_t)d);
    u->norm2 = IWP_TAKE(a, double, n_max);
}

struct pack_job {
    struct iwp_units *u;
    const struct iwp_source *s;
    const int32_t *pick;
    int32_t first;
};

static void scale_row(float *to, int64_t step, const float *x, double norm2, int32_t n) {
    double norm = sqrt(norm2), inv = norm > 0 ? 1 / norm : 0;
    if (norm > 1e-15 && norm < 1e15) {
        float f = (float)inv;
        for (int32_t t = 0; t < n; t++) to[t * step] = x[t] * f;
    } else { /* out of float's comfort */
        for (int32_t t = 0; t < n; t++) to[t * step] = (float)((double)x[t] * inv);
    }
}

static void pack_panel(void *arg, int32_t p) {
    struct pack_job *j = arg;
    struct iwp_units *u = j->u;
    float tmp[IWP_ROW_WIDE], stage[IWP_PANEL][STRETCH];
    const float *row[IWP_PANEL];
    int32_t n = u->n - p * IWP_PANEL < IWP_PANEL ? u->n - p * IWP_PANEL : IWP_PANEL, d = u->d;
    float *lanes = u->panel + (size_t)p * (size_t)d * IWP_PANEL;
    double *norm2 = u->norm2 + (size_t)p * IWP_PANEL;
    int direct = n == IWP_PANEL;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = p * IWP_PANEL + i;
        row[i] = iwp_source_row(j->s, j->pick ? j->pick[at] : j->first + at, tmp);
        norm2[i] = iwp_row_norm2(row[i], d);
        if (row[i] == tmp) { /* converted on the way: it must be used before the next one */
            direct = 0;
            scale_row(lanes + i, IWP_PANEL, tmp, norm2[i], d);
        }
    }
    for (int32_t t0 = 0; direct && t0 < d; t0 += STRETCH) {
        int32_t nt = d - t0 < STRETCH ? d - t0 : STRETCH;
        for (int32_t i = 0; i < IWP_PANEL; i++) scale_row(stage[i], 1, row[i] + t0, norm2[i], nt);
        iwp_kern_get()->to_lanes(lanes + (size_t)t0 * IWP_PANEL, stage[0], STRETCH, nt);
    }
    if (direct) return;
    for (int32_t i = 0; i < IWP_PANEL; i++)
        if (i >= n)
            for (int32_t t = 0; t < d; t++) lanes[(size_t)t * IWP_PANEL + (size_t)i] = 0;
        else if (row[i] != tmp)
            scale_row(lanes + i, IWP_PANEL, row[i], norm2[i], d);
}

void iwp_units_pack(struct iwp_units *u, const struct iwp_exec *exec, const struct iwp_source *s,
                    const int32_t *pick, int32_t first, int32_t n) {
    struct pack_job j = {u, s, pick, first};
    u->n = n;
    iwp_parallel(exec, pack_panel, &j, (n + IWP_PANEL - 1) / IWP_PANEL);
}

int iwp_units_finite(const struct iwp_units *u) {
    for (int32_t i = 0; i < u->n; i++)
        if (!(u->norm2[i] <= 1e300)) return 0;
    return 1;
}

static inline void add_lanes(float *restrict to, const float *restrict x) {
    for (int i = 0; i < IWP_PANEL; i++) to[i] = to[i] + x[i];
}

static const float *panel_at(const struct iwp_units *u, int32_t p, int32_t t) {
    return u->panel + ((size_t)p * (size_t)u->d + (size_t)t) * IWP_PANEL;
}

/* Rows r0 … r0+n-1, columns t0 … t0+nt-1 as a block [nt][n].  r0 is a multiple of 12, so four rows
 * at a time never cross a panel. */
static void gather(const struct iwp_units *u, int32_t r0, int32_t n, int32_t t0, int32_t nt,
                   float *out) {
    const float *quad[IWP_BLOCK / 4];
    for (int32_t k = 0; k < IWP_BLOCK / 4 && 4 * k < n; k++) {
        int32_t r = r0 + 4 * k;
        quad[k] = panel_at(u, r / IWP_PANEL, t0) + r % IWP_PANEL;
    }
    if (n == IWP_BLOCK) {
        for (int32_t t = 0; t < nt; t++) {
            float *to = out + (size_t)t * IWP_BLOCK;
            memcpy(to, quad[0] + (size_t)t * IWP_PANEL, sizeof(float) * 4);
            memcpy(to + 4, quad[1] + (size_t)t * IWP_PANEL, sizeof(float) * 4);
            memcpy(to + 8, quad[2] + (size_t)t * IWP_PANEL, sizeof(float) * 4);
        }
        return;
    }
    for (int32_t t = 0; t < nt; t++)
        for (int32_t i = 0; i < n; i++)
            *out++ = quad[i / 4][(size_t)t * IWP_PANEL + (size_t)(i % 4)];
}

/* ---- all pairs ------------------------------------------------------------------------------------ */

float *iwp_gram_take(struct iwp_arena *a, int32_t n_max) {
    return IWP_TAKE(a, float, (size_t)n_max *iwp_gram_stride(n_max));
}

struct gram_job {
    const struct iwp_units *u;
    float *gram;
    int32_t n_panel, n_group, group; /* panels per task */
};

/* Applies the rule to one tile on or above the diagonal and writes it below as well. */
static void settle_tile(float *gram, size_t ld, int32_t r0, int32_t r1, int32_t c0, int32_t c1) {
    float turned[TILE][TILE];
    for (int32_t r = r0; r < r1; r++) {
        float *row = gram + (size_t)r * ld;
        for (int32_t c = c0; c < c1; c++)
            row[c] = turned[c - c0][r - r0] = iwp_cosine_settle(row[c]);
    }
    for (int32_t c = c0; c < c1; c++) {
        int32_t end = c < r1 ? c : r1; /* on the diagonal: only what lies above it */
        if (end > r0)
            memcpy(gram + (size_t)c * ld + r0, turned[c - c0], sizeof(float) * (size_t)(end - r0));
    }
}

/* Columns of one group, rows up to the diagonal; then the settled values go to both halves. */
static void gram_group(void *arg, int32_t task) {
    struct gram_job *j = arg;
    const struct iwp_units *u = j->u;
    const struct iwp_kern *kern = iwp_kern_get();
    int32_t g = j->n_group - 1 - task; /* the longest columns first: better balance */
    int32_t p0 = g * j->group, p1 = p0 + j->group < j->n_panel ? p0 + j->group : j->n_panel;
    int32_t row_end = p1 * IWP_PANEL < u->n ? p1 * IWP_PANEL : u->n;
    size_t ld = iwp_gram_stride(u->n);
    float block[STRETCH * IWP_BLOCK], tile[IWP_BLOCK * IWP_PANEL];
    for (int32_t t0 = 0; t0 < u->d; t0 += STRETCH) {
        int32_t nt = u->d - t0 < STRETCH ? u->d - t0 : STRETCH;
        for (int32_t r0 = 0; r0 < row_end; r0 += IWP_BLOCK) {
            int32_t n = row_end - r0 < IWP_BLOCK ? row_end - r0 : IWP_BLOCK;
            gather(u, r0, n, t0, nt, block);
            for (int32_t p = r0 / IWP_PANEL > p0 ? r0 / IWP_PANEL : p0; p < p1; p++) {
                kern->panel_dots(tile, panel_at(u, p, t0), block, n, nt);
                for (int32_t r = 0; r < n; r++) {
                    float *to = j->gram + (size_t)(r0 + r) * ld + (size_t)p * IWP_PANEL;
                    const float *x = tile + r * IWP_PANEL;
                    if (t0)
                        add_lanes(to, x);
                    else
                        memcpy(to, x, sizeof(float) * IWP_PANEL);
                }
            }
        }
    }
    for (int32_t r0 = 0; r0 < row_end; r0 += TILE)
        for (int32_t c0 = r0 > p0 * IWP_PANEL ? r0 : p0 * IWP_PANEL; c0 < row_end; c0 += TILE)
            settle_tile(j->gram, ld, r0, r0 + TILE < row_end ? r0 + TILE : row_end, c0,
                        c0 + TILE < row_end ? c0 + TILE : row_end);
}

void iwp_units_gram(const struct iwp_units *u, const struct iwp_exec *exec, float *gram) {
    struct gram_job j = {u, gram, (u->n + IWP_PANEL - 1) / IWP_PANEL, 0, 0};
    /* Wide tasks gather each block less often, narrow ones keep more threads busy. */
    j.group = j.n_panel / (4 * (exec && exec->n_thread > 1 ? exec->n_thread : 1));
    j.group = j.group < 2 ? 2 : j.group > 8 ? 8 : j.group;
    j.n_group = (j.n_panel + j.group - 1) / j.group;
    iwp_parallel(exec, gram_group, &j, j.n_group);
}

/* ---- nearest partners ------------------------------------------------------------------------------- */

struct near_job {
    const struct iwp_units *x, *y;
    float *best;
    int32_t *arg;
};

static void near_group(void *arg, int32_t g) {
    struct near_job *j = arg;
    const struct iwp_units *x = j->x, *y = j->y;
    const struct iwp_kern *kern = iwp_kern_get();
    int32_t i0 = g * LANES, n = x->n - i0 < LANES ? x->n - i0 : LANES,
            n_panel = (n + IWP_PANEL - 1) / IWP_PANEL;
    float block[STRETCH * IWP_BLOCK], tile[IWP_BLOCK * IWP_PANEL], sum[IWP_BLOCK][LANES],
        best[LANES];
    int32_t who[LANES];
    for (int32_t i = 0; i < LANES; i++) best[i] = -2, who[i] = 0;
    for (int32_t r0 = 0; r0 < y->n; r0 += IWP_BLOCK) {
        int32_t rows = y->n - r0 < IWP_BLOCK ? y->n - r0 : IWP_BLOCK;
        memset(sum, 0, sizeof sum);
        for (int32_t t0 = 0; t0 < x->d; t0 += STRETCH) {
            int32_t nt = x->d - t0 < STRETCH ? x->d - t0 : STRETCH;
            gather(y, r0, rows, t0, nt, block);
            for (int32_t p = 0; p < n_panel; p++) {
                kern->panel_dots(tile, panel_at(x, g * GROUP + p, t0), block, rows, nt);
                for (int32_t r = 0; r < rows; r++)
                    add_lanes(&sum[r][p * IWP_PANEL], tile + r * IWP_PANEL);
            }
        }
        for (int32_t r = 0; r < rows; r++)
            for (int32_t i = 0; i < n; i++) {
                float c = iwp_cosine_settle(sum[r][i]);
                int up = c > best[i];
                best[i] = up ? c : best[i];
                who[i] = up ? r0 + r : who[i];
            }
    }
    memcpy(j->best + i0, best, sizeof(float) * (size_t)n);
    memcpy(j->arg + i0, who, sizeof(int32_t) * (size_t)n);
}

void iwp_units_nearest(const struct iwp_units *x, const struct iwp_units *y,
                       const struct iwp_exec *exec, float *best, int32_t *arg) {
    struct near_job j = {x, y, best, arg};
    iwp_parallel(exec, near_group, &j, (x->n + LANES - 1) / LANES);
}
