/* `iwp bench machine`: what the cores can do at most, so that every other figure can be read as a share
 * of the limit.  One thread, then all of them at once; the best of several tries counts, because a limit
 * is what is sought. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/err.h"
#include "cli/bench_json.h"
#include "cli/cmd.h"
#include "kern/cpu.h"
#include "kern/peak.h"

enum { MAX_THREAD = IWP_POOL_MAX };

struct args {
    int32_t threads, megabytes, output;
    double seconds;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt bench_opts[] = {
    {"-t, --threads", "N", IWP_OPT_INT, AT(threads), 1, MAX_THREAD, NULL,
     "threads beside the single one (default: all CPUs)"},
    {"--seconds", "S", IWP_OPT_REAL, AT(seconds), 0.01, 60, NULL, "time per figure (default 0.5)"},
    {"--megabytes", "N", IWP_OPT_INT, AT(megabytes), 1, 1 << 20, NULL,
     "memory read, more than the caches hold (default 1024)"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(output), 0, 0, "md|json|csv",
     "md (default), json or csv"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {"iwp bench machine", "all limits", "iwp bench machine -t 8",
                                       "one thread and eight", NULL};

static const struct iwp_command command = {
    .name = "bench machine",
    .usage = "[options]",
    .about = "Measures the CPU's limits: multiply-adds of every instruction set it has (whatever "
             "IWP_CPU hides from the rest), in GFLOP/s (GOP/s for int8; a multiply-add counts "
             "two), and the rate of reading memory.",
    .examples = examples,
};

struct job {
    enum iwp_peak what;
    double until; /* clock, ms */
    const uint8_t *memory;
    size_t bytes; /* per thread; 0: instructions */
    double rate[MAX_THREAD];
    volatile uint64_t seen[MAX_THREAD];
};

/* One thread's share; tries of some 20 ms until the time is over. */
static void work(void *arg, int32_t i) {
    struct job *j = arg;
    int64_t n = 20000;
    j->rate[i] = 0;
    for (;;) {
        double t0 = iwp_clock_ms(), done = (double)j->bytes;
        if (j->bytes)
            j->seen[i] = iwp_peak_read(j->memory + (size_t)i * j->bytes, j->bytes);
        else
            done = iwp_peak_run(j->what, n);
        double t1 = iwp_clock_ms();
        if (done == 0) return;
        if (!j->bytes && t1 - t0 < 10) {
            n *= 2;
            continue;
        }
        const double rate = done / ((t1 - t0) * 1e6);
        if (rate > j->rate[i]) j->rate[i] = rate;
        if (t1 >= j->until) return;
    }
}

static double measure(struct job *j, iwp_pool *pool, int32_t threads, double seconds) {
    double sum = 0;
    j->until = iwp_clock_ms() + seconds * 1e3;
    iwp_pool_run(pool, work, j, threads);
    for (int32_t i = 0; i < threads; i++) sum += j->rate[i];
    return sum;
}

static void print_row(const struct args *a, struct iwp_json_out *j, const char *what,
                      const char *unit, double one, double all, int32_t threads) {
    if (a->output == 1) {
        iwp_json_open_object(j, NULL);
        iwp_json_put_string(j, "what", what);
        iwp_json_put_string(j, "unit", unit);
        iwp_json_put_f64(j, "one_thread", one);
        iwp_json_put_f64(j, "all_threads", all);
        iwp_json_close_object(j);
        iwp_bench_json_keep(j);
    } else if (a->output == 2) {
        printf("%s,%s,%.1f,%d,%.1f\n", what, unit, one, threads, all);
    } else {
        printf("| %-12s | %-8s | %10.1f | %10.1f |\n", what, unit, one, all);
    }
    fflush(stdout);
}

static bool integers(enum iwp_peak what) {
    return what == IWP_PEAK_VNNI || what == IWP_PEAK_AMX_INT8;
}

static int run(const struct args *a, struct iwp_json_out *j, iwp_err *err) {
    iwp_pool *pool = NULL;
    struct iwp_exec exec;
    struct job *job = calloc(1, sizeof *job);
    const size_t bytes = (size_t)a->megabytes << 20;
    uint8_t *memory = malloc(bytes);
    int rc = 0;
    if (a->threads > iwp_cpu_count())
        IWP_FAIL(err, IWP_EINVAL, "-t %d: %d CPUs can be used, and that is the limit", a->threads,
                 iwp_cpu_count());
    if (!job || !memory) IWP_FAIL(err, IWP_ENOMEM, "out of memory for %d MB", a->megabytes);
    IWP_TRY_GOTO(iwp_cli_exec(&pool, a->threads, &exec, err));
    const int32_t n = exec.n_thread;
    if (a->output == 1) {
        iwp_json_open_object(j, NULL);
        iwp_json_put_string(j, "cpu", iwp_cli_cpu(iwp_cpu_features_all()));
        iwp_json_put_int(j, "threads", n);
        iwp_json_open_array(j, "rows");
        iwp_bench_json_keep(j);
    } else if (a->output == 2) {
        puts("what,unit,one_thread,threads,all_threads");
    } else {
        printf("| limit        | unit     | one thread | %2d threads |\n", n);
        puts("|--------------|----------|-----------:|-----------:|");
    }
    for (int w = 0; w < IWP_PEAK_COUNT; w++) {
        job->what = (enum iwp_peak)w;
        const double one = measure(job, pool, 1, a->seconds);
        if (one > 0)
            print_row(a, j, iwp_peak_name(job->what), integers(job->what) ? "GOP/s" : "GFLOP/s",
                      one, measure(job, pool, n, a->seconds), n);
    }
    memset(memory, 1, bytes);
    job->memory = memory;
    job->bytes = bytes & ~(size_t)63;
    const double one = measure(job, pool, 1, a->seconds);
    job->bytes = (bytes / (size_t)n) & ~(size_t)63;
    print_row(a, j, "memory read", "GB/s", one, measure(job, pool, n, a->seconds), n);
    if (a->output == 1) rc = iwp_bench_json_end(j, err);
fail:
    iwp_pool_free(pool);
    free(memory);
    free(job);
    return rc;
}

int iwp_bench_machine(int argc, char **argv) {
    struct args a = {.megabytes = 1024, .seconds = 0.5};
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_opt_group groups[] = {
        {"what", bench_opts, &a}, {"logging", iwp_log_opts, &log}, {NULL, NULL, NULL}};
    struct iwp_strings rest = {0};
    struct iwp_json_out json;
    iwp_err err;
    iwp_json_init(&json, true);
    int rc = iwp_opts_parse(&command, groups, argc, argv, &rest, &err);
    if (rc > 0)
        rc = 0; /* --help */
    else if (rc < 0 || iwp_log_args_apply(&log, &err) < 0)
        rc = iwp_cli_usage(command.name, &err);
    else if ((rc = run(&a, &json, &err)) < 0)
        rc = iwp_cli_fail(command.name, &err);
    iwp_json_free(&json);
    iwp_strings_free(&rest);
    return rc;
}
