/* The GGUF writer: see gguf.h.  Pairs collect in one buffer, tensors are declared before any data is
 * written, data streams through; memory does not grow with the tensors. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "io/gguf.h"

enum { ALIGNMENT = 32 };

struct bytes {
    uint8_t *p;
    size_t n, cap;
};

struct iwp_gguf_writer {
    struct bytes kv, info;
    uint64_t n_kv, n_tensor;
    uint64_t *size; /* bytes of each tensor */
    char (*name)[64];
    size_t cap_tensor;
    iwp_err first; /* the first error of an add */
    struct iwp_output out;
    bool open, finished;
    uint64_t current, given, total, offset;
};

static void fail(struct iwp_gguf_writer *w, int code, const char *text, const char *what) {
    if (w->first.code == 0) iwp_err_set(&w->first, code, "%s: %.80s", text, what);
}

static void put(struct iwp_gguf_writer *w, struct bytes *b, const void *p, size_t n) {
    if (b->cap - b->n < n) {
        size_t cap = b->cap ? b->cap : 4096;
        while (cap - b->n < n) cap *= 2;
        uint8_t *q = realloc(b->p, cap);
        if (!q) {
            fail(w, IWP_ENOMEM, "out of memory", "GGUF header");
            return;
        }
        b->p = q;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

/* Little-endian, whatever the host. */
static void put_int(struct iwp_gguf_writer *w, struct bytes *b, uint64_t v, int n) {
    uint8_t raw[8];
    for (int i = 0; i < n; i++) raw[i] = (uint8_t)(v >> 8 * i);
    put(w, b, raw, (size_t)n);
}

static void put_str(struct iwp_gguf_writer *w, struct bytes *b, const char *p, size_t n) {
    put_int(w, b, n, 8);
    put(w, b, p, n);
}

static void put_key(struct iwp_gguf_writer *w, const char *key, enum iwp_gguf_kind kind) {
    put_str(w, &w->kv, key, strlen(key));
    put_int(w, &w->kv, kind, 4);
    w->n_kv++;
}

int iwp_gguf_writer_new(struct iwp_gguf_writer **out, iwp_err *err) {
    *out = calloc(1, sizeof **out);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    return 0;
}

void iwp_gguf_writer_free(struct iwp_gguf_writer *w) {
    if (!w) return;
    if (w->open) iwp_output_abort(&w->out);
    free(w->kv.p);
    free(w->info.p);
    free(w->size);
    free(w->name);
    free(w);
}

void iwp_gguf_add_u32(struct iwp_gguf_writer *w, const char *key, uint32_t v) {
    put_key(w, key, IWP_GGUF_U32);
    put_int(w, &w->kv, v, 4);
}

void iwp_gguf_add_i32(struct iwp_gguf_writer *w, const char *key, int32_t v) {
    put_key(w, key, IWP_GGUF_I32);
    put_int(w, &w->kv, (uint32_t)v, 4);
}

void iwp_gguf_add_u64(struct iwp_gguf_writer *w, const char *key, uint64_t v) {
    put_key(w, key, IWP_GGUF_U64);
    put_int(w, &w->kv, v, 8);
}

void iwp_gguf_add_f32(struct iwp_gguf_writer *w, const char *key, float v) {
    uint32_t b;
    memcpy(&b, &v, 4);
    put_key(w, key, IWP_GGUF_F32);
    put_int(w, &w->kv, b, 4);
}

void iwp_gguf_add_bool(struct iwp_gguf_writer *w, const char *key, bool v) {
    put_key(w, key, IWP_GGUF_BOOL);
    put_int(w, &w->kv, v, 1);
}

void iwp_gguf_add_str(struct iwp_gguf_writer *w, const char *key, const char *v) {
    put_key(w, key, IWP_GGUF_STR);
    put_str(w, &w->kv, v, strlen(v));
}

void iwp_gguf_add_array(struct iwp_gguf_writer *w, const char *key, enum iwp_gguf_kind elem,
                        const void *v, uint64_t n) {
    static const uint8_t size[IWP_GGUF_KIND_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const int s = size[elem];
    if (!s) {
        fail(w, IWP_EINTERNAL, "not an array of numbers", key);
        return;
    }
    put_key(w, key, IWP_GGUF_ARRAY);
    put_int(w, &w->kv, elem, 4);
    put_int(w, &w->kv, n, 8);
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *p = (const uint8_t *)v + i * (uint64_t)s;
        uint64_t x = 0;
        uint32_t x4;
        uint16_t x2;
        switch (s) {
        case 1: x = *p; break;
        case 2: memcpy(&x2, p, 2), x = x2; break;
        case 4: memcpy(&x4, p, 4), x = x4; break;
        default: memcpy(&x, p, 8);
        }
        put_int(w, &w->kv, x, s);
    }
}

void iwp_gguf_add_strs(struct iwp_gguf_writer *w, const char *key, const struct iwp_gguf_str *v,
                       uint64_t n) {
    put_key(w, key, IWP_GGUF_ARRAY);
    put_int(w, &w->kv, IWP_GGUF_STR, 4);
    put_int(w, &w->kv, n, 8);
    for (uint64_t i = 0; i < n; i++) put_str(w, &w->kv, v[i].p, v[i].n);
}

void iwp_gguf_add_kv(struct iwp_gguf_writer *w, const struct iwp_gguf_kv *kv) {
    put_key(w, kv->key, (enum iwp_gguf_kind)kv->kind);
    if (kv->kind == IWP_GGUF_ARRAY) {
        put_int(w, &w->kv, kv->elem, 4);
        put_int(w, &w->kv, kv->n, 8);
    }
    put(w, &w->kv, kv->data, (size_t)kv->size);
}

void iwp_gguf_add_tensor(struct iwp_gguf_writer *w, const char *name, uint32_t type, int n_dims,
                         const int64_t *ne) {
    const struct iwp_type_info *t = iwp_type_info(type);
    uint64_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= (uint64_t)ne[i];
    if (strlen(name) > 63 || !t || n_dims < 1 || n_dims > 4 || ne[0] < 1 || ne[0] % t->block) {
        fail(w, IWP_EINVAL, "tensor cannot be written (name, type or shape)", name);
        return;
    }
    if (w->n_tensor == w->cap_tensor) {
        size_t cap = w->cap_tensor ? 2 * w->cap_tensor : 256;
        uint64_t *size = realloc(w->size, cap * sizeof *size);
        if (size) w->size = size;
        char(*names)[64] = realloc(w->name, cap * sizeof *names);
        if (names) w->name = names;
        if (!size || !names) {
            fail(w, IWP_ENOMEM, "out of memory", name);
            return;
        }
        w->cap_tensor = cap;
    }
    put_str(w, &w->info, name, strlen(name));
    put_int(w, &w->info, (uint32_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++) put_int(w, &w->info, (uint64_t)ne[i], 8);
    put_int(w, &w->info, type, 4);
    put_int(w, &w->info, w->offset, 8);
    memcpy(w->name[w->n_tensor], name, strlen(name) + 1);
    w->size[w->n_tensor] = iwp_type_bytes(type, n);
    w->total += w->size[w->n_tensor];
    w->offset += (w->size[w->n_tensor] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    w->n_tensor++;
}

uint64_t iwp_gguf_writer_total(const struct iwp_gguf_writer *w) { return w->total; }

static int emit(struct iwp_gguf_writer *w, const void *p, size_t n, iwp_err *err) {
    IWP_REQUIRE(fwrite(p, 1, n, w->out.file) == n, err, IWP_EIO,
                "%s: cannot write (is the disk full?)", w->out.path);
    return 0;
}

static int pad(struct iwp_gguf_writer *w, uint64_t n, iwp_err *err) {
    static const uint8_t zeros[ALIGNMENT];
    return emit(w, zeros, (size_t)((ALIGNMENT - n % ALIGNMENT) % ALIGNMENT), err);
}

int iwp_gguf_writer_begin(struct iwp_gguf_writer *w, const char *path, iwp_err *err) {
    IWP_REQUIRE(w->first.code == 0, err, w->first.code, "%s: %s", path, w->first.msg);
    IWP_TRY(iwp_output_open(&w->out, path, err));
    w->open = true;
    struct bytes head = {0};
    put(w, &head, "GGUF", 4);
    put_int(w, &head, 3, 4);
    put_int(w, &head, w->n_tensor, 8);
    put_int(w, &head, w->n_kv, 8);
    int rc = w->first.code ? iwp_err_set(err, IWP_ENOMEM, "%s: out of memory", path)
                           : emit(w, head.p, head.n, err);
    uint64_t n = head.n + w->kv.n + w->info.n;
    free(head.p);
    IWP_TRY(rc);
    IWP_TRY(emit(w, w->kv.p, w->kv.n, err));
    IWP_TRY(emit(w, w->info.p, w->info.n, err));
    return w->n_tensor ? pad(w, n, err) : 0;
}

int iwp_gguf_writer_data(struct iwp_gguf_writer *w, const void *data, size_t n, iwp_err *err) {
    IWP_REQUIRE(w->current < w->n_tensor && n <= w->size[w->current] - w->given, err, IWP_EINTERNAL,
                "%s: more data than tensor %s holds", w->out.path,
                w->current < w->n_tensor ? w->name[w->current] : "(none)");
    IWP_TRY(emit(w, data, n, err));
    w->given += n;
    if (w->given == w->size[w->current]) {
        IWP_TRY(pad(w, w->given, err));
        w->current++;
        w->given = 0;
    }
    return 0;
}

int iwp_gguf_writer_finish(struct iwp_gguf_writer *w, iwp_err *err) {
    IWP_REQUIRE(w->open && w->current == w->n_tensor, err, IWP_EINTERNAL,
                "%s: tensor %s was not written", w->out.path,
                w->current < w->n_tensor ? w->name[w->current] : "(none)");
    IWP_REQUIRE(fflush(w->out.file) == 0, err, IWP_EIO, "%s: cannot write (is the disk full?)",
                w->out.path);
    w->finished = true;
    return 0;
}

int iwp_gguf_writer_commit(struct iwp_gguf_writer *w, iwp_err *err) {
    IWP_REQUIRE(w->finished, err, IWP_EINTERNAL, "commit before finish");
    w->open = false;
    return iwp_output_commit(&w->out, err);
}
