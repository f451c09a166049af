/* One selection: gathers the arrays a method reads, asks it, applies its answer. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "model/session.h"

bool iwp_session_needs(const struct iwp_session *s, int32_t stage, enum iwp_tensor t,
                       enum iwp_rows *rows) {
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n = iwp_params_needs(&s->prune, stage, need, IWP_TENSOR_COUNT);
    for (int i = 0; i < n; i++)
        if (need[i].tensor == t) {
            *rows = need[i].rows;
            return true;
        }
    return false;
}

void iwp_gathered_free(struct iwp_gathered *g) {
    free(g->q);
    free(g->q_rope);
    free(g->k);
    free(g->k_rope);
    free(g->v);
    free(g->h_prev);
    free(g->q_rope_prev);
    free(g->k_rope_prev);
    memset(g, 0, sizeof *g);
}

/* Does a row of [first, first + n) matter to a method that reads these rows? */
static bool chunk_is_read(const struct iwp_stream *r, enum iwp_rows rows, int32_t first,
                          int32_t n) {
    int32_t first_visual = 0;
    while (first_visual < r->n && r->visual[first_visual] < 0) first_visual++;
    for (int32_t i = first; i < first + n; i++) {
        const bool text = r->visual[i] < 0;
        if (rows == IWP_ROWS_ALL || (rows == IWP_ROWS_VISUAL && !text) ||
            (rows == IWP_ROWS_TEXT && text) ||
            (rows == IWP_ROWS_TEXT_AFTER && text && i > first_visual) ||
            (rows == IWP_ROWS_LAST && i == r->n - 1))
            return true;
    }
    return false;
}

struct target {
    enum iwp_tensor what;
    float **array;
    int32_t heads;
};

/* Takes memory for what is wanted and gives pointers for one chunk, NULL where nothing is read. */
static int chunk_target(struct iwp_session *s, int32_t stage, const struct target *t, bool all,
                        int32_t first, int32_t n, float **out, iwp_err *err) {
    *out = NULL;
    enum iwp_rows rows = IWP_ROWS_ALL;
    if (!all && !iwp_session_needs(s, stage, t->what, &rows)) return 0;
    const size_t width = (size_t)t->heads * (size_t)s->e->d.d_head;
    if (!*t->array) {
        *t->array = calloc((size_t)s->rows.n * width, sizeof **t->array);
        IWP_REQUIRE(*t->array, err, IWP_ENOMEM, "out of memory for %s", iwp_tensor_name(t->what));
    }
    if (all || chunk_is_read(&s->rows, rows, first, n)) *out = *t->array + (size_t)first * width;
    return 0;
}

static int gather(struct iwp_session *s, const struct iwp_step *step, bool prev, iwp_err *err) {
    struct iwp_gathered *g = &s->got;
    const int32_t H = s->e->d.n_head, G = s->e->d.n_head_kv;
    const bool all = s->sp.keep_tensors && !prev && step->stage == 0;
    const struct target here[5] = {{IWP_TENSOR_Q, &g->q, H},
                                   {IWP_TENSOR_Q_ROPE, &g->q_rope, H},
                                   {IWP_TENSOR_K, &g->k, G},
                                   {IWP_TENSOR_K_ROPE, &g->k_rope, G},
                                   {IWP_TENSOR_V, &g->v, G}};
    const struct target before[2] = {{IWP_TENSOR_Q_ROPE_PREV, &g->q_rope_prev, H},
                                     {IWP_TENSOR_K_ROPE_PREV, &g->k_rope_prev, G}};
    for (int32_t i = 0; i < s->rows.n; i += s->sp.n_chunk) {
        const int32_t n = s->rows.n - i < s->sp.n_chunk ? s->rows.n - i : s->sp.n_chunk;
        struct iwp_taps taps = {0};
        if (prev) {
            IWP_TRY(chunk_target(s, step->stage, &before[0], false, i, n, &taps.q_rope, err));
            IWP_TRY(chunk_target(s, step->stage, &before[1], false, i, n, &taps.k_rope, err));
        } else {
            float **to[5] = {&taps.q, &taps.q_rope, &taps.k, &taps.k_rope, &taps.v};
            for (int k = 0; k < 5; k++)
                IWP_TRY(chunk_target(s, step->stage, &here[k], all, i, n, to[k], err));
        }
        const struct iwp_span span = {step->l0, step->l0, s->rows.pos + i, s->rows.n};
        IWP_TRY(iwp_runner_qkv(&s->runner, step->l0, n, s->rows.h + (size_t)i * (size_t)s->rows.d,
                               &span, &taps, err));
    }
    return 0;
}

int iwp_session_prev(struct iwp_session *s, const struct iwp_step *t, iwp_err *err) {
    enum iwp_rows rows;
    const size_t bytes = (size_t)s->rows.n * (size_t)s->rows.d * sizeof(float);
    if (iwp_session_needs(s, t->stage, IWP_TENSOR_H_PREV, &rows)) {
        free(s->got.h_prev);
        s->got.h_prev = malloc(bytes);
        IWP_REQUIRE(s->got.h_prev, err, IWP_ENOMEM, "out of memory");
        memcpy(s->got.h_prev, s->rows.h, bytes);
    }
    return gather(s, t, true, err);
}

int iwp_session_qkv(struct iwp_session *s, const struct iwp_step *t, iwp_err *err) {
    return gather(s, t, false, err);
}

/* ---- the input of a method ---------------------------------------------------------------------- */

struct given {
    struct iwp_input in;
    int64_t *pos;
    int32_t *unit;
    float *embeds;
};

static void given_free(struct given *g) {
    free(g->pos);
    free(g->unit);
    free(g->embeds);
}

const int32_t *iwp_session_units(const struct iwp_session *s) {
    switch (s->prune.budget.scope) {
    case IWP_SCOPE_GLOBAL: break;
    case IWP_SCOPE_IMAGE: return s->p->unit_image;
    case IWP_SCOPE_TILE: return s->p->unit_tile;
    case IWP_SCOPE_FRAME: return s->p->unit_frame;
    }
    return NULL;
}

/* Units of the visual rows that are left, numbered without holes. */
static int give_units(const struct iwp_session *s, struct given *g, int32_t n_visual,
                      iwp_err *err) {
    const uint32_t flags = iwp_method_info(s->prune.method)->flags;
    const int32_t *unit = iwp_session_units(s);
    /* encoder methods must know which rows attended to each other */
    if (!unit && (flags & IWP_METHOD_READS_ENCODER)) unit = s->p->unit_tile;
    if (!unit || n_visual == 0) return 0;
    g->unit = malloc((size_t)n_visual * sizeof *g->unit);
    int32_t *seen = malloc((size_t)n_visual * sizeof *seen);
    if (!g->unit || !seen) {
        free(seen);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    int32_t n_seen = 0, at = 0;
    for (int32_t i = 0; i < s->rows.n; i++) {
        if (s->rows.visual[i] < 0) continue;
        const int32_t u = unit[s->rows.visual[i]];
        int32_t k = n_seen - 1;
        while (k >= 0 && seen[k] != u) k--;
        if (k < 0) seen[k = n_seen++] = u;
        g->unit[at++] = k;
    }
    free(seen);
    g->in.unit = g->unit;
    return 0;
}

static int give_embeds(const struct iwp_session *s, struct given *g, iwp_err *err) {
    const size_t d = (size_t)s->rows.d;
    g->embeds = malloc((size_t)s->rows.n * d * sizeof *g->embeds);
    IWP_REQUIRE(g->embeds, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < s->rows.n; i++)
        IWP_TRY(iwp_stream_embed(&s->e->d, s->p, s->rows.src[i], s->rows.visual[i],
                                 g->embeds + (size_t)i * d, err));
    g->in.arr[IWP_TENSOR_EMBEDS] = iwp_array_f32(g->embeds, s->rows.n, 1, s->rows.d);
    return 0;
}

static bool has_option(const struct iwp_params *p, const char *name) {
    const struct iwp_option *o = iwp_method_info(p->method)->options;
    for (; o && o->name; o++)
        if (strcmp(o->name, name) == 0) return true;
    return false;
}

/* A token may be several rows of the tower (Qwen: four).  Methods that know have an option for it; to
 * the others it is one long row, which is how the projector sees it too. */
static int32_t rows_per_token(const struct iwp_session *s) {
    return s->p->vit_merge > 1 && s->p->vit_cls == 0 && !has_option(&s->prune, "merge")
               ? s->p->vit_merge
               : 1;
}

static int project(void *ctx, const float *x, int32_t n_row, float *y) {
    const struct iwp_session *s = ctx;
    return iwp_prompter_project(s->e->prompter, x, n_row * rows_per_token(s), y, NULL);
}

static int give(struct iwp_session *s, struct given *g, int32_t stage, iwp_err *err) {
    const struct iwp_prompt *p = s->p;
    const struct iwp_decoder *d = &s->e->d;
    const int32_t n = s->rows.n, H = d->n_head, G = d->n_head_kv;
    memset(g, 0, sizeof *g);
    struct iwp_input *in = &g->in;
    in->n = n;
    in->code = s->rows.code;
    in->stage = stage;
    in->n_pos = s->rows.n_pos;
    in->project = project;
    in->project_ctx = s;
    g->pos = malloc((size_t)n * (size_t)in->n_pos * sizeof *g->pos);
    IWP_REQUIRE(g->pos, err, IWP_ENOMEM, "out of memory");
    for (size_t i = 0; i < (size_t)n * (size_t)in->n_pos; i++) g->pos[i] = s->rows.pos[i];
    in->pos = g->pos;
    int32_t n_visual = 0;
    for (int32_t i = 0; i < n; i++) n_visual += s->rows.visual[i] >= 0;
    IWP_TRY(give_units(s, g, n_visual, err));
    const struct {
        enum iwp_tensor t;
        const float *a;
        int32_t heads;
    } mine[] = {{IWP_TENSOR_Q, s->got.q, H},
                {IWP_TENSOR_K, s->got.k, G},
                {IWP_TENSOR_V, s->got.v, G},
                {IWP_TENSOR_Q_ROPE, s->got.q_rope, H},
                {IWP_TENSOR_K_ROPE, s->got.k_rope, G},
                {IWP_TENSOR_Q_ROPE_PREV, s->got.q_rope_prev, H},
                {IWP_TENSOR_K_ROPE_PREV, s->got.k_rope_prev, G}};
    for (size_t i = 0; i < sizeof mine / sizeof mine[0]; i++)
        if (mine[i].a) in->arr[mine[i].t] = iwp_array_f32(mine[i].a, n, mine[i].heads, d->d_head);
    enum iwp_rows rows;
    in->arr[IWP_TENSOR_H] = iwp_array_f32(s->rows.h, n, 1, s->rows.d);
    if (s->got.h_prev) in->arr[IWP_TENSOR_H_PREV] = iwp_array_f32(s->got.h_prev, n, 1, s->rows.d);
    in->arr[IWP_TENSOR_FINAL_NORM] = iwp_array_f32(d->final_norm, 1, 1, s->rows.d);
    if (iwp_session_needs(s, stage, IWP_TENSOR_EMBEDS, &rows)) IWP_TRY(give_embeds(s, g, err));
    if (stage == 0) { /* encoder rows number the tokens of the whole prompt */
        in->window = p->window;
        /* A method without a word for the class token does not get its row. */
        const int32_t skip = has_option(&s->prune, "cls") ? 0 : p->vit_cls;
        const int32_t join = rows_per_token(s);
        if (p->vit_features)
            in->arr[IWP_TENSOR_VIT_FEATURES] =
                iwp_array_f32(p->vit_features + (size_t)skip * (size_t)p->d_vit,
                              (p->n_vit - skip) / join, 1, p->d_vit * join);
        /* Only what it reads: a prompt tapped for several methods may hold more, with the class token. */
        if (p->vit_q && iwp_session_needs(s, stage, IWP_TENSOR_VIT_Q, &rows))
            in->arr[IWP_TENSOR_VIT_Q] =
                iwp_array_f32(p->vit_q, p->n_vit, p->n_vit_head, p->d_vit_head);
        if (p->vit_k && iwp_session_needs(s, stage, IWP_TENSOR_VIT_K, &rows))
            in->arr[IWP_TENSOR_VIT_K] =
                iwp_array_f32(p->vit_k, p->n_vit, p->n_vit_head, p->d_vit_head);
        if (p->text_embeds)
            in->arr[IWP_TENSOR_TEXT_EMBEDS] =
                iwp_array_f32(p->text_embeds, p->n_text_embed, 1, p->d_vit);
    }
    return 0;
}

/* ---- the cut ------------------------------------------------------------------------------------ */

static bool renumbers(const struct iwp_session *s) {
    if (s->sp.positions != IWP_POSITIONS_DEFAULT) return s->sp.positions == IWP_POSITIONS_COMPACT;
    return iwp_params_renumbers(&s->prune, s->rows.n_pos);
}

/* What --dump-tensors shows is the first cut, before anything is dropped. */
static int keep_for_dump(struct iwp_session *s, const struct iwp_step *t, iwp_err *err) {
    if (!s->sp.keep_tensors || t->stage != 0) return 0;
    const size_t bytes = (size_t)s->rows.n * (size_t)s->rows.d * sizeof(float);
    free(s->dump_h);
    s->dump_h = malloc(bytes);
    IWP_REQUIRE(s->dump_h, err, IWP_ENOMEM, "out of memory");
    memcpy(s->dump_h, s->rows.h, bytes);
    s->dump_layer = s->stage[0].site == IWP_SITE_LAYER ? t->l0 : -1;
    iwp_gathered_free(&s->dump);
    s->dump = s->got;
    memset(&s->got, 0, sizeof s->got);
    return 0;
}

static int start_state(struct iwp_session *s, const struct iwp_input *in, iwp_err *err) {
    if (in->stage != 0) return 0;
    free(s->state);
    s->state = NULL;
    int64_t bytes = iwp_select_state(&s->prune, in);
    if (bytes <= 0) return 0;
    s->state = calloc(1, (size_t)bytes);
    IWP_REQUIRE(s->state, err, IWP_ENOMEM, "out of memory");
    return 0;
}

/* Methods of the tower merge before the projector (methods-encoder 1.1): merged [to][D] by first mention
 * in the list.  Where the projector itself joins rows (Qwen) they merge its output, and NULL says so. */
static int project_merges(struct iwp_session *s, const struct iwp_step *t,
                          const struct iwp_selection *sel, float **merged, iwp_err *err) {
    const struct iwp_prompt *p = s->p;
    *merged = NULL;
    if (s->stage[t->stage].site != IWP_SITE_TOWER || sel->n_merge == 0 || !p->vit_features ||
        p->vit_merge > 1)
        return 0;
    const size_t d = (size_t)p->d_vit, cap = (size_t)sel->n_merge;
    float *x = calloc(cap * d, sizeof *x);
    int32_t *slot = malloc(2 * (size_t)p->n_visual * sizeof *slot), *row = NULL, n = 0;
    *merged = malloc(cap * (size_t)s->rows.d * sizeof **merged);
    int rc = 0;
    if (!x || !slot || !*merged) IWP_FAIL(err, IWP_ENOMEM, "out of memory for merged rows");
    row = slot + p->n_visual; /* encoder row of each visual token */
    for (int32_t i = 0, v = 0, k = p->vit_cls; i < p->n; i++) {
        if (p->code[i] == IWP_CODE_TEXT || p->code[i] == IWP_CODE_USER) continue;
        slot[v] = -1;
        row[v++] = p->code[i] == IWP_CODE_VISUAL ? k++ : -1;
    }
    for (int32_t m = 0; m < sel->n_merge; m++) {
        const struct iwp_merge *e = &sel->merge[m];
        if (row[e->from] < 0) IWP_FAIL(err, IWP_EINTERNAL, "a merged token has no encoder row");
        if (slot[e->to] < 0) slot[e->to] = n++;
        const float *f = p->vit_features + (size_t)row[e->from] * d;
        float *y = x + (size_t)slot[e->to] * d;
        for (size_t i = 0; i < d; i++) y[i] += e->weight * f[i];
    }
    rc = iwp_prompter_project(s->e->prompter, x, n, *merged, err);
fail:
    free(x);
    free(slot);
    return rc;
}

/* Units that a scope keeps at least one token of. */
static int32_t count_units(const struct iwp_params *p, const struct iwp_input *in, int32_t nv) {
    int32_t n = 0;
    for (int32_t i = 0; in->unit && p->budget.scope != IWP_SCOPE_GLOBAL && i < nv; i++)
        if (in->unit[i] >= n) n = in->unit[i] + 1;
    return n;
}

static int32_t count_separators(const struct iwp_input *in) {
    int32_t n = 0;
    for (int32_t i = 0; i < in->n; i++) n += in->code[i] == IWP_CODE_SEPARATOR;
    return n;
}

/* Asks the method.  sel's arrays are the caller's to free, also after a failure. */
static int choose(struct iwp_session *s, const struct iwp_step *t, int32_t nv,
                  struct iwp_selection *sel, iwp_err *err) {
    const struct iwp_exec *exec = &s->e->b->exec;
    struct given g;
    struct iwp_params p = s->prune;
    void *ws = NULL;
    int rc = 0;
    /* What a schedule counted; one plain cut leaves the rounding to the method. */
    const bool counted = s->n_stage > 1 || p.budget.rule == IWP_RULE_LAYER_AVERAGE ||
                         p.budget.rule == IWP_RULE_MATCHED;
    IWP_TRY_GOTO(give(s, &g, t->stage, err));
    if (counted) {
        const int32_t n = s->stage[t->stage].n_keep, least = count_units(&p, &g.in, nv);
        p.budget.n_keep = n < least ? least : n;
    }
    /* Where the data decide (SparseVLM's rank) the plan is only a bound, and may exceed what is left. */
    const int32_t left = nv - (p.budget.keep_separators == 1 ? count_separators(&g.in) : 0);
    if (s->n_stage > 1 && p.budget.n_keep > left) p.budget.n_keep = left;
    IWP_TRY_GOTO(start_state(s, &g.in, err));
    int64_t bytes = iwp_select_workspace(&p, &g.in, exec, err);
    if (bytes < 0) {
        rc = (int)bytes;
        goto fail;
    }
    ws = malloc((size_t)bytes);
    sel->sizes = malloc(((size_t)nv + 1) * sizeof *sel->sizes);
    sel->merge = malloc(2 * ((size_t)nv + 1) * sizeof *sel->merge);
    sel->scores = malloc(((size_t)nv + 1) * sizeof *sel->scores);
    if (!ws || !sel->sizes || !sel->merge || !sel->scores)
        IWP_FAIL(err, IWP_ENOMEM, "out of memory for the selection");
    IWP_TRY_GOTO(iwp_select(&p, &g.in, s->state, ws, (size_t)bytes, exec, sel, err));
    if (t->stage == 0 && sel->has_scores) {
        memcpy(s->scores, sel->scores, (size_t)nv * sizeof *s->scores);
        s->has_scores = true;
    }
fail:
    given_free(&g);
    free(ws);
    return rc < 0 ? rc : 0;
}

static void note_stage(struct iwp_session *s, int32_t layer, int32_t block, int32_t kept) {
    if (s->st.n_stage == IWP_STAGE_MAX) return;
    s->st.stage[s->st.n_stage++] = (struct iwp_session_stage){layer, block, kept};
}

/* Blocks of the tower that merged rows; the last one is the cut itself. */
static void note_blocks(struct iwp_session *s) {
    const struct iwp_prompt *p = s->p;
    for (int32_t b = 0; b + 1 < p->n_tower_block && s->st.n_stage + 1 < IWP_STAGE_MAX; b++)
        if (p->tower_after[b] < (b ? p->tower_after[b - 1] : p->n_tower_row))
            note_stage(s, -1, b, p->tower_after[b]);
}

int iwp_session_cut(struct iwp_session *s, const struct iwp_step *t, iwp_err *err) {
    struct iwp_selection sel = {0};
    float *merged = NULL;
    int rc = 0;
    const double t0 = iwp_clock_ms();
    const bool done = s->p->tower_keep != NULL; /* inside the tower */
    int32_t nv = 0, k = 0;
    for (int32_t i = 0; i < s->rows.n; i++) nv += s->rows.visual[i] >= 0;
    sel.keep = malloc(((size_t)nv + 1) * sizeof *sel.keep);
    if (!sel.keep) IWP_FAIL(err, IWP_ENOMEM, "out of memory for the selection");
    if (done) {
        sel.n_keep = s->p->n_tower_keep;
        memcpy(sel.keep, s->p->tower_keep, (size_t)sel.n_keep * sizeof *sel.keep);
        note_blocks(s);
    } else {
        IWP_TRY_GOTO(choose(s, t, nv, &sel, err));
    }
    IWP_TRY_GOTO(project_merges(s, t, &sel, &merged, err));
    IWP_TRY_GOTO(keep_for_dump(s, t, err));
    IWP_TRY_GOTO(iwp_stream_apply(&s->rows, &sel, merged, renumbers(s), err));
    if (s->rows.n == 0) IWP_FAIL(err, IWP_EINVAL, "the cut leaves nothing of the prompt");
    for (int32_t i = 0; i < s->rows.n; i++)
        if (s->rows.visual[i] >= 0) s->keep[k++] = s->rows.visual[i];
    s->st.n_kept = k;
    note_stage(s, s->stage[t->stage].site == IWP_SITE_LAYER ? t->l0 : -1, -1, k);
    iwp_gathered_free(&s->got);
fail:
    s->st.ms_select += iwp_clock_ms() - t0;
    free(merged);
    free(sel.keep);
    free(sel.sizes);
    free(sel.merge);
    free(sel.scores);
    return rc < 0 ? rc : 0;
}
