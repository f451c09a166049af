/* --dump-tensors: everything a run computed on the way, in the names and shapes of CONTRACT section 3. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "io/safetensors.h"
#include "model/session.h"

struct entry {
    char name[24];
    enum iwp_st_dtype dtype;
    int32_t rank;
    int64_t shape[IWP_ST_MAX_RANK];
    const void *data; /* NULL: filled row by row */
};
enum { MAX_ENTRY = 32 };
struct list {
    struct entry at[MAX_ENTRY];
    int32_t n;
};

static void add(struct list *l, const char *name, enum iwp_st_dtype t, int32_t rank, int64_t a,
                int64_t b, int64_t c, const void *data) {
    if (!data) return;
    struct entry *e = &l->at[l->n++];
    memset(e, 0, sizeof *e);
    strncpy(e->name, name, sizeof e->name - 1);
    e->dtype = t;
    e->rank = rank;
    e->shape[0] = a;
    e->shape[1] = b;
    e->shape[2] = c;
    e->data = data;
}

static size_t entry_bytes(const struct entry *e) {
    size_t n = iwp_st_dtype_size(e->dtype);
    for (int32_t i = 0; i < e->rank; i++) n *= (size_t)e->shape[i];
    return n;
}

/* Pixels or tower rows of all pictures one after the other.  Pictures of one shape get the library's
 * batch dimension; patches of different pictures are simply appended. */
static int join_images(const struct iwp_prompt *p, bool pixels, struct list *l, float **buf,
                       iwp_err *err) {
    size_t total = 0;
    int64_t rows = 0;
    bool same = true;
    if (p->n_image == 0) return 0;
    const struct iwp_pre_plan *f = &p->image[0].plan;
    for (int32_t i = 0; i < p->n_image; i++) {
        const struct iwp_prompt_image *m = &p->image[i];
        if (!(pixels ? m->pixel_values : m->vision_features)) return 0;
        total += pixels ? m->plan.n_pixel : (size_t)m->n_vision * (size_t)m->d_vision;
        rows += pixels ? m->plan.shape[0] : m->n_vision;
        same = same && m->plan.shape[0] == f->shape[0];
    }
    *buf = malloc(total * sizeof **buf + 1);
    IWP_REQUIRE(*buf, err, IWP_ENOMEM, "out of memory");
    size_t at = 0;
    for (int32_t i = 0; i < p->n_image; i++) {
        const struct iwp_prompt_image *m = &p->image[i];
        const size_t n = pixels ? m->plan.n_pixel : (size_t)m->n_vision * (size_t)m->d_vision;
        memcpy(*buf + at, pixels ? m->pixel_values : m->vision_features, n * sizeof **buf);
        at += n;
    }
    if (!pixels) {
        add(l, "vision_features", IWP_ST_F32, 2, rows, p->image[0].d_vision, 0, *buf);
        const int64_t tiles = f->n_tile;
        struct entry *e = &l->at[l->n - 1];
        if (f->kind != IWP_PRE_QWEN2_5_VL && tiles > 0) { /* [tiles, patches, Dv] */
            const int64_t per = p->image[0].n_vision / tiles;
            e->rank = 3;
            e->shape[2] = e->shape[1];
            e->shape[1] = per;
            e->shape[0] = per > 0 ? rows / per : 0;
        }
        return 0;
    }
    add(l, "pixel_values", IWP_ST_F32, f->n_dim, rows, f->shape[1], f->shape[2], *buf);
    struct entry *e = &l->at[l->n - 1];
    for (int32_t i = 1; i < f->n_dim; i++) e->shape[i] = f->shape[i];
    if (f->kind != IWP_PRE_QWEN2_5_VL && same && f->n_dim < IWP_ST_MAX_RANK) {
        for (int32_t i = f->n_dim; i > 0; i--) e->shape[i] = f->shape[i - 1];
        e->shape[0] = p->n_image;
        e->rank++;
    }
    return 0;
}

static int write_entries(const struct list *l, const char *path, iwp_err *err) {
    struct iwp_st_writer w;
    int rc = iwp_st_writer_open(&w, path, err);
    if (rc < 0) return rc;
    for (int32_t i = 0; i < l->n; i++)
        IWP_TRY_GOTO(iwp_st_writer_add(&w, l->at[i].name, l->at[i].dtype, l->at[i].rank,
                                       l->at[i].shape, err));
    IWP_TRY_GOTO(iwp_st_writer_begin(&w, err));
    for (int32_t i = 0; i < l->n; i++)
        IWP_TRY_GOTO(iwp_st_writer_write(&w, l->at[i].data, entry_bytes(&l->at[i]), err));
    rc = iwp_st_writer_commit(&w, err);
fail:
    iwp_st_writer_abort(&w);
    return rc < 0 ? rc : 0;
}

int iwp_session_dump(const iwp_session *s, const char *path, iwp_err *err) {
    const struct iwp_prompt *p = s->p;
    IWP_REQUIRE(p && s->sp.keep_tensors, err, IWP_EINVAL, "%s: the run kept no tensors", path);
    const struct iwp_decoder *d = &s->e->d;
    const int64_t S = p->n, N = p->n_visual, D = d->d_model, H = d->n_head, G = d->n_head_kv,
                  dh = d->d_head;
    struct list l = {.n = 0};
    float *pixels = NULL, *features = NULL;
    int64_t *ids = malloc((size_t)S * sizeof *ids),
            *keep = malloc(((size_t)s->st.n_kept + 1) * sizeof *keep);
    float *embeds = malloc((size_t)S * (size_t)D * sizeof *embeds);
    int rc = 0;
    if (!ids || !keep || !embeds) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    int32_t nv = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const bool visual = p->code[i] == IWP_CODE_VISUAL || p->code[i] == IWP_CODE_SEPARATOR;
        ids[i] = p->id[i];
        IWP_TRY_GOTO(
            iwp_stream_embed(d, p, i, visual ? nv++ : -1, embeds + (size_t)i * (size_t)D, err));
    }
    for (int32_t i = 0; i < s->st.n_kept; i++) keep[i] = s->keep[i];
    add(&l, "input_ids", IWP_ST_I64, 1, S, 0, 0, ids);
    add(&l, "visual", IWP_ST_U8, 1, S, 0, 0, p->code);
    if (s->pruned && N > 0) add(&l, "unit", IWP_ST_I32, 1, N, 0, 0, iwp_session_units(s));
    add(&l, "position_ids", IWP_ST_I64, 2, p->n_pos, S, 0, p->pos);
    IWP_TRY_GOTO(join_images(p, true, &l, &pixels, err));
    IWP_TRY_GOTO(join_images(p, false, &l, &features, err));
    if (N > 0) add(&l, "visual_embeds", IWP_ST_F32, 2, N, D, 0, p->visual);
    add(&l, "inputs_embeds", IWP_ST_F32, 2, S, D, 0, embeds);
    if (s->dump_layer >= 0) {
        add(&l, "h", IWP_ST_F32, 2, S, D, 0, s->dump_h);
        add(&l, "q", IWP_ST_F32, 3, S, H, dh, s->dump.q);
        add(&l, "k", IWP_ST_F32, 3, S, G, dh, s->dump.k);
        add(&l, "q_rope", IWP_ST_F32, 3, S, H, dh, s->dump.q_rope);
        add(&l, "k_rope", IWP_ST_F32, 3, S, G, dh, s->dump.k_rope);
        add(&l, "v", IWP_ST_F32, 3, S, G, dh, s->dump.v);
        add(&l, "h_prev", IWP_ST_F32, 2, S, D, 0, s->dump.h_prev);
        add(&l, "q_rope_prev", IWP_ST_F32, 3, S, H, dh, s->dump.q_rope_prev);
        add(&l, "k_rope_prev", IWP_ST_F32, 3, S, G, dh, s->dump.k_rope_prev);
        if (s->pruned) add(&l, "final_norm", IWP_ST_F32, 1, D, 0, 0, d->final_norm);
    }
    if (p->vit_features)
        add(&l, "vit_features", IWP_ST_F32, 2, p->n_vit, p->d_vit, 0, p->vit_features);
    add(&l, "vit_q", IWP_ST_F32, 3, p->n_vit, p->n_vit_head, p->d_vit_head, p->vit_q);
    add(&l, "vit_k", IWP_ST_F32, 3, p->n_vit, p->n_vit_head, p->d_vit_head, p->vit_k);
    if (s->has_scores) add(&l, "scores", IWP_ST_F32, 1, N, 0, 0, s->scores);
    if (s->n_stage > 0) add(&l, "keep", IWP_ST_I64, 1, s->st.n_kept, 0, 0, keep);
    add(&l, "logits", IWP_ST_F32, 1, d->n_vocab, 0, 0, s->first_logits);
    rc = write_entries(&l, path, err);
fail:
    free(ids);
    free(keep);
    free(embeds);
    free(pixels);
    free(features);
    return rc < 0 ? rc : 0;
}
