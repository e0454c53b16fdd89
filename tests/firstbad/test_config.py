"""firstbad.toml: what it gives, and one line for what it cannot mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstbad.config import Variation, load, select
from firstbad.errors import UsageError

WHOLE = """
[gate]
baselines = "kept"

[case.tiny]
model = "whisper"
audio = ["clips/a.wav", "b.wav"]
candidate = "c:plan.json"
max_tokens = 16
steps = ["encode"]
threads = 1
cflags = "-O2 -DX='a b'"
environment = {OMP_NUM_THREADS = 1}
growth = 1.5
tolerances = {"*.softmax" = 2.0}
[[case.tiny.variation]]
threads = 2
cflags = "-O1"

[case.two]
random_weights = 1
size = "micro"
candidate = ["c", "torch:dtype=bfloat16"]
inputs = 4
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "firstbad.toml"


def test_what_it_gives(path: Path, tmp_path: Path) -> None:
    path.write_text(WHOLE)
    config = load(path)
    assert config.baselines == tmp_path / "kept"
    tiny, first, second = config.cases
    assert (tiny.name, tiny.file, tiny.candidate, tiny.inputs) == ("tiny", "tiny.jsonl", "c:plan.json", 10)
    assert tiny.audio == (tmp_path / "clips/a.wav", tmp_path / "b.wav")
    assert (tiny.options.max_tokens, tiny.options.steps, tiny.options.threads) == (16, ("encode",), 1)
    assert tiny.options.cflags == ("-O2", "-DX=a b")
    assert tiny.environment == {"OMP_NUM_THREADS": "1"}
    assert (tiny.growth, tiny.tolerances) == (1.5, (("*.softmax", 2.0),))
    assert tiny.variations == (Variation(2, ("-O1",), {}),)
    assert [first.name, second.name] == ["two@0-c", "two@1-torch"]
    assert (first.spec.random_weights, first.spec.size, first.inputs) == (1, "micro", 4)
    assert second.candidate == "torch:dtype=bfloat16"


def test_cases_by_name(path: Path) -> None:
    path.write_text(WHOLE)
    config = load(path)
    assert [c.name for c in select(config, [])] == ["tiny", "two@0-c", "two@1-torch"]
    assert [c.name for c in select(config, ["two"])] == ["two@0-c", "two@1-torch"]
    assert [c.name for c in select(config, ["two@1-torch"])] == ["two@1-torch"]
    with pytest.raises(UsageError, match=r"no case `tine` in `firstbad.toml`: did you mean `tiny`"):
        select(config, ["tine"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[case.a", "is not TOML"),
        ("", "has no case"),
        ("[cases.a]", "unknown key `cases`: did you mean `case`"),
        ("case = 1", "`case` in .* is no table"),
        ("[case]\na = 1", r"\[case.a\] of .* is no table"),
        ("[case.a]\nmodle = 'whisper'", "unknown key `modle`: did you mean `model`"),
        ("[case.a]\ninputs = 0", "`inputs` in .* not a whole number of at least 1"),
        ("[case.a]\ninputs = true", "`inputs` in .* not a whole number of at least 1"),
        ("[case.a]\ngrowth = 0.5", "`growth` in .* is not a number of at least 1"),
        ("[case.a]\ntolerances = {b = 'x'}", "the tolerance of `b` in .* is not a number"),
        ("[case.a]\ncandidate = 3", "`candidate` in .* is no text"),
        ("[case.a]\naudio = [3]", "`audio` in .* is no list of texts"),
        ("[case.'a/b']", "a case is named by letters"),
        ("[case.a]\nvariation = {threads = 1}", r"write \[\[case.a.variation\]\]"),
        ("[[case.a.variation]]\nthread = 1", "unknown key `thread`: did you mean `threads`"),
    ],
)
def test_what_it_cannot_mean(text: str, words: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_no_file(path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*; give it with --config"):
        load(path)
