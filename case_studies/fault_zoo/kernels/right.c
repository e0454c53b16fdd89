/* Right kernels, written another way: what a tool must never call a fault. Another order of summation, another
   blocking, fused steps, a stable form in place of a plain one. */
#include "zoo.h"

#include <float.h>

static float pairwise(const float *a, const float *b, int64_t n) {
    if (n <= 8) {
        float sum = 0;
        for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
        return sum;
    }
    return pairwise(a, b, n / 2) + pairwise(a + n / 2, b + n / 2, n - n / 2);
}
static float backwards(const float *a, const float *b, int64_t n) {
    float sum = 0;
    while (n-- > 0) sum += a[n] * b[n];
    return sum;
}
static float compensated(const float *a, const float *b, int64_t n) {
    volatile float sum = 0, rest = 0; /* volatile: -ffast-math would throw the compensation away */
    for (int64_t i = 0; i < n; i++) {
        volatile float y = a[i] * b[i] - rest, t = sum + y;
        rest = (t - sum) - y;
        sum = t;
    }
    return sum;
}
static float in_double(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return (float)sum;
}
static float strided(const float *a, const float *b, int64_t n) { /* four interleaved sums, as SIMD lanes keep them */
    float part[4] = {0};
    for (int64_t i = 0; i < n; i++) part[i % 4] += a[i] * b[i];
    return (part[0] + part[2]) + (part[1] + part[3]);
}
static float split(const float *a, const float *b, int64_t n) { /* split-K: two halves, one addition */
    float low = 0, high = 0;
    for (int64_t i = 0; i < n / 2; i++) low += a[i] * b[i];
    for (int64_t i = n / 2; i < n; i++) high += a[i] * b[i];
    return low + high;
}

typedef float (*Dot)(const float *, const float *, int64_t);

static void linear_by(const Call *c, Dot dot, int bias_first) {
    ZooLinear l = zoo_linear(c);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) {
            float sum = dot(l.x + r * l.inner, l.w + j * l.inner, l.inner), b = l.b ? l.b[j] : 0;
            l.y[r * l.cols + j] = bias_first ? b + sum : sum + b;
        }
}
VARIANT(linear_pairwise) { linear_by(c, pairwise, 0); }
VARIANT(linear_backwards) { linear_by(c, backwards, 0); }
VARIANT(linear_compensated) { linear_by(c, compensated, 0); }
VARIANT(linear_in_double) { linear_by(c, in_double, 1); }
VARIANT(linear_strided) { linear_by(c, strided, 0); }
VARIANT(linear_split) { linear_by(c, split, 1); }

VARIANT(linear_bias_inside) { /* the sum starts at the bias */
    ZooLinear l = zoo_linear(c);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) {
            float sum = l.b ? l.b[j] : 0;
            for (int64_t k = 0; k < l.inner; k++) sum += l.x[r * l.inner + k] * l.w[j * l.inner + k];
            l.y[r * l.cols + j] = sum;
        }
}

static void scores_by(const Call *c, Dot dot) {
    ZooHeads s = zoo_scores(c);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t j = 0; j < s.Tk; j++)
                s.y[(h * s.Tq + i) * s.Tk + j] = dot(s.a + (i * s.H + h) * s.K, s.b + (j * s.H + h) * s.K, s.K);
}
VARIANT(scores_backwards) { scores_by(c, backwards); }
VARIANT(scores_pairwise) { scores_by(c, pairwise); }
VARIANT(scores_in_double) { scores_by(c, in_double); }

static void mix_by(const Call *c, int64_t block) { /* sums of a block of keys are added to what is there */
    ZooHeads s = zoo_mix(c);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t k = 0; k < s.K; k++) {
                float total = 0;
                for (int64_t from = 0; from < s.Tk; from += block) {
                    float sum = 0;
                    for (int64_t j = from; j < s.Tk && j < from + block; j++)
                        sum += s.a[(h * s.Tq + i) * s.Tk + j] * s.b[(j * s.H + h) * s.K + k];
                    total += sum;
                }
                s.y[(i * s.H + h) * s.K + k] = total;
            }
}
VARIANT(mix_blocked) { mix_by(c, 8); }
VARIANT(mix_plain) { mix_by(c, INT64_MAX / 2); }

VARIANT(conv1d_by_tap) { /* tap by tap instead of channel by channel */
    int64_t D = c->weight[0].dims[0], C = c->weight[0].dims[1], L = c->in[0].count / C, T = c->out.count / D;
    int64_t stride = zoo_int(c, "stride", 1);
    const float *x = F(c->in[0]), *w = F(c->weight[0]), *b = F(c->weight[1]);
    for (int64_t d = 0; d < D; d++)
        for (int64_t t = 0; t < T; t++) {
            float sum = b[d];
            for (int64_t j = 0; j < 3; j++)
                for (int64_t i = 0; i < C; i++) {
                    int64_t at = t * stride + j - 1;
                    if (at >= 0 && at < L) sum += x[i * L + at] * w[(d * C + i) * 3 + j];
                }
            F(c->out)[d * T + t] = sum;
        }
}

VARIANT(norm_welford) {
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    float eps = (float)attr(c, "eps", 1e-5);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * D;
        float mean = 0, m2 = 0;
        for (int64_t d = 0; d < D; d++) {
            float delta = x[d] - mean;
            mean += delta / (float)(d + 1);
            m2 += delta * (x[d] - mean);
        }
        float scale = 1 / sqrtf(m2 / (float)D + eps);
        for (int64_t d = 0; d < D; d++) F(c->out)[r * D + d] = (x[d] - mean) * scale * F(c->weight[0])[d] + F(c->weight[1])[d];
    }
}
VARIANT(norm_in_double) {
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    double eps = attr(c, "eps", 1e-5);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * D;
        double mean = 0, variance = 0;
        for (int64_t d = 0; d < D; d++) mean += x[d];
        mean /= (double)D;
        for (int64_t d = 0; d < D; d++) variance += (x[d] - mean) * (x[d] - mean);
        double scale = 1 / sqrt(variance / (double)D + eps);
        for (int64_t d = 0; d < D; d++)
            F(c->out)[r * D + d] = (float)((x[d] - mean) * scale * F(c->weight[0])[d] + F(c->weight[1])[d]);
    }
}
VARIANT(norm_folded) { /* scale and shift folded into one multiply and add: x a + (b - mean a) */
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    float eps = (float)attr(c, "eps", 1e-5);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * D;
        float mean = 0, variance = 0;
        for (int64_t d = 0; d < D; d++) mean += x[d];
        mean /= (float)D;
        for (int64_t d = 0; d < D; d++) variance += (x[d] - mean) * (x[d] - mean);
        float scale = 1 / sqrtf(variance / (float)D + eps);
        for (int64_t d = 0; d < D; d++) {
            float a = scale * F(c->weight[0])[d];
            F(c->out)[r * D + d] = x[d] * a + (F(c->weight[1])[d] - mean * a);
        }
    }
}

VARIANT(softmax_online) { /* one pass with a running maximum, as blocked attention does */
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * cols;
        float *y = F(c->out) + r * cols, largest = -INFINITY, sum = 0;
        for (int64_t from = 0; from < cols; from += 8) {
            float before = largest;
            for (int64_t j = from; j < cols && j < from + 8; j++) largest = fmaxf(largest, x[j]);
            sum *= expf(before - largest);
            for (int64_t j = from; j < cols && j < from + 8; j++) sum += expf(x[j] - largest);
        }
        for (int64_t j = 0; j < cols; j++) y[j] = expf(x[j] - largest) / sum;
    }
}
VARIANT(softmax_backwards) {
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * cols;
        float *y = F(c->out) + r * cols, largest = x[0], sum = 0;
        for (int64_t j = 1; j < cols; j++) largest = fmaxf(largest, x[j]);
        for (int64_t j = cols; j-- > 0;) sum += y[j] = expf(x[j] - largest);
        for (int64_t j = 0; j < cols; j++) y[j] /= sum;
    }
}
VARIANT(softmax_in_double) {
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * cols;
        float largest = x[0];
        double sum = 0;
        for (int64_t j = 1; j < cols; j++) largest = fmaxf(largest, x[j]);
        for (int64_t j = 0; j < cols; j++) sum += exp((double)x[j] - largest);
        for (int64_t j = 0; j < cols; j++) F(c->out)[r * cols + j] = (float)(exp((double)x[j] - largest) / sum);
    }
}

VARIANT(gelu_by_erfc) { /* x/2 erfc(-x / sqrt 2): exact where 1 + erf cancels */
    for (int64_t i = 0; i < c->out.count; i++)
        F(c->out)[i] = 0.5f * F(c->in[0])[i] * erfcf(-F(c->in[0])[i] * 0.70710678118654752440f);
}
VARIANT(gelu_in_double) {
    for (int64_t i = 0; i < c->out.count; i++) {
        double x = F(c->in[0])[i];
        F(c->out)[i] = (float)(0.5 * x * (1 + erf(x * 0.70710678118654752440)));
    }
}
VARIANT(mul_by_division) {
    for (int64_t i = 0; i < c->out.count; i++) F(c->out)[i] = F(c->in[0])[i] / (float)(1 / attr(c, "factor", 1));
}
VARIANT(mask_by_choice) { /* the score or a very low number, where the model adds one */
    int64_t H = c->runtime->program->heads, Tk = zoo_last(&c->out), Tq = c->out.count / (H * Tk);
    for (int64_t at = 0; at < c->out.count; at++) {
        int64_t i = at / Tk % Tq, j = at % Tk;
        F(c->out)[at] = j > i + Tk - Tq ? -FLT_MAX : F(c->in[0])[at];
    }
    (void)H;
}
