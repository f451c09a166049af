/* What `iwp bench select` measures a method against: the matrix products of its definition and, for the
 * greedy methods, a plain version of the whole method on BLAS.  OpenBLAS is loaded at run time when it is
 * there, never linked. */
#ifndef IWP_CLI_BENCH_PEERS_H
#define IWP_CLI_BENCH_PEERS_H

#include <stdint.h>

#include "iwp/prune.h"

typedef void iwp_sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha,
                          const float *a, int lda, const float *b, int ldb, float beta, float *c,
                          int ldc);
typedef void iwp_sgemv_fn(int order, int ta, int m, int n, float alpha, const float *a, int lda,
                          const float *x, int incx, float beta, float *y, int incy);
struct iwp_blas {
    void *lib;
    iwp_sgemm_fn *sgemm; /* NULL: not there */
    iwp_sgemv_fn *sgemv;
    void (*threads)(int);
};
void iwp_blas_open(struct iwp_blas *b);

/* One product [m,k]·[k,n], `times` of them. */
struct iwp_product {
    int32_t m, n, k, times;
};
enum { IWP_PRODUCT_MAX = 4 };

/* The products a method's definition asks for on this input, with its default options, to keep n_keep of
 * n visual tokens (codes 1); returns their number, 0 for methods that multiply no matrices. */
int iwp_peer_products(const char *method, const struct iwp_input *in, int32_t n, int32_t n_keep,
                      struct iwp_product out[IWP_PRODUCT_MAX]);
double iwp_product_count(const struct iwp_product *p, int n); /* multiply-adds */

/* Memory for all products of a case; run them once. */
struct iwp_product_run {
    float *a, *b, *c;
};
int iwp_product_run_init(struct iwp_product_run *r, const struct iwp_product *p, int n);
void iwp_product_run_free(struct iwp_product_run *r);
void iwp_product_run_once(const struct iwp_product_run *r, const struct iwp_blas *blas,
                          const struct iwp_product *p, int n);

/* divprune, cdpruner, scope with their default options, plainly: products by BLAS, the greedy loop as
 * written in the definition.  keep [n_keep] in the order of picking.  1 done, 0 not such a method, -1 no
 * memory. */
int iwp_peer_select(const struct iwp_blas *blas, const char *method, const struct iwp_input *in,
                    int32_t n, int32_t n_keep, int32_t *keep);

#endif
