"""One self-contained HTML file that shows attention weights: no network, no build step, opens from disk.

Texts are untrusted: they are embedded as JSON with `<` escaped, the page inserts them as text, and a content security
policy allows no script or style but the page's.
"""

from __future__ import annotations

import json
import re
import sys
import webbrowser
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
from torch import Tensor

from regard.attention.trace import Axis, Picture, Trace
from regard.errors import UserError
from regard.explorer.overlay import grid_of, to_png

STEPS = 65535  # weights are stored as sixteen-bit shares of one
SCRIPTS = ("weights.js", "colours.js", "elements.js", "picture.js", "page.js")  # each imports only from those before it
ROUNDING = f"Weights are rounded to the nearest 1/{STEPS}."

MAX_TOKENS = 256  # rows and columns of a map by default
MAX_WEIGHTS = 8_000_000  # of a page by default: about 21 MB
MAX_TITLE = 100  # characters
MAX_PICTURE = 640  # pixels on the longer side of an image


class Grid(TypedDict):
    """The last positions of an axis: the patches of the map's image, row by row."""

    rows: int
    columns: int
    first: int  # the position of the first patch
    box: list[float]  # left, top, right and bottom, as shares of the image


class Site(TypedDict):
    """Weights (heads, rows, columns) of one attention layer; rows are queries, columns are keys."""

    name: str
    weights: Any
    rows: list[str]
    columns: list[str]
    heads: NotRequired[list[int]]  # the indices of its heads; by default 0, 1, 2, …
    others: NotRequired[list[float]]  # the share of each head's attention that goes to keys not shown
    query_grid: NotRequired[Grid | None]  # where queries or keys are patches
    key_grid: NotRequired[Grid | None]


class Map(TypedDict):
    """One input and answer of one model."""

    model: str
    name: str
    answer: str
    sites: list[Site]
    note: NotRequired[str]  # what is not shown
    image: NotRequired[str]  # the input image, as a data URI


class Selection(NamedTuple):
    """What of a trace to show; by default all of it, up to limits (0: MAX_TOKENS and MAX_WEIGHTS)."""

    sites: Sequence[str] | None = None
    heads: Sequence[int] | None = None
    rows: slice | None = None  # queries
    columns: slice | None = None  # keys
    max_tokens: int = 0
    max_weights: int = 0


def map_of(trace: Trace, model: str, name: str, selection: Selection | None = None) -> Map:
    """A trace as the page shows it: every site with its labels, cross-attention first."""
    if not trace.sites:
        raise UserError("this model has no attention layers, so there is nothing to show")
    selection = selection or Selection()
    sites = selection.sites or sorted(trace.sites, key=lambda site: "cross" not in site)
    views = [_View.of(trace, site, selection) for site in sites]
    total = sum(view.weights for view in views)
    max_weights = selection.max_weights or MAX_WEIGHTS
    if selection.sites is None and total > max_weights:
        count = max(1, len(sites) * max_weights // total)
        views = [views[index] for index in np.linspace(0, len(sites) - 1, count).round().astype(int)]
    views = [view.within(max_weights // len(views)) for view in views]
    notes = [f"{len(views)} of {len(sites)} attention layers (sites=…)"] if len(views) < len(sites) else []
    notes += dict.fromkeys(note for view in views for note in view.notes())
    shown = [_show(trace, view) for view in views]
    page: Map = {"model": model, "name": name, "answer": trace.answer, "sites": shown}
    if trace.picture is not None:
        page["image"] = _data_uri(trace.picture)
    return {**page, "note": f"Shown: {', '.join(notes)}."} if notes else page


class _View(NamedTuple):
    """What of a site is shown: heads, rows and columns, and how many of them there are."""

    site: str
    heads: Sequence[int]
    rows: range
    columns: range
    all_heads: int
    all_rows: int
    all_columns: int
    free_heads: bool  # not chosen by the caller

    @classmethod
    def of(cls, trace: Trace, site: str, selection: Selection) -> _View:
        all_heads = trace.weights(site, rows=slice(0, 1)).size(0)
        all_rows, all_columns = map(len, trace.labels(site))
        last = not trace.source  # of a causal language model the newest tokens are shown, else the first
        most = selection.max_tokens or MAX_TOKENS
        axes = trace.axes.at(site)
        rows = _window(all_rows, selection.rows, last, most)
        columns = _window(all_columns, selection.columns, last, all_columns if axes and axes[1].grid else most)
        free_heads = selection.heads is None
        heads = range(all_heads) if selection.heads is None else selection.heads
        return cls(site, heads, rows, columns, all_heads, all_rows, all_columns, free_heads)

    @property
    def weights(self) -> int:
        return len(self.heads) * len(self.rows) * len(self.columns)

    def within(self, budget: int) -> _View:
        """With fewer heads, where the caller did not choose them and there are too many."""
        count = max(1, budget * len(self.heads) // max(1, self.weights))
        return self._replace(heads=self.heads[:count]) if self.free_heads else self

    def notes(self) -> Iterator[str]:
        if self.free_heads and len(self.heads) < self.all_heads:
            yield f"{len(self.heads)} of {self.all_heads} heads (heads=…)"
        for name, shown, count in (("rows", self.rows, self.all_rows), ("columns", self.columns, self.all_columns)):
            if len(shown) < count:
                yield f"{name} {shown.start} to {shown[-1]} of {count:,} ({name}=…)"


def _window(count: int, chosen: slice | None, last: bool, most: int) -> range:
    if chosen is None:
        return range(max(0, count - most), count) if last else range(min(count, most))
    indices = range(count)[chosen]
    if not indices:
        raise UserError(f"nothing to show in {chosen}: there are {count} tokens")
    return indices


def _show(trace: Trace, view: _View) -> Site:
    """The selected weights of a site; computed head by head, so that no full square of a long text is."""
    rows, columns = trace.labels(view.site)
    queries = slice(view.rows.start, view.rows.stop, view.rows.step)
    keys = slice(view.columns.start, view.columns.stop, view.columns.step)
    weights = np.stack([_to_numpy(trace.weights(view.site, head, queries))[:, keys] for head in view.heads])
    heads = list(view.heads)
    shown: Site = {
        "name": view.site, "weights": weights, "heads": heads, "rows": rows[queries], "columns": columns[keys]
    }  # fmt: skip
    if len(view.columns) < view.all_columns:
        shown["others"] = [round(1 - float(head.sum(1).mean()), 4) for head in weights]
    if (axes := trace.axes.at(view.site)) and trace.picture is not None:
        starts_at_first = view.rows == range(len(view.rows))  # else rows are not the first positions
        shown["query_grid"] = _grid(axes[0], trace.picture) if starts_at_first else None
        shown["key_grid"] = _grid(axes[1], trace.picture) if len(view.columns) == view.all_columns else None
    return shown


def _grid(axis: Axis, picture: Picture) -> Grid | None:
    if axis.grid is None:
        return None
    grid = grid_of(axis, picture)
    height, width = picture.pixels.shape[:2]
    left, top, right, bottom = grid.box
    box = [left / width, top / height, right / width, bottom / height]
    return {"rows": grid.rows, "columns": grid.columns, "first": axis.first_patch, "box": box}


def _data_uri(picture: Picture) -> str:
    image = to_png(picture.pixels.cpu().numpy(), MAX_PICTURE)
    return "data:image/png;base64," + b64encode(image).decode()


def _to_numpy(weights: Tensor | np.ndarray | Sequence) -> np.ndarray:
    """float32; numpy cannot read every tensor's dtype, such as bfloat16."""
    return np.asarray(weights.detach().float().cpu() if isinstance(weights, Tensor) else weights, dtype=np.float32)


AROUND_TEXT = {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<|endoftext|>"}  # not in a title


def explore(trace: Trace, path: Path | str | None = None, selection: Selection | None = None) -> Any:
    """The page of one trace as a file; without a path, shown inline in a notebook or opened in a browser."""
    title = _title(trace)
    shown = map_of(trace, "model", title, selection)
    if "note" in shown:
        print(f"trace.explore: {shown['note']}", file=sys.stderr)
    if path is not None:
        return write_page(path, title, [shown])
    page = write_page(Path(mkdtemp(prefix="regard-")) / "attention.html", title, [shown])
    if "ipykernel" in sys.modules:
        from IPython.display import IFrame  # type: ignore[import-not-found]

        source = "data:text/html;base64," + b64encode(page.read_bytes()).decode()
        return IFrame(source, width="100%", height=640)
    webbrowser.open(page.as_uri())
    return page


def inline(trace: Trace) -> str:
    """The page of a trace as a frame in a notebook, with fewer tokens and weights than a file."""
    title = _title(trace)
    selection = Selection(max_tokens=64, max_weights=500_000)  # a notebook is saved with it
    page = render_page(title, [map_of(trace, "model", title, selection)])
    return f'<iframe srcdoc="{escape(page)}" title="{escape(title)}" width="100%" height="640"></iframe>'


def _title(trace: Trace) -> str:
    tokens = [token for token in trace.source or trace.target if token not in AROUND_TEXT]
    text = trace.picture.name if trace.picture else text_of(tokens)
    return (text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1].rstrip()}…") or "attention"


def text_of(tokens: Sequence[str]) -> str:
    """The text of tokens that begin words with a space, or continue them with ##."""
    if any(token.startswith(" ") for token in tokens) or max(map(len, tokens), default=0) < 2:
        return "".join(tokens).strip()
    return " ".join(tokens).replace(" ##", "")


def write_page(path: Path | str, title: str, maps: list[Map]) -> Path:
    """Write the page; gives its path."""
    path = Path(path)
    path.write_text(render_page(title, maps), encoding="utf-8", errors="replace", newline="\n")
    return path


def render_page(title: str, maps: list[Map]) -> str:
    """The page as HTML."""
    packed = [{"note": "", "image": "", **shown, "sites": list(map(_pack_site, shown["sites"]))} for shown in maps]
    data = json.dumps({"steps": STEPS, "maps": packed}, separators=(",", ":"))
    # A file opened from disk cannot import: the modules are joined, without their imports and exports.
    script = re.sub(r"^import .*\n|^export ", "", "\n".join(map(_static, SCRIPTS)), flags=re.MULTILINE)
    style = _static("page.css")
    fields = {
        "title": escape(title),
        "rounding": ROUNDING,
        "script": script,
        "script-hash": _hash(script),
        "style": style,
        "style-hash": _hash(style),
        "data": data.replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{([a-z-]+)\}\}", lambda field: fields[field[1]], _static("page.html"))


def _pack_site(site: Site) -> dict[str, object]:
    """Weights as base64 of little-endian uint16, heads then rows then columns."""
    labels = len(site["rows"]), len(site["columns"])
    weights = _to_numpy(site["weights"])
    if weights.ndim != 3 or weights.shape[1:] != labels or not weights.size:
        expected = f"(heads, {labels[0]}, {labels[1]})"
        raise ValueError(f"the weights of {site['name']} are {weights.shape}; its labels need {expected}")
    if not (weights.min() >= 0 and weights.max() <= 1 + 1e-4):
        raise ValueError(f"the weights of {site['name']} are outside 0–1, so they are not attention weights")
    packed = b64encode(np.rint(weights.clip(0, 1) * STEPS).astype("<u2").tobytes()).decode()
    defaults = {"heads": list(range(len(weights))), "others": [], "query_grid": None, "key_grid": None}
    return {**defaults, **site, "weights": packed}


def _static(name: str) -> str:
    return files("regard.explorer").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
