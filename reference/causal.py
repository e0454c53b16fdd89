"""Causal language models of transformers: prompts in, greedy tokens out, every op recorded.

    llama, gpt2, mamba, ...   a tiny one of a family with random weights (--random-weights SEED); `causal`: gpt2
    FOLDER, PACKAGE, HUB/NAME a checkpoint, as checkpoint.py finds it; `causal:...` where its config.json says otherwise
    FILE.gguf                 llama.cpp's file (see gguf_model.py)

Steps: `prefill` (the prompts, padded on the left to one length) and `decode.0`, `decode.1`, ... with the key-value
cache. With B prompts the tokens of a run are step by step, B for each. Leaves out sampling, chat templates and models
that read more than tokens.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firstbad.errors import UsageError
from firstbad.gguf_file import is_gguf
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.want import EnoughError, patterns_of
from firstbad.want import chosen as chosen_by

from . import gguf_model, tiny
from .checkpoint import Loaded, load
from .executor import Executor
from .mapped import no_offload
from .piecewise import Piecewise
from .recorder import Recorder, Sink
from .weights import _ids_as_text, _ready

STEPS = 8
"""New tokens where nobody says how many."""


def prepare(spec: ModelSpec) -> Prepared:
    """The model, and the prompts as ids (none without them: enough to replay)."""
    place = spec.model.removeprefix("causal:")
    kind = "gpt2" if place == "causal" else place
    loaded = tiny.random_model(spec, kind, _causal()) if spec.random_weights is not None else _checkpoint(place, spec)
    prompts = _prompts(spec, loaded)
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
        minima=loaded.minima,
        text=loaded.text,
        notes=tuple(notes),
        spec=spec,
        model_object=loaded.model,
        stored=loaded.stored,
    )


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config is data; keys of tables are text."""
    keep: Any = (bool, int, float, str, list, tuple)
    return {str(k): _plain(v) if isinstance(v, dict) else v for k, v in config.items() if isinstance(v, (*keep, dict))}


def _prompts(spec: ModelSpec, loaded: Loaded) -> list[tuple[int, ...]]:
    """As ids, checked; a random model's own where nobody gives one."""
    config = loaded.model.config
    V, most = config.vocab_size, int(getattr(config, "max_position_embeddings", 0) or 1 << 30)
    prompts = [*spec.tokens, *(tuple(loaded.ids(text)) for text in spec.text)]
    if spec.random_weights is not None and not prompts:
        prompts = [tuple(np.random.default_rng(spec.random_weights).integers(1, V, tiny.PROMPT).tolist())]
    for ids in prompts:
        bad = [i for i in ids if not 0 <= i < V]
        if bad or not ids:
            what = f"token {bad[0]} is not in the vocabulary of {V}" if bad else "a prompt is empty"
            raise UsageError(f"{what}: give ids with --tokens 1,2,3 or a text with --text")
        if len(ids) > most:
            raise UsageError(f"a prompt of {len(ids)} tokens is too long for this model: it has {most} positions")
    return prompts


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
    return (Piecewise if prepared.spec.offload else Executor)(prepared.weights, prepared.minima)


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


def _causal(_config: object = None) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def _checkpoint(place: str, spec: ModelSpec) -> Loaded:
    path = Path(place)
    if not is_gguf(path):
        return load(place, _causal, offload=spec.offload)
    no_offload(spec)
    model, tokenizer, minima = gguf_model.load(path)

    def ids(text: str) -> list[int]:
        if tokenizer is None:
            raise UsageError(f"`{place}` has no tokenizer that is known: give the prompt as ids with --tokens 1,2,3")
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def words(chosen: Sequence[int]) -> str:
        return (
            _ids_as_text(chosen) if tokenizer is None else str(tokenizer.decode(list(chosen), skip_special_tokens=True))
        )

    return Loaded(_ready(model), path.stem, f"file {path}", ids, words, minima=minima, stored=gguf_model.stored(path))
