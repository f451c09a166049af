/* `iwp report`: rebuilds reports from result folders, merges shards, lists flipped answers. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "cli/cmd.h"
#include "eval/results.h"

struct args {
    const char *out;
    struct iwp_strings diff;
    bool paper;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt report_opts[] = {
    {"--out", "DIR", IWP_OPT_TEXT, AT(out), 0, 0, NULL,
     "where the files go (default: the first folder; needed to merge several)"},
    {"--diff", "A B", IWP_OPT_COMMAS, AT(diff), 0, 0, NULL,
     "list the answers that differ: two configurations (names of their folders), or two folders"},
    {"--paper", NULL, IWP_OPT_FLAG, AT(paper), 0, 0, NULL,
     "show the paper's figures beside ours where model and task match"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp report results",
    "rebuild results.json and report.html; the table goes to stdout",
    "iwp report shard0 shard1 --out all",
    "merge the shards of one run",
    "iwp report results --diff none iwp-0.222",
    "which answers changed",
    NULL};

static const struct iwp_command command = {
    .name = "report",
    .summary = "(re)build the report of result folders, merge shards, compare",
    .usage = "DIR... [--out DIR] [--diff A B]",
    .about = "Builds results.json, timings.json, report.html, report.md and report.csv from the "
             "samples in one or more results folders of `iwp eval`; no model is needed.",
    .examples = examples,
    .min_args = 0,
    .max_args = 1024,
    .args_name = "DIR",
};

static bool is_folder(const char *path) {
    char file[4096];
    int n = snprintf(file, sizeof file, "%s/run.json", path);
    return n > 0 && (size_t)n < sizeof file && access(file, F_OK) == 0;
}

/* Two configurations of the folders. */
static int diff_configs(const struct iwp_strings *dirs, const char *one, const char *other,
                        iwp_err *err) {
    struct iwp_eval_book b;
    IWP_TRY(iwp_eval_book_read(&b, dirs->at, dirs->n, err));
    const int32_t x = iwp_eval_book_config(&b, one), y = iwp_eval_book_config(&b, other);
    int rc = 0;
    if (x >= 0 && y >= 0)
        iwp_eval_report_diff(&b, x, &b, y, stdout);
    else
        rc = iwp_err_set(err, IWP_EINVAL,
                         "--diff: no configuration '%.100s'; they are called like the folders in "
                         "the results folder",
                         x < 0 ? one : other);
    iwp_eval_book_free(&b);
    return rc;
}

/* The configurations that two folders share. */
static int diff_folders(const char *one, const char *other, iwp_err *err) {
    struct iwp_eval_book a, b;
    IWP_TRY(iwp_eval_book_read(&a, &one, 1, err));
    int rc = iwp_eval_book_read(&b, &other, 1, err);
    if (rc >= 0) {
        int32_t shared = 0;
        for (int32_t k = 0; k < a.run.n_config; k++) {
            const int32_t y = iwp_eval_book_config(&b, a.run.config[k].dir);
            if (y < 0) continue;
            shared++;
            iwp_eval_report_diff(&a, k, &b, y, stdout);
        }
        if (!shared)
            rc = iwp_err_set(err, IWP_EINVAL, "--diff: the folders share no configuration");
        iwp_eval_book_free(&b);
    }
    iwp_eval_book_free(&a);
    return rc;
}

/* `--diff A,B DIR...`, `--diff A B` with B among the positional arguments, or two folders. */
static int diff(const struct args *a, const struct iwp_strings *dirs, iwp_err *err) {
    IWP_REQUIRE(a->diff.n <= 2, err, IWP_EINVAL, "--diff takes two configurations or two folders");
    if (a->diff.n == 2) {
        if (dirs->n) return diff_configs(dirs, a->diff.at[0], a->diff.at[1], err);
        return diff_folders(a->diff.at[0], a->diff.at[1], err);
    }
    IWP_REQUIRE(dirs->n > 0, err, IWP_EINVAL, "--diff takes two configurations or two folders");
    int32_t k = 0;
    while (k < dirs->n && is_folder(dirs->at[k])) k++;
    if (k == dirs->n) {
        IWP_REQUIRE(dirs->n == 1, err, IWP_EINVAL, "--diff: the second configuration is missing");
        return diff_folders(a->diff.at[0], dirs->at[0], err);
    }
    const char *other = dirs->at[k];
    IWP_REQUIRE(dirs->n > 1, err, IWP_EINVAL, "--diff: a results folder is missing");
    struct iwp_strings rest = *dirs;
    for (int32_t i = k; i + 1 < rest.n; i++) rest.at[i] = rest.at[i + 1];
    rest.n--;
    return diff_configs(&rest, a->diff.at[0], other, err);
}

static int work(const struct args *a, const struct iwp_strings *dirs, iwp_err *err) {
    struct iwp_eval_book b;
    if (a->diff.n) return diff(a, dirs, err);
    IWP_REQUIRE(dirs->n > 0, err, IWP_EINVAL, "--out: no results folder was given");
    IWP_REQUIRE(dirs->n == 1 || a->out, err, IWP_EINVAL,
                "--out DIR is needed to merge several folders");
    const char *out = a->out ? a->out : dirs->at[0];
    IWP_TRY(iwp_eval_book_read(&b, dirs->at, dirs->n, err));
    mkdir(out, 0777); /* what is wrong with it shows when a file is opened */
    int rc = iwp_eval_book_write(&b, out, a->paper, err);
    if (rc >= 0) iwp_eval_report_md(&b, stdout);
    if (b.missing) iwp_log(IWP_LOG_WARN, "report: %d answers are missing", b.missing);
    iwp_eval_book_free(&b);
    return rc;
}

int iwp_cmd_report(int argc, char **argv) {
    static struct args a; /* texts cut out of comma lists live as long as the process */
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings dirs = {0};
    const struct iwp_opt_group groups[] = {
        {"report", report_opts, &a}, {"logging", iwp_log_opts, &log}, {NULL, NULL, NULL}};
    iwp_err err = {0};
    int code = 0;
    int rc = iwp_opts_parse(&command, groups, argc, argv, &dirs, &err);
    if (rc == 1) goto done;
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc < 0) {
        code = iwp_cli_usage("report", &err);
        goto done;
    }
    rc = work(&a, &dirs, &err);
    if (rc < 0) code = iwp_cli_fail("report", &err);
done:
    iwp_strings_free(&dirs);
    return code;
}
