/* Reports that the page can show later.  Their ids are 128 random bits told to the one who asked alone;
 * they live in memory, for --inspect seconds at most, and the oldest go when there are too many. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/state.h"

enum { MAX_BYTES = 64 << 20 };

static void drop(struct iwp_server *s, struct iwp_stored *e) {
    s->inspect_bytes -= e->n;
    free(e->json);
    *e = (struct iwp_stored){0};
}

static void drop_old(struct iwp_server *s) {
    const double now = iwp_clock_ms();
    for (int32_t i = 0; i < IWP_STORED_MAX; i++)
        if (s->inspect[i].json && s->inspect[i].until < now) drop(s, &s->inspect[i]);
}

/* A free place; the oldest makes room. */
static struct iwp_stored *place(struct iwp_server *s, size_t n) {
    for (;;) {
        struct iwp_stored *oldest = NULL, *empty = NULL;
        for (int32_t i = 0; i < IWP_STORED_MAX; i++) {
            struct iwp_stored *e = &s->inspect[i];
            if (!e->json)
                empty = e;
            else if (!oldest || e->until < oldest->until)
                oldest = e;
        }
        if (empty && s->inspect_bytes + n <= MAX_BYTES) return empty;
        if (!oldest) return NULL;
        drop(s, oldest);
    }
}

void iwp_stored_add(struct iwp_server *s, const char *id, char *json, size_t n) {
    drop_old(s);
    struct iwp_stored *e = n <= MAX_BYTES / 4 ? place(s, n) : NULL;
    if (!e) {
        free(json);
        return;
    }
    memcpy(e->id, id, strlen(id) + 1);
    e->json = json;
    e->n = n;
    e->until = iwp_clock_ms() + 1e3 * s->p.inspect_s;
    s->inspect_bytes += n;
}

const struct iwp_stored *iwp_stored_find(struct iwp_server *s, const char *id) {
    drop_old(s);
    for (int32_t i = 0; i < IWP_STORED_MAX; i++)
        if (s->inspect[i].json && strcmp(s->inspect[i].id, id) == 0) return &s->inspect[i];
    return NULL;
}

void iwp_stored_free(struct iwp_server *s) {
    for (int32_t i = 0; i < IWP_STORED_MAX; i++)
        if (s->inspect[i].json) drop(s, &s->inspect[i]);
}
