/* The same bits on every CPU path and thread count.  IWP_CPU is read once per process, so the program
 * runs itself again for each path with `--stream`, which prints one hash per case (kept tokens, merges
 * and scores), and compares the streams.  Inside each stream, 1, 2 and 3 threads and no executor at
 * all must agree.  Every method of the table that needs only arrays takes part. */
#include "prune_case.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"

static uint64_t mix(uint64_t h, const void *p, size_t n) {
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3ULL;
    return h;
}

static uint64_t hash_all(const struct chosen *c, int n_visual) {
    uint64_t h = 0xcbf29ce484222325ULL;
    h = mix(h, &c->rc, sizeof c->rc);
    if (c->rc) return h;
    uint64_t keep = iwp_keep_hash(c->s.keep, c->s.n_keep);
    h = mix(h, &keep, sizeof keep);
    h = mix(h, c->s.scores, 4 * (size_t)n_visual);
    h = mix(h, &c->s.n_merge, sizeof c->s.n_merge);
    for (int i = 0; i < c->s.n_merge; i++) {
        h = mix(h, &c->s.merge[i].from, 4);
        h = mix(h, &c->s.merge[i].to, 4);
        h = mix(h, &c->s.merge[i].weight, 4);
    }
    return h;
}

/* Prints the hashes; returns how many cases depended on the threads. */
static int stream(int n_case, FILE *out) {
    uint64_t seed = 99;
    iwp_pool *pool[2];
    iwp_err err;
    int bad = 0, ok = 0;
    for (int i = 0; i < 2; i++)
        if (iwp_pool_new(&pool[i], i + 2, &err) < 0) return 1;
    for (int i = 0; i < n_case; i++) {
        struct prompt_shape s = random_shape(&seed, 100);
        struct ref_options o;
        char text[600];
        random_options(&seed, &o, text, sizeof text);
        if (i % 50 == 0) s.n_visual = 700; /* several chunks of rows, many panels */
        int method = i % 4 == 3 ? (int)(test_rand(&seed) % (uint64_t)iwp_method_count()) : -1;
        const struct iwp_method *m = method < 0 ? iwp_method_find("iwp") : iwp_method_at(method);
        if (iwp_method_info(m)->flags & IWP_METHOD_ENGINE_ONLY) continue;
        struct iwp_params p;
        iwp_params_default(&p, m);
        if (method < 0 && iwp_params_parse(&p, text, &err) < 0) return 1;
        p.budget.keep = ONE_OF(&seed, 11, 22, 35, 60) / 100.0;
        struct prompt c;
        prompt_make(&c, &s, (enum iwp_dtype)ONE_OF(&seed, 0, 0, 1, 2), &seed);
        c.pad = ONE_OF(&seed, 0, 1, 7);
        prompt_fill(&c, NULL);
        c.in.arr[IWP_TENSOR_H_PREV] = c.in.arr[IWP_TENSOR_H];
        c.in.arr[IWP_TENSOR_Q_ROPE_PREV] = c.in.arr[IWP_TENSOR_Q_ROPE];
        c.in.arr[IWP_TENSOR_K_ROPE_PREV] = c.in.arr[IWP_TENSOR_K_ROPE];
        c.in.arr[IWP_TENSOR_EMBEDS] = c.in.arr[IWP_TENSOR_H];
        uint64_t h[4];
        for (int t = 0; t < 4; t++) { /* no executor, 1, 2, 3 threads */
            struct iwp_exec e = {iwp_pool_run, t > 1 ? pool[t - 2] : NULL, t};
            struct chosen r = choose(&p, &c.in, t ? &e : NULL);
            h[t] = hash_all(&r, c.n_visual);
            ok += r.rc == 0;
            if (h[t] != h[0]) {
                fprintf(stderr, "%s: %d threads differ, N %d [%s]\n", iwp_method_info(m)->name, t,
                        c.n_visual, text);
                bad++;
            }
            chosen_free(&r);
        }
        fprintf(out, "%d %s %016llx\n", i, iwp_method_info(m)->name, (unsigned long long)h[0]);
        prompt_free(&c);
    }
    fprintf(out, "%d selections\n", ok);
    iwp_pool_free(pool[0]);
    iwp_pool_free(pool[1]);
    return bad;
}

/* The stream of one path, as text; NULL when the CPU lacks it. */
static char *stream_of(const char *self, const char *path, const char *n_case) {
    int fd[2];
    if (pipe(fd) != 0) return NULL;
    pid_t pid = fork();
    if (pid == 0) {
        setenv("IWP_CPU", path, 1);
        dup2(fd[1], STDOUT_FILENO);
        close(fd[0]);
        close(fd[1]);
        execl(self, self, "--stream", n_case, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    size_t n = 0, cap = 1 << 16;
    char *text = malloc(cap);
    for (ssize_t got; (got = read(fd[0], text + n, cap - n - 1)) > 0;) {
        n += (size_t)got;
        if (cap - n < 4096) text = realloc(text, cap *= 2);
    }
    close(fd[0]);
    text[n] = 0;
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3) {
        free(text);
        return NULL;
    }
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "path %s: status %d", path, status);
    return text;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--stream") == 0) {
        iwp_err err;
        if (iwp_cpu_check(&err) < 0) return 3;
        return stream(argc > 2 ? atoi(argv[2]) : 100, stdout) != 0;
    }
    const char *n_case = argc > 1 ? argv[1] : "2000";
    char *want = stream_of("/proc/self/exe", "c", n_case);
    CHECK(want && strlen(want) > 100);
    static const char *const paths[] = {"avx2", "avx512", "neon"};
    for (int i = 0; want && i < 3; i++) {
        char *got = stream_of("/proc/self/exe", paths[i], n_case);
        fprintf(stderr, "path %s: %s\n", paths[i], got ? "compared" : "not on this CPU");
        if (!got) continue;
        CHECK_INT(strlen(got), strlen(want));
        int line = 0;
        for (char *a = want, *b = got; *a && *b; line++) {
            size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
            CHECK_MSG(n == m && memcmp(a, b, n) == 0, "line %d: c '%.*s', %s '%.*s'", line, (int)n,
                      a, paths[i], (int)m, b);
            a += n + (a[n] != 0);
            b += m + (b[m] != 0);
        }
        CHECK(line > 50);
        free(got);
    }
    free(want);
    return test_done();
}
