/* What a container leaves of the CPUs, from files as the kernel has them. */
#include "base/cpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

static char root[] = "/tmp/iwp-test-cpus-XXXXXX", self[64];

static void put(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

static void folder(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    CHECK_INT(mkdir(path, 0700), 0);
}

int main(void) {
    CHECK(mkdtemp(root) != NULL);
    snprintf(self, sizeof self, "%s/self", root);
    CHECK_NEAR(iwp_cpu_quota(root, self), 0, 0); /* nothing is there */
    put("self", "12:cpu:/x\n0::/\n");
    put("cpu.max", "max 100000\n");
    CHECK_NEAR(iwp_cpu_quota(root, self), 0, 0);
    put("cpu.max", "150000 100000\n");
    CHECK_NEAR(iwp_cpu_quota(root, self), 1.5, 1e-9);
    folder("a"), folder("a/b");
    put("self", "0::/a/b\n");
    put("a/b/cpu.max", "400000 100000\n");
    CHECK_NEAR(iwp_cpu_quota(root, self), 1.5, 1e-9); /* the least of all above */
    put("a/cpu.max", "50000 100000\n");
    CHECK_NEAR(iwp_cpu_quota(root, self), 0.5, 1e-9);
    put("self", "0::/elsewhere/../../..\n"); /* a path that is not there */
    CHECK_NEAR(iwp_cpu_quota(root, self), 1.5, 1e-9);
    put("cpu.max", "no numbers");
    put("self", "4:cpu,cpuacct:/\n");
    CHECK_NEAR(iwp_cpu_quota(root, self), 0, 0);
    folder("cpu"); /* the first version */
    put("cpu/cpu.cfs_quota_us", "-1\n");
    put("cpu/cpu.cfs_period_us", "100000\n");
    CHECK_NEAR(iwp_cpu_quota(root, self), 0, 0);
    put("cpu/cpu.cfs_quota_us", "300000\n");
    CHECK_NEAR(iwp_cpu_quota(root, self), 3, 1e-9);
    static const char *const made[] = {"cpu/cpu.cfs_quota_us",
                                       "cpu/cpu.cfs_period_us",
                                       "cpu",
                                       "a/b/cpu.max",
                                       "a/b",
                                       "a/cpu.max",
                                       "a",
                                       "cpu.max",
                                       "self"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", root, made[i]);
        CHECK_INT(remove(path), 0);
    }
    CHECK_INT(rmdir(root), 0);
    return test_done();
}
