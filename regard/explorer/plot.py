"""A line chart as an SVG file: no library, readable on light and dark pages, and as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 34, 48
COLOURS = ("#3b6fd4", "#d9752b", "#2a9d6e", "#b2478f", "#8a7a1f", "#666f7d")


@dataclass(frozen=True)
class Line:
    """A named series of points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(path: Path | str, title: str, across: str, up: str, lines: Sequence[Line]) -> Path:
    """Draw the lines with a shared scale from zero, each named at its end."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if max(ys) / step <= 8)
    highest = step * (int(max(ys) / step) + 1)
    low, high = min(xs), max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - y / highest * (HEIGHT - TOP - BOTTOM), 1)

    parts = [_text(LEFT, 20, title, "font-weight='600'")]
    for value in range(0, highest + 1, step):
        _, y = place(low, value)
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y}' y2='{y}' stroke='#888' stroke-opacity='0.25'/>")
        parts.append(_text(LEFT - 8, y + 4, str(value), "text-anchor='end'"))
    for x in sorted(set(xs)):
        parts.append(_text(place(x, 0)[0], HEIGHT - BOTTOM + 18, f"{x:g}", "text-anchor='middle'"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 8, across, "text-anchor='middle'"))
    parts.append(_text(14, TOP + 120, up, f"text-anchor='middle' transform='rotate(-90 14 {TOP + 120})'"))
    for line, colour in zip(lines, COLOURS, strict=False):
        places = [place(*point) for point in line.points]
        joined = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f"<polyline points='{joined}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        parts += [f"<circle cx='{x}' cy='{y}' r='3.5' fill='{colour}'/>" for x, y in places]
        parts.append(_text(places[-1][0] + 10, places[-1][1] + 4, line.name, f"style='fill:{colour}'"))
    Path(path).write_text(_page("\n".join(parts), title, lines), encoding="utf-8")
    return Path(path)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x}' y='{y}' {more}>{escape(text)}</text>"


def _page(inside: str, title: str, lines: Sequence[Line]) -> str:
    told = "; ".join(f"{line.name}: " + ", ".join(f"{x:g} → {y:.1f}" for x, y in line.points) for line in lines)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' role='img' "
        f"font-family='system-ui, sans-serif' font-size='12'>\n<title>{escape(title)}</title>\n"
        f"<desc>{escape(told)}</desc>\n<style>text{{fill:#555}}"
        f"@media(prefers-color-scheme:dark){{text{{fill:#bbb}}}}</style>\n{inside}\n</svg>\n"
    )
