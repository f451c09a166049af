/* VATP as its authors run it: which cache entries one head sees at the next decoding step
 * (methods-in-llm 7.3, 7.4).  The engine's caches hold entries for all heads of a layer, so the method
 * `vatp` ranks visual tokens instead; this is the rule it was taken from, for analyses. */
#ifndef IWP_PRUNE_VATP_H
#define IWP_PRUNE_VATP_H

#include <stdint.h>

/* column [n]: attention each entry received; norm [n]: L1 norm of its value in this head.  Writes
 * visible [n] (the token to come is visible too) and returns their number: the first `sink` entries
 * before all others, the `heavy` best of the rest by column·norm, and the `recent` last ones.  Everything
 * is visible when n ≤ heavy + recent. */
int32_t iwp_vatp_visible(const double *column, const double *norm, int32_t n, int32_t sink,
                         int32_t heavy, int32_t recent, uint8_t *visible);

#endif
