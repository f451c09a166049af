/* Selections of real decoder layers, against what the reference implementation gave: magnitudes to
 * 1e-4, kept sets equal, every switch.  tests/data/prune is cut out of the golden vectors by
 * make_golden.py; when the whole set is there (IWP_SHARED or ../shared), all its cases are checked. */
#include "test.h"

#include <dirent.h>
#include <unistd.h>

#include "io/safetensors.h"
#include "iwp/analysis.h"
#include "iwp/prune.h"

static float *floats(const iwp_st *st, const char *name, const struct iwp_st_tensor **t) {
    iwp_err err;
    *t = iwp_st_find(st, name);
    if (!*t) return NULL;
    float *x = malloc(sizeof *x * (size_t)(*t)->n);
    CHECK_MSG(iwp_st_read_f32(*t, 0, (*t)->n, x, &err) == 0, "%s", err.msg);
    return x;
}

static int64_t *ints(const iwp_st *st, const char *name, int64_t *n) {
    iwp_err err;
    const struct iwp_st_tensor *t = iwp_st_find(st, name);
    if (!t) return NULL;
    int64_t *x = malloc(sizeof *x * (size_t)t->n);
    *n = t->n;
    CHECK_MSG(iwp_st_read_i64(t, 0, t->n, x, &err) == 0, "%s", err.msg);
    return x;
}

struct layer {
    struct iwp_input in;
    uint8_t *code;
    float *mem[6];
    int32_t n_visual, *keep;
    float *scores;
    const char *path;
};

static int select_with(struct layer *l, const char *options, double keep) {
    struct iwp_params p;
    iwp_err err = {0};
    iwp_params_default(&p, iwp_method_find("iwp"));
    CHECK_MSG(iwp_params_parse(&p, options, &err) == 0, "%s", err.msg);
    p.budget.keep = keep;
    int64_t bytes = iwp_select_workspace(&p, &l->in, NULL, &err);
    void *ws = malloc(bytes > 0 ? (size_t)bytes : 1);
    struct iwp_selection sel = {.keep = l->keep, .scores = l->scores};
    int rc =
        bytes < 0 ? (int)bytes : iwp_select(&p, &l->in, NULL, ws, (size_t)bytes, NULL, &sel, &err);
    free(ws);
    CHECK_MSG(rc == 0, "%s [%s]: %s", l->path, options, err.msg);
    return rc < 0 ? rc : sel.n_keep;
}

static void check_kept(struct layer *l, const iwp_st *st, const char *tensor, const char *options,
                       double keep) {
    int64_t n = 0, *want = ints(st, tensor, &n);
    if (!want) return;
    int got = select_with(l, options, keep), differ = got != n;
    for (int i = 0; !differ && i < got; i++) differ = l->keep[i] != want[i];
    CHECK_MSG(!differ, "%s %s: another set (%d kept, want %d)", l->path, tensor, got, (int)n);
    free(want);
}

static void check_scores(struct layer *l, const iwp_st *st, const char *tensor,
                         const char *options) {
    const struct iwp_st_tensor *t;
    float *want = floats(st, tensor, &t);
    if (!want) return;
    if (select_with(l, options, 0.222) > 0)
        for (int i = 0; i < l->n_visual; i++)
            CHECK_MSG(fabs((double)l->scores[i] - (double)want[i]) <=
                          1e-4 * fabs((double)want[i]) + 1e-7,
                      "%s %s[%d]: %.7g, want %.7g", l->path, tensor, i, (double)l->scores[i],
                      (double)want[i]);
    free(want);
}

/* The maps of the similarity figure against the reference's, as far as the file has them: all visual
 * tokens in the full set, the first ones in the committed part. */
static int check_similarity(const struct layer *l, const iwp_st *st) {
    static const struct {
        const char *name;
        enum iwp_tensor key;
        int map; /* rbf, cos_v, dup */
    } maps[] = {{"switch.D.duplication=rbf", IWP_TENSOR_K_ROPE, 0},
                {"switch.D.duplication=cos_v", IWP_TENSOR_K_ROPE, 1},
                {"switch.D.duplication=dw", IWP_TENSOR_K_ROPE, 2},
                {"switch.D.duplication-rope=0", IWP_TENSOR_K, 2}};
    int done = 0;
    for (size_t m = 0; m < sizeof maps / sizeof *maps; m++) {
        const struct iwp_st_tensor *t;
        float *want = floats(st, maps[m].name, &t);
        if (!want) continue;
        const int32_t n = (int32_t)t->shape[0];
        int32_t *row = malloc(sizeof *row * (size_t)n), at = 0;
        double *got = malloc(sizeof *got * (size_t)t->n), worst = 0;
        for (int32_t i = 0; i < l->in.n && at < n; i++)
            if (l->code[i] == IWP_CODE_VISUAL) row[at++] = i;
        iwp_err err = {0};
        CHECK_INT(at, n);
        CHECK_MSG(iwp_analysis_similarity(&l->in.arr[maps[m].key], &l->in.arr[IWP_TENSOR_V], row, n,
                                          maps[m].map == 0 ? got : NULL,
                                          maps[m].map == 1 ? got : NULL,
                                          maps[m].map == 2 ? got : NULL, &err) == 0,
                  "%s", err.msg);
        /* The reference counts a negative cosine as no duplication; the figure shows it. */
        for (int64_t i = 0; i < t->n; i++) {
            const double x = got[i] < 0 ? 0 : got[i];
            worst = fmax(worst, fabs(x - (double)want[i]));
        }
        CHECK_MSG(worst <= 1e-5, "%s %s: off by %g", l->path, maps[m].name, worst);
        free(want), free(row), free(got);
        done++;
    }
    return done;
}

/* Returns how many comparisons the file offered. */
static int check_file(const char *path) {
    static const struct {
        enum iwp_tensor t;
        const char *name;
    } arrays[] = {{IWP_TENSOR_Q, "iwp.q"},           {IWP_TENSOR_K, "iwp.k"},
                  {IWP_TENSOR_V, "iwp.v"},           {IWP_TENSOR_K_ROPE, "iwp.k_rope"},
                  {IWP_TENSOR_Q_ROPE, "iwp.q_rope"}, {IWP_TENSOR_H, "hidden_4"}};
    iwp_st *st = NULL;
    iwp_err err;
    struct layer l = {.path = strrchr(path, '/') + 1};
    int done = 0;
    CHECK_MSG(iwp_st_open(&st, path, &err) == 0, "%s", err.msg);
    if (!st) return 0;
    int64_t n = 0, m = 0, *visual = ints(st, "visual_mask", &n), *user = ints(st, "user_mask", &m);
    if (!visual || !iwp_st_find(st, "iwp.P")) goto done; /* a prompt without pictures */
    l.code = calloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++) {
        l.code[i] = visual[i] ? IWP_CODE_VISUAL : user && user[i] ? IWP_CODE_USER : IWP_CODE_TEXT;
        l.n_visual += visual[i] != 0;
    }
    l.in.n = (int32_t)n;
    l.in.code = l.code;
    l.keep = malloc(sizeof *l.keep * (size_t)l.n_visual);
    l.scores = malloc(sizeof *l.scores * (size_t)l.n_visual);
    for (int i = 0; i < 6; i++) {
        const struct iwp_st_tensor *t;
        l.mem[i] = floats(st, arrays[i].name, &t);
        if (!l.mem[i]) continue;
        int32_t heads = t->rank == 3 ? (int32_t)t->shape[1] : 1;
        l.in.arr[arrays[i].t] =
            iwp_array_f32(l.mem[i], (int32_t)t->shape[0], heads, (int32_t)t->shape[t->rank - 1]);
    }
    check_scores(&l, st, "iwp.P", "");
    check_kept(&l, st, "iwp.0.353.kept", "", 0.353);
    check_kept(&l, st, "iwp.0.222.kept", "", 0.222);
    check_kept(&l, st, "iwp.0.111.kept", "", 0.111);
    for (int32_t i = 0; i < iwp_st_count(st); i++) {
        const char *name = iwp_st_at(st, i)->name;
        if (strstr(name, "magnitude-rope=1") && !l.in.arr[IWP_TENSOR_Q_ROPE].data) continue;
        if (strncmp(name, "switch.P.", 9) == 0) check_scores(&l, st, name, name + 9), done++;
        if (strncmp(name, "switch.kept.", 12) == 0)
            check_kept(&l, st, name, name + 12, 0.222), done++;
    }
    done += 4 + check_similarity(&l, st);
done:
    iwp_st_close(st);
    for (int i = 0; i < 6; i++) free(l.mem[i]);
    free(visual), free(user), free(l.code), free(l.keep), free(l.scores);
    return done;
}

static int check_folder(const char *folder) {
    int done = 0;
    DIR *d = opendir(folder);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[1200];
        size_t n = strlen(e->d_name);
        if (n < 13 || strcmp(e->d_name + n - 12, ".safetensors") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        done += check_file(path);
    }
    closedir(d);
    return done;
}

int main(void) {
    int n = check_folder(IWP_TEST_DATA "/prune");
    fprintf(stderr, "%d comparisons in the tree\n", n);
    CHECK_MSG(n > 150, "%d", n);
    const char *shared = getenv("IWP_SHARED");
    char path[1000];
    int whole = 0;
    static const char *const models[] = {"llava-ov", "qwen2.5-vl"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/golden/vectors/%s",
                 shared ? shared : IWP_TEST_DATA "/../../../shared", models[i]);
        whole += check_folder(path);
    }
    fprintf(stderr, "%d comparisons in the golden set beside the tree\n", whole);
    return test_done();
}
