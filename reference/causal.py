"""Causal language models of transformers: prompts in, greedy tokens out, every op recorded.

    causal                    a small GPT-2 with random weights (--random-weights SEED)
    causal:llama              the same of another architecture that transformers knows
    causal:FOLDER             a checkpoint on disk; a folder whose config.json names no other room is taken so as well
    causal:FILE.gguf          llama.cpp's file (see gguf_model.py); FILE.gguf alone is enough

Steps: `prefill` (the prompts, padded on the left to one length) and `decode.0`, `decode.1`, ... with the key-value
cache. With B prompts the tokens of a run are step by step, B for each. Leaves out sampling, chat templates and models
that read more than tokens.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firstbad.errors import UsageError
from firstbad.gguf_file import is_gguf
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.want import EnoughError, patterns_of
from firstbad.want import chosen as chosen_by

from . import gguf_model
from .executor import Executor
from .recorder import Recorder, Sink
from .weights import _ready

STEPS = 8
"""New tokens where nobody says how many."""

SMALL = {
    "vocab_size": 500,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
"""Of a model with random weights; what an architecture has beside them is made to fit."""


@dataclass(frozen=True)
class _Loaded:
    model: Any
    name: str
    source: str
    ids: Callable[[str], list[int]]
    text: Callable[[Sequence[int]], str]


def prepare(spec: ModelSpec) -> Prepared:
    """The model, and the prompts as ids (none without them: enough to replay)."""
    loaded = _random(spec) if spec.random_weights is not None else _from_folder(spec)
    prompts = [*spec.tokens, *(tuple(loaded.ids(text)) for text in spec.text)]
    V = loaded.model.config.vocab_size
    for ids in prompts:
        bad = [i for i in ids if not 0 <= i < V]
        if bad or not ids:
            what = f"token {bad[0]} is not in the vocabulary of {V}" if bad else "a prompt is empty"
            raise UsageError(f"{what}: give ids with --tokens 1,2,3 or a text with --text")
    inputs, notes = _padded(prompts, loaded.model.config) if prompts else ({}, [])
    end = loaded.model.config.eos_token_id
    named = [*loaded.model.named_parameters(), *loaded.model.named_buffers()]
    return Prepared(
        family="causal",
        model=loaded.name,
        source=loaded.source,
        config=_plain(loaded.model.config.to_dict()),
        inputs=inputs,
        prompt=prompts[0] if prompts else (),
        eos=end if isinstance(end, int) and len(prompts) == 1 else -1,
        suppress=(),
        begin_suppress=(),
        weights={name: t.detach().numpy() for name, t in named},
        text=loaded.text,
        notes=tuple(notes),
        spec=spec,
        model_object=loaded.model,
    )


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """What of a config is data; keys of tables are text."""
    keep: Any = (bool, int, float, str, list, tuple)
    return {str(k): _plain(v) if isinstance(v, dict) else v for k, v in config.items() if isinstance(v, (*keep, dict))}


def capture(
    prepared: Prepared,
    writer: Sink,
    *,
    tokens: Sequence[int] | None,
    options: CaptureOptions,
    recording: Any = Recorder,
) -> RunOutput:
    """Run and record; `tokens` are the candidate's choices and drive every step, None: the reference's own do."""
    started = time.perf_counter()
    with torch.inference_mode():
        recorder = recording(prepared.model_object, writer, chosen_by(patterns_of(options)), chosen_by(options.stop))
        try:
            chosen = _generate(prepared, recorder, tokens, _limit(prepared, options, tokens))
        except EnoughError:
            chosen = tuple(tokens or ())
    seconds = {"run": time.perf_counter() - started - recorder.write_seconds, "write": recorder.write_seconds}
    return RunOutput(tokens=chosen, text=prepared.text(chosen), seconds=seconds)


def executor(prepared: Prepared) -> Executor:
    return Executor(prepared.weights)


def step_inputs(prepared: Prepared, chosen: Sequence[int]) -> dict[str, np.ndarray]:
    """What the next step is fed, given the tokens chosen so far (B a step): ids, and with padding where they stand."""
    ids, mask = prepared.inputs["input_ids"], prepared.inputs.get("attention_mask")
    B = ids.shape[0]
    n = len(chosen) // B
    fed = ids if n == 0 else np.asarray(chosen[-B:], np.int64).reshape(B, 1)
    if mask is None:
        return {"input_ids": fed}
    seen = np.concatenate([mask, np.ones((B, n), np.int64)], 1)
    positions = np.maximum(seen.cumsum(1) - 1, 0)[:, -fed.shape[1] :]
    return {"input_ids": fed, "attention_mask": seen, "position_ids": np.ascontiguousarray(positions)}


def _generate(prepared: Prepared, recorder: Any, driven: Sequence[int] | None, limit: int) -> tuple[int, ...]:
    model = prepared.model_object
    device = next(model.parameters()).device
    if "input_ids" not in prepared.inputs:
        raise UsageError("no prompt to run on: give one with --text or --tokens")
    B = prepared.inputs["input_ids"].shape[0]
    chosen: list[int] = []
    cache: dict[str, Any] = {}
    with recorder:
        while True:
            recorder.begin(f"decode.{len(chosen) // B - 1}" if chosen else "prefill")
            history = chosen if driven is None else list(driven[: len(chosen)])
            fed = step_inputs(prepared, history)
            given = {name: recorder.input(name, torch.from_numpy(a)).to(device) for name, a in fed.items()}
            out = model(**given, **cache, use_cache=True)
            cache = {_cache_argument(model): out["cache" if "cache" in out else "past_key_values"]}
            with recorder.inside("generate"):
                best = out.logits[:, -1].argmax(-1)
            chosen += [int(i) for i in best]
            if len(chosen) >= limit or (driven is None and B == 1 and chosen[-1] == prepared.eos):
                return tuple(chosen)


def _cache_argument(model: Any) -> str:
    """transformers renamed `past_key_values` to `cache` in 5.24."""
    return "cache" if "cache" in inspect.signature(inspect.unwrap(model.forward)).parameters else "past_key_values"


def _limit(prepared: Prepared, options: CaptureOptions, tokens: Sequence[int] | None) -> int:
    B, T = prepared.inputs["input_ids"].shape if "input_ids" in prepared.inputs else (1, 0)
    room: int = int(getattr(prepared.model_object.config, "max_position_embeddings", 1 << 30)) - T + 1
    steps: int = len(tokens) // B if tokens is not None else options.max_tokens or STEPS
    return int(B) * max(1, min(room, steps))


def _padded(prompts: Sequence[Sequence[int]], config: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    T = max(len(ids) for ids in prompts)
    pad = config.pad_token_id if isinstance(config.pad_token_id, int) else 0
    ids = np.full((len(prompts), T), pad, np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, T - len(prompt) :] = prompt
        mask[row, T - len(prompt) :] = 1
    if mask.all():
        return {"input_ids": ids}, []
    return {"input_ids": ids, "attention_mask": mask}, [
        f"{len(prompts)} prompts padded on the left to {T} tokens; what is computed at padding is not compared"
    ]


def _random(spec: ModelSpec) -> _Loaded:
    """A small model of an architecture, its weights from a seed (NumPy's, so that a seed means the same everywhere)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = spec.model.partition(":")[2] or "gpt2"
    auto: Any = AutoConfig  # untyped
    try:
        ends = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
        config = auto.for_model(kind, **SMALL, **ends)
        for name, size in (("intermediate_size", 96), ("num_key_value_heads", 2), ("head_dim", 12)):
            if hasattr(config, name):
                setattr(config, name, size)
        factory: Any = AutoModelForCausalLM  # untyped
        model = factory.from_config(config, attn_implementation="eager", dtype=torch.float32)
    except (KeyError, ValueError, TypeError) as error:
        line = str(error).strip().partition("\n")[0][:120]
        raise UsageError(f"no random `{kind}`: {line}: an architecture of transformers is meant, as gpt2") from None
    assert spec.random_weights is not None
    generator = np.random.default_rng(spec.random_weights)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            array = generator.standard_normal(tuple(parameter.shape), dtype=np.float32)
            array = array * np.float32(_size(name, parameter)) + np.float32(_is_gain(name))
            parameter.copy_(torch.from_numpy(array))
    source = f"random weights, seed {spec.random_weights}"
    return _Loaded(_ready(model), f"a random {kind}", source, lambda text: list(text.encode()), _ids_as_text)


def _is_gain(name: str) -> bool:
    last = name.split(".")[-2] if "." in name else name
    return name.endswith("weight") and ("norm" in last or last.startswith("ln"))


def _size(name: str, parameter: torch.Tensor) -> float:
    """Activations stay near 1, and biases count."""
    if _is_gain(name) or name.endswith("bias"):
        return 0.2
    return 0.5 if parameter.dim() < 2 or "wte" in name or "embed" in name else 1.2 / math.sqrt(min(parameter.shape))


def _from_folder(spec: ModelSpec) -> _Loaded:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    place = spec.model.removeprefix("causal:")
    if is_gguf(Path(place)):
        return _from_gguf(Path(place))
    if not (Path(place) / "config.json").is_file():
        raise UsageError(f"no model in `{place}`: give a folder with config.json and weights, or --random-weights SEED")
    factory, tokenizers = AutoModelForCausalLM, AutoTokenizer
    quiet: Any = logging  # untyped
    quiet.disable_progress_bar()
    try:
        model = factory.from_pretrained(place, dtype=torch.float32, attn_implementation="eager", local_files_only=True)
    except Exception as error:  # whatever safetensors, torch or JSON say of a spoilt file
        raise UsageError(f"cannot load `{place}`: {str(error).strip().partition(chr(10))[0]}") from None
    without = _Loaded(_ready(model), place, f"folder {place}", partial(_no_tokenizer, place), _ids_as_text)
    if not any(Path(place).glob("*token*")):
        return without  # transformers would make an empty one
    try:
        known: Any = tokenizers.from_pretrained(place, local_files_only=True)
    except Exception:  # a spoilt one, or code that is not here: ids can be given
        return without
    return _Loaded(
        _ready(model),
        place,
        f"folder {place}",
        lambda text: list(known(text).input_ids),
        lambda ids: str(known.decode(list(ids), skip_special_tokens=True)),
    )


def _from_gguf(path: Path) -> _Loaded:
    model, tokenizer = gguf_model.load(path)
    ids = partial(_no_tokenizer, str(path))
    known = _Loaded(_ready(model), path.stem, f"file {path}", ids, _ids_as_text)
    if tokenizer is None:
        return known
    return replace(
        known,
        ids=lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
        text=lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True)),
    )


def _no_tokenizer(place: str, _text: str) -> list[int]:
    raise UsageError(f"`{place}` has no tokenizer that is known: give the prompt as ids with --tokens 1,2,3")


def _ids_as_text(ids: Sequence[int]) -> str:
    return " ".join(str(i) for i in ids)
