/* `iwp methods [NAME]`: the method table, as text or JSON.  Everything comes from the registry. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/cmd.h"

struct args {
    bool json;
};

static const struct iwp_opt methods_opts[] = {{"--json", NULL, IWP_OPT_FLAG,
                                               offsetof(struct args, json), 0, 0, NULL,
                                               "one JSON document on stdout"},
                                              IWP_OPT_END};

static const char *const examples[] = {"iwp methods", "all methods", "iwp methods iwp",
                                       "one method: what it reads, its options and defaults", NULL};

static const struct iwp_command command = {
    .name = "methods",
    .usage = "[NAME] [options]",
    .about = "Lists the pruning methods: where in the network they act, which tensors they read, "
             "their options and defaults. Methods marked engine-only need a loaded model and are "
             "refused by `iwp select`.",
    .examples = examples,
    .max_args = 1,
    .args_name = "NAME",
};

static const char *site_name(enum iwp_site s) {
    switch (s) {
    case IWP_SITE_MEDIA: return "media";
    case IWP_SITE_TOWER: return "tower";
    case IWP_SITE_EMBEDDINGS: return "embeddings";
    case IWP_SITE_LAYER: return "layer";
    }
    return "?";
}

static const char *const type_name[] = {"int", "real", "enum", "bool"};

static const struct {
    uint32_t flag;
    const char *name, *text;
} flag_table[] = {
    {IWP_METHOD_SEEDED, "seeded", "random, repeatable through option seed"},
    {IWP_METHOD_MERGES, "merges", "dropped tokens are merged into kept ones"},
    {IWP_METHOD_CHANGES_ENCODER, "changes-encoder", "acts inside the vision tower"},
    {IWP_METHOD_ENGINE_ONLY, "engine-only", "needs a loaded model"},
    {IWP_METHOD_MAY_KEEP_ZERO, "may-keep-zero", "may drop every visual token"},
    {IWP_METHOD_MULTI_STAGE, "multi-stage", "prunes at several layers"},
    {IWP_METHOD_READS_ENCODER, "reads-encoder", "reads encoder rows: separators are always kept"},
    {IWP_METHOD_RENUMBERS, "renumbers", "positions are counted anew after a cut (not M-RoPE)"},
};
enum { N_FLAG = sizeof flag_table / sizeof flag_table[0] };

/* Every method runs on every family; what differs is said beside. */
static const char *const families[] = {"llava-onevision", "qwen2.5-vl", "clip", NULL};

static int default_needs(const struct iwp_method *m, struct iwp_need need[IWP_TENSOR_COUNT]) {
    struct iwp_params p;
    iwp_params_default(&p, m);
    int n = iwp_params_needs(&p, 0, need, IWP_TENSOR_COUNT);
    return n < 0 ? 0 : n;
}

static void default_value(const struct iwp_method *m, const struct iwp_option *o, char *buf,
                          size_t cap) {
    struct iwp_params p;
    iwp_params_default(&p, m);
    buf[0] = 0;
    if (o->def_text)
        snprintf(buf, cap, "%s", o->def_text);
    else
        iwp_params_print(&p, o, buf, cap);
}

static const char *const rows_name[] = {"all", "visual", "text", "text-after", "last"};

static void put_method(struct iwp_json_out *w, const struct iwp_method *m) {
    const struct iwp_method_info *i = iwp_method_info(m);
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "name", i->name);
    iwp_json_put_string(w, "title", i->title);
    iwp_json_put_string(w, "ref", i->ref);
    iwp_json_put_string(w, "site", site_name(i->site));
    if (i->layer >= 0)
        iwp_json_put_int(w, "layer", i->layer);
    else
        iwp_json_put_null(w, "layer");
    iwp_json_put_bool(w, "engine_only", (i->flags & IWP_METHOD_ENGINE_ONLY) != 0);
    iwp_json_open_array(w, "flags");
    for (int f = 0; f < N_FLAG; f++)
        if (i->flags & flag_table[f].flag) iwp_json_put_string(w, NULL, flag_table[f].name);
    iwp_json_close_array(w);
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n = default_needs(m, need);
    iwp_json_open_array(w, "needs");
    for (int k = 0; k < n; k++) {
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "tensor", iwp_tensor_name(need[k].tensor));
        iwp_json_put_string(w, "rows", rows_name[need[k].rows]);
        iwp_json_put_bool(w, "optional", need[k].optional != 0);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    iwp_json_open_array(w, "models");
    for (int k = 0; families[k]; k++) iwp_json_put_string(w, NULL, families[k]);
    iwp_json_close_array(w);
    if (i->models)
        iwp_json_put_string(w, "models_note", i->models);
    else
        iwp_json_put_null(w, "models_note");
    iwp_json_put_bool(w, "deterministic", !(i->flags & IWP_METHOD_SEEDED));
    iwp_json_put_string(w, "positions", i->positions);
    iwp_json_put_string(w, "rounding", i->rounding);
    iwp_json_open_array(w, "options");
    for (const struct iwp_option *o = i->options; o && o->name; o++) {
        char def[128];
        default_value(m, o, def, sizeof def);
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "name", o->name);
        iwp_json_put_string(w, "type", type_name[o->type]);
        iwp_json_put_string(w, "default", def);
        if (o->type == IWP_OPTION_INT || o->type == IWP_OPTION_REAL) {
            iwp_json_put_f64(w, "min", o->min);
            iwp_json_put_f64(w, "max", o->max);
            iwp_json_put_bool(w, "min_exclusive", o->min_open != 0);
        }
        if (o->choices) {
            iwp_json_open_array(w, "choices");
            for (const char *const *c = o->choices; *c; c++) iwp_json_put_string(w, NULL, *c);
            iwp_json_close_array(w);
        }
        iwp_json_put_string(w, "text", o->text);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    iwp_json_close_object(w);
}

static int print_json(const struct iwp_method *one, iwp_err *err) {
    struct iwp_json_out w;
    iwp_json_init(&w, true);
    iwp_json_open_object(&w, NULL);
    iwp_json_open_array(&w, "methods");
    for (int32_t i = 0; i < iwp_method_count(); i++)
        if (!one || iwp_method_at(i) == one) put_method(&w, iwp_method_at(i));
    iwp_json_close_array(&w);
    iwp_json_close_object(&w);
    int rc = iwp_json_write(&w, stdout, err);
    iwp_json_free(&w);
    return rc;
}

/* "layer 4", "embeddings" */
static void where_text(const struct iwp_method_info *i, char *buf, size_t cap) {
    if (i->site == IWP_SITE_LAYER && i->layer >= 0)
        snprintf(buf, cap, "layer %d", i->layer);
    else
        snprintf(buf, cap, "%s", site_name(i->site));
}

static void needs_text(const struct iwp_method *m, char *buf, size_t cap) {
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n = default_needs(m, need);
    size_t len = 0;
    buf[0] = 0;
    for (int k = 0; k < n && len < cap; k++)
        len += (size_t)snprintf(buf + len, cap - len, need[k].optional ? "%s[%s]" : "%s%s",
                                k ? " " : "", iwp_tensor_name(need[k].tensor));
    if (!n) snprintf(buf, cap, "-");
}

static void print_table(void) {
    printf("%-12s %-11s %s\n", "method", "acts at", "reads (default options); marks");
    for (int32_t i = 0; i < iwp_method_count(); i++) {
        const struct iwp_method *m = iwp_method_at(i);
        const struct iwp_method_info *info = iwp_method_info(m);
        char where[32], text[512];
        where_text(info, where, sizeof where);
        needs_text(m, text, sizeof text);
        size_t len = strlen(text);
        bool first = true;
        for (int f = 0; f < N_FLAG; f++)
            if (info->flags & flag_table[f].flag) {
                len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", first ? "; " : ", ",
                                        flag_table[f].name);
                first = false;
            }
        int at = printf("%-12s %-11s ", info->name, where);
        iwp_print_wrapped(stdout, text, 25, at);
    }
    puts("\n`iwp methods NAME` tells more about one of them; [x] is used when given.");
}

static void print_one(const struct iwp_method *m) {
    const struct iwp_method_info *i = iwp_method_info(m);
    char buf[512];
    int at = printf("%s: ", i->name);
    iwp_print_wrapped(stdout, i->title, 2, at);
    at = printf("  follows    ");
    iwp_print_wrapped(stdout, i->ref, 13, at);
    where_text(i, buf, sizeof buf);
    printf("  acts at    %s\n", buf);
    at = printf("  positions  ");
    iwp_print_wrapped(stdout, i->positions ? i->positions : "original", 13, at);
    at = printf("  counts     ");
    iwp_print_wrapped(stdout, i->rounding ? i->rounding : "M = max(1, round-half-even(R N))", 13,
                      at);
    at = printf("  models     ");
    for (int k = 0; families[k]; k++) at += printf("%s%s", k ? ", " : "", families[k]);
    if (i->models) at += printf("; ");
    iwp_print_wrapped(stdout, i->models ? i->models : "", 13, at);
    for (int f = 0; f < N_FLAG; f++)
        if (i->flags & flag_table[f].flag)
            printf("  %-16s %s\n", flag_table[f].name, flag_table[f].text);
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n = default_needs(m, need);
    if (n) puts("\ntensors read with default options");
    for (int k = 0; k < n; k++) {
        snprintf(buf, sizeof buf, "%s%s", iwp_tensor_text(need[k].tensor),
                 need[k].optional ? " (when given)" : "");
        at = printf("  %-14s ", iwp_tensor_name(need[k].tensor));
        iwp_print_wrapped(stdout, buf, 17, at);
    }
    if (i->options && i->options->name) puts("\noptions (--opt name=value,...)");
    for (const struct iwp_option *o = i->options; o && o->name; o++) {
        char def[128];
        default_value(m, o, def, sizeof def);
        size_t len =
            (size_t)snprintf(buf, sizeof buf, "%s; default %s", o->text ? o->text : "", def);
        if (o->choices) {
            len += (size_t)snprintf(buf + len, sizeof buf - len, "; one of");
            for (const char *const *c = o->choices; *c && len < sizeof buf; c++)
                len += (size_t)snprintf(buf + len, sizeof buf - len, " %s", *c);
        }
        at = printf("  %-18s ", o->name);
        iwp_print_wrapped(stdout, buf, 21, at);
    }
}

int iwp_cmd_methods(int argc, char **argv) {
    struct args a = {0};
    const struct iwp_opt_group groups[] = {{"options", methods_opts, &a}, {NULL, NULL, NULL}};
    struct iwp_strings names = {0};
    const struct iwp_method *one = NULL;
    iwp_err err = {0};
    int code = 0, rc = iwp_opts_parse(&command, groups, argc, argv, &names, &err);
    if (rc == 1) goto done;
    if (rc >= 0 && names.n) rc = iwp_cli_find_method(names.at[0], &one, &err);
    if (rc < 0) {
        code = iwp_cli_usage("methods", &err);
        goto done;
    }
    if (a.json)
        rc = print_json(one, &err);
    else if (one)
        print_one(one);
    else
        print_table();
    if (rc < 0) code = iwp_cli_fail("methods", &err);
done:
    iwp_strings_free(&names);
    return code;
}
