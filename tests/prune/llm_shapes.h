/* The prompts of the tests of methods inside the language model: grouped heads, one text token, separators,
 * one visual token, all of it larger. */
#ifndef IWP_TEST_LLM_SHAPES_H
#define IWP_TEST_LLM_SHAPES_H

#include "prompt.h"

static const struct prompt_shape shapes[] = {
    {.before = 3,
     .visual = 30,
     .after = 6,
     .heads = 4,
     .groups = 2,
     .dim = 16,
     .width = 40,
     .clusters = 5},
    {.before = 0, .visual = 37, .after = 1, .heads = 7, .groups = 1, .dim = 10, .width = 33},
    {.before = 9,
     .visual = 64,
     .after = 17,
     .heads = 3,
     .groups = 3,
     .dim = 64,
     .width = 50,
     .separators = 9},
    {.before = 2, .visual = 1, .after = 3, .heads = 28, .groups = 4, .dim = 8, .width = 16},
    {.before = 70,
     .visual = 101,
     .after = 40,
     .heads = 12,
     .groups = 4,
     .dim = 32,
     .width = 140,
     .separators = 10,
     .clusters = 9},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

#endif
