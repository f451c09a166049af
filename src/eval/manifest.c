/* The manifest reader: see manifest.h. */
#include "eval/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

static void sample_free(struct iwp_eval_sample *s) {
    for (int32_t i = 0; i < s->n_media && s->path; i++) free(s->path[i]);
    free(s->path);
    free(s->sha);
    free((void *)s->media);
    free((void *)s->answers);
    free((void *)s->choices);
    free(s->prompt);
    cJSON_Delete(s->row);
}

void iwp_eval_data_free(struct iwp_eval_data *d) {
    for (int32_t i = 0; i < d->n; i++) {
        for (int32_t k = 0; k < d->set[i].n; k++) sample_free(&d->set[i].at[k]);
        free(d->set[i].at);
        iwp_eval_task_free(d->set[i].task);
    }
    free(d->set);
    memset(d, 0, sizeof *d);
}

/* A text, or a list of texts, as an array. */
static int texts(const cJSON *v, const char *key, int32_t max, const char ***out, int32_t *n,
                 iwp_err *err) {
    const int32_t count = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 1;
    IWP_REQUIRE(count >= 1 && count <= max, err, IWP_EFORMAT,
                "'%s' has %d entries, 1 to %d allowed", key, count, max);
    *out = calloc((size_t)count, sizeof **out);
    IWP_REQUIRE(*out, err, IWP_ENOMEM, "out of memory");
    const cJSON *c = cJSON_IsArray(v) ? v->child : v;
    for (int32_t i = 0; i < count; i++, c = c->next) {
        IWP_REQUIRE(cJSON_IsString(c), err, IWP_EFORMAT, "'%s' is not text", key);
        (*out)[i] = c->valuestring;
    }
    *n = count;
    return 0;
}

static int optional_text(const cJSON *row, const char *key, const char **out, iwp_err *err) {
    cJSON *v = cJSON_GetObjectItemCaseSensitive(row, key);
    *out = NULL;
    if (!v || cJSON_IsNull(v)) return 0;
    if (cJSON_IsNumber(v)) { /* ids and groups are often numbers */
        char *t = cJSON_PrintUnformatted(v);
        IWP_REQUIRE(t, err, IWP_ENOMEM, "out of memory");
        cJSON *s = cJSON_CreateString(t);
        cJSON_free(t);
        IWP_REQUIRE(s && cJSON_ReplaceItemInObjectCaseSensitive((cJSON *)row, key, s), err,
                    IWP_ENOMEM, "out of memory");
        v = s;
    }
    IWP_REQUIRE(cJSON_IsString(v), err, IWP_EFORMAT, "'%s' is not text", key);
    *out = v->valuestring;
    return 0;
}

static int read_media(struct iwp_eval_sample *s, const char *dir, iwp_err *err) {
    const cJSON *image = cJSON_GetObjectItemCaseSensitive(s->row, "image");
    const cJSON *video = cJSON_GetObjectItemCaseSensitive(s->row, "video");
    IWP_REQUIRE(!(image && video), err, IWP_EFORMAT, "both 'image' and 'video'");
    IWP_REQUIRE(image || video, err, IWP_EFORMAT, "neither 'image' nor 'video'");
    s->video = video != NULL;
    const char *key = video ? "video" : "image";
    IWP_TRY(texts(video ? video : image, key, IWP_MANIFEST_MAX_MEDIA, &s->media, &s->n_media, err));
    s->path = calloc((size_t)s->n_media, sizeof *s->path);
    IWP_REQUIRE(s->path, err, IWP_ENOMEM, "out of memory");
    for (int32_t i = 0; i < s->n_media; i++) {
        const char *m = s->media[i];
        size_t n = strlen(dir) + strlen(m) + 2;
        IWP_REQUIRE(*m && (s->path[i] = malloc(n)) != NULL, err, *m ? IWP_ENOMEM : IWP_EFORMAT,
                    "'%s' is empty", key);
        if (m[0] == '/')
            snprintf(s->path[i], n, "%s", m);
        else
            snprintf(s->path[i], n, "%s/%s", dir, m);
        IWP_REQUIRE(access(s->path[i], R_OK) == 0, err, IWP_EIO, "%s '%.200s' is not there", key,
                    m);
    }
    return 0;
}

/* The answer of a choice question as a letter: a letter, a 0-based number or an option's text. */
static int read_letter(struct iwp_eval_sample *s, const cJSON *v, iwp_err *err) {
    int64_t k = -1;
    if (cJSON_IsNumber(v)) {
        if (!iwp_json_get_int(v, 0, s->n_choice - 1, &k)) k = -1;
    } else if (cJSON_IsString(v)) {
        const char *t = v->valuestring;
        if (t[0] && !t[1] && t[0] >= 'A' && t[0] < 'A' + s->n_choice) k = t[0] - 'A';
        for (int32_t i = 0; i < s->n_choice && k < 0; i++)
            if (!strcmp(t, s->choices[i])) k = i;
    }
    IWP_REQUIRE(k >= 0, err, IWP_EFORMAT,
                "'answer' is no letter, number or text of the %d 'choices'", s->n_choice);
    s->letter[0] = (char)('A' + k);
    s->answers = calloc(1, sizeof *s->answers);
    IWP_REQUIRE(s->answers, err, IWP_ENOMEM, "out of memory");
    s->answers[0] = s->letter; /* set again when the array of samples moves */
    s->n_answer = 1;
    return 0;
}

static int read_answers(struct iwp_eval_sample *s, iwp_err *err) {
    cJSON *row = s->row;
    const cJSON *choices = cJSON_GetObjectItemCaseSensitive(row, "choices");
    const cJSON *answers = cJSON_GetObjectItemCaseSensitive(row, "answers");
    const char *answer;
    if (choices) {
        IWP_TRY(
            texts(choices, "choices", IWP_MANIFEST_MAX_CHOICES, &s->choices, &s->n_choice, err));
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, "answer");
        IWP_REQUIRE(v, err, IWP_EFORMAT, "'choices' without 'answer'");
        return read_letter(s, v, err);
    }
    if (answers)
        return texts(answers, "answers", IWP_MANIFEST_MAX_ANSWERS, &s->answers, &s->n_answer, err);
    IWP_TRY(optional_text(row, "answer", &answer, err));
    IWP_REQUIRE(answer, err, IWP_EFORMAT, "none of 'answer', 'answers', 'choices'");
    return texts(cJSON_GetObjectItemCaseSensitive(row, "answer"), "answer", 1, &s->answers,
                 &s->n_answer, err);
}

/* Lines call a task by its name or by that of a subtask. */
static bool is_called(const struct iwp_eval_task *t, const char *name) {
    return !strcmp(t->name, name) ||
           (t->subtasks && cJSON_GetObjectItemCaseSensitive(t->subtasks, name));
}

/* The task's scorer, or the line's when the task has none; beside a task's own the line may only repeat
 * it.  `called`: the line's task, or NULL; where the command put the line into another task, its scorer
 * was meant for the old one. */
static int pick_scorer(struct iwp_eval_sample *s, const struct iwp_eval_task *t, const char *called,
                       iwp_err *err) {
    const char *named;
    IWP_TRY(optional_text(s->row, "scorer", &named, err));
    const bool nll = named && !strcmp(named, "nll");
    const struct iwp_scorer *scorer = named ? iwp_scorer_find(named) : NULL;
    IWP_REQUIRE(!named || nll || scorer, err, IWP_EFORMAT, "no scorer is called '%.40s'", named);
    const cJSON *v =
        t->subtasks && called ? cJSON_GetObjectItemCaseSensitive(t->subtasks, called) : NULL;
    s->scorer = t->scorer;
    if (t->open_scorer && !s->n_choice) s->scorer = t->open_scorer;
    if (v) s->scorer = iwp_scorer_find(v->valuestring);
    s->nll = t->nll;
    if (!s->scorer && !s->nll) {
        s->scorer = scorer;
        s->nll = nll;
    }
    IWP_REQUIRE(s->scorer || s->nll, err, IWP_EFORMAT,
                "task '%s' is not built in and the line has no 'scorer'", t->name);
    const bool moved = called && !is_called(t, called);
    IWP_REQUIRE(!named || moved || (s->scorer == scorer && s->nll == nll), err, IWP_EFORMAT,
                "scorer '%.40s' is not that of task '%s', which is %s", named, t->name,
                s->nll ? "nll" : s->scorer->name);
    IWP_REQUIRE(!s->nll || t->aggregate == IWP_AGGREGATE_NLL, err, IWP_EFORMAT,
                "scorer nll beside others in task '%s'", t->name);
    IWP_REQUIRE(!s->scorer || !s->scorer->wants_choices || s->n_choice || s->letter[0], err,
                IWP_EFORMAT, "scorer %s needs 'choices'", s->scorer->name);
    return 0;
}

static struct iwp_eval_set *find_set(struct iwp_eval_data *d, const char *name) {
    for (int32_t i = 0; i < d->n; i++)
        if (is_called(d->set[i].task, name)) return &d->set[i];
    return NULL;
}

static int get_set(struct iwp_eval_data *d, const char *name, const cJSON *row, const char *dir,
                   enum iwp_profile profile, struct iwp_eval_set **out, iwp_err *err) {
    *out = find_set(d, name);
    if (*out) return 0;
    struct iwp_eval_task *t = NULL;
    int rc = iwp_eval_task_find(name, dir, profile, &t, err);
    if (rc == 0) {
        const cJSON *s = cJSON_GetObjectItemCaseSensitive(row, "scorer");
        IWP_REQUIRE(s, err, IWP_EFORMAT,
                    "task '%.64s' is not built in and the line has no 'scorer'", name);
        rc =
            iwp_eval_task_plain(name, cJSON_IsString(s) && !strcmp(s->valuestring, "nll"), &t, err);
    }
    IWP_TRY(rc);
    struct iwp_eval_set *set = realloc(d->set, (size_t)(d->n + 1) * sizeof *set);
    if (!set) {
        iwp_eval_task_free(t);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    d->set = set;
    set += d->n++;
    memset(set, 0, sizeof *set);
    set->task = t;
    *out = set;
    return 0;
}

static int read_line(struct iwp_eval_data *d, const char *text, size_t n, int32_t line,
                     const char *dir, const char *task, const char *task_dir,
                     enum iwp_profile profile, iwp_err *err) {
    struct iwp_eval_sample s;
    memset(&s, 0, sizeof s);
    s.line = line;
    struct iwp_eval_set *set = NULL;
    const char *name = NULL, *question = NULL;
    int64_t max_new = 0;
    int rc =
        iwp_json_parse(text, n, (struct iwp_json_limits){.depth = 8, .values = 10000}, &s.row, err);
    if (rc < 0) goto fail;
    if (!cJSON_IsObject(s.row)) IWP_FAIL(err, IWP_EFORMAT, "not a JSON object");
    IWP_TRY_GOTO(optional_text(s.row, "id", &s.id, err));
    if (!s.id || !*s.id) IWP_FAIL(err, IWP_EFORMAT, "no 'id'");
    IWP_TRY_GOTO(optional_text(s.row, "task", &name, err));
    const char *called = name;
    if (task) name = task;
    if (!name) IWP_FAIL(err, IWP_EFORMAT, "no 'task'");
    IWP_TRY_GOTO(optional_text(s.row, "question", &question, err));
    if (!question) IWP_FAIL(err, IWP_EFORMAT, "no 'question'");
    IWP_TRY_GOTO(optional_text(s.row, "category", &s.category, err));
    IWP_TRY_GOTO(optional_text(s.row, "group", &s.group, err));
    IWP_TRY_GOTO(get_set(d, name, s.row, task_dir, profile, &set, err));
    if (set->task->subtasks && called && !s.category) s.category = called;
    IWP_TRY_GOTO(read_media(&s, dir, err));
    IWP_TRY_GOTO(read_answers(&s, err));
    IWP_TRY_GOTO(pick_scorer(&s, set->task, called, err));
    s.max_new_tokens = set->task->max_new_tokens;
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(s.row, "max_new_tokens");
    if (m && !iwp_json_get_int(m, 1, 1 << 20, &max_new))
        IWP_FAIL(err, IWP_EFORMAT, "'max_new_tokens' is not a number from 1 to 1048576");
    if (m && !set->task->max_new_tokens) s.max_new_tokens = (int32_t)max_new;
    if (!s.max_new_tokens) s.max_new_tokens = IWP_EVAL_DEFAULT_TOKENS;
    if ((set->task->aggregate == IWP_AGGREGATE_CIRCULAR ||
         set->task->aggregate == IWP_AGGREGATE_PAIRS) &&
        !s.group)
        IWP_FAIL(err, IWP_EFORMAT, "task '%s' needs 'group'", set->task->name);
    if ((set->task->aggregate == IWP_AGGREGATE_CATEGORY ||
         set->task->aggregate == IWP_AGGREGATE_PAIRS) &&
        !s.category)
        IWP_FAIL(err, IWP_EFORMAT, "task '%s' needs 'category'", set->task->name);
    IWP_TRY_GOTO(iwp_eval_task_prompt(set->task, s.row, &s.prompt, err));
    if (set->n == set->cap) {
        int32_t cap = set->cap ? 2 * set->cap : 64;
        struct iwp_eval_sample *at = realloc(set->at, (size_t)cap * sizeof *at);
        if (!at) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
        set->at = at;
        set->cap = cap;
    }
    s.doc = set->n;
    set->at[set->n++] = s;
    return 0;
fail:
    sample_free(&s);
    return rc;
}

struct key {
    const char *text;
    int32_t i;
};

static int by_text(const void *a, const void *b) {
    const struct key *x = a, *y = b;
    int c = strcmp(x->text, y->text);
    return c ? c : x->i < y->i ? -1 : x->i > y->i;
}

/* Ids once, clusters by the first medium, letters where the array now is. */
static int finish_set(struct iwp_eval_set *set, const char *path, iwp_err *err) {
    struct key *k = malloc((size_t)(set->n + 1) * sizeof *k);
    IWP_REQUIRE(k, err, IWP_ENOMEM, "out of memory");
    int rc = 0;
    struct iwp_sha256 h;
    iwp_sha256_init(&h);
    for (int32_t i = 0; i < set->n; i++) k[i] = (struct key){set->at[i].id, i};
    qsort(k, (size_t)set->n, sizeof *k, by_text);
    for (int32_t i = 1; i < set->n; i++) {
        if (strcmp(k[i].text, k[i - 1].text)) continue;
        if (k[i - 1].i < set->n_before)
            IWP_FAIL(err, IWP_EFORMAT, "%s:%d: id '%.80s' was in a manifest before", path,
                     set->at[k[i].i].line, k[i].text);
        IWP_FAIL(err, IWP_EFORMAT, "%s:%d: id '%.80s' was on line %d already", path,
                 set->at[k[i].i].line, k[i].text, set->at[k[i - 1].i].line);
    }
    set->n_before = set->n;
    for (int32_t i = 0; i < set->n; i++) k[i] = (struct key){set->at[i].path[0], i};
    qsort(k, (size_t)set->n, sizeof *k, by_text);
    for (int32_t i = 0, c = 0; i < set->n; i++) {
        if (i && strcmp(k[i].text, k[i - 1].text)) c++;
        set->at[k[i].i].cluster = c;
    }
    for (int32_t i = 0; i < set->n; i++) {
        struct iwp_eval_sample *s = &set->at[i];
        if (s->letter[0]) s->answers[0] = s->letter;
        char *t = cJSON_PrintUnformatted(s->row);
        if (!t) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
        iwp_sha256_add(&h, t, strlen(t));
        iwp_sha256_add(&h, "\n", 1);
        cJSON_free(t);
    }
    uint8_t digest[32];
    iwp_sha256_end(&h, digest);
    iwp_sha256_hex(digest, set->hash);
fail:
    free(k);
    return rc;
}

int iwp_eval_data_add(struct iwp_eval_data *d, const char *path, const char *task,
                      const char *task_dir, enum iwp_profile profile, iwp_err *err) {
    struct iwp_map map = {0};
    IWP_TRY(iwp_map_open(&map, path, err));
    char dir[4096] = ".";
    const char *slash = strrchr(path, '/');
    int rc = 0;
    if (slash) snprintf(dir, sizeof dir, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    int32_t line = 0, n = 0;
    const size_t bom = map.size >= 3 && !memcmp(map.data, "\xef\xbb\xbf", 3) ? 3 : 0;
    for (size_t at = bom; at < map.size;) {
        const char *p = (const char *)map.data + at, *e = memchr(p, '\n', map.size - at);
        const size_t len = e ? (size_t)(e - p) : map.size - at;
        at += len + 1;
        line++;
        size_t blank = 0;
        while (blank < len && strchr(" \t\r", p[blank]) && p[blank]) blank++;
        if (blank == len) continue;
        if (len > IWP_MANIFEST_MAX_LINE)
            IWP_FAIL(err, IWP_EFORMAT, "%s:%d: a line of %zu bytes, at most %d", path, line, len,
                     IWP_MANIFEST_MAX_LINE);
        rc = read_line(d, p, len, line, dir, task, task_dir, profile, err);
        if (rc < 0) {
            rc = iwp_err_prefix(err, rc, "%s:%d", path, line);
            goto fail;
        }
        n++;
    }
    if (!n) IWP_FAIL(err, IWP_EFORMAT, "%s: no questions in it", path);
    for (int32_t i = 0; i < d->n; i++) IWP_TRY_GOTO(finish_set(&d->set[i], path, err));
fail:
    iwp_map_close(&map);
    return rc;
}

/* ---- --limit, --shard ------------------------------------------------------------------------------ */

/* A group larger than this is a label, not a unit that must stay whole. */
enum { LARGEST_GROUP = 16 };

struct part {
    const char *category;
    uint64_t hash;
    int32_t first, n, rank;
    bool take;
};

static int by_category(const void *a, const void *b) {
    const struct part *x = a, *y = b;
    int c = strcmp(x->category, y->category);
    if (c) return c;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int by_rank(const void *a, const void *b) {
    const struct part *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return by_category(a, b);
}

static int by_first(const void *a, const void *b) {
    const struct part *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Numbers the groups: of[i] is the part of sample i, parts in order of their first sample. */
static int find_parts(const struct iwp_eval_set *set, struct part **out, int32_t **of, int32_t *n,
                      iwp_err *err) {
    struct key *k = malloc((size_t)(set->n + 1) * sizeof *k);
    struct part *p = calloc((size_t)set->n + 1, sizeof *p);
    int32_t *o = malloc((size_t)(set->n + 1) * sizeof *o), np = 0;
    if (!k || !p || !o) {
        free(k);
        free(p);
        free(o);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    const bool whole = set->task->aggregate == IWP_AGGREGATE_CIRCULAR ||
                       set->task->aggregate == IWP_AGGREGATE_PAIRS;
    for (int32_t i = 0; i < set->n; i++)
        k[i] = (struct key){set->at[i].group ? set->at[i].group : "", i};
    qsort(k, (size_t)set->n, sizeof *k, by_text);
    for (int32_t i = 0, j; i < set->n; i = j) {
        for (j = i + 1; j < set->n && !strcmp(k[i].text, k[j].text); j++) {
        }
        const bool unit = *k[i].text && (whole || j - i <= LARGEST_GROUP);
        for (int32_t m = i; m < j; m++) {
            const struct iwp_eval_sample *s = &set->at[k[m].i];
            if (m == i || !unit) {
                const char *name = unit ? k[i].text : s->id;
                p[np++] = (struct part){s->category ? s->category : "",
                                        iwp_fnv64(IWP_FNV64_INIT, name, strlen(name)),
                                        k[m].i,
                                        0,
                                        0,
                                        false};
            }
            p[np - 1].n++;
            o[k[m].i] = p[np - 1].first;
        }
    }
    free(k);
    *out = p;
    *of = o;
    *n = np;
    return 0;
}

/* Drops the samples whose part was not taken. */
static void keep_taken(struct iwp_eval_set *set, const struct part *p, int32_t np,
                       const int32_t *of) {
    int32_t n = 0;
    for (int32_t i = 0; i < set->n; i++) {
        int32_t lo = 0, hi = np - 1; /* p is sorted by first */
        while (lo < hi) {
            int32_t mid = (lo + hi) / 2;
            if (p[mid].first < of[i])
                lo = mid + 1;
            else
                hi = mid;
        }
        if (p[lo].take) {
            if (n != i) set->at[n] = set->at[i];
            if (set->at[n].letter[0]) set->at[n].answers[0] = set->at[n].letter;
            n++;
        } else {
            sample_free(&set->at[i]);
        }
    }
    set->n = n;
}

int iwp_eval_data_limit(struct iwp_eval_data *d, int32_t limit, iwp_err *err) {
    for (int32_t i = 0; i < d->n; i++) {
        struct iwp_eval_set *set = &d->set[i];
        if (set->n <= limit) continue;
        struct part *p;
        int32_t *of, np, taken = 0;
        IWP_TRY(find_parts(set, &p, &of, &np, err));
        qsort(p, (size_t)np, sizeof *p, by_category);
        for (int32_t k = 0; k < np; k++)
            p[k].rank = k && !strcmp(p[k].category, p[k - 1].category) ? p[k - 1].rank + 1 : 0;
        qsort(p, (size_t)np, sizeof *p, by_rank);
        for (int32_t k = 0; k < np && taken < limit; k++) {
            p[k].take = true;
            taken += p[k].n;
        }
        qsort(p, (size_t)np, sizeof *p, by_first);
        keep_taken(set, p, np, of);
        free(p);
        free(of);
    }
    return 0;
}

int iwp_eval_data_shard(struct iwp_eval_data *d, int32_t shard, int32_t n, iwp_err *err) {
    for (int32_t i = 0; i < d->n; i++) {
        struct part *p;
        int32_t *of, np;
        IWP_TRY(find_parts(&d->set[i], &p, &of, &np, err));
        qsort(p, (size_t)np, sizeof *p, by_first);
        for (int32_t k = 0; k < np; k++) p[k].take = k % n == shard;
        keep_taken(&d->set[i], p, np, of);
        free(p);
        free(of);
    }
    return 0;
}
