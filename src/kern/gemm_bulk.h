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
    const size_t lo =
                     op->out_kind == IWP_GEMM_SPLIT ? size_of((size_t)op->n, (size_t)op->mat.m) : 0,
                 block = (size_t)(r / 32) * (size_t)(op->mat.m / 32) + (size_t)(col / 32);
    uint16_t *to = (uint16_t *)op->out + block * BLOCK;
    for (int32_t p = 0; p < panels; p++, c += SUMS, gate += SUMS, col += 32) {
        const float *bias = op->mat.bias ? op->mat.bias + col : zero,
                    *bias_gate = op->gate.bias ? op->gate.bias + col : zero;
        const int32_t i = p % RUN; /* of its run */
#if BYTES
        if (op->out_kind == IWP_GEMM_BYTES) {
            store_rows8((struct iwp_gemm_rows8 *)op->out + block + p, c, gate, bias, bias_gate,
                        op->act);
            continue;
        }
#endif
        if (RUN == 1)
            store_rows(to + (size_t)p * BLOCK, lo, c, gate, bias, bias_gate, op->act);
        else
            keep_rows(c, c, gate, bias, bias_gate, op->act);
        if (RUN > 1 && (i == RUN - 1 || p == panels - 1))
            store_run(to + (size_t)(p - i) * BLOCK, c - (size_t)i * SUMS, i + 1);
    }
}

/* Bytes of a block of rows and of one of columns. */
struct blocks {
    size_t row, col;
};
static inline struct blocks blocks_of_kind(enum iwp_gemm_kind kind) {
    return kind == IWP_GEMM_BYTES
               ? (struct blocks){sizeof(struct iwp_gemm_rows8), sizeof(struct iwp_gemm_cols8)}
               : (struct blocks){BLOCK * sizeof(uint16_t), BLOCK * sizeof(uint16_t)};
}

/* The next 32 rows and then what rounding took from them, as far as the products of all panels may fetch
 * them; those of panel p do `bytes` of it. */
static const char *ahead(const char *rows, struct rests lo, size_t whole, int32_t p, size_t bytes) {
    const size_t at = (size_t)p * bytes;
    if (at + bytes <= whole) return rows + at;
    return lo.rows && at >= whole && at + bytes <= 2 * whole
               ? rows + lo.rows * sizeof(uint16_t) + at - whole
               : NULL;
}

/* Weights of a block of k: panels of mat, then of gate, `panel` bytes each.  Those of f16 numbers in a split product
 * have rests behind all panels; tells which have any. */
static void read_panels(const struct iwp_gemm_bulk *op, int32_t col, int32_t n_cols, int32_t k0,
                        int32_t k, char *w, size_t panel, bool *rests) {
    const struct iwp_gemm_quant *const mats[2] = {&op->mat, &op->gate};
    const int32_t panels = n_cols / 32;
    for (int32_t i = 0; i < (op->gate.w ? 2 : 1); i++, w += (size_t)panels * panel) {
#if SPLITS
        if (op->kind == IWP_GEMM_SPLIT && mats[i]->form == IWP_GEMM_FILE_F16) {
            const size_t lo = (size_t)panels * panel / sizeof(uint16_t) * (op->gate.w ? 2 : 1);
            for (int32_t p = 0; p < panels; p++)
                rests[i * panels + p] = read_halves((uint16_t *)(void *)(w + (size_t)p * panel), lo,
                                                    mats[i], col + 32 * p, k0, k);
            continue;
        }
#endif
        for (int32_t p = 0; p < panels; p++) rests[i * panels + p] = false;
        read_tiles(w, mats[i], col, n_cols, k0, k);
    }
}

/* Two panels that are multiplied together: packed numbers may have been anything before, but what bytes are (enum
 * cols8) is a constant of their product. */
static inline bool alike(enum iwp_gemm_kind kind, enum iwp_gemm_form a, enum iwp_gemm_form b) {
#if BYTES
    if (kind == IWP_GEMM_BYTES) return cols8_of(a) == cols8_of(b);
#endif
    (void)kind, (void)a, (void)b;
    return true;
}

/* products() of n rows and of columns that are alike. */
static inline void products_of(enum iwp_gemm_kind kind, enum iwp_gemm_form form, int32_t panels,
                               float *const c[2], const char *rows, int32_t n,
                               const char *const cols[2], struct rests lo, int32_t steps, bool add,
                               const char *const next[2]) {
#if BYTES
    if (kind == IWP_GEMM_BYTES) {
        const struct iwp_gemm_cols8 *const b[2] = {(const void *)cols[0], (const void *)cols[1]};
        products8(panels, c, (const void *)rows, n, b, steps, add, cols8_of(form), next);
        return;
    }
#endif
    (void)kind, (void)form, (void)n; /* all 32 */
    const uint16_t *const b[2] = {(const void *)cols[0], (const void *)cols[1]};
    products(panels, c, (const void *)rows, b, lo, steps, add, next);
}

/* Rows [first, last): as many as there is room for sums. */
static void bulk_rows(const struct iwp_gemm_bulk *op, int32_t col, int32_t n_cols, int32_t first,
                      int32_t last, char *w, float *sums) {
    const int32_t k_all = op->mat.k, kt = k_all / 32, n_w = op->gate.w ? 2 : 1;
    const bool split = op->kind == IWP_GEMM_SPLIT,
               both = split &&
                      (op->mat.form == IWP_GEMM_FILE_F16 || op->gate.form == IWP_GEMM_FILE_F16);
    const int32_t most = both ? KC / 2 / 256 * 256 : KC, n_k = (k_all + most - 1) / most;
    const int32_t kc = ((k_all + n_k - 1) / n_k + 255) / 256 * 256, panels = n_cols / 32 * n_w;
    const size_t lo_rows = split ? size_of((size_t)op->n, (size_t)k_all) : 0;
    const struct blocks size = blocks_of_kind(op->kind);
    bool rests[IWP_GEMM_COLS / 32];
    for (int32_t k0 = 0; k0 < k_all; k0 += kc) {
        const int32_t k = k_all - k0 < kc ? k_all - k0 : kc, steps = k / 32;
        const size_t panel = (size_t)steps * size.col, strip = (size_t)steps * size.row;
        read_panels(op, col, n_cols, k0, k, w, panel, rests);
        for (int32_t r = first; r < last; r += 32) {
            const char *rows = (const char *)op->rows +
                               ((size_t)(r / 32) * (size_t)kt + (size_t)(k0 / 32)) * size.row;
            float *c = sums + (size_t)((r - first) / 32 * panels) * SUMS;
            for (int32_t p = 0, n; p < panels; p += n) {
                const struct iwp_gemm_quant *from[2];
                for (int32_t i = 0; i < 2; i++)
                    from[i] = p + i < n_cols / 32 ? &op->mat : &op->gate;
                n = 1;
                if (PAIRS && p + 1 < panels && alike(op->kind, from[0]->form, from[1]->form)) n = 2;
                const struct rests lo = {lo_rows,
                                         rests[p] ? (size_t)panels * panel / sizeof(uint16_t) : 0};
                float *const to[2] = {c + (size_t)p * SUMS, c + (size_t)(p + 1) * SUMS};
                const char *const cols[2] = {w + (size_t)p * panel, w + (size_t)(p + 1) * panel};
                const char *next[2] = {0};
                for (int32_t i = 0; i < n && r + 32 < last; i++)
                    next[i] = ahead(rows + (size_t)kt * size.row, lo, strip, p + i,
                                    (size_t)steps * (split ? 512 : 256));
                products_of(op->kind, from[0]->form, n, to, rows, last - r < 32 ? last - r : 32,
                            cols, lo, steps, k0 > 0, (const char *const *)next);
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
    char *w = scratch;
    float *sums = (float *)(void *)(w + size_of(IWP_GEMM_COLS, KC) * sizeof(uint16_t));
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
                             .pack_rows8 = ROWS8,
                             .layout = LAYOUT,
                             .forms = FORMS,
                             .bytes = BYTES,
                             .read = read_tiles,
                             .bulk = bulk_tiles,
                             .few = few,
                             .few_rows = few_pack_rows};
}
