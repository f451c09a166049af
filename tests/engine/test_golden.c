/* Whole runs against the golden vectors: kept sets, logits after the prompt and 16 greedy tokens, full and
 * at every stored budget, for the cases that are at hand. */
#include <math.h>

#include "../towers/golden.h"
#include "model/session.h"

static const struct {
    const char *model, *name;
} cases[] = {{"llava-ov", "wide"},   {"llava-ov", "multi"},   {"llava-ov", "text"},
             {"qwen2.5-vl", "wide"}, {"qwen2.5-vl", "small"}, {"qwen2.5-vl", "text"}};

static iwp_session *start(iwp_engine *e, const iwp_prompt *p, const char *tag, double keep) {
    iwp_err err = {0};
    iwp_session *s = NULL;
    struct iwp_session_params sp = iwp_session_default_params();
    sp.type_k = sp.type_v = IWP_KV_F32;
    CHECK_INT(iwp_session_new(&s, e, &sp, &err), 0);
    struct iwp_params prune;
    iwp_params_default(&prune, iwp_method_find("iwp"));
    prune.budget.keep = keep;
    CHECK_MSG(iwp_session_begin(s, p, keep < 1 ? &prune : NULL, &err) == 0, "%s: %s", tag, err.msg);
    int rc;
    while ((rc = iwp_session_step(s, &err)) > 0) {
    }
    CHECK_MSG(rc == 0, "%s: %s", tag, err.msg);
    return s;
}

static void check_run(iwp_engine *e, const iwp_prompt *p, const iwp_st *st, const char *tag,
                      double keep, const char *prefix) {
    iwp_err err = {0};
    iwp_session *s = start(e, p, tag, keep);
    char name[64];
    snprintf(name, sizeof name, "%slogits_last", prefix);
    const double d = golden_diff(st, name, iwp_session_logits(s), iwp_engine_info(e).n_vocab);
    CHECK_MSG(d <= 2e-4, "%s %s: logits differ by %g", tag, prefix, d);
    const struct iwp_session_stats stats = iwp_session_stats(s);
    snprintf(name, sizeof name, "%skept", prefix);
    const struct iwp_st_tensor *kept = keep < 1 ? iwp_st_find(st, name) : NULL;
    if (kept) {
        CHECK_INT(stats.n_kept, kept->n);
        for (int64_t i = 0; i < kept->n && i < stats.n_kept; i++) {
            int64_t want;
            CHECK_INT(iwp_st_read_i64(kept, i, 1, &want, &err), 0);
            CHECK_INT(stats.keep[i], want);
        }
    }
    snprintf(name, sizeof name, "%sgreedy_tokens", prefix);
    const struct iwp_st_tensor *tokens = iwp_st_find(st, name);
    CHECK_MSG(tokens != NULL, "%s: no %s", tag, name);
    if (tokens) {
        struct iwp_answer a;
        const struct iwp_generate_params g = {.n_predict = (int32_t)tokens->n, .ignore_eos = true};
        CHECK_INT(iwp_session_generate(s, &g, &a, &err), 0);
        CHECK_INT(a.n_token, tokens->n);
        for (int64_t i = 0; i < tokens->n && i < a.n_token; i++) {
            int64_t want;
            CHECK_INT(iwp_st_read_i64(tokens, i, 1, &want, &err), 0);
            CHECK_MSG(a.token[i] == want, "%s %s: token %d is %d, wanted %d", tag, prefix, (int)i,
                      a.token[i], (int)want);
        }
        iwp_answer_free(&a);
    }
    iwp_session_free(s);
}

static const char *const keeps[] = {"0.353", "0.222", "0.111"};

/* The sessions of all budgets side by side, one token each at a time. */
static void check_batch(iwp_engine *e, const iwp_prompt *p, const iwp_st *st, const char *tag) {
    enum { MAX = 4 };
    iwp_err err = {0};
    iwp_session *s[MAX];
    const struct iwp_st_tensor *tokens[MAX];
    int32_t next[MAX], n = 0;
    for (int i = -1; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, i < 0 ? "greedy_tokens" : "iwp.%s.greedy_tokens",
                 i < 0 ? "" : keeps[i]);
        tokens[n] = iwp_st_find(st, name);
        if (tokens[n]) s[n++] = start(e, p, tag, i < 0 ? 1 : atof(keeps[i]));
    }
    for (int64_t k = 0; n > 1 && k < tokens[0]->n; k++) {
        for (int32_t i = 0; i < n; i++) {
            int64_t want;
            CHECK_INT(iwp_st_read_i64(tokens[i], k, 1, &want, &err), 0);
            next[i] = iwp_sampler_pick(NULL, iwp_session_logits(s[i]), iwp_engine_info(e).n_vocab);
            CHECK_MSG(next[i] == want, "%s: token %d of session %d is %d, wanted %d", tag, (int)k,
                      (int)i, (int)next[i], (int)want);
        }
        CHECK_MSG(iwp_session_feed_batch(s, next, n, &err) == 0, "%s: %s", tag, err.msg);
    }
    for (int32_t i = 0; i < n; i++) iwp_session_free(s[i]);
}

static void check_case(iwp_engine *e, const char *root, const char *model, const char *name) {
    char path[800];
    iwp_err err = {0};
    iwp_st *st = NULL;
    snprintf(path, sizeof path, "%s/vectors/%s/%s.safetensors", root, model, name);
    if (!golden_exists(path)) return;
    CHECK_INT(iwp_st_open(&st, path, &err), 0);
    snprintf(path, sizeof path, "%s/vectors/%s/%s.json", root, model, name);
    cJSON *j = golden_json(path);
    struct iwp_part part[4];
    char file[4][800];
    int n = 0;
    memset(part, 0, sizeof part);
    for (const cJSON *im =
             cJSON_GetObjectItem(j, "images") ? cJSON_GetObjectItem(j, "images")->child : NULL;
         im && n < 4; im = im->next, n++) {
        snprintf(file[n], sizeof file[n], "%s/vectors/%s/images/%s", root, model, im->valuestring);
        part[n].kind = IWP_PART_IMAGE;
        part[n].file = file[n];
    }
    struct iwp_prompt_request r = {
        .raw = cJSON_GetObjectItem(j, "prompt")->valuestring, .media = part, .n_media = n};
    iwp_prompt *p = NULL;
    CHECK_MSG(iwp_engine_prompt(e, &r, &p, &err) == 0, "%s/%s: %s", model, name, err.msg);
    if (p) {
        check_run(e, p, st, name, 1, "");
        for (int i = 0; i < 3; i++) {
            char prefix[32], probe[48];
            snprintf(prefix, sizeof prefix, "iwp.%s.", keeps[i]);
            snprintf(probe, sizeof probe, "%skept", prefix);
            if (iwp_st_find(st, probe)) check_run(e, p, st, name, atof(keeps[i]), prefix);
        }
        check_batch(e, p, st, name);
    }
    iwp_engine_prompt_free(p);
    cJSON_Delete(j);
    iwp_st_close(st);
}

static void check_model(const char *model) {
    struct golden G;
    iwp_err err = {0};
    memset(&G, 0, sizeof G);
    /* The committed qwen2.5-vl has a vocabulary but no decoder: only the full set is of use. */
    if (golden_root(model, G.root, sizeof G.root) != 1) return;
    CHECK(golden_convert(&G, model) >= 0);
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = G.model;
    ep.mmproj = G.mmproj;
    ep.n_thread = 1;
    iwp_engine *e = NULL;
    CHECK_MSG(iwp_engine_open(&e, &ep, &err) == 0, "%s: %s", model, err.msg);
    for (size_t i = 0; e && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].model, model) == 0) check_case(e, G.root, model, cases[i].name);
    iwp_engine_close(e);
    unlink(G.model);
    unlink(G.mmproj);
    rmdir(G.folder);
}

int main(void) {
    iwp_log_set_level(IWP_LOG_WARN);
    check_model("llava-ov");
    check_model("qwen2.5-vl");
    return test_done();
}
