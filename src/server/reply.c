/* The JSON documents of the server (interfaces 2.2). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "media/image.h"
#include "server/base64.h"
#include "server/state.h"

/* ---- errors ------------------------------------------------------------------------------------- */

void iwp_reply_error(struct iwp_json_out *w, int status, const char *message) {
    const char *type = status == 401                    ? "authentication_error"
                       : status == 403                  ? "permission_error"
                       : status == 404 || status == 405 ? "not_found_error"
                       : status == 429                  ? "rate_limit_error"
                       : status == 503                  ? "unavailable_error"
                       : status >= 500                  ? "server_error"
                                                        : "invalid_request_error";
    iwp_json_open_object(w, NULL);
    iwp_json_open_object(w, "error");
    iwp_json_put_int(w, "code", status);
    iwp_json_put_string(w, "message", message);
    iwp_json_put_string(w, "type", type);
    iwp_json_close_object(w);
    iwp_json_close_object(w);
}

int iwp_reply_status(int code) {
    switch (code) {
    case IWP_EINVAL:
    case IWP_EFORMAT:
    case IWP_ENOTSUP:
    case IWP_EMISSING: return 400; /* of a method, a picture, a template: what was asked for */
    case IWP_ECANCELLED: return 503;
    default: return 500;
    }
}

/* ---- the model ---------------------------------------------------------------------------------- */

void iwp_reply_models(struct iwp_json_out *w, const struct iwp_server *s) {
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "object", "list");
    iwp_json_open_array(w, "data");
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "id", s->name);
    iwp_json_put_string(w, "object", "model");
    iwp_json_put_int(w, "created", (int64_t)s->started);
    iwp_json_put_string(w, "owned_by", "iwp");
    iwp_json_open_object(w, "meta");
    iwp_json_put_string(w, "architecture", s->info.arch);
    iwp_json_put_string(w, "file_type", s->info.file_type);
    iwp_json_put_int(w, "n_params", s->info.n_params);
    iwp_json_put_int(w, "n_ctx_train", s->info.n_ctx_train);
    iwp_json_put_int(w, "n_embd", s->info.d_model);
    iwp_json_put_int(w, "n_layer", s->info.n_layer);
    iwp_json_put_int(w, "n_vocab", s->info.n_vocab);
    iwp_json_put_int(w, "size", (int64_t)s->info.weight_bytes);
    iwp_json_close_object(w);
    iwp_json_close_object(w);
    iwp_json_close_array(w);
    iwp_json_close_object(w);
}

static void put_option(struct iwp_json_out *w, const struct iwp_option *o) {
    static const char *const types[] = {"int", "real", "enum", "bool"};
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "name", o->name);
    iwp_json_put_string(w, "type", types[o->type]);
    iwp_json_put_string(w, "text", o->text);
    if (o->type == IWP_OPTION_INT || o->type == IWP_OPTION_REAL) {
        iwp_json_put_f64(w, "min", o->min);
        iwp_json_put_f64(w, "max", o->max);
    }
    if (o->type == IWP_OPTION_ENUM) {
        iwp_json_open_array(w, "choices");
        for (int i = 0; o->choices && o->choices[i]; i++)
            iwp_json_put_string(w, NULL, o->choices[i]);
        iwp_json_close_array(w);
        if (o->choices && !o->def_text) iwp_json_put_string(w, "default", o->choices[(int)o->def]);
    } else if (o->type == IWP_OPTION_BOOL && !o->def_text) {
        iwp_json_put_bool(w, "default", o->def != 0);
    } else if (!o->def_text) {
        iwp_json_put_f64(w, "default", o->def);
    }
    if (o->def_text) iwp_json_put_string(w, "default", o->def_text);
    iwp_json_close_object(w);
}

static void put_methods(struct iwp_json_out *w) {
    static const char *const sites[] = {"media", "tower", "embeddings", "layer"};
    iwp_json_open_array(w, "methods");
    for (int32_t i = 0; i < iwp_method_count(); i++) {
        const struct iwp_method_info *m = iwp_method_info(iwp_method_at(i));
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "name", m->name);
        iwp_json_put_string(w, "title", m->title);
        iwp_json_put_string(w, "ref", m->ref);
        iwp_json_put_string(w, "site", sites[m->site]);
        if (m->layer >= 0)
            iwp_json_put_int(w, "layer", m->layer);
        else
            iwp_json_put_null(w, "layer");
        iwp_json_open_array(w, "options");
        for (const struct iwp_option *o = m->options; o && o->name; o++) put_option(w, o);
        iwp_json_close_array(w);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
}

void iwp_reply_props(struct iwp_json_out *w, const struct iwp_server *s) {
    const struct iwp_request_defaults *d = &s->p.def;
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "model_alias", s->name);
    iwp_json_put_string(w, "build_info", s->p.build);
    iwp_json_put_int(w, "total_slots", s->p.n_parallel);
    iwp_json_open_object(w, "default_generation_settings");
    iwp_json_put_int(w, "n_ctx", s->p.session.n_ctx > 0 ? s->p.session.n_ctx : s->info.n_ctx_train);
    iwp_json_put_int(w, "n_predict", d->n_predict);
    iwp_json_put_f64(w, "temperature", d->sampler.temp);
    iwp_json_put_int(w, "top_k", d->sampler.top_k);
    iwp_json_put_f64(w, "top_p", d->sampler.top_p);
    iwp_json_put_f64(w, "min_p", d->sampler.min_p);
    iwp_json_close_object(w);
    iwp_json_open_object(w, "modalities");
    iwp_json_put_bool(w, "vision", s->info.has_vision);
    iwp_json_close_object(w);
    iwp_json_put_int(w, "n_layer", s->info.n_layer);
    iwp_json_open_object(w, "prune");
    if (d->prune.on) {
        iwp_json_open_object(w, "default");
        iwp_json_put_string(w, "method", iwp_method_info(d->prune.params.method)->name);
        if (d->prune.params.budget.n_keep > 0)
            iwp_json_put_int(w, "keep_tokens", d->prune.params.budget.n_keep);
        else
            iwp_json_put_f64(w, "keep", d->prune.params.budget.keep);
        if (d->prune.params.layer >= 0) iwp_json_put_int(w, "layer", d->prune.params.layer);
        iwp_json_close_object(w);
    } else {
        iwp_json_put_null(w, "default");
    }
    put_methods(w);
    iwp_json_close_object(w);
    iwp_json_close_object(w);
}

/* ---- answers ------------------------------------------------------------------------------------ */

static void put_head(struct iwp_json_out *w, const struct iwp_job *j, const char *object) {
    char id[64];
    const bool chat = j->kind != IWP_JOB_COMPLETION;
    snprintf(id, sizeof id, "%s-%s", chat ? "chatcmpl" : "cmpl", j->id);
    iwp_json_put_string(w, "id", id);
    iwp_json_put_string(w, "object", chat ? object : "text_completion");
    iwp_json_put_int(w, "created", (int64_t)j->created);
    iwp_json_put_string(w, "model", j->server->name);
    iwp_json_put_string(w, "system_fingerprint", j->server->p.build);
}

static void put_usage(struct iwp_json_out *w, const struct iwp_reply *r) {
    const struct iwp_session_stats st = iwp_session_stats(r->session);
    const int64_t n = r->job->info.n_token, m = r->job->n_generated;
    iwp_json_open_object(w, "usage");
    iwp_json_put_int(w, "prompt_tokens", n);
    iwp_json_put_int(w, "completion_tokens", m);
    iwp_json_put_int(w, "total_tokens", n + m);
    iwp_json_open_object(w, "prompt_tokens_details");
    iwp_json_put_int(w, "cached_tokens", st.n_reused);
    iwp_json_close_object(w);
    iwp_json_close_object(w);
}

static void put_rate(struct iwp_json_out *w, const char *what, int64_t n, double ms) {
    char key[40];
    snprintf(key, sizeof key, "%s_n", what);
    iwp_json_put_int(w, key, n);
    snprintf(key, sizeof key, "%s_ms", what);
    iwp_json_put_ms(w, key, ms);
    snprintf(key, sizeof key, "%s_per_token_ms", what);
    iwp_json_put_ms(w, key, n > 0 ? ms / (double)n : 0);
    snprintf(key, sizeof key, "%s_per_second", what);
    iwp_json_put_ms(w, key, ms > 0 ? (double)n * 1e3 / ms : 0);
}

/* prompt_n is the pruned length: what went through the upper layers. */
static void put_timings(struct iwp_json_out *w, const struct iwp_reply *r) {
    const struct iwp_job *j = r->job;
    const struct iwp_session_stats st = iwp_session_stats(r->session);
    const double encode = j->info.ms_decode_image + j->info.ms_preprocess + j->info.ms_encode;
    const double decode = j->t_first > 0 ? j->t_last - j->t_first : 0;
    iwp_json_open_object(w, "timings");
    iwp_json_put_int(w, "cache_n", st.n_reused);
    put_rate(w, "prompt", st.n_prompt - st.n_visual + st.n_kept, encode + st.ms_prefill);
    put_rate(w, "predicted", j->n_generated, decode);
    iwp_json_put_ms(w, "encode_ms", encode);
    iwp_json_put_ms(w, "prefill_ms", st.ms_prefill);
    iwp_json_put_ms(w, "select_ms", st.ms_select);
    iwp_json_put_ms(w, "queue_ms", j->t_start - j->t_arrive);
    iwp_json_put_ms(w, "time_to_first_token_ms", j->t_first > 0 ? j->t_first - j->t_arrive : 0);
    iwp_json_close_object(w);
}

static void put_finish(struct iwp_json_out *w, enum iwp_finish f) {
    iwp_json_put_string(w, "finish_reason", f == IWP_FINISH_LENGTH ? "length" : "stop");
}

/* Entries gathered so far, as the object the API wants; the job starts a new list. */
static void put_logprobs(struct iwp_json_out *w, struct iwp_job *j) {
    if (j->req.top_logprobs < 0) return;
    iwp_json_open_object(w, "logprobs");
    if (j->logprobs.len > 0) {
        iwp_json_close_array(&j->logprobs);
        if (j->logprobs.failed) w->failed = true;
        if (!w->failed) iwp_json_put_raw(w, "content", j->logprobs.text);
        iwp_json_free(&j->logprobs);
    } else {
        iwp_json_put_raw(w, "content", "[]");
    }
    iwp_json_close_object(w);
}

void iwp_reply_completion(struct iwp_json_out *w, const struct iwp_reply *r) {
    const struct iwp_job *j = r->job;
    iwp_json_open_object(w, NULL);
    put_head(w, j, "chat.completion");
    iwp_json_open_array(w, "choices");
    iwp_json_open_object(w, NULL);
    iwp_json_put_int(w, "index", 0);
    const char *text = j->writer.text ? j->writer.text : "";
    if (j->kind == IWP_JOB_COMPLETION) {
        iwp_json_put_bytes(w, "text", text, j->writer.n);
    } else {
        iwp_json_open_object(w, "message");
        iwp_json_put_string(w, "role", "assistant");
        iwp_json_put_bytes(w, "content", text, j->writer.n);
        iwp_json_close_object(w);
    }
    put_logprobs(w, (struct iwp_job *)j);
    put_finish(w, r->finish);
    iwp_json_close_object(w);
    iwp_json_close_array(w);
    put_usage(w, r);
    put_timings(w, r);
    iwp_report_prune(w, r, r->job->req.prune.report);
    iwp_json_close_object(w);
}

void iwp_reply_delta(struct iwp_json_out *w, struct iwp_job *j, const char *text, size_t n,
                     bool role) {
    iwp_json_open_object(w, NULL);
    put_head(w, j, "chat.completion.chunk");
    iwp_json_open_array(w, "choices");
    iwp_json_open_object(w, NULL);
    iwp_json_put_int(w, "index", 0);
    if (j->kind == IWP_JOB_COMPLETION) {
        iwp_json_put_bytes(w, "text", text, n);
    } else {
        iwp_json_open_object(w, "delta");
        if (role) iwp_json_put_string(w, "role", "assistant");
        iwp_json_put_bytes(w, "content", text, n);
        iwp_json_close_object(w);
    }
    if (!role) put_logprobs(w, j);
    iwp_json_put_null(w, "finish_reason");
    iwp_json_close_object(w);
    iwp_json_close_array(w);
    iwp_json_close_object(w);
}

void iwp_reply_last(struct iwp_json_out *w, const struct iwp_reply *r) {
    iwp_json_open_object(w, NULL);
    put_head(w, r->job, "chat.completion.chunk");
    iwp_json_open_array(w, "choices");
    iwp_json_open_object(w, NULL);
    iwp_json_put_int(w, "index", 0);
    if (r->job->kind == IWP_JOB_COMPLETION) {
        iwp_json_put_string(w, "text", "");
    } else {
        iwp_json_open_object(w, "delta");
        iwp_json_close_object(w);
    }
    put_finish(w, r->finish);
    iwp_json_close_object(w);
    iwp_json_close_array(w);
    if (!r->job->req.include_usage) {
        put_timings(w, r);
        iwp_report_prune(w, r, r->job->req.prune.report);
    }
    iwp_json_close_object(w);
}

void iwp_reply_usage(struct iwp_json_out *w, const struct iwp_reply *r) {
    iwp_json_open_object(w, NULL);
    put_head(w, r->job, "chat.completion.chunk");
    iwp_json_open_array(w, "choices");
    iwp_json_close_array(w);
    put_usage(w, r);
    put_timings(w, r);
    iwp_report_prune(w, r, r->job->req.prune.report);
    iwp_json_close_object(w);
}

/* ---- for the page ------------------------------------------------------------------------------- */

static void put_picture(struct iwp_json_out *w, const struct iwp_job *j) {
    static const char *const types[][2] = {
        {"JPEG", "jpeg"}, {"PNG", "png"}, {"WebP", "webp"}, {"GIF", "gif"}};
    const char *format = j->picture ? iwp_image_format(j->picture, j->n_picture) : NULL;
    char *code = format ? iwp_base64_encode(j->picture, j->n_picture) : NULL, *url = NULL;
    for (size_t i = 0; code && i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i][0], format) != 0) continue;
        const size_t n = strlen(code) + 40;
        url = malloc(n);
        if (url) snprintf(url, n, "data:image/%s;base64,%s", types[i][1], code);
    }
    iwp_json_put_string(w, "image", url);
    free(code);
    free(url);
}

void iwp_reply_inspect(struct iwp_json_out *w, const struct iwp_reply *r) {
    const struct iwp_job *j = r->job;
    const char *question = NULL;
    for (int32_t i = 0; i < j->req.n_part; i++)
        if (j->req.part[i].kind == IWP_PART_TEXT) question = j->req.part[i].text;
    iwp_json_open_object(w, NULL);
    put_head(w, j, "inspection");
    iwp_json_put_string(w, "question", question);
    iwp_json_put_bytes(w, "answer", j->writer.text ? j->writer.text : "", j->writer.n);
    put_finish(w, r->finish);
    put_usage(w, r);
    put_timings(w, r);
    iwp_report_prune(w, r, IWP_REPORT_TOKENS);
    put_picture(w, j);
    iwp_json_close_object(w);
}

void iwp_reply_slots(struct iwp_json_out *w, const struct iwp_server *s) {
    const int32_t n_ctx = s->p.session.n_ctx > 0 ? s->p.session.n_ctx : s->info.n_ctx_train;
    iwp_json_open_array(w, NULL);
    for (int32_t i = 0; i < s->p.n_parallel; i++) {
        const struct iwp_slot_view *v = &s->slot[i];
        const bool busy = v->job[0] != 0;
        iwp_json_open_object(w, NULL);
        iwp_json_put_int(w, "id", i);
        iwp_json_put_int(w, "n_ctx", n_ctx);
        iwp_json_put_bool(w, "is_processing", busy);
        iwp_json_put_string(w, "state", v->phase ? v->phase : "idle");
        iwp_json_put_string(w, "id_task", busy ? v->job : NULL);
        iwp_json_put_int(w, "n_prompt", v->n_prompt);
        iwp_json_put_int(w, "n_decoded", v->n_decoded);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
}

/* ---- probabilities ------------------------------------------------------------------------------ */

static void put_token(struct iwp_json_out *w, const iwp_engine *e, int32_t id, double logprob) {
    char piece[512];
    int n = iwp_engine_token_text(e, id, piece, sizeof piece);
    if (n < 0) n = 0;
    if (iwp_utf8_valid(piece, (size_t)n))
        iwp_json_put_bytes(w, "token", piece, (size_t)n);
    else
        iwp_json_put_string(w, "token", "\xef\xbf\xbd");
    iwp_json_put_f64(w, "logprob", logprob);
    iwp_json_open_array(w, "bytes");
    for (int i = 0; i < n; i++) iwp_json_put_int(w, NULL, (unsigned char)piece[i]);
    iwp_json_close_array(w);
}

void iwp_reply_logprob(struct iwp_job *j, const iwp_engine *e, const float *logits, int32_t n_vocab,
                       int32_t id) {
    enum { MOST = 20 };
    int32_t top[MOST], n = 0, want = j->req.top_logprobs;
    if (want < 0) return;
    if (want > MOST) want = MOST;
    float most = logits[0];
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > most) most = logits[i];
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        sum += exp((double)(logits[i] - most));
        if (want == 0 || (n == want && !(logits[i] > logits[top[n - 1]]))) continue;
        int32_t at = n < want ? n++ : n - 1;
        for (; at > 0 && logits[i] > logits[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = i;
    }
    const double norm = (double)most + log(sum);
    struct iwp_json_out *w = &j->logprobs;
    if (w->len == 0) {
        iwp_json_init(w, false);
        iwp_json_open_array(w, NULL);
    }
    iwp_json_open_object(w, NULL);
    put_token(w, e, id, (double)logits[id] - norm);
    iwp_json_open_array(w, "top_logprobs");
    for (int32_t i = 0; i < n; i++) {
        iwp_json_open_object(w, NULL);
        put_token(w, e, top[i], (double)logits[top[i]] - norm);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    iwp_json_close_object(w);
}
