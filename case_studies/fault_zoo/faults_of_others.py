"""Faults in pairs, faults written after the explainer, faults of a PyTorch module; and the clean runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from entries import DEC, ENC, Edit, Fault, also, attr, cause, fault, kernel, layer, short, shows, weight, wire

# ---- two at once ----


def pairs(singles: Sequence[Fault]) -> Iterator[Fault]:
    known = {f["id"]: f for f in singles}

    def both(a: str, b: str, group: str) -> Fault:
        one, two = known[a], known[b]
        found = [*one["shows"], *two["shows"]]
        return fault(
            f"pair.{a}+{b}",
            f"{one['class']}+{two['class']}",
            f"{one['operator']}+{two['operator']}",
            [*one["edits"], *two["edits"]],
            *found,
            group=group,
        )

    far = (
        ("wire.e.0.self_attn.v_proj.x.e.add", "gelu.tanh.d.1.activation_fn.gelu"),
        ("norm.eps_0.001.e.0.self_attn_layer_norm", "wire.e.1.fc1.x.e.1.add"),
        ("bias.none.e.0.self_attn.q_proj", "bias.none.d.1.fc2"),
        ("gain.1.001.e.0.self_attn.v_proj", "residual.first_only.e.1.add"),
        ("dead_column.e.0.self_attn.out_proj", "tail.rows.e.1.self_attn.q_proj"),
        ("gelu.tanh.e.gelu_1", "softmax.warm.e.1.self_attn"),
        ("weight.e.1.self_attn.q_proj.weight.e.0.self_attn.q_proj.weight", "mask.strict.d.0.self_attn"),
        ("precision.bf16_sum.e.0.fc1", "heads.swapped.e.1.self_attn.out_proj"),
        ("conv.flipped.e.conv1", "norm.no_shift.e.1.self_attn_layer_norm"),
        ("scale.none.e.0.self_attn.mul", "scale.none.d.1.self_attn.mul"),
        ("places.one_late.d", "tail.columns.d.1.fc1"),
        ("wire.d.0.self_attn.k_proj.x.d.add", "wire.d.1.self_attn.q_proj.x.d.0.add_2"),
        ("last_row.e.0.fc2", "norm.rms.d.1.final_layer_norm"),
        ("residual.scaled.e.1.add", "gain.1.01.d.1.self_attn.q_proj"),
        ("cache.d.0.self_attn.k_proj.late", "wire.d.1.fc1.x.d.1.add_1"),
        ("clobber.e.1.fc2.on.e.1.add", "bias.twice.d.1.fc1"),
        ("norm.unbiased.e.1.final_layer_norm", "norm.unbiased.d.0.self_attn_layer_norm"),
        ("gelu.quick.e.0.activation_fn.gelu", "gelu.silu.d.1.activation_fn.gelu"),
    )
    for a, b in far:
        yield both(a, b, "pair-layers")
    near = (
        ("wire.e.1.self_attn.v_proj.x.e.0.add_1", "wire.e.1.self_attn.k_proj.x.e.0.add_1"),
        ("bias.none.e.0.self_attn.q_proj", "scale.none.e.0.self_attn.mul"),
        ("norm.no_shift.e.1.self_attn_layer_norm", "wire.e.1.self_attn.q_proj.x.e.0.add_1"),
        ("bias.none.e.1.fc1", "wire.e.1.fc2.x.e.1.fc1"),
        ("heads.swapped.d.1.self_attn.q_proj", "scale.none.d.1.self_attn.mul"),
        ("gelu.tanh.e.0.activation_fn.gelu", "dead_column.e.0.self_attn.out_proj"),
        ("residual.scaled.e.1.add", "norm.eps_0.001.e.1.final_layer_norm"),
        ("tail.terms.e.1.fc2", "residual.second_twice.e.1.add_1"),
    )
    for a, b in near:
        yield both(a, b, "pair-region")
    e1, d1 = layer(ENC, 1, ""), layer(DEC, 1, "")
    same = (
        (
            "wire+bias",
            f"{e1}self_attn.v_proj",
            [
                *wire(f"{e1}self_attn.v_proj", "x", layer(ENC, 0, "add_1")),
                ["no_bias", "encode", f"{e1}self_attn.v_proj"],
            ],
            cause("wrong_input", layer(ENC, 0, "add_1")),
            cause("missing_bias"),
        ),
        (
            "weight+bias",
            f"{e1}fc1",
            [*weight(f"{e1}fc1", "weight", layer(ENC, 0, "fc1.weight")), ["no_bias", "encode", f"{e1}fc1"]],
            cause("wrong_weight", layer(ENC, 0, "fc1.weight")),
            cause("missing_bias"),
        ),
        (
            "eps+gain",
            f"{d1}final_layer_norm",
            [*attr(f"{d1}final_layer_norm", "eps", 1e-2), *kernel(f"{d1}final_layer_norm", "layer_norm:no_shift")],
            cause("wrong_constant", 1e-2),
            cause("missing_bias"),
        ),
        (
            "wire+column",
            f"{e1}self_attn.q_proj",
            [
                *wire(f"{e1}self_attn.q_proj", "x", layer(ENC, 0, "add_1")),
                *kernel(f"{e1}self_attn.q_proj", "linear:dead_column", column=9),
            ],
            cause("wrong_input", layer(ENC, 0, "add_1")),
            cause("partial_write", "9"),
        ),
        (
            "weight+gain",
            f"{d1}self_attn.q_proj",
            [
                *weight(f"{d1}self_attn.q_proj", "weight", layer(DEC, 0, "self_attn.q_proj.weight")),
                *kernel(f"{d1}self_attn.q_proj", "linear:gain", head=1, gain=1.01),
            ],
            cause("wrong_weight", layer(DEC, 0, "self_attn.q_proj.weight")),
            cause("wrong_constant", 1.01),
        ),
        (
            "wire+transposed",
            f"{e1}self_attn.out_proj",
            [
                *wire(f"{e1}self_attn.out_proj", "x", f"{e1}self_attn.v_proj"),
                *kernel(f"{e1}self_attn.out_proj", "linear:transposed"),
            ],
            cause("wrong_input", f"{e1}self_attn.v_proj"),
            cause("wrong_weight layout"),
        ),
        (
            "wire+bias_twice",
            f"{d1}fc1",
            [*wire(f"{d1}fc1", "x", f"{d1}add_1"), *kernel(f"{d1}fc1", "linear:bias_twice")],
            cause("wrong_input", f"{d1}add_1"),
            cause("extra_op", "bias"),
        ),
        (
            "wire+fp16",
            f"{e1}fc1",
            [*wire(f"{e1}fc1", "x", f"{e1}add"), *kernel(f"{e1}fc1", "linear:fp16_out")],
            cause("wrong_input", f"{e1}add"),
            cause("precision", "float16"),
        ),
    )
    for id_, value, edits, a, b in same:
        yield fault(
            f"same.{id_}.{short(value)}",
            "BA+BI",
            "two",
            edits,
            also(shows(value, a), shows(value, b)),
            group="pair-region",
        )


# ---- found by hand after the first lists: padding, other rows, grids, pieces ----


def further() -> Iterator[Fault]:
    def one(
        tag: str, name: str, kind: str, class_: str, said: dict[str, Any], steps: Sequence[str] = (), **attrs: Any
    ) -> Fault:
        said = shows(name, said)
        return fault(f"new.{tag}.{short(name)}", class_, "new", kernel(name, kind, steps, **attrs), said)

    e0, e1, d0, d1 = (layer(s, i, "") for s in (ENC, DEC) for i in (0, 1))
    for at, pads in ((f"{e1}self_attn.softmax", 5), (f"{d0}encoder_attn.softmax", 3), (f"{d1}self_attn.softmax", 1)):
        yield one("pads", at, "softmax:padded", "PU", cause("wrong_variant partial_write mask extra_op"), pads=pads)
    for at, cap in ((f"{e0}self_attn.matmul", 20), (f"{d1}encoder_attn.matmul", 5)):
        yield one("cap", at, "attention_scores:capped", "SC", cause("extra_op", cap), cap=cap)
    for at in (f"{e0}self_attn.matmul", f"{e1}self_attn.matmul"):
        yield one("blocks", at, "attention_scores:blocks", "MK", cause("mask partial_write"), block=8)
    for at in (f"{e1}self_attn.matmul_1", f"{d1}self_attn.matmul_1"):
        yield one("stale_head", at, "attention_mix:stale_head", "GH", cause("heads partial_write"), head=2)
    for at in (f"{e1}fc1", f"{d0}self_attn.q_proj"):
        yield one("wrapped", at, "linear:wrapped", "DT", cause("overflow"), one=16384)
    for at, how in (
        (f"{e1}activation_fn.gelu", "table"),
        (f"{d0}activation_fn.gelu", "table"),
        (f"{e0}activation_fn.gelu", "clamped"),
    ):
        yield one(how, at, f"gelu:{how}", "AC", cause("precision wrong_variant overflow"))
    for at in (f"{e0}add_1", f"{d1}add"):
        yield one("fixed", at, "add:fixed", "RD", cause("precision"))
    for at, how in (
        (f"{e1}self_attn_layer_norm", "previous_mean"),
        (f"{e0}final_layer_norm", "one_row"),
        (f"{ENC}.layer_norm", "previous_mean"),
    ):
        yield one(how, at, f"layer_norm:{how}", "NG", cause("wrong_variant stale position wrong_constant"))
    for at in (f"{e1}fc1", f"{d1}self_attn.v_proj"):
        yield one("unrolled", at, "linear:unrolled", "TL", cause("partial_write layout wrong_constant extra_op"))
    yield one("exchanged", f"{e1}self_attn.out_proj", "linear:rows_exchanged", "RC", cause("position layout order"))
    yield one("exchanged", f"{d0}fc1", "linear:rows_exchanged", "RC", cause("position layout order"), ("prefill",))
    for at in (f"{e0}self_attn.k_proj", f"{d1}fc2"):
        yield one("abs", at, "linear:abs", "AC", cause("extra_op wrong_variant", "abs"))
    for at in (f"{ENC}.conv1", f"{ENC}.conv2"):
        yield one("dilated", at, "conv1d:dilated", "CV", cause("wrong_variant wrong_constant", "dilat"))


# ---- held out once: written after the explainer was frozen, and learnt from since ----


def once_held_out() -> Iterator[Fault]:
    def one(tag: str, name: str, kind: str, class_: str, said: dict[str, Any], steps: Sequence[str] = ()) -> Fault:
        return fault(f"once_unseen.{tag}.{short(name)}", class_, "new", kernel(name, kind, steps), shows(name, said))

    e0, e1, d0, d1 = (layer(s, i, "") for s in (ENC, DEC) for i in (0, 1))
    for at in (f"{e1}fc1", f"{e0}self_attn.v_proj"):
        yield one("tiles", at, "linear:tiles_crossed", "TL", cause("layout partial_write"))
    for at in (f"{e0}fc2", f"{d1}self_attn.q_proj"):
        yield one("doubled", at, "linear:rows_doubled", "WL", cause("layout wrong_weight"))
    for at in (f"{e1}self_attn.out_proj", f"{d0}fc1"):
        yield one("dithered", at, "linear:dithered", "RD", cause("precision"))
    for at in (f"{e1}self_attn.softmax", f"{d0}encoder_attn.softmax"):
        yield one("pruned", at, "softmax:pruned", "SC", cause("mask partial_write wrong_variant"))
    for at in (f"{e0}self_attn.softmax", f"{d1}encoder_attn.softmax"):
        yield one("skips", at, "softmax:skips", "MK", cause("mask"))
    for at in (f"{e1}final_layer_norm", f"{d0}self_attn_layer_norm"):
        yield one("halves", at, "layer_norm:halves", "NG", cause("wrong_variant"))
    for at in (f"{e0}activation_fn.gelu", f"{d1}activation_fn.gelu"):
        yield one("straight", at, "gelu:straight", "AC", cause("wrong_variant precision"))
    for at in (f"{e1}add", f"{d1}add_2"):
        yield one("late", at, "add:one_late", "PO", cause("position stale"), ("prefill",) if at[6] == "d" else ())
    for at in (f"{e0}add_1", f"{d0}add"):
        yield one("flushed", at, "add:flushed", "DT", cause("wrong_variant precision overflow partial_write"))
    for at in (f"{e1}self_attn.matmul", f"{d1}encoder_attn.matmul"):
        yield one("distance", at, "attention_scores:by_distance", "SC", cause("extra_op mask position wrong_constant"))
    for at in (f"{ENC}.conv1", f"{ENC}.conv2"):
        yield one("grouped", at, "conv1d:grouped", "CV", cause("wrong_variant partial_write wrong_constant", "group"))
    at = f"{DEC}.embed_positions.index"
    yield one("reversed", at, "positions:reversed", "PO", cause("position layout"), ("prefill",))


def twice_held_out() -> Iterator[Fault]:
    def one(tag: str, name: str, kind: str, class_: str, said: dict[str, Any], steps: Sequence[str] = ()) -> Fault:
        return fault(f"once_unseen.{tag}.{short(name)}", class_, "new", kernel(name, kind, steps), shows(name, said))

    e0, e1, d0, d1 = (layer(s, i, "") for s in (ENC, DEC) for i in (0, 1))
    for at in (f"{e0}fc1", f"{d1}self_attn.v_proj"):
        yield one("dropout", at, "linear:dropout", "RC", cause("extra_op wrong_variant"))
    for at in (f"{e1}self_attn.softmax", f"{d1}encoder_attn.softmax"):
        yield one("best", at, "softmax:best", "MK", cause("mask wrong_variant partial_write"))
    for at in (f"{e0}add", f"{d0}add_1"):
        yield one(
            "leaks", at, "add:leaks", "BA", cause("extra_op stale position"), ("prefill",) if at[6] == "d" else ()
        )
    for at in (f"{e1}self_attn.q_proj", f"{d0}fc2"):
        yield one("rotated", at, "linear:rotated", "WL", cause("extra_op wrong_weight layout"))
    for at in (f"{e0}self_attn.matmul", f"{d1}self_attn.matmul"):
        yield one("length", at, "attention_scores:by_length", "SC", cause("extra_op wrong_constant"))
    for at in (f"{e1}activation_fn.gelu", f"{d0}activation_fn.gelu"):
        yield one("sigmoid", at, "gelu:sigmoid", "AC", cause("wrong_variant wrong_constant", "sigmoid"))
    for at in (f"{e0}self_attn_layer_norm", f"{ENC}.layer_norm"):
        yield one("down", at, "layer_norm:down", "NG", cause("wrong_variant"))
    for at in (f"{e1}fc2", f"{d0}encoder_attn.out_proj"):
        yield one("flipped", at, "linear:flipped", "RC", cause("wrong_constant extra_op wrong_variant"))
    for at in (f"{ENC}.conv1", f"{ENC}.conv2"):
        yield one("smoothed", at, "conv1d:smoothed", "CV", cause("extra_op wrong_variant"))
    for at in (f"{e1}add_1", f"{d1}add"):
        yield one("gated", at, "add:gated", "FU", cause("extra_op wrong_variant"))


# ---- written after the explainer was frozen for the third time ----


def held_out() -> Iterator[Fault]:
    yield from _held_out_sums()
    yield from _held_out_others()


def _unseen(
    tag: str, name: str, kind: str, class_: str, *said: dict[str, Any], steps: Sequence[str] = (), **attrs: Any
) -> Fault:
    edits = kernel(name, kind, steps, **attrs)
    return fault(f"unseen.{tag}.{short(name)}", class_, "unseen", edits, shows(name, *said), group="held-out")


def _any_of(kinds: str, *words: str | float) -> list[dict[str, Any]]:
    """Of the kinds, with any of the words."""
    return [cause(kinds, word) for word in words]


def _held_out_sums() -> Iterator[Fault]:
    """Products, and what reads or stores their numbers."""
    e0, e1, d0, d1 = (layer(s, i, "") for s in (ENC, DEC) for i in (0, 1))
    for at in (f"{e1}fc2", f"{d0}fc1"):
        whole = cause("layout wrong_variant wrong_weight", "bias")
        entry = _unseen("bias_by_row", at, "linear:bias_by_row", "SV", whole, cause("missing_bias"))
        entry["shows"] = (also(entry["shows"][0], shows(at, whole, cause("extra_op", "row"))),)  # or both halves of it
        yield entry
    moved = _any_of("layout wrong_weight position", 3, "shift", "offset")
    for at in (f"{e0}self_attn.out_proj", f"{d1}fc1"):
        yield _unseen("offset", at, "linear:offset", "SV", *moved)
    lane = _any_of("partial_write", 8, 5, "terms")
    for at in (f"{e1}self_attn.v_proj", f"{d0}fc2"):
        yield _unseen("lane", at, "linear:lane", "TL", *lane)
    zero = _any_of("precision wrong_constant wrong_variant extra_op wrong_weight", "zero", "offset", "sum")
    for at in (f"{e0}fc2", f"{d1}fc2"):
        yield _unseen("zero_point", at, "linear:zero_point", "QZ", *zero)
    twice = [cause("extra_op partial_write", "terms"), cause("extra_op partial_write wrong_constant", 2)]
    twice.append(cause("wrong_weight", "terms", 2))
    for at in (f"{e1}fc1", f"{d1}self_attn.out_proj"):
        yield _unseen("overlap", at, "linear:overlap", "TL", *twice)
    wrapped, at = cause("position layout order"), f"{d0}self_attn.out_proj"
    yield _unseen("wrapped", f"{e0}fc1", "linear:rows_wrapped", "TL", wrapped, tile=16)
    yield _unseen("wrapped", at, "linear:rows_wrapped", "TL", wrapped, steps=("prefill",), tile=1)
    for at in (f"{e1}fc1", f"{d1}fc1"):
        yield _unseen("accumulated", at, "linear:accumulated", "BA", cause("stale extra_op clobbered"))
    for at in (f"{e0}self_attn.matmul_1", f"{d1}encoder_attn.matmul_1"):
        yield _unseen("pages", at, "attention_mix:pages", "ST", cause("position layout order"))
    for at in (f"{e1}self_attn.matmul", f"{d0}encoder_attn.matmul"):
        yield _unseen("fp8", at, "attention_scores:fp8", "QZ", *_any_of("precision", "float8", "fp8", "e4m3"))
    for at in (f"{ENC}.conv1", f"{ENC}.conv2"):
        yield _unseen("channels_last", at, "conv1d:channels_last", "WL", cause("layout wrong_weight"))


def _held_out_others() -> Iterator[Fault]:
    e0, e1, d0, d1 = (layer(s, i, "") for s in (ENC, DEC) for i in (0, 1))
    root = 1.5**0.5
    counted = [*_any_of("wrong_variant", "pad", "count", "length", "varian"), *_any_of("wrong_constant", 1.5, root)]
    for at in (f"{e0}final_layer_norm", f"{d1}encoder_attn_layer_norm"):
        yield _unseen("padded", at, "layer_norm:padded", "PU", *counted)
    part = _any_of("wrong_variant partial_write", "part", "channel", "quarter", 48)
    for at in (f"{e1}self_attn_layer_norm", f"{DEC}.layer_norm"):
        yield _unseen("partial", at, "layer_norm:partial", "TL", *part)
    tail = _any_of("wrong_variant partial_write", "largest", "max", "sum", "tail", "tile", "block")
    for at in (f"{e0}self_attn.softmax", f"{d1}encoder_attn.softmax"):
        yield _unseen("raw_tail", at, "softmax:raw_tail", "TL", *tail)
    running = _any_of("wrong_variant missing_op", "rescal", "running", "largest", "max", "online", "block")
    for at in (f"{e1}self_attn.softmax", f"{d0}encoder_attn.softmax"):
        yield _unseen("unscaled", at, "softmax:unscaled", "FU", *running)
    blocks = _any_of("wrong_variant layout", "block", "piece", "chunk", "split", "group", "tile", "part")
    for at in (f"{e1}self_attn.softmax", f"{d0}encoder_attn.softmax"):
        yield _unseen("pieces", at, "softmax:pieces", "TL", *blocks)
    for at in (f"{d0}self_attn.add", f"{d1}self_attn.add"):
        soft = _any_of("mask wrong_constant", 4, -4)
        yield _unseen("soft", at, "causal_mask:soft", "MK", *soft, steps=("prefill",))
    for at in (f"{e0}activation_fn.gelu", f"{d1}activation_fn.gelu"):
        yield _unseen("hard", at, "gelu:hard", "AC", *_any_of("wrong_variant", "hard", "relu6"))
    for at in (f"{e1}activation_fn.gelu", f"{d0}activation_fn.gelu"):
        yield _unseen("tail", at, "gelu:tail", "TL", cause("partial_write missing_op"))
    first = _any_of("position layout stale wrong_variant", "first", "broadcast", "same row", "row 0", 0)
    yield _unseen("first_row", f"{e1}add", "add:first_row", "SV", *first)
    yield _unseen("first_row", f"{d0}add_1", "add:first_row", "SV", *first, steps=("prefill",))


# ---- the torch candidate ----


def of_torch() -> Iterator[Fault]:
    def one(name: str, value: str, class_: str, operator: str, *causes: dict[str, Any]) -> Fault:
        return fault(f"torch.{name}", class_, operator, [["module", name]], shows(value, *causes), engine="torch")

    yield one("gelu_tanh", layer(ENC, 1, "activation_fn.gelu"), "AC", "M32", cause("wrong_variant", "tanh"))
    yield one("eps", layer(ENC, 0, "final_layer_norm"), "NE", "M28", cause("wrong_constant", 1e-3))
    yield one("no_bias", layer(DEC, 1, "fc2"), "BI", "M07", cause("missing_bias"))
    yield one(
        "other_layer",
        layer(DEC, 1, "self_attn.v_proj"),
        "WL",
        "M08",
        cause("wrong_weight", layer(DEC, 0, "self_attn.v_proj.weight")),
    )
    yield one("transposed", layer(ENC, 1, "self_attn.out_proj"), "WL", "M09", cause("wrong_weight layout"))
    yield one("scale", layer(ENC, 0, "self_attn.mul"), "SC", "M24", cause("wrong_constant", ["D", -0.5]))
    yield one(
        "norm_gain", layer(DEC, 0, "encoder_attn_layer_norm"), "NG", "M29", cause("wrong_variant wrong_weight", "gain")
    )
    yield one("dead_column", layer(ENC, 1, "fc1"), "TL", "M37", cause("partial_write", "5"))
    yield one("rounded", layer(DEC, 0, "fc1"), "RD", "M40", cause("precision", "bfloat16"))
    yield one("conv_flipped", f"{ENC}.conv2", "CV", "M35", cause("layout", "reversed"))
    yield one(
        "position",
        f"{DEC}.embed_positions.index",
        "PO",
        "M16",
        cause("position wrong_weight", 1),
        cause("position wrong_weight"),
    )
    yield one("heads", layer(ENC, 0, "self_attn.v_proj"), "GH", "M10", cause("heads layout wrong_weight"))


# ---- the ONNX candidate ----


def of_onnx() -> Iterator[Fault]:
    def one(name: str, value: str, class_: str, operator: str, edits: list[Edit], *causes: dict[str, Any]) -> Fault:
        return fault(f"onnx.{name}", class_, operator, edits, shows(value, *causes), engine="onnx")

    def node(layer_: int, rest: str, *how: Any) -> list[Edit]:
        return [["node", "encoder.onnx", f"/encoder/layers.{layer_}/{rest}", *how]]

    def in_decoder(layer_: int, rest: str, *how: Any) -> list[Edit]:
        files = ("decoder.onnx", "decoder_with_past.onnx")
        return [["node", file, f"/decoder/layers.{layer_}/{rest}", *how] for file in files]

    e0, e1, d1 = layer(ENC, 0, ""), layer(ENC, 1, ""), layer(DEC, 1, "")
    out = "/encoder/layers.{}_output_0".format
    yield one(
        "wire.v_proj",
        f"{e1}self_attn.v_proj",
        "BA",
        "M01",
        node(1, "self_attn/v_proj/MatMul", "input", 0, out("0/Add_1")),
        cause("wrong_input", "layers.0/add_1"),
        cause("wrong_input", "layers.0.add_1"),
    )
    yield one(
        "wire.residual",
        f"{e1}add",
        "BA",
        "M01",
        node(1, "Add", "input", 0, out("0/final_layer_norm/LayerNormalization")),
        cause("wrong_input", "final_layer_norm"),
    )
    yield one(
        "wire.mix",
        f"{e0}self_attn.matmul_1",
        "BA",
        "M11",
        node(0, "self_attn/MatMul_1", "input", 1, out("0/self_attn/Transpose")),
        cause("wrong_input", "self_attn"),
    )
    yield one(
        "eps",
        f"{e0}final_layer_norm",
        "NE",
        "M28",
        node(0, "final_layer_norm/LayerNormalization", "attribute", "epsilon", 1e-2),
        cause("wrong_constant", 1e-2),
    )
    yield one(
        "gelu_tanh",
        f"{e1}activation_fn.gelu",
        "AC",
        "M32",
        node(1, "activation_fn/Gelu", "attribute", "approximate", "tanh"),
        cause("wrong_variant", "tanh"),
    )
    yield one("no_bias", f"{e1}fc2", "BI", "M07", node(1, "fc2/Add", "bypass", 1), cause("missing_bias"))
    yield one("no_bias.decoder", f"{d1}fc1", "BI", "M07", in_decoder(1, "fc1/Add", "bypass", 1), cause("missing_bias"))
    yield one(
        "other_layer",
        f"{e1}self_attn.v_proj",
        "WL",
        "M08",
        node(1, "self_attn/v_proj/MatMul", "input_of", 1, "/encoder/layers.0/self_attn/v_proj/MatMul", 1),
        cause("wrong_weight", layer(ENC, 0, "self_attn.v_proj.weight")),
    )
    yield one(
        "transposed",
        f"{e0}self_attn.out_proj",
        "WL",
        "M09",
        node(0, "self_attn/out_proj/MatMul", "weight", 1, "transposed"),
        cause("wrong_weight layout"),
    )
    yield one(
        "scale",
        f"{e0}self_attn.mul",
        "SC",
        "M24",
        node(0, "self_attn/Mul", "weight", 1, "times", 0.5),
        cause("wrong_constant extra_op"),
    )
    yield one(
        "softmax_axis",
        f"{e1}self_attn.softmax",
        "SC",
        "M24",
        node(1, "self_attn/Softmax", "attribute", "axis", 2),
        cause("wrong_variant", "axis"),
    )
    yield one(
        "norm_gain",
        f"{e1}self_attn_layer_norm",
        "NG",
        "M29",
        node(
            1,
            "self_attn_layer_norm/LayerNormalization",
            "input",
            1,
            "encoder.layers.0.final_layer_norm.weight",
        ),
        cause("wrong_variant wrong_weight", "final_layer_norm"),
    )
    yield one(
        "pads",
        f"{ENC}.conv1",
        "CV",
        "M35",
        [["node", "encoder.onnx", "/encoder/conv1/Conv", "attribute", "pads", [0, 2]]],
        cause("position wrong_variant layout"),
    )
    yield one(
        "not_permuted",
        f"{e1}self_attn.out_proj",
        "SV",
        "M35",
        node(1, "self_attn/Transpose_3", "attribute", "perm", [0, 1, 2, 3]),
        cause("layout heads"),
    )
    yield one(
        "rounded",
        f"{e1}fc1",
        "RD",
        "M40",
        node(1, "fc1/MatMul", "weight", 1, "bf16"),
        cause("precision", "bfloat16"),
    )
    yield one(
        "dead_column",
        f"{d1}fc2",
        "TL",
        "M37",
        in_decoder(1, "fc2/MatMul", "weight", 1, "no_column", 5),
        cause("partial_write wrong_weight missing_bias wrong_constant", "5"),
    )


# ---- clean runs ----


def clean() -> Iterator[dict[str, Any]]:
    def run(id_: str, what: str, *edits: Edit, **more: Any) -> dict[str, Any]:
        return {"id": f"clean.{id_}", "what": what, "edits": list(edits), **more}

    for kind in ("linear", "conv1d", "attention_scores", "attention_mix"):
        yield run(f"naive.{kind}", "summation order", ["every", kind, f"naive_{kind}"])
    yield run(
        "naive.all",
        "summation order",
        *(["every", k, f"naive_{k}"] for k in ("linear", "conv1d", "attention_scores", "attention_mix")),
    )
    for how in ("pairwise", "backwards", "compensated", "in_double", "strided", "split", "bias_inside"):
        yield run(f"linear.{how}", "summation order", ["every", "linear", f"linear:{how}"])
    for how in ("backwards", "pairwise", "in_double"):
        yield run(f"scores.{how}", "summation order", ["every", "attention_scores", f"attention_scores:{how}"])
    for how in ("blocked", "plain"):
        yield run(f"mix.{how}", "blocked products", ["every", "attention_mix", f"attention_mix:{how}"])
    yield run("conv.by_tap", "summation order", ["every", "conv1d", "conv1d:by_tap"])
    for how in ("welford", "in_double", "folded"):
        yield run(f"norm.{how}", "fused or other forms", ["every", "layer_norm", f"layer_norm:{how}"])
    for how in ("online", "backwards", "in_double"):
        yield run(f"softmax.{how}", "blocked softmax", ["every", "softmax", f"softmax:{how}"])
    for how in ("by_erfc", "in_double"):
        yield run(f"gelu.{how}", "fused or other forms", ["every", "gelu", f"gelu:{how}"])
    yield run("mul.by_division", "fused or other forms", ["every", "mul", "mul:by_division"])
    yield run("mask.by_choice", "fused or other forms", ["every", "causal_mask", "causal_mask:by_choice"])
    yield run("argmax.last", "benign", ["every", "argmax", "argmax:last"])
    yield run(
        "all.other",
        "fused or other forms",
        ["every", "linear", "linear:backwards"],
        ["every", "attention_scores", "attention_scores:backwards"],
        ["every", "attention_mix", "attention_mix:blocked"],
        ["every", "layer_norm", "layer_norm:folded"],
        ["every", "softmax", "softmax:online"],
        ["every", "gelu", "gelu:by_erfc"],
        ["every", "conv1d", "conv1d:by_tap"],
    )
    for flags in (
        "-O0",
        "-O1",
        "-O2",
        "-ffast-math",
        "-ffp-contract=off",
        "-O2 -march=x86-64",
        "-O3 -fno-tree-vectorize",
        "-ffast-math -O1",
        "-funroll-loops",
    ):
        yield run("flags." + flags.replace(" ", ""), "compiler flags", cflags=flags)
        yield run(
            "flags.naive." + flags.replace(" ", ""),
            "compiler flags",
            *(["every", k, f"naive_{k}"] for k in ("linear", "attention_scores", "attention_mix")),
            cflags=flags,
        )
    for threads in (1, 2, 3, 4):
        yield run(f"threads.{threads}", "threads", threads=threads)
    yield run("spread", "allocation", ["spread"])
    yield run("poison", "allocation", poison=True)
    for seed in (2, 3, 4, 5, 6, 7, 8, 9):
        yield run(f"seed.{seed}", "random weights", seed=seed)
    in_place = [["spread"], ["move", "encode", layer(ENC, 1, "activation_fn.gelu"), layer(ENC, 1, "fc1")]]
    yield run("in_place.gelu", "in place", *in_place)
    yield run(
        "in_place.softmax",
        "in place",
        ["spread"],
        ["move", "encode", layer(ENC, 0, "self_attn.softmax"), layer(ENC, 0, "self_attn.matmul")],
    )
    yield run("in_place.add", "in place", ["spread"], ["move", "encode", layer(ENC, 1, "add"), layer(ENC, 0, "add_1")])
    yield from others(run)
    # M44: differences that change nothing downstream, by the mathematics of softmax and argmax
    yield run("benign.key_bias", "benign", ["key_bias", layer(ENC, 1, "self_attn.k_proj")])
    yield run("benign.qk_permuted", "benign", ["file", layer(ENC, 1, "self_attn"), "qk_permuted"])
    yield run("benign.qk_scaled", "benign", ["file", layer(ENC, 0, "self_attn"), "qk_scaled"])


def others(run: Callable[..., dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Clean runs of other engines than the C one."""
    for dtype in ("bfloat16", "float16"):
        yield run(f"torch.{dtype}", "fp16/bf16 storage", engine="torch", argument=f"dtype={dtype}")
    for attn in ("sdpa", "eager"):
        yield run(f"torch.{attn}", "fused ops", engine="torch", argument=f"attn={attn}")
    for level in ("off", "basic", "all"):
        yield run(f"onnx.{level}", "fused ops", engine="onnx", argument=f"level={level}")
