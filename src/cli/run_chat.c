/* The chat of `iwp run`: turns from stdin, commands that begin with a slash.  Every turn is a whole
 * prompt again; the session runs only what is new and, unless --reselect off, selects anew for the new
 * question.  Pictures are encoded once (cache of the prompter). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "cli/run.h"

/* Texts and messages of the conversation; everything is owned here. */
struct chat {
    struct iwp_run_job *j;
    struct iwp_message *message;
    int32_t n_message, cap_message;
    struct iwp_part *pending; /* media that wait for the next question */
    int32_t n_pending;
};

static char *copy(const char *s) {
    size_t n = strlen(s) + 1;
    char *p = malloc(n);
    if (p) memcpy(p, s, n);
    return p;
}

static void free_part(const struct iwp_part *p) {
    free((void *)(uintptr_t)p->text);
    free((void *)(uintptr_t)p->file);
}

static void clear(struct chat *c) {
    for (int32_t i = 0; i < c->n_message; i++) {
        for (int32_t k = 0; k < c->message[i].n_part; k++) free_part(&c->message[i].part[k]);
        free((void *)(uintptr_t)c->message[i].part);
    }
    for (int32_t i = 0; i < c->n_pending; i++) free_part(&c->pending[i]);
    free(c->pending);
    c->pending = NULL;
    c->n_message = c->n_pending = 0;
}

static int add_pending(struct chat *c, enum iwp_part_kind kind, const char *text, iwp_err *err) {
    struct iwp_part *p = realloc(c->pending, (size_t)(c->n_pending + 1) * sizeof *p);
    IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
    c->pending = p;
    struct iwp_part *q = &p[c->n_pending];
    memset(q, 0, sizeof *q);
    q->kind = kind;
    char *t = copy(text);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    if (kind == IWP_PART_TEXT)
        q->text = t;
    else
        q->file = t;
    c->n_pending++;
    return 0;
}

/* The pending parts become a message. */
static int say(struct chat *c, const char *role, iwp_err *err) {
    if (c->n_message == c->cap_message) {
        int32_t cap = c->cap_message ? 2 * c->cap_message : 16;
        struct iwp_message *m = realloc(c->message, (size_t)cap * sizeof *m);
        IWP_REQUIRE(m, err, IWP_ENOMEM, "out of memory");
        c->message = m;
        c->cap_message = cap;
    }
    c->message[c->n_message++] = (struct iwp_message){role, c->pending, c->n_pending};
    c->pending = NULL;
    c->n_pending = 0;
    return 0;
}

/* The last message is taken back, its text is gone.  Its media wait again, unless they may be why it failed. */
static void unsay(struct chat *c, bool keep_media) {
    struct iwp_message *m = &c->message[--c->n_message];
    struct iwp_part *p = (struct iwp_part *)(uintptr_t)m->part;
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_part; i++) {
        if (p[i].kind == IWP_PART_TEXT || !keep_media)
            free_part(&p[i]);
        else
            p[n++] = p[i];
    }
    c->pending = p;
    c->n_pending = n;
}

static int open_chat(struct chat *c, iwp_err *err) {
    const struct iwp_run_args *a = &c->j->args;
    if (a->system) {
        IWP_TRY(add_pending(c, IWP_PART_TEXT, a->system, err));
        IWP_TRY(say(c, "system", err));
    }
    return 0;
}

static int turn(struct chat *c, const char *line, iwp_err *err) {
    IWP_TRY(add_pending(c, IWP_PART_TEXT, line, err));
    IWP_TRY(say(c, "user", err));
    struct iwp_prompt_request r;
    memset(&r, 0, sizeof r);
    r.message = c->message;
    r.n_message = c->n_message;
    struct iwp_run_result res;
    iwp_run_interrupts = 0;
    int rc = iwp_run_answer(c->j, &r, true, &res, err);
    if (rc >= 0) {
        iwp_run_summary(c->j, &res);
        rc = add_pending(c, IWP_PART_TEXT, res.answer.text, err);
        if (rc >= 0) rc = say(c, "assistant", err);
        if (rc >= 0 && (c->j->args.overlay || c->j->args.prune_dump))
            rc = iwp_run_draw(c->j, &res, err);
    } else {
        unsay(c, rc == IWP_ECANCELLED || rc == IWP_EINVAL); /* the latter: a budget out of reach */
    }
    iwp_run_result_free(&res);
    return rc;
}

static int set_prune(struct chat *c, const char *method, const char *keep, iwp_err *err) {
    struct iwp_prune_args a = c->j->prune_args;
    if (method) {
        a.method = method;
        memset(&a.opt, 0, sizeof a.opt); /* options belong to the method they were given for */
    }
    if (keep) {
        char *end;
        long n = strtol(keep, &end, 10);
        if (!*end && n > 1) { /* a count */
            IWP_REQUIRE(n <= 1 << 30, err, IWP_EINVAL, "/keep: '%.30s' is too many", keep);
            a.keep = 0;
            a.keep_tokens = (int32_t)n;
        } else {
            if (iwp_keep_parse(keep, &a.keep, err) < 0)
                return iwp_err_set(err, IWP_EINVAL,
                                   "/keep needs a fraction (22.2%%) or a count, not '%.30s'", keep);
            a.keep_tokens = 0;
        }
    }
    struct iwp_params p;
    bool use;
    enum iwp_positions pos;
    IWP_TRY(iwp_engine_prune(&a, &p, &use, &pos, err));
    if (method)
        a.method = use ? iwp_method_info(p.method)->name : "none"; /* the line is not ours */
    a.opt = c->j->prune_args.opt;
    if (method) a.opt.n = 0;
    c->j->prune_args = a;
    c->j->prune = p;
    c->j->use_prune = use;
    return 0;
}

static const char commands[] =
    "/image FILE  /video FILE|DIR  /prune METHOD|none  /keep R|N  /clear  /quit";

/* 1: leave.  Errors are told and the chat goes on. */
static int command(struct chat *c, char *line, iwp_err *err) {
    char *arg = line + strcspn(line, " \t");
    if (*arg) *arg++ = 0;
    while (*arg == ' ' || *arg == '\t') arg++;
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit")) return 1;
    if (!strcmp(line, "/help")) {
        iwp_log(IWP_LOG_INFO, "%s", commands);
        return 0;
    }
    if (!strcmp(line, "/clear")) {
        clear(c);
        return open_chat(c, err);
    }
    const bool image = !strcmp(line, "/image"), video = !strcmp(line, "/video");
    if (image || video) {
        IWP_REQUIRE(*arg, err, IWP_EINVAL, "%s needs a file", line);
        IWP_REQUIRE(access(arg, R_OK) == 0, err, IWP_EIO, "%.200s: no such file", arg);
        IWP_TRY(add_pending(c, image ? IWP_PART_IMAGE : IWP_PART_VIDEO, arg, err));
        iwp_log(IWP_LOG_INFO, "%s goes with the next question", arg);
        return 0;
    }
    if (!strcmp(line, "/prune")) {
        IWP_REQUIRE(*arg, err, IWP_EINVAL, "/prune needs a method or none, see `iwp methods`");
        return set_prune(c, arg, NULL, err);
    }
    if (!strcmp(line, "/keep")) {
        IWP_REQUIRE(*arg, err, IWP_EINVAL, "/keep needs a fraction (22.2%%) or a count");
        return set_prune(c, NULL, arg, err);
    }
    return iwp_err_set(err, IWP_EINVAL, "unknown command %.40s; known: %s", line, commands);
}

/* A line without its end; NULL at the end of input.  *cap and *line as for getline. */
static char *read_line(char **line, size_t *cap) {
    ssize_t n = getline(line, cap, stdin);
    if (n < 0) return NULL;
    while (n > 0 && ((*line)[n - 1] == '\n' || (*line)[n - 1] == '\r')) (*line)[--n] = 0;
    return *line;
}

int iwp_run_chat(struct iwp_run_job *j) {
    struct chat c = {.j = j};
    const bool terminal = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t cap = 0;
    int last = 0; /* how the last question ended, which is how a script's chat ends */
    int code = 0, rc;
    iwp_err err = {0};
    rc = open_chat(&c, &err);
    for (int32_t i = 0; rc >= 0 && i < j->args.image.n; i++)
        rc = add_pending(&c, IWP_PART_IMAGE, j->args.image.at[i], &err);
    for (int32_t i = 0; rc >= 0 && i < j->args.video.n; i++)
        rc = add_pending(&c, IWP_PART_VIDEO, j->args.video.at[i], &err);
    if (rc < 0) code = iwp_cli_fail("run", &err);
    if (terminal) iwp_log(IWP_LOG_INFO, "%s", commands);
    while (code == 0) {
        if (terminal) {
            fputs("> ", stderr);
            fflush(stderr);
        }
        if (!read_line(&line, &cap)) {
            if (terminal) fputc('\n', stderr); /* the shell's prompt gets its own line */
            code = iwp_run_interrupts ? IWP_CLI_INTERRUPTED : terminal ? 0 : last;
            break;
        }
        if (!*line) continue;
        const bool question = *line != '/';
        rc = question ? turn(&c, line, &err) : command(&c, line, &err);
        if (rc > 0) break;
        const int failed = rc < 0 && rc != IWP_ECANCELLED ? iwp_cli_fail("run", &err) : 0;
        if (rc == IWP_ECANCELLED) fputc('\n', stdout);
        if (question) last = failed;
        if (rc == IWP_ENOMEM || rc == IWP_EINTERNAL) code = IWP_CLI_FAILURE;
        iwp_run_interrupts = 0;
    }
    clear(&c);
    free(c.message);
    free(line);
    return code;
}
