/* The JSON document of a bench while it is measured: `{head, "rows": [...]}`.  The rows there are can be
 * printed at any moment, because measuring takes long and Ctrl-C should not cost what is done. */
#ifndef IWP_CLI_BENCH_JSON_H
#define IWP_CLI_BENCH_JSON_H

#include "base/json.h"

/* After the head (with "rows" open) and after each row: what Ctrl-C prints from now on, both closed. */
void iwp_bench_json_keep(const struct iwp_json_out *w);
/* Closes the document and prints it. */
int iwp_bench_json_end(struct iwp_json_out *w, iwp_err *err);

#endif
