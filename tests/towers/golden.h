/* The golden checkpoints: found beside the tree (../shared or IWP_SHARED) or as the committed part under
 * tests/data/golden, converted once per test program into a folder of its own. */
#ifndef IWP_TOWERS_GOLDEN_H
#define IWP_TOWERS_GOLDEN_H

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/file.h"
#include "convert/convert.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/prompt.h"
#include "model/prompter.h"
#include "test.h"

struct golden {
    char root[512], folder[256], model[800], mmproj[800];
    struct iwp_backend *backend;
    struct iwp_gguf *g, *v;
    iwp_prompter *prompter;
};

static inline int golden_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

/* The folder with vectors/ and models/ or gguf/; 0: this checkpoint is in none, 1: to convert, 2: GGUF. */
static inline int golden_root(const char *name, char *out, size_t cap) {
    const char *shared = getenv("IWP_SHARED");
    char probe[700];
    for (int i = 0; i < 2; i++) {
        if (i)
            snprintf(out, cap, "%s/golden", IWP_TEST_DATA);
        else
            snprintf(out, cap, "%s/golden", shared ? shared : IWP_TEST_DATA "/../../../shared");
        snprintf(probe, sizeof probe, "%s/models/%s/model.safetensors", out, name);
        if (golden_exists(probe)) return 1;
        snprintf(probe, sizeof probe, "%s/gguf/%s.gguf", out, name);
        if (golden_exists(probe)) return 2;
    }
    return 0;
}

static inline int golden_convert_type(struct golden *G, const char *name, const char *type) {
    iwp_err err = {0};
    char dir[700];
    snprintf(G->folder, sizeof G->folder, "/tmp/iwp-towers-XXXXXX");
    CHECK(mkdtemp(G->folder) != NULL);
    snprintf(G->model, sizeof G->model, "%s/m.gguf", G->folder);
    snprintf(G->mmproj, sizeof G->mmproj, "%s/p.gguf", G->folder);
    snprintf(dir, sizeof dir, "%s/models/%s", G->root, name);
    struct iwp_convert_params cp = {
        .in = dir, .out = G->model, .mmproj = G->mmproj, .type = type, .n_thread = 2};
    struct iwp_convert_report rep;
    int rc = iwp_convert(&cp, &rep, &err);
    CHECK_MSG(rc >= 0, "%s", err.msg);
    return rc;
}

static inline int golden_convert(struct golden *G, const char *name) {
    return golden_convert_type(G, name, "f32");
}

/* Opens a checkpoint; 0 when something failed. */
static inline int golden_open(struct golden *G, const char *name, const char *template_name) {
    iwp_err err = {0};
    *G = (struct golden){0};
    iwp_log_set_level(IWP_LOG_WARN);
    int kind = golden_root(name, G->root, sizeof G->root), rc = 0;
    CHECK_MSG(kind > 0, "golden/%s is neither beside the tree nor in tests/data", name);
    if (kind == 1) rc = golden_convert(G, name);
    if (kind == 2) {
        snprintf(G->model, sizeof G->model, "%s/gguf/%s.gguf", G->root, name);
        snprintf(G->mmproj, sizeof G->mmproj, "%s/gguf/%s-mmproj.gguf", G->root, name);
    }
    if (kind == 0 || rc < 0) return 0;
    struct iwp_backend_params bp = {.n_thread = 2};
    rc = iwp_backend_new(&G->backend, &bp, &err);
    if (rc >= 0) rc = iwp_gguf_open(&G->g, G->model, &err);
    if (rc >= 0) rc = iwp_gguf_open(&G->v, G->mmproj, &err);
    struct iwp_prompter_params pp = {
        .backend = G->backend, .model = G->g, .mmproj = G->v, .chat_template = template_name};
    if (rc >= 0) rc = iwp_prompter_new(&G->prompter, &pp, &err);
    CHECK_MSG(rc >= 0, "%s", err.msg);
    return rc >= 0;
}

static inline void golden_close(struct golden *G) {
    iwp_prompter_free(G->prompter);
    iwp_gguf_free(G->g);
    iwp_gguf_free(G->v);
    iwp_backend_free(G->backend);
    if (G->folder[0]) {
        unlink(G->model);
        unlink(G->mmproj);
        rmdir(G->folder);
    }
}

static inline cJSON *golden_json(const char *path) {
    uint8_t *text;
    size_t n;
    cJSON *j = NULL;
    iwp_err err = {0};
    int rc = iwp_file_read(path, 64 << 20, &text, &n, &err);
    if (rc >= 0) {
        rc = iwp_json_parse((const char *)text, n, (struct iwp_json_limits){0, 0}, &j, &err);
        free(text);
    }
    CHECK_MSG(rc >= 0, "%s", err.msg);
    return j;
}

/* Largest |a - b| between an array and a stored tensor; infinite when the sizes differ. */
static inline double golden_diff(const iwp_st *st, const char *name, const float *a, int64_t n) {
    const struct iwp_st_tensor *t = iwp_st_find(st, name);
    if (!t || t->n != n || !a) return INFINITY;
    float *b = malloc((size_t)n * sizeof *b);
    iwp_err err;
    double worst = 0;
    if (iwp_st_read_f32(t, 0, n, b, &err) < 0) worst = INFINITY;
    for (int64_t i = 0; i < n && worst < INFINITY; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d;
    }
    free(b);
    return worst;
}

#endif
