/* The GGUF reader on any bytes: what it accepts stays inside the file, is found again by name and can be
 * written back; what it refuses comes with one line that says why.  The vocabulary check runs on
 * everything accepted. */
#include "io/gguf.h"

#include <stdlib.h>
#include <string.h>

static volatile uint8_t sink;

static void touch_kv(const struct iwp_gguf *g, const struct iwp_gguf_kv *kv, const uint8_t *data,
                     size_t size) {
    if (iwp_gguf_find(g, kv->key) != kv) abort();
    if (kv->data < data || kv->data + kv->size > data + size) abort();
    for (uint64_t i = 0; i < kv->size; i++) sink ^= kv->data[i];
    struct iwp_gguf_iter it = iwp_gguf_iterate(kv);
    struct iwp_gguf_str s;
    uint64_t n = 0;
    while (iwp_gguf_next(&it, &s)) {
        n++;
        for (size_t i = 0; i < s.n; i++) sink ^= (uint8_t)s.p[i];
    }
    if (kv->elem == IWP_GGUF_STR && (n != kv->n || it.p != it.end)) abort();
    iwp_gguf_value_i64(kv, kv->n);
    for (uint64_t i = 0; i < kv->n && i < 64 && kv->elem != IWP_GGUF_STR; i++) {
        iwp_gguf_value_i64(kv, i);
        iwp_gguf_value_f64(kv, i);
    }
    iwp_err err;
    uint32_t u;
    int64_t i64;
    float f, fs[8];
    bool b;
    const char *t;
    int32_t is[8];
    iwp_gguf_get_u32(g, kv->key, &u, &err);
    iwp_gguf_get_i64(g, kv->key, &i64, &err);
    iwp_gguf_get_f32(g, kv->key, &f, &err);
    iwp_gguf_opt_bool(g, kv->key, false, &b, &err);
    iwp_gguf_array_i32(g, kv->key, is, 8, &err);
    iwp_gguf_array_f32(g, kv->key, fs, 8, &err);
    if (iwp_gguf_get_str(g, kv->key, &t, &err) == 0) sink ^= (uint8_t)strlen(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct iwp_gguf *g;
    iwp_err err = {0};
    int rc = iwp_gguf_open_memory(&g, data, size, "fuzz", &err);
    if (rc < 0) {
        if (g || !err.msg[0] || err.code != rc || strchr(err.msg, '\n')) abort();
        return 0;
    }
    for (int32_t i = 0; i < g->n_kv; i++) touch_kv(g, &g->kv[i], data, size);
    uint64_t bytes = 0;
    for (int32_t i = 0; i < g->n_tensor; i++) {
        const struct iwp_gguf_tensor *t = &g->tensor[i];
        const uint8_t *p = iwp_gguf_tensor_data(g, t);
        if (iwp_gguf_find_tensor(g, t->name) != t) abort();
        if (p < data || p + t->size > data + size) abort();
        for (uint64_t k = 0; k < t->size; k++) sink ^= p[k];
        if (iwp_type_bytes(t->type, (uint64_t)iwp_gguf_tensor_elements(t)) != t->size) abort();
        bytes += t->size;
    }
    if (bytes > size) abort();
    rc = iwp_gguf_check_vocab(g, &err);
    if (rc < 0 && (!err.msg[0] || err.code != rc)) abort();
    iwp_gguf_free(g);
    return 0;
}
