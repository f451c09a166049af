/* Exact activations: see act.h. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "model/act.h"

static const char *const names[] = {"gelu_tanh", "gelu_quick", "gelu_erf", "silu"};

int iwp_act_find(const char *name, iwp_err *err) {
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], name) == 0) return i;
    return iwp_err_set(err, IWP_ENOTSUP, "activation '%.40s' is not supported", name);
}

/* exp to about one unit in the last place, without a call, so that loops over it become vectors:
 * 2^k times a polynomial of the rest, |rest| <= ln2 / 2. */
static inline float exp_fast(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float k = x * 1.44269504f + 12582912.0f; /* rounds to an integer in the low mantissa bits */
    uint32_t bits;
    memcpy(&bits, &k, 4);
    k -= 12582912.0f;
    float r = x - k * 0.693359375f + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t scale = (bits << 23) + 0x3f800000u;
    float s;
    memcpy(&s, &scale, 4);
    return p * s;
}

/* x * sigmoid(z): all but the erf form are this. */
static inline float gate(float x, float z) { return x / (1.0f + exp_fast(-z)); }

void iwp_act_apply(enum iwp_act act, float *x, size_t n) {
    switch (act) {
    case IWP_ACT_GELU_TANH: /* 0.5 x (1 + tanh u) = x sigmoid(2u) */
        for (size_t i = 0; i < n; i++)
            x[i] = gate(x[i], 1.5957691216f * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
        break;
    case IWP_ACT_GELU_QUICK:
        for (size_t i = 0; i < n; i++) x[i] = gate(x[i], 1.702f * x[i]);
        break;
    case IWP_ACT_GELU_ERF:
        for (size_t i = 0; i < n; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
        break;
    case IWP_ACT_SILU:
        for (size_t i = 0; i < n; i++) x[i] = gate(x[i], x[i]);
        break;
    }
}

static void run(struct ggml_tensor *y, const struct ggml_tensor *x, int ith, int nth, void *user) {
    enum iwp_act act = (enum iwp_act)(intptr_t)user;
    size_t n = (size_t)ggml_nelements(x), per = (n + (size_t)nth - 1) / (size_t)nth;
    per = (per + 15) & ~(size_t)15;
    size_t from = per * (size_t)ith, to = from + per < n ? from + per : n;
    if (from >= to) return;
    float *out = (float *)y->data + from;
    if (y->data != x->data) memcpy(out, (const float *)x->data + from, (to - from) * sizeof *out);
    iwp_act_apply(act, out, to - from);
}

struct ggml_tensor *iwp_act_build(struct ggml_context *ctx, enum iwp_act act,
                                  struct ggml_tensor *x) {
    return ggml_map_custom1_inplace(ctx, x, run, GGML_N_TASKS_MAX, (void *)(intptr_t)act);
}
