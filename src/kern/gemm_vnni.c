/* AVX-512 with a dot product: 8 rows × 32 columns are 16 registers of sums.  See gemm.h. */
#if defined(__x86_64__)
enum { TILE_ROWS = 8, TILE_VECS = 2 };
#include "kern/gemm_int16.h"

#include "kern/gemm_body.h"
#include "kern/gemm_read_int16.h"

#include "kern/gemm_few_file.h"

#include "kern/gemm_few.h"

#include "kern/gemm_bulk.h"
#include "kern/gemm_dot.h"
#include "kern/gemm_dot8.h"

void iwp_gemm_init_vnni(struct iwp_gemm *g) { *g = table("vnni"); }
#else
typedef int iwp_gemm_vnni_empty;
#endif
