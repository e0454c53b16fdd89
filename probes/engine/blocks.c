/* Weights stored as float16, bfloat16 or in ggml's blocks, made float32 a row at a time. */
#include "blocks.h"

#include "firstbad.h"

#include <string.h>

static float half(const uint8_t *at) {
    _Float16 value;
    memcpy(&value, at, sizeof value);
    return (float)value;
}

BlockType block_type(int type) {
    static const BlockType types[WEIGHT_TYPES] = {
        {1, 4, FB_F32},  {1, 2, FB_F16},   {1, 2, FB_BF16},   {32, 34, FB_U8}, {32, 18, FB_U8},
        {32, 20, FB_U8}, {256, 144, FB_U8}, {256, 210, FB_U8}, {32, 17, FB_U8},
    };
    return types[type];
}

/* scale and minimum of sub-block i of 8, 6 bits each in 12 bytes */
static void scale_and_min(const uint8_t *packed, int i, int *scale, int *minimum) {
    if (i < 4) {
        *scale = packed[i] & 63;
        *minimum = packed[i + 4] & 63;
    } else {
        *scale = (packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4;
        *minimum = packed[i + 4] >> 4 | (packed[i] >> 6) << 4;
    }
}

static void q4_k(const uint8_t *b, float *to) {
    float d = half(b), least = half(b + 2);
    for (int i = 0; i < 8; i++) {
        int scale, minimum;
        scale_and_min(b + 4, i, &scale, &minimum);
        float step = d * (float)scale, base = least * (float)minimum;
        const uint8_t *q = b + 16 + i / 2 * 32;
        for (int k = 0; k < 32; k++) to[i * 32 + k] = step * (float)(i % 2 ? q[k] >> 4 : q[k] & 15) - base;
    }
}

static void q6_k(const uint8_t *b, float *to) {
    const int8_t *scales = (const int8_t *)(b + 192);
    float d = half(b + 208);
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < 4; i++) /* 32 numbers each: low or high nibbles, and two more bits */
            for (int k = 0; k < 32; k++) {
                int low = b[part * 64 + i % 2 * 32 + k];
                int high = b[128 + part * 32 + k] >> (2 * i) & 3;
                int q = ((i < 2 ? low & 15 : low >> 4) | high << 4) - 32;
                to[part * 128 + i * 32 + k] = d * (float)scales[part * 8 + i * 2 + k / 16] * (float)q;
            }
}

static void mxfp4(const uint8_t *b, float *to) {
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    uint32_t bits = b[0] ? (uint32_t)b[0] << 23 : 0x00400000u; /* 2^(e - 127) */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    for (int k = 0; k < 16; k++) {
        to[k] = values[b[1 + k] & 15] * scale;
        to[k + 16] = values[b[1 + k] >> 4] * scale;
    }
}

static void q8_0(const uint8_t *b, float *to) {
    float d = half(b);
    for (int k = 0; k < 32; k++) to[k] = d * (float)(int8_t)b[2 + k];
}

static void q4_0(const uint8_t *b, float *to) {
    float d = half(b);
    for (int k = 0; k < 16; k++) {
        to[k] = d * (float)((b[2 + k] & 15) - 8);
        to[k + 16] = d * (float)((b[2 + k] >> 4) - 8);
    }
}

static void q4_1(const uint8_t *b, float *to) {
    float d = half(b), least = half(b + 2);
    for (int k = 0; k < 16; k++) {
        to[k] = d * (float)(b[4 + k] & 15) + least;
        to[k + 16] = d * (float)(b[4 + k] >> 4) + least;
    }
}

static void bfloat16(const uint8_t *b, float *to) {
    uint32_t bits = (uint32_t)(b[0] | b[1] << 8) << 16;
    memcpy(to, &bits, sizeof bits);
}

static void float16(const uint8_t *b, float *to) { *to = half(b); }

const float *row_of(int type, const void *blocks, int64_t count, float *to) {
    static void (*const unpack[WEIGHT_TYPES])(const uint8_t *, float *) = {NULL, float16, bfloat16, q8_0, q4_0,
                                                                           q4_1, q4_k,    q6_k,     mxfp4};
    if (type == W_F32) return blocks;
    const BlockType known = block_type(type);
    const uint8_t *at = blocks;
    for (int64_t i = 0; i < count; i += known.numbers, at += known.bytes) unpack[type](at, to + i);
    return to;
}
