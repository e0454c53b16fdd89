"""Rules that the repository itself keeps: what is shipped, how long files are, which words and imports never appear."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    "firstbad": "firstbad",
    "reference": "firstbad/reference",
    "probes": "firstbad/probes",
    "reports": "firstbad/reports",
}

FILE_LINES = 600
PRODUCT_LINES = 45_000  # of the four rooms together; raise it only with a line in CHANGELOG.md that says for what


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the repository is not known")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def product(*suffixes: str) -> list[Path]:
    return [path for path in tracked() if path.parts[0] in ROOMS and path.suffix in suffixes]


def text(path: Path) -> str:
    return (ROOT / path).read_text("utf-8")


def prose_and_code() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        try:
            yield path, text(path)
        except UnicodeDecodeError:  # a recording, a picture
            continue


def test_the_wheel_holds_the_four_rooms_and_nothing_else(tmp_path: Path) -> None:
    tree, dist = tmp_path / "tree", tmp_path / "dist"
    dist.mkdir()
    for path in tracked():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tree / path)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(dist)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = dist.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{ROOMS[path.parts[0]]}/{path.relative_to(path.parts[0])}" for path in tracked() if path.parts[0] in ROOMS
    }
    assert expected - shipped == set(), "tracked, but not in the wheel: see [tool.setuptools.package-data]"
    assert shipped - expected == set(), "in the wheel, but not tracked"


def test_files_are_short() -> None:
    lengths = {str(path): text(path).count("\n") for path in product(".py", ".c", ".h")}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}
    assert sum(lengths.values()) <= PRODUCT_LINES


def test_every_python_file_says_what_it_is() -> None:
    silent = [
        str(path)
        for path in product(".py")
        if text(path).strip() and not ast.get_docstring(ast.parse(text(path))) and path.name != "__init__.py"
    ]
    assert not silent, "\n".join(silent)


def test_no_word_of_this_machine() -> None:
    # in pieces, so that this file passes
    folders = "|".join(["work", "root", "home/[a-z]+", "Users"])
    hosts = "|".join(
        [r"pypi\.", r"files\.pythonhosted\.", r"deb\.debian\.", r"registry\.npmjs\.", r"download\.pytorch\."]
    )
    forbidden = re.compile(rf"(?<![\w.~-])/(?:{folders})/|(?:{hosts})(?:org|com)")
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, content in prose_and_code()
        for number, line in enumerate(content.splitlines(), 1)
        if forbidden.search(line)
    ]
    assert not found, "\n".join(found)


def test_rooms_are_reached_by_name_only_and_heavy_imports_wait() -> None:
    found = []
    for path in product(".py"):
        tree = ast.parse(text(path))
        for node in ast.walk(tree):
            for name in _imported(node):
                bare = name.split(".")[0] in {"reference", "probes", "reports"}
                sideways = path.parts[0] == "firstbad" and re.match(r"firstbad\.(reference|probes|reports)\b", name)
                if (bare or sideways) and not _type_checking(tree, node):
                    found.append(f"{path}:{getattr(node, 'lineno', 0)}: imports {name}")
        if path.parts[0] == "firstbad":
            found += [
                f"{path}:{node.lineno}: imports {name} before it is needed"
                for node in tree.body
                for name in _imported(node)
                if name.split(".")[0] in {"torch", "transformers", "h5py"}
            ]
    assert not found, "\n".join(found)


def test_case_studies_use_the_public_interface() -> None:
    found = [
        f"{path}:{getattr(node, 'lineno', 0)}: imports {name}"
        for path in tracked()
        if path.parts[0] == "case_studies" and path.suffix == ".py"
        for node in ast.walk(ast.parse(text(path)))
        for name in _imported(node)
        if any(part.startswith("_") for part in name.split(".") if part != "__future__")
    ]
    assert not found, "\n".join(found)


def test_every_silenced_rule_has_its_why_beside_it() -> None:
    silence = re.compile(
        r"#\s*(noqa|type: ignore|pragma: no cover|fmt: (?:off|skip))"
        r"(:\s*[A-Z]+\d+(?:[, ]+[A-Z]+\d+)*|\[[\w, -]+\])?(.*)"
    )
    found = []
    for path in tracked():
        if path.suffix != ".py" or path.name == Path(__file__).name:
            continue
        typed = path.parts[0] in ROOMS  # mypy reads no tests: what they say to it is said to editors
        for number, line in enumerate(text(path).splitlines(), 1):
            if (
                (match := silence.search(line))
                and (typed or match[1] != "type: ignore")
                and (
                    len(re.findall(r"[A-Za-z]{2,}", match[3])) < 2
                    or (match[1] in {"noqa", "type: ignore"} and not match[2])
                )
            ):
                found.append(f"{path}:{number}: {line.strip()}")
    settings = re.search(r"(?s)\nignore = \[\n(.*?)\n\]", text(Path("pyproject.toml")))
    assert settings
    found += [line for line in settings[1].splitlines() if "#" not in line]
    assert not found, "\n".join(found)


def test_what_is_installed_is_pinned_for_the_tests() -> None:
    project = tomllib.loads(text(Path("pyproject.toml")))["project"]
    wanted = [
        *project["dependencies"],
        *(need for needs in project["optional-dependencies"].values() for need in needs),
    ]
    names = {re.split(r"[\[<>=!~; ]", need)[0].lower() for need in wanted} - {"firstbad"}
    pinned = {line.split("==")[0].lower() for line in text(Path("constraints.txt")).splitlines() if "==" in line}
    assert names - pinned == set()


def test_links_between_pages_lead_somewhere() -> None:
    dead = [
        f"{path}: {target}"
        for path in tracked()
        if path.suffix == ".md"
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text(path))
        if not (ROOT / path.parent / target).exists()
    ]
    assert not dead, "\n".join(dead)


def test_recordings_are_the_ones_described() -> None:
    page = text(Path("tests/data/speech/PROVENANCE.md"))
    folder = ROOT / "tests/data/speech"
    described = dict(re.findall(r"\| `(\w+\.wav)` .*`([0-9a-f]{64})` \|", page))
    assert described == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.wav")}


def test_scripts_can_be_run() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _type_checking(tree: ast.Module, node: ast.AST) -> bool:
    guards = (guard for guard in tree.body if isinstance(guard, ast.If) and ast.unparse(guard.test) == "TYPE_CHECKING")
    return any(node in ast.walk(guard) for guard in guards)
