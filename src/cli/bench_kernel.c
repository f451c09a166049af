/* Arguments and numbers of the benches of kernels: see bench_kernel.h. */
#include "cli/bench_kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/err.h"

int iwp_bench_number(const char *flag, const char *text, char end, int32_t most, int32_t *out,
                     iwp_err *err) {
    char *stop;
    const long n = strtol(text, &stop, 10);
    IWP_REQUIRE(stop != text && *stop == end && n > 0 && n <= most, err, IWP_EINVAL,
                "%s: '%.20s' is no number from 1 to %d", flag, text, most);
    *out = (int32_t)n;
    return 0;
}

int iwp_bench_type(const char *what, const enum ggml_type *known, int32_t n, const char *name,
                   enum ggml_type *out, iwp_err *err) {
    char names[200] = "";
    size_t used = 0;
    for (int32_t i = 0; i < n; i++) {
        if (strcasecmp(ggml_type_name(known[i]), name) == 0) {
            *out = known[i];
            return 0;
        }
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                     ggml_type_name(known[i]));
    }
    return iwp_err_set(err, IWP_EINVAL, "--type: no %s of type '%.20s', only %s", what, name,
                       names);
}

/* A cheap generator; sums of four bytes are round enough. */
float iwp_bench_noise(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    const uint64_t x = *s >> 32;
    return (float)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24 & 255)) / 147.8f - 3.45f;
}
