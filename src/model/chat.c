/* Chat templates: see chat.h.  Refuses roles other than system, user and assistant, a system turn that
 * is not the first, media in turns that are not the user's, and templates it does not know. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "model/chat.h"

enum style { STYLE_TURNS, STYLE_LLAMA2, STYLE_VICUNA };
enum media_place {
    MEDIA_IN_PLACE,   /* where it stands among the texts */
    MEDIA_FIRST,      /* pictures, then videos, then a line break before every text */
    MEDIA_FIRST_LINE, /* media with spaces between, one line break, texts */
};

struct iwp_chat_template {
    const char *name;
    enum style style;
    const char *begin;                    /* special token, NULL: the vocabulary's own */
    const char *open, *open_end;          /* special tokens around the role; open_end may be NULL */
    const char *after_role;               /* text */
    const char *close;                    /* special token */
    const char *after_close;              /* text */
    const char *generation;               /* text after `open` for the assistant's turn */
    const char *system;                   /* when the messages have none; NULL: nothing */
    const char *media_open, *media_close; /* special tokens */
    enum media_place place;
    bool trim;        /* white space around texts goes */
    uint64_t hash[6]; /* of Jinja texts it renders */
};

#define CHATML                                                                                     \
    .open = "<|im_start|>", .after_role = "\n", .close = "<|im_end|>", .after_close = "\n",        \
    .generation = "assistant\n"

static const struct iwp_chat_template table[] = {
    {.name = "chatml", CHATML, .hash = {0xad70d358c7c293ca}},
    {.name = "qwen2-vl",
     CHATML,
     .system = "You are a helpful assistant.",
     .media_open = "<|vision_start|>",
     .media_close = "<|vision_end|>",
     .hash = {0xb2bb11d84deaf152, 0x350327e9f3ab2434}},
    {.name = "qwen2",
     CHATML,
     .system = "You are a helpful assistant.",
     .hash = {0x9f6d9b9336d278a1}},
    {.name = "qwen2.5",
     CHATML,
     .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     .hash = {0x1a283b297d5bfbd3}},
    {.name = "llava-onevision",
     .open = "<|im_start|>",
     .after_role = " ",
     .close = "<|im_end|>",
     .after_close = "",
     .generation = "assistant\n",
     .place = MEDIA_FIRST,
     .hash = {0x30f848c62ce5c6ca, 0x1b5b16838fe9ff8c}},
    {.name = "qwen_1_5",
     CHATML,
     .system = "You are a helpful assistant.",
     .place = MEDIA_FIRST_LINE},
    {.name = "smollm2",
     CHATML,
     .system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     .hash = {0x07193ef762f1c148}},
    {.name = "llama3",
     .begin = "<|begin_of_text|>",
     .open = "<|start_header_id|>",
     .open_end = "<|end_header_id|>",
     .after_role = "\n\n",
     .close = "<|eot_id|>",
     .after_close = "",
     .generation = "assistant",
     .trim = true,
     .hash = {0xa56bba665e41750c}},
    {.name = "llama2", .style = STYLE_LLAMA2, .begin = "<s>", .close = "</s>"},
    {.name = "vicuna",
     .style = STYLE_VICUNA,
     .begin = "<s>",
     .close = "</s>",
     .system = "A chat between a curious human and an artificial intelligence assistant. The "
               "assistant gives helpful, detailed, and polite answers to the human's questions.",
     .place = MEDIA_FIRST_LINE},
};
#undef CHATML
enum { N_TEMPLATE = sizeof table / sizeof table[0] };

const char *iwp_chat_names(void) {
    return "chatml, qwen2-vl, qwen2, qwen2.5, llava-onevision, qwen_1_5, smollm2, llama3, llama2, "
           "vicuna, none";
}

const char *iwp_chat_name(const struct iwp_chat_template *t) { return t->name; }

void iwp_chat_media_marks(const struct iwp_chat_template *t, const char **open,
                          const char **close) {
    *open = t ? t->media_open : NULL;
    *close = t ? t->media_close : NULL;
}

uint64_t iwp_chat_hash(const char *s) {
    uint64_t h = IWP_FNV64_INIT;
    for (; *s; s++) {
        if (*s == ' ' || *s == '\n' || *s == '\r' || *s == '\t') continue;
        if (s[0] == '\\' && s[1] == 'n') {
            s++;
            continue;
        }
        h = iwp_fnv64(h, s, 1);
    }
    return h;
}

const struct iwp_chat_template *iwp_chat_detect(const char *jinja) {
    uint64_t h = iwp_chat_hash(jinja);
    for (int i = 0; i < N_TEMPLATE; i++)
        for (size_t k = 0; k < sizeof table[i].hash / sizeof table[i].hash[0]; k++)
            if (table[i].hash[k] == h) return &table[i];
    return NULL;
}

const struct iwp_chat_template *iwp_chat_find(const char *name, iwp_err *err) {
    for (int i = 0; i < N_TEMPLATE; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    if (strstr(name, "{%") || strstr(name, "{{")) { /* the Jinja text itself */
        const struct iwp_chat_template *t = iwp_chat_detect(name);
        if (t) return t;
        iwp_err_set(err, IWP_ENOTSUP, "--chat-template: this Jinja text is not known; one of %s",
                    iwp_chat_names());
        return NULL;
    }
    iwp_err_set(err, IWP_EINVAL, "--chat-template %.60s: not known; one of %s", name,
                iwp_chat_names());
    return NULL;
}

/* ---- Pieces -------------------------------------------------------------------------------- */

void iwp_pieces_free(struct iwp_pieces *l) {
    free(l->piece);
    *l = (struct iwp_pieces){0};
}

int iwp_pieces_add(struct iwp_pieces *l, struct iwp_piece p, iwp_err *err) {
    if (p.kind != IWP_PIECE_MEDIA && !p.n) return 0;
    if (l->n == l->cap) {
        int32_t cap = l->cap ? 2 * l->cap : 32;
        IWP_REQUIRE(cap < 1 << 24, err, IWP_EINVAL, "the conversation has too many parts");
        struct iwp_piece *q = realloc(l->piece, (size_t)cap * sizeof *q);
        IWP_REQUIRE(q, err, IWP_ENOMEM, "no memory for the conversation");
        l->piece = q;
        l->cap = cap;
    }
    l->piece[l->n++] = p;
    return 0;
}

static int add(struct iwp_pieces *l, enum iwp_piece_kind kind, const char *text, iwp_err *err) {
    if (!text) return 0;
    return iwp_pieces_add(l, (struct iwp_piece){kind, text, strlen(text), NULL}, err);
}

static int add_part(const struct iwp_chat_template *t, struct iwp_pieces *l,
                    enum iwp_piece_kind kind, const struct iwp_part *p, iwp_err *err) {
    if (p->kind == IWP_PART_TEXT) {
        const char *s = p->text ? p->text : "";
        size_t n = strlen(s);
        if (t->trim) {
            while (n && strchr(" \t\r\n", s[n - 1])) n--;
            while (n && strchr(" \t\r\n", *s)) s++, n--;
        }
        return iwp_pieces_add(l, (struct iwp_piece){kind, s, n, NULL}, err);
    }
    IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->media_open, err));
    IWP_TRY(iwp_pieces_add(l, (struct iwp_piece){IWP_PIECE_MEDIA, NULL, 0, p}, err));
    return add(l, IWP_PIECE_SPECIAL, t->media_close, err);
}

/* The parts of one message, in the template's order. */
static int add_content(const struct iwp_chat_template *t, const struct iwp_message *m,
                       struct iwp_pieces *l, iwp_err *err) {
    const enum iwp_piece_kind kind = strcmp(m->role, "user") == 0 ? IWP_PIECE_USER : IWP_PIECE_TEXT;
    if (t->place == MEDIA_IN_PLACE) {
        for (int32_t i = 0; i < m->n_part; i++) IWP_TRY(add_part(t, l, kind, &m->part[i], err));
        return 0;
    }
    int32_t n_media = 0;
    for (int pass = 0; pass < 2; pass++) {
        const enum iwp_part_kind want = pass ? IWP_PART_VIDEO : IWP_PART_IMAGE;
        for (int32_t i = 0; i < m->n_part; i++) {
            if (m->part[i].kind != want) continue;
            if (n_media++ && t->place == MEDIA_FIRST_LINE)
                IWP_TRY(add(l, IWP_PIECE_TEXT, " ", err));
            IWP_TRY(add_part(t, l, kind, &m->part[i], err));
        }
    }
    if (n_media && t->place == MEDIA_FIRST_LINE) IWP_TRY(add(l, IWP_PIECE_TEXT, "\n", err));
    for (int32_t i = 0; i < m->n_part; i++) {
        if (m->part[i].kind != IWP_PART_TEXT) continue;
        if (t->place == MEDIA_FIRST) IWP_TRY(add(l, IWP_PIECE_TEXT, "\n", err));
        IWP_TRY(add_part(t, l, kind, &m->part[i], err));
    }
    return 0;
}

static int render_turns(const struct iwp_chat_template *t, const struct iwp_message *m, int32_t n,
                        bool generation, struct iwp_pieces *l, iwp_err *err) {
    const struct iwp_part words = {.kind = IWP_PART_TEXT, .text = t->system};
    const struct iwp_message standard = {"system", &words, 1};
    for (int32_t i = t->system && strcmp(m[0].role, "system") != 0 ? -1 : 0; i < n; i++) {
        const struct iwp_message *turn = i < 0 ? &standard : &m[i];
        IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->open, err));
        IWP_TRY(add(l, IWP_PIECE_TEXT, turn->role, err));
        IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->open_end, err));
        IWP_TRY(add(l, IWP_PIECE_TEXT, t->after_role, err));
        IWP_TRY(add_content(t, turn, l, err));
        IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->close, err));
        IWP_TRY(add(l, IWP_PIECE_TEXT, t->after_close, err));
    }
    if (!generation) return 0;
    IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->open, err));
    IWP_TRY(add(l, IWP_PIECE_TEXT, t->generation, err));
    if (!t->open_end) return 0;
    IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->open_end, err));
    return add(l, IWP_PIECE_TEXT, t->after_role, err);
}

static int render_llama2(const struct iwp_chat_template *t, const struct iwp_message *m, int32_t n,
                         struct iwp_pieces *l, iwp_err *err) {
    const struct iwp_message *sys = strcmp(m[0].role, "system") == 0 ? m : NULL;
    for (int32_t i = sys ? 1 : 0; i < n; i++) {
        if (strcmp(m[i].role, "user") == 0) {
            if (i > (sys ? 1 : 0)) IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->begin, err));
            IWP_TRY(add(l, IWP_PIECE_TEXT, "[INST] ", err));
            if (sys) {
                IWP_TRY(add(l, IWP_PIECE_TEXT, "<<SYS>>\n", err));
                IWP_TRY(add_content(t, sys, l, err));
                IWP_TRY(add(l, IWP_PIECE_TEXT, "\n<</SYS>>\n\n", err));
                sys = NULL;
            }
            IWP_TRY(add_content(t, &m[i], l, err));
            IWP_TRY(add(l, IWP_PIECE_TEXT, " [/INST]", err));
        } else {
            IWP_TRY(add(l, IWP_PIECE_TEXT, " ", err));
            IWP_TRY(add_content(t, &m[i], l, err));
            IWP_TRY(add(l, IWP_PIECE_TEXT, " ", err));
            IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->close, err));
        }
    }
    return 0;
}

static int render_vicuna(const struct iwp_chat_template *t, const struct iwp_message *m, int32_t n,
                         bool generation, struct iwp_pieces *l, iwp_err *err) {
    int32_t i = 0;
    if (strcmp(m[0].role, "system") == 0)
        IWP_TRY(add_content(t, &m[i++], l, err));
    else
        IWP_TRY(add(l, IWP_PIECE_TEXT, t->system, err));
    IWP_TRY(add(l, IWP_PIECE_TEXT, " ", err));
    for (; i < n; i++) {
        const bool user = strcmp(m[i].role, "user") == 0;
        IWP_TRY(add(l, IWP_PIECE_TEXT, user ? "USER: " : "ASSISTANT: ", err));
        IWP_TRY(add_content(t, &m[i], l, err));
        if (user)
            IWP_TRY(add(l, IWP_PIECE_TEXT, " ", err));
        else
            IWP_TRY(add(l, IWP_PIECE_SPECIAL, t->close, err));
    }
    return generation ? add(l, IWP_PIECE_TEXT, "ASSISTANT:", err) : 0;
}

int iwp_chat_render(const struct iwp_chat_template *t, const struct iwp_message *m, int32_t n,
                    bool generation, struct iwp_pieces *out, iwp_err *err) {
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "there is no message to answer");
    for (int32_t i = 0; i < n; i++) {
        const bool user = strcmp(m[i].role, "user") == 0, sys = strcmp(m[i].role, "system") == 0;
        IWP_REQUIRE(user || sys || strcmp(m[i].role, "assistant") == 0, err, IWP_EINVAL,
                    "message %d: role '%.40s' is none of system, user, assistant", i, m[i].role);
        IWP_REQUIRE(!sys || i == 0, err, IWP_EINVAL,
                    "message %d: the system message must be the first", i);
        for (int32_t k = 0; k < m[i].n_part && !user; k++)
            IWP_REQUIRE(m[i].part[k].kind == IWP_PART_TEXT, err, IWP_EINVAL,
                        "message %d: only user messages can have pictures or videos", i);
    }
    if (t->begin) IWP_TRY(add(out, IWP_PIECE_SPECIAL, t->begin, err));
    switch (t->style) {
    case STYLE_LLAMA2: return render_llama2(t, m, n, out, err);
    case STYLE_VICUNA: return render_vicuna(t, m, n, generation, out, err);
    default: return render_turns(t, m, n, generation, out, err);
    }
}

/* ---- Verbatim prompts ---------------------------------------------------------------------- */

struct mark {
    const char *text;
    enum iwp_part_kind kind;
    bool own; /* the model's: stands between its own marks already */
};

static int add_media(struct iwp_pieces *l, const struct iwp_part *p,
                     const struct iwp_raw_marks *marks, bool wrap, iwp_err *err) {
    if (wrap) IWP_TRY(add(l, IWP_PIECE_SPECIAL, marks->open, err));
    IWP_TRY(iwp_pieces_add(l, (struct iwp_piece){IWP_PIECE_MEDIA, NULL, 0, p}, err));
    return wrap ? add(l, IWP_PIECE_SPECIAL, marks->close, err) : 0;
}

int iwp_chat_raw(const char *raw, const struct iwp_part *media, int32_t n_media,
                 const struct iwp_raw_marks *marks, struct iwp_pieces *out, iwp_err *err) {
    const struct mark known[] = {
        {marks->image, IWP_PART_IMAGE, true},
        {marks->video, IWP_PART_VIDEO, true},
        {"<image>", IWP_PART_IMAGE, false},
        {"<video>", IWP_PART_VIDEO, false},
    };
    int32_t n_mark = 0, next = 0;
    for (int pass = 0; pass < 2; pass++) { /* count, then replace */
        if (pass && !n_mark)
            for (; next < n_media; next++) IWP_TRY(add_media(out, &media[next], marks, true, err));
        const char *from = raw;
        for (const char *s = raw; *s;) {
            const struct mark *hit = NULL;
            for (size_t k = 0; *s == '<' && k < sizeof known / sizeof known[0] && !hit; k++)
                if (known[k].text && strncmp(s, known[k].text, strlen(known[k].text)) == 0)
                    hit = &known[k];
            if (!hit) {
                s++;
                continue;
            }
            if (!pass) {
                n_mark++;
            } else if (n_media) { /* without media the marks are text */
                IWP_REQUIRE(next < n_media, err, IWP_EINVAL,
                            "the prompt has %d marks for pictures and videos, %d were given",
                            n_mark, n_media);
                IWP_REQUIRE(media[next].kind == hit->kind, err, IWP_EINVAL,
                            "mark %d of the prompt is %s, but what was given is a %s", next + 1,
                            hit->text, media[next].kind == IWP_PART_IMAGE ? "picture" : "video");
                IWP_TRY(iwp_pieces_add(
                    out, (struct iwp_piece){IWP_PIECE_TEXT, from, (size_t)(s - from), NULL}, err));
                IWP_TRY(add_media(out, &media[next++], marks, !hit->own, err));
                from = s + strlen(hit->text);
            }
            s += strlen(hit->text);
        }
        if (pass) IWP_TRY(add(out, IWP_PIECE_TEXT, from, err));
    }
    IWP_REQUIRE(next == n_media, err, IWP_EINVAL,
                "the prompt has %d marks for pictures and videos, %d were given", n_mark, n_media);
    return 0;
}
