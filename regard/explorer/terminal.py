"""An attention map in the terminal: a row for each query, a column for each key.

Shades run from violet to cream in even steps of perceived lightness; without colour they are blocks. Weights are shaded
relative to the largest one shown, which the legend states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from unicodedata import category, combining

from rich.align import AlignMethod
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from regard.errors import escape_controls

BLOCKS = " ·░▒▓█"
ELLIPSIS = "…"
MAX_LABEL_HEIGHT = 12  # stacked characters; longer labels end in an ellipsis
MAX_CELL_WIDTH = 9  # beyond this, labels are vertical and cells are squares again
VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}

STOPS = ("161423", "442878", "c32e85", "fe8f5b", "fdefba")  # of the colour ramp, from weight 0 to the largest
DARK_INK_FROM = 0.575  # of the ramp, where it becomes too light for white text


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
        self.weights = weights
        self.rows = rows
        self.columns = columns
        self.title = title
        self.largest = max((weight for row in weights for weight in row), default=0.0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colour = console.color_system is not None and not console.no_color
        margin = min(max(map(cell_len, self.rows), default=0), max(options.max_width // 3, 1))
        available = options.max_width - margin - 1
        widest = max(map(cell_len, self.columns), default=1)
        cell = widest + 1 if widest < MAX_CELL_WIDTH and len(self.columns) * (widest + 1) <= available else 2
        shown = len(self.columns) if len(self.columns) * cell <= available else max((available - 1) // cell, 1)

        yield Text(escape_controls(self.title), style="bold", overflow="ellipsis", no_wrap=True)
        align = "left" if cell == 2 else "center"
        for line in stacked(self.columns[:shown]) if cell == 2 else [self.columns]:
            yield _line(" " * (margin + 1), *((_fit(label, cell, align), "bold") for label in line))
        for label, weights in zip(self.rows, self.weights, strict=True):
            cells = [self._cell(weight, cell, colour) for weight in weights[:shown]]
            more = [(ELLIPSIS, "dim")] if shown < len(self.columns) else []
            yield _line(_fit(label, margin, "right") + " ", *cells, *more)
        yield from self._legend(" " * (margin + 1), shown, colour)

    def _cell(self, weight: float, width: int, colour: bool) -> tuple[str, Style | str]:
        share = weight / self.largest if self.largest > 0 else 0.0
        percent = f"{weight * 100:.0f}" if width >= 4 and weight >= 0.005 else ""
        if not colour:
            block = BLOCKS[round(share * (len(BLOCKS) - 1))]
            return (f" {percent} " if percent else "").center(width, block), ""
        return percent.center(width), shade(round(share * 64) / 64)

    def _legend(self, indent: str, shown: int, colour: bool) -> Iterator[Text]:
        strip = [self._cell(self.largest * step / 15, 1, colour) for step in range(16)]
        yield _line(indent, ("0 ", "dim"), *strip, (f" {self.largest * 100:.0f} %", "dim"))
        if shown < len(self.columns):
            hidden = sum(sum(row[shown:]) for row in self.weights) / max(sum(map(sum, self.weights)), 1e-12)
            note = f"{shown} of {len(self.columns)} columns fit; the others hold {hidden * 100:.0f} % of the attention"
            yield Text(note, style="dim italic")


def _line(*parts: str | tuple[str, str | Style]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="crop", end="\n")


def readable(token: str) -> str:
    """White space made visible and control characters removed, so that no token can break the drawing."""
    shown = "".join(VISIBLE.get(letter, "" if category(letter)[0] == "C" else letter) for letter in token)
    return shown or "∅"


def stacked(labels: list[str]) -> list[list[str]]:
    """Vertical labels, one character per line, aligned at the bottom: one list of characters for each line."""
    towers = [_graphemes(label) for label in labels]
    towers = [tower if len(tower) <= MAX_LABEL_HEIGHT else [*tower[: MAX_LABEL_HEIGHT - 1], "⋮"] for tower in towers]
    height = max(map(len, towers), default=0)
    return [[tower[line - height] if height - line <= len(tower) else "" for tower in towers] for line in range(height)]


def _graphemes(text: str) -> list[str]:
    """Characters with their combining marks."""
    graphemes: list[str] = []
    for letter in text:
        if graphemes and (combining(letter) or cell_len(letter) == 0):
            graphemes[-1] += letter
        else:
            graphemes.append(letter)
    return graphemes


def _fit(text: str, width: int, align: AlignMethod) -> str:
    """The text in exactly `width` terminal cells, truncated with an ellipsis where it is longer."""
    fitted = Text(text, overflow="ellipsis")
    fitted.align(align, width)
    return fitted.plain


@cache
def shade(share: float) -> Style:
    """The background of a cell, and a foreground that can be read on it."""
    ink = "#1a1626" if share > DARK_INK_FROM else "#f3eefc"
    return Style(color=ink, bgcolor=Color.from_rgb(*ramp(share)).name)


def ramp(share: float) -> tuple[int, int, int]:
    """The colour of a share of 0–1: straight lines in sRGB between the stops."""
    position = min(max(share, 0.0), 1.0) * (len(STOPS) - 1)
    first = min(int(position), len(STOPS) - 2)
    start, end = (bytes.fromhex(stop) for stop in STOPS[first : first + 2])
    red, green, blue = (round(a + (position - first) * (b - a)) for a, b in zip(start, end, strict=True))
    return red, green, blue
