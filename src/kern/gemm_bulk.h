/* Products of many rows with quantised weights (struct iwp_gemm_bulk): part of gemm_body.h for the paths
 * that have a read_tiles() (gemm_read_amx.h, gemm_read_int16.h).
 *
 * A block of weights, 256 columns by about a thousand k, becomes packed in L2 and is used there for all
 * rows, which pass by 32 at a time. */
enum { KC = IWP_GEMM_KC, ROWS = IWP_GEMM_ROWS };

/* Finished sums of 32 rows from r on and panels of columns from col on. */
static void finish(const struct iwp_gemm_bulk *op, const float *c, int32_t r, int32_t col,
                   int32_t panels) {
    const float zero[32] = {0};
    for (int32_t p = 0; p < panels; p++, c += SUMS, col += 32)
        store(op->y + r * op->stride + col, op->stride, c, op->n - r < 32 ? op->n - r : 32, 32,
              op->mat.bias ? op->mat.bias + col : zero,
              op->res ? op->res + r * op->stride + col : NULL, op->act);
}

/* The same with a gate, run by run; the sums are used up. */
static void finish_gated(const struct iwp_gemm_bulk *op, float *c, const float *gate, int32_t r,
                         int32_t col, int32_t panels) {
    const float zero[32] = {0};
    uint16_t *to =
        op->out + ((size_t)(r / 32) * (size_t)(op->mat.m / 32) + (size_t)(col / 32)) * BLOCK;
    for (int32_t p = 0; p < panels; p++, c += SUMS, gate += SUMS, col += 32) {
        const float *bias = op->mat.bias ? op->mat.bias + col : zero,
                    *bias_gate = op->gate.bias ? op->gate.bias + col : zero;
        const int32_t i = p % RUN; /* of its run */
        if (RUN == 1)
            store_rows(to + (size_t)p * BLOCK, 0, c, gate, bias, bias_gate, op->act);
        else
            keep_rows(c, c, gate, bias, bias_gate, op->act);
        if (RUN > 1 && (i == RUN - 1 || p == panels - 1))
            store_run(to + (size_t)(p - i) * BLOCK, c - (size_t)i * SUMS, i + 1);
    }
}

/* Rows [first, last): as many as there is room for sums. */
static void bulk_rows(const struct iwp_gemm_bulk *op, int32_t col, int32_t n_cols, int32_t first,
                      int32_t last, uint16_t *w, float *sums) {
    const int32_t k_all = op->mat.k, kt = k_all / 32, n_w = op->gate.w ? 2 : 1;
    const int32_t step = (k_all + (k_all + KC - 1) / KC - 1) / ((k_all + KC - 1) / KC);
    const int32_t kc = (step + 255) / 256 * 256, panels = n_cols / 32 * n_w;
    for (int32_t k0 = 0; k0 < k_all; k0 += kc) {
        const int32_t k = k_all - k0 < kc ? k_all - k0 : kc, steps = k / 32;
        const size_t panel = size_of(32, (size_t)k);
        read_tiles(w, &op->mat, col, n_cols, k0, k);
        if (n_w == 2) read_tiles(w + (size_t)(n_cols / 32) * panel, &op->gate, col, n_cols, k0, k);
        for (int32_t r = first; r < last; r += 32) {
            const uint16_t *rows =
                op->rows + ((size_t)(r / 32) * (size_t)kt + (size_t)(k0 / 32)) * BLOCK;
            const char *next = r + 32 < last ? (const char *)(rows + (size_t)kt * BLOCK) : NULL;
            float *c = sums + (size_t)((r - first) / 32 * panels) * SUMS;
            for (int32_t p = 0, n; p < panels; p += n) {
                n = PAIRS && p + 1 < panels ? 2 : 1;
                float *const to[2] = {c + (size_t)p * SUMS, c + (size_t)(p + 1) * SUMS};
                const uint16_t *const cols[2] = {w + (size_t)p * panel,
                                                 w + (size_t)(p + 1) * panel};
                const char *const soon[2] = {next, next ? next + (size_t)steps * 256 : NULL};
                products(n, to, rows, 0, cols, steps, false, k0 > 0, soon);
                if (next) next += (size_t)steps * 256 * (size_t)n;
            }
            if (k0 + k < k_all) continue;
            if (n_w == 2)
                finish_gated(op, c, c + (size_t)(n_cols / 32) * SUMS, r, col, n_cols / 32);
            else
                finish(op, c, r, col, n_cols / 32);
        }
    }
}

static void bulk_tiles(const struct iwp_gemm_bulk *op, int32_t col, int32_t n_cols, void *scratch) {
    uint16_t *w = scratch;
    float *sums = (float *)(void *)(w + size_of(IWP_GEMM_COLS, KC));
    for (int32_t r = 0; r < op->n; r += ROWS)
        bulk_rows(op, col, n_cols, r, op->n - r < ROWS ? op->n : r + ROWS, w, sums);
    settle();
}

/* What every path has; some put their own functions over it. */
static struct iwp_gemm table(const char *name) {
    return (struct iwp_gemm){.name = name,
                             .form = FORM,
                             .block = BLOCK,
                             .fine = SCALED,
                             .run = RUN,
                             .tile = tile,
                             .pack_cols = pack_cols,
                             .pack_halves = HALVES,
                             .linear = linear_tiles,
                             .mlp = mlp_tiles,
                             .attend = attend_tiles,
                             .pack_rows = pack_rows_at,
                             .layout = LAYOUT,
                             .forms = FORMS,
                             .read = read_tiles,
                             .bulk = bulk_tiles};
}
