"""Long runs: rows kept of attention, faults at rows that were and that were not, and the second pass."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstbad.comparison import Comparison
from firstbad.graph import Graph
from firstbad.probes import c, edits
from firstbad.probes.plan import Plan, save
from firstbad.run import CaptureOptions, ModelSpec
from firstbad.sampling import LEFT_OUT, SAMPLED, SUFFIX, is_long, rows_of
from firstbad.session import compare_files, diff, prepare
from firstbad.trace import open_trace

T, WINDOW, LEAST = 300, 100, 128
NOT_KEPT = 217
LAYER = "model.layers.1.self_attn"
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "max_position_embeddings": 8192,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
}
ONE_ROW = """
#include "kernels.h"
#include "runtime.h"
static void one_row(const Call *c) {
    int64_t T = c->out.dims[c->out.rank - 1], rows = c->out.count / T;
    float *y = (float *)(void *)c->out.at;
    softmax(y, (const float *)(const void *)c->in[0].at, rows, T);
    for (int64_t i = 0; i < T; i++) y[(rows - T + ROW) * T + i] *= 1.01f; /* of the last head */
}
const KernelEntry extra_kernels[] = {{"softmax:one_row", one_row, __FILE__, __LINE__}, {0, 0, 0, 0}};
"""


def spec(folder: Path, length: int = T, window: int = WINDOW) -> ModelSpec:
    from transformers import AutoConfig

    auto: Any = AutoConfig  # untyped
    auto.for_model("mistral", **SIZES, sliding_window=window).save_pretrained(folder / "model")
    ids = tuple(np.random.default_rng(0).integers(1, 97, length).tolist())
    return ModelSpec(f"causal:{folder / 'model'}", random_weights=1, tokens=(ids,))


def options(least: int | None = LEAST, **more: Any) -> CaptureOptions:
    return CaptureOptions(max_tokens=2, threads=1, sample_from=least, **more)


def planted(folder: Path, given: ModelSpec, edit: Any, wishes: CaptureOptions, budget: float = 20) -> Comparison:
    _, prepared = prepare(given)
    plan: Plan = edit(c.plan_for("", prepared, tokens=2))
    save(plan, folder / "plan.json")
    return diff(given, f"c:{folder / 'plan.json'}", folder / "out", wishes, budget=budget)


def one_row(folder: Path, row: int) -> tuple[Any, Path]:
    """A softmax that is wrong at one row of one head in prefill."""
    (folder / "one_row.c").write_text(ONE_ROW.replace("ROW", str(row)))
    return lambda plan: edits.set_kind(plan, "prefill", f"{LAYER}.softmax", "softmax:one_row"), folder / "one_row.c"


def wider(by: int, layers: tuple[int, ...] = (1,)) -> Any:
    """A mask whose window is longer in prefill: only rows past the window are wrong."""

    def edit(plan: Plan) -> Plan:
        for layer in layers:
            at = f"model.layers.{layer}.self_attn.add_2"
            plan = edits.set_attr(plan, "prefill", at, "window", by)
        return plan

    return edit


def graphs(folder: Path) -> tuple[Graph, Graph]:
    with open_trace(folder / "out/reference.h5") as ours, open_trace(folder / "out/candidate.h5") as theirs:
        return ours.graph, theirs.graph


@cache
def kept() -> frozenset[int]:
    return frozenset(rows_of(T, WINDOW))


def test_rows_are_the_ends_the_borders_and_some_between() -> None:
    rows = rows_of(4096, 1000)
    assert rows == tuple(sorted(set(rows))) == rows_of(4096, 1000)
    assert {0, 7, 4088, 4095, 63, 64, 65, 1535, 1536, 1537, 999, 1000, 1001} <= set(rows)
    assert 80 < len(rows) < 120
    assert max(b - a for a, b in pairwise(rows)) < 512
    assert rows_of(3) == (0, 1, 2)
    assert NOT_KEPT not in kept()


def test_what_grows_with_the_square_is_long() -> None:
    assert is_long((1, 4, 2048, 2048), 1024)
    assert is_long((4, 2048, 2048), 1024)
    assert not is_long((1, 2048, 49152), 1024)  # scores of a vocabulary
    assert not is_long((1, 4, 2048, 64), 1024)
    assert not is_long((1, 4, 1, 2048), 1024)


def test_a_healthy_long_run_matches_and_holds_the_rows(tmp_path: Path) -> None:
    given = spec(tmp_path)
    result = diff(given, "c", tmp_path / "out", options(), budget=0).result
    assert result.verdict == "match"
    judged = {
        name for step, name in zip(result.values["step"], result.values["name"], strict=True) if step == "prefill"
    }
    parts = ("matmul", "mul_4", "add_2", "softmax")
    assert {f"{LAYER}.{part}{SUFFIX}" for part in parts} <= judged
    assert f"{LAYER}.matmul_1" in judged
    assert not result.coverage.only_candidate
    with open_trace(tmp_path / "out/reference.h5") as ours, open_trace(tmp_path / "out/candidate.h5") as theirs:
        for trace in (ours, theirs):
            numbers = [v for v in trace.graph.values if is_long(v.shape, LEAST) and v.kind == "value"]
            assert numbers
            assert {v.reason for v in numbers} <= {SAMPLED, LEFT_OUT}
            rows = trace.graph.by_key["prefill", f"{LAYER}.softmax{SUFFIX}"]
            assert rows.shape == (1, 2, len(kept()), T)
        index = ours.array(ours.graph.by_key["prefill", f"rows.{T}"])
        assert tuple(index.tolist()) == rows_of(T, WINDOW)
        sampled = theirs.array(theirs.graph.by_key["prefill", f"{LAYER}.softmax{SUFFIX}"])
    assert compare_files(
        tmp_path / "out/reference.h5", tmp_path / "out/candidate.h5", None, budget=0
    ).result.verdict == ("match")
    diff(given, "c", tmp_path / "whole", options(0), budget=0)
    with open_trace(tmp_path / "whole/candidate.h5") as trace:
        whole = trace.array(trace.graph.by_key["prefill", f"{LAYER}.softmax"])
    np.testing.assert_array_equal(sampled, whole[:, :, list(rows_of(T, WINDOW))])


def test_a_window_one_too_long_is_named_at_its_first_row(tmp_path: Path) -> None:
    result = planted(tmp_path, spec(tmp_path), wider(WINDOW + 1), options()).result
    (fault,) = result.faults
    assert (fault.value, fault.step, fault.cause.kind) == (f"{LAYER}.add_2", "prefill", "mask")
    assert f"window of {WINDOW + 1}" in fault.cause.statement
    assert fault.worst is not None
    assert fault.worst.index[-2:] == (WINDOW, 0)
    ours, theirs = graphs(tmp_path)  # of the layer before rows are enough
    for graph in (ours, theirs):
        assert graph.by_key["prefill", f"{LAYER}.softmax"].dataset
        assert graph.by_key["prefill", "model.layers.0.self_attn.softmax"].reason == SAMPLED


def test_a_fault_at_a_row_that_was_not_kept_is_found_and_the_row_named(tmp_path: Path) -> None:
    edit, kernel = one_row(tmp_path, NOT_KEPT)
    result = planted(tmp_path, spec(tmp_path), edit, options(kernels=(kernel,))).result
    (fault,) = result.faults
    assert (fault.value, fault.step) == (f"{LAYER}.softmax", "prefill")
    assert fault.worst is not None
    assert fault.worst.index[1:3] == (1, NOT_KEPT)
    assert fault.where.startswith(f"row {NOT_KEPT}")


def test_rows_that_are_wrong_do_not_blame_what_reads_the_whole(tmp_path: Path) -> None:
    """From files alone there is no second pass: the rows are named, and not once more what is made of them."""
    given, wishes = spec(tmp_path), options()
    _, prepared = prepare(given)
    save(wider(WINDOW + 1)(c.plan_for("", prepared, tokens=2)), tmp_path / "plan.json")
    from firstbad.session import capture_candidate, capture_reference, room_of

    paths = tmp_path / "reference.h5", tmp_path / "candidate.h5"
    answer = capture_candidate(f"c:{tmp_path / 'plan.json'}", prepared, paths[1], wishes)
    capture_reference(room_of(given.model), prepared, paths[0], wishes, answer.tokens, paths[1])
    result = compare_files(*paths, None, budget=0).result
    assert [fault.value for fault in result.faults] == [f"{LAYER}.add_2{SUFFIX}"]
    worst = result.faults[0].worst
    assert worst is not None
    assert rows_of(T, WINDOW)[worst.index[-2]] == WINDOW


def test_other_verbs_keep_everything() -> None:
    assert CaptureOptions().sample_from == 0


@pytest.mark.slow
def test_4096_tokens(tmp_path: Path) -> None:
    """By default; a healthy run, and a window one too long which acts in the last quarter alone."""
    length, window = 4096, 3000
    given = spec(tmp_path, length, window)
    assert diff(given, "c", tmp_path / "out", options(None), budget=0).result.verdict == "match"
    size = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.h5"))
    assert size < 150e6  # 4 values of 2 layers with 2 heads would be 1.1 GB a side, in the second pass half of it is
    result = planted(tmp_path, given, wider(window + 1), replace(options(None), timeout=600), budget=60).result
    (fault,) = result.faults
    assert (fault.value, fault.cause.kind) == (f"{LAYER}.add_2", "mask")
    assert fault.worst is not None
    assert fault.worst.index[-2:] == (window, 0)
