/* Products of a few rows with q8_0 weights (struct iwp_gemm_few), on what gemm_read_amx.h or gemm_few_file.h says
 * about how these lie.
 *
 * ggml rounds such rows to 8 bits.  Reading the weights is what takes time, so there is room for 16, and 32
 * neighbours share a scale.  With a dot product of bytes a row's number is 256 h + l, two bytes that weights are
 * multiplied with; without one weights become 16 bits wide.  Sums over 32 neighbours are exact.  Neither the other
 * rows nor threads change a result. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define DOT_BYTES 1
#else
#define DOT_BYTES 0
#endif
#if defined(__AVX512F__)
enum { FEW = 4 }; /* rows at a time, as many as the registers hold */
#else
enum { FEW = 3 };
#endif

struct few_block { /* 32 neighbours of a row */
    int32_t
        x[16]; /* h of four each, then l; or pairs, of every four the even ones and the odd ones */
    float scale;
    int32_t sum; /* of all, times 128 */
};
static_assert(sizeof(struct few_block) == IWP_GEMM_FEW_BLOCK, "gemm.h says another size");

/* 16 integers, the first or second ones of a block. */
static inline void few_put(struct few_block *to, int half, vi n) {
#if DOT_BYTES
    typedef int8_t bytes __attribute__((vector_size(16)));
    const vi high = (n + 128) >> 8;
    const bytes h = __builtin_convertvector(high, bytes),
                l = __builtin_convertvector(n - high * 256, bytes);
    memcpy(to->x + 4 * half, &h, sizeof h);
    memcpy(to->x + 8 + 4 * half, &l, sizeof l);
#else
    const vh v = __builtin_convertvector((vu)n, vh),
             pairs = __builtin_shufflevector(v, v, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13,
                                             15);
    memcpy(to->x + 8 * half, &pairs, sizeof pairs);
#endif
}

static void few_pack(struct few_block *to, const float *x, int32_t k) {
    for (int32_t i = 0; i < k; i += 32, to++) {
        const vf v[2] = {load(x + i), load(x + i + 16)};
        /* Magnitudes are ordered as their bits are, and what is not a number is above all. */
        vi part[2] = {(vi)v[0] & 0x7fffffff, (vi)v[1] & 0x7fffffff};
        part[0] = greater(part[0], part[1]);
        int32_t top[16];
        memcpy(top, &part[0], sizeof top);
        for (int w = 8; w > 0; w /= 2)
            for (int t = 0; t < w; t++) top[t] = top[t] > top[t + w] ? top[t] : top[t + w];
        float most;
        memcpy(&most, top, sizeof most);
        const bool fits = most > 1e-30f && most < INFINITY;
        const float f = fits ? 32512.0f / most : 0;
        vi sum = (vi)all(0);
        for (int t = 0; t < 2;
             t++) { /* nearest integers: the mantissa of 2^23 + 2^22 + v has them */
            const vf y = fits ? v[t] * all(f) : all(0);
            const vi n = (vi)(y + all(12582912.0f)) - 0x4b400000;
            few_put(to, t, n);
            sum += n;
        }
        to->scale = fits ? 1 / f : most - most; /* no number where one is none */
        to->sum = 0;
        for (int t = 0; t < 16; t++) to->sum += sum[t];
        to->sum *= 128;
    }
}

/* s + products of four neighbours of k, the signed bytes in each lane of w, with those of a row. */
ALWAYS void few_dot(vi s[2], vu w, const int32_t x[16], int i) {
#if DOT_BYTES
    w ^= 0x80808080u; /* 128 more, no sign */
    for (int h = 0; h < 2; h++) {
#if defined(__AVX512VNNI__)
        s[h] = (vi)_mm512_dpbusd_epi32((__m512i)s[h], (__m512i)w, _mm512_set1_epi32(x[i + 8 * h]));
#else
        __m256i c[2], v[2];
        memcpy(c, &s[h], sizeof c);
        memcpy(v, &w, sizeof v);
        for (int t = 0; t < 2; t++)
            c[t] = _mm256_dpbusd_avx_epi32(c[t], v[t], _mm256_set1_epi32(x[i + 8 * h]));
        memcpy(&s[h], c, sizeof c);
#endif
    }
#else
    typedef int16_t shorts __attribute__((vector_size(64)));
    s[0] = dot(s[0], (vi)((shorts)((vhh)w << 8) >> 8), ints(x[2 * i]));
    s[0] = dot(s[0], (vi)((shorts)w >> 8), ints(x[2 * i + 1]));
#endif
}

/* What they add up to. */
ALWAYS vi few_sum(const vi s[2], const struct few_block *b) {
    return DOT_BYTES ? s[0] * 256 + s[1] - b->sum : s[0];
}

/* 16 FEW_VECS columns, n ≤ FEW rows. */
ALWAYS void few_cols(const struct iwp_gemm_few *op, const struct few_block *x, int32_t row, int n,
                     int32_t col) {
    const int32_t kt = op->mat.k / 32;
    const size_t step = few_step(), next = few_next(kt);
    const uint8_t *p = op->mat.w + (size_t)(col / 16) * next;
    vf total[FEW][FEW_VECS];
    for (int r = 0; r < n; r++)
        for (int v = 0; v < FEW_VECS; v++) total[r][v] = all(0);
    for (int32_t k = 0; k < kt; k++, p += step) {
        vi s[FEW][FEW_VECS][2];
        memset(s, 0, sizeof s);
        for (int h = 0; h < 2; h++) {
            struct few_part part[FEW_VECS];
            for (int v = 0; v < FEW_VECS; v++) part[v] = few_open(p + (size_t)v * next, h, kt, k);
            for (int i = 0; i < 4; i++)
                for (int v = 0; v < FEW_VECS; v++) {
                    const vu w = few_read(&part[v], i);
                    for (int r = 0; r < n; r++)
                        few_dot(s[r][v], w, x[(row + r) * kt + k].x, 4 * h + i);
                }
        }
        for (int v = 0; v < FEW_VECS; v++) {
            const vf scale = few_scales(p + (size_t)v * next, kt);
            for (int r = 0; r < n; r++) {
                const struct few_block *b = x + (row + r) * kt + k;
                total[r][v] +=
                    scale * all(b->scale) * __builtin_convertvector(few_sum(s[r][v], b), vf);
            }
        }
    }
    for (int r = 0; r < n; r++)
        for (int v = 0; v < FEW_VECS; v++)
            save(op->y + (row + r) * op->stride + col + 16 * v, total[r][v]);
}

static void few_pack_rows(void *rows, const float *x, int64_t stride, int32_t n, int32_t k) {
    struct few_block *to = rows;
    for (int32_t r = 0; r < n; r++) few_pack(to + r * (k / 32), x + r * stride, k);
}

static void few(const struct iwp_gemm_few *op, int32_t col, int32_t n_cols) {
    const struct few_block *x = op->rows;
    for (int32_t j = col; j < col + n_cols; j += 16 * FEW_VECS)
        for (int32_t row = 0; row < op->n; row += FEW) switch (op->n - row) {
            case 1: few_cols(op, x, row, 1, j); break;
            case 2: few_cols(op, x, row, 2, j); break;
            case 3: few_cols(op, x, row, 3, j); break;
            default: few_cols(op, x, row, FEW, j); break;
            }
}
