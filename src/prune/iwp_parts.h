/* The parts the paper ablates, each a file: magnitude (iwp_magnitude.c), duplication
 * (iwp_duplication.c), selector (iwp_selector.c).  method_iwp.c joins them.  spec/iwp.md 3-5. */
#ifndef IWP_PRUNE_PARTS_H
#define IWP_PRUNE_PARTS_H

#include "prune/method.h"

enum iwp_magnitude {
    MAG_KV,
    MAG_K,
    MAG_VNORM,
    MAG_KNORM,
    MAG_PHIK,
    MAG_DW,
    MAG_CENTERED,
    MAG_DELETION,
    MAG_KV_DELETION
};
enum iwp_query { QUERY_TEXT_AFTER, QUERY_TEXT_ALL, QUERY_TEXT_USER, QUERY_IMAGE, QUERY_LAST };
enum iwp_head_norm { HEAD_SOFTMAX_ALL, HEAD_SOFTMAX, HEAD_MAX, HEAD_RAW };
enum iwp_scale { SCALE_MAX, SCALE_MINMAX, SCALE_NONE };
enum iwp_duplication { DUP_DW, DUP_RBF, DUP_COS_K, DUP_COS_V, DUP_COS_H };
enum iwp_dup_heads { DUP_MEAN_SQ, DUP_SQ_MEAN, DUP_CONCAT, DUP_JOINT };
enum iwp_dup_norm { DUP_NORM_NONE, DUP_NORM_CLIP, DUP_NORM_AFFINE, DUP_NORM_MINMAX };
enum iwp_selector { SEL_PC_MMR, SEL_TOPK, SEL_MMR_MULT, SEL_MMR_ADD };
enum iwp_penalty { PENALTY_NEW, PENALTY_ALL, PENALTY_ALL_FRESH };

struct iwp_iwp_options {
    int32_t magnitude, query, magnitude_rope, head_norm, scale;
    int32_t duplication, duplication_rope, duplication_heads, duplication_norm,
        square; /* square -1: by metric */
    int32_t selector, chunk, penalty;
    double growth, lambda, floor, gamma;
};

/* ---- magnitude --------------------------------------------------------------------------------- */

struct iwp_magnitude_plan {
    const struct iwp_view *v;
    const struct iwp_iwp_options *o;
    const struct iwp_array *q, *k, *val; /* may be NULL when the metric does not read them */
    int32_t n_head, n_head_kv, d;
    int32_t *query_row; /* [n] rows whose mean is the query */
    int32_t n_query;
    float *query; /* [n_head][d] */
    float *logit; /* [n_head][n] */
    float
        *weight;  /* [n_head_kv][n_visual], or per query head their logarithms [n_head][n_visual] */
    float *vnorm; /* [n_head_kv][n_visual] */
    double *offset;  /* [n_head] what head-norm subtracts from the logits */
    double *lse;     /* [n_head] log of the sum over all keys */
    double *log_p;   /* [n_visual] */
    _Atomic int bad; /* a non-finite or overflowing number was met */
};

void iwp_magnitude_layout(struct iwp_magnitude_plan *m, const struct iwp_view *v,
                          struct iwp_arena *a);
/* log_p of every visual token (−inf for a zero magnitude). */
int iwp_magnitude_run(struct iwp_magnitude_plan *m, iwp_err *err);
int iwp_magnitude_needs(const struct iwp_iwp_options *o, struct iwp_need *out, int n, int cap);

/* ---- duplication ------------------------------------------------------------------------------- */

/* Packed tokens: panels of 32 lanes.  Lane vectors of one panel: for each head, [d1][32] centred
 * keys (when the metric has a Gaussian), then [d2][32] unit vectors (when it has a cosine). */
struct iwp_dup {
    const struct iwp_view *v;
    const struct iwp_iwp_options *o;
    int32_t n_head, d1, d2; /* heads after `concat`; widths, 0 = part unused */
    int32_t metric, heads, norm, square, joint;
    float scale;                        /* 1 / (2 sqrt(d)) */
    const struct iwp_array *key, *unit; /* sources of the two parts */
    int32_t n, n_panel;                 /* tokens and panels of the current unit */
    float *panel;                       /* [n_panel][n_head][d1+d2][32] */
    float *norm2;         /* [n_panel][n_head][32] squared norms of the centred keys */
    float *share;         /* [n_panel][n_head][32] joint only: weight of each head */
    float *factor;        /* [n_panel][n_head][32] what makes a unit vector of the source */
    int32_t *token;       /* [n_panel*32] pool index of each lane, -1 = hole */
    int32_t *lane;        /* [n_pool] where a pool token lies */
    float *mean;          /* [n_head][d1] centre of the keys */
    float lo[64], hi[64]; /* minmax: range per head (or of the mean in slot 0) */
    float *block, *block_norm2, *block_share; /* room for packed rows */
    int range_only; /* leave the combined similarity unshaped (while finding its range) */
    _Atomic int bad;
};

enum { DUP_ROWS = 96 }; /* rows that share one accumulator block on the stack */

int iwp_dup_needs(const struct iwp_iwp_options *o, struct iwp_need *out, int n, int cap);
/* n_max: tokens of the largest unit; cap_row: most rows asked about at once. */
int iwp_dup_layout(struct iwp_dup *d, const struct iwp_view *v, int32_t n_max, int32_t cap_row,
                   struct iwp_arena *a, iwp_err *err);
/* Packs these pool tokens in this order. */
int iwp_dup_pack(struct iwp_dup *d, const int32_t *token, int32_t n, iwp_err *err);

/* Tokens that others are compared with. */
struct iwp_dup_rows {
    float *block;         /* blocks of up to 12 rows: for each head [d1][rows], [d2][rows] */
    float *norm2, *share; /* [n][n_head] */
    int32_t n;
};
/* Packs tokens as rows into d's room, from row `at` on. */
struct iwp_dup_rows iwp_dup_rows(const struct iwp_dup *d, const struct iwp_exec *exec, int32_t at,
                                 const int32_t *token, int32_t n);
/* Packs one panel of d's tokens: for a store that holds some of another's tokens. */
void iwp_dup_pack_panel(struct iwp_dup *d, int32_t panel);
/* out[row*32 + lane] = D of rows [r0, r0+n) against one panel. */
void iwp_dup_panel(const struct iwp_dup *d, const struct iwp_dup_rows *from, int32_t panel,
                   int32_t r0, int32_t n, float *out);
/* best[lane] = max over all rows of D(row, lane), for one panel. */
void iwp_dup_panel_max(const struct iwp_dup *d, const struct iwp_dup_rows *from, int32_t panel,
                       float *best);

/* ---- selectors --------------------------------------------------------------------------------- */

/* What the selected tokens did to one token's score: penalty factors so far = product * 2^power, and
 * the running maximum of D to them. */
struct iwp_toll {
    double product;
    int32_t power;
    float s_max;
};
#define IWP_TOLL_LOW  0x1p-500
#define IWP_TOLL_UP   0x1p500
#define IWP_TOLL_STEP 500

/* One more selected token (or, in pc-mmr, chunk) with duplication s. */
void iwp_toll_add(const struct iwp_iwp_options *o, struct iwp_toll *t, float s);
/* The score from a magnitude (its logarithm; P / max P itself for mmr-add) and its toll. */
double iwp_toll_value(const struct iwp_iwp_options *o, double log_p, const struct iwp_toll *t);
/* The score depends on s_max alone. */
int iwp_toll_is_max(const struct iwp_iwp_options *o);

enum {
    GREEDY_PANELS = 8, /* most panels of active tokens */
    GREEDY_START = 2,  /* of them, when a round begins */
    GREEDY_ROUND = 32, /* most picks of a round */
    GREEDY_AHEAD = 4,  /* stale panels per thread that catch up together */
    GREEDY_ACTIVE = GREEDY_PANELS * 32,
    GREEDY_BLOCKS = GREEDY_PANELS * (GREEDY_PANELS + 1) / 2
};

struct iwp_greedy {
    struct iwp_dup lanes, rows; /* active tokens as lanes; room for them as rows */
    struct iwp_dup_rows row[GREEDY_PANELS];
    float *gram;        /* [GREEDY_BLOCKS][32][32] D between the active tokens */
    uint8_t *is_active; /* [n_pool] */
    int32_t *tree;      /* [2 panels] tournament over the panels' best tokens outside */
    double *bound;      /* [panels] */
    int32_t *order;     /* [panels] */
    int32_t n_stale, n_task;
    /* by place in the active set */
    int32_t n, first_new; /* places in use; first panel of the latest ones */
    struct iwp_toll toll[GREEDY_ACTIVE];
    double value[GREEDY_ACTIVE];
    int32_t known[GREEDY_ACTIVE]; /* picks of this round the value knows */
    uint8_t taken[GREEDY_ACTIVE];
    int32_t n_pick, pick[GREEDY_ROUND]; /* places taken in this round */
};

struct iwp_selector_plan {
    struct iwp_view *v;
    const struct iwp_iwp_options *o;
    struct iwp_dup *dup;
    double *log_p; /* [n_pool] magnitude, natural logarithm; P / max P itself for mmr-add */
    double *value; /* [n_pool] what is compared: log_p with penalties, or the additive score */
    struct iwp_toll *toll; /* [n_pool] */
    int32_t *order;        /* [n_pool] */
    /* panels are brought up to date only when one of their tokens may be taken */
    struct iwp_dup_rows *chunk; /* [n_pool] rows of each chunk so far */
    int32_t n_chunk;
    int32_t *applied; /* [panels] chunks a panel's scores know */
    int32_t *stale;   /* [panels] panels to refresh */
    struct iwp_greedy greedy;
};

void iwp_selector_layout(struct iwp_selector_plan *s, struct iwp_view *v,
                         const struct iwp_iwp_options *o, struct iwp_dup *dup, int32_t n_max,
                         struct iwp_arena *a);
int iwp_selector_run(struct iwp_selector_plan *s, int32_t unit, iwp_err *err);

/* mmr-mult and mmr-add (iwp_greedy.c): m of the n tokens from `first` on. */
void iwp_greedy_layout(struct iwp_selector_plan *s, int32_t n_max, struct iwp_arena *a);
void iwp_greedy_run(struct iwp_selector_plan *s, int32_t first, int32_t n, int32_t m);

#endif
