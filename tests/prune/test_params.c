/* Options, budgets and plans: what parses, what prints, and that every error names its flag. */
#include "test.h"

#include "iwp/prune.h"

static struct iwp_params fresh(const char *method) {
    struct iwp_params p;
    iwp_params_default(&p, iwp_method_find(method));
    return p;
}

static const struct iwp_option *option(const struct iwp_params *p, const char *name) {
    const struct iwp_option *o = iwp_method_info(p->method)->options;
    while (o && o->name && strcmp(o->name, name) != 0) o++;
    return o && o->name ? o : NULL;
}

static void check_print(const struct iwp_params *p, const char *name, const char *want) {
    char buf[64] = "";
    const struct iwp_option *o = option(p, name);
    CHECK_MSG(o != NULL, "%s", name);
    if (!o) return;
    CHECK_INT(iwp_params_print(p, o, buf, sizeof buf), strlen(want));
    CHECK_STR(buf, want);
}

TEST(defaults_of_iwp) {
    struct iwp_params p = fresh("iwp");
    static const char *const want[][2] = {{"magnitude", "kv"},
                                          {"query", "text-after"},
                                          {"magnitude-rope", "0"},
                                          {"head-norm", "softmax-all"},
                                          {"scale", "max"},
                                          {"duplication", "dw"},
                                          {"duplication-rope", "1"},
                                          {"duplication-heads", "mean-sq"},
                                          {"duplication-norm", "none"},
                                          {"selector", "pc-mmr"},
                                          {"chunk", "2"},
                                          {"growth", "2"},
                                          {"lambda", "5"},
                                          {"floor", "0.01"},
                                          {"penalty", "new"},
                                          {"gamma", "0.5"}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        check_print(&p, want[i][0], want[i][1]);
    CHECK(p.budget.keep == 1 && p.budget.n_keep == 0 && p.layer == -1);
    CHECK_INT(iwp_method_info(p.method)->layer, 4);
}

/* Every option of every method: what it prints parses back, both ends of its range are accepted and
 * what lies beyond is refused by name. */
TEST(every_option_of_every_method) {
    for (int32_t m = 0; m < iwp_method_count(); m++) {
        const struct iwp_method_info *info = iwp_method_info(iwp_method_at(m));
        CHECK(info->name && info->title && info->ref && info->positions && info->rounding);
        CHECK(iwp_method_find(info->name) == iwp_method_at(m));
        struct iwp_params p = fresh(info->name);
        for (const struct iwp_option *o = info->options; o && o->name; o++) {
            char buf[64], text[64];
            iwp_err err = {0};
            CHECK(o->text && o->text[0]);
            CHECK_MSG(o->offset >= 0 && o->offset + 8 <= IWP_OPTION_BYTES + 4, "%s %s", info->name,
                      o->name);
            iwp_params_print(&p, o, buf, sizeof buf);
            CHECK_MSG(iwp_params_set(&p, o->name, buf, &err) == 0, "%s: %s", info->name, err.msg);
            for (int i = 0; o->type == IWP_OPTION_ENUM && o->choices[i]; i++) {
                CHECK_INT(iwp_params_set(&p, o->name, o->choices[i], &err), 0);
                check_print(&p, o->name, o->choices[i]);
            }
            if (o->type != IWP_OPTION_ENUM) {
                double lo = o->type == IWP_OPTION_BOOL ? 0 : o->min,
                       hi = o->type == IWP_OPTION_BOOL ? 1 : o->max;
                snprintf(text, sizeof text, "%.17g", lo);
                CHECK_INT(iwp_params_set(&p, o->name, text, &err), o->min_open ? IWP_EINVAL : 0);
                snprintf(text, sizeof text, "%.17g", hi);
                CHECK_INT(iwp_params_set(&p, o->name, text, &err), 0);
                const double out[] = {lo - 1, hi + fabs(hi) + 1};
                for (int i = 0; i < 2; i++) {
                    err.msg[0] = 0;
                    snprintf(text, sizeof text, "%.17g", out[i]);
                    CHECK_MSG(iwp_params_set(&p, o->name, text, &err) == IWP_EINVAL, "%s %s=%s",
                              info->name, o->name, text);
                    CHECK_MSG(strstr(err.msg, o->name) && strstr(err.msg, info->name), "%s",
                              err.msg);
                }
            }
            static const char *const bad[] = {"", "x", "nan", "inf", "1e999", "5x", " 5", "0.5.5"};
            for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
                err.msg[0] = 0;
                CHECK_MSG(iwp_params_set(&p, o->name, bad[i], &err) == IWP_EINVAL, "%s %s='%s'",
                          info->name, o->name, bad[i]);
                CHECK_MSG(strstr(err.msg, o->name), "%s", err.msg);
            }
        }
        iwp_err err = {0};
        CHECK_INT(iwp_params_set(&p, "no-such-option", "1", &err), IWP_EINVAL);
        CHECK(strstr(err.msg, "no-such-option") && strstr(err.msg, info->name));
    }
    CHECK(iwp_method_find("no such method") == NULL);
    CHECK(iwp_method_at(-1) == NULL && iwp_method_at(iwp_method_count()) == NULL);
}

TEST(lists) {
    struct iwp_params p = fresh("iwp");
    iwp_err err = {0};
    CHECK_INT(iwp_params_parse(
                  &p,
                  "lambda=7.5,chunk=3,magnitude=centered,magnitude-rope=on,duplication-rope=false",
                  &err),
              0);
    check_print(&p, "lambda", "7.5");
    check_print(&p, "chunk", "3");
    check_print(&p, "magnitude", "centered");
    check_print(&p, "magnitude-rope", "1");
    check_print(&p, "duplication-rope", "0");
    CHECK_INT(iwp_params_parse(&p, "", &err), 0);
    static const char *const bad[] = {
        "lambda",  "=5",        "lambda=5,chunk", "lambda=5,,chunk=2", "chunk=2.5",     "chunk=0",
        "floor=0", "floor=1.5", "growth=0.5",     "lambda=-1",         "selector=best", "square=2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err.msg[0] = 0;
        CHECK_MSG(iwp_params_parse(&p, bad[i], &err) == IWP_EINVAL && err.msg[0], "%s", bad[i]);
    }
    char long_list[400];
    memset(long_list, 'a', sizeof long_list);
    long_list[100] = '=';
    long_list[399] = 0;
    CHECK_INT(iwp_params_parse(&p, long_list, &err), IWP_EINVAL);
    CHECK_INT(iwp_params_parse(&p, "selector=best", &err), IWP_EINVAL);
    CHECK_MSG(strstr(err.msg, "selector=best") &&
                  strstr(err.msg, "pc-mmr, topk, mmr-mult or mmr-add"),
              "%s", err.msg);
    CHECK_INT(iwp_params_parse(&p, "floor=0", &err), IWP_EINVAL);
    CHECK_MSG(strstr(err.msg, "above 0 and at most 1"), "%s", err.msg);
}

TEST(keep_parse) {
    static const struct {
        const char *text;
        double want;
    } good[] = {{"0.222", 0.222}, {"22.2%", 0.222},  {"1", 1},
                {"100%", 1},      {"0.01%", 0.0001}, {"1e-3", 0.001}};
    static const char *const bad[] = {"0", "0%", "1.5",  "150%", "-0.1", "nan",  "inf",  "",
                                      "%", "x",  "0.5x", "50%%", " 0.5", "0.5 ", "-nan", "1e999"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double x = 0;
        iwp_err err = {0};
        CHECK_MSG(iwp_keep_parse(good[i].text, &x, &err) == 0, "%s", err.msg);
        CHECK_NEAR(x, good[i].want, 1e-15);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double x = 0.77;
        iwp_err err = {0};
        CHECK_MSG(iwp_keep_parse(bad[i], &x, &err) == IWP_EINVAL, "'%s' gave %g", bad[i], x);
        CHECK_MSG(strstr(err.msg, "is not a fraction kept"), "%s", err.msg);
        CHECK(x == 0.77);
    }
}

/* Halves go to the even count, as Python's round(). */
TEST(keep_count) {
    static const struct {
        double keep;
        int n, want;
    } t[] = {{0.5, 1, 1},      {0.5, 3, 2},        {0.5, 5, 2},        {0.5, 7, 4},
             {0.5, 9, 4},      {0.25, 10, 2},      {0.25, 6, 2},       {0.25, 14, 4},
             {0.1, 25, 2},     {0.01, 3, 1},       {1e-9, 1000, 1},    {1, 1, 1},
             {1, 77, 77},      {0.353, 2048, 723}, {0.222, 2048, 455}, {0.111, 2048, 227},
             {0.353, 269, 95}, {0.222, 269, 60},   {0.111, 269, 30},   {0.222, 6, 1},
             {0.353, 6, 2},    {0.999999, 10, 10}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
        CHECK_MSG(iwp_keep_count(t[i].keep, t[i].n) == t[i].want, "%g of %d: %d, want %d",
                  t[i].keep, t[i].n, iwp_keep_count(t[i].keep, t[i].n), t[i].want);
}

TEST(plans) {
    struct iwp_plan_shape s = {.n_layer = 28, .n_visual = 1000, .n_separator = 20};
    struct iwp_stage st[IWP_STAGE_MAX];
    iwp_err err = {0};
    struct iwp_params p = fresh("iwp");
    p.budget.keep = 0.222;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), 1);
    CHECK(st[0].site == IWP_SITE_LAYER && st[0].at == 4 && st[0].n_keep == 222);
    p.budget.keep_separators = 1;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), 1);
    CHECK_INT(st[0].n_keep, 218); /* round(0.222 · 980) */
    p.layer = 0;
    p.budget.n_keep = 64;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), 1);
    CHECK(st[0].at == 0 && st[0].n_keep == 64);
    p.layer = 28;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), IWP_EINVAL);
    CHECK_MSG(strstr(err.msg, "--prune-layer 28") && strstr(err.msg, "27"), "%s", err.msg);
    p.layer = -1;
    p.budget.n_keep = 981;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), IWP_EINVAL);
    CHECK_MSG(strstr(err.msg, "--keep-tokens 981") && strstr(err.msg, "980"), "%s", err.msg);
    p.budget.n_keep = 0;
    p.budget.keep = 1.5;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), IWP_EINVAL);
    CHECK_MSG(strstr(err.msg, "--keep 1.5"), "%s", err.msg);
    p = fresh("iwp");
    p.budget.keep = 0.3;
    p.budget.rule = IWP_RULE_LAYER_AVERAGE;
    CHECK_INT(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err), 1);
    CHECK_NEAR((4.0 * 1000 + 24.0 * st[0].n_keep) / 28, 300, 0.5); /* the average over layers */
    p.budget.keep = 0.1; /* below 4/28: cannot be met at layer 4 */
    CHECK(iwp_plan(&p, &s, st, IWP_STAGE_MAX, &err) < 0);
}

TEST(needs) {
    struct iwp_params p = fresh("iwp");
    struct iwp_need need[IWP_TENSOR_COUNT];
    iwp_err err;
    CHECK_INT(iwp_params_needs(&p, 0, need, IWP_TENSOR_COUNT), 4); /* q k v k_rope */
    CHECK(need[0].tensor == IWP_TENSOR_Q && need[0].rows == IWP_ROWS_TEXT_AFTER);
    CHECK(need[1].tensor == IWP_TENSOR_K && need[1].rows == IWP_ROWS_ALL);
    CHECK(need[2].tensor == IWP_TENSOR_V && need[2].rows == IWP_ROWS_VISUAL);
    CHECK(need[3].tensor == IWP_TENSOR_K_ROPE && need[3].rows == IWP_ROWS_VISUAL);
    CHECK_INT(iwp_params_parse(&p, "magnitude=vnorm,selector=topk", &err), 0);
    CHECK_INT(iwp_params_needs(&p, 0, need, IWP_TENSOR_COUNT), 1);
    CHECK(need[0].tensor == IWP_TENSOR_V);
    CHECK_INT(iwp_params_parse(&p, "selector=mmr-add,duplication=cos_h", &err), 0);
    CHECK_INT(iwp_params_needs(&p, 0, need, IWP_TENSOR_COUNT), 2);
    CHECK(need[1].tensor == IWP_TENSOR_H);
    CHECK_STR(iwp_tensor_name(IWP_TENSOR_K_ROPE), "k_rope");
}

/* Wrong input: the error names the tensor or the flag, before any memory is asked for. */
TEST(input_errors) {
    enum { S = 12 };
    static float x[S * 4 * 8];
    uint8_t code[S] = {0, 1, 1, 1, 1, 1, 1, 1, 2, 0, 3, 3};
    iwp_err err = {0};
    struct iwp_input good = {.n = S, .code = code};
    good.arr[IWP_TENSOR_Q] = iwp_array_f32(x, S, 4, 8);
    good.arr[IWP_TENSOR_K] = good.arr[IWP_TENSOR_K_ROPE] = good.arr[IWP_TENSOR_V] =
        iwp_array_f32(x, S, 2, 8);
    struct iwp_params p = fresh("iwp");
    p.budget.keep = 0.5;
    CHECK(iwp_select_workspace(&p, &good, NULL, &err) > 0);
    struct iwp_input in;
#define REFUSED(change, word)                                                                      \
    do {                                                                                           \
        in = good;                                                                                 \
        err.msg[0] = 0;                                                                            \
        change;                                                                                    \
        CHECK_MSG(iwp_select_workspace(&p, &in, NULL, &err) < 0 && strstr(err.msg, word),          \
                  "%s: '%s'", #change, err.msg);                                                   \
    } while (0)
    REFUSED(in.arr[IWP_TENSOR_K].data = NULL, "tensor k is missing");
    REFUSED(in.arr[IWP_TENSOR_V].n_row = S - 1, "tensor v has 11 rows");
    REFUSED(in.arr[IWP_TENSOR_V].n_head = 1, "v");
    REFUSED(in.arr[IWP_TENSOR_K_ROPE].n_dim = 4, "k_rope");
    REFUSED(in.arr[IWP_TENSOR_Q].n_head = 3, "tensor q has 3 heads");
    REFUSED(in.arr[IWP_TENSOR_Q].n_dim = 0, "q");
    REFUSED(in.arr[IWP_TENSOR_Q].dtype = (enum iwp_dtype)7, "tensor q");
    REFUSED(in.n = 0, "empty");
    REFUSED(in.code = NULL, "empty");
    uint8_t odd[S] = {0, 9}, text[S] = {0}, only_sep[S] = {2};
    REFUSED(in.code = odd, "code 9");
    REFUSED(in.code = text, "no visual token");
    p.budget.keep_separators = 1;
    REFUSED(in.code = only_sep, "separators");
    p.budget.keep_separators = -1;
    int32_t unit[8] = {0, 0, 0, 0, 0, 0, 0, 8};
    REFUSED(in.unit = unit, "tensor unit has 8");
    unit[7] = -1;
    REFUSED(in.unit = unit, "tensor unit has -1");
    p.budget.n_keep = 9;
    REFUSED((void)0, "--keep-tokens 9");
    p.budget.n_keep = -1;
    REFUSED((void)0, "--keep-tokens -1");
    p.budget.n_keep = 0;
    p.budget.keep = NAN;
    REFUSED((void)0, "--keep");
    p.budget.keep = 0;
    REFUSED((void)0, "--keep");
    p.budget.keep = 0.5;
    CHECK_INT(iwp_params_parse(&p, "duplication-heads=joint,duplication=rbf", &err), 0);
    REFUSED((void)0, "duplication-heads=joint");
}

int main(void) {
    test_defaults_of_iwp();
    test_every_option_of_every_method();
    test_lists();
    test_keep_parse();
    test_keep_count();
    test_plans();
    test_needs();
    test_input_errors();
    return test_done();
}
