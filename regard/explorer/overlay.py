"""Attention over an image as a picture: the weights of its patches as a heat map on its pixels, in panels.

A trace gives the weights of each query over the patches, or its attention rollout.

Shapes, throughout:
    image      (height, width, channels) of type uint8, with 1 or 3 channels
    weights    (rows · columns,), of the patches row by row
"""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.attention.rollout import SITES, trace_rollout
from regard.attention.trace import Axis, Picture, Trace
from regard.errors import UserError, listed, nearest
from regard.image.read import WHITE, pillow

if TYPE_CHECKING:
    from PIL.Image import Image

PANEL = 280  # pixels on the longer side of a panel
MARGIN, LINE = 10, 18
SCALE, SCALE_WIDTH = 10, 120  # pixels of the colour scale
FONT_SIZE = 13
MAX_PANELS = 120
BAND = 256  # queries whose weights are computed at a time
OPACITY = 0.6  # of the heat map
COLOURS = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))  # from weight 0 to the largest
OUTSIDE = 0.35  # how much of a pixel remains visible where the model saw nothing


@dataclass(frozen=True)
class PatchGrid:
    """The patches of an image: how many, and the box (left, top, right, bottom) of pixels that they cover."""

    rows: int
    columns: int
    box: tuple[float, float, float, float]

    def scaled(self, factor: float) -> "PatchGrid":
        """The same patches of a resized image."""
        left, top, right, bottom = (factor * edge for edge in self.box)
        return replace(self, box=(left, top, right, bottom))


@dataclass(frozen=True)
class Overlay:
    """The weights of an image's patches under a title, such as a word of its caption."""

    title: str
    weights: np.ndarray
    grid: PatchGrid


def grid_of(axis: Axis, picture: Picture) -> PatchGrid:
    """Where the patches of an axis are in the picture."""
    assert axis.grid is not None
    left, top, right, bottom = picture.box
    height, width = axis.extent
    box = (left, top, left + width * (right - left), top + height * (bottom - top))
    return PatchGrid(*axis.grid, box)


def overlays_of(
    trace: Trace, site: str = "", head: int | None = None, queries: Sequence[str | int] = (), rollout: bool = False
) -> tuple[str, list[Overlay]]:
    """What is shown, in words, and the weights over the patches for each query; see `Trace.overlay`."""
    if trace.picture is None:
        raise UserError("overlays are for images and recordings: the input of this trace is none")
    sites = [name for name in trace.sites if (axes := trace.axes.at(name)) and axes[1].grid]
    if rollout:
        sites = [name for name in sites if fnmatchcase(name, SITES)]
    if not sites:
        raise UserError(f"no attention over patches of the image; attention here: {listed(trace.sites) or 'none'}")
    if site and site not in sites:
        raise UserError(f"no attention over patches of the image at '{site}'{nearest(site, sites)}")
    if rollout and (site or head is not None):
        raise UserError("attention rollout combines all layers and heads: give no site and no head")
    site = site or sites[-1]
    axes = trace.axes.at(site)
    assert axes is not None
    rows, keys = axes
    grid = grid_of(keys, trace.picture)
    combined = trace_rollout(trace) if rollout else None

    def patches(queries: slice) -> np.ndarray:
        """(queries, patches), as the mean over heads unless one is chosen."""
        if combined is not None:
            weights = combined[queries]
        else:
            weights = trace.weights(site, head, queries)
            weights = weights if head is not None else weights.mean(0)
        return weights[:, keys.first_patch :].float().cpu().numpy()

    count = len(rows.labels)
    if not queries and rows.grid and not rows.first_patch:
        shown = _on_image(rows)
        bands = (slice(start, start + BAND) for start in range(0, count, BAND))
        total = np.sum([shown[band] @ patches(band) for band in bands], 0)
        overlays = [Overlay("mean query", total / shown.sum(), grid)]
    else:
        chosen = [_index(rows, query) for query in queries] or range(rows.first_patch if rows.grid else count)
        overlays = [Overlay(rows.labels[i].strip() or "(space)", patches(slice(i, i + 1))[0], grid) for i in chosen]
    heads = "mean over heads" if head is None else f"head {head}"
    return "attention rollout" if rollout else f"{site}, {heads}", overlays


def _on_image(axis: Axis) -> np.ndarray:
    """1 for each patch that begins within the image, 0 for those that only pad the grid to full windows."""
    assert axis.grid is not None
    rows, columns = (
        np.arange(size) * extent < size - 1e-6 for size, extent in zip(axis.grid, axis.extent, strict=True)
    )
    return np.outer(rows, columns).ravel().astype(np.float32)


def _index(axis: Axis, query: str | int) -> int:
    """The index of a query that is given by its index or its label."""
    labels = [label.strip() for label in axis.labels]
    if isinstance(query, str) and query in labels:
        return labels.index(query)
    if isinstance(query, str) and axis.grid and re.fullmatch(r"\d+,\d+", query):
        rows, columns = axis.grid
        raise UserError(f"no query '{query}'; patches are 0,0 (top left) to {rows - 1},{columns - 1}")
    if isinstance(query, str):
        raise UserError(f"no query '{query}'{nearest(query, labels)}")
    if not 0 <= query < len(labels):
        raise UserError(f"no query {query}; possible: 0 to {len(labels) - 1}")
    return query


def write_trace(
    path: Path | str,
    trace: Trace,
    site: str = "",
    head: int | None = None,
    queries: Sequence[str | int] = (),
    rollout: bool = False,
) -> Path:
    """The overlays of a trace as a PNG file, under a heading that says what they show."""
    shown, overlays = overlays_of(trace, site, head, queries, rollout)
    assert trace.picture is not None
    heading = f"{trace.answer} · {shown}" if trace.answer else shown
    return write_overlays(path, trace.picture.pixels.cpu().numpy(), overlays, heading)


def heat_map(weights: np.ndarray, grid: PatchGrid, height: int, width: int) -> np.ndarray:
    """The weight of the patch at each pixel, (height, width); NaN outside the box."""
    if weights.shape != (grid.rows * grid.columns,):
        raise ValueError(f"expected {grid.rows} × {grid.columns} weights of patches, not {weights.shape}")
    left, top, right, bottom = grid.box
    row = _patch(np.arange(height), top, bottom, grid.rows)
    column = _patch(np.arange(width), left, right, grid.columns)
    heat = weights.reshape(grid.rows, grid.columns).astype(float)[row[:, None], column]
    return np.where((row < 0)[:, None] | (column < 0), np.nan, heat)


def _patch(pixels: np.ndarray, start: float, end: float, count: int) -> np.ndarray:
    """The patch that the centre of each pixel belongs to, along one axis; −1 outside."""
    index = np.floor((pixels + 0.5 - start) / (end - start) * count).astype(int)
    return np.where((index >= 0) & (index < count), index, -1)


def blend(image: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """The heat map on the image, relative to the largest weight: dark is 0. Pixels outside the box are faded."""
    image = np.broadcast_to(image, (*image.shape[:2], 3)).astype(float)
    inside = ~np.isnan(heat)
    colour = heat_colours(np.where(inside, heat, 0.0))
    shaded = (1 - OPACITY) * image + OPACITY * colour
    faded = OUTSIDE * image + (1 - OUTSIDE) * WHITE
    return np.where(inside[..., None], shaded, faded).round().astype(np.uint8)


def heat_colours(heat: np.ndarray) -> np.ndarray:
    """Colours (…, 3) of weights, relative to the largest one: dark is 0."""
    relative = heat / (float(heat.max(initial=0.0)) or 1.0)
    stops = np.linspace(0, 1, len(COLOURS))
    return np.stack([np.interp(relative, stops, channel) for channel in zip(*COLOURS, strict=True)], -1)


def draw_overlays(image: np.ndarray, overlays: Sequence[Overlay], heading: str = "", columns: int = 4) -> np.ndarray:
    """A figure (height, width, 3): the image, then each overlay under its title and its largest weight."""
    if len(overlays) > MAX_PANELS:
        raise UserError(f"{len(overlays)} panels are more than one figure can show; select at most {MAX_PANELS}")
    small, factor = _resize(image)
    height, width = small.shape[:2]
    panels = [("image", small)]
    for overlay in overlays:
        heat = heat_map(overlay.weights, overlay.grid.scaled(factor), height, width)
        panels.append((f"{overlay.title} · largest {100 * overlay.weights.max():.1f} %", blend(small, heat)))
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    top = MARGIN + (LINE if heading else 0)
    size = (columns * (width + MARGIN) + MARGIN, top + rows * (height + LINE + MARGIN) + SCALE + MARGIN)
    figure = pillow().new("RGB", size, (WHITE,) * 3)
    write_text(figure, (MARGIN, MARGIN - 4), heading, size[0] - 2 * MARGIN)
    for index, (title, panel) in enumerate(panels):
        x = MARGIN + index % columns * (width + MARGIN)
        y = top + index // columns * (height + LINE + MARGIN)
        write_text(figure, (x, y), title, width)
        figure.paste(from_array(panel), (x, y + LINE))
    _draw_scale(figure)
    return np.asarray(figure)


def _draw_scale(figure: "Image") -> None:
    """The colours of the weights below the panels, from 0 to the largest weight of a panel, on white as on a pixel."""
    blank = np.full((SCALE, SCALE_WIDTH, 3), WHITE, np.uint8)
    heat = np.broadcast_to(np.linspace(0, 1, SCALE_WIDTH), blank.shape[:2])
    y = figure.height - SCALE - MARGIN // 2
    figure.paste(from_array(blend(blank, heat)), (2 * MARGIN, y))
    right = 2 * MARGIN + SCALE_WIDTH + MARGIN // 2
    write_text(figure, (MARGIN, y - 3), "0", MARGIN)
    write_text(figure, (right, y - 3), "largest weight of the panel", figure.width - right)


def write_overlays(
    path: Path | str, image: np.ndarray, overlays: Sequence[Overlay], heading: str = "", columns: int = 4
) -> Path:
    """The figure as a PNG file."""
    figure = draw_overlays(image, overlays, heading, columns)
    Path(path).write_bytes(to_png(figure, max(figure.shape)))
    return Path(path)


def to_png(image: np.ndarray, size: int) -> bytes:
    """The image as a PNG file, with at most `size` pixels on the longer side."""
    buffer = io.BytesIO()
    from_array(_resize(image, min(size, max(image.shape[:2])))[0]).save(buffer, "PNG")
    return buffer.getvalue()


def _resize(image: np.ndarray, size: int = PANEL) -> tuple[np.ndarray, float]:
    """The image with `size` pixels on the longer side, and the factor; pixels of small images stay sharp."""
    resampling = pillow().Resampling
    height, width = image.shape[:2]
    factor = size / max(height, width)
    shape = (max(1, round(width * factor)), max(1, round(height * factor)))
    resized = from_array(image).resize(shape, resampling.NEAREST if factor > 1 else resampling.LANCZOS)
    return np.asarray(resized), factor


def from_array(image: np.ndarray) -> "Image":
    return pillow().fromarray(np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3))))


def write_text(figure: "Image", corner: tuple[int, int], text: str, width: int) -> None:
    """One line of text, shortened to the width."""
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default(FONT_SIZE)
    draw = ImageDraw.Draw(figure)
    shown = text
    while shown and draw.textlength(shown, font=font) > width:
        shown = shown[:-2] + "…" if len(shown) > 1 else ""
    draw.text(corner, shown, fill=(60, 60, 60), font=font)
