/* Vision towers with their projectors: pixels of a planned item to decoder rows.
 *
 * Three kinds, told apart by the mmproj file's keys: SigLIP with AnyRes tiles (LLaVA-OneVision), CLIP
 * (LLaVA-1.5 style files of llama.cpp and our own) and Qwen2.5-VL's window tower.  Runs on the CPU device
 * in float32 activations.  Refuses other projectors, and tensors whose shapes do not fit the keys, by
 * name. */
#ifndef IWP_MODEL_TOWER_H
#define IWP_MODEL_TOWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/gguf.h"
#include "iwp/error.h"
#include "iwp/prune.h"
#include "media/preprocess.h"
#include "model/backend.h"

struct iwp_tower;

struct iwp_tower_info {
    const char *projector;  /* clip.projector_type */
    const char *kernel;     /* "ggml", or the path of kern/gemm.h that runs its packed matrices */
    bool split;             /* packed f16, used as two bf16 numbers each */
    int32_t d_model;        /* D, of a row that enters the decoder */
    int32_t d_vision;       /* Dv */
    int32_t n_block;        /* that are run */
    int32_t n_head, d_head; /* of its attention */
    int32_t merge;          /* encoder rows per visual token: 1, or 4 */
    bool has_class;         /* the tower has a class token */
    bool class_last;        /* it stands after the patches, and the last row of a picture is its */
    int32_t image_token, video_token; /* ids from the file, -1: none */
    struct iwp_pre_params pre;
};

/* mmproj: an open file, needed during the call. */
int iwp_tower_new(struct iwp_tower **out, struct iwp_backend *b, const struct iwp_gguf *mmproj,
                  iwp_err *err);
void iwp_tower_free(struct iwp_tower *t); /* NULL is fine */
const struct iwp_tower_info *iwp_tower_info(const struct iwp_tower *t);
size_t iwp_tower_bytes(const struct iwp_tower *t);
/* Options `cls` and `merge` say how encoder rows belong to tokens.  That is the tower's business: a value
 * other than the default that is not the tower's is an error. */
int iwp_tower_check_options(const struct iwp_tower *t, const struct iwp_params *p, iwp_err *err);
const float *iwp_tower_newline(const struct iwp_tower *t); /* [d_model] or NULL */

struct iwp_tower_want {
    bool vision;   /* the tower's output in its own order */
    bool features; /* the same for every projector row, in picture order */
    bool qk;       /* queries and keys of one block */
    int32_t block; /* negative counts from the last block that is run */
    /* A method that merges rows inside the blocks (ToMe), and what every tile or frame ends with; NULL:
     * none.  Nothing else can be wanted with it. */
    const struct iwp_params *merge;
    const int32_t *keep;       /* [tiles or frames] */
    bool meter;                /* show how far it is; needs cancel */
    bool (*cancel)(void *ctx); /* asked often; may use the decoder meanwhile */
    void *cancel_ctx;
};

/* Arrays belong to the struct.  "Picture order": row r of iwp_pre_rows, `merge` encoder rows each. */
struct iwp_tower_out {
    int32_t n_row;
    float *row; /* [n_row][d_model] projector rows in picture order */
    int32_t n_vision;
    float *vision;                /* [n_vision][d_vision] tower output; Qwen2.5-VL: window order */
    float *feature, *q, *k;       /* [n_row * merge][d_vision], picture order */
    float *cls_f, *cls_q, *cls_k; /* [tiles][d_vision] of the class token */
    int32_t n_cls;
    int32_t
        *lead; /* [n_row] merged: which row stands for this one's group (they are equal); or NULL */
};
void iwp_tower_out_free(struct iwp_tower_out *o); /* a zeroed one is fine */
size_t iwp_tower_out_bytes(const struct iwp_tower *t, const struct iwp_tower_out *o);

/* pixels [plan->n_pixel] as iwp_pre_pixels made them. */
int iwp_tower_encode(struct iwp_tower *t, const struct iwp_pre_plan *plan, const float *pixels,
                     const struct iwp_tower_want *want, struct iwp_tower_out *out, iwp_err *err);
/* Rows of a tile of n after each block [n_block], when want.merge is to leave `keep`; an error gives the
 * reachable range. */
int iwp_tower_merge_plan(const struct iwp_tower *t, const struct iwp_params *merge, int32_t n,
                         int32_t keep, int32_t *after, iwp_err *err);
/* Multiply-adds of one item, times two. */
double iwp_tower_flops(const struct iwp_tower *t, const struct iwp_pre_plan *plan);
/* Encoder rows x [n][d_vision] through the projector to y [n / merge][d_model]. */
int iwp_tower_project(struct iwp_tower *t, const float *x, int32_t n, float *y, iwp_err *err);

#endif
