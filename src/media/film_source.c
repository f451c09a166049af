/* A film's bytes, demuxer and decoder: see film_impl.h.
 *
 * The demuxer reads through our own callbacks, so that no protocol of the libraries is ever entered; it
 * may be one of a few, and so may the decoder.  The libraries' messages are caught: the first one of a
 * call explains an error better than its code does. */
#include "base/err.h"
#include "media/film_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    IO_BUFFER = 1 << 16,
    MAX_PIXELS = 36 << 20,
    MAX_ALLOC = MAX_PIXELS * 8 + (1 << 20), /* a picture of the most bytes per pixel, at once */
    MAX_STREAMS = 100                       /* with covers and fonts */
};

static const char formats[] = "mov,matroska,avi,gif";
static const char codecs[] =
    "h264,hevc,vp8,vp9,libdav1d,av1,mpeg4,msmpeg4,mpeg2video,mjpeg,prores,theora,gif,png,ffv1,"
    "rawvideo";

/* ---- messages ---------------------------------------------------------------------------------- */

static _Thread_local char said[120];

static void on_message(void *ctx, int level, const char *fmt, va_list args) {
    (void)ctx;
    if (level > AV_LOG_ERROR || said[0]) return;
    vsnprintf(said, sizeof said, fmt, args);
    for (char *p = said; *p; p++)
        if ((unsigned char)*p < ' ') *p = p[1] ? ' ' : 0;
}

static void set_up(void) {
    iwp_av.av_log_set_callback(on_message);
    iwp_av.av_max_alloc(MAX_ALLOC);
}

int iwp_film_error(const struct iwp_film *f, int av, const char *what, iwp_err *err) {
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    if (av == AVERROR(ENOMEM))
        return iwp_err_set(err, IWP_ENOMEM,
                           "%s: takes more than %d MB at once or %d streams, or memory is out",
                           f->label, MAX_ALLOC >> 20, MAX_STREAMS);
    if (av == AVERROR_EXIT) return iwp_err_set(err, IWP_ECANCELLED, "interrupted");
    iwp_av.av_strerror(av, text, sizeof text);
    return iwp_err_set(err, IWP_EFORMAT, "%s: %s: %s%s%s", f->label, what, text,
                       said[0] ? ": " : "", said);
}

int iwp_film_stopped(const struct iwp_film *f, iwp_err *err) {
    IWP_REQUIRE(!f->p.cancel || !f->p.cancel(f->p.cancel_ctx), err, IWP_ECANCELLED, "interrupted");
    return 0;
}

static int interrupt(void *film) {
    struct iwp_film *f = film;
    return f->p.cancel && f->p.cancel(f->p.cancel_ctx);
}

/* ---- bytes ------------------------------------------------------------------------------------- */

int iwp_film_read_at(const struct iwp_film *f, int64_t at, uint8_t *to, int n) {
    if (at < 0 || at >= f->size) return AVERROR_EOF;
    if (n > f->size - at) n = (int)(f->size - at);
    if (f->fd < 0) {
        memcpy(to, f->data + at, (size_t)n);
        return n;
    }
    ssize_t got;
    do got = pread(f->fd, to, (size_t)n, at);
    while (got < 0 && errno == EINTR);
    return got < 0 ? AVERROR(errno) : got == 0 ? AVERROR_EOF : (int)got;
}

static int read_bytes(void *film, uint8_t *to, int n) {
    struct iwp_film *f = film;
    n = iwp_film_read_at(f, f->at, to, n);
    if (n > 0) f->at += n;
    return n;
}

static int64_t seek_bytes(void *film, int64_t offset, int whence) {
    struct iwp_film *f = film;
    if (whence == AVSEEK_SIZE) return f->size;
    whence &= ~AVSEEK_FORCE;
    int64_t base = whence == SEEK_CUR ? f->at : whence == SEEK_END ? f->size : 0;
    if (__builtin_add_overflow(base, offset, &offset) || offset < 0) return AVERROR(EINVAL);
    return f->at = offset;
}

/* Files that a file refers to are not opened. */
static int refuse_open(AVFormatContext *s, AVIOContext **pb, const char *url, int flags,
                       AVDictionary **options) {
    (void)s;
    (void)url;
    (void)flags;
    (void)options;
    *pb = NULL;
    return AVERROR(EPERM);
}

/* ---- demuxer and decoder ------------------------------------------------------------------------ */

static int open_demuxer(struct iwp_film *f, iwp_err *err) {
    AVDictionary *opts = NULL;
    uint8_t *buffer = iwp_av.av_malloc(IO_BUFFER);
    f->at = 0;
    f->io = buffer
                ? iwp_av.avio_alloc_context(buffer, IO_BUFFER, 0, f, read_bytes, NULL, seek_bytes)
                : NULL;
    f->fmt = iwp_av.avformat_alloc_context();
    if (!f->io) iwp_av.av_free(buffer);
    IWP_REQUIRE(f->io && f->fmt, err, IWP_ENOMEM, "%s: out of memory", f->label);
    f->fmt->pb = f->io;
    f->fmt->flags |= AVFMT_FLAG_CUSTOM_IO;
    f->fmt->io_open = refuse_open;
    f->fmt->interrupt_callback = (AVIOInterruptCB){interrupt, f};
    iwp_av.av_dict_set(&opts, "format_whitelist", formats, 0);
    iwp_av.av_dict_set(&opts, "codec_whitelist", codecs, 0);
    iwp_av.av_dict_set_int(&opts, "max_streams", MAX_STREAMS, 0);
    int rc = iwp_av.avformat_open_input(&f->fmt, "", NULL, &opts);
    iwp_av.av_dict_free(&opts);
    if ((rc == AVERROR_INVALIDDATA && !said[0]) || strstr(said, "whitelist"))
        return iwp_err_set(err, IWP_ENOTSUP,
                           "%s: is no MP4, MOV, MKV, WebM, AVI or GIF film, nor a folder of frames",
                           f->label);
    return rc < 0 ? iwp_film_error(f, rc, "cannot be read", err) : 0;
}

/* Finds out what the headers leave open, as ffmpeg does, in small steps and with our limits. */
static int probe_streams(struct iwp_film *f, iwp_err *err) {
    const unsigned n = f->fmt->nb_streams;
    AVDictionary **opts = calloc(n ? n : 1, sizeof *opts);
    IWP_REQUIRE(opts, err, IWP_ENOMEM, "%s: out of memory", f->label);
    for (unsigned i = 0; i < n; i++) {
        iwp_av.av_dict_set_int(&opts[i], "max_pixels", MAX_PIXELS, 0);
        iwp_av.av_dict_set_int(&opts[i], "threads", 1, 0);
    }
    int rc = iwp_av.avformat_find_stream_info(f->fmt, opts);
    for (unsigned i = 0; i < n; i++) iwp_av.av_dict_free(&opts[i]);
    free(opts);
    if (rc < 0) return iwp_film_error(f, rc, "cannot be read", err);
    f->stream = iwp_av.av_find_best_stream(f->fmt, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
    IWP_REQUIRE(f->stream >= 0 &&
                    !(f->fmt->streams[f->stream]->disposition & AV_DISPOSITION_ATTACHED_PIC),
                err, IWP_EINVAL, "%s: has no video, %s", f->label,
                f->fmt->nb_streams ? "only sound or text" : "it is empty");
    for (unsigned i = 0; i < f->fmt->nb_streams; i++)
        if ((int)i != f->stream) f->fmt->streams[i]->discard = AVDISCARD_ALL;
    f->base = f->fmt->streams[f->stream]->time_base;
    return 0;
}

static int open_decoder(struct iwp_film *f, iwp_err *err) {
    const AVStream *st = f->fmt->streams[f->stream];
    const AVCodecParameters *par = st->codecpar;
    const AVCodec *codec = iwp_av.avcodec_find_decoder(par->codec_id);
    IWP_REQUIRE(codec && iwp_av.av_match_list(codec->name, codecs, ','), err, IWP_ENOTSUP,
                "%s: codec '%s' is not supported", f->label,
                iwp_av.avcodec_get_name(par->codec_id));
    IWP_REQUIRE(par->width > 0 && par->height > 0 &&
                    (int64_t)par->width * par->height <= MAX_PIXELS,
                err, IWP_EINVAL, "%s: frames of %d x %d pixels, the limit is %d in all", f->label,
                par->width, par->height, MAX_PIXELS);
    f->dec = iwp_av.avcodec_alloc_context3(codec);
    IWP_REQUIRE(f->dec, err, IWP_ENOMEM, "%s: out of memory", f->label);
    int rc = iwp_av.avcodec_parameters_to_context(f->dec, par);
    if (rc < 0) return iwp_film_error(f, rc, "cannot be decoded", err);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    f->dec->thread_count = f->p.n_thread > 0 ? f->p.n_thread
                           : cpus < 1        ? 1
                           : cpus < 4        ? (int)cpus
                                             : 4;
    f->dec->pkt_timebase = st->time_base;
    f->dec->max_pixels = MAX_PIXELS;
    rc = iwp_av.avcodec_open2(f->dec, codec, NULL);
    return rc < 0 ? iwp_film_error(f, rc, "cannot be decoded", err) : 0;
}

int iwp_film_rewind(struct iwp_film *f, iwp_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up);
    said[0] = 0;
    iwp_av.avformat_close_input(&f->fmt);
    if (f->io) iwp_av.av_freep(&f->io->buffer);
    iwp_av.avio_context_free(&f->io);
    IWP_TRY(open_demuxer(f, err));
    IWP_TRY(probe_streams(f, err));
    if (f->dec)
        iwp_av.avcodec_flush_buffers(f->dec);
    else
        IWP_TRY(open_decoder(f, err));
    if (!f->packet) f->packet = iwp_av.av_packet_alloc();
    if (!f->got) f->got = iwp_av.av_frame_alloc();
    IWP_REQUIRE(f->packet && f->got, err, IWP_ENOMEM, "%s: out of memory", f->label);
    return 0;
}

void iwp_film_source_close(struct iwp_film *f) {
    iwp_av.av_packet_free(&f->packet);
    iwp_av.av_frame_free(&f->got);
    iwp_av.avcodec_free_context(&f->dec);
    iwp_av.avformat_close_input(&f->fmt);
    if (f->io) iwp_av.av_freep(&f->io->buffer);
    iwp_av.avio_context_free(&f->io);
    if (f->fd >= 0) close(f->fd);
}

/* ---- packets and frames --------------------------------------------------------------------------- */

int iwp_film_packet(struct iwp_film *f, iwp_err *err) {
    for (;;) {
        IWP_TRY(iwp_film_stopped(f, err));
        int rc = iwp_av.av_read_frame(f->fmt, f->packet);
        if (rc == AVERROR_EOF) {
            /* Some demuxers call a file that stops too early its end. */
            if (f->io->error < 0) return iwp_film_error(f, f->io->error, "cannot be read", err);
            return 0;
        }
        if (rc < 0) return iwp_film_error(f, rc, "is damaged or cut off", err);
        if (f->packet->stream_index == f->stream) return 1;
        iwp_av.av_packet_unref(f->packet);
    }
}

int iwp_film_send(struct iwp_film *f, bool end, iwp_err *err) {
    int rc = iwp_av.avcodec_send_packet(f->dec, end ? NULL : f->packet);
    if (!end) iwp_av.av_packet_unref(f->packet);
    /* A packet the decoder cannot use costs its own frame only; who waits for it will notice. */
    if (rc == AVERROR_INVALIDDATA || rc == AVERROR_EOF) return 0;
    return rc < 0 ? iwp_film_error(f, rc, "cannot be decoded", err) : 0;
}

int iwp_film_receive(struct iwp_film *f, iwp_err *err) {
    for (int skipped = 0; skipped < 64; skipped++) {
        int rc = iwp_av.avcodec_receive_frame(f->dec, f->got);
        if (rc == 0) return 1;
        if (rc == AVERROR(EAGAIN)) return 0;
        if (rc == AVERROR_EOF) return 2;
        if (rc != AVERROR_INVALIDDATA) return iwp_film_error(f, rc, "cannot be decoded", err);
    }
    return iwp_film_error(f, AVERROR_INVALIDDATA, "cannot be decoded", err);
}
