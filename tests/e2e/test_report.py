"""The report in a browser: offline, without scripts, by keyboard, on a phone and on paper.

Driven by Playwright with the Chromium of the system; without one these tests are skipped and say what to install.
The folder comes from a real `diff` of the small Whisper with one wrong wire.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firstbad.cli import main
from firstbad.material import write_report
from firstbad.probes import edits
from firstbad.probes.plan import save
from tests.reports.made import made, names_of
from tests.reports.test_render import HOSTILE

from .conftest import MICRO, Bench

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'firstbad[dev]'")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --hide-scrollbars"
).split()

GUILTY = "model.encoder.layers.1.self_attn.v_proj"
READ = "model.encoder.layers.0.add_1"
STRICT = "default-src 'none'; style-src 'unsafe-inline'"  # what a careful server sends: no script, no picture in data

pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def wrong(micro: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a diff whose engine has one wrong wire in encoder layer 1."""
    folder = tmp_path_factory.mktemp("wrong")
    save(edits.rewire(micro.plan, "encode", GUILTY, "x", READ), folder / "plan.json")
    words = ["diff", *MICRO, "--max-tokens", 3, "--candidate", f"c:{folder / 'plan.json'}", "-o", folder / "out"]
    assert main([str(word) for word in words]) == 1
    return folder / "out"


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens a page from its file; whatever it asks for and whatever it complains of fails the test."""
    contexts: list[Any] = []
    trouble: list[str] = []

    def open_page(path: Path, fragment: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: trouble.append(f"console: {m.text}"))
        page.on("pageerror", lambda e: trouble.append(f"error: {e}"))
        page.on("request", lambda r: r.url.startswith(("file:", "data:")) or trouble.append(f"request: {r.url}"))
        page.goto(path.as_uri() + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def milliseconds(page: Any) -> float:
    """From the start of the navigation to the end of its load event; the best of three, since machines are shared."""
    times = [page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")]
    for _ in range(2):
        page.reload()
        times.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    return float(min(times))


def shown(page: Any) -> str:
    """The name in the open inspector."""
    return str(page.locator(".panel:visible h3").inner_text())


def test_diff_writes_the_page(wrong: Path, opened: Open) -> None:
    page = opened(wrong / "report.html")
    assert (wrong / "report.html").stat().st_size < 5_000_000
    assert milliseconds(page) < 1000
    assert "reads" in page.locator("h1").inner_text()
    assert page.locator("h1 code").all_inner_texts()[1:] == [READ, "model.encoder.layers.1.self_attn_layer_norm"]
    assert page.locator(".word").inner_text().startswith("Diverged")
    assert shown(page) == GUILTY


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("light", {}),
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}),
    ],
)
def test_screens(wrong: Path, opened: Open, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    page = opened(wrong / "report.html", **options)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0  # nothing sticks out
    page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
    assert (tmp_path / f"{name}.png").stat().st_size > 50_000
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 21, 27)"
    assert dark == (name == "dark")


def test_on_paper(wrong: Path, opened: Open, tmp_path: Path) -> None:
    page = opened(wrong / "report.html")
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible()
    assert page.locator(".map:visible").count() == page.locator(".map").count()  # every step, there are no tabs
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert 2 <= pages(tmp_path / "report.pdf") <= 15


@pytest.mark.parametrize("how", ["off", "policy"])
def test_with_scripts_blocked(wrong: Path, browser: Any, how: str) -> None:
    context = browser.new_context(java_script_enabled=how == "policy")
    page = context.new_page()
    if how == "policy":
        body = (wrong / "report.html").read_text("utf-8")
        page.route("http://report.test/", lambda route: route.fulfill(
            body=body, content_type="text/html; charset=utf-8", headers={"Content-Security-Policy": STRICT}
        ))  # fmt: skip # one route
        page.goto("http://report.test/")
    else:
        page.goto((wrong / "report.html").as_uri())
    assert page.locator("h1").is_visible()
    assert page.locator(".map:visible .cell").count() > 20
    assert page.locator(".map:visible .cell.fault").count() == 1
    assert page.locator("table.values tbody tr").count() > 5
    assert page.locator(".panel:visible .triptych svg path").count() > 20
    assert page.locator(".panel:visible").count() == 1
    assert page.locator(".depth .area").is_visible()
    assert not page.locator(".filters").is_visible()
    page.locator("label[for=step-1]").click()  # the tabs need no script
    assert page.locator(".map-1").is_visible()
    assert not page.locator(".map-0").is_visible()
    context.close()


def test_the_keyboard_alone(wrong: Path, opened: Open) -> None:
    page = opened(wrong / "report.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("1")
    assert shown(page) == GUILTY
    assert page.evaluate("document.activeElement.dataset.row") == page.locator(".panel:visible").get_attribute(
        "data-row"
    )
    assert page.evaluate(f"decodeURIComponent(location.hash) === '#value-{GUILTY}@encode'")
    page.keyboard.press("u")
    assert shown(page) == "model.encoder.layers.1.self_attn_layer_norm"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.locator("tr.selected").count() == 1
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('.panel') !== null")
    page.keyboard.press("?")
    assert page.locator("dialog.help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog.help").is_visible()
    page.keyboard.press("/")
    page.keyboard.type("v_proj")
    assert page.locator("table.values tbody tr").count() > 1
    assert all("v_proj" in text for text in page.locator("td.col-name").all_inner_texts())


def test_arrows_move_in_the_map(wrong: Path, opened: Open) -> None:
    page = opened(wrong / "report.html", f"#value-{GUILTY}@encode")
    page.locator(".map:visible .cell.fault").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".selection-name").inner_text() == "model.encoder.layers.1.self_attn.matmul"
    page.keyboard.press("ArrowUp")
    assert page.locator(".selection-name").inner_text() == "model.encoder.layers.0.self_attn.matmul"


def test_a_click_and_everything_follows(wrong: Path, opened: Open) -> None:
    page = opened(wrong / "report.html")
    cell = page.locator('.map:visible .cell[aria-label^="model.encoder.layers.1.fc1:"]')
    cell.click()
    name = "model.encoder.layers.1.fc1"
    assert page.locator(".selection-name").inner_text() == name
    assert shown(page) == name
    assert name in page.locator(".depth-text").inner_text()
    assert page.locator("tr.selected td.col-name").inner_text() == name
    assert page.locator(".memory .box.on").count() >= 1
    page.locator("label[for=step-2]").click()
    assert page.locator(".map-2").is_visible()
    page.locator(".map-2 .strip button").nth(1).click()
    assert page.locator(".map-2 .map-step b").inner_text() == "decode.1"
    assert "decode.1" in page.locator(".selection-facts").inner_text()


def test_deep_links(wrong: Path, opened: Open) -> None:
    page = opened(wrong / "report.html", "#value-model.encoder.layers.0.fc1")
    assert shown(page) == "model.encoder.layers.0.fc1"
    assert page.locator("#inspector").bounding_box()["y"] < 900
    page = opened(wrong / "report.html", "#value-proj_out@decode.1&sort=-local&q=proj")
    assert shown(page) == "proj_out"
    assert "decode.1" in page.locator(".panel:visible .panel-facts").inner_text()
    assert page.locator('.values th[aria-sort="descending"]').inner_text() == "local error"
    assert page.locator(".filters input[type=search]").input_value() == "proj"


def test_sort_and_filter(wrong: Path, opened: Open) -> None:
    page = opened(wrong / "report.html")
    rows = page.locator("table.values tbody tr")
    before = rows.count()
    page.locator(".filters input[type=checkbox]").check()
    assert rows.count() >= before
    page.locator(".values th[data-key=times] button").click()
    assert page.locator("td.col-name").first.inner_text() == GUILTY
    assert "sort=-times" in page.url
    page.locator(".values th[data-key=name] button").click()
    names = page.locator("td.col-name").all_inner_texts()
    assert names[0] == "generate.argmax:int64"
    page.locator(".filters input[type=search]").fill("softmax prefill")
    assert set(page.locator("td.col-step").all_inner_texts()) == {"prefill"}
    assert all(name.endswith("softmax") for name in page.locator("td.col-name").all_inner_texts())
    page.locator(".filters input[type=search]").fill("nothing like it")
    assert rows.all_inner_texts() == ["no value matches the filter"]


def test_copying_the_command(wrong: Path, opened: Open) -> None:
    page = opened(wrong / "report.html", permissions=["clipboard-read", "clipboard-write"])
    page.locator("#verdict .copy").click()
    page.locator("#verdict .copy", has_text="Copied").wait_for()
    shown = page.locator("#verdict .command code").inner_text()
    plan, out = (str(wrong.parent / name) for name in ("plan.json", "out"))
    assert shlex.split(shown) == [
        *("firstbad", "diff", *map(str, MICRO), "--max-tokens", "3", "--candidate", f"c:{plan}", "-o", out)
    ]
    assert page.evaluate("navigator.clipboard.readText()") == shown


def test_a_screen_reader_finds_its_way(wrong: Path, opened: Open) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'firstbad[dev]'")
    for options in ({}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 844}}):
        page = opened(wrong / "report.html", bypass_csp=True, **options)
        found = axe.Axe().run(page).response["violations"]
        bad = [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found if v["impact"] in ("serious", "critical")]
        assert bad == []


def test_a_match(tmp_path: Path, opened: Open) -> None:
    write_report(made(tmp_path, fault=""))
    page = opened(tmp_path / "report.html")
    assert page.locator(".word").inner_text() == "Match"
    page.keyboard.press("1")
    assert page.locator(".panel:visible .panel-facts .tag").inner_text() == "✓ clean"
    assert page.locator("table.values tbody tr").count() == 23


def test_hostile_names_in_a_browser(tmp_path: Path, opened: Open) -> None:
    steps = (("<i>step</i>", HOSTILE), ("decode.0", names_of(1)), ("decode.1", names_of(1)))
    write_report(made(tmp_path, steps=steps, fault=HOSTILE[3], text=(HOSTILE[0], HOSTILE[4])))
    page = opened(tmp_path / "report.html")
    page.on("dialog", lambda d: pytest.fail(d.message))
    page.locator(".filters input[type=checkbox]").check()
    page.locator("table.values tbody tr").first.click()
    for _ in HOSTILE:
        page.keyboard.press("j")
        page.keyboard.press("Enter")
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("count", [3000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_large_runs_open_quickly(tmp_path: Path, opened: Open, count: int) -> None:
    names = [f"model.layers.{i // 50}.op{i % 50}" for i in range(count)]
    path = write_report(made(tmp_path, steps=(("forward", names),), fault=names[count // 3], shape=(4, 8)))
    assert path.stat().st_size < 10_000_000
    page = opened(path)
    assert milliseconds(page) < 2000
    assert "have no picture, to keep this file small" in page.locator("#inspector").inner_text()
    page.keyboard.press("1")
    assert shown(page) == names[count // 3]
    drawing = page.locator(".map-svg.field")
    box = drawing.bounding_box()
    drawing.click(position={"x": box["width"] / 2, "y": 20})
    assert page.locator(".selection-name").inner_text() != names[count // 3]


@pytest.mark.parametrize("paper", ["A4", "Letter"])
@pytest.mark.parametrize("run", ["wrong", "hostile", "match"])
def test_the_worksheet_is_one_page(
    tmp_path: Path, opened: Open, paper: str, run: str, request: pytest.FixtureRequest
) -> None:
    if run == "wrong":
        folder = request.getfixturevalue("wrong")
    elif run == "match":
        folder = made(tmp_path, fault="")
    else:
        long = ("many words " * 300, "other words " * 300)
        folder = made(tmp_path, steps=(("s", HOSTILE),), fault=HOSTILE[6], text=long, command="firstbad " + "x " * 900)
    page = opened(write_report(folder, "worksheet", tmp_path / "worksheet.html"))
    page.pdf(path=tmp_path / "sheet.pdf", format=paper)
    assert pages(tmp_path / "sheet.pdf") == 1


def pages(path: Path) -> int:
    """Pages of a PDF, by poppler."""
    if not shutil.which("pdfinfo"):
        pytest.skip("no pdfinfo: apt-get install poppler-utils")
    told = subprocess.run(["pdfinfo", path], capture_output=True, text=True, check=True).stdout
    return int(next(line for line in told.splitlines() if line.startswith("Pages:")).split()[1])
