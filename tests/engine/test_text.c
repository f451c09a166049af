/* The same GGUF in libllama and in iwp, text only: 32 greedy tokens of the golden checkpoints, and 64 of
 * SmolLM2 (a real llama model) when IWP_SMOLLM2 names its file (make test-real). */
#include <llama.h>
#include <math.h>

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
    test_real();
    llama_backend_free();
    return test_done();
}
