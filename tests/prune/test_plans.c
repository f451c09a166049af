/* Schedules: published counts, averages over layers, matched averages, reachable ranges. */
#include "prompt.h"

static struct iwp_stage stage[IWP_STAGE_MAX];
static iwp_err err;

static int plan(const char *method, const char *options, enum iwp_budget_rule rule, double keep,
                int32_t n_layer, int32_t n_visual) {
    struct iwp_params p = params_of(method, options, 0);
    struct iwp_plan_shape s = {.n_layer = n_layer, .n_visual = n_visual};
    p.budget.rule = rule;
    p.budget.keep = keep;
    memset(&err, 0, sizeof err);
    return iwp_plan(&p, &s, stage, IWP_STAGE_MAX, &err);
}

/* Mean over layers of the tokens a layer processes. */
static double average(int n, int32_t n_layer, int32_t n_visual) {
    double sum = 0;
    for (int32_t l = 0, now = n_visual; l < n_layer; l++) {
        for (int k = 0; k < n; k++)
            if (stage[k].at == l) now = stage[k].n_keep;
        sum += now;
    }
    return sum / n_layer;
}

static void check_stages(int n, int want_n, const int32_t *at, const int32_t *count,
                         const char *what) {
    CHECK_MSG(n == want_n, "%s: %d stages %s", what, n, err.msg);
    for (int k = 0; k < n && k < want_n; k++)
        CHECK_MSG(stage[k].at == at[k] && stage[k].n_keep == count[k] &&
                      stage[k].site == IWP_SITE_LAYER,
                  "%s: stage %d at %d keeps %d, want %d %d", what, k, stage[k].at, stage[k].n_keep,
                  at[k], count[k]);
}
#define THREE(a, b, c) ((const int32_t[]){a, b, c})

static void test_published(void) {
    int n = plan("pyramiddrop", "", IWP_RULE_AS_PUBLISHED, 1, 32, 576);
    check_stages(n, 3, THREE(8, 16, 24), THREE(288, 144, 72), "pyramiddrop 32");
    CHECK_NEAR(average(n, 32, 576), 270.0, 1e-9);
    n = plan("pyramiddrop", "", IWP_RULE_AS_PUBLISHED, 1, 28, 101);
    check_stages(n, 3, THREE(7, 14, 21), THREE(50, 25, 12), "pyramiddrop 28");
    n = plan("v2drop", "", IWP_RULE_AS_PUBLISHED, 1, 32, 576);
    check_stages(n, 3, THREE(3, 17, 22), THREE(288, 144, 1), "v2drop 32");
    CHECK_NEAR(average(n, 32, 576), 202.8125, 1e-9);
    n = plan("v2drop", "", IWP_RULE_AS_PUBLISHED, 1, 28, 1000);
    check_stages(n, 3, THREE(3, 16, 22), THREE(250, 12, 1), "v2drop 28");
    static const double keep[] = {.3333, .2222, .1667, .1111};
    static const int32_t list[4][3] = {{300, 200, 110},
                                       {303, 110, 36},
                                       {238, 48, 26},
                                       {66, 30, 17}},
                         list2[4][3] = {
                             {300, 200, 118}, {238, 108, 60}, {246, 54, 28}, {66, 34, 20}};
    for (int i = 0; i < 4; i++) {
        n = plan("sparsevlm", "", IWP_RULE_AS_PUBLISHED, keep[i], 32, 576);
        check_stages(n, 3, THREE(3, 7, 16), list[i], "sparsevlm 1.5");
        n = plan("sparsevlm", "version=2", IWP_RULE_AS_PUBLISHED, keep[i], 32, 576);
        check_stages(n, 3, THREE(3, 7, 16), list2[i], "sparsevlm 2");
    }
    CHECK_INT(plan("sparsevlm", "rank=1", IWP_RULE_DEFAULT, .5, 32, 576), 4);
    CHECK_INT(stage[3].at, 20);
}

/* The solved settings of the specification: share after each cut. */
static void test_solved(void) {
    static const struct {
        double keep, lambda;
        int32_t n_layer;
    } pyramid[] = {{.333, .5596, 32}, {.353, .5801, 32}, {.222, .4194, 32}, {.111, .1912, 32},
                   {.333, .5553, 28}, {.353, .5762, 28}, {.222, .4114, 28}, {.111, .1685, 28}};
    const int32_t big = 1000000;
    for (int i = 0; i < 8; i++) {
        int n = plan("pyramiddrop", "", IWP_RULE_DEFAULT, pyramid[i].keep, pyramid[i].n_layer, big);
        CHECK_INT(n, 3);
        CHECK_INT(stage[0].at, 2);
        CHECK_INT(stage[1].at, pyramid[i].n_layer / 4);
        double x = pyramid[i].lambda;
        for (int k = 0; k < 3; k++, x *= pyramid[i].lambda)
            CHECK_NEAR((double)stage[k].n_keep / big, x, 2e-3 * (k + 1) * x + 1e-3);
    }
    static const double r1[] = {.5176, .2418, .0081}, keep[] = {.353, .222, .111};
    for (int i = 0; i < 3; i++) {
        int n = plan("v2drop", "", IWP_RULE_DEFAULT, keep[i], 28, big);
        CHECK_INT(n, 3);
        CHECK_NEAR((double)stage[0].n_keep / big, r1[i], 2e-4);
        CHECK_NEAR((double)stage[1].n_keep / big, r1[i] * .05, 2e-5);
        CHECK_INT(stage[2].n_keep, 1);
        n = plan("fastv", "", IWP_RULE_LAYER_AVERAGE, keep[i], 28, big);
        CHECK_INT(n, 1);
        CHECK_INT(stage[0].at, 2);
        static const double r[] = {.3032, .1622, .0426};
        CHECK_NEAR((double)stage[0].n_keep / big, r[i], 1e-4);
    }
    /* lambda .19 with cuts at 2, 8, 16 of 32 averages .1105795 */
    plan("pyramiddrop", "", IWP_RULE_DEFAULT, .1105795, 32, big);
    CHECK_NEAR((double)stage[0].n_keep / big, .19, 1e-5);
}

/* Averages are met to half a token for every reachable budget; ranges are told, and hold. */
static void test_sums(void) {
    static const char *const methods[] = {"pyramiddrop", "v2drop", "sparsevlm", "fastv",
                                          "vatp",        "dart",   "iwp"};
    static const int32_t layers[] = {2, 3, 6, 12, 24, 28, 32, 64}, sizes[] = {1, 7, 64, 729, 2048};
    for (int m = 0; m < 7; m++)
        for (int l = 0; l < 8; l++)
            for (int z = 0; z < 5; z++)
                for (int rule = IWP_RULE_LAYER_AVERAGE; rule <= IWP_RULE_MATCHED; rule++)
                    for (int i = 1; i <= 20; i++) {
                        double keep = i / 20.0, want = keep;
                        int32_t nl = layers[l], nv = sizes[z];
                        int n = plan(methods[m], "", (enum iwp_budget_rule)rule, keep, nl, nv);
                        double first = nl < 4 ? nl : 4;
                        if (rule == IWP_RULE_MATCHED) want = (first + keep * (nl - first)) / nl;
                        if (n < 0) {
                            const char *range = strstr(err.msg, "reaches ");
                            double least = range ? atof(range + 8) : 0;
                            CHECK_MSG(range && least > keep - 1e-3 && least <= 1.0001,
                                      "%s %d/%d: %s", methods[m], nv, nl, err.msg);
                            int again = plan(methods[m], "", (enum iwp_budget_rule)rule,
                                             fmin(1, least * 1.001), nl, nv);
                            CHECK_MSG(again > 0, "%s at the told limit %g: %s", methods[m], least,
                                      err.msg);
                            continue;
                        }
                        CHECK_MSG(fabs(average(n, nl, nv) - want * nv) <= 0.5 + 1e-6,
                                  "%s keep %g of %d in %d layers: average %g", methods[m], keep, nv,
                                  nl, average(n, nl, nv));
                        for (int k = 0; k < n; k++) {
                            CHECK(stage[k].n_keep >= 1 && stage[k].n_keep <= nv);
                            CHECK(k == 0 || (stage[k].n_keep <= stage[k - 1].n_keep &&
                                             stage[k].at > stage[k - 1].at));
                            if (i == 20) CHECK_INT(stage[k].n_keep, nv); /* keep 1 keeps all */
                        }
                    }
}

static void test_cut(void) {
    for (int32_t nv = 1; nv < 300; nv += 13)
        for (int i = 1; i <= 10; i++) {
            int n = plan("v2drop", "", IWP_RULE_CUT, i / 10.0, 28, nv);
            CHECK_INT(stage[n - 1].n_keep, iwp_keep_count(i / 10.0, nv));
            n = plan("sparsevlm", "", IWP_RULE_CUT, i / 10.0, 28, nv);
            CHECK_INT(stage[n - 1].n_keep, iwp_keep_count(i / 10.0, nv));
        }
    struct iwp_params p = params_of("pyramiddrop", "", 40);
    struct iwp_plan_shape s = {.n_layer = 28, .n_visual = 100};
    p.layer = 9; /* one cut where the user says */
    CHECK_INT(iwp_plan(&p, &s, stage, IWP_STAGE_MAX, &err), 1);
    CHECK_INT(stage[0].at, 9);
    CHECK_INT(stage[0].n_keep, 40);
    p.layer = 28;
    CHECK(iwp_plan(&p, &s, stage, IWP_STAGE_MAX, &err) < 0);
    p = params_of("pyramiddrop", "", 1);
    CHECK(iwp_plan(&p, &s, stage, IWP_STAGE_MAX, &err) < 0);
    CHECK_MSG(strstr(err.msg, "--keep-tokens 1") && strstr(err.msg, "reaches 9 to 100"), "%s",
              err.msg); /* (2·100 + 26) / 28 = 8.07 */
    p = params_of("pyramiddrop", "", 101);
    CHECK(iwp_plan(&p, &s, stage, IWP_STAGE_MAX, &err) < 0);
}

static void test_fastv_layers(void) {
    CHECK_INT(plan("fastv", "query=mean-prefix", IWP_RULE_DEFAULT, .353, 28, 1000), 1);
    CHECK_INT(stage[0].at, 4);
    plan("fastv", "query=mean-prefix", IWP_RULE_AS_PUBLISHED, .3539, 28, 1000);
    CHECK_INT(stage[0].n_keep, 353); /* truncated */
    plan("fastv", "", IWP_RULE_AS_PUBLISHED, .3539, 28, 1000);
    CHECK_INT(stage[0].n_keep, 354);
    /* matched: layer 4 is the yardstick itself */
    plan("iwp", "", IWP_RULE_MATCHED, .222, 28, 1000);
    CHECK_INT(stage[0].n_keep, 222);
    plan("fastv", "", IWP_RULE_MATCHED, .222, 28, 1000);
    CHECK_NEAR(average(1, 28, 1000), 333.1, .5);
}

static void test_vtw(void) {
    static const double keep[] = {.5, .353, .222, .111};
    static const int32_t layer[] = {16, 12, 9, 7};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(plan("vtw", "", IWP_RULE_DEFAULT, keep[i], 28, 100), 1);
        CHECK_INT(stage[0].at, layer[i]);
        CHECK_INT(stage[0].n_keep, 0);
        plan("vtw", "", IWP_RULE_MATCHED, keep[i], 28, 100);
        CHECK_INT(stage[0].at, layer[i]);
        plan("vtw", "", IWP_RULE_LAYER_AVERAGE, keep[i], 28, 100);
        CHECK_INT(stage[0].at, (int)(keep[i] * 28 + .5));
    }
    plan("vtw", "", IWP_RULE_DEFAULT, 1, 32, 100); /* no budget given: as published */
    CHECK_INT(stage[0].at, 15);
    CHECK(plan("vtw", "", IWP_RULE_LAYER_AVERAGE, .01, 28, 100) < 0);
    CHECK(strstr(err.msg, "reaches") != NULL);
}

int main(void) {
    test_published();
    test_solved();
    test_sums();
    test_cut();
    test_fastv_layers();
    test_vtw();
    return test_done();
}
