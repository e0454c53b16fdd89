"""check: one kernel, function or module against a PyTorch reference, with no model: the unit test's side of a diff.

    firstbad.check(my_linear, torch.nn.functional.linear, (x, weight, bias))

The reference is recorded op by op, the candidate's outputs are compared with what it gives in float64, within what its
arithmetic may be off by; there is no tolerance to set. The candidate is given what the caller has: NumPy arrays or
tensors, with their strides. Between the two runs its inputs must not change, unless the reference changes them too.
Leaves out models with steps, and candidates that record values of their own.
"""

from __future__ import annotations

import importlib
import inspect
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstbad.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from firstbad.comparison import Comparison
    from firstbad.measured import Site
    from firstbad.result import FaultResult, Result

BUDGET = 5.0


class MismatchError(AssertionError):
    """The candidate is not what the reference says: the text is the verdict, `result` the evidence (None: the outputs
    are not even of one form)."""

    def __init__(self, text: str, result: Result | None = None) -> None:
        super().__init__(text)
        self.result = result


@dataclass(frozen=True)
class Checked:
    """What a check that passed gives: its result, and each output's error beside the noise floor."""

    result: Result
    sites: tuple[Site, ...]


def check(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Any,
    *,
    output: Path | str | None = None,
    budget: float = BUDGET,
    repro: str = "",
) -> Result:
    """Runs both on `inputs` (one array or tensor, a sequence of arguments, or a mapping of names to them).

    Raises MismatchError with verdict, cause, worst element and `repro` where they differ. `output`: a folder for
    traces and report; `budget`: seconds of search for the cause.
    """
    return compared(candidate, reference, inputs, output=output, budget=budget, repro=repro).result


def compared(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Any,
    *,
    output: Path | str | None = None,
    budget: float = BUDGET,
    repro: str = "",
) -> Checked:
    """`check`, with the errors of each value beside the result."""
    named = list(_named(reference, inputs))
    with tempfile.TemporaryDirectory(prefix="firstbad-") if output is None else nullcontext(str(output)) as place:
        folder = Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        told = _Told(candidate, reference, named, repro, folder if output is not None else None)
        comparison, sites = _run(candidate, reference, named, folder, budget, told)
        if output is not None:
            from firstbad.session import finish

            comparison = finish(comparison, folder)
        if comparison.result.verdict != "match":
            raise MismatchError(told.text(comparison.result), comparison.result)
        return Checked(comparison.result, sites)


def _named(reference: Callable[..., Any], inputs: Any) -> Iterator[tuple[str, Any]]:
    """The arguments with their names: those given, or those of the reference's parameters."""
    if isinstance(inputs, Mapping):
        yield from ((str(name), item) for name, item in inputs.items())
        return
    many = inputs if isinstance(inputs, list | tuple) else (inputs,)
    target = getattr(reference, "forward", reference)
    try:
        names = [p.name for p in inspect.signature(target).parameters.values() if p.kind in (0, 1)]
    except (TypeError, ValueError):  # a function of C has no signature
        names = []
    for n, item in enumerate(many):
        yield (names[n] if n < len(names) else f"input_{n}"), item


def _run(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    named: Sequence[tuple[str, Any]],
    folder: Path,
    budget: float,
    told: _Told,
) -> tuple[Comparison, tuple[Site, ...]]:
    from firstbad.comparison import compare
    from firstbad.measured import sites_of
    from firstbad.trace import TraceWriter, open_trace

    function = importlib.import_module("firstbad.reference.function")
    given = [(name, _tensor(item)) for name, item in named]
    before = [_copy(item) for _, item in named]
    with TraceWriter(folder / "reference.h5", role="reference", engine="torch", meta={}) as writer:
        names, expected, weights = function.record(reference, given, writer)
        writer.outputs({})
        writer.close(complete=True)
    written = _put_back(named, before)
    returned = candidate(*(item for _, item in named))
    outputs = [_array(item) for item in _leaves(returned)]
    wanted = [_array(item) for item in expected]
    told.check_form(outputs, wanted)
    told.check_unchanged([pair for pair in zip(named, before, strict=True) if pair[0][0] not in written])
    _write(folder / "candidate.h5", named, before, names, outputs, told.source)
    with open_trace(folder / "reference.h5") as ours, open_trace(folder / "candidate.h5") as theirs:
        comparison = compare(ours, theirs, function.executor(weights), budget=budget, command=told.repro)
        return comparison, sites_of(comparison.local, theirs.graph)


def _write(
    path: Path,
    named: Sequence[tuple[str, Any]],
    before: Sequence[Any],
    names: Sequence[str],
    outputs: Sequence[tuple[Any, str]],
    source: tuple[str, int],
) -> None:
    """The candidate's trace: what it was given and what it gave."""
    from firstbad.graph import Op, Read, Value
    from firstbad.hashing import hash_array
    from firstbad.trace import TraceWriter

    step = "call"
    with TraceWriter(path, role="candidate", engine="call", meta={}) as writer:
        count = 0
        for (name, _), item in zip(named, before, strict=True):
            if item is None:
                continue
            array, dtype = _array(item)
            value = Value(count, step, name, "input", array.shape, dtype, hash=hash_array(array))
            writer.value(value, array)
            count += 1
        reads = tuple(Read(n) for n in range(count))
        for op, (name, (array, dtype)) in enumerate(zip(names, outputs, strict=True)):
            writer.value(Value(count, step, name, "value", array.shape, dtype, op), array)
            writer.op(Op(op, step, name, "call", reads, (count,), {}, *source))
            count += 1
        writer.outputs({})
        writer.close(complete=True)


def _leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, list | tuple):
        for item in result:
            yield from _leaves(item)
    elif result is not None:
        yield result


def _is_tensor(item: Any) -> bool:
    return type(item).__module__.partition(".")[0] == "torch" and hasattr(item, "untyped_storage")


def _tensor(item: Any) -> Any:
    """What the reference is given: an array as a tensor of its own memory and strides, where PyTorch can have it."""
    import numpy as np
    import torch

    if not isinstance(item, np.ndarray):
        return item
    plain = item.flags.writeable and all(stride >= 0 for stride in item.strides)
    return torch.from_numpy(item if plain else item.copy())


def _copy(item: Any) -> Any:
    """The content of an array or tensor now; None for what is neither."""
    import numpy as np

    if isinstance(item, np.ndarray):
        return item.copy()
    return item.detach().clone() if _is_tensor(item) else None


def _put_back(named: Sequence[tuple[str, Any]], before: Sequence[Any]) -> set[str]:
    """A reference that writes into its inputs has done so to the caller's: the candidate gets them as they were."""
    written = set()
    for (name, item), copy in zip(named, before, strict=True):
        if copy is not None and not _same(item, copy):
            item[...] = copy
            written.add(name)
    return written


def _same(item: Any, copy: Any) -> bool:
    import numpy as np

    a, b = _array(item)[0], _array(copy)[0]
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _array(item: Any) -> tuple[Any, str]:
    """(NumPy array, name of its dtype); bfloat16 as its bits, float64 of a kernel as float32's better."""
    import numpy as np

    if _is_tensor(item):
        item = item.detach().cpu()
        dtype = str(item.dtype).removeprefix("torch.")
        if dtype == "bfloat16":
            import torch

            return item.contiguous().view(torch.uint16).numpy(), dtype
        item = item.numpy()
    array = np.asarray(item)
    if array.dtype == object:
        raise UsageError(f"an output of type {type(item).__name__} is no array: return arrays or tensors")
    return array, str(array.dtype)


class _Told:
    """What is said of one check, and the checks of form that need no arithmetic."""

    def __init__(
        self,
        candidate: Callable[..., Any],
        reference: Callable[..., Any],
        named: Sequence[tuple[str, Any]],
        repro: str,
        folder: Path | None,
    ) -> None:
        self.names = (_name(candidate), _name(reference))
        self.inputs = [line for name, item in named for line in _about(name, item)]
        self.repro = repro
        self.folder = folder
        self.source = _source(candidate)

    def check_form(self, outputs: Sequence[tuple[Any, str]], wanted: Sequence[tuple[Any, str]]) -> None:
        if len(outputs) != len(wanted):
            raise MismatchError(self._lines(f"{len(outputs)} outputs, the reference has {len(wanted)}"))
        for n, ((own, dtype), (theirs, other)) in enumerate(zip(outputs, wanted, strict=True)):
            which = f"output {n}" if len(wanted) > 1 else "the output"
            if own.shape != theirs.shape:
                words = f"{which} has shape {list(own.shape)}, the reference's {list(theirs.shape)}"
                raise MismatchError(self._lines(words))
            if ("float" in dtype) != ("float" in other):
                raise MismatchError(self._lines(f"{which} is {dtype}, the reference's {other}"))

    def check_unchanged(self, pairs: Sequence[tuple[tuple[str, Any], Any]]) -> None:
        for (name, item), copy in pairs:
            if copy is not None and not _same(item, copy):
                raise MismatchError(self._lines(f"it wrote over its input `{name}`"))

    def text(self, result: Result) -> str:
        first = result.first_bad
        if first is None:
            return self._lines(f"nothing could be compared ({result.verdict})")
        return self._lines(_verdict(first), *_evidence(first), *(f"also     {_verdict(f)}" for f in result.faults[1:4]))

    def _lines(self, verdict: str, *evidence: str) -> str:
        lines = [f"{self.names[0]} is not {self.names[1]}: {verdict}", *(f"  {line}" for line in evidence)]
        lines += [f"  {'given' if n == 0 else '':8} {line}" for n, line in enumerate(self.inputs)]
        if self.source[0]:
            file = Path(self.source[0])
            shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            lines.append(f"  kernel   {shown}:{self.source[1]}")
        if self.folder is not None:
            lines.append(f"  report   {self.folder / 'report.html'}")
        if self.repro:
            lines.append(f"  repro    {self.repro}")
        return "\n".join(lines)


def _verdict(fault: FaultResult) -> str:
    from firstbad.statement import number, times

    where = f" in {fault.where}" if fault.where else ""
    return f"{fault.value} has a local error of {number(fault.local_error)}{where}, {times(fault.times_noise)}"


def _evidence(fault: FaultResult) -> Iterator[str]:
    yield f"cause    {fault.cause.kind}: {fault.cause.statement}"
    if fault.worst is not None:
        w = fault.worst
        ulp = f" ({w.ulp:,.0f} ulp)" if math.isfinite(w.ulp) else ""
        yield f"worst    element {list(w.index)}: {w.candidate:.9g}, expected {w.expected:.9g}{ulp}"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _about(name: str, item: Any) -> Iterable[str]:
    """An argument in words: type, shape, strides in elements where they are not the usual ones."""
    if not hasattr(item, "shape"):
        return (f"{name} = {item!r:.60}",)
    dtype = str(item.dtype).removeprefix("torch.")
    strides = tuple(item.stride()) if _is_tensor(item) else tuple(s // item.itemsize for s in item.strides)
    usual, size = [], 1
    for n in reversed(item.shape):
        usual.append(size)
        size *= n
    same = all(n == 1 or a == b for n, a, b in zip(item.shape, strides, reversed(usual), strict=True))
    return (f"{name} {dtype} {list(item.shape)}" + ("" if same else f", strides {list(strides)} elements"),)


def _source(function: Callable[..., Any]) -> tuple[str, int]:
    """Where the candidate is defined, if it is Python."""
    target = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(target, "__code__", None) or getattr(getattr(type(target), "forward", None), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
