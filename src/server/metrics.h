/* Counters and histograms for GET /metrics: Prometheus text format 0.0.4, llama.cpp's names behind our
 * prefix, vLLM's histograms.  The caller holds a lock. */
#ifndef IWP_SERVER_METRICS_H
#define IWP_SERVER_METRICS_H

#include <stdint.h>

#include "base/json.h"

enum iwp_hist {
    IWP_HIST_TTFT,
    IWP_HIST_TOKEN,
    IWP_HIST_QUEUE,
    IWP_HIST_PREFILL,
    IWP_HIST_DECODE,
    IWP_HIST_E2E,
    IWP_HIST_ENCODE,
    IWP_HIST_COUNT
};
enum { IWP_HIST_BUCKETS = 16, IWP_METHOD_SERIES = 64 };

/* Encoded pictures that are kept. */
struct iwp_metrics_cache {
    int64_t n;
    size_t bytes;
    int64_t hits, misses;
};

struct iwp_metrics {
    uint64_t prompt_tokens, prompt_cached, predicted_tokens, n_decode, busy_slots, images, encoded;
    uint64_t requests, failed, cancelled, refused, visual_in, visual_kept;
    double prompt_seconds, predicted_seconds, kv_bytes_saved;
    int32_t n_tokens_max;
    struct iwp_metrics_cache cache;
    struct {
        uint64_t count;
        double sum;
    } select[IWP_METHOD_SERIES]; /* by iwp_method_at */
    struct {
        uint64_t bucket[IWP_HIST_BUCKETS + 1], count; /* not cumulative; the last is +Inf */
        double sum;
    } hist[IWP_HIST_COUNT];
};

void iwp_metrics_observe(struct iwp_metrics *m, enum iwp_hist h, double seconds);
/* Plain text into w->text. */
void iwp_metrics_print(struct iwp_json_out *w, const struct iwp_metrics *m, int32_t n_running,
                       int32_t n_waiting);

#endif
