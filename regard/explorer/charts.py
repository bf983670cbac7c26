"""Charts as SVG files, readable on light and dark pages, and described as text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from regard.errors import escape_controls

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 34, 48  # margins
COLOURS = ("#3b6fd4", "#d9752b", "#2a9d6e", "#b2478f", "#8a7a1f", "#666f7d")
LETTER, LINE = 7, 15  # the width of a letter, the height of a line of text
CELL, BAR = 24, 28
SMALL = 14  # a cell of a panel
MIN_SHADED = 0.01  # smaller weights are not shaded


Curve = tuple[Sequence[tuple[float, float]], Sequence[float]]  # points (x, y), and half-widths of their intervals


@dataclass(frozen=True)
class Bar:
    """A named value, and the half-width of its interval."""

    name: str
    value: float
    interval: float = 0.0


@dataclass(frozen=True)
class Panel:
    """A named map of weights over an image's rows and columns, with a query cell and sampling points (row, column)."""

    name: str
    weights: Sequence[Sequence[float]]
    query: tuple[int, int] | None = None
    points: Sequence[tuple[float, float]] = ()


def line_chart(path: Path | str, title: str, x_label: str, y_label: str, curves: Mapping[str, Curve]) -> Path:
    """Draw lines on one scale from zero, each named at its end, with its intervals as a shaded band."""
    xs = [x for points, _ in curves.values() for x, _ in points]
    bands = {
        name: list(zip(points, intervals or [0.0] * len(points), strict=True))
        for name, (points, intervals) in curves.items()
    }
    step, highest = _scale(max(y + half for band in bands.values() for (_, y), half in band))
    low, high = min(xs), max(xs)

    def position(x: float, y: float) -> tuple[float, float]:
        horizontal = LEFT + (x - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)
        return round(horizontal, 1), round(HEIGHT - BOTTOM - y / highest * (HEIGHT - TOP - BOTTOM), 1)

    elements = [_text(LEFT, 20, title, "font-weight='600'")]
    for value in range(0, highest + 1, step):
        _, y = position(low, value)
        elements.append(_rule(LEFT, WIDTH - RIGHT, y, y))
        elements.append(_text(LEFT - 8, y + 4, str(value), "text-anchor='end'"))
    for x in sorted(set(xs)):
        elements.append(_text(position(x, 0)[0], HEIGHT - BOTTOM + 18, f"{x:g}", "text-anchor='middle'"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    elements.append(_text(middle, HEIGHT - 8, x_label, "text-anchor='middle'"))
    elements.append(_text(14, TOP + 120, y_label, f"text-anchor='middle' transform='rotate(-90 14 {TOP + 120})'"))
    heights = _without_overlap([position(*points[-1])[1] for points, _ in curves.values()])
    for (name, (points, intervals)), colour, height in zip(curves.items(), COLOURS, heights, strict=False):
        positions = [position(*point) for point in points]
        if intervals:
            above = [position(x, y + half) for (x, y), half in bands[name]]
            below = [position(x, max(0.0, y - half)) for (x, y), half in bands[name]]
            outline = _joined([*above, *reversed(below)])
            elements.append(f"<polygon points='{outline}' fill='{colour}' fill-opacity='0.2'/>")
        elements.append(f"<polyline points='{_joined(positions)}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        elements += [f"<circle cx='{x}' cy='{y}' r='3.5' fill='{colour}'/>" for x, y in positions]
        elements.append(_text(positions[-1][0] + 10, height + 4, name, f"style='fill:{colour}'"))
    described = {name: ", ".join(f"{x:g} → {y:.1f}" for x, y in points) for name, (points, _) in curves.items()}
    description = "; ".join(f"{name}: {values}" for name, values in described.items())
    return _write(path, elements, title, description, (WIDTH, HEIGHT))


def bar_chart(path: Path | str, title: str, x_label: str, bars: Sequence[Bar]) -> Path:
    """Draw a horizontal bar for each value, from zero, with its name on the left and its interval as a whisker."""
    left = 16 + LETTER * max(len(bar.name) for bar in bars)
    step, highest = _scale(max(bar.value + bar.interval for bar in bars))
    bottom = TOP + BAR * len(bars)

    def position(value: float) -> float:
        return round(left + value / highest * (WIDTH - left - BOTTOM), 1)

    elements = [_text(16, 20, title, "font-weight='600'")]
    for value in range(0, highest + 1, step):
        elements.append(_rule(position(value), position(value), TOP, bottom))
        elements.append(_text(position(value), bottom + 16, str(value), "text-anchor='middle'"))
    elements.append(_text(position(highest / 2), bottom + 36, x_label, "text-anchor='middle'"))
    for index, bar in enumerate(bars):
        top = TOP + BAR * index + 5
        middle = TOP + BAR * index + BAR / 2
        whisker = position(max(0.0, bar.value - bar.interval)), position(bar.value + bar.interval)
        width = round(position(bar.value) - left, 1)
        elements.append(f"<rect x='{left}' y='{top}' width='{width}' height='{BAR - 10}' fill='{COLOURS[0]}'/>")
        if bar.interval:
            elements.append(_rule(*whisker, middle, middle, "stroke='#888' stroke-width='2'"))
        elements.append(_text(left - 8, middle + 4, bar.name, "text-anchor='end'"))
        elements.append(_text(whisker[1] + 6, middle + 4, f"{bar.value:.1f}"))
    description = "; ".join(f"{bar.name}: {bar.value:.1f} ± {bar.interval:.1f}" for bar in bars)
    return _write(path, elements, title, description, (WIDTH, bottom + 46))


def heatmap(
    path: Path | str,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    weights: Sequence[Sequence[float]],
    words: Sequence[Sequence[str]] = (),
) -> Path:
    """Draw weights as shades: a row for each query, a column for each key; `words` are written on the cells."""
    left = 16 + LETTER * max(map(len, rows))
    slanted = round(0.75 * LETTER * max(map(len, columns))) + 10
    top = TOP + slanted
    right = left + CELL * len(columns)
    bottom = top + CELL * len(rows)
    elements = [_text(16, 20, title, "font-weight='600'")]
    elements += [_rule(x, x, top, bottom) for x in range(left, right + 1, CELL)]
    elements += [_rule(left, right, y, y) for y in range(top, bottom + 1, CELL)]
    for index, name in enumerate(columns):
        x = left + CELL * index + CELL // 2
        y = top - 6
        elements.append(_text(x, y, name.strip(), f"transform='rotate(-45 {x} {y})'"))
    for index, (name, row) in enumerate(zip(rows, weights, strict=True)):
        y = top + CELL * index
        elements.append(_text(left - 8, y + CELL / 2 + 4, name.strip(), "text-anchor='end'"))
        for column, weight in enumerate(row):
            if weight >= MIN_SHADED:
                shade = f"fill='{COLOURS[0]}' fill-opacity='{weight:.2f}'"
                elements.append(f"<rect x='{left + CELL * column}' y='{y}' width='{CELL}' height='{CELL}' {shade}/>")
        for column, word in enumerate(words[index] if words else ()):
            ink = "style='fill:#fff' " if row[column] > 0.5 else ""  # on a dark shade
            small = f"{ink}text-anchor='middle' font-size='{min(12, round(2 * CELL / (len(word) + 1)))}'"
            elements.append(_text(left + CELL * column + CELL / 2, y + CELL / 2 + 4, word, small))
    size = max(right + slanted, 32 + math.ceil(1.1 * LETTER * len(title))), bottom + 16
    largest = []  # the key that each query attends to most
    for name, row in zip(rows, weights, strict=True):
        best = max(range(len(row)), key=row.__getitem__)
        largest.append(f"{name.strip()} → {columns[best].strip()} {row[best]:.2f}")
    return _write(path, elements, title, "; ".join(largest), size)


def panel_chart(path: Path | str, title: str, panels: Sequence[Panel], columns: int) -> Path:
    """Draw several maps in rows of `columns`; the query is outlined, points are at the centres of pixels."""
    height = len(panels[0].weights)
    width = len(panels[0].weights[0])
    elements = [_text(16, 20, title, "font-weight='600'")]
    descriptions = []
    for index, panel in enumerate(panels):
        left = 16 + (index % columns) * (SMALL * width + 24)
        top = TOP + 18 + (index // columns) * (SMALL * height + 36)
        elements.append(_text(left, top - 6, panel.name))
        elements += [_rule(x, x, top, top + SMALL * height) for x in range(left, left + SMALL * width + 1, SMALL)]
        elements += [_rule(left, left + SMALL * width, y, y) for y in range(top, top + SMALL * height + 1, SMALL)]
        elements += _cells(panel, left, top)
        cells = [(row, column) for row in range(height) for column in range(width)]
        row, column = max(cells, key=lambda cell: panel.weights[cell[0]][cell[1]])
        descriptions.append(f"{panel.name}: largest {panel.weights[row][column]:.2f} at row {row}, column {column}")
        if panel.points:
            descriptions[-1] = f"{panel.name}: " + ", ".join(f"({y:.2f}, {x:.2f})" for y, x in panel.points)
    rows = math.ceil(len(panels) / columns)
    size = max(16 + columns * (SMALL * width + 24), 32 + math.ceil(1.1 * LETTER * len(title)))
    return _write(path, elements, title, "; ".join(descriptions), (size, TOP + 18 + rows * (SMALL * height + 36)))


def _cells(panel: Panel, left: int, top: int) -> list[str]:
    """The shaded cells, the outline of the query, and the points of a panel."""
    side = f"width='{SMALL}' height='{SMALL}'"
    elements = []
    for row, weights in enumerate(panel.weights):
        for column, weight in enumerate(weights):
            if weight >= MIN_SHADED:
                shade = f"fill='{COLOURS[0]}' fill-opacity='{weight:.2f}'"
                elements.append(f"<rect x='{left + SMALL * column}' y='{top + SMALL * row}' {side} {shade}/>")
    if panel.query:
        row, column = panel.query
        style = f"fill='none' stroke='{COLOURS[1]}' stroke-width='2'"
        elements.append(f"<rect x='{left + SMALL * column}' y='{top + SMALL * row}' {side} {style}/>")
    for row, column in panel.points:
        x = round(left + SMALL * (column + 0.5), 1)
        y = round(top + SMALL * (row + 0.5), 1)
        elements.append(f"<circle cx='{x}' cy='{y}' r='4' fill='{COLOURS[0]}'/>")
    return elements


def _scale(largest: float) -> tuple[int, int]:
    """The step between the lines of a scale, and its end."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if largest / step <= 8)
    return step, step * max(1, math.ceil(round(largest / step, 9)))


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def _without_overlap(heights: Sequence[float]) -> list[float]:
    """The same heights, moved down where two lines of text would overlap."""
    moved = dict[int, float]()
    for index in sorted(range(len(heights)), key=heights.__getitem__):
        moved[index] = max([heights[index], *(y + LINE for y in moved.values())])
    return [moved[index] for index in range(len(heights))]


def _rule(x1: float, x2: float, y1: float, y2: float, style: str = "stroke='#888' stroke-opacity='0.25'") -> str:
    return f"<line x1='{x1}' x2='{x2}' y1='{y1}' y2='{y2}' {style}/>"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x}' y='{y}' {more}>{escape(text)}</text>"


def _write(path: Path | str, elements: Sequence[str], title: str, description: str, size: tuple[int, int]) -> Path:
    """The chart as a file, with its description for screen readers."""
    width, height = size
    inside = "\n".join(elements)
    page = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' role='img' "
        f"font-family='system-ui, sans-serif' font-size='12'>\n<title>{escape(title)}</title>\n"
        f"<desc>{escape(description)}</desc>\n<style>text{{fill:#555}}"
        f"@media(prefers-color-scheme:dark){{text{{fill:#bbb}}}}</style>\n{inside}\n</svg>\n"
    )
    Path(path).write_text(escape_controls(page), encoding="utf-8", errors="replace")  # XML has no control characters
    return Path(path)
