/* A video of any origin as a row of pictures: a film, a folder of pictures in name order, a text file
 * that lists pictures (one a line, relative to it), or paths.
 *
 *     iwp_clip_open(&c, path, &params, err);
 *     iwp_clip_hash(c, sha, err);                         // what it would give
 *     while ((rc = iwp_clip_next(c, &image, err)) > 0)    // one frame at a time
 *
 * Frames are read when they are asked for: memory is one picture and, for a film, its index.
 * Folders and lists are taken whole unless `frames` says fewer; films by sampling.h. */
#ifndef IWP_MEDIA_CLIP_H
#define IWP_MEDIA_CLIP_H

#include <stdbool.h>

#include "media/image.h"
#include "media/sampling.h"

struct iwp_clip;

struct iwp_clip_params {
    struct iwp_sampling sampling; /* of pictures, fps is the rate they were taken at */
    bool (*cancel)(void *ctx);
    void *cancel_ctx;
};

int iwp_clip_open(struct iwp_clip **out, const char *path, const struct iwp_clip_params *p,
                  iwp_err *err);
int iwp_clip_open_files(struct iwp_clip **out, const char *const *path, int32_t n,
                        const struct iwp_clip_params *p, iwp_err *err);
/* A film's bytes, which must live as long as the clip. */
int iwp_clip_open_bytes(struct iwp_clip **out, const uint8_t *data, size_t n,
                        const struct iwp_clip_params *p, iwp_err *err);
void iwp_clip_close(struct iwp_clip *c); /* NULL is fine */

struct iwp_clip_info {
    int32_t n_frame;      /* that are taken */
    int32_t total;        /* of which there are */
    const int32_t *index; /* [n_frame] their numbers */
    const double *time;   /* [n_frame] seconds since the first one; NULL: not known */
    double fps;           /* at which the taken frames come; 0: not known */
    bool film;
};
struct iwp_clip_info iwp_clip_info(const struct iwp_clip *c);
/* Size of the frames; reads the first picture of a folder. */
int iwp_clip_size(struct iwp_clip *c, int32_t *w, int32_t *h, iwp_err *err);
/* SHA-256 of what the frames are made from; before the first next. */
int iwp_clip_hash(struct iwp_clip *c, uint8_t sha[32], iwp_err *err);
/* 1: *out is the next frame (the caller frees it), 0: there are no more. */
int iwp_clip_next(struct iwp_clip *c, struct iwp_image *out, iwp_err *err);
/* Back to the first frame. */
int iwp_clip_restart(struct iwp_clip *c, iwp_err *err);

#endif
