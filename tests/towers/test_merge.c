/* ToMe inside a tower against straight loops in double, several budgets: one tile of the golden
 * LLaVA-OneVision tower, one picture of the golden Qwen2.5-VL tower (windows, rotary embedding, cells of
 * four rows that the merger joins). */
#include <math.h>

#include "golden.h"
#include "model/vit.h"

enum { MAX_D = 256, MAX_FF = 1024, MAX_ROW = 512 };

struct ref {
    const struct iwp_tower *t;
    int32_t m;        /* rows of a cell */
    int32_t n, first; /* cells now, at first */
    double *x;        /* [n * m][d] */
    double size[MAX_ROW];
    int32_t home[MAX_ROW], owner[MAX_ROW];
    int32_t window[MAX_ROW], where[MAX_ROW][2]; /* of first cells, of their rows; Qwen2.5-VL only */
};

static double *read_weight(const struct ggml_tensor *w) {
    const size_t n = (size_t)ggml_nelements(w);
    float *f = malloc(n * sizeof *f);
    double *x = malloc(n * sizeof *x);
    CHECK(w->type == GGML_TYPE_F32);
    ggml_backend_tensor_get(w, f, 0, n * sizeof *f);
    for (size_t i = 0; i < n; i++) x[i] = (double)f[i];
    free(f);
    return x;
}

/* y [n][out] = x [n][in] W' + b */
static void linear(const double *x, int32_t n, const struct ggml_tensor *w,
                   const struct ggml_tensor *b, double *y) {
    const int32_t out = (int32_t)(b                    ? b->ne[0]
                                  : ggml_n_dims(w) > 2 ? w->ne[3]
                                                       : w->ne[1]),
                  in = (int32_t)(ggml_nelements(w) / out);
    double *a = read_weight(w), *c = b ? read_weight(b) : NULL;
    for (int32_t i = 0; i < n; i++)
        for (int32_t o = 0; o < out; o++) {
            double s = c ? c[o] : 0;
            for (int32_t k = 0; k < in; k++)
                s += x[(size_t)i * (size_t)in + (size_t)k] * a[(size_t)o * (size_t)in + (size_t)k];
            y[(size_t)i * (size_t)out + (size_t)o] = s;
        }
    free(a);
    free(c);
}

static void norm(const struct iwp_tower *t, const double *x, int32_t n, const struct ggml_tensor *w,
                 const struct ggml_tensor *b, double *y) {
    const int32_t d = t->info.d_vision;
    double *a = read_weight(w), *c = b ? read_weight(b) : NULL;
    for (int32_t i = 0; i < n; i++) {
        double m = 0, v = 0;
        for (int32_t k = 0; k < d && !t->rms; k++) m += x[i * d + k] / d;
        for (int32_t k = 0; k < d; k++) v += (x[i * d + k] - m) * (x[i * d + k] - m) / d;
        for (int32_t k = 0; k < d; k++)
            y[i * d + k] = (x[i * d + k] - m) / sqrt(v + (double)t->eps) * a[k] + (c ? c[k] : 0);
    }
    free(a);
    free(c);
}

static double act(enum iwp_act a, double x) {
    switch (a) {
    case IWP_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case IWP_ACT_GELU_ERF: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case IWP_ACT_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    default: return x / (1 + exp(-x));
    }
}

/* q and k by their row and column: pairs (e, e + dh/2), angles by row for the first quarter of a head's
 * numbers, by column for the second. */
static void rotate(const struct ref *r, double *x) {
    const int32_t d = r->t->info.d_vision, dh = r->t->info.d_head, half = dh / 2, part = dh / 4;
    for (int32_t i = 0; i < r->n * r->m; i++) {
        const int32_t *yx = r->where[r->home[i / r->m] * r->m + i % r->m];
        for (int32_t h = 0; h < r->t->info.n_head; h++)
            for (int32_t e = 0; e < half; e++) {
                double *u = &x[i * d + h * dh + e], *v = u + half, p = *u, q = *v,
                       angle = yx[e / part] * pow(10000, -(double)(e % part) / part);
                *u = p * cos(angle) - q * sin(angle);
                *v = q * cos(angle) + p * sin(angle);
            }
    }
}

/* Attention with ln(size) in the logits, inside windows unless the block is a full one. */
static void attend(const struct ref *r, bool full, const double *q, const double *k,
                   const double *v, double *out) {
    const int32_t d = r->t->info.d_vision, dh = r->t->info.d_head, m = r->m;
    double p[MAX_ROW];
    for (int32_t h = 0; h < r->t->info.n_head; h++)
        for (int32_t i = 0; i < r->n * m; i++) {
            double sum = 0;
            for (int32_t j = 0; j < r->n * m; j++) {
                double s = 0;
                p[j] = 0;
                if (!full && r->window[r->home[i / m]] != r->window[r->home[j / m]]) continue;
                for (int32_t e = h * dh; e < (h + 1) * dh; e++) s += q[i * d + e] * k[j * d + e];
                sum += p[j] = r->size[j / m] * exp(s / sqrt(dh)); /* exp(s / sqrt(dh) + ln size) */
            }
            for (int32_t e = h * dh; e < (h + 1) * dh; e++) {
                double s = 0;
                for (int32_t j = 0; j < r->n * m; j++) s += p[j] / sum * v[j * d + e];
                out[i * d + e] = s;
            }
        }
}

/* Merges `gone` cells at even places into their best cell at an odd place (methods-encoder 4.3). */
static void merge(struct ref *r, const double *k, int32_t gone) {
    const int32_t d = r->t->info.d_vision, dh = r->t->info.d_head, H = r->t->info.n_head,
                  wide = r->m * d;
    static double key[MAX_ROW][MAX_D];
    double best[MAX_ROW];
    int32_t to[MAX_ROW], place[MAX_ROW];
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t e = 0; e < dh; e++) {
            key[i][e] = 0;
            for (int32_t h = 0; h < H; h++)
                for (int32_t j = i * r->m; j < (i + 1) * r->m; j++)
                    key[i][e] += k[j * d + h * dh + e] / H / r->m;
        }
    for (int32_t i = 0; i < r->n; i++) {
        to[i] = -1;
        best[i] = -2;
        for (int32_t j = 1; i % 2 == 0 && j < r->n; j += 2) {
            double a = 0, b = 0, c = 0;
            for (int32_t e = 0; e < dh; e++) {
                a += key[i][e] * key[j][e];
                b += key[i][e] * key[i][e];
                c += key[j][e] * key[j][e];
            }
            if (a / sqrt(b * c) > best[i]) best[i] = a / sqrt(b * c), to[i] = j;
        }
    }
    for (int32_t i = 0; i < r->n; i++) place[i] = i;
    for (int32_t g = 0; g < gone; g++) {
        int32_t at = -1;
        for (int32_t i = 0; i < r->n; i += 2)
            if (place[i] == i && (at < 0 || best[i] > best[at])) at = i;
        place[at] = to[at];
    }
    for (int32_t i = 0; i < r->n; i++) {
        if (place[i] == i) continue;
        const int32_t j = place[i];
        for (int32_t e = 0; e < wide; e++)
            r->x[j * wide + e] =
                (r->size[j] * r->x[j * wide + e] + r->size[i] * r->x[i * wide + e]) /
                (r->size[j] + r->size[i]);
        r->size[j] += r->size[i];
    }
    int32_t n = 0, now[MAX_ROW];
    for (int32_t i = 0; i < r->n; i++) {
        if (place[i] != i) continue;
        memmove(r->x + n * wide, r->x + i * wide, (size_t)wide * sizeof *r->x);
        r->size[n] = r->size[i];
        r->home[n] = r->home[i];
        now[i] = n++;
    }
    for (int32_t i = 0; i < r->first; i++) r->owner[i] = now[place[r->owner[i]]];
    r->n = n;
}

static void block(struct ref *r, const struct iwp_vit_block *b, int32_t after) {
    const struct iwp_tower *t = r->t;
    const int32_t d = t->info.d_vision, f = t->n_ff, rows = r->n * r->m;
    const size_t most = (size_t)rows * (size_t)(f > 3 * d ? f : 3 * d);
    double *y = malloc(most * sizeof *y), *q = malloc(most * sizeof *q),
           *k = malloc(most * sizeof *k), *v = malloc(most * sizeof *v),
           *a = malloc(most * sizeof *a);
    norm(t, r->x, rows, b->ln1_w, b->ln1_b, y);
    if (b->qkv_w) {
        linear(y, rows, b->qkv_w, b->qkv_b, a);
        for (int32_t i = 0; i < rows * d; i++) {
            const double *from = a + i / d * 3 * d + i % d;
            q[i] = from[0], k[i] = from[d], v[i] = from[2 * d];
        }
    } else {
        linear(y, rows, b->q_w, b->q_b, q);
        linear(y, rows, b->k_w, b->k_b, k);
        linear(y, rows, b->v_w, b->v_b, v);
    }
    if (t->qwen) rotate(r, q), rotate(r, k);
    attend(r, !t->qwen || b->full, q, k, v, a);
    linear(a, rows, b->o_w, b->o_b, y);
    for (int32_t i = 0; i < rows * d; i++) r->x[i] += y[i];
    if (after < r->n) merge(r, k, r->n - after);
    const int32_t left = r->n * r->m;
    norm(t, r->x, left, b->ln2_w, b->ln2_b, y);
    linear(y, left, b->up_w, b->up_b, q);
    if (b->gate_w) linear(y, left, b->gate_w, b->gate_b, k);
    for (int32_t i = 0; i < left * f; i++)
        q[i] = b->gate_w ? act(t->act, k[i]) * q[i] : act(t->act, q[i]);
    linear(q, left, b->down_w, b->down_b, y);
    for (int32_t i = 0; i < left * d; i++) r->x[i] += y[i];
    free(y);
    free(q);
    free(k);
    free(v);
    free(a);
}

/* Rows that enter the first block: patches of a tile and their positions. */
static void embed_tile(struct ref *r, const float *pixels) {
    const struct iwp_tower *t = r->t;
    const int32_t d = t->info.d_vision, p = t->info.pre.patch, px = t->info.pre.tile, side = px / p;
    double *in = malloc((size_t)(side * side * 3 * p * p) * sizeof *in), *to = in,
           *pos = read_weight(t->pos);
    for (int32_t i = 0; i < side * side; i++)
        for (int32_t c = 0; c < 3; c++)
            for (int32_t y = 0; y < p; y++)
                for (int32_t x = 0; x < p; x++)
                    *to++ = (double)pixels[(c * px + i / side * p + y) * px + i % side * p + x];
    linear(in, side * side, t->patch_w, t->patch_b, r->x);
    for (int32_t i = 0; i < side * side * d; i++) r->x[i] += pos[i];
    free(in);
    free(pos);
}

/* Patches of a frame, [channel][time][y][x] each, and where their cells are. */
static void embed_frame(struct ref *r, const struct iwp_pre_plan *plan, const float *pixels) {
    const struct iwp_tower *t = r->t;
    const int32_t n = plan->grid_h * plan->grid_w, pp = plan->patch * plan->patch,
                  d = t->info.d_vision;
    double *in = malloc((size_t)(n * 3 * pp) * sizeof *in),
           *part = malloc((size_t)(n * d) * sizeof *part);
    memset(r->x, 0, (size_t)(n * d) * sizeof *r->x);
    for (int32_t time = 0; time < 2; time++) {
        for (int32_t i = 0; i < n; i++)
            for (int32_t c = 0; c < 3; c++)
                for (int32_t e = 0; e < pp; e++)
                    in[(i * 3 + c) * pp + e] = (double)pixels[((i * 3 + c) * 2 + time) * pp + e];
        linear(in, n, time ? t->patch_w1 : t->patch_w, NULL, part);
        for (int32_t i = 0; i < n * d; i++) r->x[i] += part[i];
    }
    CHECK(t->patch_b == NULL);
    int32_t index[MAX_ROW], starts[MAX_ROW], where[2 * MAX_ROW],
        n_window = iwp_pre_windows(plan, index, starts);
    iwp_pre_patch_positions(plan, where);
    CHECK(n_window > 1); /* else windows would not be tried */
    for (int32_t w = 0; w < n_window; w++)
        for (int32_t i = starts[w] / r->m; i < starts[w + 1] / r->m; i++) r->window[index[i]] = w;
    memcpy(r->where, where, (size_t)(2 * n) * sizeof *where);
    free(in);
    free(part);
}

/* Projected rows [r->n][d_model]. */
static double *reference(struct ref *r, const struct iwp_pre_plan *plan, const float *pixels,
                         const int32_t *after) {
    const struct iwp_tower *t = r->t;
    const int32_t d = t->info.d_vision, D = t->info.d_model;
    r->x = malloc((size_t)(r->n * r->m * d) * sizeof *r->x);
    for (int32_t i = 0; i < r->n; i++) r->home[i] = r->owner[i] = i, r->size[i] = 1;
    r->first = r->n;
    if (t->qwen)
        embed_frame(r, plan, pixels);
    else
        embed_tile(r, pixels);
    for (int32_t i = 0; i < t->info.n_block; i++) block(r, &t->block[i], after[i]);
    if (t->post_w) norm(t, r->x, r->n * r->m, t->post_w, t->post_b, r->x);
    const size_t wide = (size_t)(r->n * (D > r->m * d ? D : r->m * d));
    double *y = malloc(wide * sizeof *y), *z = malloc(wide * sizeof *z);
    linear(r->x, r->n, t->mm0_w, t->mm0_b, y);
    const int32_t hidden = (int32_t)(t->mm0_b ? t->mm0_b->ne[0] : t->mm0_w->ne[1]);
    CHECK((size_t)(r->n * hidden) <= wide);
    for (int32_t i = 0; i < r->n * hidden; i++) y[i] = act(t->proj_act, y[i]);
    linear(y, r->n, t->mm2_w, t->mm2_b, z);
    free(y);
    return z;
}

static void try_tower(const char *name) {
    struct golden G;
    iwp_err err = {0};
    if (!golden_open(&G, name, "none")) return;
    struct iwp_tower *t = G.prompter->tower;
    const int32_t D = t->info.d_model, m = t->qwen ? t->info.merge : 1, px = t->info.pre.tile;
    struct iwp_pre_plan plan = {.n_tile = 1, .n_pixel = (size_t)(3 * px * px)};
    if (t->qwen)
        CHECK_MSG(iwp_pre_plan_make(&t->info.pre, 200, 150, 1, IWP_PRE_SINGLE, &plan, &err) == 0,
                  "%s", err.msg);
    else
        plan.side = px / t->info.pre.patch;
    const int32_t np = t->qwen ? plan.grid_h * plan.grid_w / m : t->n_patch;
    CHECK(t->info.d_vision <= MAX_D && np * m <= MAX_ROW && !t->cls && plan.grid_t <= 1);
    float *pixels = malloc(plan.n_pixel * sizeof *pixels);
    uint32_t seed = 7;
    for (size_t i = 0; i < plan.n_pixel; i++) {
        seed = seed * 1664525u + 1013904223u;
        pixels[i] = (float)(seed >> 8) / 8388608.0f - 1;
    }
    struct iwp_params method;
    iwp_params_default(&method, iwp_method_find("tome"));
    const int32_t keeps[] = {np, np - 1, np / 2, np / 3, np / 9, 2};
    for (size_t c = 0; c < sizeof keeps / sizeof keeps[0]; c++) {
        int32_t after[IWP_VIT_MAX_BLOCK];
        struct iwp_tower_out out;
        struct ref r = {.t = t, .m = m, .n = np};
        const struct iwp_tower_want want = {.merge = &method, .keep = &keeps[c]};
        CHECK_MSG(iwp_tower_merge_plan(t, &method, np, keeps[c], after, &err) == 0, "%s", err.msg);
        CHECK_INT(after[t->info.n_block - 1], keeps[c]);
        CHECK_MSG(iwp_tower_encode(t, &plan, pixels, &want, &out, &err) == 0, "%s", err.msg);
        double *rows = reference(&r, &plan, pixels, after), worst = 0, most = 0;
        CHECK_INT(r.n, keeps[c]);
        int32_t leads = 0;
        for (int32_t i = 0; i < np; i++) {
            leads += out.lead[i] == i;
            CHECK_INT(out.lead[i], r.home[r.owner[i]]);
            for (int32_t k = 0; k < D; k++) {
                const double want_row = rows[r.owner[i] * D + k];
                worst = fmax(worst, fabs((double)out.row[i * D + k] - want_row));
                most = fmax(most, fabs(want_row));
            }
        }
        CHECK_INT(leads, keeps[c]);
        CHECK_MSG(worst <= 1e-4 * most, "%s, keep %d of %d: rows differ by %g of %g", name,
                  keeps[c], np, worst, most);
        iwp_tower_out_free(&out);
        free(rows);
        free(r.x);
    }
    /* What so many halvings cannot reach, and more rows than there are. */
    int32_t after[IWP_VIT_MAX_BLOCK];
    if (np > 1 << t->info.n_block)
        CHECK(iwp_tower_merge_plan(t, &method, np, 1, after, &err) < 0 &&
              strstr(err.msg, "reaches 2"));
    CHECK(iwp_tower_merge_plan(t, &method, np, np + 1, after, &err) < 0);
    free(pixels);
    golden_close(&G);
}

int main(void) {
    try_tower("llava-ov");
    try_tower("qwen2.5-vl");
    return test_done();
}
