/* Films: opening, choosing frames and decoding them.  See film.h.
 *
 * Chosen frames that begin with the same key frame are one run: packets are fed from that key frame to
 * the last one needed, then the decoder is drained.  Frames are recognised by their time stamps, so
 * neither the order nor the number of what comes out matters.  A frame that does not come, or comes
 * damaged, is tried again from earlier key frames and at last from the start, as ffmpeg would. */
#include "media/film.h"

#include "base/err.h"
#include "base/hash.h"
#include "media/film_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TRY = 4 };

/* ---- opening ---------------------------------------------------------------------------------------- */

static int open_film(struct iwp_film *f, iwp_err *err) {
    IWP_REQUIRE(f->size > 0, err, IWP_EFORMAT, "%s: is empty", f->label);
    IWP_TRY(iwp_film_check(f, err));
    IWP_TRY(iwp_film_rewind(f, err));
    iwp_film_picture_init(f);
    return iwp_film_index_make(f, err);
}

static int new_film(struct iwp_film **out, const struct iwp_film_params *p, iwp_err *err) {
    *out = NULL;
    IWP_TRY(iwp_av_load(err));
    *out = calloc(1, sizeof **out);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    (*out)->fd = -1;
    (*out)->fed = -1;
    if (p) (*out)->p = *p;
    return 0;
}

int iwp_film_open(struct iwp_film **out, const char *path, const struct iwp_film_params *p,
                  iwp_err *err) {
    struct stat st;
    IWP_TRY(new_film(out, p, err));
    struct iwp_film *f = *out;
    int rc = 0;
    snprintf(f->label, sizeof f->label, "%s", path);
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait */
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        IWP_FAIL(err, IWP_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) IWP_FAIL(err, IWP_EINVAL, "%s: is no regular file", path);
    f->size = st.st_size;
    IWP_TRY_GOTO(open_film(f, err));
    return 0;
fail:
    iwp_film_close(f);
    *out = NULL;
    return rc;
}

int iwp_film_open_bytes(struct iwp_film **out, const uint8_t *data, size_t n,
                        const struct iwp_film_params *p, iwp_err *err) {
    IWP_TRY(new_film(out, p, err));
    struct iwp_film *f = *out;
    snprintf(f->label, sizeof f->label, "the film");
    f->data = data;
    f->size = (int64_t)n;
    int rc = open_film(f, err);
    if (rc < 0) {
        iwp_film_close(f);
        *out = NULL;
    }
    return rc;
}

static void forget_chosen(struct iwp_film *f) {
    for (int32_t i = 0; i < f->n_chosen && f->early; i++) iwp_av.av_frame_free(&f->early[i]);
    free(f->early);
    free(f->chosen);
    iwp_image_free(&f->last);
    f->early = NULL;
    f->chosen = NULL;
    f->n_chosen = f->cursor = 0;
    f->running = false;
}

void iwp_film_close(struct iwp_film *f) {
    if (!f) return;
    forget_chosen(f);
    iwp_av.sws_freeContext(f->sws);
    iwp_av.av_frame_free(&f->turned);
    iwp_film_index_free(&f->index);
    free(f->shown_at);
    iwp_film_source_close(f);
    free(f);
}

static int64_t shown_at(const struct iwp_film *f, int32_t i) {
    return f->counted ? f->shown_at[i] : f->index.packet[f->index.frame[i]].pts;
}

double iwp_film_time(const struct iwp_film *f, int32_t i) {
    const int64_t a = shown_at(f, 0), b = shown_at(f, i);
    if (a == AV_NOPTS_VALUE || b == AV_NOPTS_VALUE) return 0;
    return ((double)b - (double)a) * av_q2d(f->base);
}

struct iwp_film_info iwp_film_info(const struct iwp_film *f) {
    const AVStream *st = f->fmt->streams[f->stream];
    struct iwp_film_info in = {.w = f->w,
                               .h = f->h,
                               .n_frame = f->n_frame,
                               .seconds = iwp_film_time(f, f->n_frame - 1),
                               .turn = iwp_film_turn(f),
                               .counted = f->counted,
                               .format = f->fmt->iformat->name,
                               .codec = iwp_av.avcodec_get_name(st->codecpar->codec_id)};
    const double said = st->avg_frame_rate.den ? av_q2d(st->avg_frame_rate) : 0;
    if (said > 1e-3 && said <= 1000)
        in.fps = said;
    else if (in.seconds > 0 && f->n_frame > 1)
        in.fps = (f->n_frame - 1) / in.seconds;
    if (!(in.fps > 1e-3 && in.fps <= 1000)) in.fps = 25;
    return in;
}

/* ---- runs -------------------------------------------------------------------------------------------- */

static int32_t packet_of(const struct iwp_film *f, int32_t at) {
    return f->index.frame[f->chosen[at]];
}

/* The frame shown at this time among those of the film, -1 if there is none. */
static int32_t frame_at(const struct iwp_film *f, int64_t pts) {
    int32_t lo = 0, hi = f->n_frame - 1;
    while (lo <= hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        const int64_t t = shown_at(f, mid);
        if (t == pts) return mid;
        if (t < pts)
            lo = mid + 1;
        else
            hi = mid - 1;
    }
    return -1;
}

/* Steps back over this many key frames. */
static int32_t earlier_key(const struct iwp_film_index *x, int32_t k, int32_t steps) {
    while (k > 0 && steps > 0)
        if (x->packet[--k].key) steps--;
    return k;
}

/* Reads on until packet k is in f->packet: 1, or 0 when it lies behind. */
static int read_to(struct iwp_film *f, int32_t k, iwp_err *err) {
    for (;;) {
        int rc = iwp_film_packet(f, err);
        IWP_TRY(rc);
        if (rc == 0) return 0;
        const int32_t at = iwp_film_index_find(&f->index, f->packet->pos);
        if (at == k) return 1;
        iwp_av.av_packet_unref(f->packet);
        if (at > k) return 0;
    }
}

/* Makes f->packet packet k, which is to be the next one fed. */
static int go_to(struct iwp_film *f, int32_t k, iwp_err *err) {
    const struct iwp_film_index *x = &f->index;
    const bool mov = iwp_av.av_match_list(f->fmt->iformat->name, "mov", ',');
    iwp_av.av_packet_unref(f->packet);
    if (f->fed == k) { /* it comes next anyway */
        int rc = read_to(f, k, err);
        IWP_TRY(rc);
        if (rc > 0) return 0;
    }
    for (int32_t back = 0; back < 3; back++) {
        const struct iwp_film_packet *p = &x->packet[earlier_key(x, k, back)];
        if (iwp_av.av_seek_frame(f->fmt, f->stream, mov ? p->dts : p->pts, AVSEEK_FLAG_BACKWARD) <
            0)
            break;
        int rc = read_to(f, k, NULL);
        if (rc > 0) return 0;
        if (rc == IWP_ECANCELLED) return iwp_film_stopped(f, err);
    }
    IWP_TRY(iwp_film_rewind(f, err));
    int rc = read_to(f, k, err);
    IWP_TRY(rc);
    IWP_REQUIRE(rc > 0, err, IWP_EFORMAT, "%s: changed while it was read", f->label);
    return 0;
}

/* First packet and end of the run that begins with chosen frame `at`; returns its last frame. */
static int32_t plan_run(const struct iwp_film *f, int32_t at, int32_t tries, int32_t *first,
                        int32_t *end) {
    static const int32_t back[MAX_TRY + 1] = {0, 0, 1, 8, INT_MAX};
    const struct iwp_film_index *x = &f->index;
    const int32_t key = iwp_film_index_start(x, f->chosen[at]);
    int32_t last = at;
    *end = packet_of(f, at) + 1;
    while (tries == 0 && last + 1 < f->n_chosen &&
           iwp_film_index_start(x, f->chosen[last + 1]) == key) {
        last++;
        if (packet_of(f, last) >= *end) *end = packet_of(f, last) + 1;
    }
    *first = earlier_key(x, key, back[tries]);
    return last;
}

static int start_run(struct iwp_film *f, iwp_err *err) {
    if (f->counted) {
        IWP_TRY(iwp_film_rewind(f, err));
        f->fed = 0;
    } else {
        f->run_last = plan_run(f, f->cursor, f->tries, &f->run_first, &f->run_end);
        IWP_TRY(go_to(f, f->run_first, err));
        iwp_av.avcodec_flush_buffers(f->dec);
        f->fed = f->run_first;
    }
    f->running = true;
    f->draining = false;
    return 0;
}

static bool is_wanted(const struct iwp_film *f, int32_t packet) {
    for (int32_t i = f->cursor; i <= f->run_last; i++)
        if (packet_of(f, i) == packet) return true;
    return false;
}

/* One more packet into the decoder. */
static int feed(struct iwp_film *f, iwp_err *err) {
    if (f->draining) return 0;
    if (!f->counted && f->fed >= f->run_end) {
        f->draining = true;
        return iwp_film_send(f, true, err);
    }
    if (!f->packet->data && !f->packet->side_data) { /* none is held */
        int rc = iwp_film_packet(f, err);
        IWP_TRY(rc);
        if (rc == 0) {
            f->draining = true;
            return iwp_film_send(f, true, err);
        }
    }
    if (!f->counted) {
        /* What no other frame refers to need not be decoded on the way. */
        const bool skip =
            f->tries == 0 && f->dec->codec_id == AV_CODEC_ID_H264 && !is_wanted(f, f->fed);
        f->dec->skip_frame = skip ? AVDISCARD_NONREF : AVDISCARD_DEFAULT;
        f->fed++;
    }
    return iwp_film_send(f, false, err);
}

/* Is f->got the frame to deliver now?  One that comes early is put aside. */
static int judge(struct iwp_film *f, iwp_err *err) {
    if (f->counted) return f->fed++ == f->chosen[f->cursor];
    const int32_t i = frame_at(f, f->got->pts);
    const bool bad = f->got->flags & AV_FRAME_FLAG_CORRUPT || f->got->decode_error_flags;
    if (i < f->chosen[f->cursor]) return 0;
    if (i == f->chosen[f->cursor]) {
        IWP_REQUIRE(!bad || f->tries < MAX_TRY, err, IWP_EFORMAT, "%s: frame %d is damaged",
                    f->label, i);
        return !bad;
    }
    for (int32_t k = f->cursor + 1; !bad && k <= f->run_last && f->chosen[k] <= i; k++)
        if (f->chosen[k] == i && !f->early[k]) {
            f->early[k] = iwp_av.av_frame_clone(f->got);
            IWP_REQUIRE(f->early[k], err, IWP_ENOMEM, "%s: out of memory", f->label);
            break;
        }
    return 0;
}

/* Decodes until the frame at the cursor is there and makes its picture. */
static int decode_one(struct iwp_film *f, struct iwp_image *out, iwp_err *err) {
    if (f->early[f->cursor]) {
        int rc = iwp_film_picture(f, f->early[f->cursor], out, err);
        iwp_av.av_frame_free(&f->early[f->cursor]);
        return rc;
    }
    for (;;) {
        IWP_TRY(iwp_film_stopped(f, err));
        if (!f->running) IWP_TRY(start_run(f, err));
        int rc = iwp_film_receive(f, err);
        IWP_TRY(rc);
        if (rc == 0) {
            IWP_TRY(feed(f, err));
            continue;
        }
        if (rc == 2) { /* the run is over and it did not come */
            f->running = false;
            IWP_REQUIRE(!f->counted && f->tries < MAX_TRY, err, IWP_EFORMAT,
                        "%s: frame %d cannot be decoded", f->label, f->chosen[f->cursor]);
            f->tries++;
            continue;
        }
        rc = judge(f, err);
        if (rc > 0) rc = iwp_film_picture(f, f->got, out, err) < 0 ? err->code : 1;
        iwp_av.av_frame_unref(f->got);
        if (rc != 0) return rc < 0 ? rc : 0;
    }
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

int iwp_film_choose(struct iwp_film *f, const int32_t *index, int32_t n, iwp_err *err) {
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "%s: no frames are chosen", f->label);
    for (int32_t i = 0; i < n; i++)
        IWP_REQUIRE(index[i] >= (i ? index[i - 1] : 0) && index[i] < f->n_frame, err, IWP_EINVAL,
                    "%s: frame %d of %d", f->label, index[i], f->n_frame);
    forget_chosen(f);
    f->chosen = malloc((size_t)n * sizeof *f->chosen);
    f->early = calloc((size_t)n, sizeof *f->early);
    f->n_chosen = f->early ? n : 0;
    IWP_REQUIRE(f->chosen && f->early, err, IWP_ENOMEM, "%s: out of memory", f->label);
    memcpy(f->chosen, index, (size_t)n * sizeof *index);
    f->tries = 0;
    return 0;
}

static int copy_image(const struct iwp_image *in, struct iwp_image *out, iwp_err *err) {
    const size_t n = (size_t)in->w * (size_t)in->h * 3;
    *out = (struct iwp_image){in->w, in->h, malloc(n)};
    IWP_REQUIRE(out->rgb, err, IWP_ENOMEM, "out of memory for a frame");
    memcpy(out->rgb, in->rgb, n);
    return 0;
}

int iwp_film_next(struct iwp_film *f, struct iwp_image *out, iwp_err *err) {
    iwp_err own; /* decode_one reads the code back */
    *out = (struct iwp_image){0};
    if (f->cursor >= f->n_chosen) return 0;
    if (f->last.rgb) {
        *out = f->last;
        f->last = (struct iwp_image){0};
    } else {
        IWP_TRY(decode_one(f, out, err ? err : &own));
    }
    f->cursor++;
    if (f->cursor < f->n_chosen && f->chosen[f->cursor] == f->chosen[f->cursor - 1]) {
        int rc = copy_image(out, &f->last, err);
        if (rc < 0) {
            iwp_image_free(out);
            return rc;
        }
    }
    /* A run of one that was tried again ends here. */
    if (f->tries > 0 || (!f->counted && f->cursor > f->run_last)) f->running = false;
    f->tries = 0;
    return 1;
}

/* ---- hashing --------------------------------------------------------------------------------------------- */

static int hash_bytes(struct iwp_film *f, struct iwp_sha256 *s, iwp_err *err) {
    if (f->fd < 0) {
        iwp_sha256_add(s, f->data, (size_t)f->size);
        return 0;
    }
    uint8_t *b = malloc(1 << 16);
    IWP_REQUIRE(b, err, IWP_ENOMEM, "%s: out of memory", f->label);
    int rc = 0;
    for (int64_t at = 0; at < f->size && rc >= 0;) {
        ssize_t n = pread(f->fd, b, 1 << 16, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            rc = iwp_err_set(err, IWP_EIO, "%s: %s", f->label, n ? strerror(errno) : "changed");
            break;
        }
        iwp_sha256_add(s, b, (size_t)n);
        at += n;
    }
    free(b);
    return rc;
}

static int hash_run(struct iwp_film *f, int32_t first, int32_t end, struct iwp_sha256 *s,
                    iwp_err *err) {
    IWP_TRY(go_to(f, first, err));
    for (int32_t k = first;; k++) {
        const int64_t what[2] = {f->packet->size, f->packet->pts};
        iwp_sha256_add(s, what, sizeof what);
        iwp_sha256_add(s, f->packet->data, (size_t)f->packet->size);
        iwp_av.av_packet_unref(f->packet);
        f->fed = k + 1;
        if (k + 1 >= end) return 0;
        int rc = iwp_film_packet(f, err);
        IWP_TRY(rc);
        IWP_REQUIRE(rc > 0, err, IWP_EFORMAT, "%s: changed while it was read", f->label);
    }
}

static int hash_chosen(struct iwp_film *f, struct iwp_sha256 *s, iwp_err *err) {
    const AVCodecParameters *par = f->fmt->streams[f->stream]->codecpar;
    const int32_t head[4] = {(int32_t)par->codec_id, par->width, par->height, f->counted};
    iwp_sha256_add(s, head, sizeof head);
    iwp_sha256_add(s, f->matrix, sizeof f->matrix);
    iwp_sha256_add(s, f->chosen, (size_t)f->n_chosen * sizeof *f->chosen);
    if (par->extradata_size > 0) iwp_sha256_add(s, par->extradata, (size_t)par->extradata_size);
    if (f->counted) return hash_bytes(f, s, err);
    for (int32_t at = 0; at < f->n_chosen;) {
        int32_t first, end;
        at = plan_run(f, at, 0, &first, &end) + 1;
        IWP_TRY(hash_run(f, first, end, s, err));
    }
    return 0;
}

int iwp_film_hash(struct iwp_film *f, uint8_t sha[32], iwp_err *err) {
    struct iwp_sha256 s;
    iwp_sha256_init(&s);
    IWP_TRY(hash_chosen(f, &s, err));
    iwp_sha256_end(&s, sha);
    return 0;
}
