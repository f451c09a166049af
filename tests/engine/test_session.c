/* Sessions against a decoder written out in plain loops: pruned runs equal full runs with the dropped
 * rows masked from the cut on, whatever the chunk size; keep = 1, rewinds and reused prefixes equal
 * fresh runs bit for bit. */
#include "model/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"

#ifdef TEST_WIDE /* rows of a head that a q8_0 cache can hold */
enum { D = 128, H = 4, G = 2, DH = 32, FF = 96, L = 5, V = 80 };
#else
enum { D = 64, H = 4, G = 2, DH = 16, FF = 96, L = 5, V = 80 };
#endif

static char path[64];
static uint64_t seed = 1;

/* ---- a random model ------------------------------------------------------------------------------ */

struct model {
    const char *arch;
    float an[L][D], fn[L][D], wq[L][H * DH * D], wk[L][G * DH * D], wv[L][G * DH * D],
        wo[L][D * H * DH], bq[L][H * DH], bk[L][G * DH], bv[L][G * DH], gate[L][FF * D],
        up[L][FF * D], down[L][D * FF], emb[V * D], on[D], out[V * D];
};
static struct model M;

struct tensor {
    char name[40];
    float *w;
    int n0, n1;
};
static struct tensor list[16 * L + 4];
static int n_list;

static void tensor(const char *name, float *w, int n0, int n1) {
    struct tensor *t = &list[n_list++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->w = w;
    t->n0 = n0;
    t->n1 = n1;
    for (int i = 0; i < n0 * (n1 ? n1 : 1); i++)
        w[i] =
            n1 ? test_normal(&seed) * 1.2f / sqrtf((float)n0)
               : (strstr(name, "bias") ? 0.3f * test_normal(&seed) : 1 + 0.1f * test_normal(&seed));
}

static void make_model(const char *arch) {
    char n[40];
    M.arch = arch;
    n_list = 0;
    for (int l = 0; l < L; l++) {
#define T(name, field, n0, n1)                                                                     \
    do {                                                                                           \
        snprintf(n, sizeof n, "blk.%d." name, l);                                                  \
        tensor(n, M.field[l], n0, n1);                                                             \
    } while (0)
        T("attn_norm.weight", an, D, 0);
        T("ffn_norm.weight", fn, D, 0);
        T("attn_q.weight", wq, D, H * DH);
        T("attn_k.weight", wk, D, G * DH);
        T("attn_v.weight", wv, D, G * DH);
        T("attn_output.weight", wo, H * DH, D);
        T("attn_q.bias", bq, H * DH, 0);
        T("attn_k.bias", bk, G * DH, 0);
        T("attn_v.bias", bv, G * DH, 0);
        T("ffn_gate.weight", gate, D, FF);
        T("ffn_up.weight", up, D, FF);
        T("ffn_down.weight", down, FF, D);
    }
    tensor("token_embd.weight", M.emb, D, V);
    tensor("output_norm.weight", M.on, D, 0);
    tensor("output.weight", M.out, D, V);
    struct iwp_gguf_writer *w;
    iwp_err err = {0};
    CHECK_INT(iwp_gguf_writer_new(&w, &err), 0);
    iwp_gguf_add_str(w, "general.architecture", arch);
    const struct {
        const char *k;
        uint32_t v;
    } keys[] = {
        {"block_count", L},          {"embedding_length", D},        {"feed_forward_length", FF},
        {"attention.head_count", H}, {"attention.head_count_kv", G}, {"context_length", 1024}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        snprintf(n, sizeof n, "%s.%s", arch, keys[i].k);
        iwp_gguf_add_u32(w, n, keys[i].v);
    }
    snprintf(n, sizeof n, "%s.rope.freq_base", arch);
    iwp_gguf_add_f32(w, n, 10000);
    char eps[64];
    snprintf(eps, sizeof eps, "%s.attention.layer_norm_rms_epsilon", arch);
    iwp_gguf_add_f32(w, eps, 1e-6f);
    const int32_t sections[4] = {DH / 8, 3 * DH / 16, 3 * DH / 16, 0};
    snprintf(eps, sizeof eps, "%s.rope.dimension_sections", arch);
    if (strcmp(arch, "qwen2vl") == 0) iwp_gguf_add_array(w, eps, IWP_GGUF_I32, sections, 4);
    for (int i = 0; i < n_list; i++) {
        const int64_t ne[2] = {list[i].n0, list[i].n1};
        iwp_gguf_add_tensor(w, list[i].name, GGML_TYPE_F32, list[i].n1 ? 2 : 1, ne);
    }
    CHECK_MSG(iwp_gguf_writer_begin(w, path, &err) == 0, "%s", err.msg);
    for (int i = 0; i < n_list; i++)
        CHECK_INT(iwp_gguf_writer_data(w, list[i].w,
                                       (size_t)list[i].n0 * (size_t)(list[i].n1 ? list[i].n1 : 1) *
                                           sizeof(float),
                                       &err),
                  0);
    CHECK_INT(iwp_gguf_writer_finish(w, &err), 0);
    CHECK_INT(iwp_gguf_writer_commit(w, &err), 0);
    iwp_gguf_writer_free(w);
}

/* ---- the decoder in plain loops ------------------------------------------------------------------ */

static void norm(const float *x, const float *w, float *y) {
    double s = 0;
    for (int i = 0; i < D; i++) s += (double)x[i] * x[i];
    s = 1 / sqrt(s / (double)D + 1e-6);
    for (int i = 0; i < D; i++) y[i] = (float)(x[i] * s) * w[i];
}

static void linear(const float *w, const float *b, const float *x, int n_in, int n_out, float *y) {
    for (int o = 0; o < n_out; o++) {
        double s = b ? b[o] : 0;
        for (int i = 0; i < n_in; i++) s += (double)w[o * n_in + i] * x[i];
        y[o] = (float)s;
    }
}

static void rope(float *x, int heads, const int32_t *pos) {
    const bool pairs = strcmp(M.arch, "llama") == 0, many = strcmp(M.arch, "qwen2vl") == 0;
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < DH / 2; i++) {
            const int row = !many ? 0 : i < DH / 8 ? 0 : i < 5 * DH / 16 ? 1 : 2;
            const double a = pos[row] * pow(10000, -2.0 * i / (double)DH), c = cos(a), s = sin(a);
            float *u = x + h * DH + (pairs ? 2 * i : i), *v = pairs ? u + 1 : u + DH / 2;
            const float p = *u, q = *v;
            *u = (float)(p * c - q * s);
            *v = (float)(p * s + q * c);
        }
}

/* S rows; from layer `cut` on only rows with live[] take part, at positions pos2.  Logits of the last. */
static void reference(const float *embeds, int S, const int32_t *pos, const int32_t *pos2,
                      const uint8_t *live, int cut, float *logits) {
    float *x = malloc(sizeof(float) * (size_t)S * D),
          *q = malloc(sizeof(float) * (size_t)S * H * DH);
    float *k = malloc(sizeof(float) * (size_t)S * G * DH),
          *v = malloc(sizeof(float) * (size_t)S * G * DH);
    double *p = malloc(sizeof(double) * (size_t)S);
    memcpy(x, embeds, sizeof(float) * (size_t)S * D);
    for (int l = 0; l < L; l++) {
        for (int i = 0; i < S; i++) {
            float h[D];
            norm(x + i * D, M.an[l], h);
            linear(M.wq[l], M.bq[l], h, D, H * DH, q + i * H * DH);
            linear(M.wk[l], M.bk[l], h, D, G * DH, k + i * G * DH);
            linear(M.wv[l], M.bv[l], h, D, G * DH, v + i * G * DH);
            const int32_t *ps = (l >= cut ? pos2 : pos) + 3 * i;
            rope(q + i * H * DH, H, ps);
            rope(k + i * G * DH, G, ps);
        }
        for (int i = 0; i < S; i++) {
            float o[H * DH], y[D], h[D], a[FF], b[FF];
            for (int hd = 0; hd < H; hd++) {
                const int g = hd * G / H;
                double best = -1e300, sum = 0, acc[DH] = {0};
                for (int j = 0; j <= i; j++) {
                    double s = 0;
                    for (int c = 0; c < DH; c++)
                        s += (double)q[(i * H + hd) * DH + c] * k[(j * G + g) * DH + c];
                    p[j] = l >= cut && !live[j] ? -1e300 : s / sqrt((double)DH);
                    if (p[j] > best) best = p[j];
                }
                for (int j = 0; j <= i; j++) {
                    const double e = exp(p[j] - best);
                    sum += e;
                    for (int c = 0; c < DH; c++) acc[c] += e * v[(j * G + g) * DH + c];
                }
                for (int c = 0; c < DH; c++) o[hd * DH + c] = (float)(acc[c] / sum);
            }
            linear(M.wo[l], NULL, o, H * DH, D, y);
            for (int c = 0; c < D; c++) x[i * D + c] += y[c];
            norm(x + i * D, M.fn[l], h);
            linear(M.gate[l], NULL, h, D, FF, a);
            linear(M.up[l], NULL, h, D, FF, b);
            for (int c = 0; c < FF; c++) a[c] = (float)(a[c] / (1 + exp(-(double)a[c]))) * b[c];
            linear(M.down[l], NULL, a, FF, D, y);
            for (int c = 0; c < D; c++) x[i * D + c] += y[c];
        }
    }
    float h[D];
    norm(x + (S - 1) * D, M.on, h);
    linear(M.out, NULL, h, D, V, logits);
    free(x);
    free(q);
    free(k);
    free(v);
    free(p);
}

/* ---- prompts ------------------------------------------------------------------------------------- */

static int below(int n) { return (int)(test_rand(&seed) % (uint64_t)n); }

/* Text, 1 to 3 pictures with text between, text; random lengths. */
static void make_prompt(struct iwp_prompt *p, int n_pos) {
    memset(p, 0, sizeof *p);
    enum { CAP = 400 };
    p->id = calloc(CAP, sizeof *p->id);
    p->code = calloc(CAP, 1);
    p->pos = calloc(3 * CAP, sizeof *p->pos);
    p->visual = calloc((size_t)CAP * D, sizeof *p->visual);
    p->unit_image = calloc(CAP, sizeof(int32_t));
    p->unit_tile = calloc(CAP, sizeof(int32_t));
    p->unit_frame = calloc(CAP, sizeof(int32_t));
    p->d_model = D;
    p->n_pos = n_pos;
    int64_t row[3][CAP], next = 0;
    const int images = 1 + below(3);
    for (int im = 0; im <= images; im++) {
        for (int i = 1 + below(9); i > 0; i--) {
            p->id[p->n] = below(V);
            p->code[p->n] = im == images ? IWP_CODE_USER : IWP_CODE_TEXT;
            row[0][p->n] = row[1][p->n] = row[2][p->n] = next++;
            p->n++;
        }
        if (im == images) break;
        const int h = 2 + below(5), w = 2 + below(8);
        for (int i = 0; i < h * w; i++) {
            row[0][p->n] = n_pos == 3 ? next : next + i;
            row[1][p->n] = next + i / w;
            row[2][p->n] = next + i % w;
            p->code[p->n++] = i % w == w - 1 ? IWP_CODE_SEPARATOR : IWP_CODE_VISUAL;
            for (int c = 0; c < D; c++) p->visual[p->n_visual * D + c] = test_normal(&seed);
            p->unit_image[p->n_visual] = p->unit_tile[p->n_visual] = im;
            p->n_visual++;
        }
        next += n_pos == 3 ? (h > w ? h : w) : h * w;
    }
    for (int r = 0; r < n_pos; r++)
        for (int i = 0; i < p->n; i++) p->pos[r * p->n + i] = row[r][i];
    p->next_pos = next;
}

static float *embeds_of(const struct iwp_prompt *p) {
    float *e = malloc(sizeof(float) * (size_t)p->n * D);
    int nv = 0;
    for (int i = 0; i < p->n; i++)
        memcpy(e + i * D,
               p->code[i] == 1 || p->code[i] == 2 ? p->visual + nv++ * D : M.emb + p->id[i] * D,
               sizeof(float) * D);
    return e;
}

static iwp_engine *open_engine(void) {
    iwp_engine *e = NULL;
    iwp_err err = {0};
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = path;
    ep.no_text = true;
    ep.n_thread = 1;
    CHECK_MSG(iwp_engine_open(&e, &ep, &err) == 0, "%s", err.msg);
    return e;
}

static iwp_session *open_session(iwp_engine *e, int chunk, enum iwp_kv_type t) {
    iwp_session *s = NULL;
    iwp_err err = {0};
    struct iwp_session_params sp = iwp_session_default_params();
    sp.n_chunk = chunk;
    sp.type_k = sp.type_v = t;
    CHECK_MSG(iwp_session_new(&s, e, &sp, &err) == 0, "%s", err.msg);
    return s;
}

/* What was announced is run, step by step: all of it without a cut, about so much with one (a later chat turn's
 * steps count no rows). */
static void finish(iwp_session *s) {
    iwp_err err = {0};
    const struct iwp_session_stats before = iwp_session_stats(s);
    int64_t left = before.row_layers_left;
    bool grew = false;
    int rc;
    while ((rc = iwp_session_step(s, &err)) > 0) {
        const int64_t now = iwp_session_stats(s).row_layers_left;
        grew = grew || now > left;
        left = now;
    }
    CHECK_MSG(rc == 0, "%s", err.msg);
    const struct iwp_session_stats after = iwp_session_stats(s);
    const int64_t run = after.row_layers - before.row_layers, said = before.row_layers_left;
    CHECK_INT(after.row_layers_left, 0);
    CHECK(!grew || after.n_stage > 0);
    CHECK_MSG(run == 0 || llabs(run - said) <= (after.n_stage > 0 ? run / 3 : 0),
              "%lld rows x layers run, %lld announced", (long long)run, (long long)said);
}

static void run(iwp_session *s, const struct iwp_prompt *p, const struct iwp_params *pp) {
    iwp_err err = {0};
    CHECK_MSG(iwp_session_begin(s, p, pp, &err) == 0, "%s", err.msg);
    finish(s);
}

static struct iwp_params method(const char *name, double keep, int layer) {
    struct iwp_params p;
    iwp_params_default(&p, iwp_method_find(name));
    p.budget.keep = keep;
    p.layer = layer;
    return p;
}

static double worst(const float *a, const float *b) {
    double d = 0, top = 0;
    for (int i = 0; i < V; i++) {
        d = fmax(d, fabs((double)a[i] - b[i]));
        top = fmax(top, fabs((double)b[i]));
    }
    return d / top;
}

/* ---- tests --------------------------------------------------------------------------------------- */

static void check_masked(iwp_engine *e, const struct iwp_prompt *p, const char *name, double keep,
                         int layer, int chunk, bool compact) {
    iwp_session *s = NULL;
    iwp_err err = {0};
    struct iwp_session_params sp = iwp_session_default_params();
    sp.n_chunk = chunk;
    sp.type_k = sp.type_v = IWP_KV_F32;
    sp.flash = chunk < 64 ? IWP_FLASH_ON : IWP_FLASH_AUTO; /* single rows, blocks; plain products */
    sp.positions = compact ? IWP_POSITIONS_COMPACT : IWP_POSITIONS_ORIGINAL;
    CHECK_INT(iwp_session_new(&s, e, &sp, &err), 0);
    struct iwp_params pp = method(name, keep, layer);
    run(s, p, &pp);
    const struct iwp_session_stats st = iwp_session_stats(s);
    CHECK_INT(st.n_kept, iwp_keep_count(keep, p->n_visual));
    uint8_t *live = calloc((size_t)p->n, 1);
    int32_t *pos = malloc(sizeof(int32_t) * 3 * (size_t)p->n),
            *pos2 = malloc(sizeof(int32_t) * 3 * (size_t)p->n);
    int nv = 0, k = 0, n_live = 0;
    for (int i = 0; i < p->n; i++) {
        const bool visual = p->code[i] == 1 || p->code[i] == 2;
        live[i] = !visual || (k < st.n_kept && st.keep[k] == nv);
        k += visual && live[i];
        nv += visual;
        for (int r = 0; r < 3; r++) {
            pos[3 * i + r] = (int32_t)p->pos[(p->n_pos == 3 ? r : 0) * p->n + i];
            pos2[3 * i + r] = compact ? n_live : pos[3 * i + r];
        }
        n_live += live[i];
    }
    float *emb = embeds_of(p), want[V];
    reference(emb, p->n, pos, pos2, live, layer, want);
    const double d = worst(iwp_session_logits(s), want);
    CHECK_MSG(d <= (chunk < 64 ? 2e-4 : 1e-4), "%s %s keep %g layer %d chunk %d compact %d: %g",
              M.arch, name, keep, layer, chunk, compact, d);
    /* The cache above the cut holds what is left, below it everything. */
    size_t cap = 0;
    for (int l = 0; l < L; l++) {
        const int n = l < layer ? p->n : n_live;
        CHECK_INT(s->kv.layer[l].n, n);
        CHECK(s->kv.layer[l].cap < n + sp.reserve + 64); /* and no more memory than for that */
        cap += (size_t)s->kv.layer[l].cap;
    }
    CHECK(iwp_kv_alloc_bytes(&s->kv) <= cap * iwp_kv_row_bytes(&s->kv) + L * 256);
    CHECK_INT(st.kv_bytes, (layer * p->n + (L - layer) * n_live) * (int)iwp_kv_row_bytes(&s->kv));
    CHECK(st.kv_bytes_full == iwp_kv_row_bytes(&s->kv) * L * (size_t)p->n);
    CHECK(st.flops <= st.flops_full + 1 && (keep == 1 || st.flops < st.flops_full));
    free(live);
    free(pos);
    free(pos2);
    free(emb);
    iwp_session_free(s);
}

TEST(masked) {
    static const char *const archs[] = {"qwen2", "qwen2vl", "llama"};
    static const int chunks[] = {1, 7, 64, 512};
    for (int a = 0; a < 3; a++) {
        make_model(archs[a]);
        iwp_engine *e = open_engine();
        for (int t = 0; t < 8; t++) {
            struct iwp_prompt p;
            make_prompt(&p, a == 1 ? 3 : 1);
            check_masked(e, &p, "iwp", 0.2 + 0.1 * below(5), below(L), chunks[t % 4], false);
            check_masked(e, &p, "uniform", 0.3, below(L), chunks[(t + 1) % 4], t % 2);
            iwp_prompt_free(&p);
        }
        iwp_engine_close(e);
    }
}

static void check_same(const float *a, const float *b, const char *what) {
    CHECK_MSG(memcmp(a, b, sizeof(float) * V) == 0, "%s: %g", what, worst(a, b));
}

static void copy_logits(const iwp_session *s, float *out) {
    memcpy(out, iwp_session_logits(s), sizeof(float) * V);
}

/* keep = 1 and marks: bit for bit, with the exact and with the flash path. */
TEST(same_bits) {
    make_model("qwen2");
    iwp_engine *e = open_engine();
    iwp_err err = {0};
    for (int t = 0; t < 6; t++) {
        const int chunk = t % 2 ? 16 : 512, layer = 1 + below(L - 1);
        const enum iwp_kv_type type = t % 3 ? IWP_KV_F32 : IWP_KV_F16;
        struct iwp_prompt p;
        make_prompt(&p, 1);
        iwp_session *s = open_session(e, chunk, type), *f = open_session(e, chunk, type);
        float full[V], fresh[V];
        run(f, &p, NULL);
        copy_logits(f, full);
        struct iwp_params all = method("iwp", 1, layer), some = method("iwp", 0.3, layer),
                          other = method("random", 0.5, layer < L - 1 ? layer + 1 : layer);
        run(s, &p, &all);
        check_same(iwp_session_logits(s), full, "keep 1");
        /* Marks: any order of methods from the same state. */
        CHECK_INT(iwp_session_keep_marks(s, &layer, 1, &err), 0);
        run(s, &p, &some);
        iwp_session_free(f);
        f = open_session(e, chunk, type);
        run(f, &p, &some);
        copy_logits(f, fresh);
        check_same(iwp_session_logits(s), fresh, "mark asked");
        for (int i = 0; i < 4; i++) {
            const int which = below(3);
            const struct iwp_params *pp = which == 0 ? NULL : which == 1 ? &some : &other;
            CHECK_MSG(iwp_session_rewind(s, i == 2 ? 0 : layer, pp, &err) == 0, "%s", err.msg);
            finish(s);
            iwp_session_free(f);
            f = open_session(e, chunk, type);
            run(f, &p, pp);
            check_same(iwp_session_logits(s), iwp_session_logits(f), "rewind");
            CHECK_INT(iwp_session_stats(s).n_kept, iwp_session_stats(f).n_kept);
            /* … and what is generated after it. */
            for (int k = 0; k < 3; k++) {
                const int token = below(V);
                CHECK_INT(iwp_session_feed(s, token, &err), 0);
                CHECK_INT(iwp_session_feed(f, token, &err), 0);
                check_same(iwp_session_logits(s), iwp_session_logits(f), "fed after rewind");
            }
            CHECK_INT(iwp_session_forget(s, 1, &err), 0);
            CHECK_INT(iwp_session_forget(f, 1, &err), 0);
            CHECK_INT(iwp_session_feed(s, 3, &err), 0);
            CHECK_INT(iwp_session_feed(f, 3, &err), 0);
            check_same(iwp_session_logits(s), iwp_session_logits(f), "fed after forget");
        }
        struct iwp_params low = method("iwp", 0.3, 0);
        CHECK(iwp_session_rewind(s, layer, &low, &err) < 0); /* cuts below the kept state */
        iwp_session_free(s);
        iwp_session_free(f);
        iwp_prompt_free(&p);
    }
    iwp_engine_close(e);
}

/* Several states of one run: from the highest down, each method from its own layer. */
TEST(marks) {
    make_model("qwen2");
    iwp_engine *e = open_engine();
    iwp_err err = {0};
    const int32_t layers[] = {1, 2, 3};
    CHECK(L > 3);
    for (int t = 0; t < 4; t++) {
        const int chunk = t % 2 ? 16 : 512;
        struct iwp_prompt p;
        make_prompt(&p, 1);
        iwp_session *s = open_session(e, chunk, IWP_KV_F16), *f = NULL;
        CHECK_INT(iwp_session_keep_marks(s, layers, 3, &err), 0);
        run(s, &p, NULL);
        CHECK_INT(iwp_session_stats(s).marked, 3);
        CHECK_INT(iwp_session_stats(s).row_layers, p.n * L);
        for (int l = 3; l >= 1; l--)
            for (int k = 0; k < 2; k++) {
                const struct iwp_params pp = method(k ? "random" : "iwp", 0.4, l);
                CHECK_MSG(iwp_session_rewind(s, l, &pp, &err) == 0, "%s", err.msg);
                finish(s);
                f = open_session(e, chunk, IWP_KV_F16);
                run(f, &p, &pp);
                check_same(iwp_session_logits(s), iwp_session_logits(f), "one of several marks");
                CHECK_INT(iwp_session_stats(s).row_layers + p.n * l,
                          iwp_session_stats(f).row_layers);
                CHECK_INT(iwp_session_feed(s, 5, &err), 0);
                CHECK_INT(iwp_session_feed(f, 5, &err), 0);
                check_same(iwp_session_logits(s), iwp_session_logits(f), "fed after a mark");
                iwp_session_free(f);
            }
        /* The cut at layer 1 ended the cache of layers 1 and 2. */
        CHECK(iwp_session_rewind(s, 3, NULL, &err) < 0);
        CHECK(strstr(err.msg, "came after") != NULL);
        /* A run of everything from there makes it whole again. */
        CHECK_INT(iwp_session_rewind(s, 1, NULL, &err), 0);
        CHECK(iwp_session_rewind(s, 2, NULL, &err) < 0);
        CHECK_INT(iwp_session_rewind(s, 1, NULL, &err), 0);
        finish(s);
        CHECK_INT(iwp_session_rewind(s, 3, NULL, &err), 0);
        finish(s);
        f = open_session(e, chunk, IWP_KV_F16);
        run(f, &p, NULL);
        check_same(iwp_session_logits(s), iwp_session_logits(f), "up again");
        iwp_session_free(f);
        iwp_session_free(s);
        iwp_prompt_free(&p);
    }
    const int32_t wrong[] = {2, 2};
    iwp_session *s = open_session(e, 16, IWP_KV_F16);
    CHECK(iwp_session_keep_marks(s, wrong, 2, &err) < 0);
    CHECK(iwp_session_keep_marks(s, layers, IWP_MARK_MAX + 1, &err) < 0);
    iwp_session_free(s);
    iwp_engine_close(e);
}

/* Tokens of several sessions in one graph: what each would get alone, whatever the others are.  A last bit
 * that differs may turn the rounding of an f16 cache by 5e-4. */
TEST(batch) {
    static const char *const archs[] = {"qwen2", "qwen2vl", "llama"};
    enum { N = 19 }; /* more than one graph takes */
    iwp_err err = {0};
    for (int a = 0; a < 3; a++) {
        make_model(archs[a]);
        iwp_engine *e = open_engine();
        struct iwp_prompt p[N];
        iwp_session *alone[N], *s[N];
        for (int i = 0; i < N; i++) {
            make_prompt(&p[i], a == 1 ? 3 : 1);
            /* pact gives sizes, which are biases of the attention; compact renumbers from a layer on */
            static const char *const methods[] = {NULL, "iwp", "pact", "uniform", "pyramiddrop"};
            const char *name = methods[i % 5];
            struct iwp_session_params sp = iwp_session_default_params();
            sp.type_k = sp.type_v = i % 2 ? IWP_KV_F16 : IWP_KV_F32;
            sp.positions = i % 3 ? IWP_POSITIONS_ORIGINAL : IWP_POSITIONS_COMPACT;
            sp.reserve = 16;
            if (a == 2) sp.flash = IWP_FLASH_ON; /* all lanes of a layer in one node */
            struct iwp_params pp;
            if (name) pp = method(name, 0.6, strcmp(name, "pyramiddrop") ? 1 + below(L - 1) : -1);
            CHECK_INT(iwp_session_new(&alone[i], e, &sp, &err), 0);
            CHECK_INT(iwp_session_new(&s[i], e, &sp, &err), 0);
            run(alone[i], &p[i], name ? &pp : NULL);
            run(s[i], &p[i], name ? &pp : NULL);
        }
        for (int k = 0; k < 20; k++) { /* the caches grow on the way */
            int32_t token[N];
            const int n = k == 0 ? 1 : k == 1 ? N : 2 + below(N - 1);
            for (int i = 0; i < n; i++) token[i] = below(V);
            CHECK_MSG(iwp_session_feed_batch(s, token, n, &err) == 0, "%s", err.msg);
            for (int i = 0; i < n; i++) {
                CHECK_INT(iwp_session_feed(alone[i], token[i], &err), 0);
                const double d = worst(iwp_session_logits(s[i]), iwp_session_logits(alone[i]));
                CHECK_MSG(d <= (i % 2 ? 5e-3 : 1e-5), "%s: session %d of %d, token %d: %g", M.arch,
                          i, n, k, d);
                if (n == 1) check_same(iwp_session_logits(s[0]), iwp_session_logits(alone[0]), "1");
                for (int l = 0; l < L; l++) CHECK_INT(s[i]->kv.layer[l].n, alone[i]->kv.layer[l].n);
            }
        }
        /* Refused as a whole: nobody gets a token. */
        const int32_t fed = iwp_session_stats(s[0]).n_generated, bad[2] = {1, V}, good[2] = {1, 1};
        iwp_session *const twice[2] = {s[0], s[0]};
        CHECK_INT(iwp_session_feed_batch(s, bad, 2, &err), IWP_EINVAL);
        CHECK_INT(iwp_session_feed_batch(twice, good, 2, &err), IWP_EINVAL);
        CHECK_INT(iwp_session_stats(s[0]).n_generated, fed);
        for (int i = 0; i < N; i++) {
            iwp_session_free(alone[i]);
            iwp_session_free(s[i]);
            iwp_prompt_free(&p[i]);
        }
        iwp_engine_close(e);
    }
}

/* A second question about the same picture: the lower layers of whole chunks are not run again. */
TEST(reuse) {
    make_model("qwen2");
    iwp_engine *e = open_engine();
    for (int t = 0; t < 6; t++) {
        struct iwp_prompt p;
        make_prompt(&p, 1);
        struct iwp_params some = method("iwp", 0.3, 2);
        const struct iwp_params *pp = t % 2 ? &some : NULL;
        iwp_session *s = open_session(e, 8, IWP_KV_F32), *f = open_session(e, 8, IWP_KV_F32);
        run(s, &p, pp);
        p.id[p.n - 1] = (p.id[p.n - 1] + 1) % V;
        run(s, &p, pp);
        run(f, &p, pp);
        CHECK_INT(iwp_session_stats(s).n_reused, (p.n - 1) / 8 * 8);
        CHECK_INT(iwp_session_stats(f).n_reused, 0);
        check_same(iwp_session_logits(s), iwp_session_logits(f), "reuse");
        p.visual[3] += 1; /* another picture: nothing behind it is used */
        run(s, &p, pp);
        iwp_session_free(f);
        f = open_session(e, 8, IWP_KV_F32);
        run(f, &p, pp);
        check_same(iwp_session_logits(s), iwp_session_logits(f), "other picture");
        iwp_session_free(s);
        iwp_session_free(f);
        iwp_prompt_free(&p);
    }
    iwp_engine_close(e);
}

/* What a server does to a session: prompts that share a beginning, any budget, some given up half-way.
 * Whatever was used again, the numbers are those of a fresh session. */
TEST(reuse_any_order) {
    make_model("qwen2");
    iwp_engine *e = open_engine();
    iwp_err err = {0};
    int whole = 0, upper = 0, again = 0;
    for (int t = 0; t < 12; t++) {
        const int chunk = t % 2 ? 8 : 512, layer = 1 + below(L - 1);
        struct iwp_prompt p;
        make_prompt(&p, 1);
        iwp_session *s = NULL;
        struct iwp_session_params sp = iwp_session_default_params();
        sp.n_chunk = chunk;
        sp.type_k = sp.type_v = IWP_KV_F32;
        sp.split_media = true;
        CHECK_INT(iwp_session_new(&s, e, &sp, &err), 0);
        int split = 0;
        for (int i = 0; i < p.n; i++)
            if (p.code[i] == IWP_CODE_VISUAL || p.code[i] == IWP_CODE_SEPARATOR) split = i + 1;
        const int most = p.n;
        for (int i = 0; i < 12; i++) {
            const int what = below(6);
            if (what == 0) p.id[split + below(p.n - split)] = below(V);
            if (what == 1) p.n = split + 1 + below(most - split); /* another length */
            if (what == 2) p.visual[below(p.n_visual * D)] += 1;
            struct iwp_params some = method("iwp", 0.2 + 0.2 * below(2), layer);
            const struct iwp_params *pp = below(2) ? &some : NULL;
            CHECK_INT(iwp_session_keep_marks(s, &layer, below(4) > 0, &err), 0);
            CHECK_MSG(iwp_session_begin(s, &p, pp, &err) == 0, "%s", err.msg);
            if (below(4) == 0) { /* given up */
                for (int k = below(4); k > 0; k--) CHECK(iwp_session_step(s, &err) >= 0);
                continue;
            }
            again += !s->running;
            finish(s);
            const int reused = iwp_session_stats(s).n_reused;
            whole += reused == p.n;
            upper += !pp && reused >= split && split > 0;
            iwp_session *f = open_session(e, chunk, IWP_KV_F32);
            f->sp.split_media = true;
            run(f, &p, pp);
            check_same(iwp_session_logits(s), iwp_session_logits(f), "any order");
            CHECK_INT(iwp_session_feed(s, 3, &err), 0);
            CHECK_INT(iwp_session_feed(f, 3, &err), 0);
            check_same(iwp_session_logits(s), iwp_session_logits(f), "fed in any order");
            iwp_session_free(f);
        }
        iwp_session_free(s);
        iwp_prompt_free(&p);
    }
    CHECK_MSG(whole > 5 && upper > 5 && again > 5,
              "reused: %d whole prompts, %d up to the question, %d with their answer", whole, upper,
              again);
    iwp_engine_close(e);
}

/* --reselect off: the next turn goes on with the cache as it is. */
TEST(continued) {
    make_model("qwen2");
    iwp_engine *e = open_engine();
    iwp_err err = {0};
    for (int compact = 0; compact < 2; compact++) {
        struct iwp_prompt p, q;
        make_prompt(&p, 1);
        struct iwp_session_params sp = iwp_session_default_params();
        sp.type_k = sp.type_v = IWP_KV_F32;
        sp.no_reselect = true;
        sp.positions = compact ? IWP_POSITIONS_COMPACT : IWP_POSITIONS_ORIGINAL;
        iwp_session *s, *f;
        CHECK_INT(iwp_session_new(&s, e, &sp, &err), 0);
        CHECK_INT(iwp_session_new(&f, e, &sp, &err), 0);
        struct iwp_params some = method("uniform", 0.3, 2);
        run(s, &p, &some);
        run(f, &p, &some);
        const int more[6] = {5, 9, 2, 33, 7, 11};
        for (int i = 0; i < 6; i++) CHECK_INT(iwp_session_feed(f, more[i], &err), 0);
        for (int i = 0; i < 2; i++) CHECK_INT(iwp_session_feed(s, more[i], &err), 0);
        q = p;
        q.n = p.n + 6;
        q.pos = calloc((size_t)q.n, sizeof *q.pos);
        memcpy(q.pos, p.pos, sizeof *q.pos * (size_t)p.n);
        for (int i = 0; i < 6; i++) {
            q.id[p.n + i] = more[i];
            q.code[p.n + i] = IWP_CODE_USER;
            q.pos[p.n + i] = p.next_pos + i;
        }
        q.next_pos = p.next_pos + 6;
        run(s, &q, &some);
        CHECK_INT(iwp_session_stats(s).n_reused, p.n + 2);
        CHECK(worst(iwp_session_logits(s), iwp_session_logits(f)) < 1e-5);
        CHECK_INT(iwp_session_feed(s, 21, &err), 0);
        CHECK_INT(iwp_session_feed(f, 21, &err), 0);
        CHECK(worst(iwp_session_logits(s), iwp_session_logits(f)) < 1e-5);
        free(q.pos);
        iwp_session_free(s);
        iwp_session_free(f);
        iwp_prompt_free(&p);
    }
    iwp_engine_close(e);
}

/* Rounded caches and flash attention stay near the exact run; q8_0 needs heads of 32. */
TEST(cache_types) {
    make_model("qwen2vl");
    iwp_engine *e = open_engine();
    iwp_err err = {0};
    struct iwp_prompt p;
    make_prompt(&p, 3);
    struct iwp_params some = method("uniform", 0.4, 2);
    iwp_session *s = open_session(e, 32, IWP_KV_F32), *h = open_session(e, 32, IWP_KV_F16), *q;
    run(s, &p, &some);
    run(h, &p, &some);
    CHECK(worst(iwp_session_logits(h), iwp_session_logits(s)) < 0.02);
    CHECK(iwp_session_stats(h).kv_bytes * 2 == iwp_session_stats(s).kv_bytes);
    for (int i = 0; i < 40; i++) { /* past the reserve: the cache grows */
        CHECK_INT(iwp_session_feed(s, i, &err), 0);
        CHECK_INT(iwp_session_feed(h, i, &err), 0);
    }
    CHECK(worst(iwp_session_logits(h), iwp_session_logits(s)) < 0.03);
    struct iwp_session_params sp = iwp_session_default_params();
    sp.type_k = IWP_KV_Q8_0;
    if (DH % 32 == 0) { /* 8 bits in blocks of 32 with an f16 scale: 34 bytes for 128 */
        q = open_session(e, 32, IWP_KV_Q8_0);
        iwp_session *t = open_session(e, 32, IWP_KV_F32);
        run(q, &p, &some);
        run(t, &p, &some);
        CHECK(worst(iwp_session_logits(q), iwp_session_logits(t)) < 0.05);
        CHECK(iwp_session_stats(q).kv_bytes * 128 == iwp_session_stats(t).kv_bytes * 34);
        for (int i = 0; i < 40; i++) {
            CHECK_INT(iwp_session_feed(q, i, &err), 0);
            CHECK_INT(iwp_session_feed(t, i, &err), 0);
        }
        CHECK(worst(iwp_session_logits(q), iwp_session_logits(t)) < 0.05);
        iwp_session_free(q);
        iwp_session_free(t);
    } else {
        CHECK(iwp_session_new(&q, e, &sp, &err) == IWP_ENOTSUP);
        CHECK_MSG(strstr(err.msg, "-ctk") != NULL, "%s", err.msg);
    }
    sp.type_k = IWP_KV_F32, sp.type_v = IWP_KV_F32, sp.flash = IWP_FLASH_ON;
    CHECK_INT(iwp_session_new(&q, e, &sp, &err), 0);
    run(q, &p, &some);
    iwp_session_free(s);
    s = open_session(e, 512, IWP_KV_F32);
    run(s, &p, &some);
    CHECK(worst(iwp_session_logits(q), iwp_session_logits(s)) < 2e-3);
    iwp_session_free(q);
    iwp_session_free(s);
    iwp_session_free(h);
    iwp_prompt_free(&p);
    iwp_engine_close(e);
}

/* Logits after a prompt and three tokens with one kind of attention. */
static void logits_by(iwp_engine *e, const struct iwp_prompt *p, const struct iwp_params *pp,
                      enum iwp_flash flash, enum iwp_kv_type type, float out[V]) {
    iwp_session *s;
    iwp_err err = {0};
    struct iwp_session_params sp = iwp_session_default_params();
    sp.flash = flash;
    sp.type_k = sp.type_v = type;
    sp.n_chunk = 48;
    CHECK_INT(iwp_session_new(&s, e, &sp, &err), 0);
    run(s, p, pp);
    for (int i = 0; i < 3; i++) CHECK_INT(iwp_session_feed(s, i, &err), 0);
    copy_logits(s, out);
    iwp_session_free(s);
}

/* Our own attention, ggml's and the two plain products: near each other (pact: with biases), and ours the
 * same bits on one thread and on two. */
TEST(attention) {
    make_model("qwen2");
    iwp_engine *e = open_engine(), *two = NULL;
    iwp_err err = {0};
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = path;
    ep.no_text = true;
    ep.n_thread = 2;
    CHECK_INT(iwp_engine_open(&two, &ep, &err), 0);
    for (int t = 0; t < 4; t++) {
        struct iwp_prompt p;
        make_prompt(&p, 1);
        struct iwp_params some = method(t % 2 ? "pact" : "iwp", 0.4, 1 + below(L - 1));
        const enum iwp_kv_type type = t < 2 ? IWP_KV_F32 : IWP_KV_F16;
        float own[V], again[V], ggml[V], plain[V];
        logits_by(e, &p, &some, IWP_FLASH_ON, type, own);
        logits_by(two, &p, &some, IWP_FLASH_ON, type, again);
        logits_by(e, &p, &some, IWP_FLASH_GGML, type, ggml);
        logits_by(e, &p, &some, IWP_FLASH_OFF, type, plain);
        check_same(own, again, "two threads");
        CHECK_MSG(worst(own, plain) < (t < 2 ? 3e-4 : 5e-3), "own %d: %g", t, worst(own, plain));
        CHECK_MSG(worst(ggml, plain) < 2e-2, "ggml %d: %g", t, worst(ggml, plain));
        iwp_prompt_free(&p);
    }
    iwp_engine_close(e);
    iwp_engine_close(two);
}

/* Every method of the table that needs no tower runs at its own place and counts. */
TEST(methods) {
    make_model("qwen2");
    iwp_engine *e = open_engine();
    iwp_session *s = open_session(e, 64, IWP_KV_F32);
    struct iwp_prompt p;
    make_prompt(&p, 1);
    for (int32_t i = 0; i < iwp_method_count(); i++) {
        const struct iwp_method_info *m = iwp_method_info(iwp_method_at(i));
        if (m->flags & (IWP_METHOD_READS_ENCODER | IWP_METHOD_ENGINE_ONLY)) continue;
        struct iwp_params pp = method(m->name, 0.5, -1);
        iwp_err err = {0};
        int rc = iwp_session_begin(s, &p, &pp, &err);
        if (rc < 0) { /* a schedule that this depth cannot have says which it can */
            CHECK_MSG(rc == IWP_EINVAL && err.msg[0], "%s: %s", m->name, err.msg);
            continue;
        }
        finish(s);
        const struct iwp_session_stats st = iwp_session_stats(s);
        CHECK_MSG(isfinite(iwp_session_logits(s)[0]), "%s", m->name);
        CHECK_MSG(st.layer_average <= 1 && st.n_kept <= p.n_visual, "%s", m->name);
        for (int32_t k = 1; k < st.n_kept; k++) CHECK(st.keep[k] > st.keep[k - 1]);
    }
    iwp_session_free(s);
    iwp_prompt_free(&p);
    iwp_engine_close(e);
}

/* What a probe saw of one layer. */
struct seen {
    struct iwp_probe probe;
    int layer, calls, n_row, src[400];
    float q[400 * H * DH], k[400 * G * DH], v[400 * G * DH], heads[400 * H * DH];
};

static int look(void *ctx, iwp_session *s, int32_t layer, const struct iwp_stream *rows,
                iwp_err *err) {
    struct seen *c = ctx;
    c->calls++;
    if (layer != c->layer) return 0;
    c->n_row = rows->n;
    for (int i = 0; i < rows->n; i++) c->src[i] = rows->src[i];
    c->probe.heads = c->heads;
    const struct iwp_taps taps = {.q_rope = c->q, .k_rope = c->k, .v = c->v};
    return iwp_probe_qkv(s, layer, &taps, err);
}

static int stop_at_two(void *ctx, iwp_session *s, int32_t layer, const struct iwp_stream *rows,
                       iwp_err *err) {
    (void)ctx, (void)s, (void)rows;
    return layer == 2 ? iwp_err_set(err, IWP_EINVAL, "seen enough") : 0;
}

/* A probe changes no bit, sees the rows a cut leaves, and the attention output it is given is the softmax
 * of its q and k over its v. */
TEST(probe) {
    static struct seen c;
    make_model("qwen2");
    iwp_engine *e = open_engine();
    for (int t = 0; t < 4; t++) {
        const int chunk = t % 2 ? 16 : 512, cut = 1 + below(L - 2);
        struct iwp_params some = method("iwp", 0.3, cut);
        const struct iwp_params *pp = t < 2 ? NULL : &some;
        struct iwp_prompt p;
        make_prompt(&p, 1);
        iwp_session *s = open_session(e, chunk, IWP_KV_F32),
                    *f = open_session(e, chunk, IWP_KV_F32);
        run(f, &p, pp);
        memset(&c, 0, sizeof c);
        c.layer = c.probe.heads_layer = below(L - 1);
        c.probe.layer = look;
        c.probe.ctx = &c;
        iwp_session_set_probe(s, &c.probe);
        run(s, &p, pp);
        check_same(iwp_session_logits(s), iwp_session_logits(f), "probed");
        CHECK_INT(c.calls, L);
        const int n_kept = iwp_session_stats(s).n_kept;
        CHECK_INT(c.n_row, pp && c.layer >= cut ? p.n - p.n_visual + n_kept : p.n);
        double off = 0;
        for (int i = 0; i < c.n_row; i++) {
            CHECK(i == 0 || c.src[i] > c.src[i - 1]);
            for (int h = 0; h < H; h++) {
                double z = 0, o[DH] = {0};
                for (int j = 0; j <= i; j++) {
                    double x = 0;
                    for (int d = 0; d < DH; d++)
                        x += (double)c.q[(i * H + h) * DH + d] *
                             (double)c.k[(j * G + h * G / H) * DH + d];
                    x = exp(x / sqrt(DH));
                    z += x;
                    for (int d = 0; d < DH; d++)
                        o[d] += x * (double)c.v[(j * G + h * G / H) * DH + d];
                }
                for (int d = 0; d < DH; d++)
                    off = fmax(off, fabs(o[d] / z - (double)c.heads[(i * H + h) * DH + d]));
            }
        }
        CHECK_MSG(off < 2e-5, "attention output off by %g", off);
        c.probe.layer = stop_at_two;
        iwp_err err = {0};
        CHECK_INT(iwp_session_begin(s, &p, pp, &err), 0);
        int rc;
        while ((rc = iwp_session_step(s, &err)) > 0) {
        }
        CHECK_INT(rc, IWP_EINVAL);
        CHECK_STR(err.msg, "seen enough");
        iwp_session_set_probe(s, NULL);
        run(s, &p, pp);
        check_same(iwp_session_logits(s), iwp_session_logits(f), "after a probe");
        iwp_session_free(s);
        iwp_session_free(f);
        iwp_prompt_free(&p);
    }
    iwp_engine_close(e);
}

TEST(refused) {
    make_model("qwen2");
    iwp_engine *e = open_engine();
    iwp_err err = {0};
    struct iwp_prompt p;
    make_prompt(&p, 1);
    iwp_session *s = open_session(e, 64, IWP_KV_F32);
    struct iwp_params deep = method("iwp", 0.5, L);
    CHECK(iwp_session_begin(s, &p, &deep, &err) < 0);
    CHECK_MSG(strstr(err.msg, "--prune-layer") != NULL, "%s", err.msg);
    struct iwp_params prev = method("fastv", 0.5, 0);
    CHECK(iwp_session_begin(s, &p, &prev, &err) < 0);
    p.id[0] = V;
    CHECK(iwp_session_begin(s, &p, NULL, &err) < 0);
    p.id[0] = 0;
    CHECK(iwp_session_step(s, &err) < 0 || iwp_session_logits(s) == NULL);
    struct iwp_session_params sp = iwp_session_default_params();
    sp.n_ctx = p.n;
    iwp_session *t;
    CHECK_INT(iwp_session_new(&t, e, &sp, &err), 0);
    CHECK(iwp_session_begin(t, &p, NULL, &err) == IWP_EINVAL);
    CHECK_MSG(strstr(err.msg, "-c") != NULL, "%s", err.msg);
    sp.n_ctx = p.n + 1;
    iwp_session_free(t);
    CHECK_INT(iwp_session_new(&t, e, &sp, &err), 0);
    run(t, &p, NULL);
    CHECK_INT(iwp_session_feed(t, 1, &err), 0);
    CHECK(iwp_session_feed(t, 1, &err) == IWP_EINVAL); /* full */
    CHECK(iwp_session_feed(s, -1, &err) < 0);
    iwp_session_free(t);
    iwp_session_free(s);
    iwp_prompt_free(&p);
    iwp_engine_close(e);
    CHECK_INT(truncate(path, 4000), 0);
    struct iwp_engine_params ep = iwp_engine_default_params();
    ep.model = path;
    ep.no_text = true;
    CHECK(iwp_engine_open(&e, &ep, &err) < 0);
    make_model("gpt2");
    CHECK(iwp_engine_open(&e, &ep, &err) == IWP_ENOTSUP);
    CHECK_MSG(strstr(err.msg, "gpt2") != NULL, "%s", err.msg);
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/iwp-test-session-%ld.gguf", (long)getpid());
    test_masked();
    test_same_bits();
    test_marks();
    test_batch();
    test_reuse();
    test_reuse_any_order();
    test_continued();
    test_cache_types();
    test_attention();
    test_methods();
    test_probe();
    test_refused();
    unlink(path);
    return test_done();
}
