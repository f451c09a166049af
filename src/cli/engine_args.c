/* Flags of commands that run a model: see engine_args.h. */
#include "cli/engine_args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/err.h"
#include "base/log.h"

#define AT(field) offsetof(struct iwp_model_args, field)
const struct iwp_opt iwp_model_opts[] = {
    {"-m, --model", "FILE", IWP_OPT_TEXT, AT(model), 0, 0, NULL,
     "language model, GGUF (default: the shipped model in the cache)"},
    {"-mm, --mmproj", "FILE", IWP_OPT_TEXT, AT(mmproj), 0, 0, NULL,
     "vision tower and projector, GGUF"},
    {"-c, --ctx-size", "N", IWP_OPT_INT, AT(ctx), 0, 1 << 28, NULL,
     "tokens the context holds (default 0: what the model was made for)"},
    {"-t, --threads", "N", IWP_OPT_INT, AT(threads), 0, IWP_POOL_MAX, NULL,
     "threads (default 0: all CPUs it may use)"},
    {"-tb, --threads-batch", "N", IWP_OPT_INT, AT(threads_batch), 0, IWP_POOL_MAX, NULL,
     "accepted for llama.cpp's habits; -t counts"},
    {"-ub, --ubatch-size", "N", IWP_OPT_INT, AT(chunk), 1, 65536, NULL,
     "rows of a prefill chunk (default 512)"},
    {"-b, --batch-size", "N", IWP_OPT_INT, AT(batch), 1, 1 << 20, NULL,
     "accepted for llama.cpp's habits; -ub counts"},
    {"-fa, --flash-attn", "WHEN", IWP_OPT_CHOICE, AT(flash), 0, 0, "auto|on|off|ggml",
     "attention block by block (auto: unless the cache is f32); off: plain products; ggml: its "
     "flash attention, to compare"},
    {"-ctk, --cache-type-k", "TYPE", IWP_OPT_CHOICE, AT(type_k), 0, 0, "f16|f32|q8_0",
     "type of the cached keys"},
    {"-ctv, --cache-type-v", "TYPE", IWP_OPT_CHOICE, AT(type_v), 0, 0, "f16|f32|q8_0",
     "type of the cached values"},
    {"-ngl, --gpu-layers, --n-gpu-layers", "N", IWP_OPT_INT, AT(n_gpu), -1, 100000, NULL,
     "layers on GPU or RPC devices, from the end (default -1: all when there are any)"},
    {"--rpc", "HOST:PORT,...", IWP_OPT_TEXT, AT(rpc), 0, 0, NULL,
     "ggml RPC servers to spread the layers over (trusted networks only)"},
    {"--no-mmproj-offload", NULL, IWP_OPT_FLAG, AT(no_offload), 0, 0, NULL,
     "accepted: the vision tower runs on the CPU anyway"},
    {"--image-min-tokens", "N", IWP_OPT_INT, AT(min_tokens), 0, 1 << 24, NULL,
     "enlarge pictures to at least N visual tokens, where the model can"},
    {"--image-max-tokens", "N", IWP_OPT_INT, AT(max_tokens), 0, 1 << 24, NULL,
     "shrink pictures to at most N visual tokens, where the model can"},
    {"--image-tiles", "N", IWP_OPT_INT, AT(tiles), 0, 6, NULL,
     "CLIP towers: a single picture as thumbnail and N x N tiles (2: five times the tokens)"},
    {"--chat-template", "NAME", IWP_OPT_TEXT, AT(chat_template), 0, 0, NULL,
     "chat template (default: the file's own); none takes the prompt verbatim"},
    {"--jinja", NULL, IWP_OPT_FLAG, AT(jinja), 0, 0, NULL, "accepted for llama.cpp's habits"},
    {"--reselect", "WHEN", IWP_OPT_CHOICE, AT(reselect), 0, 0, "on|off",
     "chat: select again for every question (default on)"},
    IWP_OPT_END};
#undef AT

void iwp_model_args_free(struct iwp_model_args *a) {
    free(a->found_model);
    free(a->found_mmproj);
    a->found_model = a->found_mmproj = NULL;
}

bool iwp_model_args_raw(const struct iwp_model_args *a) {
    return a->chat_template && strcmp(a->chat_template, "none") == 0;
}

static char *cache_path(const char *name) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char path[4096];
    int n;
    if (cache && *cache)
        n = snprintf(path, sizeof path, "%s/iwp/models/%s", cache, name);
    else
        n = snprintf(path, sizeof path, "%s/.cache/iwp/models/%s", home ? home : "", name);
    if (n < 0 || (size_t)n >= sizeof path) return NULL;
    char *out = malloc((size_t)n + 1);
    if (out) memcpy(out, path, (size_t)n + 1);
    return out;
}

int iwp_model_args_engine(struct iwp_model_args *a, struct iwp_engine_params *p, iwp_err *err) {
    *p = iwp_engine_default_params();
    p->model = a->model;
    p->mmproj = a->mmproj;
    if (!p->model) {
        a->found_model = cache_path("iwp-photo.gguf");
        a->found_mmproj = cache_path("iwp-photo-mmproj.gguf");
        IWP_REQUIRE(a->found_model && a->found_mmproj, err, IWP_ENOMEM, "out of memory");
        IWP_REQUIRE(access(a->found_model, R_OK) == 0, err, IWP_EMISSING,
                    "no model given with -m and none at %.200s: `make model` (installed: "
                    "iwp-get-model) puts the shipped one there",
                    a->found_model);
        p->model = a->found_model;
        if (!p->mmproj && access(a->found_mmproj, R_OK) == 0) p->mmproj = a->found_mmproj;
    }
    p->chat_template = iwp_model_args_raw(a) ? NULL : a->chat_template;
    p->rpc = a->rpc;
    p->n_thread = a->threads;
    iwp_cli_warn_threads(a->threads);
    p->n_gpu = a->n_gpu;
    return 0;
}

struct iwp_session_params iwp_model_args_session(const struct iwp_model_args *a) {
    struct iwp_session_params s = iwp_session_default_params();
    s.n_ctx = a->ctx;
    s.n_chunk = a->chunk;
    s.type_k = (enum iwp_kv_type)a->type_k;
    s.type_v = (enum iwp_kv_type)a->type_v;
    s.flash = (enum iwp_flash)a->flash;
    s.no_reselect = a->reselect == 1;
    return s;
}

#define AT(field) offsetof(struct iwp_sampling_args, field)
const struct iwp_opt iwp_sampling_opts[] = {
    {"-n, --n-predict, --predict", "N", IWP_OPT_INT, AT(n_predict), -1, 1 << 28, NULL,
     "most tokens of an answer (default -1: until it ends)"},
    {"--temp", "T", IWP_OPT_REAL, AT(temp), 0, 100, NULL, "temperature (default 0: greedy)"},
    {"--top-k", "N", IWP_OPT_INT, AT(top_k), 0, 1 << 24, NULL, "of the N likeliest (default 40)"},
    {"--top-p", "P", IWP_OPT_REAL, AT(top_p), 0, 1, NULL,
     "of the likeliest share P (default 0.95)"},
    {"--min-p", "P", IWP_OPT_REAL, AT(min_p), 0, 1, NULL,
     "at least P times the likeliest (default 0.05)"},
    {"-s, --seed", "N", IWP_OPT_INT, AT(seed), -1, INT32_MAX, NULL,
     "of the draws (default -1: a new one each time)"},
    {"--ignore-eos", NULL, IWP_OPT_FLAG, AT(ignore_eos), 0, 0, NULL,
     "go on after the end-of-answer token"},
    IWP_OPT_END};
#undef AT

struct iwp_sampler_params iwp_sampling_args_params(const struct iwp_sampling_args *a) {
    struct iwp_sampler_params p = iwp_sampler_default_params();
    p.temp = a->temp;
    p.top_k = a->top_k;
    p.top_p = a->top_p;
    p.min_p = a->min_p;
    if (a->seed >= 0) p.seed = (uint32_t)a->seed;
    return p;
}

/* "positions=compact" out of "lambda=5,positions=compact"; the rest stays in `rest`. */
static int take_positions(const char *list, char *rest, size_t cap, enum iwp_positions *out,
                          iwp_err *err) {
    IWP_REQUIRE(strlen(list) < cap, err, IWP_EINVAL, "--prune-opt: too long");
    rest[0] = 0;
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        if (strncmp(p, "positions=", 10) == 0) {
            const char *v = p + 10;
            size_t m = n - 10;
            if (m == 8 && memcmp(v, "original", 8) == 0)
                *out = IWP_POSITIONS_ORIGINAL;
            else if (m == 7 && memcmp(v, "compact", 7) == 0)
                *out = IWP_POSITIONS_COMPACT;
            else
                return iwp_err_set(err, IWP_EINVAL,
                                   "--prune-opt: positions is original or compact, not '%.*s'",
                                   (int)(m < 40 ? m : 40), v);
        } else {
            if (rest[0]) strcat(rest, ",");
            strncat(rest, p, n);
        }
        p += n + (p[n] == ',');
    }
    return 0;
}

int iwp_engine_prune(const struct iwp_prune_args *a, struct iwp_params *p, bool *use,
                     enum iwp_positions *positions, iwp_err *err) {
    *use = false;
    *positions = IWP_POSITIONS_DEFAULT;
    if (!a->method || strcmp(a->method, "none") == 0) return 0;
    struct iwp_prune_args plain = *a;
    char rest[1024];
    memset(&plain.opt, 0, sizeof plain.opt);
    IWP_TRY(iwp_prune_args_params(&plain, NULL, p, err));
    for (int32_t i = 0; i < a->opt.n; i++) {
        IWP_TRY(take_positions(a->opt.at[i], rest, sizeof rest, positions, err));
        if (!rest[0]) continue;
        int rc = iwp_params_parse(p, rest, err);
        if (rc < 0) return iwp_err_prefix(err, rc, "--prune-opt");
    }
    IWP_REQUIRE(p->layer < 0 || iwp_params_cuts_decoder(p), err, IWP_EINVAL,
                "--prune-layer: method %s does not cut inside the decoder",
                iwp_method_info(p->method)->name);
    *use = true;
    return 0;
}

void iwp_engine_prune_note(const struct iwp_prune_args *a) {
    static const char *const flags[] = {
        "--keep-tokens", "--keep",        "--image-pruning-rate", "--prune-opt",
        "--prune-layer", "--budget-rule", "--budget-scope",       "--keep-separators"};
    const bool budget = a->keep > 0 || a->keep_tokens > 0;
    for (size_t i = 0; !a->method && i < sizeof flags / sizeof *flags; i++)
        if (iwp_opts_source(flags[i]) != IWP_OPT_UNSET) {
            iwp_log(IWP_LOG_INFO,
                    "%s has no effect without --prune METHOD (for example --prune iwp)", flags[i]);
            return;
        }
    if (!a->method || strcmp(a->method, "none") == 0 || budget) return;
    iwp_log(IWP_LOG_INFO, "--prune %s without --keep keeps all visual tokens; try --keep 22.2%%",
            a->method);
}

int iwp_engine_prefill(iwp_session *s, iwp_err *err) {
    struct iwp_progress meter;
    const struct iwp_session_stats st = iwp_session_stats(s);
    const int64_t all = st.row_layers_left;
    int rc;
    iwp_progress_start(&meter, "prefill", "rows", st.n_prompt);
    while ((rc = iwp_session_step(s, err)) > 0) { /* rows as if all layers had all of them */
        const double left = (double)iwp_session_stats(s).row_layers_left;
        iwp_progress_set(&meter, (int64_t)((1 - left / (double)all) * st.n_prompt));
    }
    iwp_progress_end(&meter);
    return rc;
}
