/* The `prune` object of a request, checked against the method table: see request.h. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "server/request.h"

static bool choose(const char *text, const char *const *names, int *out) {
    for (int i = 0; names[i]; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static int get_choice(const cJSON *v, const char *name, const char *const *names,
                      const char *listed, int *out, iwp_err *err) {
    IWP_REQUIRE(cJSON_IsString(v) && choose(v->valuestring, names, out), err, IWP_EINVAL,
                "prune.%s must be one of %s", name, listed);
    return 0;
}

static int set_budget(struct iwp_params *p, const cJSON *keep, const cJSON *count, iwp_err *err) {
    IWP_REQUIRE(!keep || !count, err, IWP_EINVAL,
                "prune.keep and prune.keep_tokens exclude each other");
    if (count) { /* beside the default's ratio it would look like one */
        int64_t n;
        IWP_REQUIRE(iwp_json_get_int(count, 1, 1 << 30, &n), err, IWP_EINVAL,
                    "prune.keep_tokens must be a whole number from 1 to %d", 1 << 30);
        p->budget.n_keep = (int32_t)n;
        p->budget.keep = 1;
    } else if (cJSON_IsString(keep)) {
        int rc = iwp_keep_parse(keep->valuestring, &p->budget.keep, err);
        if (rc < 0) return iwp_err_prefix(err, rc, "prune.keep");
        p->budget.n_keep = 0;
    } else if (keep) {
        IWP_REQUIRE(cJSON_IsNumber(keep) && keep->valuedouble > 0 && keep->valuedouble <= 1, err,
                    IWP_EINVAL, "prune.keep must be above 0 and at most 1");
        p->budget.keep = keep->valuedouble;
        p->budget.n_keep = 0;
    }
    return 0;
}

static int set_option(struct iwp_request_prune *p, const cJSON *v, iwp_err *err) {
    char text[64];
    const char *value = text;
    if (cJSON_IsString(v))
        value = v->valuestring;
    else if (cJSON_IsBool(v))
        snprintf(text, sizeof text, "%d", cJSON_IsTrue(v));
    else if (cJSON_IsNumber(v))
        iwp_json_format_f64(text, v->valuedouble);
    else
        return iwp_err_set(err, IWP_EINVAL,
                           "prune.opts.%.40s must be a number, a string or a truth value",
                           v->string);
    if (strcmp(v->string, "positions") == 0) { /* the engine's, not the method's */
        static const char *const names[] = {"default", "original", "compact", NULL};
        int i;
        IWP_REQUIRE(choose(value, names, &i), err, IWP_EINVAL,
                    "prune.opts.positions is original or compact, not '%.40s'", value);
        p->positions = (enum iwp_positions)i;
        return 0;
    }
    int rc = iwp_params_set(&p->params, v->string, value, err);
    return rc < 0 ? iwp_err_prefix(err, rc, "prune.opts") : 0;
}

static int check_names(const cJSON *v, iwp_err *err) {
    static const char *const known[] = {
        "method", "keep",        "keep_tokens",  "layer",           "opts",
        "report", "budget_rule", "budget_scope", "keep_separators", NULL};
    const cJSON *x;
    int i;
    cJSON_ArrayForEach(x, v) IWP_REQUIRE(choose(x->string, known, &i), err, IWP_EINVAL,
                                         "prune has no field '%.40s'; it has method, keep, "
                                         "keep_tokens, layer, opts, report, budget_rule, "
                                         "budget_scope, keep_separators",
                                         x->string);
    return 0;
}

static const cJSON *get(const cJSON *o, const char *name) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static int pick_method(struct iwp_request_prune *p, const cJSON *v,
                       const struct iwp_request_defaults *def, iwp_err *err) {
    const cJSON *name = get(v, "method");
    IWP_REQUIRE(!name || cJSON_IsString(name), err, IWP_EINVAL, "prune.method must be a string");
    p->on = true;
    if (name && strcmp(name->valuestring, "none") == 0) {
        p->on = false;
        return 0;
    }
    const struct iwp_method *m = name            ? iwp_method_find(name->valuestring)
                                 : def->prune.on ? def->prune.params.method
                                                 : iwp_method_find("iwp");
    IWP_REQUIRE(m, err, IWP_EINVAL, "prune.method '%.60s' is unknown; GET /props lists the methods",
                name ? name->valuestring : "iwp");
    /* Another budget of the server's own method keeps the server's options. */
    if (!def->prune.on || m != def->prune.params.method) {
        iwp_params_default(&p->params, m);
        p->positions = IWP_POSITIONS_DEFAULT;
    }
    return 0;
}

int iwp_request_parse_prune(struct iwp_request_prune *p, const cJSON *v,
                            const struct iwp_request_defaults *def, iwp_err *err) {
    *p = def->prune;
    p->report = IWP_REPORT_SUMMARY;
    p->asked = v && !cJSON_IsNull(v);
    if (!p->asked) return 0;
    if (cJSON_IsFalse(v)) {
        p->on = false;
        return 0;
    }
    IWP_REQUIRE(cJSON_IsObject(v), err, IWP_EINVAL, "'prune' must be an object");
    IWP_TRY(check_names(v, err));
    int i = 0;
    const cJSON *x = get(v, "report");
    static const char *const reports[] = {"none", "summary", "tokens", NULL};
    if (x) {
        IWP_TRY(get_choice(x, "report", reports, "none, summary, tokens", &i, err));
        p->report = (enum iwp_report)i;
    }
    IWP_TRY(pick_method(p, v, def, err));
    if (!p->on) return 0;
    IWP_TRY(set_budget(&p->params, get(v, "keep"), get(v, "keep_tokens"), err));
    if ((x = get(v, "layer"))) {
        int64_t l;
        const int64_t top = def->n_layer > 0 ? def->n_layer - 1 : 1000;
        IWP_REQUIRE(iwp_json_get_int(x, 0, top, &l), err, IWP_EINVAL,
                    "prune.layer must be a whole number from 0 to %d, the last layer", (int)top);
        p->params.layer = (int32_t)l;
    }
    static const char *const rules[] = {"default", "cut",          "layer-average",
                                        "matched", "as-published", NULL};
    static const char *const scopes[] = {"global", "image", "tile", "frame", NULL};
    if ((x = get(v, "budget_rule"))) {
        IWP_TRY(get_choice(x, "budget_rule", rules,
                           "default, cut, layer-average, matched, as-published", &i, err));
        p->params.budget.rule = (enum iwp_budget_rule)i;
    }
    if ((x = get(v, "budget_scope"))) {
        IWP_TRY(get_choice(x, "budget_scope", scopes, "global, image, tile, frame", &i, err));
        p->params.budget.scope = (enum iwp_budget_scope)i;
    }
    if ((x = get(v, "keep_separators"))) {
        IWP_REQUIRE(cJSON_IsBool(x), err, IWP_EINVAL,
                    "prune.keep_separators must be true or false");
        p->params.budget.keep_separators = cJSON_IsTrue(x);
    }
    const cJSON *opts = get(v, "opts");
    IWP_REQUIRE(!opts || cJSON_IsObject(opts), err, IWP_EINVAL, "prune.opts must be an object");
    if (opts) cJSON_ArrayForEach(x, opts) IWP_TRY(set_option(p, x, err));
    IWP_REQUIRE(!get(v, "layer") || iwp_params_cuts_decoder(&p->params), err, IWP_EINVAL,
                "prune.layer: method %s does not cut inside the decoder",
                iwp_method_info(p->params.method)->name);
    return 0;
}

const char *iwp_request_fields(const char *message, bool asked, char *out, size_t cap) {
    static const struct {
        const char *flag, *field;
    } names[] = {{"--keep-tokens", "prune.keep_tokens"},
                 {"--keep-separators", "prune.keep_separators"},
                 {"--keep", "prune.keep"},
                 {"--prune-layer", "prune.layer"},
                 {"--prune-opt", "prune.opts"},
                 {"--opt", "prune.opts"},
                 {"--budget-rule", "prune.budget_rule"},
                 {"--budget-scope", "prune.budget_scope"},
                 {"--frames", "media_io_kwargs.video.num_frames"},
                 {"--video", "video_url"}};
    enum { N = sizeof names / sizeof *names };
    size_t n = 0;
    for (const char *p = message; *p && n + 1 < cap;) {
        int k = 0;
        while (k < N && strncmp(p, names[k].flag, strlen(names[k].flag)) != 0) k++;
        if (k == N || (!asked && strncmp(names[k].field, "prune.", 6) == 0)) {
            out[n++] = *p++;
            continue;
        }
        n += (size_t)snprintf(out + n, cap - n, "%s", names[k].field);
        p += strlen(names[k].flag);
    }
    out[n < cap ? n : cap - 1] = 0;
    return out;
}
