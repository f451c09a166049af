/* Options by name: defaults, parsing, printing, all from the method's option table. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prune/methods.h"

static void store(struct iwp_params *p, const struct iwp_option *o, double x) {
    unsigned char *at = p->opt.bytes + o->offset;
    if (o->type == IWP_OPTION_REAL)
        memcpy(at, &x, sizeof x);
    else {
        int32_t i = (int32_t)x;
        memcpy(at, &i, sizeof i);
    }
}

static double load(const struct iwp_params *p, const struct iwp_option *o) {
    const unsigned char *at = p->opt.bytes + o->offset;
    if (o->type == IWP_OPTION_REAL) {
        double x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    int32_t i;
    memcpy(&i, at, sizeof i);
    return i;
}

void iwp_params_default(struct iwp_params *p, const struct iwp_method *m) {
    memset(p, 0, sizeof *p);
    p->method = m;
    p->budget.keep = 1;
    p->budget.keep_separators = -1;
    p->layer = -1;
    if (m)
        for (const struct iwp_option *o = m->info.options; o && o->name; o++) store(p, o, o->def);
}

/* "a, b or c" into buf. */
static void list_choices(const struct iwp_option *o, char *buf, size_t cap) {
    size_t n = 0;
    buf[0] = 0;
    for (int i = 0; o->choices[i]; i++) {
        const char *sep = i == 0 ? "" : o->choices[i + 1] ? ", " : " or ";
        int w = snprintf(buf + n, cap - n, "%s%s", sep, o->choices[i]);
        if (w < 0 || (size_t)w >= cap - n) return;
        n += (size_t)w;
    }
}

static int parse_number(const char *text, double *x) {
    char *end;
    if (!*text || *text == ' ') return -1;
    errno = 0;
    *x = strtod(text, &end);
    return *end || !(fabs(*x) <= DBL_MAX) ? -1 : 0;
}

int iwp_params_set(struct iwp_params *p, const char *name, const char *value, iwp_err *err) {
    const char *method = p->method->info.name;
    const struct iwp_option *o = p->method->info.options;
    while (o && o->name && strcmp(o->name, name) != 0) o++;
    IWP_REQUIRE(o && o->name, err, IWP_EINVAL, "method %s has no option '%s' (see: iwp methods %s)",
                method, name, method);
    double x = 0;
    if (o->type == IWP_OPTION_ENUM) {
        int i = 0;
        while (o->choices[i] && strcmp(o->choices[i], value) != 0) i++;
        if (!o->choices[i]) {
            char all[200];
            list_choices(o, all, sizeof all);
            return iwp_err_set(err, IWP_EINVAL, "option %s=%s of method %s: must be %s", name,
                               value, method, all);
        }
        x = i;
    } else if (o->type == IWP_OPTION_BOOL && (!strcmp(value, "true") || !strcmp(value, "on"))) {
        x = 1;
    } else if (o->type == IWP_OPTION_BOOL && (!strcmp(value, "false") || !strcmp(value, "off"))) {
        x = 0;
    } else {
        IWP_REQUIRE(parse_number(value, &x) == 0, err, IWP_EINVAL,
                    "option %s=%s of method %s: not a number", name, value, method);
        double lo = o->type == IWP_OPTION_BOOL ? 0 : o->min,
               hi = o->type == IWP_OPTION_BOOL ? 1 : o->max;
        IWP_REQUIRE(o->type == IWP_OPTION_REAL || x == floor(x), err, IWP_EINVAL,
                    "option %s=%s of method %s: must be a whole number", name, value, method);
        IWP_REQUIRE((o->min_open ? x > lo : x >= lo) && x <= hi, err, IWP_EINVAL,
                    "option %s=%s of method %s: must be %s %g and at most %g", name, value, method,
                    o->min_open ? "above" : "at least", lo, hi);
    }
    store(p, o, x);
    return 0;
}

int iwp_params_parse(struct iwp_params *p, const char *list, iwp_err *err) {
    char name[64], value[128];
    for (const char *s = list; *s;) {
        const char *eq = strchr(s, '='), *end = strchr(s, ',');
        if (!end) end = s + strlen(s);
        IWP_REQUIRE(eq && eq < end && eq > s, err, IWP_EINVAL,
                    "options '%s': write them as name=value,name=value", list);
        size_t nn = (size_t)(eq - s), nv = (size_t)(end - eq - 1);
        IWP_REQUIRE(nn < sizeof name && nv < sizeof value, err, IWP_EINVAL,
                    "options '%s': too long", list);
        memcpy(name, s, nn);
        name[nn] = 0;
        memcpy(value, eq + 1, nv);
        value[nv] = 0;
        IWP_TRY(iwp_params_set(p, name, value, err));
        s = *end ? end + 1 : end;
    }
    return 0;
}

int iwp_params_print(const struct iwp_params *p, const struct iwp_option *o, char *buf,
                     size_t cap) {
    double x = load(p, o);
    if (o->type == IWP_OPTION_ENUM) return snprintf(buf, cap, "%s", o->choices[(int)x]);
    return snprintf(buf, cap, "%.10g", x);
}

int iwp_params_needs(const struct iwp_params *p, int32_t stage, struct iwp_need *out, int cap) {
    return p->method->needs ? p->method->needs(p, stage, out, cap) : 0;
}

int iwp_need_add(struct iwp_need *out, int n, int cap, enum iwp_tensor t, enum iwp_rows rows,
                 int optional) {
    for (int i = 0; i < n; i++)
        if (out[i].tensor == t) { /* asked twice: read the union */
            if (out[i].rows != rows) out[i].rows = IWP_ROWS_ALL;
            out[i].optional &= optional;
            return n;
        }
    if (n >= cap) return n;
    out[n].tensor = t;
    out[n].rows = rows;
    out[n].optional = optional;
    return n + 1;
}

int iwp_keep_parse(const char *text, double *keep, iwp_err *err) {
    char *end;
    double x = strtod(text, &end);
    int bad = end == text || *text == ' ';
    if (!bad && *end == '%') {
        x /= 100;
        end++;
    }
    IWP_REQUIRE(!bad && !*end && x > 0 && x <= 1, err, IWP_EINVAL,
                "'%.40s' is not a fraction kept above 0 up to 1 (0.222 or 22.2%%)", text);
    *keep = x;
    return 0;
}

/* Found out on a prompt that no budget cuts. */
int iwp_params_cuts_decoder(const struct iwp_params *p) {
    struct iwp_params q = *p;
    struct iwp_stage stage[IWP_STAGE_MAX];
    const struct iwp_plan_shape shape = {.n_layer = p->layer + 2, .n_visual = 1};
    q.budget = (struct iwp_budget){.keep = 1, .keep_separators = -1};
    return iwp_plan(&q, &shape, stage, IWP_STAGE_MAX, NULL) < 1 || stage[0].site == IWP_SITE_LAYER;
}

int iwp_params_renumbers(const struct iwp_params *p, int32_t n_pos) {
    if (n_pos > 1) return 0;
    if (p->method->renumbers_of) return p->method->renumbers_of(p);
    return (p->method->info.flags & IWP_METHOD_RENUMBERS) != 0;
}
