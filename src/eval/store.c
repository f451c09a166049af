/* Results folders on disk: see store.h. */
#include "eval/store.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

static const size_t max_file = (size_t)1 << 31;

void iwp_eval_run_free(struct iwp_eval_run *r) {
    free(r->model);
    free(r->profile);
    for (int32_t i = 0; i < r->n_task; i++) iwp_eval_task_free(r->task[i].task);
    free(r->task);
    free(r->config);
    memset(r, 0, sizeof *r);
}

bool iwp_eval_config_same_row(const struct iwp_eval_config *a, const struct iwp_eval_config *b) {
    return !strcmp(a->prune, b->prune) && a->keep == b->keep && a->n_keep == b->n_keep &&
           !strcmp(a->options, b->options);
}

/* ---- run.json -------------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *o, const char *key) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsString(v) ? v->valuestring : "";
}

static int32_t int_of(const cJSON *o, const char *key, int32_t other) {
    int64_t n;
    return iwp_json_get_int(cJSON_GetObjectItemCaseSensitive(o, key), -1, INT32_MAX, &n)
               ? (int32_t)n
               : other;
}

static double real_of(const cJSON *o, const char *key) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : 0;
}

static int read_run(struct iwp_eval_run *r, const cJSON *root, const char *path, iwp_err *err) {
    const cJSON *tasks = cJSON_GetObjectItemCaseSensitive(root, "tasks"), *v;
    const cJSON *configs = cJSON_GetObjectItemCaseSensitive(root, "configurations");
    IWP_REQUIRE(cJSON_IsArray(tasks) && cJSON_IsArray(configs), err, IWP_EFORMAT,
                "%s: not the run file of iwp eval", path);
    const cJSON *h = cJSON_GetObjectItemCaseSensitive(root, "hashes");
    r->model = strdup(text_of(root, "model"));
    r->profile = strdup(text_of(root, "profile"));
    r->task = calloc((size_t)cJSON_GetArraySize(tasks) + 1, sizeof *r->task);
    r->config = calloc((size_t)cJSON_GetArraySize(configs) + 1, sizeof *r->config);
    IWP_REQUIRE(r->model && r->profile && r->task && r->config, err, IWP_ENOMEM, "out of memory");
    snprintf(r->model_hash, sizeof r->model_hash, "%s", text_of(h, "model"));
    snprintf(r->mmproj_hash, sizeof r->mmproj_hash, "%s", text_of(h, "mmproj"));
    snprintf(r->binary_hash, sizeof r->binary_hash, "%s", text_of(h, "binary"));
    snprintf(r->options, sizeof r->options, "%s", text_of(root, "options"));
    r->limit = int_of(root, "limit", 0);
    r->shard = int_of(root, "shard", 0);
    r->n_shard = int_of(root, "shards", 1);
    const enum iwp_profile profile =
        strcmp(r->profile, "lmms-0.7.2") ? IWP_PROFILE_LMMS_0_3 : IWP_PROFILE_LMMS_0_7_2;
    cJSON_ArrayForEach(v, tasks) {
        struct iwp_eval_run_task *t = &r->task[r->n_task];
        char *def = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(v, "definition"));
        IWP_REQUIRE(def, err, IWP_EFORMAT, "%s: a task without definition", path);
        int rc = iwp_eval_task_parse(def, strlen(def), path, profile, &t->task, err);
        cJSON_free(def);
        IWP_TRY(rc);
        snprintf(t->hash, sizeof t->hash, "%s", text_of(v, "data"));
        t->n = int_of(v, "n", 0);
        r->n_task++;
    }
    cJSON_ArrayForEach(v, configs) {
        struct iwp_eval_config *c = &r->config[r->n_config++];
        snprintf(c->dir, sizeof c->dir, "%s", text_of(v, "folder"));
        snprintf(c->prune, sizeof c->prune, "%s", text_of(v, "prune"));
        snprintf(c->options, sizeof c->options, "%s", text_of(v, "options"));
        c->keep = real_of(v, "keep");
        c->n_keep = int_of(v, "keep_tokens", 0);
        c->seed = int_of(v, "seed", -1);
        c->stored = true;
        IWP_REQUIRE(c->dir[0] && c->dir[0] != '.' && !strchr(c->dir, '/') && c->prune[0], err,
                    IWP_EFORMAT, "%s: a configuration without folder or method", path);
    }
    return 0;
}

int iwp_eval_run_read(struct iwp_eval_run *r, const char *dir, iwp_err *err) {
    memset(r, 0, sizeof *r);
    char path[4096];
    uint8_t *data = NULL;
    size_t size;
    cJSON *root = NULL;
    int n = snprintf(path, sizeof path, "%s/run.json", dir);
    IWP_REQUIRE(n > 0 && (size_t)n < sizeof path, err, IWP_EINVAL, "%.100s…: path too long", dir);
    if (access(path, F_OK) != 0) return 0;
    IWP_TRY(iwp_file_read(path, 64 << 20, &data, &size, err));
    int rc = iwp_json_parse((char *)data, size, (struct iwp_json_limits){0}, &root, err);
    free(data);
    if (rc < 0) return iwp_err_prefix(err, rc, "%s", path);
    rc = read_run(r, root, path, err);
    cJSON_Delete(root);
    if (rc < 0) iwp_eval_run_free(r);
    return rc < 0 ? rc : 1;
}

int iwp_eval_run_write(const struct iwp_eval_run *r, const char *dir, iwp_err *err) {
    struct iwp_json_out w;
    iwp_json_init(&w, true);
    iwp_json_open_object(&w, NULL);
    iwp_json_put_string(&w, "model", r->model);
    iwp_json_put_string(&w, "profile", r->profile);
    iwp_json_put_string(&w, "options", r->options);
    iwp_json_open_object(&w, "hashes");
    iwp_json_put_string(&w, "model", r->model_hash);
    iwp_json_put_string(&w, "mmproj", r->mmproj_hash);
    iwp_json_put_string(&w, "binary", r->binary_hash);
    iwp_json_close_object(&w);
    iwp_json_put_int(&w, "limit", r->limit);
    iwp_json_put_int(&w, "shard", r->shard);
    iwp_json_put_int(&w, "shards", r->n_shard);
    iwp_json_open_array(&w, "tasks");
    for (int32_t i = 0; i < r->n_task; i++) {
        iwp_json_open_object(&w, NULL);
        iwp_json_put_string(&w, "name", r->task[i].task->name);
        iwp_json_put_string(&w, "data", r->task[i].hash);
        iwp_json_put_int(&w, "n", r->task[i].n);
        iwp_json_put_raw(&w, "definition", r->task[i].task->json);
        iwp_json_close_object(&w);
    }
    iwp_json_close_array(&w);
    iwp_json_open_array(&w, "configurations");
    for (int32_t i = 0; i < r->n_config; i++) {
        const struct iwp_eval_config *c = &r->config[i];
        if (c->refused) continue;
        iwp_json_open_object(&w, NULL);
        iwp_json_put_string(&w, "folder", c->dir);
        iwp_json_put_string(&w, "prune", c->prune);
        if (c->keep > 0) iwp_json_put_f64(&w, "keep", c->keep);
        if (c->n_keep > 0) iwp_json_put_int(&w, "keep_tokens", c->n_keep);
        iwp_json_put_string(&w, "options", c->options);
        if (c->seed >= 0) iwp_json_put_int(&w, "seed", c->seed);
        iwp_json_close_object(&w);
    }
    iwp_json_close_array(&w);
    iwp_json_close_object(&w);
    char path[4096];
    struct iwp_output o;
    snprintf(path, sizeof path, "%s/run.json", dir);
    int rc = iwp_output_open(&o, path, err);
    if (rc >= 0) {
        rc = iwp_json_write(&w, o.file, err);
        if (rc >= 0) rc = iwp_output_commit(&o, err);
        iwp_output_abort(&o);
    }
    iwp_json_free(&w);
    return rc;
}

int iwp_eval_run_match(const struct iwp_eval_run *a, const struct iwp_eval_run *b, const char *dir,
                       iwp_err *err) {
    const char *what = strcmp(a->model_hash, b->model_hash)     ? "another model"
                       : strcmp(a->mmproj_hash, b->mmproj_hash) ? "another mmproj file"
                       : strcmp(a->profile, b->profile)         ? "another --profile"
                       : strcmp(a->options, b->options)         ? "other model flags"
                       : a->limit != b->limit                   ? "another --limit"
                                                                : NULL;
    IWP_REQUIRE(!what, err, IWP_EINVAL, "%.200s: holds results of %s; give another --out", dir,
                what);
    for (int32_t i = 0; i < a->n_task; i++)
        for (int32_t k = 0; k < b->n_task; k++)
            if (!strcmp(a->task[i].task->name, b->task[k].task->name)) {
                IWP_REQUIRE(!strcmp(a->task[i].hash, b->task[k].hash), err, IWP_EINVAL,
                            "%.200s: holds results of other data of task %s; give another --out",
                            dir, a->task[i].task->name);
                IWP_REQUIRE(!strcmp(a->task[i].task->json, b->task[k].task->json), err, IWP_EINVAL,
                            "%.200s: holds results of another definition of task %s; give another "
                            "--out",
                            dir, a->task[i].task->name);
            }
    return 0;
}

/* Whether b has every configuration of a, in the same order. */
static bool has_all(const struct iwp_eval_run *b, const struct iwp_eval_run *a) {
    int32_t i = 0;
    for (int32_t k = 0; k < b->n_config && i < a->n_config; k++)
        if (!strcmp(a->config[i].dir, b->config[k].dir)) i++;
    return i == a->n_config;
}

int iwp_eval_run_merge(struct iwp_eval_run *a, const struct iwp_eval_run *b, iwp_err *err) {
    struct iwp_eval_run_task *t = realloc(a->task, (size_t)(a->n_task + b->n_task + 1) * sizeof *t);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    a->task = t;
    for (int32_t k = 0; k < b->n_task; k++) {
        int32_t i = 0;
        while (i < a->n_task && strcmp(a->task[i].task->name, b->task[k].task->name)) i++;
        if (i < a->n_task) continue;
        const struct iwp_eval_task *from = b->task[k].task;
        a->task[i] = b->task[k];
        a->task[i].task = NULL;
        IWP_TRY(iwp_eval_task_parse(from->json, strlen(from->json), from->name,
                                    strcmp(b->profile, "lmms-0.7.2") ? IWP_PROFILE_LMMS_0_3
                                                                     : IWP_PROFILE_LMMS_0_7_2,
                                    &a->task[i].task, err));
        a->n_task++;
    }
    struct iwp_eval_config *c =
        realloc(a->config, (size_t)(a->n_config + b->n_config + 1) * sizeof *c);
    IWP_REQUIRE(c, err, IWP_ENOMEM, "out of memory");
    a->config = c;
    if (has_all(b, a)) {
        for (int32_t k = b->n_config - 1, i = a->n_config - 1; k >= 0; k--)
            if (i >= 0 && !strcmp(c[i].dir, b->config[k].dir))
                c[k] = c[i--];
            else
                c[k] = b->config[k];
        a->n_config = b->n_config;
        return 0;
    }
    for (int32_t k = 0; k < b->n_config; k++) {
        int32_t i = 0;
        while (i < a->n_config && strcmp(a->config[i].dir, b->config[k].dir)) i++;
        if (i == a->n_config) a->config[a->n_config++] = b->config[k];
    }
    return 0;
}

/* ---- lines ------------------------------------------------------------------------------------------ */

int iwp_eval_lines_path(char *out, size_t cap, const char *dir, const char *config,
                        const char *kind, const char *task, iwp_err *err) {
    int n = snprintf(out, cap, "%s/%s/%s_%s.jsonl", dir, config, kind, task);
    IWP_REQUIRE(n > 0 && (size_t)n < cap, err, IWP_EINVAL, "%.100s…: path too long", dir);
    return 0;
}

static int dup_text(char **out, const cJSON *o, const char *key, iwp_err *err) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    *out = NULL;
    if (!cJSON_IsString(v)) return 0;
    *out = strdup(v->valuestring);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    return 0;
}

/* A cluster is what was seen, not what it is called: names may be equal in two manifests. */
static int read_media(struct iwp_eval_record *x, const cJSON *o, iwp_err *err) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(o, "media_sha256"), *v;
    const char *first =
        cJSON_IsArray(list) && cJSON_IsString(list->child) ? list->child->valuestring : "";
    if (!*first) first = text_of(o, "medium");
    x->medium = iwp_fnv64(IWP_FNV64_INIT, first, strlen(first));
    if (!cJSON_IsArray(list)) return 0;
    x->media = calloc((size_t)cJSON_GetArraySize(list) + 1, 65);
    IWP_REQUIRE(x->media, err, IWP_ENOMEM, "out of memory");
    char *p = x->media;
    cJSON_ArrayForEach(v, list) p +=
        sprintf(p, "%s%.64s", v == list->child ? "" : " ", cJSON_IsString(v) ? v->valuestring : "");
    return 0;
}

static int read_record(struct iwp_eval_record *x, const cJSON *o, iwp_err *err) {
    memset(x, 0, sizeof *x);
    x->doc = int_of(o, "doc_id", -1);
    IWP_REQUIRE(cJSON_IsObject(o) && x->doc >= 0, err, IWP_EFORMAT, "no 'doc_id'");
    IWP_TRY(dup_text(&x->id, o, "id", err));
    IWP_TRY(dup_text(&x->category, o, "category", err));
    IWP_TRY(dup_text(&x->group, o, "group", err));
    IWP_TRY(dup_text(&x->label, o, "label", err));
    IWP_TRY(dup_text(&x->target, o, "target", err));
    IWP_TRY(dup_text(&x->answer, o, "answer", err));
    IWP_TRY(dup_text(&x->error, o, "error", err));
    IWP_TRY(read_media(x, o, err));
    x->score = real_of(o, "score");
    x->chance = real_of(o, "chance");
    x->unparsed = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "unparsed"));
    x->visual = int_of(o, "visual", 0);
    x->kept = int_of(o, "kept", 0);
    return 0;
}

static int by_doc(const void *a, const void *b) {
    const struct iwp_eval_record *x = a, *y = b;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

void iwp_eval_records_sort(struct iwp_eval_records *r) {
    if (r->n) qsort(r->at, (size_t)r->n, sizeof *r->at, by_doc);
}

int iwp_eval_records_read(struct iwp_eval_records *r, const char *path,
                          const struct iwp_gallery *shown, iwp_err *err) {
    if (access(path, F_OK) != 0) return 0;
    uint8_t *data;
    size_t size;
    IWP_TRY(iwp_file_read(path, max_file, &data, &size, err));
    int rc = 0, line = 0;
    for (char *p = (char *)data, *e; (e = strchr(p, '\n')) != NULL; p = e + 1) {
        cJSON *o = NULL;
        line++;
        rc = iwp_json_parse(p, (size_t)(e - p), (struct iwp_json_limits){0}, &o, err);
        if (rc >= 0 && r->n == r->cap) {
            int32_t cap = r->cap ? 2 * r->cap : 64;
            struct iwp_eval_record *at = realloc(r->at, (size_t)cap * sizeof *at);
            if (at) {
                r->at = at;
                r->cap = cap;
            } else {
                rc = iwp_err_set(err, IWP_ENOMEM, "out of memory");
            }
        }
        if (rc >= 0) {
            rc = read_record(&r->at[r->n], o, err);
            if (rc >= 0 && shown && iwp_gallery_find(shown, r->at[r->n].doc))
                rc = dup_text(&r->at[r->n].bits, o, "keep_bits", err);
            r->n++; /* what it holds so far is freed with the rest */
        }
        cJSON_Delete(o);
        if (rc < 0) {
            rc = iwp_err_prefix(err, rc, "%s:%d", path, line);
            break;
        }
    }
    free(data);
    iwp_eval_records_sort(r);
    for (int32_t i = 1; i < r->n && rc >= 0; i++)
        if (r->at[i].doc == r->at[i - 1].doc)
            rc = iwp_err_set(err, IWP_EFORMAT, "%s: sample %d is there twice", path, r->at[i].doc);
    return rc;
}

int iwp_eval_lines_repair(const char *path, iwp_err *err) {
    struct iwp_map m;
    if (access(path, F_OK) != 0) return 0;
    IWP_TRY(iwp_map_open(&m, path, err));
    size_t n = m.size;
    while (n > 0 && m.data[n - 1] != '\n') n--;
    const bool cut = n != m.size;
    iwp_map_close(&m);
    IWP_REQUIRE(!cut || truncate(path, (off_t)n) == 0, err, IWP_EIO, "%s: cannot cut it: %s", path,
                strerror(errno));
    return 0;
}

int iwp_eval_lines_append(const char *path, const char *line, size_t n, iwp_err *err) {
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    IWP_REQUIRE(fd >= 0, err, IWP_EIO, "%s: cannot write: %s", path, strerror(errno));
    ssize_t k = write(fd, line, n);
    const int e = errno;
    const bool ok = close(fd) == 0 && k == (ssize_t)n;
    IWP_REQUIRE(ok, err, IWP_EIO, "%s: cannot write: %s", path,
                k < 0 ? strerror(e) : "the disk is full");
    return 0;
}

int iwp_eval_lines_append_json(const char *path, struct iwp_json_out *w, iwp_err *err) {
    int rc = w->failed ? iwp_err_set(err, IWP_ENOMEM, "out of memory") : 0;
    if (rc >= 0) {
        while (w->len && w->text[w->len - 1] != '}') w->len--;
        w->text[w->len] = '\n';
        rc = iwp_eval_lines_append(path, w->text, w->len + 1, err);
    }
    iwp_json_free(w);
    return rc;
}
