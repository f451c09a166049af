/* `iwp inspect`: what is in a model file or folder, and whether iwp runs it. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "cli/cmd.h"
#include "convert/inspect.h"

struct args {
    bool json;
    const char *size;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt inspect_opts[] = {
    {"--json", NULL, IWP_OPT_FLAG, AT(json), 0, 0, NULL, "one JSON document on stdout"},
    {"--image-size", "WxH", IWP_OPT_TEXT, AT(size), 0, 0, NULL,
     "how many visual tokens a picture of this size costs"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {"iwp inspect model.gguf", "shapes, types, memory",
                                       "iwp inspect mmproj.gguf --image-size 1280x720",
                                       "visual tokens of a picture", NULL};

static const struct iwp_command command = {
    .name = "inspect",
    .usage = "FILE|DIR [--json] [--image-size WxH]",
    .about = "Shows what is in a GGUF file, a safetensors file or a Hugging Face folder: "
             "architecture, shapes, parameters, quantisation and its fallbacks, vision tower, chat "
             "template, memory per layer, and whether iwp runs it and why.",
    .examples = examples,
    .min_args = 1,
    .max_args = 1,
    .args_name = "FILE|DIR",
};

static int parse_size(const char *text, int32_t *w, int32_t *h, iwp_err *err) {
    int used = 0;
    *w = *h = 0;
    if (!text) return 0;
    IWP_REQUIRE(strlen(text) < 16 && sscanf(text, "%6dx%6d%n", w, h, &used) == 2 && !text[used] &&
                    *w > 0 && *h > 0,
                err, IWP_EINVAL, "--image-size %.40s: give width x height, e.g. 640x480", text);
    return 0;
}

int iwp_cmd_inspect(int argc, char **argv) {
    struct args a = {0};
    const struct iwp_opt_group groups[] = {{"options", inspect_opts, &a}, {NULL, NULL, NULL}};
    struct iwp_strings in = {0};
    struct iwp_inspect *r = NULL;
    iwp_err err = {0};
    int32_t w = 0, h = 0;
    int code = 0, rc = iwp_opts_parse(&command, groups, argc, argv, &in, &err);
    if (rc == 1) goto done;
    if (rc >= 0) rc = parse_size(a.size, &w, &h, &err);
    if (rc < 0) {
        code = iwp_cli_usage("inspect", &err);
        goto done;
    }
    rc = iwp_inspect(&r, in.at[0], w, h, &err);
    if (rc >= 0 && a.json) {
        struct iwp_json_out out;
        iwp_json_init(&out, true);
        iwp_inspect_json(r, &out);
        rc = iwp_json_write(&out, stdout, &err);
        iwp_json_free(&out);
    } else if (rc >= 0) {
        iwp_inspect_print(r, stdout);
    }
    if (rc < 0) code = iwp_cli_fail("inspect", &err);
done:
    iwp_inspect_free(r);
    iwp_strings_free(&in);
    return code;
}
