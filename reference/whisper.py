"""Whisper: prepare its input, run transformers' model step by step under the recorder, replay its ops.

Greedy decoding with the key-value cache, as the candidate does it: `encode`, `prefill` (the prompt, picks the first
token), `decode.0` (is fed that token) and so on. The candidate's choices drive every step, so both engines have the
same history; what the reference itself would have chosen is recorded beside it. Leaves out beam search, timestamps,
language detection and recordings longer than 30 s.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.want import EnoughError, patterns_of
from firstbad.want import chosen as chosen_by

from . import audio, weights
from .executor import Executor
from .piecewise import Piecewise
from .recorder import Recorder, Sink


def prepare(spec: ModelSpec) -> Prepared:
    """The model, and the features of the recording (none without one: enough to replay)."""
    loaded = weights.load(spec)
    model, notes = loaded.model, []
    if spec.audio_context is not None:
        _shorten(model, spec.audio_context)
        notes.append(
            f"only the first {spec.audio_context} encoder positions ({spec.audio_context / 50:.1f} s) are used"
        )
    inputs = {}
    if spec.audio is not None:
        samples, said = audio.load(spec.audio)
        inputs["input_features"] = _features(samples, model)
        notes = [*said, *notes]
    named = [*model.named_parameters(), *model.named_buffers()]
    return Prepared(
        family="whisper",
        model=loaded.name,
        source=loaded.source,
        config=_plain(model.config.to_dict()),
        inputs=inputs,
        prompt=loaded.prompt,
        eos=loaded.eos,
        suppress=loaded.suppress,
        begin_suppress=loaded.begin_suppress,
        weights={name: t.detach().numpy() for name, t in named},
        text=loaded.text,
        notes=tuple(notes),
        spec=spec,
        model_object=model,
        vocabulary=loaded.vocabulary,
        minima=loaded.minima,
    )


def another(prepared: Prepared, *, audio_file: Path | None = None, seed: int = 0) -> Prepared:
    """The same model with another input: a recording, or a sound made from a seed."""
    model = prepared.model_object
    notes: list[str] = []
    if audio_file is not None:
        samples, notes = audio.load(audio_file)
    else:
        samples = audio.made(seed, model.config.max_source_positions / 50)
    spec = replace(prepared.spec, audio=audio_file)
    inputs = {"input_features": _features(samples, model)}
    return replace(prepared, inputs=inputs, notes=tuple(notes), spec=spec)


def capture(
    prepared: Prepared,
    writer: Sink,
    *,
    tokens: Sequence[int] | None,
    options: CaptureOptions,
    recording: Any = Recorder,
) -> RunOutput:
    """Run and record; `tokens` are the candidate's choices and drive every step, None: the reference's own do.

    `recording` makes the recorder: another one where ops cannot be seen (probes/boundaries.py).
    """
    started = time.perf_counter()
    with _threads(options.threads), torch.inference_mode():
        recorder = recording(prepared.model_object, writer, chosen_by(patterns_of(options)), chosen_by(options.stop))
        try:
            chosen = _generate(prepared, recorder, tokens, _limit(prepared, options, tokens))
        except EnoughError:
            seconds = {"run": time.perf_counter() - started - recorder.write_seconds, "write": recorder.write_seconds}
            return RunOutput(tokens=tuple(tokens or ()), text="", seconds=seconds)
        recorded = time.perf_counter() - started
        text = prepared.text(chosen)
        if tokens is not None and chosen[: len(tokens)] != tuple(tokens)[: len(chosen)]:
            # its choices along the candidate's history are no transcript: make its own apart
            text = prepared.text(_generate(prepared, None, None, _limit(prepared, options, None)))
    seconds = {"run": recorded - recorder.write_seconds, "write": recorder.write_seconds}
    return RunOutput(tokens=chosen, text=text, seconds=seconds)


def footprint(prepared: Prepared) -> tuple[int, int]:
    """Bytes of one trace, by the ops of the model: (encode and prefill, each further token)."""
    c = {k: int(v) for k, v in prepared.config.items() if isinstance(v, int)}
    T, D, V = c["max_source_positions"], c["d_model"], c["vocab_size"]
    H, Hd = c["encoder_attention_heads"], c["decoder_attention_heads"]
    front = 2 * T * D * 2 + 4 * T * D  # two convolutions with their activations, positions
    layer = 11 * T * D + 2 * T * c["encoder_ffn_dim"] + 2 * H * T * T
    cross = 2 * T * D
    token = c["decoder_layers"] * (20 * D + 2 * c["decoder_ffn_dim"] + 2 * Hd * T) + 2 * V
    encode = front + c["encoder_layers"] * layer + T * D
    prefill = c["decoder_layers"] * cross + len(prepared.prompt) * token
    return 4 * (encode + prefill), 4 * token


def executor(prepared: Prepared) -> Executor:
    return (Piecewise if prepared.spec.offload else Executor)(prepared.weights, prepared.minima)


def _generate(
    prepared: Prepared, recorder: Recorder | None, driven: Sequence[int] | None, limit: int
) -> tuple[int, ...]:
    """The choices of `limit` steps at most, each fed `driven`'s token of the step before or its own."""
    model = prepared.model_object
    features = prepared.inputs.get("input_features")
    if features is None:
        raise UsageError("no recording to run on: give one with --audio")
    V = model.config.vocab_size
    weight = model.proj_out.weight  # says where the model is and how it counts: the reference's is float32 on a CPU
    masks = [
        _mask(ids, V).to(weight.device) for ids in (prepared.suppress, prepared.suppress + prepared.begin_suppress)
    ]
    chosen: list[int] = []
    feed = [torch.tensor([list(prepared.prompt)])]
    cache: dict[str, Any] = {}
    with recorder or nullcontext():
        sound = _enter(recorder, "encode", "input_features", torch.from_numpy(features))
        encoded = model.model.encoder(sound.to(weight.device, weight.dtype))
        while True:
            step = f"decode.{len(chosen) - 1}" if chosen else "prefill"
            ids = _enter(recorder, step, "decoder_input_ids", feed[-1])
            ids = ids.to(weight.device)
            out = model(encoder_outputs=(encoded[0],), decoder_input_ids=ids, use_cache=True, **cache)
            cache = {_cache_argument(model): out["cache" if "cache" in out else "past_key_values"]}
            with recorder.inside("generate") if recorder else nullcontext():
                masked = out.logits[:, -1].masked_fill(masks[0 if chosen else 1], -torch.inf)
                chosen.append(int(masked.argmax(-1)))
            if len(chosen) >= limit or (driven is None and chosen[-1] == prepared.eos):
                return tuple(chosen)
            feed.append(torch.tensor([[chosen[-1] if driven is None else driven[len(chosen) - 1]]]))


def _enter(recorder: Recorder | None, step: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    if recorder is None:
        return tensor
    if recorder.step != step:
        recorder.begin(step)
    return recorder.input(name, tensor)


def _mask(ids: Sequence[int], V: int) -> torch.Tensor:
    mask = torch.zeros(V, dtype=torch.bool)
    mask[list(ids)] = True
    return mask


def _cache_argument(model: nn.Module) -> str:
    """transformers renamed `past_key_values` to `cache` in 5.24."""
    parameters = inspect.signature(inspect.unwrap(model.forward)).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def _limit(prepared: Prepared, options: CaptureOptions, tokens: Sequence[int] | None) -> int:
    room = int(prepared.model_object.config.max_target_positions) - len(prepared.prompt) + 1
    if tokens is not None:
        bad = [t for t in tokens if not 0 <= t < prepared.model_object.config.vocab_size]
        if bad:
            raise UsageError(f"the candidate chose the token {bad[0]}, which the vocabulary does not have")
        return min(room, max(1, len(tokens) + options.unfinished))
    return room if options.max_tokens is None else max(1, min(room, options.max_tokens))


def _features(samples: np.ndarray, model: Any) -> np.ndarray:
    """Log-mel features as Whisper was trained on, float32 [1, M, 2T]."""
    from transformers import WhisperFeatureExtractor

    make: Any = WhisperFeatureExtractor  # untyped
    extractor = make(feature_size=model.config.num_mel_bins)
    features = extractor(samples, sampling_rate=audio.RATE, return_tensors="np").input_features
    return np.ascontiguousarray(features[:, :, : 2 * model.config.max_source_positions], np.float32)


def _shorten(model: Any, T: int) -> None:
    """The encoder sees only its first T positions; its position table is a view of the whole one."""
    most = model.config.max_source_positions
    if not 1 <= T <= most:
        raise UsageError(f"an audio context of {T} positions is not possible: 1 to {most}")
    encoder = model.model.encoder
    table = encoder.embed_positions.weight[:T]
    encoder.embed_positions = nn.Embedding(T, table.shape[1], _weight=table).requires_grad_(False)
    model.config.max_source_positions = encoder.config.max_source_positions = encoder.max_source_positions = T


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config is plain data."""
    kinds = (bool, int, float, str, list, type(None))
    return {k: v for k, v in config.items() if isinstance(v, kinds) and not k.startswith("_")}
