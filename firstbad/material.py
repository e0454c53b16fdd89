"""What a report is made of: result.json and, where they can be opened, the two traces it was made from.

A report that is a file is a module of reports/ with two names: `FILE`, its name in the output folder, and
`render(material) -> str | bytes`. It reads nothing else, so a report made by `diff` and one made a year later from the
folder are the same. (`terminal.py`, the answer of a run on stdout, has no FILE and takes a Result and a theme.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from firstbad import result as results
from firstbad.errors import CompareError, UsageError
from firstbad.layout import Layout
from firstbad.rooms import load, names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstbad.comparison import Comparison
    from firstbad.trace import Trace


@dataclass(frozen=True)
class Material:
    """result.json as plain data; a trace is None where its file cannot be opened, and `missing` says why."""

    folder: Path
    result: Mapping[str, Any]
    reference: Trace | None
    candidate: Trace | None
    missing: tuple[str, ...] = ()

    def arrays(self, row: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Both arrays of a row of the result's values in the reference's layout; None where one cannot be read."""
        if self.reference is None or self.candidate is None:
            return None
        columns = self.result["values"]
        key = columns["step"][row], columns["name"][row]
        ours = self.reference.graph.by_key.get(key)
        number, fields = self.result["extra"].get("partners", {}).get(str(row), (-1, {}))
        values = self.candidate.graph.values
        theirs = values[number] if 0 <= number < len(values) else self.candidate.graph.by_key.get(key)
        if ours is None or theirs is None:
            return None
        layout = Layout(ours.shape, **{name: _tuple(field) for name, field in fields.items()})
        try:
            return self.reference.array(ours), layout.apply(self.candidate.array(theirs))
        except (CompareError, ValueError):  # not stored, or of another shape than the result says
            return None


def material_of(comparison: Comparison) -> dict[str, Any]:
    """What a result must keep besides its columns, so that its values can be found and judged again from the folder.

    `allowed`: the limit of each row's cumulative error; `partners`: row → candidate value and layout, where these are
    not simply those of the same name and shape; `machine`: what rounding may depend on.
    """
    from firstbad.machine import environment
    from firstbad.run import CaptureOptions

    allowed, partners = [], {}
    for row, judged in enumerate(comparison.local.values):
        pair = judged.pair
        allowed.append(judged.cumulative_limit)
        fields = {name: field for name, field in asdict(pair.layout).items() if field and name != "shape"}
        same_key = (pair.candidate.step, pair.candidate.name) == (pair.reference.step, pair.reference.name)
        if fields or not same_key:
            partners[str(row)] = [pair.candidate.id, fields]
    return {"allowed": allowed, "partners": partners, "machine": environment("", CaptureOptions(), {})}


def _tuple(field: Any) -> Any:
    return tuple(field) if isinstance(field, list) else field


@contextmanager
def open_material(folder: Path) -> Iterator[Material]:
    """The material in an output folder; UsageError where there is no result in it."""
    from firstbad.trace import open_trace

    if folder.is_file() and folder.name.endswith(".json"):
        folder = folder.parent
    data = results.load(folder / "result.json")
    traces: dict[str, Trace | None] = {}
    missing = []
    with ExitStack() as stack:
        for side in ("reference", "candidate"):
            traces[side] = None
            path = _find(folder, data["files"], f"{side}.h5", side)
            try:
                traces[side] = stack.enter_context(open_trace(path))
            except CompareError as error:
                missing.append(str(error))
        yield Material(folder, data, traces["reference"], traces["candidate"], tuple(missing))


def _find(folder: Path, files: Mapping[str, str], name: str, side: str) -> Path:
    """Where a trace is now: in the folder if it was written there, wherever that has been moved to, or where it was."""
    written = Path(files.get(side, folder / name))
    beside = folder / written.name
    home = Path(files["report"]).parent if "report" in files else None
    if written.parent == home or not written.is_file():
        return beside
    return written


def kinds() -> list[str]:
    """The reports of a folder that are files (those of a gate say so with GATE)."""
    return [name for name in names("reports") if _of_a_folder(load("reports", name))]


def _of_a_folder(module: ModuleType) -> bool:
    return hasattr(module, "FILE") and not getattr(module, "GATE", False)


def room_of(kind: str) -> ModuleType:
    """The module of a report that is a file; a user's own .py file may leave FILE out."""
    module = load("reports", kind)
    if not _of_a_folder(module) and not kind.endswith(".py"):
        known = ", ".join(kinds())
        raise UsageError(f"`{kind}` is no report of an output folder: choose {known}, or a path to your own .py file")
    return module


def write_report(folder: Path, kind: str = "html", path: Path | None = None) -> Path:
    """Renders one report from a folder and writes it there, or to `path`."""
    room = room_of(kind)
    with open_material(folder) as material:
        content = room.render(material)
        where = path or material.folder / getattr(room, "FILE", f"{Path(kind).stem}.txt")
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    try:
        where.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write `{where}`: {(error.strerror or str(error)).lower()}") from error
    return where
