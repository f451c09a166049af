/* Weights as files have them, a column's numbers one behind the other, to panels by way of floats: part of the
 * readers gemm_read_amx.h and gemm_read_int16.h. */
enum { PIECE = 256 }; /* of k: a multiple of every type's block */

/* n ≤ PIECE numbers of column `col` from k0 on. */
static inline void floats_of(float *to, const struct iwp_gemm_quant *w, int32_t col, int32_t k0,
                             int32_t n) {
    const uint8_t *p =
        w->w + (size_t)col * w->row + w->row * (size_t)k0 / (size_t)w->k; /* whole blocks */
    if (w->form == IWP_GEMM_FILE_F16)
        for (int32_t i = 0; i < n; i += 16) save(to + i, halves(p + 2 * i));
    else
        w->floats(p, to, n);
}

/* The panel of 32 columns from `col` on, a piece of each at a time; what it is packed into rounds it. */
static inline void read_floats(uint16_t *block, const struct iwp_gemm_quant *w, int32_t col,
                               int32_t k0, int32_t k) {
    _Alignas(64) float x[32 * PIECE];
    for (int32_t i = 0; i < k; i += PIECE, block += PIECE / 32 * BLOCK) {
        const int32_t n = k - i < PIECE ? k - i : PIECE;
        for (int32_t j = 0; j < 32; j++) floats_of(x + j * PIECE, w, col + j, k0 + i, n);
        pack_cols(block, x, PIECE, 32, n);
    }
}
