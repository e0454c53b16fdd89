"""Tokens and their scores: near-ties and faults are told apart, KL divergence, prompts that were read otherwise."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch

from firstbad.answers import _tops, agreement
from firstbad.cli import main
from firstbad.comparison import compare
from firstbad.reference import causal
from firstbad.result import SCHEMA, Result
from firstbad.rooms import load
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_candidate, capture_reference, compare_files, diff
from firstbad.tie import Scores
from firstbad.trace import open_trace

BUGS = Path(__file__).parents[1] / "probes/candidates/near_ties.py"
OPTIONS = CaptureOptions(max_tokens=2, threads=1)
PROMPT = (5, 9, 11, 40, 7)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose highest score after PROMPT has a second one a rounding or two below."""
    folder = tmp_path_factory.mktemp("tied") / "model"
    model = causal.prepare(ModelSpec("llama", random_weights=1, tokens=(PROMPT,))).model_object
    with torch.inference_mode():
        best = int(model(torch.tensor([PROMPT])).logits[0, -1].argmax())
        rows = model.lm_head.weight.clone()
        rows[(best + 7) % 500] = rows[best] * (1 - 2.0**-22)
        model.lm_head.weight.copy_(rows)
    model.save_pretrained(folder)
    return folder


def run(tied: Path, bug: str, folder: Path) -> Result:
    spec = ModelSpec(str(tied), tokens=(PROMPT,))
    result = diff(spec, f"torch:{BUGS}:{bug}", folder, OPTIONS, budget=5).result
    jsonschema.validate(json.loads(result.to_json()), json.loads(SCHEMA.read_text("utf-8")))
    return result


def test_another_token_at_a_near_tie_is_no_fault(tied: Path, tmp_path: Path) -> None:
    result = run(tied, "swapped", tmp_path)
    assert (result.verdict, result.exit_code, result.faults) == ("match", 0, ())
    assert result.outputs["first_differing_token"] == 0
    first = result.outputs["near_ties"][0]
    assert (first["token"], first["step"]) == (0, "prefill")
    assert 0 < first["gap"] <= first["noise"] < 1e-3
    assert result.coverage.compared["decode"] > 100, "what comes after is compared"
    text = load("reports", "terminal").render(result)
    assert "token 0 differs" in text
    assert "a near-tie" in text
    assert "✓ match" in text


@pytest.mark.slow
def test_traces_alone_tell_a_near_tie_from_a_fault(tied: Path, tmp_path: Path) -> None:
    for bug, outcome in (("swapped", ("match", 0)), ("broken", ("diverged", 1))):
        run(tied, bug, tmp_path)
        result = compare_files(tmp_path / "reference.h5", tmp_path / "candidate.h5", None, budget=5).result
        assert (result.verdict, result.exit_code) == outcome
        assert result.outputs["first_differing_token"] == 0
        assert [f.value.startswith("model.layers.1.mlp.act_fn") for f in result.faults] == [True] * (bug == "broken")


def test_the_gate_tells_a_near_tie_from_a_fault(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CI", "GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    bug, prompt = tmp_path / "candidate.py", list(PROMPT)
    case = f'[case.tied]\nmodel = "{tied}"\ntokens = [{prompt}]\nmax_tokens = 2\nthreads = 1\ninputs = 1\n'
    Path("firstbad.toml").write_text(case + f'candidate = "torch:{bug}:it"\n')
    bug.write_text("def it(model):\n    return model\n")
    assert main(["accept", "--jobs", "1", "--repeat", "1", "--yes"]) == 0
    for how, code in (("swapped", 0), ("broken", 1)):
        bug.write_text(BUGS.read_text("utf-8") + f"\nit = {how}\n")
        capsys.readouterr()
        assert main(["gate", "--jobs", "1"]) == code
        out = capsys.readouterr().out
        assert "near-tie" in out, out
        assert "no near-tie" not in out, out
        assert ("model.layers.1.mlp.act_fn" in out) == (how == "broken"), out


def test_another_token_for_a_fault_is_the_fault(tied: Path, tmp_path: Path) -> None:
    result = run(tied, "broken", tmp_path)
    assert (result.verdict, result.exit_code) == ("diverged", 1)
    assert result.first_bad is not None
    assert result.first_bad.value.startswith("model.layers.1.mlp.act_fn")
    assert result.outputs["first_differing_token"] >= 0
    assert result.outputs["logits"]["kl_max"] > 1e-3


def test_the_scores_by_hand() -> None:
    a, b = np.log([[0.5, 0.25, 0.25]]), np.log([[0.25, 0.5, 0.25]]) + 3  # a constant changes nothing
    found = agreement({"prefill": Scores(0, a, a), "decode.0": Scores(0, a, b)})
    assert found["choices"] == 2
    assert found["top1"] == 0.5
    assert found["top5"] == 1
    assert math.isclose(found["kl_max"], 0.5 * math.log(2) - 0.25 * math.log(2), rel_tol=1e-12)
    assert found["kl_max_step"] == "decode.0"
    masked = np.where([[True, False, False]], -np.inf, a)
    assert agreement({"prefill": Scores(0, a, masked)})["kl_max"] == math.inf
    assert agreement({"prefill": Scores(0, masked, a)})["kl_max"] < 1


def test_a_prompt_read_as_other_tokens(tmp_path: Path) -> None:
    def prepared(*ids: int) -> Prepared:
        return causal.prepare(ModelSpec("gpt2", random_weights=1, tokens=(ids,)))

    for ids, at in (((5, 6, 8, 9), 2), ((5, 6, 7), 3)):
        answer = capture_candidate("torch:", prepared(*ids), tmp_path / "c.h5", OPTIONS)
        ours = prepared(5, 6, 7, 9)
        capture_reference(causal, ours, tmp_path / "r.h5", OPTIONS, answer.tokens)
        with open_trace(tmp_path / "r.h5") as reference, open_trace(tmp_path / "c.h5") as other:
            result = compare(reference, other, causal.executor(ours), budget=0).result
        assert result.outputs["prompt"]["first_differing"] == at
        assert (result.stage, result.exit_code) == ("tokens", 1)
        assert f"prompt     token {at} differs" in load("reports", "terminal").render(result)


def test_the_largest_are_those_of_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    for i in range(200):
        n = int(rng.integers(1, 40))
        k = int(rng.integers(1, n + 1))
        x = rng.integers(0, 9, n).astype(np.float32) if i % 2 else rng.standard_normal(n).astype(np.float32)
        if i % 3 == 0:
            x[rng.random(n) < 0.3] = rng.choice([np.nan, np.inf, -np.inf])
        assert _tops(x, k) == set(np.argsort(-x, kind="stable")[:k].tolist())
