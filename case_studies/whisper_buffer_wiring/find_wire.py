"""Tries every wire of the founding bug's kind and prints what the engine then hears: python find_wire.py

The kind: an input port of a self-attention (x of q_proj, k_proj and v_proj; q, k and v of the products) that finds no
buffer under its name and falls back to the layer's main stream. With `--write` the chosen one, CHOSEN, is written to
plan.broken.json: the wire is moved in the call list, lifetimes are planned anew, nothing else is touched.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from firstbad import session
from firstbad.probes import c, edits, plan, planner
from firstbad.run import CaptureOptions, ModelSpec

HERE = Path(__file__).parent
PORTS = (("q_proj", "x"), ("k_proj", "x"), ("v_proj", "x"), ("matmul", "q"), ("matmul", "k"), ("matmul_1", "v"))
CHOSEN = (3, "v_proj", "x")


def broken(healthy: plan.Plan, layer: int, op: str, port: str) -> plan.Plan:
    """The plan whose `port` reads the stream that enters the layer."""
    stream = f"model.encoder.layers.{layer - 1}.add_1" if layer else "model.encoder.add"
    return edits.rewire(healthy, "encode", f"model.encoder.layers.{layer}.self_attn.{op}", port, stream)


def main() -> None:
    _, prepared = session.prepare(ModelSpec("whisper", HERE / "clip.wav"))
    healthy = planner.plan(prepared.config)
    if "--write" in sys.argv:
        plan.save(broken(healthy, *CHOSEN), HERE / "plan.broken.json")
        return
    options = CaptureOptions(steps=("prefill",), max_tokens=20)
    with tempfile.TemporaryDirectory() as folder:
        for layer in range(prepared.config["encoder_layers"]):
            for op, port in PORTS:
                plan.save(broken(healthy, layer, op, port), Path(folder, "plan.json"))
                heard = c.capture(f"{folder}/plan.json", prepared, Path(folder, "candidate.h5"), options)
                print(f"layer {layer}  {op:9} {port}  {heard.text!r}")


if __name__ == "__main__":
    main()
