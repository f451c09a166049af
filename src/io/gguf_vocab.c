/* Checks a GGUF's vocabulary before libllama sees it.  libllama asserts (and aborts the process) when two
 * tokens have the same text, when a tokenizer that adds a begin or end token has none, and throws through
 * C callers when a SentencePiece vocabulary lacks byte tokens; other faults it reports itself, but a
 * message that names the key is better. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "io/gguf.h"

static const char *file_of(const struct iwp_gguf *g) {
    return g->part[0].path ? g->part[0].path : "GGUF";
}

/* A set of token texts. */
struct set {
    struct iwp_gguf_str *slot;
    size_t mask;
};

static size_t hash(const char *p, size_t n) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)p[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 32);
}

static bool contains(const struct set *s, const char *p, size_t n) {
    for (size_t at = hash(p, n) & s->mask; s->slot[at].p; at = (at + 1) & s->mask)
        if (s->slot[at].n == n && memcmp(s->slot[at].p, p, n) == 0) return true;
    return false;
}

static void insert(struct set *s, const char *p, size_t n) {
    size_t at = hash(p, n) & s->mask;
    while (s->slot[at].p) at = (at + 1) & s->mask;
    s->slot[at] = (struct iwp_gguf_str){p, n};
}

static const struct iwp_gguf_kv *array(const struct iwp_gguf *g, const char *key) {
    const struct iwp_gguf_kv *kv = iwp_gguf_find(g, key);
    return kv && kv->kind == IWP_GGUF_ARRAY ? kv : NULL;
}

/* libllama cuts a token at its first zero byte and renames empty ones. */
static int check_tokens(const struct iwp_gguf *g, const struct iwp_gguf_kv *kv, bool spm,
                        iwp_err *err) {
    int rc = 0;
    struct set set = {NULL, 0};
    char *empty = NULL;
    size_t cap = 16, n_empty = 0;
    while (cap < 2 * kv->n) cap *= 2;
    set.slot = calloc(cap, sizeof *set.slot);
    set.mask = cap - 1;
    struct iwp_gguf_str s;
    struct iwp_gguf_iter it = iwp_gguf_iterate(kv);
    while (iwp_gguf_next(&it, &s)) n_empty += s.n == 0 || s.p[0] == 0;
    empty = malloc(n_empty * 24 + 1);
    if (!set.slot || !empty) IWP_FAIL(err, IWP_ENOMEM, "%s: out of memory", file_of(g));
    n_empty = 0;
    it = iwp_gguf_iterate(kv);
    for (uint64_t i = 0; iwp_gguf_next(&it, &s); i++) {
        const char *zero = s.n ? memchr(s.p, 0, s.n) : NULL;
        if (zero) s.n = (size_t)(zero - s.p);
        if (s.n == 0) {
            char *name = empty + 24 * n_empty++;
            s.n = (size_t)snprintf(name, 24, "[EMPTY_%" PRIu64 "]", i);
            s.p = name;
        }
        if (s.n > 1 << 20)
            IWP_FAIL(err, IWP_EFORMAT, "%s: token %" PRIu64 " has %zu bytes", file_of(g), i, s.n);
        if (contains(&set, s.p, s.n))
            IWP_FAIL(err, IWP_EFORMAT,
                     "%s: tokenizer.ggml.tokens: token %" PRIu64 " ('%.*s') appears twice",
                     file_of(g), i, s.n > 60 ? 60 : (int)s.n, s.p);
        insert(&set, s.p, s.n);
    }
    for (int b = 0; spm && b < 256; b++) {
        char name[8], c = (char)b;
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        if (!contains(&set, name, 6) && !contains(&set, &c, 1))
            IWP_FAIL(err, IWP_EFORMAT, "%s: tokenizer.ggml.tokens has no byte token %s", file_of(g),
                     name);
    }
fail:
    free(set.slot);
    free(empty);
    return rc;
}

static int check_lengths(const struct iwp_gguf *g, uint64_t n_tokens, iwp_err *err) {
    const struct iwp_gguf_kv *kv = iwp_gguf_find(g, "tokenizer.ggml.scores");
    IWP_REQUIRE(!kv || (kv->kind == IWP_GGUF_ARRAY &&
                        (kv->elem == IWP_GGUF_F32 || kv->elem == IWP_GGUF_I32)),
                err, IWP_EFORMAT, "%s: tokenizer.ggml.scores is not an array of f32", file_of(g));
    IWP_REQUIRE(!kv || kv->n == n_tokens, err, IWP_EFORMAT,
                "%s: tokenizer.ggml.scores has %" PRIu64 " values for %" PRIu64 " tokens",
                file_of(g), kv->n, n_tokens);
    kv = iwp_gguf_find(g, "tokenizer.ggml.token_type");
    IWP_REQUIRE(!kv || (kv->kind == IWP_GGUF_ARRAY && kv->elem == IWP_GGUF_I32), err, IWP_EFORMAT,
                "%s: tokenizer.ggml.token_type is not an array of i32", file_of(g));
    IWP_REQUIRE(!kv || kv->n == n_tokens, err, IWP_EFORMAT,
                "%s: tokenizer.ggml.token_type has %" PRIu64 " values for %" PRIu64 " tokens",
                file_of(g), kv->n, n_tokens);
    /* byte tokens are read as <0xNN>: a shorter text would be cut beyond its end */
    struct iwp_gguf_iter it = iwp_gguf_iterate(iwp_gguf_find(g, "tokenizer.ggml.tokens"));
    struct iwp_gguf_str s;
    for (uint64_t i = 0; kv && iwp_gguf_next(&it, &s); i++)
        IWP_REQUIRE(iwp_gguf_value_i64(kv, i) != 6 || s.n >= 3, err, IWP_EFORMAT,
                    "%s: token %" PRIu64 " is marked as a byte but is not written <0xNN>",
                    file_of(g), i);
    return 0;
}

static int check_special(const struct iwp_gguf *g, uint64_t n_tokens, bool spm, iwp_err *err) {
    static const char *const ids[] = {"bos",       "eos",     "eot",     "eom",     "unknown",
                                      "seperator", "padding", "mask",    "fim_pre", "fim_suf",
                                      "fim_mid",   "fim_pad", "fim_rep", "fim_sep", "prefix",
                                      "suffix",    "middle"};
    char key[64];
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        int64_t v;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        IWP_TRY(iwp_gguf_opt_i64(g, key, 0, &v, err));
        IWP_REQUIRE(v >= 0 && (uint64_t)v < n_tokens, err, IWP_EFORMAT,
                    "%s: %s is %" PRId64 ", there are %" PRIu64 " tokens", file_of(g), key, v,
                    n_tokens);
    }
    /* the defaults libllama takes when the key is absent: it must be a token, else adding it asserts */
    bool add;
    IWP_TRY(iwp_gguf_opt_bool(g, "tokenizer.ggml.add_bos_token", spm, &add, err));
    IWP_REQUIRE(
        !add || iwp_gguf_find(g, "tokenizer.ggml.bos_token_id") || n_tokens > (spm ? 1 : 11), err,
        IWP_EFORMAT, "%s: a begin token is to be added but tokenizer.ggml.bos_token_id is missing",
        file_of(g));
    IWP_TRY(iwp_gguf_opt_bool(g, "tokenizer.ggml.add_eos_token", false, &add, err));
    IWP_REQUIRE(
        !add || iwp_gguf_find(g, "tokenizer.ggml.eos_token_id") || n_tokens > (spm ? 2 : 11), err,
        IWP_EFORMAT, "%s: an end token is to be added but tokenizer.ggml.eos_token_id is missing",
        file_of(g));
    IWP_TRY(iwp_gguf_opt_bool(g, "tokenizer.ggml.add_sep_token", false, &add, err));
    IWP_TRY(iwp_gguf_opt_bool(g, "tokenizer.ggml.add_space_prefix", false, &add, err));
    return iwp_gguf_opt_bool(g, "tokenizer.ggml.remove_extra_whitespaces", false, &add, err);
}

int iwp_gguf_check_vocab(const struct iwp_gguf *g, iwp_err *err) {
    const char *model, *pre, *text;
    IWP_TRY(iwp_gguf_get_str(g, "general.architecture", &text, err));
    IWP_TRY(iwp_gguf_opt_str(g, "general.name", "", &text, err));
    IWP_TRY(iwp_gguf_get_str(g, "tokenizer.ggml.model", &model, err));
    IWP_TRY(iwp_gguf_opt_str(g, "tokenizer.ggml.pre", "default", &pre, err));
    IWP_TRY(iwp_gguf_opt_str(g, "tokenizer.chat_template", "", &text, err));
    const bool bpe = strcmp(model, "gpt2") == 0, spm = strcmp(model, "llama") == 0;
    IWP_REQUIRE(bpe || spm, err, IWP_ENOTSUP,
                "%s: tokenizer.ggml.model '%.60s' is not supported (gpt2 or llama)", file_of(g),
                model);
    const struct iwp_gguf_kv *tokens = array(g, "tokenizer.ggml.tokens");
    IWP_REQUIRE(tokens && tokens->elem == IWP_GGUF_STR, err, IWP_EMISSING,
                "%s: tokenizer.ggml.tokens is missing or not an array of strings", file_of(g));
    IWP_REQUIRE(tokens->n >= 1 && tokens->n <= 1 << 24, err, IWP_EFORMAT, "%s: %" PRIu64 " tokens",
                file_of(g), tokens->n);
    if (bpe) {
        const struct iwp_gguf_kv *merges = array(g, "tokenizer.ggml.merges");
        IWP_REQUIRE(merges && merges->elem == IWP_GGUF_STR && merges->n <= INT32_MAX, err,
                    IWP_EMISSING, "%s: tokenizer.ggml.merges is missing or not an array of strings",
                    file_of(g));
    }
    IWP_TRY(check_tokens(g, tokens, spm, err));
    IWP_TRY(check_lengths(g, tokens->n, err));
    IWP_TRY(check_special(g, tokens->n, spm, err));
    const struct iwp_gguf_tensor *embd = iwp_gguf_find_tensor(g, "token_embd.weight");
    IWP_REQUIRE(!embd || (uint64_t)embd->ne[1] == tokens->n, err, IWP_EFORMAT,
                "%s: token_embd.weight has %" PRId64 " rows for %" PRIu64 " tokens", file_of(g),
                embd->ne[1], tokens->n);
    return (int)tokens->n;
}
