/* `iwp analyse`: the paper's analyses on a loaded model (spec/iwp.md 7).  Owns the flags; the work is in
 * eval/analyse*.c. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "cli/eval_args.h"
#include "eval/analyse.h"

struct args {
    struct iwp_eval_args eval; /* its questions */
    struct iwp_strings prune, keep, opt;
    const char *out;
    int32_t layer, tokens;
    bool json, no_answers;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt analyse_opts[] = {
    {"--out", "DIR", IWP_OPT_TEXT, AT(out), 0, 0, NULL,
     "folder of the results; RESULTS/analysis appears in the report of RESULTS"},
    {"--keep", "R,...", IWP_OPT_COMMAS, AT(keep), 0, 0, NULL,
     "budgets (default 35.3%,22.2%,11.1%); where one is enough the first counts"},
    {"--prune-layer, --layer", "L", IWP_OPT_INT, AT(layer), 0, 1000, NULL,
     "layer that is looked at and cut (default 4)"},
    {"--prune-opt, --opt", "K=V,...", IWP_OPT_LIST, AT(opt), 0, 0, NULL,
     "options of iwp that all analyses start from; repeatable"},
    {"--prune, --methods", "A,B", IWP_OPT_COMMAS, AT(prune), 0, 0, NULL,
     "methods of propagate (default iwp,fastv,random) and implicit-weight (default all)"},
    {"--tokens", "N", IWP_OPT_INT, AT(tokens), 2, 2000, NULL,
     "similarity: how many of the last tokens its maps show (default 100)"},
    {"--no-answers", NULL, IWP_OPT_FLAG, AT(no_answers), 0, 0, NULL,
     "generate no answers: metrics, ablate and deletion then have no scores"},
    {"--json", NULL, IWP_OPT_FLAG, AT(json), 0, 0, NULL,
     "one JSON document on stdout instead of the texts"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp analyse all --tasks photos.jsonl --limit 8 --out results/analysis",
    "every analysis on a few samples with the shipped model; `iwp report results` shows them",
    "iwp analyse identities -m m.gguf -mm p.gguf --tasks photos.jsonl --limit 2 --out a",
    "do the identities of the dual form hold on this model's activations",
    "iwp analyse propagate --prune iwp,divprune --keep 50%,10% --tasks photos.jsonl --out a",
    "how far a deletion reaches through the later layers",
    NULL};

static char about[2000] =
    "Looks into a model while it answers the questions of a manifest and writes NAME.json, "
    "NAME.svg "
    "and NAME.txt for every analysis asked for; what was found goes to stdout. The cache is f32 "
    "unless -ctk and -ctv say otherwise. NAME is all, or some of:";

static const struct iwp_command command = {
    .name = "analyse",
    .summary = "the paper's analyses on a loaded model, as JSON, pictures and text",
    .usage = "NAME... --tasks A,B|FILE.jsonl --out DIR [options]",
    .about = about,
    .examples = examples,
    .min_args = 1,
    .max_args = 16,
    .args_name = "NAME of an analysis",
};

static void complete_about(void) {
    for (const struct iwp_analysis *w = iwp_analyses; w->name; w++) {
        const size_t n = strlen(about);
        snprintf(about + n, sizeof about - n, " %s (%s)%s", w->name, w->about,
                 w[1].name ? ";" : ".");
    }
}

enum { MAX_WHICH = 16 };

static int find(const struct iwp_strings *names, const struct iwp_analysis **which, int32_t *n,
                iwp_err *err) {
    const char *known[MAX_WHICH + 1];
    int32_t n_known = 0;
    for (; iwp_analyses[n_known].name && n_known < MAX_WHICH; n_known++)
        known[n_known] = iwp_analyses[n_known].name;
    known[n_known] = "all";
    *n = 0;
    for (int32_t i = 0; i < names->n; i++) {
        const char *name = names->at[i];
        bool found = false;
        for (int32_t k = 0; k < n_known; k++) {
            if (strcmp(name, known[k]) && strcmp(name, "all")) continue;
            found = true;
            bool twice = false;
            for (int32_t j = 0; j < *n; j++) twice = twice || which[j] == &iwp_analyses[k];
            if (!twice) which[(*n)++] = &iwp_analyses[k];
        }
        if (found) continue;
        const char *near = iwp_nearest_name(name, known, n_known + 1);
        return iwp_err_set(err, IWP_EINVAL, "unknown analysis '%.60s'%s%s%s", name,
                           near ? ", did you mean " : ", see iwp analyse --help", near ? near : "",
                           near ? "?" : "");
    }
    return 0;
}

static int fill_prune(const struct args *a, struct iwp_analyse_job *job, iwp_err *err) {
    static const char *const defaults[] = {"35.3%", "22.2%", "11.1%"};
    iwp_params_default(&job->prune, iwp_method_find("iwp"));
    job->prune.layer = a->layer;
    for (int32_t i = 0; i < a->opt.n; i++) {
        const int rc = iwp_params_parse(&job->prune, a->opt.at[i], err);
        if (rc < 0) return iwp_err_prefix(err, rc, "--opt");
    }
    IWP_REQUIRE(a->keep.n <= IWP_ANALYSE_MAX_KEEP, err, IWP_EINVAL, "--keep: more than %d budgets",
                IWP_ANALYSE_MAX_KEEP);
    job->n_keep = a->keep.n ? a->keep.n : 3;
    for (int32_t i = 0; i < job->n_keep; i++)
        IWP_TRY(iwp_cli_keep(a->keep.n ? a->keep.at[i] : defaults[i], &job->keep[i], err));
    IWP_REQUIRE(a->prune.n <= IWP_ANALYSE_MAX_METHOD, err, IWP_EINVAL,
                "--prune: more than %d methods", IWP_ANALYSE_MAX_METHOD);
    for (int32_t i = 0; i < a->prune.n; i++) {
        const int rc = iwp_cli_find_method(a->prune.at[i], &job->method[job->n_method++], err);
        if (rc < 0) return iwp_err_prefix(err, rc, "--prune");
    }
    return 0;
}

static int work(const struct args *a, const struct iwp_strings *names, struct iwp_model_args *model,
                iwp_err *err) {
    const struct iwp_analysis *which[MAX_WHICH];
    struct iwp_analyse_job job;
    struct iwp_eval_run run;
    struct iwp_eval_data data = {0};
    struct iwp_eval_job grid;
    int32_t n;
    memset(&job, 0, sizeof job);
    memset(&run, 0, sizeof run);
    memset(&grid, 0, sizeof grid);
    int rc = find(names, which, &n, err);
    if (rc >= 0) rc = fill_prune(a, &job, err);
    if (rc >= 0) rc = iwp_eval_args_job(&a->eval, model, &run, &data, &grid, err);
    if (rc >= 0) rc = iwp_eval_make_folders(a->out, err);
    if (rc >= 0) {
        job.dir = a->out;
        job.engine = grid.engine;
        job.session = grid.session;
        job.media = grid.media;
        job.data = &data;
        job.ask = (struct iwp_ask){.profile = grid.profile, .raw = grid.raw, .system = grid.system};
        job.tokens = a->tokens;
        job.no_answers = a->no_answers;
        job.model_hash = run.model_hash;
        rc = iwp_analyse_run(&job, which, n, stdout, a->json, err);
    }
    if (rc >= 0)
        iwp_log(IWP_LOG_INFO, "analyse: %d JSON documents, pictures and texts in %s", n, a->out);
    iwp_eval_data_free(&data);
    iwp_eval_run_free(&run);
    return rc;
}

int iwp_cmd_analyse(int argc, char **argv) {
    /* Static: texts cut out of comma lists live as long as the process. */
    static struct args a = {.eval = IWP_EVAL_ARGS_DEFAULT, .layer = -1, .tokens = 100};
    struct iwp_model_args model = IWP_MODEL_ARGS_DEFAULT;
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings names = {0};
    const struct iwp_opt_group groups[] = {{"questions", iwp_question_opts, &a.eval},
                                           {"analysis", analyse_opts, &a},
                                           {"model", iwp_model_opts, &model},
                                           {"logging", iwp_log_opts, &log},
                                           {NULL, NULL, NULL}};
    iwp_err err = {0};
    int code = 0;
    complete_about();
    model.type_k = model.type_v = IWP_KV_F32;
    int rc = iwp_opts_parse(&command, groups, argc, argv, &names, &err);
    if (rc == 1) goto done;
    if (rc >= 0) rc = iwp_eval_args_check(&a.eval, &err);
    if (rc >= 0 && !a.out) rc = iwp_err_set(&err, IWP_EINVAL, "--out DIR is needed");
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc < 0) {
        code = iwp_cli_usage("analyse", &err);
        goto done;
    }
    rc = work(&a, &names, &model, &err);
    if (rc < 0)
        code = err.code == IWP_EINVAL && strncmp(err.msg, "unknown a", 9) == 0
                   ? iwp_cli_usage("analyse", &err)
                   : iwp_cli_fail("analyse", &err);
done:
    iwp_model_args_free(&model);
    iwp_strings_free(&names);
    return code;
}
