"""An engine's profile: what it computes another way on purpose, declared in a small JSON file and modelled exactly.

    {"engine": "mine", "declared": [{"op": "aten.gelu", "computes": "gelu (tanh)", "why": "speed"}]}

A declared op is replayed as declared, so nothing else can hide behind it: limits are as narrow as ever, and a
declaration that does not reproduce the engine is refused, with all that it would have excused. Leaves out roundings of
an op's inputs, which probes record themselves (arithmetic.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firstbad.arguments import did_you_mean
from firstbad.edits_table import GELU_TABLE
from firstbad.errors import UsageError
from firstbad.gelu_table import gelu, nearest
from firstbad.graph import Op
from firstbad.replay import Executor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.alignment import Alignment
    from firstbad.trace import Trace

TANH = "gelu (tanh)"
COMPUTES = {GELU_TABLE: "aten.gelu", TANH: "aten.gelu"}
"""What can be declared → of which op."""


@dataclass(frozen=True)
class Declared:
    """One op that computes something else than the model's, on purpose."""

    op: str  # "aten.gelu": every overload
    computes: str
    why: str = ""


@dataclass(frozen=True)
class Profile:
    engine: str
    declared: tuple[Declared, ...]


def load_profile(given: str) -> Profile:
    """A profile by the path of its file, or by the name of one that comes with firstbad."""
    here = Path(__file__).parent
    known = {path.stem.removeprefix("profile_"): path for path in here.glob("profile_*.json")}
    path = known.get(given, Path(given))
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError:
        hint = did_you_mean(given, known) or f"known: {', '.join(sorted(known))}, or the path of a JSON file"
        raise UsageError(f"no profile `{given}`: {hint}") from None
    except ValueError as error:
        raise UsageError(f"the profile `{path}` is no JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("declared"), list):
        raise UsageError(f'the profile `{path}` is not understood: {{"engine": "...", "declared": [...]}} is meant')
    return Profile(str(data.get("engine", given)), tuple(_declared(one, path) for one in data["declared"]))


def _declared(one: Any, path: Path) -> Declared:
    if not isinstance(one, dict) or not isinstance(one.get("computes"), str):
        raise UsageError(
            f'a declaration of `{path}` is not understood: {{"op": "aten.gelu", "computes": "..."}} is meant'
        )
    computes = one["computes"]
    if computes not in COMPUTES or one.get("op", COMPUTES[computes]) != COMPUTES[computes]:
        hint = did_you_mean(computes, COMPUTES) or f"known: {', '.join(COMPUTES)}"
        raise UsageError(f"`{computes}` for `{one.get('op', '')}` in `{path}` cannot be modelled: {hint}")
    return Declared(COMPUTES[computes], computes, str(one.get("why", "")))


@dataclass
class AsDeclared:
    """An Executor that computes declared ops as they are declared; see the protocol in firstbad/replay.py.

    `sizes`: (step, value) → how far that is from the model's own, relative.
    """

    executor: Executor
    profile: Profile
    contracted: bool  # the table's entries were computed with fused multiply-add
    sizes: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def plain(self) -> Executor:
        """The reference's own arithmetic."""
        plain: Executor = getattr(self.executor, "plain", self.executor)
        return plain

    def declared(self, op: Op) -> Declared | None:
        return next((one for one in self.profile.declared if op.kind.rpartition(".")[0] == one.op), None)

    def run(self, op: Op, inputs: Mapping[int, NDArray[Any]], dtype: str) -> list[NDArray[Any]]:
        one = self.declared(op)
        outputs = self.executor.run(op, inputs, dtype)
        if one is None:
            return outputs
        x = inputs[op.reads[0].value]
        if one.computes == GELU_TABLE:
            made = np.asarray(gelu(x, self.contracted), outputs[0].dtype)
        else:
            kwargs = {**op.attrs.get("kwargs", {}), "approximate": "tanh"}
            made = self.executor.run(replace(op, attrs={**op.attrs, "kwargs": kwargs}), inputs, dtype)[0]
        if dtype == "float64":
            size = float(np.linalg.norm(outputs[0].ravel())) or 1.0
            self.sizes[op.step, op.name] = float(np.linalg.norm((made - outputs[0]).ravel())) / size
        return [made]

    def scale(self, op: Op, inputs: Mapping[int, NDArray[Any]], output: NDArray[Any]) -> NDArray[Any] | None:
        return self.executor.scale(op, inputs, output)

    def sequential(
        self, op: Op, inputs: Mapping[int, NDArray[Any]], samples: int, seed: int
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        return None if self.declared(op) is not None else self.executor.sequential(op, inputs, samples, seed)

    def weight(self, name: str) -> NDArray[Any]:
        return self.executor.weight(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)  # what an executor may have beyond the protocol

    @property
    def words(self) -> list[str]:
        """For people: what is declared, where it shows, how large it is."""
        said = []
        for one in self.profile.declared:
            many = [size for (_, _), size in self.sizes.items() if size > 0]
            if many:
                said.append(
                    f"known approximation of {self.profile.engine}: {one.computes}, at {len(many)} values, at most "
                    f"{max(many):.2g} of one: replayed as declared"
                )
        return said


def as_declared(
    executor: Executor, profile: Profile | None, alignment: Alignment, reference: Trace, candidate: Trace
) -> Executor:
    """The executor itself without a profile."""
    if profile is None or not profile.declared:
        return executor
    return AsDeclared(executor, profile, _contracted(alignment, reference, candidate))


def _contracted(alignment: Alignment, reference: Trace, candidate: Trace) -> bool:
    """Which of the two tables the engine has, by the largest value of the first op that is looked up."""
    read: Callable[[Any], NDArray[Any]] = candidate.array
    for pair in alignment.pairs:
        op = reference.graph.ops[pair.reference.op] if pair.reference.op >= 0 else None
        if op is not None and op.kind.startswith("aten.gelu."):
            source = alignment.by_reference.get(op.reads[0].value)
            if source is not None:
                x = source.layout.apply(read(source.candidate))
                return nearest(x, pair.layout.apply(read(pair.candidate)))
    return True
