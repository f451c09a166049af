/* The reference: attention as it is written down, one query after the other; see attn.h. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kern/attn.h"

static float value(const struct iwp_attn_rows *r, int32_t head, int32_t key, int32_t i) {
    const uint8_t *p = (const uint8_t *)r->data + (size_t)key * r->row + (size_t)head * r->head;
    float f;
    uint16_t h;
    if (r->type == IWP_ATTN_F32) {
        memcpy(&f, p + 4 * (size_t)i, sizeof f);
        return f;
    }
    if (r->type == IWP_ATTN_F16) {
        memcpy(&h, p + 2 * (size_t)i, sizeof h);
        return iwp_f16_to_f32(h);
    }
    p += 34 * (size_t)(i / 32); /* q8_0: a scale and 32 numbers */
    memcpy(&h, p, sizeof h);
    return iwp_f16_to_f32(h) * (float)(int8_t)p[2 + i % 32];
}

static float logit(const struct iwp_attn *op, const float *q, int32_t kv_head, int32_t key) {
    float s = 0;
    for (int32_t i = 0; i < op->d; i++) s += q[i] * value(&op->k, kv_head, key, i);
    return s * op->scale + (op->bias ? op->bias[key] : 0);
}

/* y [d] = sum of weighted values of the keys [from, to), top = largest logit, total = sum of weights. */
static void attend(const struct iwp_attn *op, const float *q, int32_t kv_head, int32_t from,
                   int32_t to, float *y, float *top, float *total) {
    *top = -INFINITY;
    *total = 0;
    memset(y, 0, (size_t)op->d * sizeof *y);
    for (int32_t key = from; key < to; key++) *top = fmaxf(*top, logit(op, q, kv_head, key));
    for (int32_t key = from; key < to; key++) {
        const float w = expf(logit(op, q, kv_head, key) - *top);
        *total += w;
        for (int32_t i = 0; i < op->d; i++) y[i] += w * value(&op->v, kv_head, key, i);
    }
}

static void many(const struct iwp_attn *op, int32_t kv_head, int32_t first, int32_t n,
                 void *scratch) {
    (void)scratch;
    const int32_t heads = op->n_head / op->n_head_kv;
    for (int32_t i = first; i < first + n; i++) {
        const int32_t row = i / heads, head = kv_head * heads + i % heads;
        float *y = op->out + row * op->out_row + (int64_t)head * op->d, top, total;
        attend(op, op->q + row * op->q_row + head * op->q_head, kv_head, 0,
               op->n_kv - op->n + row + 1, y, &top, &total);
        for (int32_t k = 0; k < op->d; k++) y[k] /= total;
    }
}

static void one(const struct iwp_attn *op, int32_t kv_head, int32_t n, int32_t chunk, float *part,
                size_t stride, void *scratch) {
    (void)scratch;
    const int32_t heads = op->n_head / op->n_head_kv, from = chunk * IWP_ATTN_CHUNK;
    const int32_t to = op->n_kv - from < IWP_ATTN_CHUNK ? op->n_kv : from + IWP_ATTN_CHUNK;
    for (int32_t i = 0; i < n * heads; i++) {
        float *y =
            part + (size_t)(i / heads) * stride + (size_t)(i % heads) * iwp_attn_part_stride(op->d);
        attend(op, op->q + (kv_head * heads + i) * op->q_head, kv_head + i / heads, from, to, y,
               &y[op->d], &y[op->d + 1]);
        y[op->d] *= 1.44269504f;
    }
}

void iwp_attn_init_c(struct iwp_attn_path *p) { *p = (struct iwp_attn_path){"c", many, one}; }
