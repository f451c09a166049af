/* Picks the path once and says how much scratch the operations take; see gemm.h. */
#include "kern/gemm.h"

#include <pthread.h>
#include <string.h>

#include "kern/cpu.h"
#include "kern/gemm_sizes.h"

enum { N_PATH = 7, N_PLAIN = 2 };
static struct iwp_gemm tables[N_PATH];
static bool have[N_PATH], allowed[N_PATH];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init(void) {
    have[0] = have[1] = true;
    iwp_gemm_init_c(&tables[0]);
    iwp_gemm_init_c16(&tables[1]);
#if defined(__x86_64__)
    const unsigned all = iwp_cpu_features_all(), now = iwp_cpu_features();
    const unsigned need[N_PATH] = {0,
                                   0,
                                   IWP_CPU_AVX2,
                                   IWP_CPU_AVXVNNI,
                                   IWP_CPU_AVX512,
                                   IWP_CPU_VNNI,
                                   IWP_CPU_AMX_BF16 | IWP_CPU_BF16 | IWP_CPU_VNNI};
    iwp_gemm_init_avx2(&tables[2]);
    iwp_gemm_init_avxvnni(&tables[3]);
    iwp_gemm_init_avx512(&tables[4]);
    iwp_gemm_init_vnni(&tables[5]);
    iwp_gemm_init_amx(&tables[6]);
    for (int i = N_PLAIN; i < N_PATH; i++) {
        have[i] = (all & need[i]) == need[i];
        allowed[i] = have[i] && (now & need[i]) == need[i];
    }
#endif
}

const struct iwp_gemm *iwp_gemm_get(void) {
    pthread_once(&once, init);
    for (int i = N_PATH - 1; i >= N_PLAIN; i--)
        if (allowed[i]) return &tables[i];
    return NULL;
}

const struct iwp_gemm *iwp_gemm_path(const char *name) {
    pthread_once(&once, init);
    for (int i = 0; i < N_PATH; i++)
        if (have[i] && strcmp(tables[i].name, name) == 0) return &tables[i];
    return NULL;
}

float iwp_gemm_number(const struct iwp_gemm *g, const uint16_t *block, int32_t at, int32_t row) {
    const uint32_t wide = (uint32_t)block[at] << 16;
    float f;
    if (!g->fine) {
        memcpy(&f, &wide, sizeof f);
        return f;
    }
    memcpy(&f, block + IWP_GEMM_SIDE * IWP_GEMM_SIDE + 2 * row, sizeof f);
    return f * (float)(int16_t)block[at];
}

float iwp_gemm_weight(const struct iwp_gemm *g, enum iwp_gemm_form form, const void *panels,
                      int32_t k_all, int32_t j, int32_t k) {
    const size_t block = (size_t)(j / 32) * (size_t)(k_all / 32) + (size_t)(k / 32);
    const int32_t half = j % 32 / 16, c = j % 16, i = k % 32;
    if (!(g->bytes & 1u << form))
        return iwp_gemm_number(g, (const uint16_t *)panels + block * (size_t)g->block,
                               half * 512 + i / 2 * 32 + c * 2 + i % 2, j % 32);
    const struct iwp_gemm_cols8 *b = (const struct iwp_gemm_cols8 *)panels + block;
    const float q = (float)b->q[half][i / 4][c][i % 4], s = b->scale[j % 32];
    switch (form) {
    case IWP_GEMM_Q4_0: return (q - 8) * s;
    case IWP_GEMM_FILE_Q3_K:
    case IWP_GEMM_FILE_Q6_K: return (q - 32) * (i < 16 ? s : b->second[j % 32]);
    default: return q * s - b->least[j % 32];
    }
}

size_t iwp_gemm_rows_size(const struct iwp_gemm *g, enum iwp_gemm_kind kind, int32_t n, int32_t k) {
    const size_t blocks = iwp_gemm_up((size_t)n) / 32 * (iwp_gemm_up((size_t)k) / 32);
    if (kind == IWP_GEMM_BYTES) return blocks * sizeof(struct iwp_gemm_rows8);
    return blocks * (size_t)g->block * sizeof(uint16_t) << (kind == IWP_GEMM_SPLIT);
}

/* Beside rows of k: sums that wait while the rest of k comes, and a part of a panel whose columns are made
 * from f16 ones. */
static size_t work_size(const struct iwp_gemm *g, int32_t k, bool split, int32_t n) {
    const struct iwp_gemm_parts cut = iwp_gemm_parts(k, split);
    const size_t made = split ? 2 * iwp_gemm_size(g, 32, (size_t)cut.step * 32) : 0;
    return (size_t)cut.group * iwp_gemm_up((size_t)n) * 32 * sizeof(float) +
           made * sizeof(uint16_t);
}

size_t iwp_gemm_linear_scratch(const struct iwp_gemm *g, const struct iwp_gemm_linear *op,
                               int32_t n) {
    const struct iwp_gemm_mat *m = &op->mat[0];
    const size_t values = iwp_gemm_size(g, (size_t)n, (size_t)m->k);
    return (values << m->split) * sizeof(uint16_t) + work_size(g, m->k, m->split, n);
}

size_t iwp_gemm_mlp_scratch(const struct iwp_gemm *g, const struct iwp_gemm_mlp *op, int32_t n) {
    const struct iwp_gemm_mat *up = &op->up;
    size_t values =
        iwp_gemm_size(g, (size_t)n, (size_t)up->k) + iwp_gemm_size(g, (size_t)n, (size_t)up->m);
    if (up->split) values += iwp_gemm_size(g, 32, (size_t)up->k) * (op->gate.w ? 2 : 1);
    const size_t kept = g->run > 1 ? iwp_gemm_up((size_t)n) * 32 * (size_t)g->run : 0;
    return (values << up->split) * sizeof(uint16_t) + kept * sizeof(float) +
           work_size(g, op->down.k, op->down.split, n);
}

size_t iwp_gemm_attend_scratch(const struct iwp_gemm *g, int32_t n_k, int32_t d, int32_t d_v,
                               bool split) {
    const size_t wide = iwp_gemm_up((size_t)d), wide_v = iwp_gemm_up((size_t)d_v);
    const size_t packed = iwp_gemm_size(g, (size_t)n_k, wide + wide_v) + /* k and v */
                          iwp_gemm_size(g, IWP_GEMM_QUERIES, wide);      /* q */
    const size_t weights = 2 * iwp_gemm_size(g, IWP_GEMM_KEYS, 32);
    const size_t floats = IWP_GEMM_QUERIES * (wide_v + 3) + /* results; maxima, sums, factors */
                          32 * (2 * IWP_GEMM_KEYS + wide);  /* scores, rotated rows */
    return ((packed << split) + weights) * sizeof(uint16_t) + floats * sizeof(float);
}

size_t iwp_gemm_bulk_scratch(const struct iwp_gemm *g) {
    const size_t many = iwp_gemm_size(g, IWP_GEMM_COLS, IWP_GEMM_KC) * sizeof(uint16_t) +
                        IWP_GEMM_COLS * IWP_GEMM_ROWS * sizeof(float),
                 few = (size_t)IWP_GEMM_FEW_ROWS * (IWP_GEMM_FEW_K / 32) * IWP_GEMM_FEW_BLOCK;
    return many > few ? many : few;
}

struct iwp_gemm_tile_size iwp_gemm_tile_size(enum iwp_gemm_form form) {
    static const struct iwp_gemm_tile_size size[] = {
        [IWP_GEMM_Q4_0] = {32, 256 + 32},
        [IWP_GEMM_Q4_1] = {32, 256 + 2 * 32},
        [IWP_GEMM_Q8_0] = {32, 512 + 32 + 64}, /* sums of the columns at the end: not read here */
        [IWP_GEMM_Q4_K] = {256, 2048 + 2 * 128 + 2 * 32},
        [IWP_GEMM_Q5_K] = {256, 2048 + 512 + 2 * 128 + 2 * 32},
        [IWP_GEMM_Q6_K] = {256, 2048 + 1024 + 256 + 32},
    };
    return size[form];
}
