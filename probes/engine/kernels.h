/* The kernels of the built-in engine: plain pointers and dims, float32, no state.

   B batch (always 1, left out), T time, D model, H heads, G heads of keys and values (each serves H / G of the queries'),
   K head size, F feed-forward, V vocabulary, M mels, E experts, S experts that a token is sent to; in products: `rows` x
   `inner` times `inner` x `cols`. Each kernel's place in the source is known by name, so that a report can point at it.
   matmul.c has those that are sums of products (with a naive oracle for each), language.c what only language models
   have, pointwise.c the rest. Leaves out the probe, buffers and steps (runtime.c). */
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
/* linear with a weight of a type of blocks.h, rows of blocks */
DECLARE_KERNEL(linear_stored, float *y, const float *x, const void *w, int64_t type, const float *bias, int64_t rows,
               int64_t cols, int64_t inner);
/* y[rows, cols] = x[rows, inner] w[inner, cols] + bias[cols] */
DECLARE_KERNEL(linear_turned, float *y, const float *x, const float *w, const float *bias, int64_t rows, int64_t cols,
               int64_t inner);
/* y[D, T] = conv(x[C, L], w[D, C, 3]) + bias[D], one zero of padding at each end; T = (L - 1) / stride + 1 */
DECLARE_KERNEL(conv1d, float *y, const float *x, const float *w, const float *bias, int64_t D, int64_t C, int64_t L,
               int64_t stride);
DECLARE_KERNEL(naive_conv1d, float *y, const float *x, const float *w, const float *bias, int64_t D, int64_t C,
               int64_t L, int64_t stride);
/* y[H, Tq, Tk] = q[Tq, H, K] k[Tk, G, K]^T, head by head */
DECLARE_KERNEL(attention_scores, float *y, const float *q, const float *k, int64_t H, int64_t G, int64_t Tq, int64_t Tk,
               int64_t K);
DECLARE_KERNEL(naive_attention_scores, float *y, const float *q, const float *k, int64_t H, int64_t G, int64_t Tq,
               int64_t Tk, int64_t K);
/* y[Tq, H, K] = p[H, Tq, Tk] v[Tk, G, K], head by head, written token by token */
DECLARE_KERNEL(attention_mix, float *y, const float *p, const float *v, int64_t H, int64_t G, int64_t Tq, int64_t Tk,
               int64_t K);
DECLARE_KERNEL(naive_attention_mix, float *y, const float *p, const float *v, int64_t H, int64_t G, int64_t Tq,
               int64_t Tk, int64_t K);

/* y = x/2 (1 + erf(x / sqrt 2)) */
DECLARE_KERNEL(gelu, float *y, const float *x, int64_t count);
DECLARE_KERNEL(mul, float *y, const float *x, float factor, int64_t count);
DECLARE_KERNEL(add, float *y, const float *a, const float *b, int64_t count);
/* y[T, D] = a[D, T]^T + b[T, D] */
DECLARE_KERNEL(add_permuted, float *y, const float *a, const float *b, int64_t T, int64_t D);
/* y[rows, D] = (x - mean) / sqrt(variance + eps) * weight + bias */
DECLARE_KERNEL(layer_norm, float *y, const float *x, const float *weight, const float *bias, int64_t rows, int64_t D,
               float eps);
/* y[H, Tq, Tk] = x, and the lowest float32 added where the key comes more than `ahead` after the query (0: causal), or
   `window` or more before it (0: no window) */
DECLARE_KERNEL(causal_mask, float *y, const float *x, int64_t H, int64_t Tq, int64_t Tk, int64_t ahead, int64_t window);
DECLARE_KERNEL(softmax, float *y, const float *x, int64_t rows, int64_t cols);
/* y[T, D] = table[ids[T], D], of a type of blocks.h */
DECLARE_KERNEL(embedding, float *y, const int64_t *ids, const void *table, int64_t type, int64_t T, int64_t D);
/* y[T, D] = table[first + 0 .. T, D] */
DECLARE_KERNEL(positions, float *y, const float *table, int64_t first, int64_t T, int64_t D);
/* y[V] = x[V], -inf at the listed ids */
DECLARE_KERNEL(masked_fill, float *y, const float *x, const int64_t *ids, int64_t ids_count, int64_t V);
/* the first of the largest */
DECLARE_KERNEL(argmax, int64_t *y, const float *x, int64_t V);

/* y[rows, D] = x / sqrt(mean of squares + eps) * (offset + weight) */
DECLARE_KERNEL(rms_norm, float *y, const float *x, const float *weight, int64_t rows, int64_t D, float eps,
               float offset);
/* y[T, R] = scale cos or sin of (start + step first + t) frequency, of which there are R / 2 or R; each stands twice,
   side by side (`pairs`) or half of R apart, or once where there are R */
typedef struct {
    double start, step, scale;
    int64_t first, frequencies, pairs;
} Rope;
DECLARE_KERNEL(rope_cos, float *y, const float *frequency, Rope rope, int64_t T, int64_t R);
DECLARE_KERNEL(rope_sin, float *y, const float *frequency, Rope rope, int64_t T, int64_t R);
/* y[T, H, K] = x with its first `turned` elements turned: those half of them apart belong together, or (`pairs`)
   neighbours; cos and sin are [T, width], that of pair i in column i x every */
DECLARE_KERNEL(rope, float *y, const float *x, const float *cos, const float *sin, int64_t T, int64_t H, int64_t K,
               int64_t turned, int64_t width, int64_t every, int64_t pairs);
DECLARE_KERNEL(silu, float *y, const float *x, int64_t count);
DECLARE_KERNEL(sigmoid, float *y, const float *x, int64_t count);
/* y = x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
DECLARE_KERNEL(gelu_tanh, float *y, const float *x, int64_t count);
DECLARE_KERNEL(product, float *y, const float *a, const float *b, int64_t count);
/* y[rows, F] = (1 + up) gate sigmoid(slope gate) of x[rows, F, (gate, up)], the gate at most `limit`, |up| too */
DECLARE_KERNEL(clipped_gate, float *y, const float *x, float limit, float slope, int64_t count);
/* y = cap tanh(x / cap) */
DECLARE_KERNEL(soft_cap, float *y, const float *x, float cap, int64_t count);
/* y[H, Tq, Tk] = softmax of x and one more score for each head, whose share is left out */
DECLARE_KERNEL(softmax_sinks, float *y, const float *x, const float *sinks, int64_t H, int64_t Tq, int64_t Tk);
/* y[rows, cols] = x[rows, begin + 0 .. cols] of `width` columns */
DECLARE_KERNEL(columns, float *y, const float *x, int64_t rows, int64_t cols, int64_t begin, int64_t width);
/* y[rows, cols] = x * factor[rows] */
DECLARE_KERNEL(scale_rows, float *y, const float *x, const float *factor, int64_t rows, int64_t cols);
/* y[T, S] = places of the S largest of x[T, E], the largest first */
DECLARE_KERNEL(topk, int64_t *y, const float *x, int64_t T, int64_t E, int64_t S);
/* y[T, S] = x[T, ids] */
DECLARE_KERNEL(pick, float *y, const float *x, const int64_t *ids, int64_t T, int64_t E, int64_t S);
/* y[T, S] = x / sum of its row */
DECLARE_KERNEL(renormalise, float *y, const float *x, int64_t T, int64_t S);
/* y[count] = the places of ids, expert by expert */
DECLARE_KERNEL(expert_order, int64_t *y, const int64_t *ids, int64_t count);
/* y[i, cols] = w[ids[order[i]], cols, inner] x, of row order[i] / S of x where `spread`, else of row i; + bias;
   `turned`: w is [E, inner, cols] */
DECLARE_KERNEL(expert_linear, float *y, const float *x, const int64_t *ids, const int64_t *order, const float *w,
               const float *bias, int64_t count, int64_t cols, int64_t inner, int64_t S, int64_t spread,
               int64_t turned);
/* y[T, D] = sum over s of x[where order is T S + s] * weights[T, s] */
DECLARE_KERNEL(expert_sum, float *y, const float *x, const int64_t *order, const float *weights, int64_t T, int64_t S,
               int64_t D);

/* linear attention (delta.c), also words of dims there; N taps */
DECLARE_KERNEL(fill, float *y, float number, int64_t count);
#define MAX_PARTS 3
typedef struct {
    int64_t begin, cols;
} Part;
/* y[rows] = the parts one after the other, each of all blocks of x[rows, blocks, width]: its columns from begin on */
DECLARE_KERNEL(blocks_apart, float *y, const float *x, int64_t rows, int64_t blocks, int64_t width, const Part *parts);
/* y[T, C]: each channel by itself over the last N inputs; before the first of x those of state[N, C] */
DECLARE_KERNEL(causal_conv, float *y, const float *x, const float *state, const float *w, int64_t T, int64_t C,
               int64_t N);
/* next[N, C] = the last N inputs of state and x (`shift`: but for so many); may be written over the state */
DECLARE_KERNEL(conv_state, float *next, const float *x, const float *state, int64_t T, int64_t C, int64_t N,
               int64_t shift);
/* y[rows, H] = -exp(a_log) softplus(x + bias) */
DECLARE_KERNEL(decay, float *y, const float *x, const float *a_log, const float *bias, int64_t rows, int64_t H);
typedef struct {
    int64_t T, G, H, K, V, C; /* C = 2 G K + H V: columns of queries, keys, values */
    int64_t chunk;            /* tokens that are worked on together */
    int decayed, gated;       /* 0: as if every g were 0, every beta 1 */
} Delta;
/* from x[T, C], g[T, H], beta[T, H], state[H, K, V] to y[T, H, V] (NULL: not wanted) and the next state (likewise; may
   be written over the state) */
DECLARE_KERNEL(delta_rule, float *y, float *next, const float *x, const float *g, const float *beta, const float *state,
               const Delta *delta);
extern const Where where_delta_state;

/* rows next to each other in a cache: from x into it, or out of it into y */
DECLARE_KERNEL(store_rows, float *cache, const float *x, int64_t slot, int64_t rows, int64_t row);
DECLARE_KERNEL(load_rows, float *y, const float *cache, int64_t slot, int64_t rows, int64_t row);

#endif
