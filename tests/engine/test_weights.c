/* Weights: repacked layouts compute what plain memory does, shapes are refused by name, files that end
 * early are refused, custom ops stay on the CPU. */
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"

enum { COLS = 256, ROWS = 64, BATCH = 9 };

static char path[64];

static void write_file(void) {
    snprintf(path, sizeof path, "/tmp/iwp-test-weights-%ld.gguf", (long)getpid());
    static float w[ROWS * COLS];
    uint64_t s = 11;
    for (int i = 0; i < ROWS * COLS; i++) w[i] = test_normal(&s) * 0.1f;
    static const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0,
                                           GGML_TYPE_Q4_0};
    struct iwp_gguf_writer *g;
    iwp_err err;
    CHECK_INT(iwp_gguf_writer_new(&g, &err), 0);
    iwp_gguf_add_str(g, "general.architecture", "test");
    const int64_t ne[2] = {COLS, ROWS};
    for (int i = 0; i < 4; i++)
        iwp_gguf_add_tensor(g, ggml_type_name(types[i]), (uint32_t)types[i], 2, ne);
    CHECK_INT(iwp_gguf_writer_begin(g, path, &err), 0);
    for (int i = 0; i < 4; i++) {
        size_t n = ggml_row_size(types[i], COLS) * ROWS;
        void *q = malloc(n);
        ggml_quantize_chunk(types[i], w, q, 0, ROWS, COLS, NULL);
        if (types[i] == GGML_TYPE_F32) memcpy(q, w, n);
        CHECK_INT(iwp_gguf_writer_data(g, q, n, &err), 0);
        free(q);
    }
    CHECK_INT(iwp_gguf_writer_finish(g, &err), 0);
    CHECK_INT(iwp_gguf_writer_commit(g, &err), 0);
    iwp_gguf_writer_free(g);
}

static void product(struct iwp_backend *b, const char *name, int use, float *y) {
    iwp_err err = {0};
    struct iwp_gguf *g;
    struct iwp_weights *w;
    struct iwp_sched *s;
    struct ggml_tensor *t;
    const int64_t ne[2] = {COLS, ROWS};
    CHECK_MSG(iwp_gguf_open(&g, path, &err) == 0, "%s", err.msg);
    CHECK_INT(iwp_weights_new(&w, b, g, &err), 0);
    CHECK_MSG(iwp_weights_get(w, name, 2, ne, use, iwp_backend_cpu(b), &t, &err) == 0, "%s",
              err.msg);
    CHECK_MSG(iwp_weights_load(w, "load", &err) == 0, "%s", err.msg);
    CHECK(iwp_weights_bytes(w) > 0);
    iwp_gguf_free(g);
    CHECK_INT(iwp_sched_new(&s, b, 16, &err), 0);
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    CHECK_INT(iwp_sched_begin(s, &ctx, &graph, &err), 0);
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, COLS, BATCH);
    ggml_set_input(x);
    struct ggml_tensor *z = ggml_mul_mat(ctx, t, x);
    ggml_set_output(z);
    ggml_build_forward_expand(graph, z);
    CHECK_INT(iwp_sched_alloc(s, &err), 0);
    float in[COLS * BATCH];
    uint64_t seed = 5;
    for (int i = 0; i < COLS * BATCH; i++) in[i] = test_normal(&seed);
    ggml_backend_tensor_set(x, in, 0, sizeof in);
    CHECK_INT(iwp_sched_compute(s, &err), 0);
    ggml_backend_tensor_get(z, y, 0, sizeof(float) * ROWS * BATCH);
    iwp_sched_free(s);
    iwp_weights_free(w);
}

/* The gcc-built AMX path of ggml is known to go wrong: whatever layout is chosen must agree. */
TEST(layouts) {
    static const char *const names[] = {"f32", "f16", "q8_0", "q4_0"};
    struct iwp_backend *b;
    iwp_err err = {0};
    CHECK_INT(iwp_backend_new(&b, &(struct iwp_backend_params){.n_thread = 2}, &err), 0);
    for (int i = 0; i < 4; i++) {
        float plain[ROWS * BATCH], fast[ROWS * BATCH];
        product(b, names[i], IWP_WEIGHT_PLAIN, plain);
        product(b, names[i], IWP_WEIGHT_MATMUL, fast);
        double bound = i < 2 ? 2e-3 : 0.06; /* activations are rounded to 8 bits for q types */
        for (int k = 0; k < ROWS * BATCH; k++) CHECK_NEAR(fast[k], plain[k], bound);
        float exact[ROWS * BATCH];
        product(b, names[i], IWP_WEIGHT_PLAIN | IWP_WEIGHT_F32, exact);
        for (int k = 0; k < ROWS * BATCH; k++) CHECK_NEAR(plain[k], exact[k], bound);
    }
    iwp_backend_free(b);
}

TEST(refused) {
    struct iwp_backend *b;
    struct iwp_gguf *g;
    struct iwp_weights *w;
    struct ggml_tensor *t;
    iwp_err err = {0};
    CHECK_INT(iwp_backend_new(&b, &(struct iwp_backend_params){.n_thread = 1}, &err), 0);
    CHECK_INT(iwp_gguf_open(&g, path, &err), 0);
    CHECK_INT(iwp_weights_new(&w, b, g, &err), 0);
    const int64_t wrong[2] = {COLS, ROWS + 1}, any[2] = {-1, -1};
    CHECK(iwp_weights_get(w, "f32", 2, wrong, 0, 0, &t, &err) < 0);
    CHECK_MSG(strstr(err.msg, "f32") != NULL, "%s", err.msg);
    CHECK(iwp_weights_get(w, "absent", 2, any, 0, 0, &t, &err) < 0);
    CHECK_MSG(strstr(err.msg, "absent") != NULL, "%s", err.msg);
    CHECK_INT(iwp_weights_get(w, "absent", 2, any, IWP_WEIGHT_OPTIONAL, 0, &t, &err), 0);
    CHECK(t == NULL);
    /* The file shrinks between opening and loading. */
    CHECK_INT(iwp_weights_get(w, "q4_0", 2, any, 0, 0, &t, &err), 0);
    const struct iwp_gguf_tensor *src = iwp_gguf_find_tensor(g, "q4_0");
    CHECK_INT(truncate(path, (off_t)(src->offset + src->size / 2)), 0);
    CHECK(iwp_weights_load(w, "load", &err) == IWP_EIO);
    CHECK_MSG(strstr(err.msg, "ends before") != NULL, "%s", err.msg);
    iwp_weights_free(w);
    iwp_gguf_free(g);
    iwp_backend_free(b);
}

TEST(rpc_not_there) {
    struct iwp_backend *b;
    iwp_err err = {0};
    CHECK(iwp_backend_new(&b, &(struct iwp_backend_params){.rpc = "127.0.0.1:1"}, &err) == IWP_EIO);
    CHECK_MSG(strstr(err.msg, "127.0.0.1:1") != NULL, "%s", err.msg);
    CHECK(iwp_backend_new(&b, &(struct iwp_backend_params){.rpc = "nonsense"}, &err) == IWP_EINVAL);
    CHECK(b == NULL);
}

/* -ngl counts from the end; the output layer is one of them. */
TEST(layer_devices) {
    struct iwp_backend b = {.n_device = 3, .n_gpu = 4};
    CHECK_INT(iwp_backend_layer_device(&b, 0, 8), 2);
    CHECK_INT(iwp_backend_layer_device(&b, 4, 8), 2);
    CHECK_INT(iwp_backend_layer_device(&b, 5, 8), 0);
    CHECK_INT(iwp_backend_layer_device(&b, 7, 8), 1);
    CHECK_INT(iwp_backend_layer_device(&b, 8, 8), 1);
    b.n_gpu = 1 << 20;
    CHECK_INT(iwp_backend_layer_device(&b, 0, 8), 0);
    b.n_gpu = 0;
    CHECK_INT(iwp_backend_layer_device(&b, 8, 8), 2);
}

int main(void) {
    write_file();
    test_layouts();
    test_refused();
    test_rpc_not_there();
    test_layer_devices();
    unlink(path);
    return test_done();
}
