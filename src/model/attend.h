/* The decoder's attention (kern/attn.h) as a custom node.  Its graph must keep it on the CPU.
 *
 * Each thread has scratch memory here, made large enough while a node is built or bound and used within a
 * node only.  Nodes live in the graph's context. */
#ifndef IWP_MODEL_ATTEND_H
#define IWP_MODEL_ATTEND_H

#include "kern/attn.h"
#include "model/kv.h"

struct iwp_attend;
/* *out is NULL where the CPU or the head size leaves no path but ggml's. */
int iwp_attend_new(struct iwp_attend **out, int32_t n_head, int32_t n_head_kv, int32_t d,
                   int32_t n_thread, iwp_err *err);
void iwp_attend_free(struct iwp_attend *a); /* NULL is fine */
const char *iwp_attend_name(const struct iwp_attend *a);
/* After nodes are built or bound: IWP_ENOMEM when memory for one of them was missing. */
int iwp_attend_check(const struct iwp_attend *a, iwp_err *err);

/* The rows q [d, H, n] are the last n of the first n_kv rows of a cache; returns [H d, n]. */
struct ggml_tensor *iwp_attend_build(struct iwp_attend *a, struct ggml_context *ctx,
                                     struct ggml_tensor *q, const struct iwp_kv_layer *kv,
                                     int32_t n_kv);
/* Row i of q is the last of n_kv[i] rows of kv[i].  node: NULL, or out: for iwp_attend_bind. */
struct iwp_attend_node;
struct ggml_tensor *iwp_attend_build_lanes(struct iwp_attend *a, struct ggml_context *ctx,
                                           struct ggml_tensor *q,
                                           const struct iwp_kv_layer *const *kv,
                                           const int32_t *n_kv, struct iwp_attend_node **node);
/* Other caches, or other lengths, of as many lanes for the graph's next run. */
void iwp_attend_bind(struct iwp_attend_node *node, const struct iwp_kv_layer *const *kv,
                     const int32_t *n_kv);

#endif
