/* Weights of 3, 5 and 6 bits as files have them, 256 numbers to a block, to panels of bytes: part of
 * gemm_read_int16.h.  A register takes 64 neighbours of k of a column, each as a byte; sixteen of them, turned, are
 * half of two blocks of a panel. */
enum {
    Q3_K_BYTES = 32 + 64 + 12 + 2,
    Q5_K_BYTES = 2 * 2 + 12 + 32 + 128,
    Q6_K_BYTES = 128 + 64 + 16 + 2,
};

/* 32 bytes, and again; and what each half of that is shifted by. */
static inline vu twice(const uint8_t *p) {
    vu v;
    memcpy(&v, p, 32);
    memcpy((char *)&v + 32, p, 32);
    return v;
}
static inline vu by(uint32_t a, uint32_t b) {
    return (vu){a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
}

/* Numbers [64 g, 64 g + 64) of a block. */
static inline vu bits_q5_k(const uint8_t *p, uint32_t g) {
    return (twice(p + 48 + 32 * g) >> by(0, 4) & 0x0f0f0f0fu) |
           (twice(p + 16) >> by(2 * g, 2 * g + 1) & 0x01010101u) << 4;
}
static inline vu bits_q6_k(const uint8_t *p, uint32_t g) {
    const uint32_t half = g / 2, at = 4 * (g % 2);
    vu low;
    memcpy(&low, p + 64 * half, sizeof low);
    return (low >> at & 0x0f0f0f0fu) | (twice(p + 128 + 32 * half) >> by(at, at + 2) & 0x03030303u)
                                           << 4;
}
/* Times 8, so that 32 is taken from them as from 6-bit ones. */
static inline vu bits_q3_k(const uint8_t *p, uint32_t g) {
    const uint32_t half = g / 2, at = 4 * (g % 2), bit = 4 * half + at / 2;
    return (twice(p + 32 + 32 * half) >> by(at, at + 2) & 0x03030303u) << 3 |
           (twice(p) >> by(bit, bit + 1) & 0x01010101u) << 5;
}

/* The scales of a block's runs of 16. */
static inline void scales_q6_k(float scale[16], const uint8_t *p) {
    int8_t s[16];
    memcpy(s, p + 192, sizeof s);
    for (int i = 0; i < 16; i++) scale[i] = s[i];
}
/* 6 bits each: four, and two of four in the last word; 32 is taken from them, and they are for numbers times 8. */
static inline void scales_q3_k(float scale[16], const uint8_t *p) {
    uint32_t s[3];
    memcpy(s, p + 96, sizeof s);
    for (int i = 0; i < 16; i++) {
        const int word = i / 4;
        const uint32_t low = s[word % 2] >> 4 * (word / 2), high = s[2] >> 2 * word;
        const uint32_t q = (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
        scale[i] = (float)((int)(q >> 8 * (i % 4) & 255) - 32) / 8;
    }
}

/* Not through memory: clang 19 sees that one of the 16 is asked for. */
static inline float half_of(const uint8_t *p) {
    uint16_t h[16] = {0};
    memcpy(h, p, sizeof *h);
    return halves(h)[0];
}

/* Scales, and minima or the second scales, of column j of the eight blocks of a panel. */
static inline void put_scales(struct iwp_gemm_cols8 *to, int32_t j, enum iwp_gemm_form form,
                              const uint8_t *p) {
    float s[16], least[8];
    if (form == IWP_GEMM_FILE_Q5_K) {
        const float d = half_of(p), min = half_of(p + 2);
        scales_k(s, least, p + 4);
        for (int g = 0; g < 8; g++) to[g].scale[j] = d * s[g], to[g].least[j] = min * least[g];
        return;
    }
    const bool six = form == IWP_GEMM_FILE_Q6_K;
    const float d = half_of(p + (six ? 208 : 108));
    if (six)
        scales_q6_k(s, p);
    else
        scales_q3_k(s, p);
    for (int g = 0; g < 8; g++) to[g].scale[j] = d * s[2 * g], to[g].second[j] = d * s[2 * g + 1];
}

static inline __attribute__((always_inline)) void
read_k(struct iwp_gemm_cols8 *to, const struct iwp_gemm_quant *w, int32_t col, int32_t k0,
       int32_t k, const enum iwp_gemm_form form, const size_t bytes) {
    for (int32_t h = 0; h < 32; h += 16) {
        const uint8_t *p = w->w + (size_t)(col + h) * w->row + (size_t)(k0 / 256) * bytes;
        struct iwp_gemm_cols8 *t = to;
        for (int32_t i = 0; i < k / 256; i++, p += bytes, t += 8) {
            for (int32_t j = 0; j < 16; j++) put_scales(t, h + j, form, p + (size_t)j * w->row);
            for (uint32_t g = 0; g < 4; g++) {
                vf v[16]; /* only moved */
                for (int32_t j = 0; j < 16; j++) {
                    const uint8_t *from = p + (size_t)j * w->row;
                    v[j] = (vf)(form == IWP_GEMM_FILE_Q5_K   ? bits_q5_k(from, g)
                                : form == IWP_GEMM_FILE_Q6_K ? bits_q6_k(from, g)
                                                             : bits_q3_k(from, g));
                }
                transpose16(v);
                memcpy(t[2 * g].q[h / 16], v, sizeof t->q[0]);
                memcpy(t[2 * g + 1].q[h / 16], v + 8, sizeof t->q[0]);
            }
        }
    }
}

static void read_q3_k(struct iwp_gemm_cols8 *to, const struct iwp_gemm_quant *w, int32_t col,
                      int32_t k0, int32_t k) {
    read_k(to, w, col, k0, k, IWP_GEMM_FILE_Q3_K, Q3_K_BYTES);
}
static void read_q5_k(struct iwp_gemm_cols8 *to, const struct iwp_gemm_quant *w, int32_t col,
                      int32_t k0, int32_t k) {
    read_k(to, w, col, k0, k, IWP_GEMM_FILE_Q5_K, Q5_K_BYTES);
}
static void read_q6_k(struct iwp_gemm_cols8 *to, const struct iwp_gemm_quant *w, int32_t col,
                      int32_t k0, int32_t k) {
    read_k(to, w, col, k0, k, IWP_GEMM_FILE_Q6_K, Q6_K_BYTES);
}
