"""firstbad from Python: cheap to import, the verbs as functions, records that come back as they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import firstbad

CLIP = Path(__file__).parents[2] / "case_studies" / "whisper_buffer_wiring" / "clip.wav"
MICRO = {"random_weights": 1, "size": "micro", "audio": CLIP, "audio_context": 40, "max_tokens": 2, "threads": 1}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> firstbad.Result:
    return firstbad.diff(**MICRO, output=tmp_path_factory.mktemp("api"))  # type: ignore[arg-type]


def test_importing_brings_nothing_heavy() -> None:
    code = "import sys, firstbad; print(*{'torch', 'numpy', 'h5py', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_name_is_there_and_documented() -> None:
    assert set(firstbad.__all__) <= set(dir(firstbad))
    for name in firstbad.__all__:
        thing = getattr(firstbad, name)
        assert name == "__version__" or (thing.__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="no attribute 'dif'"):
        firstbad.dif  # noqa: B018  that it is not there is the test


def test_diff_load_and_compare(result: firstbad.Result) -> None:
    assert result.verdict == "match"
    trace = firstbad.load(result.files["candidate"])
    assert isinstance(trace, firstbad.Trace)
    value = trace.graph.by_key["encode", "model.encoder.conv1"]
    assert trace.array(value).shape == (1, 64, 80)
    again = firstbad.compare(result.files["reference"], trace)
    assert again.verdict == "match"
    assert again.values["local_error"] == result.values["local_error"]
    assert firstbad.explain(result.files["reference"], trace) is None


def test_a_result_comes_back_as_it_was(result: firstbad.Result) -> None:
    folder = Path(result.files["candidate"]).parent
    back = firstbad.load(folder)
    assert isinstance(back, firstbad.Result)
    assert back == firstbad.load(folder / "result.json")
    assert back.coverage == result.coverage
    assert back.to_json() == result.to_json()


def test_capture_drives_the_reference(result: firstbad.Result, tmp_path: Path) -> None:
    wishes = {k: v for k, v in MICRO.items() if k != "max_tokens"}
    tokens = result.outputs["candidate"]["tokens"]
    trace = firstbad.capture(tmp_path / "r.h5", candidate=None, tokens=tokens, **wishes)  # type: ignore[arg-type]
    assert trace.role == "reference"
    assert trace.graph.steps == ("encode", "prefill", "decode.0")
    other = firstbad.capture(tmp_path / "c.h5", **MICRO)  # type: ignore[arg-type]
    assert firstbad.compare(trace, other, output=tmp_path / "out").verdict == "match"
    assert (tmp_path / "out" / "result.json").is_file()


def test_a_misspelt_wish() -> None:
    with pytest.raises(firstbad.UsageError, match="unknown wish `max_token`: did you mean `max_tokens`"):
        firstbad.diff(max_token=3)


def test_a_notebook_shows_it_and_escapes_it(result: firstbad.Result) -> None:
    from dataclasses import replace

    nasty = replace(result, outputs={**result.outputs, "candidate": {"text": "<script>alert(1)</script>"}})
    html = nasty._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "✓ match" in html
    trace = firstbad.load(result.files["reference"])
    assert isinstance(trace, firstbad.Trace)
    assert "reference torch, complete" in trace._repr_html_()


def test_the_page_is_made_from_the_docstrings() -> None:
    from firstbad.apipage import page

    stored = Path(firstbad.__file__).with_name("api.md").read_text("utf-8")
    assert stored == page(), "make it again: python -m firstbad.apipage > firstbad/api.md"


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    from firstbad.probes import edits, plan, planner
    from firstbad.run import ModelSpec
    from firstbad.session import prepare

    _, prepared = prepare(ModelSpec("whisper", None, random_weights=1, audio_context=40, size="micro"))
    value = "model.encoder.layers.1.self_attn.v_proj"
    wire = edits.rewire(planner.plan(prepared.config, 40), "encode", value, "x", "model.encoder.layers.0.add_1")
    plan.save(wire, tmp_path / "plan.json")
    (tmp_path / "clip.wav").write_bytes(CLIP.read_bytes())
    monkeypatch.chdir(tmp_path)
    page = Path(firstbad.__file__).with_name("api.md").read_text("utf-8")
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert example
    small = 'audio="clip.wav", random_weights=1, size="micro", audio_context=40, max_tokens=2, threads=1'
    seen: dict[str, object] = {}
    exec(example[1].replace('audio="clip.wav"', small), seen)
    assert isinstance(seen["result"], firstbad.Result)
    assert seen["result"].first_bad is not None
    assert seen["result"].first_bad.value == value
