/* Picks the path once, says how much scratch it takes, joins pieces; see attn.h. */
#include "kern/attn.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "kern/attn_sizes.h"
#include "kern/cpu.h"

enum { N_PATH = 5 };
static struct iwp_attn_path tables[N_PATH];
static bool have[N_PATH], allowed[N_PATH];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init(void) {
    have[0] = allowed[0] = true;
    iwp_attn_init_c(&tables[0]);
#if defined(__x86_64__)
    const unsigned all = iwp_cpu_features_all(), now = iwp_cpu_features();
    const unsigned vnni = IWP_CPU_AVX512 | IWP_CPU_VNNI,
                   amx = vnni | IWP_CPU_AMX_BF16 | IWP_CPU_BF16,
                   need[N_PATH] = {0, IWP_CPU_AVX2, IWP_CPU_AVX512, vnni, amx};
    iwp_attn_init_avx2(&tables[1]);
    iwp_attn_init_avx512(&tables[2]);
    iwp_attn_init_vnni(&tables[3]);
    iwp_attn_init_amx(&tables[4]);
    for (int i = 1; i < N_PATH; i++) {
        have[i] = (all & need[i]) == need[i];
        allowed[i] = have[i] && (now & need[i]) == need[i];
    }
#endif
}

const struct iwp_attn_path *iwp_attn_get(void) {
    pthread_once(&once, init);
    for (int i = N_PATH - 1; i > 0; i--)
        if (allowed[i]) return &tables[i];
    return NULL;
}

const struct iwp_attn_path *iwp_attn_path(const char *name) {
    pthread_once(&once, init);
    for (int i = 0; i < N_PATH; i++)
        if (have[i] && strcmp(tables[i].name, name) == 0) return &tables[i];
    return NULL;
}

size_t iwp_attn_scratch(const struct iwp_attn *op, int32_t n) {
    const size_t wide = iwp_attn_up((size_t)op->d), heads = (size_t)op->n_head;
    if (n == 0) /* queries, logits of up to twice as many heads (LANES), unpacked rows */
        return (heads * (wide + 2 * IWP_ATTN_CHUNK) + IWP_ATTN_STEP * wide) * sizeof(float);
    return (2 * iwp_attn_up((size_t)n) * (wide + 2) + /* queries, results; maxima, sums, limits */
            2 * IWP_ATTN_KEYS * wide +                /* keys and values */
            2 * IWP_ATTN_KEYS * IWP_ATTN_TILE +       /* scores, weights */
            IWP_ATTN_STEP * wide) *                   /* unpacked rows */
           sizeof(float);
}

void iwp_attn_join(const struct iwp_attn *op, int32_t kv_head, const float *part) {
    const int32_t heads = op->n_head / op->n_head_kv, n = iwp_attn_chunks(op->n_kv), d = op->d;
    const size_t stride = iwp_attn_part_stride(d), size = iwp_attn_part_size(op);
    for (int32_t h = 0; h < heads; h++) {
        const float *p = part + (size_t)h * stride;
        float *y = op->out + (int64_t)(kv_head * heads + h) * d;
        float top = -INFINITY, total = 0;
        for (int32_t c = 0; c < n; c++) top = fmaxf(top, p[(size_t)c * size + (size_t)d]);
        memset(y, 0, (size_t)d * sizeof *y);
        for (int32_t c = 0; c < n; c++) {
            const float *x = p + (size_t)c * size, f = exp2f(x[d] - top);
            total += f * x[d + 1];
            for (int32_t i = 0; i < d; i++) y[i] += f * x[i];
        }
        for (int32_t i = 0; i < d; i++) y[i] /= total;
    }
}
