/* The identities behind the method (spec/iwp.md, section 2, by number) on random data, in double. */
#include "test.h"

#include "iwp/analysis.h"

enum { N = 14, D = 4 };
static double q[D], k[N][D], v[N][D];
static uint64_t seed = 77;

static void draw(double size) {
    for (int t = 0; t < D; t++) q[t] = (double)(float)(size * (double)test_normal(&seed));
    for (int i = 0; i < N; i++)
        for (int t = 0; t < D; t++) {
            k[i][t] = (double)(float)(size * (double)test_normal(&seed));
            v[i][t] = (double)test_normal(&seed);
        }
}

static double dot(const double *a, const double *b, int n) {
    double s = 0;
    for (int t = 0; t < n; t++) s += a[t] * b[t];
    return s;
}

static double gap2(const double *a, const double *b) {
    double s = 0;
    for (int t = 0; t < D; t++) s += (a[t] - b[t]) * (a[t] - b[t]);
    return s;
}

static double kappa(const double *a, const double *b) { return exp(dot(a, b, D) / sqrt(D)); }
static double G(int i, int j) { return kappa(k[i], k[j]) * dot(v[i], v[j], D); }

/* Attention over the tokens with use[i]; weights in w when given. */
static void attend(const unsigned char *use, double *o, double *w) {
    double z = 0;
    for (int i = 0; i < N; i++) z += use[i] ? kappa(q, k[i]) : 0;
    memset(o, 0, sizeof(double) * D);
    for (int i = 0; i < N; i++) {
        double x = use[i] ? kappa(q, k[i]) / z : 0;
        if (w) w[i] = x;
        for (int t = 0; t < D; t++) o[t] += x * v[i][t];
    }
}

/* The explicit feature map, Taylor terms 0 … top: (x / d^¼)^⊗n / √n!.  Returns its length. */
static int features(const double *x, int top, double *phi) {
    int n = 1, from = 0;
    phi[0] = 1;
    for (int term = 1, size = 1; term <= top; term++) {
        for (int a = 0; a < size; a++)
            for (int t = 0; t < D; t++)
                phi[n + a * D + t] = phi[from + a] * x[t] / pow(D, 0.25) / sqrt(term);
        from = n;
        size *= D;
        n += size;
    }
    return n;
}

TEST(identity_1_linear_attention) {
    draw(1);
    double W[D][D] = {{0}}, a[D], b[D] = {0};
    for (int i = 0; i < N; i++)
        for (int s = 0; s < D; s++)
            for (int t = 0; t < D; t++) W[s][t] += k[i][s] * v[i][t];
    for (int i = 0; i < N; i++)
        for (int t = 0; t < D; t++) b[t] += dot(q, k[i], D) * v[i][t];
    for (int t = 0; t < D; t++) {
        a[t] = 0;
        for (int s = 0; s < D; s++) a[t] += q[s] * W[s][t];
        CHECK_NEAR(a[t], b[t], 1e-12);
    }
}

/* o = φ(q) η W with W built from explicit features; the error of both falls to 0 with the terms.
 * 3: ‖ΔW‖, 4: ⟨ΔW_i,ΔW_j⟩, 5: cosine, 9: ‖W−W_C‖² all read off the explicit matrices. */
TEST(identities_2_to_5_and_9_explicit) {
    enum { TOP = 7 };
    static double phi[N][30000], fq[30000], W[30000][D], C[30000][D];
    unsigned char all[N];
    double last = INFINITY;
    memset(all, 1, N);
    draw(0.6);
    for (int top = 1; top <= TOP; top += 2) {
        int n = features(q, top, fq);
        memset(W, 0, sizeof W);
        memset(C, 0, sizeof C);
        double z = 0, o[D], worst = 0;
        for (int i = 0; i < N; i++) {
            features(k[i], top, phi[i]);
            z += dot(fq, phi[i], n);
            for (int a = 0; a < n; a++)
                for (int t = 0; t < D; t++) {
                    W[a][t] += phi[i][a] * v[i][t];
                    if (i % 3 == 0) C[a][t] += phi[i][a] * v[i][t];
                }
        }
        attend(all, o, NULL);
        for (int t = 0; t < D; t++) {
            double x = 0;
            for (int a = 0; a < n; a++) x += fq[a] * W[a][t];
            worst = fmax(worst, fabs(x / z - o[t]));
        }
        CHECK_MSG(worst < last, "%d terms: error %g, before %g", top, worst, last);
        last = worst;
        if (top < TOP) continue;
        CHECK_MSG(worst < 1e-4, "%g", worst);
        double w2 = 0, c2 = 0, wc = 0, r2 = 0, sum = 0;
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                double frob = dot(phi[i], phi[j], n) * dot(v[i], v[j], D); /* ⟨φᵀv, φᵀv⟩ */
                CHECK_NEAR(frob, G(i, j), 2e-3 * fabs(G(i, i)) + 1e-3);
                if (i % 3 && j % 3) sum += G(i, j);
            }
        for (int a = 0; a < n; a++)
            for (int t = 0; t < D; t++) {
                w2 += W[a][t] * W[a][t];
                c2 += C[a][t] * C[a][t];
                wc += W[a][t] * C[a][t];
                r2 += (W[a][t] - C[a][t]) * (W[a][t] - C[a][t]);
            }
        CHECK_NEAR(r2, sum, 1e-3 * sum);
        static float fk[N * D], fv[N * D];
        int32_t row[N];
        uint8_t kept[N];
        for (int i = 0; i < N; i++) {
            row[i] = i;
            kept[i] = i % 3 == 0;
            for (int t = 0; t < D; t++)
                fk[i * D + t] = (float)k[i][t], fv[i * D + t] = (float)v[i][t];
        }
        struct iwp_array ka = iwp_array_f32(fk, N, 1, D), va = iwp_array_f32(fv, N, 1, D);
        struct iwp_analysis_weight got;
        iwp_err err;
        CHECK_INT(iwp_analysis_implicit_weight(&ka, &va, 0, row, N, kept, &got, &err), 0);
        CHECK_NEAR(got.log_norm2, log(w2), 1e-3);
        CHECK_NEAR(got.log_norm2_removed, log(r2), 1e-3);
        CHECK_NEAR(got.cosine, wc / sqrt(w2 * c2), 1e-3);
    }
}

TEST(identities_3_to_6_closed_forms) {
    for (int round = 0; round < 50; round++) {
        draw(1 + round % 3);
        for (int i = 0; i < N; i++) {
            double norm = exp(dot(k[i], k[i], D) / (2 * sqrt(D))) * sqrt(dot(v[i], v[i], D));
            CHECK_NEAR(sqrt(G(i, i)) / norm, 1, 1e-12);
            double fq = exp(dot(q, q, D) / (2 * sqrt(D))), c = exp(-gap2(q, k[i]) / (2 * sqrt(D)));
            CHECK_NEAR(kappa(q, k[i]) * sqrt(dot(v[i], v[i], D)) / (fq * c * norm), 1, 1e-10);
            for (int j = 0; j < N; j++) {
                double cv = dot(v[i], v[j], D) / sqrt(dot(v[i], v[i], D) * dot(v[j], v[j], D));
                CHECK_NEAR(G(i, j) / sqrt(G(i, i) * G(j, j)),
                           cv * exp(-gap2(k[i], k[j]) / (2 * sqrt(D))), 1e-10);
                CHECK_NEAR(G(i, j), G(j, i), 0);
            }
        }
        double s = 0, x[N]; /* positive semidefinite: no quadratic form below 0 */
        for (int i = 0; i < N; i++) x[i] = (double)test_normal(&seed) / sqrt(G(i, i));
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) s += x[i] * x[j] * G(i, j);
        CHECK_MSG(s > -1e-9, "%g", s);
    }
}

TEST(identities_7_and_8_deletion) {
    for (int round = 0; round < 100; round++) {
        draw(0.3 + round % 4);
        unsigned char all[N], rest[N];
        double o[D], w[N], c[D], r[D] = {0}, wr = 0, gap = 0, bound = 0;
        memset(all, 1, N);
        attend(all, o, w);
        for (int i = 0; i < N; i++) {
            memset(rest, 1, N);
            rest[i] = 0;
            attend(rest, c, NULL);
            double share = 0; /* 1 - w without subtraction */
            for (int j = 0; j < N; j++) share += j == i ? 0 : w[j];
            for (int t = 0; t < D; t++) {
                CHECK_NEAR(o[t] - c[t], w[i] * (v[i][t] - c[t]), 1e-11);
                if (share > 1e-6) CHECK_NEAR(o[t] - c[t], w[i] / share * (v[i][t] - o[t]), 1e-8);
            }
        }
        for (int i = 0; i < N; i++) rest[i] = (unsigned char)(i % 4 == round % 4);
        attend(rest, c, NULL);
        double share = 0;
        for (int i = 0; i < N; i++) {
            if (rest[i]) share += w[i];
            if (rest[i]) continue;
            wr += w[i];
            for (int t = 0; t < D; t++) r[t] += w[i] * v[i][t];
        }
        if (share < 1e-6) continue;
        for (int i = 0; i < N; i++) bound += rest[i] ? 0 : w[i] * sqrt(gap2(v[i], o)) / share;
        for (int t = 0; t < D; t++) {
            CHECK_NEAR(o[t] - c[t], wr / share * (r[t] / wr - o[t]), 1e-8);
            gap += (o[t] - c[t]) * (o[t] - c[t]);
        }
        CHECK_MSG(sqrt(gap) <= bound * (1 + 1e-9), "%g above %g", sqrt(gap), bound);
    }
}

/* κ of the mean query is the geometric mean, never above the arithmetic one. */
TEST(identity_10_mean_query) {
    for (int round = 0; round < 100; round++) {
        draw(1.5);
        double mean[D] = {0}, log_sum = 0, sum = 0;
        for (int j = 1; j < N; j++) { /* the other keys as queries */
            for (int t = 0; t < D; t++) mean[t] += k[j][t] / (N - 1);
            log_sum += log(kappa(k[j], k[0])) / (N - 1);
            sum += kappa(k[j], k[0]) / (N - 1);
        }
        CHECK_NEAR(kappa(mean, k[0]) / exp(log_sum), 1, 1e-10);
        CHECK(kappa(mean, k[0]) <= sum * (1 + 1e-12));
    }
}

int main(void) {
    test_identity_1_linear_attention();
    test_identities_2_to_5_and_9_explicit();
    test_identities_3_to_6_closed_forms();
    test_identities_7_and_8_deletion();
    test_identity_10_mean_query();
    return test_done();
}
