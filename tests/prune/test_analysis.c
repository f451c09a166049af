/* Analyses against examples computed by hand, and deletion against leaving the token out. */
#include "test.h"

#include "iwp/analysis.h"

TEST(statistics) {
    iwp_err err = {0};
    double rho, part, x;
    const double a[] = {1, 2, 3, 4, 5}, b[] = {5, 6, 7, 8, 7}, down[] = {5, 4, 3, 2, 1},
                 flat[] = {2, 2, 2, 2, 2};
    CHECK_INT(iwp_analysis_spearman(a, b, 5, &rho, &err), 0);
    CHECK_NEAR(rho, 0.8207826816681233, 1e-12); /* ranks 1 2 3.5 5 3.5 */
    iwp_analysis_spearman(a, down, 5, &rho, &err);
    CHECK_NEAR(rho, -1, 1e-12);
    iwp_analysis_spearman(a, flat, 5, &rho, &err);
    CHECK(rho != rho);
    iwp_analysis_spearman(a, b, 1, &rho, &err);
    CHECK(rho != rho);
    const double bad[] = {1, NAN};
    CHECK_INT(iwp_analysis_spearman(a, bad, 2, &rho, &err), IWP_EINVAL);
    CHECK_INT(iwp_analysis_overlap(a, b, 5, 2, &part, &err), 0);
    CHECK_NEAR(part, 0.5, 0); /* {4,3} and {3,2}: the tie goes to the lower index */
    iwp_analysis_overlap(a, down, 5, 5, &part, &err);
    CHECK_NEAR(part, 1, 0);
    CHECK_INT(iwp_analysis_overlap(a, b, 5, 6, &part, &err), IWP_EINVAL);
    const int32_t s[] = {1, 3, 5, 7}, t[] = {3, 4, 5};
    CHECK_NEAR(iwp_analysis_iou(s, 4, t, 3), 2.0 / 5, 1e-15);
    CHECK_NEAR(iwp_analysis_iou(s, 4, s, 4), 1, 0);
    CHECK_NEAR(iwp_analysis_iou(s, 0, t, 3), 0, 0);
    CHECK_NEAR(iwp_analysis_iou(s, 0, t, 0), 1, 0);
    const double y[] = {4, 1, 3, 2};
    const double want[][2] = {{0, 1}, {50, 2.5}, {95, 3.85}, {100, 4}};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(iwp_analysis_percentile(y, 4, want[i][0], &x, &err), 0);
        CHECK_NEAR(x, want[i][1], 1e-12);
    }
    CHECK_INT(iwp_analysis_percentile(y, 4, 101, &x, &err), IWP_EINVAL);
}

/* Two keys with weights 3/4 and 1/4, values 1 and 5: o = 2; without the first 5, without the second 1. */
TEST(deletion_by_hand) {
    const float l3 = 1.0986122886681098f, q[] = {1}, k[] = {l3, 0}, v[] = {1, 5};
    struct iwp_array ka = iwp_array_f32(k, 2, 1, 1), va = iwp_array_f32(v, 2, 1, 1);
    const int32_t row[] = {0, 1};
    double effect[2], w[2];
    iwp_err err = {0};
    CHECK_INT(iwp_analysis_deletion(q, 1, &ka, &va, row, 2, effect, w, &err), 0);
    CHECK_NEAR(w[0], 0.75, 1e-7);
    CHECK_NEAR(effect[0], 3, 1e-6);
    CHECK_NEAR(effect[1], 1, 1e-6);
    /* saturated: w rounds to 1, the effect is still |v - the others| */
    const float big[] = {500, 0};
    ka = iwp_array_f32(big, 2, 1, 1);
    CHECK_INT(iwp_analysis_deletion(q, 1, &ka, &va, row, 2, effect, w, &err), 0);
    CHECK(w[0] == 1);
    CHECK_NEAR(effect[0], 4, 1e-12);
    CHECK(effect[1] > 0 && effect[1] < 1e-200);
    const int32_t out[] = {2};
    CHECK_INT(iwp_analysis_deletion(q, 1, &ka, &va, out, 1, effect, w, &err), IWP_EINVAL);
}

TEST(deletion_is_leaving_out) {
    enum { S = 20, H = 4, G = 2, D = 8 };
    uint64_t seed = 8;
    static float q[H * D], k[S * G * D], v[S * G * D];
    for (int i = 0; i < H * D; i++) q[i] = 2 * test_normal(&seed);
    for (int i = 0; i < S * G * D; i++) k[i] = 2 * test_normal(&seed), v[i] = test_normal(&seed);
    struct iwp_array ka = iwp_array_f32(k, S, G, D), va = iwp_array_f32(v, S, G, D);
    int32_t row[S];
    double effect[H * S], w[H * S];
    iwp_err err;
    for (int i = 0; i < S; i++) row[i] = i;
    CHECK_INT(iwp_analysis_deletion(q, H, &ka, &va, row, S, effect, w, &err), 0);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < S; i++) {
            double o[2][D] = {{0}}, z[2] = {0}, d2 = 0;
            for (int s = 0; s < S; s++) {
                double x = 0;
                for (int t = 0; t < D; t++)
                    x += (double)q[h * D + t] * (double)k[(s * G + h / 2) * D + t];
                for (int c = 0; c < (s == i ? 1 : 2); c++) {
                    z[c] += exp(x / sqrt(D));
                    for (int t = 0; t < D; t++)
                        o[c][t] += exp(x / sqrt(D)) * (double)v[(s * G + h / 2) * D + t];
                }
            }
            for (int t = 0; t < D; t++) d2 += pow(o[0][t] / z[0] - o[1][t] / z[1], 2);
            CHECK_NEAR(effect[h * S + i], sqrt(d2), 1e-10);
            CHECK_NEAR(w[h * S + i], 1 - z[1] / z[0], 1e-10);
        }
}

/* d = 1, keys 0: every kernel value is 1, so W is the sum of the values. */
TEST(implicit_weight_by_hand) {
    const float k[] = {0, 0, 0}, v[] = {1, 2, -1};
    struct iwp_array ka = iwp_array_f32(k, 3, 1, 1), va = iwp_array_f32(v, 3, 1, 1);
    const int32_t row[] = {0, 1, 2};
    const uint8_t kept[] = {0, 1, 0};
    struct iwp_analysis_weight w;
    iwp_err err = {0};
    CHECK_INT(iwp_analysis_implicit_weight(&ka, &va, 0, row, 3, kept, &w, &err), 0);
    CHECK_NEAR(w.log_norm2, log(4), 1e-12);
    CHECK_NEAR(w.log_norm2_kept, log(4), 1e-12);
    CHECK(w.log_norm2_removed < -30); /* 1 and -1 cancel */
    CHECK_NEAR(w.cosine, 1, 1e-12);
    /* kernel values far beyond exp's range: |W|² = e^2500 + 2·2·e^2000... stays a logarithm */
    const float big[] = {50, 40};
    ka = iwp_array_f32(big, 2, 1, 1);
    va = iwp_array_f32(v, 2, 1, 1);
    const uint8_t first[] = {1, 0};
    CHECK_INT(iwp_analysis_implicit_weight(&ka, &va, 0, row, 2, first, &w, &err), 0);
    CHECK_NEAR(w.log_norm2, 2500, 1e-9);
    CHECK_NEAR(w.log_norm2_kept, 2500, 1e-9);
    CHECK_NEAR(w.log_norm2_removed, 1600 + log(4), 1e-9);
    CHECK_NEAR(w.cosine, 1, 1e-12);
    CHECK_INT(iwp_analysis_implicit_weight(&ka, &va, 1, row, 2, first, &w, &err), IWP_EINVAL);
}

/* All sets at once give what each gives alone. */
TEST(implicit_weights_together) {
    enum { N = 23, HEADS = 2, DIM = 5, SETS = 4 };
    uint64_t seed = 11;
    float k[N * HEADS * DIM], v[N * HEADS * DIM];
    for (int i = 0; i < N * HEADS * DIM; i++)
        k[i] = 2 * test_normal(&seed), v[i] = test_normal(&seed);
    for (int t = 0; t < DIM; t++) v[(3 * HEADS + 1) * DIM + t] = 0; /* an update that is none */
    struct iwp_array ka = iwp_array_f32(k, N, HEADS, DIM), va = iwp_array_f32(v, N, HEADS, DIM);
    int32_t row[N - 2];
    uint8_t mask[SETS][N - 2];
    const uint8_t *kept[SETS];
    for (int i = 0; i < N - 2; i++) {
        row[i] = i + 2;
        mask[0][i] = 1;
        mask[1][i] = 0;
        mask[2][i] = i % 3 == 0;
        mask[3][i] = test_uniform(&seed) < 0.5;
    }
    for (int m = 0; m < SETS; m++) kept[m] = mask[m];
    for (int h = 0; h < HEADS; h++) {
        struct iwp_analysis_weight all[SETS], one;
        iwp_err err = {0};
        CHECK_INT(iwp_analysis_implicit_weights(&ka, &va, h, row, N - 2, kept, SETS, all, &err), 0);
        for (int m = 0; m < SETS; m++) {
            CHECK_INT(iwp_analysis_implicit_weight(&ka, &va, h, row, N - 2, kept[m], &one, &err),
                      0);
            CHECK_NEAR(all[m].log_norm2, one.log_norm2, 1e-9);
            CHECK(all[m].log_norm2_kept == one.log_norm2_kept ||
                  fabs(all[m].log_norm2_kept - one.log_norm2_kept) < 1e-9);
            CHECK(all[m].log_norm2_removed == one.log_norm2_removed ||
                  fabs(all[m].log_norm2_removed - one.log_norm2_removed) < 1e-9);
            CHECK_NEAR(all[m].cosine, one.cosine, 1e-9);
        }
        CHECK_NEAR(all[0].cosine, 1, 1e-12);
    }
    iwp_err err = {0};
    struct iwp_analysis_weight none;
    CHECK_INT(iwp_analysis_implicit_weights(&ka, &va, 2, row, 2, kept, 1, &none, &err), IWP_EINVAL);
}

TEST(similarity) {
    /* one head of width 1: keys 0, 2, 0; values 1, -1, 0 */
    float kk[] = {0, 2, 0}, vv[] = {1, -1, 0};
    struct iwp_array k = iwp_array_f32(kk, 3, 1, 1), v = iwp_array_f32(vv, 3, 1, 1);
    int32_t row[] = {0, 1, 2}, bad[] = {0, 3};
    double rbf[9], cos_v[9], dup[9];
    iwp_err err;
    CHECK_INT(iwp_analysis_similarity(&k, &v, row, 3, rbf, cos_v, dup, &err), 0);
    CHECK_NEAR(rbf[1], exp(-2), 1e-15);
    CHECK_NEAR(cos_v[1], -1, 0);
    CHECK_NEAR(dup[1], exp(-4), 1e-15);
    CHECK_NEAR(dup[3], dup[1], 0);
    CHECK_NEAR(dup[0], 1, 0);
    CHECK_NEAR(rbf[2], 1, 0);
    CHECK_NEAR(dup[2], 0, 0); /* a zero value is like nothing */
    CHECK(iwp_analysis_similarity(&k, &v, bad, 2, NULL, NULL, dup, &err) < 0);
}

TEST(miou) {
    int32_t a[] = {0, 1, 2}, b[] = {1, 2, 3}, c[] = {7};
    const int32_t *set[] = {a, b, c};
    int32_t n[] = {3, 3, 1};
    double pairs[9];
    CHECK_NEAR(iwp_analysis_miou(set, n, 3, pairs), (0.5 + 0 + 0) / 3, 1e-15);
    CHECK_NEAR(pairs[1], 0.5, 0);
    CHECK_NEAR(pairs[0], 1, 0);
    CHECK_NEAR(pairs[5], 0, 0);
    CHECK_NEAR(iwp_analysis_miou(set, n, 1, NULL), 1, 0);
}

int main(void) {
    test_implicit_weights_together();
    test_similarity();
    test_miou();
    test_statistics();
    test_deletion_by_hand();
    test_deletion_is_leaving_out();
    test_implicit_weight_by_hand();
    return test_done();
}
