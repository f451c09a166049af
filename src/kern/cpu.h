/* What the CPU can do beyond the paths of kern.h, for the engine's kernels; asked of the CPU once. */
#ifndef IWP_KERN_CPU_H
#define IWP_KERN_CPU_H

#include <stdbool.h>

enum iwp_cpu_feature {
    IWP_CPU_AVX2 = 1 << 0,     /* with FMA and F16C */
    IWP_CPU_AVX512 = 1 << 1,   /* F, BW, DQ, VL */
    IWP_CPU_VNNI = 1 << 2,     /* AVX512-VNNI */
    IWP_CPU_BF16 = 1 << 3,     /* AVX512-BF16 */
    IWP_CPU_AMX_INT8 = 1 << 4, /* the kernel gave this process leave to use the tiles */
    IWP_CPU_AMX_BF16 = 1 << 5,
    IWP_CPU_AVXVNNI = 1 << 6, /* AVX-VNNI: the 256-bit form, also of CPUs without AVX-512 */
};

/* A sum of enum iwp_cpu_feature.  IWP_CPU=c|avx2|avx512 hides what is above that path. */
unsigned iwp_cpu_features(void);
/* The same without IWP_CPU. */
unsigned iwp_cpu_features_all(void);

#endif
