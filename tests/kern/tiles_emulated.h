/* The tile instructions of kern/tiles.h and its users in AVX512-BF16 and plain C, included before them
 * (IWP_EMULATE_TILES): AMX paths run, and are tested, on CPUs without AMX.  As fast as that CPU's own bf16 products.
 *
 * Tiles that are not as iwp_tiles_whole says end the program: so a product outside WITH_TILES is noticed. */
#ifndef IWP_TESTS_TILES_EMULATED_H
#define IWP_TESTS_TILES_EMULATED_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
    /* palette, start, 14 zeros, 16 × 2 bytes of a row, 16 × rows; all 0: none */
    uint8_t config[64];
    __m512i row[8][16];
} emulated;

static inline void emulated_load_config(const void *p) {
    memcpy(emulated.config, p, sizeof emulated.config);
    memset(emulated.row, 0, sizeof emulated.row);
}
static inline void emulated_store_config(void *p) {
    memcpy(p, emulated.config, sizeof emulated.config);
}

static inline __m512i *emulated_tile(int t) {
    const uint8_t *c = emulated.config;
    if (c[0] != 1 || c[16 + 2 * t] != 64 || c[17 + 2 * t] || c[48 + t] != 16) abort();
    return emulated.row[t];
}

static inline void emulated_zero(int t) { memset(emulated_tile(t), 0, 16 * sizeof(__m512i)); }

static inline void emulated_load(int t, const void *p, size_t stride) {
    __m512i *to = emulated_tile(t);
    for (size_t i = 0; i < 16; i++) to[i] = _mm512_loadu_si512((const char *)p + i * stride);
}

static inline void emulated_store(int t, void *p, size_t stride) {
    const __m512i *from = emulated_tile(t);
    for (size_t i = 0; i < 16; i++) _mm512_storeu_si512((char *)p + i * stride, from[i]);
}

static inline void emulated_bf16(int c, int a, int b) {
    __m512i *to = emulated_tile(c);
    const __m512i *y = emulated_tile(b);
    const char *x = (const char *)emulated_tile(a);
    for (int i = 0; i < 16; i++, x += 64) {
        __m512 sum = _mm512_castsi512_ps(to[i]);
        for (int k = 0; k < 16; k++) {
            int pair;
            memcpy(&pair, x + 4 * k, sizeof pair);
            sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)y[k]);
        }
        to[i] = _mm512_castps_si512(sum);
    }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig  emulated_load_config
#define _tile_storeconfig emulated_store_config
#define _tile_zero        emulated_zero
#define _tile_loadd       emulated_load
#define _tile_stored      emulated_store
#define _tile_dpbf16ps    emulated_bf16

#endif
