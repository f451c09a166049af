/* Base64 (RFC 4648, with padding): see base64.h. */
#include "eval/base64.h"

#include <stdlib.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *iwp_eval_base64(const uint8_t *data, size_t n) {
    const size_t groups = (n + 2) / 3;
    char *out = malloc(groups * 4 + 1);
    if (!out) return NULL;
    for (size_t i = 0; i < groups; i++) {
        uint32_t w = 0;
        for (size_t k = 0; k < 3; k++) w = w << 8 | (3 * i + k < n ? data[3 * i + k] : 0u);
        for (size_t k = 0; k < 4; k++)
            out[4 * i + k] = 3 * i + k > n ? '=' : digits[w >> (18 - 6 * k) & 63];
    }
    out[groups * 4] = 0;
    return out;
}

uint8_t *iwp_eval_base64_bits(const char *text, size_t n) {
    if (strspn(text, digits) * 6 < n) return NULL;
    uint8_t *out = malloc(n + 1);
    for (size_t i = 0; out && i < n; i++) {
        const size_t bit = i / 8 * 8 + (7 - i % 8); /* in the order the digits hold them */
        const size_t v = (size_t)(strchr(digits, text[bit / 6]) - digits);
        out[i] = (uint8_t)(v >> (5 - bit % 6) & 1);
    }
    return out;
}
