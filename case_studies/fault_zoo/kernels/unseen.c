/* Wrong kernels written after the explainer was frozen for the third time: bugs that engines have, most of them from public reports. */
#include "zoo.h"

#include <float.h>

/* ---- norms ---- */

VARIANT(norm_padded) { /* rows are padded with zeros to half as much again, and their whole length is what sums are divided by */
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    float eps = (float)attr(c, "eps", 1e-5), length = (float)(D + D / 2);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * D;
        float mean = 0, variance = 0;
        for (int64_t d = 0; d < D; d++) mean += x[d];
        mean /= length;
        for (int64_t d = 0; d < D; d++) variance += (x[d] - mean) * (x[d] - mean);
        variance = (variance + (length - (float)D) * mean * mean) / length;
        float scale = 1 / sqrtf(variance + eps);
        for (int64_t d = 0; d < D; d++) F(c->out)[r * D + d] = (x[d] - mean) * scale * F(c->weight[0])[d] + F(c->weight[1])[d];
    }
}
VARIANT(norm_partial) { /* the last quarter of the channels, a remainder of the reduction, is left out of mean and variance */
    int64_t D = c->weight[0].count, rows = c->out.count / D, seen = D - D / 4;
    float eps = (float)attr(c, "eps", 1e-5);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * D;
        float mean = 0, variance = 0;
        for (int64_t d = 0; d < seen; d++) mean += x[d];
        mean /= (float)seen;
        for (int64_t d = 0; d < seen; d++) variance += (x[d] - mean) * (x[d] - mean);
        float scale = 1 / sqrtf(variance / (float)seen + eps);
        for (int64_t d = 0; d < D; d++) F(c->out)[r * D + d] = (x[d] - mean) * scale * F(c->weight[0])[d] + F(c->weight[1])[d];
    }
}

/* ---- softmax ---- */

static float zoo_largest(const float *x, int64_t from, int64_t to) {
    float largest = -FLT_MAX;
    for (int64_t j = from; j < to; j++) largest = fmaxf(largest, x[j]);
    return largest;
}
VARIANT(softmax_raw_tail) { /* the last tile adds e^x to the sum where all others add e^(x - largest) */
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols, tile = zoo_int(c, "tile", 16), tail = (cols - 1) / tile * tile;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * cols;
        float largest = zoo_largest(x, 0, cols), sum = 0;
        for (int64_t j = 0; j < cols; j++) sum += expf(x[j] - (j < tail ? largest : 0));
        for (int64_t j = 0; j < cols; j++) F(c->out)[r * cols + j] = expf(x[j] - largest) / sum;
    }
}
VARIANT(softmax_unscaled) { /* one pass with a running maximum, and the sum so far is not scaled when that grows */
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols, block = zoo_int(c, "block", 8);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * cols;
        float largest = -FLT_MAX, sum = 0;
        for (int64_t from = 0; from < cols; from += block) {
            int64_t to = from + block < cols ? from + block : cols;
            largest = fmaxf(largest, zoo_largest(x, from, to));
            for (int64_t j = from; j < to; j++) sum += expf(x[j] - largest);
        }
        for (int64_t j = 0; j < cols; j++) F(c->out)[r * cols + j] = expf(x[j] - largest) / sum;
    }
}
VARIANT(softmax_pieces) { /* each block of keys is a softmax of its own, and the blocks weigh the same */
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols, block = zoo_int(c, "block", 8);
    int64_t blocks = (cols + block - 1) / block;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t from = 0; from < cols; from += block) {
            const float *x = F(c->in[0]) + r * cols;
            int64_t to = from + block < cols ? from + block : cols;
            float largest = zoo_largest(x, from, to), sum = 0;
            for (int64_t j = from; j < to; j++) sum += expf(x[j] - largest);
            for (int64_t j = from; j < to; j++) F(c->out)[r * cols + j] = expf(x[j] - largest) / (sum * (float)blocks);
        }
}

/* ---- linear ---- */

VARIANT(linear_bias_by_row) { /* the bias is spread along the wrong axis: one number of it for each row */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, NULL, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i < c->out.count; i++) l.y[i] += l.b[i / l.cols % l.cols];
}
VARIANT(linear_offset) { /* the weight is read from a place some numbers beyond its first */
    ZooLinear l = zoo_linear(c);
    int64_t off = zoo_int(c, "off", 3);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) {
            float sum = 0;
            for (int64_t k = 0; k < l.inner; k++) {
                int64_t at = j * l.inner + k + off;
                sum += l.x[r * l.inner + k] * (at < l.cols * l.inner ? l.w[at] : 0);
            }
            l.y[r * l.cols + j] = sum + (l.b ? l.b[j] : 0);
        }
}
VARIANT(linear_lane) { /* of eight sums side by side, the sixth is left out when they are added up */
    ZooLinear l = zoo_linear(c);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) {
            float sum = 0;
            for (int64_t k = 0; k < l.inner; k++) sum += k % 8 == 5 ? 0 : l.x[r * l.inner + k] * l.w[j * l.inner + k];
            l.y[r * l.cols + j] = sum + (l.b ? l.b[j] : 0);
        }
}
VARIANT(linear_zero_point) { /* a weight of eight bits, one scale a row, whose zero point is taken one too low */
    ZooLinear l = zoo_linear(c);
    float *w = zoo_room(l.cols * l.inner);
    for (int64_t j = 0; j < l.cols; j++) {
        float step = 0;
        for (int64_t k = 0; k < l.inner; k++) step = fmaxf(step, fabsf(l.w[j * l.inner + k]) / 127);
        for (int64_t k = 0; k < l.inner; k++) w[j * l.inner + k] = (nearbyintf(l.w[j * l.inner + k] / step) + 1) * step;
    }
    linear(l.y, l.x, w, l.b, l.rows, l.cols, l.inner);
    free(w);
}
VARIANT(linear_overlap) { /* the last chunk of terms is moved back to be a whole one: those that two chunks share count twice */
    ZooLinear l = zoo_linear(c);
    int64_t chunk = zoo_int(c, "chunk", 24), whole = l.inner / chunk * chunk, last = l.inner - chunk;
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) {
            const float *x = l.x + r * l.inner, *w = l.w + j * l.inner;
            float sum = 0;
            for (int64_t k = 0; k < whole; k++) sum += x[k] * w[k];
            for (int64_t k = last; k < l.inner && whole < l.inner; k++) sum += x[k] * w[k];
            l.y[r * l.cols + j] = sum + (l.b ? l.b[j] : 0);
        }
}
VARIANT(linear_rows_wrapped) { /* rows beyond the first tile are those of the first tile once more */
    ZooLinear l = zoo_linear(c);
    int64_t tile = zoo_int(c, "tile", 16);
    linear(l.y, l.x, l.w, l.b, l.rows < tile ? l.rows : tile, l.cols, l.inner);
    for (int64_t r = tile; r < l.rows; r++) memcpy(l.y + r * l.cols, l.y + r % tile * l.cols, (size_t)l.cols * 4);
}
VARIANT(linear_accumulated) { /* added to what the buffer held, which nobody has cleared */
    ZooLinear l = zoo_linear(c);
    float *held = zoo_room(c->out.count);
    memcpy(held, l.y, (size_t)c->out.count * 4);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i < c->out.count; i++) l.y[i] += held[i];
    free(held);
}

/* ---- attention ---- */

VARIANT(mix_pages) { /* the first two pages of values have changed places, those of the keys have not */
    ZooHeads s = zoo_mix(c);
    int64_t page = zoo_int(c, "page", 8);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t k = 0; k < s.K; k++) {
                float sum = 0;
                for (int64_t j = 0; j < s.Tk; j++) {
                    int64_t from = s.Tk < 2 * page || j >= 2 * page ? j : (j + page) % (2 * page);
                    sum += s.a[(h * s.Tq + i) * s.Tk + j] * s.b[(from * s.H + h) * s.K + k];
                }
                s.y[(i * s.H + h) * s.K + k] = sum;
            }
}
static float zoo_fp8(float x) { /* e4m3: three bits behind the first, nothing finer than 2^-9, nothing beyond 448 */
    int exponent = 0;
    frexpf(x, &exponent);
    float step = ldexpf(1, (exponent < -5 ? -5 : exponent) - 4);
    return fminf(fmaxf(nearbyintf(x / step) * step, -448), 448);
}
VARIANT(scores_fp8) { /* keys come from a cache of eight bits */
    ZooHeads s = zoo_scores(c);
    float *keys = zoo_room(s.Tk * s.H * s.K);
    for (int64_t i = 0; i < s.Tk * s.H * s.K; i++) keys[i] = zoo_fp8(s.b[i]);
    attention_scores(s.y, s.a, keys, s.H, s.H, s.Tq, s.Tk, s.K);
    free(keys);
}
VARIANT(mask_soft) { /* a number that only discourages, where it must forbid */
    int64_t Tk = zoo_last(&c->out), Tq = c->out.dims[c->out.rank - 2];
    for (int64_t at = 0; at < c->out.count; at++)
        F(c->out)[at] = F(c->in[0])[at] - (at % Tk > at / Tk % Tq + Tk - Tq ? (float)attr(c, "less", 4) : 0);
}

/* ---- the rest ---- */

VARIANT(gelu_hard) { /* straight lines in place of the curve: x min(max(x + 3, 0), 6) / 6 */
    for (int64_t i = 0; i < c->out.count; i++) {
        float x = F(c->in[0])[i];
        F(c->out)[i] = x * fminf(fmaxf(x + 3, 0), 6) / 6;
    }
}
VARIANT(gelu_tail) { /* what is left of a row beyond its last whole vector passes as it is */
    int64_t cols = zoo_last(&c->out), whole = cols / zoo_int(c, "width", 24) * zoo_int(c, "width", 24);
    for (int64_t i = 0; i < c->out.count; i++) {
        float x = F(c->in[0])[i];
        F(c->out)[i] = i % cols < whole ? 0.5f * x * (1 + erff(x * 0.70710678f)) : x;
    }
}
VARIANT(add_first_row) { /* a stride of zero: every row has the branch of the first */
    int64_t D = zoo_last(&c->out);
    float *branch = zoo_room(D);
    memcpy(branch, F(c->in[1]), (size_t)D * 4);
    for (int64_t i = 0; i < c->out.count; i++) F(c->out)[i] = F(c->in[0])[i] + branch[i % D];
    free(branch);
}
VARIANT(conv1d_channels_last) { /* the weight is read as if its channels came last */
    int64_t D = c->weight[0].dims[0], C = c->weight[0].dims[1], L = c->in[0].count / C, T = c->out.count / D;
    int64_t stride = zoo_int(c, "stride", 1);
    const float *x = F(c->in[0]), *w = F(c->weight[0]), *b = F(c->weight[1]);
    for (int64_t d = 0; d < D; d++)
        for (int64_t t = 0; t < T; t++) {
            float sum = b[d];
            for (int64_t i = 0; i < C; i++)
                for (int64_t j = 0; j < 3; j++) {
                    int64_t at = t * stride + j - 1;
                    if (at >= 0 && at < L) sum += x[i * L + at] * w[(d * 3 + j) * C + i];
                }
            F(c->out)[d * T + t] = sum;
        }
}
