/* iwp/engine.h: vision-language models with pruning in the middle of the network.
 *
 * An engine is a loaded model: weights, vocabulary, vision tower; immutable and shared.  A session is
 * one timeline over it: cache, rows, logits.  A prompt is what a session starts from.
 *
 *     struct iwp_engine_params ep = iwp_engine_default_params();
 *     ep.model = "model.gguf";
 *     ep.mmproj = "mmproj.gguf";
 *     iwp_engine *e;
 *     iwp_engine_open(&e, &ep, &err);
 *
 *     struct iwp_part parts[] = {{.kind = IWP_PART_IMAGE, .file = "cat.jpg"},
 *                                {.kind = IWP_PART_TEXT, .text = "What is this?"}};
 *     struct iwp_message msg = {"user", parts, 2};
 *     struct iwp_prompt_request r = {.message = &msg, .n_message = 1};
 *     iwp_prompt *p;
 *     iwp_engine_prompt(e, &r, &p, &err);                  // tokens, positions, encoded pictures
 *
 *     struct iwp_params prune;
 *     iwp_params_default(&prune, iwp_method_find("iwp"));
 *     prune.budget.keep = 0.222;
 *     iwp_session *s;
 *     struct iwp_session_params sp = iwp_session_default_params();
 *     iwp_session_new(&s, e, &sp, &err);
 *     iwp_session_begin(s, p, &prune, &err);
 *     while ((rc = iwp_session_step(s, &err)) > 0) {}      // small steps: a server can interleave
 *     iwp_session_generate(s, &gp, &result, &err);
 *
 * examples/describe.c is this sketch as a program.  Functions return 0 or a count, or a negative enum
 * iwp_status with err filled.  Calls on different sessions of one engine may come from different
 * threads; they take turns on the engine's own threads.  One session belongs to one thread at a time. */
#ifndef IWP_ENGINE_H
#define IWP_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"
#include "iwp/prune.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iwp_engine iwp_engine;
typedef struct iwp_session iwp_session;
typedef struct iwp_prompt iwp_prompt;
typedef struct iwp_pictures iwp_pictures;

/* ---- Engine ---------------------------------------------------------------------------------- */

struct iwp_engine_params {
    const char *model;         /* GGUF file, the first part of a split one */
    const char *mmproj;        /* GGUF of the vision tower and projector; NULL: text only */
    const char *chat_template; /* NULL: the one that fits the file */
    const char *rpc;           /* "host:port,…" of ggml RPC servers (trusted networks), or NULL */
    int32_t n_thread;          /* 0: all CPUs of this process, or what its container leaves it */
    int32_t n_gpu;             /* layers on GPU or RPC devices; -1: all when there are any */
    size_t cache_bytes;        /* of encoded pictures; 0: 512 MB */
    bool no_text;              /* weights only: no vocabulary, no tower (timings) */
    bool plain_weights;        /* no repacked weight layouts, for comparisons */
    bool embeddings_in_file;   /* and are read from there row by row: for short runs */
    bool (*cancel)(void *ctx); /* as of iwp_engine_set_cancel, from the loading on; or NULL */
    void *cancel_ctx;
};
IWP_API struct iwp_engine_params iwp_engine_default_params(void);

IWP_API int iwp_engine_open(iwp_engine **out, const struct iwp_engine_params *p, iwp_err *err);
IWP_API void iwp_engine_close(iwp_engine *e); /* after its sessions and prompts; NULL is fine */

struct iwp_engine_info {
    const char *name, *arch, *file_type; /* "qwen2vl", "Q4_0"; live as long as the engine */
    int64_t n_params;                    /* decoder and tower */
    int32_t n_layer, d_model, n_head, n_head_kv, d_head, n_vocab, n_ctx_train;
    int32_t n_thread;
    bool has_vision;
    size_t weight_bytes;
};
IWP_API struct iwp_engine_info iwp_engine_info(const iwp_engine *e);

IWP_API int iwp_engine_token_text(const iwp_engine *e, int32_t id, char *buf, int cap);
IWP_API bool iwp_engine_token_is_end(const iwp_engine *e, int32_t id);

/* Stops whatever the engine computes when cancel(ctx) is true; asked often, must be quick; while loading several
 * threads ask.  Calls then return IWP_ECANCELLED. */
IWP_API void iwp_engine_set_cancel(iwp_engine *e, bool (*cancel)(void *ctx), void *ctx);

/* ---- Prompts --------------------------------------------------------------------------------- */

enum iwp_part_kind { IWP_PART_TEXT, IWP_PART_IMAGE, IWP_PART_VIDEO };

struct iwp_part {
    enum iwp_part_kind kind;
    const char *text;    /* TEXT: UTF-8; a typed "<image>" is text */
    const char *file;    /* IMAGE: path; VIDEO: path of a film or a folder of frames */
    const uint8_t *data; /* IMAGE, VIDEO: the bytes instead; `file` is then a label or NULL */
    size_t size;
    const char *const *frame; /* VIDEO: or the paths of its frames, n_frame pictures */
    int32_t n_frame;
};

struct iwp_message {
    const char *role; /* "system", "user", "assistant" */
    const struct iwp_part *part;
    int32_t n_part;
};

struct iwp_prompt_request {
    const struct iwp_message *message; /* rendered by the chat template */
    int32_t n_message;
    const char *raw; /* or: a verbatim prompt (--chat-template none), special tokens parsed */
    const struct iwp_part *media; /* of a raw prompt: for its <image> / <video> marks, else first */
    int32_t n_media;
    bool no_generation_prompt; /* leave out the opening of the assistant's turn */

    /* Of a film: this many frames, spread evenly (0: 32), or with fps that many a second, `frames` (0:
     * 768) at most.  Of a folder: at most `frames` (0: all); fps is the rate they were taken at. */
    int32_t frames;
    double fps;
    int32_t image_min_tokens, image_max_tokens; /* 0: the model's */
    int32_t
        image_tiles; /* CLIP towers, a single picture: a thumbnail and this many tiles a side; 0: none */
    int64_t max_pixels; /* larger pictures are refused; 0: above 100 million */
    int32_t n_ctx;      /* what leaves no room in it is refused before it is encoded; 0: nothing */

    /* Method `resize`: pictures are shrunk until they cost at most this share of their tokens; 0: off. */
    double resize_keep;
    int32_t resize_tokens; /* or a count for all pictures together; 0: by resize_keep */

    iwp_pictures
        *pictures; /* of iwp_engine_prepare, with the same parts and limits; used up; or NULL */

    bool dump;                 /* keep pixel_values and vision_features */
    bool keep_pixels;          /* keep the RGB pictures, for overlays */
    bool tap_features, tap_qk; /* what the pruning method reads from the tower */
    int32_t tap_block; /* encoder block of queries and keys; negative from the end (-1 = last) */
    bool in_tower;     /* the method below merges rows inside the tower's blocks */
    struct iwp_params tower;
    /* Asked every few milliseconds while pictures are encoded; true ends that with IWP_ECANCELLED.
     * Meanwhile it (or another thread) may step and feed sessions, but not build a prompt itself. */
    bool meter; /* show on stderr how far the encoding is (on a terminal, or when it takes long) */
    bool (*cancel)(void *ctx);
    void *cancel_ctx;
};

/* Fills resize_*, tap_* and the tower's method from what a method reads; call after setting its options.  NULL: none. */
IWP_API void iwp_prompt_request_for(struct iwp_prompt_request *r, const struct iwp_params *prune);

/* Before any request: whether this model can do what a method asks, with the limits of r (its parts are not
 * looked at), of a large picture or of a small one.  Returns the visual tokens of the largest picture and in
 * *least those of the smallest that can; 0 without a tower. */
IWP_API int iwp_engine_try(iwp_engine *e, const struct iwp_prompt_request *r,
                           const struct iwp_params *prune, int32_t *least, iwp_err *err);

IWP_API int iwp_engine_prompt(iwp_engine *e, const struct iwp_prompt_request *r, iwp_prompt **out,
                              iwp_err *err);
IWP_API void iwp_engine_prompt_free(iwp_prompt *p); /* NULL is fine */

/* What of a prompt needs no engine: pictures that are not in the cache are decoded and become pixels.  May
 * run on any thread beside everything else, so that a large picture keeps nobody waiting; set the
 * request's `pictures` to the result.  Videos are left for iwp_engine_prompt.  *out NULL: there is
 * nothing to keep. */
IWP_API int iwp_engine_prepare(iwp_engine *e, const struct iwp_prompt_request *r,
                               iwp_pictures **out, iwp_err *err);
IWP_API size_t iwp_engine_pictures_bytes(const iwp_pictures *p);
IWP_API void iwp_engine_pictures_free(iwp_pictures *p); /* NULL is fine */

struct iwp_prompt_info {
    int32_t n_token, n_visual, n_image;
    double ms_decode_image, ms_preprocess, ms_encode; /* 0 when it came from the cache */
};
IWP_API struct iwp_prompt_info iwp_prompt_info(const iwp_prompt *p);

/* ---- Sessions -------------------------------------------------------------------------------- */

enum iwp_kv_type { IWP_KV_F16, IWP_KV_F32, IWP_KV_Q8_0 };
/* Position ids after a cut.  Default: the method's own rule. */
enum iwp_positions { IWP_POSITIONS_DEFAULT, IWP_POSITIONS_ORIGINAL, IWP_POSITIONS_COMPACT };
/* Attention.  On: block by block with a running softmax, by our own kernel where CPU, device and head size
 * allow, else by ggml's.  Off: two plain products, the reference.  Auto: on unless the cache is f32.
 * ggml: its flash attention, to compare. */
enum iwp_flash { IWP_FLASH_AUTO, IWP_FLASH_ON, IWP_FLASH_OFF, IWP_FLASH_GGML };

struct iwp_session_params {
    int32_t n_ctx;   /* most rows; 0: the model's own */
    int32_t n_chunk; /* prefill chunk rows (-ub) */
    enum iwp_kv_type type_k, type_v;
    enum iwp_flash flash;
    enum iwp_positions positions;
    int32_t reserve; /* rows of cache beyond the prompt; grows when more are generated */
    bool
        split_media; /* a prefill chunk ends behind the last visual row: a server's prompts often go
                        * on differently from there */
    bool no_reselect;  /* a prompt that continues the last one keeps its selection */
    bool keep_tensors; /* keep what --dump-tensors writes */
};
IWP_API struct iwp_session_params iwp_session_default_params(void);

IWP_API int iwp_session_new(iwp_session **out, iwp_engine *e, const struct iwp_session_params *p,
                            iwp_err *err);
IWP_API void iwp_session_free(iwp_session *s); /* NULL is fine */

/* Starts a prompt; `prune` NULL: all tokens stay.  The prompt must live until the next begin.  Layers
 * below the first cut, or the kept mark, are not run again for the part that equals the previous prompt
 * (whole chunks only, so that the numbers equal those of a fresh session bit for bit). */
IWP_API int iwp_session_begin(iwp_session *s, const iwp_prompt *p, const struct iwp_params *prune,
                              iwp_err *err);
/* One chunk of rows through one segment, or one selection.  1: more to do, 0: logits are there. */
IWP_API int iwp_session_step(iwp_session *s, iwp_err *err);
IWP_API const float *iwp_session_logits(const iwp_session *s); /* [n_vocab] after the last token */
/* Appends one token and computes the logits after it. */
IWP_API int iwp_session_feed(iwp_session *s, int32_t token, iwp_err *err);
/* Forgets fed tokens but the first `n`; logits are gone unless n was all. */
IWP_API int iwp_session_forget(iwp_session *s, int32_t n, iwp_err *err);
/* n different sessions of one engine, one token each, pruned as they may be: the weights are read once for
 * up to 16 of them, each attends to its own cache.  Logits are those of feed but for the rounding of
 * matrix products, whose kernels depend on the number of rows: about 1e-6 of the largest with f32
 * weights, and none where a kernel sums one row and several in the same order.  An error of the
 * arguments leaves all sessions as they were. */
IWP_API int iwp_session_feed_batch(iwp_session *const *s, const int32_t *token, int32_t n,
                                   iwp_err *err);

/* The state before layer l, to continue from with another method or budget that cuts at l or later:
 * bit for bit what a fresh run gives.  Ask for layers (ascending) with iwp_session_keep_marks before
 * begin; layer 0 is always there.  A run passes those up to its own first cut, and a cut ends what is
 * above it: go from the highest layer down.  Rewind leaves the session as after begin, to be stepped. */
enum { IWP_MARK_MAX = 32 };
IWP_API int iwp_session_keep_marks(iwp_session *s, const int32_t *layer, int32_t n, iwp_err *err);
IWP_API int iwp_session_rewind(iwp_session *s, int32_t layer, const struct iwp_params *prune,
                               iwp_err *err);

/* What a run did; pointers live until the next begin or rewind. */
struct iwp_session_stage {
    int32_t layer; /* -1: before the decoder */
    int32_t block; /* encoder block that merged, its rows of all tiles counted; -1: none */
    int32_t visual_kept;
};
struct iwp_session_stats {
    int32_t n_prompt, n_visual, n_kept; /* rows; visual rows; visual rows that reached the end */
    int32_t n_generated;                /* tokens fed */
    const int32_t *keep;                /* [n_kept] ascending, among the visual tokens */
    const float *scores;                /* [n_visual] first-stage scores, or NULL */
    int32_t n_stage;
    struct iwp_session_stage stage[IWP_STAGE_MAX];
    double layer_average, flops, flops_full;
    double ms_prefill, ms_select, ms_decode;
    size_t kv_bytes, kv_bytes_full; /* after the prompt: used, and without pruning */
    int32_t n_reused;               /* prompt rows whose lower layers were not run again */
    int32_t marked;                 /* the last layer whose state this run kept; 0: none yet */
    int64_t row_layers;             /* prompt rows × layers that were run */
    int64_t row_layers_left; /* those ahead, about: separators may stay besides what is kept */
};
IWP_API struct iwp_session_stats iwp_session_stats(const iwp_session *s);

/* Writes what the last run computed (session with keep_tensors, prompt with dump) as safetensors. */
IWP_API int iwp_session_dump(const iwp_session *s, const char *path, iwp_err *err);

/* ---- Sampling and whole answers -------------------------------------------------------------- */

typedef struct iwp_sampler iwp_sampler;
struct iwp_sampler_params {
    double temp; /* 0: greedy */
    int32_t top_k;
    double top_p, min_p;
    uint32_t seed;
};
IWP_API struct iwp_sampler_params iwp_sampler_default_params(void); /* greedy; 40, 0.95, 0.05 */
IWP_API int iwp_sampler_new(iwp_sampler **out, const struct iwp_sampler_params *p, iwp_err *err);
IWP_API void iwp_sampler_free(iwp_sampler *s); /* NULL is fine */
IWP_API int32_t iwp_sampler_pick(iwp_sampler *s, const float *logits, int32_t n_vocab);

struct iwp_generate_params {
    int32_t n_predict; /* most tokens; -1: until the context is full */
    bool ignore_eos;
    iwp_sampler *sampler; /* NULL: greedy */
    const char *const
        *stop; /* texts that end the answer and are cut off; NULL-terminated or NULL */
    /* Called with whole UTF-8 characters as they come; false stops (finish "stop"). */
    bool (*on_text)(void *ctx, const char *text, size_t n);
    void *ctx;
};
enum iwp_finish { IWP_FINISH_STOP, IWP_FINISH_LENGTH, IWP_FINISH_CANCELLED };
struct iwp_answer {
    char *text; /* the caller frees with iwp_answer_free */
    size_t n_text;
    int32_t *token; /* [n_token], the end token not included */
    int32_t n_token;
    enum iwp_finish finish;
    double ms_first, ms_decode; /* to the first token (from the call); all others */
};
/* From logits that are there (after step returned 0). */
IWP_API int iwp_session_generate(iwp_session *s, const struct iwp_generate_params *g,
                                 struct iwp_answer *out, iwp_err *err);
IWP_API void iwp_answer_free(struct iwp_answer *a);

#ifdef __cplusplus
}
#endif
#endif
