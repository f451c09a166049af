/* iwp inspect on folders, converted files and faulty ones: the JSON says what was written. */
#include "convert/inspect.h"

#include "base/err.h"
#include "base/log.h"
#include "checkpoint.h"
#include "convert/convert.h"
#include "io/gguf.h"

static char root[64];

static const char *at(const char *name) {
    static char path[4][200];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, 200, "%s/%s", root, name);
    return p;
}

static cJSON *inspect(const char *path, int w, int h) {
    struct iwp_inspect *r;
    iwp_err err = {0};
    struct iwp_json_out out;
    cJSON *j = NULL;
    CHECK_MSG(iwp_inspect(&r, path, w, h, &err) == 0, "%s", err.msg);
    if (!r) return NULL;
    iwp_json_init(&out, false);
    iwp_inspect_json(r, &out);
    CHECK(!out.failed &&
          iwp_json_parse(out.text, out.len, (struct iwp_json_limits){0, 0}, &j, &err) == 0);
    FILE *f = tmpfile(); /* the page: no crash, ends with the verdict */
    if (f) {
        char line[600], last[600] = "";
        iwp_inspect_print(r, f);
        rewind(f);
        while (fgets(line, sizeof line, f)) snprintf(last, sizeof last, "%s", line);
        CHECK_MSG(strncmp(last, r->runs ? "iwp runs it    yes" : "iwp runs it    no", 17) == 0,
                  "%s", last);
        fclose(f);
    }
    iwp_json_free(&out);
    iwp_inspect_free(r);
    return j;
}

static double number(const cJSON *j, const char *a, const char *b) {
    const cJSON *v = cJSON_GetObjectItem(j, a);
    if (b) v = cJSON_GetObjectItem(v, b);
    CHECK_MSG(cJSON_IsNumber(v), "%s %s", a, b ? b : "");
    return cJSON_IsNumber(v) ? v->valuedouble : -1;
}

static const char *string(const cJSON *j, const char *a, const char *b) {
    const cJSON *v = cJSON_GetObjectItem(j, a);
    const char *s = cJSON_GetStringValue(b ? cJSON_GetObjectItem(v, b) : v);
    return s ? s : "";
}

static int runs(const cJSON *j) { return cJSON_IsTrue(cJSON_GetObjectItem(j, "runs")); }

TEST(folder_and_files) {
    for (int qwen = 0; qwen < 2; qwen++) {
        struct ck c = {.qwen = qwen, .dtype = IWP_ST_BF16, .shards = 2};
        snprintf(c.dir, sizeof c.dir, "%s/ck-%d", root, qwen);
        ck_make(&c);
        iwp_err err = {0};
        struct iwp_convert_params p = {.in = c.dir,
                                       .out = at("m.gguf"),
                                       .mmproj = at("p.gguf"),
                                       .type = "q4_k",
                                       .n_thread = 1};
        CHECK_MSG(iwp_convert(&p, NULL, &err) == 0, "%s", err.msg);
        cJSON *dir = inspect(c.dir, 30, 20), *m = inspect(at("m.gguf"), 0, 0),
              *v = inspect(at("p.gguf"), 30, 20);
        CHECK(runs(dir) && runs(m) && runs(v));
        CHECK_STR(string(dir, "kind", NULL), "huggingface");
        CHECK_STR(string(m, "architecture", NULL), qwen ? "qwen2vl" : "qwen2");
        CHECK_STR(string(m, "type", NULL), "q4_K");
        CHECK_STR(string(v, "vision", "projector"), qwen ? "qwen2.5vl_merger" : "mlp");
        CHECK_STR(string(m, "chat_template", NULL), "T{{ x }}");
        CHECK_STR(string(dir, "chat_template_sha256", NULL),
                  string(m, "chat_template_sha256", NULL));
        /* what the folder holds is what the two files hold, but for the unused norm */
        CHECK_INT(number(m, "parameters", NULL) + number(v, "parameters", NULL),
                  number(dir, "parameters", NULL) - (qwen ? 0 : 2 * CK_VEMBD));
        CHECK_INT(number(dir, "bytes", NULL), 2 * number(dir, "parameters", NULL));
        CHECK_INT(number(dir, "files", NULL), 2);
        static const char *const same[] = {"layers",   "width",        "heads",     "kv_heads",
                                           "head_dim", "feed_forward", "vocabulary"};
        for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
            CHECK_INT(number(m, "decoder", same[i]), number(dir, "decoder", same[i]));
        CHECK_INT(number(m, "decoder", "layers"), CK_LAYER);
        CHECK_INT(number(v, "vision", "layers"), CK_VLAYER);
        CHECK_INT(number(m, "memory", "kv_bytes_per_token_layer"), 4 * CK_KV * CK_EMBD / CK_HEAD);
        /* rows of 96 cannot be q4_K */
        const cJSON *f = cJSON_GetArrayItem(cJSON_GetObjectItem(m, "fallbacks"), 0);
        CHECK_STR(string(f, "tensor", NULL), "blk.0.ffn_down.weight");
        CHECK_STR(string(f, "type", NULL), "q5_0");
        CHECK_INT(number(f, "row", NULL), CK_FF);
        CHECK_INT(cJSON_GetArraySize(cJSON_GetObjectItem(m, "fallbacks")), CK_LAYER);
        /* layers and the rest make the whole */
        double sum = number(m, "memory", "other");
        const cJSON *layers =
            cJSON_GetObjectItem(cJSON_GetObjectItem(m, "memory"), "decoder_layers");
        CHECK_INT(cJSON_GetArraySize(layers), CK_LAYER);
        for (int i = 0; i < CK_LAYER; i++) sum += cJSON_GetArrayItem(layers, i)->valuedouble;
        CHECK_INT(sum, number(m, "bytes", NULL));
        /* 30x20 with patches of 2: 28x20 merged by 4 is 7 x 5; tiles of 6: one row of two */
        CHECK_INT(number(v, "visual_tokens", "tokens"), number(dir, "visual_tokens", "tokens"));
        if (qwen) CHECK_INT(number(v, "visual_tokens", "tokens"), 35 + 5);
        cJSON_Delete(dir);
        cJSON_Delete(m);
        cJSON_Delete(v);
    }
}

static void patch(const char *path, const char *from, const char *to) {
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL);
    if (!f) return;
    static char buf[1 << 22];
    size_t n = fread(buf, 1, sizeof buf, f), m = strlen(from), hits = 0;
    for (size_t i = 0; i + m <= n; i++)
        if (memcmp(buf + i, from, m) == 0) {
            fseek(f, (long)i, SEEK_SET);
            fwrite(to, 1, m, f);
            hits++;
        }
    fclose(f);
    CHECK_MSG(hits > 0, "%s not found", from);
}

TEST(refused) {
    struct ck c = {.dtype = IWP_ST_F32};
    snprintf(c.dir, sizeof c.dir, "%s/refused", root);
    ck_make(&c);
    iwp_err err = {0};
    struct iwp_convert_params p = {
        .in = c.dir, .out = at("m.gguf"), .mmproj = at("p.gguf"), .type = "f16", .n_thread = 1};
    static const struct {
        int mmproj;
        const char *from, *to, *part;
    } bad[] = {
        {0, "blk.1.ffn_up.weight", "blk.1.ffn_xx.weight", "blk.1.ffn_up.weight is missing"},
        {0, "qwen2.embedding_length", "qwen2.xmbedding_length",
         "qwen2.embedding_length is missing"},
        {0, "tokenizer.ggml.merges", "tokenizer.ggml.xerges", "merges"},
        {1, "v.image_newline", "v.image_xewline", "v.image_newline is missing"},
        {1, "iwp.image_grid_pinpoints", "iwp.xmage_grid_pinpoints", "iwp.image_grid_pinpoints"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(iwp_convert(&p, NULL, &err) == 0);
        const char *path = at(bad[i].mmproj ? "p.gguf" : "m.gguf");
        patch(path, bad[i].from, bad[i].to);
        cJSON *j = inspect(path, 0, 0);
        CHECK(!runs(j));
        CHECK_MSG(strstr(string(j, "why", NULL), bad[i].part) != NULL, "%s",
                  string(j, "why", NULL));
        cJSON_Delete(j);
    }
    ck_text(c.dir, "config.json", "%s", "{\"architectures\": [\"OtherForCausalLM\"]}");
    cJSON *j = inspect(c.dir, 0, 0);
    CHECK(!runs(j) && strstr(string(j, "why", NULL), "OtherForCausalLM") != NULL &&
          number(j, "tensors", NULL) > 50);
    cJSON_Delete(j);
    char path[200];
    snprintf(path, sizeof path, "%s/model.safetensors", c.dir);
    j = inspect(path, 0, 0);
    CHECK(!runs(j) && number(j, "tensors", NULL) > 50);
    cJSON_Delete(j);
    struct iwp_inspect *r;
    CHECK(iwp_inspect(&r, at("nowhere"), 0, 0, &err) < 0 && !r);
    CHECK(iwp_inspect(&r, at("m.gguf"), 10, 10, &err) == IWP_EINVAL && !r);
    CHECK(truncate(at("m.gguf"), 20000) == 0);
    CHECK(iwp_inspect(&r, at("m.gguf"), 0, 0, &err) == IWP_EFORMAT && !r);
    CHECK(strstr(err.msg, "truncated") != NULL);
    ck_text(root, "text.safetensors", "%s", "hello");
    CHECK(iwp_inspect(&r, at("text.safetensors"), 0, 0, &err) < 0 && !r);
    CHECK(iwp_inspect(&r, "/dev/null", 0, 0, &err) < 0 && !r);
}

int main(void) {
    snprintf(root, sizeof root, "/tmp/iwp-inspect-XXXXXX");
    if (!mkdtemp(root)) return 1;
    iwp_log_set_level(IWP_LOG_ERROR);
    test_folder_and_files();
    test_refused();
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    if (system(cmd) != 0) return 1;
    return test_done();
}
