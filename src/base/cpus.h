/* How many threads can run at once: CPUs this process may use, and the time a container leaves it on them. */
#ifndef IWP_BASE_CPUS_H
#define IWP_BASE_CPUS_H

#include <stdint.h>

int32_t iwp_cpu_count(void); /* at least 1 */

/* CPUs' worth of time of this process's control group (root "/sys/fs/cgroup", self "/proc/self/cgroup"), the least
 * of those above it; of the first version of groups that at the root.  0: no limit is set. */
double iwp_cpu_quota(const char *root, const char *self);

#endif
