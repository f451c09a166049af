/* malloc and friends of the program that includes this count while `counting` is set, and note the largest size and the sum.  Sanitizers bring their
 * own. */
#ifndef IWP_TESTS_COUNT_ALLOC_H
#define IWP_TESTS_COUNT_ALLOC_H

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "test.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

static atomic_int counting, n_alloc;
static _Atomic size_t most_alloc, all_alloc;
static inline void count_one(size_t n) {
    if (!counting) return;
    n_alloc++;
    all_alloc += n;
    if (n > most_alloc) most_alloc = n;
}
#if !defined(SANITIZED) && defined(__GLIBC__)
#define COUNTS 1
#pragma GCC visibility push(default) /* libraries' allocations, too */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { return count_one(n), __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return count_one(n * m), __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return count_one(n), __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return count_one(n), __libc_memalign(a, n); }
int posix_memalign(void **out, size_t a, size_t n) {
    count_one(n);
    *out = __libc_memalign(a, n);
    return *out ? 0 : ENOMEM;
}
#pragma GCC visibility pop
#endif

/* The counter works; under a sanitizer it says that it does not. */
static inline void check_counter(void) {
#ifdef COUNTS
    n_alloc = 0;
    counting = 1;
    void *volatile probe = malloc(10);
    counting = 0;
    free(probe);
    CHECK_INT(n_alloc, 1);
#else
    fprintf(stderr, "allocations are not counted under a sanitizer\n");
#endif
}

#endif
