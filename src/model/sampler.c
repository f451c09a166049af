/* Picking tokens: libllama's samplers, in llama.cpp's order (top-k, top-p, min-p, temperature, draw).
 * Greedy is our own: the largest logit, the lower id when equal. */
#include <llama.h>
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "iwp/engine.h"

struct iwp_sampler {
    struct llama_sampler *chain; /* NULL: greedy */
    llama_token_data *data;
    int32_t cap;
};

struct iwp_sampler_params iwp_sampler_default_params(void) {
    return (struct iwp_sampler_params){
        .temp = 0, .top_k = 40, .top_p = 0.95, .min_p = 0.05, .seed = LLAMA_DEFAULT_SEED};
}

int iwp_sampler_new(iwp_sampler **out, const struct iwp_sampler_params *p, iwp_err *err) {
    *out = NULL;
    struct iwp_sampler *s = calloc(1, sizeof *s);
    IWP_REQUIRE(s, err, IWP_ENOMEM, "out of memory");
    if (p->temp > 0) {
        s->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
        if (!s->chain) {
            free(s);
            return iwp_err_set(err, IWP_ENOMEM, "out of memory");
        }
        if (p->top_k > 0) llama_sampler_chain_add(s->chain, llama_sampler_init_top_k(p->top_k));
        if (p->top_p < 1)
            llama_sampler_chain_add(s->chain, llama_sampler_init_top_p((float)p->top_p, 1));
        if (p->min_p > 0)
            llama_sampler_chain_add(s->chain, llama_sampler_init_min_p((float)p->min_p, 1));
        llama_sampler_chain_add(s->chain, llama_sampler_init_temp((float)p->temp));
        llama_sampler_chain_add(s->chain, llama_sampler_init_dist(p->seed));
    }
    *out = s;
    return 0;
}

void iwp_sampler_free(iwp_sampler *s) {
    if (!s) return;
    if (s->chain) llama_sampler_free(s->chain);
    free(s->data);
    free(s);
}

static int32_t greedy(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

int32_t iwp_sampler_pick(iwp_sampler *s, const float *logits, int32_t n_vocab) {
    if (!s || !s->chain) return greedy(logits, n_vocab);
    if (s->cap < n_vocab) {
        llama_token_data *p = realloc(s->data, (size_t)n_vocab * sizeof *p);
        if (!p) return greedy(logits, n_vocab);
        s->data = p;
        s->cap = n_vocab;
    }
    for (int32_t i = 0; i < n_vocab; i++) s->data[i] = (llama_token_data){i, logits[i], 0};
    llama_token_data_array a = {s->data, (size_t)n_vocab, -1, false};
    llama_sampler_apply(s->chain, &a);
    if (a.selected < 0 || (size_t)a.selected >= a.size) return greedy(logits, n_vocab);
    const int32_t id = a.data[a.selected].id;
    llama_sampler_accept(s->chain, id);
    return id;
}
