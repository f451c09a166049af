/* The two parts of ZOO-Prune, apart so that each can be tested with given directions or scores. */
#ifndef IWP_PRUNE_ZOOPRUNE_PARTS_H
#define IWP_PRUNE_ZOOPRUNE_PARTS_H

#include "prune/method.h"

enum { IWP_ZOO_ROWS = 1024 }; /* most rows per call of the projector, both signs together */

/* sens[i] = mean over directions t of |g(x_i + h u_t) - g(x_i - h u_t)| / 2h, g = input.project.
 * x: rows of `array` at row[i]; u [n_dir][Dv] unit length.  Scratch for rows = min(2 n n_dir,
 * IWP_ZOO_ROWS): in [rows][Dv], out [rows][D]. */
int iwp_zoo_sensitivity(const struct iwp_input *input, const struct iwp_array *array,
                        const int32_t *row, int32_t n, const float *u, int32_t n_dir, double h,
                        int32_t n_out, float *in, float *out, double *sens, iwp_err *err);
/* n_dir unit directions of width d from a seed. */
void iwp_zoo_directions(float *u, int32_t n_dir, int32_t d, uint64_t seed);
/* Greedy sensitivity times distance: gram [n][stride] cosines, w and near [n] scratch. */
void iwp_zoo_pick(const double *sens, const float *gram, int32_t n, int32_t m, double *w,
                  double *near, uint8_t *chosen);

#endif
