/* `iwp run`: one question about pictures or a video, or a chat when no -p is given. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "cli/run.h"

#define AT(field) offsetof(struct iwp_run_args, field)
static const struct iwp_opt run_opts[] = {
    {"-p, --prompt", "TEXT", IWP_OPT_TEXT, AT(prompt), 0, 0, NULL,
     "the question; without it: a chat"},
    {"--image", "FILE,...", IWP_OPT_FILES, AT(image), 0, 0, NULL,
     "picture (JPEG, PNG, WebP, GIF); repeatable, or several with commas between (a name that is a "
     "file's is taken whole)"},
    {"--video", "FILE|DIR", IWP_OPT_LIST, AT(video), 0, 0, NULL,
     "film (MP4, MOV, MKV, WebM, AVI, GIF), folder of frames in name order, or .txt list of "
     "frames; "
     "repeatable"},
    {"--frames", "N", IWP_OPT_INT, AT(frames), 1, 4096, NULL,
     "frames of a film, spread evenly (default 32); of a folder at most"},
    {"--fps", "F", IWP_OPT_REAL, AT(fps), 0.001, 1000, NULL,
     "frames taken per second of a film, 4 to --frames (or 768); rate of a folder's frames"},
    {"-sys, --system-prompt", "TEXT", IWP_OPT_TEXT, AT(system), 0, 0, NULL, "system message"},
    {"--json", NULL, IWP_OPT_FLAG, AT(json), 0, 0, NULL, "one JSON document on stdout"},
    {"-o, --output", "FORMAT", IWP_OPT_TEXT, AT(output), 0, 0, NULL, "text or json"},
    {"--overlay", "FILE.png", IWP_OPT_TEXT, AT(overlay), 0, 0, NULL,
     "draw kept and dropped tokens over the (first) picture, or over the frames of a video"},
    {"--prune-dump", "FILE", IWP_OPT_TEXT, AT(prune_dump), 0, 0, NULL,
     "what was kept, as .json, .svg or .png"},
    {"--dump-tensors", "FILE", IWP_OPT_TEXT, AT(dump), 0, 0, NULL,
     "write what was computed on the way as safetensors; `iwp select` reads it"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp run --image photo.jpg -p \"What is in the picture?\" --prune iwp --keep 22.2%",
    "one question, a fifth of the visual tokens kept from layer 4 on",
    "iwp run -m model.gguf -mm mmproj.gguf --image chart.png",
    "a chat about a picture: /image, /video, /prune, /keep, /clear, /quit",
    "iwp run --video film.mp4 --frames 16 -p \"What happens?\" --prune iwp --keep 11.1% --overlay "
    "sheet.png",
    "16 frames of a film, one budget over all of them; the sheet shows what was kept of each",
    NULL};

static const struct iwp_command command = {
    .name = "run",
    .summary = "answer a question about images or a video; chat when no -p is given",
    .usage = "[-m FILE -mm FILE] [--image FILE]... [-p TEXT] [options]",
    .about =
        "Runs a vision-language model (LLaVA-OneVision, Qwen2.5-VL, LLaVA-1.5 and text-only qwen2 "
        "and llama models) and drops visual tokens inside the network when --prune says how.",
    .examples = examples,
    .min_args = 0,
    .max_args = 0,
    .args_name = "",
};

volatile sig_atomic_t iwp_run_interrupts;

static void on_interrupt(int sig) {
    (void)sig;
    if (++iwp_run_interrupts < 2) return;
    iwp_output_abort_all();
    _exit(IWP_CLI_INTERRUPTED);
}

static bool interrupted(void *ctx) {
    (void)ctx;
    return iwp_run_interrupts > 0;
}

static bool print_text(void *ctx, const char *text, size_t n) {
    (void)ctx;
    fwrite(text, 1, n, stdout);
    return fflush(stdout) == 0 && iwp_run_interrupts == 0;
}

void iwp_run_result_free(struct iwp_run_result *r) {
    iwp_engine_prompt_free(r->prompt);
    iwp_answer_free(&r->answer);
    memset(r, 0, sizeof *r);
}

int iwp_run_answer(struct iwp_run_job *j, struct iwp_prompt_request *r, bool stream,
                   struct iwp_run_result *out, iwp_err *err) {
    memset(out, 0, sizeof *out);
    const double t0 = iwp_clock_ms();
    const struct iwp_run_args *a = &j->args;
    iwp_prompt_request_for(r, j->use_prune ? &j->prune : NULL);
    r->frames = a->frames;
    r->fps = a->fps;
    r->image_min_tokens = j->model.min_tokens;
    r->image_max_tokens = j->model.max_tokens;
    r->image_tiles = j->model.tiles;
    r->n_ctx = j->model.ctx > 0 ? j->model.ctx : iwp_engine_info(j->e).n_ctx_train;
    r->dump = a->dump != NULL;
    r->keep_pixels = a->overlay != NULL || a->prune_dump != NULL;
    r->meter = true;
    r->cancel = interrupted;
    IWP_TRY(iwp_engine_prompt(j->e, r, &out->prompt, err));
    IWP_TRY(iwp_session_begin(j->s, out->prompt, j->use_prune ? &j->prune : NULL, err));
    IWP_TRY(iwp_engine_prefill(j->s, err));
    const double t1 = iwp_clock_ms();
    const struct iwp_generate_params g = {.n_predict = j->sampling.n_predict,
                                          .ignore_eos = j->sampling.ignore_eos,
                                          .sampler = j->sampler,
                                          .on_text = stream ? print_text : NULL};
    IWP_TRY(iwp_session_generate(j->s, &g, &out->answer, err));
    out->ms_ttft = t1 - t0 + out->answer.ms_first;
    out->ms_total = iwp_clock_ms() - t0;
    if (stream) {
        fputc('\n', stdout);
        fflush(stdout); /* before the summary on stderr */
    }
    return 0;
}

enum { MAX_MEDIA = 256 };

static int once(struct iwp_run_job *j, iwp_err *err) {
    const struct iwp_run_args *a = &j->args;
    struct iwp_part part[MAX_MEDIA + 1], sys = {.kind = IWP_PART_TEXT, .text = a->system};
    int32_t n = 0;
    IWP_REQUIRE(a->image.n + a->video.n <= MAX_MEDIA, err, IWP_EINVAL, "more than %d pictures",
                MAX_MEDIA);
    for (int32_t i = 0; i < a->image.n; i++)
        part[n++] = (struct iwp_part){.kind = IWP_PART_IMAGE, .file = a->image.at[i]};
    for (int32_t i = 0; i < a->video.n; i++)
        part[n++] = (struct iwp_part){.kind = IWP_PART_VIDEO, .file = a->video.at[i]};
    struct iwp_prompt_request r;
    memset(&r, 0, sizeof r);
    struct iwp_message msg[2];
    if (iwp_model_args_raw(&j->model)) {
        r.raw = a->prompt;
        r.media = part;
        r.n_media = n;
    } else {
        int32_t m = 0;
        part[n++] = (struct iwp_part){.kind = IWP_PART_TEXT, .text = a->prompt};
        if (a->system) msg[m++] = (struct iwp_message){"system", &sys, 1};
        msg[m++] = (struct iwp_message){"user", part, n};
        r.message = msg;
        r.n_message = m;
    }
    struct iwp_run_result res;
    int rc = iwp_run_answer(j, &r, !a->json, &res, err);
    if (rc >= 0 && a->dump) rc = iwp_session_dump(j->s, a->dump, err);
    if (rc >= 0 && (a->overlay || a->prune_dump)) rc = iwp_run_draw(j, &res, err);
    if (rc >= 0 && a->json) rc = iwp_run_json(j, &res, err);
    if (rc >= 0) iwp_run_summary(j, &res);
    iwp_run_result_free(&res);
    return rc;
}

/* Before anything is written, messages too. */
static int check_files(const struct iwp_run_job *j, const struct iwp_log_args *log, iwp_err *err) {
    const struct iwp_run_args *a = &j->args;
    const struct iwp_cli_file out[] = {{"--overlay", a->overlay},
                                       {"--dump-tensors", a->dump},
                                       {"--prune-dump", a->prune_dump},
                                       {"--log-file", log->file}};
    enum { N_OUT = sizeof out / sizeof out[0] };
    IWP_TRY(iwp_cli_outputs(out, N_OUT, err));
    IWP_TRY(iwp_cli_apart(out, N_OUT, "-m", j->model.model, err));
    IWP_TRY(iwp_cli_apart(out, N_OUT, "-mm", j->model.mmproj, err));
    for (int32_t i = 0; i < a->image.n; i++)
        IWP_TRY(iwp_cli_apart(out, N_OUT, "--image", a->image.at[i], err));
    for (int32_t i = 0; i < a->video.n; i++)
        IWP_TRY(iwp_cli_apart(out, N_OUT, "--video", a->video.at[i], err));
    return 0;
}

static int check_flags(struct iwp_run_job *j, iwp_err *err) {
    struct iwp_run_args *a = &j->args;
    IWP_TRY(iwp_cli_output(a->output, &a->json, err));
    IWP_REQUIRE(a->prompt || !a->json, err, IWP_EINVAL, "--json needs a question, give -p");
    IWP_REQUIRE(!a->prompt || !a->overlay || a->image.n + a->video.n > 0, err, IWP_EINVAL,
                "--overlay: the prompt has no picture to draw on, give --image");
    IWP_TRY(iwp_cli_overlay(a->overlay, err));
    IWP_REQUIRE(a->prompt || !iwp_model_args_raw(&j->model), err, IWP_EINVAL,
                "--chat-template none needs a prompt, give -p");
    if (a->prune_dump) {
        const char *dot = strrchr(a->prune_dump, '.');
        IWP_REQUIRE(dot && (!strcmp(dot, ".json") || !strcmp(dot, ".svg") || !strcmp(dot, ".png")),
                    err, IWP_EINVAL, "--prune-dump: '%.100s' ends in none of .json, .svg, .png",
                    a->prune_dump);
    }
    return iwp_engine_prune(&j->prune_args, &j->prune, &j->use_prune, &j->positions, err);
}

/* Files that are written after the answer: better to know now. */
static int check_outputs(const struct iwp_run_args *a, iwp_err *err) {
    const char *const path[] = {a->overlay, a->dump, a->prune_dump};
    for (size_t i = 0; i < sizeof path / sizeof path[0]; i++)
        if (path[i]) IWP_TRY(iwp_output_check(path[i], err));
    return 0;
}

static int open_all(struct iwp_run_job *j, iwp_err *err) {
    const double t0 = iwp_clock_ms();
    struct iwp_engine_params ep;
    IWP_TRY(iwp_model_args_engine(&j->model, &ep, err));
    ep.embeddings_in_file = j->args.prompt != NULL; /* a chat may outlive the file */
    ep.cancel = interrupted;
    IWP_TRY(iwp_engine_open(&j->e, &ep, err));
    struct iwp_session_params sp = iwp_model_args_session(&j->model);
    sp.positions = j->positions;
    sp.keep_tensors = j->args.dump != NULL;
    if (j->sampling.n_predict > 0 && j->sampling.n_predict < 4096)
        sp.reserve = j->sampling.n_predict;
    IWP_TRY(iwp_session_new(&j->s, j->e, &sp, err));
    const struct iwp_sampler_params pp = iwp_sampling_args_params(&j->sampling);
    IWP_TRY(iwp_sampler_new(&j->sampler, &pp, err));
    j->ms_load = iwp_clock_ms() - t0;
    return 0;
}

int iwp_cmd_run(int argc, char **argv) {
    static struct iwp_run_job j; /* its lists live as long as the process, like argv */
    j = (struct iwp_run_job){.model = IWP_MODEL_ARGS_DEFAULT,
                             .sampling = IWP_SAMPLING_ARGS_DEFAULT,
                             .prune_args = IWP_PRUNE_ARGS_DEFAULT};
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_strings none = {0};
    const struct iwp_opt_group groups[] = {{"question", run_opts, &j.args},
                                           {"model", iwp_model_opts, &j.model},
                                           {"answer", iwp_sampling_opts, &j.sampling},
                                           {"pruning", iwp_prune_opts, &j.prune_args},
                                           {"messages", iwp_log_opts, &log},
                                           {NULL, NULL, NULL}};
    iwp_err err = {0};
    int code = 0;
    int rc = iwp_opts_parse(&command, groups, argc, argv, &none, &err);
    if (rc > 0) goto done;
    if (rc >= 0) rc = check_files(&j, &log, &err);
    if (rc >= 0) rc = iwp_log_args_apply(&log, &err);
    if (rc >= 0) rc = check_flags(&j, &err);
    if (rc < 0) {
        code = iwp_cli_usage("run", &err);
        goto done;
    }
    iwp_on_signal(SIGINT, on_interrupt);
    rc = check_outputs(&j.args, &err);
    if (rc >= 0) iwp_engine_prune_note(&j.prune_args);
    if (rc >= 0 && j.args.prompt && j.args.video.n == 0 && (j.args.frames > 0 || j.args.fps > 0))
        iwp_log(IWP_LOG_INFO, "%s has no effect without --video",
                j.args.frames > 0 ? "--frames" : "--fps");
    if (rc >= 0) rc = open_all(&j, &err);
    if (rc >= 0) {
        if (j.args.prompt)
            rc = once(&j, &err);
        else
            code = iwp_run_chat(&j);
    }
    if (rc < 0)
        code = iwp_cli_fail("run", &err);
    else if (j.args.prompt && iwp_run_interrupts)
        code = IWP_CLI_INTERRUPTED;
done:
    iwp_sampler_free(j.sampler);
    iwp_session_free(j.s);
    iwp_engine_close(j.e);
    iwp_model_args_free(&j.model);
    iwp_prune_args_free(&j.prune_args);
    iwp_strings_free(&none);
    return code;
}
