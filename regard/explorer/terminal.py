"""An attention map drawn in the terminal: a row for each output piece, a column for each input piece.

Shades run from violet to cream in even steps of perceived lightness; without colour, blocks stand in for them. Weights
are shaded relative to the largest one shown, which the legend states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import cos, radians, sin
from unicodedata import category, combining

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

BLOCKS = " ·░▒▓█"
ELLIPSIS = "…"
TALLEST_LABEL = 12  # stacked characters; longer labels end in an ellipsis
WIDEST_CELL = 9  # beyond this, labels stand upright and cells are squares again
VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}

# The ramp's stops in OKLCH (lightness, chroma, hue in degrees), evenly spaced from weight 0 to the largest.
STOPS = ((0.20, 0.03, 290), (0.36, 0.13, 295), (0.56, 0.20, 350), (0.76, 0.15, 45), (0.95, 0.07, 95))


def draw(weights: object, rows: Sequence[str], columns: Sequence[str], title: str) -> AttentionMap:
    """A renderable for `rich`: `Console().print(draw(…))`. Weights (rows, columns) may be nested lists or any array."""
    table: list[list[float]] = weights.tolist() if hasattr(weights, "tolist") else weights  # type: ignore[attr-defined]
    shape = (len(table), len(table[0]) if table else 0)
    if shape != (len(rows), len(columns) if table else 0):
        raise ValueError(f"weights are {shape[0]} × {shape[1]}, labels are {len(rows)} × {len(columns)}")
    return AttentionMap(table, [readable(row) for row in rows], [readable(column) for column in columns], title)


class AttentionMap:
    """Lays itself out for the console it is printed on: its width, and whether it has colours."""

    def __init__(self, weights: list[list[float]], rows: list[str], columns: list[str], title: str):
        self.weights, self.rows, self.columns, self.title = weights, rows, columns, title
        self.largest = max((weight for row in weights for weight in row), default=0.0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colour = console.color_system is not None and not console.no_color
        margin = min(max(map(cell_len, self.rows), default=0), max(options.max_width // 3, 1))
        room = options.max_width - margin - 1
        widest = max(map(cell_len, self.columns), default=1)
        cell = widest + 1 if widest < WIDEST_CELL and len(self.columns) * (widest + 1) <= room else 2
        shown = len(self.columns) if len(self.columns) * cell <= room else max((room - 1) // cell, 1)

        yield Text(self.title, style="bold", overflow="ellipsis", no_wrap=True)
        for line in stacked(self.columns[:shown]) if cell == 2 else [[centred(label, cell) for label in self.columns]]:
            yield _line(" " * (margin + 1), *((fit(label, cell), "bold") for label in line))
        for label, weights in zip(self.rows, self.weights, strict=True):
            cells = [self._cell(weight, cell, colour) for weight in weights[:shown]]
            more = [(ELLIPSIS, "dim")] if shown < len(self.columns) else []
            yield _line(fit(label, margin, right=True) + " ", *cells, *more)
        yield from self._legend(" " * (margin + 1), shown, colour)

    def _cell(self, weight: float, width: int, colour: bool) -> tuple[str, Style | str]:
        share = weight / self.largest if self.largest > 0 else 0.0
        number = f"{weight * 100:.0f}" if width >= 4 and weight >= 0.005 else ""
        if not colour:
            block = BLOCKS[round(share * (len(BLOCKS) - 1))]
            return (f" {number} " if number else "").center(width, block), ""
        return number.center(width), shade(round(share * 64) / 64)

    def _legend(self, indent: str, shown: int, colour: bool) -> Iterator[Text]:
        strip = [self._cell(self.largest * step / 15, 1, colour) for step in range(16)]
        yield _line(indent, ("0 ", "dim"), *strip, (f" {self.largest * 100:.0f} %", "dim"))
        if shown < len(self.columns):
            hidden = sum(sum(row[shown:]) for row in self.weights) / max(sum(map(sum, self.weights)), 1e-12)
            told = f"{shown} of {len(self.columns)} columns fit; the others hold {hidden * 100:.0f} % of the attention"
            yield Text(told, style="dim italic")


def _line(*parts: str | tuple[str, str | Style]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="crop", end="\n")


def readable(piece: str) -> str:
    """White space made visible and control characters taken out, so that no piece can break the drawing."""
    shown = "".join(VISIBLE.get(letter, "" if category(letter)[0] == "C" else letter) for letter in piece)
    return shown or "∅"


def stacked(labels: list[str]) -> list[list[str]]:
    """Labels that stand upright, one character a line, feet on the map: one list of characters for each line."""
    towers = [_graphemes(label) for label in labels]
    towers = [tower if len(tower) <= TALLEST_LABEL else [*tower[: TALLEST_LABEL - 1], "⋮"] for tower in towers]
    height = max(map(len, towers), default=0)
    return [[tower[line - height] if height - line <= len(tower) else "" for tower in towers] for line in range(height)]


def _graphemes(text: str) -> list[str]:
    """Characters with their combining marks."""
    pieces: list[str] = []
    for letter in text:
        if pieces and (combining(letter) or cell_len(letter) == 0):
            pieces[-1] += letter
        else:
            pieces.append(letter)
    return pieces


def fit(text: str, width: int, right: bool = False) -> str:
    """The text in exactly that many terminal cells, cut with an ellipsis where it is longer."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + ELLIPSIS
    return " " * (width - length) + text if right else text + " " * (width - length)


def centred(text: str, width: int) -> str:
    """The text in the middle of that many terminal cells; `str.center` would count a wide character as one."""
    return fit(" " * ((width - cell_len(text)) // 2) + text, width)


@cache
def shade(share: float) -> Style:
    """The cell's background, and a foreground that can be read on it."""
    lightness, rgb = ramp(share)
    ink = Color.parse("#1a1626") if lightness > 0.62 else Color.parse("#f3eefc")
    return Style(color=ink.name, bgcolor=Color.from_rgb(*rgb).name)


def ramp(share: float) -> tuple[float, tuple[int, int, int]]:
    """A share of 0–1 as (OKLab lightness, sRGB bytes): stops are joined by straight lines in OKLab (Ottosson 2020)."""
    place = min(max(share, 0.0), 1.0) * (len(STOPS) - 1)
    first = min(int(place), len(STOPS) - 2)
    stops = [(light, chroma * cos(radians(hue)), chroma * sin(radians(hue))) for light, chroma, hue in STOPS]
    light, a, b = (
        (1 - place + first) * x + (place - first) * y for x, y in zip(stops[first], stops[first + 1], strict=True)
    )
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    red, green, blue = (_byte(value) for value in linear)
    return light, (red, green, blue)


def _byte(linear: float) -> int:
    value = min(max(linear, 0.0), 1.0)
    encoded = 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
    return round(encoded * 255)
