/* Picks the kernel table once: what the CPU has, masked by IWP_CPU. */
#include "kern/kern.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#if defined(__x86_64__)
#define HAVE_X86 1
#elif defined(__aarch64__)
#define HAVE_NEON 1
#endif

enum { N_PATH = 4 };
static const char *const names[N_PATH] = {"c", "avx2", "avx512", "neon"};
static struct iwp_kern tables[N_PATH];
static int have[N_PATH], chosen;
static enum { FORCE_NONE, FORCE_UNKNOWN, FORCE_LACKS } force_error;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init(void) {
    have[0] = 1;
    for (int i = 0; i < N_PATH; i++) iwp_kern_init_c(&tables[i]);
#ifdef HAVE_X86
    __builtin_cpu_init();
    have[1] = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
    have[2] = have[1] && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (have[1]) iwp_kern_init_avx2(&tables[1]);
    if (have[2]) {
        iwp_kern_init_avx2(&tables[2]);
        iwp_kern_init_avx512(&tables[2]);
    }
#endif
#ifdef HAVE_NEON
    have[3] = 1;
    iwp_kern_init_neon(&tables[3]);
#endif
    for (int i = 0; i < N_PATH; i++) tables[i].name = names[i];
    for (int i = 0; i < N_PATH; i++)
        if (have[i]) chosen = i;
    const char *want = getenv("IWP_CPU");
    if (!want || !*want) return;
    for (int i = 0; i < N_PATH; i++)
        if (strcmp(want, names[i]) == 0) {
            if (have[i])
                chosen = i;
            else
                force_error = FORCE_LACKS;
            return;
        }
    if (strcmp(want, "amx") != 0)
        force_error = FORCE_UNKNOWN; /* amx concerns engine kernels only */
}

const struct iwp_kern *iwp_kern_get(void) {
    pthread_once(&once, init);
    return &tables[chosen];
}

const struct iwp_kern *iwp_kern_path(const char *name) {
    pthread_once(&once, init);
    for (int i = 0; i < N_PATH; i++)
        if (have[i] && strcmp(name, names[i]) == 0) return &tables[i];
    return NULL;
}

int iwp_kern_check(iwp_err *err) {
    pthread_once(&once, init);
    if (force_error == FORCE_NONE) return 0;
    if (force_error == FORCE_LACKS)
        return iwp_err_set(err, IWP_ENOTSUP, "IWP_CPU=%s: not supported by this CPU",
                           getenv("IWP_CPU"));
    return iwp_err_set(err, IWP_EINVAL, "IWP_CPU=%s: not supported, use c, avx2, avx512 or neon",
                       getenv("IWP_CPU"));
}
