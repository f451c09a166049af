/* A test program is a list of functions: TEST(name) { CHECK(...); } and one TEST_MAIN(a, b, c).
 * CHECK survives NDEBUG, prints place and values, and goes on; the program exits 1 if any failed. */
#ifndef IWP_TEST_H
#define IWP_TEST_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_failed, test_checked;

#define TEST(name) static void test_##name(void)

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        test_checked++;                                                                            \
        if (!(cond)) {                                                                             \
            test_failed++;                                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);                     \
        }                                                                                          \
    } while (0)

/* CHECK with a printf-style explanation. */
#define CHECK_MSG(cond, ...)                                                                       \
    do {                                                                                           \
        test_checked++;                                                                            \
        if (!(cond)) {                                                                             \
            test_failed++;                                                                         \
            fprintf(stderr, "%s:%d: failed: %s: ", __FILE__, __LINE__, #cond);                     \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

#define CHECK_INT(got, want)                                                                       \
    do {                                                                                           \
        long long got_ = (long long)(got), want_ = (long long)(want);                              \
        CHECK_MSG(got_ == want_, "got %lld, want %lld", got_, want_);                              \
    } while (0)

#define CHECK_NEAR(got, want, tol)                                                                 \
    do {                                                                                           \
        double got_ = (double)(got), want_ = (double)(want);                                       \
        CHECK_MSG(fabs(got_ - want_) <= (tol), "got %.9g, want %.9g", got_, want_);                \
    } while (0)

#define CHECK_STR(got, want)                                                                       \
    do {                                                                                           \
        const char *got_ = (got), *want_ = (want);                                                 \
        CHECK_MSG(got_ &&strcmp(got_, want_) == 0, "got '%s', want '%s'", got_ ? got_ : "(null)",  \
                  want_);                                                                          \
    } while (0)

/* A small deterministic generator for test data (xorshift64*). */
static inline uint64_t test_rand(uint64_t *s) {
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * 0x2545F4914F6CDD1DULL;
}

static inline double test_uniform(uint64_t *s) {
    return (double)(test_rand(s) >> 11) / 9007199254740992.0;
}

/* Sum of 12 uniforms: close enough to a normal variable for test data. */
static inline float test_normal(uint64_t *s) {
    double x = -6;
    for (int i = 0; i < 12; i++) x += test_uniform(s);
    return (float)x;
}

static inline int test_done(void) {
    fprintf(stderr, "%d checks, %d failed\n", test_checked, test_failed);
    return test_failed != 0 || test_checked == 0;
}

#endif
