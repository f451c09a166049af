/* Base64: see base64.h. */
#include "server/base64.h"

#include <stdlib.h>

#include "base/err.h"

/* 0…63, -1 for a character that may be skipped, -2 for one that may not be there. */
static int value(unsigned char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    if (c == '/' || c == '_') return 63;
    return c == ' ' || c == '\n' || c == '\r' || c == '\t' ? -1 : -2;
}

int iwp_base64_decode(const char *text, size_t n, uint8_t **out, size_t *n_out, iwp_err *err) {
    *out = NULL;
    *n_out = 0;
    uint8_t *data = malloc(n / 4 * 3 + 4), *at = data;
    IWP_REQUIRE(data, err, IWP_ENOMEM, "out of memory");
    uint32_t bits = 0;
    int have = 0, rc = 0;
    size_t i = 0;
    for (; i < n && text[i] != '='; i++) {
        const int v = value((unsigned char)text[i]);
        if (v == -1) continue;
        if (v < 0) {
            rc = iwp_err_set_at(err, IWP_EFORMAT, (int64_t)i, "byte %zu is no base64", i);
            goto fail;
        }
        bits = bits << 6 | (uint32_t)v;
        if (++have < 4) continue;
        *at++ = (uint8_t)(bits >> 16);
        *at++ = (uint8_t)(bits >> 8);
        *at++ = (uint8_t)bits;
        bits = 0;
        have = 0;
    }
    for (; i < n; i++) /* after the first '=' only padding */
        if (text[i] != '=' && value((unsigned char)text[i]) != -1) {
            rc = iwp_err_set_at(err, IWP_EFORMAT, (int64_t)i, "base64 goes on after its padding");
            goto fail;
        }
    if (have == 1) {
        rc = iwp_err_set_at(err, IWP_EFORMAT, (int64_t)n, "base64 ends within a byte");
        goto fail;
    }
    if (have >= 2) *at++ = (uint8_t)(have == 2 ? bits >> 4 : bits >> 10);
    if (have == 3) *at++ = (uint8_t)(bits >> 2);
    *out = data;
    *n_out = (size_t)(at - data);
    return 0;
fail:
    free(data);
    return rc;
}

char *iwp_base64_encode(const uint8_t *data, size_t n) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = malloc((n + 2) / 3 * 4 + 1), *at = text;
    if (!text) return NULL;
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t b = (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) |
                           (left > 2 ? data[i + 2] : 0);
        *at++ = digit[b >> 18];
        *at++ = digit[b >> 12 & 63];
        *at++ = left > 1 ? digit[b >> 6 & 63] : '=';
        *at++ = left > 2 ? digit[b & 63] : '=';
    }
    *at = 0;
    return text;
}
