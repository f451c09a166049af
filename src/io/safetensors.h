/* safetensors files: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
 *
 * Reading maps the file and checks everything before anybody sees a pointer: header length against
 * the file and 100 MB, the JSON itself (base/json.h), names, dtypes, ranks up to 8, shape x dtype
 * against the byte range, ranges inside the file, no two sharing a byte, no hole and nothing left
 * over.  What is refused says the file, the tensor and the reason.
 *
 * A tensor's data pointer need not be aligned for its type: use iwp_st_read_*() or memcpy, or ask
 * iwp_st_aligned().  Hosts are little-endian (checked when compiling). */
#ifndef IWP_IO_SAFETENSORS_H
#define IWP_IO_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "iwp/error.h"

/* name, bytes per element */
#define IWP_ST_DTYPE_MAP(X)                                                                        \
    X(F32, 4)                                                                                      \
    X(F16, 2)                                                                                      \
    X(BF16, 2)                                                                                     \
    X(F64, 8)                                                                                      \
    X(I64, 8)                                                                                      \
    X(I32, 4)                                                                                      \
    X(I16, 2)                                                                                      \
    X(I8, 1)                                                                                       \
    X(U64, 8)                                                                                      \
    X(U32, 4)                                                                                      \
    X(U16, 2)                                                                                      \
    X(U8, 1)                                                                                       \
    X(BOOL, 1)                                                                                     \
    X(F8_E4M3, 1)                                                                                  \
    X(F8_E5M2, 1)

enum iwp_st_dtype {
#define X(name, bytes) IWP_ST_##name,
    IWP_ST_DTYPE_MAP(X)
#undef X
        IWP_ST_DTYPE_COUNT
};

enum { IWP_ST_MAX_RANK = 8 };

struct iwp_st_tensor {
    const char *name;
    enum iwp_st_dtype dtype;
    int32_t rank;
    int64_t shape[IWP_ST_MAX_RANK]; /* [rank], the slowest first */
    int64_t n;                      /* elements */
    const uint8_t *data;            /* [bytes], not necessarily aligned */
    size_t bytes;
};

typedef struct iwp_st iwp_st;

const char *iwp_st_dtype_name(enum iwp_st_dtype t);
size_t iwp_st_dtype_size(enum iwp_st_dtype t);

/* Errors begin with the path. */
int iwp_st_open(iwp_st **out, const char *path, iwp_err *err);
/* The bytes stay the caller's and must outlive the reader; `name` is what errors call it. */
int iwp_st_open_memory(iwp_st **out, const void *data, size_t size, const char *name, iwp_err *err);
void iwp_st_close(iwp_st *st); /* NULL is fine */

/* Tensors in the order of their bytes. */
int32_t iwp_st_count(const iwp_st *st);
const struct iwp_st_tensor *iwp_st_at(const iwp_st *st, int32_t i);
const struct iwp_st_tensor *iwp_st_find(const iwp_st *st, const char *name); /* NULL: none */
/* What errors call the file. */
const char *iwp_st_path(const iwp_st *st);
/* A text of `__metadata__`, NULL when there is none. */
const char *iwp_st_metadata(const iwp_st *st, const char *key);

/* Elements [first, first + n) as float (F32 F16 BF16 F64) or int64 (all integer types and BOOL; U64
 * above the range is an error).  Other dtypes and ranges outside the tensor: IWP_EINVAL naming it. */
int iwp_st_read_f32(const struct iwp_st_tensor *t, int64_t first, int64_t n, float *out,
                    iwp_err *err);
int iwp_st_read_i64(const struct iwp_st_tensor *t, int64_t first, int64_t n, int64_t *out,
                    iwp_err *err);
bool iwp_st_aligned(const struct iwp_st_tensor *t);
/* "F16 [40, 4, 8]" for messages. */
void iwp_st_describe(const struct iwp_st_tensor *t, char *out, size_t cap);

/* Writing: declare every tensor, begin, write the bytes in the declared order (in pieces as they
 * come), commit.  The file appears under its name only at commit; _abort() after any failure (and
 * after a commit, where it does nothing).  Names are copied. */
struct iwp_st_writer {
    struct iwp_output out;
    struct iwp_st_decl *decl;
    int32_t n_decl, cap_decl;
    uint64_t total, written;
    bool begun;
};
int iwp_st_writer_open(struct iwp_st_writer *w, const char *path, iwp_err *err);
int iwp_st_writer_add(struct iwp_st_writer *w, const char *name, enum iwp_st_dtype dtype,
                      int32_t rank, const int64_t *shape, iwp_err *err);
int iwp_st_writer_begin(struct iwp_st_writer *w, iwp_err *err);
int iwp_st_writer_write(struct iwp_st_writer *w, const void *data, size_t bytes, iwp_err *err);
int iwp_st_writer_commit(struct iwp_st_writer *w, iwp_err *err);
void iwp_st_writer_abort(struct iwp_st_writer *w);

#endif
