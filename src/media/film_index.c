/* Which packet is which frame: see film_impl.h.
 *
 * One pass over the packets notes when each is shown.  Sorted by that time they are the frames, provided
 * that packets and frames correspond one to one: true of the codecs listed here in MP4 and Matroska
 * files, but for packets an edit list hides, and the invisible frames of VP8 and VP9.  Where it may not
 * be true all frames are decoded once and counted instead. */
#include "base/err.h"
#include "media/film_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PACKET = 1 << 22 }; /* 19 hours at 60 frames per second */

void iwp_film_index_free(struct iwp_film_index *x) {
    free(x->packet);
    free(x->frame);
    free(x->by_pos);
    *x = (struct iwp_film_index){0};
}

/* ---- what may be indexed --------------------------------------------------------------------------- */

static bool may_index(const struct iwp_film *f) {
    static const enum AVCodecID one_to_one[] = {
        AV_CODEC_ID_H264, AV_CODEC_ID_HEVC,  AV_CODEC_ID_VP8,   AV_CODEC_ID_VP9,
        AV_CODEC_ID_AV1,  AV_CODEC_ID_MJPEG, AV_CODEC_ID_PRORES};
    const AVCodecParameters *par = f->fmt->streams[f->stream]->codecpar;
    const char *name = f->fmt->iformat->name;
    if (f->p.count ||
        (!iwp_av.av_match_list(name, "mov", ',') && !iwp_av.av_match_list(name, "matroska", ',')))
        return false;
    /* Two fields may come as two packets. */
    if (par->field_order != AV_FIELD_UNKNOWN && par->field_order != AV_FIELD_PROGRESSIVE)
        return false;
    for (size_t i = 0; i < sizeof one_to_one / sizeof *one_to_one; i++)
        if (par->codec_id == one_to_one[i]) return true;
    return false;
}

/* VP8 and VP9 have frames that are only referred to; a VP9 superframe ends with one that is shown. */
static bool is_shown(enum AVCodecID id, const AVPacket *p) {
    if (p->flags & AV_PKT_FLAG_DISCARD) return false;
    if (p->size < 1) return true;
    if (id == AV_CODEC_ID_VP8) return p->data[0] & 0x10;
    if (id != AV_CODEC_ID_VP9 || (p->data[p->size - 1] & 0xe0) == 0xc0) return true;
    const int head = p->data[0], profile = (head >> 5 & 1) | (head >> 3 & 2);
    const int at = profile == 3 ? 2 : 3; /* bit of show_existing_frame */
    return head >> at & 1 || head >> (at - 2) & 1;
}

/* ---- making the index ------------------------------------------------------------------------------ */

static int add_packet(struct iwp_film *f, iwp_err *err) {
    struct iwp_film_index *x = &f->index;
    const AVPacket *p = f->packet;
    if (x->n == x->cap) {
        IWP_REQUIRE(x->n < MAX_PACKET, err, IWP_EINVAL, "%s: more than %d frames", f->label,
                    MAX_PACKET);
        x->cap = x->cap ? 2 * x->cap : 1024;
        struct iwp_film_packet *q = realloc(x->packet, (size_t)x->cap * sizeof *q);
        IWP_REQUIRE(q, err, IWP_ENOMEM, "%s: out of memory for %d packets", f->label, x->cap);
        x->packet = q;
    }
    x->packet[x->n++] = (struct iwp_film_packet){
        .pts = p->pts,
        .dts = p->dts == AV_NOPTS_VALUE ? p->pts : p->dts,
        .pos = p->pos,
        .key = (p->flags & AV_PKT_FLAG_KEY) != 0,
        .shown = is_shown(f->fmt->streams[f->stream]->codecpar->codec_id, p)};
    return 0;
}

/* qsort has no context; pairs carry their key. */
struct pair {
    int64_t key;
    int32_t at;
};

static int by_key(const void *a, const void *b) {
    const struct pair *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

/* Packets in the order of a key: 0 when two have the same one. */
static int sort_packets(const struct iwp_film_index *x, bool frames, int32_t **out,
                        int32_t *n_out) {
    struct pair *p = malloc(((size_t)x->n + 1) * sizeof *p);
    int32_t n = 0;
    *out = malloc(((size_t)x->n + 1) * sizeof **out);
    if (!p || !*out) {
        free(p);
        return IWP_ENOMEM;
    }
    for (int32_t i = 0; i < x->n; i++)
        if (!frames || x->packet[i].shown)
            p[n++] = (struct pair){frames ? x->packet[i].pts : x->packet[i].pos, i};
    qsort(p, (size_t)n, sizeof *p, by_key);
    int unique = 1;
    for (int32_t i = 0; i < n; i++) {
        (*out)[i] = p[i].at;
        if (i && p[i].key == p[i - 1].key) unique = 0;
    }
    free(p);
    *n_out = n;
    return unique;
}

/* 1: the index can be used, 0: the frames have to be counted. */
static int finish_index(struct iwp_film *f, iwp_err *err) {
    struct iwp_film_index *x = &f->index;
    int32_t n;
    for (int32_t i = 0; i < x->n; i++)
        if (x->packet[i].pts == AV_NOPTS_VALUE || x->packet[i].pos < 0) return 0;
    if (!x->packet[0].key) return 0;
    for (int32_t i = 1; i < x->n;
         i++) /* shown before the first key frame: some decoders drop them */
        if (x->packet[i].shown && x->packet[i].pts < x->packet[0].pts) return 0;
    int a = sort_packets(x, true, &x->frame, &x->n_frame);
    int b = a < 0 ? a : sort_packets(x, false, &x->by_pos, &n);
    IWP_REQUIRE(b >= 0, err, IWP_ENOMEM, "%s: out of memory for %d packets", f->label, x->n);
    return a && b;
}

static int scan(struct iwp_film *f, iwp_err *err) {
    int rc;
    while ((rc = iwp_film_packet(f, err)) > 0) {
        rc = add_packet(f, err);
        iwp_av.av_packet_unref(f->packet);
        IWP_TRY(rc);
    }
    IWP_TRY(rc);
    const int listed = iwp_av.avformat_index_get_entries_count(f->fmt->streams[f->stream]);
    IWP_REQUIRE(!iwp_av.av_match_list(f->fmt->iformat->name, "mov", ',') || f->index.n >= listed,
                err, IWP_EFORMAT, "%s: is cut off: %d of %d frames are there", f->label, f->index.n,
                listed);
    IWP_REQUIRE(f->index.n > 0, err, IWP_EFORMAT, "%s: has no frames", f->label);
    return finish_index(f, err);
}

/* ---- counting ------------------------------------------------------------------------------------- */

static int count_frame(struct iwp_film *f, int32_t *cap, iwp_err *err) {
    if (f->n_frame == *cap) {
        IWP_REQUIRE(f->n_frame < MAX_PACKET, err, IWP_EINVAL, "%s: more than %d frames", f->label,
                    MAX_PACKET);
        *cap = *cap ? 2 * *cap : 256;
        int64_t *p = realloc(f->shown_at, (size_t)*cap * sizeof *p);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "%s: out of memory for %d frames", f->label, *cap);
        f->shown_at = p;
    }
    f->shown_at[f->n_frame++] = f->got->best_effort_timestamp;
    iwp_av.av_frame_unref(f->got);
    return 0;
}

static int count(struct iwp_film *f, iwp_err *err) {
    int32_t cap = 0;
    IWP_TRY(iwp_film_rewind(f, err));
    for (;;) {
        int rc = iwp_film_receive(f, err);
        IWP_TRY(rc);
        if (rc == 2) break;
        if (rc == 1) {
            IWP_TRY(count_frame(f, &cap, err));
            continue;
        }
        rc = iwp_film_packet(f, err);
        IWP_TRY(rc);
        IWP_TRY(iwp_film_send(f, rc == 0, err));
    }
    IWP_REQUIRE(f->n_frame > 0, err, IWP_EFORMAT, "%s: no frame can be decoded", f->label);
    return 0;
}

int iwp_film_index_make(struct iwp_film *f, iwp_err *err) {
    if (may_index(f)) {
        int rc = scan(f, err);
        IWP_TRY(rc);
        f->n_frame = f->index.n_frame;
        if (rc && f->n_frame > 0) return 0;
        iwp_film_index_free(&f->index);
        f->n_frame = 0;
    }
    f->counted = true;
    return count(f, err);
}

/* ---- looking up ------------------------------------------------------------------------------------- */

int32_t iwp_film_index_start(const struct iwp_film_index *x, int32_t i) {
    const int32_t at = x->frame[i];
    for (int32_t k = at; k > 0; k--)
        if (x->packet[k].key && x->packet[k].pts <= x->packet[at].pts) return k;
    return 0;
}

int32_t iwp_film_index_find(const struct iwp_film_index *x, int64_t pos) {
    int32_t lo = 0, hi = x->n - 1;
    while (lo <= hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        const int64_t p = x->packet[x->by_pos[mid]].pos;
        if (p == pos) return x->by_pos[mid];
        if (p < pos)
            lo = mid + 1;
        else
            hi = mid - 1;
    }
    return -1;
}
