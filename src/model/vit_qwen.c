/* Qwen2.5-VL's tower: RMS norms, SwiGLU, rotary embedding by row and column, attention inside windows
 * but for the listed blocks, and the merger.  Nothing attends across frames (pairs of pictures), so
 * every frame is a graph of its own.
 *
 * Inside a graph windows stand sorted by length, so that equal ones form one batched product; the order
 * among windows changes no number.  What goes out is put back: `vision` into the library's window
 * order, rows into picture order. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "model/vit_merge.h"

struct frame {
    int32_t n; /* patches */
    int32_t n_run;
    struct iwp_vit_run run[IWP_VIT_MAX_RUN]; /* windows of equal length */
    int32_t *place; /* [n / merge] for every group of the graph: its place in window order */
    int32_t *group; /* [n / merge] and its number in picture order */
};

struct graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *g;
    struct ggml_tensor *in0, *in1, *pos, *vision, *row, *q, *k;
};

/* Sorts the windows of frame f by length. */
static int arrange(const struct iwp_pre_plan *plan, int32_t f, int32_t merge, const int32_t *index,
                   const int32_t *starts, int32_t n_window, struct frame *fr, iwp_err *err) {
    const int32_t lo = f * fr->n, hi = lo + fr->n;
    int32_t done = 0, last = INT32_MAX;
    (void)plan;
    fr->n_run = 0;
    for (;;) { /* lengths from the longest down */
        int32_t len = 0;
        for (int32_t w = 0; w < n_window; w++) {
            const int32_t l = starts[w + 1] - starts[w];
            if (starts[w] >= lo && starts[w] < hi && l < last && l > len) len = l;
        }
        if (!len) break;
        IWP_REQUIRE(fr->n_run < IWP_VIT_MAX_RUN, err, IWP_EINTERNAL, "too many kinds of windows");
        struct iwp_vit_run *r = &fr->run[fr->n_run++];
        *r = (struct iwp_vit_run){done * merge, len, 0};
        for (int32_t w = 0; w < n_window; w++) {
            if (starts[w] < lo || starts[w] >= hi || starts[w + 1] - starts[w] != len) continue;
            r->count++;
            for (int32_t i = starts[w] / merge; i < starts[w + 1] / merge; i++, done++) {
                fr->place[done] = i;
                fr->group[done] = index[i];
            }
        }
        last = len;
    }
    IWP_REQUIRE(done * merge == fr->n, err, IWP_EINTERNAL, "windows cover %d of %d patches",
                done * merge, fr->n);
    return 0;
}

/* Rows that enter the first block, in [3*p*p, n] for each of the two pictures of a frame. */
static struct ggml_tensor *embed(struct iwp_tower *t, struct graph *g, int64_t n) {
    const int64_t d = t->info.d_vision, p = t->info.pre.patch;
    struct ggml_context *ctx = g->ctx;
    g->in0 = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3 * p * p, n);
    g->in1 = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3 * p * p, n);
    ggml_set_input(g->in0);
    ggml_set_input(g->in1);
    struct ggml_tensor *w0 = ggml_reshape_2d(ctx, t->patch_w, 3 * p * p, d),
                       *w1 = ggml_reshape_2d(ctx, t->patch_w1, 3 * p * p, d);
    struct ggml_tensor *x = iwp_pack_f32(t->pack, ctx, g->in0, w0, NULL);
    x = iwp_pack_f32(t->pack, ctx, g->in1, w1, x);
    return t->patch_b ? ggml_add(ctx, x, t->patch_b) : x;
}

static int build(struct iwp_tower *t, const struct frame *fr, const struct iwp_tower_want *want,
                 struct graph *g, iwp_err *err) {
    IWP_TRY(iwp_sched_begin(t->sched, &g->ctx, &g->g, err));
    struct ggml_context *ctx = g->ctx;
    g->pos = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4 * fr->n);
    ggml_set_input(g->pos);
    struct ggml_tensor *x = embed(t, g, fr->n);
    const struct iwp_vit_run whole = {0, fr->n, 1};
    for (int32_t i = 0; i < t->info.n_block; i++) {
        const struct iwp_vit_block *b = &t->block[i];
        const bool tap = want->qk && i == want->block;
        x = iwp_vit_block_build(t, ctx, b, x, b->full ? &whole : fr->run, b->full ? 1 : fr->n_run,
                                g->pos, tap ? &g->q : NULL, tap ? &g->k : NULL);
    }
    g->vision = x;
    g->row = iwp_vit_projector(t, ctx, x);
    iwp_vit_outputs(g->g, (struct ggml_tensor *[]){g->row, g->vision, g->q, g->k}, 4);
    return iwp_vit_place_graph(t, g->g, err);
}

/* Groups of `rows` rows of width d, from the graph's order to `to`[order]. */
static void scatter(const float *from, const int32_t *order, int32_t n, size_t width, float *to) {
    for (int32_t i = 0; i < n; i++)
        memcpy(to + (size_t)order[i] * width, from + (size_t)i * width, width * sizeof *to);
}

/* group: numbers of the graph's groups in picture order. */
static void fill_pixels(struct iwp_tower *t, const int32_t *group, int32_t n, const float *pixels,
                        float *in, const struct graph *g) {
    const int32_t m = t->info.merge;
    const size_t pp = (size_t)t->info.pre.patch * (size_t)t->info.pre.patch, row = 6 * pp;
    for (int half = 0; half < 2; half++) {
        for (int32_t i = 0; i < n; i++) { /* a patch is [channel][time][y][x] */
            const float *src = pixels + (size_t)(group[i / m] * m + i % m) * row;
            for (size_t c = 0; c < 3; c++)
                memcpy(in + ((size_t)i * 3 + c) * pp, src + (2 * c + (size_t)half) * pp,
                       pp * sizeof *in);
        }
        ggml_backend_tensor_set(half ? g->in1 : g->in0, in, 0, ggml_nbytes(g->in0));
    }
}

static void fill(struct iwp_tower *t, const struct frame *fr, const float *pixels,
                 const int32_t *where, float *in, int32_t *pos, const struct graph *g) {
    const int32_t m = t->info.merge;
    fill_pixels(t, fr->group, fr->n, pixels, in, g);
    for (int32_t i = 0; i < fr->n; i++) {
        const int32_t *yx = where + 2 * (size_t)(fr->group[i / m] * m + i % m);
        pos[i] = pos[i + 2 * fr->n] = yx[0];
        pos[i + fr->n] = pos[i + 3 * fr->n] = yx[1];
    }
    ggml_backend_tensor_set(g->pos, pos, 0, ggml_nbytes(g->pos));
}

int iwp_vit_encode_qwen(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                        const struct iwp_tower_want *want, struct iwp_tower_out *out,
                        iwp_err *err) {
    const int32_t m = t->info.merge, total = out->n_vision;
    const size_t d = (size_t)t->info.d_vision, pp = (size_t)plan->patch * (size_t)plan->patch;
    struct frame fr = {.n = plan->grid_h * plan->grid_w};
    const int32_t n_window = iwp_pre_windows(plan, NULL, NULL), groups = fr.n / m;
    int32_t *index = malloc((size_t)(total / m) * sizeof *index);
    int32_t *starts = malloc((size_t)(n_window + 1) * sizeof *starts);
    int32_t *where = malloc(2 * (size_t)total * sizeof *where);
    int32_t *pos = malloc(4 * (size_t)fr.n * sizeof *pos);
    float *in = malloc((size_t)fr.n * 3 * pp * sizeof *in);
    size_t wide = (size_t)fr.n * d, tall = (size_t)groups * (size_t)t->info.d_model;
    float *tmp = malloc((wide > tall ? wide : tall) * sizeof *tmp);
    fr.place = malloc((size_t)groups * sizeof *fr.place);
    fr.group = malloc((size_t)groups * sizeof *fr.group);
    int rc = 0;
    if (!index || !starts || !where || !pos || !in || !tmp || !fr.place || !fr.group)
        IWP_FAIL(err, IWP_ENOMEM, "out of memory for %d patches", fr.n);
    iwp_pre_windows(plan, index, starts);
    iwp_pre_patch_positions(plan, where);
    for (int32_t f = 0; f < plan->grid_t; f++) {
        struct graph g = {0};
        IWP_TRY_GOTO(arrange(plan, f, m, index, starts, n_window, &fr, err));
        IWP_TRY_GOTO(build(t, &fr, want, &g, err));
        fill(t, &fr, pixels, where, in, pos, &g);
        IWP_TRY_GOTO(iwp_sched_compute(t->sched, err));
        ggml_backend_tensor_get(g.row, tmp, 0, ggml_nbytes(g.row));
        scatter(tmp, fr.group, groups, (size_t)t->info.d_model, out->row);
        if (out->vision || out->feature) {
            ggml_backend_tensor_get(g.vision, tmp, 0, ggml_nbytes(g.vision));
            if (out->vision) scatter(tmp, fr.place, groups, (size_t)m * d, out->vision);
            if (out->feature) scatter(tmp, fr.group, groups, (size_t)m * d, out->feature);
        }
        if (g.q) {
            ggml_backend_tensor_get(g.q, tmp, 0, ggml_nbytes(g.q));
            scatter(tmp, fr.group, groups, (size_t)m * d, out->q);
            ggml_backend_tensor_get(g.k, tmp, 0, ggml_nbytes(g.k));
            scatter(tmp, fr.group, groups, (size_t)m * d, out->k);
        }
    }
fail:
    free(index);
    free(starts);
    free(where);
    free(pos);
    free(in);
    free(tmp);
    free(fr.place);
    free(fr.group);
    return rc;
}

/* Cells are the merger's groups of rows, numbered in picture order inside their frame. */
int iwp_vit_merge_qwen(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                       const struct iwp_tower_want *want, struct iwp_tower_out *out, iwp_err *err) {
    const int32_t m = t->info.merge, n = plan->grid_h * plan->grid_w, cells = n / m;
    const int32_t n_window = iwp_pre_windows(plan, NULL, NULL), total = out->n_vision;
    const size_t pp = (size_t)plan->patch * (size_t)plan->patch;
    int32_t *index = malloc((size_t)(total / m) * sizeof *index);
    int32_t *starts = malloc((size_t)(n_window + 1) * sizeof *starts);
    int32_t *window = malloc((size_t)(total / m) * sizeof *window);
    int32_t *group = malloc((size_t)(total / m) * sizeof *group);
    int32_t *where = malloc(2 * (size_t)total * sizeof *where);
    float *in = malloc((size_t)n * 3 * pp * sizeof *in), *rows = NULL;
    struct iwp_vit_merge s = {0};
    int rc = 0;
    if (!index || !starts || !window || !group || !where || !in)
        IWP_FAIL(err, IWP_ENOMEM, "out of memory for %d patches", n);
    iwp_pre_windows(plan, index, starts);
    iwp_pre_patch_positions(plan, where);
    for (int32_t w = 0; w < n_window; w++)
        for (int32_t i = starts[w] / m; i < starts[w + 1] / m; i++) window[index[i]] = w;
    for (int32_t i = 0; i < total / m; i++) group[i] = i;
    for (int32_t f = 0; f < plan->grid_t; f++) {
        struct graph g = {0};
        IWP_TRY_GOTO(iwp_sched_begin(t->sched, &g.ctx, &g.g, err));
        struct ggml_tensor *x = embed(t, &g, n);
        ggml_set_output(x);
        ggml_build_forward_expand(g.g, x);
        IWP_TRY_GOTO(iwp_vit_place_graph(t, g.g, err));
        fill_pixels(t, group + (size_t)f * (size_t)cells, n, pixels, in, &g);
        IWP_TRY_GOTO(iwp_sched_compute(t->sched, err));
        IWP_TRY_GOTO(iwp_vit_merge_init(&s, t, cells, m, err));
        ggml_backend_tensor_get(x, s.x, 0, ggml_nbytes(x));
        s.window = window + (size_t)f * (size_t)cells;
        s.n_window = n_window;
        s.where = where + 2 * (size_t)f * (size_t)n;
        IWP_TRY_GOTO(iwp_vit_merge_blocks(t, &s, want->merge, want->keep[f], err));
        IWP_TRY_GOTO(iwp_vit_merge_project(t, &s, &rows, err));
        iwp_vit_merge_spread(t, &s, rows, 0, cells, out, f * cells);
        free(rows);
        rows = NULL;
        iwp_vit_merge_free(&s);
    }
fail:
    iwp_vit_merge_free(&s);
    free(rows);
    free(index);
    free(starts);
    free(window);
    free(group);
    free(where);
    free(in);
    return rc;
}
