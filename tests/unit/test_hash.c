/* Hashes against published values. */
#include "base/hash.h"
#include "iwp/prune.h"

#include <unistd.h>

#include "test.h"

TEST(fnv) {
    CHECK(iwp_fnv64(IWP_FNV64_INIT, "", 0) == 0xcbf29ce484222325u);
    CHECK(iwp_fnv64(IWP_FNV64_INIT, "a", 1) == 0xaf63dc4c8601ec8cu);
    CHECK(iwp_fnv64(IWP_FNV64_INIT, "foobar", 6) == 0x85944171f73967e8u);
}

static void sha(const char *s, size_t n, size_t step, const char *want) {
    struct iwp_sha256 h;
    uint8_t d[32];
    char hex[65];
    iwp_sha256_init(&h);
    for (size_t i = 0; i < n; i += step) iwp_sha256_add(&h, s + i, n - i < step ? n - i : step);
    iwp_sha256_end(&h, d);
    iwp_sha256_hex(d, hex);
    CHECK_STR(hex, want);
}

TEST(sha256) {
    sha("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha("abc", 3, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    sha(two, 56, 7, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char *a = malloc(1000000);
    memset(a, 'a', 1000000);
    for (size_t step = 1000; step <= 1000000; step = step * 3 + 1)
        sha(a, 1000000, step, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    char path[] = "/tmp/iwp-test-XXXXXX", hex[65];
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, a, 1000000) == 1000000);
    close(fd);
    iwp_err e;
    CHECK_INT(iwp_sha256_file(path, hex, &e), 0);
    CHECK_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    unlink(path);
    CHECK_INT(iwp_sha256_file(path, hex, &e), IWP_EIO);
    free(a);
}

int main(void) {
    test_fnv();
    test_sha256();
    return test_done();
}
