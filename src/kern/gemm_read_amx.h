/* Weights in the layout of ggml's AMX buffers and as files have them (gemm.h) to bf16 panels: for gemm_bulk.h.
 *
 * Numbers are made in the 16 lanes that hold their columns, without any shuffle: shifted into the mantissa
 * of a float of 128 (or 256), then one multiply-add takes that offset away and applies scale and minimum. */
enum {
    HALF_PANEL = BLOCK / 2,
    FORMS = ((2 << IWP_GEMM_Q6_K) - 1) | 1 << IWP_GEMM_FILE_F16 | 1 << IWP_GEMM_FILE_BF16 |
            1 << IWP_GEMM_FILE
};
#define BYTES  0
#define ROWS8  NULL
#define LAYOUT "AMX"

#include "kern/gemm_read_file.h"

static inline vu bytes64(const uint8_t *p) {
    vu v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* 16 scales of one byte each. */
static inline vf small(const uint8_t *p, int stride) {
    vi v;
    for (int i = 0; i < 16; i++) v[i] = p[i * stride];
    return __builtin_convertvector(v, vf);
}

/* Two neighbours of k of 16 columns: one line of a panel. */
static inline void save_pair(uint16_t *to, vf even, vf odd) {
    const vu v = pair_bf16(even, odd);
    memcpy(to, &v, sizeof v);
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

/* 32 k of 16 columns of a file, 16-bit numbers: pairs of neighbours in lanes. */
static inline void read_pairs(vu pairs[16], const struct iwp_gemm_quant *w, int32_t col,
                              int32_t k) {
    vf r[16]; /* which are only moved */
    for (int j = 0; j < 16; j++)
        memcpy(&r[j], w->w + (size_t)(col + j) * w->row + 2 * (size_t)k, sizeof r[j]);
    transpose16(r);
    memcpy(pairs, r, sizeof r);
}

static void read_bf16(uint16_t *to, const struct iwp_gemm_quant *w, int32_t col, int32_t k0,
                      int32_t k) {
    for (int32_t i = 0; i < k; i += 32, to += BLOCK)
        for (int h = 0; h < 2; h++) {
            vu pairs[16];
            read_pairs(pairs, w, col + 16 * h, k0 + i);
            memcpy(to + h * HALF_PANEL, pairs, sizeof pairs);
        }
}

/* f16 numbers as bf16 ones and, lo values further, what that takes from them; false when it takes nothing, as
 * from numbers that have been bf16 before. */
static bool read_halves(uint16_t *to, size_t lo, const struct iwp_gemm_quant *w, int32_t col,
                        int32_t k0, int32_t k) {
    vu any = (vu)all(0);
    for (int32_t i = 0; i < k; i += 32, to += BLOCK)
        for (int h = 0; h < 2; h++) {
            vu pairs[16];
            read_pairs(pairs, w, col + 16 * h, k0 + i);
            for (int t = 0; t < 16; t++) {
                const vh lower = __builtin_convertvector(pairs[t] & 0xffffu, vh),
                         upper = __builtin_convertvector(pairs[t] >> 16, vh);
                const vf even = halves(&lower), odd = halves(&upper);
                const vu hi = pair_bf16(even, odd),
                         low = pair_bf16(even - (vf)(hi << 16), odd - (vf)(hi & 0xffff0000u));
                any |= low & 0x7fff7fffu;
                memcpy(to + h * HALF_PANEL + t * 32, &hi, sizeof hi);
                memcpy(to + lo + h * HALF_PANEL + t * 32, &low, sizeof low);
            }
        }
    for (int i = 0; i < 16; i++)
        if (any[i]) return true;
    return false;
}

/* Panels of columns as files have them. */
static void read_file(uint16_t *to, const struct iwp_gemm_quant *w, int32_t col, int32_t n_cols,
                      int32_t k0, int32_t k) {
    for (int32_t j = 0; j < n_cols; j += 32, to += size_of(32, (size_t)k))
        if (w->form == IWP_GEMM_FILE_BF16)
            read_bf16(to, w, col + j, k0, k);
        else
            read_floats(to, w, col + j, k0, k);
}

static void read_tiles(void *panels, const struct iwp_gemm_quant *w, int32_t col, int32_t n_cols,
                       int32_t k0, int32_t k) {
    uint16_t *to = panels;
    if (w->form > IWP_GEMM_Q6_K) {
        read_file(to, w, col, n_cols, k0, k);
        return;
    }
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
            default: break; /* files' */
            }
    }
}

/* ---- for gemm_few.h ------------------------------------------------------------------------------ */

enum { FEW_VECS = 2, AHEAD = 3072 }; /* tiles at a time: streams of memory; bytes */

ALWAYS size_t few_step(void) { return iwp_gemm_tile_size(IWP_GEMM_Q8_0).bytes; }
ALWAYS size_t few_next(int32_t kt) { return (size_t)kt * few_step(); }

struct few_part { /* 16 neighbours of k */
    const uint8_t *p;
};
ALWAYS struct few_part few_open(const uint8_t *p, int half, int32_t kt, int32_t k) {
    (void)kt, (void)k;
    if (half) __builtin_prefetch(p + 512 + AHEAD);
    return (struct few_part){p + 256 * half};
}
/* Four of them in each lane. */
ALWAYS vu few_read(const struct few_part *part, int i) {
    __builtin_prefetch(part->p + 64 * i + AHEAD);
    return bytes64(part->p + 64 * i);
}

ALWAYS vf few_scales(const uint8_t *p, int32_t kt) {
    (void)kt;
    return halves(p + 512);
}
