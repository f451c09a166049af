/* AVX2 with FMA: 4 rows × 16 queries are 8 registers of sums.  See attn.h. */
#if defined(__x86_64__)
enum { TILE_ROWS = 4, TILE_VECS = 1 };
#include "kern/attn_body.h"

#include "kern/attn_one.h"
#include "kern/attn_plain.h"

void iwp_attn_init_avx2(struct iwp_attn_path *p) {
    *p = (struct iwp_attn_path){"avx2", many_tiles, one_piece};
}
#else
typedef int iwp_attn_avx2_empty;
#endif
