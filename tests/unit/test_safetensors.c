/* safetensors: one test per refusal (the message must name the tensor), reading, writing. */
#include "io/safetensors.h"

#include <math.h>
#include <unistd.h>

#include "base/half.h"
#include "test.h"

/* Opens `header` followed by n body bytes; returns the status, message in e. */
static int open_text(const char *header, size_t n_body, iwp_st **st, iwp_err *e) {
    static uint8_t buf[4096];
    size_t len = strlen(header);
    uint64_t len64 = len;
    memcpy(buf, &len64, 8);
    memcpy(buf + 8, header, len);
    memset(buf + 8 + len, 0, n_body);
    return iwp_st_open_memory(st, buf, 8 + len + n_body, "t.st", e);
}

static void refused(const char *header, size_t n_body, const char *want) {
    iwp_st *st = NULL;
    iwp_err e = {0};
    int rc = open_text(header, n_body, &st, &e);
    CHECK_MSG(rc == IWP_EFORMAT, "%s: %d", header, rc);
    CHECK(st == NULL);
    CHECK_MSG(strncmp(e.msg, "t.st: ", 6) == 0 && strstr(e.msg, want), "'%s' does not say '%s'",
              e.msg, want);
}

#define T(dtype, shape, offs)                                                                      \
    "{\"abc\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offs "}}"

TEST(refusals) {
    refused(T("F32", "[2]", "[0,9]"), 8, "'abc': data ends at byte 9 of 8");
    refused(T("F32", "[2]", "[0,4]"), 8, "'abc': F32 of this shape takes 8 bytes");
    refused(T("F32", "[3]", "[0,8]"), 8, "takes 12 bytes, data_offsets give 8");
    refused(T("F32", "[2]", "[8,0]"), 8, "'abc': data_offsets run backwards");
    refused(T("F32", "[2]", "[-8,0]"), 8, "'abc': data_offsets must be two whole");
    refused(T("F32", "[2]", "[0]"), 8, "'abc': data_offsets must be two whole");
    refused(T("F32", "[2]", "[0,8,8]"), 8, "'abc': data_offsets must be two numbers");
    refused(T("F32", "[2]", "[0,8.5]"), 8, "'abc': data_offsets");
    refused(T("F32", "[2]", "\"x\""), 8, "'abc': data_offsets");
    refused(T("Z9", "[2]", "[0,8]"), 8, "'abc': unknown dtype 'Z9'");
    refused(T("F32", "[-1]", "[0,8]"), 8, "'abc': dimension 0");
    refused(T("F32", "[1099511627776,1099511627776,4]", "[0,8]"), 8, "'abc': shape too large");
    refused(T("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "'abc': more than 8");
    refused(T("F32", "{}", "[0,8]"), 8, "'abc': no shape");
    refused(T("F32", "[2]", "[0,8]"), 12, "4 bytes after the last tensor");
    refused(T("F32", "[2]", "[4,12]"), 12, "unused bytes before tensor 'abc'");
    refused("{\"abc\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'abc': no dtype");
    refused("{\"abc\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
            "'abc': unknown field 'x'");
    refused("{\"abc\":[]}", 0, "'abc': entry is not an object");
    refused("{\"a\\nb\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
            "control bytes");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}",
            12, "tensors 'a' and 'b' overlap");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
            "\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
            16, "key 'a' appears twice");
    refused("{\"__metadata__\":[]}", 0, "__metadata__");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ 'a' is not text");
    refused("{\"a\":[[[[[]]]]]}", 0, "nested too deeply");
    refused("{\"a\":", 0, "unexpected end");
    refused("[]", 0, "not a JSON object");
    refused("{\"\xff\":1}", 0, "not UTF-8");
}

TEST(lengths) {
    iwp_st *st;
    iwp_err e;
    uint8_t b[64] = {0};
    CHECK_INT(iwp_st_open_memory(&st, b, 0, "x", &e), IWP_EFORMAT);
    CHECK_INT(iwp_st_open_memory(&st, b, 7, "x", &e), IWP_EFORMAT);
    CHECK(strstr(e.msg, "only 7 bytes") != NULL);
    uint64_t n = (uint64_t)1 << 63;
    memcpy(b, &n, 8);
    CHECK_INT(iwp_st_open_memory(&st, b, 64, "x", &e), IWP_EFORMAT);
    CHECK(strstr(e.msg, "the limit is") != NULL);
    n = 57;
    memcpy(b, &n, 8);
    CHECK_INT(iwp_st_open_memory(&st, b, 64, "x", &e), IWP_EFORMAT);
    CHECK(strstr(e.msg, "truncated") != NULL);
    n = 0;
    memcpy(b, &n, 8);
    CHECK_INT(iwp_st_open_memory(&st, b, 64, "x", &e), IWP_EFORMAT);
    CHECK_INT(iwp_st_open(&st, "/nonexistent/file", &e), IWP_EIO);
    CHECK(strstr(e.msg, "/nonexistent/file") != NULL);
    CHECK_INT(iwp_st_open(&st, "/", &e), IWP_EIO);
    /* 200000 open brackets are refused by the scan, not by the stack */
    size_t deep = 200000;
    uint8_t *d = malloc(8 + deep);
    memcpy(d, &(uint64_t){deep}, 8);
    memset(d + 8, '[', deep);
    memcpy(d + 8, "{\"a\":", 5);
    CHECK_INT(iwp_st_open_memory(&st, d, 8 + deep, "x", &e), IWP_EFORMAT);
    CHECK(strstr(e.msg, "nested too deeply") != NULL);
    free(d);
}

TEST(no_tensors) {
    iwp_st *st;
    iwp_err e;
    CHECK_INT(open_text("{\"__metadata__\":{\"format\":\"pt\"}}  ", 0, &st, &e), 0);
    CHECK_INT(iwp_st_count(st), 0);
    CHECK(iwp_st_at(st, 0) == NULL && iwp_st_find(st, "a") == NULL);
    CHECK_STR(iwp_st_metadata(st, "format"), "pt");
    CHECK(iwp_st_metadata(st, "none") == NULL);
    iwp_st_close(st);
    iwp_st_close(NULL);
}

TEST(round_trip) {
    char dir[] = "/tmp/iwp-test-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/f.safetensors", dir);
    struct iwp_st_writer w;
    iwp_err e = {0};
    int64_t s22[2] = {2, 2}, s3[1] = {3}, s0[2] = {0, 5};
    float f32[4] = {1, -2.5f, 1e-30f, 65504};
    uint16_t f16[3] = {iwp_f32_to_f16(0.5f), iwp_f32_to_f16(-3), 1};
    uint16_t bf[3] = {iwp_f32_to_bf16(0.5f), iwp_f32_to_bf16(-3), 0x7f80};
    double f64 = 0.25;
    int8_t i8[3] = {-1, 0, 127};
    int32_t i32[3] = {-5, INT32_MIN, 7};
    uint8_t u8[3] = {0, 1, 255};
    CHECK_INT(iwp_st_writer_open(&w, path, &e), 0);
    CHECK_INT(iwp_st_writer_add(&w, "odd", IWP_ST_U8, 1, s3, &e), 0); /* unaligns what follows */
    CHECK_INT(iwp_st_writer_add(&w, "f32", IWP_ST_F32, 2, s22, &e), 0);
    CHECK_INT(iwp_st_writer_add(&w, "f16", IWP_ST_F16, 1, s3, &e), 0);
    CHECK_INT(iwp_st_writer_add(&w, "bf16", IWP_ST_BF16, 1, s3, &e), 0);
    CHECK_INT(iwp_st_writer_add(&w, "f64", IWP_ST_F64, 0, NULL, &e), 0);
    CHECK_INT(iwp_st_writer_add(&w, "i8 \"q\"", IWP_ST_I8, 1, s3, &e), 0);
    CHECK_INT(iwp_st_writer_add(&w, "i32", IWP_ST_I32, 1, s3, &e), 0);
    CHECK_INT(iwp_st_writer_add(&w, "empty", IWP_ST_F32, 2, s0, &e), 0);
    CHECK_INT(iwp_st_writer_add(&w, "i32", IWP_ST_I32, 1, s3, &e), IWP_EINVAL);
    CHECK_INT(iwp_st_writer_add(&w, "a\nb", IWP_ST_I32, 1, s3, &e), IWP_EINVAL);
    CHECK_INT(iwp_st_writer_begin(&w, &e), 0);
    CHECK_INT(iwp_st_writer_write(&w, u8, 3, &e), 0);
    CHECK_INT(iwp_st_writer_write(&w, f32, 6, &e), 0); /* in pieces */
    CHECK_INT(iwp_st_writer_write(&w, (char *)f32 + 6, 10, &e), 0);
    CHECK_INT(iwp_st_writer_write(&w, f16, 6, &e), 0);
    CHECK_INT(iwp_st_writer_write(&w, bf, 6, &e), 0);
    CHECK_INT(iwp_st_writer_write(&w, &f64, 8, &e), 0);
    CHECK_INT(iwp_st_writer_write(&w, i8, 3, &e), 0);
    CHECK_INT(iwp_st_writer_commit(&w, &e), IWP_EINTERNAL); /* too early */
    CHECK_INT(iwp_st_writer_write(&w, i32, 12, &e), 0);
    CHECK_INT(iwp_st_writer_write(&w, i32, 1, &e), IWP_EINTERNAL); /* too much */
    CHECK_INT(iwp_st_writer_commit(&w, &e), 0);
    iwp_st_writer_abort(&w); /* after a commit: nothing happens */

    iwp_st *st = NULL;
    CHECK_INT(iwp_st_open(&st, path, &e), 0);
    CHECK_INT(iwp_st_count(st), 8);
    CHECK_STR(iwp_st_at(st, 0)->name, "odd");
    CHECK_STR(iwp_st_path(st), path);
    float got[4];
    int64_t gi[3];
    const struct iwp_st_tensor *t = iwp_st_find(st, "f32");
    CHECK(t && t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 2 && t->n == 4 &&
          !iwp_st_aligned(t));
    char text[64];
    iwp_st_describe(t, text, sizeof text);
    CHECK_STR(text, "F32 [2, 2]");
    CHECK_INT(iwp_st_read_f32(t, 0, 4, got, &e), 0);
    CHECK(memcmp(got, f32, sizeof f32) == 0);
    CHECK_INT(iwp_st_read_f32(t, 1, 3, got, &e), 0);
    CHECK(got[0] == -2.5f);
    CHECK_INT(iwp_st_read_f32(t, 1, 4, got, &e), IWP_EINVAL);
    CHECK_INT(iwp_st_read_i64(t, 0, 1, gi, &e), IWP_EINVAL);
    CHECK(strstr(e.msg, "'f32' is F32") != NULL);
    CHECK_INT(iwp_st_read_f32(iwp_st_find(st, "f16"), 0, 3, got, &e), 0);
    CHECK(got[0] == 0.5f && got[1] == -3 && got[2] == 0x1p-24f);
    CHECK_INT(iwp_st_read_f32(iwp_st_find(st, "bf16"), 0, 3, got, &e), 0);
    CHECK(got[0] == 0.5f && got[1] == -3 && isinf(got[2]));
    CHECK_INT(iwp_st_read_f32(iwp_st_find(st, "f64"), 0, 1, got, &e), 0);
    CHECK(got[0] == 0.25f);
    CHECK_INT(iwp_st_read_i64(iwp_st_find(st, "i8 \"q\""), 0, 3, gi, &e), 0);
    CHECK(gi[0] == -1 && gi[1] == 0 && gi[2] == 127);
    CHECK_INT(iwp_st_read_i64(iwp_st_find(st, "i32"), 0, 3, gi, &e), 0);
    CHECK(gi[0] == -5 && gi[1] == INT32_MIN && gi[2] == 7);
    CHECK_INT(iwp_st_read_i64(iwp_st_find(st, "odd"), 0, 3, gi, &e), 0);
    CHECK(gi[2] == 255);
    CHECK_INT(iwp_st_read_f32(iwp_st_find(st, "odd"), 0, 3, got, &e), IWP_EINVAL);
    CHECK_INT(iwp_st_find(st, "empty")->n, 0);
    iwp_st_close(st);
    unlink(path);
    rmdir(dir);
}

int main(void) {
    test_refusals();
    test_lengths();
    test_no_tensors();
    test_round_trip();
    return test_done();
}
