"""The terminal's map as text, and the page in a real Chromium: what people see, click and type."""

import base64
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from regard.attention.recording import record
from regard.attention.trace import Axes, Axis, Trace
from regard.errors import UserError
from regard.explorer import page
from regard.explorer.page import Map, _title, text_of, write_page
from regard.explorer.terminal import draw, ramp
from regard.models.registry import build
from tests.explorer.image_traces import COLUMNS, CROSS, ROWS, SELF, WORDS, image_trace
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
    self_attention = attention(heads, len(source), len(source), seed=2)
    return {
        "model": model,
        "name": " ".join(source),
        "answer": " ".join(target),
        "sites": [
            {"name": "decoder.0.cross", "weights": cross, "rows": target, "columns": source},
            {"name": "encoder.0.self", "weights": self_attention, "rows": source, "columns": source},
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


def test_a_terminal_map_states_what_it_omits():
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
    weights = torch.softmax(torch.randn(5, 7, dtype=torch.bfloat16, requires_grad=True), -1)
    assert printed(draw(weights, TARGET, SOURCE, "title"))[0].strip() == "title"
    with pytest.raises(ValueError, match="weights are 5 × 7, labels are 7 × 5"):
        draw(weights, SOURCE, TARGET, "title")


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def embedded(path: Path) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert match
    return json.loads(match[1])


def test_weights_survive_within_the_stated_rounding(tmp_path: Path):
    example = a_map("m", SOURCE, TARGET)
    data = embedded(write_page(tmp_path / "page.html", "t", [example]))
    for site, original in zip(data["maps"][0]["sites"], example["sites"], strict=True):
        read = np.frombuffer(base64.b64decode(site["weights"]), "<u2") / data["steps"]
        shape = (len(site["heads"]), len(site["rows"]), len(site["columns"]))
        assert np.abs(read.reshape(shape) - original["weights"]).max() <= 0.5 / data["steps"] + 1e-7


def test_wrong_weights_are_refused_by_the_name_of_their_site(tmp_path: Path):
    for weights, reason in ((attention(3, 7, 5), "its labels need"), (attention(3, 5, 7) * 3, "outside 0–1")):
        example = a_map("m", SOURCE, TARGET)
        example["sites"][0]["weights"] = weights
        with pytest.raises(ValueError, match=rf"decoder\.0\.cross.*{reason}"):
            write_page(tmp_path / "page.html", "t", [example])
    example = a_map("m", SOURCE, TARGET)
    example["sites"][1]["weights"] = np.full((3, 7, 7), np.nan)
    with pytest.raises(ValueError, match=r"encoder\.0\.self"):
        write_page(tmp_path / "page.html", "t", [example])


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
        assert [url for url in each.requests if not url.startswith(("file:", "data:image/"))] == []
        each.page.close()


def strongest(weights: np.ndarray, columns: list[str]) -> str:
    return columns[int(weights.argmax())]


def test_hover_reads_a_row_and_click_keeps_it(visit: Any):
    example = a_map("m", SOURCE, TARGET)
    mean = example["sites"][0]["weights"].mean(0)
    opened = visit([example])
    token = opened.page.locator("#queries button").nth(2)
    token.hover()
    assert opened.text("#reading") == "“rides” attends to"
    assert opened.text("#ranking li:first-child bdi") == strongest(mean[2], SOURCE)
    shown = opened.page.locator("#keys button small").all_inner_texts()
    assert [float(percent or 0) for percent in shown] == pytest.approx(100 * mean[2], abs=0.51)
    opened.page.mouse.move(1, 1)
    assert opened.text("#reading") == "Largest attention weights"
    token.click()
    opened.page.mouse.move(1, 1)
    assert opened.text("#reading") == "“rides” attends to"
    opened.page.keyboard.press("Escape")
    assert opened.text("#reading") == "Largest attention weights"


def test_the_page_uses_the_terms_of_the_literature(visit: Any):
    opened = visit([a_map("m", SOURCE, TARGET)])
    assert "Each row sums to 1" in opened.text("#axes")
    assert opened.page.locator("#flow .side").all_inner_texts() == ["keys", "queries"]
    heads = opened.page.locator("#heads button").evaluate_all("all => all.map(head => head.ariaLabel)")
    assert heads == ["Mean over heads", "Head 0", "Head 1", "Head 2"]
    assert not re.search(r"\blook|\bpieces?\b|\bsite\b", opened.page.locator("body").inner_text())


def test_lines_are_as_opaque_as_their_weights(visit: Any):
    example = a_map("m", SOURCE, TARGET)
    opened = visit([example])
    opened.page.locator("#queries button").nth(1).hover()
    weights = example["sites"][0]["weights"].mean(0)
    expected = [weight / weights.max() for weight in weights[1] if weight >= 0.04 * weights.max()]
    drawn = opened.page.locator("#lines path").evaluate_all(
        "all => all.map(line => +line.getAttribute('stroke-opacity'))"
    )
    assert drawn == pytest.approx(expected, abs=0.002)


def test_a_column_shows_the_queries_that_attend_to_it(visit: Any):
    example = a_map("m", SOURCE, TARGET)
    opened = visit([example])
    opened.page.locator("#keys button").nth(3).hover()
    assert opened.text("#reading") == "“auf” is attended to by"
    assert opened.text("#ranking li:first-child bdi") == strongest(example["sites"][0]["weights"].mean(0)[:, 3], TARGET)


def test_keyboard_walks_the_map_and_the_heads(visit: Any):
    example = a_map("m", SOURCE, TARGET)
    opened = visit([example])
    keyboard = opened.page.keyboard
    opened.page.locator("#map").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "]", "]"):
        keyboard.press(key)
    weight = example["sites"][0]["weights"][1, 1, 0]
    match = re.fullmatch(r"“man” attends to “Ein”: ([\d.]+) %", opened.text("#reading"))
    assert match
    assert float(match[1]) == pytest.approx(100 * weight, abs=0.51)
    assert opened.text("#map-title") == "decoder.0.cross, head 1"
    keyboard.press("[")
    assert opened.text("#map-title") == "decoder.0.cross, head 0"
    opened.page.locator("#heads [aria-checked=true]").focus()
    keyboard.press("End")
    assert opened.text("#map-title") == "decoder.0.cross, head 2"
    opened.page.locator("#queries button").first.focus()
    keyboard.press("ArrowRight")
    assert opened.text("#reading") == "“man” attends to"


def test_choices_of_model_example_site_and_head(visit: Any):
    short = a_map("one", ["drei"], ["three"])
    opened = visit([a_map("one", SOURCE, TARGET), short, a_map("two", SOURCE, TARGET, heads=1)])
    page = opened.page
    page.locator("#heads button").nth(3).click()
    assert opened.text("#map-title") == "decoder.0.cross, head 2"
    page.select_option("#site", label="encoder.0.self")
    assert page.locator("#queries button").all_inner_texts() == SOURCE
    assert opened.text("#map-title") == "encoder.0.self, head 2"
    page.select_option("#model", label="two")
    assert opened.text("#map-title") == "encoder.0.self, mean over heads"
    page.select_option("#model", label="one")
    page.select_option("#example", label="drei")
    assert opened.text("#exchange").split() == ["drei", "→", "three"]


def test_untrusted_text_stays_text(visit: Any):
    opened = visit([a_map(ATTACK, [ATTACK, "b"], [ATTACK, "{{data}}"])], title=f"title {ATTACK}")
    opened.page.locator("#queries button").first.click()
    assert opened.page.title() == f"title {ATTACK}"
    assert opened.text("#reading") == f"“{ATTACK}” attends to"
    assert opened.page.locator("#queries button").nth(1).inner_text() == "{{data}}"
    assert opened.page.locator("img:not(#image)").count() == 0


def test_the_policy_stops_a_foreign_script_and_a_foreign_request(browser: Any, tmp_path: Path):
    path = write_page(tmp_path / "page.html", "title", [a_map("m", SOURCE, TARGET)])
    path.write_text(path.read_text("utf-8").replace("<main>", f"<main>{ATTACK}"), "utf-8")
    opened = Visit(browser, path)
    assert opened.page.title() == "title"
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)
    opened.page.close()


def test_right_to_left_text_runs_right_to_left(visit: Any):
    opened = visit([a_map("m", ["שלום", "עולם", "היום"], ["مرحبا", "يا", "عالم"])])
    for side in ("#keys", "#queries"):
        boxes = [token.bounding_box() for token in opened.page.locator(f"{side} button").all()]
        assert boxes[0]["x"] > boxes[1]["x"] > boxes[2]["x"]
    opened.page.locator("#queries button").first.focus()
    opened.page.keyboard.press("ArrowLeft")
    assert opened.text("#reading") == "“يا” attends to"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_follows_the_colour_scheme_of_the_browser(visit: Any, scheme: str):
    example = a_map("m", SOURCE, TARGET)
    opened = visit([example], color_scheme=scheme)
    pixels = opened.page.evaluate(
        "() => { const c = document.getElementById('cells');"
        " return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; }"
    )
    brightness = np.array(pixels).reshape(5, 7, 4)[..., :3].mean(-1).ravel()
    weights = example["sites"][0]["weights"].mean(0).ravel()
    assert (np.corrcoef(brightness, weights)[0, 1] > 0) == (scheme == "dark")
    assert brightness.argmax() == (weights.argmax() if scheme == "dark" else weights.argmin())


@pytest.mark.parametrize("size", [7, 61])
def test_a_phone_never_scrolls_sideways(visit: Any, size: int):
    words = [f"word{index}" for index in range(size)]
    opened = visit([a_map("a model with quite a long name", words, words)], viewport={"width": 360, "height": 740})
    width, available = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= available


def test_a_large_map_can_be_read_row_by_row(visit: Any):
    words = [f"w{index}" for index in range(200)]
    opened = visit([a_map("m", words, words)])
    opened.page.evaluate(
        "() => [...document.querySelectorAll('#queries button')].slice(0, 40)"
        ".forEach((token) => token.dispatchEvent(new PointerEvent('pointerenter')))"
    )
    assert opened.text("#reading") == "“w39” attends to"
    cells = opened.page.evaluate("() => document.querySelectorAll('*').length")
    assert cells < 200 * 200 / 10  # a canvas, not an element for each weight: else a hover would crawl


def test_everything_that_can_be_used_has_a_name(visit: Any):
    opened = visit([a_map("one", SOURCE, TARGET), a_map("two", SOURCE, TARGET)])
    for role in ("button", "radio", "combobox", "application"):
        elements = opened.page.get_by_role(role)
        assert elements.count() == opened.page.get_by_role(role, name=re.compile(r"\S")).count() > 0


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["[CLS]", "who", "paint", "##ed", "it", "?", "[SEP]"], "[CLS] who painted it ? [SEP]"),
        ([" Who", " paint", "ed", " it", "?"], "Who painted it?"),
        (["a", "b", "c"], "abc"),
        ([], ""),
    ],
)
def test_the_title_of_a_page_is_the_input(pieces: list[str], text: str) -> None:
    assert text_of(pieces) == text


def test_the_title_leaves_out_the_tokens_around_a_text() -> None:
    trace: Any = SimpleNamespace(source=["[CLS]", "it", "is", "[MASK]", "[SEP]"], target=[], picture=None)
    assert _title(trace) == "it is [MASK]"


# ── large traces ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def long_trace() -> Trace:
    """4,003 tokens read by a GPT of six layers of twelve heads: 1.2 billion weights."""
    torch.manual_seed(1)
    network = build(
        {"family": "gpt", "width": 48, "heads": 12, "depth": 6, "max_positions": 4096}, vocabulary=31
    ).eval()
    with torch.no_grad(), record() as recorder:
        network(torch.randint(31, (1, 4003)))
    tokens = Axis([f"t{index}" for index in range(4003)])
    return Trace(recorder, Axes.causal(tokens, Axis([f"t{index}" for index in range(1, 4004)])))


def test_a_trace_of_thousands_of_tokens_is_limited(
    long_trace: Trace, browser: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    start = time.monotonic()
    path = long_trace.explore(tmp_path / "page.html")
    assert time.monotonic() - start < 30
    assert path.stat().st_size < 25e6
    note = "Shown: rows 3747 to 4002 of 4,003 (rows=…), columns 3747 to 4002 of 4,003 (columns=…)."
    assert capsys.readouterr().err == f"trace.explore: {note}\n"
    shown = embedded(path)
    sites = shown["maps"][0]["sites"]
    assert [site["name"] for site in sites] == long_trace.sites
    for site in (sites[0], sites[-1]):
        assert site["heads"] == list(range(12))
        assert site["rows"][-1] == "t4002" and site["columns"][0] == "t3747"
        weights = np.frombuffer(base64.b64decode(site["weights"]), "<u2").reshape(12, 256, 256) / shown["steps"]
        expected = long_trace.weights(site["name"], head=7, rows=slice(3747, None)).numpy()
        assert np.abs(weights[7] - expected[:, 3747:]).max() < 1e-5
        assert site["others"][7] == pytest.approx(expected[:, :3747].sum(1).mean(), abs=1e-4)
    opened = Visit(browser, path)
    share = 100 * np.mean(sites[0]["others"])
    assert opened.text("#note") == f"{note} The keys that are not shown receive {share:.0f} % of the attention here."
    assert opened.text("#heads button:nth-child(2) span").startswith("Head 0")
    opened.page.close()


def test_selected_layers_heads_and_rows_are_shown(
    long_trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    sites = long_trace.sites[2:4]
    path = long_trace.explore(tmp_path / "page.html", sites, [3, 11], slice(10, 20), slice(None, 20))
    for site, name in zip(embedded(path)["maps"][0]["sites"], sites, strict=True):
        assert (site["name"], site["heads"], len(site["rows"]), len(site["columns"])) == (name, [3, 11], 10, 20)
        assert site["rows"][0] == "t10" and site["columns"][-1] == "t19"
    assert "sites" not in capsys.readouterr().err
    with pytest.raises(UserError, match=r"nothing to show in slice\(9000, None, None\): there are 4003 tokens"):
        long_trace.explore(tmp_path / "page.html", rows=slice(9000, None))


def test_layers_and_heads_are_limited_to_the_size_of_a_page(
    long_trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    size = 256 * 256
    monkeypatch.setattr(page, "MAX_WEIGHTS", 30 * size)
    shown = page.map_of(long_trace, "m", "n")
    assert [site["name"] for site in shown["sites"]] == [long_trace.sites[0], long_trace.sites[-1]]
    assert shown.get("note", "").startswith("Shown: 2 of 6 attention layers (sites=…), rows 3747")
    monkeypatch.setattr(page, "MAX_WEIGHTS", 5 * size)
    shown = page.map_of(long_trace, "m", "n")
    assert [site.get("heads") for site in shown["sites"]] == [[0, 1, 2, 3, 4]]
    assert "1 of 6 attention layers (sites=…), 5 of 12 heads (heads=…)" in shown.get("note", "")


def test_a_short_trace_is_shown_completely(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    network = build({"family": "gpt", "width": 12, "heads": 3, "depth": 2, "max_positions": 17}, vocabulary=31).eval()
    with torch.no_grad(), record() as recorder:
        network(torch.randint(31, (1, 17)))
    axis = Axis(list("abcdefghijklmnopq"))
    trace = Trace(recorder, Axes.causal(axis, axis))
    data = embedded(trace.explore(tmp_path / "page.html"))["maps"][0]
    assert data["note"] == "" and capsys.readouterr().err == ""
    assert [(site["heads"], len(site["rows"]), len(site["columns"])) for site in data["sites"]] == [
        ([0, 1, 2], 17, 17)
    ] * 2


def test_a_notebook_shows_a_trace_inline(long_trace: Trace, browser: Any, tmp_path: Path):
    """The page in a frame, with its newest tokens and fewer weights than a file."""
    inline = long_trace._repr_html_()
    assert inline is not None and len(inline) < 3e6
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{inline}", encoding="utf-8")
    opened = browser.new_page()
    opened.goto(path.as_uri())
    frame = opened.frame_locator("iframe")
    assert frame.locator("#note").inner_text().startswith("Shown: rows 3939 to 4002 of 4,003")
    assert frame.locator("#heads button").count() > 1
    opened.close()


# ── images ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def patch_centre(opened: Visit, row: int, column: int) -> tuple[float, float]:
    """Where a patch of the image trace is in the window: patches of 10 pixels, from 13 pixels on, of 76 × 30."""
    frame = opened.page.locator("#frame").bounding_box()
    x = frame["x"] + (13 + 10 * column + 5) / 76 * frame["width"]
    return x, frame["y"] + (10 * row + 5) / 30 * frame["height"]


def painted(opened: Visit) -> list[int]:
    """The darkness of each patch of the heat map."""
    pixels = opened.page.locator("#heat").evaluate(
        "canvas => { const context = new OffscreenCanvas(canvas.width, canvas.height)"
        ".getContext('2d', { willReadFrequently: true }); context.drawImage(canvas, 0, 0);"
        "return [...context.getImageData(0, 0, canvas.width, canvas.height).data]; }"
    )
    return [-sum(pixels[index : index + 3]) for index in range(0, len(pixels), 4)]


def test_a_word_of_a_caption_shows_its_weights_on_the_image(visit: Any):
    trace = image_trace()
    opened = visit([page.map_of(trace, "m", "photo.png")])
    assert opened.page.locator("#flow-section").is_hidden()
    assert opened.page.locator("#image").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [76, 30]
    for index in range(len(WORDS)):
        opened.page.locator("#picture-queries button").nth(index).hover()
        weights = trace.weights(CROSS).mean(0)[index, 1:].numpy()
        assert int(np.argmax(painted(opened))) == int(weights.argmax())
        assert WORDS[index].strip() in opened.text("#picture-title")
    opened.page.mouse.move(*patch_centre(opened, 1, 3))
    assert opened.text("#reading") == "“1,3” is attended to by"


def test_a_patch_shows_the_patches_that_it_attends_to(visit: Any):
    trace = image_trace(caption=False)
    opened = visit([page.map_of(trace, "m", "photo.png")])
    assert opened.page.locator("#picture-queries button").all_inner_texts() == ["[CLS]"]
    for row, column in ((0, 0), (ROWS - 1, COLUMNS - 1), (1, 2)):
        opened.page.mouse.move(*patch_centre(opened, row, column))
        assert opened.text("#reading") == f"“{row},{column}” attends to"
        weights = trace.weights(SELF).mean(0)[1 + row * COLUMNS + column, 1:].numpy()
        assert int(np.argmax(painted(opened))) == int(weights.argmax())
        outline = opened.page.locator("#query-patch").bounding_box()
        x, y = patch_centre(opened, row, column)
        assert (outline["x"] + outline["width"] / 2, outline["y"] + outline["height"] / 2) == pytest.approx(
            (x, y), abs=1
        )


def test_the_title_of_an_image_trace_is_its_file(tmp_path: Path):
    written = image_trace().explore(tmp_path / "page.html")
    assert "<title>photo.png</title>" in written.read_text()


def test_text_and_images_can_be_shown_on_one_page(visit: Any):
    opened = visit([a_map("text", SOURCE, TARGET), page.map_of(image_trace(), "image", "photo.png")])
    assert opened.page.locator("#picture").is_hidden()
    opened.page.locator("#model").select_option("1")
    assert opened.page.locator("#picture").is_visible()
    opened.page.locator("#model").select_option("0")
    assert opened.page.locator("#picture").is_hidden()
    assert opened.page.locator("#queries button").count() == len(TARGET)
