/* The CLIP tower against the same arithmetic written out in double precision, on small random files; and
 * mmproj files that must be refused with the name of what is wrong. */
#include <unistd.h>

#include "io/gguf.h"
#include "model/tower.h"
#include "test.h"

enum { D = 24, HEADS = 3, FF = 40, PATCH = 4, TILE = 18, SIDE = 4, NP = 16, LAYERS = 3, OUT = 20 };

struct net {
    float *cls, *patch, *patch_b, *pos, *pre_w, *pre_b, *post_w, *post_b, *m0, *m0b, *m2, *m2b;
    struct {
        float *ln1, *ln1b, *q, *qb, *k, *kb, *v, *vb, *o, *ob, *ln2, *ln2b, *up, *upb, *down,
            *downb;
    } l[LAYERS];
};

/* What one file says; faults change one thing each. */
struct opts {
    int has_class, class_first, feature_layer; /* feature_layer 0: no key */
    const char *fault;
};

static char path[] = "/tmp/iwp-clip-XXXXXX";

static float *make(uint64_t *s, int n, double scale, double mean) {
    float *a = malloc((size_t)n * sizeof *a);
    for (int i = 0; i < n; i++) a[i] = (float)(mean + scale * (double)test_normal(s));
    return a;
}

static void net_make(struct net *w, uint64_t s) {
    w->cls = make(&s, D, 1, 0);
    w->patch = make(&s, 3 * PATCH * PATCH * D, .2, 0);
    w->patch_b = make(&s, D, .1, 0);
    w->pos = make(&s, D * (NP + 1), .5, 0);
    w->pre_w = make(&s, D, .1, 1);
    w->pre_b = make(&s, D, .1, 0);
    w->post_w = make(&s, D, .1, 1);
    w->post_b = make(&s, D, .1, 0);
    w->m0 = make(&s, D * 30, .2, 0);
    w->m0b = make(&s, 30, .1, 0);
    w->m2 = make(&s, 30 * OUT, .2, 0);
    w->m2b = make(&s, OUT, .1, 0);
    for (int i = 0; i < LAYERS; i++) {
        float **p = (float **)&w->l[i];
        static const int n[16] = {D,     D, D * D, D, D * D,  D,  D * D,  D,
                                  D * D, D, D,     D, D * FF, FF, FF * D, D};
        for (int k = 0; k < 16; k++)
            p[k] = make(&s, n[k], n[k] > FF ? .25 : .1, k == 0 || k == 10 ? 1 : 0);
    }
}

static void net_free(struct net *w) {
    float **p = (float **)w;
    for (size_t i = 0; i < sizeof *w / sizeof *p; i++) free(p[i]);
}

/* ---- The reference -------------------------------------------------------------------------- */

static void norm(double *x, const float *w, const float *b) {
    double m = 0, v = 0;
    for (int i = 0; i < D; i++) m += x[i] / (double)D;
    for (int i = 0; i < D; i++) v += (x[i] - m) * (x[i] - m) / (double)D;
    for (int i = 0; i < D; i++)
        x[i] = (x[i] - m) / sqrt(v + (double)1e-5f) * (double)w[i] + (double)b[i];
}

static void linear(const double *x, int in, int out, const float *w, const float *b, double *y) {
    for (int o = 0; o < out; o++) {
        y[o] = b ? (double)b[o] : 0;
        for (int i = 0; i < in; i++) y[o] += x[i] * (double)w[o * in + i];
    }
}

static void block(const struct net *w, int l, double (*x)[D], int n, double (*q)[D],
                  double (*k)[D]) {
    static double v[NP + 1][D], a[NP + 1][D];
    for (int i = 0; i < n; i++) {
        double y[D];
        memcpy(y, x[i], sizeof y);
        norm(y, w->l[l].ln1, w->l[l].ln1b);
        linear(y, D, D, w->l[l].q, w->l[l].qb, q[i]);
        linear(y, D, D, w->l[l].k, w->l[l].kb, k[i]);
        linear(y, D, D, w->l[l].v, w->l[l].vb, v[i]);
    }
    const int d = D / HEADS;
    memset(a, 0, sizeof a);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < n; i++) {
            double e[NP + 1], sum = 0;
            for (int j = 0; j < n; j++) {
                double s = 0;
                for (int c = 0; c < d; c++) s += q[i][h * d + c] * k[j][h * d + c];
                sum += e[j] = exp(s / sqrt(d));
            }
            for (int j = 0; j < n; j++)
                for (int c = 0; c < d; c++) a[i][h * d + c] += e[j] / sum * v[j][h * d + c];
        }
    for (int i = 0; i < n; i++) {
        double y[D], u[FF];
        linear(a[i], D, D, w->l[l].o, w->l[l].ob, y);
        for (int c = 0; c < D; c++) x[i][c] += y[c];
        memcpy(y, x[i], sizeof y);
        norm(y, w->l[l].ln2, w->l[l].ln2b);
        linear(y, D, FF, w->l[l].up, w->l[l].upb, u);
        for (int c = 0; c < FF; c++) u[c] = u[c] / (1 + exp(-1.702 * u[c]));
        linear(u, FF, D, w->l[l].down, w->l[l].downb, y);
        for (int c = 0; c < D; c++) x[i][c] += y[c];
    }
}

/* One tile [3][TILE][TILE] to rows [NP][OUT], as llama.cpp orders them or with the class token first. */
static void reference(const struct net *w, const struct opts *o, const float *px,
                      double (*row)[OUT], double (*x)[D], double (*q)[D], double (*k)[D]) {
    const int n = NP + (o->has_class != 0), first = o->has_class && o->class_first;
    for (int p = 0; p < NP; p++) {
        double *y = x[p + first], in[3 * PATCH * PATCH];
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < PATCH * PATCH; i++)
                in[c * PATCH * PATCH + i] =
                    (double)px[(c * TILE + p / SIDE * PATCH + i / PATCH) * TILE + p % SIDE * PATCH +
                               i % PATCH];
        linear(in, 3 * PATCH * PATCH, D, w->patch, w->patch_b, y);
    }
    if (o->has_class)
        for (int c = 0; c < D; c++) x[first ? 0 : NP][c] = (double)w->cls[c];
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < D; c++) x[i][c] += (double)w->pos[i * D + c];
        norm(x[i], w->pre_w, w->pre_b);
    }
    const int layers = o->feature_layer ? o->feature_layer : LAYERS - 1;
    for (int l = 0; l < layers; l++) block(w, l, x, n, q, k);
    for (int i = 0; i < n; i++) norm(x[i], w->post_w, w->post_b);
    for (int i = 0; i < NP; i++) {
        double u[30];
        linear(x[i + (o->has_class != 0)], D, 30, w->m0, w->m0b, u);
        for (int c = 0; c < 30; c++)
            u[c] = 0.5 * u[c] * (1 + tanh(sqrt(2 / acos(-1.0)) * (u[c] + 0.044715 * pow(u[c], 3))));
        linear(u, 30, OUT, w->m2, w->m2b, row[i]);
    }
}

/* ---- The file ------------------------------------------------------------------------------- */

static int is(const struct opts *o, const char *fault) {
    return o->fault && strcmp(o->fault, fault) == 0;
}

static void put(struct iwp_gguf_writer *w, const struct opts *o, const char *name, int n_dims,
                int64_t a, int64_t b, const float *data, int pass) {
    int64_t ne[4] = {a, b, 1, 1};
    if (is(o, name)) return; /* the fault: it is missing */
    if (n_dims == 4) {
        ne[0] = ne[1] = PATCH;
        ne[2] = 3;
        ne[3] = b;
    }
    if (is(o, "shape") && strcmp(name, "v.blk.1.ffn_up.weight") == 0) ne[1] -= 1;
    iwp_err err = {0};
    size_t n = (size_t)(ne[0] * (n_dims > 1 ? ne[1] : 1) * (n_dims > 2 ? ne[2] * ne[3] : 1));
    if (!pass)
        iwp_gguf_add_tensor(w, name, IWP_TYPE_F32, n_dims, ne);
    else
        CHECK_MSG(iwp_gguf_writer_data(w, data, n * 4, &err) >= 0, "%s", err.msg);
}

static void write_file(const struct net *w, const struct opts *o) {
    static const char *const names[16] = {
        "ln1.weight",      "ln1.bias",      "attn_q.weight",   "attn_q.bias",
        "attn_k.weight",   "attn_k.bias",   "attn_v.weight",   "attn_v.bias",
        "attn_out.weight", "attn_out.bias", "ln2.weight",      "ln2.bias",
        "ffn_up.weight",   "ffn_up.bias",   "ffn_down.weight", "ffn_down.bias"};
    static const float mean[3] = {.5f, .4f, .3f}, sd[3] = {.2f, .3f, .25f};
    struct iwp_gguf_writer *g;
    iwp_err err = {0};
    CHECK(iwp_gguf_writer_new(&g, &err) >= 0);
    iwp_gguf_add_str(g, "general.architecture", is(o, "arch") ? "llama" : "clip");
    iwp_gguf_add_str(g, "clip.projector_type", is(o, "projector") ? "ldp" : "mlp");
    iwp_gguf_add_u32(g, "clip.vision.image_size", TILE);
    iwp_gguf_add_u32(g, "clip.vision.patch_size", is(o, "patch") ? 0 : PATCH);
    iwp_gguf_add_u32(g, "clip.vision.embedding_length", D);
    iwp_gguf_add_u32(g, "clip.vision.feed_forward_length", FF);
    if (!is(o, "blocks")) iwp_gguf_add_u32(g, "clip.vision.block_count", LAYERS);
    iwp_gguf_add_u32(g, "clip.vision.attention.head_count", is(o, "heads") ? 5 : HEADS);
    iwp_gguf_add_f32(g, "clip.vision.attention.layer_norm_epsilon", 1e-5f);
    iwp_gguf_add_array(g, "clip.vision.image_mean", IWP_GGUF_F32, mean, is(o, "mean") ? 2 : 3);
    iwp_gguf_add_array(g, "clip.vision.image_std", IWP_GGUF_F32, sd, 3);
    if (o->class_first) iwp_gguf_add_str(g, "iwp.class_token", "first");
    if (is(o, "act")) iwp_gguf_add_str(g, "iwp.vision_act", "relu");
    int32_t layer = is(o, "layer") ? 99 : o->feature_layer;
    if (layer) iwp_gguf_add_array(g, "clip.vision.feature_layer", IWP_GGUF_I32, &layer, 1);
    for (int pass = 0; pass < 2; pass++) {
        if (o->has_class) put(g, o, "v.class_embd", 1, D, 1, w->cls, pass);
        put(g, o, "v.patch_embd.weight", 4, 0, D, w->patch, pass);
        put(g, o, "v.patch_embd.bias", 1, D, 1, w->patch_b, pass);
        put(g, o, "v.position_embd.weight", 2, D, NP + (o->has_class != 0), w->pos, pass);
        put(g, o, "v.pre_ln.weight", 1, D, 1, w->pre_w, pass);
        put(g, o, "v.pre_ln.bias", 1, D, 1, w->pre_b, pass);
        put(g, o, "v.post_ln.weight", 1, D, 1, w->post_w, pass);
        put(g, o, "v.post_ln.bias", 1, D, 1, w->post_b, pass);
        for (int i = 0; i < LAYERS; i++)
            for (int k = 0; k < 16; k++) {
                char name[64];
                float *const *p = (float *const *)&w->l[i];
                snprintf(name, sizeof name, "v.blk.%d.%s", i, names[k]);
                const int64_t in = k == 14 ? FF : D, out = k == 12 || k == 13 ? FF : D;
                const int matrix = strstr(names[k], ".weight") && k > 1 && k != 10;
                put(g, o, name, matrix ? 2 : 1, matrix ? in : out, out, p[k], pass);
            }
        put(g, o, "mm.0.weight", 2, D, 30, w->m0, pass);
        put(g, o, "mm.0.bias", 1, 30, 1, w->m0b, pass);
        put(g, o, "mm.2.weight", 2, 30, OUT, w->m2, pass);
        put(g, o, "mm.2.bias", 1, OUT, 1, w->m2b, pass);
        if (!pass) CHECK_MSG(iwp_gguf_writer_begin(g, path, &err) >= 0, "%s", err.msg);
    }
    CHECK(iwp_gguf_writer_finish(g, &err) >= 0 && iwp_gguf_writer_commit(g, &err) >= 0);
    iwp_gguf_writer_free(g);
}

static void compare(struct iwp_backend *b, const struct net *w, struct opts o) {
    iwp_err err = {0};
    struct iwp_gguf *g = NULL;
    struct iwp_tower *t = NULL;
    write_file(w, &o);
    int rc = iwp_gguf_open(&g, path, &err);
    if (rc >= 0) rc = iwp_tower_new(&t, b, g, &err);
    iwp_gguf_free(g);
    CHECK_MSG(rc >= 0, "%s", err.msg);
    if (rc < 0) return;
    const struct iwp_tower_info *info = iwp_tower_info(t);
    CHECK_INT(info->d_model, OUT);
    CHECK_INT(info->pre.kind, IWP_PRE_CLIP);
    CHECK_INT(info->class_last, o.has_class && !o.class_first);
    enum { FRAMES = 3 }; /* a video: three tiles */
    struct iwp_pre_plan plan;
    CHECK_MSG(iwp_pre_plan_make(&info->pre, 50, 40, FRAMES, IWP_PRE_VIDEO, &plan, &err) >= 0, "%s",
              err.msg);
    CHECK_INT(plan.n_tile, FRAMES);
    uint64_t s = 99;
    float *px = make(&s, FRAMES * 3 * TILE * TILE, 1, 0);
    struct iwp_tower_out out;
    const struct iwp_tower_want want = {.vision = true, .features = true, .qk = true, .block = -1};
    rc = iwp_tower_encode(t, &plan, px, &want, &out, &err);
    CHECK_MSG(rc >= 0, "%s", err.msg);
    double worst = 0, tower = 0, taps = 0, cls = 0;
    for (int f = 0; f < FRAMES && rc >= 0; f++) {
        static double row[NP][OUT], x[NP + 1][D], q[NP + 1][D], k[NP + 1][D];
        const int n = NP + (o.has_class != 0), shift = o.has_class != 0;
        reference(w, &o, px + f * 3 * TILE * TILE, row, x, q, k);
        for (int i = 0; i < NP; i++) {
            for (int c = 0; c < OUT; c++)
                worst = fmax(worst, fabs(row[i][c] - (double)out.row[(f * NP + i) * OUT + c]));
            for (int c = 0; c < D; c++) {
                const int at = (f * NP + i) * D + c;
                taps = fmax(taps, fabs(q[i + shift][c] - (double)out.q[at]));
                taps = fmax(taps, fabs(k[i + shift][c] - (double)out.k[at]));
                taps = fmax(taps, fabs(x[i + shift][c] - (double)out.feature[at]));
            }
        }
        for (int i = 0; i < n; i++)
            for (int c = 0; c < D; c++)
                tower = fmax(tower, fabs(x[i][c] - (double)out.vision[(f * n + i) * D + c]));
        const int at = o.class_first ? 0 : NP;
        for (int c = 0; c < D && o.has_class; c++)
            cls = fmax(cls, fabs(x[at][c] - (double)out.cls_f[f * D + c]) +
                                fabs(k[at][c] - (double)out.cls_k[f * D + c]));
    }
    CHECK_MSG(worst < 1e-5 && tower < 1e-5 && taps < 1e-5 && cls < 1e-5, "%g %g %g %g", worst,
              tower, taps, cls);
    /* the projector alone gives the same rows */
    if (rc >= 0) {
        float *y = malloc(NP * OUT * sizeof *y);
        CHECK(iwp_tower_project(t, out.feature, NP, y, &err) >= 0);
        double d = 0;
        for (int i = 0; i < NP * OUT; i++) d = fmax(d, fabs((double)y[i] - (double)out.row[i]));
        CHECK_MSG(d < 1e-6, "%g", d);
        free(y);
    }
    iwp_tower_out_free(&out);
    const struct iwp_tower_want none = {.qk = true, .block = 7};
    CHECK(iwp_tower_encode(t, &plan, px, &none, &out, &err) == IWP_EINVAL);
    free(px);
    iwp_tower_free(t);
}

static void refused(struct iwp_backend *b, const struct net *w, const char *fault,
                    const char *says) {
    iwp_err err = {0};
    struct iwp_gguf *g = NULL;
    struct iwp_tower *t = NULL;
    write_file(w, &(struct opts){.has_class = 1, .fault = fault});
    CHECK(iwp_gguf_open(&g, path, &err) >= 0);
    int rc = iwp_tower_new(&t, b, g, &err);
    CHECK_MSG(rc < 0, "%s was accepted", fault);
    CHECK_MSG(strstr(err.msg, says) && strstr(err.msg, path), "%s: %s", fault, err.msg);
    iwp_tower_free(t);
    iwp_gguf_free(g);
}

int main(void) {
    struct iwp_backend_params bp = {.n_thread = 2};
    struct iwp_backend *b;
    struct net w;
    iwp_err err = {0};
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
    CHECK_MSG(iwp_backend_new(&b, &bp, &err) >= 0, "%s", err.msg);
    net_make(&w, 5);
    compare(b, &w, (struct opts){.has_class = 1});
    compare(b, &w, (struct opts){.has_class = 1, .class_first = 1});
    compare(b, &w, (struct opts){.has_class = 0});
    compare(b, &w, (struct opts){.has_class = 1, .feature_layer = LAYERS});
    compare(b, &w, (struct opts){.has_class = 1, .feature_layer = 1});
    static const char *const faults[][2] = {
        {"arch", "not an mmproj"},
        {"projector", "ldp"},
        {"patch", "clip.vision.patch_size"},
        {"blocks", "clip.vision.block_count"},
        {"heads", "5 heads"},
        {"mean", "image_mean"},
        {"act", "relu"},
        {"layer", "feature layer"},
        {"shape", "v.blk.1.ffn_up.weight"},
        {"v.blk.0.attn_v.weight", "v.blk.0.attn_v.weight"},
        {"v.position_embd.weight", "v.position_embd.weight"},
        {"v.patch_embd.weight", "v.patch_embd.weight"},
        {"mm.0.weight", "mm.0.weight"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        refused(b, &w, faults[i][0], faults[i][1]);
    net_free(&w);
    iwp_backend_free(b);
    unlink(path);
    return test_done();
}
