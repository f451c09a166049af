/* `iwp convert`: Hugging Face folders and GGUF files into GGUF files of a type. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/signals.h"
#include "cli/cmd.h"
#include "convert/convert.h"

struct args {
    const char *out, *mmproj, *type, *mmproj_type;
    int32_t n_thread;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt convert_opts[] = {
    {"-o, --output", "FILE", IWP_OPT_TEXT, AT(out), 0, 0, NULL, "the GGUF file to write"},
    {"-mm, --mmproj", "FILE", IWP_OPT_TEXT, AT(mmproj), 0, 0, NULL,
     "the vision part's GGUF file; needed for a Hugging Face folder"},
    {"--type", "TYPE", IWP_OPT_TEXT, AT(type), 0, 0, NULL,
     "f32, f16 (default), bf16, q8_0, q4_0 or q4_k"},
    {"--mmproj-type", "TYPE", IWP_OPT_TEXT, AT(mmproj_type), 0, 0, NULL,
     "type of the vision part (default: as --type, but q8_0 for the 4-bit types)"},
    {"-t, --threads", "N", IWP_OPT_INT, AT(n_thread), 0, 256, NULL, "threads (default: all CPUs)"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp convert Qwen2.5-VL-3B -o q.gguf --mmproj q-mm.gguf --type q4_0",
    "a Hugging Face folder with 4-bit weights", "iwp convert q.gguf -o q8.gguf --type q8_0",
    "another type of the same GGUF", NULL};

static const struct iwp_command command = {
    .name = "convert",
    .usage = "DIR|FILE.gguf -o FILE.gguf [--mmproj FILE.gguf] [options]",
    .about = "Converts a Hugging Face folder of LLaVA-OneVision or Qwen2.5-VL (config, tokenizer, "
             "safetensors in one or several files) into a model and a vision GGUF, or a GGUF into "
             "another type. Norms and biases stay f32. Rows a type cannot hold fall back: q4_k to "
             "q5_0, q6_K to q8_0, others to f16; `iwp inspect` lists them. Output appears only "
             "when complete.",
    .examples = examples,
    .min_args = 1,
    .max_args = 1,
    .args_name = "DIR|FILE.gguf",
};

static volatile sig_atomic_t stop;
static void on_interrupt(int sig) {
    (void)sig;
    stop = 1;
}
static bool cancelled(void *ctx) {
    (void)ctx;
    return stop != 0;
}

int iwp_cmd_convert(int argc, char **argv) {
    struct args a = {0};
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    const struct iwp_opt_group groups[] = {
        {"options", convert_opts, &a}, {"logging", iwp_log_opts, &log}, {NULL, NULL, NULL}};
    struct iwp_strings in = {0};
    iwp_err err = {0};
    int code = 0, rc = iwp_opts_parse(&command, groups, argc, argv, &in, &err);
    if (rc == 1) goto done;
    if (rc >= 0 && !a.out) rc = iwp_err_set(&err, IWP_EINVAL, "-o FILE is needed");
    if (rc >= 0 && a.type) rc = iwp_convert_type(a.type, &err);
    if (rc >= 0 && a.mmproj_type) rc = iwp_convert_type(a.mmproj_type, &err);
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc < 0) {
        code = iwp_cli_usage("convert", &err);
        goto done;
    }
    iwp_on_end(on_interrupt);
    struct iwp_convert_params p = {.in = in.at[0],
                                   .out = a.out,
                                   .mmproj = a.mmproj,
                                   .type = a.type,
                                   .mmproj_type = a.mmproj_type,
                                   .n_thread = a.n_thread,
                                   .cancelled = cancelled};
    struct iwp_convert_report r;
    rc = iwp_convert(&p, &r, &err);
    if (rc < 0) {
        code = rc == IWP_EINVAL ? iwp_cli_usage("convert", &err) : iwp_cli_fail("convert", &err);
        goto done;
    }
    iwp_log(IWP_LOG_INFO, "%d tensors, %" PRId64 " parameters, %.1f MB%s", r.n_tensor, r.n_param,
            (double)r.bytes / 1e6, r.n_fallback ? "" : ", no fallbacks");
    if (r.n_fallback)
        iwp_log(IWP_LOG_INFO, "%d tensors have rows this type cannot hold and took another",
                r.n_fallback);
done:
    iwp_strings_free(&in);
    return code;
}
