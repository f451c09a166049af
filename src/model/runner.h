/* Runs rows of the residual stream, held on the host, through ranges of layers: builds the graph, feeds
 * inputs and masks, computes, brings results back, advances the cache.  One call runs one graph: chunks of
 * prompts build theirs, tokens keep it (iwp_runner_lanes). */
#ifndef IWP_MODEL_RUNNER_H
#define IWP_MODEL_RUNNER_H

#include "model/decoder.h"

struct iwp_runner {
    const struct iwp_decoder *d;
    struct iwp_kv *kv;
    struct iwp_sched *sched;
    enum iwp_attention attention;
};

/* Layers that see the rows at the same positions. */
struct iwp_span {
    int32_t l0, l1;     /* layers [l0, l1) */
    const int32_t *pos; /* [n_pos][stride] of the first row */
    int32_t stride;
};

struct iwp_run {
    int32_t n;                   /* rows */
    float *rows;                 /* [n][D] in; out unless the last layer was run */
    const struct iwp_span *span; /* consecutive */
    int32_t n_span;
    float *logits; /* [V] of the last row, or NULL; only with the last layer */
    float *heads;  /* NULL, or [n][H d]: attention output of the (only) layer */
};
/* The cache must have room (iwp_kv_reserve); its lengths grow by n in every layer that is run. */
int iwp_runner_layers(const struct iwp_runner *r, const struct iwp_run *run, iwp_err *err);

/* q, k, v of layer l for n rows, nothing cached.  NULL: not wanted. */
struct iwp_taps {
    float *q, *q_rope;     /* [n][H][d] */
    float *k, *k_rope, *v; /* [n][G][d] */
};
int iwp_runner_qkv(const struct iwp_runner *r, int32_t l, int32_t n, const float *rows,
                   const struct iwp_span *span, const struct iwp_taps *out, iwp_err *err);

/* One row of each of several timelines through all layers, every matrix read once for all of them. */
struct iwp_lane {
    const struct iwp_runner *r; /* all of one decoder, every cache with room for a row */
    const int32_t *pos;         /* [n_layer] position of the row in each layer */
    float *logits;              /* [V] */
};
/* rows: [n][D], n <= IWP_LANE_MAX.  Where attention is our own and the CPU the only device, the graph of the
 * last call serves as many other lanes, unless something else ran in this scheduler. */
int iwp_runner_lanes(struct iwp_sched *sched, const struct iwp_lane *lane, int32_t n,
                     const float *rows, iwp_err *err);

/* Nodes a graph of this decoder may have: of iwp_runner_lanes with n_lane, or 0: of the others. */
int32_t iwp_runner_max_nodes(const struct iwp_decoder *d, int32_t n_lane);

#endif
