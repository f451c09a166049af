/* What `iwp bench attention` and `iwp bench products` share: arguments of lists, random numbers. */
#ifndef IWP_CLI_BENCH_KERNEL_H
#define IWP_CLI_BENCH_KERNEL_H

#include <stdint.h>

#include <ggml.h>

#include "iwp/error.h"

/* A number from 1 to `most`, up to the character `end`. */
int iwp_bench_number(const char *flag, const char *text, char end, int32_t most, int32_t *out,
                     iwp_err *err);
/* One of these n, by ggml's name in small or large letters; `what` has types. */
int iwp_bench_type(const char *what, const enum ggml_type *known, int32_t n, const char *name,
                   enum ggml_type *out, iwp_err *err);

float iwp_bench_noise(uint64_t *seed); /* mean 0, deviation 1 */

#endif
