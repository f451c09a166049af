/* Preprocessors against Hugging Face's: arithmetic for 178 sizes under two settings a model, pixel
 * tensors of the committed pictures bit for bit, and when the golden folder is there every case of it
 * with windows and positions. */
#include "io/safetensors.h"
#include <stdbool.h>

#include "media/preprocess.h"
#include "media_test.h"

/* The settings of the golden checkpoints. */
static struct iwp_pre_params llava_small(void) {
    struct iwp_pre_params p = iwp_pre_default_llava_ov();
    p.tile = 104;
    p.n_pinpoint = 0;
    for (int r = 1; r <= 4; r++)
        for (int c = 1; c <= 4; c++) {
            p.pinpoint[p.n_pinpoint][0] = r * 104;
            p.pinpoint[p.n_pinpoint++][1] = c * 104;
        }
    return p;
}

static struct iwp_pre_params qwen_small(void) {
    struct iwp_pre_params p = iwp_pre_default_qwen2_5_vl();
    p.max_pixels = 200704;
    return p;
}

/* Every token's sources must be inside the tiles, weights sum to 1, newlines where they belong. */
static void check_rows(const struct iwp_pre_plan *q) {
    struct iwp_pre_row *r = malloc((size_t)q->n_token * sizeof *r);
    int32_t limit = q->kind == IWP_PRE_QWEN2_5_VL ? q->n_token : q->n_tile * q->side * q->side;
    int32_t newlines = 0, grids = iwp_pre_grid_count(q), bad = 0;
    iwp_pre_rows(q, r);
    for (int32_t i = 0; i < q->n_token; i++) {
        float sum = 0, box[4];
        int32_t rows, cols;
        for (int k = 0; k < r[i].n; k++) {
            if (r[i].row[k] < 0 || r[i].row[k] >= limit) bad++;
            sum += r[i].weight[k];
        }
        if (r[i].n && fabsf(sum - 1) > 1e-5f) bad++;
        newlines += r[i].n == 0;
        if (r[i].grid < 0 || r[i].grid >= grids) bad++;
        iwp_pre_grid(q, r[i].grid, &rows, &cols);
        if (r[i].y < 0 || r[i].y >= rows || r[i].x < 0 || r[i].x >= cols + (r[i].n == 0)) bad++;
        iwp_pre_row_box(q, &r[i], box);
        if (box[0] < 0 || box[1] < 0 || box[2] > (float)q->w || box[3] > (float)q->h) bad++;
        if (box[0] > box[2] || box[1] > box[3]) bad++;
    }
    CHECK_MSG(bad == 0, "%d bad rows for %d x %d", bad, q->w, q->h);
    if (q->kind == IWP_PRE_LLAVA_OV) CHECK_INT(newlines, q->rows ? q->out_h : 1);
    free(r);
}

static void size_row(const char *line, const char *model, const struct iwp_pre_params *p, int *n) {
    struct iwp_pre_plan q;
    iwp_err err;
    if (!strcmp(model, "llava-ov")) {
        int v[11];
        if (sscanf(line, "%d %d %d %d %d %d %d %d %d %d %d", v, v + 1, v + 2, v + 3, v + 4, v + 5,
                   v + 6, v + 7, v + 8, v + 9, v + 10) != 11)
            return;
        CHECK(iwp_pre_plan_make(p, v[0], v[1], 1, IWP_PRE_SINGLE, &q, &err) == 0);
        int got[11] = {q.w,        q.h,       q.canvas_w, q.canvas_h, q.resized_w, q.resized_h,
                       q.pad_left, q.pad_top, q.out_w,    q.out_h,    q.n_token};
        CHECK_MSG(memcmp(v, got, sizeof v) == 0, "llava %s: got map %d x %d, %d tokens", line,
                  q.out_w, q.out_h, q.n_token);
    } else {
        int v[5];
        if (sscanf(line, "%d %d %d %d %d", v, v + 1, v + 2, v + 3, v + 4) != 5) return;
        CHECK(iwp_pre_plan_make(p, v[0], v[1], 1, IWP_PRE_SINGLE, &q, &err) == 0);
        int got[5] = {q.w, q.h, q.resized_w, q.resized_h, q.n_token};
        CHECK_MSG(memcmp(v, got, sizeof v) == 0, "qwen %s: got %d x %d, %d tokens", line,
                  q.resized_w, q.resized_h, q.n_token);
    }
    check_rows(&q);
    ++*n;
}

static void test_sizes(void) {
    FILE *f = fopen(DATA "sizes.txt", "r");
    CHECK(f != NULL);
    if (!f) return;
    char line[256], model[32] = "", set[32] = "";
    struct iwp_pre_params p = {0};
    int n = 0;
    while (fgets(line, sizeof line, f)) {
        if (line[0] != '#') {
            size_row(line, model, &p, &n);
            continue;
        }
        CHECK(sscanf(line, "# %31s %31[^:]", model, set) == 2);
        bool small = !strcmp(set, "this-checkpoint");
        p = !strcmp(model, "llava-ov") ? small ? llava_small() : iwp_pre_default_llava_ov()
            : small ? qwen_small()
                                       : iwp_pre_default_qwen2_5_vl();
        CHECK(iwp_pre_params_check(&p, NULL) == 0);
    }
    fclose(f);
    CHECK_INT(n, 4 * 178);
}

static float *pixels_of(const struct iwp_pre_params *p, const struct iwp_image *im, int32_t n,
                        enum iwp_pre_mode mode, struct iwp_pre_plan *q) {
    iwp_err err;
    int rc = iwp_pre_plan_make(p, im->w, im->h, n, mode, q, &err);
    CHECK_MSG(rc == 0, "%s", err.msg);
    float *x = malloc(q->n_pixel * sizeof *x);
    rc = iwp_pre_pixels(p, q, im, x, &err);
    CHECK_MSG(rc == 0, "%s", err.msg);
    return x;
}

static void test_committed_pixels(void) {
    FILE *f = fopen(DATA "golden.txt", "r");
    CHECK(f != NULL);
    if (!f) return;
    char model[32], mode[16], name[64], want[65], got[65];
    int n = 0;
    while (fscanf(f, "%31s %15s %63s %64s", model, mode, name, want) == 4) {
        struct iwp_pre_params p = !strcmp(model, "llava-ov") ? llava_small() : qwen_small();
        struct iwp_image im;
        struct iwp_pre_plan q;
        if (test_picture(name, &im) < 0) continue;
        float *x =
            pixels_of(&p, &im, 1, strcmp(mode, "single") ? IWP_PRE_SEVERAL : IWP_PRE_SINGLE, &q);
        test_sha(x, q.n_pixel * sizeof *x, got);
        CHECK_MSG(!strcmp(got, want), "%s: pixels differ from the library's", name);
        free(x);
        iwp_image_free(&im);
        n++;
    }
    fclose(f);
    CHECK_INT(n, 4);
}

static void test_clip(void) {
    FILE *f = fopen(DATA "clip.txt", "r");
    CHECK(f != NULL);
    if (!f) return;
    char name[64], aspect[16], want[65], got[65];
    int tile, n = 0;
    while (fscanf(f, "%63s %15s %d %64s", name, aspect, &tile, want) == 4) {
        struct iwp_pre_params p = iwp_pre_default_clip();
        p.tile = tile;
        p.aspect = !strcmp(aspect, "crop")        ? IWP_PRE_CROP
                   : !strcmp(aspect, "pad")       ? IWP_PRE_PAD
                   : !strcmp(aspect, "letterbox") ? IWP_PRE_LETTERBOX
                                                  : IWP_PRE_SQUASH;
        struct iwp_image im;
        struct iwp_pre_plan q;
        if (test_picture(name, &im) < 0) continue;
        float *x = pixels_of(&p, &im, 1, IWP_PRE_SINGLE, &q);
        test_sha(x, q.n_pixel * sizeof *x, got);
        CHECK_MSG(!strcmp(got, want), "%s %s %d: pixels differ", name, aspect, tile);
        CHECK_INT(q.n_token, (tile / 14) * (tile / 14));
        check_rows(&q);
        free(x);
        iwp_image_free(&im);
        n++;
    }
    fclose(f);
    CHECK_INT(n, 32);
}

/* --image-tiles: the thumbnail is the picture without tiles, the parts are the quarters of the square
 * twice as large, and every token says where it lies. */
static void test_clip_tiles(void) {
    static const enum iwp_pre_aspect aspects[] = {IWP_PRE_CROP, IWP_PRE_PAD, IWP_PRE_LETTERBOX,
                                                  IWP_PRE_SQUASH};
    enum { TILE = 56, SIDE = 4, AREA = SIDE * SIDE };
    struct iwp_image im;
    if (test_picture("rgb.png", &im) < 0) return;
    for (int k = 0; k < 4; k++) {
        struct iwp_pre_params one = iwp_pre_default_clip(), two, large;
        struct iwp_pre_plan q, q1, q2;
        one.tile = TILE;
        one.aspect = aspects[k];
        two = large = one;
        CHECK_INT(iwp_pre_params_tiles(&two, 2, NULL), 0);
        large.tile = 2 * TILE;
        float *x = pixels_of(&two, &im, 1, IWP_PRE_SINGLE, &q);
        float *thumb = pixels_of(&one, &im, 1, IWP_PRE_SINGLE, &q1);
        float *all = pixels_of(&large, &im, 1, IWP_PRE_SINGLE, &q2);
        CHECK_INT(q.n_token, 5 * AREA);
        CHECK_INT(q.shape[0], 5);
        CHECK(memcmp(x, thumb, q1.n_pixel * sizeof *x) == 0);
        int differ = 0;
        for (int part = 0; part < 4; part++)
            for (int c = 0; c < 3; c++)
                for (int y = 0; y < TILE; y++)
                    for (int v = 0; v < TILE; v++)
                        differ += x[(((1 + part) * 3 + c) * TILE + y) * TILE + v] !=
                                  all[(c * 2 * TILE + part / 2 * TILE + y) * 2 * TILE +
                                      part % 2 * TILE + v];
        CHECK_INT(differ, 0);
        struct iwp_pre_row r[5 * AREA], big[4 * AREA];
        int32_t gr, gc;
        iwp_pre_rows(&q, r);
        iwp_pre_rows(&q2, big);
        CHECK_INT(iwp_pre_grid_count(&q), 2);
        iwp_pre_grid(&q, 1, &gr, &gc);
        CHECK(gr == 2 * SIDE && gc == 2 * SIDE);
        for (int i = 0; i < 5 * AREA; i++) {
            CHECK_INT(r[i].row[0], i);
            CHECK_INT(r[i].unit, i / AREA);
            CHECK_INT(r[i].grid, i >= AREA);
            float a[4], b[4];
            iwp_pre_row_box(&q, &r[i], a);
            if (i < AREA) /* the same picture once more, a pixel of rounding apart */
                iwp_pre_row_box(&q1, &r[i], b);
            else /* the same cell of the large square */
                iwp_pre_row_box(&q2, &big[r[i].y * gc + r[i].x], b);
            for (int j = 0; j < 4; j++) CHECK_NEAR(a[j], b[j], i < AREA ? 2.0 : 0.01);
        }
        free(x);
        free(thumb);
        free(all);
    }
    iwp_image_free(&im);
}

/* Several pictures and frames stay one tile each; a token limit takes parts away. */
static void test_tile_limits(void) {
    struct iwp_pre_params p = iwp_pre_default_clip(), ov = iwp_pre_default_llava_ov();
    struct iwp_pre_plan q;
    struct iwp_pre_fit fit;
    iwp_err err;
    CHECK(iwp_pre_params_tiles(&p, 3, &err) == 0);
    CHECK(iwp_pre_plan_make(&p, 640, 480, 1, IWP_PRE_SINGLE, &q, &err) == 0);
    CHECK_INT(q.n_token, 10 * 576);
    CHECK(iwp_pre_plan_make(&p, 640, 480, 1, IWP_PRE_SEVERAL, &q, &err) == 0);
    CHECK_INT(q.n_token, 576);
    CHECK(iwp_pre_plan_make(&p, 640, 480, 7, IWP_PRE_VIDEO, &q, &err) == 0);
    CHECK_INT(q.n_token, 7 * 576);
    CHECK(iwp_pre_fit_tokens(&p, 640, 480, 1, IWP_PRE_SINGLE, 600, &fit, &err) == 0);
    CHECK(fit.n_token == 576 && fit.mode == IWP_PRE_BASE);
    CHECK(iwp_pre_params_limit_tokens(&p, 0, 3000, &err) == 0);
    CHECK(iwp_pre_plan_make(&p, 640, 480, 1, IWP_PRE_SINGLE, &q, &err) == 0);
    CHECK_INT(q.n_token, 5 * 576);
    CHECK_INT(iwp_pre_params_tiles(&p, 7, &err), IWP_EINVAL);
    CHECK_INT(iwp_pre_params_tiles(&p, -1, &err), IWP_EINVAL);
    CHECK_INT(iwp_pre_params_tiles(&ov, 2, &err), IWP_EINVAL);
    CHECK(strstr(err.msg, "--image-tiles 2") != NULL);
    CHECK_INT(iwp_pre_params_tiles(&ov, 1, &err), 0);
    p.tiles = 1 << 20;
    CHECK_INT(iwp_pre_params_check(&p, &err), IWP_EINVAL);
}

/* ---- the golden folder ------------------------------------------------------------------- */

static int64_t *read_ints(const iwp_st *st, const char *name, int64_t *n) {
    const struct iwp_st_tensor *t = iwp_st_find(st, name);
    if (!t) return NULL;
    int64_t *v = malloc((size_t)t->n * sizeof *v);
    CHECK(iwp_st_read_i64(t, 0, t->n, v, NULL) == 0);
    *n = t->n;
    return v;
}

static void compare_pixels(const iwp_st *st, const char *tensor, int64_t first, const float *x,
                           size_t n, const char *what) {
    const struct iwp_st_tensor *t = iwp_st_find(st, tensor);
    CHECK_MSG(t && t->n >= first + (int64_t)n, "%s: %s", what, tensor);
    if (!t || t->n < first + (int64_t)n) return;
    CHECK_MSG(!memcmp(t->data + (size_t)first * 4, x, n * 4), "%s: pixels differ", what);
}

/* Window order of all items of a case after one another. */
static void compare_windows(const iwp_st *st, const struct iwp_pre_plan *q, int n,
                            const char *what) {
    int64_t n_index = 0, n_start = 0;
    int64_t *index = read_ints(st, "vision_window_index", &n_index);
    int64_t *start = read_ints(st, "vision_window_starts", &n_start);
    CHECK(index && start);
    if (index && start) {
        int64_t at = 0, win = 0, patches = 0;
        int bad = 0;
        for (int k = 0; k < n; k++) {
            int32_t count = iwp_pre_windows(&q[k], NULL, NULL);
            int32_t *i = malloc((size_t)q[k].n_token * 4), *s = malloc((size_t)(count + 1) * 4);
            CHECK_INT(iwp_pre_windows(&q[k], i, s), count);
            CHECK(at + q[k].n_token <= n_index && win + count < n_start);
            if (at + q[k].n_token > n_index || win + count >= n_start) bad++;
            for (int32_t j = 0; !bad && j < q[k].n_token; j++) bad += index[at + j] != i[j] + at;
            for (int32_t j = 0; !bad && j <= count; j++) bad += start[win + j] != s[j] + patches;
            at += q[k].n_token;
            win += count;
            patches += q[k].shape[0];
            free(i);
            free(s);
        }
        CHECK_MSG(!bad && at == n_index && win + 1 == n_start, "%s: windows differ", what);
    }
    free(index);
    free(start);
}

/* Positions from the places of the visual tokens; the prompt's text is everything else. */
static void compare_positions(const iwp_st *st, const struct iwp_pre_plan *q, int n, double seconds,
                              const char *what) {
    int64_t s = 0, s3 = 0;
    int64_t *visual = read_ints(st, "visual_mask", &s), *want = read_ints(st, "position_ids", &s3);
    CHECK(visual && want && s3 == 3 * s);
    int32_t *pos = malloc((size_t)s3 * 4);
    struct iwp_mrope m = {0};
    int k = 0, bad = 0;
    for (int64_t i = 0; i < s;) {
        int32_t *p = pos + i;
        if (visual[i]) {
            CHECK(k < n && i + q[k].n_token <= s);
            if (k >= n || i + q[k].n_token > s) break;
            iwp_mrope_item(&m, &q[k], seconds, 2, p, p + s, p + 2 * s);
            i += q[k++].n_token;
        } else {
            iwp_mrope_text(&m, 1, p, p + s, p + 2 * s);
            i++;
        }
    }
    for (int64_t i = 0; i < s3; i++) bad += pos[i] != want[i];
    CHECK_MSG(k == n && bad == 0, "%s: %d positions differ", what, bad);
    free(pos);
    free(visual);
    free(want);
}

static const struct golden_case {
    const char *model, *name, *files[2];
    int n_frame;
    double seconds; /* per temporal patch: 2 frames at 2.5 and 0.5 frames a second */
} cases[] = {
    {"llava-ov", "wide", {"wide.png"}, 0, 0},
    {"llava-ov", "tall", {"tall.png"}, 0, 0},
    {"llava-ov", "square", {"square.png"}, 0, 0},
    {"llava-ov", "jpeg", {"wide.jpg"}, 0, 0},
    {"llava-ov", "multi", {"wide.png", "small.png"}, 0, 0},
    {"llava-ov", "video", {NULL}, 8, 0},
    {"qwen2.5-vl", "wide", {"wide.png"}, 0, 0},
    {"qwen2.5-vl", "tall", {"tall.png"}, 0, 0},
    {"qwen2.5-vl", "square", {"square.png"}, 0, 0},
    {"qwen2.5-vl", "jpeg", {"wide.jpg"}, 0, 0},
    {"qwen2.5-vl", "small", {"small.png"}, 0, 0},
    {"qwen2.5-vl", "multi", {"wide.png", "small.png"}, 0, 0},
    {"qwen2.5-vl", "video", {NULL}, 8, 0.8},
    {"qwen2.5-vl", "video-slow", {NULL}, 8, 4},
};

static int load_case(const struct golden_case *c, struct iwp_image *im) {
    int n = 0;
    for (int i = 0; i < (c->n_frame ? c->n_frame : 2); i++) {
        char path[512], rest[128];
        if (!c->n_frame && !c->files[i]) break;
        if (c->n_frame)
            snprintf(rest, sizeof rest, "%s/images/video/%02d.png", c->model, i);
        else
            snprintf(rest, sizeof rest, "%s/images/%s", c->model, c->files[i]);
        test_golden(path, sizeof path, rest);
        iwp_err err;
        int rc = iwp_image_load(path, NULL, &im[n], &err);
        CHECK_MSG(rc == 0, "%s", err.msg);
        n += rc == 0;
    }
    return n;
}

static void golden_one(const struct golden_case *c) {
    char path[512], rest[128], what[64];
    snprintf(what, sizeof what, "%s/%s", c->model, c->name);
    snprintf(rest, sizeof rest, "%s.safetensors", what);
    test_golden(path, sizeof path, rest);
    iwp_st *st = NULL;
    iwp_err err;
    CHECK_MSG(iwp_st_open(&st, path, &err) == 0, "%s", err.msg);
    if (!st) return;
    bool qwen = c->model[0] == 'q', stored = strcmp(c->name, "video-slow") != 0;
    struct iwp_pre_params p = qwen ? qwen_small() : llava_small();
    struct iwp_image im[8] = {{0}};
    struct iwp_pre_plan q[2];
    int n = load_case(c, im), items = c->n_frame ? 1 : n;
    enum iwp_pre_mode mode = c->n_frame  ? IWP_PRE_VIDEO
                             : items > 1 ? IWP_PRE_SEVERAL
                                         : IWP_PRE_SINGLE;
    int64_t first = 0, tokens = 0, s = 0, visual = 0;
    for (int k = 0; k < items; k++) {
        float *x = pixels_of(&p, &im[k], c->n_frame ? n : 1, mode, &q[k]);
        if (stored)
            compare_pixels(st, c->n_frame ? "pixel_values_videos" : "pixel_values", first, x,
                           q[k].n_pixel, what);
        first += (int64_t)q[k].n_pixel;
        tokens += q[k].n_token;
        check_rows(&q[k]);
        free(x);
    }
    int64_t *mask = read_ints(st, "visual_mask", &s);
    for (int64_t i = 0; mask && i < s; i++) visual += mask[i];
    CHECK_INT(tokens, visual);
    free(mask);
    if (qwen && stored) compare_windows(st, q, items, what);
    if (qwen) compare_positions(st, q, items, c->seconds, what);
    for (int i = 0; i < n; i++) iwp_image_free(&im[i]);
    iwp_st_close(st);
}

/* The packing: visual_features must be what the rows make of projector_out and the newline vector. */
static void golden_packing(const char *name, bool shrunk) {
    char path[512], rest[128];
    snprintf(rest, sizeof rest, "llava-ov/%s.safetensors", name);
    test_golden(path, sizeof path, rest);
    iwp_st *st = NULL;
    CHECK(iwp_st_open(&st, path, NULL) == 0);
    if (!st) return;
    const struct iwp_st_tensor *proj = iwp_st_find(st, "projector_out");
    const struct iwp_st_tensor *feat = iwp_st_find(st, "visual_features");
    int64_t n = 0, *size = read_ints(st, "image_sizes", &n), frames = 1;
    struct iwp_pre_params p = llava_small();
    struct iwp_pre_plan q;
    CHECK(proj && feat);
    if (proj && feat) {
        int64_t d = feat->shape[1];
        if (!size) frames = proj->shape[0];
        int32_t w = size ? (int32_t)size[1] : 100, h = size ? (int32_t)size[0] : 100;
        CHECK(iwp_pre_plan_make(&p, w, h, (int32_t)frames, size ? IWP_PRE_SINGLE : IWP_PRE_VIDEO,
                                &q, NULL) == 0);
        CHECK_INT(q.n_token, feat->shape[0]);
        struct iwp_pre_row *r = malloc((size_t)q.n_token * sizeof *r);
        float *a = malloc((size_t)proj->n * 4), *b = malloc((size_t)feat->n * 4);
        CHECK(iwp_st_read_f32(proj, 0, proj->n, a, NULL) == 0);
        CHECK(iwp_st_read_f32(feat, 0, feat->n, b, NULL) == 0);
        iwp_pre_rows(&q, r);
        double worst = 0;
        const float *newline = NULL;
        for (int32_t i = 0; i < q.n_token; i++)
            for (int64_t j = 0; j < d; j++) {
                float x = 0;
                for (int k = 0; k < r[i].n; k++) x += r[i].weight[k] * a[r[i].row[k] * d + j];
                if (!r[i].n) { /* all newlines are the same vector */
                    if (!newline) newline = b + i * d;
                    x = newline[j];
                }
                double e = fabs((double)x - (double)b[i * d + j]);
                if (e > worst) worst = e;
            }
        CHECK_MSG(worst <= 1e-5, "%s: packing differs by %g", name, worst);
        CHECK(shrunk == (q.map_w != q.out_w || !q.rows));
        free(r);
        free(a);
        free(b);
    }
    free(size);
    iwp_st_close(st);
}

static void test_golden_cases(void) {
    char path[512];
    if (!test_golden(path, sizeof path, "llava-ov/index.json")) {
        fprintf(stderr, "golden folder not found: its cases are skipped\n");
        return;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) golden_one(&cases[i]);
    golden_packing("wide", false);
    golden_packing("tall", false);
    golden_packing("square", true);
    golden_packing("video", true);
}

/* ---- limits, the resize control, odd input ----------------------------------------------- */

static void test_videos(void) {
    struct iwp_pre_params p = qwen_small();
    struct iwp_pre_plan q;
    iwp_err err;
    uint8_t grey[3] = {9, 9, 9}, white[3] = {255, 255, 255};
    struct iwp_image f[3];
    for (int i = 0; i < 3; i++)
        CHECK(iwp_image_new(&f[i], 56, 56, i == 2 ? white : grey, &err) == 0);
    float *x = pixels_of(&p, f, 3, IWP_PRE_VIDEO, &q);
    CHECK_INT(q.grid_t, 2);
    CHECK_INT(q.n_token, 8);
    /* the odd frame stands in both slots of the last pair, and nowhere else */
    size_t area = 14 * 14, last = (size_t)q.shape[1] * 16;
    CHECK(x[0] == x[area] && x[last] == x[last + area] && x[0] != x[last]);
    free(x);
    struct iwp_image other = {55, 56, f[0].rgb}, mixed[3] = {f[0], other, f[2]};
    x = malloc(q.n_pixel * sizeof *x);
    CHECK_INT(iwp_pre_pixels(&p, &q, mixed, x, &err), IWP_EINVAL);
    CHECK_STR(err.msg, "frame 1 is 55 x 56 pixels, not 56 x 56 as the first");
    free(x);
    for (int i = 0; i < 3; i++) iwp_image_free(&f[i]);
    struct iwp_mrope m = {5};
    int32_t t[8], y[8], z[8];
    iwp_mrope_item(&m, &q, 10, 2, t, y, z);
    CHECK_INT(t[0], 5);
    CHECK_INT(t[7], 25);
    CHECK_INT(m.next, 26); /* after the largest position of any row */
    p.video_max_pixels = 28 * 28;
    p.video_min_pixels = 28 * 28;
    CHECK(iwp_pre_plan_make(&p, 56, 56, 3, IWP_PRE_VIDEO, &q, &err) == 0);
    CHECK_INT(q.n_token, 2);
}

static void test_refusals(void) {
    struct iwp_pre_params p = iwp_pre_default_qwen2_5_vl();
    struct iwp_pre_plan q;
    iwp_err err;
    CHECK_INT(iwp_pre_plan_make(&p, 0, 5, 1, IWP_PRE_SINGLE, &q, &err), IWP_EINVAL);
    CHECK_INT(iwp_pre_plan_make(&p, 5, 5, 0, IWP_PRE_VIDEO, &q, &err), IWP_EINVAL);
    CHECK_INT(iwp_pre_plan_make(&p, 5, 5, 2, IWP_PRE_SINGLE, &q, &err), IWP_EINVAL);
    CHECK_INT(iwp_pre_plan_make(&p, 201, 1, 1, IWP_PRE_SINGLE, &q, &err), IWP_EINVAL);
    CHECK_INT(iwp_pre_plan_make(&p, 200, 1, 1, IWP_PRE_SINGLE, &q, &err), 0);
    p.merge = 0;
    CHECK_INT(iwp_pre_params_check(&p, &err), IWP_EINVAL);
    p = iwp_pre_default_llava_ov();
    p.pinpoint[3][1] = 385;
    CHECK_INT(iwp_pre_params_check(&p, &err), IWP_EINVAL);
    CHECK(strstr(err.msg, "385"));
    p = iwp_pre_default_llava_ov();
    p.std[1] = 0;
    CHECK_INT(iwp_pre_params_check(&p, &err), IWP_EINVAL);
    /* one of several pictures, so long that its padded square would have four billion pixels */
    p = llava_small();
    uint8_t red[3] = {255, 0, 0};
    struct iwp_image line;
    CHECK(iwp_image_new(&line, 65535, 2, red, &err) == 0);
    float *x = pixels_of(&p, &line, 1, IWP_PRE_SEVERAL, &q);
    CHECK_NEAR(x[0], 127 / 127.5 - 1, 1e-6);
    free(x);
    iwp_image_free(&line);
    /* extreme shapes of LLaVA-OneVision make a plan */
    p = iwp_pre_default_llava_ov();
    static const int32_t odd[][2] = {{1, 1}, {1, 65535}, {65535, 1}, {2, 30000}, {10000, 10000}};
    for (int i = 0; i < 5; i++) {
        CHECK(iwp_pre_plan_make(&p, odd[i][0], odd[i][1], 1, IWP_PRE_SINGLE, &q, &err) == 0);
        check_rows(&q);
    }
}

static void test_token_limits(void) {
    struct iwp_pre_params p = iwp_pre_default_qwen2_5_vl();
    struct iwp_pre_plan q;
    iwp_err err;
    CHECK(iwp_pre_params_limit_tokens(&p, 64, 256, &err) == 0);
    CHECK_INT(p.min_pixels, 64 * 784);
    CHECK_INT(p.max_pixels, 256 * 784);
    CHECK(iwp_pre_plan_make(&p, 4000, 3000, 1, IWP_PRE_SINGLE, &q, &err) == 0);
    CHECK(q.n_token <= 256 && q.n_token > 200);
    CHECK(iwp_pre_plan_make(&p, 40, 30, 1, IWP_PRE_SINGLE, &q, &err) == 0);
    CHECK(q.n_token >= 64);
    CHECK_INT(iwp_pre_params_limit_tokens(&p, 65, 64, &err), IWP_EINVAL);
    CHECK(strstr(err.msg, "--image-min-tokens 65"));
    CHECK_INT(iwp_pre_params_limit_tokens(&p, -1, 0, &err), IWP_EINVAL);
    CHECK(iwp_pre_params_limit_tokens(&p, 0, 3, &err) == 0);
    CHECK_INT(p.min_pixels, 3 * 784);
    p = iwp_pre_default_llava_ov();
    static const int32_t caps[] = {10000, 4000, 2000, 1500, 1000, 730};
    int32_t before = INT32_MAX;
    for (int i = 0; i < 6; i++) {
        CHECK(iwp_pre_params_limit_tokens(&p, 0, caps[i], &err) == 0);
        CHECK(iwp_pre_plan_make(&p, 2000, 1500, 1, IWP_PRE_SINGLE, &q, &err) == 0);
        CHECK_MSG(q.n_token <= caps[i] && q.n_token <= before, "%d tokens", q.n_token);
        check_rows(&q);
        before = q.n_token;
    }
    CHECK_INT(q.n_token, 27 * 27 + 1);
    CHECK_INT(q.mode, IWP_PRE_BASE);
}

/* Boxes tile the picture: the corners are covered, and neighbours share an edge. */
static void test_boxes(void) {
    struct iwp_pre_params p[3] = {iwp_pre_default_llava_ov(), iwp_pre_default_qwen2_5_vl(),
                                  iwp_pre_default_clip()};
    p[2].aspect = IWP_PRE_LETTERBOX;
    for (int k = 0; k < 3; k++) {
        struct iwp_pre_plan q;
        CHECK(iwp_pre_plan_make(&p[k], 1000, 620, 1, IWP_PRE_SINGLE, &q, NULL) == 0);
        struct iwp_pre_row *r = malloc((size_t)q.n_token * sizeof *r);
        iwp_pre_rows(&q, r);
        double area = 0;
        float a[4], b[4] = {0}, end[2] = {0};
        for (int32_t i = 0; i < q.n_token; i++) {
            if (r[i].grid != iwp_pre_grid_count(&q) - 1 || !r[i].n) continue;
            iwp_pre_row_box(&q, &r[i], a);
            if (r[i].x) CHECK_NEAR(a[0], b[2], 0.01);
            area += (double)(a[2] - a[0]) * (double)(a[3] - a[1]);
            end[0] = fmaxf(end[0], a[2]);
            end[1] = fmaxf(end[1], a[3]);
            memcpy(b, a, sizeof b);
        }
        CHECK_MSG(area > 0.97 * 620000 && area < 620001, "%d: area %g", k, area);
        CHECK(end[0] > 985 && end[1] > 605);
        free(r);
    }
    /* What a grid covers: a square around a letterboxed picture, the middle of a cropped one. */
    struct iwp_pre_plan q;
    float box[4];
    CHECK(iwp_pre_plan_make(&p[2], 1000, 500, 1, IWP_PRE_SINGLE, &q, NULL) == 0);
    iwp_pre_grid_box(&q, 0, box);
    CHECK_NEAR(box[0], 0, 0.01);
    CHECK_NEAR(box[1], -250, 0.01);
    CHECK_NEAR(box[2], 1000, 0.01);
    CHECK_NEAR(box[3], 750, 0.01);
    p[2].aspect = IWP_PRE_CROP;
    CHECK(iwp_pre_plan_make(&p[2], 1000, 500, 1, IWP_PRE_SINGLE, &q, NULL) == 0);
    iwp_pre_grid_box(&q, 0, box);
    CHECK_NEAR(box[0], 250, 0.01);
    CHECK_NEAR(box[1], 0, 0.01);
    CHECK_NEAR(box[2], 750, 0.01);
    CHECK_NEAR(box[3], 500, 0.01);
}

static void test_fit(void) {
    struct iwp_pre_params all[2] = {iwp_pre_default_qwen2_5_vl(), iwp_pre_default_llava_ov()};
    iwp_err err;
    for (int k = 0; k < 2; k++) {
        static const int32_t targets[] = {1824, 1500, 800, 100, 7};
        for (int i = 0; i < 5; i++) {
            struct iwp_pre_fit fit;
            struct iwp_pre_plan q;
            CHECK(iwp_pre_fit_tokens(&all[k], 1600, 900, 1, IWP_PRE_SINGLE, targets[i], &fit,
                                     &err) == 0);
            CHECK(iwp_pre_plan_make(&all[k], fit.w, fit.h, 1, fit.mode, &q, &err) == 0);
            CHECK_INT(q.n_token, fit.n_token);
            CHECK(fit.w <= 1600 && fit.h <= 900);
            CHECK_NEAR(fit.w * 900.0, fit.h * 1600.0, 1600.0);
            if (k == 0) /* close from below: never more than one row or column of tokens off */
                CHECK_MSG(fit.n_token <= targets[i] && fit.n_token > 0.85 * targets[i] - 4,
                          "%d tokens for %d", fit.n_token, targets[i]);
            else if (targets[i] > 730)
                CHECK(fit.n_token <= targets[i]);
            else
                CHECK_INT(fit.n_token, 730); /* nothing smaller exists: the caller sees it */
        }
    }
    struct iwp_pre_fit fit;
    CHECK(iwp_pre_fit_tokens(&all[0], 280, 280, 1, IWP_PRE_SINGLE, 100, &fit, &err) == 0);
    CHECK(fit.w == 280 && fit.h == 280 && fit.n_token == 100); /* fits already: untouched */
    CHECK(iwp_pre_fit_tokens(&all[0], 560, 280, 8, IWP_PRE_VIDEO, 200, &fit, &err) == 0);
    CHECK(fit.n_token <= 200 && fit.n_token >= 128 && fit.mode == IWP_PRE_VIDEO);
    CHECK(iwp_pre_fit_tokens(&all[1], 560, 280, 2, IWP_PRE_VIDEO, 100, &fit, &err) == 0);
    CHECK_INT(fit.n_token, 2 * 14 * 14 + 1); /* frames cost the same at any size */
    CHECK_INT(iwp_pre_fit_tokens(&all[0], 280, 280, 1, IWP_PRE_SINGLE, 0, &fit, &err), IWP_EINVAL);
}

int main(void) {
    test_sizes();
    test_committed_pixels();
    test_clip();
    test_clip_tiles();
    test_tile_limits();
    test_golden_cases();
    test_videos();
    test_refusals();
    test_token_limits();
    test_boxes();
    test_fit();
    return test_done();
}
