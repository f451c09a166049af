/* iwp convert: every tensor and key of converted folders against the source, in all spellings; error
 * bounds of each type; faults that must be named; nothing left behind when it ends early.  The golden
 * checkpoints are converted too when they are there. */
#include "convert/convert.h"

#include <dirent.h>

#include "base/err.h"
#include "base/log.h"
#include "checkpoint.h"
#include "convert/hf.h"
#include "io/gguf.h"
#ifdef IWP_HAVE_GGML
#include <llama.h>
#endif

static char root[64];

static const char *at(const char *name) {
    static char path[8][200];
    static int turn;
    char *p = path[turn++ % 8];
    snprintf(p, 200, "%s/%s", root, name);
    return p;
}

static int run(const char *in, const char *out, const char *mmproj, const char *type,
               iwp_err *err) {
    struct iwp_convert_params p = {
        .in = in, .out = out, .mmproj = mmproj, .type = type, .n_thread = 2};
    return iwp_convert(&p, NULL, err);
}

/* Files in a folder, "." and ".." not counted. */
static int count(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n - 2;
}

/* The source of a GGUF tensor under the converter's neutral names, found without its tables. */
static void source_name(const char *g, int qwen, char *out, size_t cap) {
    static const char *const decoder[][2] = {
        {"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"},
        {"attn_q", "self_attn.q_proj"},   {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"},   {"attn_output", "self_attn.o_proj"},
        {"ffn_gate", "mlp.gate_proj"},    {"ffn_up", "mlp.up_proj"},
        {"ffn_down", "mlp.down_proj"}};
    static const char *const siglip[][2] = {
        {"ln1", "layer_norm1"},         {"ln2", "layer_norm2"},
        {"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"}, {"attn_out", "self_attn.out_proj"},
        {"ffn_up", "mlp.fc1"},          {"ffn_down", "mlp.fc2"}};
    static const char *const tower[][2] = {{"ln1", "norm1"},
                                           {"ln2", "norm2"},
                                           {"attn_q", "attn.qkv"},
                                           {"attn_k", "attn.qkv"},
                                           {"attn_v", "attn.qkv"},
                                           {"attn_out", "attn.proj"},
                                           {"ffn_gate", "mlp.gate_proj"},
                                           {"ffn_up", "mlp.up_proj"},
                                           {"ffn_down", "mlp.down_proj"}};
    static const char *const whole[][2] = {
        {"token_embd.weight", "text.embed_tokens.weight"},
        {"output.weight", "lm_head.weight"},
        {"output_norm.weight", "text.norm.weight"},
        {"v.image_newline", "image_newline"},
        {"v.position_embd.weight", "vision.embeddings.position_embedding.weight"},
        {"v.post_ln.weight", "vision.merger.ln_q.weight"}};
    out[0] = 0;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (strcmp(g, whole[i][0]) == 0) snprintf(out, cap, "%s", whole[i][1]);
    if (strncmp(g, "v.patch_embd.", 13) == 0)
        snprintf(out, cap, "%s.%s",
                 qwen ? "vision.patch_embed.proj" : "vision.embeddings.patch_embedding",
                 strcmp(g + 13, "weight.1") == 0 ? "weight" : g + 13);
    if (strncmp(g, "mm.", 3) == 0)
        snprintf(out, cap, "%s%c%s", qwen ? "vision.merger.mlp." : "projector.linear_",
                 qwen          ? g[3]
                 : g[3] == '0' ? '1'
                               : '2',
                 g + 4);
    int l, used = 0;
    char part[32], kind[16];
    const int vision = sscanf(g, "v.blk.%d.%31[^.].%15s%n", &l, part, kind, &used) == 3;
    if (!vision && sscanf(g, "blk.%d.%31[^.].%15s%n", &l, part, kind, &used) != 3) return;
    const char *const(*table)[2] = !vision ? decoder : qwen ? tower : siglip;
    const size_t n = !vision || qwen ? 9 : 8;
    for (size_t i = 0; i < n; i++)
        if (strcmp(part, table[i][0]) == 0)
            snprintf(out, cap, "%s.%d.%s.%s",
                     !vision ? "text.layers"
                     : qwen  ? "vision.blocks"
                             : "vision.encoder.layers",
                     l, table[i][1], kind);
}

/* Element i of GGUF tensor g lies where in its source. */
static int64_t source_index(const struct iwp_gguf_tensor *g, int qwen, int64_t i) {
    if (!qwen) return i;
    const int64_t n = iwp_gguf_tensor_elements(g);
    if (strncmp(g->name, "v.patch_embd", 12) == 0) {
        const int64_t area = g->ne[0] * g->ne[1];
        return i / area * 2 * area + (ck_ends(g->name, ".1") ? area : 0) + i % area;
    }
    if (strncmp(g->name, "v.blk", 5) == 0 && strstr(g->name, ".attn_k.")) return n + i;
    if (strncmp(g->name, "v.blk", 5) == 0 && strstr(g->name, ".attn_v.")) return 2 * n + i;
    return i;
}

/* Worst error of a file of f32 against the checkpoint; max_rel bounds |error| by the row's largest value. */
static int compare(const char *path, const struct iwp_hf_weights *w, int qwen, double max_rel,
                   double *worst) {
    iwp_err err = {0};
    struct iwp_gguf *g;
    CHECK_MSG(iwp_gguf_open(&g, path, &err) == 0, "%s", err.msg);
    if (!g) return 0;
    for (int k = 0; k < g->n_tensor; k++) {
        const struct iwp_gguf_tensor *t = &g->tensor[k];
        char from[160];
        source_name(t->name, qwen, from, sizeof from);
        const struct iwp_st_tensor *s = iwp_hf_find_weight(w, from);
        CHECK_MSG(s != NULL && t->type == IWP_TYPE_F32, "%s from %s", t->name, from);
        if (!s || t->type != IWP_TYPE_F32) continue;
        const int64_t n = iwp_gguf_tensor_elements(t);
        float *all = malloc((size_t)s->n * 4);
        CHECK(iwp_st_read_f32(s, 0, s->n, all, &err) == 0);
        int bad = 0;
        for (int64_t r = 0; r < n; r += t->ne[0]) {
            double top = 0;
            for (int64_t i = r; i < r + t->ne[0]; i++)
                top = fmax(top, fabs((double)all[source_index(t, qwen, i)]));
            for (int64_t i = r; i < r + t->ne[0]; i++) {
                float got;
                memcpy(&got, iwp_gguf_tensor_data(g, t) + 4 * i, 4);
                double e = fabs((double)got - (double)all[source_index(t, qwen, i)]);
                if (e > max_rel * top) bad++;
                if (worst && top > 0) *worst = fmax(*worst, e / top);
            }
        }
        CHECK_MSG(bad == 0, "%s: %d values of %lld are off", t->name, bad, (long long)n);
        free(all);
    }
    int n = g->n_tensor;
    iwp_gguf_free(g);
    return n;
}

#define KEY_U32(g, key, want)                                                                      \
    do {                                                                                           \
        uint32_t u_ = 0;                                                                           \
        iwp_err e_ = {0};                                                                          \
        CHECK_MSG(iwp_gguf_get_u32(g, key, &u_, &e_) == 0, "%s", e_.msg);                          \
        CHECK_MSG(u_ == (want), "%s is %u, want %u", key, u_, (unsigned)(want));                   \
    } while (0)
#define KEY_STR(g, key, want)                                                                      \
    do {                                                                                           \
        const char *s_ = NULL;                                                                     \
        iwp_err e_ = {0};                                                                          \
        CHECK_MSG(iwp_gguf_get_str(g, key, &s_, &e_) == 0, "%s", e_.msg);                          \
        CHECK_STR(s_, want);                                                                       \
    } while (0)

static void check_tokenizer(const struct iwp_gguf *g, int fresh) {
    static const char *const want[] = {"a", "b", "ab", "\xc4\x8a", "c", "[PAD5]"};
    iwp_err err = {0};
    CHECK_INT(iwp_gguf_check_vocab(g, &err), CK_VOCAB);
    KEY_STR(g, "tokenizer.ggml.pre", "qwen2");
    KEY_STR(g, "tokenizer.chat_template", "T{{ x }}");
    KEY_U32(g, "tokenizer.ggml.bos_token_id", 30);
    KEY_U32(g, "tokenizer.ggml.eos_token_id", 31);
    KEY_U32(g, "tokenizer.ggml.padding_token_id", 30);
    struct iwp_gguf_iter it = iwp_gguf_iterate(iwp_gguf_find(g, "tokenizer.ggml.tokens"));
    struct iwp_gguf_str s;
    for (int i = 0; i < 6 && iwp_gguf_next(&it, &s); i++)
        CHECK(s.n == strlen(want[i]) && memcmp(s.p, want[i], s.n) == 0);
    const struct iwp_gguf_kv *types = iwp_gguf_find(g, "tokenizer.ggml.token_type");
    static const int kinds[][2] = {{0, 1},  {5, 5},  {30, 3}, {31, 3},
                                   {32, 4}, {33, 3}, {34, 3}, {39, 5}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        CHECK_INT(iwp_gguf_value_i64(types, (uint64_t)kinds[i][0]), kinds[i][1]);
    it = iwp_gguf_iterate(iwp_gguf_find(g, "tokenizer.ggml.merges"));
    CHECK(iwp_gguf_next(&it, &s) && s.n == 3 && memcmp(s.p, "a b", 3) == 0);
    const char *second = fresh ? "ab c\xc4\xa0"
                                 "d"
                               : "ab c";
    CHECK(iwp_gguf_next(&it, &s) && s.n == strlen(second) && memcmp(s.p, second, s.n) == 0);
}

static void check_model_keys(const char *path, const struct ck *c) {
    iwp_err err = {0};
    struct iwp_gguf *g;
    CHECK_MSG(iwp_gguf_open(&g, path, &err) == 0, "%s", err.msg);
    if (!g) return;
    const char *a = c->qwen ? "qwen2vl" : "qwen2";
    char key[80];
    KEY_STR(g, "general.architecture", a);
    static const struct {
        const char *key;
        uint32_t v;
    } ints[] = {{"block_count", CK_LAYER},          {"embedding_length", CK_EMBD},
                {"feed_forward_length", CK_FF},     {"attention.head_count", CK_HEAD},
                {"attention.head_count_kv", CK_KV}, {"context_length", 4096}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", a, ints[i].key);
        KEY_U32(g, key, ints[i].v);
    }
    float f;
    snprintf(key, sizeof key, "%s.rope.freq_base", a);
    CHECK(iwp_gguf_get_f32(g, key, &f, &err) == 0 && f == 5e5f);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", a);
    CHECK(iwp_gguf_get_f32(g, key, &f, &err) == 0 && f == 1e-5f);
    int32_t sections[4] = {0};
    CHECK_INT(iwp_gguf_array_i32(g, "qwen2vl.rope.dimension_sections", sections, 4, &err),
              c->qwen ? 4 : 0);
    if (c->qwen)
        CHECK(sections[0] == 8 && sections[1] == 12 && sections[2] == 12 && sections[3] == 0);
    KEY_STR(g, "iwp.model_type", c->qwen ? "qwen2_5_vl" : "llava_onevision");
    KEY_U32(g, "iwp.image_token_id", 33);
    KEY_U32(g, "iwp.video_token_id", 34);
    if (c->qwen) KEY_U32(g, "iwp.vision_start_token_id", 35);
    CHECK((iwp_gguf_find_tensor(g, "output.weight") == NULL) == c->tied);
    check_tokenizer(g, c->fresh);
    iwp_gguf_free(g);
}

static void check_mmproj_keys(const char *path, const struct ck *c) {
    iwp_err err = {0};
    struct iwp_gguf *g;
    CHECK_MSG(iwp_gguf_open(&g, path, &err) == 0, "%s", err.msg);
    if (!g) return;
    KEY_STR(g, "general.architecture", "clip");
    KEY_STR(g, "clip.projector_type", c->qwen ? "qwen2.5vl_merger" : "mlp");
    KEY_U32(g, "clip.vision.embedding_length", CK_VEMBD);
    KEY_U32(g, "clip.vision.feed_forward_length", CK_VFF);
    KEY_U32(g, "clip.vision.block_count", CK_VLAYER);
    KEY_U32(g, "clip.vision.attention.head_count", CK_VHEAD);
    KEY_U32(g, "clip.vision.patch_size", CK_PATCH);
    KEY_U32(g, "clip.vision.projection_dim", CK_EMBD);
    float v[3], eps;
    CHECK(iwp_gguf_array_f32(g, "clip.vision.image_mean", v, 3, &err) == 3 && v[2] == 0.125f);
    CHECK(iwp_gguf_array_f32(g, "clip.vision.image_std", v, 3, &err) == 3 && v[2] == 0.75f);
    CHECK(iwp_gguf_get_f32(g, "clip.vision.attention.layer_norm_epsilon", &eps, &err) == 0 &&
          eps == 1e-6f);
    int32_t i32[8];
    if (c->qwen) {
        CHECK(iwp_gguf_array_i32(g, "iwp.fullatt_block_indexes", i32, 8, &err) == 2 &&
              i32[0] == 1 && i32[1] == 3);
        KEY_U32(g, "clip.vision.n_wa_pattern", 2);
        KEY_U32(g, "clip.vision.window_size", 8);
        KEY_U32(g, "clip.vision.spatial_merge_size", 2);
        KEY_U32(g, "iwp.min_pixels", 16);
        KEY_U32(g, "iwp.max_pixels", 4096);
        KEY_U32(g, "iwp.tokens_per_second", 2);
    } else {
        int64_t layer;
        KEY_U32(g, "clip.vision.image_size", 6);
        KEY_U32(g, "iwp.anyres_max", 9);
        KEY_STR(g, "iwp.vision_act", "gelu_tanh");
        KEY_STR(g, "iwp.projector_act", "gelu_erf");
        CHECK(iwp_gguf_get_i64(g, "iwp.vision_feature_layer", &layer, &err) == 0 && layer == -2);
        CHECK(iwp_gguf_array_i32(g, "clip.vision.feature_layer", i32, 8, &err) == 1 &&
              i32[0] == CK_VLAYER - 1);
        CHECK(iwp_gguf_array_i32(g, "iwp.image_grid_pinpoints", i32, 8, &err) == 6 && i32[2] == 6 &&
              i32[3] == 12);
        CHECK(iwp_gguf_array_i32(g, "clip.vision.image_grid_pinpoints", i32, 8, &err) == 6 &&
              i32[2] == 12 && i32[3] == 6);
    }
    iwp_gguf_free(g);
}

#ifdef IWP_HAVE_GGML
static void quiet(enum ggml_log_level level, const char *text, void *arg) {
    (void)level, (void)text, (void)arg;
}

/* llama.cpp's own loader takes the model file. */
static void check_llama(const char *path) {
    llama_log_set(quiet, NULL);
    struct llama_model_params p = llama_model_default_params();
    struct llama_model *m = llama_model_load_from_file(path, p);
    CHECK_MSG(m != NULL, "libllama refuses %s", path);
    if (m) CHECK(llama_model_n_embd(m) > 0);
    llama_model_free(m);
}
#else
static void check_llama(const char *path) { (void)path; }
#endif

/* All spellings: exact in f32, every tensor of the source used. */
TEST(exact) {
    for (int k = 0; k < 16; k++) {
        struct ck c = {.qwen = k & 1,
                       .fresh = k >> 1 & 1,
                       .tied = k >> 2 & 1,
                       .shards = k & 8 ? 3 : 1,
                       .dtype = IWP_ST_F32};
        if (k == 10) c.dtype = IWP_ST_BF16;
        snprintf(c.dir, sizeof c.dir, "%s/exact-%d", root, k);
        ck_make(&c);
        iwp_err err = {0};
        int rc = run(c.dir, at("m.gguf"), at("p.gguf"), "f32", &err);
        CHECK_MSG(rc == 0, "case %d: %s", k, err.msg);
        if (rc < 0) continue;
        struct iwp_hf_weights w;
        CHECK(iwp_hf_open_weights(&w, c.dir, &err) == 0);
        int n =
            compare(at("m.gguf"), &w, c.qwen, 0, NULL) + compare(at("p.gguf"), &w, c.qwen, 0, NULL);
        /* q, k, v and the patches are split; the post layer norm is not used */
        int want = w.n + (c.qwen ? 2 * 2 * CK_VLAYER + 1 : -2);
        CHECK_INT(n, want);
        iwp_hf_close_weights(&w);
        check_model_keys(at("m.gguf"), &c);
        check_mmproj_keys(at("p.gguf"), &c);
        check_llama(at("m.gguf"));
    }
}

/* Each type, back to f32 by a second conversion: error bounds by the format's arithmetic. */
TEST(types) {
    static const struct {
        const char *type;
        double bound;                  /* of the row's largest value */
        uint32_t matrix, head, narrow; /* attn_q (256), output, ffn_down (rows of 96) */
    } types[] = {
        {"f16", 0x1p-11, IWP_TYPE_F16, IWP_TYPE_F16, IWP_TYPE_F16},
        {"bf16", 0x1p-8, IWP_TYPE_BF16, IWP_TYPE_BF16, IWP_TYPE_BF16},
        /* half a step, and a scale rounded to f16 */
        {"q8_0", (0.5 + 127 * 0x1p-11) / 127, IWP_TYPE_Q8_0, IWP_TYPE_Q8_0, IWP_TYPE_Q8_0},
        {"q4_0", 1.02 / 8, IWP_TYPE_Q4_0, IWP_TYPE_Q6_K, IWP_TYPE_Q4_0},
        {"q4_k", 1.02 / 8, IWP_TYPE_Q4_K, IWP_TYPE_Q6_K, IWP_TYPE_Q5_0},
    };
    struct ck c = {.dtype = IWP_ST_F32};
    snprintf(c.dir, sizeof c.dir, "%s/types", root);
    ck_make(&c);
    iwp_err err = {0};
    struct iwp_hf_weights w;
    CHECK(iwp_hf_open_weights(&w, c.dir, &err) == 0);
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        CHECK_MSG(run(c.dir, at("t.gguf"), at("tp.gguf"), types[k].type, &err) == 0, "%s", err.msg);
        struct iwp_gguf *g;
        CHECK(iwp_gguf_open(&g, at("t.gguf"), &err) == 0);
        if (!g) continue;
        CHECK_INT(iwp_gguf_find_tensor(g, "blk.0.attn_q.weight")->type, types[k].matrix);
        CHECK_INT(iwp_gguf_find_tensor(g, "output.weight")->type, types[k].head);
        CHECK_INT(iwp_gguf_find_tensor(g, "blk.0.ffn_down.weight")->type, types[k].narrow);
        CHECK_INT(iwp_gguf_find_tensor(g, "blk.0.attn_norm.weight")->type, IWP_TYPE_F32);
        CHECK_INT(iwp_gguf_find_tensor(g, "blk.0.attn_q.bias")->type, IWP_TYPE_F32);
        iwp_gguf_free(g);
        /* width 40 is no multiple of 32: the tower falls back to f16 */
        CHECK(iwp_gguf_open(&g, at("tp.gguf"), &err) == 0);
        if (!g) continue;
        CHECK_INT(iwp_gguf_find_tensor(g, "v.blk.0.attn_q.weight")->type,
                  k == 1 ? IWP_TYPE_BF16 : IWP_TYPE_F16);
        CHECK_INT(iwp_gguf_find_tensor(g, "mm.2.weight")->type,
                  k < 2 ? types[k].matrix : IWP_TYPE_Q8_0);
        CHECK_INT(iwp_gguf_find_tensor(g, "v.patch_embd.weight")->type, IWP_TYPE_F32);
        iwp_gguf_free(g);
        CHECK_MSG(run(at("t.gguf"), at("t32.gguf"), NULL, "f32", &err) == 0, "%s", err.msg);
        double worst = 0;
        compare(at("t32.gguf"), &w, 0, types[k].bound, &worst);
        CHECK_MSG(worst > types[k].bound / 50, "%s: error %g is too good to be true", types[k].type,
                  worst);
        check_llama(at("t.gguf"));
    }
    /* a GGUF to its own type changes nothing; f32 to q8_0 is what the folder gives */
    CHECK(run(c.dir, at("a.gguf"), at("ap.gguf"), "q8_0", &err) == 0);
    CHECK(run(c.dir, at("b32.gguf"), at("bp.gguf"), "f32", &err) == 0);
    CHECK(run(at("b32.gguf"), at("b.gguf"), NULL, "q8_0", &err) == 0);
    CHECK(run(at("a.gguf"), at("c.gguf"), NULL, "q8_0", &err) == 0);
    struct iwp_gguf *a = NULL, *b = NULL, *d = NULL;
    CHECK(iwp_gguf_open(&a, at("a.gguf"), &err) == 0 &&
          iwp_gguf_open(&b, at("b.gguf"), &err) == 0 && iwp_gguf_open(&d, at("c.gguf"), &err) == 0);
    CHECK(a->n_kv == b->n_kv && a->n_kv == d->n_kv);
    for (int i = 0; i < a->n_tensor; i++) {
        const struct iwp_gguf_tensor *t = &a->tensor[i], *u = iwp_gguf_find_tensor(b, t->name),
                                     *v = iwp_gguf_find_tensor(d, t->name);
        CHECK_MSG(u && v && u->size == t->size && v->size == t->size &&
                      memcmp(iwp_gguf_tensor_data(a, t), iwp_gguf_tensor_data(b, u), t->size) ==
                          0 &&
                      memcmp(iwp_gguf_tensor_data(a, t), iwp_gguf_tensor_data(d, v), t->size) == 0,
                  "%s", t->name);
    }
    iwp_gguf_free(a);
    iwp_gguf_free(b);
    iwp_gguf_free(d);
    iwp_hf_close_weights(&w);
}

static void refuse(const char *what, const char *dir, const char *part) {
    iwp_err err = {0};
    mkdir(at("out"), 0755);
    int rc = run(dir, at("out/m.gguf"), at("out/p.gguf"), "f16", &err);
    CHECK_MSG(rc < 0, "%s was taken", what);
    CHECK_MSG(strstr(err.msg, part) != NULL, "%s: %s", what, err.msg);
    CHECK_INT(count(at("out")), 0);
}

TEST(faults) {
    struct ck c = {.dtype = IWP_ST_F32};
    int k = 0;
#define FAULT(qwen_, field, value, part)                                                           \
    do {                                                                                           \
        struct ck f_ = {.qwen = qwen_, .dtype = IWP_ST_F32, .field = value};                       \
        snprintf(f_.dir, sizeof f_.dir, "%s/fault-%d", root, k++);                                 \
        ck_make(&f_);                                                                              \
        refuse(value, f_.dir, part);                                                               \
    } while (0)
    FAULT(0, skip, "layers.1.mlp.up_proj.weight", "text.layers.1.mlp.up_proj.weight is missing");
    FAULT(0, skip, "image_newline", "image_newline is missing");
    FAULT(0, skip, "lm_head.weight", "lm_head.weight is missing");
    FAULT(1, skip, "visual.blocks.3.attn.qkv.bias", "vision.blocks.3.attn.qkv.bias is missing");
    FAULT(1, misshape, "visual.merger.mlp.2.weight",
          "visual.merger.mlp.2.weight is F32 [257, 160], expected [256, 160]");
    FAULT(0, misshape, "layers.0.self_attn.k_proj.bias", "expected [128]");
    FAULT(0, poison, "layers.0.self_attn.q_proj.weight",
          "blk.0.attn_q.weight holds a value that is not finite");
#undef FAULT
    snprintf(c.dir, sizeof c.dir, "%s/config", root);
    c.shards = 2;
    ck_make(&c);
    char path[200], *keep = NULL;
    size_t n;
    iwp_err err = {0};
    CHECK(iwp_hf_read_text(c.dir, "config.json", &keep, &n, &err) == 0);
    ck_text(c.dir, "config.json", "%s", "{\"architectures\": [\"LlamaForCausalLM\"]}");
    refuse("another class", c.dir, "'LlamaForCausalLM' is not supported");
    ck_text(c.dir, "config.json", "%s", "{");
    refuse("broken JSON", c.dir, "config.json");
    ck_text(c.dir, "config.json", "%s", "[]");
    refuse("no object", c.dir, "not supported");
    ck_text(c.dir, "config.json", "%s", keep);
    free(keep);
    snprintf(path, sizeof path, "%s/tokenizer.json", c.dir);
    unlink(path);
    refuse("no tokenizer", c.dir, "tokenizer.json");
    ck_configs(&c);
    ck_text(c.dir, "model.safetensors.index.json", "%s",
            "{\"weight_map\": {\"a\": \"../x.safetensors\"}}");
    refuse("a path in the index", c.dir, "not of this folder");
    ck_text(c.dir, "model.safetensors.index.json", "%s",
            "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}");
    refuse("a tensor only the index has", c.dir, "tensor a is missing");
    ck_text(c.dir, "model.safetensors.index.json", "%s", "{\"weight_map\": {}}");
    refuse("an empty index", c.dir, "empty weight_map");
    ck_weights(&c);
    snprintf(path, sizeof path, "%s/model-00002-of-00002.safetensors", c.dir);
    CHECK(truncate(path, 1000) == 0);
    refuse("a cut shard", c.dir, "model-00002-of-00002.safetensors");
    unlink(path);
    refuse("a lost shard", c.dir, "model-00002-of-00002.safetensors");
    refuse("no folder", at("nowhere"), "no such file or folder");
}

static int calls_left;
static bool count_down(void *ctx) {
    (void)ctx;
    return --calls_left < 0;
}

/* Interrupted at any chunk: both outputs absent, no temporary file. */
TEST(interrupted) {
    struct ck c = {.qwen = 1, .dtype = IWP_ST_F32};
    snprintf(c.dir, sizeof c.dir, "%s/interrupt", root);
    ck_make(&c);
    mkdir(at("stop"), 0755);
    int seen = 0, rc = 0;
    iwp_err err = {0};
    for (int n = 0; n < 1000; n += 9) {
        struct iwp_convert_params p = {.in = c.dir,
                                       .out = at("stop/m.gguf"),
                                       .mmproj = at("stop/p.gguf"),
                                       .type = "f16",
                                       .n_thread = 1,
                                       .cancelled = count_down};
        calls_left = n;
        rc = iwp_convert(&p, NULL, &err);
        if (rc == 0) break;
        CHECK_INT(rc, IWP_ECANCELLED);
        CHECK_INT(count(at("stop")), 0);
        seen++;
    }
    CHECK(seen > 5 && rc == 0);
    CHECK_INT(count(at("stop")), 2);
}

TEST(usage) {
    struct ck c = {.dtype = IWP_ST_F32};
    snprintf(c.dir, sizeof c.dir, "%s/usage", root);
    ck_make(&c);
    iwp_err err = {0};
    CHECK(run(c.dir, at("u.gguf"), NULL, "f16", &err) == IWP_EINVAL);
    CHECK(run(c.dir, at("u.gguf"), at("u.gguf"), "f16", &err) == IWP_EINVAL);
    CHECK(run(c.dir, at("u.gguf"), at("up.gguf"), "q3", &err) == IWP_EINVAL);
    CHECK(strstr(err.msg, "q3") != NULL);
    CHECK(run(c.dir, at("no/u.gguf"), at("up.gguf"), "f16", &err) == IWP_EIO);
    CHECK(run(c.dir, at("up.gguf"), at("no/u.gguf"), "f16", &err) == IWP_EIO);
    CHECK(access(at("up.gguf"), F_OK) != 0);
    CHECK(run(c.dir, at("u.gguf"), at("up.gguf"), NULL, &err) == 0);
    CHECK(run(at("u.gguf"), at("u.gguf"), NULL, "q8_0", &err) == IWP_EINVAL);
    CHECK(run(at("u.gguf"), at("v.gguf"), at("w.gguf"), "q8_0", &err) == IWP_EINVAL);
    CHECK(truncate(at("u.gguf"), 4000) == 0);
    CHECK(run(at("u.gguf"), at("v.gguf"), NULL, "q8_0", &err) == IWP_EFORMAT);
    CHECK(access(at("v.gguf"), F_OK) != 0);
}

/* The golden checkpoints, in both forms of their configuration. */
TEST(golden) {
    static const char *const names[] = {"llava-ov", "qwen2.5-vl"};
    static const char *const files[] = {"model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    const char *shared = getenv("IWP_SHARED");
    for (int k = 0; k < 2; k++) {
        char dir[300], from[400], to[400];
        snprintf(dir, sizeof dir, "%s/golden/models/%s",
                 shared ? shared : IWP_TEST_DATA "/../../../shared", names[k]);
        if (access(dir, F_OK) != 0)
            snprintf(dir, sizeof dir, "%s/golden/models/%s", IWP_TEST_DATA, names[k]);
        if (access(dir, F_OK) != 0) {
            CHECK_MSG(k == 1, "%s must be in the tree", names[k]);
            fprintf(stderr, "no golden checkpoint %s, skipped\n", names[k]);
            continue;
        }
        iwp_err err = {0};
        struct iwp_hf_weights w;
        CHECK(iwp_hf_open_weights(&w, dir, &err) == 0);
        CHECK_MSG(run(dir, at("g.gguf"), at("gp.gguf"), "f32", &err) == 0, "%s", err.msg);
        int n = compare(at("g.gguf"), &w, k, 0, NULL) + compare(at("gp.gguf"), &w, k, 0, NULL);
        CHECK_INT(n, w.n + (k ? 2 * 2 * 8 + 1 : -2));
        check_llama(at("g.gguf"));
        const char *old = at("released");
        mkdir(old, 0755);
        for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
            snprintf(from, sizeof from, "%s/%s", dir, files[i]);
            snprintf(to, sizeof to, "%s/%s", old, files[i]);
            unlink(to);
            CHECK(symlink(from, to) == 0);
        }
        for (int i = 0; i < 2; i++) {
            const char *f = i ? "preprocessor_config.json" : "config.json";
            snprintf(from, sizeof from, "%s/released-form/%s", dir, f);
            snprintf(to, sizeof to, "%s/%s", old, f);
            unlink(to);
            CHECK(symlink(from, to) == 0);
        }
        CHECK_MSG(run(old, at("h.gguf"), at("hp.gguf"), "f32", &err) == 0, "%s", err.msg);
        for (int f = 0; f < 2;
             f++) { /* both forms say the same: all pairs but the name, all data */
            struct iwp_gguf *a = NULL, *b = NULL;
            CHECK(iwp_gguf_open(&a, at(f ? "gp.gguf" : "g.gguf"), &err) == 0 &&
                  iwp_gguf_open(&b, at(f ? "hp.gguf" : "h.gguf"), &err) == 0);
            CHECK_INT(a->n_kv, b->n_kv);
            for (int i = 0; i < a->n_kv; i++) {
                const struct iwp_gguf_kv *x = &a->kv[i], *y = iwp_gguf_find(b, x->key);
                CHECK_MSG(strcmp(x->key, "general.name") == 0 ||
                              (y && x->size == y->size && memcmp(x->data, y->data, x->size) == 0),
                          "%s: %s", names[k], x->key);
            }
            CHECK_INT(a->n_tensor, b->n_tensor);
            iwp_gguf_free(a);
            iwp_gguf_free(b);
        }
        iwp_hf_close_weights(&w);
    }
}

int main(void) {
    snprintf(root, sizeof root, "/tmp/iwp-convert-XXXXXX");
    if (!mkdtemp(root)) return 1;
    iwp_log_set_level(IWP_LOG_ERROR);
    test_exact();
    test_types();
    test_faults();
    test_interrupted();
    test_usage();
    test_golden();
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    if (system(cmd) != 0) return 1;
    return test_done();
}
