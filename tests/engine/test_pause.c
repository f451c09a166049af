/* While a picture is encoded other sessions go on: both give what they give alone. */
#include "../towers/golden.h"
#include "model/session.h"

enum { N = 12 };

static iwp_prompt *ask(iwp_engine *e, const char *file, const char *text, const char *method,
                       bool (*cancel)(void *), void *ctx, int want) {
    struct iwp_part part[2] = {{.kind = IWP_PART_IMAGE, .file = file},
                               {.kind = IWP_PART_TEXT, .text = text}};
    struct iwp_message m = {"user", file ? part : part + 1, file ? 2 : 1};
    struct iwp_prompt_request r = {.message = &m, .n_message = 1};
    struct iwp_params prune;
    if (method) iwp_params_default(&prune, iwp_method_find(method));
    iwp_prompt_request_for(&r, method ? &prune : NULL);
    r.cancel = cancel;
    r.cancel_ctx = ctx;
    iwp_prompt *p = NULL;
    iwp_err err = {0};
    const int rc = iwp_engine_prompt(e, &r, &p, &err);
    CHECK_MSG(rc == want, "%d: %s", rc, err.msg);
    return p;
}

static iwp_session *start(iwp_engine *e, const iwp_prompt *p, const char *method) {
    iwp_session *s = NULL;
    iwp_err err = {0};
    struct iwp_session_params sp = iwp_session_default_params();
    sp.n_chunk = 16;
    CHECK_INT(iwp_session_new(&s, e, &sp, &err), 0);
    struct iwp_params prune;
    if (method) {
        iwp_params_default(&prune, iwp_method_find(method));
        prune.budget.keep = 0.3;
    }
    CHECK_MSG(iwp_session_begin(s, p, method ? &prune : NULL, &err) == 0, "%s", err.msg);
    return s;
}

static void run(iwp_session *s) {
    iwp_err err = {0};
    int rc;
    while ((rc = iwp_session_step(s, &err)) > 0) {
    }
    CHECK_MSG(rc == 0, "%s", err.msg);
}

struct others {
    iwp_session *decode, *prefill;
    int32_t n_fed, n_asked, n_vocab, stop_at;
};

static int32_t best(const float *x, int32_t n) {
    int32_t at = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[at]) at = i;
    return at;
}

/* One token of one session and one step of another, as a server does. */
static bool go_on(void *ctx) {
    struct others *o = ctx;
    iwp_err err = {0};
    if (o->n_fed < N) {
        const int32_t id = best(iwp_session_logits(o->decode), o->n_vocab);
        CHECK_INT(iwp_session_feed(o->decode, id, &err), 0);
        o->n_fed++;
    }
    CHECK_MSG(iwp_session_step(o->prefill, &err) >= 0, "%s", err.msg);
    return ++o->n_asked == o->stop_at;
}

static void same(const iwp_session *a, const iwp_session *b, int32_t n, const char *what) {
    const float *x = iwp_session_logits(a), *y = iwp_session_logits(b);
    CHECK_MSG(x && y && memcmp(x, y, (size_t)n * sizeof *x) == 0, "%s: other logits", what);
}

int main(void) {
    struct golden G;
    iwp_err err = {0};
    char wide[800], small[800];
    memset(&G, 0, sizeof G);
    iwp_log_set_level(IWP_LOG_WARN);
    CHECK_INT(golden_root("llava-ov", G.root, sizeof G.root), 1);
    CHECK(golden_convert(&G, "llava-ov") >= 0);
    snprintf(wide, sizeof wide, "%s/vectors/llava-ov/images/wide.png", G.root);
    snprintf(small, sizeof small, "%s/vectors/llava-ov/images/small.png", G.root);
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = G.model;
    ep.mmproj = G.mmproj;
    ep.chat_template = "llava-onevision";
    ep.n_thread = 2;
    ep.cache_bytes = 1; /* every picture is encoded */
    iwp_engine *e = NULL;
    CHECK_MSG(iwp_engine_open(&e, &ep, &err) == 0, "%s", err.msg);

    /* zooprune projects rows of the tower while the tower is busy */
    iwp_prompt *text = ask(e, NULL, "count", NULL, NULL, NULL, 0);
    iwp_prompt *zoo = ask(e, small, "what?", "zooprune", NULL, NULL, 0);
    struct others o = {start(e, text, NULL), start(e, zoo, "zooprune"), 0, 0, 0, 0};
    o.n_vocab = iwp_engine_info(e).n_vocab;
    run(o.decode);
    iwp_prompt *busy = ask(e, wide, "what?", NULL, go_on, &o, 0);
    CHECK_MSG(o.n_asked > 20 && o.n_fed == N, "asked %d times, %d tokens", o.n_asked, o.n_fed);
    run(o.prefill);

    iwp_prompt *alone = ask(e, wide, "what?", NULL, NULL, NULL, 0);
    CHECK_INT(busy->n_visual, alone->n_visual);
    CHECK(memcmp(busy->visual, alone->visual,
                 (size_t)alone->n_visual * (size_t)alone->d_model * sizeof(float)) == 0);
    iwp_session *d = start(e, text, NULL), *f = start(e, zoo, "zooprune");
    run(d);
    for (int i = 0; i < N; i++)
        CHECK_INT(iwp_session_feed(d, best(iwp_session_logits(d), o.n_vocab), &err), 0);
    run(f);
    same(d, o.decode, o.n_vocab, "decode");
    same(f, o.prefill, o.n_vocab, "prefill");

    /* stopped in the middle of a tile */
    o.n_asked = 0;
    o.stop_at = 9;
    CHECK(ask(e, wide, "what?", NULL, go_on, &o, IWP_ECANCELLED) == NULL);
    CHECK_INT(o.n_asked, 9);

    iwp_session_free(d);
    iwp_session_free(f);
    iwp_session_free(o.decode);
    iwp_session_free(o.prefill);
    iwp_engine_prompt_free(text);
    iwp_engine_prompt_free(zoo);
    iwp_engine_prompt_free(busy);
    iwp_engine_prompt_free(alone);
    iwp_engine_close(e);
    unlink(G.model);
    unlink(G.mmproj);
    rmdir(G.folder);
    return test_done();
}
