/* Rows of bytes and weights that stay bytes, q4_0 and q3_K to q6_K (struct iwp_gemm_rows8, iwp_gemm_cols8), for
 * gemm_bulk.h: what packs and reads them; gemm_dot8.h multiplies.
 *
 * Rows are rounded as ggml rounds them for q4_0 (for _K weights its scale is for 256): products are 0.5 % off, where
 * the weights' own rounding was 2 % (q6_K) to 15 % (q3_K) of normal numbers.  Weights are taken as they are, and sums
 * over neighbours that share a scale, 32 or 16, are exact.  Unsigned bytes times signed ones is what CPUs multiply
 * twice as many of as 16-bit numbers. */
#include <assert.h>

enum { FITS8 = 16 }; /* runs whose scales are found together */
static_assert(sizeof(struct iwp_gemm_rows8) % 64 == 0 && sizeof(struct iwp_gemm_cols8) % 64 == 0,
              "blocks are whole lines");
typedef uint8_t bytes16 __attribute__((vector_size(16)));

/* ---- rows ------------------------------------------------------------------------------------ */

/* Where 32 neighbours of k of a row belong. */
struct place8 {
    struct iwp_gemm_rows8 *block;
    int32_t row;
};

/* n ≤ FITS8 of them, to bytes.  Where one is no number or infinite, the scale is no number. */
static inline void put_rows8(const struct place8 *at, int32_t n, vf v[FITS8][2]) {
    vi tops[FITS8];
    vf sums[2][FITS8]; /* of 16 each */
    float scale[FITS8], factor[FITS8], sum[2][FITS8];
    for (int32_t i = 0; i < FITS8; i++) {
        if (i >= n) v[i][0] = v[i][1] = all(0);
        tops[i] = greater((vi)v[i][0] & 0x7fffffff, (vi)v[i][1] & 0x7fffffff);
    }
    const vf most = (vf)greatest16(tops);
    const vi fits = (most > all(1e-30f)) & (most < all(INFINITY));
    save(scale, pick(fits, most * all(1 / 127.0f), most - most));
    save(factor, pick(fits, all(127) / most, all(0)));
    for (int32_t i = 0; i < FITS8; i++) {
        const vf magic = all(12582912.0f); /* 2^23 + 2^22: what is added to it becomes whole */
        for (int h = 0; h < 2; h++) {
            const vf t = v[i][h] * all(factor[i]) + magic;
            sums[h][i] = t - magic;
            const bytes16 q = __builtin_convertvector((vu)t, bytes16);
            if (i < n) memcpy(at[i].block->q[at[i].row] + 16 * h, &q, sizeof q);
        }
    }
    for (int h = 0; h < 2; h++) save(sum[h], sums16(sums[h]));
    for (int32_t i = 0; i < n; i++) {
        struct iwp_gemm_rows8 *b = at[i].block;
        b->scale[at[i].row] = scale[i];
        const float both = sum[0][i] + sum[1][i];
        const bool number = both == both; /* else there is no integer */
        b->sum[at[i].row] = scale[i] * both;
        b->start[at[i].row] = number ? -8 * (int32_t)both : 0;
        for (int h = 0; h < 2; h++) b->half[h][at[i].row] = number ? (int16_t)sum[h][i] : 0;
    }
}

/* Rows [first, first + n) of x, normed; zeros up to a multiple of 32. */
static void pack_rows8(struct iwp_gemm_rows8 *to, const float *x, int64_t stride, int32_t first,
                       int32_t n, int32_t k, const struct iwp_gemm_norm *norm) {
    enum { LEN = 32 * RUN };
    const int32_t kt = k / 32, end = (int32_t)iwp_gemm_up((size_t)n);
    const float *w = norm ? norm->w : NULL, *b = w ? norm->b : NULL;
    struct place8 at[FITS8];
    vf v[FITS8][2];
    int32_t have = 0;
    x += first * stride;
    to += (size_t)(first / 32) * (size_t)kt;
    for (int32_t row = 0; row < end; row++) {
        const float *from = x + row * stride;
        const struct row_scale r = w && row < n ? measure(from, k, norm) : (struct row_scale){0, 1};
        for (int32_t i = 0; i < k; i += LEN) {
            vf run[2 * RUN];
            if (row < n)
                values_of(run, from + i, w ? w + i : NULL, b ? b + i : NULL, r,
                          k - i < LEN ? k - i : LEN);
            else
                for (int h = 0; h < 2 * RUN; h++) run[h] = all(0);
            for (int32_t t = 0; t < RUN && i + 32 * t < k; t++) {
                at[have] =
                    (struct place8){to + (size_t)(row / 32) * (size_t)kt + i / 32 + t, row % 32};
                v[have][0] = run[2 * t], v[have][1] = run[2 * t + 1];
                if (++have < FITS8 && (row + 1 < end || i + 32 * t + 32 < k)) continue;
                put_rows8(at, have, v);
                have = 0;
            }
        }
    }
}

/* act(gate) * up of 32 rows and columns. */
static void store_rows8(struct iwp_gemm_rows8 *to, const float *up, const float *gate,
                        const float *bias_up, const float *bias_gate, enum iwp_gemm_act act) {
    for (int32_t r = 0; r < 32; r += FITS8) {
        struct place8 at[FITS8];
        vf v[FITS8][2];
        for (int32_t i = 0; i < FITS8; i++) {
            at[i] = (struct place8){to, r + i};
            hidden_row(v[i], r + i, up, gate, bias_up, bias_gate, act);
        }
        put_rows8(at, FITS8, v);
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* 16 columns, eight of them at each of a and b, eight neighbours of k in the lower and eight in the upper halves of
 * their bytes. */
static inline void put_nibbles(uint8_t (*low)[16][4], uint8_t (*high)[16][4], const uint8_t *a,
                               const uint8_t *b, uint32_t flip) {
    vu x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    x ^= flip, y ^= flip;
    for (int h = 0; h < 2; h++, x >>= 4, y >>= 4) {
        const vf p = (vf)(x & 0x0f0f0f0fu), q = (vf)(y & 0x0f0f0f0fu); /* only moved */
        const vf even = evens(p, q), odd = odds(p, q);
        memcpy(h ? high[0] : low[0], &even, sizeof even);
        memcpy(h ? high[1] : low[1], &odd, sizeof odd);
    }
}

/* Each reader makes the panel of 32 columns from `col` on. */
static void read_q4_0(struct iwp_gemm_cols8 *to, const struct iwp_gemm_quant *w, int32_t col,
                      int32_t k0, int32_t k) {
    const size_t row = (size_t)(w->k / 32) * Q4_0_BYTES;
    for (int32_t j = 0; j < 2; j++) {
        const uint8_t *a = w->w + (size_t)(col / 8 + 2 * j) * row + (size_t)(k0 / 32) * Q4_0_BYTES;
        for (int32_t i = 0; i < k / 32; i++, a += Q4_0_BYTES) {
            struct iwp_gemm_cols8 *t = to + i;
            uint8_t d16[32];
            memcpy(d16, a, 16);
            memcpy(d16 + 16, a + row, 16);
            save(t->scale + 16 * j, halves(d16));
            for (int h = 0; h < 2; h++) /* signed ones */
                put_nibbles(t->q[j] + 2 * h, t->q[j] + 4 + 2 * h, a + 16 + 64 * h,
                            a + row + 16 + 64 * h, 0x88888888u);
        }
    }
}

/* Eight 6-bit scales and minima in 12 bytes, of 32 k each: those of 8 columns (q4_K) or of one column's 256 k (q5_K).
 * Of the upper four two bits stand above those of the lower four. */
static inline void scales_k(float scale[8], float least[8], const uint8_t *p) {
    uint32_t s[3];
    memcpy(s, p, sizeof s);
    const uint32_t q[4] = {s[0] & 0x3f3f3f3fu, (s[2] & 0x0f0f0f0fu) | (s[0] >> 2 & 0x30303030u),
                           s[1] & 0x3f3f3f3fu,
                           (s[2] >> 4 & 0x0f0f0f0fu) | (s[1] >> 2 & 0x30303030u)};
    for (int i = 0; i < 8; i++) {
        scale[i] = (float)(q[i / 4] >> 8 * (i % 4) & 255);
        least[i] = (float)(q[2 + i / 4] >> 8 * (i % 4) & 255);
    }
}

static void read_q4_k(struct iwp_gemm_cols8 *to, const struct iwp_gemm_quant *w, int32_t col,
                      int32_t k0, int32_t k) {
    const size_t row = (size_t)(w->k / 256) * Q4_K_BYTES;
    for (int32_t j = 0; j < 2; j++) {
        const uint8_t *a = w->w + (size_t)(col / 8 + 2 * j) * row + (size_t)(k0 / 256) * Q4_K_BYTES;
        for (int32_t i = 0; i < k / 32; i += 8, a += Q4_K_BYTES) {
            struct iwp_gemm_cols8 *t = to + i;
            uint8_t d16[2][32];
            for (int m = 0; m < 2; m++) {
                memcpy(d16[m], a + 16 * m, 16);
                memcpy(d16[m] + 16, a + row + 16 * m, 16);
            }
            const vf d = halves(d16[0]), least = halves(d16[1]);
            for (int g = 0; g < 8; g++) {
                float s[16], m[16];
                scales_k(s, m, a + 32 + 12 * g);
                scales_k(s + 8, m + 8, a + row + 32 + 12 * g);
                save(t[g].scale + 16 * j, d * load(s));
                save(t[g].least + 16 * j, least * load(m));
            }
            for (int g = 0; g < 16; g++)
                put_nibbles(t[g / 4 * 2].q[j] + g % 4 * 2, t[g / 4 * 2 + 1].q[j] + g % 4 * 2,
                            a + 128 + 64 * g, a + row + 128 + 64 * g, 0);
        }
    }
}

/* What a panel's numbers are, beside unsigned bytes times a scale. */
enum cols8 {
    EIGHTS,     /* less 8, which rows have ready: q4_0 */
    LEAST,      /* less a minimum, as a float: q4_K */
    LEAST_WIDE, /* the same, of up to 31: q5_K */
    TWO_SCALES, /* less 32, with a second scale for the second 16 of k: q3_K, q6_K */
};
static inline enum cols8 cols8_of(enum iwp_gemm_form form) {
    switch (form) {
    case IWP_GEMM_Q4_0: return EIGHTS;
    case IWP_GEMM_Q4_K: return LEAST;
    case IWP_GEMM_FILE_Q5_K: return LEAST_WIDE;
    case IWP_GEMM_FILE_Q3_K:
    case IWP_GEMM_FILE_Q6_K: return TWO_SCALES;
    default: assert(false); return EIGHTS;
    }
}

/* c [32][32] = (or +=, when add) rows · columns over n blocks of k, `rows` of 32 (or a few more), for one panel of
 * columns or, where PAIRS says so, two. */
static void products8(int32_t panels, float *const c[2], const struct iwp_gemm_rows8 *a,
                      int32_t rows, const struct iwp_gemm_cols8 *const b[2], int32_t n, bool add,
                      enum cols8 kind, const char *const next[2]);
