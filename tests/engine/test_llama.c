/* The dependency itself: ggml computes, libllama is there, both from one build without OpenMP. */
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <llama.h>

#include "io/gguf.h"
#include "test.h"

TEST(product) {
    static const int rows = 3, cols = 5, inner = 64;
    ggml_backend_t cpu = ggml_backend_cpu_init();
    CHECK(cpu != NULL);
    struct ggml_init_params p = {ggml_tensor_overhead() * 8 + ggml_graph_overhead(), NULL, true};
    struct ggml_context *ctx = ggml_init(p);
    struct ggml_tensor *a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, inner, rows);
    struct ggml_tensor *b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, inner, cols);
    struct ggml_tensor *c = ggml_mul_mat(ctx, a, b);
    struct ggml_cgraph *g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, c);
    ggml_backend_buffer_t buf = ggml_backend_alloc_ctx_tensors(ctx, cpu);
    CHECK(buf != NULL);
    float x[3 * 64], y[5 * 64], z[15];
    uint64_t s = 7;
    for (int i = 0; i < rows * inner; i++) x[i] = test_normal(&s);
    for (int i = 0; i < cols * inner; i++) y[i] = test_normal(&s);
    ggml_backend_tensor_set(a, x, 0, sizeof x);
    ggml_backend_tensor_set(b, y, 0, sizeof y);
    CHECK_INT(ggml_backend_graph_compute(cpu, g), GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(c, z, 0, sizeof z);
    for (int j = 0; j < cols; j++)
        for (int i = 0; i < rows; i++) {
            double want = 0;
            for (int k = 0; k < inner; k++) want += (double)x[i * inner + k] * y[j * inner + k];
            CHECK_NEAR(z[j * rows + i], want, 1e-4);
        }
    ggml_backend_buffer_free(buf);
    ggml_free(ctx);
    ggml_backend_free(cpu);
}

TEST(build_options) {
    llama_backend_init();
    const char *info = llama_print_system_info();
    CHECK(info && strstr(info, "CPU") != NULL);
    CHECK_MSG(strstr(info, "OPENMP = 1") == NULL, "%s", info);
    CHECK_MSG(strstr(info, "REPACK = 1") != NULL, "%s", info);
    CHECK(llama_supports_rpc());
    llama_backend_free();
}

/* Our table of tensor types, used without ggml, against ggml's own. */
TEST(types) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const struct iwp_type_info *t = iwp_type_info((uint32_t)i);
        const int64_t block = ggml_blck_size((enum ggml_type)i);
        CHECK_MSG((t != NULL) == (block != 0), "type %d", i);
        if (!t || !block) continue;
        CHECK_INT(t->block, block);
        CHECK_INT(t->size, ggml_type_size((enum ggml_type)i));
        CHECK_STR(t->name, ggml_type_name((enum ggml_type)i));
    }
    CHECK(iwp_type_info(GGML_TYPE_COUNT) == NULL);
}

int main(void) {
    test_types();
    test_product();
    test_build_options();
    return test_done();
}
