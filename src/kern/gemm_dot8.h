/* products8() of gemm_bytes.h: as tile() of gemm_dot.h, TILE_ROWS rows × TILE_VECS vectors of columns at a time. */

/* 16 columns of a block, and their sums. */
struct lane8 {
    const uint8_t *b;
    const float *scale;
    union {
        const float *least, *second;
    };
    float *c;
};

/* s + products of the four unsigned bytes in each lane of w with the signed ones of x.  Without an instruction for
 * it two at a time are added in 16 bits, where the 32 of a run have room: 15 · 127 · 16. */
static inline vi dot8(vi s, vi w, vi x) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)s, (__m512i)w, (__m512i)x);
#elif defined(__AVX512BW__)
    return (vi)_mm512_add_epi16((__m512i)s, _mm512_maddubs_epi16((__m512i)w, (__m512i)x));
#else
    __m256i sum[2], a[2], b[2];
    memcpy(sum, &s, sizeof sum);
    memcpy(a, &w, sizeof a);
    memcpy(b, &x, sizeof b);
    for (int i = 0; i < 2; i++)
#if defined(__AVXVNNI__)
        sum[i] = _mm256_dpbusd_avx_epi32(sum[i], a[i], b[i]);
#else
        sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(a[i], b[i]));
#endif
    memcpy(&s, sum, sizeof s);
    return s;
#endif
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
enum { WIDE8 = 1 };
static inline vi widen8(vi s) { return s; }
#else
enum { WIDE8 = 0 };
static inline vi widen8(vi s) {
#if defined(__AVX512BW__)
    return (vi)_mm512_madd_epi16((__m512i)s, _mm512_set1_epi16(1));
#else
    __m256i h[2];
    memcpy(h, &s, sizeof h);
    for (int i = 0; i < 2; i++) h[i] = _mm256_madd_epi16(h[i], _mm256_set1_epi16(1));
    memcpy(&s, h, sizeof s);
    return s;
#endif
}
#endif

/* The same in 32 bits, for weights of more than 4 bits, of which 16 bits hold two: 2 · 63 · 127. */
static inline vi dot8_far(vi s, vi w, vi x) {
    return WIDE8 ? dot8(s, w, x) : s + widen8(dot8(ints(0), w, x));
}

/* k of a block that are multiplied without counting: where registers are plenty all of them, but with minima to
 * take from the sums that was slower. */
static inline int at_once8(enum cols8 kind) {
#if defined(__AVX512F__)
    return kind == EIGHTS ? 8 : 4;
#else
    (void)kind;
    return 4;
#endif
}

/* Rows from r on of a block, over all of its k or, of TWO_SCALES, half h; `rows`, `vecs`, `kind` and h are constants
 * where this is inlined. */
static inline __attribute__((always_inline)) void part8(const int rows, const int vecs,
                                                        const struct lane8 *lane,
                                                        const struct iwp_gemm_rows8 *a, int r,
                                                        const enum cols8 kind, const int h) {
    const bool far = kind == LEAST_WIDE || kind == TWO_SCALES;
    const int some = at_once8(kind), from = 4 * h, end = kind == TWO_SCALES ? from + 4 : 8;
    vi s[8][4];
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
        const int32_t first = kind == TWO_SCALES        ? -32 * a->half[h][r + i]
                              : kind == EIGHTS && WIDE8 ? a->start[r + i]
                                                        : 0;
        _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++) s[i][v] = ints(first);
    }
    _Pragma("GCC unroll 1") for (int k0 = from; k0 < end; k0 += some)
        _Pragma("GCC unroll 8") for (int k = k0; k < k0 + some; k++) {
        vi cols[4];
        _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++)
            memcpy(&cols[v], lane[v].b + k * 64, sizeof cols[v]);
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, a->q[r + i] + 4 * k, sizeof four);
            _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++) s[i][v] =
                far ? dot8_far(s[i][v], cols[v], ints(four)) : dot8(s[i][v], cols[v], ints(four));
        }
    }
    _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++) {
        const vf scale = load(h ? lane[v].second : lane[v].scale);
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
            float *to = lane[v].c + (r + i) * 32;
            const vi t =
                far ? s[i][v] : widen8(s[i][v]) + (WIDE8 || kind != EIGHTS ? 0 : a->start[r + i]);
            vf y = load(to) + __builtin_convertvector(t, vf) * (all(a->scale[r + i]) * scale);
            if (kind == LEAST || kind == LEAST_WIDE) y -= all(a->sum[r + i]) * load(lane[v].least);
            save(to, y);
        }
    }
}

static inline struct lane8 lane8_of(float *c, const struct iwp_gemm_cols8 *b, int half) {
    return (struct lane8){.b = b->q[half][0][0],
                          .scale = b->scale + 16 * half,
                          .least = b->least + 16 * half,
                          .c = c + 16 * half};
}

/* The rows of n blocks and one or (PAIRS) two panels. */
static inline __attribute__((always_inline)) void
tiles8(int32_t panels, float *const c[2], const struct iwp_gemm_rows8 *a, int32_t rows,
       const struct iwp_gemm_cols8 *const b[2], int32_t n, const enum cols8 kind,
       const char *const next[2]) {
    for (int32_t k = 0; k < n; k++, a++) {
        const struct lane8 lane[4] = {lane8_of(c[0], b[0] + k, 0), lane8_of(c[0], b[0] + k, 1),
                                      lane8_of(c[panels - 1], b[panels - 1] + k, 0),
                                      lane8_of(c[panels - 1], b[panels - 1] + k, 1)};
        for (int i = 0; i < panels; i++) fetch(next[i], k);
        if (PAIRS && panels == 2)
            for (int r = 0; r < rows; r += 4) {
                for (int i = 48 * r; i < 48 * r + 192; i += 64) { /* the next blocks, from L2 */
                    __builtin_prefetch((const char *)(a + 1) + i, 0, 3);
                    __builtin_prefetch((const char *)(b[0] + k + 1) + i, 0, 3);
                    __builtin_prefetch((const char *)(b[1] + k + 1) + i, 0, 3);
                }
                part8(4, 4, lane, a, r, kind, 0);
                if (kind == TWO_SCALES) part8(4, 4, lane, a, r, kind, 1);
            }
        else
            for (int r = 0; r < rows; r += TILE_ROWS)
                for (int v = 0; v < 2; v += TILE_VECS) {
                    part8(TILE_ROWS, TILE_VECS, lane + v, a, r, kind, 0);
                    if (kind == TWO_SCALES) part8(TILE_ROWS, TILE_VECS, lane + v, a, r, kind, 1);
                }
    }
}

static void products8(int32_t panels, float *const c[2], const struct iwp_gemm_rows8 *a,
                      int32_t rows, const struct iwp_gemm_cols8 *const b[2], int32_t n, bool add,
                      enum cols8 kind, const char *const next[2]) {
    for (int i = 0; i < panels && !add; i++) memset(c[i], 0, SUMS * sizeof **c);
    switch (WIDE8 && kind == LEAST_WIDE ? LEAST : kind) {
    case EIGHTS: tiles8(panels, c, a, rows, b, n, EIGHTS, next); break;
    case LEAST: tiles8(panels, c, a, rows, b, n, LEAST, next); break;
    case LEAST_WIDE: tiles8(panels, c, a, rows, b, n, LEAST_WIDE, next); break;
    case TWO_SCALES: tiles8(panels, c, a, rows, b, n, TWO_SCALES, next); break;
    }
}
