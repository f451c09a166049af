/* A single row on a q8_0 cache by integers (attn_one.h comes before), where the CPU has AVX512-VNNI: several query
 * heads multiply what is read once, and with f32 numbers that takes longer than reading.
 *
 * Queries become 16-bit integers with a scale for each head, so bytes are multiplied as they lie and sums over 32 are
 * exact.  A vector holds 4 neighbouring bytes of each of 16 keys: no sum runs across lanes, and keys' scales are a
 * vector.  Bytes count from -128 on, since one factor must be unsigned.
 *
 * A weight times a value's scale becomes a 16-bit factor of 32 columns, relative to the largest of STEP keys; these
 * are multiplied two keys at a time, and their sum becomes f32.
 *
 * So a query loses at most 2^-16 of its largest number, and a factor as much of the largest of STEP. */

/* 32 numbers of a query: 256 hi + lo, and what the offset of the keys' bytes adds. */
struct query32 {
    int8_t hi[32], lo[32];
    int32_t base;
    int32_t unused[15]; /* what follows stays aligned */
};

/* n heads, up to ONE_HEADS, to q [d/32][n], and what 1 stands for in each. */
static void put_queries_bytes(struct query32 *q, float *unit, const float *x, int64_t stride,
                              int32_t n, int32_t d, float factor) {
    vf m[16] = {all(0)};
    for (int32_t h = 0; h < n; h++)
        for (int32_t j = 0; j < d; j += 16)
            m[h] = larger((vf)_mm512_abs_ps((__m512)load(x + h * stride + j)), m[h]);
    const vf most = tops16(m),
             by = pick(most > all(1e-30f), all(32512) / most, all(0)); /* 127 · 256 */
    for (int32_t h = 0; h < n; h++) {
        unit[h] = most[h] / 32512 * factor;
        for (int32_t j = 0; j < d; j += 32) {
            struct query32 *to = &q[j / 32 * n + h];
            vi v[2];
            for (int i = 0; i < 2; i++) {
                const vf scaled = load(x + h * stride + j + 16 * i) * all(by[h]);
                /* bounded also where it is no number */
                v[i] = (vi)_mm512_cvtps_epi32(
                    (__m512)smaller(larger(scaled, all(-32512)), all(32512)));
                const __m128i hi = _mm512_cvtepi32_epi8((__m512i)((v[i] + ints(128)) >> 8)),
                              lo = _mm512_cvtepi32_epi8((__m512i)v[i]);
                memcpy(to->hi + 16 * i, &hi, sizeof hi);
                memcpy(to->lo + 16 * i, &lo, sizeof lo);
            }
            to->base = -128 * _mm512_reduce_add_epi32((__m512i)(v[0] + v[1]));
        }
    }
}

/* The scales of the block at p of 16 rows, and of the one behind it where there are two. */
ALWAYS void scales16(vf to[2], const uint8_t *p, size_t row, bool two) {
    if (!two) {
        uint16_t h[16];
        UNROLL for (int i = 0; i < 16; i++) memcpy(&h[i], p + (size_t)i * row, sizeof *h);
        to[0] = halves(h);
        return;
    }
    /* Of two rows words 0 and 17, and so on, until all are there: pairs of each block in turn. */
    const __m512i words = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0,
                                           (32 + 17ll) << 48 | 17ll << 32 | 32 << 16),
                  blocks = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
    __m128i x[8];
    UNROLL for (int i = 0; i < 8; i++, p += 2 * row) x[i] = _mm512_castsi512_si128(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(p), words, _mm512_loadu_si512(p + row)));
    UNROLL for (int i = 0; i < 4; i++) x[i] = _mm_unpacklo_epi64(x[2 * i], x[2 * i + 1]);
    const __m512i all_of = _mm512_permutexvar_epi32(
        blocks, _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(x[1], x[0])),
                                   _mm256_set_m128i(x[3], x[2]), 1));
    to[0] = (vf)_mm512_cvtph_ps(_mm512_castsi512_si256(all_of));
    to[1] = (vf)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(all_of, 1));
}

/* Bytes [4 i, 4 i + 4) of 16 rows become t[i]. */
ALWAYS void quads16(__m512i t[8], const uint8_t *p, size_t row) {
    __m512i a[8], b[8];
    /* Rows in an order that the last round puts right. */
    UNROLL for (int i = 0; i < 8; i++) {
        const uint8_t *at = p + (size_t)(i % 4 + i / 4 * 8) * row;
        a[i] = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)at)),
            _mm256_loadu_si256((const __m256i *)(const void *)(at + 4 * row)), 1);
    }
    UNROLL for (int i = 0; i < 8; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) UNROLL for (int j = 0; j < 2; j++) {
        a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + 2 + j]);
        a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + 2 + j]);
    }
    UNROLL for (int j = 0; j < 4; j++) {
        t[j] = _mm512_shuffle_i32x4(a[j], a[j + 4], 0x88);
        t[j + 4] = _mm512_shuffle_i32x4(a[j], a[j + 4], 0xdd);
    }
}

ALWAYS __m512i four_times16(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

/* Logits of STEP rows to s [heads][CHUNK], for q [d/32][heads]. */
ALWAYS void dots32(float *s, const struct query32 *q, const struct numbers *x, int32_t d,
                   const int heads) {
    const uint8_t *p = x->p, *half = p + 16 * x->row, *ahead = x->ahead;
    vf scale[2][2] = {0};
    for (int h = 0; h < heads; h++) memset(s + h * CHUNK, 0, STEP * sizeof *s);
    for (int32_t j = 0; j < d; j += 32, p += 34, half += 34, q += heads) {
        if (ahead) {
            for (int i = 0; i < STEP; i++) __builtin_prefetch(ahead + (size_t)i * x->ahead_row);
            ahead += x->ahead_32;
        }
        if (j % 64) {
            scale[0][0] = scale[0][1], scale[1][0] = scale[1][1];
        } else {
            scales16(scale[0], p, x->row, j + 32 < d);
            scales16(scale[1], half, x->row, j + 32 < d);
        }
        __m512i t[2][8];
        quads16(t[0], p + 2, x->row);
        quads16(t[1], half + 2, x->row);
        UNROLL for (int i = 0; i < 16; i++) t[i / 8][i % 8] =
            _mm512_xor_si512(t[i / 8][i % 8], _mm512_set1_epi8(-128));
        UNROLL for (int h = 0; h < heads; h++) {
            const __m512i base = _mm512_set1_epi32(q[h].base);
            __m512i hi[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, lo[2] = {base, base};
            UNROLL for (int i = 0; i < 8; i++) {
                const __m512i a = four_times16(q[h].hi + 4 * i), b = four_times16(q[h].lo + 4 * i);
                hi[0] = _mm512_dpbusd_epi32(hi[0], t[0][i], a);
                hi[1] = _mm512_dpbusd_epi32(hi[1], t[1][i], a);
                lo[0] = _mm512_dpbusd_epi32(lo[0], t[0][i], b);
                lo[1] = _mm512_dpbusd_epi32(lo[1], t[1][i], b);
            }
            UNROLL for (int i = 0; i < 2; i++) {
                float *to = s + h * CHUNK + 16 * i;
                const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(hi[i], 8), lo[i]);
                save(to, load(to) + (vf)_mm512_cvtepi32_ps(sum) * scale[i][0]);
            }
        }
    }
}

/* 16 logits, of which n are there. */
ALWAYS vf logits16(const float *s, const float *bias, int32_t n, float unit) {
    const __mmask16 is = (__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1 << n) - 1 : 0);
    vf x = load(s) * all(unit);
    if (bias) x += (vf)_mm512_maskz_loadu_ps(is, bias) * all(LOG2E);
    return (vf)_mm512_mask_blend_ps(is, _mm512_set1_ps(-1e30f), (__m512)x);
}

/* The softmax of a head's n logits; its largest and its sum behind the d sums in y. */
static void soften_bytes(float *s, float unit, const float *bias, int32_t n, float *y) {
    const int32_t end = (n + STEP - 1) / STEP * STEP;
    vf top[2] = {all(-1e30f), all(-1e30f)}, total[2] = {all(0), all(0)};
    for (int32_t i = 0; i < end; i += STEP) UNROLL for (int j = 0; j < 2; j++) {
            const int32_t at = i + 16 * j;
            const vf x = logits16(s + at, bias ? bias + at : NULL, n - at, unit);
            save(s + at, x);
            top[j] = larger(x, top[j]);
        }
    const float most = _mm512_reduce_max_ps((__m512)larger(top[0], top[1]));
    for (int32_t i = 0; i < end; i += STEP) UNROLL for (int j = 0; j < 2; j++) {
            const vf p = weight(load(s + i + 16 * j) - all(most));
            save(s + i + 16 * j, p);
            total[j] += p;
        }
    y[0] = most;
    y[1] = sum(total[0] + total[1]);
}

static inline bool is_none(vf v) { return _mm512_fpclass_ps_mask((__m512)v, 0x99) != 0; }

/* What STEP rows of 32 columns are multiplied with, for weights p [heads][CHUNK] and the rows' scales; what 1 stands
 * for to unit [16]. */
ALWAYS void put_factors(int16_t (*factor)[STEP], float *unit, const float *p, const vf scale[2],
                        const int heads) {
    const vf magic = all(12582912.0f);
    vf x[16][2], most[16];
    UNROLL for (int h = 0; h < 16; h++) {
        most[h] = all(0);
        if (h >= heads) continue;
        UNROLL for (int i = 0; i < 2; i++) x[h][i] = load(p + h * CHUNK + 16 * i) * scale[i];
        most[h] = larger(x[h][0], x[h][1]);
    }
    const vf one = tops16(most) * all(1.0f / 32767);
    save(unit, is_none(scale[0]) || is_none(scale[1]) ? all(NAN) : one);
    const vf by = pick(one > all(1e-37f), all(1) / one, all(0));
    UNROLL for (int h = 0; h < heads; h++) {
        const vhh v =
            lower_halves((vu)(x[h][0] * all(by[h]) + magic), (vu)(x[h][1] * all(by[h]) + magic));
        memcpy(factor[h], &v, sizeof v);
    }
}

/* y [heads][stride] += p [heads][CHUNK] · STEP rows.  Of 32 columns the second and the third eight change places. */
ALWAYS void blend32(float *y, size_t stride, const float *p, const struct numbers *x, int32_t d,
                    const int heads) {
    const uint8_t *block = x->p, *ahead_block = x->ahead;
    int16_t factor[2][ONE_HEADS][STEP];
    float unit[2][16];
    for (int32_t j = 0; j < d; j += 32, y += 32, block += 34) {
        const int half = j / 32 % 2;
        if (half == 0) {
            const bool two = j + 32 < d;
            vf a[2], b[2];
            scales16(a, block, x->row, two);
            scales16(b, block + 16 * x->row, x->row, two);
            for (int i = 0; i < 1 + two; i++)
                put_factors(factor[i], unit[i], p, (vf[]){a[i], b[i]}, heads);
        }
        const uint8_t *at = block + 2, *ahead = ahead_block;
        __m512i c[ONE_HEADS][2];
        UNROLL for (int h = 0; h < heads; h++) c[h][0] = c[h][1] = _mm512_setzero_si512();
        _Pragma("GCC unroll 1") for (int i = 0; i < STEP; i += 2, at += 2 * x->row) {
            if (ahead) {
                __builtin_prefetch(ahead);
                __builtin_prefetch(ahead + x->ahead_row);
                ahead += 2 * x->ahead_row;
            }
            const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)at),
                          b = _mm256_loadu_si256((const __m256i *)(const void *)(at + x->row));
            const __m512i v[2] = {_mm512_cvtepi8_epi16(_mm256_unpacklo_epi8(a, b)),
                                  _mm512_cvtepi8_epi16(_mm256_unpackhi_epi8(a, b))};
            UNROLL for (int h = 0; h < heads; h++) {
                const __m512i w = four_times16(&factor[half][h][i]);
                c[h][0] = _mm512_dpwssd_epi32(c[h][0], v[0], w);
                c[h][1] = _mm512_dpwssd_epi32(c[h][1], v[1], w);
            }
        }
        if (ahead_block) ahead_block += x->ahead_32;
        UNROLL for (int h = 0; h < heads; h++) {
            const vf by = all(unit[half][h]);
            float *to = y + (size_t)h * stride;
            save(to, load(to) + (vf)_mm512_cvtepi32_ps(c[h][0]) * by);
            save(to + 16, load(to + 16) + (vf)_mm512_cvtepi32_ps(c[h][1]) * by);
        }
    }
}

#define BYTES(N)                                                                                   \
    static void dots_bytes_##N(float *s, const struct query32 *q, const struct numbers *x,         \
                               int32_t d) {                                                        \
        dots32(s, q, x, d, N);                                                                     \
    }                                                                                              \
    static void blend_bytes_##N(float *y, size_t stride, const float *p, const struct numbers *x,  \
                                int32_t d) {                                                       \
        blend32(y, stride, p, x, d, N);                                                            \
    }
BYTES(1)
BYTES(2)
BYTES(3)
BYTES(4)
BYTES(5)
BYTES(6)
BYTES(7)
BYTES(8)
static const struct {
    void (*dots)(float *s, const struct query32 *q, const struct numbers *x, int32_t d);
    void (*blend)(float *y, size_t stride, const float *p, const struct numbers *x, int32_t d);
} bytes_groups[ONE_HEADS] = {{dots_bytes_1, blend_bytes_1}, {dots_bytes_2, blend_bytes_2},
                             {dots_bytes_3, blend_bytes_3}, {dots_bytes_4, blend_bytes_4},
                             {dots_bytes_5, blend_bytes_5}, {dots_bytes_6, blend_bytes_6},
                             {dots_bytes_7, blend_bytes_7}, {dots_bytes_8, blend_bytes_8}};

/* A step's rows; those beyond the last one are zeros, in a copy. */
static struct numbers bytes_of(const struct walk *w, int32_t at, int32_t g, uint8_t *room,
                               int32_t d) {
    struct numbers y = rows_of(w, at, g, NULL, d, d);
    const size_t row = 34 * (size_t)(d / 32);
    if (y.n == STEP) return y;
    for (int32_t i = 0; i < STEP; i++)
        if (i < y.n)
            memcpy(room + (size_t)i * row, y.p + (size_t)i * y.row, row);
        else
            memset(room + (size_t)i * row, 0, row);
    y.p = room;
    y.row = row;
    return y;
}

static void one_piece_bytes(const struct iwp_attn *op, int32_t kv_head, int32_t n_kv_head,
                            int32_t chunk, float *part, size_t stride, void *scratch) {
    const int32_t heads = op->n_head / op->n_head_kv, d = op->d, blocks = d / 32;
    const int32_t n_group = (heads + ONE_HEADS - 1) / ONE_HEADS,
                  most = (heads + n_group - 1) / n_group, n_unit = n_kv_head * n_group;
    const int32_t first = chunk * CHUNK, n = op->n_kv - first < CHUNK ? op->n_kv - first : CHUNK;
    const size_t y_stride = iwp_attn_part_stride(d);
    const struct walk k = {&op->k, &op->v, first, n, first, kv_head, n_kv_head, STEP},
                      v = {&op->v, &op->k, first, n, first + n, kv_head, n_kv_head, STEP};
    struct query32 *q = scratch;
    float *s = (float *)(q + n_kv_head * heads * blocks);
    float *unit = s + n_kv_head * heads * CHUNK;
    uint8_t *room = (uint8_t *)(unit + n_kv_head * heads);
    for (int32_t i = 0; i < n_unit; i++) {
        const int32_t at = i / n_group * heads + i % n_group * most;
        put_queries_bytes(q + at * blocks, unit + at,
                          query_at(op, kv_head + i / n_group, i % n_group * most), op->q_head,
                          heads_of(heads, most, i % n_group), d, op->scale * LOG2E);
    }
    for (int32_t i = 0; i < n; i += STEP)
        for (int32_t g = 0; g < n_kv_head; g++) {
            struct numbers rows = bytes_of(&k, i, g, room, d);
            for (int32_t b = 0; b < n_group; b++, rows.ahead = NULL)
                bytes_groups[heads_of(heads, most, b) - 1].dots(
                    s + (g * heads + b * most) * CHUNK + i, q + (g * heads + b * most) * blocks,
                    &rows, d);
        }
    for (int32_t g = 0; g < n_kv_head; g++) {
        memset(part + (size_t)g * stride, 0, (size_t)heads * y_stride * sizeof *part);
        for (int32_t h = 0; h < heads; h++)
            soften_bytes(s + (g * heads + h) * CHUNK, unit[g * heads + h],
                         op->bias ? op->bias + first : NULL, n,
                         part + (size_t)g * stride + (size_t)h * y_stride + d);
    }
    for (int32_t i = 0; i < n; i += STEP)
        for (int32_t g = 0; g < n_kv_head; g++) {
            struct numbers rows = bytes_of(&v, i, g, room, d);
            for (int32_t b = 0; b < n_group; b++, rows.ahead = NULL) {
                const int32_t at = g * heads + b * most;
                bytes_groups[heads_of(heads, most, b) - 1].blend(
                    part + (size_t)g * stride + (size_t)(b * most) * y_stride, y_stride,
                    s + at * CHUNK + i, &rows, d);
            }
        }
    for (int32_t g = 0; g < n_kv_head; g++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t j = 0; j < d; j += 32) {
                float *y = part + (size_t)g * stride + (size_t)h * y_stride + j;
                const __m512i a = (__m512i)load(y), b = (__m512i)load(y + 16);
                save(y, (vf)_mm512_shuffle_i64x2(a, b, 0x44));
                save(y + 16, (vf)_mm512_shuffle_i64x2(a, b, 0xee));
            }
}

static void one_piece_vnni(const struct iwp_attn *op, int32_t kv_head, int32_t n_kv_head,
                           int32_t chunk, float *part, size_t stride, void *scratch) {
    const bool bytes = op->k.type == IWP_ATTN_Q8_0 && op->v.type == IWP_ATTN_Q8_0;
    (bytes ? one_piece_bytes : one_piece)(op, kv_head, n_kv_head, chunk, part, stride, scratch);
}
