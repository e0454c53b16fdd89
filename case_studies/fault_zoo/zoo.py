"""One model with one input, prepared once: runs any fault of the zoo on it and writes down what firstbad said.

A record holds what was said and what the rivals' rules said, not whether that was right: score.py decides that, so
that a new expectation needs no new run. Leaves out which faults are run (run.py).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import exports
import rivals
from broken import HERE, KERNELS, SIZES, Broken, broken
from torch import set_num_threads

import firstbad
from firstbad import probes, reference, session
from firstbad.comparison import compare
from firstbad.lint import lint_trace, predicts
from firstbad.probes import c, onnx, torch
from firstbad.probes.lint import lint
from firstbad.probes.plan import save
from firstbad.result import Result
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput
from firstbad.trace import Trace, open_trace

CLIP = HERE.parent / "whisper_buffer_wiring" / "clip.wav"

LANGUAGE = ("llama", "gemma2", "gpt_oss", "qwen2_moe", "qwen3_moe", "gpt2")
"""Tiny language models; a fault of one says so by `on`, all others are of a Whisper."""

MODELS: Mapping[str, tuple[ModelSpec, int]] = {
    "micro": (ModelSpec("whisper", CLIP, random_weights=1, audio_context=40, size="micro"), 3),
    "tiny.en": (ModelSpec("whisper", CLIP, audio_context=60), 3),
    **{name: (ModelSpec(name, random_weights=1), 3) for name in LANGUAGE},
}
"""Name → what is run, and how many tokens: enough for a prefill and decode steps with a cache."""

REWRITES: Sequence[tuple[list[Any], str]] = (
    ([["every", k, f"naive_{k}"] for k in ("linear", "conv1d", "attention_scores", "attention_mix")], ""),
    (
        [
            ["every", "linear", "linear:backwards"],
            ["every", "softmax", "softmax:online"],
            ["every", "layer_norm", "layer_norm:folded"],
        ],
        "",
    ),
    (
        [
            ["every", "linear", "linear:strided"],
            ["every", "attention_mix", "attention_mix:blocked"],
            ["every", "gelu", "gelu:by_erfc"],
        ],
        "",
    ),
    ([], "-ffast-math -O1"),
)
"""Correct rewrites of the engine: what they make of each value is noise (rivals.noise)."""

KEPT = 12  # references on disk at a time


@dataclass
class Zoo:
    """A model, its healthy run and the references made so far."""

    model: str
    room: ModuleType
    prepared: Prepared
    options: CaptureOptions
    folder: Path
    budget: float
    references: dict[tuple[int, ...], Path] = field(default_factory=dict)
    healthy: rivals.Values = field(default_factory=dict)
    noise: rivals.Noise = field(default_factory=dict)
    others: dict[str, rivals.Values] = field(default_factory=dict)  # healthy runs of other engines

    @classmethod
    def of(cls, model: str, folder: Path, budget: float, seed: int | None = None) -> Zoo:
        spec, tokens = MODELS[model]
        if seed is not None:
            spec = replace(spec, random_weights=seed)
        room, prepared = session.prepare(spec)
        set_num_threads(2 if model == "tiny.en" else 1)  # ops this small are slower in two
        folder.mkdir(parents=True, exist_ok=True)
        options = CaptureOptions(max_tokens=tokens, threads=2, timeout=60, kernels=KERNELS)
        return cls(model, room, prepared, options, folder, budget)

    def know_noise(self) -> None:
        """The healthy run and what correct rewrites make of it."""
        if self.healthy:
            return
        plan = c.plan_for("", self.prepared)
        path = self.folder / "healthy.h5"
        c.capture("", self.prepared, path, self.options)
        self.healthy = rivals.values(path)
        others = []
        for edits, flags in REWRITES[:: 3 if self.model in LANGUAGE else 1]:  # the others know no grouped heads
            self._run_c(broken(plan, self.prepared, edits), path, replace(self.options, cflags=tuple(flags.split())))
            others.append(rivals.values(path))
        path.unlink()
        self.noise = rivals.noise(self.healthy, others)

    def run(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """What is said about one fault or one clean run."""
        started = time.monotonic()
        self.know_noise()
        engine = entry.get("engine", "c")
        wishes = replace(
            self.options,
            cflags=tuple(entry.get("cflags", "").split()),
            threads=entry.get("threads", self.options.threads),
        )
        path = self.folder / "candidate.h5"
        made = Broken(c.plan_for("", self.prepared), self.prepared)
        if engine == "torch":
            module = next((edit[1] for edit in entry["edits"]), "")
            argument = entry.get("argument") or f"{HERE / 'modules.py'}:{module}"
            output = torch.capture(argument, self.prepared, path, wishes)
        elif engine == "onnx":
            output = self._run_onnx(entry, path, wishes)
        else:
            made = broken(made.plan, self.prepared, entry["edits"])
            output = self._run_c(made, path, wishes, poison=entry.get("poison", False))
        names = (*(n for group in SIZES for n in group), "head_dim")
        config = {k: self.prepared.config[k] for k in names if k in self.prepared.config}
        said: dict[str, Any] = {
            "id": entry["id"],
            "model": self.model,
            "death": output.death,
            "config": config,
            "sources": sources(),
        }
        reference = self.reference(output)
        with open_trace(reference) as ours, open_trace(path) as theirs:
            judged = time.monotonic()
            said |= self._compared(ours, theirs) | {"seconds_compare": round(time.monotonic() - judged, 2)}
            said |= {"lint": _lint(made, theirs, said["faults"], engine)}
            if "there" in entry:
                said["there"] = _there(theirs, *entry["there"])
        mine = rivals.values(path)
        said["rivals"] = rivals.answers(rivals.values(reference), mine)
        said["shows"] = self._shows(engine, mine) if "what" not in entry else ""
        said["seconds"] = round(time.monotonic() - started, 2)
        path.unlink()
        return said

    def _compared(self, reference: Trace, candidate: Trace) -> dict[str, Any]:
        try:
            return _said(compare(reference, candidate, self.room.executor(self.prepared), budget=self.budget).result)
        except Exception as error:  # a bug of the tool is a miss like any other, and must not end the run
            return {"verdict": f"{type(error).__name__}: {error}", "stage": "", "faults": []}

    def _run_c(self, made: Broken, path: Path, options: CaptureOptions, *, poison: bool = False) -> RunOutput:
        argument = path.with_suffix(".json")
        save(made.plan, argument)
        output = c.capture(str(argument), made.prepared, path, options, poison=poison)
        argument.unlink()
        return output

    def _run_onnx(self, entry: Mapping[str, Any], path: Path, wishes: CaptureOptions) -> RunOutput:
        healthy = self.folder / "exported"
        if not healthy.is_dir():
            exports.exported(self.prepared.model_object, healthy)
        folder = exports.edited(healthy, entry["edits"], self.folder / "edited")
        argument = ",".join(part for part in (str(folder), entry.get("argument", "")) if part)
        return onnx.capture(argument, self.prepared, path, wishes)

    def _shows(self, engine: str, mine: rivals.Values) -> str:
        """The first value that the fault changes beyond noise, against the healthy run of the same engine."""
        if engine == "c":
            return rivals.shows(self.healthy, mine, self.noise)
        if engine not in self.others:
            path = self.folder / "healthy.h5"
            if engine == "torch":
                torch.capture("", self.prepared, path, self.options)
            else:
                self._run_onnx({"edits": ()}, path, self.options)
            self.others[engine] = rivals.values(path)
            path.unlink()
        return rivals.shows(self.others[engine], mine, {})  # the same kernels: noise is none

    def reference(self, output: RunOutput) -> Path:
        """The reference driven by a candidate's tokens."""
        key = (*output.tokens, -1 if output.complete else -2)
        if key not in self.references:
            if len(self.references) >= KEPT:
                self.references.pop(next(iter(self.references))).unlink()
            path = self.folder / f"reference-{abs(hash(key)):x}.h5"
            wishes = replace(self.options, unfinished=not output.complete)
            session.capture_reference(self.room, self.prepared, path, wishes, output.tokens)
            self.references[key] = path
        return self.references[key]


@cache
def sources() -> str:
    """A digest of the product's own files: which state of it said what is written down."""
    found = hashlib.sha256()
    for room in (firstbad, probes, reference):
        folder = Path(room.__path__[0])
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".c", ".h")):
            found.update(path.read_bytes())
    return found.hexdigest()[:8]


def _said(result: Result) -> dict[str, Any]:
    data = json.loads(result.to_json())
    faults = [
        {
            "value": f["value"],
            "step": f["step"],
            "times_noise": f["times_noise"],
            "local_error": f["local_error"],
            "test": f["test"],
            "sites": [{"step": site["step"]} for site in f["sites"]],
            "cause": {k: f["cause"][k] for k in ("kind", "detail", "reproduces_to", "alternatives", "tried")},
            "statement": f["cause"]["statement"],
        }
        for f in data["faults"]
    ]
    return {"verdict": data["verdict"], "stage": data["stage"], "faults": faults}


def _lint(made: Broken, candidate: Trace, faults: Sequence[Mapping[str, Any]], engine: str) -> dict[str, Any]:
    """Findings, and the faults that they predict."""
    of_plan = lint(made.plan) if engine == "c" else ()
    of_trace = lint_trace(candidate.graph, candidate.outputs)
    predicted = {f["value"] for f in faults for finding in of_plan if predicts(finding, f)}
    seen = {f["value"] for f in faults for finding in of_trace if predicts(finding, f)}
    return {
        "plan": [[f.rule, f.op, f.value, f.other] for f in of_plan],
        "trace": [[f.rule, f.op, f.value, f.other] for f in of_trace],
        "predicted": sorted(predicted),
        "seen": sorted(seen),
    }


def _there(candidate: Trace, step: str, op_name: str, slot: str) -> list[str]:
    """What lay in the place that an op read: the values written over it, or what was read."""
    names: list[str] = []
    for op in candidate.graph.ops:
        if op.name == op_name and op.step.partition(".")[0] == step:
            for read in op.reads:
                if read.slot == slot and read.value >= 0:
                    names += [candidate.graph.values[v].name for v in (read.value, *read.overwritten_by)]
    return sorted(set(names))
