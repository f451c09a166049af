/* AVX-512 with VNNI: attn_avx512.c, and a single row on a q8_0 cache by integers.  See attn.h. */
#if defined(__x86_64__)
enum { TILE_ROWS = 8, TILE_VECS = 2 };
#include "kern/attn_body.h"

#include "kern/attn_one.h"

#include "kern/attn_bytes.h"
#include "kern/attn_plain.h"

void iwp_attn_init_vnni(struct iwp_attn_path *p) {
    *p = (struct iwp_attn_path){"vnni", many_tiles, one_piece_vnni};
}
#else
typedef int iwp_attn_vnni_empty;
#endif
