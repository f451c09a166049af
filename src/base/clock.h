/* Monotonic time in milliseconds. */
#ifndef IWP_BASE_CLOCK_H
#define IWP_BASE_CLOCK_H

#include <time.h>

static inline double iwp_clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

#endif
