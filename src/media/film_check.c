/* What FFmpeg believes too easily, looked at before it sees a file: see film_impl.h.  A Matroska file that was cut off,
 * and an MP4 whose tables claim more than there is: memory for all of it is written at once. */
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

/* What FFmpeg would write for what boxes claim.  A sample takes 24 bytes of an index, and for every stream there are
 * 56 bytes for each fragment.  Sound with samples of one length is indexed by chunks, about a thousand samples at once. */
enum { ENTRY = 24, FRAGMENT = 56, SPARE = 64 << 20, POLL = 4096 };
struct claims {
    struct iwp_film *f;
    int64_t entries, fragments, tracks, boxes;
    struct {
        bool sound, pictures;
        int64_t times, samples, chunks, longest; /* longest chunk, in samples */
        bool even; /* the first time stands for one sample of length 1 */
    } track;
};

static void end_track(struct claims *c) {
    const bool by_chunks =
        c->track.sound && !c->track.pictures && c->track.times == 1 && c->track.even;
    c->entries += by_chunks ? c->track.chunks * (1 + c->track.longest / 512) : c->track.samples;
    memset(&c->track, 0, sizeof c->track);
}

static int64_t read_number(const struct iwp_film *f, int64_t at, int64_t end) {
    uint8_t b[4];
    return at + 4 <= end && iwp_film_read_at(f, at, b, 4) == 4 ? (int64_t)big_endian(b, 4) : 0;
}

/* The longest of n chunks' lengths, which stand 12 bytes apart from `at` on. */
static int64_t longest_chunk(const struct iwp_film *f, int64_t at, int64_t end, int64_t n) {
    uint8_t b[12 * 256];
    int64_t most = 0;
    for (int64_t left = (end - at) / 12 < n ? (end - at) / 12 : n; left > 0;) {
        const int got =
            iwp_film_read_at(f, at, b, left < 256 ? 12 * (int)left : (int)sizeof b) / 12;
        if (got < 1) break;
        for (int i = 0; i < got; i++) {
            const int64_t samples = (int64_t)big_endian(b + 12 * i + 4, 4);
            if (samples > most) most = samples;
        }
        at += 12 * got;
        left -= got;
    }
    return most;
}

/* A table or header; `at` is behind its version and flags. */
static void count_table(struct claims *c, const uint8_t *type, int64_t at, int64_t end) {
    const int64_t first = read_number(c->f, at, end), second = read_number(c->f, at + 4, end);
    if (is_one_of(type, "trun")) c->entries += first;
    if (is_one_of(type, "stszstz2")) c->track.samples += second;
    if (is_one_of(type, "stcoco64")) c->track.chunks += first;
    if (is_one_of(type, "stts")) {
        c->track.times += first;
        c->track.even = read_number(c->f, at + 8, end) == 1;
    }
    if (is_one_of(type, "stsc")) {
        const int64_t longest = longest_chunk(c->f, at + 4, end, first);
        if (longest > c->track.longest) c->track.longest = longest;
    }
    if (is_one_of(type, "hdlr")) {
        c->track.sound = c->track.sound || second == 0x736f756e;       /* soun */
        c->track.pictures = c->track.pictures || second == 0x76696465; /* vide */
    }
}

/* The first of these types in [*at, end), looked for at every `step` bytes.  1: *at is where, 0: there is none. */
static int find_type(const struct iwp_film *f, const char *types, int step, int64_t *at,
                     int64_t end, iwp_err *err) {
    uint8_t b[4096 + 3];
    while (end - *at >= 4) {
        const int n = iwp_film_read_at(
            f, *at, b, end - *at < (int64_t)sizeof b ? (int)(end - *at) : (int)sizeof b);
        int i = 0;
        IWP_TRY(iwp_film_stopped(f, err));
        for (; i <= n - 4; i += step)
            if (is_one_of(b + i, types)) {
                *at += i;
                return 1;
            }
        if (i == 0) break;
        *at += i;
    }
    return 0;
}

/* Where FFmpeg looks for boxes in a box it has something of its own to do with; `end` where it does not. */
static int find_boxes(const struct iwp_film *f, const uint8_t *type, int64_t *at, int64_t end,
                      iwp_err *err) {
    static const char plain[] = "moovtrakmdiaminfstblmooftrafmvexudtaedtsdinftrefsinfschiilstwave";
    uint8_t b[8];
    if (is_one_of(type, plain)) return 0;
    if (is_one_of(type, "freehoov") && iwp_film_read_at(f, *at, b, 8) == 8 &&
        is_one_of(b + 4, "mvhdcmov"))
        return 0;
    int found = 0;
    if (is_one_of(type, "meta")) {
        *at += 4; /* a size at least */
        found = find_type(f, "hdlr", 4, at, end, err);
        *at -= 4;
    }
    if (found == 0) *at = end;
    return found < 0 ? found : 0;
}

static int count_boxes(struct claims *c, int64_t at, int64_t end, int depth, iwp_err *err) {
    const struct iwp_film *f = c->f;
    uint8_t b[20];
    while (end - at >= 8) {
        int64_t head = 8, size;
        const int got = iwp_film_read_at(f, at, b, sizeof b);
        if (got < 8) break;
        if (c->boxes++ % POLL == 0) IWP_TRY(iwp_film_stopped(f, err));
        uint64_t claimed = big_endian(b, 4);
        if (claimed == 1 && got >= 16) {
            claimed = big_endian(b + 8, 8);
            head = 16;
        }
        size = claimed == 0 || claimed > (uint64_t)(end - at) ? end - at : (int64_t)claimed;
        if (size < head) break;
        const uint8_t *type = b + 4;
        IWP_REQUIRE(depth == 0 || !is_one_of(type, "cmov"), err, IWP_ENOTSUP,
                    "%s: its header is compressed; ffmpeg -i FILE -c copy OUT.mov rewrites it",
                    f->label);
        int64_t inner = at + head;
        if (is_one_of(type, "stsd")) { /* in which FFmpeg finds boxes in ways of its own */
            const int found = find_type(f, "stszstz2sttsstsctrunhdlr", 1, &inner, at + size, err);
            IWP_TRY(found);
            IWP_REQUIRE(!found, err, IWP_EFORMAT,
                        "%s: is damaged: tables of samples where none belong", f->label);
            inner = at + head;
        }
        const bool track = depth == 0 || is_one_of(type, "trak");
        if (track) end_track(c);
        if (is_one_of(type, "trak")) c->tracks++;
        if (is_one_of(type, "moof")) c->fragments++;
        IWP_TRY(find_boxes(f, type, &inner, at + size, err));
        if (inner < at + size) {
            IWP_REQUIRE(depth < MAX_DEPTH, err, IWP_EFORMAT, "%s: boxes in boxes in boxes",
                        f->label);
            IWP_TRY(count_boxes(c, inner, at + size, depth + 1, err));
        } else {
            count_table(c, type, at + head + 4, at + size);
        }
        if (track) end_track(c);
        const int64_t parts = c->fragments * c->tracks,
                      bytes = c->entries * ENTRY + parts * FRAGMENT;
        IWP_REQUIRE(c->entries < INT64_MAX / 64 && bytes <= SPARE + f->size * ENTRY, err,
                    IWP_EFORMAT,
                    "%s: is damaged or cut off: %lld frames, sounds and fragments in %lld bytes",
                    f->label, (long long)(c->entries + parts), (long long)f->size);
        at += size;
    }
    return 0;
}

int iwp_film_check(struct iwp_film *f, iwp_err *err) {
    struct claims c = {.f = f};
    IWP_TRY(check_matroska(f, err));
    return count_boxes(&c, 0, f->size, 0, err);
}
