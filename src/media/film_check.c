/* What FFmpeg believes too easily, looked at before it sees a file: see film_impl.h.  A Matroska file that was cut off,
 * and an MP4 that claims more samples than it has bytes: two dozen bytes each are written for them at once. */
#include "base/err.h"
#include "media/film_impl.h"

#include <string.h>

enum { MAX_DEPTH = 16 };

/* ---- Matroska ---------------------------------------------------------------------------------- */

/* An EBML number of up to 8 bytes at *at, -1 when it is cut off or means "unknown". */
static int64_t ebml_size(const uint8_t *p, int n, int *at) {
    int len = 1;
    if (*at >= n) return -1;
    while (len <= 8 && !(p[*at] & 0x80 >> (len - 1))) len++;
    if (len > 8 || *at + len > n) return -1;
    uint64_t v = p[*at] & (0xffu >> len);
    for (int i = 1; i < len; i++) v = v << 8 | p[*at + i];
    *at += len;
    return v == (1ull << (7 * len)) - 1 ? -1 : (int64_t)v;
}

/* The demuxer takes the end of a Matroska file that was cut off for its proper end. */
static int check_matroska(struct iwp_film *f, iwp_err *err) {
    uint8_t head[4096];
    int n = iwp_film_read_at(f, 0, head, sizeof head), at = 4;
    if (n < 12 || memcmp(head, "\x1a\x45\xdf\xa3", 4) != 0) return 0;
    int64_t size = ebml_size(head, n, &at);
    if (size < 0 || size > n - at - 4 || memcmp(head + at + size, "\x18\x53\x80\x67", 4) != 0)
        return 0;
    at += (int)size + 4;
    size = ebml_size(head, n, &at);
    IWP_REQUIRE(size <= f->size - at, err, IWP_EFORMAT,
                "%s: is cut off: %lld of %lld bytes are there", f->label, (long long)f->size,
                (long long)size + at);
    return 0;
}

/* ---- MP4 --------------------------------------------------------------------------------------- */

static uint64_t big_endian(const uint8_t *p, int n) {
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v = v << 8 | p[i];
    return v;
}

static bool is_one_of(const uint8_t *type, const char *types) {
    for (; *types; types += 4)
        if (memcmp(type, types, 4) == 0) return true;
    return false;
}

/* Samples that the boxes in [at, end) claim: whole tracks' (stsz, stz2) and fragments' (trun). */
static int count_samples(struct iwp_film *f, int64_t at, int64_t end, int depth, int64_t *n,
                         iwp_err *err) {
    uint8_t b[20];
    while (end - at >= 8) {
        int64_t head = 8, size;
        const int got = iwp_film_read_at(f, at, b, sizeof b);
        if (got < 8) break;
        uint64_t claimed = big_endian(b, 4);
        if (claimed == 1 && got >= 16) {
            claimed = big_endian(b + 8, 8);
            head = 16;
        }
        size = claimed == 0 || claimed > (uint64_t)(end - at) ? end - at : (int64_t)claimed;
        if (size < head) break;
        if (is_one_of(b + 4, "moovtrakmdiaminfstblmooftrafmvexudtaedtswave")) {
            IWP_TRY(iwp_film_stopped(f, err));
            IWP_REQUIRE(depth < MAX_DEPTH, err, IWP_EFORMAT, "%s: boxes in boxes in boxes",
                        f->label);
            IWP_TRY(count_samples(f, at + head, at + size, depth + 1, n, err));
        }
        /* 4 bytes of version and flags; of tracks the size of all samples comes before their number */
        const int64_t field = at + head + (is_one_of(b + 4, "trun") ? 4 : 8);
        if (is_one_of(b + 4, "stszstz2trun") && field + 4 <= end &&
            iwp_film_read_at(f, field, b, 4) == 4)
            *n += (int64_t)big_endian(b, 4);
        IWP_REQUIRE(*n <= f->size, err, IWP_EFORMAT,
                    "%s: is damaged or cut off: %lld frames and sounds in %lld bytes", f->label,
                    (long long)*n, (long long)f->size);
        at += size;
    }
    return 0;
}

int iwp_film_check(struct iwp_film *f, iwp_err *err) {
    int64_t n = 0;
    IWP_TRY(check_matroska(f, err));
    return count_samples(f, 0, f->size, 0, &n, err);
}
