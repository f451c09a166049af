/* Fields and messages of a chat request: see request.h. */
#include "server/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"

enum { MAX_MESSAGE = 4096, MAX_PART = 16384, MAX_MEDIA = 256, MAX_STOP = 16, MAX_STOP_BYTES = 512 };

void iwp_request_free(struct iwp_request *r) {
    for (int32_t i = 0; i < r->n_media; i++) free(r->media[i]);
    free(r->media);
    free(r->part);
    free(r->message);
    free(r->stop);
    cJSON_Delete(r->doc);
    memset(r, 0, sizeof *r);
}

/* A field that is there and not null. */
static const cJSON *field(const cJSON *o, const char *name) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static int get_real(const cJSON *o, const char *name, double lo, double hi, double *out,
                    iwp_err *err) {
    const cJSON *v = field(o, name);
    if (!v) return 0;
    IWP_REQUIRE(cJSON_IsNumber(v) && v->valuedouble >= lo && v->valuedouble <= hi, err, IWP_EINVAL,
                "'%s' must be a number from %g to %g", name, lo, hi);
    *out = v->valuedouble;
    return 1;
}

static int get_int(const cJSON *o, const char *name, int64_t lo, int64_t hi, int32_t *out,
                   iwp_err *err) {
    const cJSON *v = field(o, name);
    if (!v) return 0;
    int64_t i;
    IWP_REQUIRE(iwp_json_get_int(v, lo, hi, &i), err, IWP_EINVAL,
                "'%s' must be a whole number from %lld to %lld", name, (long long)lo,
                (long long)hi);
    *out = (int32_t)i;
    return 1;
}

static int get_bool(const cJSON *o, const char *name, bool *out, iwp_err *err) {
    const cJSON *v = field(o, name);
    if (!v) return 0;
    IWP_REQUIRE(cJSON_IsBool(v), err, IWP_EINVAL, "'%s' must be true or false", name);
    *out = cJSON_IsTrue(v);
    return 1;
}

/* ---- messages ----------------------------------------------------------------------------------- */

/* A film below the media folder is not read into memory: the engine gets its path.  Folders and lists of
 * frames are refused, for they could lead out of it. */
static int add_film(struct iwp_request *r, char *path, struct iwp_part *part, iwp_err *err) {
    struct stat st;
    const char *dot = strrchr(path, '.');
    r->media[r->n_media++] = (uint8_t *)path; /* to be freed with the others */
    IWP_REQUIRE(stat(path, &st) == 0 && S_ISREG(st.st_mode) && !(dot && strcmp(dot, ".txt") == 0),
                err, IWP_EINVAL, "only a film can be a video: send frames as image_url parts");
    r->media_hash = iwp_fnv64(r->media_hash, path, strlen(path));
    *part = (struct iwp_part){.kind = IWP_PART_VIDEO, .file = path};
    return 0;
}

static int add_media(struct iwp_request *r, cJSON *url, const struct iwp_request_defaults *def,
                     enum iwp_part_kind kind, struct iwp_part *part, iwp_err *err) {
    IWP_REQUIRE(r->n_media < MAX_MEDIA, err, IWP_EINVAL, "more than %d pictures", MAX_MEDIA);
    size_t size;
    uint8_t *data;
    if (kind == IWP_PART_VIDEO) {
        char *path;
        IWP_TRY(iwp_request_find_media(url->valuestring, def, &path, err));
        if (path) return add_film(r, path, part, err);
    }
    IWP_TRY(iwp_request_load_media(url->valuestring, def, &data, &size, err));
    r->media[r->n_media++] = data;
    r->media_bytes += size;
    url->valuestring[0] = 0; /* base64 of a large picture need not stay twice */
    char *less = realloc(url->valuestring, 1);
    if (less) url->valuestring = less;
    IWP_REQUIRE(size > 0, err, IWP_EFORMAT, "the %s is empty",
                kind == IWP_PART_VIDEO ? "video" : "picture");
    r->media_hash = iwp_fnv64(r->media_hash, &size, sizeof size);
    r->media_hash = iwp_fnv64(r->media_hash, data, size);
    *part = (struct iwp_part){.kind = kind, .data = data, .size = size};
    return 0;
}

static int parse_part(struct iwp_request *r, const cJSON *v, const struct iwp_request_defaults *def,
                      struct iwp_part *part, iwp_err *err) {
    IWP_REQUIRE(cJSON_IsObject(v), err, IWP_EINVAL, "a content part must be an object");
    const cJSON *type = field(v, "type"), *x;
    IWP_REQUIRE(cJSON_IsString(type), err, IWP_EINVAL, "a content part needs a 'type'");
    const char *t = type->valuestring;
    if (strcmp(t, "text") == 0) {
        x = field(v, "text");
        IWP_REQUIRE(cJSON_IsString(x), err, IWP_EINVAL, "a text part needs a string 'text'");
        *part = (struct iwp_part){.kind = IWP_PART_TEXT, .text = x->valuestring};
        return 0;
    }
    if (strcmp(t, "image_url") == 0) {
        x = field(v, "image_url");
        if (cJSON_IsObject(x)) x = field(x, "url");
        IWP_REQUIRE(cJSON_IsString(x), err, IWP_EINVAL,
                    "an image_url part needs 'image_url': {\"url\": …} or a string");
        return add_media(r, (cJSON *)(uintptr_t)x, def, IWP_PART_IMAGE, part, err);
    }
    if (strcmp(t, "video_url") == 0 || strcmp(t, "input_video") == 0) {
        const cJSON *in = field(v, t);
        x = cJSON_IsObject(in) ? field(in, "url") : in;
        if (!x) x = field(in, "data");
        IWP_REQUIRE(cJSON_IsString(x), err, IWP_EINVAL, "a %s part needs '%s': {\"url\": …}%s", t,
                    t, t[0] == 'i' ? " or {\"data\": …}" : " or a string");
        return add_media(r, (cJSON *)(uintptr_t)x, def, IWP_PART_VIDEO, part, err);
    }
    return iwp_err_set(err, IWP_EINVAL,
                       "content part of type '%.40s': known are text, image_url, video_url, "
                       "input_video",
                       t);
}

static int parse_message(struct iwp_request *r, const cJSON *v,
                         const struct iwp_request_defaults *def, struct iwp_message *m,
                         iwp_err *err) {
    IWP_REQUIRE(cJSON_IsObject(v), err, IWP_EINVAL, "a message must be an object");
    const cJSON *role = field(v, "role"), *content = field(v, "content");
    IWP_REQUIRE(cJSON_IsString(role), err, IWP_EINVAL, "a message needs a 'role'");
    static const char *const known[][2] = {{"system", "system"},
                                           {"developer", "system"},
                                           {"user", "user"},
                                           {"assistant", "assistant"}};
    m->role = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(role->valuestring, known[i][0]) == 0) m->role = known[i][1];
    IWP_REQUIRE(m->role, err, IWP_EINVAL, "role '%.40s': known are system, user, assistant",
                role->valuestring);
    struct iwp_part *part = r->part + r->n_part;
    m->part = part;
    m->n_part = 0;
    if (!content || cJSON_IsString(content)) {
        IWP_REQUIRE(content || strcmp(m->role, "assistant") == 0, err, IWP_EINVAL,
                    "a %s message needs 'content'", m->role);
        *part =
            (struct iwp_part){.kind = IWP_PART_TEXT, .text = content ? content->valuestring : ""};
        m->n_part = 1;
    } else {
        IWP_REQUIRE(cJSON_IsArray(content), err, IWP_EINVAL,
                    "'content' must be a string or an array of parts");
        const cJSON *x;
        cJSON_ArrayForEach(x, content) {
            int rc = parse_part(r, x, def, part + m->n_part, err);
            if (rc < 0) return iwp_err_prefix(err, rc, "part %d", m->n_part);
            m->n_part++;
        }
    }
    r->n_part += m->n_part;
    if (!r->said)
        for (int32_t i = 0; i < m->n_part; i++)
            if (part[i].text)
                r->text_hash = iwp_fnv64(r->text_hash, part[i].text, strlen(part[i].text) + 1);
    r->said = r->said || strcmp(m->role, "user") == 0;
    return 0;
}

static int parse_messages(struct iwp_request *r, const struct iwp_request_defaults *def,
                          iwp_err *err) {
    const cJSON *list = field(r->doc, "messages"), *v;
    IWP_REQUIRE(cJSON_IsArray(list), err, IWP_EINVAL, "'messages' must be an array");
    const int n = cJSON_GetArraySize(list);
    IWP_REQUIRE(n > 0 && n <= MAX_MESSAGE, err, IWP_EINVAL, "'messages' must hold 1 to %d messages",
                MAX_MESSAGE);
    int64_t n_part = 0;
    cJSON_ArrayForEach(v, list) {
        const cJSON *content = field(v, "content");
        n_part += cJSON_IsArray(content) ? cJSON_GetArraySize(content) : 1;
    }
    IWP_REQUIRE(n_part <= MAX_PART, err, IWP_EINVAL, "more than %d content parts", MAX_PART);
    r->message = calloc((size_t)n, sizeof *r->message);
    r->part = calloc((size_t)n_part + 1, sizeof *r->part);
    r->media = calloc(MAX_MEDIA, sizeof *r->media);
    IWP_REQUIRE(r->message && r->part && r->media, err, IWP_ENOMEM, "out of memory");
    r->media_hash = r->text_hash = IWP_FNV64_INIT;
    cJSON_ArrayForEach(v, list) {
        int rc = parse_message(r, v, def, r->message + r->n_message, err);
        if (rc < 0) return iwp_err_prefix(err, rc, "message %d", r->n_message);
        r->n_message++;
    }
    return 0;
}

/* ---- fields ------------------------------------------------------------------------------------- */

static int parse_sampling(struct iwp_request *r, const struct iwp_request_defaults *def,
                          iwp_err *err) {
    const cJSON *o = r->doc;
    r->sampler = def->sampler;
    IWP_TRY(get_real(o, "temperature", 0, 100, &r->sampler.temp, err));
    IWP_TRY(get_real(o, "top_p", 0, 1, &r->sampler.top_p, err));
    IWP_TRY(get_real(o, "min_p", 0, 1, &r->sampler.min_p, err));
    /* 0 and -1 both mean all, as other servers have it. */
    IWP_TRY(get_int(o, "top_k", -1, INT32_MAX, &r->sampler.top_k, err));
    if (r->sampler.top_k < 0) r->sampler.top_k = 0;
    const cJSON *seed = field(o, "seed");
    if (seed) {
        int64_t i;
        IWP_REQUIRE(iwp_json_get_int(seed, -((int64_t)1 << 53), (int64_t)1 << 53, &i), err,
                    IWP_EINVAL, "'seed' must be a whole number from -2^53 to 2^53");
        if (i >= 0) r->sampler.seed = (uint32_t)((uint64_t)i ^ (uint64_t)i >> 32);
    }
    r->n_predict = def->n_predict;
    int rc = get_int(o, "max_completion_tokens", -1, INT32_MAX, &r->n_predict, err);
    IWP_TRY(rc);
    if (rc == 0) IWP_TRY(get_int(o, "max_tokens", -1, INT32_MAX, &r->n_predict, err));
    IWP_TRY(get_bool(o, "ignore_eos", &r->ignore_eos, err));
    int32_t n = 1;
    IWP_TRY(get_int(o, "n", INT32_MIN, INT32_MAX, &n, err));
    IWP_REQUIRE(n == 1, err, IWP_EINVAL, "'n' must be 1: one answer for each request");
    return 0;
}

static int parse_stop(struct iwp_request *r, iwp_err *err) {
    r->stop = calloc(MAX_STOP + 1, sizeof *r->stop);
    IWP_REQUIRE(r->stop, err, IWP_ENOMEM, "out of memory");
    const cJSON *v = field(r->doc, "stop"), *x;
    if (!v) return 0;
    IWP_REQUIRE(cJSON_IsString(v) || cJSON_IsArray(v), err, IWP_EINVAL,
                "'stop' must be a string or an array of strings");
    int n = 0;
    for (x = cJSON_IsArray(v) ? v->child : v; x; x = cJSON_IsArray(v) ? x->next : NULL) {
        IWP_REQUIRE(cJSON_IsString(x), err, IWP_EINVAL, "'stop' must hold strings");
        IWP_REQUIRE(n < MAX_STOP && strlen(x->valuestring) <= MAX_STOP_BYTES, err, IWP_EINVAL,
                    "'stop' holds at most %d texts of at most %d bytes", MAX_STOP, MAX_STOP_BYTES);
        if (x->valuestring[0]) r->stop[n++] = x->valuestring;
    }
    return 0;
}

/* Sizes in pixels as Hugging Face's Qwen2.5-VL processor takes them: 28 x 28 of them make a token. */
static int parse_pixels(struct iwp_request *r, iwp_err *err) {
    const cJSON *o = field(r->doc, "mm_processor_kwargs");
    if (!cJSON_IsObject(o)) return 0;
    double lo = 0, hi = 0;
    IWP_TRY(get_real(o, "min_pixels", 1, 1e9, &lo, err));
    IWP_TRY(get_real(o, "max_pixels", 784, 1e9, &hi, err));
    IWP_REQUIRE(hi == 0 || lo <= hi, err, IWP_EINVAL, "'min_pixels' is above 'max_pixels'");
    r->min_tokens = (int32_t)ceil(lo / 784);
    r->max_tokens = (int32_t)floor(hi / 784);
    return 0;
}

/* How many frames of a video, as vLLM's and lmms-eval's clients say it. */
static int parse_frames(struct iwp_request *r, iwp_err *err) {
    const cJSON *o = field(r->doc, "media_io_kwargs"), *v = field(o, "video");
    if (!cJSON_IsObject(v)) return 0;
    int32_t n = 0;
    IWP_TRY(get_int(v, "num_frames", -1, 4096, &n, err)); /* -1: no opinion */
    IWP_TRY(get_real(v, "fps", 0, 1000, &r->fps, err));
    if (n > 0) r->frames = n;
    if (r->fps > 0 && r->fps < 0.001) r->fps = 0.001;
    return 0;
}

static int parse_format(const struct iwp_request *r, iwp_err *err) {
    const cJSON *o = field(r->doc, "response_format");
    if (!o) return 0;
    const cJSON *type = cJSON_IsObject(o) ? field(o, "type") : o;
    IWP_REQUIRE(cJSON_IsString(type) && strcmp(type->valuestring, "text") == 0, err, IWP_EINVAL,
                "'response_format' can only be text");
    return 0;
}

static int parse_body(struct iwp_request *r, const char *body, size_t n, iwp_err *err) {
    memset(r, 0, sizeof *r);
    r->top_logprobs = -1;
    IWP_REQUIRE(n > 0, err, IWP_EINVAL, "the body is empty; a JSON object is expected");
    int rc = iwp_json_parse(body, n, (struct iwp_json_limits){0}, &r->doc, err);
    if (rc < 0) return iwp_err_prefix(err, rc, "the body");
    IWP_REQUIRE(cJSON_IsObject(r->doc), err, IWP_EINVAL, "the body must be a JSON object");
    return 0;
}

static int parse_fields(struct iwp_request *r, const struct iwp_request_defaults *def,
                        iwp_err *err) {
    const cJSON *model = field(r->doc, "model"), *so = field(r->doc, "stream_options");
    IWP_REQUIRE(!model || cJSON_IsString(model), err, IWP_EINVAL, "'model' must be a string");
    r->model = model ? model->valuestring : NULL;
    IWP_TRY(get_bool(r->doc, "stream", &r->stream, err));
    if (cJSON_IsObject(so)) IWP_TRY(get_bool(so, "include_usage", &r->include_usage, err));
    IWP_TRY(parse_sampling(r, def, err));
    IWP_TRY(parse_stop(r, err));
    IWP_TRY(parse_format(r, err));
    IWP_TRY(parse_pixels(r, err));
    IWP_TRY(parse_frames(r, err));
    return iwp_request_parse_prune(&r->prune, field(r->doc, "prune"), def, err);
}

int iwp_request_parse(struct iwp_request *r, const char *body, size_t n,
                      const struct iwp_request_defaults *def, iwp_err *err) {
    IWP_TRY(parse_body(r, body, n, err));
    IWP_TRY(parse_fields(r, def, err));
    bool logprobs = false;
    IWP_TRY(get_bool(r->doc, "logprobs", &logprobs, err));
    if (logprobs) r->top_logprobs = 0;
    if (logprobs) IWP_TRY(get_int(r->doc, "top_logprobs", 0, 20, &r->top_logprobs, err));
    return parse_messages(r, def, err); /* last: pictures are the work */
}

int iwp_request_parse_completion(struct iwp_request *r, const char *body, size_t n,
                                 const struct iwp_request_defaults *def, iwp_err *err) {
    IWP_TRY(parse_body(r, body, n, err));
    IWP_TRY(parse_fields(r, def, err));
    const cJSON *p = field(r->doc, "prompt");
    if (cJSON_IsArray(p) && cJSON_GetArraySize(p) == 1) p = p->child;
    IWP_REQUIRE(cJSON_IsString(p) && p->valuestring[0], err, IWP_EINVAL,
                "'prompt' must be a string that is not empty");
    IWP_REQUIRE(!field(r->doc, "logprobs"), err, IWP_EINVAL,
                "'logprobs' are only told by /v1/chat/completions");
    r->raw = p->valuestring;
    r->media_hash = r->text_hash = IWP_FNV64_INIT;
    return 0;
}

int iwp_request_parse_template(struct iwp_request *r, const char *body, size_t n,
                               const struct iwp_request_defaults *def, iwp_err *err) {
    IWP_TRY(parse_body(r, body, n, err));
    return parse_messages(r, def, err);
}
