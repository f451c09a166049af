/* Similarity maps of the last tokens of a prompt, visual and text: keys (rbf), values (cosine) and both
 * (the duplication iwp uses), diagonal masked, means of the blocks (spec/iwp.md 7.5).  The picture shows the
 * first sample; the numbers are means over all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"

enum { N_MAP = 3, N_BLOCK = 3 };
static const char *const map_name[N_MAP] = {"rbf", "cos_v", "dup"};
static const char *const map_title[N_MAP] = {"keys: exp(-|k-k'|² / 2√d)", "values: cosine",
                                             "updates: (cosine × keys)²"};
static const char *const block_name[N_BLOCK] = {"visual-visual", "visual-text", "text-text"};

struct maps {
    struct iwp_tally block[N_MAP][N_BLOCK]; /* block means of each sample */
    struct iwp_tally visual, text;          /* rows of each kind */
    double *first[N_MAP];                   /* of the first sample */
    int32_t n_first, split;
    char id[100];
};

static bool is_visual(const struct iwp_acts *x, int32_t row) {
    return x->p->code[row] == IWP_CODE_VISUAL || x->p->code[row] == IWP_CODE_SEPARATOR;
}

static void add_blocks(struct maps *m, const struct iwp_acts *x, const int32_t *row, int32_t n,
                       double *const *map) {
    for (int k = 0; k < N_MAP; k++) {
        struct iwp_tally block[N_BLOCK] = {{0}};
        for (int32_t i = 0; i < n; i++)
            for (int32_t j = 0; j < n; j++) {
                const int text = !is_visual(x, row[i]) + !is_visual(x, row[j]);
                if (i != j) iwp_tally_add(&block[text], map[k][(size_t)i * (size_t)n + (size_t)j]);
            }
        for (int b = 0; b < N_BLOCK; b++) iwp_tally_add(&m->block[k][b], iwp_tally_mean(&block[b]));
    }
}

static int at_layer(void *ctx, struct iwp_analyse *a, const struct iwp_acts *x, iwp_err *err) {
    struct maps *m = ctx;
    const int32_t n = x->n < a->job->tokens ? x->n : a->job->tokens;
    int32_t *row = malloc((size_t)n * sizeof *row), visual = 0, split = 0;
    double *map[N_MAP] = {NULL, NULL, NULL};
    int rc = 0;
    for (int k = 0; k < N_MAP; k++) map[k] = malloc((size_t)n * (size_t)n * sizeof *map[k]);
    if (!row || !map[0] || !map[1] || !map[2]) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < n; i++) {
        row[i] = x->n - n + i;
        visual += is_visual(x, row[i]);
        if (is_visual(x, row[i])) split = i + 1;
    }
    IWP_TRY_GOTO(
        iwp_analysis_similarity(&x->k_rope_arr, &x->v_arr, row, n, map[0], map[1], map[2], err));
    add_blocks(m, x, row, n, map);
    iwp_tally_add(&m->visual, visual);
    iwp_tally_add(&m->text, n - visual);
    if (!m->first[0]) {
        for (int k = 0; k < N_MAP; k++) m->first[k] = map[k], map[k] = NULL;
        m->n_first = n;
        m->split = split;
    }
fail:
    free(row);
    for (int k = 0; k < N_MAP; k++) free(map[k]);
    return rc < 0 ? rc : 0;
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                      const iwp_prompt *p, iwp_err *err) {
    struct maps *m = ctx;
    const bool first = !m->first[0];
    IWP_TRY(iwp_acts_walk(a, p, a->layer, a->layer + 1, false, at_layer, m, err));
    if (first) snprintf(m->id, sizeof m->id, "%.90s", s->id);
    return 0;
}

static void draw(const struct maps *m, struct iwp_finding *f) {
    const int32_t n = m->n_first;
    double x = IWP_CHART_LEFT;
    for (int k = 0; k < N_MAP; k++) {
        for (int32_t i = 0; i < n; i++) m->first[k][(size_t)i * (size_t)(n + 1)] = NAN;
        const struct iwp_chart_heat h = {.title = map_title[k],
                                         .rows = n,
                                         .cols = n,
                                         .value = m->first[k],
                                         .lo = k == 1 ? NAN : 0,
                                         .hi = NAN,
                                         .diverging = k == 1,
                                         .split = m->split};
        x += iwp_chart_heat(&f->chart, x, IWP_CHART_TOP + 8, &h).w + IWP_CHART_GAP;
    }
    char note[240];
    snprintf(note, sizeof note,
             "Sample %.90s, its last %d tokens in the order of the prompt; right of and below the "
             "red line: text.",
             m->id, n);
    iwp_chart_note(&f->chart, IWP_CHART_LEFT, f->chart.height + 22, note);
}

int iwp_analyse_similarity(struct iwp_analyse *a, struct iwp_finding *f, iwp_err *err) {
    struct maps m;
    memset(&m, 0, sizeof m);
    int rc = 0;
    IWP_TRY_GOTO(iwp_analyse_each(a, f, 1, one_sample, &m, err));
    iwp_json_put_int(&f->json, "tokens", a->job->tokens);
    iwp_tally_json(&f->json, "visual_rows", &m.visual);
    iwp_tally_json(&f->json, "text_rows", &m.text);
    for (int k = 0; k < N_MAP; k++) {
        iwp_json_open_object(&f->json, map_name[k]);
        for (int b = 0; b < N_BLOCK; b++) iwp_tally_json(&f->json, block_name[b], &m.block[k][b]);
        iwp_json_close_object(&f->json);
    }
    iwp_json_open_object(&f->json, "first");
    iwp_json_put_string(&f->json, "id", m.id);
    for (int k = 0; k < N_MAP; k++) {
        iwp_json_open_array(&f->json, map_name[k]);
        for (int32_t i = 0; i < m.n_first; i++) {
            iwp_json_open_array(&f->json, NULL);
            for (int32_t j = 0; j < m.n_first; j++)
                iwp_json_put_f32(&f->json, NULL,
                                 (float)m.first[k][(size_t)i * (size_t)m.n_first + (size_t)j]);
            iwp_json_close_array(&f->json);
        }
        iwp_json_close_array(&f->json);
    }
    iwp_json_close_object(&f->json);
    fprintf(f->text,
            "Of the last %d tokens %.0f are visual and %.0f text (mean). Mean similarity, "
            "diagonal left out:\n",
            a->job->tokens, iwp_tally_mean(&m.visual), iwp_tally_mean(&m.text));
    for (int k = 0; k < N_MAP; k++)
        fprintf(f->text, "  %-6s visual-visual %.3f, visual-text %.3f, text-text %.3f\n",
                map_name[k], iwp_tally_mean(&m.block[k][0]), iwp_tally_mean(&m.block[k][1]),
                iwp_tally_mean(&m.block[k][2]));
    const double vv = iwp_tally_mean(&m.block[2][0]), tt = iwp_tally_mean(&m.block[2][2]);
    if (vv > 0 && tt > 0)
        fprintf(f->text,
                "Visual tokens repeat each other's update %.3g times %s than text tokens "
                "do.\n",
                vv >= tt ? vv / tt : tt / vv, vv >= tt ? "more" : "less");
    draw(&m, f);
fail:
    for (int k = 0; k < N_MAP; k++) free(m.first[k]);
    return rc < 0 ? rc : 0;
}
