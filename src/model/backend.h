/* Devices and threads: where tensors live and graphs run.
 *
 * Owns every call that is special to ggml's CPU backend (all of them through the registry, so that a
 * build with loadable backends works too), the GPU and RPC devices that -ngl and --rpc name, the
 * threads, and the scheduler that runs a graph over several devices.
 * Refuses: nothing here knows a model; custom ops are the callers' duty (iwp_sched_compute rejects a
 * graph whose custom op would leave the CPU). */
#ifndef IWP_MODEL_BACKEND_H
#define IWP_MODEL_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ggml-backend.h>
#include <ggml.h>

#include "iwp/error.h"
#include "iwp/prune.h"

enum { IWP_BACKEND_MAX_DEVICE = 32, IWP_BACKEND_MAX_BUFT = 16 };

struct iwp_backend_params {
    int32_t n_thread;   /* 0: iwp_cpu_count() */
    int32_t n_gpu;      /* -ngl: layers on other devices; -1: all when there are any */
    const char *rpc;    /* --rpc: "host:port,host:port" or NULL */
    bool plain_weights; /* no repacked weight layouts (comparisons) */
    bool rows_in_file;  /* see IWP_WEIGHT_ROWS */
};

struct iwp_backend {
    int32_t n_device; /* the CPU is the last one */
    ggml_backend_dev_t device[IWP_BACKEND_MAX_DEVICE];
    ggml_backend_t backend[IWP_BACKEND_MAX_DEVICE];
    ggml_backend_buffer_type_t buft[IWP_BACKEND_MAX_DEVICE]; /* plain memory of each */
    int32_t n_extra; /* layouts of the CPU that make mul_mat faster, best first */
    ggml_backend_buffer_type_t extra[IWP_BACKEND_MAX_BUFT];
    int32_t n_thread, n_gpu;
    bool plain_weights, rows_in_file; /* as asked for */
    struct iwp_exec exec;             /* our own threads, for selections and preprocessing */
    void *priv;
};

int iwp_backend_new(struct iwp_backend **out, const struct iwp_backend_params *p, iwp_err *err);
void iwp_backend_free(struct iwp_backend *b); /* NULL is fine */

static inline int32_t iwp_backend_cpu(const struct iwp_backend *b) { return b->n_device - 1; }
/* Whether ggml's CPU backend was built with these instructions, by its own name for them ("AVX512_BF16"), and this
 * CPU has them; IWP_CPU does not hide them. */
bool iwp_backend_cpu_has(const struct iwp_backend *b, const char *feature);
/* The device of decoder layer l of n (l = n: the output layer). */
int32_t iwp_backend_layer_device(const struct iwp_backend *b, int32_t l, int32_t n_layer);
/* The buffer type for a weight that is only ever the left side of ggml_mul_mat on `device`. */
ggml_backend_buffer_type_t iwp_backend_matmul_buft(const struct iwp_backend *b, int32_t device,
                                                   enum ggml_type type, int n_dims,
                                                   const int64_t *ne);
/* Asked by ggml between nodes on the CPU, by sessions between steps, and by all readers of weights; true stops them
 * (IWP_ECANCELLED). */
void iwp_backend_set_cancel(struct iwp_backend *b, bool (*cancel)(void *ctx), void *ctx);
bool iwp_backend_cancelled(const struct iwp_backend *b);

/* ---- Running graphs ---------------------------------------------------------------------------- */

/*  Use:
 *      iwp_sched_begin(s, &ctx, &graph, err);               // ctx and graph live until the next begin
 *      … build nodes in ctx, ggml_set_input / ggml_set_output, ggml_build_forward_expand(graph, …) …
 *      iwp_sched_alloc(s, err);                             // memory for all nodes
 *      … ggml_backend_tensor_set on inputs …
 *      iwp_sched_compute(s, err);
 *      … ggml_backend_tensor_get on outputs …
 * One scheduler per user (tower, decoder); its compute buffers grow to the largest graph and stay. */
struct iwp_sched;
int iwp_sched_new(struct iwp_sched **out, struct iwp_backend *b, int32_t max_nodes, iwp_err *err);
void iwp_sched_free(struct iwp_sched *s); /* NULL is fine */
int iwp_sched_begin(struct iwp_sched *s, struct ggml_context **ctx, struct ggml_cgraph **graph,
                    iwp_err *err);
/* Pins a node to a device (custom ops: the CPU).  Between begin and alloc. */
void iwp_sched_pin(struct iwp_sched *s, struct ggml_tensor *t, int32_t device);
void iwp_sched_pin_custom(struct iwp_sched *s); /* all custom ops of the graph, to the CPU */
int iwp_sched_alloc(struct iwp_sched *s, iwp_err *err);
/* Before pin and alloc of a graph whose nodes have the sizes of the last one's but other lifetimes: ggml
 * compares sizes alone, and would lay its outputs over each other.  With one device alloc sees to it. */
int iwp_sched_replan(struct iwp_sched *s, iwp_err *err);
int iwp_sched_compute(struct iwp_sched *s, iwp_err *err);
/* The graph may be computed again, with other inputs, until the next begin.  Whoever can do so leaves here
 * what it must know then, in the graph's ctx; NULL after a begin and when compute failed. */
void iwp_sched_keep(struct iwp_sched *s, void *what);
void *iwp_sched_kept(const struct iwp_sched *s);
int64_t iwp_sched_built(const struct iwp_sched *s); /* graphs begun so far */
/* compute pauses between matrix products and asks cancel(ctx), which may run graphs of other schedulers;
 * true ends it with IWP_ECANCELLED.  NULL: no pauses. */
void iwp_sched_set_pauses(struct iwp_sched *s, bool (*cancel)(void *ctx), void *ctx);
/* The next n_graph graphs, of about the same size, advance the meter wherever compute pauses; NULL: none. */
struct iwp_progress;
void iwp_sched_set_meter(struct iwp_sched *s, struct iwp_progress *meter, int32_t n_graph);
size_t iwp_sched_bytes(const struct iwp_sched *s); /* compute buffers */
/* Threads for the next graphs of this backend: all, or one when `work` (multiplications) is so small
 * that waiting for each other would cost more than it saves. */
void iwp_backend_size_threads(struct iwp_backend *b, double work);
/* 0, or an error that names the first custom op of the graph that is not assigned to the CPU. */
int iwp_sched_check_custom(const struct iwp_sched *s, iwp_err *err);

#endif
