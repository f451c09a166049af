/* Every method of the table through the engine, on the golden checkpoints (AnyRes tiles, several pictures;
 * windows and a merger): at keep 1 the logits do not change, at the three budgets the counts are the
 * promised ones, a budget that cannot be reached is refused with the reachable range. */
#include <math.h>

#include "../towers/golden.h"
#include "model/session.h"

struct bench {
    iwp_engine *e;
    iwp_session *s;
    struct iwp_prompt_request r;
    const char *tag;
    float *full; /* [n_vocab] logits without pruning */
};

/* 0, or the error's status; the session then holds the run. */
static int run(struct bench *b, const struct iwp_params *prune, iwp_prompt **p, iwp_err *err) {
    int rc;
    *p = NULL;
    iwp_prompt_request_for(&b->r, prune);
    if ((rc = iwp_engine_prompt(b->e, &b->r, p, err)) < 0) return rc;
    if ((rc = iwp_session_begin(b->s, *p, prune, err)) < 0) return rc;
    while ((rc = iwp_session_step(b->s, err)) > 0) {
    }
    return rc;
}

static void check_finite(const struct bench *b, const char *name) {
    const float *x = iwp_session_logits(b->s);
    int bad = 0;
    for (int32_t i = 0; i < iwp_engine_info(b->e).n_vocab; i++) bad += !isfinite(x[i]);
    CHECK_MSG(bad == 0, "%s %s: %d logits are not finite", b->tag, name, bad);
}

static void keep_all(struct bench *b, const struct iwp_method *m) {
    const struct iwp_method_info *info = iwp_method_info(m);
    if (info->flags & IWP_METHOD_MAY_KEEP_ZERO) return; /* it withdraws all, whatever the budget */
    struct iwp_params prune;
    iwp_prompt *p;
    iwp_err err = {0};
    iwp_params_default(&prune, m);
    CHECK_MSG(run(b, &prune, &p, &err) == 0, "%s %s: %s", b->tag, info->name, err.msg);
    const struct iwp_session_stats st = iwp_session_stats(b->s);
    CHECK_INT(st.n_kept, st.n_visual);
    double most = 0;
    for (int32_t i = 0; i < iwp_engine_info(b->e).n_vocab; i++)
        most = fmax(most, fabs((double)iwp_session_logits(b->s)[i] - (double)b->full[i]));
    /* Not bits: a cut splits the layers into graphs, and ToMe's blocks are graphs of their own. */
    CHECK_MSG(most <= 2e-5, "%s %s: keep 1 moves a logit by %g", b->tag, info->name, most);
    iwp_engine_prompt_free(p);
}

static int32_t separators(const iwp_prompt *p) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->n; i++) n += p->code[i] == IWP_CODE_SEPARATOR;
    return n;
}

/* Visual tokens after the last cut, under `cut` and with all tokens in one pool. */
static void check_count(const struct bench *b, const struct iwp_params *prune,
                        const iwp_prompt *p) {
    const struct iwp_method_info *info = iwp_method_info(prune->method);
    const struct iwp_session_stats st = iwp_session_stats(b->s);
    const int32_t sep = separators(p);
    struct iwp_need need[IWP_TENSOR_COUNT];
    bool exempt = strcmp(info->name, "pact") == 0;
    for (int i = iwp_params_needs(prune, 0, need, IWP_TENSOR_COUNT) - 1; i >= 0; i--)
        exempt |= need[i].tensor == IWP_TENSOR_VIT_FEATURES || need[i].tensor == IWP_TENSOR_VIT_K;
    const int32_t m =
        iwp_keep_count(prune->budget.keep, p->n_visual - (exempt ? sep : 0)) + (exempt ? sep : 0);
    if (strcmp(info->name, "none") == 0)
        CHECK_INT(st.n_kept, st.n_visual);
    else if (info->flags & IWP_METHOD_MAY_KEEP_ZERO)
        CHECK_INT(st.n_kept, 0);
    else if (strcmp(info->name, "pact") == 0 || strcmp(info->name, "tome") == 0)
        CHECK_MSG(st.n_kept <= m && st.n_kept > 0, "%s %s: keeps %d, promised at most %d", b->tag,
                  info->name, st.n_kept, m);
    else
        CHECK_MSG(st.n_kept == m, "%s %s %g: keeps %d, promised %d", b->tag, info->name,
                  prune->budget.keep, st.n_kept, m);
    CHECK(st.n_kept == 0 || st.flops < st.flops_full || st.n_kept == st.n_visual);
}

static void budgets(struct bench *b, const struct iwp_method *m) {
    static const double keeps[] = {0.353, 0.222, 0.111};
    const struct iwp_method_info *info = iwp_method_info(m);
    for (int i = 0; i < 3; i++)
        for (int cut = 0; cut < 2; cut++) {
            const bool several = info->flags & IWP_METHOD_MULTI_STAGE;
            if (!cut && !several) continue; /* the default is cut */
            struct iwp_params prune;
            iwp_prompt *p;
            iwp_err err = {0};
            iwp_params_default(&prune, m);
            prune.budget.keep = keeps[i];
            if (cut) prune.budget.rule = IWP_RULE_CUT;
            if (info->site == IWP_SITE_MEDIA) prune.budget.rule = IWP_RULE_DEFAULT;
            int rc = run(b, &prune, &p, &err);
            if (rc < 0) { /* only what cannot be reached, and then with the range */
                CHECK_MSG((!cut || info->site == IWP_SITE_MEDIA) && strstr(err.msg, "reaches"),
                          "%s %s %g: %s", b->tag, info->name, keeps[i], err.msg);
            } else {
                check_finite(b, info->name);
                const struct iwp_session_stats st = iwp_session_stats(b->s);
                if (cut && info->site != IWP_SITE_MEDIA) check_count(b, &prune, p);
                if (!cut)
                    CHECK_MSG(fabs(st.layer_average - keeps[i]) <= 0.03,
                              "%s %s: average %g, asked %g", b->tag, info->name, st.layer_average,
                              keeps[i]);
            }
            iwp_engine_prompt_free(p);
        }
}

/* A method with one cut meets an average over layers too: with a lower count than under `cut`. */
static void averages(struct bench *b, const struct iwp_method *m) {
    static const enum iwp_budget_rule rules[] = {IWP_RULE_LAYER_AVERAGE, IWP_RULE_MATCHED};
    const struct iwp_method_info *info = iwp_method_info(m);
    const bool one_cut = info->site == IWP_SITE_LAYER && !(info->flags & IWP_METHOD_MULTI_STAGE);
    if (!one_cut || info->flags & IWP_METHOD_MAY_KEEP_ZERO || !strcmp(info->name, "none")) return;
    for (int i = 0; i < 2; i++) {
        struct iwp_params prune;
        iwp_prompt *p;
        iwp_err err = {0};
        iwp_params_default(&prune, m);
        prune.budget.keep = 0.8;
        prune.budget.rule = rules[i];
        prune.layer = 1;
        CHECK_MSG(run(b, &prune, &p, &err) == 0, "%s %s: %s", b->tag, info->name, err.msg);
        const struct iwp_session_stats st = iwp_session_stats(b->s);
        const double L = iwp_engine_info(b->e).n_layer, first = L < 4 ? L : 4,
                     want = i ? (first + 0.8 * (L - first)) / L : 0.8;
        /* to half a token (one picture has six), or the separators that a method exempts */
        CHECK_MSG(fabs(st.layer_average - want) <= fmax(0.03, 0.5 / st.n_visual),
                  "%s %s rule %d: average %g, asked %g", b->tag, info->name, i, st.layer_average,
                  want);
        CHECK(i || st.n_visual < 50 || st.n_kept < 0.8 * st.n_visual - 1);
        iwp_engine_prompt_free(p);
    }
}

/* SparseVLM 1.0: every stage keeps what the rank of its attention says, at most what is left. */
static void ranks(struct bench *b) {
    struct iwp_params prune;
    iwp_prompt *p;
    iwp_err err = {0};
    iwp_params_default(&prune, iwp_method_find("sparsevlm"));
    CHECK_INT(iwp_params_parse(&prune, "rank=1,rank-scale=0.5", &err), 0);
    for (int keep = 0; keep < 2; keep++) {
        prune.budget.keep_separators = keep;
        CHECK_MSG(run(b, &prune, &p, &err) == 0, "%s sparsevlm rank=1: %s", b->tag, err.msg);
        const struct iwp_session_stats st = iwp_session_stats(b->s);
        CHECK(st.n_stage > 1 && st.stage[0].visual_kept < st.n_visual);
        for (int32_t i = 1; i < st.n_stage; i++)
            CHECK(st.stage[i].visual_kept <= st.stage[i - 1].visual_kept);
        iwp_engine_prompt_free(p);
    }
}

/* The rows of merged groups differ from those of the plain tower, the others' groups are one token. */
static void merging(struct bench *b) {
    struct iwp_params prune;
    iwp_prompt *full, *p;
    iwp_err err = {0};
    iwp_params_default(&prune, iwp_method_find("tome"));
    CHECK_INT(run(b, NULL, &full, &err), 0);
    prune.budget.keep = 0.25;
    CHECK_MSG(run(b, &prune, &p, &err) == 0, "%s tome: %s", b->tag, err.msg);
    CHECK_INT(p->n_visual, full->n_visual);
    const size_t d = (size_t)p->d_model;
    int32_t moved = 0;
    for (int32_t i = 0; i < p->n_tower_keep; i++) {
        const size_t at = (size_t)p->tower_keep[i] * d;
        moved += memcmp(p->visual + at, full->visual + at, d * sizeof(float)) != 0;
    }
    CHECK(moved > p->n_tower_keep / 2);
    const struct iwp_session_stats st = iwp_session_stats(b->s);
    CHECK(st.n_stage > 1 && st.stage[0].block == 0 && st.stage[st.n_stage - 1].block == -1);
    for (int32_t i = 1; i + 1 < st.n_stage; i++)
        CHECK(st.stage[i].visual_kept < st.stage[i - 1].visual_kept);
    /* A prompt that was merged is of no use to another method. */
    CHECK(iwp_session_begin(b->s, p, NULL, &err) < 0 && strstr(err.msg, "tome"));
    iwp_engine_prompt_free(full);
    iwp_engine_prompt_free(p);
}

static void check_model(const char *model, const char *pictures[2], const char *ask) {
    struct golden G;
    iwp_err err = {0};
    struct iwp_part part[2];
    char file[2][800];
    memset(&G, 0, sizeof G);
    memset(part, 0, sizeof part);
    if (golden_root(model, G.root, sizeof G.root) != 1) return;
    CHECK(golden_convert(&G, model) >= 0);
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = G.model;
    ep.mmproj = G.mmproj;
    ep.n_thread = 1;
    struct bench b = {.tag = model};
    CHECK_MSG(iwp_engine_open(&b.e, &ep, &err) == 0, "%s: %s", model, err.msg);
    for (int i = 0; i < 2; i++) {
        snprintf(file[i], sizeof file[i], "%s/vectors/%s/images/%s", G.root, model, pictures[i]);
        part[i] = (struct iwp_part){.kind = IWP_PART_IMAGE, .file = file[i]};
    }
    struct iwp_session_params sp = iwp_session_default_params();
    sp.type_k = sp.type_v = IWP_KV_F32;
    CHECK_INT(iwp_session_new(&b.s, b.e, &sp, &err), 0);
    for (int n = 1; n <= 2; n++) { /* one picture in tiles, two pictures */
        iwp_prompt *p;
        char raw[200];
        snprintf(raw, sizeof raw, "%s%s", n == 2 ? "<image> beside <image>" : "<image>", ask);
        b.r = (struct iwp_prompt_request){.raw = raw, .media = part, .n_media = n};
        CHECK_MSG(run(&b, NULL, &p, &err) == 0, "%s: %s", model, err.msg);
        const size_t bytes = (size_t)iwp_engine_info(b.e).n_vocab * sizeof(float);
        b.full = malloc(bytes);
        memcpy(b.full, iwp_session_logits(b.s), bytes);
        iwp_engine_prompt_free(p);
        for (int32_t i = 0; i < iwp_method_count(); i++) {
            keep_all(&b, iwp_method_at(i));
            budgets(&b, iwp_method_at(i));
            if (n == 1) averages(&b, iwp_method_at(i));
        }
        ranks(&b);
        merging(&b);
        free(b.full);
    }
    iwp_session_free(b.s);
    iwp_engine_close(b.e);
    unlink(G.model);
    unlink(G.mmproj);
    rmdir(G.folder);
}

int main(void) {
    iwp_log_set_level(IWP_LOG_WARN);
    check_model("llava-ov", (const char *[]){"wide.png", "small.png"}, " what do they show?");
    check_model("qwen2.5-vl", (const char *[]){"small.png", "square.png"}, " what do they show?");
    return test_done();
}
