/* Wrong kernels that are sums of products: linear, convolution, attention scores and mix. */
#include "zoo.h"

/* ---- linear ---- */

VARIANT(linear_tile_tail) { /* rows beyond the last whole tile keep what was there */
    ZooLinear l = zoo_linear(c);
    int64_t tile = zoo_int(c, "tile", 16);
    linear(l.y, l.x, l.w, l.b, l.rows / tile * tile, l.cols, l.inner);
}

VARIANT(linear_column_tail) { /* columns beyond the last whole tile are zero */
    ZooLinear l = zoo_linear(c);
    int64_t tile = zoo_int(c, "tile", 48);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = l.cols / tile * tile; j < l.cols; j++) l.y[r * l.cols + j] = 0;
}

VARIANT(linear_k_tail) { /* the last terms of each sum are lost */
    ZooLinear l = zoo_linear(c);
    int64_t lost = zoo_int(c, "lost", 8);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) {
            float sum = l.b ? l.b[j] : 0;
            for (int64_t k = 0; k < l.inner - lost; k++) sum += l.x[r * l.inner + k] * l.w[j * l.inner + k];
            l.y[r * l.cols + j] = sum;
        }
}

VARIANT(linear_dead_column) {
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t r = 0; r < l.rows; r++) l.y[r * l.cols + zoo_int(c, "column", 5)] = 0;
}

VARIANT(linear_last_row) { /* the last token is not computed */
    ZooLinear l = zoo_linear(c);
    memset(l.y + (l.rows - 1) * l.cols, 0, (size_t)l.cols * sizeof(float));
    if (l.rows > 1) linear(l.y, l.x, l.w, l.b, l.rows - 1, l.cols, l.inner);
}

VARIANT(linear_nan_row) {
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t j = 0; j < l.cols; j++) l.y[(l.rows - 1) * l.cols + j] = zoo_float(0x7FC00000u);
}

VARIANT(linear_rows_shifted) { /* each row is the one before; the first is its own */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t r = l.rows - 1; r > 0; r--) memcpy(l.y + r * l.cols, l.y + (r - 1) * l.cols, (size_t)l.cols * 4);
}

VARIANT(linear_transposed) { /* y = x W of a square weight */
    ZooLinear l = zoo_linear(c);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) {
            float sum = 0;
            for (int64_t k = 0; k < l.inner; k++) sum += l.x[r * l.inner + k] * l.w[k * l.cols + j];
            l.y[r * l.cols + j] = sum + (l.b ? l.b[j] : 0);
        }
}

static void bias_times(const Call *c, float times) {
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, NULL, l.rows, l.cols, l.inner);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) l.y[r * l.cols + j] += times * l.b[j];
}
VARIANT(linear_bias_twice) { bias_times(c, 2); }
VARIANT(linear_bias_minus) { bias_times(c, -1); }

VARIANT(linear_gain) { /* one head's columns come out a little larger */
    ZooLinear l = zoo_linear(c);
    int64_t K = l.cols / c->runtime->program->heads, head = zoo_int(c, "head", 1);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = head * K; j < (head + 1) * K; j++) l.y[r * l.cols + j] *= (float)attr(c, "gain", 1.01);
}

static void heads_moved(const Call *c, int interleaved) {
    ZooLinear l = zoo_linear(c);
    int64_t H = c->runtime->program->heads, K = l.cols / H;
    float *right = zoo_room(l.rows * l.cols);
    linear(right, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t k = 0; k < K; k++) {
                int64_t swapped = h == 0 ? 1 : h == 1 ? 0 : h;
                l.y[r * l.cols + (interleaved ? k * H + h : swapped * K + k)] = right[r * l.cols + h * K + k];
            }
    free(right);
}
VARIANT(linear_heads_swapped) { heads_moved(c, 0); }
VARIANT(linear_interleaved) { heads_moved(c, 1); }

static void in_low_precision(const Call *c, float (*narrow)(float)) { /* every partial sum is rounded */
    ZooLinear l = zoo_linear(c);
    for (int64_t r = 0; r < l.rows; r++)
        for (int64_t j = 0; j < l.cols; j++) {
            float sum = 0;
            for (int64_t k = 0; k < l.inner; k++) sum = narrow(sum + l.x[r * l.inner + k] * l.w[j * l.inner + k]);
            l.y[r * l.cols + j] = sum + (l.b ? l.b[j] : 0);
        }
}
VARIANT(linear_bf16_sum) { in_low_precision(c, zoo_bf16); }
VARIANT(linear_fp16_sum) { in_low_precision(c, zoo_fp16); }

static void stored_low(const Call *c, float (*narrow)(float)) {
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i < c->out.count; i++) l.y[i] = narrow(l.y[i]);
}
VARIANT(linear_fp16_out) { stored_low(c, zoo_fp16); }
VARIANT(linear_bf16_out) { stored_low(c, zoo_bf16); }
VARIANT(linear_bf16_cut) { stored_low(c, zoo_bf16_cut); }

VARIANT(linear_int8_x) { /* the input is quantised with one scale for all of it */
    ZooLinear l = zoo_linear(c);
    int64_t count = l.rows * l.inner;
    float *x = zoo_room(count), largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(l.x[i]));
    for (int64_t i = 0; i < count; i++) x[i] = nearbyintf(l.x[i] / (largest / 127)) * (largest / 127);
    linear(l.y, x, l.w, l.b, l.rows, l.cols, l.inner);
    free(x);
}

VARIANT(linear_int8_w) { /* the weight is quantised with one scale a row */
    ZooLinear l = zoo_linear(c);
    float *w = zoo_room(l.cols * l.inner);
    for (int64_t j = 0; j < l.cols; j++) {
        float largest = 0;
        for (int64_t k = 0; k < l.inner; k++) largest = fmaxf(largest, fabsf(l.w[j * l.inner + k]));
        for (int64_t k = 0; k < l.inner; k++)
            w[j * l.inner + k] = nearbyintf(l.w[j * l.inner + k] / (largest / 127)) * (largest / 127);
    }
    linear(l.y, l.x, w, l.b, l.rows, l.cols, l.inner);
    free(w);
}

VARIANT(linear_saturated) { /* no number is larger than `largest` */
    ZooLinear l = zoo_linear(c);
    float largest = (float)attr(c, "largest", 1);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    for (int64_t i = 0; i < c->out.count; i++) l.y[i] = fminf(fmaxf(l.y[i], -largest), largest);
}

VARIANT(linear_spill) { /* the right result, and eight zeros beyond its end, which no op declares */
    ZooLinear l = zoo_linear(c);
    linear(l.y, l.x, l.w, l.b, l.rows, l.cols, l.inner);
    int64_t room = c->runtime->program->buffer_bytes[c->op->out.buffer];
    char *end = c->runtime->buffers[c->op->out.buffer] + room;
    for (int64_t i = 0; i < 8 && (char *)(l.y + c->out.count + i + 1) <= end; i++) l.y[c->out.count + i] = 0;
}

VARIANT(linear_nothing) { (void)c; } /* the kernel is never launched: the buffer keeps what it held */

/* ---- convolution ---- */

static void conv_with(const Call *c, int64_t shift, int flipped, int64_t stride, float bias) {
    int64_t D = c->weight[0].dims[0], C = c->weight[0].dims[1], L = c->in[0].count / C, T = c->out.count / D;
    const float *x = F(c->in[0]), *w = F(c->weight[0]), *b = F(c->weight[1]);
    float *y = F(c->out);
    for (int64_t d = 0; d < D; d++)
        for (int64_t t = 0; t < T; t++) {
            float sum = 0;
            for (int64_t i = 0; i < C; i++)
                for (int64_t j = 0; j < 3; j++) {
                    int64_t at = t * stride + j - 1 + shift;
                    if (at >= 0 && at < L) sum += x[i * L + at] * w[(d * C + i) * 3 + (flipped ? 2 - j : j)];
                }
            y[d * T + t] = sum + bias * b[d];
        }
}
VARIANT(conv1d_shifted) { conv_with(c, zoo_int(c, "shift", 1), 0, zoo_int(c, "stride", 1), 1); }
VARIANT(conv1d_flipped) { conv_with(c, 0, 1, zoo_int(c, "stride", 1), 1); }
VARIANT(conv1d_no_bias) { conv_with(c, 0, 0, zoo_int(c, "stride", 1), 0); }
VARIANT(conv1d_stride) { conv_with(c, 0, 0, zoo_int(c, "walks", 1), 1); } /* walks by another stride than it should */

VARIANT(conv1d_edge) { /* the first frame is repeated where a zero of padding belongs */
    int64_t D = c->weight[0].dims[0], C = c->weight[0].dims[1], L = c->in[0].count / C, T = c->out.count / D;
    const float *x = F(c->in[0]), *w = F(c->weight[0]);
    conv_with(c, 0, 0, zoo_int(c, "stride", 1), 1);
    for (int64_t d = 0; d < D; d++)
        for (int64_t i = 0; i < C; i++) F(c->out)[d * T] += x[i * L] * w[(d * C + i) * 3];
}

/* ---- attention ---- */

static void scores_with(const Call *c, int grouped, int64_t turned, float (*narrow)(float)) {
    ZooHeads s = zoo_scores(c);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t j = 0; j < s.Tk; j++) {
                int64_t other = grouped ? h / 2 : (h + turned) % s.H;
                float sum = 0;
                for (int64_t k = 0; k < s.K; k++) {
                    sum += s.a[(i * s.H + h) * s.K + k] * s.b[(j * s.H + other) * s.K + k];
                    if (narrow) sum = narrow(sum);
                }
                s.y[(h * s.Tq + i) * s.Tk + j] = sum;
            }
}
VARIANT(scores_grouped) { scores_with(c, 1, 0, NULL); } /* two query heads share a key head */
VARIANT(scores_turned) { scores_with(c, 0, 1, NULL); } /* each query head meets the next key head */
VARIANT(scores_bf16_sum) { scores_with(c, 0, 0, zoo_bf16); }

VARIANT(scores_one_less) { /* the newest key is forgotten */
    ZooHeads s = zoo_scores(c);
    attention_scores(s.y, s.a, s.b, s.H, s.H, s.Tq, s.Tk, s.K);
    for (int64_t row = 0; row < s.H * s.Tq; row++) s.y[row * s.Tk + s.Tk - 1] = -1e30f;
}

VARIANT(scores_k_tail) {
    ZooHeads s = zoo_scores(c);
    int64_t lost = zoo_int(c, "lost", 4);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t j = 0; j < s.Tk; j++) {
                float sum = 0;
                for (int64_t k = 0; k < s.K - lost; k++)
                    sum += s.a[(i * s.H + h) * s.K + k] * s.b[(j * s.H + h) * s.K + k];
                s.y[(h * s.Tq + i) * s.Tk + j] = sum;
            }
}

VARIANT(scores_column_tail) { /* keys beyond the last whole tile score zero */
    ZooHeads s = zoo_scores(c);
    int64_t tile = zoo_int(c, "tile", 16);
    attention_scores(s.y, s.a, s.b, s.H, s.H, s.Tq, s.Tk, s.K);
    for (int64_t row = 0; row < s.H * s.Tq; row++)
        for (int64_t j = s.Tk / tile * tile; j < s.Tk; j++) s.y[row * s.Tk + j] = 0;
}

static void mix_with(const Call *c, int64_t lost, int64_t turned, int by_head, int64_t gained, float gain) {
    ZooHeads s = zoo_mix(c);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t k = 0; k < s.K; k++) {
                float sum = 0;
                for (int64_t j = 0; j < s.Tk - lost; j++)
                    sum += s.a[(h * s.Tq + i) * s.Tk + j] * s.b[(j * s.H + (h + turned) % s.H) * s.K + k];
                s.y[by_head ? (h * s.Tq + i) * s.K + k : (i * s.H + h) * s.K + k] = h == gained ? sum * gain : sum;
            }
}
VARIANT(mix_one_less) { mix_with(c, 1, 0, 0, -1, 1); } /* the newest value is forgotten */
VARIANT(mix_turned) { mix_with(c, 0, 1, 0, -1, 1); }
VARIANT(mix_by_head) { mix_with(c, 0, 0, 1, -1, 1); } /* written head by head where token by token is read */
VARIANT(mix_gain) { mix_with(c, 0, 0, 0, zoo_int(c, "head", 1), (float)attr(c, "gain", 1.01)); }
VARIANT(mix_average) { /* every key weighs the same */
    ZooHeads s = zoo_mix(c);
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < s.Tq; i++)
            for (int64_t k = 0; k < s.K; k++) {
                float sum = 0;
                for (int64_t j = 0; j < s.Tk; j++) sum += s.b[(j * s.H + h) * s.K + k];
                s.y[(i * s.H + h) * s.K + k] = sum / (float)s.Tk;
            }
}
