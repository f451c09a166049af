/* The table of methods.  A new one: its file, a declaration here, a row in methods.c. */
#ifndef IWP_PRUNE_METHODS_H
#define IWP_PRUNE_METHODS_H

#include "prune/method.h"

extern const struct iwp_method iwp_method_none, iwp_method_random, iwp_method_uniform,
    iwp_method_resize, iwp_method_iwp;
extern const struct iwp_method iwp_method_dart;
extern const struct iwp_method iwp_method_fastv;
extern const struct iwp_method iwp_method_pyramiddrop;
extern const struct iwp_method iwp_method_sparsevlm;
extern const struct iwp_method iwp_method_v2drop;
extern const struct iwp_method iwp_method_vatp;
extern const struct iwp_method iwp_method_vtw;
extern const struct iwp_method iwp_method_pact, iwp_method_divprune, iwp_method_cdpruner,
    iwp_method_scope, iwp_method_zooprune, iwp_method_visionzip, iwp_method_vispruner,
    iwp_method_tome;

#endif
