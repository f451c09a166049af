/* Fetching pictures: see fetch.h. */
#include "server/fetch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/err.h"

/* ---- addresses ---------------------------------------------------------------------------------- */

/* IANA's special-purpose registries, and what routers must not forward. */
static const struct {
    uint32_t net;
    int bits;
} special4[] = {
    {0x00000000, 8},  /* this network */
    {0x0a000000, 8},  /* private */
    {0x64400000, 10}, /* carrier's own, and some clouds' metadata */
    {0x7f000000, 8},  /* loopback */
    {0xa9fe0000, 16}, /* link-local: metadata of most clouds */
    {0xac100000, 12}, /* private */
    {0xc0000000, 24}, {0xc0000200, 24},
    {0xc0586300, 24}, {0xc0a80000, 16}, /* private */
    {0xc6120000, 15}, {0xc6336400, 24},
    {0xcb007100, 24}, {0xe0000000, 3}, /* multicast, reserved, broadcast */
};

static bool public4(uint32_t a) {
    for (size_t i = 0; i < sizeof special4 / sizeof *special4; i++)
        if ((a ^ special4[i].net) >> (32 - special4[i].bits) == 0) return false;
    return true;
}

static uint32_t word(const uint8_t *b) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static bool public6(const uint8_t b[16]) {
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b};
    if (memcmp(b, mapped, 12) == 0 || memcmp(b, nat64, 12) == 0) return public4(word(b + 12));
    if (b[0] == 0x20 && b[1] == 0x02) return public4(word(b + 2)); /* 6to4 */
    if (b[0] >> 5 != 1) return false;                   /* 2000::/3 is what is given out */
    if (word(b) >> 9 == 0x20010000u >> 9) return false; /* 2001::/23: Teredo and protocols */
    return word(b) != 0x20010db8u && word(b) >> 12 != 0x3fff0u; /* examples */
}

bool iwp_fetch_is_public(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, a, sizeof v4);
        return public4(ntohl(v4.sin_addr.s_addr));
    }
    if (a->sa_family != AF_INET6) return false;
    struct sockaddr_in6 v6;
    memcpy(&v6, a, sizeof v6);
    return public6(v6.sin6_addr.s6_addr);
}

bool iwp_fetch_is_allowed(const struct iwp_fetch *f, const char *host) {
    const size_t n = strlen(host);
    for (int32_t i = 0; i < f->n_domain; i++) {
        const char *d = f->domain[i];
        const size_t m = strlen(d);
        if (strcasecmp(host, d) == 0) return true;
        if (d[0] == '.' && n > m && strcasecmp(host + n - m, d) == 0) return true;
    }
    return f->n_domain == 0;
}

#ifdef IWP_CURL
#include <curl/curl.h>
#include <pthread.h>
#include <sys/socket.h>

struct transfer {
    const struct iwp_fetch *f;
    uint8_t *data;
    size_t n, cap;
    bool private_address, not_allowed, too_large, no_memory;
};

bool iwp_fetch_built(void) { return true; }

static bool loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, a, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    struct sockaddr_in6 v6;
    if (a->sa_family != AF_INET6) return false;
    memcpy(&v6, a, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

/* libcurl calls this with the address it is about to connect to: a name that resolves differently the
 * second time, or a redirect, comes by here too. */
static curl_socket_t on_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *a) {
    struct transfer *t = ctx;
    (void)purpose;
    if (!iwp_fetch_is_public(&a->addr) && !(t->f->allow_loopback && loopback(&a->addr))) {
        t->private_address = true;
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static size_t on_data(char *p, size_t size, size_t count, void *ctx) {
    struct transfer *t = ctx;
    const size_t n = size * count;
    if (n > t->f->max_bytes - t->n) {
        t->too_large = true;
        return 0;
    }
    if (t->n + n > t->cap) {
        const size_t cap = 2 * t->cap + n + 16384;
        uint8_t *q = realloc(t->data, cap);
        if (!q) {
            t->no_memory = true;
            return 0;
        }
        t->data = q;
        t->cap = cap;
    }
    memcpy(t->data + t->n, p, n);
    t->n += n;
    return n;
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    const struct transfer *t = ctx;
    (void)a, (void)b, (void)c, (void)d;
    return t->f->cancel && t->f->cancel(t->f->cancel_ctx);
}

static void start_curl(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

static void set_options(CURL *c, struct transfer *t, char message[CURL_ERROR_SIZE]) {
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, message);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_PROXY, ""); /* one would hide the address from us */
    curl_easy_setopt(c, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
    curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)t->f->max_bytes);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "iwp");
    curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, on_socket);
    curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
}

/* The host as libcurl reads it. */
static bool allowed(const struct iwp_fetch *f, const char *url) {
    if (f->n_domain == 0) return true;
    CURLU *u = curl_url();
    char *host = NULL;
    const bool ok = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                    curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
                    iwp_fetch_is_allowed(f, host);
    curl_free(host);
    curl_url_cleanup(u);
    return ok;
}

/* Redirects are followed by hand, because each may lead to another host. */
static CURLcode follow(CURL *c, struct transfer *t, const char *url) {
    const double end = iwp_clock_ms() + 1e3 * t->f->timeout_s;
    for (int32_t i = 0;; i++) {
        const double left = end - iwp_clock_ms();
        if (left < 1) return CURLE_OPERATION_TIMEDOUT;
        t->not_allowed = !allowed(t->f, url);
        if (t->not_allowed) return CURLE_REMOTE_ACCESS_DENIED;
        t->n = 0;
        curl_easy_setopt(c, CURLOPT_URL, url);
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)left);
        const CURLcode rc = curl_easy_perform(c);
        char *next = NULL; /* libcurl's until the next transfer, which copies it */
        if (rc != CURLE_OK || curl_easy_getinfo(c, CURLINFO_REDIRECT_URL, &next) != CURLE_OK ||
            !next)
            return rc;
        if (i == t->f->max_redirects) return CURLE_TOO_MANY_REDIRECTS;
        url = next;
    }
}

int iwp_fetch_url(const struct iwp_fetch *f, const char *url, uint8_t **data, size_t *size,
                  iwp_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_curl);
    *data = NULL;
    *size = 0;
    CURL *c = curl_easy_init();
    IWP_REQUIRE(c, err, IWP_ENOMEM, "out of memory");
    struct transfer t = {.f = f};
    char message[CURL_ERROR_SIZE] = "";
    set_options(c, &t, message);
    const CURLcode rc = follow(c, &t, url);
    curl_easy_cleanup(c);
    if (rc == CURLE_OK && t.n > 0) {
        *data = t.data;
        *size = t.n;
        return 0;
    }
    free(t.data);
    IWP_REQUIRE(!t.no_memory, err, IWP_ENOMEM, "out of memory");
    IWP_REQUIRE(rc != CURLE_ABORTED_BY_CALLBACK, err, IWP_ECANCELLED, "interrupted");
    IWP_REQUIRE(!t.not_allowed, err, IWP_EINVAL,
                "%.100s: leads to a host that is not allowed (--allowed-media-domains)", url);
    IWP_REQUIRE(!t.private_address, err, IWP_EINVAL,
                "%.100s: its address is private, and such are not fetched", url);
    IWP_REQUIRE(!t.too_large && rc != CURLE_FILESIZE_EXCEEDED, err, IWP_EINVAL,
                "%.100s: more than %zu MiB", url, f->max_bytes >> 20);
    IWP_REQUIRE(rc != CURLE_OPERATION_TIMEDOUT, err, IWP_EINVAL, "%.100s: not there within %d s",
                url, f->timeout_s);
    IWP_REQUIRE(rc != CURLE_OK, err, IWP_EINVAL, "%.100s: empty", url);
    IWP_REQUIRE(rc != CURLE_TOO_MANY_REDIRECTS, err, IWP_EINVAL, "%.100s: more than %d redirects",
                url, f->max_redirects);
    return iwp_err_set(err, IWP_EINVAL, "%.100s: %.80s", url,
                       message[0] ? message : curl_easy_strerror(rc));
}
#else
bool iwp_fetch_built(void) { return false; }

int iwp_fetch_url(const struct iwp_fetch *f, const char *url, uint8_t **data, size_t *size,
                  iwp_err *err) {
    (void)f, (void)url;
    *data = NULL;
    *size = 0;
    return iwp_err_set(err, IWP_ENOTSUP, "this build fetches nothing (no libcurl)");
}
#endif
