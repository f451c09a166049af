/* The reference of the integer form: the 32 × 32 product as it is written down; see gemm.h. */
#include "kern/gemm_int16.h"

#include "kern/gemm_body.h"
#include "kern/gemm_read_int16.h"

#include "kern/gemm_few_file.h"

#include "kern/gemm_few.h"

#include "kern/gemm_bulk.h"

static void tile(float *c, const uint16_t *a, const uint16_t *b, int32_t n_k32, bool add,
                 const void *next) {
    (void)next;
    for (int r = 0; r < 32; r++)
        for (int j = 0; j < 32; j++) {
            float s = add ? c[r * 32 + j] : 0;
            for (int32_t i = 0, t = 0; i < n_k32; i++) {
                const uint16_t *x = a + (size_t)i * BLOCK, *y = b + (size_t)i * BLOCK;
                for (int k = 0; k < 32; k++)
                    t += (int16_t)x[r * 32 + k] *
                         (int16_t)y[j / 16 * 512 + k / 2 * 32 + j % 16 * 2 + k % 2];
                if ((i + 1) % RUN && i + 1 < n_k32) continue;
                float scale[2];
                memcpy(&scale[0], x + SUMS + 2 * r, sizeof scale[0]);
                memcpy(&scale[1], y + SUMS + 2 * j, sizeof scale[1]);
                s += (float)t * (scale[0] * scale[1]);
                t = 0;
            }
            c[r * 32 + j] = s;
        }
}

static void products8(int32_t panels, float *const c[2], const struct iwp_gemm_rows8 *a,
                      int32_t rows, const struct iwp_gemm_cols8 *const b[2], int32_t n, bool add,
                      enum cols8 kind, const char *const next[2]) {
    (void)next;
    for (int p = 0; p < panels && !add; p++) memset(c[p], 0, SUMS * sizeof **c);
    for (int p = 0; p < panels; p++)
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < 32; j++) {
                float s = c[p][r * 32 + j];
                for (int32_t i = 0; i < n; i++) {
                    int32_t t[2];
                    for (int h = 0; h < 2; h++) {
                        t[h] = kind == TWO_SCALES ? -32 * a[i].half[h][r] : 0;
                        for (int k = 16 * h; k < 16 * h + 16; k++)
                            t[h] += a[i].q[r][k] * b[p][i].q[j / 16][k / 4][j % 16][k % 4];
                    }
                    if (kind == TWO_SCALES) {
                        s += (float)t[0] * (a[i].scale[r] * b[p][i].scale[j]);
                        s += (float)t[1] * (a[i].scale[r] * b[p][i].second[j]);
                        continue;
                    }
                    const int32_t whole = t[0] + t[1] + (kind == EIGHTS ? a[i].start[r] : 0);
                    s += (float)whole * (a[i].scale[r] * b[p][i].scale[j]);
                    if (kind != EIGHTS) s -= a[i].sum[r] * b[p][i].least[j];
                }
                c[p][r * 32 + j] = s;
            }
}

void iwp_gemm_init_c16(struct iwp_gemm *g) { *g = table("c16"); }
