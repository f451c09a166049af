/* Thread pool: see pool.h.
 *
 * A loop is open from its start until the caller finds no index left; a worker joins only while it
 * is open, so a worker that wakes late costs nothing.  Selections are loops of some 20 microseconds in
 * a row: workers look for the next one for a moment before they sleep. */
#include "base/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/cpus.h"
#include "base/err.h"

enum { SPIN = 4000 };

struct iwp_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    atomic_uint generation; /* counts loops; workers watch it */
    atomic_int joined;      /* workers inside the current loop */
    atomic_int next;        /* next index */
    atomic_flag busy;       /* one loop at a time */
    bool open, stop;        /* under lock */
    int32_t sleeping;       /* under lock */
    void (*fn)(void *, int32_t);
    void *arg;
    int32_t n, n_worker;
    pthread_t thread[];
};

static _Thread_local bool inside;

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void work(iwp_pool *p) {
    inside = true;
    for (;;) {
        int i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) break;
        p->fn(p->arg, i);
    }
    inside = false;
}

static void *worker(void *ctx) {
    iwp_pool *p = ctx;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0;
             i < SPIN && atomic_load_explicit(&p->generation, memory_order_acquire) == seen; i++)
            relax();
        pthread_mutex_lock(&p->lock);
        while (!p->stop && atomic_load(&p->generation) == seen) {
            p->sleeping++;
            pthread_cond_wait(&p->wake, &p->lock);
            p->sleeping--;
        }
        if (p->stop) {
            pthread_mutex_unlock(&p->lock);
            return NULL;
        }
        seen = atomic_load(&p->generation);
        bool join = p->open;
        if (join) atomic_fetch_add(&p->joined, 1);
        pthread_mutex_unlock(&p->lock);
        if (!join) continue;
        work(p);
        if (atomic_fetch_sub(&p->joined, 1) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->idle);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

void iwp_pool_run(void *pool, void (*fn)(void *arg, int32_t i), void *arg, int32_t n) {
    iwp_pool *p = pool;
    if (!p || n <= 1 || p->n_worker == 0 || inside || atomic_flag_test_and_set(&p->busy)) {
        for (int32_t i = 0; i < n; i++) fn(arg, i);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    atomic_store(&p->next, 0);
    p->open = true;
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    if (p->sleeping) pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);

    work(p);

    pthread_mutex_lock(&p->lock);
    p->open = false;
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < SPIN && atomic_load(&p->joined) > 0; i++) relax();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->joined) > 0) pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
    atomic_flag_clear(&p->busy);
}

int iwp_pool_new(iwp_pool **out, int32_t n_thread, iwp_err *err) {
    *out = NULL;
    if (n_thread == 0) n_thread = iwp_cpu_count();
    IWP_REQUIRE(n_thread > 0, err, IWP_EINVAL, "%d threads", n_thread);
    if (n_thread > IWP_POOL_MAX) n_thread = IWP_POOL_MAX;
    iwp_pool *p = calloc(1, sizeof *p + (size_t)n_thread * sizeof(pthread_t));
    IWP_REQUIRE(p, err, IWP_ENOMEM, "no memory for %d threads", n_thread);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    atomic_flag_clear(&p->busy);
    /* Signals are the main thread's business. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int bad = 0;
    for (int32_t i = 0; i + 1 < n_thread && !bad; i++) {
        bad = pthread_create(&p->thread[i], NULL, worker, p);
        if (!bad) p->n_worker++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (bad) {
        iwp_pool_free(p);
        return iwp_err_set(err, IWP_ENOMEM, "cannot start %d threads", n_thread);
    }
    *out = p;
    return 0;
}

void iwp_pool_free(iwp_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    atomic_fetch_add(&p->generation, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->n_worker; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->idle);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int32_t iwp_pool_threads(const iwp_pool *p) { return p ? p->n_worker + 1 : 1; }
