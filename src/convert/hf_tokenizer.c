/* tokenizer.json → tokenizer.ggml.* pairs, the way llama.cpp's loader reads them: byte-level BPE with its
 * merges, added tokens as control or user-defined tokens, unused rows of the embedding as [PADn].
 * Refuses other tokenizer models and pre-tokenizers that libllama has no rule for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "convert/hf.h"

enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

struct vocab {
    struct iwp_gguf_str *token; /* [n]; .p NULL = not given yet */
    int32_t *type;
    char *names; /* texts of the unused ones */
    int32_t n;
};

static const cJSON *item(const cJSON *o, const char *key) {
    return o ? cJSON_GetObjectItemCaseSensitive(o, key) : NULL;
}

/* Marked as plain in some files, but a template mark all the same. */
static bool looks_special(const char *s) {
    size_t n = strlen(s);
    return n >= 4 && s[0] == '<' && s[1] == '|' && s[n - 2] == '|' && s[n - 1] == '>';
}

static int put_token(struct vocab *v, const char *dir, int64_t id, const char *text, int32_t type,
                     iwp_err *err) {
    IWP_REQUIRE(id < v->n, err, IWP_EFORMAT,
                "%s/tokenizer.json: token %lld ('%.40s') is beyond vocab_size %d", dir,
                (long long)id, text, v->n);
    IWP_REQUIRE(!v->token[id].p || strcmp(v->token[id].p, text) == 0, err, IWP_EFORMAT,
                "%s/tokenizer.json: tokens '%.40s' and '%.40s' have the same id %lld", dir,
                v->token[id].p, text, (long long)id);
    IWP_REQUIRE(text[0], err, IWP_EFORMAT, "%s/tokenizer.json: token %lld is empty", dir,
                (long long)id);
    v->token[id] = (struct iwp_gguf_str){text, strlen(text)};
    v->type[id] = type;
    return 0;
}

static int read_vocab(struct vocab *v, const char *dir, const cJSON *tok, iwp_err *err) {
    const cJSON *words = item(item(tok, "model"), "vocab");
    IWP_REQUIRE(cJSON_IsObject(words), err, IWP_EFORMAT,
                "%s/tokenizer.json: model.vocab is missing", dir);
    int64_t id;
    for (const cJSON *e = words->child; e; e = e->next) {
        IWP_REQUIRE(iwp_json_get_int(e, 0, 1 << 24, &id), err, IWP_EFORMAT,
                    "%s/tokenizer.json: id of token '%.40s'", dir, e->string);
        IWP_TRY(put_token(v, dir, id, e->string, NORMAL, err));
    }
    const cJSON *added = item(tok, "added_tokens");
    for (const cJSON *e = cJSON_IsArray(added) ? added->child : NULL; e; e = e->next) {
        const char *text = cJSON_GetStringValue(item(e, "content"));
        IWP_REQUIRE(text && iwp_json_get_int(item(e, "id"), 0, 1 << 24, &id), err, IWP_EFORMAT,
                    "%s/tokenizer.json: an added token has no id or content", dir);
        const bool special = cJSON_IsTrue(item(e, "special")) || looks_special(text);
        IWP_TRY(put_token(v, dir, id, text, special ? CONTROL : USER_DEFINED, err));
    }
    v->names = malloc((size_t)v->n * 16);
    IWP_REQUIRE(v->names, err, IWP_ENOMEM, "%s: out of memory", dir);
    for (int32_t i = 0; i < v->n; i++) {
        if (v->token[i].p) continue;
        char *name = v->names + (size_t)i * 16;
        v->token[i] = (struct iwp_gguf_str){name, (size_t)snprintf(name, 16, "[PAD%d]", i)};
        v->type[i] = UNUSED;
    }
    return 0;
}

/* Merges are "a b" or ["a", "b"]; a space inside a part is written as the byte-level symbol for it. */
static int add_merges(struct iwp_gguf_writer *w, const char *dir, const cJSON *merges,
                      iwp_err *err) {
    int rc = 0;
    const int n = cJSON_IsArray(merges) ? cJSON_GetArraySize(merges) : 0;
    char *text = NULL;
    struct iwp_gguf_str *list = calloc((size_t)n + 1, sizeof *list);
    size_t total = 0, at = 0;
    if (n == 0) IWP_FAIL(err, IWP_EFORMAT, "%s/tokenizer.json: model.merges is missing", dir);
    for (const cJSON *e = merges->child; e; e = e->next) {
        const char *a = cJSON_GetStringValue(cJSON_IsArray(e) ? cJSON_GetArrayItem(e, 0) : e);
        const char *b = cJSON_IsArray(e) ? cJSON_GetStringValue(cJSON_GetArrayItem(e, 1)) : "";
        if (!a || !b)
            IWP_FAIL(err, IWP_EFORMAT, "%s/tokenizer.json: a merge is not a pair of texts", dir);
        total += 2 * (strlen(a) + strlen(b)) + 2;
    }
    text = malloc(total + 1);
    if (!text || !list) IWP_FAIL(err, IWP_ENOMEM, "%s: out of memory", dir);
    int i = 0;
    for (const cJSON *e = merges->child; e; e = e->next, i++) {
        list[i].p = text + at;
        const size_t start = at;
        if (cJSON_IsString(e)) {
            memcpy(text + at, e->valuestring, strlen(e->valuestring));
            at += strlen(e->valuestring);
        } else {
            for (int k = 0; k < 2; k++) {
                if (k) text[at++] = ' ';
                for (const char *s = cJSON_GetArrayItem(e, k)->valuestring; *s; s++) {
                    if (*s == ' ') { /* U+0120 */
                        text[at++] = (char)0xc4;
                        text[at++] = (char)0xa0;
                    } else {
                        text[at++] = *s;
                    }
                }
            }
        }
        list[i].n = at - start;
    }
    iwp_gguf_add_strs(w, "tokenizer.ggml.merges", list, (uint64_t)n);
fail:
    free(list);
    free(text);
    return rc;
}

/* Which of libllama's splitting rules the file asks for, told by how it treats digits. */
static const char *pre_name(const cJSON *tok) {
    const cJSON *pre = item(tok, "pre_tokenizer"), *list = item(pre, "pretokenizers");
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : pre; e; e = e->next) {
        const char *kind = cJSON_GetStringValue(item(e, "type"));
        const char *regex = cJSON_GetStringValue(item(item(e, "pattern"), "Regex"));
        if (kind && strcmp(kind, "Split") == 0 && regex) {
            if (strstr(regex, "\\p{N}{1,3}|")) return "llama-bpe";
            if (strstr(regex, "|\\p{N}|")) return "qwen2";
            return NULL;
        }
        if (kind && strcmp(kind, "Digits") == 0) return "smollm";
        if (kind && strcmp(kind, "ByteLevel") == 0 && cJSON_IsTrue(item(e, "use_regex")))
            return "gpt-2";
        if (!cJSON_IsArray(list)) break;
    }
    return NULL;
}

static int64_t find_token(const struct vocab *v, const cJSON *name) {
    const char *s = cJSON_GetStringValue(cJSON_IsObject(name) ? item(name, "content") : name);
    if (!s || !s[0]) return -1;
    for (int32_t i = v->n - 1; i >= 0; i--) /* special tokens come last */
        if (v->token[i].n == strlen(s) && memcmp(v->token[i].p, s, v->token[i].n) == 0) return i;
    return -1;
}

static int add_special(struct iwp_gguf_writer *w, const struct iwp_hf_config *c,
                       const struct vocab *v, const char *dir, const cJSON *settings,
                       iwp_err *err) {
    const struct {
        const char *setting, *key;
        int32_t id;
    } ids[] = {
        {"bos_token", "tokenizer.ggml.bos_token_id", c->text.bos},
        {"eos_token", "tokenizer.ggml.eos_token_id", c->text.eos},
        {"pad_token", "tokenizer.ggml.padding_token_id", c->text.pad},
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        int64_t id = find_token(v, item(settings, ids[i].setting));
        if (id < 0) id = ids[i].id;
        if (id < 0) continue;
        IWP_REQUIRE(id < v->n, err, IWP_EFORMAT, "%s: %s has id %lld, vocab_size is %d", dir,
                    ids[i].setting, (long long)id, v->n);
        iwp_gguf_add_u32(w, ids[i].key, (uint32_t)id);
    }
    iwp_gguf_add_bool(w, "tokenizer.ggml.add_bos_token",
                      cJSON_IsTrue(item(settings, "add_bos_token")));
    return 0;
}

/* chat_template.jinja, else chat_template.json, else tokenizer_config.json; none is fine. */
static int add_template(struct iwp_gguf_writer *w, const char *dir, const cJSON *settings,
                        iwp_err *err) {
    char *text;
    size_t n;
    int rc = iwp_hf_read_text(dir, "chat_template.jinja", &text, &n, err);
    if (rc >= 0) {
        bool zero = memchr(text, 0, n) != NULL;
        if (!zero) iwp_gguf_add_str(w, "tokenizer.chat_template", text);
        free(text);
        IWP_REQUIRE(!zero, err, IWP_EFORMAT, "%s/chat_template.jinja: holds a zero byte", dir);
        return 0;
    }
    if (rc != IWP_EMISSING) return rc;
    cJSON *file = NULL;
    rc = iwp_hf_read_json(dir, "chat_template.json", &file, err);
    if (rc < 0 && rc != IWP_EMISSING) return rc;
    const char *t = cJSON_GetStringValue(item(file, "chat_template"));
    if (!t) t = cJSON_GetStringValue(item(settings, "chat_template"));
    if (t) iwp_gguf_add_str(w, "tokenizer.chat_template", t);
    cJSON_Delete(file);
    return 0;
}

int iwp_hf_add_tokenizer(struct iwp_gguf_writer *w, const struct iwp_hf_config *c, const char *dir,
                         iwp_err *err) {
    cJSON *tok = NULL, *settings = NULL;
    struct vocab v = {0};
    int rc = iwp_hf_read_json(dir, "tokenizer.json", &tok, err);
    if (rc < 0) return rc;
    rc = iwp_hf_read_json(dir, "tokenizer_config.json", &settings, err);
    if (rc < 0 && rc != IWP_EMISSING) goto fail;
    const char *model = cJSON_GetStringValue(item(item(tok, "model"), "type"));
    if (model && strcmp(model, "BPE") != 0)
        IWP_FAIL(err, IWP_ENOTSUP,
                 "%s/tokenizer.json: tokenizer model '%.40s' is not supported (BPE)", dir, model);
    const char *pre = pre_name(tok);
    if (!pre)
        IWP_FAIL(err, IWP_ENOTSUP, "%s/tokenizer.json: its pre-tokenizer is not supported", dir);
    v.n = c->text.n_vocab;
    v.token = calloc((size_t)v.n, sizeof *v.token);
    v.type = calloc((size_t)v.n, sizeof *v.type);
    if (!v.token || !v.type) IWP_FAIL(err, IWP_ENOMEM, "%s: out of memory", dir);
    IWP_TRY_GOTO(read_vocab(&v, dir, tok, err));
    iwp_gguf_add_str(w, "tokenizer.ggml.model", "gpt2");
    iwp_gguf_add_str(w, "tokenizer.ggml.pre", pre);
    iwp_gguf_add_strs(w, "tokenizer.ggml.tokens", v.token, (uint64_t)v.n);
    iwp_gguf_add_array(w, "tokenizer.ggml.token_type", IWP_GGUF_I32, v.type, (uint64_t)v.n);
    IWP_TRY_GOTO(add_merges(w, dir, item(item(tok, "model"), "merges"), err));
    IWP_TRY_GOTO(add_special(w, c, &v, dir, settings, err));
    rc = add_template(w, dir, settings, err);
fail:
    free(v.token);
    free(v.type);
    free(v.names);
    cJSON_Delete(tok);
    cJSON_Delete(settings);
    return rc;
}
