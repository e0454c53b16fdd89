"""Which value of an engine is which value of the model, by hand: read off the engines' sources and graphs.

One line a kind of value: a pattern of the engine's name, and the name in the reference. `N` stands for the number of a
layer. No name: the value has no counterpart (a product before its bias is added, a copy). A value that only has a
made-up name is known by the name of the view that is made of it. Nothing here was made by firstbad.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from firstbad.graph import Graph, Value

NONE = ""

SAME = {r"(.+)": r"{0}"}
"""Engines that call values what the model calls them: the built-in one, and eager PyTorch."""

SDPA = {r"(.+)\.scaled_dot_product_attention": r"{0}.matmul_1", **SAME}

LAYER = "model.encoder.layers.0"
TAPPED = {
    "c1": "model.encoder.conv1",
    "stem1": "model.encoder.gelu",
    "c2": "model.encoder.conv2",
    "stem2": "model.encoder.gelu_1",
    "x0": "model.encoder.add",
    "h1": f"{LAYER}.self_attn_layer_norm",
    "q": f"{LAYER}.self_attn.q_proj",
    "k": f"{LAYER}.self_attn.k_proj",
    "v": f"{LAYER}.self_attn.v_proj",
    "s": f"{LAYER}.self_attn.matmul",
    "p": f"{LAYER}.self_attn.softmax",
    "y": f"{LAYER}.self_attn.matmul_1",
    "o": f"{LAYER}.self_attn.out_proj",
    "x1": f"{LAYER}.add",
    "h2": f"{LAYER}.final_layer_norm",
    "f1": f"{LAYER}.fc1",
    "g": f"{LAYER}.activation_fn.gelu",
    "f2": f"{LAYER}.fc2",
    "x2": f"{LAYER}.add_1",
}
"""tests/probes/candidates/encoder_layer.py"""

B = r"b(\d)\."
BLOCK, HEADS, MLP = "model.layers.{0}.", "model.layers.{0}.self_attn.", "model.layers.{0}.mlp."
FUSED_LLAMA = {
    r"emb": "model.embed_tokens",
    B + r"n1": BLOCK + "input_layernorm.mul_1",
    B + r"qkv": f"{HEADS}q_proj|{HEADS}k_proj|{HEADS}v_proj",
    B + r"q": HEADS + "add",
    B + r"k": HEADS + "add_1",
    B + r"s": HEADS + "add_2",
    B + r"p": HEADS + "softmax",
    B + r"y": HEADS + "matmul_1",
    B + r"o": HEADS + "o_proj",
    B + r"x": BLOCK + "add",
    B + r"n2": BLOCK + "post_attention_layernorm.mul_1",
    B + r"gu": f"{MLP}gate_proj|{MLP}up_proj",
    B + r"act": MLP + "mul",
    B + r"debug": NONE,
    B + r"d": MLP + "down_proj",
    B + r"z": BLOCK + "add_1",
    r"n": "model.norm.mul_1",
    r"lg": "lm_head",
}
"""tests/probes/candidates/fused.py; `|`: a value that holds several"""

SPLIT_GPT2 = {
    r"emb": "transformer.add",
    B + r"n([12])": "transformer.h.{0}.ln_{1}",
    B + r"[qkv]": "transformer.h.{0}.attn.c_attn.addmm",
    B + r"p": "transformer.h.{0}.attn.softmax",
    B + r"y": "transformer.h.{0}.attn.matmul_1",
    B + r"o": "transformer.h.{0}.attn.c_proj.addmm",
    B + r"x": "transformer.h.{0}.add",
    B + r"f": "transformer.h.{0}.mlp.c_fc.addmm",
    B + r"g": "transformer.h.{0}.mlp.act.mul_3",
    B + r"d": "transformer.h.{0}.mlp.c_proj.addmm",
    B + r"z": "transformer.h.{0}.add_1",
    r"n": "transformer.ln_f",
    r"lg": "lm_head",
}
"""The same file; three values are one of the model's."""

COMPILED_WHISPER = {
    r"model\.encoder\.layers\.(\d)": "model.encoder.layers.{0}.add_1",
    r"model\.decoder\.layers\.(\d)": "model.decoder.layers.{0}.add_2",
    r"model\.decoder\.embed_positions": "model.decoder.embed_positions.index",
    **SAME,
}
COMPILED_LLAMA = {
    r"model\.rotary_emb": "model.rotary_emb.mul_1",  # the first of its two outputs: cosines
    r"model\.layers\.(\d)": "model.layers.{0}.add_1",
    r"model\.norm": "model.norm.mul_1",
    **SAME,
}

H = r"transformer\.h\.(\d)\."
GPT2_IN_C = {
    r"transformer\.embedded": "transformer.add",
    H + r"ln_([12])": "transformer.h.{0}.ln_{1}",
    H + r"attn\.c_attn": "transformer.h.{0}.attn.c_attn.addmm",
    H + r"attn\.keys": "transformer.h.{0}.attn.cat",
    H + r"attn\.values": "transformer.h.{0}.attn.cat_1",
    H + r"attn\.scores": "transformer.h.{0}.attn.add",
    H + r"attn\.probabilities": "transformer.h.{0}.attn.softmax",
    H + r"attn\.attended": "transformer.h.{0}.attn.matmul_1",
    H + r"attn\.c_proj": "transformer.h.{0}.attn.c_proj.addmm",
    H + r"after_attention": "transformer.h.{0}.add",
    H + r"mlp\.c_(fc|proj)": "transformer.h.{0}.mlp.c_{1}.addmm",
    H + r"mlp\.act": "transformer.h.{0}.mlp.act.mul_3",
    H + r"after_mlp": "transformer.h.{0}.add_1",
    r"transformer\.ln_f": "transformer.ln_f",
    r"lm_head": "lm_head",
}
"""case_studies/gpt2_in_c/gpt2.c"""

L = r"/(encoder|decoder)/layers\.(\d)/"
TO = "model.{0}.layers.{1}."
A = L + r"(self_attn|encoder_attn)/"
ATTN = TO + "{2}."
ONNX_WHISPER = {
    r"/encoder/conv([12])/Conv_output_0": "model.encoder.conv{0}",
    r"/encoder/Gelu_output_0": "model.encoder.gelu",
    r"/encoder/Gelu_1_output_0": "model.encoder.gelu_1",
    r"/(encoder|decoder)/Add_output_0": "model.{0}.add",
    r"/decoder/embed_positions/Gather_output_0": "model.decoder.embed_positions.index",
    r"/decoder/embed_tokens/Gather_output_0": "model.decoder.embed_tokens",
    r"/decoder/Where_1_output_0": "model.decoder.where",
    L + r"(self_attn_layer_norm|encoder_attn_layer_norm|final_layer_norm)/LayerNormalization_output_0": TO + "{2}",
    A + r"k_proj/MatMul_output_0": ATTN + "k_proj",  # it has no bias
    A + r"(q_proj|v_proj|out_proj)/MatMul_output_0": NONE,
    A + r"(q_proj|v_proj|out_proj)/Add_output_0": ATTN + "{3}",
    A + r"Mul_output_0": ATTN + "mul",
    A + r"MatMul_output_0": ATTN + "matmul",
    A + r"Mul_1_output_0": ATTN + "mul_1",
    A + r"Add_output_0": ATTN + "add",
    A + r"Softmax_output_0": ATTN + "softmax",
    A + r"MatMul_1_output_0": ATTN + "matmul_1",
    A + r"Concat\w*": NONE,  # copies of the encoder's keys and values
    L + r"(fc[12])/MatMul_output_0": NONE,
    L + r"(fc[12])/Add_output_0": TO + "{2}",
    L + r"activation_fn/Gelu_output_0": TO + "activation_fn.gelu",
    L + r"Add_output_0": TO + "add",
    L + r"Add_(\d)_output_0": TO + "add_{2}",
    r"last_hidden_state": "model.encoder.layer_norm",
    r"present\.(\d)\.key": "model.decoder.layers.{0}.self_attn.cat",
    r"present\.(\d)\.value": "model.decoder.layers.{0}.self_attn.cat_1",
    r"/decoder/layer_norm/LayerNormalization_output_0": "model.decoder.layer_norm",
    r"logits": "proj_out",
    r"/Concat_output_0|/decoder/Cast_output_0|.+/(Reshape|Transpose)(_\d)?_output_0": NONE,  # copies
}

G = r"/model/transformer/"
GH = G + r"h\.(\d)/"
ONNX_GPT2 = {
    G + r"(wpe|wte)/Gather_output_0": "transformer.{0}",
    G + r"Add_output_0": "transformer.add",
    G + r"Where_1_output_0": "transformer.where",
    GH + r"(ln_1|ln_2)/LayerNormalization_output_0": "transformer.h.{0}.{1}",
    GH + r"(attn|mlp)/(c_attn|c_proj|c_fc)/Gemm_output_0": "transformer.h.{0}.{1}.{2}.addmm",
    GH + r"attn/Split_output_\d": NONE,  # parts of c_attn
    r"present\.(\d)\.key": "transformer.h.{0}.attn.cat",
    r"present\.(\d)\.value": "transformer.h.{0}.attn.cat_1",
    GH + r"attn/MatMul_output_0": "transformer.h.{0}.attn.matmul",
    GH + r"attn/Mul_output_0": "transformer.h.{0}.attn.mul",
    GH + r"attn/Add_output_0": "transformer.h.{0}.attn.add",
    GH + r"attn/Softmax_output_0": "transformer.h.{0}.attn.softmax",
    GH + r"attn/MatMul_1_output_0": "transformer.h.{0}.attn.matmul_1",
    GH + r"mlp/act/Pow_output_0": "transformer.h.{0}.mlp.act.pow",
    GH + r"mlp/act/Tanh_output_0": "transformer.h.{0}.mlp.act.tanh",
    GH + r"mlp/act/Mul_output_0": "transformer.h.{0}.mlp.act.mul",
    GH + r"mlp/act/Mul_(\d)_output_0": "transformer.h.{0}.mlp.act.mul_{1}",
    GH + r"mlp/act/Add_output_0": "transformer.h.{0}.mlp.act.add",
    GH + r"mlp/act/Add_1_output_0": "transformer.h.{0}.mlp.act.add_1",
    GH + r"Add_output_0": "transformer.h.{0}.add",
    GH + r"Add_1_output_0": "transformer.h.{0}.add_1",
    G + r"ln_f/LayerNormalization_output_0": "transformer.ln_f",
    r"logits": "lm_head",
    r"/Concat_output_0|.+/Cast_output_0|.+/(Reshape|Transpose)(_\d)?_output_0": NONE,  # copies
}
MADE_UP = re.compile(r"gemm_output_reshape_arg.*")


T = r"graph\.\d+/\d+ "
IN = r"-(\d+)"
LLAMA_CPP = {
    T + r"get_rows embd": "model.embed_tokens",
    T + r"rms_norm before attn_norm" + IN: BLOCK + "input_layernorm.mul",
    T + r"mul attn_norm" + IN: BLOCK + "input_layernorm.mul_1",
    T + r"mul_mat Qcur" + IN: HEADS + "q_proj",
    T + r"mul_mat Kcur" + IN: HEADS + "k_proj",
    T + r"mul_mat Vcur" + IN: HEADS + "v_proj",
    T + r"rope Qcur" + IN: HEADS + "add",
    T + r"rope Kcur" + IN: HEADS + "add_1",
    T + r"mul_mat kq" + IN: HEADS + "matmul",
    T + r"soft_max kq_soft_max" + IN: HEADS + "softmax",
    T + r"mul_mat kqv" + IN: HEADS + "matmul_1",
    T + r"cont kqv_out" + IN: NONE,  # a copy
    T + r"mul_mat attn_out" + IN: HEADS + "o_proj",
    T + r"add ffn_inp" + IN: BLOCK + "add",
    T + r"rms_norm before ffn_norm" + IN: BLOCK + "post_attention_layernorm.mul",
    T + r"mul ffn_norm" + IN: BLOCK + "post_attention_layernorm.mul_1",
    T + r"mul_mat ffn_(gate|up)" + IN: "model.layers.{1}.mlp.{0}_proj",
    T + r"swiglu ffn_swiglu" + IN: MLP + "mul",
    T + r"mul_mat ffn_out" + IN: MLP + "down_proj",
    T + r"add l_out" + IN: BLOCK + "add_1",
    T + r"rms_norm before result_norm": "model.norm.mul",
    T + r"mul result_norm": "model.norm.mul_1",
    T + r"mul_mat result_output": "lm_head",
    T + r"(get_rows|dup|set_rows) .*": NONE,  # rows taken out, copies, what nothing reads
}
"""What llama.cpp calls its tensors in `build_llama`; a norm before its gain is known by what comes after the gain."""

CONVOLVED = "im2col - | mul_mat - | add conv1 | gelu gelu | im2col - | mul_mat - | add conv2 | gelu gelu_1"
ATTENTION = "mul_mat - | soft_max {a}.softmax | mul_mat {a}.matmul_1 | cont - | mul_mat - | add {a}.out_proj"
NORM = "norm - | mul - | add {n}"
FEED_FORWARD = "mul_mat - | add fc1 | gelu activation_fn.gelu | mul_mat - | add fc2"
ENCODER_LAYER = (
    f"{NORM.format(n='self_attn_layer_norm')} | mul_mat - | add self_attn.v_proj | cpy - | mul_mat self_attn.k_proj | "
    f"cpy - | mul_mat - | add self_attn.q_proj | {ATTENTION.format(a='self_attn')} | add add | "
    f"{NORM.format(n='final_layer_norm')} | {FEED_FORWARD} | add add_1"
)
CROSS = "mul_mat encoder_attn.k_proj | scale - | cpy - | mul_mat - | add encoder_attn.v_proj | cpy -"
DECODER_LAYER = (
    f"{NORM.format(n='self_attn_layer_norm')} | mul_mat self_attn.k_proj | scale - | cpy - | mul_mat - | "
    f"add self_attn.v_proj | cpy - | mul_mat - | add self_attn.q_proj | scale - | mul_mat self_attn.matmul | "
    f"soft_max self_attn.softmax | {ATTENTION.format(a='self_attn').split(' | ', 2)[2]} | add add | "
    f"{NORM.format(n='encoder_attn_layer_norm')} | mul_mat - | add encoder_attn.q_proj | "
    f"{ATTENTION.format(a='encoder_attn')} | add add_1 | {NORM.format(n='final_layer_norm')} | {FEED_FORWARD} | "
    "add add_2"
)


def whisper_cpp(layers: int) -> dict[str, str]:
    """By the order in which whisper.cpp's `whisper_build_graph_*` makes the nodes that compute or copy (flash attention
    off): nearly none has a name. A key is the graph, the how manieth of these nodes, and its op, so that another order
    is an error. A product of scores before the scale, which is within the softmax, is `-` as is all that the model
    has not."""

    def of_layers(side: str, line: str) -> list[str]:
        return [_in(f"model.{side}.layers.{n}.", one) for n in range(layers) for one in line.split(" | ")]

    E, D = "model.encoder.", "model.decoder."
    graphs = {
        r"graph\.0": [_in(E, one) for one in CONVOLVED.split(" | ")],
        r"graph\.1": [
            *(_in(E, one) for one in ("cont -", "add add")),
            *of_layers("encoder", ENCODER_LAYER),
            *(_in(E, one) for one in NORM.format(n="layer_norm").split(" | ")),
        ],
        r"graph\.2": of_layers("decoder", CROSS),
        r"graph\.([3-9]|\d\d+)": [
            *(_in(D, one) for one in ("get_rows embed_tokens", "get_rows embed_positions.index", "add add")),
            *of_layers("decoder", DECODER_LAYER),
            *(_in(D, one) for one in NORM.format(n="layer_norm").split(" | ")),
            "mul_mat proj_out",
        ],
    }
    table = {}
    for graph, lines in graphs.items():
        for n, line in enumerate(lines):
            op, name = line.split()
            table[rf"{graph}/{n} {op} .*"] = NONE if name == "-" else name
    return table


def _in(module: str, line: str) -> str:
    op, name = line.split()
    return line if name == "-" else f"{op} {module}{name}"


def truth(graph: Graph, table: Mapping[str, str]) -> dict[int, str]:
    """Candidate id → the reference's name, or ""; KeyError for a value that the table forgets."""
    rules = [(re.compile(pattern), name) for pattern, name in table.items()]
    places = _places(graph)
    stored = (v for v in graph.values if v.kind == "value" and "float" in v.dtype and v.dataset)
    return {v.id: _named(_name(graph, v, places), rules) for v in stored}


def _places(graph: Graph) -> Mapping[int, int]:
    """Op → the how manieth it is in its ggml graph, of those that are no views."""
    seen: dict[str, int] = {}
    places = {}
    for op in graph.ops:
        if "node" in op.attrs:
            places[op.id] = seen.get(op.attrs["graph"], 0)
            seen[op.attrs["graph"]] = places[op.id] + 1
    return places


def _name(graph: Graph, value: Value, places: Mapping[int, int]) -> str:
    """What the engine calls it; of ggml's nodes the graph, the place in it, the op and the tensor's name."""
    if value.op in places:
        op = graph.ops[value.op]
        called = op.attrs.get("called", "")
        if op.kind == "rms_norm":
            called = f"before {graph.ops[graph.readers[value.id][0]].attrs.get('called', '')}"
        return f"{op.attrs['graph']}/{places[op.id]} {op.kind} {called}"
    if not MADE_UP.fullmatch(value.name):
        return value.name
    return next(
        graph.values[w].name
        for op in graph.readers[value.id]
        for w in graph.ops[op].writes
        if graph.ops[op].kind == "Reshape"
    )


def _named(name: str, rules: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, template in rules:
        found = pattern.fullmatch(name)
        if found:
            return template.format(*found.groups())
    raise KeyError(f"no line of the table says what `{name}` is")
