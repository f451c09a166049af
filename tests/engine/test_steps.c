/* Tokens after the prompt: the graph of the first is that of all others, whatever happens between them and
 * whose they are; the numbers are those of a graph built for each; no step takes memory; weights are as they
 * were loaded. */
#include "../towers/golden.h"
#include "count_alloc.h"
#include "model/session.h"

#include <sys/mman.h>

enum { N = 40 };

static iwp_engine *E;
static iwp_prompt *P;
static int32_t V;

static iwp_session *start(const char *method, enum iwp_positions positions, enum iwp_kv_type type) {
    iwp_session *s = NULL;
    iwp_err err = {0};
    struct iwp_session_params sp = iwp_session_default_params();
    sp.positions = positions;
    sp.type_k = sp.type_v = type;
    sp.flash = IWP_FLASH_ON;
    sp.reserve = 16; /* the caches grow on the way */
    CHECK_INT(iwp_session_new(&s, E, &sp, &err), 0);
    struct iwp_params prune;
    if (method) {
        iwp_params_default(&prune, iwp_method_find(method));
        prune.budget.keep = 0.3;
        prune.layer = 1;
    }
    CHECK_MSG(iwp_session_begin(s, P, method ? &prune : NULL, &err) == 0, "%s", err.msg);
    int rc;
    while ((rc = iwp_session_step(s, &err)) > 0) {
    }
    CHECK_MSG(rc == 0, "%s", err.msg);
    return s;
}

static iwp_session *plain(void) { return start(NULL, IWP_POSITIONS_ORIGINAL, IWP_KV_F16); }

static int64_t built(void) { return E->lanes.sched ? iwp_sched_built(E->lanes.sched) : 0; }

static void feed(iwp_session *s, int32_t token) {
    iwp_err err = {0};
    CHECK_MSG(iwp_session_feed(s, token, &err) == 0, "%s", err.msg);
}

/* … with a graph of its own. */
static void feed_anew(iwp_session *s, int32_t token) {
    if (E->lanes.sched) iwp_sched_keep(E->lanes.sched, NULL);
    feed(s, token);
}

static void same(const iwp_session *a, const iwp_session *b, const char *what, int at) {
    CHECK_MSG(memcmp(iwp_session_logits(a), iwp_session_logits(b), (size_t)V * sizeof(float)) == 0,
              "%s, token %d: other logits", what, at);
}

/* Where attention is not our own, every step builds. */
static bool keeps(void) { return E->d.attend != NULL; }

static void check_built(int64_t before, int64_t n, int64_t steps, const char *what) {
    const int64_t want = keeps() ? n : steps, got = built() - before;
    CHECK_MSG(got == want, "%s: %d graphs built for %d steps, wanted %d", what, (int)got,
              (int)steps, (int)want);
}

/* As far as the keys fall into one piece more (kern/attn.h). */
TEST(one_graph) {
    iwp_session *s = plain(), *f = plain();
    const int n = IWP_ATTN_CHUNK - P->n % IWP_ATTN_CHUNK + 4;
    const size_t row = (size_t)V * sizeof(float);
    char *logits = malloc((size_t)n * row);
    const int64_t before = built();
    for (int i = 0; i < n; i++) {
        feed(s, i % V);
        memcpy(logits + (size_t)i * row, iwp_session_logits(s), row);
    }
    check_built(before, 1, n, "one session");
    for (int i = 0; i < n; i++) {
        feed_anew(f, i % V);
        CHECK_MSG(memcmp(logits + (size_t)i * row, iwp_session_logits(f), row) == 0,
                  "token %d: other logits", i);
    }
    CHECK_INT(built() - before, (keeps() ? 1 : n) + n);
    free(logits);
    iwp_session_free(s);
    iwp_session_free(f);
}

/* Between two tokens: tokens are taken back, a prompt runs, a session ends, another one goes on. */
TEST(between) {
    iwp_err err = {0};
    iwp_session *s = plain(), *f = plain(), *other = plain();
    feed_anew(f, 1), feed_anew(f, 2), feed_anew(f, 3);
    feed(s, 1);
    const int64_t before = built();
    feed(s, 4);
    CHECK_INT(iwp_session_forget(s, 1, &err), 0);
    feed(s, 2);
    feed(other, 7);
    iwp_session_free(other);
    other = plain();
    feed(s, 3);
    check_built(before, 0, 4, "between");
    same(s, f, "between", 3);
    iwp_session_free(s);
    iwp_session_free(f);
    iwp_session_free(other);
}

/* Sessions that a graph does not fit get their own, and the right one. */
TEST(kinds) {
    enum { K = 4 };
    iwp_session *s[K], *f[K];
    for (int k = 0; k < 2 * K; k++)
        (k < K ? s : f)[k % K] =
            start(k % K ? "iwp" : NULL, k % K == 1 ? IWP_POSITIONS_COMPACT : IWP_POSITIONS_ORIGINAL,
                  k % K == 3 ? IWP_KV_F32 : IWP_KV_F16);
    for (int i = 0; i < 12; i++) {
        const int k = i < K ? i : (i * 7 + i / 3) % K;
        feed(s[k], i % V);
        feed_anew(f[k], i % V);
        same(s[k], f[k], "kinds", i);
    }
    /* One that counts its rows from a layer on has one more input of positions: the others fit it. */
    feed_anew(s[1], 1), feed_anew(f[1], 1);
    const int64_t before = built();
    feed(s[0], 1), feed(s[2], 2), feed(s[1], 3);
    check_built(before, 0, 3, "kinds");
    feed_anew(f[0], 1), feed_anew(f[2], 2), feed_anew(f[1], 3);
    for (int k = 0; k < 3; k++) same(s[k], f[k], "kinds", 100 + k);
    for (int k = 0; k < K; k++) {
        iwp_session_free(s[k]);
        iwp_session_free(f[k]);
    }
}

/* So many that two threads share the work; always others of them. */
TEST(lanes) {
    enum { K = 13, LANES = 12, STEPS = 8 };
    iwp_err err = {0};
    iwp_session *s[K], *f[K];
    int32_t token[LANES];
    int64_t before = 0;
    for (int k = 0; k < K; k++) {
        const char *method = k % 2 ? "iwp" : NULL;
        s[k] = start(method, IWP_POSITIONS_ORIGINAL, IWP_KV_F16);
        f[k] = start(method, IWP_POSITIONS_ORIGINAL, IWP_KV_F16);
    }
    CHECK(iwp_decoder_layer_weights(&E->d) * E->d.n_layer * LANES > 4000000);
    for (int i = 0; i < 2 * STEPS; i++) {
        iwp_session *in[LANES];
        const bool anew = i >= STEPS;
        for (int k = 0; k < LANES; k++) {
            in[k] = (anew ? f : s)[(i % STEPS + k) % K];
            token[k] = (i % STEPS * LANES + k) % V;
        }
        if (anew) iwp_sched_keep(E->lanes.sched, NULL);
        CHECK_INT(iwp_session_feed_batch(in, token, LANES, &err), 0);
        if (i == 0) before = built();
        if (i == STEPS - 1) check_built(before, 0, STEPS - 1, "lanes");
    }
    for (int k = 0; k < K; k++) {
        same(s[k], f[k], "lanes", k);
        iwp_session_free(s[k]);
        iwp_session_free(f[k]);
    }
}

static bool stop(void *ctx) { return --*(int *)ctx <= 0; }

/* Stopped anywhere in a step, and the step done again: as if nothing had been. */
TEST(cancel) {
    iwp_err err = {0};
    iwp_session *s = plain(), *f = plain();
    feed(s, 5), feed(f, 5);
    for (int i = 1; i < 12; i++) {
        int left = 3 * i;
        iwp_backend_set_cancel(E->b, stop, &left);
        const int rc = iwp_session_feed(s, 6, &err);
        iwp_backend_set_cancel(E->b, NULL, NULL);
        CHECK_INT(rc, IWP_ECANCELLED);
        const int64_t before = built();
        feed(s, 6), feed(s, 7);
        check_built(before, 1, 2, "cancel");
        feed_anew(f, 6), feed_anew(f, 7);
        same(s, f, "cancel", i);
    }
    iwp_session_free(s);
    iwp_session_free(f);
}

TEST(takes_no_memory) {
    check_counter();
    if (!keeps()) return;
    iwp_session *s = plain();
    for (int l = 0; l < E->d.n_layer; l++)
        CHECK_INT(iwp_kv_reserve(&s->kv, l, s->kv.layer[l].n + N + 1, &(iwp_err){0}), 0);
    feed(s, 1);
    n_alloc = 0;
    counting = 1;
    for (int i = 0; i < N; i++) feed(s, i % V);
    counting = 0;
    /* ggml makes an empty context of two parts whenever it runs a graph. */
    CHECK_MSG(n_alloc <= 2 * N, "%d allocations in %d steps", (int)n_alloc, N);
    iwp_session_free(s);
}

/* All whole pages of a weight's buffer. */
static int protect(const struct ggml_tensor *w, int how) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
                    base = (uintptr_t)ggml_backend_buffer_get_base(w->buffer),
                    from = (base + page - 1) & ~(page - 1),
                    to = (base + ggml_backend_buffer_get_size(w->buffer)) & ~(page - 1);
    if (from >= to) return 0;
    CHECK_INT(mprotect((void *)from, to - from, how), 0);
    return 1;
}

/* Weights get their layout when they are loaded: neither prompts nor tokens write there. */
TEST(weights_are_only_read) {
    const struct ggml_tensor *w[] = {E->d.layer[0].wq, E->d.layer[0].down, E->d.layer[0].attn_norm,
                                     E->d.out};
    int pages = 0;
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++) pages += protect(w[i], PROT_READ);
    CHECK(pages > 0);
    iwp_session *s = plain(), *t = start("iwp", IWP_POSITIONS_ORIGINAL, IWP_KV_F16);
    for (int i = 0; i < 4; i++) feed(s, i), feed(t, i);
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++) protect(w[i], PROT_READ | PROT_WRITE);
    iwp_session_free(s);
    iwp_session_free(t);
}

static void check_model(const char *name, const char *type, const char *template) {
    struct golden G;
    iwp_err err = {0};
    char file[800];
    memset(&G, 0, sizeof G);
    if (golden_root(name, G.root, sizeof G.root) != 1) return; /* the committed set has one model */
    CHECK(golden_convert_type(&G, name, type) >= 0);
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = G.model;
    ep.mmproj = G.mmproj;
    ep.chat_template = template;
    ep.n_thread = 2;
    CHECK_MSG(iwp_engine_open(&E, &ep, &err) == 0, "%s", err.msg);
    snprintf(file, sizeof file, "%s/vectors/%s/images/wide.png", G.root, name);
    struct iwp_part part[2] = {{.kind = IWP_PART_IMAGE, .file = file},
                               {.kind = IWP_PART_TEXT, .text = "what?"}};
    struct iwp_message m = {"user", part, 2};
    struct iwp_prompt_request r = {.message = &m, .n_message = 1};
    iwp_prompt_request_for(&r, NULL);
    CHECK_MSG(iwp_engine_prompt(E, &r, &P, &err) == 0, "%s", err.msg);
    V = iwp_engine_info(E).n_vocab;
    test_one_graph();
    test_between();
    test_kinds();
    test_lanes();
    test_cancel();
    test_takes_no_memory();
    test_weights_are_only_read();
    iwp_engine_prompt_free(P);
    iwp_engine_close(E);
    unlink(G.model);
    unlink(G.mmproj);
    rmdir(G.folder);
}

int main(void) {
    iwp_log_set_level(IWP_LOG_WARN);
    check_model("llava-ov", "q8_0", "llava-onevision");
    check_model("qwen2.5-vl", "f32", "qwen2-vl");
    return test_done();
}
