/* iwp/prune.h: which visual tokens of a prompt to keep.
 *
 * A vision-language model turns pictures into hundreds or thousands of visual tokens; most of them
 * can be dropped inside the network.  This library decides which: plain arrays of one decoder layer
 * in, an ascending list of tokens to keep out.  It needs libc only, never allocates or starts a
 * thread inside a selection, is reentrant, and gives the same list on every CPU and thread count.
 *
 * The whole use, for somebody with an engine of their own:
 *
 *     uint8_t code[S];                      // what each prompt token is: enum iwp_code
 *     float *q, *k, *k_rope, *v;            // layer 4: q [S][28][128], k and v [S][4][128]
 *
 *     struct iwp_params p;
 *     iwp_err err;
 *     iwp_params_default(&p, iwp_method_find("iwp"));
 *     p.budget.keep = 0.222;                                  // keep 22.2 % of the visual tokens
 *     iwp_params_set(&p, "lambda", "5", &err);                // options by name, see `iwp methods`
 *
 *     struct iwp_input in = {.n = S, .code = code};
 *     in.arr[IWP_TENSOR_Q] = iwp_array_f32(q, S, 28, 128);
 *     in.arr[IWP_TENSOR_K] = iwp_array_f32(k, S, 4, 128);
 *     in.arr[IWP_TENSOR_K_ROPE] = iwp_array_f32(k_rope, S, 4, 128);
 *     in.arr[IWP_TENSOR_V] = iwp_array_f32(v, S, 4, 128);
 *
 *     int64_t bytes = iwp_select_workspace(&p, &in, NULL, &err);   // < 0: err says what is wrong
 *     void *ws = malloc((size_t)bytes);
 *     struct iwp_selection sel = {.keep = malloc(n_visual * sizeof(int32_t))};
 *     int rc = iwp_select(&p, &in, NULL, ws, (size_t)bytes, NULL, &sel, &err);
 *
 * After that sel.keep[0 … sel.n_keep-1] are indices among the visual tokens (codes 1 and 2, counted
 * from 0 in prompt order).  Remove the other visual rows from the residual stream, keep all text
 * rows, keep the position ids of what stays, and go on with layer 4.  examples/select.c is this
 * sketch as a program.
 */
#ifndef IWP_PRUNE_H
#define IWP_PRUNE_H

#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What goes in ------------------------------------------------------------------------- */

enum iwp_code {
    IWP_CODE_TEXT = 0,      /* template and system text */
    IWP_CODE_VISUAL = 1,    /* a visual token */
    IWP_CODE_SEPARATOR = 2, /* a visual token that only ends a row (LLaVA's newline vector) */
    IWP_CODE_USER = 3,      /* text: the user's own words */
};

enum iwp_dtype { IWP_DTYPE_F32 = 0, IWP_DTYPE_F16 = 1, IWP_DTYPE_BF16 = 2 };

/* [n_row][n_head][n_dim] numbers.  Strides count elements; the innermost one is 1. */
struct iwp_array {
    const void *data; /* NULL: not given.  Aligned for its type. */
    enum iwp_dtype dtype;
    int32_t n_row, n_head, n_dim; /* arrays without heads have n_head 1 */
    int64_t row_stride, head_stride;
};

/* The arrays a method may ask for.  S prompt tokens, H query heads, G KV heads (query head h reads
 * KV head h*G/H), d head size, D model width, P encoder rows.  "Before": the layer below the cut. */
#define IWP_TENSOR_MAP(X)                                                                          \
    X(Q, "q", "[S,H,d] queries at the cut, before RoPE")                                           \
    X(K, "k", "[S,G,d] keys at the cut, before RoPE")                                              \
    X(V, "v", "[S,G,d] values at the cut")                                                         \
    X(Q_ROPE, "q_rope", "[S,H,d] queries at the cut, after RoPE")                                  \
    X(K_ROPE, "k_rope", "[S,G,d] keys at the cut, after RoPE")                                     \
    X(H, "h", "[S,D] input of the layer at the cut, before its norm")                              \
    X(H_PREV, "h_prev", "[S,D] input of the layer before the cut")                                 \
    X(Q_ROPE_PREV, "q_rope_prev", "[S,H,d] queries of the layer before the cut, after RoPE")       \
    X(K_ROPE_PREV, "k_rope_prev", "[S,G,d] keys of the layer before the cut, after RoPE")          \
    X(EMBEDS, "embeds", "[S,D] decoder input rows")                                                \
    X(VIT_FEATURES, "vit_features", "[P,Dv] encoder rows")                                         \
    X(VIT_Q, "vit_q", "[P,Hv,dv] queries of an encoder block, as it multiplies them")              \
    X(VIT_K, "vit_k", "[P,Hv,dv] keys of an encoder block, as it multiplies them")                 \
    X(TEXT_EMBEDS, "text_embeds", "[T,Dv] text vectors in the space of vit_features")              \
    X(FINAL_NORM, "final_norm", "[D] weight of the decoder's final norm")

enum iwp_tensor {
#define X(id, name, text) IWP_TENSOR_##id,
    IWP_TENSOR_MAP(X)
#undef X
        IWP_TENSOR_COUNT
};

IWP_API const char *iwp_tensor_name(enum iwp_tensor t); /* "q", "k_rope", … */
IWP_API const char *iwp_tensor_text(enum iwp_tensor t); /* shape and meaning */

/* One prompt at one cut.  Zero it, then fill what the method needs (iwp_params_needs). */
struct iwp_input {
    int32_t n;           /* S, prompt tokens */
    const uint8_t *code; /* [n] enum iwp_code */
    const int32_t
        *unit; /* [visual tokens] picture, tile or frame number for budget scopes; NULL: one unit */
    const int64_t *pos; /* [n_pos][n] position ids; NULL: 0 … n-1 */
    int32_t n_pos;      /* 1, or 3 for M-RoPE */
    const int64_t
        *window; /* [tokens of code 1] raster index of each group of encoder rows; NULL: identity */
    struct iwp_array arr[IWP_TENSOR_COUNT];
    int32_t stage; /* 0 unless the method's plan has several */
    /* For methods that call back into the model (flag IWP_METHOD_ENGINE_ONLY): projects n_row encoder
     * rows x [n_row][Dv] to decoder rows y [n_row][D].  Returns 0, or a negative status. */
    int (*project)(void *ctx, const float *x, int32_t n_row, float *y);
    void *project_ctx;
};

/* A contiguous float array; for strided, f16 or bf16 data fill the struct yourself. */
static inline struct iwp_array iwp_array_f32(const float *data, int32_t n_row, int32_t n_head,
                                             int32_t n_dim) {
    struct iwp_array a;
    a.data = data;
    a.dtype = IWP_DTYPE_F32;
    a.n_row = n_row;
    a.n_head = n_head;
    a.n_dim = n_dim;
    a.row_stride = (int64_t)n_head * n_dim;
    a.head_stride = n_dim;
    return a;
}

/* ---- Methods, options, budgets -------------------------------------------------------------- */

enum iwp_site { IWP_SITE_MEDIA, IWP_SITE_TOWER, IWP_SITE_EMBEDDINGS, IWP_SITE_LAYER };

enum iwp_method_flag {
    IWP_METHOD_SEEDED = 1,          /* random, repeatable through option `seed` */
    IWP_METHOD_MERGES = 2,          /* selections come with merges */
    IWP_METHOD_CHANGES_ENCODER = 4, /* acts inside the vision tower: encodings cannot be shared */
    IWP_METHOD_ENGINE_ONLY = 8, /* needs more than arrays (input.project, or the picture itself) */
    IWP_METHOD_MAY_KEEP_ZERO = 16,
    IWP_METHOD_MULTI_STAGE = 32, /* prunes at several layers */
    IWP_METHOD_READS_ENCODER =
        64,                     /* reads vit_*: separators are exempt, they have no encoder row */
    IWP_METHOD_RENUMBERS = 128, /* positions are counted anew after a cut (not on M-RoPE models) */
};

/* Which rows of an array a method reads; the others need not be filled. */
enum iwp_rows {
    IWP_ROWS_ALL,
    IWP_ROWS_VISUAL,     /* codes 1 and 2 */
    IWP_ROWS_TEXT,       /* codes 0 and 3 */
    IWP_ROWS_TEXT_AFTER, /* text after the first visual token */
    IWP_ROWS_LAST,       /* the last prompt token */
};

struct iwp_need {
    enum iwp_tensor tensor;
    enum iwp_rows rows;
    int optional; /* used when given */
};

enum iwp_option_type { IWP_OPTION_INT, IWP_OPTION_REAL, IWP_OPTION_ENUM, IWP_OPTION_BOOL };

/* One option of a method; the value lives at `offset` in the method's option struct: int32_t for
 * INT, ENUM (index into choices) and BOOL, double for REAL. */
struct iwp_option {
    const char *name;
    enum iwp_option_type type;
    int32_t offset;
    double def, min, max; /* min is exclusive when min_open */
    int min_open;
    const char *const *choices; /* ENUM: NULL-terminated */
    const char *text;           /* one line of help */
    const char *def_text; /* when the default depends on something: what to print instead of def */
};

struct iwp_method; /* one row of the table; see iwp_method_info for what may be asked of it */

struct iwp_method_info {
    const char *name, *title, *ref; /* ref: paper or code it follows */
    enum iwp_site site;
    uint32_t flags;                   /* enum iwp_method_flag */
    const struct iwp_option *options; /* ends with name NULL */
    const char *positions;            /* position rule */
    const char *rounding;             /* how a ratio becomes a count */
    int32_t layer;                    /* default cut, -1: not inside the decoder */
    const char *models; /* what differs between model families; NULL: runs alike on all of them */
};

IWP_API int32_t iwp_method_count(void);
IWP_API const struct iwp_method *iwp_method_at(int32_t i);
IWP_API const struct iwp_method *iwp_method_find(const char *name); /* NULL: no such method */
IWP_API const struct iwp_method_info *iwp_method_info(const struct iwp_method *m);

enum iwp_budget_rule {
    IWP_RULE_DEFAULT, /* cut for one-stage methods, layer-average for multi-stage ones */
    IWP_RULE_CUT,
    IWP_RULE_LAYER_AVERAGE,
    IWP_RULE_MATCHED,
    IWP_RULE_AS_PUBLISHED,
};

enum iwp_budget_scope { IWP_SCOPE_GLOBAL, IWP_SCOPE_IMAGE, IWP_SCOPE_TILE, IWP_SCOPE_FRAME };

/* How many tokens stay.  N counts codes 1 and 2, or only code 1 when separators are exempt (they
 * are then kept on top).  M = max(1, round-half-even(keep * N)); per unit for scopes but global, where
 * a count is shared out (iwp_keep_share) and must be at least the number of units. */
struct iwp_budget {
    double keep;    /* fraction kept, (0,1]; used when n_keep is 0 */
    int32_t n_keep; /* or the count itself, 1 … N */
    enum iwp_budget_rule rule;
    enum iwp_budget_scope scope; /* global, or inside each unit of input.unit */
    int32_t keep_separators;     /* 1: exempt, 0: prunable, -1: the method's default */
};

#define IWP_OPTION_BYTES 192

struct iwp_params {
    const struct iwp_method *method;
    struct iwp_budget budget;
    int32_t layer; /* -1: the method's default */
    union {
        double align;
        unsigned char bytes[IWP_OPTION_BYTES];
    } opt; /* the method's own option struct; written by the calls below */
};

/* Defaults of a method, keep = 1. */
IWP_API void iwp_params_default(struct iwp_params *p, const struct iwp_method *m);
/* Sets one option from text; the error names the option, the value and what is allowed. */
IWP_API int iwp_params_set(struct iwp_params *p, const char *name, const char *value, iwp_err *err);
/* Sets several: "lambda=5,chunk=2". */
IWP_API int iwp_params_parse(struct iwp_params *p, const char *list, iwp_err *err);
/* Prints the value of one option into buf; returns its length. */
IWP_API int iwp_params_print(const struct iwp_params *p, const struct iwp_option *o, char *buf,
                             size_t cap);
/* The arrays this method with these options reads.  Returns their number. */
IWP_API int iwp_params_needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out,
                             int cap);

/* 1 when the method's authors count positions anew after a cut.  n_pos: rows of position ids; with
 * M-RoPE's three they are always kept. */
IWP_API int iwp_params_renumbers(const struct iwp_params *p, int32_t n_pos);

/* 1 when it cuts inside the decoder with these options, so that p->layer counts. */
IWP_API int iwp_params_cuts_decoder(const struct iwp_params *p);

/* "0.222" and "22.2%" -> 0.222; anything outside (0,1] is an error. */
IWP_API int iwp_keep_parse(const char *text, double *keep, iwp_err *err);
/* max(1, round-half-even(keep * n)). */
IWP_API int32_t iwp_keep_count(double keep, int32_t n);
/* m tokens over k units of size n[i]: the counts above at the ratio where they add up to m; of units that
 * would grow at the same ratio the first do.  No unit is left empty: fewer than units give one to each. */
IWP_API void iwp_keep_share(int32_t m, const int32_t *n, int32_t k, int32_t *keep);

/* ---- Plans: where in the network a method cuts ----------------------------------------------- */

struct iwp_stage {
    enum iwp_site site;
    int32_t at;     /* decoder layer whose input is cut; encoder block for TOWER; -1 otherwise */
    int32_t n_keep; /* visual tokens that live on, exempt separators not counted */
};

/* What a plan may depend on. */
struct iwp_plan_shape {
    int32_t n_layer;     /* decoder layers */
    int32_t n_visual;    /* codes 1 and 2 */
    int32_t n_separator; /* code 2 */
    int32_t n_block;     /* encoder blocks a method may act in, 0: only at the encoder's output */
};

#define IWP_STAGE_MAX 128

/* Writes the stages of one request; returns their number (≥ 1), or an error that gives the
 * reachable range when the budget cannot be met. */
IWP_API int iwp_plan(const struct iwp_params *p, const struct iwp_plan_shape *s,
                     struct iwp_stage *out, int cap, iwp_err *err);

/* ---- Selecting -------------------------------------------------------------------------------- */

/* The caller's threads.  run() calls fn(arg, i) once for every i in 0 … n-1, on any threads, and
 * returns when all are done.  The result never depends on it.  NULL instead of a struct: serial. */
struct iwp_exec {
    void (*run)(void *ctx, void (*fn)(void *arg, int32_t i), void *arg, int32_t n);
    void *ctx;
    int32_t n_thread;
};

/* Row `to` of the result = sum over its entries of weight * row `from` (`to` itself is listed too);
 * both number visual tokens.  Rows without entries stay as they are. */
struct iwp_merge {
    int32_t from, to;
    float weight;
};

/* The result, in arrays of the caller.  N = visual tokens (codes 1 and 2). */
struct iwp_selection {
    int32_t *keep;  /* [N] out: kept tokens, ascending */
    int32_t n_keep; /* out */
    float *scores;  /* [N] or NULL; out: the method's first-stage score, 0 for exempt separators */
    int32_t has_scores;
    struct iwp_merge *merge; /* [2 N] or NULL (merges are then not reported) */
    int32_t n_merge;         /* out */
    int32_t *sizes;          /* [N] or NULL; out: how many tokens kept[i] stands for */
    int32_t has_sizes;       /* out: the method weighs attention by sizes */
};

/* Bytes of scratch memory that iwp_select needs for an input of this shape, and a full check of
 * shapes, codes and budget; a negative status with err filled when something does not fit. */
IWP_API int64_t iwp_select_workspace(const struct iwp_params *p, const struct iwp_input *in,
                                     const struct iwp_exec *exec, iwp_err *err);
/* Bytes a multi-stage method keeps between the stages of one request (0 for most). */
IWP_API int64_t iwp_select_state(const struct iwp_params *p, const struct iwp_input *in);

/* Selects.  `workspace` is aligned to 64 bytes or larger by up to 64; `state` is NULL unless
 * iwp_select_state says otherwise, zeroed before stage 0.  Returns 0 or a negative status. */
IWP_API int iwp_select(const struct iwp_params *p, const struct iwp_input *in, void *state,
                       void *workspace, size_t workspace_bytes, const struct iwp_exec *exec,
                       struct iwp_selection *out, iwp_err *err);

/* FNV-1a-64 over the indices as little-endian int32: equal lists have equal hashes. */
IWP_API uint64_t iwp_keep_hash(const int32_t *keep, int32_t n_keep);

/* The instruction set in use: "c", "avx2", "avx512", "neon".  Chosen once, from the CPU and the
 * environment variable IWP_CPU; iwp_cpu_check reports a forced one that this CPU lacks. */
IWP_API const char *iwp_cpu_name(void);
IWP_API int iwp_cpu_check(iwp_err *err);

#ifdef __cplusplus
}
#endif
#endif
