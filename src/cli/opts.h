/* The option table: one array describes flags, environment names, checks and `--help`.
 *
 * Spelling is llama.cpp's: single-dash names of several letters (-ngl, -ctk), `--name value` and
 * `--name=value`.  Every option also reads IWP_ARG_<NAME> (a long name, upper case, - as _; the
 * first that is set counts); the command line wins.  A command binds several groups of options, each to a struct of its own, so
 * that groups (logging, pruning, sampling) are written once.
 *
 * Every mistake is one error line; unknown names suggest the nearest known one. */
#ifndef IWP_CLI_OPTS_H
#define IWP_CLI_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "iwp/error.h"

enum iwp_opt_kind {
    IWP_OPT_FLAG,   /* bool: true when given; `=0|1` also works, `no-` is not invented */
    IWP_OPT_TRI,    /* int32_t: 1 when given, `=0`, `=1`; -1 is the usual default */
    IWP_OPT_INT,    /* int32_t in [lo, hi] */
    IWP_OPT_REAL,   /* double in [lo, hi] */
    IWP_OPT_KEEP,   /* double: fraction kept, "0.222" or "22.2%", in (0, 1] */
    IWP_OPT_DROP,   /* double: fraction removed in [0, 1); stores 1 - value */
    IWP_OPT_TEXT,   /* const char * */
    IWP_OPT_LIST,   /* struct iwp_strings: repeatable */
    IWP_OPT_COMMAS, /* struct iwp_strings: repeatable, and split at commas */
    IWP_OPT_FILES,  /* the same, but a value that is the name of a file stays whole */
    IWP_OPT_CHOICE, /* int32_t: index into `choices` */
};

struct iwp_strings {
    const char **at; /* [n]; the texts live as long as the process */
    int32_t n;
};
void iwp_strings_free(struct iwp_strings *s);

struct iwp_opt {
    const char *names; /* "-t, --threads" */
    const char *arg;   /* what the help shows: "N"; NULL for flags */
    enum iwp_opt_kind kind;
    size_t offset;       /* of the value in the bound struct */
    double lo, hi;       /* INT, REAL */
    const char *choices; /* CHOICE: "cut|layer-average|…" */
    const char *help;
};
#define IWP_OPT_END {NULL, NULL, IWP_OPT_FLAG, 0, 0, 0, NULL, NULL}

struct iwp_opt_group {
    const char *title;
    const struct iwp_opt *opts; /* ends with names NULL */
    void *out;
};

struct iwp_command {
    const char *name;            /* "select" */
    const char *summary;         /* one line, for `iwp --help` */
    const char *usage;           /* after "iwp select ": "FILE.safetensors [options]" */
    const char *about;           /* a paragraph, wrapped for the help */
    const char *const *examples; /* NULL-terminated pairs: command, what it does */
    int32_t min_args, max_args;  /* positional */
    const char *args_name;       /* what a missing one is called: "FILE.safetensors" */
};

enum { IWP_CLI_OK = 0, IWP_CLI_FAILURE = 1, IWP_CLI_USAGE = 2, IWP_CLI_INTERRUPTED = 130 };

/* Reads environment and arguments (argv[0] is the command's name).  Positional ones are gathered in
 * `args`.  Returns 0, 1 when `--help` was printed (exit 0), or a negative status with err filled. */
int iwp_opts_parse(const struct iwp_command *cmd, const struct iwp_opt_group *groups, int argc,
                   char **argv, struct iwp_strings *args, iwp_err *err);
/* Where the value of this option (any of its names) comes from; larger ones win. */
enum iwp_opt_source { IWP_OPT_UNSET, IWP_OPT_FROM_ENV, IWP_OPT_FROM_ARGS };
enum iwp_opt_source iwp_opts_source(const char *name);

void iwp_opts_help(const struct iwp_command *cmd, const struct iwp_opt_group *groups, FILE *f);

/* Prints text in lines of at most 80 columns, indented by `indent`; `at` is the current column. */
void iwp_print_wrapped(FILE *f, const char *text, int indent, int at);

/* The nearest of n names, or NULL when none is near. */
const char *iwp_nearest_name(const char *name, const char *const *names, int32_t n);

/* "0.5", "1e3"; the whole text must be a finite number. */
bool iwp_parse_real(const char *text, double *out);
bool iwp_parse_int(const char *text, int64_t lo, int64_t hi, int64_t *out);

#endif
