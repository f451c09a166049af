/* ToMe inside a tower against straight loops in double: one tile of the golden LLaVA-OneVision tower,
 * several budgets. */
#include <math.h>

#include "golden.h"
#include "model/vit.h"

enum { MAX_D = 256, MAX_FF = 1024, MAX_ROW = 512 };

struct ref {
    const struct iwp_tower *t;
    int32_t n, first; /* rows now, at first */
    double *x;        /* [n][d] */
    double size[MAX_ROW];
    int32_t home[MAX_ROW], owner[MAX_ROW];
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
    const int32_t in = (int32_t)(ggml_nelements(w) / (b ? b->ne[0] : w->ne[1])),
                  out = (int32_t)(ggml_nelements(w) / in);
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
    double *a = read_weight(w), *c = read_weight(b);
    for (int32_t i = 0; i < n; i++) {
        double m = 0, v = 0;
        for (int32_t k = 0; k < d; k++) m += x[i * d + k] / d;
        for (int32_t k = 0; k < d; k++) v += (x[i * d + k] - m) * (x[i * d + k] - m) / d;
        for (int32_t k = 0; k < d; k++)
            y[i * d + k] = (x[i * d + k] - m) / sqrt(v + (double)t->eps) * a[k] + c[k];
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

/* Attention with ln(size) in the logits. */
static void attend(const struct ref *r, const double *q, const double *k, const double *v,
                   double *out) {
    const int32_t d = r->t->info.d_vision, dh = r->t->info.d_head;
    double p[MAX_ROW];
    for (int32_t h = 0; h < r->t->info.n_head; h++)
        for (int32_t i = 0; i < r->n; i++) {
            double sum = 0;
            for (int32_t j = 0; j < r->n; j++) {
                double s = 0;
                for (int32_t e = h * dh; e < (h + 1) * dh; e++) s += q[i * d + e] * k[j * d + e];
                sum += p[j] = r->size[j] * exp(s / sqrt(dh)); /* = exp(s / sqrt(dh) + ln size) */
            }
            for (int32_t e = h * dh; e < (h + 1) * dh; e++) {
                double s = 0;
                for (int32_t j = 0; j < r->n; j++) s += p[j] / sum * v[j * d + e];
                out[i * d + e] = s;
            }
        }
}

/* Merges `gone` rows at even places into their best row at an odd place (methods-encoder 4.3). */
static void merge(struct ref *r, const double *k, int32_t gone) {
    const int32_t d = r->t->info.d_vision, dh = r->t->info.d_head, H = r->t->info.n_head;
    double key[MAX_ROW][MAX_D], best[MAX_ROW];
    int32_t to[MAX_ROW], place[MAX_ROW];
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t e = 0; e < dh; e++) {
            key[i][e] = 0;
            for (int32_t h = 0; h < H; h++) key[i][e] += k[i * d + h * dh + e] / H;
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
        for (int32_t e = 0; e < d; e++)
            r->x[j * d + e] = (r->size[j] * r->x[j * d + e] + r->size[i] * r->x[i * d + e]) /
                              (r->size[j] + r->size[i]);
        r->size[j] += r->size[i];
    }
    int32_t n = 0, now[MAX_ROW];
    for (int32_t i = 0; i < r->n; i++) {
        if (place[i] != i) continue;
        memmove(r->x + n * d, r->x + i * d, (size_t)d * sizeof *r->x);
        r->size[n] = r->size[i];
        r->home[n] = r->home[i];
        now[i] = n++;
    }
    for (int32_t i = 0; i < r->first; i++) r->owner[i] = now[place[r->owner[i]]];
    r->n = n;
}

static void block(struct ref *r, const struct iwp_vit_block *b, int32_t after) {
    const struct iwp_tower *t = r->t;
    const int32_t d = t->info.d_vision, f = t->n_ff;
    const size_t most = (size_t)r->n * (size_t)(f > d ? f : d);
    double *y = malloc(most * sizeof *y), *q = malloc(most * sizeof *q),
           *k = malloc(most * sizeof *k), *v = malloc(most * sizeof *v),
           *a = malloc(most * sizeof *a);
    CHECK(b->q_w != NULL && !b->gate_w);
    norm(t, r->x, r->n, b->ln1_w, b->ln1_b, y);
    linear(y, r->n, b->q_w, b->q_b, q);
    linear(y, r->n, b->k_w, b->k_b, k);
    linear(y, r->n, b->v_w, b->v_b, v);
    attend(r, q, k, v, a);
    linear(a, r->n, b->o_w, b->o_b, y);
    for (int32_t i = 0; i < r->n * d; i++) r->x[i] += y[i];
    if (after < r->n) merge(r, k, r->n - after);
    norm(t, r->x, r->n, b->ln2_w, b->ln2_b, y);
    linear(y, r->n, b->up_w, b->up_b, q);
    for (int32_t i = 0; i < r->n * f; i++) q[i] = act(t->act, q[i]);
    linear(q, r->n, b->down_w, b->down_b, y);
    for (int32_t i = 0; i < r->n * d; i++) r->x[i] += y[i];
    free(y);
    free(q);
    free(k);
    free(v);
    free(a);
}

/* Projected rows [r->n][d_model]. */
static double *reference(struct ref *r, const float *pixels, const int32_t *after) {
    const struct iwp_tower *t = r->t;
    const int32_t d = t->info.d_vision, p = t->info.pre.patch, px = t->info.pre.tile, side = px / p;
    const int32_t wide = 3 * p * p;
    double *in = malloc((size_t)(side * side * wide) * sizeof *in), *to = in;
    for (int32_t i = 0; i < side * side; i++)
        for (int32_t c = 0; c < 3; c++)
            for (int32_t y = 0; y < p; y++)
                for (int32_t x = 0; x < p; x++)
                    *to++ = (double)pixels[(c * px + i / side * p + y) * px + i % side * p + x];
    r->n = r->first = side * side;
    r->x = malloc((size_t)(r->n * d) * sizeof *r->x);
    linear(in, r->n, t->patch_w, t->patch_b, r->x);
    double *pos = read_weight(t->pos);
    for (int32_t i = 0; i < r->n * d; i++) r->x[i] += pos[i];
    for (int32_t i = 0; i < r->n; i++) r->home[i] = r->owner[i] = i, r->size[i] = 1;
    for (int32_t i = 0; i < t->info.n_block; i++) block(r, &t->block[i], after[i]);
    if (t->post_w) norm(t, r->x, r->n, t->post_w, t->post_b, r->x);
    const int32_t D = t->info.d_model;
    double *y = malloc((size_t)(r->n * D) * sizeof *y), *z = malloc((size_t)(r->n * D) * sizeof *z);
    linear(r->x, r->n, t->mm0_w, t->mm0_b, y);
    for (int32_t i = 0; i < r->n * D; i++) y[i] = act(t->proj_act, y[i]);
    linear(y, r->n, t->mm2_w, t->mm2_b, z);
    free(in);
    free(pos);
    free(y);
    return z;
}

int main(void) {
    struct golden G;
    iwp_err err = {0};
    if (!golden_open(&G, "llava-ov", "none")) return test_done();
    struct iwp_tower *t = G.prompter->tower;
    const int32_t px = t->info.pre.tile, np = t->n_patch, D = t->info.d_model;
    CHECK(t->info.d_vision <= MAX_D && t->n_ff <= MAX_FF && np <= MAX_ROW && !t->cls);
    const struct iwp_pre_plan plan = {.n_tile = 1, .side = px / t->info.pre.patch};
    float *pixels = malloc((size_t)(3 * px * px) * sizeof *pixels);
    uint32_t seed = 7;
    for (int32_t i = 0; i < 3 * px * px; i++) {
        seed = seed * 1664525u + 1013904223u;
        pixels[i] = (float)(seed >> 8) / 8388608.0f - 1;
    }
    struct iwp_params method;
    iwp_params_default(&method, iwp_method_find("tome"));
    const int32_t keeps[] = {np, np - 1, np / 2, np / 3, np / 9, 2};
    for (size_t c = 0; c < sizeof keeps / sizeof keeps[0]; c++) {
        int32_t after[IWP_VIT_MAX_BLOCK];
        struct iwp_tower_out out;
        struct ref r = {.t = t};
        const struct iwp_tower_want want = {.merge = &method, .keep = &keeps[c]};
        CHECK_INT(iwp_tower_merge_plan(t, &method, np, keeps[c], after, &err), 0);
        CHECK_INT(after[t->info.n_block - 1], keeps[c]);
        CHECK_MSG(iwp_tower_encode(t, &plan, pixels, &want, &out, &err) == 0, "%s", err.msg);
        double *rows = reference(&r, pixels, after), worst = 0, most = 0;
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
        CHECK_MSG(worst <= 1e-4 * most, "keep %d: rows differ by %g of %g", keeps[c], worst, most);
        iwp_tower_out_free(&out);
        free(rows);
        free(r.x);
    }
    /* What five halvings cannot reach, and more rows than there are. */
    int32_t after[IWP_VIT_MAX_BLOCK];
    CHECK(iwp_tower_merge_plan(t, &method, np, 1, after, &err) < 0 && strstr(err.msg, "reaches 2"));
    CHECK(iwp_tower_merge_plan(t, &method, np, np + 1, after, &err) < 0);
    free(pixels);
    golden_close(&G);
    return test_done();
}
