/* AVX-512: 8 rows × 32 queries are 16 registers of sums.  See attn.h. */
#if defined(__x86_64__)
enum { TILE_ROWS = 8, TILE_VECS = 2 };
#include "kern/attn_body.h"

#include "kern/attn_one.h"
#include "kern/attn_plain.h"

void iwp_attn_init_avx512(struct iwp_attn_path *p) {
    *p = (struct iwp_attn_path){"avx512", many_tiles, one_piece};
}
#else
typedef int iwp_attn_avx512_empty;
#endif
