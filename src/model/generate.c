/* A whole answer from a session: picks, feeds, gives text out as whole characters, watches for stop
 * texts (which may begin in one token and end in another, so text that could be the start of one is
 * held back). */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "model/session.h"
#include "model/vocab.h"

void iwp_answer_free(struct iwp_answer *a) {
    free(a->text);
    free(a->token);
    memset(a, 0, sizeof *a);
}

struct writer {
    const struct iwp_generate_params *g;
    struct iwp_answer *a;
    struct iwp_utf8 utf8;
    size_t cap_text, given; /* bytes of the text already handed out */
    int32_t cap_token;
};

static int add_text(struct writer *w, const char *text, size_t n, iwp_err *err) {
    if (w->a->n_text + n + 1 > w->cap_text) {
        size_t cap = 2 * w->cap_text + n + 256;
        char *p = realloc(w->a->text, cap);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
        w->a->text = p;
        w->cap_text = cap;
    }
    memcpy(w->a->text + w->a->n_text, text, n);
    w->a->n_text += n;
    w->a->text[w->a->n_text] = 0;
    return 0;
}

static int add_token(struct writer *w, int32_t id, iwp_err *err) {
    if (w->a->n_token == w->cap_token) {
        int32_t cap = w->cap_token ? 2 * w->cap_token : 64;
        int32_t *p = realloc(w->a->token, (size_t)cap * sizeof *p);
        IWP_REQUIRE(p, err, IWP_ENOMEM, "out of memory");
        w->a->token = p;
        w->cap_token = cap;
    }
    w->a->token[w->a->n_token++] = id;
    return 0;
}

/* Bytes at the end of the text that a stop text may begin with. */
static size_t held(const struct writer *w) {
    size_t most = 0;
    for (const char *const *s = w->g->stop; s && *s; s++) {
        size_t n = strlen(*s), k = n ? n - 1 : 0;
        if (k > w->a->n_text) k = w->a->n_text;
        for (; k > most; k--)
            if (memcmp(w->a->text + w->a->n_text - k, *s, k) == 0) {
                most = k;
                break;
            }
    }
    return most;
}

/* Hands out what is certain; true: stop. */
static bool give(struct writer *w, bool end) {
    if (!w->a->text) return false;
    const char *cut = NULL;
    for (const char *const *s = w->g->stop; s && *s; s++) {
        if (!**s) continue;
        const char *at = strstr(w->a->text, *s);
        if (at && (!cut || at < cut)) cut = at;
    }
    if (cut) {
        w->a->n_text = (size_t)(cut - w->a->text);
        w->a->text[w->a->n_text] = 0;
    }
    size_t upto = w->a->n_text - (end || cut ? 0 : held(w));
    if (upto > w->given) {
        size_t from = w->given;
        w->given = upto;
        if (w->g->on_text && !w->g->on_text(w->g->ctx, w->a->text + from, upto - from)) return true;
    }
    return cut != NULL;
}

static int decode_piece(struct writer *w, const iwp_engine *e, int32_t id, iwp_err *err) {
    char piece[512], text[3 * (sizeof piece + 4)];
    int n = iwp_engine_token_text(e, id, piece, sizeof piece);
    if (n <= 0) return 0;
    if (n > (int)sizeof piece) n = (int)sizeof piece;
    size_t m = iwp_utf8_feed(&w->utf8, piece, (size_t)n, text);
    return add_text(w, text, m, err);
}

int iwp_session_generate(iwp_session *s, const struct iwp_generate_params *g,
                         struct iwp_answer *out, iwp_err *err) {
    memset(out, 0, sizeof *out);
    IWP_REQUIRE(s->has_logits, err, IWP_EINVAL, "generate: the prompt has not been run");
    struct writer w = {.g = g, .a = out};
    const double t0 = iwp_clock_ms();
    int rc = 0;
    out->finish = IWP_FINISH_LENGTH;
    IWP_TRY_GOTO(add_text(&w, "", 0, err));
    for (int32_t i = 0; g->n_predict < 0 || i < g->n_predict; i++) {
        const int32_t id = iwp_sampler_pick(g->sampler, s->logits, s->e->d.n_vocab);
        if (i == 0) out->ms_first = iwp_clock_ms() - t0;
        if (!g->ignore_eos && iwp_engine_token_is_end(s->e, id)) {
            out->finish = IWP_FINISH_STOP;
            break;
        }
        IWP_TRY_GOTO(add_token(&w, id, err));
        IWP_TRY_GOTO(decode_piece(&w, s->e, id, err));
        if (give(&w, false)) {
            out->finish = IWP_FINISH_STOP;
            break;
        }
        if (i + 1 == g->n_predict) break;
        if (s->p->n + s->n_fed >= s->sp.n_ctx) break; /* context full: finish "length" */
        rc = iwp_session_feed(s, id, err);
        if (rc == IWP_ECANCELLED) {
            out->finish = IWP_FINISH_CANCELLED;
            rc = 0;
            break;
        }
        if (rc < 0) goto fail;
    }
    char tail[16];
    IWP_TRY_GOTO(add_text(&w, tail, iwp_utf8_finish(&w.utf8, tail), err));
    give(&w, true);
    out->ms_decode = iwp_clock_ms() - t0 - out->ms_first;
    return 0;
fail:
    iwp_answer_free(out);
    return rc;
}
