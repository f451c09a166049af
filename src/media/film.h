/* Films: exact frames of a video file as 8-bit RGB, through the FFmpeg libraries.
 *
 *     struct iwp_film *f;
 *     iwp_film_open(&f, "film.mp4", NULL, err);
 *     iwp_film_choose(f, index, n, err);                  // ascending numbers of frames
 *     while ((rc = iwp_film_next(f, &image, err)) > 0)    // one picture each, in that order
 *         ...
 *
 * A frame's number is its place among the frames `ffmpeg` decodes from the file in showing order; the
 * pixels are those of `ffmpeg -pix_fmt rgb24`, turned as the file asks.  Opening reads the packets once
 * without decoding and notes when each is shown; frames are then decoded from the key frame before
 * them.  What the file says about its own length or rate is not believed.  Codecs and files where
 * packets do not stand for frames one to one (GIF, no time stamps) are decoded from the start and counted.
 *
 * MP4, MOV, MKV, WebM, AVI, GIF; nothing else is tried, and nothing but the given bytes is ever read.
 * Refuses: audio alone, cut-off and damaged files, more than 36 million pixels a frame, frames that
 * change their size.  Without the libraries (IWP_HAVE_FFMPEG) every call fails with their names. */
#ifndef IWP_MEDIA_FILM_H
#define IWP_MEDIA_FILM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/image.h"

struct iwp_film;

struct iwp_film_params {
    int32_t n_thread;          /* of the decoder; 0: one for each CPU, at most four */
    bool count;                /* decode from the start and count, always: slow, for comparisons */
    bool (*cancel)(void *ctx); /* asked often; true ends a call with IWP_ECANCELLED */
    void *cancel_ctx;
};

/* `p` may be NULL.  Errors begin with the path (or say "the film"). */
int iwp_film_open(struct iwp_film **out, const char *path, const struct iwp_film_params *p,
                  iwp_err *err);
/* The bytes must live as long as the film. */
int iwp_film_open_bytes(struct iwp_film **out, const uint8_t *data, size_t n,
                        const struct iwp_film_params *p, iwp_err *err);
void iwp_film_close(struct iwp_film *f); /* NULL is fine */

struct iwp_film_info {
    int32_t w, h; /* of the pictures, turned */
    int32_t n_frame;
    double fps;     /* average, from the container or the time stamps */
    double seconds; /* from the first frame to the last one's start */
    int32_t turn;   /* degrees clockwise that the pictures were turned by */
    bool counted;   /* without an index: see above */
    const char *format, *codec;
};
struct iwp_film_info iwp_film_info(const struct iwp_film *f);
double iwp_film_time(const struct iwp_film *f, int32_t index); /* seconds since the first frame */

/* index[n] ascending, repeats allowed. */
int iwp_film_choose(struct iwp_film *f, const int32_t *index, int32_t n, iwp_err *err);
/* 1: *out is the next chosen frame (the caller frees it), 0: there are no more. */
int iwp_film_next(struct iwp_film *f, struct iwp_image *out, iwp_err *err);
/* SHA-256 over everything the pixels of the chosen frames follow from: codec parameters and every packet
 * that has to be decoded for them.  Call it before the first iwp_film_next. */
int iwp_film_hash(struct iwp_film *f, uint8_t sha[32], iwp_err *err);

/* True when the first bytes look like a film that iwp_film_open would try. */
bool iwp_film_likely(const uint8_t *data, size_t n);

#endif
