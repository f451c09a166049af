/* Merging tokens inside a tower (ToMe, methods-encoder 4): in every block, between attention and MLP, a
 * method pairs rows by the block's keys and pairs are averaged, weights = sizes.  Later blocks see fewer
 * rows and add ln(size) to the logits of a row's key (proportional attention).
 *
 * What is merged is a cell: one row of a tile, or the rows that the merger of Qwen2.5-VL joins to one
 * token.  Cells merge row by row, so the merger finds its four rows; a cell's key is the mean over its
 * rows.  A merged cell keeps the place, window and rotary position of the one it was merged into.
 *
 * ln(size) travels as one more dimension of q (1) and k (ln(size) / scale): the product is the same and
 * no mask of rows x rows is needed.
 *
 * Refuses: nothing; counts come from the method's plan. */
#include "model/vit_merge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int iwp_vit_merge_init(struct iwp_vit_merge *s, const struct iwp_tower *t, int32_t n, int32_t m,
                       iwp_err *err) {
    const size_t rows = (size_t)n * (size_t)m, d = (size_t)t->info.d_vision;
    *s = (struct iwp_vit_merge){.n = n, .n_first = n, .m = m, .cls = -1};
    s->x = malloc(rows * d * sizeof *s->x);
    s->key = malloc(rows * d * sizeof *s->key);
    s->tmp = malloc(rows * d * sizeof *s->tmp);
    s->home = malloc((size_t)n * sizeof *s->home);
    s->owner = malloc((size_t)n * sizeof *s->owner);
    s->order = malloc((size_t)n * sizeof *s->order);
    s->place = malloc((size_t)n * sizeof *s->place);
    s->size = malloc((size_t)n * sizeof *s->size);
    s->bias = malloc(rows * (size_t)t->info.n_head * sizeof *s->bias);
    s->pos = malloc(4 * rows * sizeof *s->pos);
    if (!s->x || !s->key || !s->tmp || !s->home || !s->owner || !s->order || !s->place ||
        !s->size || !s->bias || !s->pos) {
        iwp_vit_merge_free(s);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory for %d rows of the tower", n);
    }
    for (int32_t i = 0; i < n; i++) {
        s->home[i] = s->owner[i] = i;
        s->size[i] = 1;
    }
    return 0;
}

void iwp_vit_merge_free(struct iwp_vit_merge *s) {
    free(s->x);
    free(s->key);
    free(s->tmp);
    free(s->home);
    free(s->owner);
    free(s->order);
    free(s->place);
    free(s->size);
    free(s->bias);
    free(s->pos);
    *s = (struct iwp_vit_merge){0};
}

/* ---- one block ---------------------------------------------------------------------------------- */

/* Cells sorted by window, longest windows first, so that equal ones form one batched product. */
static int arrange(struct iwp_vit_merge *s, bool full, struct iwp_vit_run *run, int32_t *n_run,
                   iwp_err *err) {
    for (int32_t i = 0; i < s->n; i++) s->order[i] = i;
    if (full || !s->window) {
        run[0] = (struct iwp_vit_run){0, s->n * s->m, 1};
        *n_run = 1;
        return 0;
    }
    int32_t *count = calloc((size_t)s->n_window + 1, sizeof *count);
    IWP_REQUIRE(count, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < s->n; i++) count[s->window[s->home[i]]]++;
    int32_t done = 0, last = INT32_MAX;
    *n_run = 0;
    for (;;) {
        int32_t len = 0;
        for (int32_t w = 0; w < s->n_window; w++)
            if (count[w] < last && count[w] > len) len = count[w];
        if (!len || *n_run == IWP_VIT_MAX_RUN) break;
        struct iwp_vit_run *r = &run[(*n_run)++];
        *r = (struct iwp_vit_run){done * s->m, len * s->m, 0};
        for (int32_t w = 0; w < s->n_window; w++) {
            if (count[w] != len) continue;
            r->count++;
            for (int32_t i = 0; i < s->n; i++)
                if (s->window[s->home[i]] == w) s->order[done++] = i;
        }
        last = len;
    }
    free(count);
    IWP_REQUIRE(done == s->n, err, IWP_EINTERNAL, "windows hold %d of %d cells", done, s->n);
    return 0;
}

struct graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *g;
    struct ggml_tensor *x, *pos, *one, *bias, *k, *out;
};

static struct ggml_tensor *input(struct ggml_tensor *t) {
    ggml_set_input(t);
    return t;
}

static int finish(struct iwp_tower *t, struct graph *g, iwp_err *err) {
    iwp_vit_outputs(g->g, (struct ggml_tensor *[]){g->out, g->k}, 2);
    t->replan = true; /* graphs of several forms take turns */
    return iwp_vit_place_graph(t, g->g, err);
}

/* x + attention; the keys too when rows are merged after it, else the MLP at once. */
static int build(struct iwp_tower *t, const struct iwp_vit_merge *s, const struct iwp_vit_block *b,
                 const struct iwp_vit_run *run, int32_t n_run, bool merges, struct graph *g,
                 iwp_err *err) {
    const int64_t d = t->info.d_vision, H = t->info.n_head, rows = (int64_t)s->n * s->m;
    struct ggml_tensor *qkv[3];
    *g = (struct graph){0};
    IWP_TRY(iwp_sched_begin(t->sched, &g->ctx, &g->g, err));
    struct ggml_context *ctx = g->ctx;
    g->x = input(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, d, rows));
    if (s->where) g->pos = input(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4 * rows));
    iwp_vit_qkv_build(t, ctx, b, g->x, g->pos, qkv);
    if (merges) g->k = ggml_cont(ctx, qkv[1]);
    if (s->n < s->n_first) { /* sizes exist */
        g->one = input(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1, H, rows));
        g->bias = input(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1, H, rows));
        qkv[0] = ggml_concat(ctx, ggml_cont(ctx, qkv[0]), g->one, 0);
        qkv[1] = ggml_concat(ctx, ggml_cont(ctx, qkv[1]), g->bias, 0);
    }
    struct ggml_tensor *a = iwp_vit_attend_build(t, ctx, qkv, run, n_run);
    struct ggml_tensor *x = ggml_add(ctx, g->x, iwp_vit_linear(ctx, a, b->o_w, b->o_b));
    g->out = merges ? x : iwp_vit_mlp_build(t, ctx, b, x);
    return finish(t, g, err);
}

static void fill(const struct iwp_tower *t, struct iwp_vit_merge *s, const struct graph *g) {
    const size_t d = (size_t)t->info.d_vision, m = (size_t)s->m, rows = (size_t)s->n * m;
    const size_t H = (size_t)t->info.n_head;
    for (int32_t i = 0; i < s->n; i++)
        memcpy(s->tmp + (size_t)i * m * d, s->x + (size_t)s->order[i] * m * d,
               m * d * sizeof *s->tmp);
    ggml_backend_tensor_set(g->x, s->tmp, 0, ggml_nbytes(g->x));
    if (g->pos) {
        for (size_t i = 0; i < rows; i++) {
            const int32_t *yx = s->where + 2 * ((size_t)s->home[s->order[i / m]] * m + i % m);
            s->pos[i] = s->pos[i + 2 * rows] = yx[0];
            s->pos[i + rows] = s->pos[i + 3 * rows] = yx[1];
        }
        ggml_backend_tensor_set(g->pos, s->pos, 0, ggml_nbytes(g->pos));
    }
    if (!g->bias) return;
    for (size_t i = 0; i < rows * H; i++) s->bias[i] = 1;
    ggml_backend_tensor_set(g->one, s->bias, 0, ggml_nbytes(g->one));
    const float root = sqrtf((float)t->info.d_head); /* the logits are divided by it */
    for (size_t i = 0; i < rows; i++)
        for (size_t h = 0; h < H; h++) s->bias[i * H + h] = root * logf(s->size[s->order[i / m]]);
    ggml_backend_tensor_set(g->bias, s->bias, 0, ggml_nbytes(g->bias));
}

/* A result in the graph's order back to the order of cells. */
static void fetch(const struct iwp_tower *t, struct iwp_vit_merge *s, struct ggml_tensor *from,
                  float *to) {
    const size_t width = (size_t)t->info.d_vision * (size_t)s->m;
    ggml_backend_tensor_get(from, s->tmp, 0, ggml_nbytes(from));
    for (int32_t i = 0; i < s->n; i++)
        memcpy(to + (size_t)s->order[i] * width, s->tmp + (size_t)i * width, width * sizeof *to);
}

static int run_mlp(struct iwp_tower *t, struct iwp_vit_merge *s, const struct iwp_vit_block *b,
                   iwp_err *err) {
    struct graph g = {0};
    IWP_TRY(iwp_sched_begin(t->sched, &g.ctx, &g.g, err));
    g.x = input(
        ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, t->info.d_vision, (int64_t)s->n * (int64_t)s->m));
    g.out = iwp_vit_mlp_build(t, g.ctx, b, g.x);
    IWP_TRY(finish(t, &g, err));
    ggml_backend_tensor_set(g.x, s->x, 0, ggml_nbytes(g.x));
    IWP_TRY(iwp_sched_compute(t->sched, err));
    ggml_backend_tensor_get(g.out, s->x, 0, ggml_nbytes(g.out));
    return 0;
}

/* ---- merging ------------------------------------------------------------------------------------ */

/* Mean key of every cell into tmp [cells][heads][d_head], the class token first. */
static void cell_keys(const struct iwp_tower *t, struct iwp_vit_merge *s, int32_t *cell) {
    const size_t d = (size_t)t->info.d_vision, m = (size_t)s->m;
    int32_t n = 0;
    if (s->cls >= 0) cell[n++] = s->owner[s->cls];
    for (int32_t i = 0; i < s->n; i++)
        if (s->cls < 0 || s->home[i] != s->cls) cell[n++] = i;
    for (int32_t i = 0; i < n; i++)
        for (size_t k = 0; k < d; k++) {
            float sum = 0;
            for (size_t r = 0; r < m; r++) sum += s->key[((size_t)cell[i] * m + r) * d + k];
            s->tmp[(size_t)i * d + k] = sum / (float)m;
        }
}

/* Averages the rows of a selection's groups, weights = sizes, and drops what went elsewhere. */
static void apply(const struct iwp_tower *t, struct iwp_vit_merge *s,
                  const struct iwp_selection *sel, const int32_t *cell, int32_t *goes) {
    const size_t width = (size_t)t->info.d_vision * (size_t)s->m;
    for (int32_t i = 0; i < s->n; i++) goes[i] = i;
    for (int32_t i = 0; i < sel->n_merge; i++)
        goes[cell[sel->merge[i].from]] = cell[sel->merge[i].to];
    for (int32_t i = 0; i < s->n; i++) s->place[i] = goes[i] == i ? 0 : -1;
    for (int32_t i = 0; i < s->n; i++) /* sums first … */
        if (goes[i] != i && s->place[goes[i]] == 0) {
            float *y = s->x + (size_t)goes[i] * width;
            for (size_t k = 0; k < width; k++) y[k] *= s->size[goes[i]];
            s->place[goes[i]] = 1;
        }
    for (int32_t i = 0; i < s->n; i++) {
        if (goes[i] == i) continue;
        float *y = s->x + (size_t)goes[i] * width;
        const float *x = s->x + (size_t)i * width;
        for (size_t k = 0; k < width; k++) y[k] += s->size[i] * x[k];
        s->size[goes[i]] += s->size[i];
    }
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) { /* … then means, moved together */
        if (goes[i] != i) continue;
        float *to = s->x + (size_t)n * width, *from = s->x + (size_t)i * width;
        const float inv = s->place[i] == 1 ? 1.0f / s->size[i] : 1.0f;
        for (size_t k = 0; k < width; k++) to[k] = inv * from[k];
        s->size[n] = s->size[i];
        s->home[n] = s->home[i];
        s->place[i] = n++;
    }
    for (int32_t i = 0; i < s->n_first; i++) s->owner[i] = s->place[goes[s->owner[i]]];
    s->n = n;
}

/* r cells less, as the method pairs them. */
static int merge(struct iwp_tower *t, struct iwp_vit_merge *s, const struct iwp_params *method,
                 int32_t r, iwp_err *err) {
    const int32_t cls = s->cls >= 0, n = s->n - cls;
    struct iwp_params p = *method;
    struct iwp_selection sel = {0};
    struct iwp_input in = {.n = n};
    char text[16];
    int rc = 0;
    uint8_t *code = malloc((size_t)n);
    int32_t *cell = malloc(2 * (size_t)s->n * sizeof *cell), *goes = cell ? cell + s->n : NULL;
    void *ws = NULL;
    sel.keep = malloc((size_t)n * sizeof *sel.keep);
    sel.merge = malloc(2 * (size_t)n * sizeof *sel.merge);
    if (!code || !cell || !sel.keep || !sel.merge) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    memset(code, IWP_CODE_VISUAL, (size_t)n);
    cell_keys(t, s, cell);
    in.code = code;
    in.arr[IWP_TENSOR_VIT_K] = iwp_array_f32(s->tmp, s->n, t->info.n_head, t->info.d_head);
    p.budget = (struct iwp_budget){.keep = 1, .keep_separators = -1};
    snprintf(text, sizeof text, "%d", r);
    IWP_TRY_GOTO(iwp_params_set(&p, "r", text, err));
    IWP_TRY_GOTO(iwp_params_set(&p, "inflection", "0", err)); /* the plan followed it */
    IWP_TRY_GOTO(iwp_params_set(&p, "cls", cls ? "1" : "0", err));
    int64_t bytes = iwp_select_workspace(&p, &in, &t->b->exec, err);
    if (bytes < 0) {
        rc = (int)bytes;
        goto fail;
    }
    ws = malloc((size_t)bytes);
    if (!ws) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(iwp_select(&p, &in, NULL, ws, (size_t)bytes, &t->b->exec, &sel, err));
    apply(t, s, &sel, cell + cls, goes);
fail:
    free(code);
    free(cell);
    free(ws);
    free(sel.keep);
    free(sel.merge);
    return rc < 0 ? rc : 0;
}

int iwp_tower_merge_plan(const struct iwp_tower *t, const struct iwp_params *method, int32_t n,
                         int32_t keep, int32_t *after, iwp_err *err) {
    const int32_t n_block = t->info.n_block;
    struct iwp_params p = *method;
    struct iwp_stage stage[IWP_STAGE_MAX];
    const struct iwp_plan_shape shape = {.n_layer = 1, .n_visual = n, .n_block = n_block};
    p.budget.n_keep = keep;
    int k = iwp_plan(&p, &shape, stage, IWP_STAGE_MAX, err);
    IWP_TRY(k);
    int32_t left = n;
    for (int32_t b = 0, i = 0; b < n_block; b++) {
        if (i < k && stage[i].at == b) left = stage[i++].n_keep;
        after[b] = left;
    }
    return 0;
}

int iwp_vit_merge_blocks(struct iwp_tower *t, struct iwp_vit_merge *s,
                         const struct iwp_params *method, int32_t keep, iwp_err *err) {
    struct iwp_vit_run run[IWP_VIT_MAX_RUN];
    int32_t after[IWP_VIT_MAX_BLOCK], n_run, cls = s->cls >= 0;
    IWP_TRY(iwp_tower_merge_plan(t, method, s->n - cls, keep, after, err));
    for (int32_t i = 0; i < t->info.n_block; i++) {
        const struct iwp_vit_block *b = &t->block[i];
        const int32_t r = s->n - cls - after[i];
        struct graph g;
        IWP_TRY(arrange(s, b->full, run, &n_run, err));
        IWP_TRY(build(t, s, b, run, n_run, r > 0, &g, err));
        fill(t, s, &g);
        IWP_TRY(iwp_sched_compute(t->sched, err));
        if (r > 0) fetch(t, s, g.k, s->key);
        fetch(t, s, g.out, s->x);
        if (r <= 0) continue;
        IWP_TRY(merge(t, s, method, r, err));
        IWP_TRY(run_mlp(t, s, b, err));
    }
    return 0;
}

int iwp_vit_merge_project(struct iwp_tower *t, struct iwp_vit_merge *s, float **rows,
                          iwp_err *err) {
    const int64_t n = (int64_t)s->n * s->m;
    struct graph g = {0};
    *rows = malloc((size_t)s->n * (size_t)t->info.d_model * sizeof **rows);
    IWP_REQUIRE(*rows, err, IWP_ENOMEM, "out of memory for %d visual rows", s->n);
    IWP_TRY(iwp_sched_begin(t->sched, &g.ctx, &g.g, err));
    g.x = input(ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, t->info.d_vision, n));
    struct ggml_tensor *x = g.x;
    if (!t->qwen && t->post_w) x = iwp_vit_norm(t, g.ctx, x, t->post_w, t->post_b);
    g.out = iwp_vit_projector(t, g.ctx, x);
    IWP_TRY(finish(t, &g, err));
    ggml_backend_tensor_set(g.x, s->x, 0, ggml_nbytes(g.x));
    IWP_TRY(iwp_sched_compute(t->sched, err));
    ggml_backend_tensor_get(g.out, *rows, 0, ggml_nbytes(g.out));
    return 0;
}

void iwp_vit_merge_spread(const struct iwp_tower *t, const struct iwp_vit_merge *s,
                          const float *rows, int32_t skip, int32_t n, struct iwp_tower_out *out,
                          int32_t first) {
    const size_t d = (size_t)t->info.d_model;
    int32_t *lead = s->place; /* of every cell that is left: its token */
    for (int32_t i = 0; i < s->n; i++) lead[i] = -1;
    for (int32_t i = 0; i < n; i++) { /* the place of the group, else its first token */
        const int32_t cell = i + skip, own = s->owner[cell];
        if (lead[own] < 0 || s->home[own] == cell) lead[own] = first + i;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t own = s->owner[i + skip];
        out->lead[first + i] = lead[own];
        memcpy(out->row + (size_t)(first + i) * d, rows + (size_t)own * d, d * sizeof *out->row);
    }
}
