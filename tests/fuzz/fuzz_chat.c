/* Conversations and verbatim prompts of any bytes through the templates and the tokenizer.  Byte 0 chooses
 * a template (or a verbatim prompt), byte 1 the roles; a byte 1 in the text begins a new message, a byte 2
 * a picture.  Whatever is typed, the only special tokens of a conversation are the template's own, every
 * token has a code, and the pieces of a text give the text back. */
#include <stdlib.h>
#include <string.h>

#include "iwp/prune.h"
#include "model/prompter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static iwp_prompter *prompter(void) {
    static iwp_prompter m;
    if (m.vocab) return &m;
    static const char path[] = IWP_TEST_DATA "/golden/gguf/qwen2.5-vl.gguf";
    struct iwp_gguf *g;
    iwp_err err = {0};
    if (iwp_gguf_open(&g, path, &err) < 0 || iwp_vocab_new(&m.vocab, g, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    iwp_gguf_free(g);
    m.image_token = iwp_vocab_find(m.vocab, "<|image_pad|>");
    m.video_token = iwp_vocab_find(m.vocab, "<|video_pad|>");
    m.n_pos = 3;
    return &m;
}

/* Codes, segments and counts of what came out. */
static void check_text(const iwp_prompter *m, const struct iwp_text *t, const struct iwp_pieces *l,
                       bool raw) {
    int32_t special = 0, want = 0, n = 0, media = 0;
    for (int32_t i = 0; i < t->ids.n; i++) {
        if (t->ids.id[i] < 0 || t->ids.id[i] >= iwp_vocab_count(m->vocab)) abort();
        if (t->code[i] != IWP_CODE_TEXT && t->code[i] != IWP_CODE_USER) abort();
        const bool s = iwp_vocab_is_special(m->vocab, t->ids.id[i]);
        if (s && t->code[i] == IWP_CODE_USER) abort();
        special += s;
    }
    for (int32_t i = 0; i < l->n; i++) {
        want += l->piece[i].kind == IWP_PIECE_SPECIAL;
        media -= l->piece[i].kind == IWP_PIECE_MEDIA;
    }
    for (int32_t i = 0; i < t->n_seg; i++) {
        n += t->seg[i].n;
        media += t->seg[i].media >= 0;
    }
    if (n != t->ids.n || media) abort();
    if (!raw && special != want) abort();
}

/* Plain text comes back from its tokens. */
static void check_round_trip(const iwp_prompter *m, const char *text) {
    struct iwp_ids ids = {0};
    iwp_err err = {0};
    char *s = NULL, piece[512];
    size_t n, at = 0;
    if (iwp_vocab_normalise(m->vocab, text, strlen(text), &s, &n, &err) < 0) return;
    if (iwp_vocab_tokenise(m->vocab, s, n, false, true, &ids, &err) < 0) abort();
    for (int32_t i = 0; i < ids.n; i++) {
        int k = iwp_vocab_piece(m->vocab, ids.id[i], true, piece, sizeof piece);
        if (k < 0 || at + (size_t)k > n || memcmp(s + at, piece, (size_t)k) != 0) abort();
        at += (size_t)k;
    }
    if (at != n) abort();
    free(s);
    iwp_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"chatml",          "qwen2-vl", "qwen2",   "qwen2.5",
                                        "llava-onevision", "qwen_1_5", "smollm2", "llama3",
                                        "llama2",          "vicuna"};
    static const char *const roles[] = {"user", "assistant", "system", "tool"};
    enum { MAX_PART = 64 };
    if (size < 2 || size > 1 << 16) return 0;
    const iwp_prompter *m = prompter();
    const unsigned which = data[0] % 11u;
    char *text = malloc(size);
    memcpy(text, data + 2, size - 2);
    text[size - 2] = 0;
    struct iwp_part part[MAX_PART];
    struct iwp_message msg[MAX_PART];
    int32_t n_part = 0, n_msg = 0;
    struct iwp_pieces l = {0};
    struct iwp_text out = {0};
    iwp_err err = {0};
    int rc;
    check_round_trip(m, text);
    if (which == 10) {
        const struct iwp_raw_marks marks = {"<|image_pad|>", "<|video_pad|>", "<|vision_start|>",
                                            "<|vision_end|>"};
        for (; n_part < data[1] % 4; n_part++)
            part[n_part] = (struct iwp_part){.kind = n_part & 1 ? IWP_PART_VIDEO : IWP_PART_IMAGE};
        rc = iwp_chat_raw(text, part, n_part, &marks, &l, &err);
    } else {
        char *s = text;
        while (s && n_part + 2 < MAX_PART) {
            char *end = strpbrk(s, "\1\2"), sep = end ? *end : 0;
            if (end) *end = 0;
            if (n_msg == 0) msg[n_msg++] = (struct iwp_message){roles[data[1] & 3], part, 0};
            part[n_part++] = (struct iwp_part){.kind = IWP_PART_TEXT, .text = s};
            msg[n_msg - 1].n_part++;
            if (sep == 2) {
                part[n_part++] = (struct iwp_part){.kind = IWP_PART_IMAGE};
                msg[n_msg - 1].n_part++;
            } else if (sep == 1) {
                const int r = data[1] >> (2 * (n_msg % 4)) & 3;
                msg[n_msg++] = (struct iwp_message){roles[r], part + n_part, 0};
            }
            s = end ? end + 1 : NULL;
        }
        rc = iwp_chat_render(iwp_chat_find(names[which], &err), msg, n_msg, data[1] & 1, &l, &err);
    }
    if (rc >= 0) rc = iwp_text_build(m, &l, which == 10, &out, &err);
    if (rc >= 0)
        check_text(m, &out, &l, which == 10);
    else if (!err.msg[0] || strchr(err.msg, '\n'))
        abort();
    iwp_text_free(&out);
    iwp_pieces_free(&l);
    free(text);
    return 0;
}
