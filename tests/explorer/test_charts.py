"""Panels of a chart: cells, queries and points are where they should be, and described as text."""

import re
from pathlib import Path

from regard.explorer.charts import SMALL, Panel, panel_chart


def test_panels_have_their_cells_queries_and_points(tmp_path: Path) -> None:
    weights = [[0.0, 0.25, 0.0], [0.0, 0.0, 1.0]]
    panels = [Panel("first <a>", weights, (1, 0)), Panel("second", weights), Panel("third", weights, None, [(0.5, 1)])]
    text = panel_chart(tmp_path / "panels.svg", "Title", panels, columns=2).read_text(encoding="utf-8")
    assert text.count("fill-opacity='0.25'") == text.count("fill-opacity='1.00'") == 3
    assert text.count("stroke-width='2'") == 1 and text.count("<circle") == 1
    assert "first &lt;a&gt;: largest 1.00 at row 1, column 2" in text and "third: (0.50, 1.00)" in text
    opaque = re.findall(r"<rect x='(\d+)' y='(\d+)' [^>]*fill-opacity='1.00'", text)
    (x, y), (second, _), (third, below) = [(int(x), int(y)) for x, y in opaque]
    assert second - x == 3 * SMALL + 24 and third == x and below - y == 2 * SMALL + 36
    point = re.search(r"cx='([\d.]+)' cy='([\d.]+)'", text)
    assert point is not None  # row 0.5, column 1 is half a cell above the cell at row 1, column 2, and one to the left
    assert (float(point[1]), float(point[2])) == (third - SMALL / 2, below)
