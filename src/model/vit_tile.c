/* Towers that see square tiles, SigLIP and CLIP: every tile is a sequence of its own.  Patches are cut
 * here, because ggml's convolution rounds pixels to f16. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "model/vit_merge.h"

struct graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *g;
    struct ggml_tensor *in, *vision, *row, *q, *k;
};

/* Rows that enter the first block: n tiles, in [3*p*p, patches * n]. */
static struct ggml_tensor *embed(struct iwp_tower *t, struct graph *g, int32_t n) {
    const int64_t d = t->info.d_vision, p = t->info.pre.patch, np = t->n_patch;
    const int64_t len = np + (t->cls ? 1 : 0);
    struct ggml_context *ctx = g->ctx;
    g->in = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3 * p * p, np * n);
    ggml_set_input(g->in);
    struct ggml_tensor *w = ggml_reshape_2d(ctx, t->patch_w, 3 * p * p, d);
    struct ggml_tensor *x = iwp_pack_f32(t->pack, ctx, g->in, w, NULL);
    if (t->patch_b) x = ggml_add(ctx, x, t->patch_b);
    x = ggml_reshape_3d(ctx, x, d, np, n);
    if (t->cls) {
        struct ggml_tensor *c = ggml_reshape_3d(ctx, t->cls, d, 1, 1);
        c = ggml_repeat_4d(ctx, c, d, 1, n, 1);
        x = t->info.class_last ? ggml_concat(ctx, x, c, 1) : ggml_concat(ctx, c, x, 1);
    }
    x = ggml_add(ctx, x, t->pos);
    x = ggml_reshape_2d(ctx, x, d, len * n);
    return t->pre_w ? iwp_vit_norm(t, ctx, x, t->pre_w, t->pre_b) : x;
}

static int build(struct iwp_tower *t, int32_t n, const struct iwp_tower_want *want, struct graph *g,
                 iwp_err *err) {
    const int64_t d = t->info.d_vision, np = t->n_patch, len = np + (t->cls ? 1 : 0);
    IWP_TRY(iwp_sched_begin(t->sched, &g->ctx, &g->g, err));
    struct ggml_context *ctx = g->ctx;
    struct ggml_tensor *x = embed(t, g, n);
    const struct iwp_vit_run run = {0, (int32_t)len, n};
    for (int32_t i = 0; i < t->info.n_block; i++) {
        const bool tap = want->qk && i == want->block;
        x = iwp_vit_block_build(t, ctx, &t->block[i], x, &run, 1, NULL, tap ? &g->q : NULL,
                                tap ? &g->k : NULL);
    }
    if (t->post_w) x = iwp_vit_norm(t, ctx, x, t->post_w, t->post_b);
    g->vision = x;
    if (t->cls) { /* rows 1 … n of every tile */
        x = ggml_view_3d(ctx, x, d, np, n, x->nb[1], x->nb[1] * (size_t)len, x->nb[1]);
        x = ggml_reshape_2d(ctx, ggml_cont(ctx, x), d, np * n);
    }
    g->row = iwp_vit_projector(t, ctx, x);
    iwp_vit_outputs(g->g, (struct ggml_tensor *[]){g->row, g->vision, g->q, g->k}, 4);
    return iwp_vit_place_graph(t, g->g, err);
}

/* One tile [3][side][side] as rows [patch][channel, y, x]; pixels beyond whole patches are dropped. */
static void cut_patches(const struct iwp_tower *t, const float *tile, float *out) {
    const int32_t p = t->info.pre.patch, px = t->info.pre.tile, side = px / p;
    for (int32_t y = 0; y < side; y++)
        for (int32_t x = 0; x < side; x++)
            for (int32_t c = 0; c < 3; c++)
                for (int32_t r = 0; r < p; r++, out += p)
                    memcpy(out, tile + ((size_t)c * px + (size_t)(y * p + r)) * px + x * p,
                           (size_t)p * sizeof *out);
}

/* Rows 1 … n of every tile go to `rows`, the class token's to `cls`; without one all rows. */
static void scatter(const struct iwp_tower *t, const float *from, int32_t first, int32_t n,
                    float *rows, float *cls) {
    const size_t d = (size_t)t->info.d_vision, np = (size_t)t->n_patch, len = np + (t->cls ? 1 : 0);
    for (int32_t i = 0; i < n; i++) {
        const float *tile = from + (size_t)i * len * d;
        const size_t at = (size_t)(first + i);
        memcpy(rows + at * np * d, tile + (t->cls ? d : 0), np * d * sizeof *rows);
        if (cls) memcpy(cls + at * d, tile + (t->info.class_last ? np : 0) * d, d * sizeof *cls);
    }
}

int32_t iwp_vit_tile_batch(const struct iwp_tower *t, const struct iwp_pre_plan *plan) {
    /* Tiles together: packed weights are read once for all of them; ggml's scores need memory. */
    const int32_t n = (t->pack ? 8192 : 1024) / (t->n_patch + (t->cls ? 1 : 0));
    return n < 1 ? 1 : n > plan->n_tile ? plan->n_tile : n;
}

int iwp_vit_encode_tiles(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                         const struct iwp_tower_want *want, struct iwp_tower_out *out,
                         iwp_err *err) {
    const size_t d = (size_t)t->info.d_vision, np = (size_t)t->n_patch;
    const size_t len = np + (t->cls ? 1 : 0), px = (size_t)t->info.pre.tile;
    const size_t patch = 3 * (size_t)t->info.pre.patch * (size_t)t->info.pre.patch;
    const int32_t batch = iwp_vit_tile_batch(t, plan);
    float *in = malloc((size_t)batch * np * patch * sizeof *in);
    float *tmp = malloc((size_t)batch * len * d * sizeof *tmp);
    int rc = 0;
    if (!in || !tmp) IWP_FAIL(err, IWP_ENOMEM, "out of memory for %d tiles", batch);
    for (int32_t first = 0; first < plan->n_tile; first += batch) {
        const int32_t n = plan->n_tile - first < batch ? plan->n_tile - first : batch;
        struct graph g = {0};
        IWP_TRY_GOTO(build(t, n, want, &g, err));
        for (int32_t i = 0; i < n; i++)
            cut_patches(t, pixels + (size_t)(first + i) * 3 * px * px, in + (size_t)i * np * patch);
        ggml_backend_tensor_set(g.in, in, 0, ggml_nbytes(g.in));
        IWP_TRY_GOTO(iwp_sched_compute(t->sched, err));
        ggml_backend_tensor_get(g.row, out->row + (size_t)first * np * (size_t)t->info.d_model, 0,
                                ggml_nbytes(g.row));
        if (out->vision)
            ggml_backend_tensor_get(g.vision, out->vision + (size_t)first * len * d, 0,
                                    ggml_nbytes(g.vision));
        if (out->feature) {
            ggml_backend_tensor_get(g.vision, tmp, 0, ggml_nbytes(g.vision));
            scatter(t, tmp, first, n, out->feature, out->cls_f);
        }
        if (g.q) {
            ggml_backend_tensor_get(g.q, tmp, 0, ggml_nbytes(g.q));
            scatter(t, tmp, first, n, out->q, out->cls_q);
            ggml_backend_tensor_get(g.k, tmp, 0, ggml_nbytes(g.k));
            scatter(t, tmp, first, n, out->k, out->cls_k);
        }
    }
fail:
    free(in);
    free(tmp);
    return rc;
}

/* Row i of a tile's output is row i of the sequence, or i + 1 when there is a class token. */
int iwp_vit_merge_tiles(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                        const struct iwp_tower_want *want, struct iwp_tower_out *out,
                        iwp_err *err) {
    const size_t np = (size_t)t->n_patch, px = (size_t)t->info.pre.tile;
    const size_t patch = 3 * (size_t)t->info.pre.patch * (size_t)t->info.pre.patch;
    float *in = malloc(np * patch * sizeof *in), *rows = NULL;
    struct iwp_vit_merge s = {0};
    int rc = 0;
    if (!in) IWP_FAIL(err, IWP_ENOMEM, "out of memory for a tile");
    for (int32_t i = 0; i < plan->n_tile; i++) {
        struct graph g = {0};
        IWP_TRY_GOTO(iwp_sched_begin(t->sched, &g.ctx, &g.g, err));
        struct ggml_tensor *x = embed(t, &g, 1);
        ggml_set_output(x);
        ggml_build_forward_expand(g.g, x);
        IWP_TRY_GOTO(iwp_vit_place_graph(t, g.g, err));
        cut_patches(t, pixels + (size_t)i * 3 * px * px, in);
        ggml_backend_tensor_set(g.in, in, 0, ggml_nbytes(g.in));
        IWP_TRY_GOTO(iwp_sched_compute(t->sched, err));
        IWP_TRY_GOTO(iwp_vit_merge_init(&s, t, (int32_t)x->ne[1], 1, err));
        ggml_backend_tensor_get(x, s.x, 0, ggml_nbytes(x));
        if (t->cls) s.cls = t->info.class_last ? t->n_patch : 0;
        IWP_TRY_GOTO(iwp_vit_merge_blocks(t, &s, want->merge, want->keep[i], err));
        IWP_TRY_GOTO(iwp_vit_merge_project(t, &s, &rows, err));
        iwp_vit_merge_spread(t, &s, rows, t->cls ? 1 : 0, t->n_patch, out, i * t->n_patch);
        free(rows);
        rows = NULL;
        iwp_vit_merge_free(&s);
    }
fail:
    iwp_vit_merge_free(&s);
    free(rows);
    free(in);
    return rc;
}
