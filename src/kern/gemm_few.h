/* Products of a few rows with q8_0 weights (struct iwp_gemm_few), for the paths that read AMX buffers.
 *
 * ggml rounds such rows to 8 bits.  Reading the weights is what takes time, so there is room for 16: a row's
 * number is 256 h + l, two bytes that weights are multiplied with, and 32 neighbours share a scale.  Sums over
 * them are exact.  Neither the other rows nor threads change a result. */
#define ALWAYS static inline __attribute__((always_inline)) /* n is to be known */
enum { FEW = 4, AHEAD = 3072 };                             /* rows at a time; bytes */

struct few_block {           /* 32 neighbours of a row */
    int32_t high[8], low[8]; /* four bytes each */
    float scale;
    int32_t sum; /* of all, times 128 */
};
static_assert(sizeof(struct few_block) == IWP_GEMM_FEW_BLOCK, "gemm.h says another size");

static void few_pack(struct few_block *to, const float *x, int32_t k) {
    typedef int8_t bytes __attribute__((vector_size(16)));
    for (int32_t i = 0; i < k; i += 32, to++) {
        const vf v[2] = {load(x + i), load(x + i + 16)};
        /* Magnitudes are ordered as their bits are, and what is not a number is above all. */
        vi part[2] = {(vi)v[0] & 0x7fffffff, (vi)v[1] & 0x7fffffff};
        part[0] = (vi)pick(part[0] > part[1], (vf)part[0], (vf)part[1]);
        int32_t top[16];
        memcpy(top, &part[0], sizeof top);
        for (int w = 8; w > 0; w /= 2)
            for (int t = 0; t < w; t++) top[t] = top[t] > top[t + w] ? top[t] : top[t + w];
        float most;
        memcpy(&most, top, sizeof most);
        const bool fits = most > 1e-30f && most < 3e38f;
        const float f = fits ? 32512.0f / most : 0;
        vi sum = (vi)all(0);
        bytes h[2], l[2];
        for (int t = 0; t < 2;
             t++) { /* nearest integers: the mantissa of 2^23 + 2^22 + v has them */
            const vf y = fits ? v[t] * all(f) : all(0);
            const vi n = (vi)(y + all(12582912.0f)) - 0x4b400000, high = (n + 128) >> 8;
            h[t] = __builtin_convertvector(high, bytes);
            l[t] = __builtin_convertvector(n - high * 256, bytes);
            sum += n;
        }
        memcpy(to->high, h, sizeof h);
        memcpy(to->low, l, sizeof l);
        to->scale = fits ? 1 / f : most - most; /* none where one is not a number */
        to->sum = 0;
        for (int t = 0; t < 16; t++) to->sum += sum[t];
        to->sum *= 128;
    }
}

/* s + products of the four unsigned bytes in each lane of w with the signed ones of x. */
ALWAYS vi few_dot(vi s, vu w, int32_t x) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)s, (__m512i)w, _mm512_set1_epi32(x));
#else
    for (int t = 0; t < 4; t++)
        s += (vi)(w >> (8 * t) & 255u) * (int32_t)(int8_t)((uint32_t)x >> (8 * t));
    return s;
#endif
}

/* 32 columns of AMX tiles (gemm.h), n ≤ FEW rows: two streams of memory, fetched well ahead. */
ALWAYS void few_tiles(const struct iwp_gemm_few *op, const struct few_block *x, int32_t row, int n,
                      int32_t col) {
    const struct iwp_gemm_tile_size z = iwp_gemm_tile_size(IWP_GEMM_Q8_0);
    const int32_t kt = op->mat.k / 32;
    const size_t next = (size_t)kt * z.bytes;
    const uint8_t *p = op->mat.w + (size_t)(col / 16) * next;
    vf total[FEW][2];
    for (int r = 0; r < n; r++) total[r][0] = total[r][1] = all(0);
    for (int32_t k = 0; k < kt; k++, p += z.bytes) {
        vi s[FEW][2][2];
        memset(s, 0, sizeof s);
        for (int i = 0; i < 8; i++) /* four neighbours of k in a lane */
            for (int h = 0; h < 2; h++) {
                const uint8_t *at = p + (size_t)h * next + 64 * i;
                const vu w = bytes64(at) ^ 0x80808080u; /* 128 more, no sign */
                __builtin_prefetch(at + AHEAD);
                for (int r = 0; r < n; r++) {
                    const struct few_block *b = x + (row + r) * kt + k;
                    s[r][h][0] = few_dot(s[r][h][0], w, b->high[i]);
                    s[r][h][1] = few_dot(s[r][h][1], w, b->low[i]);
                }
            }
        for (int h = 0; h < 2; h++) __builtin_prefetch(p + (size_t)h * next + 512 + AHEAD);
        for (int r = 0; r < n; r++)
            for (int h = 0; h < 2; h++) {
                const struct few_block *b = x + (row + r) * kt + k;
                const vf d = halves(p + (size_t)h * next + 512) * all(b->scale);
                total[r][h] +=
                    d * __builtin_convertvector(s[r][h][0] * 256 + s[r][h][1] - b->sum, vf);
            }
    }
    for (int r = 0; r < n; r++)
        for (int h = 0; h < 2; h++)
            save(op->y + (row + r) * op->stride + col + 16 * h, total[r][h]);
}

static void few_pack_rows(void *rows, const float *x, int64_t stride, int32_t n, int32_t k) {
    struct few_block *to = rows;
    for (int32_t r = 0; r < n; r++) few_pack(to + r * (k / 32), x + r * stride, k);
}

static void few(const struct iwp_gemm_few *op, int32_t col, int32_t n_cols) {
    const struct few_block *x = op->rows;
    for (int32_t j = col; j < col + n_cols; j += 32)
        for (int32_t row = 0; row < op->n; row += FEW) switch (op->n - row) {
            case 1: few_tiles(op, x, row, 1, j); break;
            case 2: few_tiles(op, x, row, 2, j); break;
            case 3: few_tiles(op, x, row, 3, j); break;
            default: few_tiles(op, x, row, FEW, j); break;
            }
}
