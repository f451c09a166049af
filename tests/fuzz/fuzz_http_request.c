/* Bodies and headers of requests as any bytes: parsed or refused with one line that is the client's
 * fault, nothing read from disk, and a Host or key is never taken by accident. */
#include <stdlib.h>
#include <string.h>

#include "server/guard.h"
#include "server/request.h"

static void headers(const char *text) {
    if (iwp_guard_host(text, true, NULL, 0) && strncmp(text, "127.0.0.1", 9) != 0 &&
        text[0] != '[' && text[0] != 'l' && text[0] != 'L')
        abort();
    (void)iwp_guard_origin(text, "localhost:8080");
    if (iwp_guard_key(text, NULL, "key") && strcmp(text + 7, "key") != 0) abort();
    if (iwp_guard_key(NULL, text, "key") && strcmp(text, "key") != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct iwp_request_defaults def;
    memset(&def, 0, sizeof def);
    def.sampler.top_k = 40;
    def.n_predict = -1;
    def.n_layer = 30;
    struct iwp_request r;
    iwp_err err = {0};
    int rc = iwp_request_parse(&r, (const char *)data, size, &def, &err);
    if (rc < 0) {
        if (rc != IWP_EINVAL && rc != IWP_EFORMAT) abort();
        if (!err.msg[0] || strchr(err.msg, '\n')) abort();
    } else {
        if (r.n_message < 1 || r.n_predict < -1 || r.sampler.temp < 0) abort();
        if (r.prune.on && !r.prune.params.method) abort();
        for (int32_t i = 0; i < r.n_part; i++)
            if ((r.part[i].kind == IWP_PART_TEXT) != (r.part[i].text != NULL)) abort();
    }
    iwp_request_free(&r);
    rc = iwp_request_parse_completion(&r, (const char *)data, size, &def, &err);
    if (rc >= 0 ? !r.raw || !r.raw[0] : rc != IWP_EINVAL && rc != IWP_EFORMAT) abort();
    iwp_request_free(&r);
    rc = iwp_request_parse_template(&r, (const char *)data, size, &def, &err);
    if (rc >= 0 ? r.n_message < 1 : rc != IWP_EINVAL && rc != IWP_EFORMAT) abort();
    iwp_request_free(&r);
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    headers(text);
    free(text);
    return 0;
}
