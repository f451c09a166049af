/* Round numbers for an axis: steps of 1, 2, 2.5 or 5 times a power of ten, about four of them. */
#ifndef IWP_VIEW_AXIS_H
#define IWP_VIEW_AXIS_H

#include <math.h>
#include <stdbool.h>

struct iwp_axis {
    double lo, hi, step;
    bool logarithmic; /* lo and hi are powers of ten then */
};

static inline struct iwp_axis iwp_axis_nice(double lo, double hi) {
    if (!(hi > lo)) {
        lo -= fabs(lo) * 0.05 + 0.5;
        hi += fabs(hi) * 0.05 + 0.5;
    }
    const double raw = (hi - lo) / 4, p = pow(10, floor(log10(raw))), m = raw / p;
    const double step = p * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 2.5 ? 2.5 : m <= 5 ? 5 : 10);
    /* the small part: an end that is a whole step but for rounding adds no empty one */
    return (struct iwp_axis){floor(lo / step + 1e-9) * step, ceil(hi / step - 1e-9) * step, step,
                             false};
}

#endif
