/* One answer: see answer.h. */
#include "eval/answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "eval/base64.h"
#include "eval/gallery.h"
#include "model/prompter.h"
#include "model/session.h"
#include "view/thumb.h"

void iwp_eval_answer_free(struct iwp_eval_answer *a) {
    iwp_answer_free(&a->text);
    free(a->keep_bits);
    a->keep_bits = NULL;
}

static double log_prob(const float *logits, int32_t n, int32_t id) {
    double max = logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > max) max = logits[i];
    for (int32_t i = 0; i < n; i++) sum += exp(logits[i] - max);
    return logits[id] - max - log(sum);
}

/* Mean over the references of the mean negative log-likelihood of their tokens. */
static int run_nll(iwp_session *s, const struct iwp_eval_sample *q, float *logits,
                   struct iwp_eval_answer *out, iwp_err *err) {
    const int32_t nv = iwp_engine_info(s->e).n_vocab;
    const iwp_vocab *v = s->e->prompter->vocab;
    double total = 0;
    memcpy(logits, iwp_session_logits(s), (size_t)nv * sizeof *logits);
    for (int32_t i = 0; i < q->n_answer; i++) {
        struct iwp_ids ids = {0};
        char *text = NULL;
        size_t n;
        double sum = 0;
        int rc = iwp_vocab_normalise(v, q->answers[i], strlen(q->answers[i]), &text, &n, err);
        if (rc >= 0) rc = iwp_vocab_tokenise(v, text, n, false, false, &ids, err);
        if (rc >= 0 && ids.n == 0)
            rc = iwp_err_set(err, IWP_EINVAL, "reference %d has no tokens", i + 1);
        if (rc >= 0) sum = -log_prob(logits, nv, ids.id[0]);
        for (int32_t k = 1; k < ids.n && rc >= 0; k++) {
            rc = iwp_session_feed(s, ids.id[k - 1], err);
            if (rc >= 0) sum -= log_prob(iwp_session_logits(s), nv, ids.id[k]);
        }
        if (rc >= 0 && ids.n > 1) rc = iwp_session_forget(s, 0, err);
        if (rc >= 0) total += sum / ids.n;
        iwp_ids_free(&ids);
        free(text);
        IWP_TRY(rc);
    }
    IWP_REQUIRE(isfinite(total), err, IWP_EFORMAT, "the likelihood of a reference is not a number");
    out->score.score = total / q->n_answer;
    return 0;
}

static char *make_bits(const int32_t *keep, int32_t n_keep, int32_t n) {
    const size_t bytes = ((size_t)n + 7) / 8;
    uint8_t *b = calloc(bytes + 1, 1);
    for (int32_t i = 0; b && i < n_keep; i++) b[keep[i] / 8] |= (uint8_t)(1u << (keep[i] % 8));
    char *out = b ? iwp_eval_base64(b, bytes) : NULL;
    free(b);
    return out;
}

int iwp_eval_answer_make(iwp_session *s, const struct iwp_eval_sample *q, enum iwp_profile profile,
                         float *logits, struct iwp_eval_answer *out, iwp_err *err) {
    out->st = iwp_session_stats(s);
    out->keep_hash = iwp_keep_hash(out->st.keep, out->st.n_kept);
    out->keep_bits = make_bits(out->st.keep, out->st.n_kept, out->st.n_visual);
    IWP_REQUIRE(out->keep_bits, err, IWP_ENOMEM, "out of memory");
    if (q->nll) return run_nll(s, q, logits, out, err);
    const struct iwp_generate_params p = {.n_predict = q->max_new_tokens};
    IWP_TRY(iwp_session_generate(s, &p, &out->text, err));
    out->first = out->text.ms_first;
    out->decode = out->text.ms_decode;
    const struct iwp_score_input in = {out->text.text, q->answers,  q->n_answer,
                                       q->choices,     q->n_choice, profile};
    return iwp_scorer_run(q->scorer, &in, &out->score, err);
}

/* ---- lines ----------------------------------------------------------------------------------------- */

static void put_hash(struct iwp_json_out *w, const char *key, uint64_t h) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)h);
    iwp_json_put_string(w, key, text);
}

static uint64_t text_hash(const char *s) { return iwp_fnv64(IWP_FNV64_INIT, s, strlen(s)); }

/* One text in `depth` arrays, as lmms-eval has it. */
static void put_nested(struct iwp_json_out *w, const char *key, const char *text, int depth) {
    for (int i = 0; i < depth; i++) iwp_json_open_array(w, i ? NULL : key);
    iwp_json_put_string(w, NULL, text);
    for (int i = 0; i < depth; i++) iwp_json_close_array(w);
}

static void put_question(struct iwp_json_out *w, const struct iwp_eval_sample *q) {
    iwp_json_put_int(w, "doc_id", q->doc);
    iwp_json_put_string(w, "id", q->id);
    if (q->category) iwp_json_put_string(w, "category", q->category);
    if (q->group) iwp_json_put_string(w, "group", q->group);
    iwp_json_put_string(w, "medium", q->media[0]);
    iwp_json_open_array(w, "media_sha256");
    for (int32_t i = 0; i < q->n_sha; i++)
        iwp_json_put_string(w, NULL, q->sha[i][0] ? q->sha[i] : NULL);
    iwp_json_close_array(w);
    iwp_json_put_string(w, "target", q->answers[0]);
    iwp_json_put_string(w, "input", q->prompt);
}

static void put_answer(struct iwp_json_out *w, const struct iwp_eval_answer *a,
                       const struct iwp_eval_sample *q, const iwp_err *failed) {
    const char *text = a->text.text ? a->text.text : "";
    put_nested(w, "resps", text, 2);
    put_nested(w, "filtered_resps", text, 1);
    put_hash(w, "doc_hash", text_hash(q->id));
    put_hash(w, "prompt_hash", text_hash(q->prompt));
    put_hash(w, "target_hash", text_hash(q->answers[0]));
    iwp_json_put_string(w, "answer", text);
    iwp_json_put_f64(w, "score", failed ? 0 : a->score.score);
    if (a->score.label[0]) iwp_json_put_string(w, "label", a->score.label);
    if (failed) {
        iwp_json_put_string(w, "error", failed->msg);
        return;
    }
    if (a->score.unparsed) {
        iwp_json_put_bool(w, "unparsed", true);
        iwp_json_put_f64(w, "chance", a->score.chance);
    }
    iwp_json_put_int(w, "tokens", a->text.n_token);
    iwp_json_put_int(w, "visual", a->visual);
    iwp_json_put_int(w, "kept", a->st.n_kept);
    put_hash(w, "keep_hash", a->keep_hash);
    iwp_json_put_string(w, "keep_bits", a->keep_bits);
}

static int write_sample(const struct iwp_eval_answer *a, const struct iwp_eval_sample *q,
                        const char *path, const iwp_err *failed, iwp_err *err) {
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_json_open_object(&w, NULL);
    put_question(&w, q);
    put_answer(&w, a, q, failed);
    iwp_json_close_object(&w);
    return iwp_eval_lines_append_json(path, &w, err);
}

int iwp_eval_answer_write(const struct iwp_eval_answer *a, const struct iwp_eval_sample *q,
                          const char *dir, const char *config, const char *task,
                          const iwp_err *failed, iwp_err *err) {
    char path[4096], line[512], stages[32 * IWP_STAGE_MAX], whole[sizeof line + sizeof stages + 32];
    size_t at = 0;
    /* Times first: a sample that is there has its times too, whatever ends the program. */
    snprintf(line, sizeof line,
             "{\"doc_id\":%d,\"encode\":%.3f,\"select\":%.3f,\"prefill\":%.3f,"
             "\"ttft\":%.3f,\"decode\":%.3f,\"tokens\":%d,\"kv_bytes\":%zu,"
             "\"kv_bytes_full\":%zu,\"flops\":%.6g,\"flops_full\":%.6g,"
             "\"layer_average\":%.6g,\"visual\":%d",
             q->doc, a->media, a->st.ms_select, a->prefill, a->media + a->prefill + a->first,
             a->decode, a->text.n_token, a->st.kv_bytes, a->st.kv_bytes_full, a->st.flops,
             a->st.flops_full, a->st.layer_average, a->st.n_visual);
    stages[0] = 0;
    for (int32_t i = 0; i < a->st.n_stage; i++) /* cuts inside the decoder */
        if (a->st.stage[i].layer >= 0)
            at += (size_t)snprintf(stages + at, sizeof stages - at, "%s[%d,%d]", at ? "," : "",
                                   a->st.stage[i].layer, a->st.stage[i].visual_kept);
    const int n = snprintf(whole, sizeof whole, "%s,\"stages\":[%s]}\n", line, stages);
    if (!failed) {
        IWP_TRY(iwp_eval_lines_path(path, sizeof path, dir, config, "timings", task, err));
        IWP_TRY(iwp_eval_lines_append(path, whole, (size_t)n, err));
    }
    IWP_TRY(iwp_eval_lines_path(path, sizeof path, dir, config, "samples", task, err));
    return write_sample(a, q, path, failed, err);
}

/* ---- pictures -------------------------------------------------------------------------------------- */

static void put_cells(struct iwp_json_out *w, const struct iwp_prompt_image *m, int32_t width,
                      int32_t height) {
    /* Of a picture in tiles, the finest map; of a film, the first frame. */
    const int32_t grids = iwp_pre_grid_count(&m->plan);
    const int32_t grid = m->n_frame == 1 && grids > 1 ? grids - 1 : 0;
    const double sx = (double)width / m->picture.w, sy = (double)height / m->picture.h;
    iwp_json_open_array(w, "cells");
    for (int32_t i = 0; i < m->n_visual; i++) {
        float box[4];
        if (m->row[i].n == 0 || m->row[i].grid != grid) continue;
        iwp_pre_row_box(&m->plan, &m->row[i], box);
        const int32_t at[5] = {m->first_visual + i, (int32_t)((double)box[0] * sx + 0.5),
                               (int32_t)((double)box[1] * sy + 0.5),
                               (int32_t)((double)box[2] * sx + 0.5),
                               (int32_t)((double)box[3] * sy + 0.5)};
        for (int k = 0; k < 5; k++) iwp_json_put_int(w, NULL, at[k]);
    }
    iwp_json_close_array(w);
}

int iwp_eval_picture_write(const iwp_prompt *p, const struct iwp_eval_sample *q, const char *dir,
                           const char *task, iwp_err *err) {
    char path[4096];
    uint8_t *webp;
    size_t n;
    int32_t width, height;
    if (p->n_image == 0 || !p->image[0].picture.rgb) return 0;
    IWP_TRY(iwp_gallery_path(path, sizeof path, dir, task, err));
    IWP_TRY(iwp_thumb_webp(&p->image[0].picture, 320, &webp, &n, &width, &height, err));
    char *text = iwp_eval_base64(webp, n);
    free(webp);
    IWP_REQUIRE(text, err, IWP_ENOMEM, "out of memory");
    struct iwp_json_out w;
    iwp_json_init(&w, false);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_int(&w, "doc_id", q->doc);
    iwp_json_put_string(&w, "question",
                        cJSON_GetObjectItemCaseSensitive(q->row, "question")->valuestring);
    iwp_json_put_int(&w, "visual", p->n_visual);
    iwp_json_put_int(&w, "width", width);
    iwp_json_put_int(&w, "height", height);
    iwp_json_put_string(&w, "webp", text);
    put_cells(&w, &p->image[0], width, height);
    iwp_json_close_object(&w);
    free(text);
    return iwp_eval_lines_append_json(path, &w, err);
}
