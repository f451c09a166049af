/* The GGUF reader: see gguf.h.  The file is mapped; names are copied once so that they are terminated,
 * values stay where they are. */
#include "io/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"

enum {
    MAX_KV = 1 << 16,
    MAX_TENSOR = 1 << 20,
    MAX_KEY = 65535,
    MAX_NAME = 63, /* ggml keeps names in 64 bytes */
    MAX_PART = 1000,
    CHUNK = 1 << 16
};

struct chunk {
    struct chunk *next;
    size_t used, cap;
    char data[];
};

struct priv {
    struct chunk *chunks;
    struct iwp_map *map; /* one per part; unused for memory */
    int n_map;
    uint32_t *kv_slot, *tensor_slot; /* open addressing, index + 1 */
    uint32_t kv_mask, tensor_mask;
};

struct cursor {
    const uint8_t *base;
    uint64_t pos, size;
    const char *name;
    iwp_err *err;
};

static int need(struct cursor *c, uint64_t n, const char *what) {
    if (c->size - c->pos >= n) return 0;
    return iwp_err_set_at(c->err, IWP_EFORMAT, (int64_t)c->pos,
                          "%s: truncated: %s needs %" PRIu64 " bytes at %" PRIu64 ", %" PRIu64
                          " are left",
                          c->name, what, n, c->pos, c->size - c->pos);
}

static uint64_t load(const uint8_t *p, int n) {
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static int read_u32(struct cursor *c, uint32_t *v, const char *what) {
    IWP_TRY(need(c, 4, what));
    *v = (uint32_t)load(c->base + c->pos, 4);
    c->pos += 4;
    return 0;
}

static int read_u64(struct cursor *c, uint64_t *v, const char *what) {
    IWP_TRY(need(c, 8, what));
    *v = load(c->base + c->pos, 8);
    c->pos += 8;
    return 0;
}

static int read_str(struct cursor *c, struct iwp_gguf_str *s, const char *what) {
    uint64_t n = 0;
    IWP_TRY(read_u64(c, &n, what));
    IWP_TRY(need(c, n, what));
    s->p = (const char *)c->base + c->pos;
    s->n = (size_t)n;
    c->pos += n;
    return 0;
}

static const char *keep(struct priv *p, const char *s, size_t n) {
    struct chunk *c = p->chunks;
    if (!c || c->cap - c->used < n + 1) {
        size_t cap = n + 1 > CHUNK ? n + 1 : CHUNK;
        c = malloc(sizeof *c + cap);
        if (!c) return NULL;
        c->next = p->chunks;
        c->used = 0;
        c->cap = cap;
        p->chunks = c;
    }
    char *out = c->data + c->used;
    memcpy(out, s, n);
    out[n] = 0;
    c->used += n + 1;
    return out;
}

static uint32_t hash(const char *s) {
    uint32_t h = 2166136261u;
    for (; *s; s++) h = (h ^ (uint8_t)*s) * 16777619u;
    return h;
}

static uint32_t *new_table(uint64_t n, uint32_t *mask) {
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    *mask = size - 1;
    return calloc(size, sizeof(uint32_t));
}

/* Bytes of one value; 0 for strings and arrays, whose size depends on the value. */
static int kind_size(uint32_t kind) {
    static const uint8_t size[IWP_GGUF_KIND_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return kind < IWP_GGUF_KIND_COUNT ? size[kind] : 0;
}

static int read_values(struct cursor *c, struct iwp_gguf_kv *kv, struct priv *p) {
    const uint64_t start = c->pos;
    kv->data = c->base + c->pos;
    if (kv->elem == IWP_GGUF_STR) {
        struct iwp_gguf_str s = {0};
        for (uint64_t i = 0; i < kv->n; i++) IWP_TRY(read_str(c, &s, kv->key));
        if (kv->kind == IWP_GGUF_STR) {
            kv->text = keep(p, s.p, s.n);
            IWP_REQUIRE(kv->text, c->err, IWP_ENOMEM, "%s: out of memory", c->name);
        }
    } else {
        uint64_t one = (uint64_t)kind_size(kv->elem);
        IWP_REQUIRE(kv->n <= (c->size - c->pos) / one, c->err, IWP_EFORMAT,
                    "%s: key %s: %" PRIu64 " values do not fit in the file", c->name, kv->key,
                    kv->n);
        c->pos += kv->n * one;
        for (uint64_t i = 0; kv->elem == IWP_GGUF_BOOL && i < kv->n; i++)
            IWP_REQUIRE(kv->data[i] <= 1, c->err, IWP_EFORMAT, "%s: key %s: a truth value is %d",
                        c->name, kv->key, kv->data[i]);
    }
    kv->size = c->pos - start;
    return 0;
}

static int read_kv(struct cursor *c, struct iwp_gguf_kv *kv, struct priv *p) {
    struct iwp_gguf_str s;
    IWP_TRY(read_str(c, &s, "a key"));
    IWP_REQUIRE(s.n > 0 && s.n <= MAX_KEY && !memchr(s.p, 0, s.n), c->err, IWP_EFORMAT,
                "%s: a key has %zu bytes or a zero inside", c->name, s.n);
    kv->key = keep(p, s.p, s.n);
    IWP_REQUIRE(kv->key, c->err, IWP_ENOMEM, "%s: out of memory", c->name);
    uint32_t kind = 0;
    IWP_TRY(read_u32(c, &kind, kv->key));
    uint32_t elem = kind;
    kv->n = 1;
    if (kind == IWP_GGUF_ARRAY) {
        IWP_TRY(read_u32(c, &elem, kv->key));
        IWP_TRY(read_u64(c, &kv->n, kv->key));
    }
    IWP_REQUIRE(elem < IWP_GGUF_KIND_COUNT && elem != IWP_GGUF_ARRAY, c->err, IWP_EFORMAT,
                "%s: key %s: unknown kind of value %u", c->name, kv->key, elem);
    kv->kind = (uint8_t)kind;
    kv->elem = (uint8_t)elem;
    return read_values(c, kv, p);
}

static int read_tensor(struct cursor *c, struct iwp_gguf_tensor *t, struct priv *p) {
    struct iwp_gguf_str s;
    IWP_TRY(read_str(c, &s, "a tensor name"));
    IWP_REQUIRE(s.n > 0 && s.n <= MAX_NAME && !memchr(s.p, 0, s.n), c->err, IWP_EFORMAT,
                "%s: a tensor name has %zu bytes or a zero inside", c->name, s.n);
    t->name = keep(p, s.p, s.n);
    IWP_REQUIRE(t->name, c->err, IWP_ENOMEM, "%s: out of memory", c->name);
    uint32_t dims = 0;
    IWP_TRY(read_u32(c, &dims, t->name));
    IWP_REQUIRE(dims >= 1 && dims <= 4, c->err, IWP_EFORMAT, "%s: tensor %s has %u dimensions",
                c->name, t->name, dims);
    t->n_dims = (int32_t)dims;
    uint64_t total = 1;
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t n = 1;
        if (i < dims) IWP_TRY(read_u64(c, &n, t->name));
        IWP_REQUIRE(n >= 1 && n <= (uint64_t)INT64_MAX / total, c->err, IWP_EFORMAT,
                    "%s: tensor %s: dimension %u is %" PRIu64, c->name, t->name, i, n);
        t->ne[i] = (int64_t)n;
        total *= n;
    }
    IWP_TRY(read_u32(c, &t->type, t->name));
    const struct iwp_type_info *ti = iwp_type_info(t->type);
    IWP_REQUIRE(ti, c->err, IWP_EFORMAT, "%s: tensor %s: unknown type %u", c->name, t->name,
                t->type);
    IWP_REQUIRE(t->ne[0] % ti->block == 0, c->err, IWP_EFORMAT,
                "%s: tensor %s: rows of %" PRId64 " elements are not whole %s blocks of %u",
                c->name, t->name, t->ne[0], ti->name, ti->block);
    IWP_REQUIRE(total / ti->block <= (UINT64_MAX >> 2) / ti->size, c->err, IWP_EFORMAT,
                "%s: tensor %s is too large", c->name, t->name);
    t->size = iwp_type_bytes(t->type, total);
    return read_u64(c, &t->offset, t->name);
}

static int insert_kv(struct iwp_gguf *g, int i, const char *file, iwp_err *err) {
    struct priv *p = g->priv;
    uint32_t at = hash(g->kv[i].key) & p->kv_mask;
    for (; p->kv_slot[at]; at = (at + 1) & p->kv_mask)
        IWP_REQUIRE(strcmp(g->kv[p->kv_slot[at] - 1].key, g->kv[i].key) != 0, err, IWP_EFORMAT,
                    "%s: key %.200s appears twice", file, g->kv[i].key);
    p->kv_slot[at] = (uint32_t)i + 1;
    return 0;
}

static int insert_tensor(struct iwp_gguf *g, int i, const char *file, iwp_err *err) {
    struct priv *p = g->priv;
    uint32_t at = hash(g->tensor[i].name) & p->tensor_mask;
    for (; p->tensor_slot[at]; at = (at + 1) & p->tensor_mask)
        IWP_REQUIRE(strcmp(g->tensor[p->tensor_slot[at] - 1].name, g->tensor[i].name) != 0, err,
                    IWP_EFORMAT, "%s: tensor %s appears twice", file, g->tensor[i].name);
    p->tensor_slot[at] = (uint32_t)i + 1;
    return 0;
}

static int read_header(struct cursor *c, uint32_t *version, uint64_t *n_tensor, uint64_t *n_kv) {
    IWP_REQUIRE(c->size >= 4 && memcmp(c->base, "GGUF", 4) == 0, c->err, IWP_EFORMAT,
                "%s: not a GGUF file", c->name);
    c->pos = 4;
    IWP_TRY(read_u32(c, version, "the version"));
    IWP_REQUIRE((*version & 0xffff) != 0, c->err, IWP_ENOTSUP,
                "%s: big-endian GGUF is not supported", c->name);
    IWP_REQUIRE(*version == 2 || *version == 3, c->err, IWP_ENOTSUP,
                "%s: GGUF version %u is not supported", c->name, *version);
    IWP_TRY(read_u64(c, n_tensor, "the tensor count"));
    IWP_TRY(read_u64(c, n_kv, "the key count"));
    /* the smallest pair takes 14 bytes, the smallest tensor 33 */
    IWP_REQUIRE(*n_kv <= MAX_KV && *n_kv <= c->size / 14, c->err, IWP_EFORMAT,
                "%s: %" PRIu64 " keys in a file of %" PRIu64 " bytes", c->name, *n_kv, c->size);
    IWP_REQUIRE(*n_tensor <= MAX_TENSOR && *n_tensor <= c->size / 33, c->err, IWP_EFORMAT,
                "%s: %" PRIu64 " tensors in a file of %" PRIu64 " bytes", c->name, *n_tensor,
                c->size);
    return 0;
}

/* Alignment, then the offsets: as in ggml the tensors follow each other without gaps. */
static int place_tensors(struct iwp_gguf *g, struct cursor *c, int first, uint32_t alignment) {
    const uint64_t a = alignment, start = (c->pos + a - 1) / a * a;
    uint64_t at = 0;
    for (int i = first; i < g->n_tensor; i++) {
        struct iwp_gguf_tensor *t = &g->tensor[i];
        IWP_REQUIRE(t->offset == at, c->err, IWP_EFORMAT,
                    "%s: tensor %s lies at %" PRIu64 ", expected %" PRIu64, c->name, t->name,
                    t->offset, at);
        IWP_REQUIRE(start <= c->size && at <= c->size - start && t->size <= c->size - start - at,
                    c->err, IWP_EFORMAT,
                    "%s: truncated: tensor %s needs %" PRIu64
                    " bytes beyond the header, the file has %" PRIu64,
                    c->name, t->name, at + t->size, c->size > start ? c->size - start : 0);
        t->offset = start + at;
        at += (t->size + a - 1) / a * a;
    }
    return 0;
}

static int read_alignment(struct cursor *c, const struct iwp_gguf_kv *kv, int n, uint32_t *out) {
    *out = 32;
    for (int i = 0; i < n; i++) {
        if (strcmp(kv[i].key, "general.alignment") != 0) continue;
        IWP_REQUIRE(kv[i].kind == IWP_GGUF_U32, c->err, IWP_EFORMAT,
                    "%s: general.alignment is not a u32", c->name);
        *out = (uint32_t)load(kv[i].data, 4);
        IWP_REQUIRE(*out && (*out & (*out - 1)) == 0 && *out <= 1u << 20, c->err, IWP_EFORMAT,
                    "%s: general.alignment %u is not a power of two", c->name, *out);
    }
    return 0;
}

static int parse_first(struct iwp_gguf *g, struct cursor *c) {
    struct priv *p = g->priv;
    uint64_t n_tensor, n_kv;
    IWP_TRY(read_header(c, &g->version, &n_tensor, &n_kv));
    g->kv = calloc((size_t)n_kv + 1, sizeof *g->kv);
    g->tensor = calloc((size_t)n_tensor + 1, sizeof *g->tensor);
    p->kv_slot = new_table(n_kv, &p->kv_mask);
    IWP_REQUIRE(g->kv && g->tensor && p->kv_slot, c->err, IWP_ENOMEM, "%s: out of memory", c->name);
    for (uint64_t i = 0; i < n_kv; i++) {
        IWP_TRY(read_kv(c, &g->kv[i], p));
        g->n_kv++;
        IWP_TRY(insert_kv(g, (int)i, c->name, c->err));
    }
    IWP_TRY(read_alignment(c, g->kv, g->n_kv, &g->alignment));
    for (uint64_t i = 0; i < n_tensor; i++) {
        IWP_TRY(read_tensor(c, &g->tensor[i], p));
        g->n_tensor++;
    }
    return place_tensors(g, c, 0, g->alignment);
}

/* A later part: its pairs are checked and only split.no is used, its tensors are appended. */
static int parse_part(struct iwp_gguf *g, struct cursor *c, int part) {
    struct priv *p = g->priv;
    uint32_t version, alignment;
    uint64_t n_tensor, n_kv;
    int rc = 0;
    struct iwp_gguf_kv *kv = NULL;
    IWP_TRY(read_header(c, &version, &n_tensor, &n_kv));
    IWP_REQUIRE(n_tensor + (uint64_t)g->n_tensor <= MAX_TENSOR, c->err, IWP_EFORMAT,
                "%s: too many tensors", c->name);
    kv = calloc((size_t)n_kv + 1, sizeof *kv);
    struct iwp_gguf_tensor *more =
        realloc(g->tensor, (size_t)(n_tensor + (uint64_t)g->n_tensor + 1) * sizeof *more);
    if (more) g->tensor = more;
    if (!kv || !more) IWP_FAIL(c->err, IWP_ENOMEM, "%s: out of memory", c->name);
    int64_t no = -1;
    for (uint64_t i = 0; i < n_kv; i++) {
        IWP_TRY_GOTO(read_kv(c, &kv[i], p));
        if (strcmp(kv[i].key, "split.no") == 0) no = iwp_gguf_value_i64(&kv[i], 0);
    }
    if (no != part)
        IWP_FAIL(c->err, IWP_EFORMAT, "%s: split.no is %" PRId64 ", expected %d", c->name, no,
                 part);
    IWP_TRY_GOTO(read_alignment(c, kv, (int)n_kv, &alignment));
    const int first = g->n_tensor;
    for (uint64_t i = 0; i < n_tensor; i++) {
        struct iwp_gguf_tensor *t = &g->tensor[g->n_tensor];
        memset(t, 0, sizeof *t);
        IWP_TRY_GOTO(read_tensor(c, t, p));
        t->part = part;
        g->n_tensor++;
    }
    rc = place_tensors(g, c, first, alignment);
fail:
    free(kv);
    return rc;
}

static int index_tensors(struct iwp_gguf *g, const char *name, iwp_err *err) {
    struct priv *p = g->priv;
    p->tensor_slot = new_table((uint64_t)g->n_tensor, &p->tensor_mask);
    IWP_REQUIRE(p->tensor_slot, err, IWP_ENOMEM, "%s: out of memory", name);
    for (int i = 0; i < g->n_tensor; i++) IWP_TRY(insert_tensor(g, i, name, err));
    return 0;
}

static int new_gguf(struct iwp_gguf **out, int n_part, const char *name, iwp_err *err) {
    struct iwp_gguf *g = calloc(1, sizeof *g);
    struct priv *p = calloc(1, sizeof *p);
    struct iwp_gguf_part *part = calloc((size_t)n_part, sizeof *part);
    struct iwp_map *map = calloc((size_t)n_part, sizeof *map);
    if (!g || !p || !part || !map) {
        free(g);
        free(p);
        free(part);
        free(map);
        return iwp_err_set(err, IWP_ENOMEM, "%s: out of memory", name);
    }
    p->map = map;
    g->priv = p;
    g->part = part;
    g->n_part = n_part;
    *out = g;
    return 0;
}

/* The number of parts a path speaks of: x-00001-of-00003.gguf → 3; 1 for any other name; 0 = not the first. */
static int count_parts(const char *path, size_t *stem) {
    size_t n = strlen(path);
    unsigned no = 0, count = 0;
    int used = 0;
    if (n < 20) return 1;
    const char *tail = path + n - 20;
    if (sscanf(tail, "-%5u-of-%5u.gguf%n", &no, &count, &used) != 2 || used != 20 ||
        tail[1] == '-' || tail[10] == '-')
        return 1;
    *stem = n - 20;
    if (no != 1 || count < 1 || count > MAX_PART) return 0;
    return (int)count;
}

static int map_part(struct iwp_gguf *g, int i, const char *path, iwp_err *err) {
    struct priv *p = g->priv;
    size_t n = strlen(path) + 1;
    g->part[i].path = malloc(n);
    IWP_REQUIRE(g->part[i].path, err, IWP_ENOMEM, "%s: out of memory", path);
    memcpy(g->part[i].path, path, n);
    IWP_TRY(iwp_map_open(&p->map[i], path, err));
    p->n_map = i + 1;
    g->part[i].data = p->map[i].data;
    g->part[i].size = p->map[i].size;
    return 0;
}

static struct cursor cursor_of(const struct iwp_gguf *g, int i, const char *name, iwp_err *err) {
    return (struct cursor){g->part[i].data, 0, g->part[i].size, name, err};
}

static int open_parts(struct iwp_gguf *g, const char *path, size_t stem, iwp_err *err) {
    struct cursor c;
    IWP_TRY(map_part(g, 0, path, err));
    c = cursor_of(g, 0, path, err);
    IWP_TRY(parse_first(g, &c));
    if (g->n_part > 1) {
        uint32_t count, no;
        IWP_TRY(iwp_gguf_get_u32(g, "split.count", &count, err));
        IWP_TRY(iwp_gguf_get_u32(g, "split.no", &no, err));
        IWP_REQUIRE(count == (uint32_t)g->n_part && no == 0, err, IWP_EFORMAT,
                    "%s: says it is part %u of %u, the name says 1 of %d", path, no + 1, count,
                    g->n_part);
        char *name = malloc(stem + 32);
        IWP_REQUIRE(name, err, IWP_ENOMEM, "%s: out of memory", path);
        int rc = 0;
        for (int i = 1; i < g->n_part && rc >= 0; i++) {
            snprintf(name, stem + 32, "%.*s-%05d-of-%05d.gguf", (int)stem, path, i + 1, g->n_part);
            rc = map_part(g, i, name, err);
            if (rc < 0) break;
            c = cursor_of(g, i, name, err);
            rc = parse_part(g, &c, i);
        }
        free(name);
        if (rc < 0) return rc;
        int64_t total;
        IWP_TRY(iwp_gguf_opt_i64(g, "split.tensors.count", g->n_tensor, &total, err));
        IWP_REQUIRE(total == g->n_tensor, err, IWP_EFORMAT,
                    "%s: %d tensors in all parts, split.tensors.count is %" PRId64, path,
                    g->n_tensor, total);
    }
    return index_tensors(g, path, err);
}

int iwp_gguf_open(struct iwp_gguf **out, const char *path, iwp_err *err) {
    *out = NULL;
    size_t stem = 0;
    int n = count_parts(path, &stem);
    IWP_REQUIRE(n > 0 && stem < 4096, err, IWP_EINVAL,
                "%s: a part of a split model; give the first one (-00001-of-…)", path);
    struct iwp_gguf *g;
    IWP_TRY(new_gguf(&g, n, path, err));
    int rc = open_parts(g, path, stem, err);
    if (rc < 0) {
        iwp_gguf_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

int iwp_gguf_open_memory(struct iwp_gguf **out, const void *data, size_t size, const char *name,
                         iwp_err *err) {
    *out = NULL;
    struct iwp_gguf *g;
    IWP_TRY(new_gguf(&g, 1, name, err));
    g->part[0].data = data;
    g->part[0].size = size;
    struct cursor c = cursor_of(g, 0, name, err);
    int rc = parse_first(g, &c);
    if (rc >= 0) rc = index_tensors(g, name, err);
    if (rc < 0) {
        iwp_gguf_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

void iwp_gguf_free(struct iwp_gguf *g) {
    if (!g) return;
    struct priv *p = g->priv;
    for (struct chunk *c = p->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    for (int i = 0; i < p->n_map; i++) iwp_map_close(&p->map[i]);
    for (int i = 0; i < g->n_part; i++) free(g->part[i].path);
    free(p->map);
    free(p->kv_slot);
    free(p->tensor_slot);
    free(p);
    free(g->part);
    free(g->kv);
    free(g->tensor);
    free(g);
}

const struct iwp_gguf_kv *iwp_gguf_find(const struct iwp_gguf *g, const char *key) {
    const struct priv *p = g->priv;
    for (uint32_t at = hash(key) & p->kv_mask; p->kv_slot[at]; at = (at + 1) & p->kv_mask)
        if (strcmp(g->kv[p->kv_slot[at] - 1].key, key) == 0) return &g->kv[p->kv_slot[at] - 1];
    return NULL;
}

const struct iwp_gguf_tensor *iwp_gguf_find_tensor(const struct iwp_gguf *g, const char *name) {
    const struct priv *p = g->priv;
    for (uint32_t at = hash(name) & p->tensor_mask; p->tensor_slot[at];
         at = (at + 1) & p->tensor_mask)
        if (strcmp(g->tensor[p->tensor_slot[at] - 1].name, name) == 0)
            return &g->tensor[p->tensor_slot[at] - 1];
    return NULL;
}

const uint8_t *iwp_gguf_tensor_data(const struct iwp_gguf *g, const struct iwp_gguf_tensor *t) {
    return g->part[t->part].data + t->offset;
}

const char *iwp_gguf_tensor_path(const struct iwp_gguf *g, const struct iwp_gguf_tensor *t) {
    return g->part[t->part].path;
}
