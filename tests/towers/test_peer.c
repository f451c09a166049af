/* The shipped model's tower against llama.cpp's: the same picture through llama-mtmd-cli and through ours.
 * Runs with IWP_TEST_REAL=1 where the shipped model is in the cache and llama.cpp's programs are built;
 * else it says why not and checks nothing but that. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "model/prompter.h"
#include "test.h"

static char model[600], mmproj[600], picture[600], program[600];

static int there(const char *path) {
    struct stat st;
    if (stat(path, &st) == 0) return 1;
    fprintf(stderr, "skipped: no %s\n", path);
    return 0;
}

TEST(rows) {
    iwp_err err = {0};
    struct iwp_gguf *g = NULL, *v = NULL;
    struct iwp_backend *b = NULL;
    iwp_prompter *m = NULL;
    struct iwp_backend_params bp = {.n_thread = 2};
    int rc = iwp_backend_new(&b, &bp, &err);
    if (rc >= 0) rc = iwp_gguf_open(&g, model, &err);
    if (rc >= 0) rc = iwp_gguf_open(&v, mmproj, &err);
    struct iwp_prompter_params pp = {.backend = b, .model = g, .mmproj = v};
    if (rc >= 0) rc = iwp_prompter_new(&m, &pp, &err);
    CHECK_MSG(rc >= 0, "%s", err.msg);
    struct iwp_part part[2] = {{.kind = IWP_PART_IMAGE, .file = picture},
                               {.kind = IWP_PART_TEXT, .text = "Describe the image."}};
    struct iwp_message msg = {"user", part, 2};
    struct iwp_prompt_request r = {.message = &msg, .n_message = 1};
    struct iwp_prompt p = {0};
    if (rc >= 0) rc = iwp_prompt_build(m, &r, &p, &err);
    CHECK_MSG(rc >= 0, "%s", err.msg);

    char dump[] = "/tmp/iwp-peer-XXXXXX", line[3000];
    int fd = mkstemp(dump);
    CHECK(fd >= 0);
    close(fd);
    snprintf(
        line, sizeof line,
        "MTMD_DEBUG_EMBEDDINGS=%s '%s' -m '%s' --mmproj '%s' --image '%s' -p x -n 1 --temp 0 -t 2 "
        ">/dev/null 2>&1",
        dump, program, model, mmproj, picture);
    CHECK_INT(system(line), 0);
    uint8_t *data;
    size_t n;
    if (rc >= 0 && iwp_file_read(dump, 1 << 28, &data, &n, &err) >= 0) {
        int32_t head[2];
        CHECK(n >= sizeof head);
        memcpy(head, data, sizeof head);
        CHECK_INT(head[0], p.n_visual);
        CHECK_INT(head[1], p.d_model);
        CHECK_INT(n, sizeof head + (size_t)p.n_visual * (size_t)p.d_model * 4);
        if (n == sizeof head + (size_t)p.n_visual * (size_t)p.d_model * 4) {
            const float *want = (const float *)(data + sizeof head);
            double d2 = 0, w2 = 0;
            for (int32_t i = 0; i < p.n_visual * p.d_model; i++) {
                d2 += pow((double)want[i] - (double)p.visual[i], 2);
                w2 += pow((double)want[i], 2);
            }
            /* theirs rounds pixels, activations and GELUs to f16 */
            CHECK_MSG(sqrt(d2 / w2) < 1e-2, "relative difference %g", sqrt(d2 / w2));
            fprintf(stderr, "rows of the shipped tower: relative difference %.2e\n", sqrt(d2 / w2));
        }
        free(data);
    }
    unlink(dump);
    iwp_prompt_free(&p);
    iwp_prompter_free(m);
    iwp_gguf_free(g);
    iwp_gguf_free(v);
    iwp_backend_free(b);
}

int main(void) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char dir[500];
    if (cache)
        snprintf(dir, sizeof dir, "%s/iwp/models", cache);
    else
        snprintf(dir, sizeof dir, "%s/.cache/iwp/models", home ? home : "");
    snprintf(model, sizeof model, "%s/iwp-photo.gguf", dir);
    snprintf(mmproj, sizeof mmproj, "%s/iwp-photo-mmproj.gguf", dir);
    snprintf(picture, sizeof picture, "%s/chelsea.png", dir);
    snprintf(program, sizeof program, "%s/bin/llama-mtmd-cli", IWP_LLAMA_BUILD);
    if (!getenv("IWP_TEST_REAL"))
        fprintf(stderr, "skipped: IWP_TEST_REAL is not set\n");
    else if (there(model) && there(mmproj) && there(picture) && there(program))
        test_rows();
    test_checked++;
    return test_done();
}
