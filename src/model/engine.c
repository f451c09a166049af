/* A loaded model: decoder, vocabulary, vision tower.  See iwp/engine.h. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "model/prompter.h"
#include "model/session.h"

struct iwp_engine_params iwp_engine_default_params(void) {
    return (struct iwp_engine_params){.n_gpu = -1};
}

/* The two files must belong together: the projector's rows enter the decoder. */
static int open_files(const struct iwp_engine_params *p, struct iwp_gguf **model,
                      struct iwp_gguf **mmproj, iwp_err *err) {
    IWP_REQUIRE(p->model && *p->model, err, IWP_EINVAL, "no model file given (-m FILE)");
    IWP_TRY(iwp_gguf_open(model, p->model, err));
    const char *arch;
    int rc = iwp_gguf_get_str(*model, "general.architecture", &arch, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "%.200s", p->model);
    IWP_REQUIRE(strcmp(arch, "clip") != 0, err, IWP_EINVAL,
                "%.200s: this is a vision tower, it belongs to -mm; -m wants the language model",
                p->model);
    if (!p->mmproj || !*p->mmproj) return 0;
    IWP_TRY(iwp_gguf_open(mmproj, p->mmproj, err));
    rc = iwp_gguf_get_str(*mmproj, "general.architecture", &arch, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "%.200s", p->mmproj);
    IWP_REQUIRE(strcmp(arch, "clip") == 0, err, IWP_EINVAL,
                "%.200s: architecture '%.30s' is no vision tower; -mm wants the mmproj file",
                p->mmproj, arch);
    return 0;
}

int iwp_engine_open(iwp_engine **out, const struct iwp_engine_params *p, iwp_err *err) {
    *out = NULL;
    struct iwp_gguf *model = NULL, *mmproj = NULL;
    int rc = 0;
    struct iwp_engine *e = calloc(1, sizeof *e);
    IWP_REQUIRE(e, err, IWP_ENOMEM, "out of memory");
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->prompt_lock, NULL);
    IWP_TRY_GOTO(open_files(p, &model, &mmproj, err));
    const struct iwp_backend_params bp = {.n_thread = p->n_thread,
                                          .n_gpu = p->n_gpu,
                                          .rpc = p->rpc,
                                          .plain_weights = p->plain_weights,
                                          .rows_in_file = p->embeddings_in_file};
    IWP_TRY_GOTO(iwp_backend_new(&e->b, &bp, err));
    iwp_backend_set_cancel(e->b, p->cancel, p->cancel_ctx);
    rc = iwp_decoder_load(&e->d, e->b, model, err);
    if (rc < 0) {
        rc = iwp_err_prefix(err, rc, "%.200s", p->model);
        goto fail;
    }
    IWP_TRY_GOTO(iwp_sched_new(&e->sched, e->b, iwp_runner_max_nodes(&e->d, 0), err));
    if (!p->no_text) {
        const struct iwp_prompter_params pp = {.backend = e->b,
                                               .model = model,
                                               .mmproj = mmproj,
                                               .chat_template = p->chat_template,
                                               .cache_bytes = p->cache_bytes};
        IWP_TRY_GOTO(iwp_prompter_new(&e->prompter, &pp, err));
    }
    e->has_vision = mmproj != NULL;
    iwp_gguf_free(model);
    iwp_gguf_free(mmproj);
    *out = e;
    return 0;
fail:
    iwp_gguf_free(model);
    iwp_gguf_free(mmproj);
    iwp_engine_close(e);
    return rc;
}

void iwp_engine_close(iwp_engine *e) {
    if (!e) return;
    iwp_prompter_free(e->prompter);
    iwp_sched_free(e->sched);
    iwp_engine_free_lanes(e);
    iwp_decoder_free(&e->d);
    iwp_backend_free(e->b);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->prompt_lock);
    free(e);
}

struct iwp_engine_info iwp_engine_info(const iwp_engine *e) {
    const struct iwp_decoder *d = &e->d;
    return (struct iwp_engine_info){
        .name = d->name,
        .arch = d->arch,
        .file_type = d->file_type,
        .n_params = d->n_params,
        .n_layer = d->n_layer,
        .d_model = d->d_model,
        .n_head = d->n_head,
        .n_head_kv = d->n_head_kv,
        .d_head = d->d_head,
        .n_vocab = d->n_vocab,
        .n_ctx_train = d->n_ctx_train,
        .n_thread = e->b->n_thread,
        .has_vision = e->has_vision,
        .weight_bytes = iwp_weights_bytes(d->weights) +
                        (e->prompter ? iwp_prompter_weight_bytes(e->prompter) : 0),
    };
}

int iwp_engine_token_text(const iwp_engine *e, int32_t id, char *buf, int cap) {
    return e->prompter ? iwp_prompter_piece(e->prompter, id, buf, cap) : 0;
}

bool iwp_engine_token_is_end(const iwp_engine *e, int32_t id) {
    return e->prompter && iwp_prompter_is_end(e->prompter, id);
}

void iwp_engine_set_cancel(iwp_engine *e, bool (*cancel)(void *ctx), void *ctx) {
    iwp_backend_set_cancel(e->b, cancel, ctx);
}

/* ---- prompts ------------------------------------------------------------------------------------ */

void iwp_prompt_request_for(struct iwp_prompt_request *r, const struct iwp_params *prune) {
    r->resize_keep = 0;
    r->resize_tokens = 0;
    r->tap_features = r->tap_qk = r->in_tower = false;
    r->tap_block = -1;
    if (!prune) return;
    const struct iwp_method_info *m = iwp_method_info(prune->method);
    if (m->site == IWP_SITE_MEDIA) {
        r->resize_keep = prune->budget.keep;
        r->resize_tokens = prune->budget.n_keep;
    }
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n = iwp_params_needs(prune, 0, need, IWP_TENSOR_COUNT);
    for (int i = 0; i < n; i++) {
        r->tap_features |=
            need[i].tensor == IWP_TENSOR_VIT_FEATURES || need[i].tensor == IWP_TENSOR_TEXT_EMBEDS;
        r->tap_qk |= need[i].tensor == IWP_TENSOR_VIT_Q || need[i].tensor == IWP_TENSOR_VIT_K;
    }
    if ((m->flags & IWP_METHOD_CHANGES_ENCODER) && r->tap_qk) {
        r->tap_qk = false; /* it acts where those keys are */
        r->in_tower = true;
        r->tower = *prune;
        return;
    }
    /* It projects encoder rows, or merges them before the projector. */
    if (m->site != IWP_SITE_MEDIA && (m->flags & IWP_METHOD_ENGINE_ONLY)) r->tap_features = true;
    if (m->site == IWP_SITE_TOWER && (m->flags & IWP_METHOD_MERGES)) r->tap_features = true;
}

struct pause {
    iwp_engine *e;
    const struct iwp_prompt_request *r;
};

/* The caller's cancel, with the engine free for sessions. */
static bool ask_outside(void *ctx) {
    const struct pause *p = ctx;
    pthread_mutex_unlock(&p->e->lock);
    const bool stop = p->r->cancel(p->r->cancel_ctx);
    pthread_mutex_lock(&p->e->lock);
    return stop;
}

static bool has_media(const struct iwp_prompt_request *r) {
    for (int32_t i = 0; i < r->n_message; i++)
        for (int32_t j = 0; j < r->message[i].n_part; j++)
            if (r->message[i].part[j].kind != IWP_PART_TEXT) return true;
    return r->n_media > 0;
}

int iwp_engine_prompt(iwp_engine *e, const struct iwp_prompt_request *r, iwp_prompt **out,
                      iwp_err *err) {
    *out = NULL;
    IWP_REQUIRE(e->prompter, err, IWP_ENOTSUP, "the engine was opened without its vocabulary");
    struct iwp_prompt *p = calloc(1, sizeof *p);
    IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
    struct pause pause = {e, r};
    struct iwp_prompt_request inside = *r;
    if (r->cancel) {
        inside.cancel = ask_outside;
        inside.cancel_ctx = &pause;
    }
    const bool media = has_media(r); /* else it may be made while another's pictures pause */
    if (media) pthread_mutex_lock(&e->prompt_lock);
    pthread_mutex_lock(&e->lock); /* the tower uses the same threads */
    int rc = iwp_prompt_build(e->prompter, &inside, p, err);
    pthread_mutex_unlock(&e->lock);
    if (media) pthread_mutex_unlock(&e->prompt_lock);
    if (rc < 0) {
        iwp_engine_prompt_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

/* Its visual tokens, or why the budget cannot be had from a picture of this size. */
static int try_picture(iwp_engine *e, const struct iwp_prompt_request *r,
                       const struct iwp_params *prune, int32_t side, iwp_err *err) {
    struct iwp_stage stage[IWP_STAGE_MAX];
    int32_t n_tile;
    const int n = iwp_prompt_try(e->prompter, r, side, &n_tile, err);
    if (n < 0 || !prune) return n;
    const struct iwp_budget *b = &prune->budget;
    IWP_TRY(iwp_tower_check_options(e->prompter->tower, prune, err));
    if (r->in_tower || iwp_method_info(prune->method)->site == IWP_SITE_MEDIA) return n;
    /* Several pictures have more tokens. */
    const struct iwp_plan_shape shape = {.n_layer = e->d.n_layer,
                                         .n_visual = b->n_keep > n ? b->n_keep : n};
    const int k = iwp_plan(prune, &shape, stage, IWP_STAGE_MAX, err);
    IWP_TRY(k);
    /* A schedule raises its counts itself. */
    const bool plain = k == 1 && b->rule != IWP_RULE_LAYER_AVERAGE && b->rule != IWP_RULE_MATCHED;
    IWP_REQUIRE(!plain || b->scope != IWP_SCOPE_TILE || !b->n_keep || b->n_keep >= n_tile, err,
                IWP_EINVAL,
                "--keep-tokens %d: each tile keeps at least 1 with --budget-scope tile, and a "
                "picture has %d",
                b->n_keep, n_tile);
    return n;
}

int iwp_engine_try(iwp_engine *e, const struct iwp_prompt_request *r,
                   const struct iwp_params *prune, int32_t *least, iwp_err *err) {
    enum { SMALL = 32, LARGE = 4096 };
    struct iwp_prompt_request one = *r;
    iwp_err other;
    *least = 0;
    if (!e->prompter || !e->prompter->encoder) return 0;
    iwp_prompt_request_for(&one, prune);
    const int large = try_picture(e, &one, prune, LARGE, err);
    /* A count that is too small for both is told of the picture that has fewer tiles. */
    const int small = try_picture(e, &one, prune, SMALL,
                                  large < 0 && prune && prune->budget.n_keep ? err : &other);
    *least = small > 0 ? small : large;
    return large < 0 && small > 0 ? small : large;
}

int iwp_engine_prepare(iwp_engine *e, const struct iwp_prompt_request *r, iwp_pictures **out,
                       iwp_err *err) {
    *out = NULL;
    if (!e->prompter || !e->prompter->encoder) return 0; /* the prompt says what is missing */
    return iwp_encoder_prepare(e->prompter->encoder, r, out, err);
}

size_t iwp_engine_pictures_bytes(const iwp_pictures *p) {
    size_t n = 0;
    for (int32_t i = 0; p && i < p->n; i++) {
        const struct iwp_item *it = &p->item[i];
        if (it->ready) n += it->plan.n_pixel * sizeof *it->ready;
        if (it->picture.rgb) n += (size_t)it->picture.w * (size_t)it->picture.h * 3;
        n += it->size;
    }
    return n;
}

void iwp_engine_pictures_free(iwp_pictures *p) { iwp_pictures_free(p); }

void iwp_engine_prompt_free(iwp_prompt *p) {
    if (!p) return;
    iwp_prompt_free(p);
    free(p);
}

struct iwp_prompt_info iwp_prompt_info(const iwp_prompt *p) {
    return (struct iwp_prompt_info){.n_token = p->n,
                                    .n_visual = p->n_visual,
                                    .n_image = p->n_image,
                                    .ms_decode_image = p->ms_decode_image,
                                    .ms_preprocess = p->ms_preprocess,
                                    .ms_encode = p->ms_encode};
}
