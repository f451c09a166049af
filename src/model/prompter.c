/* Vocabulary, template, tower and cache of one model: see prompt.h.  Refuses an mmproj file that was
 * made for another model, and says what of the two does not fit. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>

#include "base/err.h"
#include "model/prompter.h"

static char *copy_text(const char *s) {
    char *p = malloc(strlen(s) + 1);
    return p ? strcpy(p, s) : NULL;
}

/* The template by name, or the one the file carries. */
static int choose_template(iwp_prompter *m, const struct iwp_gguf *g, const char *name,
                           iwp_err *err) {
    if (name && *name) {
        m->verbatim = strcmp(name, "none") == 0;
        if (m->verbatim) return 0;
        m->chat = iwp_chat_find(name, err);
        return m->chat ? 0 : IWP_EINVAL;
    }
    const char *jinja;
    IWP_TRY(iwp_gguf_opt_str(g, "tokenizer.chat_template", "", &jinja, err));
    m->chat = *jinja ? iwp_chat_detect(jinja) : NULL;
    return 0;
}

static int find_token(const iwp_prompter *m, const struct iwp_gguf *g, const char *key, int32_t own,
                      const char *const *names, int32_t *out, iwp_err *err) {
    *out = own;
    if (iwp_gguf_find(g, key)) {
        uint32_t v;
        IWP_TRY(iwp_gguf_get_u32(g, key, &v, err));
        *out = v < INT32_MAX ? (int32_t)v : -1;
    }
    for (; *out < 0 && *names; names++) *out = iwp_vocab_find(m->vocab, *names);
    IWP_REQUIRE(*out < iwp_vocab_count(m->vocab), err, IWP_EFORMAT,
                "%s: %s is %d, the vocabulary has %d tokens", m->path, key, *out,
                iwp_vocab_count(m->vocab));
    return 0;
}

/* Both files must be halves of one model. */
static int check_pair(const iwp_prompter *m, const char *arch, const struct iwp_gguf *model,
                      const struct iwp_gguf *mmproj, iwp_err *err) {
    const struct iwp_tower_info *v = iwp_tower_info(m->tower);
    const char *name = mmproj->part[0].path ? mmproj->part[0].path : "mmproj", *a, *b;
    IWP_REQUIRE(v->d_model == m->d_model, err, IWP_EINVAL,
                "%s is not the mmproj of %s: its rows have %d numbers, the model's embedding %d",
                name, m->path, v->d_model, m->d_model);
    const bool qwen = v->pre.kind == IWP_PRE_QWEN2_5_VL;
    IWP_REQUIRE(qwen == (strcmp(arch, "qwen2vl") == 0), err, IWP_EINVAL,
                "%s is not the mmproj of %s: projector %s for architecture %s", name, m->path,
                v->projector, arch);
    IWP_TRY(iwp_gguf_opt_str(model, "iwp.model_type", "", &a, err));
    IWP_TRY(iwp_gguf_opt_str(mmproj, "iwp.model_type", "", &b, err));
    IWP_REQUIRE(!*a || !*b || strcmp(a, b) == 0, err, IWP_EINVAL,
                "%s is not the mmproj of %s: made for %.40s, the model is %.40s", name, m->path, b,
                a);
    return 0;
}

/* The vocabulary is read while the tower is: libllama takes one thread's time for it. */
struct vocab_job {
    iwp_vocab *vocab;
    const struct iwp_gguf *g;
    int rc;
    iwp_err err;
};

static void *read_vocab(void *job) {
    struct vocab_job *j = job;
    j->rc = iwp_vocab_new(&j->vocab, j->g, &j->err);
    return NULL;
}

static int open_parts(iwp_prompter *m, const struct iwp_prompter_params *p, iwp_err *err) {
    struct vocab_job j = {.g = p->model};
    pthread_t thread;
    const bool beside = p->mmproj && pthread_create(&thread, NULL, read_vocab, &j) == 0;
    const int rc = p->mmproj ? iwp_tower_new(&m->tower, p->backend, p->mmproj, err) : 0;
    if (beside)
        pthread_join(thread, NULL);
    else
        read_vocab(&j);
    m->vocab = j.vocab;
    if (j.rc < 0 && err) *err = j.err;
    return j.rc < 0 ? j.rc : rc;
}

static int open_prompter(iwp_prompter *m, const struct iwp_prompter_params *p, iwp_err *err) {
    static const char *const images[] = {"<|image_pad|>", "<image>", NULL};
    static const char *const videos[] = {"<|video_pad|>", "<video>", NULL};
    const struct iwp_gguf *g = p->model;
    const char *arch;
    char key[96];
    uint32_t d;
    m->path = copy_text(g->part[0].path ? g->part[0].path : "model");
    IWP_REQUIRE(m->path, err, IWP_ENOMEM, "out of memory");
    IWP_TRY(iwp_gguf_get_str(g, "general.architecture", &arch, err));
    snprintf(key, sizeof key, "%.60s.embedding_length", arch);
    IWP_TRY(iwp_gguf_get_u32(g, key, &d, err));
    IWP_REQUIRE(d > 0 && d < 1 << 20, err, IWP_EFORMAT, "%s: %s is %u", m->path, key, d);
    m->d_model = (int32_t)d;
    m->n_pos = strcmp(arch, "qwen2vl") == 0 ? 3 : 1;
    IWP_TRY(choose_template(m, g, p->chat_template, err));
    IWP_TRY(open_parts(m, p, err));
    if (p->mmproj) {
        IWP_TRY(check_pair(m, arch, g, p->mmproj, err));
        IWP_TRY(iwp_encoder_new(&m->encoder, m->tower, p->cache_bytes, err));
    }
    const struct iwp_tower_info *v = m->tower ? iwp_tower_info(m->tower) : NULL;
    IWP_TRY(find_token(m, g, "iwp.image_token_id", v ? v->image_token : -1, images, &m->image_token,
                       err));
    return find_token(m, g, "iwp.video_token_id", v ? v->video_token : -1, videos, &m->video_token,
                      err);
}

int iwp_prompter_new(iwp_prompter **out, const struct iwp_prompter_params *p, iwp_err *err) {
    *out = NULL;
    iwp_prompter *m = calloc(1, sizeof *m);
    IWP_REQUIRE(m, err, IWP_ENOMEM, "out of memory");
    int rc = open_prompter(m, p, err);
    if (rc < 0) {
        iwp_prompter_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void iwp_prompter_free(iwp_prompter *m) {
    if (!m) return;
    iwp_encoder_free(m->encoder);
    iwp_tower_free(m->tower);
    iwp_vocab_free(m->vocab);
    free(m->path);
    free(m);
}

const struct llama_vocab *iwp_prompter_vocab(const iwp_prompter *m) {
    return iwp_vocab_llama(m->vocab);
}

bool iwp_prompter_is_end(const iwp_prompter *m, int32_t id) {
    return iwp_vocab_is_end(m->vocab, id);
}

int iwp_prompter_piece(const iwp_prompter *m, int32_t id, char *buf, int cap) {
    return iwp_vocab_piece(m->vocab, id, false, buf, cap);
}

size_t iwp_prompter_weight_bytes(const iwp_prompter *m) {
    return m->tower ? iwp_tower_bytes(m->tower) : 0;
}

int iwp_prompter_project(iwp_prompter *m, const float *x, int32_t n_row, float *y, iwp_err *err) {
    IWP_REQUIRE(m->tower, err, IWP_EMISSING, "there is no projector: no mmproj file was loaded");
    return iwp_tower_project(m->tower, x, n_row, y, err);
}
