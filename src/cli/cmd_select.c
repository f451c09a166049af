/* `iwp select FILE.safetensors`: one method on arrays from a file (CONTRACT section 4).
 *
 * Reads only the tensors the method asks for, in place where their type and alignment allow it.  A
 * missing or ill-shaped tensor is an error that names it; selection itself checks the values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/cmd.h"
#include "io/safetensors.h"
#include "media/image.h"
#include "view/overlay.h"

struct args {
    int32_t threads;
    bool scores, json;
    const char *output, *overlay, *image, *grid;
    int32_t rows, cols; /* what --grid says */
};

/* Everything one selection owns. */
struct job {
    iwp_st *st;
    struct iwp_params params;
    struct iwp_input in;
    uint8_t *code;
    int32_t *unit;
    int64_t *pos, *window;
    void *copy[IWP_TENSOR_COUNT]; /* tensors that had to be converted */
    int32_t n_visual, n_image;    /* codes 1 and 2; code 1 */
    void *workspace, *state;
    size_t workspace_bytes;
    struct iwp_selection sel;
    iwp_pool *pool;
    struct iwp_exec exec;
    double select_ms;
};

#define AT(field) offsetof(struct args, field)
static const struct iwp_opt select_opts[] = {
    {"-t, --threads", "N", IWP_OPT_INT, AT(threads), 1, IWP_POOL_MAX, NULL,
     "threads (default: all CPUs); never changes the result"},
    {"--scores", NULL, IWP_OPT_FLAG, AT(scores), 0, 0, NULL,
     "also print the method's first-stage score of each visual token"},
    {"--json", NULL, IWP_OPT_FLAG, AT(json), 0, 0, NULL, "one JSON document on stdout"},
    {"-o, --output", "FORMAT", IWP_OPT_TEXT, AT(output), 0, 0, NULL, "text or json (= --json)"},
    {"--overlay", "FILE.png", IWP_OPT_TEXT, AT(overlay), 0, 0, NULL,
     "draw kept and dropped tokens"},
    {"--image", "FILE", IWP_OPT_TEXT, AT(image), 0, 0, NULL,
     "the picture to draw them over (JPEG, PNG, WebP, GIF)"},
    {"--grid", "ROWSxCOLS", IWP_OPT_TEXT, AT(grid), 0, 0, NULL,
     "grid of the visual tokens, for drawing (default: from the file, else a square)"},
    IWP_OPT_END};
#undef AT

static const char *const examples[] = {
    "iwp select layer4.safetensors --keep 22.2% --json",
    "the default method at 22.2 % of the visual tokens",
    "iwp select layer4.safetensors --method iwp --keep-tokens 64 \\\n"
    "      --opt lambda=5,growth=2 --overlay kept.png",
    "64 tokens, two options changed, a picture of what was kept", NULL};

static const struct iwp_command command = {
    .name = "select",
    .usage = "FILE.safetensors [options]",
    .about = "Runs one pruning method on the arrays of one decoder layer and prints which visual "
             "tokens it keeps. No model is needed. The file holds `visual` u8 [S] (0 template, 1 "
             "visual, 2 separator, 3 the user's text) and what the method reads, see `iwp methods "
             "NAME`; f32, f16 and bf16 are fine. `iwp run --prune METHOD --dump-tensors FILE` "
             "writes such a file for a picture. Indices count visual tokens from 0.",
    .examples = examples,
    .min_args = 1,
    .max_args = 1,
    .args_name = "FILE.safetensors",
};

static const struct iwp_st_tensor *tensor(const struct job *j, const char *name) {
    return iwp_st_find(j->st, name);
}

static int ill_shaped(const struct job *j, const struct iwp_st_tensor *t, const char *want,
                      iwp_err *err) {
    char text[200];
    iwp_st_describe(t, text, sizeof text);
    return iwp_err_set(err, IWP_EINVAL, "%.150s: tensor '%.60s' is %s, expected %s",
                       iwp_st_path(j->st), t->name, text, want);
}

static int read_codes(struct job *j, iwp_err *err) {
    const struct iwp_st_tensor *t = tensor(j, "visual");
    IWP_REQUIRE(t, err, IWP_EMISSING, "%.200s: tensor 'visual' (u8 [S]) is missing",
                iwp_st_path(j->st));
    if (t->rank != 1 || (t->dtype != IWP_ST_U8 && t->dtype != IWP_ST_BOOL) || t->n < 1 ||
        t->n > INT32_MAX / 4)
        return ill_shaped(j, t, "U8 [S]", err);
    j->in.n = (int32_t)t->n;
    j->in.code = t->data; /* bytes need no alignment */
    for (int32_t i = 0; i < j->in.n; i++) {
        IWP_REQUIRE(t->data[i] <= 3, err, IWP_EINVAL,
                    "%.200s: tensor 'visual': token %d has code %d, known are 0 to 3",
                    iwp_st_path(j->st), i, t->data[i]);
        j->n_visual += t->data[i] == IWP_CODE_VISUAL || t->data[i] == IWP_CODE_SEPARATOR;
        j->n_image += t->data[i] == IWP_CODE_VISUAL;
    }
    IWP_REQUIRE(j->n_visual > 0, err, IWP_EINVAL, "%.200s: tensor 'visual' marks no visual token",
                iwp_st_path(j->st));
    return 0;
}

/* Integer tensors of a fixed length; absent ones leave *out NULL. */
static int read_ints(struct job *j, const char *name, int64_t n, const char *want, int64_t **out,
                     iwp_err *err) {
    const struct iwp_st_tensor *t = tensor(j, name);
    if (!t) return 0;
    if (t->rank != 1 || t->n != n) return ill_shaped(j, t, want, err);
    *out = malloc((size_t)(n ? n : 1) * sizeof **out);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    int rc = iwp_st_read_i64(t, 0, n, *out, err);
    return rc < 0 ? iwp_err_prefix(err, rc, "%.150s", iwp_st_path(j->st)) : 0;
}

static int read_side_tensors(struct job *j, iwp_err *err) {
    int64_t *unit = NULL;
    int rc = read_ints(j, "unit", j->n_visual, "integers [visual tokens]", &unit, err);
    if (rc >= 0 && !unit && j->params.budget.scope != IWP_SCOPE_GLOBAL)
        rc = iwp_err_set(err, IWP_EMISSING,
                         "%.150s: tensor 'unit' is missing; --budget-scope needs it: integers "
                         "[visual tokens], the image, tile or frame of each",
                         iwp_st_path(j->st));
    if (rc >= 0 && unit) {
        j->unit = malloc((size_t)j->n_visual * sizeof *j->unit);
        if (!j->unit) rc = iwp_err_set(err, IWP_ENOMEM, "out of memory");
        for (int32_t i = 0; i < j->n_visual && rc >= 0; i++) {
            if (unit[i] < 0 || unit[i] > INT32_MAX)
                rc = iwp_err_set(err, IWP_EINVAL, "%.150s: tensor 'unit': element %d is %lld",
                                 iwp_st_path(j->st), i, (long long)unit[i]);
            else
                j->unit[i] = (int32_t)unit[i];
        }
        j->in.unit = j->unit;
    }
    free(unit);
    IWP_TRY(rc);
    IWP_TRY(read_ints(j, "window_index", j->n_image, "integers [visual tokens without separators]",
                      &j->window, err));
    j->in.window = j->window;
    const struct iwp_st_tensor *t = tensor(j, "position_ids");
    if (!t) return 0;
    bool flat = t->rank == 1 && t->shape[0] == j->in.n;
    bool rows = t->rank == 2 && (t->shape[0] == 1 || t->shape[0] == 3) && t->shape[1] == j->in.n;
    if (!flat && !rows) return ill_shaped(j, t, "integers [S], [1,S] or [3,S]", err);
    j->pos = malloc((size_t)t->n * sizeof *j->pos);
    IWP_REQUIRE(j->pos, err, IWP_ENOMEM, "out of memory");
    rc = iwp_st_read_i64(t, 0, t->n, j->pos, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "%.150s", iwp_st_path(j->st));
    j->in.pos = j->pos;
    j->in.n_pos = (int32_t)(t->n / j->in.n);
    return 0;
}

/* "[S,H,d] queries …" -> rank 3; the library's own text says the shape. */
static int32_t wanted_rank(const char *text) {
    int32_t rank = 1;
    for (const char *p = text; *p && *p != ']'; p++) rank += *p == ',';
    return rank;
}

static int read_array(struct job *j, enum iwp_tensor id, bool optional, iwp_err *err) {
    const char *name = iwp_tensor_name(id), *text = iwp_tensor_text(id);
    const struct iwp_st_tensor *t = tensor(j, name);
    if (!t && id == IWP_TENSOR_EMBEDS) t = tensor(j, "inputs_embeds"); /* as `iwp run` dumps it */
    const char *method = iwp_method_info(j->params.method)->name;
    if (!t && optional) return 0;
    IWP_REQUIRE(t, err, IWP_EMISSING,
                "%.150s: tensor '%s' is missing; %s needs it with these options: %s",
                iwp_st_path(j->st), name, method, text);
    int32_t rank = wanted_rank(text);
    bool float_type = t->dtype == IWP_ST_F32 || t->dtype == IWP_ST_F16 || t->dtype == IWP_ST_BF16 ||
                      t->dtype == IWP_ST_F64;
    bool fits = t->rank == rank && float_type && (text[1] != 'S' || t->shape[0] == j->in.n);
    for (int32_t i = 0; i < t->rank; i++)
        fits = fits && t->shape[i] > 0 && t->shape[i] <= INT32_MAX;
    if (!fits) {
        char want[160];
        snprintf(want, sizeof want, "floats %.*s with S = %d", (int)strcspn(text, "]") + 1, text,
                 j->in.n);
        return ill_shaped(j, t, want, err);
    }
    struct iwp_array *a = &j->in.arr[id];
    a->dtype = t->dtype == IWP_ST_F16    ? IWP_DTYPE_F16
               : t->dtype == IWP_ST_BF16 ? IWP_DTYPE_BF16
                                         : IWP_DTYPE_F32;
    a->data = t->data;
    if (t->dtype == IWP_ST_F64 || !iwp_st_aligned(t)) {
        a->dtype = IWP_DTYPE_F32;
        float *copy = t->n <= INT64_MAX / 4 ? malloc((size_t)t->n * sizeof *copy) : NULL;
        IWP_REQUIRE(copy, err, IWP_ENOMEM, "%.150s: no memory for tensor '%s'", iwp_st_path(j->st),
                    name);
        j->copy[id] = copy;
        a->data = copy;
        IWP_TRY(iwp_st_read_f32(t, 0, t->n, copy, err));
    }
    a->n_row = rank == 1 ? 1 : (int32_t)t->shape[0];
    a->n_head = rank == 3 ? (int32_t)t->shape[1] : 1;
    a->n_dim = (int32_t)t->shape[rank - 1];
    a->head_stride = a->n_dim;
    a->row_stride = (int64_t)a->n_head * a->n_dim;
    return 0;
}

static int read_input(struct job *j, iwp_err *err) {
    IWP_TRY(read_codes(j, err));
    IWP_TRY(read_side_tensors(j, err));
    struct iwp_need need[IWP_TENSOR_COUNT];
    int n = iwp_params_needs(&j->params, 0, need, IWP_TENSOR_COUNT);
    IWP_REQUIRE(n >= 0, err, IWP_EINTERNAL, "cannot tell what the method needs");
    /* No array makes up for a model: the selection itself says so. */
    if (iwp_method_info(j->params.method)->flags & IWP_METHOD_ENGINE_ONLY) return 0;
    for (int i = 0; i < n; i++) IWP_TRY(read_array(j, need[i].tensor, need[i].optional, err));
    return 0;
}

/* The file is at fault, unless a flag is. */
static int blame(const struct job *j, int rc, iwp_err *err) {
    if (strncmp(err->msg, "--", 2) == 0) return rc;
    return iwp_err_prefix(err, rc, "%.150s", iwp_st_path(j->st));
}

static int run(struct job *j, bool want_scores, iwp_err *err) {
    int64_t bytes = iwp_select_workspace(&j->params, &j->in, &j->exec, err);
    if (bytes < 0) return blame(j, (int)bytes, err);
    int64_t state = iwp_select_state(&j->params, &j->in);
    size_t n = (size_t)j->n_visual;
    j->workspace_bytes = ((size_t)bytes + 127) / 64 * 64;
    j->workspace = aligned_alloc(64, j->workspace_bytes);
    j->state = state > 0 ? calloc(1, (size_t)state) : NULL;
    j->sel.keep = malloc(n * sizeof *j->sel.keep);
    j->sel.merge = malloc(2 * n * sizeof *j->sel.merge);
    j->sel.sizes = malloc(n * sizeof *j->sel.sizes);
    j->sel.scores = want_scores ? malloc(n * sizeof *j->sel.scores) : NULL;
    IWP_REQUIRE(j->workspace && j->sel.keep && j->sel.merge && j->sel.sizes &&
                    (!want_scores || j->sel.scores) && (state <= 0 || j->state),
                err, IWP_ENOMEM, "no memory for %lld bytes of workspace", (long long)bytes);
    double t0 = iwp_clock_ms();
    int rc = iwp_select(&j->params, &j->in, j->state, j->workspace, j->workspace_bytes, &j->exec,
                        &j->sel, err);
    j->select_ms = iwp_clock_ms() - t0;
    return rc < 0 ? blame(j, rc, err) : 0;
}

static void release(struct job *j) {
    iwp_pool_free(j->pool);
    for (int i = 0; i < IWP_TENSOR_COUNT; i++) free(j->copy[i]);
    free(j->unit);
    free(j->pos);
    free(j->window);
    free(j->workspace);
    free(j->state);
    free(j->sel.keep);
    free(j->sel.merge);
    free(j->sel.sizes);
    free(j->sel.scores);
    iwp_st_close(j->st);
}

/* ---- output ---- */

static int print_json(const struct job *j, iwp_err *err) {
    const struct iwp_method_info *m = iwp_method_info(j->params.method);
    const struct iwp_selection *s = &j->sel;
    struct iwp_json_out w;
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)iwp_keep_hash(s->keep, s->n_keep));
    iwp_json_init(&w, false);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_string(&w, "method", m->name);
    iwp_json_put_int(&w, "n_tokens", j->in.n);
    iwp_json_put_int(&w, "n_visual", j->n_visual);
    iwp_json_put_int(&w, "n_keep", s->n_keep);
    iwp_json_open_array(&w, "keep_indices");
    for (int32_t i = 0; i < s->n_keep; i++) iwp_json_put_int(&w, NULL, s->keep[i]);
    iwp_json_close_array(&w);
    iwp_json_put_string(&w, "keep_hash", hash);
    if (s->scores && s->has_scores) {
        iwp_json_open_array(&w, "scores");
        for (int32_t i = 0; i < j->n_visual; i++) iwp_json_put_f32(&w, NULL, s->scores[i]);
        iwp_json_close_array(&w);
    } else if (s->scores) {
        iwp_json_put_null(&w, "scores");
    }
    if (m->flags & IWP_METHOD_MERGES) {
        iwp_json_open_array(&w, "merge");
        for (int32_t i = 0; i < s->n_merge; i++) {
            iwp_json_open_object(&w, NULL);
            iwp_json_put_int(&w, "from", s->merge[i].from);
            iwp_json_put_int(&w, "to", s->merge[i].to);
            iwp_json_put_f32(&w, "weight", s->merge[i].weight);
            iwp_json_close_object(&w);
        }
        iwp_json_close_array(&w);
    }
    if (s->has_sizes) {
        iwp_json_open_array(&w, "sizes");
        for (int32_t i = 0; i < s->n_keep; i++) iwp_json_put_int(&w, NULL, s->sizes[i]);
        iwp_json_close_array(&w);
    }
    iwp_json_put_ms(&w, "select_ms", j->select_ms);
    iwp_json_put_string(&w, "cpu", iwp_cpu_name());
    iwp_json_close_object(&w);
    int rc = iwp_json_write(&w, stdout, err);
    iwp_json_free(&w);
    return rc;
}

/* Numbers in rows of at most 80 columns. */
static void print_row(int *at, const char *text) {
    int n = (int)strlen(text);
    if (*at + 1 + n > 80) {
        fputs("\n ", stdout);
        *at = 1;
    }
    printf(" %s", text);
    *at += 1 + n;
}

static void print_text(const struct job *j) {
    const struct iwp_selection *s = &j->sel;
    printf("%s keeps %d of %d visual tokens (%.1f %%) in %.3f ms (%s, %d thread%s)\n",
           iwp_method_info(j->params.method)->name, s->n_keep, j->n_visual,
           100.0 * s->n_keep / j->n_visual, j->select_ms, iwp_cpu_name(), j->exec.n_thread,
           j->exec.n_thread == 1 ? "" : "s");
    printf("keep_hash %016llx\n", (unsigned long long)iwp_keep_hash(s->keep, s->n_keep));
    char text[64];
    int at = 4;
    fputs("kept", stdout);
    for (int32_t i = 0; i < s->n_keep; i++) {
        snprintf(text, sizeof text, "%d", s->keep[i]);
        print_row(&at, text);
    }
    putchar('\n');
    if (s->n_merge) {
        fputs("merge", stdout);
        at = 5;
        for (int32_t i = 0; i < s->n_merge; i++) {
            snprintf(text, sizeof text, "%d>%d:%.4g", s->merge[i].from, s->merge[i].to,
                     (double)s->merge[i].weight);
            print_row(&at, text);
        }
        putchar('\n');
    }
    if (s->scores && s->has_scores) {
        fputs("scores", stdout);
        at = 6;
        for (int32_t i = 0; i < j->n_visual; i++) {
            iwp_json_format_f32(text, s->scores[i]);
            print_row(&at, text);
        }
        putchar('\n');
    }
}

/* ---- drawing ---- */

static bool parse_grid(const char *text, int32_t *rows, int32_t *cols) {
    char *end;
    long r = strtol(text, &end, 10);
    if (end == text || (*end != 'x' && *end != 'X') || r < 1 || r > 65536) return false;
    const char *rest = end + 1;
    long c = strtol(rest, &end, 10);
    if (end == rest || *end || c < 1 || c > 65536) return false;
    *rows = (int32_t)r;
    *cols = (int32_t)c;
    return true;
}

static int find_grid(const struct job *j, const struct args *a, int32_t *rows, int32_t *cols,
                     iwp_err *err) {
    const char *text = a->grid ? NULL : iwp_st_metadata(j->st, "grid");
    *rows = a->rows;
    *cols = a->cols;
    if (text)
        IWP_REQUIRE(parse_grid(text, rows, cols), err, IWP_EINVAL,
                    "%.150s: metadata 'grid': '%.40s' is not ROWSxCOLS", iwp_st_path(j->st), text);
    else if (!a->grid)
        *rows = *cols = (int32_t)lround(sqrt(j->n_image));
    IWP_REQUIRE(a->grid || text || *rows * *cols == j->n_image, err, IWP_EINVAL,
                "--grid: %d visual tokens are no square, give ROWSxCOLS", j->n_image);
    IWP_REQUIRE((int64_t)*rows * *cols == j->n_image, err, IWP_EINVAL,
                "%s: %d x %d cells for %d visual tokens", text ? "metadata 'grid'" : "--grid",
                *rows, *cols, j->n_image);
    return 0;
}

static int draw(const struct job *j, const struct args *a, iwp_err *err) {
    struct iwp_overlay o = {0};
    IWP_TRY(find_grid(j, a, &o.rows, &o.cols, err));
    struct iwp_image im = {0};
    if (a->image) {
        IWP_TRY(iwp_image_load(a->image, NULL, &im, err));
        o.rgb = im.rgb;
        o.width = im.w;
        o.height = im.h;
    }
    uint8_t *kept = calloc((size_t)j->n_image + 1, 1);
    if (!kept) {
        iwp_image_free(&im);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    int32_t cell = 0, visual = 0, k = 0;
    for (int32_t i = 0; i < j->in.n; i++) { /* visual tokens -> cells: separators have none */
        if (j->in.code[i] != IWP_CODE_VISUAL && j->in.code[i] != IWP_CODE_SEPARATOR) continue;
        bool is_kept = k < j->sel.n_keep && j->sel.keep[k] == visual;
        k += is_kept;
        visual++;
        if (j->in.code[i] == IWP_CODE_VISUAL) kept[cell++] = is_kept;
    }
    o.kept = kept;
    int rc = iwp_overlay_write_png(&o, a->overlay, err);
    free(kept);
    iwp_image_free(&im);
    if (rc >= 0) iwp_log(IWP_LOG_INFO, "wrote %s", a->overlay);
    return rc;
}

/* Before anything is written, messages too. */
static int check_files(const char *file, const struct args *a, const struct iwp_log_args *logs,
                       iwp_err *err) {
    const struct iwp_cli_file out[] = {{"--overlay", a->overlay}, {"--log-file", logs->file}};
    IWP_TRY(iwp_cli_outputs(out, 2, err));
    IWP_TRY(iwp_cli_apart(out, 2, "FILE.safetensors", file, err));
    IWP_TRY(iwp_cli_apart(out, 2, "--image", a->image, err));
    return iwp_cli_overlay(a->overlay, err);
}

static int check_flags(struct args *a, iwp_err *err) {
    IWP_TRY(iwp_cli_output(a->output, &a->json, err));
    IWP_REQUIRE(!a->grid || parse_grid(a->grid, &a->rows, &a->cols), err, IWP_EINVAL,
                "--grid: '%.40s' is not ROWSxCOLS", a->grid);
    if (!a->overlay && (a->image || a->grid))
        iwp_log(IWP_LOG_INFO, "%s has no effect without --overlay FILE.png",
                a->image ? "--image" : "--grid");
    return 0;
}

int iwp_cmd_select(int argc, char **argv) {
    struct args a = {0};
    struct iwp_prune_args prune = IWP_PRUNE_ARGS_DEFAULT;
    struct iwp_log_args logs = IWP_LOG_ARGS_DEFAULT;
    const struct iwp_opt_group groups[] = {{"selection", select_opts, &a},
                                           {"pruning", iwp_prune_opts, &prune},
                                           {"messages", iwp_log_opts, &logs},
                                           {NULL, NULL, NULL}};
    struct iwp_strings files = {0};
    struct job j;
    memset(&j, 0, sizeof j);
    iwp_err err = {0};
    int code = 0, rc = iwp_opts_parse(&command, groups, argc, argv, &files, &err);
    if (rc == 1) goto done;
    if (rc >= 0) rc = check_files(files.at[0], &a, &logs, &err);
    if (rc >= 0) rc = iwp_log_args_apply(&logs, &err);
    if (rc >= 0) rc = check_flags(&a, &err);
    if (rc >= 0) rc = iwp_prune_args_params(&prune, "iwp", &j.params, &err);
    if (rc < 0) {
        code = iwp_cli_usage("select", &err);
        goto done;
    }
    rc = iwp_st_open(&j.st, files.at[0], &err);
    if (rc >= 0) rc = read_input(&j, &err);
    if (rc >= 0) rc = iwp_cli_exec(&j.pool, a.threads, &j.exec, &err);
    if (rc >= 0) rc = run(&j, a.scores, &err);
    if (rc >= 0 && a.overlay) rc = draw(&j, &a, &err);
    if (rc >= 0 && a.json)
        rc = print_json(&j, &err);
    else if (rc >= 0)
        print_text(&j);
    if (rc < 0) code = iwp_cli_fail("select", &err);
done:
    release(&j);
    iwp_strings_free(&files);
    iwp_prune_args_free(&prune);
    return code;
}
