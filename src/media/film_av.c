/* Loading FFmpeg's libraries: see film_av.h.  Those of the version whose headers were compiled, and no other. */
#include "media/film_av.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

#define TEXT_(x)           #x
#define TEXT(x)            TEXT_(x)
#define FILE_OF(name, ver) "lib" name ".so." TEXT(ver)

struct iwp_av iwp_av;
static char problem[160]; /* "": all is there */

static void load(void) {
    static const char *const file[] = {FILE_OF("avformat", LIBAVFORMAT_VERSION_MAJOR),
                                       FILE_OF("swscale", LIBSWSCALE_VERSION_MAJOR)};
    void *lib[2]; /* never closed; libavcodec and libavutil come with them */
    for (int i = 0; i < 2; i++) {
        lib[i] = dlopen(file[i], RTLD_LAZY | RTLD_LOCAL);
        if (lib[i]) continue;
        snprintf(problem, sizeof problem, "%s", dlerror());
        return;
    }
    void *p;
#define X(f)                                                                                       \
    p = dlsym(lib[0], #f);                                                                         \
    if (!p) p = dlsym(lib[1], #f);                                                                 \
    if (!p) snprintf(problem, sizeof problem, "%s lacks %s", file[0], #f);                         \
    memcpy(&iwp_av.f, &p, sizeof p); /* ISO C has no cast for it */
    IWP_AV_MAP(X)
#undef X
}

int iwp_av_load(iwp_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    IWP_REQUIRE(!problem[0], err, IWP_ENOTSUP, "films need the FFmpeg libraries: %s", problem);
    return 0;
}
