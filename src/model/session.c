/* One timeline over a model: see iwp/engine.h and session.h. */
#include "model/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "model/prompter.h"

struct iwp_session_params iwp_session_default_params(void) {
    return (struct iwp_session_params){.n_chunk = 512, .reserve = 256};
}

static enum ggml_type kv_type(enum iwp_kv_type t) {
    return t == IWP_KV_F32 ? GGML_TYPE_F32 : t == IWP_KV_Q8_0 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
}

int iwp_session_new(iwp_session **out, iwp_engine *e, const struct iwp_session_params *p,
                    iwp_err *err) {
    *out = NULL;
    const struct iwp_decoder *d = &e->d;
    const enum ggml_type tk = kv_type(p->type_k), tv = kv_type(p->type_v);
    IWP_REQUIRE(d->d_head % ggml_blck_size(tk) == 0, err, IWP_ENOTSUP,
                "-ctk %s: heads of %d do not fit its blocks of %d", ggml_type_name(tk), d->d_head,
                (int)ggml_blck_size(tk));
    IWP_REQUIRE(d->d_head % ggml_blck_size(tv) == 0, err, IWP_ENOTSUP,
                "-ctv %s: heads of %d do not fit its blocks of %d", ggml_type_name(tv), d->d_head,
                (int)ggml_blck_size(tv));
    IWP_REQUIRE(p->n_chunk >= 1 && p->n_chunk <= 1 << 16, err, IWP_EINVAL,
                "-ub %d: a chunk has 1 to 65536 rows", p->n_chunk);
    struct iwp_session *s = calloc(1, sizeof *s);
    IWP_REQUIRE(s, err, IWP_ENOMEM, "out of memory");
    s->e = e;
    s->sp = *p;
    if (s->sp.n_ctx <= 0) s->sp.n_ctx = d->n_ctx_train;
    if (s->sp.reserve < 16) s->sp.reserve = 16;
    s->dump_layer = -1;
    int rc = iwp_kv_init(&s->kv, e->b, d->n_layer, d->n_head_kv * d->d_head, tk, tv, err);
    s->logits = malloc((size_t)d->n_vocab * sizeof *s->logits);
    if (p->split_media) s->prompt_logits = malloc((size_t)d->n_vocab * sizeof *s->logits);
    if (p->keep_tensors) s->first_logits = malloc((size_t)d->n_vocab * sizeof *s->first_logits);
    if (rc >= 0 && (!s->logits || (p->keep_tensors && !s->first_logits) ||
                    (p->split_media && !s->prompt_logits)))
        rc = iwp_err_set(err, IWP_ENOMEM, "out of memory");
    if (rc < 0) {
        iwp_session_free(s);
        return rc;
    }
    /* The f32 cache is for exactness, and the plain product is the reference. */
    enum iwp_attention how = IWP_ATTENTION_OWN;
    if (p->flash == IWP_FLASH_GGML) how = IWP_ATTENTION_GGML;
    if (p->flash == IWP_FLASH_OFF ||
        (p->flash == IWP_FLASH_AUTO && tk == GGML_TYPE_F32 && tv == GGML_TYPE_F32))
        how = IWP_ATTENTION_PLAIN;
    s->runner = (struct iwp_runner){&e->d, &s->kv, e->sched, how};
    *out = s;
    return 0;
}

static void forget_run(struct iwp_session *s) {
    iwp_stream_free(&s->rows);
    iwp_gathered_free(&s->got);
    iwp_gathered_free(&s->dump);
    free(s->dump_h);
    free(s->state);
    free(s->keep);
    free(s->scores);
    s->dump_h = NULL;
    s->state = NULL;
    s->keep = NULL;
    s->scores = NULL;
    s->has_scores = s->has_logits = s->running = false;
    s->n_fed = 0;
    s->n_segment = 0;
    s->dump_layer = -1;
}

static void forget_marks(struct iwp_session *s) {
    for (int32_t i = 0; i < s->n_mark; i++) free(s->mark[i].h);
    s->n_mark = 0;
}

static void forget_reuse(struct iwp_session *s) {
    forget_marks(s);
    free(s->old_id);
    free(s->old_pos);
    free(s->old_hash);
    s->old_id = NULL;
    s->old_pos = NULL;
    s->old_hash = NULL;
    s->n_old = s->full_layers = 0;
    s->repeatable = false;
}

void iwp_session_free(iwp_session *s) {
    if (!s) return;
    forget_run(s);
    forget_reuse(s);
    iwp_kv_free(&s->kv);
    free(s->fed);
    free(s->logits);
    free(s->first_logits);
    free(s->prompt_logits);
    free(s);
}

int iwp_session_keep_marks(iwp_session *s, const int32_t *layer, int32_t n, iwp_err *err) {
    IWP_REQUIRE(n >= 0 && n <= IWP_MARK_MAX, err, IWP_EINVAL, "keep_marks: %d of at most %d states",
                n, IWP_MARK_MAX);
    for (int32_t i = 0; i < n; i++)
        IWP_REQUIRE(layer[i] > (i ? layer[i - 1] : 0), err, IWP_EINVAL,
                    "keep_marks: layers from 1 on, ascending");
    s->n_want = n;
    for (int32_t i = 0; i < n; i++) s->want[i] = layer[i];
    return 0;
}

/* ---- what of the last prompt can be used again -------------------------------------------------- */

static uint64_t row_hash(const struct iwp_session *s, const struct iwp_prompt *p, int32_t visual) {
    if (visual < 0) return 0;
    const size_t d = (size_t)s->e->d.d_model;
    const float *x = p->visual + (size_t)visual * d;
    uint64_t h = IWP_FNV64_INIT; /* by words: a prompt has millions of them */
    for (size_t i = 0; i < d; i++) {
        uint32_t w;
        memcpy(&w, x + i, sizeof w);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h | 1;
}

/* Rows that begin both prompts: same ids, positions and visual rows. */
static int32_t common_rows(const struct iwp_session *s, const struct iwp_prompt *p,
                           const int32_t *visual) {
    if (s->n_old_pos != p->n_pos) return 0;
    int32_t i = 0;
    for (; i < p->n && i < s->n_old; i++) {
        if (s->old_id[i] != p->id[i] || s->old_hash[i] != row_hash(s, p, visual[i])) break;
        bool same = true;
        for (int32_t r = 0; r < p->n_pos; r++)
            same = same && s->old_pos[(size_t)r * (size_t)s->n_old + (size_t)i] ==
                               p->pos[(size_t)r * (size_t)p->n + (size_t)i];
        if (!same) break;
    }
    return i;
}

static int remember_prompt(struct iwp_session *s, const struct iwp_prompt *p, const int32_t *visual,
                           iwp_err *err) {
    const size_t n = (size_t)p->n, np = (size_t)p->n_pos;
    int32_t *id = malloc(n * sizeof *id);
    int64_t *pos = malloc(n * np * sizeof *pos);
    uint64_t *hash = malloc(n * sizeof *hash);
    if (!id || !pos || !hash) {
        free(id);
        free(pos);
        free(hash);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    memcpy(id, p->id, n * sizeof *id);
    memcpy(pos, p->pos, n * np * sizeof *pos);
    for (size_t i = 0; i < n; i++) hash[i] = row_hash(s, p, visual[i]);
    free(s->old_id);
    free(s->old_pos);
    free(s->old_hash);
    s->old_id = id;
    s->old_pos = pos;
    s->old_hash = hash;
    s->n_old = p->n;
    s->n_old_pos = p->n_pos;
    return 0;
}

static const struct iwp_kept *find_mark(const struct iwp_session *s, int32_t layer) {
    for (int32_t i = 0; i < s->n_mark; i++)
        if (s->mark[i].layer == layer) return &s->mark[i];
    return NULL;
}

/* Where a chunk of the uncut prompt that begins at row i ends.  With split_media one ends behind the last
 * visual row, so that another question about the same pictures finds it there. */
static int32_t chunk_end(const struct iwp_session *s, int32_t i, int32_t n) {
    const int32_t end = i + s->sp.n_chunk < n ? i + s->sp.n_chunk : n;
    return s->rows.n == s->p->n && i < s->split && s->split < end ? s->split : end;
}

/* The end of the last whole chunk within the first n rows. */
static int32_t whole_chunks(const struct iwp_session *s, int32_t n) {
    int32_t i = 0;
    for (int32_t end; i < n && (end = chunk_end(s, i, s->p->n)) <= n;) i = end;
    return i;
}

/* Rows the layers below the mark and above it need not see again.  Whole chunks only: then the numbers are
 * those of a run from the start. */
static void find_reuse(const struct iwp_session *s, const int32_t *visual, int32_t old_split,
                       int32_t *low, int32_t *high) {
    const struct iwp_prompt *p = s->p;
    const int32_t mark = iwp_session_mark_at(s);
    const struct iwp_kept *kept = find_mark(s, mark);
    const bool same_mark = kept && mark <= s->full_layers;
    /* A second mark wants all rows above the first. */
    const bool all_layers = s->n_stage == 0 && s->full_layers == s->e->d.n_layer && s->n_want <= 1;
    *low = *high = 0;
    if (s->probe || (!same_mark && !(all_layers && mark < 0))) return;
    int32_t n = common_rows(s, p, visual);
    if (same_mark && n > kept->n) n = kept->n;
    /* Chunks of the old prompt that ended elsewhere are none of ours. */
    const int32_t split = s->split < old_split ? s->split : old_split;
    if (s->split != old_split && n >= split && split > 0) n = split - 1;
    if (n == p->n && s->n_old != n) n--;
    *low = whole_chunks(s, n);
    /* Logits come from a run of the last row. */
    if (all_layers) *high = whole_chunks(s, n < p->n ? n : p->n - 1);
    if (mark < 0) *low = *high;
}

/* ---- begin -------------------------------------------------------------------------------------- */

/* How encoder rows belong to tokens is the tower's business, not the user's. */
static int set_tower_options(struct iwp_params *prune, const struct iwp_prompt *p, iwp_err *err) {
    const struct iwp_option *o = iwp_method_info(prune->method)->options;
    for (; p->n_vit > 0 && o && o->name; o++) {
        const bool merge = strcmp(o->name, "merge") == 0;
        if (!merge && strcmp(o->name, "cls") != 0) continue;
        char value[16];
        snprintf(value, sizeof value, "%d", merge ? p->vit_merge : p->vit_cls);
        IWP_TRY(iwp_params_set(prune, o->name, value, err));
    }
    return 0;
}

static int set_method(struct iwp_session *s, const struct iwp_params *prune, iwp_err *err) {
    s->pruned = prune != NULL;
    s->n_stage = 0;
    IWP_REQUIRE(!s->p->tower_keep || (prune && prune->method == s->p->tower_method), err,
                IWP_EINVAL, "the prompt was encoded for method %s",
                iwp_method_info(s->p->tower_method)->name);
    if (!prune) return 0;
    s->prune = *prune;
    const struct iwp_method_info *m = iwp_method_info(prune->method);
    if (s->e->prompter && s->e->prompter->tower)
        IWP_TRY(iwp_tower_check_options(s->e->prompter->tower, prune, err));
    /* Pictures were shrunk before they came here; without visual tokens there is nothing to do. */
    if (m->site == IWP_SITE_MEDIA || s->p->n_visual == 0) return 0;
    if (s->p->tower_keep) { /* done inside the tower; what is left goes through the cut */
        s->stage[0] = (struct iwp_stage){IWP_SITE_TOWER, -1, s->p->n_tower_keep};
        s->n_stage = 1;
        return 0;
    }
    struct iwp_plan_shape shape = {.n_layer = s->e->d.n_layer, .n_visual = s->p->n_visual};
    for (int32_t i = 0; i < s->p->n; i++) shape.n_separator += s->p->code[i] == IWP_CODE_SEPARATOR;
    IWP_TRY(set_tower_options(&s->prune, s->p, err));
    int n = iwp_plan(&s->prune, &shape, s->stage, IWP_STAGE_MAX, err);
    IWP_TRY(n);
    s->n_stage = n;
    return 0;
}

static int start_stats(struct iwp_session *s, iwp_err *err) {
    const struct iwp_prompt *p = s->p;
    memset(&s->st, 0, sizeof s->st);
    s->st.n_prompt = p->n;
    s->st.n_visual = s->st.n_kept = p->n_visual;
    s->keep = malloc(((size_t)p->n_visual + 1) * sizeof *s->keep);
    s->scores = calloc((size_t)p->n_visual + 1, sizeof *s->scores);
    IWP_REQUIRE(s->keep && s->scores, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < p->n_visual; i++) s->keep[i] = i;
    return 0;
}

static int check_length(const struct iwp_session *s, const struct iwp_prompt *p, iwp_err *err) {
    IWP_REQUIRE(p->n < s->sp.n_ctx, err, IWP_EINVAL,
                "the prompt has %d tokens, the context holds %d: raise -c or give less (pictures: "
                "--image-max-tokens)",
                p->n, s->sp.n_ctx);
    return 0;
}

/* --reselect off: the new prompt goes on where the old one and its answer ended; nothing is run again. */
static bool continues(const struct iwp_session *s, const struct iwp_prompt *p,
                      const int32_t *visual) {
    if (!s->sp.no_reselect || s->n_segment == 0 || s->running || s->n_old == 0) return false;
    const int32_t n = s->n_old + s->n_fed;
    if (p->n <= n || common_rows(s, p, visual) < s->n_old) return false;
    for (int32_t i = 0; i < s->n_fed; i++)
        if (p->id[s->n_old + i] != s->fed[i] || visual[s->n_old + i] >= 0) return false;
    return true;
}

static int begin_continued(struct iwp_session *s, struct iwp_stream *rows, iwp_err *err) {
    const struct iwp_prompt *p = s->p;
    const int32_t done = s->n_old + s->n_fed;
    int32_t kept = s->st.n_kept, *old_keep = s->keep, old_visual = s->st.n_visual;
    struct iwp_session_stage stages[IWP_STAGE_MAX];
    const int32_t n_stage = s->st.n_stage;
    memcpy(stages, s->st.stage, sizeof stages);
    s->keep = NULL;
    free(s->scores);
    s->scores = NULL;
    s->has_scores = false;
    int rc = start_stats(s, err);
    if (rc >= 0) {
        memcpy(s->keep, old_keep, (size_t)kept * sizeof *s->keep);
        for (int32_t i = old_visual; i < p->n_visual; i++) s->keep[kept++] = i;
        s->st.n_kept = kept;
        s->st.n_stage = n_stage;
        memcpy(s->st.stage, stages, sizeof stages);
        s->st.n_reused = done;
    }
    free(old_keep);
    IWP_TRY(rc);
    iwp_stream_free(&s->rows);
    s->rows = *rows;
    memset(rows, 0, sizeof *rows);
    for (int32_t i = 0; i < s->n_segment; i++) {
        s->segment[i].n_rows += p->n - s->n_old;
        s->segment[i].next_pos += s->n_fed; /* renumbered ones count on from here */
    }
    s->n_step = 1;
    s->step[0] = (struct iwp_step){.kind = IWP_STEP_RUN, .l0 = -1, .l1 = 0, .first = done};
    s->at_step = 0;
    s->at_row = 0;
    s->n_fed = 0;
    s->running = true;
    s->has_logits = false;
    forget_marks(s);
    return 0;
}

static void find_split(struct iwp_session *s) {
    s->split = 0;
    for (int32_t i = 0; s->sp.split_media && i < s->p->n; i++)
        if (s->rows.visual[i] >= 0) s->split = i + 1;
}

/* The same prompt with the same budget again: all of it is there, but for the tokens fed since. */
static bool repeats(const struct iwp_session *s, const struct iwp_prompt *p,
                    const struct iwp_params *prune, const int32_t *visual) {
    return s->repeatable && !s->probe && s->asked_prune == (prune != NULL) &&
           s->asked_positions == s->sp.positions &&
           (!prune || memcmp(&s->asked, prune, sizeof *prune) == 0) && s->n_old == p->n &&
           common_rows(s, p, visual) == p->n;
}

static void begin_again(struct iwp_session *s, const struct iwp_prompt *p) {
    s->p = p;
    for (int32_t g = 0; g < s->n_segment; g++)
        for (int32_t l = s->segment[g].l0; l < s->segment[g].l1; l++)
            iwp_kv_truncate(&s->kv, l, s->segment[g].n_rows);
    memcpy(s->logits, s->prompt_logits, (size_t)s->e->d.n_vocab * sizeof *s->logits);
    s->has_logits = true;
    s->n_fed = 0;
    s->st.n_reused = p->n;
    s->st.ms_prefill = s->st.ms_select = s->st.ms_decode = 0;
    s->st.row_layers = 0;
}

static void remember_question(struct iwp_session *s, const struct iwp_params *prune) {
    s->repeatable = false;
    s->asked_prune = prune != NULL;
    if (prune) s->asked = *prune;
    s->asked_positions = s->sp.positions;
}

int iwp_session_begin(iwp_session *s, const iwp_prompt *p, const struct iwp_params *prune,
                      iwp_err *err) {
    IWP_TRY(check_length(s, p, err));
    struct iwp_stream rows;
    IWP_TRY(iwp_stream_init(&rows, &s->e->d, p, err));
    int rc = 0;
    int32_t *visual = NULL;
    if (repeats(s, p, prune, rows.visual)) {
        iwp_stream_free(&rows);
        begin_again(s, p);
        return 0;
    }
    remember_question(s, prune);
    if (continues(s, p, rows.visual)) {
        s->p = p;
        visual = malloc((size_t)p->n * sizeof *visual);
        if (!visual) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
        memcpy(visual, rows.visual, (size_t)p->n * sizeof *visual);
        IWP_TRY_GOTO(begin_continued(s, &rows, err));
        IWP_TRY_GOTO(remember_prompt(s, p, visual, err));
        free(visual);
        return 0;
    }
    forget_run(s);
    s->p = p;
    s->rows = rows;
    memset(&rows, 0, sizeof rows);
    IWP_TRY_GOTO(set_method(s, prune, err));
    IWP_TRY_GOTO(start_stats(s, err));
    const int32_t old_split = s->split;
    int32_t low, high;
    find_split(s);
    find_reuse(s, s->rows.visual, old_split, &low, &high);
    if (low == 0) forget_reuse(s);
    IWP_TRY_GOTO(remember_prompt(s, p, s->rows.visual, err));
    const int32_t mark = iwp_session_mark_at(s);
    for (int32_t l = 0; l < s->e->d.n_layer; l++)
        iwp_kv_truncate(&s->kv, l, mark < 0 || l < mark ? low : high);
    if (low > 0 && mark > 0) /* rows at the mark that need not be run up to it */
        memcpy(s->rows.h, find_mark(s, mark)->h, (size_t)low * (size_t)s->rows.d * sizeof(float));
    forget_marks(s); /* until this run has come by */
    s->full_layers = 0;
    s->st.n_reused = low;
    IWP_TRY_GOTO(iwp_session_plan(s, 0, low, high, err));
    s->running = true;
    return 0;
fail:
    free(visual);
    iwp_stream_free(&rows);
    forget_run(s);
    forget_reuse(s);
    for (int32_t l = 0; l < s->e->d.n_layer; l++) iwp_kv_truncate(&s->kv, l, 0);
    return rc;
}

int iwp_session_rewind(iwp_session *s, int32_t layer, const struct iwp_params *prune,
                       iwp_err *err) {
    IWP_REQUIRE(s->p, err, IWP_EINVAL, "rewind: the session has no prompt");
    const struct iwp_kept *mark = layer > 0 ? iwp_session_mark(s, layer) : NULL;
    IWP_REQUIRE(layer == 0 || mark, err, IWP_EINVAL, "rewind: no state of layer %d was kept",
                layer);
    IWP_REQUIRE(layer <= s->full_layers || layer == 0, err, IWP_EINVAL,
                "rewind: a cut at layer %d came after the state of layer %d", s->full_layers,
                layer);
    const struct iwp_prompt *p = s->p;
    int rc = 0;
    remember_question(s, prune);
    forget_run(s);
    s->p = p;
    IWP_TRY_GOTO(iwp_stream_init(&s->rows, &s->e->d, p, err));
    IWP_TRY_GOTO(set_method(s, prune, err));
    IWP_TRY_GOTO(start_stats(s, err));
    if (layer > 0) {
        memcpy(s->rows.h, mark->h, (size_t)p->n * (size_t)s->rows.d * sizeof(float));
        s->st.n_reused = p->n;
        s->segment[0] = (struct iwp_segment){0, layer, p->n, s->rows.next_pos, false};
        s->n_segment = 1;
    }
    IWP_TRY_GOTO(iwp_session_plan(s, layer, 0, 0, err));
    for (int32_t l = 0; l < s->e->d.n_layer; l++) iwp_kv_truncate(&s->kv, l, l < layer ? p->n : 0);
    s->full_layers = layer;
    s->running = true;
    return 0;
fail:
    forget_run(s);
    return rc;
}

/* ---- steps -------------------------------------------------------------------------------------- */

/* The layers of a RUN now hold s->rows. */
static void note_segment(struct iwp_session *s, int32_t l0, int32_t l1) {
    struct iwp_segment *g = s->n_segment ? &s->segment[s->n_segment - 1] : NULL;
    if (g && g->l1 == l0 && g->n_rows == s->rows.n && g->renumbered == s->rows.renumbered) {
        g->l1 = l1;
        return;
    }
    s->segment[s->n_segment++] =
        (struct iwp_segment){l0, l1, s->rows.n, s->rows.next_pos, s->rows.renumbered};
}

static int make_room(struct iwp_session *s, int32_t l0, int32_t l1, int32_t n, iwp_err *err) {
    for (int32_t l = l0; l < l1; l++) {
        if (s->kv.layer[l].cap >= n && s->kv.layer[l].n > 0) continue;
        IWP_TRY(iwp_kv_reserve(&s->kv, l, n + s->sp.reserve, err));
    }
    return 0;
}

static int run_chunk(struct iwp_session *s, const struct iwp_step *t, iwp_err *err) {
    const int32_t L = s->e->d.n_layer, d = s->rows.d;
    if (s->at_row == 0) {
        s->at_row = t->first;
        note_segment(s, t->l0, t->l1);
        IWP_TRY(make_room(s, t->l0, t->l1, s->rows.n, err));
        for (int32_t l = t->l0; l < t->l1; l++)
            IWP_TRY(iwp_kv_set_log_size(&s->kv, l, 0, s->rows.n, s->rows.log_size, err));
        if (s->probe) IWP_TRY(s->probe->layer(s->probe->ctx, s, t->l0, &s->rows, err));
    }
    const int32_t i = s->at_row, n = chunk_end(s, i, s->rows.n) - i;
    const bool end = i + n == s->rows.n;
    const struct iwp_span span = {t->l0, t->l1, s->rows.pos + i, s->rows.n};
    struct iwp_run run = {.n = n,
                          .rows = s->rows.h + (size_t)i * (size_t)d,
                          .span = &span,
                          .n_span = 1,
                          .logits = end && t->l1 == L ? s->logits : NULL};
    if (s->probe && s->probe->heads && s->probe->heads_layer == t->l0)
        run.heads = s->probe->heads + (size_t)i * (size_t)s->e->d.n_head * (size_t)s->e->d.d_head;
    if (t->l0 < t->l1 && n > 0) IWP_TRY(iwp_runner_layers(&s->runner, &run, err));
    s->at_row += n;
    s->st.row_layers += (int64_t)n * (t->l1 - t->l0);
    return end;
}

/* Positions of new rows in a segment: the prompt's own, or counted on in a renumbered one. */
static void segment_positions(const struct iwp_session *s, const struct iwp_segment *g,
                              int32_t first, int32_t n, int32_t *pos) {
    for (int32_t r = 0; r < s->rows.n_pos; r++)
        for (int32_t k = 0; k < n; k++)
            pos[(size_t)r * (size_t)n + (size_t)k] =
                g->renumbered ? g->next_pos + first - s->step[0].first + k
                              : s->rows.pos[(size_t)r * (size_t)s->rows.n + (size_t)(first + k)];
}

/* New rows of a continued prompt through all layers, each with its own cache length. */
static int continue_chunk(struct iwp_session *s, const struct iwp_step *t, iwp_err *err) {
    const int32_t np = s->rows.n_pos;
    if (s->at_row == 0) s->at_row = t->first;
    const int32_t i = s->at_row, left = s->rows.n - i;
    const int32_t n = left < s->sp.n_chunk ? left : s->sp.n_chunk;
    const bool end = n == left;
    struct iwp_span span[IWP_STAGE_MAX + 2];
    int32_t *pos = malloc((size_t)s->n_segment * (size_t)np * (size_t)n * sizeof *pos);
    IWP_REQUIRE(pos, err, IWP_ENOMEM, "out of memory");
    int rc = 0;
    for (int32_t g = 0; g < s->n_segment; g++) {
        const struct iwp_segment *e = &s->segment[g];
        int32_t *at = pos + (size_t)g * (size_t)np * (size_t)n;
        segment_positions(s, e, i, n, at);
        span[g] = (struct iwp_span){e->l0, e->l1, at, n};
        for (int32_t l = e->l0; l < e->l1; l++)
            if (s->kv.layer[l].n + n > s->kv.layer[l].cap)
                IWP_TRY_GOTO(
                    iwp_kv_reserve(&s->kv, l, s->kv.layer[l].n + left + s->sp.reserve, err));
    }
    struct iwp_run run = {.n = n,
                          .rows = s->rows.h + (size_t)i * (size_t)s->rows.d,
                          .span = span,
                          .n_span = s->n_segment,
                          .logits = end ? s->logits : NULL};
    IWP_TRY_GOTO(iwp_runner_layers(&s->runner, &run, err));
    s->at_row += n;
    rc = end;
    for (int32_t g = 0; end && g < s->n_segment; g++) {
        struct iwp_segment *e = &s->segment[g];
        e->next_pos = e->renumbered ? e->next_pos + s->rows.n - t->first : s->rows.next_pos;
    }
fail:
    free(pos);
    return rc;
}

static int take_mark(struct iwp_session *s, const struct iwp_step *t, iwp_err *err) {
    const size_t bytes = (size_t)s->rows.n * (size_t)s->rows.d * sizeof(float);
    float *h = malloc(bytes);
    IWP_REQUIRE(h, err, IWP_ENOMEM, "out of memory");
    memcpy(h, s->rows.h, bytes);
    if (s->n_mark == IWP_MARK_MAX) forget_marks(s);
    s->mark[s->n_mark++] = (struct iwp_kept){t->l0, s->rows.n, h};
    s->full_layers = s->st.marked = t->l0;
    return 0;
}

static void finish(struct iwp_session *s) {
    if (s->first_logits)
        memcpy(s->first_logits, s->logits, (size_t)s->e->d.n_vocab * sizeof *s->logits);
    if (s->prompt_logits && !s->sp.keep_tensors) {
        memcpy(s->prompt_logits, s->logits, (size_t)s->e->d.n_vocab * sizeof *s->logits);
        s->repeatable = true;
    }
    s->running = false;
    s->has_logits = true;
    s->full_layers = s->n_stage == 0 ? s->e->d.n_layer : iwp_session_low(s);
    s->st.kv_bytes = iwp_kv_used_bytes(&s->kv);
    s->st.kv_bytes_full = iwp_kv_row_bytes(&s->kv) * (size_t)s->e->d.n_layer * (size_t)s->p->n;
    iwp_session_count_flops(s);
}

static int one_step(struct iwp_session *s, iwp_err *err) {
    const struct iwp_step *t = &s->step[s->at_step];
    int rc = 0;
    switch (t->kind) {
    case IWP_STEP_RUN: rc = t->l0 < 0 ? continue_chunk(s, t, err) : run_chunk(s, t, err); break;
    case IWP_STEP_MARK: rc = take_mark(s, t, err); break;
    case IWP_STEP_PREV: rc = iwp_session_prev(s, t, err); break;
    case IWP_STEP_QKV: rc = iwp_session_qkv(s, t, err); break;
    case IWP_STEP_CUT: rc = iwp_session_cut(s, t, err); break;
    }
    IWP_TRY(rc);
    if (t->kind == IWP_STEP_RUN && rc == 0) return 0; /* more chunks */
    s->at_step++;
    s->at_row = 0;
    if (s->at_step == s->n_step) finish(s);
    return 0;
}

int iwp_session_step(iwp_session *s, iwp_err *err) {
    IWP_REQUIRE(s->p, err, IWP_EINVAL, "step: the session has no prompt");
    if (!s->running) return 0;
    const double t0 = iwp_clock_ms();
    pthread_mutex_lock(&s->e->lock);
    /* Graphs ask too, but only where the CPU has a part in them. */
    int rc = iwp_backend_cancelled(s->e->b) ? iwp_err_set(err, IWP_ECANCELLED, "interrupted")
                                            : one_step(s, err);
    pthread_mutex_unlock(&s->e->lock);
    s->st.ms_prefill += iwp_clock_ms() - t0;
    if (rc < 0) {
        forget_run(s);
        forget_reuse(s);
        for (int32_t l = 0; l < s->e->d.n_layer; l++) iwp_kv_truncate(&s->kv, l, 0);
        return rc;
    }
    return s->running;
}

const float *iwp_session_logits(const iwp_session *s) { return s->has_logits ? s->logits : NULL; }

struct iwp_session_stats iwp_session_stats(const iwp_session *s) {
    struct iwp_session_stats st = s->st;
    st.keep = s->keep;
    st.scores = s->has_scores ? s->scores : NULL;
    st.n_generated = s->n_fed;
    st.row_layers_left = iwp_session_left(s);
    return st;
}
