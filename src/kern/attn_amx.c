/* AMX: every factor is the sum of two bf16 numbers, high and low, and three of the four products are added.
 *
 *     keys     blocks of 32 × 32   [key/32][d/32][2][16][32]       half, key, d
 *     values   transposed          [d/32][key/32][2][16][32]       half, d, key
 *     queries and weights          [d/32 or key/32][2][16][16][2]  half, pair of d or keys, query, which
 *
 * low numbers follow the high ones of the whole array. */
#if defined(__x86_64__)
#include "kern/attn_body.h"

#include "kern/attn_one.h"

#include "kern/attn_bytes.h"
#include "kern/tiles.h"

enum { BLOCK = 32 * 32 };

/* 32 numbers in two parts. */
static inline void save_split(uint16_t *hi, uint16_t *lo, vf a, vf b) {
    const __m512i h = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    const __m512i wide_a = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(h)), 16),
                  wide_b =
                      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(h, 1)), 16);
    a -= (vf)wide_a;
    b -= (vf)wide_b;
    _mm512_storeu_si512(hi, h);
    _mm512_storeu_si512(lo, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
}

static void put_queries(float *q, const float *x, int32_t wide) {
    uint16_t *hi = (uint16_t *)(void *)q, *lo = hi + TILE * wide;
    for (int32_t j = 0; j < wide; j += 32)
        for (int h = 0; h < 2; h++, hi += 512, lo += 512) {
            uint16_t part[2][16][32];
            vf r[2][16];
            for (int i = 0; i < 16; i++) {
                const float *p = x + (16 * h + i) * wide + j;
                save_split(part[0][i], part[1][i], load(p), load(p + 16));
            }
            memcpy(r, part, sizeof r);
            transpose16(r[0]);
            transpose16(r[1]);
            memcpy(hi, r[0], sizeof r[0]);
            memcpy(lo, r[1], sizeof r[1]);
        }
}

static float *key_room(const struct work *w, int32_t at) { return (void)at, w->x; }
static float *value_room(const struct work *w, int32_t at) { return (void)at, w->x; }

static void put_keys(const struct work *w, int32_t at) {
    const int32_t wide = w->wide;
    uint16_t *hi = (uint16_t *)(void *)w->k + at * wide, *lo = hi + KEYS * wide;
    for (int32_t i = 0; i < STEP; i++)
        for (int32_t j = 0; j < wide; j += 32) {
            const float *p = w->x + i * wide + j;
            save_split(hi + j * 32 + i * 32, lo + j * 32 + i * 32, load(p), load(p + 16));
        }
}

static void put_values(const struct work *w, int32_t at) {
    const int32_t wide = w->wide;
    uint16_t *hi = (uint16_t *)(void *)w->v + at * 32, *lo = hi + KEYS * wide;
    for (int32_t j = 0; j < wide; j += 16) {
        const int32_t to = j / 32 * KEYS * 32 + j % 32 * 32;
        vf a[16], b[16];
        for (int i = 0; i < 16; i++) {
            a[i] = load(w->x + i * wide + j);
            b[i] = load(w->x + (16 + i) * wide + j);
        }
        transpose16(a);
        transpose16(b);
        for (int i = 0; i < 16; i++) save_split(hi + to + i * 32, lo + to + i * 32, a[i], b[i]);
    }
}

/* Weights are positive: the high part is cut off, not rounded, and the low part rounded. */
static inline void put_weights(const struct work *w, int32_t i, int h, vf a, vf b) {
    uint16_t *to = (uint16_t *)(void *)w->p + i / 32 * BLOCK + h * 512 + i % 32 * 16;
    const vu top_a = (vu)a & 0xffff0000u, top_b = (vu)b & 0xffff0000u;
    const vu low_a = (vu)(a - (vf)top_a) + 0x8000u, low_b = (vu)(b - (vf)top_b) + 0x8000u;
    const vu high = top_b | top_a >> 16, low = (low_b & 0xffff0000u) | low_a >> 16;
    memcpy(to, &high, sizeof high);
    memcpy(to + KEYS * TILE, &low, sizeof low);
}

/* c [32][32] = (or +=) rows · columns over n blocks; the low parts lie a_low and b_low further. */
static inline void product(float *c, const uint16_t *a, size_t a_low, const uint16_t *b,
                           size_t b_low, int32_t n, bool add) {
    iwp_tiles_load(c, add);
    for (int32_t i = 0; i < n; i++, a += BLOCK, b += BLOCK) {
        _tile_loadd(4, a + a_low, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + a_low + 512, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 512, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(6, b + b_low, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, b + b_low + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    iwp_tiles_store(c);
}

static void score(const struct work *w, const float *q, int32_t n) {
    const uint16_t *k = (const uint16_t *)(const void *)w->k,
                   *b = (const uint16_t *)(const void *)q;
    for (int32_t i = 0; i < n; i += 32)
        product(w->s + i * TILE, k + i * w->wide, (size_t)(KEYS * w->wide), b,
                (size_t)(TILE * w->wide), w->wide / 32, false);
}

static void weigh(const struct work *w, float *o, const float factor[32], int32_t n, bool first) {
    const vf f[2] = {load(factor), load(factor + 16)};
    const uint16_t *v = (const uint16_t *)(const void *)w->v,
                   *p = (const uint16_t *)(const void *)w->p;
    for (int32_t d = 0; d < w->wide; d += 32, o += BLOCK) {
        for (int32_t i = 0; !first && i < BLOCK; i += 16) save(o + i, load(o + i) * f[i / 16 % 2]);
        product(o, v + d * KEYS, (size_t)(KEYS * w->wide), p, KEYS * TILE, (n + 31) / 32, !first);
    }
}

static void many(const struct iwp_attn *op, int32_t kv_head, int32_t first, int32_t n,
                 void *scratch) {
    WITH_TILES(many_tiles(op, kv_head, first, n, scratch));
}

void iwp_attn_init_amx(struct iwp_attn_path *p) {
    *p = (struct iwp_attn_path){"amx", many, one_piece_vnni};
}
#else
typedef int iwp_attn_amx_empty;
#endif
