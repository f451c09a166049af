/* Option table: see opts.h. */
#include "cli/opts.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "iwp/prune.h"

enum { MAX_OPTS = 256, WIDTH = 80, HELP_COLUMN = 28 };

struct slot {
    const struct iwp_opt *opt;
    void *out;
    bool from_env, from_args;
};

/* One command is parsed per process; the table stays for iwp_opts_source(). */
static struct slot slots[MAX_OPTS];
static int n_slot;

void iwp_strings_free(struct iwp_strings *s) {
    free(s->at);
    s->at = NULL;
    s->n = 0;
}

static int strings_add(struct iwp_strings *s, const char *text, iwp_err *err) {
    const char **p = realloc(s->at, ((size_t)s->n + 1) * sizeof *p);
    IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
    s->at = p;
    s->at[s->n++] = text;
    return 0;
}

bool iwp_parse_real(const char *text, double *out) {
    if (!*text || isspace((unsigned char)*text)) return false;
    char *end;
    double v = strtod(text, &end);
    if (*end || !isfinite(v)) return false;
    *out = v;
    return true;
}

bool iwp_parse_int(const char *text, int64_t lo, int64_t hi, int64_t *out) {
    if (!*text || isspace((unsigned char)*text)) return false;
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (*end || errno || v < lo || v > hi) return false;
    *out = v;
    return true;
}

/* Walks "-t, --threads": copies the next name into buf, returns the rest or NULL at the end. */
static const char *next_name(const char *p, char *buf, size_t cap) {
    while (*p == ',' || *p == ' ') p++;
    if (!*p) return NULL;
    size_t n = 0;
    while (*p && *p != ',' && *p != ' ') {
        if (n + 1 < cap) buf[n++] = *p;
        p++;
    }
    buf[n] = 0;
    return p;
}

static bool has_name(const struct iwp_opt *o, const char *name, size_t len) {
    char buf[64];
    const char *p = o->names;
    while ((p = next_name(p, buf, sizeof buf)))
        if (strlen(buf) == len && memcmp(buf, name, len) == 0) return true;
    return false;
}

/* The first long name, or the first name. */
static void main_name(const struct iwp_opt *o, char *out, size_t cap) {
    char buf[64];
    const char *p = o->names;
    out[0] = 0;
    while ((p = next_name(p, buf, sizeof buf))) {
        bool is_long = buf[0] == '-' && buf[1] == '-';
        if (!out[0] || is_long) snprintf(out, cap, "%s", buf);
        if (is_long) return;
    }
}

static void env_name(const char *flag, char *out, size_t cap) {
    const char *p = flag;
    while (*p == '-') p++;
    size_t n = (size_t)snprintf(out, cap, "IWP_ARG_");
    for (; *p && n + 1 < cap; p++) out[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    out[n] = 0;
}

static bool takes_value(const struct iwp_opt *o) {
    return o->kind != IWP_OPT_FLAG && o->kind != IWP_OPT_TRI;
}

static int set_choice(const struct iwp_opt *o, const char *where, const char *value, int32_t *out,
                      iwp_err *err) {
    const char *p = o->choices;
    for (int32_t i = 0;; i++) {
        size_t n = strcspn(p, "|");
        if (strlen(value) == n && memcmp(p, value, n) == 0) {
            *out = i;
            return 0;
        }
        if (!p[n]) break;
        p += n + 1;
    }
    return iwp_err_set(err, IWP_EINVAL, "%s: '%.40s' is not one of %s", where, value, o->choices);
}

/* Values cut at their commas.  They live as long as the process, like argv. */
struct cut_value {
    struct cut_value *next;
    char text[];
};
static struct cut_value *cut_values;

static bool is_list(const struct iwp_opt *o) {
    return o->kind == IWP_OPT_LIST || o->kind == IWP_OPT_COMMAS || o->kind == IWP_OPT_FILES;
}

static int set_commas(struct iwp_strings *s, const char *where, const char *value, iwp_err *err) {
    const size_t size = strlen(value) + 1;
    struct cut_value *copy = malloc(sizeof *copy + size);
    IWP_REQUIRE(copy, err, IWP_ENOMEM, "out of memory");
    memcpy(copy->text, value, size);
    copy->next = cut_values;
    cut_values = copy;
    int rc = 0;
    for (char *p = copy->text; rc == 0;) {
        char *comma = strchr(p, ',');
        if (comma) *comma = 0;
        if (!*p) {
            rc = iwp_err_set(err, IWP_EINVAL, "%s: empty item in '%.60s'", where, value);
            break;
        }
        rc = strings_add(s, p, err);
        if (!comma) break;
        p = comma + 1;
    }
    return rc;
}

/* `where` is what errors name: the flag as written, or the environment variable. */
static int set_value(struct slot *s, const char *where, const char *value, bool env, iwp_err *err) {
    const struct iwp_opt *o = s->opt;
    char *at = (char *)s->out + o->offset;
    double real = 0;
    int64_t whole = 0;
    if (is_list(o) && !env && s->from_env) { /* the command line replaces the environment's list */
        iwp_strings_free((struct iwp_strings *)(void *)at);
        s->from_env = false;
    }
    switch (o->kind) {
    case IWP_OPT_FLAG:
    case IWP_OPT_TRI:
        if (!value || strcmp(value, "1") == 0 || strcmp(value, "on") == 0 ||
            strcmp(value, "true") == 0)
            whole = 1;
        else
            IWP_REQUIRE(strcmp(value, "0") == 0 || strcmp(value, "off") == 0 ||
                            strcmp(value, "false") == 0,
                        err, IWP_EINVAL, "%s: '%.40s' is neither 0 nor 1", where, value);
        if (o->kind == IWP_OPT_FLAG)
            *(bool *)(void *)at = whole != 0;
        else
            *(int32_t *)(void *)at = (int32_t)whole;
        break;
    case IWP_OPT_INT:
        IWP_REQUIRE(iwp_parse_int(value, (int64_t)o->lo, (int64_t)o->hi, &whole), err, IWP_EINVAL,
                    "%s: '%.40s' is not a whole number from %.0f to %.0f", where, value, o->lo,
                    o->hi);
        *(int32_t *)(void *)at = (int32_t)whole;
        break;
    case IWP_OPT_REAL:
        IWP_REQUIRE(iwp_parse_real(value, &real) && real >= o->lo && real <= o->hi, err, IWP_EINVAL,
                    "%s: '%.40s' is not a number from %g to %g", where, value, o->lo, o->hi);
        *(double *)(void *)at = real;
        break;
    case IWP_OPT_KEEP:
        if (iwp_keep_parse(value, &real, err) < 0)
            return iwp_err_prefix(err, IWP_EINVAL, "%s", where);
        *(double *)(void *)at = real;
        break;
    case IWP_OPT_DROP:
        IWP_REQUIRE(iwp_parse_real(value, &real) && real >= 0 && real < 1, err, IWP_EINVAL,
                    "%s: '%.40s' is not a fraction removed from 0 to below 1", where, value);
        *(double *)(void *)at = 1 - real;
        break;
    case IWP_OPT_TEXT: *(const char **)(void *)at = value; break;
    case IWP_OPT_LIST:
    case IWP_OPT_COMMAS:
    case IWP_OPT_FILES:
        if (o->kind == IWP_OPT_LIST || (o->kind == IWP_OPT_FILES && access(value, F_OK) == 0))
            IWP_TRY(strings_add((struct iwp_strings *)(void *)at, value, err));
        else
            IWP_TRY(set_commas((struct iwp_strings *)(void *)at, where, value, err));
        break;
    case IWP_OPT_CHOICE: IWP_TRY(set_choice(o, where, value, (int32_t *)(void *)at, err)); break;
    }
    if (env)
        s->from_env = true;
    else
        s->from_args = true;
    return 0;
}

/* Edit distance, small strings, swaps of neighbours count one. */
static int distance(const char *a, const char *b) {
    enum { MAX = 48 };
    size_t n = strlen(a), m = strlen(b);
    if (n >= MAX || m >= MAX) return MAX;
    int row[3][MAX + 1];
    for (size_t j = 0; j <= m; j++) row[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int d = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < d) d = up[j] + 1;
            if (now[j - 1] + 1 < d) d = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                up2[j - 2] + 1 < d)
                d = up2[j - 2] + 1;
            now[j] = d;
        }
    }
    return row[n % 3][m];
}

const char *iwp_nearest_name(const char *name, const char *const *names, int32_t n) {
    const char *best = NULL;
    int best_d = 0;
    for (int32_t i = 0; i < n; i++) {
        int d = distance(name, names[i]);
        if (!best || d < best_d) {
            best = names[i];
            best_d = d;
        }
    }
    size_t len = strlen(name);
    int limit = len <= 4 ? 1 : len <= 7 ? 2 : 3;
    return best && best_d <= limit ? best : NULL;
}

static int unknown_flag(const char *arg, size_t len, iwp_err *err) {
    static char names[4 * MAX_OPTS][64];
    static const char *list[4 * MAX_OPTS];
    int32_t n = 0;
    for (int i = 0; i < n_slot; i++) {
        const char *p = slots[i].opt->names;
        while (n < 4 * MAX_OPTS && (p = next_name(p, names[n], sizeof names[n]))) {
            list[n] = names[n];
            n++;
        }
    }
    char given[64];
    snprintf(given, sizeof given, "%.*s", (int)(len < 60 ? len : 60), arg);
    const char *near = iwp_nearest_name(given, list, n);
    return iwp_err_set(err, IWP_EINVAL,
                       near ? "unknown flag '%s', did you mean %s?"
                            : "unknown flag '%s', see --help",
                       given, near);
}

static struct slot *find(const char *name, size_t len) {
    for (int i = 0; i < n_slot; i++)
        if (has_name(slots[i].opt, name, len)) return &slots[i];
    return NULL;
}

enum iwp_opt_source iwp_opts_source(const char *name) {
    const struct slot *s = find(name, strlen(name));
    if (!s) return IWP_OPT_UNSET;
    return s->from_args ? IWP_OPT_FROM_ARGS : s->from_env ? IWP_OPT_FROM_ENV : IWP_OPT_UNSET;
}

/* The variable of this flag, when it is set: its name in `name`. */
static const char *env_value(const char *flag, char *name, size_t cap) {
    env_name(flag, name, cap);
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* The main name's variable wins over those of the other long names. */
static int read_env(iwp_err *err) {
    for (int i = 0; i < n_slot; i++) {
        char flag[64], name[80];
        main_name(slots[i].opt, flag, sizeof flag);
        const char *v = env_value(flag, name, sizeof name), *p = slots[i].opt->names;
        while (!v && (p = next_name(p, flag, sizeof flag)))
            if (flag[1] == '-') v = env_value(flag, name, sizeof name);
        if (v) IWP_TRY(set_value(&slots[i], name, v, true, err));
    }
    return 0;
}

static bool looks_like_flag(const char *a) { return a[0] == '-' && a[1] != 0; }

int iwp_opts_parse(const struct iwp_command *cmd, const struct iwp_opt_group *groups, int argc,
                   char **argv, struct iwp_strings *args, iwp_err *err) {
    n_slot = 0;
    for (const struct iwp_opt_group *g = groups; g && g->opts; g++)
        for (const struct iwp_opt *o = g->opts; o->names && n_slot < MAX_OPTS; o++)
            slots[n_slot++] = (struct slot){.opt = o, .out = g->out};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            iwp_opts_help(cmd, groups, stdout);
            return 1;
        }
    IWP_TRY(read_env(err));
    bool flags = true;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (flags && strcmp(a, "--") == 0) {
            flags = false;
            continue;
        }
        if (!flags || !looks_like_flag(a)) {
            IWP_REQUIRE(args->n < cmd->max_args, err, IWP_EINVAL, "unexpected argument '%.80s'", a);
            IWP_TRY(strings_add(args, a, err));
            continue;
        }
        const char *eq = strchr(a, '=');
        size_t len = eq ? (size_t)(eq - a) : strlen(a);
        struct slot *s = find(a, len);
        if (!s) return unknown_flag(a, len, err);
        char where[64];
        snprintf(where, sizeof where, "%.*s", (int)len, a);
        const char *value = eq ? eq + 1 : NULL;
        if (!value && takes_value(s->opt)) {
            IWP_REQUIRE(i + 1 < argc, err, IWP_EINVAL, "%s needs a value (%s)", where, s->opt->arg);
            value = argv[++i];
        }
        IWP_TRY(set_value(s, where, value, false, err));
    }
    IWP_REQUIRE(args->n >= cmd->min_args, err, IWP_EINVAL, "%s is missing; usage: iwp %s %s",
                cmd->args_name, cmd->name, cmd->usage);
    return 0;
}

/* ---- help ---- */

/* Columns a text takes: continuation bytes of UTF-8 take none. */
static int columns(const char *s, size_t n) {
    int c = 0;
    for (size_t i = 0; i < n; i++) c += ((unsigned char)s[i] & 0xc0) != 0x80;
    return c;
}

void iwp_print_wrapped(FILE *f, const char *text, int indent, int at) {
    bool fresh = true;
    if (at < indent) {
        fprintf(f, "%*s", indent - at, "");
        at = indent;
    }
    while (*text) {
        size_t n = strcspn(text, " \n");
        int w = columns(text, n);
        if (!fresh && at + 1 + w > WIDTH) {
            fprintf(f, "\n%*s", indent, "");
            at = indent;
            fresh = true;
        }
        if (!fresh) at += fprintf(f, " ");
        fwrite(text, 1, n, f);
        at += w;
        fresh = false;
        text += n;
        if (*text == '\n') {
            fprintf(f, "\n%*s", text[1] ? indent : 0, "");
            at = indent;
            fresh = true;
            text++;
        }
        while (*text == ' ') text++;
    }
    fputc('\n', f);
}

static void help_option(const struct iwp_opt *o, FILE *f) {
    char left[160], text[600];
    snprintf(left, sizeof left, "  %s%s%s", o->names, o->arg && takes_value(o) ? " " : "",
             o->arg ? o->arg : "");
    if (o->choices && !strstr(o->help, "|"))
        snprintf(text, sizeof text, "%s: %s", o->help, o->choices);
    else
        snprintf(text, sizeof text, "%s", o->help);
    int at = columns(left, strlen(left));
    fputs(left, f);
    if (at > HELP_COLUMN - 2) {
        fputc('\n', f);
        at = 0;
    }
    iwp_print_wrapped(f, text, HELP_COLUMN, at);
}

void iwp_opts_help(const struct iwp_command *cmd, const struct iwp_opt_group *groups, FILE *f) {
    fprintf(f, "usage: iwp %s%s", cmd->name, *cmd->usage ? " " : "");
    iwp_print_wrapped(f, cmd->usage, 11, 12 + (int)strlen(cmd->name));
    fputc('\n', f);
    iwp_print_wrapped(f, cmd->about, 0, 0);
    for (const struct iwp_opt_group *g = groups; g && g->opts; g++) {
        fprintf(f, "\n%s\n", g->title);
        for (const struct iwp_opt *o = g->opts; o->names; o++) help_option(o, f);
    }
    fputs("\nEvery flag also reads IWP_ARG_<NAME>, for example IWP_ARG_THREADS=2.\n", f);
    if (cmd->examples && cmd->examples[0]) {
        fputs("\nexamples\n", f);
        for (const char *const *e = cmd->examples; e[0]; e += 2) {
            fprintf(f, "  # ");
            iwp_print_wrapped(f, e[1], 4, 4);
            fprintf(f, "  %s\n", e[0]);
        }
    }
}
