/* Prompts of the golden checkpoints against what the library computed: ids, codes, positions, pixels,
 * tower, projector and packing, for every case; the same prompts from messages through the template. */
#include "golden.h"

static int check_ids(const iwp_st *st, const char *name, const struct iwp_prompt *p) {
    const struct iwp_st_tensor *t = iwp_st_find(st, name);
    iwp_err err;
    if (!t || t->n != p->n) return 0;
    int64_t *v = malloc((size_t)t->n * sizeof *v);
    int ok = iwp_st_read_i64(t, 0, t->n, v, &err) >= 0;
    for (int32_t i = 0; i < p->n && ok; i++) ok = v[i] == p->id[i];
    free(v);
    return ok;
}

static int check_positions(const iwp_st *st, const struct iwp_prompt *p) {
    const struct iwp_st_tensor *t = iwp_st_find(st, "position_ids");
    iwp_err err;
    const int64_t n = (int64_t)p->n_pos * p->n;
    if (!t || t->n != n) return 0;
    int64_t *v = malloc((size_t)n * sizeof *v);
    int ok = iwp_st_read_i64(t, 0, n, v, &err) >= 0 && memcmp(v, p->pos, (size_t)n * 8) == 0;
    free(v);
    return ok;
}

/* visual_mask and user_mask. */
static void check_codes(const iwp_st *st, const struct iwp_prompt *p, const char *what,
                        int exact_user) {
    const struct iwp_st_tensor *a = iwp_st_find(st, "visual_mask"),
                               *b = iwp_st_find(st, "user_mask");
    iwp_err err;
    CHECK(a && b && a->n == p->n && b->n == p->n);
    if (!a || !b || a->n != p->n || b->n != p->n) return;
    int64_t *v = malloc((size_t)p->n * sizeof *v), *u = malloc((size_t)p->n * sizeof *u);
    CHECK(iwp_st_read_i64(a, 0, p->n, v, &err) >= 0 && iwp_st_read_i64(b, 0, p->n, u, &err) >= 0);
    int visual = 0, user = 0;
    for (int32_t i = 0; i < p->n; i++) {
        visual += (p->code[i] == 1 || p->code[i] == 2) != (v[i] != 0);
        user += (p->code[i] == 3) != (u[i] != 0);
    }
    CHECK_MSG(visual == 0, "%s: %d visual tokens differ", what, visual);
    CHECK_MSG(user == 0 || (!exact_user && user == 1), "%s: %d of the user's tokens differ", what,
              user);
    free(v);
    free(u);
}

/* All items of a prompt in one array, as the library batches them. */
static float *gather(const struct iwp_prompt *p, int vision, int64_t *n) {
    *n = 0;
    for (int32_t i = 0; i < p->n_image; i++)
        *n += vision ? (int64_t)p->image[i].n_vision * p->image[i].d_vision
                     : (int64_t)p->image[i].plan.n_pixel;
    float *a = malloc((size_t)(*n ? *n : 1) * sizeof *a), *at = a;
    for (int32_t i = 0; i < p->n_image; i++) {
        const struct iwp_prompt_image *im = &p->image[i];
        size_t k = vision ? (size_t)im->n_vision * (size_t)im->d_vision : im->plan.n_pixel;
        const float *from = vision ? im->vision_features : im->pixel_values;
        CHECK(from != NULL);
        if (from) memcpy(at, from, k * sizeof *at);
        at += k;
    }
    return a;
}

static void check_case(struct golden *G, const char *model, const char *name) {
    char path[900], dir[800], files[8][900];
    iwp_err err = {0};
    struct iwp_part part[8];
    int n_part = 0;
    snprintf(dir, sizeof dir, "%s/vectors/%s", G->root, model);
    snprintf(path, sizeof path, "%s/%s.json", dir, name);
    cJSON *j = golden_json(path);
    snprintf(path, sizeof path, "%s/%s.safetensors", dir, name);
    iwp_st *st = NULL;
    CHECK_MSG(iwp_st_open(&st, path, &err) >= 0, "%s", err.msg);
    if (!j || !st) return;
    const cJSON *im;
    cJSON_ArrayForEach(im, cJSON_GetObjectItem(j, "images")) {
        snprintf(files[n_part], sizeof files[0], "%s/images/%s", dir, im->valuestring);
        part[n_part] = (struct iwp_part){.kind = IWP_PART_IMAGE, .file = files[n_part]};
        n_part++;
    }
    const cJSON *video = cJSON_GetObjectItem(j, "video"), *fps = cJSON_GetObjectItem(j, "fps");
    if (cJSON_IsString(video)) {
        snprintf(files[n_part], sizeof files[0], "%s/images/%s", dir, video->valuestring);
        part[n_part] = (struct iwp_part){.kind = IWP_PART_VIDEO, .file = files[n_part]};
        n_part++;
    }
    struct iwp_prompt_request r = {.raw = cJSON_GetObjectItem(j, "prompt")->valuestring,
                                   .media = part,
                                   .n_media = n_part,
                                   .dump = true,
                                   .fps = cJSON_IsNumber(fps) ? fps->valuedouble : 0};
    struct iwp_prompt p;
    char what[128];
    snprintf(what, sizeof what, "%s/%s", model, name);
    int rc = iwp_prompt_build(G->prompter, &r, &p, &err);
    CHECK_MSG(rc >= 0, "%s: %s", what, err.msg);
    if (rc >= 0) {
        CHECK_MSG(check_ids(st, "input_ids", &p), "%s: ids, %d tokens", what, p.n);
        CHECK_MSG(check_positions(st, &p), "%s: positions", what);
        CHECK_INT(p.next_pos, cJSON_GetObjectItem(j, "next_position")->valueint);
        CHECK_INT(p.n_visual, cJSON_GetObjectItem(j, "visual_tokens")->valueint);
        check_codes(st, &p, what, 0);
        if (n_part) {
            int64_t n;
            float *a = gather(&p, 0, &n);
            const char *pixels = cJSON_IsString(video) ? "pixel_values_videos" : "pixel_values";
            if (iwp_st_find(st, pixels)) {
                double d = golden_diff(st, pixels, a, n);
                CHECK_MSG(d <= 1e-6, "%s: pixels differ by %g", what, d);
            }
            free(a);
            a = gather(&p, 1, &n);
            if (iwp_st_find(st, "vision_out")) {
                double d = golden_diff(st, "vision_out", a, n);
                CHECK_MSG(d <= 1e-4, "%s: tower differs by %g", what, d);
                fprintf(stderr, "%s: tower %.1e", what, d);
            }
            free(a);
            double d =
                golden_diff(st, "visual_features", p.visual, (int64_t)p.n_visual * p.d_model);
            CHECK_MSG(d <= 1e-4, "%s: visual rows differ by %g", what, d);
            fprintf(stderr, "  rows %.1e\n", d);
        }
    }
    iwp_prompt_free(&p);

    /* The same from messages. */
    struct iwp_message msg[8];
    struct iwp_part mp[8][8];
    int n_msg = 0, media = 0;
    const cJSON *m, *c;
    cJSON_ArrayForEach(m, cJSON_GetObjectItem(j, "messages")) {
        int k = 0;
        cJSON_ArrayForEach(c, cJSON_GetObjectItem(m, "content")) {
            const char *type = cJSON_GetObjectItem(c, "type")->valuestring;
            if (strcmp(type, "text") == 0)
                mp[n_msg][k++] = (struct iwp_part){
                    .kind = IWP_PART_TEXT, .text = cJSON_GetObjectItem(c, "text")->valuestring};
            else
                mp[n_msg][k++] = part[media++];
        }
        msg[n_msg] =
            (struct iwp_message){cJSON_GetObjectItem(m, "role")->valuestring, mp[n_msg], k};
        n_msg++;
    }
    r.raw = NULL;
    r.dump = false;
    r.message = msg;
    r.n_message = n_msg;
    rc = iwp_prompt_build(G->prompter, &r, &p, &err);
    CHECK_MSG(rc >= 0, "%s: %s", what, err.msg);
    if (rc >= 0) {
        CHECK_MSG(check_ids(st, "input_ids", &p), "%s: ids from messages, %d tokens", what, p.n);
        CHECK_MSG(check_positions(st, &p), "%s: positions from messages", what);
        check_codes(st, &p, what, 1);
    }
    iwp_prompt_free(&p);
    iwp_st_close(st);
    cJSON_Delete(j);
}

static void check_model(const char *model) {
    struct golden G;
    char path[900];
    if (golden_open(&G, model, NULL)) {
        snprintf(path, sizeof path, "%s/vectors/%s/index.json", G.root, model);
        cJSON *j = golden_json(path);
        const cJSON *c;
        cJSON_ArrayForEach(c, cJSON_GetObjectItem(j, "cases"))
            check_case(&G, model, cJSON_GetObjectItem(c, "name")->valuestring);
        cJSON_Delete(j);
    }
    golden_close(&G);
}

int main(void) {
    check_model("llava-ov");
    check_model("qwen2.5-vl");
    return test_done();
}
