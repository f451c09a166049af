/* The decoder's attention (kern/attn.h) as a custom node.  Its graph must keep it on the CPU.
 *
 * Each thread has scratch memory here, made large enough while a graph is built and used within a node only.
 * Nodes live in the graph's context. */
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
/* After a graph is built: IWP_ENOMEM when memory for one of its nodes was missing. */
int iwp_attend_check(const struct iwp_attend *a, iwp_err *err);

/* The rows q [d, H, n] are the last n of the first n_kv rows of a cache; returns [H d, n]. */
struct ggml_tensor *iwp_attend_build(struct iwp_attend *a, struct ggml_context *ctx,
                                     struct ggml_tensor *q, const struct iwp_kv_layer *kv,
                                     int32_t n_kv);
/* Row i of q is the last of n_kv[i] rows of kv[i]. */
struct ggml_tensor *iwp_attend_build_lanes(struct iwp_attend *a, struct ggml_context *ctx,
                                           struct ggml_tensor *q,
                                           const struct iwp_kv_layer *const *kv,
                                           const int32_t *n_kv);

#endif
