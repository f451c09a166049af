/* Charts: every panel takes the room it says, strange names and numbers stay inside XML. */
#include "view/chart.h"

#include <unistd.h>

#include "base/file.h"
#include "test.h"

static char *written(struct iwp_chart *c, size_t *n) {
    char path[64];
    iwp_err err = {0};
    uint8_t *data = NULL;
    snprintf(path, sizeof path, "/tmp/iwp-test-chart-%ld.svg", (long)getpid());
    CHECK_MSG(iwp_chart_write(c, path, &err) == 0, "%s", err.msg);
    CHECK(iwp_file_read(path, 1 << 20, &data, n, &err) == 0);
    unlink(path);
    return (char *)data;
}

static int count(const char *s, const char *what) {
    int n = 0;
    for (; (s = strstr(s, what)); s += strlen(what)) n++;
    return n;
}

TEST(heat) {
    struct iwp_chart c;
    const double v[6] = {0, 0.5, 1, NAN, INFINITY, -1};
    const char *const rows[2] = {"a<b>&\"c", "second"}, *const cols[3] = {"x", "y", "a long name"};
    iwp_chart_init(&c, "T & <t>");
    const struct iwp_chart_heat h = {.title = "map",
                                     .rows = 2,
                                     .cols = 3,
                                     .value = v,
                                     .row_name = rows,
                                     .col_name = cols,
                                     .lo = 0,
                                     .hi = 1,
                                     .format = "%.2f"};
    const struct iwp_chart_box b = iwp_chart_heat(&c, 10, 60, &h);
    CHECK(b.x == 10 && b.y == 60 && b.w > 3 * 46 && b.h > 2 * 24);
    CHECK(c.width >= b.x + b.w - 1 && c.height >= b.y + b.h - 1);
    size_t n;
    char *s = written(&c, &n);
    CHECK(strstr(s, "a&lt;b&gt;&amp;&quot;c") != NULL);
    CHECK(strstr(s, "<title>T &amp; &lt;t&gt;</title>") != NULL);
    CHECK(strstr(s, "nan") == NULL && strstr(s, "inf") == NULL);
    CHECK_INT(count(s, ">0.50<"), 1);
    CHECK_INT(count(s, ">1.00<"), 1);
    CHECK_INT(count(s, ">-1.00<"), 1);
    CHECK_INT(count(s, "#f0f2f5"), 2); /* cells without a number */
    CHECK_INT(count(s, "<text"), count(s, "</text>"));
    free(s);
    iwp_chart_free(&c);
    /* Without numbers: equal neighbours are one piece. */
    const double same[6] = {0, 0, 0, 1, 1, NAN};
    struct iwp_chart_heat plain = h;
    plain.value = same;
    plain.format = NULL;
    iwp_chart_init(&c, "field");
    iwp_chart_heat(&c, 10, 60, &plain);
    s = written(&c, &n);
    CHECK_INT(count(s, "M0 0h3v1h-3z"), 1);
    CHECK_INT(count(s, "M0 1h2v1h-2z"), 1);
    CHECK_INT(count(s, "M2 1h1v1h-1z"), 1);
    CHECK_INT(count(s, "<path"), 3);
    free(s);
    iwp_chart_free(&c);
}

TEST(bars) {
    struct iwp_chart c;
    const struct iwp_chart_bar bar[] = {
        {.name = "group", .value = NAN, .mark = NAN},
        {.name = "tiny", .note = "1e-12", .value = 1e-12, .mark = 1e-9},
        {.name = "zero", .note = "0", .value = 0, .mark = 1e-9},
        {.name = "none", .note = "could not run", .value = NAN, .mark = NAN},
    };
    iwp_chart_init(&c, "bars");
    const struct iwp_chart_bars b = {
        .title = "logarithmic", .bar = bar, .n = 4, .lo = NAN, .hi = NAN, .logarithmic = true};
    const struct iwp_chart_box first = iwp_chart_bars(&c, 0, 60, &b);
    const struct iwp_chart_bar signs[] = {
        {.name = "up", .note = "2", .value = 2, .error = 0.5, .mark = NAN},
        {.name = "down", .note = "-1", .value = -1, .mark = NAN}};
    const struct iwp_chart_bars d = {.title = "signs", .bar = signs, .n = 2, .lo = NAN, .hi = NAN};
    iwp_chart_bars(&c, 0, first.y + first.h, &d);
    size_t n;
    char *s = written(&c, &n);
    CHECK(strstr(s, "1e-12") && strstr(s, "could not run"));
    CHECK(strstr(s, "nan") == NULL && strstr(s, "inf") == NULL && strstr(s, "=\"-") == NULL);
    free(s);
    iwp_chart_free(&c);
}

TEST(lines) {
    struct iwp_chart c;
    const double x[4] = {0, 1, 2, 3}, y[4] = {1, NAN, 3, 2}, flat[4] = {5, 5, 5, 5};
    const struct iwp_chart_series s[2] = {
        {.name = "broken", .x = x, .y = y, .n = 4, .dots = true},
        {.name = "flat", .x = x, .y = flat, .n = 4, .dashed = true, .colour = 1}};
    const struct iwp_chart_lines l = {.title = "t",
                                      .x_axis = "x",
                                      .y_axis = "y",
                                      .series = s,
                                      .n = 2,
                                      .x_lo = NAN,
                                      .x_hi = NAN,
                                      .y_lo = NAN,
                                      .y_hi = NAN};
    iwp_chart_init(&c, "lines");
    iwp_chart_lines(&c, 0, 60, &l);
    size_t n;
    char *text = written(&c, &n);
    CHECK_INT(count(text, "<circle"), 3);
    CHECK_INT(count(text, "<path"), 2);
    const char *path = strstr(text, " d=\"");
    CHECK(path && path[4] == 'M');
    CHECK_INT(path ? count(path, "M") : 0, 3); /* the gap starts a new part */
    CHECK(strstr(text, "nan") == NULL);
    free(text);
    iwp_chart_free(&c);
    iwp_chart_init(&c, "nothing");
    const struct iwp_chart_lines none = {
        .title = "t", .x_lo = NAN, .x_hi = NAN, .y_lo = NAN, .y_hi = NAN};
    iwp_chart_lines(&c, 0, 60, &none);
    text = written(&c, &n);
    CHECK(strstr(text, "nan") == NULL);
    free(text);
    iwp_err err = {0};
    CHECK(iwp_chart_write(&c, "/nonexistent/x.svg", &err) < 0);
    iwp_chart_free(&c);
}

int main(void) {
    test_heat();
    test_bars();
    test_lines();
    return test_done();
}
