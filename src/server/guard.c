/* Who may ask: see guard.h. */
#include "server/guard.h"

#include <string.h>
#include <strings.h>

/* Length of the name in "name:port", "[v6]:port". */
static size_t name_length(const char *host) {
    if (host[0] == '[') {
        const char *end = strchr(host, ']');
        return end ? (size_t)(end - host) + 1 : strlen(host);
    }
    return strcspn(host, ":");
}

static bool same(const char *host, size_t n, const char *name) {
    return strlen(name) == n && strncasecmp(host, name, n) == 0;
}

bool iwp_guard_host(const char *host, bool loopback, const char *const *allowed,
                    int32_t n_allowed) {
    if (!loopback || !host) return true; /* without one no browser sent it */
    const size_t n = name_length(host);
    static const char *const ours[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (same(host, n, ours[i])) return true;
    for (int32_t i = 0; i < n_allowed; i++)
        if (same(host, n, allowed[i]) || strcasecmp(host, allowed[i]) == 0) return true;
    return false;
}

bool iwp_guard_origin(const char *origin, const char *host) {
    if (!origin) return true;
    const char *p = strstr(origin, "://");
    return host && p && strcasecmp(p + 3, host) == 0;
}

static bool equal(const char *a, const char *key) {
    const size_t n = strlen(a), m = strlen(key);
    unsigned diff = n != m;
    for (size_t i = 0; i < n; i++) diff |= (unsigned char)a[i] ^ (unsigned char)key[i % (m + 1)];
    return diff == 0;
}

bool iwp_guard_key(const char *authorization, const char *x_api_key, const char *key) {
    if (!key) return true;
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        return equal(authorization + 7, key);
    return x_api_key && equal(x_api_key, key);
}
