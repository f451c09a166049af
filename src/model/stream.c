/* Rows of a prompt and what a selection does to them: see stream.h. */
#include "model/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static bool is_visual(uint8_t c) { return c == IWP_CODE_VISUAL || c == IWP_CODE_SEPARATOR; }

int iwp_stream_embed(const struct iwp_decoder *d, const struct iwp_prompt *p, int32_t row,
                     int32_t visual, float *out, iwp_err *err) {
    if (visual < 0) return iwp_weights_row(d->weights, d->embed, p->id[row], out, err);
    memcpy(out, p->visual + (size_t)visual * (size_t)d->d_model, (size_t)d->d_model * sizeof *out);
    return 0;
}

static int check_prompt(const struct iwp_decoder *d, const struct iwp_prompt *p, iwp_err *err) {
    IWP_REQUIRE(p->n > 0, err, IWP_EINVAL, "the prompt is empty");
    IWP_REQUIRE(p->n_pos == d->n_pos, err, IWP_EINVAL,
                "the prompt has %d rows of positions, the model wants %d", p->n_pos, d->n_pos);
    IWP_REQUIRE(p->n_visual == 0 || p->d_model == d->d_model, err, IWP_ENOTSUP,
                "the projector makes rows of %d numbers, the model wants %d: the mmproj file is of "
                "another model",
                p->d_model, d->d_model);
    int32_t nv = 0;
    for (int32_t i = 0; i < p->n; i++) {
        if (is_visual(p->code[i]))
            nv++;
        else
            IWP_REQUIRE(p->id[i] >= 0 && p->id[i] < d->n_vocab, err, IWP_EINVAL,
                        "token %d of the prompt has id %d, the model knows 0 to %d", i, p->id[i],
                        d->n_vocab - 1);
    }
    IWP_REQUIRE(nv == p->n_visual, err, IWP_EINTERNAL, "%d visual tokens, %d visual rows", nv,
                p->n_visual);
    return 0;
}

int iwp_stream_init(struct iwp_stream *r, const struct iwp_decoder *d, const struct iwp_prompt *p,
                    iwp_err *err) {
    memset(r, 0, sizeof *r);
    IWP_TRY(check_prompt(d, p, err));
    const size_t n = (size_t)p->n;
    r->n = p->n;
    r->d = d->d_model;
    r->n_pos = p->n_pos;
    r->h = malloc(n * (size_t)r->d * sizeof *r->h);
    r->pos = malloc(n * (size_t)r->n_pos * sizeof *r->pos);
    r->src = malloc(n * sizeof *r->src);
    r->visual = malloc(n * sizeof *r->visual);
    r->code = malloc(n);
    if (!r->h || !r->pos || !r->src || !r->visual || !r->code) {
        iwp_stream_free(r);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory for a prompt of %d tokens", p->n);
    }
    int32_t nv = 0;
    for (int32_t i = 0; i < p->n; i++) {
        r->src[i] = i;
        r->code[i] = p->code[i];
        r->visual[i] = is_visual(p->code[i]) ? nv++ : -1;
        const int rc =
            iwp_stream_embed(d, p, i, r->visual[i], r->h + (size_t)i * (size_t)r->d, err);
        if (rc < 0) {
            iwp_stream_free(r);
            return rc;
        }
    }
    for (size_t i = 0; i < n * (size_t)r->n_pos; i++) r->pos[i] = (int32_t)p->pos[i];
    r->next_pos = (int32_t)p->next_pos;
    return 0;
}

void iwp_stream_free(struct iwp_stream *r) {
    free(r->h);
    free(r->pos);
    free(r->src);
    free(r->visual);
    free(r->code);
    free(r->log_size);
    memset(r, 0, sizeof *r);
}

/* Sums of old rows, made before anything moves; or merged[k] for the k-th distinct `to`. */
static int merge_rows(struct iwp_stream *r, const int32_t *row_of, const struct iwp_selection *sel,
                      const float *merged, iwp_err *err) {
    if (sel->n_merge == 0) return 0;
    const size_t d = (size_t)r->d;
    size_t n = 0;
    float *old = malloc((size_t)r->n * d * sizeof *old);
    uint8_t *seen = calloc((size_t)r->n, 1);
    if (!old || !seen) {
        free(old);
        free(seen);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    memcpy(old, r->h, (size_t)r->n * d * sizeof *old);
    for (int32_t m = 0; m < sel->n_merge; m++) {
        const int32_t to = row_of[sel->merge[m].to], from = row_of[sel->merge[m].from];
        float *y = r->h + (size_t)to * d;
        const float *x = old + (size_t)from * d, w = sel->merge[m].weight;
        if (!seen[to]) memset(y, 0, d * sizeof *y);
        if (merged && !seen[to]) memcpy(y, merged + n++ * d, d * sizeof *y);
        seen[to] = 1;
        for (size_t i = 0; i < d && !merged; i++) y[i] += w * x[i];
    }
    free(old);
    free(seen);
    return 0;
}

int iwp_stream_apply(struct iwp_stream *r, const struct iwp_selection *sel, const float *merged,
                     bool compact, iwp_err *err) {
    const size_t d = (size_t)r->d;
    int32_t n_visual = 0;
    int32_t *row_of = malloc((size_t)r->n * sizeof *row_of); /* visual number -> row */
    float *size = sel->has_sizes || r->log_size ? calloc((size_t)r->n, sizeof *size) : NULL;
    int rc = 0;
    if (!row_of || ((sel->has_sizes || r->log_size) && !size))
        IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < r->n; i++)
        if (r->visual[i] >= 0) row_of[n_visual++] = i;
    for (int32_t i = 0; i < sel->n_keep; i++)
        if (sel->keep[i] < 0 || sel->keep[i] >= n_visual || (i && sel->keep[i] <= sel->keep[i - 1]))
            IWP_FAIL(err, IWP_EINTERNAL, "the selection is not an ascending list of visual tokens");
    IWP_TRY_GOTO(merge_rows(r, row_of, sel, merged, err));
    int32_t k = 0, seen = 0, out = 0;
    const int32_t n_old = r->n;
    for (int32_t i = 0; i < n_old; i++) {
        bool stays = true;
        float log_size = r->log_size ? r->log_size[i] : 0;
        if (r->visual[i] >= 0) {
            stays = k < sel->n_keep && sel->keep[k] == seen;
            if (stays && sel->has_sizes && sel->sizes)
                log_size += logf((float)(sel->sizes[k] > 0 ? sel->sizes[k] : 1));
            k += stays;
            seen++;
        }
        if (!stays) continue;
        if (out != i) {
            memcpy(r->h + (size_t)out * d, r->h + (size_t)i * d, d * sizeof *r->h);
            r->src[out] = r->src[i];
            r->visual[out] = r->visual[i];
            r->code[out] = r->code[i];
        }
        if (size) size[out] = log_size;
        row_of[out++] = i; /* from here on: old row of each new one; out <= i never overtakes */
    }
    /* Rows of positions move together: new row count, same number of rows of ids. */
    for (int32_t p = 0; p < r->n_pos; p++)
        for (int32_t i = 0; i < out; i++)
            r->pos[(size_t)p * (size_t)out + (size_t)i] =
                compact ? i : r->pos[(size_t)p * (size_t)n_old + (size_t)row_of[i]];
    if (compact) {
        r->next_pos = out;
        r->renumbered = true;
    }
    r->n = out;
    free(r->log_size);
    r->log_size = size;
    size = NULL;
fail:
    free(row_of);
    free(size);
    return rc < 0 ? rc : 0;
}
