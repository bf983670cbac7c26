"""Charts as SVG files: no library, readable on light and dark pages, and as text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from pathlib import Path

WIDTH, HEIGHT = 640, 360

LEFT, RIGHT, TOP, BOTTOM = 56, 150, 34, 48

COLOURS = ("#3b6fd4", "#d9752b", "#2a9d6e", "#b2478f", "#8a7a1f", "#666f7d")

LETTER, LINE = 7, 15  # the room that a letter and a line of text take

CELL, BAR = 24, 28

FAINTEST = 0.01  # what a heatmap shades


@dataclass(frozen=True)
class Line:
    """A named series of points (x, y), and how far each may be off on either side."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[float] = ()

    @property
    def highest(self) -> float:
        return max(y + off for (_, y), off in self.around)

    @property
    def around(self) -> list[tuple[tuple[float, float], float]]:
        """Each point with its interval."""
        return list(zip(self.points, self.intervals or [0.0] * len(self.points), strict=True))


@dataclass(frozen=True)
class Bar:
    """A named value, and how far it may be off on either side."""

    name: str
    value: float
    interval: float = 0.0


def line_chart(path: Path | str, title: str, across: str, up: str, lines: Sequence[Line]) -> Path:
    """Draw the lines with a shared scale from zero, each named at its end, its intervals as a shade around it."""
    xs = [x for line in lines for x, _ in line.points]
    step, highest = _scale(max(line.highest for line in lines))
    low, high = min(xs), max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - y / highest * (HEIGHT - TOP - BOTTOM), 1)

    parts = [_text(LEFT, 20, title, "font-weight='600'")]
    for value in range(0, highest + 1, step):
        _, y = place(low, value)
        parts.append(_rule(LEFT, WIDTH - RIGHT, y, y))
        parts.append(_text(LEFT - 8, y + 4, str(value), "text-anchor='end'"))
    for x in sorted(set(xs)):
        parts.append(_text(place(x, 0)[0], HEIGHT - BOTTOM + 18, f"{x:g}", "text-anchor='middle'"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 8, across, "text-anchor='middle'"))
    parts.append(_text(14, TOP + 120, up, f"text-anchor='middle' transform='rotate(-90 14 {TOP + 120})'"))
    names = _apart([place(*line.points[-1])[1] for line in lines])
    for line, colour, y in zip(lines, COLOURS, names, strict=False):
        places = [place(*point) for point in line.points]
        if line.intervals:
            above = [place(x, y + off) for (x, y), off in line.around]
            below = [place(x, max(0.0, y - off)) for (x, y), off in line.around]
            parts.append(
                f"<polygon points='{_joined([*above, *reversed(below)])}' fill='{colour}' fill-opacity='0.2'/>"
            )
        parts.append(f"<polyline points='{_joined(places)}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        parts += [f"<circle cx='{x}' cy='{y}' r='3.5' fill='{colour}'/>" for x, y in places]
        parts.append(_text(places[-1][0] + 10, y + 4, line.name, f"style='fill:{colour}'"))
    told = "; ".join(f"{line.name}: " + ", ".join(f"{x:g} → {y:.1f}" for x, y in line.points) for line in lines)
    return _write(path, parts, title, told, (WIDTH, HEIGHT))


def bar_chart(path: Path | str, title: str, across: str, bars: Sequence[Bar]) -> Path:
    """Draw a lying bar for each value, from zero, its name before it and its interval as a whisker."""
    left = 16 + LETTER * max(len(bar.name) for bar in bars)
    step, highest = _scale(max(bar.value + bar.interval for bar in bars))
    bottom = TOP + BAR * len(bars)

    def place(value: float) -> float:
        return round(left + value / highest * (WIDTH - left - BOTTOM), 1)

    parts = [_text(16, 20, title, "font-weight='600'")]
    for value in range(0, highest + 1, step):
        parts.append(_rule(place(value), place(value), TOP, bottom))
        parts.append(_text(place(value), bottom + 16, str(value), "text-anchor='middle'"))
    parts.append(_text(place(highest / 2), bottom + 36, across, "text-anchor='middle'"))
    for number, bar in enumerate(bars):
        top, middle = TOP + BAR * number + 5, TOP + BAR * number + BAR / 2
        ends = place(max(0.0, bar.value - bar.interval)), place(bar.value + bar.interval)
        width = round(place(bar.value) - left, 1)
        parts.append(f"<rect x='{left}' y='{top}' width='{width}' height='{BAR - 10}' fill='{COLOURS[0]}'/>")
        if bar.interval:
            parts.append(_rule(*ends, middle, middle, "stroke='#888' stroke-width='2'"))
        parts.append(_text(left - 8, middle + 4, bar.name, "text-anchor='end'"))
        parts.append(_text(ends[1] + 6, middle + 4, f"{bar.value:.1f}"))
    told = "; ".join(f"{bar.name}: {bar.value:.1f} ± {bar.interval:.1f}" for bar in bars)
    return _write(path, parts, title, told, (WIDTH, bottom + 46))


def heatmap(
    path: Path | str,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    weights: Sequence[Sequence[float]],
    words: Sequence[Sequence[str]] = (),
) -> Path:
    """Draw weights as shades: a row for each piece written, a column for each piece read; `words` stand on them."""
    left = 16 + LETTER * max(map(len, rows))
    slanted = round(0.75 * LETTER * max(map(len, columns))) + 10
    top, right = TOP + slanted, left + CELL * len(columns)
    bottom = top + CELL * len(rows)
    parts = [_text(16, 20, title, "font-weight='600'")]
    parts += [_rule(x, x, top, bottom) for x in range(left, right + 1, CELL)]
    parts += [_rule(left, right, y, y) for y in range(top, bottom + 1, CELL)]
    for number, name in enumerate(columns):
        x, y = left + CELL * number + CELL // 2, top - 6
        parts.append(_text(x, y, name.strip(), f"transform='rotate(-45 {x} {y})'"))
    for number, (name, row) in enumerate(zip(rows, weights, strict=True)):
        y = top + CELL * number
        parts.append(_text(left - 8, y + CELL / 2 + 4, name.strip(), "text-anchor='end'"))
        for place, weight in enumerate(row):
            if weight >= FAINTEST:
                shade = f"fill='{COLOURS[0]}' fill-opacity='{weight:.2f}'"
                parts.append(f"<rect x='{left + CELL * place}' y='{y}' width='{CELL}' height='{CELL}' {shade}/>")
        for place, word in enumerate(words[number] if words else ()):
            ink = "style='fill:#fff' " if row[place] > 0.5 else ""  # on a dark shade
            small = f"{ink}text-anchor='middle' font-size='{min(12, round(2 * CELL / (len(word) + 1)))}'"
            parts.append(_text(left + CELL * place + CELL / 2, y + CELL / 2 + 4, word, small))
    size = max(right + slanted, 32 + ceil(1.1 * LETTER * len(title))), bottom + 16
    return _write(path, parts, title, _seen_most(rows, columns, weights), size)


def _seen_most(rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]]) -> str:
    """For each piece written, the piece it looked at most."""
    told = []
    for name, row in zip(rows, weights, strict=True):
        most = max(range(len(row)), key=row.__getitem__)
        told.append(f"{name.strip()} → {columns[most].strip()} {row[most]:.2f}")
    return "; ".join(told)


def _scale(largest: float) -> tuple[int, int]:
    """The step between the lines of a scale, and where it ends."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if largest / step <= 8)
    return step, step * max(1, math.ceil(round(largest / step, 9)))


def _joined(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def _apart(places: Sequence[float]) -> list[float]:
    """The same places, moved down where two lines of text would touch."""
    moved = dict[int, float]()
    for number in sorted(range(len(places)), key=places.__getitem__):
        moved[number] = max([places[number], *(y + LINE for y in moved.values())])
    return [moved[number] for number in range(len(places))]


def _rule(x1: float, x2: float, y1: float, y2: float, look: str = "stroke='#888' stroke-opacity='0.25'") -> str:
    return f"<line x1='{x1}' x2='{x2}' y1='{y1}' y2='{y2}' {look}/>"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x}' y='{y}' {more}>{escape(text)}</text>"


def _write(path: Path | str, parts: Sequence[str], title: str, told: str, size: tuple[int, int]) -> Path:
    """The picture as a file, with its words for those who cannot see it."""
    width, height = size
    inside = "\n".join(parts)
    page = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' role='img' "
        f"font-family='system-ui, sans-serif' font-size='12'>\n<title>{escape(title)}</title>\n"
        f"<desc>{escape(told)}</desc>\n<style>text{{fill:#555}}"
        f"@media(prefers-color-scheme:dark){{text{{fill:#bbb}}}}</style>\n{inside}\n</svg>\n"
    )
    Path(path).write_text(page, encoding="utf-8")
    return Path(path)
