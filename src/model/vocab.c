/* The vocabulary: see vocab.h.  Refuses files that iwp_gguf_check_vocab refuses, text that is not
 * UTF-8, and texts of more than 64 MB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>
#include <utf8proc.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "model/vocab.h"

enum { MAX_TEXT = 64 << 20 };

struct iwp_vocab {
    struct llama_model *model;
    const struct llama_vocab *vocab;
    int32_t n, begin;
    bool nfc, prefix_space;
};

/* libllama says why it failed in its log only. */
static _Thread_local char last_error[160];

static void catch_log(enum ggml_log_level level, const char *text, void *ctx) {
    (void)ctx;
    size_t n = strcspn(text, "\n");
    if (!n) return;
    if (level == GGML_LOG_LEVEL_ERROR)
        snprintf(last_error, sizeof last_error, "%.*s", (int)(n < 150 ? n : 150), text);
    iwp_log(IWP_LOG_DEBUG, "%.*s", (int)n, text);
}

int iwp_vocab_new(iwp_vocab **out, const struct iwp_gguf *g, iwp_err *err) {
    *out = NULL;
    const char *path = g->part[0].path;
    IWP_REQUIRE(path, err, IWP_EINVAL, "a vocabulary can be read from a file only");
    int n = iwp_gguf_check_vocab(g, err);
    if (n < 0) return iwp_err_prefix(err, n, "%s", path);
    const char *pre, *model;
    IWP_TRY(iwp_gguf_opt_str(g, "tokenizer.ggml.pre", "", &pre, err));
    IWP_TRY(iwp_gguf_opt_str(g, "tokenizer.ggml.model", "", &model, err));

    iwp_vocab *v = calloc(1, sizeof *v);
    IWP_REQUIRE(v, err, IWP_ENOMEM, "%s: no memory for the vocabulary", path);
    llama_log_set(catch_log, NULL);
    last_error[0] = 0;
    struct llama_model_params p = llama_model_default_params();
    p.vocab_only = true;
    v->model = llama_model_load_from_file(path, p);
    if (!v->model) {
        free(v);
        return iwp_err_set(err, IWP_EFORMAT, "%s: the vocabulary cannot be read: %s", path,
                           last_error[0] ? last_error : "libllama gives no reason");
    }
    v->vocab = llama_model_get_vocab(v->model);
    v->n = llama_vocab_n_tokens(v->vocab);
    v->begin = llama_vocab_get_add_bos(v->vocab) ? llama_vocab_bos(v->vocab) : -1;
    /* Hugging Face's tokenizer.json of the Qwen2 family has the normaliser NFC; GGUF has no key for it. */
    v->nfc = strcmp(pre, "qwen2") == 0;
    v->prefix_space = strcmp(model, "llama") == 0;
    *out = v;
    return 0;
}

void iwp_vocab_free(iwp_vocab *v) {
    if (!v) return;
    llama_model_free(v->model);
    free(v);
}

const struct llama_vocab *iwp_vocab_llama(const iwp_vocab *v) { return v->vocab; }
int32_t iwp_vocab_count(const iwp_vocab *v) { return v->n; }
int32_t iwp_vocab_begin(const iwp_vocab *v) { return v->begin; }

bool iwp_vocab_is_end(const iwp_vocab *v, int32_t id) {
    return id >= 0 && id < v->n && llama_vocab_is_eog(v->vocab, id);
}

bool iwp_vocab_is_special(const iwp_vocab *v, int32_t id) {
    return id >= 0 && id < v->n && llama_vocab_is_control(v->vocab, id);
}

int32_t iwp_vocab_find(const iwp_vocab *v, const char *text) {
    llama_token id[4];
    int32_t n = llama_tokenize(v->vocab, text, (int32_t)strlen(text), id, 4, false, true);
    for (int32_t i = 0; i < n; i++) /* SentencePiece may put a space before it */
        if (strcmp(llama_vocab_get_text(v->vocab, id[i]), text) == 0) return id[i];
    return -1;
}

int iwp_ids_add(struct iwp_ids *l, int32_t id, iwp_err *err) {
    if (l->n == l->cap) {
        IWP_REQUIRE(l->cap < 1 << 28, err, IWP_EINVAL, "the prompt is too long");
        int32_t cap = l->cap ? 2 * l->cap : 256;
        int32_t *p = realloc(l->id, (size_t)cap * sizeof *p);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "no memory for %d tokens", cap);
        l->id = p;
        l->cap = cap;
    }
    l->id[l->n++] = id;
    return 0;
}

void iwp_ids_free(struct iwp_ids *l) {
    free(l->id);
    *l = (struct iwp_ids){0};
}

int iwp_vocab_normalise(const iwp_vocab *v, const char *text, size_t n, char **out, size_t *n_out,
                        iwp_err *err) {
    *out = NULL;
    *n_out = 0;
    IWP_REQUIRE(n <= MAX_TEXT, err, IWP_EINVAL, "a text of %zu bytes is too long (at most %d)", n,
                MAX_TEXT);
    IWP_REQUIRE(iwp_utf8_valid(text, n), err, IWP_EINVAL, "the text is not valid UTF-8");
    if (v->nfc && n) {
        utf8proc_uint8_t *u = NULL;
        utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &u,
                                            UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        IWP_REQUIRE(len >= 0, err, len == UTF8PROC_ERROR_NOMEM ? IWP_ENOMEM : IWP_EINVAL,
                    "the text cannot be normalised: %s", utf8proc_errmsg(len));
        *out = (char *)u;
        *n_out = (size_t)len;
        return 0;
    }
    char *copy = malloc(n + 1);
    IWP_REQUIRE(copy, err, IWP_ENOMEM, "no memory for a text of %zu bytes", n);
    memcpy(copy, text, n);
    copy[n] = 0;
    *out = copy;
    *n_out = n;
    return 0;
}

int iwp_vocab_tokenise(const iwp_vocab *v, const char *text, size_t n, bool special, bool first,
                       struct iwp_ids *out, iwp_err *err) {
    if (!n) return 0;
    IWP_REQUIRE(n <= MAX_TEXT, err, IWP_EINVAL, "a text of %zu bytes is too long (at most %d)", n,
                MAX_TEXT);
    int32_t cap =
        (int32_t)n + 8; /* never more than one token a byte, and a space before the text */
    llama_token *id = malloc((size_t)cap * sizeof *id);
    IWP_REQUIRE(id, err, IWP_ENOMEM, "no memory for %d tokens", cap);
    int32_t got = llama_tokenize(v->vocab, text, (int32_t)n, id, cap, false, special), skip = 0;
    if (got < 0) {
        free(id);
        return iwp_err_set(err, IWP_EINTERNAL, "libllama could not tokenise a text of %zu bytes",
                           n);
    }
    /* libllama gives every SentencePiece text a space in front, the tokenizer only the first one of a
     * prompt: a piece that is nothing but this space goes. */
    if (v->prefix_space && !first && got > 0 && text[0] != ' ' &&
        strcmp(llama_vocab_get_text(v->vocab, id[0]), "\xe2\x96\x81") == 0)
        skip = 1;
    int rc = 0;
    for (int32_t i = skip; i < got && rc >= 0; i++) rc = iwp_ids_add(out, id[i], err);
    free(id);
    return rc;
}

int iwp_vocab_piece(const iwp_vocab *v, int32_t id, bool special, char *buf, int cap) {
    if (id < 0 || id >= v->n) return 0;
    return llama_token_to_piece(v->vocab, id, buf, cap, 0, special);
}

/* Bytes of the character that `c` opens, 0 when none does. */
static int32_t char_length(uint8_t c) {
    return c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
}

/* Can `c` follow the bytes of an unfinished character? */
static bool may_follow(const struct iwp_utf8 *u, uint8_t c) {
    if (u->n > 1) return (c & 0xc0) == 0x80;
    switch (u->part[0]) {
    case 0xe0: return c >= 0xa0 && c < 0xc0;
    case 0xed: return c >= 0x80 && c < 0xa0; /* no surrogates */
    case 0xf0: return c >= 0x90 && c < 0xc0;
    case 0xf4: return c >= 0x80 && c < 0x90;
    default: return (c & 0xc0) == 0x80;
    }
}

static const char replacement[3] = {(char)0xef, (char)0xbf, (char)0xbd};

size_t iwp_utf8_feed(struct iwp_utf8 *u, const char *in, size_t n, char *out) {
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)in[i];
        if (u->n && !may_follow(u, c)) {
            memcpy(out + w, replacement, 3);
            w += 3;
            u->n = 0;
        }
        if (!u->n && !char_length(c)) {
            memcpy(out + w, replacement, 3);
            w += 3;
            continue;
        }
        u->part[u->n++] = c;
        if (u->n == char_length(u->part[0])) {
            memcpy(out + w, u->part, (size_t)u->n);
            w += (size_t)u->n;
            u->n = 0;
        }
    }
    return w;
}

size_t iwp_utf8_finish(struct iwp_utf8 *u, char *out) {
    if (!u->n) return 0;
    memcpy(out, replacement, 3);
    u->n = 0;
    return 3;
}
