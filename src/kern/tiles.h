/* AMX tiles, eight of 16 rows of 64 bytes.  Configurations belong to threads: ggml sets its own once per
 * thread and relies on it, so whoever uses tiles puts back what it found. */
#ifndef IWP_KERN_TILES_H
#define IWP_KERN_TILES_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

struct iwp_tiles {
    uint8_t palette, start, zero[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};
static const struct iwp_tiles iwp_tiles_whole = {.palette = 1,
                                                 .colsb = {64, 64, 64, 64, 64, 64, 64, 64},
                                                 .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* Tiles 0 to 3: sums [32][32], from memory or zero. */
static inline void iwp_tiles_load(const float *c, bool add) {
    if (add) {
        _tile_loadd(0, c, 128);
        _tile_loadd(1, c + 16, 128);
        _tile_loadd(2, c + 512, 128);
        _tile_loadd(3, c + 528, 128);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
}

static inline void iwp_tiles_store(float *c) {
    _tile_stored(0, c, 128);
    _tile_stored(1, c + 16, 128);
    _tile_stored(2, c + 512, 128);
    _tile_stored(3, c + 528, 128);
}

#define WITH_TILES(CALL)                                                                           \
    struct iwp_tiles before;                                                                       \
    _tile_storeconfig(&before);                                                                    \
    _tile_loadconfig(&iwp_tiles_whole);                                                            \
    CALL;                                                                                          \
    _tile_loadconfig(&before)

#endif
