/* Packed towers against ggml's products on the same numbers in an f32 file: features, queries, keys and rows within 1 %
 * relative L2 of f32 arithmetic (factors are rounded on the way, see kern/gemm.h), the same bits for any number of
 * threads, and f32 files left to ggml.
 *
 * `test_towers_packed FILE.gguf F32.gguf FINER WIDTH HEIGHT [PICTURE]` prints the differences for another
 * mmproj file; FINER: 1 when it holds f16 numbers of more than 8 bits. */
#include "golden.h"

#include "base/err.h"
#include "kern/gemm.h"
#include "media/decode.h"
#include "media/resize.h"
#include "model/tower.h"

struct run {
    struct iwp_backend *b;
    struct iwp_tower *t;
    struct iwp_tower_out out;
};

/* Noise, or a picture from a file. */
static const char *picture;

static int noise(struct iwp_image *im, int32_t w, int32_t h, iwp_err *err) {
    static const uint8_t grey[3] = {128, 128, 128};
    uint64_t s = 12345;
    if (picture) {
        uint8_t *bytes;
        size_t n;
        struct iwp_image whole;
        IWP_TRY(iwp_file_read(picture, 64 << 20, &bytes, &n, err));
        int rc = iwp_image_decode(bytes, n, NULL, &whole, err);
        free(bytes);
        IWP_TRY(rc);
        rc = iwp_image_resize(&whole, w, h, IWP_FILTER_BICUBIC, im, err);
        iwp_image_free(&whole);
        return rc;
    }
    IWP_TRY(iwp_image_new(im, w, h, grey, err));
    for (size_t i = 0; i < (size_t)w * (size_t)h * 3; i++)
        im->rgb[i] = (uint8_t)(test_rand(&s) >> 56);
    return 0;
}

static int encode(struct run *r, const char *path, int32_t threads, bool plain, int32_t w,
                  int32_t h) {
    const struct iwp_backend_params bp = {.n_thread = threads, .plain_weights = plain};
    const struct iwp_tower_want want = {.vision = true, .features = true, .qk = true, .block = -1};
    struct iwp_gguf *g = NULL;
    struct iwp_image im = {0};
    struct iwp_pre_plan plan;
    float *pixels = NULL;
    iwp_err err = {0};
    *r = (struct run){0};
    int rc = iwp_backend_new(&r->b, &bp, &err);
    if (rc >= 0) rc = iwp_gguf_open(&g, path, &err);
    if (rc >= 0) rc = iwp_tower_new(&r->t, r->b, g, &err);
    if (rc >= 0) rc = noise(&im, w, h, &err);
    const struct iwp_pre_params *pre = r->t ? &iwp_tower_info(r->t)->pre : NULL;
    if (rc >= 0) rc = iwp_pre_plan_make(pre, w, h, 1, IWP_PRE_SINGLE, &plan, &err);
    if (rc >= 0) rc = (pixels = malloc(plan.n_pixel * sizeof *pixels)) ? 0 : IWP_ENOMEM;
    if (rc >= 0) rc = iwp_pre_pixels(pre, &plan, &im, pixels, &err);
    if (rc >= 0) rc = iwp_tower_encode(r->t, &plan, pixels, &want, &r->out, &err);
    CHECK_MSG(rc >= 0, "%s: %s", path, err.msg);
    iwp_image_free(&im);
    iwp_gguf_free(g);
    free(pixels);
    return rc;
}

static void done(struct run *r) {
    iwp_tower_out_free(&r->out);
    iwp_tower_free(r->t);
    iwp_backend_free(r->b);
}

static double relative(const float *a, const float *b, size_t n) {
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        e += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(e / (s > 0 ? s : 1));
}

/* finer: the file holds f16 numbers of more than 8 bits. */
static void compare(const char *path, const char *f32, bool finer, int32_t w, int32_t h) {
    struct run exact, packed, single;
    if (encode(&exact, f32, 2, false, w, h) < 0 || encode(&packed, path, 2, false, w, h) < 0 ||
        encode(&single, path, 1, false, w, h) < 0)
        return;
    const struct iwp_tower_info *i = iwp_tower_info(packed.t);
    const size_t row = (size_t)packed.out.n_row * (size_t)i->d_model,
                 wide = (size_t)packed.out.n_row * (size_t)(i->merge * i->d_vision);
    const struct {
        const char *name;
        const float *a, *b, *c;
        size_t n;
    } part[] = {{"features", packed.out.feature, exact.out.feature, single.out.feature, wide},
                {"queries", packed.out.q, exact.out.q, single.out.q, wide},
                {"keys", packed.out.k, exact.out.k, single.out.k, wide},
                {"rows", packed.out.row, exact.out.row, single.out.row, row}};
    for (size_t k = 0; k < sizeof part / sizeof *part; k++) {
        const double e = relative(part[k].a, part[k].b, part[k].n);
        CHECK_MSG(e < 0.01, "%s, %s: relative L2 %g", path, part[k].name, e);
        CHECK_MSG(memcmp(part[k].a, part[k].c, part[k].n * sizeof(float)) == 0,
                  "%s, %s: one thread and two differ", path, part[k].name);
        fprintf(stderr, "%s%s %s: %s %.2e\n", i->kernel, i->split ? " split" : "", i->projector,
                part[k].name, e);
    }
    CHECK_STR(iwp_tower_info(exact.t)->kernel, "ggml");
    const struct iwp_gemm *best = iwp_gemm_get();
    CHECK_STR(i->kernel, best ? best->name : "ggml");
    CHECK_INT(i->split, best && !best->fine && finer);
    done(&exact);
    done(&packed);
    done(&single);
}

static void convert(const char *from, const char *to, const char *type) {
    const struct iwp_convert_params cp = {.in = from, .out = to, .type = type, .n_thread = 1};
    struct iwp_convert_report rep;
    iwp_err err = {0};
    CHECK_MSG(iwp_convert(&cp, &rep, &err) >= 0, "%s", err.msg);
}

static void check_model(const char *name) {
    struct golden G;
    char half[64], f32[64];
    if (golden_open(&G, name, NULL)) {
        struct run r;
        if (encode(&r, G.mmproj, 1, false, 90, 60) >= 0)
            CHECK_STR(iwp_tower_info(r.t)->kernel, "ggml"); /* f32: exact */
        done(&r);
        snprintf(half, sizeof half, "/tmp/iwp-packed-%d.gguf", (int)getpid());
        snprintf(f32, sizeof f32, "/tmp/iwp-packed-%d-f32.gguf", (int)getpid());
        for (int finer = 0; finer < 2; finer++) {
            convert(G.mmproj, half, finer ? "f16" : "bf16");
            convert(half, f32, "f32");
            compare(half, f32, finer, 60, 90);
            compare(half, f32, finer, 331, 190);
            unlink(half);
            unlink(f32);
        }
    }
    golden_close(&G);
}

int main(int argc, char **argv) {
    if (argc >= 6) {
        if (argc > 6) picture = argv[6];
        compare(argv[1], argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
        return test_done();
    }
    check_model("llava-ov");
    check_model("qwen2.5-vl");
    return test_done();
}
