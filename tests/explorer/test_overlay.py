"""Overlays: each pixel has the colour of its patch's weight, also of cropped and padded images."""

import builtins
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from needs import need

from regard.attention.recording import Recorder
from regard.attention.rollout import trace_rollout
from regard.attention.trace import Axes, Axis, Trace
from regard.errors import UserError
from regard.explorer.overlay import (
    LINE,
    MARGIN,
    PANEL,
    SCALE,
    SCALE_WIDTH,
    Overlay,
    PatchGrid,
    blend,
    draw_overlays,
    heat_map,
    overlays_of,
    write_overlays,
)
from tests.explorer.image_traces import BOX, COLUMNS, CROSS, ROWS, SELF, WORDS, image_trace


def one_hot(grid: PatchGrid, row: int, column: int) -> np.ndarray:
    weights = np.zeros(grid.rows * grid.columns)
    weights[row * grid.columns + column] = 0.75
    return weights


@pytest.fixture(autouse=True)
def _pillow() -> None:
    need(importlib.util.find_spec("PIL"), "pip install 'regard[vision]'")


def test_each_pixel_has_the_weight_of_its_patch() -> None:
    """Patches of 3 × 5 pixels, in the order of the weights."""
    grid = PatchGrid(7, 11, (0, 0, 11 * 5, 7 * 3))
    weights = np.random.default_rng(0).random(77)
    heat = heat_map(weights, grid, 21, 55)
    for y in range(21):
        for x in range(55):
            assert heat[y, x] == weights[(y // 3) * 11 + x // 5]


def test_pixels_outside_the_box_have_none() -> None:
    """A centre crop: the grid covers rows 2 to 10 and columns 5 to 12."""
    grid = PatchGrid(2, 7, (5, 2, 12, 10))
    heat = heat_map(np.arange(14.0), grid, 13, 17)
    assert np.isnan(heat).sum() == 13 * 17 - 8 * 7
    np.testing.assert_array_equal(heat[2:10, 5:12], np.repeat(np.arange(14.0).reshape(2, 7), 4, 0))


def test_a_box_larger_than_the_image() -> None:
    """An image padded by the model: the last patches are partly, or fully, outside."""
    heat = heat_map(np.arange(6.0), PatchGrid(2, 3, (0, 0, 12, 8)), 5, 7)
    assert not np.isnan(heat).any()
    assert heat[:4, :4].tolist() == [[0.0] * 4] * 4 and heat[4, 4:].tolist() == [4.0] * 3


def test_a_wrong_number_of_weights_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected 2 × 3 weights of patches, not \(7,\)"):
        heat_map(np.zeros(7), PatchGrid(2, 3, (0, 0, 6, 4)), 4, 6)


def test_the_largest_weight_is_brightest_and_the_outside_is_faded() -> None:
    image = np.full((9, 9, 3), 100, np.uint8)
    grid = PatchGrid(3, 2, (0, 0, 6, 9))
    result = blend(image, heat_map(one_hot(grid, 1, 1), grid, 9, 9)).astype(int)
    bright = result[3:6, 3:6].reshape(-1, 3)
    dark = result[0:3, 0:6].reshape(-1, 3)
    outside = result[:, 6:].reshape(-1, 3)
    for area in (bright, dark, outside):
        assert (area == area[0]).all()
    assert bright.sum() / len(bright) > 300 > dark.sum() / len(dark)
    assert (outside[0] == outside[0, 0]).all() and outside[0, 0] > 150  # grey stays grey


def test_scale_of_the_weights_does_not_matter_and_zeros_are_dark() -> None:
    image = np.random.default_rng(1).integers(0, 256, (6, 4, 3), dtype=np.uint8)
    grid = PatchGrid(3, 2, (0, 0, 4, 6))
    weights = np.random.default_rng(2).random(6)
    some = blend(image, heat_map(weights, grid, 6, 4))
    np.testing.assert_array_equal(some, blend(image, heat_map(weights / 1024, grid, 6, 4)))
    zeros = blend(image, heat_map(np.zeros(6), grid, 6, 4))
    assert (zeros <= image * 0.4 + 4).all()


@pytest.mark.parametrize("size", [(28, 28), (300, 517), (1201, 701), (1, 97)])
@pytest.mark.parametrize("channels", [1, 3])
def test_panels_show_the_patch_where_it_is(size: tuple[int, int], channels: int) -> None:
    """The brightest pixels of a panel are those of the patch with the weight, in the resized image."""
    height, width = size
    image = np.full((height, width, channels), 90, np.uint8)
    grid = PatchGrid(3, 5, (0, 0, width, height))
    weights = one_hot(grid, 1, 3)
    figure = draw_overlays(image, [Overlay("word", weights, grid)] * 4, "caption", columns=3).astype(int)
    factor = PANEL / max(size)
    tall, wide = max(1, round(height * factor)), max(1, round(width * factor))
    bottom = MARGIN + LINE + 2 * (tall + LINE + MARGIN)
    assert figure.shape == (bottom + SCALE + MARGIN, MARGIN + 3 * (wide + MARGIN), 3)
    for panel in (1, 4):  # the second of the first row, the second of the second row
        x = MARGIN + panel % 3 * (wide + MARGIN)
        y = MARGIN + LINE + panel // 3 * (tall + LINE + MARGIN) + LINE
        pixels = figure[y : y + tall, x : x + wide].sum(-1)
        rows, columns = np.where(pixels == pixels.max())
        assert abs(columns.min() - wide * 3 / 5) <= 1 and abs(columns.max() + 1 - wide * 4 / 5) <= 1
        if tall > 3:
            assert abs(rows.min() - tall / 3) <= 1 and abs(rows.max() + 1 - tall * 2 / 3) <= 1
    first = figure[MARGIN + 2 * LINE : MARGIN + 2 * LINE + tall, MARGIN : MARGIN + wide]
    assert (first == 90).all()  # the image itself


def test_a_title_is_left_out_where_no_letter_fits() -> None:
    image = np.zeros((970, 1, 3), np.uint8)
    figure = draw_overlays(image, [Overlay("word", np.ones(1), PatchGrid(1, 1, (0, 0, 1, 970)))])
    assert figure.shape[1] == MARGIN + 2 * (1 + MARGIN)


def test_a_scale_below_the_panels_has_the_colours_of_the_weights() -> None:
    grid = PatchGrid(1, 2, (0, 0, 40, 20))
    figure = draw_overlays(np.full((20, 40, 3), 255, np.uint8), [Overlay("word", np.array([0.0, 0.5]), grid)])
    scale = figure[-SCALE - MARGIN // 2 : -(MARGIN // 2), 2 * MARGIN : 2 * MARGIN + SCALE_WIDTH]
    assert (scale == scale[:1]).all()
    panel = figure[MARGIN + LINE :][:20, 2 * MARGIN + PANEL : 2 * MARGIN + 2 * PANEL]  # of a white image
    np.testing.assert_array_equal(scale[0, [0, -1]], panel[0, [0, -1]])  # weight 0, the largest weight


def test_the_file_is_the_figure(tmp_path: Path) -> None:
    from PIL import Image

    image = np.random.default_rng(3).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    grid = PatchGrid(2, 3, (0, 0, 48, 32))
    overlays = [Overlay(title, one_hot(grid, 0, 1), grid) for title in ("a title that does not fit " * 9, "word")]
    path = write_overlays(tmp_path / "out.png", image, overlays, "attention rollout")
    with Image.open(path) as written:
        assert written.format == "PNG"
        np.testing.assert_array_equal(np.asarray(written), draw_overlays(image, overlays, "attention rollout"))


def test_titles_are_drawn_and_do_not_cover_the_panels() -> None:
    image = np.full((40, 40, 3), 90, np.uint8)
    grid = PatchGrid(2, 2, (0, 0, 40, 40))
    weights = one_hot(grid, 0, 0)
    plain, titled = (draw_overlays(image, [Overlay(title, weights, grid)]) for title in ("i", "WWWWWW" * 20))
    differs = (plain != titled).any(-1)
    rows, columns = np.where(differs)
    assert rows.max() < MARGIN + LINE and columns.min() >= 2 * MARGIN + PANEL - 1
    assert columns.max() <= 2 * MARGIN + 2 * PANEL


def test_too_many_panels_are_refused() -> None:
    grid = PatchGrid(1, 1, (0, 0, 2, 2))
    with pytest.raises(UserError, match="121 panels are more than one figure can show"):
        draw_overlays(np.zeros((2, 2, 3), np.uint8), [Overlay("", np.ones(1), grid)] * 121)


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest):
        if name.startswith("PIL"):
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'regard\[vision\]'"):
        draw_overlays(np.zeros((2, 2, 3), np.uint8), [])


# ── of a trace ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_caption_has_a_panel_for_each_word() -> None:
    trace = image_trace()
    shown, overlays = overlays_of(trace)
    assert shown == f"{CROSS}, mean over heads"
    assert [overlay.title for overlay in overlays] == [word.strip() for word in WORDS]
    for index, overlay in enumerate(overlays):
        np.testing.assert_allclose(overlay.weights, trace.weights(CROSS).mean(0)[index, 1:], atol=1e-6)
        assert overlay.grid == PatchGrid(ROWS, COLUMNS, BOX)


def test_the_learned_tokens_are_the_queries_of_an_encoder() -> None:
    trace = image_trace(("[CLS]", "[DIST]"), caption=False)
    shown, overlays = overlays_of(trace, head=1)
    assert shown == f"{SELF}, head 1"
    assert [overlay.title for overlay in overlays] == ["[CLS]", "[DIST]"]
    np.testing.assert_allclose(overlays[1].weights, trace.weights(SELF, 1)[1, 2:], atol=1e-6)


def test_without_learned_tokens_the_mean_over_queries_is_shown() -> None:
    trace = image_trace((), caption=False)
    _, (overlay,) = overlays_of(trace)
    np.testing.assert_allclose(overlay.weights, trace.weights(SELF).mean((0, 1)), atol=1e-6)
    assert overlay.weights.sum() == pytest.approx(1)


def test_cells_that_pad_the_grid_are_no_queries_of_the_mean() -> None:
    """Of 3 × 5 cells of 8 pixels, an image of 16 × 31 pixels has 2 × 4."""
    trace = image_trace((), caption=False)
    axis = Axis.patches(ROWS, COLUMNS, (), (24 / 16, 40 / 31))
    padded = Trace(Recorder(records=trace.records), Axes({"*": (axis, axis)}), picture=trace.picture)
    _, (overlay,) = overlays_of(padded)
    expected = trace.weights(SELF).mean(0).view(ROWS, COLUMNS, -1)[:2, :4].mean((0, 1))
    np.testing.assert_allclose(overlay.weights, expected, atol=1e-6)


def test_queries_are_chosen_by_label_or_index() -> None:
    trace = image_trace()
    _, overlays = overlays_of(trace, SELF, queries=["1,3", 2])
    assert [overlay.title for overlay in overlays] == ["1,3", "0,1"]
    np.testing.assert_allclose(overlays[0].weights, trace.weights(SELF).mean(0)[1 + COLUMNS + 3, 1:], atol=1e-6)


def test_rollout_is_labelled_and_is_that_of_the_trace() -> None:
    trace = image_trace()
    shown, (overlay,) = overlays_of(trace, rollout=True)
    assert shown == "attention rollout" and overlay.title == "[CLS]"
    np.testing.assert_allclose(overlay.weights, trace_rollout(trace)[0, 1:], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"site": "encoder.blocks.1.self"},
            "no attention over patches of the image at 'encoder.blocks.1.self'",
        ),
        ({"queries": ["rad"]}, "no query 'rad'; did you mean 'red'?"),
        ({"site": SELF, "queries": ["9,9"]}, f"no query '9,9'; patches are 0,0 (top left) to {ROWS - 1},{COLUMNS - 1}"),
        ({"queries": [4]}, "no query 4; possible: 0 to 3"),
        ({"head": 2}, "no head 2"),
        ({"rollout": True, "head": 0}, "attention rollout combines all layers and heads"),
    ],
)
def test_a_wrong_selection_names_what_is_possible(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        image_trace().overlay(tmp_path / "out.png", **options)
    assert not (tmp_path / "out.png").exists()


def test_a_trace_of_text_has_no_overlay(tmp_path: Path) -> None:
    trace = image_trace()
    with pytest.raises(UserError, match="overlays are for images"):
        Trace(Recorder(records=trace.records), Axes()).overlay(tmp_path / "out.png")


def test_the_figure_of_a_trace_is_written(tmp_path: Path) -> None:
    from PIL import Image

    path = image_trace().overlay(tmp_path / "out.png")
    with Image.open(path) as figure:
        assert figure.size[0] > 4 * PANEL
