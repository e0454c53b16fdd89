"""GGUF files made by the `gguf` package's own writer from transformers' models, rows of q and k turned to pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

WORDS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def paired(array: np.ndarray, heads: int) -> np.ndarray:
    """Row j + K/2 k of a head becomes row 2 j + k, written out one by one."""
    made = np.empty_like(array)
    K = array.shape[0] // heads
    for h in range(heads):
        for j in range(K // 2):
            for k in range(2):
                made[h * K + 2 * j + k] = array[h * K + j + k * (K // 2)]
    return made


def word_of(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    layer = stem.removeprefix("model.layers.").partition(".") if stem.startswith("model.layers.") else None
    return f"blk.{layer[0]}.{WORDS[layer[2]]}.{kind}" if layer else f"{WORDS[stem]}.{kind}"


def write(path: Path, model: Any, kind: str, *, quantised: str = "", vocabulary: list[str] | None = None) -> None:
    """`quantised`: "Q8_0", "Q4_1", ...: every matrix; ""; all float32."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    c = model.config
    writer = GGUFWriter(path, kind)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    words = vocabulary or [f"<{i}>" for i in range(c.vocab_size)]
    writer.add_token_list(words)
    writer.add_token_types([1] * len(words))
    writer.add_token_merges(["< >"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        array = tensor.numpy()
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(name.split(".")[-2], 0)
        if heads and kind == "llama":
            array = paired(array, heads)
        if quantised and array.ndim == 2:
            held = GGMLQuantizationType[quantised]
            writer.add_tensor(word_of(name), quants.quantize(array, held), raw_dtype=held)
        else:
            writer.add_tensor(word_of(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
