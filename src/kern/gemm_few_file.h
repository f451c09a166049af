/* q8_0 weights as files have them (gemm.h), for gemm_few.h: 16 columns at a time, whose numbers are turned so that
 * a column's stay in its lane. */
enum { FEW_VECS = 1, AHEAD = 8192 }; /* bytes beyond the next 16 columns */

ALWAYS size_t few_step(void) { return Q8_0_BYTES; }
ALWAYS size_t few_next(int32_t kt) { return (size_t)kt * 16 * Q8_0_BYTES; }

/* Sixteen bytes of each of four columns, four apart. */
ALWAYS vi few_load(const uint8_t *p, size_t row) {
    typedef int32_t four __attribute__((vector_size(16)));
    typedef int32_t eight __attribute__((vector_size(32)));
    four v[4];
    for (int i = 0; i < 4; i++) memcpy(&v[i], p + (size_t)i * 4 * row, sizeof v[i]);
    const eight a = __builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 4, 5, 6, 7),
                b = __builtin_shufflevector(v[2], v[3], 0, 1, 2, 3, 4, 5, 6, 7);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

struct few_part { /* 16 neighbours of k, four in each lane of a vector */
    vu w[4];
};
/* Memory is fetched in the order in which it lies, not in which it is used: so many streams are too many for a CPU
 * to find, and L1 too small for them. */
ALWAYS struct few_part few_open(const uint8_t *p, int half, int32_t kt, int32_t k) {
    const size_t row = (size_t)kt * Q8_0_BYTES;
    const uint8_t *ahead = p + 16 * row + AHEAD + (size_t)k * 15 * Q8_0_BYTES + 272 * half;
    for (int i = 0; i < 272; i += 64) __builtin_prefetch(ahead + i, 0, 3);
    struct few_part to;
    vi z[4], t[4];
    for (int i = 0; i < 4; i++) z[i] = few_load(p + (size_t)i * row + 2 + 16 * half, row);
#define LOWER(a, b)                                                                                \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define UPPER(a, b)                                                                                \
    __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
    t[0] = LOWER(z[0], z[2]), t[1] = LOWER(z[1], z[3]);
    t[2] = UPPER(z[0], z[2]), t[3] = UPPER(z[1], z[3]);
    for (int i = 0; i < 4; i += 2) {
        to.w[i] = (vu)LOWER(t[i], t[i + 1]);
        to.w[i + 1] = (vu)UPPER(t[i], t[i + 1]);
    }
#undef LOWER
#undef UPPER
    return to;
}
ALWAYS vu few_read(const struct few_part *part, int i) { return part->w[i]; }

ALWAYS vf few_scales(const uint8_t *p, int32_t kt) {
    const size_t row = (size_t)kt * Q8_0_BYTES;
    uint16_t half[16];
    for (int i = 0; i < 16; i++) memcpy(&half[i], p + (size_t)i * row, sizeof half[i]);
    return halves(half);
}
