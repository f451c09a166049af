/* Weights in backend buffers: see weights.h. */
#include "model/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"

struct item {
    const struct iwp_gguf_tensor *src;
    struct ggml_tensor *t;
    struct iwp_packed *packed; /* or NULL */
};

/* Tensors that share memory: one device and one layout. */
struct group {
    ggml_backend_buffer_type_t buft;
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
};

enum { MAX_GROUP = IWP_BACKEND_MAX_DEVICE + IWP_BACKEND_MAX_BUFT };

struct iwp_weights {
    struct iwp_backend *b;
    const struct iwp_gguf *g;
    struct iwp_pack *pack;
    struct item *item;
    int32_t n_item, cap_item;
    struct group group[MAX_GROUP];
    int32_t n_group;
    size_t bytes;
};

int iwp_weights_new(struct iwp_weights **out, struct iwp_backend *b, const struct iwp_gguf *g,
                    iwp_err *err) {
    *out = calloc(1, sizeof **out);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    (*out)->b = b;
    (*out)->g = g;
    return 0;
}

void iwp_weights_free(struct iwp_weights *w) {
    if (!w) return;
    for (int32_t i = 0; i < w->n_group; i++) {
        if (w->group[i].buffer) ggml_backend_buffer_free(w->group[i].buffer);
        ggml_free(w->group[i].ctx);
    }
    for (int32_t i = 0; i < w->n_item; i++) free(w->item[i].packed);
    free(w->item);
    free(w);
}

void iwp_weights_set_pack(struct iwp_weights *w, struct iwp_pack *pack) { w->pack = pack; }

size_t iwp_weights_bytes(const struct iwp_weights *w) { return w->bytes; }

static struct group *group_of(struct iwp_weights *w, ggml_backend_buffer_type_t buft) {
    for (int32_t i = 0; i < w->n_group; i++)
        if (w->group[i].buft == buft) return &w->group[i];
    if (w->n_group == MAX_GROUP) return NULL;
    struct group *g = &w->group[w->n_group];
    size_t headers =
        (size_t)w->g->n_tensor * 2 + 16; /* a tensor may be declared twice (tied head) */
    g->buft = buft;
    g->ctx = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * headers, NULL, true});
    if (!g->ctx) return NULL;
    w->n_group++;
    return g;
}

/* The packed form is a plain array; ggml aligns to 32 bytes, tiles want 64. */
enum { PACK_ALIGN = 64 };

static struct ggml_tensor *packed_tensor(struct iwp_weights *w, struct ggml_context *ctx,
                                         const struct iwp_gguf_tensor *src,
                                         struct iwp_packed **out) {
    struct iwp_packed *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->pack = w->pack;
    p->k = (int32_t)src->ne[0];
    p->m = (int32_t)src->ne[1];
    p->split = iwp_pack_split(w->pack);
    const size_t n = iwp_gemm_weight_size(p->m, p->k, p->split) + PACK_ALIGN / sizeof(uint16_t);
    struct ggml_tensor *t = ggml_new_tensor_1d(ctx, GGML_TYPE_BF16, (int64_t)n);
    t->extra = *out = p;
    t->op_params[0] = IWP_PACKED_MARK;
    return t;
}

int iwp_weights_get(struct iwp_weights *w, const char *name, int n_dims, const int64_t *ne, int use,
                    int32_t device, struct ggml_tensor **out, iwp_err *err) {
    *out = NULL;
    if ((use & IWP_WEIGHT_OPTIONAL) && !iwp_gguf_find_tensor(w->g, name)) return 0;
    const struct iwp_gguf_tensor *src = NULL;
    IWP_TRY(iwp_gguf_need_tensor(w->g, name, n_dims, ne, &src, err));
    enum ggml_type type = (enum ggml_type)src->type;
    const bool pack = (use & IWP_WEIGHT_PACKED) != 0;
    bool convert = ((use & IWP_WEIGHT_F32) || pack) && type != GGML_TYPE_F32;
    if (convert) {
        IWP_REQUIRE(ggml_get_type_traits(type)->to_float, err, IWP_ENOTSUP,
                    "tensor %s: type %s cannot be converted to f32", name, ggml_type_name(type));
        type = GGML_TYPE_F32;
    }
    ggml_backend_buffer_type_t buft = w->b->buft[device];
    if (use & IWP_WEIGHT_MATMUL)
        buft = iwp_backend_matmul_buft(w->b, device, type, src->n_dims, src->ne);
    struct group *g = group_of(w, buft);
    IWP_REQUIRE(g, err, IWP_ENOMEM, "out of memory");
    if (w->n_item == w->cap_item) {
        int32_t cap = w->cap_item ? w->cap_item * 2 : 256;
        struct item *p = realloc(w->item, (size_t)cap * sizeof *p);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
        w->item = p;
        w->cap_item = cap;
    }
    struct iwp_packed *packed = NULL;
    struct ggml_tensor *t = pack ? packed_tensor(w, g->ctx, src, &packed)
                                 : ggml_new_tensor(g->ctx, type, src->n_dims, src->ne);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    ggml_set_name(t, name);
    w->item[w->n_item++] = (struct item){src, t, packed};
    *out = t;
    return 0;
}

static int read_at(int fd, const char *path, uint8_t *to, uint64_t offset, uint64_t n,
                   iwp_err *err) {
    while (n > 0) {
        size_t want = n < (64u << 20) ? (size_t)n : 64u << 20;
        ssize_t got = pread(fd, to, want, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        IWP_REQUIRE(got > 0, err, IWP_EIO, "%s: %s", path,
                    got < 0 ? strerror(errno) : "ends before its tensors do");
        to += got;
        offset += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return 0;
}

int iwp_weights_read(const struct iwp_gguf *g, const struct iwp_gguf_tensor *t, void *out, size_t n,
                     iwp_err *err) {
    const char *path = iwp_gguf_tensor_path(g, t);
    if (!path) {
        memcpy(out, iwp_gguf_tensor_data(g, t), n);
        return 0;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    IWP_REQUIRE(fd >= 0, err, IWP_EIO, "%s: %s", path, strerror(errno));
    int rc = read_at(fd, path, out, t->offset, n, err);
    close(fd);
    return rc;
}

/* Files stay open over consecutive tensors. */
struct reader {
    const char *path;
    int fd;
    uint8_t *scratch;
    uint64_t cap;
};

static int bytes_of(struct iwp_weights *w, const struct iwp_gguf_tensor *src, struct reader *r,
                    uint8_t *to, iwp_err *err) {
    const char *path = iwp_gguf_tensor_path(w->g, src);
    if (!path) {
        memcpy(to, iwp_gguf_tensor_data(w->g, src), (size_t)src->size);
        return 0;
    }
    if (path != r->path) {
        if (r->fd >= 0) close(r->fd);
        r->path = path;
        r->fd = open(path, O_RDONLY | O_CLOEXEC);
        IWP_REQUIRE(r->fd >= 0, err, IWP_EIO, "%s: %s", path, strerror(errno));
    }
    return read_at(r->fd, path, to, src->offset, src->size, err);
}

/* Panels of 32 output columns, on all threads. */
struct packing {
    const struct item *it;
    const uint8_t *from;
    bool failed; /* only ever set */
};

static void pack_panel(void *arg, int32_t i) {
    struct packing *p = arg;
    const struct iwp_packed *w = p->it->packed;
    const enum ggml_type type = (enum ggml_type)p->it->src->type;
    const int32_t first = i * IWP_GEMM_SIDE,
                  n = w->m - first < IWP_GEMM_SIDE ? w->m - first : IWP_GEMM_SIDE;
    const uint8_t *from = p->from + (size_t)first * ggml_row_size(type, w->k);
    float *f = malloc((size_t)n * (size_t)w->k * sizeof *f);
    if (!f) {
        p->failed = true;
        return;
    }
    if (type == GGML_TYPE_F32)
        memcpy(f, from, (size_t)n * (size_t)w->k * sizeof *f);
    else
        ggml_get_type_traits(type)->to_float(from, f, (int64_t)n * w->k);
    iwp_pack_gemm(w->pack)->pack_cols(w->data + iwp_gemm_weight_size(first, w->k, w->split), f,
                                      w->k, n, w->k, w->split);
    free(f);
}

static int pack_item(struct iwp_weights *w, const struct item *it, const uint8_t *from,
                     iwp_err *err) {
    struct packing p = {it, from, false};
    const uintptr_t at = (uintptr_t)it->t->data;
    it->packed->data = (uint16_t *)((at + PACK_ALIGN - 1) & ~(uintptr_t)(PACK_ALIGN - 1));
    w->b->exec.run(w->b->exec.ctx, pack_panel, &p,
                   (it->packed->m + IWP_GEMM_SIDE - 1) / IWP_GEMM_SIDE);
    IWP_REQUIRE(!p.failed, err, IWP_ENOMEM, "out of memory for tensor %s", it->src->name);
    return 0;
}

static int load_one(struct iwp_weights *w, const struct item *it, struct reader *r, iwp_err *err) {
    const bool same = !it->packed && it->t->type == (enum ggml_type)it->src->type;
    if (same && ggml_backend_buffer_is_host(it->t->buffer) &&
        ggml_backend_buffer_get_type(it->t->buffer) == w->b->buft[iwp_backend_cpu(w->b)])
        return bytes_of(w, it->src, r, it->t->data, err);
    if (r->cap < it->src->size) {
        free(r->scratch);
        r->cap = it->src->size;
        r->scratch = malloc((size_t)r->cap);
        IWP_REQUIRE(r->scratch, err, IWP_ENOMEM, "out of memory for tensor %s", it->src->name);
    }
    IWP_TRY(bytes_of(w, it->src, r, r->scratch, err));
    if (it->packed) return pack_item(w, it, r->scratch, err);
    if (same) {
        ggml_backend_tensor_set(it->t, r->scratch, 0, (size_t)it->src->size);
        return 0;
    }
    const int64_t n = ggml_nelements(it->t);
    float *f = malloc((size_t)n * sizeof *f);
    IWP_REQUIRE(f, err, IWP_ENOMEM, "out of memory for tensor %s", it->src->name);
    ggml_get_type_traits((enum ggml_type)it->src->type)->to_float(r->scratch, f, n);
    ggml_backend_tensor_set(it->t, f, 0, (size_t)n * sizeof *f);
    free(f);
    return 0;
}

int iwp_weights_load(struct iwp_weights *w, const char *what, iwp_err *err) {
    for (int32_t i = 0; i < w->n_group; i++) {
        struct group *g = &w->group[i];
        g->buffer = ggml_backend_alloc_ctx_tensors_from_buft(g->ctx, g->buft);
        IWP_REQUIRE(g->buffer, err, IWP_ENOMEM, "out of memory for the weights (%s)",
                    ggml_backend_buft_name(g->buft));
        ggml_backend_buffer_set_usage(g->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        w->bytes += ggml_backend_buffer_get_size(g->buffer);
        iwp_log(IWP_LOG_DEBUG, "%s: %.1f MB in %s", what,
                (double)ggml_backend_buffer_get_size(g->buffer) / 1e6,
                ggml_backend_buft_name(g->buft));
    }
    uint64_t total = 0, done = 0;
    for (int32_t i = 0; i < w->n_item; i++) total += w->item[i].src->size;
    struct iwp_progress meter;
    iwp_progress_start(&meter, what, "MB", (int64_t)(total >> 20));
    struct reader r = {NULL, -1, NULL, 0};
    int rc = 0;
    for (int32_t i = 0; i < w->n_item && rc >= 0; i++) {
        rc = load_one(w, &w->item[i], &r, err);
        done += w->item[i].src->size;
        iwp_progress_set(&meter, (int64_t)(done >> 20));
    }
    iwp_progress_end(&meter);
    if (r.fd >= 0) close(r.fd);
    free(r.scratch);
    return rc < 0 ? rc : 0;
}

void iwp_weights_row(const struct ggml_tensor *t, int64_t row, float *out) {
    const char *src = (const char *)t->data + (size_t)row * t->nb[1];
    if (t->type == GGML_TYPE_F32)
        memcpy(out, src, (size_t)t->ne[0] * sizeof *out);
    else
        ggml_get_type_traits(t->type)->to_float(src, out, t->ne[0]);
}
