/* Kernels without sums of products: norms, softmax, activations, look-ups. Written as the maths reads; sums run in
   SPLIT parts that the compiler can keep in one vector, and each row is one thread's. */
#include "blocks.h"
#include "kernels.h"
#include "pool.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SPLIT 16
#define CHUNK 16384 /* elements that are worth a thread */

typedef struct {
    float *y;
    const float *a, *b, *c;
    int64_t rows, cols;
    float number;
} Args;

static int64_t rows_a_chunk(int64_t cols) { return 1 + CHUNK / (cols + 1); }

static void gelu_range(void *context, int64_t begin, int64_t end) {
    const Args *s = context;
    for (int64_t i = begin; i < end; i++) s->y[i] = 0.5f * s->a[i] * (1.0f + erff(s->a[i] * 0.70710678118654752440f));
}

KERNEL(gelu, float *y, const float *x, int64_t count) {
    Args s = {y, x, NULL, NULL, 0, 0, 0};
    parallel_for(count, CHUNK, gelu_range, &s);
}

KERNEL(mul, float *y, const float *x, float factor, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = x[i] * factor;
}

KERNEL(add, float *y, const float *a, const float *b, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = a[i] + b[i];
}

KERNEL(add_permuted, float *y, const float *a, const float *b, int64_t T, int64_t D) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) y[t * D + d] = a[d * T + t] + b[t * D + d];
}

static float split_sum(const float *x, int64_t count) {
    float part[SPLIT] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + SPLIT <= count; i += SPLIT)
        for (int lane = 0; lane < SPLIT; lane++) part[lane] += x[i + lane];
    for (int lane = 0; lane < SPLIT; lane++) sum += part[lane];
    for (; i < count; i++) sum += x[i];
    return sum;
}

static void layer_norm_rows(void *context, int64_t begin, int64_t end) {
    const Args *s = context;
    int64_t D = s->cols;
    for (int64_t row = begin; row < end; row++) {
        const float *x = s->a + row * D;
        float *y = s->y + row * D;
        float mean = split_sum(x, D) / (float)D;
        for (int64_t d = 0; d < D; d++) y[d] = (x[d] - mean) * (x[d] - mean);
        float scale = 1.0f / sqrtf(split_sum(y, D) / (float)D + s->number);
        for (int64_t d = 0; d < D; d++) y[d] = (x[d] - mean) * scale * s->b[d] + s->c[d];
    }
}

KERNEL(layer_norm, float *y, const float *x, const float *weight, const float *bias, int64_t rows, int64_t D,
       float eps) {
    Args s = {y, x, weight, bias, rows, D, eps};
    parallel_for(rows, rows_a_chunk(D), layer_norm_rows, &s);
}

KERNEL(causal_mask, float *y, const float *x, int64_t H, int64_t Tq, int64_t Tk, int64_t ahead, int64_t window) {
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < Tq; i++)
            for (int64_t j = 0; j < Tk; j++) {
                int64_t at = (h * Tq + i) * Tk + j, behind = i + Tk - Tq - j;
                y[at] = x[at] + (behind < -ahead || (window && behind >= window) ? -FLT_MAX : 0.0f);
            }
}

static void softmax_rows(void *context, int64_t begin, int64_t end) {
    const Args *s = context;
    int64_t cols = s->cols;
    for (int64_t row = begin; row < end; row++) {
        const float *x = s->a + row * cols;
        float *y = s->y + row * cols;
        float part[SPLIT], largest = x[0];
        int64_t i = 0;
        for (int lane = 0; lane < SPLIT; lane++) part[lane] = largest;
        for (; i + SPLIT <= cols; i += SPLIT)
            for (int lane = 0; lane < SPLIT; lane++) part[lane] = x[i + lane] > part[lane] ? x[i + lane] : part[lane];
        for (int lane = 0; lane < SPLIT; lane++) largest = part[lane] > largest ? part[lane] : largest;
        for (; i < cols; i++) largest = x[i] > largest ? x[i] : largest;
        for (i = 0; i < cols; i++) y[i] = expf(x[i] - largest);
        float scale = 1.0f / split_sum(y, cols);
        for (i = 0; i < cols; i++) y[i] *= scale;
    }
}

KERNEL(softmax, float *y, const float *x, int64_t rows, int64_t cols) {
    Args s = {y, x, NULL, NULL, rows, cols, 0};
    parallel_for(rows, rows_a_chunk(cols), softmax_rows, &s);
}

KERNEL(embedding, float *y, const int64_t *ids, const void *table, int64_t type, int64_t T, int64_t D) {
    const BlockType known = block_type((int)type);
    for (int64_t t = 0; t < T; t++) {
        const char *row = (const char *)table + ids[t] * (D / known.numbers * known.bytes);
        const float *from = row_of((int)type, row, D, y + t * D);
        if (from != y + t * D) memcpy(y + t * D, from, (size_t)D * sizeof(float));
    }
}

KERNEL(positions, float *y, const float *table, int64_t first, int64_t T, int64_t D) {
    memcpy(y, table + first * D, (size_t)(T * D) * sizeof(float));
}

KERNEL(masked_fill, float *y, const float *x, const int64_t *ids, int64_t ids_count, int64_t V) {
    const uint32_t infinity = 0xFF800000u; /* as bits: -ffast-math knows no infinity */
    memcpy(y, x, (size_t)V * sizeof(float));
    for (int64_t i = 0; i < ids_count; i++) memcpy(y + ids[i], &infinity, sizeof infinity);
}

KERNEL(argmax, int64_t *y, const float *x, int64_t V) {
    *y = 0;
    for (int64_t i = 1; i < V; i++)
        if (x[i] > x[*y]) *y = i;
}
