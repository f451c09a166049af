/* Vocabularies that our check lets through must not abort libllama: thousands of damaged files, each
 * either refused by iwp or loaded (or refused politely) by libllama and used to tokenise.  An abort ends
 * the test program, which is the failure. */
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint.h"
#include "io/gguf.h"

#ifdef IWP_HAVE_GGML
#include <llama.h>

static char root[64];

static void quiet(enum ggml_log_level level, const char *text, void *arg) {
    (void)level, (void)text, (void)arg;
}

/* A vocabulary with byte symbols, all special ids and a template. */
static int write_vocab(const char *path, int spm, iwp_err *err) {
    struct iwp_gguf_writer *w;
    IWP_TRY(iwp_gguf_writer_new(&w, err));
    static char text[300][8];
    struct iwp_gguf_str tok[300];
    int32_t type[300], n = 0;
    float score[300];
    static const char *const first[] = {"<unk>",    "<s>",        "</s>",         "a",
                                        "b",        "ab",         "\xe2\x96\x81", "\xc4\xa0",
                                        "\xc4\x8a", "<|im_end|>", "<|fim_pad|>",  "<|endoftext|>"};
    for (; n < 12; n++)
        snprintf(text[n], 8, "%s", first[n] + (strlen(first[n]) > 7 ? strlen(first[n]) - 7 : 0));
    for (int i = 0; i < 256; i++) snprintf(text[n++], 8, "<0x%02X>", (unsigned)i);
    for (int i = 0; i < n; i++) {
        tok[i] = (struct iwp_gguf_str){text[i], strlen(text[i])};
        type[i] = i < 3 ? 3 : i < 12 ? 1 : 6;
        score[i] = (float)-i;
    }
    struct iwp_gguf_str merge = {"a b", 3};
    iwp_gguf_add_str(w, "general.architecture", "llama");
    iwp_gguf_add_str(w, "general.name", "x");
    iwp_gguf_add_str(w, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    iwp_gguf_add_str(w, "tokenizer.ggml.pre", spm ? "default" : "qwen2");
    iwp_gguf_add_strs(w, "tokenizer.ggml.tokens", tok, (uint64_t)n);
    iwp_gguf_add_array(w, "tokenizer.ggml.scores", IWP_GGUF_F32, score, (uint64_t)n);
    iwp_gguf_add_array(w, "tokenizer.ggml.token_type", IWP_GGUF_I32, type, (uint64_t)n);
    if (!spm) iwp_gguf_add_strs(w, "tokenizer.ggml.merges", &merge, 1);
    static const char *const ids[] = {"bos",       "eos",     "eot",     "eom",     "unknown",
                                      "seperator", "padding", "mask",    "fim_pre", "fim_suf",
                                      "fim_mid",   "fim_pad", "fim_rep", "fim_sep"};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        iwp_gguf_add_u32(w, key, (uint32_t)i);
    }
    iwp_gguf_add_bool(w, "tokenizer.ggml.add_bos_token", true);
    iwp_gguf_add_bool(w, "tokenizer.ggml.add_eos_token", true);
    iwp_gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", true);
    int rc = iwp_gguf_writer_begin(w, path, err);
    if (rc >= 0) rc = iwp_gguf_writer_finish(w, err);
    if (rc >= 0) rc = iwp_gguf_writer_commit(w, err);
    iwp_gguf_writer_free(w);
    return rc;
}

static int refused, loaded, declined;

static void use(const char *path) {
    iwp_err err = {0};
    struct iwp_gguf *g;
    int ok = iwp_gguf_open(&g, path, &err) >= 0 && iwp_gguf_check_vocab(g, &err) >= 0;
    iwp_gguf_free(g);
    if (!ok) {
        refused++;
        return;
    }
    struct llama_model_params p = llama_model_default_params();
    p.vocab_only = true;
    struct llama_model *m = llama_model_load_from_file(path, p);
    if (!m) {
        declined++;
        return;
    }
    loaded++;
    const struct llama_vocab *v = llama_model_get_vocab(m);
    static const char text[] = "ab a\n\xc3\xa9\xf0\x9f\x98\x80 12 <s>\x01";
    llama_token ids[256];
    char piece[256];
    for (int k = 0; k < 4; k++) {
        int n = llama_tokenize(v, text, (int)sizeof text - 1, ids, 256, k & 1, k >> 1);
        for (int i = 0; i < n; i++) llama_token_to_piece(v, ids[i], piece, sizeof piece, 0, true);
    }
    llama_model_free(m);
}

static void damage(int spm, int rounds) {
    iwp_err err = {0};
    char good[128], bad[128];
    snprintf(good, sizeof good, "%s/good-%d.gguf", root, spm);
    snprintf(bad, sizeof bad, "%s/bad.gguf", root);
    CHECK_MSG(write_vocab(good, spm, &err) >= 0, "%s", err.msg);
    int before = loaded;
    use(good);
    CHECK_INT(loaded - before, 1);
    uint8_t *data, *copy;
    size_t n;
    CHECK(iwp_file_read(good, 1 << 20, &data, &n, &err) == 0);
    copy = malloc(n);
    uint64_t s = 77 + (uint64_t)spm;
    for (int r = 0; r < rounds; r++) {
        memcpy(copy, data, n);
        const int hits = 1 + (int)(test_rand(&s) % 3);
        for (int k = 0; k < hits; k++) {
            size_t at = 24 + test_rand(&s) % (n - 24);
            uint64_t how = test_rand(&s) % 4;
            if (how == 0)
                copy[at] ^= (uint8_t)(1 << test_rand(&s) % 8);
            else if (how == 1)
                copy[at] = (uint8_t)test_rand(&s);
            else if (how == 2)
                copy[at] = 0;
            else { /* one region over another: twins, wrong kinds */
                size_t from = 24 + test_rand(&s) % (n - 24), len = 1 + test_rand(&s) % 24;
                if (at + len < n && from + len < n) memmove(copy + at, data + from, len);
            }
        }
        FILE *f = fopen(bad, "wb");
        CHECK(f && fwrite(copy, 1, n, f) == n);
        if (f) fclose(f);
        use(bad);
    }
    free(copy);
    free(data);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 600; /* more by hand */
    snprintf(root, sizeof root, "/tmp/iwp-hostile-XXXXXX");
    if (!mkdtemp(root)) return 1;
    llama_log_set(quiet, NULL);
    damage(0, rounds);
    damage(1, rounds);
    fprintf(stderr, "%d refused by iwp, %d by libllama, %d loaded\n", refused, declined, loaded);
    CHECK(refused > 100 && loaded > 100);
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    if (system(cmd) != 0) return 1;
    return test_done();
}
#else
int main(void) { return 0; }
#endif
