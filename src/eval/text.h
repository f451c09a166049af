/* Strings of code points, for scorers that must count what Python counts.
 *
 * All memory comes from a pool that is freed as a whole; when it runs out the pool is marked failed
 * and every call gives an empty text, so that scorers need one check at their end. */
#ifndef IWP_EVAL_TEXT_H
#define IWP_EVAL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct iwp_text {
    const int32_t *cp; /* [n] code points */
    int32_t n;
};

struct iwp_text_pool {
    struct iwp_text_chunk *chunk;
    bool failed;
};

void iwp_text_pool_free(struct iwp_text_pool *p); /* a zeroed one is fine */
int32_t *iwp_text_alloc(struct iwp_text_pool *p, int32_t n);

/* Invalid bytes become U+FFFD. */
struct iwp_text iwp_text_decode(struct iwp_text_pool *p, const char *utf8);
char *iwp_text_encode(struct iwp_text t); /* caller frees; NULL: no memory */

bool iwp_text_is_space(int32_t c); /* Python's str.isspace */
struct iwp_text iwp_text_slice(struct iwp_text t, int32_t from, int32_t to);
struct iwp_text iwp_text_strip(struct iwp_text t); /* Unicode white space */
struct iwp_text iwp_text_strip_set(struct iwp_text t,
                                   const char *set); /* these ASCII characters, both ends */
struct iwp_text iwp_text_lower(struct iwp_text_pool *p, struct iwp_text t);
struct iwp_text iwp_text_capitalize(struct iwp_text_pool *p, struct iwp_text t);
int32_t iwp_text_upper_length(struct iwp_text t); /* len(s.upper()): "ß" counts 2 */
struct iwp_text iwp_text_join(struct iwp_text_pool *p, const struct iwp_text *t, int32_t n,
                              const char *between);
struct iwp_text iwp_text_replace(struct iwp_text_pool *p, struct iwp_text t, const char *from,
                                 const char *to);
/* Deletes every character of an ASCII set. */
struct iwp_text iwp_text_delete(struct iwp_text_pool *p, struct iwp_text t, const char *set);
/* Words between white space; returns their number. */
int32_t iwp_text_split(struct iwp_text_pool *p, struct iwp_text t, struct iwp_text **words);

bool iwp_text_equal(struct iwp_text a, struct iwp_text b);
bool iwp_text_is(struct iwp_text a, const char *ascii);
bool iwp_text_starts(struct iwp_text a, const char *ascii);
int32_t iwp_text_find(struct iwp_text a, struct iwp_text what, int32_t from); /* -1: nowhere */
int32_t iwp_text_rfind(struct iwp_text a, struct iwp_text what);
int32_t iwp_text_distance(struct iwp_text_pool *p, struct iwp_text a,
                          struct iwp_text b); /* Levenshtein */

#endif
