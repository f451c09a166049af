/* The safetensors reader on any bytes: whatever it accepts must be readable to the last byte, stay
 * inside the file and not share bytes; whatever it refuses must come with one line that says why. */
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

static volatile uint8_t sink;

static void touch(const struct iwp_st_tensor *t) {
    for (size_t i = 0; i < t->bytes; i++) sink ^= t->data[i];
    int64_t n = t->n < 256 ? t->n : 256, whole[256];
    float real[256];
    char text[80];
    iwp_err err;
    iwp_st_read_f32(t, t->n - n, n, real, &err);
    iwp_st_read_i64(t, t->n - n, n, whole, &err);
    iwp_st_describe(t, text, sizeof text);
    if (iwp_st_read_f32(t, t->n, 1, real, &err) == 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    iwp_st *st;
    iwp_err err = {0};
    int rc = iwp_st_open_memory(&st, data, size, "fuzz", &err);
    if (rc < 0) {
        if (st || !err.msg[0] || err.code != rc || strchr(err.msg, '\n')) abort();
        return 0;
    }
    size_t bytes = 0;
    for (int32_t i = 0; i < iwp_st_count(st); i++) {
        const struct iwp_st_tensor *t = iwp_st_at(st, i);
        touch(t);
        if (iwp_st_find(st, t->name) != t) abort();
        if (t->data < data || t->data + t->bytes > data + size) abort();
        bytes += t->bytes;
    }
    if (bytes > size) abort(); /* tensors would share bytes */
    if (iwp_st_at(st, iwp_st_count(st)) || iwp_st_at(st, -1)) abort();
    iwp_st_metadata(st, "format");
    iwp_st_close(st);
    return 0;
}
