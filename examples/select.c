/* Which visual tokens to keep, asked by a program that has its own engine.  Reads nothing: makes
 * the arrays of one decoder layer up, as a model would compute them.
 *
 *   cc select.c $(pkg-config --cflags --libs iwp-prune) && ./a.out */
#include <iwp/prune.h>

#include <stdio.h>
#include <stdlib.h>

enum { S = 300, FIRST = 10, VISUAL = 256, H = 8, G = 2, D = 64 };

static float *made_up(int heads, unsigned seed) {
    float *p = malloc(sizeof *p * S * (size_t)heads * D);
    for (int i = 0; p && i < S * heads * D; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return p;
}

int main(void) {
    uint8_t code[S] = {0}; /* template text, then 256 visual tokens, then the user's question */
    for (int i = 0; i < VISUAL; i++) code[FIRST + i] = IWP_CODE_VISUAL;
    for (int i = FIRST + VISUAL; i < S; i++) code[i] = IWP_CODE_USER;
    float *q = made_up(H, 1), *k = made_up(G, 2), *k_rope = made_up(G, 3), *v = made_up(G, 4);
    if (!q || !k || !k_rope || !v) return 1;

    struct iwp_params p;
    iwp_err err;
    iwp_params_default(&p, iwp_method_find("iwp"));
    p.budget.keep = 0.222;
    if (iwp_params_parse(&p, "lambda=5,growth=2", &err) < 0) goto fail;

    struct iwp_input in = {.n = S, .code = code};
    in.arr[IWP_TENSOR_Q] = iwp_array_f32(q, S, H, D);
    in.arr[IWP_TENSOR_K] = iwp_array_f32(k, S, G, D);
    in.arr[IWP_TENSOR_K_ROPE] = iwp_array_f32(k_rope, S, G, D);
    in.arr[IWP_TENSOR_V] = iwp_array_f32(v, S, G, D);

    int64_t bytes = iwp_select_workspace(&p, &in, NULL, &err);
    if (bytes < 0) goto fail;
    int32_t keep[VISUAL];
    void *workspace = malloc((size_t)bytes);
    struct iwp_selection sel = {.keep = keep};
    if (!workspace || iwp_select(&p, &in, NULL, workspace, (size_t)bytes, NULL, &sel, &err) < 0)
        goto fail;

    printf("kept %d of %d visual tokens:", sel.n_keep, VISUAL);
    for (int i = 0; i < sel.n_keep; i++) printf(" %d", keep[i]);
    printf("\nhash %016llx, %s\n", (unsigned long long)iwp_keep_hash(keep, sel.n_keep),
           iwp_cpu_name());
    free(workspace);
    free(q), free(k), free(k_rope), free(v);
    return sel.n_keep == 57 ? 0 : 1; /* round(0.222 * 256) */
fail:
    fprintf(stderr, "select: %s\n", err.msg);
    return 1;
}
