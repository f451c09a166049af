/* Pictures and videos of a prompt: bytes to encoder and projector rows, with a cache.
 *
 * Owns: reading pictures and videos (media/clip.h), the `resize` control, and the cache of encoded items,
 * keyed by SHA-256 of the bytes, the preprocessing mode and limits, and bounded in bytes (least recently
 * used out first).  The frames of a video are read, prepared and encoded a few at a time: memory follows
 * what is kept of them, not the film. */
#ifndef IWP_MODEL_ENCODE_H
#define IWP_MODEL_ENCODE_H

#include "media/clip.h"
#include "model/prompt.h"
#include "model/tower.h"

struct iwp_encoder;
int iwp_encoder_new(struct iwp_encoder **out, struct iwp_tower *t, size_t cache_bytes,
                    iwp_err *err);
void iwp_encoder_free(struct iwp_encoder *e); /* NULL is fine; the tower stays the caller's */

/* One picture or video while a prompt is built. */
struct iwp_item {
    const struct iwp_part *part;
    enum iwp_pre_mode mode;
    char label[200]; /* what messages call it */
    uint8_t *bytes;  /* of a picture … */
    size_t size;
    struct iwp_clip *clip; /* … or the video */
    int32_t n_frame;
    uint8_t sha[32];          /* of all bytes */
    struct iwp_image picture; /* once decoded */
    struct iwp_image
        *frame;            /* [n_frame] small pictures of a video, when the request keeps pixels */
    int32_t width, height; /* of the file */
    struct iwp_pre_plan plan;
    int64_t max_pixels;
    int32_t target; /* resize control: at most this many tokens; 0: off */
    bool counted;   /* a count was asked for, not a share */
    int32_t *keep;  /* [tiles or frames] rows a method leaves of each inside the tower; NULL: all */
    int32_t n_keep;
    int32_t small_w, small_h; /* the size the resize control takes; 0: as it is */

    const struct iwp_tower_out *out; /* in the cache or `own`; until the next call on the encoder */
    struct iwp_tower_out own;
    float *ready;        /* [plan.n_pixel] of a picture prepared ahead, or NULL */
    float *pixel_values; /* when asked for; the caller may take it */
    double ms_decode, ms_preprocess, ms_encode;
};
void iwp_item_free(struct iwp_item *it);

/* Reads the bytes of a picture, or opens a video and chooses its frames.  A picture that was prepared
 * ahead for the same mode is taken out of r->pictures. */
int iwp_item_read(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_part *part,
                  enum iwp_pre_mode mode, const struct iwp_prompt_request *r, iwp_err *err);
/* Decodes (once) a picture and plans with the limits of the request. */
int iwp_item_plan(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_prompt_request *r,
                  iwp_err *err);
/* Plans a picture of side x side pixels that is not there, and returns its visual tokens; an error when the
 * request's limits or its `resize` cannot be had from it. */
int iwp_encoder_try(struct iwp_encoder *e, const struct iwp_prompt_request *r, int32_t side,
                    struct iwp_item *it, iwp_err *err);
/* Fills it->out and it->plan, from the cache when it can.  Behind n_visual tokens of others. */
int iwp_item_encode(struct iwp_encoder *e, struct iwp_item *it, const struct iwp_prompt_request *r,
                    int32_t n_visual, iwp_err *err);
/* Pictures of a request made ready for the tower; see iwp_engine_prepare. */
struct iwp_pictures {
    int32_t n;
    struct iwp_item item[];
};
int iwp_encoder_prepare(struct iwp_encoder *e, const struct iwp_prompt_request *r,
                        struct iwp_pictures **out, iwp_err *err);
void iwp_pictures_free(struct iwp_pictures *p); /* NULL is fine */

/* Entries and bytes in the cache, and how often it helped. */
struct iwp_encoder_stats {
    int32_t n;
    size_t bytes;
    int64_t hits, misses;
};
struct iwp_encoder_stats iwp_encoder_stats(const struct iwp_encoder *e);

#endif
