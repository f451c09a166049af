/* The limits of a core, measured: loops that do nothing but the one instruction, on registers or tiles, and
 * a plain read of memory.  Every figure of docs/SPEED.md can be read as a share of these. */
#ifndef IWP_KERN_PEAK_H
#define IWP_KERN_PEAK_H

#include <stddef.h>
#include <stdint.h>

enum iwp_peak {
    IWP_PEAK_FMA,      /* f32 multiply-adds of the widest vectors there are */
    IWP_PEAK_FMA_AVX2, /* the same of 256 bits: the limit of a path that ends at AVX2 */
    IWP_PEAK_VNNI,     /* u8 × s8 dot products, AVX512-VNNI */
    IWP_PEAK_BF16,     /* AVX512-BF16 dot products */
    IWP_PEAK_AMX_INT8, /* tiles */
    IWP_PEAK_AMX_BF16,
    IWP_PEAK_COUNT,
};

const char *iwp_peak_name(enum iwp_peak what);
/* n rounds on the calling thread; operations done (a multiply-add counts two), 0: this CPU lacks it. */
double iwp_peak_run(enum iwp_peak what, int64_t n);
/* Reads n bytes at p, a multiple of 64; returns something that depends on all of them. */
uint64_t iwp_peak_read(const void *p, size_t n);

#endif
