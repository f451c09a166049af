/* Error values: every status has a text, messages are one line and never overflow. */
#include "base/err.h"
#include "test.h"

TEST(texts) {
#define X(name, value, text) CHECK_STR(iwp_status_text(IWP_##name), text);
    IWP_STATUS_MAP(X)
#undef X
    CHECK_STR(iwp_status_text(77), "unknown error");
}

TEST(messages) {
    iwp_err e;
    CHECK_INT(iwp_err_set(&e, IWP_EINVAL, "a\nb %d", 3), IWP_EINVAL);
    CHECK_STR(e.msg, "a?b 3");
    CHECK_INT(e.pos, -1);
    CHECK_INT(iwp_err_set_at(&e, IWP_EFORMAT, 42, "bad"), IWP_EFORMAT);
    CHECK_INT(e.pos, 42);
    CHECK_INT(iwp_err_prefix(&e, e.code, "file %s", "x"), IWP_EFORMAT);
    CHECK_STR(e.msg, "file x: bad");
    CHECK_INT(iwp_err_set(NULL, IWP_EIO, "nobody listens"), IWP_EIO);
    char longer[2000];
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    iwp_err_set(&e, IWP_EINVAL, "%s", longer);
    CHECK_INT(strlen(e.msg), sizeof e.msg - 1);
    iwp_err_prefix(&e, IWP_EINVAL, "%s", longer);
    CHECK_INT(strlen(e.msg), sizeof e.msg - 1);
}

int main(void) {
    test_texts();
    test_messages();
    return test_done();
}
