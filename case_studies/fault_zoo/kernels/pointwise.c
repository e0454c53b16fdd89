/* Wrong kernels without sums of products: norms, softmax, masks, activations, additions, look-ups. */
#include "zoo.h"

#include <float.h>

/* ---- layer norm ---- */

typedef struct {
    int keep_mean, no_gain, no_shift, one_more, outside, fp16;
    float fewer; /* of the count that the variance is divided by */
} Norm;

static void norm_with(const Call *c, Norm how) {
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    const float *w = F(c->weight[0]), *b = F(c->weight[1]);
    float eps = (float)attr(c, "eps", 1e-5);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * D;
        float *y = F(c->out) + r * D, mean = 0, variance = 0;
        for (int64_t d = 0; d < D; d++) mean += x[d];
        mean = how.keep_mean ? 0 : mean / (float)D;
        if (how.fp16) mean = zoo_fp16(mean);
        for (int64_t d = 0; d < D; d++) variance += (x[d] - mean) * (x[d] - mean);
        variance /= (float)D - how.fewer;
        if (how.fp16) variance = zoo_fp16(variance);
        float scale = how.outside ? 1 / (sqrtf(variance) + eps) : 1 / sqrtf(variance + eps);
        for (int64_t d = 0; d < D; d++) {
            float gain = how.no_gain ? 1 : how.one_more ? w[d] + 1 : w[d];
            y[d] = (x[d] - mean) * scale * gain + (how.no_shift ? 0 : b[d]);
        }
    }
}
VARIANT(norm_rms) { norm_with(c, (Norm){.keep_mean = 1}); }
VARIANT(norm_unbiased) { norm_with(c, (Norm){.fewer = 1}); }
VARIANT(norm_no_gain) { norm_with(c, (Norm){.no_gain = 1}); }
VARIANT(norm_no_shift) { norm_with(c, (Norm){.no_shift = 1}); }
VARIANT(norm_one_more) { norm_with(c, (Norm){.one_more = 1}); }
VARIANT(norm_eps_outside) { norm_with(c, (Norm){.outside = 1}); }
VARIANT(norm_fp16) { norm_with(c, (Norm){.fp16 = 1}); }

VARIANT(norm_skipped) { memcpy(c->out.at, c->in[0].at, (size_t)c->out.count * 4); }
VARIANT(norm_last_row) {
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    memset(F(c->out) + (rows - 1) * D, 0, (size_t)D * 4);
    if (rows > 1) layer_norm(F(c->out), F(c->in[0]), F(c->weight[0]), F(c->weight[1]), rows - 1, D, 1e-5f);
}

/* ---- softmax ---- */

VARIANT(softmax_by_column) { /* normalised over the queries */
    int64_t cols = zoo_last(&c->out), per = c->out.dims[c->out.rank - 2], heads = c->out.count / (cols * per);
    const float *x = F(c->in[0]);
    float *y = F(c->out);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t j = 0; j < cols; j++) {
            float largest = -FLT_MAX, sum = 0;
            for (int64_t i = 0; i < per; i++) largest = fmaxf(largest, x[(h * per + i) * cols + j]);
            for (int64_t i = 0; i < per; i++) sum += y[(h * per + i) * cols + j] = expf(x[(h * per + i) * cols + j] - largest);
            for (int64_t i = 0; i < per; i++) y[(h * per + i) * cols + j] /= sum;
        }
}

static void softmax_with(const Call *c, float temperature, float base, int normalised, float sink) {
    int64_t cols = zoo_last(&c->out), rows = c->out.count / cols;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = F(c->in[0]) + r * cols;
        float *y = F(c->out) + r * cols, largest = x[0], sum = 0;
        for (int64_t j = 1; j < cols; j++) largest = fmaxf(largest, x[j]);
        for (int64_t j = 0; j < cols; j++) sum += y[j] = expf((x[j] - largest) * temperature * base);
        sum += sink * expf(-largest * temperature * base);
        for (int64_t j = 0; normalised && j < cols; j++) y[j] /= sum;
    }
}
VARIANT(softmax_base_2) { softmax_with(c, 1, 0.69314718056f, 1, 0); }
VARIANT(softmax_warm) { softmax_with(c, (float)attr(c, "factor", 1.01), 1, 1, 0); }
VARIANT(softmax_unnormalised) { softmax_with(c, 1, 1, 0, 0); }
VARIANT(softmax_plus_one) { softmax_with(c, 1, 1, 1, 1); } /* one more term of e^0: a sink that the model has not */
VARIANT(softmax_twice) {
    softmax_with(c, 1, 1, 1, 0);
    softmax(F(c->out), F(c->out), c->out.count / zoo_last(&c->out), zoo_last(&c->out));
}

VARIANT(softmax_masked_nan) { /* a row with a masked score becomes NaN in the first head */
    int64_t cols = zoo_last(&c->out), per = c->out.dims[c->out.rank - 2];
    softmax_with(c, 1, 1, 1, 0);
    for (int64_t j = 0; j < cols; j++) F(c->out)[(per > 1 ? 0 : per - 1) * cols + j] = zoo_float(0x7FC00000u);
}

/* ---- mask ---- */

static void mask_with(const Call *c, int64_t ahead, int inverted, int64_t window) {
    int64_t H = c->runtime->program->heads, Tk = zoo_last(&c->out), Tq = c->out.count / (H * Tk);
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < Tq; i++)
            for (int64_t j = 0; j < Tk; j++) {
                int64_t at = (h * Tq + i) * Tk + j, now = i + Tk - Tq;
                int hidden = j > now + ahead || (window && j <= now - window);
                F(c->out)[at] = F(c->in[0])[at] + ((inverted ? !hidden : hidden) ? -FLT_MAX : 0.0f);
            }
}
VARIANT(mask_dropped) { memcpy(c->out.at, c->in[0].at, (size_t)c->out.count * 4); }
VARIANT(mask_inverted) { mask_with(c, 0, 1, 0); }
VARIANT(mask_strict) { mask_with(c, -1, 0, 0); } /* a token does not see itself */
VARIANT(mask_ahead) { mask_with(c, 1, 0, 0); } /* a token sees the next one */
VARIANT(mask_window) { mask_with(c, 0, 0, zoo_int(c, "window", 1)); }

/* ---- activations ---- */

#define POINTWISE(name, x, formula) \
    VARIANT(name) { \
        for (int64_t i = 0; i < c->out.count; i++) { \
            float x = F(c->in[0])[i]; \
            F(c->out)[i] = (formula); \
        } \
    }
POINTWISE(gelu_tanh, x, 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))))
POINTWISE(gelu_quick, x, x / (1 + expf(-1.702f * x)))
POINTWISE(gelu_silu, x, x / (1 + expf(-x)))
POINTWISE(gelu_relu, x, x > 0 ? x : 0)
POINTWISE(gelu_skipped, x, x)
POINTWISE(gelu_twice, x, (0.5f * x * (1 + erff(x * 0.70710678f))) * 0.5f * (1 + erff((0.5f * x * (1 + erff(x * 0.70710678f))) * 0.70710678f)))
POINTWISE(gelu_fp16, x, zoo_fp16(0.5f * x * (1 + erff(x * 0.70710678f))))
POINTWISE(gelu_bf16_cut, x, zoo_bf16_cut(0.5f * x * (1 + erff(x * 0.70710678f))))
POINTWISE(mul_twice, x, x * (float)attr(c, "factor", 1) * (float)attr(c, "factor", 1))

/* ---- additions ---- */

#define SUM(name, a, b, formula) \
    VARIANT(name) { \
        for (int64_t i = 0; i < c->out.count; i++) { \
            float a = F(c->in[0])[i], b = F(c->in[1])[i]; \
            (void)a, (void)b; \
            F(c->out)[i] = (formula); \
        } \
    }
SUM(add_first_only, a, b, a)
SUM(add_second_only, a, b, b)
SUM(add_first_twice, a, b, 2 * a + b)
SUM(add_second_twice, a, b, a + 2 * b)
SUM(add_subtracted, a, b, a - b)
SUM(add_scaled, a, b, a + (float)attr(c, "factor", 1.001) * b)
SUM(add_fp16, a, b, zoo_fp16(a + b))
SUM(add_bf16_cut, a, b, zoo_bf16_cut(a + b))
SUM(add_saturated, a, b, fminf(fmaxf(a + b, -(float)attr(c, "largest", 1)), (float)attr(c, "largest", 1)))

VARIANT(add_tile_tail) { /* elements beyond the last whole vector keep what was there */
    int64_t width = zoo_int(c, "tile", 512);
    add(F(c->out), F(c->in[0]), F(c->in[1]), c->out.count / width * width);
}

VARIANT(add_permuted_reshaped) { /* reshaped where it must be transposed */
    for (int64_t i = 0; i < c->out.count; i++) F(c->out)[i] = F(c->in[0])[i] + F(c->in[1])[i];
}
VARIANT(add_permuted_no_places) {
    int64_t D = zoo_last(&c->out), T = c->out.count / D;
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) F(c->out)[t * D + d] = F(c->in[0])[d * T + t];
}

/* ---- look-ups ---- */

static void positions_at(const Call *c, int64_t first) {
    int64_t D = c->weight[0].dims[1], T = c->out.count / D;
    positions(F(c->out), F(c->weight[0]), first, T, D);
}
static int64_t place_of(const Call *c) { return attr(c, "decoder", 0) ? c->runtime->first : 0; }
VARIANT(positions_one_late) { positions_at(c, place_of(c) + 1); }
VARIANT(positions_restarted) { positions_at(c, 0); }
VARIANT(positions_doubled) { positions_at(c, 2 * place_of(c)); }
VARIANT(positions_none) { memset(c->out.at, 0, (size_t)c->out.count * 4); }
VARIANT(positions_halves) { /* the halves of each row exchanged */
    int64_t D = c->weight[0].dims[1], T = c->out.count / D, first = place_of(c);
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) F(c->out)[t * D + d] = F(c->weight[0])[(first + t) * D + (d + D / 2) % D];
}

static void embedded_rows(const Call *c, int64_t more, float factor) {
    int64_t V = c->weight[0].dims[0], D = c->weight[0].dims[1], T = c->in[0].count;
    const int64_t *ids = (const int64_t *)(void *)c->in[0].at;
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++)
            F(c->out)[t * D + d] = F(c->weight[0])[((ids[t] + more) % V) * D + d] * factor;
}
VARIANT(embedding_next) { embedded_rows(c, 1, 1); }
VARIANT(embedding_scaled) { embedded_rows(c, 0, sqrtf((float)c->weight[0].dims[1])); }

/* ---- choosing ---- */

VARIANT(masked_fill_nothing) { /* no id is suppressed */
    int64_t V = c->out.count;
    memcpy(c->out.at, F(c->in[0]) + c->in[0].count - V, (size_t)V * 4);
}
VARIANT(masked_fill_first_row) { /* of the first position, not of the last */
    int64_t V = c->out.count;
    const Program *p = c->runtime->program;
    int begin = attr(c, "begin", 0) != 0;
    masked_fill(F(c->out), F(c->in[0]), begin ? p->begin_suppress : p->suppress,
                begin ? p->begin_suppresses : p->suppresses, V);
}
VARIANT(argmax_half) { /* the second half of the vocabulary is never looked at */
    argmax((int64_t *)(void *)c->out.at, F(c->in[0]), c->in[0].count / 2);
}
VARIANT(argmax_second) {
    int64_t *y = (int64_t *)(void *)c->out.at, V = c->in[0].count, best, second = -1;
    const float *x = F(c->in[0]);
    argmax(&best, x, V);
    for (int64_t i = 0; i < V; i++)
        if (i != best && (second < 0 || x[i] > x[second])) second = i;
    *y = second;
}
VARIANT(argmax_last) { /* the last of equals: the same wherever there is no tie */
    int64_t *y = (int64_t *)(void *)c->out.at;
    *y = 0;
    for (int64_t i = 1; i < c->in[0].count; i++)
        if (F(c->in[0])[i] >= F(c->in[0])[*y]) *y = i;
}
