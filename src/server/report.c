/* The `prune` object of an answer: what was cut where, and with report=tokens which cells of each
 * picture were kept.
 *
 * A picture has one or several grids (a global view, and the map of its tiles).  A bitset counts the
 * cells of a grid row by row, lowest bit first.  `x` and `y` are the edges of columns and rows in
 * pixels of the picture, so that a reader need not know how the model pads, crops and tiles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "media/preprocess.h"
#include "model/prompt.h"
#include "server/base64.h"
#include "server/state.h"

static void put_edges(struct iwp_json_out *w, const char *key, const float *edge, int32_t n) {
    iwp_json_open_array(w, key);
    for (int32_t i = 0; i < n; i++) iwp_json_put_f32(w, NULL, edge[i]);
    iwp_json_close_array(w);
}

struct cells {
    uint8_t *bits, *score; /* [⌈n/8⌉], [n] */
    float *x, *y;          /* [cols+1], [rows+1] */
};

/* The best cell of this picture's grid is 255. */
static void fill_scores(const struct iwp_prompt_image *m, const float *scores, int32_t grid,
                        int32_t rows, int32_t cols, uint8_t *out) {
    float lo = 0, hi = 0;
    bool any = false;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < m->n_visual; i++) {
            const struct iwp_pre_row *row = &m->row[i];
            if (row->n == 0 || row->grid != grid || row->y >= rows || row->x >= cols) continue;
            const float v = scores[m->first_visual + i];
            if (pass == 0) {
                if (!any || v < lo) lo = v;
                if (!any || v > hi) hi = v;
                any = true;
            } else if (hi > lo) {
                const float part = (v - lo) / (hi - lo);
                out[(size_t)row->y * (size_t)cols + (size_t)row->x] =
                    part >= 0 && part <= 1 ? (uint8_t)(255 * part) : 0;
            }
        }
}

static void put_grid(struct iwp_json_out *w, const struct iwp_prompt_image *m, const uint8_t *stays,
                     const float *scores, int32_t grid) {
    int32_t rows, cols;
    iwp_pre_grid(&m->plan, grid, &rows, &cols);
    const size_t n = (size_t)rows * (size_t)cols;
    struct cells c = {calloc(n / 8 + 1, 1), calloc(n + 1, 1),
                      calloc((size_t)cols + 2, sizeof(float)),
                      calloc((size_t)rows + 2, sizeof(float))};
    char *text = NULL, *heat = NULL;
    if (!c.bits || !c.score || !c.x || !c.y) goto end;
    for (int32_t i = 0; i < m->n_visual; i++) {
        const struct iwp_pre_row *row = &m->row[i];
        if (row->n == 0 || row->grid != grid || row->y >= rows || row->x >= cols) continue;
        const size_t at = (size_t)row->y * (size_t)cols + (size_t)row->x;
        if (stays[m->first_visual + i]) c.bits[at / 8] |= (uint8_t)(1u << at % 8);
        float box[4];
        iwp_pre_row_box(&m->plan, row, box);
        if (box[2] <= box[0] && box[3] <= box[1]) continue; /* wholly in the padding */
        c.x[row->x] = box[0];
        c.x[row->x + 1] = box[2];
        c.y[row->y] = box[1];
        c.y[row->y + 1] = box[3];
    }
    if (scores) fill_scores(m, scores, grid, rows, cols, c.score);
    text = iwp_base64_encode(c.bits, (n + 7) / 8);
    heat = scores ? iwp_base64_encode(c.score, n) : NULL;
    if (!text || (scores && !heat)) goto end;
    iwp_json_open_array(w, "grid");
    iwp_json_put_int(w, NULL, rows);
    iwp_json_put_int(w, NULL, cols);
    iwp_json_close_array(w);
    iwp_json_put_string(w, "keep", text);
    if (heat) iwp_json_put_string(w, "scores", heat);
    put_edges(w, "x", c.x, cols + 1);
    put_edges(w, "y", c.y, rows + 1);
    free(text);
    free(heat);
    text = heat = NULL;
    free(c.bits);
    free(c.score);
    free(c.x);
    free(c.y);
    return;
end:
    w->failed = true;
    free(text);
    free(heat);
    free(c.bits);
    free(c.score);
    free(c.x);
    free(c.y);
}

/* Of a video: when each view's (first) frame is shown; in frames where the times are not known. */
static void put_times(struct iwp_json_out *w, const struct iwp_prompt_image *m) {
    const int32_t step = m->plan.temporal > 1 ? m->plan.temporal : 1;
    if (!m->frame_index) return;
    iwp_json_open_array(w, m->frame_time ? "seconds" : "frames");
    for (int32_t i = 0; i < m->n_frame; i += step)
        if (m->frame_time)
            iwp_json_put_ms(w, NULL, m->frame_time[i]);
        else
            iwp_json_put_int(w, NULL, m->frame_index[i]);
    iwp_json_close_array(w);
}

/* `grid` and `keep` of a picture are those of its finest grid; `views` holds all when it has several. */
static void put_image(struct iwp_json_out *w, const struct iwp_prompt_image *m,
                      const uint8_t *stays, const float *scores) {
    int32_t kept = 0;
    for (int32_t i = 0; i < m->n_visual; i++) kept += stays[m->first_visual + i];
    const int32_t n = iwp_pre_grid_count(&m->plan);
    iwp_json_open_object(w, NULL);
    iwp_json_put_int(w, "width", m->width);
    iwp_json_put_int(w, "height", m->height);
    iwp_json_put_int(w, "visual_in", m->n_visual);
    iwp_json_put_int(w, "visual_kept", kept);
    put_times(w, m);
    if (n > 0) put_grid(w, m, stays, scores, m->n_frame == 1 ? n - 1 : 0);
    if (n > 1) {
        iwp_json_open_array(w, "views");
        for (int32_t g = 0; g < n; g++) {
            iwp_json_open_object(w, NULL);
            put_grid(w, m, stays, scores, g);
            iwp_json_close_object(w);
        }
        iwp_json_close_array(w);
    }
    iwp_json_close_object(w);
}

static void put_images(struct iwp_json_out *w, const struct iwp_reply *r,
                       const struct iwp_session_stats *st) {
    uint8_t *stays = calloc((size_t)st->n_visual + 1, 1);
    if (!stays) {
        w->failed = true;
        return;
    }
    for (int32_t i = 0; i < st->n_kept; i++) stays[st->keep[i]] = 1;
    iwp_json_open_array(w, "images");
    for (int32_t i = 0; i < r->prompt->n_image; i++)
        put_image(w, &r->prompt->image[i], stays, st->scores);
    iwp_json_close_array(w);
    free(stays);
}

/* Visual tokens that every layer works on. */
static void put_layers(struct iwp_json_out *w, int32_t n_layer,
                       const struct iwp_session_stats *st) {
    iwp_json_open_array(w, "layer_tokens");
    for (int32_t l = 0; l < n_layer; l++) {
        int32_t n = st->n_visual;
        for (int32_t i = 0; i < st->n_stage; i++)
            if (l >= st->stage[i].layer) n = st->stage[i].visual_kept;
        iwp_json_put_int(w, NULL, n);
    }
    iwp_json_close_array(w);
}

void iwp_report_prune(struct iwp_json_out *w, const struct iwp_reply *r, enum iwp_report level) {
    const struct iwp_request_prune *p = &r->job->req.prune;
    /* Without pruning the object is there only for one who asks for tokens: a picture to compare with. */
    if (level == IWP_REPORT_NONE || (!p->on && level != IWP_REPORT_TOKENS)) return;
    const struct iwp_session_stats st = iwp_session_stats(r->session);
    const struct iwp_prompt_info *info = &r->job->info;
    iwp_json_open_object(w, "prune");
    iwp_json_put_string(w, "method", p->on ? iwp_method_info(p->params.method)->name : "none");
    if (st.n_stage > 0 && st.stage[0].layer >= 0)
        iwp_json_put_int(w, "layer", st.stage[0].layer);
    else
        iwp_json_put_null(w, "layer");
    iwp_json_put_int(w, "visual_in", st.n_visual);
    iwp_json_put_int(w, "visual_kept", st.n_kept);
    /* Visual tokens as if the same number had gone through every layer. */
    iwp_json_put_f64(w, "layer_average", st.layer_average);
    iwp_json_put_ms(w, "equivalent_tokens", st.layer_average * st.n_visual);
    iwp_json_put_ms(w, "encode_ms", info->ms_decode_image + info->ms_preprocess + info->ms_encode);
    iwp_json_put_ms(w, "select_ms", st.ms_select);
    iwp_json_put_f64(w, "prefill_flops", st.flops);
    iwp_json_put_f64(w, "prefill_flops_full", st.flops_full);
    iwp_json_put_int(w, "kv_bytes", (int64_t)st.kv_bytes);
    iwp_json_put_int(w, "kv_bytes_full", (int64_t)st.kv_bytes_full);
    iwp_json_open_array(w, "stages");
    for (int32_t i = 0; i < st.n_stage; i++) {
        iwp_json_open_object(w, NULL);
        if (st.stage[i].layer >= 0)
            iwp_json_put_int(w, "layer", st.stage[i].layer);
        else
            iwp_json_put_null(w, "layer");
        if (st.stage[i].block >= 0) iwp_json_put_int(w, "block", st.stage[i].block);
        iwp_json_put_int(w, "visual_kept", st.stage[i].visual_kept);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    put_layers(w, r->job->server->info.n_layer, &st);
    if (r->job->inspect[0]) {
        char path[64];
        snprintf(path, sizeof path, "/inspect/%s", r->job->inspect);
        iwp_json_put_string(w, "inspect", path);
    }
    if (level == IWP_REPORT_TOKENS) put_images(w, r, &st);
    iwp_json_close_object(w);
}
