"""Attention over a recording as a picture: its spectrogram, and below it a row of weights for each output unit.

              ┌──────────────────┐
              │   spectrogram    │
    unit 1    │ ██               │
    unit 2    │     ███          │
              └──────────────────┘
               0.00 s      0.40 s

Shapes: weights (units, states).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.attention.trace import Trace
from regard.errors import UserError
from regard.explorer.overlay import (
    LINE,
    MARGIN,
    MAX_PANELS,
    WHITE,
    from_array,
    heat_colours,
    overlays_of,
    pillow,
    to_png,
    write_text,
    write_trace,
)

LABEL = 70  # pixels of the labels of units
ROW = 14  # pixels of a row of weights
SPECTROGRAM = 130  # pixels of the height of the spectrogram
WIDTHS = (420, 1600)  # pixels of the plot, at least and at most
PER_STATE = 8  # pixels of a state, within these limits
BLANK = "␣"  # which Pillow's font does not have
TICK = 80  # pixels between labels of the time axis


def write_figure(
    path: Path | str,
    trace: Trace,
    site: str = "",
    head: int | None = None,
    queries: Sequence[str | int] = (),
    rollout: bool = False,
) -> Path:
    """The figure of a trace: an alignment of output units to a recording, or heat maps on an image."""
    site = site or _alignment_site(trace)
    axes = trace.axes.at(site) if site else None
    if rollout or axes is None or axes[1].unit != "frame" or axes[0].grid:
        return write_trace(path, trace, site, head, queries, rollout)
    shown, overlays = overlays_of(trace, site, head, queries)
    if len(overlays) > MAX_PANELS:
        raise UserError(f"{len(overlays)} rows are more than one figure can show; select at most {MAX_PANELS}")
    assert trace.picture is not None
    figure = draw_alignment(
        trace.picture.pixels.cpu().numpy(),
        np.stack([overlay.weights for overlay in overlays]),
        [overlay.title for overlay in overlays],
        list(axes[1].labels),
        f"{trace.answer} · {shown}" if trace.answer else shown,
    )
    Path(path).write_bytes(to_png(figure, max(figure.shape)))
    return Path(path)


def _alignment_site(trace: Trace) -> str:
    """The last site where output units attend to the frames of a recording; empty if there is none."""
    sites = [site for site in trace.sites if (axes := trace.axes.at(site)) and axes[1].unit == "frame"]
    return next((site for site in reversed(sites) if (axes := trace.axes.at(site)) and not axes[0].grid), "")


def draw_alignment(
    spectrogram: np.ndarray, weights: np.ndarray, units: Sequence[str], times: Sequence[str], heading: str
) -> np.ndarray:
    """The figure (height, width, 3); `times` label the states."""
    resampling = pillow().Resampling
    width = int(np.clip(PER_STATE * len(times), *WIDTHS))
    top = MARGIN + LINE
    size = (LABEL + width + MARGIN, top + SPECTROGRAM + ROW * len(units) + LINE + MARGIN)
    figure = pillow().new("RGB", size, (WHITE,) * 3)
    write_text(figure, (MARGIN, MARGIN - 4), heading, size[0] - 2 * MARGIN)
    figure.paste(from_array(spectrogram).resize((width, SPECTROGRAM), resampling.BILINEAR), (LABEL, top))
    heat = from_array(heat_colours(weights).round().astype(np.uint8))
    figure.paste(heat.resize((width, ROW * len(units)), resampling.NEAREST), (LABEL, top + SPECTROGRAM))
    for index, unit in enumerate(units):
        write_text(figure, (MARGIN, top + SPECTROGRAM + ROW * index - 2), unit.replace(BLANK, "_"), LABEL - 2 * MARGIN)
    step = max(1, round(TICK * len(times) / width))
    for index in range(0, len(times), step):
        corner = (LABEL + index * width // len(times), top + SPECTROGRAM + ROW * len(units))
        write_text(figure, corner, times[index], TICK)
    return np.asarray(figure)
