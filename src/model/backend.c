/* Devices, threads and graph runs: see backend.h. */
#define _GNU_SOURCE /* dladdr */
#include "model/backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pool.h"
#include "kern/cpu.h"

/* What the CPU backend offers beyond the general interface; each may be missing in another build. */
struct cpu_calls {
    ggml_backend_set_n_threads_t set_n_threads; /* not more than the pool has */
    ggml_backend_dev_get_extra_bufts_t extra_bufts;
    ggml_backend_set_abort_callback_t set_abort;
    ggml_backend_get_features_t features;
    struct ggml_threadpool *(*pool_new)(struct ggml_threadpool_params *);
    void (*pool_free)(struct ggml_threadpool *);
    void (*set_pool)(ggml_backend_t, ggml_threadpool_t);
};

struct priv {
    struct cpu_calls cpu;
    struct ggml_threadpool *threads;
    iwp_pool *pool;
    int n_now; /* threads of the graph that runs */
    bool (*cancel)(void *);
    void *cancel_ctx;
};

struct iwp_sched {
    struct iwp_backend *b;
    ggml_backend_sched_t sched;
    int32_t max_nodes;
    size_t size;
    void *memory; /* of ctx: node headers and the graph */
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    bool (*cancel)(void *ctx); /* asked in the middle of a graph; NULL: it runs through */
    void *cancel_ctx;
    bool stopped;
    struct iwp_progress *meter; /* or NULL */
    int32_t n_graph;            /* it counts on */
    uint64_t form;              /* of the graph that memory was planned for; 0: none yet */
    void *kept;                 /* see iwp_sched_keep */
    int64_t n_built;
};

static void *address(ggml_backend_reg_t reg, const char *name) {
    return ggml_backend_reg_get_proc_address(reg, name);
}

/* ISO C has no cast from object to function pointers; POSIX has equal representations. */
#define BIND(field, name)                                                                          \
    do {                                                                                           \
        void *p_ = address(reg, name);                                                             \
        memcpy(&(field), &p_, sizeof p_);                                                          \
    } while (0)

static void bind_cpu(struct cpu_calls *c, ggml_backend_reg_t reg) {
    BIND(c->set_n_threads, "ggml_backend_set_n_threads");
    BIND(c->extra_bufts, "ggml_backend_dev_get_extra_bufts");
    BIND(c->set_abort, "ggml_backend_set_abort_callback");
    BIND(c->features, "ggml_backend_get_features");
    BIND(c->pool_new, "ggml_threadpool_new");
    BIND(c->pool_free, "ggml_threadpool_free");
    BIND(c->set_pool, "ggml_backend_cpu_set_threadpool");
}

static void log_line(enum ggml_log_level level, const char *text, void *ctx) {
    (void)ctx;
    char line[600];
    snprintf(line, sizeof line, "%s", text);
    size_t n = strlen(line);
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == ' ')) line[--n] = 0;
    if (n < 2) return; /* progress dots */
    /* Errors too: the call that failed says so in its caller's one line. */
    iwp_log(IWP_LOG_DEBUG, "ggml%s: %s", level == GGML_LOG_LEVEL_ERROR ? " error" : "", line);
}

/* ggml ends the process when one of its small allocations fails or an RPC server goes away: then at least
 * say so in one line and leave nothing half-written. */
static void ggml_died(const char *message) {
    char line[400];
    snprintf(line, sizeof line, "%s", message);
    line[strcspn(line, "\n")] = 0;
    iwp_output_abort_all();
    if (strstr(line, "mem_buffer != NULL") || strstr(line, "alloc"))
        iwp_log(IWP_LOG_ERROR, "iwp: out of memory in the tensor library");
    else
        iwp_log(IWP_LOG_ERROR, "iwp: the tensor library gave up: %s", line);
    _exit(1);
}

/* ---- RPC ---------------------------------------------------------------------------------------- */

/* The RPC client aborts on a server that is not there: try the address first. */
static int probe(const char *endpoint, iwp_err *err) {
    char host[256];
    const char *colon = strrchr(endpoint, ':');
    IWP_REQUIRE(colon && colon != endpoint && (size_t)(colon - endpoint) < sizeof host && colon[1],
                err, IWP_EINVAL, "--rpc: '%.80s' is not host:port", endpoint);
    memcpy(host, endpoint, (size_t)(colon - endpoint));
    host[colon - endpoint] = 0;
    char *end;
    long port = strtol(colon + 1, &end, 10);
    IWP_REQUIRE(!*end && port > 0 && port < 65536, err, IWP_EINVAL,
                "--rpc: '%.80s' is not host:port", endpoint);
    struct addrinfo hint, *list = NULL;
    memset(&hint, 0, sizeof hint);
    hint.ai_family = AF_UNSPEC;
    hint.ai_socktype = SOCK_STREAM;
    int rc = getaddrinfo(host, colon + 1, &hint, &list);
    IWP_REQUIRE(rc == 0, err, IWP_EIO, "--rpc: %.80s: %s", endpoint, gai_strerror(rc));
    int saved = ECONNREFUSED;
    bool found = false;
    for (struct addrinfo *a = list; a && !found; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd < 0) continue;
        found = connect(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (!found) saved = errno;
        close(fd);
    }
    freeaddrinfo(list);
    IWP_REQUIRE(found, err, IWP_EIO, "--rpc: no server at %.80s: %s", endpoint, strerror(saved));
    return 0;
}

static int add_device(struct iwp_backend *b, ggml_backend_dev_t dev, iwp_err *err) {
    IWP_REQUIRE(b->n_device < IWP_BACKEND_MAX_DEVICE, err, IWP_ENOTSUP, "more than %d devices",
                IWP_BACKEND_MAX_DEVICE);
    ggml_backend_t be = ggml_backend_dev_init(dev, NULL);
    IWP_REQUIRE(be, err, IWP_ENOTSUP, "device %s cannot be started", ggml_backend_dev_name(dev));
    b->device[b->n_device] = dev;
    b->backend[b->n_device] = be;
    b->buft[b->n_device] = ggml_backend_dev_buffer_type(dev);
    b->n_device++;
    iwp_log(IWP_LOG_DEBUG, "device %s: %s", ggml_backend_dev_name(dev),
            ggml_backend_dev_description(dev));
    return 0;
}

static int add_rpc(struct iwp_backend *b, const char *list, iwp_err *err) {
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("RPC");
    IWP_REQUIRE(reg, err, IWP_ENOTSUP, "--rpc: this build has no RPC backend");
    ggml_backend_reg_t (*add)(const char *) = NULL;
    BIND(add, "ggml_backend_rpc_add_server");
    IWP_REQUIRE(add, err, IWP_ENOTSUP, "--rpc: this build has no RPC backend");
    for (const char *p = list; *p;) {
        char endpoint[300];
        size_t n = strcspn(p, ",");
        IWP_REQUIRE(n > 0 && n < sizeof endpoint, err, IWP_EINVAL,
                    "--rpc: '%.80s' is not host:port", p);
        memcpy(endpoint, p, n);
        endpoint[n] = 0;
        IWP_TRY(probe(endpoint, err));
        ggml_backend_reg_t server = add(endpoint);
        IWP_REQUIRE(server, err, IWP_EIO, "--rpc: %s has no devices", endpoint);
        for (size_t i = 0; i < ggml_backend_reg_dev_count(server); i++)
            IWP_TRY(add_device(b, ggml_backend_reg_dev_get(server, i), err));
        p += n + (p[n] == ',');
    }
    return 0;
}

/* ---- devices and threads ------------------------------------------------------------------------ */

static bool ask_cancel(void *ctx) {
    const struct priv *v = ctx;
    return v->cancel && v->cancel(v->cancel_ctx);
}

bool iwp_backend_cancelled(const struct iwp_backend *b) { return ask_cancel(b->priv); }

/* Where ggml's backends are libraries of their own they lie beside ggml itself; it would also look into the
 * current folder. */
static void load_once(void) {
    ggml_backend_reg_t (*any)(size_t) = ggml_backend_reg_get;
    Dl_info info;
    void *at;
    memcpy(&at, &any, sizeof at);
    if (ggml_backend_reg_count() > 0 || !dladdr(at, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    char dir[4096];
    const int n = snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - info.dli_fname) : 0,
                           info.dli_fname);
    if (n > 0 && (size_t)n < sizeof dir) ggml_backend_load_all_from_path(dir);
}

static void load_backends(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_once);
}

static int start_cpu(struct iwp_backend *b, const struct iwp_backend_params *p, iwp_err *err) {
    struct priv *v = b->priv;
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    IWP_REQUIRE(cpu, err, IWP_ENOTSUP, "ggml has no CPU backend here (is its library installed?)");
    bind_cpu(&v->cpu, ggml_backend_dev_backend_reg(cpu));
    IWP_TRY(add_device(b, cpu, err));
    ggml_backend_t be = b->backend[iwp_backend_cpu(b)];
    IWP_TRY(iwp_pool_new(&v->pool, p->n_thread, err));
    b->n_thread = iwp_pool_threads(v->pool);
    b->exec = (struct iwp_exec){iwp_pool_run, v->pool, b->n_thread};
    if (v->cpu.set_n_threads) v->cpu.set_n_threads(be, b->n_thread);
    if (v->cpu.pool_new && v->cpu.set_pool && v->cpu.pool_free) {
        struct ggml_threadpool_params tp = ggml_threadpool_params_default(b->n_thread);
        v->threads = v->cpu.pool_new(&tp); /* without one ggml starts threads for every graph */
        if (v->threads) v->cpu.set_pool(be, v->threads);
    }
    if (v->cpu.set_abort) v->cpu.set_abort(be, ask_cancel, v);
    if (v->cpu.extra_bufts && !p->plain_weights) {
        ggml_backend_buffer_type_t *list = v->cpu.extra_bufts(cpu);
        const bool no_amx = (iwp_cpu_features_all() & ~iwp_cpu_features()) & IWP_CPU_AMX_INT8;
        for (; list && *list && b->n_extra < IWP_BACKEND_MAX_BUFT; list++) {
            if (no_amx && strcmp(ggml_backend_buft_name(*list), "AMX") == 0) continue; /* IWP_CPU */
            b->extra[b->n_extra++] = *list;
        }
    }
    return 0;
}

int iwp_backend_new(struct iwp_backend **out, const struct iwp_backend_params *p, iwp_err *err) {
    *out = NULL;
    ggml_log_set(log_line, NULL);
    ggml_set_abort_callback(ggml_died);
    struct iwp_backend *b = calloc(1, sizeof *b);
    struct priv *v = calloc(1, sizeof *v);
    if (!b || !v) {
        free(b);
        free(v);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    b->priv = v;
    int rc = 0;
    load_backends();
    if (p->rpc && *p->rpc) IWP_TRY_GOTO(add_rpc(b, p->rpc, err));
    for (size_t i = 0; i < ggml_backend_dev_count() && p->n_gpu != 0; i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        enum ggml_backend_dev_type type = ggml_backend_dev_type(dev);
        if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU)
            IWP_TRY_GOTO(add_device(b, dev, err));
    }
    if (p->n_gpu > 0 && b->n_device == 0)
        iwp_log(IWP_LOG_WARN, "-ngl %d: no GPU or RPC device here, all layers stay on the CPU",
                p->n_gpu);
    b->plain_weights = p->plain_weights;
    b->rows_in_file = p->rows_in_file;
    b->n_gpu = p->n_gpu < 0 ? 1 << 20 : p->n_gpu;
    IWP_TRY_GOTO(start_cpu(b, p, err));
    *out = b;
    return 0;
fail:
    iwp_backend_free(b);
    return rc;
}

void iwp_backend_free(struct iwp_backend *b) {
    if (!b) return;
    struct priv *v = b->priv;
    for (int32_t i = 0; i < b->n_device; i++) ggml_backend_free(b->backend[i]);
    if (v->threads) v->cpu.pool_free(v->threads);
    iwp_pool_free(v->pool);
    free(v);
    free(b);
}

bool iwp_backend_cpu_has(const struct iwp_backend *b, const char *feature) {
    const struct priv *v = b->priv;
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(b->device[iwp_backend_cpu(b)]);
    const struct ggml_backend_feature *f = v->cpu.features ? v->cpu.features(reg) : NULL;
    for (; f && f->name; f++)
        if (strcmp(f->name, feature) == 0) return strcmp(f->value, "0") != 0;
    return false;
}

int32_t iwp_backend_layer_device(const struct iwp_backend *b, int32_t l, int32_t n_layer) {
    const int32_t others = b->n_device - 1;
    const int32_t n = b->n_gpu < n_layer + 1 ? b->n_gpu : n_layer + 1; /* the last n are moved */
    const int32_t first = n_layer + 1 - n;
    if (others == 0 || l < first) return iwp_backend_cpu(b);
    return (int32_t)((int64_t)(l - first) * others / n);
}

ggml_backend_buffer_type_t iwp_backend_matmul_buft(const struct iwp_backend *b, int32_t device,
                                                   enum ggml_type type, int n_dims,
                                                   const int64_t *ne) {
    if (device != iwp_backend_cpu(b)) return b->buft[device];
    ggml_backend_buffer_type_t found = b->buft[device];
    struct ggml_init_params ip = {ggml_tensor_overhead() * 4, NULL, true};
    struct ggml_context *ctx = ggml_init(ip);
    if (!ctx) return found;
    struct ggml_tensor *w = ggml_new_tensor(ctx, type, n_dims, ne);
    struct ggml_tensor *x =
        ggml_new_tensor_4d(ctx, GGML_TYPE_F32, w->ne[0], 512, w->ne[2], w->ne[3]);
    struct ggml_tensor *y = ggml_mul_mat(ctx, w, x);
    for (int32_t i = 0; i < b->n_extra; i++) {
        /* Which layout a weight has is asked of its buffer, so it needs one: an empty one will do. */
        w->buffer = ggml_backend_buft_alloc_buffer(b->extra[i], 0);
        if (!w->buffer) continue;
        bool fits = ggml_backend_dev_supports_op(b->device[device], y);
        ggml_backend_buffer_free(w->buffer);
        w->buffer = NULL;
        if (fits) {
            found = b->extra[i];
            break;
        }
    }
    ggml_free(ctx);
    return found;
}

void iwp_backend_set_cancel(struct iwp_backend *b, bool (*cancel)(void *ctx), void *ctx) {
    struct priv *v = b->priv;
    v->cancel = cancel;
    v->cancel_ctx = ctx;
}

void iwp_backend_size_threads(struct iwp_backend *b, double work) {
    struct priv *v = b->priv;
    v->n_now = work < 4e6 ? 1 : b->n_thread;
    if (v->cpu.set_n_threads) v->cpu.set_n_threads(b->backend[iwp_backend_cpu(b)], v->n_now);
}

/* ---- graphs ------------------------------------------------------------------------------------- */

int iwp_sched_new(struct iwp_sched **out, struct iwp_backend *b, int32_t max_nodes, iwp_err *err) {
    *out = NULL;
    struct iwp_sched *s = calloc(1, sizeof *s);
    IWP_REQUIRE(s, err, IWP_ENOMEM, "out of memory");
    s->b = b;
    s->max_nodes = max_nodes;
    /* Leaves and views count too, hence the room for more headers than nodes. */
    s->size = ggml_tensor_overhead() * (size_t)max_nodes * 2 +
              ggml_graph_overhead_custom((size_t)max_nodes, false);
    s->memory = malloc(s->size);
    /* ggml does not look whether its own memory was there (60 tensor headers and more a node, touched only
     * when used): ask for as much first. */
    void *volatile probe =
        malloc((size_t)max_nodes * 2 * (60 * (sizeof(struct ggml_tensor) + 16) + 1024));
    const bool enough = probe != NULL;
    free(probe);
    if (s->memory && enough)
        s->sched = ggml_backend_sched_new(b->backend, NULL, b->n_device, (size_t)max_nodes * 2,
                                          false, false);
    if (!s->memory || !s->sched) {
        iwp_sched_free(s);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    *out = s;
    return 0;
}

void iwp_sched_free(struct iwp_sched *s) {
    if (!s) return;
    if (s->ctx) ggml_free(s->ctx);
    if (s->sched) ggml_backend_sched_free(s->sched);
    free(s->memory);
    free(s);
}

int iwp_sched_begin(struct iwp_sched *s, struct ggml_context **ctx, struct ggml_cgraph **graph,
                    iwp_err *err) {
    s->kept = NULL;
    s->n_built++;
    ggml_backend_sched_reset(s->sched);
    if (s->ctx) ggml_free(s->ctx);
    s->ctx = ggml_init((struct ggml_init_params){s->size, s->memory, true});
    IWP_REQUIRE(s->ctx, err, IWP_ENOMEM, "out of memory");
    s->graph = ggml_new_graph_custom(s->ctx, (size_t)s->max_nodes, false);
    *ctx = s->ctx;
    *graph = s->graph;
    return 0;
}

void iwp_sched_pin(struct iwp_sched *s, struct ggml_tensor *t, int32_t device) {
    ggml_backend_sched_set_tensor_backend(s->sched, t, s->b->backend[device]);
}

static bool is_custom(enum ggml_op op) {
    return op == GGML_OP_CUSTOM || op == GGML_OP_MAP_CUSTOM1 || op == GGML_OP_MAP_CUSTOM2 ||
           op == GGML_OP_MAP_CUSTOM3;
}

void iwp_sched_pin_custom(struct iwp_sched *s) {
    if (s->b->n_device == 1) return;
    for (int i = 0; i < ggml_graph_n_nodes(s->graph); i++) {
        struct ggml_tensor *t = ggml_graph_node(s->graph, i);
        if (is_custom(t->op)) iwp_sched_pin(s, t, iwp_backend_cpu(s->b));
    }
}

int iwp_sched_check_custom(const struct iwp_sched *s, iwp_err *err) {
    ggml_backend_t cpu = s->b->backend[iwp_backend_cpu(s->b)];
    for (int i = 0; i < ggml_graph_n_nodes(s->graph); i++) {
        struct ggml_tensor *t = ggml_graph_node(s->graph, i);
        if (!is_custom(t->op)) continue;
        ggml_backend_t be = ggml_backend_sched_get_tensor_backend(s->sched, t);
        IWP_REQUIRE(be == cpu, err, IWP_EINTERNAL, "custom op %s would run on %s", t->name,
                    be ? ggml_backend_name(be) : "no device");
    }
    return 0;
}

static int replan(struct iwp_sched *s, iwp_err *err) {
    IWP_REQUIRE(ggml_backend_sched_reserve(s->sched, s->graph), err, IWP_ENOMEM,
                "out of memory for a graph of %d nodes", ggml_graph_n_nodes(s->graph));
    return 0;
}

int iwp_sched_replan(struct iwp_sched *s, iwp_err *err) {
    return s->b->n_device > 1 ? replan(s, err) : 0;
}

/* Where a tensor stands in the graph's memory, which is the same for every graph of a form; 1 for what
 * has memory of its own (weights, caches), 0 for none. */
static uint64_t place_of(const struct iwp_sched *s, const struct ggml_tensor *t) {
    const uintptr_t at = (uintptr_t)t, base = (uintptr_t)s->memory;
    if (!t) return 0;
    return at >= base && at < base + s->size ? 2 + (uint64_t)(at - base) : 1;
}

/* A number for which nodes there are, who reads whom and what must outlive the graph. */
static uint64_t form_of(const struct iwp_sched *s) {
    uint64_t h = 0xcbf29ce484222325;
    for (int i = 0; i < ggml_graph_n_nodes(s->graph); i++) {
        const struct ggml_tensor *t = ggml_graph_node(s->graph, i);
        h = (h ^ ((uint64_t)t->op << 32 | (uint32_t)t->flags)) * 0x100000001b3;
        h = (h ^ place_of(s, t->view_src)) * 0x100000001b3;
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            const struct ggml_tensor *r = t->src[j];
            h = (h ^ (place_of(s, r) << 8 | (r ? (uint32_t)r->flags & 255u : 0))) * 0x100000001b3;
        }
    }
    return h;
}

int iwp_sched_alloc(struct iwp_sched *s, iwp_err *err) {
    if (s->b->n_device == 1) { /* on several, planning would rewrite the graph */
        const uint64_t form = form_of(s);
        if (form != s->form) IWP_TRY(replan(s, err));
        s->form = form;
    }
    IWP_REQUIRE(ggml_backend_sched_alloc_graph(s->sched, s->graph), err, IWP_ENOMEM,
                "out of memory for a graph of %d nodes", ggml_graph_n_nodes(s->graph));
    return s->b->n_device > 1 ? iwp_sched_check_custom(s, err) : 0;
}

/* ggml asks before a node whether to stop after it.  Matrix products (some are custom nodes) are where
 * the time goes, so between two of them nobody waits long. */
static bool at_node(struct ggml_tensor *t, bool ask, void *ctx) {
    struct iwp_sched *s = ctx;
    if (ask && s->meter) iwp_progress_set(s->meter, s->meter->done + 1);
    if (ask) return t->op == GGML_OP_MUL_MAT || is_custom(t->op);
    const struct priv *v = s->b->priv;
    const int n = v->n_now;
    s->stopped = s->cancel(s->cancel_ctx);
    iwp_backend_size_threads(s->b, n > 1 ? INFINITY : 0); /* other graphs perhaps ran meanwhile */
    return !s->stopped;
}

void iwp_sched_set_pauses(struct iwp_sched *s, bool (*cancel)(void *ctx), void *ctx) {
    s->cancel = cancel;
    s->cancel_ctx = ctx;
    ggml_backend_sched_set_eval_callback(s->sched, cancel ? at_node : NULL, s);
}

void iwp_sched_set_meter(struct iwp_sched *s, struct iwp_progress *meter, int32_t n_graph) {
    s->meter = meter;
    s->n_graph = n_graph;
}

int iwp_sched_compute(struct iwp_sched *s, iwp_err *err) {
    s->stopped = false;
    if (s->meter && s->meter->total == 0)
        s->meter->total = (int64_t)ggml_graph_n_nodes(s->graph) * s->n_graph;
    enum ggml_status st = ggml_backend_sched_graph_compute(s->sched, s->graph);
    if (s->stopped || st != GGML_STATUS_SUCCESS) s->kept = NULL; /* some nodes are half-way */
    IWP_REQUIRE(!s->stopped, err, IWP_ECANCELLED, "interrupted");
    IWP_REQUIRE(st != GGML_STATUS_ABORTED, err, IWP_ECANCELLED, "interrupted");
    IWP_REQUIRE(st != GGML_STATUS_ALLOC_FAILED, err, IWP_ENOMEM, "out of memory");
    IWP_REQUIRE(st == GGML_STATUS_SUCCESS, err, IWP_EINTERNAL, "a graph failed (%s)",
                ggml_status_to_string(st));
    return 0;
}

void iwp_sched_keep(struct iwp_sched *s, void *what) { s->kept = what; }
void *iwp_sched_kept(const struct iwp_sched *s) { return s->kept; }
int64_t iwp_sched_built(const struct iwp_sched *s) { return s->n_built; }

size_t iwp_sched_bytes(const struct iwp_sched *s) {
    size_t n = 0;
    for (int32_t i = 0; i < s->b->n_device; i++)
        n += ggml_backend_sched_get_buffer_size(s->sched, s->b->backend[i]);
    return n;
}
