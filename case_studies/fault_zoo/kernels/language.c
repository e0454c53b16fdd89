/* Wrong kernels of language models. */
#include "zoo.h"

VARIANT(scores_modulo) { /* query head h meets key head h mod G instead of h div H / G */
    int64_t H = zoo_int(c, "heads", 1), G = zoo_int(c, "key_heads", H), Tk = zoo_last(&c->out);
    int64_t Tq = c->out.count / (H * Tk), K = c->in[0].count / (H * Tq);
    const float *q = F(c->in[0]), *k = F(c->in[1]);
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < Tq; i++)
            for (int64_t j = 0; j < Tk; j++) {
                float sum = 0;
                for (int64_t d = 0; d < K; d++) sum += q[(i * H + h) * K + d] * k[(j * G + h % G) * K + d];
                F(c->out)[(h * Tq + i) * Tk + j] = sum;
            }
}

VARIANT(mix_modulo) {
    int64_t H = zoo_int(c, "heads", 1), G = zoo_int(c, "key_heads", H), K = zoo_last(&c->out);
    int64_t Tq = c->out.count / (H * K), Tk = c->in[0].count / (H * Tq);
    const float *p = F(c->in[0]), *v = F(c->in[1]);
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < Tq; i++)
            for (int64_t d = 0; d < K; d++) {
                float sum = 0;
                for (int64_t j = 0; j < Tk; j++) sum += p[(h * Tq + i) * Tk + j] * v[(j * G + h % G) * K + d];
                F(c->out)[(i * H + h) * K + d] = sum;
            }
}

static void rms_with(const Call *c, int centred, double divisor_less, int summed) {
    int64_t D = c->weight[0].count;
    float eps = (float)attr(c, "eps", 1e-6), offset = (float)attr(c, "offset", 0);
    for (int64_t r = 0; r < c->out.count / D; r++) {
        const float *x = F(c->in[0]) + r * D;
        float *y = F(c->out) + r * D, mean = 0, squares = 0;
        for (int64_t d = 0; d < D; d++) mean += x[d] / (float)D;
        if (!centred) mean = 0;
        for (int64_t d = 0; d < D; d++) squares += (x[d] - mean) * (x[d] - mean);
        float scale = 1 / sqrtf(squares / (summed ? 1 : (float)((double)D - divisor_less)) + eps);
        for (int64_t d = 0; d < D; d++) y[d] = (x[d] - mean) * scale * (offset + F(c->weight[0])[d]);
    }
}
VARIANT(rms_centred) { rms_with(c, 1, 0, 0); }
VARIANT(rms_unbiased) { rms_with(c, 0, 1, 0); }
VARIANT(rms_summed) { rms_with(c, 0, 0, 1); } /* divided by the norm, not by the root of the mean */

VARIANT(sinks_dropped) { softmax(F(c->out), F(c->in[0]), c->out.count / zoo_last(&c->out), zoo_last(&c->out)); }

VARIANT(experts_one_less) { /* the last choice of each token is forgotten */
    int64_t S = zoo_last(&c->in[2]), D = zoo_last(&c->out), T = c->out.count / D;
    memset(c->out.at, 0, (size_t)c->out.count * sizeof(float));
    for (int64_t i = 0; i < T * S; i++) {
        int64_t at = I(c->in[1])[i];
        if (at % S == S - 1) continue;
        for (int64_t d = 0; d < D; d++) F(c->out)[at / S * D + d] += F(c->in[0])[i * D + d] * F(c->in[2])[at];
    }
}

VARIANT(topk_next) { /* each expert's number one too high */
    int64_t S = zoo_last(&c->out), T = c->out.count / S, E = c->in[0].count / T;
    topk(I(c->out), F(c->in[0]), T, E, S);
    for (int64_t i = 0; i < T * S; i++) I(c->out)[i] = (I(c->out)[i] + 1) % E;
}
