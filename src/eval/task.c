/* Task files and prompt templates: see task.h. */
#include "eval/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "eval/text.h"

static const char *const aggregates[] = {"mean", "category", "circular", "pairs", "nll"};

const char *iwp_profile_name(enum iwp_profile p) {
    return p == IWP_PROFILE_LMMS_0_3 ? "lmms-0.3" : "lmms-0.7.2";
}

bool iwp_eval_name_ok(const char *s) {
    size_t n = strlen(s);
    return n >= 1 && n <= 64 && s[0] != '.' && s[0] != '-' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

void iwp_eval_task_free(struct iwp_eval_task *t) {
    if (!t) return;
    free(t->name);
    free(t->title);
    free(t->paper);
    free(t->prompt);
    free(t->open_prompt);
    for (int32_t i = 0; i < t->n_category; i++) free(t->category[i]);
    free(t->category);
    cJSON_Delete(t->subtasks);
    free(t->json);
    free(t);
}

static int copy_text(char **out, const cJSON *v, const char *where, const char *key, iwp_err *err) {
    IWP_REQUIRE(cJSON_IsString(v), err, IWP_EFORMAT, "%s: '%s' is not a text", where, key);
    free(*out);
    *out = strdup(v->valuestring);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    return 0;
}

static int find_scorer(const cJSON *v, const char *where, bool *nll, const struct iwp_scorer **out,
                       iwp_err *err) {
    IWP_REQUIRE(cJSON_IsString(v), err, IWP_EFORMAT, "%s: 'scorer' is not a text", where);
    if (nll && strcmp(v->valuestring, "nll") == 0) {
        *nll = true;
        return 0;
    }
    *out = iwp_scorer_find(v->valuestring);
    IWP_REQUIRE(*out, err, IWP_EFORMAT, "%s: no scorer is called '%.40s'", where, v->valuestring);
    return 0;
}

static int read_categories(struct iwp_eval_task *t, const cJSON *v, const char *where,
                           iwp_err *err) {
    IWP_REQUIRE(cJSON_IsArray(v), err, IWP_EFORMAT, "%s: 'categories' is not a list", where);
    t->category = calloc((size_t)cJSON_GetArraySize(v) + 1, sizeof *t->category);
    IWP_REQUIRE(t->category, err, IWP_ENOMEM, "out of memory");
    const cJSON *c;
    cJSON_ArrayForEach(c, v)
        IWP_TRY(copy_text(&t->category[t->n_category++], c, where, "categories", err));
    return 0;
}

static int read_key(struct iwp_eval_task *t, const cJSON *v, const char *where, iwp_err *err) {
    const char *k = v->string;
    int64_t n;
    if (!strcmp(k, "name")) return copy_text(&t->name, v, where, k, err);
    if (!strcmp(k, "title")) return copy_text(&t->title, v, where, k, err);
    if (!strcmp(k, "paper")) return copy_text(&t->paper, v, where, k, err);
    if (!strcmp(k, "prompt")) return copy_text(&t->prompt, v, where, k, err);
    if (!strcmp(k, "open_prompt")) return copy_text(&t->open_prompt, v, where, k, err);
    if (!strcmp(k, "scorer")) return find_scorer(v, where, &t->nll, &t->scorer, err);
    if (!strcmp(k, "open_scorer")) return find_scorer(v, where, NULL, &t->open_scorer, err);
    if (!strcmp(k, "categories")) return read_categories(t, v, where, err);
    if (!strcmp(k, "max_new_tokens")) {
        IWP_REQUIRE(iwp_json_get_int(v, 1, 1 << 20, &n), err, IWP_EFORMAT,
                    "%s: 'max_new_tokens' is not a number from 1 to 1048576", where);
        t->max_new_tokens = (int32_t)n;
        return 0;
    }
    if (!strcmp(k, "skip_nan")) {
        t->skip_nan = cJSON_IsTrue(v);
        return 0;
    }
    if (!strcmp(k, "aggregate")) {
        for (int i = 0; i < 5; i++)
            if (cJSON_IsString(v) && !strcmp(v->valuestring, aggregates[i])) {
                t->aggregate = (enum iwp_aggregate)i;
                return 0;
            }
        return iwp_err_set(err, IWP_EFORMAT,
                           "%s: 'aggregate' is one of mean, category, circular, pairs, nll", where);
    }
    if (!strcmp(k, "subtasks")) {
        IWP_REQUIRE(cJSON_IsObject(v), err, IWP_EFORMAT, "%s: 'subtasks' is not an object", where);
        const cJSON *s;
        cJSON_ArrayForEach(s, v) {
            const struct iwp_scorer *sc;
            IWP_TRY(find_scorer(s, where, NULL, &sc, err));
        }
        t->subtasks = cJSON_Duplicate(v, true);
        IWP_REQUIRE(t->subtasks, err, IWP_ENOMEM, "out of memory");
        return 0;
    }
    if (!strcmp(k, "profiles") || !strcmp(k, "about") || !strcmp(k, "id")) return 0;
    return iwp_err_set(err, IWP_EFORMAT, "%s: a task has no key '%.40s'", where, k);
}

int iwp_eval_task_parse(const char *json, size_t n, const char *where, enum iwp_profile profile,
                        struct iwp_eval_task **out, iwp_err *err) {
    *out = NULL;
    cJSON *root = NULL;
    const cJSON *v;
    struct iwp_eval_task *t = calloc(1, sizeof *t);
    IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
    int rc = iwp_json_parse(json, n, (struct iwp_json_limits){0}, &root, err);
    if (rc < 0) {
        iwp_err_prefix(err, rc, "%s", where);
        goto fail;
    }
    if (!cJSON_IsObject(root)) IWP_FAIL(err, IWP_EFORMAT, "%s: not a JSON object", where);
    cJSON_ArrayForEach(v, root) IWP_TRY_GOTO(read_key(t, v, where, err));
    const cJSON *over = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(root, "profiles"), iwp_profile_name(profile));
    cJSON_ArrayForEach(v, over) IWP_TRY_GOTO(read_key(t, v, where, err));
    if (!t->name || !iwp_eval_name_ok(t->name))
        IWP_FAIL(err, IWP_EFORMAT, "%s: 'name' is missing or not made of letters, digits and . _ -",
                 where);
    if (!t->prompt && !(t->prompt = strdup("{question}")))
        IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    if (!t->title && !(t->title = strdup(t->name))) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    if (t->nll) t->aggregate = IWP_AGGREGATE_NLL;
    t->json = cJSON_PrintUnformatted(root);
    if (!t->json) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    cJSON_Delete(root);
    *out = t;
    return 1;
fail:
    cJSON_Delete(root);
    iwp_eval_task_free(t);
    return rc;
}

int iwp_eval_task_plain(const char *name, bool nll, struct iwp_eval_task **out, iwp_err *err) {
    char text[160];
    IWP_REQUIRE(iwp_eval_name_ok(name), err, IWP_EFORMAT,
                "'%.64s' is no task name: letters, digits and . _ -, at most 64", name);
    int n =
        snprintf(text, sizeof text, "{\"name\":\"%s\"%s}", name, nll ? ",\"scorer\":\"nll\"" : "");
    return iwp_eval_task_parse(text, (size_t)n, name, IWP_PROFILE_LMMS_0_3, out, err);
}

int iwp_eval_task_find(const char *name, const char *dir, enum iwp_profile profile,
                       struct iwp_eval_task **out, iwp_err *err) {
    *out = NULL;
    if (dir && iwp_eval_name_ok(name)) {
        char path[4096];
        int n = snprintf(path, sizeof path, "%s/%s.json", dir, name);
        if (n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0) {
            uint8_t *data;
            size_t size;
            IWP_TRY(iwp_file_read(path, 1 << 20, &data, &size, err));
            int rc = iwp_eval_task_parse((char *)data, size, path, profile, out, err);
            free(data);
            return rc;
        }
    }
    for (const struct iwp_builtin_task *b = iwp_builtin_tasks; b->name; b++)
        if (!strcmp(b->name, name))
            return iwp_eval_task_parse(b->json, strlen(b->json), b->name, profile, out, err);
    for (const struct iwp_builtin_task *b = iwp_builtin_tasks; b->name; b++) {
        if (!strstr(b->json, "\"subtasks\"")) continue;
        IWP_TRY(iwp_eval_task_parse(b->json, strlen(b->json), b->name, profile, out, err));
        if (cJSON_GetObjectItemCaseSensitive((*out)->subtasks, name)) return 1;
        iwp_eval_task_free(*out);
        *out = NULL;
    }
    return 0;
}

/* ---- templates ----------------------------------------------------------------------------------- */

struct out {
    char *text;
    size_t n, cap;
    bool failed, empty; /* empty: a field had nothing to say */
};

static void put(struct out *o, const char *s, size_t n) {
    if (o->n + n + 1 > o->cap) {
        size_t cap = 2 * (o->n + n) + 64;
        char *t = realloc(o->text, cap);
        if (!t) {
            o->failed = true;
            return;
        }
        o->text = t;
        o->cap = cap;
    }
    memcpy(o->text + o->n, s, n);
    o->n += n;
    o->text[o->n] = 0;
}

static void put_text(struct out *o, struct iwp_text t) {
    char *s = iwp_text_encode(t);
    if (s)
        put(o, s, strlen(s));
    else
        o->failed = true;
    free(s);
}

static bool has(const char *mods, const char *name) {
    const size_t n = strlen(name);
    for (const char *p = mods; p && *p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (p[n] == '|' || p[n] == 0)) return true;
    return false;
}

static bool is_nan(const char *s) { return !*s || !strcmp(s, "nan"); }

static void put_value(struct out *o, const char *s, const char *mods) {
    struct iwp_text_pool p = {0};
    struct iwp_text t = iwp_text_decode(&p, s);
    if (has(mods, "strip")) t = iwp_text_strip(t);
    if (has(mods, "unasked")) t = iwp_text_replace(&p, t, " Please answer yes or no.", "");
    if (has(mods, "capitalize")) t = iwp_text_capitalize(&p, t);
    if (p.failed) o->failed = true;
    put_text(o, t);
    iwp_text_pool_free(&p);
}

static void put_choices(struct out *o, const cJSON *list, const char *mods, bool skip_nan) {
    const cJSON *c;
    int i = 0;
    bool first = true;
    cJSON_ArrayForEach(c, list) {
        const char letter[] = {(char)('A' + i++), '.', ' ', 0};
        if (skip_nan && is_nan(c->valuestring)) continue;
        if (!first) put(o, "\n", 1);
        first = false;
        if (!has(mods, "plain")) put(o, letter, 3);
        put_value(o, c->valuestring, mods);
    }
    if (first) o->empty = true;
}

static int put_field(struct out *o, const struct iwp_eval_task *t, const cJSON *line,
                     const char *key, iwp_err *err) {
    char name[80];
    size_t n = strcspn(key, "}");
    IWP_REQUIRE(key[n] && n < sizeof name, err, IWP_EFORMAT, "task %s: a { in the prompt has no }",
                t->name);
    memcpy(name, key, n);
    name[n] = 0;
    char *mods = strchr(name, '|');
    if (mods) *mods++ = 0;
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(line, name);
    if (!strcmp(name, "choices")) {
        put_choices(o, v, mods, t->skip_nan);
    } else if (cJSON_IsString(v)) {
        if (is_nan(v->valuestring)) o->empty = true;
        put_value(o, v->valuestring, mods);
    } else {
        o->empty = true;
    }
    return 0;
}

int iwp_eval_task_prompt(const struct iwp_eval_task *t, const cJSON *line, char **out,
                         iwp_err *err) {
    *out = NULL;
    struct out o = {0};
    size_t at = 0; /* where a bracket opened */
    bool inside = false;
    int rc = 0;
    const bool open = t->open_prompt && !cJSON_GetObjectItemCaseSensitive(line, "choices");
    put(&o, "", 0);
    for (const char *p = open ? t->open_prompt : t->prompt; *p; p++) {
        if (*p == '[' && !inside) {
            inside = true;
            at = o.n;
            o.empty = false;
        } else if (*p == ']' && inside) {
            inside = false;
            if (o.empty && o.text) o.text[o.n = at] = 0;
        } else if (*p == '{') {
            IWP_TRY_GOTO(put_field(&o, t, line, p + 1, err));
            p = strchr(p, '}');
        } else {
            put(&o, p, 1);
        }
    }
    if (o.failed) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    *out = o.text;
    return 0;
fail:
    free(o.text);
    return rc;
}
