/* A prompt may be cut anywhere: products of a row with q8_0 weights are the same, but for the order of sums, in
 * whatever company it is computed.  One weight of the layer is f32, which our products leave to ggml: the others
 * are taken all the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kern/gemm.h"
#include "model/decoder.h"
#include "test.h"

enum { D = 256, F = 512, HEADS = 4, VOCAB = 320, MOST = 80 };

static uint64_t seed = 3;

struct part {
    const char *name;
    enum ggml_type type;
    int64_t ne[2];
};

static void write_model(const char *path) {
    static const struct part part[] = {
        {"token_embd.weight", GGML_TYPE_Q8_0, {D, VOCAB}},
        {"output_norm.weight", GGML_TYPE_F32, {D, 0}},
        {"output.weight", GGML_TYPE_Q8_0, {D, VOCAB}},
        {"blk.0.attn_norm.weight", GGML_TYPE_F32, {D, 0}},
        {"blk.0.ffn_norm.weight", GGML_TYPE_F32, {D, 0}},
        {"blk.0.attn_q.weight", GGML_TYPE_Q8_0, {D, D}},
        {"blk.0.attn_k.weight", GGML_TYPE_F32, {D, D / HEADS}},
        {"blk.0.attn_v.weight", GGML_TYPE_Q8_0, {D, D / HEADS}},
        {"blk.0.attn_output.weight", GGML_TYPE_Q8_0, {D, D}},
        {"blk.0.ffn_gate.weight", GGML_TYPE_Q8_0, {D, F}},
        {"blk.0.ffn_up.weight", GGML_TYPE_Q8_0, {D, F}},
        {"blk.0.ffn_down.weight", GGML_TYPE_Q8_0, {F, D}},
    };
    enum { N = sizeof part / sizeof *part };
    struct iwp_gguf_writer *g;
    iwp_err err = {0};
    CHECK_INT(iwp_gguf_writer_new(&g, &err), 0);
    iwp_gguf_add_str(g, "general.architecture", "llama");
    iwp_gguf_add_u32(g, "llama.block_count", 1);
    iwp_gguf_add_u32(g, "llama.embedding_length", D);
    iwp_gguf_add_u32(g, "llama.feed_forward_length", F);
    iwp_gguf_add_u32(g, "llama.attention.head_count", HEADS);
    iwp_gguf_add_u32(g, "llama.attention.head_count_kv", 1);
    iwp_gguf_add_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
    for (int i = 0; i < N; i++)
        iwp_gguf_add_tensor(g, part[i].name, (uint32_t)part[i].type, part[i].ne[1] ? 2 : 1,
                            part[i].ne);
    CHECK_MSG(iwp_gguf_writer_begin(g, path, &err) == 0, "%s", err.msg);
    for (int i = 0; i < N; i++) {
        const int64_t rows = part[i].ne[1] ? part[i].ne[1] : 1, n = part[i].ne[0] * rows;
        const size_t bytes = ggml_row_size(part[i].type, part[i].ne[0]) * (size_t)rows;
        float *x = malloc((size_t)n * sizeof *x);
        void *q = malloc(bytes);
        for (int64_t k = 0; k < n; k++) x[k] = test_normal(&seed) * 0.1f;
        if (part[i].type == GGML_TYPE_F32)
            memcpy(q, x, bytes);
        else
            ggml_quantize_chunk(part[i].type, x, q, 0, rows, part[i].ne[0], NULL);
        CHECK_INT(iwp_gguf_writer_data(g, q, bytes, &err), 0);
        free(q);
        free(x);
    }
    CHECK_INT(iwp_gguf_writer_finish(g, &err), 0);
    CHECK_INT(iwp_gguf_writer_commit(g, &err), 0);
    iwp_gguf_writer_free(g);
}

/* Queries and logits of the first row of n. */
static void run(const struct iwp_decoder *d, struct iwp_backend *b, const float *in, int n,
                float *q, float *logits) {
    struct iwp_sched *s;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    iwp_err err = {0};
    CHECK_INT(iwp_sched_new(&s, b, 64, &err), 0);
    CHECK_INT(iwp_sched_begin(s, &ctx, &graph, &err), 0);
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, D, n),
                       *pos = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
    ggml_set_input(x);
    ggml_set_input(pos);
    const struct iwp_decoder_qkv o = iwp_decoder_build_qkv(d, ctx, 0, x, pos, true);
    struct ggml_tensor *outs[] = {o.q, o.q_rope, o.k_rope, o.v,
                                  iwp_decoder_build_logits(d, ctx, x)};
    for (int i = 0; i < 5; i++) {
        ggml_set_output(outs[i]);
        ggml_build_forward_expand(graph, outs[i]);
    }
    CHECK_MSG(iwp_sched_alloc(s, &err) == 0, "%s", err.msg);
    int32_t at[MOST];
    for (int i = 0; i < n; i++) at[i] = i;
    ggml_backend_tensor_set(x, in, 0, ggml_nbytes(x));
    ggml_backend_tensor_set(pos, at, 0, (size_t)n * sizeof *at);
    CHECK_MSG(iwp_sched_compute(s, &err) == 0, "%s", err.msg);
    ggml_backend_tensor_get(outs[0], q, 0, D * sizeof *q);
    ggml_backend_tensor_get(outs[4], logits, 0, VOCAB * sizeof *logits);
    iwp_sched_free(s);
}

static double off(const float *a, const float *b, int n) {
    double e = 0, s = 0;
    for (int i = 0; i < n; i++) {
        e += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    return sqrt(e / s);
}

int main(void) {
    char path[64];
    struct iwp_backend *b;
    struct iwp_gguf *g;
    struct iwp_decoder d;
    iwp_err err = {0};
    snprintf(path, sizeof path, "/tmp/iwp-test-cuts-%ld.gguf", (long)getpid());
    write_model(path);
    CHECK_INT(iwp_backend_new(&b, &(struct iwp_backend_params){.n_thread = 2}, &err), 0);
    CHECK_MSG(iwp_gguf_open(&g, path, &err) == 0, "%s", err.msg);
    CHECK_MSG(iwp_decoder_load(&d, b, g, &err) == 0, "%s", err.msg);
    static float in[MOST * D], want[D + VOCAB], got[D + VOCAB];
    for (int i = 0; i < MOST * D; i++) in[i] = test_normal(&seed);
    run(&d, b, in, 1, want, want + D);
    /* With AMX rows are rounded to bf16, and up to 31 of them by ggml, to 8 bits. */
    const double most = d.bulk && iwp_gemm_get()->fine ? 3e-4 : 1e-2;
    static const int cuts[] = {2, 9, 16, 24, 31, 32, 47, 48, 63, 64, 79};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        run(&d, b, in, cuts[i], got, got + D);
        const double q = off(got, want, D), l = off(got + D, want + D, VOCAB);
        CHECK_MSG(q < most && l < most, "%d rows: queries %g, logits %g off", cuts[i], q, l);
        printf("%d rows: queries %.6f, logits %.6f\n", cuts[i], q, l);
    }
    iwp_decoder_free(&d);
    iwp_gguf_free(g);
    iwp_backend_free(b);
    unlink(path);
    return test_done();
}
