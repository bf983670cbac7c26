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
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
from torch import Tensor

from regard.attention.trace import Trace
from regard.errors import UserError

STEPS = 65535  # weights are stored as sixteen-bit shares of one
SCRIPTS = ("weights.js", "colours.js", "elements.js", "page.js")  # each imports only from those before it
ROUNDING = f"Weights are rounded to the nearest 1/{STEPS}."

MAX_TOKENS = 256  # rows and columns of a map by default
MAX_WEIGHTS = 8_000_000  # of a page by default: about 21 MB
MAX_TITLE = 100  # characters


class Site(TypedDict):
    """Weights (heads, rows, columns) of one attention layer; labels where they are not the map's."""

    name: str
    weights: Any
    heads: NotRequired[list[int]]  # the indices of its heads; by default 0, 1, 2, …
    others: NotRequired[list[float]]  # the share of each head's attention that goes to keys not shown
    rows: NotRequired[list[str]]
    columns: NotRequired[list[str]]


class Map(TypedDict):
    """One input and answer of one model; rows are queries, columns are keys."""

    model: str
    name: str
    answer: str
    rows: list[str]
    columns: list[str]
    sites: list[Site]
    note: NotRequired[str]  # what is not shown


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
    selection = selection or Selection()
    sites = list(selection.sites or sorted(trace.sites, key=lambda site: "cross" not in site))
    sizes = {site: _Size.of(trace, site, selection) for site in sites}
    weights = sum(size.weights for size in sizes.values())
    all_sites = len(sites)
    max_weights = selection.max_weights or MAX_WEIGHTS
    if selection.sites is None and weights > max_weights:
        count = max(1, all_sites * max_weights // weights)
        sites = [sites[index] for index in np.linspace(0, all_sites - 1, count).round().astype(int)]
    budget = max_weights // len(sites)
    shown = [_show(trace, site, sizes[site].within(budget)) for site in sites]
    notes = [f"{len(sites)} of {all_sites} attention layers (sites=…)"] if len(sites) < all_sites else []
    notes += list(dict.fromkeys(note for site in sites for note in sizes[site].within(budget).notes()))
    texts = {"model": model, "name": name, "answer": trace.answer}
    page: Map = {**texts, "rows": trace.output, "columns": trace.source, "sites": shown}  # type: ignore[typeddict-item]
    return {**page, "note": f"Shown: {', '.join(notes)}."} if notes else page


class _Size(NamedTuple):
    """How much of a site is shown: heads, rows and columns, and how many there are."""

    heads: range | Sequence[int]
    rows: range
    columns: range
    all_heads: int
    all_rows: int
    all_columns: int
    free_heads: bool  # not chosen by the caller

    @classmethod
    def of(cls, trace: Trace, site: str, selection: Selection) -> _Size:
        heads = trace.weights(site, rows=slice(0, 1)).size(0)
        rows, columns = map(len, trace.labels(site))
        last = not trace.source  # of a causal language model the newest tokens are shown, else the first
        most = selection.max_tokens or MAX_TOKENS
        return cls(
            range(heads) if selection.heads is None else selection.heads,
            _window(rows, selection.rows, last, most),
            _window(columns, selection.columns, last, most),
            heads,
            rows,
            columns,
            selection.heads is None,
        )

    @property
    def weights(self) -> int:
        return len(self.heads) * len(self.rows) * len(self.columns)

    def within(self, budget: int) -> _Size:
        """With fewer heads, where the caller did not choose them and there are too many."""
        count = max(1, budget * len(self.heads) // max(1, self.weights))
        return self._replace(heads=self.heads[:count]) if self.free_heads and count < len(self.heads) else self

    def notes(self) -> list[str]:
        notes = []
        if self.free_heads and len(self.heads) < self.all_heads:
            notes.append(f"{len(self.heads)} of {self.all_heads} heads (heads=…)")
        for name, shown, count in (("rows", self.rows, self.all_rows), ("columns", self.columns, self.all_columns)):
            if len(shown) < count:
                notes.append(f"{name} {shown.start} to {shown[-1]} of {count:,} ({name}=…)")
        return notes


def _window(count: int, chosen: slice | None, last: bool, most: int) -> range:
    if chosen is None:
        return range(max(0, count - most), count) if last else range(min(count, most))
    indices = range(count)[chosen]
    if not indices:
        raise UserError(f"nothing to show in {chosen}: there are {count} tokens")
    return indices


def _show(trace: Trace, site: str, size: _Size) -> Site:
    """The selected weights of a site; computed head by head, so that no full square of a long text is."""
    rows, columns = trace.labels(site)
    queries = slice(size.rows.start, size.rows.stop, size.rows.step)
    keys = slice(size.columns.start, size.columns.stop, size.columns.step)
    weights = [_to_numpy(trace.weights(site, head, queries))[:, keys] for head in size.heads]
    shown: Site = {
        "name": site,
        "weights": np.stack(weights),
        "heads": list(size.heads),
        "rows": rows[queries],
        "columns": columns[keys],
    }
    if len(size.columns) < size.all_columns:
        shown["others"] = [round(1 - float(head.sum(1).mean()), 4) for head in weights]
    return shown


def _to_numpy(weights: Tensor | np.ndarray | Sequence) -> np.ndarray:
    """float32; numpy cannot read every tensor's dtype, such as bfloat16."""
    return np.asarray(weights.detach().float().cpu() if isinstance(weights, Tensor) else weights, dtype=np.float32)


def explore(trace: Trace, path: Path | str | None = None, selection: Selection | None = None) -> Any:
    """The page of one trace as a file; without a path, shown inline in a notebook or opened in a browser."""
    if not trace.sites:
        raise UserError("this model has no attention layers, so there is nothing to show")
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
    text = text_of(trace.source or trace.target)
    return (text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1].rstrip()}…") or "attention"


def text_of(tokens: Sequence[str]) -> str:
    """The text of tokens that begin words with a space, or continue them with ##."""
    if any(token.startswith(" ") for token in tokens) or max(map(len, tokens), default=0) < 2:
        return "".join(tokens).strip()
    return " ".join(tokens).replace(" ##", "")


def write_page(path: Path | str, title: str, maps: list[Map]) -> Path:
    """Write the page; gives its path."""
    path = Path(path)
    path.write_text(render_page(title, maps), encoding="utf-8", newline="\n")
    return path


def render_page(title: str, maps: list[Map]) -> str:
    """The page as HTML."""
    data = json.dumps({"steps": STEPS, "maps": [_pack_map(shown) for shown in maps]}, separators=(",", ":"))
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


def _pack_map(shown: Map) -> dict[str, object]:
    if not shown["sites"]:
        raise ValueError(f"the map of {shown['name']!r} has no sites, so there is nothing to show")
    texts = {key: shown.get(key, "") for key in ("model", "name", "answer", "note")}
    return {**texts, "sites": [_pack_site(site, shown) for site in shown["sites"]]}


def _pack_site(site: Site, shown: Map) -> dict[str, object]:
    """Weights as base64 of little-endian uint16, heads then rows then columns."""
    rows = list(site.get("rows", shown["rows"]))
    columns = list(site.get("columns", shown["columns"]))
    weights = _to_numpy(site["weights"])
    if weights.ndim != 3 or weights.shape[1:] != (len(rows), len(columns)) or not weights.size:
        expected = f"(heads, {len(rows)}, {len(columns)})"
        raise ValueError(f"the weights of {site['name']} are {weights.shape}; its labels need {expected}")
    if not (weights.min() >= 0 and weights.max() <= 1 + 1e-4):
        raise ValueError(f"the weights of {site['name']} are outside 0–1, so they are not attention weights")
    packed = b64encode(np.rint(weights.clip(0, 1) * STEPS).astype("<u2").tobytes()).decode()
    heads = site.get("heads", list(range(len(weights))))
    others = site.get("others", [])
    return {"name": site["name"], "heads": heads, "others": others, "rows": rows, "columns": columns, "weights": packed}


def _static(name: str) -> str:
    return files("regard.explorer").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
