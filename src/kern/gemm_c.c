/* The reference: the 32 × 32 product as it is written down; see gemm.h. */
#include "kern/gemm_bf16.h"

#include "kern/gemm_body.h"
#include "kern/gemm_read_amx.h"

#include "kern/gemm_few.h"

#include "kern/gemm_bulk.h"

static float widen(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void tile(float *c, const uint16_t *a, const uint16_t *b, int32_t n_k32, bool add,
                 const void *next) {
    (void)next;
    for (int r = 0; r < 32; r++)
        for (int j = 0; j < 32; j++) {
            float s = add ? c[r * 32 + j] : 0;
            for (int32_t k = 0; k < n_k32 * 32; k++) {
                const size_t block = (size_t)(k / 32) * BLOCK;
                const int t = k % 32;
                s += widen(a[block + (size_t)(r * 32 + t)]) *
                     widen(b[block + (size_t)(j / 16 * 512 + t / 2 * 32 + j % 16 * 2 + t % 2)]);
            }
            c[r * 32 + j] = s;
        }
}

static void tile_split(float *c, const uint16_t *a, const uint16_t *b, struct rests lo,
                       int32_t n_k32, bool add, const char *next) {
    tile(c, a, b, n_k32, add, next);
    tile(c, a + lo.rows, b, n_k32, true, NULL);
    if (lo.cols) tile(c, a, b + lo.cols, n_k32, true, NULL);
}

void iwp_gemm_init_c(struct iwp_gemm *g) { *g = table("c"); }
