/* Inside of a session, shared by its files: session.c (timeline), plan.c (which steps, what they cost),
 * cut.c (one selection), feed.c (tokens after the prompt), dump.c (what --dump-tensors writes).
 *
 * A run is a list of steps made at begin: RUN rows through [l0, l1) chunk by chunk, MARK the residual of
 * all rows, PREV and QKV gather what a method reads, CUT selects and compacts.  Methods with several
 * stages are just more steps. */
#ifndef IWP_MODEL_SESSION_H
#define IWP_MODEL_SESSION_H

#include <pthread.h>

#include "iwp/engine.h"
#include "model/probe.h"
#include "model/runner.h"
#include "model/stream.h"

/* For tokens after the prompt, one of each of n sessions at most; nothing until the first. */
struct iwp_lanes {
    int32_t n;
    struct iwp_sched *sched;
    int32_t *pos; /* [n][n_layer] */
    float *rows;  /* [n][D] */
};

struct iwp_engine {
    struct iwp_backend *b;
    struct iwp_decoder d;
    iwp_prompter *prompter;
    struct iwp_sched *sched; /* of prompts */
    struct iwp_lanes lanes;
    pthread_mutex_t lock;        /* graphs and selections take turns */
    pthread_mutex_t prompt_lock; /* one prompt is built at a time; taken before `lock` */
    bool has_vision;
};

enum iwp_step_kind { IWP_STEP_RUN, IWP_STEP_MARK, IWP_STEP_PREV, IWP_STEP_QKV, IWP_STEP_CUT };
struct iwp_step {
    enum iwp_step_kind kind;
    int32_t l0, l1; /* RUN: layers; the others: l0 is the layer */
    int32_t first;  /* RUN: rows before this one are done already */
    int32_t stage;  /* PREV, QKV, CUT */
};
enum { IWP_STEP_MAX = 8 * IWP_STAGE_MAX + 2 * IWP_MARK_MAX + 8 };

/* Layers that hold the same rows. */
struct iwp_segment {
    int32_t l0, l1, n_rows, next_pos;
    bool renumbered;
};

/* Residual of the first n rows before a layer. */
struct iwp_kept {
    int32_t layer, n;
    float *h; /* [n][D] */
};

/* Arrays of the layer at a cut, for all rows; NULL: not wanted. */
struct iwp_gathered {
    float *q, *q_rope, *k, *k_rope, *v;
    float *h_prev, *q_rope_prev, *k_rope_prev;
};

struct iwp_session {
    iwp_engine *e;
    struct iwp_session_params sp;
    struct iwp_kv kv;
    struct iwp_runner runner;
    struct iwp_probe *probe; /* or NULL */

    const struct iwp_prompt *p;
    bool pruned;
    struct iwp_params prune;
    struct iwp_stage stage[IWP_STAGE_MAX];
    int32_t n_stage;
    void *state; /* the method's, over its stages */

    struct iwp_step step[IWP_STEP_MAX];
    int32_t n_step, at_step, at_row;
    bool running; /* steps are left */
    struct iwp_stream rows;
    struct iwp_gathered got;
    struct iwp_segment segment[IWP_STAGE_MAX + 2];
    int32_t n_segment;

    int32_t want[IWP_MARK_MAX], n_want; /* asked by keep_marks, ascending */
    struct iwp_kept mark[IWP_MARK_MAX]; /* [n_mark] of the prompt below */
    int32_t n_mark;
    int32_t split;   /* a chunk ends at this row; 0: none does */
    bool repeatable; /* the whole prompt went through; what was asked, and the logits after it: */
    bool asked_prune;
    struct iwp_params asked;
    enum iwp_positions asked_positions;
    float *prompt_logits; /* [V] with split_media, else NULL */
    int32_t full_layers;  /* layers whose cache holds every row of the prompt */
    int32_t *old_id;      /* [n_old] the prompt the cache belongs to, for reuse */
    int64_t *old_pos;
    uint64_t *old_hash; /* [n_old] of a visual row's numbers, 0 for text */
    int32_t n_old, n_old_pos;

    int32_t n_fed;
    int32_t *fed; /* [n_fed] */
    int32_t cap_fed;
    float *logits; /* [V] */
    bool has_logits;

    int32_t *keep; /* [n_visual] result of the last cut */
    float *scores;
    bool has_scores;
    struct iwp_session_stats st;

    /* keep_tensors: the first cut's arrays, all rows */
    struct iwp_gathered dump;
    float *dump_h;       /* [S][D] residual at the cut */
    float *first_logits; /* [V] after the prompt */
    int32_t dump_layer;
};

/* plan.c */
int iwp_session_plan(struct iwp_session *s, int32_t from, int32_t low, int32_t high, iwp_err *err);
/* The lowest layer at which a cut touches the rows (or reads them); n_layer without a cut. */
int32_t iwp_session_low(const struct iwp_session *s);
/* The lowest layer before which the residual of all rows is kept; -1 none. */
int32_t iwp_session_mark_at(const struct iwp_session *s);
/* The kept state of a layer, whole for this prompt; NULL: there is none. */
const struct iwp_kept *iwp_session_mark(const struct iwp_session *s, int32_t layer);
void iwp_session_count_flops(struct iwp_session *s);
/* Rows × layers that the steps ahead will run, as far as the plan knows what a cut keeps. */
int64_t iwp_session_left(const struct iwp_session *s);

/* feed.c */
void iwp_engine_free_lanes(iwp_engine *e);

/* cut.c */
int iwp_session_prev(struct iwp_session *s, const struct iwp_step *t, iwp_err *err);
int iwp_session_qkv(struct iwp_session *s, const struct iwp_step *t, iwp_err *err);
int iwp_session_cut(struct iwp_session *s, const struct iwp_step *t, iwp_err *err);
bool iwp_session_needs(const struct iwp_session *s, int32_t stage, enum iwp_tensor t,
                       enum iwp_rows *rows);
/* [n_visual] which image, tile or frame a visual token belongs to, by the budget's scope; NULL: global. */
const int32_t *iwp_session_units(const struct iwp_session *s);
void iwp_gathered_free(struct iwp_gathered *g);

#endif
