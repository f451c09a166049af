/* The pool: every index once, nested and concurrent loops, many short loops. */
#include "base/pool.h"

#include "base/cpus.h"

#include <pthread.h>
#include <stdatomic.h>

#include "test.h"

enum { N = 1000 };
static atomic_int hits[N];
static iwp_pool *pool;

static void hit(void *arg, int32_t i) {
    (void)arg;
    atomic_fetch_add(&hits[i], 1);
}

static void nested(void *arg, int32_t i) {
    (void)i;
    iwp_pool_run(pool, hit, arg, N);
}

static void expect(int want) {
    for (int i = 0; i < N; i++) {
        CHECK_INT(atomic_load(&hits[i]), want);
        atomic_store(&hits[i], 0);
    }
}

TEST(loops) {
    iwp_err e;
    for (int32_t t = 1; t <= 4; t++) {
        CHECK_INT(iwp_pool_new(&pool, t, &e), 0);
        CHECK_INT(iwp_pool_threads(pool), t);
        for (int r = 0; r < 2000; r++) iwp_pool_run(pool, hit, NULL, 7);
        for (int i = 0; i < 7; i++) {
            CHECK_INT(atomic_load(&hits[i]), 2000);
            atomic_store(&hits[i], 0);
        }
        iwp_pool_run(pool, hit, NULL, N);
        expect(1);
        iwp_pool_run(pool, nested, NULL, 5);
        expect(5);
        iwp_pool_run(pool, hit, NULL, 0);
        expect(0);
        iwp_pool_free(pool);
    }
    iwp_pool_run(NULL, hit, NULL, N);
    expect(1);
    iwp_pool_free(NULL);
    CHECK_INT(iwp_pool_new(&pool, -4, &e), IWP_EINVAL);
}

static void *caller(void *arg) {
    for (int r = 0; r < 50; r++) iwp_pool_run(pool, hit, NULL, N);
    return arg;
}

TEST(callers) {
    iwp_err e;
    pthread_t t[3];
    CHECK_INT(iwp_pool_new(&pool, 3, &e), 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, caller, NULL) == 0);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    expect(150);
    iwp_pool_free(pool);
    CHECK(iwp_cpu_count() >= 1);
}

static void add(void *arg, int32_t i) { ((int64_t *)arg)[i] += i; } /* plain memory: for TSan */

TEST(memory) {
    iwp_err e;
    static int64_t sum[64];
    CHECK_INT(iwp_pool_new(&pool, 3, &e), 0);
    for (int r = 0; r < 500; r++) iwp_pool_run(pool, add, sum, 64);
    for (int i = 0; i < 64; i++) CHECK_INT(sum[i], 500 * i);
    iwp_pool_free(pool);
}

int main(void) {
    test_loops();
    test_callers();
    test_memory();
    return test_done();
}
