/* Unit rows, Gram matrices and nearest partners; see cosine.h. */
#include "prune/cosine.h"

#include <math.h>
#include <string.h>

#include "kern/kern.h"

enum {
    STRETCH = 256, /* columns of a row per chain: a panel's stretch stays in the L1 cache */
    GROUP = 4,     /* panels per task */
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
}

struct pack_job {
    struct iwp_units *u;
    const struct iwp_source *s;
    const int32_t *pick;
    int32_t first;
};

static void pack_panel(void *arg, int32_t p) {
    struct pack_job *j = arg;
    struct iwp_units *u = j->u;
    float tmp[IWP_ROW_WIDE];
    for (int32_t i = 0; i < IWP_PANEL; i++) {
        int32_t at = p * IWP_PANEL + i, d = u->d;
        float *lane = u->panel + (size_t)p * (size_t)d * IWP_PANEL + i;
        if (at >= u->n) {
            for (int32_t t = 0; t < d; t++) lane[(size_t)t * IWP_PANEL] = 0;
            continue;
        }
        const float *x = iwp_source_row(j->s, j->pick ? j->pick[at] : j->first + at, tmp);
        double norm = sqrt(iwp_row_norm2(x, d)), inv = norm > 0 ? 1 / norm : 0;
        if (norm > 1e-15 && norm < 1e15) {
            float f = (float)inv;
            for (int32_t t = 0; t < d; t++) lane[(size_t)t * IWP_PANEL] = x[t] * f;
        } else { /* out of float's comfort */
            for (int32_t t = 0; t < d; t++)
                lane[(size_t)t * IWP_PANEL] = (float)((double)x[t] * inv);
        }
    }
}

void iwp_units_pack(struct iwp_units *u, const struct iwp_exec *exec, const struct iwp_source *s,
                    const int32_t *pick, int32_t first, int32_t n) {
    struct pack_job j = {u, s, pick, first};
    u->n = n;
    iwp_parallel(exec, pack_panel, &j, (n + IWP_PANEL - 1) / IWP_PANEL);
}

static const float *panel_at(const struct iwp_units *u, int32_t p, int32_t t) {
    return u->panel + ((size_t)p * (size_t)u->d + (size_t)t) * IWP_PANEL;
}

/* Rows r0 … r0+n-1, columns t0 … t0+nt-1 as a block [nt][n]. */
static void gather(const struct iwp_units *u, int32_t r0, int32_t n, int32_t t0, int32_t nt,
                   float *out) {
    for (int32_t done = 0; done < n;) {
        int32_t r = r0 + done, lane = r % IWP_PANEL,
                m = IWP_PANEL - lane < n - done ? IWP_PANEL - lane : n - done;
        const float *from = panel_at(u, r / IWP_PANEL, t0) + lane;
        if (m == IWP_BLOCK)
            for (int32_t t = 0; t < nt; t++)
                memcpy(out + (size_t)t * IWP_BLOCK, from + (size_t)t * IWP_PANEL,
                       sizeof(float) * IWP_BLOCK);
        else
            for (int32_t t = 0; t < nt; t++)
                for (int32_t i = 0; i < m; i++)
                    out[(size_t)t * (size_t)n + (size_t)(done + i)] =
                        from[(size_t)t * IWP_PANEL + (size_t)i];
        done += m;
    }
}

/* ---- all pairs ------------------------------------------------------------------------------------ */

float *iwp_gram_take(struct iwp_arena *a, int32_t n_max) {
    return IWP_TAKE(a, float, (size_t)n_max *iwp_gram_stride(n_max));
}

struct gram_job {
    const struct iwp_units *u;
    float *gram;
    int32_t n_panel, n_group;
};

/* Columns of one group, rows up to the diagonal; then the settled values go to both halves. */
static void gram_group(void *arg, int32_t task) {
    struct gram_job *j = arg;
    const struct iwp_units *u = j->u;
    const struct iwp_kern *kern = iwp_kern_get();
    int32_t g = j->n_group - 1 - task; /* the longest columns first: better balance */
    int32_t p0 = g * GROUP, p1 = p0 + GROUP < j->n_panel ? p0 + GROUP : j->n_panel;
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
                        for (int i = 0; i < IWP_PANEL; i++) to[i] = to[i] + x[i];
                    else
                        memcpy(to, x, sizeof(float) * IWP_PANEL);
                }
            }
        }
    }
    for (int32_t r0 = 0; r0 < row_end; r0 += 16) {
        int32_t r1 = r0 + 16 < row_end ? r0 + 16 : row_end;
        for (int32_t c = r0 > p0 * IWP_PANEL ? r0 : p0 * IWP_PANEL; c < row_end; c++)
            for (int32_t r = r0; r < r1 && r <= c; r++) {
                float *at = j->gram + (size_t)r * ld + (size_t)c;
                *at = iwp_cosine_settle(*at);
                j->gram[(size_t)c * ld + (size_t)r] = *at;
            }
    }
}

void iwp_units_gram(const struct iwp_units *u, const struct iwp_exec *exec, float *gram) {
    struct gram_job j = {u, gram, (u->n + IWP_PANEL - 1) / IWP_PANEL, 0};
    j.n_group = (j.n_panel + GROUP - 1) / GROUP;
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
                    for (int i = 0; i < IWP_PANEL; i++) {
                        float *to = &sum[r][p * IWP_PANEL + i];
                        *to = *to + tile[r * IWP_PANEL + i];
                    }
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
