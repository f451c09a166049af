/* Inside of the prompt builder; prompt.h is the outside. */
#ifndef IWP_MODEL_PROMPTER_H
#define IWP_MODEL_PROMPTER_H

#include "model/chat.h"
#include "model/encode.h"
#include "model/prompt.h"
#include "model/tower.h"
#include "model/vocab.h"

struct iwp_prompter {
    iwp_vocab *vocab;
    const struct iwp_chat_template *chat; /* NULL: unknown, `path` says of which file */
    bool verbatim;                        /* --chat-template none */
    char *path;
    struct iwp_tower *tower; /* NULL: text only */
    struct iwp_encoder *encoder;
    int32_t d_model, n_pos;
    int32_t image_token, video_token; /* -1: the vocabulary has none */
};

/* The text side of a prompt: ids and codes, with places for the media. */
struct iwp_segment_text {
    int32_t media; /* index of the medium that stands here, -1: tokens */
    int32_t n;     /* tokens */
};
struct iwp_text {
    struct iwp_ids ids;
    uint8_t *code; /* [ids.n] IWP_CODE_TEXT or IWP_CODE_USER */
    int32_t cap_code;
    struct iwp_segment_text *seg; /* [n_seg] in order */
    int32_t n_seg, cap_seg;
};
void iwp_text_free(struct iwp_text *t);
/* Tokenises pieces; media are numbered as they come.  raw: special tokens are parsed, and the user's
 * words are found by the turn marks of ChatML. */
int iwp_text_build(const iwp_prompter *m, const struct iwp_pieces *l, bool raw,
                   struct iwp_text *out, iwp_err *err);

#endif
