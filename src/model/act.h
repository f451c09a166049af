/* Activations as exact CPU ops.  ggml's tanh- and quick-GELU look values up in an f16 table (errors of
 * 1e-3); these have float32 precision.  Custom nodes: their graph must stay on the CPU. */
#ifndef IWP_MODEL_ACT_H
#define IWP_MODEL_ACT_H

#include <ggml.h>

#include "iwp/error.h"

enum iwp_act { IWP_ACT_GELU_TANH, IWP_ACT_GELU_QUICK, IWP_ACT_GELU_ERF, IWP_ACT_SILU };

/* "gelu_tanh", "gelu_quick", "gelu_erf", "silu"; negative when unknown. */
int iwp_act_find(const char *name, iwp_err *err);
/* y = act(x); x contiguous f32. */
struct ggml_tensor *iwp_act_build(struct ggml_context *ctx, enum iwp_act act,
                                  struct ggml_tensor *x);
/* The same on an array, in place. */
void iwp_act_apply(enum iwp_act act, float *x, size_t n);

#endif
