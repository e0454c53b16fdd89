"""A trace with hashes and sketches in the place of its arrays: what is left of a search that is over.

Who made what from what stays, so runs can still be told apart. Leaves out traces on their way into the file: the writer
digests those itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firstbad.trace import TraceWriter, open_trace


def digest(path: Path) -> None:
    """Rewrites the trace without its arrays."""
    part = path.with_suffix(".digest")
    with open_trace(path) as trace:
        role = "reference" if trace.role == "reference" else "candidate"
        with TraceWriter(part, role, trace.engine, trace.meta, hash_only=True) as writer:  # type: ignore[arg-type]  # a literal of the two
            for value in trace.graph.values:
                array = trace.array(value) if value.dataset else None
                writer.value(replace(value, dataset=""), array)
            for op in trace.graph.ops:
                writer.op(replace(op, reads=tuple(replace(read, dataset="") for read in op.reads)))
            writer.outputs(trace.outputs)
            writer.close(complete=trace.complete, death=trace.death)
    part.replace(path)
