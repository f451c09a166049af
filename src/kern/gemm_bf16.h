/* Packed numbers are bf16: for gemm_body.h. */
#include "kern/vec16.h"

enum { BLOCK = 32 * 32, SCALED = 0 };
#define PART    1.0f
#define NOTHING 0.0f

/* 32 neighbours of k. */
static inline void put_run(uint16_t *to, float *scale, vf a, vf b) {
    (void)scale;
    save_bf16(to, a);
    save_bf16(to + 16, b);
}

/* Weights of two neighbouring keys, for 16 queries. */
static inline void put_parts(uint16_t *to, vf a, vf b) {
    const vu w = (round_bf16(b) & 0xffff0000u) | (round_bf16(a) >> 16);
    memcpy(to, &w, sizeof w);
}
