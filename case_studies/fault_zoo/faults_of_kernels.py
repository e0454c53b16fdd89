"""Faults of arithmetic: another kernel or another constant, every wire right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from entries import BOTH, DEC, ENC, Fault, attr, cause, fault, kernel, layer, short, shows

# ---- arithmetic ----


def norms() -> Iterator[Fault]:
    said = {
        "rms": ("NG", "M30", cause("wrong_variant", "mean")),
        "unbiased": ("NG", "M30", cause("wrong_variant", "sample"), cause("wrong_variant", "variance")),
        "no_gain": ("NG", "M29", cause("wrong_variant missing_op wrong_weight", "gain")),
        "no_shift": ("BI", "M29", cause("missing_bias")),
        "one_more": ("NG", "M29", cause("wrong_variant wrong_weight", "gain")),
        "eps_outside": ("NE", "M28", cause("wrong_variant", "eps"), cause("wrong_constant", "eps")),
        "fp16": ("DT", "M40", cause("precision")),
        "skipped": ("NG", "M34", cause("missing_op", "layer_norm")),
        "last_row": ("TL", "M37", cause("partial_write")),
    }
    places = {
        "rms": (layer(ENC, 0, "self_attn_layer_norm"), layer(DEC, 1, "final_layer_norm")),
        "unbiased": (layer(ENC, 1, "final_layer_norm"), layer(DEC, 0, "self_attn_layer_norm")),
        "no_gain": (layer(ENC, 0, "final_layer_norm"), f"{DEC}.layer_norm"),
        "no_shift": (layer(ENC, 1, "self_attn_layer_norm"), layer(DEC, 1, "encoder_attn_layer_norm")),
        "one_more": (layer(ENC, 1, "final_layer_norm"), layer(DEC, 0, "final_layer_norm")),
        "eps_outside": (f"{ENC}.layer_norm", layer(DEC, 0, "encoder_attn_layer_norm")),
        "fp16": (layer(ENC, 0, "self_attn_layer_norm"), layer(DEC, 0, "final_layer_norm")),
        "skipped": (layer(ENC, 1, "self_attn_layer_norm"), layer(DEC, 1, "self_attn_layer_norm")),
        "last_row": (f"{ENC}.layer_norm", layer(ENC, 0, "final_layer_norm")),
    }
    for how, (class_, operator, *causes) in said.items():
        for name in places[how]:
            yield fault(
                f"norm.{how}.{short(name)}", class_, operator, kernel(name, f"layer_norm:{how}"), shows(name, *causes)
            )
    for name in (
        layer(ENC, 0, "self_attn_layer_norm"),
        layer(ENC, 1, "final_layer_norm"),
        layer(DEC, 1, "final_layer_norm"),
        f"{ENC}.layer_norm",
    ):
        for eps in (1e-6, 1e-3):
            yield fault(
                f"norm.eps_{eps:g}.{short(name)}",
                "NE",
                "M28",
                attr(name, "eps", eps),
                shows(name, cause("wrong_constant", eps)),
            )


def attention() -> Iterator[Fault]:
    e0, e1, d0, d1 = (layer(s, i, "self_attn") for s in (ENC, DEC) for i in (0, 1))
    cross = layer(DEC, 0, "encoder_attn")
    for name in (f"{e0}.mul", f"{d1}.mul"):
        missing = [cause("missing_op", "mul"), cause("wrong_constant", 1)]
        yield fault(f"scale.none.{short(name)}", "SC", "M24", attr(name, "factor", 1), shows(name, *missing))
    for name, power in ((f"{e1}.mul", ["D", -0.5]), (f"{cross}.mul", ["D", -0.5]), (f"{d0}.mul", ["K", -1])):
        yield fault(
            f"scale.{power[0]}{power[1]}.{short(name)}",
            "SC",
            "M24",
            attr(name, "factor", power),
            shows(name, cause("wrong_constant", power), cause("extra_op", "mul")),
        )
    yield fault(
        f"scale.twice.{short(e0)}",
        "SC",
        "M24",
        kernel(f"{e0}.mul", "mul:twice"),
        shows(f"{e0}.mul", cause("extra_op", "mul"), cause("wrong_constant", ["K", -1])),
    )
    how = {
        "by_column": (cause("wrong_variant", "axis"),),
        "base_2": (cause("wrong_variant", "base 2"), cause("wrong_constant", 0.6931)),
        "warm": (cause("wrong_constant", 1.01),),
        "unnormalised": (cause("wrong_variant missing_op", "sum"),),
        "plus_one": (cause("wrong_variant", "one"),),
        "twice": (cause("extra_op", "softmax"),),
    }
    for at, variant in (
        (e1, "by_column"),
        (e0, "base_2"),
        (cross, "base_2"),
        (e1, "warm"),
        (d1, "unnormalised"),
        (e0, "plus_one"),
        (cross, "plus_one"),
        (e1, "twice"),
    ):
        yield fault(
            f"softmax.{variant}.{short(at)}",
            "SC",
            "M23" if variant == "plus_one" else "M24",
            kernel(f"{at}.softmax", f"softmax:{variant}"),
            shows(f"{at}.softmax", *how[variant]),
        )
    for at in (e0, d0):
        yield fault(
            f"nan.{short(at)}.softmax",
            "DT",
            "M22",
            kernel(f"{at}.softmax", "softmax:masked_nan"),
            shows(f"{at}.softmax", cause("nonfinite partial_write", "NaN")),
        )
    masks = {
        "dropped": cause("mask missing_op"),
        "inverted": cause("mask", "invert"),
        "strict": cause("mask"),
        "ahead": cause("mask"),
        "window": cause("mask"),
    }
    for i, (variant, said) in enumerate(masks.items()):
        for at in (d0, d1) if variant in ("dropped", "strict") else ((d0, d1)[i % 2],):
            yield fault(
                f"mask.{variant}.{short(at)}",
                "MK",
                "M20" if variant != "window" else "M21",
                kernel(f"{at}.add", f"causal_mask:{variant}", ("prefill",)),
                shows(f"{at}.add", said),
            )
    for at, variant, operator in (
        (e0, "grouped", "M26"),
        (d1, "grouped", "M26"),
        (e1, "turned", "M26"),
        (cross, "turned", "M26"),
    ):
        yield fault(
            f"heads.{variant}.{short(at)}",
            "GH",
            operator,
            kernel(f"{at}.matmul", f"attention_scores:{variant}"),
            shows(f"{at}.matmul", cause("heads")),
        )
    yield fault(
        f"heads.turned.{short(e0)}.mix",
        "GH",
        "M26",
        kernel(f"{e0}.matmul_1", "attention_mix:turned"),
        shows(f"{e0}.matmul_1", cause("heads")),
    )
    for name in (f"{e0}.v_proj", f"{d1}.q_proj", f"{e1}.out_proj"):
        yield fault(
            f"heads.swapped.{short(name)}",
            "GH",
            "M10",
            kernel(name, "linear:heads_swapped"),
            shows(name, cause("heads layout")),
        )
    for name in (f"{e1}.k_proj", f"{d0}.q_proj"):
        yield fault(
            f"heads.interleaved.{short(name)}",
            "GH",
            "M27",
            kernel(name, "linear:interleaved"),
            shows(name, cause("heads layout", "interleaved")),
        )
    for at in (e1, cross):
        yield fault(
            f"layout.by_head.{short(at)}",
            "SV",
            "M35",
            kernel(f"{at}.matmul_1", "attention_mix:by_head"),
            shows(f"{at}.matmul_1", cause("layout heads")),
        )
    yield fault(
        f"average.{short(e0)}",
        "SC",
        "M24",
        kernel(f"{e0}.matmul_1", "attention_mix:average"),
        shows(f"{e0}.matmul_1", cause("wrong_variant missing_op wrong_constant wrong_input")),
    )


def tails() -> Iterator[Fault]:
    for name, tile in (
        (layer(ENC, 0, "fc1"), 16),
        (layer(ENC, 1, "self_attn.q_proj"), 32),
        (layer(DEC, 0, "encoder_attn.k_proj"), 16),
    ):
        steps = ("prefill",) if "encoder_attn" in name else ()
        yield fault(
            f"tail.rows.{short(name)}",
            "TL",
            "M37",
            kernel(name, "linear:tile_tail", steps, tile=tile),
            shows(name, cause("partial_write", "rows")),
        )
    for name in (layer(ENC, 0, "fc2"), layer(DEC, 1, "fc1"), layer(ENC, 1, "self_attn.v_proj")):
        yield fault(
            f"tail.columns.{short(name)}",
            "TL",
            "M37",
            kernel(name, "linear:column_tail", tile=56),
            shows(name, cause("partial_write", "columns")),
        )
    for name, lost in (
        (layer(ENC, 1, "fc2"), 8),
        (layer(DEC, 0, "self_attn.out_proj"), 4),
        (layer(ENC, 0, "self_attn.k_proj"), 16),
    ):
        yield fault(
            f"tail.terms.{short(name)}",
            "TL",
            "M37",
            kernel(name, "linear:k_tail", lost=lost),
            shows(name, cause("partial_write")),
        )
    for at in (layer(ENC, 1, "self_attn"), layer(DEC, 1, "self_attn")):
        yield fault(
            f"tail.terms.{short(at)}.scores",
            "TL",
            "M37",
            kernel(f"{at}.matmul", "attention_scores:k_tail", lost=4),
            shows(f"{at}.matmul", cause("partial_write")),
        )
    for at in (layer(ENC, 0, "self_attn"), layer(DEC, 1, "encoder_attn")):
        yield fault(
            f"tail.columns.{short(at)}.scores",
            "TL",
            "M37",
            kernel(f"{at}.matmul", "attention_scores:column_tail", tile=16),
            shows(f"{at}.matmul", cause("partial_write", "columns")),
        )
    for name, column in (
        (layer(ENC, 1, "fc1"), 5),
        (layer(DEC, 0, "fc2"), 17),
        (layer(ENC, 0, "self_attn.out_proj"), 31),
    ):
        yield fault(
            f"dead_column.{short(name)}",
            "TL",
            "M37",
            kernel(name, "linear:dead_column", column=column),
            shows(name, cause("partial_write", str(column))),
        )
    for name in (layer(ENC, 1, "self_attn.q_proj"), layer(DEC, 0, "fc1"), layer(ENC, 0, "fc2")):
        steps = ("prefill",) if name.startswith(DEC) else ()
        yield fault(
            f"last_row.{short(name)}",
            "TL",
            "M37",
            kernel(name, "linear:last_row", steps),
            shows(name, cause("partial_write", "rows")),
        )
    yield fault(
        "tail.add",
        "TL",
        "M37",
        kernel(layer(ENC, 0, "add"), "add:tile_tail", tile=700),
        shows(layer(ENC, 0, "add"), cause("partial_write stale")),
    )
    for name in (layer(ENC, 1, "fc1"), layer(DEC, 1, "self_attn.out_proj")):
        yield fault(
            f"nan.{short(name)}",
            "DT",
            "M22",
            kernel(name, "linear:nan_row"),
            shows(name, cause("nonfinite partial_write", "NaN")),
        )
    for name in (layer(ENC, 0, "self_attn.v_proj"), layer(DEC, 1, "fc1")):
        steps = ("prefill",) if name.startswith(DEC) else ()
        yield fault(
            f"rows_shifted.{short(name)}",
            "PO",
            "M16",
            kernel(name, "linear:rows_shifted", steps),
            shows(name, cause("position layout")),
        )


def constants() -> Iterator[Fault]:
    for gain in (1.01, 1.001):
        for name, head in ((layer(ENC, 0, "self_attn.v_proj"), 1), (layer(DEC, 1, "self_attn.q_proj"), 2)):
            yield fault(
                f"gain.{gain}.{short(name)}",
                "SC",
                "M24",
                kernel(name, "linear:gain", head=head, gain=gain),
                shows(name, cause("wrong_constant", gain)),
            )
        at = layer(ENC, 1, "self_attn.matmul_1")
        yield fault(
            f"gain.{gain}.{short(at)}",
            "SC",
            "M24",
            kernel(at, "attention_mix:gain", head=3, gain=gain),
            shows(at, cause("wrong_constant", gain)),
        )
    how: dict[str, tuple[dict[str, Any], ...]] = {
        "first_only": (cause("missing_op", "add"),),
        "second_only": (cause("missing_op", "add"),),
        "first_twice": (cause("extra_op", "add"),),
        "second_twice": (cause("extra_op", "add"),),
        "subtracted": (cause("wrong_variant", "subtract"),),
        "scaled": (cause("wrong_constant", 1.001),),
    }
    places = {
        "first_only": (layer(ENC, 1, "add"), layer(DEC, 0, "add_1")),
        "second_only": (layer(ENC, 0, "add_1"), layer(DEC, 1, "add")),
        "first_twice": (layer(ENC, 0, "add"), layer(DEC, 1, "add_2")),
        "second_twice": (layer(ENC, 1, "add_1"), layer(DEC, 0, "add")),
        "subtracted": (layer(ENC, 0, "add"), layer(DEC, 1, "add_1")),
        "scaled": (layer(ENC, 1, "add"), layer(DEC, 0, "add_2")),
    }
    for variant, causes in how.items():
        for name in places[variant]:
            yield fault(
                f"residual.{variant}.{short(name)}",
                "RD" if variant == "scaled" else "FU",
                "M06",
                kernel(name, f"add:{variant}"),
                shows(name, *causes),
            )


def activations() -> Iterator[Fault]:
    how = {
        "tanh": cause("wrong_variant", "tanh"),
        "quick": cause("wrong_variant", "1.702"),
        "silu": cause("wrong_variant", "silu"),
        "relu": cause("wrong_variant", "relu"),
        "skipped": cause("missing_op", "gelu"),
        "twice": cause("extra_op", "gelu"),
        "fp16": cause("precision", "float16"),
        "bf16_cut": cause("precision", "bfloat16"),
    }
    e, d, c = layer(ENC, 0, "activation_fn.gelu"), layer(DEC, 1, "activation_fn.gelu"), f"{ENC}.gelu_1"
    for variant, at in (
        ("tanh", e),
        ("tanh", d),
        ("tanh", c),
        ("quick", e),
        ("quick", d),
        ("silu", e),
        ("silu", d),
        ("relu", d),
        ("skipped", e),
        ("skipped", c),
        ("twice", d),
        ("fp16", e),
        ("bf16_cut", d),
    ):
        class_ = (
            "AC" if variant in ("tanh", "quick", "silu", "relu") else "DT" if variant in ("fp16", "bf16_cut") else "FU"
        )
        yield fault(
            f"gelu.{variant}.{short(at)}", class_, "M32", kernel(at, f"gelu:{variant}"), shows(at, how[variant])
        )


def precision() -> Iterator[Fault]:
    how = {
        "bf16_sum": cause("precision", "bfloat16"),
        "fp16_sum": cause("precision", "float16"),
        "fp16_out": cause("precision", "float16"),
        "bf16_out": cause("precision", "bfloat16"),
        "bf16_cut": cause("precision", "bfloat16"),
        "int8_x": cause("precision", "int8"),
        "int8_w": cause("precision", "int8"),
    }
    places = {
        "bf16_sum": (layer(ENC, 0, "fc1"), layer(DEC, 1, "self_attn.v_proj")),
        "fp16_sum": (layer(ENC, 1, "fc2"), layer(DEC, 0, "fc1")),
        "fp16_out": (layer(ENC, 1, "self_attn.q_proj"), layer(DEC, 1, "fc2")),
        "bf16_out": (layer(ENC, 0, "self_attn.out_proj"), layer(DEC, 0, "self_attn.v_proj")),
        "bf16_cut": (layer(ENC, 1, "fc1"), layer(DEC, 1, "fc1")),
        "int8_x": (layer(ENC, 0, "fc2"), layer(DEC, 1, "fc1")),
        "int8_w": (layer(ENC, 1, "self_attn.v_proj"), layer(DEC, 0, "fc2")),
    }
    for variant, said in how.items():
        for name in places[variant]:
            yield fault(
                f"precision.{variant}.{short(name)}",
                "QZ" if variant.startswith("int8") else "RD",
                "M40",
                kernel(name, f"linear:{variant}"),
                shows(name, said),
            )
    at = layer(ENC, 1, "self_attn.matmul")
    yield fault(
        "precision.bf16_sum.scores",
        "RD",
        "M40",
        kernel(at, "attention_scores:bf16_sum"),
        shows(at, cause("precision", "bfloat16")),
    )
    for name, variant, said in (
        (layer(ENC, 0, "add"), "fp16", cause("precision", "float16")),
        (layer(DEC, 1, "add_2"), "bf16_cut", cause("precision", "bfloat16")),
        (layer(ENC, 1, "add_1"), "saturated", cause("overflow")),
    ):
        yield fault(
            f"residual.{variant}.{short(name)}",
            "DT",
            "M40",
            kernel(name, f"add:{variant}", **({"largest": 1.5} if variant == "saturated" else {})),
            shows(name, said),
        )
    for name in (layer(ENC, 1, "fc1"), layer(DEC, 0, "fc2")):
        yield fault(
            f"saturated.{short(name)}",
            "DT",
            "M40",
            kernel(name, "linear:saturated", largest=1),
            shows(name, cause("overflow", 1)),
        )


def ends() -> Iterator[Fault]:
    """Where a model begins and ends: convolutions, tables, choice."""
    c1, c2, add = f"{ENC}.conv1", f"{ENC}.conv2", f"{ENC}.add"
    for name, variant, causes, attrs in (
        (c1, "shifted", [cause("position wrong_variant layout")], {"shift": 1}),
        (c2, "shifted", [cause("position wrong_variant layout")], {"shift": 1}),
        (c1, "flipped", [cause("layout", "reversed")], {}),
        (c2, "flipped", [cause("layout", "reversed")], {}),
        (c1, "edge", [cause("wrong_variant", "replication")], {}),
        (c2, "stride", [cause("wrong_variant position layout wrong_constant")], {"walks": 1}),
    ):
        yield fault(
            f"conv.{variant}.{short(name)}",
            "CV",
            "M35",
            kernel(name, f"conv1d:{variant}", **attrs),
            shows(name, *causes),
        )
    yield fault("reshaped.e.add", "SV", "M35", kernel(add, "add_permuted:reshaped"), shows(add, cause("layout")))
    yield fault(
        "places.none.e.add", "PO", "M16", kernel(add, "add_permuted:no_places"), shows(add, cause("missing_op", "add"))
    )
    rows = f"{DEC}.embed_positions.index"
    for variant, steps, causes in (
        ("one_late", BOTH, [cause("position", 1)]),
        ("restarted", ("decode",), [cause("position")]),
        ("doubled", ("decode",), [cause("position")]),
        ("none", ("decode",), [cause("partial_write missing_op position", "zero"), cause("missing_op")]),
        ("halves", BOTH, [cause("layout position", "halves"), cause("layout")]),
    ):
        yield fault(
            f"places.{variant}.d",
            "PO",
            "M36" if variant == "halves" else "M16",
            kernel(rows, f"positions:{variant}", steps),
            shows(rows, *causes),
        )
    table = f"{ENC}.embed_positions"
    yield fault(
        "places.halves.e", "PO", "M36", kernel(table, "positions:halves"), shows(table, cause("layout position"))
    )
    yield fault(
        "places.one_late.e", "PO", "M16", kernel(table, "positions:one_late"), shows(table, cause("position", 1))
    )
    tokens = f"{DEC}.embed_tokens"
    yield fault("tokens.next", "FE", "M34", kernel(tokens, "embedding:next", BOTH), shows(tokens, cause("position", 1)))
    yield fault(
        "tokens.scaled",
        "SC",
        "M34",
        kernel(tokens, "embedding:scaled", BOTH),
        shows(tokens, cause("wrong_constant", ["D", 0.5]), cause("extra_op")),
    )
    yield fault(
        "tokens.decode", "FE", "M34", kernel(tokens, "embedding:next", ("decode",)), shows(tokens, cause("position", 1))
    )
    fill, pick = "generate.masked_fill", "generate.argmax:int64"
    yield fault(
        "choice.unmasked", "MK", "M20", kernel(fill, "masked_fill:nothing", BOTH), shows(fill, cause("mask missing_op"))
    )
    yield fault(
        "choice.first_row",
        "PO",
        "M16",
        kernel(fill, "masked_fill:first_row", ("prefill",)),
        shows(fill, cause("position wrong_input order layout")),
    )
    yield fault("choice.begin", "MK", "M20", attr(fill, "begin", 0, ("prefill",)), shows(fill, cause("mask")))
    yield fault(
        "choice.half",
        "TL",
        "M37",
        kernel(pick, "argmax:half", BOTH),
        shows(pick, cause("wrong_variant partial_write order position")),
    )
    yield fault(
        "choice.second",
        "FU",
        "M41",
        kernel(pick, "argmax:second", BOTH),
        shows(pick, cause("wrong_variant order position")),
    )
