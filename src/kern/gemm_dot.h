/* tile() on the integers of gemm_int16.h: TILE_ROWS rows × TILE_VECS vectors of columns at a time, as many
 * as the registers hold; then, once for a run of blocks, to f32 and the scales. */

/* Four k at a time save counting.  Not with a dot product: of a chain of them in one block clang 19 takes most
 * apart again, into a multiplication and an addition. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
enum { AT_ONCE = 1 };
#else
enum { AT_ONCE = 4 };
#endif

static inline vi pair_of(const uint16_t *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return ints(x);
}

/* 16 columns of a block of k, and their sums. */
struct lane {
    const uint16_t *b;
    const float *scale;
    float *c;
    const float *factor; /* [16] */
};
enum before { NO_SUMS, SUMS_ADD, SUMS_TIMES }; /* what is there already, and what becomes of it */

static inline struct lane lane_of(float *c, const uint16_t *block, int half, const float *factor) {
    return (struct lane){block + half * 512,
                         (const float *)(const void *)(block + SUMS) + 16 * half, c + 16 * half,
                         factor ? factor + 16 * half : NULL};
}

/* Rows from r on of neighbouring blocks, a run, `pairs` of k (a multiple of 4); `rows`, `vecs` and `before` are
 * constants where this is inlined. */
static inline __attribute__((always_inline)) void part(const int rows, const int vecs,
                                                       const struct lane *lane,
                                                       const uint16_t *block, int r, int pairs,
                                                       const enum before before) {
    const uint16_t *a = block + r * 32;
    const float *a_scale = (const float *)(const void *)(block + SUMS) + r;
    vi s[8][4] = {0};
    for (int b = 0; pairs > 0; pairs -= 16, b += BLOCK, a += BLOCK) {
        const int end = pairs < 16 ? pairs : 16;
        for (int k0 = 0; k0 < end; k0 += AT_ONCE)
            _Pragma("GCC unroll 4") for (int k = k0; k < k0 + AT_ONCE; k++) {
                vi cols[4];
                _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++)
                    memcpy(&cols[v], lane[v].b + b + k * 32, sizeof cols[v]);
                _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
                    const vi row = pair_of(a + i * 32 + 2 * k);
                    _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++) s[i][v] =
                        dot(s[i][v], row, cols[v]);
                }
            }
    }
    _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++) {
        const vf scale = load(lane[v].scale);
        const vf factor = before == SUMS_TIMES ? load(lane[v].factor) : all(1);
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
            float *to = lane[v].c + (r + i) * 32;
            const vf f = all(a_scale[i]) * scale, x = __builtin_convertvector(s[i][v], vf);
            if (before == SUMS_ADD)
                save(to, load(to) + x * f);
            else if (before == SUMS_TIMES)
                save(to, load(to) * factor + x * f);
            else
                save(to, x * f);
        }
    }
}

static inline void fetch(const void *next, int32_t k) {
    for (int i = 0; next && i < 4; i++)
        __builtin_prefetch((const char *)next + 256 * k + 64 * i, 0, 2);
}

static void tile(float *c, const uint16_t *a, const uint16_t *b, int32_t n_k32, bool add,
                 const void *next) {
    for (int32_t k = 0, n; k < n_k32; k += n, a += n * BLOCK, b += n * BLOCK) {
        const struct lane lane[2] = {lane_of(c, b, 0, NULL), lane_of(c, b, 1, NULL)};
        n = n_k32 - k < RUN ? n_k32 - k : RUN;
        for (int32_t i = k; i < k + n; i++) fetch(next, i);
        for (int r = 0; r < 32; r += TILE_ROWS)
            for (int v = 0; v < 2; v += TILE_VECS)
                if (add || k > 0)
                    part(TILE_ROWS, TILE_VECS, lane + v, a, r, 16 * n, SUMS_ADD);
                else
                    part(TILE_ROWS, TILE_VECS, lane + v, a, r, 16 * n, NO_SUMS);
    }
}

#if PAIRS
/* Two panels of columns: a pair of numbers of a row that was spread over a register serves four
 * multiplications, not two. */
static void tiles(float *const c[2], const uint16_t *a, const uint16_t *const b[2], int32_t n_k32,
                  bool add, const char *const next[2]) {
    const uint16_t *x = b[0], *y = b[1];
    for (int32_t k = 0, n; k < n_k32; k += n, a += n * BLOCK, x += n * BLOCK, y += n * BLOCK) {
        const struct lane lane[4] = {lane_of(c[0], x, 0, NULL), lane_of(c[0], x, 1, NULL),
                                     lane_of(c[1], y, 0, NULL), lane_of(c[1], y, 1, NULL)};
        n = n_k32 - k < RUN ? n_k32 - k : RUN;
        for (int32_t i = k; i < k + n; i++) {
            fetch(next[0], i);
            fetch(next[1], i);
        }
        for (int r = 0; r < 32; r += 4) {
            for (int32_t t = n; t < 2 * n; t++)
                for (int i = 32 * r; i < 32 * r + 128; i += 32) { /* the next blocks, from L2 */
                    __builtin_prefetch(a + t * BLOCK + i, 0, 3);
                    __builtin_prefetch(x + t * BLOCK + i, 0, 3);
                    __builtin_prefetch(y + t * BLOCK + i, 0, 3);
                }
            if (add || k > 0)
                part(4, 4, lane, a, r, 16 * n, SUMS_ADD);
            else
                part(4, 4, lane, a, r, 16 * n, NO_SUMS);
        }
    }
}
#endif

/* Rows and k are taken by eights. */
static void tiles_short(int32_t panels, float *const c[2], const uint16_t *a,
                        const uint16_t *const b[2], int32_t n_row, int32_t n_k,
                        const float *const factor[2]) {
    const int pairs = (n_k + 7) / 8 * 4;
    struct lane lane[4];
    for (int32_t v = 0; v < 2 * panels; v++)
        lane[v] = lane_of(c[v / 2], b[v / 2], v % 2, factor ? factor[v / 2] : NULL);
#if PAIRS
    for (int32_t r = 0; panels == 2 && r < n_row; r += 4)
        if (factor)
            part(4, 4, lane, a, r, pairs, SUMS_TIMES);
        else
            part(4, 4, lane, a, r, pairs, NO_SUMS);
#endif
    for (int32_t r = 0; panels == 1 && r < n_row; r += TILE_ROWS)
        for (int v = 0; v < 2; v += TILE_VECS)
            if (factor)
                part(TILE_ROWS, TILE_VECS, lane + v, a, r, pairs, SUMS_TIMES);
            else
                part(TILE_ROWS, TILE_VECS, lane + v, a, r, pairs, NO_SUMS);
}
