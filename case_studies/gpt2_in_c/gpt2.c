/* A GPT-2-like forward pass in C: greedy decoding with a key-value cache, one kernel a function, nothing to link.

     ./gpt2 WEIGHTS TOKENS HEADS MAX_TOKENS [END]

   WEIGHTS.txt lists a weight a line (name, offset, rank, sizes), WEIGHTS holds their float32; TOKENS holds ids as text.
   Dims: T tokens of this step, N tokens seen so far, D model, H heads, K = D / H, F feed-forward, V vocabulary.
   Leaves out: batches, sampling, speed. */
#define FIRSTBAD_IMPLEMENTATION
#include "firstbad.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    float *at;
    int T, D;
} Tensor;

typedef struct {
    void (*run)(Tensor y, const Tensor *in);
    const char *kind;
    int line;
} Kernel;

#define KERNEL(kind)                                                \
    static void run_##kind(Tensor y, const Tensor *in);             \
    static const Kernel kind = {run_##kind, #kind, __LINE__};       \
    static void run_##kind(Tensor y, const Tensor *in)

static int H;           /* heads */
static int64_t ids[4096]; /* tokens, the prompt first */
static int seen;        /* tokens in the cache before this step */

/* Every kernel runs here, so that the probe is in one place. */
static void apply(Kernel kernel, Tensor y, int n, const Tensor *in) {
    FB_OP_AT(kernel.kind, "", __FILE__, kernel.line);
    for (int i = 0; i < n; i++) FB_READ_F32(((const char *[]){"x", "weight", "bias"})[i], in[i].at, in[i].T, in[i].D);
    kernel.run(y, in);
    FB_WRITE_F32(y.name, y.at, y.T, y.D);
    FB_OP_END();
}
#define APPLY(kernel, y, ...) \
    apply(kernel, y, (int)(sizeof((Tensor[]){__VA_ARGS__}) / sizeof(Tensor)), (const Tensor[]){__VA_ARGS__})

/* y[t] = wte[id of t] + wpe[position of t] */
KERNEL(embed) {
    for (int t = 0; t < y.T; t++) {
        const float *word = in[0].at + ids[seen + t] * y.D, *place = in[1].at + (seen + t) * y.D;
        for (int d = 0; d < y.D; d++) y.at[t * y.D + d] = word[d] + place[d];
    }
}

KERNEL(layer_norm) {
    for (int t = 0; t < y.T; t++) {
        const float *x = in[0].at + t * y.D;
        float mean = 0, variance = 0;
        for (int d = 0; d < y.D; d++) mean += x[d] / y.D;
        for (int d = 0; d < y.D; d++) variance += (x[d] - mean) * (x[d] - mean) / y.D;
        float scale = 1 / sqrtf(variance + 1e-5f);
        for (int d = 0; d < y.D; d++) y.at[t * y.D + d] = (x[d] - mean) * scale * in[1].at[d] + in[2].at[d];
    }
}

/* y = x w + b; w is [D_in, D_out] as GPT-2 stores it */
KERNEL(linear) {
    const Tensor x = in[0], w = in[1], b = in[2];
    for (int t = 0; t < y.T; t++)
        for (int j = 0; j < y.D; j++) {
            float sum = b.at[j];
            for (int i = 0; i < x.D; i++) sum += x.at[t * x.D + i] * w.at[i * w.D + j];
            y.at[t * y.D + j] = sum;
        }
}

/* scores [H T, N] of q, the first third of each row of qkv, with the cached keys [N, D]; what comes later is masked */
KERNEL(scores) {
    const Tensor qkv = in[0], keys = in[1];
    int T = qkv.T, N = keys.T, D = keys.D, K = D / H;
    for (int h = 0; h < H; h++)
        for (int t = 0; t < T; t++)
            for (int n = 0; n < N; n++) {
                const float *q = qkv.at + t * qkv.D + h * K, *k = keys.at + n * D + h * K;
                float sum = 0;
                for (int i = 0; i < K; i++) sum += q[i] * k[i];
                y.at[(h * T + t) * N + n] = n <= seen + t ? sum / sqrtf((float)K) : -INFINITY;
            }
}

KERNEL(softmax) {
    for (int t = 0; t < y.T; t++) {
        const float *x = in[0].at + t * y.D;
        float most = -INFINITY, sum = 0;
        for (int d = 0; d < y.D; d++) most = x[d] > most ? x[d] : most;
        for (int d = 0; d < y.D; d++) sum += y.at[t * y.D + d] = expf(x[d] - most);
        for (int d = 0; d < y.D; d++) y.at[t * y.D + d] /= sum;
    }
}

/* y [T, D] = probabilities [H T, N] times the cached values [N, D], head by head */
KERNEL(attend) {
    const Tensor p = in[0], values = in[1];
    int T = y.T, N = values.T, D = values.D, K = D / H;
    for (int t = 0; t < T; t++)
        for (int d = 0; d < D; d++) {
            float sum = 0;
            for (int n = 0; n < N; n++) sum += p.at[(d / K * T + t) * N + n] * values.at[n * D + d];
            y.at[t * D + d] = sum;
        }
}

KERNEL(gelu) {
    for (int i = 0; i < y.T * y.D; i++) {
        float x = in[0].at[i];
        y.at[i] = 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    }
}

KERNEL(add) {
    for (int i = 0; i < y.T * y.D; i++) y.at[i] = in[0].at[i] + in[1].at[i];
}

/* the rows of this step go behind those that the cache has; `y` shows the whole cache; in[0] is qkv, in[1] the cache */
KERNEL(append_keys) {
    for (int t = 0; t < in[0].T; t++)
        memcpy(y.at + (seen + t) * y.D, in[0].at + t * in[0].D + y.D, sizeof(float) * y.D);
}
KERNEL(append_values) {
    for (int t = 0; t < in[0].T; t++)
        memcpy(y.at + (seen + t) * y.D, in[0].at + t * in[0].D + 2 * y.D, sizeof(float) * y.D);
}

/* logits of the last token; the projection is the embedding */
KERNEL(logits_of) {
    const Tensor x = in[0], w = in[1];
    for (int t = 0; t < y.T; t++)
        for (int v = 0; v < y.D; v++) {
            float sum = 0;
            for (int d = 0; d < x.D; d++) sum += x.at[t * x.D + d] * w.at[v * x.D + d];
            y.at[t * y.D + v] = sum;
        }
}

static struct {
    int count;
    Tensor all[512];
} weights;

static void load(const char *path) {
    char index[4096], name[512];
    snprintf(index, sizeof index, "%s.txt", path);
    FILE *lines = fopen(index, "r"), *data = fopen(path, "rb");
    if (!lines || !data) exit((fprintf(stderr, "cannot read %s\n", path), 2));
    long offset;
    for (int rank; fscanf(lines, "%511s %ld %d", name, &offset, &rank) == 3 && weights.count < 512;) {
        int sizes[4] = {1, 1, 1, 1};
        for (int i = 0; i < rank && i < 4; i++)
            if (fscanf(lines, "%d", &sizes[i]) != 1) exit(2);
        int T = rank > 1 ? sizes[0] : 1, D = rank > 1 ? sizes[1] : sizes[0];
        Tensor w = {strdup(name), malloc(sizeof(float) * T * D), T, D};
        if (fseek(data, offset, SEEK_SET) || fread(w.at, sizeof(float), (size_t)T * D, data) != (size_t)T * D) exit(2);
        weights.all[weights.count++] = w;
        if (rank > 1) FB_WEIGHT_F32(w.name, w.at, T, D);
        else FB_WEIGHT_F32(w.name, w.at, D);
    }
    fclose(lines);
    fclose(data);
}

static Tensor weight(const char *pattern, int layer) {
    char name[512];
    snprintf(name, sizeof name, pattern, layer);
    for (int i = 0; i < weights.count; i++)
        if (!strcmp(weights.all[i].name, name)) return weights.all[i];
    return (Tensor){0};
}

static Tensor fresh(const char *pattern, int layer, int T, int D, int room) {
    char name[512];
    snprintf(name, sizeof name, pattern, layer);
    return (Tensor){strdup(name), malloc(sizeof(float) * (size_t)(room > T ? room : T) * D), T, D};
}

#define WEIGHT_AND_BIAS(path, layer) weight(path ".weight", layer), weight(path ".bias", layer)
#define MOST 1024 /* tokens that the caches hold */

static Tensor keys[64], values[64];

/* One step: the new tokens in, the logits of each out. Buffers live for the step, the caches for the run. */
static Tensor forward(int T) {
    Tensor wte = weight("transformer.wte.weight", 0);
    int D = wte.D, N = seen + T;
    Tensor x = fresh("transformer.embedded", 0, T, D, 0);
    APPLY(embed, x, wte, weight("transformer.wpe.weight", 0));
    for (int l = 0; weight("transformer.h.%d.ln_1.weight", l).at; l++) {
        if (!keys[l].at) {
            keys[l] = fresh("transformer.h.%d.attn.keys", l, 0, D, MOST);
            values[l] = fresh("transformer.h.%d.attn.values", l, 0, D, MOST);
        }
        keys[l].T = values[l].T = N;
        Tensor a = fresh("transformer.h.%d.ln_1", l, T, D, 0);
        APPLY(layer_norm, a, x, WEIGHT_AND_BIAS("transformer.h.%d.ln_1", l));
        Tensor qkv = fresh("transformer.h.%d.attn.c_attn", l, T, 3 * D, 0);
        APPLY(linear, qkv, a, WEIGHT_AND_BIAS("transformer.h.%d.attn.c_attn", l));
        APPLY(append_keys, keys[l], qkv);
        APPLY(append_values, values[l], qkv);
        Tensor s = fresh("transformer.h.%d.attn.scores", l, H * T, N, 0);
        APPLY(scores, s, qkv, keys[l]);
        Tensor p = fresh("transformer.h.%d.attn.probabilities", l, H * T, N, 0);
        APPLY(softmax, p, s);
        Tensor y = fresh("transformer.h.%d.attn.attended", l, T, D, 0);
        APPLY(attend, y, p, values[l]);
        Tensor o = fresh("transformer.h.%d.attn.c_proj", l, T, D, 0);
        APPLY(linear, o, y, WEIGHT_AND_BIAS("transformer.h.%d.attn.c_proj", l));
        Tensor x1 = fresh("transformer.h.%d.after_attention", l, T, D, 0);
        APPLY(add, x1, x, o);
        Tensor b = fresh("transformer.h.%d.ln_2", l, T, D, 0);
        APPLY(layer_norm, b, x1, WEIGHT_AND_BIAS("transformer.h.%d.ln_2", l));
        Tensor f = fresh("transformer.h.%d.mlp.c_fc", l, T, weight("transformer.h.%d.mlp.c_fc.bias", l).D, 0);
        APPLY(linear, f, b, WEIGHT_AND_BIAS("transformer.h.%d.mlp.c_fc", l));
        Tensor g = fresh("transformer.h.%d.mlp.act", l, T, f.D, 0);
        APPLY(gelu, g, f);
        Tensor m = fresh("transformer.h.%d.mlp.c_proj", l, T, D, 0);
        APPLY(linear, m, g, WEIGHT_AND_BIAS("transformer.h.%d.mlp.c_proj", l));
        Tensor x2 = fresh("transformer.h.%d.after_mlp", l, T, D, 0);
        APPLY(add, x2, x1, m);
        x = x2;
    }
    Tensor last = fresh("transformer.ln_f", 0, T, D, 0);
    APPLY(layer_norm, last, x, WEIGHT_AND_BIAS("transformer.ln_f", 0));
    Tensor logits = fresh("lm_head", 0, T, wte.T, 0);
    APPLY(logits_of, logits, last, wte);
    return logits;
}

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: gpt2 WEIGHTS TOKENS HEADS MAX_TOKENS [END]\n"), 2;
    FILE *file = fopen(argv[2], "r");
    if (!file) return fprintf(stderr, "cannot read %s\n", argv[2]), 2;
    int64_t T = 0, end = argc > 5 ? atoi(argv[5]) : -1;
    for (long id; T < MOST && fscanf(file, "%ld", &id) == 1; T++) ids[T] = id;
    fclose(file);
    H = atoi(argv[3]);
    load(argv[1]);
    for (int made = 0, most = atoi(argv[4]); made < most && seen + T < MOST; made++) {
        char step[32];
        snprintf(step, sizeof step, made ? "decode.%d" : "prefill", made - 1);
        FB_STEP(step);
        FB_INPUT("input_ids", ids + seen, FB_I64, 2, ((int64_t[]){1, T}), NULL);
        Tensor logits = forward((int)T);
        const float *row = logits.at + (logits.T - 1) * logits.D;
        int best = 0;
        for (int v = 0; v < logits.D; v++) best = row[v] > row[best] ? v : best;
        FB_TOKEN(best);
        printf("%d%s", best, made + 1 < most ? " " : "\n");
        seen += (int)T;
        ids[seen] = best;
        T = 1;
        if (best == end) break;
    }
    return 0;
}
