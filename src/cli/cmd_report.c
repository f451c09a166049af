/* `iwp report`: rebuilds reports from result folders, merges shards, lists flipped answers. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/cmd.h"
#include "eval/results.h"

struct args {
    const char *out, *paper;
    struct iwp_strings diff;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt report_opts[] = {
    {"--out", "DIR", IWP_OPT_TEXT, AT(out), 0, 0, NULL,
     "where the files go (default: the first folder; needed to merge several)"},
    {"--diff", "A,B", IWP_OPT_COMMAS, AT(diff), 0, 0, NULL,
     "list the answers that differ between two configurations (names of their folders)"},
    {"--paper", "FILE.json", IWP_OPT_TEXT, AT(paper), 0, 0, NULL,
     "the paper's tables, shown beside ours"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp report results",
    "rebuild results.json and report.html; the table goes to stdout",
    "iwp report shard0 shard1 --out all",
    "merge the shards of one run",
    "iwp report results --diff none,iwp-0.222",
    "which answers changed",
    NULL};

static const struct iwp_command command = {
    .name = "report",
    .summary = "(re)build the report of result folders, merge shards, compare",
    .usage = "DIR... [--out DIR] [--diff A,B]",
    .about = "Builds results.json, timings.json, report.html, report.md and report.csv from the "
             "samples in one or more results folders of `iwp eval`; no model is needed.",
    .examples = examples,
    .min_args = 1,
    .max_args = 1024,
    .args_name = "DIR",
};

static int work(const struct args *a, const struct iwp_strings *dirs, iwp_err *err) {
    struct iwp_eval_book b;
    uint8_t *paper = NULL;
    size_t n;
    IWP_REQUIRE(dirs->n == 1 || a->out || a->diff.n, err, IWP_EINVAL,
                "--out DIR is needed to merge several folders");
    IWP_REQUIRE(a->diff.n == 0 || a->diff.n == 2, err, IWP_EINVAL,
                "--diff takes two configurations: A,B");
    if (a->paper) IWP_TRY(iwp_file_read(a->paper, 16 << 20, &paper, &n, err));
    int rc = iwp_eval_book_read(&b, dirs->at, dirs->n, err);
    if (rc < 0) {
        free(paper);
        return rc;
    }
    const char *out = a->out ? a->out : dirs->at[0];
    if (a->diff.n) {
        rc = iwp_eval_report_diff(&b, a->diff.at[0], a->diff.at[1], stdout, err);
    } else {
        mkdir(out, 0777); /* what is wrong with it shows when a file is opened */
        rc = iwp_eval_book_write(&b, out, (const char *)paper, err);
        if (rc >= 0) iwp_eval_report_md(&b, stdout);
        if (b.missing) iwp_log(IWP_LOG_WARN, "report: %d answers are missing", b.missing);
    }
    free(paper);
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
    if (rc < 0)
        code = err.code == IWP_EINVAL && strncmp(err.msg, "--", 2) == 0
                   ? iwp_cli_usage("report", &err)
                   : iwp_cli_fail("report", &err);
done:
    iwp_strings_free(&dirs);
    return code;
}
