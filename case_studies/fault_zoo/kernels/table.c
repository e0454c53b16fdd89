/* The kinds of the zoo: `kind:variant`, one line each (see extra_kernels in probes/engine/runtime.h). */
#include "zoo.h"

#define KINDS(K) \
    K(linear, tile_tail) K(linear, column_tail) K(linear, k_tail) K(linear, dead_column) K(linear, last_row) \
    K(linear, nan_row) K(linear, rows_shifted) K(linear, transposed) K(linear, bias_twice) K(linear, bias_minus) \
    K(linear, gain) K(linear, heads_swapped) K(linear, interleaved) K(linear, bf16_sum) K(linear, fp16_sum) \
    K(linear, fp16_out) K(linear, bf16_out) K(linear, bf16_cut) K(linear, int8_x) K(linear, int8_w) \
    K(linear, saturated) K(linear, spill) K(linear, nothing) \
    K(linear, pairwise) K(linear, backwards) K(linear, compensated) K(linear, in_double) K(linear, strided) \
    K(linear, split) K(linear, bias_inside) \
    K(conv1d, shifted) K(conv1d, flipped) K(conv1d, no_bias) K(conv1d, stride) K(conv1d, edge) K(conv1d, by_tap) \
    K(gelu, tanh) K(gelu, quick) K(gelu, silu) K(gelu, relu) K(gelu, skipped) K(gelu, twice) K(gelu, fp16) \
    K(gelu, bf16_cut) K(gelu, by_erfc) K(gelu, in_double) K(mul, twice) K(mul, by_division) \
    K(add, first_only) K(add, second_only) K(add, first_twice) K(add, second_twice) K(add, subtracted) \
    K(add, scaled) K(add, fp16) K(add, bf16_cut) K(add, saturated) K(add, tile_tail) \
    K(add_permuted, reshaped) K(add_permuted, no_places) \
    K(softmax, by_column) K(softmax, base_2) K(softmax, warm) K(softmax, unnormalised) K(softmax, plus_one) \
    K(softmax, twice) K(softmax, masked_nan) K(softmax, online) K(softmax, backwards) K(softmax, in_double) \
    K(positions, one_late) K(positions, restarted) K(positions, doubled) K(positions, none) K(positions, halves) \
    K(embedding, next) K(embedding, scaled) K(masked_fill, nothing) K(masked_fill, first_row) \
    K(softmax, padded) K(linear, wrapped) K(gelu, table) K(gelu, clamped) K(add, fixed) K(linear, unrolled) \
    K(linear, rows_exchanged) K(linear, abs) K(conv1d, dilated) \
    K(linear, tiles_crossed) K(linear, rows_doubled) K(linear, dithered) K(softmax, pruned) K(softmax, skips) \
    K(gelu, straight) K(add, one_late) K(add, flushed) K(conv1d, grouped) K(positions, reversed) \
    K(linear, dropout) K(softmax, best) K(add, leaks) K(linear, rotated) K(gelu, sigmoid) K(linear, flipped) \
    K(conv1d, smoothed) K(add, gated) \
    K(softmax, raw_tail) K(softmax, unscaled) K(softmax, pieces) K(linear, bias_by_row) K(linear, offset) \
    K(linear, lane) K(linear, zero_point) K(linear, overlap) K(linear, rows_wrapped) K(linear, accumulated) \
    K(gelu, hard) K(gelu, tail) K(add, first_row) K(conv1d, channels_last) \
    K(argmax, half) K(argmax, second) K(argmax, last)

/* kinds whose functions have a shorter name than the kind */
#define NAMED(N) \
    N("attention_scores:", scores, modulo) N("attention_mix:", mix, modulo) N("rms_norm:", rms, centred) \
    N("rms_norm:", rms, unbiased) N("rms_norm:", rms, summed) N("softmax_sinks:", sinks, dropped) \
    N("expert_sum:", experts, one_less) N("topk:", topk, next) \
    N("layer_norm:", norm, rms) N("layer_norm:", norm, unbiased) N("layer_norm:", norm, no_gain) \
    N("layer_norm:", norm, no_shift) N("layer_norm:", norm, one_more) N("layer_norm:", norm, eps_outside) \
    N("layer_norm:", norm, fp16) N("layer_norm:", norm, skipped) N("layer_norm:", norm, last_row) \
    N("layer_norm:", norm, welford) N("layer_norm:", norm, in_double) N("layer_norm:", norm, folded) \
    N("causal_mask:", mask, dropped) N("causal_mask:", mask, inverted) N("causal_mask:", mask, strict) \
    N("causal_mask:", mask, ahead) N("causal_mask:", mask, window) N("causal_mask:", mask, by_choice) \
    N("attention_scores:", scores, grouped) N("attention_scores:", scores, turned) \
    N("attention_scores:", scores, bf16_sum) N("attention_scores:", scores, one_less) \
    N("attention_scores:", scores, k_tail) N("attention_scores:", scores, column_tail) \
    N("attention_scores:", scores, backwards) N("attention_scores:", scores, pairwise) \
    N("attention_scores:", scores, in_double) \
    N("attention_mix:", mix, one_less) N("attention_mix:", mix, turned) N("attention_mix:", mix, by_head) \
    N("attention_mix:", mix, gain) N("attention_mix:", mix, average) N("attention_mix:", mix, blocked) \
    N("attention_mix:", mix, plain) N("attention_mix:", mix, stale_head) \
    N("attention_scores:", scores, capped) N("attention_scores:", scores, blocks) \
    N("layer_norm:", norm, previous_mean) N("layer_norm:", norm, one_row) \
    N("layer_norm:", norm, halves) N("attention_scores:", scores, by_distance) \
    N("layer_norm:", norm, down) N("attention_scores:", scores, by_length) \
    N("layer_norm:", norm, padded) N("layer_norm:", norm, partial) N("attention_mix:", mix, pages) \
    N("attention_scores:", scores, fp8) N("causal_mask:", mask, soft)

#define DECLARED(kind, variant) void zoo_##kind##_##variant(const Call *c);
#define DECLARED_NAMED(kind, short_name, variant) void zoo_##short_name##_##variant(const Call *c);
#define ENTRY(kind, variant) {#kind ":" #variant, zoo_##kind##_##variant, __FILE__, __LINE__},
#define ENTRY_NAMED(kind, short_name, variant) {kind #variant, zoo_##short_name##_##variant, __FILE__, __LINE__},

KINDS(DECLARED)
NAMED(DECLARED_NAMED)

const KernelEntry extra_kernels[] = {KINDS(ENTRY) NAMED(ENTRY_NAMED){NULL, NULL, NULL, 0}};
