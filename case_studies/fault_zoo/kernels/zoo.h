/* What the zoo's kernels share: from a call to pointers and sizes, and roundings to lower precision.

   Each variant runs the engine's own kernel where it can and then does what the bug would have done. */
#ifndef ZOO_H
#define ZOO_H

#include "kernels.h"
#include "runtime.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define F(view) ((float *)(void *)(view).at)

#define VARIANT(name) void zoo_##name(const Call *c) /* a name of its own: the engine has kernels of the same words */

static inline int64_t zoo_last(const View *v) { return v->dims[v->rank - 1]; }
static inline int64_t zoo_int(const Call *c, const char *key, int64_t otherwise) {
    return (int64_t)attr(c, key, (double)otherwise);
}
static inline float *zoo_room(int64_t count) {
    float *at = malloc((size_t)(count ? count : 1) * sizeof(float));
    if (!at) fail("out of memory", "in a kernel of the zoo");
    return at;
}

/* y[rows, cols] = x[rows, inner] w[cols, inner]^T + b */
typedef struct {
    float *y;
    const float *x, *w, *b;
    int64_t rows, cols, inner;
} ZooLinear;

static inline ZooLinear zoo_linear(const Call *c) {
    ZooLinear l = {F(c->out), F(c->in[0]), F(c->weight[0]), c->weight[1].at ? F(c->weight[1]) : NULL, 0, 0, 0};
    l.cols = c->weight[0].dims[0];
    l.inner = c->weight[0].dims[1];
    l.rows = c->out.count / l.cols;
    return l;
}

/* one head's sizes in an attention product; y is scores [H, Tq, Tk] or mixed values [Tq, H, K] */
typedef struct {
    float *y;
    const float *a, *b;
    int64_t H, Tq, Tk, K;
} ZooHeads;

static inline ZooHeads zoo_scores(const Call *c) {
    ZooHeads s = {F(c->out), F(c->in[0]), F(c->in[1]), c->runtime->program->heads, 0, zoo_last(&c->out), 0};
    s.Tq = c->out.count / (s.H * s.Tk);
    s.K = c->in[0].count / (s.H * s.Tq);
    return s;
}

static inline ZooHeads zoo_mix(const Call *c) {
    ZooHeads s = {F(c->out), F(c->in[0]), F(c->in[1]), c->runtime->program->heads, 0, 0, zoo_last(&c->out)};
    s.Tq = c->out.count / (s.H * s.K);
    s.Tk = c->in[0].count / (s.H * s.Tq);
    return s;
}

static inline uint32_t zoo_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static inline float zoo_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
/* to the nearest even; NaN stays */
static inline float zoo_bf16(float x) {
    uint32_t bits = zoo_bits(x);
    return x != x ? x : zoo_float((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u);
}
static inline float zoo_bf16_cut(float x) { return zoo_float(zoo_bits(x) & 0xFFFF0000u); }
static inline float zoo_fp16(float x) {
    _Float16 half = (_Float16)x;
    return (float)half;
}

#endif
