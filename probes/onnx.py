"""ONNX models under ONNX Runtime as a candidate.

    onnx:MODEL.onnx                  one model: a Whisper encoder, a causal language model, or any that runs once
    onnx:FOLDER                      every .onnx in it: encoder and decoder; what a model is its inputs say
    onnx:MODEL.onnx,level=basic      graph optimisation: off, basic, extended, all (default)
    onnx:MODEL.onnx,provider=cuda    an execution provider: cpu (default), cuda, coreml, ...

Every tensor of the optimised graph is recorded, with the node that made it; weights are named by their content. The
model is fed as the reference is: features, prompt, its own choices, and its own cache where it takes one (`past...` in,
`present...` out); without one only the prompt's step is run. Leaves out beam search.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from firstbad.arguments import did_you_mean
from firstbad.errors import CompareError, UsageError
from firstbad.graph import Kind, Op, Read, Value
from firstbad.hashing import hash_array
from firstbad.run import CaptureOptions, Prepared, RunOutput
from firstbad.session import meta_of
from firstbad.trace import TraceWriter
from firstbad.want import chosen as chosen_by
from firstbad.want import patterns_of

from .onnx_graph import LEVELS, MOVES, Node, Observed, modules, observe
from .weights_by_content import Named, named

STEPS = 8
"""New tokens where nobody says how many."""


@dataclass(frozen=True)
class Wishes:
    """What the argument says."""

    path: Path
    level: str = "all"
    provider: str = "cpu"


def parse(argument: str) -> Wishes:
    place, *rest = argument.split(",")
    given = dict(word.partition("=")[::2] for word in rest if word)
    unknown = [key for key in given if key not in ("level", "provider")]
    if unknown:
        hint = did_you_mean(unknown[0], ("level", "provider")) or "known: level, provider"
        raise UsageError(f"`{unknown[0]}` in `onnx:{argument}` is not understood: {hint}")
    if given.get("level", "all") not in LEVELS:
        raise UsageError(f"no optimisation level `{given['level']}`: known: {', '.join(LEVELS)}")
    if not place or not Path(place).exists():
        raise UsageError(f"no ONNX model `{place}`: give a .onnx file or a folder of them")
    return Wishes(Path(place), **given)


def capture(argument: str, prepared: Prepared, trace_path: Path, options: CaptureOptions) -> RunOutput:
    """Runs the models step by step and records every tensor."""
    wishes = parse(argument)
    files = sorted(wishes.path.glob("*.onnx")) if wishes.path.is_dir() else [wishes.path]
    if not files:
        raise UsageError(f"no .onnx file in `{wishes.path}`")
    _, ort = modules()
    trace_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".onnx-", dir=trace_path.parent) as scratch:
        providers = _providers(ort, wishes.provider)
        models = [observe(file, wishes.level, providers, Path(scratch), options.threads) for file in files]
        meta = {**meta_of(prepared), "candidate": f"onnx:{argument}", "onnxruntime": ort.__version__, **_asked(wishes)}
        with TraceWriter(trace_path, role="candidate", engine="onnx", meta=meta, hash_only=options.hash_only) as writer:
            run = _Run(prepared, writer, options)
            run.weights(models)
            started = time.monotonic()
            tokens = run.all_steps(models)
            answer: dict[str, Any] = {"notes": run.notes}
            text = prepared.text(tokens) if tokens is not None else ""
            if tokens is not None:
                answer |= {"tokens": list(tokens), "text": text}
            writer.outputs(answer)
            writer.close(complete=True)
    return RunOutput(tokens or (), text, seconds={"run": time.monotonic() - started})


def _asked(wishes: Wishes) -> dict[str, str]:
    return {"level": wishes.level, "provider": wishes.provider}


def _providers(ort: Any, name: str) -> list[str]:
    known = {p.removesuffix("ExecutionProvider").lower(): p for p in ort.get_available_providers()}
    if name.lower() not in known:
        raise UsageError(f"ONNX Runtime has no provider `{name}` here: it has {', '.join(known)}")
    return [known[name.lower()]]


@dataclass
class _Run:
    """One run on its way into the trace."""

    prepared: Prepared
    writer: TraceWriter
    options: CaptureOptions
    notes: list[str] = field(default_factory=list)
    values: int = 0
    ops: int = 0
    known: dict[str, int] = field(default_factory=dict)  # tensor of the graph → value
    calls: dict[str, str] = field(default_factory=dict)  # input of the model → what it is called elsewhere
    named: dict[str, Named] = field(default_factory=dict)
    states: dict[str, np.ndarray] = field(default_factory=dict)  # what one model hands to the next, and the cache

    def weights(self, models: list[Observed]) -> None:
        """Every initializer that is a weight of the model, in the model's layout."""
        for model in models:
            floats = {n: a for n, a in model.initializers.items() if a.ndim and np.issubdtype(a.dtype, np.floating)}
            found = named(floats, self.prepared.weights)
            for own, weight in found.items():
                key = f"{model.path}:{own}"
                self.named[key] = weight
                self.known[key] = self._value(weight.name, "weight", weight.array, "weights")

    def all_steps(self, models: list[Observed]) -> tuple[int, ...] | None:
        """Encoder and decoder, a language model, or one pass; None where nothing here chooses tokens."""
        if self.prepared.first_step != "prefill":
            self._one_pass(models)
            return None
        encoder = next((m for m in models if "input_features" in m.inputs), None)
        decoders = [m for m in models if "input_ids" in m.inputs or "decoder_input_ids" in m.inputs]
        if encoder is None and not decoders:
            told = "; ".join(f"{m.path.name}: {', '.join(m.inputs)}" for m in models)
            raise UsageError(f"no model here takes input_features or input_ids ({told}): nothing to feed")
        if encoder is not None:
            outputs = self._step(encoder, "encode", {"input_features": self.prepared.inputs["input_features"]})
            self.states["encoder_hidden_states"] = outputs[encoder.outputs[0]]
        if not decoders:
            return None
        return self._decode(decoders)

    def _one_pass(self, models: list[Observed]) -> None:
        """A model of its own kind, fed by name; where one name differs on both sides, that is meant, and said."""
        if len(models) != 1:
            raise UsageError(f"{len(models)} models in a folder, and this reference runs once: give the file itself")
        (model,), ours = models, dict(self.prepared.inputs)
        given = list(model.inputs)
        if all(name.startswith("arr_") for name in ours) and len(given) == len(ours):
            fed = dict(zip(given, ours.values(), strict=True))
        else:
            fed = {name: ours.pop(name) for name in given if name in ours}
            left = [name for name in given if name not in fed]
            if len(left) == len(ours) == 1:
                ((name, array),) = ours.items()
                fed[left[0]] = array
                self.notes.append(f"{model.path.name} calls the input {name} {left[0]}")
                self.calls[left[0]] = name
            elif left:
                raise UsageError(
                    f"`{model.path}` wants the input{'s' * (len(left) > 1)} {', '.join(left)}: there are "
                    f"{', '.join(self.prepared.inputs) or 'none'}"
                )
        self._step(model, self.prepared.first_step, fed)

    def _decode(self, decoders: list[Observed]) -> tuple[int, ...]:
        B = next(iter(self.prepared.inputs.values())).shape[0]
        chosen: list[int] = []
        most = B * (self.options.max_tokens or STEPS)
        while True:
            model = _of_step(decoders, first=not chosen)
            if model is None:
                self.notes.append("the ONNX decoder takes no cache (past... inputs): only the prompt's step was run")
                break
            step = f"decode.{len(chosen) // B - 1}" if chosen else "prefill"
            outputs = self._step(model, step, self._fed(model, chosen))
            logits = outputs[next((o for o in model.outputs if "logits" in o), model.outputs[0])]
            chosen += self._choice(logits, first=not chosen)
            self._keep_cache(outputs)
            if len(chosen) >= most or (B == 1 and chosen[-1] == self.prepared.eos):
                break
        return tuple(chosen)

    def _fed(self, model: Observed, chosen: list[int]) -> dict[str, np.ndarray]:
        """What the reference is fed in this step."""
        if "input_ids" in self.prepared.inputs:
            from firstbad.rooms import load

            fed: dict[str, np.ndarray] = load("reference", "causal").step_inputs(self.prepared, chosen)
        else:
            ids = chosen[-1:] if chosen else list(self.prepared.prompt)
            fed = {"decoder_input_ids": np.asarray([ids], np.int64)}
        if "decoder_input_ids" in fed and "decoder_input_ids" not in model.inputs:
            fed["input_ids"] = fed["decoder_input_ids"]
        return fed

    def _choice(self, logits: np.ndarray, *, first: bool) -> list[int]:
        scores = np.array(logits[:, -1], np.float32)
        scores[:, list(self.prepared.suppress)] = -np.inf
        if first:
            scores[:, list(self.prepared.begin_suppress)] = -np.inf
        return [int(i) for i in scores.argmax(-1)]

    def _keep_cache(self, outputs: Mapping[str, np.ndarray]) -> None:
        for name, array in outputs.items():
            if name.startswith("present"):
                self.states["past_key_values" + name.removeprefix("present").removeprefix("_key_values")] = array

    def _step(self, model: Observed, step: str, fed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs and records one model; returns its own outputs."""
        given = {name: self._input(model, name, fed) for name in model.inputs}
        plain = dict(zip(model.outputs, _run(model.plain, list(model.outputs), given, model), strict=True))
        seen = dict(zip(model.seen, _run(model.session, list(model.seen), given, model), strict=True))
        unlike = [n for n in model.outputs if not np.array_equal(plain[n], seen[n], equal_nan=True)]
        if unlike:
            self.notes.append(f"{model.path.name} gives another {unlike[0]} in {step} when it is looked at")
        own = {"input_ids": "decoder_input_ids"} if "decoder_input_ids" in fed else self.calls
        for name, array in given.items():
            key = f"{model.path}:{name}"
            if name in fed:
                self.known[key] = self._value(own.get(name, name), "input", array, step)
            elif name in self.known:
                self.known[key] = self.known[name]  # another model's output, or the cache of the step before
        for node in model.nodes:
            self._node(model, node, step, seen)
        for name in model.outputs:
            if name.startswith("present"):
                past = "past_key_values" + name.removeprefix("present").removeprefix("_key_values")
                self.known[past] = self.known.get(f"{model.path}:{name}", -1)
        if step == "encode":
            self.known["encoder_hidden_states"] = self.known.get(f"{model.path}:{model.outputs[0]}", -1)
        return plain

    def _input(self, model: Observed, name: str, fed: Mapping[str, np.ndarray]) -> np.ndarray:
        if name in fed:
            return fed[name]
        if name in self.states:
            return self.states[name]
        B = next(iter(fed.values())).shape[0]
        if name.startswith("past"):
            shape = model.inputs[name]
            sizes = [n if isinstance(n, int) else B if i == 0 else 0 for i, n in enumerate(shape)]
            return np.zeros(sizes, np.float32)
        if name == "attention_mask":
            n = next((a.shape[2] for k, a in self.states.items() if k.startswith("past")), 0)
            return np.ones((B, n + next(iter(fed.values())).shape[1]), np.int64)
        if name == "position_ids":
            n = next((a.shape[2] for k, a in self.states.items() if k.startswith("past")), 0)
            T = next(iter(fed.values())).shape[1]
            return np.broadcast_to(np.arange(n, n + T, dtype=np.int64), (B, T)).copy()
        raise UsageError(f"`{model.path}` wants the input `{name}`, which is not known: prepared are {', '.join(fed)}")

    def _node(self, model: Observed, node: Node, step: str, seen: Mapping[str, np.ndarray]) -> None:
        reads = tuple(
            Read(self.known.get(f"{model.path}:{name}", -1), str(slot)) for slot, name in enumerate(node.inputs) if name
        )
        writes = []
        for name in node.outputs:
            array = seen.get(name)
            if not name or array is None:
                continue
            kind: Kind = "view" if node.kind in MOVES else "constant" if node.kind == "Constant" else "value"
            writes.append(self._value(name, kind, array, step, self.ops))
            self.known[f"{model.path}:{name}"] = writes[-1]
        if not writes:
            return
        line = model.nodes.index(node) + 1  # of the optimised graph: the node's place in it
        kept = tuple(r for r in reads if r.value >= 0)
        self.writer.op(
            Op(
                self.ops,
                step,
                node.name or node.outputs[0],
                node.kind,
                kept,
                tuple(writes),
                node.attributes,
                str(model.path),
                line,
            )
        )
        self.ops += 1

    def _value(self, name: str, kind: Kind, array: np.ndarray, step: str, op: int = -1) -> int:
        wanted = chosen_by(patterns_of(self.options))(step, name)
        stored = kind not in ("weight", "view") and wanted
        reason = {"weight": "a weight: its hash is recorded", "view": "only moves values"}.get(kind, "not asked for")
        value = Value(
            self.values,
            step,
            name,
            kind,
            tuple(array.shape),
            str(array.dtype),
            op,
            reason="" if stored else reason,
            hash=hash_array(array) if kind in ("weight", "input") else 0,
        )
        self.writer.value(value, np.ascontiguousarray(array).reshape(array.shape) if stored else None)
        self.values += 1
        return self.values - 1


def _of_step(decoders: list[Observed], *, first: bool) -> Observed | None:
    """The model for the prompt, or the one for a step with a cache."""
    cached = [m for m in decoders if any(i.startswith("past") for i in m.inputs)]
    plain = [m for m in decoders if m not in cached]
    if first:
        return (plain or cached)[0]
    return cached[0] if cached else None


def _run(session: Any, names: list[str], given: Mapping[str, np.ndarray], model: Observed) -> list[np.ndarray]:
    try:
        return [np.asarray(a) for a in session.run(names, dict(given))]
    except Exception as error:  # the library has classes of its own
        line = str(error).strip().partition("\n")[0][:200]
        raise CompareError(f"ONNX Runtime cannot run `{model.path}`: {line}") from None
