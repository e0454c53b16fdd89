"""tap: a value of any Python program goes into the trace, if somebody listens; else it costs one look at a variable.

    q = firstbad.tap("layers.0.q", x @ w + b)       NumPy, JAX (also inside jit), MLX, PyTorch, anything with __array__
    firstbad.tap("scores", s, reads=("layers.0.q", "layers.0.k"))      edges, where you know them
    firstbad.step("decode.3")                        what follows belongs to this step

Listening is what `--candidate py:FILE.py:function` does. Leaves out in-place changes: what is tapped is copied at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from firstbad.graph import Kind, Op, Read, Value

if TYPE_CHECKING:
    import numpy as np

    from firstbad.trace import TraceWriter

T = TypeVar("T")

_listener: Listener | None = None


def tap(name: str, array: T, *, reads: Sequence[str] = ()) -> T:
    """Records `array` under `name` and returns it as it is."""
    if _listener is not None:
        frame = sys._getframe(1)
        _record(name, tuple(reads), frame.f_code.co_filename, frame.f_lineno, array)
    return array


def step(name: str) -> None:
    """Begins a step: `encode`, `prefill`, `decode.0`, ..."""
    if _listener is not None:
        _listener.step = name


def _record(name: str, reads: tuple[str, ...], file: str, line: int, array: Any) -> None:
    if _listener is None:
        return
    if type(array).__module__.startswith("jax") and "Tracer" in type(array).__name__:
        import jax  # type: ignore[import-not-found,unused-ignore]  # optional: whoever hands over its arrays has it

        jax.debug.callback(partial(_record, name, reads, file, line), array, ordered=True)
        return
    _listener.value(name, as_numpy(array), reads=reads, file=file, line=line)


def as_numpy(array: Any) -> np.ndarray:
    """The array's content now, on the host."""
    import numpy as np

    if type(array).__module__.startswith("torch"):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()
    return np.array(array)


class Listener:
    """Writes what is tapped into a trace."""

    def __init__(self, writer: TraceWriter, step: str) -> None:
        self.step = step
        self._writer = writer
        self._values = 0
        self._ops = 0
        self._known: dict[tuple[str, str], int] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def value(
        self,
        name: str,
        array: np.ndarray,
        *,
        kind: Kind = "value",
        reads: Sequence[str] = (),
        file: str = "",
        line: int = 0,
    ) -> None:
        import numpy as np

        n = self._counts.get((self.step, name), 0)
        self._counts[self.step, name] = n + 1
        dtype = str(array.dtype)
        if dtype == "bfloat16":  # of ml_dtypes, which NumPy itself cannot write
            array = array.view(np.uint16)
        op = self._ops if kind == "value" else -1
        value = Value(self._values, self.step, f"{name}_{n}" if n else name, kind, tuple(array.shape), dtype, op)
        self._writer.value(value, array)
        if kind == "value":
            known = tuple(Read(self._known[self.step, r]) for r in reads if (self.step, r) in self._known)
            self._writer.op(Op(self._ops, self.step, name, "tap", known, (self._values,), {}, file, line))
            self._ops += 1
        self._known[self.step, name] = self._values
        self._values += 1


@contextmanager
def listening(writer: TraceWriter, step: str) -> Iterator[Listener]:
    """While it is open, taps go to `writer`."""
    global _listener  # noqa: PLW0603 - a tap in a user's code has nothing else to find its listener by
    before, _listener = _listener, Listener(writer, step)
    try:
        yield _listener
    finally:
        _listener = before
