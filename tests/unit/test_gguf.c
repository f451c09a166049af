/* The GGUF reader and writer: round trip of every kind, split files, and one case per lie a file can tell. */
#include "io/gguf.h"

#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "test.h"

static char dir[64];

static const char *at(const char *name) {
    static char path[4][160];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, 160, "%s/%s", dir, name);
    return p;
}

/* A small model: pairs of all kinds, two tensors, a vocabulary. */
static void fill(struct iwp_gguf_writer *w, int spm) {
    static const char *const words[] = {"<s>", "</s>", "a", "b", "ab", "x", "y",
                                        "z",   "q",    "r", "t", "u",  "v"};
    struct iwp_gguf_str tok[13 + 256];
    static char byte[256][8];
    int n = 13, types[13 + 256];
    for (int i = 0; i < n; i++) tok[i] = (struct iwp_gguf_str){words[i], strlen(words[i])};
    for (int i = 0; spm && i < 256; i++) {
        snprintf(byte[i], 8, "<0x%02X>", (unsigned)i);
        tok[n++] = (struct iwp_gguf_str){byte[i], 6};
    }
    for (int i = 0; i < n; i++) types[i] = i < 2 ? 3 : i >= 13 ? 6 : 1;
    struct iwp_gguf_str merge = {"a b", 3};
    iwp_gguf_add_str(w, "general.architecture", "llama");
    iwp_gguf_add_str(w, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    iwp_gguf_add_strs(w, "tokenizer.ggml.tokens", tok, (uint64_t)n);
    iwp_gguf_add_array(w, "tokenizer.ggml.token_type", IWP_GGUF_I32, types, (uint64_t)n);
    if (!spm) iwp_gguf_add_strs(w, "tokenizer.ggml.merges", &merge, 1);
    iwp_gguf_add_u32(w, "tokenizer.ggml.bos_token_id", 0);
}

static int write_simple(const char *path, iwp_err *err) {
    struct iwp_gguf_writer *w;
    IWP_TRY(iwp_gguf_writer_new(&w, err));
    fill(w, 0);
    iwp_gguf_add_i32(w, "k.i32", -7);
    iwp_gguf_add_u64(w, "k.u64", 1ull << 40);
    iwp_gguf_add_f32(w, "k.f32", 0.25f);
    iwp_gguf_add_bool(w, "k.bool", true);
    int16_t i16[3] = {-1, 2, 3};
    double f64[2] = {0.5, -2};
    iwp_gguf_add_array(w, "k.i16s", IWP_GGUF_I16, i16, 3);
    iwp_gguf_add_array(w, "k.f64s", IWP_GGUF_F64, f64, 2);
    int64_t ne[2] = {3, 5};
    iwp_gguf_add_tensor(w, "token_embd.weight", IWP_TYPE_F32, 2, (int64_t[]){4, 13});
    iwp_gguf_add_tensor(w, "b", IWP_TYPE_F16, 2, ne);
    iwp_gguf_add_tensor(w, "q", IWP_TYPE_Q8_0, 1, (int64_t[]){64});
    int rc = iwp_gguf_writer_begin(w, path, err);
    float e[52];
    uint8_t b[30], q[68];
    for (int i = 0; i < 52; i++) e[i] = (float)i;
    for (int i = 0; i < 30; i++) b[i] = (uint8_t)i;
    memset(q, 9, sizeof q);
    if (rc >= 0) rc = iwp_gguf_writer_data(w, e, 100, err);
    if (rc >= 0) rc = iwp_gguf_writer_data(w, (char *)e + 100, sizeof e - 100, err);
    if (rc >= 0) rc = iwp_gguf_writer_data(w, b, sizeof b, err);
    if (rc >= 0) rc = iwp_gguf_writer_data(w, q, sizeof q, err);
    if (rc >= 0) rc = iwp_gguf_writer_finish(w, err);
    if (rc >= 0 && access(path, F_OK) == 0) rc = -99; /* not before commit */
    if (rc >= 0) rc = iwp_gguf_writer_commit(w, err);
    iwp_gguf_writer_free(w);
    return rc;
}

TEST(round_trip) {
    iwp_err err = {0};
    CHECK_MSG(write_simple(at("a.gguf"), &err) == 0, "%s", err.msg);
    struct iwp_gguf *g;
    CHECK_MSG(iwp_gguf_open(&g, at("a.gguf"), &err) == 0, "%s", err.msg);
    if (!g) return;
    CHECK_INT(g->n_tensor, 3);
    int64_t i64;
    float f;
    bool b;
    uint32_t u;
    const char *s;
    CHECK(iwp_gguf_get_i64(g, "k.i32", &i64, &err) == 0 && i64 == -7);
    CHECK(iwp_gguf_get_i64(g, "k.u64", &i64, &err) == 0 && i64 == 1ll << 40);
    CHECK(iwp_gguf_get_u32(g, "k.u64", &u, &err) == IWP_EFORMAT);
    CHECK(iwp_gguf_get_u32(g, "k.i32", &u, &err) == IWP_EFORMAT);
    CHECK(iwp_gguf_get_f32(g, "k.f32", &f, &err) == 0 && f == 0.25f);
    CHECK(iwp_gguf_opt_bool(g, "k.bool", false, &b, &err) == 0 && b);
    CHECK(iwp_gguf_get_u32(g, "k.bool", &u, &err) == IWP_EFORMAT);
    CHECK(strstr(err.msg, "k.bool") != NULL);
    CHECK(iwp_gguf_get_u32(g, "absent", &u, &err) == IWP_EMISSING);
    CHECK(strstr(err.msg, "absent") != NULL);
    CHECK(iwp_gguf_opt_u32(g, "absent", 5, &u, &err) == 0 && u == 5);
    CHECK(iwp_gguf_get_str(g, "general.architecture", &s, &err) == 0);
    CHECK_STR(s, "llama");
    int32_t v[3];
    CHECK(iwp_gguf_array_i32(g, "k.i16s", v, 3, &err) == 3 && v[0] == -1 && v[2] == 3);
    CHECK(iwp_gguf_array_i32(g, "k.i16s", v, 2, &err) == IWP_EFORMAT);
    float fs[2];
    CHECK(iwp_gguf_array_f32(g, "k.f64s", fs, 2, &err) == 2 && fs[1] == -2);
    const struct iwp_gguf_tensor *t = iwp_gguf_find_tensor(g, "b");
    CHECK(t && t->ne[0] == 3 && t->ne[1] == 5 && t->size == 30);
    if (t) CHECK(iwp_gguf_tensor_data(g, t)[29] == 29);
    CHECK(iwp_gguf_need_tensor(g, "b", 2, (int64_t[]){3, 6}, &t, &err) == IWP_EFORMAT);
    CHECK(strstr(err.msg, "tensor b has shape [3, 5") != NULL);
    CHECK(iwp_gguf_need_tensor(g, "c", 1, (int64_t[]){3}, &t, &err) == IWP_EMISSING);
    CHECK_INT(iwp_gguf_check_vocab(g, &err), 13);
    iwp_gguf_free(g);
}

/* Cutting the file anywhere must be noticed: there is no byte to spare but padding at the end. */
TEST(truncated) {
    iwp_err err = {0};
    uint8_t *data;
    size_t size;
    CHECK(iwp_file_read(at("a.gguf"), 1 << 20, &data, &size, &err) == 0);
    struct iwp_gguf *g;
    for (size_t n = 0; n + 28 < size; n++) {
        uint8_t *copy = malloc(n ? n : 1); /* its own block, so that a read beyond it is seen */
        memcpy(copy, data, n);
        int rc = iwp_gguf_open_memory(&g, copy, n, "cut", &err);
        CHECK_MSG(rc < 0 && !g, "cut to %zu of %zu", n, size);
        iwp_gguf_free(g);
        free(copy);
    }
    free(data);
}

/* Any single byte changed: error or not, nothing may crash (sanitizers watch). */
TEST(flipped) {
    iwp_err err = {0};
    uint8_t *data;
    size_t size;
    CHECK(iwp_file_read(at("a.gguf"), 1 << 20, &data, &size, &err) == 0);
    int refused = 0;
    for (size_t i = 0; i < size && i < 1400; i++)
        for (int bit = 0; bit < 8; bit += 1) {
            data[i] ^= (uint8_t)(1 << bit);
            struct iwp_gguf *g;
            if (iwp_gguf_open_memory(&g, data, size, "flipped", &err) < 0)
                refused++;
            else
                iwp_gguf_check_vocab(g, &err);
            iwp_gguf_free(g);
            data[i] ^= (uint8_t)(1 << bit);
        }
    CHECK_MSG(refused > 1000, "%d refused", refused);
    free(data);
}

static int open_bytes(const void *head, size_t n, iwp_err *err) {
    uint8_t buf[512] = {0};
    memcpy(buf, head, n);
    struct iwp_gguf *g;
    int rc = iwp_gguf_open_memory(&g, buf, sizeof buf, "m", err);
    iwp_gguf_free(g);
    return rc;
}

#define LIE(text, part)                                                                            \
    do {                                                                                           \
        iwp_err e_ = {0};                                                                          \
        CHECK(open_bytes(text, sizeof text - 1, &e_) < 0);                                         \
        CHECK_MSG(strstr(e_.msg, part) != NULL, "message: %s", e_.msg);                            \
    } while (0)
#define HEAD(tensors, kvs) "GGUF\3\0\0\0" tensors "\0\0\0\0\0\0\0" kvs "\0\0\0\0\0\0\0"

TEST(lies) {
    LIE("GGUX\3\0\0\0", "not a GGUF");
    LIE("GGUF\1\0\0\0", "version 1");
    LIE("GGUF\0\0\0\3", "big-endian");
    LIE("GGUF\3\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0", "tensors in a file");
    LIE("GGUF\3\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f", "keys in a file");
    LIE(HEAD("\0", "\1") "\xff\xff\xff\xff\xff\xff\xff\xff", "a key needs");
    LIE(HEAD("\0", "\1") "\0\0\0\0\0\0\0\0", "a key has 0 bytes");
    LIE(HEAD("\0", "\1") "\1\0\0\0\0\0\0\0k\x0d\0\0\0", "unknown kind of value 13");
    LIE(HEAD("\0", "\1") "\1\0\0\0\0\0\0\0k\x09\0\0\0\x09\0\0\0\1\0\0\0\0\0\0\0",
        "unknown kind of value 9");
    LIE(HEAD("\0", "\1") "\1\0\0\0\0\0\0\0k\x09\0\0\0\x04\0\0\0\xff\xff\xff\xff\xff\xff\xff\x3f",
        "do not fit");
    LIE(HEAD("\0", "\1") "\1\0\0\0\0\0\0\0k\x07\0\0\0\5", "truth value");
    LIE(HEAD("\0", "\2") "\1\0\0\0\0\0\0\0k\0\0\0\0\5\1\0\0\0\0\0\0\0k\0\0\0\0\5", "twice");
    LIE(HEAD("\0", "\1") "\x11\0\0\0\0\0\0\0general.alignment\4\0\0\0\3\0\0\0", "power of two");
    LIE(HEAD("\0", "\1") "\x11\0\0\0\0\0\0\0general.alignment\0\0\0\0\x20", "not a u32");
    LIE(HEAD("\1", "\0") "\1\0\0\0\0\0\0\0t\5\0\0\0", "5 dimensions");
    LIE(HEAD("\1", "\0") "\1\0\0\0\0\0\0\0t\1\0\0\0\0\0\0\0\0\0\0\0", "dimension 0 is 0");
    LIE(HEAD("\1", "\0") "\1\0\0\0\0\0\0\0t\2\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\1",
        "dimension 1 is");
    LIE(HEAD("\1", "\0") "\1\0\0\0\0\0\0\0t\1\0\0\0\4\0\0\0\0\0\0\0\4\0\0\0", "unknown type 4");
    LIE(HEAD("\1", "\0") "\1\0\0\0\0\0\0\0t\1\0\0\0\4\0\0\0\0\0\0\0\2\0\0\0",
        "not whole q4_0 blocks");
    LIE(HEAD("\1", "\0") "\1\0\0\0\0\0\0\0t\1\0\0\0\4\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0",
        "lies at 32");
    LIE(HEAD("\1", "\0") "\1\0\0\0\0\0\0\0t\1\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        "truncated: tensor t");
    LIE(HEAD("\2", "\0") "\1\0\0\0\0\0\0\0t\1\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                         "\1\0\0\0\0\0\0\0t\1\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0",
        "tensor t appears twice");
    char name[100];
    memcpy(name, "GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0", 32);
    memset(name + 32, 'n', 68);
    iwp_err err = {0};
    CHECK(open_bytes(name, sizeof name, &err) < 0);
    CHECK(strstr(err.msg, "64 bytes") != NULL);
}

static void write_part(const char *path, int no, int count, int tensors, int total) {
    iwp_err err = {0};
    struct iwp_gguf_writer *w;
    CHECK(iwp_gguf_writer_new(&w, &err) == 0);
    if (no == 0) fill(w, 0);
    iwp_gguf_add_u32(w, "split.no", (uint32_t)no);
    iwp_gguf_add_u32(w, "split.count", (uint32_t)count);
    iwp_gguf_add_i32(w, "split.tensors.count", total);
    float v[4] = {1, 2, 3, (float)no};
    char name[16];
    for (int i = 0; i < tensors; i++) {
        snprintf(name, sizeof name, "t%d.%d", no, i);
        iwp_gguf_add_tensor(w, name, IWP_TYPE_F32, 1, (int64_t[]){4});
    }
    CHECK(iwp_gguf_writer_begin(w, path, &err) == 0);
    for (int i = 0; i < tensors; i++) CHECK(iwp_gguf_writer_data(w, v, sizeof v, &err) == 0);
    CHECK(iwp_gguf_writer_finish(w, &err) == 0);
    CHECK(iwp_gguf_writer_commit(w, &err) == 0);
    iwp_gguf_writer_free(w);
}

TEST(split) {
    iwp_err err = {0};
    write_part(at("s-00001-of-00003.gguf"), 0, 3, 0, 3);
    write_part(at("s-00002-of-00003.gguf"), 1, 3, 2, 3);
    write_part(at("s-00003-of-00003.gguf"), 2, 3, 1, 3);
    struct iwp_gguf *g;
    CHECK_MSG(iwp_gguf_open(&g, at("s-00001-of-00003.gguf"), &err) == 0, "%s", err.msg);
    if (g) {
        CHECK_INT(g->n_tensor, 3);
        const struct iwp_gguf_tensor *t = iwp_gguf_find_tensor(g, "t2.0");
        CHECK(t && t->part == 2);
        float v[4] = {0};
        if (t) memcpy(v, iwp_gguf_tensor_data(g, t), 16);
        CHECK(v[3] == 2);
        if (t) CHECK(strstr(iwp_gguf_tensor_path(g, t), "s-00003-of-00003.gguf") != NULL);
        iwp_gguf_free(g);
    }
    CHECK(iwp_gguf_open(&g, at("s-00002-of-00003.gguf"), &err) == IWP_EINVAL);
    CHECK(strstr(err.msg, "give the first one") != NULL);
    write_part(at("s-00003-of-00003.gguf"), 1, 3, 1, 3);
    CHECK(iwp_gguf_open(&g, at("s-00001-of-00003.gguf"), &err) < 0);
    CHECK_MSG(strstr(err.msg, "split.no is 1") != NULL, "%s", err.msg);
    write_part(at("s-00003-of-00003.gguf"), 2, 3, 2, 3);
    CHECK(iwp_gguf_open(&g, at("s-00001-of-00003.gguf"), &err) < 0);
    CHECK_MSG(strstr(err.msg, "4 tensors in all parts") != NULL, "%s", err.msg);
    unlink(at("s-00003-of-00003.gguf"));
    CHECK(iwp_gguf_open(&g, at("s-00001-of-00003.gguf"), &err) == IWP_EIO);
    CHECK_MSG(strstr(err.msg, "s-00003-of-00003.gguf") != NULL, "%s", err.msg);
}

/* Vocabulary faults, one per rule. */
static int check_with(void (*change)(struct iwp_gguf_writer *), int spm, iwp_err *err) {
    struct iwp_gguf_writer *w;
    IWP_TRY(iwp_gguf_writer_new(&w, err));
    if (spm >= 0) fill(w, spm);
    change(w);
    IWP_TRY(iwp_gguf_writer_begin(w, at("v.gguf"), err));
    IWP_TRY(iwp_gguf_writer_finish(w, err));
    IWP_TRY(iwp_gguf_writer_commit(w, err));
    iwp_gguf_writer_free(w);
    struct iwp_gguf *g;
    IWP_TRY(iwp_gguf_open(&g, at("v.gguf"), err));
    int rc = iwp_gguf_check_vocab(g, err);
    iwp_gguf_free(g);
    return rc;
}

static void nothing(struct iwp_gguf_writer *w) { (void)w; }
static void bad_eos(struct iwp_gguf_writer *w) {
    iwp_gguf_add_u32(w, "tokenizer.ggml.eos_token_id", 13);
}
static void bad_scores(struct iwp_gguf_writer *w) {
    float f[3] = {0};
    iwp_gguf_add_array(w, "tokenizer.ggml.scores", IWP_GGUF_F32, f, 3);
}
static void bad_scores_kind(struct iwp_gguf_writer *w) {
    iwp_gguf_add_f32(w, "tokenizer.ggml.scores", 1);
}
static void bad_add(struct iwp_gguf_writer *w) {
    iwp_gguf_add_u32(w, "tokenizer.ggml.add_bos_token", 1);
}
static void bad_name(struct iwp_gguf_writer *w) { iwp_gguf_add_u32(w, "general.name", 1); }
static void tokens(struct iwp_gguf_writer *w, const char *model, const struct iwp_gguf_str *t,
                   uint64_t n) {
    iwp_gguf_add_str(w, "general.architecture", "llama");
    iwp_gguf_add_str(w, "tokenizer.ggml.model", model);
    iwp_gguf_add_strs(w, "tokenizer.ggml.tokens", t, n);
}
static void twice(struct iwp_gguf_writer *w) {
    static const struct iwp_gguf_str t[] = {{"a", 1}, {"b", 1}, {"a", 1}}, m = {"a b", 3};
    tokens(w, "gpt2", t, 3);
    iwp_gguf_add_strs(w, "tokenizer.ggml.merges", &m, 1);
}
static void twice_by_zero(struct iwp_gguf_writer *w) {
    static const struct iwp_gguf_str t[] = {{"a", 1}, {"a\0b", 3}}, m = {"a b", 3};
    tokens(w, "gpt2", t, 2);
    iwp_gguf_add_strs(w, "tokenizer.ggml.merges", &m, 1);
}
static void twice_by_empty(struct iwp_gguf_writer *w) {
    static const struct iwp_gguf_str t[] = {{"", 0}, {"[EMPTY_0]", 9}}, m = {"a b", 3};
    tokens(w, "gpt2", t, 2);
    iwp_gguf_add_strs(w, "tokenizer.ggml.merges", &m, 1);
}
static void no_merges(struct iwp_gguf_writer *w) {
    static const struct iwp_gguf_str t[] = {{"a", 1}};
    tokens(w, "gpt2", t, 1);
}
static void no_bytes(struct iwp_gguf_writer *w) {
    static const struct iwp_gguf_str t[] = {{"a", 1}, {"b", 1}, {"c", 1}};
    tokens(w, "llama", t, 3);
}
static void short_byte(struct iwp_gguf_writer *w) {
    static const struct iwp_gguf_str t[] = {{"a", 1}}, m = {"a b", 3};
    int type = 6;
    tokens(w, "gpt2", t, 1);
    iwp_gguf_add_strs(w, "tokenizer.ggml.merges", &m, 1);
    iwp_gguf_add_array(w, "tokenizer.ggml.token_type", IWP_GGUF_I32, &type, 1);
}
static void no_bos(struct iwp_gguf_writer *w) {
    static const struct iwp_gguf_str t[] = {{"a", 1}}, m = {"a b", 3};
    tokens(w, "gpt2", t, 1);
    iwp_gguf_add_strs(w, "tokenizer.ggml.merges", &m, 1);
    iwp_gguf_add_bool(w, "tokenizer.ggml.add_bos_token", true);
}
static void other_model(struct iwp_gguf_writer *w) {
    static const struct iwp_gguf_str t[] = {{"a", 1}};
    tokens(w, "t5", t, 1);
}

TEST(vocab) {
    static const struct {
        void (*change)(struct iwp_gguf_writer *);
        int base;
        const char *part;
    } bad[] = {
        {bad_eos, 0, "eos_token_id is 13"},
        {bad_scores, 0, "3 values for 13 tokens"},
        {bad_scores_kind, 0, "scores"},
        {bad_add, 0, "add_bos_token"},
        {bad_name, 0, "general.name"},
        {twice, -1, "token 2 ('a') appears twice"},
        {twice_by_zero, -1, "appears twice"},
        {twice_by_empty, -1, "appears twice"},
        {no_merges, -1, "merges"},
        {no_bytes, -1, "<0x00>"},
        {short_byte, -1, "marked as a byte"},
        {no_bos, -1, "bos_token_id is missing"},
        {other_model, -1, "'t5' is not supported"},
    };
    iwp_err err = {0};
    CHECK_INT(check_with(nothing, 0, &err), 13);
    CHECK_INT(check_with(nothing, 1, &err), 269);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int rc = check_with(bad[i].change, bad[i].base, &err);
        CHECK_MSG(rc < 0, "case %zu", i);
        CHECK_MSG(strstr(err.msg, bad[i].part) != NULL, "case %zu: %s", i, err.msg);
    }
}

TEST(writer_refuses) {
    iwp_err err = {0};
    struct iwp_gguf_writer *w;
    CHECK(iwp_gguf_writer_new(&w, &err) == 0);
    iwp_gguf_add_tensor(w, "odd", IWP_TYPE_Q8_0, 1, (int64_t[]){33});
    CHECK(iwp_gguf_writer_begin(w, at("odd.gguf"), &err) == IWP_EINVAL);
    CHECK(strstr(err.msg, "odd") != NULL);
    iwp_gguf_writer_free(w);
    CHECK(iwp_gguf_writer_new(&w, &err) == 0);
    iwp_gguf_add_tensor(w, "t", IWP_TYPE_F32, 1, (int64_t[]){4});
    CHECK(iwp_gguf_writer_begin(w, at("half.gguf"), &err) == 0);
    CHECK(iwp_gguf_writer_finish(w, &err) < 0);
    CHECK(strstr(err.msg, "tensor t was not written") != NULL);
    iwp_gguf_writer_free(w);
    CHECK(access(at("half.gguf"), F_OK) != 0);
}

int main(void) {
    snprintf(dir, sizeof dir, "/tmp/iwp-gguf-XXXXXX");
    if (!mkdtemp(dir)) return 1;
    test_round_trip();
    test_truncated();
    test_flipped();
    test_lies();
    test_split();
    test_vocab();
    test_writer_refuses();
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    if (system(cmd) != 0) return 1;
    return test_done();
}
