/* Typed access to the pairs and tensors of an open GGUF: see gguf.h.  A value of the wrong kind or out
 * of range is an error that names file and key, never a silent default. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "io/gguf.h"

static const char *file_of(const struct iwp_gguf *g) {
    return g->n_part && g->part[0].path ? g->part[0].path : "GGUF";
}

static uint64_t bits(const struct iwp_gguf_kv *kv, uint64_t i, int n) {
    const uint8_t *p = kv->data + i * (uint64_t)n;
    uint64_t v = 0;
    for (int k = n - 1; k >= 0; k--) v = v << 8 | p[k];
    return v;
}

int64_t iwp_gguf_value_i64(const struct iwp_gguf_kv *kv, uint64_t i) {
    if (i >= kv->n) return 0;
    switch (kv->elem) {
    case IWP_GGUF_U8:
    case IWP_GGUF_BOOL: return kv->data[i];
    case IWP_GGUF_I8: return (int8_t)kv->data[i];
    case IWP_GGUF_U16: return (int64_t)bits(kv, i, 2);
    case IWP_GGUF_I16: return (int16_t)bits(kv, i, 2);
    case IWP_GGUF_U32: return (int64_t)bits(kv, i, 4);
    case IWP_GGUF_I32: return (int32_t)bits(kv, i, 4);
    case IWP_GGUF_U64: {
        uint64_t v = bits(kv, i, 8);
        return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
    case IWP_GGUF_I64: return (int64_t)bits(kv, i, 8);
    default: return 0;
    }
}

double iwp_gguf_value_f64(const struct iwp_gguf_kv *kv, uint64_t i) {
    if (i >= kv->n) return 0;
    if (kv->elem == IWP_GGUF_F32) {
        uint32_t b = (uint32_t)bits(kv, i, 4);
        float f;
        memcpy(&f, &b, 4);
        return (double)f;
    }
    if (kv->elem == IWP_GGUF_F64) {
        uint64_t b = bits(kv, i, 8);
        double f;
        memcpy(&f, &b, 8);
        return f;
    }
    return (double)iwp_gguf_value_i64(kv, i);
}

static bool is_integer(uint32_t kind) {
    return kind < IWP_GGUF_F32 || kind == IWP_GGUF_U64 || kind == IWP_GGUF_I64;
}

static bool is_number(uint32_t kind) {
    return is_integer(kind) || kind == IWP_GGUF_F32 || kind == IWP_GGUF_F64;
}

static int missing(const struct iwp_gguf *g, const char *key, iwp_err *err) {
    return iwp_err_set(err, IWP_EMISSING, "%s: key %s is missing", file_of(g), key);
}

static int wrong(const struct iwp_gguf *g, const struct iwp_gguf_kv *kv, const char *want,
                 iwp_err *err) {
    return iwp_err_set(err, IWP_EFORMAT, "%s: key %s holds %s%s, expected %s", file_of(g), kv->key,
                       kv->kind == IWP_GGUF_ARRAY ? "an array of " : "",
                       iwp_gguf_kind_name(kv->elem), want);
}

int iwp_gguf_opt_i64(const struct iwp_gguf *g, const char *key, int64_t fallback, int64_t *out,
                     iwp_err *err) {
    const struct iwp_gguf_kv *kv = iwp_gguf_find(g, key);
    *out = fallback;
    if (!kv) return 0;
    if (!is_integer(kv->kind)) return wrong(g, kv, "an integer", err);
    *out = iwp_gguf_value_i64(kv, 0);
    return 0;
}

int iwp_gguf_get_i64(const struct iwp_gguf *g, const char *key, int64_t *out, iwp_err *err) {
    if (!iwp_gguf_find(g, key)) return missing(g, key, err);
    return iwp_gguf_opt_i64(g, key, 0, out, err);
}

int iwp_gguf_opt_u32(const struct iwp_gguf *g, const char *key, uint32_t fallback, uint32_t *out,
                     iwp_err *err) {
    int64_t v;
    *out = fallback;
    IWP_TRY(iwp_gguf_opt_i64(g, key, fallback, &v, err));
    IWP_REQUIRE(v >= 0 && v <= UINT32_MAX, err, IWP_EFORMAT, "%s: key %s is %" PRId64, file_of(g),
                key, v);
    *out = (uint32_t)v;
    return 0;
}

int iwp_gguf_get_u32(const struct iwp_gguf *g, const char *key, uint32_t *out, iwp_err *err) {
    if (!iwp_gguf_find(g, key)) return missing(g, key, err);
    return iwp_gguf_opt_u32(g, key, 0, out, err);
}

int iwp_gguf_opt_f32(const struct iwp_gguf *g, const char *key, float fallback, float *out,
                     iwp_err *err) {
    const struct iwp_gguf_kv *kv = iwp_gguf_find(g, key);
    *out = fallback;
    if (!kv) return 0;
    if (!is_number(kv->kind)) return wrong(g, kv, "a number", err);
    double v = iwp_gguf_value_f64(kv, 0);
    IWP_REQUIRE(isfinite(v) && fabs(v) <= 3e38, err, IWP_EFORMAT, "%s: key %s is not finite",
                file_of(g), key);
    *out = (float)v;
    return 0;
}

int iwp_gguf_get_f32(const struct iwp_gguf *g, const char *key, float *out, iwp_err *err) {
    if (!iwp_gguf_find(g, key)) return missing(g, key, err);
    return iwp_gguf_opt_f32(g, key, 0, out, err);
}

int iwp_gguf_opt_bool(const struct iwp_gguf *g, const char *key, bool fallback, bool *out,
                      iwp_err *err) {
    const struct iwp_gguf_kv *kv = iwp_gguf_find(g, key);
    *out = fallback;
    if (!kv) return 0;
    if (kv->kind != IWP_GGUF_BOOL) return wrong(g, kv, "a truth value", err);
    *out = kv->data[0] != 0;
    return 0;
}

int iwp_gguf_opt_str(const struct iwp_gguf *g, const char *key, const char *fallback,
                     const char **out, iwp_err *err) {
    const struct iwp_gguf_kv *kv = iwp_gguf_find(g, key);
    *out = fallback;
    if (!kv) return 0;
    if (kv->kind != IWP_GGUF_STR) return wrong(g, kv, "text", err);
    IWP_REQUIRE(strlen(kv->text) == kv->size - 8, err, IWP_EFORMAT, "%s: key %s holds a zero byte",
                file_of(g), key);
    *out = kv->text;
    return 0;
}

int iwp_gguf_get_str(const struct iwp_gguf *g, const char *key, const char **out, iwp_err *err) {
    if (!iwp_gguf_find(g, key)) return missing(g, key, err);
    return iwp_gguf_opt_str(g, key, NULL, out, err);
}

static int array_of(const struct iwp_gguf *g, const char *key, int cap,
                    const struct iwp_gguf_kv **out, iwp_err *err) {
    const struct iwp_gguf_kv *kv = iwp_gguf_find(g, key);
    *out = kv;
    if (!kv) return 0;
    if (kv->kind != IWP_GGUF_ARRAY || !is_number(kv->elem))
        return wrong(g, kv, "an array of numbers", err);
    IWP_REQUIRE(kv->n <= (uint64_t)cap, err, IWP_EFORMAT,
                "%s: key %s has %" PRIu64 " values, the limit is %d", file_of(g), key, kv->n, cap);
    return (int)kv->n;
}

int iwp_gguf_array_i32(const struct iwp_gguf *g, const char *key, int32_t *out, int cap,
                       iwp_err *err) {
    const struct iwp_gguf_kv *kv;
    int n = array_of(g, key, cap, &kv, err);
    for (int i = 0; i < n; i++) {
        int64_t v = iwp_gguf_value_i64(kv, (uint64_t)i);
        IWP_REQUIRE(is_integer(kv->elem) && v >= INT32_MIN && v <= INT32_MAX, err, IWP_EFORMAT,
                    "%s: key %s: value %d is not a 32-bit integer", file_of(g), key, i);
        out[i] = (int32_t)v;
    }
    return n;
}

int iwp_gguf_array_f32(const struct iwp_gguf *g, const char *key, float *out, int cap,
                       iwp_err *err) {
    const struct iwp_gguf_kv *kv;
    int n = array_of(g, key, cap, &kv, err);
    for (int i = 0; i < n; i++) {
        double v = iwp_gguf_value_f64(kv, (uint64_t)i);
        IWP_REQUIRE(isfinite(v) && fabs(v) <= 3e38, err, IWP_EFORMAT,
                    "%s: key %s: value %d is not finite", file_of(g), key, i);
        out[i] = (float)v;
    }
    return n;
}

struct iwp_gguf_iter iwp_gguf_iterate(const struct iwp_gguf_kv *kv) {
    struct iwp_gguf_iter it = {kv->data, kv->data + kv->size, kv->elem == IWP_GGUF_STR ? kv->n : 0};
    return it;
}

bool iwp_gguf_next(struct iwp_gguf_iter *it, struct iwp_gguf_str *s) {
    if (!it->left) return false;
    uint64_t n = 0;
    for (int k = 7; k >= 0; k--) n = n << 8 | it->p[k];
    s->p = (const char *)it->p + 8;
    s->n = (size_t)n;
    it->p += 8 + n;
    it->left--;
    return true;
}

int64_t iwp_gguf_tensor_elements(const struct iwp_gguf_tensor *t) {
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

int iwp_gguf_need_tensor(const struct iwp_gguf *g, const char *name, int n_dims,
                         const int64_t *want, const struct iwp_gguf_tensor **out, iwp_err *err) {
    const struct iwp_gguf_tensor *t = iwp_gguf_find_tensor(g, name);
    *out = t;
    IWP_REQUIRE(t, err, IWP_EMISSING, "%s: tensor %s is missing", file_of(g), name);
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        int64_t w = i < n_dims ? want[i] : 1;
        if (w >= 0 && t->ne[i] != w) ok = false;
    }
    IWP_REQUIRE(ok, err, IWP_EFORMAT,
                "%s: tensor %s has shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                "], expected [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]",
                file_of(g), name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], want[0],
                n_dims > 1 ? want[1] : 1, n_dims > 2 ? want[2] : 1, n_dims > 3 ? want[3] : 1);
    return 0;
}
