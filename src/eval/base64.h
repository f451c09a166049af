/* Bytes as text, for kept tokens and pictures in lines of JSON. */
#ifndef IWP_EVAL_BASE64_H
#define IWP_EVAL_BASE64_H

#include <stddef.h>
#include <stdint.h>

/* Caller frees; NULL: no memory. */
char *iwp_eval_base64(const uint8_t *data, size_t n);
/* The first n bits of base64 text (bit i of byte i/8, lowest first), one byte each; NULL: no memory, or
 * the text is shorter or not base64. */
uint8_t *iwp_eval_base64_bits(const char *text, size_t n);

#endif
