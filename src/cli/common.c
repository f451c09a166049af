/* Groups of flags that several commands take, and how they end: see cmd.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cpus.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/cmd.h"
#include "kern/cpu.h"

int iwp_cli_usage(const char *cmd, const iwp_err *err) {
    iwp_log(IWP_LOG_ERROR, "iwp %s: %s", cmd, err->msg);
    return IWP_CLI_USAGE;
}

int iwp_cli_fail(const char *cmd, const iwp_err *err) {
    if (err->code == IWP_ECANCELLED) return IWP_CLI_INTERRUPTED;
    if (err->code == IWP_EINVAL && strncmp(err->msg, "--", 2) == 0) return iwp_cli_usage(cmd, err);
    iwp_log(IWP_LOG_ERROR, "iwp %s: %s", cmd, err->msg);
    return IWP_CLI_FAILURE;
}

int iwp_cli_output(const char *format, bool *json, iwp_err *err) {
    if (!format) return 0;
    const bool text = strcmp(format, "text") == 0;
    IWP_REQUIRE(text || strcmp(format, "json") == 0, err, IWP_EINVAL,
                "-o: '%.30s' is not one of text|json", format);
    IWP_REQUIRE(!text || !*json, err, IWP_EINVAL, "--json and -o text exclude each other");
    *json = !text;
    return 0;
}

int iwp_cli_keep(const char *text, double *keep, iwp_err *err) {
    int rc = iwp_keep_parse(text, keep, err);
    return rc < 0 ? iwp_err_prefix(err, rc, "--keep") : 0;
}

int iwp_cli_overlay(const char *path, iwp_err *err) {
    const char *ending = path ? strrchr(path, '.') : NULL;
    IWP_REQUIRE(!path || (ending && strcasecmp(ending, ".png") == 0), err, IWP_EINVAL,
                "--overlay: '%.100s' does not end in .png, and PNG is what is drawn", path);
    return 0;
}

int iwp_cli_apart(const struct iwp_cli_file *out, int32_t n, const char *flag, const char *path,
                  iwp_err *err) {
    for (int32_t i = 0; path && i < n; i++)
        IWP_REQUIRE(!out[i].path || !iwp_file_same(out[i].path, path), err, IWP_EINVAL,
                    "%s and %s name the same file: %.200s", out[i].flag, flag, path);
    return 0;
}

int iwp_cli_outputs(const struct iwp_cli_file *out, int32_t n, iwp_err *err) {
    for (int32_t i = 1; i < n; i++) IWP_TRY(iwp_cli_apart(out, i, out[i].flag, out[i].path, err));
    return 0;
}

#define AT(field) offsetof(struct iwp_log_args, field)
const struct iwp_opt iwp_log_opts[] = {
    {"-v, --verbose", NULL, IWP_OPT_FLAG, AT(verbose), 0, 0, NULL, "say everything (= -lv 4)"},
    {"-lv, --log-verbosity", "N", IWP_OPT_INT, AT(verbosity), 0, 4, NULL,
     "1 errors, 2 warnings, 3 notes (default), 4 everything"},
    {"--log-file", "FILE", IWP_OPT_TEXT, AT(file), 0, 0, NULL, "append all messages to FILE"},
    {"--log-colors", "WHEN", IWP_OPT_CHOICE, AT(colors), 0, 0, "auto|on|off",
     "colours on a terminal"},
    {"--log-timestamps", NULL, IWP_OPT_FLAG, AT(timestamps), 0, 0, NULL, "seconds before messages"},
    IWP_OPT_END};
#undef AT

int iwp_log_args_apply(const struct iwp_log_args *a, iwp_err *err) {
    if (a->verbosity >= 0) iwp_log_set_level(a->verbosity);
    if (a->verbose) iwp_log_set_level(IWP_LOG_DEBUG);
    iwp_log_set_colors((enum iwp_log_colors)a->colors);
    iwp_log_set_timestamps(a->timestamps);
    return a->file ? iwp_log_open_file(a->file, err) : 0;
}

#define AT(field) offsetof(struct iwp_prune_args, field)
const struct iwp_opt iwp_prune_opts[] = {
    {"--prune, --method", "METHOD", IWP_OPT_TEXT, AT(method), 0, 0, NULL,
     "pruning method, see `iwp methods`"},
    {"--keep", "R", IWP_OPT_KEEP, AT(keep), 0, 0, NULL,
     "fraction of the visual tokens that is kept: 0.222 or 22.2%"},
    {"--keep-tokens", "N", IWP_OPT_INT, AT(keep_tokens), 1, 1 << 30, NULL,
     "number of visual tokens that is kept in all, instead of --keep"},
    {"--image-pruning-rate, --video-pruning-rate", "R", IWP_OPT_DROP, AT(keep), 0, 0, NULL,
     "fraction removed, = 1 - keep (vLLM's way to say it)"},
    {"--prune-layer", "L", IWP_OPT_INT, AT(layer), 0, 1000, NULL,
     "decoder layer whose input is cut (default: the method's)"},
    {"--prune-opt, --opt", "K=V,...", IWP_OPT_LIST, AT(opt), 0, 0, NULL,
     "options of the method; repeatable"},
    {"--budget-rule", "RULE", IWP_OPT_CHOICE, AT(rule), 0, 0,
     "default|cut|layer-average|matched|as-published",
     "what --keep R counts: cut (R of the N visual tokens stay after the last cut, rounded half to "
     "even, at least 1), layer-average (the mean over all layers of what they process), matched "
     "(that mean as one cut before layer 4 has it), as-published (the authors' rule) or default "
     "(cut; layer-average for methods that cut several times, unless --prune-layer is given)"},
    {"--budget-scope", "SCOPE", IWP_OPT_CHOICE, AT(scope), 0, 0, "global|image|tile|frame",
     "one budget for all, or --keep in each image, tile or frame; --keep-tokens is then shared out "
     "by their sizes, at least 1 each"},
    {"--keep-separators", "[=0|1]", IWP_OPT_TRI, AT(keep_separators), 0, 0, NULL,
     "row separators are kept on top of the budget (default: the method's)"},
    IWP_OPT_END};
#undef AT

void iwp_prune_args_free(struct iwp_prune_args *a) { iwp_strings_free(&a->opt); }

int iwp_cli_find_method(const char *name, const struct iwp_method **out, iwp_err *err) {
    *out = iwp_method_find(name);
    if (*out) return 0;
    enum { CAP = 128 };
    const char *names[CAP];
    int32_t n = 0;
    for (; n < iwp_method_count() && n < CAP; n++)
        names[n] = iwp_method_info(iwp_method_at(n))->name;
    const char *near = iwp_nearest_name(name, names, n);
    if (near)
        return iwp_err_set(err, IWP_EINVAL, "unknown method '%.60s', did you mean %s?", name, near);
    return iwp_err_set(err, IWP_EINVAL, "unknown method '%.60s', see `iwp methods`", name);
}

int iwp_prune_args_params(const struct iwp_prune_args *a, const char *method, struct iwp_params *p,
                          iwp_err *err) {
    const struct iwp_method *m = NULL;
    IWP_TRY(iwp_cli_find_method(a->method ? a->method : method, &m, err));
    iwp_params_default(p, m);
    const enum iwp_opt_source keep = iwp_opts_source("--keep"),
                              rate = iwp_opts_source("--image-pruning-rate"),
                              tokens = iwp_opts_source("--keep-tokens");
    IWP_REQUIRE(keep == IWP_OPT_UNSET || keep != rate, err, IWP_EINVAL,
                "--keep and --image-pruning-rate exclude each other");
    bool ratio = a->keep > 0, count = a->keep_tokens > 0;
    if (ratio && count) { /* the command line wins */
        const enum iwp_opt_source part = keep > rate ? keep : rate;
        IWP_REQUIRE(part != tokens, err, IWP_EINVAL, "--keep and --keep-tokens exclude each other");
        ratio = part > tokens;
        count = !ratio;
    }
    if (ratio) p->budget.keep = a->keep;
    if (count) p->budget.n_keep = a->keep_tokens;
    p->budget.rule = (enum iwp_budget_rule)a->rule;
    p->budget.scope = (enum iwp_budget_scope)a->scope;
    p->budget.keep_separators = a->keep_separators;
    p->layer = a->layer;
    for (int32_t i = 0; i < a->opt.n; i++) {
        int rc = iwp_params_parse(p, a->opt.at[i], err);
        if (rc < 0) return iwp_err_prefix(err, rc, "--opt");
    }
    return 0;
}

const char *iwp_cli_cpu(unsigned f) {
    return f & (IWP_CPU_AMX_INT8 | IWP_CPU_AMX_BF16) ? "amx"
           : f & IWP_CPU_AVX512                      ? "avx512"
           : f & IWP_CPU_AVX2                        ? "avx2"
                                                     : iwp_cpu_name();
}

void iwp_cli_warn_threads(int32_t n) {
    const int32_t cpus = iwp_cpu_count();
    if (n > cpus)
        iwp_log(IWP_LOG_WARN, "-t %d: %d CPU%s can be used, and more threads wait for each other",
                n, cpus, cpus == 1 ? "" : "s");
}

int iwp_cli_exec(iwp_pool **pool, int32_t n_thread, struct iwp_exec *exec, iwp_err *err) {
    IWP_TRY(iwp_pool_new(pool, n_thread, err));
    exec->run = iwp_pool_run;
    exec->ctx = *pool;
    exec->n_thread = iwp_pool_threads(*pool);
    return 0;
}
