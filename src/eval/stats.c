/* Aggregation and statistics: see stats.h. */
#include "eval/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void iwp_eval_records_free(struct iwp_eval_records *r) {
    for (int32_t i = 0; i < r->n; i++) {
        struct iwp_eval_record *x = &r->at[i];
        free(x->id);
        free(x->category);
        free(x->group);
        free(x->label);
        free(x->target);
        free(x->answer);
        free(x->error);
        free(x->bits);
        free(x->media);
    }
    free(r->at);
    memset(r, 0, sizeof *r);
}

bool iwp_eval_summary_failed(const struct iwp_eval_summary *s) {
    return s->errors >= s->n * (s->n_seed > 1 ? s->n_seed : 1);
}

void iwp_eval_summary_free(struct iwp_eval_summary *s) {
    free(s->category);
    memset(s, 0, sizeof *s);
}

static int by_stratum(const void *a, const void *b) {
    const struct iwp_eval_unit *x = a, *y = b;
    if (x->stratum != y->stratum) return x->stratum < y->stratum ? -1 : 1;
    if (x->cluster != y->cluster) return x->cluster < y->cluster ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

static int by_key(const void *a, const void *b) {
    const struct iwp_eval_unit *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

struct iwp_estimate iwp_stats_estimate(const struct iwp_eval_unit *u, int32_t n, int32_t n_stratum,
                                       double weight) {
    struct iwp_estimate out = {0, 0, n, 0};
    struct iwp_eval_unit *s = malloc((size_t)(n + 1) * sizeof *s);
    if (!s || n == 0 || n_stratum == 0) {
        free(s);
        return (struct iwp_estimate){NAN, NAN, 0, 0};
    }
    memcpy(s, u, (size_t)n * sizeof *s);
    qsort(s, (size_t)n, sizeof *s, by_stratum);
    double var = 0;
    for (int32_t i = 0, j; i < n; i = j) {
        double sum = 0, sq = 0, part = 0;
        int32_t clusters = 0;
        for (j = i; j < n && s[j].stratum == s[i].stratum; j++) sum += s[j].value;
        const double m = j - i, mean = sum / m;
        for (int32_t k = i; k < j; k++) {
            part += s[k].value - mean;
            if (k + 1 == j || s[k + 1].cluster != s[k].cluster) {
                sq += part * part;
                part = 0;
                clusters++;
            }
        }
        out.value += weight * mean;
        out.df += clusters - 1;
        if (clusters < 2)
            var = NAN;
        else
            var += weight * weight * sq / (m * m) * clusters / (clusters - 1);
    }
    free(s);
    out.stderr_ = sqrt(var);
    return out;
}

/* P(|T| <= t): a finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4). */
static double t_inside(double t, int32_t df) {
    const double a = atan(t / sqrt(df)), c2 = cos(a) * cos(a), pi = acos(-1);
    double sum = 0, term = df % 2 ? cos(a) : 1;
    for (int32_t k = df % 2 ? 3 : 2; k <= df; k += 2) {
        sum += term;
        term *= c2 * (k - 1) / k;
    }
    return df % 2 ? 2 / pi * (a + sin(a) * sum) : sin(a) * sum;
}

double iwp_stats_t(double q, int32_t df) {
    if (df < 1) return NAN;
    if (df > 100000) df = 100000; /* 1.95999; the normal one is 1.95996 */
    double low = 0, high = 1e6;
    for (int i = 0; i < 80; i++) {
        const double mid = (low + high) / 2;
        *(t_inside(mid, df) < q ? &low : &high) = mid;
    }
    return high;
}

void iwp_stats_interval(const struct iwp_estimate *e, double out[2]) {
    const double half = e->stderr_ == 0 ? 0 : iwp_stats_t(0.95, e->df) * e->stderr_;
    out[0] = e->value - half;
    out[1] = e->value + half;
}

double iwp_stats_quantile(const double *sorted, int32_t n, double q) {
    if (n <= 0) return NAN;
    int32_t i = (int32_t)ceil(q * n) - 1;
    return sorted[i < 0 ? 0 : i >= n ? n - 1 : i];
}

/* ---- units ------------------------------------------------------------------------------------------ */

struct names {
    const char **at; /* [n] sorted, or the task's own order */
    int32_t n;
};

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Categories: the task's whole list when it has one, else those that occur in any of the runs. */
static int list_categories(const struct iwp_eval_task *t,
                           const struct iwp_eval_records *const *runs, int32_t n_run,
                           struct names *out, iwp_err *err) {
    int32_t total = t->n_category;
    for (int32_t r = 0; r < n_run; r++) total += runs[r]->n;
    out->at = malloc((size_t)(total + 1) * sizeof *out->at);
    IWP_REQUIRE(out->at, err, IWP_ENOMEM, "out of memory");
    out->n = 0;
    if (t->n_category) {
        for (; out->n < t->n_category; out->n++) out->at[out->n] = t->category[out->n];
        return 0;
    }
    for (int32_t r = 0; r < n_run; r++)
        for (int32_t i = 0; i < runs[r]->n; i++)
            if (runs[r]->at[i].category) out->at[out->n++] = runs[r]->at[i].category;
    qsort((void *)out->at, (size_t)out->n, sizeof *out->at, by_name);
    int32_t m = 0;
    for (int32_t i = 0; i < out->n; i++)
        if (!m || strcmp(out->at[m - 1], out->at[i])) out->at[m++] = out->at[i];
    out->n = m;
    return 0;
}

static int32_t category_of(const struct names *names, const char *c) {
    for (int32_t i = 0; c && i < names->n; i++)
        if (!strcmp(names->at[i], c)) return i;
    return -1;
}

struct group_key {
    const struct iwp_eval_record *r;
    int32_t category;
};

static int by_group(const void *a, const void *b) {
    const struct group_key *x = a, *y = b;
    if (x->category != y->category) return x->category < y->category ? -1 : 1;
    int c = strcmp(x->r->group ? x->r->group : "", y->r->group ? y->r->group : "");
    return c ? c : x->r->doc < y->r->doc ? -1 : x->r->doc > y->r->doc;
}

/* Units of one run, ascending by key; stratum is the category's number, -1: none.  Returns how many. */
static int32_t make_units(const struct iwp_eval_task *t, const struct iwp_eval_records *r,
                          const struct names *names, struct iwp_eval_unit *out,
                          struct group_key *k) {
    int32_t n = 0;
    if (t->aggregate != IWP_AGGREGATE_CIRCULAR && t->aggregate != IWP_AGGREGATE_PAIRS) {
        const bool nll = t->aggregate == IWP_AGGREGATE_NLL;
        for (int32_t i = 0; i < r->n; i++) {
            const struct iwp_eval_record *x = &r->at[i];
            if (nll && x->error) continue; /* there is no worst value to give it */
            out[n++] = (struct iwp_eval_unit){x->doc, category_of(names, x->category), x->medium,
                                              nll ? x->score : 100 * x->score};
        }
        return n;
    }
    for (int32_t i = 0; i < r->n; i++)
        k[i] = (struct group_key){&r->at[i], t->aggregate == IWP_AGGREGATE_PAIRS
                                                 ? category_of(names, r->at[i].category)
                                                 : 0};
    qsort(k, (size_t)r->n, sizeof *k, by_group);
    for (int32_t i = 0, j; i < r->n; i = j) {
        double right = 0;
        for (j = i; j < r->n && k[j].category == k[i].category &&
                    !strcmp(k[j].r->group ? k[j].r->group : "", k[i].r->group ? k[i].r->group : "");
             j++)
            right += k[j].r->score;
        const double all = right >= j - i ? 100 : 0;
        const double v = t->aggregate == IWP_AGGREGATE_PAIRS ? 100 * right / (j - i) + all : all;
        out[n++] = (struct iwp_eval_unit){k[i].r->doc, category_of(names, k[i].r->category),
                                          k[i].r->medium, v};
    }
    qsort(out, (size_t)n, sizeof *out, by_key);
    return n;
}

/* Mean over runs of the units with the same key; the result is in `sum`. */
static int32_t average_units(struct iwp_eval_unit *all, int32_t n) {
    qsort(all, (size_t)n, sizeof *all, by_key);
    int32_t m = 0;
    for (int32_t i = 0, j; i < n; i = j) {
        double v = 0;
        for (j = i; j < n && all[j].key == all[i].key; j++) v += all[j].value;
        all[m] = all[i];
        all[m++].value = v / (j - i);
    }
    return m;
}

static struct iwp_estimate score_units(const struct iwp_eval_task *t, const struct names *names,
                                       struct iwp_eval_unit *u, int32_t n) {
    const bool strata =
        t->aggregate == IWP_AGGREGATE_CATEGORY || t->aggregate == IWP_AGGREGATE_PAIRS;
    if (!strata) {
        struct iwp_eval_unit *flat = malloc((size_t)(n + 1) * sizeof *flat);
        if (!flat) return (struct iwp_estimate){NAN, NAN, 0, 0};
        memcpy(flat, u, (size_t)n * sizeof *flat);
        for (int32_t i = 0; i < n; i++) flat[i].stratum = 0;
        struct iwp_estimate e = iwp_stats_estimate(flat, n, 1, 1);
        free(flat);
        return e;
    }
    return iwp_stats_estimate(
        u, n, names->n, t->aggregate == IWP_AGGREGATE_PAIRS ? 1 : 1.0 / (names->n ? names->n : 1));
}

/* ---- metrics of single tasks -------------------------------------------------------------------------- */

static void add_metric(struct iwp_eval_summary *s, const char *name, double v) {
    if (s->n_metric < 8) s->metric[s->n_metric++] = (struct iwp_eval_metric){name, v};
}

static bool says_yes(const char *s) {
    return s && (s[0] | 32) == 'y' && (s[1] | 32) == 'e' && (s[2] | 32) == 's' && !s[3];
}

/* Precision, recall and F1 of "yes". */
static void yes_metrics(const struct iwp_eval_records *const *runs, int32_t n_run,
                        struct iwp_eval_summary *s) {
    double tp = 0, fp = 0, fn = 0, yes = 0, n = 0, right = 0;
    for (int32_t r = 0; r < n_run; r++)
        for (int32_t i = 0; i < runs[r]->n; i++) {
            const struct iwp_eval_record *x = &runs[r]->at[i];
            const bool got = says_yes(x->label), want = says_yes(x->target);
            n++;
            right += x->score;
            yes += got;
            tp += got && want;
            fp += got && !want;
            fn += !got && want;
        }
    if (n == 0) return;
    const double p = tp + fp > 0 ? tp / (tp + fp) : 0, rec = tp + fn > 0 ? tp / (tp + fn) : 0;
    add_metric(s, "accuracy", 100 * right / n);
    add_metric(s, "precision", 100 * p);
    add_metric(s, "recall", 100 * rec);
    add_metric(s, "f1", p + rec > 0 ? 200 * p * rec / (p + rec) : 0);
    add_metric(s, "yes_ratio", 100 * yes / n);
}

static void pair_metrics(struct iwp_eval_summary *s) {
    double perception = 0, cognition = 0;
    for (int32_t i = 0; i < s->n_category; i++) { /* S5: the last four are cognition */
        const char *c = s->category[i].name;
        const bool cog = !strcmp(c, "commonsense_reasoning") ||
                         !strcmp(c, "numerical_calculation") || !strcmp(c, "text_translation") ||
                         !strcmp(c, "code_reasoning");
        const double v = s->category[i].e.n ? s->category[i].e.value : 0;
        *(cog ? &cognition : &perception) += v;
    }
    add_metric(s, "perception", perception);
    add_metric(s, "cognition", cognition);
}

static bool is_yesno(const struct iwp_eval_task *t) {
    return t->scorer && (!strcmp(t->scorer->name, "pope") || !strcmp(t->scorer->name, "yesno"));
}

static int fill_categories(const struct names *names, const struct iwp_eval_unit *u, int32_t n,
                           struct iwp_eval_summary *out, iwp_err *err) {
    if (!names->n) return 0;
    struct iwp_eval_unit *c = malloc((size_t)(n + 1) * sizeof *c);
    out->category = calloc((size_t)names->n, sizeof *out->category);
    if (!c || !out->category) {
        free(c);
        return iwp_err_set(err, IWP_ENOMEM, "out of memory");
    }
    out->n_category = names->n;
    for (int32_t k = 0; k < names->n; k++) {
        int32_t m = 0;
        for (int32_t i = 0; i < n; i++)
            if (u[i].stratum == k) c[m++] = u[i];
        snprintf(out->category[k].name, sizeof out->category[k].name, "%s", names->at[k]);
        out->category[k].e = iwp_stats_estimate(c, m, 1, 1);
    }
    free(c);
    return 0;
}

static void count_samples(const struct iwp_eval_task *t, const struct iwp_eval_records *const *runs,
                          int32_t n_run, struct iwp_eval_summary *out) {
    double chance = 0, share = 0;
    int32_t shares = 0, total = 0, errors = 0, unparsed = 0;
    for (int32_t r = 0; r < n_run; r++)
        for (int32_t i = 0; i < runs[r]->n; i++) {
            const struct iwp_eval_record *x = &runs[r]->at[i];
            total++;
            errors += x->error != NULL;
            unparsed += x->unparsed;
            if (x->unparsed) chance += x->chance;
            if (x->visual > 0 && !x->error) {
                share += (double)x->kept / x->visual;
                shares++;
            }
        }
    out->n = n_run ? total / n_run : 0;
    out->errors = errors;
    out->unparsed = unparsed;
    out->kept = shares ? share / shares : NAN;
    out->expected = t->aggregate == IWP_AGGREGATE_MEAN && total
                        ? out->e.value + 100 * chance / total
                        : out->e.value;
}

int iwp_stats_summary(const struct iwp_eval_task *t, const struct iwp_eval_records *const *runs,
                      int32_t n_run, const struct iwp_eval_records *base,
                      struct iwp_eval_summary *out, iwp_err *err) {
    memset(out, 0, sizeof *out);
    int32_t total = base ? base->n : 0, n = 0, nb = 0, m = 0;
    for (int32_t r = 0; r < n_run; r++) total += runs[r]->n;
    struct names names = {0};
    struct iwp_eval_unit *u = malloc((size_t)(total + 1) * sizeof *u);
    struct iwp_eval_unit *b = malloc((size_t)(total + 1) * sizeof *b);
    struct group_key *k = malloc((size_t)(total + 1) * sizeof *k);
    int rc = 0;
    if (!u || !b || !k) IWP_FAIL(err, IWP_ENOMEM, "out of memory");
    IWP_TRY_GOTO(list_categories(t, runs, n_run, &names, err));
    for (int32_t r = 0; r < n_run; r++) {
        const int32_t one = make_units(t, runs[r], &names, u + n, k);
        if (n_run > 1 && r < 64)
            out->seed_score[out->n_seed++] = score_units(t, &names, u + n, one).value;
        n += one;
    }
    n = average_units(u, n);
    out->e = score_units(t, &names, u, n);
    IWP_TRY_GOTO(fill_categories(&names, u, n, out, err));
    count_samples(t, runs, n_run, out);
    if (is_yesno(t)) yes_metrics(runs, n_run, out);
    if (t->aggregate == IWP_AGGREGATE_PAIRS) pair_metrics(out);
    if (base) {
        nb = make_units(t, base, &names, b, k);
        for (int32_t i = 0, j = 0; i < n && j < nb;) {
            if (u[i].key < b[j].key) {
                i++;
            } else if (u[i].key > b[j].key) {
                j++;
            } else {
                const double v = u[i].value - b[j].value;
                b[m] = u[i]; /* m <= j: already read */
                b[m++].value = v;
                i++, j++;
            }
        }
        out->has_diff = m > 0;
        if (m) out->diff = score_units(t, &names, b, m);
    }
fail:
    free((void *)names.at);
    free(u);
    free(b);
    free(k);
    if (rc < 0) iwp_eval_summary_free(out);
    return rc;
}
