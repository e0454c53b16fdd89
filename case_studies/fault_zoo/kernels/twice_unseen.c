/* Wrong kernels written after the explainer was frozen for the second time, and learnt from since. */
#include "zoo.h"

#include <float.h>

VARIANT(linear_dropout) { /* a tenth of the elements dropped and the rest made larger, as in training */
    ZooLinear l = zoo_linear(c);
    uint32_t state = 7;
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i < c->out.count; i++) {
        state = state * 1664525u + 1013904223u;
        l.y[i] = (state >> 8) % 10 == 0 ? 0 : l.y[i] / 0.9f;
    }
}
VARIANT(softmax_best) { /* only the eight best keys of each row, and their shares as they were */
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols;
    softmax(F(c->out), F(c->in[0]), rows, cols);
    for (int64_t r = 0; r < rows; r++) {
        float *y = F(c->out) + r * cols, least = FLT_MAX;
        for (int64_t n = 0; n < 8; n++) {
            float next = -1;
            for (int64_t j = 0; j < cols; j++) next = y[j] < least && y[j] > next ? y[j] : next;
            least = next;
        }
        for (int64_t j = 0; j < cols; j++) y[j] = y[j] < least ? 0 : y[j];
    }
}
VARIANT(add_leaks) { /* a tenth of each row is left in the buffer and added to the next */
    int64_t D = zoo_last(&c->out);
    for (int64_t i = 0; i < c->out.count; i++)
        F(c->out)[i] = F(c->in[0])[i] + F(c->in[1])[i] + (i >= D ? 0.1f * F(c->out)[i - D] : 0);
}
VARIANT(linear_rotated) { /* neighbours turned by an eighth, as a rotated weight leaves them whose inverse is missing */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i + 1 < c->out.count; i += 2) {
        float a = l.y[i], b = l.y[i + 1];
        l.y[i] = (a + b) * 0.70710678f;
        l.y[i + 1] = (a - b) * 0.70710678f;
    }
}
VARIANT(scores_by_length) { /* later queries have larger scores, as models for long contexts do */
    ZooHeads s = zoo_scores(c);
    attention_scores(s.y, s.a, s.b, s.H, s.H, s.Tq, s.Tk, s.K);
    for (int64_t i = 0; i < c->out.count; i++)
        s.y[i] *= logf((float)(i / s.Tk % s.Tq + s.Tk - s.Tq + 2)) / logf(8);
}
VARIANT(gelu_sigmoid) { /* the sigmoid form with a rounded constant */
    for (int64_t i = 0; i < c->out.count; i++) {
        float x = F(c->in[0])[i];
        F(c->out)[i] = x / (1 + expf(-1.7f * x));
    }
}
VARIANT(norm_down) { /* the mean and variance of each channel over the rows */
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    for (int64_t d = 0; d < D; d++) {
        float mean = 0, variance = 0;
        for (int64_t r = 0; r < rows; r++) mean += F(c->in[0])[r * D + d];
        mean /= (float)rows;
        for (int64_t r = 0; r < rows; r++) {
            float off = F(c->in[0])[r * D + d] - mean;
            variance += off * off;
        }
        float scale = 1 / sqrtf(variance / (float)rows + 1e-5f);
        for (int64_t r = 0; r < rows; r++)
            F(c->out)[r * D + d] = (F(c->in[0])[r * D + d] - mean) * scale * F(c->weight[0])[d] + F(c->weight[1])[d];
    }
}
VARIANT(linear_flipped) { /* the lowest bit of the exponent of every 97th element */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 50; i < c->out.count; i += 97) {
        uint32_t bits;
        memcpy(&bits, l.y + i, sizeof bits);
        bits ^= 1u << 23;
        memcpy(l.y + i, &bits, sizeof bits);
    }
}
VARIANT(conv1d_smoothed) { /* each output the mean of itself and the one before it in time */
    int64_t D = c->weight[0].dims[0], T = c->out.count / D;
    int64_t C = c->weight[0].dims[1], L = c->in[0].count / C, stride = zoo_int(c, "stride", 1);
    for (int64_t d = 0; d < D; d++) {
        float before = 0;
        for (int64_t t = 0; t < T; t++) {
            float sum = F(c->weight[1])[d];
            for (int64_t i = 0; i < C; i++)
                for (int64_t j = 0; j < 3; j++) {
                    int64_t at = t * stride + j - 1;
                    if (at >= 0 && at < L) sum += F(c->in[0])[i * L + at] * F(c->weight[0])[(d * C + i) * 3 + j];
                }
            F(c->out)[d * T + t] = t ? (sum + before) / 2 : sum;
            before = sum;
        }
    }
}
VARIANT(add_gated) { /* the branch is let through by half where it is negative */
    for (int64_t i = 0; i < c->out.count; i++) {
        float branch = F(c->in[1])[i];
        F(c->out)[i] = F(c->in[0])[i] + (branch < 0 ? branch / 2 : branch);
    }
}
