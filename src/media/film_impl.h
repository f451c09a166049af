/* Inside of a film, shared by its files: film_check.c (before FFmpeg sees it), film_source.c (bytes,
 * demuxer, decoder, messages), film_index.c (which packet is which frame), film_picture.c (turning, RGB),
 * film.c (choosing and decoding).  Only these files know FFmpeg. */
#ifndef IWP_MEDIA_FILM_IMPL_H
#define IWP_MEDIA_FILM_IMPL_H

#include "media/film.h"
#include "media/film_av.h"

/* One packet of the video stream, in decoding order. */
struct iwp_film_packet {
    int64_t pts, dts, pos;
    uint8_t key, shown; /* shown: the decoder makes a frame of it */
};

struct iwp_film_index {
    struct iwp_film_packet *packet; /* [n] */
    int32_t n, cap;
    int32_t *frame;  /* [n_frame] packets in showing order */
    int32_t *by_pos; /* [n] packets by place in the file */
    int32_t n_frame;
};

struct iwp_film {
    char label[300];
    struct iwp_film_params p;

    /* film_source.c */
    int fd;              /* -1: bytes in memory */
    const uint8_t *data; /* [size] */
    int64_t size, at;
    AVIOContext *io;
    AVFormatContext *fmt;
    int stream;
    AVCodecContext *dec;
    AVPacket *packet;
    AVFrame *got;

    /* film_index.c */
    struct iwp_film_index index;
    bool counted;
    int64_t *shown_at; /* [n_frame] time stamps of a counted film */
    int32_t n_frame;
    AVRational base;

    /* film_picture.c */
    int32_t w, h;
    int32_t matrix[9]; /* how the picture is shown; all 0: as it is */
    struct SwsContext *sws;
    int sws_format, sws_w, sws_h;
    AVFrame *turned;

    /* film.c: the chosen frames */
    int32_t *chosen; /* [n_chosen] */
    int32_t n_chosen, cursor;
    int32_t run_first, run_end; /* packets that are fed, or frames counted */
    int32_t run_last;           /* last chosen frame this run is for */
    int32_t fed;                /* next packet to feed; counted: next frame to come */
    int32_t tries;
    bool running, draining;
    AVFrame **early; /* [n_chosen] frames that came before their turn */
    struct iwp_image last;
};

/* Refuses files that would take much memory for nothing, or that were cut off without a trace. */
int iwp_film_check(struct iwp_film *f, iwp_err *err);
/* Up to n bytes at a place of the file: how many, or an FFmpeg error code. */
int iwp_film_read_at(const struct iwp_film *f, int64_t at, uint8_t *to, int n);

/* Opens what is not open: bytes, demuxer, decoder.  Also to begin again from the first packet. */
int iwp_film_rewind(struct iwp_film *f, iwp_err *err);
void iwp_film_source_close(struct iwp_film *f);
/* The next packet of the video: 1, or 0 at the end.  Unref it before the next call. */
int iwp_film_packet(struct iwp_film *f, iwp_err *err);
/* One line about an FFmpeg error code. */
int iwp_film_error(const struct iwp_film *f, int av, const char *what, iwp_err *err);
int iwp_film_stopped(const struct iwp_film *f, iwp_err *err); /* IWP_ECANCELLED or 0 */
/* Feeds f->packet (NULL with `end`), or takes a frame into f->got: 1, 0 nothing now, 2 the end. */
int iwp_film_send(struct iwp_film *f, bool end, iwp_err *err);
int iwp_film_receive(struct iwp_film *f, iwp_err *err);

/* Reads all packets (or decodes all frames) and fills index or shown_at. */
int iwp_film_index_make(struct iwp_film *f, iwp_err *err);
/* The packet to begin with for frame `i`: the last key frame that is decoded and shown before it. */
int32_t iwp_film_index_start(const struct iwp_film_index *x, int32_t i);
/* The packet at this place of the file, -1 if unknown. */
int32_t iwp_film_index_find(const struct iwp_film_index *x, int64_t pos);
void iwp_film_index_free(struct iwp_film_index *x);

/* Reads the display matrix of the stream and sets w, h. */
void iwp_film_picture_init(struct iwp_film *f);
int32_t iwp_film_turn(const struct iwp_film *f);
/* f->got or any other frame as RGB. */
int iwp_film_picture(struct iwp_film *f, const AVFrame *in, struct iwp_image *out, iwp_err *err);

#endif
