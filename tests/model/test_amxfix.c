/* What train/amxfix.c does to a program it is preloaded into: the tile leaf of CPUID is there, in new threads too, other
 * leaves are as they were, and a real fault still ends the program. Skipped where there is no AMX or nothing to trap with. */
#define _GNU_SOURCE /* syscall */
#include "test.h"

#include <cpuid.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARCH_GET_CPUID = 0x1011, LEAF_TILE = 0x1D, SKIP = 77 };

static unsigned leaf(unsigned n, unsigned sub, int reg) {
    unsigned r[4];
    __cpuid_count(n, sub, r[0], r[1], r[2], r[3]);
    return r[reg];
}

static void *in_thread(void *got) {
    *(unsigned *)got = leaf(LEAF_TILE, 1, 2);
    return NULL;
}

TEST(tiles) {
    CHECK(leaf(0, 0, 0) >= LEAF_TILE);
    CHECK_INT(leaf(LEAF_TILE, 0, 0), 1);
    CHECK_INT(leaf(LEAF_TILE, 1, 0), 1024 << 16 | 8192); /* bytes of a tile, of all tiles */
    CHECK_INT(leaf(LEAF_TILE, 1, 1), 8 << 16 | 64);      /* tiles, bytes of a row */
    CHECK_INT(leaf(LEAF_TILE, 1, 2), 16);                /* rows */
    unsigned rows = 0;
    pthread_t t;
    CHECK(pthread_create(&t, NULL, in_thread, &rows) == 0);
    pthread_join(t, NULL);
    CHECK_INT(rows, 16);
}

TEST(other_leaves) {
    CHECK_INT(leaf(0, 0, 1), signature_INTEL_ebx);
    CHECK(leaf(7, 0, 3) >> 24 & 1);
    CHECK(leaf(1, 0, 3) >> 26 & 1); /* SSE2 */
}

TEST(real_fault) {
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        *(volatile int *)8 = 1;
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

int main(void) {
    unsigned a, b, c, d;
    int amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 24 & 1;
    int shown = __get_cpuid_count(LEAF_TILE, 0, &a, &b, &c, &d) && a != 0;
    if (!amx || !shown) {
        puts("no AMX, or CPUID cannot be trapped here: skipped");
        return SKIP;
    }
    printf("CPUID is %strapped\n", syscall(SYS_arch_prctl, ARCH_GET_CPUID) == 0 ? "" : "not ");
    test_tiles();
    test_other_leaves();
    test_real_fault();
    printf("%d checks, %d failed\n", test_checked, test_failed);
    return test_failed != 0;
}
