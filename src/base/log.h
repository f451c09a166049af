/* The one log function.  Everything that is not the asked-for output goes through it to stderr (and
 * to a file when one is set).  Levels are llama.cpp's: 1 errors, 2 warnings, 3 notes, 4 everything.
 * Set level, file and colours before threads start; logging itself may happen on any thread. */
#ifndef IWP_BASE_LOG_H
#define IWP_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "iwp/error.h"

enum iwp_log_level { IWP_LOG_ERROR = 1, IWP_LOG_WARN, IWP_LOG_INFO, IWP_LOG_DEBUG };
enum iwp_log_colors { IWP_LOG_COLORS_AUTO, IWP_LOG_COLORS_ON, IWP_LOG_COLORS_OFF };

/* One line; the newline is added, control characters are replaced. */
void iwp_log(enum iwp_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void iwp_log_set_level(int level); /* 0 = silent but for errors */
int iwp_log_get_level(void);
void iwp_log_set_colors(enum iwp_log_colors c);
void iwp_log_set_timestamps(bool on);
int iwp_log_open_file(const char *path, iwp_err *err); /* appends; NULL closes */

/* A meter on stderr: rewrites one line on a terminal; else a plain line at a tenth of the way, seconds
 * apart, so that short work leaves no lines.  Silent below IWP_LOG_INFO.  `unit` e.g. "samples". */
struct iwp_progress {
    const char *what, *unit;
    int64_t total, done;
    double started, printed; /* ms */
    int tenth;
    bool terminal;
};
void iwp_progress_start(struct iwp_progress *p, const char *what, const char *unit, int64_t total);
void iwp_progress_set(struct iwp_progress *p, int64_t done);
void iwp_progress_end(struct iwp_progress *p); /* clears the line */

#endif
