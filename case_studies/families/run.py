"""Ten families of models: the reference against itself run another way, and one planted bug each. Writes README.md.

python case_studies/families/run.py [FAMILY ...]     all of them: some minutes
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import firstbad

HERE = Path(__file__).parent
FAMILIES = ("llama", "qwen2_moe", "gemma2", "gpt2", "mistral", "mixtral", "mamba", "bert", "vit", "clip")

NO_SDPA = {"gemma2": "dtype=float16", "mamba": "dtype=float16"}
"""transformers has one attention for these (mamba: none): float16 in its place."""

EXPECTED = {
    "llama": ("model.layers.0.self_attn.matmul", {"heads"}),
    "qwen2_moe": ("model.layers.1.mlp.add", {"missing_op", "missing_value"}),
    "gemma2": ("model.layers.1.pre_feedforward_layernorm.mul_1", {"wrong_constant"}),
    "gpt2": ("transformer.h.0.mlp.act.mul_3", {"wrong_variant"}),
    "mistral": ("model.sub:int64", {"position"}),
    "mixtral": ("model.layers.0.mlp.experts.", {"missing_op", "missing_value"}),
    "mamba": ("backbone.layers.1.norm.add", {"wrong_constant"}),
    "bert": ("encoder.layer.0.attention.output.LayerNorm", {"wrong_constant"}),
    "vit": ("embeddings.add", {"wrong_weight"}),
    "clip": ("vision_model.encoder.layers.1.mlp.activation_fn.mul_1", {"wrong_variant"}),
}
"""How the name of the faulty value begins, and what its cause may rightly be called."""


@dataclass(frozen=True)
class Row:
    """What one run said."""

    candidate: str
    verdict: str
    values: int
    margin: float  # of the weakest value, in noise floors (3 are allowed)
    value: str = ""
    kind: str = ""
    statement: str = ""
    seconds: float = 0.0


def variants(family: str) -> tuple[str, str]:
    """The correct ones: another dtype, another attention."""
    return "torch:dtype=bfloat16", f"torch:{NO_SDPA.get(family, 'attn=sdpa')}"


def fault(family: str) -> str:
    return f"torch:{HERE / 'faults.py'}:{family}"


def run(family: str, candidate: str, folder: Path, *, max_tokens: int = 4, budget: float = 30.0) -> Row:
    """The family's tiny random model (seed 1) against `candidate`."""
    started = time.monotonic()
    result = firstbad.diff(
        family, random_weights=1, candidate=candidate, output=folder, max_tokens=max_tokens, threads=1, budget=budget
    )
    bad = result.first_bad
    return Row(
        candidate.replace(f"{HERE}/", ""),
        result.verdict,
        len(result.values["name"]),
        max((x for x in result.values["times_noise"] if not math.isnan(x)), default=0.0),
        *((bad.value, bad.cause.kind, bad.cause.statement) if bad else ()),
        seconds=time.monotonic() - started,
    )


def page(rows: dict[str, list[Row]]) -> str:
    """README.md."""
    clean = [
        f"| {family} | {' | '.join(f'`{r.candidate}` {r.verdict}, {r.values}, {r.margin:.2f}' for r in found[:2])} |"
        for family, found in rows.items()
    ]
    planted = [f"| {family} | `{found[2].value}` | {found[2].statement} |" for family, found in rows.items()]
    return TEMPLATE.format(clean="\n".join(clean), planted="\n".join(planted))


TEMPLATE = """# Ten families

Tiny models with random weights (seed 1), made from transformers' own classes: a made-up prompt of 12 tokens, prefill
and three decode steps; the encoders one pass. Windows are of 8 tokens. This page is written by
`python case_studies/families/run.py`. Every decoder-only family on the C engine: [ENGINE.md](ENGINE.md).

## Run another way

The reference against itself in another dtype, and with another attention. Each cell: verdict, values judged, and the
weakest of them in noise floors (3 are allowed). For gemma2 and mamba transformers has no second attention: float16.

| family | dtype | attention |
|---|---|---|
{clean}

## With one bug

What is planted stands in [faults.py](faults.py); none of it is known to firstbad.

| family | first bad value | what is said |
|---|---|---|
{planted}
"""


def main(chosen: list[str]) -> int:
    rows: dict[str, list[Row]] = {}
    wrong = 0
    for family in chosen or FAMILIES:
        rows[family] = []
        for candidate in (*variants(family), fault(family)):
            with tempfile.TemporaryDirectory() as folder:
                row = run(family, candidate, Path(folder))
            rows[family].append(row)
            print(family, row, flush=True)
        value, kinds = EXPECTED[family]
        *clean, planted = rows[family]
        wrong += (
            any(r.verdict != "match" for r in clean)
            + (not planted.value.startswith(value))
            + (planted.kind not in kinds)
        )
    if not chosen:
        (HERE / "README.md").write_text(page(rows), "utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
