/* The server from start to end: see server.h. */
#include "server/server.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/signals.h"
#include "server/state.h"

static sem_t signalled;

static void on_signal(int sig) {
    (void)sig;
    sem_post(&signalled);
}

/* Nothing is begun yet, so there is nothing to end: not an interruption, for others end a server like this. */
static void on_early_signal(int sig) {
    (void)sig;
    _exit(0);
}

static bool aborted(void *ctx) { return atomic_load(&((struct iwp_server *)ctx)->abort); }

/* "…/iwp-photo.gguf" is iwp-photo.gguf. */
static char *model_name(const struct iwp_server_params *p) {
    const char *name = p->alias;
    if (!name) {
        const char *slash = strrchr(p->engine.model, '/');
        name = slash ? slash + 1 : p->engine.model;
    }
    return strdup(name);
}

/* A context that holds no message at all. */
static int try_chat(struct iwp_server *s, int32_t ctx, iwp_err *err) {
    const struct iwp_part part = {.kind = IWP_PART_TEXT, .text = "?"};
    const struct iwp_message message = {"user", &part, 1};
    const struct iwp_prompt_request r = {.message = &message, .n_message = 1};
    iwp_prompt *p;
    if (ctx == 0 || iwp_engine_prompt(s->e, &r, &p, NULL) < 0) return 0;
    const int32_t n = iwp_prompt_info(p).n_token;
    iwp_engine_prompt_free(p);
    IWP_REQUIRE(n < ctx, err, IWP_EINVAL, "--ctx-size %d: the shortest message has %d tokens", ctx,
                n);
    return 0;
}

/* A default that no request could follow is told now, not to each of them. */
static int try_defaults(struct iwp_server *s, iwp_err *err) {
    const struct iwp_prompt_request r = {.image_min_tokens = s->p.min_tokens,
                                         .image_max_tokens = s->p.max_tokens,
                                         .image_tiles = s->p.tiles};
    const struct iwp_request_prune *prune = &s->p.def.prune;
    const int32_t ctx = s->p.session.n_ctx;
    int32_t least;
    const int n = iwp_engine_try(s->e, &r, prune->on ? &prune->params : NULL, &least, err);
    IWP_TRY(n);
    IWP_TRY(try_chat(s, ctx, err));
    if (ctx > 0 && least >= ctx)
        iwp_log(IWP_LOG_WARN,
                "--ctx-size %d: a picture has %d visual tokens here at least; requests with one "
                "are refused",
                ctx, least);
    if (prune->on && n > 0 && prune->params.budget.n_keep > n)
        iwp_log(IWP_LOG_WARN,
                "--keep-tokens %d: a picture has %d visual tokens here at most; requests with "
                "fewer than %d are refused",
                prune->params.budget.n_keep, n, prune->params.budget.n_keep);
    return 0;
}

static int load(struct iwp_server *s, iwp_err *err) {
    const double t0 = iwp_clock_ms();
    s->p.session.split_media = true;
    IWP_TRY(iwp_engine_open(&s->e, &s->p.engine, err));
    iwp_engine_set_cancel(s->e, aborted, s);
    s->info = iwp_engine_info(s->e);
    s->p.def.n_layer = s->info.n_layer;
    IWP_TRY(try_defaults(s, err));
    for (int32_t i = 0; i < s->p.n_parallel; i++)
        IWP_TRY(iwp_session_new(&s->session[i], s->e, &s->p.session, err));
    struct iwp_json_out models, props;
    iwp_json_init(&models, false);
    iwp_json_init(&props, false);
    iwp_reply_models(&models, s);
    iwp_reply_props(&props, s);
    s->models_json = models.text;
    s->props_json = props.text;
    IWP_REQUIRE(!models.failed && !props.failed, err, IWP_ENOMEM, "out of memory");
    iwp_log(IWP_LOG_INFO, "%s is ready after %.0f ms: %d layers, %d session%s", s->name,
            iwp_clock_ms() - t0, s->info.n_layer, s->p.n_parallel, s->p.n_parallel > 1 ? "s" : "");
    return 0;
}

static void set_state(struct iwp_server *s, int state) {
    pthread_mutex_lock(&s->lock);
    s->state = state;
    pthread_mutex_unlock(&s->lock);
}

static bool idle(struct iwp_server *s) {
    pthread_mutex_lock(&s->lock);
    const bool yes = s->n_waiting == 0 && s->n_running == 0;
    pthread_mutex_unlock(&s->lock);
    return yes;
}

static void join_prepare(struct iwp_server *s) {
    for (int32_t i = 0; i < s->n_prepare; i++) pthread_join(s->prepare[i], NULL);
    s->n_prepare = 0;
}

/* One large picture should not hold up the next request; fetching waits for others, so with it more. */
static int start_threads(struct iwp_server *s, iwp_err *err) {
    IWP_REQUIRE(pthread_create(&s->worker, NULL, iwp_worker_main, s) == 0, err, IWP_EIO,
                "cannot start a thread");
    const int32_t n = s->p.remote_images ? IWP_PREPARE_MAX : IWP_PREPARE_MIN;
    while (s->n_prepare < n &&
           pthread_create(&s->prepare[s->n_prepare], NULL, iwp_prepare_main, s) == 0)
        s->n_prepare++;
    if (s->n_prepare > 0) return 0;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->worker, NULL);
    return iwp_err_set(err, IWP_EIO, "cannot start a thread");
}

/* Waits for a signal; then no new requests, and what runs may end in time.  A second signal hurries. */
static void serve(struct iwp_server *s) {
    while (sem_wait(&signalled) != 0 && errno == EINTR) {
    }
    set_state(s, IWP_SERVER_DRAINING); /* connections are still taken, to be told so */
    iwp_log(IWP_LOG_INFO, "shutting down: running requests have %d s", s->p.shutdown_s);
    const double end = iwp_clock_ms() + 1e3 * s->p.shutdown_s;
    while (!idle(s) && iwp_clock_ms() < end && sem_trywait(&signalled) != 0) iwp_server_sleep(20);
    if (!idle(s)) atomic_store(&s->abort, true);
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->wake_prepare);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    join_prepare(s);
    pthread_mutex_lock(&s->lock);
    pthread_cond_signal(&s->wake); /* nothing more will come */
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->worker, NULL);
}

static int run(struct iwp_server *s, iwp_err *err) {
    if (s->p.media_path) {
        char *real = realpath(s->p.media_path, NULL);
        IWP_REQUIRE(real, err, IWP_EINVAL, "--media-path %.200s: %s", s->p.media_path,
                    strerror(errno));
        s->p.def.media_path = real;
        struct stat st;
        IWP_REQUIRE(stat(real, &st) == 0 && S_ISDIR(st.st_mode), err, IWP_EINVAL,
                    "--media-path %.200s: not a folder", s->p.media_path);
    }
    if (s->p.remote_images) {
        IWP_REQUIRE(iwp_fetch_built(), err, IWP_EINVAL,
                    "--allow-remote-images: this build has no libcurl");
        s->fetch = (struct iwp_fetch){.max_bytes = (size_t)s->p.remote_mib << 20,
                                      .timeout_s = s->p.remote_s,
                                      .domain = s->p.media_domain,
                                      .n_domain = s->p.n_media_domain,
                                      .max_redirects = 3};
        s->p.def.fetch = &s->fetch;
    }
    s->name = model_name(&s->p);
    IWP_REQUIRE(s->name, err, IWP_ENOMEM, "out of memory");
    IWP_TRY(iwp_http_start(s, err)); /* before loading: health says 503 until the model is there */
    IWP_TRY(load(s, err));
    iwp_on_end(on_signal);
    IWP_TRY(start_threads(s, err));
    set_state(s, IWP_SERVER_READY);
    serve(s);
    return 0;
}

int iwp_server_run(const struct iwp_server_params *p, iwp_err *err) {
    struct iwp_server *s = calloc(1, sizeof *s);
    IWP_REQUIRE(s, err, IWP_ENOMEM, "out of memory");
    s->p = *p;
    s->started = time(NULL);
    if (s->p.n_parallel > IWP_SERVER_MAX_SLOT) s->p.n_parallel = IWP_SERVER_MAX_SLOT;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->wake_prepare, NULL);
    sem_init(&signalled, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    iwp_on_end(on_early_signal);
    int rc = run(s, err);
    iwp_http_stop(s);
    for (int32_t i = 0; i < s->p.n_parallel; i++) iwp_session_free(s->session[i]);
    iwp_engine_close(s->e);
    free(s->models_json);
    free(s->props_json);
    free((char *)(uintptr_t)s->p.def.media_path);
    free(s->name);
    iwp_stored_free(s);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->wake_prepare);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return rc;
}
