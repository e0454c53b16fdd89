/* A pool of threads and one way to use it: parallel_for over a range in chunks. */
#ifndef POOL_H
#define POOL_H

#include <stdint.h>

typedef void (*Body)(void *context, int64_t begin, int64_t end);

void pool_start(int threads); /* the caller is one of them */
void pool_stop(void);
/* each chunk of `grain` indices of 0 .. count goes to one thread; results must not depend on the chunks */
void parallel_for(int64_t count, int64_t grain, Body body, void *context);

#endif
