/* Types and row chunks: see quant.h.  Quantisation is ggml's; without ggml only the float types are
 * there.  A chunk is cut into slices of whole rows that the pool's threads encode side by side, so the
 * result does not depend on their number. */
#define _DEFAULT_SOURCE /* madvise */
#include "convert/quant.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "base/half.h"
#ifdef IWP_HAVE_GGML
#include <ggml.h>
#endif

enum { CHUNK = 1 << 22 /* elements */, SLICES = 64 };

static bool ends(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static bool stays_f32(const char *name, int n_dims) {
    static const char *const parts[] = {
        "_norm", "norm_", "position_embd", "patch_embd",    "ffn_gate_inp",
        "ssm_",  "conv",  "rope_freqs",    "image_newline", "token_types"};
    if (n_dims < 2 || !ends(name, ".weight")) return true;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(name, parts[i])) return true;
    return false;
}

uint32_t iwp_plan_type(uint32_t want, const char *name, int n_dims, int64_t row, bool tied,
                       bool *fallback) {
    *fallback = false;
    if (stays_f32(name, n_dims)) return IWP_TYPE_F32;
    const bool small = want == IWP_TYPE_Q4_0 || want == IWP_TYPE_Q4_K;
    if (small &&
        (strcmp(name, "output.weight") == 0 || (tied && strcmp(name, "token_embd.weight") == 0)))
        want = IWP_TYPE_Q6_K;
    const uint32_t first = want;
    for (;;) {
        const struct iwp_type_info *t = iwp_type_info(want);
        if (row % t->block == 0) break;
        want = want == IWP_TYPE_Q4_K   ? IWP_TYPE_Q5_0
               : want == IWP_TYPE_Q6_K ? IWP_TYPE_Q8_0
                                       : IWP_TYPE_F16;
    }
    *fallback = want != first;
    return want;
}

uint32_t iwp_plan_file_type(uint32_t type) {
    switch (type) {
    case IWP_TYPE_F32: return 0;
    case IWP_TYPE_F16: return 1;
    case IWP_TYPE_Q4_0: return 2;
    case IWP_TYPE_Q8_0: return 7;
    case IWP_TYPE_Q4_K: return 14;
    case IWP_TYPE_BF16: return 32;
    default: return 1024;
    }
}

int iwp_convert_type(const char *name, iwp_err *err) {
    static const struct {
        const char *name;
        int type;
    } types[] = {{"f32", IWP_TYPE_F32},   {"f16", IWP_TYPE_F16},   {"bf16", IWP_TYPE_BF16},
                 {"q8_0", IWP_TYPE_Q8_0}, {"q4_0", IWP_TYPE_Q4_0}, {"q4_k", IWP_TYPE_Q4_K}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcasecmp(types[i].name, name) == 0) return types[i].type;
    return iwp_err_set(err, IWP_EINVAL, "--type %.40s: unknown (f32, f16, bf16, q8_0, q4_0, q4_k)",
                       name);
}

/* Elements [pos, pos + n) of the source as float. */
static int read_source(const struct iwp_source *s, int64_t pos, int64_t n, float *out,
                       iwp_err *err) {
    if (s->st) {
        while (n > 0) {
            const int64_t b = pos / s->block, in = pos % s->block,
                          m = n < s->block - in ? n : s->block - in;
            IWP_TRY(iwp_st_read_f32(s->st, s->first + b * s->stride + in, m, out, err));
            pos += m;
            out += m;
            n -= m;
        }
        return 0;
    }
    const struct iwp_type_info *ti = iwp_type_info(s->gt->type);
    const uint8_t *p =
        iwp_gguf_tensor_data(s->gguf, s->gt) + (uint64_t)(pos / ti->block) * ti->size;
    uint16_t h;
    switch (s->gt->type) {
    case IWP_TYPE_F32: memcpy(out, p, (size_t)n * 4); return 0;
    case IWP_TYPE_F16:
        for (int64_t i = 0; i < n; i++) memcpy(&h, p + 2 * i, 2), out[i] = iwp_f16_to_f32(h);
        return 0;
    case IWP_TYPE_BF16:
        for (int64_t i = 0; i < n; i++) memcpy(&h, p + 2 * i, 2), out[i] = iwp_bf16_to_f32(h);
        return 0;
    default: break;
    }
#ifdef IWP_HAVE_GGML
    const struct ggml_type_traits *tr = ggml_get_type_traits((enum ggml_type)s->gt->type);
    if (tr && tr->to_float && tr->is_quantized) {
        tr->to_float(
            p, out,
            n); /* blocks have 2-byte alignment at most and tensors lie at multiples of 32 */
        return 0;
    }
#endif
    return iwp_err_set(err, IWP_ENOTSUP, "tensor %s: values of type %s cannot be converted",
                       s->gt->name, ti->name);
}

static int encode(uint32_t type, const float *src, uint8_t *dst, int64_t rows, int64_t row,
                  const char *name, iwp_err *err) {
    const int64_t n = rows * row;
    uint16_t h;
    for (int64_t i = 0; i < n; i++)
        IWP_REQUIRE(src[i] - src[i] == 0, err, IWP_EFORMAT,
                    "tensor %s holds a value that is not finite", name);
    switch (type) {
    case IWP_TYPE_F32: memcpy(dst, src, (size_t)n * 4); return 0;
    case IWP_TYPE_F16:
        for (int64_t i = 0; i < n; i++) h = iwp_f32_to_f16(src[i]), memcpy(dst + 2 * i, &h, 2);
        return 0;
    case IWP_TYPE_BF16:
        for (int64_t i = 0; i < n; i++) h = iwp_f32_to_bf16(src[i]), memcpy(dst + 2 * i, &h, 2);
        return 0;
    default: break;
    }
#ifdef IWP_HAVE_GGML
    size_t got = ggml_quantize_chunk((enum ggml_type)type, src, dst, 0, rows, row, NULL);
    IWP_REQUIRE(got == iwp_type_bytes(type, (uint64_t)n), err, IWP_EINTERNAL,
                "tensor %s: quantisation failed", name);
    return 0;
#else
    return iwp_err_set(err, IWP_ENOTSUP, "tensor %s: this build has no quantisation (engine off)",
                       name);
#endif
}

struct chunk {
    const struct iwp_plan_tensor *t;
    struct iwp_copier *c;
    int64_t row0, rows, row;
    int32_t n_slice;
    int rc[SLICES];
    iwp_err err[SLICES];
};

static void run_slice(void *arg, int32_t i) {
    struct chunk *k = arg;
    const int64_t a = k->rows * i / k->n_slice, b = k->rows * (i + 1) / k->n_slice;
    float *f = k->c->f32 + a * k->row;
    uint8_t *out = k->c->out + iwp_type_bytes(k->t->type, (uint64_t)(a * k->row));
    k->rc[i] = 0;
    if (a == b) return;
    k->rc[i] = read_source(&k->t->src, (k->row0 + a) * k->row, (b - a) * k->row, f, &k->err[i]);
    if (k->rc[i] >= 0) k->rc[i] = encode(k->t->type, f, out, b - a, k->row, k->t->name, &k->err[i]);
}

/* Pages of the mapped input that are done with: they would count as our memory. */
static void forget(const uint8_t *p, size_t n) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
                    a = ((uintptr_t)p + page - 1) / page * page,
                    b = ((uintptr_t)p + n) / page * page;
    if (b > a) madvise((void *)a, b - a, MADV_DONTNEED);
}

static int copy_tensor(struct iwp_copier *c, struct iwp_gguf_writer *w,
                       const struct iwp_plan_tensor *t, iwp_err *err) {
    const int64_t row = t->ne[0], rows = t->ne[1] * t->ne[2] * t->ne[3];
    const bool same = t->src.gt && t->src.gt->type == t->type;
    const int64_t per = CHUNK / row ? CHUNK / row : 1;
    struct chunk *k = NULL;
    int rc = 0;
    /* a row longer than a chunk is rare (huge vectors): give it its own buffers */
    if (row > CHUNK) {
        float *f = realloc(c->f32, (size_t)row * 4);
        if (f) c->f32 = f;
        uint8_t *o = realloc(c->out, (size_t)row * 4);
        if (o) c->out = o;
        IWP_REQUIRE(f && o, err, IWP_ENOMEM, "tensor %s: out of memory", t->name);
    }
    k = malloc(sizeof *k);
    IWP_REQUIRE(k, err, IWP_ENOMEM, "tensor %s: out of memory", t->name);
    for (int64_t r = 0; r < rows; r += per) {
        const int64_t n = rows - r < per ? rows - r : per;
        if (c->params->cancelled && c->params->cancelled(c->params->cancel_ctx))
            IWP_FAIL(err, IWP_ECANCELLED, "interrupted, nothing was written");
        if (same) {
            const uint64_t at = iwp_type_bytes(t->type, (uint64_t)(r * row)),
                           m = iwp_type_bytes(t->type, (uint64_t)(n * row));
            IWP_TRY_GOTO(iwp_gguf_writer_data(w, iwp_gguf_tensor_data(t->src.gguf, t->src.gt) + at,
                                              (size_t)m, err));
        } else {
            k->t = t;
            k->c = c;
            k->row0 = r;
            k->rows = n;
            k->row = row;
            k->n_slice = n < SLICES ? (int32_t)n : SLICES;
            iwp_pool_run(c->pool, run_slice, k, k->n_slice);
            for (int32_t i = 0; i < k->n_slice; i++)
                if (k->rc[i] < 0) {
                    if (err) *err = k->err[i];
                    rc = k->rc[i];
                    goto fail;
                }
            IWP_TRY_GOTO(iwp_gguf_writer_data(
                w, c->out, (size_t)iwp_type_bytes(t->type, (uint64_t)(n * row)), err));
        }
        c->done += n * row;
        iwp_progress_set(&c->progress, c->done);
    }
    if (t->src.st)
        forget(t->src.st->data, t->src.st->bytes);
    else if (t->src.gguf->part[t->src.gt->part].path)
        forget(iwp_gguf_tensor_data(t->src.gguf, t->src.gt), (size_t)t->src.gt->size);
fail:
    free(k);
    return rc;
}

int iwp_copier_open(struct iwp_copier *c, const struct iwp_convert_params *p, iwp_err *err) {
    memset(c, 0, sizeof *c);
    c->params = p;
    IWP_TRY(iwp_pool_new(&c->pool, p->n_thread, err));
    c->f32 = malloc((size_t)CHUNK * 4);
    c->out = malloc((size_t)CHUNK * 4);
    if (!c->f32 || !c->out) {
        iwp_copier_close(c);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    return 0;
}

void iwp_copier_close(struct iwp_copier *c) {
    iwp_pool_free(c->pool);
    free(c->f32);
    free(c->out);
    memset(c, 0, sizeof *c);
}

int iwp_copier_run(struct iwp_copier *c, struct iwp_gguf_writer *w, const struct iwp_plan_tensor *t,
                   int n, iwp_err *err) {
    for (int i = 0; i < n; i++) IWP_TRY(copy_tensor(c, w, &t[i], err));
    return 0;
}
