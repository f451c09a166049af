/* The JSON scan on any bytes: what it accepts cJSON must accept too (and print as JSON again), what
 * it refuses comes with one line and a byte position inside the text. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct iwp_json_limits lim = {.depth = 32, .values = 100000};
    iwp_err err = {0};
    const char *text = (const char *)data;
    int rc = iwp_json_check(text, size, lim, &err);
    if (rc < 0) {
        if (err.pos < 0 || (size_t)err.pos > size || strchr(err.msg, '\n')) abort();
        return 0;
    }
    if (!iwp_utf8_valid(text, size)) abort();
    cJSON *v = NULL;
    rc = iwp_json_parse(text, size, lim, &v, &err);
    if (rc < 0) {
        if (v || !strstr(err.msg, "appears twice"))
            abort(); /* the only thing the scan leaves open */
        return 0;
    }
    char *again = cJSON_PrintUnformatted(v);
    if (!again || iwp_json_check(again, strlen(again), lim, &err) < 0) abort();
    free(again);
    cJSON_Delete(v);

    /* Our emitter on the same bytes as a string: valid JSON that reads back. */
    struct iwp_json_out w;
    iwp_json_init(&w, size % 2);
    iwp_json_open_array(&w, NULL);
    iwp_json_put_bytes(&w, NULL, text, size);
    iwp_json_close_array(&w);
    if (w.failed || iwp_json_check(w.text, w.len, lim, &err) < 0) abort();
    iwp_json_free(&w);
    return 0;
}
