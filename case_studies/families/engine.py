"""Every decoder-only family of transformers on the built-in C engine. Writes ENGINE.md.

python case_studies/families/engine.py [FAMILY ...]     all of them: about ten minutes

Each is a tiny model with random weights, prefill and two decode steps, in a process of its own with a limit of time and
memory. A fault here is one of the engine's planner: it should have refused what it does not know.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from firstbad.errors import FirstbadError
from firstbad.run import CaptureOptions, ModelSpec
from firstbad.session import diff, prepare

HERE = Path(__file__).parent
SECONDS = 60
MEMORY = 6 << 30

MATCH, REFUSED, NONE = "match", "refused", "no tiny model"


def families() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def try_one(family: str, results: Any) -> None:
    from firstbad.probes import c

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    spec = ModelSpec(f"causal:{family}", random_weights=1)
    try:
        _, prepared = prepare(spec)
    except Exception as error:  # whatever a family's own code does with sizes that it was not made for
        results.put((NONE, _line(error)))
        return
    try:
        c.plan_for("", prepared, tokens=3)
    except FirstbadError as error:
        results.put((REFUSED, _line(error)))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = diff(spec, "c", Path(folder), CaptureOptions(max_tokens=3, threads=1), budget=0).result
    values = sum(result.coverage.compared.values())
    said = f"{values} values" if result.verdict == MATCH else ", ".join(f.value for f in result.faults[:3])
    results.put((result.verdict, said))


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__


def run(family: str) -> tuple[str, str]:
    context = multiprocessing.get_context("fork")  # what is imported need not be imported again
    results = context.Queue()
    process = context.Process(target=try_one, args=(family, results))
    process.start()
    try:
        found: tuple[str, str] = results.get(timeout=SECONDS)
    except queue.Empty:
        found = (NONE, f"not done in {SECONDS} seconds" if process.is_alive() else "it cannot be made or run")
    process.kill()
    process.join()
    return found


def page(rows: dict[str, tuple[str, str]]) -> str:
    """ENGINE.md."""
    import transformers

    by = {
        verdict: [f for f, (v, _) in rows.items() if v == verdict]
        for verdict in dict.fromkeys(v for v, _ in rows.values())
    }
    counted = ", ".join(f"{len(found)} {verdict}" for verdict, found in sorted(by.items()))
    lines = [
        "# Decoder-only families on the C engine",
        "",
        f"Every causal language model of transformers {transformers.__version__}, as a tiny model with random weights",
        f"(seed 1): prefill of 12 tokens and two decode steps. {len(rows)} families: {counted}.",
        "Written by `python case_studies/families/engine.py`.",
        "",
        "| family | verdict | what is said |",
        "|---|---|---|",
    ]
    plain = "the built-in C engine runs no"
    lines += [f"| {f} | {v} | {said} |" for f, (v, said) in rows.items() if plain not in said and v != NONE]
    lines += ["", f'Refused by name ("{plain} ..."):', ""]
    lines += [", ".join(f for f, (_, said) in rows.items() if plain in said) + "."]
    lines += [
        "",
        f"No tiny model: small sizes alone make no config, or one over {MEMORY >> 30} GB or {SECONDS} seconds:",
        "",
    ]
    lines += [", ".join(by.get(NONE, ["none"])) + "."]
    return "\n".join([*lines, ""])


def main(chosen: list[str]) -> int:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    prepare(ModelSpec("causal:llama", random_weights=1))  # imported before the first fork
    rows = {}
    for family in chosen or families():
        rows[family] = run(family)
        print(family, *rows[family], flush=True)
    if not chosen:
        (HERE / "ENGINE.md").write_text(page(rows), "utf-8")
    return int(any(v not in (MATCH, REFUSED, NONE) for v, _ in rows.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
