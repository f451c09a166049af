/* Detection: see cpu.h.  CPUID leaf 0x1D, which describes the tiles, is hidden by some hypervisors though
 * the instructions work; palette 1 (8 tiles of 16 rows of 64 bytes) is the only one there is, so it is
 * taken for granted where leaf 7 names AMX and the kernel grants the state. */
#define _GNU_SOURCE /* syscall */
#include "kern/cpu.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned all, masked;

#if defined(__x86_64__)
static uint64_t enabled_state(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* The tiles' 8 KB of state are granted to the process on request (Linux 5.16). */
static bool request_tiles(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return false;
#endif
}

static unsigned detect(void) {
    unsigned f = 0, a, b, c, d, a1, b1, c1, d1;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        f |= IWP_CPU_AVX2;
    else
        return f;
    const bool leaf7 = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0;
    const bool more = leaf7 && a >= 1 && __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) != 0;
    if (more && (a1 & 1u << 4)) f |= IWP_CPU_AVXVNNI;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return f;
    f |= IWP_CPU_AVX512;
    if (!leaf7) return f;
    if (c & 1u << 11) f |= IWP_CPU_VNNI;
    if (more && (a1 & 1u << 5)) f |= IWP_CPU_BF16;
#if defined(IWP_EMULATE_TILES)
    return f & IWP_CPU_VNNI && f & IWP_CPU_BF16 ? f | IWP_CPU_AMX_BF16 : f;
#endif
    const uint64_t tiles = 3u << 17;
    if ((d & 1u << 24) && (enabled_state() & tiles) == tiles && request_tiles()) {
        if (d & 1u << 25) f |= IWP_CPU_AMX_INT8;
        if (d & 1u << 22) f |= IWP_CPU_AMX_BF16;
    }
    return f;
}
#else
static unsigned detect(void) { return 0; }
#endif

static void init(void) {
    masked = all = detect();
    const char *want = getenv("IWP_CPU");
    if (!want) return;
    if (strcmp(want, "c") == 0) masked = 0;
    if (strcmp(want, "avx2") == 0) masked &= IWP_CPU_AVX2 | IWP_CPU_AVXVNNI;
    if (strcmp(want, "avx512") == 0) masked &= ~(unsigned)(IWP_CPU_AMX_INT8 | IWP_CPU_AMX_BF16);
}

unsigned iwp_cpu_features(void) {
    pthread_once(&once, init);
    return masked;
}

unsigned iwp_cpu_features_all(void) {
    pthread_once(&once, init);
    return all;
}
