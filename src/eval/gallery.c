/* Reads pictures of samples: see gallery.h. */
#include "eval/gallery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"

static void item_free(struct iwp_gallery_item *it) {
    free(it->question);
    free(it->image);
    free(it->cell);
}

void iwp_gallery_free(struct iwp_gallery *g) {
    for (int32_t i = 0; i < g->n; i++) item_free(&g->at[i]);
    free(g->at);
    memset(g, 0, sizeof *g);
}

const struct iwp_gallery_item *iwp_gallery_find(const struct iwp_gallery *g, int32_t doc) {
    for (int32_t i = 0; i < g->n; i++)
        if (g->at[i].doc == doc) return &g->at[i];
    return NULL;
}

int iwp_gallery_path(char *out, size_t cap, const char *dir, const char *task, iwp_err *err) {
    int n = snprintf(out, cap, "%s/gallery_%s.jsonl", dir, task);
    IWP_REQUIRE(n > 0 && (size_t)n < cap, err, IWP_EINVAL, "%.100s…: path too long", dir);
    return 0;
}

static bool number(const cJSON *o, const char *key, int32_t *out) {
    int64_t v;
    if (!iwp_json_get_int(o && key ? cJSON_GetObjectItemCaseSensitive(o, key) : o, 0, 1 << 24, &v))
        return false;
    *out = (int32_t)v;
    return true;
}

static int read_cells(struct iwp_gallery_item *it, const cJSON *list, iwp_err *err) {
    const int32_t n = cJSON_GetArraySize(list) / 5;
    it->cell = calloc((size_t)n + 1, sizeof *it->cell);
    IWP_REQUIRE(it->cell, err, IWP_ENOMEM, "out of memory");
    const cJSON *v = list ? list->child : NULL;
    for (; it->n_cell < n; it->n_cell++) {
        struct iwp_gallery_cell *c = &it->cell[it->n_cell];
        int32_t *const part[5] = {&c->token, &c->x0, &c->y0, &c->x1, &c->y1};
        for (int k = 0; k < 5; k++, v = v->next)
            IWP_REQUIRE(number(v, NULL, part[k]), err, IWP_EFORMAT, "'cells' has no numbers");
        IWP_REQUIRE(c->token < it->n_visual, err, IWP_EFORMAT, "'cells' has no token %d", c->token);
    }
    return 0;
}

static int read_item(struct iwp_gallery_item *it, const cJSON *o, iwp_err *err) {
    const cJSON *q = cJSON_GetObjectItemCaseSensitive(o, "question");
    const cJSON *im = cJSON_GetObjectItemCaseSensitive(o, "webp");
    IWP_REQUIRE(number(o, "doc_id", &it->doc) && number(o, "width", &it->width) &&
                    number(o, "height", &it->height) && number(o, "visual", &it->n_visual) &&
                    cJSON_IsString(q) && cJSON_IsString(im),
                err, IWP_EFORMAT, "not a line of a gallery");
    it->question = strdup(q->valuestring);
    it->image = strdup(im->valuestring);
    IWP_REQUIRE(it->question && it->image, err, IWP_ENOMEM, "out of memory");
    /* It is put into a page as it is. */
    const size_t n = strlen(it->image);
    IWP_REQUIRE(strspn(it->image, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                  "+/=") == n,
                err, IWP_EFORMAT, "'webp' is not base64");
    return read_cells(it, cJSON_GetObjectItemCaseSensitive(o, "cells"), err);
}

int iwp_gallery_read(struct iwp_gallery *g, const char *path, iwp_err *err) {
    uint8_t *data;
    size_t size;
    if (access(path, F_OK) != 0) return 0;
    IWP_TRY(iwp_file_read(path, (size_t)64 << 20, &data, &size, err));
    int rc = 0, line = 0;
    for (char *p = (char *)data, *e; rc >= 0 && (e = strchr(p, '\n')) != NULL; p = e + 1) {
        cJSON *o = NULL;
        struct iwp_gallery_item it = {0};
        line++;
        rc = iwp_json_parse(p, (size_t)(e - p), (struct iwp_json_limits){0}, &o, err);
        if (rc >= 0) rc = read_item(&it, o, err);
        struct iwp_gallery_item *at =
            rc >= 0 ? realloc(g->at, (size_t)(g->n + 1) * sizeof *at) : NULL;
        if (rc >= 0 && !at) rc = iwp_err_set(err, IWP_ENOMEM, "out of memory");
        if (rc >= 0) {
            g->at = at;
            g->at[g->n++] = it;
        } else {
            item_free(&it);
            rc = iwp_err_prefix(err, rc, "%s:%d", path, line);
        }
        cJSON_Delete(o);
    }
    free(data);
    return rc;
}
