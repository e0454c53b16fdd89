/* The kinds of language models, whose calls are in calls_language.c; the table of all kinds is in calls.c. */
#ifndef CALLS_H
#define CALLS_H

#include "runtime.h"

#define LANGUAGE_KINDS(K) \
    K(rms_norm) K(rope_cos) K(rope_sin) K(rope) K(silu) K(sigmoid) K(gelu_tanh) K(product) K(soft_cap) \
    K(softmax_sinks) K(columns) K(scale_rows) K(topk) K(pick) K(renormalise) K(expert_order) K(expert_linear) \
    K(expert_sum) K(linear_turned) K(clipped_gate) K(store_rows) K(load_rows) \
    K(fill) K(blocks_apart) K(causal_conv) K(conv_state) K(decay) K(delta_rule) K(delta_state)

#define DECLARE_CALL(kind) void run_##kind(const Call *call);
LANGUAGE_KINDS(DECLARE_CALL)

#endif
