/* Threads for parallel loops.  One pool per process is the idea: the selection library, the tower's
 * kernels and the preprocessors all share it.
 *
 * iwp_pool_run() calls fn(arg, i) once for every i in [0, n), on any thread, in any order, and
 * returns when all calls have.  The caller works too.  Called from inside a loop body, or while
 * another thread's loop is running, it runs on the calling thread alone: never a deadlock, never
 * more threads than asked for.  Its signature is that of struct iwp_exec's `run`. */
#ifndef IWP_BASE_POOL_H
#define IWP_BASE_POOL_H

#include <stdint.h>

#include "iwp/error.h"

enum { IWP_POOL_MAX = 256 };
typedef struct iwp_pool iwp_pool;

/* n_thread counts the caller: 1 starts none.  0 = iwp_cpu_count(). */
int iwp_pool_new(iwp_pool **out, int32_t n_thread, iwp_err *err);
void iwp_pool_free(iwp_pool *p); /* joins; NULL is fine */
int32_t iwp_pool_threads(const iwp_pool *p);
void iwp_pool_run(void *pool, void (*fn)(void *arg, int32_t i), void *arg, int32_t n);

#endif
