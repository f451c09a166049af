/* Files: read-only maps, whole reads with a limit, and outputs that appear only when complete. */
#ifndef IWP_BASE_FILE_H
#define IWP_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "iwp/error.h"

struct iwp_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
};

/* Maps a regular file read-only.  Errors name the path. */
int iwp_map_open(struct iwp_map *m, const char *path, iwp_err *err);
void iwp_map_close(struct iwp_map *m); /* a zeroed map is fine */

/* Reads a whole file of at most `max` bytes; caller frees *data.  One extra zero byte follows the data. */
int iwp_file_read(const char *path, size_t max, uint8_t **data, size_t *size, iwp_err *err);

/* Do both paths name one file, or would they once it is written?  Links are followed. */
bool iwp_file_same(const char *a, const char *b);

/* An output file under a temporary name beside its final one.  `_commit` flushes, syncs and renames;
 * `_abort` removes it and is a no-op after a commit, so that a single `fail:` label may call it.
 * Links are followed; what exists and is no regular file (a device, a pipe) is refused, not replaced.
 * A signal handler may call iwp_output_abort_all() (async-signal-safe) to leave nothing behind. */
struct iwp_output {
    FILE *file;
    char *path, *temp;
    int slot;
};
int iwp_output_open(struct iwp_output *o, const char *path, iwp_err *err);
/* Could this output be written?  Makes and removes its temporary file: for finding out before long work. */
int iwp_output_check(const char *path, iwp_err *err);
int iwp_output_commit(struct iwp_output *o, iwp_err *err);
void iwp_output_abort(struct iwp_output *o);
void iwp_output_abort_all(void);

#endif
