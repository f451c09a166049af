/* Pieces of a conversation to token ids.  Text between special tokens and media is tokenised as one
 * string, as the library's tokenizers do, and every token knows whether it holds the user's words. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "iwp/prune.h"
#include "model/prompter.h"

void iwp_text_free(struct iwp_text *t) {
    iwp_ids_free(&t->ids);
    free(t->code);
    free(t->seg);
    *t = (struct iwp_text){0};
}

static int add_segment(struct iwp_text *t, int32_t media, int32_t n, iwp_err *err) {
    if (media < 0 && n == 0) return 0;
    if (t->n_seg == t->cap_seg) {
        int32_t cap = t->cap_seg ? 2 * t->cap_seg : 16;
        struct iwp_segment_text *p = realloc(t->seg, (size_t)cap * sizeof *p);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory for the prompt");
        t->seg = p;
        t->cap_seg = cap;
    }
    t->seg[t->n_seg++] = (struct iwp_segment_text){media, n};
    return 0;
}

/* Codes of the ids that were added since `from`. */
static int add_codes(struct iwp_text *t, int32_t from, uint8_t code, iwp_err *err) {
    if (t->cap_code < t->ids.cap) {
        uint8_t *p = realloc(t->code, (size_t)t->ids.cap);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory for the prompt");
        t->code = p;
        t->cap_code = t->ids.cap;
    }
    if (t->ids.n > from) memset(t->code + from, code, (size_t)(t->ids.n - from));
    return 0;
}

/* A string being put together, with a flag for every byte of the user's. */
struct run {
    char *text;
    uint8_t *user;
    size_t n, cap;
};

static int run_add(struct run *r, const char *s, size_t n, bool user, iwp_err *err) {
    if (r->n + n > r->cap) {
        size_t cap = 2 * (r->n + n) + 64;
        char *a = realloc(r->text, cap);
        if (a) r->text = a;
        uint8_t *b = realloc(r->user, cap);
        if (b) r->user = b;
        IWP_REQUIRE(a && b, err, IWP_ENOMEM, "out of memory for a text of %zu bytes", n);
        r->cap = cap;
    }
    memcpy(r->text + r->n, s, n);
    memset(r->user + r->n, user, n);
    r->n += n;
    return 0;
}

static int run_add_normalised(const iwp_prompter *m, struct run *r, const char *s, size_t n,
                              bool user, iwp_err *err) {
    char *t;
    size_t len;
    IWP_TRY(iwp_vocab_normalise(m->vocab, s, n, &t, &len, err));
    int rc = run_add(r, t, len, user, err);
    free(t);
    return rc;
}

/* Tokenises what is collected; a token with a byte of the user's is the user's. */
static int flush(const iwp_prompter *m, struct run *r, bool special, struct iwp_text *out,
                 iwp_err *err) {
    const int32_t from = out->ids.n;
    IWP_TRY(iwp_vocab_tokenise(m->vocab, r->text, r->n, special, from == 0, &out->ids, err));
    IWP_TRY(add_codes(out, from, IWP_CODE_TEXT, err));
    size_t at = 0;
    for (int32_t i = from; i < out->ids.n; i++) {
        char piece[512];
        int n = iwp_vocab_piece(m->vocab, out->ids.id[i], true, piece, sizeof piece);
        size_t len = (size_t)(n < 0 ? -n : n);
        if (i == from && len && n > 0 && piece[0] == ' ' && r->text[0] != ' ')
            len--; /* the space that SentencePiece puts first */
        for (size_t k = 0; k < len && at < r->n; k++, at++)
            if (r->user[at] && !iwp_vocab_is_special(m->vocab, out->ids.id[i]))
                out->code[i] = IWP_CODE_USER;
    }
    r->n = 0;
    return add_segment(out, -1, out->ids.n - from, err);
}

/* The user's words in a verbatim prompt: between <|im_start|>user and <|im_end|>, without the white
 * space around the media; all of a prompt without such marks. */
struct raw_state {
    bool chatml, user, fresh;
};

static bool starts(const char *s, size_t n, const char *with) {
    return n >= strlen(with) && memcmp(s, with, strlen(with)) == 0;
}

static int add_raw(const iwp_prompter *m, struct run *r, struct raw_state *st, const char *s,
                   size_t n, iwp_err *err) {
    static const char open[] = "<|im_start|>", close[] = "<|im_end|>", who[] = "user";
    size_t i = 0;
    while (i < n) {
        size_t len = 1;
        bool user = st->user || !st->chatml;
        if (starts(s + i, n - i, open)) {
            len = strlen(open);
            user = false;
            st->user = starts(s + i + len, n - i - len, who);
            if (st->user) {
                len += strlen(who);
                if (i + len < n && (s[i + len] == ' ' || s[i + len] == '\n')) len++;
            }
            st->fresh = true;
        } else if (starts(s + i, n - i, close)) {
            len = strlen(close);
            user = st->user = false;
        } else {
            if (st->fresh && s[i] == '\n')
                user = false; /* the line break that ends role or media */
            st->fresh = false;
            while (i + len < n && s[i + len] != '<') len++;
            if (!user && st->user) len = 1;
        }
        IWP_TRY(run_add_normalised(m, r, s + i, len, user, err));
        i += len;
    }
    return 0;
}

int iwp_text_build(const iwp_prompter *m, const struct iwp_pieces *l, bool raw,
                   struct iwp_text *out, iwp_err *err) {
    struct run r = {0};
    struct raw_state st = {0};
    int32_t media = 0;
    int rc = 0;
    for (int32_t i = 0; i < l->n && raw; i++)
        if (l->piece[i].kind == IWP_PIECE_TEXT)
            for (size_t k = 0; k < l->piece[i].n && !st.chatml; k++)
                st.chatml = starts(l->piece[i].text + k, l->piece[i].n - k, "<|im_start|>");
    const int32_t begin = iwp_vocab_begin(m->vocab);
    if (raw && begin >= 0) {
        char piece[64];
        int n = iwp_vocab_piece(m->vocab, begin, true, piece, sizeof piece - 1);
        piece[n > 0 ? n : 0] = 0;
        const bool there = l->n && l->piece[0].kind == IWP_PIECE_TEXT && n > 0 &&
                           starts(l->piece[0].text, l->piece[0].n, piece);
        if (!there) {
            IWP_TRY_GOTO(iwp_ids_add(&out->ids, begin, err));
            IWP_TRY_GOTO(add_codes(out, 0, IWP_CODE_TEXT, err));
            IWP_TRY_GOTO(add_segment(out, -1, 1, err));
        }
    }
    for (int32_t i = 0; i < l->n; i++) {
        const struct iwp_piece *p = &l->piece[i];
        switch (p->kind) {
        case IWP_PIECE_TEXT:
        case IWP_PIECE_USER:
            if (raw)
                IWP_TRY_GOTO(add_raw(m, &r, &st, p->text, p->n, err));
            else
                IWP_TRY_GOTO(
                    run_add_normalised(m, &r, p->text, p->n, p->kind == IWP_PIECE_USER, err));
            break;
        case IWP_PIECE_SPECIAL: {
            IWP_TRY_GOTO(flush(m, &r, raw, out, err));
            const int32_t from = out->ids.n, id = iwp_vocab_find(m->vocab, p->text);
            if (id < 0)
                IWP_FAIL(err, IWP_ENOTSUP,
                         "the vocabulary has no token %s, which the chat template needs; choose "
                         "another with --chat-template",
                         p->text);
            IWP_TRY_GOTO(iwp_ids_add(&out->ids, id, err));
            IWP_TRY_GOTO(add_codes(out, from, IWP_CODE_TEXT, err));
            IWP_TRY_GOTO(add_segment(out, -1, 1, err));
            break;
        }
        case IWP_PIECE_MEDIA:
            IWP_TRY_GOTO(flush(m, &r, raw, out, err));
            IWP_TRY_GOTO(add_segment(out, media++, 0, err));
            st.fresh = true;
            break;
        }
    }
    IWP_TRY_GOTO(flush(m, &r, raw, out, err));
fail:
    free(r.text);
    free(r.user);
    return rc;
}
