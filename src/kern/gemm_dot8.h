/* products8() of gemm_bytes.h: as tile() of gemm_dot.h, TILE_ROWS rows × TILE_VECS vectors of columns at a time. */

/* 16 columns of a block, and their sums. */
struct lane8 {
    const uint8_t *b;
    const float *scale, *least;
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

/* k of a block that are multiplied without counting: where registers are plenty all of them, but with minima to
 * take from the sums that was slower. */
static inline int at_once8(bool least) {
#if defined(__AVX512F__)
    return least ? 4 : 8;
#else
    (void)least;
    return 4;
#endif
}

/* Rows from r on of a block; `rows`, `vecs` and `least` are constants where this is inlined. */
static inline __attribute__((always_inline)) void part8(const int rows, const int vecs,
                                                        const struct lane8 *lane,
                                                        const struct iwp_gemm_rows8 *a, int r,
                                                        const bool least) {
    vi s[8][4];
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)
        _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++) s[i][v] =
            ints(WIDE8 && !least ? a->start[r + i] : 0);
    const int some = at_once8(least);
    _Pragma("GCC unroll 1") for (int k0 = 0; k0 < 8; k0 += some)
        _Pragma("GCC unroll 8") for (int k = k0; k < k0 + some; k++) {
        vi cols[4];
        _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++)
            memcpy(&cols[v], lane[v].b + k * 64, sizeof cols[v]);
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, a->q[r + i] + 4 * k, sizeof four);
            _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++) s[i][v] =
                dot8(s[i][v], cols[v], ints(four));
        }
    }
    _Pragma("GCC unroll 4") for (int v = 0; v < vecs; v++) {
        const vf scale = load(lane[v].scale);
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
            float *to = lane[v].c + (r + i) * 32;
            const vi t = widen8(s[i][v]) + (WIDE8 || least ? 0 : a->start[r + i]);
            vf y = load(to) + __builtin_convertvector(t, vf) * (all(a->scale[r + i]) * scale);
            if (least) y -= all(a->sum[r + i]) * load(lane[v].least);
            save(to, y);
        }
    }
}

static inline struct lane8 lane8_of(float *c, const struct iwp_gemm_cols8 *b, int half) {
    return (struct lane8){b->q[half][0][0], b->scale + 16 * half, b->least + 16 * half,
                          c + 16 * half};
}

/* The rows of n blocks and one or (PAIRS) two panels. */
static inline __attribute__((always_inline)) void
tiles8(int32_t panels, float *const c[2], const struct iwp_gemm_rows8 *a, int32_t rows,
       const struct iwp_gemm_cols8 *const b[2], int32_t n, const bool least,
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
                part8(4, 4, lane, a, r, least);
            }
        else
            for (int r = 0; r < rows; r += TILE_ROWS)
                for (int v = 0; v < 2; v += TILE_VECS)
                    part8(TILE_ROWS, TILE_VECS, lane + v, a, r, least);
    }
}

static void products8(int32_t panels, float *const c[2], const struct iwp_gemm_rows8 *a,
                      int32_t rows, const struct iwp_gemm_cols8 *const b[2], int32_t n, bool add,
                      bool least, const char *const next[2]) {
    for (int i = 0; i < panels && !add; i++) memset(c[i], 0, SUMS * sizeof **c);
    if (least)
        tiles8(panels, c, a, rows, b, n, true, next);
    else
        tiles8(panels, c, a, rows, b, n, false, next);
}
