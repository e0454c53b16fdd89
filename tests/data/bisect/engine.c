/* A small engine with a gated feed-forward block, as somebody would write one by hand: the subject of a bisection. */
#define FIRSTBAD_IMPLEMENTATION
#include "firstbad.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 8, D = 32, F = 64 };

static void norm(float *y, const float *x, const float *w, const float *b) {
    for (int t = 0; t < T; t++) {
        double mean = 0, square = 0;
        for (int d = 0; d < D; d++) mean += x[t * D + d];
        mean /= D;
        for (int d = 0; d < D; d++) square += (x[t * D + d] - mean) * (x[t * D + d] - mean);
        double scale = 1 / sqrt(square / D + 1e-5);
        for (int d = 0; d < D; d++) y[t * D + d] = (float)((x[t * D + d] - mean) * scale) * w[d] + b[d];
    }
}

static void linear(float *y, const float *x, const float *w, const float *b, int in, int out) {
    for (int t = 0; t < T; t++)
        for (int o = 0; o < out; o++) {
            float sum = b[o];
            for (int i = 0; i < in; i++) sum += x[t * in + i] * w[o * in + i];
            y[t * out + o] = sum;
        }
}

#define NORM(name, y, x, w, b) \
    do { \
        FB_OP("layer_norm"); \
        FB_READ_F32("x", x, 1, T, D); \
        norm(y, x, w, b); \
        FB_WRITE_F32(name, y, 1, T, D); \
        FB_OP_END(); \
    } while (0)
#define LINEAR(name, y, x, w, b, in, out) \
    do { \
        FB_OP("linear"); \
        FB_READ_F32("x", x, 1, T, in); \
        linear(y, x, w, b, in, out); \
        FB_WRITE_F32(name, y, 1, T, out); \
        FB_OP_END(); \
    } while (0)
#define EACH(name, kind, y, a, b, n, expression) \
    do { \
        FB_OP(kind); \
        FB_READ_F32("a", a, 1, T, n); \
        FB_READ_F32("b", b, 1, T, n); \
        for (int i = 0; i < T * (n); i++) (y)[i] = expression; \
        FB_WRITE_F32(name, y, 1, T, n); \
        FB_OP_END(); \
    } while (0)

static float weights[2 * D + 2 * (D * F + F) + F * D + D];
static float x[T * D], hidden[T * D], up[T * F], gate[T * F], act[T * F], down[T * D], out[T * D];

static void forward(void) {
    const float *w = weights, *b = w + D;
    const float *w_up = b + D, *b_up = w_up + D * F, *w_gate = b_up + F, *b_gate = w_gate + D * F;
    const float *w_down = b_gate + F, *b_down = w_down + F * D;
    NORM("norm", hidden, x, w, b);
    LINEAR("up", up, hidden, w_up, b_up, D, F);
    LINEAR("gate", gate, hidden, w_gate, b_gate, D, F);
    EACH("act.silu", "silu", act, gate, gate, F, gate[i] / (1 + expf(-gate[i])));
    EACH("mul", "mul", act, act, up, F, act[i] * up[i]);
    LINEAR("down", down, act, w_down, b_down, F, D);
    EACH("add", "add", out, x, down, D, x[i] + down[i]);
}

static void load(const char *path, float *into, int count, long skip) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, skip, SEEK_SET) || fread(into, 4, (size_t)count, file) != (size_t)count) exit(9);
    fclose(file);
}

int main(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/x.npy", getenv("FIRSTBAD_INPUTS"));
    load(path, x, T * D, 128); /* the head of a small .npy file has 128 bytes */
    load("weights.bin", weights, sizeof weights / 4, 0);
    FB_STEP("forward");
    FB_INPUT_F32("x", x, 1, T, D);
    forward();
    for (int i = 0; i < 4; i++) printf("%.3f\n", out[i]);
    return 0;
}
