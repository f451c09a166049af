/* The analyses of a results folder in its report: every DIR/analysis/NAME.json of `iwp analyse` with its picture
 * and text.  Pictures are embedded as images, so that a file that is not ours cannot run anything; what
 * cannot be read is left out. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "eval/base64.h"
#include "eval/html.h"
#include "eval/results.h"

enum { MAX_ANALYSIS = 64, MAX_NAME = 64, MAX_JSON = 16 << 20, MAX_PICTURE = 8 << 20 };

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

static int32_t list(const char *dir, char names[][MAX_NAME]) {
    int32_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) && n < MAX_ANALYSIS;) {
        const size_t len = strlen(e->d_name);
        if (e->d_name[0] == '.' || len < 6 || len >= MAX_NAME ||
            strcmp(e->d_name + len - 5, ".json"))
            continue;
        snprintf(names[n++], MAX_NAME, "%.*s", (int)(len - 5), e->d_name);
    }
    if (d) closedir(d);
    qsort(names, (size_t)n, MAX_NAME, by_name);
    return n;
}

static const char *text_of(const cJSON *o, const char *key) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

/* One analysis; true: it was one. */
static bool put(const char *dir, const char *name, bool first, FILE *f) {
    char path[4096];
    uint8_t *data = NULL, *svg = NULL;
    size_t n, n_svg = 0;
    cJSON *doc = NULL;
    bool done = false;
    snprintf(path, sizeof path, "%s/%s.json", dir, name);
    if (iwp_file_read(path, MAX_JSON, &data, &n, NULL) >= 0 &&
        iwp_json_parse((const char *)data, n, (struct iwp_json_limits){0}, &doc, NULL) >= 0 &&
        text_of(doc, "analysis") && text_of(doc, "title") && text_of(doc, "text")) {
        done = true;
        if (first) fputs("<h2>Analyses</h2>\n", f);
        snprintf(path, sizeof path, "%s/%s.svg", dir, name);
        fputs("<figure class=\"analysis\" style=\"margin-bottom:1rem\">", f);
        if (iwp_file_read(path, MAX_PICTURE, &svg, &n_svg, NULL) >= 0) { /* has its title in it */
            char *text = iwp_eval_base64(svg, n_svg);
            fputs("<img style=\"max-width:100%;height:auto\" alt=\"", f);
            iwp_html_text(f, text_of(doc, "title"));
            fputs("\" src=\"data:image/svg+xml;base64,", f);
            fputs(text ? text : "", f);
            fputs("\">", f);
            free(text);
        } else {
            fputs("<figcaption>", f);
            iwp_html_text(f, text_of(doc, "title"));
            fputs("</figcaption>", f);
        }
        fputs("<pre style=\"white-space:pre-wrap;overflow-wrap:anywhere;font-size:.8rem\">", f);
        iwp_html_text(f, text_of(doc, "text"));
        fputs("</pre></figure>\n", f);
    }
    cJSON_Delete(doc);
    free(data);
    free(svg);
    return done;
}

void iwp_eval_report_analyses(const char *dir, FILE *f) {
    char names[MAX_ANALYSIS][MAX_NAME];
    bool first = true;
    const int32_t n = dir ? list(dir, names) : 0;
    for (int32_t i = 0; i < n; i++)
        if (put(dir, names[i], first, f)) first = false;
}
