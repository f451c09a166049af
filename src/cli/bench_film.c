/* `iwp bench film`: frames out of a film, timed in three parts: opening (one pass over the packets),
 * hashing (what the cache of encoded frames asks first) and decoding to RGB.  No model. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/err.h"
#include "cli/bench_json.h"
#include "cli/cmd.h"
#include "media/film.h"
#include "media/sampling.h"

enum { MAX_RUNS = 100 };

struct args {
    int32_t frames, repeats, output, threads;
    double fps;
    bool count;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt bench_opts[] = {
    {"--frames", "N", IWP_OPT_INT, AT(frames), 1, 4096, NULL,
     "frames to take, spread evenly (default 32)"},
    {"--fps", "F", IWP_OPT_REAL, AT(fps), 0.001, 1000, NULL, "or that many a second"},
    {"--count", NULL, IWP_OPT_FLAG, AT(count), 0, 0, NULL,
     "without the index: decode from the start and count"},
    {"-r, --repeats", "N", IWP_OPT_INT, AT(repeats), 1, MAX_RUNS, NULL,
     "runs per film (default 1)"},
    {"-t, --threads", "N", IWP_OPT_INT, AT(threads), 1, 64, NULL,
     "of the decoder (default: one a CPU, at most 4)"},
    {"-o, --output", "FORMAT", IWP_OPT_CHOICE, AT(output), 0, 0, "md|json|csv",
     "md (default), json or csv"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp bench film lecture.mp4 --frames 32", "32 frames of a film", "scripts/bench-film",
    "the same beside the ffmpeg program, on an hour of 1080p", NULL};

static const struct iwp_command command = {
    .name = "bench film",
    .usage = "FILE... [options]",
    .about =
        "Times reading frames of films: opening with its one pass over the packets, hashing the "
        "packets that are needed, decoding to RGB. Medians over the repeats.",
    .examples = examples,
    .min_args = 1,
    .max_args = 1000,
    .args_name = "FILE",
};

struct row {
    const char *file;
    struct iwp_film_info in;
    char codec[32];
    int32_t n;
    double open_ms, hash_ms, decode_ms;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *t, int32_t n) {
    qsort(t, (size_t)n, sizeof *t, by_value);
    return t[n / 2];
}

static int read_once(const struct args *a, struct row *r, double ms[3], iwp_err *err) {
    const struct iwp_film_params p = {.n_thread = a->threads, .count = a->count};
    const struct iwp_sampling s = {.frames = a->frames, .fps = a->fps};
    struct iwp_film *f;
    struct iwp_image im;
    uint8_t sha[32];
    int32_t *index = NULL;
    int rc;
    const double t0 = iwp_clock_ms();
    IWP_TRY(iwp_film_open(&f, r->file, &p, err));
    const double t1 = iwp_clock_ms();
    r->in = iwp_film_info(f);
    snprintf(r->codec, sizeof r->codec, "%s", r->in.codec);
    r->n = iwp_sampling_count(&s, r->in.n_frame, r->in.fps);
    index = malloc((size_t)r->n * sizeof *index);
    if (!index) IWP_FAIL(err, IWP_ENOMEM, "out of memory for %d frames", r->n);
    iwp_sampling_choose(&s, r->in.n_frame, r->n, index);
    IWP_TRY_GOTO(iwp_film_choose(f, index, r->n, err));
    IWP_TRY_GOTO(iwp_film_hash(f, sha, err));
    const double t2 = iwp_clock_ms();
    while ((rc = iwp_film_next(f, &im, err)) > 0) iwp_image_free(&im);
    if (rc < 0) goto fail;
    ms[0] = t1 - t0;
    ms[1] = t2 - t1;
    ms[2] = iwp_clock_ms() - t2;
fail:
    free(index);
    iwp_film_close(f);
    return rc;
}

static int measure(const struct args *a, struct row *r, iwp_err *err) {
    static double t[3][MAX_RUNS];
    for (int32_t i = 0; i < a->repeats; i++) {
        double ms[3] = {0};
        IWP_TRY(read_once(a, r, ms, err));
        for (int k = 0; k < 3; k++) t[k][i] = ms[k];
    }
    r->open_ms = median(t[0], a->repeats);
    r->hash_ms = median(t[1], a->repeats);
    r->decode_ms = median(t[2], a->repeats);
    return 0;
}

static int64_t peak_rss(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0;
}

static void print_head(const struct args *a, struct iwp_json_out *j) {
    if (a->output == 1) {
        iwp_json_open_object(j, NULL);
        iwp_json_open_array(j, "rows");
        iwp_bench_json_keep(j);
    } else if (a->output == 2) {
        puts("file,codec,width,height,total,frames,seconds,counted,open_ms,hash_ms,decode_ms,"
             "peak_rss_bytes");
    } else {
        puts("| film                     | codec | size      |  total | frames |    open ms |    "
             "hash ms "
             "|  decode ms | ms/frame | peak MB |");
        puts("|--------------------------|-------|-----------|-------:|-------:|-----------:|------"
             "----"
             "-:|-----------:|---------:|--------:|");
    }
}

static void print_row(const struct args *a, struct iwp_json_out *j, const struct row *r) {
    const struct iwp_film_info *in = &r->in;
    if (a->output == 1) {
        iwp_json_open_object(j, NULL);
        iwp_json_put_string(j, "file", r->file);
        iwp_json_put_string(j, "codec", r->codec);
        iwp_json_put_int(j, "width", in->w);
        iwp_json_put_int(j, "height", in->h);
        iwp_json_put_int(j, "total", in->n_frame);
        iwp_json_put_int(j, "frames", r->n);
        iwp_json_put_f64(j, "seconds", in->seconds);
        iwp_json_put_bool(j, "counted", in->counted);
        iwp_json_put_ms(j, "open_ms", r->open_ms);
        iwp_json_put_ms(j, "hash_ms", r->hash_ms);
        iwp_json_put_ms(j, "decode_ms", r->decode_ms);
        iwp_json_put_int(j, "peak_rss_bytes", peak_rss());
        iwp_json_close_object(j);
        iwp_bench_json_keep(j);
        return;
    }
    if (a->output == 2) {
        printf("%s,%s,%d,%d,%d,%d,%.3f,%d,%.3f,%.3f,%.3f,%lld\n", r->file, r->codec, in->w, in->h,
               in->n_frame, r->n, in->seconds, in->counted, r->open_ms, r->hash_ms, r->decode_ms,
               (long long)peak_rss());
        return;
    }
    const char *slash = strrchr(r->file, '/');
    char size[24];
    snprintf(size, sizeof size, "%dx%d", in->w, in->h);
    printf("| %-24.24s | %-5.5s | %-9s | %6d | %6d | %10.1f | %10.1f | %10.1f | %8.2f | %7.0f |\n",
           slash ? slash + 1 : r->file, r->codec, size, in->n_frame, r->n, r->open_ms, r->hash_ms,
           r->decode_ms, r->decode_ms / r->n, (double)peak_rss() / 1e6);
}

int iwp_bench_film(int argc, char **argv) {
    struct args a = {.repeats = 1};
    struct iwp_log_args log = IWP_LOG_ARGS_DEFAULT;
    struct iwp_opt_group groups[] = {
        {"what", bench_opts, &a}, {"logging", iwp_log_opts, &log}, {NULL, NULL, NULL}};
    struct iwp_strings files = {0};
    struct iwp_json_out json;
    iwp_err err;
    iwp_json_init(&json, true);
    int rc = iwp_opts_parse(&command, groups, argc, argv, &files, &err);
    if (rc > 0) {
        rc = 0; /* --help */
    } else if (rc < 0 || iwp_log_args_apply(&log, &err) < 0) {
        rc = iwp_cli_usage(command.name, &err);
    } else {
        for (int32_t i = 0; i < files.n && rc >= 0; i++) {
            struct row r = {.file = files.at[i]};
            rc = measure(&a, &r, &err);
            if (rc < 0) break;
            if (i == 0) print_head(&a, &json);
            print_row(&a, &json, &r);
            fflush(stdout);
        }
        if (rc >= 0 && a.output == 1) rc = iwp_bench_json_end(&json, &err);
        if (rc < 0) rc = iwp_cli_fail(command.name, &err);
    }
    iwp_json_free(&json);
    iwp_strings_free(&files);
    return rc;
}
