/* The weights of a Hugging Face folder: model.safetensors, or the shards that
 * model.safetensors.index.json lists.  Refuses shard names that leave the folder, tensors the index
 * promises and a shard lacks, and two tensors that mean the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "convert/hf.h"

static bool begins(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* One name for each weight, whatever version of the library wrote the folder. */
static char *canonical(const char *name) {
    static const char *const inner[] = {"model.language_model.", "model.visual.",
                                        "model.vision_tower.", "model.multi_modal_projector.",
                                        "model.image_newline"};
    static const char *const rename[][2] = {
        {"language_model.model.", "text."},
        {"language_model.lm_head.", "lm_head."},
        {"language_model.", "text."},
        {"model.", "text."},
        {"visual.", "vision."},
        {"vision_tower.vision_model.", "vision."},
        {"vision_tower.", "vision."},
        {"multi_modal_projector.", "projector."},
    };
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++)
        if (begins(name, inner[i])) {
            name += strlen("model.");
            break;
        }
    const char *to = "";
    for (size_t i = 0; i < sizeof rename / sizeof rename[0]; i++)
        if (begins(name, rename[i][0])) {
            name += strlen(rename[i][0]);
            to = rename[i][1];
            break;
        }
    size_t n = strlen(to) + strlen(name) + 1;
    char *out = malloc(n);
    if (out) snprintf(out, n, "%s%s", to, name);
    return out;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct iwp_hf_weight *)a)->name, ((const struct iwp_hf_weight *)b)->name);
}

static int add_shard(struct iwp_hf_weights *w, const char *dir, const char *file, iwp_err *err) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    IWP_REQUIRE(n > 0 && (size_t)n < sizeof path, err, IWP_EINVAL, "%.60s…: path too long", dir);
    iwp_st **shard = realloc(w->shard, (size_t)(w->n_shard + 1) * sizeof *shard);
    IWP_REQUIRE(shard, err, IWP_ENOMEM, "%s: out of memory", path);
    w->shard = shard;
    IWP_TRY(iwp_st_open(&w->shard[w->n_shard], path, err));
    iwp_st *st = w->shard[w->n_shard++];
    struct iwp_hf_weight *list =
        realloc(w->w, (size_t)(w->n + iwp_st_count(st) + 1) * sizeof *list);
    IWP_REQUIRE(list, err, IWP_ENOMEM, "%s: out of memory", path);
    w->w = list;
    for (int32_t i = 0; i < iwp_st_count(st); i++) {
        const struct iwp_st_tensor *t = iwp_st_at(st, i);
        list[w->n].t = t;
        list[w->n].name = canonical(t->name);
        IWP_REQUIRE(list[w->n].name, err, IWP_ENOMEM, "%s: out of memory", path);
        w->n++;
    }
    return 0;
}

/* Shards in the order of first mention; each opened once. */
static int open_index(struct iwp_hf_weights *w, const char *dir, const cJSON *map, iwp_err *err) {
    enum { MAX_SHARD = 1000 };
    const char *seen[MAX_SHARD];
    int n = 0;
    for (const cJSON *e = map->child; e; e = e->next) {
        const char *file = cJSON_GetStringValue(e);
        IWP_REQUIRE(file && file[0] && file[0] != '.' && !strchr(file, '/') && strlen(file) < 256,
                    err, IWP_EFORMAT,
                    "%s/model.safetensors.index.json: tensor %.100s lies in a file that is not of "
                    "this folder",
                    dir, e->string);
        int i = 0;
        while (i < n && strcmp(seen[i], file) != 0) i++;
        if (i == n) {
            IWP_REQUIRE(n < MAX_SHARD, err, IWP_EFORMAT, "%s: more than %d shards", dir, MAX_SHARD);
            IWP_TRY(add_shard(w, dir, file, err));
            seen[n++] = file;
        }
        IWP_REQUIRE(iwp_st_find(w->shard[i], e->string), err, IWP_EMISSING,
                    "%s/%s: tensor %s is missing, the index lists it", dir, file, e->string);
    }
    IWP_REQUIRE(n > 0, err, IWP_EFORMAT, "%s/model.safetensors.index.json: empty weight_map", dir);
    return 0;
}

int iwp_hf_open_weights(struct iwp_hf_weights *w, const char *dir, iwp_err *err) {
    memset(w, 0, sizeof *w);
    cJSON *index = NULL;
    char path[4096];
    snprintf(path, sizeof path, "%.3900s/model.safetensors", dir);
    int rc = 0;
    if (access(path, F_OK) == 0) {
        rc = add_shard(w, dir, "model.safetensors", err);
    } else {
        rc = iwp_hf_read_json(dir, "model.safetensors.index.json", &index, err);
        if (rc == IWP_EMISSING)
            IWP_FAIL(err, IWP_EMISSING,
                     "%s: neither model.safetensors nor model.safetensors.index.json", dir);
        if (rc < 0) goto fail;
        const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
        if (!cJSON_IsObject(map))
            IWP_FAIL(err, IWP_EFORMAT, "%s/model.safetensors.index.json: no weight_map", dir);
        rc = open_index(w, dir, map, err);
    }
    if (rc < 0) goto fail;
    qsort(w->w, (size_t)w->n, sizeof *w->w, by_name);
    for (int32_t i = 1; i < w->n; i++)
        if (strcmp(w->w[i - 1].name, w->w[i].name) == 0)
            IWP_FAIL(err, IWP_EFORMAT, "%s: tensors %.100s and %.100s mean the same weight", dir,
                     w->w[i - 1].t->name, w->w[i].t->name);
fail:
    cJSON_Delete(index);
    if (rc < 0) iwp_hf_close_weights(w);
    return rc;
}

void iwp_hf_close_weights(struct iwp_hf_weights *w) {
    for (int32_t i = 0; i < w->n; i++) free(w->w[i].name);
    for (int32_t i = 0; i < w->n_shard; i++) iwp_st_close(w->shard[i]);
    free(w->w);
    free(w->shard);
    memset(w, 0, sizeof *w);
}

const struct iwp_st_tensor *iwp_hf_find_weight(const struct iwp_hf_weights *w, const char *name) {
    struct iwp_hf_weight key = {(char *)(uintptr_t)name, NULL};
    const struct iwp_hf_weight *f =
        w->n ? bsearch(&key, w->w, (size_t)w->n, sizeof key, by_name) : NULL;
    return f ? f->t : NULL;
}
