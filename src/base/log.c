/* Log and progress meter: see log.h. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"

static struct {
    pthread_mutex_t lock;
    int level;
    enum iwp_log_colors colors;
    bool timestamps, meter_shown;
    FILE *file;
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = IWP_LOG_INFO};

enum { TERMINAL_MS = 100, PLAIN_MS = 5000 }; /* between two looks of the meter */

/* A terminal that knows escape sequences. */
static bool terminal(void) {
    const char *term = getenv("TERM");
    return isatty(2) && term && strcmp(term, "dumb") != 0;
}

static bool colored(void) {
    if (sink.colors != IWP_LOG_COLORS_AUTO) return sink.colors == IWP_LOG_COLORS_ON;
    return !getenv("NO_COLOR") && terminal();
}

static void clear_meter(void) {
    if (sink.meter_shown) fputs("\r\033[K", stderr);
    sink.meter_shown = false;
}

void iwp_log(enum iwp_log_level level, const char *fmt, ...) {
    bool to_stderr = level == IWP_LOG_ERROR || (int)level <= sink.level;
    if (!to_stderr && !sink.file) return;
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    for (unsigned char *p = (unsigned char *)line; *p; p++)
        if (*p < 0x20 || *p == 0x7f) *p = '?';
    char stamp[32] = "";
    if (sink.timestamps) snprintf(stamp, sizeof stamp, "%.3f ", iwp_clock_ms() / 1e3);
    static const char *const color[] = {"", "\033[31m", "\033[33m", "", "\033[2m"};
    pthread_mutex_lock(&sink.lock);
    if (to_stderr) {
        bool c = *color[level] && colored();
        clear_meter();
        fprintf(stderr, "%s%s%s%s\n", c ? color[level] : "", stamp, line, c ? "\033[0m" : "");
    }
    if (sink.file) {
        fprintf(sink.file, "%s%s\n", stamp, line);
        fflush(sink.file);
    }
    pthread_mutex_unlock(&sink.lock);
}

void iwp_log_set_level(int level) { sink.level = level; }
int iwp_log_get_level(void) { return sink.level; }
void iwp_log_set_colors(enum iwp_log_colors c) { sink.colors = c; }
void iwp_log_set_timestamps(bool on) { sink.timestamps = on; }

int iwp_log_open_file(const char *path, iwp_err *err) {
    FILE *f = NULL;
    if (path) {
        const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
        f = fd < 0 ? NULL : fdopen(fd, "a"); /* a pipe that nobody reads is not waited for */
        IWP_REQUIRE(f, err, IWP_EIO, "%s: cannot write: %s", path, strerror(errno));
    }
    if (sink.file) fclose(sink.file);
    sink.file = f;
    return 0;
}

static void show(struct iwp_progress *p, double now) {
    double s = (now - p->started) / 1e3;
    double left = p->done > 0 ? s * (double)(p->total - p->done) / (double)p->done : 0;
    pthread_mutex_lock(&sink.lock);
    if (p->terminal) {
        fprintf(stderr, "\r\033[K%s %lld/%lld %s, %.0f s, %.0f s left", p->what, (long long)p->done,
                (long long)p->total, p->unit, s, left);
        sink.meter_shown = true;
    } else {
        fprintf(stderr, "%s %lld/%lld %s, %.0f s\n", p->what, (long long)p->done,
                (long long)p->total, p->unit, s);
    }
    fflush(stderr);
    pthread_mutex_unlock(&sink.lock);
    p->printed = now;
}

void iwp_progress_start(struct iwp_progress *p, const char *what, const char *unit, int64_t total) {
    memset(p, 0, sizeof *p);
    p->what = what;
    p->unit = unit;
    p->total = total;
    p->started = p->printed = iwp_clock_ms();
    p->terminal = terminal();
}

void iwp_progress_set(struct iwp_progress *p, int64_t done) {
    p->done = done;
    if (sink.level < IWP_LOG_INFO || p->total <= 0) return;
    double now = iwp_clock_ms();
    const int tenth = (int)(10.0 * (double)done / (double)p->total);
    if (now - p->printed < (p->terminal ? TERMINAL_MS : PLAIN_MS)) return;
    if (p->terminal || tenth > p->tenth) show(p, now);
    p->tenth = tenth;
}

void iwp_progress_end(struct iwp_progress *p) {
    pthread_mutex_lock(&sink.lock);
    if (p->terminal) clear_meter();
    fflush(stderr);
    pthread_mutex_unlock(&sink.lock);
}
