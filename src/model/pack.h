/* The vision tower's products as custom nodes over packed weights (kern/gemm.h): a linear layer with its
 * norm and residual, a whole MLP, attention inside windows.  Their graph must stay on the CPU.
 *
 * Rows are dealt out to ggml's threads in blocks; each thread has scratch memory here, made large enough
 * while a graph is built.  Nodes live in the graph's context. */
#ifndef IWP_MODEL_PACK_H
#define IWP_MODEL_PACK_H

#include <ggml.h>

#include "iwp/error.h"
#include "kern/gemm.h"
#include "model/act.h"

struct iwp_pack;
/* split: weights are f16, factors are taken as sums of two bf16 numbers (kern/gemm.h). */
int iwp_pack_new(struct iwp_pack **out, const struct iwp_gemm *g, bool split, int32_t n_thread,
                 iwp_err *err);
bool iwp_pack_split(const struct iwp_pack *p);
void iwp_pack_free(struct iwp_pack *p); /* NULL is fine */
const struct iwp_gemm *iwp_pack_gemm(const struct iwp_pack *p);
/* After a graph is built: IWP_ENOMEM when memory for one of its nodes was missing. */
int iwp_pack_check(struct iwp_pack *p, iwp_err *err);

/* A weight matrix; hangs at its tensor's `extra`, which layouts of ggml use too: the mark tells. */
enum { IWP_PACKED_MARK = 0x6b637069 };
struct iwp_packed {
    struct iwp_pack *pack;
    uint16_t *data; /* 64-byte aligned */
    int32_t k, m;
};
static inline const struct iwp_packed *iwp_packed_of(const struct ggml_tensor *w) {
    return w && w->op_params[0] == IWP_PACKED_MARK ? w->extra : NULL;
}

struct iwp_pack_norm {
    struct ggml_tensor *w, *b; /* w NULL: no norm */
    float eps;
    bool rms;
};

/* norm(x) · w + b + res; up to three matrices side by side; b[i] and res may be NULL. */
struct ggml_tensor *iwp_pack_linear(struct ggml_context *ctx, struct ggml_tensor *x,
                                    const struct iwp_pack_norm *norm, struct ggml_tensor *const *w,
                                    struct ggml_tensor *const *b, int32_t n,
                                    struct ggml_tensor *res);
/* x · w + res, nothing rounded; w [m][k] as it is.  Without p, or for few columns, by ggml.  res may be NULL. */
struct ggml_tensor *iwp_pack_f32(struct iwp_pack *p, struct ggml_context *ctx,
                                 struct ggml_tensor *x, struct ggml_tensor *w,
                                 struct ggml_tensor *res);
/* x + down(act(gate) * up), of norm(x); gate: its weight may be NULL.  w, b: gate, up, down. */
struct ggml_tensor *iwp_pack_mlp(struct ggml_context *ctx, struct ggml_tensor *x,
                                 const struct iwp_pack_norm *norm, struct ggml_tensor *const w[3],
                                 struct ggml_tensor *const b[3], enum iwp_act act);

/* A stretch of rows cut into `count` windows of `len` rows each; rows attend inside their window. */
struct iwp_vit_run {
    int32_t first, len, count;
};
/* q, k [d, heads, rows], v [d_v, heads, rows] to [d_v * heads, rows]; angles: what iwp_pack_angles gave, or
 * NULL. */
struct ggml_tensor *iwp_pack_attend(struct iwp_pack *p, struct ggml_context *ctx,
                                    struct ggml_tensor *const qkv[3], struct ggml_tensor *angles,
                                    const struct iwp_vit_run *run, int32_t n_run, float scale);
/* Cosines and sines [d, rows] of the rotation by row and column; pos [4 * rows]; one per graph. */
struct ggml_tensor *iwp_pack_angles(struct ggml_context *ctx, struct ggml_tensor *pos, int32_t d);

#endif
