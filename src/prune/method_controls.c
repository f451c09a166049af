/* The controls every comparison needs: none, random (seeded), uniform (even stride) and resize (a smaller
 * picture).  They look at no tensor, so they say what a budget alone costs. */
#include <stddef.h>

#include "prune/methods.h"

static int select_none(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    (void)err;
    if (iwp_arena_counting(a)) return 0;
    for (int32_t i = 0; i < v->n_pool; i++) v->chosen[i] = 1;
    return 0;
}

const struct iwp_method iwp_method_none = {
    .info = {.name = "none",
             .title = "keep every token",
             .ref = "control",
             .site = IWP_SITE_LAYER,
             .positions = "original",
             .rounding = "keeps all, ignores the budget",
             .layer = 4},
    .select = select_none,
};

/* floor((2i+1) N / 2M): the middle of M equal stretches. */
static int select_uniform(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    (void)err;
    if (iwp_arena_counting(a)) return 0;
    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u];
        int64_t n = v->unit_first[u + 1] - first, m = v->unit_keep[u];
        for (int64_t i = 0; i < m; i++) v->chosen[first + (2 * i + 1) * n / (2 * m)] = 1;
    }
    return 0;
}

const struct iwp_method iwp_method_uniform = {
    .info = {.name = "uniform",
             .title = "even stride over the tokens",
             .ref = "control",
             .site = IWP_SITE_LAYER,
             .positions = "original",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = 4},
    .select = select_uniform,
};

struct random_options {
    int32_t seed;
};

static const struct iwp_option random_options[] = {
    {.name = "seed",
     .type = IWP_OPTION_INT,
     .offset = offsetof(struct random_options, seed),
     .def = 0,
     .min = 0,
     .max = 2147483647,
     .text = "another seed, another set; the same seed, the same set"},
    {.name = NULL},
};

/* SplitMix64 (Steele, Lea, Flood 2014): a full-period mixer of a counter. */
static uint64_t mix(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

/* A uniform integer below n without bias. */
static int32_t below(uint64_t *state, int32_t n) {
    uint64_t limit = UINT64_MAX - UINT64_MAX % (uint64_t)n, x;
    do x = mix(state);
    while (x >= limit);
    return (int32_t)(x % (uint64_t)n);
}

/* The first M of a Fisher-Yates shuffle. */
static int select_random(struct iwp_view *v, struct iwp_arena *a, void *state, iwp_err *err) {
    (void)state;
    (void)err;
    int32_t *order = IWP_TAKE(a, int32_t, v->n_pool);
    if (iwp_arena_counting(a)) return 0;
    uint64_t s = (uint64_t)IWP_OPTIONS(random_options, v->params)->seed;
    for (int32_t u = 0; u < v->n_unit; u++) {
        int32_t first = v->unit_first[u], n = v->unit_first[u + 1] - first;
        for (int32_t i = 0; i < n; i++) order[i] = first + i;
        for (int32_t i = 0; i < v->unit_keep[u]; i++) {
            int32_t j = i + below(&s, n - i), t = order[i];
            order[i] = order[j];
            order[j] = t;
            v->chosen[order[i]] = 1;
        }
    }
    return 0;
}

const struct iwp_method iwp_method_random = {
    .info = {.name = "random",
             .title = "a seeded random set",
             .ref = "control",
             .site = IWP_SITE_LAYER,
             .flags = IWP_METHOD_SEEDED,
             .options = random_options,
             .positions = "original",
             .rounding = "round-half-even(keep N), at least 1",
             .layer = 4},
    .select = select_random,
};

/* The engine shrinks the pictures before they are encoded; all tokens that come of it stay. */
const struct iwp_method iwp_method_resize = {
    .info = {.name = "resize",
             .title = "the same picture, shrunk until it costs as many tokens",
             .ref = "control",
             .site = IWP_SITE_MEDIA,
             .flags = IWP_METHOD_ENGINE_ONLY,
             .positions = "original",
             .rounding = "the largest count that fits round-half-even(keep N)",
             .layer = -1,
             .models =
                 "LLaVA-OneVision: several pictures have one tile each and cannot be made smaller"},
    .select = select_none,
};
