/* AMX tiles, eight of 16 rows of 64 bytes.  Configurations belong to threads: ggml sets its own once per
 * thread and relies on it, so whoever uses tiles puts back what it found. */
#ifndef IWP_KERN_TILES_H
#define IWP_KERN_TILES_H

#include <immintrin.h>
#include <stdint.h>

struct iwp_tiles {
    uint8_t palette, start, zero[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};
static const struct iwp_tiles iwp_tiles_whole = {.palette = 1,
                                                 .colsb = {64, 64, 64, 64, 64, 64, 64, 64},
                                                 .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

#define WITH_TILES(CALL)                                                                           \
    struct iwp_tiles before;                                                                       \
    _tile_storeconfig(&before);                                                                    \
    _tile_loadconfig(&iwp_tiles_whole);                                                            \
    CALL;                                                                                          \
    _tile_loadconfig(&before)

#endif
