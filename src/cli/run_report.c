/* What a run tells: the JSON document of CONTRACT section 3, the summary, pictures of what was
 * kept. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/run.h"
#include "model/prompt.h"
#include "view/overlay.h"
#include "view/sheet.h"

static double decode_rate(const struct iwp_run_result *r) {
    return r->answer.n_token > 1 && r->answer.ms_decode > 0
               ? (r->answer.n_token - 1) * 1e3 / r->answer.ms_decode
               : 0;
}

/* The fraction that was asked for, or what the count amounts to. */
static double keep_ratio(const struct iwp_run_job *j, const struct iwp_session_stats *st) {
    if (j->prune.budget.n_keep > 0 && st->n_visual > 0)
        return (double)j->prune.budget.n_keep / st->n_visual;
    return j->prune.budget.keep;
}

static void put_options(struct iwp_json_out *w, const struct iwp_run_job *j) {
    const struct iwp_option *o = iwp_method_info(j->prune.method)->options;
    iwp_json_open_object(w, "options");
    for (; o && o->name; o++) {
        char text[64];
        iwp_params_print(&j->prune, o, text, sizeof text);
        double v;
        if (o->type == IWP_OPTION_BOOL)
            iwp_json_put_bool(w, o->name, strcmp(text, "0") != 0);
        else if (o->type != IWP_OPTION_ENUM && iwp_parse_real(text, &v))
            iwp_json_put_f64(w, o->name, v);
        else
            iwp_json_put_string(w, o->name, text);
    }
    if (j->positions != IWP_POSITIONS_DEFAULT)
        iwp_json_put_string(w, "positions",
                            j->positions == IWP_POSITIONS_COMPACT ? "compact" : "original");
    iwp_json_close_object(w);
}

static void put_prune(struct iwp_json_out *w, const struct iwp_run_job *j,
                      const struct iwp_session_stats *st) {
    if (!j->use_prune) {
        iwp_json_put_null(w, "prune");
        return;
    }
    iwp_json_open_object(w, "prune");
    iwp_json_put_string(w, "method", iwp_method_info(j->prune.method)->name);
    if (st->n_stage > 0 && st->stage[0].layer >= 0)
        iwp_json_put_int(w, "layer", st->stage[0].layer);
    else
        iwp_json_put_null(w, "layer");
    iwp_json_put_f64(w, "keep", keep_ratio(j, st));
    iwp_json_open_array(w, "keep_indices");
    for (int32_t i = 0; i < st->n_kept; i++) iwp_json_put_int(w, NULL, st->keep[i]);
    iwp_json_close_array(w);
    iwp_json_put_f64(w, "layer_average", st->layer_average);
    iwp_json_put_f64(w, "prefill_flops", st->flops);
    iwp_json_put_f64(w, "prefill_flops_full", st->flops_full);
    put_options(w, j);
    if (st->n_stage > 1) {
        iwp_json_open_array(w, "stages");
        for (int32_t i = 0; i < st->n_stage; i++) {
            iwp_json_open_object(w, NULL);
            if (st->stage[i].layer >= 0)
                iwp_json_put_int(w, "layer", st->stage[i].layer);
            else
                iwp_json_put_null(w, "layer");
            if (st->stage[i].block >= 0) iwp_json_put_int(w, "block", st->stage[i].block);
            iwp_json_put_int(w, "visual_kept", st->stage[i].visual_kept);
            iwp_json_close_object(w);
        }
        iwp_json_close_array(w);
    }
    iwp_json_close_object(w);
}

/* A video's: which frames were taken, and when a film shows them. */
static void put_frames(struct iwp_json_out *w, const struct iwp_prompt_image *m) {
    if (!m->frame_index) return;
    iwp_json_open_array(w, "frames");
    for (int32_t i = 0; i < m->n_frame; i++) iwp_json_put_int(w, NULL, m->frame_index[i]);
    iwp_json_close_array(w);
    if (m->fps > 0) iwp_json_put_f64(w, "fps", m->fps);
    if (!m->frame_time) return;
    iwp_json_open_array(w, "seconds");
    for (int32_t i = 0; i < m->n_frame; i++) iwp_json_put_f64(w, NULL, m->frame_time[i]);
    iwp_json_close_array(w);
}

static void put_images(struct iwp_json_out *w, const struct iwp_prompt *p) {
    iwp_json_open_array(w, "images");
    for (int32_t i = 0; i < p->n_image; i++) {
        const struct iwp_prompt_image *m = &p->image[i];
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "file", m->file);
        iwp_json_put_int(w, "width", m->width);
        iwp_json_put_int(w, "height", m->height);
        iwp_json_open_array(w, "grids");
        for (int32_t g = 0; g < iwp_pre_grid_count(&m->plan); g++) {
            int32_t rows, cols;
            iwp_pre_grid(&m->plan, g, &rows, &cols);
            iwp_json_open_array(w, NULL);
            iwp_json_put_int(w, NULL, rows);
            iwp_json_put_int(w, NULL, cols);
            iwp_json_close_array(w);
        }
        iwp_json_close_array(w);
        iwp_json_put_int(w, "first_visual", m->first_visual);
        iwp_json_put_int(w, "n_visual", m->n_visual);
        put_frames(w, m);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
}

static int64_t peak_rss(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0;
}

int iwp_run_json(const struct iwp_run_job *j, const struct iwp_run_result *r, iwp_err *err) {
    const struct iwp_session_stats st = iwp_session_stats(j->s);
    const struct iwp_engine_info e = iwp_engine_info(j->e);
    const struct iwp_prompt *p = r->prompt;
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_bytes(&w, "answer", r->answer.text, r->answer.n_text);
    /* "stop" promises a whole answer; one that Ctrl-C cut off is none. */
    iwp_json_put_string(&w, "finish_reason",
                        r->answer.finish == IWP_FINISH_STOP ? "stop" : "length");
    if (r->answer.finish == IWP_FINISH_CANCELLED) iwp_json_put_bool(&w, "interrupted", true);
    iwp_json_open_object(&w, "model");
    iwp_json_put_string(&w, "name", e.name);
    iwp_json_put_string(&w, "arch", e.arch);
    iwp_json_put_string(&w, "file_type", e.file_type);
    iwp_json_put_int(&w, "n_params", e.n_params);
    iwp_json_put_int(&w, "n_layer", e.n_layer);
    iwp_json_close_object(&w);
    iwp_json_open_object(&w, "tokens");
    iwp_json_put_int(&w, "prompt", st.n_prompt);
    iwp_json_put_int(&w, "visual", st.n_visual);
    iwp_json_put_int(&w, "visual_kept", st.n_kept);
    iwp_json_put_int(&w, "generated", r->answer.n_token);
    iwp_json_close_object(&w);
    iwp_json_open_array(&w, "token_ids");
    for (int32_t i = 0; i < r->answer.n_token; i++) iwp_json_put_int(&w, NULL, r->answer.token[i]);
    iwp_json_close_array(&w);
    put_prune(&w, j, &st);
    put_images(&w, p);
    iwp_json_open_object(&w, "timing_ms");
    iwp_json_put_ms(&w, "load", j->ms_load);
    iwp_json_put_ms(&w, "decode_image", p->ms_decode_image);
    iwp_json_put_ms(&w, "preprocess", p->ms_preprocess);
    iwp_json_put_ms(&w, "encode", p->ms_encode);
    iwp_json_put_ms(&w, "prefill", st.ms_prefill);
    iwp_json_put_ms(&w, "select", st.ms_select);
    iwp_json_put_ms(&w, "ttft", r->ms_ttft);
    iwp_json_put_ms(&w, "decode", r->answer.ms_decode);
    iwp_json_put_ms(&w, "total", r->ms_total);
    iwp_json_close_object(&w);
    iwp_json_put_f64(&w, "decode_tokens_per_s", decode_rate(r));
    iwp_json_open_object(&w, "memory");
    iwp_json_put_int(&w, "kv_bytes", (int64_t)st.kv_bytes);
    iwp_json_put_int(&w, "kv_bytes_full", (int64_t)st.kv_bytes_full);
    iwp_json_put_int(&w, "weights_bytes", (int64_t)e.weight_bytes);
    iwp_json_put_int(&w, "peak_rss_bytes", peak_rss());
    iwp_json_close_object(&w);
    iwp_json_close_object(&w);
    int rc = iwp_json_write(&w, stdout, err);
    iwp_json_free(&w);
    return rc;
}

/* "L8,16,24 keep 35.3%: 576 -> 288 -> 144 -> 72 visual": a count for every stage of the decoder. */
static void put_stages(const struct iwp_session_stats *st, double keep, char *to, size_t cap) {
    size_t at = 0;
    const char *mark = " L";
    for (int32_t i = 0; i < st->n_stage && at < cap; i++) {
        if (st->stage[i].layer < 0) continue;
        at += (size_t)snprintf(to + at, cap - at, "%s%d", mark, st->stage[i].layer);
        mark = ",";
    }
    if (at < cap)
        at += (size_t)snprintf(to + at, cap - at, " keep %.1f%%: %d", 100 * keep, st->n_visual);
    for (int32_t i = 0; i < st->n_stage && at < cap; i++)
        if (st->stage[i].layer >= 0)
            at += (size_t)snprintf(to + at, cap - at, " -> %d", st->stage[i].visual_kept);
    if (at < cap && (st->n_stage == 0 || st->stage[0].layer < 0))
        snprintf(to + at, cap - at, " -> %d", st->n_kept);
}

/* Parts of the summary go on a line while it has no more than 80 columns. */
struct summary {
    char line[2400];
    size_t n;
};

static void put_line(struct summary *s) {
    if (s->n > 0) iwp_log(IWP_LOG_INFO, "%s", s->line);
    s->n = 0;
}

static void put_part(struct summary *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put_part(struct summary *s, const char *fmt, ...) {
    char part[2300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(part, sizeof part, fmt, ap);
    va_end(ap);
    if (s->n + 3 + strlen(part) > 80) put_line(s);
    s->n +=
        (size_t)snprintf(s->line + s->n, sizeof s->line - s->n, "%s%s", s->n ? " | " : "", part);
}

void iwp_run_summary(const struct iwp_run_job *j, const struct iwp_run_result *r) {
    const struct iwp_session_stats st = iwp_session_stats(j->s);
    struct summary s = {.n = 0};
    if (!j->use_prune) {
        put_part(&s, "prompt %d tokens, %d visual", st.n_prompt, st.n_visual);
    } else {
        char stages[2000];
        put_stages(&st, keep_ratio(j, &st), stages, sizeof stages);
        put_part(&s, "prune %s%s visual", iwp_method_info(j->prune.method)->name, stages);
        put_part(&s, "layer average %.1f%%", 100 * st.layer_average);
        put_part(&s, "prefill %.3g of %.3g GFLOP", st.flops / 1e9, st.flops_full / 1e9);
    }
    put_part(&s, "KV %.2f of %.2f MB", (double)st.kv_bytes / 1e6, (double)st.kv_bytes_full / 1e6);
    put_line(&s);
    put_part(&s, "encode %.0f ms", r->prompt->ms_encode);
    put_part(&s, "select %.1f ms", st.ms_select);
    put_part(&s, "prefill %.0f ms", st.ms_prefill);
    put_part(&s, "ttft %.0f ms", r->ms_ttft);
    if (decode_rate(r) > 0) put_part(&s, "decode %.1f t/s", decode_rate(r));
    put_line(&s);
}

/* ---- pictures ----------------------------------------------------------------------------------- */

/* The cells of the frames of a video, or of the grid of a picture that shows most detail: the last one
 * (AnyRes map), or the only one. */
struct cells {
    int32_t first, n; /* grids */
    int32_t rows, cols;
    uint8_t *kept; /* [n][rows][cols] */
    float *scores;
};

static int make_cells(const struct iwp_prompt_image *m, const struct iwp_session_stats *st,
                      struct cells *c, iwp_err *err) {
    const int32_t grids = iwp_pre_grid_count(&m->plan);
    const bool video = m->frame_index != NULL;
    c->first = video ? 0 : grids - 1;
    c->n = video ? grids : 1;
    iwp_pre_grid(&m->plan, c->first, &c->rows, &c->cols);
    const size_t area = (size_t)c->rows * (size_t)c->cols, n = (size_t)c->n * area;
    c->kept = calloc(n + 1, 1);
    c->scores = calloc(n + 1, sizeof *c->scores);
    uint8_t *stays = calloc((size_t)st->n_visual + 1, 1);
    if (!c->kept || !c->scores || !stays) {
        free(stays);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    for (int32_t i = 0; i < st->n_kept; i++) stays[st->keep[i]] = 1;
    for (int32_t i = 0; i < m->n_visual; i++) {
        const struct iwp_pre_row *row = &m->row[i];
        const int32_t g = row->grid - c->first;
        if (row->n == 0 || g < 0 || g >= c->n || row->y >= c->rows || row->x >= c->cols) continue;
        const size_t at = (size_t)g * area + (size_t)row->y * (size_t)c->cols + (size_t)row->x;
        c->kept[at] = stays[m->first_visual + i];
        if (st->scores) c->scores[at] = st->scores[m->first_visual + i];
    }
    free(stays);
    return 0;
}

/* What the grid covers of the drawn picture; frames of a video are kept smaller than they came. */
static void grid_view(const struct iwp_prompt_image *m, const struct cells *c,
                      const struct iwp_image *drawn, float view[4]) {
    iwp_pre_grid_box(&m->plan, c->first, view);
    for (int i = 0; i < 4 && drawn && drawn->rgb; i++)
        view[i] *= i & 1 ? (float)drawn->h / (float)m->plan.h : (float)drawn->w / (float)m->plan.w;
}

static struct iwp_sheet make_sheet(const struct iwp_prompt_image *m, const struct cells *c,
                                   bool scores) {
    struct iwp_sheet s = {.n = c->n,
                          .rows = c->rows,
                          .cols = c->cols,
                          .kept = c->kept,
                          .scores = scores ? c->scores : NULL,
                          .frame = scores ? NULL : m->frame,
                          .stride = m->plan.temporal > 1 ? m->plan.temporal : 1};
    grid_view(m, c, m->frame, s.view);
    return s;
}

/* Over the picture, or as a map of its own shaded by score; a video's frames as a contact sheet. */
static int draw_png(const struct iwp_prompt_image *m, const struct cells *c, bool scores,
                    const char *path, iwp_err *err) {
    if (m->frame_index) {
        const struct iwp_sheet s = make_sheet(m, c, scores);
        return iwp_sheet_write_png(&s, path, err);
    }
    struct iwp_overlay o = {.rows = c->rows,
                            .cols = c->cols,
                            .kept = c->kept,
                            .scores = scores ? c->scores : NULL,
                            .rgb = scores ? NULL : m->picture.rgb,
                            .width = m->picture.w,
                            .height = m->picture.h};
    grid_view(m, c, &m->picture, o.view);
    return iwp_overlay_write_png(&o, path, err);
}

static int draw_svg(const struct iwp_prompt_image *m, const struct cells *c, const char *path,
                    iwp_err *err) {
    struct iwp_output out;
    const struct iwp_sheet s = make_sheet(m, c, false);
    struct iwp_sheet_layout l;
    IWP_TRY(iwp_sheet_layout(&s, &l, err));
    if (c->n == 1) l = (struct iwp_sheet_layout){1, 1, 10, c->cols * 10, c->rows * 10};
    IWP_TRY(iwp_output_open(&out, path, err));
    fprintf(out.file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "shape-rendering=\"crispEdges\">\n<rect width=\"%d\" height=\"%d\" fill=\"#222\"/>\n",
            l.width, l.height, l.width, l.height);
    const uint8_t *kept = c->kept;
    for (int32_t i = 0; i < c->n; i++) {
        int32_t left = 0, top = 0;
        if (c->n > 1) iwp_sheet_place(&s, &l, i, &left, &top);
        for (int32_t y = 0; y < c->rows; y++)
            for (int32_t x = 0; x < c->cols; x++)
                if (*kept++)
                    fprintf(out.file,
                            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                            "fill=\"#f5b83d\"/>\n",
                            left + x * l.cell, top + y * l.cell, l.cell - 1, l.cell - 1);
    }
    fputs("</svg>\n", out.file);
    int rc = iwp_output_commit(&out, err);
    iwp_output_abort(&out);
    return rc;
}

static int dump_json(const struct iwp_run_job *j, const struct iwp_run_result *r, const char *path,
                     iwp_err *err) {
    const struct iwp_session_stats st = iwp_session_stats(j->s);
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_int(&w, "n_visual", st.n_visual);
    put_prune(&w, j, &st);
    if (st.scores) {
        iwp_json_open_array(&w, "scores");
        for (int32_t i = 0; i < st.n_visual; i++) iwp_json_put_f32(&w, NULL, st.scores[i]);
        iwp_json_close_array(&w);
    }
    put_images(&w, r->prompt);
    iwp_json_close_object(&w);
    struct iwp_output out;
    int rc = iwp_output_open(&out, path, err);
    if (rc >= 0) {
        rc = iwp_json_write(&w, out.file, err);
        if (rc >= 0) rc = iwp_output_commit(&out, err);
        iwp_output_abort(&out);
    }
    iwp_json_free(&w);
    return rc;
}

int iwp_run_draw(const struct iwp_run_job *j, const struct iwp_run_result *r, iwp_err *err) {
    const struct iwp_run_args *a = &j->args;
    const struct iwp_session_stats st = iwp_session_stats(j->s);
    const char *dot = a->prune_dump ? strrchr(a->prune_dump, '.') : NULL;
    if (dot && strcmp(dot, ".json") == 0) {
        IWP_TRY(dump_json(j, r, a->prune_dump, err));
        if (!a->overlay) return 0;
    }
    IWP_REQUIRE(r->prompt->n_image > 0, err, IWP_EINVAL,
                "--overlay: the prompt has no picture to draw on");
    const struct iwp_prompt_image *m = &r->prompt->image[0];
    struct cells c = {0};
    int rc = make_cells(m, &st, &c, err);
    if (rc >= 0 && a->overlay) rc = draw_png(m, &c, false, a->overlay, err);
    if (rc >= 0 && dot && strcmp(dot, ".png") == 0)
        rc = draw_png(m, &c, st.scores != NULL, a->prune_dump, err);
    if (rc >= 0 && dot && strcmp(dot, ".svg") == 0) rc = draw_svg(m, &c, a->prune_dump, err);
    free(c.kept);
    free(c.scores);
    return rc;
}
