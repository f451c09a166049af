/* Hashes: FNV-1a-64 for small things (keep-lists), SHA-256 for files and caches. */
#ifndef IWP_BASE_HASH_H
#define IWP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"

#define IWP_FNV64_INIT 0xcbf29ce484222325u
uint64_t iwp_fnv64(uint64_t h, const void *data, size_t n);

struct iwp_sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
};
void iwp_sha256_init(struct iwp_sha256 *s);
void iwp_sha256_add(struct iwp_sha256 *s, const void *data, size_t n);
void iwp_sha256_end(struct iwp_sha256 *s, uint8_t out[32]);
void iwp_sha256_hex(const uint8_t digest[32], char out[65]);
/* Of a whole file, in pieces. */
int iwp_sha256_file(const char *path, char out[65], iwp_err *err);

#endif
