/* `iwp serve`: flags of the server; the server itself is in src/server. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/engine_args.h"
#include "cli/version.h"
#include "server/server.h"

struct serve_args {
    const char *host, *alias, *api_key, *key_file, *media_path;
    int32_t port, parallel, queue, timeout, shutdown, body, metrics, slots, page, inspect;
    int32_t remote_mib, remote_s;
    double pixels;
    bool remote;
    struct iwp_strings allowed, domains;
};

#define AT(field) offsetof(struct serve_args, field)
static const struct iwp_opt serve_opts[] = {
    {"--host", "ADDRESS", IWP_OPT_TEXT, AT(host), 0, 0, NULL,
     "address to listen on (default 127.0.0.1: this machine only)"},
    {"--port", "N", IWP_OPT_INT, AT(port), 0, 65535, NULL, "port (default 8080; 0: any free one)"},
    {"-np, --parallel", "N", IWP_OPT_INT, AT(parallel), 1, IWP_SERVER_MAX_SLOT, NULL,
     "requests answered at the same time (default 1)"},
    {"--queue", "N", IWP_OPT_INT, AT(queue), 1, 100000, NULL,
     "requests that may wait; more get status 429 (default 256)"},
    {"-a, --alias", "NAME", IWP_OPT_TEXT, AT(alias), 0, 0, NULL,
     "name of the model (default: its file's)"},
    {"--api-key", "KEY", IWP_OPT_TEXT, AT(api_key), 0, 0, NULL,
     "requests must carry it: Authorization: Bearer KEY"},
    {"--api-key-file", "FILE", IWP_OPT_TEXT, AT(key_file), 0, 0, NULL,
     "the same, read from the first line of FILE: not seen in the process list"},
    {"--media-path", "DIR", IWP_OPT_TEXT, AT(media_path), 0, 0, NULL,
     "pictures below DIR may be named as file:// (default: none)"},
    {"--allow-remote-images", NULL, IWP_OPT_FLAG, AT(remote), 0, 0, NULL,
     "fetch pictures named as http(s)://, from public addresses only (default: refuse them)"},
    {"--allowed-media-domains", "NAME,...", IWP_OPT_COMMAS, AT(domains), 0, 0, NULL,
     "fetch from these hosts only; .example.org stands for all hosts below it"},
    {"--remote-limit", "MIB", IWP_OPT_INT, AT(remote_mib), 1, 256, NULL,
     "largest picture that is fetched (default 10)"},
    {"--remote-timeout", "S", IWP_OPT_INT, AT(remote_s), 1, 600, NULL,
     "time for fetching one (default 10)"},
    {"--pixel-limit", "MP", IWP_OPT_REAL, AT(pixels), 0.001, 100, NULL,
     "largest picture in millions of pixels (default 100)"},
    {"--body-limit", "MIB", IWP_OPT_INT, AT(body), 1, 4096, NULL, "largest request (default 256)"},
    {"-to, --timeout", "S", IWP_OPT_INT, AT(timeout), 1, 86400, NULL,
     "idle connections, slow senders and readers (default 60)"},
    {"--shutdown-timeout", "S", IWP_OPT_INT, AT(shutdown), 0, 86400, NULL,
     "time that running requests have after SIGTERM (default 30)"},
    {"--allowed-host", "NAME", IWP_OPT_COMMAS, AT(allowed), 0, 0, NULL,
     "further Host names taken on a loopback address, for a proxy; repeatable"},
    {"--metrics", "[=0|1]", IWP_OPT_TRI, AT(metrics), 0, 0, NULL,
     "GET /metrics for Prometheus (default on)"},
    {"--slots", "[=0|1]", IWP_OPT_TRI, AT(slots), 0, 0, NULL,
     "GET /slots: what each session does (default on)"},
    {"--webui", "[=0|1]", IWP_OPT_TRI, AT(page), 0, 0, NULL, "the page at / (default on)"},
    {"--inspect", "S", IWP_OPT_INT, AT(inspect), 0, 86400, NULL,
     "how long GET /inspect/ID shows the report and picture of an answer (default 600; 0: not)"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp serve --prune iwp --keep 22.2%",
    "the shipped model on http://127.0.0.1:8080, a fifth of the visual tokens kept unless a "
    "request "
    "says otherwise",
    "iwp serve -m model.gguf -mm mmproj.gguf -np 4 --host 0.0.0.0 --api-key secret",
    "four answers at a time, for other machines too", NULL};

static const struct iwp_command command = {
    .name = "serve",
    .summary = "the OpenAI API with a visual budget per request, and a page",
    .usage = "[-m FILE -mm FILE] [options]",
    .about = "Serves POST /v1/chat/completions (plain and streamed), /v1/completions, /v1/models, "
             "/health, /metrics, /props, /slots, /tokenize, /apply-template and an inspector page "
             "at /.  A request may say "
             "\"prune\": {\"method\": \"iwp\", \"keep\": 0.222}; the pruning flags below are the "
             "default for those that do not.",
    .examples = examples,
    .min_args = 0,
    .max_args = 0,
    .args_name = "",
};

/* The key out of its file, into `key`. */
static int read_key(const char *path, char *key, size_t cap, iwp_err *err) {
    uint8_t *data;
    size_t n;
    int rc = iwp_file_read(path, 65536, &data, &n, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "--api-key-file");
    n = strcspn((const char *)data, "\r\n");
    const bool fits = n > 0 && n < cap;
    snprintf(key, cap, "%.*s", (int)(fits ? n : 0), (const char *)data);
    free(data);
    IWP_REQUIRE(fits, err, IWP_EINVAL,
                "--api-key-file %.200s: the first line must be a key of 1 to %zu bytes", path,
                cap - 1);
    return 0;
}

static int fill(struct iwp_server_params *p, const struct serve_args *a,
                struct iwp_model_args *model, const struct iwp_sampling_args *sampling,
                const struct iwp_prune_args *prune, iwp_err *err) {
    struct iwp_request_defaults *d = &p->def;
    IWP_REQUIRE(!iwp_model_args_raw(model), err, IWP_EINVAL,
                "--chat-template none: a server needs a template for its messages");
    IWP_REQUIRE(!a->api_key || a->api_key[0], err, IWP_EINVAL, "--api-key: the key is empty");
    IWP_REQUIRE(!a->api_key || !a->key_file, err, IWP_EINVAL,
                "--api-key and --api-key-file exclude each other");
    IWP_REQUIRE(a->domains.n == 0 || a->remote, err, IWP_EINVAL,
                "--allowed-media-domains: nothing is fetched without --allow-remote-images");
    IWP_TRY(iwp_engine_prune(prune, &d->prune.params, &d->prune.on, &d->prune.positions, err));
    d->prune.report = IWP_REPORT_SUMMARY;
    d->sampler = iwp_sampling_args_params(sampling);
    d->n_predict = sampling->n_predict;
    p->host = a->host;
    p->port = a->port;
    p->alias = a->alias;
    p->build = "iwp-" IWP_VERSION;
    p->api_key = a->api_key;
    p->media_path = a->media_path;
    p->allowed_host = a->allowed.at;
    p->n_allowed_host = a->allowed.n;
    p->n_parallel = a->parallel;
    p->n_queue = a->queue;
    p->timeout_s = a->timeout;
    p->shutdown_s = a->shutdown;
    p->body_mib = a->body;
    p->metrics = a->metrics != 0;
    p->slots = a->slots != 0;
    p->page = a->page != 0;
    p->inspect_s = a->inspect;
    p->max_pixels = (int64_t)(a->pixels * 1e6);
    p->remote_images = a->remote;
    p->remote_mib = a->remote_mib;
    p->remote_s = a->remote_s;
    p->media_domain = a->domains.at;
    p->n_media_domain = a->domains.n;
    p->session = iwp_model_args_session(model);
    p->min_tokens = model->min_tokens;
    p->max_tokens = model->max_tokens;
    p->tiles = model->tiles;
    return 0;
}

int iwp_cmd_serve(int argc, char **argv) {
    struct serve_args a = {.host = "127.0.0.1",
                           .port = 8080,
                           .parallel = 1,
                           .queue = 256,
                           .timeout = 60,
                           .shutdown = 30,
                           .body = 256,
                           .metrics = -1,
                           .slots = -1,
                           .page = -1,
                           .inspect = 600,
                           .remote_mib = 10,
                           .remote_s = 10,
                           .pixels = 100};
    struct iwp_model_args model = IWP_MODEL_ARGS_DEFAULT;
    struct iwp_sampling_args sampling = IWP_SAMPLING_ARGS_DEFAULT;
    struct iwp_prune_args prune = IWP_PRUNE_ARGS_DEFAULT;
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings none = {0};
    static struct iwp_server_params p;
    const struct iwp_opt_group groups[] = {
        {"server", serve_opts, &a},
        {"model", iwp_model_opts, &model},
        {"answer (what a request does not say)", iwp_sampling_opts, &sampling},
        {"pruning (what a request does not say)", iwp_prune_opts, &prune},
        {"messages", iwp_log_opts, &log},
        {NULL, NULL, NULL}};
    iwp_err err = {0};
    int code = 0;
    int rc = iwp_opts_parse(&command, groups, argc, argv, &none, &err);
    if (rc > 0) goto done;
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc >= 0) rc = fill(&p, &a, &model, &sampling, &prune, &err);
    if (rc < 0) {
        code = iwp_cli_usage("serve", &err);
        goto done;
    }
    char key[1025];
    if (a.key_file) {
        rc = read_key(a.key_file, key, sizeof key, &err);
        p.api_key = key;
    }
    iwp_engine_prune_note(&prune);
    if (rc >= 0) rc = iwp_model_args_engine(&model, &p.engine, &err);
    if (rc >= 0) rc = iwp_server_run(&p, &err);
    if (rc < 0) code = iwp_cli_fail("serve", &err);
done:
    iwp_model_args_free(&model);
    iwp_prune_args_free(&prune);
    iwp_strings_free(&a.allowed);
    iwp_strings_free(&a.domains);
    iwp_strings_free(&none);
    return code;
}
