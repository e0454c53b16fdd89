/* What an engine may do with firstbad.h, one case each; valid C99 and C++11. The records are judged by test_header.py. */
#define FIRSTBAD_IMPLEMENTATION
#include "firstbad.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float a[64], b[64];

static void fill(float *p, int count, float first) {
    for (int i = 0; i < count; i++) p[i] = first + (float)i;
}

static void make(const char *name, float *p, int rows, int cols) {
    FB_OP("make");
    FB_WRITE_F32(name, p, rows, cols);
    FB_OP_END();
}

static void plain(void) {
    static uint16_t halves[3] = {0x3F80, 0xC000, 0x7FC0}; /* bfloat16 1, -2, nan */
    static unsigned char flags[5] = {1, 0, 1, 1, 0};
    int64_t three = 3, five = 5, shape[3] = {2, 4, 3}, strides[3] = {4, 8, 32}, zero[2] = {0, 7};
    double number = 2.5;
    FB_STEP("encode");
    fill(a, 24, 1);
    FB_INPUT_F32("features", a, 1, 4, 6);
    FB_WEIGHT_F32("fc.weight", b, 8);
    FB_OP_AT("linear", "fc", "kernels.c", 120);
    FB_ATTR("eps", 0.5);
    FB_READ_F32_OF("x", "features", a, 1, 4, 6);
    FB_READ_F32("weight", b, 8);
    fill(b + 8, 24, 50);
    FB_WRITE("fc", b + 8, FB_F32, 3, shape, strides);
    FB_OP_END();
    FB_STEP("decode.0");
    FB_OP_NAMED("types", "types");
    FB_READ("x", b + 8, FB_F32, 3, shape, strides);
    FB_WRITE("halves", halves, FB_BF16, 1, &three, NULL);
    FB_WRITE("flags", flags, FB_BOOL, 1, &five, NULL);
    FB_WRITE("number", &number, FB_F64, 0, NULL, NULL);
    FB_WRITE("nothing", a, FB_F32, 2, zero, NULL);
    FB_OP_END();
    FB_TOKEN(7);
    FB_TOKEN(-1);
    FB_TEXT("text", "na\xC3\xAFve");
}

/* two live tensors overlap */
static void clobber(int named) {
    FB_STEP("encode");
    fill(a, 16, 1);
    make("A", a, 4, 4);
    fill(a + 8, 16, 100);
    make("B", a + 8, 4, 4);
    FB_OP("use");
    if (named) FB_READ_F32_OF("x", "A", a, 4, 4);
    else FB_READ_F32("x", a, 4, 4);
    FB_OP_END();
}

/* one buffer, two values, one after the other: legal, unless the older one is meant */
static void reuse(const char *meant) {
    FB_STEP("encode");
    fill(a, 16, 1);
    make("A", a, 4, 4);
    fill(a, 16, 100);
    make("B", a, 4, 4);
    FB_OP("use");
    FB_READ_F32_OF("x", meant, a, 4, 4);
    FB_OP_END();
}

static void unwritten(void) {
    FB_STEP("encode");
    fill(a, 16, 1);
    make("A", a, 2, 4);
    FB_OP("use");
    FB_READ_F32("x", a, 4, 4);
    FB_OP_END();
}

/* a KV cache: rows are appended, the reader sees all; `wild`: row 1 is overwritten behind the probe's back */
static void rows(int wild) {
    char step[16];
    FB_STEP("prefill");
    fill(a, 12, 1);
    make("k", a, 3, 4);
    for (int n = 3; n < 6; n++) {
        snprintf(step, sizeof step, "decode.%d", n - 3);
        FB_STEP(step);
        fill(a + 4 * n, 4, (float)(10 * n));
        make("k", a + 4 * n, 1, 4);
        if (wild && n == 5) a[4 * 3 + 1] = -1;
        FB_OP("scores");
        FB_READ_F32_OF("k", "k", a, n + 1, 4);
        FB_OP_END();
    }
}

/* rows of a ring: a newer row of the same name takes the place of an old one */
static void ring(void) {
    FB_STEP("prefill");
    fill(a, 16, 1);
    make("k", a, 4, 4);
    FB_STEP("decode.0");
    fill(a, 4, 70);
    make("k", a, 1, 4);
    FB_OP("scores");
    FB_READ_F32_OF("k", "k", a, 4, 4);
    FB_OP_END();
}

/* q, k and v side by side in each row of one buffer; a read of the k columns is a read of k alone */
static void fused(void) {
    const char *names[3] = {"q", "k", "v"};
    int64_t shape[2] = {4, 2}, strides[2] = {24, 4};
    FB_STEP("encode");
    fill(a, 24, 1);
    FB_OP("qkv");
    for (int i = 0; i < 3; i++) FB_WRITE(names[i], a + 2 * i, FB_F32, 2, shape, strides);
    FB_OP_END();
    FB_OP("use");
    FB_READ("k", a + 2, FB_F32, 2, shape, strides);
    FB_OP_END();
    FB_OP("all");
    FB_READ_F32("x", a, 4, 6);
    FB_OP_END();
}

static void weight(int when) {
    FB_STEP("encode");
    fill(a, 8, 1);
    FB_WEIGHT_F32("w", a, 8);
    FB_OP("first");
    FB_READ_F32("weight", a, 8);
    FB_OP_END();
    if (when == 1) { /* by a recorded write */
        fill(a + 4, 8, 30);
        make("A", a + 4, 2, 4);
    } else {
        a[0] = 55;
    }
    FB_OP("second");
    FB_READ_F32("weight", a, 8);
    FB_OP_END();
}

static void replaced(void) {
    int64_t shape[2] = {2, 3}, strides[2] = {4, 8};
    FB_STEP("encode");
    fill(a, 6, 1);
    FB_OP("make");
    FB_WRITE("A", a, FB_F32, 2, shape, strides);
    FB_OP_END();
    FB_OP("make");
    FB_READ_F32_OF("x", "A", a, 6);
    FB_WRITE_F32("B", a + 6, 2);
    FB_OP_END();
    for (int i = 0; i < 6; i++) printf("%g ", (double)a[i]);
}

static void many(void) {
    FB_STEP("encode");
    for (int i = 0; i < 6000; i++) {
        char name[16];
        float *p = (float *)malloc(64 * sizeof(float));
        fill(p, 4, (float)i);
        snprintf(name, sizeof name, "v%d", i % 50);
        make(name, p, 1, 4);
        FB_OP("use");
        FB_READ_F32_OF("x", name, p, 4);
        FB_OP_END();
        FB_FREE(p, 64 * sizeof(float));
        free(p);
    }
}

static void *one_of_two(void *context) {
    float *p = (float *)context;
    for (int i = 0; i < 100; i++) {
        fill(p, 8, (float)i);
        make(p == a ? "A" : "B", p, 2, 4);
        FB_OP("use");
        FB_READ_F32("x", p, 8);
        FB_OP_END();
    }
    return NULL;
}

static void threads(void) {
    pthread_t other;
    FB_STEP("encode");
    pthread_create(&other, NULL, one_of_two, b);
    one_of_two(a);
    pthread_join(other, NULL);
}

static void idle(void) {
    for (int i = 0; i < 200000000; i++) FB_READ_F32("x", a, 8, 8);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "plain")) plain();
    if (!strcmp(name, "clobber")) clobber(0);
    if (!strcmp(name, "clobber-named")) clobber(1);
    if (!strcmp(name, "reuse")) reuse("");
    if (!strcmp(name, "reuse-new")) reuse("B");
    if (!strcmp(name, "reuse-old")) reuse("A");
    if (!strcmp(name, "unwritten")) unwritten();
    if (!strcmp(name, "rows")) rows(0);
    if (!strcmp(name, "rows-wild")) rows(1);
    if (!strcmp(name, "ring")) ring();
    if (!strcmp(name, "fused")) fused();
    if (!strcmp(name, "weight")) weight(0);
    if (!strcmp(name, "weight-clobbered")) weight(1);
    if (!strcmp(name, "replaced")) replaced();
    if (!strcmp(name, "many")) many();
    if (!strcmp(name, "threads")) threads();
    if (!strcmp(name, "idle")) idle();
    if (!strcmp(name, "abort")) {
        plain();
        FB_OP_AT("linear", "last", "kernels.c", 7);
        abort();
    }
    return 0;
}
