/* describe: what is in a picture, with most visual tokens dropped inside the network.
 *
 *     describe MODEL.gguf MMPROJ.gguf PICTURE [QUESTION [KEEP]]
 */
#include <stdio.h>
#include <stdlib.h>

#include "iwp/engine.h"

static bool print(void *ctx, const char *text, size_t n) {
    (void)ctx;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: describe MODEL.gguf MMPROJ.gguf PICTURE [QUESTION [KEEP]]\n");
        return 2;
    }
    iwp_err err = {0};
    iwp_engine *engine = NULL;
    iwp_session *session = NULL;
    iwp_prompt *prompt = NULL;
    struct iwp_answer answer = {0};
    int rc;

    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = argv[1];
    ep.mmproj = argv[2];
    if ((rc = iwp_engine_open(&engine, &ep, &err)) < 0) goto done;

    struct iwp_params prune;
    iwp_params_default(&prune, iwp_method_find("iwp"));
    prune.budget.keep = argc > 5 ? atof(argv[5]) : 0.222;

    const struct iwp_part parts[] = {
        {.kind = IWP_PART_IMAGE, .file = argv[3]},
        {.kind = IWP_PART_TEXT, .text = argc > 4 ? argv[4] : "What is in the picture?"}};
    const struct iwp_message message = {"user", parts, 2};
    struct iwp_prompt_request request = {.message = &message, .n_message = 1};
    iwp_prompt_request_for(&request, &prune);
    if ((rc = iwp_engine_prompt(engine, &request, &prompt, &err)) < 0) goto done;

    struct iwp_session_params sp = iwp_session_default_params();
    if ((rc = iwp_session_new(&session, engine, &sp, &err)) < 0) goto done;
    if ((rc = iwp_session_begin(session, prompt, &prune, &err)) < 0) goto done;
    while ((rc = iwp_session_step(session, &err)) > 0) {
    }
    if (rc < 0) goto done;

    const struct iwp_generate_params gp = {.n_predict = 128, .on_text = print};
    if ((rc = iwp_session_generate(session, &gp, &answer, &err)) < 0) goto done;
    const struct iwp_session_stats st = iwp_session_stats(session);
    printf("\n");
    fprintf(stderr, "%d of %d visual tokens kept, %.0f%% of the prefill's work\n", st.n_kept,
            st.n_visual, 100 * st.flops / st.flops_full);
done:
    if (rc < 0) fprintf(stderr, "describe: %s\n", err.msg);
    iwp_answer_free(&answer);
    iwp_session_free(session);
    iwp_engine_prompt_free(prompt);
    iwp_engine_close(engine);
    return rc < 0;
}
