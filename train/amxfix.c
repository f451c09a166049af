/* Lets oneDNN (inside torch) use AMX where a hypervisor shows the AMX bits but hides CPUID leaf 0x1D.
 *
 * oneDNN sizes its tiles by leaf 0x1D; with zeros there it builds a wrong tile configuration and dies with an illegal
 * instruction. Loaded by LD_PRELOAD, this library asks the kernel to trap CPUID (arch_prctl, Linux on Intel processors
 * with cpuid_fault), runs each trapped one for real and replaces the empty leaf by palette 1 of Intel's manual: 8 tiles of
 * 16 rows of 64 bytes. Nothing is changed on disk, and it does nothing where the leaf is there or the kernel cannot trap.
 * Not meant for programs that install their own SIGSEGV handler.
 *
 *     cc -O2 -shared -fPIC -o amxfix.so train/amxfix.c && LD_PRELOAD=$PWD/amxfix.so python3 ... */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012, LEAF_TILE = 0x1D, LEAF_7_AMX_TILE = 1 << 24 };

/* The flag belongs to a thread; new threads inherit it. */
static long trap_cpuid(int on) {
    return syscall(SYS_arch_prctl, ARCH_SET_CPUID, (unsigned long)!on);
}

static void tile_leaf(unsigned sub, unsigned r[4]) {
    static const unsigned max_palette[4] = {1, 0, 0, 0};
    static const unsigned palette1[4] = {1024u << 16 | 8192u, 8u << 16 | 64u, 16, 0};
    memcpy(r, sub == 0 ? max_palette : palette1, sizeof palette1);
}

static void on_segv(int sig, siginfo_t *info, void *context) {
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)g[REG_RIP];
    /* CPUID traps without an address; anything else is a real fault and comes again under the default action. */
    if (info->si_code != SI_KERNEL || at[0] != 0x0f || at[1] != 0xa2) {
        signal(sig, SIG_DFL);
        return;
    }
    unsigned leaf = (unsigned)g[REG_RAX], sub = (unsigned)g[REG_RCX], r[4];
    if (leaf == LEAF_TILE && sub <= 1) {
        tile_leaf(sub, r);
    } else {
        trap_cpuid(0);
        __cpuid_count(leaf, sub, r[0], r[1], r[2], r[3]);
        trap_cpuid(1);
        if (leaf == 0 && r[0] < LEAF_TILE) r[0] = LEAF_TILE; /* the highest leaf there is */
    }
    g[REG_RAX] = r[0], g[REG_RBX] = r[1], g[REG_RCX] = r[2], g[REG_RDX] = r[3];
    g[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & LEAF_7_AMX_TILE)) return;
    if (__get_cpuid_count(LEAF_TILE, 0, &a, &b, &c, &d) && a != 0) return;
    struct sigaction act = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &act, NULL);
    trap_cpuid(1);
}
