/* Matrix products on packed operands, sums in f32: what a block of a vision tower needs, each as one
 * call per block of rows, so that everything between the products stays in the cache; and what a decoder
 * needs for many rows at once, weights read from their quantised form while they are multiplied.
 *
 * Operands are cut into blocks of 32 × 32 and stored block by block, along k first, zero-padded:
 *     rows     [n/32][k/32][2][16][32]        half, row, k        (iwp_gemm_size values)
 *     columns  [m/32][k/32][2][16][16][2]     half, k/2, column, k%2
 * the layouts of AMX's two operands, which the vector paths read as well.  A product of 32 rows and 32
 * columns is `tile`; all else is built on it and compiled once per instruction set (gemm_body.h).
 * Weights may be f16 instead, with the two neighbours of k apart, [2][16] in place of [16][2].
 *
 * With AMX numbers are bf16: rounding costs each factor at most 2^-9.  `split` takes factors as sums of
 * two bf16 numbers and adds three products (the smallest is left out): three times the work, factors good
 * to 2^-17.  Its weights are f16, of which the two numbers are made, exactly, panel by panel while they are
 * multiplied: half the memory.  Vector paths multiply integers of 16 bits, twice as many per instruction as
 * floats; 128 neighbours of k (in attention a whole row of q or k) share a scale, kept behind each block, and a
 * factor is off by at most 2^-12 of the largest they can be, by 2^-16 where one is far above the others.  8 bits
 * would be faster still, but features come out 1.3 to 5 % off (docs/SPEED.md); a decoder's rows are rounded to them
 * where its weights are q4_0 or q3_K to q6_K.  Sums are exact to f32.  Results differ between paths of one form by
 * the order of summation only. */
#ifndef IWP_KERN_GEMM_H
#define IWP_KERN_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IWP_GEMM_SIDE = 32, IWP_GEMM_RUN = 128 }; /* of a block, of a run at most */
enum iwp_gemm_act {
    IWP_GEMM_GELU_TANH,
    IWP_GEMM_GELU_QUICK,
    IWP_GEMM_GELU_ERF,
    IWP_GEMM_SILU,
    IWP_GEMM_NONE
};

/* Layer norm, or RMS norm, of the rows before a product; w NULL: none. */
struct iwp_gemm_norm {
    const float *w, *b; /* [k]; b may be NULL */
    float eps;
    bool rms;
};

struct iwp_gemm_mat {
    const uint16_t *w; /* columns [m][k]; NULL: absent */
    const float *bias; /* [m] or NULL */
    int32_t k, m;
    bool split; /* w is f16 */
};

/* y = act(norm(x) · W + bias) + res for up to three matrices whose results stand side by side. */
struct iwp_gemm_linear {
    const float *x, *res; /* [n][x_stride]; res [n][y_stride] or NULL */
    int64_t x_stride, y_stride;
    struct iwp_gemm_norm norm;
    struct iwp_gemm_mat mat[3];
    int32_t n_mat;
    enum iwp_gemm_act act;
    float *y;
};

/* y = x + (act(norm(x) · gate) * (norm(x) · up)) · down; without a gate act(norm(x) · up). */
struct iwp_gemm_mlp {
    const float *x;
    int64_t stride; /* of x and y */
    struct iwp_gemm_norm norm;
    struct iwp_gemm_mat gate, up, down;
    enum iwp_gemm_act act;
    float *y;
};

/* out = softmax(scale q · k) · v over all n_k rows, for one head. */
struct iwp_gemm_attend {
    const float *q, *k, *v; /* rows of d, d and d_v values */
    int64_t q_stride, k_stride, v_stride, out_stride;
    const float *rope_q,
        *rope_k; /* rows [rope_stride]: d/2 cosines, d/2 sines; NULL: no rotation */
    int64_t rope_stride;
    int32_t n_q, n_k, d, d_v;
    bool split;
    float scale;
    float *out;
};

/* What rows of a decoder's products are: numbers as this path packs them, sums of two such numbers, or bytes. */
enum iwp_gemm_kind { IWP_GEMM_PLAIN, IWP_GEMM_SPLIT, IWP_GEMM_BYTES };

/* Rows of bytes and weights of the types q4_0 and q3_K to q6_K, blocks of 32 × 32 one behind the other along k; 32
 * neighbours share a scale, of q3_K and q6_K weights 16.  A row's sum is there as each product takes it: made of
 * `half`, `start` cost 1 to 2 % of a product. */
struct iwp_gemm_rows8 {
    int8_t q[32][32];         /* row, k */
    float scale[32], sum[32]; /* of a row's numbers: minima */
    int32_t start[32];        /* -8 times the sum of a row's integers: q4_0 */
    int16_t half[2][32];      /* the sums of 16 of them: q3_K, q6_K */
};
struct iwp_gemm_cols8 {
    uint8_t q[2][8][16][4]; /* half of the columns, k/4, column, k%4 */
    /* A number is (q - 8) scale (q4_0), q scale - least (q4_K, q5_K) or, where 16 share a scale, (q - 32) times
     * `scale` or, of the latter 16, `second`. */
    float scale[32];
    union {
        float least[32], second[32];
    };
};

/* A decoder's weights as ggml holds them, read while they are multiplied.  Its AMX buffers: tiles of 16 columns and
 * one block of k (32 numbers, 256 the _K ones), along k first.  A tile has the numbers of 16 columns and
 * four neighbours of k in 64 bytes, column by column; of 4-bit ones two such sets share them, the lower
 * halves first.  Then what was cut off numbers of 5 and 6 bits, scales, minima, each for 16 columns.
 * CPU_REPACK, q4_0: 8 columns and 32 k, along k first; 8 scales, then [2][column][8] bytes with the k of
 * one half and, in their upper halves, 16 further, as signed numbers.  q4_K: 8 columns and 256 k; 8 scales,
 * 8 minima, [8][12] bytes with those of 32 k, then [16][column][8] bytes.
 * FILE: as in files, a column's blocks one behind the other; all types that `floats` reads (ggml's AMX buffers
 * hold f16 ones like that). */
enum iwp_gemm_form {
    IWP_GEMM_Q4_0,
    IWP_GEMM_Q4_1,
    IWP_GEMM_Q8_0,
    IWP_GEMM_Q4_K,
    IWP_GEMM_Q5_K,
    IWP_GEMM_Q6_K,
    IWP_GEMM_FILE_Q8_0,
    IWP_GEMM_FILE_F16,
    IWP_GEMM_FILE_BF16,
    IWP_GEMM_FILE_Q3_K,
    IWP_GEMM_FILE_Q5_K,
    IWP_GEMM_FILE_Q6_K,
    IWP_GEMM_FILE /* any other, and all that a path has no form for */
};
struct iwp_gemm_tile_size { /* AMX */
    int32_t k;              /* numbers of a column */
    size_t bytes;
};
struct iwp_gemm_tile_size iwp_gemm_tile_size(enum iwp_gemm_form form);
struct iwp_gemm_quant {
    const uint8_t *w;  /* m % 32 == 0; NULL: absent */
    const float *bias; /* [m] or NULL */
    enum iwp_gemm_form form;
    int32_t k, m;
    size_t row; /* FILE: bytes of a column, and what makes n numbers of them */
    void (*floats)(const void *from, float *to, int64_t n);
};

/* y = rows · W + bias + res; with a gate act(rows · gate) * (rows · W) as the rows of the next product. */
struct iwp_gemm_bulk {
    const void *rows; /* packed, [n][k]; split: behind them what rounding took, as much again */
    int32_t n;
    enum iwp_gemm_kind kind; /* BYTES where iwp_gemm.bytes has the form, and nowhere else */
    enum iwp_gemm_kind out_kind;
    struct iwp_gemm_quant mat, gate;
    enum iwp_gemm_act act;
    float *y;         /* [n][stride] */
    const float *res; /* the same, or NULL */
    int64_t stride;
    void *out; /* packed, [n][m]; only with a gate */
};

/* y = rows · W for few rows, which are rounded to 16 bits; q8_0 weights, as they lie where the path is used: in
 * AMX buffers or as in files. */
struct iwp_gemm_few {
    const void *rows; /* n × k / 32 blocks of few_rows */
    float *y;         /* [n][stride] */
    int64_t stride;
    int32_t n;
    struct iwp_gemm_quant mat; /* its bias is not looked at */
};
enum {
    IWP_GEMM_FEW_BLOCK = 72, /* bytes of 32 numbers of a row */
    IWP_GEMM_FEW_ROWS = 31,  /* that bulk's scratch has room for, so long */
    IWP_GEMM_FEW_K = 32768
};

struct iwp_gemm {
    const char *name;
    const char *form; /* of packed numbers: "bf16" or "int16" */
    int32_t block;    /* values of a packed block, scales included */
    bool fine;        /* factors are good to 2^-12: there is no split */
    int32_t run;      /* blocks of k that share a scale */
    /* c [32][32] = (or +=, when add) rows block · columns block over n_k32 blocks of k, from the
     * beginning of a run on.  `next`: what will be read soon, or NULL; 256 bytes per block of k are
     * fetched. */
    void (*tile)(float *c, const uint16_t *rows, const uint16_t *cols, int32_t n_k32, bool add,
                 const void *next);
    /* 32 columns (n ≤ 32 given as rows of w) into one panel; and the same of f16 numbers, for split
     * products (NULL where there is none). */
    void (*pack_cols)(uint16_t *panel, const float *w, int64_t stride, int32_t n, int32_t k);
    void (*pack_halves)(uint16_t *panel, const uint16_t *w, int64_t stride, int32_t n, int32_t k);
    /* Rows [first, first + n) of the operation; scratch from iwp_gemm_*_scratch, 64-byte aligned. */
    void (*linear)(const struct iwp_gemm_linear *op, int32_t first, int32_t n, void *scratch);
    void (*mlp)(const struct iwp_gemm_mlp *op, int32_t first, int32_t n, void *scratch);
    void (*attend)(const struct iwp_gemm_attend *op, void *scratch);
    /* Rows [first, first + n) of x, normed, into packed rows; first % 32 == 0.  Behind the last row of the
     * array zeros follow up to a multiple of 32.  lo > 0: what rounding takes from them, so many values
     * further (not where factors are fine). */
    void (*pack_rows)(uint16_t *rows, size_t lo, const float *x, int64_t stride, int32_t first,
                      int32_t n, int32_t k, const struct iwp_gemm_norm *norm);
    /* The same for rows of bytes; NULL where there are none.  k % 32 == 0. */
    void (*pack_rows8)(struct iwp_gemm_rows8 *rows, const float *x, int64_t stride, int32_t first,
                       int32_t n, int32_t k, const struct iwp_gemm_norm *norm);
    const char *layout; /* of weights that are not FILE: the name of ggml's buffers */
    unsigned forms;     /* that are read, 1 << form each */
    unsigned bytes;     /* those whose rows are bytes */
    /* n_cols ≤ IWP_GEMM_COLS columns from `col` on of k numbers from k0 on as panels; col and n_cols are
     * multiples of 32, k of the form's block, k0 of that and of a run.  Of bytes panels are iwp_gemm_cols8. */
    void (*read)(void *panels, const struct iwp_gemm_quant *w, int32_t col, int32_t n_cols,
                 int32_t k0, int32_t k);
    /* The columns [col, col + n_cols) of all rows; with a gate col is a multiple of 32 run.  Scratch of
     * iwp_gemm_bulk_scratch bytes. */
    void (*bulk)(const struct iwp_gemm_bulk *op, int32_t col, int32_t n_cols, void *scratch);
    /* Columns, multiples of 32, of few rows, and what makes these. */
    void (*few)(const struct iwp_gemm_few *op, int32_t col, int32_t n_cols);
    void (*few_rows)(void *rows, const float *x, int64_t stride, int32_t n, int32_t k);
};

/* The best path of this CPU (IWP_CPU masks), NULL when it has none but plain C. */
const struct iwp_gemm *iwp_gemm_get(void);
/* "c" and "amx" (bf16), "c16", "avx2", "avxvnni", "avx512", "vnni" (int16); NULL when this CPU or build
 * lacks it. */
const struct iwp_gemm *iwp_gemm_path(const char *name);

static inline size_t iwp_gemm_up(size_t n) { return (n + 31) & ~(size_t)31; }
/* 16-bit values of n packed rows (or columns) of k. */
static inline size_t iwp_gemm_size(const struct iwp_gemm *g, size_t n, size_t k) {
    return iwp_gemm_up(n) / 32 * (iwp_gemm_up(k) / 32) * (size_t)g->block;
}
/* Number `at` of a block, which belongs to its row (or column) `row`. */
float iwp_gemm_number(const struct iwp_gemm *g, const uint16_t *block, int32_t at, int32_t row);
/* Number k of column j of panels with k_all of them, as `read` makes them. */
float iwp_gemm_weight(const struct iwp_gemm *g, enum iwp_gemm_form form, const void *panels,
                      int32_t k_all, int32_t j, int32_t k);
/* Bytes. */
size_t iwp_gemm_rows_size(const struct iwp_gemm *g, enum iwp_gemm_kind kind, int32_t n, int32_t k);
size_t iwp_gemm_linear_scratch(const struct iwp_gemm *g, const struct iwp_gemm_linear *op,
                               int32_t n);
size_t iwp_gemm_mlp_scratch(const struct iwp_gemm *g, const struct iwp_gemm_mlp *op, int32_t n);
size_t iwp_gemm_attend_scratch(const struct iwp_gemm *g, int32_t n_k, int32_t d, int32_t d_v,
                               bool split);
/* Columns of one call of bulk: IWP_GEMM_COLS, half of them with a gate. */
enum { IWP_GEMM_COLS = 256 };
size_t iwp_gemm_bulk_scratch(const struct iwp_gemm *g);

void iwp_gemm_init_c(struct iwp_gemm *g);
void iwp_gemm_init_c16(struct iwp_gemm *g);
void iwp_gemm_init_avx2(struct iwp_gemm *g);
void iwp_gemm_init_avxvnni(struct iwp_gemm *g);
void iwp_gemm_init_avx512(struct iwp_gemm *g);
void iwp_gemm_init_vnni(struct iwp_gemm *g);
void iwp_gemm_init_amx(struct iwp_gemm *g);

#endif
