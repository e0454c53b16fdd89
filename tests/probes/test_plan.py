"""Plans: written and read back, lifetimes that never meet, and hostile files refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstbad.errors import UsageError
from firstbad.probes import edits
from firstbad.probes.kinds import KINDS, LANGUAGE
from firstbad.probes.lifetimes import lifetimes
from firstbad.probes.plan import dumps, save
from firstbad.probes.plan_check import check, load
from firstbad.probes.planner import plan as planned

TINY = {
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "vocab_size": 51864,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}


def test_the_plan_of_tiny_en_has_all_ops_and_weights() -> None:
    plan = planned(TINY)
    assert {name: len(step.ops) for name, step in plan.steps.items()} == {"encode": 67, "prefill": 111, "decode": 99}
    assert len(plan.weights) == 167  # every parameter of the model, the tied projection once
    check(plan, "tiny")


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = planned(TINY, 100)
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan
    assert dumps(load(tmp_path / "plan.json")) == (tmp_path / "plan.json").read_text()


def test_tensors_alive_at_one_time_never_share_a_byte() -> None:
    for context in (1, 7, 1500):
        plan = planned(TINY, context)
        for step in plan.steps.values():
            lives = lifetimes(step)
            spans = [
                (t.offset, t.offset + t.bytes(step.limits), *lives[t.name]) for t in step.tensors.values() if not t.kept
            ]
            for a, b in combinations(spans, 2):
                together = a[2] <= b[3] and b[2] <= a[3]
                assert not (together and a[0] < b[1] and b[0] < a[1])


def test_sharing_saves_memory() -> None:
    shared, spread = planned(TINY), planned(TINY, reuse=False)
    assert sum(shared.buffers.values()) < 0.3 * sum(spread.buffers.values())
    live = 2 * 4 * 6 * 1500 * 1500  # scores and probabilities of one layer
    assert shared.buffers["arena"] < 1.1 * live


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"d_model": 385}, "equal heads that divide the width"),
        ({"d_model": "wide"}, "no usable `d_model`"),
        ({"activation_function": "relu"}, "gelu activation"),
        ({"encoder_layers": 0}, "no usable `encoder_layers`"),
    ],
)
def test_a_config_that_the_engine_does_not_know_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        planned({**TINY, **change})
    with pytest.raises(UsageError, match="audio context 1501 is not in 1 to 1500"):
        planned(TINY, 1501)


def test_a_rewired_plan_is_still_a_plan() -> None:
    plan = planned(TINY, 50)
    op, stream = "model.encoder.layers.1.self_attn.v_proj", "model.encoder.layers.0.add_1"
    for anew in (True, False):
        edited = edits.rewire(plan, "encode", op, "x", stream, planned_anew=anew)
        check(edited, "edited")
        changed = [o for o, was in zip(edited.steps["encode"].ops, plan.steps["encode"].ops, strict=True) if o != was]
        assert [(o.name, o.inputs) for o in changed] == [(op, {"x": stream})]
        assert edited.steps["prefill"].ops == plan.steps["prefill"].ops
    assert edits.replan(plan) == plan


def test_an_edit_names_what_it_does_not_find() -> None:
    plan = planned(TINY, 50)
    with pytest.raises(UsageError, match=r"no op `model.encoder.conv` in encode: did you mean `model.encoder.conv2`\?"):
        edits.set_attr(plan, "encode", "model.encoder.conv", "stride", 2)
    with pytest.raises(UsageError, match="has no input `y`: it has x"):
        edits.rewire(plan, "encode", "model.encoder.conv2", "y", "model.encoder.gelu")
    with pytest.raises(UsageError, match=r"no tensor `model.encoder.gelo` in encode: did you mean"):
        edits.rewire(plan, "encode", "model.encoder.conv2", "x", "model.encoder.gelo")
    with pytest.raises(UsageError, match=r"no step `decode.0` in the plan"):
        edits.set_kind(plan, "decode.0", "proj_out", "naive_linear")


Edit = Callable[[dict[str, Any]], Any]


def step_of(data: dict[str, Any], name: str = "encode") -> dict[str, Any]:
    step: dict[str, Any] = data["steps"][name]
    return step


HOSTILE: list[tuple[str, Edit, str]] = [
    ("format", lambda d: d.update(format="gguf"), "`format` in the plan"),
    ("version", lambda d: d.update(version=2), "`version` in the plan .* is not 1"),
    ("heads", lambda d: d.update(heads=0), "`heads` in the plan"),
    ("no heads", lambda d: d.pop("heads"), "`heads`"),
    ("a bool for a number", lambda d: d.update(positions=True), "`positions`"),
    ("no steps", lambda d: d.pop("steps"), "`steps`"),
    ("a step less", lambda d: d["steps"].pop("decode"), "`steps`"),
    ("buffers a list", lambda d: d.update(buffers=[1]), "`buffers`"),
    ("a buffer too small", lambda d: d["buffers"].update(arena=64), "ends at byte"),
    ("a buffer too large", lambda d: d["buffers"].update(arena=1 << 40), "buffer `arena`"),
    ("buffers too large together", lambda d: d["buffers"].update(a=1 << 36, b=1 << 36), "64 GiB are the most"),
    ("a name with a blank", lambda d: step_of(d)["ops"][0].update(name="a b"), "the name of op 0"),
    ("a name with a line", lambda d: d["buffers"].update({"x\ny": 5}), "a buffer"),
    ("an unknown kind", lambda d: step_of(d)["ops"][0].update(kind="conv2d"), "did you mean `conv1d`"),
    ("a naive kind that is none", lambda d: step_of(d)["ops"][1].update(kind="naive_gelu"), "which the engine has not"),
    ("an unknown port", lambda d: step_of(d)["ops"][0].update(inputs={"z": "input_features"}), "conv1d takes x"),
    ("a port less", lambda d: step_of(d)["ops"][5]["inputs"].pop("a"), "add_permuted takes a, b"),
    ("an unknown tensor", lambda d: step_of(d)["ops"][0]["inputs"].update(x="input_feature"), "did you mean"),
    ("a tensor of a later step", lambda d: step_of(d)["ops"][0]["inputs"].update(x="proj_out"), "is no tensor"),
    ("a weight less", lambda d: step_of(d)["ops"][0].update(weights={}), "conv1d takes weight, bias"),
    ("an unknown weight", lambda d: step_of(d)["ops"][0]["weights"].update(bias="no.bias"), "which the plan lacks"),
    ("a weight of another shape", lambda d: d["weights"].update({"model.encoder.conv1.bias": [3]}), "sizes do not fit"),
    ("an input of another size", lambda d: step_of(d)["ops"][2]["inputs"].update(x="input_features"), "do not fit"),
    ("a negative offset", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(offset=-4), "`offset`"),
    ("an odd offset", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(offset=2), "not a multiple of 4"),
    ("an offset outside", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(offset=1 << 30), "ends at byte"),
    ("no such buffer", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(buffer="aren"), "did you mean"),
    ("a shape of none", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(shape=[]), "`shape`"),
    ("a shape of 0", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(shape=[1, 0]), "`shape`"),
    ("a huge shape", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(shape=[1 << 32] * 4), "ends at"),
    ("a symbol that is none", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(shape=["k"]), "`shape`"),
    ("an order that is none", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(order=[0, 0, 1]), "`order`"),
    ("half precision", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(dtype="float16"), "`dtype`"),
    ("ids as floats", lambda d: step_of(d, "decode")["ops"][0]["inputs"].update(ids="proj_out"), "int64 is needed"),
    (
        "a kernel's output as ids",
        lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(dtype="int64"),
        "cannot make",
    ),
    ("a fraction", lambda d: step_of(d)["tensors"]["model.encoder.gelu"].update(offset=0.5), "`offset`"),
    ("an attribute of text", lambda d: step_of(d)["ops"][0].update(attrs={"stride": "2"}), "`stride`"),
    ("a stride of 0", lambda d: step_of(d)["ops"][0].update(attrs={"stride": 0}), "sizes do not fit"),
    ("a huge attribute", lambda d: step_of(d)["ops"][0].update(attrs={"stride": 1e300}), "`stride`"),
    ("an attribute with a blank", lambda d: step_of(d)["ops"][0].update(attrs={"s t": 1}), "`s t`"),
    ("ops a number", lambda d: step_of(d).update(ops=5), "`ops` of encode"),
    ("an op that is none", lambda d: step_of(d).update(ops=[7]), "op 0 of encode"),
    ("an op without a tensor", lambda d: step_of(d)["tensors"].pop("model.encoder.conv1"), "the name of a tensor"),
    ("no result", lambda d: step_of(d).update(result="nothing"), "`result` of encode"),
    ("a result of floats", lambda d: step_of(d, "decode").update(result="proj_out"), "`result` of decode"),
    (
        "a prompt of one",
        lambda d: step_of(d, "prefill")["tensors"]["decoder_input_ids"].update(shape=[1]),
        "of prefill",
    ),
    ("a cache without rows", lambda d: step_of(d)["tensors"]["model.encoder.add"].update(rows=1), "`rows`"),
    ("limits of 0", lambda d: step_of(d, "decode").update(limits={"t": 1, "n": 0}), "`n` of `limits`"),
    ("limits beyond the caches", lambda d: step_of(d, "decode").update(limits={"t": 1, "n": 9999}), "ends at byte"),
]


@pytest.mark.parametrize(("edit", "says"), [(e, s) for _, e, s in HOSTILE], ids=[name for name, _, _ in HOSTILE])
def test_a_hostile_plan_is_refused_in_one_line(edit: Edit, says: str, tmp_path: Path) -> None:
    data = json.loads(dumps(planned(TINY, 20)))
    edit(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=says) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"plan"', "\x00", "[" * 100_000, '{"format": NaN}', "\ud800x", "{}"]
)
def test_a_file_that_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError, match=r"plan\.json"):
        load(path)


def test_only_kinds_in_the_table_are_planned() -> None:
    kinds = {op.kind for step in planned(TINY).steps.values() for op in step.ops}
    assert kinds == set(KINDS) - LANGUAGE


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["t", "model.encoder.add"]),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_one_change_of_a_file_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No exception but UsageError, whatever one place of the file holds."""
    small = {**TINY, "d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 30}
    tree = json.loads(dumps(planned(small, 5)))
    node: Any = tree
    while True:
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.integers(0, 9)) == 0:
            break
        node = node[key]
    node[key] = data.draw(st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(), SCALARS)))
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(tree))
    try:
        check(load(path), "again")
    except UsageError as error:
        assert "\n" not in str(error)


def test_wired_to_a_cache_a_plain_port_sees_the_new_rows_only() -> None:
    plan = planned(TINY, 20)
    edited = edits.rewire(
        plan, "decode", "model.decoder.layers.0.encoder_attn.q_proj", "x", "model.decoder.layers.0.self_attn.k_proj"
    )
    check(edited, "edited")
    tensors = dict(plan.steps["decode"].tensors)
    tensors["proj_out"] = replace(tensors["proj_out"], offset=plan.buffers["arena"])
    with pytest.raises(UsageError, match="ends at byte"):
        check(plan.with_step(replace(plan.steps["decode"], tensors=tensors)), "edited")
