/* Pictures from the web, for servers that were told to (--allow-remote-images).
 *
 * A request names any address, so this is a way into the network the server stands in.  Therefore: http and
 * https only, no proxies, no credentials; every address is looked at after its name was resolved and
 * before the connection is made, redirects included, and must be a public one (and of a listed host, where there is
 * a list); bytes, seconds and redirects are limited.  Built on libcurl where it is there. */
#ifndef IWP_SERVER_FETCH_H
#define IWP_SERVER_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"

struct sockaddr;

struct iwp_fetch {
    size_t max_bytes;
    int32_t timeout_s, max_redirects;
    const char *const *domain; /* [n_domain] the only hosts asked; none: any */
    int32_t n_domain;
    bool allow_loopback; /* for tests; no flag of the program sets it */
    bool (*cancel)(void *ctx);
    void *cancel_ctx;
};

bool iwp_fetch_built(void); /* false: this build has no libcurl */
/* An address of the public internet: not private, link-local, loopback, multicast, reserved, nor one of
 * those inside an IPv6 address. */
bool iwp_fetch_is_public(const struct sockaddr *a);
/* Is it one of the names, or below one that begins with a dot?  Upper and lower case are one. */
bool iwp_fetch_is_allowed(const struct iwp_fetch *f, const char *host);
/* Failures are IWP_EINVAL (the URL, what it answers) or IWP_ECANCELLED.  Caller frees *data. */
int iwp_fetch_url(const struct iwp_fetch *f, const char *url, uint8_t **data, size_t *size,
                  iwp_err *err);

#endif
