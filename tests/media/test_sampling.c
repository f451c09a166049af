/* Choices of frames: equal to what NumPy and torch make (tests/media/make_sampling.py). */
#include "media/sampling.h"

#include "media_test.h"

enum { MAX = 1024 };

static void check_linspace(FILE *f, const char *kind) {
    int32_t index[MAX], total, n;
    unsigned want, h = 0;
    CHECK(fscanf(f, "%d %d %u", &total, &n, &want) == 3 && n >= 1 && n <= MAX);
    if (strcmp(kind, "floor") == 0)
        iwp_sampling_floor(total, n, index);
    else
        iwp_sampling_round(total, n, index);
    for (int32_t i = 0; i < n; i++) {
        h = h * 1000003u + (unsigned)index[i];
        CHECK(index[i] >= (i ? index[i - 1] : 0) && index[i] < total);
    }
    CHECK_MSG(h == want, "%s of %d from %d", kind, n, total);
    for (int32_t i = 0, x; n <= 8 && i < n; i++) {
        CHECK(fscanf(f, "%d", &x) == 1);
        CHECK_MSG(index[i] == x, "%s %d from %d: frame %d is %d, want %d", kind, n, total, i,
                  index[i], x);
    }
}

static void check_count(FILE *f) {
    struct iwp_sampling s;
    int32_t total, want;
    double rate;
    CHECK(fscanf(f, "%d %lf %lf %d %d %d", &total, &rate, &s.fps, &s.frames, &s.factor, &want) ==
          6);
    const int32_t n = iwp_sampling_count(&s, total, rate);
    CHECK_MSG(n == want, "%d frames at %g, fps %g frames %d factor %d: %d, want %d", total, rate,
              s.fps, s.frames, s.factor, n, want);
    CHECK(n >= 1 && n <= 4096);
}

static void test_tables(void) {
    FILE *f = fopen(DATA "sampling.txt", "r");
    CHECK(f != NULL);
    if (!f) return;
    char kind[16];
    int n = 0;
    for (; fscanf(f, "%15s", kind) == 1; n++) {
        if (strcmp(kind, "count") == 0)
            check_count(f);
        else
            check_linspace(f, kind);
    }
    fclose(f);
    CHECK(n > 1000);
}

int main(void) {
    test_tables();
    return test_done();
}
