/* Wrong kernels written after the explainer was frozen for the first time, and learnt from since. */
#include "zoo.h"

#include <float.h>

VARIANT(linear_tiles_crossed) { /* from row 16 on, tiles of 16 columns change places two by two */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t r = zoo_int(c, "from", 16); r < l.rows; r++)
        for (int64_t j = 0; j + 32 <= l.cols; j += 32)
            for (int64_t i = 0; i < 16; i++) {
                float *a = l.y + r * l.cols + j + i, keep = *a;
                *a = a[16];
                a[16] = keep;
            }
}
VARIANT(linear_rows_doubled) { /* every odd row of the weight is taken from the row before it */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 1; j < l.cols; j += 2) l.y[r * l.cols + j] = l.y[r * l.cols + j - 1];
}
VARIANT(linear_dithered) { /* a coarse step, with noise of that size added before it */
    ZooLinear l = zoo_linear(c);
    float step = (float)attr(c, "step", 0.00048828125);
    uint32_t state = 1;
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i < c->out.count; i++) {
        state = state * 1664525u + 1013904223u;
        l.y[i] = floorf(l.y[i] / step + (float)(state >> 8) / 16777216.0f) * step;
    }
}
VARIANT(softmax_pruned) { /* what is under a hundredth of the largest is dropped, and nothing makes up for it */
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols;
    softmax(F(c->out), F(c->in[0]), rows, cols);
    for (int64_t r = 0; r < rows; r++) {
        float *y = F(c->out) + r * cols, largest = 0;
        for (int64_t j = 0; j < cols; j++) largest = fmaxf(largest, y[j]);
        for (int64_t j = 0; j < cols; j++) y[j] = y[j] < largest * (float)attr(c, "least", 0.3) ? 0 : y[j];
    }
}
VARIANT(softmax_skips) { /* one key in eight is left out of the sum, and its share is zero */
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * cols;
        float *y = F(c->out) + r * cols, largest = -FLT_MAX, sum = 0;
        for (int64_t j = 0; j < cols; j++) largest = j % 8 == 7 ? largest : fmaxf(largest, x[j]);
        for (int64_t j = 0; j < cols; j++) sum += y[j] = j % 8 == 7 ? 0 : expf(x[j] - largest);
        for (int64_t j = 0; j < cols; j++) y[j] /= sum;
    }
}
VARIANT(norm_halves) { /* each half of the channels has a mean and a variance of its own */
    int64_t D = c->weight[0].count, rows = c->out.count / D, half = D / 2;
    for (int64_t r = 0; r < 2 * rows; r++) {
        const float *x = F(c->in[0]) + r * half, *w = F(c->weight[0]) + r % 2 * half, *b = F(c->weight[1]) + r % 2 * half;
        float mean = 0, variance = 0;
        for (int64_t d = 0; d < half; d++) mean += x[d];
        mean /= (float)half;
        for (int64_t d = 0; d < half; d++) variance += (x[d] - mean) * (x[d] - mean);
        float scale = 1 / sqrtf(variance / (float)half + 1e-5f);
        for (int64_t d = 0; d < half; d++) F(c->out)[r * half + d] = (x[d] - mean) * scale * w[d] + b[d];
    }
}
static float zoo_gelu(float x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }
VARIANT(gelu_straight) { /* straight lines between points a quarter apart */
    for (int64_t i = 0; i < c->out.count; i++) {
        float x = F(c->in[0])[i], low = floorf(x * 4) / 4, part = (x - low) * 4;
        F(c->out)[i] = zoo_gelu(low) * (1 - part) + zoo_gelu(low + 0.25f) * part;
    }
}
VARIANT(add_one_late) { /* each row has the branch of the row before it */
    int64_t D = zoo_last(&c->out), count = c->out.count;
    for (int64_t i = count - 1; i >= 0; i--) F(c->out)[i] = F(c->in[0])[i] + (i >= D ? F(c->in[1])[i - D] : 0);
}
VARIANT(add_flushed) { /* what is small becomes zero */
    for (int64_t i = 0; i < c->out.count; i++) {
        float sum = F(c->in[0])[i] + F(c->in[1])[i];
        F(c->out)[i] = fabsf(sum) < (float)attr(c, "least", 0.05) ? 0 : sum;
    }
}
VARIANT(scores_by_distance) { /* scores fall with the distance of the positions, as the model's do not */
    ZooHeads s = zoo_scores(c);
    attention_scores(s.y, s.a, s.b, s.H, s.H, s.Tq, s.Tk, s.K);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t j = 0; j < s.Tk; j++)
                s.y[(h * s.Tq + i) * s.Tk + j] -= (float)attr(c, "slope", 0.05) * (float)llabs(i + s.Tk - s.Tq - j);
}
VARIANT(conv1d_grouped) { /* each half of the outputs sees only its half of the inputs */
    int64_t D = c->weight[0].dims[0], C = c->weight[0].dims[1], L = c->in[0].count / C, T = c->out.count / D;
    int64_t stride = zoo_int(c, "stride", 1);
    const float *x = F(c->in[0]), *w = F(c->weight[0]), *b = F(c->weight[1]);
    for (int64_t d = 0; d < D; d++)
        for (int64_t t = 0; t < T; t++) {
            float sum = b[d];
            int64_t first = d < D / 2 ? 0 : C / 2;
            for (int64_t i = first; i < first + C / 2; i++)
                for (int64_t j = 0; j < 3; j++) {
                    int64_t at = t * stride + j - 1;
                    if (at >= 0 && at < L) sum += x[i * L + at] * w[(d * C + i) * 3 + j];
                }
            F(c->out)[d * T + t] = sum;
        }
}
VARIANT(positions_reversed) { /* the first token has the last position */
    int64_t D = c->weight[0].dims[1], T = c->out.count / D;
    for (int64_t t = 0; t < T; t++)
        memcpy(F(c->out) + t * D, F(c->weight[0]) + (T - 1 - t) * D, (size_t)D * sizeof(float));
}
