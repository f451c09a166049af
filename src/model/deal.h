/* Units of work of a custom node, dealt out to ggml's threads one after the other. */
#ifndef IWP_MODEL_DEAL_H
#define IWP_MODEL_DEAL_H

#include <stdatomic.h>
#include <stdint.h>

struct iwp_deal {
    atomic_int next, gone;
    int32_t n_unit;
};

/* The next unit, or -1.  Every one of the nth threads of the graph comes here until it gets -1; the last one
 * makes the node ready for another run. */
static inline int32_t iwp_deal_take(struct iwp_deal *d, int nth) {
    const int i = atomic_fetch_add(&d->next, 1);
    if (i < d->n_unit) return i;
    if (atomic_fetch_add(&d->gone, 1) == nth - 1) { /* nobody else will look */
        atomic_store(&d->gone, 0);
        atomic_store(&d->next, 0);
    }
    return -1;
}

#endif
