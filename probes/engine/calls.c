/* From views to the plain pointers and dims of each kernel, and the table of all kinds. A kind that begins with
   `naive_` runs the oracle of the kernel of that name. A size that does not fit ends the run before the kernel. */
#include "calls.h"
#include "kernels.h"
#include "runtime.h"

#include <string.h>

void need(int fits, const Call *call) {
    if (!fits) fail("sizes do not fit", call->op->name);
}

int64_t last_dim(const View *v) { return v->dims[v->rank - 1]; }

typedef void (*LinearKernel)(float *, const float *, const float *, const float *, int64_t, int64_t, int64_t);
typedef void (*HeadKernel)(float *, const float *, const float *, int64_t, int64_t, int64_t, int64_t, int64_t);
typedef void (*ConvKernel)(float *, const float *, const float *, const float *, int64_t, int64_t, int64_t, int64_t);

static void call_linear(const Call *c, LinearKernel kernel) {
    int64_t cols = c->weight[0].dims[0], inner = c->weight[0].dims[1], rows = c->out.count / cols;
    need(c->weight[0].rank == 2 && c->out.count == rows * cols && c->in[0].count == rows * inner, c);
    need(!c->weight[1].at || c->weight[1].count == cols, c);
    if (c->weight[0].type) {
        linear_stored(F(c->out), F(c->in[0]), c->weight[0].at, c->weight[0].type, c->weight[1].at ? F(c->weight[1]) : 0,
                      rows, cols, inner);
        return;
    }
    kernel(F(c->out), F(c->in[0]), F(c->weight[0]), c->weight[1].at ? F(c->weight[1]) : 0, rows, cols, inner);
}

static void call_conv1d(const Call *c, ConvKernel kernel) {
    int64_t D = c->weight[0].dims[0], C = c->weight[0].dims[1], L = c->in[0].count / C;
    int64_t stride = (int64_t)attr(c, "stride", 1);
    need(c->weight[0].rank == 3 && c->weight[0].dims[2] == 3 && c->weight[1].count == D && stride > 0, c);
    need(c->in[0].count == C * L && c->out.count == D * ((L - 1) / stride + 1), c);
    kernel(F(c->out), F(c->in[0]), F(c->weight[0]), F(c->weight[1]), D, C, L, stride);
}

static int64_t heads(const Call *c) { return (int64_t)attr(c, "heads", (double)c->runtime->program->heads); }

static int64_t key_heads(const Call *c) {
    int64_t H = heads(c), G = (int64_t)attr(c, "key_heads", (double)H);
    need(H > 0 && G > 0 && H % G == 0, c);
    return G;
}

static void call_scores(const Call *c, HeadKernel kernel) {
    int64_t H = heads(c), G = key_heads(c), Tk = last_dim(&c->out), Tq = c->out.count / (H * Tk);
    need(Tq > 0, c);
    int64_t K = c->in[0].count / (H * Tq);
    need(c->out.count == H * Tq * Tk && c->in[0].count == Tq * H * K && c->in[1].count == Tk * G * K, c);
    kernel(F(c->out), F(c->in[0]), F(c->in[1]), H, G, Tq, Tk, K);
}

static void call_mix(const Call *c, HeadKernel kernel) {
    int64_t H = heads(c), G = key_heads(c), K = last_dim(&c->out), Tq = c->out.count / (H * K);
    need(Tq > 0, c);
    int64_t Tk = c->in[0].count / (H * Tq);
    need(c->out.count == H * Tq * K && c->in[0].count == H * Tq * Tk && c->in[1].count == Tk * G * K, c);
    kernel(F(c->out), F(c->in[0]), F(c->in[1]), H, G, Tq, Tk, K);
}

static void run_linear(const Call *c) { call_linear(c, linear); }
static void run_naive_linear(const Call *c) { call_linear(c, naive_linear); }
static void run_conv1d(const Call *c) { call_conv1d(c, conv1d); }
static void run_naive_conv1d(const Call *c) { call_conv1d(c, naive_conv1d); }
static void run_attention_scores(const Call *c) { call_scores(c, attention_scores); }
static void run_naive_attention_scores(const Call *c) { call_scores(c, naive_attention_scores); }
static void run_attention_mix(const Call *c) { call_mix(c, attention_mix); }
static void run_naive_attention_mix(const Call *c) { call_mix(c, naive_attention_mix); }

static void run_gelu(const Call *c) {
    need(c->in[0].count == c->out.count, c);
    gelu(F(c->out), F(c->in[0]), c->out.count);
}

static void run_mul(const Call *c) {
    need(c->in[0].count == c->out.count, c);
    mul(F(c->out), F(c->in[0]), (float)attr(c, "factor", 1), c->out.count);
}

static void run_add(const Call *c) {
    need(c->in[0].count == c->out.count && c->in[1].count == c->out.count, c);
    add(F(c->out), F(c->in[0]), F(c->in[1]), c->out.count);
}

static void run_add_permuted(const Call *c) {
    int64_t D = last_dim(&c->out), T = c->out.count / D;
    need(c->in[0].count == T * D && c->in[1].count == T * D, c);
    add_permuted(F(c->out), F(c->in[0]), F(c->in[1]), T, D);
}

static void run_layer_norm(const Call *c) {
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    need(c->out.count == rows * D && c->in[0].count == rows * D && c->weight[1].count == D, c);
    layer_norm(F(c->out), F(c->in[0]), F(c->weight[0]), F(c->weight[1]), rows, D, (float)attr(c, "eps", 1e-5));
}

static void run_causal_mask(const Call *c) {
    int64_t H = heads(c), Tk = last_dim(&c->out), Tq = c->out.count / (H * Tk);
    need(c->out.count == H * Tq * Tk && c->in[0].count == c->out.count, c);
    causal_mask(F(c->out), F(c->in[0]), H, Tq, Tk, (int64_t)attr(c, "ahead", 0), (int64_t)attr(c, "window", 0));
}

static void run_softmax(const Call *c) {
    int64_t cols = last_dim(&c->out);
    need(c->in[0].count == c->out.count, c);
    softmax(F(c->out), F(c->in[0]), c->out.count / cols, cols);
}

static void run_embedding(const Call *c) {
    int64_t V = c->weight[0].dims[0], D = c->weight[0].dims[1], T = c->in[0].count;
    const int64_t *ids = I(c->in[0]);
    need(c->weight[0].rank == 2 && c->out.count == T * D, c);
    for (int64_t t = 0; t < T; t++) need(ids[t] >= 0 && ids[t] < V, c);
    embedding(F(c->out), ids, c->weight[0].at, c->weight[0].type, T, D);
}

static void run_positions(const Call *c) {
    int64_t D = c->weight[0].dims[1], T = c->out.count / D, first = attr(c, "decoder", 0) ? c->runtime->first : 0;
    need(c->weight[0].rank == 2 && c->out.count == T * D && first + T <= c->weight[0].dims[0], c);
    positions(F(c->out), F(c->weight[0]), first, T, D);
}

static void run_masked_fill(const Call *c) {
    const Program *p = c->runtime->program;
    int begin = attr(c, "begin", 0) != 0;
    const int64_t *ids = begin ? p->begin_suppress : p->suppress;
    int64_t V = c->out.count, count = begin ? p->begin_suppresses : p->suppresses;
    need(c->in[0].count >= V && c->in[0].count % V == 0, c);
    for (int64_t i = 0; i < count; i++) need(ids[i] < V, c);
    masked_fill(F(c->out), F(c->in[0]) + c->in[0].count - V, ids, count, V);
}

static void run_argmax(const Call *c) {
    int64_t V = last_dim(&c->in[0]);
    need(c->out.count == 1 && c->in[0].count > 0, c);
    argmax(I(c->out), F(c->in[0]) + c->in[0].count - V, V);
}

#define KINDS(K) \
    K(linear) K(naive_linear) K(conv1d) K(naive_conv1d) K(attention_scores) K(naive_attention_scores) \
    K(attention_mix) K(naive_attention_mix) K(gelu) K(mul) K(add) K(add_permuted) K(layer_norm) K(causal_mask) \
    K(softmax) K(embedding) K(positions) K(masked_fill) K(argmax) LANGUAGE_KINDS(K)

#define NAME_OF(kind) #kind,
#define ENTRY_OF(kind) \
    if (index-- == 0) return (KernelEntry){#kind, run_##kind, where_##kind.file, where_##kind.line};

static const char *const kinds[] = {KINDS(NAME_OF)};

int find_kernel(const char *kind) {
    for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
        if (!strcmp(kinds[i], kind)) return i;
    for (int i = 0; extra_kernels && extra_kernels[i].kind; i++)
        if (!strcmp(extra_kernels[i].kind, kind)) return (int)(sizeof kinds / sizeof *kinds) + i;
    return -1;
}

KernelEntry kernel_entry(int index) {
    KINDS(ENTRY_OF)
    return extra_kernels[index];
}
