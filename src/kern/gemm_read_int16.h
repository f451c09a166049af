/* Weights in the layout of ggml's CPU_REPACK buffers (gemm.h) to panels of integers, which they are already:
 * for gemm_bulk.h. */
enum { FORMS = 1 << IWP_GEMM_Q4_0, REPACKED = 16 + 128 /* bytes of 8 columns × 32 k */ };
#define LAYOUT "CPU_REPACK"

typedef uint64_t columns8 __attribute__((vector_size(64)));
typedef uint16_t bytes8x2 __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));

/* Two neighbours of k of 8 columns, in the lower halves of the bytes. */
static inline void save_nibbles(uint16_t *to, bytes8x2 v) {
    const vh line = (__builtin_convertvector((bytes16)(v & 0x0f0f), vh) ^ 8) - 8;
    memcpy(to, &line, sizeof line);
}

/* Eight bytes of each column are its k from 8 h on, and 16 further in the upper halves. */
static inline void read_q4_0(uint16_t *to, const uint8_t *p) {
    for (int h = 0; h < 2; h++) {
        columns8 v;
        memcpy(&v, p + 64 * h, sizeof v);
        for (int i = 0; i < 4; i++) {
            const bytes8x2 pair = __builtin_convertvector(v >> (16 * i), bytes8x2);
            save_nibbles(to + (4 * h + i) * 32, pair);
            save_nibbles(to + (8 + 4 * h + i) * 32, pair >> 4);
        }
    }
}

static void read_tiles(uint16_t *to, const struct iwp_gemm_quant *w, int32_t col, int32_t n_cols,
                       int32_t k0, int32_t k) {
    const size_t row = (size_t)(w->k / 32) * REPACKED;
    for (int32_t j = 0; j < n_cols; j += 8) {
        const uint8_t *p = w->w + (size_t)((col + j) / 8) * row + (size_t)(k0 / 32) * REPACKED;
        uint16_t *block = to + (size_t)(j / 32) * size_of(32, (size_t)k);
        for (int32_t i = 0; i < k; i += 32, p += REPACKED, block += BLOCK) {
            const vf d = halves(p);
            memcpy(scales(block) + j % 32, &d, 8 * sizeof(float));
            read_q4_0(block + j % 32 / 16 * 512 + j % 16 * 2, p + 16);
        }
    }
}
