/* The program: `iwp COMMAND …`.  Owns dispatch, signals and the last look at stdout; every command
 * lives in cmd_<name>.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "cli/cmd.h"
#include "cli/version.h"
#include "kern/attn.h"
#include "kern/gemm.h"
#include "kern/kern.h"

static const struct entry {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
#ifdef IWP_HAVE_ENGINE
    {"run", "answer a question about images or a video; chat when no -p is given", iwp_cmd_run},
    {"serve", "the OpenAI API with a visual budget per request, and a page", iwp_cmd_serve},
    {"eval", "benchmark grid: tasks x methods x budgets, resumable, with a report", iwp_cmd_eval},
    {"analyse", "the paper's analyses on a loaded model, as JSON, pictures and text",
     iwp_cmd_analyse},
#endif
    {"report", "(re)build the report of result folders, merge shards, compare", iwp_cmd_report},
    {"select", "run a pruning method on tensors from a file, no model needed", iwp_cmd_select},
    {"inspect", "what is in a model file or folder, and does iwp run it", iwp_cmd_inspect},
    {"convert", "Hugging Face folder to GGUF; a GGUF to another type", iwp_cmd_convert},
    {"methods", "table of pruning methods: where they act, needs, options", iwp_cmd_methods},
    {"bench", "timings, in the manner of llama-bench", iwp_cmd_bench},
};
enum { N_COMMAND = sizeof commands / sizeof commands[0] };

static void help(FILE *f) {
    fputs("usage: iwp COMMAND [options]\n"
          "\n"
          "Drops visual tokens inside vision-language models so that they run faster.\n"
          "\n"
          "commands\n",
          f);
    for (int i = 0; i < N_COMMAND; i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n"
          "  iwp COMMAND --help   flags and examples of a command\n"
          "  iwp --version        version\n"
          "  iwp --cpu-info       instruction sets: what this CPU has, what is used\n",
          f);
}

static int cpu_info(void) {
    static const char *const path[] = {"c", "avx2", "avx512", "neon"};
    iwp_err err;
    if (iwp_cpu_check(&err) < 0) return iwp_cli_usage("--cpu-info", &err);
    printf("selection  %s (this CPU has", iwp_cpu_name());
    for (size_t i = 0; i < sizeof path / sizeof *path; i++)
        if (iwp_kern_path(path[i])) printf(" %s", path[i]);
    const struct iwp_gemm *g = iwp_gemm_get();
    printf("; IWP_CPU=NAME forces one)\ntowers     %s%s%s\n", g ? g->name : "ggml's",
           g ? ", packed " : "", g ? g->form : "");
    const struct iwp_attn_path *a = iwp_attn_get();
    printf("attention  %s\n", a ? a->name : "ggml's");
    printf("threads    %d\n", iwp_cpu_count());
    return 0;
}

/* Nothing half-written stays behind.  Commands that stop gently install their own handler. */
static void on_signal(int sig) {
    iwp_output_abort_all();
    _exit(sig == SIGPIPE ? IWP_CLI_FAILURE : IWP_CLI_INTERRUPTED);
}

/* A file opened later must not become the standard stream that the caller closed, or answers would land
 * in it.  The wrong direction keeps reads and writes failing. */
static void hold_closed_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        help(stderr);
        return IWP_CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) {
        printf("iwp %s\n", IWP_VERSION);
        return 0;
    }
    if (strcmp(name, "--cpu-info") == 0) return cpu_info();
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        if (argc == 2 || name[0] == '-') {
            help(stdout);
            return 0;
        }
        name = argv[2];
    }
    const char *names[N_COMMAND];
    for (int i = 0; i < N_COMMAND; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) != 0) continue;
        static char help_flag[] = "--help";
        char *help_argv[] = {argv[argc > 2 ? 2 : 1], help_flag, NULL};
        if (name != argv[1]) return commands[i].run(2, help_argv);
        iwp_err err; /* a typo must not measure or serve on another path */
        if (iwp_cpu_check(&err) < 0) return iwp_cli_usage(name, &err);
        return commands[i].run(argc - 1, argv + 1);
    }
    const char *near = iwp_nearest_name(name, names, N_COMMAND);
    if (near)
        iwp_log(IWP_LOG_ERROR, "iwp: unknown command '%.60s', did you mean %s?", name, near);
    else
        iwp_log(IWP_LOG_ERROR, "iwp: unknown command '%.60s', see iwp --help", name);
    return IWP_CLI_USAGE;
}

int main(int argc, char **argv) {
    hold_closed_streams();
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) iwp_on_signal(caught[i], on_signal);

    int rc = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && rc == 0) {
        iwp_log(IWP_LOG_ERROR, "iwp: cannot write the output: %s", strerror(errno));
        rc = IWP_CLI_FAILURE;
    }
    return rc;
}
