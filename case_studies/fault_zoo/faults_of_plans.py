"""Faults of wires, buffers and weights: an edited plan or weight file, every kernel right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from entries import BOTH, DEC, ENC, Fault, cause, fault, kernel, layer, short, shows, steps_of, weight, wire

# ---- wires: M01, M06, M11, M19, M34 ----


def wires() -> Iterator[Fault]:
    def one(
        name: str, port: str, tensor: str, operator: str = "M01", class_: str = "BA", tag: str = "", **more: Any
    ) -> Fault:
        steps = more.pop("steps", ())
        id_ = f"wire.{short(name)}.{port}.{short(tensor)}{tag}"
        said = cause("wrong_input", tensor)
        return fault(
            id_, class_, operator, wire(name, port, tensor, steps), shows(name, said, *more.pop("or_", ())), **more
        )

    for i in (0, 1):
        stream = f"{ENC}.add" if i == 0 else layer(ENC, 0, "add_1")
        for part in ("q_proj", "k_proj", "v_proj"):
            yield one(layer(ENC, i, f"self_attn.{part}"), "x", stream)
        attn = layer(ENC, i, "self_attn")
        yield one(f"{attn}.matmul", "k", f"{attn}.mul")
        yield one(f"{attn}.matmul_1", "v", f"{attn}.k_proj", "M11")
        yield one(
            f"{attn}.matmul",
            "q",
            f"{attn}.q_proj",
            or_=[cause("missing_op", "mul"), cause("wrong_constant", ["K", 0.5])],
        )
        yield one(f"{attn}.out_proj", "x", f"{attn}.v_proj")
        yield one(layer(ENC, i, "fc1"), "x", layer(ENC, i, "add"))
        yield one(layer(ENC, i, "final_layer_norm"), "x", stream)
        yield one(layer(ENC, i, "add"), "a", layer(ENC, i, "self_attn_layer_norm"), "M06")
        yield one(layer(ENC, i, "add_1"), "b", layer(ENC, i, "final_layer_norm"))
    yield one(
        layer(ENC, 1, "self_attn.matmul_1"),
        "p",
        layer(ENC, 1, "self_attn.matmul"),
        or_=[cause("missing_op", "softmax")],
    )
    yield one(layer(ENC, 1, "fc2"), "x", layer(ENC, 1, "fc1"), or_=[cause("missing_op", "gelu")])
    yield one(f"{ENC}.conv2", "x", f"{ENC}.conv1", or_=[cause("missing_op", "gelu")])
    yield one(f"{ENC}.layer_norm", "x", layer(ENC, 0, "add_1"), "M01")
    yield one(f"{ENC}.add", "a", f"{ENC}.conv2", or_=[cause("missing_op", "gelu")])
    for i in (0, 1):
        stream = f"{DEC}.add" if i == 0 else layer(DEC, 0, "add_2")
        for part in ("q_proj", "k_proj", "v_proj"):
            yield one(layer(DEC, i, f"self_attn.{part}"), "x", stream)
        yield one(layer(DEC, i, "encoder_attn.q_proj"), "x", layer(DEC, i, "add"))
        cross = layer(DEC, i, "encoder_attn")
        yield one(f"{cross}.matmul", "k", f"{cross}.v_proj", "M11", "ST")
        yield one(f"{cross}.matmul_1", "v", f"{cross}.k_proj", "M11", "ST")
        yield one(layer(DEC, i, "fc1"), "x", layer(DEC, i, "add_1"))
        yield one(layer(DEC, i, "add_1"), "a", layer(DEC, i, "self_attn_layer_norm"), "M06")
        yield one(layer(DEC, i, "add_2"), "a", layer(DEC, i, "add"), "M06")
        yield one(layer(DEC, i, "self_attn.matmul_1"), "v", layer(DEC, i, "self_attn.k_proj"), "M11", "ST")
    for part, port, what in (("matmul", "k", "k_proj"), ("matmul_1", "v", "v_proj")):
        for attn, class_ in (("self_attn", "ST"), ("encoder_attn", "ST")):
            yield one(layer(DEC, 1, f"{attn}.{part}"), port, layer(DEC, 0, f"{attn}.{what}"), "M19", class_)
    both = [cause("wrong_input", f"{layer(DEC, 1, 'encoder_attn')}.v_proj")]
    swapped = layer(DEC, 1, "encoder_attn")
    yield fault(
        "wire.d.1.encoder_attn.k_and_v",
        "ST",
        "M11",
        [*wire(f"{swapped}.matmul", "k", f"{swapped}.v_proj"), *wire(f"{swapped}.matmul_1", "v", f"{swapped}.k_proj")],
        shows(f"{swapped}.matmul", *both),
        shows(f"{swapped}.matmul_1", cause("wrong_input", f"{swapped}.k_proj")),
    )
    yield one("proj_out", "x", layer(DEC, 1, "add_2"), "M34", or_=[cause("missing_op", "layer_norm")])
    yield one(f"{DEC}.layer_norm", "x", layer(DEC, 1, "add_1"), "M01")
    for name, port, tensor in (
        (layer(DEC, 0, "self_attn.v_proj"), "x", f"{DEC}.add"),
        (layer(DEC, 1, "fc2"), "x", layer(DEC, 1, "fc1")),
        (layer(DEC, 1, "add"), "b", layer(DEC, 1, "self_attn.q_proj")),
        (layer(DEC, 0, "encoder_attn.out_proj"), "x", layer(DEC, 0, "encoder_attn.q_proj")),
    ):
        yield one(name, port, tensor, tag=".decode", steps=("decode",), or_=[cause("missing_op", "gelu")])


# ---- buffers: M02 to M05, M17, M18 ----


def buffers() -> Iterator[Fault]:
    e1, d1 = layer(ENC, 1, ""), layer(DEC, 1, "")

    def clobber(name: str, onto: str, reader: str, step: str, tag: str = "", operator: str = "M02") -> Fault:
        edits = [["spread"], ["move", step, name, onto]]
        if name.endswith("layer_norm"):  # a kernel that can work in place, so that only what comes later is wrong
            edits += kernel(name, "layer_norm:in_double", (step,))
        return fault(
            f"clobber.{short(name)}.on.{short(onto)}{tag}",
            "BA",
            operator,
            edits,
            shows(reader, cause("clobbered", name)),
        )

    yield clobber(f"{e1}self_attn.v_proj", f"{e1}self_attn.mul", f"{e1}self_attn.matmul", "encode")
    yield clobber(f"{e1}self_attn.softmax", f"{e1}self_attn.v_proj", f"{e1}self_attn.matmul_1", "encode")
    yield clobber(f"{e1}self_attn.out_proj", layer(ENC, 0, "add_1"), f"{e1}add", "encode")
    yield clobber(f"{e1}fc2", f"{e1}add", f"{e1}add_1", "encode")
    yield clobber(f"{ENC}.embed_positions", f"{ENC}.gelu_1", f"{ENC}.add", "encode")
    yield clobber(f"{e1}final_layer_norm", f"{e1}add", f"{e1}add_1", "encode", operator="M04")
    for step in BOTH:
        tag = f".{step}"
        yield clobber(f"{d1}encoder_attn.matmul", f"{d1}add", f"{d1}add_1", step, tag)
        yield clobber(f"{d1}fc2", f"{d1}add_1", f"{d1}add_2", step, tag)
        yield clobber(f"{d1}self_attn_layer_norm", layer(DEC, 0, "add_2"), f"{d1}add", step, tag, "M04")
    # the output on the op's own input: what a kernel of several passes makes of it is not told from outside
    for name, onto in ((f"{e1}fc2", f"{e1}activation_fn.gelu"), (f"{e1}self_attn.out_proj", f"{e1}self_attn.matmul_1")):
        edits = [["spread"], ["move", "encode", name, onto]]
        some = cause("clobbered stale partial_write order")
        yield fault(f"in_place.{short(name)}", "BA", "M05", edits, shows(name, some))
    # read where the place already belongs to something else, or before it is made
    for name, port, dead, step in (
        (f"{e1}fc1", "x", layer(ENC, 0, "self_attn.v_proj"), "encode"),
        (f"{e1}add_1", "a", layer(ENC, 0, "self_attn.v_proj"), "encode"),
        (f"{e1}self_attn.matmul", "q", f"{ENC}.add", "encode"),
        (f"{d1}add_2", "a", layer(DEC, 0, "self_attn.out_proj"), "decode"),
        (f"{d1}add_1", "b", f"{d1}self_attn_layer_norm", "prefill"),
        (f"{d1}final_layer_norm", "x", layer(DEC, 0, "self_attn.q_proj"), "prefill"),
    ):
        # by then another op's output lies there: naming either the dead value or what it had become is right
        said = [cause("stale clobbered wrong_input", dead), cause("wrong_input stale", "$there")]
        yield fault(
            f"dead.{short(name)}.{step}",
            "BA",
            "M03",
            wire(name, port, dead, (step,), anew=False),
            shows(name, *said),
            there=[step, name, port],
        )
    for name, port, later in (
        (layer(DEC, 0, "fc1"), "x", f"{d1}final_layer_norm"),
        (layer(DEC, 0, "self_attn.q_proj"), "x", f"{d1}self_attn_layer_norm"),
        (layer(DEC, 0, "add_1"), "b", f"{d1}encoder_attn.out_proj"),
    ):
        said = cause("wrong_input stale", later)
        yield fault(f"late.{short(name)}.decode", "ST", "M18", wire(name, port, later, ("decode",)), shows(name, said))
    for i, part, reader in ((0, "k_proj", "matmul"), (1, "v_proj", "matmul_1"), (1, "k_proj", "matmul")):
        name, at = layer(DEC, i, f"self_attn.{part}"), layer(DEC, i, f"self_attn.{reader}")
        said = cause("position stale partial_write wrong_input order clobbered")
        yield fault(f"cache.{short(name)}.late", "ST", "M17", [["cache", name, 1]], shows(at, said))
    for i, what in ((0, "scores"), (1, "mix"), (1, "scores")):
        at = layer(DEC, i, "self_attn.matmul" if what == "scores" else "self_attn.matmul_1")
        said = cause("mask partial_write position stale")
        yield fault(
            f"cache.{short(at)}.one_less",
            "ST",
            "M17",
            kernel(at, f"attention_{what}:one_less", ("decode",)),
            shows(at, said),
        )
    for i, name, step in (
        (0, "self_attn.q_proj", "encode"),
        (1, "fc2", "encode"),
        (1, "encoder_attn.q_proj", "decode"),
    ):
        at = layer(ENC if step == "encode" else DEC, i, name)
        said = cause("stale missing_op partial_write")
        yield fault(f"nothing.{short(at)}.{step}", "PU", "M02", kernel(at, "linear:nothing", (step,)), shows(at, said))
    for step, op, victim, reader in (
        ("encode", f"{e1}self_attn.k_proj", f"{e1}self_attn.mul", f"{e1}self_attn.matmul"),
        ("prefill", f"{d1}encoder_attn.q_proj", f"{d1}add", f"{d1}add_1"),
    ):
        yield fault(
            f"spill.{step}", "BA", "M02", [["spill", step, op, victim]], shows(reader, cause("clobbered stale"))
        )


# ---- weights and biases: M07, M08, M09, M13, M29, M39 ----


def weights() -> Iterator[Fault]:
    def other(name: str, port: str, read: str) -> Fault:
        return fault(
            f"weight.{short(name)}.{port}.{short(read)}",
            "WL",
            "M08",
            weight(name, port, read),
            shows(name, cause("wrong_weight", read)),
        )

    for stack in (ENC, DEC):
        for part in ("q_proj", "v_proj", "out_proj"):
            yield other(layer(stack, 1, f"self_attn.{part}"), "weight", layer(stack, 0, f"self_attn.{part}.weight"))
        yield other(layer(stack, 0, "fc1"), "weight", layer(stack, 1, "fc1.weight"))
        yield other(layer(stack, 1, "self_attn.q_proj"), "weight", layer(stack, 1, "self_attn.k_proj.weight"))
        yield other(layer(stack, 1, "self_attn_layer_norm"), "weight", layer(stack, 1, "final_layer_norm.weight"))
        yield other(layer(stack, 0, "final_layer_norm"), "weight", layer(stack, 1, "final_layer_norm.weight"))
        yield other(layer(stack, 0, "fc2"), "bias", layer(stack, 1, "fc2.bias"))
        yield other(layer(stack, 1, "self_attn.v_proj"), "bias", layer(stack, 1, "self_attn.q_proj.bias"))
        yield other(layer(stack, 0, "final_layer_norm"), "bias", layer(stack, 0, "self_attn_layer_norm.bias"))
    yield other(layer(DEC, 1, "encoder_attn.k_proj"), "weight", layer(DEC, 0, "encoder_attn.k_proj.weight"))
    yield other(layer(DEC, 1, "encoder_attn.v_proj"), "bias", layer(DEC, 1, "self_attn.v_proj.bias"))
    yield other(f"{ENC}.conv2", "bias", f"{ENC}.conv1.bias")
    for name in (
        layer(ENC, 0, "self_attn.q_proj"),
        layer(ENC, 1, "self_attn.v_proj"),
        layer(ENC, 1, "fc1"),
        layer(DEC, 0, "self_attn.out_proj"),
        layer(DEC, 1, "fc2"),
        layer(DEC, 0, "encoder_attn.v_proj"),
    ):
        steps = ("prefill",) if name.endswith("encoder_attn.v_proj") else steps_of(name)
        yield fault(
            f"bias.none.{short(name)}",
            "BI",
            "M07",
            [["no_bias", step, name] for step in steps],
            shows(name, cause("missing_bias", f"{name}.bias")),
        )
    for name in (layer(ENC, 1, "self_attn.out_proj"), layer(DEC, 1, "fc1")):
        yield fault(
            f"bias.twice.{short(name)}",
            "BI",
            "M07",
            kernel(name, "linear:bias_twice"),
            shows(name, cause("extra_op", "bias")),
        )
    for name in (layer(ENC, 0, "fc2"), layer(DEC, 0, "self_attn.q_proj")):
        yield fault(
            f"bias.minus.{short(name)}",
            "BI",
            "M07",
            kernel(name, "linear:bias_minus"),
            shows(name, cause("wrong_variant", "subtracted")),
        )
    yield fault(
        "bias.none.conv1",
        "BI",
        "M07",
        kernel(f"{ENC}.conv1", "conv1d:no_bias"),
        shows(f"{ENC}.conv1", cause("missing_bias")),
    )
    for name in (
        layer(ENC, 0, "self_attn.out_proj"),
        layer(DEC, 1, "self_attn.v_proj"),
        layer(ENC, 1, "self_attn.k_proj"),
    ):
        yield fault(
            f"transposed.{short(name)}",
            "WL",
            "M09",
            kernel(name, "linear:transposed"),
            shows(name, cause("wrong_weight layout", "transposed"), cause("wrong_weight", True)),
        )
    file = (
        ("heads", layer(ENC, 0, "self_attn.v_proj"), "M10", cause("heads layout wrong_weight")),
        ("heads", layer(DEC, 1, "self_attn.q_proj"), "M10", cause("heads layout wrong_weight")),
        ("int8", layer(ENC, 1, "fc1"), "M39", cause("precision wrong_weight", "int8")),
        ("bf16", layer(ENC, 1, "self_attn.out_proj"), "M40", cause("precision wrong_weight", "bfloat16")),
        ("fp16", layer(DEC, 0, "fc2"), "M40", cause("precision wrong_weight", "float16")),
        ("zero_block", layer(ENC, 0, "fc2"), "M39", cause("wrong_weight partial_write")),
        ("scale_group", layer(DEC, 1, "fc1"), "M39", cause("wrong_weight wrong_constant")),
        ("gain_less_one", layer(ENC, 1, "final_layer_norm"), "M29", cause("wrong_variant wrong_weight")),
        ("reversed", layer(DEC, 1, "encoder_attn.out_proj"), "M10", cause("layout wrong_weight")),
    )
    for how, name, operator, said in file:
        yield fault(
            f"file.{how}.{short(name)}",
            "QZ" if operator == "M39" else "WL",
            operator,
            [["file", f"{name}.weight", how]],
            shows(name, said),
        )
