/* Looking into a running session: what analyses read on the way.  A session with a probe runs its layers
 * one by one and shows the rows before each; nothing of the last prompt is used again, so that every
 * layer has all its rows.  The numbers are those of a run without a probe. */
#ifndef IWP_MODEL_PROBE_H
#define IWP_MODEL_PROBE_H

#include "iwp/engine.h"
#include "model/runner.h"
#include "model/stream.h"

struct iwp_probe {
    /* Before a layer runs; `rows` are those that enter it, after a cut at this layer.  A negative status
     * ends the run with err. */
    int (*layer)(void *ctx, iwp_session *s, int32_t layer, const struct iwp_stream *rows,
                 iwp_err *err);
    void *ctx;
    /* When set (also from `layer`): the attention output of this layer, all heads, goes to heads
     * [rows][H][d].  The last layer computes it for the last row only. */
    int32_t heads_layer;
    float *heads;
};

/* NULL: none.  The probe must live until it is taken away. */
void iwp_session_set_probe(iwp_session *s, struct iwp_probe *p);

/* q, k, v of a layer for the rows in the session, from inside the probe's call. */
int iwp_probe_qkv(iwp_session *s, int32_t layer, const struct iwp_taps *out, iwp_err *err);

#endif
