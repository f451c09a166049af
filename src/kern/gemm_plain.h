/* tile() for CPUs without AMX: both blocks of one step of k become f32 in L1, then multiply-adds on
 * TILE_ROWS rows × TILE_VECS vectors of columns at a time, as many as the registers hold. */
static inline vf upper(vu v) { return (vf)(v & 0xffff0000u); }
static inline vf lower(vu v) { return (vf)(v << 16); }

static inline void unpack(float *rows, float *cols, const uint16_t *a, const uint16_t *b) {
    for (int i = 0; i < BLOCK; i += 16) {
        vh h;
        memcpy(&h, a + i, sizeof h);
        save(rows + i, (vf)(__builtin_convertvector(h, vu) << 16));
    }
    for (int h = 0; h < 2; h++)
        for (int t = 0; t < 16; t++) {
            vu v;
            memcpy(&v, b + (h * 16 + t) * 32, sizeof v);
            save(cols + (2 * t) * 32 + 16 * h, lower(v));
            save(cols + (2 * t + 1) * 32 + 16 * h, upper(v));
        }
}

static inline void part(float *c, const float *rows, const float *cols) {
    vf s[TILE_ROWS][TILE_VECS];
    _Pragma("GCC unroll 16") for (int r = 0; r < TILE_ROWS; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < TILE_VECS; v++) s[r][v] =
            load(c + r * 32 + 16 * v);
    for (int k = 0; k < 32; k++) {
        vf b[TILE_VECS];
        _Pragma("GCC unroll 2") for (int v = 0; v < TILE_VECS; v++) b[v] =
            load(cols + k * 32 + 16 * v);
        _Pragma("GCC unroll 16") for (int r = 0; r < TILE_ROWS; r++) {
            const vf a = all(rows[r * 32 + k]);
            _Pragma("GCC unroll 2") for (int v = 0; v < TILE_VECS; v++) s[r][v] += a * b[v];
        }
    }
    _Pragma("GCC unroll 16") for (int r = 0; r < TILE_ROWS; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < TILE_VECS; v++)
            save(c + r * 32 + 16 * v, s[r][v]);
}

static void tile(float *c, const uint16_t *a, const uint16_t *b, int32_t n_k32, bool add,
                 const void *next) {
    _Alignas(64) float rows[BLOCK], cols[BLOCK];
    if (!add) memset(c, 0, BLOCK * sizeof *c);
    for (int32_t k = 0; k < n_k32; k++, a += BLOCK, b += BLOCK) {
        unpack(rows, cols, a, b);
        for (int i = 0; next && i < 4; i++)
            __builtin_prefetch((const char *)next + 256 * k + 64 * i, 0, 2);
        for (int r = 0; r < 32; r += TILE_ROWS)
            for (int v = 0; v < 2; v += TILE_VECS)
                part(c + r * 32 + 16 * v, rows + r * 32, cols + 16 * v);
    }
}
