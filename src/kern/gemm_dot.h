/* tile() on the integers of gemm_int16.h: TILE_ROWS rows × TILE_VECS vectors of columns at a time, as many
 * as the registers hold; then, once for a block of k, to f32 and the scales. */

/* c + the sums of two neighbouring products. */
static inline vi dot(vi c, vi a, vi b) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpwssd_epi32((__m512i)c, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return c + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    __m256i s[2], x[2], y[2];
    memcpy(s, &c, sizeof s);
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 2; i++)
#if defined(__AVXVNNI__)
        s[i] = _mm256_dpwssd_avx_epi32(s[i], x[i], y[i]);
#else
        s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(x[i], y[i]));
#endif
    memcpy(&c, s, sizeof c);
    return c;
#endif
}

static inline vi pair_of(const uint16_t *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return (vi){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

static inline void part(float *c, const uint16_t *a, const float *a_scale, const uint16_t *b,
                        const float *b_scale) {
    vi s[TILE_ROWS][TILE_VECS] = {0};
    for (int k = 0; k < 16; k++) {
        vi cols[TILE_VECS];
        _Pragma("GCC unroll 2") for (int v = 0; v < TILE_VECS; v++)
            memcpy(&cols[v], b + v * 512 + k * 32, sizeof cols[v]);
        _Pragma("GCC unroll 16") for (int r = 0; r < TILE_ROWS; r++) {
            const vi row = pair_of(a + r * 32 + 2 * k);
            _Pragma("GCC unroll 2") for (int v = 0; v < TILE_VECS; v++) s[r][v] =
                dot(s[r][v], row, cols[v]);
        }
    }
    _Pragma("GCC unroll 16") for (int r = 0; r < TILE_ROWS; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < TILE_VECS; v++) {
        float *to = c + r * 32 + 16 * v;
        const vf f = all(a_scale[r]) * load(b_scale + 16 * v);
        save(to, load(to) + __builtin_convertvector(s[r][v], vf) * f);
    }
}

static void tile(float *c, const uint16_t *a, const uint16_t *b, int32_t n_k32, bool add,
                 const void *next) {
    if (!add) memset(c, 0, SUMS * sizeof *c);
    for (int32_t k = 0; k < n_k32; k++, a += BLOCK, b += BLOCK) {
        const float *a_scale = (const float *)(const void *)(a + SUMS),
                    *b_scale = (const float *)(const void *)(b + SUMS);
        for (int i = 0; next && i < 4; i++)
            __builtin_prefetch((const char *)next + 256 * k + 64 * i, 0, 2);
        for (int r = 0; r < 32; r += TILE_ROWS)
            for (int v = 0; v < 2; v += TILE_VECS)
                part(c + r * 32 + 16 * v, a + r * 32, a_scale + r, b + v * 512, b_scale + 16 * v);
    }
}
