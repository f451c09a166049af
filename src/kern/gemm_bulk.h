/* Products of many rows with quantised weights (struct iwp_gemm_bulk): part of gemm_body.h for the paths
 * that have them.
 *
 * A block of weights, 256 columns by about a thousand k, becomes packed bf16 in L2 and is used there for
 * all rows, which pass by 32 at a time.  Numbers are made in the 16 lanes that hold their columns, without
 * any shuffle: shifted into the mantissa of a float of 128 (or 256), then one multiply-add takes that
 * offset away and applies scale and minimum. */
enum { HALF_PANEL = BLOCK / 2, KC = IWP_GEMM_KC, ROWS = IWP_GEMM_ROWS };

static inline vu bytes64(const uint8_t *p) {
    vu v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline vf halves(const uint8_t *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#else
    vf v;
    for (int i = 0; i < 16; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        const int e = h >> 10 & 31, m = h & 1023;
        const float x = e ? ldexpf((float)(m | 1024), e - 25) : ldexpf((float)m, -24);
        v[i] = h & 0x8000 ? -x : x;
    }
    return v;
#endif
}

/* 16 scales of one byte each. */
static inline vf small(const uint8_t *p, int stride) {
    vi v;
    for (int i = 0; i < 16; i++) v[i] = p[i * stride];
    return __builtin_convertvector(v, vf);
}

/* Two neighbours of k of 16 columns: one line of a panel. */
static inline void save_pair(uint16_t *to, vf even, vf odd) {
#if defined(__AVX512BF16__)
    static const uint16_t turn[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_loadu_si512(turn), both));
#else
    const vu v = (round_bf16(odd) & 0xffff0000u) | (round_bf16(even) >> 16);
    memcpy(to, &v, sizeof v);
#endif
}

/* 16 columns × 4 neighbours of k, numbers below 128 in the bytes of v: * d + c, where c has the -128 d. */
static inline void save_bytes(uint16_t *to, vu v, vf d, vf c) {
#define AS_FLOAT(shifted) ((vf)(((shifted) & 0x7f0000u) | 0x43000000u) * d + c)
    save_pair(to, AS_FLOAT(v << 16), AS_FLOAT(v << 8));
    save_pair(to + 32, AS_FLOAT(v), AS_FLOAT(v >> 8));
#undef AS_FLOAT
}

/* The same of 4-bit numbers, 8 neighbours. */
static inline void save_nibbles(uint16_t *to, vu v, vf d, vf c) {
    save_bytes(to, v & 0x0f0f0f0fu, d, c);
    save_bytes(to + 64, (v >> 4) & 0x0f0f0f0fu, d, c);
}

static inline void read_4(uint16_t *to, const uint8_t *p, vf d, vf c) {
    for (int i = 0; i < 4; i++) save_nibbles(to + 128 * i, bytes64(p + 64 * i), d, c);
}

static inline void read_q4_0(uint16_t *to, const uint8_t *p) {
    const vf d = halves(p + 256);
    read_4(to, p, d, d * all(-136.0f));
}

static inline void read_q4_1(uint16_t *to, const uint8_t *p) {
    const vf d = halves(p + 256);
    read_4(to, p, d, d * all(-128.0f) + halves(p + 288));
}

static inline void read_q8_0(uint16_t *to, const uint8_t *p) {
    const vf d = halves(p + 512), c = d * all(-384.0f);
    for (int i = 0; i < 8; i++) {
        const vu v = bytes64(p + 64 * i) ^ 0x80808080u; /* 128 more, no sign */
#define AS_FLOAT(shifted) ((vf)(((shifted) & 0x7f8000u) | 0x43800000u) * d + c)
        save_pair(to + 64 * i, AS_FLOAT(v << 15), AS_FLOAT(v << 7));
        save_pair(to + 64 * i + 32, AS_FLOAT(v >> 1), AS_FLOAT(v >> 9));
#undef AS_FLOAT
    }
}

/* Scale and offset of group g (32 numbers) of a q4_K or q5_K tile, whose scales begin at p. */
static inline void scale_k(const uint8_t *p, int g, vf *d, vf *c) {
    *d = halves(p + 256) * small(p + 16 * g, 1);
    *c = *d * all(-128.0f) - halves(p + 288) * small(p + 128 + g / 2 * 32 + g % 2, 2);
}

static inline void read_q4_k(uint16_t *to, const uint8_t *p) {
    for (int g = 0; g < 8; g++) {
        vf d, c;
        scale_k(p + 2048, g, &d, &c);
        read_4(to + g * BLOCK, p + 256 * g, d, c);
    }
}

static inline void read_q5_k(uint16_t *to, const uint8_t *p) {
    for (int g = 0; g < 8; g++) {
        vf d, c;
        scale_k(p + 2560, g, &d, &c);
        const vu high = bytes64(p + 2048 + 64 * g); /* bit i of a byte: of the i-th four of k */
        for (int i = 0; i < 4; i++) {
            const vu v = bytes64(p + 256 * g + 64 * i);
            uint16_t *at = to + g * BLOCK + 128 * i;
            save_bytes(at, (v & 0x0f0f0f0fu) | (high >> (2 * i) & 0x01010101u) << 4, d, c);
            save_bytes(at + 64, (v >> 4 & 0x0f0f0f0fu) | (high >> (2 * i + 1) & 0x01010101u) << 4,
                       d, c);
        }
    }
}

static inline void read_q6_k(uint16_t *to, const uint8_t *p) {
    const vf all_d = halves(p + 3328);
    for (int g = 0; g < 16; g++) { /* of 16 numbers */
        vi s;
        for (int i = 0; i < 16; i++) s[i] = (int8_t)p[3072 + 16 * g + i];
        const vf d = all_d * __builtin_convertvector(s, vf), c = d * all(-160.0f);
        const vu high = bytes64(p + 2048 + 64 * g);
        for (int i = 0; i < 2; i++) {
            const vu v = bytes64(p + 128 * g + 64 * i);
            uint16_t *at = to + g / 2 * BLOCK + g % 2 * 256 + 128 * i;
            save_bytes(at, (v & 0x0f0f0f0fu) | (high >> (4 * i) & 0x03030303u) << 4, d, c);
            save_bytes(at + 64, (v >> 4 & 0x0f0f0f0fu) | (high >> (4 * i + 2) & 0x03030303u) << 4,
                       d, c);
        }
    }
}

static void read_tiles(uint16_t *to, const struct iwp_gemm_quant *w, int32_t col, int32_t n_cols,
                       int32_t k0, int32_t k) {
    const struct iwp_gemm_tile_size z = iwp_gemm_tile_size(w->form);
    const size_t row = (size_t)(w->k / z.k) * z.bytes;
    for (int32_t j = 0; j < n_cols; j += 16) {
        const uint8_t *p = w->w + (size_t)((col + j) / 16) * row + (size_t)(k0 / z.k) * z.bytes;
        uint16_t *at = to + (size_t)(j / 32) * (size_t)k * 32 + j % 32 / 16 * HALF_PANEL;
        for (int32_t i = 0; i < k; i += z.k, p += z.bytes, at += (size_t)z.k * 32)
            switch (w->form) {
            case IWP_GEMM_Q4_0: read_q4_0(at, p); break;
            case IWP_GEMM_Q4_1: read_q4_1(at, p); break;
            case IWP_GEMM_Q8_0: read_q8_0(at, p); break;
            case IWP_GEMM_Q4_K: read_q4_k(at, p); break;
            case IWP_GEMM_Q5_K: read_q5_k(at, p); break;
            case IWP_GEMM_Q6_K: read_q6_k(at, p); break;
            }
    }
}

/* Finished sums of 32 rows from r on and one panel of columns. */
static void finish(const struct iwp_gemm_bulk *op, const float *c, const float *gate, int32_t r,
                   int32_t col) {
    const int32_t n = op->n - r < 32 ? op->n - r : 32;
    const float zero[32] = {0};
    const float *bias = op->mat.bias ? op->mat.bias + col : zero,
                *bias_gate = gate && op->gate.bias ? op->gate.bias + col : zero;
    if (gate)
        store_rows(op->out +
                       ((size_t)(r / 32) * (size_t)(op->mat.m / 32) + (size_t)(col / 32)) * BLOCK,
                   0, c, gate, bias, bias_gate, op->act);
    else
        store(op->y + r * op->stride + col, op->stride, c, n, 32, bias,
              op->res ? op->res + r * op->stride + col : NULL, op->act);
}

/* Rows [first, last): as many as there is room for sums. */
static void bulk_rows(const struct iwp_gemm_bulk *op, int32_t col, int32_t n_cols, int32_t first,
                      int32_t last, uint16_t *w, float *sums) {
    const int32_t k_all = op->mat.k, kt = k_all / 32, n_w = op->gate.w ? 2 : 1;
    const int32_t step = (k_all + (k_all + KC - 1) / KC - 1) / ((k_all + KC - 1) / KC);
    const int32_t kc = (step + 255) / 256 * 256, panels = n_cols / 32 * n_w;
    for (int32_t k0 = 0; k0 < k_all; k0 += kc) {
        const int32_t k = k_all - k0 < kc ? k_all - k0 : kc, steps = k / 32;
        const size_t panel = (size_t)k * 32;
        read_tiles(w, &op->mat, col, n_cols, k0, k);
        if (n_w == 2) read_tiles(w + (size_t)(n_cols / 32) * panel, &op->gate, col, n_cols, k0, k);
        for (int32_t r = first; r < last; r += 32) {
            const uint16_t *rows =
                op->rows + ((size_t)(r / 32) * (size_t)kt + (size_t)(k0 / 32)) * BLOCK;
            const char *next = r + 32 < last ? (const char *)(rows + (size_t)kt * BLOCK) : NULL;
            float *c = sums + (size_t)((r - first) / 32 * panels) * BLOCK;
            for (int32_t p = 0; p < panels; p++) {
                tile(c + (size_t)p * BLOCK, rows, w + (size_t)p * panel, steps, k0 > 0, next);
                if (next) next += (size_t)steps * 256;
            }
            if (k0 + k < k_all) continue;
            for (int32_t p = 0; p < n_cols / 32; p++)
                finish(op, c + (size_t)p * BLOCK,
                       n_w == 2 ? c + (size_t)(n_cols / 32 + p) * BLOCK : NULL, r, col + p * 32);
        }
    }
}

static void bulk_tiles(const struct iwp_gemm_bulk *op, int32_t col, int32_t n_cols, void *scratch) {
    uint16_t *w = scratch;
    float *sums = (float *)(void *)(w + (size_t)IWP_GEMM_COLS * KC);
    for (int32_t r = 0; r < op->n; r += ROWS)
        bulk_rows(op, col, n_cols, r, op->n - r < ROWS ? op->n : r + ROWS, w, sums);
}
