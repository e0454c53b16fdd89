"""A language model from a GGUF file: its numbers as float32, its config from the metadata, its tokenizer.

Quantised tensors become the numbers that their blocks stand for, so both engines hold the same weights. Files of
Llama's kind keep the rows of query and key projections in the order of rotary positions of adjacent pairs; here they
are in transformers' order again, by halves. Leaves out mixtures of experts and scaled rotary positions, which are
refused in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from firstbad.errors import UsageError
from firstbad.gguf_blocks import smallest
from firstbad.gguf_file import Tensor, name_of, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAIRED = ("llama",)
"""Architectures whose files hold rows for rotary positions of adjacent pairs."""

KINDS = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""The file's architecture → that of transformers."""

_TEXT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "gpt-2": "",
    "smollm": "",
    "llama-bpe": _TEXT.format(digits=r"\p{N}{1,3}"),
    "qwen2": _TEXT.format(digits=r"\p{N}"),
}
"""The file's word for how text is cut before pairs are merged → the expression; "": GPT-2's."""


def load(path: Path) -> tuple[Any, Any, dict[str, NDArray[np.float32]]]:
    """(the model, float32 and ready to run; its tokenizer, None where it is not known; minima of blocks by weight)."""
    import transformers

    file = read(path)
    said, held = file.metadata, file.tensors
    settings = config(said, held, path)
    kind = settings.pop("model_type")
    auto: Any = transformers.AutoConfig  # untyped
    made = auto.for_model(kind, **settings)
    classes: Any = transformers.AutoModelForCausalLM
    model_class = classes._model_mapping[type(made)]
    state = {name: torch.from_numpy(array) for name, array in weights(said, held, path).items()}
    noisy: Any = transformers.utils.logging
    noisy.disable_progress_bar()
    noisy.set_verbosity_error()
    model, told = model_class.from_pretrained(
        None,
        config=made,
        state_dict=state,
        attn_implementation="eager",
        dtype=torch.float32,
        output_loading_info=True,
    )
    wrong = [*told["missing_keys"], *told["unexpected_keys"], *told["mismatched_keys"]]
    if wrong:
        raise UsageError(
            f"the tensors of `{path}` do not fit its metadata: `{wrong[0]}` is missing, extra or another size"
        )
    return model.eval().requires_grad_(False), tokenizer(said), minima(said, held)


def config(said: Mapping[str, Any], held: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """transformers' settings; what the file does not say is left to transformers."""
    kind = str(said.get("general.architecture"))
    if kind not in KINDS or f"{kind}.expert_count" in said:
        what = f"{kind} with experts" if kind in KINDS else kind
        raise UsageError(f"`{path}` holds a model of type `{what}`: known are {', '.join(KINDS)}")
    scaled = said.get(f"{kind}.rope.scaling.type", "none")
    if scaled != "none" or "rope_freqs.weight" in held:
        raise UsageError(f"`{path}` scales its rotary positions ({scaled}): not known here, give the original folder")

    def own(key: str, default: Any = None) -> Any:
        value = said.get(f"{kind}.{key}", default)
        if value is None:
            raise UsageError(f"the metadata of `{path}` have no `{kind}.{key}`")
        return value

    D, H = int(own("embedding_length")), int(own("attention.head_count"))
    K = int(own("rope.dimension_count", own("attention.key_length", D // H)))
    if int(own("attention.key_length", D // H)) != K:
        raise UsageError(f"`{path}` turns only {K} numbers of a head by its position: not known here")
    settings: dict[str, Any] = {
        "model_type": KINDS[kind],
        "vocab_size": held["token_embd.weight"].shape[0] if "token_embd.weight" in held else own("vocab_size"),
        "hidden_size": D,
        "intermediate_size": int(own("feed_forward_length")),
        "num_hidden_layers": int(own("block_count")),
        "num_attention_heads": H,
        "num_key_value_heads": int(own("attention.head_count_kv", H)),
        "head_dim": K,
        "max_position_embeddings": int(own("context_length")),
        "rms_norm_eps": float(own("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(own("rope.freq_base", 10000.0))},
        "tie_word_embeddings": "output.weight" not in held,
        "attention_bias": "blk.0.attn_q.bias" in held,
    }
    for word in ("bos", "eos", "pad"):
        full = {"pad": "padding"}.get(word, word)
        settings[f"{word}_token_id"] = said.get(f"tokenizer.ggml.{full}_token_id")
    return settings


def weights(said: Mapping[str, Any], held: Mapping[str, Tensor], path: Path) -> dict[str, NDArray[np.float32]]:
    """Parameter of transformers → float32 array."""
    made = {}
    for tensor in held.values():
        name = name_of(tensor.name)
        if not name:
            raise UsageError(f"`{path}` has a tensor `{tensor.name}` that is not known here")
        made[name] = np.array(_turned(said, name, tensor.array()), np.float32)
    return made


def minima(said: Mapping[str, Any], held: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """Parameter → what each of its blocks adds to all of its numbers, [rows, blocks]; of formats that have that."""
    found = {name_of(t.name): smallest(t.type, t.raw) for t in held.values()}
    rows = {name_of(t.name): t.shape[0] for t in held.values()}
    return {
        name: np.ascontiguousarray(_turned(said, name, array.reshape(rows[name], -1)))
        for name, array in found.items()
        if array is not None
    }


def _turned(said: Mapping[str, Any], name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Rows of query and key projections by halves, where the file has them by pairs."""
    kind = str(said.get("general.architecture"))
    H = int(said.get(f"{kind}.attention.head_count", 1))
    kv = int(said.get(f"{kind}.attention.head_count_kv", H))
    heads = {"q_proj": H, "k_proj": kv}.get(name.split(".")[-2], 0) if kind in PAIRED else 0
    return by_halves(array, heads) if heads else array


def stored(path: Path) -> dict[str, tuple[str, NDArray[Any]]]:
    """Parameter of transformers → its type in the file and its blocks, a row each; rows in transformers' order."""
    file, made = read(path), {}
    for tensor in file.tensors.values():
        if len(tensor.shape) == 2 and tensor.blocks:
            name, raw = name_of(tensor.name), tensor.raw.reshape(-1).view(np.uint8).reshape(tensor.shape[0], -1)
            made[name] = (tensor.type, _turned(file.metadata, name, raw))
    return made


def by_halves(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of adjacent pairs → rows by halves: within a head row j + K/2 k comes from row 2 j + k."""
    return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def tokenizer(said: Mapping[str, Any]) -> Any:
    """The tokenizer that the metadata describe, of the `tokenizers` package; None: of another kind than GPT-2's."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    words, merges = said.get("tokenizer.ggml.tokens"), said.get("tokenizer.ggml.merges")
    cut = str(said.get("tokenizer.ggml.pre", "gpt-2"))
    if said.get("tokenizer.ggml.model") != "gpt2" or not words or merges is None or cut not in SPLITS:
        return None
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs))
    except Exception:  # the library has no class of its own for merges of words that are not there
        return None
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if cut == "smollm" else []
    if SPLITS[cut]:
        steps.append(pre_tokenizers.Split(Regex(SPLITS[cut]), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not SPLITS[cut]))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    kinds = said.get("tokenizer.ggml.token_type", ())
    made.add_special_tokens([AddedToken(w, special=True) for w, k in zip(words, kinds, strict=False) if k == 3])
    return made
