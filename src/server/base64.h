/* Base64 (RFC 4648), standard alphabet. */
#ifndef IWP_SERVER_BASE64_H
#define IWP_SERVER_BASE64_H

#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"

/* Decodes; spaces and line breaks are skipped, the padding may be missing, the URL alphabet is taken
 * too.  Anything else is refused with its place in err->pos.  Caller frees *out. */
int iwp_base64_decode(const char *text, size_t n, uint8_t **out, size_t *n_out, iwp_err *err);

/* Zero-terminated text; caller frees.  NULL: no memory. */
char *iwp_base64_encode(const uint8_t *data, size_t n);

#endif
