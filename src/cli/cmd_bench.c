/* `iwp bench KIND`: one file per kind; this one only tells them apart. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "cli/cmd.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} kinds[] = {
    {"machine", "the CPU's limits: multiply-adds and memory", iwp_bench_machine},
#ifdef IWP_HAVE_BENCH_SELECT
    {"select", "the selection alone, beside sgemm of the same size; no model", iwp_bench_select},
#endif
    {"film", "frames out of films; no model", iwp_bench_film},
#ifdef IWP_HAVE_ENGINE
    {"attention", "attention alone, beside ggml's and the CPU's limits; no model",
     iwp_bench_attention},
    {"products", "products with a decoder's weights alone, beside ggml's; no model",
     iwp_bench_products},
    {"encode", "pictures through the vision tower, by size", iwp_bench_encode},
    {"prefill", "prompt processing with and without pruning", iwp_bench_prefill},
    {"e2e", "from a picture's file to the first token", iwp_bench_e2e},
    {"eval", "a grid of iwp eval beside its unavoidable work", iwp_bench_eval},
#endif
    {NULL, NULL, NULL},
};

static void help(FILE *f) {
    fputs("usage: iwp bench KIND [options]\n\nkinds\n", f);
    for (int i = 0; kinds[i].name; i++) fprintf(f, "  %-10s %s\n", kinds[i].name, kinds[i].summary);
    fputs("\n  iwp bench KIND --help   flags and examples\n", f);
}

int iwp_cmd_bench(int argc, char **argv) {
    iwp_err err;
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        help(stdout);
        return 0;
    }
    if (argc < 2) {
        iwp_err_set(&err, IWP_EINVAL, "what to measure is missing, see iwp bench --help");
        return iwp_cli_usage("bench", &err);
    }
    for (int i = 0; kinds[i].name; i++)
        if (strcmp(argv[1], kinds[i].name) == 0) return kinds[i].run(argc - 1, argv + 1);
    iwp_err_set(&err, IWP_EINVAL, "nothing called '%.60s' to measure, see iwp bench --help",
                argv[1]);
    return iwp_cli_usage("bench", &err);
}
