/* JSON: what the scan refuses and where, twin keys, numbers that read back. */
#include "base/json.h"

#include <math.h>

#include "test.h"

static int check(const char *s, int32_t depth) {
    iwp_err e;
    struct iwp_json_limits lim = {.depth = depth};
    return iwp_json_check(s, strlen(s), lim, &e);
}

TEST(accepts) {
    static const char *const good[] = {"{}",
                                       "[]",
                                       " [ ] ",
                                       "0",
                                       "-0.5e-3",
                                       "\"\\u00e9\\ud83d\\ude00\"",
                                       "[1,2,[3],{}]",
                                       "{\"a\":{\"b\":[true,false,null]},\"c\":\"\xc3\xa9\"}",
                                       "{\"a\" : 1 , \"b\" : [ ] }\n"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_MSG(check(good[i], 0) == 0, "%s", good[i]);
}

TEST(refuses) {
    static const struct {
        const char *text;
        int pos;
    } bad[] = {{"", 0},
               {"{", 1},
               {"[1,]", 3},
               {"[1 2]", 3},
               {"{\"a\"}", 4},
               {"{\"a\":1,}", 7},
               {"{a:1}", 1},
               {"01", 1},
               {"1.", 2},
               {"1e", 2},
               {"-", 1},
               {"nul", 0},
               {"[]x", 2},
               {"\"\n\"", 1},
               {"\"\\x\"", 3},
               {"\"\\u12\"", 3},
               {"\"\\u0000\"", 7},
               {"\"\xff\"", 1},
               {"\"\xc0\x80\"", 1},
               {"\"\xed\xa0\x80\"", 1},
               {"\"\\ud800\"", 7},
               {"\"\\udc00\"", 7},
               {"\"abc", 4},
               {"[}", 1},
               {"'a'", 0},
               {"[NaN]", 1},
               {"[1]]", 3},
               {"{\"a\":1]", 6}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        iwp_err e = {0};
        struct iwp_json_limits lim = {0};
        int rc = iwp_json_check(bad[i].text, strlen(bad[i].text), lim, &e);
        CHECK_MSG(rc == IWP_EFORMAT, "%s", bad[i].text);
        CHECK_MSG(e.pos == bad[i].pos, "%s: position %d, want %d", bad[i].text, (int)e.pos,
                  bad[i].pos);
    }
}

TEST(limits) {
    CHECK_INT(check("[[[]]]", 3), 0);
    CHECK_INT(check("[[[[]]]]", 3), IWP_EFORMAT);
    size_t n = 200000;
    char *deep = malloc(n);
    memset(deep, '[', n);
    iwp_err e;
    struct iwp_json_limits lim = {.depth = 1000000}; /* capped */
    CHECK_INT(iwp_json_check(deep, n, lim, &e), IWP_EFORMAT);
    CHECK(strstr(e.msg, "nested too deeply") != NULL);
    free(deep);
    lim.depth = 0;
    lim.values = 3;
    CHECK_INT(iwp_json_check("[1,2]", 5, lim, &e), 0);
    CHECK_INT(iwp_json_check("[1,2,3]", 7, lim, &e), IWP_EFORMAT);
}

TEST(parse) {
    iwp_err e;
    cJSON *v = NULL;
    struct iwp_json_limits lim = {0};
    const char *list = "[3, 2.5, 1e300, -7, \"3\"]";
    const char *twin = "{\"x\":[{\"a\":1,\"b\":2,\"\\u0061\":3}]}";
    CHECK_INT(iwp_json_parse(twin, strlen(twin), lim, &v, &e), IWP_EFORMAT);
    CHECK_STR(e.msg, "JSON: key 'a' appears twice");
    CHECK(v == NULL);
    CHECK_INT(iwp_json_parse(list, strlen(list), lim, &v, &e), 0);
    int64_t i = 0;
    CHECK(iwp_json_get_int(cJSON_GetArrayItem(v, 0), 0, 9, &i) && i == 3);
    CHECK(!iwp_json_get_int(cJSON_GetArrayItem(v, 0), 4, 9, &i));
    CHECK(!iwp_json_get_int(cJSON_GetArrayItem(v, 1), 0, 9, &i));
    CHECK(!iwp_json_get_int(cJSON_GetArrayItem(v, 2), 0, INT64_MAX, &i));
    CHECK(iwp_json_get_int(cJSON_GetArrayItem(v, 3), -9, 9, &i) && i == -7);
    CHECK(!iwp_json_get_int(cJSON_GetArrayItem(v, 4), 0, 9, &i));
    cJSON_Delete(v);
}

TEST(numbers) {
    uint64_t s = 5;
    char t[32];
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)test_rand(&s);
        uint64_t wide = test_rand(&s);
        float f;
        double d;
        memcpy(&f, &bits, 4);
        memcpy(&d, &wide, 8);
        iwp_json_format_f32(t, f);
        CHECK(isfinite(f) ? strtof(t, NULL) == f : strcmp(t, "null") == 0);
        iwp_json_format_f64(t, d);
        CHECK(isfinite(d) ? strtod(t, NULL) == d : strcmp(t, "null") == 0);
    }
    iwp_json_format_f64(t, 0.1);
    CHECK_STR(t, "0.1");
}

TEST(writer) {
    struct iwp_json_out w;
    for (int pretty = 0; pretty < 2; pretty++) {
        iwp_json_init(&w, pretty);
        iwp_json_open_object(&w, NULL);
        iwp_json_put_string(&w, "s", "a\"\\\n\x01\xff");
        iwp_json_put_int(&w, "i", INT64_MIN);
        iwp_json_open_array(&w, "e");
        iwp_json_close_array(&w);
        iwp_json_open_array(&w, "a");
        iwp_json_put_f32(&w, NULL, 0.1f);
        iwp_json_put_f64(&w, NULL, NAN);
        iwp_json_put_bool(&w, NULL, true);
        iwp_json_put_ms(&w, NULL, 1.23456);
        iwp_json_open_object(&w, NULL);
        iwp_json_close_object(&w);
        iwp_json_close_array(&w);
        iwp_json_put_string(&w, "n", NULL);
        iwp_json_close_object(&w);
        CHECK(!w.failed);
        if (!pretty)
            CHECK_STR(w.text,
                      "{\"s\":\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\",\"i\":-9223372036854775808,"
                      "\"e\":[],\"a\":[0.1,null,true,1.235,{}],\"n\":null}");
        CHECK_INT(check(w.text, 0), 0);
        iwp_json_free(&w);
    }
}

int main(void) {
    test_accepts();
    test_refuses();
    test_limits();
    test_parse();
    test_numbers();
    test_writer();
    return test_done();
}
