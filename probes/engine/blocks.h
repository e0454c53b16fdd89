/* The types that weights are stored in: a row of numbers is a row of blocks. Leaves out arithmetic on blocks: a row is
   made float32 before it is used (row_of). */
#ifndef BLOCKS_H
#define BLOCKS_H

#include <stdint.h>

enum { W_F32, W_F16, W_BF16, W_Q8_0, W_Q4_0, W_Q4_1, W_Q4_K, W_Q6_K, W_MXFP4, WEIGHT_TYPES };

typedef struct {
    int64_t numbers, bytes; /* of a block */
    int dtype;              /* of firstbad.h, as the probe sees it */
} BlockType;

BlockType block_type(int type);
/* `count` numbers (whole blocks) from `blocks` into `to`; of float32 weights the row itself is given back */
const float *row_of(int type, const void *blocks, int64_t count, float *to);

#endif
