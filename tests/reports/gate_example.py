"""A gate's result made by hand: every kind of finding, and text that breaks careless writers."""

from __future__ import annotations

from pathlib import Path

from firstbad.finding import CaseResult, Finding, GateResult, InputRun
from firstbad.measured import Row

VALUE = "model.encoder.layers.1.self_attn.v_proj"
NASTY = "a <b> & \"c\" 'd' %0A ::error::x | `e` *f* \x07 \ud800 e\u0301 \U0001f600, 100%: done"

ERRORS = (0.5, 0.6, 0.7, 0.7, 0.6, 2.0)
ROWS = tuple(
    Row(step, name, "linear", (1, "n", 64), "float32", (), False, ERRORS, (1.0,) * 6, 40, "engine.c", 12)
    for step, name in [
        ("encode", "model.encoder.conv1"),
        ("encode", "model.encoder.layers.1.self_attn.q_proj"),
        ("encode", VALUE),
        ("decode", "model.decoder.layers.0.fc1"),
    ]
)

FAULT = Finding(
    "fault",
    f"{VALUE} (encode), op linear, engine.c:12: local error 0.5, 9 times the noise floor",
    VALUE,
    "encode",
    "engine.c",
    12,
    "wrong_input: v_proj of encoder layer 1 reads model.encoder.layers.0.add_1",
    "element [0, 1, 2]: candidate 1, expected 2 (9 ulp)",
    9.0,
    ("clip.wav",),
)


def case(*findings: Finding, name: str = "micro") -> CaseResult:
    inputs = (InputRun("clip.wav", "match", (1, 2), "text", {"candidate": 0.5}, ""),)
    return CaseResult(
        name, "a model", "c", findings, inputs, ROWS, {"torch": "2.13.0"}, 3, f"firstbad gate {name}", 1.5
    )


def gate(root: Path, *cases: CaseResult) -> GateResult:
    """With `engine.c` as part of the repository at `root`."""
    (root / ".git").mkdir(exist_ok=True)
    (root / "engine.c").write_text("x\n" * 20)
    return GateResult(cases, str(root), "firstbad gate", "2026-07-01T12:00:00+00:00", "c0ffee" * 6)


def everything(root: Path) -> GateResult:
    """Green, red with all kinds, and not run."""
    creep = Finding("creep", NASTY, "model.decoder.layers.0.fc1", "decode", "gone.c", 3)
    tokens = Finding("tokens", "token 0 is 1, 2 in the baseline", inputs=("clip.wav",))
    told = [Finding("waived", NASTY, "model.encoder.conv1", "encode", "engine.c", 2), Finding("note", "a note")]
    return gate(
        root,
        case(Finding("environment", "torch: 2.12 then, 2.13 now"), name="green"),
        case(FAULT, creep, tokens, *told, name="red"),
        case(Finding("incomplete", "the candidate killed by SIGSEGV"), name="dead"),
        case(Finding("usage", "there is no baseline of case new"), name="new"),
    )
