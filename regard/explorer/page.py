"""One self-contained HTML file that shows what models looked at: no network, no build step, opens from disk.

The texts may be anybody's: they travel as JSON with `<` escaped, the page puts them in as text, and a content security
policy lets no script or style run but the page's own.
"""

from __future__ import annotations

import json
import re
import sys
import webbrowser
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NotRequired, TypedDict

import numpy as np

from regard.attention.trace import Trace
from regard.errors import UserError

STEPS = 65535  # weights are stored as sixteen-bit shares of one
SCRIPTS = ("weights.js", "colours.js", "elements.js", "page.js")  # each imports only from those before it
ROUNDING = f"Weights are rounded to the nearest 1/{STEPS}."


class Site(TypedDict):
    """Weights (heads, rows, columns) of one place in a model; labels of its own where they are not the map's."""

    name: str
    weights: Any
    rows: NotRequired[list[str]]
    columns: NotRequired[list[str]]


class Map(TypedDict):
    """One input and answer of one model; rows are the pieces that look, columns those that are looked at."""

    model: str
    name: str
    answer: str
    rows: list[str]
    columns: list[str]
    sites: list[Site]


def map_of(trace: Trace, model: str, name: str) -> Map:
    """A trace as the page shows it: every site with its own labels, what looks at the source first."""
    sites = sorted(trace.sites, key=lambda site: "cross" not in site)
    shown: list[Site] = []
    for site in sites:
        rows, columns = trace.labels(site)
        shown.append({"name": site, "weights": trace.weights(site), "rows": rows, "columns": columns})
    return {
        "model": model,
        "name": name,
        "answer": trace.answer,
        "rows": trace.output,
        "columns": trace.source,
        "sites": shown,
    }


def explore(trace: Trace, path: Path | str | None = None) -> Any:
    """The page of one trace as a file; without a path, shown inline in a notebook or opened in a browser."""
    if not trace.sites:
        raise UserError("this model attends to nothing, so there is nothing to show")
    title = text_of(trace.source) or "attention"
    if path is not None:
        return write_page(path, title, [map_of(trace, "model", title)])
    page = write_page(Path(mkdtemp(prefix="regard-")) / "attention.html", title, [map_of(trace, "model", title)])
    if "ipykernel" in sys.modules:
        from IPython.display import IFrame  # type: ignore[import-not-found]

        source = "data:text/html;base64," + b64encode(page.read_bytes()).decode()
        return IFrame(source, width="100%", height=640)
    webbrowser.open(page.as_uri())
    return page


def text_of(pieces: Sequence[str]) -> str:
    """The text that was cut into pieces, in which words begin with a space, or go on behind ##."""
    if any(piece.startswith(" ") for piece in pieces) or max(map(len, pieces), default=0) < 2:
        return "".join(pieces).strip()
    return " ".join(pieces).replace(" ##", "")


def write_page(path: Path | str, title: str, maps: list[Map]) -> Path:
    """Write the page, and give its path back."""
    data = json.dumps({"steps": STEPS, "maps": [_packed_map(each) for each in maps]}, separators=(",", ":"))
    script, style = _script(), _part("page.css")
    fields = {
        "title": escape(title),
        "rounding": ROUNDING,
        "script": script,
        "script-hash": _hash(script),
        "style": style,
        "style-hash": _hash(style),
        "data": data.replace("<", "\\u003c"),
    }
    page = re.sub(r"\{\{([a-z-]+)\}\}", lambda field: fields[field[1]], _part("page.html"))
    path = Path(path)
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _packed_map(given: Map) -> dict[str, Any]:
    if not given["sites"]:
        raise ValueError(f"the map of {given['name']!r} has no sites, so there is nothing to show")
    texts = {key: given[key] for key in ("model", "name", "answer")}
    return {**texts, "sites": [_packed_site(site, given) for site in given["sites"]]}


def _packed_site(site: Site, given: Map) -> dict[str, Any]:
    """Weights as base64 of little-endian uint16, heads then rows then columns."""
    rows, columns = site.get("rows", given["rows"]), site.get("columns", given["columns"])
    given_weights = site["weights"]  # numpy cannot read every tensor's type: bfloat16 goes through float32
    given_weights = given_weights.detach().float().cpu() if hasattr(given_weights, "detach") else given_weights
    weights = np.asarray(given_weights, dtype=np.float32)
    if weights.ndim != 3 or weights.shape[1:] != (len(rows), len(columns)) or not weights.size:
        expected = f"(heads, {len(rows)}, {len(columns)})"
        raise ValueError(f"the weights of {site['name']} are {weights.shape}; its labels need {expected}")
    if not (weights.min() >= 0 and weights.max() <= 1 + 1e-4):
        raise ValueError(f"the weights of {site['name']} lie outside 0–1, so they are not shares of attention")
    packed = np.rint(weights.clip(0, 1) * STEPS).astype("<u2").tobytes()
    labels = {"rows": list(rows), "columns": list(columns)}
    return {"name": site["name"], "heads": len(weights), **labels, "weights": b64encode(packed).decode()}


def _script() -> str:
    """The modules in one, since a file opened from disk may not import: joined, without their imports and exports."""
    joined = "\n".join(_part(name) for name in SCRIPTS)
    return re.sub(r"^import .*\n|^export ", "", joined, flags=re.MULTILINE)


def _part(name: str) -> str:
    return files("regard.explorer").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
