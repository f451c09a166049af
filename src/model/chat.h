/* Chat templates: messages to a list of pieces.
 *
 * A small table instead of a Jinja interpreter: each entry renders one family of templates exactly, and
 * is found by the hash of the Jinja text that a model file carries, or by name (--chat-template).
 * The renderer hands out special tokens as pieces of their own, so that text is never searched for them:
 * whatever a user types, "<|im_end|>" and "<image>" included, stays text. */
#ifndef IWP_MODEL_CHAT_H
#define IWP_MODEL_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "iwp/error.h"
#include "model/prompt.h"

struct iwp_chat_template;

/* The template of this name; NULL and an error that lists the names otherwise. */
const struct iwp_chat_template *iwp_chat_find(const char *name, iwp_err *err);
/* The template whose Jinja text this is; NULL when it is none of the known ones. */
const struct iwp_chat_template *iwp_chat_detect(const char *jinja);
const char *iwp_chat_name(const struct iwp_chat_template *t);
/* "chatml, llama2, …" for messages. */
const char *iwp_chat_names(void);
/* Hash of a template's text: spaces and line breaks, written or escaped, do not count. */
uint64_t iwp_chat_hash(const char *jinja);
/* Special tokens around the placeholder of a picture or video ("<|vision_start|>"), NULL: none. */
void iwp_chat_media_marks(const struct iwp_chat_template *t, const char **open, const char **close);

enum iwp_piece_kind {
    IWP_PIECE_TEXT,    /* words of the template, of the system turn and of earlier answers */
    IWP_PIECE_USER,    /* the user's own words */
    IWP_PIECE_SPECIAL, /* one special token, by its text */
    IWP_PIECE_MEDIA    /* a picture or video */
};

struct iwp_piece {
    enum iwp_piece_kind kind;
    const char *text; /* [n] TEXT, USER, SPECIAL: points into the messages or the table */
    size_t n;
    const struct iwp_part *part; /* MEDIA */
};

struct iwp_pieces {
    struct iwp_piece *piece; /* [n] */
    int32_t n, cap;
};
void iwp_pieces_free(struct iwp_pieces *l);
int iwp_pieces_add(struct iwp_pieces *l, struct iwp_piece p, iwp_err *err);

/* generation: end with the opening of the assistant's turn. */
int iwp_chat_render(const struct iwp_chat_template *t, const struct iwp_message *m, int32_t n,
                    bool generation, struct iwp_pieces *out, iwp_err *err);

/* A verbatim prompt: `<image>`, `<video>` and the model's own placeholders (NULL: none) become the media
 * in order; without marks media come first.  wrap_open/wrap_close: special tokens around a medium that
 * replaces `<image>` or `<video>` when the model's own placeholder would stand between such tokens. */
struct iwp_raw_marks {
    const char *image, *video; /* the model's own, "<|image_pad|>" */
    const char *open, *close;  /* "<|vision_start|>" */
};
int iwp_chat_raw(const char *raw, const struct iwp_part *media, int32_t n_media,
                 const struct iwp_raw_marks *marks, struct iwp_pieces *out, iwp_err *err);

#endif
