/* Who is next.  First come, first served for each client; between clients, the one with the fewest
 * sessions, so that one who sends a hundred requests does not keep another from its first. */
#include <stdio.h>
#include <string.h>

#include "server/state.h"

void iwp_queue_add(struct iwp_queue *q, struct iwp_job *j) {
    j->next = NULL;
    if (q->tail)
        q->tail->next = j;
    else
        q->head = j;
    q->tail = j;
}

static void unlink_job(struct iwp_queue *q, struct iwp_job *j, struct iwp_job *before) {
    if (before)
        before->next = j->next;
    else
        q->head = j->next;
    if (q->tail == j) q->tail = before;
    j->next = NULL;
}

struct iwp_job *iwp_queue_take(struct iwp_queue *q) {
    struct iwp_job *j = q->head;
    if (j) unlink_job(q, j, NULL);
    return j;
}

/* The client's entry; a new one takes the place of the one served longest ago. */
static int32_t client(struct iwp_server *s, const char *name, bool make) {
    int32_t oldest = 0;
    for (int32_t i = 0; i < IWP_CLIENT_MAX; i++) {
        if (strcmp(s->client[i].name, name) == 0) return i;
        if (s->client[i].served < s->client[oldest].served) oldest = i;
    }
    if (!make) return -1;
    snprintf(s->client[oldest].name, sizeof s->client[oldest].name, "%s", name);
    s->client[oldest].served = 0;
    return oldest;
}

bool iwp_job_is_text(const struct iwp_job *j) {
    if (j->kind == IWP_JOB_COUNT) return false;
    for (int32_t i = 0; i < j->req.n_part; i++)
        if (j->req.part[i].kind != IWP_PART_TEXT) return false;
    return true;
}

struct iwp_job *iwp_queue_take_fair(struct iwp_server *s, const char *const *busy, int32_t n_busy,
                                    bool text) {
    struct iwp_job *best = NULL, *before_best = NULL, *before = NULL;
    int32_t fewest = 0;
    uint64_t longest = 0;
    for (struct iwp_job *j = s->ready.head; j; before = j, j = j->next) {
        int32_t n = 0;
        if (text && !iwp_job_is_text(j)) continue;
        for (int32_t i = 0; i < n_busy; i++) n += strcmp(busy[i], j->client) == 0;
        const int32_t c = client(s, j->client, false);
        const uint64_t served = c < 0 ? 0 : s->client[c].served;
        if (best && (n > fewest || (n == fewest && served >= longest))) continue;
        best = j;
        before_best = before;
        fewest = n;
        longest = served;
    }
    if (!best) return NULL;
    s->client[client(s, best->client, true)].served = ++s->clock;
    unlink_job(&s->ready, best, before_best);
    return best;
}

struct iwp_job *iwp_queue_take_gone(struct iwp_queue *q) {
    struct iwp_job *left = NULL, *before = NULL;
    for (struct iwp_job *j = q->head, *next; j; j = next) {
        next = j->next;
        if (!j->gone && (!j->conn || iwp_job_peer_closed(j))) j->gone = true;
        if (!j->gone) {
            before = j;
            continue;
        }
        unlink_job(q, j, before);
        j->next = left;
        left = j;
    }
    return left;
}
