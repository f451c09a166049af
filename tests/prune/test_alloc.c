/* A selection allocates nothing, refuses too little memory, and may run twice at once. */
#include "prune_case.h"

#include <pthread.h>

#include "count_alloc.h"

static void random_prompt(struct prompt *p, struct iwp_params *params, uint64_t *seed,
                          const struct iwp_method *m) {
    struct prompt_shape s = random_shape(seed, 100);
    s.n_visual = 90;
    struct ref_options o;
    char text[600];
    iwp_err err;
    random_options(seed, &o, text, sizeof text);
    iwp_params_default(params, m);
    if (m == iwp_method_find("iwp")) CHECK(iwp_params_parse(params, text, &err) == 0);
    params->budget.keep = 0.3;
    prompt_make(p, &s, IWP_DTYPE_F16, seed);
    prompt_fill(p, NULL);
    p->in.arr[IWP_TENSOR_H_PREV] = p->in.arr[IWP_TENSOR_EMBEDS] = p->in.arr[IWP_TENSOR_H];
    p->in.arr[IWP_TENSOR_Q_ROPE_PREV] = p->in.arr[IWP_TENSOR_Q_ROPE];
    p->in.arr[IWP_TENSOR_K_ROPE_PREV] = p->in.arr[IWP_TENSOR_K_ROPE];
    /* The encoder's rows are those of the tokens of code 1; any numbers do. */
    int32_t rows = 0;
    for (int32_t i = 0; i < p->in.n; i++) rows += p->in.code[i] == IWP_CODE_VISUAL;
    const enum iwp_tensor vit[] = {IWP_TENSOR_VIT_Q, IWP_TENSOR_VIT_K, IWP_TENSOR_VIT_FEATURES};
    for (int t = 0; t < 3; t++) {
        p->in.arr[vit[t]] = p->in.arr[t < 2 ? IWP_TENSOR_K : IWP_TENSOR_H];
        p->in.arr[vit[t]].n_row = rows;
    }
    if (m == iwp_method_find("tome")) params->budget.keep = 0.6; /* what one step reaches */
}

TEST(select_allocates_nothing) {
    uint64_t seed = 3;
    iwp_cpu_name();
    check_counter();
    for (int i = 0; i < 200; i++) {
        const struct iwp_method *m =
            i % 2 ? iwp_method_find("iwp") : iwp_method_at(i / 2 % iwp_method_count());
        if (iwp_method_info(m)->flags & IWP_METHOD_ENGINE_ONLY) continue;
        struct prompt p;
        struct iwp_params params;
        random_prompt(&p, &params, &seed, m);
        iwp_err err;
        int64_t bytes = iwp_select_workspace(&params, &p.in, NULL, &err);
        CHECK_MSG(bytes >= 0, "%s: %s", iwp_method_info(m)->name, err.msg);
        if (bytes < 0) {
            prompt_free(&p);
            continue;
        }
        void *ws = malloc((size_t)bytes),
             *state = calloc(1, (size_t)iwp_select_state(&params, &p.in) + 1);
        int32_t keep[100];
        struct iwp_selection sel = {.keep = keep};
        n_alloc = 0;
        counting = 1;
        int rc = iwp_select(&params, &p.in, state, ws, (size_t)bytes, NULL, &sel, &err);
        counting = 0;
        CHECK_MSG(rc == 0, "%s: %s", iwp_method_info(m)->name, err.msg);
        CHECK_MSG(n_alloc == 0, "%s allocated %d times", iwp_method_info(m)->name, n_alloc);
        free(ws), free(state);
        prompt_free(&p);
    }
}

/* One byte less than asked for is an error, and nothing beyond the memory given is touched. */
TEST(workspace_bounds) {
    uint64_t seed = 4;
    for (int i = 0; i < 60; i++) {
        struct prompt p;
        struct iwp_params params;
        random_prompt(&p, &params, &seed, iwp_method_find("iwp"));
        iwp_err err;
        int64_t bytes = iwp_select_workspace(&params, &p.in, NULL, &err);
        CHECK(bytes > 0);
        unsigned char *ws = malloc((size_t)bytes + 256);
        int32_t keep[100];
        struct iwp_selection sel = {.keep = keep};
        unsigned char *base =
            ws + (64 - (uintptr_t)ws % 64) % 64; /* aligned: the extra 64 are not needed */
        err.msg[0] = 0;
        CHECK_INT(iwp_select(&params, &p.in, NULL, base, (size_t)bytes - 65, NULL, &sel, &err),
                  IWP_EINVAL);
        CHECK_MSG(strstr(err.msg, "workspace"), "%s", err.msg);
        CHECK_INT(iwp_select(&params, &p.in, NULL, base, 1, NULL, &sel, &err), IWP_EINVAL);
        CHECK_INT(iwp_select(&params, &p.in, NULL, NULL, (size_t)bytes, NULL, &sel, &err),
                  IWP_EINVAL);
        for (int off = 0; off < 64;
             off += 21) { /* any alignment works with the size that was said */
            memset(ws, 0xa5, (size_t)bytes + 256);
            int rc = iwp_select(&params, &p.in, NULL, ws + off, (size_t)bytes, NULL, &sel, &err);
            CHECK_MSG(rc == 0 || strstr(err.msg, "query="), "%s", err.msg);
            int touched = 0;
            for (int j = 0; j < off; j++) touched += ws[j] != 0xa5;
            for (int64_t j = off + bytes; j < bytes + 256; j++) touched += ws[j] != 0xa5;
            CHECK_INT(touched, 0);
        }
        free(ws);
        prompt_free(&p);
    }
}

struct job {
    const struct iwp_params *params;
    const struct iwp_input *in;
    uint64_t hash;
};

static void *repeat(void *arg) {
    struct job *j = arg;
    for (int i = 0; i < 8; i++) {
        struct chosen c = choose(j->params, j->in, NULL);
        uint64_t h = iwp_keep_hash(c.s.keep, c.s.n_keep);
        if (c.rc || (i && h != j->hash)) h = 1;
        j->hash = h;
        chosen_free(&c);
    }
    return NULL;
}

/* Two threads, one input. */
TEST(reentrant) {
    uint64_t seed = 5;
    struct prompt p;
    struct iwp_params a, b;
    random_prompt(&p, &a, &seed, iwp_method_find("iwp"));
    iwp_params_default(&a, iwp_method_find("iwp"));
    a.budget.keep = 0.4;
    b = a;
    iwp_err err;
    CHECK(iwp_params_set(&b, "selector", "mmr-mult", &err) == 0);
    struct job alone[2] = {{&a, &p.in, 0}, {&b, &p.in, 0}},
               both[2] = {{&a, &p.in, 0}, {&b, &p.in, 0}};
    for (int i = 0; i < 2; i++) repeat(&alone[i]);
    pthread_t t[2];
    for (int i = 0; i < 2; i++) CHECK_INT(pthread_create(&t[i], NULL, repeat, &both[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 2; i++) CHECK(both[i].hash == alone[i].hash && alone[i].hash > 1);
    prompt_free(&p);
}

int main(void) {
    test_select_allocates_nothing();
    test_workspace_bounds();
    test_reentrant();
    return test_done();
}
