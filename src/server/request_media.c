/* Where the bytes of a picture come from: see request.h and fetch.h.
 *
 * The type a data URI claims is not believed; the decoder looks at the bytes.  Files are read only
 * below the folder of --media-path: the name must not hold "..", and what it resolves to (links
 * followed) must lie inside. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/file.h"
#include "server/base64.h"
#include "server/request.h"

enum { MAX_FILE = 256 << 20 };

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Where a file:// name leads to, links followed; the caller frees *out. */
static int find_file(const char *name, const char *folder, char **out, iwp_err *err) {
    IWP_REQUIRE(folder, err, IWP_EINVAL,
                "file:// pictures are not read by this server (--media-path is not set)");
    if (strncmp(name, "localhost/", 10) == 0) name += 9;
    char path[4096], *at = path;
    if (name[0] != '/') at += snprintf(path, sizeof path, "%.3000s/", folder);
    for (const char *p = name; *p; p++) {
        IWP_REQUIRE((size_t)(at - path) + 2 < sizeof path, err, IWP_EINVAL, "the path is too long");
        const int hi = *p == '%' ? hex(p[1]) : -1, lo = hi >= 0 ? hex(p[2]) : -1;
        if (lo >= 0) p += 2;
        *at++ = lo >= 0 ? (char)(hi * 16 + lo) : *p;
        IWP_REQUIRE(at[-1], err, IWP_EINVAL, "the path holds a zero byte");
    }
    *at = 0;
    IWP_REQUIRE(!strstr(path, "/../") && !(at - path >= 3 && strcmp(at - 3, "/..") == 0), err,
                IWP_EINVAL, "the path may not hold '..'");
    char *real = realpath(path, NULL);
    const size_t n = strlen(folder);
    const bool inside = real && strncmp(real, folder, n) == 0 &&
                        (real[n] == '/' || (n > 0 && folder[n - 1] == '/'));
    if (!inside) {
        /* One answer for both, so that nobody learns what exists elsewhere. */
        free(real);
        return iwp_err_set(err, IWP_EINVAL, "no such picture below the media folder");
    }
    *out = real;
    return 0;
}

static int load_file(const char *name, const char *folder, uint8_t **data, size_t *size,
                     iwp_err *err) {
    char *real;
    IWP_TRY(find_file(name, folder, &real, err));
    int rc = iwp_file_read(real, MAX_FILE, data, size, NULL);
    free(real);
    return rc < 0 ? iwp_err_set(err, IWP_EINVAL, "no such picture below the media folder") : 0;
}

int iwp_request_find_media(const char *url, const struct iwp_request_defaults *def, char **path,
                           iwp_err *err) {
    *path = NULL;
    if (strncasecmp(url, "file://", 7) != 0) return 0;
    return find_file(url + 7, def->media_path, path, err);
}

int iwp_request_load_media(const char *url, const struct iwp_request_defaults *def, uint8_t **data,
                           size_t *size, iwp_err *err) {
    *data = NULL;
    *size = 0;
    if (strncasecmp(url, "file://", 7) == 0)
        return load_file(url + 7, def->media_path, data, size, err);
    if (strncasecmp(url, "data:", 5) == 0) {
        const char *comma = strchr(url, ',');
        IWP_REQUIRE(comma && comma - url < 256 && comma - url >= 12 &&
                        strncasecmp(comma - 7, ";base64", 7) == 0,
                    err, IWP_EINVAL,
                    "a data URI must read data:image/…;base64,… (or data:video/…)");
        url = comma + 1;
    } else {
        const char *colon = strstr(url, "://");
        const bool remote = colon && colon - url <= 16;
        if (remote && def->fetch &&
            (strncasecmp(url, "http://", 7) == 0 || strncasecmp(url, "https://", 8) == 0))
            return iwp_fetch_url(def->fetch, url, data, size, err);
        IWP_REQUIRE(!remote, err, IWP_EINVAL,
                    def->fetch ? "only data:, file:, http: and https: pictures are taken"
                               : "remote pictures are not fetched by this server "
                                 "(--allow-remote-images is not set): send a data: URI");
    }
    int rc = iwp_base64_decode(url, strlen(url), data, size, err);
    return rc < 0 ? iwp_err_prefix(err, rc, "picture") : 0;
}
