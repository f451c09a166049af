/* What commands share: the dispatch entries, the groups of flags that several take, exit codes. */
#ifndef IWP_CLI_CMD_H
#define IWP_CLI_CMD_H

#include "base/pool.h"
#include "cli/opts.h"
#include "iwp/prune.h"

/* Each returns an exit code; argv[0] is the command's name. */
int iwp_cmd_select(int argc, char **argv);
int iwp_cmd_run(int argc, char **argv);     /* builds with the engine */
int iwp_cmd_serve(int argc, char **argv);   /* the same */
int iwp_cmd_eval(int argc, char **argv);    /* the same */
int iwp_cmd_analyse(int argc, char **argv); /* the same */
int iwp_cmd_report(int argc, char **argv);
int iwp_cmd_methods(int argc, char **argv);
int iwp_cmd_inspect(int argc, char **argv);
int iwp_cmd_convert(int argc, char **argv);
int iwp_cmd_bench(int argc, char **argv);
int iwp_bench_machine(int argc, char **argv);
int iwp_bench_select(int argc, char **argv);
int iwp_bench_film(int argc, char **argv);
/* The rest builds with the engine. */
int iwp_bench_attention(int argc, char **argv);
int iwp_bench_products(int argc, char **argv);
int iwp_bench_encode(int argc, char **argv);
int iwp_bench_prefill(int argc, char **argv);
int iwp_bench_e2e(int argc, char **argv);
int iwp_bench_eval(int argc, char **argv);

/* Print `iwp CMD: message` and return the exit code.  A flag whose value only the model or a file can
 * judge is still a usage error: _fail knows it by the message, which begins with the flag. */
int iwp_cli_fail(const char *cmd, const iwp_err *err);
int iwp_cli_usage(const char *cmd, const iwp_err *err);

/* What -o FORMAT (NULL: not given) says, beside --json: text or json. */
int iwp_cli_output(const char *format, bool *json, iwp_err *err);

/* One item of a list of budgets, --keep R,... */
int iwp_cli_keep(const char *text, double *keep, iwp_err *err);

/* --overlay FILE.png (NULL: not given): PNG is what is drawn. */
int iwp_cli_overlay(const char *path, iwp_err *err);

/* A file and the flag (or argument) that names it; path NULL: not given. */
struct iwp_cli_file {
    const char *flag, *path;
};
/* None of the n outputs is this other file of the command. */
int iwp_cli_apart(const struct iwp_cli_file *out, int32_t n, const char *flag, const char *path,
                  iwp_err *err);
/* The outputs are n different files. */
int iwp_cli_outputs(const struct iwp_cli_file *out, int32_t n, iwp_err *err);

/* Logging flags. */
struct iwp_log_args {
    bool verbose, timestamps;
    int32_t verbosity, colors;
    const char *file;
};
extern const struct iwp_opt iwp_log_opts[];
#define IWP_LOG_ARGS_DEFAULT {.verbosity = -1}
int iwp_log_args_apply(const struct iwp_log_args *a, iwp_err *err);

/* Pruning flags (CONTRACT section 2). */
struct iwp_prune_args {
    const char *method; /* NULL: the command's default */
    double keep;        /* 0: not given */
    int32_t keep_tokens, layer, rule, scope, keep_separators;
    struct iwp_strings opt;
};
extern const struct iwp_opt iwp_prune_opts[];
#define IWP_PRUNE_ARGS_DEFAULT {.layer = -1, .keep_separators = -1}
/* The method of a name; the error suggests the nearest. */
int iwp_cli_find_method(const char *name, const struct iwp_method **out, iwp_err *err);
/* Method, budget and options in one struct.  `method` is used when the flags name none. */
int iwp_prune_args_params(const struct iwp_prune_args *a, const char *method, struct iwp_params *p,
                          iwp_err *err);
void iwp_prune_args_free(struct iwp_prune_args *a);

/* The largest instruction set among these features (enum iwp_cpu_feature): amx, avx512, ... */
const char *iwp_cli_cpu(unsigned features);

/* A pool of n threads (0 = all CPUs) as the library wants it. */
int iwp_cli_exec(iwp_pool **pool, int32_t n_thread, struct iwp_exec *exec, iwp_err *err);

/* Says so when there are more threads than CPUs. */
void iwp_cli_warn_threads(int32_t n);

#endif
