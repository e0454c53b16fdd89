/* From views to the plain pointers and dims of the kernels of language models. A size that does not fit ends the run
   before the kernel. */
#include "calls.h"

#include "kernels.h"

static int same(const Call *c, int inputs) {
    for (int i = 0; i < inputs; i++)
        if (c->in[i].count != c->out.count) return 0;
    return 1;
}

static const float *bias(const Call *c) { return c->weight[1].at ? F(c->weight[1]) : 0; }

void run_linear_turned(const Call *c) {
    int64_t inner = c->weight[0].dims[0], cols = c->weight[0].dims[1], rows = c->out.count / cols;
    need(c->weight[0].rank == 2 && !c->weight[0].type && c->out.count == rows * cols, c);
    need(c->in[0].count == rows * inner && (!c->weight[1].at || c->weight[1].count == cols), c);
    linear_turned(F(c->out), F(c->in[0]), F(c->weight[0]), bias(c), rows, cols, inner);
}

void run_rms_norm(const Call *c) {
    int64_t D = c->weight[0].count, rows = c->out.count / D;
    need(same(c, 1) && c->out.count == rows * D, c);
    rms_norm(F(c->out), F(c->in[0]), F(c->weight[0]), rows, D, (float)attr(c, "eps", 1e-6), (float)attr(c, "offset", 0));
}

typedef void (*TableKernel)(float *, const float *, Rope, int64_t, int64_t);

static void call_table(const Call *c, TableKernel kernel) {
    int64_t R = last_dim(&c->out), frequencies = c->weight[0].count;
    Rope rope = {attr(c, "start", 0), attr(c, "step", 1), attr(c, "scale", 1), c->runtime->first, frequencies,
                 attr(c, "pairs", 0) != 0};
    need(R == frequencies || R == 2 * frequencies, c);
    need(!rope.pairs || R == 2 * frequencies, c);
    kernel(F(c->out), F(c->weight[0]), rope, c->out.count / R, R);
}

void run_rope_cos(const Call *c) { call_table(c, rope_cos); }
void run_rope_sin(const Call *c) { call_table(c, rope_sin); }

void run_rope(const Call *c) {
    int64_t K = last_dim(&c->out), width = last_dim(&c->in[1]), T = c->in[1].count / width;
    int64_t turned = (int64_t)attr(c, "turned", (double)K), H = c->out.count / (T * K);
    need(same(c, 1) && c->in[2].count == T * width && c->out.count == T * H * K, c);
    need(turned > 0 && turned <= K && turned % 2 == 0, c);
    int64_t every = (int64_t)attr(c, "every", 1);
    need(every > 0 && (turned / 2 - 1) * every < width, c);
    rope(F(c->out), F(c->in[0]), F(c->in[1]), F(c->in[2]), T, H, K, turned, width, every, attr(c, "pairs", 0) != 0);
}

/* of an input twice as wide as the output, the columns from `begin` on count: a gate and what it opens, made as one */
static int half_of(const Call *c, const View *in) {
    int64_t begin = (int64_t)attr(c, "begin", 0), F = last_dim(&c->out);
    return in->count == 2 * c->out.count && begin >= 0 && begin <= F;
}

#define POINTWISE(kind) \
    void run_##kind(const Call *c) { \
        int64_t cols = last_dim(&c->out), begin = (int64_t)attr(c, "begin", 0); \
        need(same(c, 1) || half_of(c, &c->in[0]), c); \
        if (same(c, 1)) { \
            kind(F(c->out), F(c->in[0]), c->out.count); \
            return; \
        } \
        for (int64_t r = 0; r < c->out.count / cols; r++) \
            kind(F(c->out) + r * cols, F(c->in[0]) + r * 2 * cols + begin, cols); \
    }
POINTWISE(silu)
POINTWISE(sigmoid)
POINTWISE(gelu_tanh)

void run_product(const Call *c) {
    int64_t cols = last_dim(&c->out), begin = (int64_t)attr(c, "begin", 0);
    need(same(c, 2) || (c->in[0].count == c->out.count && half_of(c, &c->in[1])), c);
    if (same(c, 2)) {
        product(F(c->out), F(c->in[0]), F(c->in[1]), c->out.count);
        return;
    }
    for (int64_t r = 0; r < c->out.count / cols; r++)
        product(F(c->out) + r * cols, F(c->in[0]) + r * cols, F(c->in[1]) + r * 2 * cols + begin, cols);
}

void run_clipped_gate(const Call *c) {
    need(c->in[0].count == 2 * c->out.count, c);
    clipped_gate(F(c->out), F(c->in[0]), (float)attr(c, "limit", 7), (float)attr(c, "slope", 1.702), c->out.count);
}

void run_soft_cap(const Call *c) {
    need(same(c, 1), c);
    soft_cap(F(c->out), F(c->in[0]), (float)attr(c, "cap", 30), c->out.count);
}

void run_softmax_sinks(const Call *c) {
    int64_t H = c->weight[0].count, Tk = last_dim(&c->out), Tq = c->out.count / (H * Tk);
    need(same(c, 1) && c->out.count == H * Tq * Tk, c);
    softmax_sinks(F(c->out), F(c->in[0]), F(c->weight[0]), H, Tq, Tk);
}

void run_columns(const Call *c) {
    int64_t cols = (int64_t)attr(c, "cols", (double)last_dim(&c->out)), rows = c->out.count / cols;
    int64_t begin = (int64_t)attr(c, "begin", 0), width = rows ? c->in[0].count / rows : 0;
    need(cols > 0 && c->out.count == rows * cols && c->in[0].count == rows * width, c);
    need(begin >= 0 && begin + cols <= width, c);
    columns(F(c->out), F(c->in[0]), rows, cols, begin, width);
}

void run_scale_rows(const Call *c) {
    int64_t rows = c->in[1].count, cols = c->out.count / rows;
    need(same(c, 1) && c->out.count == rows * cols, c);
    scale_rows(F(c->out), F(c->in[0]), F(c->in[1]), rows, cols);
}

static void need_ids(const Call *c, const View *ids, int64_t below) {
    for (int64_t i = 0; i < ids->count; i++) need(I(*ids)[i] >= 0 && I(*ids)[i] < below, c);
}

void run_topk(const Call *c) {
    int64_t S = last_dim(&c->out), T = c->out.count / S, E = c->in[0].count / T;
    need(c->in[0].count == T * E && S <= E, c);
    topk(I(c->out), F(c->in[0]), T, E, S);
}

void run_pick(const Call *c) {
    int64_t S = last_dim(&c->out), T = c->out.count / S, E = c->in[0].count / T;
    need(c->in[0].count == T * E && c->in[1].count == T * S, c);
    need_ids(c, &c->in[1], E);
    pick(F(c->out), F(c->in[0]), I(c->in[1]), T, E, S);
}

void run_renormalise(const Call *c) {
    int64_t S = last_dim(&c->out);
    need(same(c, 1), c);
    renormalise(F(c->out), F(c->in[0]), c->out.count / S, S);
}

void run_expert_order(const Call *c) {
    need(same(c, 1), c);
    expert_order(I(c->out), I(c->in[0]), c->out.count);
}

void run_expert_linear(const Call *c) {
    int64_t count = c->in[1].count, E = c->weight[0].dims[0], inner = c->weight[0].dims[2];
    int64_t turned = attr(c, "turned", 0) != 0, cols = c->weight[0].dims[1];
    int64_t spread = attr(c, "spread", 0) != 0, S = last_dim(&c->in[1]);
    if (turned) cols = inner, inner = c->weight[0].dims[1];
    need(c->weight[0].rank == 3 && !c->weight[0].type && c->in[2].count == count && c->out.count == count * cols, c);
    need(c->in[0].count == (spread ? count / S : count) * inner, c);
    need(!c->weight[1].at || c->weight[1].count == E * cols, c);
    need_ids(c, &c->in[1], E);
    need_ids(c, &c->in[2], count);
    expert_linear(F(c->out), F(c->in[0]), I(c->in[1]), I(c->in[2]), F(c->weight[0]), bias(c), count, cols, inner, S,
                  spread, turned);
}

void run_expert_sum(const Call *c) {
    int64_t count = c->in[1].count, S = last_dim(&c->in[2]), T = count / S, D = last_dim(&c->out);
    need(c->in[2].count == count && c->out.count == T * D && c->in[0].count == count * D, c);
    need_ids(c, &c->in[1], count);
    expert_sum(F(c->out), F(c->in[0]), I(c->in[1]), F(c->in[2]), T, S, D);
}
