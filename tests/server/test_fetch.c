/* Fetching pictures: which addresses are public, and limits against a small server on the loopback, which only
 * these tests allow. */
#include "server/fetch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server/request.h"
#include "test.h"

static bool is_public(const char *text) {
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return iwp_fetch_is_public((const struct sockaddr *)&v4);
    CHECK_MSG(inet_pton(AF_INET6, text, &v6.sin6_addr) == 1, "%s", text);
    return iwp_fetch_is_public((const struct sockaddr *)&v6);
}

TEST(addresses) {
    static const char *const inside[] = {"0.0.0.0",
                                         "0.1.2.3",
                                         "10.0.0.1",
                                         "10.255.255.255",
                                         "100.64.0.1",
                                         "100.100.100.200",
                                         "127.0.0.1",
                                         "127.255.0.1",
                                         "169.254.169.254",
                                         "172.16.0.1",
                                         "172.31.255.255",
                                         "192.0.0.192",
                                         "192.168.0.1",
                                         "198.18.0.1",
                                         "203.0.113.9",
                                         "224.0.0.1",
                                         "240.0.0.1",
                                         "255.255.255.255",
                                         "::",
                                         "::1",
                                         "::127.0.0.1",
                                         "::ffff:10.0.0.1",
                                         "::ffff:169.254.169.254",
                                         "64:ff9b::7f00:1",
                                         "64:ff9b:1::1",
                                         "fe80::1",
                                         "fec0::1",
                                         "fc00::1",
                                         "fd00:ec2::254",
                                         "ff02::1",
                                         "2001:db8::1",
                                         "2001::1",
                                         "2002:7f00:1::",
                                         "2002:a00:1::1",
                                         "100::1",
                                         "3fff::1"};
    static const char *const outside[] = {
        "1.1.1.1",      "8.8.8.8",      "100.63.0.1",     "100.128.0.1",    "126.0.0.1",
        "128.0.0.1",    "172.15.0.1",   "172.32.0.1",     "192.167.0.1",    "223.255.255.1",
        "2606:4700::1", "2a00:1450::1", "::ffff:8.8.8.8", "2002:808:808::1"};
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        CHECK_MSG(!is_public(inside[i]), "%s", inside[i]);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        CHECK_MSG(is_public(outside[i]), "%s", outside[i]);
    const struct sockaddr un = {.sa_family = AF_UNIX};
    CHECK(!iwp_fetch_is_public(&un));
}

/* ---- a web server --------------------------------------------------------------------------------- */

static int listener;
static int port;
static atomic_bool ending;

static void say(int fd, const char *text) {
    if (write(fd, text, strlen(text)) < 0) return;
}

static void nap(int ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static void answer(int fd, const char *request) {
    char text[512];
    if (strstr(request, "GET /ok")) say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    if (strstr(request, "GET /empty")) say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    if (strstr(request, "GET /missing"))
        say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
    if (strstr(request, "GET /told"))
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nx");
    if (strstr(request, "GET /flood")) {
        say(fd, "HTTP/1.1 200 OK\r\n\r\n");
        char block[4096];
        memset(block, 'x', sizeof block);
        for (int i = 0; i < 4096 && write(fd, block, sizeof block) > 0; i++) {
        }
    }
    if (strstr(request, "GET /slow")) {
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n");
        for (int i = 0; i < 40 && !atomic_load(&ending); i++) {
            say(fd, "x");
            nap(100);
        }
    }
    const char *to = strstr(request, "GET /once")     ? "/ok"
                     : strstr(request, "GET /loop")   ? "/loop"
                     : strstr(request, "GET /inside") ? "http://169.254.169.254/latest"
                     : strstr(request, "GET /file")   ? "file:///etc/passwd"
                     : strstr(request, "GET /mapped") ? "http://[::ffff:10.0.0.1]/"
                                                      : NULL;
    if (to) {
        snprintf(text, sizeof text,
                 "HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", to);
        say(fd, text);
    }
}

static void *serve(void *ctx) {
    (void)ctx;
    for (;;) {
        const int fd = accept(listener, NULL, NULL);
        if (fd < 0 || atomic_load(&ending)) {
            if (fd >= 0) close(fd);
            return NULL;
        }
        char request[2048] = "";
        if (read(fd, request, sizeof request - 1) > 0) answer(fd, request);
        close(fd);
    }
}

static bool start(pthread_t *thread) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof a) != 0 ||
        listen(listener, 16) != 0)
        return false;
    getsockname(listener, (struct sockaddr *)&a, &n);
    port = ntohs(a.sin_port);
    return pthread_create(thread, NULL, serve, NULL) == 0;
}

static int get(const struct iwp_fetch *f, const char *path, uint8_t **data, size_t *size,
               iwp_err *err) {
    char url[128];
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", port, path);
    return iwp_fetch_url(f, url, data, size, err);
}

static bool stop_at_once(void *ctx) { return (void)ctx, true; }

TEST(transfers) {
    struct iwp_fetch f = {
        .max_bytes = 1 << 20, .timeout_s = 2, .max_redirects = 3, .allow_loopback = true};
    uint8_t *data;
    size_t size;
    iwp_err err = {0};
    static const char *const good[] = {"/ok", "/once"};
    for (int i = 0; i < 2; i++) {
        CHECK_MSG(get(&f, good[i], &data, &size, &err) == 0, "%s", err.msg);
        CHECK(size == 5 && data && memcmp(data, "hello", 5) == 0);
        free(data);
    }
    static const char *const bad[][2] = {{"/empty", "empty"},    {"/missing", "404"},
                                         {"/told", "MiB"},       {"/flood", "MiB"},
                                         {"/loop", "redirects"}, {"/inside", "private"},
                                         {"/mapped", "private"}, {"/file", "rotocol"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&err, 0, sizeof err);
        CHECK_INT(get(&f, bad[i][0], &data, &size, &err), IWP_EINVAL);
        CHECK(!data && size == 0);
        CHECK_MSG(strstr(err.msg, bad[i][1]) != NULL, "%s: %s", bad[i][0], err.msg);
    }
    static const char *const here[] = {"example.org", "127.0.0.1"}, *const there[] = {
                                                                        "example.org"};
    f.domain = here;
    f.n_domain = 2;
    CHECK_MSG(get(&f, "/once", &data, &size, &err) == 0, "%s", err.msg);
    free(data);
    CHECK_INT(get(&f, "/inside", &data, &size, &err), IWP_EINVAL); /* a redirect out of the list */
    CHECK_MSG(strstr(err.msg, "--allowed-media-domains") != NULL, "%s", err.msg);
    f.domain = there;
    f.n_domain = 1;
    CHECK_INT(get(&f, "/ok", &data, &size, &err), IWP_EINVAL);
    CHECK_MSG(strstr(err.msg, "--allowed-media-domains") != NULL, "%s", err.msg);
    f.n_domain = 0;
    f.cancel = stop_at_once;
    CHECK_INT(get(&f, "/ok", &data, &size, &err), IWP_ECANCELLED);
    f.cancel = NULL;
    f.allow_loopback = false; /* as the program has it */
    CHECK_INT(get(&f, "/ok", &data, &size, &err), IWP_EINVAL);
    CHECK(strstr(err.msg, "private") != NULL);
    setenv("http_proxy", "http://127.0.0.1:9", 1); /* a proxy of the environment is not used */
    f.allow_loopback = true;
    CHECK_INT(get(&f, "/ok", &data, &size, &err), 0);
    free(data);
    unsetenv("http_proxy");
    f.timeout_s = 1; /* last: that connection goes on for a while */
    CHECK_INT(get(&f, "/slow", &data, &size, &err), IWP_EINVAL);
    CHECK_MSG(strstr(err.msg, "within") != NULL, "%s", err.msg);
}

TEST(domains) {
    static const char *const names[] = {"Example.org", ".pictures.example"};
    const struct iwp_fetch f = {.domain = names, .n_domain = 2}, any = {0};
    static const char *const in[] = {"example.org", "EXAMPLE.ORG", "a.pictures.example",
                                     "b.a.pictures.example"};
    static const char *const out[] = {"www.example.org",  "example.org.evil",  "evilexample.org",
                                      "pictures.example", "apictures.example", ""};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        CHECK_MSG(iwp_fetch_is_allowed(&f, in[i]), "%s", in[i]);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        CHECK_MSG(!iwp_fetch_is_allowed(&f, out[i]), "%s", out[i]);
    CHECK(iwp_fetch_is_allowed(&any, "anything"));
}

/* Through a request: refused without a fetch, taken with one. */
TEST(requests) {
    struct iwp_fetch f = {
        .max_bytes = 1 << 20, .timeout_s = 2, .max_redirects = 3, .allow_loopback = true};
    struct iwp_request_defaults def;
    struct iwp_request r;
    iwp_err err = {0};
    char body[300];
    memset(&def, 0, sizeof def);
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
             "{\"url\":\"http://127.0.0.1:%d/ok\"}}]}]}",
             port);
    CHECK_INT(iwp_request_parse(&r, body, strlen(body), &def, &err), IWP_EINVAL);
    CHECK(strstr(err.msg, "--allow-remote-images") != NULL);
    iwp_request_free(&r);
    def.fetch = &f;
    CHECK_MSG(iwp_request_parse(&r, body, strlen(body), &def, &err) == 0, "%s", err.msg);
    CHECK(r.n_media == 1 && r.part[0].kind == IWP_PART_IMAGE && r.part[0].size == 5 &&
          memcmp(r.part[0].data, "hello", 5) == 0);
    iwp_request_free(&r);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN); /* clients that had enough */
    test_addresses();
    test_domains();
    pthread_t thread;
    if (iwp_fetch_built()) {
        CHECK(start(&thread));
        test_requests();
        test_transfers();
        atomic_store(&ending, true);
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
        if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) perror("connect");
        close(fd);
        pthread_join(thread, NULL);
        close(listener);
    }
    return test_done();
}
