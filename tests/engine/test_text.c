/* The same GGUF in llama.cpp and in iwp: 32 greedy tokens of the golden checkpoints after a text, logits
 * after a picture that needs no resizing, and 64 tokens of SmolLM2 (a real llama model) when IWP_SMOLLM2
 * names its file (make test-real). */
#include <llama.h>
#include <math.h>
#include <png.h>

#include "../towers/golden.h"
#include "model/session.h"

static int32_t best(const float *x, int32_t n) {
    int32_t b = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[b]) b = i;
    return b;
}

static void compare(const char *file, const char *text, int steps, double bound) {
    iwp_err err = {0};
    iwp_engine *e;
    iwp_session *s;
    iwp_prompt *p;
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = file;
    ep.n_thread = 1;
    CHECK_MSG(iwp_engine_open(&e, &ep, &err) == 0, "%s", err.msg);
    struct iwp_prompt_request r = {.raw = text};
    CHECK_MSG(iwp_engine_prompt(e, &r, &p, &err) == 0, "%s", err.msg);
    struct iwp_session_params sp = iwp_session_default_params();
    CHECK_INT(iwp_session_new(&s, e, &sp, &err), 0);
    CHECK_INT(iwp_session_begin(s, p, NULL, &err), 0);
    while (iwp_session_step(s, &err) > 0) {
    }
    CHECK_MSG(iwp_session_logits(s) != NULL, "%s", err.msg);

    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    struct llama_model *m = llama_model_load_from_file(file, mp);
    CHECK(m != NULL);
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 512;
    cp.n_threads = cp.n_threads_batch = 1;
    struct llama_context *c = llama_init_from_model(m, cp);
    CHECK(c != NULL);
    const int32_t n_vocab = iwp_engine_info(e).n_vocab;
    struct llama_batch b = llama_batch_get_one(p->id, p->n);
    for (int i = 0; i < steps; i++) {
        CHECK_INT(llama_decode(c, b), 0);
        const float *want = llama_get_logits_ith(c, -1), *got = iwp_session_logits(s);
        double d = 0, top = 0;
        for (int32_t k = 0; k < n_vocab; k++) {
            d = fmax(d, fabs((double)want[k] - got[k]));
            top = fmax(top, fabs((double)want[k]));
        }
        CHECK_MSG(d <= bound * top, "step %d: %g of %g", i, d, top);
        int32_t id = best(want, n_vocab);
        CHECK_MSG(best(got, n_vocab) == id, "step %d: %d, llama.cpp %d", i, best(got, n_vocab), id);
        CHECK_INT(iwp_session_feed(s, id, &err), 0);
        static int32_t next;
        next = id;
        b = llama_batch_get_one(&next, 1);
    }
    llama_free(c);
    llama_model_free(m);
    iwp_session_free(s);
    iwp_engine_prompt_free(p);
    iwp_engine_close(e);
}

TEST(golden) {
    static const char *const names[] = {"llava-ov", "qwen2.5-vl"};
    for (int i = 0; i < 2; i++) {
        struct golden G;
        memset(&G, 0, sizeof G);
        if (golden_root(names[i], G.root, sizeof G.root) != 1) continue;
        CHECK(golden_convert(&G, names[i]) >= 0);
        compare(G.model, "The quick brown fox, 12 of them, sat down.", 32, 1e-2);
        unlink(G.model);
        unlink(G.mmproj);
        rmdir(G.folder);
    }
}

/* ---- pictures ----------------------------------------------------------------------------------- */

/* Sides that are whole merged patches: no resizing, where the two preprocessors differ. */
static void write_picture(const char *path) {
    enum { W = 252, H = 196 };
    static uint8_t rgb[H][W][3];
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            rgb[y][x][0] = (uint8_t)(x * 7 + y * 3);
            rgb[y][x][1] = (uint8_t)((x * x + y) % 251);
            rgb[y][x][2] = (uint8_t)(x * y / 7);
        }
    png_image im = {
        .version = PNG_IMAGE_VERSION, .width = W, .height = H, .format = PNG_FORMAT_RGB};
    CHECK(png_image_write_to_file(&im, path, 0, rgb, 0, NULL));
}

/* What llama.cpp's own program makes of the picture, [n][d]; NULL: the program is not built. */
static float *their_rows(const struct golden *G, const char *picture, int32_t n, int32_t d) {
    char line[4000], dump[300];
    snprintf(line, sizeof line, "%s/bin/llama-mtmd-cli", IWP_LLAMA_BUILD);
    if (!golden_exists(line)) return NULL;
    snprintf(dump, sizeof dump, "%s/rows", G->folder);
    snprintf(
        line, sizeof line,
        "MTMD_DEBUG_EMBEDDINGS='%s' '%s/bin/llama-mtmd-cli' -m '%s' --mmproj '%s' --image '%s' "
        "-p x -n 1 --temp 0 -t 1 --chat-template chatml >/dev/null 2>&1",
        dump, IWP_LLAMA_BUILD, G->model, G->mmproj, picture);
    CHECK_INT(system(line), 0);
    iwp_err err = {0};
    uint8_t *data = NULL;
    size_t size = 0;
    CHECK_INT(iwp_file_read(dump, 1 << 28, &data, &size, &err), 0);
    unlink(dump);
    const size_t want = 8 + (size_t)n * (size_t)d * 4;
    CHECK_INT(size, want);
    float *rows = size == want ? malloc(want) : NULL;
    if (rows) memcpy(rows, data + 8, want - 8);
    free(data);
    return rows;
}

/* Rows [first, first + n) of a prompt through libllama: tokens, or `embd` at their M-RoPE positions. */
static void their_decode(struct llama_context *c, const struct iwp_prompt *p, int32_t first,
                         int32_t n, float *embd) {
    struct llama_batch b = llama_batch_init(n, embd ? p->d_model : 0, 1);
    llama_pos *own = b.pos, *pos = calloc((size_t)n * 4, sizeof *pos);
    b.n_tokens = n;
    b.pos = pos;
    for (int32_t i = 0; i < n; i++) {
        for (int32_t r = 0; r < (embd ? p->n_pos : 1); r++)
            pos[r * n + i] = (llama_pos)p->pos[r * p->n + first + i];
        if (!embd) b.token[i] = p->id[first + i];
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = first + i == p->n - 1;
    }
    if (embd) memcpy(b.embd, embd, (size_t)n * (size_t)p->d_model * sizeof *embd);
    CHECK_INT(llama_decode(c, b), 0);
    b.pos = own;
    llama_batch_free(b);
    free(pos);
}

TEST(picture) {
    struct golden G;
    memset(&G, 0, sizeof G);
    if (golden_root("qwen2.5-vl", G.root, sizeof G.root) != 1) return;
    CHECK(golden_convert_type(&G, "qwen2.5-vl", "f16") >= 0);
    char picture[300];
    snprintf(picture, sizeof picture, "%s/p.png", G.folder);
    write_picture(picture);
    iwp_err err = {0};
    iwp_engine *e = NULL;
    iwp_session *s = NULL;
    iwp_prompt *p = NULL;
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = G.model;
    ep.mmproj = G.mmproj;
    ep.n_thread = 1;
    CHECK_MSG(iwp_engine_open(&e, &ep, &err) == 0, "%s", err.msg);
    const struct iwp_part part = {.kind = IWP_PART_IMAGE, .file = picture};
    struct iwp_prompt_request r = {
        .raw = "One <|vision_start|><|image_pad|><|vision_end|> what is it?",
        .media = &part,
        .n_media = 1};
    CHECK_MSG(iwp_engine_prompt(e, &r, &p, &err) == 0, "%s", err.msg);
    struct iwp_session_params sp = iwp_session_default_params();
    CHECK_INT(iwp_session_new(&s, e, &sp, &err), 0);
    CHECK_INT(iwp_session_begin(s, p, NULL, &err), 0);
    while (iwp_session_step(s, &err) > 0) {
    }
    CHECK_INT(p->image[0].plan.w, 252);
    CHECK_INT(p->n_visual, 9 * 7);

    float *theirs = their_rows(&G, picture, p->n_visual, p->d_model);
    printf("picture: rows of %s\n",
           theirs ? "llama.cpp's tower" : "ours (llama-mtmd-cli is not built)");
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    struct llama_model *m = llama_model_load_from_file(G.model, mp);
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 512;
    cp.n_threads = cp.n_threads_batch = 1;
    struct llama_context *c = llama_init_from_model(m, cp);
    CHECK(c != NULL);
    int32_t first = 0;
    while (p->code[first] != IWP_CODE_VISUAL) first++;
    their_decode(c, p, 0, first, NULL);
    their_decode(c, p, first, p->n_visual, theirs ? theirs : p->visual);
    their_decode(c, p, first + p->n_visual, p->n - first - p->n_visual, NULL);
    const float *want = llama_get_logits_ith(c, -1), *got = iwp_session_logits(s);
    double d = 0, top = 0;
    for (int32_t k = 0; want && got && k < iwp_engine_info(e).n_vocab; k++) {
        d = fmax(d, fabs((double)want[k] - got[k]));
        top = fmax(top, fabs((double)want[k]));
    }
    CHECK_MSG(top > 0 && d <= 1e-2 * top, "picture: logits differ by %g of %g", d, top);
    printf("picture: logits differ by %.2g of their largest\n", d / top);
    free(theirs);
    llama_free(c);
    llama_model_free(m);
    iwp_session_free(s);
    iwp_engine_prompt_free(p);
    iwp_engine_close(e);
    unlink(picture);
    unlink(G.model);
    unlink(G.mmproj);
    rmdir(G.folder);
}

TEST(real) {
    const char *file = getenv("IWP_SMOLLM2");
    if (!file || !golden_exists(file)) {
        printf("no SmolLM2 (IWP_SMOLLM2): left out\n");
        return;
    }
    compare(
        file,
        "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n<|im_start|>assistant\n",
        64, 2e-2);
}

int main(void) {
    llama_backend_init();
    iwp_log_set_level(IWP_LOG_WARN);
    test_golden();
    test_picture();
    test_real();
    llama_backend_free();
    return test_done();
}
