/* safetensors: see safetensors.h for what is checked and refused. */
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/half.h"
#include "base/json.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors are little-endian and read in place"
#endif

enum { HEADER_MAX = 100000000, NAME_MAX_BYTES = 1024 };

struct iwp_st {
    struct iwp_map map; /* zero when the caller owns the bytes */
    char *path;
    cJSON *header;                        /* owns the names */
    struct iwp_st_tensor *tensor;         /* [n], by position */
    const struct iwp_st_tensor **by_name; /* [n], sorted */
    int32_t n;
};

static const struct {
    const char *name;
    size_t bytes;
} dtype_table[IWP_ST_DTYPE_COUNT] = {
#define X(name, bytes) {#name, bytes},
    IWP_ST_DTYPE_MAP(X)
#undef X
};

const char *iwp_st_dtype_name(enum iwp_st_dtype t) {
    return (unsigned)t < IWP_ST_DTYPE_COUNT ? dtype_table[t].name : "?";
}

size_t iwp_st_dtype_size(enum iwp_st_dtype t) {
    return (unsigned)t < IWP_ST_DTYPE_COUNT ? dtype_table[t].bytes : 0;
}

static bool printable(const char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) return false;
    return true;
}

/* n = product of the shape, bytes = n x size; false on overflow. */
static bool shape_bytes(const int64_t *shape, int32_t rank, size_t size, int64_t *n,
                        uint64_t *bytes) {
    uint64_t p = 1;
    bool zero = false;
    for (int32_t i = 0; i < rank; i++) zero |= shape[i] == 0;
    for (int32_t i = 0; i < rank && !zero; i++) {
        uint64_t s = (uint64_t)shape[i];
        if (p > (uint64_t)INT64_MAX / 8 / s) return false; /* s > 0 here */
        p *= s;
    }
    if (zero) p = 0;
    *n = (int64_t)p;
    *bytes = p * size;
    return true;
}

/* One entry of the header.  `body` is what follows the header. */
static int read_entry(const cJSON *e, const uint8_t *body, uint64_t body_size,
                      struct iwp_st_tensor *t, iwp_err *err) {
    const char *name = e->string;
    IWP_REQUIRE(strlen(name) <= NAME_MAX_BYTES && printable(name), err, IWP_EFORMAT,
                "tensor name '%.60s' is too long or has control bytes", name);
    IWP_REQUIRE(cJSON_IsObject(e), err, IWP_EFORMAT, "tensor '%.100s': entry is not an object",
                name);
    const cJSON *dtype = NULL, *shape = NULL, *range = NULL;
    for (const cJSON *c = e->child; c; c = c->next) {
        if (strcmp(c->string, "dtype") == 0)
            dtype = c;
        else if (strcmp(c->string, "shape") == 0)
            shape = c;
        else if (strcmp(c->string, "data_offsets") == 0)
            range = c;
        else
            return iwp_err_set(err, IWP_EFORMAT, "tensor '%.100s': unknown field '%.40s'", name,
                               c->string);
    }
    t->name = name;
    IWP_REQUIRE(cJSON_IsString(dtype), err, IWP_EFORMAT, "tensor '%.100s': no dtype", name);
    int32_t d = 0;
    while (d < IWP_ST_DTYPE_COUNT && strcmp(dtype_table[d].name, dtype->valuestring) != 0) d++;
    IWP_REQUIRE(d < IWP_ST_DTYPE_COUNT, err, IWP_EFORMAT, "tensor '%.100s': unknown dtype '%.20s'",
                name, dtype->valuestring);
    t->dtype = (enum iwp_st_dtype)d;

    IWP_REQUIRE(cJSON_IsArray(shape), err, IWP_EFORMAT, "tensor '%.100s': no shape", name);
    t->rank = 0;
    for (const cJSON *c = shape->child; c; c = c->next) {
        IWP_REQUIRE(t->rank < IWP_ST_MAX_RANK, err, IWP_EFORMAT,
                    "tensor '%.100s': more than %d dimensions", name, IWP_ST_MAX_RANK);
        IWP_REQUIRE(iwp_json_get_int(c, 0, (int64_t)1 << 53, &t->shape[t->rank]), err, IWP_EFORMAT,
                    "tensor '%.100s': dimension %d is not a whole number >= 0", name, t->rank);
        t->rank++;
    }
    uint64_t want = 0;
    IWP_REQUIRE(shape_bytes(t->shape, t->rank, dtype_table[d].bytes, &t->n, &want), err,
                IWP_EFORMAT, "tensor '%.100s': shape too large", name);

    int64_t at[2] = {0, 0};
    const cJSON *o = cJSON_IsArray(range) ? range->child : NULL;
    for (int i = 0; i < 2; i++, o = o->next)
        IWP_REQUIRE(o && iwp_json_get_int(o, 0, (int64_t)1 << 53, &at[i]), err, IWP_EFORMAT,
                    "tensor '%.100s': data_offsets must be two whole numbers >= 0", name);
    IWP_REQUIRE(!o, err, IWP_EFORMAT, "tensor '%.100s': data_offsets must be two numbers", name);
    IWP_REQUIRE(at[0] <= at[1], err, IWP_EFORMAT, "tensor '%.100s': data_offsets run backwards",
                name);
    IWP_REQUIRE((uint64_t)at[1] <= body_size, err, IWP_EFORMAT,
                "tensor '%.100s': data ends at byte %lld of %llu", name, (long long)at[1],
                (unsigned long long)body_size);
    IWP_REQUIRE((uint64_t)(at[1] - at[0]) == want, err, IWP_EFORMAT,
                "tensor '%.100s': %s of this shape takes %llu bytes, data_offsets give %lld", name,
                dtype_table[d].name, (unsigned long long)want, (long long)(at[1] - at[0]));
    t->data = body + at[0];
    t->bytes = (size_t)want;
    return 0;
}

static int by_place(const void *a, const void *b) {
    const struct iwp_st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* empty ones first */
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const struct iwp_st_tensor *const *)a)->name,
                  (*(const struct iwp_st_tensor *const *)b)->name);
}

static int check_places(const iwp_st *st, const uint8_t *body, uint64_t body_size, iwp_err *err) {
    const uint8_t *end = body;
    for (int32_t i = 0; i < st->n; i++) {
        const struct iwp_st_tensor *t = &st->tensor[i];
        IWP_REQUIRE(t->data >= end, err, IWP_EFORMAT, "tensors '%.80s' and '%.80s' overlap",
                    i ? st->tensor[i - 1].name : "", t->name);
        IWP_REQUIRE(t->data == end, err, IWP_EFORMAT, "unused bytes before tensor '%.100s'",
                    t->name);
        end = t->data + t->bytes;
    }
    IWP_REQUIRE((uint64_t)(end - body) == body_size, err, IWP_EFORMAT,
                "%llu bytes after the last tensor",
                (unsigned long long)(body_size - (uint64_t)(end - body)));
    return 0;
}

static int check_metadata(const cJSON *m, iwp_err *err) {
    IWP_REQUIRE(cJSON_IsObject(m), err, IWP_EFORMAT, "__metadata__ is not an object");
    for (const cJSON *c = m->child; c; c = c->next)
        IWP_REQUIRE(cJSON_IsString(c), err, IWP_EFORMAT, "__metadata__ '%.60s' is not text",
                    c->string);
    return 0;
}

static int parse(iwp_st *st, const uint8_t *data, size_t size, iwp_err *err) {
    IWP_REQUIRE(size >= 8, err, IWP_EFORMAT, "not a safetensors file: only %zu bytes", size);
    uint64_t len;
    memcpy(&len, data, 8);
    IWP_REQUIRE(len <= HEADER_MAX, err, IWP_EFORMAT,
                "not a safetensors file: header of %llu bytes, the limit is %d",
                (unsigned long long)len, HEADER_MAX);
    IWP_REQUIRE(len <= size - 8, err, IWP_EFORMAT,
                "truncated: header of %llu bytes in a file of %zu", (unsigned long long)len, size);
    IWP_REQUIRE(len >= 2 && data[8] == '{', err, IWP_EFORMAT,
                "not a safetensors file: the header is not a JSON object");
    const uint8_t *body = data + 8 + len;
    uint64_t body_size = size - 8 - len;
    struct iwp_json_limits lim = {.depth = 4, .values = 4000000};
    int rc = iwp_json_parse((const char *)data + 8, (size_t)len, lim, &st->header, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "header");

    int64_t n = 0;
    for (const cJSON *e = st->header->child; e; e = e->next) n++;
    st->tensor = calloc((size_t)n + 1, sizeof *st->tensor);
    st->by_name = calloc((size_t)n + 1, sizeof(*st->by_name));
    IWP_REQUIRE(st->tensor && st->by_name, err, IWP_ENOMEM, "out of memory");
    for (const cJSON *e = st->header->child; e; e = e->next) {
        if (strcmp(e->string, "__metadata__") == 0) {
            IWP_TRY(check_metadata(e, err));
            continue;
        }
        IWP_TRY(read_entry(e, body, body_size, &st->tensor[st->n], err));
        st->n++;
    }
    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_place);
    for (int32_t i = 0; i < st->n; i++) st->by_name[i] = &st->tensor[i];
    qsort(st->by_name, (size_t)st->n, sizeof(*st->by_name), by_name);
    return check_places(st, body, body_size, err);
}

static int open_bytes(iwp_st **out, struct iwp_map map, const void *data, size_t size,
                      const char *name, iwp_err *err) {
    *out = NULL;
    iwp_st *st = calloc(1, sizeof *st);
    char *path = malloc(strlen(name) + 1);
    if (!st || !path) {
        free(st);
        free(path);
        iwp_map_close(&map);
        return iwp_err_set(err, IWP_ENOMEM, "%s: out of memory", name);
    }
    memcpy(path, name, strlen(name) + 1);
    st->map = map;
    st->path = path;
    int rc = parse(st, data, size, err);
    if (rc < 0) {
        iwp_st_close(st);
        return iwp_err_prefix(err, rc, "%.150s", name);
    }
    *out = st;
    return 0;
}

int iwp_st_open(iwp_st **out, const char *path, iwp_err *err) {
    *out = NULL;
    struct iwp_map map;
    IWP_TRY(iwp_map_open(&map, path, err));
    return open_bytes(out, map, map.data, map.size, path, err);
}

int iwp_st_open_memory(iwp_st **out, const void *data, size_t size, const char *name,
                       iwp_err *err) {
    struct iwp_map none = {NULL, 0};
    return open_bytes(out, none, data, size, name, err);
}

void iwp_st_close(iwp_st *st) {
    if (!st) return;
    cJSON_Delete(st->header);
    free(st->tensor);
    free(st->by_name);
    free(st->path);
    iwp_map_close(&st->map);
    free(st);
}

int32_t iwp_st_count(const iwp_st *st) { return st->n; }

const struct iwp_st_tensor *iwp_st_at(const iwp_st *st, int32_t i) {
    return i >= 0 && i < st->n ? &st->tensor[i] : NULL;
}

const char *iwp_st_path(const iwp_st *st) { return st->path; }

const struct iwp_st_tensor *iwp_st_find(const iwp_st *st, const char *name) {
    int32_t lo = 0, hi = st->n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, st->by_name[mid]->name);
        if (c == 0) return st->by_name[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const char *iwp_st_metadata(const iwp_st *st, const char *key) {
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(st->header, "__metadata__");
    const cJSON *v = m ? cJSON_GetObjectItemCaseSensitive(m, key) : NULL;
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

/* ---- elements ---- */

bool iwp_st_aligned(const struct iwp_st_tensor *t) {
    return (uintptr_t)t->data % dtype_table[t->dtype].bytes == 0;
}

void iwp_st_describe(const struct iwp_st_tensor *t, char *out, size_t cap) {
    size_t n = (size_t)snprintf(out, cap, "%s [", iwp_st_dtype_name(t->dtype));
    for (int32_t i = 0; i < t->rank && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, i ? ", %lld" : "%lld", (long long)t->shape[i]);
    if (n < cap) snprintf(out + n, cap - n, "]");
}

static int check_range(const struct iwp_st_tensor *t, int64_t first, int64_t n, iwp_err *err) {
    IWP_REQUIRE(first >= 0 && n >= 0 && first <= t->n && n <= t->n - first, err, IWP_EINVAL,
                "tensor '%.100s': elements %lld to %lld of %lld", t->name, (long long)first,
                (long long)(first + n), (long long)t->n);
    return 0;
}

int iwp_st_read_f32(const struct iwp_st_tensor *t, int64_t first, int64_t n, float *out,
                    iwp_err *err) {
    IWP_TRY(check_range(t, first, n, err));
    const uint8_t *p = t->data + (size_t)first * dtype_table[t->dtype].bytes;
    switch (t->dtype) {
    case IWP_ST_F32:
        if (n) memcpy(out, p, (size_t)n * 4);
        return 0;
    case IWP_ST_F16:
    case IWP_ST_BF16:
        for (int64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * i, 2);
            out[i] = t->dtype == IWP_ST_F16 ? iwp_f16_to_f32(h) : iwp_bf16_to_f32(h);
        }
        return 0;
    case IWP_ST_F64:
        for (int64_t i = 0; i < n; i++) {
            double x;
            memcpy(&x, p + 8 * i, 8);
            out[i] = (float)x;
        }
        return 0;
    default:
        return iwp_err_set(err, IWP_EINVAL, "tensor '%.100s' is %s, expected F32, F16 or BF16",
                           t->name, iwp_st_dtype_name(t->dtype));
    }
}

int iwp_st_read_i64(const struct iwp_st_tensor *t, int64_t first, int64_t n, int64_t *out,
                    iwp_err *err) {
    IWP_TRY(check_range(t, first, n, err));
    size_t size = dtype_table[t->dtype].bytes;
    bool is_signed = false;
    switch (t->dtype) {
    case IWP_ST_I64:
    case IWP_ST_I32:
    case IWP_ST_I16:
    case IWP_ST_I8: is_signed = true; break;
    case IWP_ST_U64:
    case IWP_ST_U32:
    case IWP_ST_U16:
    case IWP_ST_U8:
    case IWP_ST_BOOL: break;
    default:
        return iwp_err_set(err, IWP_EINVAL, "tensor '%.100s' is %s, expected integers", t->name,
                           iwp_st_dtype_name(t->dtype));
    }
    const uint8_t *p = t->data + (size_t)first * size;
    for (int64_t i = 0; i < n; i++) {
        uint64_t u = 0;
        memcpy(&u, p + (size_t)i * size, size);
        if (is_signed && size < 8 && u >> (8 * size - 1)) u |= UINT64_MAX << (8 * size);
        IWP_REQUIRE(is_signed || u <= INT64_MAX, err, IWP_EINVAL,
                    "tensor '%.100s': element %lld does not fit 63 bits", t->name,
                    (long long)(first + i));
        memcpy(&out[i], &u, 8);
    }
    return 0;
}

/* ---- writing ---- */

struct iwp_st_decl {
    char *name;
    enum iwp_st_dtype dtype;
    int32_t rank;
    int64_t shape[IWP_ST_MAX_RANK];
    uint64_t bytes;
};

int iwp_st_writer_open(struct iwp_st_writer *w, const char *path, iwp_err *err) {
    memset(w, 0, sizeof *w);
    return iwp_output_open(&w->out, path, err);
}

int iwp_st_writer_add(struct iwp_st_writer *w, const char *name, enum iwp_st_dtype dtype,
                      int32_t rank, const int64_t *shape, iwp_err *err) {
    IWP_REQUIRE(!w->begun, err, IWP_EINTERNAL, "tensor '%.100s' declared after the header", name);
    IWP_REQUIRE(printable(name) && strlen(name) <= NAME_MAX_BYTES &&
                    iwp_utf8_valid(name, strlen(name)),
                err, IWP_EINVAL, "tensor name '%.60s' cannot be written", name);
    IWP_REQUIRE(strcmp(name, "__metadata__") != 0, err, IWP_EINVAL,
                "a tensor cannot be called __metadata__");
    IWP_REQUIRE(rank >= 0 && rank <= IWP_ST_MAX_RANK && (unsigned)dtype < IWP_ST_DTYPE_COUNT, err,
                IWP_EINVAL, "tensor '%.100s': rank %d", name, rank);
    for (int32_t i = 0; i < w->n_decl; i++)
        IWP_REQUIRE(strcmp(w->decl[i].name, name) != 0, err, IWP_EINVAL, "tensor '%.100s' twice",
                    name);
    struct iwp_st_decl d = {.dtype = dtype, .rank = rank};
    int64_t n;
    for (int32_t i = 0; i < rank; i++) {
        IWP_REQUIRE(shape[i] >= 0, err, IWP_EINVAL, "tensor '%.100s': negative dimension", name);
        d.shape[i] = shape[i];
    }
    IWP_REQUIRE(shape_bytes(d.shape, rank, dtype_table[dtype].bytes, &n, &d.bytes), err, IWP_EINVAL,
                "tensor '%.100s': shape too large", name);
    if (w->n_decl == w->cap_decl) {
        int32_t cap = w->cap_decl ? 2 * w->cap_decl : 16;
        struct iwp_st_decl *p = realloc(w->decl, (size_t)cap * sizeof *p);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
        w->decl = p;
        w->cap_decl = cap;
    }
    d.name = malloc(strlen(name) + 1);
    IWP_REQUIRE(d.name, err, IWP_ENOMEM, "out of memory");
    memcpy(d.name, name, strlen(name) + 1);
    w->decl[w->n_decl++] = d;
    w->total += d.bytes;
    return 0;
}

static int put(struct iwp_st_writer *w, const void *p, size_t n, iwp_err *err) {
    IWP_REQUIRE(n == 0 || fwrite(p, 1, n, w->out.file) == n, err, IWP_EIO,
                "%s: cannot write (is the disk full?)", w->out.path);
    return 0;
}

int iwp_st_writer_begin(struct iwp_st_writer *w, iwp_err *err) {
    IWP_REQUIRE(!w->begun && w->out.file, err, IWP_EINTERNAL, "writer begun twice or not open");
    struct iwp_json_out j;
    iwp_json_init(&j, false);
    iwp_json_open_object(&j, NULL);
    uint64_t at = 0;
    for (int32_t i = 0; i < w->n_decl; i++) {
        const struct iwp_st_decl *d = &w->decl[i];
        iwp_json_open_object(&j, d->name);
        iwp_json_put_string(&j, "dtype", iwp_st_dtype_name(d->dtype));
        iwp_json_open_array(&j, "shape");
        for (int32_t k = 0; k < d->rank; k++) iwp_json_put_int(&j, NULL, d->shape[k]);
        iwp_json_close_array(&j);
        iwp_json_open_array(&j, "data_offsets");
        iwp_json_put_int(&j, NULL, (int64_t)at);
        iwp_json_put_int(&j, NULL, (int64_t)(at += d->bytes));
        iwp_json_close_array(&j);
        iwp_json_close_object(&j);
    }
    iwp_json_close_object(&j);
    int rc = 0;
    if (j.failed) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    uint64_t pad = (8 - j.len % 8) % 8, len = j.len + pad; /* the first tensor starts aligned */
    if (len > HEADER_MAX) IWP_FAIL(err, IWP_EINVAL, "%s: header too large", w->out.path);
    IWP_TRY_GOTO(put(w, &len, 8, err));
    IWP_TRY_GOTO(put(w, j.text, j.len, err));
    IWP_TRY_GOTO(put(w, "        ", (size_t)pad, err));
    w->begun = true;
fail:
    iwp_json_free(&j);
    return rc;
}

int iwp_st_writer_write(struct iwp_st_writer *w, const void *data, size_t bytes, iwp_err *err) {
    IWP_REQUIRE(w->begun && bytes <= w->total - w->written, err, IWP_EINTERNAL,
                "more bytes than the header declares");
    IWP_TRY(put(w, data, bytes, err));
    w->written += bytes;
    return 0;
}

int iwp_st_writer_commit(struct iwp_st_writer *w, iwp_err *err) {
    IWP_REQUIRE(w->begun && w->written == w->total, err, IWP_EINTERNAL,
                "fewer bytes than the header declares");
    int rc = iwp_output_commit(&w->out, err);
    iwp_st_writer_abort(w);
    return rc;
}

void iwp_st_writer_abort(struct iwp_st_writer *w) {
    iwp_output_abort(&w->out);
    for (int32_t i = 0; i < w->n_decl; i++) free(w->decl[i].name);
    free(w->decl);
    w->decl = NULL;
    w->n_decl = w->cap_decl = 0;
}
