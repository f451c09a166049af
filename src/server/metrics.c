/* Counters and histograms: see metrics.h. */
#include "server/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iwp/prune.h"

static const double edge[IWP_HIST_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                              0.5,   1,      2.5,   5,    10,    30,   60,  300};

void iwp_metrics_observe(struct iwp_metrics *m, enum iwp_hist h, double seconds) {
    if (!(seconds >= 0)) seconds = 0;
    int i = 0;
    while (i < IWP_HIST_BUCKETS && seconds > edge[i]) i++;
    m->hist[h].bucket[i]++;
    m->hist[h].count++;
    m->hist[h].sum += seconds;
}

static void line(struct iwp_json_out *w, const char *text) {
    const size_t n = strlen(text);
    if (w->len + n + 1 > w->cap) {
        const size_t cap = 2 * w->cap + n + 4096;
        char *p = realloc(w->text, cap);
        if (!p) {
            w->failed = true;
            return;
        }
        w->text = p;
        w->cap = cap;
    }
    memcpy(w->text + w->len, text, n + 1);
    w->len += n;
}

static void value(struct iwp_json_out *w, const char *name, const char *type, const char *help,
                  double v) {
    char number[32], text[512];
    iwp_json_format_f64(number, v);
    snprintf(text, sizeof text, "# HELP iwp:%s %s\n# TYPE iwp:%s %s\niwp:%s %s\n", name, help, name,
             type, name, number);
    line(w, text);
}

static double rate(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

static void print_selections(struct iwp_json_out *w, const struct iwp_metrics *m) {
    char text[512], number[32];
    line(w, "# HELP iwp:prune_select_seconds selections of a request\n"
            "# TYPE iwp:prune_select_seconds summary\n");
    for (int32_t i = 0; i < IWP_METHOD_SERIES && i < iwp_method_count(); i++) {
        if (m->select[i].count == 0) continue;
        const char *name = iwp_method_info(iwp_method_at(i))->name;
        iwp_json_format_f64(number, m->select[i].sum);
        snprintf(text, sizeof text,
                 "iwp:prune_select_seconds_sum{method=\"%s\"} %s\n"
                 "iwp:prune_select_seconds_count{method=\"%s\"} %llu\n",
                 name, number, name, (unsigned long long)m->select[i].count);
        line(w, text);
    }
}

void iwp_metrics_print(struct iwp_json_out *w, const struct iwp_metrics *m, int32_t n_running,
                       int32_t n_waiting) {
    static const char *const name[IWP_HIST_COUNT][2] = {
        {"time_to_first_token_seconds", "from arrival to the first token"},
        {"inter_token_latency_seconds", "between tokens of one answer"},
        {"request_queue_time_seconds", "waiting for a session"},
        {"request_prefill_time_seconds", "prompt through the model"},
        {"request_decode_time_seconds", "first to last token"},
        {"e2e_request_latency_seconds", "from arrival to the end"},
        {"image_encode_seconds",
         "pictures of a request through the tower, cached ones not counted"},
    };
    const char *c = "counter", *g = "gauge";
    char text[512];
    line(w, "");
    value(w, "prompt_tokens_total", c, "prompt tokens, unpruned", (double)m->prompt_tokens);
    value(w, "prompt_seconds_total", c, "prompt processing time", m->prompt_seconds);
    value(w, "prompt_tokens_seconds", g, "prompt tokens per second",
          rate((double)m->prompt_tokens, m->prompt_seconds));
    value(w, "tokens_predicted_total", c, "generated tokens", (double)m->predicted_tokens);
    value(w, "tokens_predicted_seconds_total", c, "generation time", m->predicted_seconds);
    value(w, "predicted_tokens_seconds", g, "generated tokens per second",
          rate((double)m->predicted_tokens, m->predicted_seconds));
    value(w, "requests_processing", g, "requests that have a session", n_running);
    value(w, "requests_deferred", g, "requests that wait", n_waiting);
    value(w, "n_decode_total", c, "decode rounds", (double)m->n_decode);
    value(w, "n_busy_slots_per_decode", g, "sessions per decode round",
          rate((double)m->busy_slots, (double)m->n_decode));
    value(w, "n_tokens_max", g, "longest context seen", m->n_tokens_max);
    value(w, "requests_total", c, "answered requests", (double)m->requests);
    value(w, "requests_failed_total", c, "requests answered with an error", (double)m->failed);
    value(w, "requests_cancelled_total", c, "requests whose client left", (double)m->cancelled);
    value(w, "requests_refused_total", c, "requests refused because the queue was full",
          (double)m->refused);
    value(w, "images_total", c, "pictures in prompts", (double)m->images);
    value(w, "prompts_encoded_total", c, "prompts with pictures that were not all cached",
          (double)m->encoded);
    value(w, "prompt_tokens_cached_total", c,
          "prompt tokens whose first layers an earlier prompt had gone through",
          (double)m->prompt_cached);
    value(w, "image_cache_hits_total", c, "pictures that were encoded already",
          (double)m->cache.hits);
    value(w, "image_cache_misses_total", c, "pictures that had to be encoded",
          (double)m->cache.misses);
    value(w, "image_cache_hit_ratio", g, "hits of all pictures so far",
          rate((double)m->cache.hits, (double)(m->cache.hits + m->cache.misses)));
    value(w, "image_cache_entries", g, "encoded pictures in memory", (double)m->cache.n);
    value(w, "image_cache_bytes", g, "their size", (double)m->cache.bytes);
    value(w, "kv_bytes_saved_total", c, "cache bytes that pruning saved", m->kv_bytes_saved);
    snprintf(text, sizeof text,
             "# HELP iwp:visual_tokens_total visual tokens of prompts, and those kept\n"
             "# TYPE iwp:visual_tokens_total counter\niwp:visual_tokens_total{stage=\"in\"} %llu\n"
             "iwp:visual_tokens_total{stage=\"kept\"} %llu\n",
             (unsigned long long)m->visual_in, (unsigned long long)m->visual_kept);
    line(w, text);
    print_selections(w, m);
    for (int h = 0; h < IWP_HIST_COUNT; h++) {
        snprintf(text, sizeof text, "# HELP iwp:%s %s\n# TYPE iwp:%s histogram\n", name[h][0],
                 name[h][1], name[h][0]);
        line(w, text);
        uint64_t sum = 0;
        for (int i = 0; i <= IWP_HIST_BUCKETS; i++) {
            char le[32] = "+Inf";
            if (i < IWP_HIST_BUCKETS) iwp_json_format_f64(le, edge[i]);
            sum += m->hist[h].bucket[i];
            snprintf(text, sizeof text, "iwp:%s_bucket{le=\"%s\"} %llu\n", name[h][0], le,
                     (unsigned long long)sum);
            line(w, text);
        }
        char number[32];
        iwp_json_format_f64(number, m->hist[h].sum);
        snprintf(text, sizeof text, "iwp:%s_sum %s\niwp:%s_count %llu\n", name[h][0], number,
                 name[h][0], (unsigned long long)m->hist[h].count);
        line(w, text);
    }
}
