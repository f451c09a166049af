/* The transformer block of the towers and their projector, as ggml graphs; see vit.h. */
#include <math.h>

#include "model/vit.h"

struct ggml_tensor *iwp_vit_linear(struct ggml_context *ctx, struct ggml_tensor *x,
                                   struct ggml_tensor *w, struct ggml_tensor *b) {
    if (iwp_packed_of(w)) return iwp_pack_linear(ctx, x, NULL, &w, &b, 1, NULL);
    struct ggml_tensor *y = ggml_mul_mat(ctx, w, x);
    return b ? ggml_add(ctx, y, b) : y;
}

struct ggml_tensor *iwp_vit_norm(const struct iwp_tower *t, struct ggml_context *ctx,
                                 struct ggml_tensor *x, struct ggml_tensor *w,
                                 struct ggml_tensor *b) {
    x = t->rms ? ggml_rms_norm(ctx, x, t->eps) : ggml_norm(ctx, x, t->eps);
    x = ggml_mul(ctx, x, w);
    return b ? ggml_add(ctx, x, b) : x;
}

/* One of q, k, v as [d_head, heads, rows]: a layer of its own, or a third of the joint one. */
static struct ggml_tensor *split(const struct iwp_tower *t, struct ggml_context *ctx,
                                 struct ggml_tensor *joint, int i, struct ggml_tensor *x,
                                 struct ggml_tensor *w, struct ggml_tensor *b) {
    const int64_t d = t->info.d_head, h = t->info.n_head;
    if (joint)
        return ggml_view_3d(ctx, joint, d, h, joint->ne[1], (size_t)d * 4, joint->nb[1],
                            (size_t)(i * d * h) * 4);
    struct ggml_tensor *y = iwp_vit_linear(ctx, x, w, b);
    return ggml_reshape_3d(ctx, y, d, h, y->ne[1]);
}

/* Rows [first, first + len*count) of a [d, heads, rows] as [d, len, count, heads]. */
static struct ggml_tensor *windows(struct ggml_context *ctx, struct ggml_tensor *a, int64_t first,
                                   int64_t len, int64_t count) {
    return ggml_view_4d(ctx, a, a->ne[0], len, count, a->ne[1], a->nb[2], a->nb[2] * (size_t)len,
                        a->nb[1], a->nb[2] * (size_t)first);
}

static struct ggml_tensor *attend_run(const struct iwp_tower *t, struct ggml_context *ctx,
                                      struct ggml_tensor *q, struct ggml_tensor *k,
                                      struct ggml_tensor *v, const struct iwp_vit_run *r) {
    const float scale = 1.0f / sqrtf((float)t->info.d_head);
    struct ggml_tensor *kw = windows(ctx, k, r->first, r->len, r->count);
    struct ggml_tensor *vw = windows(ctx, v, r->first, r->len, r->count);
    vw = ggml_cont(ctx, ggml_permute(ctx, vw, 1, 0, 2, 3)); /* [len, d, count, heads] */
    /* The scores of one long window can be large: a part of the queries at a time. */
    const int64_t row = (int64_t)r->len * r->count * t->info.n_head * 4;
    int64_t part = r->len;
    if (r->count == 1) {
        part = (192 << 20) / row;
        if (part < 32) part = 32;
        if (part * IWP_VIT_MAX_CHUNK < r->len)
            part = (r->len + IWP_VIT_MAX_CHUNK - 1) / IWP_VIT_MAX_CHUNK;
        if (part > r->len) part = r->len;
    }
    struct ggml_tensor *out = NULL;
    for (int64_t i = 0; i < r->len; i += part) {
        const int64_t n = r->len - i < part ? r->len - i : part;
        struct ggml_tensor *qw = ggml_cont(ctx, windows(ctx, q, r->first + i, n, r->count));
        struct ggml_tensor *s = ggml_mul_mat(ctx, kw, qw); /* [len, n, count, heads] */
        s = ggml_soft_max_ext(ctx, s, NULL, scale, 0.0f);
        struct ggml_tensor *y = ggml_mul_mat(ctx, vw, s);     /* [d, n, count, heads] */
        y = ggml_cont(ctx, ggml_permute(ctx, y, 0, 2, 3, 1)); /* [d, heads, n, count] */
        y = ggml_reshape_2d(ctx, y, y->ne[0] * y->ne[1], n * r->count);
        out = out ? ggml_concat(ctx, out, y, 1) : y;
    }
    return out;
}

/* q, k, v of normed rows, not yet rotated. */
static void build_qkv(const struct iwp_tower *t, struct ggml_context *ctx,
                      const struct iwp_vit_block *b, struct ggml_tensor *x,
                      struct ggml_tensor *qkv[3]) {
    struct ggml_tensor *joint = NULL, *y = NULL;
    if (t->pack) {
        const struct iwp_pack_norm norm = {b->ln1_w, b->ln1_b, t->eps, t->rms};
        struct ggml_tensor *const w[3] = {b->qkv_w ? b->qkv_w : b->q_w, b->k_w, b->v_w};
        struct ggml_tensor *const bias[3] = {b->qkv_w ? b->qkv_b : b->q_b, b->k_b, b->v_b};
        joint = iwp_pack_linear(ctx, x, &norm, w, bias, b->qkv_w ? 1 : 3, NULL);
    } else {
        y = iwp_vit_norm(t, ctx, x, b->ln1_w, b->ln1_b);
        if (b->qkv_w) joint = iwp_vit_linear(ctx, y, b->qkv_w, b->qkv_b);
    }
    qkv[0] = split(t, ctx, joint, 0, y, b->q_w, b->q_b);
    qkv[1] = split(t, ctx, joint, 1, y, b->k_w, b->k_b);
    qkv[2] = split(t, ctx, joint, 2, y, b->v_w, b->v_b);
}

static struct ggml_tensor *rotate(const struct iwp_tower *t, struct ggml_context *ctx,
                                  struct ggml_tensor *x, struct ggml_tensor *rope_pos) {
    /* Angles by row for the first half of the pairs, by column for the second. */
    int sections[4] = {t->info.d_head / 4, t->info.d_head / 4, t->info.d_head / 4,
                       t->info.d_head / 4};
    if (!ggml_is_contiguous(x)) x = ggml_cont(ctx, x);
    return ggml_rope_multi(ctx, x, rope_pos, NULL, t->info.d_head / 2, sections,
                           GGML_ROPE_TYPE_VISION, 32768, 10000.0f, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f);
}

void iwp_vit_qkv_build(const struct iwp_tower *t, struct ggml_context *ctx,
                       const struct iwp_vit_block *b, struct ggml_tensor *x,
                       struct ggml_tensor *rope_pos, struct ggml_tensor *qkv[3]) {
    build_qkv(t, ctx, b, x, qkv);
    for (int i = 0; i < 2 && rope_pos; i++) qkv[i] = rotate(t, ctx, qkv[i], rope_pos);
}

struct ggml_tensor *iwp_vit_attend_build(const struct iwp_tower *t, struct ggml_context *ctx,
                                         struct ggml_tensor *const qkv[3],
                                         const struct iwp_vit_run *run, int32_t n_run) {
    struct ggml_tensor *a = NULL;
    if (t->pack)
        return iwp_pack_attend(t->pack, ctx, qkv, NULL, run, n_run,
                               1.0f / sqrtf((float)t->info.d_head));
    for (int32_t i = 0; i < n_run; i++) {
        struct ggml_tensor *part = attend_run(t, ctx, qkv[0], qkv[1], qkv[2], &run[i]);
        a = a ? ggml_concat(ctx, a, part, 1) : part;
    }
    return a;
}

struct ggml_tensor *iwp_vit_mlp_build(const struct iwp_tower *t, struct ggml_context *ctx,
                                      const struct iwp_vit_block *b, struct ggml_tensor *x) {
    if (t->pack) {
        const struct iwp_pack_norm norm = {b->ln2_w, b->ln2_b, t->eps, t->rms};
        struct ggml_tensor *const w[3] = {b->gate_w, b->up_w, b->down_w};
        struct ggml_tensor *const bias[3] = {b->gate_b, b->up_b, b->down_b};
        return iwp_pack_mlp(ctx, x, &norm, w, bias, t->act);
    }
    struct ggml_tensor *y = iwp_vit_norm(t, ctx, x, b->ln2_w, b->ln2_b);
    struct ggml_tensor *up = iwp_vit_linear(ctx, y, b->up_w, b->up_b);
    if (b->gate_w) {
        struct ggml_tensor *gate = iwp_vit_linear(ctx, y, b->gate_w, b->gate_b);
        up = ggml_mul(ctx, iwp_act_build(ctx, t->act, gate), up);
    } else {
        up = iwp_act_build(ctx, t->act, up);
    }
    return ggml_add(ctx, x, iwp_vit_linear(ctx, up, b->down_w, b->down_b));
}

/* The packed form of a block: rows are rotated while attention packs them. */
static struct ggml_tensor *build_packed(const struct iwp_tower *t, struct ggml_context *ctx,
                                        const struct iwp_vit_block *b, struct ggml_tensor *x,
                                        const struct iwp_vit_run *run, int32_t n_run,
                                        struct ggml_tensor *rope_pos, struct ggml_tensor **q_out,
                                        struct ggml_tensor **k_out) {
    struct ggml_tensor *qkv[3], **out[2] = {q_out, k_out};
    build_qkv(t, ctx, b, x, qkv);
    for (int i = 0; i < 2; i++)
        if (out[i]) *out[i] = rope_pos ? rotate(t, ctx, qkv[i], rope_pos) : ggml_cont(ctx, qkv[i]);
    struct ggml_tensor *angles = rope_pos ? iwp_pack_angles(ctx, rope_pos, t->info.d_head) : NULL;
    struct ggml_tensor *a =
        iwp_pack_attend(t->pack, ctx, qkv, angles, run, n_run, 1.0f / sqrtf((float)t->info.d_head));
    x = iwp_pack_linear(ctx, a, NULL, &b->o_w, &b->o_b, 1, x);
    return iwp_vit_mlp_build(t, ctx, b, x);
}

struct ggml_tensor *iwp_vit_block_build(const struct iwp_tower *t, struct ggml_context *ctx,
                                        const struct iwp_vit_block *b, struct ggml_tensor *x,
                                        const struct iwp_vit_run *run, int32_t n_run,
                                        struct ggml_tensor *rope_pos, struct ggml_tensor **q_out,
                                        struct ggml_tensor **k_out) {
    if (t->pack) return build_packed(t, ctx, b, x, run, n_run, rope_pos, q_out, k_out);
    struct ggml_tensor *qkv[3];
    iwp_vit_qkv_build(t, ctx, b, x, rope_pos, qkv);
    if (q_out) *q_out = ggml_cont(ctx, qkv[0]);
    if (k_out) *k_out = ggml_cont(ctx, qkv[1]);
    struct ggml_tensor *a = iwp_vit_attend_build(t, ctx, qkv, run, n_run);
    x = ggml_add(ctx, x, iwp_vit_linear(ctx, a, b->o_w, b->o_b));
    return iwp_vit_mlp_build(t, ctx, b, x);
}

struct ggml_tensor *iwp_vit_projector(const struct iwp_tower *t, struct ggml_context *ctx,
                                      struct ggml_tensor *x) {
    if (t->qwen) {
        x = iwp_vit_norm(t, ctx, x, t->post_w, t->post_b);
        x = ggml_reshape_2d(ctx, x, x->ne[0] * t->info.merge, x->ne[1] / t->info.merge);
    }
    x = iwp_vit_linear(ctx, x, t->mm0_w, t->mm0_b);
    if (!t->mm2_w) return x;
    x = iwp_act_build(ctx, t->proj_act, x);
    return iwp_vit_linear(ctx, x, t->mm2_w, t->mm2_b);
}
