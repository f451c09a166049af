/* Who may ask: the Host and Origin of a request, and its key. */
#ifndef IWP_SERVER_GUARD_H
#define IWP_SERVER_GUARD_H

#include <stdbool.h>
#include <stdint.h>

/* A page of another site can reach a server on this machine through a name that resolves to it; such a
 * request carries that name.  Servers bound to loopback therefore take loopback names only, and the ones
 * that were allowed.  Others take any. */
bool iwp_guard_host(const char *host, bool loopback, const char *const *allowed, int32_t n_allowed);
/* An Origin must be the page of this very host. */
bool iwp_guard_origin(const char *origin, const char *host);
/* "Bearer KEY" or the bare key, compared in constant time. */
bool iwp_guard_key(const char *authorization, const char *x_api_key, const char *key);

#endif
