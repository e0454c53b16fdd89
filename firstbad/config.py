"""firstbad.toml: the cases of the gate, checked word by word.

    [gate]
    baselines = "baselines"              # the folder of the committed baselines, beside this file

    [case.tiny]
    model = "whisper"                    # every option of `firstbad diff`: random_weights, size, audio_context ...
    audio = ["clip.wav"]                 # recordings; further inputs are made from seeds until there are ...
    inputs = 10
    candidate = "c:plan.json"            # or a list: one case for each
    max_tokens = 16                      # and steps, threads, timeout, cflags, kernels
    environment = {OMP_NUM_THREADS = "1"}
    growth = 1.25                        # how far an error may grow beyond what clean runs vary ...
    tolerances = {"*.softmax" = 2.0}     # ... and for some values only
    [[case.tiny.variation]]              # a clean way to run it, tried when the baseline is made
    threads = 1
    cflags = "-O2"

Paths are relative to the file. Leaves out what is done with a case: gate.py.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, ModelSpec

FILE = "firstbad.toml"
INPUTS = 10
GROWTH = 1.25
BUDGET = 10.0

_SPEC = tuple(f.name for f in fields(ModelSpec) if f.name not in ("audio", "inputs"))
_VARIATION = ("threads", "cflags", "environment")
_CASE = (
    *_SPEC,
    *"audio inputs candidate max_tokens steps timeout kernels growth tolerances variation budget".split(),
    *_VARIATION,
)


@dataclass(frozen=True)
class Variation:
    """A way to run a case that must not change its verdict."""

    threads: int | None = None
    cflags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GateCase:
    """One model with its inputs, run by one candidate."""

    name: str
    spec: ModelSpec  # without its input
    audio: tuple[Path, ...] = ()
    inputs: int = INPUTS
    candidate: str = "c"
    options: CaptureOptions = field(default_factory=CaptureOptions)
    environment: Mapping[str, str] = field(default_factory=dict)
    growth: float = GROWTH
    tolerances: tuple[tuple[str, float], ...] = ()
    variations: tuple[Variation, ...] = ()
    budget: float = BUDGET

    @property
    def file(self) -> str:
        """The name of its baseline."""
        return f"{self.name}.jsonl"


@dataclass(frozen=True)
class Config:
    """What firstbad.toml says."""

    path: Path
    baselines: Path
    cases: tuple[GateCase, ...]

    @property
    def folder(self) -> Path:
        return self.path.parent


def load(path: Path) -> Config:
    """The configuration in a file; UsageError with one line where something in it is not understood."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {(error.strerror or 'no').lower()}; give it with --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"`{path}` is not TOML: {str(error).lower()}") from None
    _known(data, ("gate", "case"), f"`{path}`")
    gate = _table(data, "gate", f"`{path}`")
    _known(gate, ("baselines",), f"[gate] of `{path}`")
    cases = _table(data, "case", f"`{path}`")
    if not cases:
        raise UsageError(f"`{path}` has no case: write one as [case.NAME]")
    root = path.resolve().parent
    return Config(
        path.resolve(),
        root / str(gate.get("baselines", "baselines")),
        tuple(case for name, own in cases.items() for case in _cases(name, own, root, f"[case.{name}] of `{path}`")),
    )


def changed(config: Config | None, path: Path, model: str, candidate: str, baselines: Path | None) -> Config:
    """The configuration with another model, candidate or folder of baselines; without a file one case of these."""
    if config is None:
        root = path.resolve().parent
        config = Config(path.resolve(), root / "baselines", (GateCase("main", ModelSpec("whisper")),))
    cases = config.cases
    if model:
        cases = tuple(replace(case, spec=replace(case.spec, model=model)) for case in cases)
    if candidate:
        cases = tuple(replace(case, candidate=candidate) for case in cases)
    return Config(config.path, baselines.resolve() if baselines else config.baselines, cases)


def select(config: Config, names: list[str]) -> tuple[GateCase, ...]:
    """The cases of these names (of a list of candidates: each of them); all where none is named."""
    if not names:
        return config.cases
    known = [case.name for case in config.cases]
    for name in names:
        if not any(_is(case, name) for case in known):
            hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
            raise UsageError(f"no case `{name}` in `{config.path.name}`: {hint}")
    return tuple(case for case in config.cases if any(_is(case.name, name) for name in names))


def _is(case: str, name: str) -> bool:
    return case == name or case.startswith(f"{name}@")


def _cases(name: str, table: Any, root: Path, where: str) -> Iterator[GateCase]:
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise UsageError(f"{where}: a case is named by letters, digits and . + - _, since a file is named after it")
    if not isinstance(table, dict):
        raise UsageError(f"{where} is no table: write [case.{name}]")
    _known(table, _CASE, where)
    candidates = table.get("candidate", "c")
    several = isinstance(candidates, list)
    candidates = _texts(table, "candidate", where) if several else (_text(table, "candidate", where, "c"),)
    tolerances = _table(table, "tolerances", where)
    for pattern, factor in tolerances.items():
        _at_least_one(factor, f"the tolerance of `{pattern}` in {where}")
    growth = _at_least_one(table.get("growth", GROWTH), f"`growth` in {where}")
    variations = table.get("variation", [])
    if not isinstance(variations, list) or not all(isinstance(v, dict) for v in variations):
        raise UsageError(f"{where}: a variation is a table of its own: write [[case.{name}.variation]]")
    for variation in variations:
        _known(variation, _VARIATION, f"[[case.{name}.variation]]")
    for n, candidate in enumerate(candidates):
        own = _variation(table, where)
        yield GateCase(
            name=f"{name}@{_short(candidate, n)}" if several else name,
            spec=_spec(table, where),
            audio=tuple(root / file for file in _texts(table, "audio", where)),
            inputs=_whole(table, "inputs", where) or INPUTS,
            candidate=candidate,
            options=CaptureOptions(
                max_tokens=_whole(table, "max_tokens", where),
                threads=own.threads,
                timeout=float(table["timeout"]) if "timeout" in table else None,
                steps=_texts(table, "steps", where),
                cflags=own.cflags,
                kernels=tuple(root / file for file in _texts(table, "kernels", where)),
            ),
            environment=own.environment,
            growth=growth,
            tolerances=tuple((pattern, float(factor)) for pattern, factor in tolerances.items()),
            variations=tuple(_variation(v, where) for v in variations),
            budget=float(table.get("budget", BUDGET)),
        )


def _short(candidate: str, n: int) -> str:
    """A name for one of several candidates: its kind, numbered, as a file can be called."""
    return f"{n}-{re.sub(r'[^0-9A-Za-z]+', '_', candidate.partition(':')[0])}"


def _variation(table: Mapping[str, Any], where: str) -> Variation:
    environment = _table(table, "environment", where)
    return Variation(
        _whole(table, "threads", where),
        tuple(shlex.split(_text(table, "cflags", where, ""))),
        {key: str(text) for key, text in environment.items()},
    )


def _known(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known) or f"known: {', '.join(known)}"
            raise UsageError(f"{where} has an unknown key `{key}`: {hint}")


def _table(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise UsageError(f"`{key}` in {where} is no table")
    return found


def _spec(table: Mapping[str, Any], where: str) -> ModelSpec:
    """The model and its own input: prompts as texts or as ids."""
    given = {"model": "whisper", **{k: table[k] for k in _SPEC if k in table}}
    if "text" in given:
        given["text"] = _texts(table, "text", where)
    if "tokens" in given:
        prompts = given["tokens"]
        if not isinstance(prompts, list) or not all(
            isinstance(ids, list) and all(isinstance(i, int) for i in ids) for ids in prompts
        ):
            raise UsageError(f"`tokens` in {where} is no list of prompts: write tokens = [[15496, 11, 995]]")
        given["tokens"] = tuple(map(tuple, prompts))
    return ModelSpec(**given)


def _text(table: Mapping[str, Any], key: str, where: str, otherwise: str) -> str:
    found = table.get(key, otherwise)
    if not isinstance(found, str):
        raise UsageError(f'`{key}` in {where} is no text: write it in quotes, {key} = "..."')
    return found


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    found = table.get(key, [])
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UsageError(f'`{key}` in {where} is no list of texts: write {key} = ["..."]')
    return tuple(found)


def _whole(table: Mapping[str, Any], key: str, where: str) -> int | None:
    found = table.get(key)
    if found is not None and (not isinstance(found, int) or isinstance(found, bool) or found < 1):
        raise UsageError(f"`{key}` in {where} is not a whole number of at least 1")
    return found


def _at_least_one(number: Any, what: str) -> float:
    if not isinstance(number, int | float) or not number >= 1:
        raise UsageError(f"{what} is not a number of at least 1")
    return float(number)
