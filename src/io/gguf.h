/* GGUF files, read and written without ggml.
 *
 * Owns: the container (versions 2 and 3, little-endian, split files), its key/value pairs and tensor
 * list, and a streaming writer.  Every count, length, type, alignment and offset is checked before use,
 * by the same rules as ggml's loader or stricter, so that a file accepted here cannot make ggml abort.
 * Refuses: version 1, big-endian files, nested arrays, unknown tensor types, more than four dimensions,
 * duplicate names, gaps between tensors.  Tensor data is never interpreted here. */
#ifndef IWP_IO_GGUF_H
#define IWP_IO_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"

enum iwp_gguf_kind {
    IWP_GGUF_U8,
    IWP_GGUF_I8,
    IWP_GGUF_U16,
    IWP_GGUF_I16,
    IWP_GGUF_U32,
    IWP_GGUF_I32,
    IWP_GGUF_F32,
    IWP_GGUF_BOOL,
    IWP_GGUF_STR,
    IWP_GGUF_ARRAY,
    IWP_GGUF_U64,
    IWP_GGUF_I64,
    IWP_GGUF_F64,
    IWP_GGUF_KIND_COUNT
};
const char *iwp_gguf_kind_name(uint32_t kind);

/* Tensor types by their number in the file; the ones the code names. */
enum iwp_tensor_type {
    IWP_TYPE_F32 = 0,
    IWP_TYPE_F16 = 1,
    IWP_TYPE_Q4_0 = 2,
    IWP_TYPE_Q5_0 = 6,
    IWP_TYPE_Q8_0 = 8,
    IWP_TYPE_Q4_K = 12,
    IWP_TYPE_Q6_K = 14,
    IWP_TYPE_BF16 = 30
};
struct iwp_type_info {
    const char *name; /* "q4_K" */
    uint16_t block;   /* elements per block; rows are whole blocks */
    uint16_t size;    /* bytes per block */
};
/* NULL when the number is not a type that files may hold. */
const struct iwp_type_info *iwp_type_info(uint32_t type);
/* Bytes of `n` elements, n a multiple of the block; 0 for unknown types. */
uint64_t iwp_type_bytes(uint32_t type, uint64_t n);

/* Bytes with a length; may hold zeros and is not terminated when it points into the file. */
struct iwp_gguf_str {
    const char *p;
    size_t n;
};

struct iwp_gguf_kv {
    const char *key; /* terminated, no zeros inside */
    uint8_t kind;    /* enum iwp_gguf_kind */
    uint8_t elem;    /* kind of the elements; = kind for scalars */
    uint64_t n;      /* elements; 1 for scalars */
    const uint8_t
        *data;        /* packed little-endian values (unaligned), strings as u64 length + bytes */
    uint64_t size;    /* bytes at data */
    const char *text; /* scalar strings: a terminated copy */
};

struct iwp_gguf_tensor {
    const char *name;
    uint32_t type;
    int32_t n_dims;
    int64_t ne[4];         /* ne[0] is the row length; unused ones are 1 */
    int32_t part;          /* file of a split model, 0 otherwise */
    uint64_t offset, size; /* bytes in that file, from its beginning */
};

struct iwp_gguf_part {
    char *path; /* NULL for memory */
    const uint8_t *data;
    uint64_t size;
};

struct iwp_gguf {
    uint32_t version, alignment;
    int32_t n_kv, n_tensor, n_part;
    struct iwp_gguf_kv *kv;
    struct iwp_gguf_tensor *tensor;
    struct iwp_gguf_part *part;
    void *priv;
};

/* Opens a file; a path ending in -00001-of-0000N.gguf opens all N.  *out is NULL on failure. */
int iwp_gguf_open(struct iwp_gguf **out, const char *path, iwp_err *err);
/* The same over bytes that stay the caller's and must outlive it; `name` is used in messages. */
int iwp_gguf_open_memory(struct iwp_gguf **out, const void *data, size_t size, const char *name,
                         iwp_err *err);
void iwp_gguf_free(struct iwp_gguf *g); /* NULL is fine */

/* NULL when there is none. */
const struct iwp_gguf_kv *iwp_gguf_find(const struct iwp_gguf *g, const char *key);
const struct iwp_gguf_tensor *iwp_gguf_find_tensor(const struct iwp_gguf *g, const char *name);
/* The tensor's bytes in the read-only map. */
const uint8_t *iwp_gguf_tensor_data(const struct iwp_gguf *g, const struct iwp_gguf_tensor *t);
/* Where to read them instead (pread). */
const char *iwp_gguf_tensor_path(const struct iwp_gguf *g, const struct iwp_gguf_tensor *t);
int64_t iwp_gguf_tensor_elements(const struct iwp_gguf_tensor *t);
/* Finds a tensor and checks its shape: ne < 0 in `want` accepts any length.  Names the tensor on failure. */
int iwp_gguf_need_tensor(const struct iwp_gguf *g, const char *name, int n_dims,
                         const int64_t *want, const struct iwp_gguf_tensor **out, iwp_err *err);

/* Getters.  Integers of any width are taken when the value fits.  `get` fails with IWP_EMISSING when
 * the key is absent, `opt` gives the fallback; both fail with IWP_EFORMAT on another kind of value. */
int iwp_gguf_get_u32(const struct iwp_gguf *g, const char *key, uint32_t *out, iwp_err *err);
int iwp_gguf_opt_u32(const struct iwp_gguf *g, const char *key, uint32_t fallback, uint32_t *out,
                     iwp_err *err);
int iwp_gguf_get_i64(const struct iwp_gguf *g, const char *key, int64_t *out, iwp_err *err);
int iwp_gguf_opt_i64(const struct iwp_gguf *g, const char *key, int64_t fallback, int64_t *out,
                     iwp_err *err);
int iwp_gguf_get_f32(const struct iwp_gguf *g, const char *key, float *out, iwp_err *err);
int iwp_gguf_opt_f32(const struct iwp_gguf *g, const char *key, float fallback, float *out,
                     iwp_err *err);
int iwp_gguf_opt_bool(const struct iwp_gguf *g, const char *key, bool fallback, bool *out,
                      iwp_err *err);
/* Terminated text that lives as long as g; text with a zero inside is refused. */
int iwp_gguf_get_str(const struct iwp_gguf *g, const char *key, const char **out, iwp_err *err);
int iwp_gguf_opt_str(const struct iwp_gguf *g, const char *key, const char *fallback,
                     const char **out, iwp_err *err);

/* Arrays of numbers, converted; the count is returned (0 when absent) and must be ≤ cap. */
int iwp_gguf_array_i32(const struct iwp_gguf *g, const char *key, int32_t *out, int cap,
                       iwp_err *err);
int iwp_gguf_array_f32(const struct iwp_gguf *g, const char *key, float *out, int cap,
                       iwp_err *err);
/* One element of a numeric array (or scalar); 0 when out of range or not a number. */
int64_t iwp_gguf_value_i64(const struct iwp_gguf_kv *kv, uint64_t i);
double iwp_gguf_value_f64(const struct iwp_gguf_kv *kv, uint64_t i);

/* Walks an array of strings. */
struct iwp_gguf_iter {
    const uint8_t *p, *end;
    uint64_t left;
};
struct iwp_gguf_iter iwp_gguf_iterate(const struct iwp_gguf_kv *kv);
bool iwp_gguf_next(struct iwp_gguf_iter *it, struct iwp_gguf_str *s);

/* Everything libllama's vocabulary loader and tokenizer would abort, assert or throw on.  Returns the
 * number of tokens.  Byte-pair ("gpt2") and SentencePiece ("llama") vocabularies only. */
int iwp_gguf_check_vocab(const struct iwp_gguf *g, iwp_err *err);

/* ------------------------------------------------------------------------------------------------ */

/* Writer: add pairs and declare tensors, begin, give the data of each tensor in that order, finish,
 * commit.  Adding never fails at once: the first error is kept and reported by `_begin`.  The file
 * appears at commit; several writers can finish before the first of them commits. */
struct iwp_gguf_writer;
int iwp_gguf_writer_new(struct iwp_gguf_writer **out, iwp_err *err);
void iwp_gguf_writer_free(struct iwp_gguf_writer *w); /* removes an unfinished file; NULL is fine */

void iwp_gguf_add_u32(struct iwp_gguf_writer *w, const char *key, uint32_t v);
void iwp_gguf_add_i32(struct iwp_gguf_writer *w, const char *key, int32_t v);
void iwp_gguf_add_u64(struct iwp_gguf_writer *w, const char *key, uint64_t v);
void iwp_gguf_add_f32(struct iwp_gguf_writer *w, const char *key, float v);
void iwp_gguf_add_bool(struct iwp_gguf_writer *w, const char *key, bool v);
void iwp_gguf_add_str(struct iwp_gguf_writer *w, const char *key, const char *v);
void iwp_gguf_add_array(struct iwp_gguf_writer *w, const char *key, enum iwp_gguf_kind elem,
                        const void *v, uint64_t n); /* numbers only, host layout */
void iwp_gguf_add_strs(struct iwp_gguf_writer *w, const char *key, const struct iwp_gguf_str *v,
                       uint64_t n);
void iwp_gguf_add_kv(struct iwp_gguf_writer *w,
                     const struct iwp_gguf_kv *kv); /* a copy from a reader */
void iwp_gguf_add_tensor(struct iwp_gguf_writer *w, const char *name, uint32_t type, int n_dims,
                         const int64_t *ne);

int iwp_gguf_writer_begin(struct iwp_gguf_writer *w, const char *path, iwp_err *err);
uint64_t iwp_gguf_writer_total(const struct iwp_gguf_writer *w); /* bytes of all tensors */
/* The next bytes of the current tensor; moves on to the next tensor when it is full. */
int iwp_gguf_writer_data(struct iwp_gguf_writer *w, const void *data, size_t n, iwp_err *err);
int iwp_gguf_writer_finish(struct iwp_gguf_writer *w,
                           iwp_err *err); /* all tensors given, bytes flushed */
int iwp_gguf_writer_commit(struct iwp_gguf_writer *w, iwp_err *err); /* the file appears */

#endif
