/* AVX2: 4 rows × 16 columns are 8 registers of sums.  See gemm.h. */
#if defined(__x86_64__)
enum { TILE_ROWS = 4, TILE_VECS = 1 };
#include "kern/gemm_int16.h"

#include "kern/gemm_body.h"
#include "kern/gemm_read_int16.h"

#include "kern/gemm_few_file.h"

#include "kern/gemm_few.h"

#include "kern/gemm_bulk.h"
#include "kern/gemm_dot.h"
#include "kern/gemm_dot8.h"

void iwp_gemm_init_avx2(struct iwp_gemm *g) { *g = table("avx2"); }
#else
typedef int iwp_gemm_avx2_empty;
#endif
