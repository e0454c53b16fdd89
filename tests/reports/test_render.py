"""Every report of made-up folders: it renders, says what it must, stays small, and shows hostile text as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from firstbad.cli import main
from firstbad.errors import UsageError
from firstbad.material import kinds, open_material, write_report

from .made import made, names_of

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</script><script>alert(1)</script>",
    "a & b &lt;b&gt; 'quoted' \"twice\"",
    "\u202eright to left: שלום עולם\u202c",
    "layers.0.مرحبا",
    "x" * 500,
    "spaces and\ttabs\nlines",
    "`ticks` | bars | *stars* _under_ [link](http://example.test) <b>",
    "${jndi} {{ 7 * 7 }} {% raw %} #{x}",
    "–𝕏\u2028\u2029\ufeff",
]


class Page(HTMLParser):
    """Elements and text of a page, as a parser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def text(self) -> str:
        return "".join(self.words)


def test_the_reports_that_are_files() -> None:
    assert kinds() == ["html", "md", "png", "polygraphy", "svg", "worksheet"]


def test_the_page_without_scripts(tmp_path: Path) -> None:
    text = write_report(made(tmp_path)).read_text("utf-8")
    page = Page(text)
    assert "model.layers.1.attn.v_proj" in page.text
    assert "10,000,000 times the noise floor" in page.text
    assert "kernels.c:42" in page.text
    for part in ("verdict", "cause", "map", "depth", "inspector", "table", "time", "memory", "ran"):
        assert any(attrs.get("id") == part for _, attrs in page.tags), part
    cells = [attrs for tag, attrs in page.tags if tag == "a" and str(attrs.get("class", "")).startswith("cell")]
    assert len(cells) == len(names_of(3))
    assert sum("fault" in str(cell["class"]).split() for cell in cells) == 1
    first = text.index('class="panel first"')
    assert text.index("<path", first) < text.index("</article>", first)  # its pictures are drawn, not loaded
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs.get("href")]
    assert all(str(link).startswith("#") for link in links)
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)


def test_only_its_own_script_may_run(tmp_path: Path) -> None:
    text = write_report(made(tmp_path)).read_text("utf-8")
    page = Page(text)
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    assert page.count("script") == 2  # the data and the script
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)


@pytest.mark.parametrize("kind", ["html", "worksheet", "md", "svg", "png"])
def test_hostile_text_is_text(tmp_path: Path, kind: str) -> None:
    folder = made(
        tmp_path,
        steps=(("<i>step</i>", HOSTILE),),
        fault=HOSTILE[3],
        text=(HOSTILE[0], HOSTILE[4] + HOSTILE[8]),
        command=f"firstbad diff '{HOSTILE[2]}'",
        cause="unknown",
    )
    path = write_report(folder, kind)
    if kind == "png":
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    text = path.read_text("utf-8")
    if kind == "md":
        fences = re.sub(r"(?ms)^```\w*\n.*?\n```$", "", text)
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", fences)  # what stands in no code
        assert "<script>" not in outside
        assert "<img" not in outside
        assert "](http" not in outside
        return
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "<i>step" not in text
    if kind == "svg":
        return
    page = Page(text)
    assert page.count("script") == (2 if kind == "html" else 0)
    assert HOSTILE[0] in page.text
    if kind == "html":
        assert "{{ 7 * 7 }} {% raw %}" in page.text
        data = json.loads(text[text.index('id="data">') + 10 :].partition("</script>")[0])
        assert [data["texts"][i] for i in data["name"]] == HOSTILE


@pytest.mark.parametrize("cause", ["wrong_input", "clobbered", "stale", "unknown"])
def test_causes_as_pictures(tmp_path: Path, cause: str) -> None:
    text = write_report(made(tmp_path, cause=cause)).read_text("utf-8")
    scene = text[text.index('class="scene"') : text.index('id="map"')]
    words = {
        "wrong_input": ("should read", "✗ wrong wire"),
        "clobbered": ("should read", "✗ overwritten", "written over it at"),
        "stale": ("should read", "✗ dead buffer"),
        "unknown": ("reads, as it should",),
    }
    for word in words[cause]:
        assert word in scene
    assert ("Proved" in text) == (cause != "unknown")
    assert ('class="cross"' in text) == (cause == "clobbered")


def test_a_match_is_as_clear(tmp_path: Path) -> None:
    text = write_report(made(tmp_path, fault="")).read_text("utf-8")
    page = Page(text)
    assert "All 23 values are right given their own inputs" in page.text
    assert "is at 1.0 of 3 noise floors" in re.sub(r"\s+", " ", page.text)
    assert "Everything agrees. These 23 are the nearest to their limit." in re.sub(r"\s+", " ", page.text)
    assert 'id="cause"' not in text
    assert "✓ Match" in text


def test_a_run_that_died(tmp_path: Path) -> None:
    folder = made(tmp_path, fault="", death="was killed by SIGSEGV in op 3")
    assert "the candidate was killed by SIGSEGV in op 3" in write_report(folder).read_text("utf-8")
    empty = made(tmp_path / "empty", steps=(), fault="", death="died before its first value")
    for kind in ("html", "worksheet", "md"):
        assert "died before its first value" in write_report(empty, kind).read_text("utf-8")


def test_an_engine_that_records_little(tmp_path: Path) -> None:
    folder = made(tmp_path, bare=True, cause="unknown")
    text = write_report(folder).read_text("utf-8")
    assert 'id="time"' not in text
    assert 'id="memory"' not in text
    assert "Not explained" in text
    assert "The candidate recorded no times." in write_report(folder, "worksheet").read_text("utf-8")


def test_without_the_traces(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / "candidate.h5").unlink()
    text = Page(write_report(folder).read_text("utf-8")).text
    assert "Without pictures: " in text
    assert "candidate.h5" in text
    assert "model.layers.1.attn.v_proj" in text
    for kind in ("worksheet", "md", "svg"):
        write_report(folder, kind)


def test_traces_that_lie_elsewhere(tmp_path: Path) -> None:
    """`compare -o` into a folder that holds the traces of another run."""
    made(tmp_path / "a")
    made(tmp_path / "b", fault="")
    (tmp_path / "b" / "result.json").write_text((tmp_path / "a" / "result.json").read_text("utf-8"), "utf-8")
    with open_material(tmp_path / "b") as material:
        assert material.candidate is not None
        assert material.candidate.path.parent.name == "a"


def test_a_folder_that_was_moved(tmp_path: Path) -> None:
    made(tmp_path / "a").rename(tmp_path / "b")
    with open_material(tmp_path / "b") as material:
        assert material.reference is not None
        assert material.candidate is not None
        assert material.missing == ()


def test_the_size_of_large_runs(tmp_path: Path) -> None:
    names = [f"model.layers.{i // 50}.op{i % 50}" for i in range(3000)]
    path = write_report(made(tmp_path, steps=(("forward", names),), fault=names[999], shape=(4, 8)))
    text = path.read_text("utf-8")
    assert path.stat().st_size < 3_000_000
    assert re.search(r"\d+ of 3000 have no picture, to keep this file small", text)
    assert "more do not agree: with scripts this table shows them" in text


def test_markdown(tmp_path: Path) -> None:
    text = write_report(made(tmp_path), "md").read_text("utf-8")
    lines = text.splitlines()
    assert lines[0] == "## ✗ Diverged"
    assert (
        "| `model.layers.1.attn.v_proj` | `encode` | `linear` | `kernels.c:42` | 1 | 1e-07 | 10,000,000 | wrong input |"
        in lines
    )
    assert "layer 1 🟦🟦❌🟧🟧🟧🟧" in lines
    assert lines[-2] == "firstbad diff --model whisper"


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = made(tmp_path)
    for kind in ("html", "worksheet", "md", "svg"):
        assert write_report(folder, kind).read_bytes() == write_report(folder, kind, tmp_path / "again").read_bytes()


def test_a_report_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("def render(material):\n    return material.result['verdict']\n")
    assert write_report(made(tmp_path / "run"), str(own)).read_text() == "diverged"


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert main(["report", str(folder), "--report", "md", "-o", str(tmp_path / "x.md")]) == 0
    assert (tmp_path / "x.md").is_file()
    capsys.readouterr()
    for words, message in (
        ([str(tmp_path / "none")], "run `firstbad diff` first"),
        ([str(folder), "--report", "htm"], "did you mean `html`?"),
        ([str(folder), "--report", "terminal"], "`terminal` is no report of an output folder"),
        ([str(folder), "-o", str(tmp_path / "no" / "x.html")], "cannot write"),
    ):
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_pictures_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'firstbad\[plot\]'"):
        write_report(made(tmp_path), "png")
