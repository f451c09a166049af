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
    struct ggml_tensor *twin = NULL; /* as an embedding that is the head, too */
    if (use & IWP_WEIGHT_MATMUL)
        CHECK_INT(iwp_weights_get(w, name, 2, ne, IWP_WEIGHT_ROWS, iwp_backend_cpu(b), &twin, &err),
                  0);
    CHECK_MSG(iwp_weights_load(w, "load", &err) == 0, "%s", err.msg);
    CHECK(iwp_weights_bytes(w) > 0);
    const size_t n = twin ? ggml_nbytes(twin) : 0;
    void *bytes = malloc(n + 1);
    if (twin) CHECK_INT(iwp_weights_read(g, iwp_gguf_find_tensor(g, name), bytes, n, &err), 0);
    iwp_gguf_free(g);
    for (int r = 0; twin && r < ROWS; r++) {
        float row[COLS], want[COLS];
        CHECK_INT(iwp_weights_row(w, twin, r, row, &err), 0);
        const uint8_t *from = (const uint8_t *)bytes + (size_t)r * twin->nb[1];
        if (twin->type == GGML_TYPE_F32)
            memcpy(want, from, sizeof want);
        else
            ggml_get_type_traits(twin->type)->to_float(from, want, COLS);
        CHECK(memcmp(row, want, sizeof row) == 0);
    }
    free(bytes);
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
    CHECK_INT(iwp_backend_new(&b, &(struct iwp_backend_params){.n_thread = 2, .rows_in_file = true},
                              &err),
              0);
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

/* One tensor of the file, declared. */
struct declared {
    struct iwp_backend *b;
    struct iwp_gguf *g;
    struct iwp_weights *w;
    struct ggml_tensor *t;
};

static struct declared declare(const char *name, int use, bool rows_in_file) {
    const struct iwp_backend_params p = {.n_thread = 2, .rows_in_file = rows_in_file};
    const int64_t any[2] = {-1, -1};
    struct declared d = {0};
    iwp_err err = {0};
    CHECK_INT(iwp_backend_new(&d.b, &p, &err), 0);
    CHECK_MSG(iwp_gguf_open(&d.g, path, &err) == 0, "%s", err.msg);
    CHECK_INT(iwp_weights_new(&d.w, d.b, d.g, &err), 0);
    CHECK_MSG(iwp_weights_get(d.w, name, 2, any, use, 0, &d.t, &err) == 0, "%s", err.msg);
    return d;
}

/* The reader is needed no longer. */
static void load(struct declared *d) {
    iwp_err err = {0};
    CHECK_MSG(iwp_weights_load(d->w, "load", &err) == 0, "%s", err.msg);
    iwp_gguf_free(d->g);
    d->g = NULL;
}

static void undeclare(struct declared *d) {
    iwp_weights_free(d->w);
    iwp_gguf_free(d->g);
    iwp_backend_free(d->b);
}

/* Once loaded, rows are there whatever becomes of the file. */
TEST(file_gone) {
    iwp_err err = {0};
    float before[COLS], after[COLS];
    struct declared d = declare("q4_0", IWP_WEIGHT_ROWS, false);
    load(&d);
    CHECK_INT(iwp_weights_row(d.w, d.t, ROWS - 1, before, &err), 0);
    CHECK_INT(truncate(path, 0), 0);
    CHECK_INT(iwp_weights_row(d.w, d.t, ROWS - 1, after, &err), 0);
    CHECK(memcmp(before, after, sizeof before) == 0);
    undeclare(&d);
    write_file();
}

static bool stop(void *ctx) {
    (void)ctx;
    return true;
}

TEST(cancelled) {
    iwp_err err = {0};
    struct declared d = declare("q8_0", IWP_WEIGHT_MATMUL, false);
    iwp_backend_set_cancel(d.b, stop, NULL);
    CHECK_INT(iwp_weights_load(d.w, "load", &err), IWP_ECANCELLED);
    undeclare(&d);
}

/* Rows that stay in the file are the same, and a file that became shorter is an error. */
TEST(rows_in_file) {
    static const char *const names[] = {"f32", "f16", "q8_0", "q4_0"};
    iwp_err err = {0};
    float copied[COLS], read[COLS];
    for (int i = 0; i < 4; i++) {
        struct declared d = declare(names[i], IWP_WEIGHT_ROWS, false);
        load(&d);
        CHECK_INT(iwp_weights_row(d.w, d.t, ROWS - 1, copied, &err), 0);
        undeclare(&d);
        d = declare(names[i], IWP_WEIGHT_ROWS, true);
        load(&d);
        CHECK_INT(iwp_weights_row(d.w, d.t, ROWS - 1, read, &err), 0);
        CHECK(memcmp(read, copied, sizeof read) == 0);
        CHECK_INT(truncate(path, 64), 0);
        CHECK_INT(iwp_weights_row(d.w, d.t, ROWS - 1, read, &err), IWP_EIO);
        CHECK_MSG(strstr(err.msg, path) && strstr(err.msg, "ends before"), "%s", err.msg);
        undeclare(&d);
        write_file();
    }
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
    CHECK_INT(iwp_weights_new(&w, b, g, &err), 0);
    CHECK_INT(iwp_weights_get(w, "q4_0", 2, any, IWP_WEIGHT_ROWS, 0, &t, &err), 0);
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

static void never(struct ggml_tensor *dst, const struct ggml_tensor *a, int ith, int nth,
                  void *ctx) {
    (void)dst, (void)a, (void)ith, (void)nth, (void)ctx;
}

/* A graph with one custom op, pinned to `device`. */
static int custom_on(struct iwp_backend *b, int32_t device, iwp_err *err) {
    struct iwp_sched *s;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    CHECK_INT(iwp_sched_new(&s, b, 16, err), 0);
    CHECK_INT(iwp_sched_begin(s, &ctx, &graph, err), 0);
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 32);
    ggml_set_input(x);
    struct ggml_tensor *y = ggml_map_custom1(ctx, ggml_scale(ctx, x, 2), never, 1, NULL);
    ggml_set_name(y, "odd_one");
    ggml_set_output(y);
    ggml_build_forward_expand(graph, y);
    iwp_sched_pin(s, y, device);
    int rc = iwp_sched_alloc(s, err);
    iwp_sched_free(s);
    return rc;
}

/* The RPC backend claims every op and would run none of ours: such a graph must not start.  Another
 * device that claims every op stands in for it; the real one is tried when IWP_TEST_RPC names a server. */
TEST(custom_ops_stay) {
    struct iwp_backend *b, two;
    iwp_err err = {0};
    CHECK_INT(iwp_backend_new(&b, &(struct iwp_backend_params){.n_thread = 1}, &err), 0);
    two = *b;
    two.n_device = 2;
    two.device[1] = b->device[0];
    two.backend[1] = b->backend[0];
    two.backend[0] = ggml_backend_dev_init(b->device[0], NULL);
    CHECK(two.backend[0] != NULL);
    CHECK_MSG(custom_on(b, 0, &err) == 0, "%s", err.msg);
    CHECK_INT(custom_on(&two, 0, &err), IWP_EINTERNAL);
    CHECK_MSG(strstr(err.msg, "odd_one") != NULL, "%s", err.msg);
    ggml_backend_free(two.backend[0]);
    iwp_backend_free(b);
    const char *rpc = getenv("IWP_TEST_RPC");
    if (!rpc) return;
    struct iwp_backend_params p = {.n_thread = 1, .n_gpu = -1, .rpc = rpc};
    CHECK_MSG(iwp_backend_new(&b, &p, &err) == 0, "%s", err.msg);
    CHECK_INT(b->n_device, 2);
    CHECK_MSG(custom_on(b, 1, &err) == 0, "%s", err.msg);
    CHECK_INT(custom_on(b, 0, &err), IWP_EINTERNAL);
    CHECK_MSG(strstr(err.msg, "RPC") != NULL, "%s", err.msg);
    iwp_backend_free(b);
}

/* A chain of four nodes; node `out` is read afterwards, beside the last. */
static float chain(struct iwp_sched *s, int out) {
    iwp_err err = {0};
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    struct ggml_tensor *t[5];
    CHECK_INT(iwp_sched_begin(s, &ctx, &graph, &err), 0);
    t[0] = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64);
    ggml_set_input(t[0]);
    for (int i = 1; i < 5; i++) t[i] = ggml_scale(ctx, t[i - 1], 2);
    ggml_set_output(t[out]);
    ggml_set_output(t[4]);
    ggml_build_forward_expand(graph, t[4]);
    CHECK_INT(iwp_sched_alloc(s, &err), 0);
    float x[64], y[64];
    for (int i = 0; i < 64; i++) x[i] = 1;
    ggml_backend_tensor_set(t[0], x, 0, sizeof x);
    CHECK_INT(iwp_sched_compute(s, &err), 0);
    ggml_backend_tensor_get(t[4], y, 0, sizeof y);
    CHECK_NEAR(y[63], 16, 0);
    ggml_backend_tensor_get(t[out], y, 0, sizeof y);
    return y[63];
}

/* ggml reuses a plan of memory where node counts and sizes agree; which nodes are read is not among them. */
TEST(outputs_take_turns) {
    iwp_err err = {0};
    struct iwp_backend *b;
    struct iwp_sched *s;
    CHECK_INT(iwp_backend_new(&b, &(struct iwp_backend_params){.n_thread = 1}, &err), 0);
    CHECK_INT(iwp_sched_new(&s, b, 16, &err), 0);
    static const int order[] = {4, 1, 4, 2, 1, 3};
    for (int i = 0; i < 6; i++) CHECK_NEAR(chain(s, order[i]), 1 << order[i], 0);
    iwp_sched_free(s);
    iwp_backend_free(b);
}

int main(void) {
    write_file();
    test_layouts();
    test_file_gone();
    test_rows_in_file();
    test_cancelled();
    test_refused();
    test_rpc_not_there();
    test_layer_devices();
    test_custom_ops_stay();
    test_outputs_take_turns();
    unlink(path);
    return test_done();
}
