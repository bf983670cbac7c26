"""The terminal's map as text, and the page in a real Chromium: what people see, click and type."""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.explorer.page import Map, text_of, write_page
from regard.explorer.terminal import draw, ramp
from tests.needs import need

SOURCE: list[str] = ["Ein", "Mann", "fährt", "auf", "einem", "roten", "Rad"]
TARGET: list[str] = ["A", "man", "rides", "a", "bike"]
ATTACK = "</script><script>document.title='run'</script><img src=x onerror=document.title='run'>"
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"


def attention(*shape: int, seed: int = 1) -> np.ndarray:
    scores = np.exp(3 * np.random.default_rng(seed).normal(size=shape))
    return scores / scores.sum(-1, keepdims=True)


def a_map(model: str, source: list[str], target: list[str], heads: int = 3) -> Map:
    cross = attention(heads, len(target), len(source))
    own = attention(heads, len(source), len(source), seed=2)
    return {
        "model": model,
        "name": " ".join(source),
        "answer": " ".join(target),
        "rows": target,
        "columns": source,
        "sites": [
            {"name": "decoder.0.cross", "weights": cross},
            {"name": "encoder.0.self", "weights": own, "rows": source, "columns": source},
        ],
    }


# ── terminal ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def printed(drawing: object, width: int = 80, **options: Any) -> list[str]:
    console = Console(width=width, file=open(os.devnull, "w"), record=True, **options)  # noqa: SIM115
    with console.file:
        console.print(drawing)
    return console.export_text(styles="color_system" in options).splitlines()


@pytest.mark.parametrize("width", [13, 31, 80, 211])
@pytest.mark.parametrize(
    "columns", [SOURCE, list("the 25th of June"), ["汉字", "שלום", "e\u0301te\u0301", "a\nb", ""] * 13]
)
def test_terminal_map_never_exceeds_the_console(width: int, columns: list[str]):
    lines = printed(draw(attention(5, len(columns)), TARGET, columns, "title"), width)
    assert all(cell_len(line) <= width for line in lines)
    assert sum(line.lstrip().startswith(("A ", "man ", "rides ", "a ", "bike ")) for line in lines) >= (
        5 if width > 20 else 1
    )


def test_terminal_map_says_what_it_leaves_out():
    weights = [[0.5, 0.0, *[0.0] * 56, 0.25, 0.25]]
    lines = printed(draw(weights, ["row"], [f"c{i}" for i in range(60)], "wide"), 40)
    assert "of 60 columns fit; the others hold 50 % of the attention" in " ".join(lines)
    assert any(line.startswith("row") and line.rstrip().endswith("…") for line in lines)


def test_terminal_map_without_colour_shades_with_blocks():
    lines = printed(draw([[0.0, 1.0]], ["r"], ["a", "b"], "t"), no_color=True)
    assert "r   ██" in lines


def test_terminal_map_has_colours_where_the_console_has():
    coloured = "\n".join(
        printed(draw([[0.0, 1.0]], ["r"], ["a", "b"], "t"), color_system="truecolor", force_terminal=True)
    )
    red, green, blue = ramp(1.0)
    assert f"48;2;{red};{green};{blue}" in coloured


def oklab_lightness(*rgb: int) -> float:
    """Ottosson 2020: linear light → cone responses → their cube roots, weighted."""
    encoded = np.array(rgb) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    cones = np.array(
        [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.6299787]]
    )
    return float(np.cbrt(cones @ linear) @ [0.21045426, 0.79361779, -0.00407205])


def test_the_ramp_grows_evenly_in_lightness():
    lightness = [oklab_lightness(*ramp(step / 16)) for step in range(17)]
    steps = np.diff(lightness)
    assert steps.min() > 0
    assert steps.max() < 1.5 * steps.min()


def test_terminal_map_takes_any_tensor_and_refuses_wrong_labels():
    import torch

    weights = torch.softmax(torch.randn(5, 7, dtype=torch.bfloat16, requires_grad=True), -1)
    assert printed(draw(weights, TARGET, SOURCE, "title"))[0].strip() == "title"
    with pytest.raises(ValueError, match="weights are 5 × 7, labels are 7 × 5"):
        draw(weights, SOURCE, TARGET, "title")


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def embedded(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_weights_survive_within_the_stated_rounding(tmp_path: Path):
    given = a_map("m", SOURCE, TARGET)
    data = embedded(write_page(tmp_path / "page.html", "t", [given]))
    for site, original in zip(data["maps"][0]["sites"], given["sites"], strict=True):
        read = np.frombuffer(base64.b64decode(site["weights"]), "<u2") / data["steps"]
        shape = (site["heads"], len(site["rows"]), len(site["columns"]))
        assert np.abs(read.reshape(shape) - original["weights"]).max() <= 0.5 / data["steps"] + 1e-7


def test_wrong_weights_are_refused_by_the_name_of_their_site(tmp_path: Path):
    for weights, reason in ((attention(3, 7, 5), "its labels need"), (attention(3, 5, 7) * 3, "outside 0–1")):
        given = a_map("m", SOURCE, TARGET)
        given["sites"][0]["weights"] = weights
        with pytest.raises(ValueError, match=rf"decoder\.0\.cross.*{reason}"):
            write_page(tmp_path / "page.html", "t", [given])
    given = a_map("m", SOURCE, TARGET)
    given["sites"][1]["weights"] = np.full((3, 7, 7), np.nan)
    with pytest.raises(ValueError, match=r"encoder\.0\.self"):
        write_page(tmp_path / "page.html", "t", [given])


# ── the page in a browser ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = os.environ.get("REGARD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    need(chromium, "a browser is missing: install Chromium, or name one in REGARD_CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        need(False, "playwright is missing: pip install 'regard[test]'")
        raise
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        yield opened
        opened.close()


class Visit:
    """A page opened from disk that remembers every complaint and every request that is not the file itself."""

    def __init__(self, browser: Any, path: Path, **options: Any):
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(**options)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    visits: list[Visit] = []

    def open_page(maps: list[Map], title: str = "title", **options: Any) -> Visit:
        visits.append(Visit(browser, write_page(tmp_path / "page.html", title, maps), **options))
        return visits[-1]

    yield open_page
    for each in visits:
        assert each.complaints == []
        assert [url for url in each.requests if not url.startswith("file:")] == []
        each.page.close()


def strongest(weights: np.ndarray, columns: list[str]) -> str:
    return columns[int(weights.argmax())]


def test_hover_reads_a_row_and_click_keeps_it(visit: Any):
    given = a_map("m", SOURCE, TARGET)
    mean = given["sites"][0]["weights"].mean(0)
    opened = visit([given])
    token = opened.page.locator("#looking button").nth(2)
    token.hover()
    assert opened.text("#reading") == "“rides” looks at"
    assert opened.text("#ranking li:first-child bdi") == strongest(mean[2], SOURCE)
    shown = opened.page.locator("#looked button small").all_inner_texts()
    assert [float(percent or 0) for percent in shown] == pytest.approx(100 * mean[2], abs=0.51)
    opened.page.mouse.move(1, 1)
    assert opened.text("#reading") == "The strongest looks"
    token.click()
    opened.page.mouse.move(1, 1)
    assert opened.text("#reading") == "“rides” looks at"
    opened.page.keyboard.press("Escape")
    assert opened.text("#reading") == "The strongest looks"


def test_lines_are_as_opaque_as_their_weights(visit: Any):
    given = a_map("m", SOURCE, TARGET)
    opened = visit([given])
    opened.page.locator("#looking button").nth(1).hover()
    weights = given["sites"][0]["weights"].mean(0)
    expected = [weight / weights.max() for weight in weights[1] if weight >= 0.04 * weights.max()]
    drawn = opened.page.locator("#lines path").evaluate_all(
        "all => all.map(line => +line.getAttribute('stroke-opacity'))"
    )
    assert drawn == pytest.approx(expected, abs=0.002)


def test_a_column_tells_who_looked_at_it(visit: Any):
    given = a_map("m", SOURCE, TARGET)
    opened = visit([given])
    opened.page.locator("#looked button").nth(3).hover()
    assert opened.text("#reading") == "“auf” is looked at by"
    assert opened.text("#ranking li:first-child bdi") == strongest(given["sites"][0]["weights"].mean(0)[:, 3], TARGET)


def test_keyboard_walks_the_map_and_the_heads(visit: Any):
    given = a_map("m", SOURCE, TARGET)
    opened = visit([given])
    keyboard = opened.page.keyboard
    opened.page.locator("#map").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "]", "]"):
        keyboard.press(key)
    weight = given["sites"][0]["weights"][1, 1, 0]
    told = re.fullmatch(r"“man” looks at “Ein”: ([\d.]+) %", opened.text("#reading"))
    assert told
    assert float(told[1]) == pytest.approx(100 * weight, abs=0.51)
    assert opened.text("#map-title") == "decoder.0.cross, head 2"
    keyboard.press("[")
    assert opened.text("#map-title") == "decoder.0.cross, head 1"
    opened.page.locator("#heads [aria-checked=true]").focus()
    keyboard.press("End")
    assert opened.text("#map-title") == "decoder.0.cross, head 3"
    opened.page.locator("#looking button").first.focus()
    keyboard.press("ArrowRight")
    assert opened.text("#reading") == "“man” looks at"


def test_choices_of_model_example_site_and_head(visit: Any):
    short = a_map("one", ["drei"], ["three"])
    opened = visit([a_map("one", SOURCE, TARGET), short, a_map("two", SOURCE, TARGET, heads=1)])
    page = opened.page
    page.locator("#heads button").nth(3).click()
    assert opened.text("#map-title") == "decoder.0.cross, head 3"
    page.select_option("#site", label="encoder.0.self")
    assert page.locator("#looking button").all_inner_texts() == SOURCE
    assert opened.text("#map-title") == "encoder.0.self, head 3"
    page.select_option("#model", label="two")
    assert opened.text("#map-title") == "encoder.0.self, mean over heads"
    page.select_option("#model", label="one")
    page.select_option("#example", label="drei")
    assert opened.text("#exchange").split() == ["drei", "→", "three"]


def test_untrusted_text_stays_text(visit: Any):
    opened = visit([a_map(ATTACK, [ATTACK, "b"], [ATTACK, "{{data}}"])], title=f"title {ATTACK}")
    opened.page.locator("#looking button").first.click()
    assert opened.page.title() == f"title {ATTACK}"
    assert opened.text("#reading") == f"“{ATTACK}” looks at"
    assert opened.page.locator("#looking button").nth(1).inner_text() == "{{data}}"
    assert opened.page.locator("img").count() == 0


def test_the_policy_stops_a_foreign_script_and_a_foreign_request(browser: Any, tmp_path: Path):
    path = write_page(tmp_path / "page.html", "title", [a_map("m", SOURCE, TARGET)])
    path.write_text(path.read_text("utf-8").replace("<main>", f"<main>{ATTACK}"), "utf-8")
    opened = Visit(browser, path)
    assert opened.page.title() == "title"
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)
    opened.page.close()


def test_right_to_left_text_runs_right_to_left(visit: Any):
    opened = visit([a_map("m", ["שלום", "עולם", "היום"], ["مرحبا", "يا", "عالم"])])
    for side in ("#looked", "#looking"):
        boxes = [token.bounding_box() for token in opened.page.locator(f"{side} button").all()]
        assert boxes[0]["x"] > boxes[1]["x"] > boxes[2]["x"]
    opened.page.locator("#looking button").first.focus()
    opened.page.keyboard.press("ArrowLeft")
    assert opened.text("#reading") == "“يا” looks at"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_is_painted_in_the_scheme_of_the_reader(visit: Any, scheme: str):
    given = a_map("m", SOURCE, TARGET)
    opened = visit([given], color_scheme=scheme)
    pixels = opened.page.evaluate(
        "() => { const c = document.getElementById('cells');"
        " return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; }"
    )
    brightness = np.array(pixels).reshape(5, 7, 4)[..., :3].mean(-1).ravel()
    weights = given["sites"][0]["weights"].mean(0).ravel()
    assert (np.corrcoef(brightness, weights)[0, 1] > 0) == (scheme == "dark")
    assert brightness.argmax() == (weights.argmax() if scheme == "dark" else weights.argmin())


@pytest.mark.parametrize("size", [7, 61])
def test_a_phone_never_scrolls_sideways(visit: Any, size: int):
    words = [f"word{number}" for number in range(size)]
    opened = visit([a_map("a model with quite a long name", words, words)], viewport={"width": 360, "height": 740})
    width, room = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= room


def test_a_large_map_can_be_read_row_by_row(visit: Any):
    words = [f"w{number}" for number in range(200)]
    opened = visit([a_map("m", words, words)])
    opened.page.evaluate(
        "() => [...document.querySelectorAll('#looking button')].slice(0, 40)"
        ".forEach((token) => token.dispatchEvent(new PointerEvent('pointerenter')))"
    )
    assert opened.text("#reading") == "“w39” looks at"
    cells = opened.page.evaluate("() => document.querySelectorAll('*').length")
    assert cells < 200 * 200 / 10  # a canvas, not an element for each weight: else a hover would crawl


def test_everything_that_can_be_used_has_a_name(visit: Any):
    opened = visit([a_map("one", SOURCE, TARGET), a_map("two", SOURCE, TARGET)])
    for role in ("button", "radio", "combobox", "application"):
        found = opened.page.get_by_role(role)
        assert found.count() == opened.page.get_by_role(role, name=re.compile(r"\S")).count() > 0


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["[CLS]", "who", "paint", "##ed", "it", "?", "[SEP]"], "[CLS] who painted it ? [SEP]"),
        ([" Who", " paint", "ed", " it", "?"], "Who painted it?"),
        (["a", "b", "c"], "abc"),
        ([], ""),
    ],
)
def test_a_page_is_called_by_the_text_that_was_read(pieces: list[str], text: str) -> None:
    assert text_of(pieces) == text
