/* The table: every place that lists, validates or documents methods reads it. */
#include "prune/methods.h"

#include <string.h>

static const struct iwp_method *const table[] = {
    &iwp_method_iwp,    &iwp_method_pact,     &iwp_method_divprune,    &iwp_method_cdpruner,
    &iwp_method_scope,  &iwp_method_zooprune, &iwp_method_visionzip,   &iwp_method_vispruner,
    &iwp_method_tome,   &iwp_method_none,     &iwp_method_random,      &iwp_method_uniform,
    &iwp_method_dart,   &iwp_method_fastv,    &iwp_method_pyramiddrop, &iwp_method_sparsevlm,
    &iwp_method_v2drop, &iwp_method_vatp,     &iwp_method_vtw,         &iwp_method_resize,
};

int32_t iwp_method_count(void) { return (int32_t)(sizeof table / sizeof table[0]); }

const struct iwp_method *iwp_method_at(int32_t i) {
    return i >= 0 && i < iwp_method_count() ? table[i] : NULL;
}

const struct iwp_method *iwp_method_find(const char *name) {
    for (int32_t i = 0; i < iwp_method_count(); i++)
        if (strcmp(table[i]->info.name, name) == 0) return table[i];
    return NULL;
}

const struct iwp_method_info *iwp_method_info(const struct iwp_method *m) { return &m->info; }
