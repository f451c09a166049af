/* Parts of a vision transformer that the towers share; see tower.h for the outside. */
#ifndef IWP_MODEL_VIT_H
#define IWP_MODEL_VIT_H

#include <ggml.h>

#include "model/act.h"
#include "model/backend.h"
#include "model/pack.h"
#include "model/tower.h"
#include "model/weights.h"

enum { IWP_VIT_MAX_RUN = 64, IWP_VIT_MAX_CHUNK = 128, IWP_VIT_MAX_BLOCK = 256 };

struct iwp_vit_block {
    struct ggml_tensor *ln1_w, *ln1_b, *ln2_w, *ln2_b;
    struct ggml_tensor *qkv_w, *qkv_b; /* or q, k, v apart */
    struct ggml_tensor *q_w, *q_b, *k_w, *k_b, *v_w, *v_b, *o_w, *o_b;
    struct ggml_tensor *gate_w, *gate_b, *up_w, *up_b, *down_w, *down_b;
    bool full; /* Qwen2.5-VL: attends over the whole frame */
};

struct iwp_tower {
    struct iwp_tower_info info;
    struct iwp_backend *b;
    struct iwp_weights *w;
    struct iwp_sched *sched, *project_sched; /* projections may come while a picture is encoded */
    int32_t tapped; /* block whose q and k the last graph gave out, or -1 */
    bool replan;
    char *projector; /* info.projector */

    struct iwp_pack *pack; /* NULL: ggml's products, exact for f32 files */
    bool qwen, rms;
    enum iwp_act act, proj_act;
    float eps;
    int32_t n_layer, n_ff, n_patch; /* n_patch: of a tile, 0 for Qwen2.5-VL */
    struct ggml_tensor *patch_w, *patch_w1, *patch_b, *pos, *cls;
    struct ggml_tensor *pre_w, *pre_b, *post_w, *post_b;
    double n_projector; /* its weights */
    struct ggml_tensor *mm0_w, *mm0_b, *mm2_w, *mm2_b;
    struct iwp_vit_block *block; /* [info.n_block] */
    float *newline;              /* [d_model] or NULL */
};

/* One block over x [Dv, rows]; rope_pos: [4 * rows] or NULL.  q and k, after any rotation, are given back when asked for. */
struct ggml_tensor *iwp_vit_block_build(const struct iwp_tower *t, struct ggml_context *ctx,
                                        const struct iwp_vit_block *b, struct ggml_tensor *x,
                                        const struct iwp_vit_run *run, int32_t n_run,
                                        struct ggml_tensor *rope_pos, struct ggml_tensor **q,
                                        struct ggml_tensor **k);
/* Its parts: normed queries, keys and values [d_head, heads, rows], rotated when rope_pos is given; what
 * rows gather inside their windows [Dv, rows], before the output layer (any width of heads); x + MLP. */
void iwp_vit_qkv_build(const struct iwp_tower *t, struct ggml_context *ctx,
                       const struct iwp_vit_block *b, struct ggml_tensor *x,
                       struct ggml_tensor *rope_pos, struct ggml_tensor *qkv[3]);
struct ggml_tensor *iwp_vit_attend_build(const struct iwp_tower *t, struct ggml_context *ctx,
                                         struct ggml_tensor *const qkv[3],
                                         const struct iwp_vit_run *run, int32_t n_run);
struct ggml_tensor *iwp_vit_mlp_build(const struct iwp_tower *t, struct ggml_context *ctx,
                                      const struct iwp_vit_block *b, struct ggml_tensor *x);
struct ggml_tensor *iwp_vit_norm(const struct iwp_tower *t, struct ggml_context *ctx,
                                 struct ggml_tensor *x, struct ggml_tensor *w,
                                 struct ggml_tensor *b);
struct ggml_tensor *iwp_vit_linear(struct ggml_context *ctx, struct ggml_tensor *x,
                                   struct ggml_tensor *w, struct ggml_tensor *b);
/* Post norm (Qwen2.5-VL: of the merger), merging and the two layers. */
struct ggml_tensor *iwp_vit_projector(const struct iwp_tower *t, struct ggml_context *ctx,
                                      struct ggml_tensor *x);

/* Tensors that are read after the graph has run; NULL ones are passed over. */
void iwp_vit_outputs(struct ggml_cgraph *g, struct ggml_tensor **out, int n);
/* Memory for a graph that is complete; keeps it on the CPU. */
int iwp_vit_place_graph(struct iwp_tower *t, struct ggml_cgraph *g, iwp_err *err);

int32_t iwp_vit_tile_batch(const struct iwp_tower *t,
                           const struct iwp_pre_plan *plan); /* a graph */
int iwp_vit_encode_tiles(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                         const struct iwp_tower_want *want, struct iwp_tower_out *out,
                         iwp_err *err);
int iwp_vit_encode_qwen(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                        const struct iwp_tower_want *want, struct iwp_tower_out *out, iwp_err *err);
/* The same with a method that merges rows inside the blocks. */
int iwp_vit_merge_tiles(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                        const struct iwp_tower_want *want, struct iwp_tower_out *out, iwp_err *err);
int iwp_vit_merge_qwen(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                       const struct iwp_tower_want *want, struct iwp_tower_out *out, iwp_err *err);

#endif
