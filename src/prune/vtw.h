/* Choosing VTW's layer offline (methods-in-llm 6.3): for the first-token distributions of a few
 * calibration prompts with and without withdrawal. */
#ifndef IWP_PRUNE_VTW_H
#define IWP_PRUNE_VTW_H

#include <stdint.h>

/* KL(withdrawn ‖ full) = Σ W ln(W / F), in nats; terms with W = 0 count 0. */
double iwp_vtw_divergence(const double *withdrawn, const double *full, int32_t n);
/* The first of n layers from `first` on whose mean divergence is at most eta; -1: none. */
int32_t iwp_vtw_layer(const double *divergence, int32_t first, int32_t n, double eta);

#endif
