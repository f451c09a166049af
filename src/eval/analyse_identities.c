/* The identities of the dual form (spec/iwp.md 2) on the activations of a real layer.  Each is computed by two
 * ways in double precision and the largest difference is compared with a bound; identity 2 also against
 * what the engine's own attention gave, in its precision.  The rows, heads and pairs looked at are spread
 * evenly and limited, so that long prompts stay affordable. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "eval/analyse.h"
#include "prune/method.h"

enum { MAX_POSITION = 48, MAX_ROW = 40, N_TERM = 8, WIDE = 1024 };

enum check {
    LINEAR,
    SOFTMAX,
    TAYLOR,
    NORM,
    GRAM,
    SEMIDEFINITE,
    COSINE,
    ANGLE,
    DELETE_ONE,
    DELETE_SET,
    SET_BOUND,
    REMOVED,
    MEAN_QUERY,
    MEAN_ORDER,
    N_CHECK
};

static const struct {
    const char *id, *what;
    double bound;
} checks[N_CHECK] = {
    [LINEAR] = {"1", "q(KᵀV) = (qKᵀ)V", 1e-9},
    [SOFTMAX] = {"2", "η Σ κ(q,k)v = the engine's attention", 2e-4},
    [TAYLOR] = {"2", "128 Taylor terms of the feature map", 1e-6},
    [NORM] = {"3", "|ΔW| = exp(|k|²/2√d)|v|", 1e-9},
    [GRAM] = {"4", "<ΔW,ΔW'> = κ(k,k')(v·v')", 1e-9},
    [SEMIDEFINITE] = {"4", "G has no negative eigenvalue", 1e-9},
    [COSINE] = {"5", "cos(ΔW,ΔW') = cos(v,v') rbf(k,k')", 1e-9},
    [ANGLE] = {"6", "κ(q,k)|v| = |φ(q)| cosθ |ΔW|", 1e-9},
    [DELETE_ONE] = {"7", "o - o without i = w(v - o without i)", 1e-9},
    [DELETE_SET] = {"8", "o - o without R = w/(1-w) (o_R - o)", 1e-9},
    [SET_BOUND] = {"8", "|o - o without R| below its bound", 1e-9},
    [REMOVED] = {"9", "|W - W_C|² = Σ G over R", 1e-9},
    [MEAN_QUERY] = {"10", "κ(mean q,k) = geometric mean", 1e-9},
    [MEAN_ORDER] = {"10", "geometric mean ≤ arithmetic mean", 1e-9},
};

struct found {
    double worst[N_CHECK], bound[N_CHECK];
    int64_t n[N_CHECK];
    double term[N_TERM]; /* largest relative error after 1, 2, 4, … Taylor terms */
    int64_t skipped;     /* heads whose logits are too far apart for a sum of Taylor terms */
    double lowest;       /* eigenvalue */
};

static void note(struct found *f, enum check c, double error) {
    f->n[c]++;
    if (!(error <= f->worst[c])) f->worst[c] = error; /* a NaN stays */
}

/* Everything about one layer that the checks share. */
struct look {
    const struct iwp_acts *x;
    struct found *f;
    float *query;            /* [H][d] mean query */
    int32_t *text, n_text;   /* rows behind it */
    int32_t *some, n_some;   /* visual rows, spread */
    int32_t *keep, n_keep;   /* kept visual tokens */
    double *logit;           /* [n] */
    double o[WIDE], p[WIDE]; /* rows of a head */
};

static const float *at(const float *a, const struct iwp_acts *x, int32_t heads, int32_t row,
                       int32_t head) {
    return a + ((size_t)row * (size_t)heads + (size_t)head) * (size_t)x->d;
}

static double dot(const float *a, const float *b, int32_t d) {
    double s = 0;
    for (int32_t i = 0; i < d; i++) s += (double)a[i] * (double)b[i];
    return s;
}

static double norm(const double *a, int32_t d) {
    double s = 0;
    for (int32_t i = 0; i < d; i++) s += a[i] * a[i];
    return sqrt(s);
}

/* Softmax over rows [0, n) but those with skip[i] set; logits are in l->logit.  Returns the sum of the
 * weights that were left out, as a share of all. */
static double attend(struct look *l, int32_t g, int32_t n, const uint8_t *skip, double *o) {
    double top = -INFINITY, z = 0, out = 0;
    const int32_t d = l->x->d;
    memset(o, 0, (size_t)d * sizeof *o);
    for (int32_t j = 0; j < n; j++)
        if (l->logit[j] > top) top = l->logit[j];
    /* Own maximum of the rows that count: the others may be larger by far. */
    double mine = -INFINITY;
    for (int32_t j = 0; j < n; j++)
        if (!(skip && skip[j]) && l->logit[j] > mine) mine = l->logit[j];
    for (int32_t j = 0; j < n; j++) {
        if (skip && skip[j]) {
            out += exp(l->logit[j] - top);
            continue;
        }
        const double w = exp(l->logit[j] - mine);
        const float *v = at(l->x->v, l->x, l->x->G, j, g);
        z += w;
        for (int32_t t = 0; t < d; t++) o[t] += w * (double)v[t];
    }
    for (int32_t t = 0; t < d; t++) o[t] /= z;
    return out / (out + z * exp(mine - top));
}

static void logits(struct look *l, const float *q, const float *k, int32_t g, int32_t n) {
    for (int32_t j = 0; j < n; j++)
        l->logit[j] = dot(q, at(k, l->x, l->x->G, j, g), l->x->d) / sqrt(l->x->d);
}

/* ---- 1, 2 ----------------------------------------------------------------------------------------------- */

static void check_linear(struct look *l, int32_t h, int32_t g) {
    const struct iwp_acts *x = l->x;
    const int32_t d = x->d;
    const float *q = at(x->q_rope, x, x->H, x->n - 1, h);
    double *w = calloc((size_t)d * (size_t)d, sizeof *w), top = 0, off = 0;
    memset(l->o, 0, sizeof l->o);
    memset(l->p, 0, sizeof l->p);
    for (int32_t i = 0; w && i < x->n; i++) {
        const float *k = at(x->k_rope, x, x->G, i, g), *v = at(x->v, x, x->G, i, g);
        const double qk = dot(q, k, d);
        for (int32_t a = 0; a < d; a++) {
            l->o[a] += qk * (double)v[a];
            for (int32_t b = 0; b < d; b++) w[a * d + b] += (double)k[a] * (double)v[b];
        }
    }
    for (int32_t a = 0; w && a < d; a++)
        for (int32_t b = 0; b < d; b++) l->p[b] += (double)q[a] * w[a * d + b];
    for (int32_t b = 0; b < d; b++) {
        top = fmax(top, fabs(l->o[b]));
        off = fmax(off, fabs(l->o[b] - l->p[b]));
    }
    if (w && top > 0) note(l->f, LINEAR, off / top);
    free(w);
}

/* Every position attends to those before it, with q and k after RoPE, as the engine does. */
static void check_engine(struct look *l, int32_t h, int32_t g) {
    const struct iwp_acts *x = l->x;
    const int32_t step = x->n > MAX_POSITION ? x->n / MAX_POSITION : 1;
    for (int32_t i = x->n - 1; i >= 0; i -= step) {
        double top = 0, off = 0;
        const float *got = at(x->heads, x, x->H, i, h);
        logits(l, at(x->q_rope, x, x->H, i, h), x->k_rope, g, i + 1);
        attend(l, g, i + 1, NULL, l->o);
        for (int32_t t = 0; t < x->d; t++) {
            top = fmax(top, fabs(l->o[t]));
            off = fmax(off, fabs(l->o[t] - (double)got[t]));
        }
        note(l->f, SOFTMAX, top > 0 ? off / top : off);
    }
}

/* The kernel cut off after T terms of its series is the inner product of the explicit features
 * (x/d^1/4)^(tensor n)/sqrt(n!), n < T.  Keys are centred first, which no softmax notices. */
static void check_taylor(struct look *l, int32_t h, int32_t g) {
    const struct iwp_acts *x = l->x;
    const int32_t d = x->d;
    logits(l, l->query + (size_t)h * (size_t)d, x->k, g, x->n);
    double mean = 0, far = 0, top = 0;
    for (int32_t j = 0; j < x->n; j++) mean += l->logit[j] / x->n;
    for (int32_t j = 0; j < x->n; j++) {
        l->logit[j] -= mean;
        far = fmax(far, fabs(l->logit[j]));
    }
    if (far > 25) { /* the terms of e^-25 are larger than it by more than a sum can hold */
        l->f->skipped++;
        return;
    }
    attend(l, g, x->n, NULL, l->o);
    for (int32_t t = 0; t < d; t++) top = fmax(top, fabs(l->o[t]));
    for (int e = 0; e < N_TERM; e++) {
        long double z = 0, o[WIDE] = {0};
        for (int32_t j = 0; j < x->n; j++) {
            long double term = 1, sum = 0;
            for (int t = 0; t < 1 << e; t++) {
                sum += term;
                term *= (long double)l->logit[j] / (t + 1);
            }
            const float *v = at(x->v, x, x->G, j, g);
            z += sum;
            for (int32_t t = 0; t < d; t++) o[t] += sum * (long double)v[t];
        }
        double off = 0;
        for (int32_t t = 0; t < d; t++) off = fmax(off, fabs((double)(o[t] / z) - l->o[t]));
        if (top > 0) l->f->term[e] = fmax(l->f->term[e], off / top);
        if (e == N_TERM - 1) note(l->f, TAYLOR, top > 0 ? off / top : off);
    }
}

/* ---- 3 to 6 --------------------------------------------------------------------------------------------- */

/* log |v.v'| and its sign times kappa(k, k'), as a logarithm. */
static double log_gram(const struct iwp_acts *x, int32_t i, int32_t j, int32_t g, double *sign) {
    const double kk = dot(at(x->k_rope, x, x->G, i, g), at(x->k_rope, x, x->G, j, g), x->d);
    const double vv = dot(at(x->v, x, x->G, i, g), at(x->v, x, x->G, j, g), x->d);
    *sign = vv > 0 ? 1 : vv < 0 ? -1 : 0;
    return kk / sqrt(x->d) + (vv != 0 ? log(fabs(vv)) : 0);
}

static double relative(double a, double b) { return fabs(a - b) / fmax(1, fabs(b)); }

/* Smallest eigenvalue of a symmetric matrix, by Jacobi rotations; m is destroyed. */
static double lowest_eigenvalue(double *m, int32_t n) {
    for (int sweep = 0; sweep < 30; sweep++) {
        double rest = 0;
        for (int32_t p = 0; p < n; p++)
            for (int32_t q = p + 1; q < n; q++) {
                const double a = m[p * n + q];
                rest += a * a;
                if (a == 0) continue;
                const double theta = (m[q * n + q] - m[p * n + p]) / (2 * a);
                const double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
                const double c = 1 / sqrt(t * t + 1), s = t * c;
                for (int32_t k = 0; k < n; k++) {
                    const double u = m[k * n + p], v = m[k * n + q];
                    m[k * n + p] = c * u - s * v;
                    m[k * n + q] = s * u + c * v;
                }
                for (int32_t k = 0; k < n; k++) {
                    const double u = m[p * n + k], v = m[q * n + k];
                    m[p * n + k] = c * u - s * v;
                    m[q * n + k] = s * u + c * v;
                }
            }
        if (rest < 1e-26) break;
    }
    double low = INFINITY;
    for (int32_t i = 0; i < n; i++) low = fmin(low, m[i * n + i]);
    return low;
}

static int check_updates(struct look *l, int32_t g, iwp_err *err) {
    const struct iwp_acts *x = l->x;
    const int32_t n = l->n_some, d = x->d;
    double *cosine = malloc((size_t)n * (size_t)n * sizeof *cosine),
           *rbf = malloc((size_t)n * (size_t)n * sizeof *rbf),
           *cos_v = malloc((size_t)n * (size_t)n * sizeof *cos_v);
    struct iwp_array k = x->k_rope_arr, v = x->v_arr; /* one head of them */
    int rc = 0;
    k.data = x->k_rope + (size_t)g * (size_t)d;
    v.data = x->v + (size_t)g * (size_t)d;
    k.n_head = v.n_head = 1;
    if (!cosine || !rbf || !cos_v) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(iwp_analysis_similarity(&k, &v, l->some, n, rbf, cos_v, NULL, err));
    for (int32_t a = 0; a < n; a++) {
        const int32_t i = l->some[a];
        const uint8_t both[2] = {1, 1};
        struct iwp_analysis_weight w;
        double sign;
        const double gii = log_gram(x, i, i, g, &sign);
        const float *ki = at(x->k_rope, x, x->G, i, g), *vi = at(x->v, x, x->G, i, g);
        if (sign == 0) { /* a value of zero updates nothing */
            for (int32_t b = 0; b < n; b++) cosine[a * n + b] = cosine[b * n + a] = a == b;
            continue;
        }
        IWP_TRY_GOTO(iwp_analysis_implicit_weight(&k, &v, 0, &i, 1, both, &w, err));
        note(l->f, NORM, relative(w.log_norm2, dot(ki, ki, d) / sqrt(d) + log(dot(vi, vi, d))));
        for (int32_t b = 0; b <= a; b++) {
            const int32_t j = l->some[b], pair[2] = {i, j};
            double s2;
            const double gij = log_gram(x, i, j, g, &s2), gjj = log_gram(x, j, j, g, &sign);
            if (sign == 0) continue;
            const double c = s2 * exp(gij - 0.5 * (gii + gjj));
            cosine[a * n + b] = cosine[b * n + a] = c;
            note(l->f, COSINE, fabs(c - rbf[a * n + b] * cos_v[a * n + b]));
            if (a == b) continue;
            /* |A + B|^2 = |A|^2 + |B|^2 + 2 <A,B> */
            IWP_TRY_GOTO(iwp_analysis_implicit_weight(&k, &v, 0, pair, 2, both, &w, err));
            const double top = fmax(gii, gjj);
            note(l->f, GRAM,
                 fabs(exp(w.log_norm2 - top) -
                      (exp(gii - top) + exp(gjj - top) + 2 * s2 * exp(gij - top))));
        }
    }
    const double low = lowest_eigenvalue(cosine, n);
    l->f->lowest = fmin(l->f->lowest, low);
    note(l->f, SEMIDEFINITE, low < 0 ? -low : 0);
fail:
    free(cosine), free(rbf), free(cos_v);
    return rc < 0 ? rc : 0;
}

static void check_angle(struct look *l, int32_t h, int32_t g) {
    const struct iwp_acts *x = l->x;
    const float *q = l->query + (size_t)h * (size_t)x->d;
    const double root = sqrt(x->d);
    for (int32_t a = 0; a < l->n_some; a++) {
        const float *k = at(x->k, x, x->G, l->some[a], g), *v = at(x->v, x, x->G, l->some[a], g);
        double apart = 0;
        for (int32_t t = 0; t < x->d; t++)
            apart += ((double)q[t] - (double)k[t]) * ((double)q[t] - (double)k[t]);
        const double vv = dot(v, v, x->d);
        if (vv == 0) continue;
        const double left = dot(q, k, x->d) / root + 0.5 * log(vv);
        const double update = dot(k, k, x->d) / (2 * root) + 0.5 * log(vv);
        note(l->f, ANGLE,
             relative(dot(q, q, x->d) / (2 * root) - apart / (2 * root) + update, left));
    }
}

/* ---- 7, 8 ----------------------------------------------------------------------------------------------- */

static int check_deletion(struct look *l, int32_t h, int32_t g, uint8_t *skip, iwp_err *err) {
    const struct iwp_acts *x = l->x;
    const int32_t d = x->d;
    const float *q = l->query + (size_t)h * (size_t)d;
    double without[WIDE], diff[WIDE];
    struct iwp_array k = x->k_arr, v = x->v_arr;
    k.data = x->k + (size_t)g * (size_t)d;
    v.data = x->v + (size_t)g * (size_t)d;
    k.n_head = v.n_head = 1;
    logits(l, q, x->k, g, x->n);
    memset(skip, 0, (size_t)x->n);
    attend(l, g, x->n, NULL, l->o);
    const double size = fmax(norm(l->o, d), 1e-30);
    for (int32_t a = 0; a < l->n_some; a += 4) {
        double effect;
        const int32_t i = l->some[a];
        skip[i] = 1;
        attend(l, g, x->n, skip, without);
        skip[i] = 0;
        for (int32_t t = 0; t < d; t++) diff[t] = l->o[t] - without[t];
        IWP_TRY(iwp_analysis_deletion(q, 1, &k, &v, &i, 1, &effect, NULL, err));
        note(l->f, DELETE_ONE, fabs(effect - norm(diff, d)) / size);
    }
    for (int32_t a = 0; a < x->n_visual; a++) skip[x->visual[a]] = 1;
    for (int32_t a = 0; a < l->n_keep; a++) skip[x->visual[l->keep[a]]] = 0;
    const double gone = attend(l, g, x->n, skip, without);
    if (gone <= 0 || 1 - gone < 1e-9) return 0;
    double top = -INFINITY, z = 0, limit = 0, off = 0, removed[WIDE] = {0};
    for (int32_t j = 0; j < x->n; j++) top = fmax(top, l->logit[j]);
    for (int32_t j = 0; j < x->n; j++) z += exp(l->logit[j] - top);
    for (int32_t j = 0; j < x->n; j++) {
        if (!skip[j]) continue;
        const double w = exp(l->logit[j] - top) / z;
        const float *vj = at(x->v, x, x->G, j, g);
        double far = 0;
        for (int32_t t = 0; t < d; t++) {
            removed[t] += w * (double)vj[t] / gone;
            far += ((double)vj[t] - l->o[t]) * ((double)vj[t] - l->o[t]);
        }
        limit += w * sqrt(far) / (1 - gone);
    }
    for (int32_t t = 0; t < d; t++) {
        diff[t] = l->o[t] - without[t];
        off = fmax(off, fabs(diff[t] - gone / (1 - gone) * (removed[t] - l->o[t])));
    }
    note(l->f, DELETE_SET, off * (1 - gone) / size);
    note(l->f, SET_BOUND, fmax(0, norm(diff, d) - limit) / size);
    return 0;
}

/* ---- 9, 10 ---------------------------------------------------------------------------------------------- */

static int check_removed(struct look *l, int32_t g, iwp_err *err) {
    const struct iwp_acts *x = l->x;
    struct iwp_analysis_weight w;
    uint8_t kept[MAX_ROW];
    for (int32_t a = 0; a < l->n_some; a++) {
        kept[a] = 0;
        for (int32_t i = 0; i < l->n_keep; i++) kept[a] |= x->visual[l->keep[i]] == l->some[a];
    }
    IWP_TRY(iwp_analysis_implicit_weight(&x->k_rope_arr, &x->v_arr, g, l->some, l->n_some, kept, &w,
                                         err));
    if (w.log_norm2 == -INFINITY) return 0;
    const double c = exp(w.log_norm2_kept - w.log_norm2),
                 r = exp(w.log_norm2_removed - w.log_norm2);
    note(l->f, REMOVED, fabs(r - (1 + c - 2 * w.cosine * sqrt(c))) / (1 + c));
    return 0;
}

static void check_mean_query(struct look *l, int32_t h, int32_t g) {
    const struct iwp_acts *x = l->x;
    const double root = sqrt(x->d);
    double mean_q[WIDE] = {0};
    for (int32_t j = 0; j < l->n_text; j++)
        for (int32_t t = 0; t < x->d; t++)
            mean_q[t] += (double)at(x->q, x, x->H, l->text[j], h)[t] / l->n_text;
    for (int32_t a = 0; a < l->n_some; a++) {
        const float *k = at(x->k, x, x->G, l->some[a], g);
        double geo = 0, direct = 0, top = -INFINITY, sum = 0;
        for (int32_t t = 0; t < x->d; t++) direct += mean_q[t] * (double)k[t] / root;
        for (int32_t j = 0; j < l->n_text; j++) {
            const double e = dot(at(x->q, x, x->H, l->text[j], h), k, x->d) / root;
            geo += e / l->n_text;
            top = fmax(top, e);
        }
        for (int32_t j = 0; j < l->n_text; j++)
            sum += exp(dot(at(x->q, x, x->H, l->text[j], h), k, x->d) / root - top);
        note(l->f, MEAN_QUERY, relative(direct, geo));
        note(l->f, MEAN_ORDER, fmax(0, geo - (top + log(sum / l->n_text))));
    }
}

/* ---- one layer ------------------------------------------------------------------------------------------ */

static int check_all(struct look *l, iwp_err *err) {
    const struct iwp_acts *x = l->x;
    uint8_t *skip = malloc((size_t)x->n);
    IWP_REQUIRE(skip, err, IWP_ENOMEM, "out of memory");
    int rc = 0;
    for (int32_t h = 0; h < x->H && rc >= 0; h++) {
        const int32_t g = iwp_kv_head(h, x->H, x->G);
        check_linear(l, h, g);
        check_engine(l, h, g);
        check_taylor(l, h, g);
        check_angle(l, h, g);
        check_mean_query(l, h, g);
        rc = check_deletion(l, h, g, skip, err);
    }
    for (int32_t g = 0; g < x->G && rc >= 0; g++) {
        rc = check_updates(l, g, err);
        if (rc >= 0) rc = check_removed(l, g, err);
    }
    free(skip);
    return rc;
}

static int at_layer(void *ctx, struct iwp_analyse *a, const struct iwp_acts *x, iwp_err *err) {
    IWP_REQUIRE(x->d <= WIDE, err, IWP_ENOTSUP, "heads wider than %d", WIDE);
    struct look *l = calloc(1, sizeof *l);
    IWP_REQUIRE(l, err, IWP_ENOMEM, "out of memory");
    int rc = 0;
    struct iwp_params p = a->job->prune;
    p.budget.keep = a->job->keep[0];
    p.budget.n_keep = 0;
    l->x = x;
    l->f = ctx;
    l->query = malloc((size_t)x->H * (size_t)x->d * sizeof *l->query);
    l->text = malloc((size_t)x->n * sizeof *l->text);
    l->some = malloc((size_t)MAX_ROW * sizeof *l->some);
    l->keep = malloc((size_t)x->n_visual * sizeof *l->keep);
    l->logit = malloc((size_t)x->n * sizeof *l->logit);
    if (!l->query || !l->text || !l->some || !l->keep || !l->logit)
        IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(iwp_acts_query(x, false, l->query, err));
    l->n_text = iwp_acts_text(x, l->text);
    l->n_some = x->n_visual < MAX_ROW ? x->n_visual : MAX_ROW;
    for (int32_t i = 0; i < l->n_some; i++)
        l->some[i] = x->visual[(int64_t)i * x->n_visual / l->n_some];
    IWP_TRY_GOTO(iwp_acts_select(x, &p, l->keep, NULL, err));
    l->n_keep = rc;
    rc = check_all(l, err);
    iwp_analyse_tick(a);
fail:
    free(l->query), free(l->text), free(l->some), free(l->keep), free(l->logit);
    free(l);
    return rc < 0 ? rc : 0;
}

static int one_sample(void *ctx, struct iwp_analyse *a, const struct iwp_eval_sample *s,
                      const iwp_prompt *p, iwp_err *err) {
    (void)s;
    return iwp_acts_walk(a, p, a->layer, a->layer + 1, true, at_layer, ctx, err);
}

static bool holds(const struct found *f, int c) {
    return f->n[c] == 0 || f->worst[c] <= f->bound[c];
}

static void draw(const struct found *f, struct iwp_finding *out) {
    struct iwp_chart_bar bar[N_CHECK];
    char name[N_CHECK][120], text[N_CHECK][80];
    for (int c = 0; c < N_CHECK; c++) {
        snprintf(name[c], sizeof name[c], "%s  %s", checks[c].id, checks[c].what);
        if (f->n[c])
            snprintf(text[c], sizeof text[c], "%.1e %s", f->worst[c],
                     holds(f, c) ? "holds" : "DOES NOT HOLD");
        else
            snprintf(text[c], sizeof text[c], "not applicable here");
        bar[c] = (struct iwp_chart_bar){.name = name[c],
                                        .note = text[c],
                                        .value = f->n[c] ? fmax(f->worst[c], 1e-18) : NAN,
                                        .mark = f->bound[c],
                                        .colour = holds(f, c) ? 0 : 1};
    }
    const struct iwp_chart_bars b = {.title = "Largest difference of both sides; stroke: bound",
                                     .axis = "relative difference",
                                     .bar = bar,
                                     .n = N_CHECK,
                                     .lo = 1e-18,
                                     .hi = NAN,
                                     .logarithmic = true,
                                     .width = 300};
    const struct iwp_chart_box box = iwp_chart_bars(&out->chart, IWP_CHART_LEFT, IWP_CHART_TOP, &b);
    if (!f->n[TAYLOR]) return;
    double x[N_TERM], y[N_TERM];
    for (int e = 0; e < N_TERM; e++) {
        x[e] = e;
        y[e] = log10(fmax(f->term[e], 1e-18));
    }
    const struct iwp_chart_series s = {
        .name = "worst head", .x = x, .y = y, .n = N_TERM, .dots = true};
    const struct iwp_chart_lines l = {.title = "Identity 2 with an explicit feature map",
                                      .x_axis = "log₂ of the Taylor terms",
                                      .y_axis = "log₁₀ of the relative error",
                                      .series = &s,
                                      .n = 1,
                                      .x_lo = 0,
                                      .x_hi = N_TERM - 1,
                                      .y_lo = NAN,
                                      .y_hi = NAN};
    iwp_chart_lines(&out->chart, IWP_CHART_LEFT, box.y + box.h + IWP_CHART_GAP, &l);
}

int iwp_analyse_identities(struct iwp_analyse *a, struct iwp_finding *out, iwp_err *err) {
    struct found f;
    memset(&f, 0, sizeof f);
    f.lowest = INFINITY;
    for (int c = 0; c < N_CHECK; c++) f.bound[c] = checks[c].bound;
    /* A cache of 16 or 8 bits rounds what attention reads. */
    const struct iwp_session_params *s = &a->job->session;
    if (s->type_k == IWP_KV_Q8_0 || s->type_v == IWP_KV_Q8_0)
        f.bound[SOFTMAX] = 0.2;
    else if (s->type_k != IWP_KV_F32 || s->type_v != IWP_KV_F32 || s->flash == IWP_FLASH_ON ||
             s->flash == IWP_FLASH_GGML)
        f.bound[SOFTMAX] = 0.05;
    IWP_TRY(iwp_analyse_each(a, out, 1, one_sample, &f, err));
    int bad = 0;
    iwp_json_open_array(&out->json, "identities");
    for (int c = 0; c < N_CHECK; c++) {
        bad += !holds(&f, c);
        iwp_json_open_object(&out->json, NULL);
        iwp_json_put_string(&out->json, "identity", checks[c].id);
        iwp_json_put_string(&out->json, "what", checks[c].what);
        iwp_json_put_int(&out->json, "checks", f.n[c]);
        iwp_json_put_f64(&out->json, "largest_error", f.n[c] ? f.worst[c] : NAN);
        iwp_json_put_f64(&out->json, "bound", f.bound[c]);
        iwp_json_put_bool(&out->json, "holds", holds(&f, c));
        iwp_json_close_object(&out->json);
    }
    iwp_json_close_array(&out->json);
    iwp_json_open_array(&out->json, "taylor_error");
    for (int e = 0; e < N_TERM; e++)
        iwp_json_put_f64(&out->json, NULL, f.n[TAYLOR] ? f.term[e] : NAN);
    iwp_json_close_array(&out->json);
    iwp_json_put_int(&out->json, "taylor_heads_skipped", f.skipped);
    iwp_json_put_f64(&out->json, "lowest_eigenvalue", f.lowest);
    iwp_json_put_bool(&out->json, "hold", bad == 0);
    if (bad)
        fprintf(out->text, "%d of %d checks do not hold:\n", bad, N_CHECK);
    else
        fprintf(out->text, "All identities hold:\n");
    for (int c = 0; c < N_CHECK; c++)
        if (f.n[c])
            fprintf(out->text, "  %-2s off by %.1e (bound %.0e) in %6lld cases: %s%s\n",
                    checks[c].id, f.worst[c], f.bound[c], (long long)f.n[c], checks[c].what,
                    holds(&f, c) ? "" : "  DOES NOT HOLD");
    if (f.skipped)
        fprintf(out->text,
                "  %lld heads have logits too far apart for a sum of Taylor terms and were left "
                "out of that check.\n",
                (long long)f.skipped);
    draw(&f, out);
    return 0;
}
