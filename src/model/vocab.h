/* Text to token ids and back.
 *
 * Owns: the vocabulary of a GGUF file as libllama reads it (vocab_only, no weights), Unicode
 * normalisation where the model's own tokenizer normalises (libllama does none), and turning the bytes
 * of generated tokens into whole UTF-8 characters.
 * The file is checked by io/gguf.h before libllama sees it; text that is not UTF-8 is refused. */
#ifndef IWP_MODEL_VOCAB_H
#define IWP_MODEL_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/gguf.h"
#include "iwp/error.h"

struct llama_vocab;
typedef struct iwp_vocab iwp_vocab;

int iwp_vocab_new(iwp_vocab **out, const struct iwp_gguf *g, iwp_err *err);
void iwp_vocab_free(iwp_vocab *v); /* NULL is fine */
const struct llama_vocab *iwp_vocab_llama(const iwp_vocab *v);
int32_t iwp_vocab_count(const iwp_vocab *v);
/* Id of the token with exactly this text, special ones included; -1 when there is none. */
int32_t iwp_vocab_find(const iwp_vocab *v, const char *text);
bool iwp_vocab_is_end(const iwp_vocab *v, int32_t id);
bool iwp_vocab_is_special(const iwp_vocab *v, int32_t id); /* a control token, never typed text */
/* The id that opens every prompt, or -1 when the model wants none. */
int32_t iwp_vocab_begin(const iwp_vocab *v);

/* A growing list of ids. */
struct iwp_ids {
    int32_t *id; /* [n] */
    int32_t n, cap;
};
int iwp_ids_add(struct iwp_ids *l, int32_t id, iwp_err *err);
void iwp_ids_free(struct iwp_ids *l);

/* Normalised copy (NFC for vocabularies that want it, else the same bytes); caller frees *out, which is
 * zero-terminated. */
int iwp_vocab_normalise(const iwp_vocab *v, const char *text, size_t n, char **out, size_t *n_out,
                        iwp_err *err);
/* Appends the tokens of normalised text.  special: names of special tokens in the text become those
 * tokens; otherwise they are plain characters.  No begin or end token is added.  `first`: the text opens
 * a prompt (SentencePiece vocabularies put a space before it). */
int iwp_vocab_tokenise(const iwp_vocab *v, const char *text, size_t n, bool special, bool first,
                       struct iwp_ids *out, iwp_err *err);

/* Bytes of one token; special ones are nothing unless asked for.  Returns the count, or minus the count
 * needed when cap is too small; 0 for ids outside the vocabulary. */
int iwp_vocab_piece(const iwp_vocab *v, int32_t id, bool special, char *buf, int cap);

/* Bytes that arrive token by token, given out as whole characters.  Zero it to begin. */
struct iwp_utf8 {
    uint8_t part[4]; /* [n] start of a character */
    int32_t n;
};
/* Appends to out (room for 3 * (n + 4) bytes) what is complete; bytes that cannot be UTF-8 become
 * U+FFFD.  Returns the bytes written. */
size_t iwp_utf8_feed(struct iwp_utf8 *u, const char *in, size_t n, char *out);
/* What is left at the end: nothing, or one U+FFFD. */
size_t iwp_utf8_finish(struct iwp_utf8 *u, char *out);

#endif
