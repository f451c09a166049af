/* What a method says it reads is all it reads: everything else is filled with NaN, and nothing may
 * change.  Over the whole table, every choice of every option, so new methods are covered too. */
#include "prompt.h"

/* A projector for engine-only methods: folds the encoder row into the decoder's width. */
static int project(void *ctx, const float *x, int32_t n_row, float *y) {
    const struct prompt *p = ctx;
    int32_t from = p->in.arr[IWP_TENSOR_VIT_FEATURES].n_dim,
            to = p->in.arr[IWP_TENSOR_EMBEDS].n_dim;
    for (int32_t r = 0; r < n_row; r++)
        for (int32_t i = 0; i < to; i++)
            y[r * to + i] = x[r * from + i % from] * (float)(1 + i % 3);
    return 0;
}

static int reads(const struct prompt *p, enum iwp_rows rows, int32_t r) {
    int visual = p->code[r] == IWP_CODE_VISUAL || p->code[r] == IWP_CODE_SEPARATOR;
    switch (rows) {
    case IWP_ROWS_ALL: return 1;
    case IWP_ROWS_VISUAL: return visual;
    case IWP_ROWS_TEXT: return !visual;
    case IWP_ROWS_TEXT_AFTER: return !visual && r > p->at[0];
    case IWP_ROWS_LAST: return r == p->in.n - 1;
    }
    return 1;
}

static void poison(struct prompt *p, const struct iwp_need *need, int n) {
    for (int t = 0; t < IWP_TENSOR_COUNT; t++) {
        const struct iwp_need *found = NULL;
        for (int i = 0; i < n; i++)
            if ((int)need[i].tensor == t) found = &need[i];
        const struct iwp_array *a = &p->in.arr[t];
        size_t per = (size_t)a->n_head * (size_t)a->n_dim;
        for (int32_t r = 0; r < a->n_row; r++)
            if (!found || (a->n_row == p->in.n && !reads(p, found->rows, r)))
                for (size_t k = 0; k < per; k++) p->data[t][(size_t)r * per + k] = NAN;
    }
}

static void try_params(const struct iwp_params *q, const char *label, int must_run) {
    static const struct prompt_shape shape = {.before = 5,
                                              .visual = 40,
                                              .after = 9,
                                              .heads = 6,
                                              .groups = 2,
                                              .dim = 16,
                                              .width = 48,
                                              .separators = 7,
                                              .clusters = 6};
    static struct result clean, dirty;
    struct prompt a, b;
    prompt_make(&a, &shape, 11);
    prompt_make(&b, &shape, 11);
    a.in.project = b.in.project = project;
    a.in.project_ctx = &a;
    b.in.project_ctx = &b;
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n = iwp_params_needs(q, 0, need, IWP_TENSOR_COUNT);
    CHECK_MSG(n >= 0, "%s", label);
    poison(&b, need, n);
    prompt_select(q, &a.in, NULL, NULL, &clean);
    prompt_select(q, &b.in, NULL, NULL, &dirty);
    CHECK_MSG(!must_run || clean.rc == 0, "%s: %s", label, clean.err.msg);
    if (clean.rc == 0)
        CHECK_MSG(dirty.rc == 0, "%s: reads what it does not name: %s", label, dirty.err.msg);
    CHECK_MSG(same_result(&clean, &dirty), "%s: an array it does not name changes the result",
              label);
    /* and what it names it does need */
    for (int i = 0; i < n && clean.rc == 0; i++) {
        if (need[i].optional) continue;
        struct iwp_input less = a.in;
        less.arr[need[i].tensor].data = NULL;
        prompt_select(q, &less, NULL, NULL, &dirty);
        CHECK_MSG(dirty.rc < 0 && strstr(dirty.err.msg, iwp_tensor_name(need[i].tensor)),
                  "%s without %s: %s", label, iwp_tensor_name(need[i].tensor), dirty.err.msg);
    }
    prompt_free(&a);
    prompt_free(&b);
}

int main(void) {
    for (int32_t m = 0; m < iwp_method_count(); m++) {
        const struct iwp_method_info *info = iwp_method_info(iwp_method_at(m));
        struct iwp_params p;
        char label[200];
        iwp_params_default(&p, iwp_method_at(m));
        if (info->site == IWP_SITE_MEDIA) continue; /* acts on the picture, not on arrays */
        p.budget.keep = 0.5;
        try_params(&p, info->name, 1);
        for (const struct iwp_option *o = info->options; o && o->name; o++) {
            int n = o->type == IWP_OPTION_BOOL ? 2 : 0;
            while (o->type == IWP_OPTION_ENUM && o->choices[n]) n++;
            for (int c = 0; c < n; c++) {
                struct iwp_params q = p;
                iwp_err err;
                const char *value = o->type == IWP_OPTION_ENUM ? o->choices[c] : c ? "1" : "0";
                CHECK(iwp_params_set(&q, o->name, value, &err) == 0);
                snprintf(label, sizeof label, "%s %s=%s", info->name, o->name, value);
                try_params(&q, label, 0);
                q.budget.keep_separators = 1;
                try_params(&q, label, 0);
            }
        }
    }
    return test_done();
}
