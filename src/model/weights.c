/* Weights in backend buffers: see weights.h. */
#define _DEFAULT_SOURCE /* madvise */
#include "model/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"

struct item {
    const struct iwp_gguf_tensor *src;
    struct ggml_tensor *t;
    struct iwp_packed *packed; /* or NULL */
    const struct item *twin;   /* the same tensor, mapped: this one is made from it; or NULL */
    bool mapped, with_twin;
    void *copy; /* of what was mapped, or NULL */
    int fd;     /* where its rows are read when they are wanted, or -1 */
    char *path;
    uint64_t offset;
};

/* Tensors that share memory: one device and one layout. */
struct group {
    ggml_backend_buffer_type_t buft; /* NULL: they stay in the file's map */
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
};

enum { MAX_GROUP = IWP_BACKEND_MAX_DEVICE + IWP_BACKEND_MAX_BUFT + 1, MAP_ALIGN = 32 };

struct iwp_weights {
    struct iwp_backend *b;
    const struct iwp_gguf *g;
    struct iwp_pack *pack;
    struct item *item;
    int32_t n_item, cap_item;
    struct group group[MAX_GROUP];
    int32_t n_group;
    struct iwp_map *map; /* [n_map] files; those without mapped tensors are not open */
    int32_t n_map;
    size_t bytes;
    pthread_mutex_t lock; /* over row */
    uint8_t *row;         /* the longest of those read from files */
};

int iwp_weights_new(struct iwp_weights **out, struct iwp_backend *b, const struct iwp_gguf *g,
                    iwp_err *err) {
    *out = calloc(1, sizeof **out);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    (*out)->b = b;
    (*out)->g = g;
    (*out)->n_map = g->n_part;
    (*out)->map = calloc((size_t)g->n_part, sizeof *(*out)->map);
    if ((*out)->map) {
        pthread_mutex_init(&(*out)->lock, NULL);
        return 0;
    }
    free(*out);
    *out = NULL;
    return iwp_err_set(err, IWP_ENOMEM, "out of memory");
}

void iwp_weights_free(struct iwp_weights *w) {
    if (!w) return;
    for (int32_t i = 0; i < w->n_group; i++) {
        if (w->group[i].buffer) ggml_backend_buffer_free(w->group[i].buffer);
        ggml_free(w->group[i].ctx);
    }
    for (int32_t i = 0; i < w->n_item; i++) {
        free(w->item[i].packed);
        free(w->item[i].copy);
        free(w->item[i].path);
        if (w->item[i].fd >= 0) close(w->item[i].fd);
    }
    for (int32_t i = 0; i < w->n_map; i++) iwp_map_close(&w->map[i]);
    pthread_mutex_destroy(&w->lock);
    free(w->row);
    free(w->map);
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
    const size_t n = iwp_gemm_size(iwp_pack_gemm(w->pack), (size_t)p->m, (size_t)p->k) +
                     PACK_ALIGN / sizeof(uint16_t);
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
    const bool mapped =
        (use & IWP_WEIGHT_ROWS) && iwp_gguf_tensor_path(w->g, src) && src->offset % MAP_ALIGN == 0;
    if (mapped) buft = NULL;
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
    w->item[w->n_item++] =
        (struct item){.src = src, .t = t, .packed = packed, .mapped = mapped, .fd = -1};
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

/* ---- loading ------------------------------------------------------------------------------------ */

enum { MAX_READER = 8, HUGE_PAGE = 2 << 20 };

/* Fresh memory comes a page at a time, and a weight file is some 100,000 pages: larger ones, please. */
static void want_huge_pages(void *p, size_t n) {
#ifdef MADV_HUGEPAGE
    const uintptr_t from = ((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    const uintptr_t to = ((uintptr_t)p + n) & ~(uintptr_t)(HUGE_PAGE - 1);
    if (p && from < to && madvise((void *)from, to - from, MADV_HUGEPAGE) != 0) return; /* a wish */
#else
    (void)p;
    (void)n;
#endif
}

/* One thread's way into the files; they stay open over consecutive tensors. */
struct reader {
    const char *path;
    int fd;
    uint8_t *scratch;
    size_t cap;
    float *panel; /* of a packed matrix, as floats */
    size_t cap_panel;
    iwp_err err;
};

static void reader_free(struct reader *r) {
    if (r->fd >= 0) close(r->fd);
    free(r->scratch);
    free(r->panel);
}

/* Bytes [from, from + n) of a tensor. */
static int read_bytes(const struct iwp_weights *w, const struct iwp_gguf_tensor *src,
                      struct reader *r, uint8_t *to, uint64_t from, uint64_t n, iwp_err *err) {
    const char *path = iwp_gguf_tensor_path(w->g, src);
    if (!path) {
        memcpy(to, (const uint8_t *)iwp_gguf_tensor_data(w->g, src) + from, (size_t)n);
        return 0;
    }
    if (path != r->path) {
        if (r->fd >= 0) close(r->fd);
        r->path = path;
        r->fd = open(path, O_RDONLY | O_CLOEXEC);
        IWP_REQUIRE(r->fd >= 0, err, IWP_EIO, "%s: %s", path, strerror(errno));
    }
    return read_at(r->fd, path, to, src->offset + from, n, err);
}

static int reserve_scratch(struct reader *r, const struct iwp_gguf_tensor *src, size_t n,
                           iwp_err *err) {
    if (r->cap >= n) return 0;
    free(r->scratch);
    r->cap = (n + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
    r->scratch = aligned_alloc(HUGE_PAGE, r->cap);
    if (!r->scratch) r->cap = 0;
    IWP_REQUIRE(r->scratch, err, IWP_ENOMEM, "out of memory for tensor %s", src->name);
    want_huge_pages(r->scratch, r->cap);
    return 0;
}

/* n numbers of the file as floats in the panel; of those in f16, for a split product, nothing but the
 * bytes: they are what it wants.  Others become f16 there. */
static const void *as_packed(const struct iwp_packed *p, enum ggml_type type, struct reader *r,
                             int64_t n) {
    const bool split = iwp_pack_split(p->pack);
    if (split && type == GGML_TYPE_F16) return r->scratch;
    if (type != GGML_TYPE_F32) ggml_get_type_traits(type)->to_float(r->scratch, r->panel, n);
    if (!split) return r->panel;
    ggml_fp32_to_fp16_row(r->panel, (ggml_fp16_t *)(void *)r->scratch, n);
    return r->scratch;
}

/* Panel after panel of 32 output columns: what is read and what it becomes stay in the cache. */
static int pack_item(const struct iwp_weights *w, const struct item *it, struct reader *r,
                     iwp_err *err) {
    struct iwp_packed *p = it->packed;
    const struct iwp_gemm *g = iwp_pack_gemm(p->pack);
    const enum ggml_type type = (enum ggml_type)it->src->type;
    const size_t row = ggml_row_size(type, p->k), all = (size_t)IWP_GEMM_SIDE * (size_t)p->k;
    const uintptr_t at = (uintptr_t)it->t->data;
    p->data = (uint16_t *)((at + PACK_ALIGN - 1) & ~(uintptr_t)(PACK_ALIGN - 1));
    const size_t half_row = (size_t)p->k * sizeof(ggml_fp16_t);
    IWP_TRY(reserve_scratch(r, it->src, IWP_GEMM_SIDE * (row > half_row ? row : half_row), err));
    if (r->cap_panel < all) {
        free(r->panel);
        r->panel = malloc(all * sizeof *r->panel);
        r->cap_panel = r->panel ? all : 0;
        IWP_REQUIRE(r->panel, err, IWP_ENOMEM, "out of memory for tensor %s", it->src->name);
    }
    for (int32_t first = 0; first < p->m; first += IWP_GEMM_SIDE) {
        IWP_REQUIRE(!iwp_backend_cancelled(w->b), err, IWP_ECANCELLED, "interrupted");
        const int32_t n = p->m - first < IWP_GEMM_SIDE ? p->m - first : IWP_GEMM_SIDE;
        uint8_t *from = type == GGML_TYPE_F32 ? (uint8_t *)r->panel : r->scratch;
        IWP_TRY(read_bytes(w, it->src, r, from, (uint64_t)first * row, (uint64_t)n * row, err));
        uint16_t *to = p->data + iwp_gemm_size(g, (size_t)first, (size_t)p->k);
        const void *rows = as_packed(p, type, r, (int64_t)n * p->k);
        if (iwp_pack_split(p->pack))
            g->pack_halves(to, rows, p->k, n, p->k);
        else
            g->pack_cols(to, rows, p->k, n, p->k);
    }
    return 0;
}

static bool keeps_type(const struct item *it) {
    return !it->packed && it->t->type == (enum ggml_type)it->src->type;
}

/* In the CPU's memory as in the file. */
static bool is_plain(const struct iwp_weights *w, const struct item *it) {
    return keeps_type(it) && ggml_backend_buffer_is_host(it->t->buffer) &&
           ggml_backend_buffer_get_type(it->t->buffer) == w->b->buft[iwp_backend_cpu(w->b)];
}

/* What is read a row here and a row there comes through a map: the file's pages are there already. */
static int place_mapped(struct iwp_weights *w, iwp_err *err) {
    for (int32_t i = 0; i < w->n_item; i++) {
        const struct item *it = &w->item[i];
        if (!it->mapped) continue;
        const char *path = iwp_gguf_tensor_path(w->g, it->src);
        struct iwp_map *m = &w->map[it->src->part];
        if (!m->data) IWP_TRY(iwp_map_open(m, path, err));
        IWP_REQUIRE(it->src->offset + it->src->size <= m->size, err, IWP_EIO,
                    "%s: ends before its tensors do", path);
        it->t->data = (void *)(uintptr_t)(m->data + it->src->offset);
        w->bytes += (size_t)it->src->size;
    }
    return 0;
}

/* A mapped tensor's pages, now: the meter runs, and a file that cannot be read is an error, not a signal. */
static int fetch_pages(const struct iwp_weights *w, const struct item *it, iwp_err *err) {
#ifdef MADV_POPULATE_READ
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
                    from = (uintptr_t)it->t->data & ~(page - 1);
    const size_t n = (uintptr_t)it->t->data + (size_t)it->src->size - from;
    IWP_REQUIRE(madvise((void *)from, n, MADV_POPULATE_READ) == 0 || errno != EFAULT, err, IWP_EIO,
                "%s: tensor %s cannot be read", iwp_gguf_tensor_path(w->g, it->src), it->src->name);
#else
    (void)w, (void)it, (void)err;
#endif
    return 0;
}

/* A tied head is the embedding in another layout: made from the map, it is read once, and the largest tensor of
 * most files needs no scratch memory. */
static void find_twins(struct iwp_weights *w) {
    for (int32_t i = 0; i < w->n_item; i++)
        for (int32_t j = 0; j < w->n_item && w->item[i].mapped; j++) {
            struct item *other = &w->item[j];
            if (other->src != w->item[i].src || other->mapped || !keeps_type(other)) continue;
            other->twin = &w->item[i];
            w->item[i].with_twin = true;
            break;
        }
}

static int load_item(const struct iwp_weights *w, const struct item *it, struct reader *r,
                     iwp_err *err) {
    const struct iwp_gguf_tensor *src = it->src;
    IWP_REQUIRE(!iwp_backend_cancelled(w->b), err, IWP_ECANCELLED, "interrupted");
    if (it->mapped) return it->with_twin || w->b->rows_in_file ? 0 : fetch_pages(w, it, err);
    if (it->packed) return pack_item(w, it, r, err);
    const bool same = keeps_type(it);
    if (it->twin) {
        IWP_TRY(fetch_pages(w, it->twin, err));
        ggml_backend_tensor_set(it->t, it->twin->t->data, 0, (size_t)src->size);
        return 0;
    }
    if (is_plain(w, it)) return read_bytes(w, src, r, it->t->data, 0, src->size, err);
    IWP_TRY(reserve_scratch(r, src, (size_t)src->size, err));
    IWP_TRY(read_bytes(w, src, r, r->scratch, 0, src->size, err));
    if (same) {
        ggml_backend_tensor_set(it->t, r->scratch, 0, (size_t)src->size);
        return 0;
    }
    const int64_t n = ggml_nelements(it->t);
    float *f = malloc((size_t)n * sizeof *f);
    IWP_REQUIRE(f, err, IWP_ENOMEM, "out of memory for tensor %s", src->name);
    ggml_get_type_traits((enum ggml_type)src->type)->to_float(r->scratch, f, n);
    ggml_backend_tensor_set(it->t, f, 0, (size_t)n * sizeof *f);
    free(f);
    return 0;
}

/* Threads take tensors in turn; the first error ends it for all. */
struct loading {
    struct iwp_weights *w;
    atomic_int next, failed; /* failed: 1 + the reader that did */
    pthread_mutex_t lock;    /* over the meter */
    struct iwp_progress meter;
    uint64_t done;
    struct reader reader[MAX_READER];
};

static void load_items(void *arg, int32_t k) {
    struct loading *l = arg;
    struct reader *r = &l->reader[k];
    for (int i; (i = atomic_fetch_add(&l->next, 1)) < l->w->n_item && !atomic_load(&l->failed);) {
        const struct item *it = &l->w->item[i];
        if (load_item(l->w, it, r, &r->err) < 0) {
            int none = 0;
            atomic_compare_exchange_strong(&l->failed, &none, k + 1);
            return;
        }
        pthread_mutex_lock(&l->lock);
        l->done += it->src->size;
        iwp_progress_set(&l->meter, (int64_t)(l->done >> 20));
        pthread_mutex_unlock(&l->lock);
    }
}

/* The few that are a large part of the whole go first, or one thread would end with them alone. */
static void large_first(struct iwp_weights *w, uint64_t total) {
    for (int32_t i = 0, n = 0; i < w->n_item; i++) {
        if (w->item[i].src->size * 16 < total) continue;
        const struct item it = w->item[i];
        w->item[i] = w->item[n];
        w->item[n++] = it;
    }
}

/* Who lives long must not depend on a file that others may shorten or write over. */
static int copy_maps(struct iwp_weights *w, iwp_err *err) {
    for (int32_t i = 0; i < w->n_item; i++) {
        struct item *it = &w->item[i];
        if (!it->mapped) continue;
        it->copy = malloc((size_t)it->src->size);
        IWP_REQUIRE(it->copy, err, IWP_ENOMEM, "out of memory for the weights");
        memcpy(it->copy, it->t->data, (size_t)it->src->size);
        it->t->data = it->copy;
    }
    for (int32_t i = 0; i < w->n_map; i++) iwp_map_close(&w->map[i]);
    return 0;
}

/* A short run needs no memory for rows of which it reads a few, which a virtual machine may have to get from its
 * host first.  They are read, not mapped: a file that has become shorter is an error then, not a signal. */
static int stay_in_files(struct iwp_weights *w, iwp_err *err) {
    size_t most = 0;
    for (int32_t i = 0; i < w->n_item; i++) {
        struct item *it = &w->item[i];
        if (!it->mapped) continue;
        it->path = strdup(iwp_gguf_tensor_path(w->g, it->src));
        IWP_REQUIRE(it->path, err, IWP_ENOMEM, "out of memory");
        it->offset = it->src->offset;
        it->fd = open(it->path, O_RDONLY | O_CLOEXEC);
        IWP_REQUIRE(it->fd >= 0, err, IWP_EIO, "%s: %s", it->path, strerror(errno));
        it->t->data = NULL;
        if (it->t->nb[1] > most) most = it->t->nb[1];
        w->bytes -= (size_t)it->src->size;
    }
    w->row = malloc(most + 1);
    IWP_REQUIRE(w->row, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < w->n_map; i++) iwp_map_close(&w->map[i]);
    return 0;
}

/* Devices other than the CPU get their tensors one at a time. */
static int32_t reader_count(const struct iwp_weights *w) {
    if (w->b->n_device > 1) return 1;
    return w->b->n_thread < MAX_READER ? w->b->n_thread : MAX_READER;
}

int iwp_weights_load(struct iwp_weights *w, const char *what, iwp_err *err) {
    IWP_TRY(place_mapped(w, err));
    for (int32_t i = 0; i < w->n_group; i++) {
        struct group *g = &w->group[i];
        if (!g->buft) continue;
        g->buffer = ggml_backend_alloc_ctx_tensors_from_buft(g->ctx, g->buft);
        IWP_REQUIRE(g->buffer, err, IWP_ENOMEM, "out of memory for the weights (%s)",
                    ggml_backend_buft_name(g->buft));
        ggml_backend_buffer_set_usage(g->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        const size_t n = ggml_backend_buffer_get_size(g->buffer);
        if (ggml_backend_buft_is_host(g->buft) || w->b->n_device == 1)
            want_huge_pages(ggml_backend_buffer_get_base(g->buffer), n);
        w->bytes += n;
        iwp_log(IWP_LOG_DEBUG, "%s: %.1f MB in %s", what, (double)n / 1e6,
                ggml_backend_buft_name(g->buft));
    }
    struct loading *l = calloc(1, sizeof *l);
    IWP_REQUIRE(l, err, IWP_ENOMEM, "out of memory");
    const double start = iwp_clock_ms();
    const int32_t n = reader_count(w);
    uint64_t total = 0;
    for (int32_t i = 0; i < w->n_item; i++) total += w->item[i].src->size;
    large_first(w, total);
    find_twins(w);
    for (int32_t i = 0; i < MAX_READER; i++) l->reader[i].fd = -1;
    l->w = w;
    pthread_mutex_init(&l->lock, NULL);
    iwp_progress_start(&l->meter, what, "MB", (int64_t)(total >> 20));
    w->b->exec.run(w->b->exec.ctx, load_items, l, n);
    iwp_progress_end(&l->meter);
    pthread_mutex_destroy(&l->lock);
    const int bad = atomic_load(&l->failed);
    if (bad && err) *err = l->reader[bad - 1].err;
    const int rc = bad ? l->reader[bad - 1].err.code : 0;
    for (int32_t i = 0; i < MAX_READER; i++) reader_free(&l->reader[i]);
    free(l);
    iwp_log(IWP_LOG_DEBUG, "%s: %.1f MB read by %d threads in %.0f ms", what, (double)total / 1e6,
            n, iwp_clock_ms() - start);
    if (rc < 0) return rc;
    return w->b->rows_in_file ? stay_in_files(w, err) : copy_maps(w, err);
}

static void to_floats(const struct ggml_tensor *t, const void *src, float *out) {
    if (t->type == GGML_TYPE_F32)
        memcpy(out, src, (size_t)t->ne[0] * sizeof *out);
    else
        ggml_get_type_traits(t->type)->to_float(src, out, t->ne[0]);
}

int iwp_weights_row(struct iwp_weights *w, const struct ggml_tensor *t, int64_t row, float *out,
                    iwp_err *err) {
    const uint64_t at = (uint64_t)row * t->nb[1];
    if (t->data) {
        to_floats(t, (const char *)t->data + at, out);
        return 0;
    }
    const struct item *it = w->item;
    while (it->t != t) it++;
    pthread_mutex_lock(&w->lock);
    const int rc = read_at(it->fd, it->path, w->row, it->offset + at, t->nb[1], err);
    if (rc >= 0) to_floats(t, w->row, out);
    pthread_mutex_unlock(&w->lock);
    return rc;
}
