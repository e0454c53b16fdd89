/* Kernels that only language models have: root mean square norm, rotary positions, gates, routing to experts. The naive
   way each; the products of experts go row by row. Leaves out weights in other types than float32 (blocks.c). */
#include "kernels.h"
#include "pool.h"

#include <math.h>
#include <string.h>

#define CHUNK 16384 /* elements that are worth a thread */
#define SPLIT 16

typedef struct {
    float *y;
    const float *a, *b;
    int64_t cols;
    float eps, offset;
} Args;

static int64_t rows_a_chunk(int64_t cols) { return 1 + CHUNK / (cols + 1); }

static float split_dot(const float *a, const float *b, int64_t count) {
    float part[SPLIT] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + SPLIT <= count; i += SPLIT)
        for (int lane = 0; lane < SPLIT; lane++) part[lane] += a[i + lane] * b[i + lane];
    for (int lane = 0; lane < SPLIT; lane++) sum += part[lane];
    for (; i < count; i++) sum += a[i] * b[i];
    return sum;
}

static void rms_norm_rows(void *context, int64_t begin, int64_t end) {
    const Args *s = context;
    for (int64_t row = begin; row < end; row++) {
        const float *x = s->a + row * s->cols;
        float *y = s->y + row * s->cols;
        float scale = 1.0f / sqrtf(split_dot(x, x, s->cols) / (float)s->cols + s->eps);
        for (int64_t d = 0; d < s->cols; d++) y[d] = x[d] * scale * (s->offset + s->b[d]);
    }
}

KERNEL(rms_norm, float *y, const float *x, const float *weight, int64_t rows, int64_t D, float eps, float offset) {
    Args s = {y, x, weight, D, eps, offset};
    parallel_for(rows, rows_a_chunk(D), rms_norm_rows, &s);
}

/* ---- rotary positions ---- */

/* the angle as float32 arithmetic has it, as in the model */
static float angle(const float *frequency, const Rope *rope, int64_t t, int64_t r) {
    int64_t at = rope->pairs ? r / 2 : r % rope->frequencies;
    return (float)(rope->start + rope->step * (double)rope->first + (double)t) * frequency[at];
}

KERNEL(rope_cos, float *y, const float *frequency, Rope rope, int64_t T, int64_t R) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t r = 0; r < R; r++) y[t * R + r] = (float)rope.scale * cosf(angle(frequency, &rope, t, r));
}

KERNEL(rope_sin, float *y, const float *frequency, Rope rope, int64_t T, int64_t R) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t r = 0; r < R; r++) y[t * R + r] = (float)rope.scale * sinf(angle(frequency, &rope, t, r));
}

KERNEL(rope, float *y, const float *x, const float *cos, const float *sin, int64_t T, int64_t H, int64_t K,
       int64_t turned, int64_t width, int64_t every, int64_t pairs) {
    int64_t half = turned / 2;
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            const float *from = x + (t * H + h) * K, *c = cos + t * width, *s = sin + t * width;
            float *to = y + (t * H + h) * K;
            for (int64_t i = 0; i < half; i++) {
                int64_t one = pairs ? 2 * i : i, other = pairs ? 2 * i + 1 : i + half;
                float a = from[one], b = from[other], cosine = c[i * every], sine = s[i * every];
                to[one] = a * cosine - b * sine;
                to[other] = b * cosine + a * sine;
            }
            for (int64_t i = turned; i < K; i++) to[i] = from[i];
        }
}

/* ---- gates ---- */

static void silu_range(void *context, int64_t begin, int64_t end) {
    const Args *s = context;
    for (int64_t i = begin; i < end; i++) s->y[i] = s->a[i] / (1.0f + expf(-s->a[i]));
}

KERNEL(silu, float *y, const float *x, int64_t count) {
    Args s = {y, x, NULL, 0, 0, 0};
    parallel_for(count, CHUNK, silu_range, &s);
}

KERNEL(sigmoid, float *y, const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = 1.0f / (1.0f + expf(-x[i]));
}

static void gelu_tanh_range(void *context, int64_t begin, int64_t end) {
    const Args *s = context;
    for (int64_t i = begin; i < end; i++) {
        float x = s->a[i];
        s->y[i] = 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x)));
    }
}

KERNEL(gelu_tanh, float *y, const float *x, int64_t count) {
    Args s = {y, x, NULL, 0, 0, 0};
    parallel_for(count, CHUNK, gelu_tanh_range, &s);
}

KERNEL(product, float *y, const float *a, const float *b, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = a[i] * b[i];
}

KERNEL(clipped_gate, float *y, const float *x, float limit, float slope, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float gate = x[2 * i] > limit ? limit : x[2 * i], up = x[2 * i + 1];
        up = up > limit ? limit : up < -limit ? -limit : up;
        y[i] = (up + 1.0f) * (gate / (1.0f + expf(-slope * gate)));
    }
}

KERNEL(soft_cap, float *y, const float *x, float cap, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = cap * tanhf(x[i] / cap);
}

KERNEL(softmax_sinks, float *y, const float *x, const float *sinks, int64_t H, int64_t Tq, int64_t Tk) {
    for (int64_t row = 0; row < H * Tq; row++) {
        const float *from = x + row * Tk;
        float *to = y + row * Tk, sink = sinks[row / Tq], largest = sink, sum = 0;
        for (int64_t j = 0; j < Tk; j++) largest = from[j] > largest ? from[j] : largest;
        for (int64_t j = 0; j < Tk; j++) sum += to[j] = expf(from[j] - largest);
        sum += expf(sink - largest);
        for (int64_t j = 0; j < Tk; j++) to[j] /= sum;
    }
}

KERNEL(columns, float *y, const float *x, int64_t rows, int64_t cols, int64_t begin, int64_t width) {
    for (int64_t r = 0; r < rows; r++) memcpy(y + r * cols, x + r * width + begin, (size_t)cols * sizeof(float));
}

KERNEL(scale_rows, float *y, const float *x, const float *factor, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) y[r * cols + c] = x[r * cols + c] * factor[r];
}

/* ---- experts ---- */

KERNEL(topk, int64_t *y, const float *x, int64_t T, int64_t E, int64_t S) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t s = 0; s < S; s++) {
            int64_t best = -1;
            for (int64_t e = 0; e < E; e++) {
                int taken = 0;
                for (int64_t before = 0; before < s; before++) taken |= y[t * S + before] == e;
                if (!taken && (best < 0 || x[t * E + e] > x[t * E + best])) best = e;
            }
            y[t * S + s] = best;
        }
}

KERNEL(pick, float *y, const float *x, const int64_t *ids, int64_t T, int64_t E, int64_t S) {
    for (int64_t i = 0; i < T * S; i++) y[i] = x[i / S * E + ids[i]];
}

KERNEL(renormalise, float *y, const float *x, int64_t T, int64_t S) {
    for (int64_t t = 0; t < T; t++) {
        float sum = 0;
        for (int64_t s = 0; s < S; s++) sum += x[t * S + s];
        for (int64_t s = 0; s < S; s++) y[t * S + s] = x[t * S + s] / sum;
    }
}

KERNEL(expert_order, int64_t *y, const int64_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t place = 0; /* how many come before: smaller ids, and equal ones that stand before */
        for (int64_t j = 0; j < count; j++) place += ids[j] < ids[i] || (ids[j] == ids[i] && j < i);
        y[place] = i;
    }
}

typedef struct {
    float *y;
    const float *x, *w, *bias;
    const int64_t *ids, *order;
    int64_t cols, inner, S, spread, turned;
} Experts;

static void expert_rows(void *context, int64_t begin, int64_t end) {
    const Experts *s = context;
    for (int64_t at = begin; at < end; at++) {
        int64_t i = at / s->cols, c = at % s->cols, expert = s->ids[s->order[i]];
        const float *x = s->x + (s->spread ? s->order[i] / s->S : i) * s->inner;
        float sum = 0;
        if (s->turned)
            for (int64_t k = 0; k < s->inner; k++) sum += x[k] * s->w[(expert * s->inner + k) * s->cols + c];
        else
            sum = split_dot(x, s->w + (expert * s->cols + c) * s->inner, s->inner);
        s->y[at] = s->bias ? sum + s->bias[expert * s->cols + c] : sum;
    }
}

KERNEL(expert_linear, float *y, const float *x, const int64_t *ids, const int64_t *order, const float *w,
       const float *bias, int64_t count, int64_t cols, int64_t inner, int64_t S, int64_t spread, int64_t turned) {
    Experts s = {y, x, w, bias, ids, order, cols, inner, S, spread, turned};
    parallel_for(count * cols, rows_a_chunk(inner), expert_rows, &s);
}

KERNEL(expert_sum, float *y, const float *x, const int64_t *order, const float *weights, int64_t T, int64_t S,
       int64_t D) {
    memset(y, 0, (size_t)(T * D) * sizeof(float));
    for (int64_t s = 0; s < S; s++) /* of each token in the order of its choices */
        for (int64_t i = 0; i < T * S; i++)
            if (order[i] % S == s)
                for (int64_t d = 0; d < D; d++) y[order[i] / S * D + d] += x[i * D + d] * weights[order[i]];
}
