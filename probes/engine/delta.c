/* Linear attention with a recurrent state: the gated delta rule (https://arxiv.org/abs/2412.06464), and the short causal
   convolution before it. Each has a state that one step leaves to the next.

   C channels, G heads of queries and keys, H of values (head h goes with key head h G / H), K and V their sizes. The
   state S[K, V] of a head: S <- exp(g) S, then S <- S + k (beta (v - S^T k))^T, and the output is S^T q; q and k have
   length one, and q is divided by sqrt(K). Leaves out batches and padding. */
#include "calls.h"

#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

KERNEL(fill, float *y, float number, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = number;
}

KERNEL(blocks_apart, float *y, const float *x, int64_t rows, int64_t blocks, int64_t width, const Part *parts) {
    int64_t cols = 0;
    for (int p = 0; p < MAX_PARTS; p++) cols += blocks * parts[p].cols;
    for (int64_t r = 0; r < rows; r++) {
        float *to = y + r * cols;
        for (int p = 0; p < MAX_PARTS; p++)
            for (int64_t g = 0; g < blocks; g++, to += parts[p].cols)
                memcpy(to, x + (r * blocks + g) * width + parts[p].begin, (size_t)parts[p].cols * sizeof(float));
    }
}

/* the input `back` tokens before token t, of this step or of the state */
static float earlier(const float *x, const float *state, int64_t t, int64_t back, int64_t C, int64_t N, int64_t c) {
    return t >= back ? x[(t - back) * C + c] : state[(N + t - back) * C + c];
}

KERNEL(causal_conv, float *y, const float *x, const float *state, const float *w, int64_t T, int64_t C, int64_t N) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < C; c++) {
            float sum = 0;
            for (int64_t n = 0; n < N; n++) sum += w[c * N + n] * earlier(x, state, t, N - 1 - n, C, N, c);
            y[t * C + c] = sum;
        }
}

KERNEL(conv_state, float *next, const float *x, const float *state, int64_t T, int64_t C, int64_t N, int64_t shift) {
    for (int64_t n = 0; n < N; n++) { /* the oldest first: what is overwritten is not needed any more */
        int64_t back = N - 1 - n + shift;
        if (back > T - 1 + N) back = T - 1 + N;
        for (int64_t c = 0; c < C; c++) next[n * C + c] = earlier(x, state, T - 1, back, C, N, c);
    }
}

KERNEL(decay, float *y, const float *x, const float *a_log, const float *bias, int64_t rows, int64_t H) {
    for (int64_t i = 0; i < rows * H; i++) {
        float a = x[i] + bias[i % H];
        y[i] = -expf(a_log[i % H]) * (a > 20 ? a : log1pf(expf(a)));
    }
}

static float length_of(const float *x, int64_t K) {
    float sum = 0;
    for (int64_t k = 0; k < K; k++) sum += x[k] * x[k];
    return sqrtf(sum + 1e-6f);
}

/* one chunk of n tokens of one head: with u_i = beta_i (v_i - what the state, decayed to i, has for k_i), the state is
   what is left of it and the sum of k_i u_i, each decayed to the end */
static void chunk(const Delta *d, const float *x, const float *g, const float *beta, float *S, float *y, int64_t h,
                  int64_t n, float *work) {
    int64_t K = d->K, V = d->V, key = h * d->G / d->H, row = d->C;
    float *q = work, *k = q + n * K, *u = k + n * K, *c = u + n * V;
    for (int64_t i = 0; i < n; i++) {
        const float *qi = x + i * row + key * K, *ki = qi + d->G * K, *vi = x + i * row + 2 * d->G * K + h * V;
        float lq = length_of(qi, K) * sqrtf((float)K), lk = length_of(ki, K);
        for (int64_t e = 0; e < K; e++) q[i * K + e] = qi[e] / lq, k[i * K + e] = ki[e] / lk;
        c[i] = (i ? c[i - 1] : 0) + (d->decayed ? g[i * d->H + h] : 0);
        for (int64_t v = 0; v < V; v++) {
            float held = 0;
            for (int64_t e = 0; e < K; e++) held += k[i * K + e] * S[e * V + v];
            u[i * V + v] = vi[v] - expf(c[i]) * held;
        }
        for (int64_t j = 0; j < i; j++) {
            float meets = 0;
            for (int64_t e = 0; e < K; e++) meets += k[i * K + e] * k[j * K + e];
            for (int64_t v = 0; v < V; v++) u[i * V + v] -= expf(c[i] - c[j]) * meets * u[j * V + v];
        }
        for (int64_t v = 0; v < V; v++) u[i * V + v] *= d->gated ? beta[i * d->H + h] : 1;
    }
    for (int64_t i = 0; y && i < n; i++)
        for (int64_t v = 0; v < V; v++) {
            float sum = 0;
            for (int64_t e = 0; e < K; e++) sum += q[i * K + e] * S[e * V + v];
            y[i * d->H * V + v] = expf(c[i]) * sum;
        }
    for (int64_t i = 0; y && i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            float meets = 0;
            for (int64_t e = 0; e < K; e++) meets += q[i * K + e] * k[j * K + e];
            for (int64_t v = 0; v < V; v++) y[i * d->H * V + v] += expf(c[i] - c[j]) * meets * u[j * V + v];
        }
    for (int64_t at = 0; at < K * V; at++) S[at] *= expf(c[n - 1]);
    for (int64_t j = 0; j < n; j++)
        for (int64_t e = 0; e < K; e++)
            for (int64_t v = 0; v < V; v++) S[e * V + v] += expf(c[n - 1] - c[j]) * k[j * K + e] * u[j * V + v];
}

KERNEL(delta_rule, float *y, float *next, const float *x, const float *g, const float *beta, const float *state,
       const Delta *d) {
    int64_t size = d->K * d->V;
    float *work = malloc(sizeof(float) * (size_t)(size + d->chunk * (2 * d->K + d->V + 1))), *S = work;
    if (!work) fail("out of memory", "delta_rule");
    for (int64_t h = 0; h < d->H; h++) {
        memcpy(S, state + h * size, (size_t)size * sizeof(float));
        for (int64_t t = 0; t < d->T; t += d->chunk) {
            int64_t n = d->T - t < d->chunk ? d->T - t : d->chunk;
            chunk(d, x + t * d->C, g + t * d->H, beta + t * d->H, S, y ? y + (t * d->H + h) * d->V : 0, h, n, work + size);
        }
        if (next) memcpy(next + h * size, S, (size_t)size * sizeof(float));
    }
    free(work);
}

const Where where_delta_state = {__FILE__, __LINE__ - 16}; /* the same kernel */

/* ---- from views to pointers ---- */

void run_fill(const Call *c) { fill(F(c->out), (float)attr(c, "number", 0), c->out.count); }

void run_blocks_apart(const Call *c) {
    static const char *const begins[MAX_PARTS] = {"begin", "begin_b", "begin_c"};
    static const char *const widths[MAX_PARTS] = {"cols", "cols_b", "cols_c"};
    int64_t blocks = (int64_t)attr(c, "blocks", 1), cols = 0, rows, width;
    Part parts[MAX_PARTS];
    for (int p = 0; p < MAX_PARTS; p++) {
        parts[p].begin = (int64_t)attr(c, begins[p], 0);
        parts[p].cols = (int64_t)attr(c, widths[p], 0);
        need(parts[p].begin >= 0 && parts[p].cols >= 0, c);
        cols += parts[p].cols;
    }
    need(blocks > 0 && cols > 0 && c->out.count % (blocks * cols) == 0, c);
    rows = c->out.count / (blocks * cols);
    need(rows > 0 && c->in[0].count % (rows * blocks) == 0, c);
    width = c->in[0].count / (rows * blocks);
    for (int p = 0; p < MAX_PARTS; p++) need(parts[p].begin + parts[p].cols <= width, c);
    blocks_apart(F(c->out), F(c->in[0]), rows, blocks, width, parts);
}

void run_causal_conv(const Call *c) {
    int64_t C = c->weight[0].dims[0], N = c->weight[0].dims[2];
    need(c->weight[0].rank == 3 && c->weight[0].dims[1] == 1 && c->in[0].count == c->out.count, c);
    need(c->out.count % C == 0 && c->in[1].count == C * N, c);
    causal_conv(F(c->out), F(c->in[0]), F(c->in[1]), F(c->weight[0]), c->out.count / C, C, N);
}

void run_conv_state(const Call *c) {
    int64_t N = c->out.dims[2], C = c->out.count / N, shift = (int64_t)attr(c, "shift", 0);
    need(c->out.rank == 3 && c->in[1].count == c->out.count && c->in[0].count % C == 0 && shift >= 0, c);
    conv_state(F(c->out), F(c->in[0]), F(c->in[1]), c->in[0].count / C, C, N, shift);
}

void run_decay(const Call *c) {
    int64_t H = c->weight[0].count;
    need(c->weight[1].count == H && c->in[0].count == c->out.count && c->out.count % H == 0, c);
    decay(F(c->out), F(c->in[0]), F(c->weight[0]), F(c->weight[1]), c->out.count / H, H);
}

static Delta delta_of(const Call *c) {
    Delta d;
    d.G = (int64_t)attr(c, "key_heads", 1);
    d.H = (int64_t)attr(c, "heads", 1);
    d.K = (int64_t)attr(c, "key_size", 1);
    need(d.G > 0 && d.K > 0 && d.H > 0 && d.H % d.G == 0 && c->in[3].count % (d.H * d.K) == 0, c);
    d.V = c->in[3].count / (d.H * d.K);
    d.C = 2 * d.G * d.K + d.H * d.V;
    d.T = c->in[0].count / d.C;
    d.chunk = (int64_t)attr(c, "chunk", 64);
    d.decayed = attr(c, "decayed", 1) != 0;
    d.gated = attr(c, "gated", 1) != 0;
    need(c->in[0].count == d.T * d.C && c->in[1].count == d.T * d.H && c->in[2].count == d.T * d.H, c);
    need(d.chunk > 0 && d.chunk <= 4096, c);
    return d;
}

void run_delta_rule(const Call *c) {
    Delta d = delta_of(c);
    need(c->out.count == d.T * d.H * d.V, c);
    delta_rule(F(c->out), 0, F(c->in[0]), F(c->in[1]), F(c->in[2]), F(c->in[3]), &d);
}

void run_delta_state(const Call *c) {
    Delta d = delta_of(c);
    need(c->out.count == c->in[3].count, c);
    delta_rule(0, F(c->out), F(c->in[0]), F(c->in[1]), F(c->in[2]), F(c->in[3]), &d);
}
