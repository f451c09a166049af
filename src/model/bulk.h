/* Products of the decoder's weights with many rows (struct iwp_gemm_bulk), and of q8_0 ones with few (struct
 * iwp_gemm_few), as custom nodes.
 *
 * Other weights stay with ggml for few rows, in whose layout for this CPU all of them are (AMX, the one it repacks
 * q4_0 and q4_K into elsewhere, or rows as in the file); our products read that same layout: no second copy,
 * nothing to do at load.  A layout is ggml's own affair, so a type is
 * tried on random weights before its first use, and left to ggml where a number differs.
 * Only when the CPU is the only device. */
#ifndef IWP_MODEL_BULK_H
#define IWP_MODEL_BULK_H

#include <stdbool.h>

#include "kern/gemm.h"
#include "model/backend.h"

struct iwp_bulk;
/* *out is NULL where nothing is to be gained. */
int iwp_bulk_new(struct iwp_bulk **out, const struct iwp_backend *b, iwp_err *err);
void iwp_bulk_free(struct iwp_bulk *u); /* NULL is fine */
/* From how many rows on a loaded weight is multiplied here; 0: never, also for u NULL. */
int32_t iwp_bulk_from(struct iwp_bulk *u, const struct ggml_tensor *w);
/* What rows of its products have to be: split, to be as exact as ggml's, or bytes, which are that. */
enum iwp_gemm_kind iwp_bulk_kind(struct iwp_bulk *u, const struct ggml_tensor *w);

/* Whether n rows are few enough for a product that rounds them to 16 bits (ggml's: 8); false for u NULL.  Then
 * x [k, n] · w: [m, n]. */
bool iwp_bulk_few(struct iwp_bulk *u, const struct ggml_tensor *w, int64_t n);
struct ggml_tensor *iwp_bulk_few_linear(struct iwp_bulk *u, struct ggml_context *ctx,
                                        struct ggml_tensor *x, struct ggml_tensor *w);

/* Whose product n rows are for: ours of many or of few, or ggml's, as for u NULL. */
enum iwp_bulk_by { IWP_BULK_GGML, IWP_BULK_FEW, IWP_BULK_MANY };
enum iwp_bulk_by iwp_bulk_choose(struct iwp_bulk *u, const struct ggml_tensor *w, int64_t n);
/* x [k, n] · w + b: [m, n], by that one.  b may be NULL. */
struct ggml_tensor *iwp_bulk_or_ggml(struct iwp_bulk *u, struct ggml_context *ctx,
                                     struct ggml_tensor *x, struct ggml_tensor *w,
                                     struct ggml_tensor *b);

/* n rows of k numbers as an operand of products. */
struct iwp_bulk_rows {
    struct ggml_tensor *t;
    int32_t k, n;
    enum iwp_gemm_kind kind;
};
/* Of x [k, n], f32, RMS-normed when w is given. */
struct iwp_bulk_rows iwp_bulk_rows(struct iwp_bulk *u, struct ggml_context *ctx,
                                   struct ggml_tensor *x, struct ggml_tensor *w, float eps,
                                   enum iwp_gemm_kind kind);
/* rows · w + b + res: [m, n] f32.  b and res may be NULL. */
struct ggml_tensor *iwp_bulk_linear(struct iwp_bulk *u, struct ggml_context *ctx,
                                    struct iwp_bulk_rows rows, struct ggml_tensor *w,
                                    struct ggml_tensor *b, struct ggml_tensor *res);
/* silu(rows · gate) * (rows · up) as rows again, of that kind; weight and bias of each, the bias may be NULL. */
struct iwp_bulk_rows iwp_bulk_gated(struct iwp_bulk *u, struct ggml_context *ctx,
                                    struct iwp_bulk_rows rows, struct ggml_tensor *const gate[2],
                                    struct ggml_tensor *const up[2], enum iwp_gemm_kind kind);

#endif
