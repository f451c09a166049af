/* AMX: 2 × 2 tiles of sums, two of rows, two of columns; see gemm.h. */
#if defined(__x86_64__)
#include "kern/gemm_bf16.h"

#include "kern/gemm_body.h"
#include "kern/gemm_read_amx.h"

#include "kern/gemm_few.h"

#include "kern/gemm_bulk.h"
#include "kern/tiles.h"

static void tile(float *c, const uint16_t *a, const uint16_t *b, int32_t n_k32, bool add,
                 const void *next) {
    iwp_tiles_load(c, add);
    const char *ahead = next ? next : (const char *)b; /* what is there already costs little */
    const size_t step = next ? 256 : 0;
    for (int32_t k = 0; k < n_k32; k++, a += BLOCK, b += BLOCK, ahead += step) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _mm_prefetch(ahead, _MM_HINT_T1);
        _mm_prefetch(ahead + 64, _MM_HINT_T1);
        _tile_loadd(7, b + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _mm_prefetch(ahead + 128, _MM_HINT_T1);
        _mm_prefetch(ahead + 192, _MM_HINT_T1);
        _tile_loadd(5, a + 512, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    iwp_tiles_store(c);
}

/* Each block of rows and columns is loaded once for all products that it is a factor of. */
static void tile_split(float *c, const uint16_t *a, const uint16_t *b, struct rests lo,
                       int32_t n_k32, bool add, const char *next) {
    iwp_tiles_load(c, add);
    const char *ahead = next ? next : (const char *)b;
    const size_t step = next ? 512 : 0;
    for (int32_t k = 0; k < n_k32; k++, a += BLOCK, b += BLOCK, ahead += step) {
        _tile_loadd(4, a + lo.rows, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _mm_prefetch(ahead, _MM_HINT_T1);
        _mm_prefetch(ahead + 64, _MM_HINT_T1);
        _tile_loadd(7, b + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _mm_prefetch(ahead + 128, _MM_HINT_T1);
        _mm_prefetch(ahead + 192, _MM_HINT_T1);
        _tile_loadd(5, a + lo.rows + 512, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _mm_prefetch(ahead + 256, _MM_HINT_T1);
        _mm_prefetch(ahead + 320, _MM_HINT_T1);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 512, 64);
        _mm_prefetch(ahead + 384, _MM_HINT_T1);
        _mm_prefetch(ahead + 448, _MM_HINT_T1);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        if (!lo.cols) continue;
        _tile_loadd(6, b + lo.cols, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + lo.cols + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    iwp_tiles_store(c);
}

static void tile_once(float *c, const uint16_t *a, const uint16_t *b, int32_t n_k32, bool add,
                      const void *next) {
    WITH_TILES(tile(c, a, b, n_k32, add, next));
}
static void linear(const struct iwp_gemm_linear *op, int32_t first, int32_t n, void *scratch) {
    WITH_TILES(linear_tiles(op, first, n, scratch));
}
static void mlp(const struct iwp_gemm_mlp *op, int32_t first, int32_t n, void *scratch) {
    WITH_TILES(mlp_tiles(op, first, n, scratch));
}
static void attend(const struct iwp_gemm_attend *op, void *scratch) {
    WITH_TILES(attend_tiles(op, scratch));
}
static void bulk(const struct iwp_gemm_bulk *op, int32_t col, int32_t n_cols, void *scratch) {
    WITH_TILES(bulk_tiles(op, col, n_cols, scratch));
}

void iwp_gemm_init_amx(struct iwp_gemm *g) {
    *g = table("amx");
    g->tile = tile_once;
    g->linear = linear;
    g->mlp = mlp;
    g->attend = attend;
    g->bulk = bulk;
}
#else
typedef int iwp_gemm_amx_empty;
#endif
