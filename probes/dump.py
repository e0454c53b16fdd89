"""Values on disk as a candidate: `dump:FOLDER`, whoever wrote them.

A folder is read by each importer (dump_*.py) that finds files of its kind in it: .npy and .npz, .safetensors, PyTorch
tensors, raw binaries with an index, C-Kernel-Engine's dumps, Polygraphy's RunResults, ONNX TensorProtos, the output of
transformers' model debugger. Names are the files' own; which value is which is found as for every candidate. A first
folder called after a step (`encode`, `prefill`, `decode.3`) says the step; tokens.json holds the tokens, if any.
Leaves out running anything: the dump must come from the same input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from firstbad.errors import CompareError, UsageError
from firstbad.graph import Kind, Value
from firstbad.hashing import hash_array
from firstbad.run import CaptureOptions, Prepared, RunOutput
from firstbad.session import meta_of
from firstbad.trace import TraceWriter

from . import (
    dump_cke,
    dump_npy,
    dump_onnx,
    dump_onnx_db,
    dump_polygraphy,
    dump_raw,
    dump_safetensors,
    dump_torch,
    dump_transformers,
)
from .dumped import Dumped

IMPORTERS: tuple[ModuleType, ...] = (
    dump_transformers,
    dump_polygraphy,
    dump_cke,
    dump_raw,
    dump_npy,
    dump_safetensors,
    dump_torch,
    dump_onnx,
    dump_onnx_db,
)
"""In this order: one that knows what a folder's index means comes before those that read single files."""

STEP = re.compile(r"prepare|encode|prefill|decode\.\d+|forward|backward|update")


def capture(argument: str, prepared: Prepared, trace_path: Path, options: CaptureOptions) -> RunOutput:
    """Puts the values of a folder into a trace."""
    folder = Path(argument)
    if folder.is_file():
        raise UsageError(f"`{argument}` is one file: give the folder of a dump, with every value of the run")
    if not argument or not folder.is_dir():
        raise UsageError(f"no folder `{argument}`: --candidate dump:FOLDER")
    values = list(_read(folder))
    if not values:
        known = ", ".join(importer.KNOWN for importer in IMPORTERS)
        raise CompareError(f"`{folder}` holds no values in a format that is known: {known}")
    tokens = _tokens(folder)
    meta = {**meta_of(prepared), "dump": argument}
    with TraceWriter(trace_path, role="candidate", engine="dump", meta=meta, hash_only=options.hash_only) as writer:
        counts: dict[tuple[str, str], int] = {}
        for i, dumped in enumerate(values):
            writer.value(_value(i, dumped, prepared, counts), dumped.array)
        outputs = {} if tokens is None else {"tokens": list(tokens), "text": prepared.text(tokens)}
        writer.outputs(outputs)
        writer.close(complete=True)
    return RunOutput(tokens or (), str(outputs.get("text", "")))


def _read(folder: Path) -> Iterator[Dumped]:
    """Every value in the folder; a file is read by the first importer that takes it."""
    taken: set[Path] = set()
    for importer in IMPORTERS:
        found = list(importer.read(folder, frozenset(taken)))
        taken |= {dumped.file for dumped in found} | set(importer.claims(folder) if hasattr(importer, "claims") else ())
        yield from found


def _value(i: int, dumped: Dumped, prepared: Prepared, counts: dict[tuple[str, str], int]) -> Value:
    first, _, rest = dumped.name.replace("\\", "/").partition("/")
    step, name = (first, rest) if rest and STEP.fullmatch(first) else (dumped.step, dumped.name)
    name = name.replace("/", ".")
    step = step or _step_of(name, prepared)
    n = counts.get((step, name), 0)
    counts[step, name] = n + 1
    kind: Kind = "input" if name in prepared.inputs or name == "decoder_input_ids" else "value"
    content = hash_array(dumped.array) if kind == "input" else 0
    return Value(i, step, f"{name}_{n}" if n else name, kind, tuple(dumped.array.shape), dumped.dtype, hash=content)


def _step_of(name: str, prepared: Prepared) -> str:
    """Where nothing says the step: the model's first, or for the decoder of a model with two parts its prompt's."""
    if "input_features" not in prepared.inputs:
        return prepared.first_step
    return "prefill" if re.search(r"decoder|logits|proj_out|lm_head", name) else "encode"


def _tokens(folder: Path) -> tuple[int, ...] | None:
    path = folder / "tokens.json"
    if not path.is_file():
        return None
    try:
        data: Any = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CompareError(f"cannot read `{path}`: {error}") from None
    if not isinstance(data, list) or not all(isinstance(t, int) for t in data):
        raise CompareError(f"`{path}` is no list of token ids: [464, 2068, ...] is meant")
    return tuple(data)
