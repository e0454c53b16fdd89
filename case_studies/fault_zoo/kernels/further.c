/* Wrong kernels beyond those that the first lists of edits were written for. */
#include "zoo.h"

#include <float.h>

/* ---- padding and blocks in attention ---- */

static void padded(const Call *c, int64_t pads) { /* softmax over keys that do not exist: zeros behind the last one */
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * cols;
        float *y = F(c->out) + r * cols, largest = 0, sum = 0;
        for (int64_t j = 0; j < cols; j++) largest = fmaxf(largest, x[j]);
        for (int64_t j = 0; j < cols; j++) sum += y[j] = expf(x[j] - largest);
        sum += (float)pads * expf(-largest);
        for (int64_t j = 0; j < cols; j++) y[j] /= sum;
    }
}
VARIANT(softmax_padded) { padded(c, zoo_int(c, "pads", 5)); }

VARIANT(scores_capped) { /* scores are squeezed into +-cap */
    ZooHeads s = zoo_scores(c);
    float cap = (float)attr(c, "cap", 20);
    attention_scores(s.y, s.a, s.b, s.H, s.H, s.Tq, s.Tk, s.K);
    for (int64_t i = 0; i < c->out.count; i++) s.y[i] = cap * tanhf(s.y[i] / cap);
}

VARIANT(scores_blocks) { /* blocks far from the diagonal are skipped */
    ZooHeads s = zoo_scores(c);
    int64_t block = zoo_int(c, "block", 16);
    attention_scores(s.y, s.a, s.b, s.H, s.H, s.Tq, s.Tk, s.K);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t j = 0; j < s.Tk; j++)
                if (llabs(i / block - j / block) > 1) s.y[(h * s.Tq + i) * s.Tk + j] = -FLT_MAX;
}

VARIANT(mix_stale_head) { /* one head reads the values of the head before it */
    ZooHeads s = zoo_mix(c);
    attention_mix(s.y, s.a, s.b, s.H, s.H, s.Tq, s.Tk, s.K);
    int64_t h = zoo_int(c, "head", 2);
    for (int64_t i = 0; i < s.Tq; i++)
        for (int64_t k = 0; k < s.K; k++) {
            float sum = 0;
            for (int64_t j = 0; j < s.Tk; j++) sum += s.a[(h * s.Tq + i) * s.Tk + j] * s.b[(j * s.H + h - 1) * s.K + k];
            s.y[(i * s.H + h) * s.K + k] = sum;
        }
}

/* ---- integers and fixed point ---- */

VARIANT(linear_wrapped) { /* sums kept in 16 bits of 1/1024, which wrap round */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i < c->out.count; i++) {
        int32_t fixed = (int32_t)lrintf(l.y[i] * (float)attr(c, "one", 16384));
        l.y[i] = (float)(int16_t)fixed / (float)attr(c, "one", 16384);
    }
}
VARIANT(gelu_table) { /* looked up in a table with a step of 1/64 */
    for (int64_t i = 0; i < c->out.count; i++) {
        float x = floorf(F(c->in[0])[i] * 64) / 64;
        F(c->out)[i] = 0.5f * x * (1 + erff(x * 0.70710678f));
    }
}
VARIANT(gelu_clamped) { /* 0 below -3 and x above 3 */
    for (int64_t i = 0; i < c->out.count; i++) {
        float x = F(c->in[0])[i];
        F(c->out)[i] = x < -3 ? 0 : x > 3 ? x : 0.5f * x * (1 + erff(x * 0.70710678f));
    }
}
VARIANT(add_fixed) { /* a residual stream in steps of 1/4096 */
    for (int64_t i = 0; i < c->out.count; i++)
        F(c->out)[i] = nearbyintf((F(c->in[0])[i] + F(c->in[1])[i]) * 4096) / 4096;
}

/* ---- statistics and state that belong to another row ---- */

VARIANT(norm_previous_mean) { /* each row is centred by the mean of the row before it */
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    float before = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * D;
        float mean = 0, variance = 0;
        for (int64_t d = 0; d < D; d++) mean += x[d];
        mean /= (float)D;
        for (int64_t d = 0; d < D; d++) variance += (x[d] - mean) * (x[d] - mean);
        float scale = 1 / sqrtf(variance / (float)D + 1e-5f), centre = r ? before : mean;
        for (int64_t d = 0; d < D; d++) F(c->out)[r * D + d] = (x[d] - centre) * scale * F(c->weight[0])[d] + F(c->weight[1])[d];
        before = mean;
    }
}
VARIANT(norm_one_row) { /* every row has the statistics of the first */
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    const float *x0 = F(c->in[0]);
    float mean = 0, variance = 0;
    for (int64_t d = 0; d < D; d++) mean += x0[d];
    mean /= (float)D;
    for (int64_t d = 0; d < D; d++) variance += (x0[d] - mean) * (x0[d] - mean);
    float scale = 1 / sqrtf(variance / (float)D + 1e-5f);
    for (int64_t r = rows - 1; r >= 0; r--)
        for (int64_t d = 0; d < D; d++)
            F(c->out)[r * D + d] = (F(c->in[0])[r * D + d] - mean) * scale * F(c->weight[0])[d] + F(c->weight[1])[d];
}
VARIANT(linear_unrolled) { /* every fourth column adds the sum of the column before it */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = l.cols - 1; j > 0; j--)
            if (j % 4 == 3) l.y[r * l.cols + j] += l.y[r * l.cols + j - 1];
}
VARIANT(linear_rows_exchanged) { /* the last two rows change places */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t j = 0; j < l.cols && l.rows > 1; j++) {
        float *a = l.y + (l.rows - 1) * l.cols + j, *b = l.y + (l.rows - 2) * l.cols + j, keep = *a;
        *a = *b;
        *b = keep;
    }
}
VARIANT(linear_abs) { /* the sign of the output is lost */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i < c->out.count; i++) l.y[i] = fabsf(l.y[i]);
}
VARIANT(conv1d_dilated) {
    int64_t D = c->weight[0].dims[0], C = c->weight[0].dims[1], L = c->in[0].count / C, T = c->out.count / D;
    int64_t stride = zoo_int(c, "stride", 1);
    const float *x = F(c->in[0]), *w = F(c->weight[0]), *b = F(c->weight[1]);
    for (int64_t d = 0; d < D; d++)
        for (int64_t t = 0; t < T; t++) {
            float sum = b[d];
            for (int64_t i = 0; i < C; i++)
                for (int64_t j = 0; j < 3; j++) {
                    int64_t at = t * stride + 2 * (j - 1);
                    if (at >= 0 && at < L) sum += x[i * L + at] * w[(d * C + i) * 3 + j];
                }
            F(c->out)[d * T + t] = sum;
        }
}
