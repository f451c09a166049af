/* Building a prompt: see prompt.h. */
#include <stdlib.h>
#include <string.h>

#include <llama.h>

#include "base/err.h"
#include "iwp/prune.h"
#include "model/prompter.h"

void iwp_prompt_free(struct iwp_prompt *p) {
    free(p->id);
    free(p->code);
    free(p->pos);
    free(p->visual);
    free(p->unit_image);
    free(p->unit_tile);
    free(p->unit_frame);
    for (int32_t i = 0; i < p->n_image && p->image; i++) {
        struct iwp_prompt_image *im = &p->image[i];
        free(im->file);
        free(im->row);
        iwp_image_free(&im->picture);
        for (int32_t k = 0; k < im->n_frame && im->frame; k++) iwp_image_free(&im->frame[k]);
        free(im->frame);
        free(im->frame_index);
        free(im->frame_time);
        free(im->pixel_values);
        free(im->vision_features);
    }
    free(p->image);
    free(p->vit_features);
    free(p->vit_q);
    free(p->vit_k);
    free(p->window);
    free(p->text_embeds);
    free(p->tower_keep);
    free(p->tower_after);
    *p = (struct iwp_prompt){0};
}

/* ---- Media ---------------------------------------------------------------------------------- */

/* Everything between the request and the finished prompt. */
struct work {
    iwp_prompter *m;
    const struct iwp_prompt_request *r;
    struct iwp_pieces pieces;
    struct iwp_text text;
    struct iwp_item *item; /* [n_item] */
    int32_t n_item, n_vit;
    int32_t n_tile, n_frame; /* running numbers for units */
};

static void work_free(struct work *w) {
    for (int32_t i = 0; i < w->n_item; i++) iwp_item_free(&w->item[i]);
    free(w->item);
    iwp_text_free(&w->text);
    iwp_pieces_free(&w->pieces);
}

static void *grow(void *p, size_t n, size_t size, bool *ok) {
    void *q = realloc(p, n ? n * size : size);
    if (!q) *ok = false;
    return q ? q : p;
}

/* One token's worth of encoder rows: `merge` rows, or a weighted sum of several. */
static void mix(const struct iwp_pre_row *r, const float *from, size_t width, float *to) {
    if (r->n == 1) {
        memcpy(to, from + (size_t)r->row[0] * width, width * sizeof *to);
        return;
    }
    for (size_t i = 0; i < width; i++) {
        float s = 0;
        for (int32_t k = 0; k < r->n; k++) s += r->weight[k] * from[(size_t)r->row[k] * width + i];
        to[i] = s;
    }
}

/* With the class token last, row i of a tile looks at its cell i + 1 and the last one at nothing. */
static void shift_cells(const struct iwp_pre_plan *plan, struct iwp_pre_row *row) {
    const int32_t n = plan->side * plan->side;
    for (int32_t i = 0; i < plan->n_token; i++) {
        const bool last = i % n == n - 1;
        int32_t rows = plan->side, cols;
        if (last) iwp_pre_grid(plan, row[i].grid, &rows, &cols);
        row[i].y = last ? rows : row[i + 1].y; /* below the grid: no place in the picture */
        row[i].x = last ? 0 : row[i + 1].x;
    }
}

/* The projector row a token mostly is. */
static int32_t main_row(const struct iwp_pre_row *r) {
    int32_t best = 0;
    for (int32_t k = 1; k < r->n; k++)
        if (r->weight[k] > r->weight[best]) best = k;
    return r->row[best];
}

/* Which tokens of an item stand for the groups that the tower left: the one at the group's own place,
 * else (that place is padding, or between features) the first. */
static int keep_leads(struct iwp_prompt *p, const struct iwp_item *it,
                      const struct iwp_pre_row *row, iwp_err *err) {
    const int32_t *lead = it->out->lead, n = it->plan.n_token;
    bool ok = true;
    int32_t *token = malloc((size_t)it->out->n_row * sizeof *token);
    p->tower_keep = grow(p->tower_keep, (size_t)(p->n_visual + n), sizeof *p->tower_keep, &ok);
    if (!ok || !token) {
        free(token);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    for (int32_t i = 0; i < it->out->n_row; i++) token[i] = -1;
    for (int32_t i = 0; i < n; i++) {
        if (!row[i].n) continue;
        const int32_t at = main_row(&row[i]), own = lead[at];
        if (token[own] < 0 || (at == own && main_row(&row[token[own]]) != own)) token[own] = i;
    }
    for (int32_t i = 0; i < n; i++)
        if (!row[i].n || token[lead[main_row(&row[i])]] == i)
            p->tower_keep[p->n_tower_keep++] = p->n_visual + i;
    free(token);
    return 0;
}

/* Appends an encoded item's rows, units and taps. */
static int append_rows(struct work *w, struct iwp_prompt *p, struct iwp_item *it,
                       struct iwp_prompt_image *im, iwp_err *err) {
    const struct iwp_tower_info *v = iwp_tower_info(w->m->tower);
    const int32_t n = it->plan.n_token, base = p->n_visual, d = p->d_model;
    const size_t total = (size_t)(base + n), dv = (size_t)v->d_vision * (size_t)v->merge;
    bool ok = true;
    im->row = malloc((size_t)n * sizeof *im->row);
    IWP_REQUIRE(im->row, err, IWP_ENOMEM, "out of memory for %d visual tokens", n);
    iwp_pre_rows(&it->plan, im->row);
    p->visual = grow(p->visual, total * (size_t)d, sizeof *p->visual, &ok);
    p->unit_image = grow(p->unit_image, total, sizeof *p->unit_image, &ok);
    p->unit_tile = grow(p->unit_tile, total, sizeof *p->unit_tile, &ok);
    p->unit_frame = grow(p->unit_frame, total, sizeof *p->unit_frame, &ok);
    if (it->out->lead) IWP_TRY(keep_leads(p, it, im->row, err));
    const size_t vit = (size_t)(w->n_vit + n); /* one row is reserved for the class token */
    if (w->r->tap_features)
        p->vit_features = grow(p->vit_features, (vit + 1) * dv, sizeof *p->vit_features, &ok);
    if (w->r->tap_qk) {
        p->vit_q = grow(p->vit_q, (vit + 1) * dv, sizeof *p->vit_q, &ok);
        p->vit_k = grow(p->vit_k, (vit + 1) * dv, sizeof *p->vit_k, &ok);
    }
    IWP_REQUIRE(ok, err, IWP_ENOMEM, "out of memory for %zu visual tokens", total);
    const float *newline = iwp_tower_newline(w->m->tower);
    const bool video = it->plan.mode == IWP_PRE_VIDEO;
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct iwp_pre_row *r = &im->row[i];
        float *to = p->visual + (size_t)(base + i) * (size_t)d;
        if (r->n)
            mix(r, it->out->row, (size_t)d, to);
        else if (newline)
            memcpy(to, newline, (size_t)d * sizeof *to);
        p->unit_image[base + i] = (int32_t)(im - p->image);
        p->unit_tile[base + i] = w->n_tile + r->unit;
        p->unit_frame[base + i] = w->n_frame + (video ? r->unit : 0);
        if (r->unit > last) last = r->unit;
        if (!r->n) continue;
        const size_t at = (size_t)v->has_class * (size_t)v->d_vision + (size_t)w->n_vit++ * dv;
        if (w->r->tap_features) mix(r, it->out->feature, dv, p->vit_features + at);
        if (w->r->tap_qk) {
            mix(r, it->out->q, dv, p->vit_q + at);
            mix(r, it->out->k, dv, p->vit_k + at);
        }
    }
    if (v->has_class) { /* the mean over tiles when there are several */
        float *to[3] = {w->r->tap_features ? p->vit_features : NULL, w->r->tap_qk ? p->vit_q : NULL,
                        w->r->tap_qk ? p->vit_k : NULL};
        const float *from[3] = {it->out->cls_f, it->out->cls_q, it->out->cls_k};
        for (int a = 0; a < 3; a++)
            for (int32_t i = 0; i < v->d_vision && to[a] && !base; i++) {
                float s = 0;
                for (int32_t k = 0; k < it->out->n_cls; k++) s += from[a][k * v->d_vision + i];
                to[a][i] = s / (float)it->out->n_cls;
            }
    }
    if (v->class_last) shift_cells(&it->plan, im->row);
    w->n_tile += last + 1;
    w->n_frame += video ? last + 1 : 1;
    p->n_visual += n;
    return 0;
}

/* Which frames of a video were taken. */
static int keep_frames(const struct iwp_item *it, struct iwp_prompt_image *im, iwp_err *err) {
    const struct iwp_clip_info c = iwp_clip_info(it->clip);
    const size_t n = (size_t)c.n_frame;
    im->fps = c.fps;
    im->frame_index = malloc(n * sizeof *im->frame_index);
    im->frame_time = c.time ? malloc(n * sizeof *im->frame_time) : NULL;
    IWP_REQUIRE(im->frame_index && (im->frame_time || !c.time), err, IWP_ENOMEM, "out of memory");
    memcpy(im->frame_index, c.index, n * sizeof *im->frame_index);
    if (c.time) memcpy(im->frame_time, c.time, n * sizeof *im->frame_time);
    return 0;
}

/* Moves what the caller asked for out of the item. */
static int keep_item(struct work *w, struct iwp_item *it, struct iwp_prompt_image *im,
                     iwp_err *err) {
    const char *file = it->part->file ? it->part->file : "";
    im->file = malloc(strlen(file) + 1);
    IWP_REQUIRE(im->file, err, IWP_ENOMEM, "out of memory");
    strcpy(im->file, file);
    im->width = it->width;
    im->height = it->height;
    im->n_frame = it->n_frame;
    im->n_visual = it->plan.n_token;
    im->plan = it->plan;
    im->picture = it->picture;
    it->picture = (struct iwp_image){0};
    im->frame = it->frame;
    it->frame = NULL;
    if (it->clip) IWP_TRY(keep_frames(it, im, err));
    im->pixel_values = it->pixel_values;
    it->pixel_values = NULL;
    if (it->own.vision) {
        im->vision_features = it->own.vision;
        im->n_vision = it->own.n_vision;
        im->d_vision = iwp_tower_info(w->m->tower)->d_vision;
        it->own.vision = NULL;
    }
    return 0;
}

/* The resize control: what every item may cost. */
static int set_targets(struct work *w, iwp_err *err) {
    const struct iwp_prompt_request *r = w->r;
    if (r->resize_keep <= 0 && r->resize_tokens <= 0) return 0;
    int64_t total = 0;
    for (int32_t i = 0; i < w->n_item; i++) {
        IWP_TRY(iwp_item_plan(w->m->encoder, &w->item[i], r, err));
        total += w->item[i].plan.n_token;
    }
    for (int32_t i = 0; i < w->n_item; i++) {
        struct iwp_item *it = &w->item[i];
        const int64_t n = it->plan.n_token;
        int64_t target = r->resize_tokens > 0 ? (int64_t)r->resize_tokens * n / total
                                              : iwp_keep_count(r->resize_keep, (int32_t)n);
        it->target = target < 1 ? 1 : (int32_t)(target < n ? target : 0);
        it->counted = r->resize_tokens > 0;
    }
    return 0;
}

/* ---- Merging inside the tower --------------------------------------------------------------- */

/* A tile (or frame) of an item: rows of the tower, tokens that come of them, how many rows may stay; one
 * of the tokens may be the class token, which is never merged and comes on top. */
struct tile {
    int32_t item, rows, cls, n, keep;
};

static int count_tiles(struct work *w, struct tile **out, int32_t *n_out, iwp_err *err) {
    const struct iwp_tower_info *v = iwp_tower_info(w->m->tower);
    const bool qwen = v->pre.kind == IWP_PRE_QWEN2_5_VL;
    struct tile *tile = NULL;
    int32_t n = 0;
    *out = NULL;
    for (int32_t k = 0; k < w->n_item; k++) {
        IWP_TRY(iwp_item_plan(w->m->encoder, &w->item[k], w->r, err));
        const struct iwp_pre_plan *q = &w->item[k].plan;
        const int32_t count = qwen ? q->grid_t : q->n_tile,
                      rows = qwen ? q->grid_h * q->grid_w / v->merge : q->side * q->side;
        struct iwp_pre_row *row = malloc((size_t)q->n_token * sizeof *row);
        bool ok = row != NULL;
        *out = tile = grow(tile, (size_t)(n + count), sizeof *tile, &ok);
        if (!ok) {
            free(row);
            return iwp_err_set(err, IWP_ENOMEM, "out of memory");
        }
        for (int32_t i = 0; i < count; i++)
            tile[n + i] = (struct tile){k, rows, v->class_last, 0, 0};
        iwp_pre_rows(q, row);
        for (int32_t i = 0; i < q->n_token; i++)
            if (row[i].n) tile[n + main_row(&row[i]) / rows].n++;
        free(row);
        n += count;
    }
    *n_out = n;
    return 0;
}

/* Counts by the budget's scope: all tiles together, those of an item, or each alone.  A count is shared
 * over all tiles at once, whatever the scope. */
static int budget_tiles(const struct iwp_budget *b, struct tile *tile, int32_t n, iwp_err *err) {
    int32_t *size = malloc(2 * ((size_t)n + 1) * sizeof *size), *keep = size + n + 1;
    IWP_REQUIRE(size, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < n; i++) size[i] = tile[i].n;
    for (int32_t i = 0, j; i < n; i = j) {
        int32_t here = 0;
        for (j = i; j < n; j++) {
            const bool apart = b->n_keep || b->scope == IWP_SCOPE_GLOBAL ? false
                               : b->scope == IWP_SCOPE_IMAGE ? tile[j].item != tile[i].item
                                                             : j > i;
            if (apart) break;
            here += size[j];
        }
        iwp_keep_share(b->n_keep ? b->n_keep : iwp_keep_count(b->keep, here), size + i, j - i,
                       keep + i);
    }
    for (int32_t i = 0; i < n; i++) tile[i].keep = keep[i];
    free(size);
    for (int32_t i = 0; i < n; i++) {
        const bool all = tile[i].keep >= tile[i].n; /* padding too */
        tile[i].keep -= tile[i].cls;
        if (all || tile[i].keep > tile[i].rows) tile[i].keep = tile[i].rows;
        if (tile[i].keep < 1) tile[i].keep = 1;
    }
    return 0;
}

static int check_tiles(const struct iwp_params *p, const struct tile *tile, int32_t n,
                       iwp_err *err) {
    int64_t total = 0, m = p->budget.n_keep;
    int32_t least = 0;
    for (int32_t i = 0; i < n; i++) {
        total += tile[i].n;
        least += tile[i].n > 0 ? 1 + tile[i].cls : 0;
    }
    IWP_REQUIRE(m <= total, err, IWP_EINVAL, "--keep-tokens %lld: there are %lld visual tokens",
                (long long)m, (long long)total);
    if (!m) m = iwp_keep_count(p->budget.keep, (int32_t)total);
    const bool each = p->budget.scope != IWP_SCOPE_GLOBAL && p->budget.n_keep == 0;
    IWP_REQUIRE(each || m >= least, err, IWP_EINVAL,
                "%s: method %s reaches %d to %lld of %lld tokens, not %lld",
                p->budget.n_keep ? "--keep-tokens" : "--keep", iwp_method_info(p->method)->name,
                least, (long long)total, (long long)total, (long long)m);
    return 0;
}

/* Turns the budget of a method that acts inside the tower into rows per tile. */
static int set_merging(struct work *w, struct iwp_prompt *p, iwp_err *err) {
    if (!w->r->in_tower) return 0;
    const int32_t n_block = iwp_tower_info(w->m->tower)->n_block;
    struct tile *tile = NULL;
    int32_t n = 0, *after = calloc(2 * (size_t)n_block, sizeof *after);
    int rc = 0;
    if (!after) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(count_tiles(w, &tile, &n, err));
    IWP_TRY_GOTO(check_tiles(&w->r->tower, tile, n, err));
    IWP_TRY_GOTO(budget_tiles(&w->r->tower.budget, tile, n, err));
    for (int32_t i = 0; i < n; i++) {
        struct iwp_item *it = &w->item[tile[i].item];
        int32_t *keep = realloc(it->keep, (size_t)(it->n_keep + 1) * sizeof *keep);
        if (!keep) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
        it->keep = keep;
        keep[it->n_keep++] = tile[i].keep;
        IWP_TRY_GOTO(iwp_tower_merge_plan(w->m->tower, &w->r->tower, tile[i].rows, tile[i].keep,
                                          after + n_block, err));
        for (int32_t b = 0; b < n_block; b++) after[b] += after[n_block + b];
        p->n_tower_row += tile[i].rows;
    }
    p->tower_method = w->r->tower.method;
    p->tower_after = after;
    p->n_tower_block = n_block;
    after = NULL;
fail:
    free(after);
    free(tile);
    return rc;
}

int iwp_prompt_try(iwp_prompter *m, const struct iwp_prompt_request *r, int32_t side,
                   int32_t *n_tile, iwp_err *err) {
    struct iwp_item it;
    struct work w = {.m = m, .r = r, .item = &it, .n_item = 1};
    struct iwp_prompt p = {0};
    const int n = iwp_encoder_try(m->encoder, r, side, &it, err);
    IWP_TRY(n);
    struct iwp_pre_row *row = malloc((size_t)it.plan.n_token * sizeof *row);
    IWP_REQUIRE(row, err, IWP_ENOMEM, "out of memory");
    iwp_pre_rows(&it.plan, row);
    *n_tile = 0;
    for (int32_t i = 0; i < it.plan.n_token; i++)
        if (row[i].unit >= *n_tile) *n_tile = row[i].unit + 1;
    free(row);
    const int rc = r->tower.budget.n_keep < n ? set_merging(&w, &p, err) : 0;
    iwp_prompt_free(&p);
    iwp_item_free(&it);
    return rc < 0 ? rc : n;
}

static int encode_media(struct work *w, struct iwp_prompt *p, iwp_err *err) {
    int32_t n = 0, n_picture = 0;
    for (int32_t i = 0; i < w->pieces.n; i++)
        if (w->pieces.piece[i].kind == IWP_PIECE_MEDIA) {
            n++;
            n_picture += w->pieces.piece[i].part->kind == IWP_PART_IMAGE;
        }
    if (!n) return 0;
    IWP_REQUIRE(w->m->tower, err, IWP_EMISSING,
                "%s was loaded without a vision tower: give its mmproj file with -mm/--mmproj",
                w->m->path);
    IWP_REQUIRE(n <= 4096, err, IWP_EINVAL, "%d pictures and videos in one prompt are too many", n);
    w->item = calloc((size_t)n, sizeof *w->item);
    p->image = calloc((size_t)n, sizeof *p->image);
    IWP_REQUIRE(w->item && p->image, err, IWP_ENOMEM, "out of memory for %d pictures", n);
    for (int32_t i = 0; i < w->pieces.n; i++) {
        if (w->pieces.piece[i].kind != IWP_PIECE_MEDIA) continue;
        const struct iwp_part *part = w->pieces.piece[i].part;
        struct iwp_item *it = &w->item[w->n_item++];
        IWP_TRY(iwp_item_read(w->m->encoder, it, part,
                              part->kind == IWP_PART_VIDEO ? IWP_PRE_VIDEO
                              : n_picture > 1              ? IWP_PRE_SEVERAL
                                                           : IWP_PRE_SINGLE,
                              w->r, err));
    }
    IWP_TRY(set_targets(w, err));
    IWP_TRY(set_merging(w, p, err));
    for (int32_t i = 0; i < n; i++) {
        struct iwp_item *it = &w->item[i];
        struct iwp_prompt_image *im = &p->image[p->n_image++];
        IWP_TRY(iwp_item_encode(w->m->encoder, it, w->r, p->n_visual, err));
        im->first_visual = p->n_visual;
        IWP_TRY(append_rows(w, p, it, im, err));
        IWP_TRY(keep_item(w, it, im, err));
        p->ms_decode_image += it->ms_decode;
        p->ms_preprocess += it->ms_preprocess;
        p->ms_encode += it->ms_encode;
    }
    if (w->r->tap_features || w->r->tap_qk) {
        const struct iwp_tower_info *v = iwp_tower_info(w->m->tower);
        p->vit_cls = v->has_class;
        p->vit_merge = v->merge;
        p->d_vit = v->d_vision;
        p->n_vit_head = v->n_head;
        p->d_vit_head = v->d_head;
        p->n_vit = w->n_vit * v->merge + v->has_class;
    }
    return 0;
}

/* ---- Tokens and positions ------------------------------------------------------------------- */

static int fill_positions(const struct work *w, struct iwp_prompt *p, iwp_err *err) {
    const size_t n = (size_t)p->n;
    p->pos = malloc((size_t)p->n_pos * (n ? n : 1) * sizeof *p->pos);
    IWP_REQUIRE(p->pos, err, IWP_ENOMEM, "out of memory for %d tokens", p->n);
    if (p->n_pos == 1) {
        for (size_t i = 0; i < n; i++) p->pos[i] = (int64_t)i;
        p->next_pos = p->n;
        return 0;
    }
    int32_t *pos = malloc(3 * (n ? n : 1) * sizeof *pos), at = 0;
    IWP_REQUIRE(pos, err, IWP_ENOMEM, "out of memory for %d tokens", p->n);
    struct iwp_mrope rope = {0};
    for (int32_t i = 0; i < w->text.n_seg; i++) {
        const struct iwp_segment_text *s = &w->text.seg[i];
        int32_t *a = pos + at, *b = a + n, *c = b + n;
        if (s->media < 0) {
            iwp_mrope_text(&rope, s->n, a, b, c);
            at += s->n;
            continue;
        }
        const struct iwp_pre_params *pre = &iwp_tower_info(w->m->tower)->pre;
        const struct iwp_prompt_image *im = &p->image[s->media];
        const double fps = im->fps > 0 ? im->fps : 2.0; /* what its processor samples at */
        iwp_mrope_item(&rope, &im->plan, pre->temporal / fps, pre->tokens_per_second, a, b, c);
        at += im->n_visual;
    }
    for (size_t i = 0; i < 3 * n; i++) p->pos[i] = pos[i];
    p->next_pos = rope.next;
    free(pos);
    return 0;
}

static int fill_tokens(const struct work *w, struct iwp_prompt *p, iwp_err *err) {
    const int64_t total = (int64_t)w->text.ids.n + p->n_visual;
    IWP_REQUIRE(total > 0, err, IWP_EINVAL, "the prompt is empty");
    IWP_REQUIRE(total < 1 << 28, err, IWP_EINVAL, "a prompt of %lld tokens is too long",
                (long long)total);
    p->n = (int32_t)total;
    p->id = malloc((size_t)total * sizeof *p->id);
    p->code = malloc((size_t)total);
    IWP_REQUIRE(p->id && p->code, err, IWP_ENOMEM, "out of memory for %d tokens", p->n);
    int32_t at = 0, from = 0;
    for (int32_t i = 0; i < w->text.n_seg; i++) {
        const struct iwp_segment_text *s = &w->text.seg[i];
        if (s->media < 0) {
            memcpy(p->id + at, w->text.ids.id + from, (size_t)s->n * sizeof *p->id);
            memcpy(p->code + at, w->text.code + from, (size_t)s->n);
            at += s->n;
            from += s->n;
            continue;
        }
        const struct iwp_prompt_image *im = &p->image[s->media];
        int32_t id = im->plan.mode == IWP_PRE_VIDEO && w->m->video_token >= 0 ? w->m->video_token
                                                                              : w->m->image_token;
        if (id < 0) id = 0; /* never looked up: the rows come from the tower */
        for (int32_t k = 0; k < im->n_visual; k++, at++) {
            p->id[at] = id;
            p->code[at] = im->row[k].n ? IWP_CODE_VISUAL : IWP_CODE_SEPARATOR;
        }
    }
    return 0;
}

static const char *token_text(const iwp_prompter *m, int32_t id) {
    return id >= 0 ? llama_vocab_get_text(iwp_vocab_llama(m->vocab), id) : NULL;
}

static int make_pieces(struct work *w, iwp_err *err) {
    const iwp_prompter *m = w->m;
    const struct iwp_prompt_request *r = w->r;
    if (r->raw) {
        struct iwp_raw_marks marks = {0};
        marks.image = token_text(m, m->image_token);
        marks.video = token_text(m, m->video_token);
        if (m->n_pos == 3) {
            marks.open = "<|vision_start|>";
            marks.close = "<|vision_end|>";
        }
        return iwp_chat_raw(r->raw, r->media, r->n_media, &marks, &w->pieces, err);
    }
    IWP_REQUIRE(!m->verbatim, err, IWP_EINVAL,
                "--chat-template none takes a prompt, not a conversation");
    IWP_REQUIRE(m->chat, err, IWP_ENOTSUP,
                "the chat template of %s is not known; choose one with --chat-template (%s)",
                m->path, iwp_chat_names());
    return iwp_chat_render(m->chat, r->message, r->n_message, !r->no_generation_prompt, &w->pieces,
                           err);
}

int iwp_prompt_build(iwp_prompter *m, const struct iwp_prompt_request *r, struct iwp_prompt *out,
                     iwp_err *err) {
    *out = (struct iwp_prompt){.d_model = m->d_model, .n_pos = m->n_pos};
    struct work w = {.m = m, .r = r};
    int rc;
    IWP_TRY_GOTO(make_pieces(&w, err));
    IWP_TRY_GOTO(iwp_text_build(m, &w.pieces, r->raw != NULL, &w.text, err));
    IWP_TRY_GOTO(encode_media(&w, out, err));
    IWP_TRY_GOTO(fill_tokens(&w, out, err));
    rc = fill_positions(&w, out, err);
fail:
    work_free(&w);
    return rc < 0 ? rc : 0;
}
