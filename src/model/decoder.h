/* The language model: its shape, its weights and the graph of a range of its layers.
 *
 * Architectures qwen2, qwen2vl (M-RoPE) and llama as llama.cpp's converters write them: grouped KV heads,
 * optional biases, tied embeddings, RoPE frequency factors (llama 3), linear RoPE scaling.  Refuses
 * experts, YaRN and everything else by name. */
#ifndef IWP_MODEL_DECODER_H
#define IWP_MODEL_DECODER_H

#include "model/attend.h"
#include "model/bulk.h"
#include "model/kv.h"
#include "model/weights.h"

struct iwp_decoder_layer {
    int32_t device;
    int32_t bulk_rows; /* from so many at once on they go through iwp_decoder.bulk; 0: never */
    struct ggml_tensor *attn_norm, *ffn_norm;            /* [D] */
    struct ggml_tensor *wq, *wk, *wv, *wo;               /* [D, H d] [D, G d] [D, G d] [H d, D] */
    struct ggml_tensor *bq, *bk, *bv, *bo;               /* or NULL */
    struct ggml_tensor *gate, *up, *down;                /* [D, F] [D, F] [F, D] */
    struct ggml_tensor *gate_b, *up_b, *down_b, *factor; /* or NULL; factor: [d/2] RoPE */
};

struct iwp_decoder {
    char arch[32], name[128], file_type[16];
    int32_t n_layer, d_model, n_ff, n_head, n_head_kv, d_head, n_vocab, n_ctx_train;
    int32_t rope_mode; /* GGML_ROPE_TYPE_* */
    int32_t n_pos;     /* rows of position ids: 1, or 3 for M-RoPE */
    int32_t sections[4];
    float rope_base, rope_scale, eps;
    int64_t n_params;
    struct iwp_decoder_layer *layer; /* [n_layer] */
    struct ggml_tensor *embed;       /* [D, V], plain CPU memory */
    struct ggml_tensor *out_norm, *out, *out_b;
    float *final_norm;         /* [D] out_norm on the host, for methods that read it */
    struct iwp_attend *attend; /* our own attention; NULL: ggml's */
    struct iwp_weights *weights;
    struct iwp_bulk *bulk; /* or NULL */
    struct iwp_backend *b;
};

int iwp_decoder_load(struct iwp_decoder *d, struct iwp_backend *b, const struct iwp_gguf *g,
                     iwp_err *err);
void iwp_decoder_free(struct iwp_decoder *d); /* frees the parts; a zeroed one is fine */

/* Multiplications of one row by the matrices of a layer: all, and q, k, v alone. */
int64_t iwp_decoder_layer_weights(const struct iwp_decoder *d);
int64_t iwp_decoder_qkv_weights(const struct iwp_decoder *d);

/* ---- Graphs ------------------------------------------------------------------------------------ */

/* q [d, H, n], k and v [d, G, n] of one layer; *_rope after the rotary embedding. */
struct iwp_decoder_qkv {
    struct ggml_tensor *q, *k, *v, *q_rope, *k_rope;
};
/* x [D, n] is the residual at the input of layer l.  pos: i32 [n], or [4 n] for M-RoPE. */
struct iwp_decoder_qkv iwp_decoder_build_qkv(const struct iwp_decoder *d, struct ggml_context *ctx,
                                             int32_t l, struct ggml_tensor *x,
                                             struct ggml_tensor *pos, bool want_q);

/* Two products with all scores between them; ggml's flash attention; our own (kern/attn.h). */
enum iwp_attention { IWP_ATTENTION_PLAIN, IWP_ATTENTION_GGML, IWP_ATTENTION_OWN };
/* What a layer does when `wanted` is asked for: our own needs the CPU and a head size it knows. */
enum iwp_attention iwp_decoder_attention(const struct iwp_decoder *d, int32_t l,
                                         enum iwp_attention wanted);

struct iwp_decoder_attn {
    enum iwp_attention how;
    struct ggml_tensor *mask; /* [n_kv, n] f32, f16 for ggml's; NULL: all is seen; not our own's */
    struct ggml_tensor **heads; /* out: [H d, n] what attention gives before wo; NULL: not wanted */
};
/* One layer over n rows: writes their k and v behind the first n_past rows of the cache and returns
 * the residual after the layer.  last > 0: only the last `last` rows of the result are computed (and
 * returned); 0: all; -1: none, only the cache is filled (returns NULL). */
struct ggml_tensor *iwp_decoder_build_layer(const struct iwp_decoder *d, struct ggml_context *ctx,
                                            struct ggml_cgraph *graph, int32_t l,
                                            struct ggml_tensor *x, struct ggml_tensor *pos,
                                            const struct iwp_kv_layer *kv, int32_t n_past,
                                            const struct iwp_decoder_attn *attn, int32_t last);
/* The views of a cache through which new rows get there. */
struct iwp_decoder_stored {
    struct ggml_tensor *k[2], *v[2];
};
enum { IWP_LANE_MAX = 16 }; /* of one graph */
/* One layer over rows of different timelines: row i is the next of lane[i], whose cache (kv->n rows) it
 * extends and alone sees.  The matrices are read once for all of them. */
struct iwp_decoder_lane {
    const struct iwp_kv_layer *kv;
    struct iwp_decoder_attn attn;     /* mask [kv->n + 1, 1] */
    struct iwp_decoder_stored stored; /* out, with *node */
};
/* *node: the layer's attention when it is all our own; else NULL. */
struct ggml_tensor *iwp_decoder_build_lanes(const struct iwp_decoder *d, struct ggml_context *ctx,
                                            struct ggml_cgraph *graph, int32_t l,
                                            struct ggml_tensor *x, struct ggml_tensor *pos,
                                            struct iwp_decoder_lane *lane,
                                            struct iwp_attend_node **node);
/* Makes a layer that was built with a node ready for the next rows, or other caches of the same types. */
void iwp_decoder_bind_lanes(struct iwp_attend_node *node, const struct iwp_decoder_lane *lane,
                            int32_t n);
/* Final norm and output matrix: [V, n]. */
struct ggml_tensor *iwp_decoder_build_logits(const struct iwp_decoder *d, struct ggml_context *ctx,
                                             struct ggml_tensor *x);

#endif
