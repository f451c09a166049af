/* Tokenising: the golden cases of both checkpoints, every test vector of the qwen2 and llama vocabularies
 * in the llama.cpp tree, characters that arrive in parts, and files and texts that must be refused. */
#include <llama.h>

#include "golden.h"
#include "model/vocab.h"

static int same_ids(const iwp_vocab *v, const char *text, size_t n, bool special,
                    const int32_t *want, int n_want) {
    struct iwp_ids ids = {0};
    iwp_err err = {0};
    char *s;
    size_t len;
    int ok = iwp_vocab_normalise(v, text, n, &s, &len, &err) >= 0;
    if (ok) {
        ok = iwp_vocab_tokenise(v, s, len, special, true, &ids, &err) >= 0 && ids.n == n_want;
        for (int i = 0; i < n_want && ok; i++) ok = ids.id[i] == want[i];
        free(s);
    }
    if (!ok) {
        fprintf(stderr, "  %s got:", err.msg);
        for (int i = 0; i < ids.n; i++) fprintf(stderr, " %d", ids.id[i]);
        fprintf(stderr, "\n  want:");
        for (int i = 0; i < n_want; i++) fprintf(stderr, " %d", want[i]);
        fputc('\n', stderr);
    }
    iwp_ids_free(&ids);
    return ok;
}

/* Our JSON reader refuses zeros in texts, one case has one: it travels as U+E000. */
static cJSON *read_cases(const char *path) {
    uint8_t *text;
    size_t n;
    iwp_err err = {0};
    cJSON *j = NULL;
    CHECK_MSG(iwp_file_read(path, 1 << 20, &text, &n, &err) >= 0, "%s", err.msg);
    if (err.code) return NULL;
    for (char *s = (char *)text; (s = strstr(s, "\\u0000")) != NULL;) memcpy(s, "\\ue000", 6);
    CHECK_MSG(iwp_json_parse((const char *)text, n, (struct iwp_json_limits){0, 0}, &j, &err) >= 0,
              "%s", err.msg);
    free(text);
    return j;
}

static size_t with_zeros(char *s) {
    size_t w = 0;
    for (size_t i = 0, n = strlen(s); i < n;)
        if (i + 2 < n && memcmp(s + i, "\xee\x80\x80", 3) == 0) {
            s[w++] = 0;
            i += 3;
        } else {
            s[w++] = s[i++];
        }
    return w;
}

/* Pieces joined through the UTF-8 stream, as answers are. */
static char *join(const iwp_vocab *v, const int32_t *id, int n, bool special, size_t *len) {
    char *out = calloc(1, 4096), piece[512];
    struct iwp_utf8 u = {0};
    size_t w = 0;
    for (int i = 0; i < n; i++) {
        int k = iwp_vocab_piece(v, id[i], special, piece, sizeof piece);
        CHECK(k >= 0);
        w += iwp_utf8_feed(&u, piece, (size_t)k, out + w);
    }
    w += iwp_utf8_finish(&u, out + w);
    *len = w;
    return out;
}

static void golden_cases(const char *model) {
    struct golden G;
    char path[900];
    if (golden_open(&G, model, NULL)) {
        const iwp_vocab *v = G.prompter->vocab;
        snprintf(path, sizeof path, "%s/vectors/%s/tokenizer_cases.json", G.root, model);
        cJSON *j = read_cases(path);
        const cJSON *c, *e;
        int n_case = 0;
        cJSON_ArrayForEach(c, j) {
            char *text = cJSON_GetObjectItem(c, "text")->valuestring;
            const size_t len = with_zeros(text);
            int32_t want[1024];
            int n = 0;
            cJSON_ArrayForEach(e, cJSON_GetObjectItem(c, "ids")) if (n < 1024) want[n++] =
                e->valueint;
            CHECK_MSG(same_ids(v, text, len, true, want, n), "%s: '%s'", model, text);
            for (int k = 0; k < 2; k++) {
                char *decoded =
                    cJSON_GetObjectItem(c, k ? "decoded_without_special" : "decoded")->valuestring;
                size_t m = with_zeros(decoded), got;
                char *joined = join(v, want, n, !k, &got);
                CHECK_MSG(got == m && memcmp(joined, decoded, m) == 0, "%s: '%s' gave '%.*s'",
                          model, text, (int)got, joined);
                free(joined);
            }
            n_case++;
        }
        CHECK(n_case > 20);
        cJSON_Delete(j);
    }
    golden_close(&G);
}

/* NAME.inp: texts between marker lines; NAME.out: a line of ids for each. */
static void llama_vectors(const char *name) {
    char path[700];
    uint8_t *in = NULL, *out = NULL;
    size_t n_in, n_out;
    iwp_err err = {0};
    struct iwp_gguf *g = NULL;
    iwp_vocab *v = NULL;
    snprintf(path, sizeof path, "%s/models/ggml-vocab-%s.gguf", IWP_LLAMA_TREE, name);
    if (!golden_exists(path)) {
        fprintf(stderr, "skipped: %s is not there\n", path);
        test_checked++;
        return;
    }
    int rc = iwp_gguf_open(&g, path, &err);
    if (rc >= 0) rc = iwp_vocab_new(&v, g, &err);
    CHECK_MSG(rc >= 0, "%s: %s", name, err.msg);
    snprintf(path, sizeof path, "%s/models/ggml-vocab-%s.gguf.inp", IWP_LLAMA_TREE, name);
    if (rc >= 0) rc = iwp_file_read(path, 1 << 20, &in, &n_in, &err);
    snprintf(path, sizeof path, "%s/models/ggml-vocab-%s.gguf.out", IWP_LLAMA_TREE, name);
    if (rc >= 0) rc = iwp_file_read(path, 1 << 20, &out, &n_out, &err);
    CHECK_MSG(rc >= 0, "%s", err.msg);
    int n_case = 0;
    if (rc >= 0) {
        const char *mark = "\n__ggml_vocab_test__\n", *text = (const char *)in;
        char *line = (char *)out;
        for (const char *end; (end = strstr(text, mark)) != NULL; text = end + strlen(mark)) {
            int32_t want[1024];
            int n = 0;
            char *stop = strchr(line, '\n');
            CHECK(stop != NULL);
            if (!stop) break;
            *stop = 0;
            for (char *s = line, *next; n < 1024; s = next) {
                long id = strtol(s, &next, 10);
                if (next == s) break;
                want[n++] = (int32_t)id;
            }
            line = stop + 1;
            CHECK_MSG(same_ids(v, text, (size_t)(end - text), false, want, n), "%s case %d: '%.*s'",
                      name, n_case, (int)(end - text), text);
            n_case++;
        }
        CHECK_MSG(n_case > 30, "%d cases", n_case);
    }
    fprintf(stderr, "%s: %d texts\n", name, n_case);
    free(in);
    free(out);
    iwp_vocab_free(v);
    iwp_gguf_free(g);
}

TEST(utf8) {
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"abc", "abc"},
        {"\xc3\xa9", "\xc3\xa9"},
        {"\xe2\x82\xac!", "\xe2\x82\xac!"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
        {"\x80", "\xef\xbf\xbd"},
        {"\xc3(", "\xef\xbf\xbd("},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
        {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* too long a form */
        {"\xf5\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t step = 1; step < 4; step++) {
            struct iwp_utf8 u = {0};
            char out[64];
            size_t w = 0, n = strlen(cases[i].in);
            for (size_t k = 0; k < n; k += step)
                w += iwp_utf8_feed(&u, cases[i].in + k, n - k < step ? n - k : step, out + w);
            w += iwp_utf8_finish(&u, out + w);
            out[w] = 0;
            CHECK_STR(out, cases[i].out);
        }
}

TEST(refused) {
    char path[700];
    iwp_err err = {0};
    struct iwp_gguf *g = NULL;
    iwp_vocab *v = NULL;
    snprintf(path, sizeof path, "%s/models/ggml-vocab-bert-bge.gguf", IWP_LLAMA_TREE);
    if (golden_exists(path) && iwp_gguf_open(&g, path, &err) >= 0) {
        CHECK(iwp_vocab_new(&v, g, &err) < 0); /* a kind of vocabulary that is not ours */
        CHECK(strstr(err.msg, path) != NULL);
        iwp_gguf_free(g);
    }
    snprintf(path, sizeof path, "%s/models/ggml-vocab-qwen2.gguf", IWP_LLAMA_TREE);
    g = NULL;
    if (!golden_exists(path) || iwp_gguf_open(&g, path, &err) < 0) return;
    CHECK(iwp_vocab_new(&v, g, &err) >= 0);
    char *s;
    size_t n;
    CHECK(iwp_vocab_normalise(v, "a\xff", 2, &s, &n, &err) == IWP_EINVAL);
    CHECK_INT(iwp_vocab_find(v, "<|im_start|>"), 151644);
    CHECK_INT(iwp_vocab_find(v, "no such token"), -1);
    CHECK(iwp_vocab_is_end(v, iwp_vocab_find(v, "<|im_end|>")));
    CHECK(!iwp_vocab_is_end(v, -1));
    CHECK_INT(iwp_vocab_piece(v, 1 << 30, true, path, 10), 0);
    /* typed names of special tokens are text unless asked for */
    struct iwp_ids ids = {0};
    CHECK(iwp_vocab_tokenise(v, "<|im_end|>", 10, false, true, &ids, &err) >= 0);
    CHECK(ids.n > 1);
    ids.n = 0;
    CHECK(iwp_vocab_tokenise(v, "<|im_end|>", 10, true, true, &ids, &err) >= 0);
    CHECK_INT(ids.n, 1);
    /* a long word must neither crash nor take forever */
    char *word = malloc(200001);
    memset(word, 'a', 200000);
    CHECK(iwp_vocab_tokenise(v, word, 200000, false, true, &ids, &err) >= 0);
    CHECK(ids.n > 1000);
    free(word);
    iwp_ids_free(&ids);
    iwp_vocab_free(v);
    iwp_gguf_free(g);
}

int main(void) {
    test_utf8();
    test_refused();
    llama_vectors("qwen2");
    llama_vectors("llama-spm");
    llama_vectors("llama-bpe");
    golden_cases("llava-ov");
    golden_cases("qwen2.5-vl");
    return test_done();
}
