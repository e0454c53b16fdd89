"""Writes faults.json and clean.json: every fault of the zoo as data. Run it after an edit here: python write_faults.py

A fault is a list of edits of the healthy engine (its plan, a kernel, a weight file, a PyTorch module) and what a tool
should say: the values where it shows, and for each the causes that are right (`kinds` any of, `words` all of them in
the cause's detail). What a bug is called is written down here from the bug alone. Names are of a Whisper; layers 0
and 1 exist in every size. A number may be [dim, power]: D model, K head size.
"""

from __future__ import annotations

import json
from pathlib import Path

from entries import Fault
from faults_of_kernels import activations, attention, constants, ends, norms, precision, tails
from faults_of_language import language, language_clean
from faults_of_others import clean, further, held_out, of_onnx, of_torch, once_held_out, pairs, twice_held_out
from faults_of_plans import buffers, weights, wires

HERE = Path(__file__).parent


def every() -> list[Fault]:
    singles = [
        f
        for make in (wires, buffers, weights, norms, attention, tails, constants, activations, precision, ends)
        for f in make()
    ]
    return [
        *singles,
        *pairs(singles),
        *further(),
        *once_held_out(),
        *twice_held_out(),
        *of_torch(),
        *of_onnx(),
        *language(),
    ]


def main() -> None:
    faults, late, runs = every(), list(held_out()), [*clean(), *language_clean()]
    for name, entries in (("faults", faults), ("held_out", late), ("clean", runs)):
        ids = [entry["id"] for entry in entries]
        assert len(ids) == len(set(ids)), [i for i in ids if ids.count(i) > 1]
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        (HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n", "utf-8")
    classes = {c for f in faults for c in f["class"].split("+")}
    operators = {f["operator"] for f in faults}
    print(f"{len(faults)} faults of {len(classes)} classes and {len(operators)} operators")
    print(f"{len(late)} held out, {len(runs)} clean runs")


if __name__ == "__main__":
    main()
