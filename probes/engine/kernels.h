/* The kernels of the built-in engine: plain pointers and dims, float32, no state.

   B batch (always 1, left out), T time, D model, H heads, K head size, F feed-forward, V vocabulary, M mels;
   in products: `rows` x `inner` times `inner` x `cols`. Each kernel's place in the source is known by name, so that a
   report can point at it. matmul.c has those that are sums of products (with a naive oracle for each), pointwise.c the
   rest. Leaves out the probe, buffers and steps (runtime.c). */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdint.h>

typedef struct {
    const char *file;
    int line;
} Where;

#define KERNEL(name, ...) \
    const Where where_##name = {__FILE__, __LINE__}; \
    void name(__VA_ARGS__)
#define DECLARE_KERNEL(name, ...) \
    extern const Where where_##name; \
    void name(__VA_ARGS__)

/* y[rows, cols] = x[rows, inner] w[cols, inner]^T + bias[cols] (NULL: none) */
DECLARE_KERNEL(linear, float *y, const float *x, const float *w, const float *bias, int64_t rows, int64_t cols,
               int64_t inner);
DECLARE_KERNEL(naive_linear, float *y, const float *x, const float *w, const float *bias, int64_t rows, int64_t cols,
               int64_t inner);
/* y[D, T] = conv(x[C, L], w[D, C, 3]) + bias[D], one zero of padding at each end; T = (L - 1) / stride + 1 */
DECLARE_KERNEL(conv1d, float *y, const float *x, const float *w, const float *bias, int64_t D, int64_t C, int64_t L,
               int64_t stride);
DECLARE_KERNEL(naive_conv1d, float *y, const float *x, const float *w, const float *bias, int64_t D, int64_t C,
               int64_t L, int64_t stride);
/* y[H, Tq, Tk] = q[Tq, H, K] k[Tk, H, K]^T, head by head */
DECLARE_KERNEL(attention_scores, float *y, const float *q, const float *k, int64_t H, int64_t Tq, int64_t Tk,
               int64_t K);
DECLARE_KERNEL(naive_attention_scores, float *y, const float *q, const float *k, int64_t H, int64_t Tq, int64_t Tk,
               int64_t K);
/* y[Tq, H, K] = p[H, Tq, Tk] v[Tk, H, K], head by head, written token by token */
DECLARE_KERNEL(attention_mix, float *y, const float *p, const float *v, int64_t H, int64_t Tq, int64_t Tk, int64_t K);
DECLARE_KERNEL(naive_attention_mix, float *y, const float *p, const float *v, int64_t H, int64_t Tq, int64_t Tk,
               int64_t K);

/* y = x/2 (1 + erf(x / sqrt 2)) */
DECLARE_KERNEL(gelu, float *y, const float *x, int64_t count);
DECLARE_KERNEL(mul, float *y, const float *x, float factor, int64_t count);
DECLARE_KERNEL(add, float *y, const float *a, const float *b, int64_t count);
/* y[T, D] = a[D, T]^T + b[T, D] */
DECLARE_KERNEL(add_permuted, float *y, const float *a, const float *b, int64_t T, int64_t D);
/* y[rows, D] = (x - mean) / sqrt(variance + eps) * weight + bias */
DECLARE_KERNEL(layer_norm, float *y, const float *x, const float *weight, const float *bias, int64_t rows, int64_t D,
               float eps);
/* y[H, Tq, Tk] = x, and the lowest float32 added where the key comes after the query */
DECLARE_KERNEL(causal_mask, float *y, const float *x, int64_t H, int64_t Tq, int64_t Tk);
DECLARE_KERNEL(softmax, float *y, const float *x, int64_t rows, int64_t cols);
/* y[T, D] = table[ids[T], D] */
DECLARE_KERNEL(embedding, float *y, const int64_t *ids, const float *table, int64_t T, int64_t D);
/* y[T, D] = table[first + 0 .. T, D] */
DECLARE_KERNEL(positions, float *y, const float *table, int64_t first, int64_t T, int64_t D);
/* y[V] = x[V], -inf at the listed ids */
DECLARE_KERNEL(masked_fill, float *y, const float *x, const int64_t *ids, int64_t ids_count, int64_t V);
/* the first of the largest */
DECLARE_KERNEL(argmax, int64_t *y, const float *x, int64_t V);

#endif
