/* AVX2 with FMA: 4 rows × 16 columns are 8 registers of sums.  See gemm.h. */
#if defined(__x86_64__)
enum { TILE_ROWS = 4, TILE_VECS = 1 };
#include "kern/gemm_body.h"

#include "kern/gemm_plain.h"

void iwp_gemm_init_avx2(struct iwp_gemm *g) {
    *g = (struct iwp_gemm){"avx2",       tile,         pack_cols, linear_tiles, mlp_tiles,
                           attend_tiles, pack_rows_at, NULL,      NULL};
}
#else
typedef int iwp_gemm_avx2_empty;
#endif
