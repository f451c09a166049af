/* How many threads can run at once: see cpus.h. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 4096 };

/* CPU time per time in DIR/cpu.max, "quota period" or "max period"; 0: none is set. */
static double share_v2(const char *dir) {
    char path[PATH + 16];
    double quota, period, share = 0;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0)
        share = quota / period;
    fclose(f);
    return share;
}

static double number_in(const char *dir, const char *name) {
    char path[PATH + 32];
    double x = 0;
    snprintf(path, sizeof path, "%s/cpu/%s", dir, name);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%lf", &x) != 1) x = 0;
    fclose(f);
    return x;
}

/* The group of this process in the second version's tree, "" when it is the root or not told. */
static void own_group(const char *self, char group[PATH]) {
    char line[PATH];
    group[0] = 0;
    FILE *f = fopen(self, "r");
    if (!f) return;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "0::/", 4) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(group, PATH, "%s", line[4] ? line + 3 : "");
        }
    fclose(f);
}

double iwp_cpu_quota(const char *root, const char *self) {
    char group[PATH], dir[2 * PATH];
    double least = 0;
    own_group(self, group);
    for (;;) { /* every group above may set one too */
        if (strlen(root) + strlen(group) < PATH) {
            snprintf(dir, sizeof dir, "%s%s", root, group);
            const double s = share_v2(dir);
            if (s > 0 && (least == 0 || s < least)) least = s;
        }
        char *slash = strrchr(group, '/');
        if (!slash) break;
        *slash = 0;
    }
    if (least > 0) return least;
    const double quota = number_in(root, "cpu.cfs_quota_us"),
                 period = number_in(root, "cpu.cfs_period_us");
    return quota > 0 && period > 0 ? quota / period : 0;
}

int32_t iwp_cpu_count(void) {
    cpu_set_t set;
    int32_t n = 0;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
    if (n < 1) n = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1) n = 1;
    /* Threads that wait for each other are held up when one is stopped for the rest of a period. */
    const double quota = iwp_cpu_quota("/sys/fs/cgroup", "/proc/self/cgroup");
    if (quota > 0 && quota < n) n = quota < 1 ? 1 : (int32_t)quota;
    return n;
}
